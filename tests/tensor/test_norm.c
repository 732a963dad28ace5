/* tests/tensor/test_norm.c -- norm.c against plain loops in double; any magnitude; running statistics */
#include "tensor/compound_test.h"

/* y of rows of n elements, each with its own weight and bias by index function; center 0 is rms. */
static void naive_rows(size_t rows, size_t n, const double *x, const double *w, const double *b, bool center,
                       double eps, double *y) {
  for (size_t r = 0; r < rows; r++) {
    double mean = 0, var = 0;
    for (size_t i = 0; i < n && center; i++) mean += x[r * n + i] / (double)n;
    for (size_t i = 0; i < n; i++) var += (x[r * n + i] - mean) * (x[r * n + i] - mean) / (double)n;
    for (size_t i = 0; i < n; i++) {
      y[r * n + i] = (x[r * n + i] - mean) / sqrt(var + eps) * (w == NULL ? 1 : w[i]) + (b == NULL ? 0 : b[i]);
    }
  }
}

static void layer_and_rms(void **state) {
  (void)state;
  double x[24], w[12], b[12], want[24];
  test_fill(24, x, 1);
  test_fill(12, w, 2);
  test_fill(12, b, 3);
  quern_tensor *tx = ARRAY(F64, DIMS(2, 3, 4), 24, x), *tw = ARRAY(F64, DIMS(3, 4), 12, w),
               *tb = ARRAY(F64, DIMS(3, 4), 12, b);
  naive_rows(2, 12, x, w, b, true, 0.1, want);
  EXPECT_TYPE(quern_layer_norm(tx, 2, tw, tb, 0.1), F64, DIMS(2, 3, 4));
  EXPECT_ARRAY(quern_layer_norm(tx, 2, tw, tb, 0.1), 1e-14, 24, want);
  naive_rows(2, 12, x, w, NULL, true, 0.1, want);
  EXPECT_ARRAY(quern_layer_norm(tx, 2, tw, NULL, 0.1), 1e-14, 24, want);
  naive_rows(2, 12, x, NULL, b, true, 0.1, want);
  EXPECT_ARRAY(quern_layer_norm(tx, 2, NULL, tb, 0.1), 1e-14, 24, want);
  naive_rows(6, 4, x, NULL, NULL, true, 1e-5, want);
  EXPECT_ARRAY(quern_layer_norm(tx, 1, NULL, NULL, 1e-5), 1e-14, 24, want);
  naive_rows(2, 12, x, w, NULL, false, 0.1, want);
  EXPECT_ARRAY(quern_rms_norm(tx, 2, tw, 0.1), 1e-14, 24, want);
  naive_rows(6, 4, x, NULL, NULL, false, 0, want);
  EXPECT_ARRAY(quern_rms_norm(tx, 1, NULL, 0), 1e-14, 24, want);
  naive_rows(1, 24, x, NULL, NULL, false, 0, want);
  EXPECT_ARRAY(quern_rms_norm(tx, 3, NULL, 0), 1e-14, 24, want);
}

/* The scaling is exact: f32 rows of ordinary size have the bits of the formula written with the same
** operations. */
static void same_bits_as_formula(void **state) {
  (void)state;
  double x[40];
  test_fill(40, x, 5);
  for (int i = 0; i < 40; i++) x[i] *= i < 8 ? 1 : i < 16 ? 100 : i < 24 ? 3e-3 : i < 32 ? 1e-6 : 7e5;
  quern_tensor *t = ARRAY(F32, DIMS(5, 8), 40, x);
  const int64_t last = 1;
  quern_tensor *d = quern_sub(t, quern_mean(t, 1, &last, true));
  quern_tensor *std = quern_sqrt(quern_add_scalar(quern_mean(quern_square(d), 1, &last, true), 1e-5));
  double *want = VALUES(quern_mul(d, quern_reciprocal(std)));
  EXPECT_ARRAY(quern_layer_norm(t, 1, NULL, NULL, 1e-5), 0, 40, want);
  free(want);
}

