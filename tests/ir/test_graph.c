/* tests/ir/test_graph.c -- walking, rebuilding and closing graphs */
#include "ir/ir_test.h"

#define U(NAME, x) IR_MAKE(ctx, IR_##NAME, NULL, x)
#define B(NAME, a, b) IR_MAKE(ctx, IR_##NAME, NULL, a, b)

/* ---- order ------------------------------------------------------------------------------------------------------ */

static void expect_order(int n_roots, quern_tensor *const *roots, int n, quern_tensor *const *expected) {
  struct ir_order order;
  assert_int_equal(ir_topo(ctx, (size_t)n_roots, roots, &order), QUERN_STATUS_OK);
  assert_int_equal(order.n, n);
  for (int i = 0; i < n; i++) {
    assert_ptr_equal(order.at[i], expected[i]->node);
    assert_int_equal(ir_order_find(&order, expected[i]->node), i);
  }
  ir_order_fini(ctx, &order);
  assert_null(order.at);
  assert_int_equal(order.n, 0);
}

static void test_topo(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(2)), *b = INPUT(F32, "b", DIMS(2)), *unused = U(EXP, a);
  quern_tensor *c = B(ADD, a, b), *d = U(NEG, c), *e = B(MUL, d, c), *f = B(SUB, a, e);
  expect_order(TENSORS(f), TENSORS(a, b, c, d, e, f));
  expect_order(TENSORS(d, a), TENSORS(a, b, c, d));
  expect_order(TENSORS(a, d, d, a), TENSORS(a, b, c, d)); /* each node once */
  expect_order(TENSORS(b), TENSORS(b));
  expect_order(TENSORS(a, b), TENSORS(a, b));
  expect_order(TENSORS(b, a), TENSORS(a, b));
  expect_order(TENSORS(f, unused), TENSORS(a, b, unused, c, d, e, f));
  expect_order(0, NULL, 0, NULL);

  struct ir_order order;
  assert_int_equal(ir_topo(ctx, 1, &d, &order), QUERN_STATUS_OK);
  assert_int_equal(ir_order_find(&order, f->node), -1);
  assert_int_equal(ir_order_find(&order, unused->node), -1);
  ir_order_fini(ctx, &order);
  assert_int_equal(ir_order_find(&order, a->node), -1);
}

/* An order stays good while others are made, and does not take nodes of another context for its own. */
static void test_orders_at_once(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(2)), *b = INPUT(F32, "b", DIMS(2)), *c = B(SUB, b, a), *d = U(NEG, b);
  struct ir_order first, second;
  assert_int_equal(ir_topo(ctx, 1, &c, &first), QUERN_STATUS_OK);
  assert_int_equal(ir_topo(ctx, 1, &d, &second), QUERN_STATUS_OK);
  quern_tensor *const in_first[] = {a, b, c}, *const in_second[] = {b, d};
  for (int i = 0; i < 3; i++) assert_int_equal(ir_order_find(&first, in_first[i]->node), i);
  for (int i = 0; i < 2; i++) assert_int_equal(ir_order_find(&second, in_second[i]->node), i);
  assert_int_equal(ir_order_find(&first, d->node), -1);
  assert_int_equal(ir_order_find(&second, a->node), -1);
  assert_int_equal(ir_order_find(&second, c->node), -1);
  ir_order_fini(ctx, &first);
  assert_int_equal(ir_order_find(&second, d->node), 1);

  quern_context *other = NULL;
  assert_int_equal(ir_context_new(&other, NULL), QUERN_STATUS_OK);
  quern_tensor *foreign = ir_const(other, QUERN_DTYPE_F32, 1);
  for (int i = 0; i < 3; i++) { /* the walks of both have the same numbers */
    struct ir_order abroad;
    assert_int_equal(ir_topo(other, 1, &foreign, &abroad), QUERN_STATUS_OK);
    assert_int_equal(ir_order_find(&second, foreign->node), -1);
    assert_int_equal(ir_order_find(&abroad, foreign->node), 0);
    assert_int_equal(ir_order_find(&abroad, a->node), -1);
    assert_int_equal(ir_order_find(&abroad, b->node), -1);
    ir_order_fini(other, &abroad);
  }
  ir_order_fini(ctx, &second);
  quern_context_free(other);
}

