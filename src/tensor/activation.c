/* tensor/activation.c -- relu to softmax
** The smooth ones are composites with own gradients, written with functions that differentiate again.
** They stay accurate over the whole range: where a formula would take e^x of a large x, it branches on
** the sign. Branches are SELECTs, never max, min or abs, so that every derivative at 0 is the one of the
** function (relu and leaky_relu: the left one). x Phi(x) and the like are products: at -inf they give
** NaN.
** tests: tests/tensor/test_activation.c
*/
#include "tensor/compound.h"
#include "tensor/kinds.h"

#include <float.h>

static const double sqrt_half = 0.70710678118654752440;      /* 1 / sqrt(2) */
static const double normal_peak = 0.39894228040143267794;    /* 1 / sqrt(2 pi) */
static const double sqrt_8_over_pi = 1.59576912160573071176; /* 2 sqrt(2 / pi) */
static const double quick_slope = 1.702;

/* ---- piecewise: plain expressions ------------------------------------------------------------ */

quern_tensor *quern_relu(quern_tensor *x) {
  TENSOR_ENTER(ctx, "relu", x);
  if (!tensor_admits("relu", x, BASE_NUM)) return &ir_poison;
  quern_tensor *zero = tensor_scalar_of(x, 0);
  return quern_where(quern_le(x, zero), zero, x); /* NaN stays NaN */
}

quern_tensor *quern_leaky_relu(quern_tensor *x, double slope) {
  TENSOR_ENTER(ctx, "leaky_relu", x);
  if (!tensor_need_float("leaky_relu", "x", x)) return &ir_poison;
  if (!tensor_need_real(ctx, "leaky_relu", "slope", slope, -DBL_MAX)) return &ir_poison;
  quern_tensor *w = tensor_widen(x), *below = quern_mul_scalar(w, slope);
  return tensor_to(quern_where(quern_gt(w, tensor_scalar_of(w, 0)), w, below), x->dtype);
}

quern_tensor *quern_elu(quern_tensor *x, double alpha) {
  TENSOR_ENTER(ctx, "elu", x);
  if (!tensor_need_float("elu", "x", x)) return &ir_poison;
  if (!tensor_need_real(ctx, "elu", "alpha", alpha, -DBL_MAX)) return &ir_poison;
  quern_tensor *w = tensor_widen(x), *zero = tensor_scalar_of(w, 0);
  quern_tensor *positive = quern_gt(w, zero);
  quern_tensor *left = quern_where(positive, zero, w); /* never large, so that e^x of the branch not taken is finite */
  return tensor_to(quern_where(positive, w, quern_mul_scalar(quern_expm1(left), alpha)), x->dtype);
}

/* ---- smooth: composites of one operand ------------------------------------------------------- */

static quern_tensor *negative(quern_tensor *x) { return quern_lt(x, tensor_scalar_of(x, 0)); }

/* e^-|x| */
static quern_tensor *decay(quern_tensor *x) {
  quern_tensor *below = negative(x);
  return quern_exp(quern_where(below, x, quern_neg(x)));
}

static quern_tensor *sigmoid(quern_tensor *x) {
  quern_tensor *t = decay(x), *one = tensor_scalar_of(x, 1), *share = quern_where(negative(x), t, one);
  return quern_div(share, quern_add(t, one));
}
/* sigmoid(x) sigmoid(-x), from one exponential. */
static quern_tensor *sigmoid_slope(quern_tensor *x) {
  quern_tensor *t = decay(x), *one = tensor_scalar_of(x, 1), *rest = quern_where(negative(x), one, t);
  quern_tensor *other = quern_div(rest, quern_add(t, one));
  return quern_mul(quern_sigmoid(x), other);
}

static quern_tensor *softplus(quern_tensor *x) {
  quern_tensor *zero = tensor_scalar_of(x, 0), *line = quern_where(quern_lt(x, zero), zero, x);
  return quern_add(line, quern_log1p(decay(x)));
}
static quern_tensor *softplus_slope(quern_tensor *x) { return quern_sigmoid(x); }

