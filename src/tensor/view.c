/* tensor/view.c -- movement: every element of a result is an element of an operand, or a fill
** keeps: a view that changes nothing is its operand; equal slices have equal attributes
** tests: tests/tensor/test_view.c
*/
#include "tensor/tensor.h"

#include <string.h>

/* ---- shapes -------------------------------------------------------------------------------------------- */

quern_tensor *quern_reshape(quern_tensor *x, int rank, const int64_t *dims) {
  TENSOR_ENTER(ctx, "reshape", x);
  TENSOR_CHECK(ctx, rank >= 0 && rank <= QUERN_MAX_RANK, SHAPE, "reshape: rank %d is not in 0..%d", rank,
               (int)QUERN_MAX_RANK);
  TENSOR_CHECK(ctx, rank == 0 || dims != NULL, INVALID, "reshape: a list of %d dims is null", rank);
  int64_t full[QUERN_MAX_RANK], count = 0;
  int open = -1;
  for (int k = 0; k < rank; k++) {
    TENSOR_CHECK(ctx, dims[k] != -1 || open < 0, SHAPE, "reshape: %s has -1 twice", TENSOR_DIMS(rank, dims));
    if (dims[k] == -1) open = k;
    full[k] = dims[k] == -1 ? 1 : dims[k];
  }
  if (!tensor_type_ok("reshape", ctx, x->dtype, rank, full)) return &ir_poison;
  if (ir_type_count(x->dtype, rank, full, &count) != QUERN_STATUS_OK) return ir_fail_last(ctx);
  int64_t have = ir_count(x);
  if (open >= 0) {
    TENSOR_CHECK(ctx, count > 0 && have % count == 0, SHAPE,
                 "reshape: %s of %lld elements has no size for the -1 of %s", TENSOR_SHAPE(x), (long long)have,
                 TENSOR_DIMS(rank, dims));
    full[open] = have / count;
    count = have;
  }
  TENSOR_CHECK(ctx, count == have, SHAPE, "reshape: %s has %lld elements, %s has %lld", TENSOR_SHAPE(x),
               (long long)have, TENSOR_DIMS(rank, full), (long long)count);
  return tensor_reshape(x, rank, full);
}

quern_tensor *quern_flatten(quern_tensor *x, int first_axis, int last_axis) {
  TENSOR_ENTER(ctx, "flatten", x);
  int first = tensor_axis("flatten", x, first_axis), last = first < 0 ? -1 : tensor_axis("flatten", x, last_axis);
  if (last < 0) return &ir_poison;
  TENSOR_CHECK(ctx, first <= last, SHAPE, "flatten: the first axis %d comes after the last %d of %s", first, last,
               TENSOR_SHAPE(x));
  int64_t dims[QUERN_MAX_RANK], together = 1;
  for (int k = first; k <= last; k++) {
    if (x->dims[k] == 0) together = 0; /* the product of the others may not fit */
  }
  for (int k = first; k <= last && together > 0; k++) {
    TENSOR_CHECK(ctx, !__builtin_mul_overflow(together, x->dims[k], &together), OVERFLOW,
                 "flatten: axes %d to %d of %s have more than 2^63 - 1 places", first, last, TENSOR_SHAPE(x));
  }
  int rank = 0;
  for (int k = 0; k < x->rank; k++) {
    if (k <= first || k > last) dims[rank++] = k == first ? together : x->dims[k];
  }
  return tensor_reshape(x, rank, dims);
}

/* x without an axis of size 1. */
static quern_tensor *drop_axis(quern_tensor *x, int axis) {
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0, rank = 0; k < x->rank; k++) {
    if (k != axis) dims[rank++] = x->dims[k];
  }
  return tensor_reshape(x, x->rank - 1, dims);
}

quern_tensor *quern_squeeze(quern_tensor *x, int axis) {
  TENSOR_ENTER(ctx, "squeeze", x);
  int at = tensor_axis("squeeze", x, axis);
  if (at < 0) return &ir_poison;
  TENSOR_CHECK(ctx, x->dims[at] == 1, SHAPE, "squeeze: axis %d of %s has size %lld, must be 1", at, TENSOR_SHAPE(x),
               (long long)x->dims[at]);
  return drop_axis(x, at);
}

