/* tests/ir/test_verify.c -- the verifier finds each kind of defect: it is planted, found by name, and taken out again */
#include "ir/ir_test.h"

#define U(NAME, x) IR_MAKE(ctx, IR_##NAME, NULL, x)
#define B(NAME, a, b) IR_MAKE(ctx, IR_##NAME, NULL, a, b)

/* A graph with a bit of everything. */
struct parts {
  quern_tensor *a, *b, *sum, *minus, *sorted, *loop, *other_branch;
  const struct ir_graph *body, *twice;
  quern_tensor *roots[3];
};

static struct parts make_parts(void) {
  struct parts p = {0};
  p.a = INPUT(F32, "a", DIMS(3)), p.b = INPUT(F32, "b", DIMS(3));
  p.sum = B(ADD, p.a, p.b);
  p.minus = B(SUB, p.sum, p.b);
  p.sorted = IR_MAKE(ctx, IR_SORT, NULL, p.minus);
  quern_tensor *i = LEAF0(I64), *c = LEAF(F32, 1, (int64_t[]){3}), *unused = LEAF0(F32), *more = LEAF0(F32);
  p.twice = GRAPH(TENSORS(c), TENSORS(B(ADD, c, c)));
  quern_tensor *doubled = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "twice", .body = p.twice), c);
  p.body = GRAPH(TENSORS(i, c, unused, more), TENSORS(doubled, i));
  p.loop = IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 2, .carries = 1, .body = p.body), p.sorted, REAL(F32, 0), REAL(F32, 0));
  p.other_branch = U(EXP, p.loop);
  p.roots[0] = p.other_branch, p.roots[1] = ir_result(p.loop, 1), p.roots[2] = ir_result(p.sorted, 1);
  assert_int_equal(ir_verify(ctx, 3, p.roots), QUERN_STATUS_OK);
  return p;
}

/* Changes a place, expects the verifier's words, and changes it back. */
#define PLANT(p, place, value, words)                                                                                  \
  do {                                                                                                                 \
    __typeof__(place) kept_ = (place);                                                                                 \
    (place) = (value);                                                                                                 \
    EXPECT_ERROR(ir_verify(ctx, 3, (p).roots), INTERNAL, words);                                                       \
    (place) = kept_;                                                                                                   \
    assert_int_equal(ir_verify(ctx, 3, (p).roots), QUERN_STATUS_OK);                                                   \
  } while (0)

static void test_nodes(void **state) {
  (void)state;
  struct parts p = make_parts();
  struct ir_node *sum = p.sum->node, *minus = p.minus->node;
  quern_context *other = NULL;
  assert_int_equal(ir_context_new(&other, NULL), QUERN_STATUS_OK);
  PLANT(p, sum->op, (enum ir_op)IR_OP_COUNT, "verify: node 2 (?): no such op");
  PLANT(p, sum->ctx, other, "verify: node 2 (add): belongs to another context");
  PLANT(p, p.other_branch->node->id, ctx->n_nodes, "(exp): its id was never given");
  PLANT(p, sum->attrs, NULL, "verify: node 2 (add): has no attributes");
  PLANT(p, sum->op, IR_MUL, "verify: node 2 (mul): is not the interned one");
  PLANT(p, sum->hash, sum->hash + 1, "verify: node 2 (add): is not the interned one");
  PLANT(p, minus->op, IR_NEG, "verify: node 3 (neg): wrong number of sources");
  PLANT(p, minus->n_src, 1, "verify: node 3 (sub): wrong number of sources");
  quern_context_free(other);
}

static void test_sources(void **state) {
  (void)state;
  struct parts p = make_parts();
  struct ir_node *sum = p.sum->node, *minus = p.minus->node, *sorted = p.sorted->node;
  PLANT(p, minus->src[0], &ir_poison, "reaches the poison");
  PLANT(p, minus->src[0], NULL, "reaches the poison");
  PLANT(p, minus->src[1], p.minus, "verify: node 3 (sub): a source is not older than its user");
  PLANT(p, minus->src[1], p.sorted, "a source is not older than its user");
  quern_tensor copy = *p.sum;
  PLANT(p, minus->src[0], &copy, "verify: node 3 (sub): a source is no result of its node");
  PLANT(p, p.sum->result, 1, "verify: node 2 (add): a result is not of the inferred type");
  quern_tensor far = {.node = p.sum->node, .result = 1, .dtype = p.sum->dtype, .rank = 1, .dims = p.sum->dims};
  PLANT(p, minus->src[0], &far, "verify: node 3 (sub): a source is no result of its node");
  far.result = -1;
  PLANT(p, minus->src[0], &far, "verify: node 3 (sub): a source is no result of its node");
  PLANT(p, sum->src, ((quern_tensor *[]){p.b, p.a}), "verify: node 2 (add): commutative sources are not in order");
  PLANT(p, minus->src[0], p.a, "verify: node 3 (sub): is not the interned one");
  PLANT(p, sorted->n_src, 0, "wrong number of sources");
}

