/* driver/bench_build.c -- how long graphs take to build, forward and backward
** GPT-2 small (12 layers, 768 wide, 12 heads, vocabulary 50257, 1024 tokens) to the gradients of all
** parameters, and chains of 10,000 and 100,000 nodes, whose times must grow as their sizes.
*/
#include <stdio.h>
#include <stdlib.h>

#include "driver/driver.h"

enum {
  LAYERS = 12,
  B = 1,
  T = 1024,
  C = 768,
  H = 12,
  V = 50257,
  RUNS = 5,
  PER_LAYER = 12,
  MAX_PARAMETERS = LAYERS * PER_LAYER + 8
};

struct model {
  quern_context *ctx;
  size_t n;
  quern_tensor *parameter[MAX_PARAMETERS];
};

static quern_tensor *parameter(struct model *m, int rank, const int64_t *dims) {
  char name[32];
  snprintf(name, sizeof name, "p%zu", m->n);
  return m->parameter[m->n++] = quern_state(m->ctx, name, QUERN_DTYPE_F32, rank, dims);
}

static quern_tensor *linear(struct model *m, quern_tensor *x, int64_t in, int64_t out) {
  quern_tensor *weight = parameter(m, QUERN_LIST(out, in)), *bias = parameter(m, QUERN_LIST(out));
  return quern_linear(x, weight, bias);
}

static quern_tensor *norm(struct model *m, quern_tensor *x) {
  quern_tensor *weight = parameter(m, QUERN_LIST(C)), *bias = parameter(m, QUERN_LIST(C));
  return quern_layer_norm(x, 1, weight, bias, 1e-5);
}

/* Third `part` of qkv (B, T, 3C) as heads (B, H, T, C / H). */
static quern_tensor *heads(quern_tensor *qkv, int64_t part) {
  quern_tensor *x = quern_slice(qkv, 2, part * C, (part + 1) * C, 1);
  return quern_transpose(quern_reshape(x, QUERN_LIST(B, T, H, C / H)), 1, 2);
}

static quern_tensor *layer(struct model *m, quern_tensor *x) {
  quern_attention_options causal = {.size = sizeof causal, .causal = true};
  quern_tensor *qkv = linear(m, norm(m, x), C, 3 * C); /* (B, T, 3C) */
  quern_tensor *y =
      quern_attention(heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), NULL, &causal, NULL); /* (B, H, T, C / H) */
  y = quern_reshape(quern_transpose(y, 1, 2), QUERN_LIST(B, T, C));
  x = quern_add(x, linear(m, y, C, C));
  return quern_add(x, linear(m, quern_gelu_tanh(linear(m, norm(m, x), C, 4 * C)), 4 * C, C));
}

static quern_status gpt2(quern_context *ctx) {
  struct model m = {.ctx = ctx};
  quern_tensor *dx[MAX_PARAMETERS];
  quern_tensor *tokens = quern_input(ctx, "tokens", QUERN_DTYPE_I32, QUERN_LIST(B, T));
  quern_tensor *labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(B, T));
  quern_tensor *embedding = parameter(&m, QUERN_LIST(V, C)), *positions = parameter(&m, QUERN_LIST(T, C));
  quern_tensor *x = quern_add(quern_gather(embedding, tokens, 0), positions); /* (B, T, C) */
  for (int i = 0; i < LAYERS; i++) x = layer(&m, x);
  quern_tensor *logits = quern_linear(norm(&m, x), embedding, NULL); /* (B, T, V) */
  return quern_grad(quern_cross_entropy(logits, labels, NULL), m.n, m.parameter, dx);
}

static quern_status chain(quern_context *ctx, int nodes) {
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(16)), *y = x, *dx;
  for (int i = 0; i < nodes; i++) y = i % 2 == 0 ? quern_sin(y) : quern_mul(y, x);
  return quern_grad(quern_sum(y, QUERN_ALL, false), 1, &x, &dx);
}
static quern_status chain_10k(quern_context *ctx) { return chain(ctx, 10000); }
static quern_status chain_100k(quern_context *ctx) { return chain(ctx, 100000); }

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median of RUNS builds, each in a new context, in ms; negative after an error. */
static double time_build(const char *name, const char *aim, quern_status (*build_graph)(quern_context *ctx)) {
  double ms[RUNS];
  size_t nodes = 0, bytes = 0;
  for (int i = 0; i < RUNS; i++) {
    quern_context *ctx;
    double start = base_clock();
    if (quern_context_new(&ctx, NULL) != QUERN_STATUS_OK || build_graph(ctx) != QUERN_STATUS_OK) {
      printf("%s: %s\n", name, quern_last_error());
      return -1;
    }
    ms[i] = (base_clock() - start) * 1e3;
    nodes = quern_context_nodes(ctx);
    bytes = quern_context_memory(ctx).peak_bytes;
    quern_context_free(ctx);
  }
  qsort(ms, RUNS, sizeof *ms, by_value);
  printf("%-28s %9.2f ms %8zu nodes %7.1f MiB  aim %s\n", name, ms[RUNS / 2], nodes, (double)bytes / (1 << 20), aim);
  return ms[RUNS / 2];
}

int bench_build(void) {
  double model = time_build("gpt2 forward and backward", "< 50 ms", gpt2);
  double small = time_build("chain of 10000 and gradient", "< 100 ms", chain_10k);
  double large = time_build("chain of 100000 and gradient", "10 times that", chain_100k);
  if (model < 0 || small < 0 || large < 0) return 1;
  printf("growth from 10000 to 100000 nodes: %.1f times (linear: 10)\n", large / small);
  return 0;
}
