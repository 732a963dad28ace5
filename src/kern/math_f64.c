/* kern/math_f64.c -- functions of f64 as instructions
** see:   math_parts.c for how the coefficients were made; coefficients of f64 are rounded together
** tests: tests/kern/test_math.c: every function within 2 units in the last place
*/
#include "kern/math_int.h"

#include <math.h>

static const double shift = 0x1.8p52; /* x + shift has round(x) in its low bits */
static const double quarter[3] = {0x1.921fb54442d18p0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110}; /* pi / 2 */

static struct math doubles(struct kern_builder *b, kern_id x) { return math_of(b, QUERN_DTYPE_F64, x); }

/* ---- e^x, ln x, tanh, erf --------------------------------------------------------------------------------- */

kern_id math_exp_f64(struct kern_builder *b, kern_id x) {
  struct math m = doubles(b, x);
  return math_exp(&m, x);
}

kern_id math_expm1_f64(struct kern_builder *b, kern_id x) {
  struct math m = doubles(b, x);
  return math_expm1(&m, x);
}

/* k ln 2 + ln(1 + f): with s = f / (2 + f) and z = s^2, ln(1 + f) = 2 s + s R = f - (f^2/2 - s (f^2/2 + R)), R = z
** L(z), L of degree 7, z <= 0.0295, relative error 2^-65.8. */
static kern_id log_of_parts(const struct math *m, kern_id f, kern_id k) {
  static const double l[] = {0x1.0f9f99e98b1b1p-3, 0x1.0f58a205690a3p-3, 0x1.3b20b53377521p-3, 0x1.745cdf21f7aa7p-3,
                             0x1.c71c725116bfep-3, 0x1.2492492437c2cp-2, 0x1.9999999999cf7p-2, 0x1.5555555555555p-1};
  kern_id s = over(m, f, add(m, f, num(m, 2))), z = mul(m, s, s);
  kern_id half = mul_n(m, mul(m, f, f), 0.5), k_lo = mul_n(m, k, 0x1.abc9e3b39803fp-56);
  kern_id inner = mad(m, s, mad(m, MATH_POLY(m, z, l), z, half), k_lo);
  return mad_n(m, k, 0x1.62e42fefa39efp-1, sub(m, f, sub(m, half, inner)));
}

kern_id math_log_f64(struct kern_builder *b, kern_id x) {
  struct math m = doubles(b, x);
  kern_id small = lt(&m, x, num(&m, 0x1p-1022));
  struct math_log l = math_log_parts(&m, sel(&m, small, mul(&m, x, num(&m, 0x1p54)), x));
  kern_id k = add(&m, l.k, sel_n(&m, small, -54, num(&m, 0)));
  return math_log_ends(&m, log_of_parts(&m, l.f, k), x, 0);
}

/* As math_log1p_f32. */
kern_id math_log1p_f64(struct kern_builder *b, kern_id x) {
  struct math m = doubles(b, x);
  struct math_pair u = math_two_sum(&m, num(&m, 1), x);
  struct math_log l = math_log_parts(&m, u.hi);
  kern_id k = kern_min(b, l.k_whole, whole(&m, 1022));
  kern_id one = whole(&m, INT64_C(1023) << 52), scale = from_bits(&m, sub(&m, one, shl(&m, k, 52)));
  kern_id y = math_with_sign(&m, absolute(&m, log_of_parts(&m, mad(&m, u.lo, scale, l.f), l.k)), x);
  return math_log_ends(&m, y, x, -1);
}

/* e / (e + 2) with e = e^(2 |x|) - 1, the quotient corrected by what the sum and the division lost. */
kern_id math_tanh_f64(struct kern_builder *b, kern_id x) {
  struct math m = doubles(b, x);
  kern_id a = at_most(&m, absolute(&m, x), 22);
  kern_id e = math_expm1(&m, add(&m, a, a));
  struct math_pair d = math_two_sum(&m, e, num(&m, 2));
  kern_id inverse = over(&m, num(&m, 1), d.hi), q = mul(&m, e, inverse);
  kern_id lost = mad(&m, neg(&m, q), d.hi, e);
  lost = sub(&m, lost, mul(&m, q, d.lo));
  return math_with_sign(&m, mad(&m, lost, inverse, q), x);
}

