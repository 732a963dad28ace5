/* tensor/norm.c -- layer, rms, group, instance and batch norm
** All are y = (x - mean) / sqrt(var + eps) * weight + bias on a view of x that has rows to normalize.
** Rows are scaled by a power of two s first, so that squares of elements of 1e-20 or 1e20 are
** representable in f32: x / s, and eps / s^2 beside the variance. That is exact; ordinary rows have the
** bits of the formula. s is at least sqrt(eps), below which the elements do not matter beside eps.
** The mean is that of x and is scaled afterwards, so that s and the mean come of one look at a row. So where there is a
** mean, the sum of a row must be representable: elements up to 3e38 / n in f32, n of them in a row.
** tests: tests/tensor/test_norm.c
*/
#include "tensor/compound.h"
#include "tensor/kinds.h"

#include <math.h>

/* x seen as dims with statistics over axes; weight and bias seen as param. */
struct view {
  int rank, n_axes;
  int64_t dims[4], axes[2], param[4];
  bool center;
};

/* What a composite's attributes hold: ints {n, has weight, has bias}, reals {eps}; n: axes of layer and rms
** norm, groups. */
struct norm {
  int64_t n;
  bool weight, bias;
  double eps;
};

static struct norm norm_of(const struct ir_attrs *attrs) {
  const int64_t *at = attrs->ints.at;
  return (struct norm){.n = at[0], .weight = at[1] != 0, .bias = at[2] != 0, .eps = attrs->reals.at[0]};
}

/* Of the dims from..to-1; INT64_MAX when it does not fit, which needs another dim to be 0. */
static int64_t product(const quern_tensor *x, int from, int to) {
  int64_t n = 1;
  for (int k = from; k < to; k++) {
    if (__builtin_mul_overflow(n, x->dims[k], &n)) return INT64_MAX;
  }
  return n;
}

static struct view view_rows(const quern_tensor *x, int64_t n_axes, bool center) {
  int split = x->rank - (int)n_axes;
  int64_t n = product(x, split, x->rank);
  return (struct view){
      .rank = 2, .dims = {product(x, 0, split), n}, .n_axes = 1, .axes = {1}, .param = {1, n}, .center = center};
}

static struct view view_groups(const quern_tensor *x, int64_t groups) {
  int64_t each = x->dims[1] / groups;
  return (struct view){.rank = 4,
                       .dims = {x->dims[0], groups, each, product(x, 2, x->rank)},
                       .n_axes = 2,
                       .axes = {2, 3},
                       .param = {1, groups, each, 1},
                       .center = true};
}

static struct view view_channels(const quern_tensor *x) {
  return (struct view){.rank = 3,
                       .dims = {x->dims[0], x->dims[1], product(x, 2, x->rank)},
                       .n_axes = 2,
                       .axes = {0, 2},
                       .param = {1, x->dims[1], 1},
                       .center = true};
}

/* ---- the one normalization ------------------------------------------------------------------- */

struct rows {
  quern_tensor *hat;                      /* (x - mean) / sqrt(var + eps) */
  quern_tensor *inv_std;                  /* 1 / sqrt(var + eps), kept axes */
  quern_tensor *scale, *mean, *deviation; /* s, mean / s, (x - mean) / s */
  quern_tensor *inv_deviation;            /* s / sqrt(var + eps): hat = deviation inv_deviation */
};

/* The mean of x inv, inv a power of two: scaled before the division, as a mean may be too small for the format. */
static quern_tensor *scaled_mean(quern_tensor *x, const struct view *v, quern_tensor *inv) {
  double n = 1;
  for (int k = 0; k < v->n_axes; k++) n *= (double)v->dims[v->axes[k]];
  return quern_div_scalar(quern_mul(quern_sum(x, v->n_axes, v->axes, true), inv), n);
}

