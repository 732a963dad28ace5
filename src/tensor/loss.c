/* tensor/loss.c -- losses; all are computed in f32 at least and rounded to the operands' dtype at the end
** Shapes of a prediction and its target must be equal: nothing is broadcast silently. Cross-entropy is a
** composite with the gradient softmax - target, which stays finite where probabilities are 0. A label
** outside 0..C-1 that is not ignored gives NaN and no gradient; the mean over no label that counts is 0 /
** 0, NaN.
** tests: tests/tensor/test_loss.c
*/
#include "tensor/compound.h"
#include "tensor/kinds.h"

#include <float.h>
#include <math.h>

static bool reduction_ok(quern_context *ctx, const char *what, quern_reduction reduction) {
  if (reduction == QUERN_REDUCTION_MEAN || reduction == QUERN_REDUCTION_SUM || reduction == QUERN_REDUCTION_NONE)
    return true;
  ir_fail(ctx, QUERN_STATUS_INVALID, "%s: reduction is %d, must be QUERN_REDUCTION_MEAN, _SUM or _NONE", what,
          (int)reduction);
  return false;
}

static quern_tensor *reduced(quern_tensor *x, quern_reduction reduction) {
  if (reduction == QUERN_REDUCTION_NONE) return x;
  if (!ir_is_poison(x) && x->rank == 0) return x;
  return reduction == QUERN_REDUCTION_MEAN ? quern_mean(x, QUERN_ALL, false) : quern_sum(x, QUERN_ALL, false);
}

/* The context of float operands of one type, which names[i] calls, or NULL with the error recorded. */
static quern_context *enter_equal(const char *what, int n, quern_tensor *const *xs, const char *const *names) {
  quern_context *ctx = tensor_enter(what, n, xs);
  if (ctx == NULL || !tensor_need_float(what, names[0], xs[0])) return NULL;
  for (int i = 1; i < n; i++) {
    if (xs[i]->dtype != xs[0]->dtype) {
      ir_fail(ctx, QUERN_STATUS_DTYPE, "%s: dtypes differ: %s is %s, %s is %s HINT: quern_cast makes them equal", what,
              names[0], TENSOR_TYPE(xs[0]), names[i], TENSOR_TYPE(xs[i]));
      return NULL;
    }
    if (!ir_same_shape(xs[i], xs[0])) {
      ir_fail(ctx, QUERN_STATUS_SHAPE,
              "%s: shapes differ: %s is %s, %s is %s; they must be equal HINT: quern_reshape or "
              "quern_broadcast_to",
              what, names[0], TENSOR_TYPE(xs[0]), names[i], TENSOR_TYPE(xs[i]));
      return NULL;
    }
  }
  return ctx;
}

/* ---- element by element ---------------------------------------------------------------------- */

static const char *const x_target[] = {"x", "target"};
static const char *const logits_target[] = {"logits", "target"};

static quern_context *enter_pair(const char *what, quern_tensor *x, quern_tensor *target, const char *const *names,
                                 quern_reduction reduction) {
  quern_context *ctx = enter_equal(what, 2, (quern_tensor *[]){x, target}, names);
  return ctx != NULL && reduction_ok(ctx, what, reduction) ? ctx : NULL;
}

static quern_tensor *difference(quern_tensor *x, quern_tensor *target) {
  x = tensor_widen(x);
  return quern_sub(x, tensor_widen(target));
}

quern_tensor *quern_mse_loss(quern_tensor *x, quern_tensor *target, quern_reduction reduction) {
  if (enter_pair("mse_loss", x, target, x_target, reduction) == NULL) return &ir_poison;
  return tensor_to(reduced(quern_square(difference(x, target)), reduction), x->dtype);
}

quern_tensor *quern_l1_loss(quern_tensor *x, quern_tensor *target, quern_reduction reduction) {
  if (enter_pair("l1_loss", x, target, x_target, reduction) == NULL) return &ir_poison;
  return tensor_to(reduced(quern_abs(difference(x, target)), reduction), x->dtype);
}

