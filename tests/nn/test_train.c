/* tests/nn/test_train.c -- what differs between training and use: dropout and its masks by seed and step, padding, caches */
#include <math.h>

#include "nn/nn.h"
#include "quern/quern.h"
#include "unit.h"

static quern_model *model;
static quern_scope *root;

static int train_setup(void **state) {
  quern_model_options options = QUERN_INIT(quern_model_options);
  options.seed = 11;
  if (test_setup(state) != 0 || quern_model_new(&model, ctx, &options) != QUERN_STATUS_OK) return -1;
  root = quern_model_scope(model);
  return 0;
}

static int train_teardown(void **state) {
  quern_model_free(model);
  model = NULL;
  return test_teardown(state);
}
#define TRAIN(function) cmocka_unit_test_setup_teardown(function, train_setup, train_teardown)

static quern_tensor *ones(int rank, const int64_t *dims) { return quern_ones(ctx, QUERN_DTYPE_F32, rank, dims); }

/* The elements of x at a step of the model. */
static void eval_at(quern_tensor *x, uint64_t step, float *dst) {
  quern_feed feed = {quern_model_step(model), &step};
  EXPECT_OK(quern_eval_reference(ctx, 1, &x, (void *[]){dst}, 1, &feed));
}

enum { N = 4000 };

static int kept(const float *x, float scale) {
  int n = 0;
  for (int i = 0; i < N; i++) {
    assert_true(x[i] == 0 || x[i] == scale);
    n += x[i] != 0;
  }
  return n;
}

static void dropout_masks(void **state) {
  (void)state;
  static float a[N], again[N], later[N], second[N], elsewhere[N];
  quern_tensor *x = ones(QUERN_LIST(N));
  quern_scope *s = quern_scope_in(root, "drop");
  quern_tensor *y = quern_nn_dropout(s, x, 0.2), *z = quern_nn_dropout(s, x, 0.2);
  eval_at(y, 3, a);
  eval_at(z, 3, second);
  eval_at(y, 4, later);
  eval_at(quern_nn_dropout(quern_scope_in(root, "other"), x, 0.2), 3, elsewhere);
  /* The rate: 0.8 N with a deviation of 25. */
  assert_true(abs(kept(a, 1.25f) - 3200) < 120);
  assert_true(abs(kept(later, 1.25f) - 3200) < 120);
  /* Another step, another call, another scope: another mask. */
  assert_memory_not_equal(a, later, sizeof a);
  assert_memory_not_equal(a, second, sizeof a);
  assert_memory_not_equal(a, elsewhere, sizeof a);
  /* The same seed, path, call and step: the same mask, in another expression and another model. */
  quern_model_begin(model, true);
  eval_at(quern_nn_dropout(s, x, 0.2), 3, again);
  assert_memory_equal(a, again, sizeof a);
  quern_model *other = NULL;
  quern_model_options options = QUERN_INIT(quern_model_options);
  for (options.seed = 11; options.seed < 13; options.seed++) {
    EXPECT_OK(quern_model_new(&other, ctx, &options));
    quern_tensor *t = quern_nn_dropout(quern_scope_in(quern_model_scope(other), "drop"), x, 0.2);
    uint64_t step = 3;
    quern_feed feed = {quern_model_step(other), &step};
    EXPECT_OK(quern_eval_reference(ctx, 1, &t, (void *[]){again}, 1, &feed));
    assert_int_equal(memcmp(a, again, sizeof a) == 0, options.seed == 11);
    quern_model_free(other);
  }
  /* Out of training, and with p = 0, nothing happens. */
  assert_ptr_equal(quern_nn_dropout(s, x, 0), x);
  quern_model_begin(model, false);
  assert_ptr_equal(quern_nn_dropout(s, x, 0.2), x);
  assert_ptr_equal(quern_nn_dropout_spatial(s, quern_reshape(x, QUERN_LIST(2, N / 2)), 0.2),
                   quern_reshape(x, QUERN_LIST(2, N / 2)));
}

