/* tests/tensor/test_index.c -- reading and writing at positions that are data */
#include "tensor/compound_test.h"

static void gathers(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(3, 2), 1, 2, 3, 4, 5, 6), *i = REALS(I64, DIMS(2, 2), 2, 0, -1, 3);
  EXPECT(quern_gather(x, i, 0), 5, 6, 1, 2, 0, 0, 0, 0);
  EXPECT_TYPE(quern_gather(x, i, 0), F32, DIMS(2, 2, 2));
  EXPECT(quern_gather(x, REALS(U8, DIMS(3), 1, 1, 0), -1), 2, 2, 1, 4, 4, 3, 6, 6, 5);
  EXPECT(quern_gather(x, REALS(I32, SCALAR, 1), 0), 3, 4);
  EXPECT_POISON(quern_gather(x, x, 0), DTYPE, "gather: the indices are f32(3, 2), must be integers");
  EXPECT_POISON(quern_gather(x, i, 2), SHAPE, "gather: axis 2 is out of range for (3, 2) of rank 2");
  EXPECT_POISON(quern_gather(x, NULL, 0), INVALID, "gather: operand 1 is null");
  quern_tensor *deep = quern_reshape(i, QUERN_LIST(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2));
  EXPECT_POISON(quern_gather(x, deep, 0), SHAPE, "would have rank 17, at most 16");
  quern_tensor *wide = quern_input(ctx, "wide", QUERN_DTYPE_F32, QUERN_LIST(1, INT64_C(1) << 40)),
               *many = quern_input(ctx, "many", QUERN_DTYPE_U8, QUERN_LIST(INT64_C(1) << 40));
  EXPECT_POISON(quern_gather(wide, many, 0), OVERFLOW, "gather: (1099511627776, 1099511627776) of f32");
}

static void scatters(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(3), 1, 2, 3), *i = REALS(I64, DIMS(4), 0, 0, 2, 5),
               *u = REALS(F32, DIMS(4), 10, 20, -30, 40);
  EXPECT(quern_scatter(x, i, u, 0, QUERN_SCATTER_SET), 20, 2, -30);
  EXPECT(quern_scatter(x, i, u, 0, QUERN_SCATTER_ADD), 31, 2, -27);
  EXPECT(quern_scatter(x, i, u, 0, QUERN_SCATTER_MAX), 20, 2, 3);
  EXPECT(quern_scatter(x, i, u, 0, QUERN_SCATTER_MIN), 1, 2, -30);
  quern_tensor *m = ZEROS(F32, 2, 3);
  EXPECT(quern_scatter(m, REALS(I32, DIMS(2), 2, 0), REALS(F32, DIMS(2, 2), 1, 2, 3, 4), 1, QUERN_SCATTER_SET), 2, 0, 1,
         4, 0, 3);
  EXPECT(quern_scatter(m, REALS(I32, DIMS(2), 2, 0), REALS(F32, DIMS(2, 1), 7, 8), 1, QUERN_SCATTER_SET), 7, 0, 7, 8, 0,
         8); /* u is stretched */
  EXPECT(quern_scatter(m, REALS(I32, SCALAR, 1), REALS(F32, SCALAR, 5), 0, QUERN_SCATTER_ADD), 0, 0, 0, 5, 5, 5);
  quern_tensor *cube = ZEROS(F32, 2, 2, 3), *row = REALS(F32, DIMS(3), 1, 2, 3);
  EXPECT(quern_scatter(cube, REALS(I32, SCALAR, 1), row, 0, QUERN_SCATTER_ADD), 0, 0, 0, 0, 0, 0, 1, 2, 3, 1, 2, 3);
  EXPECT(quern_scatter(cube, REALS(I32, SCALAR, 1), row, 1, QUERN_SCATTER_ADD), 0, 0, 0, 1, 2, 3, 0, 0, 0, 1, 2, 3);
  EXPECT(quern_scatter(x, REALS(I32, SCALAR, 2), REALS(F32, SCALAR, 9), 0, QUERN_SCATTER_SET), 1, 2, 9);
  quern_tensor *deep = quern_reshape(i, QUERN_LIST(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4));
  EXPECT_POISON(quern_scatter(m, deep, u, 0, QUERN_SCATTER_SET), SHAPE, "scatter: axis 0 of (2, 3) at indices");
  EXPECT_POISON(quern_scatter(x, i, u, 1, QUERN_SCATTER_SET), SHAPE, "scatter: axis 1 is out of range");
  EXPECT_POISON(quern_scatter(x, i, u, 0, (quern_scatter_mode)4), INVALID, "scatter: 4 is no scatter mode");
  EXPECT_POISON(quern_scatter(x, i, u, 0, (quern_scatter_mode)-1), INVALID, "is no scatter mode");
  EXPECT_POISON(quern_scatter(x, u, u, 0, QUERN_SCATTER_SET), DTYPE,
                "scatter: the indices are f32(4,), must be integers");
  EXPECT_POISON(quern_scatter(x, i, ZEROS(F32, 5), 0, QUERN_SCATTER_SET), SHAPE,
                "scatter: u is (5,), x is (3,) at indices (4,) on axis 0 needs (4,)");
  EXPECT_POISON(quern_scatter(x, i, ZEROS(F32, 1, 4), 0, QUERN_SCATTER_SET), SHAPE, "scatter: u is (1, 4)");
  EXPECT_POISON(quern_scatter(x, i, ZEROS(F64, 4), 0, QUERN_SCATTER_SET), DTYPE,
                "scatter: dtypes differ: x is f32(3,), u is f64(4,)");
  EXPECT_POISON(quern_scatter(ZEROS(BOOL, 3), i, ZEROS(BOOL, 4), 0, QUERN_SCATTER_ADD), DTYPE,
                "scatter: does not admit bool");
}

