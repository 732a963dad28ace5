/* sched/dot_scalar.c -- a contraction as scalar loops: the reference that micro-kernels are compared with
** keeps: the order of dot_micro.c: blocks of terms, each a chain, added from the first to the last
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

static kern_id operand(const struct dot *d, struct kern_builder *b, struct kern_values *values,
                       const struct dot_operand *side) {
  return kern_cast(b, kern_values_get(values, side->tensor, side->tensor->rank, side->at), d->acc);
}

/* Sets an axis for both operands and the outs. */
static void set(const struct dot *d, struct kern_builder *b, struct kern_values *values, int axis, kern_id value) {
  unsigned cut = d->a.split_axes | d->b.split_axes | d->split_axes;
  kern_values_set(values, axis, value, 1, KERN_NONE);
  if ((cut >> axis & 1) != 0) dot_set(d, b, values, cut, axis, value, 1, KERN_NONE);
}

/* The result of no terms. A float without infinities has its largest number instead. */
static kern_id nothing(const struct dot *d, struct kern_builder *b) {
  quern_dtype dtype = d->node->out[0].dtype;
  bool least = d->reduce == IR_REDUCE_MAX, greatest = d->reduce == IR_REDUCE_MIN;
  if (d->k == 0 && (least || greatest) && base_dtype_is(dtype, BASE_FLOAT) && !base_dtypes[dtype].inf)
    return kern_const_f(b, d->acc, 1, least ? -448 : 448);
  return d->k == 0 && d->reduce == IR_SUM ? kern_const_bits(b, d->acc, 1, 0) : kern_neutral(b, d->reduce, d->acc, 1);
}

kern_id dot_chain(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id lo, kern_id hi) {
  kern_id acc = kern_var(b, nothing(d, b)), k = kern_for(b, lo, hi, 1);
  kern_values_enter(values);
  set(d, b, values, DOT_TERM, k);
  kern_id x = operand(d, b, values, &d->a), y = operand(d, b, values, &d->b);
  kern_set(b, acc, dot_term(d, b, kern_get(b, acc), x, y));
  kern_values_leave(values);
  kern_end(b);
  return kern_get(b, acc);
}

static kern_id sum_of(struct dot *d, struct kern_builder *b, struct kern_values *values) {
  kern_id terms = kern_index(b, d->k), block = kern_index(b, DOT_BLOCK);
  if (d->k <= DOT_BLOCK) return dot_chain(d, b, values, kern_index(b, 0), terms);
  kern_id total = kern_var(b, dot_chain(d, b, values, kern_index(b, 0), block)),
          pc = kern_for(b, block, terms, DOT_BLOCK);
  kern_id part = dot_chain(d, b, values, pc, kern_min(b, kern_add(b, pc, block), terms));
  kern_set(b, total, kern_combine(b, d->reduce, kern_get(b, total), part));
  kern_end(b);
  return kern_get(b, total);
}

/* A task is a row, or where there is a thread for each, an element. */
quern_status dot_scalar(struct dot *d) {
  struct kern *kern = d->job->kern;
  bool single = d->job->target->gpu;
  struct kern_tasks tasks = KERN_FIXED_TASKS(d->batch * d->m * (single ? d->n : 1));
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, tasks)}, *b = &builder;
  struct kern_values *values = NULL;
  quern_status status = dot_values(d, b, &values);
  if (status == QUERN_STATUS_OK) {
    kern_id task = kern_task(b), row = single ? kern_idiv(b, task, d->n) : task;
    kern_values_set(values, DOT_BATCH, kern_idiv(b, row, d->m), 1, KERN_NONE);
    set(d, b, values, DOT_ROW, kern_imod(b, row, d->m));
    kern_id col = single ? kern_imod(b, task, d->n) : kern_range(b, 0, d->n, 1);
    kern_values_enter(values);
    set(d, b, values, DOT_COL, col);
    dot_finish(d, b, values, sum_of(d, b, values), KERN_NONE);
    kern_values_leave(values);
    if (!single) kern_end(b);
  }
  kern_values_free(values);
  return status;
}
