/* nn/dropout.c -- dropout of elements and of channels
** tests: tests/nn/test_train.c
*/
#include "nn/nn.h"

quern_tensor *quern_nn_dropout(quern_scope *scope, quern_tensor *x, double p) {
  NN_ENTER(call, "nn_dropout", scope, x);
  if (!nn_operand(&call, "x", x, 0, "") || !nn_rate(&call, "p", p)) return &ir_poison;
  if (!scope->model->train || p == 0) return nn_leave(&call, x);
  quern_random from = quern_scope_random(scope);
  return nn_leave(&call, quern_dropout(x, p, &from));
}

quern_tensor *quern_nn_dropout_spatial(quern_scope *scope, quern_tensor *x, double p) {
  NN_ENTER(call, "nn_dropout_spatial", scope, x);
  if (!nn_operand(&call, "x", x, 2, "(N, C, ..)") || !nn_rate(&call, "p", p)) return &ir_poison;
  if (!scope->model->train || p == 0) return nn_leave(&call, x);
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) dims[k] = k < 2 ? x->dims[k] : 1;
  quern_random from = quern_scope_random(scope);
  quern_tensor *mask = quern_random_bernoulli(call.ctx, x->rank, dims, 1 - p, &from);
  quern_tensor *scaled = quern_div_scalar(x, 1 - p);
  quern_tensor *zero = quern_scalar(call.ctx, x->dtype, 0);
  return nn_leave(&call, quern_where(mask, scaled, zero));
}
