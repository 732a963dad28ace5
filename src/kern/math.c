/* kern/math.c -- elementwise ops of the graph as instructions: which op is which
** in:    an op of ir/ops.def on values of its sources' dtypes      out: its value, of the result's dtype
** keeps: floats of 8 and 16 bits are computed in f32 and rounded once; an elementwise op without a rule does not
**        compile
** see:   math_parts.c, math_f32.c, math_f64.c (the functions), docs/ir.md (what they mean)
** tests: tests/kern/test_math.c
*/
#include "kern/math_int.h"

struct call {
  struct kern_builder *b;
  quern_dtype dtype; /* of the result */
  const kern_id *x;
};
typedef kern_id rule(const struct call *c);

static quern_dtype dtype_of(const struct call *c, int i) { return math_type(c->b, c->x[i]).dtype; }

/* The dtype that a float is computed in; other dtypes are their own. */
static quern_dtype computed(quern_dtype dtype) {
  return base_dtype_is(dtype, BASE_FLOAT) && dtype != QUERN_DTYPE_F64 ? QUERN_DTYPE_F32 : dtype;
}
static kern_id source(const struct call *c, int i) { return kern_cast(c->b, c->x[i], computed(dtype_of(c, i))); }
static kern_id result(const struct call *c, kern_id y) { return kern_cast(c->b, y, c->dtype); }

static kern_id zero_like(const struct call *c, kern_id x) {
  struct kern_inst t = math_type(c->b, x);
  return kern_const_bits(c->b, t.dtype, t.lanes, 0);
}
static kern_id number_like(const struct call *c, kern_id x, int64_t value) {
  struct kern_inst t = math_type(c->b, x);
  bool is_float = base_dtype_is(t.dtype, BASE_FLOAT);
  return is_float ? kern_const_f(c->b, t.dtype, t.lanes, (double)value) : kern_const_i(c->b, t.dtype, t.lanes, value);
}

/* ---- ops that are one instruction ------------------------------------------------------------------------- */

static kern_id unary(const struct call *c, enum kern_op op) { return result(c, kern_un(c->b, op, source(c, 0))); }
static kern_id compare(const struct call *c, enum kern_op op) {
  kern_id x = source(c, 0);
  return kern_bin(c->b, op, x, source(c, 1));
}
static kern_id binary(const struct call *c, enum kern_op op) { return result(c, compare(c, op)); }

#define UNARY(NAME)                                                                                                    \
  static kern_id math_##NAME(const struct call *c) { return unary(c, KERN_##NAME); }
#define BINARY(NAME)                                                                                                   \
  static kern_id math_##NAME(const struct call *c) { return binary(c, KERN_##NAME); }

UNARY(NEG)
UNARY(FLOOR)
UNARY(CEIL)
UNARY(ROUND)
UNARY(TRUNC)
UNARY(SQRT)
UNARY(NOT)
BINARY(ADD)
BINARY(SUB)
BINARY(MUL)
BINARY(DIV)
BINARY(MAX)
BINARY(MIN)
BINARY(AND)
BINARY(OR)
BINARY(XOR)
BINARY(SHL)
BINARY(SHR)

/* ---- bits and conversions --------------------------------------------------------------------------------- */

static kern_id math_STOP_GRAD(const struct call *c) { return c->x[0]; }
static kern_id math_CHECKPOINT(const struct call *c) { return c->x[0]; }
static kern_id math_CAST(const struct call *c) { return kern_cast(c->b, c->x[0], c->dtype); }
static kern_id math_BITCAST(const struct call *c) {
  return dtype_of(c, 0) == c->dtype ? c->x[0] : kern_bitcast(c->b, c->x[0], c->dtype);
}
static kern_id math_SELECT(const struct call *c) { return kern_select(c->b, c->x[0], c->x[1], c->x[2]); }

/* ---- order: of bools by logic ----------------------------------------------------------------------------- */

static kern_id math_EQ(const struct call *c) {
  if (dtype_of(c, 0) != QUERN_DTYPE_BOOL) return compare(c, KERN_EQ);
  return kern_un(c->b, KERN_NOT, kern_bin(c->b, KERN_XOR, c->x[0], c->x[1]));
}
static kern_id math_LT(const struct call *c) {
  if (dtype_of(c, 0) != QUERN_DTYPE_BOOL) return compare(c, KERN_LT);
  return kern_bin(c->b, KERN_AND, kern_un(c->b, KERN_NOT, c->x[0]), c->x[1]);
}
static kern_id math_LE(const struct call *c) {
  if (dtype_of(c, 0) != QUERN_DTYPE_BOOL) return compare(c, KERN_LE);
  return kern_bin(c->b, KERN_OR, kern_un(c->b, KERN_NOT, c->x[0]), c->x[1]);
}

