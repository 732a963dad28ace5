/* cli/bench_memory.c -- the suite memory: relu, matmul, softmax as a program that plans its memory, fused and not, and
** eagerly, each result realized, with a pool that keeps blocks for the next one and without
** All memory of the library comes from an allocator that counts.
*/
#include "bench.h"

#include <stdlib.h>
#include <time.h>

static uint64_t allocations;

static void *counted_alloc(void *self, size_t bytes) {
  (void)self;
  allocations++;
  return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

static void counted_free(void *self, void *memory, size_t bytes) {
  (void)self, (void)bytes;
  free(memory);
}

struct variant {
  const char *name, *passes;
  bool eager, pooled;
};
static const struct variant variants[] = {{"fused", NULL, false, false},
                                          {"unfused", "-fuse", false, false},
                                          {"pooled", NULL, true, true},
                                          {"unpooled", NULL, true, false}};
enum { VARIANTS = sizeof variants / sizeof *variants, WARM_RUNS = 20 };

/* A variant that runs. */
struct contender {
  const struct variant *variant;
  struct bench_graph graph;
  struct bench_side side;     /* unless it is eager */
  quern_tensor *x, *w;        /* n x n */
  uint64_t allocations, runs; /* after the first one, which warms up */
  uint64_t interpreted;       /* kernels, before anything is measured */
  bool warm;
};

/* ---- one run ---------------------------------------------------------------------------------------------- */

/* Realizes *y and gives the memory of x back, which it was made of. */
static quern_status next(quern_tensor **y, quern_tensor *x) {
  quern_status status = quern_tensor_realize(y);
  if (status == QUERN_STATUS_OK && x != NULL) status = quern_tensor_release(x);
  return status;
}

static quern_status run_eagerly(struct contender *c) {
  quern_mark mark;
  quern_status status = quern_context_mark(c->graph.ctx, &mark);
  quern_tensor *a = quern_relu(c->x);
  if (status == QUERN_STATUS_OK) status = next(&a, NULL);
  quern_tensor *b = quern_matmul(a, c->w);
  if (status == QUERN_STATUS_OK) status = next(&b, a);
  quern_tensor *y = quern_softmax(b, 1);
  if (status == QUERN_STATUS_OK) status = next(&y, b);
  if (status == QUERN_STATUS_OK) status = quern_tensor_release(y);
  return status == QUERN_STATUS_OK ? quern_context_rewind(c->graph.ctx, mark, 0, NULL) : status;
}

static double run_contender(void *self, long n) {
  struct contender *c = self;
  uint64_t before = allocations;
  struct timespec begin, end;
  double seconds;
  if (c->variant->eager) {
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < n; i++)
      if (run_eagerly(c) != QUERN_STATUS_OK) return -1;
    clock_gettime(CLOCK_MONOTONIC, &end);
    seconds = ((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec)) / (double)n;
  } else {
    seconds = bench_side_run(&c->side, n);
  }
  if (c->warm) {
    c->allocations += allocations - before;
    c->runs += (uint64_t)n;
  }
  c->warm = true;
  return seconds;
}

/* ---- beginning and end -------------------------------------------------------------------------------------- */

/* Small expressions are interpreted until they have had enough to do: lets them, before anything is measured. */
static quern_status warm_up(struct contender *c, uint64_t *interpreted) {
  quern_run_stats counts = QUERN_INIT(quern_run_stats);
  quern_status status = QUERN_STATUS_OK;
  for (uint64_t last = 1; status == QUERN_STATUS_OK && counts.interpreted != last;) {
    last = counts.interpreted;
    for (int i = 0; i < WARM_RUNS && status == QUERN_STATUS_OK; i++) status = run_eagerly(c);
    if (status == QUERN_STATUS_OK) status = quern_eager_get_stats(c->graph.ctx, &counts);
  }
  *interpreted = counts.interpreted;
  return status;
}

