/* tests/ir/test_eval_leaf.c -- leaves, bindings, roots, errors, and how long values live */
#include "ir/ir_test.h"

#define B(NAME, a, b) IR_MAKE(ctx, IR_##NAME, NULL, a, b)

static quern_status eval1(quern_tensor *t, void *dst, size_t n_bindings, const struct ir_binding *bindings) {
  return ir_eval(ctx, 1, &t, &dst, n_bindings, bindings);
}

static void test_bindings(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", DIMS(2));
  quern_tensor *s = ir_make(ctx, IR_STATE, 0, NULL, ATTRS(.name = "s", .dtype = QUERN_DTYPE_F32, .shape = DIMS(2)));
  const float x_data[2] = {1, 2}, s_data[2] = {10, 20};
  float y[2] = {0, 0};
  struct ir_binding bindings[] = {{s, s_data}, {x, x_data}};
  assert_int_equal(eval1(B(SUB, x, s), y, 2, bindings), QUERN_STATUS_OK);
  assert_true(y[0] == -9 && y[1] == -18);
  assert_int_equal(eval1(x, y, 2, bindings), QUERN_STATUS_OK); /* a leaf as root is copied */
  assert_true(y[0] == 1 && y[1] == 2);
  EXPECT_ERROR(eval1(B(SUB, x, s), y, 1, bindings), UNBOUND, "input \"x\", f32(2,)");
  EXPECT_ERROR(eval1(B(SUB, x, s), y, 1, bindings + 1), UNBOUND, "state \"s\", f32(2,)");
  EXPECT_ERROR(eval1(x, y, 1, &(struct ir_binding){x, NULL}), UNBOUND, "\"x\"");
}

static void test_buffer(void **state) {
  (void)state;
  float data[2] = {3, 4}, y[2] = {0, 0};
  const float other[2] = {5, 6};
  struct ir_buffer full = {.data = data, .bytes = sizeof data}, none = {.bytes = sizeof data};
  quern_tensor *x =
      ir_make(ctx, IR_BUFFER, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .shape = DIMS(2), .buffer = &full));
  quern_tensor *e =
      ir_make(ctx, IR_BUFFER, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .shape = DIMS(2), .buffer = &none));
  EXPECT_REALS(x, 3, 4);
  data[1] = 7; /* used where it lies */
  EXPECT_REALS(x, 3, 7);
  assert_int_equal(eval1(x, y, 1, &(struct ir_binding){x, other}), QUERN_STATUS_OK);
  assert_true(y[0] == 5 && y[1] == 6);
  EXPECT_ERROR(eval1(e, y, 0, NULL), UNBOUND, "a buffer, f32(2,)");
  assert_int_equal(eval1(e, y, 1, &(struct ir_binding){e, data}), QUERN_STATUS_OK);
  assert_true(y[0] == 3 && y[1] == 7);
}

static void test_empty_leaves(void **state) {
  (void)state;
  struct ir_buffer none = {0};
  quern_tensor *x = INPUT(F32, "x", DIMS(0, 3));
  quern_tensor *e =
      ir_make(ctx, IR_BUFFER, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .shape = DIMS(0, 3), .buffer = &none));
  assert_int_equal(eval1(B(ADD, x, e), NULL, 1, &(struct ir_binding){x, NULL}), QUERN_STATUS_OK);
  assert_int_equal(eval1(x, NULL, 1, &(struct ir_binding){x, NULL}), QUERN_STATUS_OK);
  assert_int_equal(eval1(EMPTY(F32, DIMS(0)), NULL, 0, NULL), QUERN_STATUS_OK);
  assert_int_equal(ir_eval(ctx, 0, NULL, NULL, 0, NULL), QUERN_STATUS_OK);
}

static void test_roots(void **state) {
  (void)state;
  quern_tensor *x = INTS(I32, DIMS(3), 3, 1, 2), *sorted = IR_MAKE(ctx, IR_SORT, ATTRS(.axis = 0), x);
  quern_tensor *roots[] = {ir_result(sorted, 1), x, sorted, ir_result(sorted, 1), B(ADD, sorted, x)};
  int64_t order[3], again[3];
  int32_t copy[3], values[3], sum[3];
  void *dst[] = {order, copy, values, again, sum};
  assert_int_equal(ir_eval(ctx, 5, roots, dst, 0, NULL), QUERN_STATUS_OK);
  assert_true(order[0] == 1 && order[1] == 2 && order[2] == 0);
  assert_true(copy[0] == 3 && copy[1] == 1 && copy[2] == 2);
  assert_true(values[0] == 1 && values[1] == 2 && values[2] == 3);
  assert_memory_equal(order, again, sizeof order);
  assert_true(sum[0] == 4 && sum[1] == 3 && sum[2] == 5);
  EXPECT_INTS(ir_result(sorted, 1), 1, 2, 0); /* one result of two */
}

