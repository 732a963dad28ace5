/* tests/models/test_models.c -- models by name: sizes, names of parameters, options, wrong calls */
#include "quern/models.h"
#include "quern/quern.h"
#include "unit.h"

static quern_model *model;
static quern_scope *root;

static void renew(void) {
  quern_model_free(model);
  test_renew();
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  root = quern_model_scope(model);
}

static int begin(void **state) {
  if (test_setup(state) != 0 || quern_model_new(&model, ctx, NULL) != QUERN_STATUS_OK) return -1;
  root = quern_model_scope(model);
  return 0;
}
static int end(void **state) {
  quern_model_free(model);
  model = NULL;
  return test_teardown(state);
}

static quern_tensor *tokens(int64_t B, int64_t T) {
  return quern_input(ctx, "tokens", QUERN_DTYPE_I32, QUERN_LIST(B, T));
}

static void expect_shape(const char *name, int rank, const int64_t *dims) {
  const quern_parameter *p = quern_model_find(model, name);
  if (p == NULL) fail_msg("there is no %s", name);
  assert_int_equal(quern_tensor_rank(p->tensor), rank);
  for (int i = 0; i < rank; i++) assert_int_equal(quern_tensor_dim(p->tensor, i), dims[i]);
}

static void gpt2_sizes(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int64_t count;
  } sizes[] = {{"gpt2:124M", 124439808}, {"gpt2:medium", 354823168}, {"gpt2:774M", 774030080}, {"gpt2:xl", 1557611200}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    quern_lm_options options = QUERN_INIT(quern_lm_options);
    renew();
    EXPECT_OK(quern_lm_named(&options, sizes[i].name));
    (void)quern_lm_hidden(root, tokens(1, 8), &options, NULL);
    EXPECT_OK(quern_context_check(ctx));
    assert_int_equal(quern_model_element_count(model), sizes[i].count);
  }
  expect_shape("transformer.h.0.attn.c_attn.weight", QUERN_LIST(4800, 1600));
  expect_shape("transformer.h.47.mlp.c_proj.bias", QUERN_LIST(1600));
  expect_shape("transformer.wpe.weight", QUERN_LIST(1024, 1600));
}

static void modern(void **state) {
  (void)state;
  quern_lm_options options = QUERN_INIT(quern_lm_options);
  EXPECT_OK(quern_lm_named(&options, "modern:256x3"));
  options.kv_heads = 2;
  options.untied = true;
  quern_tensor *hidden[4], *x = quern_lm_hidden(root, tokens(2, 8), &options, hidden),
                           *y = quern_lm_logits(root, x, &options);
  EXPECT_OK(quern_context_check(ctx));
  assert_int_equal(quern_tensor_dim(y, 2), 50257);
  for (int i = 0; i < 4; i++) assert_int_equal(quern_tensor_dim(hidden[i], 2), 256);
  expect_shape("model.layers.2.self_attn.k_proj.weight", QUERN_LIST(128, 256));
  expect_shape("model.layers.0.mlp.gate_proj.weight", QUERN_LIST(704, 256));
  expect_shape("model.layers.0.input_layernorm.weight", QUERN_LIST(256));
  expect_shape("lm_head.weight", QUERN_LIST(50257, 256));
  assert_null(quern_model_find(model, "model.layers.0.input_layernorm.bias"));
  assert_null(quern_model_find(model, "model.embed_positions.weight"));
}

/* Every option gives a model whose loss differentiates. */
static void options(void **state) {
  (void)state;
  static const char *const activations[] = {NULL, "gelu", "relu", "silu", "swiglu", "geglu", "reglu"};
  static const char *const positions[] = {NULL, "rope", "sinusoidal", "none"};
  for (int i = 0; i < 28; i++) {
    quern_lm_options o = {.size = sizeof o,
                          .names = i % 2 == 0 ? QUERN_LM_GPT2 : QUERN_LM_LLAMA,
                          .vocabulary = 11,
                          .positions = 6,
                          .layers = 1 + i % 2,
                          .width = 16,
                          .heads = 4,
                          .kv_heads = i % 3 == 0 ? 0 : i % 3,
                          .activation = activations[i % 7],
                          .position = positions[i % 4],
                          .rms = i % 5 == 0,
                          .no_bias = i % 3 == 1,
                          .untied = i % 4 == 2,
                          .post_norm = i % 6 == 5,
                          .dropout = i % 2 == 0 ? 0 : 0.1};
    renew();
    quern_tensor *labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(2, 6));
    quern_tensor *loss = quern_lm_loss(root, tokens(2, 6), labels, &o);
    quern_step *step;
    EXPECT_OK(quern_step_new(&step, model, loss, NULL));
    assert_int_equal(quern_tensor_rank(loss), 0);
    quern_step_free(step);
  }
}