/* x with an axis of size 1 at a place of the result; negative from its end. */
static quern_tensor *insert_axis(const char *what, quern_tensor *x, int axis) {
  quern_context *ctx = x->node->ctx;
  int rank = x->rank + 1, at = axis < 0 ? axis + rank : axis;
  TENSOR_CHECK(ctx, rank <= QUERN_MAX_RANK, SHAPE, "%s: %s would have rank %d, at most %d", what, TENSOR_SHAPE(x), rank,
               (int)QUERN_MAX_RANK);
  TENSOR_CHECK(ctx, at >= 0 && at < rank, SHAPE, "%s: axis %d is out of range for a result of rank %d", what, axis,
               rank);
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < rank; k++) dims[k] = k == at ? 1 : x->dims[k - (k > at)];
  return tensor_reshape(x, rank, dims);
}

quern_tensor *quern_unsqueeze(quern_tensor *x, int axis) {
  TENSOR_ENTER(ctx, "unsqueeze", x);
  return insert_axis("unsqueeze", x, axis);
}

quern_tensor *quern_permute(quern_tensor *x, int rank, const int64_t *axes) {
  TENSOR_ENTER(ctx, "permute", x);
  TENSOR_CHECK(ctx, rank == x->rank, SHAPE, "permute: %d axes for %s of rank %d", rank, TENSOR_SHAPE(x), x->rank);
  TENSOR_CHECK(ctx, rank == 0 || axes != NULL, INVALID, "permute: a list of %d axes is null", rank);
  int64_t order[QUERN_MAX_RANK];
  bool seen[QUERN_MAX_RANK] = {0};
  for (int k = 0; k < rank; k++) {
    int axis = tensor_axis("permute", x, axes[k]);
    if (axis < 0) return &ir_poison;
    TENSOR_CHECK(ctx, !seen[axis], SHAPE, "permute: %s lists axis %d twice", TENSOR_DIMS(rank, axes), axis);
    seen[axis] = true;
    order[k] = axis;
  }
  return tensor_permute(x, order);
}

quern_tensor *quern_transpose(quern_tensor *x, int axis_a, int axis_b) {
  TENSOR_ENTER(ctx, "transpose", x);
  int a = tensor_axis("transpose", x, axis_a), b = a < 0 ? -1 : tensor_axis("transpose", x, axis_b);
  if (b < 0) return &ir_poison;
  int64_t order[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) order[k] = k == a ? b : k == b ? a : k;
  return tensor_permute(x, order);
}

quern_tensor *quern_broadcast_to(quern_tensor *x, int rank, const int64_t *dims) {
  TENSOR_ENTER(ctx, "broadcast_to", x);
  if (!tensor_type_ok("broadcast_to", ctx, x->dtype, rank, dims)) return &ir_poison;
  int more = rank - x->rank;
  TENSOR_CHECK(ctx, more >= 0, SHAPE, "broadcast_to: %s has more axes than %s", TENSOR_SHAPE(x),
               TENSOR_DIMS(rank, dims));
  int64_t own[QUERN_MAX_RANK];
  for (int k = 0; k < rank; k++) {
    own[k] = k < more ? 1 : x->dims[k - more];
    TENSOR_CHECK(ctx, own[k] == 1 || own[k] == dims[k], SHAPE,
                 "broadcast_to: %s does not stretch to %s: axis %d of the result is %lld, the operand has %lld",
                 TENSOR_SHAPE(x), TENSOR_DIMS(rank, dims), k, (long long)dims[k], (long long)own[k]);
  }
  return tensor_stretch(tensor_reshape(x, rank, own), dims);
}

/* ---- slices -------------------------------------------------------------------------------------------- */