static struct rows standardize(quern_tensor *x, const struct view *v, double eps) {
  struct rows r;
  r.scale = tensor_row_scale(x, v->n_axes, v->axes, sqrt(eps));
  quern_tensor *inv = quern_reciprocal(r.scale), *scaled = quern_mul(x, inv);
  r.mean = v->center ? scaled_mean(x, v, inv) : NULL;
  r.deviation = v->center ? quern_sub(scaled, r.mean) : scaled;
  quern_tensor *square = quern_mean(quern_square(r.deviation), v->n_axes, v->axes, true);
  if (eps > 0) square = quern_add(square, quern_mul(quern_mul_scalar(inv, eps), inv));
  r.inv_deviation = quern_reciprocal(quern_sqrt(square)); /* one division a row, not one an element */
  r.hat = quern_mul(r.deviation, r.inv_deviation);
  r.inv_std = quern_mul(inv, r.inv_deviation);
  return r;
}

static quern_tensor *viewed(quern_tensor *x, const struct view *v) {
  return tensor_reshape(tensor_widen(x), v->rank, v->dims);
}
static quern_tensor *as_param(quern_tensor *p, const struct view *v) {
  return tensor_reshape(tensor_widen(p), v->rank, v->param);
}

/* t, seen as v, back in the type of like. */
static quern_tensor *back(quern_tensor *t, const quern_tensor *like) {
  return tensor_to(tensor_reshape(t, like->rank, like->dims), like->dtype);
}

static struct rows build(const struct view *v, const struct norm *norm, quern_tensor *const *args,
                         quern_tensor **results) {
  struct rows r = standardize(viewed(args[0], v), v, norm->eps);
  quern_tensor *y = r.hat;
  if (norm->weight) y = quern_mul(y, as_param(args[1], v));
  if (norm->bias) y = quern_add(y, as_param(args[norm->weight ? 2 : 1], v));
  results[0] = back(y, args[0]);
  return r;
}

/* t summed over the axes along which a parameter is broadcast. */
static quern_tensor *param_grad(quern_tensor *t, const struct view *v, const quern_tensor *p) {
  int64_t axes[4];
  int n = 0;
  for (int k = 0; k < v->rank; k++) {
    if (v->param[k] != v->dims[k]) axes[n++] = k;
  }
  return back(n == 0 ? t : quern_sum(t, n, axes, true), p);
}

/* With g = dy weight: dx = (g - mean(g) - hat mean(g hat)) / std, the means over the normalized axes. */
static void differentiate(const struct view *v, const struct ir_node *node, quern_tensor *dy, quern_tensor **dx) {
  struct norm norm = norm_of(node->attrs);
  quern_tensor *x = node->src[0], *g = viewed(dy, v);
  struct rows r = standardize(viewed(x, v), v, norm.eps);
  int bias = norm.weight ? 2 : 1;
  if (norm.bias) dx[bias] = param_grad(g, v, node->src[bias]);
  if (norm.weight) {
    dx[1] = param_grad(quern_mul(g, r.hat), v, node->src[1]);
    g = quern_mul(g, as_param(node->src[1], v));
  }
  /* mean(g hat), from a mean that needs the rows' means only and can be taken along with their variances */
  quern_tensor *slope = quern_mul(quern_mean(quern_mul(g, r.deviation), v->n_axes, v->axes, true), r.inv_deviation);
  quern_tensor *along = quern_mul(r.hat, slope);
  if (v->center) g = quern_sub(g, quern_mean(g, v->n_axes, v->axes, true));
  dx[0] = back(quern_mul(quern_sub(g, along), r.inv_std), x);
}

/* ---- kinds ----------------------------------------------------------------------------------- */

static void layer_norm_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                            quern_tensor **results) {
  (void)ctx;
  struct norm norm = norm_of(attrs);
  struct view v = view_rows(args[0], norm.n, true);
  build(&v, &norm, args, results);
}
static void layer_norm_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                           quern_tensor **dx) {
  (void)self;
  struct view v = view_rows(node->src[0], norm_of(node->attrs).n, true);
  differentiate(&v, node, dy[0], dx);
}

