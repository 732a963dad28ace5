/* cli/zoo_text.c -- the zoo's transformers over tokens */
#include "zoo.h"

#define V(key) zoo_value(z, key)

static quern_tensor *tokens(struct zoo *z, const char *name, int64_t length) {
  return zoo_integers(z, name, V("V"), QUERN_LIST(z->batch, length));
}

/* ---- decoders: Radford et al. 2019; Touvron et al., "LLaMA", 2023 ----------------------------------------------- */

static quern_tensor *language_model(struct zoo *z, quern_lm_options *o) {
  o->vocabulary = V("V");
  o->positions = V("T");
  o->layers = V("layers");
  o->width = V("C");
  o->heads = V("H");
  quern_tensor *ids = tokens(z, "tokens", o->positions);
  if (z->train) return quern_lm_loss(z->scope, ids, tokens(z, "labels", o->positions), o);
  return quern_lm_logits(z->scope, quern_lm_hidden(z->scope, ids, o, NULL), o);
}

quern_tensor *zoo_gpt2(struct zoo *z) {
  quern_lm_options o = QUERN_INIT(quern_lm_options);
  return language_model(z, &o);
}

quern_tensor *zoo_modern(struct zoo *z) {
  quern_lm_options o = QUERN_INIT(quern_lm_options);
  o.names = QUERN_LM_LLAMA;
  o.kv_heads = V("KV");
  o.hidden = V("F");
  o.rms = o.no_bias = true;
  o.activation = "swiglu";
  o.position = "rope";
  return language_model(z, &o);
}

/* ---- encoders: Devlin et al., "BERT", 2019; Vaswani et al. 2017 ------------------------------------------------- */

/* Tokens and learned positions, as vectors. */
static quern_tensor *embedded(struct zoo *z, quern_scope *scope, const char *name, int64_t length) {
  static const quern_init init = {QUERN_INIT_NORMAL, 0, 0.02};
  quern_nn_embedding_options o = QUERN_INIT(quern_nn_embedding_options);
  o.init = &init;
  quern_tensor *ids = tokens(z, name, length);
  quern_tensor *x = quern_nn_embedding(quern_scope_in(scope, "tokens"), ids, V("V"), V("C"), &o);
  return quern_nn_position(quern_scope_in(scope, "positions"), x, length, NULL, &o);
}

static quern_tensor *head(struct zoo *z, quern_tensor *x) {
  return zoo_classes(z, quern_nn_linear(quern_scope_in(z->scope, "head"), x, V("V"), NULL));
}

quern_tensor *zoo_bert(struct zoo *z) {
  quern_nn_transformer_options o = QUERN_INIT(quern_nn_transformer_options);
  o.hidden = 4 * V("C");
  o.activation = "gelu";
  quern_tensor *x = embedded(z, z->scope, "ids", V("T"));
  x = quern_nn_layer_norm(quern_scope_in(z->scope, "norm"), x, NULL);
  for (int64_t i = 0; i < V("layers"); i++)
    x = quern_nn_transformer_encoder(quern_scope_at(z->scope, "layers", i), x, V("H"), &o);
  return head(z, x);
}

quern_tensor *zoo_encdec(struct zoo *z) {
  quern_nn_transformer_options o = QUERN_INIT(quern_nn_transformer_options);
  o.hidden = 4 * V("C");
  o.norm_first = true;
  quern_tensor *memory = embedded(z, quern_scope_in(z->scope, "source"), "source", V("S"));
  for (int64_t i = 0; i < V("layers"); i++)
    memory = quern_nn_transformer_encoder(quern_scope_at(z->scope, "encoder", i), memory, V("H"), &o);
  memory = quern_nn_layer_norm(quern_scope_in(z->scope, "norm_encoder"), memory, NULL);
  quern_tensor *x = embedded(z, quern_scope_in(z->scope, "target"), "tokens", V("T"));
  for (int64_t i = 0; i < V("layers"); i++)
    x = quern_nn_transformer_decoder(quern_scope_at(z->scope, "decoder", i), x, memory, V("H"), &o);
  return head(z, quern_nn_layer_norm(quern_scope_in(z->scope, "norm_decoder"), x, NULL));
}

/* ---- mixture of experts: Lepikhin et al., "GShard", 2020 --------------------------------------------------------- */

enum { CHOICES = 2 };