/* count elements of an axis from lo on, every step-th. */
static quern_tensor *slice_axis(quern_tensor *x, int axis, int64_t lo, int64_t count, int64_t step) {
  if (ir_is_poison(x)) return &ir_poison;
  if (lo == 0 && count == x->dims[axis]) return x;
  int64_t los[QUERN_MAX_RANK], his[QUERN_MAX_RANK], steps[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) los[k] = 0, his[k] = x->dims[k], steps[k] = 1;
  los[axis] = count == 0 ? 0 : lo;
  his[axis] = count == 0 ? 0 : lo + (count - 1) * step + 1;
  steps[axis] = count <= 1 ? 1 : step;
  return IR_MAKE(x->node->ctx, IR_SLICE,
                 TENSOR_ATTRS(.lo = {x->rank, los}, .hi = {x->rank, his}, .step = {x->rank, steps}), x);
}

static quern_tensor *flip_axis(quern_tensor *x, int axis) {
  if (ir_is_poison(x) || x->dims[axis] <= 1) return x;
  return IR_MAKE(x->node->ctx, IR_FLIP, TENSOR_ATTRS(.axes = IR_INTS(axis)), x);
}

/* A position of Python's slices: negative ones count from the end, then clamped. */
static int64_t position(int64_t i, int64_t n, int64_t least, int64_t most) {
  if (i < 0) i = i < -n ? -1 : i + n;
  return i < least ? least : i > most ? most : i;
}

quern_tensor *quern_slice(quern_tensor *x, int axis, int64_t start, int64_t stop, int64_t step) {
  TENSOR_ENTER(ctx, "slice", x);
  int at = tensor_axis("slice", x, axis);
  if (at < 0) return &ir_poison;
  TENSOR_CHECK(ctx, step != 0, INVALID, "slice: the step is 0");
  int64_t n = x->dims[at];
  if (step > 0) {
    int64_t lo = position(start, n, 0, n), hi = position(stop, n, 0, n);
    return slice_axis(x, at, lo, hi > lo ? (hi - lo - 1) / step + 1 : 0, step);
  }
  int64_t by = step == INT64_MIN ? INT64_MAX : -step;
  int64_t first = position(start, n, -1, n - 1), end = stop == QUERN_END ? -1 : position(stop, n, -1, n - 1);
  int64_t count = first > end ? (first - end - 1) / by + 1 : 0;
  return flip_axis(slice_axis(x, at, count > 0 ? first - (count - 1) * by : 0, count, by), at);
}

quern_tensor *quern_select(quern_tensor *x, int axis, int64_t index) {
  TENSOR_ENTER(ctx, "select", x);
  int at = tensor_axis("select", x, axis);
  if (at < 0) return &ir_poison;
  int64_t n = x->dims[at];
  TENSOR_CHECK(ctx, index >= -n && index < n, SHAPE, "select: index %lld is out of range for axis %d of %s",
               (long long)index, at, TENSOR_SHAPE(x));
  quern_tensor *one = slice_axis(x, at, index < 0 ? index + n : index, 1, 1);
  return ir_is_poison(one) ? one : drop_axis(one, at);
}

quern_tensor *quern_flip(quern_tensor *x, int n_axes, const int64_t *axes) {
  TENSOR_ENTER(ctx, "flip", x);
  int64_t sorted[QUERN_MAX_RANK];
  int n = tensor_axes("flip", x, n_axes, axes, sorted);
  if (n < 0) return &ir_poison;
  return n == 0 ? x : IR_MAKE(ctx, IR_FLIP, TENSOR_ATTRS(.axes = {n, sorted}), x);
}

quern_tensor *quern_roll(quern_tensor *x, int axis, int64_t shift) {
  TENSOR_ENTER(ctx, "roll", x);
  int at = tensor_axis("roll", x, axis);
  if (at < 0) return &ir_poison;
  int64_t n = x->dims[at], by = n == 0 ? 0 : shift % n;
  if (by < 0) by += n;
  if (by == 0) return x;
  quern_tensor *last = slice_axis(x, at, n - by, by, 1);
  return IR_MAKE(ctx, IR_CONCAT, TENSOR_ATTRS(.axis = at), last, slice_axis(x, at, 0, n - by, 1));
}

