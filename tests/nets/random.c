/* nets/random.c -- random networks of ordinary layers: pictures, volumes, sequences, texts, rows of numbers
** keeps: shapes are followed, so that every layer that is added is a valid one
*/
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "nets/nets.h"

struct gen {
  struct net *net;
  quern_scope *scope;
  quern_tensor *x;
  uint64_t state;
  bool small;
  int layers;
};

/* ---- choices ------------------------------------------------------------------------------------------------------ */

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t bits(struct gen *g) {
  uint64_t z = g->state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static int below(struct gen *g, int n) { return (int)(bits(g) % (uint64_t)n); }
static bool chance(struct gen *g, int percent) { return below(g, 100) < percent; }
#define PICK(g, ...)                                                                                                   \
  ((const int64_t[]){__VA_ARGS__}[below(g, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))])

static void note(struct gen *g, const char *fmt, ...) {
  size_t n = strlen(g->net->text);
  va_list args;
  va_start(args, fmt);
  vsnprintf(g->net->text + n, sizeof g->net->text - n, fmt, args);
  va_end(args);
}

static int64_t dim(const struct gen *g, int axis) { return quern_tensor_dim(g->x, axis); }
static int rank(const struct gen *g) { return quern_tensor_rank(g->x); }
/* The scope of the layer that is added. */
static quern_scope *next(struct gen *g) { return quern_scope_at(g->scope, "layer", g->layers++); }

static int64_t features(struct gen *g) {
  return g->small ? PICK(g, 2, 3, 4, 6, 8) : PICK(g, 8, 16, 24, 32, 48, 64, 96, 128, 130, 192, 256);
}

/* ---- layers of any shape ------------------------------------------------------------------------------------------ */

static void activate(struct gen *g) {
  static const char *const names[] = {"relu",    "gelu",       "gelu_tanh", "silu",     "tanh",
                                      "sigmoid", "leaky_relu", "elu",       "hardswish"};
  const char *name = names[below(g, (int)(sizeof names / sizeof *names))];
  g->x = quern_nn_activation(g->x, name);
  note(g, " %s", name);
}

static void drop(struct gen *g) {
  g->x = quern_nn_dropout(next(g), g->x, 0.1);
  note(g, " dropout");
}

/* ---- pictures and volumes: (N, C, ..) ------------------------------------------------------------------------------ */

static int spatial(const struct gen *g) { return rank(g) - 2; }

/* Training needs two values per channel; of few ones rounding is enlarged too much for a comparison. */
static void norm_batch(struct gen *g) {
  if (quern_tensor_count(g->x) < (g->small ? 6 : 2) * dim(g, 1)) return;
  g->x = quern_nn_batch_norm(next(g), g->x, NULL);
  note(g, " batch_norm");
}

static void norm_channels(struct gen *g) {
  int64_t c = dim(g, 1);
  switch (below(g, 4)) {
  case 0:
    if (c % 2 == 0) {
      g->x = quern_nn_group_norm(next(g), g->x, c % 4 == 0 ? 4 : 2, NULL);
      note(g, " group_norm");
      return;
    }
    break;
  case 1:
    if (spatial(g) == 2 && chance(g, 50)) {
      g->x = quern_nn_instance_norm(next(g), g->x, NULL);
      note(g, " instance_norm");
      return;
    }
    break;
  default: break;
  }
  norm_batch(g);
}

static void convolve(struct gen *g) {
  int n = spatial(g);
  int64_t window[3], c = dim(g, 1), out = features(g);
  quern_nn_conv_options o = {.size = sizeof o, .no_bias = chance(g, 40)};
  int64_t k = PICK(g, 1, 3, 3, 3, 5, 7), stride = PICK(g, 1, 1, 1, 2), dilation = k == 3 ? PICK(g, 1, 1, 2) : 1;
  bool depthwise = chance(g, 20);
  for (int i = 0; i < n; i++) {
    int64_t size = dim(g, 2 + i);
    window[i] = size >= k ? k : 1;
    o.stride[i] = size >= 4 ? stride : 1;
    o.dilation[i] = (window[i] - 1) * dilation < size ? dilation : 1;
    o.padding[i] = chance(g, 85) ? o.dilation[i] * (window[i] / 2) : 0;
    if (2 * o.padding[i] + size <= o.dilation[i] * (window[i] - 1)) o.padding[i] = o.dilation[i] * (window[i] / 2);
  }
  if (depthwise)
    out = c * (chance(g, 30) ? 2 : 1), o.groups = c;
  else if (c % 2 == 0 && out % 2 == 0 && chance(g, 15))
    o.groups = 2;
  g->x = quern_nn_conv(next(g), g->x, out, n, window, &o);
  note(g, " conv%dd(%d,k%d,s%d,d%d,g%d)", n, (int)out, (int)k, (int)stride, (int)dilation, (int)o.groups);
}

