/* ir/infer.c -- the results' dtypes and shapes of every op, or why it cannot be
** in:    an op, its sources and attributes     out: types in the context's scratch, or an error that names the values
** keeps: attributes that pass are canonical: lists have the length the op needs, axes of sets are increasing
** tests: tests/ir/test_infer.c
*/
#include <string.h>

#include "ir/ir.h"

struct infer {
  quern_context *ctx;
  const char *name; /* of the op, for messages */
  int n_src;
  quern_tensor *const *src;
  const struct ir_attrs *attrs;
};

typedef quern_status infer_rule(const struct infer *in);

#define TEXT(t) ir_type_text((char[IR_TYPE_TEXT]){0}, (t))
#define SHAPE_TEXT(rank, dims) base_shape_text((char[256]){0}, 256, (rank), (dims))
#define LIST_TEXT(list) SHAPE_TEXT((list).n, (list).at)

/* Adds a result after checking dims and size. */
static quern_status give(const struct infer *in, const struct ir_type *type) {
  for (int k = 0; k < type->rank; k++) {
    QUERN_CHECK(type->dims[k] >= 0, SHAPE, "%s: axis %d would have size %lld", in->name, k, (long long)type->dims[k]);
  }
  int64_t count;
  quern_status status = ir_type_count(type->dtype, type->rank, type->dims, &count);
  if (status != QUERN_STATUS_OK) return base_error(status, "%s: %s", in->name, quern_last_error());
  if (!base_vec_push(&in->ctx->heap, &in->ctx->types, *type)) return QUERN_STATUS_MEMORY;
  return QUERN_STATUS_OK;
}

static struct ir_type type_of(const quern_tensor *t) {
  struct ir_type type = {.dtype = t->dtype, .rank = t->rank};
  if (t->rank > 0) memcpy(type.dims, t->dims, (size_t)t->rank * sizeof *t->dims);
  return type;
}

static quern_status give_like(const struct infer *in, const quern_tensor *t, quern_dtype dtype) {
  struct ir_type type = type_of(t);
  type.dtype = dtype;
  return give(in, &type);
}

static quern_status give_shape(const struct infer *in, quern_dtype dtype, struct ir_ints shape) {
  QUERN_CHECK(shape.n <= QUERN_MAX_RANK, SHAPE, "%s: rank %d exceeds %d", in->name, shape.n, (int)QUERN_MAX_RANK);
  struct ir_type type = {.dtype = dtype, .rank = shape.n};
  if (shape.n > 0) memcpy(type.dims, shape.at, (size_t)shape.n * sizeof *shape.at);
  return give(in, &type);
}

static quern_status need_axis(const struct infer *in, int64_t axis, int rank) {
  QUERN_CHECK(axis >= 0 && axis < rank, SHAPE, "%s: axis %lld is out of range for rank %d", in->name, (long long)axis,
              rank);
  return QUERN_STATUS_OK;
}

/* Axes of a set: in range, strictly increasing. */
static quern_status need_axes(const struct infer *in, struct ir_ints axes, int rank) {
  QUERN_CHECK(axes.n <= rank, SHAPE, "%s: %d axes for rank %d", in->name, axes.n, rank);
  for (int i = 0; i < axes.n; i++) {
    QUERN_TRY(need_axis(in, axes.at[i], rank));
    QUERN_CHECK(i == 0 || axes.at[i - 1] < axes.at[i], SHAPE, "%s: axes %s are not increasing", in->name,
                LIST_TEXT(axes));
  }
  return QUERN_STATUS_OK;
}

static quern_status need_length(const struct infer *in, const char *what, struct ir_ints list, int n) {
  QUERN_CHECK(list.n == n, SHAPE, "%s: %s has %d numbers, expected %d", in->name, what, list.n, n);
  return QUERN_STATUS_OK;
}

static quern_status need_at_least(const struct infer *in, const char *what, struct ir_ints list, int64_t least) {
  for (int i = 0; i < list.n; i++) {
    QUERN_CHECK(list.at[i] >= least, SHAPE, "%s: %s[%d] is %lld, must be at least %lld", in->name, what, i,
                (long long)list.at[i], (long long)least);
  }
  return QUERN_STATUS_OK;
}

static quern_status need_same_type(const struct infer *in, const quern_tensor *a, const quern_tensor *b) {
  QUERN_CHECK(a->dtype == b->dtype, DTYPE, "%s: dtypes differ: %s and %s HINT: quern_cast makes them equal", in->name,
              TEXT(a), TEXT(b));
  QUERN_CHECK(ir_same_shape(a, b), SHAPE, "%s: shapes differ: %s and %s", in->name, TEXT(a), TEXT(b));
  return QUERN_STATUS_OK;
}

static quern_status need_int(const struct infer *in, const quern_tensor *t, const char *what) {
  QUERN_CHECK(base_dtype_is(t->dtype, BASE_INT), DTYPE, "%s: %s is %s, must be of an integer dtype", in->name, what,
              TEXT(t));
  return QUERN_STATUS_OK;
}

