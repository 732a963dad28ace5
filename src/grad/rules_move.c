/* grad/rules_move.c -- derivatives of movement ops: all linear, so jvp is the op again and vjp its transpose
** tests: querntest --mode grad, jvp, grad2
*/
#include <string.h>

#include "grad/grad.h"

#define NODE g->node
#define ATTRS g->node->attrs
#define SRC g->node->src
#define DY g->dy[0]

quern_tensor *grad_again(const struct ir_node *node, int i, quern_tensor *t) {
  quern_tensor *src[2 * QUERN_MAX_RANK];
  QUERN_ASSERT(node->n_src <= (int)BASE_COUNT(src));
  for (int k = 0; k < node->n_src; k++) src[k] = k == i ? t : node->src[k];
  return ir_make(node->ctx, node->op, node->n_src, src, node->attrs);
}

#define LINEAR(NAME)                                                                                                   \
  quern_status grad_jvp_##NAME(const struct grad_fore *g) {                                                            \
    g->ty[0] = grad_again(NODE, 0, g->tx[0]);                                                                          \
    return QUERN_STATUS_OK;                                                                                            \
  }
LINEAR(RESHAPE)
LINEAR(PERMUTE)
LINEAR(BROADCAST)
LINEAR(SLICE)
LINEAR(FLIP)
LINEAR(SLICE_AT)
LINEAR(WINDOW)
LINEAR(COL2IM)
LINEAR(GATHER)

