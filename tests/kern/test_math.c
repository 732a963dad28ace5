/* tests/kern/test_math.c -- the functions of kern_math against the C library in a wider type: units in the last place
** Every function has a bound, for f32 over a sweep of all exponents, for f64 over random numbers of several ranges,
** for both over special numbers; the result must not depend on the lanes it is computed with.
*/
#include <float.h>
#include <math.h>

#include "kern/math_run.h"

enum { LANES = 16 };

static uint64_t random_state;
static uint64_t random_bits(void) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  uint64_t x = random_state ^ random_state >> 33;
  return x * UINT64_C(0x9e3779b97f4a7c15);
}
static double between(double lo, double hi) { return lo + (hi - lo) * ((double)(random_bits() >> 11) * 0x1p-53); }

/* ---- judging ----------------------------------------------------------------------------------------------- */

struct check {
  const char *name;
  double worst, a, b, got; /* the largest error in units in the last place, and where */
  long double want;
};

/* One unit in the last place of a number in f32 or f64. */
static long double unit(quern_dtype dtype, long double x) {
  int digits = dtype == QUERN_DTYPE_F32 ? 24 : 53, least = dtype == QUERN_DTYPE_F32 ? -149 : -1074, exponent;
  if (x == 0) return ldexpl(1, least);
  frexpl(x, &exponent);
  return ldexpl(1, exponent - digits < least ? least : exponent - digits);
}

static long double largest(quern_dtype dtype) {
  return dtype == QUERN_DTYPE_F32 ? (long double)FLT_MAX : (long double)DBL_MAX;
}

/* Infinities, signs of zeros and NaN must be right, or at the edge of overflow be near the largest number. */
static void check(struct check *j, quern_dtype dtype, double a, double b, double got, long double want) {
  long double error, edge = largest(dtype);
  if (isnan(want) || isnan(got)) {
    error = isnan(want) && isnan(got) ? 0 : (long double)INFINITY;
  } else if (fabsl(want) > edge || isinf(got)) {
    long double clipped = copysignl(fminl(fabsl(want), edge), want), mine = copysignl(fminl(fabsl(got), edge), got);
    error = fabsl(clipped - mine) / unit(dtype, edge);
  } else {
    bool same_sign = !signbit(want) == !signbit(got);
    error = same_sign ? fabsl(got - want) / unit(dtype, want) : (long double)INFINITY;
  }
  if (error > (long double)j->worst) *j = (struct check){j->name, (double)error, a, b, got, want};
}

static void expect_within(const struct check *j, double bound) {
  if (j->worst <= bound) return;
  print_error("%s(%a, %a): got %a, want %La, off by %.3f units, allowed %.2f\n", j->name, j->a, j->b, j->got, j->want,
              j->worst, bound);
  fail();
}

/* ---- the functions ---------------------------------------------------------------------------------------- */

struct function {
  enum ir_op op;
  double (*narrow)(double);         /* the reference of f32 */
  long double (*wide)(long double); /* of f64 */
  double bound32, bound64;
  double lo, hi; /* where f64 is tried, besides all exponents */
};

static const struct function functions[] = {
    {IR_EXP, exp, expl, 1.6, 1.6, -746, 711},  {IR_EXPM1, expm1, expm1l, 1.6, 1.8, -40, 40},
    {IR_LOG, log, logl, 1, 1, 0, 4},           {IR_LOG1P, log1p, log1pl, 1.6, 1.6, -1, 3},
    {IR_SIN, sin, sinl, 1.7, 1, -100, 100},    {IR_COS, cos, cosl, 1.7, 1, -100, 100},
    {IR_TANH, tanh, tanhl, 1.3, 1.9, -22, 22}, {IR_ERF, erf, erfl, 1.5, 1.9, -6, 6},
    {IR_ERFC, erfc, erfcl, 4.5, 6.5, -6, 28},  {IR_SQRT, sqrt, sqrtl, 0.501, 0.501, 0, 100},
};

static void apply32(enum ir_op op, int64_t count, const float *x, float *y) {
  math_run(op, QUERN_DTYPE_F32, 1, (quern_dtype[]){QUERN_DTYPE_F32}, (const void *[]){x}, y, count, LANES);
}
static void apply64(enum ir_op op, int64_t count, const double *x, double *y) {
  math_run(op, QUERN_DTYPE_F64, 1, (quern_dtype[]){QUERN_DTYPE_F64}, (const void *[]){x}, y, count, LANES);
}

