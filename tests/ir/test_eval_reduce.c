/* tests/ir/test_eval_reduce.c -- reduce, argreduce, scan, sort */
#include <math.h>

#include "ir/ir_test.h"

#define M(NAME, attrs, ...) IR_MAKE(ctx, IR_##NAME, attrs, __VA_ARGS__)
#define REDUCE(KIND, AXES, x) M(REDUCE, ATTRS(.reduce = KIND, .axes = AXES), x)
#define INF ((double)INFINITY)
#define NOT_A_NUMBER ((double)NAN)

static void test_reduce(void **state) {
  (void)state;
  quern_tensor *x = INTS(I32, DIMS(2, 3), 1, 5, 3, 4, 2, 6);
  EXPECT_INTS(REDUCE(IR_SUM, DIMS(0), x), 5, 7, 9);
  EXPECT_INTS(REDUCE(IR_SUM, DIMS(1), x), 9, 12);
  EXPECT_INTS(REDUCE(IR_SUM, DIMS(0, 1), x), 21);
  EXPECT_INTS(REDUCE(IR_SUM, SCALAR, x), 1, 5, 3, 4, 2, 6);
  EXPECT_INTS(REDUCE(IR_PROD, DIMS(1), x), 15, 48);
  EXPECT_INTS(REDUCE(IR_REDUCE_MAX, DIMS(0), x), 4, 5, 6);
  EXPECT_INTS(REDUCE(IR_REDUCE_MIN, DIMS(0), x), 1, 2, 3);
  quern_tensor *y = INTS(I32, DIMS(2, 2, 2), 0, 1, 2, 3, 4, 5, 6, 7);
  EXPECT_INTS(REDUCE(IR_SUM, DIMS(0, 2), y), 10, 18);
  EXPECT_INTS(REDUCE(IR_SUM, DIMS(1), y), 2, 4, 10, 12);
  EXPECT_INTS(REDUCE(IR_SUM, DIMS(0), INTS(I8, DIMS(2), 100, 100)), -56);
  EXPECT_INTS(REDUCE(IR_PROD, DIMS(0), INTS(U8, DIMS(2), 16, 17)), 16);
  EXPECT_INTS(REDUCE(IR_REDUCE_MAX, DIMS(0), INTS(I8, DIMS(2), -3, -7)), -3);
  EXPECT_INTS(REDUCE(IR_REDUCE_MAX, DIMS(0), INTS(U64, DIMS(2), -3, 7)), -3);
  EXPECT_INTS(REDUCE(IR_REDUCE_MAX, DIMS(1), INTS(BOOL, DIMS(3, 2), 0, 0, 0, 1, 1, 1)), 0, 1, 1);
  EXPECT_INTS(REDUCE(IR_REDUCE_MIN, DIMS(1), INTS(BOOL, DIMS(3, 2), 0, 0, 0, 1, 1, 1)), 0, 0, 1);
}

static void test_reduce_floats(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(3), 1.5, -2, 4);
  EXPECT_REALS(REDUCE(IR_SUM, DIMS(0), x), 3.5);
  EXPECT_REALS(REDUCE(IR_PROD, DIMS(0), x), -12);
  EXPECT_REALS(REDUCE(IR_REDUCE_MAX, DIMS(0), x), 4);
  EXPECT_REALS(REDUCE(IR_REDUCE_MIN, DIMS(0), x), -2);
  quern_tensor *nan = REALS(F32, DIMS(3), 1, NOT_A_NUMBER, 5);
  EXPECT_REALS(REDUCE(IR_REDUCE_MAX, DIMS(0), nan), NOT_A_NUMBER);
  EXPECT_REALS(REDUCE(IR_REDUCE_MIN, DIMS(0), nan), NOT_A_NUMBER);
  EXPECT_REALS(REDUCE(IR_REDUCE_MAX, DIMS(0), REALS(F32, DIMS(2), -0.0, 0.0)), 0.0);
  EXPECT_REALS(REDUCE(IR_REDUCE_MIN, DIMS(0), REALS(F32, DIMS(2), 0.0, -0.0)), -0.0);
  EXPECT_REALS(REDUCE(IR_REDUCE_MAX, DIMS(0), REALS(F32, DIMS(1), -INF)), -INF);
  EXPECT_REALS(REDUCE(IR_SUM, DIMS(0), REALS(F32, DIMS(1), -0.0)), -0.0);
  EXPECT_REALS(REDUCE(IR_SUM, DIMS(0), REALS(F32, DIMS(2), -0.0, -0.0)), -0.0);
  /* Wide, one term after another, rounded once. */
  EXPECT_REALS(REDUCE(IR_SUM, DIMS(0), REALS(F32, DIMS(3), 16777216, 1, 1)), 16777218);
  EXPECT_REALS(REDUCE(IR_SUM, DIMS(0), REALS(F16, DIMS(3), 65504, 65504, -65504)), 65504);
  EXPECT_REALS(REDUCE(IR_SUM, DIMS(0), REALS(F64, DIMS(4), 1e16, 1, 1, -1e16)), 0);
  EXPECT_REALS(REDUCE(IR_SUM, DIMS(0, 1), REALS(F64, DIMS(2, 2), 1, 1, 1e16, -1e16)), 2);
  EXPECT_REALS(REDUCE(IR_SUM, DIMS(0, 2), REALS(F64, DIMS(2, 1, 2), 1e16, 1, -1e16, 1)), 1);
}

