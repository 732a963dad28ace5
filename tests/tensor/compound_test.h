/* tests/tensor/compound_test.h -- what the tests of compound operations share
** A test is TEST(function) of unit.h.
**   quern_tensor *x = REALS(F32, DIMS(2, 2), 1, 2, 3, 4);
**   EXPECT_NEAR(quern_softmax(x, -1), 1e-6, ...);
** CHECK_GRADIENTS compares the gradient of an expression with central differences, with the gradient of
** the inlined bodies and with jvp, and the second derivative with central differences of the gradient.
*/
#ifndef TESTS_TENSOR_COMPOUND_TEST_H
#define TESTS_TENSOR_COMPOUND_TEST_H
#include <math.h>

#include "ir/ir.h"
#include "quern/grad.h"
#include "unit.h"

/* ---- building -------------------------------------------------------------------------------- */

#define DIMS(...) IR_INTS(__VA_ARGS__)
#define SCALAR ((struct ir_ints){0, NULL})
#define LIST_OF(T, ...)                                                                                                \
  sizeof((T[]){__VA_ARGS__}) / sizeof(T), (T[]) { __VA_ARGS__ }

static inline void test_ok(quern_tensor *t, const char *file, int line) {
  if (!ir_is_poison(t)) return;
  quern_status status = quern_context_check(ctx);
  print_error("poison: %s: %s\n", quern_status_name(status), quern_last_error());
  _fail(file, line);
}

