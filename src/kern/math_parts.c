/* kern/math_parts.c -- pieces that the functions of f32 and of f64 share
** Coefficients are minimax fits by Remez' exchange in 200 bits, rounded to the dtype from the lowest power on, the
** others fitted again after each; comments give degree, interval and largest error.
** tests: tests/kern/test_math.c
*/
#include "kern/math_int.h"

#include <math.h>

kern_id math_poly(const struct math *m, kern_id x, size_t n, const double *c) {
  kern_id p = num(m, c[0]);
  for (size_t i = 1; i < n; i++) p = mad(m, p, x, num(m, c[i]));
  return p;
}

kern_id math_sign_bit(const struct math *m, kern_id x) {
  int64_t sign = m->dtype == QUERN_DTYPE_F64 ? INT64_MIN : INT32_MIN;
  return both_n(m, to_bits(m, x), sign);
}

kern_id math_with_sign(const struct math *m, kern_id y, kern_id x) {
  kern_id bits = to_bits(m, y);
  return from_bits(m, either(m, bits, math_sign_bit(m, x)));
}

/* ---- sums and products without loss: Dekker 1971, Knuth --------------------------------------------------- */

struct math_pair math_two_sum(const struct math *m, kern_id x, kern_id y) {
  kern_id s = add(m, x, y), d = sub(m, s, x), lost = sub(m, x, sub(m, s, d));
  return (struct math_pair){s, add(m, lost, sub(m, y, d))};
}

struct math_pair math_fast_two_sum(const struct math *m, kern_id x, kern_id y) {
  kern_id s = add(m, x, y);
  return (struct math_pair){s, sub(m, y, sub(m, s, x))};
}

struct math_pair math_two_product(const struct math *m, kern_id x, kern_id y) {
  kern_id p = mul(m, x, y);
  return (struct math_pair){p, mad(m, x, y, neg(m, p))};
}

kern_id math_greatest_lane(struct kern_builder *b, kern_id x) {
  for (int lanes = math_type(b, x).lanes; lanes > 1; lanes /= 2) {
    kern_id low = kern_low(b, x);
    x = kern_max(b, low, kern_high(b, x));
  }
  return x;
}

/* ---- e^x -------------------------------------------------------------------------------------------------- */

/* x = 2 h ln 2 + r, h a whole number. Steps of 2 ln 2 make s = 2^h a normal number whatever e^x is, so that s^2 e^r
** rounds once where the result is subnormal, and overflows by itself. t = h + bias + 1.5 2^p has the biased h in its
** low bits, which are s once they are shifted to the exponent. h times the upper part of 2 ln 2 is exact. e^r = 1 + r
** + r^2 Q(r), |r| <= ln 2. Of f32, for expm1: Q of degree 6, relative error of e^r - 1 2^-28.2. Of f64: degree 11,
** 2^-55.7. */
struct exp_constants {
  double least, greatest; /* e^x is 0 below, infinite above */
  double half_log2e, shift, step_hi, step_lo;
  int mantissa, bias;
  size_t n;
  const double *q;
};

static const double expm1_q32[] = {0x1.a1d92p-16, 0x1.a58ce6p-13, 0x1.6c19c4p-10, 0x1.110adep-7,
                                   0x1.55554ep-5, 0x1.55555ep-3,  0x1p-1};
static const double exp_q64[] = {0x1.5f6be53952215p-33, 0x1.2187cdb15a7acp-29, 0x1.ae6ea23bdbfdbp-26,
                                 0x1.27e1a7c8c56f6p-22, 0x1.71de2c5f3b894p-19, 0x1.a01a05c2b24d5p-16,
                                 0x1.a01a01b05a2a7p-13, 0x1.6c16c1698a17cp-10, 0x1.1111111108b86p-7,
                                 0x1.5555555556ba9p-5,  0x1.55555555555b4p-3,  0x1.ffffffffffff1p-2};
static const struct exp_constants exp32 = {.least = -104,
                                           .greatest = 89,
                                           .half_log2e = 0x1.715476p-1,
                                           .shift = 0x1.8p23 + 127,
                                           .step_hi = 0x1.62e4p0,
                                           .step_lo = 0x1.7f7d1cp-19,
                                           .mantissa = 23,
                                           .bias = 127,
                                           .n = BASE_COUNT(expm1_q32),
                                           .q = expm1_q32};
