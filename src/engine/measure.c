/* engine/measure.c -- how long a run of a program takes: runs that warm up, then runs for a time, each timed alone
** tests: tests/engine/test_measure.c, tests/api/wrong_profile.def
*/
#include <math.h>
#include <stdlib.h>

#include "engine/engine.h"
#include "quern/profile.h"

enum { WARM_UP = 3, MOST_RUNS = 100000, MOST_WARM_UP = 1 << 20 };
#define SECONDS 1.0

/* Floats are between -1 and 1, integers 0: they may be indices. */
void engine_make_up(const quern_slot *slot, void *data) {
  size_t n = slot->bytes / base_dtypes[slot->dtype].size;
  memset(data, 0, slot->bytes);
  for (size_t i = 0; i < n && base_dtype_is(slot->dtype, BASE_FLOAT); i++)
    base_store_float(slot->dtype, data, i, 2 * (double)base_random_uniform(base_random_bits(1, 0, 0, i)) - 1);
}

struct measuring {
  const quern_program *program;
  quern_measure_options options; /* without zeros that stand for something */
  struct base_heap *heap;
  quern_instance *instance;
  void **data; /* inputs, then outputs */
  double *times;
  uint64_t runs;
  int64_t rows_before; /* of an instance that was given */
  bool stopped;
};

/* ---- what it runs on -------------------------------------------------------------------------------------- */

static const quern_slot *slot_of(const quern_program *p, size_t i) {
  return i < p->n_inputs ? &p->inputs[i] : &p->outputs[i - p->n_inputs];
}

static size_t data_bytes(const quern_program *p) { return (p->n_inputs + p->n_outputs + 1) * sizeof(void *); }

static quern_status make_states(struct measuring *m) {
  const quern_program *p = m->program;
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < p->n_states && status == QUERN_STATUS_OK; i++) {
    void *data = base_alloc(m->heap, p->states[i].bytes);
    if (data == NULL) return QUERN_STATUS_MEMORY;
    engine_make_up(&p->states[i], data);
    status = quern_instance_set_state(m->instance, i, data);
    base_free(m->heap, data, p->states[i].bytes);
  }
  return status;
}

static quern_status begin(struct measuring *m) {
  const quern_program *p = m->program;
  if (m->options.instance == NULL) {
    QUERN_TRY(quern_instance_new(&m->instance, p));
    QUERN_TRY(make_states(m));
  }
  if (p->dynamic_batch > 0) QUERN_TRY(quern_instance_set_dynamic_batch(m->instance, m->options.rows));
  m->data = base_alloc_zero(m->heap, data_bytes(p));
  m->times = base_alloc(m->heap, (size_t)m->options.most_runs * sizeof *m->times);
  if (m->data == NULL || m->times == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < p->n_inputs + p->n_outputs; i++) {
    m->data[i] = base_alloc(m->heap, slot_of(p, i)->bytes);
    if (m->data[i] == NULL) return QUERN_STATUS_MEMORY;
    if (i < p->n_inputs) engine_make_up(slot_of(p, i), m->data[i]);
  }
  return QUERN_STATUS_OK;
}

static void end(struct measuring *m) {
  const quern_program *p = m->program;
  for (size_t i = 0; m->data != NULL && i < p->n_inputs + p->n_outputs; i++)
    base_free(m->heap, m->data[i], slot_of(p, i)->bytes);
  base_free(m->heap, m->data, data_bytes(p));
  base_free(m->heap, m->times, (size_t)m->options.most_runs * sizeof *m->times);
  if (m->options.instance == NULL)
    quern_instance_free(m->instance);
  else
    m->instance->rows = m->rows_before;
}

/* ---- runs ------------------------------------------------------------------------------------------------- */

static quern_status run(struct measuring *m) {
  /* inputs that may be overwritten are anything after the first run */
  QUERN_TRY(quern_instance_run(m->instance, (const void *const *)m->data, m->data + m->program->n_inputs));
  return quern_instance_wait(m->instance);
}

static bool asked_to_stop(struct measuring *m) {
  if (!m->stopped && m->options.stop != NULL) m->stopped = m->options.stop(m->options.user);
  return m->stopped;
}

