/* nn/norm.c -- norms with their weights, and running statistics
** tests: tests/nn/test_layers.c, tests/nn/test_train.c
*/
#include "nn/nn.h"

#include <math.h>

/* The parameters of a norm: ones and zeros. */
struct affine {
  quern_tensor *weight, *bias;
};

static struct affine affine(quern_scope *scope, int rank, const int64_t *dims, bool weight, bool bias) {
  struct affine a = {NULL, NULL};
  if (weight) a.weight = quern_scope_parameter(scope, "weight", rank, dims, (quern_init){QUERN_INIT_CONSTANT, 1, 0});
  if (bias) a.bias = quern_scope_parameter(scope, "bias", rank, dims, (quern_init){QUERN_INIT_CONSTANT, 0, 0});
  return a;
}

/* False with the error recorded unless the options are good for x of at least that rank. */
static bool norm_ok(const struct nn_call *call, const quern_tensor *x, int rank, const char *shape,
                    const quern_nn_norm_options *o) {
  if (!nn_operand(call, "x", x, rank, shape)) return false;
  if (!isfinite(o->eps) || o->eps < 0 || !isfinite(o->momentum) || o->momentum > 1)
    return nn_wrong(call, QUERN_STATUS_INVALID, "eps is %g, must be at least 0; momentum is %g, must be at most 1",
                    o->eps, o->momentum);
  if (o->axes >= 0 && o->axes <= x->rank) return true;
  return nn_wrong(call, QUERN_STATUS_SHAPE, "over %d axes of x %s", o->axes, TENSOR_TYPE(x));
}

static double eps_of(const quern_nn_norm_options *o) { return o->eps != 0 ? o->eps : 1e-5; }

quern_tensor *quern_nn_layer_norm(quern_scope *scope, quern_tensor *x, const quern_nn_norm_options *options) {
  NN_ENTER(call, "nn_layer_norm", scope, x);
  NN_OPTIONS(call, quern_nn_norm_options, o, options);
  if (!norm_ok(&call, x, 1, "(.., C)", o)) return &ir_poison;
  int axes = o->axes != 0 ? o->axes : 1;
  const int64_t *dims = x->dims + x->rank - axes;
  struct affine a = affine(scope, axes, dims, !o->no_affine, !o->no_affine && !o->no_bias);
  return nn_leave(&call, quern_layer_norm(x, axes, a.weight, a.bias, eps_of(o)));
}

quern_tensor *quern_nn_rms_norm(quern_scope *scope, quern_tensor *x, const quern_nn_norm_options *options) {
  NN_ENTER(call, "nn_rms_norm", scope, x);
  NN_OPTIONS(call, quern_nn_norm_options, o, options);
  if (!norm_ok(&call, x, 1, "(.., C)", o)) return &ir_poison;
  int axes = o->axes != 0 ? o->axes : 1;
  struct affine a = affine(scope, axes, x->dims + x->rank - axes, !o->no_affine, false);
  double eps = o->eps != 0 ? o->eps : ldexp(1, -base_dtypes[x->dtype].mantissa);
  return nn_leave(&call, quern_rms_norm(x, axes, a.weight, eps));
}

quern_tensor *quern_nn_group_norm(quern_scope *scope, quern_tensor *x, int64_t groups,
                                  const quern_nn_norm_options *options) {
  NN_ENTER(call, "nn_group_norm", scope, x);
  NN_OPTIONS(call, quern_nn_norm_options, o, options);
  if (!norm_ok(&call, x, 2, "(N, C, ..)", o) || !nn_size(&call, "groups", groups)) return &ir_poison;
  struct affine a = affine(scope, 1, x->dims + 1, !o->no_affine, !o->no_affine && !o->no_bias);
  return nn_leave(&call, quern_group_norm(x, groups, a.weight, a.bias, eps_of(o)));
}

/* ---- running statistics ------------------------------------------------------------------------------------------ */

struct running {
  quern_tensor *mean, *var, *batches; /* buffers, or all NULL */
};

static struct running running(quern_scope *scope, const int64_t *channels, bool tracking) {
  struct running r = {NULL, NULL, NULL};
  if (!tracking) return r;
  quern_dtype dtype = scope->model->dtype;
  r.mean = quern_scope_buffer(scope, "running_mean", dtype, 1, channels, 0);
  r.var = quern_scope_buffer(scope, "running_var", dtype, 1, channels, 1);
  r.batches = quern_scope_buffer(scope, "num_batches_tracked", QUERN_DTYPE_I64, 0, NULL, 0);
  return r;
}

