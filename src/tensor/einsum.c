/* tensor/einsum.c -- sums of products over named axes, over any pair of reduction and combination
** in:    a spec and operands     out: DOTs of pairs where the combination distributes over the reduction,
**        else one product of all, reduced at the end
** keeps: labels of one operand only that the result lacks are reduced before any product; no operand is
**        stretched but in the joint product
** tests: tests/tensor/test_einsum.c
*/
#include "tensor/einsum.h"

static const enum ir_reduce reduces[] = {
    [QUERN_REDUCE_SUM] = IR_SUM,
    [QUERN_REDUCE_PROD] = IR_PROD,
    [QUERN_REDUCE_MAX] = IR_REDUCE_MAX,
    [QUERN_REDUCE_MIN] = IR_REDUCE_MIN,
};

static const enum ir_combine combines[] = {
    [QUERN_COMBINE_MUL] = IR_COMBINE_MUL,
    [QUERN_COMBINE_ADD] = IR_COMBINE_ADD,
    [QUERN_COMBINE_MAX] = IR_COMBINE_MAX,
    [QUERN_COMBINE_MIN] = IR_COMBINE_MIN,
};

/* combine(x, reduce of y) = reduce of combine(x, y), but of nothing. Not so with mul under max: signs turn
** the order. */
static bool distributes(enum ir_reduce reduce, enum ir_combine combine) {
  static const bool table[IR_SET][IR_COMBINE_COUNT] = {
      [IR_SUM] = {[IR_COMBINE_MUL] = true},
      [IR_REDUCE_MAX] = {[IR_COMBINE_ADD] = true, [IR_COMBINE_MIN] = true},
      [IR_REDUCE_MIN] = {[IR_COMBINE_ADD] = true, [IR_COMBINE_MAX] = true},
  };
  return table[reduce][combine];
}

static uint64_t set_of(int n, const int *labels) {
  uint64_t set = 0;
  for (int k = 0; k < n; k++) set |= UINT64_C(1) << labels[k];
  return set;
}

/* ---- one operand --------------------------------------------------------------------------------------- */

/* Two axes of one size as their diagonal, which becomes the last axis. */
static quern_tensor *diagonal(const struct einsum *e, quern_tensor *x, int first, int second) {
  int rank = x->rank;
  int64_t n = x->dims[first], dims[QUERN_MAX_RANK];
  TENSOR_CHECK(e->ctx, n == 0 || n <= INT64_MAX / n, OVERFLOW, "%s: a diagonal of %lld by %lld in %s is too large",
               e->what, (long long)n, (long long)n, TENSOR_SHAPE(x));
  quern_tensor *y = tensor_move_axis(tensor_move_axis(x, second, rank - 1), first, rank - 2);
  if (ir_is_poison(y)) return y;
  for (int k = 0; k < rank - 2; k++) dims[k] = y->dims[k];
  dims[rank - 2] = n * n;
  return quern_slice(tensor_reshape(y, rank - 1, dims), -1, 0, QUERN_END, n + 1);
}

static void remove_label(int *n, int *labels, int at) {
  (*n)--;
  for (int k = at; k < *n; k++) labels[k] = labels[k + 1];
}

/* Makes the labels of an operand distinct by diagonals; drops axes of size 1 that other operands stretch. */
static void simplify(const struct einsum *e, struct einsum_operand *operand) {
  int n = operand->x->rank, *labels = operand->labels;
  for (int k = 0; k < n; k++) {
    for (int j = k + 1; j < n; j++) {
      if (labels[j] != labels[k]) continue;
      int label = labels[k];
      operand->x = diagonal(e, operand->x, k, j);
      if (ir_is_poison(operand->x)) return;
      remove_label(&n, labels, j);
      remove_label(&n, labels, k);
      labels[n++] = label;
      k = -1;
      break;
    }
  }
  int64_t dims[QUERN_MAX_RANK];
  int rank = 0;
  for (int k = 0; k < n; k++) {
    if (operand->x->dims[k] == 1 && e->labels[labels[k]].size != 1) continue;
    dims[rank] = operand->x->dims[k];
    labels[rank++] = labels[k];
  }
  operand->x = tensor_reshape(operand->x, rank, dims);
  operand->set = set_of(rank, labels);
}

