/* tests/ir/test_eval_index.c -- gather, scatter, window and its transpose fold */
#include <math.h>

#include "ir/ir_test.h"

#define M(NAME, attrs, ...) IR_MAKE(ctx, IR_##NAME, attrs, __VA_ARGS__)
#define NOT_A_NUMBER ((double)NAN)

static void test_gather(void **state) {
  (void)state;
  quern_tensor *x = INTS(I32, DIMS(3, 2), 1, 2, 3, 4, 5, 6);
  quern_tensor *y = M(GATHER, ATTRS(.axis = 0), x, INTS(I64, DIMS(4), 2, 0, 2, 1));
  EXPECT_SHAPE(y, 4, 2);
  EXPECT_INTS(y, 5, 6, 1, 2, 5, 6, 3, 4);
  EXPECT_INTS(M(GATHER, ATTRS(.axis = 1), x, INTS(U8, DIMS(3), 1, 1, 0)), 2, 2, 1, 4, 4, 3, 6, 6, 5);
  /* A scalar index removes the axis, a matrix puts two in its place. */
  EXPECT_INTS(M(GATHER, ATTRS(.axis = 0), x, INT(I16, 1)), 3, 4);
  quern_tensor *z = M(GATHER, ATTRS(.axis = 1), x, INTS(I32, DIMS(1, 2), 1, 0));
  EXPECT_SHAPE(z, 3, 1, 2);
  EXPECT_INTS(z, 2, 1, 4, 3, 6, 5);
  quern_tensor *w = INTS(I32, DIMS(2, 2, 2), 0, 1, 2, 3, 4, 5, 6, 7);
  EXPECT_INTS(M(GATHER, ATTRS(.axis = 1), w, INTS(I32, DIMS(3), 1, 0, 1)), 2, 3, 0, 1, 2, 3, 6, 7, 4, 5, 6, 7);
  EXPECT_INTS(M(GATHER, ATTRS(.axis = 1), w, INTS(I32, DIMS(2, 1), 1, 0)), 2, 3, 0, 1, 6, 7, 4, 5);
}

static void test_gather_outside(void **state) {
  (void)state;
  quern_tensor *x = INTS(I32, DIMS(3), 7, 8, 9);
  EXPECT_INTS(M(GATHER, ATTRS(.axis = 0), x, INTS(I64, DIMS(6), -1, 3, 2, INT64_MIN, INT64_MAX, 0)), 0, 0, 9, 0, 0, 7);
  EXPECT_INTS(M(GATHER, ATTRS(.axis = 0), x, INTS(U64, DIMS(3), -1, 3, 1)), 0, 0, 8);
  EXPECT_INTS(M(GATHER, ATTRS(.axis = 0), x, INTS(I8, DIMS(2), -3, -1)), 0, 0);
  EXPECT_REALS(M(GATHER, ATTRS(.axis = 0), REALS(F64, DIMS(2), 1, 2), INTS(I8, DIMS(2), 2, 1)), 0.0, 2);
  EXPECT_INTS(M(GATHER, ATTRS(.axis = 0), EMPTY(I32, DIMS(0)), INTS(I8, DIMS(2), 0, 1)), 0, 0);
  EXPECT_EMPTY(M(GATHER, ATTRS(.axis = 0), x, EMPTY(I64, DIMS(0))));
}

