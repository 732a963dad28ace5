/* tests/tensor/test_conv.c -- conv.c against loops over every index; the transposed one as the adjoint */
#include "tensor/compound_test.h"

/* A case in three spatial axes; those not used have size 1. */
struct sizes {
  int spatial;
  int64_t batch, in, out, n[3], k[3];
  quern_conv_options o;
};

static int64_t option(int64_t value) { return value == 0 ? 1 : value; }

static int64_t places(const struct sizes *c, int i) {
  if (i >= c->spatial) return 1;
  int64_t span = option(c->o.dilation[i]) * (c->k[i] - 1) + 1;
  return (c->n[i] + c->o.pad_lo[i] + c->o.pad_hi[i] - span) / option(c->o.stride[i]) + 1;
}

static int64_t places_transposed(const struct sizes *c, int i) {
  if (i >= c->spatial) return 1;
  int64_t span = option(c->o.dilation[i]) * (c->k[i] - 1) + 1;
  return (c->n[i] - 1) * option(c->o.stride[i]) + span - c->o.pad_lo[i] - c->o.pad_hi[i] + c->o.output_pad[i];
}

/* y[n, o, p] = bias[o] + the sum of x[n, c, q] w[.., k] over all q and k that meet at p: a place of the
** smaller side times stride plus k times dilation is the place of the larger side plus padding. */
static void naive(const struct sizes *c, bool transposed, const double *x, const double *w, const double *bias,
                  double *y) {
  int64_t groups = option(c->o.groups), in_each = c->in / groups, out_each = c->out / groups, m[3];
  for (int i = 0; i < 3; i++) m[i] = transposed ? places_transposed(c, i) : places(c, i);
  int64_t size = m[0] * m[1] * m[2], from = c->n[0] * c->n[1] * c->n[2], window = c->k[0] * c->k[1] * c->k[2];
  for (int64_t i = 0; i < c->batch * c->out * size; i++) y[i] = bias == NULL ? 0 : bias[i / size % c->out];
  for (int64_t n = 0; n < c->batch; n++) {
    for (int64_t o = 0; o < c->out; o++) {
      for (int64_t ch = 0; ch < in_each; ch++) {
        int64_t g = o / out_each, channel = g * in_each + ch;
        for (int64_t p = 0; p < size; p++) {
          for (int64_t q = 0; q < from; q++) {
            for (int64_t k = 0; k < window; k++) {
              int64_t pi[] = {p / (m[1] * m[2]), p / m[2] % m[1], p % m[2]};
              int64_t qi[] = {q / (c->n[1] * c->n[2]), q / c->n[2] % c->n[1], q % c->n[2]};
              int64_t ki[] = {k / (c->k[1] * c->k[2]), k / c->k[2] % c->k[1], k % c->k[2]};
              bool meets = true;
              for (int i = 0; i < 3; i++) {
                int64_t small = transposed ? qi[i] : pi[i], large = transposed ? pi[i] : qi[i];
                meets &= small * option(c->o.stride[i]) + ki[i] * option(c->o.dilation[i]) == large + c->o.pad_lo[i];
              }
              if (!meets) continue;
              double weight =
                  transposed ? w[(channel * out_each + o % out_each) * window + k] : w[(o * in_each + ch) * window + k];
              y[(n * c->out + o) * size + p] += x[(n * c->in + channel) * from + q] * weight;
            }
          }
        }
      }
    }
  }
}

typedef quern_tensor *builder(quern_tensor *, quern_tensor *, quern_tensor *, const quern_conv_options *);
static builder *const conv[] = {NULL, quern_conv1d, quern_conv2d, quern_conv3d};
static builder *const conv_transpose[] = {NULL, quern_conv_transpose1d, quern_conv_transpose2d, quern_conv_transpose3d};

enum { MOST = 4096 };