/* A buffer goes towards the value of this batch: by momentum, or by 1 / batches when that is negative. */
static void move(quern_scope *scope, quern_tensor *buffer, quern_tensor *value, double momentum,
                 quern_tensor *batches) {
  quern_tensor *old = quern_scope_value(scope, buffer), *next;
  if (momentum < 0) {
    quern_tensor *share = quern_reciprocal(quern_cast(batches, scope->model->dtype));
    quern_tensor *way = quern_sub(value, old);
    next = quern_add(old, quern_mul(way, share));
  } else {
    quern_tensor *kept = quern_mul_scalar(old, 1 - momentum);
    quern_tensor *added = quern_mul_scalar(value, momentum);
    next = quern_add(kept, added);
  }
  quern_scope_change(scope, buffer, next);
}

/* The statistics after a batch of that mean and variance, which is number `batches`. */
static void move_both(quern_scope *scope, const struct running *r, quern_tensor *mean, quern_tensor *var,
                      const quern_nn_norm_options *o, quern_tensor *batches) {
  double momentum = o->momentum != 0 ? o->momentum : 0.1;
  move(scope, r->mean, quern_stop_gradient(mean), momentum, batches);
  move(scope, r->var, quern_stop_gradient(var), momentum, batches);
}

quern_tensor *quern_nn_batch_norm(quern_scope *scope, quern_tensor *x, const quern_nn_norm_options *options) {
  NN_ENTER(call, "nn_batch_norm", scope, x);
  NN_OPTIONS(call, quern_nn_norm_options, o, options);
  if (!norm_ok(&call, x, 2, "(N, C, ..)", o)) return &ir_poison;
  const int64_t *channels = x->dims + 1;
  struct affine a = affine(scope, 1, channels, !o->no_affine, !o->no_affine && !o->no_bias);
  struct running r = running(scope, channels, !o->no_tracking);
  bool train = scope->model->train || o->no_tracking, tracking = scope->model->train && !o->no_tracking;
  /* With momentum 1 the new statistics are those of the batch. */
  quern_batch_norm_options batch = {.size = sizeof batch, .train = train, .momentum = 1, .eps = eps_of(o)};
  quern_tensor *mean = NULL, *var = NULL;
  quern_tensor *y =
      quern_batch_norm(x, a.weight, a.bias, r.mean, r.var, &batch, tracking ? &mean : NULL, tracking ? &var : NULL);
  if (tracking && !ir_is_poison(y)) {
    quern_tensor *batches = quern_add_scalar(quern_scope_value(scope, r.batches), 1);
    quern_scope_change(scope, r.batches, batches);
    move_both(scope, &r, mean, var, o, batches);
    nn_changed(scope->model, y);
  }
  return nn_leave(&call, y);
}

quern_tensor *quern_nn_instance_norm(quern_scope *scope, quern_tensor *x,
                                     const quern_nn_instance_norm_options *options) {
  NN_ENTER(call, "nn_instance_norm", scope, x);
  NN_OPTIONS(call, quern_nn_instance_norm_options, o, options);
  const quern_nn_norm_options norm = {.eps = o->eps, .momentum = o->momentum};
  if (!norm_ok(&call, x, 3, "(N, C, ..) with spatial axes", &norm)) return &ir_poison;
  NN_CHECK(call, o->momentum >= 0, INVALID, "momentum is %g; instance norm counts no batches", o->momentum);
  const int64_t *channels = x->dims + 1;
  struct affine a = affine(scope, 1, channels, o->affine, o->affine && !o->no_bias);
  struct running r = running(scope, channels, o->tracking);
  if (o->tracking && !scope->model->train) {
    quern_batch_norm_options batch = {.size = sizeof batch, .train = false, .momentum = 1, .eps = eps_of(&norm)};
    return nn_leave(&call, quern_batch_norm(x, a.weight, a.bias, r.mean, r.var, &batch, NULL, NULL));
  }
  quern_tensor *y = quern_instance_norm(x, a.weight, a.bias, eps_of(&norm));
  if (o->tracking && !ir_is_poison(y)) {
    int64_t space[QUERN_MAX_RANK], items = 0;
    for (int k = 2; k < x->rank; k++) space[k - 2] = k;
    quern_tensor *mean = quern_mean(quern_mean(x, x->rank - 2, space, false), 1, &items, false);
    quern_tensor *var = quern_mean(quern_var(x, x->rank - 2, space, false, 1), 1, &items, false);
    move_both(scope, &r, mean, var, &norm, NULL);
    nn_changed(scope->model, y);
  }
  return nn_leave(&call, y);
}
