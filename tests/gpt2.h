/* tests/gpt2.h -- GPT-2 as a graph, for tests and benchmarks: loss, gradients, and AdamW of tensor operations */
#ifndef TESTS_GPT2_H
#define TESTS_GPT2_H
#include <stdio.h>

#include "quern/quern.h"

enum { GPT2_MOST_PARAMETERS = 12 * 48 + 8 };

struct gpt2 {
  int64_t layers, B, T, C, H, V; /* batch, tokens, width, heads, vocabulary */
  quern_context *ctx;
  size_t n;
  quern_tensor *parameter[GPT2_MOST_PARAMETERS], *gradient[GPT2_MOST_PARAMETERS], *loss;
};

static inline struct gpt2 gpt2_small(quern_context *of) {
  return (struct gpt2){.layers = 12, .B = 1, .T = 1024, .C = 768, .H = 12, .V = 50257, .ctx = of};
}

static inline quern_tensor *gpt2_parameter(struct gpt2 *m, int rank, const int64_t *dims) {
  char name[32];
  snprintf(name, sizeof name, "p%zu", m->n);
  return m->parameter[m->n++] = quern_state(m->ctx, name, QUERN_DTYPE_F32, rank, dims);
}

static inline quern_tensor *gpt2_linear(struct gpt2 *m, quern_tensor *x, int64_t in, int64_t out) {
  quern_tensor *weight = gpt2_parameter(m, QUERN_LIST(out, in)), *bias = gpt2_parameter(m, QUERN_LIST(out));
  return quern_linear(x, weight, bias);
}

static inline quern_tensor *gpt2_norm(struct gpt2 *m, quern_tensor *x) {
  quern_tensor *weight = gpt2_parameter(m, QUERN_LIST(m->C)), *bias = gpt2_parameter(m, QUERN_LIST(m->C));
  return quern_layer_norm(x, 1, weight, bias, 1e-5);
}

/* Third `part` of qkv (B, T, 3C) as heads (B, H, T, C / H). */
static inline quern_tensor *gpt2_heads(const struct gpt2 *m, quern_tensor *qkv, int64_t part) {
  quern_tensor *x = quern_slice(qkv, 2, part * m->C, (part + 1) * m->C, 1);
  return quern_transpose(quern_reshape(x, QUERN_LIST(m->B, m->T, m->H, m->C / m->H)), 1, 2);
}

static inline quern_tensor *gpt2_layer(struct gpt2 *m, quern_tensor *x) {
  quern_attention_options causal = {.size = sizeof causal, .causal = true};
  int64_t C = m->C;
  quern_tensor *qkv = gpt2_linear(m, gpt2_norm(m, x), C, 3 * C); /* (B, T, 3C) */
  quern_tensor *y = quern_attention(gpt2_heads(m, qkv, 0), gpt2_heads(m, qkv, 1), gpt2_heads(m, qkv, 2), NULL, &causal,
                                    NULL); /* (B, H, T, C / H) */
  y = quern_reshape(quern_transpose(y, 1, 2), QUERN_LIST(m->B, m->T, C));
  x = quern_add(x, gpt2_linear(m, y, C, C));
  return quern_add(x, gpt2_linear(m, quern_gelu_tanh(gpt2_linear(m, gpt2_norm(m, x), C, 4 * C)), 4 * C, C));
}

/* The loss and the gradients of all parameters. */
static inline quern_status gpt2_build(struct gpt2 *m) {
  quern_tensor *tokens = quern_input(m->ctx, "tokens", QUERN_DTYPE_I32, QUERN_LIST(m->B, m->T));
  quern_tensor *labels = quern_input(m->ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(m->B, m->T));
  quern_tensor *embedding = gpt2_parameter(m, QUERN_LIST(m->V, m->C));
  quern_tensor *positions = gpt2_parameter(m, QUERN_LIST(m->T, m->C));
  quern_tensor *x = quern_add(quern_gather(embedding, tokens, 0), positions); /* (B, T, C) */
  for (int64_t i = 0; i < m->layers; i++) x = gpt2_layer(m, x);
  quern_tensor *logits = quern_linear(gpt2_norm(m, x), embedding, NULL); /* (B, T, V) */
  m->loss = quern_cross_entropy(logits, labels, NULL);
  return quern_grad(m->loss, m->n, m->parameter, m->gradient);
}

/* The next values of a parameter and its two moments from its gradient: Loshchilov and Hutter, "Decoupled weight decay
** regularization". step: an f32 scalar, 1 for the first. */
static inline void gpt2_adamw(quern_tensor *p, quern_tensor *m, quern_tensor *v, quern_tensor *g, quern_tensor *step,
                              quern_tensor *next[3]) {
  quern_context *of = quern_tensor_context(p);
  quern_tensor *one = quern_scalar(of, QUERN_DTYPE_F32, 1);
  quern_tensor *first = quern_sub(one, quern_pow(quern_scalar(of, QUERN_DTYPE_F32, 0.9), step));
  quern_tensor *second = quern_sub(one, quern_pow(quern_scalar(of, QUERN_DTYPE_F32, 0.999), step));
  next[1] = quern_add(quern_mul_scalar(m, 0.9), quern_mul_scalar(g, 0.1));
  next[2] = quern_add(quern_mul_scalar(v, 0.999), quern_mul_scalar(quern_square(g), 0.001));
  quern_tensor *size = quern_add_scalar(quern_sqrt(quern_div(next[2], second)), 1e-8);
  quern_tensor *move = quern_add(quern_div(quern_div(next[1], first), size), quern_mul_scalar(p, 0.01));
  next[0] = quern_sub(p, quern_mul_scalar(move, 3e-4));
}

/* What a step makes of all parameters and their moments: 3 n updates. */
static inline size_t gpt2_update(const struct gpt2 *m, quern_update *updates) {
  quern_tensor *step = quern_input(m->ctx, "step", QUERN_DTYPE_F32, 0, NULL);
  for (size_t i = 0; i < m->n; i++) {
    quern_tensor *p = m->parameter[i], *states[3] = {p}, *next[3];
    for (int k = 1; k < 3; k++) {
      char name[32];
      snprintf(name, sizeof name, "%c%zu", "pmv"[k], i);
      states[k] = quern_state(m->ctx, name, QUERN_DTYPE_F32, quern_tensor_rank(p), quern_tensor_dims(p));
    }
    gpt2_adamw(p, states[1], states[2], m->gradient[i], step, next);
    for (size_t k = 0; k < 3; k++) updates[3 * i + k] = (quern_update){states[k], next[k]};
  }
  return 3 * m->n;
}

#endif
