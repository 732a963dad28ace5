/* tests/nn/test_layers.c -- every layer against PyTorch: names, shapes, results, gradients, running statistics
** The numbers are those of tests/nn/oracle.txt. Each case is evaluated in f64, then compiled for the interpreter of kernels, some
** also for the processor; and it is evaluated in f32 and bf16, as far as these can agree.
*/
#include "nn/oracle.h"

/* ---- what a case is built on ------------------------------------------------------------------------------------- */

enum { MOST = 64 };

/* The tensors of a case: inputs by name, and outputs. */
struct io {
  struct oracle_case *of;
  quern_scope *scope;
  int n_in, n_out;
  struct {
    const char *name;
    quern_tensor *tensor;
  } in[8], out[MOST];
};

static quern_tensor *in(struct io *io, const char *name) {
  for (int i = 0; i < io->n_in; i++) {
    if (strcmp(io->in[i].name, name) == 0) return io->in[i].tensor;
  }
  fail();
  return NULL;
}

static void out(struct io *io, const char *name, quern_tensor *tensor) {
  assert_true(io->n_out < MOST);
  io->out[io->n_out].name = name;
  io->out[io->n_out++].tensor = tensor;
}

#define X in(io, "x")
#define S io->scope
#define OPTIONS(type, ...) (&(type){.size = sizeof(type), __VA_ARGS__})
#define LINEAR(...) OPTIONS(quern_nn_linear_options, __VA_ARGS__)
#define MLP(...) OPTIONS(quern_nn_mlp_options, __VA_ARGS__)
#define CONV(...) OPTIONS(quern_nn_conv_options, __VA_ARGS__)
#define NORM(...) OPTIONS(quern_nn_norm_options, __VA_ARGS__)
#define INSTANCE_NORM(...) OPTIONS(quern_nn_instance_norm_options, __VA_ARGS__)
#define RNN(...) OPTIONS(quern_nn_rnn_options, __VA_ARGS__)
#define ATTENTION(...) OPTIONS(quern_nn_attention_options, __VA_ARGS__)
#define BLOCK(...) OPTIONS(quern_nn_transformer_options, __VA_ARGS__)
#define I64(value) quern_scalar_int(ctx, QUERN_DTYPE_I64, (value))

/* ---- the cases --------------------------------------------------------------------------------------------------- */

/* All of them, under their names. */
static quern_tensor *activations(struct io *io) {
  quern_tensor *x = quern_mul_scalar(X, 3);
  for (int i = 0; i < io->of->n; i++) {
    const struct oracle_line *line = &io->of->lines[i];
    if (strcmp(line->kind, "out") == 0) out(io, line->name, quern_nn_activation(x, line->name));
  }
  assert_int_equal(io->n_out, nn_activation_count);
  return NULL;
}

static quern_tensor *bilinear(struct io *io) { return quern_nn_bilinear(S, in(io, "a"), in(io, "b"), 4, NULL); }
static quern_tensor *embedding(struct io *io) { return quern_nn_embedding(S, in(io, "ids"), 5, 3, NULL); }
static quern_tensor *tied(struct io *io) {
  quern_tensor *x = quern_nn_embedding(S, in(io, "ids"), 5, 3, NULL);
  return quern_nn_unembed(S, quern_tanh(x), 5, NULL);
}

/* A recurrent layer, its outputs and last states. from: the first states are inputs. */
static quern_tensor *recurrent(struct io *io, quern_rnn_kind kind, int64_t hidden, bool from,
                               const quern_nn_rnn_options *options) {
  quern_rnn_state state = {from ? in(io, "h") : NULL, from && kind == QUERN_RNN_LSTM ? in(io, "c") : NULL};
  out(io, "y", quern_nn_rnn(S, X, hidden, kind, &state, options));
  out(io, "h", state.h);
  if (kind == QUERN_RNN_LSTM) out(io, "c", state.c);
  return NULL;
}