static void images(void **state) {
  (void)state;
  static const struct {
    int depth;
    int64_t count;
  } rows[] = {{18, 11689512}, {34, 21797672}, {50, 25557032}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    renew();
    quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(2, 3, 64, 64));
    quern_tensor *y = quern_resnet(root, x, rows[i].depth, 1000, false);
    EXPECT_OK(quern_context_check(ctx));
    assert_int_equal(quern_tensor_dim(y, 1), 1000);
    assert_int_equal(quern_model_element_count(model), rows[i].count);
  }
  expect_shape("layer4.2.conv3.weight", QUERN_LIST(2048, 512, 1, 1));
  expect_shape("layer1.0.downsample.1.running_var", QUERN_LIST(256));
}

static void small(void **state) {
  (void)state;
  quern_tensor *y =
      quern_mlp(root, quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(5, 4, 3)), 2, (int64_t[]){7, 6}, 2, NULL);
  EXPECT_OK(quern_context_check(ctx));
  assert_int_equal(quern_tensor_dim(y, 1), 2);
  expect_shape("layers.0.weight", QUERN_LIST(7, 12));
  expect_shape("layers.2.bias", QUERN_LIST(2));
  renew();
  y = quern_lstm_lm(root, tokens(2, 5), 30, 8, 9, 2, 0.5, NULL);
  EXPECT_OK(quern_context_check(ctx));
  assert_int_equal(quern_tensor_dim(y, 2), 30);
  expect_shape("rnn.weight_hh_l1", QUERN_LIST(36, 9));
}

static void wrong(void **state) {
  (void)state;
  quern_lm_options o = QUERN_INIT(quern_lm_options);
  EXPECT_ERROR(quern_lm_named(&o, "gpt3"), INVALID, "there is no model 'gpt3'; there are gpt2:124M");
  EXPECT_ERROR(quern_lm_named(&o, "modern:100x2"), INVALID, "there is no model 'modern:100x2'");
  EXPECT_OK(quern_lm_named(&o, "gpt2:124M"));
  static const struct {
    const char *why;
    int64_t heads, kv_heads, layers;
    const char *activation, *position;
  } rows[] = {{"width 768, 11 heads, 0 of keys and values: each must divide", 11, 0, 1, NULL, NULL},
              {"width 768, 12 heads, 5 of keys and values", 12, 5, 1, NULL, NULL},
              {"0 layers, width 768", 12, 0, 0, NULL, NULL},
              {"there is no activation 'tan' here", 12, 0, 1, "tan", NULL},
              {"positions are learned, rope, sinusoidal or none, not 'alibi'", 12, 0, 1, NULL, "alibi"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    renew();
    o.heads = rows[i].heads, o.kv_heads = rows[i].kv_heads, o.layers = rows[i].layers;
    o.activation = rows[i].activation, o.position = rows[i].position;
    assert_true(quern_tensor_is_poison(quern_lm_hidden(root, tokens(1, 4), &o, NULL)));
    EXPECT_ERROR(quern_context_check(ctx), INVALID, rows[i].why);
  }
  EXPECT_OK(quern_lm_named(&o, "gpt2:124M"));
  assert_true(quern_tensor_is_poison(quern_lm_hidden(root, tokens(1, 1025), &o, NULL)));
  EXPECT_ERROR(quern_context_check(ctx), SHAPE,
               "tokens of rank 2 with 1025 in a row; must be (B, T) with at most 1024");
  assert_true(quern_tensor_is_poison(quern_resnet(root, tokens(1, 4), 19, 10, false)));
  EXPECT_ERROR(quern_context_check(ctx), INVALID, "there is none of depth 19; there are 18, 34 and 50");
}

int main(void) {
#define MODEL_TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
  const struct CMUnitTest tests[] = {MODEL_TEST(gpt2_sizes), MODEL_TEST(modern), MODEL_TEST(options),
                                     MODEL_TEST(images),     MODEL_TEST(small),  MODEL_TEST(wrong)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
