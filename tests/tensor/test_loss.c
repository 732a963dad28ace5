/* tests/tensor/test_loss.c -- loss.c against the formulas in double; extremes, odd labels, zero distances */
#include "tensor/compound_test.h"

enum { N = 6 };
static double x[N], t[N];

static void numbers(void) {
  test_fill(N, x, 1);
  test_fill(N, t, 2);
  for (int i = 0; i < N; i++) {
    x[i] *= 3;
    t[i] = (t[i] + 1) / 2;
  }
}

typedef quern_tensor *loss(quern_tensor *a, quern_tensor *b, quern_reduction reduction);

/* All three reductions of a loss of (2, 3) operands whose elements are want. */
static void check_reductions(loss *build, const double *want, double tolerance) {
  double sum = 0;
  for (int i = 0; i < N; i++) sum += want[i];
  quern_tensor *a = ARRAY(F64, DIMS(2, 3), N, x), *b = ARRAY(F64, DIMS(2, 3), N, t);
  EXPECT_TYPE(build(a, b, QUERN_REDUCTION_NONE), F64, DIMS(2, 3));
  EXPECT_ARRAY(build(a, b, QUERN_REDUCTION_NONE), tolerance, N, want);
  EXPECT_TYPE(build(a, b, QUERN_REDUCTION_SUM), F64, SCALAR);
  EXPECT_NEAR(build(a, b, QUERN_REDUCTION_SUM), tolerance, sum);
  EXPECT_NEAR(build(a, b, QUERN_REDUCTION_MEAN), tolerance, sum / N);
  a = ARRAY(F32, DIMS(2, 3), N, x), b = ARRAY(F32, DIMS(2, 3), N, t);
  EXPECT_ARRAY(build(a, b, QUERN_REDUCTION_NONE), 3e-7, N, want);
  a = REALS(F64, SCALAR, x[1]), b = REALS(F64, SCALAR, t[1]);
  EXPECT_NEAR(build(a, b, QUERN_REDUCTION_MEAN), tolerance, want[1]);
}

static quern_tensor *huber(quern_tensor *a, quern_tensor *b, quern_reduction r) {
  return quern_huber_loss(a, b, 1.25, r);
}
static quern_tensor *focal(quern_tensor *a, quern_tensor *b, quern_reduction r) {
  return quern_focal_loss(a, b, 0.3, 2.5, r);
}
static quern_tensor *focal_bare(quern_tensor *a, quern_tensor *b, quern_reduction r) {
  return quern_focal_loss(a, b, -1, 0, r);
}

static quern_tensor *focal_root(quern_tensor *a, quern_tensor *b, quern_reduction r) {
  return quern_focal_loss(a, b, 0, 0.5, r);
}

static double bce(double a, double b) { return -b * log(1 / (1 + exp(-a))) - (1 - b) * log(1 / (1 + exp(a))); }

static void pairs(void **state) {
  (void)state;
  numbers();
  double want[N];
  for (int i = 0; i < N; i++) want[i] = pow(x[i] - t[i], 2);
  check_reductions(quern_mse_loss, want, 1e-14);
  for (int i = 0; i < N; i++) want[i] = fabs(x[i] - t[i]);
  check_reductions(quern_l1_loss, want, 1e-14);
  int inside = 0;
  for (int i = 0; i < N; i++) {
    double d = fabs(x[i] - t[i]);
    inside += d <= 1.25;
    want[i] = d <= 1.25 ? d * d / 2 : 1.25 * (d - 0.625);
  }
  assert_in_range(inside, 1, N - 1);
  check_reductions(huber, want, 1e-14);
  for (int i = 0; i < N; i++) want[i] = bce(x[i], t[i]);
  check_reductions(quern_bce_loss, want, 1e-14);
  check_reductions(focal_bare, want, 1e-14);
  for (int i = 0; i < N; i++) want[i] = t[i] * (log(t[i]) - x[i]);
  check_reductions(quern_kl_loss, want, 1e-14);
  for (int i = 0; i < N; i++) {
    double p = 1 / (1 + exp(-x[i])), p_t = p * t[i] + (1 - p) * (1 - t[i]);
    want[i] = (0.3 * t[i] + 0.7 * (1 - t[i])) * pow(1 - p_t, 2.5) * bce(x[i], t[i]);
  }
  check_reductions(focal, want, 1e-14);
  for (int i = 0; i < N; i++) {
    double p = 1 / (1 + exp(-x[i])), p_t = p * t[i] + (1 - p) * (1 - t[i]);
    want[i] = (1 - t[i]) * sqrt(1 - p_t) * bce(x[i], t[i]);
  }
  check_reductions(focal_root, want, 1e-14);
}

