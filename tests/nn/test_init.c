/* tests/nn/test_init.c -- initial values: their distributions, by moments and bounds; orthogonality; what they depend on */
#include <math.h>

#include "nn/nn.h"
#include "quern/quern.h"
#include "unit.h"

static quern_model *model;

static void open_model(quern_dtype dtype, uint64_t seed) {
  quern_model_options options = QUERN_INIT(quern_model_options);
  options.dtype = dtype;
  options.seed = seed;
  EXPECT_OK(quern_model_new(&model, ctx, &options));
}

static int init_teardown(void **state) {
  quern_model_free(model);
  model = NULL;
  return test_teardown(state);
}
#define INIT(function) cmocka_unit_test_setup_teardown(function, test_setup, init_teardown)

/* The elements that a parameter begins with, as doubles; free them. */
static double *begin(const char *name, int rank, const int64_t *dims, quern_init init, size_t *n) {
  quern_tensor *p = quern_scope_parameter(quern_model_scope(model), name, rank, dims, init);
  size_t i = 0;
  quern_parameter about = QUERN_INIT(quern_parameter);
  EXPECT_OK(quern_context_check(ctx));
  do EXPECT_OK(quern_model_parameter(model, i++, &about));
  while (about.tensor != p);
  quern_tensor *x = quern_model_initial(model, i - 1);
  assert_true(quern_tensor_dtype(x) == quern_tensor_dtype(p) && quern_tensor_rank(x) == rank);
  x = quern_cast(x, QUERN_DTYPE_F64);
  *n = (size_t)quern_tensor_count(x);
  double *values = malloc(*n * sizeof *values);
  assert_non_null(values);
  EXPECT_OK(quern_eval_reference(ctx, 1, &x, (void *[]){values}, 0, NULL));
  return values;
}

struct moments {
  double mean, deviation, least, most;
};

static struct moments moments(const char *name, int rank, const int64_t *dims, quern_init init) {
  size_t n;
  double *x = begin(name, rank, dims, init, &n), sum = 0, square = 0;
  struct moments m = {.least = x[0], .most = x[0]};
  for (size_t i = 0; i < n; i++) {
    sum += x[i];
    square += x[i] * x[i];
    m.least = fmin(m.least, x[i]);
    m.most = fmax(m.most, x[i]);
  }
  m.mean = sum / (double)n;
  m.deviation = sqrt(square / (double)n - m.mean * m.mean);
  free(x);
  return m;
}

/* Within so much of it, relative to the deviation. */
static void expect_moments(struct moments m, double mean, double deviation) {
  if (fabs(m.mean - mean) <= 0.04 * deviation && fabs(m.deviation - deviation) <= 0.03 * deviation) return;
  print_error("mean %g, deviation %g, expected %g and %g\n", m.mean, m.deviation, mean, deviation);
  fail();
}

static void expect_uniform(struct moments m, double least, double most) {
  expect_moments(m, (least + most) / 2, (most - least) / sqrt(12));
  double width = most - least;
  assert_true(m.least >= least && m.least < least + 0.01 * width && m.most <= most && m.most > most - 0.01 * width);
}

