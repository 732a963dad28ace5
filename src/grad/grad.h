/* grad/grad.h -- derivative rules; the public side is quern/grad.h
** A rule builds expressions. vjp rules take gradients of results to gradients of sources, jvp rules take tangents of sources
** to tangents of results. Elementwise ops share one function for both, since their Jacobian is diagonal.
*/
#ifndef GRAD_GRAD_H
#define GRAD_GRAD_H
#include "quern/grad.h"
#include "tensor/tensor.h"

/* The call of a vjp rule. */
struct grad_back {
  quern_context *ctx;
  struct ir_node *node;
  quern_tensor *const *dy; /* one per result: NULL when it is no float, else never NULL */
  const bool *need;        /* one per source: whether its gradient is wanted */
  quern_tensor **dx;       /* one per source: comes as NULL, which means zero */
};
typedef quern_status grad_vjp_rule(const struct grad_back *g);

/* The call of a jvp rule. */
struct grad_fore {
  quern_context *ctx;
  struct ir_node *node;
  quern_tensor *const *tx; /* one per source: NULL means zero; never all NULL */
  quern_tensor **ty;       /* one per result: comes as NULL, which means zero */
};
typedef quern_status grad_jvp_rule(const struct grad_fore *g);

#define GRAD_GRAD(NAME)                                                                                                \
  grad_vjp_rule grad_vjp_##NAME;                                                                                       \
  grad_jvp_rule grad_jvp_##NAME;
#define GRAD_NO_GRAD(NAME)
#define OP(NAME, text, src, out, INFER, DTYPES, GRAD, ...) GRAD_##GRAD(NAME)
#include "ir/ops.def"
#undef OP
#undef GRAD_NO_GRAD
#undef GRAD_GRAD

static inline bool grad_is_float(const quern_tensor *t) { return base_dtype_is(t->dtype, BASE_FLOAT); }

/* t, or zeros of like's type when t is NULL. */
static inline quern_tensor *grad_or_zero(quern_tensor *t, quern_tensor *like) {
  return t != NULL ? t : quern_zeros_like(like);
}

/* The node again with source i replaced: the tangent of an op that is linear in that source. */
quern_tensor *grad_again(const struct ir_node *node, int i, quern_tensor *t);

/* dx[k] = the sum over j of dy[j] times d y[j] / d x[k], NULL for zero: quern_vjp without its checks. */
quern_status grad_vjp(quern_context *ctx, size_t n_y, quern_tensor *const *y, quern_tensor *const *dy, size_t n_x,
                      quern_tensor *const *x, quern_tensor **dx) QUERN_NODISCARD;
/* ty[j] = the sum over k of d y[j] / d x[k] times tx[k], NULL for zero: quern_jvp without its checks. */
quern_status grad_jvp(quern_context *ctx, size_t n_x, quern_tensor *const *x, quern_tensor *const *tx, size_t n_y,
                      quern_tensor *const *y, quern_tensor **ty) QUERN_NODISCARD;

/* OK when what the rule of a node gave for its source i (from: "source") or result i ("result") is of that type and context. */
quern_status grad_check_given(const struct ir_node *node, const char *from, int i, const quern_tensor *given,
                              const quern_tensor *like) QUERN_NODISCARD;

/* The tangents of a node from its vjp rule: a vjp is linear in dy, and its transpose is the jvp. */
quern_status grad_jvp_transposed(const struct grad_fore *g, grad_vjp_rule *vjp) QUERN_NODISCARD;

#endif
