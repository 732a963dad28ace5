/* sched/dot_split_k.c -- split-K on CPUs: few sums of many terms, whose blocks of terms are computed side by side
** The first phase computes the sum of each block by itself into a workspace; the second adds them from the first to the
** last, so that the sums are those of dot_scalar.c.
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

static kern_id times(struct kern_builder *b, kern_id x, int64_t by) { return kern_mul(b, x, kern_index(b, by)); }

/* ---- split-K of a tiled kernel ------------------------------------------------------------------------------- */

/* Rows are whole panels long, so that no vector of sums is cut. */
void dot_make_split_k(struct dot *d) {
  struct pass_space *space = d->space;
  int64_t row = d->n_panels * d->nv * d->lanes;
  const struct pass_index *col = pass_index_var(space, DOT_COL);
  if (d->split_axes != 0) {
    col = pass_index_scale(space, pass_index_var(space, DOT_OUTER + DOT_COL), d->axis[DOT_COL].inner);
    col = pass_index_add(space, col, pass_index_var(space, DOT_INNER + DOT_COL));
  }
  const struct pass_index *at = pass_index_scale(space, pass_index_var(space, DOT_BATCH), d->m);
  at = pass_index_scale(space, pass_index_add(space, at, pass_index_var(space, DOT_ROW)), row);
  d->k_split_size = d->batch * d->m * row;
  d->c = (struct dot_view){.offset = pass_index_add(space, at, col), .own = 1, .term = row};
  d->c.mem = kern_add_mem(d->job->kern, d->acc, KERN_WORK, d->k_splits * d->k_split_size);
  d->bare = false;
}

/* The outs from all splits, for the vector of columns that begins at col. */
static void add_vector(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id col, kern_id active) {
  dot_set(d, b, values, d->split_axes, DOT_COL, col, d->lanes, active);
  kern_id mem = kern_mem(b, d->c.mem), at = kern_values_first(values, d->c.offset);
  kern_id sum = kern_var(b, kern_load(b, mem, at, d->lanes));
  kern_id split = kern_range(b, 1, d->k_splits, 1);
  kern_id part = kern_load(b, mem, kern_add(b, times(b, split, d->k_split_size), at), d->lanes);
  kern_set(b, sum, kern_combine(b, d->reduce, kern_get(b, sum), part));
  kern_end(b);
  dot_finish(d, b, values, kern_get(b, sum), active);
  dot_set(d, b, values, d->split_axes, DOT_COL, col, 1, KERN_NONE);
}

quern_status dot_add_split_k(struct dot *d) {
  struct kern *kern = d->job->kern;
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(d->batch * d->m))};
  struct kern_builder *b = &builder;
  struct kern_values *values;
  QUERN_TRY(dot_values(d, b, &values));
  int64_t whole = d->n / d->lanes;
  kern_values_set(values, DOT_BATCH, kern_idiv(b, kern_task(b), d->m), 1, KERN_NONE);
  kern_values_set(values, DOT_ROW, kern_imod(b, kern_task(b), d->m), 1, KERN_NONE);
  if (whole > 0) {
    kern_id vector = kern_range(b, 0, whole, 1);
    kern_values_enter(values);
    add_vector(d, b, values, times(b, vector, d->lanes), KERN_NONE);
    kern_values_leave(values);
    kern_end(b);
  }
  if (d->n % d->lanes != 0) {
    kern_id rest = kern_index(b, whole * d->lanes);
    add_vector(d, b, values, rest, kern_index(b, d->n % d->lanes));
  }
  kern_values_free(values);
  return QUERN_STATUS_OK;
}

/* ---- inner products ---------------------------------------------------------------------------------------- */

enum { INNER_SUMS = 8 };

static bool is_contiguous(const struct dot_operand *side) {
  return side->view.mem >= 0 && side->view.term == 1 && side->split_axes == 0;
}

bool dot_is_inner(const struct dot *d) {
  return d->m * d->n <= INNER_SUMS && d->k >= (int64_t)d->lanes * DOT_BLOCK && d->lanes <= 16 && is_contiguous(&d->a) &&
         is_contiguous(&d->b);
}

/* memories a, b, c: c[i] = the chain over block i of a and of b, for as many blocks as there are lanes. */
static const struct kern_fn *blocks_in_lanes(struct dot *d) {
  const quern_dtype dtypes[] = {d->acc, d->acc, d->acc};
  struct kern_fn *fn = kern_add_fn(d->job->kern, "dot_blocks", 3, dtypes, 0);
  if (fn == NULL) return NULL;
  struct kern_builder builder = {.kern = d->job->kern, .fn = fn}, *b = &builder;
  kern_id left = kern_mem(b, 0), right = kern_mem(b, 1), sums = kern_mem(b, 2), zero = kern_index(b, 0), x[16], y[16];
  kern_id acc = kern_var(b, kern_neutral(b, d->reduce, d->acc, d->lanes));
  kern_id k = kern_range(b, 0, DOT_BLOCK, d->lanes);
  for (int i = 0; i < d->lanes; i++) {
    kern_id at = kern_add(b, k, kern_index(b, (int64_t)i * DOT_BLOCK));
    x[i] = kern_load(b, left, at, d->lanes);
    y[i] = kern_load(b, right, at, d->lanes);
  }
  dot_transpose_square(b, d->lanes, x);
  dot_transpose_square(b, d->lanes, y);
  for (int i = 0; i < d->lanes; i++) kern_set(b, acc, dot_term(d, b, kern_get(b, acc), x[i], y[i]));
  kern_end(b);
  kern_store(b, sums, zero, kern_get(b, acc));
  return fn;
}

