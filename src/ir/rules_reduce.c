/* ir/rules_reduce.c -- rewrite rules of reductions, scans and contractions
** keeps: exact rules leave the order in which floats are added or multiplied as it is
** see:   rules.def                             tests: tests/ir/test_rules.c, tests/prop/
*/
#include "ir/rules.h"

static bool is_choice(enum ir_reduce kind) { return kind == IR_REDUCE_MAX || kind == IR_REDUCE_MIN; }

/* True when terms may be taken in any order and grouping. */
static bool is_free(const struct ir_node *node) {
  return is_choice(node->attrs->reduce) || base_dtype_is(node->out[0].dtype, BASE_INT);
}

static quern_tensor *make_reduce(quern_tensor *x, enum ir_reduce kind, unsigned axes) {
  if (ir_is_poison(x)) return x;
  int64_t list[QUERN_MAX_RANK];
  int n = 0;
  for (int k = 0; k < x->rank; k++) {
    if ((axes >> k & 1) != 0) list[n++] = k;
  }
  return IR_MAKE(x->node->ctx, IR_REDUCE, (&(struct ir_attrs){.reduce = kind, .axes = {n, list}}), x);
}

quern_tensor *ir_rule_reduce_unit(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  struct ir_ints axes = node->attrs->axes;
  for (int i = 0; i < axes.n; i++) {
    if (node->src[0]->dims[axes.at[i]] != 1) return NULL;
  }
  return ir_reshape_to(node->src[0], node->out[0].rank, node->out[0].dims);
}

/* ---- reduce of reduce -------------------------------------------------------------------------------- */

static quern_tensor *join_reduces(struct ir_node *node) {
  const struct ir_node *in = node->src[0]->node;
  if (in->op != IR_REDUCE || in->attrs->reduce != node->attrs->reduce) return NULL;
  unsigned first = ir_axes_set(in->attrs->axes), second = ir_axes_set(node->attrs->axes), both = first;
  for (int k = 0, left = 0; k < in->src[0]->rank; k++) {
    if ((first >> k & 1) != 0) continue;
    if ((second >> left++ & 1) != 0) both |= 1u << k;
  }
  return make_reduce(in->src[0], node->attrs->reduce, both);
}

quern_tensor *ir_rule_reduce_reduce(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  return is_free(node) ? join_reduces(node) : NULL;
}

quern_tensor *ir_rule_reduce_float_reduce(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  return is_free(node) ? NULL : join_reduces(node);
}

/* ---- reduce of movement ------------------------------------------------------------------------------ */

quern_tensor *ir_rule_reduce_permute(quern_context *ctx, struct ir_node *node) {
  const struct ir_node *in = node->src[0]->node;
  if (in->op != IR_PERMUTE) return NULL;
  struct ir_ints axes = node->attrs->axes, order = in->attrs->axes;
  unsigned gone = 0;
  for (int i = 0; i < axes.n; i++) {
    if (!is_free(node) && i > 0 && order.at[axes.at[i]] < order.at[axes.at[i - 1]]) return NULL;
    gone |= 1u << order.at[axes.at[i]];
  }
  int64_t left[QUERN_MAX_RANK], places[QUERN_MAX_RANK]; /* places[k]: where axis k of x is after the reduction */
  int n = 0, rank = 0;
  for (int k = 0; k < order.n; k++) {
    if ((gone >> k & 1) == 0) places[k] = rank++;
  }
  for (int k = 0; k < order.n; k++) {
    if ((gone >> order.at[k] & 1) == 0) left[n++] = places[order.at[k]];
  }
  quern_tensor *y = make_reduce(in->src[0], node->attrs->reduce, gone);
  return IR_MAKE(ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {n, left}}), y);
}

/* The reduction without the copies that a broadcast makes along reduced axes, and how many copies of each
** term there were; NULL when there is no such axis of at least 2. */
static quern_tensor *without_copies(struct ir_node *node, int64_t *copies) {
  const struct ir_node *in = node->src[0]->node;
  if (in->op != IR_BROADCAST) return NULL;
  quern_tensor *x = in->src[0];
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) dims[k] = in->out[0].dims[k];
  *copies = 1;
  struct ir_ints axes = node->attrs->axes;
  for (int i = 0; i < axes.n; i++) {
    int64_t *dim = &dims[axes.at[i]];
    if (x->dims[axes.at[i]] != 1 || *dim < 2) continue;
    if (__builtin_mul_overflow(*copies, *dim, copies)) return NULL;
    *dim = 1;
  }
  return *copies == 1 ? NULL : make_reduce(ir_broadcast_to(x, x->rank, dims), node->attrs->reduce, ir_axes_set(axes));
}

quern_tensor *ir_rule_reduce_broadcast(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  int64_t copies;
  return is_choice(node->attrs->reduce) ? without_copies(node, &copies) : NULL;
}

