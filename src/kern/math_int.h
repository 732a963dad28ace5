/* kern/math_int.h -- what the files of mathematical functions share: short names for instructions of one float dtype
** see: math.c (which op is which function), math_parts.c, math_f32.c, math_f64.c
*/
#ifndef KERN_MATH_INT_H
#define KERN_MATH_INT_H
#include "kern/kern.h"

/* Values of one float dtype, f32 or f64, and of the signed integers that are as wide. */
struct math {
  struct kern_builder *b;
  quern_dtype dtype, whole;
  int lanes;
};

/* The type of a value; once building has failed, some type. */
static inline struct kern_inst math_type(const struct kern_builder *b, kern_id x) {
  if (b->kern->failed != QUERN_STATUS_OK || b->fn == NULL)
    return (struct kern_inst){.dtype = QUERN_DTYPE_F32, .lanes = 1};
  return *kern_at_id(b, x);
}

/* The values of a dtype with as many lanes as x has. */
static inline struct math math_of(struct kern_builder *b, quern_dtype dtype, kern_id x) {
  quern_dtype whole = dtype == QUERN_DTYPE_F64 ? QUERN_DTYPE_I64 : QUERN_DTYPE_I32;
  return (struct math){b, dtype, whole, math_type(b, x).lanes};
}

static inline kern_id num(const struct math *m, double v) { return kern_const_f(m->b, m->dtype, m->lanes, v); }
static inline kern_id whole(const struct math *m, int64_t v) { return kern_const_i(m->b, m->whole, m->lanes, v); }

static inline kern_id add(const struct math *m, kern_id x, kern_id y) { return kern_add(m->b, x, y); }
static inline kern_id sub(const struct math *m, kern_id x, kern_id y) { return kern_sub(m->b, x, y); }
static inline kern_id mul(const struct math *m, kern_id x, kern_id y) { return kern_mul(m->b, x, y); }
static inline kern_id over(const struct math *m, kern_id x, kern_id y) { return kern_bin(m->b, KERN_DIV, x, y); }
static inline kern_id mad(const struct math *m, kern_id x, kern_id y, kern_id z) { return kern_fma(m->b, x, y, z); }
static inline kern_id neg(const struct math *m, kern_id x) { return kern_un(m->b, KERN_NEG, x); }
static inline kern_id absolute(const struct math *m, kern_id x) { return kern_un(m->b, KERN_ABS, x); }
static inline kern_id lt(const struct math *m, kern_id x, kern_id y) { return kern_bin(m->b, KERN_LT, x, y); }
static inline kern_id eq(const struct math *m, kern_id x, kern_id y) { return kern_bin(m->b, KERN_EQ, x, y); }
static inline kern_id both(const struct math *m, kern_id x, kern_id y) { return kern_bin(m->b, KERN_AND, x, y); }
static inline kern_id either(const struct math *m, kern_id x, kern_id y) { return kern_bin(m->b, KERN_OR, x, y); }
static inline kern_id not(const struct math *m, kern_id x) { return kern_un(m->b, KERN_NOT, x); }
static inline kern_id sel(const struct math *m, kern_id mask, kern_id yes, kern_id no) {
  return kern_select(m->b, mask, yes, no);
}
/* With numbers: of a call's arguments at most one appends instructions. */
static inline kern_id add_n(const struct math *m, kern_id x, double y) { return add(m, x, num(m, y)); }
static inline kern_id sub_n(const struct math *m, kern_id x, double y) { return sub(m, x, num(m, y)); }
static inline kern_id mul_n(const struct math *m, kern_id x, double y) { return mul(m, x, num(m, y)); }
static inline kern_id mad_n(const struct math *m, kern_id x, double y, kern_id z) { return mad(m, x, num(m, y), z); }
static inline kern_id lt_n(const struct math *m, kern_id x, double y) { return lt(m, x, num(m, y)); }
static inline kern_id sel_n(const struct math *m, kern_id mask, double yes, kern_id no) {
  return sel(m, mask, num(m, yes), no);
}
static inline kern_id both_n(const struct math *m, kern_id x, int64_t y) { return both(m, x, whole(m, y)); }
/* Shifts of integers by a constant. */
static inline kern_id shl(const struct math *m, kern_id x, int by) { return kern_bin(m->b, KERN_SHL, x, whole(m, by)); }
static inline kern_id shr(const struct math *m, kern_id x, int by) { return kern_bin(m->b, KERN_SHR, x, whole(m, by)); }

static inline kern_id to_bits(const struct math *m, kern_id x) { return kern_bitcast(m->b, x, m->whole); }
static inline kern_id from_bits(const struct math *m, kern_id x) { return kern_bitcast(m->b, x, m->dtype); }

