/* engine/instance.c -- instances: the memory, the threads and the frames of a program's runs
** keeps: everything is allocated here; a run allocates nothing, unless it is captured (replay.c)
** tests: tests/engine/test_program.c, tests/api/wrong_program.def
*/
#include "engine/engine.h"

#define NEW(arena, T, n) ((T *)base_arena_alloc((arena), ((size_t)(n) + 1) * sizeof(T)))

/* ---- frames --------------------------------------------------------------------------------------------- */

/* Frames of an instance while they are made. What runs at the same position at other times has the same frame: whoever enters it gives
** where its params and results are. Two that are in use at a time lie at different depths, or are the body and the condition of
** one step. */
struct frames {
  quern_instance *instance;
  struct base_map made;
  size_t n, items; /* frames, and their buffers and steps together */
  int depth;
};

struct framed {
  int number, depth;
  bool other;
  char *arena;
  struct engine_frame *frame;
};

enum { MOST_FRAMES = 1 << 16, MOST_ITEMS = 1 << 26 };

static quern_status frame_new(struct frames *frames, int number, char *arena, struct engine_frame **out);

size_t engine_state_of(const quern_program *program, int64_t at) {
  const int64_t *begins = program->state_at;
  size_t low = 0, high = program->n_states; /* the last that begins there or before is in [low, high) */
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (begins[middle] <= at)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Where the byte of that offset is, when states lie one after another in the program's order. */
static char *state_place(const quern_instance *instance, int64_t at) {
  size_t i = engine_state_of(instance->program, at);
  return instance->states[i] + (at - instance->program->state_at[i]);
}

static bool same_frame(const void *item, const void *key) {
  const struct framed *a = item, *b = key;
  return a->number == b->number && a->depth == b->depth && a->other == b->other && a->arena == b->arena;
}

/* The frame of what is run there. */
static quern_status frame_in(struct frames *frames, const struct framed *what, struct engine_frame **out) {
  uint64_t place = (uint64_t)what->number << 32 | (uint64_t)what->depth << 1 | (what->other ? 1 : 0);
  uint64_t hash = base_hash_u64(base_hash_u64(BASE_HASH_SEED, place), (uint64_t)(uintptr_t)what->arena);
  struct framed *known = base_map_find(&frames->made, hash, same_frame, what);
  if (known == NULL) {
    const struct engine_subprogram *subprogram = &frames->instance->program->subprograms[what->number];
    frames->items += (size_t)subprogram->n_buffers + (size_t)subprogram->n_steps;
    QUERN_CHECK(frames->n++ < MOST_FRAMES && frames->items <= MOST_ITEMS, UNSUPPORTED,
                "instance: loops and branches nest in more than %d combinations HINT: let fewer of them have two "
                "others inside",
                MOST_FRAMES);
    known = base_arena_new(&frames->instance->frames, struct framed);
    if (known == NULL) return QUERN_STATUS_MEMORY;
    *known = *what;
    QUERN_TRY(frame_new(frames, what->number, what->arena, &known->frame));
    if (!base_map_add(&frames->made, hash, known)) return QUERN_STATUS_MEMORY;
  }
  *out = known->frame;
  return QUERN_STATUS_OK;
}

/* Frames of what a control step runs; their arena is the step's second workspace. */
static quern_status frame_bodies(struct frames *frames, struct engine_frame *frame, int step) {
  const struct engine_control *control = frame->subprogram->steps[step].control;
  const int *works = frame->subprogram->steps[step].buffers + control->n_src + control->n_out;
  char *arena = frame->at[works[1]];
  QUERN_TRY(
      frame_in(frames, &(struct framed){control->body, frames->depth, false, arena, NULL}, &frame->bodies[2 * step]));
  if (control->other < 0) return QUERN_STATUS_OK;
  return frame_in(frames, &(struct framed){control->other, frames->depth, true, arena, NULL},
                  &frame->bodies[2 * step + 1]);
}

/* Recursion is as deep as subgraphs lie in subgraphs: IR_MAX_DEPTH at most. */
static quern_status frame_new(struct frames *frames, int number, char *arena, struct engine_frame **out) {
  quern_instance *instance = frames->instance;
  const quern_program *program = instance->program;
  const struct engine_subprogram *subprogram = &program->subprograms[number];
  struct base_arena *memory = &instance->frames;
  struct engine_frame *frame = base_arena_new(memory, struct engine_frame);
  if (frame == NULL) return QUERN_STATUS_MEMORY;
  *frame = (struct engine_frame){.subprogram = subprogram,
                                 .arena = arena,
                                 .at = NEW(memory, void *, subprogram->n_buffers),
                                 .mems = NEW(memory, void *, subprogram->most_buffers),
                                 .params = NEW(memory, void *, subprogram->n_params),
                                 .results = NEW(memory, void *, subprogram->n_results),
                                 .bodies = NEW(memory, struct engine_frame *, 2 * subprogram->n_steps)};
  if (frame->at == NULL || frame->mems == NULL || frame->params == NULL || frame->results == NULL ||
      frame->bodies == NULL)
    return QUERN_STATUS_MEMORY;
  for (int i = 0; i < subprogram->n_buffers; i++) {
    const struct engine_buffer *b = &subprogram->buffers[i];
    if (b->place == PLAN_ARENA) frame->at[i] = arena + b->at;
    if (b->place == PLAN_STATE) frame->at[i] = state_place(instance, b->at);
    if (b->place == PLAN_CONST) frame->at[i] = program->placed + b->at;
  }
  frames->depth++;
  for (int i = 0; i < subprogram->n_steps; i++)
    if (subprogram->steps[i].control != NULL) QUERN_TRY(frame_bodies(frames, frame, i));
  frames->depth--;
  *out = frame;
  return QUERN_STATUS_OK;
}

static quern_status open_frames(quern_instance *instance) {
  struct frames frames = {.instance = instance};
  base_map_init(&frames.made, &instance->heap);
  quern_status status = frame_new(&frames, 0, instance->arena, &instance->frame);
  base_map_fini(&frames.made);
  return status;
}

/* ---- instances ------------------------------------------------------------------------------------------ */

/* Threads and memory of its own, where it has not been given those of others. */
static quern_status open_space(quern_instance *instance) {
  const quern_program *program = instance->program;
  struct base_heap *heap = &instance->heap;
  int threads = program->target.base.gpu ? 1 : program->target.base.threads;
  if (!instance->shares_pool) {
    QUERN_TRY(rt_pool_new(&instance->pool, heap, threads));
    if (program->sleeps) rt_pool_sleep(instance->pool);
  }
  /* scratch comes first: OpenCL passes it as a buffer, from its beginning */
  if (!instance->shares_scratch)
    QUERN_TRY(engine_memory_new(instance, engine_scratch_bytes(program), &instance->scratch));
  return instance->shares_arena ? QUERN_STATUS_OK
                                : engine_memory_new(instance, (size_t)program->memory.arena, &instance->arena);
}

size_t engine_scratch_bytes(const quern_program *program) {
  return program->scratch_stride * (size_t)program->target.base.threads;
}

/* The threads of another instance when they are as many, its memory where that is enough. */
static void share_space(quern_instance *instance, quern_instance *other) {
  const quern_program *program = instance->program, *its = other->program;
  instance->shares_pool = program->target.base.threads == its->target.base.threads && program->sleeps == its->sleeps;
  instance->shares_arena = program->memory.arena <= its->memory.arena;
  instance->shares_scratch = engine_scratch_bytes(program) <= engine_scratch_bytes(its);
  instance->shares_stream = other->stream != NULL; /* what one has asked for is done before what the other asks for */
  instance->stream = other->stream;
  if (instance->shares_pool) instance->pool = other->pool;
  if (instance->shares_arena) instance->arena = other->arena;
  if (instance->shares_scratch) instance->scratch = other->scratch;
}

static bool same_slot(const quern_slot *a, const quern_slot *b) {
  return a->name != NULL && b->name != NULL && strcmp(a->name, b->name) == 0 && a->dtype == b->dtype &&
         a->rank == b->rank && memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

/* The number of the same state in another instance, or as many as it has. hint: where it may be, near the last one found. */
static size_t find_state(const quern_instance *other, const quern_slot *slot, size_t *hint) {
  size_t n = other->program->n_states;
  for (size_t k = 0; k < n; k++) {
    size_t i = (*hint + k) % n;
    if (!same_slot(&other->program->states[i], slot)) continue;
    *hint = i + 1;
    return i;
  }
  return n;
}

/* Two states of the same name, of two models for instance: which one is shared would be chance. In one program each is
** itself. */
static quern_status check_single(const quern_program *program, const quern_program *its, size_t i) {
  for (size_t k = 0; k < its->n_states && program != its; k++)
    QUERN_CHECK(
        k == i || !same_slot(&its->states[k], &its->states[i]), INVALID,
        "instance_new_with: states %zu and %zu of the other instance are both named \"%s\" HINT: two models in one "
        "program need scopes of their own, such as \"target\"",
        BASE_MIN(i, k), BASE_MAX(i, k), its->states[i].name);
  return QUERN_STATUS_OK;
}

/* Places of the states that another instance has, and the bytes of the rest; whether each was set. */
static quern_status find_states(quern_instance *instance, const quern_instance *other) {
  const quern_program *program = instance->program;
  instance->states = NEW(&instance->frames, char *, program->n_states);
  instance->known = NEW(&instance->frames, bool *, program->n_states);
  bool *known = NEW(&instance->frames, bool, program->n_states);
  if (instance->states == NULL || instance->known == NULL || known == NULL) return QUERN_STATUS_MEMORY;
  size_t hint = 0;
  for (size_t i = 0; i < program->n_states; i++) {
    size_t its = other != NULL ? find_state(other, &program->states[i], &hint) : 0;
    bool shared = other != NULL && its < other->program->n_states;
    if (shared) QUERN_TRY(check_single(program, other->program, its));
    instance->states[i] = shared ? other->states[its] : NULL;
    instance->known[i] = shared ? other->known[its] : &known[i];
    known[i] = program->states[i].bytes == 0;
    if (instance->states[i] == NULL)
      instance->state_bytes += engine_room(&program->target.base, (int64_t)(&program->states[i])->bytes);
  }
  return QUERN_STATUS_OK;
}

/* Places of its own states, which are zero. */
static quern_status open_states(quern_instance *instance) {
  const quern_program *program = instance->program;
  QUERN_TRY(engine_memory_new(instance, (size_t)instance->state_bytes, &instance->state));
  char *next = instance->state;
  for (size_t i = 0; i < program->n_states; i++) {
    if (instance->states[i] != NULL) continue;
    instance->states[i] = next;
    next += engine_room(&program->target.base, (int64_t)(&program->states[i])->bytes);
  }
  return QUERN_STATUS_OK;
}

/* The stream of a device with memory of its own, and one block for all that is not shared. */
static quern_status open_block(quern_instance *instance) {
  const quern_program *program = instance->program;
  const struct rt_remote *remote = program->device->remote;
  const quern_memory_plan *m = &program->memory;
  if (remote == NULL) return QUERN_STATUS_OK;
  if (!instance->shares_stream) QUERN_TRY(remote->open(program->device, &instance->stream, &instance->heap));
  size_t bytes = engine_piece_bytes((size_t)instance->state_bytes);
  if (!instance->unstaged) bytes += engine_piece_bytes((size_t)m->staging);
  if (!instance->shares_arena) bytes += engine_piece_bytes((size_t)m->arena);
  if (!instance->shares_scratch) bytes += engine_piece_bytes(engine_scratch_bytes(program));
  return engine_block_new(instance, bytes);
}

static quern_status open_instance(quern_instance *instance, const struct engine_space *space, quern_instance *other) {
  if (space != NULL) {
    instance->shares_pool = instance->shares_arena = instance->shares_scratch = true;
    instance->pool = space->pool;
    instance->arena = space->arena;
    instance->scratch = space->scratch;
    instance->shares_stream = space->stream != NULL;
    instance->stream = space->stream;
    instance->unstaged = true;
  }
  if (other != NULL) {
    instance->other = other;
    other->users++;
    share_space(instance, other);
  }
  QUERN_TRY(find_states(instance, other));
  QUERN_TRY(open_block(instance));
  QUERN_TRY(open_space(instance));
  QUERN_TRY(open_states(instance));
  QUERN_TRY(engine_open_staging(instance));
  if (instance->debug >= 2) QUERN_TRY(engine_timing_open(instance));
  engine_replay_open(instance);
  instance->bound = NEW(&instance->frames, const void *, instance->program->n_inputs);
  instance->bound_bytes = NEW(&instance->frames, size_t, instance->program->n_inputs);
  instance->bound_outputs = NEW(&instance->frames, void *, instance->program->n_outputs);
  instance->bound_output_bytes = NEW(&instance->frames, size_t, instance->program->n_outputs);
  if (instance->bound == NULL || instance->bound_bytes == NULL || instance->bound_outputs == NULL ||
      instance->bound_output_bytes == NULL)
    return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < instance->program->n_outputs; i++) instance->bound_outputs[i] = NULL;
  for (size_t i = 0; i < instance->program->n_inputs; i++) instance->bound[i] = NULL;
  return open_frames(instance);
}

static quern_status new_instance(quern_instance **instance, const quern_program *program,
                                 const struct engine_space *space, quern_instance *other) {
  struct base_heap heap;
  QUERN_CHECK(program->module != NULL, INVALID, "instance_new: the program was only planned (plan_only)");
  base_heap_init(&heap, &program->heap.user);
  quern_instance *made = base_alloc_zero(&heap, sizeof *made);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  made->heap = heap;
  made->program = program;
  made->users = 1;
  made->poison = base_env_has(BASE_ENV_VERBOSE, "poison");
  made->debug = base_env_int(BASE_ENV_DEBUG);
  base_arena_init(&made->frames, &made->heap);
  atomic_fetch_add(&((quern_program *)program)->users, 1); /* counting its users does not change a program */
  quern_status status = open_instance(made, space, other);
  if (status == QUERN_STATUS_OK)
    *instance = made;
  else
    quern_instance_free(made);
  return status;
}

quern_status quern_instance_new(quern_instance **instance, const quern_program *program) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_new: the place for the instance is null");
  *instance = NULL;
  QUERN_CHECK(program != NULL, INVALID, "instance_new: the program is null");
  return engine_instance_new(instance, program, NULL);
}

