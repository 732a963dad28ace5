/* sched/scan.c -- kernels of SCAN groups: sums, products, maxima and minima of everything up to an element
** A line is what one scan runs along. Lines that lie side by side in memory are the lanes of a vector; where the axis
** itself is innermost, several lines are taken at once, so that one need not wait for another's sum. Few long lines are
** chunked: the parts' totals in one phase, what precedes each part in the next, the results in the last.
** keeps: the order of kern.h: chunks of KERN_SCAN_CHUNK elements, whatever the variant
** tests: tests/sched/test_scan.c
*/
#include "sched/nest.h"

enum { MAX_LINES = 8, TASK_ELEMENTS = 16384 };

struct scan {
  struct sched_job *job;
  const quern_tensor *y;
  quern_dtype acc;
  enum ir_reduce reduce;
  int axis, vector; /* dims; vector is the one with lanes, or -1 */
  int lanes, lines; /* of a row_strip: lines is how many row_strips are taken at once */
  int64_t n, row_strips, chunks;
};

/* A row_strip of lines: the index of each dim but the axis, and how many lanes count. */
struct row_strip {
  kern_id at[QUERN_MAX_RANK], active;
};

/* ---- choosing -------------------------------------------------------------------------------------------- */

static bool order_matters(const struct scan *s) {
  return base_dtype_is(s->acc, BASE_FLOAT) && (s->reduce == IR_SUM || s->reduce == IR_PROD);
}

static struct scan scan_of(struct sched_job *job) {
  const struct ir_node *node = job->group->anchor;
  struct scan s = {.job = job, .y = &node->out[0], .reduce = node->attrs->reduce, .axis = (int)node->attrs->axis};
  int last = s.y->rank - 1;
  s.acc = kern_acc_dtype(s.y->dtype);
  s.n = s.y->dims[s.axis];
  s.chunks = sched_ceil(s.n, KERN_SCAN_CHUNK);
  s.vector = -1;
  s.lanes = s.lines = 1;
  if (s.axis != last && s.y->dims[last] > 1 && sched_lanes(job) > 1) {
    s.vector = last;
    s.lanes = sched_lanes(job);
    while (s.lanes / 2 >= s.y->dims[last]) s.lanes /= 2;
  }
  s.row_strips = 1;
  for (int k = 0; k <= last; k++)
    if (k != s.axis) s.row_strips *= k == s.vector ? sched_ceil(s.y->dims[k], s.lanes) : s.y->dims[k];
  if (job->sched->unroll > 1)
    s.lines = s.vector < 0 ? MAX_LINES / 2 : MAX_LINES; /* rows of 8 vectors fill cache lines and pages */
  while (s.row_strips % s.lines != 0 || (s.lines > 1 && s.row_strips / s.lines < job->target->threads)) s.lines /= 2;
  return s;
}

/* ---- pieces ---------------------------------------------------------------------------------------------- */

/* What the first element is combined with. */
static kern_id neutral(const struct scan *s, struct kern_builder *b) {
  return kern_neutral(b, s->reduce, s->acc, s->lanes);
}

static struct row_strip row_strip_at(const struct scan *s, struct kern_builder *b, kern_id number) {
  struct row_strip u = {.active = KERN_NONE};
  for (int k = s->y->rank - 1; k >= 0; k--) {
    if (k == s->axis) continue;
    int64_t extent = k == s->vector ? sched_ceil(s->y->dims[k], s->lanes) : s->y->dims[k];
    u.at[k] = kern_imod(b, number, extent);
    number = kern_idiv(b, number, extent);
  }
  if (s->vector < 0) return u;
  int64_t extent = s->y->dims[s->vector];
  u.at[s->vector] = kern_mul_i(b, u.at[s->vector], s->lanes);
  if (extent % s->lanes != 0) u.active = kern_min_i(b, kern_sub(b, kern_index(b, extent), u.at[s->vector]), s->lanes);
  return u;
}

static void set_row_strip(const struct scan *s, struct kern_values *values, const struct row_strip *u) {
  for (int k = 0; k < s->y->rank; k++) {
    if (k == s->axis) continue;
    bool wide = k == s->vector;
    kern_values_set(values, k, u->at[k], wide ? s->lanes : 1, wide ? u->active : KERN_NONE);
  }
}