/* A node with several results is one node; subgraphs are not entered. */
static void test_topo_of_results_and_bodies(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", DIMS(2)), *sorted = IR_MAKE(ctx, IR_SORT, NULL, x), *index = ir_result(sorted, 1);
  expect_order(TENSORS(index, sorted), TENSORS(x, sorted));
  quern_tensor *leaf = LEAF(F32, 1, (int64_t[]){2});
  const struct ir_graph *body = GRAPH(TENSORS(leaf), TENSORS(U(EXP, leaf)));
  quern_tensor *y = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "e", .body = body), x);
  expect_order(TENSORS(y), TENSORS(x, y));
}

/* A deep chain and a wide fan: no recursion, and ids are in order whatever way they are met. */
static void test_topo_of_large_graphs(void **state) {
  (void)state;
  enum { DEPTH = 20000 };
  static quern_tensor *at[DEPTH];
  at[0] = INPUT(F32, "x", SCALAR);
  for (int i = 1; i < DEPTH; i++) at[i] = B(ADD, at[i - 1], at[(i * 7919) % i]);
  struct ir_order order;
  assert_int_equal(ir_topo(ctx, 1, &at[DEPTH - 1], &order), QUERN_STATUS_OK);
  assert_int_equal(order.n, DEPTH);
  for (size_t i = 1; i < order.n; i++) assert_true(order.at[i - 1]->id < order.at[i]->id);
  ir_order_fini(ctx, &order);
  /* roots in an order that is not that of ids */
  static quern_tensor *roots[DEPTH];
  for (int i = 0; i < DEPTH; i++) roots[i] = at[(i * 7919) % DEPTH];
  assert_int_equal(ir_topo(ctx, DEPTH, roots, &order), QUERN_STATUS_OK);
  assert_int_equal(order.n, DEPTH);
  for (size_t i = 0; i < order.n; i++) assert_ptr_equal(order.at[i], at[i]->node);
  ir_order_fini(ctx, &order);
}

/* The marks of walks begin again when their numbers are used up. */
static void test_topo_after_many_walks(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", SCALAR), *y = U(NEG, x);
  expect_order(TENSORS(y), TENSORS(x, y));
  ctx->epoch = UINT32_MAX - 1;
  expect_order(TENSORS(y), TENSORS(x, y)); /* marked with the last number */
  quern_tensor *z = U(EXP, y);             /* never marked */
  expect_order(TENSORS(z), TENSORS(x, y, z));
  assert_int_equal(ctx->epoch, 1);
  expect_order(TENSORS(z), TENSORS(x, y, z));
}

static void test_topo_of_poison(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", SCALAR), *y = U(NEG, x);
  struct ir_order order;
  EXPECT_ERROR(ir_topo(ctx, 2, (quern_tensor *[]){x, &ir_poison}, &order), INTERNAL, "reaches the poison");
  EXPECT_ERROR(ir_topo(ctx, 1, (quern_tensor *[]){NULL}, &order), INTERNAL, "reaches the poison");
  y->node->src[0] = &ir_poison;
  EXPECT_ERROR(ir_topo(ctx, 1, &y, &order), INTERNAL, "reaches the poison");
  assert_null(order.at);
  y->node->src[0] = x;
}

/* ---- rebuilding ------------------------------------------------------------------------------------------------- */