/* Degree 13 (odd in the first part), 16 parts of 8/21: relative error 2^-53.1, of which most is the rounding of the
** coefficients; beyond top 1. */
static const double erf64_table[14][16] = {
    {0, 0x1.a3c71e9541c2ap-2, 0x1.6ffedb8d9816cp-1, 0x1.c9b4ebe5ae755p-1, 0x1.f00b79989c2bbp-1, 0x1.fc61e8621cbafp-1,
     0x1.ff5f26ee53a3bp-1, 0x1.ffeab563c3c86p-1, 0x1.fffddc2b6306p-1, 0x1.ffffd64ebf32cp-1, 0x1.fffffd9a3aaa9p-1,
     0x1.ffffffe55fa6cp-1, 0x1.ffffffff2134ep-1, 0x1.fffffffffa84ep-1, 0x1.ffffffffffe61p-1, 0x1.ffffffffffffap-1},
    {0x1.06eba8214db69p-3, 0x1.f3afe73693862p-1, 0x1.434f0f7baabb6p-1, 0x1.38fa436a2277bp-2, 0x1.c54ca89a65736p-4,
     0x1.eb234a730ccb8p-6, 0x1.8e13e73bddca7p-8, 0x1.e2bc1fbb76c97p-11, 0x1.b5ebc18a2eaa2p-14, 0x1.292fbb04150b9p-17,
     0x1.2dbe73acc37e8p-21, 0x1.ca60f1be4f9fbp-26, 0x1.047388bba998cp-30, 0x1.bad3edb529cbep-36, 0x1.199e1224afed4p-41,
     0x1.18439ed8621cp-47},
    {0, -0x1.7cb6c88b1b0fcp-2, -0x1.eca93c2a28bcbp-2, -0x1.65b04d0b951b6p-2, -0x1.595efa5d411a2p-3,
     -0x1.d3c016246db6p-5, -0x1.c6f22cd6b457fp-7, -0x1.41d2bfd24f2ddp-9, -0x1.4da76ee32fb3dp-12, -0x1.fd76652b91f82p-16,
     -0x1.1f600ca489ea5p-19, -0x1.e034cc7e39e7cp-24, -0x1.29a89c442164fp-28, -0x1.1221ab8840412p-33,
     -0x1.777d6d84c8888p-39, -0x1.7ecaaa98e92b4p-45},
    {-0x1.812746b037b9ep-2, -0x1.d8def70e4d643p-3, 0x1.159c50a1ea4c2p-5, 0x1.5065ce8df0d02p-3, 0x1.134d9d288eb01p-3,
     0x1.000e6244661c1p-4, 0x1.3973cee4b0d3ap-6, 0x1.09f37e84e88f6p-8, 0x1.40b413c20cfd4p-11, 0x1.16bd181d4c51fp-14,
     0x1.605924a19ca8cp-18, 0x1.45d524326bcbep-22, 0x1.bab91190cff5dp-27, 0x1.bb4f1a87c39b9p-32, 0x1.47e6dd6b1004dp-37,
     0x1.66fb2a3346505p-43},
    {0, 0x1.57e1470a1d084p-3, 0x1.2e006992ca554p-3, 0x1.71dade77fa4cbp-6, -0x1.7a8647ff49715p-5, -0x1.4bcf2db3171e4p-5,
     -0x1.1a682e1e84f8bp-6, -0x1.2cf6de0e2b91bp-8, -0x1.b114f95733996p-11, -0x1.b361ea0cfe864p-14,
     -0x1.379f2e05e5c72p-17, -0x1.4156feecc2259p-21, -0x1.e12a07139fb95p-26, -0x1.0701da1923a46p-30,
     -0x1.a58e984f433d1p-36, -0x1.f0e16a0053a73p-42},
    {0x1.ce2f21a0cb286p-4, 0x1.65d79454735d8p-5, -0x1.c37001ba1775p-5, -0x1.e8372ab7299e9p-5, -0x1.8e938e67c7ebp-7,
     0x1.8cb1870d89136p-7, 0x1.485471cbd9954p-7, 0x1.e27c8dce72f86p-9, 0x1.afbc891dcde4p-11, 0x1.00bcb84db84d4p-13,
     0x1.a60001dae2d0bp-17, 0x1.e9c07a98095afp-21, 0x1.96b7a17b70d4p-25, 0x1.e7c1b2926a188p-30, 0x1.a91173df79dfap-35,
     0x1.0e784d8fdd375p-40},
    {0, -0x1.9c3edefaae87bp-5, -0x1.9ef7efd6272a5p-6, 0x1.1158813d5c31ep-6, 0x1.2f1b02438eb81p-6, 0x1.983e81e851ed8p-9,
     -0x1.8e27fae88a81dp-9, -0x1.0c5cd4683748fp-9, -0x1.4319d5601e46fp-11, -0x1.d6b9d22d6a836p-14,
     -0x1.c4c61edaba504p-17, -0x1.2b34200c38174p-20, -0x1.15cd5ec2bac52p-24, -0x1.6f866adc1b766p-29,
     -0x1.5dbc002dfa3d6p-34, -0x1.e20e089a449bfp-40},
    {-0x1.b82ce40a1af2ep-6, -0x1.42a4525608c4ep-8, 0x1.314db42af215ap-6, 0x1.1e74a5541756cp-7, -0x1.520f15726e55ep-8,
     -0x1.2bfd0e5ea117ep-8, -0x1.a565e2a13fe73p-12, 0x1.665b24eb6521bp-11, 0x1.651720e1ae075p-12, 0x1.52dd085a75808p-14,
     0x1.8856c4cdedeebp-17, 0x1.2bed279fe4f63p-20, 0x1.3a6ccd769bddap-24, 0x1.cdf820d5133a5p-29, 0x1.e2534887eeb9ep-34,
     0x1.6950c3b0b24fdp-39},
    {0, 0x1.70b792639dc0fp-7, 0x1.ec4d1e4ed86c8p-10, -0x1.8dfc351e1adc5p-8, -0x1.060a7fc32675dp-9,
     0x1.8c71e83ca832ep-10, 0x1.cdad279efaa0cp-11, -0x1.1c20a97ce3d89p-16, -0x1.0b31b357831fep-13,
     -0x1.7b2b3ebff4b72p-15, -0x1.14a20b95c8a2fp-17, -0x1.f42ff0293267ep-21, -0x1.2bd0a3da2be6bp-24,
     -0x1.ed3666a7427b7p-29, -0x1.1c1624595b9d7p-33, -0x1.d08a974392b3ep-39},
    {0x1.565c97019f14p-8, 0x1.3bb32d311aa8cp-18, -0x1.024be2e186a02p-8, -0x1.4a5db626d3eb3p-13, 0x1.b866cd409c3f7p-10,
     0x1.0611940c638e3p-12, -0x1.8310eaddb20f8p-12, -0x1.01acd48715916p-13, 0x1.50b51454de3fep-16,
     0x1.3a3893c3608b3p-16, 0x1.3bcc10a2b31aep-18, 0x1.5d24fc50dd5d4p-21, 0x1.e6debe453bd52p-25, 0x1.c4f6ee094ad4ep-29,
     0x1.21cc9af2b0fe9p-33, 0x1.03d085660cf05p-38},
    {0, -0x1.06374056a469cp-9, 0x1.17849c76ee25cp-12, 0x1.246fb09c29444p-10, -0x1.4832fd185313p-13,
     -0x1.7dc368788a58p-12, 0x1.98bfae2a91e45p-17, 0x1.1f809f161b0ap-14, 0x1.5da119b2287a1p-17, -0x1.42a3a5a455b2ep-18,
     -0x1.1c86402376d8bp-19, -0x1.975f7be964bcep-22, -0x1.52712d59c25e3p-25, -0x1.68ba69c43a017p-29,
     -0x1.024c9918da7d4p-33, -0x1.fe43165b1dff3p-39},
    {-0x1.c0c31b9001a4ep-11, 0x1.207bd58237561p-13, 0x1.3ec19eaf2a157p-11, -0x1.aff1604049796p-13,
     -0x1.e59296c3a43acp-13, 0x1.6539eedfad77ep-14, 0x1.d03ccf2d0deb7p-15, -0x1.b8639df5a4aa4p-17,
     -0x1.2feeb7c1d5626p-17, -0x1.24c251280e809p-24, 0x1.76de39a95743fp-21, 0x1.88459082107ecp-23,
     0x1.935c7cce3ce69p-26, 0x1.f58fe97956252p-30, 0x1.964d945a8ad86p-34, 0x1.bd667d9d1d425p-39},
    {0, 0x1.2fdabd85547fdp-12, -0x1.e1040304c9a86p-14, -0x1.0de1104ed321cp-13, 0x1.52da5ec685bb2p-14,
     0x1.db785ae65762fp-16, -0x1.7a6b8b5260592p-16, -0x1.384753e75eeb1p-18, 0x1.8fca81c9b60a6p-19,
     0x1.a2255f843b227p-21, -0x1.fb9076e2ec949p-24, -0x1.2e450f423ee8bp-24, -0x1.a12cc6b08be34p-27,
     -0x1.3a4d68efa742ap-30, -0x1.2788fe509d5afp-34, -0x1.6f337f3c529dp-39},
    {0x1.1018c068117d3p-13, -0x1.1dcb23e8c1078p-15, -0x1.2b656386f50c7p-14, 0x1.a95d07300cb14p-15,
     0x1.c4dc0847de934p-17, -0x1.4ed6f332adac5p-16, 0x1.0dea13cd3cb04p-23, 0x1.efb249f13822ap-19,
     -0x1.f7b951bf22342p-24, -0x1.a722bcc9b2e5ep-22, -0x1.ec9731f6d907cp-26, 0x1.4af0e01f43899p-26,
     0x1.60d13a6971fefp-28, 0x1.4b607c8364b7cp-31, 0x1.6ba63f4fc22fcp-35, 0x1.fe7c3d2b6b419p-40},
};

