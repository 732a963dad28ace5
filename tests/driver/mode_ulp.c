/* driver/mode_ulp.c -- errors of elementwise functions against long double, in units in the last place
** Every function runs on a dense sample of its domain in f32 and f64; the largest error must stay within its
** bound. Then exact GELU against the tanh form: the exact one must be nearer to the truth by the factor that
** says it is not an approximation.
*/
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

enum { SAMPLES = 100000 };

/* ---- what the functions are ---------------------------------------------------------------------------- */

static long double true_sigmoid(long double x) { return 1 / (1 + expl(-x)); }
static long double true_softplus(long double x) { return x > 0 ? x + log1pl(expl(-x)) : log1pl(expl(x)); }
static long double true_silu(long double x) { return x * true_sigmoid(x); }
static long double true_mish(long double x) { return x * tanhl(true_softplus(x)); }
static long double true_gelu(long double x) { return x * erfcl(-x * sqrtl(0.5L)) / 2; }
static long double true_gelu_tanh(long double x) {
  const long double pi = 3.14159265358979323846264338327950288L;
  return x * true_sigmoid(2 * sqrtl(2 / pi) * (x + 0.044715L * x * x * x));
}

/* How error is counted: in ulp of the true result, or in ulp of x, for products of x whose other factor
** cancels. */
enum measure { OF_RESULT, OF_X };

struct function {
  const char *name;
  long double (*one)(long double);
  long double (*two)(long double, long double);
  double lo, hi; /* the domain, sampled evenly and by powers of two within it */
  double bound;  /* in ulp */
  enum measure measure;
};

static long double true_div(long double a, long double b) { return a / b; }

static const struct function functions[] = {
    {"exp", expl, NULL, -80, 80, 2, OF_RESULT},
    {"expm1", expm1l, NULL, -80, 80, 2, OF_RESULT},
    {"log", logl, NULL, 1e-30, 1e30, 2, OF_RESULT},
    {"log1p", log1pl, NULL, -0.999, 1e30, 2, OF_RESULT},
    {"sqrt", sqrtl, NULL, 0, 1e30, 0.5, OF_RESULT},
    {"sin", sinl, NULL, -1000, 1000, 2, OF_RESULT},
    {"cos", cosl, NULL, -1000, 1000, 2, OF_RESULT},
    {"tanh", tanhl, NULL, -20, 20, 2, OF_RESULT},
    {"erf", erfl, NULL, -6, 6, 2, OF_RESULT},
    {"pow", NULL, powl, 0.01, 30, 2, OF_RESULT},
    {"div", NULL, true_div, 0.001, 1000, 0.5, OF_RESULT},
    {"sigmoid", true_sigmoid, NULL, -30, 30, 4, OF_RESULT},
    {"softplus", true_softplus, NULL, -30, 30, 4, OF_RESULT},
    {"silu", true_silu, NULL, -30, 30, 6, OF_RESULT},
    {"mish", true_mish, NULL, -30, 30, 8, OF_RESULT},
    {"gelu", true_gelu, NULL, -12, 12, 4, OF_X},
    {"gelu_tanh", true_gelu_tanh, NULL, -12, 12, 4, OF_X},
};

/* ---- sampling ------------------------------------------------------------------------------------------ */

/* Half of the samples evenly over the domain, half by magnitude, of both signs where the domain has them. */
static double sample(const struct function *f, uint32_t stream, int64_t i) {
  uint32_t word = base_random_bits(7, stream, 0, (uint64_t)i);
  double u = (double)word * 0x1p-32;
  if (i % 2 == 0) return f->lo + (f->hi - f->lo) * u;
  double least = f->lo > 0 ? log2(f->lo) : -40, most = log2(f->hi), x = exp2(least + (most - least) * u);
  if (f->lo >= 0 || (word & 1) == 0) return x;
  return x < -f->lo ? -x : f->lo * u;
}

/* The distance between neighbors of a format near x. */
static long double ulp(quern_dtype dtype, long double x) {
  const struct base_dtype_info *d = &base_dtypes[dtype];
  int exponent, least = 2 - (1 << (d->exponent - 1));
  if (x == 0) return ldexpl(1, least - d->mantissa);
  frexpl(x, &exponent);
  return ldexpl(1, BASE_MAX(exponent - 1, least) - d->mantissa);
}

