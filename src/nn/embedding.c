/* nn/embedding.c -- tokens to vectors and back, and where they stand
** tests: tests/nn/test_layers.c
*/
#include "nn/nn.h"

static quern_tensor *table(quern_scope *scope, int64_t rows, int64_t width, const quern_nn_embedding_options *o) {
  quern_init normal = {QUERN_INIT_NORMAL, 0, 1};
  return quern_scope_parameter(scope, "weight", 2, (int64_t[]){rows, width}, o->init != NULL ? *o->init : normal);
}

quern_tensor *quern_nn_embedding(quern_scope *scope, quern_tensor *ids, int64_t rows, int64_t width,
                                 const quern_nn_embedding_options *options) {
  NN_ENTER(call, "nn_embedding", scope, ids);
  NN_OPTIONS(call, quern_nn_embedding_options, o, options);
  if (!nn_size(&call, "rows", rows) || !nn_size(&call, "width", width)) return &ir_poison;
  NN_CHECK(call, base_dtype_is(ids->dtype, BASE_INT), DTYPE, "ids is %s, must be of integers", TENSOR_TYPE(ids));
  NN_CHECK(call, o->padded || o->padding == 0, INVALID, "padding is %lld, but padded is false HINT: .padded = true",
           (long long)o->padding);
  NN_CHECK(call, !o->padded || (o->padding >= 0 && o->padding < rows), INVALID, "padding is %lld, there are %lld rows",
           (long long)o->padding, (long long)rows);
  quern_tensor *y = quern_gather(table(scope, rows, width, o), ids, 0);
  if (o->padded) {
    quern_tensor *padding = quern_scalar(call.ctx, ids->dtype, (double)o->padding);
    quern_tensor *other = quern_unsqueeze(quern_ne(ids, padding), -1);
    quern_tensor *zero = quern_scalar(call.ctx, scope->model->dtype, 0);
    y = quern_where(other, y, zero);
  }
  return nn_leave(&call, y);
}

quern_tensor *quern_nn_unembed(quern_scope *scope, quern_tensor *x, int64_t rows,
                               const quern_nn_embedding_options *options) {
  NN_ENTER(call, "nn_unembed", scope, x);
  NN_OPTIONS(call, quern_nn_embedding_options, o, options);
  if (!nn_operand(&call, "x", x, 1, "(.., width)") || !nn_size(&call, "rows", rows)) return &ir_poison;
  return nn_leave(&call, quern_linear(x, table(scope, rows, x->dims[x->rank - 1], o), NULL));
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

/* Checks what both kinds take. */
static bool position_ok(const struct nn_call *call, const quern_tensor *x, int64_t most, const quern_tensor *start) {
  if (!nn_operand(call, "x", x, 2, "(.., S, C)") || !nn_size(call, "most", most)) return false;
  if (x->dims[x->rank - 2] > most)
    return nn_wrong(call, QUERN_STATUS_SHAPE, "x is %s, there are %lld positions", TENSOR_TYPE(x), (long long)most);
  if (start == NULL) return true;
  if (ir_is_poison(start)) return false;
  if (start->node->ctx == call->ctx && start->rank == 0 && base_dtype_is(start->dtype, BASE_INT)) return true;
  return nn_wrong(call, QUERN_STATUS_DTYPE, "start is %s, must be an integer scalar of the model's context",
                  TENSOR_TYPE(start));
}

/* x plus the rows of weight (most, C) from start on. */
static quern_tensor *add_rows(quern_tensor *x, quern_tensor *weight, quern_tensor *start) {
  int64_t S = x->dims[x->rank - 2], C = x->dims[x->rank - 1];
  if (start == NULL) return quern_add(x, quern_slice(weight, 0, 0, S, 1));
  quern_tensor *zero = quern_scalar(x->node->ctx, start->dtype, 0);
  return quern_add(x, quern_slice_at(weight, 2, (quern_tensor *[]){start, zero}, (int64_t[]){S, C}));
}

quern_tensor *quern_nn_position(quern_scope *scope, quern_tensor *x, int64_t most, quern_tensor *start,
                                const quern_nn_embedding_options *options) {
  NN_ENTER(call, "nn_position", scope, x);
  NN_OPTIONS(call, quern_nn_embedding_options, o, options);
  if (!position_ok(&call, x, most, start)) return &ir_poison;
  quern_tensor *weight = table(scope, most, x->dims[x->rank - 1], o);
  return nn_leave(&call, add_rows(x, weight, start));
}

quern_tensor *quern_nn_position_sinusoidal(quern_scope *scope, quern_tensor *x, int64_t most, quern_tensor *start) {
  NN_ENTER(call, "nn_position_sinusoidal", scope, x);
  if (!position_ok(&call, x, most, start)) return &ir_poison;
  quern_tensor *weight = quern_sinusoidal(call.ctx, x->dtype, most, x->dims[x->rank - 1], 10000);
  return nn_leave(&call, add_rows(x, weight, start));
}