/* Rows of 1e-20 and 1e20: squares do not fit f32. */
static void any_magnitude(void **state) {
  (void)state;
  const double unit[] = {1, -2, 3, 0.5};
  const double sizes[] = {1e-38, 1e-20, 1, 1e20, 1e37};
  double x[20], want[20], rms[20];
  for (int r = 0; r < 5; r++) {
    for (int i = 0; i < 4; i++) x[4 * r + i] = (double)(float)(sizes[r] * unit[i]);
  }
  naive_rows(5, 4, x, NULL, NULL, true, 0, want);
  naive_rows(5, 4, x, NULL, NULL, false, 0, rms);
  quern_tensor *t = ARRAY(F32, DIMS(5, 4), 20, x);
  quern_tensor *y = quern_layer_norm(t, 1, NULL, NULL, 0), *z = quern_rms_norm(t, 1, NULL, 0);
  EXPECT_ARRAY(y, 5e-7, 20, want);
  EXPECT_ARRAY(z, 5e-7, 20, rms);

  /* With eps, small rows are x / sqrt(eps), large ones do not notice it; subnormal and zero rows are right
  ** too. */
  naive_rows(5, 4, x, NULL, NULL, false, 1e-5, rms);
  double *got = VALUES(quern_rms_norm(t, 1, NULL, 1e-5));
  for (int i = 0; i < 20; i++) assert_true(fabs(got[i] - rms[i]) <= 5e-7 * fabs(rms[i]));
  free(got);
  EXPECT_RELATIVE(quern_rms_norm(REALS(F32, DIMS(2), 3e-42, 3e-42), 1, NULL, 0), 1e-6, 1, 1);
  EXPECT(quern_layer_norm(ZEROS(F32, 1, 3), 1, NULL, NULL, 1e-5), 0, 0, 0);
  EXPECT_RELATIVE(quern_rms_norm(REALS(F32, DIMS(2), 3e38, -3e38), 1, NULL, 1e-5), 1e-6, 1, -1);

  /* Gradients scale as 1 / size. */
  quern_tensor *weight = REALS(F32, DIMS(4), 1, -1, 2, 0.5);
  quern_tensor *g = GRAD_OF_SUM(quern_mul(quern_layer_norm(t, 1, NULL, NULL, 0), weight), t);
  double *dx = VALUES(g);
  for (int r = 0; r < 5; r++) {
    for (int i = 0; i < 4; i++) {
      double ratio = dx[4 * r + i] * sizes[r], at_one = dx[8 + i];
      assert_true(isfinite(dx[4 * r + i]));
      assert_true(fabs(ratio - at_one) <= 1e-5);
    }
  }
  free(dx);
  EXPECT(quern_layer_norm(REALS(F32, DIMS(2), INFINITY, 1), 1, NULL, NULL, 1e-5), NAN, NAN);
  EXPECT(quern_rms_norm(REALS(F32, DIMS(2), NAN, 1), 1, NULL, 1e-5), NAN, NAN);
}

static void narrow_interior(void **state) {
  (void)state;
  quern_tensor *x = REALS(BF16, DIMS(1, 3), 100, 101, 104), *w = REALS(BF16, DIMS(3), 1, 2, 3);
  quern_tensor *y = quern_layer_norm(x, 1, w, w, 1e-5);
  EXPECT_TYPE(y, BF16, DIMS(1, 3));
  double at[] = {100, 101, 104}, ww[] = {1, 2, 3}, want[3];
  naive_rows(1, 3, at, ww, ww, true, 1e-5, want);
  test_exact(y, 3, want, __FILE__, __LINE__);
  EXPECT(quern_rms_norm(REALS(F16, DIMS(2), 60000, 60000), 1, NULL, 0), 1, 1); /* the square is too large for f16 */
}

/* ---- channels -------------------------------------------------------------------------------- */

enum { NB = 2, C = 4, S = 6 };

/* Groups of channels of (NB, C, S). */
static void naive_groups(int groups, const double *x, const double *w, const double *b, double eps, double *y) {
  int each = C / groups;
  for (int n = 0; n < NB; n++) {
    for (int g = 0; g < groups; g++) {
      size_t at = (size_t)((n * C + g * each) * S);
      naive_rows(1, (size_t)(each * S), x + at, NULL, NULL, true, eps, y + at);
      for (int c = 0; c < each; c++) {
        for (int s = 0; s < S; s++) {
          double *value = &y[at + (size_t)(c * S + s)];
          *value = *value * (w == NULL ? 1 : w[g * each + c]) + (b == NULL ? 0 : b[g * each + c]);
        }
      }
    }
  }
}

