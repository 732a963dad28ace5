/* tests/tensor/test_interpolate.c -- interpolate.c against values worked out from the definitions, by hand */
#include "tensor/compound_test.h"

#define SIZED(...) (&(quern_interpolate_options){.size = sizeof(quern_interpolate_options), __VA_ARGS__})

static void nearest(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(1, 1, 3), 1, 2, 3);
  EXPECT(quern_interpolate(x, SIZED(.sizes = {6})), 1, 1, 2, 2, 3, 3);
  EXPECT(quern_interpolate(x, SIZED(.sizes = {5})), 1, 1, 2, 2, 3); /* floor(i 3 / 5): 0 0 1 1 2 */
  EXPECT(quern_interpolate(x, SIZED(.sizes = {2})), 1, 2);
  EXPECT(quern_interpolate(x, SIZED(.sizes = {2}, .mode = QUERN_INTERPOLATE_NEAREST_EXACT)), 1, 3);
  EXPECT(quern_interpolate(x, SIZED(.scales = {1.7})), 1, 1, 2, 2, 3); /* floor(i / 1.7) of floor(3 1.7) = 5 places */
  EXPECT(quern_interpolate(REALS(I32, DIMS(1, 1, 2, 2), 1, 2, 3, 4), SIZED(.sizes = {2, 4})), 1, 1, 2, 2, 3, 3, 4, 4);
  assert_ptr_equal(quern_interpolate(x, SIZED(.sizes = {3})), x);
  EXPECT_TYPE(quern_interpolate(ZEROS(BF16, 2, 3, 4, 5, 6), SIZED(.sizes = {2, 10, 7})), BF16, DIMS(2, 3, 2, 10, 7));
}

/* Integral factors and slices read nothing by index. */
static void simple_places_need_no_gather(void **state) {
  (void)state;
  quern_tensor *x = INPUT(1, 2, 4, 6);
  quern_tensor *y[] = {quern_interpolate(x, SIZED(.sizes = {8, 18})), quern_interpolate(x, SIZED(.sizes = {2, 3})),
                       quern_interpolate(x, SIZED(.sizes = {5, 6}))};
  size_t gathers[3] = {0};
  for (int i = 0; i < 3; i++) {
    struct ir_order order;
    EXPECT_OK(ir_topo(ctx, 1, &y[i], &order));
    for (size_t k = 0; k < order.n; k++) gathers[i] += order.at[k]->op == IR_GATHER;
    ir_order_fini(ctx, &order);
  }
  assert_true(gathers[0] == 0 && gathers[1] == 0 && gathers[2] == 1);
}

static void linear(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(1, 1, 2), 0, 4);
  const quern_interpolate_mode mode = QUERN_INTERPOLATE_LINEAR;
  EXPECT(quern_interpolate(x, SIZED(.sizes = {4}, .mode = mode)), 0, 1, 3, 4);
  EXPECT(quern_interpolate(x, SIZED(.sizes = {5}, .mode = mode, .align_corners = true)), 0, 1, 2, 3, 4);
  EXPECT(quern_interpolate(x, SIZED(.sizes = {1}, .mode = mode, .align_corners = true)), 0);
  EXPECT(quern_interpolate(x, SIZED(.sizes = {1}, .mode = mode)), 2);
  quern_tensor *square = REALS(F32, DIMS(1, 1, 2, 2), 1, 2, 3, 4);
  EXPECT(quern_interpolate(square, SIZED(.scales = {2, 2}, .mode = mode)), 1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5,
         2.75, 3.25, 3.5, 3, 3.25, 3.75, 4);
  EXPECT(quern_interpolate(square, SIZED(.sizes = {3, 3}, .mode = mode, .align_corners = true)), 1, 1.5, 2, 2, 2.5, 3,
         3, 3.5, 4);
  /* a size is n / m, a scale is what was given: (i + 1/2) / 1.7 - 1/2 of 3 places */
  EXPECT_NEAR(quern_interpolate(REALS(F64, DIMS(1, 1, 2), 0, 1.7), SIZED(.scales = {1.7}, .mode = mode)), 1e-15, 0,
              0.65, 1.65);
  EXPECT(quern_interpolate(REALS(F16, DIMS(1, 1, 2), 60000, 60000), SIZED(.sizes = {3}, .mode = mode)), 60000, 60000,
         60000); /* computed in f32, rounded once */
}