/* y = f(a) or f(a, b) by Quern, for SAMPLES elements of a dtype. */
static quern_status eval(const char *name, quern_dtype dtype, void *a, void *b, void *y) {
  struct test_case c = {.builder = builder_find(name), .dtype = dtype, .text = ""};
  struct args args = {.c = &c, .dtype = dtype, .n = b == NULL ? 1 : 2};
  const int64_t dims[] = {SAMPLES};
  QUERN_TRY(quern_context_new(&args.ctx, NULL));
  args.x[0] = quern_tensor_wrap(args.ctx, dtype, 1, dims, a);
  if (b != NULL) args.x[1] = quern_tensor_wrap(args.ctx, dtype, 1, dims, b);
  c.builder->build(&args);
  quern_status status = quern_context_check(args.ctx);
  if (status == QUERN_STATUS_OK) status = quern_eval_reference(args.ctx, 1, args.y, &y, 0, NULL);
  quern_context_free(args.ctx);
  return status;
}

struct worst {
  double ulps;
  double at_a, at_b;
};

static quern_status measure(const struct function *f, quern_dtype dtype, struct worst *worst) {
  size_t bytes = SAMPLES * quern_dtype_size(dtype);
  void *a = grab(bytes), *b = grab(bytes), *y = grab(bytes);
  for (int64_t i = 0; i < SAMPLES; i++) {
    base_store_float(dtype, a, (size_t)i, sample(f, 0, i));
    base_store_float(dtype, b, (size_t)i,
                     f->two == powl ? sample(&(struct function){.lo = -8, .hi = 8}, 1, i) : sample(f, 1, i));
  }
  quern_status status = eval(f->name, dtype, a, f->two == NULL ? NULL : b, y);
  for (size_t i = 0; i < SAMPLES && status == QUERN_STATUS_OK; i++) {
    double xa = base_load_float(dtype, a, i), xb = base_load_float(dtype, b, i), got = base_load_float(dtype, y, i);
    long double expected = f->two == NULL ? f->one(xa) : f->two(xa, xb);
    double error =
        (double)(fabsl((long double)got - expected) / ulp(dtype, f->measure == OF_X ? (long double)xa : expected));
    if (!(error <= worst->ulps)) *worst = (struct worst){error, xa, xb};
  }
  free(a);
  free(b);
  free(y);
  return status;
}

/* ---- GELU ---------------------------------------------------------------------------------------------- */

static const double gelu_factor = 248;

/* Largest |error| of a form of GELU in f32 against the exact one. */
static quern_status gelu_error(const char *name, double *error) {
  float *x = grab(SAMPLES * sizeof *x), *y = grab(SAMPLES * sizeof *y);
  *error = 0;
  for (int i = 0; i < SAMPLES; i++) x[i] = (float)(-8 + 16.0 * i / SAMPLES);
  quern_status status = eval(name, QUERN_DTYPE_F32, x, NULL, y);
  for (int i = 0; i < SAMPLES && status == QUERN_STATUS_OK; i++) {
    double e = (double)fabsl((long double)y[i] - true_gelu(x[i]));
    if (!(e <= *error)) *error = e;
  }
  free(x);
  free(y);
  return status;
}

void mode_ulp(const struct options *options, const struct case_list *cases, struct tally *tally) {
  double exact = 0, approximate = 0;
  (void)options, (void)cases;
  for (size_t i = 0; i < BASE_COUNT(functions); i++) {
    for (quern_dtype dtype = QUERN_DTYPE_F32; dtype <= QUERN_DTYPE_F64; dtype++) {
      const struct function *f = &functions[i];
      struct worst worst = {0};
      quern_status status = measure(f, dtype, &worst);
      bool ok = status == QUERN_STATUS_OK && worst.ulps <= f->bound + 1e-3;
      printf("%-10s %s %8.3f ulp%s at %.9g", f->name, quern_dtype_name(dtype), worst.ulps,
             f->measure == OF_X ? " of x" : "", worst.at_a);
      if (f->two != NULL) printf(", %.9g", worst.at_b);
      printf(" (bound %g)%s%s\n", f->bound, ok ? "" : " FAIL ", status == QUERN_STATUS_OK ? "" : quern_last_error());
      if (ok)
        tally_pass(tally);
      else
        tally->failed++;
    }
  }
  bool ok = gelu_error("gelu", &exact) == QUERN_STATUS_OK && gelu_error("gelu_tanh", &approximate) == QUERN_STATUS_OK;
  ok = ok && approximate >= gelu_factor * exact;
  printf("gelu       f32 |error| %.3g; of the tanh form %.3g: %.0f times (at least %.0f)%s\n", exact, approximate,
         approximate / exact, gelu_factor, ok ? "" : " FAIL");
  if (ok)
    tally_pass(tally);
  else
    tally->failed++;
}
