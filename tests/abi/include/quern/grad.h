/* quern/grad.h -- derivatives as expressions, of any order
** At ties of max, min and reductions by them the gradient is shared equally; sort follows its permutation (stable); running
** max and min give it to the first of equals; abs has 0 at 0, std of equal elements 0. Integer and bool results
** carry no gradient.
*/
#ifndef QUERN_GRAD_H
#define QUERN_GRAD_H
#include "quern/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* dx[i] = d loss / d x[i]; loss has one element. Zeros where loss does not depend on x[i]. */
QUERN_API quern_status quern_grad(quern_tensor *loss, size_t n, quern_tensor *const *x,
                                  quern_tensor **dx) QUERN_NODISCARD;
/* dx[i] = sum over j of dy[j] times d y[j] / d x[i]; dy[j] has y[j]'s type. */
QUERN_API quern_status quern_vjp(size_t n_y, quern_tensor *const *y, quern_tensor *const *dy, size_t n_x,
                                 quern_tensor *const *x, quern_tensor **dx) QUERN_NODISCARD;
/* ty[j] = sum over i of d y[j] / d x[i] times tx[i]; tx[i] has x[i]'s type. */
QUERN_API quern_status quern_jvp(size_t n_x, quern_tensor *const *x, quern_tensor *const *tx, size_t n_y,
                                 quern_tensor *const *y, quern_tensor **ty) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
