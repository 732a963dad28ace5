/* engine/eager.c -- eager use: elements now, by programs that are compiled once for a structure and found again
** A job is what one call asks for. Its operands and results are in the memory of the context's device; what comes from
** the caller's memory, and goes there, is copied where that is another, or where the two overlap.
** see:   docs/runtime.md, "Eager use"      tests: tests/engine/test_eager.c, test_eager_device.c, test_eval.c
*/
#include "engine/eager.h"

#include "tensor/tensor.h"

/* ---- jobs ----------------------------------------------------------------------------------------------- */

/* A block of the pool that is given back when the job is done. */
struct block {
  void *at;
  size_t room;
};

/* One call: the tensors that are asked for, and where operands and results are. */
struct job {
  quern_context *ctx;
  struct engine_eager *eager;
  struct base_arena arena;
  struct engine_eager_roots roots;
  struct ir_buffer **buffers; /* realizing: of the roots' elements */
  size_t n_feeds;             /* evaluating */
  const quern_feed *feeds;
  const void **inputs;
  void **outputs;
  size_t n_blocks;
  struct block *blocks; /* room for one of each input and output */
};

static struct ir_buffer_cache *job_cache(const struct job *job) {
  return job->ctx->remote != NULL ? &job->ctx->remote_cache : &job->ctx->buffer_cache;
}

/* A block for the time of the job, or NULL with the error recorded. */
static void *add_block(struct job *job, size_t bytes) {
  struct block block = {0};
  block.at = ir_buffer_cache_take(job_cache(job), bytes, &block.room);
  if (block.at != NULL) job->blocks[job->n_blocks++] = block;
  return block.at;
}

static void close_job(struct job *job, bool failed) {
  for (size_t i = 0; i < job->roots.n && failed && job->buffers != NULL; i++)
    if (job->buffers[i] != NULL) ir_buffer_free(job->ctx, job->buffers[i]);
  while (job->n_blocks > 0) {
    const struct block *block = &job->blocks[--job->n_blocks];
    ir_buffer_cache_give(job_cache(job), block->at, block->room);
  }
  if (job->roots.canon.ctx != NULL) engine_canon_fini(&job->roots.canon);
  base_arena_fini(&job->arena);
}

/* The elements of the host's in the device's memory, for the time of the job. */
static quern_status upload(struct job *job, const void *data, size_t bytes, const void **at) {
  void *block = add_block(job, bytes);
  if (block == NULL) return QUERN_STATUS_MEMORY;
  *at = block;
  return job->eager->device->backend->remote->upload(job->eager->space.stream, block, data, bytes);
}

/* Puts a buffer's elements into the device's memory. Those that the context owns stay there; the caller may change
** what is wrapped. */
static quern_status place_buffer(struct job *job, struct ir_buffer *buffer, const void **at) {
  if (buffer->remote == NULL) {
    QUERN_TRY(upload(job, buffer->data, buffer->bytes, at));
    if (!buffer->owned) return QUERN_STATUS_OK;
    const struct block *block = &job->blocks[--job->n_blocks];
    buffer->remote = block->at;
    buffer->remote_room = block->room;
  }
  *at = buffer->remote;
  return QUERN_STATUS_OK;
}

static const quern_feed *find_feed(const struct job *job, const struct ir_node *leaf) {
  for (size_t i = 0; i < job->n_feeds; i++)
    if (job->feeds[i].leaf->node == leaf) return &job->feeds[i];
  return NULL;
}

/* Where the job reads the elements of a leaf. */
static quern_status place_leaf(struct job *job, const struct ir_node *leaf, const void **at) {
  const quern_feed *upload_async = find_feed(job, leaf);
  struct ir_buffer *buffer = upload_async == NULL && leaf->op == IR_BUFFER ? leaf->attrs->buffer : NULL;
  size_t bytes = ir_bytes(&leaf->out[0]);
  *at = upload_async != NULL ? upload_async->data : buffer != NULL ? buffer->data : NULL;
  if (bytes > 0 && *at == NULL && (buffer == NULL || buffer->remote == NULL)) return ir_unbound(leaf);
  if (job->ctx->remote == NULL) return QUERN_STATUS_OK;
  return buffer != NULL ? place_buffer(job, buffer, at) : upload(job, *at, bytes, at);
}