static void convolve_back(struct gen *g) {
  int n = spatial(g);
  int64_t window[3], out = features(g);
  quern_nn_conv_options o = {.size = sizeof o};
  int64_t k = PICK(g, 2, 3, 4);
  for (int i = 0; i < n; i++) {
    window[i] = k;
    o.stride[i] = 2;
    o.padding[i] = k == 4 ? 1 : 0;
    if (dim(g, 2 + i) > (g->small ? 6 : 64)) return;
  }
  g->x = quern_nn_conv_transpose(next(g), g->x, out, n, window, &o);
  note(g, " conv_transpose%dd(%d,k%d)", n, (int)out, (int)k);
}

static void pool(struct gen *g) {
  quern_pool_options o = {.size = sizeof o};
  int n = spatial(g);
  int64_t k = PICK(g, 2, 2, 3);
  for (int i = 0; i < n; i++) {
    if (dim(g, 2 + i) < k + 1) return;
    o.window[i] = k;
    o.stride[i] = 2;
    o.pad_lo[i] = o.pad_hi[i] = k == 3 ? 1 : 0;
  }
  bool greatest = chance(g, 60);
  g->x = greatest ? quern_max_pool(g->x, &o) : quern_avg_pool(g->x, &o);
  note(g, greatest ? " max_pool" : " avg_pool");
}

/* Nearest neighbors, by a broadcast and a reshape. */
static void upsample(struct gen *g) {
  if (spatial(g) != 2 || dim(g, 2) > (g->small ? 5 : 48)) return;
  int64_t b = dim(g, 0), c = dim(g, 1), h = dim(g, 2), w = dim(g, 3);
  quern_tensor *x = quern_reshape(g->x, QUERN_LIST(b, c, h, 1, w, 1));
  x = quern_broadcast_to(x, QUERN_LIST(b, c, h, 2, w, 2));
  g->x = quern_reshape(x, QUERN_LIST(b, c, 2 * h, 2 * w));
  note(g, " upsample");
}

/* x + f(x) */
static void residual(struct gen *g) {
  quern_tensor *from = g->x;
  quern_nn_conv_options o = {.size = sizeof o, .same = true, .no_bias = chance(g, 50)};
  int n = spatial(g);
  int64_t window[] = {3, 3, 3}, c = dim(g, 1);
  for (int i = 0; i < n; i++)
    if (dim(g, 2 + i) < 3) return;
  note(g, " residual(");
  g->x = quern_nn_conv(next(g), g->x, c, n, window, &o);
  norm_channels(g);
  activate(g);
  if (chance(g, 60)) {
    g->x = quern_nn_conv(next(g), g->x, c, n, window, &o);
    norm_channels(g);
  }
  g->x = quern_add(g->x, from);
  note(g, ")");
  if (chance(g, 60)) activate(g);
}

/* Channels side by side with those of another branch. */
static void branch(struct gen *g) {
  quern_tensor *from = g->x;
  int64_t window[] = {1, 1, 1};
  int n = spatial(g);
  note(g, " concat(");
  g->x = quern_nn_conv(next(g), g->x, features(g), n, window, NULL);
  activate(g);
  g->x = quern_concat(2, (quern_tensor *[]){from, g->x}, 1);
  note(g, ")");
}

