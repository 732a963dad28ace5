/* tests/ir/test_eval_move.c -- movement: permute, broadcast, pad, slice, flip, concat, blocks at run time */
#include "ir/ir_test.h"

#define M(NAME, attrs, ...) IR_MAKE(ctx, IR_##NAME, attrs, __VA_ARGS__)

static quern_tensor *two_by_three(void) { return INTS(I32, DIMS(2, 3), 1, 2, 3, 4, 5, 6); }

static void test_permute(void **state) {
  (void)state;
  EXPECT_INTS(M(PERMUTE, ATTRS(.axes = DIMS(1, 0)), two_by_three()), 1, 4, 2, 5, 3, 6);
  EXPECT_INTS(M(PERMUTE, ATTRS(.axes = DIMS(0, 1)), two_by_three()), 1, 2, 3, 4, 5, 6);
  /* y[i0, i1, i2] = x[j] with j[2] = i0, j[0] = i1, j[1] = i2: not its own inverse. */
  quern_tensor *x = INTS(I32, DIMS(1, 2, 3), 1, 2, 3, 4, 5, 6), *y = M(PERMUTE, ATTRS(.axes = DIMS(2, 0, 1)), x);
  EXPECT_SHAPE(y, 3, 1, 2);
  EXPECT_INTS(y, 1, 4, 2, 5, 3, 6);
  quern_tensor *z = INTS(I32, DIMS(2, 2, 2), 0, 1, 2, 3, 4, 5, 6, 7);
  EXPECT_INTS(M(PERMUTE, ATTRS(.axes = DIMS(2, 0, 1)), z), 0, 2, 4, 6, 1, 3, 5, 7);
  EXPECT_INTS(M(PERMUTE, ATTRS(.axes = DIMS(1, 2, 0)), z), 0, 4, 1, 5, 2, 6, 3, 7);
  EXPECT_EMPTY(M(PERMUTE, ATTRS(.axes = DIMS(1, 0)), EMPTY(F32, DIMS(0, 3))));
  EXPECT_INTS(M(PERMUTE, ATTRS(.axes = SCALAR), INT(I32, 9)), 9);
}

static void test_broadcast(void **state) {
  (void)state;
  EXPECT_INTS(M(BROADCAST, ATTRS(.shape = DIMS(2, 3)), INTS(I32, DIMS(1, 3), 1, 2, 3)), 1, 2, 3, 1, 2, 3);
  EXPECT_INTS(M(BROADCAST, ATTRS(.shape = DIMS(2, 3)), INTS(I32, DIMS(2, 1), 1, 2)), 1, 1, 1, 2, 2, 2);
  EXPECT_INTS(M(BROADCAST, ATTRS(.shape = DIMS(1, 2)), INTS(I32, DIMS(1, 1), 7)), 7, 7);
  EXPECT_EMPTY(M(BROADCAST, ATTRS(.shape = DIMS(0, 3)), INTS(I32, DIMS(1, 3), 1, 2, 3)));
}

static void test_pad(void **state) {
  (void)state;
  quern_tensor *fill = INT(I32, -9);
  EXPECT_INTS(M(PAD, ATTRS(.lo = DIMS(1), .hi = DIMS(2), .mid = DIMS(0)), INTS(I32, DIMS(2), 1, 2), fill), -9, 1, 2, -9,
              -9);
  EXPECT_INTS(M(PAD, ATTRS(.lo = DIMS(0), .hi = DIMS(1), .mid = DIMS(2)), INTS(I32, DIMS(3), 1, 2, 3), fill), 1, -9, -9,
              2, -9, -9, 3, -9);
  quern_tensor *y = M(PAD, ATTRS(.lo = DIMS(1, 0), .hi = DIMS(0, 1), .mid = DIMS(0, 1)), two_by_three(), fill);
  EXPECT_SHAPE(y, 3, 6);
  EXPECT_INTS(y, -9, -9, -9, -9, -9, -9, 1, -9, 2, -9, 3, -9, 4, -9, 5, -9, 6, -9);
  EXPECT_INTS(M(PAD, ATTRS(.lo = DIMS(1), .hi = DIMS(1), .mid = DIMS(INT64_MAX)), INTS(I32, DIMS(1), 5), fill), -9, 5,
              -9);
  EXPECT_INTS(M(PAD, ATTRS(.lo = DIMS(1), .hi = DIMS(1), .mid = DIMS(3)), EMPTY(I32, DIMS(0)), fill), -9, -9);
  EXPECT_REALS(M(PAD, ATTRS(.lo = DIMS(1), .hi = DIMS(0), .mid = DIMS(0)), REALS(F16, DIMS(1), 3), REAL(F16, -0.0)),
               -0.0, 3);
}

