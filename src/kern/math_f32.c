/* kern/math_f32.c -- functions of f32 as instructions
** Near where a function is steep or its argument must be reduced, it is computed in f64 and rounded once.
** see:   math_parts.c for how the coefficients were made
** tests: tests/kern/test_math.c: every function within 1.6 units in the last place, pow and atan2 within 0.51
*/
#include "kern/math_int.h"

#include <math.h>

static const double infinity = (double)INFINITY;
static const double shift = 0x1.8p52; /* x + shift has round(x) in its low bits */

static struct math floats(struct kern_builder *b, kern_id x) { return math_of(b, QUERN_DTYPE_F32, x); }
static struct math doubles(struct kern_builder *b, kern_id x) { return math_of(b, QUERN_DTYPE_F64, x); }

/* ---- e^x, ln x -------------------------------------------------------------------------------------------- */

kern_id math_exp_f32(struct kern_builder *b, kern_id x) {
  struct math m = floats(b, x);
  return math_exp(&m, x);
}

kern_id math_expm1_f32(struct kern_builder *b, kern_id x) {
  struct math m = floats(b, x);
  return math_expm1(&m, x);
}

/* k ln 2 + ln(1 + f), ln(1 + f) = f - f^2/2 + f^3 P(f): P of degree 7, 1 + f in [sqrt 1/2, sqrt 2), relative error
** 2^-27.3. */
static kern_id log_of_parts(const struct math *m, kern_id f, kern_id k) {
  static const double p[] = {-0x1.390916p-4, 0x1.05787ep-3,  -0x1.0d82a6p-3, 0x1.22d5a4p-3, -0x1.547212p-3,
                             0x1.99a038p-3,  -0x1.000228p-2, 0x1.555554p-2,  -0.5};
  kern_id series = MATH_POLY(m, f, p), square = mul(m, f, f), k_lo = mul_n(m, k, -0x1.05c61p-29);
  return mad_n(m, k, 0x1.62e43p-1, add(m, f, mad(m, series, square, k_lo)));
}

kern_id math_log_f32(struct kern_builder *b, kern_id x) {
  struct math m = floats(b, x);
  kern_id small = lt(&m, x, num(&m, 0x1p-126));
  struct math_log l = math_log_parts(&m, sel(&m, small, mul(&m, x, num(&m, 0x1p25)), x));
  kern_id k = add(&m, l.k, sel_n(&m, small, -25, num(&m, 0)));
  return math_log_ends(&m, log_of_parts(&m, l.f, k), x, 0);
}

/* With u = 1 + x and c what was lost: u + c = 2^k (1 + f + c / 2^k). */
kern_id math_log1p_f32(struct kern_builder *b, kern_id x) {
  struct math m = floats(b, x);
  struct math_pair u = math_two_sum(&m, num(&m, 1), x);
  struct math_log l = math_log_parts(&m, u.hi);
  kern_id k = kern_min(b, l.k_whole, whole(&m, 126)); /* where x is large, c does not count */
  kern_id one = whole(&m, 127 << 23), scale = from_bits(&m, sub(&m, one, shl(&m, k, 23)));
  kern_id y = math_with_sign(&m, absolute(&m, log_of_parts(&m, mad(&m, u.lo, scale, l.f), l.k)), x);
  return math_log_ends(&m, y, x, -1);
}

/* ---- tanh, erf -------------------------------------------------------------------------------------------- */