/* 2^20 floats: 2048 of each sign and exponent, at places that differ from one to the next. */
static void test_f32(void **state) {
  (void)state;
  const int64_t count = 1 << 20;
  float *x = malloc((size_t)count * sizeof *x), *y = malloc((size_t)count * sizeof *y);
  random_state = 1;
  for (int64_t i = 0; i < count; i++) x[i] = base_bits_float((uint32_t)(i << 12) + (uint32_t)(random_bits() >> 52));
  for (uint32_t i = 0; i < 256; i++) x[i << 12] = base_bits_float(i << 24); /* zeros, powers of two, infinities */
  for (size_t k = 0; k < BASE_COUNT(functions); k++) {
    const struct function *f = &functions[k];
    struct check j = {.name = ir_ops[f->op].name};
    apply32(f->op, count, x, y);
    for (int64_t i = 0; i < count; i++) check(&j, QUERN_DTYPE_F32, x[i], 0, y[i], (long double)f->narrow(x[i]));
    expect_within(&j, f->bound32);
    assert_true(j.worst > 0.4); /* something was compared */
  }
  free(x);
  free(y);
}

/* What is hard for some function: limits, multiples of pi/2, the ends of parts and tables. */
static const double hard[] = {0,
                              -0.0,
                              1,
                              -1,
                              INFINITY,
                              -INFINITY,
                              NAN,
                              0x1p-1074,
                              -0x1p-1074,
                              0x1p-1022,
                              DBL_MAX,
                              -DBL_MAX,
                              709.782712893384,
                              709.78271289338409,
                              -745.13321910194122,
                              -708.39641853226408,
                              -744.5,
                              1.5,
                              22,
                              19.06,
                              0x1p26,
                              0x1p22,
                              0x1p52,
                              1e22,
                              0x1.6ac5b262ca1ffp849,
                              1.5707963267948966,
                              3.1415926535897931,
                              6.2831853071795862,
                              0.78539816339744828,
                              5.9,
                              5.905,
                              0.19,
                              0.34657359027997264,
                              1 + 0x1p-52,
                              1 - 0x1p-53,
                              -1 + 0x1p-53,
                              0.70710678118654752,
                              1e-300};

#if LDBL_MANT_DIG > 60
static void test_f64(void **state) {
  (void)state;
  const int64_t count = 1 << 16;
  double *x = malloc((size_t)count * sizeof *x), *y = malloc((size_t)count * sizeof *y);
  random_state = 2;
  for (size_t k = 0; k < BASE_COUNT(functions); k++) {
    const struct function *f = &functions[k];
    struct check j = {.name = ir_ops[f->op].name};
    for (int64_t i = 0; i < count; i++) {
      uint64_t bits = random_bits();
      if (i % 4 == 0) memcpy(&x[i], &bits, sizeof bits);
      if (i % 4 == 1) x[i] = between(f->lo, f->hi);
      if (i % 4 == 2) x[i] = between(-1, 1);
      if (i % 4 == 3) x[i] = exp(between(-40, 700));
    }
    memcpy(x, hard, sizeof hard);
    apply64(f->op, count, x, y);
    for (int64_t i = 0; i < count; i++) check(&j, QUERN_DTYPE_F64, x[i], 0, y[i], f->wide((long double)x[i]));
    expect_within(&j, f->bound64);
    assert_true(j.worst > 0.4);
  }
  free(x);
  free(y);
}
#endif

/* ---- two sources ------------------------------------------------------------------------------------------ */