static const struct exp_constants exp64 = {.least = -746,
                                           .greatest = 710,
                                           .half_log2e = 0x1.71547652b82fep-1,
                                           .shift = 0x1.8p52 + 1023,
                                           .step_hi = 0x1.62e42fefa38p0,
                                           .step_lo = 0x1.ef35793c7673p-44,
                                           .mantissa = 52,
                                           .bias = 1023,
                                           .n = BASE_COUNT(exp_q64),
                                           .q = exp_q64};

static const struct exp_constants *exp_of(const struct math *m) {
  return m->dtype == QUERN_DTYPE_F64 ? &exp64 : &exp32;
}

struct math_exp math_exp_parts(const struct math *m, kern_id x) {
  const struct exp_constants *c = exp_of(m);
  x = at_most(m, at_least(m, x, c->least), c->greatest);
  kern_id shift = num(m, c->shift), t = mad_n(m, x, c->half_log2e, shift), h = sub(m, t, shift);
  kern_id r = mad_n(m, h, -c->step_lo, mad_n(m, h, -c->step_hi, x)), q = math_poly(m, r, c->n, c->q);
  return (struct math_exp){q, r, from_bits(m, shl(m, to_bits(m, t), c->mantissa))};
}

kern_id math_exp_power(const struct math *m, struct math_exp e) {
  kern_id one = num(m, 1);
  return mad(m, mad(m, e.q, e.r, one), e.r, one);
}

/* Of f32: x = n ln 2 + r, e^r = 1 + r + r^2 Q(r), Q of degree 4, |r| <= ln 2 / 2, relative error 2^-28.2. */
static kern_id power_f32(const struct math *m, kern_id r) {
  static const double q[] = {0x1.6ab89ep-10, 0x1.123d7p-7, 0x1.55585ap-5, 0x1.55548cp-3, 0x1.fffffcp-2};
  return math_exp_power(m, (struct math_exp){.q = MATH_POLY(m, r, q), .r = r});
}

/* Of f32, x in [-104, 89]; shift is 1.5 2^23. */
static kern_id exp_within(const struct math *m, kern_id shift, kern_id x) {
  kern_id n = sub(m, mad_n(m, x, 0x1.715476p0, shift), shift);
  kern_id r = mad_n(m, n, -0x1.7f7d1cp-20, mad_n(m, n, -0x1.62e4p-1, x));
  return kern_bin(m->b, KERN_SCALE, power_f32(m, r), n);
}

kern_id math_exp(const struct math *m, kern_id x) {
  if (m->dtype == QUERN_DTYPE_F64) {
    struct math_exp e = math_exp_parts(m, x);
    return mul(m, mul(m, math_exp_power(m, e), e.s), e.s);
  }
  kern_id shift = num(m, 0x1.8p23);
  return exp_within(m, shift, at_most(m, at_least(m, x, exp32.least), exp32.greatest));
}

/* n ln 2 is rounded once: ln 2 is so near a float that this is 2^-29 n off. The low bits of t are n, from which 2^n is
** made: 0 where n is -127, and that is the least. */
kern_id kern_exp_below(struct kern_builder *b, kern_id x) {
  const struct math all = math_of(b, QUERN_DTYPE_F32, x), *m = &all;
  kern_id shift = num(m, 0x1.8p23);
  x = at_least(m, x, -88);
  kern_id t = mad_n(m, x, 0x1.715476p0, shift), r = mad_n(m, sub(m, t, shift), -0x1.62e43p-1, x);
  kern_id bits = shl(m, to_bits(m, t), exp32.mantissa);
  bits = add(m, bits, whole(m, (int64_t)exp32.bias << exp32.mantissa));
  kern_id power = power_f32(m, r);
  return mul(m, power, from_bits(m, bits));
}

/* (p s + (s - 1/s)) s with p = e^r - 1: nothing cancels, since for s = 1 the middle is 0, and else p s is the smaller
** part. */
kern_id math_expm1(const struct math *m, kern_id x) {
  const struct exp_constants *c = exp_of(m);
  struct math_exp e = math_exp_parts(m, x);
  kern_id one = whole(m, (int64_t)(2 * c->bias) << c->mantissa); /* times one, as bits */
  kern_id inverse = from_bits(m, sub(m, one, to_bits(m, e.s)));
  kern_id p = mad(m, mul(m, e.r, e.r), e.q, e.r);
  kern_id y = mul(m, mad(m, p, e.s, sub(m, e.s, inverse)), e.s);
  return math_with_sign(m, y, x); /* of -0 */
}

