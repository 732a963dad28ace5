/* tests/tensor/test_position.c -- position.c against the formulas in double */
#include "tensor/compound_test.h"

enum { ROWS = 2, S = 5, D = 6 };

static void turn(const double *x, int64_t start, double base, bool interleaved, double *y) {
  for (int r = 0; r < ROWS; r++) {
    for (int p = 0; p < S; p++) {
      for (int i = 0; i < D / 2; i++) {
        double angle = (double)(start + p) * pow(base, -2.0 * i / D);
        int row = (r * S + p) * D, a = row + (interleaved ? 2 * i : i), b = row + (interleaved ? 2 * i + 1 : i + D / 2);
        y[a] = x[a] * cos(angle) - x[b] * sin(angle);
        y[b] = x[a] * sin(angle) + x[b] * cos(angle);
      }
    }
  }
}

static void rope(void **state) {
  (void)state;
  double x[ROWS * S * D], want[ROWS * S * D];
  test_fill(ROWS * S * D, x, 1);
  quern_tensor *t = ARRAY(F64, DIMS(ROWS, S, D), ROWS * S * D, x);
  for (int interleaved = 0; interleaved < 2; interleaved++) {
    turn(x, 0, 10000, interleaved, want);
    EXPECT_TYPE(quern_rope(t, NULL, 10000, interleaved), F64, DIMS(ROWS, S, D));
    EXPECT_ARRAY(quern_rope(t, NULL, 10000, interleaved), 1e-14, ROWS * S * D, want);
    turn(x, 0, 0.5, interleaved, want);
    EXPECT_ARRAY(quern_rope(t, NULL, 0.5, interleaved), 1e-14, ROWS * S * D, want);
    turn(x, 1000, 50, interleaved, want);
    EXPECT_ARRAY(quern_rope(t, quern_scalar_int(ctx, QUERN_DTYPE_I64, 1000), 50, interleaved), 1e-12, ROWS * S * D,
                 want);
    EXPECT_ARRAY(quern_rope(t, quern_scalar_int(ctx, QUERN_DTYPE_U16, 1000), 50, interleaved), 1e-12, ROWS * S * D,
                 want);
    EXPECT_ARRAY(quern_rope(ARRAY(F32, DIMS(ROWS, S, D), ROWS * S * D, x), quern_scalar_int(ctx, QUERN_DTYPE_I32, 1000),
                            50, interleaved),
                 2e-4, ROWS * S * D, want);
  }
}

/* Turning keeps lengths, and scores depend on distances only. */
static void rope_laws(void **state) {
  (void)state;
  double a[D], b[D];
  test_fill(D, a, 2);
  test_fill(D, b, 3);
  quern_tensor *ta = ARRAY(F64, DIMS(1, D), D, a), *tb = ARRAY(F64, DIMS(1, D), D, b);
  double *length = VALUES(quern_sum(quern_square(ta), QUERN_ALL, false)), score = 0;
  for (int64_t start = 0; start < 40; start += 13) {
    quern_tensor *qa = quern_rope(ta, quern_scalar_int(ctx, QUERN_DTYPE_I64, start), 100, false);
    quern_tensor *kb = quern_rope(tb, quern_scalar_int(ctx, QUERN_DTYPE_I64, start + 4), 100, false);
    EXPECT_NEAR(quern_sum(quern_square(qa), QUERN_ALL, false), 1e-14, length[0]);
    double *dot = VALUES(quern_sum(quern_mul(qa, kb), QUERN_ALL, false));
    if (start == 0) score = dot[0];
    assert_true(fabs(dot[0] - score) < 1e-13);
    free(dot);
  }
  free(length);
}

static void rope_narrow(void **state) {
  (void)state;
  quern_tensor *x = REALS(BF16, DIMS(3, 2), 1, 2, 3, 4, 5, 6), *y = quern_rope(x, NULL, 10000, false);
  EXPECT_TYPE(y, BF16, DIMS(3, 2));
  EXPECT(y, 1, 2, 3 * cos(1) - 4 * sin(1), 3 * sin(1) + 4 * cos(1), 5 * cos(2) - 6 * sin(2), 5 * sin(2) + 6 * cos(2));
}

/* So wide that the frequencies are no constant. */
static void rope_wide(void **state) {
  (void)state;
  enum { WIDE = 2 * 8193 };
  double *x = malloc(WIDE * sizeof *x), *want = malloc(WIDE * sizeof *want);
  test_fill(WIDE, x, 4);
  for (int i = 0; i < WIDE / 2; i++) {
    double angle = 3 * pow(100, -2.0 * i / WIDE);
    want[i] = x[i] * cos(angle) - x[i + WIDE / 2] * sin(angle);
    want[i + WIDE / 2] = x[i] * sin(angle) + x[i + WIDE / 2] * cos(angle);
  }
  EXPECT_ARRAY(quern_rope(ARRAY(F64, DIMS(1, WIDE), WIDE, x), quern_scalar_int(ctx, QUERN_DTYPE_I64, 3), 100, false),
               1e-13, WIDE, want);
  free(x);
  free(want);
}

