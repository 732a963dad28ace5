/* train/first_nonfinite.c -- which operation gave the first value that is not finite
** The step runs again with one kernel per operation, and what each has written is looked at. An operation is to blame when a result
** of its is not finite though everything that it read is. Its place in the network is that of the nearest parameter that it
** depends on.
** in:    a batch, and states as they were before it      out: an error
** tests: tests/train/test_train.c
*/
#include <math.h>
#include <stdio.h>

#include "engine/engine.h"
#include "train/train.h"

enum known { UNKNOWN, FINITE, INFINITE };

/* A run that is watched. */
struct watch {
  const quern_program *program;
  quern_instance *instance;
  unsigned char **known;        /* of each subprogram: of each buffer */
  unsigned char **results;      /* of each subprogram, as a body: INFINITE when an iteration gave such a result */
  int subprogram, step, buffer; /* the blamed one; step -1: none */
  quern_dtype dtype;
  double value;
  unsigned char *copy; /* of what lies on a device; NULL: it is the host's */
  quern_status status; /* of copying */
};

/* ---- looking -------------------------------------------------------------------------------------------- */

/* The first element that is not finite, or n. */
static size_t first_infinite(quern_dtype dtype, const void *at, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!isfinite(base_load_float(dtype, at, i))) return i;
  return n;
}

/* Where the host can read a kernel's memory: there, or in the copy that is made of it. */
static const void *on_host(struct watch *w, const struct kern_mem *mem, const void *at) {
  size_t bytes = (size_t)mem->count * base_dtypes[mem->dtype].size;
  if (w->copy == NULL) return at;
  if (w->status == QUERN_STATUS_OK) w->status = engine_download(w->instance, w->copy, at, bytes);
  return w->copy;
}

static enum known look(const struct kern_mem *mem, const void *at) {
  return first_infinite(mem->dtype, at, (size_t)mem->count) < (size_t)mem->count ? INFINITE : FINITE;
}

static bool is_float(const struct kern_mem *mem) { return base_dtype_is(mem->dtype, BASE_FLOAT); }

/* Whether an operation chooses among what it reads, constants included: those may be infinite, such as masks. */
static bool chooses(const struct engine_step *step) { return strcmp(step->ops, "where") == 0; }

static bool is_overwritten(const struct engine_frame *frame, const struct engine_step *step, const struct kern *kern,
                           int in) {
  for (int i = 0; i < step->n_buffers; i++)
    if (kern->mems[i].role == KERN_OUT && frame->at[step->buffers[i]] == frame->at[step->buffers[in]]) return true;
  return false;
}

/* What a kernel has read: whether there were floats, and all of them finite. */
static bool read_finite(struct watch *w, const struct engine_frame *frame, int subprogram,
                        const struct engine_step *step, const struct kern *kern) {
  bool any = false, all = true;
  for (int i = 0; i < step->n_buffers; i++) {
    if (kern->mems[i].role != KERN_IN || !is_float(&kern->mems[i])) continue;
    unsigned char *known = &w->known[subprogram][step->buffers[i]];
    if (*known == UNKNOWN && !is_overwritten(frame, step, kern, i))
      *known = (unsigned char)look(&kern->mems[i], on_host(w, &kern->mems[i], frame->at[step->buffers[i]]));
    any = true;
    all = all && *known != INFINITE;
  }
  return any && all;
}

static void set_known(struct watch *w, int subprogram, int buffer, enum known known) {
  const struct engine_buffer *b = &w->program->subprograms[subprogram].buffers[buffer];
  w->known[subprogram][buffer] = (unsigned char)known;
  if (b->place == PLAN_RESULT && known == INFINITE) w->results[subprogram][b->at] = INFINITE;
}

static void watch_kernel(struct watch *w, const struct engine_frame *frame, int subprogram, int number) {
  const struct engine_step *step = &frame->subprogram->steps[number];
  const struct kern *kern = w->program->kernels[step->kernel];
  bool finite = read_finite(w, frame, subprogram, step, kern);
  for (int i = 0; i < step->n_buffers; i++) {
    const struct kern_mem *mem = &kern->mems[i];
    if (mem->role != KERN_OUT || !is_float(mem)) continue;
    const void *at = on_host(w, mem, frame->at[step->buffers[i]]);
    enum known known = look(mem, at);
    set_known(w, subprogram, step->buffers[i], known);
    if (known != INFINITE || !finite || chooses(step) || w->step >= 0) continue;
    w->subprogram = subprogram;
    w->step = number;
    w->buffer = step->buffers[i];
    w->dtype = mem->dtype;
    w->value = base_load_float(mem->dtype, at, first_infinite(mem->dtype, at, (size_t)mem->count));
  }
}