/* Degree 7 (odd in the first part), 16 parts of 4/7: relative error 2^-24.1, of which most is the rounding of the
** coefficients; beyond top 1. */
static const double tanh32_table[8][16] = {
    {0, 0x1.086696p-1, 0x1.a178b2p-1, 0x1.dfd4eap-1, 0x1.f5845cp-1, 0x1.fca228p-1, 0x1.feec8ap-1, 0x1.ffa818p-1,
     0x1.ffe3f6p-1, 0x1.fff70ep-1, 0x1.fffd26p-1, 0x1.ffff18p-1, 0x1.ffffb6p-1, 0x1.ffffe8p-1, 0x1.fffff8p-1,
     0x1.fffffep-1},
    {-0x1.e686f2p-28, 0x1.777622p-1, 0x1.573592p-2, 0x1.f28634p-4, 0x1.4c056ep-5, 0x1.ad80e6p-7, 0x1.132c86p-8,
     0x1.5f85a6p-10, 0x1.c09d9ap-12, 0x1.1e2cb4p-13, 0x1.6d119cp-15, 0x1.d1b2bep-17, 0x1.2907a2p-18, 0x1.7ae64ap-20,
     0x1.e3559ep-22, 0x1.3446eep-23},
    {0, -0x1.83c844p-2, -0x1.17d826p-2, -0x1.d333bap-4, -0x1.45391ap-5, -0x1.aaadfp-7, -0x1.12988p-8, -0x1.5f4954p-10,
     -0x1.c08514p-12, -0x1.1e27bcp-13, -0x1.6d0f9ep-15, -0x1.d1b1f8p-17, -0x1.29078p-18, -0x1.7ae644p-20,
     -0x1.e355a4p-22, -0x1.3446f6p-23},
    {-0x1.55549ap-2, -0x1.907694p-5, 0x1.c71a46p-4, 0x1.0fac78p-4, 0x1.9fc7e8p-6, 0x1.18b4bap-7, 0x1.6c967cp-9,
     0x1.d3c0e4p-11, 0x1.2ae2ap-12, 0x1.7d7cfap-14, 0x1.e6ba1p-16, 0x1.36758ap-17, 0x1.8c098cp-19, 0x1.f932d4p-21,
     0x1.42390ep-22, 0x1.9b0942p-24},
    {0, 0x1.36363p-3, 0x1.13dd3ap-11, -0x1.8b9c16p-6, -0x1.7cf178p-7, -0x1.114346p-8, -0x1.697e7ap-10, -0x1.d27698p-12,
     -0x1.2a9b28p-13, -0x1.7d5a8cp-15, -0x1.e6a53ep-17, -0x1.366cf4p-18, -0x1.8c0082p-20, -0x1.f92816p-22,
     -0x1.42325cp-23, -0x1.9b00c8p-25},
    {0x1.10b6fap-3, -0x1.749164p-5, -0x1.ec2ed6p-6, 0x1.a6263cp-9, 0x1.f5de8ap-9, 0x1.9db514p-10, 0x1.1c4dc4p-11,
     0x1.732adep-13, 0x1.dcf456p-15, 0x1.30eafep-16, 0x1.85401cp-18, 0x1.f0a7dap-20, 0x1.3ccc22p-21, 0x1.941ff2p-23,
     0x1.01c21p-24, 0x1.48cdc2p-26},
    {0, -0x1.2101acp-5, 0x1.225954p-6, 0x1.5aec7ap-9, -0x1.8138a6p-11, -0x1.eb6956p-12, -0x1.7177eap-13,
     -0x1.eeef8ep-15, -0x1.4089ep-16, -0x1.9adf6p-18, -0x1.0676d2p-19, -0x1.4ef87cp-21, -0x1.ab5d3ep-23,
     -0x1.109794p-24, -0x1.5bbb2ep-26, -0x1.bb93c6p-28},
    {-0x1.9e22e6p-5, 0x1.d499f4p-6, -0x1.495ffcp-9, -0x1.250f2p-9, -0x1.2b650ap-14, 0x1.a25cb6p-14, 0x1.876136p-15,
     0x1.145e66p-16, 0x1.6b9bf8p-18, 0x1.d45b1p-20, 0x1.2ba54ap-21, 0x1.7e9c78p-23, 0x1.e838bap-25, 0x1.376cdap-26,
     0x1.8d4656p-28, 0x1.fac77cp-30},
};

kern_id math_tanh_f32(struct kern_builder *b, kern_id x) {
  static const struct math_table tanh_by = {1.75, 0x1.24924ap-1, 0x1.1b6db4p3, 7, tanh32_table};
  struct math m = floats(b, x);
  return math_by_table(&m, x, &tanh_by);
}