static void test_substitute(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(2)), *b = INPUT(F32, "b", DIMS(2)), *c = INPUT(F32, "c", DIMS(2));
  quern_tensor *sum = B(ADD, a, b), *y = B(SUB, U(EXP, sum), a), *out[3];
  /* a leaf */
  assert_int_equal(ir_substitute(ctx, 2, (quern_tensor *[]){y, b}, 1, &a, &c, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], B(SUB, U(EXP, B(ADD, c, b)), c));
  assert_ptr_equal(out[1], b);
  /* both at once, not one after the other */
  assert_int_equal(ir_substitute(ctx, 1, &y, 2, (quern_tensor *[]){a, b}, (quern_tensor *[]){b, a}, out),
                   QUERN_STATUS_OK);
  assert_ptr_equal(out[0], B(SUB, U(EXP, sum), b));
  /* an inner node, and a root */
  assert_int_equal(ir_substitute(ctx, 1, &y, 1, &sum, &c, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], B(SUB, U(EXP, c), a));
  assert_int_equal(ir_substitute(ctx, 2, (quern_tensor *[]){y, sum}, 1, &y, &c, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], c);
  assert_ptr_equal(out[1], sum);
  /* nothing to do makes no nodes */
  size_t nodes = quern_context_node_count(ctx);
  assert_int_equal(ir_substitute(ctx, 1, &y, 1, &c, &a, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], y);
  assert_int_equal(ir_substitute(ctx, 1, &y, 0, NULL, NULL, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], y);
  assert_int_equal(quern_context_node_count(ctx), nodes);
  quern_tensor *scalar = REAL(F32, 0);
  EXPECT_ERROR(ir_substitute(ctx, 1, &y, 1, &a, &scalar, out), INTERNAL, "substitute: f32(2,) by f32()");
}

/* One result of a node with two. */
static void test_substitute_a_result(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", DIMS(2)), *sorted = IR_MAKE(ctx, IR_SORT, NULL, x), *index = ir_result(sorted, 1);
  quern_tensor *c = INPUT(F32, "c", DIMS(2)), *out[2], *taken = IR_MAKE(ctx, IR_GATHER, NULL, x, index);
  assert_int_equal(ir_substitute(ctx, 2, (quern_tensor *[]){U(NEG, sorted), taken}, 1, &sorted, &c, out),
                   QUERN_STATUS_OK);
  assert_ptr_equal(out[0], U(NEG, c));
  assert_ptr_equal(out[1], taken);
}

/* Counts visits, and makes NEG into EXP. */
struct visits {
  int n;
  enum ir_op fail_at;
};

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  struct visits *visits = user;
  visits->n++;
  if (node->op == visits->fail_at) return base_error(QUERN_STATUS_UNSUPPORTED, "no %s here", ir_ops[node->op].name);
  if (node->op != IR_NEG) return ir_rebuild(node, src, out);
  out[0] = U(EXP, src[0]);
  return QUERN_STATUS_OK;
}

static void test_transform(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", DIMS(2)), *y = B(ADD, U(NEG, U(NEG, x)), x), *out[2];
  struct visits visits = {.fail_at = IR_OP_COUNT};
  assert_int_equal(ir_transform(ctx, 2, (quern_tensor *[]){y, y}, visit, &visits, out), QUERN_STATUS_OK);
  assert_int_equal(visits.n, 4);
  assert_ptr_equal(out[0], B(ADD, U(EXP, U(EXP, x)), x));
  assert_ptr_equal(out[1], out[0]);
  visits.fail_at = IR_ADD;
  size_t live = ctx->heap.live;
  EXPECT_ERROR(ir_transform(ctx, 1, &y, visit, &visits, out), UNSUPPORTED, "no add here");
  assert_int_equal(ctx->heap.live, live);
}

static void test_rebuild(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(2)), *b = INPUT(F32, "b", DIMS(2)), *wrong = INPUT(F32, "c", DIMS(3)), *out[2];
  quern_tensor *y = B(ADD, a, b);
  assert_int_equal(ir_rebuild(y->node, (quern_tensor *[]){a, b}, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], y);
  assert_int_equal(ir_rebuild(y->node, (quern_tensor *[]){b, b}, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], B(ADD, b, b));
  EXPECT_ERROR(ir_rebuild(y->node, (quern_tensor *[]){a, wrong}, out), SHAPE, "add: shapes differ");
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  quern_tensor *sorted = IR_MAKE(ctx, IR_SORT, ATTRS(.reverse = 1), a);
  assert_int_equal(ir_rebuild(sorted->node, &b, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[1], ir_result(IR_MAKE(ctx, IR_SORT, ATTRS(.reverse = 1), b), 1));
  assert_ptr_equal(out[0]->node, out[1]->node);
}