/* Once there are roots: their structure, and where the elements of the leaves are. */
static quern_status find_leaves(struct job *job) {
  struct engine_canon *canon = &job->roots.canon;
  QUERN_TRY(engine_eager_open(job->ctx, &job->eager));
  QUERN_TRY(engine_canon_make(canon, &job->arena, job->ctx, job->roots.n, job->roots.at));
  job->inputs = base_arena_alloc(&job->arena, canon->n_leaves * sizeof *job->inputs);
  job->outputs = base_arena_alloc(&job->arena, job->roots.n * sizeof *job->outputs);
  job->blocks = base_arena_alloc(&job->arena, (canon->n_leaves + job->roots.n) * sizeof *job->blocks);
  if (job->inputs == NULL || job->outputs == NULL || job->blocks == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < canon->n_leaves; i++) QUERN_TRY(place_leaf(job, canon->leaves[i], &job->inputs[i]));
  return QUERN_STATUS_OK;
}

/* Counts what ran. */
static void count(struct engine_eager *eager, const quern_run_stats *before, const quern_run_stats *after) {
  quern_run_stats *sum = &eager->counts;
  sum->runs += after->runs - before->runs;
  sum->compiled += after->compiled - before->compiled;
  sum->interpreted += after->interpreted - before->interpreted;
  sum->evaluated += after->evaluated - before->evaluated;
  sum->copies += after->copies - before->copies;
  sum->controls += after->controls - before->controls;
}

/* Finds the program of a job whose memory is there, and runs it. */
static quern_status do_job(struct job *job) {
  quern_instance *instance;
  quern_run_stats before = QUERN_INIT(quern_run_stats), after = QUERN_INIT(quern_run_stats);
  QUERN_TRY(engine_eager_find(job->eager, &job->roots, &instance));
  QUERN_TRY(quern_instance_get_stats(instance, &before));
  quern_status status = engine_run(instance, job->inputs, job->outputs);
  QUERN_TRY(quern_instance_get_stats(instance, &after));
  count(job->eager, &before, &after);
  return status;
}

/* ---- realizing ------------------------------------------------------------------------------------------ */

static bool has_elements(const quern_tensor *x) {
  return x->node->op == IR_BUFFER && ir_buffer_bound(x->node->attrs->buffer);
}

/* The number of a root, or how many there are. marked: its node was met before. */
static size_t find_root(const struct engine_eager_roots *roots, const quern_tensor *x, bool marked) {
  size_t i = marked ? 0 : roots->n;
  while (i < roots->n && roots->at[i] != x) i++;
  return i;
}

/* Tensors without elements, each once. */
static quern_status find_roots(struct job *job, size_t n, quern_tensor *const *xs) {
  uint32_t epoch = ir_epoch(job->ctx);
  quern_tensor **roots = base_arena_alloc(&job->arena, n * sizeof *roots);
  if (roots == NULL) return QUERN_STATUS_MEMORY;
  job->roots.at = roots;
  for (size_t i = 0; i < n; i++) {
    bool marked = xs[i]->node->mark == epoch;
    xs[i]->node->mark = epoch;
    if (!has_elements(xs[i]) && find_root(&job->roots, xs[i], marked) == job->roots.n) roots[job->roots.n++] = xs[i];
  }
  job->buffers = base_arena_alloc(&job->arena, job->roots.n * sizeof *job->buffers);
  return job->buffers != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status take_memory(struct job *job) {
  bool remote = job->ctx->remote != NULL;
  for (size_t i = 0; i < job->roots.n; i++) {
    size_t bytes = ir_bytes(job->roots.at[i]);
    job->buffers[i] = remote ? ir_buffer_new_remote(job->ctx, bytes) : ir_buffer_new(job->ctx, bytes);
    if (job->buffers[i] == NULL) return QUERN_STATUS_MEMORY;
    job->outputs[i] = remote ? job->buffers[i]->remote : job->buffers[i]->data;
  }
  return QUERN_STATUS_OK;
}

/* Replaces tensors by such as hold the elements. */
static quern_status replace(struct job *job, size_t n, quern_tensor **xs) {
  const struct engine_eager_roots *roots = &job->roots;
  quern_tensor **made = base_arena_alloc(&job->arena, roots->n * sizeof *made);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < roots->n; i++) {
    const quern_tensor *x = roots->at[i];
    struct ir_attrs attrs = {.dtype = x->dtype, .shape = {x->rank, x->dims}, .buffer = job->buffers[i]};
    made[i] = ir_make(job->ctx, IR_BUFFER, 0, NULL, &attrs);
    if (ir_is_poison(made[i])) return ir_poison_error(job->ctx);
  }
  for (size_t i = 0, next = 0; i < n; i++) {
    if (has_elements(xs[i])) continue;
    bool first = next < roots->n && roots->at[next] == xs[i];
    xs[i] = made[first ? next++ : find_root(roots, xs[i], true)];
  }
  return QUERN_STATUS_OK;
}