static quern_tensor *cell(struct io *io, quern_rnn_kind kind, const quern_nn_rnn_options *options) {
  quern_rnn_state state = {in(io, "h"), kind == QUERN_RNN_LSTM ? in(io, "c") : NULL};
  out(io, "y", quern_nn_rnn_cell(S, X, 2, kind, &state, options));
  if (kind == QUERN_RNN_LSTM) out(io, "c", state.c);
  return NULL;
}

static quern_tensor *decoder(struct io *io, bool norm_first) {
  return quern_nn_transformer_decoder(S, X, in(io, "memory"), 2, BLOCK(.hidden = 6, .norm_first = norm_first));
}

static quern_tensor *own_tanh(quern_scope *scope, quern_tensor *x, void *user) {
  assert_string_equal(quern_scope_path(scope), user);
  return quern_tanh(x);
}

static quern_tensor *sequential(struct io *io) {
  static char path[] = "6";
  const quern_pool_options pool = {.size = sizeof pool, .window = {2, 2}};
  const quern_nn_conv_options conv = {.size = sizeof conv, .padding = {1, 1}};
  const quern_nn_step steps[] = {{.kind = "conv", .out = 2, .n = 2, .window = {3, 3}, .options = &conv},
                                 {.kind = "batch_norm"},
                                 {.kind = "relu"},
                                 {.kind = "avg_pool", .options = &pool},
                                 {.kind = "flatten"},
                                 {.kind = "linear", .out = 3},
                                 {.layer = own_tanh, .user = path}};
  return quern_nn_sequential(S, X, (int)BASE_COUNT(steps), steps);
}

