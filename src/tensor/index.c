/* tensor/index.c -- reading and writing at positions that are data
** keeps: positions outside an axis read 0 and write nothing
** tests: tests/tensor/test_index.c
*/
#include "tensor/tensor.h"

static const enum ir_reduce modes[] = {
    [QUERN_SCATTER_SET] = IR_SET,
    [QUERN_SCATTER_ADD] = IR_SUM,
    [QUERN_SCATTER_MAX] = IR_REDUCE_MAX,
    [QUERN_SCATTER_MIN] = IR_REDUCE_MIN,
};

/* The checked axis of x, or -1 with the error recorded; indices must be integers. */
static int indexed_axis(const char *what, const quern_tensor *x, const quern_tensor *indices, int axis) {
  if (base_dtype_is(indices->dtype, BASE_INT)) return tensor_axis(what, x, axis);
  ir_fail(x->node->ctx, QUERN_STATUS_DTYPE, "%s: the indices are %s, must be integers HINT: quern_cast to i64", what,
          TENSOR_TYPE(indices));
  return -1;
}

/* The same of a scatter, with the checks of mode and dtypes. */
static int scattered_axis(const char *what, const quern_tensor *x, const quern_tensor *indices, const quern_tensor *u,
                          int axis, quern_scatter_mode mode) {
  quern_context *ctx = x->node->ctx;
  if ((unsigned)mode >= BASE_COUNT(modes)) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: %d is no scatter mode", what, (int)mode);
    return -1;
  }
  if (x->dtype != u->dtype) {
    ir_fail(ctx, QUERN_STATUS_DTYPE, "%s: dtypes differ: x is %s, u is %s HINT: quern_cast makes them equal", what,
            TENSOR_TYPE(x), TENSOR_TYPE(u));
    return -1;
  }
  if (mode == QUERN_SCATTER_ADD && !tensor_admits(what, x, BASE_NUM)) return -1;
  return indexed_axis(what, x, indices, axis);
}

/* x's shape with an axis replaced by the axes of indices; its rank, or -1 with the error recorded. */
static int gathered_dims(const char *what, const quern_tensor *x, const quern_tensor *indices, int axis,
                         int64_t *dims) {
  int rank = x->rank - 1 + indices->rank, n = 0;
  if (rank > QUERN_MAX_RANK) {
    ir_fail(x->node->ctx, QUERN_STATUS_SHAPE, "%s: axis %d of %s at indices %s would have rank %d, at most %d", what,
            axis, TENSOR_SHAPE(x), TENSOR_SHAPE(indices), rank, (int)QUERN_MAX_RANK);
    return -1;
  }
  for (int k = 0; k < axis; k++) dims[n++] = x->dims[k];
  for (int k = 0; k < indices->rank; k++) dims[n++] = indices->dims[k];
  for (int k = axis + 1; k < x->rank; k++) dims[n++] = x->dims[k];
  return rank;
}

quern_tensor *quern_gather(quern_tensor *x, quern_tensor *indices, int axis) {
  TENSOR_ENTER(ctx, "gather", x, indices);
  int at = indexed_axis("gather", x, indices, axis);
  if (at < 0) return &ir_poison;
  int64_t dims[QUERN_MAX_RANK];
  int rank = gathered_dims("gather", x, indices, at, dims);
  if (rank < 0 || !tensor_type_ok("gather", ctx, x->dtype, rank, dims)) return &ir_poison;
  return IR_MAKE(ctx, IR_GATHER, TENSOR_ATTRS(.axis = at, .batch = 0), x, indices);
}

quern_tensor *quern_scatter(quern_tensor *x, quern_tensor *indices, quern_tensor *u, int axis,
                            quern_scatter_mode mode) {
  TENSOR_ENTER(ctx, "scatter", x, indices, u);
  int at = scattered_axis("scatter", x, indices, u, axis, mode);
  if (at < 0) return &ir_poison;
  int64_t dims[QUERN_MAX_RANK];
  int rank = gathered_dims("scatter", x, indices, at, dims);
  if (rank < 0 || !tensor_type_ok("scatter", ctx, x->dtype, rank, dims)) return &ir_poison;
  bool fits = u->rank <= rank;
  for (int k = 0; k < u->rank && fits; k++) {
    int64_t want = dims[rank - u->rank + k];
    fits = u->dims[k] == want || u->dims[k] == 1;
  }
  TENSOR_CHECK(ctx, fits, SHAPE, "scatter: u is %s, x is %s at indices %s on axis %d needs %s", TENSOR_SHAPE(u),
               TENSOR_SHAPE(x), TENSOR_SHAPE(indices), at, TENSOR_DIMS(rank, dims));
  quern_tensor *rows = quern_broadcast_to(u, rank, dims);
  return IR_MAKE(ctx, IR_SCATTER, TENSOR_ATTRS(.axis = at, .batch = 0, .reduce = modes[mode]), x, indices, rows);
}