static void test_reduce_nothing(void **state) {
  (void)state;
#define NONE(DTYPE) EMPTY(DTYPE, DIMS(0, 2))
  EXPECT_REALS(REDUCE(IR_SUM, DIMS(0), NONE(F32)), 0, 0);
  EXPECT_REALS(REDUCE(IR_PROD, DIMS(0), NONE(F32)), 1, 1);
  EXPECT_REALS(REDUCE(IR_REDUCE_MAX, DIMS(0), NONE(F32)), -INF, -INF);
  EXPECT_REALS(REDUCE(IR_REDUCE_MIN, DIMS(0), NONE(F32)), INF, INF);
  EXPECT_REALS(REDUCE(IR_REDUCE_MAX, DIMS(0), NONE(F8E4M3)), -448, -448); /* a format without infinity */
  EXPECT_REALS(REDUCE(IR_REDUCE_MIN, DIMS(0), NONE(F8E4M3)), 448, 448);
  EXPECT_REALS(REDUCE(IR_REDUCE_MIN, DIMS(0), NONE(F8E5M2)), INF, INF);
  EXPECT_INTS(REDUCE(IR_SUM, DIMS(0), NONE(I32)), 0, 0);
  EXPECT_INTS(REDUCE(IR_PROD, DIMS(0), NONE(U8)), 1, 1);
  EXPECT_INTS(REDUCE(IR_REDUCE_MAX, DIMS(0), NONE(I8)), -128, -128);
  EXPECT_INTS(REDUCE(IR_REDUCE_MIN, DIMS(0), NONE(I8)), 127, 127);
  EXPECT_INTS(REDUCE(IR_REDUCE_MAX, DIMS(0), NONE(I64)), INT64_MIN, INT64_MIN);
  EXPECT_INTS(REDUCE(IR_REDUCE_MIN, DIMS(0), NONE(I64)), INT64_MAX, INT64_MAX);
  EXPECT_INTS(REDUCE(IR_REDUCE_MAX, DIMS(0), NONE(U16)), 0, 0);
  EXPECT_INTS(REDUCE(IR_REDUCE_MIN, DIMS(0), NONE(U16)), 65535, 65535);
  EXPECT_INTS(REDUCE(IR_REDUCE_MIN, DIMS(0), NONE(U64)), -1, -1);
  EXPECT_INTS(REDUCE(IR_REDUCE_MAX, DIMS(0), NONE(BOOL)), 0, 0);
  EXPECT_INTS(REDUCE(IR_REDUCE_MIN, DIMS(0), NONE(BOOL)), 1, 1);
  EXPECT_EMPTY(REDUCE(IR_SUM, DIMS(1), NONE(F32)));
  EXPECT_INTS(REDUCE(IR_SUM, DIMS(0, 1), NONE(I32)), 0);
  /* Sizes whose product would not fit. */
  EXPECT_INTS(REDUCE(IR_SUM, DIMS(1, 2, 3), EMPTY(I32, DIMS(2, INT64_C(1) << 40, INT64_C(1) << 40, 0))), 0, 0);
  EXPECT_EMPTY(M(SCAN, ATTRS(.reduce = IR_SUM, .axis = 2), EMPTY(I32, DIMS(INT64_C(1) << 40, INT64_C(1) << 40, 0))));
}