#define EACH(CASE)                                                                                                     \
  CASE(linear, quern_nn_linear(S, X, 4, NULL))                                                                         \
  CASE(linear_gelu, quern_nn_linear(S, X, 4, LINEAR(.no_bias = true, .activation = "gelu")))                           \
  CASE(mlp_relu, quern_nn_mlp(S, X, 6, NULL))                                                                          \
  CASE(mlp_gelu, quern_nn_mlp(S, X, 6, MLP(.activation = "gelu", .out = 4)))                                           \
  CASE(mlp_swiglu, quern_nn_mlp(S, X, 6, MLP(.activation = "swiglu")))                                                 \
  CASE(mlp_geglu, quern_nn_mlp(S, X, 6, MLP(.activation = "geglu")))                                                   \
  CASE(mlp_reglu, quern_nn_mlp(S, X, 6, MLP(.activation = "reglu")))                                                   \
  CASE(position, quern_nn_position(S, X, 7, NULL, NULL))                                                               \
  CASE(position_at, quern_nn_position(S, X, 7, I64(2), NULL))                                                          \
  CASE(sinusoidal, quern_nn_position_sinusoidal(S, X, 7, I64(2)))                                                      \
  CASE(conv1d,                                                                                                         \
       quern_nn_conv(S, X, 6, QUERN_LIST(3), CONV(.stride = {2}, .padding = {1}, .dilation = {2}, .groups = 2)))       \
  CASE(conv2d, quern_nn_conv(S, X, 3, QUERN_LIST(3, 2), CONV(.stride = {2, 1}, .padding = {1, 0})))                    \
  CASE(conv2d_same, quern_nn_conv(S, X, 2, QUERN_LIST(3, 2), CONV(.same = true, .no_bias = true)))                     \
  CASE(conv2d_reflect, quern_nn_conv(S, X, 2, QUERN_LIST(3, 3), CONV(.padding = {2, 1}, .padding_mode = "reflect")))   \
  CASE(conv2d_replicate,                                                                                               \
       quern_nn_conv(S, X, 2, QUERN_LIST(3, 3), CONV(.padding = {2, 1}, .padding_mode = "replicate")))                 \
  CASE(conv2d_circular, quern_nn_conv(S, X, 2, QUERN_LIST(3, 3), CONV(.padding = {2, 1}, .padding_mode = "circular"))) \
  CASE(conv3d, quern_nn_conv(S, X, 2, QUERN_LIST(2, 1, 2), NULL))                                                      \
  CASE(conv_transpose1d,                                                                                               \
       quern_nn_conv_transpose(S, X, 6, QUERN_LIST(3),                                                                 \
                               CONV(.stride = {2}, .padding = {1}, .output_padding = {1}, .groups = 2)))               \
  CASE(conv_transpose2d, quern_nn_conv_transpose(S, X, 3, QUERN_LIST(3, 2),                                            \
                                                 CONV(.stride = {2, 1}, .dilation = {1, 2}, .no_bias = true)))         \
  CASE(conv_transpose3d,                                                                                               \
       quern_nn_conv_transpose(S, X, 1, QUERN_LIST(2, 2, 2), CONV(.stride = {1, 2, 1}, .padding = {1, 0, 0})))         \
  CASE(layer_norm, quern_nn_layer_norm(S, X, NULL))                                                                    \
  CASE(layer_norm_two, quern_nn_layer_norm(S, X, NORM(.axes = 2, .eps = 0.1)))                                         \
  CASE(layer_norm_plain, quern_nn_layer_norm(S, X, NORM(.no_affine = true)))                                           \
  CASE(rms_norm, quern_nn_rms_norm(S, X, NULL))                                                                        \
  CASE(batch_norm1d, quern_nn_batch_norm(S, X, NULL))                                                                  \
  CASE(batch_norm1d_length, quern_nn_batch_norm(S, X, NORM(.momentum = 0.3, .eps = 1e-3)))                             \
  CASE(batch_norm2d, quern_nn_batch_norm(S, X, NULL))                                                                  \
  CASE(batch_norm2d_eval, quern_nn_batch_norm(S, X, NULL))                                                             \
  CASE(batch_norm3d, quern_nn_batch_norm(S, X, NORM(.no_affine = true)))                                               \
  CASE(batch_norm_average, quern_nn_batch_norm(S, X, NORM(.momentum = -1)))                                            \
  CASE(batch_norm_untracked, quern_nn_batch_norm(S, X, NORM(.no_tracking = true)))                                     \
  CASE(batch_norm_twice, quern_nn_batch_norm(S, quern_tanh(quern_nn_batch_norm(S, X, NULL)), NULL))                    \
  CASE(group_norm, quern_nn_group_norm(S, X, 2, NULL))                                                                 \
  CASE(instance_norm, quern_nn_instance_norm(S, X, NULL))                                                              \
  CASE(instance_norm_tracked, quern_nn_instance_norm(S, X, INSTANCE_NORM(.affine = true, .tracking = true)))           \
  CASE(instance_norm_eval, quern_nn_instance_norm(S, X, INSTANCE_NORM(.affine = true, .tracking = true)))              \
  CASE(rnn_tanh, recurrent(io, QUERN_RNN_TANH, 2, false, RNN(.layers = 2)))                                            \
  CASE(rnn_relu, recurrent(io, QUERN_RNN_RELU, 2, false, RNN(.bidirectional = true, .no_bias = true)))                 \
  CASE(lstm, recurrent(io, QUERN_RNN_LSTM, 2, true, NULL))                                                             \
  CASE(lstm_deep,                                                                                                      \
       recurrent(io, QUERN_RNN_LSTM, 2, false, RNN(.layers = 2, .bidirectional = true, .batch_first = true)))          \
  CASE(lstm_projection, recurrent(io, QUERN_RNN_LSTM, 3, false, RNN(.layers = 2, .projection = 2)))                    \
  CASE(gru, recurrent(io, QUERN_RNN_GRU, 2, true, RNN(.layers = 2, .batch_first = true)))                              \
  CASE(gru_both, recurrent(io, QUERN_RNN_GRU, 2, false, RNN(.bidirectional = true, .no_bias = true)))                  \
  CASE(rnn_cell, cell(io, QUERN_RNN_TANH, NULL))                                                                       \
  CASE(lstm_cell, cell(io, QUERN_RNN_LSTM, NULL))                                                                      \
  CASE(gru_cell, cell(io, QUERN_RNN_GRU, RNN(.no_bias = true, .layers = 1)))                                           \
  CASE(attention, quern_nn_attention(S, X, 2, NULL))                                                                   \
  CASE(attention_causal, quern_nn_attention(S, X, 2, ATTENTION(.causal = true, .no_bias = true)))                      \
  CASE(attention_masked, quern_nn_attention(S, X, 2, ATTENTION(.mask = in(io, "mask"))))                               \
  CASE(attention_memory, quern_nn_attention(S, X, 2, ATTENTION(.memory = in(io, "memory"))))                           \
  CASE(attention_widths, quern_nn_attention(S, X, 2, ATTENTION(.memory = in(io, "memory"))))                           \
  CASE(attention_grouped, quern_nn_attention(S, X, 4, ATTENTION(.kv_heads = 2, .causal = true, .rope = 10000)))        \
  CASE(attention_single,                                                                                               \
       quern_nn_attention(S, X, 4, ATTENTION(.kv_heads = 1, .causal = true, .rope = 10000, .rope_interleaved = true))) \
  CASE(encoder, quern_nn_transformer_encoder(S, X, 2, BLOCK(.hidden = 6)))                                             \
  CASE(encoder_first, quern_nn_transformer_encoder(S, X, 2,                                                            \
                                                   BLOCK(.hidden = 6, .norm_first = true, .activation = "gelu",        \
                                                         .eps = 1e-3, .attention = ATTENTION(.causal = true))))        \
  CASE(decoder_first, decoder(io, true))

