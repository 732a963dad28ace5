/* grad/rules_control.c -- derivatives of loops, branches and composites: again loops, branches and composites
** A loop's gradient is a loop the other way round. It needs the carries each iteration began with: a second forward loop stacks
** them, and the iteration itself is computed again from them.
** tests: querntest --mode grad, jvp, grad2; tests/grad/test_control.c
*/
#include <stdio.h>
#include <string.h>

#include "grad/grad.h"

#define NODE g->node
#define ATTRS g->node->attrs
#define SRC g->node->src

/* A list of tensors that grows; freed by fini. A failed one misses items: nobody may count on their places. */
struct list {
  quern_context *ctx;
  BASE_VEC(quern_tensor *) v;
  bool failed;
};

static void add(struct list *list, quern_tensor *t) {
  if (!base_vec_push(&list->ctx->heap, &list->v, t)) list->failed = true;
}
static void fini(struct list *list) { base_vec_fini(&list->ctx->heap, &list->v); }

/* The status of what was built so far: memory for the lists, and the builders' errors. */
static quern_status built(quern_context *ctx, const struct list *const *lists, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (lists[i]->failed) return QUERN_STATUS_MEMORY;
  }
  return quern_context_check(ctx);
}

/* ---- composite and if: operands (sources, dy) -> the wanted dx ------------------------------------------------------ */

/* A graph from (the sources' leaves, leaves of float dy) to the gradients of the sources marked in need. */
static quern_status vjp_graph(quern_context *ctx, const struct ir_graph *body, const bool *need,
                              const struct ir_graph **out) {
  struct list args = {.ctx = ctx}, y = {.ctx = ctx}, dy = {.ctx = ctx}, x = {.ctx = ctx}, dx = {.ctx = ctx};
  const struct list *const all[] = {&args, &y, &dy, &x, &dx};
  size_t bytes = (size_t)body->n_results * sizeof(quern_tensor *);
  quern_tensor **results = base_alloc(&ctx->heap, bytes);
  quern_status status = QUERN_STATUS_MEMORY;
  if (results == NULL) return status;
  for (int i = 0; i < body->n_params; i++) {
    quern_tensor *leaf = ir_leaf_like(body->params[i]);
    add(&args, leaf);
    if (need[i]) add(&x, leaf), add(&dx, NULL);
  }
  status = built(ctx, all, BASE_COUNT(all));
  if (status == QUERN_STATUS_OK) status = ir_inline(ctx, body, args.v.at, results);
  if (status != QUERN_STATUS_OK) goto done;
  for (int i = 0; i < body->n_results; i++) {
    if (!grad_is_float(results[i])) continue;
    quern_tensor *leaf = ir_leaf_like(results[i]);
    add(&y, results[i]), add(&dy, leaf), add(&args, leaf);
  }
  status = built(ctx, all, BASE_COUNT(all));
  if (status == QUERN_STATUS_OK) status = grad_vjp(ctx, y.v.n, y.v.at, dy.v.at, x.v.n, x.v.at, dx.v.at);
  if (status != QUERN_STATUS_OK) goto done;
  for (size_t i = 0; i < x.v.n; i++) dx.v.at[i] = grad_or_zero(dx.v.at[i], x.v.at[i]);
  status = quern_context_check(ctx);
  if (status == QUERN_STATUS_OK) status = ir_graph_make(ctx, (int)args.v.n, args.v.at, (int)dx.v.n, dx.v.at, out);
done:
  base_free(&ctx->heap, results, bytes);
  fini(&args), fini(&y), fini(&dy), fini(&x), fini(&dx);
  return status;
}

/* Makes the node's op over operands; its results are the wanted dx in order. */
static quern_status wanted_results(const struct grad_back *g, const struct ir_attrs *attrs,
                                   const struct list *operands) {
  if (operands->failed) return QUERN_STATUS_MEMORY;
  quern_tensor *made = ir_make(g->ctx, NODE->op, (int)operands->v.n, operands->v.at, attrs);
  for (int i = 0, k = 0; i < NODE->n_src; i++) {
    if (g->need[i]) g->dx[i] = ir_result(made, k++);
  }
  return quern_context_check(g->ctx);
}