quern_status quern_split(quern_tensor *x, int axis, int n, const int64_t *sizes, quern_tensor **parts) {
  quern_context *ctx = quern_tensor_context(x);
  const char *wrong = n < 1           ? "no parts"
                      : sizes == NULL ? "the sizes are null"
                      : parts == NULL ? "the place for the parts is null"
                                      : NULL;
  TENSOR_CHECK_STATUS(ctx, wrong == NULL, INVALID, "split: %s: n is %d", wrong, n);
  for (int i = 0; i < n; i++) parts[i] = &ir_poison;
  TENSOR_CHECK_STATUS(ctx, ctx != NULL, INVALID, "split: the operand is %s",
                      x == NULL ? "null" : "poison: the call that made it failed");
  int at = tensor_axis("split", x, axis);
  if (at < 0) return quern_context_check(ctx);
  int64_t left = x->dims[at], lo = 0;
  bool fits = true;
  for (int i = 0; i < n && fits; i++) {
    fits = sizes[i] >= 0 && sizes[i] <= left;
    left -= fits ? sizes[i] : 0;
  }
  TENSOR_CHECK_STATUS(ctx, fits && left == 0, SHAPE, "split: %d sizes %s are no parts of axis %d of %s", n,
                      TENSOR_DIMS(BASE_MIN(n, QUERN_MAX_RANK), sizes), at, TENSOR_SHAPE(x));
  for (int i = 0; i < n; i++) {
    parts[i] = slice_axis(x, at, lo, sizes[i], 1);
    lo += sizes[i];
  }
  return quern_context_check(ctx);
}

/* ---- padding and joining ------------------------------------------------------------------------------- */

quern_tensor *quern_pad(quern_tensor *x, int rank, const int64_t *lo, const int64_t *hi, double value) {
  TENSOR_ENTER(ctx, "pad", x);
  TENSOR_CHECK(ctx, rank == x->rank, SHAPE, "pad: %d axes for %s of rank %d", rank, TENSOR_SHAPE(x), x->rank);
  TENSOR_CHECK(ctx, rank == 0 || (lo != NULL && hi != NULL), INVALID, "pad: the list %s is null",
               lo == NULL ? "lo" : "hi");
  int64_t dims[QUERN_MAX_RANK], mid[QUERN_MAX_RANK] = {0};
  bool pads = false;
  for (int k = 0; k < rank; k++) {
    TENSOR_CHECK(ctx, lo[k] >= 0 && hi[k] >= 0, SHAPE,
                 "pad: axis %d of %s by %lld and %lld HINT: quern_slice removes elements", k, TENSOR_SHAPE(x),
                 (long long)lo[k], (long long)hi[k]);
    TENSOR_CHECK(ctx, lo[k] <= INT64_MAX - x->dims[k] && hi[k] <= INT64_MAX - x->dims[k] - lo[k], OVERFLOW,
                 "pad: axis %d of %s by %lld and %lld is too large", k, TENSOR_SHAPE(x), (long long)lo[k],
                 (long long)hi[k]);
    dims[k] = x->dims[k] + lo[k] + hi[k];
    pads |= dims[k] != x->dims[k];
  }
  if (!tensor_type_ok("pad", ctx, x->dtype, rank, dims)) return &ir_poison;
  quern_tensor *fill = tensor_scalar("pad", ctx, x->dtype, value);
  if (ir_is_poison(fill)) return &ir_poison;
  if (!pads) return x;
  return IR_MAKE(ctx, IR_PAD, TENSOR_ATTRS(.lo = {rank, lo}, .hi = {rank, hi}, .mid = {rank, mid}), x, fill);
}

/* One axis repeated: split as (times, size), stretched, joined. */
static quern_tensor *tile_axis(quern_tensor *x, int axis, int64_t times) {
  if (ir_is_poison(x) || times == 1) return x;
  int64_t before = 1, after = 1, dims[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) {
    dims[k] = k == axis ? x->dims[k] * times : x->dims[k];
    if (k < axis) before *= x->dims[k];
    if (k > axis) after *= x->dims[k];
  }
  int64_t size = x->dims[axis];
  quern_tensor *y = tensor_reshape(x, 4, (int64_t[]){before, 1, size, after});
  return tensor_reshape(tensor_stretch(y, (int64_t[]){before, times, size, after}), x->rank, dims);
}