/* max and min are for all dtypes; sums and products not for bool. */
static quern_status need_reduce(const struct infer *in, quern_dtype dtype) {
  enum ir_reduce kind = in->attrs->reduce;
  QUERN_CHECK(kind < IR_SET, INVALID, "%s: reduce is %d, must be sum, prod, max or min", in->name, (int)kind);
  QUERN_CHECK(dtype != QUERN_DTYPE_BOOL || kind == IR_REDUCE_MAX || kind == IR_REDUCE_MIN, DTYPE,
              "%s: %s of bool HINT: max is or, min is and; quern_cast counts", in->name, ir_reduce_names[kind]);
  return QUERN_STATUS_OK;
}

/* ---- leaves ------------------------------------------------------------------------------------------------------- */

static quern_status infer_LEAF(const struct infer *in) {
  QUERN_CHECK(in->attrs->index >= 0, INVALID, "%s: index is %lld", in->name, (long long)in->attrs->index);
  return give_shape(in, in->attrs->dtype, in->attrs->shape);
}

static quern_status infer_CONST(const struct infer *in) {
  const struct ir_attrs *a = in->attrs;
  QUERN_TRY(give_shape(in, a->dtype, a->shape));
  int64_t count;
  QUERN_TRY(ir_type_count(a->dtype, a->shape.n, a->shape.at, &count));
  size_t bytes = (size_t)count * base_dtypes[a->dtype].size;
  QUERN_CHECK(bytes <= IR_CONST_BYTES, OVERFLOW, "%s: %zu bytes exceed %d HINT: quern_tensor_copy holds any size",
              in->name, bytes, (int)IR_CONST_BYTES);
  QUERN_CHECK(a->data.n == bytes, INVALID, "%s: %zu bytes of data, the type needs %zu", in->name, a->data.n, bytes);
  if (a->dtype == QUERN_DTYPE_BOOL) {
    for (size_t i = 0; i < bytes; i++) {
      int value = ((const unsigned char *)a->data.at)[i];
      QUERN_CHECK(value <= 1, INVALID, "%s: a bool is 0 or 1, element %zu is %d", in->name, i, value);
    }
  }
  return QUERN_STATUS_OK;
}

static quern_status infer_IOTA(const struct infer *in) {
  QUERN_TRY(need_axis(in, in->attrs->axis, in->attrs->shape.n));
  return give_shape(in, in->attrs->dtype, in->attrs->shape);
}

static quern_status infer_RANDOM(const struct infer *in) {
  for (int i = 0; i < 2; i++) {
    const quern_tensor *t = in->src[i];
    QUERN_CHECK(t->dtype == QUERN_DTYPE_U64 && t->rank == 0, DTYPE, "%s: the %s is %s, must be a u64 scalar", in->name,
                i == 0 ? "seed" : "step", TEXT(t));
  }
  QUERN_CHECK(in->attrs->stream >= 0 && in->attrs->stream <= UINT32_MAX, INVALID, "%s: stream %lld is not in 0..2^32-1",
              in->name, (long long)in->attrs->stream);
  QUERN_TRY(give_shape(in, QUERN_DTYPE_U32, in->attrs->shape));
  int64_t count;
  QUERN_TRY(ir_type_count(QUERN_DTYPE_U32, in->attrs->shape.n, in->attrs->shape.at, &count));
  QUERN_CHECK(count <= INT64_C(1) << 34, OVERFLOW, "%s: %lld elements, a stream has 2^34", in->name, (long long)count);
  return QUERN_STATUS_OK;
}

/* ---- elementwise -------------------------------------------------------------------------------------------------- */

static quern_status infer_SAME(const struct infer *in) { return give_like(in, in->src[0], in->src[0]->dtype); }

static quern_status infer_CAST(const struct infer *in) { return give_like(in, in->src[0], in->attrs->dtype); }

static quern_status infer_BITCAST(const struct infer *in) {
  quern_dtype from = in->src[0]->dtype, to = in->attrs->dtype;
  QUERN_CHECK(base_dtypes[from].size == base_dtypes[to].size, DTYPE, "%s: %s has %zu bytes, %s has %zu", in->name,
              base_dtypes[from].name, base_dtypes[from].size, base_dtypes[to].name, base_dtypes[to].size);
  QUERN_CHECK(to != QUERN_DTYPE_BOOL || from == to, DTYPE, "%s: arbitrary bits are no bool", in->name);
  return give_like(in, in->src[0], to);
}

static quern_status infer_PAIR(const struct infer *in) {
  QUERN_TRY(need_same_type(in, in->src[0], in->src[1]));
  return infer_SAME(in);
}

static quern_status infer_COMPARE(const struct infer *in) {
  QUERN_TRY(need_same_type(in, in->src[0], in->src[1]));
  return give_like(in, in->src[0], QUERN_DTYPE_BOOL);
}

static quern_status infer_SELECT(const struct infer *in) {
  QUERN_TRY(need_same_type(in, in->src[1], in->src[2]));
  QUERN_CHECK(ir_same_shape(in->src[0], in->src[1]), SHAPE, "%s: the condition is %s, the values are %s", in->name,
              TEXT(in->src[0]), TEXT(in->src[1]));
  return give_like(in, in->src[1], in->src[1]->dtype);
}

