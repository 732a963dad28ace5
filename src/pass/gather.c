/* pass/gather.c -- picking one element of a row, and putting one there, become part of computing the row
** Gathers of what rows compute move down to what is in memory.
** gather(f(a, b), i) = f(gather(a, i), gather(b, i)) where i is inside, else 0: the elements that are picked are
** computed from elements that are picked, and nothing needs to be written to be picked from. So -log_softmax(x)[label] of
** a cross-entropy is computed with the row it belongs to.
** A scatter with one index per row is a choice: scatter(a, i, u)[c] = a[c] + u where c = i, else a[c]. So is the gradient
** of such a gather, and it needs no kernel of its own.
** keeps: every bit
** tests: tests/pass/test_passes.c, tests/pass/test_fuse.c (cross-entropy)
*/
#include "pass/pass_int.h"

enum { MOST_NODES = 12, MOST_DEPTH = 6 };

/* What is gathered, and how. */
struct gather {
  quern_context *ctx;
  const struct ir_node *node;
  quern_tensor *index;
  int left; /* nodes that may still be made */
};

/* True when t is computed from reductions that are stretched along the gathered axis, in a few elementwise steps. */
static bool meets_reduction(const quern_tensor *t, int64_t axis, int depth) {
  const struct ir_node *node = t->node;
  if (depth == 0) return false;
  if (node->op == IR_BROADCAST && node->src[0]->dims[axis] == 1 && t->dims[axis] > 1) {
    const struct ir_node *from = node->src[0]->node;
    while (from->op == IR_RESHAPE || from->op == IR_PERMUTE || (pass_is_elementwise(from) && depth-- > 0))
      from = from->src[0]->node;
    return from->op == IR_REDUCE;
  }
  if (!pass_is_elementwise(node)) return false;
  for (int i = 0; i < node->n_src; i++) {
    if (meets_reduction(node->src[i], axis, depth - 1)) return true;
  }
  return false;
}

/* The result where x is a stretched tensor: the same elements for every index. */
static quern_tensor *of_stretched(const struct gather *g, const quern_tensor *x) {
  const quern_tensor *y = &g->node->out[0], *from = x->node->src[0];
  int64_t dims[QUERN_MAX_RANK], axis = g->node->attrs->axis;
  int n_index = g->index->rank - (int)g->node->attrs->batch;
  for (int k = 0; k < y->rank; k++) {
    bool of_index = k >= axis && k < axis + n_index;
    dims[k] = of_index ? 1 : from->dims[k < axis ? k : k - n_index + 1];
  }
  quern_tensor *seen = IR_MAKE(g->ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {y->rank, dims}}), x->node->src[0]);
  return IR_MAKE(g->ctx, IR_BROADCAST, (&(struct ir_attrs){.shape = {y->rank, y->dims}}), seen);
}

/* The gathered x where the index is inside; what it is outside does not matter. Recursion of at most MOST_DEPTH. */
static quern_tensor *gathered(struct gather *g, quern_tensor *x) {
  int64_t axis = g->node->attrs->axis;
  struct ir_node *node = x->node;
  if (--g->left < 0) return NULL;
  if (node->op == IR_BROADCAST && node->src[0]->dims[axis] == 1) return of_stretched(g, x);
  if (!pass_is_widening(node) && (!pass_is_elementwise(node) || !meets_reduction(x, axis, MOST_DEPTH)))
    return IR_MAKE(g->ctx, IR_GATHER, g->node->attrs, x, g->index);
  quern_tensor *src[3];
  for (int i = 0; i < node->n_src; i++) {
    src[i] = gathered(g, node->src[i]);
    if (src[i] == NULL) return NULL;
  }
  return ir_make(g->ctx, node->op, node->n_src, src, node->attrs);
}

/* x in the last place of the shape, stretched over the axes that the index does not have. */
static quern_tensor *index_like(const struct gather *g, quern_tensor *x) {
  const quern_tensor *y = &g->node->out[0];
  int batch = (int)g->node->attrs->batch, axis = (int)g->node->attrs->axis, n_index = g->index->rank - batch;
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < y->rank; k++) dims[k] = k < batch || (k >= axis && k < axis + n_index) ? y->dims[k] : 1;
  quern_tensor *seen = IR_MAKE(g->ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {y->rank, dims}}), x);
  return IR_MAKE(g->ctx, IR_BROADCAST, (&(struct ir_attrs){.shape = {y->rank, y->dims}}), seen);
}

