/* tests/ir/test_eval_dot.c -- contraction: which axes pair, order of the result, semirings, empty sums */
#include <math.h>

#include "ir/ir_test.h"

#define DOT(attrs, a, b) IR_MAKE(ctx, IR_DOT, attrs, a, b)

static void test_matrices(void **state) {
  (void)state;
  quern_tensor *a = INTS(I32, DIMS(2, 3), 1, 2, 3, 4, 5, 6), *b = INTS(I32, DIMS(3, 2), 1, 0, 2, 1, 0, 3);
  EXPECT_INTS(DOT(ATTRS(.a_sum = DIMS(1), .b_sum = DIMS(0)), a, b), 5, 11, 14, 23);
  EXPECT_INTS(DOT(ATTRS(.a_sum = DIMS(0), .b_sum = DIMS(1)), a, b), 1, 6, 12, 2, 9, 15, 3, 12, 18);
  quern_tensor *outer = DOT(NULL, INTS(I32, DIMS(2), 1, 2), INTS(I32, DIMS(3), 3, 4, 5));
  EXPECT_SHAPE(outer, 2, 3);
  EXPECT_INTS(outer, 3, 4, 5, 6, 8, 10);
  EXPECT_INTS(DOT(ATTRS(.a_sum = DIMS(0), .b_sum = DIMS(0)), INTS(I32, DIMS(2), 1, 2), INTS(I32, DIMS(2), 3, 4)), 11);
  EXPECT_INTS(DOT(NULL, INT(I32, 3), INT(I32, 5)), 15);
}

static void test_batches(void **state) {
  (void)state;
  quern_tensor *a = INTS(I32, DIMS(2, 1, 2), 1, 2, 3, 4), *b = INTS(I32, DIMS(2, 2, 2), 1, 2, 3, 4, 5, 6, 7, 8);
  /* y[n, i, j] = sum over k of a[n, i, k] b[n, j, k] */
  quern_tensor *y = DOT(ATTRS(.a_batch = DIMS(0), .b_batch = DIMS(0), .a_sum = DIMS(2), .b_sum = DIMS(2)), a, b);
  EXPECT_SHAPE(y, 2, 1, 2);
  EXPECT_INTS(y, 5, 11, 39, 53);
  /* The batch of b is its last axis: y[n, i, j] = sum over k of a[n, i, k] b[k, j, n] */
  quern_tensor *z = DOT(ATTRS(.a_batch = DIMS(0), .b_batch = DIMS(2), .a_sum = DIMS(2), .b_sum = DIMS(0)), a, b);
  EXPECT_INTS(z, 1 * 1 + 2 * 5, 1 * 3 + 2 * 7, 3 * 2 + 4 * 6, 3 * 4 + 4 * 8);
  /* Two batch axes in another order come out in the order listed; nothing is summed. */
  quern_tensor *c = INTS(I32, DIMS(2, 3), 1, 2, 3, 4, 5, 6), *d = INTS(I32, DIMS(3, 2), 1, 10, 1, 10, 1, 10);
  quern_tensor *w = DOT(ATTRS(.a_batch = DIMS(1, 0), .b_batch = DIMS(0, 1)), c, d);
  EXPECT_SHAPE(w, 3, 2);
  EXPECT_INTS(w, 1, 40, 2, 50, 3, 60);
}

static void test_several_sums(void **state) {
  (void)state;
  quern_tensor *a = INTS(I32, DIMS(2, 2, 2), 1, 2, 3, 4, 5, 6, 7, 8), *b = INTS(I32, DIMS(2, 2), 1, 10, 100, 1000);
  /* over (a0, a2) paired with (b1, b0): sum of a[p, i, q] b[q, p] */
  EXPECT_INTS(DOT(ATTRS(.a_sum = DIMS(0, 2), .b_sum = DIMS(1, 0)), a, b), 1 + 200 + 50 + 6000, 3 + 400 + 70 + 8000);
  EXPECT_INTS(DOT(ATTRS(.a_sum = DIMS(2, 0), .b_sum = DIMS(1, 0)), a, b), 1 + 20 + 500 + 6000, 3 + 40 + 700 + 8000);
}