/* The variables of sum number `sum`: batch, row, column. */
static void set_sum(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id sum) {
  kern_values_set(values, DOT_BATCH, kern_idiv(b, sum, d->m * d->n), 1, KERN_NONE);
  kern_values_set(values, DOT_ROW, kern_idiv(b, kern_imod(b, sum, d->m * d->n), d->n), 1, KERN_NONE);
  kern_values_set(values, DOT_COL, kern_imod(b, sum, d->n), 1, KERN_NONE);
  if (d->split_axes != 0) dot_set(d, b, values, d->split_axes, DOT_COL, kern_imod(b, sum, d->n), 1, KERN_NONE);
}

/* A task: as many blocks as there are lanes; the last one of a sum has what is left over. */
static quern_status inner_blocks(struct dot *d, int64_t blocks, int work) {
  struct kern *kern = d->job->kern;
  const struct kern_fn *fn = blocks_in_lanes(d);
  int64_t lanes = d->lanes, groups = d->k / (lanes * DOT_BLOCK), tasks = sched_ceil(blocks, lanes);
  struct kern_builder builder = {.kern = kern,
                                 .fn = kern_add_phase(kern, KERN_FIXED_TASKS(d->batch * d->m * d->n * tasks))};
  struct kern_builder *b = &builder;
  struct kern_values *values;
  QUERN_TRY(dot_values(d, b, &values));
  kern_id task = kern_task(b), sum = kern_idiv(b, task, tasks), group = kern_imod(b, task, tasks),
          mem = kern_mem(b, work);
  kern_id sums = times(b, sum, blocks);
  set_sum(d, b, values, sum);
  kern_if(b, kern_bin(b, KERN_LT, group, kern_index(b, groups)));
  kern_values_enter(values);
  kern_values_set(values, DOT_TERM, times(b, group, lanes * DOT_BLOCK), 1, KERN_NONE);
  kern_id left = dot_view_mem(b, values, &d->a.view), right = dot_view_mem(b, values, &d->b.view);
  kern_id to = kern_at(b, mem, kern_add(b, sums, times(b, group, lanes)));
  kern_call_fn(b, fn, 3, (const kern_id[]){left, right, to}, 0, NULL);
  kern_values_leave(values);
  if (groups < tasks) {
    kern_else(b);
    kern_values_enter(values);
    kern_id block = kern_range(b, groups * lanes, blocks, 1), pc = times(b, block, DOT_BLOCK);
    kern_id hi = kern_min_i(b, kern_add(b, pc, kern_index(b, DOT_BLOCK)), d->k);
    kern_id chain = dot_chain(d, b, values, pc, hi);
    kern_store(b, mem, kern_add(b, sums, block), chain);
    kern_end(b);
    kern_values_leave(values);
  }
  kern_end(b);
  kern_values_free(values);
  return QUERN_STATUS_OK;
}

static quern_status inner_sums(struct dot *d, int64_t blocks, int work) {
  struct kern *kern = d->job->kern;
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(d->batch * d->m * d->n))};
  struct kern_builder *b = &builder;
  struct kern_values *values;
  QUERN_TRY(dot_values(d, b, &values));
  kern_id mem = kern_mem(b, work), first = times(b, kern_task(b), blocks);
  set_sum(d, b, values, kern_task(b));
  kern_id sum = kern_var(b, kern_load(b, mem, first, 1)), i = kern_range(b, 1, blocks, 1);
  kern_id next = kern_load(b, mem, kern_add(b, first, i), 1);
  kern_set(b, sum, kern_combine(b, d->reduce, kern_get(b, sum), next));
  kern_end(b);
  dot_finish(d, b, values, kern_get(b, sum), KERN_NONE);
  kern_values_free(values);
  return QUERN_STATUS_OK;
}

quern_status dot_inner(struct dot *d) {
  int64_t blocks = sched_ceil(d->k, DOT_BLOCK);
  int work = kern_add_mem(d->job->kern, d->acc, KERN_WORK, d->batch * d->m * d->n * blocks);
  QUERN_TRY(inner_blocks(d, blocks, work));
  return inner_sums(d, blocks, work);
}
