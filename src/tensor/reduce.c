/* tensor/reduce.c -- reductions, scans and order
** keeps: averages of narrow floats are computed in f32 and rounded once
** tests: tests/tensor/test_reduce.c
*/
#include "tensor/tensor.h"

#include <math.h>

#include "tensor/kinds.h"

/* ---- reductions ---------------------------------------------------------------------------------------- */

/* The axes of a reduction, sorted, and what else is needed to put them back. */
struct over {
  quern_tensor *x;
  int n;
  int64_t axes[QUERN_MAX_RANK];
  double count; /* of elements that one result is made of */
};

static bool over_init(struct over *over, const char *what, quern_tensor *x, int n_axes, const int64_t *axes,
                      enum base_dtype_class classes) {
  if (tensor_enter(what, 1, &x) == NULL || !tensor_admits(what, x, classes)) return false;
  over->x = x;
  over->n = tensor_axes(what, x, n_axes, axes, over->axes);
  over->count = 1;
  for (int i = 0; i < over->n; i++) over->count *= (double)x->dims[over->axes[i]];
  return over->n >= 0;
}

/* x, of the shape that is reduced, reduced; keep leaves axes of size 1. */
static quern_tensor *over_apply(const struct over *over, enum ir_reduce reduce, quern_tensor *x, bool keep) {
  quern_tensor *y = tensor_reduce(x, reduce, over->n, over->axes);
  return keep ? tensor_restore_axes(y, over->x, over->n, over->axes) : y;
}

static quern_tensor *reduction(const char *what, enum ir_reduce reduce, enum base_dtype_class classes, quern_tensor *x,
                               int n_axes, const int64_t *axes, bool keep) {
  struct over over;
  if (!over_init(&over, what, x, n_axes, axes, classes)) return &ir_poison;
  return over_apply(&over, reduce, x, keep);
}

#define REDUCTION(name, REDUCE, CLASSES)                                                                               \
  quern_tensor *quern_##name(quern_tensor *x, int n_axes, const int64_t *axes, bool keep) {                            \
    return reduction(#name, REDUCE, CLASSES, x, n_axes, axes, keep);                                                   \
  }
REDUCTION(sum, IR_SUM, BASE_NUM)
REDUCTION(prod, IR_PROD, BASE_NUM)
REDUCTION(max, IR_REDUCE_MAX, BASE_ANY)
REDUCTION(min, IR_REDUCE_MIN, BASE_ANY)
REDUCTION(any, IR_REDUCE_MAX, BASE_BOOL)
REDUCTION(all, IR_REDUCE_MIN, BASE_BOOL)
#undef REDUCTION

/* The mean over the axes of x, which is of the wide dtype; divisor instead of the count. */
static quern_tensor *average(const struct over *over, quern_tensor *x, double divisor, bool keep) {
  quern_tensor *sum = over_apply(over, IR_SUM, x, keep);
  return quern_div_scalar(sum, divisor);
}

quern_tensor *quern_mean(quern_tensor *x, int n_axes, const int64_t *axes, bool keep) {
  struct over over;
  if (!over_init(&over, "mean", x, n_axes, axes, BASE_FLOAT)) return &ir_poison;
  return quern_cast(average(&over, quern_cast(x, tensor_wide(x->dtype)), over.count, keep), x->dtype);
}

/* The variance of x in the wide dtype. */
static quern_tensor *variance(const char *what, quern_tensor *x, int n_axes, const int64_t *axes, bool keep,
                              int64_t correction) {
  struct over over;
  if (!over_init(&over, what, x, n_axes, axes, BASE_FLOAT)) return &ir_poison;
  TENSOR_CHECK(x->node->ctx, correction >= 0, INVALID, "%s: the correction %lld is negative", what,
               (long long)correction);
  quern_tensor *wide = quern_cast(x, tensor_wide(x->dtype));
  quern_tensor *deviation = quern_sub(wide, average(&over, wide, over.count, true));
  return average(&over, quern_square(deviation), fmax(over.count - (double)correction, 0), keep);
}

quern_tensor *quern_var(quern_tensor *x, int n_axes, const int64_t *axes, bool keep, int64_t correction) {
  quern_tensor *y = variance("var", x, n_axes, axes, keep, correction);
  return ir_is_poison(y) ? y : quern_cast(y, x->dtype);
}

