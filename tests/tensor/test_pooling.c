/* tests/tensor/test_pooling.c -- pool.c against loops over every place of every window */
#include "tensor/compound_test.h"

/* Planes of n[0] x n[1] x n[2] places (unused axes: 1), reduced over the windows. */
struct sizes {
  int spatial;
  int64_t planes, n[3];
  quern_pool_options o;
};

static int64_t stride_of(const struct sizes *c, int i) { return c->o.stride[i] == 0 ? c->o.window[i] : c->o.stride[i]; }
static int64_t dilation_of(const struct sizes *c, int i) { return c->o.dilation[i] == 0 ? 1 : c->o.dilation[i]; }

static int64_t places(const struct sizes *c, int i) {
  if (i >= c->spatial) return 1;
  int64_t span = dilation_of(c, i) * (c->o.window[i] - 1) + 1;
  return (c->n[i] + c->o.pad_lo[i] + c->o.pad_hi[i] - span) / stride_of(c, i) + 1;
}

static void naive(const struct sizes *c, bool average, const double *x, double *y) {
  int64_t m[3], k[3];
  for (int i = 0; i < 3; i++) {
    m[i] = places(c, i);
    k[i] = i < c->spatial ? c->o.window[i] : 1;
  }
  int64_t size = m[0] * m[1] * m[2], from = c->n[0] * c->n[1] * c->n[2], window = k[0] * k[1] * k[2];
  for (int64_t plane = 0; plane < c->planes; plane++) {
    for (int64_t p = 0; p < size; p++) {
      double sum = 0, top = -INFINITY, count = 0;
      for (int64_t j = 0; j < window; j++) {
        const int64_t pi[] = {p / (m[1] * m[2]), p / m[2] % m[1], p % m[2]},
                      ji[] = {j / (k[1] * k[2]), j / k[2] % k[1], j % k[2]};
        int64_t at = 0;
        bool inside = true;
        for (int i = 0; i < 3; i++) {
          int64_t q = i < c->spatial ? pi[i] * stride_of(c, i) + ji[i] * dilation_of(c, i) - c->o.pad_lo[i] : 0;
          inside &= q >= 0 && q < c->n[i];
          at = at * c->n[i] + q;
        }
        if (inside) {
          sum += x[plane * from + at];
          top = fmax(top, x[plane * from + at]);
        }
        count += inside || c->o.count_pad;
      }
      y[plane * size + p] = average ? sum / count : top;
    }
  }
}

static const struct sizes cases[] = {
    {1, 6, {8, 1, 1}, {.size = sizeof(quern_pool_options), .window = {2}}},
    {1, 6, {9, 1, 1}, {.size = sizeof(quern_pool_options), .window = {3}, .stride = {2}, .pad_lo = {1}, .pad_hi = {2}}},
    {1,
     6,
     {9, 1, 1},
     {.size = sizeof(quern_pool_options), .window = {3}, .stride = {1}, .dilation = {3}, .pad_lo = {2}}},
    {2,
     6,
     {5, 4, 1},
     {.size = sizeof(quern_pool_options), .window = {2, 3}, .stride = {1, 2}, .pad_lo = {1, 0}, .pad_hi = {0, 2}}},
    {2, 6, {4, 6, 1}, {.size = sizeof(quern_pool_options), .window = {2, 2}}},
    {3,
     6,
     {3, 4, 5},
     {.size = sizeof(quern_pool_options),
      .window = {3, 2, 2},
      .stride = {1, 2, 3},
      .pad_lo = {1, 1, 0},
      .pad_hi = {1, 0, 1}}},
};
enum { MOST = 1024 };

static void values(void **state) {
  (void)state;
  static double x[MOST], want[MOST];
  test_fill(MOST, x, 1);
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct sizes c = cases[i];
    int64_t dims[5] = {2, 3, c.n[0], c.n[1], c.n[2]}, out[5] = {2, 3, places(&c, 0), places(&c, 1), places(&c, 2)};
    int64_t nx = 6 * c.n[0] * c.n[1] * c.n[2], ny = 6 * out[2] * out[3] * out[4];
    int rank = 2 + c.spatial;
    quern_tensor *t = ARRAY(F64, ((struct ir_ints){rank, dims}), nx, x);
    naive(&c, false, x, want);
    EXPECT_TYPE(quern_max_pool(t, &c.o), F64, ((struct ir_ints){rank, out}));
    EXPECT_ARRAY(quern_max_pool(t, &c.o), 0, ny, want);
    naive(&c, true, x, want);
    EXPECT_ARRAY(quern_avg_pool(t, &c.o), 1e-15, ny, want);
    c.o.count_pad = true;
    naive(&c, true, x, want);
    EXPECT_ARRAY(quern_avg_pool(t, &c.o), 1e-15, ny, want);
  }
}

static void far_stride(void **state) {
  (void)state;
  const quern_pool_options o = {.size = sizeof o, .window = {2}, .stride = {INT32_MAX}};
  EXPECT(quern_max_pool(REALS(F32, DIMS(1, 1, 4), 1, 2, 4, 8), &o), 2);
}

