/* grad/vjp.c -- reverse mode: from gradients of results to gradients of anything they depend on
** in:    results y with dy, tensors x           out: expressions dx; the graph of y is untouched
** keeps: nodes are visited once, in decreasing id; contributions are added in that order, so bits do not vary
** tests: querntest --mode grad, grad2; tests/grad/test_vjp.c
*/
#include "grad/grad.h"
#include "grad/grad_int.h"

static grad_vjp_rule *const rules[IR_OP_COUNT] = {
#define RULE_GRAD(NAME) grad_vjp_##NAME
#define RULE_NO_GRAD(NAME) NULL
#define OP(NAME, text, src, out, INFER, DTYPES, GRAD, ...) [IR_##NAME] = RULE_##GRAD(NAME),
#include "ir/ops.def"
#undef OP
};

struct sweep {
  quern_context *ctx;
  struct ir_order order;
  size_t *first;      /* where the results of node i start in sum and wanted */
  quern_tensor **sum; /* one per result: its gradient so far, or NULL */
  bool *wanted;       /* one per result: it is one of x */
  bool *active;       /* one per node: its results carry gradients on to some x */
  quern_tensor **dy, **dx;
  bool *need;
  size_t n_results, most_src, most_out;
};

static size_t place_of(const struct sweep *s, const quern_tensor *t) {
  ptrdiff_t i = ir_order_find(&s->order, t->node);
  return i < 0 ? SIZE_MAX : s->first[i] + (size_t)t->result;
}

static void sweep_fini(struct sweep *s) {
  struct base_heap *heap = &s->ctx->heap;
  base_free(heap, s->first, s->order.n * sizeof *s->first);
  base_free(heap, s->sum, s->n_results * sizeof *s->sum);
  base_free(heap, s->wanted, s->n_results * sizeof *s->wanted);
  base_free(heap, s->active, s->order.n * sizeof *s->active);
  base_free(heap, s->dy, s->most_out * sizeof(quern_tensor *));
  base_free(heap, s->dx, s->most_src * sizeof(quern_tensor *));
  base_free(heap, s->need, s->most_src * sizeof *s->need);
  ir_order_fini(s->ctx, &s->order);
}

static quern_status sweep_init(struct sweep *s, quern_context *ctx, size_t n_y, quern_tensor *const *y) {
  *s = (struct sweep){.ctx = ctx, .most_src = 1, .most_out = 1};
  QUERN_TRY(ir_topo(ctx, n_y, y, &s->order));
  for (size_t i = 0; i < s->order.n; i++) {
    s->n_results += (size_t)s->order.at[i]->n_out;
    s->most_src = BASE_MAX(s->most_src, (size_t)s->order.at[i]->n_src);
    s->most_out = BASE_MAX(s->most_out, (size_t)s->order.at[i]->n_out);
  }
  struct base_heap *heap = &ctx->heap;
  s->first = base_alloc(heap, s->order.n * sizeof *s->first);
  s->sum = base_alloc_zero(heap, s->n_results * sizeof *s->sum);
  s->wanted = base_alloc_zero(heap, s->n_results * sizeof *s->wanted);
  s->active = base_alloc_zero(heap, s->order.n * sizeof *s->active);
  s->dy = base_alloc(heap, s->most_out * sizeof(quern_tensor *));
  s->dx = base_alloc(heap, s->most_src * sizeof(quern_tensor *));
  s->need = base_alloc(heap, s->most_src * sizeof *s->need);
  if (s->first == NULL || s->sum == NULL || s->wanted == NULL || s->active == NULL || s->dy == NULL || s->dx == NULL ||
      s->need == NULL) {
    sweep_fini(s);
    return QUERN_STATUS_MEMORY;
  }
  size_t place = 0;
  for (size_t i = 0; i < s->order.n; i++) {
    s->first[i] = place;
    place += (size_t)s->order.at[i]->n_out;
  }
  return QUERN_STATUS_OK;
}

/* Whether a gradient of t would reach some x. */
static bool reaches(const struct sweep *s, const quern_tensor *t) {
  ptrdiff_t i = ir_order_find(&s->order, t->node);
  return grad_is_float(t) && (s->active[i] || s->wanted[s->first[i] + (size_t)t->result]);
}

