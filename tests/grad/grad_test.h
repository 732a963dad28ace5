/* tests/grad/grad_test.h -- what the tests of grad/ share: a context with Quern's composites, values as doubles, and a check of
** derivatives against central differences
** A test is TEST(function) of unit.h.
**   CHECK_DERIVATIVES(.build = product, .n_x = 2, .shapes = {DIMS(2, 3), DIMS(3)}, .n_y = 1);
*/
#ifndef TESTS_GRAD_GRAD_TEST_H
#define TESTS_GRAD_GRAD_TEST_H
#define TEST_CONTEXT_NEW quern_context_new
#include "ir/ir_test.h"

#include <math.h>

#include "quern/grad.h"

/* ---- values ----------------------------------------------------------------------------------------------------- */

enum { MAX_ELEMENTS = 256, MAX_TENSORS = 6 };

/* The elements of t as doubles; fails at file:line when there are none. Returns how many. */
static inline size_t test_doubles(quern_tensor *t, size_t n_bindings, const struct ir_binding *bindings, double *values,
                                  const char *file, int line) {
  unsigned char data[MAX_ELEMENTS * 8];
  void *dst = data;
  if (ir_is_poison(t)) print_error("poison: %s\n", ctx->message);
  if (ir_is_poison(t) || ir_count(t) > MAX_ELEMENTS) _fail(file, line);
  if (ir_eval(ctx, 1, &t, &dst, n_bindings, bindings) != QUERN_STATUS_OK) {
    print_error("%s\n", quern_last_error());
    _fail(file, line);
  }
  for (size_t i = 0; i < (size_t)ir_count(t); i++) base_convert(QUERN_DTYPE_F64, values, i, t->dtype, data, i);
  return (size_t)ir_count(t);
}

/* Fails unless t has these elements up to a relative and absolute tolerance; NaN equals NaN. */
static inline void test_near(quern_tensor *t, double tolerance, size_t n, const double *want, const char *file,
                             int line) {
  double got[MAX_ELEMENTS];
  size_t count = test_doubles(t, 0, NULL, got, file, line);
  if (count != n) print_error("%zu elements expected, there are %zu\n", n, count);
  if (count != n) _fail(file, line);
  for (size_t i = 0; i < n; i++) {
    bool near =
        isnan(want[i]) ? isnan(got[i]) : got[i] == want[i] || fabs(got[i] - want[i]) <= tolerance * (1 + fabs(want[i]));
    if (near) continue;
    for (size_t k = 0; k < n; k++) print_error("element %zu is %.12g, expected %.12g\n", k, got[k], want[k]);
    _fail(file, line);
  }
}
#define EXPECT_NEAR(t, tolerance, ...) test_near((t), (tolerance), REALS_OF(__VA_ARGS__), __FILE__, __LINE__)
#define EXPECT_EXACT(t, ...) test_near((t), 0, REALS_OF(__VA_ARGS__), __FILE__, __LINE__) /* -0 equals 0 */

/* ---- derivatives of one expression ------------------------------------------------------------------------------ */

/* d y / d x weighted by dy (a list of numbers, in the type of y). */
static inline quern_tensor *test_vjp_of(quern_tensor *y, quern_tensor *x, size_t n, const double *dy, const char *file,
                                        int line) {
  if (ir_is_poison(y)) print_error("poison: %s\n", ctx->message);
  if (ir_is_poison(y) || (size_t)ir_count(y) != n) _fail(file, line);
  quern_tensor *d = test_const(y->dtype, (struct ir_ints){y->rank, y->dims}, QUERN_DTYPE_F64, n, dy), *dx = NULL;
  test_expect_ok(quern_vjp(1, &y, &d, 1, &x, &dx), file, line);
  if (!ir_same_type(dx, x)) _fail(file, line);
  return dx;
}
#define VJP(y, x, ...) test_vjp_of((y), (x), REALS_OF(__VA_ARGS__), __FILE__, __LINE__)