/* In parts of 1/4, around m = i / 4: erf(m + r) = erf(m) + r k (1 + g), k = 2 / sqrt(pi) e^(-m^2), and g is a
** polynomial in i r and r^2 alone, the same for all parts, since each derivative of erf is k times a polynomial in m:
** so only erf(m) and k are looked up. Relative error of g's fit 2^-24.9. In the first part r stands for erf(m), and 1
** is taken from the second k; the last one makes 1 of what is beyond. */
static const double erf32_start[16] = {0,
                                       0x1.1af54ep-2,
                                       0x1.0a7ef6p-1,
                                       0x1.6c1c98p-1,
                                       0x1.af767ap-1,
                                       0x1.d8865ep-1,
                                       0x1.eea556p-1,
                                       0x1.f92d08p-1,
                                       0x1.fd9ae2p-1,
                                       0x1.ff4048p-1,
                                       0x1.ffcaa8p-1,
                                       0x1.fff2dp-1,
                                       0x1.fffd1ap-1,
                                       0x1.ffff7p-1,
                                       0x1.ffffe8p-1,
                                       0x1.fffffcp-1};
static const double erf32_slope[16] = {0x1.20dd76p0,   0x1.0f5d16p0,   0x1.c1efcap-1,  0x1.492e42p-1,
                                       0x1.a911fp-2,   0x1.e4653p-3,   0x1.e72372p-4,  0x1.b0553p-5,
                                       0x1.529b9ep-6,  0x1.d4143ap-8,  0x1.1d8318p-9,  0x1.3360ccp-11,
                                       0x1.2408eap-13, 0x1.e9b5e8p-16, 0x1.6a5972p-18, 0x1.d9371ep-21};
static const double erf32_first[16] = {0x1.06ebaap-3,  0x1.0f5d16p0,   0x1.c1efccp-1,  0x1.492e44p-1,
                                       0x1.a911f2p-2,  0x1.e4652ep-3,  0x1.e72372p-4,  0x1.b0553p-5,
                                       0x1.529ba6p-6,  0x1.d4145ap-8,  0x1.1d8318p-9,  0x1.3361ccp-11,
                                       0x1.2408eap-13, 0x1.e9b5e8p-16, 0x1.6a5972p-18, 0x1.163714p-20};

kern_id math_erf_f32(struct kern_builder *b, kern_id x) {
  static const double by_s[] = {-0x1.d6138cp-16, 0x1.0fc424p-11, -0x1.527a38p-8, 0x1.55567ep-5, -0x1.fffe44p-3};
  static const double by_e[] = {-0x1.98d81cp-6, 0x1.fca254p-4, -0x1.555752p-2};
  struct math m = floats(b, x);
  kern_id a = at_most(&m, absolute(&m, x), 0x1.effffep1), up = num(&m, 0x1.8p23); /* beyond that it is 1 */
  kern_id w = mad_n(&m, a, 4, up), part = both_n(&m, to_bits(&m, w), 15);
  kern_id number = sub(&m, w, up), r = mad_n(&m, number, -0.25, a);
  kern_id s = mul(&m, number, r), e = mul(&m, r, r);
  kern_id g = mad_n(&m, e, 0x1.9a9e1cp-4, MATH_POLY(&m, s, by_e));
  g = mad(&m, e, g, mul(&m, s, MATH_POLY(&m, s, by_s)));
  kern_id slope = math_lookup(&m, part, erf32_slope);
  slope = mad(&m, slope, g, math_lookup(&m, part, erf32_first));
  kern_id start =
      math_lookup(&m, part, erf32_start); /* in the first part r, which is the larger of the two there only */
  return math_with_sign(&m, mad(&m, slope, r, sel(&m, lt(&m, start, r), r, start)), x);
}

