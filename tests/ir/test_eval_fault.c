/* tests/ir/test_eval_fault.c -- every allocation of an evaluation fails once: a clean error, nothing held */
#include "ir/ir_test.h"

#define B(NAME, a, b) IR_MAKE(ctx, IR_##NAME, NULL, a, b)

/* Ops of every kind that allocates: values, scratch, frames, plans of subgraphs. */
static quern_tensor *busy(void) {
  struct ir_ints three = DIMS(3);
  quern_tensor *i = LEAF0(I64), *c = LEAF(I64, 1, three.at), *x = LEAF0(I64), *on = LEAF0(BOOL);
  const struct ir_graph *sorted = GRAPH(TENSORS(c), TENSORS(ir_result(IR_MAKE(ctx, IR_SORT, ATTRS(.axis = 0), c), 1)));
  const struct ir_graph *scanned =
      GRAPH(TENSORS(c), TENSORS(IR_MAKE(ctx, IR_SCAN, ATTRS(.reduce = IR_SUM, .axis = 0), c)));
  quern_tensor *either = IR_MAKE(ctx, IR_IF, ATTRS(.body = sorted, .other = scanned), on, c);
  quern_tensor *sum = IR_MAKE(ctx, IR_REDUCE, ATTRS(.reduce = IR_SUM, .axes = DIMS(0)), either);
  const struct ir_graph *body = GRAPH(TENSORS(i, c, x, on), TENSORS(B(ADD, either, c), B(ADD, sum, x)));
  quern_tensor *start = INTS(I64, three, 3, 1, 2), *xs = INTS(I64, DIMS(2), 10, 20);
  struct ir_attrs attrs = {.trip = 2, .carries = 1, .scanned = 1, .body = body};
  quern_tensor *loop = IR_MAKE(ctx, IR_LOOP, &attrs, start, xs, INT(BOOL, 1)); /* (6, 4, 2) and (13, 23) */
  const struct ir_graph *small =
      GRAPH(TENSORS(c), TENSORS(B(LT, IR_MAKE(ctx, IR_REDUCE, ATTRS(.axes = DIMS(0)), c), INT(I64, 90))));
  const struct ir_graph *twice = GRAPH(TENSORS(c), TENSORS(B(ADD, c, c)));
  quern_tensor *grown =
      IR_MAKE(ctx, IR_WHILE, ATTRS(.carries = 1, .body = twice, .other = small), loop); /* (48, 32, 16) */
  quern_tensor *dot = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = DIMS(0), .b_sum = DIMS(0)), grown, start);
  quern_tensor *windows =
      IR_MAKE(ctx, IR_WINDOW, ATTRS(.axes = DIMS(0), .size = DIMS(2), .step = DIMS(1), .dilate = DIMS(1)), grown);
  quern_tensor *fold =
      IR_MAKE(ctx, IR_COL2IM, ATTRS(.shape = three, .axes = DIMS(0), .step = DIMS(1), .dilate = DIMS(1)), windows);
  quern_tensor *best = IR_MAKE(ctx, IR_ARGREDUCE, ATTRS(.reduce = IR_REDUCE_MAX, .axis = 0), fold);
  quern_tensor *scatter = IR_MAKE(ctx, IR_SCATTER, ATTRS(.reduce = IR_SUM, .axis = 0), fold, best, dot);
  /* Long enough for every scratch block to be an allocation of its own. */
  quern_tensor *many = ir_make(ctx, IR_IOTA, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_I64, .shape = DIMS(5000)));
  quern_tensor *order = IR_MAKE(ctx, IR_SORT, ATTRS(.axis = 0, .reverse = 1), many);
  quern_tensor *first =
      IR_MAKE(ctx, IR_SLICE, ATTRS(.lo = DIMS(0), .hi = DIMS(1), .step = DIMS(1)), ir_result(order, 1));
  return IR_MAKE(ctx, IR_CONCAT, ATTRS(.axis = 0), scatter, ir_result(loop, 1), first);
}

static void test_every_allocation_fails(void **state) {
  (void)state;
  quern_tensor *t = busy();
  EXPECT_INTS(t, 48, 64 + (3 * 48 + 32 + 2 * 16), 16, 13, 23, 4999);
  size_t live = ctx->heap.live;
  int64_t got[6];
  void *dst = got;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    memset(got, 0, sizeof got);
    fault_begin(&fault);
    quern_status status = ir_eval(ctx, 1, &t, &dst, 0, NULL);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(ctx->heap.live, live);
    assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
    if (fault.met) assert_true(got[1] == 0 && got[4] == 0); /* results are written when all is well */
  }
  assert_true(fault.n > 51);
  assert_int_equal(got[1], 272);
  assert_int_equal(got[4], 23);
}

/* A graph so large that each of a plan's lists is an allocation of its own. */
static void test_large_plan(void **state) {
  (void)state;
  quern_tensor *t = INT(I64, 0), *one = INT(I64, 1);
  for (int i = 0; i < 3000; i++) t = B(ADD, t, one);
  EXPECT_INTS(t, 3000);
  size_t live = ctx->heap.live;
  int64_t y;
  void *dst = &y;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = ir_eval(ctx, 1, &t, &dst, 0, NULL);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(ctx->heap.live, live);
    if (fault.n > 30) break;
  }
  assert_true(fault.n > 30);
  EXPECT_INTS(t, 3000);
}

/* A value that no memory could hold. */
static void test_too_large(void **state) {
  (void)state;
  int64_t y;
  void *dst = &y;
  quern_tensor *x =
      ir_make(ctx, IR_IOTA, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_I64, .shape = DIMS(INT64_C(1) << 58), .axis = 0));
  quern_tensor *t = IR_MAKE(ctx, IR_REDUCE, ATTRS(.reduce = IR_SUM, .axes = DIMS(0)), x);
  size_t live = ctx->heap.live;
  EXPECT_ERROR(ir_eval(ctx, 1, &t, &dst, 0, NULL), MEMORY, "2305843009213693952 bytes");
  assert_int_equal(ctx->heap.live, live);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_every_allocation_fails), TEST(test_large_plan), TEST(test_too_large)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