static void test_slice(void **state) {
  (void)state;
#define SLICE(x, LO, HI, STEP) M(SLICE, ATTRS(.lo = LO, .hi = HI, .step = STEP), x)
  quern_tensor *x = INTS(I32, DIMS(7), 0, 1, 2, 3, 4, 5, 6);
  EXPECT_INTS(SLICE(x, DIMS(1), DIMS(6), DIMS(2)), 1, 3, 5);
  EXPECT_INTS(SLICE(x, DIMS(1), DIMS(7), DIMS(2)), 1, 3, 5);
  EXPECT_INTS(SLICE(x, DIMS(0), DIMS(7), DIMS(3)), 0, 3, 6);
  EXPECT_INTS(SLICE(x, DIMS(5), DIMS(7), DIMS(10)), 5);
  EXPECT_EMPTY(SLICE(x, DIMS(3), DIMS(3), DIMS(1)));
  EXPECT_INTS(SLICE(two_by_three(), DIMS(1, 0), DIMS(2, 3), DIMS(1, 2)), 4, 6);
  EXPECT_INTS(SLICE(two_by_three(), DIMS(0, 1), DIMS(2, 2), DIMS(1, 1)), 2, 5);
}

static void test_flip(void **state) {
  (void)state;
  EXPECT_INTS(M(FLIP, ATTRS(.axes = DIMS(0)), two_by_three()), 4, 5, 6, 1, 2, 3);
  EXPECT_INTS(M(FLIP, ATTRS(.axes = DIMS(1)), two_by_three()), 3, 2, 1, 6, 5, 4);
  EXPECT_INTS(M(FLIP, ATTRS(.axes = DIMS(0, 1)), two_by_three()), 6, 5, 4, 3, 2, 1);
  EXPECT_INTS(M(FLIP, ATTRS(.axes = SCALAR), two_by_three()), 1, 2, 3, 4, 5, 6);
}

static void test_concat(void **state) {
  (void)state;
  quern_tensor *x = two_by_three(), *row = INTS(I32, DIMS(1, 3), 7, 8, 9), *column = INTS(I32, DIMS(2, 1), 10, 11);
  EXPECT_INTS(M(CONCAT, ATTRS(.axis = 0), x, row, row), 1, 2, 3, 4, 5, 6, 7, 8, 9, 7, 8, 9);
  EXPECT_INTS(M(CONCAT, ATTRS(.axis = 0), row, x), 7, 8, 9, 1, 2, 3, 4, 5, 6);
  EXPECT_INTS(M(CONCAT, ATTRS(.axis = 1), x, column), 1, 2, 3, 10, 4, 5, 6, 11);
  EXPECT_INTS(M(CONCAT, ATTRS(.axis = 1), column, x, column), 10, 1, 2, 3, 10, 11, 4, 5, 6, 11);
  EXPECT_INTS(M(CONCAT, ATTRS(.axis = 1), EMPTY(I32, DIMS(2, 0)), column, EMPTY(I32, DIMS(2, 0))), 10, 11);
  EXPECT_INTS(M(CONCAT, ATTRS(.axis = 0), row), 7, 8, 9);
}