static void mark_active(struct sweep *s) {
  for (size_t i = 0; i < s->order.n; i++) {
    const struct ir_node *node = s->order.at[i];
    for (int k = 0; k < node->n_src && rules[node->op] != NULL && !s->active[i]; k++)
      s->active[i] = reaches(s, node->src[k]);
  }
}

static void add_gradient(struct sweep *s, const quern_tensor *t, quern_tensor *d) {
  quern_tensor **sum = &s->sum[place_of(s, t)];
  *sum = *sum == NULL ? d : grad_add_contributions(*sum, d);
}

/* Takes the gradients of a node's results to its sources. */
static quern_status step_back(struct sweep *s, size_t i) {
  struct ir_node *node = s->order.at[i];
  bool any = false;
  for (int k = 0; k < node->n_out; k++) any |= s->sum[s->first[i] + (size_t)k] != NULL;
  if (!any || !s->active[i]) return QUERN_STATUS_OK;
  for (int k = 0; k < node->n_out; k++) {
    s->dy[k] = NULL;
    if (!grad_is_float(&node->out[k])) continue;
    s->dy[k] = grad_or_zero(s->sum[s->first[i] + (size_t)k], &node->out[k]);
    if (ir_is_poison(s->dy[k])) return ir_poison_error(s->ctx);
  }
  for (int k = 0; k < node->n_src; k++) {
    s->need[k] = reaches(s, node->src[k]);
    s->dx[k] = NULL;
  }
  QUERN_TRY(rules[node->op](&(struct grad_back){s->ctx, node, s->dy, s->need, s->dx}));
  QUERN_TRY(ir_growth_check(s->ctx, "vjp"));
  for (int k = 0; k < node->n_src; k++) {
    if (!s->need[k] || s->dx[k] == NULL) continue;
    QUERN_TRY(grad_check_given(node, "source", k, s->dx[k], node->src[k]));
    add_gradient(s, node->src[k], s->dx[k]);
  }
  return QUERN_STATUS_OK;
}

quern_status grad_check_given(const struct ir_node *node, const char *from, int i, const quern_tensor *given,
                              const quern_tensor *like) {
  if (ir_is_poison(given)) return ir_poison_error(node->ctx);
  const char *name = node->op == IR_COMPOSITE ? node->attrs->name : ir_ops[node->op].name;
  QUERN_CHECK(given->node->ctx == node->ctx, INVALID,
              "the derivative rule of %s gives a tensor of another context for %s %d", name, from, i);
  QUERN_CHECK(ir_same_type(given, like), INTERNAL, "the derivative rule of %s gives %s for %s %d, which is %s", name,
              ir_type_text((char[IR_TYPE_TEXT]){0}, given), from, i, ir_type_text((char[IR_TYPE_TEXT]){0}, like));
  return QUERN_STATUS_OK;
}

quern_status grad_vjp(quern_context *ctx, size_t n_y, quern_tensor *const *y, quern_tensor *const *dy, size_t n_x,
                      quern_tensor *const *x, quern_tensor **dx) {
  struct sweep s;
  QUERN_TRY(sweep_init(&s, ctx, n_y, y));
  quern_status status = QUERN_STATUS_OK;
  for (size_t k = 0; k < n_x; k++) {
    size_t place = place_of(&s, x[k]);
    if (place != SIZE_MAX) s.wanted[place] = true;
  }
  mark_active(&s);
  for (size_t k = 0; k < n_y; k++) add_gradient(&s, y[k], dy[k]);
  for (size_t i = s.order.n; i-- > 0 && status == QUERN_STATUS_OK;) status = step_back(&s, i);
  for (size_t k = 0; k < n_x && status == QUERN_STATUS_OK; k++) {
    size_t place = place_of(&s, x[k]);
    dx[k] = place == SIZE_MAX ? NULL : s.sum[place];
    if (dx[k] != NULL && ir_is_poison(dx[k])) status = ir_poison_error(ctx);
  }
  sweep_fini(&s);
  return status;
}

/* ---- the public side ------------------------------------------------------------------------------------------------- */

