/* cli/bench_cuda_cases.c -- graphs of the suite cuda: what a card computes, with operands and results that stay on it */
#include "bench_cuda.h"

#include <string.h>

#include "quern/nn.h"

#define VALUE(key) bench_value(params, key, 1)

/* ---- states ----------------------------------------------------------------------------------------------------- */

static const char *next_name(struct cuda_graph *g) {
  char *name = g->names[g->n_states < CUDA_STATES - 1 ? g->n_states++ : CUDA_STATES - 1];
  snprintf(name, sizeof g->names[0], "s%zu", g->n_states);
  return name;
}

static quern_tensor *operand_of(struct cuda_graph *g, quern_dtype dtype, int rank, const int64_t *dims) {
  quern_tensor *x = quern_state(g->ctx, next_name(g), dtype, rank, dims);
  g->bytes += (double)quern_tensor_bytes(x);
  return x;
}

static quern_tensor *operand(struct cuda_graph *g, int rank, const int64_t *dims) {
  return operand_of(g, g->dtype, rank, dims);
}

static void result(struct cuda_graph *g, quern_tensor *y) {
  if (quern_tensor_is_poison(y) || g->n_updates == CUDA_RESULTS) return;
  quern_tensor *state =
      quern_state(g->ctx, next_name(g), quern_tensor_dtype(y), quern_tensor_rank(y), quern_tensor_dims(y));
  g->updates[g->n_updates++] = (quern_update){state, y};
  g->bytes += (double)quern_tensor_bytes(y);
}

/* The gradients of y, given dy, as results. */
static void gradients(struct cuda_graph *g, quern_tensor *y, quern_tensor *dy, size_t n, quern_tensor *const *x) {
  quern_tensor *dx[3];
  if (quern_vjp(1, &y, &dy, n, x, dx) != QUERN_STATUS_OK) return;
  for (size_t i = 0; i < n; i++) result(g, dx[i]);
}

/* ---- kinds ------------------------------------------------------------------------------------------------------ */

static quern_tensor *rows(struct cuda_graph *g, const char *params) {
  return operand(g, 2, (const int64_t[]){VALUE("rows"), VALUE("cols")});
}

static void build_copy(struct cuda_graph *g, const char *params) { result(g, rows(g, params)); }

static void build_gelu(struct cuda_graph *g, const char *params) {
  quern_tensor *x = rows(g, params), *y = quern_gelu(x);
  if (bench_value(params, "back", 0) != 0)
    gradients(g, y, rows(g, params), 1, &x);
  else
    result(g, y);
}

static void build_layernorm(struct cuda_graph *g, const char *params) {
  const int64_t cols[] = {VALUE("cols")};
  quern_tensor *x[3] = {rows(g, params), operand(g, 1, cols), operand(g, 1, cols)};
  quern_tensor *y = quern_layer_norm(x[0], 1, x[1], x[2], 1e-5);
  if (bench_value(params, "back", 0) != 0)
    gradients(g, y, rows(g, params), 3, x);
  else
    result(g, y);
}

/* Backward from the result, as PyTorch does it: dx = y (dy - sum(y dy)). */
static void build_softmax(struct cuda_graph *g, const char *params) {
  const int64_t axis = 1;
  quern_tensor *x = rows(g, params);
  if (bench_value(params, "back", 0) == 0) {
    result(g, quern_softmax(x, 1));
    return;
  }
  quern_tensor *dy = rows(g, params), *sum = quern_sum(quern_mul(x, dy), 1, &axis, true);
  result(g, quern_mul(x, quern_sub(dy, sum)));
}

static void build_linear(struct cuda_graph *g, const char *params) {
  int64_t m = VALUE("m"), k = VALUE("k"), n = VALUE("n");
  quern_tensor *x = operand(g, 2, (const int64_t[]){m, k}), *w = operand(g, 2, (const int64_t[]){n, k});
  quern_tensor *y = quern_linear(x, w, operand(g, 1, &n));
  bool tanh = bench_value(params, "tanh", 0) != 0;
  g->flops = 2.0 * (double)m * (double)k * (double)n;
  result(g, tanh ? quern_gelu_tanh(y) : quern_gelu(y));
}

static void build_gemm(struct cuda_graph *g, const char *params) {
  int64_t m = VALUE("m"), k = VALUE("k"), n = VALUE("n");
  quern_tensor *a = operand(g, 2, (const int64_t[]){m, k}), *b = operand(g, 2, (const int64_t[]){k, n});
  g->flops = 2.0 * (double)m * (double)k * (double)n;
  result(g, quern_matmul(a, b));
}

static void build_add(struct cuda_graph *g, const char *params) {
  const int64_t count[] = {VALUE("count")};
  quern_tensor *a = operand(g, 1, count), *b = operand(g, 1, count);
  result(g, quern_add(a, b));
}