/* Weights of the channels from their means. */
static void squeeze(struct gen *g) {
  int64_t b = dim(g, 0), c = dim(g, 1), dims[QUERN_MAX_RANK] = {b, c, 1, 1, 1};
  int n = spatial(g);
  quern_tensor *s = quern_mean(quern_reshape(g->x, QUERN_LIST(b, c, -1)), QUERN_LIST(2), false);
  s = quern_nn_linear(next(g), s, c > 4 ? c / 4 : c,
                      &(quern_nn_linear_options){.size = sizeof(quern_nn_linear_options), .activation = "relu"});
  s = quern_nn_linear(next(g), s, c,
                      &(quern_nn_linear_options){.size = sizeof(quern_nn_linear_options), .activation = "sigmoid"});
  g->x = quern_mul(g->x, quern_reshape(s, n + 2, dims));
  note(g, " squeeze_excite");
}

/* Channels in another order: groups of them change places, by reshape and permute. */
static void shuffle(struct gen *g) {
  int64_t b = dim(g, 0), c = dim(g, 1);
  if (c % 2 != 0 || spatial(g) != 2) return;
  int64_t h = dim(g, 2), w = dim(g, 3);
  quern_tensor *x = quern_permute(quern_reshape(g->x, QUERN_LIST(b, 2, c / 2, h, w)), QUERN_LIST(0, 2, 1, 3, 4));
  g->x = quern_reshape(x, QUERN_LIST(b, c, h, w));
  note(g, " shuffle");
}

static void encode(struct gen *g);

/* Pixels as a sequence, and back. */
static void attend_pixels(struct gen *g) {
  int64_t b = dim(g, 0), c = dim(g, 1), pixels = 1, dims[QUERN_MAX_RANK];
  int n = spatial(g);
  for (int i = 0; i < n + 2; i++) dims[i] = dim(g, i);
  for (int i = 0; i < n; i++) pixels *= dim(g, 2 + i);
  if (pixels > 400 || c % 2 != 0) return;
  note(g, " pixels(");
  g->x = quern_permute(quern_reshape(g->x, QUERN_LIST(b, c, pixels)), QUERN_LIST(0, 2, 1));
  encode(g);
  g->x = quern_reshape(quern_permute(g->x, QUERN_LIST(0, 2, 1)), n + 2, dims);
  note(g, ")");
}

static void add_picture_layer(struct gen *g) {
  switch (below(g, 12)) {
  case 0:
  case 1:
  case 2:
    convolve(g);
    if (chance(g, 70)) norm_channels(g);
    if (chance(g, 80)) activate(g);
    break;
  case 3: residual(g); break;
  case 4: pool(g); break;
  case 5: convolve_back(g); break;
  case 6: upsample(g); break;
  case 7: branch(g); break;
  case 8: squeeze(g); break;
  case 9: shuffle(g); break;
  case 10: attend_pixels(g); break;
  case 11: drop(g); break;
  }
}

/* ---- sequences: (B, T, C) ------------------------------------------------------------------------------------------ */

static void encode(struct gen *g) {
  int64_t c = dim(g, 2);
  quern_nn_attention_options attention = {.size = sizeof attention, .causal = chance(g, 50)};
  static const char *const names[] = {"relu", "gelu", "swiglu", "geglu", "silu"};
  quern_nn_transformer_options o = {.size = sizeof o,
                                    .hidden = 2 * c + (chance(g, 20) ? 6 : 0),
                                    .activation = names[below(g, 5)],
                                    .norm_first = chance(g, 60),
                                    .rms = chance(g, 40),
                                    .no_bias = chance(g, 30),
                                    .dropout = chance(g, 30) ? 0.1 : 0,
                                    .attention = &attention};
  int64_t heads = c % 8 == 0 && c >= 32 ? c / 8 >= 8 ? 8 : 4 : c % 2 == 0 ? 2 : 1;
  if (c / heads % 2 == 0 && chance(g, 30)) attention.rope = 10000;
  g->x = quern_nn_transformer_encoder(next(g), g->x, heads, &o);
  note(g, " encoder(%d heads,%s)", (int)heads, o.activation);
}

static void recur(struct gen *g) {
  static const quern_rnn_kind kinds[] = {QUERN_RNN_TANH, QUERN_RNN_RELU, QUERN_RNN_LSTM, QUERN_RNN_GRU};
  static const char *const names[] = {"rnn_tanh", "rnn_relu", "lstm", "gru"};
  int kind = below(g, 4);
  quern_nn_rnn_options o = {
      .size = sizeof o, .layers = 1 + below(g, 2), .batch_first = true, .bidirectional = chance(g, 40)};
  g->x = quern_nn_rnn(next(g), g->x, features(g), kinds[kind], NULL, &o);
  note(g, " %s(%s%d)", names[kind], o.bidirectional ? "both," : "", o.layers);
}