quern_tensor *quern_huber_loss(quern_tensor *x, quern_tensor *target, double delta, quern_reduction reduction) {
  quern_context *ctx = enter_pair("huber_loss", x, target, x_target, reduction);
  if (ctx == NULL) return &ir_poison;
  TENSOR_CHECK(ctx, isfinite(delta) && delta > 0, INVALID, "huber_loss: delta is %g, must be finite and above 0",
               delta);
  quern_tensor *d = difference(x, target), *size = quern_abs(d);
  quern_tensor *inner = quern_mul_scalar(quern_square(d), 0.5);
  quern_tensor *outer = quern_mul_scalar(quern_add_scalar(size, -0.5 * delta), delta);
  quern_tensor *y = quern_where(quern_le(size, tensor_scalar_of(size, delta)), inner, outer);
  return tensor_to(reduced(y, reduction), x->dtype);
}

/* -t ln sigmoid(x) - (1 - t) ln sigmoid(-x) = max(x, 0) - x t + ln(1 + e^-|x|); f32 or f64. The branches are
** SELECTs, so that the derivatives at 0 are right. */
static void bce_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                     quern_tensor **results) {
  (void)ctx, (void)attrs;
  quern_tensor *x = args[0], *t = args[1], *zero = tensor_scalar_of(x, 0), *negative = quern_lt(x, zero);
  quern_tensor *line = quern_where(negative, zero, x);
  line = quern_sub(line, quern_mul(x, t));
  results[0] = quern_add(line, quern_log1p(quern_exp(quern_where(negative, x, quern_neg(x)))));
}

/* dx = sigmoid(x) - t, from the side where the sigmoid is small; dt = -x. */
static void bce_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                    quern_tensor **dx) {
  (void)self;
  quern_tensor *x = node->src[0], *t = node->src[1];
  quern_tensor *left = quern_sub(quern_sigmoid(x), t);
  quern_tensor *right = quern_sub(tensor_scalar_of(t, 1), t);
  right = quern_sub(right, quern_sigmoid(quern_neg(x)));
  dx[0] = quern_mul(dy[0], quern_where(quern_lt(x, tensor_scalar_of(x, 0)), left, right));
  dx[1] = quern_neg(quern_mul(dy[0], x));
}

const struct ir_composite tensor_kind_bce = {
    .name = "bce", .n_results = 1, .body = bce_body, .vjp = bce_vjp, .admits = tensor_admits_bce};

/* Of wide operands, element by element. */
static quern_tensor *bce(quern_tensor *x, quern_tensor *t) {
  if (ir_is_poison(x)) return &ir_poison;
  return ir_composite_make(x->node->ctx, &tensor_kind_bce, (struct ir_ints){0}, (struct ir_reals){0}, 2,
                           (quern_tensor *[]){x, t});
}

quern_tensor *quern_bce_loss(quern_tensor *logits, quern_tensor *target, quern_reduction reduction) {
  if (enter_pair("bce_loss", logits, target, logits_target, reduction) == NULL) return &ir_poison;
  quern_tensor *x = tensor_widen(logits);
  return tensor_to(reduced(bce(x, tensor_widen(target)), reduction), logits->dtype);
}

quern_tensor *quern_kl_loss(quern_tensor *log_p, quern_tensor *target, quern_reduction reduction) {
  static const char *const names[] = {"log_p", "target"};
  if (enter_pair("kl_loss", log_p, target, names, reduction) == NULL) return &ir_poison;
  quern_tensor *t = tensor_widen(target), *none = quern_eq(t, tensor_scalar_of(t, 0));
  quern_tensor *q = quern_where(none, tensor_scalar_of(t, 1), t); /* 1 (ln 1 - 0) = 0 where the target is 0 */
  quern_tensor *p = tensor_widen(log_p);
  p = quern_where(none, tensor_scalar_of(t, 0), p);
  return tensor_to(reduced(quern_mul(q, quern_sub(quern_log(q), p)), reduction), log_p->dtype);
}

