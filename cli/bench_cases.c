/* cli/bench_cases.c -- the graphs that are measured, by kind: built from the numbers of a case */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

int64_t bench_value(const char *params, const char *key, int64_t otherwise) {
  size_t n = strlen(key);
  for (const char *at = params; (at = strstr(at, key)) != NULL; at += n)
    if ((at == params || at[-1] == ' ') && at[n] == '=') return strtoll(at + n + 1, NULL, 10);
  return otherwise;
}

#define VALUE(key) bench_value(params, key, 1)

static quern_tensor *matrix(struct bench_graph *g, const char *name, int64_t rows, int64_t cols) {
  return bench_input(g, name, 2, (int64_t[]){rows, cols});
}

/* A weight: an input, or, when it is packed in advance, elements that the program knows. */
static quern_tensor *weight(struct bench_graph *g, const char *params, int64_t rows, int64_t cols) {
  if (bench_value(params, "packed", 0) == 0) return matrix(g, "w", rows, cols);
  return bench_known(g, 2, (int64_t[]){rows, cols});
}

static void build_gemm(struct bench_graph *g, const char *params) {
  int64_t m = VALUE("m"), k = VALUE("k"), n = VALUE("n");
  g->flops = 2.0 * (double)m * (double)k * (double)n;
  bench_output(g, quern_matmul(matrix(g, "x", m, k), weight(g, params, k, n)));
}

/* Weights as (in, out), as oneDNN gets them; transposed=1: as (out, in). */
static quern_tensor *linear(struct bench_graph *g, const char *params) {
  int64_t m = VALUE("m"), k = VALUE("k"), n = VALUE("n");
  g->flops = 2.0 * (double)m * (double)k * (double)n;
  quern_tensor *x = matrix(g, "x", m, k), *bias = bench_input(g, "bias", 1, &n);
  if (bench_value(params, "transposed", 0) != 0) return quern_linear(x, weight(g, params, n, k), bias);
  return quern_add(quern_matmul(x, weight(g, params, k, n)), bias);
}

static void build_linear_gelu(struct bench_graph *g, const char *params) {
  bench_output(g, quern_gelu(linear(g, params)));
}
static void build_linear_relu(struct bench_graph *g, const char *params) {
  bench_output(g, quern_relu(linear(g, params)));
}

static quern_tensor *rows(struct bench_graph *g, const char *params, const char *name) {
  g->flops += (double)VALUE("rows") * (double)VALUE("cols");
  return matrix(g, name, VALUE("rows"), VALUE("cols"));
}

static quern_tensor *layer_norm(struct bench_graph *g, quern_tensor *x, int64_t n, quern_tensor **w, quern_tensor **b) {
  *w = bench_input(g, "weight", 1, &n);
  *b = bench_input(g, "bias", 1, &n);
  return quern_layer_norm(x, 1, *w, *b, 1e-5);
}

static void build_gelu(struct bench_graph *g, const char *params) { bench_output(g, quern_gelu(rows(g, params, "x"))); }
static void build_softmax(struct bench_graph *g, const char *params) {
  bench_output(g, quern_softmax(rows(g, params, "x"), 1));
}
static void build_layernorm(struct bench_graph *g, const char *params) {
  quern_tensor *w, *b;
  bench_output(g, layer_norm(g, rows(g, params, "x"), VALUE("cols"), &w, &b));
}

/* The gradients of y, given dy, as outputs. */
static void gradients(struct bench_graph *g, quern_tensor *y, quern_tensor *dy, size_t n, quern_tensor *const *x) {
  quern_tensor *dx[3];
  if (quern_vjp(1, &y, &dy, n, x, dx) != QUERN_STATUS_OK) return;
  for (size_t i = 0; i < n; i++) bench_output(g, dx[i]);
}

static void build_gelu_back(struct bench_graph *g, const char *params) {
  quern_tensor *x = rows(g, params, "x");
  gradients(g, quern_gelu(x), rows(g, params, "dy"), 1, &x);
}

/* From the result, as PyTorch does it: dx = y (dy - sum(y dy)). */
static void build_softmax_back(struct bench_graph *g, const char *params) {
  const int64_t axis = 1;
  quern_tensor *y = rows(g, params, "y"), *dy = rows(g, params, "dy");
  bench_output(g, quern_mul(y, quern_sub(dy, quern_sum(quern_mul(y, dy), 1, &axis, true))));
}

static void build_layernorm_back(struct bench_graph *g, const char *params) {
  quern_tensor *x[3] = {rows(g, params, "x")};
  quern_tensor *y = layer_norm(g, x[0], VALUE("cols"), &x[1], &x[2]);
  gradients(g, y, rows(g, params, "dy"), 3, x);
}

/* Forward and backward: the statistics of the rows serve both, as PyTorch hands them from one to the other. */
static void build_layernorm_train(struct bench_graph *g, const char *params) {
  quern_tensor *x[3] = {rows(g, params, "x")};
  quern_tensor *y = layer_norm(g, x[0], VALUE("cols"), &x[1], &x[2]);
  bench_output(g, y);
  gradients(g, y, rows(g, params, "dy"), 3, x);
}