/* The compiled mask is the evaluated one, and the gradient has it, too. */
static void dropout_compiled(void **state) {
  (void)state;
  static float want[N], got[N], dx[N];
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(N));
  quern_tensor *y = quern_nn_dropout(root, x, 0.5), *loss = quern_sum(y, QUERN_ALL, false), *d;
  EXPECT_OK(quern_grad(loss, 1, &x, &d));
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  options.threads = 1;
  quern_tensor *step = quern_model_step(model);
  quern_update next = {step, quern_add_scalar(step, 1)};
  options.n_updates = 1;
  options.updates = &next;
  quern_program *program = NULL;
  quern_instance *instance = NULL;
  EXPECT_OK(quern_program_compile(&program, ctx, 2, (quern_tensor *[]){y, d}, &options));
  EXPECT_OK(quern_instance_new(&instance, program));
  EXPECT_OK(quern_instance_zero_states(instance));
  static float in[N];
  for (int i = 0; i < N; i++) in[i] = 1;
  for (uint64_t t = 0; t < 3; t++) {
    EXPECT_OK(quern_instance_run(instance, (const void *[]){in}, (void *[]){got, dx}));
    quern_feed feeds[] = {{step, &t}, {x, in}};
    EXPECT_OK(quern_eval_reference(ctx, 1, &y, (void *[]){want}, 2, feeds));
    assert_memory_equal(got, want, sizeof got);
    assert_memory_equal(dx, want, sizeof dx);
  }
  quern_instance_free(instance);
  quern_program_free(program);
}

/* Kernels of n layers that differ in their names only. */
static size_t kernels_of(int64_t n) {
  quern_model_begin(model, true);
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(8, 16));
  for (int64_t i = 0; i < n; i++) {
    quern_scope *s = quern_scope_at(root, "h", i);
    x = quern_nn_dropout(s, quern_nn_linear(s, x, 16, NULL), 0.5);
  }
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  quern_program *program = NULL;
  quern_program_stats counts = QUERN_INIT(quern_program_stats);
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &x, &options));
  EXPECT_OK(quern_program_get_stats(program, &counts));
  quern_program_free(program);
  return counts.kernels;
}

static void dropout_shares_kernels(void **state) {
  (void)state;
  assert_int_equal(kernels_of(5), kernels_of(2));
}

static void dropout_channels(void **state) {
  (void)state;
  static float y[50 * 40 * 3 * 2];
  eval_at(quern_nn_dropout_spatial(root, ones(QUERN_LIST(50, 40, 3, 2)), 0.25), 0, y);
  int n = 0;
  for (int i = 0; i < 2000; i++) {
    for (int k = 0; k < 6; k++)
      assert_true(y[6 * i + k] == y[6 * i] && (y[6 * i] == 0 || y[6 * i] == (float)(1 / 0.75)));
    n += y[6 * i] != 0;
  }
  assert_true(abs(n - 1500) < 100); /* deviation 19 */
}

/* Dropped attention weights: without dropout's randomness the same as attention; with it, about 1 in the mean. */
static void dropout_in_attention(void **state) {
  (void)state;
  static float q[2 * 3 * 8], got[2 * 3 * 8], want[2 * 3 * 8];
  double numbers[2 * 3 * 8];
  test_fill(48, numbers, 1);
  for (int i = 0; i < 48; i++) q[i] = (float)numbers[i];
  quern_tensor *x = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(2, 3, 8), q);
  quern_tensor *k = quern_slice(x, 2, 0, 4, 1);
  quern_nn_attention_options plain = {.size = sizeof plain, .kv_heads = 2, .causal = true}, drops = plain;
  drops.dropout = 1e-9; /* 1 - p is 1 in f32: nothing is dropped but for 4 words of 2^32 */
  eval_at(quern_nn_attend(root, x, k, k, 4, &plain), 0, want);
  eval_at(quern_nn_attend(root, x, k, k, 4, &drops), 0, got);
  for (int i = 0; i < 48; i++) assert_true(fabsf(got[i] - want[i]) <= 1e-6f);
  /* A query that sees nothing gives zeros, and gradients that are numbers. */
  const bool seen[] = {true, false, false, false, false, false, true, true, true};
  drops.causal = false;
  drops.mask = quern_constant(ctx, QUERN_DTYPE_BOOL, QUERN_LIST(3, 3), seen);
  quern_tensor *y = quern_nn_attend(root, x, k, k, 4, &drops), *d;
  EXPECT_OK(quern_grad(quern_sum(quern_square(y), QUERN_ALL, false), 1, &x, &d));
  eval_at(y, 0, got);
  for (int i = 8; i < 16; i++) assert_true(got[i] == 0 && got[24 + i] == 0);
  eval_at(d, 0, got);
  for (int i = 0; i < 48; i++) assert_true(isfinite(got[i]));
  /* Half of the weights: the mean over steps is that of attention. */
  drops = plain;
  drops.dropout = 0.5;
  double sum[48] = {0}, most = 0;
  y = quern_nn_attend(root, x, k, k, 4, &drops);
  for (uint64_t step = 0; step < 400; step++) {
    eval_at(y, step, got);
    for (int i = 0; i < 48; i++) sum[i] += got[i] / 400;
  }
  for (int i = 0; i < 48; i++) most = fmax(most, fabs(sum[i] - want[i]));
  assert_true(most > 1e-4 && most < 0.2);
  /* Out of training there is none. */
  quern_model_begin(model, false);
  quern_tensor *used = quern_nn_attend(root, x, k, k, 4, &drops);
  assert_ptr_equal(used, quern_nn_attend(root, x, k, k, 4, &plain));
}