/* Row of an expert's block that each choice (N, CHOICES) of an expert gets, or one that is outside when it is full. */
static quern_tensor *slots(quern_tensor *experts, int64_t n, int64_t E, int64_t capacity) {
  quern_tensor *flat = quern_reshape(experts, QUERN_LIST(n * CHOICES));
  quern_tensor *chosen = quern_one_hot(flat, E, QUERN_DTYPE_I32);
  quern_tensor *before = quern_cumsum(chosen, 0); /* with itself */
  quern_tensor *column = quern_unsqueeze(flat, 1);
  quern_tensor *rank = quern_add_scalar(quern_squeeze(quern_take_along(before, column, 1), 1), -1);
  quern_tensor *row = quern_add(quern_mul_scalar(flat, (double)capacity), rank);
  quern_tensor *full = quern_ge(rank, quern_full_like(rank, (double)capacity));
  return quern_where(full, quern_full_like(row, (double)(E * capacity)), row);
}

static quern_tensor *expert_weight(quern_scope *scope, const char *name, int64_t E, int64_t in, int64_t out) {
  return quern_scope_parameter(scope, name, QUERN_LIST(E, in, out), (quern_init){QUERN_INIT_NORMAL, 0, 0.02});
}

/* Every token's two best experts, each for capacity tokens at most; what is beyond that contributes nothing. */
static quern_tensor *experts(struct zoo *z, quern_scope *scope, quern_tensor *x) {
  int64_t C = V("C"), E = V("E"), F = V("F"), n = z->batch * V("T"), capacity = (CHOICES * n * 5 / 4 + E - 1) / E;
  quern_nn_linear_options plain = QUERN_INIT(quern_nn_linear_options);
  plain.no_bias = true;
  quern_tensor *rows = quern_reshape(x, QUERN_LIST(n, C)), *chosen;
  quern_tensor *gates = quern_softmax(quern_nn_linear(quern_scope_in(scope, "gate"), rows, E, &plain), 1);
  quern_tensor *best = quern_topk(gates, CHOICES, 1, true, &chosen);
  best = quern_div(best, quern_sum(best, QUERN_LIST(1), true));
  quern_tensor *slot = slots(quern_cast(chosen, QUERN_DTYPE_I32), n, E, capacity);
  quern_tensor *twice = quern_broadcast_to(quern_unsqueeze(rows, 1), QUERN_LIST(n, CHOICES, C));
  quern_tensor *empty = quern_zeros(z->ctx, z->dtype, QUERN_LIST(E * capacity, C));
  quern_tensor *given =
      quern_scatter(empty, slot, quern_reshape(twice, QUERN_LIST(n * CHOICES, C)), 0, QUERN_SCATTER_SET);
  quern_tensor *up = expert_weight(scope, "up", E, C, F), *down = expert_weight(scope, "down", E, F, C);
  quern_tensor *y = quern_gelu(quern_matmul(quern_reshape(given, QUERN_LIST(E, capacity, C)), up));
  y = quern_reshape(quern_matmul(y, down), QUERN_LIST(E * capacity, C));
  y = quern_reshape(quern_gather(y, slot, 0), QUERN_LIST(n, CHOICES, C));
  y = quern_sum(quern_mul(y, quern_unsqueeze(best, 2)), QUERN_LIST(1), false);
  return quern_reshape(y, quern_tensor_rank(x), quern_tensor_dims(x));
}

quern_tensor *zoo_moe(struct zoo *z) {
  quern_nn_attention_options causal = QUERN_INIT(quern_nn_attention_options);
  causal.causal = true;
  quern_tensor *x = embedded(z, z->scope, "ids", V("T"));
  for (int64_t i = 0; i < V("layers"); i++) {
    quern_scope *layer = quern_scope_at(z->scope, "layers", i);
    quern_tensor *y = quern_nn_layer_norm(quern_scope_in(layer, "norm1"), x, NULL);
    x = quern_add(x, quern_nn_attention(quern_scope_in(layer, "attn"), y, V("H"), &causal));
    y = quern_nn_layer_norm(quern_scope_in(layer, "norm2"), x, NULL);
    x = quern_add(x, experts(z, layer, y));
  }
  return head(z, quern_nn_layer_norm(quern_scope_in(z->scope, "norm"), x, NULL));
}
