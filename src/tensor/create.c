/* tensor/create.c -- leaves: inputs, states, memory, constants; and tensors filled by a rule
** keeps: equal constants are the same tensor; each element of a range of floats is rounded once from a
**        double, the same in the constant (small n) and in the expression (large n)
** tests: tests/tensor/test_create.c
*/
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

enum { SMALL = 1024 }; /* ranges of up to so many elements are constants */

#define CREATE_CHECK(what, ctx, dtype, rank, dims)                                                                     \
  if (!tensor_type_ok((what), (ctx), (dtype), (rank), (dims))) return &ir_poison

static quern_tensor *named_leaf(const char *what, enum ir_op op, quern_context *ctx, const char *name,
                                quern_dtype dtype, int rank, const int64_t *dims) {
  CREATE_CHECK(what, ctx, dtype, rank, dims);
  TENSOR_CHECK(ctx, name != NULL && name[0] != '\0', INVALID, "%s: the name is %s", what,
               name == NULL ? "null" : "empty");
  return ir_make(ctx, op, 0, NULL, TENSOR_ATTRS(.name = name, .dtype = dtype, .shape = {rank, dims}));
}

quern_tensor *quern_input(quern_context *ctx, const char *name, quern_dtype dtype, int rank, const int64_t *dims) {
  return named_leaf("input", IR_INPUT, ctx, name, dtype, rank, dims);
}

quern_tensor *quern_state(quern_context *ctx, const char *name, quern_dtype dtype, int rank, const int64_t *dims) {
  return named_leaf("state", IR_STATE, ctx, name, dtype, rank, dims);
}

static size_t bytes_of(quern_dtype dtype, int rank, const int64_t *dims) {
  size_t bytes = base_dtypes[dtype].size;
  for (int k = 0; k < rank; k++) {
    if (dims[k] == 0) return 0;
  }
  for (int k = 0; k < rank; k++) bytes *= (size_t)dims[k];
  return bytes;
}

/* Elements as they are kept: a bool is 0 or 1. */
static void copy_elements(quern_dtype dtype, void *dst, const void *src, size_t bytes) {
  if (bytes == 0) return; /* src may be null */
  if (dtype == QUERN_DTYPE_BOOL) {
    for (size_t i = 0; i < bytes; i++) base_store_int(dtype, dst, i, ((const unsigned char *)src)[i]);
  } else {
    memcpy(dst, src, bytes);
  }
}

static quern_tensor *make_buffer(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims,
                                 struct ir_buffer *buffer) {
  return ir_make(ctx, IR_BUFFER, 0, NULL, TENSOR_ATTRS(.dtype = dtype, .shape = {rank, dims}, .buffer = buffer));
}

quern_tensor *quern_tensor_wrap(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, void *data) {
  static char nothing; /* what a tensor without elements points to */
  CREATE_CHECK("tensor_wrap", ctx, dtype, rank, dims);
  size_t bytes = bytes_of(dtype, rank, dims);
  TENSOR_CHECK(ctx, data != NULL || bytes == 0, INVALID, "tensor_wrap: the data of %s is null",
               TENSOR_DIMS(rank, dims));
  struct ir_buffer *buffer = ir_buffer_wrap(ctx, data != NULL ? data : &nothing, bytes);
  if (buffer == NULL) return ir_fail_last(ctx);
  return make_buffer(ctx, dtype, rank, dims, buffer);
}

quern_tensor *quern_tensor_copy(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims,
                                const void *data) {
  CREATE_CHECK("tensor_copy", ctx, dtype, rank, dims);
  size_t bytes = bytes_of(dtype, rank, dims);
  TENSOR_CHECK(ctx, data != NULL || bytes == 0, INVALID, "tensor_copy: the data of %s is null",
               TENSOR_DIMS(rank, dims));
  struct ir_buffer *buffer = ir_buffer_new(ctx, bytes);
  if (buffer == NULL) return ir_fail_last(ctx);
  copy_elements(dtype, buffer->data, data, bytes);
  return make_buffer(ctx, dtype, rank, dims, buffer);
}

quern_tensor *quern_constant(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, const void *data) {
  CREATE_CHECK("constant", ctx, dtype, rank, dims);
  size_t bytes = bytes_of(dtype, rank, dims);
  TENSOR_CHECK(ctx, bytes <= IR_CONST_BYTES, OVERFLOW,
               "constant: %s of %s has %zu bytes, at most %d HINT: quern_tensor_copy holds any size",
               TENSOR_DIMS(rank, dims), base_dtypes[dtype].name, bytes, (int)IR_CONST_BYTES);
  TENSOR_CHECK(ctx, data != NULL || bytes == 0, INVALID, "constant: the data of %s is null", TENSOR_DIMS(rank, dims));
  void *elements = base_alloc(&ctx->heap, bytes);
  if (elements == NULL) return ir_fail_last(ctx);
  copy_elements(dtype, elements, data, bytes);
  quern_tensor *x = ir_make(ctx, IR_CONST, 0, NULL,
                            TENSOR_ATTRS(.dtype = dtype, .shape = {rank, dims}, .data = {.n = bytes, .at = elements}));
  base_free(&ctx->heap, elements, bytes);
  return x;
}

