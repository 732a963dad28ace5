/* tensor/support.c -- what the builders share: checks of operands, axes, types; broadcasting
** keeps: a check that fails has recorded its error; a helper given the poison gives the poison
** tests: tests/tensor/test_support.c
*/
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* ---- checks -------------------------------------------------------------------------------------------- */

quern_context *tensor_enter(const char *what, int n, quern_tensor *const *xs) {
  quern_context *ctx = NULL;
  for (int i = 0; i < n && ctx == NULL; i++) {
    if (!ir_is_poison(xs[i])) ctx = xs[i]->node->ctx;
  }
  for (int i = 0; i < n; i++) {
    if (xs[i] == NULL) {
      if (n == 1) return ir_fail(ctx, QUERN_STATUS_INVALID, "%s: the operand is null", what), NULL;
      return ir_fail(ctx, QUERN_STATUS_INVALID, "%s: operand %d is null", what, i), NULL;
    }
  }
  for (int i = 0; i < n; i++) {
    if (ir_is_poison(xs[i])) return NULL;
    if (xs[i]->node->ctx != ctx) {
      return ir_fail(ctx, QUERN_STATUS_INVALID, "%s: operands 0 and %d belong to different contexts", what, i), NULL;
    }
  }
  return ctx;
}

quern_status tensor_status(quern_context *ctx, quern_status otherwise) {
  if (ctx == NULL) return otherwise;
  QUERN_TRY(quern_context_check(ctx));
  return otherwise;
}

int tensor_axis(const char *what, const quern_tensor *x, int64_t axis) {
  if (axis >= -x->rank && axis < x->rank) return (int)(axis < 0 ? axis + x->rank : axis);
  ir_fail(x->node->ctx, QUERN_STATUS_SHAPE, "%s: axis %lld is out of range for %s of rank %d", what, (long long)axis,
          TENSOR_SHAPE(x), x->rank);
  return -1;
}

int tensor_axes(const char *what, const quern_tensor *x, int n_axes, const int64_t *axes, int64_t *out) {
  quern_context *ctx = x->node->ctx;
  if (n_axes < 0 || (n_axes > 0 && axes == NULL)) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: a list of %d axes%s", what, n_axes, n_axes > 0 ? " is null" : "");
    return -1;
  }
  bool listed[QUERN_MAX_RANK] = {0};
  for (int i = 0; i < n_axes; i++) {
    int axis = tensor_axis(what, x, axes[i]);
    if (axis < 0) return -1;
    if (listed[axis]) {
      ir_fail(ctx, QUERN_STATUS_SHAPE, "%s: axis %d of %s is listed twice in %s", what, axis, TENSOR_SHAPE(x),
              TENSOR_DIMS(BASE_MIN(n_axes, QUERN_MAX_RANK + 1), axes));
      return -1;
    }
    listed[axis] = true;
  }
  int n = 0;
  for (int k = 0; k < x->rank; k++) {
    if (n_axes == 0 || listed[k]) out[n++] = k;
  }
  return n;
}

bool tensor_same_dtype(const char *what, int n, quern_tensor *const *xs) {
  for (int i = 1; i < n; i++) {
    if (xs[i]->dtype == xs[0]->dtype) continue;
    ir_fail(xs[0]->node->ctx, QUERN_STATUS_DTYPE,
            "%s: dtypes differ: operand 0 is %s, operand %d is %s HINT: quern_cast makes them equal", what,
            TENSOR_TYPE(xs[0]), i, TENSOR_TYPE(xs[i]));
    return false;
  }
  return true;
}

bool tensor_admits(const char *what, const quern_tensor *x, enum base_dtype_class classes) {
  if (base_dtype_is(x->dtype, classes)) return true;
  const char *hint = classes == BASE_FLOAT  ? "quern_cast to a float dtype"
                     : classes == BASE_BOOL ? "a comparison such as quern_ne gives a bool"
                     : classes == BASE_NUM  ? "quern_cast to a number"
                                            : "quern_cast to an integer dtype";
  ir_fail(x->node->ctx, QUERN_STATUS_DTYPE, "%s: does not admit %s HINT: %s", what, base_dtypes[x->dtype].name, hint);
  return false;
}

