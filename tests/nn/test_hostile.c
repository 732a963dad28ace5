/* tests/nn/test_hostile.c -- every layer survives random operands, sizes and options, most of them good, some at the ends of
** their types
** After each call the result is right as ir_verify sees it and no error is recorded, or it is the poison and an error is recorded, or
** an operand was poison; results of small nodes evaluate. A failure prints the layer and the round; numbers depend on nothing else.
*/
#include <limits.h>
#include <math.h>

#include "nn/nn.h"
#include "quern/quern.h"
#include "unit.h"

enum { ROUNDS = 200, SMALL = 5000 };

/* ---- random numbers (splitmix64) --------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t random_word(void) {
  uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

static int between(int lo, int hi) { return lo + (int)(random_word() % (uint64_t)(hi - lo + 1)); }
static bool percent(int p) { return between(0, 99) < p; }
static bool some(void) { return percent(25); }
#define PICK(table) ((table)[random_word() % (sizeof(table) / sizeof *(table))])

static int64_t number(void) {
  static const int64_t hostile[] = {INT64_MIN, INT64_MAX, INT64_MAX / 2, INT64_MAX / 3, INT32_MAX, INT64_C(1) << 40,
                                    -1,        0};
  return percent(4) ? PICK(hostile) : between(1, 4);
}

static int64_t places(void) { return percent(90) ? between(4, 7) : number(); }
static int64_t option(void) { return percent(70) ? 0 : number(); }

static double rate(void) {
  static const double rates[] = {-1, 1, 2, (double)NAN, (double)INFINITY};
  return percent(4) ? PICK(rates) : percent(50) ? 0 : 0.5;
}

static double real(void) {
  static const double reals[] = {-1, 1e300, (double)NAN, -(double)INFINITY};
  return percent(4) ? PICK(reals) : percent(60) ? 0 : 0.5;
}

static const char *word(void) {
  static const char *const words[] = {"relu", "gelu", "swiglu", "softmax", "none", "rellu", "", "reflect", "circular"};
  return percent(70) ? NULL : PICK(words);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static quern_model *model;
static bool excused;                      /* an operand was poison or the scope was null */
static int64_t call_dims[QUERN_MAX_RANK]; /* of most operands of a call */

static quern_scope *scope(void) {
  static const char *const names[] = {"a", "b", "h.0", "h.1"};
  if (percent(1)) return excused = true, NULL;
  return percent(20) ? quern_model_scope(model) : quern_scope_in(quern_model_scope(model), PICK(names));
}

/* A tensor of about that rank; of integers for ids. */
static quern_tensor *tensor(int rank, bool ints) {
  static const int64_t sizes[] = {0, INT64_C(1) << 20, INT64_C(1) << 40, INT64_MAX};
  int64_t dims[QUERN_MAX_RANK];
  if (percent(1)) return excused = true, &ir_poison;
  if (percent(1)) return NULL;
  if (percent(5)) rank = between(0, 6);
  for (int k = 0; k < rank; k++) dims[k] = percent(2) ? PICK(sizes) : percent(10) ? between(1, 4) : call_dims[k];
  quern_dtype dtype = percent(2) ? (quern_dtype)between(0, QUERN_DTYPE_COUNT - 1) : QUERN_DTYPE_F32;
  quern_tensor *x = quern_zeros(ctx, ints ? QUERN_DTYPE_I32 : dtype, rank, dims);
  if (quern_context_check(ctx) == QUERN_STATUS_OK) return x;
  return quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(2, 3));
}

static quern_tensor *maybe(int rank) { return percent(80) ? NULL : tensor(rank, false); }
static quern_tensor *place(void) {
  return percent(70) ? NULL : percent(95) ? quern_scalar(ctx, QUERN_DTYPE_I32, 1) : tensor(0, false);
}

#define OPTIONS(type, ...) (percent(20) ? NULL : &(type){.size = percent(97) ? sizeof(type) : 8, __VA_ARGS__})
#define LINEAR OPTIONS(quern_nn_linear_options, .no_bias = some(), .activation = word(), .no_fuse = some())
#define MLP OPTIONS(quern_nn_mlp_options, .out = option(), .activation = word(), .dropout = rate())
#define TABLE OPTIONS(quern_nn_embedding_options, .padded = some(), .padding = number())
#define TRIPLE                                                                                                         \
  { option(), option(), option() }
#define CONV                                                                                                           \
  OPTIONS(quern_nn_conv_options, .stride = TRIPLE, .padding = TRIPLE, .dilation = TRIPLE, .output_padding = TRIPLE,    \
          .groups = option(), .same = some(), .padding_mode = word(), .no_bias = some())
#define NORM                                                                                                           \
  OPTIONS(quern_nn_norm_options, .eps = real(), .axes = percent(90) ? 0 : between(-1, 5), .momentum = real(),          \
          .no_affine = some(), .no_bias = some(), .no_tracking = some())