static void test_semirings(void **state) {
  (void)state;
  static const int64_t expected[4][4] = {
      /* of (1, 5, 2) and (4, 3, 6): combine mul, add, max, min */
      [IR_SUM] = {4 + 15 + 12, 5 + 8 + 8, 4 + 5 + 6, 1 + 3 + 2},
      [IR_PROD] = {4 * 15 * 12, 5 * 8 * 8, 4 * 5 * 6, 1 * 3 * 2},
      [IR_REDUCE_MAX] = {15, 8, 6, 3},
      [IR_REDUCE_MIN] = {4, 5, 4, 1},
  };
  quern_tensor *a = INTS(I32, DIMS(3), 1, 5, 2), *b = INTS(I32, DIMS(3), 4, 3, 6);
  quern_tensor *c = REALS(F32, DIMS(3), 1, 5, 2), *d = REALS(F32, DIMS(3), 4, 3, 6);
  for (int reduce = 0; reduce < 4; reduce++) {
    for (int combine = 0; combine < 4; combine++) {
      struct ir_attrs attrs = {.a_sum = DIMS(0), .b_sum = DIMS(0), .reduce = (enum ir_reduce)reduce};
      attrs.combine = (enum ir_combine)combine;
      EXPECT_INTS(DOT(&attrs, a, b), expected[reduce][combine]);
      EXPECT_REALS(DOT(&attrs, c, d), (double)expected[reduce][combine]);
    }
  }
  quern_tensor *p = INTS(BOOL, DIMS(2, 2), 1, 0, 0, 0), *q = INTS(BOOL, DIMS(2), 1, 1);
  struct ir_attrs any = {.a_sum = DIMS(1), .b_sum = DIMS(0), .reduce = IR_REDUCE_MAX, .combine = IR_COMBINE_MIN};
  EXPECT_INTS(DOT(&any, p, q), 1, 0);
  EXPECT_INTS(DOT(ATTRS(.a_sum = DIMS(1), .b_sum = DIMS(0), .reduce = IR_REDUCE_MIN, .combine = IR_COMBINE_MAX), p,
                  INTS(BOOL, DIMS(2), 0, 1)),
              1, 0);
}

static void test_empty(void **state) {
  (void)state;
  quern_tensor *a = EMPTY(F32, DIMS(2, 0)), *b = EMPTY(F32, DIMS(0, 1));
  EXPECT_REALS(DOT(ATTRS(.a_sum = DIMS(1), .b_sum = DIMS(0)), a, b), 0, 0);
  EXPECT_REALS(DOT(ATTRS(.a_sum = DIMS(1), .b_sum = DIMS(0), .reduce = IR_REDUCE_MAX), a, b), (double)-INFINITY,
               (double)-INFINITY);
  EXPECT_INTS(DOT(ATTRS(.a_sum = DIMS(0), .b_sum = DIMS(0), .reduce = IR_PROD), EMPTY(I8, DIMS(0)), EMPTY(I8, DIMS(0))),
              1);
  EXPECT_EMPTY(DOT(NULL, a, REALS(F32, DIMS(1), 1)));
}

static void test_rounding(void **state) {
  (void)state;
  struct ir_attrs inner = {.a_sum = DIMS(0), .b_sum = DIMS(0)};
  EXPECT_REALS(DOT(&inner, REALS(F32, DIMS(3), 16777216, 1, 1), REALS(F32, DIMS(3), 1, 1, 1)), 16777218);
  EXPECT_REALS(DOT(&inner, REALS(F64, DIMS(3), 1e16, 1, -1e16), REALS(F64, DIMS(3), 1, 1, 1)), 0); /* in order */
  EXPECT_REALS(DOT(&inner, REALS(F64, DIMS(3), 1e16, -1e16, 1), REALS(F64, DIMS(3), 1, 1, 1)), 1);
  EXPECT_REALS(DOT(&inner, REALS(BF16, DIMS(2), 256, 1), REALS(BF16, DIMS(2), 256, 1)), 65536);
  EXPECT_REALS(DOT(&inner, REALS(F16, DIMS(2), 300, 300), REALS(F16, DIMS(2), 300, -299)), 300);
  EXPECT_REALS(DOT(&inner, REALS(F32, DIMS(1), -0.0), REALS(F32, DIMS(1), 1)), -0.0);
  EXPECT_INTS(DOT(&inner, INTS(I8, DIMS(2), 100, 100), INTS(I8, DIMS(2), 2, 1)), 44);
  EXPECT_INTS(DOT(ATTRS(.a_sum = DIMS(0), .b_sum = DIMS(0), .reduce = IR_REDUCE_MAX), INTS(U64, DIMS(2), -1, 3),
                  INTS(U64, DIMS(2), 1, 2)),
              -1);
  EXPECT_INTS(DOT(ATTRS(.a_sum = DIMS(0), .b_sum = DIMS(0), .reduce = IR_REDUCE_MAX), INTS(I8, DIMS(2), 100, 3),
                  INTS(I8, DIMS(2), 2, 2)),
              6); /* 200 wraps to -56 before it is compared */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_matrices),  TEST(test_batches), TEST(test_several_sums),
      TEST(test_semirings), TEST(test_empty),   TEST(test_rounding),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
