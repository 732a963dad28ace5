/* tensor/compound.h -- what the compound operations share: checks, interiors of narrow dtypes, exact scaling
** The 16- and 8-bit floats are storage formats here: a compound operation casts its operands to f32
** inside, and its result back with one rounding.
*/
#ifndef TENSOR_COMPOUND_H
#define TENSOR_COMPOUND_H
#include "tensor/tensor.h"

/* tensor_enter where the operands from n_required on may be NULL. */
quern_context *tensor_enter_some(const char *what, int n_required, int n, quern_tensor *const *xs);

/* False with the error recorded unless x is of a float dtype; name is the operand's. */
bool tensor_need_float(const char *what, const char *name, const quern_tensor *x);

/* False with the error recorded unless an operand that goes with x (NULL is fine) has x's dtype and that
** shape. */
bool tensor_need_like(const char *what, const char *name, const quern_tensor *operand, const quern_tensor *x, int rank,
                      const int64_t *dims);

/* False with the error recorded unless value is finite and at least lo; name is the argument's. */
bool tensor_need_real(quern_context *ctx, const char *what, const char *name, double value, double lo);

/* A float x cast to tensor_wide(its dtype). */
quern_tensor *tensor_widen(quern_tensor *x);
/* x cast to dtype, or x itself when it has it already. */
quern_tensor *tensor_to(quern_tensor *x, quern_dtype dtype);

/* A power of two s for each row of x (f32 or f64) over axes, which stay with size 1: |x| / s < 4, and s is at
** least the power of two below floor. Scaling by it is exact, so squares neither overflow nor vanish. No
** gradient flows through s. */
quern_tensor *tensor_row_scale(quern_tensor *x, int n_axes, const int64_t *axes, double floor);

#endif