/* ---- movement ----------------------------------------------------------------------------------------------------- */

static quern_status infer_RESHAPE(const struct infer *in) {
  const quern_tensor *x = in->src[0];
  struct ir_ints shape = in->attrs->shape;
  QUERN_TRY(give_shape(in, x->dtype, shape));
  int64_t count;
  QUERN_TRY(ir_type_count(x->dtype, shape.n, shape.at, &count));
  QUERN_CHECK(count == ir_count(x), SHAPE, "%s: %s has %lld elements, %s has %lld", in->name, TEXT(x),
              (long long)ir_count(x), LIST_TEXT(shape), (long long)count);
  return QUERN_STATUS_OK;
}

static quern_status infer_PERMUTE(const struct infer *in) {
  const quern_tensor *x = in->src[0];
  struct ir_ints axes = in->attrs->axes;
  QUERN_TRY(need_length(in, "axes", axes, x->rank));
  struct ir_type type = {.dtype = x->dtype, .rank = x->rank};
  unsigned seen = 0;
  for (int k = 0; k < axes.n; k++) {
    QUERN_TRY(need_axis(in, axes.at[k], x->rank));
    QUERN_CHECK((seen >> axes.at[k] & 1) == 0, SHAPE, "%s: axes %s repeat %lld", in->name, LIST_TEXT(axes),
                (long long)axes.at[k]);
    seen |= 1u << axes.at[k];
    type.dims[k] = x->dims[axes.at[k]];
  }
  return give(in, &type);
}

static quern_status infer_BROADCAST(const struct infer *in) {
  const quern_tensor *x = in->src[0];
  struct ir_ints shape = in->attrs->shape;
  QUERN_TRY(need_length(in, "shape", shape, x->rank));
  for (int k = 0; k < shape.n; k++) {
    QUERN_CHECK(x->dims[k] == shape.at[k] || x->dims[k] == 1, SHAPE,
                "%s: %s does not stretch to %s: axis %d is %lld, not 1", in->name, TEXT(x), LIST_TEXT(shape), k,
                (long long)x->dims[k]);
  }
  return give_shape(in, x->dtype, shape);
}

static quern_status infer_PAD(const struct infer *in) {
  const quern_tensor *x = in->src[0], *fill = in->src[1];
  const struct ir_attrs *a = in->attrs;
  QUERN_CHECK(fill->rank == 0 && fill->dtype == x->dtype, DTYPE, "%s: the fill is %s, must be a %s scalar", in->name,
              TEXT(fill), base_dtypes[x->dtype].name);
  const struct {
    const char *name;
    struct ir_ints list;
  } lists[] = {{"lo", a->lo}, {"hi", a->hi}, {"mid", a->mid}};
  for (size_t i = 0; i < BASE_COUNT(lists); i++) {
    QUERN_TRY(need_length(in, lists[i].name, lists[i].list, x->rank));
    QUERN_TRY(need_at_least(in, lists[i].name, lists[i].list, 0));
  }
  struct ir_type type = type_of(x);
  for (int k = 0; k < x->rank; k++) {
    int64_t gaps, size;
    bool wrong = __builtin_mul_overflow(x->dims[k] > 0 ? x->dims[k] - 1 : 0, a->mid.at[k], &gaps);
    wrong |= __builtin_add_overflow(x->dims[k], gaps, &size);
    wrong |= __builtin_add_overflow(size, a->lo.at[k], &size);
    wrong |= __builtin_add_overflow(size, a->hi.at[k], &size);
    QUERN_CHECK(!wrong, OVERFLOW, "%s: axis %d of %s padded by %lld, %lld, %lld is too large", in->name, k, TEXT(x),
                (long long)a->lo.at[k], (long long)a->hi.at[k], (long long)a->mid.at[k]);
    type.dims[k] = size;
  }
  return give(in, &type);
}

static quern_status infer_SLICE(const struct infer *in) {
  const quern_tensor *x = in->src[0];
  const struct ir_attrs *a = in->attrs;
  QUERN_TRY(need_length(in, "lo", a->lo, x->rank));
  QUERN_TRY(need_length(in, "hi", a->hi, x->rank));
  QUERN_TRY(need_length(in, "step", a->step, x->rank));
  QUERN_TRY(need_at_least(in, "step", a->step, 1));
  struct ir_type type = type_of(x);
  for (int k = 0; k < x->rank; k++) {
    int64_t lo = a->lo.at[k], hi = a->hi.at[k];
    QUERN_CHECK(0 <= lo && lo <= hi && hi <= x->dims[k], SHAPE, "%s: %lld to %lld is outside axis %d of %s", in->name,
                (long long)lo, (long long)hi, k, TEXT(x));
    type.dims[k] = hi == lo ? 0 : (hi - lo - 1) / a->step.at[k] + 1;
  }
  return give(in, &type);
}

static quern_status infer_FLIP(const struct infer *in) {
  QUERN_TRY(need_axes(in, in->attrs->axes, in->src[0]->rank));
  return infer_SAME(in);
}