/* The tangent of y when x has the tangent tx. */
static inline quern_tensor *test_jvp_of(quern_tensor *y, quern_tensor *x, size_t n, const double *tx, const char *file,
                                        int line) {
  if (ir_is_poison(y)) print_error("poison: %s\n", ctx->message);
  if (ir_is_poison(y) || (size_t)ir_count(x) != n) _fail(file, line);
  quern_tensor *t = test_const(x->dtype, (struct ir_ints){x->rank, x->dims}, QUERN_DTYPE_F64, n, tx), *ty = NULL;
  test_expect_ok(quern_jvp(1, &x, &t, 1, &y, &ty), file, line);
  if (!ir_same_type(ty, y)) _fail(file, line);
  return ty;
}
#define JVP(y, x, ...) test_jvp_of((y), (x), REALS_OF(__VA_ARGS__), __FILE__, __LINE__)

/* d loss / d x of a loss of one element. */
static inline quern_tensor *test_grad_of(quern_tensor *loss, quern_tensor *x, const char *file, int line) {
  quern_tensor *dx = NULL;
  test_expect_ok(quern_grad(loss, 1, &x, &dx), file, line);
  return dx;
}
#define GRAD(loss, x) test_grad_of((loss), (x), __FILE__, __LINE__)

/* ---- central differences ---------------------------------------------------------------------------------------- */

typedef void test_build(quern_tensor *const *x, quern_tensor **y);

/* What to check: y = build(x), all f64 but y, which may be of any float dtype it likes. */
struct derivatives {
  test_build *build;
  int n_x, n_y;
  struct ir_ints shapes[MAX_TENSORS]; /* of x */
  const double *at[MAX_TENSORS];      /* where; NULL: numbers of [-1, 1) */
  double scale, shift;                /* of these numbers; 0: 1 and 0 */
  bool first_only;                    /* no second derivatives */
};

struct point {
  quern_tensor *x[MAX_TENSORS];
  double data[MAX_TENSORS][MAX_ELEMENTS];
  struct ir_binding bindings[MAX_TENSORS];
  size_t n;
};

static inline double test_at(const struct point *p, quern_tensor *scalar, const char *file, int line) {
  double value;
  test_doubles(scalar, p->n, p->bindings, &value, file, line);
  return value;
}

static inline void test_equal(const char *what, double got, double want, double tolerance, const char *file, int line) {
  if (fabs(got - want) <= tolerance * (1 + fabs(want))) return;
  print_error("%s: %.12g, expected %.12g\n", what, got, want);
  _fail(file, line);
}

/* d scalar / d x[k] against (scalar(x + h) - scalar(x - h)) / 2h. */
static inline void test_central(const char *what, struct point *p, quern_tensor *scalar, quern_tensor *const *dx,
                                double tolerance, const char *file, int line) {
  for (size_t k = 0; k < p->n; k++) {
    double got[MAX_ELEMENTS];
    size_t n = test_doubles(dx[k], p->n, p->bindings, got, file, line);
    for (size_t i = 0; i < n; i++) {
      const double h = 1e-5, middle = p->data[k][i];
      char text[96];
      p->data[k][i] = middle + h;
      double above = test_at(p, scalar, file, line);
      p->data[k][i] = middle - h;
      double below = test_at(p, scalar, file, line);
      p->data[k][i] = middle;
      snprintf(text, sizeof text, "%s by element %zu of x[%zu]", what, i, k);
      test_equal(text, got[i], (above - below) / (2 * h), tolerance, file, line);
    }
  }
}

/* n constants like xs, filled with numbers of their own. */
static inline void test_constants_like(size_t n, quern_tensor *const *xs, quern_tensor **out, uint64_t seed) {
  for (size_t k = 0; k < n; k++) {
    double values[MAX_ELEMENTS];
    size_t count = (size_t)ir_count(xs[k]);
    assert_true(count <= MAX_ELEMENTS);
    test_fill(count, values, seed + k);
    out[k] = test_const(xs[k]->dtype, (struct ir_ints){xs[k]->rank, xs[k]->dims}, QUERN_DTYPE_F64, count, values);
  }
}