#define FUNCTION(name, ...)                                                                                            \
  static quern_tensor *make_##name(struct io *io) { return __VA_ARGS__; }
EACH(FUNCTION)
static quern_tensor *make_decoder(struct io *io) { return decoder(io, false); }

static const struct layer {
  const char *name;
  quern_tensor *(*make)(struct io *io);
} layers[] = {
#define ROW(name, ...) {#name, make_##name},
    EACH(ROW){"decoder", make_decoder},
    {"activations", activations},
    {"bilinear", bilinear},
    {"embedding", embedding},
    {"tied", tied},
    {"sequential", sequential},
};

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static quern_dtype dtype; /* of the model; PyTorch's numbers are f64 */

/* What the dtype of a line is in the model. */
static quern_dtype dtype_of(const struct oracle_line *line) {
  return line->dtype == QUERN_DTYPE_F64 ? dtype : line->dtype;
}

/* All that a case gives: outputs, gradients, changed buffers; and the line of each. */
struct results {
  int n;
  quern_tensor *at[MOST];
  const struct oracle_line *line[MOST];
  void *data[MOST];
};

static void want(struct results *r, struct oracle_case *c, const char *kind, const char *name, quern_tensor *t) {
  const struct oracle_line *line = oracle_line(c, kind, name);
  if (line == NULL) print_error("%s: there is no %s %s\n", c->name, kind, name);
  assert_non_null(line);
  EXPECT_OK(quern_context_check(ctx));
  assert_int_equal(t->dtype, dtype_of(line));
  assert_int_equal(t->rank, line->rank);
  for (int k = 0; k < t->rank; k++) assert_int_equal(t->dims[k], line->dims[k]);
  assert_true(r->n < MOST);
  r->line[r->n] = line;
  r->at[r->n++] = t;
}

