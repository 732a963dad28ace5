/* cli/bench_side.c -- measuring: programs of Quern, and all sides of a row, round-robin
** Each round runs every side for a while, one after another; a ratio is the median over the rounds of a side's time
** over that of the first, so that a machine that slows down for a while slows both.
*/
#define _DEFAULT_SOURCE /* madvise */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* ---- graphs ----------------------------------------------------------------------------------------------- */

quern_status bench_graph_begin(struct bench_graph *graph, bench_build *build, const char *params) {
  *graph = (struct bench_graph){0};
  quern_status status = quern_context_new(&graph->ctx, NULL);
  if (status != QUERN_STATUS_OK) return status;
  build(graph, params);
  return quern_context_check(graph->ctx);
}

void bench_graph_end(struct bench_graph *graph) {
  quern_context_free(graph->ctx);
  for (size_t i = 0; i < graph->n_data; i++) free(graph->data[i]);
}

quern_tensor *bench_input(struct bench_graph *graph, const char *name, int rank, const int64_t *dims) {
  quern_tensor *x = quern_input(graph->ctx, name, QUERN_DTYPE_F32, rank, dims);
  graph->bytes += (double)quern_tensor_bytes(x);
  return x;
}

void bench_output(struct bench_graph *graph, quern_tensor *y) {
  graph->outputs[graph->n_outputs++] = y;
  graph->bytes += (double)quern_tensor_bytes(y);
}

void bench_fill(float *at, size_t n) {
  uint32_t x = 1;
  for (size_t i = 0; i < n; i++) {
    x = x * 1664525u + 1013904223u;
    at[i] = (float)(x >> 8) * 0x1p-23f - 1;
  }
}

/* Memory that begins at a page; large ones are asked for, as the peers do (bench/peers/). */
static void *pages(size_t bytes) {
  enum { LARGE = 1 << 21 };
  size_t page = bytes >= LARGE ? LARGE : 4096, whole = (bytes + page) / page * page;
  void *memory = aligned_alloc(page, whole);
#ifdef MADV_HUGEPAGE
  if (memory != NULL && bytes >= LARGE) (void)madvise(memory, whole, MADV_HUGEPAGE);
#endif
  return memory;
}

quern_tensor *bench_known(struct bench_graph *graph, int rank, const int64_t *dims) {
  size_t n = 1;
  for (int i = 0; i < rank; i++) n *= (size_t)dims[i];
  float *data = graph->n_data < BENCH_DATA ? pages(n * sizeof *data) : NULL;
  if (data != NULL) {
    bench_fill(data, n);
    graph->data[graph->n_data++] = data;
    graph->bytes += (double)(n * sizeof *data);
  }
  return quern_tensor_wrap(graph->ctx, QUERN_DTYPE_F32, rank, dims, data); /* without data: poison, and an error */
}

/* ---- sides ------------------------------------------------------------------------------------------------ */

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Floats in [-1, 1); of other dtypes bytes 0 and 1 in turn, which are bools, and as integers of few bytes set small
** enough for labels. */
static void *slot_memory(const quern_slot *slot) {
  char *memory = pages(slot->bytes);
  size_t size = quern_dtype_size(slot->dtype);
  if (memory == NULL) return NULL;
  memset(memory, 0, slot->bytes);
  if (slot->dtype == QUERN_DTYPE_F32) bench_fill((float *)(void *)memory, slot->bytes / sizeof(float));
  for (size_t i = 0; slot->dtype != QUERN_DTYPE_F32 && i < slot->bytes; i += 2 * size) memory[i] = 1;
  return memory;
}

static quern_status fill_slots(struct bench_side *side) {
  side->n_inputs = quern_program_input_count(side->program);
  side->n_outputs = quern_program_output_count(side->program);
  side->inputs = calloc(side->n_inputs + 1, sizeof *side->inputs);
  side->outputs = calloc(side->n_outputs + 1, sizeof *side->outputs);
  if (side->inputs == NULL || side->outputs == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < side->n_inputs + side->n_outputs; i++) {
    bool in = i < side->n_inputs;
    quern_slot slot = QUERN_INIT(quern_slot);
    quern_status status = in ? quern_program_input(side->program, i, &slot)
                             : quern_program_output(side->program, i - side->n_inputs, &slot);
    if (status != QUERN_STATUS_OK) return status;
    void *memory = slot_memory(&slot);
    if (memory == NULL) return QUERN_STATUS_MEMORY;
    *(in ? &side->inputs[i] : &side->outputs[i - side->n_inputs]) = memory;
  }
  return QUERN_STATUS_OK;
}

quern_status bench_side_begin(struct bench_side *side, const struct bench_graph *graph, int threads,
                              const char *passes) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.threads = threads;
  options.passes = passes;
  options.inference = true;
  return bench_side_open(side, graph->ctx, graph->n_outputs, (quern_tensor *const *)graph->outputs, &options);
}

quern_status bench_side_open(struct bench_side *side, quern_context *ctx, size_t n, quern_tensor *const *outputs,
                             const quern_program_options *options) {
  *side = (struct bench_side){0};
  quern_status status = quern_program_compile(&side->program, ctx, n, outputs, options);
  if (status == QUERN_STATUS_OK) status = quern_instance_new(&side->instance, side->program);
  if (status == QUERN_STATUS_OK) status = quern_instance_zero_states(side->instance);
  side->memory = QUERN_INIT(quern_memory_plan);
  if (status == QUERN_STATUS_OK) status = quern_program_get_memory(side->program, &side->memory);
  side->counts = QUERN_INIT(quern_program_stats);
  if (status == QUERN_STATUS_OK) status = quern_program_get_stats(side->program, &side->counts);
  return status == QUERN_STATUS_OK ? fill_slots(side) : status;
}