static void test_argreduce(void **state) {
  (void)state;
#define ARG(KIND, AXIS, x) M(ARGREDUCE, ATTRS(.reduce = KIND, .axis = AXIS), x)
  quern_tensor *x = INTS(I32, DIMS(2, 3), 1, 5, 3, 4, 2, 6);
  EXPECT_INTS(ARG(IR_REDUCE_MAX, 1, x), 1, 2);
  EXPECT_INTS(ARG(IR_REDUCE_MIN, 1, x), 0, 1);
  EXPECT_INTS(ARG(IR_REDUCE_MAX, 0, x), 1, 0, 1);
  EXPECT_INTS(ARG(IR_REDUCE_MIN, 0, x), 0, 1, 0);
  assert_int_equal(ARG(IR_REDUCE_MIN, 0, x)->dtype, QUERN_DTYPE_I64);
  EXPECT_INTS(ARG(IR_REDUCE_MAX, 0, INTS(I32, DIMS(4), 1, 7, 7, 1)), 1); /* the first of equals */
  EXPECT_INTS(ARG(IR_REDUCE_MIN, 0, INTS(I32, DIMS(4), 7, 1, 7, 1)), 1);
  EXPECT_INTS(ARG(IR_REDUCE_MAX, 0, REALS(F32, DIMS(4), 1, NOT_A_NUMBER, 9, NOT_A_NUMBER)), 1);
  EXPECT_INTS(ARG(IR_REDUCE_MIN, 0, REALS(F32, DIMS(4), 1, 0, NOT_A_NUMBER, -9)), 2);
  EXPECT_INTS(ARG(IR_REDUCE_MIN, 0, REALS(F32, DIMS(2), NOT_A_NUMBER, -INF)), 0);
  EXPECT_INTS(ARG(IR_REDUCE_MAX, 0, REALS(F32, DIMS(2), NOT_A_NUMBER, INF)), 0);
  EXPECT_INTS(ARG(IR_REDUCE_MAX, 0, REALS(F32, DIMS(2), -0.0, 0.0)), 0);
  EXPECT_INTS(ARG(IR_REDUCE_MAX, 0, INTS(U64, DIMS(2), 1, -1)), 1);
  EXPECT_INTS(ARG(IR_REDUCE_MAX, 0, INTS(BOOL, DIMS(3), 0, 1, 1)), 1);
  EXPECT_INTS(ARG(IR_REDUCE_MAX, 0, INTS(I8, DIMS(1), -5)), 0);
  EXPECT_EMPTY(ARG(IR_REDUCE_MAX, 1, EMPTY(F32, DIMS(0, 2))));
}

static void test_scan(void **state) {
  (void)state;
#define SCAN(KIND, AXIS, REVERSE, x) M(SCAN, ATTRS(.reduce = KIND, .axis = AXIS, .reverse = REVERSE), x)
  quern_tensor *x = INTS(I32, DIMS(2, 3), 1, 5, 3, 4, 2, 6);
  EXPECT_INTS(SCAN(IR_SUM, 1, 0, x), 1, 6, 9, 4, 6, 12);
  EXPECT_INTS(SCAN(IR_SUM, 1, 1, x), 9, 8, 3, 12, 8, 6);
  EXPECT_INTS(SCAN(IR_SUM, 0, 0, x), 1, 5, 3, 5, 7, 9);
  EXPECT_INTS(SCAN(IR_SUM, 0, 1, x), 5, 7, 9, 4, 2, 6);
  EXPECT_INTS(SCAN(IR_PROD, 1, 0, x), 1, 5, 15, 4, 8, 48);
  EXPECT_INTS(SCAN(IR_REDUCE_MAX, 1, 0, x), 1, 5, 5, 4, 4, 6);
  EXPECT_INTS(SCAN(IR_REDUCE_MAX, 1, 1, x), 5, 5, 3, 6, 6, 6);
  EXPECT_INTS(SCAN(IR_REDUCE_MIN, 1, 0, x), 1, 1, 1, 4, 2, 2);
  EXPECT_INTS(SCAN(IR_REDUCE_MAX, 0, 0, INTS(BOOL, DIMS(3), 0, 1, 0)), 0, 1, 1);
  EXPECT_REALS(SCAN(IR_REDUCE_MAX, 0, 0, REALS(F32, DIMS(3), 1, NOT_A_NUMBER, 3)), 1, NOT_A_NUMBER, NOT_A_NUMBER);
  EXPECT_REALS(SCAN(IR_SUM, 0, 0, REALS(F16, DIMS(3), 2048, 1, 1)), 2048, 2048, 2050); /* the sum itself is wide */
  EXPECT_EMPTY(SCAN(IR_SUM, 1, 0, EMPTY(F32, DIMS(2, 0))));
}