quern_status quern_instance_new_with(quern_instance **instance, const quern_program *program, quern_instance *other) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_new_with: the place for the instance is null");
  *instance = NULL;
  QUERN_CHECK(program != NULL, INVALID, "instance_new_with: the program is null");
  QUERN_CHECK(other != NULL, INVALID, "instance_new_with: the other instance is null");
  const quern_device *device = program->device, *others = other->program->device;
  bool same = device->remote == others->remote && (device->remote == NULL || device->state == others->state);
  QUERN_CHECK(same, INVALID,
              "instance_new_with: the program is for device %s, the other instance's for %s, whose memory is another",
              device->name, others->name);
  return new_instance(instance, program, NULL, other);
}

quern_status engine_instance_new(quern_instance **instance, const quern_program *program,
                                 const struct engine_space *space) {
  return new_instance(instance, program, space, NULL);
}

static void free_instance(quern_instance *instance) {
  const quern_program *program = instance->program;
  struct base_heap heap;
  engine_record_free(instance);
  engine_timing_free(instance);
  engine_replay_free(instance);
  engine_memory_free(instance, instance->state, (size_t)instance->state_bytes);
  engine_memory_free(instance, instance->staging, (size_t)program->memory.staging);
  if (!instance->shares_pool && instance->pool != NULL) rt_pool_free(instance->pool);
  if (!instance->shares_arena) engine_memory_free(instance, instance->arena, (size_t)program->memory.arena);
  if (!instance->shares_scratch) engine_memory_free(instance, instance->scratch, engine_scratch_bytes(program));
  engine_block_free(instance);
  if (!instance->shares_stream && instance->stream != NULL) program->device->remote->close(instance->stream);
  base_arena_fini(&instance->frames);
  heap = instance->heap;
  base_free(&heap, instance, sizeof *instance);
  quern_program_free((quern_program *)program);
}

