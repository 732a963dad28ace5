/* driver/device.c -- cases as programs: compiled together, run, their results handed back
 */
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "engine/engine.h"
#include "probe/watch.h"

struct run {
  const struct way *way;
  quern_context *ctx;
  size_t n_jobs, n_roots;
  const struct job *jobs;
  quern_tensor **roots; /* of all jobs */
  void **dst, **again;
  quern_feed *feeds; /* of all jobs */
  size_t n_feeds;
  quern_program *program;
  quern_instance *instance;
};

static void gather(struct run *r) {
  size_t n_feeds = 0;
  for (size_t i = 0; i < r->n_jobs; i++) {
    r->n_roots += r->jobs[i].n;
    n_feeds += CASE_OPERANDS + r->jobs[i].n_more;
  }
  r->roots = grab(r->n_roots * sizeof *r->roots);
  r->dst = grab(r->n_roots * sizeof *r->dst);
  r->again = grab(r->n_roots * sizeof *r->again);
  r->feeds = grab(n_feeds * sizeof *r->feeds);
  size_t at = 0;
  for (size_t i = 0; i < r->n_jobs; i++) {
    const struct job *job = &r->jobs[i];
    for (size_t k = 0; k < job->n; k++, at++) {
      r->roots[at] = job->roots[k];
      r->dst[at] = job->dst != NULL ? job->dst[k] : NULL;
    }
    r->n_feeds += instance_feeds(job->in, r->feeds + r->n_feeds);
    for (size_t k = 0; k < job->n_more; k++) r->feeds[r->n_feeds++] = job->more[k];
  }
  buffers_new(r->n_roots, r->roots, r->again);
}

static const void *feed_of(const struct run *r, const quern_tensor *leaf) {
  for (size_t i = 0; i < r->n_feeds; i++)
    if (r->feeds[i].leaf == leaf) return r->feeds[i].data;
  return NULL;
}

static quern_status compile(struct run *r) {
  const struct way *way = r->way;
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
  options.device = way->device;
  options.optimize = way->optimize > 0 ? QUERN_OPTIMIZE_DEFAULT : QUERN_OPTIMIZE_NONE;
  options.threads = way->threads;
  options.passes = way->passes;
  options.target = way->target;
  QUERN_TRY(quern_program_compile(&r->program, r->ctx, r->n_roots, r->roots, &options));
  if (!way->tight) return QUERN_STATUS_OK;
  QUERN_TRY(quern_program_get_memory(r->program, &memory));
  quern_program *tight;
  options.memory_limit = BASE_MAX(memory.arena + memory.scratch - 64, 1);
  if (quern_program_compile(&tight, r->ctx, r->n_roots, r->roots, &options) == QUERN_STATUS_OK) {
    quern_program_free(r->program);
    r->program = tight;
  }
  return QUERN_STATUS_OK;
}

/* The data of the program's inputs, and its states set: both in the order of the nodes' ids. */
static quern_status feed(struct run *r, const void **inputs) {
  struct ir_order order;
  size_t n_inputs = 0, n_states = 0;
  QUERN_TRY(ir_topo(r->ctx, r->n_roots, r->roots, &order));
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) {
    const struct ir_node *node = order.at[i];
    const void *data = feed_of(r, &node->out[0]);
    if (node->op == IR_INPUT) inputs[n_inputs++] = data;
    if (node->op == IR_STATE) status = quern_instance_set_state(r->instance, n_states++, data);
  }
  ir_order_fini(r->ctx, &order);
  return status;
}

/* The memory of the results is there before the first run. */
static void touch(struct run *r) {
  for (size_t i = 0; i < r->n_roots; i++) {
    memset(r->dst[i], 0, quern_tensor_bytes(r->roots[i]));
    memset(r->again[i], 0, quern_tensor_bytes(r->roots[i]));
  }
}

/* All kernels ran as machine code, unless something else was asked for. */
static quern_status check_counts(const struct run *r) {
  quern_run_stats counts = QUERN_INIT(quern_run_stats);
  QUERN_TRY(quern_instance_get_stats(r->instance, &counts));
  bool compiles = strcmp(r->way->device, "interp") != 0;
  QUERN_CHECK(!compiles || counts.interpreted == 0, INTERNAL, "%s: %llu kernels were interpreted", r->way->name,
              (unsigned long long)counts.interpreted);
  QUERN_CHECK(compiles || counts.compiled == 0, INTERNAL, "%s: %llu kernels were compiled", r->way->name,
              (unsigned long long)counts.compiled);
  return QUERN_STATUS_OK;
}

static quern_status run_twice(struct run *r) {
  struct watch watch = {0};
  QUERN_TRY(compile(r));
  if (r->way->watched) {
    touch(r);
    watch_begin(&watch);
  }
  QUERN_TRY(quern_instance_new(&r->instance, r->program));
  r->instance->poison = r->way->poison;
  if (r->way->threads > 1) rt_pool_disturb(r->instance->pool, (uint64_t)r->way->threads);
  const void **inputs = grab((quern_program_input_count(r->program) + 1) * sizeof *inputs);
  quern_status status = feed(r, inputs);
  if (status == QUERN_STATUS_OK) status = quern_instance_run(r->instance, inputs, r->dst);
  if (r->way->watched) watch_second(&watch, r->instance);
  if (status == QUERN_STATUS_OK) status = quern_instance_run(r->instance, inputs, r->again);
  if (status == QUERN_STATUS_OK && r->way->watched) status = watch_end(&watch, r->instance);
  if (status == QUERN_STATUS_OK) status = check_counts(r);
  for (size_t i = 0; i < r->n_roots && status == QUERN_STATUS_OK; i++) {
    if (memcmp(r->dst[i], r->again[i], quern_tensor_bytes(r->roots[i])) == 0) continue;
    status = base_error(QUERN_STATUS_INTERNAL, "%s: the second run gives other bits", r->way->name);
  }
  free(inputs);
  return status;
}

static quern_status run_together(const struct way *way, size_t n, const struct job *jobs,
                                 quern_status (*run)(struct run *r)) {
  struct run r = {.way = way, .ctx = jobs[0].in->ctx, .n_jobs = n, .jobs = jobs};
  gather(&r);
  quern_status status = run(&r);
  quern_instance_free(r.instance);
  quern_program_free(r.program);
  buffers_free(r.n_roots, r.again);
  free(r.again);
  free(r.roots);
  free(r.dst);
  free(r.feeds);
  return status;
}

const char *device_target(const char *device) {
  const quern_device *found;
  struct cg_target target;
  if (rt_device_find(&found, "device", device) != QUERN_STATUS_OK ||
      found->backend->target(found, &target) != QUERN_STATUS_OK)
    return NULL;
  return cg_target_find(target.base.name)->base.name;
}

/* The jobs of one context after another. */
static quern_status run_all(const struct way *way, size_t n, const struct job *jobs,
                            quern_status (*run)(struct run *r)) {
  for (size_t first = 0, next; first < n; first = next) {
    for (next = first + 1; next < n && jobs[next].in->ctx == jobs[first].in->ctx; next++) {}
    QUERN_TRY(run_together(way, next - first, jobs + first, run));
  }
  return QUERN_STATUS_OK;
}

quern_status device_run(const struct way *way, size_t n, const struct job *jobs) {
  return run_all(way, n, jobs, run_twice);
}

quern_status device_compile(const struct way *way, size_t n, const struct job *jobs) {
  return run_all(way, n, jobs, compile);
}