/* The sum of all products of two lists, as an f64 scalar. */
static inline quern_tensor *test_inner(size_t n, quern_tensor *const *a, quern_tensor *const *b) {
  quern_tensor *sum = REAL(F64, 0);
  for (size_t k = 0; k < n; k++) {
    quern_tensor *product = quern_mul(quern_cast(a[k], QUERN_DTYPE_F64), quern_cast(b[k], QUERN_DTYPE_F64));
    sum = quern_add(sum, quern_sum(product, QUERN_ALL, false));
  }
  return sum;
}

static inline void test_derivatives(const struct derivatives *c, const char *file, int line) {
  static struct point p;
  quern_tensor *y[MAX_TENSORS] = {0}, *dy[MAX_TENSORS], *dx[MAX_TENSORS], *tx[MAX_TENSORS], *ty[MAX_TENSORS],
               *w[MAX_TENSORS];
  size_t n_x = (size_t)c->n_x, n_y = (size_t)c->n_y;
  p.n = n_x;
  for (size_t k = 0; k < n_x; k++) {
    p.x[k] = quern_input(ctx, "x", QUERN_DTYPE_F64, c->shapes[k].n, c->shapes[k].at);
    size_t count = (size_t)ir_count(p.x[k]);
    if (count > MAX_ELEMENTS) _fail(file, line);
    test_fill(count, p.data[k], 100 + k);
    for (size_t i = 0; i < count; i++) {
      p.data[k][i] = c->at[k] != NULL ? c->at[k][i] : c->shift + p.data[k][i] * (c->scale != 0 ? c->scale : 1);
    }
    p.bindings[k] = (struct ir_binding){p.x[k], p.data[k]};
  }
  c->build(p.x, y);
  for (size_t k = 0; k < n_y; k++) {
    if (ir_is_poison(y[k])) print_error("y[%zu] is poison: %s\n", k, ctx->message);
    if (ir_is_poison(y[k])) _fail(file, line);
  }
  test_constants_like(n_y, y, dy, 200);
  test_constants_like(n_x, p.x, tx, 300);
  test_constants_like(n_x, p.x, w, 400);
  test_expect_ok(quern_vjp(n_y, y, dy, n_x, p.x, dx), file, line);
  test_expect_ok(quern_jvp(n_x, p.x, tx, n_y, y, ty), file, line);
  test_expect_ok(ir_verify(ctx, n_x, dx), file, line);
  test_expect_ok(ir_verify(ctx, n_y, ty), file, line);
  for (size_t k = 0; k < n_x; k++) {
    if (!ir_same_type(dx[k], p.x[k])) _fail(file, line);
  }
  for (size_t k = 0; k < n_y; k++) {
    if (!ir_same_type(ty[k], y[k])) _fail(file, line);
  }
  test_central("gradient", &p, test_inner(n_y, y, dy), dx, 1e-8, file, line);
  double along = test_at(&p, test_inner(n_x, dx, tx), file, line);
  test_equal("<dy, J t> and <J' dy, t>", test_at(&p, test_inner(n_y, dy, ty), file, line), along, 1e-11, file, line);
  if (c->first_only) return;

  /* the derivative of <dx, w>: reverse over reverse, forward over reverse, reverse over forward */
  quern_tensor *g = test_inner(n_x, dx, w), *ddx[MAX_TENSORS], *tg, *dt[MAX_TENSORS], *slope = test_inner(n_y, ty, dy);
  test_expect_ok(quern_grad(g, n_x, p.x, ddx), file, line);
  test_central("second derivative", &p, g, ddx, 1e-7, file, line);
  test_expect_ok(quern_jvp(n_x, p.x, tx, 1, &g, &tg), file, line);
  double curve = test_at(&p, test_inner(n_x, ddx, tx), file, line);
  test_equal("forward over reverse", test_at(&p, tg, file, line), curve, 1e-10, file, line);
  test_expect_ok(quern_grad(slope, n_x, p.x, dt), file, line);
  test_equal("reverse over forward", test_at(&p, test_inner(n_x, dt, w), file, line), curve, 1e-10, file, line);
}

#define CHECK_DERIVATIVES(...) test_derivatives(&(struct derivatives){__VA_ARGS__}, __FILE__, __LINE__)

#endif