static void distributions(void **state) {
  (void)state;
  const int64_t plain[] = {100, 100}, conv[] = {40, 20, 5, 3}; /* fans 100, 100; 300, 600 */
  for (int narrow = 0; narrow < 2; narrow++) {
    open_model(narrow == 1 ? QUERN_DTYPE_F32 : QUERN_DTYPE_F64, 3);
    expect_uniform(moments("uniform", 2, plain, (quern_init){QUERN_INIT_UNIFORM, -1, 3}), -1, 3);
    expect_moments(moments("normal", 2, plain, (quern_init){QUERN_INIT_NORMAL, 2, 0.5}), 2, 0.5);
    /* The deviation of a normal cut at 2 is 0.8796 of the whole one's. */
    struct moments cut = moments("cut", 2, plain, (quern_init){QUERN_INIT_TRUNCATED_NORMAL, 1, 0.5});
    expect_moments(cut, 1, 0.5 * 0.87962566);
    assert_true(cut.least >= 0 && cut.least < 0.02 && cut.most <= 2 && cut.most > 1.98);
    double bound = sqrt(6.0 / 900);
    expect_uniform(moments("xavier", 4, conv, (quern_init){QUERN_INIT_XAVIER_UNIFORM, 0, 0}), -bound, bound);
    expect_uniform(moments("xavier2", 4, conv, (quern_init){QUERN_INIT_XAVIER_UNIFORM, 2, 0}), -2 * bound, 2 * bound);
    expect_moments(moments("xavier_n", 4, conv, (quern_init){QUERN_INIT_XAVIER_NORMAL, 0, 0}), 0, sqrt(2.0 / 900));
    bound = sqrt(6.0 / 300);
    expect_uniform(moments("kaiming", 4, conv, (quern_init){QUERN_INIT_KAIMING_UNIFORM, 0, 0}), -bound, bound);
    bound = 1 / sqrt(300);
    expect_uniform(moments("kaiming5", 4, conv, (quern_init){QUERN_INIT_KAIMING_UNIFORM, sqrt(5), 0}), -bound, bound);
    expect_moments(moments("kaiming_n", 4, conv, (quern_init){QUERN_INIT_KAIMING_NORMAL, 0, 0}), 0, sqrt(2.0 / 300));
    struct moments constant = moments("constant", 2, plain, (quern_init){QUERN_INIT_CONSTANT, 0.25, 0});
    assert_true(constant.least == 0.25 && constant.most == 0.25);
    quern_model_free(model);
  }
  model = NULL;
}

/* Quantiles of the cut normal: the inverse distribution is right between its ends, too. */
static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void truncated_quantiles(void **state) {
  (void)state;
  open_model(QUERN_DTYPE_F64, 1);
  size_t n;
  double *x = begin("cut", QUERN_LIST(200, 200), (quern_init){QUERN_INIT_TRUNCATED_NORMAL, 0, 1}, &n);
  qsort(x, n, sizeof *x, by_value);
  for (int i = 1; i < 20; i++) {
    double z = x[n * (size_t)i / 20], low = erf(-sqrt(2)), p = (erf(z / sqrt(2)) - low) / (-2 * low);
    assert_true(fabs(p - i / 20.0) < 0.01);
  }
  free(x);
}

/* Rows, or columns where they are fewer, are orthonormal times gain. */
static void expect_orthogonal(const char *name, int rank, const int64_t *dims, double gain, double within) {
  size_t n, rows = (size_t)dims[0];
  double *x = begin(name, rank, dims, (quern_init){QUERN_INIT_ORTHOGONAL, gain, 0}, &n);
  size_t columns = n / rows, fewer = rows < columns ? rows : columns, length = n / fewer;
  size_t step = rows <= columns ? columns : 1, inner = rows <= columns ? 1 : columns;
  for (size_t i = 0; i < fewer; i++) {
    for (size_t k = 0; k <= i; k++) {
      double sum = 0, scale = gain == 0 ? 1 : gain * gain;
      for (size_t j = 0; j < length; j++) sum += x[i * step + j * inner] * x[k * step + j * inner];
      assert_true(fabs(sum / scale - (i == k)) <= within);
    }
  }
  free(x);
}

static void orthogonal(void **state) {
  (void)state;
  open_model(QUERN_DTYPE_F64, 5);
  expect_orthogonal("wide", QUERN_LIST(12, 30), 0, 1e-13);
  expect_orthogonal("tall", QUERN_LIST(30, 12), 2, 1e-13);
  expect_orthogonal("square", QUERN_LIST(24, 24), 0, 1e-13);
  expect_orthogonal("conv", QUERN_LIST(8, 3, 2, 2), 0.5, 1e-13);
  expect_orthogonal("one", QUERN_LIST(1, 4), 0, 1e-13);
  quern_model_free(model);
  open_model(QUERN_DTYPE_F32, 5);
  expect_orthogonal("square", QUERN_LIST(24, 24), 0, 1e-6);
}