static quern_status realize(quern_context *ctx, size_t n, quern_tensor **xs) {
  struct job job = {.ctx = ctx};
  base_arena_init(&job.arena, &ctx->heap);
  quern_status status = find_roots(&job, n, xs);
  if (status == QUERN_STATUS_OK && job.roots.n > 0) {
    status = find_leaves(&job);
    if (status == QUERN_STATUS_OK) status = take_memory(&job);
    if (status == QUERN_STATUS_OK) status = do_job(&job);
    if (status == QUERN_STATUS_OK) status = replace(&job, n, xs);
  }
  close_job(&job, status != QUERN_STATUS_OK);
  return status;
}

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

/* ---- evaluating ----------------------------------------------------------------------------------------- */

static bool overlaps_input(const struct job *job, const void *dst, size_t bytes) {
  const struct engine_canon *canon = &job->roots.canon;
  uintptr_t at = (uintptr_t)dst;
  for (size_t i = 0; i < canon->n_leaves; i++) {
    uintptr_t input = (uintptr_t)job->inputs[i];
    if (at < input + ir_bytes(&canon->leaves[i]->out[0]) && input < at + bytes) return true;
  }
  return false;
}

/* Where the run writes: to the caller's memory, or to a block, where that is the host's or holds what may still be read. */
static quern_status place_outputs(struct job *job, void *const *dst) {
  for (size_t i = 0; i < job->roots.n; i++) {
    size_t bytes = ir_bytes(job->roots.at[i]);
    bool apart = job->ctx->remote != NULL || overlaps_input(job, dst[i], bytes);
    job->outputs[i] = apart ? add_block(job, bytes) : dst[i];
    if (apart && job->outputs[i] == NULL) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

static quern_status bring_outputs(struct job *job, void *const *dst) {
  for (size_t i = 0; i < job->roots.n; i++) {
    size_t bytes = ir_bytes(job->roots.at[i]);
    if (job->ctx->remote != NULL)
      QUERN_TRY(job->ctx->remote->download(job->ctx->remote, dst[i], job->outputs[i], bytes));
    else if (job->outputs[i] != dst[i])
      memcpy(dst[i], job->outputs[i], bytes);
  }
  return QUERN_STATUS_OK;
}

quern_status quern_eval(quern_context *ctx, size_t n, quern_tensor *const *outputs, void *const *dst, size_t n_feeds,
                        const quern_feed *feeds) {
  QUERN_TRY(tensor_check_eval("eval", ctx, n, outputs, dst, n_feeds, feeds));
  if (n == 0) return QUERN_STATUS_OK;
  struct job job = {.ctx = ctx, .roots = {.n = n, .at = outputs}, .n_feeds = n_feeds, .feeds = feeds};
  base_arena_init(&job.arena, &ctx->heap);
  quern_status status = find_leaves(&job);
  if (status == QUERN_STATUS_OK) status = place_outputs(&job, dst);
  if (status == QUERN_STATUS_OK) status = do_job(&job);
  if (status == QUERN_STATUS_OK) status = bring_outputs(&job, dst);
  close_job(&job, false);
  return status;
}

/* ---- the device ----------------------------------------------------------------------------------------- */

quern_status quern_context_set_device(quern_context *ctx, const char *device) {
  struct engine_eager *eager;
  QUERN_CHECK(ctx != NULL, INVALID, "context_set_device: the context is null");
  QUERN_CHECK(device != NULL, INVALID, "context_set_device: the device is null");
  const quern_device *found;
  QUERN_TRY(base_env_read());
  QUERN_TRY(rt_device_find(&found, "context_set_device", device));
  QUERN_CHECK(found->backend != &rt_null, UNSUPPORTED, "context_set_device: device \"null\" runs nothing");
  QUERN_TRY(engine_eager_open(ctx, &eager));
  return engine_eager_move(eager, found);
}

quern_status quern_eager_get_stats(const quern_context *ctx, quern_run_stats *stats) {
  QUERN_CHECK(ctx != NULL, INVALID, "eager_get_stats: the context is null");
  QUERN_CHECK(stats != NULL, INVALID, "eager_get_stats: the place for the figures is null");
  const struct engine_eager *eager = ctx->eager.state;
  const quern_run_stats none = {0};
  return base_give(quern_run_stats, stats, eager != NULL ? &eager->counts : &none, "eager_get_stats");
}