/* e^(a^2) erfc a = r Q(a r) with r = 1 / (a + 2), Q of degree 10, Q(0) = 2, relative error 2^-28; 0 beyond 10.1. */
kern_id math_erfc_f32(struct kern_builder *b, kern_id x) {
  static const double q[] = {0x1.1d60b4p-4, -0x1.4ce452p-2, 0x1.0e3e96p-1,  -0x1.58f084p-2,
                             0x1.6efe8p-3,  -0x1.f63a22p-3, -0x1.7f162ep-3, 0x1.b05504p-2,
                             0x1.f23128p-1, -0x1.41baf4p1,  0x1p1};
  struct math m = floats(b, x);
  kern_id a = at_most(&m, absolute(&m, x), 10.1), one = num(&m, 1), r = over(&m, one, add_n(&m, a, 2));
  return math_erfc(&m, x, a, mul(&m, r, MATH_POLY(&m, mul(&m, a, r), q)));
}

/* ---- sin, cos --------------------------------------------------------------------------------------------- */

/* |x| = A 2^(8 j) with A < 2^31, whole when j > 0; so |x| 2/pi = A (2^(8 j) 2/pi), and for j > 0 the factor may be
** taken mod 4: the whole quadrants that are lost are full turns. (The idea is Payne and Hanek's, 1983.) The factor is
** hi + lo, hi of 29 bits, so that A hi is exact in f64. */
static const double turn_hi[16] = {0x1.45f306cp-1,
                                   -0x1.067c91cp0,
                                   0x1.836e4e4p0,
                                   -0x1.236377cp-1,
                                   -0x1.b1bbeaep0,
                                   -0x1.bbead6p0,
                                   0x1.529fc2p-4,
                                   0x1.29fc276p0,
                                   0x1.fc2757ep0,
                                   0x1.3abe9p-3,
                                   -0x1.505c158p-1,
                                   -0x1.705659p-3,
                                   0x1.f534ddcp0,
                                   0x1.34ddc0ep0,
                                   0,
                                   0};
static const double turn_lo[16] = {0x1.c9c882a53f84fp-29,
                                   0x1.c882a53f84ebp-29,
                                   0x1.054a7f09d5f48p-30,
                                   -0x1.5ac07b1505c16p-29,
                                   0x1.3f84eafa3ea6ap-29,
                                   -0x1.ec54170565912p-31,
                                   0x1.d5f47d4d37703p-30,
                                   -0x1.05c1596447e49p-29,
                                   -0x1.c1596447e493bp-29,
                                   -0x1.596447e493ad5p-29,
                                   -0x1.6447e493ad4cep-29,
                                   -0x1.1f924eb53361ep-31,
                                   0x1.b6c52b3278872p-33,
                                   -0x1.275a99b0ef1bfp-30,
                                   0,
                                   0};

/* |x| = quadrant pi/2 + r, r in [-pi/4, pi/4]. */
static kern_id reduce_angle(const struct math *m, kern_id x, kern_id *quadrant) {
  struct kern_builder *b = m->b;
  struct math d = doubles(b, x);
  kern_id a = absolute(m, x);
  kern_id exponent = shr(m, to_bits(m, a), 23), above = sub(m, exponent, whole(m, 150));
  kern_id j = shr(m, kern_max(b, above, whole(m, 0)), 3), one = whole(m, 127 << 23);
  kern_id scale = from_bits(m, sub(m, one, shl(m, j, 26)));
  kern_id wide = kern_cast(b, mul(m, a, scale), QUERN_DTYPE_F64);
  kern_id lo = math_lookup(&d, j, turn_lo), p = mul(&d, wide, math_lookup(&d, j, turn_hi));
  kern_id w = add_n(&d, mad(&d, wide, lo, p), shift);
  kern_id rest = mad(&d, wide, lo, sub(&d, p, sub(&d, w, num(&d, shift))));
  *quadrant = kern_cast(b, to_bits(&d, w), QUERN_DTYPE_I32);
  return kern_cast(b, mul(&d, rest, num(&d, 0x1.921fb54442d18p0)), QUERN_DTYPE_F32);
}

