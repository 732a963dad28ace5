/* cli/bench_suites.c -- the suites: which cases, against which peers */
#include "bench.h"

/* The 12 shapes of docs/design/002-cpu-compiler.md, plain and with weights packed in advance. */
#define SIZES(m, k, n) "m=" #m " k=" #k " n=" #n
#define SHAPE(m, k, n)                                                                                                 \
  {"gemm", SIZES(m, k, n), 1, "onednn openblas", NULL}, {"gemm", SIZES(m, k, n), 2, "onednn openblas", NULL},          \
      {"gemm", SIZES(m, k, n) " packed=1", 1, "onednn", NULL}, {                                                       \
    "gemm", SIZES(m, k, n) " packed=1", 2, "onednn", NULL                                                              \
  }
#define ROWS(m, k, n)                                                                                                  \
  { "gemm", SIZES(m, k, n), 1, "openblas", NULL }

static const struct bench_case gemm[] = {SHAPE(1000, 1000, 1000),
                                         SHAPE(1024, 1024, 1024),
                                         SHAPE(2048, 2048, 2048),
                                         SHAPE(4096, 1024, 1024),
                                         SHAPE(256, 768, 2304),
                                         SHAPE(256, 768, 3072),
                                         SHAPE(256, 3072, 768),
                                         SHAPE(256, 768, 50257),
                                         SHAPE(1024, 768, 2304),
                                         SHAPE(1024, 768, 3072),
                                         SHAPE(1024, 3072, 768),
                                         SHAPE(1024, 768, 50257),
                                         ROWS(1, 768, 768),
                                         ROWS(1, 768, 3072),
                                         ROWS(1, 3072, 768),
                                         ROWS(1, 768, 50257),
                                         ROWS(8, 768, 768),
                                         ROWS(8, 768, 3072),
                                         ROWS(8, 3072, 768),
                                         ROWS(8, 768, 50257),
                                         {"linear_gelu", "m=256 k=768 n=3072", 1, "onednn torch", NULL},
                                         {"linear_gelu", "m=256 k=768 n=3072 packed=1", 1, "onednn", NULL},
                                         {"linear_gelu", "m=1024 k=768 n=3072", 1, "onednn torch", NULL},
                                         {"linear_gelu", "m=1024 k=768 n=3072 packed=1", 1, "onednn", NULL},
                                         {"linear_gelu", "m=1024 k=768 n=3072", 2, "onednn torch", NULL},
                                         {0}};

/* A shape's neighbors: each size, then one less and one more. */
#define NEAR(m, k, n, shape)                                                                                           \
  { "gemm", SIZES(m, k, n), 1, "", shape }
#define NEIGHBORS(m, m0, m1, k, k0, k1, n, n0, n1)                                                                     \
  NEAR(m0, k, n, SIZES(m, k, n)), NEAR(m1, k, n, SIZES(m, k, n)), NEAR(m, k0, n, SIZES(m, k, n)),                      \
      NEAR(m, k1, n, SIZES(m, k, n)), NEAR(m, k, n0, SIZES(m, k, n)), NEAR(m, k, n1, SIZES(m, k, n))
static const struct bench_case neighbors[] = {NEIGHBORS(1000, 999, 1001, 1000, 999, 1001, 1000, 999, 1001),
                                              NEIGHBORS(1024, 1023, 1025, 1024, 1023, 1025, 1024, 1023, 1025),
                                              NEIGHBORS(2048, 2047, 2049, 2048, 2047, 2049, 2048, 2047, 2049),
                                              NEIGHBORS(4096, 4095, 4097, 1024, 1023, 1025, 1024, 1023, 1025),
                                              NEIGHBORS(256, 255, 257, 768, 767, 769, 2304, 2303, 2305),
                                              NEIGHBORS(256, 255, 257, 768, 767, 769, 3072, 3071, 3073),
                                              NEIGHBORS(256, 255, 257, 3072, 3071, 3073, 768, 767, 769),
                                              NEIGHBORS(256, 255, 257, 768, 767, 769, 50257, 50256, 50258),
                                              NEIGHBORS(1024, 1023, 1025, 768, 767, 769, 2304, 2303, 2305),
                                              NEIGHBORS(1024, 1023, 1025, 768, 767, 769, 3072, 3071, 3073),
                                              NEIGHBORS(1024, 1023, 1025, 3072, 3071, 3073, 768, 767, 769),
                                              NEIGHBORS(1024, 1023, 1025, 768, 767, 769, 50257, 50256, 50258),
                                              {0}};

