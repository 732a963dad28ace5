/* cli/zoo_sequences.c -- the zoo's networks over sounds, films and sequences that are not transformers */
#include "zoo.h"

#define V(key) zoo_value(z, key)

/* ---- WaveNet: van den Oord et al. 2016 --------------------------------------------------------------------------- */

/* A convolution of x (B, C, T) that looks back only. */
static quern_tensor *causal(quern_scope *scope, quern_tensor *x, int64_t out, int64_t window, int64_t dilation) {
  quern_nn_conv_options o = QUERN_INIT(quern_nn_conv_options);
  o.dilation[0] = dilation;
  x = quern_pad(x, QUERN_LIST(0, 0, (window - 1) * dilation), (const int64_t[]){0, 0, 0}, 0);
  return quern_nn_conv(scope, x, out, QUERN_LIST(window), &o);
}

quern_tensor *zoo_wavenet(struct zoo *z) {
  int64_t C = V("C");
  quern_tensor *sound = zoo_floats(z, "x", QUERN_LIST(z->batch, 1, V("T"))), *skips = NULL;
  quern_tensor *x = causal(quern_scope_in(z->scope, "in"), sound, C, 2, 1);
  for (int64_t i = 0; i < V("layers"); i++) {
    quern_scope *layer = quern_scope_at(z->scope, "layers", i);
    quern_tensor *both = causal(quern_scope_in(layer, "dilated"), x, 2 * C, 2, INT64_C(1) << i % V("cycle"));
    quern_tensor *value = quern_tanh(quern_slice(both, 1, 0, C, 1));
    quern_tensor *y = quern_mul(value, quern_sigmoid(quern_slice(both, 1, C, 2 * C, 1)));
    quern_tensor *skip = causal(quern_scope_in(layer, "skip"), y, V("K"), 1, 1);
    skips = skips != NULL ? quern_add(skips, skip) : skip;
    if (i + 1 < V("layers")) x = quern_add(x, causal(quern_scope_in(layer, "residual"), y, C, 1, 1));
  }
  quern_tensor *y = quern_relu(causal(quern_scope_in(z->scope, "out1"), quern_relu(skips), V("K"), 1, 1));
  y = causal(quern_scope_in(z->scope, "out2"), y, 256, 1, 1);
  return zoo_classes(z, quern_transpose(y, 1, 2));
}

/* ---- films: Tran et al., "Learning spatiotemporal features with 3D convolutional networks", 2015 ----------------- */

quern_tensor *zoo_conv3d(struct zoo *z) {
  quern_nn_conv_options o = QUERN_INIT(quern_nn_conv_options);
  quern_pool_options pool = QUERN_INIT(quern_pool_options);
  for (int i = 0; i < 3; i++) o.padding[i] = 1, pool.window[i] = 2;
  o.no_bias = true;
  quern_tensor *x = zoo_floats(z, "x", QUERN_LIST(z->batch, 3, V("frames"), V("size"), V("size")));
  for (int64_t i = 0; i < 4; i++) {
    quern_scope *layer = quern_scope_at(z->scope, "layers", i);
    x = quern_nn_conv(quern_scope_in(layer, "conv"), x, V("C") << i, QUERN_LIST(3, 3, 3), &o);
    x = quern_relu(quern_nn_batch_norm(quern_scope_in(layer, "norm"), x, NULL));
    if (i < 2) x = quern_max_pool(x, &pool);
  }
  x = quern_mean(x, QUERN_LIST(2, 3, 4), false);
  return zoo_classes(z, quern_nn_linear(quern_scope_in(z->scope, "head"), x, V("classes"), NULL));
}

/* ---- recurrent networks ----------------------------------------------------------------------------------------- */

quern_tensor *zoo_lstm(struct zoo *z) {
  quern_tensor *ids = zoo_integers(z, "tokens", V("V"), QUERN_LIST(z->batch, V("T")));
  return zoo_classes(z, quern_lstm_lm(z->scope, ids, V("V"), V("C"), V("C"), (int)V("layers"), 0, NULL));
}

quern_tensor *zoo_gru(struct zoo *z) {
  quern_nn_rnn_options o = QUERN_INIT(quern_nn_rnn_options);
  o.layers = (int)V("layers");
  o.batch_first = true;
  quern_tensor *x = zoo_floats(z, "x", QUERN_LIST(z->batch, V("T"), V("in")));
  x = quern_nn_rnn(quern_scope_in(z->scope, "rnn"), x, V("C"), QUERN_RNN_GRU, NULL, &o);
  x = quern_select(x, 1, -1);
  return zoo_classes(z, quern_nn_linear(quern_scope_in(z->scope, "head"), x, V("classes"), NULL));
}

/* ---- Mamba: Gu and Dao, "Linear-time sequence modeling with selective state spaces", 2023 ------------------------ */

