/* sched/dot_bytes.c -- products of bytes summed as i32, four terms at a time
** dot(cast(a, i32), cast(b, i32)) of i8 and u8: a packed element is a word of four terms, a term of a tile is a dot4.
** That multiplies unsigned bytes by signed ones. Where both sides are signed, 128 is added to each byte of a, and 128
** times the sum of a column of b is taken away again: a tile's sums start with that.
** Integers wrap, so every order of terms gives the same bits.
** tests: tests/sched/test_dot.c
*/
#include <stdio.h>

#include "sched/dot.h"

/* The bytes that an operand is cast from, moved or not; NULL when there is no such cast. */
static const quern_tensor *bytes_of(struct dot *d, const struct dot_operand *side, const struct pass_index **at) {
  const struct pass_index *in[QUERN_MAX_RANK];
  const quern_tensor *t = side->tensor;
  for (int k = 0; k < t->rank; k++) at[k] = side->at[k];
  while (dot_is_movement(t->node) && pass_index_source(d->space, t->node, 0, at, in)) {
    t = t->node->src[0];
    for (int k = 0; k < t->rank; k++) at[k] = in[k];
  }
  if (t->node->op != IR_CAST || (side->split_axes >> DOT_TERM & 1) != 0) return NULL;
  t = t->node->src[0];
  return t->dtype == QUERN_DTYPE_I8 || t->dtype == QUERN_DTYPE_U8 ? t : NULL;
}

static bool set_bytes(struct dot *d, struct dot_operand *side, const quern_tensor *t, const struct pass_index **at) {
  side->tensor = t;
  side->at = base_arena_copy(&d->arena, at, (size_t)(t->rank + 1) * sizeof *at);
  side->view.mem = -1;
  return side->at != NULL;
}

quern_status dot_find_bytes(struct dot *d) {
  const struct pass_index *at_a[QUERN_MAX_RANK + 1] = {NULL}, *at_b[QUERN_MAX_RANK + 1] = {NULL};
  if (!d->job->target->vnni || d->acc != QUERN_DTYPE_I32 || d->reduce != IR_SUM || d->combine != IR_COMBINE_MUL ||
      d->lanes == 1 || 4 * d->lanes > KERN_MAX_LANES)
    return QUERN_STATUS_OK;
  const quern_tensor *a = bytes_of(d, &d->a, at_a), *b = bytes_of(d, &d->b, at_b);
  if (a == NULL || b == NULL || (a->dtype == QUERN_DTYPE_U8 && b->dtype == QUERN_DTYPE_U8)) return QUERN_STATUS_OK;
  if (!set_bytes(d, &d->a, a, at_a) || !set_bytes(d, &d->b, b, at_b)) return QUERN_STATUS_MEMORY;
  d->bytes = true;
  d->unsigned_a = b->dtype == QUERN_DTYPE_I8;
  d->biased = a->dtype == QUERN_DTYPE_I8 && b->dtype == QUERN_DTYPE_I8;
  d->terms = d->k;
  d->k = sched_ceil(d->k, 4);
  return QUERN_STATUS_OK;
}

/* ---- words ------------------------------------------------------------------------------------------------ */

static kern_id bytes_at(struct dot *d, struct kern_values *values, const struct dot_operand *side) {
  (void)d;
  return kern_values_get(values, side->tensor, side->tensor->rank, side->at);
}

/* lanes words in a row from word number `word` on; bytes behind the last term are 0. */
static kern_id words_along(struct dot *d, struct kern_builder *b, struct kern_values *values,
                           const struct dot_operand *side, kern_id word, int lanes, bool cut) {
  kern_id first = kern_mul(b, word, kern_index(b, 4)), left = kern_sub(b, kern_index(b, d->terms), first);
  kern_id active = cut || d->terms % 4 != 0 ? kern_min(b, left, kern_index(b, 4 * lanes)) : KERN_NONE;
  kern_values_set(values, DOT_TERM, first, 4 * lanes, active);
  kern_id x = kern_splat(b, bytes_at(d, values, side), 4 * lanes);
  kern_values_set(values, DOT_TERM, first, 1, KERN_NONE);
  if (active != KERN_NONE) {
    kern_id lane = kern_lane(b, QUERN_DTYPE_I8, 4 * lanes);
    kern_id inside = kern_bin(b, KERN_LT, lane, kern_splat(b, kern_cast(b, active, QUERN_DTYPE_I8), 4 * lanes));
    x = kern_select(b, inside, x, kern_const_bits(b, side->tensor->dtype, 4 * lanes, 0));
  }
  return kern_bitcast(b, x, QUERN_DTYPE_I32);
}