static void along(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2, 3), 1, 2, 3, 4, 5, 6);
  EXPECT(quern_take_along(x, REALS(I64, DIMS(2, 2), 2, 0, 1, 7), 1), 3, 1, 5, 0);
  EXPECT(quern_take_along(x, REALS(I64, DIMS(1, 3), 1, 0, 1), 0), 4, 2, 6);
  EXPECT(quern_take_along(x, REALS(I64, DIMS(1, 3), 1, 0, 1), -2), 4, 2, 6);
  quern_tensor *i = REALS(I32, DIMS(2, 2), 2, 2, 0, 9), *u = REALS(F32, DIMS(2, 2), 10, 20, 30, 40);
  EXPECT(quern_scatter_along(x, i, u, 1, QUERN_SCATTER_ADD), 1, 2, 33, 34, 5, 6);
  EXPECT(quern_scatter_along(x, i, u, 1, QUERN_SCATTER_SET), 1, 2, 20, 30, 5, 6);
  EXPECT(quern_scatter_along(x, REALS(I32, DIMS(1, 3), 1, 0, 1), REALS(F32, DIMS(1, 3), 7, 8, 9), 0, QUERN_SCATTER_MAX),
         1, 8, 3, 7, 5, 9);
  quern_tensor *cube = quern_reshape(quern_arange(ctx, QUERN_DTYPE_F32, 8, 0, 1), QUERN_LIST(2, 2, 2));
  EXPECT(quern_take_along(cube, REALS(I64, DIMS(2, 1, 2), 0, 1, 1, 0), 1), 0, 3, 6, 5);
  EXPECT_POISON(quern_take_along(x, REALS(I64, DIMS(3, 2), 0, 0, 0, 0, 0, 0), 1), SHAPE,
                "take_along: the indices are (3, 2), must have the shape of x, (2, 3), but for axis 1");
  EXPECT_POISON(quern_take_along(x, REALS(I64, DIMS(2), 0, 0), 1), SHAPE, "take_along: the indices are (2,)");
  EXPECT_POISON(quern_take_along(x, x, 1), DTYPE, "take_along: the indices are f32(2, 3)");
  EXPECT_POISON(quern_take_along(x, i, 3), SHAPE, "take_along: axis 3 is out of range");
  EXPECT_POISON(quern_scatter_along(x, i, ZEROS(F32, 2, 1), 1, QUERN_SCATTER_SET), SHAPE,
                "scatter_along: u is (2, 1), must have the shape of the indices, (2, 2)");
  EXPECT_POISON(quern_scatter_along(x, i, ZEROS(I32, 2, 2), 1, QUERN_SCATTER_SET), DTYPE,
                "scatter_along: dtypes differ");
  EXPECT_POISON(quern_scatter_along(x, i, u, 0, QUERN_SCATTER_SET), SHAPE,
                "scatter_along: the indices are (2, 2), must have the shape of x, (2, 3), but for axis 0");
  EXPECT_POISON(quern_scatter_along(x, i, u, 1, (quern_scatter_mode)9), INVALID, "scatter_along: 9 is no scatter mode");
}

static void one_hots(void **state) {
  (void)state;
  EXPECT(quern_one_hot(REALS(I64, DIMS(3), 1, 0, 5), 2, QUERN_DTYPE_F32), 0, 1, 1, 0, 0, 0);
  EXPECT_TYPE(quern_one_hot(ZEROS(I64, 2, 3), 4, QUERN_DTYPE_BOOL), BOOL, DIMS(2, 3, 4));
  EXPECT_TYPE(quern_one_hot(ZEROS(I64, 2), 0, QUERN_DTYPE_F32), F32, DIMS(2, 0));
  /* classes beyond the range of the indices' dtype are not confused */
  double *v = VALUES(quern_one_hot(REALS(U8, SCALAR, 3), 300, QUERN_DTYPE_I32));
  for (int i = 0; i < 300; i++) assert_true(v[i] == (i == 3));
  free(v);
  EXPECT_POISON(quern_one_hot(ZEROS(F32, 2), 2, QUERN_DTYPE_F32), DTYPE,
                "one_hot: the indices are f32(2,), must be integers");
  EXPECT_POISON(quern_one_hot(ZEROS(I64, 2), -1, QUERN_DTYPE_F32), INVALID, "one_hot: -1 classes");
  EXPECT_POISON(quern_one_hot(ZEROS(I64, 2), 2, (quern_dtype)77), DTYPE, "one_hot: 77 is no dtype");
  EXPECT_POISON(quern_one_hot(ZEROS(I64, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), 2, QUERN_DTYPE_F32), SHAPE,
                "leave no room for an axis");
  EXPECT_POISON(quern_one_hot(ZEROS(I64, 4), INT64_MAX, QUERN_DTYPE_F32), OVERFLOW, "one_hot: ");
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(gathers), TEST(scatters), TEST(along), TEST(one_hots)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