kern_id math_erf_f64(struct kern_builder *b, kern_id x) {
  static const struct math_table erf_by = {2.625, 0x1.8618618618618p-2, 0x1.79e79e79e79e6p2, 13, erf64_table};
  struct math m = doubles(b, x);
  return math_by_table(&m, x, &erf_by);
}

/* e^(a^2) erfc a = r Q(u) with r = 1 / (a + 4) and u = 1 - 8 r, Q of degree 22, relative error 2^-58.1; 0 beyond 27.3.
** Below 3/4 it is 1 - erf x. */
kern_id math_erfc_f64(struct kern_builder *b, kern_id x) {
  static const double q[] = {
      0x1.17a49c3b21a0dp-30,  -0x1.a5edf8ee29ce1p-32, -0x1.087d3c3e5f175p-26, 0x1.66e2643acb394p-29,
      0x1.0a2d11ac725a8p-23,  -0x1.4eea6541362dfp-24, -0x1.c633c014392f3p-21, 0x1.7ed05c3f745ddp-20,
      0x1.3b0818139a2c3p-18,  -0x1.3c72bf899571fp-16, -0x1.e7e6dcfe829c3p-19, 0x1.72cdcd957df19p-13,
      -0x1.dd2846a134be2p-12, -0x1.269b55ae348ebp-12, 0x1.908f472826dp-8,     -0x1.b00c052a9fa98p-6,
      0x1.38dbd2c8dc337p-4,   -0x1.645fd8a4bf2edp-3,  0x1.52cac23710287p-2,   -0x1.14eacb1ad02e2p-1,
      0x1.8be202d26c703p-1,   -0x1.f3fe31ecb49cp-1,   0x1.18932bf08e154p0};
  struct math m = doubles(b, x);
  kern_id a = at_most(&m, absolute(&m, x), 27.3), one = num(&m, 1), r = over(&m, one, add_n(&m, a, 4));
  kern_id far = math_erfc(&m, x, a, mul(&m, r, MATH_POLY(&m, mad_n(&m, r, -8, one), q)));
  kern_id near = sub(&m, one, math_erf_f64(b, x));
  return sel(&m, lt_n(&m, x, 0.75), near, far);
}

