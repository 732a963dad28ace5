/* cli/zoo.h -- the networks of `quern bench zoo`: a table, a short function each, and what the functions share
** bench/peers/zoo_models.py has the same networks in PyTorch, with as many parameters.
*/
#ifndef CLI_ZOO_H
#define CLI_ZOO_H
#include "quern/models.h"

enum { ZOO_LEAVES = 8, ZOO_PARAMS = 96 };

/* A tensor that a network reads: floats in [-1, 1), or integers from 0 to below `below`. */
struct zoo_leaf {
  quern_tensor *tensor;
  int64_t below; /* 0: floats */
};

/* A network that is being built. */
struct zoo {
  quern_context *ctx;
  quern_model *model;
  quern_scope *scope;
  const char *params;
  int64_t batch;
  bool train;
  bool resident;     /* leaves are states, which lie in the device's memory, instead of inputs */
  quern_dtype dtype; /* of parameters and activations */
  size_t n_leaves;
  struct zoo_leaf leaves[ZOO_LEAVES];
  quern_tensor *y; /* the loss in training, else the answer */
};

/* Sizes are "key=value ..." of integers; batch: rows of a training step. */
struct zoo_size {
  const char *params;
  int64_t batch;
};
struct zoo_network {
  const char *name, *help;
  quern_tensor *(*build)(struct zoo *z); /* the loss in training, else the answer */
  struct zoo_size small, cpu, cuda;      /* for tests; for two cores of a CPU; for a card */
};
extern const struct zoo_network zoo_networks[]; /* ended by one without a name */

/* Builds a network into a context of its own. zoo_end whatever happened. */
quern_status zoo_begin(struct zoo *z, const struct zoo_network *network, const struct zoo_size *size);
void zoo_end(struct zoo *z);

/* ---- what the functions share (zoo.c) --------------------------------------------------------------------------- */

/* The value of a key; 1 when it is not there. */
int64_t zoo_value(const struct zoo *z, const char *key);
quern_tensor *zoo_floats(struct zoo *z, const char *name, int rank, const int64_t *dims);
quern_tensor *zoo_integers(struct zoo *z, const char *name, int64_t below, int rank, const int64_t *dims);
/* Answers; in training the mean cross-entropy of labels, one for each row of the last axis, or the squared error. */
quern_tensor *zoo_classes(struct zoo *z, quern_tensor *logits);
quern_tensor *zoo_regression(struct zoo *z, quern_tensor *y);
/* Convolutions (N, C, H, W) with square windows; groups 0: 1. */
quern_tensor *zoo_conv(quern_scope *scope, quern_tensor *x, int64_t out, int64_t window, int64_t stride,
                       int64_t padding, int64_t groups, bool bias);
/* The image of size x size with 3 channels. */
quern_tensor *zoo_images(struct zoo *z);

/* ---- the functions (zoo_*.c) ------------------------------------------------------------------------------------- */

quern_tensor *zoo_gpt2(struct zoo *z);
quern_tensor *zoo_modern(struct zoo *z);
quern_tensor *zoo_bert(struct zoo *z);
quern_tensor *zoo_encdec(struct zoo *z);
quern_tensor *zoo_moe(struct zoo *z);
quern_tensor *zoo_vit(struct zoo *z);
quern_tensor *zoo_mixer(struct zoo *z);
quern_tensor *zoo_resnet(struct zoo *z);
quern_tensor *zoo_mobilenet(struct zoo *z);
quern_tensor *zoo_convnext(struct zoo *z);
quern_tensor *zoo_unet(struct zoo *z);
quern_tensor *zoo_diffusion(struct zoo *z);
quern_tensor *zoo_dcgan(struct zoo *z);
quern_tensor *zoo_vae(struct zoo *z);
quern_tensor *zoo_wavenet(struct zoo *z);
quern_tensor *zoo_conv3d(struct zoo *z);
quern_tensor *zoo_lstm(struct zoo *z);
quern_tensor *zoo_gru(struct zoo *z);
quern_tensor *zoo_mamba(struct zoo *z);
quern_tensor *zoo_mlp(struct zoo *z);
quern_tensor *zoo_deepsets(struct zoo *z);
quern_tensor *zoo_messages(struct zoo *z);
quern_tensor *zoo_pinn(struct zoo *z);
quern_tensor *zoo_dlrm(struct zoo *z);

#endif