static const struct sizes cases[] = {
    {1, 2, 3, 4, {7, 1, 1}, {3, 1, 1}, {.size = sizeof(quern_conv_options)}},
    {1, 1, 1, 1, {5, 1, 1}, {5, 1, 1}, {.size = sizeof(quern_conv_options)}},
    {1,
     1,
     2,
     3,
     {6, 1, 1},
     {2, 1, 1},
     {.size = sizeof(quern_conv_options), .stride = {2}, .pad_lo = {1}, .pad_hi = {2}}},
    {1,
     2,
     4,
     6,
     {9, 1, 1},
     {3, 1, 1},
     {.size = sizeof(quern_conv_options), .dilation = {2}, .stride = {3}, .pad_lo = {2}, .groups = 2}},
    {2, 2, 3, 2, {4, 5, 1}, {3, 2, 1}, {.size = sizeof(quern_conv_options), .pad_lo = {1, 0}, .pad_hi = {1, 1}}},
    {2,
     1,
     4,
     4,
     {5, 4, 1},
     {3, 3, 1},
     {.size = sizeof(quern_conv_options),
      .stride = {2, 1},
      .dilation = {1, 1},
      .pad_lo = {1, 1},
      .pad_hi = {1, 1},
      .groups = 4}},
    {2,
     1,
     4,
     2,
     {6, 6, 1},
     {2, 2, 1},
     {.size = sizeof(quern_conv_options), .stride = {2, 3}, .dilation = {3, 2}, .groups = 2}},
    {3,
     1,
     2,
     2,
     {3, 4, 3},
     {2, 3, 2},
     {.size = sizeof(quern_conv_options), .stride = {1, 2, 1}, .pad_lo = {1, 0, 1}, .pad_hi = {0, 2, 0}}},
    {3, 1, 2, 4, {4, 3, 3}, {2, 1, 2}, {.size = sizeof(quern_conv_options), .dilation = {2, 1, 1}, .groups = 2}},
};

static void shape(int64_t *dims, int spatial, int64_t a, int64_t b, const int64_t *rest) {
  dims[0] = a;
  dims[1] = b;
  for (int i = 0; i < spatial; i++) dims[2 + i] = rest[i];
}

static void check_case(const struct sizes *c, bool transposed) {
  static double x[MOST], w[MOST], b[16], want[MOST];
  test_fill(MOST, x, 1);
  test_fill(MOST, w, 2);
  test_fill(16, b, 3);
  int64_t groups = option(c->o.groups), xd[5], wd[5], yd[5], m[3], nx, nw, ny;
  for (int i = 0; i < 3; i++) m[i] = transposed ? places_transposed(c, i) : places(c, i);
  shape(xd, c->spatial, c->batch, c->in, c->n);
  shape(wd, c->spatial, transposed ? c->in : c->out, transposed ? c->out / groups : c->in / groups, c->k);
  shape(yd, c->spatial, c->batch, c->out, m);
  int rank = 2 + c->spatial;
  nx = ny = nw = 1;
  for (int i = 0; i < rank; i++) nx *= xd[i], nw *= wd[i], ny *= yd[i];
  assert_true(nx <= MOST && nw <= MOST && ny <= MOST);
  quern_tensor *tx = ARRAY(F64, ((struct ir_ints){rank, xd}), nx, x),
               *tw = ARRAY(F64, ((struct ir_ints){rank, wd}), nw, w);
  quern_tensor *tb = ARRAY(F64, DIMS(c->out), c->out, b);
  builder *build = transposed ? conv_transpose[c->spatial] : conv[c->spatial];
  quern_tensor *y = build(tx, tw, tb, &c->o);
  EXPECT_TYPE(y, F64, ((struct ir_ints){rank, yd}));
  naive(c, transposed, x, w, b, want);
  EXPECT_ARRAY(y, 1e-14, ny, want);
  naive(c, transposed, x, w, NULL, want);
  EXPECT_ARRAY(build(tx, tw, NULL, &c->o), 1e-14, ny, want);
}

