/* sched/dot_direct.c -- a contraction with windows and few terms computed directly, such as a depthwise convolution
** A plane is what the windows of one element of the batch read: with its padding it is copied to scratch, which stays in
** the first-level cache. Vectors run along its rows; some rows of sums at a time share what they read. Weights are in
** registers. The chains are those of the micro-kernels.
** needs: windows that start 1 or 2 elements after one another along the columns' innermost variable
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

/* Rows of sums at a time; terms, products of rows and terms, elements of a plane at most; elements of a task. */
enum { ROWS = 4, TERMS = 64, PRODUCTS = 160, PLANE = 1 << 16, TASK_ELEMENTS = 32768, LOADS = ROWS * TERMS };

/* What windows read: element outer row + inner step + term[k] of the rows that begin with `first`. */
struct plane {
  const quern_tensor *tensor;
  const struct pass_index *first; /* row of the tensor, by the batch */
  int64_t size, rows, row, step, term[TERMS];
};

/* e with the columns and terms at given numbers, and anything else 0; false when that is no number. */
static bool value_at(struct dot *d, const struct pass_index *e, int64_t outer, int64_t inner, int64_t term,
                     int64_t *value) {
  const struct pass_index *by[DOT_VARS];
  int64_t terms = BASE_MAX(d->axis[DOT_TERM].inner, 1);
  for (size_t v = 0; v < DOT_VARS; v++) by[v] = pass_index_const(d->space, 0);
  by[DOT_OUTER + DOT_COL] = pass_index_const(d->space, outer);
  by[DOT_INNER + DOT_COL] = pass_index_const(d->space, inner);
  by[DOT_OUTER + DOT_TERM] = pass_index_const(d->space, term / terms);
  by[DOT_INNER + DOT_TERM] = pass_index_const(d->space, term % terms);
  e = pass_index_replace(d->space, e, by);
  *value = e->constant;
  return e->n_terms == 0 && !d->space->failed;
}

static bool uses_batch(const struct pass_index *e) {
  return pass_index_uses(e, DOT_OUTER + DOT_BATCH) || pass_index_uses(e, DOT_INNER + DOT_BATCH);
}

/* Finds the plane; false when what the windows read is not one, or not read by rows. */
static bool find_plane(struct dot *d, struct plane *p) {
  const struct pass_index *at[QUERN_MAX_RANK], *in[QUERN_MAX_RANK];
  const quern_tensor *t = d->b.tensor;
  for (int k = 0; k < t->rank; k++) at[k] = d->b.in_runs[k];
  bool here = false;
  while (!here && dot_is_movement(t->node) && pass_index_source(d->space, t->node, 0, at, in)) {
    t = t->node->src[0];
    for (int k = 0; k < t->rank; k++) at[k] = in[k];
    for (size_t i = 0; i < d->job->group->n_ins; i++) here = here || d->job->group->ins[i] == t;
  }
  const struct pass_index *flat = pass_index_flat(d->space, t->rank, t->dims, at), *zeros[DOT_VARS] = {NULL};
  static const int others[] = {DOT_ROW, DOT_COL, DOT_TERM};
  for (size_t i = 0; i < BASE_COUNT(others); i++)
    zeros[DOT_OUTER + others[i]] = zeros[DOT_INNER + others[i]] = pass_index_const(d->space, 0);
  const struct pass_index *start = pass_index_replace(d->space, flat, zeros);
  int64_t zero;
  if (!value_at(d, flat, 0, 0, 0, &zero)) return false;
  start = pass_index_add(d->space, start, pass_index_const(d->space, -zero));
  const struct pass_index *offset = pass_index_add(d->space, flat, pass_index_scale(d->space, start, -1));
  int64_t row = t->dims[dot_copy_axis(t)];
  if (uses_batch(offset) || offset->lo < 0 || offset->hi >= PLANE) return false;
  if (pass_index_mod(d->space, start, row) != pass_index_const(d->space, 0)) return false;
  p->tensor = t;
  p->first = pass_index_div(d->space, start, row);
  p->rows = offset->hi / row + 1;
  p->size = p->rows * row;
  int64_t outer = d->n / d->axis[DOT_COL].inner;
  if (!pass_index_stride(d->space, offset, DOT_INNER + DOT_COL, &p->step)) return false;
  if (!pass_index_stride(d->space, offset, DOT_OUTER + DOT_COL, &p->row)) return false;
  const struct pass_index *by[DOT_VARS] = {NULL};
  by[DOT_OUTER + DOT_COL] = by[DOT_INNER + DOT_COL] = pass_index_const(d->space, 0);
  const struct pass_index *rest = pass_index_replace(d->space, offset, by);
  if (pass_index_uses(rest, DOT_OUTER + DOT_ROW) || pass_index_uses(rest, DOT_INNER + DOT_ROW)) return false;
  for (int64_t k = 0; k < d->k; k++)
    if (!value_at(d, rest, 0, 0, k, &p->term[k])) return false;
  return outer > 0 && (p->step == 1 || p->step == 2) && p->row >= 0;
}

