/* cli/bench_patterns.c -- patterns that the compiler is to fuse: with composites, and written out with primitives */
#include "bench.h"

#define VALUE(key) bench_value(params, key, 1)

static const int64_t last = -1;

static quern_tensor *matrix(struct bench_graph *g, const char *name, int64_t rows, int64_t cols) {
  return bench_input(g, name, 2, (int64_t[]){rows, cols});
}

static quern_tensor *vector(struct bench_graph *g, const char *name, int64_t n) { return bench_input(g, name, 1, &n); }

static quern_tensor *scalar_of(quern_tensor *x, double value) {
  return quern_scalar(quern_tensor_context(x), quern_tensor_dtype(x), value);
}

/* ---- composites by hand ----------------------------------------------------------------------------------- */

static quern_tensor *hand_gelu(quern_tensor *x) {
  quern_tensor *phi = quern_add_scalar(quern_erf(quern_mul_scalar(x, 0.70710678118654752440)), 1);
  return quern_mul(x, quern_mul_scalar(phi, 0.5));
}

static quern_tensor *hand_relu(quern_tensor *x) {
  return quern_where(quern_gt(x, scalar_of(x, 0)), x, scalar_of(x, 0));
}

static quern_tensor *hand_layer_norm(quern_tensor *x, quern_tensor *weight, quern_tensor *bias) {
  quern_tensor *centered = quern_sub(x, quern_mean(x, 1, &last, true));
  quern_tensor *variance = quern_mean(quern_mul(centered, centered), 1, &last, true);
  quern_tensor *y = quern_mul(centered, quern_rsqrt(quern_add_scalar(variance, 1e-5)));
  return quern_add(quern_mul(y, weight), bias);
}

static quern_tensor *hand_softmax(quern_tensor *x) {
  quern_tensor *e = quern_exp(quern_sub(x, quern_max(x, 1, &last, true)));
  return quern_div(e, quern_sum(e, 1, &last, true));
}

static quern_tensor *hand_cross_entropy(quern_tensor *x, quern_tensor *labels) {
  quern_tensor *top = quern_max(x, 1, &last, true);
  quern_tensor *sum = quern_sum(quern_exp(quern_sub(x, top)), 1, &last, true);
  quern_tensor *at = quern_take_along(x, quern_unsqueeze(labels, 1), 1);
  return quern_mean(quern_sub(quern_add(quern_log(sum), top), at), QUERN_ALL, false);
}

/* ---- linear and what follows ------------------------------------------------------------------------------ */

static quern_tensor *linear(struct bench_graph *g, const char *params) {
  int64_t m = VALUE("m"), k = VALUE("k"), n = VALUE("n");
  g->flops = 2.0 * (double)m * (double)k * (double)n;
  quern_tensor *x = matrix(g, "x", m, k), *w = matrix(g, "w", k, n);
  return quern_add(quern_matmul(x, w), vector(g, "bias", n));
}

static void linear_gelu(struct bench_graph *g, const char *params) { bench_output(g, quern_gelu(linear(g, params))); }
static void linear_gelu_hand(struct bench_graph *g, const char *params) {
  bench_output(g, hand_gelu(linear(g, params)));
}
static void linear_relu(struct bench_graph *g, const char *params) { bench_output(g, quern_relu(linear(g, params))); }
static void linear_relu_hand(struct bench_graph *g, const char *params) {
  bench_output(g, hand_relu(linear(g, params)));
}

/* ---- convolution, normalization by known statistics, relu -------------------------------------------------- */

struct conv_bn {
  quern_tensor *x, *weight, *scale, *bias, *mean, *variance;
  quern_conv_options options;
};

static struct conv_bn conv_bn(struct bench_graph *g, const char *params) {
  int64_t c = VALUE("c"), o = VALUE("o"), hw = VALUE("hw"), k = VALUE("k"), pad = k / 2;
  g->flops = 2.0 * (double)(o * hw * hw) * (double)(c * k * k);
  return (struct conv_bn){.x = bench_input(g, "x", 4, (int64_t[]){1, c, hw, hw}),
                          .weight = bench_known(g, 4, (int64_t[]){o, c, k, k}),
                          .scale = bench_known(g, 1, &o),
                          .bias = bench_known(g, 1, &o),
                          .mean = bench_known(g, 1, &o),
                          .variance = quern_square(bench_known(g, 1, &o)),
                          .options = {.size = sizeof(quern_conv_options), .pad_lo = {pad, pad}, .pad_hi = {pad, pad}}};
}