void quern_instance_free(quern_instance *instance) {
  while (instance != NULL && --instance->users == 0) {
    quern_instance *other = instance->other;
    free_instance(instance);
    instance = other;
  }
}

/* ---- states --------------------------------------------------------------------------------------------- */

static quern_status check_state(const char *what, const quern_instance *instance, size_t i, const void *data) {
  QUERN_CHECK(instance != NULL, INVALID, "%s: the instance is null", what);
  const quern_program *program = instance->program;
  QUERN_CHECK(i < program->n_states, INVALID, "%s: there is no state %zu: the program has %zu", what, i,
              program->n_states);
  QUERN_CHECK(data != NULL || program->states[i].bytes == 0, INVALID, "%s: the data of state %zu, \"%s\", is null",
              what, i, program->states[i].name);
  return QUERN_STATUS_OK;
}

quern_status quern_instance_set_state(quern_instance *instance, size_t i, const void *data) {
  QUERN_TRY(check_state("instance_set_state", instance, i, data));
  QUERN_TRY(engine_upload(instance, instance->states[i], data, instance->program->states[i].bytes));
  *instance->known[i] = true;
  return QUERN_STATUS_OK;
}

quern_status quern_instance_get_state(const quern_instance *instance, size_t i, void *data) {
  QUERN_TRY(check_state("instance_get_state", instance, i, data));
  QUERN_CHECK(*instance->known[i], STATE, "instance_get_state: nothing has set state %zu, \"%s\"", i,
              instance->program->states[i].name);
  return engine_download(instance, data, instance->states[i], instance->program->states[i].bytes);
}

