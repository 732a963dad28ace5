/* cli/bench_memory.c -- the suite memory: relu, matmul, softmax as one program that plans its memory, and as three programs
** whose results lie in memory that is kept from run to run, or made anew for every run
** All memory comes from an allocator that counts: a run of a program allocates nothing.
*/
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 3 };

static struct { uint64_t allocations; } counted;

static void *counted_alloc(void *self, size_t bytes) {
  (void)self;
  counted.allocations++;
  return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

static void counted_free(void *self, void *memory, size_t bytes) {
  (void)self, (void)bytes;
  free(memory);
}

/* The programs of a variant, each on the result of the one before. */
struct chain {
  int n;
  bool anew; /* the results are made anew for every run */
  struct bench_graph graphs[STEPS];
  struct bench_side sides[STEPS];
  uint64_t allocations, runs;
};

static quern_tensor *apply(struct bench_graph *g, int step, quern_tensor *x, int64_t n) {
  if (step == 0) return quern_relu(x);
  return step == 1 ? quern_matmul(x, bench_input(g, "w", 2, (int64_t[]){n, n})) : quern_softmax(x, 1);
}

/* Steps from the first to before the last as one program. */
static quern_status begin_part(struct chain *chain, int first, int last, int64_t n, int threads, const char *passes) {
  struct bench_graph *g = &chain->graphs[chain->n];
  quern_context_options options = {.size = sizeof options, .allocator = {counted_alloc, counted_free, NULL}};
  quern_status status = quern_context_new(&g->ctx, &options);
  if (status != QUERN_STATUS_OK) return status;
  quern_tensor *y = bench_input(g, "x", 2, (int64_t[]){n, n});
  for (int i = first; i < last; i++) y = apply(g, i, y, n);
  bench_output(g, y);
  return bench_side_begin(&chain->sides[chain->n++], g, threads, passes);
}

static void end_chain(struct chain *chain) {
  for (int i = 0; i < STEPS; i++) {
    bench_side_end(&chain->sides[i]);
    bench_graph_end(&chain->graphs[i]);
  }
}

/* One run of all programs; false when it failed. */
static bool run_once(struct chain *chain, size_t bytes) {
  void *made[STEPS] = {0}, *input = chain->sides[0].inputs[0];
  bool good = true;
  for (int i = 0; i < chain->n && good; i++) {
    struct bench_side *side = &chain->sides[i];
    bool inner = chain->anew && i + 1 < chain->n; /* the last result goes to the caller's memory */
    if (inner) made[i] = counted_alloc(NULL, bytes);
    void *output = inner ? made[i] : side->outputs[0];
    const void *inputs[] = {input, side->n_inputs > 1 ? side->inputs[1] : NULL};
    good = output != NULL && quern_instance_run(side->instance, inputs, &output) == QUERN_STATUS_OK;
    if (i > 0) counted_free(NULL, made[i - 1], bytes);
    if (i > 0) made[i - 1] = NULL;
    input = output;
  }
  for (int i = 0; i < STEPS; i++) counted_free(NULL, made[i], bytes);
  return good;
}

static double run_chain(void *self, long n) {
  struct chain *chain = self;
  struct timespec begin, end;
  quern_slot slot;
  if (quern_program_output(chain->sides[0].program, 0, &slot) != QUERN_STATUS_OK) return -1;
  uint64_t before = counted.allocations;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (long i = 0; i < n; i++)
    if (!run_once(chain, slot.bytes)) return -1;
  clock_gettime(CLOCK_MONOTONIC, &end);
  chain->allocations += counted.allocations - before;
  chain->runs += (uint64_t)n;
  return ((double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec)) / (double)n;
}

/* Planned bytes, and those of the results between the programs. */
static int64_t chain_planned(const struct chain *chain) {
  int64_t bytes = 0;
  for (int i = 0; i < chain->n; i++) {
    quern_slot slot = {0};
    bytes += bench_side_planned(&chain->sides[i]);
    if (i + 1 < chain->n && quern_program_output(chain->sides[i].program, 0, &slot) == QUERN_STATUS_OK)
      bytes += (int64_t)slot.bytes;
  }
  return bytes;
}

struct variant {
  const char *name, *passes;
  int programs;
  bool anew;
};
static const struct variant variants[] = {{"fused", NULL, 1, false},
                                          {"unfused", "-fuse", 1, false},
                                          {"pooled", NULL, STEPS, false},
                                          {"unpooled", NULL, STEPS, true}};
enum { VARIANTS = sizeof variants / sizeof *variants };

static quern_status begin_chain(struct chain *chain, const struct variant *variant, int64_t n, int threads) {
  *chain = (struct chain){.anew = variant->anew};
  quern_status status = QUERN_STATUS_OK;
  for (int i = 0; i < variant->programs && status == QUERN_STATUS_OK; i++)
    status = begin_part(chain, i, variant->programs == 1 ? STEPS : i + 1, n, threads, variant->passes);
  return status;
}

static int run_variant(struct bench_run *run, const struct variant *variant, int64_t n, struct chain *base) {
  struct chain chain;
  struct bench_row row = {.threads = run->threads};
  snprintf(row.name, sizeof row.name, "%s", variant->name);
  snprintf(row.params, sizeof row.params, "n=%lld", (long long)n);
  int status = CLI_OK;
  if (begin_chain(&chain, variant, n, run->threads) != QUERN_STATUS_OK) status = cli_fail_last(variant->name);
  struct bench_racer racers[] = {{variant->name, run_chain, &chain, 1}, {"unpooled", run_chain, base, 1}};
  if (status == CLI_OK) status = bench_race(run, &row, variant->anew ? 1 : 2, racers);
  row.planned = chain_planned(&chain);
  int64_t arena = 0, unshared = 0, bound = 0, steps = 0;
  for (int i = 0; i < chain.n; i++) {
    arena += chain.sides[i].memory.arena;
    unshared += chain.sides[i].memory.unshared;
    bound += chain.sides[i].memory.bound;
    steps += (int64_t)chain.sides[i].counts.steps;
  }
  bench_row_add(&row, "kernels", (double)steps);
  bench_row_add(&row, "arena", (double)arena);
  bench_row_add(&row, "unshared", (double)unshared);
  bench_row_add(&row, "bound", (double)bound);
  bench_row_add(&row, "allocations", chain.runs > 0 ? (double)chain.allocations / (double)chain.runs : 0);
  end_chain(&chain);
  return status == CLI_OK ? bench_row_keep(run, &row) : status;
}

int bench_run_memory(struct bench_run *run) {
  static const int64_t sizes[] = {256, 1024};
  int status = CLI_OK;
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes && status == CLI_OK; s++) {
    struct chain base;
    if (begin_chain(&base, &variants[VARIANTS - 1], sizes[s], run->threads) != QUERN_STATUS_OK)
      status = cli_fail_last("memory");
    for (size_t i = 0; i < VARIANTS && status == CLI_OK; i++) {
      char params[32];
      snprintf(params, sizeof params, "n=%lld", (long long)sizes[s]);
      if (bench_wanted(run, variants[i].name, params)) status = run_variant(run, &variants[i], sizes[s], &base);
    }
    end_chain(&base);
  }
  return status;
}
