/* tests/tensor/test_activation.c -- activation.c against the formulas in double, and in the tails */
#include "tensor/compound_test.h"

/* ---- the formulas ---------------------------------------------------------------------------- */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double silu(double x) { return x / (1 + exp(-x)); }
static double gelu(double x) { return 0.5 * x * erfc(-x / sqrt(2)); }
static double gelu_tanh(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))); }
static double gelu_quick(double x) { return x / (1 + exp(-1.702 * x)); }
static double mish(double x) { return x * tanh(softplus(x)); }

typedef quern_tensor *builder(quern_tensor *x);
static const struct {
  const char *name;
  builder *build;
  double (*formula)(double);
} smooth[] = {
    {"sigmoid", quern_sigmoid, sigmoid},
    {"softplus", quern_softplus, softplus},
    {"silu", quern_silu, silu},
    {"gelu", quern_gelu, gelu},
    {"gelu_tanh", quern_gelu_tanh, gelu_tanh},
    {"gelu_quick", quern_gelu_quick, gelu_quick},
    {"mish", quern_mish, mish},
};

static const double places[] = {-8, -3.5, -1.25, -0.5, -1e-3, 0, 1e-3, 0.5, 1.25, 3.5, 8};
enum { N = sizeof places / sizeof *places };

static void smooth_values(void **state) {
  (void)state;
  for (size_t f = 0; f < BASE_COUNT(smooth); f++) {
    double want[N];
    for (int i = 0; i < N; i++) want[i] = smooth[f].formula(places[i]);
    EXPECT_ARRAY(smooth[f].build(ARRAY(F64, DIMS(N), N, places)), 1e-15, N, want);
    EXPECT_ARRAY(smooth[f].build(ARRAY(F32, DIMS(N), N, places)), 2e-7, N, want);
  }
}

/* One rounding to the dtype: the interior is f32. */
static void narrow_interior(void **state) {
  (void)state;
  for (size_t f = 0; f < BASE_COUNT(smooth); f++) {
    quern_tensor *x = ARRAY(F16, DIMS(N), N, places), *y = smooth[f].build(x);
    EXPECT_TYPE(y, F16, DIMS(N));
    double *want = VALUES(quern_cast(smooth[f].build(quern_cast(x, QUERN_DTYPE_F32)), QUERN_DTYPE_F16));
    test_exact(y, N, want, __FILE__, __LINE__);
    free(want);
  }
  EXPECT(quern_sigmoid(REALS(F16, DIMS(2), -12, -16)), sigmoid(-12), sigmoid(-16)); /* e^12 is too large for f16 */
  EXPECT(quern_softmax(REALS(BF16, DIMS(3), 1, 2, 4), 0), 0.0420101, 0.1141952, 0.8437947);
  EXPECT(quern_log_softmax(REALS(BF16, DIMS(3), 1, 2, 4), 0), -3.1698461, -2.1698461, -0.1698461);
  EXPECT(quern_elu(REALS(BF16, DIMS(2), -1, 2), 0.3), 0.3 * expm1(-1.0), 2);
  EXPECT(quern_leaky_relu(REALS(BF16, DIMS(2), -3, 2), 0.01), -0.03, 2);
}

static quern_tensor *apply(quern_tensor *const *x, const void *user) { return (*(builder *const *)user)(x[0]); }

static void smooth_gradients(void **state) {
  (void)state;
  double data[N], *at[] = {data};
  memcpy(data, places, sizeof places);
  for (size_t f = 0; f < BASE_COUNT(smooth); f++) CHECK_GRADIENTS(apply, &smooth[f].build, 1, &DIMS(N), at, true);
}

/* A third derivative, by differentiating three times: of softplus it is s (1 - s) (1 - 2 s). */
static void third_derivative(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(3), -2, 0, 0.7), *d = quern_softplus(x);
  for (int i = 0; i < 3; i++) d = GRAD_OF_SUM(d, x);
  double want[3], at[] = {-2, 0, 0.7};
  for (int i = 0; i < 3; i++) want[i] = sigmoid(at[i]) * sigmoid(-at[i]) * (1 - 2 * sigmoid(at[i]));
  EXPECT_ARRAY(d, 1e-13, 3, want);
}

/* ---- the whole range ------------------------------------------------------------------------- */

static void sigmoid_tails(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(6), -1e4, -100, -87, 87, 100, 1e4);
  quern_tensor *y = quern_sigmoid(x), *dy = GRAD_OF_SUM(y, x);
  EXPECT(y, 0, exp(-100), exp(-87), 1, 1, 1);
  EXPECT_RELATIVE(dy, 1e-6, 0, (double)(float)exp(-100), exp(-87), exp(-87), (double)(float)exp(-100), 0);
  EXPECT_RELATIVE(GRAD_OF_SUM(dy, x), 1e-6, 0, (double)(float)exp(-100), exp(-87), -exp(-87), (double)-(float)exp(-100),
                  0);
  EXPECT(quern_sigmoid(REALS(F32, DIMS(3), -INFINITY, INFINITY, NAN)), 0, 1, NAN);
}