/* ---- closed graphs ---------------------------------------------------------------------------------------------- */

static void test_graph_make(void **state) {
  (void)state;
  quern_tensor *a = LEAF(F32, 1, (int64_t[]){2}), *b = LEAF(F32, 1, (int64_t[]){2}), *unused = LEAF0(I64);
  quern_tensor *one = REAL(F32, 1), *y = B(SUB, a, b);
  const struct ir_graph *g = GRAPH(TENSORS(a, b, unused), TENSORS(y, a, one));
  assert_int_equal(g->n_params, 3);
  assert_int_equal(g->n_results, 3);
  assert_int_equal(g->depth, 0);
  assert_ptr_equal(g->ctx, ctx);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(g->params[i]->node->op, IR_PARAM);
    assert_int_equal(g->params[i]->node->attrs->index, i);
  }
  assert_int_equal(g->params[2]->dtype, QUERN_DTYPE_I64);
  assert_ptr_equal(g->results[0], B(SUB, g->params[0], g->params[1]));
  assert_ptr_equal(g->results[1], g->params[0]);
  assert_ptr_equal(g->results[2], one);
  assert_true(ir_graph_is_interned(g));
  quern_tensor *roots[] = {IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "g", .body = g), REALS(F32, DIMS(2), 5, 7),
                                   REALS(F32, DIMS(2), 1, 2), INT(I64, 0))};
  EXPECT_REALS(roots[0], 4, 5);
  EXPECT_REALS(ir_result(roots[0], 1), 5, 7);
  EXPECT_REALS(ir_result(roots[0], 2), 1);
}

static const struct ir_graph *difference(bool swap, int n_params) {
  quern_tensor *a = LEAF0(F32), *b = LEAF0(F32), *c = LEAF0(F32);
  quern_tensor *y = swap ? B(SUB, b, a) : B(SUB, a, b), *params[] = {a, b, c};
  return test_graph(n_params, params, 1, &y);
}

/* Equal graphs are one, whatever leaves they were built on. */
static void test_graphs_are_interned(void **state) {
  (void)state;
  const struct ir_graph *g = difference(false, 2);
  assert_ptr_equal(difference(false, 2), g);
  assert_ptr_not_equal(difference(true, 2), g);
  assert_ptr_not_equal(difference(false, 3), g); /* one more param */
  quern_tensor *a = LEAF0(F32), *b = LEAF0(F32), *y = B(SUB, a, b);
  assert_ptr_equal(GRAPH(TENSORS(b, a), TENSORS(B(SUB, b, a))), g);
  assert_ptr_not_equal(GRAPH(TENSORS(a, b), TENSORS(y, y)), g);
  assert_ptr_not_equal(GRAPH(TENSORS(a, b), TENSORS(a)), GRAPH(TENSORS(a, b), TENSORS(b)));
  quern_tensor *s = LEAF(F32, 1, (int64_t[]){2}), *sorted = IR_MAKE(ctx, IR_SORT, NULL, s);
  assert_ptr_not_equal(GRAPH(TENSORS(s), TENSORS(sorted)), GRAPH(TENSORS(s), TENSORS(ir_result(sorted, 1))));
  assert_true(g->id < difference(true, 2)->id);
  struct ir_graph other = *g;
  assert_false(ir_graph_is_interned(&other));
}