/* Of positions between two elements: weights of Keys' convolution with a = -3/4 at distances 5/4, 1/4, 3/4, 7/4. */
static void cubic(void **state) {
  (void)state;
  const double far = -0.10546875, near = 0.87890625, other = 0.26171875, last = -0.03515625;
  quern_tensor *x = REALS(F64, DIMS(1, 1, 4), 1, 10, 100, 1000);
  double second = far * 1 + near * 10 + other * 100 + last * 1000; /* its middle is at 1.25 */
  quern_tensor *y = quern_interpolate(x, SIZED(.sizes = {8}, .mode = QUERN_INTERPOLATE_CUBIC));
  double *got = VALUES(y);
  assert_true(fabs(got[3] - second) < 1e-12);
  assert_true(fabs(got[0] - (last * 1 + other * 1 + near * 1 + far * 10)) <
              1e-12); /* the edge stands for what is beyond */
  free(got);
  EXPECT(quern_interpolate(x, SIZED(.sizes = {4}, .mode = QUERN_INTERPOLATE_CUBIC)), 1, 10, 100, 1000);
  EXPECT_NEAR(quern_interpolate(x, SIZED(.sizes = {2}, .mode = QUERN_INTERPOLATE_CUBIC, .align_corners = true)), 1e-12,
              1, 1000);
}

static void shuffles(void **state) {
  (void)state;
  quern_tensor *x = REALS(I32, DIMS(1, 4, 1, 2), 0, 1, 2, 3, 4, 5, 6, 7), *y = quern_pixel_shuffle(x, 2);
  EXPECT_TYPE(y, I32, DIMS(1, 1, 2, 4));
  EXPECT(y, 0, 2, 1, 3, 4, 6, 5, 7);
  EXPECT(quern_pixel_unshuffle(y, 2), 0, 1, 2, 3, 4, 5, 6, 7);
  EXPECT_TYPE(quern_pixel_shuffle(ZEROS(F32, 0, 9, 2, 3), 3), F32, DIMS(0, 1, 6, 9));
}

/* Positions of whole scales are exact, also of those whose reciprocal is none. */
static void whole_scales(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(1, 1, 4), 0, 1, 2, 3);
  float given[196], wanted[196];
  quern_tensor *by_scale = quern_interpolate(x, SIZED(.scales = {49})),
               *by_size = quern_interpolate(x, SIZED(.sizes = {196}));
  EXPECT_OK(quern_eval_reference(ctx, 1, &by_scale, &(void *){given}, 0, NULL));
  EXPECT_OK(quern_eval_reference(ctx, 1, &by_size, &(void *){wanted}, 0, NULL));
  assert_memory_equal(given, wanted, sizeof wanted);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static quern_tensor *resized(quern_tensor *const *x, const void *user) { return quern_interpolate(x[0], user); }
static quern_tensor *shuffled(quern_tensor *const *x, const void *user) {
  return (void)user, quern_pixel_shuffle(x[0], 2);
}

static void gradients(void **state) {
  (void)state;
  double data[40], *at[] = {data};
  test_fill(40, data, 3);
  const struct ir_ints dims = DIMS(1, 2, 4, 5), four = DIMS(1, 4, 2, 5);
  for (int mode = QUERN_INTERPOLATE_NEAREST; mode <= QUERN_INTERPOLATE_CUBIC; mode++)
    CHECK_GRADIENTS(resized, SIZED(.sizes = {7, 10}, .mode = (quern_interpolate_mode)mode), 1, &dims, at, false);
  CHECK_GRADIENTS(shuffled, NULL, 1, &four, at, false);
  quern_tensor *x = REALS(F64, DIMS(1, 1, 2), 5, 7);
  quern_tensor *y = quern_interpolate(x, SIZED(.sizes = {5}, .mode = QUERN_INTERPOLATE_LINEAR, .align_corners = true));
  EXPECT(GRAD_OF_SUM(y, x), 2.5, 2.5);
}

/* More places than a constant of the expression may hold. */
static void long_axis(void **state) {
  (void)state;
  enum { N = 30000 };
  quern_tensor *x = quern_arange(ctx, QUERN_DTYPE_F64, N, 0, 1);
  x = quern_reshape(x, QUERN_LIST(1, 1, N));
  double *got = VALUES(
      quern_interpolate(x, SIZED(.sizes = {2 * N - 1}, .mode = QUERN_INTERPOLATE_LINEAR, .align_corners = true)));
  for (int i = 0; i < 2 * N - 1; i++) assert_true(fabs(got[i] - 0.5 * i) < 1e-9);
  free(got);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(nearest),   TEST(simple_places_need_no_gather),
                                     TEST(linear),    TEST(cubic),
                                     TEST(shuffles),  TEST(gradients),
                                     TEST(long_axis), TEST(whole_scales)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
