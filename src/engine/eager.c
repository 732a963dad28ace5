/* engine/eager.c -- eager use: elements now, by programs that are compiled once for a structure and found again
** The buffers below the tensors are the inputs of the program, so that it serves other elements too. A small expression
** is not worth a C compiler at first: the interpreter of kernels runs it, which gives the same bits, until it has had
** enough to do.
** keeps: the most recently used programs, so many; their instances share one space, because one runs at a time
** see:   docs/runtime.md, "Eager use"              tests: tests/engine/test_eager.c
*/
#include "engine/engine.h"

enum {
  MOST_PROGRAMS = 256,
  SMALL_WORK = 100000,         /* operations of a run that the interpreter may do */
  LIGHT_WORK = 10 * SMALL_WORK /* and of all runs of an expression: about a tenth of what compiling it takes */
};

struct entry {
  struct engine_key key;
  quern_program *program;
  quern_instance *instance; /* NULL: to be made */
  bool light;               /* interpreted */
  double work, done;        /* operations of a run, and those that were interpreted */
  uint64_t age;             /* grows: when it was used */
};

/* What a context keeps for eager use. */
struct eager {
  struct base_heap *heap;
  BASE_VEC(struct entry) entries;
  uint64_t age;
  int threads;
  struct engine_space space;
  size_t arena_bytes, scratch_bytes;
  struct engine_eager_stats stats;
  quern_run_counts counts; /* of all runs */
};

/* ---- what is kept --------------------------------------------------------------------------------------- */

static void entry_free(struct entry *entry) {
  quern_instance_free(entry->instance);
  quern_program_free(entry->program);
}

static void eager_free(void *state) {
  struct eager *eager = state;
  struct base_heap *heap = eager->heap;
  for (size_t i = 0; i < eager->entries.n; i++) entry_free(&eager->entries.at[i]);
  base_vec_fini(heap, &eager->entries);
  if (eager->space.pool != NULL) rt_pool_free(eager->space.pool);
  base_free(heap, eager->space.arena, eager->arena_bytes);
  base_free(heap, eager->space.scratch, eager->scratch_bytes);
  base_free(heap, eager, sizeof *eager);
}

