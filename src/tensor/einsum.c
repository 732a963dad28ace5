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

static void remove_label(struct einsum_term *term, int at) {
  term->n--;
  for (int k = at; k < term->n; k++) term->labels[k] = term->labels[k + 1];
}

/* Makes the labels of an operand distinct by diagonals; drops axes of size 1 that other operands stretch. */
static void simplify(const struct einsum *e, struct einsum_operand *operand) {
  struct einsum_term *term = &operand->term;
  term->n = operand->x->rank;
  for (int k = 0; k < term->n; k++) {
    for (int j = k + 1; j < term->n; j++) {
      int label = term->labels[k];
      if (term->labels[j] != label) continue;
      operand->x = diagonal(e, operand->x, k, j);
      if (ir_is_poison(operand->x)) return;
      remove_label(term, j);
      remove_label(term, k);
      term->labels[term->n++] = label;
      k = -1;
      break;
    }
  }
  int64_t dims[QUERN_MAX_RANK];
  int rank = 0;
  for (int k = 0; k < term->n; k++) {
    if (operand->x->dims[k] == 1 && e->labels.at[term->labels[k]].size != 1) continue;
    dims[rank] = operand->x->dims[k];
    term->labels[rank++] = term->labels[k];
  }
  term->n = rank;
  operand->x = tensor_reshape(operand->x, rank, dims);
}

/* Reduces the axes whose labels nothing else uses. */
static void reduce_alone(struct einsum_operand *operand, int *uses, enum ir_reduce reduce) {
  int64_t axes[QUERN_MAX_RANK];
  int n = 0, rank = 0;
  for (int k = 0; k < operand->term.n; k++) {
    int label = operand->term.labels[k];
    if (uses[label] > 1) {
      operand->term.labels[rank++] = label;
    } else {
      axes[n++] = k;
      uses[label] = 0;
    }
  }
  operand->term.n = rank;
  operand->x = tensor_reduce(operand->x, reduce, n, axes);
}

/* ---- many operands ------------------------------------------------------------------------------------- */

/* The product of two operands with those of their labels that are used elsewhere, in the order DOT gives them: those of both,
** then a's, then b's. */
static void contract_pair(const struct einsum *e, const struct einsum_operand *a, const struct einsum_operand *b,
                          const int *uses, enum ir_reduce reduce, enum ir_combine combine,
                          struct einsum_operand *result) {
  int labels[2 * QUERN_MAX_RANK], n = 0;
  *result = (struct einsum_operand){.x = &ir_poison};
  if (ir_is_poison(a->x) || ir_is_poison(b->x)) return;
  const struct {
    const struct einsum_term *own, *other;
    bool shared;
  } groups[] = {{&a->term, &b->term, true}, {&a->term, &b->term, false}, {&b->term, &a->term, false}};
  for (size_t g = 0; g < BASE_COUNT(groups); g++) {
    for (int k = 0; k < groups[g].own->n; k++) {
      int label = groups[g].own->labels[k];
      bool shared = tensor_einsum_has(groups[g].other, label);
      if (shared == groups[g].shared && uses[label] > (shared ? 2 : 1)) labels[n++] = label;
    }
  }
  result->x = tensor_contract(e->what, a->x, a->term.labels, b->x, b->term.labels, n, labels, reduce, combine);
  for (int k = 0; k < n && k < QUERN_MAX_RANK; k++) result->term.labels[result->term.n++] = labels[k];
}

/* uses[label] over the operands and the result, for every label. */
static void count_uses(const struct einsum *e, int *uses) {
  for (size_t k = 0; k < e->labels.n; k++) uses[k] = 0;
  for (int i = 0; i < e->n; i++) {
    for (int k = 0; k < e->operands[i].term.n; k++) uses[e->operands[i].term.labels[k]]++;
  }
  for (int k = 0; k < e->out.n; k++) uses[e->out.labels[k]]++;
}

/* Memory of contract_pairs. */
struct pairs {
  struct einsum_pair *pair;  /* n - 1 */
  struct einsum_term *terms; /* n */
  int64_t *size;             /* one per label, as are the next */
  int *uses, *planned;
};

static quern_tensor *contract_in_order(struct einsum *e, const struct pairs *p, enum ir_reduce reduce,
                                       enum ir_combine combine) {
  int n = e->n;
  count_uses(e, p->uses);
  for (int i = 0; i < n; i++) reduce_alone(&e->operands[i], p->uses, reduce);
  if (n == 1) return tensor_align(e->operands[0].x, e->operands[0].term.labels, e->out.n, e->out.labels);
  for (size_t k = 0; k < e->labels.n; k++) p->size[k] = e->labels.at[k].size, p->planned[k] = p->uses[k];
  for (int i = 0; i < n; i++) p->terms[i] = e->operands[i].term;
  tensor_einsum_order(n, p->terms, p->size, p->planned, p->pair);
  for (int i = 0; i < n - 2; i++) {
    const struct einsum_operand *a = &e->operands[p->pair[i].a], *b = &e->operands[p->pair[i].b];
    contract_pair(e, a, b, p->uses, reduce, combine, &e->operands[n + i]);
    if (ir_is_poison(e->operands[n + i].x)) return &ir_poison;
    tensor_einsum_join(&a->term, &b->term, &e->operands[n + i].term, p->uses);
  }
  const struct einsum_operand *a = &e->operands[p->pair[n - 2].a], *b = &e->operands[p->pair[n - 2].b];
  return tensor_contract(e->what, a->x, a->term.labels, b->x, b->term.labels, e->out.n, e->out.labels, reduce, combine);
}