/* One rounding at the end: sums and squares do not fit f16. */
static void narrow_interior(void **state) {
  (void)state;
  quern_tensor *a = REALS(F16, DIMS(3), 300, -300, 0), *zero = REALS(F16, DIMS(3), 0, 0, 0);
  EXPECT(quern_mse_loss(a, zero, QUERN_REDUCTION_MEAN), 60000);
  EXPECT(quern_l1_loss(REALS(F16, DIMS(3), 60000, 60000, 30000), zero, QUERN_REDUCTION_MEAN), 50000);
  quern_tensor *logits = REALS(BF16, DIMS(1, 3), 1, 2, 4), *label = REALS(I32, DIMS(1), 2);
  EXPECT_TYPE(quern_cross_entropy(logits, label, NULL), BF16, SCALAR);
  EXPECT(quern_cross_entropy(logits, label, NULL), log(exp(1) + exp(2) + exp(4)) - 4);
  quern_tensor *h = REALS(BF16, DIMS(1, 1), 1), *w = REALS(BF16, DIMS(3, 1), 1, 2, 4);
  EXPECT(quern_linear_cross_entropy(h, w, label, NULL), log(exp(1) + exp(2) + exp(4)) - 4);
  EXPECT_TYPE(quern_cosine_similarity(a, a, 0, 1e-3), F16, SCALAR);
  EXPECT(quern_cosine_similarity(a, a, 0, 1e-3), 1);
}

/* ---- extremes -------------------------------------------------------------------------------- */

static void bce_range(void **state) {
  (void)state;
  quern_tensor *a = REALS(F32, DIMS(8), 1e3, -1e3, 1e3, -1e3, 20, -20, 0, 0),
               *b = REALS(F32, DIMS(8), 1, 0, 0, 1, 1, 0, 1, 0.25);
  quern_tensor *y = quern_bce_loss(a, b, QUERN_REDUCTION_NONE);
  EXPECT_RELATIVE(y, 2e-7, 0, 0, 1e3, 1e3, log1p(exp(-20)), log1p(exp(-20)), log(2), log(2));
  EXPECT_RELATIVE(GRAD_OF_SUM(y, a), 2e-7, 0, 0, 1, -1, -1 / (1 + exp(20)), 1 / (1 + exp(20)), -0.5, 0.25);
  EXPECT(GRAD_OF_SUM(y, b), -1e3, 1e3, -1e3, 1e3, -20, 20, 0, 0);
  const double gammas[] = {0, 0.5, 1, 2};
  for (size_t i = 0; i < BASE_COUNT(gammas); i++) {
    quern_tensor *f = quern_focal_loss(a, b, 0.25, gammas[i], QUERN_REDUCTION_NONE);
    double *value = VALUES(f), *da = VALUES(GRAD_OF_SUM(f, a));
    assert_true(fabs(value[0]) < 1e-12 && fabs(value[1]) < 1e-12);
    assert_true(fabs(value[2] - 750) < 1e-3 && fabs(value[3] - 250) < 1e-3);
    for (int k = 0; k < 8; k++) assert_true(isfinite(da[k]));
    assert_true(fabs(da[2] - 0.75) < 1e-6 && fabs(da[3] + 0.25) < 1e-6);
    free(value);
    free(da);
  }
}