/* The same over all sources followed by the float dy. */
static quern_status vjp_node(const struct grad_back *g, const struct ir_attrs *attrs) {
  struct list operands = {.ctx = g->ctx};
  for (int i = 0; i < NODE->n_src; i++) add(&operands, SRC[i]);
  for (int i = 0; i < NODE->n_out; i++) {
    if (g->dy[i] != NULL) add(&operands, g->dy[i]);
  }
  quern_status status = wanted_results(g, attrs, &operands);
  fini(&operands);
  return status;
}

static bool is_given(const quern_tensor *dy) { return dy != NULL && !ir_is_const(dy, 0); }

/* A kind's own rule as a graph from (sources, results, dy that are not zero) to the wanted dx. */
static quern_status rule_graph(const struct grad_back *g, const struct ir_composite *kind,
                               const struct ir_graph **out) {
  quern_context *ctx = g->ctx;
  struct list params = {.ctx = ctx}, from = {.ctx = ctx}, to = {.ctx = ctx}, dy = {.ctx = ctx}, dx = {.ctx = ctx};
  struct list wanted = {.ctx = ctx};
  const struct list *const all[] = {&params, &from, &to, &dy, &dx, &wanted};
  for (int i = 0; i < NODE->n_src; i++) add(&params, ir_leaf_like(SRC[i])), add(&dx, NULL);
  quern_status status = built(ctx, all, BASE_COUNT(all));
  if (status != QUERN_STATUS_OK) goto done;
  quern_tensor *again = ir_make(ctx, NODE->op, NODE->n_src, params.v.at, ATTRS);
  for (int i = 0; i < NODE->n_out; i++) { /* the rule sees the results of a node; the graph gets them as operands */
    quern_tensor *leaf = ir_leaf_like(&NODE->out[i]);
    add(&from, ir_result(again, i)), add(&to, leaf), add(&params, leaf);
  }
  for (int i = 0; i < NODE->n_out; i++) {
    bool given = is_given(g->dy[i]);
    quern_tensor *leaf = given ? ir_leaf_like(g->dy[i]) : g->dy[i] == NULL ? NULL : quern_zeros_like(g->dy[i]);
    add(&dy, leaf);
    if (given) add(&params, leaf);
  }
  status = built(ctx, all, BASE_COUNT(all));
  if (status != QUERN_STATUS_OK) goto done;
  kind->vjp(kind, again->node, dy.v.at, dx.v.at);
  for (int i = 0; i < NODE->n_src; i++) {
    if (g->need[i]) add(&wanted, grad_or_zero(dx.v.at[i], params.v.at[i]));
  }
  status = built(ctx, all, BASE_COUNT(all));
  if (status == QUERN_STATUS_OK) {
    status = ir_substitute(ctx, wanted.v.n, wanted.v.at, from.v.n, from.v.at, to.v.at, wanted.v.at);
  }
  if (status == QUERN_STATUS_OK) {
    status = ir_graph_make(ctx, (int)params.v.n, params.v.at, (int)wanted.v.n, wanted.v.at, out);
  }
done:
  fini(&params), fini(&from), fini(&to), fini(&dy), fini(&dx), fini(&wanted);
  return status;
}

/* The gradient of a composite is a composite, "<name>.vjp", so that a device may know that one as well. Its body is the rule
** of the kind, over (sources, results, dy that are not zero), or the gradient of the body, over (sources, float dy). A user's
** rule may use anything, so what it gives stays as it is. */
quern_status grad_vjp_COMPOSITE(const struct grad_back *g) {
  const struct ir_composite *kind = ir_composite_find(g->ctx, ATTRS->name);
  bool has_rule = kind != NULL && kind->vjp != NULL;
  if (has_rule && kind->body == NULL) {
    kind->vjp(kind, NODE, g->dy, g->dx);
    return quern_context_check(g->ctx);
  }
  char name[256];
  snprintf(name, sizeof name, "%.240s.vjp", ATTRS->name);
  struct ir_attrs attrs = {.name = name, .ints = ATTRS->ints, .reals = ATTRS->reals};
  if (!has_rule) {
    QUERN_TRY(vjp_graph(g->ctx, ATTRS->body, g->need, &attrs.body));
    return vjp_node(g, &attrs);
  }
  QUERN_TRY(rule_graph(g, kind, &attrs.body));
  struct list operands = {.ctx = g->ctx};
  for (int i = 0; i < NODE->n_src; i++) add(&operands, SRC[i]);
  for (int i = 0; i < NODE->n_out; i++) add(&operands, &NODE->out[i]);
  for (int i = 0; i < NODE->n_out; i++) {
    if (is_given(g->dy[i])) add(&operands, g->dy[i]);
  }
  quern_status status = wanted_results(g, &attrs, &operands);
  fini(&operands);
  return status;
}

