/* tensor/elementwise.c -- operations element by element, with broadcasting
** A builder that is one primitive is a line of a table; the rest are compositions.
** keeps: no dtype is ever changed silently
** tests: tests/tensor/test_elementwise.c
*/
#include "tensor/compound.h"

#include <math.h>

/* ---- one operand --------------------------------------------------------------------------------------- */

static quern_tensor *unary(const char *what, enum ir_op op, quern_tensor *x) {
  TENSOR_ENTER(ctx, what, x);
  if (!tensor_admits(what, x, ir_ops[op].dtypes)) return &ir_poison;
  return IR_MAKE(ctx, op, NULL, x);
}

#define UNARY(name, OP)                                                                                                \
  quern_tensor *quern_##name(quern_tensor *x) { return unary(#name, IR_##OP, x); }
UNARY(neg, NEG)
UNARY(abs, ABS)
UNARY(sign, SIGN)
UNARY(floor, FLOOR)
UNARY(ceil, CEIL)
UNARY(round, ROUND)
UNARY(trunc, TRUNC)
UNARY(exp, EXP)
UNARY(expm1, EXPM1)
UNARY(log, LOG)
UNARY(log1p, LOG1P)
UNARY(sqrt, SQRT)
UNARY(sin, SIN)
UNARY(cos, COS)
UNARY(tanh, TANH)
UNARY(erf, ERF)
UNARY(erfc, ERFC)
UNARY(not, NOT)
UNARY(stop_gradient, STOP_GRAD)
UNARY(checkpoint_activation, CHECKPOINT)
#undef UNARY

/* Quotients of functions: of short floats computed in f32, so that they are rounded once. */
static quern_tensor *one_over_root(quern_context *ctx, quern_tensor *x) {
  quern_tensor *w = tensor_widen(x), *one = tensor_full_of(w, 1);
  return tensor_to(IR_MAKE(ctx, IR_DIV, NULL, one, IR_MAKE(ctx, IR_SQRT, NULL, w)), x->dtype);
}
static quern_tensor *sine_over_cosine(quern_context *ctx, quern_tensor *x) {
  quern_tensor *w = tensor_widen(x), *sine = IR_MAKE(ctx, IR_SIN, NULL, w);
  return tensor_to(IR_MAKE(ctx, IR_DIV, NULL, sine, IR_MAKE(ctx, IR_COS, NULL, w)), x->dtype);
}
/* |x| op infinity */
static quern_tensor *size_to_infinity(quern_context *ctx, enum ir_op op, quern_tensor *x) {
  quern_tensor *size = IR_MAKE(ctx, IR_ABS, NULL, x);
  return IR_MAKE(ctx, op, NULL, size, tensor_full_of(x, (double)INFINITY));
}

