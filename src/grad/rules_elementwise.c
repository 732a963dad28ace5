/* grad/rules_elementwise.c -- derivatives of elementwise ops, one line each
** along_<OP>(n, i, t) = t times the derivative of the result by source i. The Jacobian is diagonal, so the same function
** serves vjp (t is the result's gradient) and jvp (t is the source's tangent).
** tests: querntest --mode grad, jvp, grad2
*/
#include "grad/grad.h"

#define A n->src[0]
#define B n->src[1]
#define Y (&n->out[0])
#define TWO_OVER_ROOT_PI 1.1283791670955126 /* 2 / sqrt(pi) */

typedef quern_tensor *along_rule(struct ir_node *n, int i, quern_tensor *t);

static quern_tensor *zero_of(quern_tensor *t) { return quern_zeros_like(t); }

/* t where cond holds, else 0: a product with a mask would make 0 times inf a NaN */
static quern_tensor *only_where(quern_tensor *cond, quern_tensor *t) { return quern_where(cond, t, zero_of(t)); }

static quern_tensor *along_NEG(struct ir_node *n, int i, quern_tensor *t) {
  (void)n, (void)i;
  return quern_neg(t);
}
static quern_tensor *along_ABS(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  return quern_mul(t, quern_sign(A));
}
static quern_tensor *along_EXP(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  return quern_mul(t, Y);
}
static quern_tensor *along_EXPM1(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  return quern_mul(t, quern_exp(A));
}
static quern_tensor *along_LOG(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  return quern_div(t, A);
}
static quern_tensor *along_LOG1P(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  return quern_div(t, quern_add_scalar(A, 1));
}
static quern_tensor *along_SQRT(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  return quern_div(t, quern_mul_scalar(Y, 2));
}
static quern_tensor *along_SIN(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  return quern_mul(t, quern_cos(A));
}
static quern_tensor *along_COS(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  return quern_neg(quern_mul(t, quern_sin(A)));
}
static quern_tensor *along_TANH(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  quern_tensor *one = quern_ones_like(Y), *slope = quern_sub(one, quern_square(Y));
#ifdef QUERN_PLANT_GRAD /* a wrong rule, built by tests/driver/plant.sh to show that the gradient check sees it */
  slope = quern_add_scalar(slope, 1e-3);
#endif
  return quern_mul(t, slope);
}
static quern_tensor *along_ERF(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  return quern_mul(t, quern_mul_scalar(quern_exp(quern_neg(quern_square(A))), TWO_OVER_ROOT_PI));
}

static quern_tensor *along_ERFC(struct ir_node *n, int i, quern_tensor *t) {
  (void)i;
  return quern_mul(t, quern_mul_scalar(quern_exp(quern_neg(quern_square(A))), -TWO_OVER_ROOT_PI));
}

static quern_tensor *along_CHECKPOINT(struct ir_node *n, int i, quern_tensor *t) {
  (void)n, (void)i;
  return t; /* which need not be kept */
}