/* ---- sin, cos --------------------------------------------------------------------------------------------- */

/* |x| = quadrant pi/2 + hi + lo, hi in [-pi/4, pi/4]. */
struct angle {
  kern_id hi, lo, quadrant;
};

/* |x| < 2^26: Cody and Waite's reduction with pi/2 in three parts. */
static struct angle reduce_near(const struct math *m, kern_id a) {
  kern_id by = num(m, shift), w = mad_n(m, a, 0x1.45f306dc9c883p-1, by), n = sub(m, w, by);
  kern_id first = mad(m, n, num(m, -quarter[0]), a); /* exact */
  struct math_pair p = math_two_product(m, n, num(m, quarter[1])), s = math_two_sum(m, first, neg(m, p.hi));
  kern_id lo = mad_n(m, n, -quarter[2], sub(m, s.lo, p.lo));
  struct math_pair r = math_fast_two_sum(m, s.hi, lo);
  return (struct angle){r.hi, r.lo, to_bits(m, w)};
}

/* The upper 64 bits of the product of two u64. */
static kern_id upper(const struct math *m, kern_id x, kern_id y) {
  struct kern_builder *b = m->b;
  kern_id low = kern_const_i(b, QUERN_DTYPE_U64, m->lanes, UINT32_MAX),
          by = kern_const_i(b, QUERN_DTYPE_U64, m->lanes, 32);
  kern_id x_lo = both(m, x, low), x_hi = kern_bin(b, KERN_SHR, x, by);
  kern_id y_lo = both(m, y, low), y_hi = kern_bin(b, KERN_SHR, y, by);
  kern_id lh = mul(m, x_lo, y_hi), hl = mul(m, x_hi, y_lo);
  kern_id middle = kern_bin(b, KERN_SHR, mul(m, x_lo, y_lo), by), high = mul(m, x_hi, y_hi);
  middle = add(m, middle, both(m, lh, low));
  middle = add(m, middle, both(m, hl, low));
  high = add(m, high, kern_bin(b, KERN_SHR, lh, by));
  high = add(m, high, kern_bin(b, KERN_SHR, hl, by));
  return add(m, high, kern_bin(b, KERN_SHR, middle, by));
}