static void test_bad_calls(void **state) {
  (void)state;
  float y[2];
  quern_tensor *x = INPUT(F32, "x", DIMS(2)), *c = REALS(F32, DIMS(2), 1, 2);
  EXPECT_ERROR(eval1(NULL, y, 0, NULL), INVALID, "root 0 is null");
  EXPECT_ERROR(eval1(&ir_poison, y, 0, NULL), INVALID, "root 0");
  EXPECT_ERROR(eval1(c, NULL, 0, NULL), INVALID, "f32(2,)");
  EXPECT_ERROR(ir_eval(ctx, 1, NULL, NULL, 0, NULL), INVALID, "roots");
  EXPECT_ERROR(ir_eval(ctx, 1, &c, NULL, 0, NULL), INVALID, "places");
  EXPECT_ERROR(eval1(c, y, 1, NULL), INVALID, "1 bindings");
  EXPECT_ERROR(eval1(c, y, 1, &(struct ir_binding){NULL, y}), INVALID, "leaf 0 is null");
  EXPECT_ERROR(eval1(c, y, 1, &(struct ir_binding){c, y}), INVALID, "const");
  /* What a builder recorded comes first, once. */
  quern_tensor *bad = B(ADD, x, REALS(F32, DIMS(3), 1, 2, 3));
  assert_true(ir_is_poison(bad));
  EXPECT_ERROR(eval1(bad, y, 0, NULL), SHAPE, "add");
  EXPECT_ERROR(eval1(bad, y, 0, NULL), INVALID, "root 0");
  assert_int_equal(eval1(c, y, 0, NULL), QUERN_STATUS_OK);

  quern_context *other = NULL;
  assert_int_equal(ir_context_new(&other, NULL), QUERN_STATUS_OK);
  quern_tensor *stranger = ir_const(other, QUERN_DTYPE_F32, 1);
  EXPECT_ERROR(eval1(stranger, y, 0, NULL), INVALID, "another context");
  EXPECT_ERROR(eval1(c, y, 1, &(struct ir_binding){stranger, y}), INVALID, "another context");
  quern_context_free(other);
}

static void test_iota(void **state) {
  (void)state;
#define IOTA(DTYPE, SHAPE, AXIS)                                                                                       \
  ir_make(ctx, IR_IOTA, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_##DTYPE, .shape = SHAPE, .axis = AXIS))
  EXPECT_INTS(IOTA(I32, DIMS(2, 3), 0), 0, 0, 0, 1, 1, 1);
  EXPECT_INTS(IOTA(I64, DIMS(2, 3), 1), 0, 1, 2, 0, 1, 2);
  EXPECT_REALS(IOTA(F32, DIMS(2, 2, 2), 1), 0, 0, 1, 1, 0, 0, 1, 1);
  EXPECT_EMPTY(IOTA(F32, DIMS(2, 0), 0));
  quern_tensor *wrapped = IOTA(U8, DIMS(258), 0);
  EXPECT_INTS(IR_MAKE(ctx, IR_SLICE, ATTRS(.lo = DIMS(254), .hi = DIMS(258), .step = DIMS(1)), wrapped), 254, 255, 0,
              1);
}

static void test_random(void **state) {
  (void)state;
  quern_tensor *seed = INT(U64, 0x123456789), *step = INT(U64, 0x700000003);
  quern_tensor *y = IR_MAKE(ctx, IR_RANDOM, ATTRS(.shape = DIMS(2, 3), .stream = 4000000000), seed, step);
  const uint32_t key[2] = {0x23456789, 0x1};
  uint32_t words[8];
  base_philox((const uint32_t[]){0, 4000000000u, 3, 7}, key, words);
  base_philox((const uint32_t[]){1, 4000000000u, 3, 7}, key, words + 4);
  EXPECT_BITS(y, words);
  quern_tensor *z = IR_MAKE(ctx, IR_RANDOM, ATTRS(.shape = SCALAR, .stream = 0), seed, step);
  base_philox((const uint32_t[]){0, 0, 3, 7}, key, words);
  EXPECT_BITS(z, words);
}

/* Values are freed after their last use: a long chain needs no more than a few of them at once. */
static void test_memory(void **state) {
  (void)state;
  enum { N = 1 << 16, LINKS = 100 };
  static float data[N], y[N];
  quern_tensor *x = INPUT(F32, "x", DIMS(N)), *t = x;
  for (int i = 0; i < N; i++) data[i] = (float)i;
  for (int i = 0; i < LINKS; i++) t = B(ADD, t, x);
  size_t live = ctx->heap.live;
  ctx->heap.peak = live;
  assert_int_equal(eval1(t, y, 1, &(struct ir_binding){x, data}), QUERN_STATUS_OK);
  assert_true(y[N - 1] == 101.0f * (N - 1));
  assert_int_equal(ctx->heap.live, live);
  assert_in_range(ctx->heap.peak - live, sizeof y, 2 * sizeof y + 400000);
}

/* A result that nobody uses is freed at once, be it the first or the second. */
static void check_unused_results(int used) {
  enum { N = 1 << 15, LINKS = 40 };
  static int64_t data[N], y[N];
  quern_tensor *x = INPUT(I64, "x", DIMS(1, N)), *t = x;
  for (int i = 0; i < N; i++) data[i] = i;
  for (int i = 0; i < LINKS; i++) t = ir_result(IR_MAKE(ctx, IR_SORT, ATTRS(.axis = 0, .reverse = i % 2), t), used);
  size_t live = ctx->heap.live;
  ctx->heap.peak = live;
  assert_int_equal(eval1(t, y, 1, &(struct ir_binding){x, data}), QUERN_STATUS_OK);
  for (int i = 0; i < N; i++) assert_int_equal(y[i], used == 0 ? i : 0);
  assert_int_equal(ctx->heap.live, live);
  /* A source, two results, the places of all lines, and little else. */
  assert_in_range(ctx->heap.peak - live, 3 * sizeof y, 4 * sizeof y + 400000);
}

static void test_memory_of_unused_results(void **state) {
  (void)state;
  check_unused_results(0);
  check_unused_results(1);
}

static void test_deep(void **state) {
  (void)state;
  quern_tensor *t = INT(I64, 1), *one = t;
  for (int i = 0; i < 100000; i++) t = B(ADD, t, one);
  EXPECT_INTS(t, 100001);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_bindings), TEST(test_buffer),    TEST(test_empty_leaves),
      TEST(test_roots),    TEST(test_bad_calls), TEST(test_iota),
      TEST(test_random),   TEST(test_memory),    TEST(test_memory_of_unused_results),
      TEST(test_deep),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
