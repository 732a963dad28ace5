/* tests/sched/test_sort.c -- sorting along any axis, both ways, all dtypes, short and long lines: exactly the
** evaluator's */
#include "sched/run.h"

/* Both results, in increasing and in decreasing order. */
static void expect_sorted(quern_tensor *x, int64_t axis) {
  for (int reverse = 0; reverse < 2; reverse++) {
    quern_tensor *y = IR_MAKE(ctx, IR_SORT, (&(struct ir_attrs){.axis = axis, .reverse = reverse}), x);
    EXPECT_SAME(y, ir_result(y, 1));
  }
}

static void test_axes(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {{1, 1, 1}, {3, 5, 2}, {2, 64, 3}, {7, 1, 65}, {4, 3, 17}, {2, 2, 200}};
  for (size_t s = 0; s < BASE_COUNT(shapes); s++) {
    quern_tensor *x = run_data(QUERN_DTYPE_F32, 3, shapes[s], s);
    for (int64_t axis = 0; axis < 3; axis++) expect_sorted(x, axis);
  }
  expect_sorted(DATA(F32, 0, 3), 0);
  expect_sorted(DATA(F32, 3, 0), 0);
}

/* Lines with many equal elements: their order is kept. */
static void test_dtypes(void **state) {
  (void)state;
  for (quern_dtype dtype = 0; dtype < QUERN_DTYPE_COUNT; dtype++) {
    expect_sorted(run_data(dtype, 2, (int64_t[]){3, 40}, dtype), 1);
    expect_sorted(run_data(dtype, 2, (int64_t[]){150, 2}, dtype), 0);
  }
}

/* Every 16-bit pattern of both formats, all bytes of the others: NaN, infinities, zeros of both signs, extremes. */
static void test_patterns(void **state) {
  (void)state;
  enum { N = 1 << 16 };
  uint16_t *bits = malloc(N * sizeof *bits);
  uint8_t bytes[256];
  for (uint32_t i = 0; i < N; i++) bits[i] = (uint16_t)(i * 40503u);
  for (uint32_t i = 0; i < 256; i++) bytes[i] = (uint8_t)(i * 77u);
  static const quern_dtype wide[] = {QUERN_DTYPE_F16, QUERN_DTYPE_BF16, QUERN_DTYPE_I16, QUERN_DTYPE_U16};
  static const quern_dtype narrow[] = {QUERN_DTYPE_F8E4M3, QUERN_DTYPE_F8E5M2, QUERN_DTYPE_I8, QUERN_DTYPE_U8};
  for (size_t d = 0; d < 4; d++) {
    expect_sorted(quern_tensor_copy(ctx, wide[d], 1, (int64_t[]){N / 8}, bits), 0);
    expect_sorted(quern_tensor_copy(ctx, narrow[d], 1, (int64_t[]){256}, bytes), 0);
  }
  free(bits);
  double special[100];
  for (int i = 0; i < 100; i++) {
    static const double some[] = {NAN,    1,       -0.0, 0,     -INFINITY, INFINITY, -1,
                                  5e-324, -5e-324, -NAN, 1e300, -1e300,    0x1p-1030};
    special[i] = some[(i * 7) % 13];
  }
  quern_tensor *x = quern_tensor_copy(ctx, QUERN_DTYPE_F64, 1, (int64_t[]){100}, special);
  expect_sorted(x, 0);
  expect_sorted(quern_cast(x, QUERN_DTYPE_F32), 0);
  int64_t whole[70];
  for (int i = 0; i < 70; i++) whole[i] = i % 3 == 0 ? INT64_MIN + i : i % 3 == 1 ? INT64_MAX - i : i - 35;
  expect_sorted(quern_tensor_copy(ctx, QUERN_DTYPE_I64, 1, (int64_t[]){70}, whole), 0);
  expect_sorted(quern_tensor_copy(ctx, QUERN_DTYPE_U64, 1, (int64_t[]){70}, whole), 0);
}

/* Lines that are cut into blocks and merged; and lines whose items lie in a workspace. */
static void test_long(void **state) {
  (void)state;
  expect_sorted(DATA(F32, 40001), 0);
  expect_sorted(DATA(I8, 33000), 0);
  expect_sorted(DATA(F64, 20000), 0);
  expect_sorted(DATA(F32, 12289, 2), 0);
  expect_sorted(DATA(I32, 3, 10000), 1);
}

static quern_tensor *make_sorted(quern_tensor *x) { return IR_MAKE(ctx, IR_SORT, (&(struct ir_attrs){.axis = 0}), x); }
static quern_tensor *make_long(void) { return make_sorted(DATA(F64, 20000)); }
static quern_tensor *make_short(void) { return make_sorted(DATA(F64, 20)); }

static void test_fault(void **state) {
  (void)state;
  run_faults(&run_ways[3], make_long);
  run_faults(&run_ways[3], make_short);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_axes), TEST(test_dtypes), TEST(test_patterns), TEST(test_long),
                                     TEST(test_fault)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