/* Graphs whose hashes are equal, but nothing else: each lookup meets another graph. */
static void test_graphs_of_equal_hashes(void **state) {
  (void)state;
  quern_tensor *a = LEAF0(F32), *b = LEAF0(F32), *c = LEAF0(I32);
  for (int k = 0; k < 4; k++) {
    const struct ir_graph *g[2], *again;
    for (int turn = 0; turn < 2; turn++) {
      const struct ir_graph *plain = GRAPH(TENSORS(a, b), TENSORS(a));
      const struct ir_graph *other = k == 0   ? GRAPH(TENSORS(a, b), TENSORS(b))
                                     : k == 1 ? GRAPH(TENSORS(a, b), TENSORS(a, a))
                                     : k == 2 ? GRAPH(TENSORS(a, b, c), TENSORS(a))
                                              : GRAPH(TENSORS(a, c), TENSORS(a));
      if (turn == 0) {
        g[0] = plain, g[1] = other;
        test_swap_items(&ctx->graphs, plain, other);
      } else {
        assert_true(plain != g[0] && plain != g[1] && other != g[0] && other != g[1]);
        test_swap_items(&ctx->graphs, g[0], g[1]);
      }
    }
    again = GRAPH(TENSORS(a, b), TENSORS(a));
    assert_ptr_equal(again, g[0]);
  }
}

static void test_graphs_are_closed(void **state) {
  (void)state;
  const struct ir_graph *g = NULL;
  quern_tensor *p = LEAF0(F32), *q = LEAF0(F32), *y = B(ADD, p, q);
  EXPECT_ERROR(ir_graph_make(ctx, 1, &p, 1, &y, &g), INVALID,
               "a body uses input '' f32(), which is not among its operands HINT: pass it");
  quern_tensor *x = INPUT(F32, "weights", SCALAR);
  y = B(ADD, p, x);
  EXPECT_ERROR(ir_graph_make(ctx, 1, &p, 1, &y, &g), INVALID, "a body uses input 'weights' f32()");
  quern_tensor *s = ir_make(ctx, IR_STATE, 0, NULL, ATTRS(.name = "step", .dtype = QUERN_DTYPE_F32));
  y = B(ADD, p, s);
  EXPECT_ERROR(ir_graph_make(ctx, 1, &p, 1, &y, &g), INVALID, "a body uses state 'step'");
  quern_tensor *buffer =
      ir_make(ctx, IR_BUFFER, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .buffer = ir_buffer_new(ctx, 4)));
  y = B(ADD, p, buffer);
  EXPECT_ERROR(ir_graph_make(ctx, 1, &p, 1, &y, &g), INVALID, "a body uses buffer ''");
  quern_tensor *param = ir_make(ctx, IR_PARAM, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32));
  y = B(ADD, p, param);
  EXPECT_ERROR(ir_graph_make(ctx, 1, &p, 1, &y, &g), INVALID, "a body uses param ''");
  assert_null(g);
  y = B(ADD, p,
        IR_MAKE(ctx, IR_REDUCE, ATTRS(.axes = DIMS(0)),
                ir_make(ctx, IR_IOTA, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .shape = DIMS(3)))));
  GRAPH(TENSORS(p), TENSORS(y)); /* constants and iota may stand inside */
}

static void test_wrong_graphs(void **state) {
  (void)state;
  const struct ir_graph *g = NULL;
  quern_tensor *p = LEAF0(F32), *null = NULL, *poison = U(NOT, p), *poisoned = U(NEG, poison);
  EXPECT_ERROR(ir_graph_make(ctx, 1, &p, 1, &poisoned, &g), DTYPE, "not: does not admit f32");
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK); /* it was reported */
  EXPECT_ERROR(ir_graph_make(ctx, 1, &p, 1, &poisoned, &g), INTERNAL, "poison tensor without an error");
  EXPECT_ERROR(ir_graph_make(ctx, 1, &poison, 1, &p, &g), INTERNAL, "poison tensor without an error");
  EXPECT_ERROR(ir_graph_make(ctx, 1, &p, 1, &null, &g), INVALID, "a body's result 0 is null");
  EXPECT_ERROR(ir_graph_make(ctx, 2, (quern_tensor *[]){p, NULL}, 1, &p, &g), INVALID, "a body's parameter 1 is null");
  quern_context *other = NULL;
  assert_int_equal(ir_context_new(&other, NULL), QUERN_STATUS_OK);
  quern_tensor *foreign = ir_const(other, QUERN_DTYPE_F32, 1);
  EXPECT_ERROR(ir_graph_make(ctx, 1, &p, 2, (quern_tensor *[]){p, foreign}, &g), INVALID,
               "a body's result 1 belongs to another context");
  quern_context_free(other);
  assert_null(g);
  assert_ptr_equal(ir_leaf_like(&ir_poison), &ir_poison);
}