#define INSTANCE_NORM                                                                                                  \
  OPTIONS(quern_nn_instance_norm_options, .eps = real(), .momentum = real(), .affine = some(), .no_bias = some(),      \
          .tracking = some())
#define RNN                                                                                                            \
  OPTIONS(quern_nn_rnn_options, .layers = percent(90) ? between(0, 3) : -1, .no_bias = some(), .batch_first = some(),  \
          .bidirectional = some(), .dropout = rate(), .projection = percent(90) ? 0 : number())
#define ATTENTION                                                                                                      \
  OPTIONS(quern_nn_attention_options, .kv_heads = percent(80) ? 0 : number(), .memory = maybe(3), .mask = maybe(4),    \
          .causal = some(), .no_bias = some(), .dropout = rate(), .scale = real(), .rope = percent(80) ? 0 : 100,      \
          .rope_interleaved = some(), .cache = percent(80) ? 0 : between(1, 6),                                        \
          .cache_used = percent(90) ? 0 : number(), .open = some(), .position = place())
#define BLOCK                                                                                                          \
  OPTIONS(quern_nn_transformer_options, .hidden = number(), .activation = word(), .norm_first = some(), .rms = some(), \
          .no_bias = some(), .eps = real(), .dropout = rate(), .attention = percent(80) ? NULL : ATTENTION)

static const int64_t *window(void) {
  static int64_t sizes[4];
  for (int i = 0; i < 4; i++) sizes[i] = percent(3) ? number() : between(1, 3);
  return percent(1) ? NULL : sizes;
}

static quern_rnn_state *states(int rank) {
  static quern_rnn_state state;
  if (some()) return NULL;
  state = (quern_rnn_state){maybe(rank), maybe(rank)};
  return &state;
}

static quern_rnn_kind kind(void) { return (quern_rnn_kind)(percent(97) ? between(0, 3) : 7); }
static int axes(void) { return percent(97) ? between(1, 3) : 4; }

static quern_tensor *conv(bool transposed) {
  int n = axes();
  quern_tensor *x = tensor(n + 2, false);
  const int64_t *size = window();
  return transposed ? quern_nn_conv_transpose(scope(), x, number(), n, size, CONV)
                    : quern_nn_conv(scope(), x, number(), n, size, CONV);
}

static quern_tensor *sequential(void) {
  static const char *const kinds[] = {"linear", "conv",    "batch_norm", "layer_norm", "relu",    "dropout",
                                      "mlp",    "flatten", "max_pool",   "rms_norm",   "encoder", "gelu"};
  const quern_pool_options pool = {.size = sizeof pool, .window = {1, 1, 1}};
  quern_nn_step steps[3];
  for (int i = 0; i < 3; i++) {
    steps[i] = (quern_nn_step){.kind = PICK(kinds), .out = number(), .n = 2, .window = {1, 1}, .p = rate()};
    if (strcmp(steps[i].kind, "max_pool") == 0) steps[i].options = &pool;
  }
  return quern_nn_sequential(scope(), tensor(4, false), between(0, 3), steps);
}

/* ---- the layers -------------------------------------------------------------------------------------------------- */

#define EACH(LAYER)                                                                                                    \
  LAYER(linear, quern_nn_linear(scope(), tensor(2, false), number(), LINEAR))                                          \
  LAYER(bilinear, quern_nn_bilinear(scope(), tensor(2, false), tensor(2, false), number(), LINEAR))                    \
  LAYER(mlp, quern_nn_mlp(scope(), tensor(2, false), number(), MLP))                                                   \
  LAYER(embedding, quern_nn_embedding(scope(), tensor(2, true), number(), number(), TABLE))                            \
  LAYER(unembed, quern_nn_unembed(scope(), tensor(2, false), number(), TABLE))                                         \
  LAYER(position, quern_nn_position(scope(), tensor(3, false), places(), place(), TABLE))                              \
  LAYER(position_sinusoidal, quern_nn_position_sinusoidal(scope(), tensor(3, false), places(), place()))               \
  LAYER(conv, conv(false))                                                                                             \
  LAYER(conv_transpose, conv(true))                                                                                    \
  LAYER(layer_norm, quern_nn_layer_norm(scope(), tensor(3, false), NORM))                                              \
  LAYER(rms_norm, quern_nn_rms_norm(scope(), tensor(3, false), NORM))                                                  \
  LAYER(batch_norm, quern_nn_batch_norm(scope(), tensor(3, false), NORM))                                              \
  LAYER(group_norm, quern_nn_group_norm(scope(), tensor(3, false), number(), NORM))                                    \
  LAYER(instance_norm, quern_nn_instance_norm(scope(), tensor(3, false), INSTANCE_NORM))                               \
  LAYER(dropout, quern_nn_dropout(scope(), tensor(3, false), rate()))                                                  \
  LAYER(dropout_spatial, quern_nn_dropout_spatial(scope(), tensor(3, false), rate()))                                  \
  LAYER(rnn, quern_nn_rnn(scope(), tensor(3, false), number(), kind(), states(3), RNN))                                \
  LAYER(rnn_cell, quern_nn_rnn_cell(scope(), tensor(2, false), number(), kind(), states(2), RNN))                      \
  LAYER(attention, quern_nn_attention(scope(), tensor(3, false), number(), ATTENTION))                                 \
  LAYER(attend, quern_nn_attend(scope(), tensor(3, false), tensor(3, false), tensor(3, false), number(), ATTENTION))   \
  LAYER(encoder, quern_nn_transformer_encoder(scope(), tensor(3, false), number(), BLOCK))                             \
  LAYER(decoder, quern_nn_transformer_decoder(scope(), tensor(3, false), tensor(3, false), number(), BLOCK))           \
  LAYER(sequential, sequential())                                                                                      \
  LAYER(activation, quern_nn_activation(tensor(2, false), percent(50) ? "gelu" : word()))