/* Two results of one node as the sources of a commutative op. */
static void test_order_of_results(void **state) {
  (void)state;
  quern_tensor *sorted = IR_MAKE(ctx, IR_SORT, NULL, INPUT(I64, "x", DIMS(3)));
  struct parts p = make_parts();
  quern_tensor *sum = B(ADD, sorted, ir_result(sorted, 1));
  p.roots[0] = sum;
  quern_tensor *swapped[] = {ir_result(sorted, 1), sorted};
  PLANT(p, sum->node->src, swapped, "(add): commutative sources are not in order");
}

static void test_types(void **state) {
  (void)state;
  struct parts p = make_parts();
  struct ir_node *sum = p.sum->node, *sorted = p.sorted->node;
  PLANT(p, p.other_branch->dtype, QUERN_DTYPE_F64, "(exp): a result is not of the inferred type");
  PLANT(p, p.other_branch->rank, 0, "a result is not of the inferred type");
  PLANT(p, p.other_branch->node->out[0].dims, (const int64_t[]){4}, "a result is not of the inferred type");
  PLANT(p, sorted->n_out, 1, "verify: root 2 is no result of its node");
  PLANT(p, p.loop->node->n_out, 3, "(loop): wrong number of results");
  PLANT(p, ir_result(p.sorted, 1)->dtype, QUERN_DTYPE_I32, "(sort): a result is not of the inferred type");
  PLANT(p, sorted->out[0].node, sum, "(sort): a result is not of the inferred type");
  /* a source's type that the op does not admit: what inference says comes with the node */
  PLANT(p, p.a->dtype, QUERN_DTYPE_F64, "verify: node 0 (input): a result is not of the inferred type");
}

static void test_attributes(void **state) {
  (void)state;
  struct parts p = make_parts();
  struct ir_attrs *sort = (struct ir_attrs *)(uintptr_t)p.sorted->node->attrs;
  struct ir_attrs *loop = (struct ir_attrs *)(uintptr_t)p.loop->node->attrs;
  PLANT(p, sort->reverse, 1, "(sort): is not the interned one");
  PLANT(p, loop->trip, 3, "(loop): is not the interned one");
  /* identity ops are not looked up: their types are checked */
  struct ir_attrs *input = (struct ir_attrs *)(uintptr_t)p.a->node->attrs;
  PLANT(p, input->dtype, QUERN_DTYPE_F64, "(input): a result is not of the inferred type");
  PLANT(p, input->dtype, QUERN_DTYPE_COUNT, "verify: node 0 (input): input: 15 is no dtype");
  PLANT(p, input->shape.n, 17, "verify: node 0 (input): input: rank 17 exceeds 16");
}

static void test_closedness(void **state) {
  (void)state;
  struct parts p = make_parts();
  struct ir_graph *body = (struct ir_graph *)(uintptr_t)p.body, *twice = (struct ir_graph *)(uintptr_t)p.twice;
  PLANT(p, body->results[1], ir_leaf(ctx, QUERN_DTYPE_I64, 0, NULL), "(input): stands in a closed subgraph");
  PLANT(p, body->results[1], ir_make(ctx, IR_STATE, 0, NULL, ATTRS(.name = "s", .dtype = QUERN_DTYPE_I64)),
        "(state): stands in a closed subgraph");
  PLANT(p, twice->results[0], p.sum, "stands in a closed subgraph");
  PLANT(p, p.roots[0], p.body->params[1], "(param): stands outside a subgraph");
  quern_tensor *stray = ir_make(ctx, IR_PARAM, 0, NULL, ATTRS(.index = 5, .dtype = QUERN_DTYPE_I64));
  PLANT(p, body->results[1], stray, "(param): is no parameter of its graph");
  quern_tensor *like = ir_make(ctx, IR_PARAM, 0, NULL, ATTRS(.index = 1, .dtype = QUERN_DTYPE_I64));
  PLANT(p, body->results[1], like, "(param): is no parameter of its graph");
  PLANT(p, body->params[2], p.body->params[3], "verify: parameter 2 of graph 1 is node");
  PLANT(p, body->params[2], REAL(F32, 1), "(const)");
}