/* |x| >= 2^22: Payne and Hanek's reduction in integers. |x| = M 2^e; of 2/pi only the 192 bits count whose products
** with |x| are less than 4 quadrants and more than 2^-126 of one: they begin at bit e + 30 of `bits`, which is 2/pi
** after 32 zeros. */
static struct angle reduce_far(const struct math *m, kern_id a) {
  static const uint64_t bits[19] = {0x00000000a2f9836e, 0x4e441529fc2757d1, 0xf534ddc0db629599, 0x3c439041fe5163ab,
                                    0xdebbc561b7246e3a, 0x424dd2e006492eea, 0x09d1921cfe1deb1c, 0xb129a73ee88235f5,
                                    0x2ebb4484e99c7026, 0xb45f7e413991d639, 0x835339f49c845f8b, 0xbdf9283b1ff897ff,
                                    0xde05980fef2f118b, 0x5a0a6d1f6d367ecf, 0x27cb09b74f463f66, 0x9e5fea2d7527bac7,
                                    0xebe5f17b3d0739f7, 0x8a5292ea6bfb5fb1, 0x1f8d5d0856033046};
  struct kern_builder *b = m->b;
  quern_dtype u64 = QUERN_DTYPE_U64;
  kern_id raw = to_bits(m, a), fraction = both_n(m, raw, (INT64_C(1) << 52) - 1);
  kern_id mantissa = kern_bitcast(b, either(m, fraction, whole(m, INT64_C(1) << 52)), u64);
  /* e + 30, between 0 and 1001 where it counts */
  kern_id first = shr(m, raw, 52);
  first = sub(m, first, whole(m, 1075 - 30));
  first = kern_max(b, first, whole(m, 0));
  first = kern_min(b, first, whole(m, 1001));
  kern_id at = kern_cast(b, shr(m, first, 6), QUERN_DTYPE_I32);
  kern_id left = kern_bitcast(b, both_n(m, first, 63), u64);
  kern_id right = sub(m, kern_const_i(b, u64, m->lanes, 64), left), word[4], part[3];
  for (size_t i = 0; i < 4; i++) word[i] = kern_table(b, at, u64, bits + i);
  for (size_t i = 0; i < 3; i++) {
    kern_id upper_bits = kern_bin(b, KERN_SHL, word[i], left);
    part[i] = either(m, upper_bits, kern_bin(b, KERN_SHR, word[i + 1], right));
  }
  /* high and low: |x| 2/pi mod 4, of which high has 2 bits before the point and 62 after */
  kern_id low_part = mul(m, mantissa, part[1]), low = add(m, low_part, upper(m, mantissa, part[2]));
  kern_id zero = kern_const_i(b, u64, m->lanes, 0), one = kern_const_i(b, u64, m->lanes, 1);
  kern_id carry = sel(m, lt(m, low, low_part), one, zero), high = mul(m, mantissa, part[0]);
  high = add(m, add(m, high, upper(m, mantissa, part[1])), carry);
  kern_id turns = add(m, high, kern_const_i(b, u64, m->lanes, INT64_C(1) << 61));
  turns = kern_bin(b, KERN_SHR, turns, kern_const_i(b, u64, m->lanes, 62));
  kern_id quadrant = kern_bitcast(b, turns, QUERN_DTYPE_I64), rest = kern_bitcast(b, high, QUERN_DTYPE_I64);
  rest = sub(m, rest, shl(m, quadrant, 62));
  /* the rest as f + g, then times pi/2 */
  kern_id f = kern_cast(b, rest, QUERN_DTYPE_F64);
  kern_id lost = kern_cast(b, sub(m, rest, kern_cast(b, f, QUERN_DTYPE_I64)), QUERN_DTYPE_F64);
  kern_id g = kern_cast(b, low, QUERN_DTYPE_F64);
  g = mad_n(m, g, 0x1p-126, mul_n(m, lost, 0x1p-62));
  struct math_pair t = math_fast_two_sum(m, mul_n(m, f, 0x1p-62), g);
  struct math_pair p = math_two_product(m, t.hi, num(m, quarter[0]));
  kern_id lo = mad_n(m, t.lo, quarter[0], mad_n(m, t.hi, quarter[1], p.lo));
  struct math_pair r = math_fast_two_sum(m, p.hi, lo);
  return (struct angle){r.hi, r.lo, quadrant};
}