/* alpha_t (1 - p_t)^gamma times the binary cross-entropy, p_t the probability of the target: Lin et al.,
** "Focal loss for dense object detection". */
quern_tensor *quern_focal_loss(quern_tensor *logits, quern_tensor *target, double alpha, double gamma,
                               quern_reduction reduction) {
  quern_context *ctx = enter_pair("focal_loss", logits, target, logits_target, reduction);
  if (ctx == NULL) return &ir_poison;
  TENSOR_CHECK(ctx, alpha <= 1, INVALID, "focal_loss: alpha is %g, must be at most 1, or negative for no class weight",
               alpha);
  if (!tensor_need_real(ctx, "focal_loss", "gamma", gamma, 0)) return &ir_poison;
  quern_tensor *x = tensor_widen(logits), *t = tensor_widen(target), *one = tensor_scalar_of(x, 1),
               *rest = quern_sub(one, t);
  quern_tensor *y = bce(x, t);
  if (gamma > 0) {
    quern_tensor *miss = quern_mul(quern_sigmoid(x), rest);
    miss = quern_add(miss, quern_mul(quern_sigmoid(quern_neg(x)), t));
    double least =
        tensor_wide(logits->dtype) == QUERN_DTYPE_F32 ? FLT_MIN : DBL_MIN; /* keeps the slope of the power finite */
    y = quern_mul(y, quern_pow_scalar(quern_maximum(miss, tensor_scalar_of(x, least)), gamma));
  }
  if (alpha >= 0) {
    quern_tensor *share = quern_mul_scalar(t, alpha);
    y = quern_mul(y, quern_add(share, quern_mul_scalar(rest, 1 - alpha)));
  }
  return tensor_to(reduced(y, reduction), logits->dtype);
}

/* ---- labels: cross-entropy and its kin ------------------------------------------------------- */

/* ints {reduction, ignore, ignore_index}, reals {label_smoothing} */
static quern_cross_entropy_options options_of(const struct ir_attrs *attrs) {
  const int64_t *at = attrs->ints.at;
  return (quern_cross_entropy_options){.size = sizeof(quern_cross_entropy_options),
                                       .reduction = (quern_reduction)at[0],
                                       .ignore = at[1] != 0,
                                       .ignore_index = at[2],
                                       .label_smoothing = attrs->reals.at[0]};
}

static quern_tensor *make_labeled(quern_context *ctx, const struct ir_composite *kind,
                                  const quern_cross_entropy_options *o, int n, quern_tensor *const *src) {
  return ir_composite_make(ctx, kind, IR_INTS(o->reduction, o->ignore, o->ignore ? o->ignore_index : 0),
                           (struct ir_reals){1, &o->label_smoothing}, n, src);
}

/* What labels (..) of C classes mean: their i64 values, which count, and which of these are classes. */
struct labels {
  quern_tensor *index, *counted, *valid;
}; /* counted NULL: all */

static struct labels labels_of(quern_tensor *labels, int64_t classes, const quern_cross_entropy_options *o) {
  struct labels l = {.index = quern_cast(labels, QUERN_DTYPE_I64)};
  quern_context *ctx = labels->node->ctx;
  quern_tensor *first = ir_const_int(ctx, QUERN_DTYPE_I64, 0), *end = ir_const_int(ctx, QUERN_DTYPE_I64, classes);
  l.valid = quern_le(first, l.index);
  l.valid = quern_and(l.valid, quern_lt(l.index, end));
  if (o->ignore) {
    l.counted = quern_ne(l.index, ir_const_int(ctx, QUERN_DTYPE_I64, o->ignore_index));
    l.valid = quern_and(l.valid, l.counted);
  }
  return l;
}

/* How many labels count, as a scalar of dtype. */
static quern_tensor *count_of(const struct labels *l, const quern_tensor *labels, quern_dtype dtype) {
  quern_context *ctx = labels->node->ctx;
  if (l->counted == NULL) return ir_const(ctx, dtype, (double)ir_count(labels));
  quern_tensor *ones = quern_cast(l->counted, QUERN_DTYPE_I64);
  return quern_cast(labels->rank == 0 ? ones : quern_sum(ones, QUERN_ALL, false), dtype);
}

/* (1 - eps) -log_p[label] + eps mean(-log_p), reduced; log_p (.., C) is wide. */
static quern_tensor *pick(quern_tensor *log_p, quern_tensor *labels, const quern_cross_entropy_options *o) {
  if (ir_is_poison(log_p)) return &ir_poison;
  const int last = log_p->rank - 1;
  struct labels l = labels_of(labels, log_p->dims[last], o);
  quern_tensor *y = quern_neg(quern_squeeze(quern_take_along(log_p, quern_unsqueeze(l.index, -1), last), last));
  if (o->label_smoothing > 0) {
    quern_tensor *even = quern_neg(quern_mean(log_p, 1, (int64_t[]){last}, false));
    y = quern_mul_scalar(y, 1 - o->label_smoothing);
    y = quern_add(y, quern_mul_scalar(even, o->label_smoothing));
  }
  y = quern_where(l.valid, y, tensor_scalar_of(y, (double)NAN));
  if (l.counted != NULL) y = quern_where(l.counted, y, tensor_scalar_of(y, 0));
  if (o->reduction != QUERN_REDUCTION_MEAN) return reduced(y, o->reduction);
  y = reduced(y, QUERN_REDUCTION_SUM);
  return quern_div(y, count_of(&l, labels, log_p->dtype));
}