quern_tensor *quern_tile(quern_tensor *x, int rank, const int64_t *times) {
  TENSOR_ENTER(ctx, "tile", x);
  TENSOR_CHECK(ctx, rank >= 0 && rank <= QUERN_MAX_RANK, SHAPE, "tile: rank %d is not in 0..%d", rank,
               (int)QUERN_MAX_RANK);
  TENSOR_CHECK(ctx, rank == 0 || times != NULL, INVALID, "tile: a list of %d counts is null", rank);
  int full = BASE_MAX(rank, x->rank);
  int64_t dims[QUERN_MAX_RANK], result[QUERN_MAX_RANK], counts[QUERN_MAX_RANK];
  for (int k = 0; k < full; k++) {
    counts[k] = k < full - rank ? 1 : times[k - (full - rank)];
    dims[k] = k < full - x->rank ? 1 : x->dims[k - (full - x->rank)];
    TENSOR_CHECK(ctx, counts[k] >= 0, SHAPE, "tile: counts %s are not all at least 0", TENSOR_DIMS(rank, times));
    TENSOR_CHECK(ctx, dims[k] == 0 || counts[k] <= INT64_MAX / dims[k], OVERFLOW, "tile: %s %lld times is too large",
                 TENSOR_SHAPE(x), (long long)counts[k]);
    result[k] = dims[k] * counts[k];
  }
  if (!tensor_type_ok("tile", ctx, x->dtype, full, result)) return &ir_poison;
  for (int k = 0; k < full; k++) {
    if (result[k] == 0) return quern_broadcast_to(tensor_scalar_of(x, 0), full, result);
  }
  quern_tensor *y = tensor_reshape(x, full, dims);
  for (int k = 0; k < full; k++) y = tile_axis(y, k, counts[k]);
  return y;
}

static bool list_ok(const char *what, int n, quern_tensor *const *xs) {
  if (n >= 1 && xs != NULL) return true;
  const char *wrong = n < 1 ? "no operands" : "the list of operands is null";
  ir_fail(NULL, QUERN_STATUS_INVALID, "%s: %s: n is %d", what, wrong, n);
  return false;
}

static quern_tensor *concat_along(const char *what, quern_context *ctx, int n, quern_tensor *const *xs, int axis) {
  const quern_tensor *x = xs[0];
  int at = tensor_axis(what, x, axis);
  if (at < 0 || !tensor_same_dtype(what, n, xs)) return &ir_poison;
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) dims[k] = x->dims[k];
  for (int i = 1; i < n; i++) {
    bool fits = xs[i]->rank == x->rank;
    for (int k = 0; k < x->rank && fits; k++) fits = k == at || xs[i]->dims[k] == x->dims[k];
    TENSOR_CHECK(ctx, fits, SHAPE, "%s: shapes differ beyond axis %d: operand 0 is %s, operand %d is %s", what, at,
                 TENSOR_SHAPE(x), i, TENSOR_SHAPE(xs[i]));
    TENSOR_CHECK(ctx, xs[i]->dims[at] <= INT64_MAX - dims[at], OVERFLOW,
                 "%s: axis %d is too large: operand %d is %s after %lld places", what, at, i, TENSOR_SHAPE(xs[i]),
                 (long long)dims[at]);
    dims[at] += xs[i]->dims[at];
  }
  if (!tensor_type_ok(what, ctx, x->dtype, x->rank, dims)) return &ir_poison;
  return n == 1 ? xs[0] : ir_make(ctx, IR_CONCAT, n, xs, TENSOR_ATTRS(.axis = at));
}

quern_tensor *quern_concat(int n, quern_tensor *const *xs, int axis) {
  quern_context *ctx = list_ok("concat", n, xs) ? tensor_enter("concat", n, xs) : NULL;
  return ctx == NULL ? &ir_poison : concat_along("concat", ctx, n, xs, axis);
}

