/* tensor/compound.c -- what the compound operations share: checks, interiors of narrow dtypes, exact scaling
** tests: tests/tensor/test_norm.c (scaling), and the wrong calls in the tests of each operation
*/
#include "tensor/compound.h"

#include <float.h>
#include <math.h>

enum { MAX_OPERANDS = 8 };

quern_context *tensor_enter_some(const char *what, int n_required, int n, quern_tensor *const *xs) {
  QUERN_ASSERT(n <= MAX_OPERANDS);
  quern_tensor *present[MAX_OPERANDS];
  int count = 0;
  for (int i = 0; i < n; i++) {
    if (i < n_required || xs[i] != NULL) present[count++] = xs[i];
  }
  return tensor_enter(what, count, present);
}

bool tensor_need_float(const char *what, const char *name, const quern_tensor *x) {
  if (base_dtype_is(x->dtype, BASE_FLOAT)) return true;
  ir_fail(x->node->ctx, QUERN_STATUS_DTYPE, "%s: %s is %s, must be of a float dtype HINT: quern_cast converts", what,
          name, TENSOR_TYPE(x));
  return false;
}

bool tensor_need_like(const char *what, const char *name, const quern_tensor *operand, const quern_tensor *x, int rank,
                      const int64_t *dims) {
  if (operand == NULL) return true;
  if (operand->dtype != x->dtype) {
    ir_fail(x->node->ctx, QUERN_STATUS_DTYPE, "%s: dtypes differ: x is %s, %s is %s HINT: quern_cast makes them equal",
            what, TENSOR_TYPE(x), name, TENSOR_TYPE(operand));
    return false;
  }
  bool same = operand->rank == rank;
  for (int k = 0; same && k < rank; k++) same = operand->dims[k] == dims[k];
  if (same) return true;
  ir_fail(x->node->ctx, QUERN_STATUS_SHAPE, "%s: %s is %s, must have shape %s for x %s", what, name,
          TENSOR_TYPE(operand), TENSOR_DIMS(rank, dims), TENSOR_TYPE(x));
  return false;
}

bool tensor_need_real(quern_context *ctx, const char *what, const char *name, double value, double lo) {
  if (isfinite(value) && value >= lo) return true;
  if (lo == -DBL_MAX) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: %s is %g, must be finite", what, name, value);
  } else {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: %s is %g, must be finite and at least %g", what, name, value, lo);
  }
  return false;
}

quern_tensor *tensor_widen(quern_tensor *x) { return tensor_to(x, tensor_wide(x->dtype)); }

quern_tensor *tensor_to(quern_tensor *x, quern_dtype dtype) { return x->dtype == dtype ? x : quern_cast(x, dtype); }

quern_tensor *tensor_row_scale(quern_tensor *x, int n_axes, const int64_t *axes, double floor) {
  if (ir_is_poison(x)) return &ir_poison;
  quern_context *ctx = x->node->ctx;
  bool narrow = x->dtype == QUERN_DTYPE_F32;
  QUERN_ASSERT(narrow || x->dtype == QUERN_DTYPE_F64);
  quern_dtype bits = narrow ? QUERN_DTYPE_U32 : QUERN_DTYPE_U64;
  double least = narrow ? FLT_MIN : DBL_MIN, most = 1 / least; /* so that 1 / s is a normal number, too */
  quern_tensor *exponent = ir_const_int(ctx, bits, narrow ? INT64_C(0x7f800000) : INT64_C(0x7ff0000000000000));
  quern_tensor *size = quern_max(quern_abs(x), n_axes, axes, true);
  size = quern_maximum(size, ir_const(ctx, x->dtype, fmax(floor, least)));
  size = quern_minimum(size, ir_const(ctx, x->dtype, most));
  return quern_bitcast(quern_and(quern_bitcast(size, bits), exponent), x->dtype);
}