static void cross_entropy_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                               quern_tensor **results) {
  (void)ctx;
  quern_cross_entropy_options o = options_of(attrs);
  results[0] = tensor_to(pick(quern_log_softmax(tensor_widen(args[0]), -1), args[1], &o), args[0]->dtype);
}

/* dlogits = dy (softmax - (1 - eps) onehot - eps / C) where a label counts, over their number for the
** mean. */
static void cross_entropy_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                              quern_tensor **dx) {
  (void)self;
  quern_cross_entropy_options o = options_of(node->attrs);
  quern_tensor *logits = node->src[0], *labels = node->src[1], *x = tensor_widen(logits), *g = tensor_widen(dy[0]);
  int64_t classes = logits->dims[logits->rank - 1];
  struct labels l = labels_of(labels, classes, &o);
  if (o.reduction == QUERN_REDUCTION_MEAN) g = quern_div(g, count_of(&l, labels, x->dtype));
  if (o.reduction == QUERN_REDUCTION_NONE) g = quern_unsqueeze(g, -1);
  quern_tensor *target = quern_one_hot(l.index, classes, x->dtype);
  if (o.label_smoothing > 0) {
    target = quern_add_scalar(quern_mul_scalar(target, 1 - o.label_smoothing), o.label_smoothing / (double)classes);
  }
  quern_tensor *d = quern_mul(g, quern_sub(quern_softmax(x, -1), target));
  quern_tensor *valid = quern_unsqueeze(l.valid, -1);
  dx[0] = tensor_to(quern_where(valid, d, tensor_scalar_of(d, 0)), logits->dtype);
}

const struct ir_composite tensor_kind_cross_entropy = {.name = "cross_entropy",
                                                       .n_results = 1,
                                                       .body = cross_entropy_body,
                                                       .vjp = cross_entropy_vjp,
                                                       .admits = tensor_admits_cross_entropy};

/* x, whose gradient is rounded to a narrower dtype: what a backward pass keeps of it has that dtype. */
static const quern_dtype narrow_dtypes[] = {
    [TENSOR_NARROW_BF16] = QUERN_DTYPE_BF16, [TENSOR_NARROW_F16] = QUERN_DTYPE_F16};

static void narrow_gradient_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                                 quern_tensor **results) {
  (void)ctx, (void)attrs;
  results[0] = args[0];
}

static void narrow_gradient_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                                quern_tensor **dx) {
  (void)self;
  dx[0] = quern_cast(quern_cast(dy[0], narrow_dtypes[node->attrs->ints.at[0]]), dy[0]->dtype);
}

static bool narrow_gradient_admits(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  return n == 1 && attrs->reals.n == 0 && attrs->ints.n == 1 && src[0]->dtype == QUERN_DTYPE_F32 &&
         tensor_is_narrow(attrs->ints.at[0]);
}

const struct ir_composite tensor_kind_narrow_gradient = {.name = "narrow_gradient",
                                                         .n_results = 1,
                                                         .body = narrow_gradient_body,
                                                         .vjp = narrow_gradient_vjp,
                                                         .admits = narrow_gradient_admits};

/* x (.., D), weight (C, D): the logits exist in f32 inside only. ints may end with what their gradient is rounded to. */
static void linear_cross_entropy_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                                      quern_tensor **results) {
  quern_cross_entropy_options o = options_of(attrs);
  quern_tensor *x = tensor_widen(args[0]), *logits = quern_linear(x, tensor_widen(args[1]), NULL);
  if (attrs->ints.n == 4)
    logits = ir_composite_make(ctx, &tensor_kind_narrow_gradient, IR_INTS(attrs->ints.at[3]), (struct ir_reals){0}, 1,
                               &logits);
  quern_tensor *y = make_labeled(ctx, &tensor_kind_cross_entropy, &o, 2, (quern_tensor *[]){logits, args[2]});
  results[0] = tensor_to(y, args[0]->dtype);
}

const struct ir_composite tensor_kind_linear_cross_entropy = {.name = "linear_cross_entropy",
                                                              .n_results = 1,
                                                              .body = linear_cross_entropy_body,
                                                              .admits = tensor_admits_cross_entropy};

