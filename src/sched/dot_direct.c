/* sched/dot_direct.c -- a contraction with windows and few terms computed directly, such as a depthwise convolution
** A plane is what the windows of one element of the batch read: with its padding it is copied to scratch, which stays in
** the first-level cache. Vectors run along its rows; some rows of sums at a time share what they read. Weights are in
** registers. The chains are those of the micro-kernels.
** needs: windows that start 1 or 2 elements after one another along the columns' innermost variable
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

/* Rows of sums at a time; terms, products of rows and terms, sums of a weight gradient, elements of a plane at most;
** elements of a task. */
enum { ROWS = 4, TERMS = 64, PRODUCTS = 160, SUMS = 25, PLANE = 1 << 16, TASK_ELEMENTS = 32768, LOADS = ROWS * TERMS };

/* What windows read: element outer row + inner step + term[k] of the rows that begin with `first`. */
struct plane {
  const quern_tensor *tensor;
  const struct pass_index *first; /* row of the tensor, by the batch */
  int64_t size, rows, row, step, term[TERMS];
};

/* Which variables are rows of the plane and run along them, and the axis whose elements are a window's. */
struct plane_vars {
  int row, lane, taps;
};
static const struct plane_vars forward_vars = {DOT_OUTER + DOT_COL, DOT_INNER + DOT_COL, DOT_TERM};
static const struct plane_vars back_vars = {DOT_INNER + DOT_TERM, DOT_INNER + DOT_BATCH, DOT_COL};

/* e with element number `tap` of an axis, and anything else 0; false when that is no number. */
static bool value_at(struct dot *d, const struct pass_index *e, int axis, int64_t tap, int64_t *value) {
  const struct pass_index *by[DOT_VARS];
  int64_t inner = BASE_MAX(d->axis[axis].inner, 1);
  for (size_t v = 0; v < DOT_VARS; v++) by[v] = pass_index_const(d->space, 0);
  by[DOT_OUTER + axis] = pass_index_const(d->space, tap / inner);
  by[DOT_INNER + axis] = pass_index_const(d->space, tap % inner);
  e = pass_index_replace(d->space, e, by);
  *value = e->constant;
  return e->n_terms == 0 && !d->space->failed;
}

/* The indices of what is windowed, over split axes, and the tensor: in memory, or computed. */
static const quern_tensor *find_tensor(struct dot *d, const struct pass_index **at) {
  const struct pass_index *in[QUERN_MAX_RANK];
  const quern_tensor *t = d->b.tensor;
  for (int k = 0; k < t->rank; k++) at[k] = d->b.in_runs[k];
  bool here = false;
  while (!here && dot_is_movement(t->node) && pass_index_source(d->space, t->node, 0, at, in)) {
    t = t->node->src[0];
    for (int k = 0; k < t->rank; k++) at[k] = in[k];
    for (size_t i = 0; i < d->job->group->n_ins; i++) here = here || d->job->group->ins[i] == t;
  }
  return t;
}

/* Finds the plane; false when what the windows read is not one, or not read by rows. */
static bool find_plane(struct dot *d, const struct plane_vars *v, struct plane *p) {
  const struct pass_index *at[QUERN_MAX_RANK], *zeros[DOT_VARS] = {NULL}, *zero = pass_index_const(d->space, 0);
  const quern_tensor *t = find_tensor(d, at);
  const int own[] = {
      v->row, v->lane, DOT_OUTER + v->taps, DOT_INNER + v->taps, DOT_OUTER + DOT_ROW, DOT_INNER + DOT_ROW};
  const struct pass_index *flat = pass_index_flat(d->space, t->rank, t->dims, at);
  int64_t least, row = t->dims[dot_copy_axis(t)], taps = d->axis[v->taps].size;
  for (size_t i = 0; i < BASE_COUNT(own); i++) zeros[own[i]] = zero;
  if (!value_at(d, flat, v->taps, 0, &least)) return false;
  const struct pass_index *start = pass_index_replace(d->space, flat, zeros);
  start = pass_index_add(d->space, start, pass_index_const(d->space, -least));
  const struct pass_index *offset = pass_index_add(d->space, flat, pass_index_scale(d->space, start, -1));
  for (int i = DOT_OUTER; i < DOT_OWN; i++)
    if (zeros[i] == NULL && pass_index_uses(offset, i)) return false;
  if (offset->lo < 0 || offset->hi >= PLANE || pass_index_mod(d->space, start, row) != zero) return false;
  p->tensor = t;
  p->first = pass_index_div(d->space, start, row);
  p->rows = offset->hi / row + 1;
  p->size = p->rows * row;
  if (!pass_index_stride(d->space, offset, v->lane, &p->step)) return false;
  if (!pass_index_stride(d->space, offset, v->row, &p->row)) return false;
  const struct pass_index *by[DOT_VARS] = {NULL};
  by[v->row] = by[v->lane] = zero;
  const struct pass_index *rest = pass_index_replace(d->space, offset, by);
  if (pass_index_uses(rest, DOT_OUTER + DOT_ROW) || pass_index_uses(rest, DOT_INNER + DOT_ROW)) return false;
  for (int64_t k = 0; k < taps; k++)
    if (!value_at(d, rest, v->taps, k, &p->term[k])) return false;
  return (p->step == 1 || p->step == 2) && p->row >= 0;
}