static void group_and_instance(void **state) {
  (void)state;
  double x[NB * C * S], w[C], b[C], want[NB * C * S];
  test_fill(NB * C * S, x, 1);
  test_fill(C, w, 2);
  test_fill(C, b, 3);
  quern_tensor *t = ARRAY(F64, DIMS(NB, C, 2, 3), NB * C * S, x), *tw = ARRAY(F64, DIMS(C), C, w),
               *tb = ARRAY(F64, DIMS(C), C, b);
  naive_groups(2, x, w, b, 1e-2, want);
  EXPECT_TYPE(quern_group_norm(t, 2, tw, tb, 1e-2), F64, DIMS(NB, C, 2, 3));
  EXPECT_ARRAY(quern_group_norm(t, 2, tw, tb, 1e-2), 1e-14, NB * C * S, want);
  naive_groups(1, x, NULL, b, 1e-2, want);
  EXPECT_ARRAY(quern_group_norm(t, 1, NULL, tb, 1e-2), 1e-14, NB * C * S, want);
  naive_groups(C, x, w, NULL, 1e-2, want);
  EXPECT_ARRAY(quern_instance_norm(t, tw, NULL, 1e-2), 1e-14, NB * C * S, want);
  EXPECT_RELATIVE(quern_group_norm(REALS(F64, DIMS(1, 4), 1, 3, 10, 30), 2, NULL, NULL, 0), 1e-15, -1, 1, -1, 1);
  naive_groups(C, x, NULL, NULL, 0, want);
  EXPECT_ARRAY(quern_instance_norm(t, NULL, NULL, 0), 1e-14, NB * C * S, want);
}

static void batch(void **state) {
  (void)state;
  double x[NB * C * S], w[C], b[C], rm[C], rv[C], want[NB * C * S], fixed[NB * C * S], mean[C], var[C];
  test_fill(NB * C * S, x, 4);
  test_fill(C, w, 5);
  test_fill(C, b, 6);
  test_fill(C, rm, 7);
  test_fill(C, rv, 8);
  for (int c = 0; c < C; c++) rv[c] = 1 + fabs(rv[c]);
  for (int c = 0; c < C; c++) {
    double m = 0, v = 0, count = NB * S;
    for (int n = 0; n < NB; n++) {
      for (int s = 0; s < S; s++) m += x[(n * C + c) * S + s] / count;
    }
    for (int n = 0; n < NB; n++) {
      for (int s = 0; s < S; s++) v += pow(x[(n * C + c) * S + s] - m, 2) / count;
    }
    for (int n = 0; n < NB; n++) {
      for (int s = 0; s < S; s++) {
        int at = (n * C + c) * S + s;
        want[at] = (x[at] - m) / sqrt(v + 1e-3) * w[c] + b[c];
        fixed[at] = (x[at] - rm[c]) / sqrt(rv[c] + 1e-3) * w[c] + b[c];
      }
    }
    mean[c] = 0.8 * rm[c] + 0.2 * m;
    var[c] = 0.8 * rv[c] + 0.2 * v * count / (count - 1);
  }
  quern_tensor *t = ARRAY(F64, DIMS(NB, C, 3, 2), NB * C * S, x), *tw = ARRAY(F64, DIMS(C), C, w),
               *tb = ARRAY(F64, DIMS(C), C, b);
  quern_tensor *tm = ARRAY(F64, DIMS(C), C, rm), *tv = ARRAY(F64, DIMS(C), C, rv), *new_mean, *new_var;
  quern_batch_norm_options o = {.size = sizeof o, .train = true, .momentum = 0.2, .eps = 1e-3};
  quern_tensor *y = quern_batch_norm(t, tw, tb, tm, tv, &o, &new_mean, &new_var);
  EXPECT_TYPE(y, F64, DIMS(NB, C, 3, 2));
  EXPECT_ARRAY(y, 1e-14, NB * C * S, want);
  EXPECT_ARRAY(new_mean, 1e-14, C, mean);
  EXPECT_ARRAY(new_var, 1e-14, C, var);
  assert_ptr_equal(y, quern_batch_norm(t, tw, tb, NULL, NULL, &o, NULL, NULL));
  o.train = false;
  EXPECT_ARRAY(quern_batch_norm(t, tw, tb, tm, tv, &o, &new_mean, &new_var), 1e-14, NB * C * S, fixed);
  assert_ptr_equal(new_mean, tm);
  assert_ptr_equal(new_var, tv);
  for (int at = 0; at < NB * C * S; at++) fixed[at] = (x[at] - rm[at / S % C]) / sqrt(rv[at / S % C] + 1e-3);
  EXPECT_ARRAY(quern_batch_norm(t, NULL, NULL, tm, tv, &o, NULL, NULL), 1e-14, NB * C * S, fixed);
}