quern_status grad_vjp_IF(const struct grad_back *g) {
  struct ir_attrs attrs = {0};
  QUERN_TRY(vjp_graph(g->ctx, ATTRS->body, g->need + 1, &attrs.body));
  QUERN_TRY(vjp_graph(g->ctx, ATTRS->other, g->need + 1, &attrs.other));
  return vjp_node(g, &attrs);
}

/* ---- loop ----------------------------------------------------------------------------------------------------------- */

/* What a loop's operands are, by place among the sources. */
struct loop {
  int carries, scanned, captures;
};

static struct loop loop_of(const struct ir_node *n) {
  struct loop l = {.carries = (int)n->attrs->carries, .scanned = (int)n->attrs->scanned};
  l.captures = n->n_src - l.carries - l.scanned;
  return l;
}

/* The loop again, stacking the carries that each iteration begins with after its own results. */
static quern_status saving_loop(const struct grad_back *g, struct loop l, quern_tensor **saved) {
  const struct ir_graph *body = ATTRS->body;
  struct list args = {.ctx = g->ctx}, results = {.ctx = g->ctx};
  const struct list *const all[] = {&args, &results};
  for (int i = 0; i < body->n_params; i++) add(&args, ir_leaf_like(body->params[i]));
  for (int i = 0; i < body->n_results; i++) add(&results, NULL);
  quern_status status = built(g->ctx, all, BASE_COUNT(all));
  if (status == QUERN_STATUS_OK) status = ir_inline(g->ctx, body, args.v.at, results.v.at);
  for (int i = 0; i < l.carries && status == QUERN_STATUS_OK; i++) add(&results, args.v.at[1 + i]);
  if (results.failed) status = QUERN_STATUS_MEMORY;
  struct ir_attrs attrs = *ATTRS;
  if (status == QUERN_STATUS_OK) {
    status = ir_graph_make(g->ctx, (int)args.v.n, args.v.at, (int)results.v.n, results.v.at, &attrs.body);
  }
  if (status == QUERN_STATUS_OK) {
    quern_tensor *made = ir_make(g->ctx, IR_LOOP, NODE->n_src, SRC, &attrs);
    for (int i = 0; i < l.carries; i++) saved[i] = ir_result(made, NODE->n_out + i);
    status = quern_context_check(g->ctx);
  }
  fini(&args), fini(&results);
  return status;
}

/* The backward loop while it is built: operands by kind, with the leaves of its body beside them. */
struct back_loop {
  struct list carry, carry_leaf;     /* dc of float carries, then dp of wanted captures */
  struct list scan, scan_leaf;       /* saved carries, scanned sources, dy of float stacked results */
  struct list capture, capture_leaf; /* captures */
  struct list args, results;         /* of the forward iteration */
  struct list y, dy, x, dx;          /* of its vjp */
};

static quern_tensor *row_leaf(quern_tensor *t) {
  return ir_is_poison(t) ? &ir_poison : ir_leaf(t->node->ctx, t->dtype, t->rank - 1, t->dims + 1);
}

static quern_tensor *add_scan(struct back_loop *b, quern_tensor *t) {
  add(&b->scan, t);
  quern_tensor *leaf = row_leaf(t);
  add(&b->scan_leaf, leaf);
  return leaf;
}

static quern_tensor *add_carry(struct back_loop *b, quern_tensor *t) {
  add(&b->carry, t);
  quern_tensor *leaf = ir_leaf_like(t);
  add(&b->carry_leaf, leaf);
  return leaf;
}

/* The iteration again: args = (i, carries, x[i], captures) as leaves, and the lists that the backward loop carries. */
static void build_operands(const struct grad_back *g, struct back_loop *b, struct loop l, quern_tensor *const *saved,
                           quern_tensor *index) {
  add(&b->args, index);
  for (int i = 0; i < l.carries; i++) add(&b->args, add_scan(b, saved[i]));
  for (int i = 0; i < l.scanned; i++) add(&b->args, add_scan(b, SRC[l.carries + i]));
  for (int i = 0; i < l.captures; i++) {
    quern_tensor *p = SRC[l.carries + l.scanned + i], *leaf = ir_leaf_like(p);
    add(&b->capture, p), add(&b->capture_leaf, leaf), add(&b->args, leaf);
  }
  for (int i = 0; i < NODE->n_out; i++) {
    if (g->dy[i] == NULL) continue;
    add(&b->dy, i < l.carries ? add_carry(b, g->dy[i]) : add_scan(b, g->dy[i]));
  }
}