/* Scans elements lo .. hi - 1 of n row_strips. before (KERN_NONE: nothing) is what precedes them; totals are of these
** elements alone. store: whether results are written. */
static void scan_range(const struct scan *s, struct kern_builder *b, struct kern_values *values, int n,
                       const struct row_strip *row_strips, kern_id lo, kern_id hi, const kern_id *before, bool store,
                       kern_id *totals) {
  const struct pass_out *out = &s->job->group->outs[0];
  const quern_tensor *x = s->job->group->anchor->src[0];
  kern_id sums[MAX_LINES], start = neutral(s, b);
  for (int u = 0; u < n; u++) sums[u] = kern_var(b, start);
  kern_id i = kern_for(b, lo, hi, 1);
  if (s->job->group->anchor->attrs->reverse) i = kern_sub(b, kern_index(b, s->n - 1), i);
  for (int u = 0; u < n; u++) {
    kern_values_enter(values);
    set_row_strip(s, values, &row_strips[u]);
    kern_values_set(values, s->axis, i, 1, KERN_NONE);
    kern_id term = kern_cast(b, kern_values_get(values, x, x->rank, out->at), s->acc);
    term = kern_splat(b, term, s->lanes);
    kern_id sum = kern_combine(b, s->reduce, kern_get(b, sums[u]), term);
    kern_set(b, sums[u], sum);
    if (store) {
      kern_id y = before == NULL ? sum : kern_combine(b, s->reduce, before[u], sum);
      sched_store_at(s->job, b, values, 0, out->at, kern_cast(b, y, s->y->dtype), row_strips[u].active);
    }
    kern_values_leave(values);
  }
  kern_end(b);
  for (int u = 0; u < n; u++) totals[u] = kern_get(b, sums[u]);
}

/* The ends of part number c. */
static void chunk_ends(const struct scan *s, struct kern_builder *b, kern_id c, kern_id *lo, kern_id *hi) {
  *lo = kern_mul_i(b, c, KERN_SCAN_CHUNK);
  *hi = kern_min_i(b, kern_add_i(b, *lo, KERN_SCAN_CHUNK), s->n);
}

/* ---- whole lines a task ---------------------------------------------------------------------------------- */

static void scan_lines(const struct scan *s, struct kern_builder *b, struct kern_values *values,
                       const struct row_strip *row_strips) {
  kern_id totals[MAX_LINES], carries[MAX_LINES], before[MAX_LINES] = {0}, lo, hi;
  if (s->chunks == 1 || !order_matters(s)) {
    lo = kern_index(b, 0);
    hi = kern_index(b, s->n);
    scan_range(s, b, values, s->lines, row_strips, lo, hi, NULL, true, totals);
    return;
  }
  for (int u = 0; u < s->lines; u++) carries[u] = kern_var(b, neutral(s, b));
  chunk_ends(s, b, kern_range(b, 0, s->chunks, 1), &lo, &hi);
  kern_values_enter(values);
  for (int u = 0; u < s->lines; u++) before[u] = kern_get(b, carries[u]);
  scan_range(s, b, values, s->lines, row_strips, lo, hi, before, true, totals);
  for (int u = 0; u < s->lines; u++) kern_set(b, carries[u], kern_combine(b, s->reduce, before[u], totals[u]));
  kern_values_leave(values);
  kern_end(b);
}

static quern_status phase_of_lines(const struct scan *s) {
  struct kern_values *values = NULL;
  int64_t sets = s->row_strips / s->lines, elements = s->n * s->lanes * s->lines;
  int64_t least = s->job->target->gpu ? 1 : TASK_ELEMENTS / elements;
  int64_t grain = BASE_MIN(BASE_MAX(BASE_MAX(s->job->sched->grain, 1), least), sets);
  struct kern_builder b = {s->job->kern, kern_add_phase(s->job->kern, KERN_FIXED_TASKS(sched_ceil(sets, grain)))};
  QUERN_TRY(s->job->kern->failed);
  QUERN_TRY(sched_values(s->job, &b, &values));
  struct row_strip row_strips[MAX_LINES];
  kern_id first = kern_mul_i(&b, kern_task(&b), grain);
  kern_id last = kern_min_i(&b, kern_add_i(&b, first, grain), sets);
  kern_id set = kern_mul_i(&b, kern_for(&b, first, last, 1), s->lines);
  kern_values_enter(values);
  for (int u = 0; u < s->lines; u++) row_strips[u] = row_strip_at(s, &b, kern_add_i(&b, set, u));
  scan_lines(s, &b, values, row_strips);
  kern_values_leave(values);
  kern_end(&b);
  kern_values_free(values);
  return s->job->kern->failed;
}