static void rms_norm_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                          quern_tensor **results) {
  (void)ctx;
  struct norm norm = norm_of(attrs);
  struct view v = view_rows(args[0], norm.n, false);
  build(&v, &norm, args, results);
}
static void rms_norm_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                         quern_tensor **dx) {
  (void)self;
  struct view v = view_rows(node->src[0], norm_of(node->attrs).n, false);
  differentiate(&v, node, dy[0], dx);
}

static void group_norm_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                            quern_tensor **results) {
  (void)ctx;
  struct norm norm = norm_of(attrs);
  struct view v = view_groups(args[0], norm.n);
  build(&v, &norm, args, results);
}
static void group_norm_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                           quern_tensor **dx) {
  (void)self;
  struct view v = view_groups(node->src[0], norm_of(node->attrs).n);
  differentiate(&v, node, dy[0], dx);
}

/* Training: results y, and the batch's mean and variance over count - 1, (C,) in the wide dtype. */
static void batch_norm_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                            quern_tensor **results) {
  (void)ctx;
  struct norm norm = norm_of(attrs);
  struct view v = view_channels(args[0]);
  struct rows r = build(&v, &norm, args, results);
  double count = (double)v.dims[0] * (double)v.dims[2];
  quern_tensor *var = quern_div_scalar(quern_sum(quern_square(r.deviation), v.n_axes, v.axes, true), count - 1);
  results[1] = tensor_reshape(quern_mul(r.mean, r.scale), 1, &v.dims[1]);
  results[2] = tensor_reshape(quern_mul(quern_mul(var, r.scale), r.scale), 1, &v.dims[1]);
}

static void batch_norm_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                           quern_tensor **dx) {
  (void)self;
  quern_tensor *x = node->src[0];
  struct view v = view_channels(x);
  differentiate(&v, node, dy[0], dx);
  double count = (double)v.dims[0] * (double)v.dims[2];
  quern_tensor *w = viewed(x, &v), *more = NULL;
  if (!ir_is_const(dy[1], 0)) {
    more = quern_broadcast_to(quern_div_scalar(as_param(dy[1], &v), count), v.rank, v.dims);
  }
  if (!ir_is_const(dy[2], 0)) {
    quern_tensor *deviation = quern_sub(w, as_param(&node->out[1], &v));
    quern_tensor *term = quern_mul(deviation, quern_mul_scalar(as_param(dy[2], &v), 2 / (count - 1)));
    more = more == NULL ? term : quern_add(more, term);
  }
  if (more != NULL) dx[0] = quern_add(dx[0], back(more, x));
}

const struct ir_composite tensor_kind_layer_norm = {
    .name = "layer_norm", .n_results = 1, .body = layer_norm_body, .vjp = layer_norm_vjp, .admits = tensor_admits_norm};
const struct ir_composite tensor_kind_rms_norm = {
    .name = "rms_norm", .n_results = 1, .body = rms_norm_body, .vjp = rms_norm_vjp, .admits = tensor_admits_norm};
const struct ir_composite tensor_kind_group_norm = {
    .name = "group_norm", .n_results = 1, .body = group_norm_body, .vjp = group_norm_vjp, .admits = tensor_admits_norm};
const struct ir_composite tensor_kind_batch_norm = {
    .name = "batch_norm", .n_results = 3, .body = batch_norm_body, .vjp = batch_norm_vjp, .admits = tensor_admits_norm};

/* ---- builders -------------------------------------------------------------------------------- */

static quern_tensor *make(quern_context *ctx, const struct ir_composite *kind, quern_tensor *x, quern_tensor *weight,
                          quern_tensor *bias, int64_t n, double eps) {
  quern_tensor *src[3] = {x};
  int count = 1;
  if (weight != NULL) src[count++] = weight;
  if (bias != NULL) src[count++] = bias;
  return ir_composite_make(ctx, kind, IR_INTS(n, weight != NULL, bias != NULL), (struct ir_reals){1, &eps}, count, src);
}