/* Between layers of an LSTM, not after the last. */
static void dropout_in_rnn(void **state) {
  (void)state;
  quern_nn_rnn_options o = {.size = sizeof o, .dropout = 0.5};
  quern_tensor *x = ones(QUERN_LIST(2, 3, 4));
  quern_nn_rnn(root, x, 2, QUERN_RNN_LSTM, NULL, &o);
  assert_null(quern_model_find(model, "step"));
  o.layers = 2;
  quern_nn_rnn(root, x, 2, QUERN_RNN_LSTM, NULL, &o);
  assert_non_null(quern_model_find(model, "step"));
  EXPECT_OK(quern_context_check(ctx));
}

/* How many streams a call of a layer with dropout takes. */
static int64_t streams_of(quern_tensor *(*layer)(quern_scope *s, bool drops)) {
  quern_model_begin(model, true);
  EXPECT_OK((quern_tensor_is_poison(layer(root, true)), quern_context_check(ctx)));
  int64_t n = 0;
  for (size_t i = 0; i < model->places.n; i++) n += (int64_t)model->places.at[i]->calls;
  /* None without a rate, and none out of training. */
  quern_model_begin(model, true);
  layer(root, false);
  for (size_t i = 0; i < model->places.n; i++) assert_int_equal(model->places.at[i]->calls, 0);
  quern_model_begin(model, false);
  layer(root, true);
  for (size_t i = 0; i < model->places.n; i++) assert_int_equal(model->places.at[i]->calls, 0);
  return n;
}

static quern_tensor *an_mlp(quern_scope *s, bool drops) {
  quern_nn_mlp_options o = {.size = sizeof o, .dropout = drops ? 0.5 : 0};
  return quern_nn_mlp(quern_scope_in(s, "mlp"), ones(QUERN_LIST(2, 4)), 6, &o);
}

static quern_tensor *an_encoder(quern_scope *s, bool drops) {
  quern_nn_transformer_options o = {.size = sizeof o, .hidden = 6, .dropout = drops ? 0.5 : 0};
  return quern_nn_transformer_encoder(quern_scope_in(s, "encoder"), ones(QUERN_LIST(1, 3, 4)), 2, &o);
}

static quern_tensor *a_decoder(quern_scope *s, bool drops) {
  quern_nn_transformer_options o = {.size = sizeof o, .hidden = 6, .dropout = drops ? 0.5 : 0};
  quern_tensor *x = ones(QUERN_LIST(1, 3, 4));
  return quern_nn_transformer_decoder(quern_scope_in(s, "decoder"), x, x, 2, &o);
}

static quern_tensor *an_lstm(quern_scope *s, bool drops) {
  quern_nn_rnn_options o = {.size = sizeof o, .layers = 3, .bidirectional = true, .dropout = drops ? 0.5 : 0};
  return quern_nn_rnn(quern_scope_in(s, "lstm"), ones(QUERN_LIST(1, 3, 4)), 2, QUERN_RNN_LSTM, NULL, &o);
}

/* Where dropout is: within the feed-forward part; in each attention and after each part; between layers. */
static void dropout_places(void **state) {
  (void)state;
  assert_int_equal(streams_of(an_mlp), 1);
  assert_int_equal(streams_of(an_encoder), 1 + 1 + 2);
  assert_int_equal(streams_of(a_decoder), 2 + 1 + 3);
  assert_int_equal(streams_of(an_lstm), 2);
}

