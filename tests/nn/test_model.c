/* tests/nn/test_model.c -- models and scopes: names, sharing, conflicts, buffers and their changes, random streams, memory */
#include "nn/nn.h"
#include "quern/quern.h"
#include "unit.h"

static quern_model *model;
static quern_scope *root;

static int model_setup(void **state) {
  if (test_setup(state) != 0 || quern_model_new(&model, ctx, NULL) != QUERN_STATUS_OK) return -1;
  root = quern_model_scope(model);
  return 0;
}

static int model_teardown(void **state) {
  quern_model_free(model);
  model = NULL;
  return test_teardown(state);
}

#define MODEL(function) cmocka_unit_test_setup_teardown(function, model_setup, model_teardown)
#define F32(...) quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(__VA_ARGS__))
static const quern_init zero = {QUERN_INIT_CONSTANT, 0, 0};

static void paths(void **state) {
  (void)state;
  quern_scope *h = quern_scope_in(root, "h"), *h0 = quern_scope_at(root, "h", 0);
  assert_string_equal(quern_scope_path(root), "");
  assert_string_equal(quern_scope_path(h0), "h.0");
  assert_string_equal(quern_scope_path(quern_scope_in(h0, "attn")), "h.0.attn");
  /* Asked for twice, by any way, it is the same. */
  assert_ptr_equal(quern_scope_in(h, "0"), h0);
  assert_ptr_equal(quern_scope_in(root, "h.0.attn"), quern_scope_in(h0, "attn"));
  assert_ptr_not_equal(quern_scope_at(root, "h", 1), h0);
  assert_ptr_equal(quern_scope_model(h0), model);
  assert_ptr_equal(quern_model_context(model), ctx);
  assert_true(quern_scope_train(h0));
}

static void names_and_lists(void **state) {
  (void)state;
  quern_scope *fc = quern_scope_in(root, "fc");
  quern_tensor *w = quern_scope_parameter(fc, "weight", QUERN_LIST(4, 3), (quern_init){QUERN_INIT_NORMAL, 0, 1});
  quern_tensor *b = quern_scope_buffer(fc, "count", QUERN_DTYPE_I64, QUERN_SCALAR, 7);
  EXPECT_OK(quern_context_check(ctx));
  assert_string_equal(quern_tensor_name(w), "fc.weight");
  assert_int_equal(quern_tensor_dtype(w), QUERN_DTYPE_F32);
  assert_int_equal(quern_model_parameter_count(model), 2);
  quern_parameter p = QUERN_INIT(quern_parameter);
  EXPECT_OK(quern_model_parameter(model, 0, &p));
  assert_string_equal(p.name, "fc.weight");
  assert_true(p.tensor == w && p.trained && p.saved && p.init.kind == QUERN_INIT_NORMAL);
  EXPECT_OK(quern_model_parameter(model, 1, &p));
  assert_true(p.tensor == b && !p.trained && p.saved);
  assert_ptr_equal(quern_model_find(model, "fc.count")->tensor, b);
  assert_null(quern_model_find(model, "fc"));
  assert_int_equal(quern_model_element_count(model), 12);
  /* The same again, also by a name with a dot from outside. */
  assert_ptr_equal(quern_scope_parameter(root, "fc.weight", QUERN_LIST(4, 3), zero), w);
  assert_ptr_equal(quern_scope_buffer(fc, "count", QUERN_DTYPE_I64, QUERN_SCALAR, 0), b);
  assert_int_equal(quern_model_parameter_count(model), 2);
}

static void conflicts(void **state) {
  (void)state;
  quern_scope *fc = quern_scope_in(root, "fc");
  assert_false(quern_tensor_is_poison(quern_scope_parameter(fc, "weight", QUERN_LIST(4, 3), zero)));
  assert_false(quern_tensor_is_poison(quern_scope_buffer(fc, "mean", QUERN_DTYPE_F32, QUERN_LIST(3), 0)));
  assert_true(quern_tensor_is_poison(quern_scope_parameter(fc, "weight", QUERN_LIST(3, 4), zero)));
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "fc.weight is f32(4, 3) already, asked for again as f32(3, 4)");
  assert_true(quern_tensor_is_poison(quern_scope_parameter(fc, "weight", QUERN_LIST(5, 3), zero)));
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "fc.weight is f32(4, 3) already, asked for again as f32(5, 3)");
  assert_true(quern_tensor_is_poison(quern_scope_parameter(fc, "weight", QUERN_LIST(4), zero)));
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "fc.weight is f32(4, 3) already, asked for again as f32(4,)");
  assert_true(quern_tensor_is_poison(quern_scope_buffer(fc, "weight", QUERN_DTYPE_F32, QUERN_LIST(4, 3), 0)));
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "fc.weight is a parameter already");
  assert_true(quern_tensor_is_poison(quern_scope_buffer(fc, "mean", QUERN_DTYPE_F64, QUERN_LIST(3), 0)));
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "fc.mean is f32(3,) already, asked for again as f64(3,)");
  /* A layer shows where, too. */
  assert_true(quern_tensor_is_poison(quern_nn_linear(fc, F32(2, 5), 4, NULL)));
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "nn_linear: in fc: scope_parameter: fc.weight is f32(4, 3) already");
  assert_true(quern_tensor_is_poison(quern_nn_batch_norm(fc, F32(2, 4), NULL)));
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "nn_batch_norm: in fc: ");
}