static quern_status infer_CONCAT(const struct infer *in) {
  QUERN_CHECK(in->n_src > 0, INVALID, "%s: no sources", in->name);
  const quern_tensor *x = in->src[0];
  int64_t axis = in->attrs->axis;
  QUERN_TRY(need_axis(in, axis, x->rank));
  struct ir_type type = type_of(x);
  for (int i = 1; i < in->n_src; i++) {
    const quern_tensor *y = in->src[i];
    QUERN_CHECK(y->dtype == x->dtype, DTYPE, "%s: source 0 is %s, source %d is %s HINT: quern_cast makes them equal",
                in->name, TEXT(x), i, TEXT(y));
    QUERN_CHECK(y->rank == x->rank, SHAPE, "%s: source 0 is %s, source %d is %s: ranks differ", in->name, TEXT(x), i,
                TEXT(y));
    for (int k = 0; k < x->rank; k++) {
      QUERN_CHECK(k == axis || y->dims[k] == x->dims[k], SHAPE,
                  "%s along axis %lld: source 0 is %s, source %d is %s: axis %d differs", in->name, (long long)axis,
                  TEXT(x), i, TEXT(y), k);
    }
    QUERN_CHECK(!__builtin_add_overflow(type.dims[axis], y->dims[axis], &type.dims[axis]), OVERFLOW,
                "%s: axis %lld is too large", in->name, (long long)axis);
  }
  return give(in, &type);
}

/* Sources from first on are integer scalars, one per axis. */
static quern_status need_starts(const struct infer *in, int first) {
  const quern_tensor *x = in->src[0];
  QUERN_CHECK(in->n_src == first + x->rank, INVALID, "%s: %d starts for %s, needs one an axis", in->name,
              in->n_src - first, TEXT(x));
  for (int i = first; i < in->n_src; i++) {
    QUERN_TRY(need_int(in, in->src[i], "a start"));
    QUERN_CHECK(in->src[i]->rank == 0, SHAPE, "%s: start %d is %s, must be a scalar", in->name, i - first,
                TEXT(in->src[i]));
  }
  return QUERN_STATUS_OK;
}

static quern_status need_inside(const struct infer *in, const quern_tensor *x, int rank, const int64_t *dims) {
  QUERN_CHECK(rank == x->rank, SHAPE, "%s: a block %s of %s: ranks differ", in->name, SHAPE_TEXT(rank, dims), TEXT(x));
  for (int k = 0; k < rank; k++) {
    QUERN_CHECK(dims[k] >= 0 && dims[k] <= x->dims[k], SHAPE, "%s: a block %s does not fit into %s", in->name,
                SHAPE_TEXT(rank, dims), TEXT(x));
  }
  return QUERN_STATUS_OK;
}

static quern_status infer_SLICE_AT(const struct infer *in) {
  QUERN_CHECK(in->n_src > 0, INVALID, "%s: no sources", in->name);
  QUERN_TRY(need_starts(in, 1));
  QUERN_TRY(need_inside(in, in->src[0], in->attrs->shape.n, in->attrs->shape.at));
  return give_shape(in, in->src[0]->dtype, in->attrs->shape);
}

static quern_status infer_UPDATE_AT(const struct infer *in) {
  QUERN_CHECK(in->n_src > 1, INVALID, "%s: %d sources, needs at least 2", in->name, in->n_src);
  const quern_tensor *x = in->src[0], *u = in->src[1];
  QUERN_CHECK(x->dtype == u->dtype, DTYPE, "%s: %s into %s: dtypes differ", in->name, TEXT(u), TEXT(x));
  QUERN_TRY(need_starts(in, 2));
  QUERN_TRY(need_inside(in, x, u->rank, u->dims));
  return infer_SAME(in);
}

static quern_status need_window(const struct infer *in, int rank) {
  const struct ir_attrs *a = in->attrs;
  QUERN_TRY(need_axes(in, a->axes, rank));
  QUERN_TRY(need_length(in, "step", a->step, a->axes.n));
  QUERN_TRY(need_length(in, "dilate", a->dilate, a->axes.n));
  QUERN_TRY(need_at_least(in, "step", a->step, 1));
  return need_at_least(in, "dilate", a->dilate, 1);
}

/* How far a window of that size reaches, or an error when that does not fit. */
static quern_status window_span(const struct infer *in, int i, int64_t size, int64_t *span) {
  bool wrong =
      __builtin_mul_overflow(size - 1, in->attrs->dilate.at[i], span) || __builtin_add_overflow(*span, 1, span);
  QUERN_CHECK(!wrong, OVERFLOW, "%s: a window of %lld dilated by %lld is too large", in->name, (long long)size,
              (long long)in->attrs->dilate.at[i]);
  return QUERN_STATUS_OK;
}

