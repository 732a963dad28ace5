/* ir/rules.c -- the table of rewrite rules, and what several of them need
** see: rules.def, rewrite.c                    tests: tests/ir/test_rules.c, tests/prop/
*/
#include <string.h>

#include "ir/rules.h"

enum { EXACT = true, APPROX = false };

const struct ir_rule ir_rules[] = {
#define PATTERN(name, OP, kind, DTYPES, identity) {#name, IR_##OP, kind, identity, BASE_##DTYPES, NULL, NULL},
#define CODE(name, OP, kind, function, identity) {#name, IR_##OP, kind, identity, BASE_ANY, ir_rule_##function, NULL},
#define MANY(name, OP, kind, function, identity) {#name, IR_##OP, kind, identity, BASE_ANY, NULL, ir_rule_##function},
#include "ir/rules.def"
#undef MANY
#undef CODE
#undef PATTERN
};
const size_t ir_rule_count = BASE_COUNT(ir_rules);

const quern_tensor *ir_const_of(const quern_tensor *t) {
  while (t->node->op == IR_BROADCAST || t->node->op == IR_RESHAPE) t = t->node->src[0];
  return t->node->op == IR_CONST ? t : NULL;
}

bool ir_is_small_const(const quern_tensor *t) {
  const quern_tensor *c = ir_const_of(t);
  return c != NULL && ir_count(c) <= IR_FOLD_COUNT;
}

bool ir_uniform(const quern_tensor *t, unsigned char bits[8]) {
  const quern_tensor *c = ir_const_of(t);
  if (c == NULL || c->node->attrs->data.n == 0) return false;
  size_t size = base_dtypes[c->dtype].size;
  const char *data = c->node->attrs->data.at;
  for (size_t i = size; i < c->node->attrs->data.n; i += size) {
    if (memcmp(data + i, data, size) != 0) return false;
  }
  memset(bits, 0, 8);
  memcpy(bits, data, size);
  return true;
}

quern_tensor *ir_full(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims,
                      const unsigned char bits[8]) {
  int64_t units[QUERN_MAX_RANK];
  for (int k = 0; k < rank; k++) units[k] = 1;
  struct ir_attrs attrs = {.dtype = dtype, .shape = {rank, units}, .data = {.n = base_dtypes[dtype].size, .at = bits}};
  return ir_broadcast_to(ir_make(ctx, IR_CONST, 0, NULL, &attrs), rank, dims);
}

static bool has_shape(const quern_tensor *x, int rank, const int64_t *dims) {
  return x->rank == rank && (rank == 0 || memcmp(x->dims, dims, (size_t)rank * sizeof *dims) == 0);
}

quern_tensor *ir_reshape_to(quern_tensor *x, int rank, const int64_t *dims) {
  if (ir_is_poison(x) || has_shape(x, rank, dims)) return x;
  return IR_MAKE(x->node->ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {rank, dims}}), x);
}

quern_tensor *ir_broadcast_to(quern_tensor *x, int rank, const int64_t *dims) {
  if (ir_is_poison(x) || has_shape(x, rank, dims)) return x;
  return IR_MAKE(x->node->ctx, IR_BROADCAST, (&(struct ir_attrs){.shape = {rank, dims}}), x);
}