static void test_inline(void **state) {
  (void)state;
  const struct ir_graph *g = difference(false, 2);
  quern_tensor *x = INPUT(F32, "x", SCALAR), *y = U(EXP, x), *out[1];
  assert_int_equal(ir_inline(ctx, g, (quern_tensor *[]){x, y}, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], B(SUB, x, y));
  assert_int_equal(ir_inline(ctx, g, (quern_tensor *[]){y, y}, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], B(SUB, y, y));
  /* args that are params themselves: all are replaced at once */
  assert_int_equal(ir_inline(ctx, g, (quern_tensor *[]){g->params[1], g->params[0]}, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], B(SUB, g->params[1], g->params[0]));
}

static void test_graph_transform(void **state) {
  (void)state;
  quern_tensor *p = LEAF0(F32), *q = LEAF0(F32);
  const struct ir_graph *g = GRAPH(TENSORS(p, q), TENSORS(U(NEG, p), q)), *out = NULL;
  struct visits visits = {.fail_at = IR_OP_COUNT};
  assert_int_equal(ir_graph_transform(ctx, g, visit, &visits, &out), QUERN_STATUS_OK);
  assert_ptr_equal(out, GRAPH(TENSORS(p, q), TENSORS(U(EXP, p), q)));
  const struct ir_graph *again = NULL;
  assert_int_equal(ir_graph_transform(ctx, out, visit, &visits, &again), QUERN_STATUS_OK);
  assert_ptr_equal(again, out); /* nothing to change */
  visits.fail_at = IR_NEG;
  EXPECT_ERROR(ir_graph_transform(ctx, g, visit, &visits, &again), UNSUPPORTED, "no neg here");
}

/* ---- composites ------------------------------------------------------------------------------------------------- */

static quern_tensor *composite(const char *name, const struct ir_graph *body, quern_tensor *x) {
  return IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = name, .body = body), x);
}

static void test_inline_composites(void **state) {
  (void)state;
  quern_tensor *p = LEAF0(F32), *i = LEAF0(I64), *yes = LEAF0(BOOL);
  const struct ir_graph *twice = GRAPH(TENSORS(p), TENSORS(B(ADD, p, p)));
  const struct ir_graph *four = GRAPH(TENSORS(p), TENSORS(composite("twice", twice, composite("twice", twice, p))));
  const struct ir_graph *plain = GRAPH(TENSORS(p), TENSORS(B(ADD, B(ADD, p, p), B(ADD, p, p))));
  assert_int_equal(four->depth, 1);
  quern_tensor *x = INPUT(F32, "x", SCALAR), *out[3];
  quern_tensor *y = U(EXP, composite("four", four, x));
  quern_tensor *z = IR_MAKE(ctx, IR_IF, ATTRS(.body = four, .other = twice), INT(BOOL, 1), y);
  const struct ir_graph *body =
      GRAPH(TENSORS(i, p, yes), TENSORS(IR_MAKE(ctx, IR_IF, ATTRS(.body = four, .other = twice), yes, p)));
  assert_int_equal(body->depth, 2);
  quern_tensor *w = IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 3, .carries = 1, .body = body), x, INT(BOOL, 1));
  assert_int_equal(ir_inline_composites(ctx, 3, (quern_tensor *[]){y, z, w}, out), QUERN_STATUS_OK);
  quern_tensor *two = B(ADD, x, x), *flat = U(EXP, B(ADD, two, two));
  assert_ptr_equal(out[0], flat);
  assert_ptr_equal(out[1], IR_MAKE(ctx, IR_IF, ATTRS(.body = plain, .other = twice), INT(BOOL, 1), flat));
  const struct ir_graph *inside =
      GRAPH(TENSORS(i, p, yes), TENSORS(IR_MAKE(ctx, IR_IF, ATTRS(.body = plain, .other = twice), yes, p)));
  assert_int_equal(inside->depth, 1);
  assert_ptr_equal(out[2], IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 3, .carries = 1, .body = inside), x, INT(BOOL, 1)));
  quern_tensor *same[3];
  assert_int_equal(ir_inline_composites(ctx, 3, out, same), QUERN_STATUS_OK);
  assert_memory_equal(same, out, sizeof out);
}