static void softplus_tails(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(7), -1e4, -100, -20, 0, 20, 1e4, 3e38), *y = quern_softplus(x);
  EXPECT_RELATIVE(y, 2e-7, 0, (double)(float)exp(-100), exp(-20), log(2), 20.000000002, 1e4, 3e38);
  EXPECT_RELATIVE(GRAD_OF_SUM(y, x), 2e-7, 0, (double)(float)exp(-100), exp(-20), 0.5, 1, 1, 1);
  EXPECT(quern_softplus(REALS(F32, DIMS(3), -INFINITY, INFINITY, NAN)), 0, INFINITY, NAN);
}

/* |error| <= 2^-21 |x| in f32, exactly 0 where Phi rounds to it. */
static void gelu_tails(void **state) {
  (void)state;
  double x[2001], *y, *dy;
  for (int i = 0; i <= 2000; i++) x[i] = (double)(float)((i - 1000) * 0.0137);
  quern_tensor *t = ARRAY(F32, DIMS(2001), 2001, x), *g = quern_gelu(t);
  y = VALUES(g);
  dy = VALUES(GRAD_OF_SUM(g, t));
  for (int i = 0; i <= 2000; i++) {
    assert_true(fabs(y[i] - gelu(x[i])) <= ldexp(fabs(x[i]), -21));
    double slope = 0.5 * erfc(-x[i] / sqrt(2)) + x[i] * exp(-x[i] * x[i] / 2) / sqrt(2 * acos(-1));
    assert_true(fabs(dy[i] - slope) <= 1e-6);
  }
  free(y);
  free(dy);
  builder *const gelus[] = {quern_gelu, quern_gelu_tanh, quern_gelu_quick, quern_silu, quern_mish};
  for (size_t f = 0; f < BASE_COUNT(gelus); f++) {
    t = REALS(F32, DIMS(8), -3e38, -1e30, -1e10, -200, 200, 1e10, 1e30, 3e38);
    g = gelus[f](t);
    EXPECT(g, 0, 0, 0, 0, 200, 1e10, 1e30, 3e38);
    EXPECT(GRAD_OF_SUM(g, t), 0, 0, 0, 0, 1, 1, 1, 1);
    t = REALS(F32, DIMS(4), -1e37, -200, 200, 1e37);
    EXPECT(GRAD_OF_SUM(GRAD_OF_SUM(gelus[f](t), t), t), 0, 0, 0, 0);
    EXPECT(gelus[f](REALS(F32, DIMS(2), NAN, INFINITY)), NAN, INFINITY);
  }
  /* The forms with a sigmoid keep their relative accuracy in the left tail. */
  EXPECT_RELATIVE(quern_silu(REALS(F32, DIMS(2), -60, -87)), 3e-7, silu(-60), silu(-87));
  EXPECT_RELATIVE(quern_gelu_tanh(REALS(F64, DIMS(1), -9)), 1e-13,
                  -9 / (1 + exp(sqrt(8 / acos(-1)) * (9 + 0.044715 * 729))));
}

/* ---- piecewise ------------------------------------------------------------------------------- */

static void relu_family(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(5), -2, -0.5, 0, 0.5, INFINITY);
  EXPECT(quern_relu(x), 0, 0, 0, 0.5, INFINITY);
  EXPECT(GRAD_OF_SUM(quern_relu(x), x), 0, 0, 0, 1, 1);
  EXPECT(quern_relu(REALS(F32, DIMS(2), NAN, -INFINITY)), NAN, 0);
  EXPECT(quern_relu(REALS(I8, DIMS(3), -128, 0, 127)), 0, 0, 127);
  EXPECT(quern_relu(REALS(U8, DIMS(2), 0, 200)), 0, 200);
  EXPECT(quern_leaky_relu(x, 0.25), -0.5, -0.125, 0, 0.5, INFINITY);
  EXPECT(GRAD_OF_SUM(quern_leaky_relu(x, 0.25), x), 0.25, 0.25, 0.25, 1, 1);
  EXPECT(quern_leaky_relu(REALS(F32, DIMS(1), NAN), 0.25), NAN);
  EXPECT(quern_leaky_relu(x, -0.25), 0.5, 0.125, 0, 0.5, INFINITY);
}