static quern_status infer_WINDOW(const struct infer *in) {
  const quern_tensor *x = in->src[0];
  const struct ir_attrs *a = in->attrs;
  QUERN_TRY(need_window(in, x->rank));
  QUERN_TRY(need_length(in, "size", a->size, a->axes.n));
  QUERN_TRY(need_at_least(in, "size", a->size, 1));
  QUERN_CHECK(x->rank + a->axes.n <= QUERN_MAX_RANK, SHAPE, "%s: rank %d exceeds %d", in->name, x->rank + a->axes.n,
              (int)QUERN_MAX_RANK);
  struct ir_type type = type_of(x);
  for (int i = 0; i < a->axes.n; i++) {
    int64_t axis = a->axes.at[i], span;
    QUERN_TRY(window_span(in, i, a->size.at[i], &span));
    QUERN_CHECK(span <= x->dims[axis], SHAPE,
                "%s: a window of %lld dilated by %lld spans %lld, axis %lld of %s has %lld", in->name,
                (long long)a->size.at[i], (long long)a->dilate.at[i], (long long)span, (long long)axis, TEXT(x),
                (long long)x->dims[axis]);
    type.dims[axis] = (x->dims[axis] - span) / a->step.at[i] + 1;
    type.dims[type.rank++] = a->size.at[i];
  }
  return give(in, &type);
}

static quern_status infer_COL2IM(const struct infer *in) {
  const quern_tensor *x = in->src[0];
  const struct ir_attrs *a = in->attrs;
  int rank = a->shape.n;
  QUERN_TRY(give_shape(in, x->dtype, a->shape));
  QUERN_TRY(need_window(in, rank));
  QUERN_CHECK(x->rank == rank + a->axes.n, SHAPE, "%s: %s has rank %d, %s with %d windows needs %d", in->name, TEXT(x),
              x->rank, LIST_TEXT(a->shape), a->axes.n, rank + a->axes.n);
  struct ir_type want = {.rank = rank};
  if (rank > 0) memcpy(want.dims, a->shape.at, (size_t)rank * sizeof *want.dims);
  for (int i = 0; i < a->axes.n; i++) {
    int64_t axis = a->axes.at[i], span;
    QUERN_TRY(window_span(in, i, x->dims[rank + i], &span));
    QUERN_CHECK(x->dims[rank + i] > 0 && span <= a->shape.at[axis], SHAPE, "%s: windows of %s do not fit into %s",
                in->name, TEXT(x), LIST_TEXT(a->shape));
    want.dims[axis] = (a->shape.at[axis] - span) / a->step.at[i] + 1;
  }
  for (int k = 0; k < rank; k++) {
    QUERN_CHECK(want.dims[k] == x->dims[k], SHAPE, "%s: axis %d of %s has %lld, folding to %s needs %lld", in->name, k,
                TEXT(x), (long long)x->dims[k], LIST_TEXT(a->shape), (long long)want.dims[k]);
  }
  return QUERN_STATUS_OK;
}

/* The type that GATHER gives, and SCATTER takes as updates: x with axis replaced by the indices' axes after batch. */
static quern_status gathered(const struct infer *in, struct ir_type *type) {
  const quern_tensor *x = in->src[0], *index = in->src[1];
  int64_t axis = in->attrs->axis, batch = in->attrs->batch;
  QUERN_TRY(need_int(in, index, "the index"));
  QUERN_TRY(need_axis(in, axis, x->rank));
  QUERN_CHECK(batch >= 0 && batch <= axis && batch <= index->rank, SHAPE,
              "%s: batch is %lld with axis %lld of %s and indices %s", in->name, (long long)batch, (long long)axis,
              TEXT(x), TEXT(index));
  for (int k = 0; k < batch; k++) {
    QUERN_CHECK(x->dims[k] == index->dims[k], SHAPE, "%s: batch axis %d of %s and of indices %s differ", in->name, k,
                TEXT(x), TEXT(index));
  }
  int rank = x->rank - 1 + index->rank - (int)batch;
  QUERN_CHECK(rank <= QUERN_MAX_RANK, SHAPE, "%s: rank %d exceeds %d", in->name, rank, (int)QUERN_MAX_RANK);
  *type = (struct ir_type){.dtype = x->dtype};
  for (int k = 0; k < axis; k++) type->dims[type->rank++] = x->dims[k];
  for (int k = (int)batch; k < index->rank; k++) type->dims[type->rank++] = index->dims[k];
  for (int k = (int)axis + 1; k < x->rank; k++) type->dims[type->rank++] = x->dims[k];
  return QUERN_STATUS_OK;
}

static quern_status infer_GATHER(const struct infer *in) {
  struct ir_type type;
  QUERN_TRY(gathered(in, &type));
  return give(in, &type);
}

static quern_status infer_SCATTER(const struct infer *in) {
  const quern_tensor *x = in->src[0], *u = in->src[2];
  enum ir_reduce kind = in->attrs->reduce;
  QUERN_CHECK(kind < IR_REDUCE_COUNT && kind != IR_PROD, INVALID, "%s: reduce is %d, must be sum, max, min or set",
              in->name, (int)kind);
  QUERN_CHECK(x->dtype != QUERN_DTYPE_BOOL || kind != IR_SUM, DTYPE, "%s: sum of bool HINT: max is or", in->name);
  QUERN_CHECK(x->dtype == u->dtype, DTYPE, "%s: %s into %s: dtypes differ", in->name, TEXT(u), TEXT(x));
  struct ir_type type;
  QUERN_TRY(gathered(in, &type));
  bool same = u->rank == type.rank;
  for (int k = 0; same && k < u->rank; k++) same = u->dims[k] == type.dims[k];
  QUERN_CHECK(same, SHAPE, "%s: updates are %s, must have shape %s for %s at indices %s", in->name, TEXT(u),
              SHAPE_TEXT(type.rank, type.dims), TEXT(x), TEXT(in->src[1]));
  return infer_SAME(in);
}