/* Padding never wins a maximum, in any dtype; averages of narrow floats round once. */
static void dtypes(void **state) {
  (void)state;
  const quern_pool_options o = {.size = sizeof o, .window = {2}, .stride = {1}, .pad_lo = {1}, .pad_hi = {1}};
  EXPECT(quern_max_pool(REALS(F32, DIMS(1, 1, 2), -3e38, -INFINITY), &o), -3e38, -3e38, -INFINITY);
  EXPECT(quern_max_pool(REALS(F8E4M3, DIMS(1, 1, 2), -448, -1), &o), -448, -1, -1);
  EXPECT(quern_max_pool(REALS(F8E5M2, DIMS(1, 1, 1), -57344), &o), -57344, -57344);
  EXPECT(quern_max_pool(REALS(I8, DIMS(1, 1, 2), -128, -127), &o), -128, -127, -127);
  EXPECT(quern_max_pool(REALS(I64, DIMS(1, 1, 1), -9223372036854775808.0), &o), -9223372036854775808.0,
         -9223372036854775808.0);
  EXPECT(quern_max_pool(REALS(I32, DIMS(1, 1, 1), -2147483648.0), &o), -2147483648.0, -2147483648.0);
  EXPECT(quern_max_pool(REALS(U8, DIMS(1, 1, 2), 0, 7), &o), 0, 7, 7);
  EXPECT(quern_max_pool(REALS(F32, DIMS(1, 1, 2), NAN, 1), &o), NAN, NAN, 1);
  EXPECT(quern_avg_pool(REALS(F32, DIMS(1, 1, 2), 2, 4), &o), 2, 3, 4);
  const quern_pool_options three = {.size = sizeof three, .window = {3}};
  EXPECT(quern_avg_pool(REALS(F16, DIMS(1, 1, 3), 60000, 60000, 30000), &three), 50000);
  EXPECT_TYPE(quern_avg_pool(ZEROS(BF16, 1, 1, 3), &three), BF16, DIMS(1, 1, 1));
}

/* ---- adaptive -------------------------------------------------------------------------------- */

static void adaptive(void **state) {
  (void)state;
  static double x[MOST], want[2][MOST];
  test_fill(MOST, x, 2);
  static const int64_t sizes[][4] = {{7, 5, 3, 2}, {8, 6, 4, 3}, {5, 4, 5, 1}, {3, 2, 5, 4}, {6, 4, 3, 3}};
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    int64_t h = sizes[i][0], w = sizes[i][1], a = sizes[i][2], b = sizes[i][3];
    for (int64_t p = 0; p < 2; p++) {
      for (int64_t r = 0; r < a; r++) {
        for (int64_t c = 0; c < b; c++) {
          double sum = 0, top = -INFINITY, count = 0;
          for (int64_t y = r * h / a; y < ((r + 1) * h + a - 1) / a; y++) {
            for (int64_t z = c * w / b; z < ((c + 1) * w + b - 1) / b; z++) {
              sum += x[(p * h + y) * w + z];
              top = fmax(top, x[(p * h + y) * w + z]);
              count++;
            }
          }
          want[0][(p * a + r) * b + c] = sum / count;
          want[1][(p * a + r) * b + c] = top;
        }
      }
    }
    quern_tensor *t = ARRAY(F64, DIMS(1, 2, h, w), 2 * h * w, x);
    EXPECT_TYPE(quern_adaptive_avg_pool(t, QUERN_LIST(a, b)), F64, DIMS(1, 2, a, b));
    EXPECT_ARRAY(quern_adaptive_avg_pool(t, QUERN_LIST(a, b)), 1e-15, 2 * a * b, want[0]);
    EXPECT_ARRAY(quern_adaptive_max_pool(t, QUERN_LIST(a, b)), 0, 2 * a * b, want[1]);
  }
  EXPECT(quern_adaptive_avg_pool(REALS(F32, DIMS(1, 1, 5), 1, 2, 3, 4, 5), QUERN_LIST(2)), 2, 4);
  EXPECT(quern_adaptive_max_pool(REALS(I32, DIMS(1, 1, 5), 1, 2, 3, 5, 4), QUERN_LIST(2)), 3, 5);
  EXPECT(quern_adaptive_avg_pool(REALS(F16, DIMS(1, 1, 3), 60000, 60000, 30000), QUERN_LIST(1)), 50000);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static quern_tensor *max_pool(quern_tensor *const *x, const void *user) { return quern_max_pool(x[0], user); }
static quern_tensor *avg_pool(quern_tensor *const *x, const void *user) { return quern_avg_pool(x[0], user); }
static quern_tensor *adaptive_avg(quern_tensor *const *x, const void *user) {
  return (void)user, quern_adaptive_avg_pool(x[0], QUERN_LIST(3, 2));
}
static quern_tensor *adaptive_max(quern_tensor *const *x, const void *user) {
  return (void)user, quern_adaptive_max_pool(x[0], QUERN_LIST(3, 2));
}