/* sin r = r + r^3 S(r^2), error 2^-26.7; cos r = 1 - r^2/2 + r^4 C(r^2), 2^-30.7; both of degree 2, |r| <= pi/4.
** quarter 0: sin, 1: cos; in quadrants 2 and 3 negative. */
static kern_id sin_or_cos(const struct math *m, kern_id r, kern_id quarter) {
  static const double s[] = {-0x1.9987ccp-13, 0x1.11080cp-7, -0x1.555546p-3};
  static const double c[] = {0x1.9aa488p-16, -0x1.6c0ecep-10, 0x1.55554ep-5, -0.5};
  kern_id z = mul(m, r, r);
  kern_id cube = mul(m, r, z), sine = mad(m, cube, MATH_POLY(m, z, s), r);
  kern_id one = num(m, 1), cosine = mad(m, MATH_POLY(m, z, c), z, one);
  kern_id zero = whole(m, 0), even = eq(m, both_n(m, quarter, 1), zero);
  kern_id sign = shl(m, both_n(m, quarter, 2), 30);
  return from_bits(m, kern_bin(m->b, KERN_XOR, to_bits(m, sel(m, even, sine, cosine)), sign));
}

kern_id math_sin_f32(struct kern_builder *b, kern_id x) {
  struct math m = floats(b, x);
  kern_id quadrant, r = reduce_angle(&m, x, &quadrant);
  kern_id y = to_bits(&m, sin_or_cos(&m, r, quadrant));
  return from_bits(&m, kern_bin(b, KERN_XOR, y, math_sign_bit(&m, x)));
}

kern_id math_cos_f32(struct kern_builder *b, kern_id x) {
  struct math m = floats(b, x);
  kern_id quadrant, r = reduce_angle(&m, x, &quadrant);
  return sin_or_cos(&m, r, add(&m, quadrant, whole(&m, 1)));
}

/* ---- atan2 ------------------------------------------------------------------------------------------------ */

/* atan q = q A(q^2), A of degree 11, q in [0, 1], relative error 2^-33.9, in f64. */
kern_id math_atan2_f32(struct kern_builder *b, kern_id y, kern_id x) {
  static const double a[] = {-0x1.6707cf10d51a1p-11, 0x1.3de955146d8a4p-8, -0x1.07f948f1555b5p-6, 0x1.183eb02bd0232p-5,
                             -0x1.bca7736086a6cp-5,  0x1.28c8d58752789p-4, -0x1.6fd49f4885293p-4, 0x1.c66110685b93bp-4,
                             -0x1.24893272bfad7p-3,  0x1.9999238fb0d32p-3, -0x1.55555426a4324p-2, 0x1.ffffffff7ed6cp-1};
  struct math d = doubles(b, x);
  kern_id wide_x = kern_cast(b, x, QUERN_DTYPE_F64), wide_y = kern_cast(b, y, QUERN_DTYPE_F64);
  kern_id q = math_slope(&d, wide_y, wide_x);
  kern_id angle = mul(&d, q, MATH_POLY(&d, mul(&d, q, q), a));
  return kern_cast(b, math_turn(&d, angle, wide_y, wide_x), QUERN_DTYPE_F32);
}

/* ---- pow -------------------------------------------------------------------------------------------------- */