/* x sigmoid(v) and its derivative, with dv = dv/dx or NULL for 1 */
static quern_tensor *gate(quern_tensor *x, quern_tensor *v) { return quern_mul(x, quern_sigmoid(v)); }
static quern_tensor *gate_slope(quern_tensor *x, quern_tensor *v, quern_tensor *dv) {
  quern_tensor *bend = quern_mul(x, sigmoid_slope(v));
  if (dv != NULL) bend = quern_mul(bend, dv);
  return quern_add(quern_sigmoid(v), bend);
}

static quern_tensor *silu(quern_tensor *x) { return gate(x, x); }
static quern_tensor *silu_slope(quern_tensor *x) { return gate_slope(x, x, NULL); }

static quern_tensor *gelu_quick(quern_tensor *x) { return gate(x, quern_mul_scalar(x, quick_slope)); }
static quern_tensor *gelu_quick_slope(quern_tensor *x) {
  quern_tensor *v = quern_mul_scalar(x, quick_slope);
  return gate_slope(x, v, tensor_scalar_of(x, quick_slope));
}

/* 0.5 (1 + tanh u) = sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3): Hendrycks and Gimpel, "Gaussian
** error linear units". Beyond 30 the sigmoid is 0 or 1 in any dtype, so x is clipped there and x^3 stays
** finite. */
static const double cubic = 0.044715, flat = 30;
static quern_tensor *tanh_argument(quern_tensor *x) {
  quern_tensor *z = quern_clip(x, -flat, flat);
  return quern_mul_scalar(quern_add(z, quern_mul_scalar(quern_mul(quern_square(z), z), cubic)), sqrt_8_over_pi);
}
static quern_tensor *gelu_tanh(quern_tensor *x) { return gate(x, tanh_argument(x)); }
static quern_tensor *gelu_tanh_slope(quern_tensor *x) {
  quern_tensor *v = tanh_argument(x), *z = quern_clip(x, -flat, flat);
  quern_tensor *dv = quern_add_scalar(quern_mul_scalar(quern_square(z), 3 * cubic), 1);
  return gate_slope(x, v, quern_mul_scalar(dv, sqrt_8_over_pi));
}

/* Phi(x), the normal distribution: its error is a few units of the last place of 1, so x Phi(x) has that
** error times |x|. By erfc the tail would be accurate relative to itself, at 1.7 times the time. */
static quern_tensor *normal(quern_tensor *x) {
  return quern_mul_scalar(quern_add_scalar(quern_erf(quern_mul_scalar(x, sqrt_half)), 1), 0.5);
}
static quern_tensor *gelu(quern_tensor *x) { return quern_mul(x, normal(x)); }
static quern_tensor *gelu_slope(quern_tensor *x) {
  quern_tensor *share = normal(x);
  quern_tensor *density = quern_mul_scalar(quern_exp(quern_mul_scalar(quern_square(x), -0.5)), normal_peak);
  return quern_add(share, quern_mul(x, density));
}

static quern_tensor *mish(quern_tensor *x) { return quern_mul(x, quern_tanh(quern_softplus(x))); }
static quern_tensor *mish_slope(quern_tensor *x) {
  quern_tensor *t = quern_tanh(quern_softplus(x)), *one = tensor_scalar_of(x, 1);
  quern_tensor *dt = quern_sub(one, quern_square(t));
  dt = quern_mul(dt, quern_sigmoid(x));
  return quern_add(t, quern_mul(x, dt));
}

typedef quern_tensor *function(quern_tensor *x);

static void apply(function *f, quern_tensor *const *args, quern_tensor **results) {
  results[0] = tensor_to(f(tensor_widen(args[0])), args[0]->dtype);
}

#define BODY(f)                                                                                                        \
  static void f##_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,                    \
                       quern_tensor **results) {                                                                       \
    (void)ctx, (void)attrs;                                                                                            \
    apply(f, args, results);                                                                                           \
  }
BODY(sigmoid)
BODY(softplus)
BODY(silu)
BODY(gelu_quick)
BODY(gelu_tanh)
BODY(gelu)
BODY(mish)

