/* nn/rnn.c -- RNN, LSTM and GRU: cells, layers, both directions
** The products with x are one matrix product for all steps; the loop over time has those with h. Gates are in PyTorch's order.
** Hochreiter and Schmidhuber, "Long short-term memory", 1997; Cho et al., "Learning phrase representations using RNN
** encoder-decoder", 2014; Sak et al., "Long short-term memory recurrent neural network architectures", 2014 (projection).
** tests: tests/nn/test_layers.c
*/
#include "nn/nn.h"

#include <math.h>
#include <stdio.h>

enum { MOST_LAYERS = 1024 };

static const int gates[] = {[QUERN_RNN_TANH] = 1, [QUERN_RNN_RELU] = 1, [QUERN_RNN_LSTM] = 4, [QUERN_RNN_GRU] = 3};

/* The weights of one layer and direction; NULL where there are none. */
struct weights {
  quern_tensor *ih, *hh, *bias_ih, *bias_hh, *hr;
};

struct cell {
  quern_rnn_kind kind;
  int64_t hidden;
};

/* ---- one step ---------------------------------------------------------------------------------------------------- */

static quern_tensor *gate(const struct cell *cell, quern_tensor *all, int i) {
  return quern_slice(all, -1, i * cell->hidden, (i + 1) * cell->hidden, 1);
}

/* The next h, and c of LSTM, from the part g that x gives (B, gates x hidden). */
static quern_tensor *step_lstm(const struct cell *cell, quern_tensor *a, const struct weights *w, quern_tensor **c) {
  quern_tensor *i = quern_sigmoid(gate(cell, a, 0));
  quern_tensor *f = quern_sigmoid(gate(cell, a, 1));
  quern_tensor *n = quern_tanh(gate(cell, a, 2));
  quern_tensor *o = quern_sigmoid(gate(cell, a, 3));
  quern_tensor *kept = quern_mul(f, *c), *added = quern_mul(i, n);
  *c = quern_add(kept, added);
  quern_tensor *h = quern_mul(o, quern_tanh(*c));
  return w->hr != NULL ? quern_linear(h, w->hr, NULL) : h;
}

static quern_tensor *step_gru(const struct cell *cell, quern_tensor *g, quern_tensor *u, quern_tensor *h) {
  quern_tensor *parts[2][3]; /* of x and of h */
  for (int i = 0; i < 3; i++) {
    parts[0][i] = gate(cell, g, i);
    parts[1][i] = gate(cell, u, i);
  }
  quern_tensor *r = quern_sigmoid(quern_add(parts[0][0], parts[1][0]));
  quern_tensor *z = quern_sigmoid(quern_add(parts[0][1], parts[1][1]));
  quern_tensor *n = quern_tanh(quern_add(parts[0][2], quern_mul(r, parts[1][2])));
  quern_tensor *way = quern_sub(h, n);
  return quern_add(n, quern_mul(z, way));
}

static quern_tensor *step(const struct cell *cell, quern_tensor *g, const struct weights *w, quern_tensor *h,
                          quern_tensor **c) {
  quern_tensor *u = quern_linear(h, w->hh, w->bias_hh);
  if (cell->kind == QUERN_RNN_GRU) return step_gru(cell, g, u, h);
  quern_tensor *a = quern_add(g, u);
  if (cell->kind == QUERN_RNN_LSTM) return step_lstm(cell, a, w, c);
  return cell->kind == QUERN_RNN_RELU ? quern_relu(a) : quern_tanh(a);
}

