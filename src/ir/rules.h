/* ir/rules.h -- what the files of rewrite rules share; the rules themselves are rows of rules.def */
#ifndef IR_RULES_H
#define IR_RULES_H
#include "ir/ir.h"

/* The functions that rows of rules.def name. */
#define PATTERN(name, OP, EXACT, DTYPES, identity)
#define CODE(name, OP, EXACT, function, identity)                                                                      \
  quern_tensor *ir_rule_##function(quern_context *ctx, struct ir_node *node);
#define MANY(name, OP, EXACT, function, identity)                                                                      \
  bool ir_rule_##function(quern_context *ctx, struct ir_node *node, quern_tensor **out);
#include "ir/rules.def"
#undef MANY
#undef CODE
#undef PATTERN

/* ---- patterns (pattern.c) ---------------------------------------------------------------------------- */

/* What a pattern makes of a node, or NULL when it does not match. */
quern_tensor *ir_pattern_apply(quern_context *ctx, const struct ir_rule *rule, struct ir_node *node);

/* A constant the text of a pattern can name: a number, "inf", "-inf", "true", "false" or "ones" (all bits
** set). Leaves *at behind it and writes its bits as that dtype; false when there is none or the dtype has
** no such value. */
bool ir_pattern_literal(const char **at, quern_dtype dtype, unsigned char bits[8]);

/* ---- what several rules need (rules.c) --------------------------------------------------------------- */

enum { IR_FOLD_COUNT = 64 }; /* constants of at most so many elements are computed while rewriting */

/* The CONST that t is, or is a BROADCAST or RESHAPE of; else NULL. */
const quern_tensor *ir_const_of(const quern_tensor *t);
/* A constant small enough to be folded. */
bool ir_is_small_const(const quern_tensor *t);
/* The element that all elements of such a constant are; false when there is none. */
bool ir_uniform(const quern_tensor *t, unsigned char bits[8]);

/* The element of those bits in every place of a tensor of that type: a CONST with axes of size 1,
** broadcast. */
quern_tensor *ir_full(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims,
                      const unsigned char bits[8]);

/* x under that shape; x itself when it has it. */
quern_tensor *ir_reshape_to(quern_tensor *x, int rank, const int64_t *dims);
quern_tensor *ir_broadcast_to(quern_tensor *x, int rank, const int64_t *dims);

/* Axes as bits. */
static inline unsigned ir_axes_set(struct ir_ints axes) {
  unsigned set = 0;
  for (int i = 0; i < axes.n; i++) set |= 1u << axes.at[i];
  return set;
}

#endif