static void test_sort(void **state) {
  (void)state;
#define SORT(AXIS, REVERSE, x) M(SORT, ATTRS(.axis = AXIS, .reverse = REVERSE), x)
#define ORDER(AXIS, REVERSE, x) ir_result(SORT(AXIS, REVERSE, x), 1)
  quern_tensor *x = INTS(I32, DIMS(2, 3), 3, 1, 2, 5, 5, 4);
  EXPECT_INTS(SORT(1, 0, x), 1, 2, 3, 4, 5, 5);
  EXPECT_INTS(ORDER(1, 0, x), 1, 2, 0, 2, 0, 1);
  EXPECT_INTS(SORT(1, 1, x), 3, 2, 1, 5, 5, 4);
  EXPECT_INTS(ORDER(1, 1, x), 0, 2, 1, 0, 1, 2);
  EXPECT_INTS(SORT(0, 1, x), 5, 5, 4, 3, 1, 2);
  EXPECT_INTS(ORDER(0, 0, x), 0, 0, 0, 1, 1, 1);
  assert_int_equal(ORDER(0, 0, x)->dtype, QUERN_DTYPE_I64);
  /* Equal elements keep their order, both ways; -0 equals 0; NaN is greatest. */
  quern_tensor *y = REALS(F32, DIMS(9), 0.0, 1, -0.0, NOT_A_NUMBER, 1, -INF, 0.0, NOT_A_NUMBER, INF);
  EXPECT_REALS(SORT(0, 0, y), -INF, 0.0, -0.0, 0.0, 1, 1, INF, NOT_A_NUMBER, NOT_A_NUMBER);
  EXPECT_INTS(ORDER(0, 0, y), 5, 0, 2, 6, 1, 4, 8, 3, 7);
  EXPECT_REALS(SORT(0, 1, y), NOT_A_NUMBER, NOT_A_NUMBER, INF, 1, 1, 0.0, -0.0, 0.0, -INF);
  EXPECT_INTS(ORDER(0, 1, y), 3, 7, 8, 1, 4, 0, 2, 6, 5);
  EXPECT_INTS(SORT(0, 0, INTS(U64, DIMS(3), -1, 0, 5)), 0, 5, -1);
  EXPECT_INTS(SORT(0, 0, INTS(I64, DIMS(3), 9007199254740993, -1, 9007199254740992)), -1, 9007199254740992,
              9007199254740993);
  EXPECT_INTS(ORDER(0, 0, INTS(BOOL, DIMS(5), 1, 0, 1, 0, 1)), 1, 3, 0, 2, 4);
  EXPECT_INTS(SORT(0, 0, INTS(I32, DIMS(1), 4)), 4);
  EXPECT_EMPTY(SORT(0, 0, EMPTY(F32, DIMS(0))));
  const uint32_t odd[2] = {0xffc12345u, 0x3f800000u}, sorted[2] = {0x3f800000u, 0xffc12345u};
  quern_tensor *nan =
      ir_make(ctx, IR_CONST, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .shape = DIMS(2), .data = {8, odd}));
  EXPECT_BITS(SORT(0, 0, nan), sorted);
}