static void elu(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(6), -1e4, -1, -1e-6, 0, 2, 1e4), *y = quern_elu(x, 1.5);
  EXPECT_RELATIVE(y, 2e-7, -1.5, 1.5 * expm1(-1.0), -1.5e-6 * (1 - 5e-7), 0, 2, 1e4);
  EXPECT_RELATIVE(GRAD_OF_SUM(y, x), 2e-7, 0, 1.5 * exp(-1), 1.5 * exp(-1e-6), 1.5, 1, 1);
  EXPECT(quern_elu(REALS(F32, DIMS(1), NAN), 1), NAN);
  EXPECT_RELATIVE(quern_elu(REALS(F32, DIMS(2), -1, 1), -2), 2e-7, -2 * expm1(-1.0), 1);
}

/* ---- gated ----------------------------------------------------------------------------------- */

static void gated(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2, 4), 1, -2, 3, 0.5, -1, 4, 0.25, -3);
  const double a[] = {1, -2, -1, 4}, b[] = {3, 0.5, 0.25, -3};
  double want[4];
  for (int i = 0; i < 4; i++) want[i] = a[i] * sigmoid(b[i]);
  EXPECT_TYPE(quern_glu(x, -1), F64, DIMS(2, 2));
  EXPECT_ARRAY(quern_glu(x, 1), 1e-15, 4, want);
  for (int i = 0; i < 4; i++) want[i] = silu(a[i]) * b[i];
  EXPECT_ARRAY(quern_swiglu(x, 1), 1e-15, 4, want);
  for (int i = 0; i < 4; i++) want[i] = gelu(a[i]) * b[i];
  EXPECT_ARRAY(quern_geglu(x, 1), 1e-15, 4, want);
  EXPECT(quern_reglu(x, 1), 3, 0, 0, -12);
  EXPECT(quern_reglu(x, 0), -1, 0, 0.75, -1.5);
}

/* ---- along an axis --------------------------------------------------------------------------- */

static void softmax_values(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2, 3), 1, 2, 4, -1, 0, 0.5);
  double want[6], log_want[6], at[] = {1, 2, 4, -1, 0, 0.5};
  for (int r = 0; r < 2; r++) {
    double sum = 0;
    for (int c = 0; c < 3; c++) sum += exp(at[3 * r + c]);
    for (int c = 0; c < 3; c++) {
      want[3 * r + c] = exp(at[3 * r + c]) / sum;
      log_want[3 * r + c] = at[3 * r + c] - log(sum);
    }
  }
  EXPECT_ARRAY(quern_softmax(x, -1), 1e-15, 6, want);
  EXPECT_ARRAY(quern_log_softmax(x, 1), 1e-15, 6, log_want);
  EXPECT_ARRAY(quern_permute(quern_softmax(quern_permute(x, QUERN_LIST(1, 0)), 0), QUERN_LIST(1, 0)), 1e-15, 6, want);
  EXPECT_TYPE(quern_softmax(ZEROS(F32, 2, 0), 1), F32, DIMS(2, 0));
}

static quern_tensor *softmax_first(quern_tensor *const *x, const void *user) {
  return (void)user, quern_softmax(x[0], 0);
}
static quern_tensor *log_softmax_last(quern_tensor *const *x, const void *user) {
  return (void)user, quern_log_softmax(x[0], -1);
}

static void softmax_gradients(void **state) {
  (void)state;
  double data[12], *at[] = {data};
  test_fill(12, data, 3);
  CHECK_GRADIENTS(softmax_first, NULL, 1, &DIMS(3, 4), at, true);
  CHECK_GRADIENTS(log_softmax_last, NULL, 1, &DIMS(3, 4), at, true);
}

/* Logits of 1e4 are exact, gradients finite; -inf takes no part; a row of -inf has no distribution. */
static void softmax_range(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(3, 3), 1e4, -1e4, 0, 1e4, 1e4, -1e4, -1e4, -1e4, -1e4);
  quern_tensor *weight = REALS(F32, DIMS(3), 1, 2, 4);
  quern_tensor *y = quern_softmax(x, 1), *log_y = quern_log_softmax(x, 1);
  EXPECT(y, 1, 0, 0, 0.5, 0.5, 0, (double)(1 / 3.0f), (double)(1 / 3.0f), (double)(1 / 3.0f));
  EXPECT_RELATIVE(log_y, 1e-7, 0, -2e4, -1e4, -log(2), -log(2), -2e4 - log(2), -log(3), -log(3), -log(3));
  EXPECT_NEAR(GRAD_OF_SUM(quern_mul(y, weight), x), 1e-6, 0, 0, 0, -0.25, 0.25, 0, -4.0 / 9, -1.0 / 9, 5.0 / 9);
  EXPECT_NEAR(GRAD_OF_SUM(quern_mul(log_y, weight), x), 1e-6, -6, 2, 4, -2.5, -1.5, 4, -4.0 / 3, -1.0 / 3, 5.0 / 3);
  quern_tensor *holes = REALS(F32, DIMS(2, 2), -INFINITY, 3, -INFINITY, -INFINITY);
  EXPECT(quern_softmax(holes, 1), 0, 1, NAN, NAN);
  EXPECT(quern_log_softmax(holes, 1), -INFINITY, 0, NAN, NAN);
}