#define FUNCTION(name, ...)                                                                                            \
  static quern_tensor *call_##name(void) { return __VA_ARGS__; }
EACH(FUNCTION)

static const struct layer {
  const char *name;
  quern_tensor *(*call)(void);
} layers[] = {
#define ROW(name, ...) {#name, call_##name},
    EACH(ROW)};

/* ---- what must hold ---------------------------------------------------------------------------------------------- */

/* Evaluates x with zeros as states, unless a tensor on the way is large. True when it was evaluated. */
static bool evaluate(quern_tensor *x) {
  static char zeros[8 * SMALL], result[8 * SMALL];
  quern_feed feeds[128];
  size_t n = 0;
  struct ir_order order;
  bool small = true;
  EXPECT_OK(ir_topo(ctx, 1, &x, &order));
  for (size_t i = 0; i < order.n; i++) {
    struct ir_node *node = order.at[i];
    for (int k = 0; k < node->n_out; k++) {
      const quern_tensor *t = &node->out[k];
      small &= ir_count(t) <= SMALL;
      for (int axis = 0; axis < t->rank; axis++) small &= t->dims[axis] <= SMALL; /* what is inside may be large */
    }
    if (node->op == IR_STATE && n < 128) feeds[n++] = (quern_feed){&node->out[0], zeros};
  }
  ir_order_fini(ctx, &order);
  if (!small || n == 128) return false;
  EXPECT_OK(quern_eval_reference(ctx, 1, &x, (void *[]){result}, n, feeds));
  return true;
}

static void run_layer(void **state) {
  const struct layer *layer = *state;
  int good = 0, evaluated = 0;
  for (int round = 0; round < ROUNDS; round++) {
    random_state = (uint64_t)round * 1000003 + base_hash_string(BASE_HASH_SEED, layer->name);
    test_renew();
    quern_model_options options = {.size = sizeof options, .inference = !percent(70), .seed = 1};
    EXPECT_OK(quern_model_new(&model, ctx, &options));
    excused = false;
    for (int k = 0; k < QUERN_MAX_RANK; k++) call_dims[k] = k < 2 ? between(1, 4) : 2 * between(1, 2);
    quern_tensor *y = layer->call();
    quern_status status = quern_context_check(ctx);
    bool poison = quern_tensor_is_poison(y), lost = quern_last_error()[0] != '\0';
    if (y == NULL || (!poison && status != QUERN_STATUS_OK) ||
        (poison && status == QUERN_STATUS_OK && !excused && !lost) || status == QUERN_STATUS_INTERNAL ||
        (!poison && ir_verify(ctx, 1, &y) != QUERN_STATUS_OK)) {
      print_error("%s, round %d: %s, %s: %s\n", layer->name, round, poison ? "poison" : "a result",
                  quern_status_name(status), quern_last_error());
      fail();
    }
    good += !poison;
    if (!poison) evaluated += evaluate(y);
    quern_model_free(model);
    model = NULL;
  }
  if (good < ROUNDS / 8 || good > ROUNDS - ROUNDS / 20 || evaluated < good / 2) {
    print_error("%s: of %d calls %d are good, %d evaluated\n", layer->name, ROUNDS, good, evaluated);
    fail();
  }
}

static int layer_teardown(void **state) {
  quern_model_free(model);
  model = NULL;
  return test_teardown(state);
}

int main(void) {
  static struct CMUnitTest tests[BASE_COUNT(layers)];
  for (size_t i = 0; i < BASE_COUNT(layers); i++) {
    const struct layer *layer = &layers[i];
    tests[i] = (struct CMUnitTest){layer->name, run_layer, test_setup, layer_teardown, (void *)(uintptr_t)layer};
  }
  return cmocka_run_group_tests_name("hostile layers", tests, NULL, NULL);
}