/* What e^(a^2) is more than that of the rounded square, 1 + lo, counts: the square is up to 746. */
kern_id math_erfc(const struct math *m, kern_id x, kern_id a, kern_id scaled) {
  struct math_pair square = math_two_product(m, a, a);
  kern_id rest = mad(m, neg(m, square.lo), scaled, scaled);
  kern_id power = neg(m, square.hi), two = num(m, 2), shift = num(m, 0x1.8p23);
  power = m->dtype == QUERN_DTYPE_F64 ? math_exp(m, power) : exp_within(m, shift, power);
  kern_id y = mul(m, rest, power);
  kern_id left = sub(m, two, y);
  return sel(m, lt_n(m, x, 0), left, y);
}

/* ---- ln x ------------------------------------------------------------------------------------------------- */

/* A whole number below 2^51 as a float: of f64 without a conversion, which many CPUs do not have for vectors. */
static kern_id whole_to_float(const struct math *m, kern_id x) {
  if (m->dtype == QUERN_DTYPE_F32) return kern_cast(m->b, x, QUERN_DTYPE_F32);
  kern_id shift = num(m, 0x1.8p52);
  return sub(m, from_bits(m, add(m, x, to_bits(m, shift))), shift);
}

/* The bits of x less those of sqrt 1/2 have k as exponent. */
struct math_log math_log_parts(const struct math *m, kern_id x) {
  bool wide = m->dtype == QUERN_DTYPE_F64;
  int mantissa = wide ? 52 : 23;
  kern_id bits = to_bits(m, x), root = whole(m, wide ? 0x3fe6a09e667f3bcd : 0x3f3504f3);
  kern_id k = shr(m, sub(m, bits, root), mantissa);
  kern_id f = sub_n(m, from_bits(m, sub(m, bits, shl(m, k, mantissa))), 1);
  return (struct math_log){f, whole_to_float(m, k), k};
}

/* Infinity and NaN stay; -infinity at the pole, NaN below. */
kern_id math_log_ends(const struct math *m, kern_id y, kern_id x, double pole) {
  double inf = (double)INFINITY;
  y = sel(m, lt(m, x, num(m, inf)), y, x);
  kern_id end = num(m, pole), below = num(m, (double)NAN);
  below = sel_n(m, eq(m, x, end), -inf, below);
  return sel(m, lt(m, end, x), y, below);
}

/* ---- by a table ------------------------------------------------------------------------------------------- */

kern_id math_lookup(const struct math *m, kern_id i, const double at[16]) {
  uint64_t bits[16] = {0};
  for (size_t k = 0; k < 16; k++) {
    uint64_t element = 0;
    base_store_float(m->dtype, &element, 0, at[k]);
    bits[k] = element;
  }
  return kern_table(m->b, i, m->dtype, bits);
}

kern_id math_by_table(const struct math *m, kern_id x, const struct math_table *t) {
  kern_id a = at_most(m, absolute(m, x), t->top), shift = num(m, m->dtype == QUERN_DTYPE_F64 ? 0x1.8p52 : 0x1.8p23);
  kern_id w = mad_n(m, a, t->scale, shift), i = kern_cast(m->b, to_bits(m, w), QUERN_DTYPE_I32);
  i = kern_bin(m->b, KERN_AND, i, kern_const_i(m->b, QUERN_DTYPE_I32, m->lanes, 15));
  kern_id r = mad_n(m, sub(m, w, shift), -t->step, a), p = KERN_NONE;
  for (int j = t->degree; j > 0; j--) {
    kern_id c = math_lookup(m, i, t->table[j]);
    p = p == KERN_NONE ? c : mad(m, p, r, c);
  }
  /* f(i / scale), but in the first part r: the larger of the two everywhere */
  kern_id start = math_lookup(m, i, t->table[0]);
  return math_with_sign(m, mad(m, p, r, sel(m, lt(m, start, r), r, start)), x);
}

