/* engine/eager_programs.c -- programs that a context keeps for eager use, found by structure, and the memory they run in
** The buffers below the tensors are the inputs of the program, so that it serves other elements too. On the CPU a small
** expression is not worth a C compiler at first: the interpreter of kernels runs it, which gives the same bits, until it
** has had enough to do.
** keeps: the most recently used programs, so many; their instances share one space, because one runs at a time
** see:   docs/runtime.md, "Eager use"              tests: tests/engine/test_eager.c, tests/engine/test_eager_device.c
*/
#include "engine/eager.h"

enum {
  MOST_PROGRAMS = 256,
  SMALL_WORK = 100000,         /* operations of a run that the interpreter may do */
  LIGHT_WORK = 10 * SMALL_WORK /* and of all runs of an expression: about a tenth of what compiling it takes */
};

/* ---- the device's memory -------------------------------------------------------------------------------- */

static void *remote_alloc(struct ir_remote *self, size_t bytes) {
  const struct engine_eager *eager = (const struct engine_eager *)self;
  void *at;
  return eager->device->backend->remote->alloc(eager->space.stream, bytes, &at) == QUERN_STATUS_OK ? at : NULL;
}

static void remote_free(struct ir_remote *self, void *at, size_t bytes) {
  const struct engine_eager *eager = (const struct engine_eager *)self;
  eager->device->backend->remote->release(eager->space.stream, at, bytes);
}

static quern_status remote_download(struct ir_remote *self, void *to, const void *from, size_t bytes) {
  const struct engine_eager *eager = (const struct engine_eager *)self;
  return eager->device->backend->remote->download(eager->space.stream, to, from, bytes);
}

/* A block of the space. */
static char *block_new(struct engine_eager *eager, size_t bytes) {
  return eager->space.stream != NULL ? remote_alloc(&eager->remote, bytes) : base_alloc(eager->heap, bytes);
}

static void block_free(struct engine_eager *eager, char *at, size_t bytes) {
  if (eager->space.stream == NULL)
    base_free(eager->heap, at, bytes);
  else if (at != NULL)
    remote_free(&eager->remote, at, bytes);
}

/* ---- what is kept --------------------------------------------------------------------------------------- */

static void entry_free(struct engine_eager_entry *entry) {
  quern_instance_free(entry->instance);
  quern_program_free(entry->program);
}

/* Frees all that belongs to the device. */
static void leave_device(struct engine_eager *eager) {
  for (size_t i = 0; i < eager->entries.n; i++) entry_free(&eager->entries.at[i]);
  eager->entries.n = 0;
  block_free(eager, eager->space.arena, eager->arena_bytes);
  block_free(eager, eager->space.scratch, eager->scratch_bytes);
  eager->space.arena = eager->space.scratch = NULL;
  eager->arena_bytes = eager->scratch_bytes = 0;
  if (eager->space.stream == NULL) return;
  ir_remote_close(eager->ctx);
  eager->device->backend->remote->close(eager->space.stream);
  eager->space.stream = NULL;
}

static void eager_free(void *state) {
  struct engine_eager *eager = state;
  struct base_heap *heap = eager->heap;
  leave_device(eager);
  base_vec_fini(heap, &eager->entries);
  if (eager->space.pool != NULL) rt_pool_free(eager->space.pool);
  base_free(heap, eager, sizeof *eager);
}

quern_status engine_eager_open(quern_context *ctx, struct engine_eager **out) {
  if (ctx->eager.state == NULL) {
    struct engine_eager *eager = base_alloc_zero(&ctx->heap, sizeof *eager);
    if (eager == NULL) return QUERN_STATUS_MEMORY;
    eager->remote = (struct ir_remote){remote_alloc, remote_free, remote_download};
    eager->ctx = ctx;
    eager->heap = &ctx->heap;
    eager->device = rt_device_at(&rt_cpu, 0);
    eager->threads = rt_default_threads();
    quern_status status = rt_pool_new(&eager->space.pool, &ctx->heap, eager->threads);
    if (status != QUERN_STATUS_OK) {
      eager->space.pool = NULL;
      eager_free(eager);
      return status;
    }
    ctx->eager.state = eager;
    ctx->eager.free = eager_free;
  }
  *out = ctx->eager.state;
  return QUERN_STATUS_OK;
}