quern_tensor *ir_rule_sum_broadcast(quern_context *ctx, struct ir_node *node) {
  const quern_tensor *y = &node->out[0];
  if (node->attrs->reduce != IR_SUM || !base_dtype_is(y->dtype, BASE_INT)) return NULL;
  int64_t copies;
  quern_tensor *one = without_copies(node, &copies);
  if (one == NULL) return NULL;
  unsigned char bits[8] = {0};
  base_store_int(y->dtype, bits, 0, (uint64_t)copies);
  return IR_MAKE(ctx, IR_MUL, NULL, one, ir_full(ctx, y->dtype, y->rank, y->dims, bits));
}

quern_tensor *ir_rule_sum_float_broadcast(quern_context *ctx, struct ir_node *node) {
  const quern_tensor *y = &node->out[0];
  if (node->attrs->reduce != IR_SUM || !base_dtype_is(y->dtype, BASE_FLOAT)) return NULL;
  int64_t copies;
  quern_tensor *one = without_copies(node, &copies);
  if (one == NULL) return NULL;
  unsigned char bits[8] = {0};
  base_store_float(y->dtype, bits, 0, (double)copies);
  if (base_load_float(y->dtype, bits, 0) != (double)copies) return NULL;
  return IR_MAKE(ctx, IR_MUL, NULL, one, ir_full(ctx, y->dtype, y->rank, y->dims, bits));
}

quern_tensor *ir_rule_reduce_neg(quern_context *ctx, struct ir_node *node) {
  const struct ir_node *in = node->src[0]->node;
  if (in->op != IR_NEG || !is_choice(node->attrs->reduce) || !base_dtype_is(node->out[0].dtype, BASE_FLOAT))
    return NULL;
  enum ir_reduce other = node->attrs->reduce == IR_REDUCE_MAX ? IR_REDUCE_MIN : IR_REDUCE_MAX;
  return IR_MAKE(ctx, IR_NEG, NULL, make_reduce(in->src[0], other, ir_axes_set(node->attrs->axes)));
}

/* ---- scan, argreduce --------------------------------------------------------------------------------- */

quern_tensor *ir_rule_scan_unit(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  return node->out[0].dims[node->attrs->axis] == 1 ? node->src[0] : NULL;
}

quern_tensor *ir_rule_argreduce_unit(quern_context *ctx, struct ir_node *node) {
  if (node->src[0]->dims[node->attrs->axis] != 1) return NULL;
  const unsigned char zero[8] = {0};
  return ir_full(ctx, QUERN_DTYPE_I64, node->out[0].rank, node->out[0].dims, zero);
}

/* ---- dot --------------------------------------------------------------------------------------------- */

/* The tensor under a permute of one operand, and batch and sum in its axes; NULL when there is no permute
** or the axes left would change their order. */
static quern_tensor *without_permute(const quern_tensor *t, struct ir_ints batch, struct ir_ints sum,
                                     int64_t *new_batch, int64_t *new_sum) {
  if (t->node->op != IR_PERMUTE) return NULL;
  struct ir_ints order = t->node->attrs->axes;
  unsigned used = ir_axes_set(batch) | ir_axes_set(sum);
  int64_t last = -1;
  for (int k = 0; k < order.n; k++) {
    if ((used >> k & 1) != 0) continue;
    if (order.at[k] < last) return NULL;
    last = order.at[k];
  }
  for (int i = 0; i < batch.n; i++) new_batch[i] = order.at[batch.at[i]];
  for (int i = 0; i < sum.n; i++) new_sum[i] = order.at[sum.at[i]];
  return t->node->src[0];
}

quern_tensor *ir_rule_dot_permute(quern_context *ctx, struct ir_node *node) {
  struct ir_attrs attrs = *node->attrs;
  int64_t batch[2][QUERN_MAX_RANK], sum[2][QUERN_MAX_RANK];
  quern_tensor *a = without_permute(node->src[0], attrs.a_batch, attrs.a_sum, batch[0], sum[0]);
  quern_tensor *b = without_permute(node->src[1], attrs.b_batch, attrs.b_sum, batch[1], sum[1]);
  if (a == NULL && b == NULL) return NULL;
  if (a != NULL) attrs.a_batch.at = batch[0], attrs.a_sum.at = sum[0];
  if (b != NULL) attrs.b_batch.at = batch[1], attrs.b_sum.at = sum[1];
  return IR_MAKE(ctx, IR_DOT, &attrs, a != NULL ? a : node->src[0], b != NULL ? b : node->src[1]);
}

quern_tensor *ir_rule_dot_neg(quern_context *ctx, struct ir_node *node) {
  const struct ir_node *a = node->src[0]->node, *b = node->src[1]->node;
  if (node->attrs->combine != IR_COMBINE_MUL || a->op != IR_NEG || b->op != IR_NEG) return NULL;
  return IR_MAKE(ctx, IR_DOT, node->attrs, a->src[0], b->src[0]);
}