/* Pair by pair, in a cheap order. */
static quern_tensor *contract_pairs(struct einsum *e, enum ir_reduce reduce, enum ir_combine combine) {
  struct base_heap *heap = &e->ctx->heap;
  size_t n = (size_t)e->n, n_labels = e->labels.n;
  struct pairs p = {.pair = base_alloc(heap, n * sizeof *p.pair),
                    .terms = base_alloc(heap, n * sizeof *p.terms),
                    .size = base_alloc(heap, n_labels * sizeof *p.size),
                    .uses = base_alloc(heap, n_labels * sizeof *p.uses),
                    .planned = base_alloc(heap, n_labels * sizeof *p.planned)};
  bool memory = p.pair != NULL && p.terms != NULL && p.size != NULL && p.uses != NULL && p.planned != NULL;
  quern_tensor *y = memory ? contract_in_order(e, &p, reduce, combine) : ir_fail_last(e->ctx);
  base_free(heap, p.pair, n * sizeof *p.pair);
  base_free(heap, p.terms, n * sizeof *p.terms);
  base_free(heap, p.size, n_labels * sizeof *p.size);
  base_free(heap, p.uses, n_labels * sizeof *p.uses);
  base_free(heap, p.planned, n_labels * sizeof *p.planned);
  return y;
}

/* True when an operand still has the label, and the result has not. */
static bool is_summed(const struct einsum *e, int label) {
  bool found = false;
  for (int i = 0; i < e->n && !found; i++) found = tensor_einsum_has(&e->operands[i].term, label);
  return found && !tensor_einsum_has(&e->out, label);
}

/* All operands combined from left to right over all labels, then reduced. */
static quern_tensor *joint_product(struct einsum *e, enum ir_reduce reduce, enum ir_combine combine) {
  const struct einsum_operand *first = &e->operands[0], *second = &e->operands[1];
  int labels[QUERN_MAX_RANK], n = e->out.n, n_sum = 0;
  bool in_both = e->n == 2;
  for (int k = 0; k < e->out.n; k++) labels[k] = e->out.labels[k];
  for (int k = 0; k < (int)e->labels.n; k++) {
    if (!is_summed(e, k)) continue;
    in_both = in_both && tensor_einsum_has(&first->term, k) && tensor_einsum_has(&second->term, k);
    if (n < QUERN_MAX_RANK) labels[n] = k;
    n++;
  }
  if (in_both && n > e->out.n) {
    return tensor_contract(e->what, first->x, first->term.labels, second->x, second->term.labels, e->out.n,
                           e->out.labels, reduce, combine);
  }
  TENSOR_CHECK(e->ctx, n <= QUERN_MAX_RANK, SHAPE, "%s: \"%s\" needs a product of %d axes, at most %d", e->what,
               e->shown, n, (int)QUERN_MAX_RANK);
  int64_t dims[QUERN_MAX_RANK], axes[QUERN_MAX_RANK];
  for (int k = 0; k < n; k++) dims[k] = e->labels.at[labels[k]].size;
  if (!tensor_type_ok(e->what, e->ctx, first->x->dtype, n, dims)) return &ir_poison;
  for (int k = e->out.n; k < n; k++) axes[n_sum++] = k;
  quern_tensor *y = tensor_align(first->x, first->term.labels, n, labels);
  for (int i = 1; i < e->n; i++) {
    y = tensor_combine(combine, y, tensor_align(e->operands[i].x, e->operands[i].term.labels, n, labels));
  }
  return tensor_reduce(y, reduce, n_sum, axes);
}

/* ---- the builders -------------------------------------------------------------------------------------- */

static quern_tensor *build(struct einsum *e, enum ir_reduce reduce, enum ir_combine combine) {
  if (!tensor_einsum_parse(e)) return &ir_poison;
  for (int i = 0; i < e->n; i++) {
    simplify(e, &e->operands[i]);
    if (ir_is_poison(e->operands[i].x)) return &ir_poison;
  }
  bool in_pairs = distributes(reduce, combine);
  for (int k = 0; k < (int)e->labels.n && in_pairs; k++) {
    if (e->labels.at[k].size == 0) in_pairs = !is_summed(e, k); /* the reduction of nothing */
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
  base_vec_fini(&ctx->heap, &e.labels);
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