/* A tensor that holds n elements converted from doubles. */
static inline quern_tensor *test_reals(quern_dtype dtype, struct ir_ints shape, size_t n, const double *values,
                                       const char *file, int line) {
  size_t bytes = n * base_dtypes[dtype].size;
  unsigned char *data = malloc(bytes + 1);
  for (size_t i = 0; i < n; i++) base_convert(dtype, data, i, QUERN_DTYPE_F64, values, i);
  quern_tensor *t = quern_tensor_copy(ctx, dtype, shape.n, shape.at, data);
  free(data);
  test_ok(t, file, line);
  if ((size_t)ir_count(t) != n) _fail(file, line);
  return t;
}
#define REALS(DTYPE, SHAPE, ...)                                                                                       \
  test_reals(QUERN_DTYPE_##DTYPE, SHAPE, LIST_OF(double, __VA_ARGS__), __FILE__, __LINE__)
#define ARRAY(DTYPE, SHAPE, n, at) test_reals(QUERN_DTYPE_##DTYPE, SHAPE, (size_t)(n), (at), __FILE__, __LINE__)
/* A tensor whose elements do not matter. */
#define ZEROS(DTYPE, ...) quern_zeros(ctx, QUERN_DTYPE_##DTYPE, QUERN_LIST(__VA_ARGS__))
/* A tensor that has no elements yet. */
#define INPUT(...) quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(__VA_ARGS__))

/* ---- comparing ------------------------------------------------------------------------------- */

/* The elements of t as doubles; free them. */
static inline double *test_values(quern_tensor *t, size_t n_feeds, const quern_feed *feeds, const char *file,
                                  int line) {
  test_ok(t, file, line);
  size_t n = (size_t)ir_count(t);
  unsigned char *data = malloc(ir_bytes(t) + 1);
  double *values = malloc((n + 1) * sizeof *values);
  void *dst = data;
  if (quern_eval_reference(ctx, 1, &t, &dst, n_feeds, feeds) != QUERN_STATUS_OK) {
    print_error("%s\n", quern_last_error());
    _fail(file, line);
  }
  for (size_t i = 0; i < n; i++) base_convert(QUERN_DTYPE_F64, values, i, t->dtype, data, i);
  free(data);
  return values;
}
#define VALUES(t) test_values((t), 0, NULL, __FILE__, __LINE__)

static inline bool test_close(double got, double want, double relative, double absolute) {
  if (isnan(want)) return isnan(got);
  if (isinf(want)) return got == want;
  return fabs(got - want) <= relative * fabs(want) + absolute;
}

/* Fails unless each element is within the relative and the absolute tolerance together. */
static inline void test_near(quern_tensor *t, double relative, double absolute, size_t n, const double *want,
                             const char *file, int line) {
  double *got = test_values(t, 0, NULL, file, line);
  bool bad = (size_t)ir_count(t) != n;
  if (bad) print_error("%zu values expected, there are %lld\n", n, (long long)ir_count(t));
  for (size_t i = 0; i < n && !bad; i++) {
    if (test_close(got[i], want[i], relative, absolute)) continue;
    print_error("element %zu is %.17g, expected %.17g\n", i, got[i], want[i]);
    bad = true;
  }
  free(got);
  if (bad) _fail(file, line);
}
#define EXPECT_NEAR(t, tolerance, ...)                                                                                 \
  test_near((t), (tolerance), (tolerance), LIST_OF(double, __VA_ARGS__), __FILE__, __LINE__)
#define EXPECT_RELATIVE(t, tolerance, ...)                                                                             \
  test_near((t), (tolerance), 0, LIST_OF(double, __VA_ARGS__), __FILE__, __LINE__)
#define EXPECT_ARRAY(t, tolerance, n, at)                                                                              \
  test_near((t), (tolerance), (tolerance), (size_t)(n), (at), __FILE__, __LINE__)

/* Exactly these values, each rounded to the dtype of t; -0 equals 0. */
static inline void test_exact(quern_tensor *t, size_t n, const double *want, const char *file, int line) {
  test_ok(t, file, line);
  double *rounded = malloc((n + 1) * sizeof *rounded);
  for (size_t i = 0; i < n; i++) {
    unsigned char element[8];
    base_convert(t->dtype, element, 0, QUERN_DTYPE_F64, want, i);
    base_convert(QUERN_DTYPE_F64, rounded, i, t->dtype, element, 0);
  }
  test_near(t, 0, 0, n, rounded, file, line);
  free(rounded);
}
#define EXPECT(t, ...) test_exact((t), LIST_OF(double, __VA_ARGS__), __FILE__, __LINE__)

static inline void test_type(quern_tensor *t, quern_dtype dtype, struct ir_ints shape, const char *file, int line) {
  test_ok(t, file, line);
  bool same = t->dtype == dtype && t->rank == shape.n;
  for (int k = 0; same && k < shape.n; k++) same = t->dims[k] == shape.at[k];
  if (same) return;
  char text[IR_TYPE_TEXT];
  print_error("the type is %s\n", ir_type_text(text, t));
  _fail(file, line);
}
#define EXPECT_TYPE(t, DTYPE, SHAPE) test_type((t), QUERN_DTYPE_##DTYPE, SHAPE, __FILE__, __LINE__)

/* The call gave the poison and an error of that status whose message has these words. */
static inline void test_error(const quern_tensor *t, quern_status status, const char *words, const char *file,
                              int line) {
  test_expect_error(quern_context_check(ctx), status, words, file, line);
  if (!ir_is_poison(t)) _fail(file, line);
}
#define EXPECT_POISON(t, STATUS, words) test_error((t), QUERN_STATUS_##STATUS, (words), __FILE__, __LINE__)

/* The only operand is null, so that there is no context: the poison, and the message in this thread. */
static inline void test_null(const quern_tensor *t, const char *words, const char *file, int line) {
  if (ir_is_poison(t) && strstr(quern_last_error(), words) != NULL) return;
  print_error("expected \"%s\", got: %s\n", words, quern_last_error());
  _fail(file, line);
}
#define EXPECT_NULL_ERROR(t, words) test_null((t), (words), __FILE__, __LINE__)

/* How many nodes of an op a tensor is made of. */
static inline int test_count_ops(quern_tensor *t, enum ir_op op) {
  struct ir_order order = {0};
  int count = 0;
  assert_int_equal(ir_topo(ctx, 1, &t, &order), QUERN_STATUS_OK);
  for (size_t i = 0; i < order.n; i++) count += order.at[i]->op == op;
  ir_order_fini(ctx, &order);
  return count;
}

/* ---- gradients ------------------------------------------------------------------------------- */

enum { MAX_LEAVES = 5 };

/* y from x[0..n-1]; user is the test's. */
typedef quern_tensor *expression(quern_tensor *const *x, const void *user);

/* The sum of all elements times fixed numbers, as a scalar. */
static inline quern_tensor *weighted(quern_tensor *y, uint64_t seed) {
  size_t n = (size_t)ir_count(y);
  double *w = malloc((n + 1) * sizeof *w);
  test_fill(n, w, seed);
  quern_tensor *t = test_reals(QUERN_DTYPE_F64, (struct ir_ints){y->rank, y->dims}, n, w, __FILE__, __LINE__);
  free(w);
  quern_tensor *product = quern_mul(y, t);
  return y->rank == 0 ? product : quern_sum(product, QUERN_ALL, false);
}

static inline double at_point(quern_tensor *scalar, size_t n, const quern_feed *feeds, const char *file, int line) {
  double *value = test_values(scalar, n, feeds, file, line), v = value[0];
  free(value);
  return v;
}

static inline void test_difference(const char *what, int leaf, size_t i, double got, double want, double tolerance,
                                   const char *file, int line) {
  if (fabs(got - want) <= tolerance * (1 + fabs(want))) return;
  print_error("%s: element %zu of operand %d: %.12g, expected %.12g\n", what, i, leaf, got, want);
  _fail(file, line);
}

/* d scalar / d leaf against central differences, for the first n leaves. */
static inline void test_central(const char *what, quern_tensor *scalar, int n, quern_tensor *const *x,
                                quern_tensor *const *dx, double *const *data, double tolerance, const char *file,
                                int line) {
  quern_feed feeds[MAX_LEAVES];
  for (int k = 0; k < n; k++) feeds[k] = (quern_feed){x[k], data[k]};
  for (int k = 0; k < n; k++) {
    double *got = test_values(dx[k], (size_t)n, feeds, file, line);
    for (size_t i = 0; i < (size_t)ir_count(x[k]); i++) {
      const double h = 1e-5, middle = data[k][i];
      data[k][i] = middle + h;
      double above = at_point(scalar, (size_t)n, feeds, file, line);
      data[k][i] = middle - h;
      double below = at_point(scalar, (size_t)n, feeds, file, line);
      data[k][i] = middle;
      test_difference(what, k, i, got[i], (above - below) / (2 * h), tolerance, file, line);
    }
    free(got);
  }
}

/* f of n f64 operands of those shapes at data (which is changed and put back). second: also second
** derivatives. */
static inline void test_gradients(expression *f, const void *user, int n, const struct ir_ints *shapes,
                                  double *const *data, bool second, const char *file, int line) {
  quern_tensor *x[MAX_LEAVES], *dx[MAX_LEAVES], *inlined[MAX_LEAVES], *tx[MAX_LEAVES], *loss, *plain;
  quern_feed feeds[MAX_LEAVES];
  for (int k = 0; k < n; k++) {
    x[k] = quern_input(ctx, "x", QUERN_DTYPE_F64, shapes[k].n, shapes[k].at);
    test_ok(x[k], file, line);
    feeds[k] = (quern_feed){x[k], data[k]};
  }
  quern_tensor *y = f(x, user);
  test_ok(y, file, line);
  loss = weighted(y, 7);
  test_expect_ok(quern_grad(loss, (size_t)n, x, dx), file, line);
  test_central("gradient", loss, n, x, dx, data, 1e-8, file, line);

  test_expect_ok(ir_inline_composites(ctx, 1, &loss, &plain), file, line);
  test_expect_ok(quern_grad(plain, (size_t)n, x, inlined), file, line);
  double slope = 0;
  for (int k = 0; k < n; k++) {
    size_t count = (size_t)ir_count(x[k]);
    double *a = test_values(dx[k], (size_t)n, feeds, file, line),
           *b = test_values(inlined[k], (size_t)n, feeds, file, line);
    double *t = malloc((count + 1) * sizeof *t);
    test_fill(count, t, 11 + (uint64_t)k);
    for (size_t i = 0; i < count; i++) {
      test_difference("gradient of the inlined body", k, i, b[i], a[i], 1e-11, file, line);
      slope += a[i] * t[i];
    }
    tx[k] = test_reals(QUERN_DTYPE_F64, shapes[k], count, t, file, line);
    free(a);
    free(b);
    free(t);
  }
  quern_tensor *tangent;
  test_expect_ok(quern_jvp((size_t)n, x, tx, 1, &loss, &tangent), file, line);
  test_difference("jvp", 0, 0, at_point(tangent, (size_t)n, feeds, file, line), slope, 1e-11, file, line);
  if (!second) return;

  quern_tensor *sum = NULL, *ddx[MAX_LEAVES];
  for (int k = 0; k < n; k++)
    sum = sum == NULL ? weighted(dx[k], 23) : quern_add(sum, weighted(dx[k], 29 + (uint64_t)k));
  test_expect_ok(quern_grad(sum, (size_t)n, x, ddx), file, line);
  test_central("second derivative", sum, n, x, ddx, data, 1e-7, file, line);
}
#define CHECK_GRADIENTS(f, user, n, shapes, data, second)                                                              \
  test_gradients((f), (user), (n), (shapes), (data), (second), __FILE__, __LINE__)

/* d sum(y) / dx; x need not be an input. */
static inline quern_tensor *test_grad_of_sum(quern_tensor *y, quern_tensor *x, const char *file, int line) {
  quern_tensor *dx = NULL;
  test_ok(y, file, line);
  test_expect_ok(quern_grad(y->rank == 0 ? y : quern_sum(y, QUERN_ALL, false), 1, &x, &dx), file, line);
  return dx;
}
#define GRAD_OF_SUM(y, x) test_grad_of_sum((y), (x), __FILE__, __LINE__)

#endif
