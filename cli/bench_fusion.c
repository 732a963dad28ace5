/* cli/bench_fusion.c -- the suite fusion: what patterns become with fusion, without it, and written out by hand */
#include "bench.h"

enum { FUSED, UNFUSED, BY_HAND, SIDES };

/* The sides of a row, each with a graph and a program of its own. */
struct sides {
  struct bench_graph graphs[SIDES];
  struct bench_side programs[SIDES];
};

static quern_status begin(struct sides *sides, const struct bench_pattern *pattern, int threads) {
  for (int i = 0; i < SIDES; i++) {
    quern_status status =
        bench_graph_begin(&sides->graphs[i], i == BY_HAND ? pattern->by_hand : pattern->build, pattern->params);
    if (status == QUERN_STATUS_OK)
      status = bench_side_begin(&sides->programs[i], &sides->graphs[i], threads, i == UNFUSED ? "-fuse" : NULL);
    if (status != QUERN_STATUS_OK) return status;
  }
  return QUERN_STATUS_OK;
}

static void end(struct sides *sides) {
  for (int i = 0; i < SIDES; i++) {
    bench_side_end(&sides->programs[i]);
    bench_graph_end(&sides->graphs[i]);
  }
}

static int run_pattern(struct bench_run *run, const struct bench_pattern *pattern) {
  static const char *const names[SIDES] = {"fused", "unfused", "by_hand"};
  struct sides sides = {0};
  struct bench_racer racers[SIDES];
  struct bench_row row = {.threads = run->threads};
  snprintf(row.name, sizeof row.name, "%s", pattern->name);
  snprintf(row.params, sizeof row.params, "%s", pattern->params);
  int status = CLI_OK;
  if (begin(&sides, pattern, run->threads) != QUERN_STATUS_OK) status = cli_fail_last(pattern->name);
  for (int i = 0; i < SIDES; i++) racers[i] = (struct bench_racer){names[i], bench_side_run, &sides.programs[i], 1};
  if (status == CLI_OK) status = bench_race(run, &row, SIDES, racers);
  if (status == CLI_OK) status = bench_rate(&row, sides.graphs[FUSED].flops, sides.graphs[FUSED].bytes);
  row.planned = bench_side_planned(&sides.programs[FUSED]);
  bench_row_add(&row, "kernels", (double)sides.programs[FUSED].counts.steps);
  bench_row_add(&row, "kernels_unfused", (double)sides.programs[UNFUSED].counts.steps);
  bench_row_add(&row, "kernels_by_hand", (double)sides.programs[BY_HAND].counts.steps);
  bench_row_add(&row, "bytes", sides.programs[FUSED].counts.bytes);
  bench_row_add(&row, "bytes_unfused", sides.programs[UNFUSED].counts.bytes);
  end(&sides);
  return status == CLI_OK ? bench_row_keep(run, &row) : status;
}

int bench_run_fusion(struct bench_run *run) {
  int status = CLI_OK;
  for (const struct bench_pattern *p = bench_patterns; p->name != NULL && status == CLI_OK; p++)
    if (bench_wanted(run, p->name, p->params)) status = run_pattern(run, p);
  return status;
}