static void smooth_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                       quern_tensor **dx) {
  static const struct {
    const struct ir_composite *kind;
    function *slope;
  } table[] = {
      {&tensor_kind_sigmoid, sigmoid_slope},     {&tensor_kind_softplus, softplus_slope},
      {&tensor_kind_silu, silu_slope},           {&tensor_kind_gelu, gelu_slope},
      {&tensor_kind_gelu_tanh, gelu_tanh_slope}, {&tensor_kind_gelu_quick, gelu_quick_slope},
      {&tensor_kind_mish, mish_slope},
  };
  quern_tensor *x = node->src[0], *d = tensor_widen(dy[0]);
  for (size_t i = 0; i < BASE_COUNT(table); i++) {
    if (table[i].kind == self) dx[0] = tensor_to(quern_mul(d, table[i].slope(tensor_widen(x))), x->dtype);
  }
}

const struct ir_composite tensor_kind_sigmoid = {
    .name = "sigmoid", .n_results = 1, .body = sigmoid_body, .vjp = smooth_vjp, .admits = tensor_admits_smooth};
const struct ir_composite tensor_kind_softplus = {
    .name = "softplus", .n_results = 1, .body = softplus_body, .vjp = smooth_vjp, .admits = tensor_admits_smooth};
const struct ir_composite tensor_kind_silu = {
    .name = "silu", .n_results = 1, .body = silu_body, .vjp = smooth_vjp, .admits = tensor_admits_smooth};
const struct ir_composite tensor_kind_gelu = {
    .name = "gelu", .n_results = 1, .body = gelu_body, .vjp = smooth_vjp, .admits = tensor_admits_smooth};
const struct ir_composite tensor_kind_gelu_tanh = {
    .name = "gelu_tanh", .n_results = 1, .body = gelu_tanh_body, .vjp = smooth_vjp, .admits = tensor_admits_smooth};
const struct ir_composite tensor_kind_gelu_quick = {
    .name = "gelu_quick", .n_results = 1, .body = gelu_quick_body, .vjp = smooth_vjp, .admits = tensor_admits_smooth};
const struct ir_composite tensor_kind_mish = {
    .name = "mish", .n_results = 1, .body = mish_body, .vjp = smooth_vjp, .admits = tensor_admits_smooth};

static quern_tensor *smooth(const struct ir_composite *kind, quern_tensor *x) {
  TENSOR_ENTER(ctx, kind->name, x);
  if (!tensor_need_float(kind->name, "x", x)) return &ir_poison;
  return ir_composite_make(ctx, kind, (struct ir_ints){0}, (struct ir_reals){0}, 1, &x);
}

quern_tensor *quern_sigmoid(quern_tensor *x) { return smooth(&tensor_kind_sigmoid, x); }
quern_tensor *quern_softplus(quern_tensor *x) { return smooth(&tensor_kind_softplus, x); }
quern_tensor *quern_silu(quern_tensor *x) { return smooth(&tensor_kind_silu, x); }
quern_tensor *quern_gelu(quern_tensor *x) { return smooth(&tensor_kind_gelu, x); }
quern_tensor *quern_gelu_tanh(quern_tensor *x) { return smooth(&tensor_kind_gelu_tanh, x); }
quern_tensor *quern_gelu_quick(quern_tensor *x) { return smooth(&tensor_kind_gelu_quick, x); }
quern_tensor *quern_mish(quern_tensor *x) { return smooth(&tensor_kind_mish, x); }

/* ---- gated: two halves of an axis ------------------------------------------------------------ */

/* f of the half that gates, times the other half; gate_last: the gate is the second half. */
static quern_tensor *gated(const char *what, function *f, bool gate_last, quern_tensor *x, int axis) {
  TENSOR_ENTER(ctx, what, x);
  if (!tensor_need_float(what, "x", x)) return &ir_poison;
  int at = tensor_axis(what, x, axis);
  if (at < 0) return &ir_poison;
  TENSOR_CHECK(ctx, x->dims[at] % 2 == 0, SHAPE, "%s: axis %d of %s has odd size %lld, must split into two halves",
               what, at, TENSOR_TYPE(x), (long long)x->dims[at]);
  int64_t half = x->dims[at] / 2;
  quern_tensor *a = quern_slice(x, at, 0, half, 1), *b = quern_slice(x, at, half, QUERN_END, 1);
  return gate_last ? quern_mul(a, f(b)) : quern_mul(f(a), b);
}