/* Relative to the largest element of each tensor. */
static void expect_near(const char *where, const struct oracle_case *c, const struct results *r, double within) {
  for (int i = 0; i < r->n; i++) {
    const struct oracle_line *line = r->line[i];
    double largest = 1e-2;
    for (size_t k = 0; k < line->n && line->dtype == QUERN_DTYPE_F64; k++)
      largest = fmax(largest, fabs(((double *)line->data)[k]));
    for (size_t k = 0; k < line->n; k++) {
      bool floats = line->dtype == QUERN_DTYPE_F64;
      double got = floats ? ((double *)r->data[i])[k] : (double)((int64_t *)r->data[i])[k];
      double expected = floats ? ((double *)line->data)[k] : (double)((int64_t *)line->data)[k];
      if (fabs(got - expected) <= (floats ? within * largest : 0)) continue;
      print_error("%s by %s: %s %s, element %zu is %.15g, expected %.15g\n", c->name, where, line->kind, line->name, k,
                  got, expected);
      fail();
    }
  }
}

/* The sum that make_nn.py differentiates. */
static quern_tensor *loss_of(const struct io *io) {
  quern_tensor *loss = quern_scalar(ctx, dtype, 0);
  for (int j = 0; j < io->n_out; j++) {
    double factors[256];
    quern_tensor *y = io->out[j].tensor;
    int64_t n = quern_tensor_count(y);
    assert_true(n <= 256);
    for (int64_t i = 0; i < n; i++) factors[i] = (double)((7 * i + 3 * j) % 11 - 5) / 4;
    quern_tensor *weights = quern_cast(quern_constant(ctx, QUERN_DTYPE_F64, y->rank, y->dims, factors), dtype);
    loss = quern_add(loss, quern_sum(quern_mul(y, weights), QUERN_ALL, false));
  }
  return loss;
}

/* Names, kinds and shapes of the model's states are those of the case. */
static void expect_names(const quern_model *of, struct oracle_case *c) {
  size_t n = 0;
  for (int i = 0; i < c->n; i++) {
    const struct oracle_line *line = &c->lines[i];
    bool trained = strcmp(line->kind, "state") == 0;
    if (!trained && strcmp(line->kind, "buffer") != 0) continue;
    n++;
    const quern_parameter *p = quern_model_find(of, line->name);
    if (p == NULL) print_error("%s: the model has no %s\n", c->name, line->name);
    assert_non_null(p);
    assert_int_equal(p->trained, trained);
    assert_int_equal(p->tensor->dtype, dtype_of(line));
    assert_int_equal(p->tensor->rank, line->rank);
    for (int k = 0; k < line->rank; k++) assert_int_equal(p->tensor->dims[k], line->dims[k]);
  }
  assert_int_equal(quern_model_parameter_count(of), n);
}

/* Compiles the same, and compares. */
static void compile_and_compare(const char *device, struct oracle_case *c, const struct results *r) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = device;
  options.threads = 2;
  quern_program *program = NULL;
  quern_instance *instance = NULL;
  EXPECT_OK(quern_program_compile(&program, ctx, (size_t)r->n, r->at, &options));
  EXPECT_OK(quern_instance_new(&instance, program));
  EXPECT_OK(quern_instance_zero_states(instance)); /* caches */
  const void *inputs[8] = {0};
  quern_slot slot = QUERN_INIT(quern_slot);
  for (size_t i = 0; i < quern_program_input_count(program); i++) {
    EXPECT_OK(quern_program_input(program, i, &slot));
    inputs[i] = oracle_line(c, "in", slot.name)->data;
  }
  for (size_t i = 0; i < quern_program_state_count(program); i++) {
    EXPECT_OK(quern_program_state(program, i, &slot));
    const struct oracle_line *line = oracle_line(c, "state", slot.name);
    if (line == NULL) line = oracle_line(c, "buffer", slot.name);
    EXPECT_OK(quern_instance_set_state(instance, i, line->data));
  }
  EXPECT_OK(quern_instance_run(instance, inputs, r->data));
  expect_near(device, c, r, 1e-9);
  quern_instance_free(instance);
  quern_program_free(program);
}

static quern_model *model;

static int layer_teardown(void **state) {
  quern_model_free(model);
  model = NULL;
  return test_teardown(state);
}

