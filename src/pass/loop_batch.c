/* pass/loop_batch.c -- a value of an iteration, for all iterations at once
** in:    an expression of scanned sources and captures     out: the same of the whole sources, iterations along axis 0
** keeps: each element is computed from the same elements, sums in the same order
** tests: tests/pass/test_loops.c
*/
#include "pass/loops.h"
#include "quern/tensor.h"

struct batch {
  quern_context *ctx;
  int64_t trip;
  const struct ir_node *node;
  const struct loop_value *src;
};

static quern_tensor *make(const struct batch *b, int n_src, quern_tensor *const *src, const struct ir_attrs *attrs) {
  return ir_make(b->ctx, b->node->op, n_src, src, attrs);
}

/* t with an axis of size 1 before it. */
static quern_tensor *with_axis(quern_tensor *t) {
  int64_t dims[QUERN_MAX_RANK] = {1};
  memcpy(dims + 1, t->dims, (size_t)t->rank * sizeof *dims);
  return IR_MAKE(t->node->ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {t->rank + 1, dims}}), t);
}

/* The source for each iteration, whether they share it or not. */
static quern_tensor *each_of(const struct batch *b, int i) {
  quern_tensor *t = b->src[i].t;
  if (b->src[i].each) return t;
  int64_t dims[QUERN_MAX_RANK] = {b->trip};
  memcpy(dims + 1, t->dims, (size_t)t->rank * sizeof *dims);
  t = with_axis(t);
  return ir_is_poison(t) ? t : IR_MAKE(b->ctx, IR_BROADCAST, (&(struct ir_attrs){.shape = {t->rank, dims}}), t);
}

/* A list of one number for each axis, with one more in front. */
static struct ir_ints in_front(int64_t first, struct ir_ints list, int64_t *room) {
  room[0] = first;
  for (int i = 0; i < list.n; i++) room[1 + i] = list.at[i];
  return (struct ir_ints){list.n + 1, room};
}

/* A list of axes, all of them one further back. */
static struct ir_ints shifted(struct ir_ints list, int64_t *room) {
  for (int i = 0; i < list.n; i++) room[i] = list.at[i] + 1;
  return (struct ir_ints){list.n, room};
}

static quern_tensor *of_elements(const struct batch *b) {
  quern_tensor *src[3];
  for (int i = 0; i < b->node->n_src; i++) {
    src[i] = each_of(b, i);
    if (ir_is_poison(src[i])) return src[i];
  }
  return make(b, b->node->n_src, src, b->node->attrs);
}

static quern_tensor *moved(const struct batch *b) {
  int64_t room[3][QUERN_MAX_RANK + 1];
  const struct ir_attrs *old = b->node->attrs;
  struct ir_attrs attrs = *old;
  const quern_tensor *x = b->src[0].t;
  switch (b->node->op) {
  case IR_RESHAPE:
  case IR_BROADCAST: attrs.shape = in_front(b->trip, old->shape, room[0]); break;
  case IR_PERMUTE:
    (void)shifted(old->axes, room[1]);
    attrs.axes = in_front(0, (struct ir_ints){old->axes.n, room[1]}, room[0]);
    break;
  case IR_SLICE:
    attrs.lo = in_front(0, old->lo, room[0]);
    attrs.hi = in_front(x->dims[0], old->hi, room[1]);
    attrs.step = in_front(1, old->step, room[2]);
    break;
  case IR_PAD:
    attrs.lo = in_front(0, old->lo, room[0]);
    attrs.hi = in_front(0, old->hi, room[1]);
    attrs.mid = in_front(0, old->mid, room[2]);
    break;
  case IR_FLIP:
  case IR_REDUCE: attrs.axes = shifted(old->axes, room[0]); break;
  default: return NULL;
  }
  quern_tensor *src[2] = {b->src[0].t, b->node->n_src > 1 ? b->src[1].t : NULL};
  return make(b, b->node->n_src, src, &attrs);
}

/* The axis of iterations, where the contraction has left it, comes first. */
static quern_tensor *to_front(quern_tensor *y, int axis) {
  int64_t axes[QUERN_MAX_RANK];
  if (ir_is_poison(y) || axis == 0) return y;
  axes[0] = axis;
  for (int k = 0, n = 1; k < y->rank; k++)
    if (k != axis) axes[n++] = k;
  return IR_MAKE(y->node->ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {y->rank, axes}}), y);
}

/* An operand that all iterations share meets their rows as rows of one product. */
static quern_tensor *dot(const struct batch *b) {
  int64_t room[4][QUERN_MAX_RANK + 1];
  const struct ir_attrs *old = b->node->attrs;
  struct ir_attrs attrs = *old;
  bool a = b->src[0].each, c = b->src[1].each;
  if (a) attrs.a_batch = shifted(old->a_batch, room[0]), attrs.a_sum = shifted(old->a_sum, room[1]);
  if (c) attrs.b_batch = shifted(old->b_batch, room[2]), attrs.b_sum = shifted(old->b_sum, room[3]);
  if (a && c) {
    int64_t fronts[2][QUERN_MAX_RANK + 1];
    attrs.a_batch = in_front(0, attrs.a_batch, fronts[0]);
    attrs.b_batch = in_front(0, attrs.b_batch, fronts[1]);
    return make(b, 2, (quern_tensor *[]){b->src[0].t, b->src[1].t}, &attrs);
  }
  quern_tensor *y = make(b, 2, (quern_tensor *[]){b->src[0].t, b->src[1].t}, &attrs);
  int rows = b->node->src[0]->rank - old->a_sum.n; /* axes of the result that a has, its batch included */
  return to_front(y, a ? old->a_batch.n : rows);
}