/* ---- reductions, order, contraction ------------------------------------------------------------------------------- */

static quern_status infer_REDUCE(const struct infer *in) {
  const quern_tensor *x = in->src[0];
  struct ir_ints axes = in->attrs->axes;
  QUERN_TRY(need_reduce(in, x->dtype));
  QUERN_TRY(need_axes(in, axes, x->rank));
  struct ir_type type = {.dtype = x->dtype};
  for (int k = 0, i = 0; k < x->rank; k++) {
    if (i < axes.n && axes.at[i] == k) {
      i++;
    } else {
      type.dims[type.rank++] = x->dims[k];
    }
  }
  return give(in, &type);
}

static quern_status infer_ARGREDUCE(const struct infer *in) {
  const quern_tensor *x = in->src[0];
  int64_t axis = in->attrs->axis;
  enum ir_reduce kind = in->attrs->reduce;
  QUERN_CHECK(kind == IR_REDUCE_MAX || kind == IR_REDUCE_MIN, INVALID, "%s: reduce is %d, must be max or min", in->name,
              (int)kind);
  QUERN_TRY(need_axis(in, axis, x->rank));
  QUERN_CHECK(x->dims[axis] > 0, SHAPE, "%s: axis %lld of %s is empty", in->name, (long long)axis, TEXT(x));
  struct ir_type type = {.dtype = QUERN_DTYPE_I64};
  for (int k = 0; k < x->rank; k++) {
    if (k != axis) type.dims[type.rank++] = x->dims[k];
  }
  return give(in, &type);
}

static quern_status need_flag(const struct infer *in) {
  QUERN_CHECK(in->attrs->reverse == 0 || in->attrs->reverse == 1, INVALID, "%s: reverse is %lld, must be 0 or 1",
              in->name, (long long)in->attrs->reverse);
  return QUERN_STATUS_OK;
}

static quern_status infer_SCAN(const struct infer *in) {
  QUERN_TRY(need_reduce(in, in->src[0]->dtype));
  QUERN_TRY(need_axis(in, in->attrs->axis, in->src[0]->rank));
  QUERN_TRY(need_flag(in));
  return infer_SAME(in);
}

static quern_status infer_SORT(const struct infer *in) {
  QUERN_TRY(need_axis(in, in->attrs->axis, in->src[0]->rank));
  QUERN_TRY(need_flag(in));
  QUERN_TRY(infer_SAME(in));
  return give_like(in, in->src[0], QUERN_DTYPE_I64);
}

static quern_status infer_DOT(const struct infer *in) {
  const quern_tensor *a = in->src[0], *b = in->src[1];
  const struct ir_attrs *t = in->attrs;
  QUERN_CHECK(a->dtype == b->dtype, DTYPE, "%s: dtypes differ: %s and %s HINT: quern_cast makes them equal", in->name,
              TEXT(a), TEXT(b));
  QUERN_TRY(need_reduce(in, a->dtype));
  QUERN_CHECK(t->combine < IR_COMBINE_COUNT, INVALID, "%s: combine is %d", in->name, (int)t->combine);
  QUERN_CHECK(a->dtype != QUERN_DTYPE_BOOL || t->combine == IR_COMBINE_MAX || t->combine == IR_COMBINE_MIN, DTYPE,
              "%s: %s of bool HINT: max is or, min is and", in->name, ir_combine_names[t->combine]);
  QUERN_TRY(need_length(in, "b_batch", t->b_batch, t->a_batch.n));
  QUERN_TRY(need_length(in, "b_sum", t->b_sum, t->a_sum.n));
  const struct {
    const char *name;
    struct ir_ints a, b;
  } pairs[] = {{"batch", t->a_batch, t->b_batch}, {"sum", t->a_sum, t->b_sum}};
  unsigned used_a = 0, used_b = 0;
  struct ir_type type = {.dtype = a->dtype};
  for (size_t p = 0; p < BASE_COUNT(pairs); p++) {
    for (int i = 0; i < pairs[p].a.n; i++) {
      int64_t ka = pairs[p].a.at[i], kb = pairs[p].b.at[i];
      QUERN_TRY(need_axis(in, ka, a->rank));
      QUERN_TRY(need_axis(in, kb, b->rank));
      QUERN_CHECK((used_a >> ka & 1) == 0 && (used_b >> kb & 1) == 0, SHAPE,
                  "%s: axis %lld of a or %lld of b is named twice", in->name, (long long)ka, (long long)kb);
      used_a |= 1u << ka;
      used_b |= 1u << kb;
      QUERN_CHECK(a->dims[ka] == b->dims[kb], SHAPE, "%s: %s axis %lld of a and %lld of b differ: %s and %s", in->name,
                  pairs[p].name, (long long)ka, (long long)kb, TEXT(a), TEXT(b));
      if (p == 0) type.dims[type.rank++] = a->dims[ka];
    }
  }
  int rank = a->rank + b->rank - t->a_batch.n - 2 * t->a_sum.n;
  QUERN_CHECK(rank <= QUERN_MAX_RANK, SHAPE, "%s: rank %d exceeds %d", in->name, rank, (int)QUERN_MAX_RANK);
  for (int k = 0; k < a->rank; k++) {
    if ((used_a >> k & 1) == 0) type.dims[type.rank++] = a->dims[k];
  }
  for (int k = 0; k < b->rank; k++) {
    if ((used_b >> k & 1) == 0) type.dims[type.rank++] = b->dims[k];
  }
  return give(in, &type);
}