static quern_status begin(struct contender *c, const struct variant *variant, int64_t n, int threads) {
  const int64_t dims[] = {n, n};
  quern_context_options options = {.size = sizeof options, .allocator = {counted_alloc, counted_free, NULL}};
  *c = (struct contender){.variant = variant};
  quern_status status = quern_context_new(&c->graph.ctx, &options);
  if (status != QUERN_STATUS_OK) return status;
  if (variant->eager) {
    c->x = bench_known(&c->graph, 2, dims);
    c->w = bench_known(&c->graph, 2, dims);
    if (!variant->pooled) status = quern_pool_limit(c->graph.ctx, 0);
    return status == QUERN_STATUS_OK ? warm_up(c, &c->interpreted) : status;
  }
  c->x = bench_input(&c->graph, "x", 2, dims);
  c->w = bench_input(&c->graph, "w", 2, dims);
  bench_output(&c->graph, quern_softmax(quern_matmul(quern_relu(c->x), c->w), 1));
  return bench_side_begin(&c->side, &c->graph, threads, variant->passes);
}

static void end(struct contender *c) {
  if (c->variant->eager) bench_count_eager(c->graph.ctx, c->interpreted);
  bench_side_end(&c->side);
  bench_graph_end(&c->graph);
}

/* What a run plans, or keeps in the pool, beside inputs and result; and what it would be without sharing. */
static int add_memory(struct bench_row *row, const struct contender *c) {
  quern_pool_stats pool = QUERN_INIT(quern_pool_stats);
  if (quern_pool_get_stats(c->graph.ctx, &pool) != QUERN_STATUS_OK) return cli_fail_last("memory");
  bool eager = c->variant->eager;
  row->planned = eager ? (int64_t)pool.peak_bytes : bench_side_planned(&c->side);
  bench_row_add(row, "kernels", eager ? 3 : (double)c->side.counts.steps);
  bench_row_add(row, "arena", (double)c->side.memory.arena);
  bench_row_add(row, "unshared", (double)c->side.memory.unshared);
  bench_row_add(row, "bound", (double)c->side.memory.bound);
  bench_row_add(row, "pool_hits", (double)pool.hits);
  bench_row_add(row, "pool_misses", (double)pool.misses);
  bench_row_add(row, "allocations", (double)c->allocations / (double)c->runs); /* of a run */
  return CLI_OK;
}

static int run_variant(struct bench_run *run, const struct variant *variant, int64_t n, struct contender *base) {
  struct contender own;
  struct bench_row row = {.threads = run->threads};
  snprintf(row.name, sizeof row.name, "%s", variant->name);
  snprintf(row.params, sizeof row.params, "n=%lld", (long long)n);
  int status = CLI_OK;
  if (begin(&own, variant, n, run->threads) != QUERN_STATUS_OK) status = cli_fail_last(variant->name);
  struct bench_racer racers[] = {{variant->name, run_contender, &own, 1}, {"unpooled", run_contender, base, 1}};
  if (status == CLI_OK) status = bench_race(run, &row, variant == base->variant ? 1 : 2, racers);
  if (status == CLI_OK) status = add_memory(&row, &own);
  end(&own);
  return status == CLI_OK ? bench_row_keep(run, &row) : status;
}

int bench_run_memory(struct bench_run *run) {
  static const int64_t sizes[] = {256, 1024};
  char text[32];
  int status = CLI_OK;
  snprintf(text, sizeof text, "%d", run->threads);
  setenv("QUERN_THREADS", text, 1); /* of eager use; nothing of the library has read it yet */
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes && status == CLI_OK; s++) {
    struct contender base;
    if (begin(&base, &variants[VARIANTS - 1], sizes[s], run->threads) != QUERN_STATUS_OK)
      status = cli_fail_last("memory");
    for (size_t i = 0; i < VARIANTS && status == CLI_OK; i++) {
      snprintf(text, sizeof text, "n=%lld", (long long)sizes[s]);
      if (bench_wanted(run, variants[i].name, text)) status = run_variant(run, &variants[i], sizes[s], &base);
    }
    end(&base);
  }
  return status;
}