static uint64_t interpreted;

static void count(quern_status status, const quern_run_stats *counts, uint64_t before) {
  interpreted += status == QUERN_STATUS_OK ? counts->interpreted - before + counts->evaluated : 1;
}

void bench_count_instance(const quern_instance *instance) {
  quern_run_stats counts = QUERN_INIT(quern_run_stats);
  if (instance != NULL) count(quern_instance_get_stats(instance, &counts), &counts, 0);
}

void bench_count_eager(const quern_context *ctx, uint64_t before) {
  quern_run_stats counts = QUERN_INIT(quern_run_stats);
  if (ctx != NULL) count(quern_eager_get_stats(ctx, &counts), &counts, before);
}

uint64_t bench_interpreted(void) { return interpreted; }

void bench_side_end(struct bench_side *side) {
  bench_count_instance(side->instance);
  for (size_t i = 0; i < side->n_inputs && side->inputs != NULL; i++) free(side->inputs[i]);
  for (size_t i = 0; i < side->n_outputs && side->outputs != NULL; i++) free(side->outputs[i]);
  free(side->inputs), free(side->outputs);
  quern_instance_free(side->instance);
  quern_program_free(side->program);
}

double bench_side_run(void *self, long n) {
  struct bench_side *side = self;
  double start = now();
  for (long i = 0; i < n; i++)
    if (quern_instance_run(side->instance, (const void *const *)side->inputs, side->outputs) != QUERN_STATUS_OK)
      return -1;
  return (now() - start) / (double)n;
}

int64_t bench_side_planned(const struct bench_side *side) {
  const quern_memory_plan *m = &side->memory;
  return m->arena + m->state + m->constants + m->scratch;
}

/* ---- races ------------------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sorts them. */
static double median(size_t n, double *values) {
  qsort(values, n, sizeof *values, compare);
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* How often a side is run in a round. */
static long repeats(double seconds, double slice) {
  double n = seconds > 0 ? slice / seconds : 1;
  return n < 1 ? 1 : n > 1e6 ? 1000000 : (long)n;
}

/* Long enough for the threads of the side before to go to sleep. */
static void pause_between(void) { nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL); }

/* A run longer than that many slices needs none before it that is not timed. */
#define LONG_RUN 5

/* Runs a side; false when it failed, which is an error of the first and ends the others' part in the race. */
static bool timed(const struct bench_racer *racer, long n, double *seconds) {
  *seconds = racer->run(racer->self, n);
  return *seconds > 0;
}

int bench_race(struct bench_run *run, struct bench_row *row, size_t n, const struct bench_racer *racers) {
  enum { SIDES = BENCH_RESULTS + 1 };
  double times[SIDES][BENCH_MOST_ROUNDS], ratios[BENCH_MOST_ROUNDS];
  long turns[SIDES];
  bool brief[SIDES]; /* every timing window begins with a run that is not timed: it wakes threads and fills caches */
  bool good[SIDES] = {false};
  size_t rounds = (size_t)run->rounds;
  for (size_t i = 0; i < n; i++) { /* the first run warms up */
    good[i] = timed(&racers[i], 1, times[i]);
    if (good[i]) good[i] = timed(&racers[i], 1, times[i]);
    if (cli_interrupted()) return CLI_INTERRUPTED;
    turns[i] = repeats(times[i][0], run->slice);
    brief[i] = times[i][0] < LONG_RUN * run->slice;
  }
  for (size_t r = 0; r < rounds && good[0]; r++) {
    for (size_t i = 0; i < n; i++) {
      pause_between();
      if (good[i] && brief[i]) good[i] = timed(&racers[i], 1, &times[i][r]);
      if (good[i]) good[i] = timed(&racers[i], turns[i], &times[i][r]);
      if (cli_interrupted()) return CLI_INTERRUPTED;
    }
  }
  if (!good[0]) return cli_fail("%s %s: %s", row->name, row->params, quern_last_error());
  for (size_t i = 1; i < n; i++) {
    double work = racers[0].work / racers[i].work;
    for (size_t r = 0; r < rounds && good[i]; r++) ratios[r] = times[i][r] / times[0][r] * work;
    if (!good[i])
      fprintf(stderr, "quern: %s %s: %s failed\n", row->name, row->params, racers[i].name);
    else
      row->results[row->n_results++] =
          (struct bench_result){racers[i].name, median(rounds, times[i]), median(rounds, ratios)};
  }
  row->median = median(rounds, times[0]);
  row->spread = (times[0][rounds * 3 / 4] - times[0][rounds / 4]) / row->median;
  return CLI_OK;
}

int bench_rate(struct bench_row *row, double flops, double bytes) {
  quern_limits limits = QUERN_INIT(quern_limits);
  if (quern_device_limits(&limits, row->threads, false) != QUERN_STATUS_OK) return cli_fail_last("limits");
  row->gflops = flops / row->median * 1e-9;
  row->gbs = bytes / row->median * 1e-9;
  row->limit = 100 * quern_limits_floor(&limits, QUERN_DTYPE_F32, flops, bytes, bytes) / row->median;
  return CLI_OK;
}