quern_tensor *quern_std(quern_tensor *x, int n_axes, const int64_t *axes, bool keep, int64_t correction) {
  quern_tensor *y = variance("std", x, n_axes, axes, keep, correction);
  if (ir_is_poison(y)) return y;
  quern_tensor *none = quern_eq(y, tensor_scalar_of(y, 0)); /* where the gradient is 0, not that of the root */
  quern_tensor *root = quern_sqrt(quern_where(none, tensor_scalar_of(y, 1), y));
  return quern_cast(quern_where(none, tensor_scalar_of(y, 0), root), x->dtype);
}

/* ---- log-sum-exp: ln of the sum of e^x, shifted by the largest x where that is finite ------------------ */

static bool logsumexp_admits(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  struct ir_ints axes = attrs->ints;
  if (n != 1 || attrs->reals.n != 0 || axes.n < 1 || axes.at[0] < 0 || axes.at[axes.n - 1] >= src[0]->rank)
    return false;
  for (int i = 1; i < axes.n; i++) {
    if (axes.at[i - 1] >= axes.at[i]) return false;
  }
  return base_dtype_is(src[0]->dtype, BASE_FLOAT) && tensor_wide(src[0]->dtype) == src[0]->dtype;
}

static void logsumexp_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                           quern_tensor **results) {
  (void)ctx;
  quern_tensor *x = args[0];
  struct ir_ints axes = attrs->ints;
  quern_tensor *top = tensor_reduce(x, IR_REDUCE_MAX, axes.n, axes.at);
  quern_tensor *zero = tensor_scalar_of(x, 0),
               *shift = quern_stop_gradient(quern_where(quern_isfinite(top), top, zero));
  quern_tensor *rows = tensor_restore_axes(shift, x, axes.n, axes.at);
  quern_tensor *sum = tensor_reduce(quern_exp(quern_sub(x, rows)), IR_SUM, axes.n, axes.at);
  results[0] = quern_add(quern_log(sum), shift);
}

/* dx = dy e^(x - y): the softmax; 0 where all of a row is -inf. */
static void logsumexp_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                          quern_tensor **dx) {
  (void)self;
  quern_tensor *x = node->src[0], *y = &node->out[0];
  struct ir_ints axes = node->attrs->ints;
  quern_tensor *nothing = quern_eq(y, tensor_scalar_of(y, -(double)INFINITY));
  quern_tensor *finite = quern_where(nothing, tensor_scalar_of(y, 0), y);
  quern_tensor *weight = quern_exp(quern_sub(x, tensor_restore_axes(finite, x, axes.n, axes.at)));
  dx[0] = quern_mul(tensor_restore_axes(dy[0], x, axes.n, axes.at), weight);
}

const struct ir_composite tensor_kind_logsumexp = {
    .name = "logsumexp", .n_results = 1, .body = logsumexp_body, .vjp = logsumexp_vjp, .admits = logsumexp_admits};

quern_tensor *quern_logsumexp(quern_tensor *x, int n_axes, const int64_t *axes, bool keep) {
  struct over over;
  if (!over_init(&over, "logsumexp", x, n_axes, axes, BASE_FLOAT)) return &ir_poison;
  if (over.n == 0) return x;
  quern_tensor *wide = quern_cast(x, tensor_wide(x->dtype));
  quern_tensor *y = ir_composite_make(x->node->ctx, &tensor_kind_logsumexp, (struct ir_ints){over.n, over.axes},
                                      (struct ir_reals){0}, 1, &wide);
  if (keep) y = tensor_restore_axes(y, x, over.n, over.axes);
  return quern_cast(y, x->dtype);
}

/* ---- along one axis ------------------------------------------------------------------------------------ */

static quern_tensor *arg_reduction(const char *what, enum ir_reduce reduce, quern_tensor *x, int axis, bool keep) {
  TENSOR_ENTER(ctx, what, x);
  int at = tensor_axis(what, x, axis);
  if (at < 0) return &ir_poison;
  TENSOR_CHECK(ctx, x->dims[at] > 0, SHAPE, "%s: axis %d of %s has no elements", what, at, TENSOR_SHAPE(x));
  quern_tensor *y = IR_MAKE(ctx, IR_ARGREDUCE, TENSOR_ATTRS(.reduce = reduce, .axis = at), x);
  return keep ? tensor_restore_axes(y, x, 1, (int64_t[]){at}) : y;
}