static void test_slice_at(void **state) {
  (void)state;
  quern_tensor *x = INTS(I32, DIMS(5), 0, 1, 2, 3, 4);
#define AT(s) M(SLICE_AT, ATTRS(.shape = DIMS(2)), x, s)
  EXPECT_INTS(AT(INT(I64, 0)), 0, 1);
  EXPECT_INTS(AT(INT(I64, 2)), 2, 3);
  EXPECT_INTS(AT(INT(I64, 3)), 3, 4);
  EXPECT_INTS(AT(INT(I64, 4)), 3, 4); /* clamped */
  EXPECT_INTS(AT(INT(I64, INT64_MAX)), 3, 4);
  EXPECT_INTS(AT(INT(I8, -1)), 0, 1);
  EXPECT_INTS(AT(INT(I64, INT64_MIN)), 0, 1);
  EXPECT_INTS(AT(INT(U64, -1)), 3, 4); /* 2^64 - 1 */
  EXPECT_INTS(AT(INT(U8, 255)), 3, 4);
  quern_tensor *y = two_by_three();
  EXPECT_INTS(M(SLICE_AT, ATTRS(.shape = DIMS(1, 2)), y, INT(I32, 1), INT(U16, 1)), 5, 6);
  EXPECT_INTS(M(SLICE_AT, ATTRS(.shape = DIMS(2, 1)), y, INT(I32, 1), INT(U16, 1)), 2, 5);
  EXPECT_INTS(M(SLICE_AT, ATTRS(.shape = DIMS(1, 2)), y, INT(I8, -1), INT(U64, -1)), 2, 3); /* each of its own dtype */
  EXPECT_INTS(M(SLICE_AT, ATTRS(.shape = SCALAR), INT(I32, 6)), 6);
  EXPECT_EMPTY(M(SLICE_AT, ATTRS(.shape = DIMS(0)), x, INT(I32, 9)));
}

static void test_update_at(void **state) {
  (void)state;
  quern_tensor *x = INTS(I32, DIMS(5), 0, 1, 2, 3, 4), *u = INTS(I32, DIMS(2), 8, 9);
#define UPDATE(s) M(UPDATE_AT, NULL, x, u, s)
  EXPECT_INTS(UPDATE(INT(I64, 1)), 0, 8, 9, 3, 4);
  EXPECT_INTS(UPDATE(INT(I64, 3)), 0, 1, 2, 8, 9);
  EXPECT_INTS(UPDATE(INT(I64, 9)), 0, 1, 2, 8, 9);
  EXPECT_INTS(UPDATE(INT(I16, -9)), 8, 9, 2, 3, 4);
  EXPECT_INTS(UPDATE(INT(U64, -9)), 0, 1, 2, 8, 9);
  EXPECT_INTS(x, 0, 1, 2, 3, 4); /* the source stays as it is */
  quern_tensor *y = two_by_three(), *block = INTS(I32, DIMS(1, 2), -1, -2);
  EXPECT_INTS(M(UPDATE_AT, NULL, y, block, INT(I32, 1), INT(I32, 0)), 1, 2, 3, -1, -2, 6);
  EXPECT_INTS(M(UPDATE_AT, NULL, y, block, INT(I32, 0), INT(I32, 1)), 1, -1, -2, 4, 5, 6);
  EXPECT_INTS(M(UPDATE_AT, NULL, x, EMPTY(I32, DIMS(0)), INT(I32, 2)), 0, 1, 2, 3, 4);
}

static void test_wide_elements(void **state) {
  (void)state;
  EXPECT_INTS(M(FLIP, ATTRS(.axes = DIMS(0)), INTS(I64, DIMS(2), INT64_MIN, 3)), 3, INT64_MIN);
  EXPECT_INTS(M(FLIP, ATTRS(.axes = DIMS(0)), INTS(U8, DIMS(3), 1, 2, 255)), 255, 2, 1);
  EXPECT_INTS(M(FLIP, ATTRS(.axes = DIMS(0)), INTS(BOOL, DIMS(3), 1, 0, 0)), 0, 0, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_permute), TEST(test_broadcast), TEST(test_pad),       TEST(test_slice),         TEST(test_flip),
      TEST(test_concat),  TEST(test_slice_at),  TEST(test_update_at), TEST(test_wide_elements),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
