/* cli/zoo.c -- the table of the zoo's networks with their sizes, and what their functions share */
#include "zoo.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
const struct zoo_network zoo_networks[] = {
    {"gpt2", "GPT-2: learned positions, GELU, tied embedding", zoo_gpt2,
     {"layers=2 C=16 H=2 V=32 T=8", 2}, {"layers=4 C=256 H=8 V=8192 T=64", 8},
     {"layers=12 C=768 H=12 V=50304 T=1024", 8}},
    {"modern", "RMSNorm, rotary positions, SwiGLU, grouped queries", zoo_modern,
     {"layers=2 C=16 H=4 KV=2 F=32 V=32 T=8", 2}, {"layers=4 C=256 H=8 KV=2 F=704 V=8192 T=64", 8},
     {"layers=12 C=1024 H=16 KV=4 F=2816 V=50304 T=1024", 8}},
    {"bert", "encoder, norms after, logits of every token", zoo_bert,
     {"layers=2 C=16 H=2 V=32 T=8", 2}, {"layers=4 C=256 H=8 V=8192 T=64", 8},
     {"layers=12 C=768 H=12 V=30592 T=512", 16}},
    {"encdec", "encoder and decoder with cross-attention", zoo_encdec,
     {"layers=1 C=16 H=2 V=32 S=6 T=8", 2}, {"layers=2 C=256 H=8 V=8192 S=64 T=64", 8},
     {"layers=6 C=512 H=8 V=32000 S=256 T=256", 32}},
    {"moe", "mixture of experts: the best 2 of E, with capacities", zoo_moe,
     {"layers=1 C=16 H=2 V=32 T=8 E=4 F=16", 2}, {"layers=2 C=256 H=8 V=8192 T=64 E=8 F=512", 8},
     {"layers=8 C=768 H=12 V=50304 T=512 E=8 F=2048", 8}},
    {"vit", "vision transformer with a class token", zoo_vit,
     {"layers=2 C=16 H=2 size=16 patch=8 classes=5", 2}, {"layers=6 C=192 H=3 size=64 patch=8 classes=100", 8},
     {"layers=12 C=768 H=12 size=224 patch=16 classes=1000", 64}},
    {"mixer", "MLP-Mixer: layers along patches and along channels", zoo_mixer,
     {"layers=2 C=16 P=8 F=32 size=16 patch=8 classes=5", 2},
     {"layers=6 C=256 P=128 F=1024 size=64 patch=8 classes=100", 8},
     {"layers=12 C=768 P=384 F=3072 size=224 patch=16 classes=1000", 64}},
    {"resnet18", "ResNet of basic blocks", zoo_resnet,
     {"depth=18 size=8 classes=5", 2}, {"depth=18 size=32 classes=10", 8}, {"depth=18 size=224 classes=1000", 128}},
    {"resnet50", "ResNet of bottlenecks", zoo_resnet,
     {"depth=50 size=8 classes=5", 2}, {"depth=50 size=96 classes=100", 8}, {"depth=50 size=224 classes=1000", 64}},
    {"mobilenetv2", "inverted residuals, depthwise convolutions", zoo_mobilenet,
     {"size=32 classes=5", 2}, {"size=96 classes=100", 8}, {"size=224 classes=1000", 128}},
    {"convnext", "depthwise 7 x 7, LayerNorm of channels, GELU", zoo_convnext,
     {"C=8 depth=1 size=32 classes=5", 2}, {"C=48 depth=1 size=96 classes=100", 8},
     {"C=96 depth=3 size=224 classes=1000", 64}},
    {"unet", "U-Net: max pools, transposed convolutions, skips", zoo_unet,
     {"C=4 levels=2 size=16", 2}, {"C=16 levels=4 size=64", 4}, {"C=64 levels=4 size=256", 16}},
    {"diffusion", "U-Net with GroupNorm, time and attention", zoo_diffusion,
     {"C=8 size=8", 2}, {"C=32 size=32", 4}, {"C=128 size=64", 32}},
    {"dcgan", "generator and discriminator, both losses in a step", zoo_dcgan,
     {"C=4 Z=8", 2}, {"C=16 Z=100", 8}, {"C=64 Z=100", 128}},
    {"vae", "convolutional variational autoencoder", zoo_vae,
     {"C=4 Z=4 size=16", 2}, {"C=32 Z=64 size=32", 16}, {"C=64 Z=128 size=64", 256}},
    {"wavenet", "gated dilated 1-D convolutions with skips", zoo_wavenet,
     {"C=8 K=8 layers=4 cycle=2 T=32", 2}, {"C=32 K=128 layers=10 cycle=10 T=1024", 2},
     {"C=64 K=256 layers=20 cycle=10 T=8192", 8}},
    {"conv3d", "3-D convolutions of short films", zoo_conv3d,
     {"C=4 frames=4 size=8 classes=5", 2}, {"C=16 frames=8 size=32 classes=50", 4},
     {"C=64 frames=16 size=112 classes=400", 16}},
    {"lstm", "LSTM language model", zoo_lstm,
     {"layers=2 C=16 V=32 T=6", 2}, {"layers=2 C=256 V=1000 T=32", 16}, {"layers=2 C=1024 V=10000 T=128", 64}},
    {"gru", "GRU over numbers, the last state is classified", zoo_gru,
     {"layers=2 C=16 in=4 T=6 classes=5", 2}, {"layers=2 C=256 in=64 T=64 classes=35", 16},
     {"layers=2 C=1024 in=128 T=256 classes=35", 64}},
    {"mamba", "selective scan: state-space layers with gates", zoo_mamba,
     {"layers=1 C=8 N=4 R=2 V=32 T=6", 2}, {"layers=2 C=128 N=16 R=8 V=1000 T=64", 4},
     {"layers=8 C=768 N=16 R=48 V=50304 T=512", 8}},
    {"mlp", "tables: embeddings of categories, numbers, batch norm", zoo_mlp,
     {"numbers=4 tables=3 rows=7 E=4 C=16 layers=2", 8}, {"numbers=32 tables=8 rows=1000 E=16 C=512 layers=3", 256},
     {"numbers=64 tables=16 rows=10000 E=32 C=2048 layers=4", 8192}},
    {"deepsets", "sets: a sum over elements between two networks", zoo_deepsets,
     {"N=5 in=3 C=16 classes=5", 4}, {"N=128 in=8 C=128 classes=40", 32}, {"N=1024 in=8 C=512 classes=40", 128}},
    {"messages", "graphs: gathered ends of edges, scattered sums", zoo_messages,
     {"nodes=6 edges=12 in=3 C=8 layers=2 classes=5", 2}, {"nodes=32 edges=128 in=16 C=128 layers=3 classes=10", 32},
     {"nodes=32 edges=128 in=64 C=256 layers=5 classes=10", 1024}},
    {"pinn", "Burgers' equation: a residual with second derivatives", zoo_pinn,
     {"layers=2 C=8", 6}, {"layers=4 C=64", 2048}, {"layers=8 C=256", 65536}},
    {"dlrm", "recommendation: embeddings, products of all pairs", zoo_dlrm,
     {"tables=3 rows=7 C=8 dense=4 F=16", 4}, {"tables=8 rows=10000 C=32 dense=13 F=256", 256},
     {"tables=26 rows=100000 C=64 dense=13 F=512", 8192}},
    {0},
};
/* clang-format on */

