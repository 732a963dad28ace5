/* nn/conv.c -- convolution of 1 to 3 spatial axes, and transposed
** tests: tests/nn/test_layers.c
*/
#include "nn/nn.h"

enum { MOST = 3 }; /* spatial axes */

static const char *const modes[] = {"zeros", "reflect", "replicate", "circular"};
enum mode { ZEROS, REFLECT, REPLICATE, CIRCULAR, NO_MODE };

typedef quern_tensor *conv_builder(quern_tensor *x, quern_tensor *weight, quern_tensor *bias,
                                   const quern_conv_options *options);

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static enum mode find_mode(const char *name) {
  int i = ZEROS;
  while (name != NULL && i < NO_MODE && strcmp(modes[i], name) != 0) i++;
  return (enum mode)i;
}

/* False with the error recorded unless x, the window and the options go together. */
static bool conv_ok(const struct nn_call *call, const quern_tensor *x, int64_t out, int n, const int64_t *window,
                    const quern_nn_conv_options *o) {
  if (!nn_size(call, "out", out)) return false;
  if (n < 1 || n > MOST || window == NULL)
    return nn_wrong(call, QUERN_STATUS_INVALID, "a window of %d axes%s, must have 1 to 3", n,
                    window == NULL ? ", null" : "");
  if (!nn_operand(call, "x", x, n + 2, "(N, C, ..) with as many spatial axes as the window")) return false;
  if (x->rank != n + 2)
    return nn_wrong(call, QUERN_STATUS_SHAPE, "x is %s, must be (N, C, ..) with %d spatial axes, as the window %s",
                    TENSOR_TYPE(x), n, TENSOR_DIMS(n, window));
  bool whole = o->groups >= 0;
  for (int i = 0; i < n; i++) {
    whole &=
        window[i] >= 1 && o->stride[i] >= 0 && o->dilation[i] >= 0 && o->padding[i] >= 0 && o->output_padding[i] >= 0;
  }
  if (!whole)
    return nn_wrong(call, QUERN_STATUS_INVALID,
                    "a window %s, stride %s, padding %s, dilation %s, groups %lld; none is negative",
                    TENSOR_DIMS(n, window), TENSOR_DIMS(n, o->stride), TENSOR_DIMS(n, o->padding),
                    TENSOR_DIMS(n, o->dilation), (long long)o->groups);
  int64_t groups = o->groups > 0 ? o->groups : 1;
  if (x->dims[1] % groups != 0 || out % groups != 0)
    return nn_wrong(call, QUERN_STATUS_SHAPE,
                    "x is %s, out %lld; channels and out must be multiples of the %lld groups", TENSOR_TYPE(x),
                    (long long)out, (long long)groups);
  if (find_mode(o->padding_mode) == NO_MODE) {
    const char *near = base_nearest(o->padding_mode, modes, NO_MODE);
    return nn_wrong(call, QUERN_STATUS_INVALID,
                    "padding_mode \"%.60s\" is none of zeros, reflect, replicate, circular%s%s", o->padding_mode,
                    near != NULL ? " HINT: did you mean " : "", near != NULL ? near : "");
  }
  return true;
}

/* ---- padding that is not zeros ----------------------------------------------------------------------------------- */

/* `n` elements beside x along an axis: before it, or after it. */
static quern_tensor *edge(quern_tensor *x, int axis, int64_t n, enum mode mode, bool before) {
  int64_t size = quern_tensor_dim(x, axis), reversed = axis;
  if (mode == CIRCULAR) return before ? quern_slice(x, axis, size - n, size, 1) : quern_slice(x, axis, 0, n, 1);
  if (mode == REFLECT) {
    quern_tensor *part = before ? quern_slice(x, axis, 1, n + 1, 1) : quern_slice(x, axis, size - 1 - n, size - 1, 1);
    return quern_flip(part, 1, &reversed);
  }
  quern_tensor *last = before ? quern_slice(x, axis, 0, 1, 1) : quern_slice(x, axis, size - 1, size, 1);
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < quern_tensor_rank(last); k++) dims[k] = k == axis ? n : quern_tensor_dim(last, k);
  return quern_broadcast_to(last, quern_tensor_rank(last), dims);
}