/* Elements that are on the device only come to the host. */
static quern_status fetch_all(quern_context *ctx) {
  for (size_t i = 0; i < ctx->buffers.n; i++) QUERN_TRY(ir_buffer_fetch(ctx, ctx->buffers.at[i]));
  return QUERN_STATUS_OK;
}

quern_status engine_eager_move(struct engine_eager *eager, const quern_device *device) {
  struct rt_stream *stream = NULL;
  if (eager->device == device) return QUERN_STATUS_OK;
  if (device->backend->remote != NULL) QUERN_TRY(device->backend->remote->open(device, &stream, eager->heap));
  quern_status status = fetch_all(eager->ctx);
  if (status != QUERN_STATUS_OK) {
    if (stream != NULL) device->backend->remote->close(stream);
    return status;
  }
  leave_device(eager);
  eager->device = device;
  eager->space.stream = stream;
  if (stream != NULL) ir_remote_open(eager->ctx, &eager->remote);
  return QUERN_STATUS_OK;
}

static struct engine_eager_entry *find_entry(struct engine_eager *eager, const struct engine_key *key) {
  for (size_t i = 0; i < eager->entries.n; i++) {
    struct engine_eager_entry *entry = &eager->entries.at[i];
    if (entry->key.word[0] == key->word[0] && entry->key.word[1] == key->word[1]) return entry;
  }
  return NULL;
}

/* A place for one more, if need be that of the one not used for longest; NULL when there is no memory. */
static struct engine_eager_entry *new_entry(struct engine_eager *eager) {
  struct engine_eager_entry *oldest = eager->entries.at;
  if (eager->entries.n < MOST_PROGRAMS)
    return base_vec_push(eager->heap, &eager->entries, (struct engine_eager_entry){0})
               ? &eager->entries.at[eager->entries.n - 1]
               : NULL;
  for (size_t i = 1; i < eager->entries.n; i++)
    if (eager->entries.at[i].age < oldest->age) oldest = &eager->entries.at[i];
  entry_free(oldest);
  *oldest = (struct engine_eager_entry){0};
  return oldest;
}

/* Makes a block of the space larger, if it is too small. */
static bool enlarge(struct engine_eager *eager, char **block, size_t *bytes, size_t need, bool *moved) {
  if (*block != NULL && *bytes >= need) return true;
  char *larger = block_new(eager, need);
  if (larger == NULL) return false;
  block_free(eager, *block, *bytes);
  *block = larger;
  *bytes = need;
  *moved = true;
  return true;
}

/* Makes the space large enough for a program. Instances know where it was: they are made again when they are used. */
static quern_status make_room(struct engine_eager *eager, const quern_program *program) {
  struct engine_space *space = &eager->space;
  size_t arena = (size_t)program->memory.arena, scratch = engine_scratch_bytes(program);
  bool moved = false;
  bool enough = enlarge(eager, &space->arena, &eager->arena_bytes, arena, &moved) &&
                enlarge(eager, &space->scratch, &eager->scratch_bytes, scratch, &moved);
  for (size_t i = 0; i < eager->entries.n && moved; i++) {
    quern_instance_free(eager->entries.at[i].instance);
    eager->entries.at[i].instance = NULL;
  }
  return enough ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* ---- how much there is to do ---------------------------------------------------------------------------- */

/* About how many operations on elements a node is, without its subgraphs. */
static double operations(const struct ir_node *node) {
  double most = 0, terms = 1;
  for (int i = 0; i < node->n_out; i++) most = BASE_MAX(most, (double)ir_count(&node->out[i]));
  if (node->op == IR_DOT) {
    const struct ir_ints *axes = &node->attrs->a_sum;
    for (int i = 0; i < axes->n; i++) terms *= (double)node->src[0]->dims[axes->at[i]];
    return most * terms;
  }
  for (int i = 0; i < node->n_src; i++) most = BASE_MAX(most, (double)ir_count(node->src[i]));
  return most;
}

/* Adds the operations of so many iterations, until they are too many. Recursion is as deep as subgraphs lie in
** subgraphs. */
static quern_status add_work(quern_context *ctx, size_t n, quern_tensor *const *roots, double iterations,
                             double *work) {
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, n, roots, &order));
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < order.n && *work <= SMALL_WORK && status == QUERN_STATUS_OK; i++) {
    const struct ir_node *node = order.at[i];
    const struct ir_graph *inside[] = {node->attrs->body, node->attrs->other};
    double inner = node->op == IR_LOOP ? iterations * (double)node->attrs->trip : iterations;
    if (node->op == IR_WHILE) inner = SMALL_WORK; /* it ends when it will */
    *work += iterations * operations(node);
    for (size_t k = 0; k < BASE_COUNT(inside) && status == QUERN_STATUS_OK; k++)
      if (inside[k] != NULL) status = add_work(ctx, (size_t)inside[k]->n_results, inside[k]->results, inner, work);
  }
  ir_order_fini(ctx, &order);
  return status;
}