quern_tensor *quern_stack(int n, quern_tensor *const *xs, int axis) {
  quern_context *ctx = list_ok("stack", n, xs) ? tensor_enter("stack", n, xs) : NULL;
  if (ctx == NULL || !tensor_same_dtype("stack", n, xs)) return &ir_poison;
  for (int i = 1; i < n; i++) {
    TENSOR_CHECK(ctx, ir_same_shape(xs[0], xs[i]), SHAPE, "stack: shapes differ: operand 0 is %s, operand %d is %s",
                 TENSOR_SHAPE(xs[0]), i, TENSOR_SHAPE(xs[i]));
  }
  size_t bytes = (size_t)n * sizeof *xs;
  quern_tensor **list = base_alloc(&ctx->heap, bytes), *y = &ir_poison;
  if (list == NULL) return ir_fail_last(ctx);
  bool ok = true;
  for (int i = 0; i < n && ok; i++) {
    list[i] = insert_axis("stack", xs[i], axis);
    ok = !ir_is_poison(list[i]);
  }
  if (ok) y = concat_along("stack", ctx, n, list, axis);
  base_free(&ctx->heap, list, bytes);
  return y;
}

/* ---- blocks at run-time places ------------------------------------------------------------------------- */

/* Checks the starts and makes the node of x, maybe u, and them. */
static quern_tensor *block_op(const char *what, enum ir_op op, quern_tensor *x, quern_tensor *u, int rank,
                              quern_tensor *const *start, const int64_t *sizes) {
  quern_context *ctx = x->node->ctx;
  TENSOR_CHECK(ctx, rank == x->rank, SHAPE, "%s: %d starts for %s of rank %d", what, rank, TENSOR_SHAPE(x), x->rank);
  TENSOR_CHECK(ctx, rank == 0 || start != NULL, INVALID, "%s: the list of starts is null", what);
  TENSOR_CHECK(ctx, rank == 0 || sizes != NULL, INVALID, "%s: the list of sizes is null", what);
  quern_tensor *src[QUERN_MAX_RANK + 2] = {x, u};
  int first = u == NULL ? 1 : 2;
  for (int k = 0; k < rank; k++) {
    TENSOR_CHECK(ctx, start[k] != NULL, INVALID, "%s: start %d is null", what, k);
    if (ir_is_poison(start[k])) return &ir_poison;
    TENSOR_CHECK(ctx, start[k]->node->ctx == ctx, INVALID, "%s: start %d belongs to another context", what, k);
    TENSOR_CHECK(ctx, start[k]->rank == 0 && base_dtype_is(start[k]->dtype, BASE_INT), DTYPE,
                 "%s: start %d is %s, must be an integer scalar", what, k, TENSOR_TYPE(start[k]));
    TENSOR_CHECK(ctx, sizes[k] >= 0 && sizes[k] <= x->dims[k], SHAPE, "%s: a block of %s does not fit into %s", what,
                 TENSOR_DIMS(rank, sizes), TENSOR_SHAPE(x));
    src[first + k] = start[k];
  }
  return ir_make(ctx, op, first + rank, src, TENSOR_ATTRS(.shape = {rank, sizes}));
}

quern_tensor *quern_slice_at(quern_tensor *x, int rank, quern_tensor *const *start, const int64_t *sizes) {
  TENSOR_ENTER(ctx, "slice_at", x);
  return block_op("slice_at", IR_SLICE_AT, x, NULL, rank, start, sizes);
}

quern_tensor *quern_update_at(quern_tensor *x, quern_tensor *u, int rank, quern_tensor *const *start) {
  TENSOR_ENTER(ctx, "update_at", x, u);
  TENSOR_CHECK(ctx, x->dtype == u->dtype, DTYPE,
               "update_at: dtypes differ: x is %s, u is %s HINT: quern_cast makes them equal", TENSOR_TYPE(x),
               TENSOR_TYPE(u));
  TENSOR_CHECK(ctx, x->rank == u->rank, SHAPE, "update_at: ranks differ: x is %s, u is %s", TENSOR_SHAPE(x),
               TENSOR_SHAPE(u));
  return block_op("update_at", IR_UPDATE_AT, x, u, rank, start, u->dims);
}

/* ---- windows and triangles ----------------------------------------------------------------------------- */