quern_tensor *quern_scalar(quern_context *ctx, quern_dtype dtype, double value) {
  CREATE_CHECK("scalar", ctx, dtype, 0, NULL);
  return tensor_scalar("scalar", ctx, dtype, value);
}

quern_tensor *quern_scalar_int(quern_context *ctx, quern_dtype dtype, int64_t value) {
  CREATE_CHECK("scalar_int", ctx, dtype, 0, NULL);
  const struct base_dtype_info *info = &base_dtypes[dtype];
  if (info->bits < 64 && info->class != BASE_FLOAT) {
    int64_t lo = info->class == BASE_SIGNED ? -(INT64_C(1) << (info->bits - 1)) : 0;
    int64_t above = INT64_C(1) << (info->class == BASE_SIGNED ? info->bits - 1 : info->bits);
    TENSOR_CHECK(ctx, value >= lo && value < above, INVALID, "scalar_int: %lld does not fit %s", (long long)value,
                 info->name);
  }
  return ir_const_int(ctx, dtype, value);
}

static quern_tensor *filled(const char *what, quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims,
                            double value) {
  CREATE_CHECK(what, ctx, dtype, rank, dims);
  quern_tensor *scalar = tensor_scalar(what, ctx, dtype, value);
  return ir_is_poison(scalar) ? &ir_poison : quern_broadcast_to(scalar, rank, dims);
}

quern_tensor *quern_full(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, double value) {
  return filled("full", ctx, dtype, rank, dims, value);
}

quern_tensor *quern_zeros(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims) {
  return filled("zeros", ctx, dtype, rank, dims, 0);
}

quern_tensor *quern_ones(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims) {
  return filled("ones", ctx, dtype, rank, dims, 1);
}

quern_tensor *quern_full_like(quern_tensor *x, double value) {
  TENSOR_ENTER(ctx, "full_like", x);
  return filled("full_like", ctx, x->dtype, x->rank, x->dims, value);
}

quern_tensor *quern_zeros_like(quern_tensor *x) {
  TENSOR_ENTER(ctx, "zeros_like", x);
  return filled("zeros_like", ctx, x->dtype, x->rank, x->dims, 0);
}

quern_tensor *quern_ones_like(quern_tensor *x) {
  TENSOR_ENTER(ctx, "ones_like", x);
  return filled("ones_like", ctx, x->dtype, x->rank, x->dims, 1);
}

static quern_tensor *make_iota(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, int axis) {
  return ir_make(ctx, IR_IOTA, 0, NULL, TENSOR_ATTRS(.dtype = dtype, .shape = {rank, dims}, .axis = axis));
}

quern_tensor *quern_iota(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, int axis) {
  CREATE_CHECK("iota", ctx, dtype, rank, dims);
  TENSOR_CHECK(ctx, dtype != QUERN_DTYPE_BOOL, DTYPE, "iota: does not admit bool");
  TENSOR_CHECK(ctx, axis >= -rank && axis < rank, SHAPE, "iota: axis %d is out of range for %s of rank %d", axis,
               TENSOR_DIMS(rank, dims), rank);
  return make_iota(ctx, dtype, rank, dims, axis < 0 ? axis + rank : axis);
}

/* ---- ranges -------------------------------------------------------------------------------------------- */

/* first + i step, the last element (when asked) exactly as given. */
struct range {
  int64_t n;
  double first, step, last;
  bool exact_last;
};

static double range_at(const struct range *range, int64_t i) {
  if (range->exact_last && i == range->n - 1) return range->last;
  double offset = (double)i * range->step;
  return range->first + offset;
}

static quern_tensor *small_range(const struct range *range, quern_context *ctx, quern_dtype dtype) {
  double elements[SMALL] = {0};
  for (int64_t i = 0; i < range->n; i++) {
    double x = range_at(range, i);
    base_convert(dtype, elements, (size_t)i, QUERN_DTYPE_F64, &x, 0);
  }
  return quern_constant(ctx, dtype, 1, &range->n, elements);
}