static kern_id math_ABS(const struct call *c) {
  return base_dtype_is(c->dtype, BASE_UNSIGNED) ? c->x[0] : unary(c, KERN_ABS);
}

/* -0, 0 and NaN are their own. */
static kern_id math_SIGN(const struct call *c) {
  kern_id x = source(c, 0), zero = zero_like(c, x), above = kern_bin(c->b, KERN_LT, zero, x);
  kern_id y = kern_select(c->b, above, number_like(c, x, 1), x);
  if (base_dtype_is(c->dtype, BASE_UNSIGNED)) return y;
  kern_id below = kern_bin(c->b, KERN_LT, x, zero);
  return result(c, kern_select(c->b, below, number_like(c, x, -1), y));
}

/* ---- functions -------------------------------------------------------------------------------------------- */

#define FUNCTION(NAME, name)                                                                                           \
  static kern_id math_##NAME(const struct call *c) {                                                                   \
    math_unary *f = c->dtype == QUERN_DTYPE_F64 ? math_##name##_f64 : math_##name##_f32;                               \
    return result(c, f(c->b, source(c, 0)));                                                                           \
  }
#define FUNCTION2(rule_name, name)                                                                                     \
  static kern_id rule_name(const struct call *c) {                                                                     \
    math_binary *f = c->dtype == QUERN_DTYPE_F64 ? math_##name##_f64 : math_##name##_f32;                              \
    kern_id x = source(c, 0);                                                                                          \
    return result(c, f(c->b, x, source(c, 1)));                                                                        \
  }

FUNCTION(EXP, exp)
FUNCTION(EXPM1, expm1)
FUNCTION(LOG, log)
FUNCTION(LOG1P, log1p)
FUNCTION(SIN, sin)
FUNCTION(COS, cos)
FUNCTION(TANH, tanh)
FUNCTION(ERF, erf)
FUNCTION(ERFC, erfc)
FUNCTION2(math_POW, pow)
FUNCTION2(math_ATAN2, atan2)
FUNCTION2(mod_of_floats, mod)

static kern_id math_MOD(const struct call *c) {
  return base_dtype_is(c->dtype, BASE_FLOAT) ? mod_of_floats(c) : binary(c, KERN_MOD);
}

/* ---- the table: of each row of ops.def the rule, when its kind of inference is an elementwise one --------- */

#define RULE_SAME(NAME) math_##NAME
#define RULE_PAIR(NAME) math_##NAME
#define RULE_COMPARE(NAME) math_##NAME
#define RULE_SELECT(NAME) math_##NAME
#define RULE_CAST(NAME) math_##NAME
#define RULE_BITCAST(NAME) math_##NAME
#define RULE_LEAF(NAME) NULL
#define RULE_CONST(NAME) NULL
#define RULE_IOTA(NAME) NULL
#define RULE_RANDOM(NAME) NULL
#define RULE_RESHAPE(NAME) NULL
#define RULE_PERMUTE(NAME) NULL
#define RULE_BROADCAST(NAME) NULL
#define RULE_PAD(NAME) NULL
#define RULE_SLICE(NAME) NULL
#define RULE_FLIP(NAME) NULL
#define RULE_CONCAT(NAME) NULL
#define RULE_SLICE_AT(NAME) NULL
#define RULE_UPDATE_AT(NAME) NULL
#define RULE_WINDOW(NAME) NULL
#define RULE_COL2IM(NAME) NULL
#define RULE_GATHER(NAME) NULL
#define RULE_SCATTER(NAME) NULL
#define RULE_REDUCE(NAME) NULL
#define RULE_ARGREDUCE(NAME) NULL
#define RULE_SCAN(NAME) NULL
#define RULE_SORT(NAME) NULL
#define RULE_DOT(NAME) NULL
#define RULE_LOOP(NAME) NULL
#define RULE_WHILE(NAME) NULL
#define RULE_IF(NAME) NULL
#define RULE_COMPOSITE(NAME) NULL

static rule *const rules[IR_OP_COUNT] = {
#define OP(NAME, text, n_src, n_out, INFER, ...) [IR_##NAME] = RULE_##INFER(NAME),
#include "ir/ops.def"
#undef OP
};

kern_id kern_math(struct kern_builder *b, enum ir_op op, quern_dtype dtype, int n, const kern_id *x) {
  QUERN_ASSERT(rules[op] != NULL && n == ir_ops[op].n_src);
  (void)n;
  return rules[op](&(struct call){b, dtype, x});
}