/* Whether a step changes the buffer of that name. */
static bool is_changed(const char *name) {
  for (size_t i = 0; i < quern_model_change_count(model); i++) {
    if (strcmp(quern_tensor_name(quern_model_change(model, i).state), name) == 0) return true;
  }
  return false;
}

/* The elements of a line in the model's dtype: what they are fed as; freed by free_feeds. */
static quern_feed feed_of(quern_tensor *leaf, const struct oracle_line *line) {
  void *data = calloc(line->n, 8);
  assert_non_null(data);
  EXPECT_OK(quern_dtype_convert(data, dtype_of(line), line->data, line->dtype, line->n));
  return (quern_feed){leaf, data};
}

static void free_feeds(size_t n, quern_feed *feeds) {
  for (size_t i = 0; i < n; i++) free((void *)(uintptr_t)feeds[i].data);
}

/* Evaluates everything, as f64. */
static void evaluate(struct results *r, size_t n_feeds, const quern_feed *feeds) {
  quern_tensor *wide[MOST];
  for (int i = 0; i < r->n; i++) {
    wide[i] = dtype == QUERN_DTYPE_F64 ? r->at[i] : quern_cast(r->at[i], r->line[i]->dtype);
    assert_non_null(r->data[i] = calloc(r->line[i]->n, 8));
  }
  EXPECT_OK(quern_eval_reference(ctx, (size_t)r->n, wide, r->data, n_feeds, feeds));
}

/* Buffers that nothing changes are as PyTorch leaves them. */
static void expect_unchanged(struct oracle_case *c) {
  assert_true(c->train || quern_model_change_count(model) == 0);
  for (int i = 0; i < c->n; i++) {
    const struct oracle_line *line = &c->lines[i];
    if (strcmp(line->kind, "after") != 0 || is_changed(line->name)) continue;
    assert_memory_equal(line->data, oracle_line(c, "buffer", line->name)->data, 8 * line->n);
  }
}

/* The inputs of a case as leaves. */
static size_t make_inputs(struct io *io, quern_feed *feeds) {
  for (int i = 0; i < io->of->n; i++) {
    const struct oracle_line *line = &io->of->lines[i];
    if (strcmp(line->kind, "in") != 0) continue;
    quern_tensor *t = quern_input(ctx, line->name, dtype_of(line), line->rank, line->dims);
    io->in[io->n_in].name = line->name;
    feeds[io->n_in] = feed_of(t, line);
    io->in[io->n_in++].tensor = t;
  }
  return (size_t)io->n_in;
}

/* Adds the gradients of inputs and parameters, and feeds of all states. */
static void differentiate(struct results *r, const struct io *io, size_t *n_feeds, quern_feed *feeds) {
  quern_tensor *of[MOST], *d[MOST];
  const char *kinds[MOST], *names[MOST];
  int n = 0;
  for (int i = 0; i < io->n_in; i++) {
    if (io->in[i].tensor->dtype != dtype) continue;
    kinds[n] = "din";
    names[n] = io->in[i].name;
    of[n++] = io->in[i].tensor;
  }
  for (size_t i = 0; i < quern_model_parameter_count(model); i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    EXPECT_OK(quern_model_parameter(model, i, &p));
    feeds[(*n_feeds)++] = feed_of(p.tensor, oracle_line(io->of, p.trained ? "state" : "buffer", p.name));
    if (!p.trained) continue;
    kinds[n] = "dstate";
    names[n] = p.name;
    of[n++] = p.tensor;
  }
  EXPECT_OK(quern_grad(loss_of(io), (size_t)n, of, d));
  for (int i = 0; i < n; i++) want(r, io->of, kinds[i], names[i], d[i]);
}

