/* nn/activation.c -- activations by name, with PyTorch's default numbers
** tests: tests/nn/test_layers.c
*/
#include "nn/nn.h"

static quern_tensor *none(quern_tensor *x) { return x; }
static quern_tensor *leaky_relu(quern_tensor *x) { return quern_leaky_relu(x, 0.01); }
static quern_tensor *elu(quern_tensor *x) { return quern_elu(x, 1); }
static quern_tensor *relu6(quern_tensor *x) { return quern_clip(x, 0, 6); }
static quern_tensor *hardtanh(quern_tensor *x) { return quern_clip(x, -1, 1); }
static quern_tensor *log_sigmoid(quern_tensor *x) { return quern_neg(quern_softplus(quern_neg(x))); }
static quern_tensor *softmax(quern_tensor *x) { return quern_softmax(x, -1); }
static quern_tensor *log_softmax(quern_tensor *x) { return quern_log_softmax(x, -1); }
static quern_tensor *glu(quern_tensor *x) { return quern_glu(x, -1); }
static quern_tensor *swiglu(quern_tensor *x) { return quern_swiglu(x, -1); }
static quern_tensor *geglu(quern_tensor *x) { return quern_geglu(x, -1); }
static quern_tensor *reglu(quern_tensor *x) { return quern_reglu(x, -1); }

/* scale elu(x, alpha): Klambauer et al., "Self-normalizing neural networks", 2017. */
static quern_tensor *selu(quern_tensor *x) {
  return quern_mul_scalar(quern_elu(x, 1.6732632423543772), 1.0507009873554805);
}

/* min(max(x + 3, 0), 6) / 6: Howard et al., "Searching for MobileNetV3", 2019. */
static quern_tensor *hardsigmoid(quern_tensor *x) {
  return quern_div_scalar(quern_clip(quern_add_scalar(x, 3), 0, 6), 6);
}

static quern_tensor *hardswish(quern_tensor *x) { return quern_mul(x, hardsigmoid(x)); }
static quern_tensor *softsign(quern_tensor *x) { return quern_div(x, quern_add_scalar(quern_abs(x), 1)); }
static quern_tensor *tanhshrink(quern_tensor *x) { return quern_sub(x, quern_tanh(x)); }

#define EACH(ROW)                                                                                                      \
  ROW("none", none, false)                                                                                             \
  ROW("relu", quern_relu, false)                                                                                       \
  ROW("relu6", relu6, false)                                                                                           \
  ROW("leaky_relu", leaky_relu, false)                                                                                 \
  ROW("elu", elu, false)                                                                                               \
  ROW("selu", selu, false)                                                                                             \
  ROW("sigmoid", quern_sigmoid, false)                                                                                 \
  ROW("log_sigmoid", log_sigmoid, false)                                                                               \
  ROW("hardsigmoid", hardsigmoid, false)                                                                               \
  ROW("tanh", quern_tanh, false)                                                                                       \
  ROW("hardtanh", hardtanh, false)                                                                                     \
  ROW("tanhshrink", tanhshrink, false)                                                                                 \
  ROW("gelu", quern_gelu, false)                                                                                       \
  ROW("gelu_tanh", quern_gelu_tanh, false)                                                                             \
  ROW("gelu_quick", quern_gelu_quick, false)                                                                           \
  ROW("silu", quern_silu, false)                                                                                       \
  ROW("swish", quern_silu, false)                                                                                      \
  ROW("hardswish", hardswish, false)                                                                                   \
  ROW("mish", quern_mish, false)                                                                                       \
  ROW("softplus", quern_softplus, false)                                                                               \
  ROW("softsign", softsign, false)                                                                                     \
  ROW("softmax", softmax, false)                                                                                       \
  ROW("log_softmax", log_softmax, false)                                                                               \
  ROW("glu", glu, true)                                                                                                \
  ROW("swiglu", swiglu, true)                                                                                          \
  ROW("geglu", geglu, true)                                                                                            \
  ROW("reglu", reglu, true)

#define NAME(name, function, halves) name,
#define FUNCTION(name, function, halves) function,
#define HALVES(name, function, halves) halves,
const char *const nn_activation_names[] = {EACH(NAME)};
const size_t nn_activation_count = BASE_COUNT(nn_activation_names);
static nn_function *const functions[] = {EACH(FUNCTION)};
static const bool halving[] = {EACH(HALVES)};

static size_t find(const char *name) {
  size_t i = 0;
  while (i < nn_activation_count && strcmp(nn_activation_names[i], name) != 0) i++;
  return i;
}

nn_function *nn_activation_find(const char *name) {
  size_t i = find(name);
  return i < nn_activation_count ? functions[i] : NULL;
}

bool nn_activation_halves(const char *name) {
  size_t i = find(name);
  return i < nn_activation_count && halving[i];
}

bool nn_activation_ok(const struct nn_call *call, const char *name) {
  if (name == NULL || nn_activation_find(name) != NULL) return true;
  const char *near = base_nearest(name, nn_activation_names, nn_activation_count);
  return nn_wrong(call, QUERN_STATUS_INVALID, "\"%.60s\" is no activation%s%s", name,
                  near != NULL ? " HINT: did you mean " : "", near != NULL ? near : "");
}

quern_tensor *quern_nn_activation(quern_tensor *x, const char *name) {
  TENSOR_ENTER(ctx, "nn_activation", x);
  TENSOR_CHECK(ctx, name != NULL, INVALID, "nn_activation: the name is null");
  nn_function *function = nn_activation_find(name);
  const char *near = function == NULL ? base_nearest(name, nn_activation_names, nn_activation_count) : NULL;
  TENSOR_CHECK(ctx, function != NULL, INVALID, "nn_activation: \"%.60s\" is no activation%s%s", name,
               near != NULL ? " HINT: did you mean " : "", near != NULL ? near : "");
  return function(x);
}
