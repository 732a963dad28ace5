/* sched/dot_materialize.c -- the prologue of a convolution: what its overlapping windows read is computed once, into a
** workspace
** Most often that is padding: a row of it is filled at both ends, and its middle is what is padded.
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

enum { TASK_ELEMENTS = 16384 };

static int64_t low(const struct dot_copy *f, int k) { return f->pad != NULL ? f->pad->attrs->lo.at[k] : 0; }

static int64_t between(const struct dot_copy *f, int k) { return f->pad != NULL ? f->pad->attrs->mid.at[k] : 0; }

/* Elements from element `at` on, the same value; n is a number of them. */
static void fill(struct dot_copy *f, kern_id at, int64_t n) {
  struct kern_builder *b = f->b;
  int64_t lanes = f->d->lanes, whole = n - n % lanes;
  kern_id x = kern_splat(b, kern_values_get(f->values, f->pad->src[1], 0, NULL), (int)lanes);
  if (whole > 0) {
    kern_id i = kern_range(b, 0, whole, lanes);
    kern_store(b, f->to, kern_add(b, at, i), x);
    kern_end(b);
  }
  if (n > whole) {
    kern_id rest = kern_add_i(b, at, whole);
    kern_store_n(b, f->to, rest, x, kern_index(b, n - whole));
  }
}

/* A vector of `from` from element `at` on, with one element of padding after each of its elements. */
static void spread(struct dot_copy *f, kern_id at, kern_id x, kern_id active) {
  struct kern_builder *b = f->b;
  int lanes = (int)f->d->lanes;
  kern_id zero = kern_splat(b, kern_values_get(f->values, f->pad->src[1], 0, NULL), lanes);
  for (int half = 0; half < 2; half++) {
    int pattern[KERN_MAX_LANES], first = half * lanes;
    for (int i = 0; i < lanes; i++) pattern[i] = i % 2 * lanes + (first + i) / 2;
    kern_id count = KERN_NONE, part = kern_shuffle(b, x, zero, lanes, pattern);
    if (active != KERN_NONE) {
      count = kern_add_i(b, kern_mul_i(b, active, 2), -first);
      count = kern_min_i(b, kern_max_i(b, count, 0), lanes);
    }
    kern_store_n(b, f->to, kern_add_i(b, at, first), part, count);
  }
}

static void copy_vector(struct dot_copy *f, kern_id at, kern_id i, kern_id active) {
  int last = f->last, lanes = f->d->lanes;
  kern_values_set(f->values, last, i, lanes, active);
  kern_id x = kern_splat(f->b, kern_values_get(f->values, f->from, f->from->rank, f->at), lanes);
  if (between(f, last) > 0)
    spread(f, kern_add(f->b, at, kern_mul_i(f->b, i, 2)), x, active);
  else
    kern_store_n(f->b, f->to, kern_add(f->b, at, i), x, active);
  kern_values_set(f->values, last, i, 1, KERN_NONE);
}

/* A row of `from`, to element `at` on. */
static void copy(struct dot_copy *f, kern_id at) {
  struct kern_builder *b = f->b;
  int64_t lanes = f->d->lanes, n = f->from->dims[f->last], whole = n - n % lanes;
  if (whole > 0) {
    kern_id i = kern_range(b, 0, whole, lanes);
    kern_values_enter(f->values);
    copy_vector(f, at, i, KERN_NONE);
    kern_values_leave(f->values);
    kern_end(b);
  }
  if (n > whole) {
    kern_id rest = kern_index(b, whole);
    copy_vector(f, at, rest, kern_index(b, n - whole));
  }
}

/* Row number `row` of the tensor: its indices but the last, in the dims of from; opens an if for each that padding can
** take outside, and returns how many. */
static int set_row(struct dot_copy *f, const quern_tensor *t, kern_id row) {
  struct kern_builder *b = f->b;
  int opened = 0;
  kern_id inside = KERN_NONE;
  for (int k = f->last - 1; k >= 0; k--) {
    kern_id i = kern_imod(b, row, t->dims[k]);
    i = kern_sub(b, i, kern_index(b, low(f, k)));
    row = kern_idiv(b, row, t->dims[k]);
    int64_t last = f->from->dims[k] - 1;
    if (f->from->dims[k] != t->dims[k]) {
      int64_t step = between(f, k) + 1;
      kern_id zero = kern_index(b, 0), both = kern_bin(b, KERN_LE, zero, i);
      both = kern_bin(b, KERN_AND, both, kern_bin(b, KERN_LE, i, kern_index(b, last * step)));
      i = kern_max(b, i, zero);
      if (step > 1) both = kern_bin(b, KERN_AND, both, kern_bin(b, KERN_LE, kern_imod(b, i, step), zero));
      i = kern_idiv(b, i, step);
      inside = inside == KERN_NONE ? both : kern_bin(b, KERN_AND, inside, both);
      i = kern_min_i(b, kern_max(b, i, zero), last);
    }
    kern_values_set(f->values, k, i, 1, KERN_NONE);
  }
  if (inside != KERN_NONE) {
    kern_if(b, inside);
    kern_values_enter(f->values);
    opened = 1;
  }
  return opened;
}

