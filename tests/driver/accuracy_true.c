/* driver/accuracy_true.c -- the functions of the accuracy table in long double, from their definitions
*/
#include <math.h>

#include "driver/accuracy.h"

/* ---- of one or two numbers ----------------------------------------------------------------------------- */

static long double sigmoid(long double x) { return 1 / (1 + expl(-x)); }
static long double softplus(long double x) { return x > 0 ? x + log1pl(expl(-x)) : log1pl(expl(x)); }
static long double gelu_tanh(long double x) {
  const long double pi = 3.14159265358979323846264338327950288L;
  return x * sigmoid(2 * sqrtl(2 / pi) * (x + 0.044715L * x * x * x));
}

/* a - b floor(a / b), with the sign of b. */
static long double mod(long double a, long double b) {
  long double rest = fmodl(a, b);
  if (rest == 0) return copysignl(0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

#define EACH(name, value)                                                                                              \
  static void true_##name(int64_t n, const long double *xs, const long double *others, int64_t n_y, long double *y) {  \
    (void)n;                                                                                                           \
    for (int64_t i = 0; i < n_y; i++) {                                                                                \
      long double x = xs[i], other = others[i];                                                                        \
      (void)other;                                                                                                     \
      y[i] = (value);                                                                                                  \
    }                                                                                                                  \
  }
EACH(div, x / other)
EACH(reciprocal, 1 / x)
EACH(sqrt, sqrtl(x))
EACH(mod, mod(x, other))
EACH(rsqrt, 1 / sqrtl(x))
EACH(exp, expl(x))
EACH(expm1, expm1l(x))
EACH(log, logl(x))
EACH(log1p, log1pl(x))
EACH(pow, powl(x, other))
EACH(sin, sinl(x))
EACH(cos, cosl(x))
EACH(tan, tanl(x))
EACH(atan2, atan2l(x, other))
EACH(tanh, tanhl(x))
EACH(erf, erfl(x))
EACH(erfc, erfcl(x))
EACH(elu, x > 0 ? x : expm1l(x))
EACH(sigmoid, sigmoid(x))
EACH(softplus, softplus(x))
EACH(silu, x *sigmoid(x))
EACH(mish, x *tanhl(softplus(x)))
EACH(gelu_quick, x *sigmoid(1.702L * x))
EACH(gelu_tanh, gelu_tanh(x))
EACH(gelu, x *erfcl(-x *sqrtl(0.5L)) / 2)

/* ---- of rows ------------------------------------------------------------------------------------------- */

static long double largest(int64_t n, const long double *x) {
  long double y = x[0];
  for (int64_t i = 1; i < n; i++) y = fmaxl(y, x[i]);
  return y;
}

/* ln of the sum of e^x. */
static long double log_sum(int64_t n, const long double *x) {
  long double top = largest(n, x), sum = 0;
  for (int64_t i = 0; i < n; i++) sum += expl(x[i] - top);
  return top + logl(sum);
}

static long double mean(int64_t n, const long double *x) {
  long double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += x[i];
  return sum / (long double)n;
}

/* The mean square of x - from. */
static long double square(int64_t n, const long double *x, long double from) {
  long double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (x[i] - from) * (x[i] - from);
  return sum / (long double)n;
}

#define ROW(name, row_value, value)                                                                                    \
  static void true_##name(int64_t n, const long double *x, const long double *others, int64_t n_y, long double *y) {   \
    const long double eps = 1e-5L, center = mean(n, x), whole = (row_value);                                           \
    (void)others, (void)eps, (void)center;                                                                             \
    for (int64_t i = 0; i < n_y; i++) y[i] = (value);                                                                  \
  }
ROW(softmax, log_sum(n, x), expl(x[i] - whole))
ROW(log_softmax, log_sum(n, x), x[i] - whole)
ROW(logsumexp, log_sum(n, x), whole)
ROW(var, square(n, x, center), whole)
ROW(std, sqrtl(square(n, x, center)), whole)
ROW(layer_norm, 1 / sqrtl(square(n, x, center) + eps), (x[i] - center) * whole)
ROW(rms_norm, 1 / sqrtl(square(n, x, 0) + eps), x[i] * whole)

/* ---- the table ----------------------------------------------------------------------------------------- */

const quern_dtype accuracy_dtypes[ACCURACY_DTYPES] = {QUERN_DTYPE_F32, QUERN_DTYPE_BF16, QUERN_DTYPE_F16,
                                                      QUERN_DTYPE_F64};

const struct accuracy accuracies[] = {
#define ACCURACY(name, keys, inputs, measure, lo, hi, ...)                                                             \
  {#name, keys, inputs, measure, true_##name, lo, hi, {__VA_ARGS__}},
#include "driver/accuracy.def"
#undef ACCURACY
};
const size_t accuracy_count = BASE_COUNT(accuracies);