/* The part of all gates that x gives. Only GRU keeps the biases apart, since it scales one of them. */
static quern_tensor *from_input(const struct cell *cell, quern_tensor *x, struct weights *w) {
  quern_tensor *bias = w->bias_ih;
  if (cell->kind != QUERN_RNN_GRU && bias != NULL) {
    bias = quern_add(bias, w->bias_hh);
    w->bias_hh = NULL;
  }
  return quern_linear(x, w->ih, bias);
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static quern_tensor *weight(quern_scope *scope, const char *kind, const char *suffix, int rank, int64_t rows,
                            int64_t columns, double bound) {
  char name[64];
  snprintf(name, sizeof name, "%s%s", kind, suffix);
  return quern_scope_parameter(scope, name, rank, (int64_t[]){rows, columns},
                               (quern_init){QUERN_INIT_UNIFORM, -bound, bound});
}

static struct weights make_weights(quern_scope *scope, const struct cell *cell, const char *suffix, int64_t in,
                                   int64_t projection, bool bias) {
  int64_t rows = gates[cell->kind] * cell->hidden, width = projection > 0 ? projection : cell->hidden;
  double bound = 1 / sqrt((double)cell->hidden);
  struct weights w = {0};
  w.ih = weight(scope, "weight_ih", suffix, 2, rows, in, bound);
  w.hh = weight(scope, "weight_hh", suffix, 2, rows, width, bound);
  if (bias) w.bias_ih = weight(scope, "bias_ih", suffix, 1, rows, 0, bound);
  if (bias) w.bias_hh = weight(scope, "bias_hh", suffix, 1, rows, 0, bound);
  if (projection > 0) w.hr = weight(scope, "weight_hr", suffix, 2, projection, cell->hidden, bound);
  return w;
}

/* ---- the loop over time ------------------------------------------------------------------------------------------ */

struct time_step {
  struct cell cell;
  bool bias, projects;
};

/* args: i, h, (c), g, weight_hh, (bias_hh), (weight_hr); results: h, (c), h. */
static void time_step(void *user, quern_tensor *const *args, quern_tensor **results) {
  const struct time_step *t = user;
  int n = 1;
  quern_tensor *h = args[n++], *c = t->cell.kind == QUERN_RNN_LSTM ? args[n++] : NULL, *g = args[n++];
  struct weights w = {0};
  w.hh = args[n++];
  if (t->bias) w.bias_hh = args[n++];
  if (t->projects) w.hr = args[n++];
  h = step(&t->cell, g, &w, h, &c);
  n = 0;
  results[n++] = h;
  if (t->cell.kind == QUERN_RNN_LSTM) results[n++] = c;
  results[n] = h;
}

/* All steps of one layer in one direction: x (T, B, in) -> (T, B, width); h and c become the last ones. */
static quern_tensor *run(quern_context *ctx, const struct cell *cell, quern_tensor *x, struct weights w, bool reverse,
                         quern_tensor **h, quern_tensor **c) {
  quern_tensor *g = from_input(cell, x, &w);
  struct time_step t = {*cell, w.bias_hh != NULL, w.hr != NULL};
  quern_tensor *operands[6], *results[3] = {&ir_poison, &ir_poison, &ir_poison};
  int n = 0, carries = cell->kind == QUERN_RNN_LSTM ? 2 : 1;
  operands[n++] = *h;
  if (carries == 2) operands[n++] = *c;
  operands[n++] = g;
  operands[n++] = w.hh;
  if (t.bias) operands[n++] = w.bias_hh;
  if (t.projects) operands[n++] = w.hr;
  quern_loop_options options = {.size = sizeof options,
                                .trip = quern_tensor_dim(x, 0),
                                .reverse = reverse,
                                .n_carries = carries,
                                .n_scanned = 1,
                                .n_captures = n - carries - 1,
                                .n_stacked = 1};
  if (quern_loop(ctx, &options, operands, time_step, &t, results) != QUERN_STATUS_OK) ir_fail_last(ctx);
  *h = results[0];
  if (carries == 2) *c = results[1];
  return results[carries];
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool rnn_ok(const struct nn_call *call, const quern_tensor *x, int rank, const char *shape, int64_t hidden,
                   quern_rnn_kind kind, const quern_nn_rnn_options *o) {
  if (!nn_operand(call, "x", x, rank, shape) || !nn_size(call, "hidden", hidden) ||
      !nn_rate(call, "dropout", o->dropout))
    return false;
  if (x->rank != rank) return nn_wrong(call, QUERN_STATUS_SHAPE, "x is %s, must be %s", TENSOR_TYPE(x), shape);
  if ((unsigned)kind > QUERN_RNN_GRU || hidden > INT64_MAX / 4)
    return nn_wrong(call, QUERN_STATUS_INVALID, "kind %d, hidden %lld; kind must be one of quern_rnn_kind", (int)kind,
                    (long long)hidden);
  if (o->layers < 0 || o->projection < 0 || (o->projection > 0 && kind != QUERN_RNN_LSTM) || o->projection >= hidden)
    return nn_wrong(call, QUERN_STATUS_INVALID,
                    "%d layers, projection %lld of hidden %lld; only LSTM projects, to less than hidden", o->layers,
                    (long long)o->projection, (long long)hidden);
  return true;
}

/* A state before the first step: zeros when it is NULL; the poison with the error recorded unless it has that shape. */
static quern_tensor *first(const struct nn_call *call, const char *name, quern_tensor *given, int rank,
                           const int64_t *dims) {
  quern_dtype dtype = call->scope->model->dtype;
  if (given == NULL) return quern_zeros(call->ctx, dtype, rank, dims);
  if (ir_is_poison(given)) return &ir_poison;
  bool good = given->node->ctx == call->ctx && given->dtype == dtype && given->rank == rank;
  for (int k = 0; good && k < rank; k++) good = given->dims[k] == dims[k];
  if (good) return given;
  return nn_fail(call, QUERN_STATUS_SHAPE, "state.%s is %s, must be %s%s of the model's context", name,
                 TENSOR_TYPE(given), base_dtypes[dtype].name, TENSOR_DIMS(rank, dims));
}

/* What a state was; it is the poison until the layer succeeds. A caller who has none gets one. */
static quern_rnn_state take(quern_rnn_state **state, quern_rnn_state *none) {
  *none = (quern_rnn_state){NULL, NULL};
  if (*state == NULL) *state = none;
  quern_rnn_state before = **state;
  **state = (quern_rnn_state){&ir_poison, &ir_poison};
  return before;
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

quern_tensor *quern_nn_rnn_cell(quern_scope *scope, quern_tensor *x, int64_t hidden, quern_rnn_kind kind,
                                quern_rnn_state *state, const quern_nn_rnn_options *options) {
  quern_rnn_state none, before = take(&state, &none);
  NN_ENTER(call, "nn_rnn_cell", scope, x);
  NN_OPTIONS(call, quern_nn_rnn_options, o, options);
  if (!rnn_ok(&call, x, 2, "(B, in)", hidden, kind, o)) return &ir_poison;
  NN_CHECK(call, o->layers <= 1 && !o->bidirectional && o->projection == 0, INVALID,
           "a cell is one layer in one direction, and does not project HINT: quern_nn_rnn");
  const int64_t dims[] = {x->dims[0], hidden};
  struct cell cell = {kind, hidden};
  quern_tensor *h = first(&call, "h", before.h, 2, dims), *c = before.c;
  if (kind == QUERN_RNN_LSTM) c = first(&call, "c", before.c, 2, dims);
  struct weights w = make_weights(scope, &cell, "", x->dims[1], 0, !o->no_bias);
  quern_tensor *g = from_input(&cell, x, &w);
  quern_tensor *y = nn_leave(&call, step(&cell, g, &w, h, &c));
  if (!ir_is_poison(y)) *state = (quern_rnn_state){y, c};
  return y;
}

quern_tensor *quern_nn_rnn(quern_scope *scope, quern_tensor *x, int64_t hidden, quern_rnn_kind kind,
                           quern_rnn_state *state, const quern_nn_rnn_options *options) {
  quern_rnn_state none, before = take(&state, &none);
  NN_ENTER(call, "nn_rnn", scope, x);
  NN_OPTIONS(call, quern_nn_rnn_options, o, options);
  const char *shape = o->batch_first ? "(B, T, in)" : "(T, B, in)";
  if (!rnn_ok(&call, x, 3, shape, hidden, kind, o)) return &ir_poison;
  int layers = o->layers > 0 ? o->layers : 1, directions = o->bidirectional ? 2 : 1;
  NN_CHECK(call, layers <= MOST_LAYERS, INVALID, "%d layers, at most %d", layers, MOST_LAYERS);
  int64_t B = x->dims[o->batch_first ? 0 : 1], width = o->projection > 0 ? o->projection : hidden;
  const int64_t h_dims[] = {layers * directions, B, width}, c_dims[] = {layers * directions, B, hidden};
  bool lstm = kind == QUERN_RNN_LSTM;
  quern_tensor *h0 = first(&call, "h", before.h, 3, h_dims);
  quern_tensor *c0 = lstm ? first(&call, "c", before.c, 3, c_dims) : NULL;
  if (ir_is_poison(h0) || (lstm && ir_is_poison(c0))) return &ir_poison;
  size_t n = (size_t)layers * (size_t)directions, bytes = 2 * n * sizeof(quern_tensor *);
  quern_tensor **last = base_alloc(&call.ctx->heap, bytes); /* h, then c, of all layers */
  if (last == NULL) return ir_fail_last(call.ctx);
  struct cell cell = {kind, hidden};
  quern_tensor *y = o->batch_first ? quern_transpose(x, 0, 1) : x;
  for (int layer = 0; layer < layers && !ir_is_poison(y); layer++) {
    quern_tensor *sides[2] = {NULL, NULL};
    if (layer > 0 && o->dropout > 0) y = quern_nn_dropout(scope, y, o->dropout);
    for (int d = 0; d < directions; d++) {
      char suffix[32];
      int at = layer * directions + d;
      snprintf(suffix, sizeof suffix, "_l%d%s", layer, d == 1 ? "_reverse" : "");
      struct weights w = make_weights(scope, &cell, suffix, quern_tensor_dim(y, 2), o->projection, !o->no_bias);
      quern_tensor *h = quern_select(h0, 0, at), *c = lstm ? quern_select(c0, 0, at) : NULL;
      sides[d] = run(call.ctx, &cell, y, w, d == 1, &h, &c);
      last[at] = h;
      last[n + (size_t)at] = c;
    }
    y = directions == 2 ? quern_concat(2, sides, 2) : sides[0];
  }
  bool good = !ir_is_poison(y);
  if (good) state->h = quern_stack((int)n, last, 0);
  if (good) state->c = lstm ? quern_stack((int)n, last + n, 0) : before.c;
  base_free(&call.ctx->heap, last, bytes);
  return nn_leave(&call, good && o->batch_first ? quern_transpose(y, 0, 1) : y);
}