static quern_status run_all(struct measuring *m) {
  for (int i = 0; i < m->options.warm_up && !asked_to_stop(m); i++) QUERN_TRY(run(m));
  double start = base_clock();
  while (m->runs < (uint64_t)m->options.most_runs && !asked_to_stop(m)) {
    double begins = base_clock();
    if (m->runs > 0 && begins - start >= m->options.seconds) break;
    QUERN_TRY(run(m));
    m->times[m->runs++] = base_clock() - begins;
  }
  return QUERN_STATUS_OK;
}

/* ---- figures ---------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The least time that a part of the runs does not exceed. */
static double quantile(const struct measuring *m, double subprogram) {
  uint64_t rank = (uint64_t)ceil(subprogram * (double)m->runs);
  return m->times[rank > 0 ? rank - 1 : 0];
}

/* Bytes that the instance has taken, of the host and of the device, with the program's constants. */
static int64_t used_bytes(const quern_instance *instance) {
  const quern_memory_plan *memory = &instance->program->memory;
  return (int64_t)(atomic_load(&instance->heap.live) + instance->block_bytes) + memory->constants + memory->iterations;
}

static void report(struct measuring *m, quern_measure_stats *stats) {
  double sum = 0;
  stats->stopped = m->stopped;
  stats->runs = m->runs;
  stats->planned_bytes = m->program->memory.total;
  stats->used_bytes = used_bytes(m->instance);
  if (m->runs == 0) return;
  for (uint64_t i = 0; i < m->runs; i++) sum += m->times[i];
  qsort(m->times, (size_t)m->runs, sizeof *m->times, compare);
  stats->least = m->times[0];
  stats->p10 = quantile(m, 0.1);
  stats->median = quantile(m, 0.5);
  stats->p90 = quantile(m, 0.9);
  stats->p99 = quantile(m, 0.99);
  stats->runs_per_second = (double)m->runs / sum;
}

/* ---- the public side -------------------------------------------------------------------------------------- */

static quern_status check_options(const quern_program *program, const quern_measure_options *o) {
  QUERN_CHECK(o->seconds >= 0 && o->seconds <= 1e6, INVALID, "program_measure: %g seconds; expected 0 to 1000000",
              o->seconds);
  QUERN_CHECK(o->warm_up >= 0 && o->warm_up <= MOST_WARM_UP, INVALID,
              "program_measure: %d runs to warm up; expected 0 to %d", o->warm_up, MOST_WARM_UP);
  QUERN_CHECK(o->most_runs >= 0 && o->most_runs <= MOST_RUNS, INVALID,
              "program_measure: at most %d runs; expected 0 to %d", o->most_runs, MOST_RUNS);
  QUERN_CHECK(o->rows == 0 || program->dynamic_batch > 0, INVALID,
              "program_measure: %lld rows, but the program was compiled without a dynamic batch", (long long)o->rows);
  QUERN_CHECK(o->instance == NULL || o->instance->program == program, INVALID,
              "program_measure: the instance is of another program");
  return QUERN_STATUS_OK;
}

quern_status quern_program_measure(const quern_program *program, const quern_measure_options *options,
                                   quern_measure_stats *stats) {
  struct base_heap heap;
  QUERN_CHECK(program != NULL, INVALID, "program_measure: the program is null");
  QUERN_CHECK(stats != NULL, INVALID, "program_measure: the place for the figures is null");
  quern_measure_stats found = {0};
  base_heap_init(&heap, &program->heap.user);
  struct measuring m = {.program = program, .heap = &heap};
  QUERN_TRY(base_take(quern_measure_options, &m.options, options, "program_measure"));
  QUERN_TRY(check_options(program, &m.options));
  if (m.options.seconds == 0) m.options.seconds = SECONDS;
  if (m.options.warm_up == 0) m.options.warm_up = WARM_UP;
  if (m.options.most_runs == 0) m.options.most_runs = MOST_RUNS;
  if (m.options.rows == 0) m.options.rows = program->dynamic_batch;
  m.instance = m.options.instance;
  m.rows_before = m.instance != NULL ? m.instance->rows : 0;
  quern_status status = begin(&m);
  if (status == QUERN_STATUS_OK) status = run_all(&m);
  if (status == QUERN_STATUS_OK) report(&m, &found);
  end(&m);
  return status == QUERN_STATUS_OK ? base_give(quern_measure_stats, stats, &found, "program_measure") : status;
}