static void values(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(cases); i++) check_case(&cases[i], false);
  EXPECT(quern_conv1d(REALS(F32, DIMS(1, 1, 3), 1, 2, 4), REALS(F32, DIMS(1, 1, 2), 10, 1), NULL, NULL), 12,
         24); /* not flipped */
  EXPECT(quern_conv1d(REALS(I8, DIMS(1, 1, 3), 1, 2, 4), REALS(I8, DIMS(1, 1, 2), 3, -1), REALS(I8, DIMS(1), 5), NULL),
         6, 7);
  const quern_conv_options far = {.size = sizeof far, .stride = {INT32_MAX}, .dilation = {2}};
  EXPECT(quern_conv1d(REALS(F32, DIMS(1, 1, 4), 1, 2, 4, 8), REALS(F32, DIMS(1, 1, 2), 10, 1), NULL, &far), 14);
  EXPECT_TYPE(quern_conv2d(ZEROS(BF16, 0, 2, 4, 4), ZEROS(BF16, 3, 2, 3, 3), NULL, NULL), BF16, DIMS(0, 3, 2, 2));
}

static void transposed_values(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct sizes c = cases[i];
    check_case(&c, true);
    for (int k = 0; k < c.spatial; k++) {
      c.o.output_pad[k] = BASE_MAX(option(c.o.stride[k]), option(c.o.dilation[k])) - 1;
      c.o.pad_lo[k] = 0;
    }
    check_case(&c, true);
  }
  EXPECT(quern_conv_transpose1d(REALS(F32, DIMS(1, 1, 2), 1, 2), REALS(F32, DIMS(1, 1, 2), 10, 1), NULL, NULL), 10, 21,
         2);
  const quern_conv_options cut = {.size = sizeof cut, .pad_lo = {1}};
  EXPECT(quern_conv_transpose1d(REALS(F32, DIMS(1, 1, 2), 1, 2), REALS(F32, DIMS(1, 1, 2), 10, 1), NULL, &cut), 21, 2);
  const quern_conv_options one_left = {.size = sizeof one_left, .pad_lo = {1}, .pad_hi = {1}};
  EXPECT(quern_conv_transpose1d(REALS(F32, DIMS(1, 1, 2), 1, 2), REALS(F32, DIMS(1, 1, 2), 10, 1), NULL, &one_left),
         21);
  const quern_conv_options second = {.size = sizeof second, .stride = {1, 2}, .output_pad = {0, 1}};
  EXPECT(quern_conv_transpose2d(REALS(F32, DIMS(1, 1, 1, 2), 1, 2), REALS(F32, DIMS(1, 1, 1, 1), 5), NULL, &second), 5,
         0, 10, 0);
  quern_conv_options more = {.size = sizeof more, .stride = {3}, .output_pad = {2}};
  EXPECT(quern_conv_transpose1d(REALS(F32, DIMS(1, 1, 2), 1, 2), REALS(F32, DIMS(1, 1, 1), 5), REALS(F32, DIMS(1), 1),
                                &more),
         6, 1, 1, 11, 1, 1);
}

/* <conv x, y> = <x, conv_transpose y> with the same weight: (O, C / g, ..) is (C', O' / g, ..) of the
** transposed one. */
static void adjoint(void **state) {
  (void)state;
  quern_conv_options o = {
      .size = sizeof o, .stride = {2, 1}, .dilation = {1, 2}, .pad_lo = {1, 2}, .pad_hi = {0, 1}, .groups = 2};
  double x[120], w[72], y[108];
  test_fill(120, x, 1);
  test_fill(72, w, 2);
  test_fill(108, y, 3);
  quern_tensor *tx = ARRAY(F64, DIMS(1, 4, 6, 5), 120, x), *tw = ARRAY(F64, DIMS(6, 2, 3, 2), 72, w);
  quern_tensor *ty = ARRAY(F64, DIMS(1, 6, 3, 6), 108, y);
  quern_tensor *forward = quern_conv2d(tx, tw, NULL, &o);
  EXPECT_TYPE(forward, F64, DIMS(1, 6, 3, 6));
  quern_tensor *backward = quern_conv_transpose2d(ty, tw, NULL, &o);
  EXPECT_TYPE(backward, F64, DIMS(1, 4, 6, 5));
  double *left = VALUES(quern_sum(quern_mul(forward, ty), QUERN_ALL, false));
  EXPECT_NEAR(quern_sum(quern_mul(tx, backward), QUERN_ALL, false), 1e-13, left[0]);
  free(left);
}

/* ---- gradients ------------------------------------------------------------------------------- */