quern_status grad_vjp_RESHAPE(const struct grad_back *g) {
  g->dx[0] = quern_reshape(DY, SRC[0]->rank, SRC[0]->dims);
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_PERMUTE(const struct grad_back *g) {
  int64_t inverse[QUERN_MAX_RANK];
  for (int k = 0; k < ATTRS->axes.n; k++) inverse[ATTRS->axes.at[k]] = k;
  g->dx[0] = quern_permute(DY, ATTRS->axes.n, inverse);
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_BROADCAST(const struct grad_back *g) {
  g->dx[0] = tensor_unbroadcast(DY, SRC[0]);
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_FLIP(const struct grad_back *g) {
  g->dx[0] = grad_again(NODE, 0, DY);
  return QUERN_STATUS_OK;
}

/* The fill's gradient is the sum over what it filled. */
quern_status grad_vjp_PAD(const struct grad_back *g) {
  const quern_tensor *x = SRC[0];
  int64_t hi[QUERN_MAX_RANK], step[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) {
    step[k] = ATTRS->mid.at[k] + 1;
    hi[k] = ATTRS->lo.at[k] + (x->dims[k] > 0 ? (x->dims[k] - 1) * step[k] + 1 : 0);
  }
  if (g->need[0]) {
    struct ir_attrs slice = {.lo = ATTRS->lo, .hi = {x->rank, hi}, .step = {x->rank, step}};
    g->dx[0] = IR_MAKE(g->ctx, IR_SLICE, &slice, DY);
  }
  if (g->need[1]) {
    quern_tensor *kept = quern_zeros(g->ctx, QUERN_DTYPE_BOOL, x->rank, x->dims);
    quern_tensor *filled = IR_MAKE(g->ctx, IR_PAD, ATTRS, kept, ir_const(g->ctx, QUERN_DTYPE_BOOL, 1));
    g->dx[1] = quern_sum(quern_where(filled, DY, quern_zeros_like(DY)), QUERN_ALL, false);
  }
  return QUERN_STATUS_OK;
}
quern_status grad_jvp_PAD(const struct grad_fore *g) {
  quern_tensor *tx = grad_or_zero(g->tx[0], SRC[0]), *fill = grad_or_zero(g->tx[1], SRC[1]);
  g->ty[0] = IR_MAKE(g->ctx, IR_PAD, ATTRS, tx, fill);
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_SLICE(const struct grad_back *g) {
  const quern_tensor *x = SRC[0], *y = &NODE->out[0];
  int64_t lo[QUERN_MAX_RANK], hi[QUERN_MAX_RANK], mid[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) {
    int64_t step = ATTRS->step.at[k], n = y->dims[k];
    lo[k] = n > 0 ? ATTRS->lo.at[k] : 0;
    mid[k] = step - 1;
    hi[k] = x->dims[k] - lo[k] - (n > 0 ? (n - 1) * step + 1 : 0);
  }
  struct ir_attrs pad = {.lo = {x->rank, lo}, .hi = {x->rank, hi}, .mid = {x->rank, mid}};
  g->dx[0] = IR_MAKE(g->ctx, IR_PAD, &pad, DY, ir_const(g->ctx, x->dtype, 0));
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_CONCAT(const struct grad_back *g) {
  int axis = (int)ATTRS->axis;
  int64_t at = 0;
  for (int i = 0; i < NODE->n_src; i++) {
    int64_t end = at + SRC[i]->dims[axis];
    if (g->need[i]) g->dx[i] = quern_slice(DY, axis, at, end, 1);
    at = end;
  }
  return QUERN_STATUS_OK;
}
quern_status grad_jvp_CONCAT(const struct grad_fore *g) {
  size_t bytes = (size_t)NODE->n_src * sizeof(quern_tensor *);
  quern_tensor **parts = base_alloc(&g->ctx->heap, bytes);
  if (parts == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < NODE->n_src; i++) parts[i] = grad_or_zero(g->tx[i], SRC[i]);
  g->ty[0] = ir_make(g->ctx, IR_CONCAT, NODE->n_src, parts, ATTRS);
  base_free(&g->ctx->heap, parts, bytes);
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_SLICE_AT(const struct grad_back *g) {
  g->dx[0] = quern_update_at(quern_zeros_like(SRC[0]), DY, SRC[0]->rank, SRC + 1);
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_UPDATE_AT(const struct grad_back *g) {
  const quern_tensor *u = SRC[1];
  if (g->need[0]) g->dx[0] = quern_update_at(DY, quern_zeros_like(SRC[1]), u->rank, SRC + 2);
  if (g->need[1]) g->dx[1] = quern_slice_at(DY, u->rank, SRC + 2, u->dims);
  return QUERN_STATUS_OK;
}
quern_status grad_jvp_UPDATE_AT(const struct grad_fore *g) {
  quern_tensor *tx = grad_or_zero(g->tx[0], SRC[0]);
  g->ty[0] = quern_update_at(tx, grad_or_zero(g->tx[1], SRC[1]), SRC[1]->rank, SRC + 2);
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_WINDOW(const struct grad_back *g) {
  struct ir_attrs fold = {
      .shape = {SRC[0]->rank, SRC[0]->dims}, .axes = ATTRS->axes, .step = ATTRS->step, .dilate = ATTRS->dilate};
  g->dx[0] = IR_MAKE(g->ctx, IR_COL2IM, &fold, DY);
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_COL2IM(const struct grad_back *g) {
  struct ir_attrs window = {.axes = ATTRS->axes,
                            .size = {ATTRS->axes.n, SRC[0]->dims + ATTRS->shape.n},
                            .step = ATTRS->step,
                            .dilate = ATTRS->dilate};
  g->dx[0] = IR_MAKE(g->ctx, IR_WINDOW, &window, DY);
  return QUERN_STATUS_OK;
}

/* ---- gather and scatter --------------------------------------------------------------------------------------------- */

static quern_tensor *gather(const struct ir_node *node, quern_tensor *x, quern_tensor *index) {
  return IR_MAKE(node->ctx, IR_GATHER, (&(struct ir_attrs){.axis = node->attrs->axis, .batch = node->attrs->batch}), x,
                 index);
}

static quern_tensor *scatter(const struct ir_node *node, quern_tensor *x, quern_tensor *index, quern_tensor *u,
                             enum ir_reduce reduce) {
  struct ir_attrs attrs = {.axis = node->attrs->axis, .batch = node->attrs->batch, .reduce = reduce};
  return IR_MAKE(node->ctx, IR_SCATTER, &attrs, x, index, u);
}

quern_status grad_vjp_GATHER(const struct grad_back *g) {
  g->dx[0] = scatter(NODE, quern_zeros_like(SRC[0]), SRC[1], DY, IR_SUM);
  return QUERN_STATUS_OK;
}

/* Where each side's elements stand in the result: of u, as a mask in u's shape; of x, in x's shape. With `set` the last update
** of an element counts; with max and min, all that equal the result, and share counts how many those are. */
struct winners {
  quern_tensor *of_x, *of_u; /* bool */
  quern_tensor *share;       /* NULL with set */
};

static struct winners find_winners(const struct ir_node *n) {
  quern_tensor *x = n->src[0], *index = n->src[1], *u = n->src[2], *y = &n->out[0];
  struct winners w = {0};
  if (n->attrs->reduce == IR_SET) {
    /* number the updates, scatter the numbers, and see which number stayed */
    quern_tensor *none = quern_full(n->ctx, QUERN_DTYPE_I64, x->rank, x->dims, -1);
    quern_tensor *number = quern_reshape(quern_arange(n->ctx, QUERN_DTYPE_I64, ir_count(u), 0, 1), u->rank, u->dims);
    quern_tensor *last = scatter(n, none, index, number, IR_SET);
    w.of_x = quern_lt(last, quern_zeros_like(last));
    /* an index outside gathers 0: update 0 then looks kept, but its gradient is gathered from outside, which is 0 too */
    w.of_u = quern_eq(gather(n, last, index), number);
    return w;
  }
  w.of_x = quern_eq(x, y);
  w.of_u = quern_eq(u, gather(n, y, index));
  quern_tensor *count = quern_cast(w.of_x, x->dtype);
  w.share = scatter(n, count, index, quern_cast(w.of_u, x->dtype), IR_SUM);
  return w;
}

static quern_tensor *kept(quern_tensor *mask, quern_tensor *t) { return quern_where(mask, t, quern_zeros_like(t)); }

quern_status grad_vjp_SCATTER(const struct grad_back *g) {
  quern_tensor *dx = DY, *du = NULL;
  if (ATTRS->reduce == IR_SUM) {
    du = gather(NODE, DY, SRC[1]);
  } else {
    struct winners w = find_winners(NODE);
    quern_tensor *d = w.share == NULL ? DY : quern_div(DY, w.share);
    dx = kept(w.of_x, d);
    du = kept(w.of_u, gather(NODE, d, SRC[1]));
  }
  if (g->need[0]) g->dx[0] = dx;
  if (g->need[2]) g->dx[2] = du;
  return QUERN_STATUS_OK;
}

quern_status grad_jvp_SCATTER(const struct grad_fore *g) {
  quern_tensor *tx = grad_or_zero(g->tx[0], SRC[0]), *tu = grad_or_zero(g->tx[2], SRC[2]);
  if (ATTRS->reduce == IR_SUM) {
    g->ty[0] = scatter(NODE, tx, SRC[1], tu, IR_SUM);
    return QUERN_STATUS_OK;
  }
  struct winners w = find_winners(NODE);
  quern_tensor *sum = kept(w.of_x, tx);
  sum = scatter(NODE, sum, SRC[1], kept(w.of_u, tu), IR_SUM);
  g->ty[0] = w.share == NULL ? sum : quern_div(sum, w.share);
  return QUERN_STATUS_OK;
}
