/* driver/bench_build.c -- how long graphs take to build, forward and backward
** GPT-2 small (12 layers, 768 wide, 12 heads, vocabulary 50257, 1024 tokens) to the gradients of all
** parameters, and chains of 10,000 and 100,000 nodes, whose times must grow as their sizes.
*/
#include <stdio.h>
#include <stdlib.h>

#include "driver/driver.h"
#include "gpt2.h"

enum { RUNS = 5 };

static quern_status gpt2(quern_context *ctx) {
  struct gpt2 m = gpt2_small(ctx);
  return gpt2_build(&m);
}

static quern_status chain(quern_context *ctx, int nodes) {
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(16)), *y = x, *dx;
  for (int i = 0; i < nodes; i++) y = i % 2 == 0 ? quern_sin(y) : quern_mul(y, x);
  return quern_grad(quern_sum(y, QUERN_ALL, false), 1, &x, &dx);
}
static quern_status chain_10k(quern_context *ctx) { return chain(ctx, 10000); }
static quern_status chain_100k(quern_context *ctx) { return chain(ctx, 100000); }

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median of RUNS builds, each in a new context, in ms; negative after an error. */
static double time_build(const char *name, const char *aim, quern_status (*build_graph)(quern_context *ctx)) {
  double ms[RUNS];
  size_t nodes = 0, bytes = 0;
  for (int i = 0; i < RUNS; i++) {
    quern_context *ctx;
    double start = base_clock();
    if (quern_context_new(&ctx, NULL) != QUERN_STATUS_OK || build_graph(ctx) != QUERN_STATUS_OK) {
      printf("%s: %s\n", name, quern_last_error());
      return -1;
    }
    ms[i] = (base_clock() - start) * 1e3;
    nodes = quern_context_node_count(ctx);
    quern_context_stats stats = QUERN_INIT(quern_context_stats);
    if (quern_context_get_stats(ctx, &stats) == QUERN_STATUS_OK) bytes = stats.peak_bytes;
    quern_context_free(ctx);
  }
  qsort(ms, RUNS, sizeof *ms, by_value);
  printf("%-28s %9.2f ms %8zu nodes %7.1f MiB  aim %s\n", name, ms[RUNS / 2], nodes, (double)bytes / (1 << 20), aim);
  return ms[RUNS / 2];
}

int bench_build(void) {
  double model = time_build("gpt2 forward and backward", "< 50 ms", gpt2);
  double small = time_build("chain of 10000 and gradient", "< 100 ms", chain_10k);
  double large = time_build("chain of 100000 and gradient", "10 times that", chain_100k);
  if (model < 0 || small < 0 || large < 0) return 1;
  printf("growth from 10000 to 100000 nodes: %.1f times (linear: 10)\n", large / small);
  return 0;
}