/* Far lanes are rare: their reduction is computed only where a lane needs it, and taken by these lanes only. */
static struct angle reduce_angle(const struct math *m, kern_id a) {
  struct kern_builder *b = m->b;
  struct angle near = reduce_near(m, a);
  kern_id far = kern_bin(b, KERN_LE, num(m, 0x1p26), a);
  kern_id hi = kern_var(b, near.hi), lo = kern_var(b, near.lo), quadrant = kern_var(b, near.quadrant);
  kern_id zero = whole(m, 0), any = math_greatest_lane(b, sel(m, far, whole(m, 1), zero));
  kern_if(b, kern_bin(b, KERN_LT, kern_index(b, 0), any));
  struct angle r = reduce_far(m, a);
  kern_set(b, hi, sel(m, far, r.hi, near.hi));
  kern_set(b, lo, sel(m, far, r.lo, near.lo));
  kern_set(b, quadrant, sel(m, far, r.quadrant, near.quadrant));
  kern_end(b);
  near.hi = kern_get(b, hi);
  near.lo = kern_get(b, lo);
  near.quadrant = kern_get(b, quadrant);
  return near;
}

/* sin r = r + r^3 S(r^2), relative error 2^-55.8; cos r = 1 - r^2/2 + r^4 C(r^2), 2^-58.2; both of degree 6, |r| <=
** pi/4. Even quarters: sin; odd ones: cos; in quarters 2 and 3 negative. NaN where a is not finite. */
static kern_id sin_or_cos(const struct math *m, kern_id a, struct angle r, int64_t turn) {
  static const double s[] = {-0x1.8cae691aa2b22p-41, 0x1.60df8c11a833bp-33,  -0x1.ae63ee292c0e1p-26,
                             0x1.71de3a0e2086p-19,   -0x1.a01a019fec255p-13, 0x1.111111111103ep-7,
                             -0x1.5555555555555p-3};
  static const double c[] = {0x1.3387bdbb2f819p-45,  -0x1.928ef6769bab9p-37, 0x1.1eecc2d895a79p-29,
                             -0x1.27e4faeac0e28p-22, 0x1.a01a019fbef26p-16,  -0x1.6c16c16c16a72p-10,
                             0x1.5555555555555p-5};
  kern_id z = mul(m, r.hi, r.hi), half = mul(m, z, num(m, 0.5)), w = sub(m, num(m, 1), half);
  kern_id cube = mul(m, r.hi, z), lost = mul(m, r.lo, w), bend = mad(m, cube, MATH_POLY(m, z, s), lost);
  kern_id sine = add(m, r.hi, bend), square = mul(m, z, z), cross = neg(m, mul(m, r.hi, r.lo));
  kern_id tail = mad(m, square, MATH_POLY(m, z, c), cross);
  kern_id cosine = add(m, w, add(m, sub(m, sub(m, num(m, 1), w), half), tail));
  kern_id quarter_number = add(m, r.quadrant, whole(m, turn));
  kern_id zero = whole(m, 0), even = eq(m, both_n(m, quarter_number, 1), zero);
  kern_id sign = shl(m, both_n(m, quarter_number, 2), 62);
  kern_id y = sel(m, even, sine, cosine);
  y = add(m, y, sub(m, a, a));
  return from_bits(m, kern_bin(m->b, KERN_XOR, to_bits(m, y), sign));
}

kern_id math_sin_f64(struct kern_builder *b, kern_id x) {
  struct math m = doubles(b, x);
  kern_id a = absolute(&m, x), y = to_bits(&m, sin_or_cos(&m, a, reduce_angle(&m, a), 0));
  return from_bits(&m, kern_bin(b, KERN_XOR, y, math_sign_bit(&m, x)));
}

kern_id math_cos_f64(struct kern_builder *b, kern_id x) {
  struct math m = doubles(b, x);
  kern_id a = absolute(&m, x);
  return sin_or_cos(&m, a, reduce_angle(&m, a), 1);
}

/* ---- atan2 ------------------------------------------------------------------------------------------------ */