quern_tensor *quern_glu(quern_tensor *x, int axis) { return gated("glu", quern_sigmoid, true, x, axis); }
quern_tensor *quern_swiglu(quern_tensor *x, int axis) { return gated("swiglu", quern_silu, false, x, axis); }
quern_tensor *quern_geglu(quern_tensor *x, int axis) { return gated("geglu", quern_gelu, false, x, axis); }
quern_tensor *quern_reglu(quern_tensor *x, int axis) { return gated("reglu", quern_relu, false, x, axis); }

/* ---- along an axis --------------------------------------------------------------------------- */

/* x less the maximum of its row. A row of -inf only has no distribution: its softmax is NaN. */
static quern_tensor *shifted(quern_tensor *x, int64_t axis) {
  return quern_sub(x, quern_stop_gradient(quern_max(x, 1, &axis, true)));
}

static void softmax_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                         quern_tensor **results) {
  (void)ctx;
  int64_t axis = attrs->ints.at[0];
  quern_tensor *e = quern_exp(shifted(tensor_widen(args[0]), axis));
  quern_tensor *inverse = quern_reciprocal(quern_sum(e, 1, &axis, true)); /* one division a row, not one an element */
  results[0] = tensor_to(quern_mul(e, inverse), args[0]->dtype);
}

static void softmax_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                        quern_tensor **dx) {
  (void)self;
  int64_t axis = node->attrs->ints.at[0];
  quern_tensor *x = node->src[0], *g = tensor_widen(dy[0]), *y = quern_softmax(tensor_widen(x), (int)axis);
  quern_tensor *mean = quern_sum(quern_mul(g, y), 1, &axis, true);
  dx[0] = tensor_to(quern_mul(y, quern_sub(g, mean)), x->dtype);
}

static void log_softmax_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                             quern_tensor **results) {
  (void)ctx;
  int64_t axis = attrs->ints.at[0];
  quern_tensor *z = shifted(tensor_widen(args[0]), axis);
  quern_tensor *log_sum = quern_log(quern_sum(quern_exp(z), 1, &axis, true));
  results[0] = tensor_to(quern_sub(z, log_sum), args[0]->dtype);
}

static void log_softmax_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                            quern_tensor **dx) {
  (void)self;
  int64_t axis = node->attrs->ints.at[0];
  quern_tensor *x = node->src[0], *g = tensor_widen(dy[0]), *p = quern_softmax(tensor_widen(x), (int)axis);
  dx[0] = tensor_to(quern_sub(g, quern_mul(p, quern_sum(g, 1, &axis, true))), x->dtype);
}

const struct ir_composite tensor_kind_softmax = {
    .name = "softmax", .n_results = 1, .body = softmax_body, .vjp = softmax_vjp, .admits = tensor_admits_softmax};
const struct ir_composite tensor_kind_log_softmax = {.name = "log_softmax",
                                                     .n_results = 1,
                                                     .body = log_softmax_body,
                                                     .vjp = log_softmax_vjp,
                                                     .admits = tensor_admits_softmax};

static quern_tensor *along(const struct ir_composite *kind, quern_tensor *x, int axis) {
  TENSOR_ENTER(ctx, kind->name, x);
  if (!tensor_need_float(kind->name, "x", x)) return &ir_poison;
  int at = tensor_axis(kind->name, x, axis);
  if (at < 0) return &ir_poison;
  return ir_composite_make(ctx, kind, IR_INTS(at), (struct ir_reals){0}, 1, &x);
}

quern_tensor *quern_softmax(quern_tensor *x, int axis) { return along(&tensor_kind_softmax, x, axis); }
quern_tensor *quern_log_softmax(quern_tensor *x, int axis) { return along(&tensor_kind_log_softmax, x, axis); }