static quern_tensor *along_ADD(struct ir_node *n, int i, quern_tensor *t) {
  (void)n, (void)i;
  return t;
}
static quern_tensor *along_SUB(struct ir_node *n, int i, quern_tensor *t) {
  (void)n;
  return i == 0 ? t : quern_neg(t);
}
static quern_tensor *along_MUL(struct ir_node *n, int i, quern_tensor *t) { return quern_mul(t, n->src[1 - i]); }
static quern_tensor *along_DIV(struct ir_node *n, int i, quern_tensor *t) {
  return i == 0 ? quern_div(t, B) : quern_neg(quern_div(quern_mul(t, Y), B));
}
static quern_tensor *along_MOD(struct ir_node *n, int i, quern_tensor *t) {
  return i == 0 ? t : quern_neg(quern_mul(t, quern_floor(quern_div(A, B))));
}
/* a^b: b a^(b-1), which is 0 at a = b = 0; a^b ln a, which is 0 at a = 0 <= b. At these points another exponent or base is
** put in, so that no infinity arises that a derivative of the rule would meet again. */
static quern_tensor *along_POW(struct ir_node *n, int i, quern_tensor *t) {
  quern_tensor *zero = zero_of(A), *one = quern_ones_like(A), *at_zero = quern_eq(A, zero);
  if (i == 0) {
    quern_tensor *less = quern_sub(B, one), *both_zero = quern_and(at_zero, quern_eq(B, zero));
    return quern_mul(t, quern_mul(B, quern_pow(A, quern_where(both_zero, one, less))));
  }
  return quern_mul(t, quern_mul(Y, quern_log(quern_where(at_zero, one, A))));
}
static quern_tensor *along_ATAN2(struct ir_node *n, int i, quern_tensor *t) {
  quern_tensor *width = quern_square(A), *length = quern_add(width, quern_square(B));
  return i == 0 ? quern_div(quern_mul(t, B), length) : quern_neg(quern_div(quern_mul(t, A), length));
}
/* equal operands share the gradient */
static quern_tensor *along_extremum(struct ir_node *n, int i, quern_tensor *t, quern_tensor *wins) {
  quern_tensor *half = quern_mul_scalar(t, 0.5);
  return quern_where(wins, t, only_where(quern_eq(n->src[i], n->src[1 - i]), half));
}
static quern_tensor *along_MAX(struct ir_node *n, int i, quern_tensor *t) {
  return along_extremum(n, i, t, quern_gt(n->src[i], n->src[1 - i]));
}
static quern_tensor *along_MIN(struct ir_node *n, int i, quern_tensor *t) {
  return along_extremum(n, i, t, quern_lt(n->src[i], n->src[1 - i]));
}
static quern_tensor *along_SELECT(struct ir_node *n, int i, quern_tensor *t) {
  return i == 1 ? only_where(A, t) : quern_where(A, zero_of(t), t);
}

static quern_status vjp_along(const struct grad_back *g, along_rule *along) {
  for (int i = 0; i < g->node->n_src; i++) {
    if (g->need[i]) g->dx[i] = along(g->node, i, g->dy[0]);
  }
  return QUERN_STATUS_OK;
}

static quern_status jvp_along(const struct grad_fore *g, along_rule *along) {
  quern_tensor *sum = NULL;
  for (int i = 0; i < g->node->n_src; i++) {
    if (g->tx[i] == NULL) continue;
    quern_tensor *t = along(g->node, i, g->tx[i]);
    sum = sum == NULL ? t : quern_add(sum, t);
  }
  g->ty[0] = sum;
  return QUERN_STATUS_OK;
}

#define ELEMENTWISE(NAME)                                                                                              \
  quern_status grad_vjp_##NAME(const struct grad_back *g) { return vjp_along(g, along_##NAME); }                       \
  quern_status grad_jvp_##NAME(const struct grad_fore *g) { return jvp_along(g, along_##NAME); }
ELEMENTWISE(NEG)
ELEMENTWISE(ABS)
ELEMENTWISE(CHECKPOINT)
ELEMENTWISE(EXP)
ELEMENTWISE(EXPM1)
ELEMENTWISE(LOG)
ELEMENTWISE(LOG1P)
ELEMENTWISE(SQRT)
ELEMENTWISE(SIN)
ELEMENTWISE(COS)
ELEMENTWISE(TANH)
ELEMENTWISE(ERF)
ELEMENTWISE(ERFC)
ELEMENTWISE(ADD)
ELEMENTWISE(SUB)
ELEMENTWISE(MUL)
ELEMENTWISE(DIV)
ELEMENTWISE(MOD)
ELEMENTWISE(POW)
ELEMENTWISE(ATAN2)
ELEMENTWISE(MAX)
ELEMENTWISE(MIN)
ELEMENTWISE(SELECT)

/* Between floats the derivative is 1; from a float to anything else the result is piecewise constant. */
quern_status grad_vjp_CAST(const struct grad_back *g) {
  g->dx[0] = quern_cast(g->dy[0], g->node->src[0]->dtype);
  return QUERN_STATUS_OK;
}
quern_status grad_jvp_CAST(const struct grad_fore *g) {
  if (grad_is_float(&g->node->out[0])) g->ty[0] = quern_cast(g->tx[0], g->node->out[0].dtype);
  return QUERN_STATUS_OK;
}