/* x, but no less than lo and no more than hi; NaN stays. */
static inline kern_id at_least(const struct math *m, kern_id x, double lo) {
  kern_id bound = num(m, lo);
  return sel(m, lt(m, x, bound), bound, x);
}
static inline kern_id at_most(const struct math *m, kern_id x, double hi) {
  kern_id bound = num(m, hi);
  return sel(m, lt(m, bound, x), bound, x);
}

/* ---- math_parts.c ---------------------------------------------------------------------------------------- */

/* c[0] x^(n-1) + ... + c[n-1], one fma per coefficient. */
kern_id math_poly(const struct math *m, kern_id x, size_t n, const double *c);
#define MATH_POLY(m, x, c) math_poly((m), (x), BASE_COUNT(c), (c))

/* |y| with the sign of x. y has no sign of its own. */
kern_id math_with_sign(const struct math *m, kern_id y, kern_id x);
/* The sign bit of x as integers. */
kern_id math_sign_bit(const struct math *m, kern_id x);

/* e^x = (1 + r + r^2 q) s^2 with s a power of two and r in [-ln 2, ln 2]; x was clamped to where e^x is neither 0 nor
** infinite, or little beyond. */
struct math_exp {
  kern_id q, r, s;
};
struct math_exp math_exp_parts(const struct math *m, kern_id x);
kern_id math_exp_power(const struct math *m, struct math_exp e); /* e^r */
kern_id math_exp(const struct math *m, kern_id x);
kern_id math_expm1(const struct math *m, kern_id x);

/* erfc x, of scaled = e^(a^2) erfc a, a = |x|. */
kern_id math_erfc(const struct math *m, kern_id x, kern_id a, kern_id scaled);

/* x = 2^k (1 + f) with 1 + f in [sqrt 1/2, sqrt 2); k is a float. x is positive and normal. */
struct math_log {
  kern_id f, k, k_whole;
};
struct math_log math_log_parts(const struct math *m, kern_id x);

/* An odd function that tends to 1: at |x| = i / scale + r with i = round(|x| scale) < 16 a polynomial in r, whose
** coefficients are looked up by i, table[j][i] of r^j; for i = 0 of f(r) - r, without even powers. |x| counts no more
** than top. */
struct math_table {
  double scale, step, top; /* step = 1 / scale, rounded */
  int degree;
  const double (*table)[16];
};
kern_id math_by_table(const struct math *m, kern_id x, const struct math_table *t);

/* Exact: sum or product = hi + lo. */
struct math_pair {
  kern_id hi, lo;
};
struct math_pair math_two_sum(const struct math *m, kern_id x, kern_id y);
struct math_pair math_fast_two_sum(const struct math *m, kern_id x, kern_id y); /* |x| >= |y| */
struct math_pair math_two_product(const struct math *m, kern_id x, kern_id y);

/* The greatest lane of a value, as a scalar. */
kern_id math_greatest_lane(struct kern_builder *b, kern_id x);

/* min(|y|, |x|) / max(|y|, |x|), and the angle of the point (x, y) once `angle` is the arc tangent of that. */
kern_id math_slope(const struct math *m, kern_id y, kern_id x);
kern_id math_turn(const struct math *m, kern_id angle, kern_id y, kern_id x);

/* a^b once y is right for |a|^b: signs, and what is not a number. */
kern_id math_pow_ends(const struct math *m, kern_id y, kern_id a, kern_id b);

/* a mod b once rest is |a| mod |b| = |a| mod by, or by more or less. */
kern_id math_mod_ends(const struct math *m, kern_id rest, kern_id by, kern_id a, kern_id b);

/* f64: x = 2^k m with m in [0.69921875, 1.3984375); part is which of 16 parts of these m lies in, inverse is about
** 1/m, of 9 bits, and 1 in the part about 1. x is positive and normal. */
struct math_octave {
  kern_id m, k, part, inverse;
};
struct math_octave math_octave(const struct math *m, kern_id x);

/* Entry i, an i32, of a table. */
kern_id math_lookup(const struct math *m, kern_id i, const double at[16]);

/* log and log1p once x, or 1 + x, is in parts and its result y is right for finite numbers above 0. */
kern_id math_log_ends(const struct math *m, kern_id y, kern_id x, double pole);

/* ---- the functions, by dtype ----------------------------------------------------------------------------- */

typedef kern_id math_unary(struct kern_builder *b, kern_id x);
typedef kern_id math_binary(struct kern_builder *b, kern_id x, kern_id y);

math_unary math_exp_f32, math_expm1_f32, math_log_f32, math_log1p_f32, math_sin_f32, math_cos_f32, math_tanh_f32,
    math_erf_f32, math_erfc_f32;
math_binary math_pow_f32, math_atan2_f32, math_mod_f32;

math_unary math_exp_f64, math_expm1_f64, math_log_f64, math_log1p_f64, math_sin_f64, math_cos_f64, math_tanh_f64,
    math_erf_f64, math_erfc_f64;
math_binary math_pow_f64, math_atan2_f64, math_mod_f64;

#endif