static quern_tensor *float_range(const struct range *range, quern_context *ctx, quern_dtype dtype) {
  if (range->n <= SMALL) return small_range(range, ctx, dtype);
  quern_tensor *i = make_iota(ctx, QUERN_DTYPE_F64, 1, &range->n, 0);
  quern_tensor *x = quern_add_scalar(quern_mul_scalar(i, range->step), range->first);
  if (range->exact_last) {
    quern_tensor *at_last = quern_eq(i, tensor_full_of(i, (double)(range->n - 1)));
    x = quern_where(at_last, tensor_full_of(i, range->last), x);
  }
  return quern_cast(x, dtype);
}

/* The bits of an integral double of a 64-bit dtype. */
static uint64_t integer_bits(double x) { return x < 0 ? (uint64_t)(int64_t)x : (uint64_t)x; }

/* How many steps fit between first and the end of the dtype they lead to. */
static uint64_t steps_that_fit(quern_dtype dtype, double first, double step) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  bool is_signed = info->class == BASE_SIGNED;
  uint64_t largest = UINT64_MAX >> (64 - info->bits + is_signed);
  uint64_t smallest = is_signed ? ~largest : 0;
  uint64_t room = step > 0 ? largest - integer_bits(first) : integer_bits(first) - smallest;
  return room / integer_bits(fabs(step));
}

static quern_tensor *integer_range(const struct range *range, quern_context *ctx, quern_dtype dtype) {
  const char *name = base_dtypes[dtype].name;
  double limit = ldexp(1, 63), first = range->first, step = range->step;
  if (ir_is_poison(tensor_scalar("arange", ctx, dtype, first))) return &ir_poison;
  TENSOR_CHECK(ctx, isfinite(step) && step == trunc(step) && fabs(step) < limit, INVALID,
               "arange: the step %g is no integer, but the dtype is %s", step, name);
  TENSOR_CHECK(ctx, range->n <= 1 || step == 0 || (uint64_t)(range->n - 1) <= steps_that_fit(dtype, first, step),
               OVERFLOW, "arange: element %lld of %g + i %g does not fit %s", (long long)(range->n - 1), first, step,
               name);
  quern_dtype wide = dtype == QUERN_DTYPE_U64 ? dtype : QUERN_DTYPE_I64;
  uint64_t start = integer_bits(first), by = integer_bits(step);
  if (range->n <= SMALL) {
    uint64_t elements[SMALL];
    for (int64_t i = 0; i < range->n; i++) base_store_int(dtype, elements, (size_t)i, start + (uint64_t)i * by);
    return quern_constant(ctx, dtype, 1, &range->n, elements);
  }
  quern_tensor *x = make_iota(ctx, wide, 1, &range->n, 0);
  x = quern_mul(x, ir_const_int(ctx, wide, (int64_t)by));
  x = quern_add(x, ir_const_int(ctx, wide, (int64_t)start));
  return quern_cast(x, dtype);
}

quern_tensor *quern_arange(quern_context *ctx, quern_dtype dtype, int64_t n, double start, double step) {
  CREATE_CHECK("arange", ctx, dtype, 1, &n);
  TENSOR_CHECK(ctx, dtype != QUERN_DTYPE_BOOL, DTYPE, "arange: does not admit bool");
  struct range range = {.n = n, .first = start, .step = step};
  return base_dtype_is(dtype, BASE_FLOAT) ? float_range(&range, ctx, dtype) : integer_range(&range, ctx, dtype);
}

quern_tensor *quern_linspace(quern_context *ctx, quern_dtype dtype, int64_t n, double first, double last) {
  CREATE_CHECK("linspace", ctx, dtype, 1, &n);
  TENSOR_CHECK(ctx, base_dtype_is(dtype, BASE_FLOAT), DTYPE,
               "linspace: does not admit %s HINT: quern_arange makes ranges of integers", base_dtypes[dtype].name);
  struct range range = {
      .n = n, .first = first, .step = n > 1 ? (last - first) / (double)(n - 1) : 0, .last = last, .exact_last = n > 1};
  TENSOR_CHECK(ctx, isfinite(first) && isfinite(last) && isfinite(range.step), INVALID,
               "linspace: %g to %g is no finite range", first, last);
  return float_range(&range, ctx, dtype);
}

quern_tensor *quern_eye(quern_context *ctx, quern_dtype dtype, int64_t rows, int64_t columns) {
  int64_t dims[2] = {rows, columns};
  CREATE_CHECK("eye", ctx, dtype, 2, dims);
  CREATE_CHECK("eye", ctx, QUERN_DTYPE_I64, 2, dims);
  quern_tensor *i = make_iota(ctx, QUERN_DTYPE_I64, 2, dims, 0), *j = make_iota(ctx, QUERN_DTYPE_I64, 2, dims, 1);
  return quern_cast(quern_eq(i, j), dtype);
}
