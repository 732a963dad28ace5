/* tensor/position.c -- positions as angles: rotary and sinusoidal
** Pair i of a width D turns by base^(-2i/D) a position: Vaswani et al., "Attention is all you need"; Su
** et al., "RoFormer". The frequencies are constants computed in double and rounded once; angles are f32
** for f32 and narrower, f64 for f64.
** tests: tests/tensor/test_position.c
*/
#include "tensor/compound.h"

#include <math.h>

enum { CONSTANT_BYTES = 65536 }; /* of quern_constant */

/* base^(-2 i / width) for i in 0..n-1, as a constant where it fits one. */
static quern_tensor *frequencies(quern_context *ctx, quern_dtype dtype, int64_t n, int64_t width, double base) {
  size_t size = base_dtypes[dtype].size;
  if (n > CONSTANT_BYTES / (int64_t)size) {
    quern_tensor *i = quern_cast(quern_iota(ctx, QUERN_DTYPE_I64, 1, &n, 0), QUERN_DTYPE_F64);
    quern_tensor *exponent = quern_div_scalar(quern_mul_scalar(i, -2), (double)width);
    return tensor_to(quern_pow(quern_scalar(ctx, QUERN_DTYPE_F64, base), exponent), dtype);
  }
  size_t bytes = (size_t)n * size;
  void *data = base_alloc(&ctx->heap, bytes);
  if (data == NULL) return ir_fail_last(ctx);
  for (int64_t i = 0; i < n; i++) base_store_float(dtype, data, (size_t)i, pow(base, -2 * (double)i / (double)width));
  quern_tensor *y = quern_constant(ctx, dtype, 1, &n, data);
  base_free(&ctx->heap, data, bytes);
  return y;
}

/* False with the error recorded unless base is a finite number above 0. */
static bool base_ok(quern_context *ctx, const char *what, double base) {
  if (isfinite(base) && base > 0) return true;
  ir_fail(ctx, QUERN_STATUS_INVALID, "%s: base is %g, must be finite and above 0 HINT: 10000 is usual", what, base);
  return false;
}

quern_tensor *quern_rope(quern_tensor *x, quern_tensor *start, double base, bool interleaved) {
  quern_context *ctx = tensor_enter_some("rope", 1, 2, (quern_tensor *[]){x, start});
  if (ctx == NULL || !tensor_need_float("rope", "x", x) || !base_ok(ctx, "rope", base)) return &ir_poison;
  TENSOR_CHECK(ctx, x->rank >= 2 && x->rank < QUERN_MAX_RANK, SHAPE, "rope: x is %s, must be (.., S, D) of rank 2..%d",
               TENSOR_TYPE(x), QUERN_MAX_RANK - 1);
  int64_t places = x->dims[x->rank - 2], width = x->dims[x->rank - 1], half = width / 2;
  TENSOR_CHECK(ctx, width % 2 == 0, SHAPE, "rope: the last axis of x %s has odd size %lld, must split into pairs",
               TENSOR_TYPE(x), (long long)width);
  TENSOR_CHECK(ctx, start == NULL || (start->rank == 0 && base_dtype_is(start->dtype, BASE_INT)), DTYPE,
               "rope: start is %s, must be an integer scalar", TENSOR_TYPE(start));

  quern_tensor *w = tensor_widen(x), *position = quern_iota(ctx, QUERN_DTYPE_I64, 2, (int64_t[]){places, 1}, 0);
  if (start != NULL) position = quern_add(position, quern_cast(start, QUERN_DTYPE_I64));
  quern_tensor *angle = quern_cast(position, tensor_wide(x->dtype));
  angle = quern_mul(angle, frequencies(ctx, tensor_wide(x->dtype), half, width, base));
  quern_tensor *c = quern_cos(angle), *s = quern_sin(angle);

  /* The pairs as two tensors (.., S, D / 2): axis of two in the middle of the last axis, or at its end. */
  int64_t dims[QUERN_MAX_RANK];
  int axis = interleaved ? x->rank : x->rank - 1;
  for (int k = 0; k < x->rank - 1; k++) dims[k] = x->dims[k];
  dims[x->rank - 1] = interleaved ? half : 2;
  dims[x->rank] = interleaved ? 2 : half;
  quern_tensor *pairs = tensor_reshape(w, x->rank + 1, dims);
  quern_tensor *a = quern_select(pairs, axis, 0), *b = quern_select(pairs, axis, 1);
  quern_tensor *turned[] = {quern_mul(a, c), NULL};
  turned[0] = quern_sub(turned[0], quern_mul(b, s));
  turned[1] = quern_mul(b, c);
  turned[1] = quern_add(turned[1], quern_mul(a, s));
  return tensor_to(tensor_reshape(quern_stack(2, turned, axis), x->rank, x->dims), x->dtype);
}

quern_tensor *quern_sinusoidal(quern_context *ctx, quern_dtype dtype, int64_t positions, int64_t width, double base) {
  const int64_t dims[] = {positions, width};
  if (!tensor_type_ok("sinusoidal", ctx, dtype, 2, dims)) return &ir_poison;
  TENSOR_CHECK(ctx, base_dtype_is(dtype, BASE_FLOAT), DTYPE, "sinusoidal: dtype is %s, must be a float",
               base_dtypes[dtype].name);
  if (!base_ok(ctx, "sinusoidal", base)) return &ir_poison;
  TENSOR_CHECK(ctx, width < INT64_MAX, OVERFLOW, "sinusoidal: a width of %lld is too large", (long long)width);
  int64_t pairs = width / 2 + width % 2, count;
  if (ir_type_count(dtype, 2, dims, &count) != QUERN_STATUS_OK) return ir_fail_last(ctx);
  if (count <= CONSTANT_BYTES / (int64_t)base_dtypes[dtype].size) {
    size_t bytes = (size_t)count * base_dtypes[dtype].size;
    void *data = base_alloc(&ctx->heap, bytes);
    if (data == NULL) return ir_fail_last(ctx);
    for (int64_t i = 0; i < count; i++) {
      int64_t position = i / width, pair = i % width / 2;
      double angle = (double)position * pow(base, -2 * (double)pair / (double)width);
      base_store_float(dtype, data, (size_t)i, i % width % 2 == 0 ? sin(angle) : cos(angle));
    }
    quern_tensor *y = quern_constant(ctx, dtype, 2, dims, data);
    base_free(&ctx->heap, data, bytes);
    return y;
  }
  quern_tensor *position =
      quern_cast(quern_iota(ctx, QUERN_DTYPE_I64, 2, (int64_t[]){positions, 1}, 0), QUERN_DTYPE_F64);
  quern_tensor *angle = quern_mul(position, frequencies(ctx, QUERN_DTYPE_F64, pairs, width, base));
  quern_tensor *both[] = {quern_sin(angle), NULL};
  both[1] = quern_cos(angle);
  quern_tensor *y = quern_reshape(quern_stack(2, both, -1), 2, (int64_t[]){positions, 2 * pairs});
  return tensor_to(quern_slice(y, 1, 0, width, 1), dtype);
}