/* ---- lines in parts ---------------------------------------------------------------------------------------- */

/* Tasks are parts 0 .. parts - 1 of each row_strip: their totals to work, or their results, with what precedes them in
** work. */
static quern_status phase_of_parts(const struct scan *s, int64_t parts, int work, bool store) {
  struct kern_values *values = NULL;
  struct kern_builder b = {s->job->kern, kern_add_phase(s->job->kern, KERN_FIXED_TASKS(s->row_strips * parts))};
  QUERN_TRY(s->job->kern->failed);
  QUERN_TRY(sched_values(s->job, &b, &values));
  kern_id memory = kern_mem(&b, work), number = kern_idiv(&b, kern_task(&b), parts);
  kern_id part = kern_imod(&b, kern_task(&b), parts), lo, hi, total, before = KERN_NONE;
  kern_id at = kern_mul_i(&b, kern_add(&b, kern_mul_i(&b, number, s->chunks), part), s->lanes);
  struct row_strip row_strip = row_strip_at(s, &b, number);
  chunk_ends(s, &b, part, &lo, &hi);
  if (store) before = kern_load(&b, memory, at, s->lanes);
  scan_range(s, &b, values, 1, &row_strip, lo, hi, store ? &before : NULL, store, &total);
  if (!store) kern_store(&b, memory, at, total);
  kern_values_free(values);
  return s->job->kern->failed;
}

/* The totals of the parts of each row_strip become what precedes them. */
static quern_status phase_of_totals(const struct scan *s, int work) {
  struct kern_builder b = {s->job->kern, kern_add_phase(s->job->kern, KERN_FIXED_TASKS(s->row_strips))};
  QUERN_TRY(s->job->kern->failed);
  kern_id memory = kern_mem(&b, work), first = kern_mul_i(&b, kern_task(&b), s->chunks);
  kern_id carry = kern_var(&b, neutral(s, &b));
  kern_id part = kern_range(&b, 0, s->chunks - 1, 1);
  kern_id at = kern_mul_i(&b, kern_add(&b, first, part), s->lanes);
  kern_id total = kern_load(&b, memory, at, s->lanes), before = kern_get(&b, carry);
  kern_store(&b, memory, at, before);
  kern_set(&b, carry, kern_combine(&b, s->reduce, before, total));
  kern_end(&b);
  at = kern_mul_i(&b, kern_add_i(&b, first, s->chunks - 1), s->lanes);
  kern_store(&b, memory, at, kern_get(&b, carry));
  return s->job->kern->failed;
}

quern_status sched_scan(struct sched_job *job) {
  const struct pass_group *group = job->group;
  QUERN_ASSERT(group->n_outs == 1 && group->outs[0].tensor == &group->anchor->out[0]);
  if (ir_count(group->outs[0].tensor) == 0) {
    (void)kern_add_phase(job->kern, KERN_FIXED_TASKS(0));
    return job->kern->failed;
  }
  struct scan s = scan_of(job);
  for (size_t i = 0; i < group->n_ins; i++) /* an element is read just before its place is written */
    if (group->n_nodes == 1 && group->ins[i] == group->anchor->src[0]) job->kern->mems[group->n_ins].alias = (int)i;
  bool chunked = s.chunks > 1 && job->target->threads > 1 && s.row_strips < 2 * job->target->threads;
  if (!chunked) return phase_of_lines(&s);
  int work = kern_add_mem(job->kern, s.acc, KERN_WORK, s.row_strips * s.chunks * s.lanes);
  QUERN_TRY(phase_of_parts(&s, s.chunks - 1, work, false));
  QUERN_TRY(phase_of_totals(&s, work));
  return phase_of_parts(&s, s.chunks, work, true);
}