void *quern_instance_state(quern_instance *instance, size_t i) {
  if (instance == NULL || instance->stream != NULL || i >= instance->program->n_states) return NULL;
  *instance->known[i] = true; /* by what the caller writes there */
  return instance->states[i];
}

/* ---- running -------------------------------------------------------------------------------------------- */

quern_status quern_instance_get_stats(const quern_instance *instance, quern_run_stats *stats) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_get_stats: the instance is null");
  QUERN_CHECK(stats != NULL, INVALID, "instance_get_stats: the place for the figures is null");
  quern_run_stats now = instance->counts;
  now.compiled = instance->launches.compiled;
  now.interpreted = instance->launches.interpreted;
  return base_give(quern_run_stats, stats, &now, "instance_get_stats");
}

/* unwanted: data that is null is not wanted. */
static quern_status check_slots(const quern_instance *instance, const char *kind, size_t n, const quern_slot *slots,
                                const void *const *data, bool unwanted) {
  QUERN_CHECK(n == 0 || data != NULL, INVALID, "instance_run: the list of %zu %ss is null", n, kind);
  for (size_t i = 0; i < n; i++)
    QUERN_CHECK(data[i] != NULL || unwanted || engine_slot_bytes(instance, &slots[i]) == 0, INVALID,
                "instance_run: %s %zu%s%s%s is null", kind, i, slots[i].name != NULL ? ", \"" : "",
                slots[i].name != NULL ? slots[i].name : "", slots[i].name != NULL ? "\"," : "");
  return QUERN_STATUS_OK;
}

