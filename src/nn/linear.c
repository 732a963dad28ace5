/* nn/linear.c -- Linear, Bilinear, and the feed-forward part of a transformer
** tests: tests/nn/test_layers.c
*/
#include "nn/nn.h"

static quern_tensor *activate(const quern_nn_linear_options *o, quern_tensor *y) {
  return nn_activation_find(o->activation)(o->no_fuse ? quern_checkpoint_activation(y) : y);
}

quern_tensor *quern_nn_linear(quern_scope *scope, quern_tensor *x, int64_t out,
                              const quern_nn_linear_options *options) {
  NN_ENTER(call, "nn_linear", scope, x);
  NN_OPTIONS(call, quern_nn_linear_options, o, options);
  if (!nn_operand(&call, "x", x, 1, "(.., in)") || !nn_size(&call, "out", out) ||
      !nn_activation_ok(&call, o->activation))
    return &ir_poison;
  int64_t dims[] = {out, x->dims[x->rank - 1]};
  quern_tensor *weight = quern_scope_parameter(scope, "weight", 2, dims, nn_weight_init(o->weight_init)), *bias = NULL;
  if (!o->no_bias) bias = quern_scope_parameter(scope, "bias", 1, dims, nn_bias_init(o->bias_init, nn_fan_in(2, dims)));
  quern_tensor *y = quern_linear(x, weight, bias);
  if (o->activation != NULL) y = activate(o, y);
  return nn_leave(&call, y);
}

quern_tensor *quern_nn_bilinear(quern_scope *scope, quern_tensor *a, quern_tensor *b, int64_t out,
                                const quern_nn_linear_options *options) {
  NN_ENTER(call, "nn_bilinear", scope, a, b);
  NN_OPTIONS(call, quern_nn_linear_options, o, options);
  if (!nn_operand(&call, "a", a, 1, "(.., in)") || !nn_operand(&call, "b", b, 1, "(.., in)") ||
      !nn_size(&call, "out", out) || !nn_activation_ok(&call, o->activation))
    return &ir_poison;
  int64_t dims[] = {out, a->dims[a->rank - 1], b->dims[b->rank - 1]};
  double in = (double)dims[1];
  quern_init init = o->weight_init != NULL ? *o->weight_init : nn_bias_init(NULL, in); /* by the width of a alone */
  quern_tensor *weight = quern_scope_parameter(scope, "weight", 3, dims, init);
  quern_tensor *y = quern_einsum("...i,kij,...j->...k", 3, (quern_tensor *[]){a, weight, b});
  if (!o->no_bias) {
    quern_tensor *bias = quern_scope_parameter(scope, "bias", 1, dims, nn_bias_init(o->bias_init, in));
    y = quern_add(y, bias);
  }
  if (o->activation != NULL) y = activate(o, y);
  return nn_leave(&call, y);
}

quern_tensor *quern_nn_mlp(quern_scope *scope, quern_tensor *x, int64_t hidden, const quern_nn_mlp_options *options) {
  NN_ENTER(call, "nn_mlp", scope, x);
  NN_OPTIONS(call, quern_nn_mlp_options, o, options);
  const char *activation = o->activation != NULL ? o->activation : "relu";
  if (!nn_operand(&call, "x", x, 1, "(.., in)") || !nn_size(&call, "hidden", hidden) ||
      !nn_activation_ok(&call, activation) || !nn_rate(&call, "dropout", o->dropout) ||
      (o->out != 0 && !nn_size(&call, "out", o->out)))
    return &ir_poison;
  NN_CHECK(call, hidden <= INT64_MAX / 2, OVERFLOW, "hidden is %lld", (long long)hidden);
  int64_t first = nn_activation_halves(activation) ? 2 * hidden : hidden;
  int64_t out = o->out != 0 ? o->out : x->dims[x->rank - 1];
  quern_nn_linear_options linear = {.size = sizeof linear,
                                    .no_bias = o->no_bias,
                                    .activation = activation,
                                    .weight_init = o->weight_init,
                                    .bias_init = o->bias_init};
  quern_tensor *y = quern_nn_linear(quern_scope_in(scope, "linear1"), x, first, &linear);
  if (o->dropout > 0) y = quern_nn_dropout(scope, y, o->dropout);
  linear.activation = NULL;
  return nn_leave(&call, quern_nn_linear(quern_scope_in(scope, "linear2"), y, out, &linear));
}
