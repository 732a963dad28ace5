/* ir/eval_reduce.c -- the reference evaluator: reductions, order and contraction
** keeps: sums and products run over their terms in row-major order, floats in double, integers in
**        64 bits that wrap; the result is rounded once
** tests: tests/ir/test_eval_reduce.c, tests/ir/test_eval_dot.c
*/
#include "ir/eval.h"

#include <math.h>

/* ---- accumulators ----------------------------------------------------------------------------------- */

/* The largest value of a dtype; of floats infinity, or the largest finite one of the format that has none. */
static union eval_scalar largest(quern_dtype dtype) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  if (info->class == BASE_FLOAT) return (union eval_scalar){.f = info->inf ? (double)INFINITY : 448};
  return (union eval_scalar){.i = UINT64_MAX >> (64 - info->bits + (info->class == BASE_SIGNED))};
}

static union eval_scalar smallest(quern_dtype dtype) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  if (info->class == BASE_FLOAT) return (union eval_scalar){.f = -largest(dtype).f};
  return (union eval_scalar){.i = info->class == BASE_SIGNED ? ~largest(dtype).i : 0};
}

static union eval_scalar whole_number(quern_dtype dtype, int value) {
  if (base_dtype_is(dtype, BASE_FLOAT)) return (union eval_scalar){.f = value};
  return (union eval_scalar){.i = (uint64_t)value};
}

static union eval_scalar neutral_sum(quern_dtype dtype) { return whole_number(dtype, 0); }
static union eval_scalar neutral_prod(quern_dtype dtype) { return whole_number(dtype, 1); }

/* The result of nothing. */
static union eval_scalar (*const neutral[IR_REDUCE_COUNT])(quern_dtype) = {
    [IR_SUM] = neutral_sum, [IR_PROD] = neutral_prod, [IR_REDUCE_MAX] = smallest, [IR_REDUCE_MIN] = largest};

/* The first term stands for itself, so that the sum of -0 alone is -0. */
void eval_acc_add(struct eval_acc *acc, quern_dtype dtype, enum ir_reduce reduce, union eval_scalar x) {
  acc->value = acc->any ? eval_apply(&eval_reduce_pairs[reduce], dtype, acc->value, x) : x;
  acc->any = true;
}

void eval_acc_store(const struct eval_acc *acc, quern_dtype dtype, enum ir_reduce reduce, void *data, int64_t i) {
  eval_store(dtype, data, i, acc->any ? acc->value : neutral[reduce](dtype));
}

/* ---- offsets of many elements ----------------------------------------------------------------------- */

/* at[m] = the distance of the m-th element from the first, over the indices of some axes in row-major order.
** Of a tensor without elements the distances are 0. */
struct offsets {
  int64_t n;
  int64_t *at;
};

/* The distance of neighbors along an axis. */
static int64_t stride(const quern_tensor *t, int64_t axis) {
  int64_t distance = 1;
  for (int64_t k = axis + 1; k < t->rank; k++) distance *= t->dims[k];
  return distance;
}

static quern_status offsets_over(struct base_arena *arena, const quern_tensor *t, int n_axes, const int64_t *axes,
                                 struct offsets *out) {
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < n_axes; k++) dims[k] = t->dims[axes[k]];
  QUERN_TRY(ir_type_count(QUERN_DTYPE_I64, n_axes, dims, &out->n));
  out->at = base_arena_alloc(arena, (size_t)out->n * sizeof *out->at);
  if (out->at == NULL) return quern_last_status();
  if (ir_count(t) == 0) return QUERN_STATUS_OK;
  for (int64_t m = 0; m < out->n; m++) {
    int64_t rest = m;
    for (int k = n_axes - 1; k >= 0; k--) {
      out->at[m] += rest % t->dims[axes[k]] * stride(t, axes[k]);
      rest /= t->dims[axes[k]];
    }
  }
  return QUERN_STATUS_OK;
}

/* The axes of t that are in neither list, in increasing order; their number. */
static int other_axes(const quern_tensor *t, struct ir_ints a, struct ir_ints b, int64_t *others) {
  bool listed[QUERN_MAX_RANK] = {false};
  int n = 0;
  for (int k = 0; k < a.n; k++) listed[a.at[k]] = true;
  for (int k = 0; k < b.n; k++) listed[b.at[k]] = true;
  for (int k = 0; k < t->rank; k++) {
    if (!listed[k]) others[n++] = k;
  }
  return n;
}