static void gradients(void **state) {
  (void)state;
  double data[40], *at[] = {data};
  test_fill(40, data, 3);
  const struct ir_ints dims = DIMS(1, 2, 4, 5);
  CHECK_GRADIENTS(max_pool, &cases[3].o, 1, &dims, at, true);
  CHECK_GRADIENTS(avg_pool, &cases[3].o, 1, &dims, at, false);
  CHECK_GRADIENTS(adaptive_avg, NULL, 1, &dims, at, false);
  CHECK_GRADIENTS(adaptive_max, NULL, 1, &dims, at, false);
  quern_tensor *x = REALS(F32, DIMS(1, 1, 4), 1, 1, 3, 2);
  EXPECT(GRAD_OF_SUM(quern_max_pool(x, &cases[0].o), x), 0.5, 0.5, 1, 0); /* a tie is shared */
}

/* ---- wrong calls ----------------------------------------------------------------------------- */

static void wrong_calls(void **state) {
  (void)state;
  quern_tensor *x = ZEROS(F32, 1, 2, 6), *i = ZEROS(I32, 1, 2, 6), *flat = ZEROS(F32, 2, 3);
  quern_pool_options o = {.size = sizeof o, .window = {2}};
  EXPECT_POISON(quern_max_pool(flat, &o), SHAPE,
                "max_pool: x is f32(2, 3), must be (N, C, ..) with 1 to 3 spatial axes");
  EXPECT_POISON(quern_max_pool(x, NULL), INVALID, "max_pool: options is null");
  EXPECT_POISON(quern_max_pool(ZEROS(BOOL, 1, 2, 6), &o), DTYPE, "max_pool: does not admit bool");
  EXPECT_NULL_ERROR(quern_max_pool(NULL, &o), "max_pool: the operand is null");
  EXPECT_POISON(quern_avg_pool(i, &o), DTYPE, "avg_pool: x is i32(1, 2, 6), must be of a float dtype");
  o.pad_lo[0] = 2;
  EXPECT_POISON(quern_max_pool(x, &o), INVALID,
                "max_pool: padding 2, 0 of spatial axis 0 must be less than the window's size 2");
  o.pad_lo[0] = 0;
  o.pad_hi[0] = 2;
  EXPECT_POISON(quern_avg_pool(x, &o), INVALID, "avg_pool: padding 0, 2 of spatial axis 0");
  o = (quern_pool_options){.size = sizeof o, .window = {7}};
  EXPECT_POISON(quern_avg_pool(x, &o), SHAPE,
                "avg_pool: the window of size 7 and dilation 1 needs 7 places of spatial axis 0, x f32(1, 2, 6) has 6");
  o = (quern_pool_options){.size = sizeof o, .window = {2, 5}};
  EXPECT_POISON(quern_max_pool(ZEROS(F32, 1, 6, 6, 4), &o), SHAPE, "needs 5 places of spatial axis 1");
  o.window[0] = 0;
  EXPECT_POISON(quern_max_pool(x, &o), INVALID, "max_pool: window[0] is 0, must be in 1..2^31-1");
  o.window[0] = 2;
  o.stride[0] = -1;
  EXPECT_POISON(quern_max_pool(x, &o), INVALID, "max_pool: stride[0] is -1, must be in 0..2^31-1");
  o.size = 0;
  EXPECT_POISON(quern_max_pool(x, &o), INVALID, "max_pool: quern_pool_options has a size of 0 bytes");
  EXPECT_POISON(quern_adaptive_avg_pool(x, QUERN_LIST(2, 2)), SHAPE,
                "adaptive_avg_pool: 2 sizes for the 1 spatial axes of x f32(1, 2, 6)");
  EXPECT_POISON(quern_adaptive_avg_pool(i, QUERN_LIST(2)), DTYPE, "adaptive_avg_pool: x is i32(1, 2, 6)");
  EXPECT_POISON(quern_adaptive_avg_pool(x, 1, NULL), INVALID, "adaptive_avg_pool: a list of 1 sizes is null");
  EXPECT_POISON(quern_adaptive_max_pool(x, QUERN_LIST(0)), SHAPE,
                "adaptive_max_pool: sizes[0] is 0, must be in 1..2^31-1");
  EXPECT_POISON(quern_adaptive_max_pool(x, QUERN_LIST(65537)), SHAPE, "at most 65536 where sizes do not divide x");
  EXPECT_POISON(quern_adaptive_max_pool(ZEROS(F32, 1, 2, 0), QUERN_LIST(1)), SHAPE,
                "adaptive_max_pool: spatial axis 0 of x f32(1, 2, 0) is empty");
  EXPECT_POISON(quern_adaptive_max_pool(ZEROS(BOOL, 1, 2, 3), QUERN_LIST(1)), DTYPE,
                "adaptive_max_pool: does not admit bool");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(values), TEST(far_stride), TEST(dtypes), TEST(adaptive), TEST(gradients), TEST(wrong_calls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