/* A layer called twice in one scope has one set of parameters, in two scopes two. */
static void sharing(void **state) {
  (void)state;
  quern_scope *fc = quern_scope_in(root, "fc");
  quern_tensor *x = F32(2, 3), *y = quern_nn_linear(fc, x, 3, NULL);
  quern_tensor *z = quern_nn_linear(fc, y, 3, NULL);
  assert_int_equal(quern_model_parameter_count(model), 2);
  assert_ptr_equal(quern_nn_linear(fc, x, 3, NULL), y);
  quern_nn_linear(quern_scope_in(root, "other"), z, 3, NULL);
  assert_int_equal(quern_model_parameter_count(model), 4);
  EXPECT_OK(quern_context_check(ctx));
}

static void changes(void **state) {
  (void)state;
  quern_tensor *a = quern_scope_buffer(root, "a", QUERN_DTYPE_F32, QUERN_LIST(2), 1);
  quern_tensor *b = quern_scope_buffer(root, "b", QUERN_DTYPE_F32, QUERN_LIST(2), 1);
  quern_tensor *first = quern_add_scalar(a, 1), *second = quern_add_scalar(first, 1), *third = quern_add_scalar(b, 1);
  assert_ptr_equal(quern_scope_value(root, a), a);
  quern_scope_change(root, a, first);
  quern_scope_change(root, b, third);
  assert_ptr_equal(quern_scope_value(root, a), first);
  quern_scope_change(root, a, second);
  assert_int_equal(quern_model_change_count(model), 2);
  assert_ptr_equal(quern_model_change(model, 0).state, a);
  assert_ptr_equal(quern_model_change(model, 0).value, second);
  assert_ptr_equal(quern_model_change(model, 1).value, third);
  assert_null(quern_model_change(model, 2).state);
  EXPECT_OK(quern_context_check(ctx));

  quern_scope_change(root, F32(2), second);
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "scope_change: in the outermost scope: the tensor is no buffer");
  quern_scope_change(root, a, F32(3));
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "scope_change: a is f32(2,), its value is f32(3,)");
  quern_tensor *w = quern_scope_parameter(root, "w", QUERN_LIST(2), zero);
  quern_scope_change(root, w, second);
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "w is no buffer of the model");
  assert_true(quern_tensor_is_poison(quern_scope_value(root, w)));
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "w is no buffer of the model");
  quern_scope_change(root, a, NULL);
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "the value of a is null");

  quern_model_begin(model, false);
  assert_int_equal(quern_model_change_count(model), 0);
  assert_false(quern_scope_train(root));
  assert_int_equal(quern_model_parameter_count(model), 3);
}

/* The seed that a stream has. */
static uint64_t seed_of(quern_random from) {
  uint64_t seed;
  memcpy(&seed, quern_tensor_data(from.seed), sizeof seed);
  assert_int_equal(from.stream, 1);
  assert_ptr_equal(from.step, quern_model_step(model));
  return seed;
}

/* A stream depends on the path and the number of the call, and on nothing else that was called. */
static void streams(void **state) {
  (void)state;
  quern_scope *a = quern_scope_in(root, "a"), *b = quern_scope_in(root, "b");
  uint64_t a1 = seed_of(quern_scope_random(a)), a2 = seed_of(quern_scope_random(a));
  uint64_t b1 = seed_of(quern_scope_random(b));
  assert_true(a1 != a2 && a1 != b1 && a2 != b1);
  quern_model_begin(model, true);
  assert_true(seed_of(quern_scope_random(b)) == b1);
  assert_true(seed_of(quern_scope_random(a)) == a1);
  const quern_parameter *step = quern_model_find(model, "step");
  assert_true(step != NULL && !step->trained && step->saved && step->tensor->dtype == QUERN_DTYPE_U64);

  quern_model *other = NULL;
  quern_model_options options = QUERN_INIT(quern_model_options);
  options.seed = 1;
  EXPECT_OK(quern_model_new(&other, ctx, &options));
  quern_random from = quern_scope_random(quern_scope_in(quern_model_scope(other), "a"));
  assert_memory_not_equal(quern_tensor_data(from.seed), &a1, sizeof a1);
  quern_model_free(other);
}