static quern_status build_turn(const struct grad_back *g, struct back_loop *b, struct loop l) {
  const struct ir_graph *body = ATTRS->body;
  const struct list *const all[] = {&b->carry,        &b->carry_leaf, &b->scan,    &b->scan_leaf, &b->capture,
                                    &b->capture_leaf, &b->args,       &b->results, &b->dy};
  for (int i = 0; i < body->n_results; i++) add(&b->results, NULL);
  QUERN_TRY(built(g->ctx, all, BASE_COUNT(all)));
  QUERN_TRY(ir_inline(g->ctx, body, b->args.v.at, b->results.v.at));
  for (int i = 0; i < NODE->n_out; i++) {
    if (g->dy[i] != NULL) add(&b->y, b->results.v.at[i]);
  }
  /* float carries always, since their gradient is carried; the others when wanted */
  for (int i = 0; i < NODE->n_src; i++) {
    if (i < l.carries ? grad_is_float(SRC[i]) : g->need[i]) add(&b->x, b->args.v.at[1 + i]), add(&b->dx, NULL);
  }
  if (b->y.failed || b->x.failed || b->dx.failed) return QUERN_STATUS_MEMORY;
  QUERN_TRY(grad_vjp(g->ctx, b->y.v.n, b->y.v.at, b->dy.v.at, b->x.v.n, b->x.v.at, b->dx.v.at));
  for (size_t i = 0; i < b->x.v.n; i++) b->dx.v.at[i] = grad_or_zero(b->dx.v.at[i], b->x.v.at[i]);
  return quern_context_check(g->ctx);
}

/* Closes the body and makes the loop; its results are dc, dp, then stacked dx. */
static quern_status close_loop(const struct grad_back *g, struct back_loop *b, struct loop l, quern_tensor *index) {
  struct list params = {.ctx = g->ctx}, results = {.ctx = g->ctx}, operands = {.ctx = g->ctx};
  const struct list *const all[] = {&params, &results, &operands};
  add(&params, index);
  const struct list *const groups[3][2] = {
      {&b->carry_leaf, &b->carry}, {&b->scan_leaf, &b->scan}, {&b->capture_leaf, &b->capture}};
  for (size_t k = 0; k < 3; k++) {
    for (size_t i = 0; i < groups[k][0]->v.n; i++)
      add(&params, groups[k][0]->v.at[i]), add(&operands, groups[k][1]->v.at[i]);
  }
  /* dx holds: float carries, wanted scanned, wanted captures; the results are carries, captures, scanned */
  int n_carry = 0, n_scan = 0, n_capture = 0;
  for (int i = 0; i < l.carries; i++) n_carry += grad_is_float(SRC[i]);
  for (int i = 0; i < l.scanned; i++) n_scan += g->need[l.carries + i];
  for (int i = 0; i < l.captures; i++) n_capture += g->need[l.carries + l.scanned + i];
  for (int i = 0; i < n_carry; i++) add(&results, b->dx.v.at[i]);
  for (int i = 0; i < n_capture; i++) { /* summed in f32 when they are narrower */
    quern_tensor *sum = b->carry_leaf.v.at[n_carry + i];
    add(&results, quern_add(sum, quern_cast(b->dx.v.at[n_carry + n_scan + i], sum->dtype)));
  }
  for (int i = 0; i < n_scan; i++) add(&results, b->dx.v.at[n_carry + i]);

  struct ir_attrs attrs = {
      .trip = ATTRS->trip, .carries = n_carry + n_capture, .scanned = (int64_t)b->scan.v.n, .reverse = !ATTRS->reverse};
  quern_status status = built(g->ctx, all, BASE_COUNT(all));
  if (status == QUERN_STATUS_OK) {
    status = ir_graph_make(g->ctx, (int)params.v.n, params.v.at, (int)results.v.n, results.v.at, &attrs.body);
  }
  if (status == QUERN_STATUS_OK) {
    quern_tensor *made = ir_make(g->ctx, IR_LOOP, (int)operands.v.n, operands.v.at, &attrs);
    for (int i = 0, c = 0, s = n_carry + n_capture, p = n_carry; i < NODE->n_src; i++) {
      if (i < l.carries) {
        if (!grad_is_float(SRC[i])) continue;
        if (g->need[i]) g->dx[i] = ir_result(made, c);
        c++;
      } else if (g->need[i]) {
        g->dx[i] = quern_cast(ir_result(made, i < l.carries + l.scanned ? s++ : p++), SRC[i]->dtype);
      }
    }
    status = quern_context_check(g->ctx);
  }
  fini(&params), fini(&results), fini(&operands);
  return status;
}