static quern_tensor *filled(const struct gather *g, quern_tensor *one, const quern_tensor *like) {
  static const int64_t ones[QUERN_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  quern_tensor *seen = IR_MAKE(g->ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {like->rank, ones}}), one);
  return IR_MAKE(g->ctx, IR_BROADCAST, (&(struct ir_attrs){.shape = {like->rank, like->dims}}), seen);
}

quern_tensor *pass_move_gather(struct ir_node *node, quern_tensor *const *src) {
  const quern_tensor *y = &node->out[0];
  int64_t axis = node->attrs->axis;
  if (4 * ir_count(y) > ir_count(src[0]) || !meets_reduction(src[0], axis, MOST_DEPTH)) return NULL;
  struct gather g = {.ctx = node->ctx, .node = node, .index = src[1], .left = MOST_NODES};
  quern_tensor *picked = gathered(&g, src[0]);
  if (picked == NULL || ir_is_poison(picked)) return picked;
  quern_tensor *index = src[1]; /* as i64: every class has a number there, and what is too large is negative */
  if (index->dtype != QUERN_DTYPE_I64)
    index = IR_MAKE(g.ctx, IR_CAST, (&(struct ir_attrs){.dtype = QUERN_DTYPE_I64}), index);
  quern_tensor *zero = filled(&g, ir_const_int(g.ctx, QUERN_DTYPE_I64, 0), src[1]);
  quern_tensor *last = filled(&g, ir_const_int(g.ctx, QUERN_DTYPE_I64, src[0]->dims[axis] - 1), src[1]);
  quern_tensor *above = IR_MAKE(g.ctx, IR_LE, NULL, zero, index), *below = IR_MAKE(g.ctx, IR_LE, NULL, index, last);
  quern_tensor *inside = IR_MAKE(g.ctx, IR_AND, NULL, above, below);
  quern_tensor *none = filled(&g, ir_const(g.ctx, y->dtype, 0), y);
  return IR_MAKE(g.ctx, IR_SELECT, NULL, index_like(&g, inside), picked, none);
}

quern_tensor *pass_move_scatter(struct ir_node *node, quern_tensor *const *src) {
  static const enum ir_op ops[IR_REDUCE_COUNT] = {
      [IR_SUM] = IR_ADD, [IR_REDUCE_MAX] = IR_MAX, [IR_REDUCE_MIN] = IR_MIN};
  quern_context *ctx = node->ctx;
  const quern_tensor *y = &node->out[0];
  int batch = (int)node->attrs->batch, axis = (int)node->attrs->axis;
  quern_tensor *index = src[1], *update = src[2];
  for (int k = batch; k < index->rank; k++)
    if (index->dims[k] != 1) return NULL;
  int64_t dims[QUERN_MAX_RANK], of_index[QUERN_MAX_RANK];
  for (int k = 0; k < y->rank; k++) {
    dims[k] = k == axis ? 1 : y->dims[k];
    of_index[k] = k < batch ? y->dims[k] : 1;
  }
  struct ir_ints shape = {y->rank, y->dims};
  if (index->dtype != QUERN_DTYPE_I64)
    index = IR_MAKE(ctx, IR_CAST, (&(struct ir_attrs){.dtype = QUERN_DTYPE_I64}), index);
  index = IR_MAKE(ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {y->rank, of_index}}), index);
  index = IR_MAKE(ctx, IR_BROADCAST, (&(struct ir_attrs){.shape = shape}), index);
  update = IR_MAKE(ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {y->rank, dims}}), update);
  update = IR_MAKE(ctx, IR_BROADCAST, (&(struct ir_attrs){.shape = shape}), update);
  struct ir_attrs counted = {.dtype = QUERN_DTYPE_I64, .shape = shape, .axis = axis};
  quern_tensor *here = IR_MAKE(ctx, IR_EQ, NULL, ir_make(ctx, IR_IOTA, 0, NULL, &counted), index);
  if (node->attrs->reduce != IR_SET) update = IR_MAKE(ctx, ops[node->attrs->reduce], NULL, src[0], update);
  return IR_MAKE(ctx, IR_SELECT, NULL, here, update, src[0]);
}
