/* nn/transformer.c -- encoder and decoder blocks, norms before or after
** Vaswani et al., "Attention is all you need", 2017; Xiong et al., "On layer normalization in the transformer architecture", 2020.
** tests: tests/nn/test_layers.c
*/
#include "nn/nn.h"

/* A call of a block. */
struct block {
  quern_scope *scope;
  int64_t heads;
  const quern_nn_transformer_options *o;
  quern_nn_attention_options self, cross;
};

/* ---- parts of a block -------------------------------------------------------------------------------------------- */

static quern_tensor *norm(const struct block *b, const char *name, quern_tensor *x) {
  quern_nn_norm_options o = {.size = sizeof o, .eps = b->o->eps, .no_bias = b->o->no_bias};
  quern_scope *scope = quern_scope_in(b->scope, name);
  return b->o->rms ? quern_nn_rms_norm(scope, x, &o) : quern_nn_layer_norm(scope, x, &o);
}

static quern_tensor *self_part(const struct block *b, quern_tensor *x) {
  return quern_nn_attention(quern_scope_in(b->scope, "self_attn"), x, b->heads, &b->self);
}

static quern_tensor *cross_part(const struct block *b, quern_tensor *x) {
  return quern_nn_attention(quern_scope_in(b->scope, "multihead_attn"), x, b->heads, &b->cross);
}

static quern_tensor *forward_part(const struct block *b, quern_tensor *x) {
  quern_nn_mlp_options o = {
      .size = sizeof o, .activation = b->o->activation, .no_bias = b->o->no_bias, .dropout = b->o->dropout};
  return quern_nn_mlp(b->scope, x, b->o->hidden != 0 ? b->o->hidden : 2048, &o);
}

/* x + part(norm(x)), or norm(x + part(x)). */
static quern_tensor *residual(const struct block *b, const char *name, quern_tensor *x,
                              quern_tensor *(*part)(const struct block *b, quern_tensor *x)) {
  quern_tensor *y = part(b, b->o->norm_first ? norm(b, name, x) : x);
  if (b->o->dropout > 0) y = quern_nn_dropout(b->scope, y, b->o->dropout);
  y = quern_add(x, y);
  return b->o->norm_first ? y : norm(b, name, y);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* The block of a call; heads 0 with the error recorded when it is wrong. */
static struct block enter(const struct nn_call *call, quern_tensor *x, int64_t heads,
                          const quern_nn_transformer_options *o, bool causal) {
  struct block b = {.scope = call->scope, .o = o};
  if (!nn_operand(call, "x", x, 3, "(B, S, E)") || !nn_size(call, "heads", heads) ||
      !nn_rate(call, "dropout", o->dropout))
    return b;
  b.self = b.cross = (quern_nn_attention_options){.size = sizeof b.self, .no_bias = o->no_bias, .dropout = o->dropout};
  b.self.causal = causal;
  if (o->attention != NULL) {
    if (!nn_options(call, &b.self, sizeof b.self, o->attention, "quern_nn_attention_options")) return b;
  }
  if (o->cross != NULL) {
    if (!nn_options(call, &b.cross, sizeof b.cross, o->cross, "quern_nn_attention_options")) return b;
  }
  b.heads = heads;
  return b;
}

quern_tensor *quern_nn_transformer_encoder(quern_scope *scope, quern_tensor *x, int64_t heads,
                                           const quern_nn_transformer_options *options) {
  NN_ENTER(call, "nn_transformer_encoder", scope, x);
  NN_OPTIONS(call, quern_nn_transformer_options, o, options);
  struct block b = enter(&call, x, heads, o, false);
  if (b.heads == 0) return &ir_poison;
  x = residual(&b, "norm1", x, self_part);
  return nn_leave(&call, residual(&b, "norm2", x, forward_part));
}

quern_tensor *quern_nn_transformer_decoder(quern_scope *scope, quern_tensor *x, quern_tensor *memory, int64_t heads,
                                           const quern_nn_transformer_options *options) {
  NN_ENTER(call, "nn_transformer_decoder", scope, x, memory);
  NN_OPTIONS(call, quern_nn_transformer_options, o, options);
  struct block b = enter(&call, x, heads, o, true);
  if (b.heads == 0) return &ir_poison;
  b.cross.memory = memory;
  x = residual(&b, "norm1", x, self_part);
  x = residual(&b, "norm2", x, cross_part);
  return nn_leave(&call, residual(&b, "norm3", x, forward_part));
}