/* Reduces the axes whose labels are not in keep. */
static void reduce_labels(struct einsum_operand *operand, uint64_t keep, enum ir_reduce reduce) {
  if (ir_is_poison(operand->x)) return;
  int64_t axes[QUERN_MAX_RANK];
  int n = 0, rank = 0;
  for (int k = 0; k < operand->x->rank; k++) {
    if (keep >> operand->labels[k] & 1) {
      operand->labels[rank++] = operand->labels[k];
    } else {
      axes[n++] = k;
    }
  }
  operand->x = tensor_reduce(operand->x, reduce, n, axes);
  operand->set &= keep;
}

/* ---- many operands ------------------------------------------------------------------------------------- */

/* The product of two operands with the labels of needed that they have, in the order DOT gives them. */
static void contract_pair(const struct einsum *e, const struct einsum_operand *a, const struct einsum_operand *b,
                          uint64_t needed, enum ir_reduce reduce, enum ir_combine combine,
                          struct einsum_operand *result) {
  int labels[2 * QUERN_MAX_RANK], n = 0;
  if (ir_is_poison(a->x) || ir_is_poison(b->x)) {
    *result = (struct einsum_operand){.x = &ir_poison};
    return;
  }
  for (int k = 0; k < a->x->rank; k++) {
    if (b->set & needed & UINT64_C(1) << a->labels[k]) labels[n++] = a->labels[k];
  }
  for (int k = 0; k < a->x->rank; k++) {
    if (needed & ~b->set & UINT64_C(1) << a->labels[k]) labels[n++] = a->labels[k];
  }
  for (int k = 0; k < b->x->rank; k++) {
    if (needed & ~a->set & UINT64_C(1) << b->labels[k]) labels[n++] = b->labels[k];
  }
  result->x = tensor_contract(e->what, a->x, a->labels, b->x, b->labels, n, labels, reduce, combine);
  for (int k = 0; k < n && k < QUERN_MAX_RANK; k++) result->labels[k] = labels[k];
  result->set = (a->set | b->set) & needed;
}

/* Pair by pair, in a cheap order. */
static quern_tensor *contract_pairs(struct einsum *e, enum ir_reduce reduce, enum ir_combine combine) {
  uint64_t out = set_of(e->n_out, e->out);
  int n = e->n;
  for (int i = 0; i < n; i++) {
    uint64_t keep = out;
    for (int j = 0; j < n; j++) keep |= i == j ? 0 : e->operands[j].set;
    reduce_labels(&e->operands[i], keep, reduce);
  }
  if (n == 1) return tensor_align(e->operands[0].x, e->operands[0].labels, e->n_out, e->out);

  size_t bytes = (size_t)n * (sizeof(uint64_t) + sizeof(struct einsum_pair));
  uint64_t *sets = base_alloc(&e->ctx->heap, bytes);
  if (sets == NULL) return ir_fail_last(e->ctx);
  struct einsum_pair *pairs = (struct einsum_pair *)(sets + n);
  int64_t sizes[EINSUM_MAX_LABELS];
  for (int k = 0; k < e->n_labels; k++) sizes[k] = e->labels[k].size;
  for (int i = 0; i < n; i++) sets[i] = e->operands[i].set;
  tensor_einsum_order(n, sets, out, sizes, pairs);

  quern_tensor *y = &ir_poison;
  for (int i = 0; i < n - 1; i++) {
    struct einsum_operand *a = &e->operands[pairs[i].a], *b = &e->operands[pairs[i].b];
    if (i == n - 2) {
      y = tensor_contract(e->what, a->x, a->labels, b->x, b->labels, e->n_out, e->out, reduce, combine);
      break;
    }
    uint64_t needed = out;
    for (int j = 0; j < n + i; j++) needed |= j == pairs[i].a || j == pairs[i].b ? 0 : e->operands[j].set;
    contract_pair(e, a, b, needed, reduce, combine, &e->operands[n + i]);
    a->set = b->set = 0; /* used up */
  }
  base_free(&e->ctx->heap, sets, bytes);
  return y;
}