static void build_sum(struct cuda_graph *g, const char *params) {
  const int64_t count[] = {VALUE("count")};
  result(g, quern_sum(operand(g, 1, count), QUERN_ALL, false));
}

static void build_attention(struct cuda_graph *g, const char *params) {
  const int64_t dims[] = {VALUE("b"), VALUE("h"), VALUE("s"), VALUE("d")};
  quern_tensor *qkv[3];
  for (int i = 0; i < 3; i++) qkv[i] = operand(g, 4, dims);
  bool causal = bench_value(params, "causal", 0) != 0, back = bench_value(params, "back", 0) != 0;
  quern_attention_options options = {.size = sizeof options, .causal = causal};
  quern_tensor *y = quern_attention(qkv[0], qkv[1], qkv[2], NULL, &options, NULL);
  double pairs = (double)dims[0] * (double)dims[1] * (double)dims[2] * (double)dims[2] * (causal ? 0.5 : 1);
  g->flops = pairs * (double)dims[3] * (back ? 14 : 4);
  result(g, y);
  if (back) gradients(g, y, operand(g, 4, dims), 3, qkv);
}

/* An expression of f32 with 16-bit activations. */
static quern_tensor *autocast(struct cuda_graph *g, quern_tensor *x) {
  quern_model *model = NULL;
  quern_autocast_options options = QUERN_INIT(quern_autocast_options);
  bool done = quern_model_new(&model, g->ctx, NULL) == QUERN_STATUS_OK &&
              quern_autocast(model, 1, &x, &x, &options) == QUERN_STATUS_OK;
  quern_model_free(model);
  return done ? x : NULL; /* a null tensor is an error of whatever takes it */
}

/* The mean cross-entropy of a linear layer's logits, and its gradients, of f32 operands as autocast computes them. */
static void build_loss(struct cuda_graph *g, const char *params) {
  int64_t m = VALUE("m"), k = VALUE("k"), n = VALUE("n");
  const int64_t rows_dims[] = {m, k}, weight_dims[] = {n, k};
  quern_tensor *x[2] = {operand_of(g, QUERN_DTYPE_F32, 2, rows_dims), operand_of(g, QUERN_DTYPE_F32, 2, weight_dims)};
  quern_tensor *dx[2];
  quern_tensor *labels = operand_of(g, QUERN_DTYPE_I32, 1, &m);
  g->below = n;
  g->flops = 6.0 * (double)m * (double)k * (double)n;
  quern_tensor *loss = quern_linear_cross_entropy(x[0], x[1], labels, NULL);
  if (g->dtype == QUERN_DTYPE_BF16) loss = autocast(g, loss);
  result(g, loss);
  if (quern_grad(loss, 2, x, dx) != QUERN_STATUS_OK) return;
  for (int i = 0; i < 2; i++) result(g, dx[i]);
}

/* A layered LSTM on (T, B, C), and its gradients: of the input and all parameters. */
static void build_lstm(struct cuda_graph *g, const char *params) {
  enum { MOST = CUDA_RESULTS - 2 };
  const int64_t dims[] = {VALUE("T"), VALUE("B"), VALUE("C")};
  quern_nn_rnn_options options = {.size = sizeof options, .layers = (int)VALUE("layers")};
  quern_tensor *x = operand_of(g, QUERN_DTYPE_F32, 3, dims), *all[MOST], *results[MOST], *dx[MOST];
  size_t n = 0;
  g->flops = 48.0 * (double)options.layers * (double)dims[0] * (double)dims[1] * (double)dims[2] * (double)dims[2];
  if (quern_model_new(&g->model, g->ctx, NULL) != QUERN_STATUS_OK) return;
  quern_tensor *y = quern_nn_rnn(quern_model_scope(g->model), x, dims[2], QUERN_RNN_LSTM, NULL, &options);
  all[n++] = x;
  for (size_t i = 0; i < quern_model_parameter_count(g->model) && n < MOST; i++) {
    quern_parameter parameter = QUERN_INIT(quern_parameter);
    if (quern_model_parameter(g->model, i, &parameter) == QUERN_STATUS_OK) all[n++] = parameter.tensor;
  }
  quern_tensor *dy = operand_of(g, QUERN_DTYPE_F32, 3, dims);
  if (quern_vjp(1, &y, &dy, n, all, dx) != QUERN_STATUS_OK) return;
  results[0] = y;
  for (size_t i = 0; i < n; i++) results[1 + i] = dx[i];
  if (g->dtype == QUERN_DTYPE_BF16) {
    quern_autocast_options how = QUERN_INIT(quern_autocast_options);
    if (quern_autocast(g->model, n + 1, results, results, &how) != QUERN_STATUS_OK) return;
  }
  for (size_t i = 0; i <= n; i++) result(g, results[i]);
}