/* The context's, made when there is none. */
static quern_status eager_get(quern_context *ctx, struct eager **out) {
  if (ctx->eager.state == NULL) {
    struct eager *eager = base_alloc_zero(&ctx->heap, sizeof *eager);
    if (eager == NULL) return QUERN_STATUS_MEMORY;
    eager->heap = &ctx->heap;
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

static struct entry *find_entry(struct eager *eager, const struct engine_key *key) {
  for (size_t i = 0; i < eager->entries.n; i++) {
    struct entry *entry = &eager->entries.at[i];
    if (entry->key.word[0] == key->word[0] && entry->key.word[1] == key->word[1]) return entry;
  }
  return NULL;
}

/* A place for one more, if need be that of the one not used for longest; NULL when there is no memory. */
static struct entry *new_entry(struct eager *eager) {
  struct entry *oldest = eager->entries.at;
  if (eager->entries.n < MOST_PROGRAMS)
    return base_vec_push(eager->heap, &eager->entries, (struct entry){0}) ? &eager->entries.at[eager->entries.n - 1]
                                                                          : NULL;
  for (size_t i = 1; i < eager->entries.n; i++)
    if (eager->entries.at[i].age < oldest->age) oldest = &eager->entries.at[i];
  entry_free(oldest);
  *oldest = (struct entry){0};
  return oldest;
}

/* Makes a block of the space larger, if it is too small. */
static bool enlarge(struct eager *eager, char **block, size_t *bytes, size_t need, bool *moved) {
  if (*block != NULL && *bytes >= need) return true;
  char *larger = base_alloc(eager->heap, need);
  if (larger == NULL) return false;
  base_free(eager->heap, *block, *bytes);
  *block = larger;
  *bytes = need;
  *moved = true;
  return true;
}

/* Makes the space large enough for a program. Instances know where it was: they are made again when they are used. */
static quern_status make_room(struct eager *eager, const quern_program *program) {
  struct engine_space *space = &eager->space;
  size_t arena = (size_t)program->memory.arena, scratch = program->scratch_stride * (size_t)eager->threads;
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

/* ---- realizing ------------------------------------------------------------------------------------------ */

/* One call: tensors without elements, each once, and the program that gives them. */
struct job {
  quern_context *ctx;
  struct eager *eager;
  struct base_arena arena;
  struct engine_canon canon;
  size_t n;
  quern_tensor **roots;
  struct ir_buffer **buffers; /* of their elements */
  const void **inputs;
  void **outputs;
};

static bool has_elements(const quern_tensor *x) {
  return x->node->op == IR_BUFFER && x->node->attrs->buffer->data != NULL;
}

/* The number of a root, or how many there are. marked: its node was met before. */
static size_t find_root(const struct job *job, const quern_tensor *x, bool marked) {
  size_t i = marked ? 0 : job->n;
  while (i < job->n && job->roots[i] != x) i++;
  return i;
}

/* Lists what there is to do: the roots, and where the elements of the leaves are. */
static quern_status open_job(struct job *job, size_t n, quern_tensor *const *xs) {
  uint32_t epoch = ir_epoch(job->ctx);
  job->roots = base_arena_alloc(&job->arena, n * sizeof *job->roots);
  if (job->roots == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) {
    bool marked = xs[i]->node->mark == epoch;
    xs[i]->node->mark = epoch;
    if (!has_elements(xs[i]) && find_root(job, xs[i], marked) == job->n) job->roots[job->n++] = xs[i];
  }
  if (job->n == 0) return QUERN_STATUS_OK;
  QUERN_TRY(engine_canon_make(&job->canon, &job->arena, job->ctx, job->n, job->roots));
  job->inputs = base_arena_alloc(&job->arena, job->canon.n_leaves * sizeof *job->inputs);
  job->outputs = base_arena_alloc(&job->arena, job->n * sizeof *job->outputs);
  job->buffers = base_arena_alloc(&job->arena, job->n * sizeof *job->buffers);
  if (job->inputs == NULL || job->outputs == NULL || job->buffers == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < job->canon.n_leaves; i++) {
    const struct ir_node *leaf = job->canon.leaves[i];
    job->inputs[i] = leaf->op == IR_BUFFER ? leaf->attrs->buffer->data : NULL;
    if (job->inputs[i] == NULL && ir_count(&leaf->out[0]) > 0) return ir_unbound(leaf);
  }
  return QUERN_STATUS_OK;
}

static void close_job(struct job *job, bool failed) {
  for (size_t i = 0; i < job->n && failed && job->buffers != NULL; i++)
    if (job->buffers[i] != NULL) ir_buffer_free(job->ctx, job->buffers[i]);
  if (job->canon.ctx != NULL) engine_canon_fini(&job->canon);
  base_arena_fini(&job->arena);
}

static quern_status take_memory(struct job *job) {
  for (size_t i = 0; i < job->n; i++) {
    job->buffers[i] = ir_buffer_new(job->ctx, ir_bytes(job->roots[i]));
    if (job->buffers[i] == NULL) return QUERN_STATUS_MEMORY;
    job->outputs[i] = job->buffers[i]->data;
  }
  return QUERN_STATUS_OK;
}

/* Compiles a copy of the graph in a context of its own, of which nothing stays but the program. */
static quern_status compile(struct job *job, bool light, quern_program **program) {
  quern_context_options context = {.size = sizeof context, .allocator = job->ctx->heap.user, .seed = job->ctx->seed};
  quern_program_options options = QUERN_PROGRAM_OPTIONS;
  options.device = light ? "interp" : "cpu";
  options.threads = job->eager->threads;
  quern_tensor **outputs = base_arena_alloc(&job->arena, job->n * sizeof *outputs);
  if (outputs == NULL) return QUERN_STATUS_MEMORY;
  quern_context *home;
  QUERN_TRY(quern_context_new(&home, &context));
  quern_status status = engine_copy(home, &job->canon, job->n, job->roots, outputs, NULL);
  if (status == QUERN_STATUS_OK) status = quern_program_compile(program, home, job->n, outputs, &options);
  quern_context_free(home);
  if (status == QUERN_STATUS_OK) ++*(light ? &job->eager->stats.interpreted : &job->eager->stats.compiled);
  return status;
}

/* An expression that is met for the first time. */
static quern_status add_program(struct job *job, struct entry **out) {
  struct entry made = {.key = job->canon.key};
  QUERN_TRY(add_work(job->ctx, job->n, job->roots, 1, &made.work));
  made.light = made.work <= SMALL_WORK;
  QUERN_TRY(compile(job, made.light, &made.program));
  *out = new_entry(job->eager);
  if (*out == NULL) {
    entry_free(&made);
    return QUERN_STATUS_MEMORY;
  }
  **out = made;
  return QUERN_STATUS_OK;
}

/* One that was met often enough. */
static quern_status replace_program(struct job *job, struct entry *entry) {
  quern_program *program;
  QUERN_TRY(compile(job, false, &program));
  entry_free(entry);
  *entry = (struct entry){.key = entry->key, .program = program};
  return QUERN_STATUS_OK;
}

/* The program for the job, ready to run: found, or compiled. */
static quern_status find_program(struct job *job, quern_instance **instance) {
  struct eager *eager = job->eager;
  struct entry *entry = find_entry(eager, &job->canon.key);
  if (entry == NULL)
    QUERN_TRY(add_program(job, &entry));
  else if (entry->light && entry->done + entry->work > LIGHT_WORK)
    QUERN_TRY(replace_program(job, entry));
  else
    eager->stats.found++;
  entry->age = ++eager->age;
  entry->done += entry->work;
  QUERN_TRY(make_room(eager, entry->program));
  if (entry->instance == NULL) QUERN_TRY(engine_instance_new(&entry->instance, entry->program, &eager->space));
  *instance = entry->instance;
  return QUERN_STATUS_OK;
}

/* Replaces tensors by such as hold the elements. */
static quern_status replace(struct job *job, size_t n, quern_tensor **xs) {
  quern_tensor **made = base_arena_alloc(&job->arena, job->n * sizeof *made);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < job->n; i++) {
    const quern_tensor *x = job->roots[i];
    struct ir_attrs attrs = {.dtype = x->dtype, .shape = {x->rank, x->dims}, .buffer = job->buffers[i]};
    made[i] = ir_make(job->ctx, IR_BUFFER, 0, NULL, &attrs);
    if (ir_is_poison(made[i])) return ir_poison_error(job->ctx);
  }
  for (size_t i = 0, next = 0; i < n; i++) {
    if (has_elements(xs[i])) continue;
    bool first = next < job->n && job->roots[next] == xs[i];
    xs[i] = made[first ? next++ : find_root(job, xs[i], true)];
  }
  return QUERN_STATUS_OK;
}

/* Runs the program, and counts what ran. */
static quern_status run_job(struct job *job, quern_instance *instance) {
  quern_run_counts before, after, *sum = &job->eager->counts;
  QUERN_TRY(quern_instance_count(instance, &before));
  quern_status status = quern_instance_run(instance, job->inputs, job->outputs);
  QUERN_TRY(quern_instance_count(instance, &after));
  sum->runs += after.runs - before.runs;
  sum->compiled += after.compiled - before.compiled;
  sum->interpreted += after.interpreted - before.interpreted;
  sum->evaluated += after.evaluated - before.evaluated;
  sum->copies += after.copies - before.copies;
  sum->controls += after.controls - before.controls;
  return status;
}

static quern_status realize(quern_context *ctx, size_t n, quern_tensor **xs) {
  struct job job = {.ctx = ctx};
  quern_instance *instance = NULL;
  base_arena_init(&job.arena, &ctx->heap);
  quern_status status = open_job(&job, n, xs);
  if (status == QUERN_STATUS_OK && job.n > 0) {
    status = take_memory(&job);
    if (status == QUERN_STATUS_OK) status = eager_get(ctx, &job.eager);
    if (status == QUERN_STATUS_OK) status = find_program(&job, &instance);
    if (status == QUERN_STATUS_OK) status = run_job(&job, instance);
    if (status == QUERN_STATUS_OK) status = replace(&job, n, xs);
  }
  close_job(&job, status != QUERN_STATUS_OK);
  return status;
}

struct engine_eager_stats engine_eager_get(const quern_context *ctx) {
  const struct eager *eager = ctx->eager.state;
  if (eager == NULL) return (struct engine_eager_stats){0};
  struct engine_eager_stats stats = eager->stats;
  stats.programs = eager->entries.n;
  return stats;
}

quern_status quern_eager_count(const quern_context *ctx, quern_run_counts *counts) {
  QUERN_CHECK(ctx != NULL, INVALID, "eager_count: the context is null");
  QUERN_CHECK(counts != NULL, INVALID, "eager_count: the place for the counts is null");
  const struct eager *eager = ctx->eager.state;
  *counts = eager != NULL ? eager->counts : (quern_run_counts){0};
  return QUERN_STATUS_OK;
}

/* ---- the public side ------------------------------------------------------------------------------------ */

quern_status quern_tensor_realize(quern_tensor **x) {
  QUERN_CHECK(x != NULL && *x != NULL, INVALID, "tensor_realize: the tensor is null");
  QUERN_CHECK(!ir_is_poison(*x), INVALID, "tensor_realize: the tensor is the result of a call that failed");
  QUERN_TRY(quern_context_check((*x)->node->ctx));
  return has_elements(*x) ? QUERN_STATUS_OK : realize((*x)->node->ctx, 1, x);
}

quern_status quern_tensors_realize(size_t n, quern_tensor **xs) {
  QUERN_CHECK(n == 0 || xs != NULL, INVALID, "tensors_realize: the list of %zu tensors is null", n);
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(xs[i] != NULL, INVALID, "tensors_realize: tensor %zu is null", i);
    QUERN_CHECK(!ir_is_poison(xs[i]), INVALID, "tensors_realize: tensor %zu is the result of a call that failed", i);
    QUERN_CHECK(xs[i]->node->ctx == xs[0]->node->ctx, INVALID,
                "tensors_realize: tensor %zu belongs to another context than tensor 0", i);
  }
  if (n == 0) return QUERN_STATUS_OK;
  QUERN_TRY(quern_context_check(xs[0]->node->ctx));
  return realize(xs[0]->node->ctx, n, xs);
}