static quern_tensor *norm_rows(const struct ir_composite *kind, quern_tensor *x, int n_axes, quern_tensor *weight,
                               quern_tensor *bias, double eps) {
  const char *what = kind->name;
  quern_context *ctx = tensor_enter_some(what, 1, 3, (quern_tensor *[]){x, weight, bias});
  if (ctx == NULL || !tensor_need_float(what, "x", x)) return &ir_poison;
  TENSOR_CHECK(ctx, n_axes >= 1 && n_axes <= x->rank, SHAPE, "%s: n_axes is %d, must be in 1..%d for x %s", what,
               n_axes, x->rank, TENSOR_TYPE(x));
  const int64_t *dims = x->dims + (x->rank - n_axes);
  if (!tensor_need_like(what, "weight", weight, x, n_axes, dims) ||
      !tensor_need_like(what, "bias", bias, x, n_axes, dims) || !tensor_need_real(ctx, what, "eps", eps, 0)) {
    return &ir_poison;
  }
  return make(ctx, kind, x, weight, bias, n_axes, eps);
}

quern_tensor *quern_layer_norm(quern_tensor *x, int n_axes, quern_tensor *weight, quern_tensor *bias, double eps) {
  return norm_rows(&tensor_kind_layer_norm, x, n_axes, weight, bias, eps);
}

quern_tensor *quern_rms_norm(quern_tensor *x, int n_axes, quern_tensor *weight, double eps) {
  return norm_rows(&tensor_kind_rms_norm, x, n_axes, weight, NULL, eps);
}

/* The checks of a norm of (N, C, ..) with parameters (C,); the context, or NULL with the error recorded. */
static quern_context *enter_channels(const char *what, int least_rank, quern_tensor *x, quern_tensor *weight,
                                     quern_tensor *bias, double eps) {
  quern_context *ctx = tensor_enter_some(what, 1, 3, (quern_tensor *[]){x, weight, bias});
  if (ctx == NULL || !tensor_need_float(what, "x", x)) return NULL;
  if (x->rank < least_rank) {
    ir_fail(ctx, QUERN_STATUS_SHAPE, "%s: x is %s, must be (N, C%s", what, TENSOR_TYPE(x),
            least_rank > 2 ? ", ..) with spatial axes" : ", ..)");
    return NULL;
  }
  bool ok = tensor_need_like(what, "weight", weight, x, 1, x->dims + 1) &&
            tensor_need_like(what, "bias", bias, x, 1, x->dims + 1) && tensor_need_real(ctx, what, "eps", eps, 0);
  return ok ? ctx : NULL;
}

quern_tensor *quern_group_norm(quern_tensor *x, int64_t groups, quern_tensor *weight, quern_tensor *bias, double eps) {
  quern_context *ctx = enter_channels("group_norm", 2, x, weight, bias, eps);
  if (ctx == NULL) return &ir_poison;
  TENSOR_CHECK(ctx, groups >= 1 && x->dims[1] % groups == 0, SHAPE,
               "group_norm: %lld groups do not divide the %lld channels of %s", (long long)groups,
               (long long)x->dims[1], TENSOR_TYPE(x));
  return make(ctx, &tensor_kind_group_norm, x, weight, bias, groups, eps);
}

quern_tensor *quern_instance_norm(quern_tensor *x, quern_tensor *weight, quern_tensor *bias, double eps) {
  quern_context *ctx = enter_channels("instance_norm", 3, x, weight, bias, eps);
  if (ctx == NULL) return &ir_poison;
  TENSOR_CHECK(ctx, x->dims[1] > 0, SHAPE, "instance_norm: x is %s, without channels", TENSOR_TYPE(x));
  return make(ctx, &tensor_kind_group_norm, x, weight, bias, x->dims[1], eps);
}

/* False with the error recorded unless a running statistic is (C,) of x's dtype or of the dtype it is widened
** to. */
static bool running_ok(const char *name, const quern_tensor *running, const quern_tensor *x) {
  quern_tensor like = *x;
  if (running != NULL && running->dtype == tensor_wide(x->dtype)) like.dtype = running->dtype;
  return tensor_need_like("batch_norm", name, running, &like, 1, x->dims + 1);
}