/* ---- control ------------------------------------------------------------------------------------------------------ */

static quern_status need_graph(const struct infer *in, const struct ir_graph *graph, const char *what, int n_params) {
  QUERN_CHECK(graph != NULL, INVALID, "%s: the %s is null", in->name, what);
  QUERN_CHECK(graph->ctx == in->ctx, INVALID, "%s: the %s belongs to another context", in->name, what);
  QUERN_CHECK(graph->n_params == n_params, INVALID, "%s: the %s takes %d operands, there are %d", in->name, what,
              graph->n_params, n_params);
  QUERN_CHECK(graph->depth < IR_MAX_DEPTH, OVERFLOW, "%s: subgraphs nest deeper than %d", in->name, (int)IR_MAX_DEPTH);
  return QUERN_STATUS_OK;
}

static quern_status need_param(const struct infer *in, const struct ir_graph *graph, int i,
                               const quern_tensor *operand) {
  QUERN_CHECK(ir_same_type(graph->params[i], operand), SHAPE, "%s: operand %d of a body is %s, the body takes %s",
              in->name, i, TEXT(operand), TEXT(graph->params[i]));
  return QUERN_STATUS_OK;
}

static quern_status infer_LOOP(const struct infer *in) {
  const struct ir_attrs *a = in->attrs;
  int64_t carries = a->carries, scanned = a->scanned;
  QUERN_CHECK(a->trip >= 0, INVALID, "%s: trip is %lld", in->name, (long long)a->trip);
  QUERN_CHECK(carries >= 0 && scanned >= 0 && carries <= in->n_src && scanned <= in->n_src - carries, INVALID,
              "%s: %lld carries and %lld scanned of %d sources", in->name, (long long)carries, (long long)scanned,
              in->n_src);
  QUERN_TRY(need_flag(in));
  QUERN_TRY(need_graph(in, a->body, "body", in->n_src + 1));
  const struct ir_graph *body = a->body;
  QUERN_CHECK(body->params[0]->dtype == QUERN_DTYPE_I64 && body->params[0]->rank == 0, SHAPE,
              "%s: the body's operand 0 is %s, must be the i64 scalar index", in->name, TEXT(body->params[0]));
  for (int i = 0; i < in->n_src; i++) {
    const quern_tensor *x = in->src[i];
    if (i < carries || i >= carries + scanned) {
      QUERN_TRY(need_param(in, body, i + 1, x));
      continue;
    }
    QUERN_CHECK(x->rank > 0 && x->dims[0] == a->trip, SHAPE,
                "%s: scanned source %d is %s, its first axis must be trip = %lld", in->name, i, TEXT(x),
                (long long)a->trip);
    quern_tensor row = {.node = x->node, .dtype = x->dtype, .rank = x->rank - 1, .dims = x->dims + 1};
    QUERN_TRY(need_param(in, body, i + 1, &row));
  }
  QUERN_CHECK(body->n_results >= carries, INVALID, "%s: the body gives %d results for %lld carries", in->name,
              body->n_results, (long long)carries);
  QUERN_CHECK(body->n_results > 0, INVALID, "%s: the body has no result", in->name);
  for (int i = 0; i < body->n_results; i++) {
    const quern_tensor *y = body->results[i];
    if (i < carries) {
      QUERN_CHECK(ir_same_type(y, in->src[i]), SHAPE, "%s: carry %d starts as %s, the body gives %s", in->name, i,
                  TEXT(in->src[i]), TEXT(y));
      QUERN_TRY(give_like(in, y, y->dtype));
      continue;
    }
    QUERN_CHECK(y->rank < QUERN_MAX_RANK, SHAPE, "%s: stacked result %d would have rank %d", in->name, i, y->rank + 1);
    struct ir_type type = {.dtype = y->dtype, .rank = y->rank + 1, .dims = {a->trip}};
    if (y->rank > 0) memcpy(type.dims + 1, y->dims, (size_t)y->rank * sizeof *y->dims);
    QUERN_TRY(give(in, &type));
  }
  return QUERN_STATUS_OK;
}