/* Running statistics of a narrow x may be f32; (N, C) has no spatial axes. */
static void batch_types(void **state) {
  (void)state;
  quern_tensor *x = REALS(BF16, DIMS(4, 1), 1, 2, 3, 6), *mean = REALS(F32, DIMS(1), 0), *var = REALS(F32, DIMS(1), 1),
               *m, *v;
  quern_batch_norm_options o = {.size = sizeof o, .train = true, .momentum = 0.125, .eps = 0};
  quern_tensor *y = quern_batch_norm(x, NULL, NULL, mean, var, &o, &m, &v);
  EXPECT_TYPE(y, BF16, DIMS(4, 1));
  EXPECT_TYPE(m, F32, DIMS(1));
  EXPECT(y, -2 / sqrt(3.5), -1 / sqrt(3.5), 0, 3 / sqrt(3.5));
  EXPECT(m, 0.375);
  EXPECT_RELATIVE(v, 1e-6, 0.875 + 0.125 * 14 / 3);
  EXPECT(GRAD_OF_SUM(m, x), 0.125 / 4, 0.125 / 4, 0.125 / 4, 0.125 / 4);
  EXPECT(GRAD_OF_SUM(v, x), 0.125 * 2 * -2 / 3, 0.125 * 2 * -1 / 3, 0, 0.125 * 2 * 3 / 3);
  o.train = false;
  EXPECT_TYPE(quern_batch_norm(x, NULL, NULL, mean, var, &o, NULL, NULL), BF16, DIMS(4, 1));
  EXPECT(quern_batch_norm(x, NULL, NULL, mean, var, &o, NULL, NULL), 1, 2, 3, 6);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static quern_tensor *layer(quern_tensor *const *x, const void *user) {
  return (void)user, quern_layer_norm(x[0], 2, x[1], x[2], 0.1);
}
static quern_tensor *layer_bare(quern_tensor *const *x, const void *user) {
  return (void)user, quern_layer_norm(x[0], 1, NULL, NULL, 0);
}
static quern_tensor *layer_bias(quern_tensor *const *x, const void *user) {
  return (void)user, quern_layer_norm(x[0], 2, NULL, x[1], 0.1);
}
static quern_tensor *rms(quern_tensor *const *x, const void *user) {
  return (void)user, quern_rms_norm(x[0], 2, x[1], 0.1);
}
static quern_tensor *group(quern_tensor *const *x, const void *user) {
  return (void)user, quern_group_norm(x[0], 2, x[1], x[2], 0.1);
}
static quern_tensor *instance(quern_tensor *const *x, const void *user) {
  return (void)user, quern_instance_norm(x[0], x[1], x[2], 0.1);
}

/* y, and with *user the running statistics, which depend on x too. */
static quern_tensor *batch_train(quern_tensor *const *x, const void *user) {
  quern_batch_norm_options o = {.size = sizeof o, .train = true, .momentum = 0.3, .eps = 0.1};
  quern_tensor *m, *v, *y = quern_batch_norm(x[0], x[1], x[2], x[2], x[1], &o, &m, &v);
  if (!*(const bool *)user) return y;
  quern_tensor *parts[] = {quern_reshape(y, QUERN_LIST(-1)), quern_square(m), quern_square(v)};
  return quern_concat(3, parts, 0);
}
static quern_tensor *batch_eval(quern_tensor *const *x, const void *user) {
  (void)user;
  quern_batch_norm_options o = {.size = sizeof o, .momentum = 0.3, .eps = 0.1};
  return quern_batch_norm(x[0], x[1], x[2], x[3], quern_square(x[4]), &o, NULL, NULL);
}

static void gradients(void **state) {
  (void)state;
  double x[24], w[12], b[12], m[4], v[4], *at[] = {x, w, b, m, v}, *without_weight[] = {x, b};
  test_fill(24, x, 1);
  test_fill(12, w, 2);
  test_fill(12, b, 3);
  test_fill(4, m, 4);
  test_fill(4, v, 5);
  CHECK_GRADIENTS(layer, NULL, 3, ((struct ir_ints[]){DIMS(2, 3, 4), DIMS(3, 4), DIMS(3, 4)}), at, true);
  CHECK_GRADIENTS(layer_bare, NULL, 1, ((struct ir_ints[]){DIMS(4, 6)}), at, true);
  CHECK_GRADIENTS(layer_bias, NULL, 2, ((struct ir_ints[]){DIMS(2, 3, 4), DIMS(3, 4)}), without_weight, false);
  CHECK_GRADIENTS(rms, NULL, 2, ((struct ir_ints[]){DIMS(2, 3, 4), DIMS(3, 4)}), at, true);
  CHECK_GRADIENTS(group, NULL, 3, ((struct ir_ints[]){DIMS(2, 4, 3), DIMS(4), DIMS(4)}), at, true);
  CHECK_GRADIENTS(instance, NULL, 3, ((struct ir_ints[]){DIMS(3, 2, 4), DIMS(2), DIMS(2)}), at, true);
  const struct ir_ints channels[] = {DIMS(3, 4, 2), DIMS(4), DIMS(4), DIMS(4), DIMS(4)};
  CHECK_GRADIENTS(batch_train, &(bool){false}, 3, channels, at, true);
  CHECK_GRADIENTS(batch_train, &(bool){true}, 3, channels, at, true);
  CHECK_GRADIENTS(batch_eval, NULL, 5, channels, at, false);
}

/* ---- wrong calls ----------------------------------------------------------------------------- */

static void wrong_calls(void **state) {
  (void)state;
  quern_tensor *x = ZEROS(F32, 2, 3, 4), *i = ZEROS(I32, 2, 3), *w4 = ZEROS(F32, 4), *w3 = ZEROS(F32, 3),
               *d4 = ZEROS(F64, 4);
  EXPECT_POISON(quern_layer_norm(i, 1, NULL, NULL, 0), DTYPE, "layer_norm: x is i32(2, 3), must be of a float dtype");
  EXPECT_POISON(quern_layer_norm(x, 4, NULL, NULL, 0), SHAPE,
                "layer_norm: n_axes is 4, must be in 1..3 for x f32(2, 3, 4)");
  EXPECT_POISON(quern_layer_norm(x, 0, NULL, NULL, 0), SHAPE, "layer_norm: n_axes is 0");
  EXPECT_POISON(quern_layer_norm(x, 1, w3, NULL, 0), SHAPE,
                "layer_norm: weight is f32(3,), must have shape (4,) for x f32(2, 3, 4)");
  EXPECT_POISON(quern_layer_norm(x, 1, w4, d4, 0), DTYPE,
                "layer_norm: dtypes differ: x is f32(2, 3, 4), bias is f64(4,)");
  EXPECT_POISON(quern_layer_norm(x, 2, NULL, w4, 0), SHAPE, "layer_norm: bias is f32(4,), must have shape (3, 4)");
  EXPECT_POISON(quern_layer_norm(x, 1, NULL, NULL, -1), INVALID,
                "layer_norm: eps is -1, must be finite and at least 0");
  EXPECT_NULL_ERROR(quern_layer_norm(NULL, 1, NULL, NULL, 0), "layer_norm: the operand is null");
  EXPECT_POISON(quern_rms_norm(x, 5, NULL, 0), SHAPE, "rms_norm: n_axes is 5");
  EXPECT_POISON(quern_rms_norm(x, 1, w3, 0), SHAPE, "rms_norm: weight is f32(3,)");
  EXPECT_POISON(quern_rms_norm(x, 1, w4, NAN), INVALID, "rms_norm: eps is nan");
  EXPECT_POISON(quern_group_norm(x, 2, NULL, NULL, 0), SHAPE,
                "group_norm: 2 groups do not divide the 3 channels of f32(2, 3, 4)");
  EXPECT_POISON(quern_group_norm(x, 0, NULL, NULL, 0), SHAPE, "group_norm: 0 groups");
  EXPECT_POISON(quern_group_norm(x, 3, w4, NULL, 0), SHAPE, "group_norm: weight is f32(4,), must have shape (3,)");
  EXPECT_POISON(quern_group_norm(w4, 1, NULL, NULL, 0), SHAPE, "group_norm: x is f32(4,), must be (N, C, ..)");
  EXPECT_POISON(quern_instance_norm(ZEROS(F32, 2, 3), NULL, NULL, 0), SHAPE,
                "instance_norm: x is f32(2, 3), must be (N, C, ..) with spatial");
  EXPECT_POISON(quern_instance_norm(x, NULL, w4, 0), SHAPE, "instance_norm: bias is f32(4,), must have shape (3,)");
  EXPECT_POISON(quern_instance_norm(ZEROS(F32, 2, 0, 3), NULL, NULL, 0), SHAPE, "without channels");

  EXPECT_POISON(quern_group_norm(i, 1, NULL, NULL, 0), DTYPE, "group_norm: x is i32(2, 3), must be of a float dtype");
  EXPECT_POISON(quern_instance_norm(ZEROS(I32, 2, 3, 4), NULL, NULL, 0), DTYPE, "instance_norm: x is i32(2, 3, 4)");
  EXPECT_POISON(quern_group_norm(x, 3, NULL, NULL, NAN), INVALID, "group_norm: eps is nan");

  quern_batch_norm_options o = {.size = sizeof o, .momentum = 0.1, .eps = 1e-5};
  quern_tensor *m = NULL, *v = NULL;
  EXPECT_POISON(quern_batch_norm(i, NULL, NULL, NULL, NULL, &o, NULL, NULL), DTYPE, "batch_norm: x is i32(2, 3)");
  EXPECT_POISON(quern_batch_norm(x, NULL, NULL, w3, w3, NULL, &m, &v), INVALID, "batch_norm: options is null");
  assert_true(quern_tensor_is_poison(m) && quern_tensor_is_poison(v) && m != NULL);
  EXPECT_POISON(quern_batch_norm(x, NULL, NULL, NULL, w3, &o, NULL, NULL), INVALID, "batch_norm: running_mean is null");
  EXPECT_POISON(quern_batch_norm(x, NULL, NULL, w3, NULL, &o, NULL, NULL), INVALID, "batch_norm: running_var is null");
  EXPECT_POISON(quern_batch_norm(x, NULL, NULL, w4, w3, &o, NULL, NULL), SHAPE,
                "batch_norm: running_mean is f32(4,), must have shape (3,)");
  EXPECT_POISON(quern_batch_norm(x, NULL, NULL, w3, ZEROS(BF16, 3), &o, NULL, NULL), DTYPE, "running_var is bf16(3,)");
  EXPECT_POISON(quern_batch_norm(x, w4, NULL, w3, w3, &o, NULL, NULL), SHAPE, "batch_norm: weight is f32(4,)");
  EXPECT_POISON(quern_batch_norm(w3, NULL, NULL, w3, w3, &o, NULL, NULL), SHAPE, "batch_norm: x is f32(3,)");
  o.train = true;
  EXPECT_POISON(quern_batch_norm(x, NULL, NULL, NULL, w3, &o, &m, NULL), INVALID,
                "new_mean is asked for, but running_mean is null");
  EXPECT_POISON(quern_batch_norm(x, NULL, NULL, w3, NULL, &o, NULL, &v), INVALID,
                "new_var is asked for, but running_var is null");
  EXPECT_POISON(quern_batch_norm(ZEROS(F32, 1, 3), NULL, NULL, w3, w3, &o, NULL, NULL), SHAPE,
                "has 1 values a channel");
  o.momentum = 1.5;
  EXPECT_POISON(quern_batch_norm(x, NULL, NULL, w3, w3, &o, NULL, NULL), INVALID, "batch_norm: momentum is 1.5");
  o.momentum = 1;
  EXPECT(quern_batch_norm(x, NULL, NULL, w3, w3, &o, &m, NULL), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
         0, 0, 0, 0, 0);
  EXPECT(m, 0, 0, 0);
  o.size = 7;
  EXPECT_POISON(quern_batch_norm(x, NULL, NULL, w3, w3, &o, NULL, NULL), INVALID,
                "batch_norm: quern_batch_norm_options has a size of 7 bytes");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(layer_and_rms),      TEST(same_bits_as_formula),
      TEST(any_magnitude),      TEST(narrow_interior),
      TEST(group_and_instance), TEST(batch),
      TEST(batch_types),        TEST(gradients),
      TEST(wrong_calls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