static quern_tensor *concat(const struct batch *b) {
  struct ir_attrs attrs = *b->node->attrs;
  size_t bytes = (size_t)b->node->n_src * sizeof(quern_tensor *);
  quern_tensor **src = base_alloc(&b->ctx->heap, bytes), *y = NULL;
  if (src == NULL) return ir_fail_last(b->ctx);
  attrs.axis++;
  for (int i = 0; i < b->node->n_src && (y == NULL || !ir_is_poison(y)); i++) y = src[i] = each_of(b, i);
  if (!ir_is_poison(y)) y = make(b, b->node->n_src, src, &attrs);
  base_free(&b->ctx->heap, src, bytes);
  return y;
}

/* The node on sources that all iterations share. */
static quern_tensor *shared(const struct batch *b) {
  const struct ir_node *node = b->node;
  size_t bytes = (size_t)(node->n_src + 1) * sizeof(quern_tensor *);
  quern_tensor **src = base_alloc(&b->ctx->heap, bytes);
  if (src == NULL) return ir_fail_last(b->ctx);
  for (int i = 0; i < node->n_src; i++) src[i] = b->src[i].t;
  quern_tensor *y = make(b, node->n_src, src, node->attrs);
  base_free(&b->ctx->heap, src, bytes);
  return y;
}

/* Whether all sources of movement that come after the first are shared: what a PAD fills with. */
static bool moves_one(const struct batch *b) {
  for (int i = 1; i < b->node->n_src; i++)
    if (b->src[i].each) return false;
  return b->node->n_src > 0 && b->src[0].each;
}

struct loop_value loop_batch_node(quern_context *ctx, int64_t trip, const struct ir_node *node,
                                  const struct loop_value *src) {
  struct batch b = {ctx, trip, node, src};
  struct loop_value y = {NULL, false};
  if (node->n_out != 1) return y;
  for (int i = 0; i < node->n_src; i++) {
    if (src[i].t == NULL) return y;
    y.each |= src[i].each;
  }
  if (y.each && node->out[0].rank >= QUERN_MAX_RANK) return y;
  for (int i = 0; i < node->n_src && y.each; i++)
    if (src[i].t->rank >= QUERN_MAX_RANK) return y;
  if (!y.each)
    y.t = shared(&b);
  else if (pass_is_elementwise(node) && node->n_src <= 3)
    y.t = of_elements(&b);
  else if (node->op == IR_DOT)
    y.t = dot(&b);
  else if (node->op == IR_CONCAT)
    y.t = concat(&b);
  else if (moves_one(&b))
    y.t = moved(&b);
  return y;
}

/* What stands outside of the loop for a leaf of the iteration. */
static struct loop_value of_leaf(const struct loop_edit *edit, const struct ir_node *leaf) {
  const struct loop_operand *operand = loop_edit_find(edit, leaf);
  if (leaf == edit->index->node)
    return (struct loop_value){quern_iota(edit->ctx, QUERN_DTYPE_I64, 1, &edit->trip, 0), true};
  if (operand == NULL) return (struct loop_value){(quern_tensor *)&leaf->out[0], false};
  if (operand->kind == LOOP_CARRY) return (struct loop_value){NULL, false};
  return (struct loop_value){operand->source, operand->kind == LOOP_SCANNED};
}

static quern_status batch_all(const struct loop_edit *edit, const struct ir_order *order, struct loop_value *now,
                              struct loop_value *src) {
  for (size_t i = 0; i < order->n; i++) {
    const struct ir_node *node = order->at[i];
    for (int k = 0; k < node->n_src; k++) src[k] = now[ir_order_find(order, node->src[k]->node)];
    now[i] = node->n_src == 0 ? of_leaf(edit, node) : loop_batch_node(edit->ctx, edit->trip, node, src);
    if (now[i].t == NULL) break; /* what is made of it has none either */
    if (ir_is_poison(now[i].t)) return ir_poison_error(edit->ctx);
  }
  return QUERN_STATUS_OK;
}

quern_status loop_batch(const struct loop_edit *edit, quern_tensor *value, struct loop_value *out) {
  struct ir_order order;
  size_t most = 1;
  *out = (struct loop_value){NULL, false};
  QUERN_TRY(ir_topo(edit->ctx, 1, &value, &order));
  for (size_t i = 0; i < order.n; i++) most = BASE_MAX(most, (size_t)order.at[i]->n_src);
  size_t bytes = (order.n + most) * sizeof *out;
  struct loop_value *now = base_alloc_zero(edit->heap, bytes);
  quern_status status = now != NULL ? batch_all(edit, &order, now, now + order.n) : QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK) *out = now[order.n - 1];
  base_free(edit->heap, now, bytes);
  ir_order_fini(edit->ctx, &order);
  return status;
}