static void test_gather_batch(void **state) {
  (void)state;
  quern_tensor *x = INTS(I32, DIMS(2, 3), 1, 2, 3, 4, 5, 6);
  /* One index list a row. */
  quern_tensor *y = M(GATHER, ATTRS(.axis = 1, .batch = 1), x, INTS(I64, DIMS(2, 2), 2, 0, 1, 1));
  EXPECT_SHAPE(y, 2, 2);
  EXPECT_INTS(y, 3, 1, 5, 5);
  EXPECT_INTS(M(GATHER, ATTRS(.axis = 1, .batch = 1), x, INTS(I64, DIMS(2), 2, 0)), 3, 4);
  /* n, p, i, q all there: y[n, p, i, q] = x[n, p, b[n, i], q]. */
  int64_t values[2 * 2 * 3 * 2];
  for (int i = 0; i < 24; i++) values[i] = i;
  quern_tensor *z = test_const(QUERN_DTYPE_I32, DIMS(2, 2, 3, 2), QUERN_DTYPE_I64, 24, values);
  quern_tensor *g = M(GATHER, ATTRS(.axis = 2, .batch = 1), z, INTS(I32, DIMS(2, 1), 2, 0));
  EXPECT_SHAPE(g, 2, 2, 1, 2);
  EXPECT_INTS(g, 4, 5, 10, 11, 12, 13, 18, 19);
  quern_tensor *h = M(GATHER, ATTRS(.axis = 2, .batch = 2), z, INTS(I32, DIMS(2, 2, 2), 0, 1, 2, 0, 1, 2, 2, 9));
  EXPECT_SHAPE(h, 2, 2, 2, 2);
  EXPECT_INTS(h, 0, 1, 2, 3, 10, 11, 6, 7, 14, 15, 16, 17, 22, 23, 0, 0);
}

#define SCATTER(KIND, AXIS, BATCH, a, b, u) M(SCATTER, ATTRS(.reduce = KIND, .axis = AXIS, .batch = BATCH), a, b, u)

static void test_scatter(void **state) {
  (void)state;
  quern_tensor *a = INTS(I32, DIMS(4), 10, 20, 30, 40), *b = INTS(I64, DIMS(5), 1, 3, 1, -1, 4);
  quern_tensor *u = INTS(I32, DIMS(5), 1, 2, 3, 4, 5);
  EXPECT_INTS(SCATTER(IR_SET, 0, 0, a, b, u), 10, 3, 30, 2); /* the last one stays */
  EXPECT_INTS(SCATTER(IR_SUM, 0, 0, a, b, u), 10, 24, 30, 42);
  EXPECT_INTS(SCATTER(IR_REDUCE_MAX, 0, 0, a, b, INTS(I32, DIMS(5), 90, -2, 50, 4, 5)), 10, 90, 30, 40);
  EXPECT_INTS(SCATTER(IR_REDUCE_MIN, 0, 0, a, b, INTS(I32, DIMS(5), 9, -2, 5, 4, 5)), 10, 5, 30, -2);
  EXPECT_INTS(a, 10, 20, 30, 40);
  EXPECT_INTS(SCATTER(IR_SUM, 0, 0, a, EMPTY(I64, DIMS(0)), EMPTY(I32, DIMS(0))), 10, 20, 30, 40);
  EXPECT_EMPTY(SCATTER(IR_SUM, 0, 0, EMPTY(I32, DIMS(0)), b, u));
  EXPECT_INTS(SCATTER(IR_SET, 0, 0, a, INT(U8, 2), INT(I32, 5)), 10, 20, 5, 40);
  EXPECT_INTS(SCATTER(IR_SUM, 0, 0, INTS(U8, DIMS(2), 250, 1), INTS(I8, DIMS(2), 0, 0), INTS(U8, DIMS(2), 5, 3)), 2, 1);
  quern_tensor *p = INTS(BOOL, DIMS(3), 1, 0, 1), *at = INTS(I8, DIMS(3), 0, 1, 2);
  EXPECT_INTS(SCATTER(IR_REDUCE_MAX, 0, 0, p, at, INTS(BOOL, DIMS(3), 0, 1, 0)), 1, 1, 1);
  EXPECT_INTS(SCATTER(IR_REDUCE_MIN, 0, 0, p, at, INTS(BOOL, DIMS(3), 0, 1, 1)), 0, 0, 1);
  EXPECT_INTS(SCATTER(IR_SET, 0, 0, p, at, INTS(BOOL, DIMS(3), 0, 1, 1)), 0, 1, 1);
}