/* Over time, with channels first for a moment. */
static void convolve_time(struct gen *g) {
  g->x = quern_permute(g->x, QUERN_LIST(0, 2, 1));
  convolve(g);
  if (chance(g, 50)) norm_channels(g);
  activate(g);
  g->x = quern_permute(g->x, QUERN_LIST(0, 2, 1));
}

static void add_sequence_layer(struct gen *g) {
  switch (below(g, 7)) {
  case 0:
  case 1: encode(g); break;
  case 2: recur(g); break;
  case 3: convolve_time(g); break;
  case 4:
    g->x = quern_nn_linear(next(g), g->x, features(g), NULL);
    note(g, " linear");
    activate(g);
    break;
  case 5:
    g->x = chance(g, 50) ? quern_nn_layer_norm(next(g), g->x, NULL) : quern_nn_rms_norm(next(g), g->x, NULL);
    note(g, " norm");
    break;
  case 6: drop(g); break;
  }
}

/* ---- rows: (B, C) -------------------------------------------------------------------------------------------------- */

static void add_row_layer(struct gen *g) {
  int64_t c = dim(g, 1), b = dim(g, 0);
  switch (below(g, 6)) {
  case 0:
  case 1:
    g->x = quern_nn_linear(next(g), g->x, features(g), NULL);
    note(g, " linear");
    if (chance(g, 50)) norm_batch(g);
    activate(g);
    break;
  case 2:
    g->x = quern_nn_layer_norm(next(g), g->x, NULL);
    note(g, " layer_norm");
    break;
  case 3: /* a product, then groups of its columns */
    g->x = quern_nn_linear(next(g), g->x, 4 * (c < 64 ? c : 64), NULL);
    g->x = quern_max(quern_reshape(g->x, QUERN_LIST(b, -1, 4)), QUERN_LIST(2), false);
    note(g, " maxout");
    break;
  case 4: {
    quern_tensor *from = g->x;
    g->x = quern_nn_linear(next(g), g->x, c, NULL);
    activate(g);
    g->x = quern_add(g->x, from);
    note(g, " residual_linear");
    break;
  }
  case 5: drop(g); break;
  }
}

/* ---- whole networks ------------------------------------------------------------------------------------------------ */

static quern_tensor *input(struct gen *g, int i, quern_dtype dtype, int n, const int64_t *dims, int64_t most) {
  static const char *const names[NET_INPUTS] = {"inputs", "labels"};
  g->net->inputs[i] = quern_input(quern_model_context(quern_scope_model(g->scope)), names[i], dtype, n, dims);
  g->net->below[i] = most;
  return g->net->inputs[i];
}

/* What pictures end in: rows, of means, of all pixels or of a few. */
static void to_rows(struct gen *g) {
  int64_t b = dim(g, 0), c = dim(g, 1), elements = 1, sizes[] = {1, 1, 1};
  for (int i = 1; i < rank(g); i++) elements *= dim(g, i);
  bool flat = elements <= 20000 && chance(g, 50);
  if (!flat) g->x = quern_adaptive_avg_pool(g->x, spatial(g), sizes);
  g->x = quern_reshape(g->x, QUERN_LIST(b, flat ? elements : c));
  note(g, flat ? " flatten" : " global_pool");
}

static void classify(struct gen *g) {
  int64_t classes = PICK(g, 2, 3, 10, 17, 100);
  bool texts = rank(g) == 3 && chance(g, 50);
  if (rank(g) == 3 && !texts) {
    g->x = quern_mean(g->x, QUERN_LIST(1), false);
    note(g, " mean");
  }
  g->net->out = quern_nn_linear(next(g), g->x, classes, NULL);
  note(g, " linear(%d) cross_entropy", (int)classes);
  quern_tensor *labels = texts ? input(g, 1, QUERN_DTYPE_I32, QUERN_LIST(dim(g, 0), dim(g, 1)), classes)
                               : input(g, 1, QUERN_DTYPE_I32, QUERN_LIST(dim(g, 0)), classes);
  g->net->loss = quern_cross_entropy(g->net->out, labels, NULL);
}