static quern_status infer_WHILE(const struct infer *in) {
  const struct ir_attrs *a = in->attrs;
  QUERN_CHECK(a->carries > 0 && a->carries <= in->n_src, INVALID, "%s: %lld carries of %d sources", in->name,
              (long long)a->carries, in->n_src);
  QUERN_TRY(need_graph(in, a->body, "body", in->n_src));
  QUERN_TRY(need_graph(in, a->other, "condition", in->n_src));
  for (int i = 0; i < in->n_src; i++) {
    QUERN_TRY(need_param(in, a->body, i, in->src[i]));
    QUERN_TRY(need_param(in, a->other, i, in->src[i]));
  }
  QUERN_CHECK(a->other->n_results == 1 && a->other->results[0]->dtype == QUERN_DTYPE_BOOL &&
                  a->other->results[0]->rank == 0,
              SHAPE, "%s: the condition must give one bool scalar", in->name);
  QUERN_CHECK(a->body->n_results == a->carries, INVALID, "%s: the body gives %d results for %lld carries", in->name,
              a->body->n_results, (long long)a->carries);
  for (int i = 0; i < a->body->n_results; i++) {
    const quern_tensor *y = a->body->results[i];
    QUERN_CHECK(ir_same_type(y, in->src[i]), SHAPE, "%s: carry %d starts as %s, the body gives %s", in->name, i,
                TEXT(in->src[i]), TEXT(y));
    QUERN_TRY(give_like(in, y, y->dtype));
  }
  return QUERN_STATUS_OK;
}

static quern_status infer_IF(const struct infer *in) {
  const struct ir_attrs *a = in->attrs;
  QUERN_CHECK(in->n_src > 0 && in->src[0]->rank == 0, SHAPE, "%s: the condition must be a bool scalar", in->name);
  QUERN_TRY(need_graph(in, a->body, "first branch", in->n_src - 1));
  QUERN_TRY(need_graph(in, a->other, "second branch", in->n_src - 1));
  for (int i = 1; i < in->n_src; i++) {
    QUERN_TRY(need_param(in, a->body, i - 1, in->src[i]));
    QUERN_TRY(need_param(in, a->other, i - 1, in->src[i]));
  }
  QUERN_CHECK(a->body->n_results == a->other->n_results && a->body->n_results > 0, INVALID,
              "%s: the branches give %d and %d results", in->name, a->body->n_results, a->other->n_results);
  for (int i = 0; i < a->body->n_results; i++) {
    const quern_tensor *y = a->body->results[i], *z = a->other->results[i];
    QUERN_CHECK(ir_same_type(y, z), SHAPE, "%s: result %d is %s in one branch, %s in the other", in->name, i, TEXT(y),
                TEXT(z));
    QUERN_TRY(give_like(in, y, y->dtype));
  }
  return QUERN_STATUS_OK;
}

static quern_status infer_COMPOSITE(const struct infer *in) {
  const struct ir_attrs *a = in->attrs;
  QUERN_CHECK(a->name[0] != '\0', INVALID, "%s: the name is empty", in->name);
  QUERN_TRY(need_graph(in, a->body, "body", in->n_src));
  for (int i = 0; i < in->n_src; i++) QUERN_TRY(need_param(in, a->body, i, in->src[i]));
  QUERN_CHECK(a->body->n_results > 0, INVALID, "%s %s: the body has no result", in->name, a->name);
  for (int i = 0; i < a->body->n_results; i++) {
    QUERN_TRY(give_like(in, a->body->results[i], a->body->results[i]->dtype));
  }
  return QUERN_STATUS_OK;
}

static infer_rule *const rules[IR_OP_COUNT] = {
#define OP(NAME, text, src, out, INFER, ...) [IR_##NAME] = infer_##INFER,
#include "ir/ops.def"
#undef OP
};

static const char *class_text(enum base_dtype_class class) {
  static const struct {
    enum base_dtype_class class;
    const char *text;
  } table[] = {{BASE_FLOAT, "floats"},
               {BASE_INT, "integers"},
               {BASE_NUM, "numbers"},
               {BASE_BOOL, "bool"},
               {BASE_BITS, "integers and bool"}};
  for (size_t i = 0; i < BASE_COUNT(table); i++) {
    if (table[i].class == class) return table[i].text;
  }
  return "all dtypes";
}

quern_status ir_infer(quern_context *ctx, enum ir_op op, int n_src, quern_tensor *const *src,
                      const struct ir_attrs *attrs, int *n_out, struct ir_type **types) {
  const struct ir_op_info *info = &ir_ops[op];
  struct infer in = {ctx, info->name, n_src, src, attrs};
  bool has_dtype = (info->attrs >> IR_ATTR_dtype & 1) != 0;
  QUERN_CHECK(!has_dtype || attrs->dtype < QUERN_DTYPE_COUNT, DTYPE, "%s: %d is no dtype", info->name,
              (int)attrs->dtype);
  if (n_src > 0 || has_dtype) {
    quern_dtype dtype = n_src > 0 ? src[0]->dtype : attrs->dtype;
    QUERN_CHECK(base_dtype_is(dtype, info->dtypes), DTYPE, "%s: does not admit %s, only %s HINT: quern_cast converts",
                info->name, base_dtypes[dtype].name, class_text(info->dtypes));
  }
  ctx->types.n = 0;
  QUERN_TRY(rules[op](&in));
  *n_out = (int)ctx->types.n;
  *types = ctx->types.at;
  return QUERN_STATUS_OK;
}