static const struct bench_case ops[] = {{"gelu", "rows=1000 cols=512", 1, "torch", NULL},
                                        {"gelu", "rows=2048 cols=768", 1, "torch", NULL},
                                        {"gelu", "rows=4096 cols=1024", 1, "torch", NULL},
                                        {"softmax", "rows=1024 cols=1024", 1, "torch numpy", NULL},
                                        {"layernorm", "rows=1024 cols=768", 1, "torch numpy", NULL},
                                        {"layernorm", "rows=4096 cols=1024", 1, "torch numpy", NULL},
                                        {"gelu_back", "rows=1000 cols=512", 1, "torch", NULL},
                                        {"gelu_back", "rows=2048 cols=768", 1, "torch", NULL},
                                        {"softmax_back", "rows=1024 cols=1024", 1, "torch", NULL},
                                        {"layernorm_back", "rows=1024 cols=768", 1, "torch", NULL},
                                        {"layernorm_back", "rows=4096 cols=1024", 1, "torch", NULL},
                                        {"layernorm_train", "rows=1024 cols=768", 1, "torch", NULL},
                                        {"layernorm_train", "rows=4096 cols=1024", 1, "torch", NULL},
                                        {"attention", "b=1 h=12 s=1024 d=64", 2, "torch", NULL},
                                        {"attention", "b=1 h=12 s=1024 d=64 back=1", 2, "torch", NULL},
                                        {"attention", "b=1 h=12 s=1024 d=64 causal=1 back=1", 2, "torch", NULL},
                                        {"add", "count=1000000", 2, "torch numpy", NULL},
                                        {"exp", "count=1000000", 2, "torch numpy", NULL},
                                        {"tanh", "count=1000000", 2, "torch numpy", NULL},
                                        {"sum", "count=1000000", 2, "torch numpy", NULL},
                                        {"gemm", "m=1000 k=1000 n=1000", 2, "torch numpy", NULL},
                                        {0}};

/* Six convolutions of ResNet-50, one image. */
#define CONV(c, hw, o, k, stride, pad)                                                                                 \
  {                                                                                                                    \
    "conv", "n=1 c=" #c " h=" #hw " w=" #hw " o=" #o " kh=" #k " kw=" #k " stride=" #stride " pad=" #pad, 1,           \
        "onednn torch", NULL                                                                                           \
  }
static const struct bench_case conv[] = {CONV(3, 224, 64, 7, 2, 3),
                                         CONV(64, 56, 64, 1, 1, 0),
                                         CONV(64, 56, 64, 3, 1, 1),
                                         CONV(128, 28, 128, 3, 1, 1),
                                         CONV(256, 14, 256, 3, 1, 1),
                                         CONV(512, 7, 512, 3, 1, 1),
                                         {0}};

/* Convolutions as in training, forward and both gradients: of ResNet-50 (3x3, strided, 1x1 strided), a U-Net's first, and
** depthwise ones of MobileNetV2; a grouped one of ResNeXt-50. */
#define CONV_OF(kind, n, c, hw, o, k, stride, pad, groups)                                                             \
  {                                                                                                                    \
    kind,                                                                                                              \
        "n=" #n " c=" #c " h=" #hw " w=" #hw " o=" #o " kh=" #k " kw=" #k " stride=" #stride " pad=" #pad              \
        " groups=" #groups,                                                                                            \
        2, "torch", NULL                                                                                               \
  }
