/* models/lm.c -- transformers over tokens: GPT-2 and its modern relatives
** see:   Radford et al., "Language models are unsupervised multitask learners" (2019); Touvron et al., "LLaMA" (2023)
** tests: tests/models/test_lm.c
*/
#include <math.h>
#include <stdio.h>

#include "quern/models.h"
#include "tensor/tensor.h"

/* What parameters are called. */
static const struct names {
  const char *embedding, *position, *layer, *norm1, *attention, *out, *norm2, *up, *down, *last, *head;
} names[] = {
    [QUERN_LM_GPT2] = {"transformer.wte", "transformer.wpe", "transformer.h", "ln_1", "attn", "attn.c_proj", "ln_2",
                       "mlp.c_fc", "mlp.c_proj", "transformer.ln_f", "lm_head"},
    [QUERN_LM_LLAMA] = {"model.embed_tokens", "model.embed_positions", "model.layers", "input_layernorm", "self_attn",
                        "self_attn.o_proj", "post_attention_layernorm", "mlp.up_proj", "mlp.down_proj", "model.norm",
                        "lm_head"},
};

/* A model that is being built. */
struct lm {
  const quern_lm_options *o;
  const struct names *names;
  quern_scope *scope;
  quern_init plain, last; /* of weights, and of those that add to the residual stream */
};

static const quern_init zero = {QUERN_INIT_CONSTANT, 0, 0};

/* ---- options -------------------------------------------------------------------------------------------- */

static bool is_one_of(const char *word, size_t n, const char *const *words) {
  for (size_t i = 0; word != NULL && i < n; i++)
    if (strcmp(word, words[i]) == 0) return true;
  return word == NULL;
}

/* The options of a call; NULL when they can be built, else the poison, with the error recorded. */
static quern_tensor *wrong(quern_context *ctx, const char *what, const quern_lm_options *options, quern_lm_options *o) {
  static const char *const activations[] = {"gelu_tanh", "gelu", "relu", "silu", "swiglu", "geglu", "reglu"};
  static const char *const positions[] = {"learned", "rope", "sinusoidal", "none"};
  TENSOR_CHECK(ctx, options != NULL, INVALID, "%s: the options are null", what);
  if (!tensor_options(ctx, what, o, sizeof *o, options, "quern_lm_options")) return &ir_poison;
  TENSOR_CHECK(ctx, (unsigned)o->names < BASE_COUNT(names), INVALID, "%s: there are no names number %d", what,
               (int)o->names);
  TENSOR_CHECK(ctx, o->vocabulary > 0 && o->positions > 0 && o->layers > 0 && o->width > 0 && o->heads > 0, INVALID,
               "%s: %lld tokens, %lld positions, %lld layers, width %lld, %lld heads; all must be 1 at least", what,
               (long long)o->vocabulary, (long long)o->positions, (long long)o->layers, (long long)o->width,
               (long long)o->heads);
  TENSOR_CHECK(ctx, o->width % o->heads == 0 && o->kv_heads >= 0 && (o->kv_heads == 0 || o->heads % o->kv_heads == 0),
               INVALID, "%s: width %lld, %lld heads, %lld of keys and values: each must divide the one before", what,
               (long long)o->width, (long long)o->heads, (long long)o->kv_heads);
  TENSOR_CHECK(ctx, is_one_of(o->activation, BASE_COUNT(activations), activations), INVALID,
               "%s: there is no activation '%.32s' here", what, o->activation);
  TENSOR_CHECK(ctx, is_one_of(o->position, BASE_COUNT(positions), positions), INVALID,
               "%s: positions are learned, rope, sinusoidal or none, not '%.32s'", what, o->position);
  TENSOR_CHECK(ctx, o->checkpoint_every >= 0, INVALID, "%s: what leaves every %lld layers is to be kept", what,
               (long long)o->checkpoint_every);
  return NULL;
}