/* x padded along its spatial axes, whose padding becomes 0. */
static quern_tensor *pad(const struct nn_call *call, quern_tensor *x, int n, enum mode mode, quern_conv_options *o) {
  for (int i = 0; i < n; i++) {
    int64_t size = quern_tensor_dim(x, i + 2), lo = o->pad_lo[i], hi = o->pad_hi[i];
    int64_t most = mode == REFLECT ? size - 1 : mode == CIRCULAR ? size : INT64_MAX;
    NN_CHECK(*call, size >= 1 && lo <= most && hi <= most, SHAPE, "padding %lld and %lld of %s: %s allows at most %lld",
             (long long)lo, (long long)hi, TENSOR_TYPE(x), modes[mode], (long long)most);
    quern_tensor *parts[3];
    int count = 0;
    if (lo > 0) parts[count++] = edge(x, i + 2, lo, mode, true);
    parts[count++] = x;
    if (hi > 0) parts[count++] = edge(x, i + 2, hi, mode, false);
    if (count > 1) x = quern_concat(count, parts, i + 2);
    o->pad_lo[i] = o->pad_hi[i] = 0;
  }
  return x;
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* weight (first, second / groups, window), bias (out,). */
static quern_tensor *convolve(quern_scope *scope, quern_tensor *x, int64_t first, int64_t second, int64_t out, int n,
                              const int64_t *window, const quern_nn_conv_options *o, const quern_conv_options *conv,
                              conv_builder *const builders[MOST]) {
  int64_t dims[2 + MOST] = {first, second / BASE_MAX(o->groups, 1)};
  for (int i = 0; i < n; i++) dims[2 + i] = window[i];
  quern_tensor *weight = quern_scope_parameter(scope, "weight", n + 2, dims, nn_weight_init(o->weight_init));
  quern_tensor *bias = NULL;
  if (!o->no_bias)
    bias = quern_scope_parameter(scope, "bias", 1, &out, nn_bias_init(o->bias_init, nn_fan_in(n + 2, dims)));
  return builders[n - 1](x, weight, bias, conv);
}

quern_tensor *quern_nn_conv(quern_scope *scope, quern_tensor *x, int64_t out, int n, const int64_t *window,
                            const quern_nn_conv_options *options) {
  static conv_builder *const builders[MOST] = {quern_conv1d, quern_conv2d, quern_conv3d};
  NN_ENTER(call, "nn_conv", scope, x);
  NN_OPTIONS(call, quern_nn_conv_options, o, options);
  if (!conv_ok(&call, x, out, n, window, o)) return &ir_poison;
  quern_conv_options conv = {.size = sizeof conv, .groups = o->groups};
  for (int i = 0; i < n; i++) {
    int64_t dilation = BASE_MAX(o->dilation[i], 1), spread = 0;
    conv.stride[i] = o->stride[i];
    conv.dilation[i] = dilation;
    conv.pad_lo[i] = conv.pad_hi[i] = o->padding[i];
    if (!o->same) continue;
    NN_CHECK(call, o->stride[i] <= 1 && o->padding[i] == 0, INVALID,
             "same with stride %lld and padding %lld; it needs 1 and 0", (long long)BASE_MAX(o->stride[i], 1),
             (long long)o->padding[i]);
    NN_CHECK(call, window[i] - 1 <= INT64_MAX / dilation, OVERFLOW, "a window of %lld with dilation %lld",
             (long long)window[i], (long long)dilation);
    spread = dilation * (window[i] - 1);
    conv.pad_lo[i] = spread / 2;
    conv.pad_hi[i] = spread - spread / 2;
  }
  enum mode mode = find_mode(o->padding_mode);
  quern_tensor *padded = mode == ZEROS ? x : pad(&call, x, n, mode, &conv);
  if (ir_is_poison(padded)) return nn_leave(&call, padded);
  return nn_leave(&call, convolve(scope, padded, out, x->dims[1], out, n, window, o, &conv, builders));
}

quern_tensor *quern_nn_conv_transpose(quern_scope *scope, quern_tensor *x, int64_t out, int n, const int64_t *window,
                                      const quern_nn_conv_options *options) {
  static conv_builder *const builders[MOST] = {quern_conv_transpose1d, quern_conv_transpose2d, quern_conv_transpose3d};
  NN_ENTER(call, "nn_conv_transpose", scope, x);
  NN_OPTIONS(call, quern_nn_conv_options, o, options);
  if (!conv_ok(&call, x, out, n, window, o)) return &ir_poison;
  NN_CHECK(call, find_mode(o->padding_mode) == ZEROS && !o->same, INVALID, "%s; padding is of zeros and given",
           o->same ? "same" : o->padding_mode);
  quern_conv_options conv = {.size = sizeof conv, .groups = o->groups};
  for (int i = 0; i < n; i++) {
    conv.stride[i] = o->stride[i];
    conv.dilation[i] = o->dilation[i];
    conv.pad_lo[i] = conv.pad_hi[i] = o->padding[i];
    conv.output_pad[i] = o->output_padding[i];
  }
  return nn_leave(&call, convolve(scope, x, x->dims[1], out, out, n, window, o, &conv, builders));
}