static quern_status check_list(const char *what, const struct grad_list *list, const quern_context *ctx) {
  QUERN_CHECK(list->n == 0 || list->at != NULL, INVALID, "%s: the list %s of %zu is null", what, list->name, list->n);
  for (size_t i = 0; i < list->n; i++) {
    const quern_tensor *x = list->at[i];
    QUERN_CHECK(x != NULL, INVALID, "%s: %s[%zu] is null", what, list->name, i);
    QUERN_CHECK(!ir_is_poison(x), INVALID, "%s: %s[%zu] is the result of a call that failed", what, list->name, i);
    QUERN_CHECK(x->node->ctx == ctx, INVALID, "%s: %s[%zu] belongs to another context", what, list->name, i);
    QUERN_CHECK(grad_is_float(x), DTYPE, "%s: %s[%zu] is %s: derivatives need a float dtype", what, list->name, i,
                ir_type_text((char[IR_TYPE_TEXT]){0}, x));
  }
  return QUERN_STATUS_OK;
}

quern_status grad_check_lists(const char *what, size_t n, const struct grad_list *lists, quern_context **ctx) {
  *ctx = NULL;
  for (size_t k = 0; k < n && *ctx == NULL; k++) {
    for (size_t i = 0; lists[k].at != NULL && i < lists[k].n && *ctx == NULL; i++) {
      if (!ir_is_poison(lists[k].at[i])) *ctx = lists[k].at[i]->node->ctx;
    }
  }
  if (*ctx != NULL) QUERN_TRY(quern_context_check(*ctx)); /* why an operand is poison comes before that it is */
  for (size_t k = 0; k < n; k++) QUERN_TRY(check_list(what, &lists[k], *ctx));
  return QUERN_STATUS_OK;
}

quern_status grad_check_types(const char *what, const char *list, const char *like, size_t n, quern_tensor *const *a,
                              quern_tensor *const *b) {
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(ir_same_type(a[i], b[i]), SHAPE, "%s: %s[%zu] is %s, %s[%zu] is %s: their types must be equal", what,
                list, i, ir_type_text((char[IR_TYPE_TEXT]){0}, a[i]), like, i,
                ir_type_text((char[IR_TYPE_TEXT]){0}, b[i]));
  }
  return QUERN_STATUS_OK;
}

quern_status grad_status(quern_context *ctx, quern_status status) {
  QUERN_TRY(quern_context_check(ctx));
  return status;
}

/* quern_vjp; what: the function the caller used. */
static quern_status vjp(const char *what, const char *y_name, size_t n_y, quern_tensor *const *y,
                        quern_tensor *const *dy, size_t n_x, quern_tensor *const *x, quern_tensor **dx) {
  quern_context *ctx;
  QUERN_TRY(grad_check_lists(what, 3, (struct grad_list[]){{y_name, n_y, y}, {"dy", n_y, dy}, {"x", n_x, x}}, &ctx));
  QUERN_CHECK(n_x == 0 || dx != NULL, INVALID, "%s: the list dx of %zu is null", what, n_x);
  QUERN_TRY(grad_check_types(what, "dy", y_name, n_y, dy, y));
  if (ctx == NULL) return QUERN_STATUS_OK;
  bool outermost;
  QUERN_TRY(ir_growth_begin(ctx, n_y, y, &outermost));
  quern_status status = grad_vjp(ctx, n_y, y, dy, n_x, x, dx);
  ir_growth_end(ctx, outermost);
  for (size_t k = 0; k < n_x && status == QUERN_STATUS_OK; k++) dx[k] = grad_or_zero(dx[k], x[k]);
  return grad_status(ctx, status);
}

quern_status quern_vjp(size_t n_y, quern_tensor *const *y, quern_tensor *const *dy, size_t n_x, quern_tensor *const *x,
                       quern_tensor **dx) {
  return vjp("vjp", "y", n_y, y, dy, n_x, x, dx);
}

quern_status quern_grad(quern_tensor *loss, size_t n, quern_tensor *const *x, quern_tensor **dx) {
  quern_context *ctx;
  QUERN_TRY(grad_check_lists("grad", 2, (struct grad_list[]){{"loss", 1, &loss}, {"x", n, x}}, &ctx));
  QUERN_CHECK(ir_count(loss) == 1, SHAPE, "grad: the loss is %s, must have one element HINT: quern_sum or quern_mean",
              ir_type_text((char[IR_TYPE_TEXT]){0}, loss));
  quern_tensor *one = quern_ones_like(loss);
  if (ir_is_poison(one)) return ir_poison_error(ctx);
  return vjp("grad", "loss", 1, &loss, &one, n, x, dx);
}
