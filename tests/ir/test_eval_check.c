/* tests/ir/test_eval_check.c -- with QUERN_VERBOSE=check an index out of range is an error */
#include "ir/ir_test.h"

static quern_status gather(quern_tensor *index) {
  int32_t y[8];
  void *dst = y;
  quern_tensor *t = IR_MAKE(ctx, IR_GATHER, ATTRS(.axis = 1), INTS(I32, DIMS(2, 3), 1, 2, 3, 4, 5, 6), index);
  return ir_eval(ctx, 1, &t, &dst, 0, NULL);
}

static void test_gather(void **state) {
  (void)state;
  assert_int_equal(gather(INTS(I64, DIMS(3), 0, 2, 1)), QUERN_STATUS_OK);
  EXPECT_ERROR(gather(INTS(I64, DIMS(2), 0, 3)), INVALID, "gather: index 3, number 1, is outside an axis of size 3");
  EXPECT_ERROR(gather(INTS(I8, DIMS(2), -1, 0)), INVALID, "gather: index -1, number 0, is outside an axis of size 3");
  EXPECT_ERROR(gather(INTS(U64, DIMS(1), -1)), INVALID, "index 18446744073709551615, number 0,");
  assert_int_equal(gather(EMPTY(I64, DIMS(0))), QUERN_STATUS_OK);
}

static void test_scatter(void **state) {
  (void)state;
  int32_t y[3];
  void *dst = y;
  quern_tensor *a = INTS(I32, DIMS(3), 1, 2, 3), *u = INTS(I32, DIMS(1), 9);
  quern_tensor *good = IR_MAKE(ctx, IR_SCATTER, ATTRS(.reduce = IR_SET), a, INTS(I8, DIMS(1), 2), u);
  quern_tensor *bad = IR_MAKE(ctx, IR_SCATTER, ATTRS(.reduce = IR_SUM), a, INTS(I8, DIMS(1), 7), u);
  EXPECT_INTS(good, 1, 2, 9);
  EXPECT_ERROR(ir_eval(ctx, 1, &bad, &dst, 0, NULL), INVALID,
               "scatter: index 7, number 0, is outside an axis of size 3");
}

int main(void) {
  setenv("QUERN_VERBOSE", "check", 1); /* before it is read for the first time */
  const struct CMUnitTest tests[] = {TEST(test_gather), TEST(test_scatter)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