static const char *activation_of(const quern_lm_options *o) {
  return o->activation != NULL ? o->activation : "gelu_tanh";
}
static const char *position_of(const quern_lm_options *o) { return o->position != NULL ? o->position : "learned"; }
static int64_t hidden_of(const quern_lm_options *o) { return o->hidden > 0 ? o->hidden : 4 * o->width; }
static int64_t kv_heads_of(const quern_lm_options *o) { return o->kv_heads > 0 ? o->kv_heads : o->heads; }

quern_status quern_lm_named(quern_lm_options *options, const char *name) {
  static const struct {
    const char *name, *alias;
    int64_t layers, width, heads;
  } sizes[] = {{"gpt2:124M", "gpt2:small", 12, 768, 12},
               {"gpt2:355M", "gpt2:medium", 24, 1024, 16},
               {"gpt2:774M", "gpt2:large", 36, 1280, 20},
               {"gpt2:1558M", "gpt2:xl", 48, 1600, 25}};
  QUERN_CHECK(options != NULL, INVALID, "lm_named: the place for the options is null");
  QUERN_CHECK(name != NULL, INVALID, "lm_named: the name is null");
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    if (strcmp(name, sizes[i].name) != 0 && strcmp(name, sizes[i].alias) != 0) continue;
    quern_lm_options o = {.names = QUERN_LM_GPT2,
                          .vocabulary = 50257,
                          .positions = 1024,
                          .layers = sizes[i].layers,
                          .width = sizes[i].width,
                          .heads = sizes[i].heads};
    return base_give(quern_lm_options, options, &o, "lm_named");
  }
  int width, layers, used = 0;
  bool modern = sscanf(name, "modern:%6dx%4d%n", &width, &layers, &used) == 2 && name[used] == 0 && width >= 64 &&
                width % 64 == 0 && layers >= 1;
  QUERN_CHECK(modern, INVALID,
              "lm_named: there is no model '%.64s'; there are gpt2:124M, gpt2:355M, gpt2:774M, gpt2:1558M and "
              "modern:WIDTHxLAYERS "
              "with a width that 64 divides",
              name);
  quern_lm_options o = {.names = QUERN_LM_LLAMA,
                        .vocabulary = 50257,
                        .positions = 1024,
                        .layers = layers,
                        .width = width,
                        .heads = width / 64,
                        .hidden = (8 * (int64_t)width / 3 + 63) / 64 * 64,
                        .rms = true,
                        .no_bias = true,
                        .activation = "swiglu",
                        .position = "rope"};
  return base_give(quern_lm_options, options, &o, "lm_named");
}

quern_status quern_lm_set_checkpointing(quern_lm_options *options, const char *word) {
  QUERN_CHECK(options != NULL, INVALID, "lm_set_checkpointing: the options are null");
  QUERN_CHECK(word != NULL, INVALID, "lm_set_checkpointing: the word is null");
  quern_lm_options o = QUERN_INIT(quern_lm_options);
  QUERN_TRY(base_take(quern_lm_options, &o, options, "lm_set_checkpointing"));
  int64_t every = -1;
  int n, used = 0;
  if (strcmp(word, "none") == 0 || strcmp(word, "auto") == 0) every = 0;
  if (strcmp(word, "block") == 0) every = 1;
  if (strcmp(word, "sqrt") == 0) every = BASE_MAX((int64_t)round(sqrt((double)BASE_MAX(o.layers, 1))), 1);
  if (sscanf(word, "every:%6d%n", &n, &used) == 1 && word[used] == 0 && n > 0) every = n;
  QUERN_CHECK(every >= 0, INVALID,
              "lm_set_checkpointing: there is no '%.32s'; there are none, block, every:N, sqrt and auto", word);
  o.checkpoint_every = every;
  return base_give(quern_lm_options, options, &o, "lm_set_checkpointing");
}

/* ---- parts ---------------------------------------------------------------------------------------------- */

static quern_tensor *linear(const struct lm *m, quern_scope *in, const char *name, quern_tensor *x, int64_t out,
                            const quern_init *init) {
  quern_nn_linear_options options = {
      .size = sizeof options, .no_bias = m->o->no_bias, .weight_init = init, .bias_init = &zero};
  return quern_nn_linear(quern_scope_in(in, name), x, out, &options);
}

