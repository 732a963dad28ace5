/* kern/math_approx.c -- GELU and its derivative as f32 that are rounded to bf16 or f16: as many terms as that needs
** With a = |x|, GELU is max(x, 0) - a 2^E(a), E = log2 of the share of the other side; its derivative is W(a) 2^E(a) where x < 0, and 1
** less that elsewhere. Nothing cancels, so small results are right as well. E and W are polynomials; W has the derivative's zero.
** Where a is `end`, 2^E is 0, and so it is beyond. Coefficients are minimax fits in f64, rounded. Largest relative errors: of the four forms below
** 2^-17.6, 2^-14.2, 2^-16.7 and 2^-15.8 where results are normal numbers of f16, and 2^-12.4 down to 2^-25; of 2^r as below.
** see:   approx_match.c (where they are used)      tests: tests/sched/test_approx.c: all bf16 and f16 against the C library
*/
#include "kern/math_int.h"

#include <math.h>

struct form {
  double (*exact)(double x);
  double end;
  int zero; /* E(0), whole */
  size_t n_e, n_w;
  const double *e, *w; /* E(a) = zero + a e(a); without w it is the function, else its derivative */
};

/* ---- what they are ---------------------------------------------------------------------------------------- */

static const double root_half = 0.70710678118654752, peak = 0.39894228040143268; /* 1 / sqrt(2 pi) */
static const double steep = 1.5957691216057308, cubic = 0.044715;                /* sqrt(8 / pi) */

static double gelu(double x) { return 0.5 * x * erfc(-x * root_half); }
static double gelu_slope(double x) { return 0.5 * erfc(-x * root_half) + x * exp(-0.5 * x * x) * peak; }
static double tanh_share(double x) { return 1 / (1 + exp(-steep * (x + cubic * x * x * x))); }
static double gelu_tanh(double x) { return x * tanh_share(x); }
static double gelu_tanh_slope(double x) {
  double share = tanh_share(x), rest = tanh_share(-x), bend = share * rest;
  return share + (bend > 0 ? x * bend * steep * (1 + 3 * cubic * x * x) : 0);
}

/* ---- forms ------------------------------------------------------------------------------------------------ */

static const double gelu_e[] = {-0x1.cbd1a4p-20, 0x1.efd2p-15,   -0x1.dd65aap-11, 0x1.142ee4p-7,
                                -0x1.b8b2ap-5,   -0x1.d5a2f4p-2, -0x1.26b418p0};
static const double gelu_tanh_e[] = {-0x1.d639dp-18, 0x1.597c62p-14, 0x1.031a1ap-13, -0x1.6754dp-8,
                                     0x1.65ecap-6,   -0x1.16609p-4,  -0x1.cd8fdap-2, -0x1.270c96p0};
static const double gelu_slope_e[] = {-0x1.5c28f6p-1, -1};
static const double gelu_slope_w[] = {0x1.90a5cap-17, 0x1.2780f6p-13, -0x1.6fa0ap-9,  -0x1.abae1cp-8,
                                      -0x1.bc3d72p-4, -0x1.95d8b6p-3, -0x1.cdfcc6p-2, 0x1.fffec6p-2};
static const double gelu_tanh_slope_e[] = {-0x1.425aeep-4, -0x1.a64c3p-2, -0x1.feeccp-1};
static const double gelu_tanh_slope_w[] = {-0x1.5f081ep-13, 0x1.ef0fd6p-11, -0x1.abde52p-10,
                                           -0x1.f1462ap-7,  0x1.be44bp-6,   -0x1.37dfbep-8,
                                           -0x1.25d636p-2,  -0x1.cf3c4cp-2, 0x1.00012p-1};

#define FORM(NAME, END, ZERO, N_W, W)                                                                                  \
  { NAME, END, ZERO, BASE_COUNT(NAME##_e), N_W, NAME##_e, W }
static const struct form forms[KERN_APPROX_COUNT] = {
    [KERN_GELU] = FORM(gelu, 0x1.99fp3, -1, 0, NULL),
    [KERN_GELU_TANH] = FORM(gelu_tanh, 0x1.23bp3, -1, 0, NULL),
    [KERN_GELU_SLOPE] = FORM(gelu_slope, 0x1.9e7p3, 0, BASE_COUNT(gelu_slope_w), gelu_slope_w),
    [KERN_GELU_TANH_SLOPE] = FORM(gelu_tanh_slope, 0x1.3d3p3, 0, BASE_COUNT(gelu_tanh_slope_w), gelu_tanh_slope_w),
};

double kern_approx_exact(enum kern_approx f, double x) { return forms[f].exact(x); }

/* 2^r of |r| <= 1/2: relative error 2^-13.7 for bf16, 2^-18.6 for f16. */
static kern_id power_of_2(const struct math *m, quern_dtype dtype, kern_id r) {
  static const double of_bf16[] = {0x1.c3f76p-5, 0x1.f0de1ap-3, 0x1.62f31ap-1, 0x1.fff692p-1};
  static const double of_f16[] = {0x1.3997d4p-7, 0x1.ca144p-5, 0x1.ec06dap-3, 0x1.62e0dcp-1, 0x1.ffffe8p-1};
  return dtype == QUERN_DTYPE_BF16 ? MATH_POLY(m, r, of_bf16) : MATH_POLY(m, r, of_f16);
}

/* E = n + r: t has the bits of 2^n as its last ones, which are 0 where n is -127. */
kern_id kern_approx(struct kern_builder *b, enum kern_approx f, quern_dtype dtype, kern_id x) {
  const struct math all = math_of(b, QUERN_DTYPE_F32, x), *m = &all;
  const struct form *form = &forms[f];
  kern_id size = absolute(m, at_most(m, x, form->end)), a = at_most(m, size, form->end);
  kern_id e = math_poly(m, a, form->n_e, form->e);
  kern_id up = num(m, 0x1.8p23 + 127 + form->zero), t = mad(m, e, a, up), r = mad(m, e, a, sub(m, up, t));
  kern_id scale = from_bits(m, shl(m, to_bits(m, t), 23)), power = power_of_2(m, dtype, r);
  if (form->n_w == 0) {
    kern_id share = neg(m, mul(m, power, scale));
    return mad(m, share, size, kern_max(b, x, num(m, -0.0))); /* of -inf NaN, as x (1 + erf(x)) is */
  }
  kern_id below = mul(m, mul(m, power, math_poly(m, a, form->n_w, form->w)), scale);
  kern_id above = sub(m, num(m, 1), below);
  return sel(m, lt_n(m, x, 0), below, above);
}
