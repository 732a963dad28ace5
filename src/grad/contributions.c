/* grad/contributions.c -- the sum of two contributions to one gradient
** Slices of a tensor have gradients that are zero outside of them, rows taken from a table one that is zero but for those rows.
** Adding such zeros costs a pass over the whole tensor, so neighboring slices are put side by side, and rows are added
** where they belong. Where nothing of the kind applies the sum is quern_add.
** tests: tests/grad/test_contributions.c
*/
#include "grad/grad_int.h"

/* d = its source amid zeros, one after another. */
static bool is_padded(const quern_tensor *d) {
  if (d->node->op != IR_PAD || !ir_is_const(d->node->src[1], 0)) return false;
  for (int k = 0; k < d->rank; k++) {
    const struct ir_attrs *pad = d->node->attrs;
    if (pad->mid.at[k] != 0 || pad->lo.at[k] < 0 || pad->hi.at[k] < 0) return false;
  }
  return true;
}

/* The axis along which x ends where y begins, when they lie alike along all others; else -1. */
static int axis_of_neighbors(const quern_tensor *x, const quern_tensor *y) {
  int axis = -1;
  for (int k = 0; k < x->rank; k++) {
    const struct ir_attrs *a = x->node->attrs, *b = y->node->attrs;
    if (a->lo.at[k] == b->lo.at[k] && a->hi.at[k] == b->hi.at[k]) continue;
    if (axis >= 0 || a->lo.at[k] + x->node->src[0]->dims[k] != b->lo.at[k]) return -1;
    axis = k;
  }
  return axis;
}

static quern_tensor *side_by_side(quern_tensor *x, quern_tensor *y, int axis) {
  int64_t lo[QUERN_MAX_RANK], hi[QUERN_MAX_RANK], mid[QUERN_MAX_RANK] = {0};
  bool whole = true;
  for (int k = 0; k < x->rank; k++) {
    lo[k] = x->node->attrs->lo.at[k];
    hi[k] = y->node->attrs->hi.at[k];
    whole = whole && lo[k] == 0 && hi[k] == 0;
  }
  struct ir_attrs pad = {.lo = {x->rank, lo}, .hi = {x->rank, hi}, .mid = {x->rank, mid}};
  quern_tensor *both = quern_concat(2, (quern_tensor *[]){x->node->src[0], y->node->src[0]}, axis);
  if (ir_is_poison(both) || whole) return both;
  return IR_MAKE(both->node->ctx, IR_PAD, &pad, both, x->node->src[1]);
}

/* d = rows of its updates, added to zeros. */
static bool is_scattered(const quern_tensor *d) {
  return d->node->op == IR_SCATTER && d->node->attrs->reduce == IR_SUM && ir_is_const(d->node->src[0], 0);
}

quern_tensor *grad_add_contributions(quern_tensor *sum, quern_tensor *d) {
  if (ir_is_poison(sum) || ir_is_poison(d) || !ir_same_type(sum, d)) return quern_add(sum, d);
  if (is_scattered(d)) return grad_again(d->node, 0, sum);
  if (is_scattered(sum)) return grad_again(sum->node, 0, d);
  if (!is_padded(sum) || !is_padded(d)) return quern_add(sum, d);
  int axis = axis_of_neighbors(sum, d);
  if (axis >= 0) return side_by_side(sum, d, axis);
  axis = axis_of_neighbors(d, sum);
  return axis >= 0 ? side_by_side(d, sum, axis) : quern_add(sum, d);
}