static const struct {
  const char *name;
  void (*build)(struct cuda_graph *graph, const char *params);
} kinds[] = {{"copy", build_copy},
             {"gelu", build_gelu},
             {"layernorm", build_layernorm},
             {"softmax", build_softmax},
             {"linear_gelu", build_linear},
             {"gemm", build_gemm},
             {"add", build_add},
             {"sum", build_sum},
             {"attention", build_attention},
             {"linear_loss", build_loss},
             {"lstm", build_lstm}};

quern_status cuda_graph_begin(struct cuda_graph *graph, const struct cuda_case *c) {
  bool half = bench_value(c->params, "bf16", 0) != 0;
  *graph = (struct cuda_graph){.dtype = half ? QUERN_DTYPE_BF16 : QUERN_DTYPE_F32};
  quern_status status = quern_context_new(&graph->ctx, NULL);
  if (status != QUERN_STATUS_OK) return status;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strcmp(kinds[i].name, c->kind) == 0) kinds[i].build(graph, c->params);
  return quern_context_check(graph->ctx);
}

void cuda_graph_end(struct cuda_graph *graph) {
  quern_model_free(graph->model);
  quern_context_free(graph->ctx);
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

#define LARGE(kind, more, quick)                                                                                       \
  { "kernels", kind, "rows=16384 cols=8192" more, "eager compile", quick }
#define BOTH(kind, quick)                                                                                              \
  LARGE(kind, "", false), LARGE(kind, " bf16=1", quick), LARGE(kind, " back=1", false),                                \
      LARGE(kind, " bf16=1 back=1", quick)
#define ATTENTION(shape, more, modes, quick)                                                                           \
  { "attention", "attention", shape more, modes, quick }
#define SMALL_HEADS "b=8 h=12 s=2048 d=64"
#define LARGE_HEADS "b=4 h=16 s=8192 d=128"

const struct cuda_case cuda_cases[] = {
    LARGE("copy", "", true), /* first: what it reaches is the floor of the others */
    BOTH("gelu", true),
    BOTH("layernorm", true),
    BOTH("softmax", true),
    {"kernels", "gelu", "rows=4096 cols=1024", "eager replay", true},
    {"kernels", "layernorm", "rows=4096 cols=1024", "eager replay", true},
    {"kernels", "softmax", "rows=4096 cols=1024", "eager replay", false},
    {"kernels", "linear_gelu", "m=65536 k=768 n=3072 bf16=1", "eager compile", true},
    {"kernels", "linear_gelu", "m=65536 k=768 n=3072 bf16=1 tanh=1", "eager compile", true},
    {"kernels", "linear_gelu", "m=2048 k=2048 n=2048 bf16=1", "eager replay", true},
    {"kernels", "linear_gelu", "m=2048 k=2048 n=2048 bf16=1 tanh=1", "eager replay", false},
    {"kernels", "gemm", "m=1000 k=1000 n=1000", "eager replay", true},
    {"kernels", "gemm", "m=8192 k=8192 n=8192 bf16=1", "eager", false},
    {"kernels", "add", "count=1000000", "eager replay", true},
    {"kernels", "sum", "count=1000000", "eager replay", true},
    ATTENTION(SMALL_HEADS, " causal=1 bf16=1", "cudnn flash", true),
    ATTENTION(SMALL_HEADS, " causal=1 bf16=1 back=1", "cudnn flash", true),
    ATTENTION(SMALL_HEADS, " causal=1 bf16=1 back=1 fast=1", "cudnn flash", true),
    ATTENTION(LARGE_HEADS, " causal=1 bf16=1", "cudnn flash", false),
    ATTENTION(LARGE_HEADS, " causal=1 bf16=1 back=1", "cudnn flash", false),
    ATTENTION(LARGE_HEADS, " causal=1 bf16=1 back=1 fast=1", "cudnn flash", false),
    ATTENTION(SMALL_HEADS, "", "efficient", true),
    ATTENTION(SMALL_HEADS, " back=1", "efficient", true),
    ATTENTION(SMALL_HEADS, " causal=1", "efficient", false),
    ATTENTION(SMALL_HEADS, " causal=1 back=1", "efficient", false),
    {"loss", "linear_loss", "m=65536 k=768 n=50304 bf16=1", "eager compile", true},
    {"lstm", "lstm", "layers=2 C=1024 B=64 T=128", "eager", false},
    {"lstm", "lstm", "layers=2 C=1024 B=64 T=128 fast=1", "eager", true},
    {"lstm", "lstm", "layers=2 C=1024 B=64 T=128 bf16=1", "eager", true},
    {0},
};