/* As the evaluator has it. */
static double mod(double a, double b) {
  double rest = fmod(a, b);
  if (rest == 0) return copysign(0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

enum { PAIRS = 1 << 17 };

/* Pairs of special numbers, of any bits, and of ranges where powers are neither 0 nor infinite. */
static void fill_pairs(quern_dtype dtype, void *a, void *b) {
  static const double special[] = {0,           -0.0,        1,       -1,       0.5,      -0.5,      2,
                                   -2,          3,           -3,      1.5,      -1.5,     7.5,       1e10,
                                   1e-9,        -1e9,        1e37,    1e-40,    INFINITY, -INFINITY, NAN,
                                   FLT_MAX,     -FLT_MAX,    FLT_MIN, 33554431, 33554432, -33554433, 9007199254740991,
                                   1 + 0x1p-23, 1 - 0x1p-24, 1e-45};
  for (size_t i = 0; i < PAIRS; i++) {
    double x = between(0, 4), y = between(-30, 30);
    if (i < BASE_COUNT(special) * BASE_COUNT(special)) {
      x = special[i % BASE_COUNT(special)];
      y = special[i / BASE_COUNT(special)];
    } else if (i % 4 == 1) {
      x = between(0.99, 1.01);
      y = between(-8000, 8000);
    } else if (i % 4 == 2) {
      x = special[random_bits() % BASE_COUNT(special)] + between(-1, 1);
      y = between(-3, 3);
    }
    base_store_float(dtype, a, i, x);
    base_store_float(dtype, b, i, y);
    if (i % 4 != 3) continue;
    uint64_t bits[2] = {random_bits(), random_bits()};
    memcpy((char *)a + i * base_dtypes[dtype].size, &bits[0], base_dtypes[dtype].size);
    memcpy((char *)b + i * base_dtypes[dtype].size, &bits[1], base_dtypes[dtype].size);
  }
}

static void pairs(enum ir_op op, quern_dtype dtype, double bound, double (*narrow)(double, double),
                  long double (*wide)(long double, long double)) {
  void *a = malloc(PAIRS * sizeof(double)), *b = malloc(PAIRS * sizeof(double)), *y = malloc(PAIRS * sizeof(double));
  random_state = 3;
  fill_pairs(dtype, a, b);
  math_run(op, dtype, 2, (quern_dtype[]){dtype, dtype}, (const void *[]){a, b}, y, PAIRS, LANES);
  struct check j = {.name = ir_ops[op].name};
  for (size_t i = 0; i < PAIRS; i++) {
    double u = base_load_float(dtype, a, i), v = base_load_float(dtype, b, i);
    long double want = wide != NULL ? wide((long double)u, (long double)v) : (long double)narrow(u, v);
    if (op == IR_MOD && dtype == QUERN_DTYPE_F32) want = (long double)(float)want;
    check(&j, dtype, u, v, base_load_float(dtype, y, i), want);
  }
  expect_within(&j, bound);
  free(a);
  free(b);
  free(y);
}

static void test_pairs_f32(void **state) {
  (void)state;
  pairs(IR_POW, QUERN_DTYPE_F32, 0.51, pow, NULL);
  pairs(IR_ATAN2, QUERN_DTYPE_F32, 0.51, atan2, NULL);
  pairs(IR_MOD, QUERN_DTYPE_F32, 0, mod, NULL);
}

static void test_pairs_f64(void **state) {
  (void)state;
#if LDBL_MANT_DIG > 60
  pairs(IR_POW, QUERN_DTYPE_F64, 2, NULL, powl);
  pairs(IR_ATAN2, QUERN_DTYPE_F64, 2, NULL, atan2l);
#endif
  pairs(IR_MOD, QUERN_DTYPE_F64, 0, mod, NULL);
}

/* ---- what follows from them ------------------------------------------------------------------------------- */

/* x erfc(-x sqrt 1/2) / 2, every step rounded to f32: within 2^-21 |x|, and where it is near 0 within 2^-17 of itself. */
static void test_gelu(void **state) {
  (void)state;
  const int64_t count = 1 << 16;
  float *x = malloc((size_t)count * sizeof *x), *z = malloc((size_t)count * sizeof *z),
        *y = malloc((size_t)count * sizeof *y);
  for (int64_t i = 0; i < count; i++) {
    x[i] = (float)(i - count / 2) * 0x1p-12f; /* -8 .. 8 */
    z[i] = x[i] * -0.70710678118654752f;
  }
  apply32(IR_ERFC, count, z, y);
  for (int64_t i = 0; i < count; i++) {
    float gelu = x[i] * (0.5f * y[i]);
    double want = (double)x[i] * 0.5 * erfc(-(double)x[i] * 0.70710678118654752);
    assert_true(fabs((double)gelu - want) <= 0x1p-21 * fabs((double)x[i]));
    assert_true(fabs((double)gelu - want) <= 0x1p-17 * fabs(want));
    if (x[i] >= 5.6f) assert_true(gelu == x[i]);
  }
  free(x);
  free(z);
  free(y);
}

/* A lane's value is its own: far lanes beside near ones, long divisions beside short ones. */
static void test_lanes(void **state) {
  (void)state;
  enum { COUNT = 1 << 10 };
  static const enum ir_op ops[] = {IR_EXP,  IR_EXPM1, IR_LOG,  IR_LOG1P, IR_SIN,   IR_COS,
                                   IR_TANH, IR_ERF,   IR_ERFC, IR_POW,   IR_ATAN2, IR_MOD};
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F64};
  uint64_t a[COUNT], b[COUNT], y[2][COUNT];
  random_state = 4;
  for (size_t i = 0; i < COUNT; i++) {
    double u = i % 5 == 0 ? exp(between(-80, 80)) : between(-9, 9), v = between(-40, 40);
    memcpy(&a[i], &u, sizeof u);
    memcpy(&b[i], &v, sizeof v);
  }
  for (size_t d = 0; d < 2; d++) {
    for (size_t k = 0; k < BASE_COUNT(ops); k++) {
      memset(y, 0, sizeof y);
      quern_dtype src[] = {dtypes[d], dtypes[d]};
      for (int lanes = 1; lanes <= KERN_MAX_LANES; lanes *= 2) {
        math_run(ops[k], dtypes[d], ir_ops[ops[k]].n_src, src, (const void *[]){a, b}, y[lanes > 1], COUNT, lanes);
        for (size_t i = 0; lanes > 1 && i < COUNT; i++) {
          if (isnan(base_load_float(dtypes[d], y[0], i))) continue;
          assert_memory_equal((char *)y[0] + i * base_dtypes[dtypes[d]].size,
                              (char *)y[1] + i * base_dtypes[dtypes[d]].size, base_dtypes[dtypes[d]].size);
        }
      }
    }
  }
}

/* A failed allocation is remembered; what is built after it does no harm. */
static void test_fault(void **state) {
  (void)state;
  static const enum ir_op ops[] = {IR_SIN, IR_POW, IR_MOD, IR_ERF, IR_TANH};
  for (size_t k = 0; k < BASE_COUNT(ops); k++) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      struct kern *kern = NULL;
      quern_dtype src[] = {QUERN_DTYPE_F64, QUERN_DTYPE_F64};
      fault_begin(&fault);
      quern_status status = math_kernel(&kern, ops[k], QUERN_DTYPE_F64, ir_ops[ops[k]].n_src, src, 64, 8);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      kern_free(kern);
    }
    assert_true(fault.n > 5);
  }
}