static void cross_entropy_range(void **state) {
  (void)state;
  quern_tensor *logits = REALS(F32, DIMS(4, 2), 1e4, -1e4, 1e4, -1e4, -1e4, -1e4, 3, -INFINITY);
  quern_tensor *labels = REALS(I64, DIMS(4), 0, 1, 1, 0);
  const quern_cross_entropy_options none = {.size = sizeof none, .reduction = QUERN_REDUCTION_NONE};
  quern_tensor *y = quern_cross_entropy(logits, labels, &none);
  EXPECT_RELATIVE(y, 1e-7, 0, 2e4, log(2), 0);
  EXPECT(GRAD_OF_SUM(y, logits), 0, 0, 1, -1, 0.5, -0.5, 0, 0);
}

static void kl_range(void **state) {
  (void)state;
  quern_tensor *p = REALS(F32, DIMS(3), -INFINITY, -2, -1e4), *q = REALS(F32, DIMS(3), 0, 0, 0.5);
  quern_tensor *y = quern_kl_loss(p, q, QUERN_REDUCTION_NONE);
  EXPECT(y, 0, 0, 0.5 * (log(0.5) + 1e4));
  EXPECT(GRAD_OF_SUM(y, p), 0, 0, -0.5);
  double *dq = VALUES(GRAD_OF_SUM(y, q));
  assert_true(dq[0] == 0 && dq[1] == 0 && isfinite(dq[2]));
  free(dq);
  EXPECT(quern_kl_loss(REALS(F32, DIMS(1), -1), REALS(F32, DIMS(1), -0.5), QUERN_REDUCTION_NONE), NAN);
}

/* ---- labels ---------------------------------------------------------------------------------- */

enum { ROWS = 5, CLASSES = 4 };

static const double label_values[ROWS] = {2, 0, 3, 0, 1};

/* The loss of each row; ignored ones are 0 and do not count. */
static double naive_cross_entropy(const double *logits, bool already_log, double eps, int ignore, double *rows) {
  double sum = 0, count = 0;
  for (int r = 0; r < ROWS; r++) {
    const double *row = logits + r * CLASSES;
    double total = 0, even = 0;
    for (int c = 0; c < CLASSES; c++) total += exp(row[c]);
    double shift = already_log ? 0 : log(total);
    for (int c = 0; c < CLASSES; c++) even -= (row[c] - shift) / CLASSES;
    rows[r] = (int)label_values[r] == ignore ? 0 : (1 - eps) * (shift - row[(int)label_values[r]]) + eps * even;
    sum += rows[r];
    count += (int)label_values[r] != ignore;
  }
  return sum / count;
}

static void labels(void **state) {
  (void)state;
  double logits[ROWS * CLASSES], rows[ROWS];
  test_fill(ROWS * CLASSES, logits, 3);
  quern_tensor *a = ARRAY(F64, DIMS(ROWS, CLASSES), ROWS * CLASSES, logits);
  quern_tensor *ids[] = {ARRAY(I64, DIMS(ROWS), ROWS, label_values), ARRAY(U8, DIMS(ROWS), ROWS, label_values),
                         ARRAY(I8, DIMS(ROWS), ROWS, label_values)};
  const struct {
    double eps;
    bool ignore;
  } cases[] = {{0, false}, {0.1, false}, {0, true}, {0.3, true}, {1, false}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    for (int kind = 0; kind < 2; kind++) {
      quern_tensor *(*build)(quern_tensor *, quern_tensor *, const quern_cross_entropy_options *) =
          kind == 0 ? quern_cross_entropy : quern_nll_loss;
      quern_cross_entropy_options o = {.size = sizeof o, .label_smoothing = cases[i].eps, .ignore = cases[i].ignore};
      double mean = naive_cross_entropy(logits, kind == 1, cases[i].eps, cases[i].ignore ? 0 : -1, rows), sum = 0;
      for (int r = 0; r < ROWS; r++) sum += rows[r];
      EXPECT_TYPE(build(a, ids[0], &o), F64, SCALAR);
      for (size_t k = 0; k < BASE_COUNT(ids); k++) EXPECT_NEAR(build(a, ids[k], &o), 1e-14, mean);
      o.reduction = QUERN_REDUCTION_SUM;
      EXPECT_NEAR(build(a, ids[0], &o), 1e-14, sum);
      o.reduction = QUERN_REDUCTION_NONE;
      EXPECT_TYPE(build(a, ids[0], &o), F64, DIMS(ROWS));
      EXPECT_ARRAY(build(a, ids[0], &o), 1e-14, ROWS, rows);
    }
  }
  EXPECT_NEAR(quern_cross_entropy(a, ids[0], NULL), 1e-14, naive_cross_entropy(logits, false, 0, -1, rows));
  EXPECT_NEAR(quern_cross_entropy(quern_select(a, 0, 0), REALS(I32, SCALAR, 2), NULL), 1e-14, rows[0]);
}