/* ids equal to padding: zeros, and no gradient. */
static void padding(void **state) {
  (void)state;
  const int32_t ids[] = {1, 0, 2, 1};
  quern_nn_embedding_options o = {.size = sizeof o, .padded = true, .padding = 1};
  quern_tensor *t = quern_tensor_copy(ctx, QUERN_DTYPE_I32, QUERN_LIST(4), ids);
  quern_tensor *y = quern_nn_embedding(root, t, 3, 2, &o), *w = quern_model_find(model, "weight")->tensor, *dw;
  EXPECT_OK(quern_grad(quern_sum(y, QUERN_ALL, false), 1, &w, &dw));
  const float weight[] = {1, 2, 3, 4, 5, 6}, want[] = {0, 0, 1, 2, 5, 6, 0, 0}, dwant[] = {1, 1, 0, 0, 1, 1};
  float got[8], dgot[6];
  quern_feed feed = {w, weight};
  EXPECT_OK(quern_eval_reference(ctx, 2, (quern_tensor *[]){y, dw}, (void *[]){got, dgot}, 1, &feed));
  assert_memory_equal(got, want, sizeof want);
  assert_memory_equal(dgot, dwant, sizeof dwant);
}

/* ---- the cache of attention -------------------------------------------------------------------------------------- */

enum { B = 2, T = 6, E = 8, MOST = 9, H = 4, G = 2 };

static double token[B * T * E], weights[1024];

/* Feeds of all trained parameters of the model, from one list of numbers. */
static size_t feed_parameters(quern_feed *feeds) {
  size_t n = 0, used = 0;
  for (size_t i = 0; i < quern_model_parameter_count(model); i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    EXPECT_OK(quern_model_parameter(model, i, &p));
    if (!p.trained) continue;
    feeds[n++] = (quern_feed){p.tensor, weights + used};
    used += (size_t)quern_tensor_count(p.tensor);
  }
  assert_true(used <= 1024);
  return n;
}

/* Token by token, or two at a time, through the cache: the same as all at once. */
static void cached(void **state) {
  (void)state;
  quern_model_free(model);
  quern_model_options options = {.size = sizeof options, .dtype = QUERN_DTYPE_F64, .inference = true};
  EXPECT_OK(quern_model_new(&model, ctx, &options));
  root = quern_model_scope(model);
  test_fill(B * T * E, token, 3);
  test_fill(1024, weights, 4);
  quern_nn_attention_options o = {.size = sizeof o, .kv_heads = G, .causal = true, .rope = 100};
  quern_tensor *whole =
      quern_nn_attention(root, quern_tensor_copy(ctx, QUERN_DTYPE_F64, QUERN_LIST(B, T, E), token), H, &o);
  double want[B * T * E];
  quern_feed feeds[16];
  size_t n = feed_parameters(feeds);
  EXPECT_OK(quern_eval_reference(ctx, 1, &whole, (void *[]){want}, n, feeds));

  for (int64_t each = 1; each <= 2; each++) {
    quern_model_begin(model, false);
    quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F64, QUERN_LIST(B, each, E));
    quern_tensor *position = quern_input(ctx, "position", QUERN_DTYPE_I32, QUERN_SCALAR);
    o.cache = MOST;
    o.cache_used = each == 2 ? T : 0;
    o.position = position;
    quern_tensor *y = quern_nn_attention(root, x, H, &o);
    EXPECT_OK(quern_context_check(ctx));
    assert_int_equal(quern_model_change_count(model), 2);
    const quern_parameter *k = quern_model_find(model, "cache_k"), *v = quern_model_find(model, "cache_v");
    assert_true(!k->saved && !v->saved && !k->trained && quern_tensor_dim(k->tensor, 2) == MOST);
    double caches[2][B * G * MOST * E / H], next[2][B * G * MOST * E / H], part[B * 2 * E], got[B * 2 * E];
    for (int i = 0; i < B * G * MOST * E / H; i++) caches[0][i] = caches[1][i] = 1e6; /* not to be seen */
    for (int32_t at = 0; at < T; at += (int32_t)each) {
      for (int b = 0; b < B; b++)
        memcpy(part + b * each * E, token + (b * T + at) * E, (size_t)each * E * sizeof *part);
      n = feed_parameters(feeds);
      feeds[n++] = (quern_feed){k->tensor, caches[0]};
      feeds[n++] = (quern_feed){v->tensor, caches[1]};
      feeds[n++] = (quern_feed){x, part};
      feeds[n++] = (quern_feed){position, &at};
      quern_tensor *outs[] = {y, quern_model_change(model, 0).value, quern_model_change(model, 1).value};
      EXPECT_OK(quern_eval_reference(ctx, 3, outs, (void *[]){got, next[0], next[1]}, n, feeds));
      memcpy(caches, next, sizeof caches);
      for (int b = 0; b < B; b++) {
        for (int i = 0; i < each * E; i++)
          assert_true(fabs(got[b * each * E + i] - want[(b * T + at) * E + i]) < 1e-12);
      }
    }
  }
}