/* atan q = q + q^3 A(q^2), A of degree 20, q in [0, 1], relative error 2^-59. */
kern_id math_atan2_f64(struct kern_builder *b, kern_id y, kern_id x) {
  static const double a[] = {-0x1.1d1cb6f9ea3a4p-17, 0x1.ae1c7e3b36c7dp-14, -0x1.345681e9cc15fp-11,
                             0x1.18d3ba200d831p-9,   -0x1.6f5a0ce5a9947p-8, 0x1.731fc914be819p-7,
                             -0x1.31815e72f4b19p-6,  0x1.ad4bbf37d54dfp-6,  -0x1.0cff5cd4edd9dp-5,
                             0x1.3952c6c1bf96bp-5,   -0x1.5f4f11e2cdcf9p-5, 0x1.84c62751d855fp-5,
                             -0x1.aedff5c4d38ddp-5,  0x1.e1d5dfd0a3656p-5,  -0x1.111051034dfc7p-4,
                             0x1.3b139fbf6d5a9p-4,   -0x1.745d162adeab3p-4, 0x1.c71c71bb87cb1p-4,
                             -0x1.249249246f21bp-3,  0x1.9999999999343p-3,  -0x1.5555555555553p-2};
  struct math m = doubles(b, x);
  kern_id q = math_slope(&m, y, x), z = mul(&m, q, q), cube = mul(&m, q, z);
  return math_turn(&m, mad(&m, cube, MATH_POLY(&m, z, a), q), y, x);
}

/* ---- pow -------------------------------------------------------------------------------------------------- */

/* ln a to about 2^-65: k ln 2 + ln c + ln(1 + r), 1 + r = m / c exactly; the first two have parts of 40 bits that add
** up exactly. ln(1 + r) = r - r^2/2 + r^3 Q(r), Q of degree 9, |r| <= 0.0325, relative error 2^-73. a is positive and
** finite. */
static struct math_pair log_pair(const struct math *m, kern_id a) {
  static const double q[] = {-0x1.5643156f0dd94p-4, 0x1.755d2021e6a1ap-4,  -0x1.999952934c8d8p-4,
                             0x1.c71c254a9ab68p-4,  -0x1.00000004b6407p-3, 0x1.24924929a54b4p-3,
                             -0x1.555555555512bp-3, 0x1.999999999951dp-3,  -0x1p-2,
                             0x1.5555555555555p-2};
  static const double c_hi[16] = {
      -0x1.5767717454p-2, -0x1.2b9303ab88p-2, -0x1.00e6c45ad4p-2, -0x1.b5b519e8f8p-3, -0x1.66acd42728p-3,
      -0x1.1b72ad52f8p-3, -0x1.a926d3a4bp-4,  -0x1.16536eea3p-4,  -0x1.1b0d98924p-5,  0,
      0x1.bbcebfc68p-5,   0x1.c885801bcp-4,   0x1.527e5e4a18p-3,  0x1.bd087383cp-3,   0x1.1178e8228p-2,
      0x1.419b423d6p-2};
  static const double c_lo[16] = {-0x1.a6c549ab6ca0ep-42, -0x1.d249da52809ebp-42,
                                  -0x1.01cc68d52e012p-42, -0x1.ad23744ffb834p-42,
                                  -0x1.6a86f6ff1b1e1p-42, 0x1.85fd6f9fb971ap-43,
                                  0x1.54e4d7a16eab2p-43,  -0x1.eb83a189705cfp-42,
                                  0x1.3401e9ae889bbp-44,  0,
                                  0x1.e8407973ce83dp-42,  0x1.2c8da38cb559ap-42,
                                  0x1.ac67d1cad2fb9p-42,  -0x1.3a9788b2a8257p-42,
                                  -0x1.b8421cc74be04p-42, -0x1.738de489b78fbp-42};
  kern_id small = lt(m, a, num(m, 0x1p-1022));
  struct math_octave o = math_octave(m, sel(m, small, mul(m, a, num(m, 0x1p54)), a));
  kern_id k = add(m, o.k, sel_n(m, small, -54, num(m, 0)));
  struct math_pair product = math_two_product(m, o.m, o.inverse);
  kern_id r = sub(m, product.hi, num(m, 1));
  struct math_pair square = math_two_product(m, mul(m, r, num(m, 0.5)), r); /* half of r^2 */
  kern_id cube = mul(m, r, add(m, square.hi, square.hi));
  kern_id square_lo = mad(m, r, product.lo, square.lo);
  kern_id base = mad_n(m, k, 0x1.62e42fefa4p-1, math_lookup(m, o.part, c_hi));
  kern_id base_lo = mad_n(m, k, -0x1.8432a1b0e2634p-43, math_lookup(m, o.part, c_lo));
  struct math_pair s = math_fast_two_sum(m, base, r), t = math_fast_two_sum(m, s.hi, neg(m, square.hi));
  kern_id small_terms = add(m, s.lo, t.lo);
  small_terms = add(m, small_terms, add(m, sub(m, product.lo, square_lo), base_lo));
  return math_fast_two_sum(m, t.hi, mad(m, cube, MATH_POLY(m, r, q), small_terms));
}