/* Compositions of one operand of a class: the expression of x. */
#define COMPOSED(name, CLASS, expression)                                                                              \
  quern_tensor *quern_##name(quern_tensor *x) {                                                                        \
    TENSOR_ENTER(ctx, #name, x);                                                                                       \
    return tensor_admits(#name, x, CLASS) ? (expression) : &ir_poison;                                                 \
  }
COMPOSED(reciprocal, BASE_FLOAT, IR_MAKE(ctx, IR_DIV, NULL, tensor_full_of(x, 1), x))
COMPOSED(rsqrt, BASE_FLOAT, one_over_root(ctx, x))
COMPOSED(square, BASE_NUM, IR_MAKE(ctx, IR_MUL, NULL, x, x))
COMPOSED(tan, BASE_FLOAT, sine_over_cosine(ctx, x))
COMPOSED(isnan, BASE_FLOAT, IR_MAKE(ctx, IR_NOT, NULL, IR_MAKE(ctx, IR_EQ, NULL, x, x)))
COMPOSED(isinf, BASE_FLOAT, size_to_infinity(ctx, IR_EQ, x))
/* A dtype without infinities is finite where it is not NaN. */
COMPOSED(isfinite, BASE_FLOAT,
         base_dtypes[x->dtype].inf ? size_to_infinity(ctx, IR_LT, x) : IR_MAKE(ctx, IR_EQ, NULL, x, x))
#undef COMPOSED

quern_tensor *quern_cast(quern_tensor *x, quern_dtype dtype) {
  TENSOR_ENTER(ctx, "cast", x);
  if (!tensor_type_ok("cast", ctx, dtype, x->rank, x->dims)) return &ir_poison;
  return x->dtype == dtype ? x : IR_MAKE(ctx, IR_CAST, TENSOR_ATTRS(.dtype = dtype), x);
}

quern_tensor *quern_bitcast(quern_tensor *x, quern_dtype dtype) {
  TENSOR_ENTER(ctx, "bitcast", x);
  if (!tensor_type_ok("bitcast", ctx, dtype, x->rank, x->dims)) return &ir_poison;
  return x->dtype == dtype ? x : IR_MAKE(ctx, IR_BITCAST, TENSOR_ATTRS(.dtype = dtype), x);
}

/* ---- two operands -------------------------------------------------------------------------------------- */

/* op(a, b) broadcast; swap: op(b, a). */
static quern_tensor *binary(const char *what, enum ir_op op, bool swap, quern_tensor *a, quern_tensor *b) {
  TENSOR_ENTER(ctx, what, a, b);
  quern_tensor *xs[2] = {a, b};
  if (!tensor_same_dtype(what, 2, xs) || !tensor_admits(what, a, ir_ops[op].dtypes) || !tensor_broadcast(what, 2, xs)) {
    return &ir_poison;
  }
  return IR_MAKE(ctx, op, NULL, xs[swap], xs[!swap]);
}

#define BINARY(name, OP, swap)                                                                                         \
  quern_tensor *quern_##name(quern_tensor *a, quern_tensor *b) { return binary(#name, IR_##OP, swap, a, b); }
BINARY(add, ADD, false)
BINARY(sub, SUB, false)
BINARY(mul, MUL, false)
BINARY(div, DIV, false)
BINARY(mod, MOD, false)
BINARY(pow, POW, false)
BINARY(atan2, ATAN2, false)
BINARY(maximum, MAX, false)
BINARY(minimum, MIN, false)
BINARY(and, AND, false)
BINARY(or, OR, false)
BINARY(xor, XOR, false)
BINARY(shl, SHL, false)
BINARY(shr, SHR, false)
BINARY(eq, EQ, false)
BINARY(lt, LT, false)
BINARY(le, LE, false)
BINARY(gt, LT, true)
BINARY(ge, LE, true)
#undef BINARY

quern_tensor *quern_ne(quern_tensor *a, quern_tensor *b) {
  quern_tensor *equal = binary("ne", IR_EQ, false, a, b);
  return ir_is_poison(equal) ? equal : IR_MAKE(equal->node->ctx, IR_NOT, NULL, equal);
}

/* op(x, value), the value being a constant of x's dtype. */
static quern_tensor *with_scalar(const char *what, enum ir_op op, quern_tensor *x, double value) {
  TENSOR_ENTER(ctx, what, x);
  if (!tensor_admits(what, x, ir_ops[op].dtypes)) return &ir_poison;
  quern_tensor *scalar = tensor_scalar(what, ctx, x->dtype, value);
  return ir_is_poison(scalar) ? scalar : binary(what, op, false, x, scalar);
}

quern_tensor *quern_add_scalar(quern_tensor *x, double value) { return with_scalar("add_scalar", IR_ADD, x, value); }

quern_tensor *quern_mul_scalar(quern_tensor *x, double value) { return with_scalar("mul_scalar", IR_MUL, x, value); }

quern_tensor *quern_div_scalar(quern_tensor *x, double value) { return with_scalar("div_scalar", IR_DIV, x, value); }

quern_tensor *quern_pow_scalar(quern_tensor *x, double value) {
  TENSOR_ENTER(ctx, "pow_scalar", x);
  if (!tensor_admits("pow_scalar", x, BASE_FLOAT)) return &ir_poison;
  if (value == 1) return x;
  return value == 2 ? IR_MAKE(ctx, IR_MUL, NULL, x, x) : with_scalar("pow_scalar", IR_POW, x, value);
}

quern_tensor *quern_clip(quern_tensor *x, double lo, double hi) {
  TENSOR_ENTER(ctx, "clip", x);
  if (!tensor_admits("clip", x, BASE_NUM)) return &ir_poison;
  TENSOR_CHECK(ctx, lo <= hi, INVALID, "clip: lo %g is not at most hi %g", lo, hi);
  quern_tensor *above = with_scalar("clip", IR_MAX, x, lo);
  return ir_is_poison(above) ? above : with_scalar("clip", IR_MIN, above, hi);
}

quern_tensor *quern_where(quern_tensor *cond, quern_tensor *a, quern_tensor *b) {
  TENSOR_ENTER(ctx, "where", cond, a, b);
  TENSOR_CHECK(ctx, cond->dtype == QUERN_DTYPE_BOOL, DTYPE,
               "where: the condition is %s, must be bool HINT: a comparison such as quern_ne gives a bool",
               TENSOR_TYPE(cond));
  TENSOR_CHECK(ctx, a->dtype == b->dtype, DTYPE,
               "where: dtypes differ: a is %s, b is %s HINT: quern_cast makes them equal", TENSOR_TYPE(a),
               TENSOR_TYPE(b));
  quern_tensor *xs[3] = {cond, a, b};
  return tensor_broadcast("where", 3, xs) ? ir_make(ctx, IR_SELECT, 3, xs, NULL) : &ir_poison;
}