#define CONV_BOTH(n, c, hw, o, k, stride, pad, groups)                                                                 \
  CONV_OF("conv_dx", n, c, hw, o, k, stride, pad, groups), CONV_OF("conv_dw", n, c, hw, o, k, stride, pad, groups)
#define CONV_TRAIN(c, hw, o, k, stride, pad)                                                                           \
  CONV_BOTH(1, c, hw, o, k, stride, pad, 1), CONV_BOTH(16, c, hw, o, k, stride, pad, 1)
#define CONV_ALL(n, c, hw, o, k, stride, pad, groups)                                                                  \
  CONV_OF("conv_y", n, c, hw, o, k, stride, pad, groups), CONV_BOTH(n, c, hw, o, k, stride, pad, groups)
#define CONV_GROUPS(c, hw, k, stride, pad, groups)                                                                     \
  CONV_ALL(1, c, hw, c, k, stride, pad, groups), CONV_ALL(16, c, hw, c, k, stride, pad, groups)
static const struct bench_case conv_train[] = {
    CONV_TRAIN(64, 56, 64, 3, 1, 1),   CONV_TRAIN(128, 28, 128, 3, 1, 1),  CONV_TRAIN(256, 14, 256, 3, 1, 1),
    CONV_TRAIN(512, 7, 512, 3, 1, 1),  CONV_TRAIN(128, 56, 128, 3, 2, 1),  CONV_TRAIN(512, 14, 512, 3, 2, 1),
    CONV_TRAIN(256, 56, 512, 1, 2, 0), CONV_TRAIN(16, 128, 16, 3, 1, 1),   CONV_GROUPS(32, 112, 3, 1, 1, 32),
    CONV_GROUPS(96, 112, 3, 2, 1, 96), CONV_GROUPS(144, 56, 3, 1, 1, 144), CONV_GROUPS(384, 14, 3, 1, 1, 384),
    CONV_GROUPS(960, 7, 3, 1, 1, 960), CONV_GROUPS(128, 56, 3, 1, 1, 32),  {0}};

const struct bench_suite bench_suites[] = {
    {"gemm", "matrix products: 12 shapes plain and packed, few rows, linear + GELU", true, 1, gemm, NULL},
    {"gemm-off-by-one", "the 12 shapes with each size one less and one more: rates as ratios", true, 1, neighbors,
     NULL},
    {"ops", "elementwise, rows, gradients, attention", true, 1, ops, NULL},
    {"conv", "convolutions of ResNet-50", true, 1, conv, NULL},
    {"conv-train", "gradients of convolutions of ResNet-50 and U-Net; depthwise and grouped ones, forward and back",
     true, 2, conv_train, NULL},
    {"fusion", "kernels, bytes and time of patterns: fused, not fused, and written by hand", true, 1, NULL,
     bench_run_fusion},
    {"graph", "nodes before and after the passes; passes, plan, cold and warm compilation", false, 1, NULL,
     bench_run_graph},
    {"memory", "relu, matmul, softmax: bytes and time with memory shared and not", false, 1, NULL, bench_run_memory},
    {"limit", "GPT-2's training step in 60 % of the memory, against all it wants", false, 1, NULL, bench_run_limit},
    {"train", "whole training steps of networks: forward, backward, clipping, AdamW", true, 2, NULL, bench_run_train},
    {"infer", "networks with batches of 1 to 128: samples a second, latency, bytes", true, 2, NULL, bench_run_infer},
    {"cuda", "kernels, attention, losses and training steps on a card", true, 1, NULL, bench_run_cuda},
    {"zoo", "networks of all kinds, trained and asked, beside PyTorch", false, 2, NULL, bench_run_zoo},
};
const size_t bench_suite_count = sizeof bench_suites / sizeof *bench_suites;
