/* tensor/admit.c -- composites that come from a text: are they ones that the public builders make?
** A node is admitted when the builder, called with what the attributes say, makes a node with the same attributes. So
** what a body may rely on is checked in one place, the builder; its error reports why a node is refused.
** tests: tests/tensor/test_admit.c
*/
#include <string.h>

#include "tensor/kinds.h"

/* True when y is the composite of that name, attributes and operands. */
static bool is_composite(const quern_tensor *y, const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  if (ir_is_poison(y) || y->node->op != IR_COMPOSITE || y->node->n_src != n) return false;
  const struct ir_attrs *made = y->node->attrs;
  bool same = strcmp(made->name, attrs->name) == 0 && made->ints.n == attrs->ints.n && made->reals.n == attrs->reals.n;
  for (int i = 0; same && i < n; i++) same = y->node->src[i] == src[i];
  for (int i = 0; same && i < made->ints.n; i++) same = made->ints.at[i] == attrs->ints.at[i];
  return same && (made->reals.n == 0 ||
                  memcmp(made->reals.at, attrs->reals.at, (size_t)made->reals.n * sizeof *made->reals.at) == 0);
}

/* True when there are so many operands and attributes. */
static bool has_counts(const struct ir_attrs *attrs, int n, int least, int most, int n_ints, int n_reals) {
  return n >= least && n <= most && attrs->ints.n == n_ints && attrs->reals.n == n_reals;
}

static bool is_flag(int64_t x) { return x == 0 || x == 1; }

bool tensor_admits_smooth(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  static const struct {
    const struct ir_composite *kind;
    quern_tensor *(*build)(quern_tensor *x);
  } table[] = {
      {&tensor_kind_sigmoid, quern_sigmoid},     {&tensor_kind_softplus, quern_softplus},
      {&tensor_kind_silu, quern_silu},           {&tensor_kind_gelu, quern_gelu},
      {&tensor_kind_gelu_tanh, quern_gelu_tanh}, {&tensor_kind_gelu_quick, quern_gelu_quick},
      {&tensor_kind_mish, quern_mish},
  };
  if (!has_counts(attrs, n, 1, 1, 0, 0)) return false;
  for (size_t i = 0; i < BASE_COUNT(table); i++) {
    if (strcmp(table[i].kind->name, attrs->name) == 0) return is_composite(table[i].build(src[0]), attrs, n, src);
  }
  return false;
}

bool tensor_admits_softmax(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  if (!has_counts(attrs, n, 1, 1, 1, 0) || attrs->ints.at[0] < 0 || attrs->ints.at[0] >= QUERN_MAX_RANK) return false;
  bool log = strcmp(attrs->name, tensor_kind_log_softmax.name) == 0;
  int axis = (int)attrs->ints.at[0];
  return is_composite(log ? quern_log_softmax(src[0], axis) : quern_softmax(src[0], axis), attrs, n, src);
}

bool tensor_admits_norm(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  if (!has_counts(attrs, n, 1, 3, 3, 1)) return false;
  const int64_t *ints = attrs->ints.at;
  if (!is_flag(ints[1]) || !is_flag(ints[2]) || n != 1 + (int)ints[1] + (int)ints[2]) return false;
  quern_tensor *x = src[0], *weight = ints[1] ? src[1] : NULL, *bias = ints[2] ? src[n - 1] : NULL, *y = NULL;
  double eps = attrs->reals.at[0];
  if (strcmp(attrs->name, tensor_kind_group_norm.name) == 0) {
    y = quern_group_norm(x, ints[0], weight, bias, eps);
  } else if (strcmp(attrs->name, tensor_kind_batch_norm.name) == 0) {
    quern_batch_norm_options options = {.size = sizeof options, .train = true, .eps = eps};
    y = quern_batch_norm(x, weight, bias, NULL, NULL, &options, NULL, NULL);
  } else if (ints[0] >= 0 && ints[0] <= QUERN_MAX_RANK) {
    bool rms = strcmp(attrs->name, tensor_kind_rms_norm.name) == 0;
    y = rms ? quern_rms_norm(x, (int)ints[0], weight, eps) : quern_layer_norm(x, (int)ints[0], weight, bias, eps);
  }
  return is_composite(y, attrs, n, src);
}

bool tensor_admits_conv(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  typedef quern_tensor *builder(quern_tensor *, quern_tensor *, quern_tensor *, const quern_conv_options *);
  static builder *const builders[2][3] = {
      {quern_conv1d, quern_conv2d, quern_conv3d},
      {quern_conv_transpose1d, quern_conv_transpose2d, quern_conv_transpose3d},
  };
  if (!has_counts(attrs, n, 2, 3, 17, 0) || src[0]->rank < 3 || src[0]->rank > 5) return false;
  bool transposed = strcmp(attrs->name, tensor_kind_conv_transpose.name) == 0;
  quern_conv_options options = {.size = sizeof options, .groups = attrs->ints.at[0]};
  int64_t *const fields[] = {options.stride, options.dilation, options.pad_lo, options.pad_hi, options.output_pad};
  for (size_t i = 0; i < BASE_COUNT(fields); i++) {
    memcpy(fields[i], attrs->ints.at + 1 + 3 * i, 3 * sizeof(int64_t));
  }
  builder *build = builders[transposed][src[0]->rank - 3];
  return is_composite(build(src[0], src[1], n == 3 ? src[2] : NULL, &options), attrs, n, src);
}

bool tensor_admits_attention(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  if (!has_counts(attrs, n, 3, 4, 2, 1) || !is_flag(attrs->ints.at[0])) return false;
  quern_attention_options options = {
      .size = sizeof options, .causal = attrs->ints.at[0] != 0, .scale = attrs->reals.at[0]};
  return is_composite(quern_attention(src[0], src[1], src[2], n == 4 ? src[3] : NULL, &options, NULL), attrs, n, src);
}

/* On f32 and f64, where the loss is the composite itself. */
bool tensor_admits_bce(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  if (!has_counts(attrs, n, 2, 2, 0, 0)) return false;
  return is_composite(quern_bce_loss(src[0], src[1], QUERN_REDUCTION_NONE), attrs, n, src);
}

bool tensor_admits_cross_entropy(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  bool linear = strcmp(attrs->name, tensor_kind_linear_cross_entropy.name) == 0;
  int count = linear ? 3 : 2;
  struct ir_attrs plain = *attrs; /* as the builder makes them; autocast adds a number */
  if (linear && attrs->ints.n == 4 && tensor_is_narrow(attrs->ints.at[3])) plain.ints.n = 3;
  if (!has_counts(&plain, n, count, count, 3, 1)) return false;
  const int64_t *ints = attrs->ints.at;
  if (ints[0] < 0 || ints[0] > QUERN_REDUCTION_NONE || !is_flag(ints[1])) return false;
  quern_cross_entropy_options options = {.size = sizeof options,
                                         .reduction = (quern_reduction)ints[0],
                                         .ignore = ints[1] != 0,
                                         .ignore_index = ints[2],
                                         .label_smoothing = attrs->reals.at[0]};
  quern_tensor *y = linear ? quern_linear_cross_entropy(src[0], src[1], src[2], &options)
                           : quern_cross_entropy(src[0], src[1], &options);
  return is_composite(y, &plain, n, src) && (plain.ints.n == attrs->ints.n || src[0]->dtype == QUERN_DTYPE_F32);
}
