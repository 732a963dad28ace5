/* grad/jvp.c -- forward mode: tangents of results from tangents of anything they depend on
** keeps: nodes are visited once, in increasing id
** tests: querntest --mode jvp; tests/grad/test_jvp.c
*/
#include "grad/grad.h"
#include "grad/grad_int.h"

static grad_jvp_rule *const rules[IR_OP_COUNT] = {
#define RULE_GRAD(NAME) grad_jvp_##NAME
#define RULE_NO_GRAD(NAME) NULL
#define OP(NAME, text, src, out, INFER, DTYPES, GRAD, ...) [IR_##NAME] = RULE_##GRAD(NAME),
#include "ir/ops.def"
#undef OP
};

struct push {
  quern_context *ctx;
  struct ir_order order;
  size_t *first;          /* where the results of node i start in tangent */
  quern_tensor **tangent; /* one per result, or NULL */
  bool *has_x;            /* one per node: some x is a result of it */
  quern_tensor **tx;      /* of the node at hand */
  size_t n_results, most_src;
};

static void push_fini(struct push *p) {
  struct base_heap *heap = &p->ctx->heap;
  base_free(heap, p->first, p->order.n * sizeof *p->first);
  base_free(heap, p->tangent, p->n_results * sizeof *p->tangent);
  base_free(heap, p->has_x, p->order.n * sizeof *p->has_x);
  base_free(heap, p->tx, p->most_src * sizeof *p->tx);
  ir_order_fini(p->ctx, &p->order);
}

static quern_status push_init(struct push *p, quern_context *ctx, size_t n, quern_tensor *const *roots) {
  *p = (struct push){.ctx = ctx, .most_src = 1};
  QUERN_TRY(ir_topo(ctx, n, roots, &p->order));
  for (size_t i = 0; i < p->order.n; i++) {
    p->n_results += (size_t)p->order.at[i]->n_out;
    p->most_src = BASE_MAX(p->most_src, (size_t)p->order.at[i]->n_src);
  }
  p->first = base_alloc(&ctx->heap, p->order.n * sizeof *p->first);
  p->tangent = base_alloc_zero(&ctx->heap, p->n_results * sizeof *p->tangent);
  p->has_x = base_alloc_zero(&ctx->heap, p->order.n * sizeof *p->has_x);
  p->tx = base_alloc(&ctx->heap, p->most_src * sizeof *p->tx);
  if (p->first == NULL || p->tangent == NULL || p->has_x == NULL || p->tx == NULL) {
    push_fini(p);
    return QUERN_STATUS_MEMORY;
  }
  size_t place = 0;
  for (size_t i = 0; i < p->order.n; i++) {
    p->first[i] = place;
    place += (size_t)p->order.at[i]->n_out;
  }
  return QUERN_STATUS_OK;
}

/* The place of a tangent, or NULL when the roots do not reach t. */
static quern_tensor **tangent_of(const struct push *p, const quern_tensor *t) {
  ptrdiff_t i = ir_order_find(&p->order, t->node);
  return i < 0 ? NULL : &p->tangent[p->first[i] + (size_t)t->result];
}

static quern_status step_forward(struct push *p, size_t i) {
  struct ir_node *node = p->order.at[i];
  bool any = false;
  for (int k = 0; k < node->n_src; k++) {
    p->tx[k] = *tangent_of(p, node->src[k]);
    any |= p->tx[k] != NULL;
  }
  if (!any || rules[node->op] == NULL) return QUERN_STATUS_OK;
  quern_tensor **ty = &p->tangent[p->first[i]];
  QUERN_TRY(rules[node->op](&(struct grad_fore){p->ctx, node, p->tx, ty}));
  QUERN_TRY(ir_growth_check(p->ctx, "jvp"));
  for (int k = 0; k < node->n_out; k++) {
    if (ty[k] != NULL) QUERN_TRY(grad_check_given(node, "result", k, ty[k], &node->out[k]));
  }
  return QUERN_STATUS_OK;
}

quern_status grad_jvp(quern_context *ctx, size_t n_x, quern_tensor *const *x, quern_tensor *const *tx, size_t n_y,
                      quern_tensor *const *y, quern_tensor **ty) {
  struct push p;
  QUERN_TRY(push_init(&p, ctx, n_y, y));
  quern_status status = QUERN_STATUS_OK;
  for (size_t k = 0; k < n_x; k++) {
    ptrdiff_t i = ir_order_find(&p.order, x[k]->node);
    if (i >= 0) p.has_x[i] = true;
  }
  for (size_t i = 0; i < p.order.n && status == QUERN_STATUS_OK; i++) {
    status = step_forward(&p, i);
    for (size_t k = 0; p.has_x[i] && k < n_x && status == QUERN_STATUS_OK; k++) {
      if (x[k]->node != p.order.at[i]) continue;
      quern_tensor **t = tangent_of(&p, x[k]);
      *t = *t == NULL ? tx[k] : quern_add(*t, tx[k]);
      if (ir_is_poison(*t)) status = ir_poison_error(ctx);
    }
  }
  for (size_t k = 0; k < n_y && status == QUERN_STATUS_OK; k++) ty[k] = *tangent_of(&p, y[k]);
  push_fini(&p);
  return status;
}