/* ---- structure and wrong calls --------------------------------------------------------------- */

static void composites(void **state) {
  (void)state;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(2, 3));
  for (size_t f = 0; f < BASE_COUNT(smooth); f++) {
    quern_tensor *y = smooth[f].build(x);
    assert_int_equal(y->node->op, IR_COMPOSITE);
    assert_string_equal(y->node->attrs->name, smooth[f].name);
    assert_ptr_equal(y, smooth[f].build(x));
    assert_int_equal(ir_verify(ctx, 1, &y), QUERN_STATUS_OK);
  }
  assert_ptr_equal(quern_softmax(x, 1), quern_softmax(x, -1));
  assert_string_equal(quern_softmax(x, 1)->node->attrs->name, "softmax");
  assert_string_equal(quern_log_softmax(x, 1)->node->attrs->name, "log_softmax");
}

static void wrong_calls(void **state) {
  (void)state;
  quern_tensor *i = ZEROS(I32, 2, 3), *b = ZEROS(BOOL, 2), *x = ZEROS(F32, 2, 3);
  for (size_t f = 0; f < BASE_COUNT(smooth); f++) {
    char text[64];
    snprintf(text, sizeof text, "%s: x is i32(2, 3), must be of a float dtype", smooth[f].name);
    EXPECT_POISON(smooth[f].build(i), DTYPE, text);
    snprintf(text, sizeof text, "%s: the operand is null", smooth[f].name);
    EXPECT_NULL_ERROR(smooth[f].build(NULL), text);
    assert_true(quern_tensor_is_poison(smooth[f].build(&ir_poison)));
    assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  }
  EXPECT_POISON(quern_relu(b), DTYPE, "relu: does not admit bool");
  EXPECT_NULL_ERROR(quern_relu(NULL), "relu: the operand is null");
  EXPECT_POISON(quern_leaky_relu(i, 0.1), DTYPE, "leaky_relu: x is i32(2, 3)");
  EXPECT_POISON(quern_leaky_relu(x, NAN), INVALID, "leaky_relu: slope is nan, must be finite");
  EXPECT_POISON(quern_elu(i, 1), DTYPE, "elu: x is i32(2, 3)");
  EXPECT_POISON(quern_elu(x, INFINITY), INVALID, "elu: alpha is inf, must be finite");
  const struct {
    const char *name;
    quern_tensor *(*build)(quern_tensor *, int);
  } halves[] = {{"glu", quern_glu}, {"swiglu", quern_swiglu}, {"geglu", quern_geglu}, {"reglu", quern_reglu}};
  for (size_t f = 0; f < BASE_COUNT(halves); f++) {
    char text[96];
    snprintf(text, sizeof text, "%s: axis 1 of f32(2, 3) has odd size 3", halves[f].name);
    EXPECT_POISON(halves[f].build(x, -1), SHAPE, text);
    snprintf(text, sizeof text, "%s: axis 2 is out of range", halves[f].name);
    EXPECT_POISON(halves[f].build(x, 2), SHAPE, text);
    snprintf(text, sizeof text, "%s: x is i32(2, 3)", halves[f].name);
    EXPECT_POISON(halves[f].build(i, 0), DTYPE, text);
  }
  EXPECT_POISON(quern_softmax(i, 0), DTYPE, "softmax: x is i32(2, 3)");
  EXPECT_POISON(quern_softmax(x, -3), SHAPE, "softmax: axis -3 is out of range");
  EXPECT_POISON(quern_log_softmax(b, 0), DTYPE, "log_softmax: x is bool(2,)");
  EXPECT_POISON(quern_log_softmax(quern_scalar(ctx, QUERN_DTYPE_F32, 1), 0), SHAPE,
                "log_softmax: axis 0 is out of range");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(smooth_values), TEST(narrow_interior), TEST(smooth_gradients), TEST(third_derivative),
      TEST(sigmoid_tails), TEST(softplus_tails),  TEST(gelu_tails),       TEST(relu_family),
      TEST(elu),           TEST(gated),           TEST(softmax_values),   TEST(softmax_gradients),
      TEST(softmax_range), TEST(composites),      TEST(wrong_calls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