/* ---- programs ------------------------------------------------------------------------------------------- */

/* Compiles a copy of the graph in a context of its own, of which nothing stays but the program. */
static quern_status compile_in(struct engine_eager *eager, const struct engine_eager_roots *roots,
                               struct base_arena *arena, const char *device, quern_program **program) {
  const quern_context *ctx = eager->ctx;
  quern_context_options context = {.size = sizeof context, .allocator = ctx->heap.user, .seed = ctx->seed};
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = device;
  options.threads = eager->threads;
  quern_tensor **outputs = base_arena_alloc(arena, roots->n * sizeof *outputs);
  if (outputs == NULL) return QUERN_STATUS_MEMORY;
  quern_context *home;
  QUERN_TRY(quern_context_new(&home, &context));
  quern_status status = engine_copy(home, &roots->canon, roots->n, roots->at, outputs, NULL);
  if (status == QUERN_STATUS_OK) status = quern_program_compile(program, home, roots->n, outputs, &options);
  quern_context_free(home);
  return status;
}

static quern_status compile(struct engine_eager *eager, const struct engine_eager_roots *roots, bool light,
                            quern_program **program) {
  struct base_arena arena;
  base_arena_init(&arena, eager->heap);
  quern_status status = compile_in(eager, roots, &arena, light ? "interp" : eager->device->name, program);
  base_arena_fini(&arena);
  if (status == QUERN_STATUS_OK) ++*(light ? &eager->stats.interpreted : &eager->stats.compiled);
  return status;
}

/* An expression that is met for the first time. */
static quern_status add_program(struct engine_eager *eager, const struct engine_eager_roots *roots,
                                struct engine_eager_entry **out) {
  struct engine_eager_entry made = {.key = roots->canon.key};
  QUERN_TRY(add_work(eager->ctx, roots->n, roots->at, 1, &made.work));
  made.light = made.work <= SMALL_WORK && eager->device->backend == &rt_cpu;
  QUERN_TRY(compile(eager, roots, made.light, &made.program));
  *out = new_entry(eager);
  if (*out == NULL) {
    entry_free(&made);
    return QUERN_STATUS_MEMORY;
  }
  **out = made;
  return QUERN_STATUS_OK;
}

/* One that was met often enough. */
static quern_status replace_program(struct engine_eager *eager, const struct engine_eager_roots *roots,
                                    struct engine_eager_entry *entry) {
  quern_program *program;
  QUERN_TRY(compile(eager, roots, false, &program));
  entry_free(entry);
  *entry = (struct engine_eager_entry){.key = entry->key, .program = program};
  return QUERN_STATUS_OK;
}

quern_status engine_eager_find(struct engine_eager *eager, const struct engine_eager_roots *roots,
                               quern_instance **instance) {
  struct engine_eager_entry *entry = find_entry(eager, &roots->canon.key);
  if (entry == NULL)
    QUERN_TRY(add_program(eager, roots, &entry));
  else if (entry->light && entry->done + entry->work > LIGHT_WORK)
    QUERN_TRY(replace_program(eager, roots, entry));
  else
    eager->stats.found++;
  entry->age = ++eager->age;
  entry->done += entry->work;
  QUERN_TRY(make_room(eager, entry->program));
  if (entry->instance == NULL) QUERN_TRY(engine_instance_new(&entry->instance, entry->program, &eager->space));
  *instance = entry->instance;
  return QUERN_STATUS_OK;
}

struct engine_eager_stats engine_eager_get(const quern_context *ctx) {
  const struct engine_eager *eager = ctx->eager.state;
  if (eager == NULL) return (struct engine_eager_stats){0};
  struct engine_eager_stats stats = eager->stats;
  stats.programs = eager->entries.n;
  return stats;
}