static void run_in(quern_dtype of_model, const struct layer *layer) {
  struct oracle_case *c = oracle_find(layer->name);
  assert_non_null(c);
  dtype = of_model;
  quern_model_options options = {.size = sizeof options, .dtype = dtype, .inference = !c->train};
  EXPECT_OK(quern_model_new(&model, ctx, &options));
  struct io io = {.of = c, .scope = quern_model_scope(model)};
  struct results r = {0};
  quern_feed feeds[MOST];
  size_t n_feeds = make_inputs(&io, feeds);
  quern_tensor *y = layer->make(&io);
  if (y != NULL) out(&io, "y", y);
  EXPECT_OK(quern_context_check(ctx));
  expect_names(model, c);
  for (int i = 0; i < io.n_out; i++) want(&r, c, "out", io.out[i].name, io.out[i].tensor);
  differentiate(&r, &io, &n_feeds, feeds);
  for (size_t i = 0; i < quern_model_change_count(model); i++) {
    quern_update change = quern_model_change(model, i);
    want(&r, c, "after", quern_tensor_name(change.state), change.value);
  }
  expect_unchanged(c);
  evaluate(&r, n_feeds, feeds);
  if (dtype == QUERN_DTYPE_F64) {
    expect_near("evaluation", c, &r, 1e-9);
    compile_and_compare("interp", c, &r);
    bool also = strcmp(c->name, "lstm_deep") == 0 || strcmp(c->name, "encoder_first") == 0;
    if (also) compile_and_compare("cpu", c, &r);
  } else {
    expect_near(quern_dtype_name(dtype), c, &r, dtype == QUERN_DTYPE_F32 ? 2e-5 : 0.3);
  }
  free_feeds(n_feeds, feeds);
  for (int i = 0; i < r.n; i++) free(r.data[i]);
}

static void run_f64(void **state) { run_in(QUERN_DTYPE_F64, *state); }
static void run_f32(void **state) { run_in(QUERN_DTYPE_F32, *state); }
static void run_bf16(void **state) { run_in(QUERN_DTYPE_BF16, *state); }

/* ---- initial values ---------------------------------------------------------------------------------------------- */

/* The layers whose parameters the file has figures of, each in the scope of its name. */
static void build_fresh(quern_scope *root) {
#define ROOM(name) quern_scope_in(root, name)
#define F32(...) quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(__VA_ARGS__))
  quern_nn_linear(ROOM("linear"), F32(1, 200), 150, NULL);
  quern_nn_bilinear(ROOM("bilinear"), F32(1, 20), F32(1, 30), 40, NULL);
  quern_nn_conv(ROOM("conv"), F32(1, 16, 4, 4), 64, QUERN_LIST(3, 3), CONV(.groups = 2));
  quern_nn_conv_transpose(ROOM("conv_transpose"), F32(1, 16, 4, 4), 64, QUERN_LIST(3, 3), CONV(.groups = 2));
  quern_nn_embedding(ROOM("embedding"), quern_zeros(ctx, QUERN_DTYPE_I32, QUERN_LIST(1)), 200, 100, NULL);
  quern_nn_rnn(ROOM("lstm"), F32(1, 1, 40), 50, QUERN_RNN_LSTM, NULL, RNN(.layers = 2));
  quern_nn_rnn_cell(ROOM("gru_cell"), F32(1, 40), 50, QUERN_RNN_GRU, NULL, NULL);
  quern_nn_attention(ROOM("attention"), F32(1, 2, 48), 4, NULL);
  quern_nn_attention(ROOM("attention_widths"), F32(1, 2, 48), 4, ATTENTION(.memory = F32(1, 2, 40)));
  quern_nn_layer_norm(ROOM("layer_norm"), F32(1, 20), NULL);
  quern_nn_batch_norm(ROOM("batch_norm"), F32(2, 20), NULL);
  quern_nn_transformer_encoder(ROOM("encoder"), F32(1, 2, 48), 4, BLOCK(.hidden = 96));
#undef F32
#undef ROOM
}

