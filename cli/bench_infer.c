/* cli/bench_infer.c -- the suite infer: networks that are asked, with batches of 1 to 128
** Runs one after another, each timed: the median and what one in a hundred is slower than. The best batch is the one with the most
** samples a second.
*/
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UPS = 3, RUNS = 100, LEAST_RUNS = 5, MOST_BATCH = 128 };
#define MOST_SECONDS 3 /* of a row's runs, unless that were less than LEAST_RUNS */

static const struct {
  const char *name, *params; /* without the batch */
} networks[] = {
    {"lm", "layers=12 C=768 H=12 V=50257 T=64"}, /* GPT-2 of 124 million parameters: logits of all tokens */
    {"resnet", "depth=18 size=224 classes=1000"},
    {"mlp", "layers=3 in=784 C=1024 out=10"},
};

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Times of single runs, sorted; how many, 0 when one failed. */
static int time_runs(struct bench_side *side, double times[RUNS]) {
  double sum = 0;
  int n = 0;
  for (int i = 0; i < WARM_UPS; i++)
    if (bench_side_run(side, 1) < 0) return 0;
  while (n < RUNS && (n < LEAST_RUNS || sum < MOST_SECONDS) && !cli_interrupted()) {
    times[n] = bench_side_run(side, 1);
    if (times[n] < 0) return 0;
    sum += times[n++];
  }
  qsort(times, (size_t)n, sizeof *times, compare);
  return n;
}

/* Fills the times of a row. */
static int measure(struct bench_row *row, const struct bench_net *net, struct bench_side *side) {
  double times[RUNS];
  int n = time_runs(side, times);
  if (cli_interrupted()) return CLI_INTERRUPTED;
  if (n == 0) return cli_fail_last(row->name);
  row->median = times[n / 2];
  row->spread = (times[n * 3 / 4] - times[n / 4]) / row->median;
  row->planned = bench_side_planned(side);
  bench_row_add(row, "runs", n);
  bench_row_add(row, "p99_ms", 1e3 * times[(int)ceil(0.99 * n) - 1]);
  bench_row_add(row, "samples_s", (double)net->samples / row->median);
  bench_row_add(row, "tokens_s", (double)net->tokens / row->median);
  return bench_rate(row, side->counts.flops, (double)side->memory.state);
}

static quern_status begin(struct bench_side *side, const struct bench_net *net, int threads) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.threads = threads;
  options.inference = true;
  quern_tensor *y = net->y;
  quern_status status = bench_side_open(side, net->ctx, 1, &y, &options);
  return status == QUERN_STATUS_OK ? bench_net_fill(net, side) : status;
}

static int run_batch(struct bench_run *run, const char *name, const char *params) {
  struct bench_row row = {.threads = run->threads};
  struct bench_net net = {0};
  struct bench_side side = {0};
  snprintf(row.name, sizeof row.name, "%s", name);
  snprintf(row.params, sizeof row.params, "%s", params);
  quern_status status = bench_net_begin(&net, name, params, false);
  if (status == QUERN_STATUS_OK) status = begin(&side, &net, row.threads);
  int result = status == QUERN_STATUS_OK ? measure(&row, &net, &side) : cli_fail_last(name);
  bench_side_end(&side);
  bench_net_end(&net);
  return result == CLI_OK ? bench_row_keep(run, &row) : result;
}

static double samples_of(const struct bench_row *row) {
  for (int i = 0; i < row->n_more; i++)
    if (strcmp(row->more[i].key, "samples_s") == 0) return row->more[i].value;
  return 0;
}

/* The best row of each network. */
static void print_best(const struct bench_run *run) {
  for (size_t i = 0; i < run->n_rows; i++) {
    const struct bench_row *best = &run->rows[i];
    bool first = true;
    for (size_t k = 0; k < run->n_rows; k++) {
      const struct bench_row *row = &run->rows[k];
      if (strcmp(row->name, best->name) != 0) continue;
      if (k < i) first = false;
      if (samples_of(row) > samples_of(best)) best = row;
    }
    if (first)
      printf("%s: best at B=%lld: %.1f samples/s, %.3f ms, %.1f MB\n", best->name,
             (long long)bench_value(best->params, "B", 0), samples_of(best), 1e3 * best->median,
             1e-6 * (double)best->planned);
  }
}

int bench_run_infer(struct bench_run *run) {
  int status = CLI_OK;
  for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) {
    for (int batch = 1; batch <= MOST_BATCH && status == CLI_OK; batch *= 2) {
      char params[96];
      snprintf(params, sizeof params, "%s B=%d", networks[i].params, batch);
      if (bench_wanted(run, networks[i].name, params)) status = run_batch(run, networks[i].name, params);
    }
  }
  print_best(run);
  return status;
}