/* The names in a scope, with a blank after each, in the order they were made. */
static const char *names_in(const char *scope) {
  static char text[512];
  size_t n = strlen(scope);
  text[0] = '\0';
  for (size_t i = 0; i < quern_model_parameter_count(model); i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    EXPECT_OK(quern_model_parameter(model, i, &p));
    if (strncmp(p.name, scope, n) != 0 || p.name[n] != '.') continue;
    strncat(text, p.name + n + 1, 100);
    strncat(text, " ", 2);
  }
  return text;
}

/* Which options of norms make which parameters. */
static void parameters_of_norms(void **state) {
  (void)state;
  const quern_nn_norm_options plain = {.size = sizeof plain}, no_affine = {.size = sizeof plain, .no_affine = true};
  const quern_nn_norm_options no_bias = {.size = sizeof plain, .no_bias = true};
  const quern_nn_instance_norm_options bare = {.size = sizeof bare},
                                       affine = {.size = sizeof bare, .affine = true, .tracking = true};
  const quern_nn_norm_options untracked = {.size = sizeof plain, .no_tracking = true, .no_affine = true};
  const quern_nn_instance_norm_options only_weight = {.size = sizeof bare, .affine = true, .no_bias = true};
  const char *running = "running_mean running_var num_batches_tracked ";
  quern_tensor *x = F32(2, 4, 3);
#define EXPECT_NAMES(layer, options, ...)                                                                              \
  do {                                                                                                                 \
    quern_scope *s = quern_scope_in(root, #layer "_" #options);                                                        \
    char wanted[512];                                                                                                  \
    snprintf(wanted, sizeof wanted, __VA_ARGS__);                                                                      \
    assert_false(quern_tensor_is_poison(layer(s, &options)));                                                          \
    assert_string_equal(names_in(#layer "_" #options), wanted);                                                        \
  } while (0)
#define LAYER_NORM(s, o) quern_nn_layer_norm(s, x, o)
#define RMS_NORM(s, o) quern_nn_rms_norm(s, x, o)
#define GROUP_NORM(s, o) quern_nn_group_norm(s, x, 2, o)
#define BATCH_NORM(s, o) quern_nn_batch_norm(s, x, o)
#define INSTANCE_NORM(s, o) quern_nn_instance_norm(s, x, o)
  EXPECT_NAMES(LAYER_NORM, plain, "weight bias ");
  EXPECT_NAMES(LAYER_NORM, no_bias, "weight ");
  EXPECT_NAMES(LAYER_NORM, no_affine, "%s", "");
  EXPECT_NAMES(RMS_NORM, plain, "weight ");
  EXPECT_NAMES(RMS_NORM, no_affine, "%s", "");
  EXPECT_NAMES(GROUP_NORM, plain, "weight bias ");
  EXPECT_NAMES(GROUP_NORM, no_bias, "weight ");
  EXPECT_NAMES(GROUP_NORM, no_affine, "%s", "");
  EXPECT_NAMES(BATCH_NORM, plain, "weight bias %s", running);
  EXPECT_NAMES(BATCH_NORM, no_bias, "weight %s", running);
  EXPECT_NAMES(BATCH_NORM, no_affine, "%s", running);
  EXPECT_NAMES(BATCH_NORM, untracked, "%s", "");
  EXPECT_NAMES(INSTANCE_NORM, bare, "%s", "");
  EXPECT_NAMES(INSTANCE_NORM, affine, "weight bias %s", running);
  EXPECT_NAMES(INSTANCE_NORM, only_weight, "weight ");
}

/* The narrowest there is. */
static void narrow(void **state) {
  (void)state;
  assert_false(quern_tensor_is_poison(quern_nn_attention(root, F32(1, 1, 1), 1, NULL)));
  assert_false(quern_tensor_is_poison(
      quern_nn_embedding(quern_scope_in(root, "table"), quern_zeros(ctx, QUERN_DTYPE_U8, QUERN_SCALAR), 1, 1, NULL)));
  assert_false(quern_tensor_is_poison(quern_nn_linear(quern_scope_in(root, "fc"), F32(1), 1, NULL)));
}

/* A recurrent layer that fails leaves the poison in the state; one that succeeds leaves c alone, unless it is of LSTM. */
static void states_of_wrong_calls(void **state) {
  (void)state;
  quern_tensor *x = F32(2, 3), *sequence = F32(4, 2, 3), *c = F32(5);
  quern_rnn_state of = {NULL, c};
  quern_nn_rnn_cell(root, x, 0, QUERN_RNN_GRU, &of, NULL);
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "nn_rnn_cell: hidden is 0");
  assert_true(of.h == &ir_poison && of.c == &ir_poison);
  of = (quern_rnn_state){F32(7), c};
  quern_nn_rnn(root, sequence, 2, QUERN_RNN_LSTM, &of, NULL);
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "nn_rnn: state.h is f32(7,), must be f32(1, 2, 2)");
  assert_true(of.h == &ir_poison && of.c == &ir_poison);
  for (int i = 0; i < 2; i++) {
    of = (quern_rnn_state){NULL, c};
    if (i == 0)
      quern_nn_rnn_cell(root, x, 2, QUERN_RNN_GRU, &of, NULL);
    else
      quern_nn_rnn(root, sequence, 2, QUERN_RNN_GRU, &of, NULL);
    EXPECT_OK(quern_context_check(ctx));
    assert_true(quern_tensor_dim(of.h, -1) == 2 && of.c == c);
  }
}

static void wrong_options(void **state) {
  (void)state;
  quern_model *other = model;
  quern_model_options options = QUERN_INIT(quern_model_options);
  options.dtype = QUERN_DTYPE_I32;
  EXPECT_ERROR(quern_model_new(&other, ctx, &options), DTYPE, "model_new: parameters of i32; they must be floats");
  assert_null(other);
  options = QUERN_INIT(quern_model_options);
  options.size = 7;
  EXPECT_ERROR(quern_model_new(&other, ctx, &options), INVALID, "quern_model_options has a size of 7 bytes");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* A bit of everything that allocates. */
static quern_status build_all(void) {
  quern_model *m = NULL;
  QUERN_TRY(quern_model_new(&m, ctx, NULL));
  quern_scope *s = quern_model_scope(m);
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(2, 3, 4));
  quern_tensor *y = quern_nn_linear(quern_scope_in(s, "fc"), x, 4, NULL);
  y = quern_nn_dropout(quern_scope_at(s, "drop", 0), y, 0.5);
  quern_rnn_state state = {NULL, NULL};
  quern_nn_rnn_options rnn = {.size = sizeof rnn, .layers = 2, .dropout = 0.5, .bidirectional = true};
  y = quern_nn_rnn(quern_scope_in(s, "rnn"), y, 2, QUERN_RNN_LSTM, &state, &rnn);
  quern_nn_attention_options cached = {.size = sizeof cached, .cache = 5, .rope = 10000};
  quern_nn_transformer_options block = {.size = sizeof block, .hidden = 6, .attention = &cached, .dropout = 0.1};
  y = quern_nn_transformer_encoder(quern_scope_in(s, "block"), y, 2, &block);
  y = quern_nn_batch_norm(quern_scope_in(s, "norm"), y, NULL);
  quern_tensor *w = quern_scope_parameter(s, "w", QUERN_LIST(3, 2), (quern_init){QUERN_INIT_ORTHOGONAL, 0, 0});
  quern_tensor *value = quern_model_initial(m, quern_model_parameter_count(m) - 1);
  quern_status status = quern_context_check(ctx);
  bool poison = quern_tensor_is_poison(y) || quern_tensor_is_poison(value) || quern_tensor_is_poison(w) ||
                quern_tensor_is_poison(state.h) || quern_tensor_is_poison(state.c);
  if (status == QUERN_STATUS_OK) assert_false(poison);
  quern_model_free(m);
  return status;
}

/* Whatever allocation fails, the error is reported and nothing is lost. */
static void faults(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    fault_begin(&fault);
    quern_status status = build_all();
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MODEL(paths),   MODEL(names_and_lists),       MODEL(conflicts),           MODEL(sharing), MODEL(changes),
      MODEL(streams), MODEL(states_of_wrong_calls), MODEL(parameters_of_norms), MODEL(narrow),  TEST(wrong_options),
      TEST(faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