quern_status engine_check_states(const char *what, const quern_instance *instance) {
  const quern_program *program = instance->program;
  for (size_t i = 0; i < program->n_states && !instance->started; i++)
    QUERN_CHECK((program->state_use[i] & ENGINE_STATE_READ) == 0 || *instance->known[i], STATE,
                "%s: the program reads state %zu, \"%s\", which nothing has set HINT: quern_instance_init_states, "
                "_load_states or _set_state; quern_instance_zero_states if it begins as zeros",
                what, i, program->states[i].name);
  return QUERN_STATUS_OK;
}

void engine_mark_started(quern_instance *instance) {
  const quern_program *program = instance->program;
  if (instance->started) return;
  for (size_t i = 0; i < program->n_states; i++)
    if ((program->state_use[i] & ENGINE_STATE_WRITTEN) != 0) *instance->known[i] = true;
  instance->started = true;
}

quern_status quern_instance_run(quern_instance *instance, const void *const *inputs, void *const *outputs) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_run: the instance is null");
  const quern_program *program = instance->program;
  QUERN_TRY(check_slots(instance, "input", program->n_inputs, program->inputs, inputs, false));
  QUERN_TRY(check_slots(instance, "output", program->n_outputs, program->outputs, (const void *const *)outputs,
                        instance->stream != NULL));
  QUERN_TRY(engine_check_states("instance_run", instance));
  bool staged = instance->rows < program->dynamic_batch || instance->stream != NULL;
  QUERN_TRY(staged ? engine_run_staged(instance, inputs, outputs) : engine_run(instance, inputs, outputs));
  engine_mark_started(instance);
  return QUERN_STATUS_OK;
}

quern_status quern_instance_wait(quern_instance *instance) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_wait: the instance is null");
  return engine_wait(instance);
}