/* One step: h = decay h + input (B, I, N), y = sum over N of h times the readout (B, N). */
static void scan_step(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user; /* args: i, h, dt (B, I), x (B, I), b (B, N), c (B, N), a (I, N) */
  quern_tensor *h = args[1], *dt = quern_unsqueeze(args[2], 2), *x = quern_unsqueeze(args[3], 2);
  quern_tensor *b = quern_unsqueeze(args[4], 1), *c = quern_unsqueeze(args[5], 1);
  quern_tensor *decay = quern_exp(quern_mul(dt, args[6])), *input = quern_mul(quern_mul(dt, x), b);
  quern_tensor *kept = quern_mul(decay, h);
  h = quern_add(kept, input);
  results[0] = h;
  results[1] = quern_sum(quern_mul(h, c), QUERN_LIST(2), false);
}

/* dt, x (B, T, I), b, c (B, T, N), a (I, N) -> (B, T, I). */
static quern_tensor *selective_scan(struct zoo *z, quern_tensor *dt, quern_tensor *x, quern_tensor *b, quern_tensor *c,
                                    quern_tensor *a) {
  quern_loop_options o = QUERN_INIT(quern_loop_options);
  quern_tensor *h = quern_zeros(z->ctx, z->dtype, QUERN_LIST(z->batch, quern_tensor_dim(x, 2), quern_tensor_dim(b, 2)));
  quern_tensor *results[2], *operands[] = {h, quern_transpose(dt, 0, 1), NULL, NULL, NULL, a};
  operands[2] = quern_transpose(x, 0, 1);
  operands[3] = quern_transpose(b, 0, 1);
  operands[4] = quern_transpose(c, 0, 1);
  o.trip = V("T");
  o.n_carries = 1;
  o.n_scanned = 4;
  o.n_captures = 1;
  o.n_stacked = 1;
  if (quern_loop(z->ctx, &o, operands, scan_step, NULL, results) != QUERN_STATUS_OK) return NULL;
  return quern_transpose(results[1], 0, 1);
}

static quern_tensor *project(quern_scope *scope, const char *name, quern_tensor *x, int64_t out, bool bias) {
  quern_nn_linear_options o = QUERN_INIT(quern_nn_linear_options);
  o.no_bias = !bias;
  return quern_nn_linear(quern_scope_in(scope, name), x, out, &o);
}

static quern_tensor *mamba_block(struct zoo *z, quern_scope *scope, quern_tensor *x) {
  int64_t C = V("C"), I = 2 * C, N = V("N"), R = V("R"), T = V("T");
  quern_nn_conv_options depthwise = QUERN_INIT(quern_nn_conv_options);
  depthwise.groups = I;
  depthwise.padding[0] = 3;
  quern_tensor *both = project(scope, "in", x, 2 * I, false);
  quern_tensor *u = quern_slice(both, 2, 0, I, 1), *gate = quern_silu(quern_slice(both, 2, I, 2 * I, 1));
  u = quern_nn_conv(quern_scope_in(scope, "conv"), quern_transpose(u, 1, 2), I, QUERN_LIST(4), &depthwise);
  u = quern_silu(quern_transpose(quern_slice(u, 2, 0, T, 1), 1, 2));
  quern_tensor *all = project(scope, "parts", u, R + 2 * N, false);
  quern_tensor *dt = quern_softplus(project(scope, "dt", quern_slice(all, 2, 0, R, 1), I, true));
  quern_tensor *b = quern_slice(all, 2, R, R + N, 1), *c = quern_slice(all, 2, R + N, R + 2 * N, 1);
  quern_tensor *log_a = quern_scope_parameter(scope, "log_a", QUERN_LIST(I, N), (quern_init){QUERN_INIT_UNIFORM, 0, 2});
  quern_tensor *d = quern_scope_parameter(scope, "d", QUERN_LIST(I), (quern_init){QUERN_INIT_CONSTANT, 1, 0});
  quern_tensor *y = selective_scan(z, dt, u, b, c, quern_neg(quern_exp(log_a)));
  y = quern_mul(quern_add(y, quern_mul(u, d)), gate);
  return project(scope, "out", y, C, false);
}

quern_tensor *zoo_mamba(struct zoo *z) {
  quern_tensor *ids = zoo_integers(z, "tokens", V("V"), QUERN_LIST(z->batch, V("T")));
  quern_tensor *x = quern_nn_embedding(quern_scope_in(z->scope, "tokens"), ids, V("V"), V("C"), NULL);
  for (int64_t i = 0; i < V("layers"); i++) {
    quern_scope *layer = quern_scope_at(z->scope, "layers", i);
    x = quern_add(x, mamba_block(z, layer, quern_nn_rms_norm(quern_scope_in(layer, "norm"), x, NULL)));
  }
  x = quern_nn_rms_norm(quern_scope_in(z->scope, "norm"), x, NULL);
  return zoo_classes(z, project(z->scope, "head", x, V("V"), true));
}