/* ---- leaves and answers ------------------------------------------------------------------------------------------ */

int64_t zoo_value(const struct zoo *z, const char *key) {
  size_t n = strlen(key);
  for (const char *at = z->params; (at = strstr(at, key)) != NULL; at += n)
    if ((at == z->params || at[-1] == ' ') && at[n] == '=') return strtoll(at + n + 1, NULL, 10);
  return 1;
}

static quern_tensor *leaf(struct zoo *z, const char *name, quern_dtype dtype, int64_t below, int rank,
                          const int64_t *dims) {
  quern_tensor *x =
      z->resident ? quern_state(z->ctx, name, dtype, rank, dims) : quern_input(z->ctx, name, dtype, rank, dims);
  if (z->n_leaves < ZOO_LEAVES) z->leaves[z->n_leaves++] = (struct zoo_leaf){x, below};
  return x;
}

quern_tensor *zoo_floats(struct zoo *z, const char *name, int rank, const int64_t *dims) {
  quern_tensor *x = leaf(z, name, QUERN_DTYPE_F32, 0, rank, dims);
  return z->dtype == QUERN_DTYPE_F32 ? x : quern_cast(x, z->dtype);
}

quern_tensor *zoo_integers(struct zoo *z, const char *name, int64_t below, int rank, const int64_t *dims) {
  return leaf(z, name, QUERN_DTYPE_I32, below, rank, dims);
}

quern_tensor *zoo_classes(struct zoo *z, quern_tensor *logits) {
  if (!z->train || quern_tensor_is_poison(logits)) return logits;
  int rank = quern_tensor_rank(logits);
  int64_t classes = quern_tensor_dim(logits, rank - 1);
  quern_tensor *labels = zoo_integers(z, "labels", classes, rank - 1, quern_tensor_dims(logits));
  return quern_cross_entropy(logits, labels, NULL);
}

quern_tensor *zoo_regression(struct zoo *z, quern_tensor *y) {
  if (!z->train || quern_tensor_is_poison(y)) return y;
  quern_tensor *target = zoo_floats(z, "target", quern_tensor_rank(y), quern_tensor_dims(y));
  return quern_mse_loss(y, target, QUERN_REDUCTION_MEAN);
}

quern_tensor *zoo_conv(quern_scope *scope, quern_tensor *x, int64_t out, int64_t window, int64_t stride,
                       int64_t padding, int64_t groups, bool bias) {
  quern_nn_conv_options o = QUERN_INIT(quern_nn_conv_options);
  for (int i = 0; i < 2; i++) o.stride[i] = stride, o.padding[i] = padding;
  o.groups = groups;
  o.no_bias = !bias;
  return quern_nn_conv(scope, x, out, QUERN_LIST(window, window), &o);
}

quern_tensor *zoo_images(struct zoo *z) {
  int64_t side = zoo_value(z, "size");
  return zoo_floats(z, "x", QUERN_LIST(z->batch, 3, side, side));
}

/* ---- a network --------------------------------------------------------------------------------------------------- */

quern_status zoo_begin(struct zoo *z, const struct zoo_network *network, const struct zoo_size *size) {
  quern_model_options options = QUERN_INIT(quern_model_options);
  z->params = size->params;
  z->batch = size->batch;
  if (z->dtype == 0) z->dtype = QUERN_DTYPE_F32;
  options.inference = !z->train;
  options.dtype = z->dtype;
  quern_status status = quern_context_new(&z->ctx, NULL);
  if (status == QUERN_STATUS_OK) status = quern_model_new(&z->model, z->ctx, &options);
  if (status != QUERN_STATUS_OK) return status;
  z->scope = quern_model_scope(z->model);
  z->y = network->build(z);
  return quern_context_check(z->ctx);
}

void zoo_end(struct zoo *z) {
  quern_model_free(z->model);
  quern_context_free(z->ctx);
}