quern_tensor *quern_argmax(quern_tensor *x, int axis, bool keep) {
  return arg_reduction("argmax", IR_REDUCE_MAX, x, axis, keep);
}

quern_tensor *quern_argmin(quern_tensor *x, int axis, bool keep) {
  return arg_reduction("argmin", IR_REDUCE_MIN, x, axis, keep);
}

static quern_tensor *scan(const char *what, enum ir_reduce reduce, enum base_dtype_class classes, quern_tensor *x,
                          int axis) {
  TENSOR_ENTER(ctx, what, x);
  int at = tensor_axis(what, x, axis);
  if (at < 0 || !tensor_admits(what, x, classes)) return &ir_poison;
  return IR_MAKE(ctx, IR_SCAN, TENSOR_ATTRS(.reduce = reduce, .axis = at), x);
}

quern_tensor *quern_cumsum(quern_tensor *x, int axis) { return scan("cumsum", IR_SUM, BASE_NUM, x, axis); }

quern_tensor *quern_cumprod(quern_tensor *x, int axis) { return scan("cumprod", IR_PROD, BASE_NUM, x, axis); }

quern_tensor *quern_cummax(quern_tensor *x, int axis) { return scan("cummax", IR_REDUCE_MAX, BASE_ANY, x, axis); }

quern_tensor *quern_cummin(quern_tensor *x, int axis) { return scan("cummin", IR_REDUCE_MIN, BASE_ANY, x, axis); }

/* ---- order --------------------------------------------------------------------------------------------- */

static quern_tensor *sorted(const char *what, quern_tensor *x, int axis, bool descending) {
  TENSOR_ENTER(ctx, what, x);
  int at = tensor_axis(what, x, axis);
  if (at < 0) return &ir_poison;
  return IR_MAKE(ctx, IR_SORT, TENSOR_ATTRS(.axis = at, .reverse = descending), x);
}

quern_tensor *quern_sort(quern_tensor *x, int axis, bool descending, quern_tensor **indices) {
  quern_tensor *y = sorted("sort", x, axis, descending);
  if (indices != NULL) *indices = ir_result(y, 1);
  return y;
}

quern_tensor *quern_argsort(quern_tensor *x, int axis, bool descending) {
  return ir_result(sorted("argsort", x, axis, descending), 1);
}

static bool topk_admits(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  const int64_t *ints = attrs->ints.at;
  return n == 1 && attrs->reals.n == 0 && attrs->ints.n == 3 && ints[1] >= 0 && ints[1] < src[0]->rank &&
         ints[0] >= 0 && ints[0] <= src[0]->dims[ints[1]] && (ints[2] == 0 || ints[2] == 1);
}

static void topk_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                      quern_tensor **results) {
  (void)ctx;
  const int64_t *ints = attrs->ints.at; /* k, axis, largest */
  quern_tensor *y = sorted("topk", args[0], (int)ints[1], ints[2] != 0);
  for (int i = 0; i < 2; i++) results[i] = quern_slice(ir_result(y, i), (int)ints[1], 0, ints[0], 1);
}

const struct ir_composite tensor_kind_topk = {.name = "topk", .n_results = 2, .body = topk_body, .admits = topk_admits};

static quern_tensor *topk(quern_tensor *x, int64_t k, int axis, bool largest) {
  TENSOR_ENTER(ctx, "topk", x);
  int at = tensor_axis("topk", x, axis);
  if (at < 0) return &ir_poison;
  TENSOR_CHECK(ctx, k >= 0 && k <= x->dims[at], SHAPE, "topk: %lld of axis %d of %s, which has %lld", (long long)k, at,
               TENSOR_SHAPE(x), (long long)x->dims[at]);
  return ir_composite_make(ctx, &tensor_kind_topk, IR_INTS(k, at, largest), (struct ir_reals){0}, 1, &x);
}

quern_tensor *quern_topk(quern_tensor *x, int64_t k, int axis, bool largest, quern_tensor **indices) {
  quern_tensor *y = topk(x, k, axis, largest);
  if (indices != NULL) *indices = ir_result(y, 1);
  return y;
}