/* Word number `word` of as many rows or columns as the values have lanes. */
static kern_id words_across(struct dot *d, struct kern_builder *b, struct kern_values *values,
                            const struct dot_operand *side, kern_id word, int lanes) {
  kern_id first = kern_mul(b, word, kern_index(b, 4)), sum = KERN_NONE;
  for (int i = 0; i < 4; i++) {
    kern_id term = kern_add(b, first, kern_index(b, i));
    kern_values_set(values, DOT_TERM, kern_min(b, term, kern_index(b, d->terms - 1)), 1, KERN_NONE);
    kern_id x = kern_bitcast(b, kern_splat(b, bytes_at(d, values, side), lanes), QUERN_DTYPE_U8);
    if (d->terms % 4 != 0) {
      kern_id inside = kern_splat(b, kern_bin(b, KERN_LT, term, kern_index(b, d->terms)), lanes);
      x = kern_select(b, inside, x, kern_const_i(b, QUERN_DTYPE_U8, lanes, 0));
    }
    x = kern_cast(b, x, QUERN_DTYPE_I32);
    x = kern_bin(b, KERN_SHL, x, kern_const_i(b, QUERN_DTYPE_I32, lanes, 8 * i));
    sum = sum == KERN_NONE ? x : kern_bin(b, KERN_OR, sum, x);
  }
  return sum;
}

kern_id dot_words(struct dot *d, struct kern_builder *b, struct kern_values *values, const struct dot_operand *side,
                  const struct dot_word *word, int lanes) {
  kern_id x = word->lanes > 1 ? words_along(d, b, values, side, word->at, lanes, word->partial)
                              : words_across(d, b, values, side, word->at, lanes);
  if (!d->biased || side != &d->a) return x;
  return kern_bin(b, KERN_XOR, x, kern_const_i(b, QUERN_DTYPE_I32, lanes, (int32_t)0x80808080));
}

/* ---- what the sums start with ------------------------------------------------------------------------------- */

/* memories b (a packed panel), start; scalar kb: start = -128 times the sums of the columns. */
const struct kern_fn *dot_bias(struct dot *d, int vectors) {
  char name[64];
  snprintf(name, sizeof name, "dot_bias_%d", vectors * d->lanes);
  const quern_dtype dtypes[] = {d->acc, d->acc};
  struct kern_fn *fn = kern_add_fn(d->job->kern, name, 2, dtypes, 1);
  if (fn == NULL) return NULL;
  struct kern_builder builder = {.kern = d->job->kern, .fn = fn}, *b = &builder;
  kern_id panel = kern_mem(b, 0), start = kern_mem(b, 1), sums[32], zero = kern_const_i(b, d->acc, d->lanes, 0);
  kern_id each = kern_const_i(b, d->acc, d->lanes, (int32_t)0x80808080);
  QUERN_ASSERT(vectors <= 32);
  for (int v = 0; v < vectors; v++) sums[v] = kern_var(b, zero);
  kern_id terms = kern_scalar(b, 0), k = kern_for(b, kern_index(b, 0), terms, 1);
  kern_id row = kern_mul(b, k, kern_index(b, (int64_t)vectors * d->lanes));
  for (int v = 0; v < vectors; v++) {
    kern_id x = kern_load(b, panel, kern_add(b, row, kern_index(b, (int64_t)v * d->lanes)), d->lanes);
    kern_set(b, sums[v], kern_dot4(b, kern_get(b, sums[v]), each, x));
  }
  kern_end(b);
  for (int v = 0; v < vectors; v++) {
    kern_id at = kern_index(b, (int64_t)v * d->lanes);
    kern_store(b, start, at, kern_sub(b, zero, kern_get(b, sums[v])));
  }
  return fn;
}