/* log2 a = k + log2 c + log2(1 + r): 16 parts of the octave from 0.69921875 on, in each 1/c of 9 bits; c = 1 about 1.
** log2(1 + r) = r L(r), L of degree 8, |r| <= 0.0325, relative error 2^-54. In f64; a is positive and finite. */
static kern_id log2_wide(const struct math *d, kern_id a) {
  static const double p[] = {0x1.435bef8191b9fp-3,  -0x1.72161b18ee27bp-3, 0x1.a61a2dbcc17d4p-3,
                             -0x1.ec70732d678abp-3, 0x1.2776c4d422f81p-2,  -0x1.71547654799acp-2,
                             0x1.ec709dc3a33ddp-2,  -0x1.71547652b82adp-1, 0x1.71547652b82fep0};
  static const double log2_c[16] = {
      -0x1.ef6d67328e22p-2,  -0x1.b031befe06434p-2, -0x1.72a1637cbc183p-2, -0x1.3bbd3a0a1dcfbp-2, -0x1.02baba24d0664p-2,
      -0x1.98edd077e70dfp-3, -0x1.32ae9e278ae1ap-3, -0x1.918a16e46335bp-4, -0x1.985bfc3495194p-5, 0,
      0x1.4023b7b26ac9ep-4,  0x1.494f863b8df35p-3,  0x1.e857d3d361368p-3,  0x1.4106017c3eca3p-2,  0x1.8a8980abfbd32p-2,
      0x1.cffae611ad12bp-2};
  struct math_octave o = math_octave(d, a);
  kern_id r = mad(d, o.m, o.inverse, num(d, -1));
  kern_id series = MATH_POLY(d, r, p);
  return mad(d, series, r, add(d, o.k, math_lookup(d, o.part, log2_c)));
}

/* 2^t: 2^r = 1 + r P(r), P of degree 7, |r| <= 1/2, relative error 2^-39.7. t in [-200, 200]. */
static kern_id exp2_wide(const struct math *d, kern_id t) {
  static const double p[] = {0x1.6635061e87594p-20, 0x1.00ee240c7ce3bp-16, 0x1.4306c0767ef32p-13,
                             0x1.5d8729476492p-10,  0x1.3b2ab7f411ca1p-7,  0x1.c6b08defeb858p-5,
                             0x1.ebfbdff7c5775p-3,  0x1.62e42fef7a674p-1,  1};
  kern_id w = add(d, t, num(d, shift)), r = sub(d, t, sub(d, w, num(d, shift)));
  kern_id fraction = to_bits(d, MATH_POLY(d, r, p));
  return from_bits(d, add(d, fraction, shl(d, to_bits(d, w), 52)));
}

kern_id math_pow_f32(struct kern_builder *b, kern_id x, kern_id y) {
  struct math m = floats(b, x), d = doubles(b, x);
  kern_id a = absolute(&d, kern_cast(b, x, QUERN_DTYPE_F64));
  kern_id finite = lt_n(&d, a, infinity), l = sel(&d, finite, log2_wide(&d, a), a);
  l = sel_n(&d, eq(&d, a, num(&d, 0)), -infinity, l);
  /* an infinite power is a large one, so that 1 to it is 1 */
  kern_id power = at_least(&d, at_most(&d, kern_cast(b, y, QUERN_DTYPE_F64), 0x1p900), -0x1p900);
  kern_id t = at_least(&d, at_most(&d, mul(&d, power, l), 200), -200);
  return math_pow_ends(&m, kern_cast(b, exp2_wide(&d, t), QUERN_DTYPE_F32), x, y);
}

/* ---- mod -------------------------------------------------------------------------------------------------- */

/* The rest of |a| by |b| is found in f64. Each step takes away a multiple of b that is right to 51 bits: the quotient
** has at most 277, and what is left is exact, since it is a multiple of both numbers' last bits and no more than 2^25
** of them. */
kern_id math_mod_f32(struct kern_builder *b, kern_id x, kern_id y) {
  struct math d = doubles(b, x);
  kern_id wide_x = kern_cast(b, x, QUERN_DTYPE_F64), wide_y = kern_cast(b, y, QUERN_DTYPE_F64);
  kern_id rest = absolute(&d, wide_x), by = absolute(&d, wide_y), inverse = over(&d, num(&d, 1), by);
  for (int step = 0; step < 6; step++) {
    kern_id q = kern_un(b, KERN_TRUNC, mul(&d, rest, inverse));
    rest = mad(&d, neg(&d, q), by, rest);
  }
  return kern_cast(b, math_mod_ends(&d, rest, by, wide_x, wide_y), QUERN_DTYPE_F32);
}