/* Every length up to 33, with few distinct values: sorted, a permutation, stable. */
static void test_sort_lengths(void **state) {
  (void)state;
  for (int64_t n = 1; n <= 33; n++) {
    int64_t values[33], sorted[33], order[33];
    for (int64_t i = 0; i < n; i++) values[i] = (i * 7 + i * i * 5) % 11 % 6;
    quern_tensor *x = test_const(QUERN_DTYPE_I64, DIMS(n), QUERN_DTYPE_I64, (size_t)n, values);
    for (int reverse = 0; reverse < 2; reverse++) {
      quern_tensor *y = SORT(0, reverse, x);
      void *dst[] = {sorted, order};
      assert_int_equal(ir_eval(ctx, 2, (quern_tensor *[]){y, ir_result(y, 1)}, dst, 0, NULL), QUERN_STATUS_OK);
      bool seen[33] = {false};
      for (int64_t i = 0; i < n; i++) {
        assert_in_range(order[i], 0, n - 1);
        assert_false(seen[order[i]]);
        seen[order[i]] = true;
        assert_int_equal(sorted[i], values[order[i]]);
        if (i == 0) continue;
        assert_true(reverse ? sorted[i - 1] >= sorted[i] : sorted[i - 1] <= sorted[i]);
        if (sorted[i - 1] == sorted[i]) assert_true(order[i - 1] < order[i]);
      }
    }
  }
}

/* Many lines, and long ones: so large that scratch memory comes in blocks of its own, with guards. */
static void test_large(void **state) {
  (void)state;
  enum { N = 5000 };
  static int64_t sums[N], firsts[N], scans[2 * N], sorted[2 * N], order[2 * N];
  for (int axis = 0; axis < 2; axis++) {
    struct ir_ints shape = axis == 0 ? DIMS(2, N) : DIMS(N, 2);
    quern_tensor *count = ir_make(ctx, IR_IOTA, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_I64, .shape = DIMS(2 * N)));
    quern_tensor *seven = M(BROADCAST, ATTRS(.shape = DIMS(2 * N)), INTS(I64, DIMS(1), 7));
    quern_tensor *x = M(RESHAPE, ATTRS(.shape = shape), M(MOD, NULL, count, seven)); /* x[m] = m mod 7 */
    quern_tensor *sort = M(SORT, ATTRS(.axis = axis), x);
    quern_tensor *roots[] = {REDUCE(IR_SUM, DIMS(axis), x), ARG(IR_REDUCE_MIN, axis, x), SCAN(IR_SUM, axis, 0, x), sort,
                             ir_result(sort, 1)};
    assert_int_equal(ir_eval(ctx, 5, roots, (void *[]){sums, firsts, scans, sorted, order}, 0, NULL), QUERN_STATUS_OK);
    for (int64_t i = 0; i < N; i++) {
      int64_t first = axis == 0 ? i : 2 * i, second = axis == 0 ? N + i : 2 * i + 1;
      int64_t a = first % 7, b = second % 7;
      assert_int_equal(sums[i], a + b);
      assert_int_equal(firsts[i], b < a);
      assert_true(scans[first] == a && scans[second] == a + b);
      assert_true(sorted[first] == BASE_MIN(a, b) && sorted[second] == BASE_MAX(a, b));
      assert_true(order[first] == (b < a) && order[second] == 1 - (b < a));
    }
  }
  /* One line of all. */
  quern_tensor *count = ir_make(ctx, IR_IOTA, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_I64, .shape = DIMS(N)));
  quern_tensor *seven = M(BROADCAST, ATTRS(.shape = DIMS(N)), INTS(I64, DIMS(1), 7));
  quern_tensor *x = M(MOD, NULL, count, seven), *sort = M(SORT, ATTRS(.axis = 0), x);
  quern_tensor *dot = M(DOT, ATTRS(.a_sum = DIMS(0), .b_sum = DIMS(0)), x, sort);
  quern_tensor *roots[] = {sort, ir_result(sort, 1), REDUCE(IR_SUM, DIMS(0), x), dot};
  assert_int_equal(ir_eval(ctx, 4, roots, (void *[]){sorted, order, &sums[0], &sums[1]}, 0, NULL), QUERN_STATUS_OK);
  int64_t place = 0, product = 0;
  for (int64_t value = 0; value < 7; value++) {
    for (int64_t i = value; i < N; i += 7, place++) assert_true(sorted[place] == value && order[place] == i);
  }
  for (int64_t i = 0; i < N; i++) product += i % 7 * sorted[i];
  assert_int_equal(place, N);
  assert_int_equal(sums[0], 714 * 21 + 1); /* 5000 = 714 * 7 + 2 */
  assert_int_equal(sums[1], product);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_reduce), TEST(test_reduce_floats), TEST(test_reduce_nothing), TEST(test_argreduce),
      TEST(test_scan),   TEST(test_sort),          TEST(test_sort_lengths),   TEST(test_large),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
