/* models/small.c -- a multi-layer perceptron, and a language model of LSTMs
** tests: tests/models/test_models.c
*/
#include "quern/models.h"
#include "tensor/tensor.h"

quern_tensor *quern_mlp(quern_scope *scope, quern_tensor *x, int n, const int64_t *widths, int64_t out,
                        const char *activation) {
  quern_context *ctx = quern_model_context(quern_scope_model(scope));
  TENSOR_CHECK(ctx, x != NULL, INVALID, "mlp: the operand is null");
  if (ir_is_poison(x)) return x;
  TENSOR_CHECK(ctx, x->rank >= 2, SHAPE, "mlp: an operand of rank %d; must be (N, ..)", x->rank);
  TENSOR_CHECK(ctx, n >= 0 && (n == 0 || widths != NULL), INVALID, "mlp: %d hidden layers without a list of widths", n);
  if (x->rank > 2) x = quern_flatten(x, 1, x->rank - 1);
  quern_nn_linear_options options = {.size = sizeof options, .activation = activation != NULL ? activation : "relu"};
  for (int i = 0; i < n; i++) x = quern_nn_linear(quern_scope_at(scope, "layers", i), x, widths[i], &options);
  return quern_nn_linear(quern_scope_at(scope, "layers", n), x, out, NULL);
}

quern_tensor *quern_lstm_lm(quern_scope *scope, quern_tensor *tokens, int64_t vocabulary, int64_t width, int64_t hidden,
                            int layers, double dropout, quern_rnn_state *state) {
  quern_nn_rnn_options options = {.size = sizeof options, .layers = layers, .batch_first = true, .dropout = dropout};
  quern_tensor *x = quern_nn_embedding(quern_scope_in(scope, "encoder"), tokens, vocabulary, width, NULL);
  x = quern_nn_dropout(scope, x, dropout);
  x = quern_nn_rnn(quern_scope_in(scope, "rnn"), x, hidden, QUERN_RNN_LSTM, state, &options);
  x = quern_nn_dropout(scope, x, dropout);
  return quern_nn_linear(quern_scope_in(scope, "decoder"), x, vocabulary, NULL);
}