static quern_tensor *turned(quern_tensor *const *x, const void *user) {
  return quern_rope(x[0], quern_scalar_int(ctx, QUERN_DTYPE_I64, 7), 10, *(const bool *)user);
}

static void rope_gradient(void **state) {
  (void)state;
  double data[24], *at[] = {data};
  test_fill(24, data, 5);
  CHECK_GRADIENTS(turned, &(bool){false}, 1, &DIMS(2, 3, 4), at, false);
  CHECK_GRADIENTS(turned, &(bool){true}, 1, &DIMS(2, 3, 4), at, false);
}

static void sinusoidal(void **state) {
  (void)state;
  /* 64 x 128 of f64 is the largest constant. */
  static const int64_t sizes[][2] = {{7, 6}, {3, 5}, {1, 1}, {64, 128}, {130, 65}};
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    int64_t n = sizes[i][0], width = sizes[i][1];
    double *want = malloc((size_t)(n * width) * sizeof *want);
    for (int64_t p = 0; p < n; p++) {
      for (int64_t c = 0; c < width; c++) {
        double angle = (double)p * pow(1000, -(double)(c - c % 2) / (double)width);
        want[p * width + c] = c % 2 == 0 ? sin(angle) : cos(angle);
      }
    }
    quern_tensor *y = quern_sinusoidal(ctx, QUERN_DTYPE_F64, n, width, 1000);
    EXPECT_TYPE(y, F64, DIMS(n, width));
    assert_int_equal(y->node->op == IR_CONST, n * width * 8 <= 65536);
    EXPECT_ARRAY(y, 1e-13, n * width, want);
    y = quern_sinusoidal(ctx, QUERN_DTYPE_BF16, n, width, 1000);
    EXPECT_TYPE(y, BF16, DIMS(n, width));
    test_exact(y, (size_t)(n * width), want, __FILE__, __LINE__);
    free(want);
  }
  EXPECT_TYPE(quern_sinusoidal(ctx, QUERN_DTYPE_F32, 0, 4, 1000), F32, DIMS(0, 4));
}

static void wrong_calls(void **state) {
  (void)state;
  quern_tensor *x = ZEROS(F32, 3, 4);
  EXPECT_POISON(quern_rope(ZEROS(F32, 3, 5), NULL, 10000, false), SHAPE,
                "rope: the last axis of x f32(3, 5) has odd size 5");
  EXPECT_POISON(quern_rope(ZEROS(F32, 4), NULL, 10000, false), SHAPE, "rope: x is f32(4,), must be (.., S, D)");
  EXPECT_POISON(quern_rope(ZEROS(I32, 3, 4), NULL, 10000, false), DTYPE, "rope: x is i32(3, 4)");
  EXPECT_POISON(quern_rope(x, ZEROS(I64, 1), 10000, false), DTYPE, "rope: start is i64(1,), must be an integer scalar");
  EXPECT_POISON(quern_rope(x, quern_scalar(ctx, QUERN_DTYPE_F32, 1), 10000, false), DTYPE,
                "rope: start is f32(), must be an integer scalar");
  EXPECT_POISON(quern_rope(x, NULL, 0, false), INVALID, "rope: base is 0, must be finite and above 0");
  EXPECT_NULL_ERROR(quern_rope(NULL, NULL, 10000, false), "rope: the operand is null");
  EXPECT_POISON(quern_sinusoidal(ctx, QUERN_DTYPE_I32, 3, 4, 10000), DTYPE,
                "sinusoidal: dtype is i32, must be a float");
  EXPECT_POISON(quern_sinusoidal(ctx, QUERN_DTYPE_F32, -3, 4, 10000), SHAPE,
                "sinusoidal: dim 0 of (-3, 4) is negative");
  EXPECT_POISON(quern_sinusoidal(ctx, QUERN_DTYPE_F32, 3, 4, NAN), INVALID, "sinusoidal: base is nan");
  EXPECT_POISON(quern_sinusoidal(ctx, QUERN_DTYPE_F8E4M3, 1, INT64_MAX, 10000), OVERFLOW,
                "sinusoidal: a width of 9223372036854775807 is too large");
  EXPECT_NULL_ERROR(quern_sinusoidal(NULL, QUERN_DTYPE_F32, 3, 4, 10000), "sinusoidal: the context is null");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(rope),          TEST(rope_laws),  TEST(rope_narrow), TEST(rope_wide),
      TEST(rope_gradient), TEST(sinusoidal), TEST(wrong_calls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