quern_tensor *quern_window(quern_tensor *x, int n_axes, const int64_t *axes, const int64_t *size, const int64_t *stride,
                           const int64_t *dilation) {
  TENSOR_ENTER(ctx, "window", x);
  const char *wrong = n_axes < 1     ? "no axes"
                      : axes == NULL ? "the axes are null"
                      : size == NULL ? "the sizes are null"
                                     : NULL;
  TENSOR_CHECK(ctx, wrong == NULL, INVALID, "window: %s: n_axes is %d", wrong, n_axes);
  int64_t sorted[QUERN_MAX_RANK], sizes[QUERN_MAX_RANK], steps[QUERN_MAX_RANK], dilates[QUERN_MAX_RANK];
  int64_t order[QUERN_MAX_RANK];
  if (tensor_axes("window", x, n_axes, axes, sorted) < 0) return &ir_poison;
  TENSOR_CHECK(ctx, x->rank + n_axes <= QUERN_MAX_RANK, SHAPE,
               "window: %d windows of %s would have rank %d, at most %d", n_axes, TENSOR_SHAPE(x), x->rank + n_axes,
               (int)QUERN_MAX_RANK);
  for (int k = 0; k < x->rank; k++) order[k] = k;
  for (int i = 0; i < n_axes; i++) { /* the primitive takes axes in increasing order */
    int axis = tensor_axis("window", x, axes[i]), at = 0;
    while (sorted[at] != axis) at++;
    int64_t n = x->dims[axis];
    sizes[at] = size[i], steps[at] = stride == NULL ? 1 : stride[i], dilates[at] = dilation == NULL ? 1 : dilation[i];
    order[x->rank + i] = x->rank + at;
    TENSOR_CHECK(ctx, sizes[at] >= 1 && steps[at] >= 1 && dilates[at] >= 1, SHAPE,
                 "window: size %lld, stride %lld, dilation %lld of axis %d must be at least 1", (long long)sizes[at],
                 (long long)steps[at], (long long)dilates[at], axis);
    TENSOR_CHECK(ctx, n >= 1 && (sizes[at] == 1 || sizes[at] - 1 <= (n - 1) / dilates[at]), SHAPE,
                 "window: a window of %lld dilated by %lld does not fit axis %d of %s", (long long)sizes[at],
                 (long long)dilates[at], axis, TENSOR_SHAPE(x));
  }
  quern_tensor *y = IR_MAKE(ctx, IR_WINDOW,
                            TENSOR_ATTRS(.axes = {n_axes, sorted}, .size = {n_axes, sizes}, .step = {n_axes, steps},
                                         .dilate = {n_axes, dilates}),
                            x);
  return tensor_permute(y, order);
}

/* x where column - row - diagonal has a sign, else 0. */
static quern_tensor *triangle(const char *what, quern_tensor *x, int64_t diagonal, bool upper) {
  TENSOR_ENTER(ctx, what, x);
  TENSOR_CHECK(ctx, x->rank >= 2, SHAPE, "%s: %s has rank %d, must be at least 2", what, TENSOR_SHAPE(x), x->rank);
  const int64_t *dims = x->dims + x->rank - 2;
  if (!tensor_type_ok(what, ctx, QUERN_DTYPE_I64, 2, dims)) return &ir_poison;
  if (diagonal < -dims[0]) diagonal = -dims[0];
  if (diagonal > dims[1]) diagonal = dims[1];
  quern_tensor *row = quern_iota(ctx, QUERN_DTYPE_I64, 2, dims, 0),
               *column = quern_iota(ctx, QUERN_DTYPE_I64, 2, dims, 1);
  quern_tensor *edge = quern_add_scalar(row, (double)diagonal);
  quern_tensor *keep = upper ? quern_le(edge, column) : quern_le(column, edge);
  return quern_where(keep, x, tensor_scalar_of(x, 0));
}

quern_tensor *quern_triu(quern_tensor *x, int64_t diagonal) { return triangle("triu", x, diagonal, true); }

quern_tensor *quern_tril(quern_tensor *x, int64_t diagonal) { return triangle("tril", x, diagonal, false); }