bool tensor_type_ok(const char *what, quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims) {
  if (ctx == NULL) {
    ir_fail(NULL, QUERN_STATUS_INVALID, "%s: the context is null", what);
    return false;
  }
  if ((unsigned)dtype >= QUERN_DTYPE_COUNT) {
    ir_fail(ctx, QUERN_STATUS_DTYPE, "%s: %d is no dtype", what, (int)dtype);
    return false;
  }
  if (rank < 0 || rank > QUERN_MAX_RANK) {
    ir_fail(ctx, QUERN_STATUS_SHAPE, "%s: rank %d is not in 0..%d", what, rank, (int)QUERN_MAX_RANK);
    return false;
  }
  if (rank > 0 && dims == NULL) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: a list of %d dims is null", what, rank);
    return false;
  }
  for (int k = 0; k < rank; k++) {
    if (dims[k] >= 0) continue;
    ir_fail(ctx, QUERN_STATUS_SHAPE, "%s: dim %d of %s is negative", what, k, TENSOR_DIMS(rank, dims));
    return false;
  }
  int64_t count;
  if (ir_type_count(dtype, rank, dims, &count) == QUERN_STATUS_OK) return true;
  ir_fail(ctx, QUERN_STATUS_OVERFLOW, "%s: %s of %s has more than 2^63 - 1 bytes", what, TENSOR_DIMS(rank, dims),
          base_dtypes[dtype].name);
  return false;
}

/* ---- constants ----------------------------------------------------------------------------------------- */

quern_tensor *tensor_scalar(const char *what, quern_context *ctx, quern_dtype dtype, double value) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  if (info->class == BASE_FLOAT) return ir_const(ctx, dtype, value);
  TENSOR_CHECK(ctx, isfinite(value) && value == trunc(value), INVALID, "%s: %g is not a value of %s", what, value,
               info->name);
  double lo = info->class == BASE_SIGNED ? -ldexp(1, info->bits - 1) : 0;
  double above = ldexp(1, info->class == BASE_SIGNED ? info->bits - 1 : info->bits);
  TENSOR_CHECK(ctx, value >= lo && value < above, INVALID, "%s: %.17g does not fit %s", what, value, info->name);
  return ir_const(ctx, dtype, value);
}

quern_tensor *tensor_scalar_of(const quern_tensor *x, double value) {
  return ir_is_poison(x) ? &ir_poison : tensor_scalar("scalar", x->node->ctx, x->dtype, value);
}

quern_tensor *tensor_full_of(const quern_tensor *x, double value) {
  return ir_is_poison(x) ? &ir_poison : quern_broadcast_to(tensor_scalar_of(x, value), x->rank, x->dims);
}

quern_dtype tensor_wide(quern_dtype dtype) {
  return base_dtypes[dtype].mantissa < base_dtypes[QUERN_DTYPE_F32].mantissa ? QUERN_DTYPE_F32 : dtype;
}

/* ---- views and reductions whose arguments are known to be right ---------------------------------------- */

quern_tensor *tensor_reshape(quern_tensor *x, int rank, const int64_t *dims) {
  if (ir_is_poison(x)) return &ir_poison;
  if (rank == x->rank && (rank == 0 || memcmp(dims, x->dims, (size_t)rank * sizeof *dims) == 0)) return x;
  return IR_MAKE(x->node->ctx, IR_RESHAPE, TENSOR_ATTRS(.shape = {rank, dims}), x);
}

quern_tensor *tensor_stretch(quern_tensor *x, const int64_t *dims) {
  if (ir_is_poison(x)) return &ir_poison;
  if (x->rank == 0 || memcmp(dims, x->dims, (size_t)x->rank * sizeof *dims) == 0) return x;
  return IR_MAKE(x->node->ctx, IR_BROADCAST, TENSOR_ATTRS(.shape = {x->rank, dims}), x);
}

quern_tensor *tensor_permute(quern_tensor *x, const int64_t *axes) {
  if (ir_is_poison(x)) return &ir_poison;
  bool moves = false;
  for (int k = 0; k < x->rank; k++) moves |= axes[k] != k;
  return moves ? IR_MAKE(x->node->ctx, IR_PERMUTE, TENSOR_ATTRS(.axes = {x->rank, axes}), x) : x;
}

quern_tensor *tensor_move_axis(quern_tensor *x, int from, int to) {
  if (ir_is_poison(x)) return &ir_poison;
  int64_t axes[QUERN_MAX_RANK];
  for (int k = 0, next = 0; k < x->rank; k++) {
    if (next == from) next++;
    axes[k] = k == to ? from : next++;
  }
  return tensor_permute(x, axes);
}

quern_tensor *tensor_reduce(quern_tensor *x, enum ir_reduce reduce, int n_axes, const int64_t *axes) {
  if (ir_is_poison(x) || n_axes == 0) return x;
  return IR_MAKE(x->node->ctx, IR_REDUCE, TENSOR_ATTRS(.reduce = reduce, .axes = {n_axes, axes}), x);
}