static bool uses_columns(const struct dot *d) {
  for (int k = 0; k < d->a.tensor->rank; k++)
    if (pass_index_uses(d->a.at[k], DOT_COL) || pass_index_uses(d->a.at[k], DOT_OUTER + DOT_COL) ||
        pass_index_uses(d->a.at[k], DOT_INNER + DOT_COL))
      return true;
  return false;
}

bool dot_is_direct(struct dot *d) {
  struct plane p;
  bool small = d->k <= TERMS && d->m <= ROWS && d->m * d->k <= PRODUCTS && d->axis[DOT_COL].inner > 1;
  return small && d->lanes > 1 && !d->bytes && d->job->sched->rows == NULL && d->job->sched->packed == 0 &&
         dot_has_windows(d->job->group, d->b.tensor) && !uses_columns(d) && find_plane(d, &p);
}

/* ---- the kernel ------------------------------------------------------------------------------------------------- */

struct direct {
  struct dot *d;
  struct kern_builder *b;
  struct kern_values *values;
  struct plane plane;
  int lanes;
  kern_id scratch;
  kern_id weights[PRODUCTS];
  int n_loads; /* of the vectors of one step: where, and what */
  int64_t load_at[LOADS];
  kern_id loads[LOADS];
};

static void set_both(struct direct *f, int axis, kern_id value) {
  kern_values_set(f->values, axis, value, 1, KERN_NONE);
  dot_set(f->d, f->b, f->values, ~0u, axis, value, 1, KERN_NONE);
}

/* Weights of all rows and terms, in all lanes. */
static void load_weights(struct direct *f) {
  struct dot *d = f->d;
  const quern_tensor *t = d->a.tensor;
  for (int64_t i = 0; i < d->m * d->k; i++) {
    set_both(f, DOT_ROW, kern_index(f->b, i / d->k));
    set_both(f, DOT_TERM, kern_index(f->b, i % d->k));
    kern_id x = kern_cast(f->b, kern_values_get(f->values, t, t->rank, d->a.at), d->acc);
    f->weights[i] = kern_splat(f->b, x, f->lanes);
  }
}

/* The vector of every step-th element from at + shift on. */
static kern_id load(struct direct *f, kern_id at, int64_t shift) {
  struct kern_builder *b = f->b;
  for (int i = 0; i < f->n_loads; i++)
    if (f->load_at[i] == shift) return f->loads[i];
  at = kern_add_i(b, at, shift);
  kern_id x = kern_load(b, f->scratch, at, f->lanes);
  if (f->plane.step == 2) {
    int even[KERN_MAX_LANES];
    for (int i = 0; i < f->lanes; i++) even[i] = 2 * i;
    kern_id y = kern_load(b, f->scratch, kern_add_i(b, at, f->lanes), f->lanes);
    x = kern_shuffle(b, x, y, f->lanes, even);
  }
  x = kern_cast(b, x, f->d->acc);
  QUERN_ASSERT(f->n_loads < LOADS);
  f->load_at[f->n_loads] = shift;
  f->loads[f->n_loads++] = x;
  return x;
}