/* open: queries see all that is written, also what comes after them; nothing behind it. */
static void cached_open(void **state) {
  (void)state;
  quern_model_begin(model, false);
  float numbers[3 * 4];
  for (int i = 0; i < 12; i++) numbers[i] = (float)(i % 5) / 3;
  quern_tensor *x = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(1, 3, 4), numbers);
  quern_nn_attention_options o = {.size = sizeof o, .cache = 7, .cache_used = 3, .open = true, .causal = true};
  quern_nn_attention_options plain = {.size = sizeof plain};
  float got[12], want[12], cache[28];
  for (int i = 0; i < 28; i++) cache[i] = 1e6f;
  quern_tensor *y = quern_nn_attend(root, x, x, x, 2, &o), *z = quern_nn_attend(root, x, x, x, 2, &plain);
  quern_feed feeds[] = {{quern_model_find(model, "cache_k")->tensor, cache},
                        {quern_model_find(model, "cache_v")->tensor, cache}};
  EXPECT_OK(quern_eval_reference(ctx, 2, (quern_tensor *[]){y, z}, (void *[]){got, want}, 2, feeds));
  for (int i = 0; i < 12; i++) assert_true(fabsf(got[i] - want[i]) <= 1e-6f);
}

/* Steps of a program of one linear layer with an activation, and what it computes. */
static size_t linear_steps(bool no_fuse, int part, float *y) {
  float x[6 * 8];
  for (int i = 0; i < 48; i++) x[i] = (float)(i % 7) - 2;
  quern_model_begin(model, true);
  quern_nn_linear_options o = {.size = sizeof o, .activation = "gelu", .no_fuse = no_fuse};
  quern_tensor *in = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(6, 8), x), *out;
  out = part == 0 ? quern_nn_linear(root, in, 5, &o) : quern_nn_bilinear(root, in, in, 5, &o);
  quern_program *program;
  quern_instance *instance;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  EXPECT_OK(quern_context_check(ctx));
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &out, &options));
  quern_program_stats counts = QUERN_INIT(quern_program_stats);
  EXPECT_OK(quern_program_get_stats(program, &counts));
  EXPECT_OK(quern_instance_new(&instance, program));
  for (size_t i = 0; i < quern_program_state_count(program); i++) {
    float *state = quern_instance_state(instance, i);
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(program, i, &slot));
    for (size_t k = 0; k < slot.bytes / sizeof *state; k++) state[k] = (float)(k % 5) / 3 - (float)i;
  }
  EXPECT_OK(quern_instance_run(instance, NULL, (void *[]){y}));
  quern_instance_free(instance);
  quern_program_free(program);
  return counts.steps;
}

/* The activation is part of the contraction, unless it is asked not to be; the values are the same. */
static void no_fuse(void **state) {
  float fused[30], apart[30];
  for (int part = 0; part < 2; part++) {
    train_teardown(state);
    train_setup(state);
    size_t together = linear_steps(false, part, fused);
    assert_int_equal(linear_steps(true, part, apart), together + 1);
    if (part == 0) assert_int_equal(together, 1);
    assert_memory_equal(fused, apart, sizeof fused);
    assert_true(fused[0] != 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TRAIN(dropout_masks),
                                     TRAIN(dropout_compiled),
                                     TRAIN(dropout_shares_kernels),
                                     TRAIN(dropout_channels),
                                     TRAIN(dropout_in_attention),
                                     TRAIN(dropout_in_rnn),
                                     TRAIN(dropout_places),
                                     TRAIN(padding),
                                     TRAIN(cached),
                                     TRAIN(cached_open),
                                     TRAIN(no_fuse)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