/* Composites whose results are used one by one, and while, which has two bodies. */
static void test_inline_results(void **state) {
  (void)state;
  quern_tensor *p = LEAF0(F32), *q = LEAF0(F32), *out[2];
  const struct ir_graph *both = GRAPH(TENSORS(p, q), TENSORS(B(SUB, p, q), p));
  quern_tensor *x = INPUT(F32, "x", SCALAR), *y = INPUT(F32, "y", SCALAR);
  quern_tensor *c = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "both", .body = both), x, y);
  assert_int_equal(ir_inline_composites(ctx, 2, (quern_tensor *[]){ir_result(c, 1), c}, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], x);
  assert_ptr_equal(out[1], B(SUB, x, y));

  const struct ir_graph *negative = GRAPH(TENSORS(p), TENSORS(B(LT, p, REAL(F32, 0))));
  const struct ir_graph *below = GRAPH(TENSORS(p), TENSORS(composite("negative", negative, p)));
  const struct ir_graph *half = GRAPH(TENSORS(p), TENSORS(U(NEG, p)));
  quern_tensor *w = IR_MAKE(ctx, IR_WHILE, ATTRS(.carries = 1, .body = half, .other = below), x);
  assert_int_equal(ir_inline_composites(ctx, 1, &w, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], IR_MAKE(ctx, IR_WHILE, ATTRS(.carries = 1, .body = half, .other = negative), x));
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static quern_status everything(void) {
  quern_tensor *p = LEAF0(F32), *i = LEAF0(I64), *x = INPUT(F32, "x", SCALAR), *y[3], *out[3];
  const struct ir_graph *twice, *body;
  y[0] = B(ADD, p, p);
  QUERN_TRY(ir_graph_make(ctx, 1, &p, 1, y, &twice));
  y[0] = composite("twice", twice, p), y[1] = U(EXP, p);
  QUERN_TRY(ir_graph_make(ctx, 2, (quern_tensor *[]){i, p}, 2, y, &body));
  y[0] = IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 2, .carries = 1, .body = body), x);
  y[1] = ir_result(y[0], 1);
  for (int k = 0; k < 40; k++) x = k % 2 == 0 ? U(NEG, x) : B(SUB, x, y[0]);
  y[2] = x;
  QUERN_TRY(quern_context_check(ctx));
  QUERN_TRY(ir_inline_composites(ctx, 3, y, out));
  return ir_verify(ctx, 3, out);
}

static void test_every_allocation_fails(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew(); /* so that nothing is interned already */
    fault_begin(&fault);
    quern_status status = everything();
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  }
  assert_true(fault.n > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_topo),
      TEST(test_orders_at_once),
      TEST(test_topo_of_results_and_bodies),
      TEST(test_topo_of_large_graphs),
      TEST(test_topo_after_many_walks),
      TEST(test_topo_of_poison),
      TEST(test_substitute),
      TEST(test_substitute_a_result),
      TEST(test_transform),
      TEST(test_rebuild),
      TEST(test_graph_make),
      TEST(test_graphs_are_interned),
      TEST(test_graphs_of_equal_hashes),
      TEST(test_graphs_are_closed),
      TEST(test_wrong_graphs),
      TEST(test_inline),
      TEST(test_graph_transform),
      TEST(test_inline_composites),
      TEST(test_inline_results),
      TEST(test_every_allocation_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