/* Results of a body become those of the step that ran it. */
static void watch_control(struct watch *w, int subprogram, const struct engine_step *step) {
  const struct engine_control *c = step->control;
  const int bodies[] = {c->body, step->kind == PLAN_IF ? c->other : -1};
  for (size_t k = 0; k < BASE_COUNT(bodies); k++) {
    if (bodies[k] < 0) continue;
    for (int i = 0; i < c->n_out && i < w->program->subprograms[bodies[k]].n_results; i++)
      if (w->results[bodies[k]][i] == INFINITE) set_known(w, subprogram, step->buffers[c->n_src + i], INFINITE);
    memset(w->results[bodies[k]], UNKNOWN, (size_t)w->program->subprograms[bodies[k]].n_results);
  }
}

/* An engine_hook. */
static void watch_step(void *user, int subprogram, int number, double begin, double end) {
  struct watch *w = user;
  const struct engine_frame *frame = w->instance->running;
  const struct engine_step *step = &frame->subprogram->steps[number];
  (void)begin, (void)end;
  if (subprogram > 0 && number == 0) { /* another iteration has other operands */
    const struct engine_subprogram *p = &w->program->subprograms[subprogram];
    for (int i = 0; i < p->n_buffers; i++)
      if (p->buffers[i].place == PLAN_PARAM) w->known[subprogram][i] = UNKNOWN;
  }
  if (step->kind == PLAN_KERNEL) watch_kernel(w, frame, subprogram, number);
  if (step->kind == PLAN_COPY) set_known(w, subprogram, step->buffers[0], w->known[subprogram][step->buffers[1]]);
  if (step->control != NULL) watch_control(w, subprogram, step);
}

/* ---- where it is ---------------------------------------------------------------------------------------- */

/* A buffer of a subprogram, on the way back. */
struct place {
  int subprogram, buffer;
};

struct search {
  const quern_program *program;
  struct base_heap *heap;
  unsigned char **seen;
  BASE_VEC(struct place) queue;
};

static bool reach(struct search *s, int subprogram, int buffer) {
  if (s->seen[subprogram][buffer]) return true;
  s->seen[subprogram][buffer] = 1;
  return base_vec_push(s->heap, &s->queue, ((struct place){subprogram, buffer}));
}

/* Whether buffer i of a step is written by it. */
static bool writes(const quern_program *program, const struct engine_step *step, int i) {
  if (step->kind == PLAN_KERNEL) return program->kernels[step->kernel]->mems[i].role == KERN_OUT;
  if (step->kind == PLAN_COPY) return i == 0;
  return i >= step->control->n_src && i < step->control->n_src + step->control->n_out;
}
static bool reads(const quern_program *program, const struct engine_step *step, int i) {
  if (step->kind == PLAN_KERNEL) return program->kernels[step->kernel]->mems[i].role == KERN_IN;
  return step->kind == PLAN_COPY ? i == 1 : i < step->control->n_src;
}

/* What the makers of a buffer read. */
static bool reach_makers(struct search *s, struct place at) {
  const struct engine_subprogram *subprogram = &s->program->subprograms[at.subprogram];
  bool good = true;
  for (int i = 0; i < subprogram->n_steps; i++) {
    const struct engine_step *step = &subprogram->steps[i];
    bool made = false;
    for (int k = 0; k < step->n_buffers; k++)
      made = made || (step->buffers[k] == at.buffer && writes(s->program, step, k));
    for (int k = 0; k < step->n_buffers && made; k++)
      if (reads(s->program, step, k)) good = reach(s, at.subprogram, step->buffers[k]) && good;
  }
  return good;
}

/* The operand of the step that runs a body which param number `at` of it is. */
static bool reach_operands(struct search *s, struct place at) {
  int64_t param = s->program->subprograms[at.subprogram].buffers[at.buffer].at;
  bool good = true;
  for (int p = 0; p < s->program->n_subprograms; p++)
    for (int i = 0; i < s->program->subprograms[p].n_steps; i++) {
      const struct engine_step *step = &s->program->subprograms[p].steps[i];
      const struct engine_control *c = step->control;
      if (c == NULL || (c->body != at.subprogram && c->other != at.subprogram)) continue;
      int64_t source = step->kind == PLAN_LOOP ? param - 1 : step->kind == PLAN_IF ? param + 1 : param;
      if (source >= 0 && source < c->n_src) good = reach(s, p, step->buffers[source]) && good;
    }
  return good;
}

static const char *state_name(const quern_program *program, int64_t at) {
  for (size_t i = 0; i < program->n_states; i++)
    if (program->state_at[i] == at) return program->states[i].name;
  return NULL;
}

/* The name of the trained parameter nearest to a buffer, by operations on the way back to it; NULL: there is none. */
static const char *nearest_parameter(struct search *s, const quern_model *model, int subprogram, int buffer) {
  if (!reach(s, subprogram, buffer)) return NULL;
  for (size_t next = 0; next < s->queue.n; next++) {
    struct place at = s->queue.at[next];
    const struct engine_buffer *b = &s->program->subprograms[at.subprogram].buffers[at.buffer];
    if (b->place == PLAN_STATE && b->first < 0) {
      const char *name = state_name(s->program, b->at);
      const quern_parameter *p = quern_model_find(model, name);
      if (p != NULL && p->trained) return name;
    }
    if (b->place == PLAN_PARAM && at.subprogram > 0 && !reach_operands(s, at)) return NULL;
    if (!reach_makers(s, at)) return NULL;
  }
  return NULL;
}