static void test_scatter_axes(void **state) {
  (void)state;
  quern_tensor *a = INTS(I32, DIMS(2, 3), 1, 2, 3, 4, 5, 6);
  EXPECT_INTS(SCATTER(IR_SET, 0, 0, a, INTS(I8, DIMS(1), 1), INTS(I32, DIMS(1, 3), 7, 8, 9)), 1, 2, 3, 7, 8, 9);
  EXPECT_INTS(SCATTER(IR_SUM, 1, 0, a, INTS(I8, DIMS(2), 2, 2), INTS(I32, DIMS(2, 2), 10, 20, 30, 40)), 1, 2, 33, 4, 5,
              76);
  EXPECT_INTS(SCATTER(IR_SET, 1, 1, a, INTS(I8, DIMS(2, 1), 2, 0), INTS(I32, DIMS(2, 1), 70, 80)), 1, 2, 70, 80, 5, 6);
  quern_tensor *z = INTS(I32, DIMS(2, 1, 2, 2), 0, 1, 2, 3, 4, 5, 6, 7);
  EXPECT_INTS(SCATTER(IR_SUM, 2, 1, z, INTS(I8, DIMS(2, 2), 0, 0, 1, 5),
                      INTS(I32, DIMS(2, 1, 2, 2), 10, 20, 30, 40, 50, 60, 70, 80)),
              40, 61, 2, 3, 4, 5, 56, 67);
}

/* A sum is kept wide until the end; what nothing is added to keeps its bits. */
static void test_scatter_rounding(void **state) {
  (void)state;
  quern_tensor *a = REALS(F16, DIMS(2), 2048, 1), *b = INTS(I8, DIMS(2), 0, 0);
  EXPECT_REALS(SCATTER(IR_SUM, 0, 0, a, b, REALS(F16, DIMS(2), 1, 1)), 2050, 1);
  EXPECT_REALS(SCATTER(IR_SUM, 0, 0, REALS(F32, DIMS(2), -0.0, -0.0), INTS(I8, DIMS(1), 1), REALS(F32, DIMS(1), -0.0)),
               -0.0, -0.0);
  EXPECT_REALS(
      SCATTER(IR_REDUCE_MAX, 0, 0, REALS(F32, DIMS(2), 1, 2), INTS(I8, DIMS(1), 1), REALS(F32, DIMS(1), NOT_A_NUMBER)),
      1, NOT_A_NUMBER);
  const uint32_t odd[2] = {0xffc12345u, 0x7fc54321u};
  quern_tensor *nan =
      ir_make(ctx, IR_CONST, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .shape = DIMS(2), .data = {8, odd}));
  const uint32_t set[2] = {0x7fc54321u, 0x7fc54321u}, added[2] = {0x7fc00000u, 0x7fc54321u};
  EXPECT_BITS(SCATTER(IR_SET, 0, 0, nan, INTS(I8, DIMS(2), 0, 0), nan), set);
  EXPECT_BITS(SCATTER(IR_SUM, 0, 0, nan, INTS(I8, DIMS(1), 0), REALS(F32, DIMS(1), 1)), added);
}

static void test_window(void **state) {
  (void)state;
#define WINDOW(x, AXES, SIZE, STEP, DILATE)                                                                            \
  M(WINDOW, ATTRS(.axes = AXES, .size = SIZE, .step = STEP, .dilate = DILATE), x)
  quern_tensor *x = INTS(I32, DIMS(7), 0, 1, 2, 3, 4, 5, 6);
  EXPECT_INTS(WINDOW(x, DIMS(0), DIMS(3), DIMS(2), DIMS(1)), 0, 1, 2, 2, 3, 4, 4, 5, 6);
  EXPECT_INTS(WINDOW(x, DIMS(0), DIMS(2), DIMS(3), DIMS(2)), 0, 2, 3, 5);
  EXPECT_INTS(WINDOW(x, DIMS(0), DIMS(2), DIMS(1), DIMS(5)), 0, 5, 1, 6);
  quern_tensor *y = INTS(I32, DIMS(2, 3), 1, 2, 3, 4, 5, 6), *w = WINDOW(y, DIMS(1), DIMS(2), DIMS(1), DIMS(1));
  EXPECT_SHAPE(w, 2, 2, 2);
  EXPECT_INTS(w, 1, 2, 2, 3, 4, 5, 5, 6);
  quern_tensor *v = WINDOW(y, DIMS(0), DIMS(2), DIMS(1), DIMS(1)); /* the window's axis comes last */
  EXPECT_SHAPE(v, 1, 3, 2);
  EXPECT_INTS(v, 1, 4, 2, 5, 3, 6);
  quern_tensor *u = WINDOW(y, DIMS(0, 1), DIMS(2, 1), DIMS(1, 2), DIMS(1, 3));
  EXPECT_SHAPE(u, 1, 2, 2, 1);
  EXPECT_INTS(u, 1, 4, 3, 6);
}