/* All operands combined from left to right over all labels, then reduced. */
static quern_tensor *joint_product(struct einsum *e, enum ir_reduce reduce, enum ir_combine combine) {
  uint64_t out = set_of(e->n_out, e->out), summed = 0, both = ~UINT64_C(0);
  for (int i = 0; i < e->n; i++) {
    summed |= e->operands[i].set & ~out;
    both &= e->operands[i].set;
  }
  if (e->n == 2 && summed != 0 && (summed & ~both) == 0) {
    const struct einsum_operand *a = &e->operands[0], *b = &e->operands[1];
    return tensor_contract(e->what, a->x, a->labels, b->x, b->labels, e->n_out, e->out, reduce, combine);
  }
  int labels[EINSUM_MAX_LABELS + QUERN_MAX_RANK], n = e->n_out, n_sum = 0;
  int64_t axes[QUERN_MAX_RANK];
  for (int k = 0; k < e->n_out; k++) labels[k] = e->out[k];
  for (int k = 0; k < e->n_labels; k++) {
    if (summed >> k & 1) labels[n++] = k;
  }
  TENSOR_CHECK(e->ctx, n <= QUERN_MAX_RANK, SHAPE, "%s: \"%s\" needs a product of %d axes, at most %d", e->what,
               e->shown, n, (int)QUERN_MAX_RANK);
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < n; k++) dims[k] = e->labels[labels[k]].size;
  if (!tensor_type_ok(e->what, e->ctx, e->operands[0].x->dtype, n, dims)) return &ir_poison;
  for (int k = e->n_out; k < n; k++) axes[n_sum++] = k;
  quern_tensor *y = tensor_align(e->operands[0].x, e->operands[0].labels, n, labels);
  for (int i = 1; i < e->n; i++)
    y = tensor_combine(combine, y, tensor_align(e->operands[i].x, e->operands[i].labels, n, labels));
  return tensor_reduce(y, reduce, n_sum, axes);
}

/* ---- the builders -------------------------------------------------------------------------------------- */

static quern_tensor *build(struct einsum *e, enum ir_reduce reduce, enum ir_combine combine) {
  if (!tensor_einsum_parse(e)) return &ir_poison;
  uint64_t all = 0;
  for (int i = 0; i < e->n; i++) {
    simplify(e, &e->operands[i]);
    if (ir_is_poison(e->operands[i].x)) return &ir_poison;
    all |= e->operands[i].set;
  }
  bool in_pairs = distributes(reduce, combine);
  for (int k = 0; k < e->n_labels; k++) {
    bool summed = (all & ~set_of(e->n_out, e->out)) >> k & 1;
    if (summed && e->labels[k].size == 0) in_pairs = false; /* the reduction of nothing */
  }
  return in_pairs ? contract_pairs(e, reduce, combine) : joint_product(e, reduce, combine);
}

static quern_tensor *einsum_over(const char *what, const char *spec, int n, quern_tensor *const *xs,
                                 quern_reduce reduce, quern_combine combine) {
  if (n < 1 || xs == NULL) {
    const char *wrong = n < 1 ? "no operands" : "the list of operands is null";
    return ir_fail(NULL, QUERN_STATUS_INVALID, "%s: %s: n is %d", what, wrong, n);
  }
  quern_context *ctx = tensor_enter(what, n, xs);
  if (ctx == NULL) return &ir_poison;
  TENSOR_CHECK(ctx, spec != NULL, INVALID, "%s: the spec is null", what);
  TENSOR_CHECK(ctx, (unsigned)reduce < BASE_COUNT(reduces), INVALID, "%s: %d is no reduction", what, (int)reduce);
  TENSOR_CHECK(ctx, (unsigned)combine < BASE_COUNT(combines), INVALID, "%s: %d is no combination", what, (int)combine);
  if (!tensor_same_dtype(what, n, xs)) return &ir_poison;
  bool logic = reduce >= QUERN_REDUCE_MAX && combine >= QUERN_COMBINE_MAX;
  if (!tensor_admits(what, xs[0], logic ? BASE_ANY : BASE_NUM)) return &ir_poison;

  size_t bytes;
  if (!base_size((size_t)n, 2 * sizeof(struct einsum_operand), 0, &bytes)) {
    return ir_fail(ctx, QUERN_STATUS_OVERFLOW, "%s: %d operands are too many", what, n);
  }
  struct einsum e = {.what = what, .ctx = ctx, .spec = spec, .n = n, .operands = base_alloc_zero(&ctx->heap, bytes)};
  if (e.operands == NULL) return ir_fail_last(ctx);
  for (int i = 0; i < n; i++) e.operands[i].x = xs[i];
  quern_tensor *y = build(&e, reduces[reduce], combines[combine]);
  base_free(&ctx->heap, e.operands, bytes);
  return y;
}

quern_tensor *quern_einsum(const char *spec, int n, quern_tensor *const *xs) {
  return einsum_over("einsum", spec, n, xs, QUERN_REDUCE_SUM, QUERN_COMBINE_MUL);
}

quern_tensor *quern_einsum_over(const char *spec, int n, quern_tensor *const *xs, quern_reduce reduce,
                                quern_combine combine) {
  return einsum_over("einsum_over", spec, n, xs, reduce, combine);
}