/* ---- the run -------------------------------------------------------------------------------------------- */

/* "(8, 64)" of a kernel whose name ends in _8x64; "()" when there is none. */
static void shape_text(const char *kernel, char text[128]) {
  const char *last = strrchr(kernel, '_');
  size_t n = 0;
  text[n++] = '(';
  bool shape = last != NULL && last[1] != 0 && strspn(last + 1, "0123456789x") == strlen(last + 1);
  for (const char *at = shape ? last + 1 : ""; *at != 0 && n < 120; at++) {
    if (*at == 'x') {
      text[n++] = ',';
      text[n++] = ' ';
    } else {
      text[n++] = *at;
    }
  }
  text[n++] = ')';
  text[n] = 0;
}

static quern_status tell(quern_trainer *t, const struct watch *w, unsigned char **seen) {
  if (w->step < 0)
    return base_error(QUERN_STATUS_STATE, "step %lld: the loss is %g and the norm of the gradients %g",
                      (long long)t->info.step, train_output(&t->main, TRAIN_LOSS), train_output(&t->main, TRAIN_NORM));
  const struct engine_step *step = &w->program->subprograms[w->subprogram].steps[w->step];
  struct search search = {.program = w->program, .heap = &t->heap, .seen = seen};
  const char *near = nearest_parameter(&search, t->model, w->subprogram, w->buffer);
  base_vec_fini(&t->heap, &search.queue);
  char shape[128];
  shape_text(w->program->kernels[step->kernel]->name, shape);
  return base_error(
      QUERN_STATUS_STATE,
      "step %lld: %s of %s %s is the first operation that gave a value that is not finite, %g%s%s (loss %g, norm of "
      "the gradients %g) HINT: a lower lr, or a longer warmup",
      (long long)t->info.step, step->ops, quern_dtype_name(w->dtype), shape, w->value, near != NULL ? ", near " : "",
      near != NULL ? near : "", train_output(&t->main, TRAIN_LOSS), train_output(&t->main, TRAIN_NORM));
}

/* Flags for every buffer of every subprogram. */
static unsigned char **flags_new(struct base_arena *arena, const quern_program *program) {
  unsigned char **flags = base_arena_alloc(arena, (size_t)program->n_subprograms * sizeof *flags);
  for (int i = 0; i < program->n_subprograms && flags != NULL; i++) {
    const struct engine_subprogram *subprogram = &program->subprograms[i];
    flags[i] = base_arena_alloc(arena, (size_t)subprogram->n_buffers + (size_t)subprogram->n_results + 1);
    if (flags[i] == NULL) return NULL;
  }
  return flags;
}

/* Bytes of the largest memory that a kernel of the program has. */
static size_t most_bytes(const quern_program *program) {
  size_t most = 0;
  for (int k = 0; k < program->n_kernels; k++)
    for (int i = 0; i < program->kernels[k]->n_mems; i++) {
      const struct kern_mem *mem = &program->kernels[k]->mems[i];
      most = BASE_MAX(most, (size_t)mem->count * base_dtypes[mem->dtype].size);
    }
  return most;
}

static quern_status watch_run(quern_trainer *t, struct train_program *p, void *const *fields,
                              struct base_arena *arena) {
  struct watch w = {.program = p->program, .instance = p->instance, .step = -1};
  w.known = flags_new(arena, p->program);
  w.results = flags_new(arena, p->program);
  unsigned char **seen = flags_new(arena, p->program);
  if (t->remote) w.copy = base_arena_alloc(arena, most_bytes(p->program) + 1);
  bool room = w.known != NULL && w.results != NULL && seen != NULL && (w.copy != NULL || !t->remote);
  if (!room) return QUERN_STATUS_MEMORY;
  p->instance->hook = watch_step;
  p->instance->hook_user = &w;
  memcpy(p->lr, t->main.lr, sizeof p->lr);
  quern_status status = train_run(p, fields, true);
  if (status == QUERN_STATUS_OK) status = w.status;
  p->instance->hook = NULL;
  return status == QUERN_STATUS_OK ? tell(t, &w, seen) : status;
}

quern_status train_find_nonfinite(quern_trainer *t, void *const *fields) {
  struct train_program p = {0};
  struct base_arena arena;
  base_arena_init(&arena, &t->heap);
  quern_status status = train_check_program(t, &p);
  if (status == QUERN_STATUS_OK) status = quern_instance_new_with(&p.instance, p.program, t->main.instance);
  if (status == QUERN_STATUS_OK) status = watch_run(t, &p, fields, &arena);
  base_arena_fini(&arena);
  train_program_free(&p);
  return status;
}