static void build_attention(struct bench_graph *g, const char *params) {
  const int64_t dims[] = {VALUE("b"), VALUE("h"), VALUE("s"), VALUE("d")};
  quern_tensor *qkv[3] = {bench_input(g, "q", 4, dims), bench_input(g, "k", 4, dims), bench_input(g, "v", 4, dims)};
  quern_attention_options options = {.size = sizeof options, .causal = bench_value(params, "causal", 0) != 0};
  quern_tensor *y = quern_attention(qkv[0], qkv[1], qkv[2], NULL, &options, NULL);
  double pairs = (double)dims[0] * (double)dims[1] * (double)dims[2] * (double)dims[2] * (options.causal ? 0.5 : 1);
  bool back = bench_value(params, "back", 0) != 0;
  g->flops = pairs * (double)dims[3] * (back ? 14 : 4);
  bench_output(g, y);
  if (back) gradients(g, y, bench_input(g, "dy", 4, dims), 3, qkv);
}

/* The convolution of a case: its input x, weights w, and what each output takes of multiplications. */
static quern_tensor *convolve(struct bench_graph *g, const char *params, quern_tensor *x, quern_tensor *w) {
  int64_t stride = VALUE("stride"), pad = bench_value(params, "pad", 0);
  quern_conv_options options = {.size = sizeof options,
                                .groups = VALUE("groups"),
                                .stride = {stride, stride},
                                .pad_lo = {pad, pad},
                                .pad_hi = {pad, pad}};
  quern_tensor *y = quern_conv2d(x, w, NULL, &options);
  g->flops =
      2.0 * (double)(quern_tensor_bytes(y) / 4) * (double)(VALUE("c") / VALUE("groups") * VALUE("kh") * VALUE("kw"));
  return y;
}

static quern_tensor *image(struct bench_graph *g, const char *params) {
  return bench_input(g, "x", 4, (int64_t[]){VALUE("n"), VALUE("c"), VALUE("h"), VALUE("w")});
}

/* As in inference: weights are elements that the program knows, as oneDNN's are in a layout of its own before it is timed. */
static void build_conv(struct bench_graph *g, const char *params) {
  int64_t weights[] = {VALUE("o"), VALUE("c") / VALUE("groups"), VALUE("kh"), VALUE("kw")};
  quern_tensor *x = image(g, params), *w = bench_known(g, 4, weights);
  bench_output(g, convolve(g, params, x, w));
}

/* As in training: weights change from step to step. */
static void build_conv_some(struct bench_graph *g, const char *params, bool y, bool dx, bool dw) {
  int64_t weights[] = {VALUE("o"), VALUE("c") / VALUE("groups"), VALUE("kh"), VALUE("kw")}, dims[4];
  quern_tensor *x = image(g, params), *w = bench_input(g, "k", 4, weights), *out = convolve(g, params, x, w);
  if (y) bench_output(g, out);
  for (int k = 0; k < 4; k++) dims[k] = quern_tensor_dim(out, k);
  if (dx) gradients(g, out, bench_input(g, "dy", 4, dims), 1, &x);
  if (dw) gradients(g, out, bench_input(g, "dy", 4, dims), 1, &w);
}
static void build_conv_y(struct bench_graph *g, const char *params) { build_conv_some(g, params, true, false, false); }
static void build_conv_dx(struct bench_graph *g, const char *params) { build_conv_some(g, params, false, true, false); }
static void build_conv_dw(struct bench_graph *g, const char *params) { build_conv_some(g, params, false, false, true); }

static quern_tensor *flat(struct bench_graph *g, const char *params, const char *name) {
  const int64_t n = VALUE("count");
  g->flops = (double)n;
  return bench_input(g, name, 1, &n);
}
static void build_add(struct bench_graph *g, const char *params) {
  bench_output(g, quern_add(flat(g, params, "a"), flat(g, params, "b")));
}
static void build_exp(struct bench_graph *g, const char *params) { bench_output(g, quern_exp(flat(g, params, "x"))); }
static void build_tanh(struct bench_graph *g, const char *params) { bench_output(g, quern_tanh(flat(g, params, "x"))); }
static void build_sum(struct bench_graph *g, const char *params) {
  bench_output(g, quern_sum(flat(g, params, "x"), QUERN_ALL, false));
}

static const struct bench_kind kinds[] = {{"gemm", build_gemm},
                                          {"linear_gelu", build_linear_gelu},
                                          {"linear_relu", build_linear_relu},
                                          {"gelu", build_gelu},
                                          {"softmax", build_softmax},
                                          {"layernorm", build_layernorm},
                                          {"gelu_back", build_gelu_back},
                                          {"softmax_back", build_softmax_back},
                                          {"layernorm_back", build_layernorm_back},
                                          {"layernorm_train", build_layernorm_train},
                                          {"attention", build_attention},
                                          {"conv", build_conv},
                                          {"conv_y", build_conv_y},
                                          {"conv_dx", build_conv_dx},
                                          {"conv_dw", build_conv_dw},
                                          {"add", build_add},
                                          {"exp", build_exp},
                                          {"tanh", build_tanh},
                                          {"sum", build_sum},
                                          {NULL, NULL}};

const struct bench_kind *bench_kind_find(const char *name) {
  for (const struct bench_kind *kind = kinds; kind->name != NULL; kind++)
    if (strcmp(kind->name, name) == 0) return kind;
  return NULL;
}
