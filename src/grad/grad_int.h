/* grad/grad_int.h -- what quern_vjp and quern_jvp share: checks of arguments, and what they report
*/
#ifndef GRAD_GRAD_INT_H
#define GRAD_GRAD_INT_H
#include "grad/grad.h"

/* A list of operands, for messages. */
struct grad_list {
  const char *name;
  size_t n;
  quern_tensor *const *at;
};

/* Every operand of the lists is a float tensor of one context, which has no error to report; *ctx is that context, or NULL
** when there are no operands. what: the function the caller used. */
quern_status grad_check_lists(const char *what, size_t n, const struct grad_list *lists,
                              quern_context **ctx) QUERN_NODISCARD;

/* a[i] and b[i] have one type. */
quern_status grad_check_types(const char *what, const char *list, const char *like, size_t n, quern_tensor *const *a,
                              quern_tensor *const *b) QUERN_NODISCARD;

/* The status of a call that built expressions: the first error that a builder recorded in the context, else status. */
quern_status grad_status(quern_context *ctx, quern_status status) QUERN_NODISCARD;

/* sum + d, contributions to the gradient of one tensor: neighboring slices side by side, rows added where they belong. */
quern_tensor *grad_add_contributions(quern_tensor *sum, quern_tensor *d);

#endif