/* kern_exp_below of numbers of all sizes, none above 0. */
static void test_exp_below(void **state) {
  (void)state;
  enum { N = 1 << 16 };
  static float x[N], y[N];
  struct kern *kern;
  struct check near = {.name = "exp_below"}, far = {.name = "exp_below"};
  for (uint32_t i = 0; i < N; i++) {
    uint32_t bits = UINT32_C(0x80000000) | i << 15 | (uint32_t)(random_bits() & 0x7fff); /* all exponents, NaN too */
    memcpy(&x[i], &bits, sizeof bits);
    if (i % 4 == 1) x[i] = (float)between(i % 8 == 1 ? -20 : -90, 0);
  }
  x[0] = 0;
  x[1] = -INFINITY;
  EXPECT_OK(kern_new(&kern, &ctx->heap));
  for (int i = 0; i < 2; i++) kern_add_mem(kern, QUERN_DTYPE_F32, i == 0 ? KERN_IN : KERN_OUT, N);
  struct kern_builder b = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(1))};
  kern_id at = kern_range(&b, 0, N, LANES), in = kern_mem(&b, 0), out = kern_mem(&b, 1);
  kern_store(&b, out, at, kern_exp_below(&b, kern_load(&b, in, at, LANES)));
  kern_end(&b);
  EXPECT_OK(kern_finish(kern, "exp", NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  EXPECT_OK(kern_interp(kern, &(struct kern_launch){.mems = (void *[]){x, y}}, 0));
  kern_free(kern);
  for (int i = 0; i < N; i++) {
    if (x[i] > -87 || isnan(x[i]))
      check(x[i] < -20 ? &far : &near, QUERN_DTYPE_F32, x[i], 0, y[i], expl(x[i]));
    else
      assert_true(y[i] >= 0 && y[i] <= 2 * FLT_MIN && (x[i] > -88 || y[i] == 0));
  }
  assert_true(y[0] == 1);
  expect_within(&near, 2);
  expect_within(&far, 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    TEST(test_f32),
#if LDBL_MANT_DIG > 60
    TEST(test_f64),
#endif
    TEST(test_pairs_f32),
    TEST(test_pairs_f64),
    TEST(test_gelu),
    TEST(test_lanes),
    TEST(test_exp_below),
    TEST(test_fault),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