struct gradient {
  builder *build;
  quern_conv_options o;
};

static quern_tensor *apply(quern_tensor *const *x, const void *user) {
  const struct gradient *g = user;
  return g->build(x[0], x[1], x[2], &g->o);
}

static void gradients(void **state) {
  (void)state;
  double x[64], w[64], b[4], *at[] = {x, w, b};
  test_fill(64, x, 1);
  test_fill(64, w, 2);
  test_fill(4, b, 3);
  const quern_conv_options o = {
      .size = sizeof o, .stride = {2, 1}, .dilation = {1, 2}, .pad_lo = {1, 1}, .pad_hi = {1, 0}, .groups = 2};
  const quern_conv_options t = {
      .size = sizeof t, .stride = {2, 2}, .pad_lo = {1, 0}, .output_pad = {1, 1}, .groups = 2};
  struct gradient g = {quern_conv2d, o};
  CHECK_GRADIENTS(apply, &g, 3, ((struct ir_ints[]){DIMS(2, 2, 4, 4), DIMS(4, 1, 3, 2), DIMS(4)}), at, true);
  g = (struct gradient){quern_conv_transpose2d, t};
  CHECK_GRADIENTS(apply, &g, 3, ((struct ir_ints[]){DIMS(1, 2, 3, 2), DIMS(2, 2, 2, 2), DIMS(4)}), at, true);
}

/* ---- wrong calls ----------------------------------------------------------------------------- */