/* False with the error recorded unless indices has x's rank and, but for axis, its shape. */
static bool along_ok(const char *what, const quern_tensor *x, const quern_tensor *indices, int axis) {
  bool fits = x->rank == indices->rank;
  for (int k = 0; k < x->rank && fits; k++) fits = k == axis || x->dims[k] == indices->dims[k];
  if (!fits) {
    ir_fail(x->node->ctx, QUERN_STATUS_SHAPE, "%s: the indices are %s, must have the shape of x, %s, but for axis %d",
            what, TENSOR_SHAPE(indices), TENSOR_SHAPE(x), axis);
  }
  return fits;
}

quern_tensor *quern_take_along(quern_tensor *x, quern_tensor *indices, int axis) {
  TENSOR_ENTER(ctx, "take_along", x, indices);
  int at = indexed_axis("take_along", x, indices, axis), last = x->rank - 1;
  if (at < 0 || !along_ok("take_along", x, indices, at)) return &ir_poison;
  x = tensor_move_axis(x, at, last);
  indices = tensor_move_axis(indices, at, last);
  quern_tensor *y = IR_MAKE(ctx, IR_GATHER, TENSOR_ATTRS(.axis = last, .batch = last), x, indices);
  return tensor_move_axis(y, last, at);
}

quern_tensor *quern_scatter_along(quern_tensor *x, quern_tensor *indices, quern_tensor *u, int axis,
                                  quern_scatter_mode mode) {
  TENSOR_ENTER(ctx, "scatter_along", x, indices, u);
  int at = scattered_axis("scatter_along", x, indices, u, axis, mode), last = x->rank - 1;
  if (at < 0 || !along_ok("scatter_along", x, indices, at)) return &ir_poison;
  TENSOR_CHECK(ctx, ir_same_shape(indices, u), SHAPE, "scatter_along: u is %s, must have the shape of the indices, %s",
               TENSOR_SHAPE(u), TENSOR_SHAPE(indices));
  x = tensor_move_axis(x, at, last);
  indices = tensor_move_axis(indices, at, last);
  u = tensor_move_axis(u, at, last);
  const struct ir_attrs *attrs = TENSOR_ATTRS(.axis = last, .batch = last, .reduce = modes[mode]);
  quern_tensor *y = IR_MAKE(ctx, IR_SCATTER, attrs, x, indices, u);
  return tensor_move_axis(y, last, at);
}

quern_tensor *quern_one_hot(quern_tensor *indices, int64_t classes, quern_dtype dtype) {
  TENSOR_ENTER(ctx, "one_hot", indices);
  TENSOR_CHECK(ctx, base_dtype_is(indices->dtype, BASE_INT), DTYPE,
               "one_hot: the indices are %s, must be integers HINT: quern_cast to i64", TENSOR_TYPE(indices));
  TENSOR_CHECK(ctx, classes >= 0, INVALID, "one_hot: %lld classes", (long long)classes);
  TENSOR_CHECK(ctx, indices->rank < QUERN_MAX_RANK, SHAPE, "one_hot: indices %s leave no room for an axis",
               TENSOR_SHAPE(indices));
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < indices->rank; k++) dims[k] = indices->dims[k];
  dims[indices->rank] = classes;
  if (!tensor_type_ok("one_hot", ctx, dtype, indices->rank + 1, dims) ||
      !tensor_type_ok("one_hot", ctx, QUERN_DTYPE_I64, indices->rank + 1, dims)) {
    return &ir_poison;
  }
  quern_tensor *wide = quern_unsqueeze(quern_cast(indices, QUERN_DTYPE_I64), -1);
  return quern_cast(quern_eq(wide, quern_iota(ctx, QUERN_DTYPE_I64, 1, &classes, 0)), dtype);
}