struct math_octave math_octave(const struct math *m, kern_id x) {
  static const double inverse[16] = {0x1.66p0,  0x1.57p0,  0x1.49p0,  0x1.3dp0, 0x1.31p0,  0x1.26p0,
                                     0x1.1cp0,  0x1.12p0,  0x1.09p0,  1,        0x1.e5p-1, 0x1.cap-1,
                                     0x1.b2p-1, 0x1.9cp-1, 0x1.88p-1, 0x1.76p-1};
  kern_id bits = to_bits(m, x), from = sub(m, bits, whole(m, 0x3fe6600000000000));
  kern_id k = shr(m, from, 52), part = both_n(m, shr(m, from, 48), 15);
  struct math_octave o = {.m = from_bits(m, sub(m, bits, shl(m, k, 52)))};
  o.k = whole_to_float(m, k);
  o.part = kern_cast(m->b, part, QUERN_DTYPE_I32);
  o.inverse = math_lookup(m, o.part, inverse);
  return o;
}

/* ---- ends ------------------------------------------------------------------------------------------------- */

/* True where x has its sign bit set, -0 too. */
static kern_id is_minus(const struct math *m, kern_id x) {
  kern_id zero = whole(m, 0);
  return lt(m, to_bits(m, x), zero);
}

kern_id math_slope(const struct math *m, kern_id y, kern_id x) {
  kern_id a = absolute(m, y), b = absolute(m, x), steep = lt(m, b, a);
  kern_id less = sel(m, steep, b, a), more = sel(m, steep, a, b), zero = num(m, 0), one = num(m, 1);
  kern_id equal = sel(m, eq(m, more, zero), zero, one); /* also of two zeros, of two infinities */
  kern_id same = eq(m, less, more);
  return sel(m, same, equal, over(m, less, more));
}

kern_id math_turn(const struct math *m, kern_id angle, kern_id y, kern_id x) {
  const double quarter_hi = 0x1.921fb54442d18p0, quarter_lo = 0x1.1a62633145c07p-54;
  kern_id width = absolute(m, x), steep = lt(m, width, absolute(m, y));
  kern_id quarter = num(m, quarter_hi), up = sub(m, quarter, sub_n(m, angle, quarter_lo));
  angle = sel(m, steep, up, angle);
  kern_id half = num(m, 2 * quarter_hi), left = sub(m, half, sub_n(m, angle, 2 * quarter_lo));
  return math_with_sign(m, sel(m, is_minus(m, x), left, angle), y);
}

/* As in C, annex F: 1 to any power and any number to the power 0 are 1, NaN too; a negative finite number has whole
** powers only; odd powers of negative numbers are negative. */
kern_id math_pow_ends(const struct math *m, kern_id y, kern_id a, kern_id b) {
  double inf = (double)INFINITY;
  kern_id half = mul(m, b, num(m, 0.5)), whole_power = eq(m, kern_un(m->b, KERN_TRUNC, b), b);
  kern_id odd = both(m, whole_power, not(m, eq(m, kern_un(m->b, KERN_TRUNC, half), half)));
  kern_id minus = neg(m, y);
  y = sel(m, both(m, odd, is_minus(m, a)), minus, y);
  kern_id below = lt_n(m, a, 0), finite_minus = both(m, below, lt(m, num(m, -inf), a));
  y = sel_n(m, both(m, finite_minus, not(m, whole_power)), (double)NAN, y);
  kern_id one = num(m, 1), of_one = eq(m, a, one);
  return sel(m, either(m, of_one, eq(m, b, num(m, 0))), one, y);
}

/* A multiple of b gives a zero with b's sign; where a and b have unlike signs, b is added. */
kern_id math_mod_ends(const struct math *m, kern_id rest, kern_id by, kern_id a, kern_id b) {
  kern_id size = absolute(m, a), zero = num(m, 0);
  kern_id below = lt(m, rest, zero);
  rest = sel(m, below, add(m, rest, by), rest);
  kern_id above = kern_bin(m->b, KERN_LE, by, rest);
  rest = sel(m, above, sub(m, rest, by), rest);
  rest = sel(m, lt(m, size, by), size, rest); /* by an infinity too */
  kern_id like_a = math_with_sign(m, rest, a), a_minus = is_minus(m, a);
  kern_id unlike = kern_bin(m->b, KERN_XOR, a_minus, is_minus(m, b));
  kern_id y = sel(m, unlike, add(m, like_a, b), like_a), multiple = eq(m, rest, zero);
  return sel(m, multiple, math_with_sign(m, zero, b), y);
}