static bool uses_columns(const struct dot *d) {
  for (int k = 0; k < d->a.tensor->rank; k++)
    if (pass_index_uses(d->a.at[k], DOT_COL) || pass_index_uses(d->a.at[k], DOT_OUTER + DOT_COL) ||
        pass_index_uses(d->a.at[k], DOT_INNER + DOT_COL))
      return true;
  return false;
}

static bool may_be_direct(const struct dot *d) {
  return d->lanes > 1 && !d->bytes && d->job->sched->rows == NULL && d->job->sched->packed == 0 &&
         dot_has_windows(d->job->group, d->b.tensor);
}

bool dot_is_direct(struct dot *d) {
  struct plane p;
  bool small = d->k <= TERMS && d->m <= ROWS && d->m * d->k <= PRODUCTS && d->axis[DOT_COL].inner > 1;
  return small && may_be_direct(d) && !uses_columns(d) && find_plane(d, &forward_vars, &p);
}

bool dot_is_direct_back(struct dot *d) {
  struct plane p;
  bool small = d->m * d->n <= SUMS && d->k <= DOT_BLOCK && d->axis[DOT_BATCH].inner > 1;
  return small && may_be_direct(d) && !uses_columns(d) && find_plane(d, &back_vars, &p);
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
  if (!find_plane(d, &forward_vars, &f.plane)) return d->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_INTERNAL;
  while (f.lanes > 4 && f.lanes / 2 >= d->axis[DOT_COL].inner) f.lanes /= 2;
  int64_t each = BASE_MAX(TASK_ELEMENTS / f.plane.size, 1), threads = BASE_MAX(d->job->target->threads, 1);
  each = BASE_MIN(each, sched_ceil(d->batch, threads));
  struct kern_builder builder = {.kern = kern,
                                 .fn = kern_add_phase(kern, KERN_FIXED_TASKS(sched_ceil(d->batch, each)))},
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
    kern_id at = kern_mul_i(b, row, f.plane.size / f.plane.rows);
    dot_copy_row(&copy, kern_add(b, number, row), f.scratch, at);
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

/* ---- weight gradients ------------------------------------------------------------------------------------------- */

/* All sums for the vector that begins at inner, over the rows of a plane, added to what acc has. */
static void add_plane(struct direct *f, kern_id outer, kern_id acc, kern_id inner, kern_id active) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  kern_id sum[SUMS], x[SUMS];
  const quern_tensor *t = d->a.tensor;
  int64_t n = d->m * d->n, width = sched_ceil(d->axis[DOT_BATCH].inner, f->lanes) * f->lanes;
  for (int64_t i = 0; i < n; i++) sum[i] = kern_var(b, kern_load(b, acc, kern_add_i(b, inner, i * width), f->lanes));
  kern_id row = kern_range(b, 0, d->axis[DOT_TERM].inner, 1), at = kern_mul_i(b, row, f->plane.row);
  kern_values_enter(f->values);
  dot_set_parts(f->values, DOT_TERM, outer, row, 1, KERN_NONE);
  at = kern_add(b, at, kern_mul_i(b, inner, f->plane.step));
  f->n_loads = 0;
  for (int64_t k = 0; k < d->n; k++) x[k] = load(f, at, f->plane.term[k]);
  kern_values_set(f->values, DOT_INNER + DOT_BATCH, inner, f->lanes, active);
  for (int64_t i = 0; i < d->m; i++) {
    dot_set(d, b, f->values, ~0u, DOT_ROW, kern_index(b, i), 1, KERN_NONE);
    kern_id y = kern_splat(b, kern_cast(b, kern_values_get(f->values, t, t->rank, d->a.in_runs), d->acc), f->lanes);
    for (int64_t k = 0; k < d->n; k++)
      kern_set(b, sum[i * d->n + k], dot_term(d, b, kern_get(b, sum[i * d->n + k]), y, x[k]));
  }
  kern_values_set(f->values, DOT_INNER + DOT_BATCH, inner, 1, KERN_NONE);
  kern_values_leave(f->values);
  kern_end(b);
  for (int64_t i = 0; i < n; i++) {
    kern_id to = kern_add_i(b, inner, i * width);
    kern_store(b, acc, to, kern_get(b, sum[i]));
  }
}