static void conv_bn_relu(struct bench_graph *g, const char *params) {
  struct conv_bn p = conv_bn(g, params);
  quern_batch_norm_options options = {.size = sizeof options, .eps = 1e-5};
  quern_tensor *y = quern_conv2d(p.x, p.weight, NULL, &p.options);
  bench_output(g, quern_relu(quern_batch_norm(y, p.scale, p.bias, p.mean, p.variance, &options, NULL, NULL)));
}

static quern_tensor *channels(quern_tensor *x) { return quern_reshape(x, QUERN_LIST(1, -1, 1, 1)); }

static void conv_bn_relu_hand(struct bench_graph *g, const char *params) {
  struct conv_bn p = conv_bn(g, params);
  quern_tensor *y = quern_conv2d(p.x, p.weight, NULL, &p.options);
  quern_tensor *factor = quern_rsqrt(quern_add_scalar(channels(p.variance), 1e-5));
  y = quern_mul(quern_sub(y, channels(p.mean)), factor);
  bench_output(g, hand_relu(quern_add(quern_mul(y, channels(p.scale)), channels(p.bias))));
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

struct norm {
  quern_tensor *x, *weight, *bias;
};

static struct norm norm(struct bench_graph *g, const char *params) {
  int64_t rows = VALUE("m"), cols = VALUE("k");
  return (struct norm){matrix(g, "x", rows, cols), vector(g, "scale", cols), vector(g, "shift", cols)};
}

static void then_linear(struct bench_graph *g, const char *params, quern_tensor *x) {
  int64_t m = VALUE("m"), k = VALUE("k"), n = VALUE("n");
  g->flops = 2.0 * (double)m * (double)k * (double)n;
  bench_output(g, quern_add(quern_matmul(x, matrix(g, "w", k, n)), vector(g, "bias", n)));
}

static void norm_linear(struct bench_graph *g, const char *params) {
  struct norm p = norm(g, params);
  then_linear(g, params, quern_layer_norm(p.x, 1, p.weight, p.bias, 1e-5));
}
static void norm_linear_hand(struct bench_graph *g, const char *params) {
  struct norm p = norm(g, params);
  then_linear(g, params, hand_layer_norm(p.x, p.weight, p.bias));
}

/* The sum goes on to the next layer, so it is a result as well. */
static void residual_norm(struct bench_graph *g, const char *params) {
  struct norm p = norm(g, params);
  quern_tensor *sum = quern_add(p.x, matrix(g, "residual", VALUE("m"), VALUE("k")));
  bench_output(g, sum);
  bench_output(g, quern_layer_norm(sum, 1, p.weight, p.bias, 1e-5));
  g->flops = 8.0 * (double)VALUE("m") * (double)VALUE("k");
}
static void residual_norm_hand(struct bench_graph *g, const char *params) {
  struct norm p = norm(g, params);
  quern_tensor *sum = quern_add(p.x, matrix(g, "residual", VALUE("m"), VALUE("k")));
  bench_output(g, sum);
  bench_output(g, hand_layer_norm(sum, p.weight, p.bias));
  g->flops = 8.0 * (double)VALUE("m") * (double)VALUE("k");
}

static quern_tensor *masked(struct bench_graph *g, const char *params) {
  const int64_t dims[] = {VALUE("m"), VALUE("k")};
  quern_tensor *x = matrix(g, "x", dims[0], dims[1]);
  quern_tensor *mask = quern_input(g->ctx, "mask", QUERN_DTYPE_BOOL, 2, dims);
  g->bytes += (double)quern_tensor_bytes(mask);
  g->flops = 5.0 * (double)dims[0] * (double)dims[1];
  return quern_where(mask, x, scalar_of(x, -1e30));
}
static void softmax_mask(struct bench_graph *g, const char *params) {
  bench_output(g, quern_softmax(masked(g, params), 1));
}
static void softmax_mask_hand(struct bench_graph *g, const char *params) {
  bench_output(g, hand_softmax(masked(g, params)));
}

static quern_tensor *logits(struct bench_graph *g, const char *params, quern_tensor **labels) {
  int64_t rows = VALUE("m"), classes = VALUE("k");
  *labels = quern_input(g->ctx, "labels", QUERN_DTYPE_I32, 1, &rows);
  g->flops = 4.0 * (double)rows * (double)classes;
  return matrix(g, "logits", rows, classes);
}
static void cross_entropy(struct bench_graph *g, const char *params) {
  quern_tensor *labels, *x = logits(g, params, &labels);
  bench_output(g, quern_cross_entropy(x, labels, NULL));
}
static void cross_entropy_hand(struct bench_graph *g, const char *params) {
  quern_tensor *labels, *x = logits(g, params, &labels);
  bench_output(g, hand_cross_entropy(x, labels));
}

/* ---- AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization" ---------------------------------- */

static const double rate = 3e-4, keep_first = 0.9, keep_second = 0.999, decay = 0.01;

struct adamw {
  quern_tensor *p, *m, *v, *g, *first, *second; /* parameter, moments, gradient, corrections of the moments */
};

static struct adamw adamw_inputs(struct bench_graph *g, const char *params) {
  int64_t n = VALUE("count");
  g->flops = 16.0 * (double)n;
  return (struct adamw){vector(g, "p", n), vector(g, "m", n),     vector(g, "v", n),
                        vector(g, "g", n), vector(g, "first", 1), quern_abs(vector(g, "second", 1))};
}

static void adamw(struct bench_graph *g, const char *params) {
  struct adamw a = adamw_inputs(g, params);
  quern_tensor *m = quern_add(quern_mul_scalar(a.m, keep_first), quern_mul_scalar(a.g, 1 - keep_first));
  quern_tensor *v = quern_add(quern_mul_scalar(a.v, keep_second), quern_mul_scalar(quern_square(a.g), 1 - keep_second));
  quern_tensor *size = quern_add_scalar(quern_sqrt(quern_div(v, a.second)), 1e-8);
  quern_tensor *move = quern_add(quern_div(quern_div(m, a.first), size), quern_mul_scalar(a.p, decay));
  bench_output(g, quern_sub(a.p, quern_mul_scalar(move, rate)));
  bench_output(g, m);
  bench_output(g, v);
}

/* The same in the order of the paper's lines: the moments move by a part of the way, the decay comes first. */
static void adamw_hand(struct bench_graph *g, const char *params) {
  struct adamw a = adamw_inputs(g, params);
  quern_tensor *m = quern_add(a.m, quern_mul_scalar(quern_sub(a.g, a.m), 1 - keep_first));
  quern_tensor *v = quern_add(a.v, quern_mul_scalar(quern_sub(quern_mul(a.g, a.g), a.v), 1 - keep_second));
  quern_tensor *p = quern_mul_scalar(a.p, 1 - rate * decay);
  quern_tensor *size = quern_add_scalar(quern_sqrt(quern_div(v, a.second)), 1e-8);
  bench_output(g, quern_sub(p, quern_div(quern_mul_scalar(quern_div(m, a.first), rate), size)));
  bench_output(g, m);
  bench_output(g, v);
}

const struct bench_pattern bench_patterns[] = {
    {"linear_gelu", "m=1024 k=768 n=3072", linear_gelu, linear_gelu_hand},
    {"linear_relu", "m=1024 k=768 n=3072", linear_relu, linear_relu_hand},
    {"conv_bn_relu", "c=64 hw=56 o=64 k=3", conv_bn_relu, conv_bn_relu_hand},
    {"norm_linear", "m=1024 k=768 n=2304", norm_linear, norm_linear_hand},
    {"residual_norm", "m=1024 k=768", residual_norm, residual_norm_hand},
    {"softmax_mask", "m=1024 k=1024", softmax_mask, softmax_mask_hand},
    {"cross_entropy", "m=1024 k=8192", cross_entropy, cross_entropy_hand},
    {"adamw", "count=4194304", adamw, adamw_hand},
    {0},
};