/* Sums of `rows` rows from outer on, for the vector that begins at inner. */
static void sums(struct direct *f, kern_id outer, int rows, kern_id inner, kern_id active) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  kern_id acc[ROWS * ROWS], at = kern_mul_i(b, outer, f->plane.row);
  at = kern_add(b, at, kern_mul_i(b, inner, f->plane.step));
  f->n_loads = 0;
  for (int64_t i = 0; i < d->m * rows; i++) {
    acc[i] = kern_neutral(b, d->reduce, d->acc, f->lanes);
    for (int64_t k = 0; k < d->k; k++) {
      kern_id x = load(f, at, i % rows * f->plane.row + f->plane.term[k]);
      acc[i] = dot_term(d, b, acc[i], f->weights[i / rows * d->k + k], x);
    }
  }
  for (int64_t i = 0; i < d->m * rows; i++) {
    kern_id col = kern_mul_i(b, kern_add_i(b, outer, i % rows), d->axis[DOT_COL].inner);
    col = kern_add(b, col, inner);
    kern_values_set(f->values, DOT_ROW, kern_index(b, i / rows), 1, KERN_NONE);
    dot_set(d, b, f->values, d->split_axes, DOT_COL, col, f->lanes, active);
    dot_finish(d, b, f->values, acc[i], active);
    dot_set(d, b, f->values, d->split_axes, DOT_COL, col, 1, KERN_NONE);
  }
}

static void each_vector(struct direct *f, kern_id outer, int rows) {
  struct kern_builder *b = f->b;
  int64_t inner = f->d->axis[DOT_COL].inner, whole = inner / f->lanes;
  if (whole > 0) {
    kern_id i = kern_mul_i(b, kern_range(b, 0, whole, 1), f->lanes);
    kern_values_enter(f->values);
    sums(f, outer, rows, i, KERN_NONE);
    kern_values_leave(f->values);
    kern_end(b);
  }
  if (inner % f->lanes == 0) return;
  kern_id rest = kern_index(b, whole * f->lanes);
  sums(f, outer, rows, rest, kern_index(b, inner % f->lanes));
}

static void each_row(struct direct *f) {
  struct kern_builder *b = f->b;
  int64_t outer = f->d->n / f->d->axis[DOT_COL].inner, at_once = BASE_MAX(ROWS / f->d->m, 1), whole = outer / at_once;
  if (whole > 0) {
    kern_id i = kern_mul_i(b, kern_range(b, 0, whole, 1), at_once);
    kern_values_enter(f->values);
    each_vector(f, i, (int)at_once);
    kern_values_leave(f->values);
    kern_end(b);
  }
  if (outer % at_once == 0) return;
  kern_values_enter(f->values);
  each_vector(f, kern_index(b, whole * at_once), (int)(outer % at_once));
  kern_values_leave(f->values);
}

quern_status dot_direct(struct dot *d) {
  struct kern *kern = d->job->kern;
  struct direct f = {.d = d, .lanes = d->lanes};
  struct dot_copy copy;
  if (!find_plane(d, &f.plane)) return d->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_INTERNAL;
  while (f.lanes > 4 && f.lanes / 2 >= d->axis[DOT_COL].inner) f.lanes /= 2;
  int64_t each = BASE_MAX(TASK_ELEMENTS / f.plane.size, 1), threads = BASE_MAX(d->job->target->threads, 1);
  each = BASE_MIN(each, sched_ceil(d->batch, threads));
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(sched_ceil(d->batch, each)))},
                      *b = f.b = &builder;
  quern_status status = dot_copy_begin(&copy, d, f.plane.tensor, b);
  if (status == QUERN_STATUS_OK) status = dot_values(d, b, &f.values);
  if (status == QUERN_STATUS_OK) {
    f.scratch = kern_local(b, f.plane.tensor->dtype, f.plane.size + 2 * d->lanes);
    kern_id first = kern_mul_i(b, kern_task(b), each), end = kern_min_i(b, kern_add_i(b, first, each), d->batch);
    kern_id batch = kern_for(b, first, end, 1);
    kern_values_enter(f.values);
    set_both(&f, DOT_BATCH, batch);
    kern_id number = kern_values_first(f.values, f.plane.first);
    kern_id row = kern_range(b, 0, f.plane.rows, 1);
    dot_copy_row(&copy, kern_add(b, number, row), f.scratch, kern_mul_i(b, row, f.plane.size / f.plane.rows));
    kern_end(b);
    load_weights(&f);
    each_row(&f);
    kern_values_leave(f.values);
    kern_end(b);
  }
  kern_values_free(f.values);
  dot_copy_end(&copy);
  return status;
}