/* old + momentum (batch - old), in the type of old. */
static quern_tensor *moved(quern_tensor *old, quern_tensor *batch, double momentum) {
  quern_tensor *kept = quern_mul_scalar(tensor_to(old, batch->dtype), 1 - momentum);
  return tensor_to(quern_add(kept, quern_mul_scalar(batch, momentum)), old->dtype);
}

/* (x - mean) / sqrt(var + eps) with given statistics. */
static quern_tensor *normalize_by(quern_tensor *x, quern_tensor *weight, quern_tensor *bias, quern_tensor *mean,
                                  quern_tensor *var, double eps) {
  struct view v = view_channels(x);
  quern_tensor *factor = quern_rsqrt(quern_add_scalar(as_param(var, &v), eps));
  if (weight != NULL) factor = quern_mul(factor, as_param(weight, &v));
  quern_tensor *y = viewed(x, &v);
  y = quern_mul(quern_sub(y, as_param(mean, &v)), factor);
  if (bias != NULL) y = quern_add(y, as_param(bias, &v));
  return back(y, x);
}

quern_tensor *quern_batch_norm(quern_tensor *x, quern_tensor *weight, quern_tensor *bias, quern_tensor *running_mean,
                               quern_tensor *running_var, const quern_batch_norm_options *options,
                               quern_tensor **new_mean, quern_tensor **new_var) {
  const char *what = "batch_norm";
  if (new_mean != NULL) *new_mean = &ir_poison;
  if (new_var != NULL) *new_var = &ir_poison;
  quern_tensor *all[] = {x, weight, bias, running_mean, running_var};
  quern_context *ctx = tensor_enter_some(what, 1, 5, all);
  if (ctx == NULL) return &ir_poison;
  TENSOR_CHECK(ctx, options != NULL, INVALID, "batch_norm: options is null; it has train, momentum and eps");
  TENSOR_OPTIONS(ctx, what, quern_batch_norm_options, options);
  if (enter_channels(what, 2, x, weight, bias, options->eps) == NULL || !running_ok("running_mean", running_mean, x) ||
      !running_ok("running_var", running_var, x)) {
    return &ir_poison;
  }
  if (!options->train) {
    TENSOR_CHECK(ctx, running_mean != NULL && running_var != NULL, INVALID,
                 "batch_norm: %s is null, needed when not training HINT: options.train uses the batch's own "
                 "statistics",
                 running_mean == NULL ? "running_mean" : "running_var");
    if (new_mean != NULL) *new_mean = running_mean;
    if (new_var != NULL) *new_var = running_var;
    return normalize_by(x, weight, bias, running_mean, running_var, options->eps);
  }
  TENSOR_CHECK(ctx, options->momentum >= 0 && options->momentum <= 1, INVALID,
               "batch_norm: momentum is %g, must be in 0..1", options->momentum);
  TENSOR_CHECK(ctx, new_mean == NULL || running_mean != NULL, INVALID,
               "batch_norm: new_mean is asked for, but running_mean is null");
  TENSOR_CHECK(ctx, new_var == NULL || running_var != NULL, INVALID,
               "batch_norm: new_var is asked for, but running_var is null");
  double count = (double)x->dims[0] * (double)product(x, 2, x->rank);
  TENSOR_CHECK(ctx, count > 1, SHAPE, "batch_norm: x %s has %g values a channel; training needs at least 2",
               TENSOR_TYPE(x), count);
  quern_tensor *y = make(ctx, &tensor_kind_batch_norm, x, weight, bias, 0, options->eps);
  if (new_mean != NULL) *new_mean = moved(running_mean, ir_result(y, 1), options->momentum);
  if (new_var != NULL) *new_var = moved(running_var, ir_result(y, 2), options->momentum);
  return y;
}
