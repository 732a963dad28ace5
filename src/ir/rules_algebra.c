/* ir/rules_algebra.c -- rewrite rules of elementwise ops that are more than a pattern
** see: rules.def                               tests: tests/ir/test_rules.c, tests/prop/
*/
#include <math.h>

#include "ir/rules.h"

/* ---- powers of two ----------------------------------------------------------------------------------- */

/* n of the positive integer constant 2^n that t is, or -1. */
static int log2_of(const quern_tensor *t) {
  unsigned char bits[8];
  if (!base_dtype_is(t->dtype, BASE_INT) || !ir_uniform(t, bits)) return -1;
  uint64_t value = base_load_int(t->dtype, bits, 0);
  if (value == 0 || (value & (value - 1)) != 0) return -1;
  if (base_dtype_is(t->dtype, BASE_SIGNED) && value >> 63 != 0) return -1;
  return __builtin_ctzll(value);
}

static quern_tensor *full_int(const quern_tensor *like, uint64_t value) {
  unsigned char bits[8] = {0};
  base_store_int(like->dtype, bits, 0, value);
  return ir_full(like->node->ctx, like->dtype, like->rank, like->dims, bits);
}

quern_tensor *ir_rule_div_power(quern_context *ctx, struct ir_node *node) {
  quern_tensor *x = node->src[0], *k = node->src[1];
  unsigned char bits[8];
  if (!base_dtype_is(x->dtype, BASE_FLOAT) || !ir_uniform(k, bits)) return NULL;
  int exponent;
  double value = base_load_float(k->dtype, bits, 0), inverse = 1 / value;
  if (!isfinite(value) || value == 0 || fabs(frexp(value, &exponent)) != 0.5 || !isfinite(inverse)) return NULL;
  base_store_float(k->dtype, bits, 0, inverse);
  if (base_load_float(k->dtype, bits, 0) != inverse) return NULL;
  return IR_MAKE(ctx, IR_MUL, NULL, x, ir_full(ctx, x->dtype, x->rank, x->dims, bits));
}

quern_tensor *ir_rule_div_shift(quern_context *ctx, struct ir_node *node) {
  int n = log2_of(node->src[1]);
  if (n < 1) return NULL;
  return IR_MAKE(ctx, IR_SHR, NULL, node->src[0], full_int(node->src[0], (uint64_t)n));
}

quern_tensor *ir_rule_mod_mask(quern_context *ctx, struct ir_node *node) {
  int n = log2_of(node->src[1]);
  if (n < 1) return NULL;
  return IR_MAKE(ctx, IR_AND, NULL, node->src[0], full_int(node->src[0], (UINT64_C(1) << n) - 1));
}

/* ---- whole numbers and conversions ------------------------------------------------------------------- */

quern_tensor *ir_rule_whole(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  quern_tensor *x = node->src[0];
  switch (x->node->op) {
  case IR_FLOOR:
  case IR_CEIL:
  case IR_ROUND:
  case IR_TRUNC:
  case IR_SIGN: return x;
  case IR_CAST: return base_dtype_is(x->node->src[0]->dtype, BASE_BITS) ? x : NULL;
  default: return NULL;
  }
}

/* True when every value of a is a value of b. */
static bool holds(quern_dtype b, quern_dtype a) {
  const struct base_dtype_info *from = &base_dtypes[a], *to = &base_dtypes[b];
  if (a == b || from->class == BASE_BOOL) return true;
  if (to->class == BASE_BOOL) return false;
  if (from->class == BASE_FLOAT) {
    return to->class == BASE_FLOAT && to->mantissa >= from->mantissa && to->exponent >= from->exponent &&
           to->inf >= from->inf;
  }
  int digits = from->class == BASE_SIGNED ? from->bits - 1 : from->bits;
  if (to->class == BASE_FLOAT) return digits <= to->mantissa + 1;
  if (to->class == BASE_SIGNED) return digits <= to->bits - 1;
  return from->class == BASE_UNSIGNED && digits <= to->bits;
}