/* linear_cross_entropy is cross_entropy of linear. */
static void linear(void **state) {
  (void)state;
  double h[ROWS * 3], w[CLASSES * 3];
  test_fill(ROWS * 3, h, 4);
  test_fill(CLASSES * 3, w, 5);
  quern_tensor *a = ARRAY(F64, DIMS(ROWS, 3), ROWS * 3, h), *b = ARRAY(F64, DIMS(CLASSES, 3), CLASSES * 3, w);
  quern_tensor *ids = ARRAY(I64, DIMS(ROWS), ROWS, label_values);
  const quern_cross_entropy_options o = {.size = sizeof o, .label_smoothing = 0.2, .ignore = true, .ignore_index = 3};
  double logits[ROWS * CLASSES] = {0}, rows[ROWS];
  for (int r = 0; r < ROWS; r++) {
    for (int c = 0; c < CLASSES; c++) {
      for (int d = 0; d < 3; d++) logits[r * CLASSES + c] += h[r * 3 + d] * w[c * 3 + d];
    }
  }
  EXPECT_NEAR(quern_linear_cross_entropy(a, b, ids, &o), 1e-14, naive_cross_entropy(logits, false, 0.2, 3, rows));
  EXPECT_NEAR(quern_linear_cross_entropy(a, b, ids, NULL), 1e-14, naive_cross_entropy(logits, false, 0, -1, rows));
  assert_string_equal(quern_linear_cross_entropy(a, b, ids, NULL)->node->attrs->name, "linear_cross_entropy");
}

/* Nothing that counts is 0 / 0; a label that is no class is NaN; both without harm to the other rows'
** gradients. */
static void odd_labels(void **state) {
  (void)state;
  quern_tensor *a = REALS(F32, DIMS(3, 2), 1, 2, NAN, NAN, 4, 4), *ids = REALS(I32, DIMS(3), 0, -100, 1);
  quern_cross_entropy_options o = {.size = sizeof o, .ignore = true, .ignore_index = -100};
  EXPECT_RELATIVE(quern_cross_entropy(a, ids, &o), 2e-7, (log1p(exp(1)) + log(2)) / 2);
  double s = 1 / (1 + exp(1));
  EXPECT_NEAR(GRAD_OF_SUM(quern_cross_entropy(a, ids, &o), a), 1e-7, (s - 1) / 2, (1 - s) / 2, 0, 0, 0.25, -0.25);
  EXPECT(quern_cross_entropy(a, REALS(I32, DIMS(3), -100, -100, -100), &o), NAN);
  o.reduction = QUERN_REDUCTION_SUM;
  EXPECT(quern_cross_entropy(a, REALS(I32, DIMS(3), -100, -100, -100), &o), 0);
  o.reduction = QUERN_REDUCTION_NONE;
  quern_tensor *b = REALS(F32, DIMS(3, 2), 1, 2, 3, 3, 4, 4), *bad = REALS(I32, DIMS(3), -1, 2, 1);
  EXPECT_RELATIVE(quern_cross_entropy(b, bad, &o), 2e-7, NAN, NAN, log(2));
  EXPECT(GRAD_OF_SUM(quern_cross_entropy(b, bad, &o), b), 0, 0, 0, 0, 0.5, -0.5);
  EXPECT_RELATIVE(quern_nll_loss(b, bad, &o), 2e-7, NAN, NAN, -4);
  /* Label 200 of u8 is a class of 256, and -56 of i8 is none. */
  quern_tensor *many = quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(1, 256));
  EXPECT_RELATIVE(quern_cross_entropy(many, REALS(U8, DIMS(1), 200), &o), 2e-7, log(256));
  EXPECT(quern_cross_entropy(many, REALS(I8, DIMS(1), -56), &o), NAN);
}