/* As much as chance allows: six deviations of the estimates. */
static void expect_alike(const struct oracle_fresh *f, const float *x, bool uniform) {
  size_t n = f->shape.n;
  double sum = 0, square = 0, largest = 0, chance = 6 * sqrt(2 / (double)n);
  for (size_t i = 0; i < n; i++) {
    sum += (double)x[i];
    square += (double)x[i] * (double)x[i];
    largest = fmax(largest, fabs((double)x[i]));
  }
  double mean = sum / (double)n, deviation = sqrt(fmax(square / (double)n - mean * mean, 0));
  bool alike = fabs(mean - f->mean) <= chance * f->deviation + 1e-6 &&
               fabs(deviation - f->deviation) <= chance * f->deviation + 1e-6 &&
               (!uniform || fabs(largest - f->largest) <= 20 / (double)n * f->largest);
  if (alike) return;
  print_error("%s %s: mean %g, deviation %g, largest %g; expected %g, %g, %g\n", f->layer, f->name, mean, deviation,
              largest, f->mean, f->deviation, f->largest);
  fail();
}

/* New layers begin with PyTorch's distributions. */
static void fresh(void **state) {
  (void)state;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  build_fresh(quern_model_scope(model));
  EXPECT_OK(quern_context_check(ctx));
  size_t seen = 0;
  for (size_t i = 0; i < quern_model_parameter_count(model); i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    EXPECT_OK(quern_model_parameter(model, i, &p));
    for (int k = 0; k < oracle.n_fresh; k++) {
      const struct oracle_fresh *f = &oracle.fresh[k];
      size_t n = strlen(f->layer);
      if (strncmp(p.name, f->layer, n) != 0 || p.name[n] != '.' || strcmp(p.name + n + 1, f->name) != 0) continue;
      seen++;
      assert_int_equal(p.tensor->rank, f->shape.rank);
      for (int axis = 0; axis < p.tensor->rank; axis++) assert_int_equal(p.tensor->dims[axis], f->shape.dims[axis]);
      float *x = calloc(f->shape.n, sizeof *x);
      assert_non_null(x);
      quern_tensor *value = quern_model_initial(model, i);
      EXPECT_OK(quern_eval_reference(ctx, 1, &value, (void *[]){x}, 0, NULL));
      expect_alike(f, x, p.init.kind != QUERN_INIT_NORMAL);
      free(x);
    }
  }
  assert_true(seen > 30);
  assert_int_equal(seen, oracle.n_fresh);
}

/* Each case of the file is a test here. */
static void all_are_here(void **state) {
  (void)state;
  assert_int_equal(oracle.n, BASE_COUNT(layers));
  for (int i = 0; i < oracle.n; i++) {
    size_t k = 0;
    while (k < BASE_COUNT(layers) && strcmp(layers[k].name, oracle.cases[i].name) != 0) k++;
    if (k == BASE_COUNT(layers)) print_error("%s is not tested\n", oracle.cases[i].name);
    assert_true(k < BASE_COUNT(layers));
  }
}

int main(void) {
  enum { N = BASE_COUNT(layers) };
  static const CMUnitTestFunction runs[] = {run_f64, run_f32, run_bf16};
  static struct CMUnitTest tests[3 * N + 2];
  if (!oracle_read("tests/nn/oracle.txt")) {
    fprintf(stderr, "tests/nn/oracle.txt cannot be read: run this in the root of the repository\n");
    return 1;
  }
  for (int i = 0; i < 3 * N; i++) {
    const struct layer *layer = &layers[i % N];
    tests[i] = (struct CMUnitTest){layer->name, runs[i / N], test_setup, layer_teardown, (void *)(uintptr_t)layer};
  }
  tests[3 * N] = (struct CMUnitTest)TEST(all_are_here);
  tests[3 * N + 1] = (struct CMUnitTest){"fresh", fresh, test_setup, layer_teardown, NULL};
  int failed = cmocka_run_group_tests_name("layers", tests, NULL, NULL);
  oracle_free();
  return failed;
}