/* A value depends on the seed and the name: not on what else there is, nor on the order. */
static void dependence(void **state) {
  (void)state;
  const quern_init normal = {QUERN_INIT_NORMAL, 0, 1};
  size_t n;
  open_model(QUERN_DTYPE_F32, 9);
  double *alone = begin("a", QUERN_LIST(6), normal, &n), *b = begin("b", QUERN_LIST(6), normal, &n);
  assert_memory_not_equal(alone, b, 6 * sizeof *b);
  quern_model_free(model);
  open_model(QUERN_DTYPE_F32, 9);
  double *later = begin("b", QUERN_LIST(6), normal, &n), *a = begin("a", QUERN_LIST(6), normal, &n);
  assert_memory_equal(later, b, 6 * sizeof *b);
  assert_memory_equal(alone, a, 6 * sizeof *a);
  quern_model_free(model);
  open_model(QUERN_DTYPE_F32, 10);
  double *other = begin("a", QUERN_LIST(6), normal, &n);
  assert_memory_not_equal(other, a, 6 * sizeof *a);
  free(alone);
  free(b);
  free(later);
  free(a);
  free(other);
}

/* Nothing in, and the least ranges: still an init. */
static void ends(void **state) {
  (void)state;
  open_model(QUERN_DTYPE_F32, 2);
  quern_tensor *x = quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(2, 0));
  quern_nn_linear(quern_model_scope(model), x, 3, NULL);
  EXPECT_OK(quern_context_check(ctx));
  assert_true(quern_model_find(model, "bias")->init.a == 0 && quern_model_find(model, "bias")->init.b == 0);
  size_t n;
  free(begin("bias", QUERN_LIST(3), (quern_init){0}, &n));
  free(begin("weight", QUERN_LIST(3, 0), (quern_init){0}, &n));
  assert_int_equal(n, 0);
  double *same = begin("same", QUERN_LIST(2), (quern_init){QUERN_INIT_UNIFORM, 0.5, 0.5}, &n);
  assert_true(same[0] == 0.5 && same[1] == 0.5);
  free(same);
  same = begin("exact", QUERN_LIST(2), (quern_init){QUERN_INIT_NORMAL, 2, 0}, &n);
  assert_true(same[0] == 2 && same[1] == 2);
  free(same);
  free(begin("empty", QUERN_LIST(0, 3), (quern_init){QUERN_INIT_ORTHOGONAL, 0, 0}, &n));
  assert_int_equal(n, 0);
}

/* Parameters of one shape begin by one program, found again. */
static void realized(void **state) {
  (void)state;
  open_model(QUERN_DTYPE_F32, 2);
  quern_scope *root = quern_model_scope(model);
  size_t n;
  double *want = begin("w", QUERN_LIST(8, 8), (quern_init){QUERN_INIT_TRUNCATED_NORMAL, 0, 0.02}, &n);
  quern_tensor *x = quern_model_initial(model, 0);
  EXPECT_OK(quern_tensor_realize(&x));
  const float *got = quern_tensor_data(x);
  for (size_t i = 0; i < n; i++) assert_true(fabs(got[i] - want[i]) <= 1e-8);
  free(want);
  assert_true(quern_tensor_is_poison(
      quern_scope_parameter(root, "v", QUERN_LIST(8), (quern_init){QUERN_INIT_XAVIER_NORMAL, 0, 0})));
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "v (8,): an init that counts inputs and outputs needs two axes");
  assert_true(
      quern_tensor_is_poison(quern_scope_parameter(root, "v", QUERN_LIST(8), (quern_init){QUERN_INIT_UNIFORM, 1, -1})));
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "uniform from a to b with a > b");
  assert_true(
      quern_tensor_is_poison(quern_scope_parameter(root, "v", QUERN_LIST(8), (quern_init){QUERN_INIT_NORMAL, 0, -1})));
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "a standard deviation below 0");
  assert_true(
      quern_tensor_is_poison(quern_scope_parameter(root, "v", QUERN_LIST(8), (quern_init){(quern_init_kind)77, 0, 1})));
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "an init of no kind");
  assert_true(quern_tensor_is_poison(quern_model_initial(model, 1)));
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "model_initial: number 1 of 1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      INIT(distributions), INIT(truncated_quantiles), INIT(orthogonal), INIT(dependence), INIT(ends), INIT(realized)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
