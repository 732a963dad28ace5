/* prof/report.c -- what was recorded of a program's runs, as tables for people
** tests: tests/prof/test_report.c
*/
#include <stdlib.h>

#include "prof/prof.h"

const char *const prof_bound_names[] = {"compute", "memory", "launch"};

/* Of `footprint` bytes a level holds some; the share that it does not hold comes from the next ones, and no schedule
** can have it sooner. */
static double memory_floor(const struct prof_limits *limits, double bytes, double footprint) {
  double floor = 0, beyond = 1; /* the share beyond the levels before */
  for (int i = 0; i < PROF_LEVELS && beyond > 0 && limits->bandwidth[i] > 0; i++) {
    floor = BASE_MAX(floor, beyond * bytes / limits->bandwidth[i]);
    beyond = footprint > 0 ? 1 - (double)limits->bytes[i] / footprint : 0;
  }
  return floor;
}

static double rate_of(const struct prof_limits *limits, quern_dtype dtype) {
  double own = dtype == QUERN_DTYPE_F64    ? limits->flops_f64
               : dtype == QUERN_DTYPE_BF16 ? limits->flops_bf16
               : dtype == QUERN_DTYPE_F16  ? limits->flops_f16
                                           : 0;
  return own > 0 ? own : limits->flops_f32;
}

double prof_floor(const struct prof_limits *limits, const struct kern_cost *cost, quern_dtype dtype, double footprint,
                  enum prof_bound *bound) {
  double rate = rate_of(limits, dtype);
  double compute = rate > 0 ? cost->flops / rate : 0;
  double memory = memory_floor(limits, cost->bytes, footprint);
  double floor = BASE_MAX(compute, memory);
  *bound = floor < limits->launch ? PROF_LAUNCH : compute > memory ? PROF_COMPUTE : PROF_MEMORY;
  return BASE_MAX(floor, limits->launch);
}

void prof_steps_floor(const struct prof_limits *limits, size_t n, struct prof_step *steps) {
  for (size_t i = 0; i < n; i++) {
    struct prof_step *s = &steps[i];
    struct prof_limits own = *limits;
    if (s->tf32 && limits->flops_tf32 > 0) own.flops_f32 = limits->flops_tf32;
    s->floor = prof_floor(&own, &s->cost, s->dtype, (double)s->footprint, &s->bound);
  }
}

/* ---- rows: steps with the same kernel, together -------------------------------------------------------- */

struct row {
  const struct prof_step *step; /* the first of them */
  size_t steps;                 /* of the program */
  uint64_t count;
  double seconds, flops, bytes, floor; /* of all runs; without runs, of one run of each step */
};

struct rows {
  struct row *at;
  size_t n, bytes;
};

static bool measured(const struct prof *prof) {
  for (size_t i = 0; i < prof->n_steps; i++)
    if (prof->steps[i].count > 0) return true;
  return false;
}

static int by_name(const void *x, const void *y) {
  const struct prof_step *a = *(const struct prof_step *const *)x, *b = *(const struct prof_step *const *)y;
  int order = strcmp(a->kernel, b->kernel);
  return order != 0 ? order : (a > b) - (a < b);
}

static void add_step(struct row *row, const struct prof_step *s, bool runs) {
  double times = runs ? (double)s->count : 1;
  row->steps++;
  row->count += s->count;
  row->seconds += s->seconds;
  row->flops += times * s->cost.flops;
  row->bytes += times * s->cost.bytes;
  row->floor += times * s->floor;
}

static int by_seconds(const void *x, const void *y) {
  const struct row *a = x, *b = y;
  if (a->seconds != b->seconds) return a->seconds < b->seconds ? 1 : -1;
  return strcmp(a->step->kernel, b->step->kernel);
}

/* Without measurements what is lost is not known: the largest floors first. */
static int by_loss(const void *x, const void *y) {
  const struct row *a = x, *b = y;
  double lost_a = a->seconds > 0 ? a->seconds - a->floor : a->floor;
  double lost_b = b->seconds > 0 ? b->seconds - b->floor : b->floor;
  if (lost_a != lost_b) return lost_a < lost_b ? 1 : -1;
  return strcmp(a->step->kernel, b->step->kernel);
}

static quern_status rows_of(struct rows *rows, struct base_heap *heap, const struct prof *prof,
                            int (*order)(const void *, const void *)) {
  size_t bytes = BASE_MAX(prof->n_steps, 1) * sizeof(struct prof_step *);
  const struct prof_step **sorted = base_alloc(heap, bytes);
  *rows = (struct rows){.bytes = BASE_MAX(prof->n_steps, 1) * sizeof(struct row)};
  rows->at = base_alloc_zero(heap, rows->bytes);
  if (sorted != NULL && rows->at != NULL) {
    for (size_t i = 0; i < prof->n_steps; i++) sorted[i] = &prof->steps[i];
    qsort(sorted, prof->n_steps, sizeof *sorted, by_name);
    for (size_t i = 0; i < prof->n_steps; i++) {
      if (i == 0 || strcmp(sorted[i]->kernel, sorted[i - 1]->kernel) != 0) rows->at[rows->n++].step = sorted[i];
      add_step(&rows->at[rows->n - 1], sorted[i], measured(prof));
    }
    qsort(rows->at, rows->n, sizeof *rows->at, order);
  }
  base_free(heap, sorted, bytes);
  if (sorted != NULL && rows->at != NULL) return QUERN_STATUS_OK;
  base_free(heap, rows->at, rows->bytes);
  return QUERN_STATUS_MEMORY;
}