quern_status quern_jvp(size_t n_x, quern_tensor *const *x, quern_tensor *const *tx, size_t n_y, quern_tensor *const *y,
                       quern_tensor **ty) {
  quern_context *ctx;
  QUERN_TRY(grad_check_lists("jvp", 3, (struct grad_list[]){{"x", n_x, x}, {"tx", n_x, tx}, {"y", n_y, y}}, &ctx));
  QUERN_CHECK(n_y == 0 || ty != NULL, INVALID, "jvp: the list ty of %zu is null", n_y);
  QUERN_TRY(grad_check_types("jvp", "tx", "x", n_x, tx, x));
  if (ctx == NULL) return QUERN_STATUS_OK;
  bool outermost;
  QUERN_TRY(ir_growth_begin(ctx, n_y, y, &outermost));
  quern_status status = grad_jvp(ctx, n_x, x, tx, n_y, y, ty);
  ir_growth_end(ctx, outermost);
  for (size_t k = 0; k < n_y && status == QUERN_STATUS_OK; k++) ty[k] = grad_or_zero(ty[k], y[k]);
  return grad_status(ctx, status);
}

/* Builds on fresh leaves, so that neither sweep walks beyond the node: u stands for dy, leaves for the sources. */
quern_status grad_jvp_transposed(const struct grad_fore *g, grad_vjp_rule *vjp) {
  struct ir_node *node = g->node;
  quern_context *ctx = g->ctx;
  size_t n_src = (size_t)node->n_src, n_out = (size_t)node->n_out;
  /* leaves of sources, of dy, of tangents; then what they stand for; then dx and the transposed results */
  size_t n = 2 * n_src + n_out, bytes = (3 * n + n_src + n_out) * sizeof(quern_tensor *) + n_src * sizeof(bool);
  quern_tensor **leaf = base_alloc_zero(&ctx->heap, bytes);
  if (leaf == NULL) return QUERN_STATUS_MEMORY;
  quern_tensor **u = leaf + n_src, **tangent = u + n_out;
  quern_tensor **stands = leaf + n, **pair_from = leaf + 2 * n, **dx = leaf + 3 * n, **out = dx + n_src;
  bool *need = (bool *)(out + n_out);
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < n_src; i++) {
    leaf[i] = ir_leaf_like(node->src[i]);
    tangent[i] = ir_leaf_like(node->src[i]);
    need[i] = g->tx[i] != NULL;
  }
  for (size_t i = 0; i < n_out; i++) u[i] = grad_is_float(&node->out[i]) ? ir_leaf_like(&node->out[i]) : NULL;
  quern_tensor *again = ir_make(ctx, node->op, node->n_src, leaf, node->attrs);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) {
    if (leaf[i] != NULL && ir_is_poison(leaf[i])) status = ir_poison_error(ctx);
  }
  if (status == QUERN_STATUS_OK && ir_is_poison(again)) status = ir_poison_error(ctx);
  if (status != QUERN_STATUS_OK) goto done;
  status = vjp(&(struct grad_back){ctx, again->node, u, need, dx});
  if (status != QUERN_STATUS_OK) goto done;

  /* transpose: the gradient of <dx, tangent> with respect to u */
  size_t n_dx = 0, n_u = 0;
  quern_tensor **y = stands, **dy = pair_from; /* free until the substitution */
  for (size_t i = 0; i < n_src; i++) {
    if (!need[i] || dx[i] == NULL) continue;
    status = grad_check_given(node, "source", (int)i, dx[i], node->src[i]);
    if (status != QUERN_STATUS_OK) goto done;
    y[n_dx] = dx[i];
    dy[n_dx++] = tangent[i];
  }
  for (size_t i = 0; i < n_out; i++) {
    if (u[i] == NULL) continue;
    quern_tensor *d = NULL;
    status = grad_vjp(ctx, n_dx, y, dy, 1, &u[i], &d);
    if (status != QUERN_STATUS_OK) goto done;
    out[i] = d;
  }
  for (size_t i = 0; i < n_src; i++) {
    pair_from[n_u] = leaf[i];
    stands[n_u++] = node->src[i];
    pair_from[n_u] = tangent[i];
    stands[n_u++] = grad_or_zero(g->tx[i], node->src[i]);
  }
  for (size_t i = 0; i < n_out; i++) {
    if (u[i] == NULL) continue;
    pair_from[n_u] = u[i]; /* what is left of it does not count: the result is linear in it and constant */
    stands[n_u++] = quern_zeros_like(&node->out[i]);
  }
  status = quern_context_check(ctx);
  for (size_t i = 0; i < n_out && status == QUERN_STATUS_OK; i++) {
    if (out[i] != NULL) status = ir_substitute(ctx, 1, &out[i], n_u, pair_from, stands, &g->ty[i]);
  }
done:
  base_free(&ctx->heap, leaf, bytes);
  return status;
}