static void wrong_calls(void **state) {
  (void)state;
  quern_tensor *x1 = ZEROS(F32, 1, 4, 8), *x2 = ZEROS(F32, 1, 4, 8, 8), *x3 = ZEROS(F32, 1, 4, 8, 8, 8);
  quern_tensor *w1 = ZEROS(F32, 6, 4, 3), *w2 = ZEROS(F32, 6, 4, 3, 3), *w3 = ZEROS(F32, 6, 4, 3, 3, 3);
  quern_conv_options o = {.size = sizeof o};
  EXPECT_POISON(quern_conv1d(x2, w1, NULL, NULL), SHAPE, "conv1d: x is f32(1, 4, 8, 8), must be (N, C, W)");
  EXPECT_POISON(quern_conv1d(x1, w2, NULL, NULL), SHAPE,
                "conv1d: weight is f32(6, 4, 3, 3), must be (O, C / groups, ..)");
  EXPECT_POISON(quern_conv1d(x1, ZEROS(F32, 6, 3, 3), NULL, NULL), SHAPE,
                "x f32(1, 4, 8) has 4 channels, weight f32(6, 3, 3) with 1 groups takes 3");
  EXPECT_POISON(quern_conv1d(x1, ZEROS(F64, 6, 4, 3), NULL, NULL), DTYPE,
                "conv1d: dtypes differ: x is f32(1, 4, 8), weight is f64(6, 4, 3)");
  EXPECT_POISON(quern_conv1d(x1, w1, ZEROS(F32, 4), NULL), SHAPE, "conv1d: bias is f32(4,), must have shape (6,)");
  EXPECT_POISON(quern_conv1d(x1, ZEROS(F32, 6, 4, 9), NULL, NULL), SHAPE,
                "spatial axis 0 has 8 + 0 + 0 = 8 places with padding, the window of size 9 and dilation 1 needs 9");
  EXPECT_POISON(quern_conv1d(ZEROS(BOOL, 1, 4, 8), w1, NULL, NULL), DTYPE, "conv1d: does not admit bool");
  EXPECT_POISON(quern_conv1d(x1, ZEROS(F32, 6, 4, 0), NULL, NULL), SHAPE, "conv1d: spatial axis 0 is empty");
  EXPECT_POISON(quern_conv2d(x2, NULL, NULL, NULL), INVALID, "conv2d: operand 1 is null");
  EXPECT_POISON(quern_conv2d(x1, w2, NULL, NULL), SHAPE, "conv2d: x is f32(1, 4, 8), must be (N, C, H, W)");
  o.groups = 3;
  EXPECT_POISON(quern_conv2d(x2, w2, NULL, &o), SHAPE,
                "conv2d: 3 groups do not divide the 4 channels of x f32(1, 4, 8, 8)");
  o.groups = 4;
  EXPECT_POISON(quern_conv2d(x2, ZEROS(F32, 6, 1, 3, 3), NULL, &o), SHAPE,
                "conv2d: 4 groups do not divide the 6 outputs");
  o.groups = -1;
  EXPECT_POISON(quern_conv2d(x2, w2, NULL, &o), SHAPE, "conv2d: -1 groups");
  o.groups = 0;
  o.stride[1] = -2;
  EXPECT_POISON(quern_conv2d(x2, w2, NULL, &o), INVALID, "conv2d: stride[1] is -2, must be in 0..2^31-1");
  o.stride[1] = 0;
  o.pad_hi[0] = INT64_MAX;
  EXPECT_POISON(quern_conv2d(x2, w2, NULL, &o), INVALID, "conv2d: pad_hi[0] is 9223372036854775807");
  o.pad_hi[0] = 0;
  o.output_pad[0] = 1;
  EXPECT_POISON(quern_conv2d(x2, w2, NULL, &o), INVALID,
                "conv2d: output_pad[0] is 1; only transposed convolution has it");
  o.output_pad[0] = 0;
  o.dilation[2] = 4;
  EXPECT_POISON(quern_conv3d(x3, w3, NULL, &o), SHAPE,
                "conv3d: spatial axis 2 has 8 + 0 + 0 = 8 places with padding, the window of size 3 and "
                "dilation 4 needs 9");
  EXPECT_POISON(quern_conv3d(x2, w3, NULL, NULL), SHAPE, "conv3d: x is f32(1, 4, 8, 8), must be (N, C, D, H, W)");
  o.size = 6;
  EXPECT_POISON(quern_conv3d(x3, w3, NULL, &o), INVALID, "conv3d: quern_conv_options has a size of 6 bytes");

  quern_tensor *t1 = ZEROS(F32, 4, 2, 3), *t2 = ZEROS(F32, 4, 2, 3, 3), *t3 = ZEROS(F32, 4, 2, 3, 3, 3);
  o = (quern_conv_options){.size = sizeof o, .output_pad = {1}};
  EXPECT_POISON(quern_conv_transpose1d(x1, t1, NULL, &o), INVALID,
                "conv_transpose1d: output_pad[0] is 1, must be below stride 1 or dilation 1");
  EXPECT_POISON(quern_conv_transpose1d(x1, ZEROS(F32, 3, 2, 3), NULL, NULL), SHAPE,
                "has 4 channels, weight f32(3, 2, 3) with 1 groups takes 3");
  EXPECT_POISON(quern_conv_transpose2d(x2, t2, ZEROS(F32, 3), NULL), SHAPE,
                "conv_transpose2d: bias is f32(3,), must have shape (2,)");
  o = (quern_conv_options){.size = sizeof o, .pad_lo = {5, 0}, .pad_hi = {5, 0}};
  EXPECT_POISON(quern_conv_transpose2d(x2, t2, NULL, &o), SHAPE,
                "conv_transpose2d: spatial axis 0 gives 10 places, padding 5 + 5 cuts off all");
  o = (quern_conv_options){.size = sizeof o, .groups = 3};
  EXPECT_POISON(quern_conv_transpose3d(x3, t3, NULL, &o), SHAPE,
                "conv_transpose3d: 3 groups do not divide the 4 channels");
  EXPECT_POISON(quern_conv_transpose3d(x3, t2, NULL, NULL), SHAPE, "conv_transpose3d: weight is f32(4, 2, 3, 3)");
  o = (quern_conv_options){.size = sizeof o, .stride = {INT32_MAX}};
  quern_tensor *long_x = quern_input(ctx, "long", QUERN_DTYPE_F32, QUERN_LIST(1, 0, INT64_C(1) << 40));
  EXPECT_POISON(quern_conv_transpose1d(long_x, ZEROS(F32, 0, 2, 3), NULL, &o), OVERFLOW,
                "conv_transpose1d: spatial axis 0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(values), TEST(transposed_values), TEST(adjoint), TEST(gradients), TEST(wrong_calls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