kern_id math_pow_f64(struct kern_builder *b, kern_id x, kern_id y) {
  struct math m = doubles(b, x);
  kern_id a = absolute(&m, x);
  struct math_pair l = log_pair(&m, a);
  l.hi = sel(&m, lt(&m, a, num(&m, (double)INFINITY)), l.hi, a);
  l.hi = sel_n(&m, eq(&m, a, num(&m, 0)), -(double)INFINITY, l.hi);
  /* an infinite power is a large one, so that 1 to it is 1 */
  kern_id power = at_least(&m, at_most(&m, y, 0x1p900), -0x1p900);
  struct math_pair t = math_two_product(&m, power, l.hi);
  kern_id lo = mad(&m, power, l.lo, t.lo), zero = num(&m, 0);
  lo = sel(&m, lt_n(&m, absolute(&m, t.hi), 1000), lo, zero); /* elsewhere 0 or infinite, whatever lo is */
  struct math_exp e = math_exp_parts(&m, t.hi);
  kern_id p = math_exp_power(&m, e);
  return math_pow_ends(&m, mul(&m, mul(&m, mad(&m, p, lo, p), e.s), e.s), x, y);
}

/* ---- mod -------------------------------------------------------------------------------------------------- */

/* |x| = size 2^exponent with a whole size below 2^53, as a float. */
static kern_id whole_size(const struct math *m, kern_id a, kern_id *exponent) {
  kern_id raw = to_bits(m, a), normal = lt(m, whole(m, (INT64_C(1) << 52) - 1), raw);
  kern_id fraction = both(m, raw, whole(m, (INT64_C(1) << 52) - 1));
  *exponent = shr(m, raw, 52);
  *exponent = kern_max(m->b, *exponent, whole(m, 1));
  *exponent = sub(m, *exponent, whole(m, 1075));
  kern_id size = from_bits(m, either(m, fraction, whole(m, INT64_C(0x433) << 52)));
  return sub(m, size, sel_n(m, normal, 0, num(m, 0x1p52)));
}

/* 2^k for -1022 <= k <= 1023. */
static kern_id power_of_two(const struct math *m, kern_id k) {
  return from_bits(m, shl(m, add(m, k, whole(m, 1023)), 52));
}

/* rest less the nearest multiple of the divisor, both whole and below 2^53. */
static kern_id less_multiple(const struct math *m, kern_id rest, kern_id divisor, kern_id inverse) {
  kern_id q = kern_un(m->b, KERN_ROUND, mul(m, rest, inverse));
  return mad(m, neg(m, q), divisor, rest);
}

/* Long division of the sizes, 50 bits a step. What a step leaves is at most 3/4 of the divisor, whole and so exact:
** the quotient before rounding is wrong by 1/4 at most. The sizes of subnormal divisors are small, and two steps
** without a shift bring the rest below them. Lanes that need fewer steps than others take the last ones with nothing
** left to shift. */
kern_id math_mod_f64(struct kern_builder *b, kern_id x, kern_id y) {
  struct math m = doubles(b, x);
  kern_id a = absolute(&m, x), by = absolute(&m, y), exponent_a, exponent_by;
  kern_id size = whole_size(&m, a, &exponent_a), divisor = whole_size(&m, by, &exponent_by);
  kern_id inverse = over(&m, num(&m, 1), divisor);
  size = less_multiple(&m, less_multiple(&m, size, divisor, inverse), divisor, inverse);
  kern_id shifts = sub(&m, exponent_a, exponent_by);
  shifts = kern_max(b, shifts, whole(&m, 0));
  kern_id rest = kern_var(b, size), left = kern_var(b, shifts);
  kern_id steps = kern_idiv(b, kern_add_i(b, math_greatest_lane(b, shifts), 49), 50);
  kern_for(b, kern_index(b, 0), steps, 1);
  kern_id to_do = kern_get(b, left), now = kern_min(b, to_do, whole(&m, 50));
  kern_id shifted = kern_get(b, rest);
  shifted = mul(&m, shifted, power_of_two(&m, now));
  kern_set(b, rest, less_multiple(&m, shifted, divisor, inverse));
  kern_set(b, left, sub(&m, to_do, now));
  kern_end(b);
  kern_id r = kern_get(b, rest), below = lt_n(&m, r, 0);
  r = sel(&m, below, add(&m, r, divisor), r);
  kern_id half = shr(&m, exponent_by, 1);
  r = mul(&m, r, power_of_two(&m, half));
  r = mul(&m, r, power_of_two(&m, sub(&m, exponent_by, half)));
  /* NaN where a is infinite, or either is NaN */
  kern_id nan = num(&m, (double)NAN);
  r = sel(&m, lt_n(&m, a, (double)INFINITY), r, nan);
  return math_mod_ends(&m, sel(&m, eq(&m, by, by), r, by), by, x, y);
}