quern_status grad_vjp_LOOP(const struct grad_back *g) {
  struct loop l = loop_of(NODE);
  quern_context *ctx = g->ctx;
  size_t bytes = (size_t)l.carries * sizeof(quern_tensor *);
  quern_tensor **saved = base_alloc(&ctx->heap, bytes);
  if (saved == NULL) return QUERN_STATUS_MEMORY;
  struct back_loop b = {.carry = {.ctx = ctx},
                        .carry_leaf = {.ctx = ctx},
                        .scan = {.ctx = ctx},
                        .scan_leaf = {.ctx = ctx},
                        .capture = {.ctx = ctx},
                        .capture_leaf = {.ctx = ctx},
                        .args = {.ctx = ctx},
                        .results = {.ctx = ctx},
                        .y = {.ctx = ctx},
                        .dy = {.ctx = ctx},
                        .x = {.ctx = ctx},
                        .dx = {.ctx = ctx}};
  quern_tensor *index = ir_leaf(ctx, QUERN_DTYPE_I64, 0, NULL);
  quern_status status = saving_loop(g, l, saved);
  if (status == QUERN_STATUS_OK) {
    build_operands(g, &b, l, saved, index);
    for (int i = l.carries + l.scanned; i < NODE->n_src; i++) {
      if (g->need[i]) add_carry(&b, quern_zeros(ctx, tensor_wide(SRC[i]->dtype), SRC[i]->rank, SRC[i]->dims));
    }
    status = build_turn(g, &b, l);
  }
  if (status == QUERN_STATUS_OK) status = close_loop(g, &b, l, index);
  fini(&b.carry), fini(&b.carry_leaf), fini(&b.scan), fini(&b.scan_leaf), fini(&b.capture), fini(&b.capture_leaf);
  fini(&b.args), fini(&b.results), fini(&b.y), fini(&b.dy), fini(&b.x), fini(&b.dx);
  base_free(&ctx->heap, saved, bytes);
  return status;
}

quern_status grad_vjp_WHILE(const struct grad_back *g) {
  (void)g;
  return base_error(QUERN_STATUS_UNSUPPORTED,
                    "grad: while has no gradient, since the number of its iterations is not known "
                    "HINT: quern_loop has one; quern_jvp goes through while");
}

/* ---- forward mode: each float value travels with its tangent -------------------------------------------------------- */

/* A body on fresh leaves, with the tangents of its results. */
struct pushed {
  struct list leaf, tangent;    /* one a param; tangent NULL when it is no float */
  struct list result, d_result; /* one per result; likewise */
};

static void pushed_fini(struct pushed *p) { fini(&p->leaf), fini(&p->tangent), fini(&p->result), fini(&p->d_result); }