/* A picture of as many pixels, as a segmentation or an autoencoder has it. */
static void regress(struct gen *g) {
  int64_t window[] = {1, 1, 1}, dims[QUERN_MAX_RANK];
  int n = spatial(g);
  g->net->out = quern_nn_conv(next(g), g->x, 3, n, window, NULL);
  for (int i = 0; i < n + 2; i++) dims[i] = quern_tensor_dim(g->net->out, i);
  note(g, " conv mse");
  g->net->loss = quern_mse_loss(g->net->out, input(g, 1, QUERN_DTYPE_F32, n + 2, dims, 0), QUERN_REDUCTION_MEAN);
}

static void make_picture(struct gen *g, int n) {
  int64_t c = PICK(g, 1, 3, 3, 4), side = n == 1   ? PICK(g, 20, 50, 128, 200)
                                          : n == 2 ? PICK(g, 7, 14, 28, 32, 33, 48, 56, 64, 96, 112)
                                                   : PICK(g, 6, 8, 12, 16);
  int64_t batch = PICK(g, 1, 2, 4, 8, 16, 32, 64);
  if (side > 48 && batch > 8) batch = 8;
  if (g->small) batch = PICK(g, 1, 2, 3), side = n == 1 ? PICK(g, 7, 12) : n == 2 ? PICK(g, 4, 5, 8) : 4;
  int64_t dims[] = {batch, c, side, side, side};
  g->x = input(g, 0, QUERN_DTYPE_F32, n + 2, dims, 0);
  note(g, "x(%d,%d,%d)", (int)batch, (int)c, (int)side);
  for (int i = 0, most = 2 + below(g, g->small ? 3 : 6); i < most; i++) add_picture_layer(g);
  if (chance(g, 25)) {
    regress(g);
    return;
  }
  to_rows(g);
  for (int i = 0, most = below(g, 3); i < most; i++) add_row_layer(g);
  classify(g);
}

static void make_sequence(struct gen *g) {
  enum { VOCABULARY = 97 };
  int64_t batch = g->small ? PICK(g, 1, 2, 3) : PICK(g, 1, 2, 4, 8, 16, 32);
  int64_t length = g->small ? PICK(g, 3, 5, 8) : PICK(g, 12, 16, 33, 64, 100, 128, 256, 512);
  int64_t c = g->small ? PICK(g, 4, 6, 8) : PICK(g, 16, 32, 48, 64, 96, 128, 256);
  bool texts = chance(g, 60);
  g->x = texts ? input(g, 0, QUERN_DTYPE_I32, QUERN_LIST(batch, length), VOCABULARY)
               : input(g, 0, QUERN_DTYPE_F32, QUERN_LIST(batch, length, c), 0);
  if (texts) g->x = quern_nn_embedding(next(g), g->x, VOCABULARY, c, NULL);
  note(g, "%s(%d,%d,%d)", texts ? "text" : "x", (int)batch, (int)length, (int)c);
  if (chance(g, 40)) g->x = quern_nn_position(next(g), g->x, length, NULL, NULL);
  for (int i = 0, most = 1 + below(g, g->small ? 2 : 4); i < most; i++) add_sequence_layer(g);
  classify(g);
}

static void make_rows(struct gen *g) {
  int64_t batch = g->small ? PICK(g, 3, 7, 9) : PICK(g, 1, 7, 16, 32, 64, 128, 256, 1000);
  int64_t c = g->small ? PICK(g, 3, 5, 8) : PICK(g, 10, 13, 64, 100, 128, 784);
  g->x = input(g, 0, QUERN_DTYPE_F32, QUERN_LIST(batch, c), 0);
  note(g, "x(%d,%d)", (int)batch, (int)c);
  for (int i = 0, most = 1 + below(g, 5); i < most; i++) add_row_layer(g);
  classify(g);
}

void nets_random(struct net *net, quern_model *model, uint64_t seed, bool small) {
  struct gen g = {.net = net, .scope = quern_model_scope(model), .state = seed, .small = small};
  *net = (struct net){0};
  switch (below(&g, 10)) {
  case 0: make_picture(&g, 1); break;
  case 1: make_picture(&g, 3); break;
  case 2:
  case 3:
  case 4: make_sequence(&g); break;
  case 5: make_rows(&g); break;
  default: make_picture(&g, 2); break;
  }
}
