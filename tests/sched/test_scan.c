/* tests/sched/test_scan.c -- scans along any axis, both ways, in one task or many: the same bits, near the
** evaluator's */
#include "sched/run.h"

static quern_tensor *scan(quern_tensor *x, enum ir_reduce reduce, int64_t axis, bool reverse) {
  return IR_MAKE(ctx, IR_SCAN, (&(struct ir_attrs){.reduce = reduce, .axis = axis, .reverse = reverse}), x);
}

static void test_axes(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {{1, 1, 1},  {5, 1, 3},    {3, 4, 2}, {2, 7, 16},
                                      {4, 9, 21}, {1, 100, 33}, {8, 3, 64}};
  for (size_t s = 0; s < BASE_COUNT(shapes); s++) {
    quern_tensor *x = run_data(QUERN_DTYPE_F32, 3, shapes[s], s);
    for (int64_t axis = 0; axis < 3; axis++) {
      EXPECT_SAME(scan(x, IR_SUM, axis, false));
      EXPECT_SAME(scan(x, IR_PROD, axis, true));
      EXPECT_SAME(scan(x, IR_REDUCE_MAX, axis, true), scan(x, IR_REDUCE_MIN, axis, false));
    }
  }
}

static void test_dtypes(void **state) {
  (void)state;
  for (quern_dtype dtype = 0; dtype < QUERN_DTYPE_COUNT; dtype++) {
    quern_tensor *x = run_data(dtype, 2, (int64_t[]){6, 20}, dtype);
    for (int64_t axis = 0; axis < 2; axis++) {
      EXPECT_SAME(scan(x, IR_REDUCE_MAX, axis, axis == 0), scan(x, IR_REDUCE_MIN, axis, axis == 1));
      if (dtype == QUERN_DTYPE_BOOL) continue;
      EXPECT_SAME(scan(x, IR_SUM, axis, false), scan(x, IR_PROD, axis, false));
    }
  }
}

/* Small numbers, so that a long sum of them stays near the evaluator's, which is of doubles. */
static quern_tensor *small(quern_tensor *x) { return quern_mul_scalar(x, 1.0 / 64); }

/* Longer than a part of KERN_SCAN_CHUNK, with few lines and with many. */
static void test_long(void **state) {
  (void)state;
  quern_tensor *x = small(DATA(F32, 9001));
  EXPECT_SAME(scan(x, IR_SUM, 0, false), scan(x, IR_SUM, 0, true), scan(x, IR_REDUCE_MAX, 0, true));
  EXPECT_SAME(scan(DATA(I32, 8192), IR_SUM, 0, true), scan(DATA(F64, 4097), IR_SUM, 0, false));
  EXPECT_SAME(scan(small(DATA(F32, 5000, 3)), IR_SUM, 0, false), scan(DATA(F16, 2, 4200), IR_SUM, 1, true));
  EXPECT_SAME(scan(small(DATA(F32, 8, 4100)), IR_SUM, 1, false));
}

/* What comes before a scan is computed in its kernel. */
static void test_before(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 5, 33), *row = DATA(F32, 1, 33), *rows = quern_add(quern_exp(x), row);
  EXPECT_SAME(scan(rows, IR_SUM, 0, false), scan(rows, IR_SUM, 1, true));
  EXPECT_SAME(scan(quern_transpose(x, 0, 1), IR_SUM, 0, false));
  EXPECT_SAME(scan(quern_cast(x, QUERN_DTYPE_F16), IR_SUM, 1, false));
}

/* Signs of zeros, infinities and NaN along the way; and nothing at all. */
static void test_special(void **state) {
  (void)state;
  float values[] = {-0.0f, -0.0f, 0, 1, INFINITY, 2, NAN, 3};
  quern_tensor *x = quern_tensor_copy(ctx, QUERN_DTYPE_F32, 1, (int64_t[]){8}, values);
  EXPECT_SAME(scan(x, IR_SUM, 0, false), scan(x, IR_SUM, 0, true), scan(x, IR_REDUCE_MAX, 0, false));
  float y[8];
  void *dst[] = {y};
  quern_tensor *root = scan(x, IR_SUM, 0, false);
  run_way(&run_ways[2], 1, &root, dst);
  assert_true(signbit(y[0]) && signbit(y[1]) && !signbit(y[2]) && isinf(y[4]) && isnan(y[6]));
  EXPECT_SAME(scan(DATA(F32, 0, 3), IR_SUM, 0, false), scan(DATA(F32, 3, 0), IR_SUM, 0, false));
}

/* The order that kern.h promises, with numbers for which it shows. */
static void test_order(void **state) {
  (void)state;
  enum { N = 3 * KERN_SCAN_CHUNK + 5 };
  float *x = malloc(N * sizeof *x), *want = malloc(N * sizeof *want), *got = malloc(N * sizeof *got), before = -0.0f,
        sum = 0;
  for (int i = 0; i < N; i++) x[i] = 1.0f + (float)(i % 7) * 0.3f;
  for (int i = 0; i < N; i++) {
    if (i % KERN_SCAN_CHUNK == 0) {
      before = i == 0 ? before : before + sum;
      sum = -0.0f;
    }
    sum += x[i];
    want[i] = before + sum;
  }
  quern_tensor *t = quern_tensor_copy(ctx, QUERN_DTYPE_F32, 1, (int64_t[]){N}, x), *root = scan(t, IR_SUM, 0, false);
  void *dst[] = {got};
  for (size_t w = 0; w < BASE_COUNT(run_ways); w++) {
    run_way(&run_ways[w], 1, &root, dst);
    assert_memory_equal(got, want, N * sizeof *got);
  }
  free(x);
  free(want);
  free(got);
}

static quern_tensor *make_scan(void) { return scan(DATA(F32, 9001), IR_SUM, 0, false); }

static void test_fault(void **state) {
  (void)state;
  run_faults(&run_ways[3], make_scan);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_axes),    TEST(test_dtypes), TEST(test_long), TEST(test_before),
                                     TEST(test_special), TEST(test_order),  TEST(test_fault)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
