/* tests/grad/test_contributions.c -- contributions to one gradient: slices side by side, rows added where they belong */
#include "grad/grad_test.h"

static quern_tensor *part(quern_tensor *x, int axis, int64_t from, int64_t to, double by) {
  return quern_mul_scalar(quern_slice(x, axis, from, to, 1), by);
}

static enum ir_op op_of(const quern_tensor *dx) { return dx->node->op; }

/* Slices that cover a tensor: its gradient is theirs, one after another, whichever comes first. */
static void test_slices(void **state) {
  (void)state;
  quern_tensor *x = NULL;
  static const int orders[][3] = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}};
  for (size_t i = 0; i < BASE_COUNT(orders); i++) {
    quern_tensor *y = NULL;
    x = REALS(F64, DIMS(2, 6), (double)i, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12); /* another one, with slices of its own */
    for (int k = 0; k < 3; k++) {
      int n = orders[i][k];
      quern_tensor *p = part(x, 1, 2 * n, 2 * n + 2, n == 0 ? 1 : n == 1 ? 10 : 100);
      y = y == NULL ? p : quern_add(y, p);
    }
    quern_tensor *dx = VJP(y, x, 1, 2, 3, 4);
    EXPECT_EXACT(dx, 1, 2, 10, 20, 100, 200, 3, 4, 30, 40, 300, 400);
    /* those of the last two slices come first: where they are no neighbors, there is a sum */
    assert_int_equal(op_of(dx), i < 3 ? IR_CONCAT : IR_ADD);
  }
  quern_tensor *dx = VJP(quern_add(part(x, 0, 0, 1, 2), part(x, 0, 1, 2, 3)), x, 1, 2, 3, 4, 5, 6);
  EXPECT_EXACT(dx, 2, 4, 6, 8, 10, 12, 3, 6, 9, 12, 15, 18);
  assert_int_equal(op_of(dx), IR_CONCAT);
}

/* What is not covered stays zero; what is covered twice is added. */
static void test_other_slices(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(6), 1, 2, 3, 4, 5, 6);
  EXPECT_EXACT(VJP(quern_add(part(x, 0, 1, 3, 1), part(x, 0, 3, 5, 10)), x, 1, 2), 0, 1, 2, 10, 20, 0);
  EXPECT_EXACT(VJP(quern_add(part(x, 0, 0, 2, 1), part(x, 0, 3, 5, 10)), x, 1, 2), 1, 2, 0, 10, 20, 0);
  EXPECT_EXACT(VJP(quern_add(part(x, 0, 0, 3, 1), part(x, 0, 2, 5, 10)), x, 1, 2, 3), 1, 2, 13, 20, 30, 0);
  EXPECT_EXACT(VJP(quern_add(part(x, 0, 0, 3, 1), part(x, 0, 0, 3, 10)), x, 1, 2, 3), 11, 22, 33, 0, 0, 0);
  quern_tensor *even = quern_slice(x, 0, 0, 6, 2), *odd = quern_slice(x, 0, 1, 6, 2);
  EXPECT_EXACT(VJP(quern_add(even, quern_neg(odd)), x, 1, 2, 3), 1, -1, 2, -2, 3, -3);
  quern_tensor *m = REALS(F64, DIMS(2, 2), 1, 2, 3, 4), *row = quern_slice(m, 0, 0, 1, 1);
  quern_tensor *column = quern_reshape(quern_slice(m, 1, 1, 2, 1), QUERN_LIST(1, 2));
  EXPECT_EXACT(VJP(quern_add(row, quern_mul_scalar(column, 10)), m, 1, 2), 1, 12, 0, 20);
}

/* Rows of a table that is used as a whole too are added to that gradient. */
static void test_rows(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(4, 2), 1, 2, 3, 4, 5, 6, 7, 8), *index = INTS(I32, DIMS(3), 1, 3, 1);
  for (int i = 0; i < 2; i++) {
    quern_tensor *rows = NULL, *whole = NULL;
    if (i == 0) rows = quern_sum(quern_gather(x, index, 0), QUERN_ALL, false);
    whole = quern_sum(quern_mul_scalar(x, 10), QUERN_ALL, false);
    if (i == 1) rows = quern_sum(quern_gather(x, index, 0), QUERN_ALL, false);
    quern_tensor *dx = GRAD(quern_add(rows, whole), x);
    EXPECT_EXACT(dx, 10, 10, 12, 12, 10, 10, 11, 11);
    assert_int_equal(op_of(dx), IR_SCATTER);
  }
  quern_tensor *again = INTS(I32, DIMS(2), 0, 1);
  quern_tensor *y = quern_sum(quern_gather(x, index, 0), QUERN_ALL, false);
  y = quern_add(y, quern_sum(quern_gather(x, again, 0), QUERN_ALL, false));
  EXPECT_EXACT(GRAD(y, x), 1, 1, 3, 3, 0, 0, 1, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_slices), TEST(test_other_slices), TEST(test_rows)};
  return cmocka_run_group_tests_name("grad/join", tests, NULL, NULL);
}