static quern_tensor *norm(const struct lm *m, quern_scope *in, const char *name, quern_tensor *x) {
  quern_nn_norm_options options = {
      .size = sizeof options, .eps = m->o->eps > 0 ? m->o->eps : 1e-5, .no_bias = m->o->no_bias};
  quern_scope *scope = quern_scope_in(in, name);
  return m->o->rms ? quern_nn_rms_norm(scope, x, &options) : quern_nn_layer_norm(scope, x, &options);
}

static quern_tensor *attention(const struct lm *m, quern_scope *layer, quern_tensor *x) {
  const quern_lm_options *o = m->o;
  int64_t C = o->width, kv = C / o->heads * kv_heads_of(o);
  quern_nn_attention_options options = {.size = sizeof options,
                                        .kv_heads = kv_heads_of(o),
                                        .causal = true,
                                        .dropout = o->dropout,
                                        .cache = o->cache,
                                        .position = o->start};
  if (strcmp(position_of(o), "rope") == 0) options.rope = o->rope_base > 0 ? o->rope_base : 10000;
  quern_tensor *q, *k, *v;
  if (o->names == QUERN_LM_GPT2) {
    quern_tensor *all = linear(m, layer, "attn.c_attn", x, C + 2 * kv, &m->plain);
    q = quern_slice(all, 2, 0, C, 1);
    k = quern_slice(all, 2, C, C + kv, 1);
    v = quern_slice(all, 2, C + kv, C + 2 * kv, 1);
  } else {
    q = linear(m, layer, "self_attn.q_proj", x, C, &m->plain);
    k = linear(m, layer, "self_attn.k_proj", x, kv, &m->plain);
    v = linear(m, layer, "self_attn.v_proj", x, kv, &m->plain);
  }
  quern_tensor *y = quern_nn_attend(quern_scope_in(layer, m->names->attention), q, k, v, o->heads, &options);
  return linear(m, layer, m->names->out, y, C, &m->last);
}

/* With a gate: down(act(gate x) * (up x)); the halves of quern_swiglu and its like are (gate, up). */
static quern_tensor *feed_forward(const struct lm *m, quern_scope *layer, quern_tensor *x) {
  static const struct {
    const char *gated, *plain;
  } gates[] = {{"swiglu", "silu"}, {"geglu", "gelu"}, {"reglu", "relu"}};
  const char *activation = activation_of(m->o), *gate = NULL;
  int64_t hidden = hidden_of(m->o);
  for (size_t i = 0; i < BASE_COUNT(gates); i++)
    if (strcmp(activation, gates[i].gated) == 0) gate = gates[i].plain;
  quern_tensor *open = gate != NULL ? linear(m, layer, "mlp.gate_proj", x, hidden, &m->plain) : NULL;
  quern_tensor *y = linear(m, layer, m->names->up, x, hidden, &m->plain);
  if (gate != NULL)
    y = quern_mul(quern_nn_activation(open, gate), y);
  else
    y = quern_nn_activation(y, activation);
  return linear(m, layer, m->names->down, y, m->o->width, &m->last);
}

/* x plus what a part makes of it, or the norm of that. */
typedef quern_tensor *part(const struct lm *m, quern_scope *layer, quern_tensor *x);
static quern_tensor *residual(const struct lm *m, quern_scope *layer, quern_tensor *x, part *make, const char *name) {
  quern_tensor *y = make(m, layer, m->o->post_norm ? x : norm(m, layer, name, x));
  y = quern_add(x, quern_nn_dropout(layer, y, m->o->dropout));
  return m->o->post_norm ? norm(m, layer, name, y) : y;
}

static quern_tensor *embed(const struct lm *m, quern_tensor *tokens) {
  const quern_lm_options *o = m->o;
  quern_nn_embedding_options options = {.size = sizeof options, .init = &m->plain};
  const char *position = position_of(o);
  quern_tensor *x =
      quern_nn_embedding(quern_scope_in(m->scope, m->names->embedding), tokens, o->vocabulary, o->width, &options);
  if (strcmp(position, "learned") == 0)
    x = quern_nn_position(quern_scope_in(m->scope, m->names->position), x, o->positions, o->start, &options);
  if (strcmp(position, "sinusoidal") == 0) x = quern_nn_position_sinusoidal(m->scope, x, o->positions, o->start);
  return quern_nn_dropout(m->scope, x, o->dropout);
}