/* False with the error recorded unless the options make sense and labels are integers of x's leading
** shape. */
static bool labels_ok(quern_context *ctx, const char *what, const char *name, const quern_tensor *x,
                      const quern_tensor *labels, const quern_cross_entropy_options *o) {
  if (!reduction_ok(ctx, what, o->reduction)) return false;
  if (!(o->label_smoothing >= 0 && o->label_smoothing <= 1)) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: label_smoothing is %g, must be in 0..1", what, o->label_smoothing);
    return false;
  }
  if (!o->ignore && o->ignore_index != 0) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: ignore_index is %lld, but ignore is false HINT: .ignore = true", what,
            (long long)o->ignore_index);
    return false;
  }
  if (!tensor_need_float(what, name, x)) return false;
  if (!base_dtype_is(labels->dtype, BASE_INT)) {
    ir_fail(ctx, QUERN_STATUS_DTYPE, "%s: labels are %s, must be of an integer dtype HINT: quern_cast converts", what,
            TENSOR_TYPE(labels));
    return false;
  }
  bool same = x->rank >= 1 && labels->rank == x->rank - 1;
  for (int k = 0; same && k < labels->rank; k++) same = labels->dims[k] == x->dims[k];
  if (!same) {
    ir_fail(ctx, QUERN_STATUS_SHAPE, "%s: labels are %s, %s is %s; labels must have its shape without the last axis",
            what, TENSOR_TYPE(labels), name, TENSOR_TYPE(x));
  }
  return same;
}

quern_tensor *quern_cross_entropy(quern_tensor *logits, quern_tensor *labels,
                                  const quern_cross_entropy_options *options) {
  TENSOR_ENTER(ctx, "cross_entropy", logits, labels);
  TENSOR_OPTIONS(ctx, "cross_entropy", quern_cross_entropy_options, options);
  if (!labels_ok(ctx, "cross_entropy", "logits", logits, labels, options)) return &ir_poison;
  return make_labeled(ctx, &tensor_kind_cross_entropy, options, 2, (quern_tensor *[]){logits, labels});
}

quern_tensor *quern_linear_cross_entropy(quern_tensor *x, quern_tensor *weight, quern_tensor *labels,
                                         const quern_cross_entropy_options *options) {
  const char *what = "linear_cross_entropy";
  TENSOR_ENTER(ctx, what, x, weight, labels);
  TENSOR_OPTIONS(ctx, what, quern_cross_entropy_options, options);
  if (!labels_ok(ctx, what, "x", x, labels, options)) return &ir_poison;
  TENSOR_CHECK(ctx, weight->dtype == x->dtype, DTYPE,
               "%s: dtypes differ: x is %s, weight is %s HINT: quern_cast makes them equal", what, TENSOR_TYPE(x),
               TENSOR_TYPE(weight));
  TENSOR_CHECK(ctx, weight->rank == 2 && weight->dims[1] == x->dims[x->rank - 1], SHAPE,
               "%s: weight is %s, must be (classes, %lld) for x %s", what, TENSOR_TYPE(weight),
               (long long)x->dims[x->rank - 1], TENSOR_TYPE(x));
  return make_labeled(ctx, &tensor_kind_linear_cross_entropy, options, 3, (quern_tensor *[]){x, weight, labels});
}

quern_tensor *quern_nll_loss(quern_tensor *log_p, quern_tensor *labels, const quern_cross_entropy_options *options) {
  TENSOR_ENTER(ctx, "nll_loss", log_p, labels);
  TENSOR_OPTIONS(ctx, "nll_loss", quern_cross_entropy_options, options);
  if (!labels_ok(ctx, "nll_loss", "log_p", log_p, labels, options)) return &ir_poison;
  return tensor_to(pick(tensor_widen(log_p), labels, options), log_p->dtype);
}

/* ---- angles and distances -------------------------------------------------------------------- */

static const double cosine_eps = 1e-8;

/* The cosine of wide a and b along axis, which disappears. Both are scaled by powers of two: no square
** overflows or vanishes. */
static quern_tensor *cosine(quern_tensor *a, quern_tensor *b, int64_t axis, double eps) {
  quern_tensor *xs[] = {a, b}, *norms[2];
  for (int i = 0; i < 2; i++) {
    quern_tensor *inv = quern_reciprocal(tensor_row_scale(xs[i], 1, &axis, eps));
    xs[i] = quern_mul(xs[i], inv);
    quern_tensor *square = quern_sum(quern_square(xs[i]), 1, &axis, true);
    norms[i] = quern_sqrt(quern_maximum(square, quern_square(quern_mul_scalar(inv, eps))));
  }
  quern_tensor *dot = quern_sum(quern_mul(xs[0], xs[1]), 1, &axis, true);
  return quern_squeeze(quern_div(quern_div(dot, norms[0]), norms[1]), (int)axis);
}

