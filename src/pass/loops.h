/* pass/loops.h -- a LOOP taken apart, changed, and put together again
** see: docs/design/012-loops.md
*/
#ifndef PASS_LOOPS_H
#define PASS_LOOPS_H
#include "pass/pass_int.h"

enum loop_kind { LOOP_CARRY, LOOP_SCANNED, LOOP_CAPTURE };

/* A source of the loop and the leaf that stands for it in an iteration. */
struct loop_operand {
  enum loop_kind kind;
  quern_tensor *source, *leaf;
  quern_tensor *next; /* of a carry: its value in the next iteration */
  quern_tensor *last; /* of a carry that the loop does not have any more: its value after the loop; else NULL */
};

/* A value that every iteration gives, and the leaf that stands for all of them outside of the loop; NULL when nobody
** asked for it. */
struct loop_stacked {
  quern_tensor *value, *all;
  quern_tensor *instead; /* what the loop does not stack any more: made after it; else NULL */
};

struct loop_edit {
  quern_context *ctx;
  struct base_heap *heap;
  int64_t trip;
  bool reverse;
  quern_tensor *index;                    /* the leaf of the iteration's number */
  BASE_VEC(struct loop_operand) operands; /* the carries come first */
  BASE_VEC(struct loop_stacked) stacked;  /* those that the loop gave come first */
  size_t n_carries, n_given;
  int64_t room; /* bytes that all values may have that the loop is made to stack or scan */
  bool changed;
};

/* Takes a LOOP node apart. To be ended also when this fails. */
quern_status loop_edit_begin(struct loop_edit *edit, const struct ir_node *loop) QUERN_NODISCARD;
void loop_edit_end(struct loop_edit *edit);
/* Adds a source; its leaf, or the poison. */
quern_tensor *loop_edit_add(struct loop_edit *edit, enum loop_kind kind, quern_tensor *source);
/* True when the loop stacks the value. */
bool loop_edit_stacks(const struct loop_edit *edit, const quern_tensor *value);
/* All values that the iterations give to the value, as one tensor outside of the loop. */
quern_tensor *loop_edit_stack(struct loop_edit *edit, quern_tensor *value);
/* Replaces a value in the iteration. */
quern_status loop_edit_replace(struct loop_edit *edit, quern_tensor *from, quern_tensor *to) QUERN_NODISCARD;
/* The nodes of an iteration. */
quern_status loop_edit_order(const struct loop_edit *edit, struct ir_order *order) QUERN_NODISCARD;
/* The operand whose leaf it is, or NULL. */
const struct loop_operand *loop_edit_find(const struct loop_edit *edit, const struct ir_node *leaf);
/* The results of the loop as it was, by the loop as it is now. Sources that no iteration uses are left out. */
quern_status loop_edit_finish(struct loop_edit *edit, quern_tensor **out) QUERN_NODISCARD;

/* ---- all iterations at once (loop_batch.c) ---- */

/* A value outside of the loop: of all iterations, the first axis counts them; or one that they share. */
struct loop_value {
  quern_tensor *t; /* NULL: it cannot be had */
  bool each;
};
/* The node's result from its sources; t is NULL when the op has no form for all iterations at once. */
struct loop_value loop_batch_node(quern_context *ctx, int64_t trip, const struct ir_node *node,
                                  const struct loop_value *src);
/* A value of the iteration that depends on no carry, computed outside of the loop. */
quern_status loop_batch(const struct loop_edit *edit, quern_tensor *value, struct loop_value *out) QUERN_NODISCARD;

/* ---- what is taken out of a loop ---- */

/* Contractions that depend on no carry, or are found among what another loop computes (loop_hoist.c). */
quern_status loop_hoist(struct loop_edit *edit, int64_t least_work) QUERN_NODISCARD;
/* Carries that only add up products of an iteration's values (loop_sums.c). */
quern_status loop_take_sums(struct loop_edit *edit, int64_t least_work) QUERN_NODISCARD;

/* Contractions that are only stacked (loop_sink.c). */
quern_status loop_sink(struct loop_edit *edit, int64_t least_work) QUERN_NODISCARD;

/* True when a carry is a sum: of it and of a value that does not depend on it, which it gives; used for nothing
** else. */
bool loop_is_sum(const struct ir_order *order, const int *users, const struct loop_operand *carry,
                 quern_tensor **added);
/* How often each node of the iteration is used by nodes, and by what the iteration gives. The caller frees
** order->n items. */
quern_status loop_count_users(const struct loop_edit *edit, const struct ir_order *order, int **users) QUERN_NODISCARD;
/* True when two loops differ in nothing but what they stack: all of it can come from one. */
bool loop_is_same(const struct ir_node *a, const struct ir_node *b);
/* Multiplications of a contraction. */
int64_t loop_work(const struct ir_node *dot);

#endif