/* The outs from all sums, for the vector that begins at inner. */
static void finish_back(struct direct *f, kern_id batch, kern_id acc, kern_id inner, kern_id active) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  int64_t size = d->axis[DOT_BATCH].inner, width = sched_ceil(size, f->lanes) * f->lanes;
  kern_id first = kern_add(b, kern_mul_i(b, batch, size), inner);
  for (int64_t i = 0; i < d->m * d->n; i++) {
    kern_id x = kern_load(b, acc, kern_add_i(b, inner, i * width), f->lanes);
    kern_values_set(f->values, DOT_ROW, kern_index(b, i / d->n), 1, KERN_NONE);
    dot_set(d, b, f->values, d->split_axes, DOT_COL, kern_index(b, i % d->n), 1, KERN_NONE);
    kern_values_set(f->values, DOT_BATCH, first, f->lanes, active);
    dot_finish(d, b, f->values, x, active);
    kern_values_set(f->values, DOT_BATCH, first, 1, KERN_NONE);
  }
}

/* The whole vectors of a row, then what is left. */
static void each_back(struct direct *f, kern_id number, kern_id acc, bool finishes) {
  struct kern_builder *b = f->b;
  int64_t size = f->d->axis[DOT_BATCH].inner, whole = size / f->lanes;
  void (*each)(struct direct *, kern_id, kern_id, kern_id, kern_id) = finishes ? finish_back : add_plane;
  if (whole > 0) {
    kern_id i = kern_mul_i(b, kern_range(b, 0, whole, 1), f->lanes);
    kern_values_enter(f->values);
    each(f, number, acc, i, KERN_NONE);
    kern_values_leave(f->values);
    kern_end(b);
  }
  if (size % f->lanes == 0) return;
  kern_values_enter(f->values);
  kern_id rest = kern_index(b, whole * f->lanes);
  each(f, number, acc, rest, kern_index(b, size % f->lanes));
  kern_values_leave(f->values);
}

/* The sums of one element of the batch, lanes along its innermost variable: plane by plane. */
static void one_batch(struct direct *f, struct dot_copy *copy, kern_id batch, kern_id acc, int64_t elements) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  dot_set_parts(f->values, DOT_BATCH, batch, kern_index(b, 0), 1, KERN_NONE);
  kern_id neutral = kern_neutral(b, d->reduce, d->acc, f->lanes);
  kern_store(b, acc, kern_range(b, 0, elements, f->lanes), neutral);
  kern_end(b);
  kern_id outer = kern_range(b, 0, d->k / d->axis[DOT_TERM].inner, 1);
  kern_values_enter(f->values);
  dot_set_parts(f->values, DOT_TERM, outer, kern_index(b, 0), 1, KERN_NONE);
  kern_id first = kern_values_first(f->values, f->plane.first), row = kern_range(b, 0, f->plane.rows, 1);
  kern_id at = kern_mul_i(b, row, f->plane.size / f->plane.rows);
  dot_copy_row(copy, kern_add(b, first, row), f->scratch, at);
  kern_end(b);
  each_back(f, outer, acc, false);
  kern_values_leave(f->values);
  kern_end(b);
  each_back(f, batch, acc, true);
}

quern_status dot_direct_back(struct dot *d) {
  struct kern *kern = d->job->kern;
  struct direct f = {.d = d, .lanes = d->lanes};
  struct dot_copy copy;
  int64_t size = d->axis[DOT_BATCH].inner, batch = d->batch / size;
  if (!find_plane(d, &back_vars, &f.plane)) return d->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_INTERNAL;
  while (f.lanes > 4 && f.lanes / 2 >= size) f.lanes /= 2;
  int64_t elements = d->m * d->n * sched_ceil(size, f.lanes) * f.lanes, work = d->k * size,
          threads = d->job->target->threads;
  int64_t each = BASE_MIN(BASE_MAX(TASK_ELEMENTS / work, 1), sched_ceil(batch, BASE_MAX(threads, 1)));
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(sched_ceil(batch, each)))},
                      *b = f.b = &builder;
  quern_status status = dot_copy_begin(&copy, d, f.plane.tensor, b);
  if (status == QUERN_STATUS_OK) status = dot_values(d, b, &f.values);
  if (status == QUERN_STATUS_OK) {
    f.scratch = kern_local(b, f.plane.tensor->dtype, f.plane.size + 2 * d->lanes);
    kern_id acc = kern_local(b, d->acc, elements), first = kern_mul_i(b, kern_task(b), each);
    kern_id end = kern_min_i(b, kern_add_i(b, first, each), batch), i = kern_for(b, first, end, 1);
    kern_values_enter(f.values);
    one_batch(&f, &copy, i, acc, elements);
    kern_values_leave(f.values);
    kern_end(b);
  }
  kern_values_free(f.values);
  dot_copy_end(&copy);
  return status;
}