static struct lm begin(quern_scope *scope, const quern_lm_options *o) {
  return (struct lm){.o = o,
                     .names = &names[o->names],
                     .scope = scope,
                     .plain = {QUERN_INIT_NORMAL, 0, 0.02},
                     .last = {QUERN_INIT_NORMAL, 0, 0.02 / sqrt(2 * (double)o->layers)}};
}

/* ---- the public door ------------------------------------------------------------------------------------ */

quern_tensor *quern_lm_hidden(quern_scope *scope, quern_tensor *tokens, const quern_lm_options *options,
                              quern_tensor **hidden) {
  quern_context *ctx = quern_model_context(quern_scope_model(scope));
  quern_lm_options o = QUERN_INIT(quern_lm_options);
  if (wrong(ctx, "lm_hidden", options, &o) != NULL) return &ir_poison;
  options = &o;
  TENSOR_CHECK(ctx, tokens != NULL, INVALID, "lm_hidden: the tokens are null");
  if (ir_is_poison(tokens)) return &ir_poison;
  TENSOR_CHECK(ctx, tokens->rank == 2 && tokens->dims[1] <= options->positions, SHAPE,
               "lm_hidden: tokens of rank %d with %lld in a row; must be (B, T) with at most %lld", tokens->rank,
               (long long)(tokens->rank == 2 ? tokens->dims[1] : 0), (long long)options->positions);
  struct lm m = begin(scope, options);
  quern_tensor *x = embed(&m, tokens);
  for (int64_t i = 0; i < options->layers; i++) {
    quern_scope *layer = quern_scope_at(scope, m.names->layer, i);
    if (hidden != NULL) hidden[i] = x;
    x = residual(&m, layer, x, attention, m.names->norm1);
    x = residual(&m, layer, x, feed_forward, m.names->norm2);
    bool keeps = options->checkpoint_every > 0 && (i + 1) % options->checkpoint_every == 0 && i + 1 < options->layers;
    if (keeps) x = quern_checkpoint_activation(x);
  }
  if (hidden != NULL) hidden[options->layers] = x;
  return options->post_norm ? x : norm(&m, scope, m.names->last, x);
}

/* The weight (vocabulary, width) that gives logits: the embedding's, unless it is untied. */
static quern_tensor *head_weight(const struct lm *m) {
  const char *name = m->o->untied ? m->names->head : m->names->embedding;
  return quern_scope_parameter(quern_scope_in(m->scope, name), "weight", QUERN_LIST(m->o->vocabulary, m->o->width),
                               m->plain);
}

quern_tensor *quern_lm_logits(quern_scope *scope, quern_tensor *x, const quern_lm_options *options) {
  quern_context *ctx = quern_model_context(quern_scope_model(scope));
  quern_lm_options o = QUERN_INIT(quern_lm_options);
  if (wrong(ctx, "lm_logits", options, &o) != NULL) return &ir_poison;
  options = &o;
  struct lm m = begin(scope, options);
  return quern_linear(x, head_weight(&m), NULL);
}

quern_tensor *quern_lm_loss(quern_scope *scope, quern_tensor *tokens, quern_tensor *labels,
                            const quern_lm_options *options) {
  quern_tensor *x = quern_lm_hidden(scope, tokens, options, NULL);
  quern_lm_options o = QUERN_INIT(quern_lm_options);
  if (ir_is_poison(x) || wrong(x->node->ctx, "lm_loss", options, &o) != NULL) return &ir_poison;
  options = &o;
  struct lm m = begin(scope, options);
  quern_cross_entropy_options counted = {.size = sizeof counted, .ignore = true, .ignore_index = -1};
  return quern_linear_cross_entropy(x, head_weight(&m), labels, &counted);
}