quern_tensor *quern_cosine_similarity(quern_tensor *a, quern_tensor *b, int axis, double eps) {
  const char *what = "cosine_similarity";
  TENSOR_ENTER(ctx, what, a, b);
  quern_tensor *xs[] = {a, b};
  if (!tensor_need_float(what, "a", a) || !tensor_same_dtype(what, 2, xs) ||
      !tensor_need_real(ctx, what, "eps", eps, 0) || !tensor_broadcast(what, 2, xs)) {
    return &ir_poison;
  }
  int at = tensor_axis(what, xs[0], axis);
  if (at < 0) return &ir_poison;
  xs[0] = tensor_widen(xs[0]);
  return tensor_to(cosine(xs[0], tensor_widen(xs[1]), at, eps), a->dtype);
}

quern_tensor *quern_cosine_loss(quern_tensor *a, quern_tensor *b, quern_tensor *sign, double margin,
                                quern_reduction reduction) {
  const char *what = "cosine_loss";
  static const char *const names[] = {"a", "b"};
  TENSOR_ENTER(ctx, what, a, b, sign);
  if (enter_pair(what, a, b, names, reduction) == NULL || !tensor_need_real(ctx, what, "margin", margin, -DBL_MAX))
    return &ir_poison;
  TENSOR_CHECK(ctx, a->rank == 2 && sign->rank == 1 && sign->dims[0] == a->dims[0], SHAPE,
               "cosine_loss: a is %s, sign is %s; they must be (N, D) and (N,)", TENSOR_TYPE(a), TENSOR_TYPE(sign));
  TENSOR_CHECK(ctx, base_dtype_is(sign->dtype, BASE_FLOAT | BASE_SIGNED), DTYPE,
               "cosine_loss: sign is %s, must hold 1 and -1", TENSOR_TYPE(sign));
  quern_tensor *wide = tensor_widen(a), *c = cosine(wide, tensor_widen(b), 1, cosine_eps);
  quern_tensor *near = quern_sub(tensor_scalar_of(c, 1), c), *far = quern_relu(quern_add_scalar(c, -margin));
  quern_tensor *y = quern_where(quern_gt(sign, tensor_scalar_of(sign, 0)), near, far);
  return tensor_to(reduced(y, reduction), a->dtype);
}

/* The Euclidean length of wide x along its last axis, which disappears; its gradient at 0 is 0. */
static quern_tensor *length(quern_tensor *x) {
  if (ir_is_poison(x)) return &ir_poison;
  int64_t axis = x->rank - 1;
  quern_tensor *scale = tensor_row_scale(x, 1, &axis, 0);
  quern_tensor *square = quern_sum(quern_square(quern_mul(x, quern_reciprocal(scale))), 1, &axis, true);
  quern_tensor *none = quern_eq(square, tensor_scalar_of(square, 0));
  quern_tensor *root = quern_sqrt(quern_where(none, tensor_scalar_of(square, 1), square));
  return quern_squeeze(quern_mul(quern_where(none, tensor_scalar_of(square, 0), root), scale), (int)axis);
}

quern_tensor *quern_triplet_loss(quern_tensor *anchor, quern_tensor *positive, quern_tensor *negative, double margin,
                                 quern_reduction reduction) {
  const char *what = "triplet_loss";
  static const char *const names[] = {"anchor", "positive", "negative"};
  quern_context *ctx = enter_equal(what, 3, (quern_tensor *[]){anchor, positive, negative}, names);
  if (ctx == NULL || !reduction_ok(ctx, what, reduction) || !tensor_need_real(ctx, what, "margin", margin, 0))
    return &ir_poison;
  TENSOR_CHECK(ctx, anchor->rank >= 1, SHAPE, "triplet_loss: anchor is %s, must have an axis to measure along",
               TENSOR_TYPE(anchor));
  quern_tensor *near = length(difference(anchor, positive)), *far = length(difference(anchor, negative));
  return tensor_to(reduced(quern_relu(quern_add_scalar(quern_sub(near, far), margin)), reduction), anchor->dtype);
}