static void test_graphs(void **state) {
  (void)state;
  struct parts p = make_parts();
  struct ir_graph *body = (struct ir_graph *)(uintptr_t)p.body, *twice = (struct ir_graph *)(uintptr_t)p.twice;
  quern_context *other = NULL;
  assert_int_equal(ir_context_new(&other, NULL), QUERN_STATUS_OK);
  PLANT(p, body->depth, 3, "says it is 3 deep, it is 1");
  PLANT(p, twice->depth, 1, "says it is 1 deep, it is 2"); /* the outer one is looked at first */
  PLANT(p, body->hash, body->hash + 1, "is not the interned one");
  PLANT(p, twice->hash, 0, "is not the interned one");
  PLANT(p, twice->n_results, 0, "the body has no result");
  PLANT(p, body->n_results, 1, "wrong number of results");
  PLANT(p, twice->ctx, other, "the body belongs to another context");
  quern_context_free(other);
}

/* The depth counts both subgraphs of a node. */
static void test_depth_of_both(void **state) {
  (void)state;
  struct parts p = make_parts();
  quern_tensor *c = LEAF(F32, 1, (int64_t[]){3}), *yes = LEAF0(BOOL);
  quern_tensor *doubled = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "twice", .body = p.twice), c);
  const struct ir_graph *deep = GRAPH(TENSORS(c), TENSORS(doubled)), *flat = GRAPH(TENSORS(c), TENSORS(c));
  for (int first = 0; first < 2; first++) {
    struct ir_attrs attrs = {.body = first != 0 ? deep : flat, .other = first != 0 ? flat : deep};
    const struct ir_graph *both = GRAPH(TENSORS(yes, c), TENSORS(IR_MAKE(ctx, IR_IF, &attrs, yes, c)));
    assert_int_equal(both->depth, 2);
    p.roots[0] = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "both", .body = both), INT(BOOL, 1), p.a);
    assert_int_equal(ir_verify(ctx, 3, p.roots), QUERN_STATUS_OK);
    PLANT(p, ((struct ir_graph *)(uintptr_t)both)->depth, 1, "says it is 1 deep, it is 2");
  }
}

/* A defect deep inside a body is found. */
static void test_inner_nodes(void **state) {
  (void)state;
  struct parts p = make_parts();
  quern_tensor *inner = p.twice->results[0];
  PLANT(p, inner->node->op, IR_MUL, "(mul): is not the interned one");
  PLANT(p, p.body->params[2]->dtype, QUERN_DTYPE_I8, "of a body is");
}

static void test_roots(void **state) {
  (void)state;
  struct parts p = make_parts();
  EXPECT_ERROR(ir_verify(ctx, 2, (quern_tensor *[]){p.a, &ir_poison}), INVALID, "verify: root 1 is poison or null");
  EXPECT_ERROR(ir_verify(ctx, 1, (quern_tensor *[]){NULL}), INVALID, "verify: root 0 is poison or null");
  quern_tensor copy = *p.a;
  EXPECT_ERROR(ir_verify(ctx, 1, (quern_tensor *[]){&copy}), INTERNAL, "verify: root 0 is no result of its node");
  assert_int_equal(ir_verify(ctx, 0, NULL), QUERN_STATUS_OK);
  ir_fail(ctx, QUERN_STATUS_SHAPE, "before");
  EXPECT_ERROR(ir_verify(ctx, 3, p.roots), SHAPE, "before"); /* a builder's error comes first */
  assert_int_equal(ir_verify(ctx, 3, p.roots), QUERN_STATUS_OK);
}

static void test_every_allocation_fails(void **state) {
  (void)state;
  struct parts p = make_parts();
  size_t live = ctx->heap.live;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    base_vec_fini(&ctx->heap, &ctx->types); /* the scratch of inference is allocated anew */
    fault_begin(&fault);
    quern_status status = ir_verify(ctx, 3, p.roots);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_true(ctx->heap.live <= live);
  }
  assert_true(fault.n > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_nodes),
      TEST(test_sources),
      TEST(test_order_of_results),
      TEST(test_types),
      TEST(test_attributes),
      TEST(test_closedness),
      TEST(test_graphs),
      TEST(test_depth_of_both),
      TEST(test_inner_nodes),
      TEST(test_roots),
      TEST(test_every_allocation_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