void dot_copy_row(struct dot_copy *f, kern_id row, kern_id to, kern_id at) {
  struct kern_builder *b = f->b;
  const quern_tensor *t = f->tensor;
  int last = f->last;
  int64_t lo = low(f, last), n = t->dims[last], middle = (f->from->dims[last] - 1) * (between(f, last) + 1) + 1;
  f->to = to;
  kern_values_enter(f->values);
  int opened = set_row(f, t, row);
  if (lo > 0) fill(f, at, lo);
  copy(f, kern_add(b, at, kern_index(b, lo)));
  if (n - middle - lo > 0) fill(f, kern_add(b, at, kern_index(b, lo + middle)), n - middle - lo);
  if (opened > 0) {
    kern_values_leave(f->values);
    kern_else(b);
    kern_values_enter(f->values);
    fill(f, at, n);
    kern_values_leave(f->values);
    kern_end(b);
  }
  kern_values_leave(f->values);
}

int dot_copy_axis(const quern_tensor *t) {
  int last = t->rank - 1;
  while (last > 0 && t->dims[last] == 1) last--;
  return last;
}

/* True when rows can be filled and copied: between the elements of one there is nothing, or one element of padding, which
** may be written after the last as well. */
static bool is_plain_pad(const quern_tensor *t) {
  if (t->node->op != IR_PAD || ir_count(t->node->src[0]) == 0) return false;
  int last = dot_copy_axis(t);
  const struct ir_attrs *attrs = t->node->attrs;
  return attrs->mid.at[last] == 0 || (attrs->mid.at[last] == 1 && attrs->hi.at[last] > 0);
}

quern_status dot_copy_begin(struct dot_copy *f, struct dot *d, const quern_tensor *t, struct kern_builder *b) {
  *f = (struct dot_copy){.d = d, .b = b, .tensor = t, .from = t, .last = dot_copy_axis(t), .group = d->group};
  QUERN_TRY(pass_space_new(&f->space, d->job->kern->heap));
  if (is_plain_pad(t)) f->pad = t->node;
  if (f->pad != NULL) f->from = f->pad->src[0];
  for (int k = 0; k < t->rank; k++) f->at[k] = pass_index_var(f->space, pass_space_add(f->space, f->from->dims[k]));
  f->job = d->inner;
  f->job.group = &f->group;
  f->group.space = f->space;
  return f->space->failed ? QUERN_STATUS_MEMORY : sched_values(&f->job, b, &f->values);
}

void dot_copy_end(struct dot_copy *f) {
  kern_values_free(f->values);
  pass_space_free(f->space);
}

/* The builder is that of the copy's values, which outlive this call. */
static quern_status materialize_in(struct dot_copy *f, struct dot *d, const struct dot_materialized *kept,
                                   struct kern_builder *b) {
  const quern_tensor *t = kept->tensor;
  struct kern *kern = d->job->kern;
  int64_t n = t->rank > 0 ? t->dims[dot_copy_axis(t)] : 1, rows = ir_count(t) / n,
          some = BASE_MAX(TASK_ELEMENTS / n, 1);
  if (d->job->sched->rows != NULL && pass_dynamic_batch_is_outermost(d->job->sched->rows, t))
    kern->mems[kept->mem].row = pass_dynamic_batch_get(d->job->sched->rows, t);
  *b = (struct kern_builder){.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(sched_ceil(rows, some)))};
  QUERN_TRY(dot_copy_begin(f, d, t, b));
  kern_id to = kern_mem(b, kept->mem);
  kern_id first = kern_mul_i(b, kern_task(b), some);
  kern_id end = kern_min_i(b, kern_add(b, first, kern_index(b, some)), rows);
  kern_id row = kern_for(b, first, end, 1);
  dot_copy_row(f, row, to, kern_mul_i(b, row, n));
  kern_end(b);
  return f->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

quern_status dot_materialize(struct dot *d) {
  quern_status status = QUERN_STATUS_OK;
  for (int i = 0; i < d->n_materialized && status == QUERN_STATUS_OK; i++) {
    struct dot_copy f = {0};
    struct kern_builder b;
    status = materialize_in(&f, d, &d->materialized[i], &b);
    dot_copy_end(&f);
  }
  return status;
}