/* ---- angles and distances -------------------------------------------------------------------- */

static void cosine(void **state) {
  (void)state;
  quern_tensor *a = REALS(F64, DIMS(2, 2), 3, 4, 1, 0), *b = REALS(F64, DIMS(2, 2), 4, 3, -2, 0);
  EXPECT_NEAR(quern_cosine_similarity(a, b, -1, 1e-8), 1e-15, 24.0 / 25, -1);
  EXPECT_NEAR(quern_cosine_similarity(a, b, 0, 1e-8), 1e-15, (12 - 2) / sqrt(10 * 20), 1);
  EXPECT_NEAR(quern_cosine_similarity(a, REALS(F64, DIMS(2), 1, 0), 1, 1e-8), 1e-15, 0.6, 1); /* broadcasts */
  EXPECT_NEAR(quern_cosine_similarity(a, b, 1, 10), 1e-15, 24.0 / 100, -2.0 / 100); /* eps is the least length */
  EXPECT_NEAR(quern_cosine_similarity(a, b, 1, 4), 1e-15, 24.0 / 25, -2.0 / 16);
  EXPECT(quern_cosine_similarity(ZEROS(F32, 2), REALS(F32, DIMS(2), 1, 2), 0, 1e-8), 0);

  /* Lengths whose squares do not fit f32. */
  quern_tensor *c = REALS(F32, DIMS(3, 2), 3e-25, 4e-25, 3e20, 4e20, 3e-25, 4e-25);
  quern_tensor *d = REALS(F32, DIMS(3, 2), 4e-25, 3e-25, 4e20, 3e20, 4e20, 3e20);
  EXPECT_RELATIVE(quern_cosine_similarity(c, d, 1, 0), 1e-6, 0.96, 0.96, 0.96);
  EXPECT_RELATIVE(quern_cosine_similarity(c, d, 1, 1e-8), 1e-6, 24e-34, 0.96, 48e-18);
  double *g = VALUES(GRAD_OF_SUM(quern_cosine_similarity(c, d, 1, 1e-8), c));
  for (int i = 0; i < 6; i++) assert_true(isfinite(g[i]));
  free(g);
  quern_tensor *zero = ZEROS(F32, 1, 2);
  EXPECT_RELATIVE(GRAD_OF_SUM(quern_cosine_similarity(zero, REALS(F32, DIMS(1, 2), 1, 0), 1, 0.5), zero), 1e-6, 2, 0);

  quern_tensor *sign = REALS(F64, DIMS(2), 1, -1);
  EXPECT_NEAR(quern_cosine_loss(a, b, sign, 0.5, QUERN_REDUCTION_NONE), 1e-15, 0.04, 0);
  EXPECT_NEAR(quern_cosine_loss(a, b, quern_neg(sign), 0.5, QUERN_REDUCTION_NONE), 1e-15, 0.46, 2);
  EXPECT_NEAR(quern_cosine_loss(a, b, REALS(I8, DIMS(2), -1, 1), 0.5, QUERN_REDUCTION_MEAN), 1e-15, 1.23);
  EXPECT_NEAR(quern_cosine_loss(a, b, REALS(I8, DIMS(2), -1, 1), 0.5, QUERN_REDUCTION_SUM), 1e-15, 2.46);
}