static quern_tensor *convert(quern_context *ctx, enum ir_op op, quern_tensor *x, quern_dtype dtype) {
  return x->dtype == dtype ? x : IR_MAKE(ctx, op, (&(struct ir_attrs){.dtype = dtype}), x);
}

quern_tensor *ir_rule_cast_same(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  return node->src[0]->dtype == node->attrs->dtype ? node->src[0] : NULL;
}

quern_tensor *ir_rule_cast_cast(quern_context *ctx, struct ir_node *node) {
  if (node->src[0]->node->op != IR_CAST) return NULL;
  quern_tensor *x = node->src[0]->node->src[0];
  quern_dtype a = x->dtype, b = node->src[0]->dtype, c = node->attrs->dtype;
  bool a_int = base_dtype_is(a, BASE_INT), b_int = base_dtype_is(b, BASE_INT), c_int = base_dtype_is(c, BASE_INT);
  bool wraps = a_int && b_int && c_int && base_dtypes[c].bits <= base_dtypes[b].bits;
  /* Floats saturate where integers wrap: through a float, the last dtype must hold all values. */
  bool keeps = holds(b, a) && (!a_int || b_int || !c_int || holds(c, a));
  return wraps || keeps ? convert(ctx, IR_CAST, x, c) : NULL;
}

quern_tensor *ir_rule_bitcast_same(quern_context *ctx, struct ir_node *node) { return ir_rule_cast_same(ctx, node); }

quern_tensor *ir_rule_bitcast_bitcast(quern_context *ctx, struct ir_node *node) {
  if (node->src[0]->node->op != IR_BITCAST) return NULL;
  return convert(ctx, IR_BITCAST, node->src[0]->node->src[0], node->attrs->dtype);
}

quern_tensor *ir_rule_stop_grad_leaf(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  enum ir_op op = node->src[0]->node->op;
  return op == IR_CONST || op == IR_IOTA || op == IR_RANDOM ? node->src[0] : NULL;
}

quern_tensor *ir_rule_checkpoint_leaf(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  return node->src[0]->node->op <= IR_PARAM ? node->src[0] : NULL;
}

/* ---- constants and stretched sources ----------------------------------------------------------------- */

quern_tensor *ir_rule_fold(quern_context *ctx, struct ir_node *node) {
  quern_tensor *y = &node->out[0];
  if (ir_count(y) > IR_FOLD_COUNT) return NULL;
  for (int i = 0; i < node->n_src; i++) {
    if (node->src[i]->node->op != IR_CONST || ir_count(node->src[i]) > IR_FOLD_COUNT) return NULL;
  }
  _Alignas(64) unsigned char data[IR_FOLD_COUNT * 8];
  if (ir_eval(ctx, 1, &y, &(void *){data}, 0, NULL) != QUERN_STATUS_OK) return ir_fail_last(ctx);
  struct ir_attrs attrs = {.dtype = y->dtype, .shape = {y->rank, y->dims}, .data = {.n = ir_bytes(y), .at = data}};
  return ir_make(ctx, IR_CONST, 0, NULL, &attrs);
}

quern_tensor *ir_rule_stretch(quern_context *ctx, struct ir_node *node) {
  const quern_tensor *y = &node->out[0];
  int64_t narrow[QUERN_MAX_RANK];
  bool any = false;
  for (int i = 0; i < node->n_src; i++) {
    if (node->src[i]->node->op != IR_BROADCAST) return NULL;
  }
  for (int k = 0; k < y->rank; k++) {
    bool stretched = y->dims[k] != 1;
    for (int i = 0; i < node->n_src; i++) stretched &= node->src[i]->node->src[0]->dims[k] == 1;
    narrow[k] = stretched ? 1 : y->dims[k];
    any |= stretched;
  }
  if (!any) return NULL;
  quern_tensor *src[3];
  for (int i = 0; i < node->n_src; i++) src[i] = ir_broadcast_to(node->src[i]->node->src[0], y->rank, narrow);
  return ir_broadcast_to(ir_make(ctx, node->op, node->n_src, src, node->attrs), y->rank, y->dims);
}