/* ---- tables -------------------------------------------------------------------------------------------- */

/* A time in the unit that suits it: 11 characters. */
static void add_time(struct base_str *str, double seconds) {
  if (seconds >= 1)
    base_str_printf(str, "%8.3f s ", seconds);
  else if (seconds >= 1e-3)
    base_str_printf(str, "%8.3f ms", seconds * 1e3);
  else
    base_str_printf(str, "%8.2f us", seconds * 1e6);
}

/* The same; "-" where it is 0, not known. */
static void add_known_time(struct base_str *str, double seconds) {
  if (seconds > 0)
    add_time(str, seconds);
  else
    base_str_printf(str, "%11s", "-");
}

/* Without a floor it is not known what bounds a kernel. */
static const char *bound_of(const struct row *row) { return row->floor > 0 ? prof_bound_names[row->step->bound] : "-"; }

static void add_rates(struct base_str *str, const struct row *row) {
  if (row->seconds <= 0) {
    base_str_printf(str, " %8s %8s %7s", "-", "-", "-");
    return;
  }
  base_str_printf(str, " %8.1f %8.1f", row->flops / row->seconds * 1e-9, row->bytes / row->seconds * 1e-9);
  if (row->floor > 0)
    base_str_printf(str, " %6.1f%%", 100 * row->floor / row->seconds);
  else
    base_str_printf(str, " %7s", "-");
}

static const char *kind_of(const struct row *row) { return row->step->kind; }
static const char *ops_of(const struct row *row) { return row->step->ops; }

/* The rows, grouped by a text. */
static void add_sums(struct base_str *str, const struct rows *rows, const char *title,
                     const char *(*text_of)(const struct row *row)) {
  double total = 0;
  for (size_t i = 0; i < rows->n; i++) total += rows->at[i].seconds;
  base_str_printf(str, "\n  %8s %11s %11s %7s  %s\n", "count", "total", "average", "share", title);
  for (size_t i = 0; i < rows->n; i++) {
    const char *text = text_of(&rows->at[i]);
    bool first = true;
    for (size_t k = 0; k < i && first; k++) first = strcmp(text_of(&rows->at[k]), text) != 0;
    if (!first) continue;
    uint64_t count = 0;
    double seconds = 0;
    for (size_t k = i; k < rows->n; k++) {
      if (strcmp(text_of(&rows->at[k]), text) != 0) continue;
      count += rows->at[k].count;
      seconds += rows->at[k].seconds;
    }
    base_str_printf(str, "  %8llu ", (unsigned long long)count);
    add_time(str, seconds);
    base_str_add(str, " ");
    add_time(str, count > 0 ? seconds / (double)count : 0);
    base_str_printf(str, " %6.1f%%  %s\n", total > 0 ? 100 * seconds / total : 0, text);
  }
}

quern_status prof_table(struct base_str *str, const struct prof *prof) {
  struct rows rows;
  QUERN_TRY(rows_of(&rows, str->heap, prof, by_seconds));
  double total = 0, so_far = 0;
  for (size_t i = 0; i < rows.n; i++) total += rows.at[i].seconds;
  base_str_printf(str, "%s: %llu runs, %zu steps, %zu kernels, ", prof->program, (unsigned long long)prof->runs,
                  prof->n_steps, rows.n);
  add_time(str, prof->runs > 0 ? total / (double)prof->runs : 0);
  base_str_printf(str, " in kernels a run; * marks the kernels that make up 80 %% of it\n\n");
  base_str_printf(str, "  %8s %11s %11s %7s %8s %8s %7s  %-8s %s\n", "count", "total", "average", "share", "GFLOP/s",
                  "GB/s", "limit", "bound", "kernel");
  for (size_t i = 0; i < rows.n; i++) {
    const struct row *row = &rows.at[i];
    base_str_add(str, so_far < 0.8 * total ? "* " : "  ");
    so_far += row->seconds;
    base_str_printf(str, "%8llu ", (unsigned long long)row->count);
    add_time(str, row->seconds);
    base_str_add(str, " ");
    add_time(str, row->count > 0 ? row->seconds / (double)row->count : 0);
    base_str_printf(str, " %6.1f%%", total > 0 ? 100 * row->seconds / total : 0);
    add_rates(str, row);
    base_str_printf(str, "  %-8s %s (%s)\n", bound_of(row), row->step->kernel, row->step->ops);
  }
  add_sums(str, &rows, "operations", ops_of);
  add_sums(str, &rows, "kind", kind_of);
  base_free(str->heap, rows.at, rows.bytes);
  return base_str_status(str);
}

