/* quern/models.h -- networks that people ask for by name: language models, ResNets, an MLP
** Like layers they are functions of a scope that return expressions; parameters have the names that others use for them.
*/
#ifndef QUERN_MODELS_H
#define QUERN_MODELS_H
#include "quern/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- transformers (lm.c) --------------------------------------------------------------------------------------------- */

/* Names of parameters: "transformer.h.0.attn.c_attn.weight" as nanoGPT and llm.c have them, or "model.layers.0.self_attn.q_proj.weight". */
typedef enum quern_lm_names { QUERN_LM_GPT2, QUERN_LM_LLAMA } quern_lm_names;

typedef struct quern_lm_options {
  size_t size;
  quern_lm_names names;
  int64_t vocabulary, positions; /* tokens there are; the most in a row */
  int64_t layers, width, heads;
  int64_t kv_heads; /* 0: as many as heads */
  int64_t hidden;   /* of the feed-forward part; 0: 4 width */
  bool rms;         /* RMSNorm instead of LayerNorm */
  bool no_bias, untied, post_norm;
  const char *activation; /* gelu_tanh, gelu, relu, silu, swiglu, geglu, reglu; NULL: gelu_tanh */
  const char *position;   /* learned, rope, sinusoidal, none; NULL: learned */
  double dropout, eps;    /* 0: 1e-5 */
  double rope_base;       /* 0: 10000 */
  /* Generation: keys and values of `cache` positions are kept, and tokens begin at start, an integer scalar. */
  int64_t cache;
  quern_tensor *start;
  /* Training: what leaves every so many layers, but the last, is a checkpoint (quern_checkpoint_activation), and what lies
  ** between may be computed again by a program with gradient_checkpointing; 0: there are no checkpoints. */
  int64_t checkpoint_every;
} quern_lm_options;

/* Fills the sizes of a model: gpt2:124M, gpt2:355M, gpt2:774M, gpt2:1558M (also gpt2:small, medium, large, xl), modern:WIDTHxLAYERS
** (RMSNorm, SwiGLU, rope, no biases). The error lists the names. */
QUERN_API quern_status quern_lm_named(quern_lm_options *options, const char *name) QUERN_NODISCARD;
/* Sets checkpoint_every by a word: none, block (every layer), every:N, sqrt (the root of the number of layers), auto (none: a
** program's memory_limit decides). Programs are to be compiled with gradient_checkpointing = checkpoint_every > 0. */
QUERN_API quern_status quern_lm_set_checkpointing(quern_lm_options *options, const char *word) QUERN_NODISCARD;

/* tokens (B, T) of integers -> (B, T, width), after the last norm. hidden (may be NULL): layers + 1 tensors, what enters each layer
** and what leaves the last. */
QUERN_API quern_tensor *quern_lm_hidden(quern_scope *scope, quern_tensor *tokens, const quern_lm_options *options,
                                        quern_tensor **hidden);
/* (B, T, width) -> logits (B, T, vocabulary). */
QUERN_API quern_tensor *quern_lm_logits(quern_scope *scope, quern_tensor *x, const quern_lm_options *options);
/* The mean cross-entropy of the labels (B, T). Labels of -1 do not count. */
QUERN_API quern_tensor *quern_lm_loss(quern_scope *scope, quern_tensor *tokens, quern_tensor *labels,
                                      const quern_lm_options *options);

/* ---- others (resnet.c, small.c) --------------------------------------------------------------------------------------- */

/* x (N, C, H, W) -> (N, classes): depth 18, 34 or 50, with torchvision's names. small: for images of 32 x 32, which are not
** halved twice at the start. */
QUERN_API quern_tensor *quern_resnet(quern_scope *scope, quern_tensor *x, int depth, int64_t classes, bool small);
/* x (N, ..) -> (N, out): n hidden layers of these widths. "layers.0.weight". activation NULL: relu. */
QUERN_API quern_tensor *quern_mlp(quern_scope *scope, quern_tensor *x, int n, const int64_t *widths, int64_t out,
                                  const char *activation);
/* tokens (B, T) -> logits (B, T, vocabulary): embedding "encoder", LSTM "rnn", "decoder". state may be NULL. */
QUERN_API quern_tensor *quern_lstm_lm(quern_scope *scope, quern_tensor *tokens, int64_t vocabulary, int64_t width,
                                      int64_t hidden, int layers, double dropout, quern_rnn_state *state);

#ifdef __cplusplus
}
#endif
#endif
