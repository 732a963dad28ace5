/* sched/dot_materialize.c -- the prologue of a convolution: what its overlapping windows read is computed once, into a workspace
** Most often that is padding: a row of it is filled at both ends, and its middle is what is padded.
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

enum { TASK_ELEMENTS = 16384 };

struct keep {
  struct dot *d;
  struct kern_builder b;
  struct kern_values *values;
  struct pass_space *space;
  const quern_tensor *from;                    /* whose values are copied: what is padded, or the tensor itself */
  const struct pass_index *at[QUERN_MAX_RANK]; /* over the dims of from */
  const struct ir_node *pad;                   /* or NULL */
  kern_id to;
};

static int64_t low(const struct keep *f, int k) { return f->pad != NULL ? f->pad->attrs->lo.at[k] : 0; }

/* Elements from element `at` on, the same value; n is a number of them. */
static void fill(struct keep *f, kern_id at, int64_t n) {
  struct kern_builder *b = &f->b;
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

static void copy_vector(struct keep *f, kern_id at, kern_id i, kern_id active) {
  int last = f->from->rank - 1, lanes = f->d->lanes;
  kern_values_set(f->values, last, i, lanes, active);
  kern_id x = kern_splat(&f->b, kern_values_get(f->values, f->from, f->from->rank, f->at), lanes);
  kern_store_n(&f->b, f->to, kern_add(&f->b, at, i), x, active);
  kern_values_set(f->values, last, i, 1, KERN_NONE);
}

/* A row of `from`, to element `at` on. */
static void copy(struct keep *f, kern_id at) {
  struct kern_builder *b = &f->b;
  int64_t lanes = f->d->lanes, n = f->from->dims[f->from->rank - 1], whole = n - n % lanes;
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
static int set_row(struct keep *f, const quern_tensor *t, kern_id row) {
  struct kern_builder *b = &f->b;
  int opened = 0;
  kern_id inside = KERN_NONE;
  for (int k = t->rank - 2; k >= 0; k--) {
    kern_id i = kern_imod(b, row, t->dims[k]);
    i = kern_sub(b, i, kern_index(b, low(f, k)));
    row = kern_idiv(b, row, t->dims[k]);
    int64_t last = f->from->dims[k] - 1;
    if (f->from->dims[k] != t->dims[k]) {
      kern_id zero = kern_index(b, 0), both = kern_bin(b, KERN_LE, zero, i);
      both = kern_bin(b, KERN_AND, both, kern_bin(b, KERN_LE, i, kern_index(b, last)));
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

static void materialize_row(struct keep *f, const quern_tensor *t, kern_id row) {
  struct kern_builder *b = &f->b;
  int last = t->rank - 1;
  int64_t lo = low(f, last), middle = f->from->dims[last], n = t->dims[last];
  kern_id at = kern_mul(b, row, kern_index(b, n));
  int opened = set_row(f, t, row);
  if (lo > 0) fill(f, at, lo);
  copy(f, kern_add(b, at, kern_index(b, lo)));
  if (n - middle - lo > 0) fill(f, kern_add(b, at, kern_index(b, lo + middle)), n - middle - lo);
  if (opened == 0) return;
  kern_values_leave(f->values);
  kern_else(b);
  kern_values_enter(f->values);
  fill(f, at, n);
  kern_values_leave(f->values);
  kern_end(b);
}

/* True when rows can be filled and copied: nothing lies between the elements. */
static bool is_plain_pad(const quern_tensor *t) {
  if (t->node->op != IR_PAD || ir_count(t->node->src[0]) == 0) return false;
  for (int k = 0; k < t->rank; k++)
    if (t->node->attrs->mid.at[k] != 0) return false;
  return true;
}

static quern_status materialize_in(struct keep *f, const struct dot_materialized *kept) {
  const quern_tensor *t = kept->tensor;
  struct kern *kern = f->d->job->kern;
  struct sched_job job = f->d->inner;
  struct pass_group group = f->d->group;
  struct kern_builder *b = &f->b;
  int64_t n = t->rank > 0 ? t->dims[t->rank - 1] : 1, rows = ir_count(t) / n, some = BASE_MAX(TASK_ELEMENTS / n, 1);
  if (f->d->job->sched->rows != NULL && pass_dynamic_batch_is_outermost(f->d->job->sched->rows, t))
    kern->mems[kept->mem].row = pass_dynamic_batch_get(f->d->job->sched->rows, t);
  if (is_plain_pad(t)) f->pad = t->node;
  f->from = f->pad != NULL ? f->pad->src[0] : t;
  for (int k = 0; k < t->rank; k++) f->at[k] = pass_index_var(f->space, pass_space_add(f->space, f->from->dims[k]));
  group.space = f->space;
  job.group = &group;
  *b = (struct kern_builder){.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(sched_ceil(rows, some)))};
  QUERN_TRY(sched_values(&job, b, &f->values));
  f->to = kern_mem(b, kept->mem);
  kern_id first = kern_mul_i(b, kern_task(b), some);
  kern_id end = kern_min_i(b, kern_add(b, first, kern_index(b, some)), rows);
  kern_id row = kern_for(b, first, end, 1);
  kern_values_enter(f->values);
  materialize_row(f, t, row);
  kern_values_leave(f->values);
  kern_end(b);
  return f->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

quern_status dot_materialize(struct dot *d) {
  quern_status status = QUERN_STATUS_OK;
  for (int i = 0; i < d->n_materialized && status == QUERN_STATUS_OK; i++) {
    struct keep f = {.d = d};
    status = pass_space_new(&f.space, d->job->kern->heap);
    if (status == QUERN_STATUS_OK) status = materialize_in(&f, &d->materialized[i]);
    kern_values_free(f.values);
    pass_space_free(f.space);
  }
  return status;
}