/* ,"key": a number, or null where it is not known. */
static void add_number(struct base_str *str, const char *key, bool known, double value, int digits) {
  if (known)
    base_str_printf(str, ",\"%s\":%.*f", key, digits, value);
  else
    base_str_printf(str, ",\"%s\":null", key);
}

/* Names of kernels and operations are letters, digits and a few signs: they need no escapes. */
quern_status prof_rows(struct base_str *str, const struct prof *prof) {
  struct rows rows;
  QUERN_TRY(rows_of(&rows, str->heap, prof, by_seconds));
  double total = 0;
  for (size_t i = 0; i < rows.n; i++) total += rows.at[i].seconds;
  base_str_add(str, "[");
  for (size_t i = 0; i < rows.n; i++) {
    const struct row *row = &rows.at[i];
    bool timed = row->seconds > 0, limited = timed && row->floor > 0;
    double rate = timed ? 1e-9 / row->seconds : 0;
    base_str_printf(str, "%s{\"name\":\"%s\",\"kind\":\"%s\",\"ops\":\"%s\",\"count\":%llu,\"total_ms\":%.6f",
                    i > 0 ? "," : "", row->step->kernel, row->step->kind, row->step->ops,
                    (unsigned long long)row->count, row->seconds * 1e3);
    add_number(str, "share", total > 0, row->seconds / total, 6);
    add_number(str, "gflops", timed, row->flops * rate, 3);
    add_number(str, "gbs", timed, row->bytes * rate, 3);
    add_number(str, "limit_pct", limited, 100 * row->floor / row->seconds, 3);
    add_number(str, "lost_ms", limited, BASE_MAX(row->seconds - row->floor, 0) * 1e3, 6);
    base_str_add(str, "}");
  }
  base_str_add(str, "]");
  base_free(str->heap, rows.at, rows.bytes);
  return base_str_status(str);
}

/* What the machine can do, as far as it was measured. */
static void add_limits(struct base_str *str, const struct prof *prof) {
  const struct prof_limits *limits = &prof->limits;
  base_str_add(str, prof->program);
  if (limits->threads > 0) base_str_printf(str, " on %d thread%s", limits->threads, limits->threads == 1 ? "" : "s");
  if (limits->flops_f32 > 0)
    base_str_printf(str, ": f32 %.0f GFLOP/s", limits->flops_f32 * 1e-9);
  else
    base_str_add(str, ": what the device can do was not measured");
  for (int i = 0; i < PROF_LEVELS; i++)
    if (limits->bandwidth[i] > 0)
      base_str_printf(str, ", %s %.0f GB/s", prof_level_names[i], limits->bandwidth[i] * 1e-9);
  base_str_add(str, "\n\n");
}

/* Time, ratio to the floor, and what is lost, each as far as it is known. */
static void add_lost(struct base_str *str, const struct row *row, double times) {
  bool known = row->seconds > 0 && row->floor > 0;
  base_str_add(str, " ");
  add_known_time(str, row->seconds / times);
  if (!known) {
    base_str_printf(str, " %6s %11s", "-", "-");
    return;
  }
  base_str_printf(str, " %6.2f ", row->seconds / row->floor);
  add_time(str, BASE_MAX(row->seconds - row->floor, 0));
}

quern_status prof_explain(struct base_str *str, const struct prof *prof) {
  struct rows rows;
  QUERN_TRY(rows_of(&rows, str->heap, prof, by_loss));
  bool known = measured(prof);
  add_limits(str, prof);
  base_str_printf(str, "%8s %9s %10s %11s %11s %6s %11s  %-8s %s\n", "times", "MFLOP", "MB", "floor", "time", "ratio",
                  "lost", "bound", "kernel");
  double floor = 0, seconds = 0;
  for (size_t i = 0; i < rows.n; i++) {
    const struct row *row = &rows.at[i];
    double times = known ? BASE_MAX((double)row->count, 1) : (double)row->steps;
    floor += row->floor;
    seconds += row->seconds;
    base_str_printf(str, "%8.0f %9.3f %10.3f ", times, row->flops / times * 1e-6, row->bytes / times * 1e-6);
    add_known_time(str, row->floor / times);
    add_lost(str, row, times);
    base_str_printf(str, "  %-8s %s (%s)\n", bound_of(row), row->step->kernel, row->step->ops);
  }
  base_str_add(str, "\nfloor ");
  add_known_time(str, floor);
  if (known) {
    base_str_add(str, ", time ");
    add_time(str, seconds);
    if (floor > 0) base_str_printf(str, ", ratio %.2f", seconds / floor);
    base_str_printf(str, ", over %llu runs", (unsigned long long)prof->runs);
  }
  base_str_add(str, "\n");
  base_free(str->heap, rows.at, rows.bytes);
  return base_str_status(str);
}