/* Inlines a body on fresh leaves and pushes tangents of its float params through it. */
static quern_status push_body(quern_context *ctx, const struct ir_graph *body, struct pushed *p) {
  *p = (struct pushed){{.ctx = ctx}, {.ctx = ctx}, {.ctx = ctx}, {.ctx = ctx}};
  struct list x = {.ctx = ctx}, tx = {.ctx = ctx}, y = {.ctx = ctx}, ty = {.ctx = ctx};
  const struct list *const all[] = {&p->leaf, &p->tangent, &p->result, &p->d_result, &x, &tx, &y, &ty};
  for (int i = 0; i < body->n_params; i++) {
    quern_tensor *leaf = ir_leaf_like(body->params[i]), *t = grad_is_float(body->params[i]) ? ir_leaf_like(leaf) : NULL;
    add(&p->leaf, leaf), add(&p->tangent, t);
    if (t != NULL) add(&x, leaf), add(&tx, t);
  }
  for (int i = 0; i < body->n_results; i++) add(&p->result, NULL), add(&p->d_result, NULL);
  quern_status status = built(ctx, all, BASE_COUNT(all));
  if (status == QUERN_STATUS_OK) status = ir_inline(ctx, body, p->leaf.v.at, p->result.v.at);
  for (int i = 0; i < body->n_results && status == QUERN_STATUS_OK; i++) {
    if (grad_is_float(p->result.v.at[i])) add(&y, p->result.v.at[i]), add(&ty, NULL);
  }
  if (y.failed || ty.failed) status = QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK) status = grad_jvp(ctx, x.v.n, x.v.at, tx.v.at, y.v.n, y.v.at, ty.v.at);
  for (int i = 0, k = 0; i < body->n_results && status == QUERN_STATUS_OK; i++) {
    quern_tensor *r = p->result.v.at[i];
    if (grad_is_float(r)) p->d_result.v.at[i] = grad_or_zero(ty.v.at[k++], r);
  }
  if (status == QUERN_STATUS_OK) status = quern_context_check(ctx);
  fini(&x), fini(&tx), fini(&y), fini(&ty);
  return status;
}

/* Adds items first to last - 1 of a list, then those of the second list there that are not NULL. */
static void add_range(struct list *to, const struct list *from, const struct list *with, int first, int last) {
  for (int i = first; i < last; i++) add(to, from->v.at[i]);
  for (int i = first; i < last; i++) {
    if (with->v.at[i] != NULL) add(to, with->v.at[i]);
  }
}

/* Adds sources first to last - 1 of the node, then the tangents of the float ones. */
static void add_sources(struct list *to, const struct grad_fore *g, int first, int last) {
  for (int i = first; i < last; i++) add(to, SRC[i]);
  for (int i = first; i < last; i++) {
    if (grad_is_float(SRC[i])) add(to, grad_or_zero(g->tx[i], SRC[i]));
  }
}

static int float_sources(const struct grad_fore *g, int first, int last) {
  int n = 0;
  for (int i = first; i < last; i++) n += grad_is_float(SRC[i]);
  return n;
}

/* Makes the node from operands, and finds the tangents among its results: the first first_group results of the old node are
** followed by the tangents of the float ones, and so are the others. */
static quern_status push_node(const struct grad_fore *g, struct list *operands, const struct ir_attrs *attrs,
                              int first_group) {
  if (operands->failed) return QUERN_STATUS_MEMORY;
  QUERN_TRY(quern_context_check(g->ctx));
  quern_tensor *made = ir_make(g->ctx, NODE->op, (int)operands->v.n, operands->v.at, attrs);
  QUERN_TRY(quern_context_check(g->ctx));
  int at = 0;
  for (int group = 0, first = 0; group < 2; group++) {
    int last = group == 0 ? first_group : NODE->n_out;
    at += last - first;
    for (int i = first; i < last; i++) {
      if (grad_is_float(&NODE->out[i])) g->ty[i] = ir_result(made, at++);
    }
    first = last;
  }
  return QUERN_STATUS_OK;
}

quern_status grad_jvp_LOOP(const struct grad_fore *g) {
  struct loop l = loop_of(NODE);
  quern_context *ctx = g->ctx;
  const struct ir_graph *body = ATTRS->body;
  int scans = l.carries + l.scanned;
  struct pushed p;
  struct list params = {.ctx = ctx}, results = {.ctx = ctx}, operands = {.ctx = ctx};
  quern_status status = push_body(ctx, body, &p);
  if (status == QUERN_STATUS_OK) {
    add(&params, p.leaf.v.at[0]);
    add_range(&params, &p.leaf, &p.tangent, 1, 1 + l.carries);
    add_range(&params, &p.leaf, &p.tangent, 1 + l.carries, 1 + scans);
    add_range(&params, &p.leaf, &p.tangent, 1 + scans, body->n_params);
    add_range(&results, &p.result, &p.d_result, 0, l.carries);
    add_range(&results, &p.result, &p.d_result, l.carries, body->n_results);
    add_sources(&operands, g, 0, l.carries);
    add_sources(&operands, g, l.carries, scans);
    add_sources(&operands, g, scans, NODE->n_src);
    if (params.failed || results.failed) status = QUERN_STATUS_MEMORY;
  }
  struct ir_attrs attrs = *ATTRS;
  attrs.carries += float_sources(g, 0, l.carries);
  attrs.scanned += float_sources(g, l.carries, scans);
  if (status == QUERN_STATUS_OK) {
    status = ir_graph_make(ctx, (int)params.v.n, params.v.at, (int)results.v.n, results.v.at, &attrs.body);
  }
  if (status == QUERN_STATUS_OK) status = push_node(g, &operands, &attrs, l.carries);
  pushed_fini(&p);
  fini(&params), fini(&results), fini(&operands);
  return status;
}