quern_tensor *tensor_restore_axes(quern_tensor *x, const quern_tensor *shape_of, int n_axes, const int64_t *axes) {
  if (ir_is_poison(x) || ir_is_poison(shape_of)) return &ir_poison;
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < shape_of->rank; k++) dims[k] = shape_of->dims[k];
  for (int i = 0; i < n_axes; i++) dims[axes[i]] = 1;
  return tensor_reshape(x, shape_of->rank, dims);
}

/* ---- broadcasting -------------------------------------------------------------------------------------- */

bool tensor_broadcast(const char *what, int n, quern_tensor **xs) {
  int rank = 0;
  int64_t dims[QUERN_MAX_RANK];
  for (int i = 0; i < n; i++) rank = BASE_MAX(rank, xs[i]->rank);
  for (int k = 0; k < rank; k++) {
    dims[k] = 1;
    int holder = 0;
    for (int i = 0; i < n; i++) {
      int at = k - rank + xs[i]->rank;
      if (at < 0 || xs[i]->dims[at] == 1 || xs[i]->dims[at] == dims[k]) continue;
      if (dims[k] != 1) {
        ir_fail(xs[i]->node->ctx, QUERN_STATUS_SHAPE,
                "%s: shapes do not broadcast: operand %d is %s, operand %d is %s; axis %d from the end is "
                "%lld and %lld",
                what, holder, TENSOR_SHAPE(xs[holder]), i, TENSOR_SHAPE(xs[i]), rank - k, (long long)dims[k],
                (long long)xs[i]->dims[at]);
        return false;
      }
      dims[k] = xs[i]->dims[at];
      holder = i;
    }
  }
  for (int i = 0; i < n; i++) {
    if (!tensor_type_ok(what, xs[i]->node->ctx, xs[i]->dtype, rank, dims)) return false;
    xs[i] = quern_broadcast_to(xs[i], rank, dims);
    if (ir_is_poison(xs[i])) return false;
  }
  return true;
}

quern_tensor *tensor_unbroadcast(quern_tensor *dy, const quern_tensor *like) {
  if (ir_is_poison(dy) || ir_is_poison(like)) return &ir_poison;
  int64_t axes[QUERN_MAX_RANK];
  int n = 0, more = dy->rank - like->rank;
  for (int k = 0; k < dy->rank; k++) {
    if (k < more || (like->dims[k - more] == 1 && dy->dims[k] != 1)) axes[n++] = k;
  }
  return tensor_reshape(tensor_reduce(dy, IR_SUM, n, axes), like->rank, like->dims);
}

/* ---- what a tensor is ---------------------------------------------------------------------------------- */

bool quern_tensor_is_poison(const quern_tensor *x) { return ir_is_poison(x); }

quern_context *quern_tensor_context(const quern_tensor *x) { return ir_is_poison(x) ? NULL : x->node->ctx; }

quern_dtype quern_tensor_dtype(const quern_tensor *x) { return x == NULL ? ir_poison.dtype : x->dtype; }

int quern_tensor_rank(const quern_tensor *x) { return ir_is_poison(x) ? 0 : x->rank; }

int64_t quern_tensor_dim(const quern_tensor *x, int axis) {
  if (ir_is_poison(x) || axis < -x->rank || axis >= x->rank) return -1;
  return x->dims[axis < 0 ? axis + x->rank : axis];
}

const int64_t *quern_tensor_dims(const quern_tensor *x) { return ir_is_poison(x) ? NULL : x->dims; }

int64_t quern_tensor_count(const quern_tensor *x) { return ir_is_poison(x) ? 0 : ir_count(x); }

size_t quern_tensor_bytes(const quern_tensor *x) { return ir_is_poison(x) ? 0 : ir_bytes(x); }

const char *quern_tensor_name(const quern_tensor *x) {
  if (ir_is_poison(x)) return NULL;
  return x->node->op == IR_INPUT || x->node->op == IR_STATE ? x->node->attrs->name : NULL;
}

const void *quern_tensor_data(const quern_tensor *x) {
  if (ir_is_poison(x) || x->node->op != IR_BUFFER) return NULL;
  struct ir_buffer *buffer = x->node->attrs->buffer;
  return ir_buffer_fetch(x->node->ctx, buffer) == QUERN_STATUS_OK ? buffer->data : NULL;
}

bool tensor_options(quern_context *ctx, const char *what, void *dst, size_t known, const void *options,
                    const char *type) {
  if (base_struct_take(dst, known, options, type, what) == QUERN_STATUS_OK) return true;
  ir_fail_last(ctx);
  return false;
}