/* kept: over the axes that are not listed; gone: over those that are, in increasing order. */
static quern_status split(struct base_arena *arena, const quern_tensor *t, struct ir_ints axes, struct offsets *kept,
                          struct offsets *gone) {
  int64_t others[QUERN_MAX_RANK], listed[QUERN_MAX_RANK];
  int n = other_axes(t, axes, (struct ir_ints){0}, others);
  int m = other_axes(t, (struct ir_ints){n, others}, (struct ir_ints){0}, listed);
  QUERN_TRY(offsets_over(arena, t, n, others, kept));
  return offsets_over(arena, t, m, listed, gone);
}

/* ---- reduce ----------------------------------------------------------------------------------------- */

static quern_status reduce_in(struct eval_call *call, struct base_arena *arena) {
  const quern_tensor *x = call->node->src[0];
  const struct ir_attrs *attrs = call->node->attrs;
  struct offsets kept, gone;
  QUERN_TRY(split(arena, x, attrs->axes, &kept, &gone));
  for (int64_t i = 0; i < kept.n; i++) {
    struct eval_acc acc = {.any = false};
    for (int64_t k = 0; k < gone.n; k++) {
      eval_acc_add(&acc, x->dtype, attrs->reduce, eval_load(x->dtype, call->src[0], kept.at[i] + gone.at[k]));
    }
    eval_acc_store(&acc, x->dtype, attrs->reduce, call->dst[0], i);
  }
  return QUERN_STATUS_OK;
}

/* ---- along one axis: argreduce, scan, sort ---------------------------------------------------------- */

static quern_status argreduce_in(struct eval_call *call, struct base_arena *arena) {
  const quern_tensor *x = call->node->src[0];
  const struct ir_attrs *attrs = call->node->attrs;
  bool is_float = base_dtype_is(x->dtype, BASE_FLOAT);
  struct offsets lines, along;
  QUERN_TRY(split(arena, x, (struct ir_ints){1, &attrs->axis}, &lines, &along));
  for (int64_t i = 0; i < lines.n; i++) {
    int64_t best = 0;
    for (int64_t k = 1; k < along.n; k++) {
      union eval_scalar a = eval_load(x->dtype, call->src[0], lines.at[i] + along.at[best]);
      union eval_scalar b = eval_load(x->dtype, call->src[0], lines.at[i] + along.at[k]);
      bool better = attrs->reduce == IR_REDUCE_MAX ? eval_before(x->dtype, a, b) : eval_before(x->dtype, b, a);
      if (is_float && isnan(a.f) != isnan(b.f)) better = isnan(b.f);
      if (better) best = k;
    }
    base_store_int(QUERN_DTYPE_I64, call->dst[0], (size_t)i, (uint64_t)best);
  }
  return QUERN_STATUS_OK;
}

static quern_status scan_in(struct eval_call *call, struct base_arena *arena) {
  const quern_tensor *x = call->node->src[0];
  const struct ir_attrs *attrs = call->node->attrs;
  struct offsets lines, along;
  QUERN_TRY(split(arena, x, (struct ir_ints){1, &attrs->axis}, &lines, &along));
  for (int64_t i = 0; i < lines.n; i++) {
    struct eval_acc acc = {.any = false};
    for (int64_t k = 0; k < along.n; k++) {
      int64_t at = lines.at[i] + along.at[attrs->reverse ? along.n - 1 - k : k];
      eval_acc_add(&acc, x->dtype, attrs->reduce, eval_load(x->dtype, call->src[0], at));
      eval_acc_store(&acc, x->dtype, attrs->reduce, call->dst[0], at);
    }
  }
  return QUERN_STATUS_OK;
}

/* Merges order[lo..mid-1] and order[mid..hi-1], each sorted by keys; of equals the left one is first. */
static void merge(quern_dtype dtype, const union eval_scalar *keys, bool reverse, int64_t *order, int64_t *spare,
                  int64_t lo, int64_t mid, int64_t hi) {
  int64_t left = lo, right = mid;
  for (int64_t k = lo; k < hi; k++) {
    bool take_right = left == mid;
    if (left < mid && right < hi) {
      union eval_scalar a = keys[order[left]], b = keys[order[right]];
      take_right = reverse ? eval_before(dtype, a, b) : eval_before(dtype, b, a);
    }
    spare[k] = order[take_right ? right++ : left++];
  }
  for (int64_t k = lo; k < hi; k++) order[k] = spare[k];
}