static void test_fold(void **state) {
  (void)state;
#define COL2IM(x, SHAPE, AXES, STEP, DILATE)                                                                           \
  M(COL2IM, ATTRS(.shape = SHAPE, .axes = AXES, .step = STEP, .dilate = DILATE), x)
  quern_tensor *x = INTS(I32, DIMS(3, 3), 1, 2, 3, 4, 5, 6, 7, 8, 9);
  EXPECT_INTS(COL2IM(x, DIMS(7), DIMS(0), DIMS(2), DIMS(1)), 1, 2, 7, 5, 13, 8, 9);
  EXPECT_INTS(COL2IM(x, DIMS(8), DIMS(0), DIMS(2), DIMS(1)), 1, 2, 7, 5, 13, 8, 9, 0); /* nothing reaches the last */
  EXPECT_INTS(COL2IM(INTS(I32, DIMS(2, 2), 1, 2, 3, 4), DIMS(6), DIMS(0), DIMS(3), DIMS(2)), 1, 0, 2, 3, 0, 4);
  EXPECT_INTS(COL2IM(INTS(I32, DIMS(1, 3, 2), 1, 2, 3, 4, 5, 6), DIMS(2, 3), DIMS(0), DIMS(1), DIMS(1)), 1, 3, 5, 2, 4,
              6);
  EXPECT_REALS(COL2IM(REALS(F32, DIMS(2, 1), -0.0, 1), DIMS(3), DIMS(0), DIMS(2), DIMS(1)), -0.0, 0.0, 1);
  /* 2048 + 1 + 1, rounded once. */
  EXPECT_REALS(COL2IM(REALS(F16, DIMS(3, 3), 0, 0, 2048, 0, 1, 0, 1, 0, 0), DIMS(5), DIMS(0), DIMS(1), DIMS(1)), 0, 0,
               2050, 0, 0);
}

/* <window(x), y> = <x, fold(y)>, for two axes with steps and dilations. */
static void test_adjoint(void **state) {
  (void)state;
  int64_t xs[5 * 2 * 7], ys[256], sums[2];
  for (int i = 0; i < 70; i++) xs[i] = i * i % 23 - 11;
  for (int i = 0; i < 256; i++) ys[i] = i * 7 % 19 - 9;
  quern_tensor *x = test_const(QUERN_DTYPE_I64, DIMS(5, 2, 7), QUERN_DTYPE_I64, 70, xs);
  struct ir_ints axes = DIMS(0, 2), size = DIMS(2, 3), step = DIMS(2, 1), dilate = DIMS(1, 2);
  quern_tensor *w = WINDOW(x, axes, size, step, dilate);
  EXPECT_SHAPE(w, 2, 2, 3, 2, 3);
  quern_tensor *y = test_const(QUERN_DTYPE_I64, DIMS(2, 2, 3, 2, 3), QUERN_DTYPE_I64, 72, ys);
  quern_tensor *f = COL2IM(y, DIMS(5, 2, 7), axes, step, dilate);
  quern_tensor *one = M(REDUCE, ATTRS(.reduce = IR_SUM, .axes = DIMS(0, 1, 2, 3, 4)), M(MUL, NULL, w, y));
  quern_tensor *two = M(REDUCE, ATTRS(.reduce = IR_SUM, .axes = DIMS(0, 1, 2)), M(MUL, NULL, x, f));
  assert_int_equal(ir_eval(ctx, 2, (quern_tensor *[]){one, two}, (void *[]){&sums[0], &sums[1]}, 0, NULL),
                   QUERN_STATUS_OK);
  assert_int_equal(sums[0], sums[1]);
  assert_true(sums[0] != 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_gather),  TEST(test_gather_outside), TEST(test_gather_batch),
      TEST(test_scatter), TEST(test_scatter_axes),   TEST(test_scatter_rounding),
      TEST(test_window),  TEST(test_fold),           TEST(test_adjoint),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