/* The graph with tangents: params before split, their tangents, the other params, their tangents; results, then (unless
** with_tangents is false) theirs. */
static quern_status push_graph(quern_context *ctx, const struct ir_graph *body, int split, bool with_tangents,
                               const struct ir_graph **out) {
  struct pushed p;
  struct list params = {.ctx = ctx}, results = {.ctx = ctx};
  quern_status status = push_body(ctx, body, &p);
  if (status == QUERN_STATUS_OK) {
    add_range(&params, &p.leaf, &p.tangent, 0, split);
    add_range(&params, &p.leaf, &p.tangent, split, body->n_params);
    for (int i = 0; i < body->n_results && !with_tangents; i++) add(&results, p.result.v.at[i]);
    if (with_tangents) add_range(&results, &p.result, &p.d_result, 0, body->n_results);
    if (params.failed || results.failed) status = QUERN_STATUS_MEMORY;
  }
  if (status == QUERN_STATUS_OK) {
    status = ir_graph_make(ctx, (int)params.v.n, params.v.at, (int)results.v.n, results.v.at, out);
  }
  pushed_fini(&p);
  fini(&params), fini(&results);
  return status;
}

quern_status grad_jvp_WHILE(const struct grad_fore *g) {
  int carries = (int)ATTRS->carries;
  struct ir_attrs attrs = {.carries = carries + float_sources(g, 0, carries)};
  QUERN_TRY(push_graph(g->ctx, ATTRS->body, carries, true, &attrs.body));
  QUERN_TRY(push_graph(g->ctx, ATTRS->other, carries, false, &attrs.other));
  struct list operands = {.ctx = g->ctx};
  add_sources(&operands, g, 0, carries);
  add_sources(&operands, g, carries, NODE->n_src);
  quern_status status = push_node(g, &operands, &attrs, NODE->n_out);
  fini(&operands);
  return status;
}

quern_status grad_jvp_IF(const struct grad_fore *g) {
  struct ir_attrs attrs = {0};
  QUERN_TRY(push_graph(g->ctx, ATTRS->body, NODE->n_src - 1, true, &attrs.body));
  QUERN_TRY(push_graph(g->ctx, ATTRS->other, NODE->n_src - 1, true, &attrs.other));
  struct list operands = {.ctx = g->ctx};
  add(&operands, SRC[0]);
  add_sources(&operands, g, 1, NODE->n_src);
  quern_status status = push_node(g, &operands, &attrs, NODE->n_out);
  fini(&operands);
  return status;
}

/* With a rule of its own, its transpose; else through the body. */
quern_status grad_jvp_COMPOSITE(const struct grad_fore *g) {
  const struct ir_composite *kind = ir_composite_find(g->ctx, ATTRS->name);
  if (kind != NULL && kind->vjp != NULL) return grad_jvp_transposed(g, grad_vjp_COMPOSITE);
  struct pushed p;
  struct list from = {.ctx = g->ctx}, to = {.ctx = g->ctx};
  quern_status status = push_body(g->ctx, ATTRS->body, &p);
  for (int i = 0; i < NODE->n_src && status == QUERN_STATUS_OK; i++) {
    add(&from, p.leaf.v.at[i]), add(&to, SRC[i]);
    if (p.tangent.v.at[i] != NULL) add(&from, p.tangent.v.at[i]), add(&to, grad_or_zero(g->tx[i], SRC[i]));
  }
  if (from.failed || to.failed) status = QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK) status = quern_context_check(g->ctx);
  for (int i = 0; i < NODE->n_out && status == QUERN_STATUS_OK; i++) {
    quern_tensor *t = p.d_result.v.at[i];
    if (t != NULL) status = ir_substitute(g->ctx, 1, &t, from.v.n, from.v.at, to.v.at, &g->ty[i]);
  }
  pushed_fini(&p);
  fini(&from), fini(&to);
  return status;
}