static quern_status sort_in(struct eval_call *call, struct base_arena *arena) {
  const quern_tensor *x = call->node->src[0];
  const struct ir_attrs *attrs = call->node->attrs;
  struct offsets lines, along;
  QUERN_TRY(split(arena, x, (struct ir_ints){1, &attrs->axis}, &lines, &along));
  size_t n = (size_t)along.n;
  union eval_scalar *keys = base_arena_alloc(arena, n * sizeof *keys);
  int64_t *order = base_arena_alloc(arena, n * sizeof *order), *spare = base_arena_alloc(arena, n * sizeof *spare);
  if (keys == NULL || order == NULL || spare == NULL) return quern_last_status();
  for (int64_t i = 0; i < lines.n; i++) {
    for (int64_t k = 0; k < along.n; k++) {
      order[k] = k;
      keys[k] = eval_load(x->dtype, call->src[0], lines.at[i] + along.at[k]);
    }
    for (int64_t half = 1; half < along.n; half *= 2) {
      for (int64_t lo = 0; lo < along.n; lo += 2 * half) {
        int64_t mid = BASE_MIN(lo + half, along.n), hi = BASE_MIN(lo + 2 * half, along.n);
        merge(x->dtype, keys, attrs->reverse != 0, order, spare, lo, mid, hi);
      }
    }
    for (int64_t k = 0; k < along.n; k++) {
      int64_t to = lines.at[i] + along.at[k];
      eval_copy(x->dtype, call->dst[0], to, call->src[0], lines.at[i] + along.at[order[k]]);
      base_store_int(QUERN_DTYPE_I64, call->dst[1], (size_t)to, (uint64_t)order[k]);
    }
  }
  return QUERN_STATUS_OK;
}

/* ---- dot -------------------------------------------------------------------------------------------- */

/* One operand of a contraction: over its batch axes, its own and those summed over. */
struct operand {
  struct offsets batch, own, sum;
};

static quern_status operand_of(struct base_arena *arena, const quern_tensor *t, struct ir_ints batch,
                               struct ir_ints sum, struct operand *out) {
  int64_t own[QUERN_MAX_RANK];
  int n = other_axes(t, batch, sum, own);
  QUERN_TRY(offsets_over(arena, t, batch.n, batch.at, &out->batch));
  QUERN_TRY(offsets_over(arena, t, n, own, &out->own));
  return offsets_over(arena, t, sum.n, sum.at, &out->sum);
}

/* What is combined wraps to the dtype before it is reduced, so that a contraction is what it is when written out. */
static union eval_scalar combined(const struct eval_pair *pair, quern_dtype dtype, union eval_scalar a,
                                  union eval_scalar b) {
  union eval_scalar y = eval_apply(pair, dtype, a, b);
  if (base_dtype_is(dtype, BASE_FLOAT)) return y;
  uint64_t bits;
  base_store_int(dtype, &bits, 0, y.i);
  return (union eval_scalar){.i = base_load_int(dtype, &bits, 0)};
}

static quern_status dot_in(struct eval_call *call, struct base_arena *arena) {
  const struct ir_attrs *attrs = call->node->attrs;
  const struct eval_pair *combine = &eval_combine_pairs[attrs->combine];
  quern_dtype dtype = call->node->out->dtype;
  struct operand a, b;
  QUERN_TRY(operand_of(arena, call->node->src[0], attrs->a_batch, attrs->a_sum, &a));
  QUERN_TRY(operand_of(arena, call->node->src[1], attrs->b_batch, attrs->b_sum, &b));
  int64_t at = 0;
  for (int64_t n = 0; n < a.batch.n; n++) {
    for (int64_t i = 0; i < a.own.n; i++) {
      for (int64_t j = 0; j < b.own.n; j++) {
        struct eval_acc acc = {.any = false};
        for (int64_t k = 0; k < a.sum.n; k++) {
          union eval_scalar x = eval_load(dtype, call->src[0], a.batch.at[n] + a.own.at[i] + a.sum.at[k]);
          union eval_scalar y = eval_load(dtype, call->src[1], b.batch.at[n] + b.own.at[j] + b.sum.at[k]);
          eval_acc_add(&acc, dtype, attrs->reduce, combined(combine, dtype, x, y));
        }
        eval_acc_store(&acc, dtype, attrs->reduce, call->dst[0], at++);
      }
    }
  }
  return QUERN_STATUS_OK;
}

/* ---- the rules, each with memory of its own --------------------------------------------------------- */

static quern_status with_arena(struct eval_call *call, quern_status (*rule)(struct eval_call *, struct base_arena *)) {
  struct base_arena arena;
  if (ir_count(call->node->out) == 0) return QUERN_STATUS_OK;
  base_arena_init(&arena, &call->run->ctx->heap);
  quern_status status = rule(call, &arena);
  base_arena_fini(&arena);
  return status;
}

quern_status eval_REDUCE(struct eval_call *call) { return with_arena(call, reduce_in); }
quern_status eval_ARGREDUCE(struct eval_call *call) { return with_arena(call, argreduce_in); }
quern_status eval_SCAN(struct eval_call *call) { return with_arena(call, scan_in); }
quern_status eval_SORT(struct eval_call *call) { return with_arena(call, sort_in); }
quern_status eval_DOT(struct eval_call *call) { return with_arena(call, dot_in); }
