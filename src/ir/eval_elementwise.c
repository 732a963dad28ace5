/* ir/eval_elementwise.c -- the reference evaluator: one function on scalars an op, and a loop
** keeps: floats are computed in double and rounded once when stored; integers in 64 bits, which wrap,
**        and the low ones are stored; a bool is 0 or 1
** tests: tests/ir/test_eval_float.c, tests/ir/test_eval_int.c
*/
#include "ir/eval.h"

#include <math.h>

/* ---- floats ----------------------------------------------------------------------------------------- */

static double float_neg(double x) { return -x; }
static double float_sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

static double float_add(double a, double b) { return a + b; }
static double float_sub(double a, double b) { return a - b; }
static double float_mul(double a, double b) { return a * b; }
static double float_div(double a, double b) { return a / b; }

/* As in Python: where fmod has the sign of a, b is added once. A multiple of b gives a zero with b's sign. */
static double float_mod(double a, double b) {
  double rest = fmod(a, b);
  if (rest == 0) return copysign(0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

static double float_max(double a, double b) {
  if (isnan(a) || isnan(b)) return NAN;
  if (a == b) return signbit(a) ? b : a;
  return a > b ? a : b;
}

static double float_min(double a, double b) {
  if (isnan(a) || isnan(b)) return NAN;
  if (a == b) return signbit(a) ? a : b;
  return a < b ? a : b;
}

static bool float_eq(double a, double b) { return a == b; }
static bool float_lt(double a, double b) { return a < b; }
static bool float_le(double a, double b) { return a <= b; }

/* ---- integers and bools: 64 bits, sign-extended when the dtype is signed ---------------------------- */

static bool is_negative(quern_dtype dtype, uint64_t x) { return base_dtype_is(dtype, BASE_SIGNED) && x >> 63 != 0; }
static uint64_t magnitude(quern_dtype dtype, uint64_t x) { return is_negative(dtype, x) ? 0 - x : x; }

static uint64_t int_neg(quern_dtype dtype, uint64_t x) { return (void)dtype, 0 - x; }
static uint64_t int_abs(quern_dtype dtype, uint64_t x) { return magnitude(dtype, x); }

static uint64_t int_sign(quern_dtype dtype, uint64_t x) {
  if (is_negative(dtype, x)) return UINT64_MAX;
  return x != 0;
}

static uint64_t int_not(quern_dtype dtype, uint64_t x) { return dtype == QUERN_DTYPE_BOOL ? 1 - x : ~x; }

static uint64_t int_add(quern_dtype dtype, uint64_t a, uint64_t b) { return (void)dtype, a + b; }
static uint64_t int_sub(quern_dtype dtype, uint64_t a, uint64_t b) { return (void)dtype, a - b; }
static uint64_t int_mul(quern_dtype dtype, uint64_t a, uint64_t b) { return (void)dtype, a * b; }

/* The floor: of operands with unlike signs, the magnitudes' quotient is rounded up and negated. */
static uint64_t int_div(quern_dtype dtype, uint64_t a, uint64_t b) {
  if (b == 0) return 0;
  uint64_t size = magnitude(dtype, a), by = magnitude(dtype, b);
  if (is_negative(dtype, a) == is_negative(dtype, b)) return size / by;
  return 0 - (size / by + (size % by != 0));
}

static uint64_t int_mod(quern_dtype dtype, uint64_t a, uint64_t b) { return b == 0 ? 0 : a - b * int_div(dtype, a, b); }

static uint64_t int_eq(quern_dtype dtype, uint64_t a, uint64_t b) { return (void)dtype, a == b; }

static uint64_t int_lt(quern_dtype dtype, uint64_t a, uint64_t b) {
  bool negative = is_negative(dtype, a);
  return negative != is_negative(dtype, b) ? negative : a < b;
}

static uint64_t int_le(quern_dtype dtype, uint64_t a, uint64_t b) { return !int_lt(dtype, b, a); }
static uint64_t int_max(quern_dtype dtype, uint64_t a, uint64_t b) { return int_lt(dtype, a, b) ? b : a; }
static uint64_t int_min(quern_dtype dtype, uint64_t a, uint64_t b) { return int_lt(dtype, b, a) ? b : a; }

static uint64_t int_and(quern_dtype dtype, uint64_t a, uint64_t b) { return (void)dtype, a & b; }
static uint64_t int_or(quern_dtype dtype, uint64_t a, uint64_t b) { return (void)dtype, a | b; }
static uint64_t int_xor(quern_dtype dtype, uint64_t a, uint64_t b) { return (void)dtype, a ^ b; }

/* A negative count, sign-extended, is beyond every width. */
static bool shifts_out(quern_dtype dtype, uint64_t count) { return count >= (uint64_t)base_dtypes[dtype].bits; }

static uint64_t int_shl(quern_dtype dtype, uint64_t a, uint64_t b) { return shifts_out(dtype, b) ? 0 : a << b; }

static uint64_t int_shr(quern_dtype dtype, uint64_t a, uint64_t b) {
  uint64_t sign = is_negative(dtype, a) ? UINT64_MAX : 0;
  return shifts_out(dtype, b) ? sign : (a ^ sign) >> b ^ sign;
}

/* ---- pairs, also for reductions and contractions ---------------------------------------------------- */

const struct eval_pair eval_reduce_pairs[IR_REDUCE_COUNT] = {
    [IR_SUM] = {float_add, int_add},
    [IR_PROD] = {float_mul, int_mul},
    [IR_REDUCE_MAX] = {float_max, int_max},
    [IR_REDUCE_MIN] = {float_min, int_min},
};

const struct eval_pair eval_combine_pairs[IR_COMBINE_COUNT] = {
    [IR_COMBINE_MUL] = {float_mul, int_mul},
    [IR_COMBINE_ADD] = {float_add, int_add},
    [IR_COMBINE_MAX] = {float_max, int_max},
    [IR_COMBINE_MIN] = {float_min, int_min},
};

union eval_scalar eval_apply(const struct eval_pair *pair, quern_dtype dtype, union eval_scalar a,
                             union eval_scalar b) {
  bool is_float = base_dtype_is(dtype, BASE_FLOAT);
  QUERN_ASSERT(is_float ? pair->f != NULL : pair->i != NULL); /* inference admits no other dtype */
  if (is_float) return (union eval_scalar){.f = pair->f(a.f, b.f)};
  return (union eval_scalar){.i = pair->i(dtype, a.i, b.i)};
}

bool eval_before(quern_dtype dtype, union eval_scalar a, union eval_scalar b) {
  if (!base_dtype_is(dtype, BASE_FLOAT)) return int_lt(dtype, a.i, b.i) != 0;
  return isnan(b.f) ? !isnan(a.f) : a.f < b.f;
}

/* ---- one source ------------------------------------------------------------------------------------- */

static quern_status unary(struct eval_call *call, double (*f)(double), uint64_t (*i)(quern_dtype, uint64_t)) {
  quern_dtype dtype = call->node->out->dtype;
  bool is_float = base_dtype_is(dtype, BASE_FLOAT);
  QUERN_ASSERT(is_float ? f != NULL : i != NULL); /* inference admits no other dtype */
  int64_t count = ir_count(call->node->out);
  for (int64_t n = 0; n < count; n++) {
    union eval_scalar x = eval_load(dtype, call->src[0], n);
    if (is_float) x.f = f(x.f);
    if (!is_float) x.i = i(dtype, x.i);
    eval_store(dtype, call->dst[0], n, x);
  }
  return QUERN_STATUS_OK;
}

#define UNARY(NAME, f, i)                                                                                              \
  quern_status eval_##NAME(struct eval_call *call) { return unary(call, f, i); }

UNARY(NEG, float_neg, int_neg)
UNARY(ABS, fabs, int_abs)
UNARY(SIGN, float_sign, int_sign)
UNARY(FLOOR, floor, NULL)
UNARY(CEIL, ceil, NULL)
UNARY(ROUND, rint, NULL)
UNARY(TRUNC, trunc, NULL)
UNARY(EXP, exp, NULL)
UNARY(EXPM1, expm1, NULL)
UNARY(LOG, log, NULL)
UNARY(LOG1P, log1p, NULL)
UNARY(SQRT, sqrt, NULL)
UNARY(SIN, sin, NULL)
UNARY(COS, cos, NULL)
UNARY(TANH, tanh, NULL)
UNARY(ERF, erf, NULL)
UNARY(ERFC, erfc, NULL)
UNARY(NOT, NULL, int_not)

/* The bits of source 0 as they are. */
static quern_status same_bits(struct eval_call *call) {
  eval_copy_bytes(call->dst[0], call->src[0], ir_bytes(call->node->out));
  return QUERN_STATUS_OK;
}

quern_status eval_STOP_GRAD(struct eval_call *call) { return same_bits(call); }
quern_status eval_CHECKPOINT(struct eval_call *call) { return same_bits(call); }
quern_status eval_BITCAST(struct eval_call *call) { return same_bits(call); }
quern_status eval_RESHAPE(struct eval_call *call) { return same_bits(call); }

quern_status eval_CAST(struct eval_call *call) {
  const quern_tensor *x = call->node->src[0], *y = call->node->out;
  size_t count = (size_t)ir_count(y);
  for (size_t n = 0; n < count; n++) base_convert(y->dtype, call->dst[0], n, x->dtype, call->src[0], n);
  return QUERN_STATUS_OK;
}

/* ---- two sources, three sources --------------------------------------------------------------------- */

static quern_status binary(struct eval_call *call, struct eval_pair pair) {
  quern_dtype dtype = call->node->out->dtype;
  int64_t count = ir_count(call->node->out);
  for (int64_t n = 0; n < count; n++) {
    union eval_scalar a = eval_load(dtype, call->src[0], n), b = eval_load(dtype, call->src[1], n);
    eval_store(dtype, call->dst[0], n, eval_apply(&pair, dtype, a, b));
  }
  return QUERN_STATUS_OK;
}

#define BINARY(NAME, f, i)                                                                                             \
  quern_status eval_##NAME(struct eval_call *call) { return binary(call, (struct eval_pair){f, i}); }

BINARY(ADD, float_add, int_add)
BINARY(SUB, float_sub, int_sub)
BINARY(MUL, float_mul, int_mul)
BINARY(DIV, float_div, int_div)
BINARY(MOD, float_mod, int_mod)
BINARY(POW, pow, NULL)
BINARY(ATAN2, atan2, NULL)
BINARY(MAX, float_max, int_max)
BINARY(MIN, float_min, int_min)
BINARY(AND, NULL, int_and)
BINARY(OR, NULL, int_or)
BINARY(XOR, NULL, int_xor)
BINARY(SHL, NULL, int_shl)
BINARY(SHR, NULL, int_shr)

static quern_status compare(struct eval_call *call, bool (*f)(double, double),
                            uint64_t (*i)(quern_dtype, uint64_t, uint64_t)) {
  quern_dtype dtype = call->node->src[0]->dtype;
  bool is_float = base_dtype_is(dtype, BASE_FLOAT);
  QUERN_ASSERT(is_float ? f != NULL : i != NULL); /* inference admits no other dtype */
  int64_t count = ir_count(call->node->out);
  for (int64_t n = 0; n < count; n++) {
    union eval_scalar a = eval_load(dtype, call->src[0], n), b = eval_load(dtype, call->src[1], n);
    uint64_t y = is_float ? f(a.f, b.f) : i(dtype, a.i, b.i);
    base_store_int(QUERN_DTYPE_BOOL, call->dst[0], (size_t)n, y);
  }
  return QUERN_STATUS_OK;
}

quern_status eval_EQ(struct eval_call *call) { return compare(call, float_eq, int_eq); }
quern_status eval_LT(struct eval_call *call) { return compare(call, float_lt, int_lt); }
quern_status eval_LE(struct eval_call *call) { return compare(call, float_le, int_le); }

quern_status eval_SELECT(struct eval_call *call) {
  const quern_tensor *y = call->node->out;
  int64_t count = ir_count(y);
  for (int64_t n = 0; n < count; n++) {
    bool a = base_load_int(QUERN_DTYPE_BOOL, call->src[0], (size_t)n) != 0;
    eval_copy(y->dtype, call->dst[0], n, a ? call->src[1] : call->src[2], n);
  }
  return QUERN_STATUS_OK;
}