static void triplet(void **state) {
  (void)state;
  quern_tensor *a = REALS(F64, DIMS(3, 2), 0, 0, 1, 1, 2, 2), *p = REALS(F64, DIMS(3, 2), 3, 4, 1, 1, 2, 3);
  quern_tensor *n = REALS(F64, DIMS(3, 2), 0, 2, 1, 3, 12, 2);
  EXPECT_NEAR(quern_triplet_loss(a, p, n, 0.5, QUERN_REDUCTION_NONE), 1e-15, 3.5, 0, 0);
  EXPECT_NEAR(quern_triplet_loss(a, p, n, 2.5, QUERN_REDUCTION_NONE), 1e-15, 5.5, 0.5, 0);
  EXPECT_NEAR(quern_triplet_loss(a, p, n, 2.5, QUERN_REDUCTION_MEAN), 1e-15, 2);
  EXPECT_NEAR(quern_triplet_loss(a, p, n, 2.5, QUERN_REDUCTION_SUM), 1e-15, 6);
  /* A distance of 0 has gradient 0, and distances of 1e20 or 1e-25 are right in f32. */
  EXPECT_NEAR(GRAD_OF_SUM(quern_triplet_loss(a, p, n, 2.5, QUERN_REDUCTION_SUM), p), 1e-15, 0.6, 0.8, 0, 0, 0, 0);
  quern_tensor *zero = ZEROS(F32, 2, 2), *far = REALS(F32, DIMS(2, 2), 3e20, 4e20, 3e-25, 4e-25);
  EXPECT_RELATIVE(quern_triplet_loss(zero, far, zero, 0, QUERN_REDUCTION_NONE), 1e-6, 5e20, 5e-25);
  EXPECT_RELATIVE(GRAD_OF_SUM(quern_triplet_loss(zero, far, zero, 0, QUERN_REDUCTION_SUM), far), 1e-6, 0.6, 0.8, 0.6,
                  0.8);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static quern_tensor *pair(quern_tensor *const *xs, const void *user) {
  return (*(loss *const *)user)(xs[0], xs[1], QUERN_REDUCTION_NONE);
}

static quern_tensor *labeled(quern_tensor *const *xs, const void *user) {
  return quern_cross_entropy(xs[0], ARRAY(I64, DIMS(ROWS), ROWS, label_values), user);
}
static quern_tensor *nll(quern_tensor *const *xs, const void *user) {
  return quern_nll_loss(xs[0], ARRAY(I64, DIMS(ROWS), ROWS, label_values), user);
}
static quern_tensor *linear_labeled(quern_tensor *const *xs, const void *user) {
  return quern_linear_cross_entropy(xs[0], xs[1], ARRAY(I64, DIMS(ROWS), ROWS, label_values), user);
}
static quern_tensor *cosine_pair(quern_tensor *const *xs, const void *user) {
  return (void)user, quern_cosine_similarity(xs[0], xs[1], 1, 0.1);
}
static quern_tensor *triplet_of(quern_tensor *const *xs, const void *user) {
  return (void)user, quern_triplet_loss(xs[0], xs[1], xs[2], 5, QUERN_REDUCTION_NONE);
}

static void gradients(void **state) {
  (void)state;
  numbers();
  double data[3][ROWS * CLASSES], *at[] = {data[0], data[1], data[2]}, *pair_at[] = {x, t};
  for (int i = 0; i < 3; i++) test_fill(ROWS * CLASSES, data[i], 11 + (uint64_t)i);
  const struct ir_ints two[] = {DIMS(2, 3), DIMS(2, 3), DIMS(2, 3)};
  loss *const losses[] = {quern_mse_loss, quern_l1_loss, huber, quern_bce_loss, quern_kl_loss, focal};
  for (size_t i = 0; i < BASE_COUNT(losses); i++) CHECK_GRADIENTS(pair, &losses[i], 2, two, pair_at, true);

  const struct ir_ints logits[] = {DIMS(ROWS, CLASSES)}, hidden[] = {DIMS(ROWS, 3), DIMS(CLASSES, 3)};
  for (int reduction = QUERN_REDUCTION_MEAN; reduction <= QUERN_REDUCTION_NONE; reduction++) {
    quern_cross_entropy_options o = {.size = sizeof o, .reduction = (quern_reduction)reduction};
    CHECK_GRADIENTS(labeled, &o, 1, logits, at, false);
    o = (quern_cross_entropy_options){
        .size = sizeof o, .reduction = (quern_reduction)reduction, .label_smoothing = 0.2, .ignore = true};
    CHECK_GRADIENTS(labeled, &o, 1, logits, at, true);
    CHECK_GRADIENTS(nll, &o, 1, logits, at, false);
    CHECK_GRADIENTS(linear_labeled, &o, 2, hidden, at, reduction == QUERN_REDUCTION_MEAN);
  }
  CHECK_GRADIENTS(cosine_pair, NULL, 2, two, at, true);
  CHECK_GRADIENTS(triplet_of, NULL, 3, two, at, true);
}

/* ---- wrong calls ----------------------------------------------------------------------------- */

static void wrong_pairs(void **state) {
  (void)state;
  const struct {
    const char *name, *first;
    loss *build;
  } table[] = {
      {"mse_loss", "x", quern_mse_loss},   {"l1_loss", "x", quern_l1_loss},        {"huber_loss", "x", huber},
      {"kl_loss", "log_p", quern_kl_loss}, {"bce_loss", "logits", quern_bce_loss}, {"focal_loss", "logits", focal},
  };
  quern_tensor *a = ZEROS(F32, 2, 3), *b = ZEROS(F32, 3), *d = ZEROS(F64, 2, 3), *i = ZEROS(I32, 2, 3);
  for (size_t k = 0; k < BASE_COUNT(table); k++) {
    char text[128];
    snprintf(text, sizeof text, "%s: shapes differ: %s is f32(2, 3), target is f32(3,); they must be equal",
             table[k].name, table[k].first);
    EXPECT_POISON(table[k].build(a, b, QUERN_REDUCTION_MEAN), SHAPE, text);
    snprintf(text, sizeof text, "%s: dtypes differ: %s is f32(2, 3), target is f64(2, 3)", table[k].name,
             table[k].first);
    EXPECT_POISON(table[k].build(a, d, QUERN_REDUCTION_MEAN), DTYPE, text);
    snprintf(text, sizeof text, "%s: %s is i32(2, 3), must be of a float dtype", table[k].name, table[k].first);
    EXPECT_POISON(table[k].build(i, i, QUERN_REDUCTION_MEAN), DTYPE, text);
    snprintf(text, sizeof text, "%s: reduction is 7", table[k].name);
    EXPECT_POISON(table[k].build(a, a, (quern_reduction)7), INVALID, text);
    snprintf(text, sizeof text, "%s: operand 1 is null", table[k].name);
    EXPECT_POISON(table[k].build(a, NULL, QUERN_REDUCTION_MEAN), INVALID, text);
  }
  EXPECT_POISON(quern_huber_loss(a, a, 0, QUERN_REDUCTION_MEAN), INVALID,
                "huber_loss: delta is 0, must be finite and above 0");
  EXPECT_POISON(quern_focal_loss(a, a, 1.5, 2, QUERN_REDUCTION_MEAN), INVALID,
                "focal_loss: alpha is 1.5, must be at most 1");
  EXPECT_POISON(quern_focal_loss(a, a, 0.5, -1, QUERN_REDUCTION_MEAN), INVALID,
                "focal_loss: gamma is -1, must be finite and at least 0");
}

static void wrong_labels(void **state) {
  (void)state;
  quern_tensor *a = ZEROS(F32, 5, 3), *ids = ZEROS(I64, 5), *w = ZEROS(F32, 7, 3);
  quern_cross_entropy_options o = {.size = sizeof o, .label_smoothing = 1.5};
  EXPECT_POISON(quern_cross_entropy(a, ZEROS(F32, 5), NULL), DTYPE,
                "cross_entropy: labels are f32(5,), must be of an integer dtype");
  EXPECT_POISON(quern_cross_entropy(a, ZEROS(I64, 4), NULL), SHAPE,
                "cross_entropy: labels are i64(4,), logits is f32(5, 3); labels must have its shape");
  EXPECT_POISON(quern_cross_entropy(ZEROS(I32, 5, 3), ids, NULL), DTYPE, "cross_entropy: logits is i32(5, 3)");
  EXPECT_POISON(quern_cross_entropy(a, ids, &o), INVALID, "cross_entropy: label_smoothing is 1.5, must be in 0..1");
  EXPECT_POISON(quern_cross_entropy(a, NULL, NULL), INVALID, "cross_entropy: operand 1 is null");
  EXPECT_POISON(quern_nll_loss(a, ZEROS(I64, 5, 3), NULL), SHAPE, "nll_loss: labels are i64(5, 3), log_p is f32(5, 3)");
  EXPECT_POISON(quern_nll_loss(a, ids, &o), INVALID, "nll_loss: label_smoothing is 1.5");
  o = (quern_cross_entropy_options){.size = sizeof o, .reduction = (quern_reduction)9};
  EXPECT_POISON(quern_cross_entropy(a, ids, &o), INVALID, "cross_entropy: reduction is 9");
  o.reduction = QUERN_REDUCTION_SUM;
  o.size = 4;
  EXPECT_POISON(quern_linear_cross_entropy(a, w, ids, &o), INVALID,
                "linear_cross_entropy: quern_cross_entropy_options has a size of 4 bytes");
  EXPECT_POISON(quern_linear_cross_entropy(a, ZEROS(F32, 7, 4), ids, NULL), SHAPE,
                "linear_cross_entropy: weight is f32(7, 4), must be (classes, 3) for x f32(5, 3)");
  EXPECT_POISON(quern_linear_cross_entropy(a, ZEROS(F64, 7, 3), ids, NULL), DTYPE,
                "linear_cross_entropy: dtypes differ");
  EXPECT_POISON(quern_linear_cross_entropy(a, w, ZEROS(I64, 3), NULL), SHAPE,
                "linear_cross_entropy: labels are i64(3,), x is f32(5, 3)");
}

static void wrong_angles(void **state) {
  (void)state;
  quern_tensor *a = ZEROS(F32, 2, 3), *s = ZEROS(F32, 2);
  EXPECT_POISON(quern_cosine_similarity(a, ZEROS(F32, 2, 4), 1, 0), SHAPE,
                "cosine_similarity: shapes do not broadcast");
  EXPECT_POISON(quern_cosine_similarity(a, a, 2, 0), SHAPE, "cosine_similarity: axis 2 is out of range");
  EXPECT_POISON(quern_cosine_similarity(a, a, 1, -1), INVALID, "cosine_similarity: eps is -1");
  EXPECT_POISON(quern_cosine_similarity(a, ZEROS(F64, 2, 3), 1, 0), DTYPE, "cosine_similarity: dtypes differ");
  EXPECT_POISON(quern_cosine_loss(a, a, ZEROS(F32, 3), 0, QUERN_REDUCTION_MEAN), SHAPE,
                "cosine_loss: a is f32(2, 3), sign is f32(3,)");
  EXPECT_POISON(quern_cosine_loss(a, a, ZEROS(U8, 2), 0, QUERN_REDUCTION_MEAN), DTYPE,
                "cosine_loss: sign is u8(2,), must hold 1 and -1");
  EXPECT_POISON(quern_cosine_loss(a, ZEROS(F32, 2), s, 0, QUERN_REDUCTION_MEAN), SHAPE,
                "cosine_loss: shapes differ: a is f32(2, 3), b is f32(2,)");
  EXPECT_POISON(quern_cosine_loss(a, a, s, NAN, QUERN_REDUCTION_MEAN), INVALID, "cosine_loss: margin is nan");
  EXPECT_POISON(quern_cosine_loss(a, a, NULL, 0, QUERN_REDUCTION_MEAN), INVALID, "cosine_loss: operand 2 is null");
  EXPECT_POISON(quern_triplet_loss(a, a, s, 1, QUERN_REDUCTION_MEAN), SHAPE,
                "triplet_loss: shapes differ: anchor is f32(2, 3), negative is f32(2,)");
  EXPECT_POISON(quern_triplet_loss(a, a, a, -1, QUERN_REDUCTION_MEAN), INVALID, "triplet_loss: margin is -1");
  EXPECT_POISON(quern_triplet_loss(a, a, a, 1, (quern_reduction)5), INVALID, "triplet_loss: reduction is 5");
  quern_tensor *scalar = quern_scalar(ctx, QUERN_DTYPE_F32, 1);
  EXPECT_POISON(quern_triplet_loss(scalar, scalar, scalar, 1, QUERN_REDUCTION_MEAN), SHAPE,
                "triplet_loss: anchor is f32()");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(pairs),        TEST(narrow_interior), TEST(bce_range), TEST(cross_entropy_range),
      TEST(kl_range),     TEST(labels),          TEST(linear),    TEST(odd_labels),
      TEST(cosine),       TEST(triplet),         TEST(gradients), TEST(wrong_pairs),
      TEST(wrong_labels), TEST(wrong_angles),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
