/* cli/zoo_images.c -- the zoo's networks that classify images */
#include "zoo.h"

#define V(key) zoo_value(z, key)

/* Patches as rows: (B, patches, C). */
static quern_tensor *patches(struct zoo *z) {
  int64_t patch = V("patch"), side = V("size") / patch;
  quern_tensor *x = zoo_conv(quern_scope_in(z->scope, "patch"), zoo_images(z), V("C"), patch, patch, 0, 1, true);
  return quern_transpose(quern_reshape(x, QUERN_LIST(z->batch, V("C"), side * side)), 1, 2);
}

static quern_tensor *classified(struct zoo *z, quern_tensor *x) {
  return zoo_classes(z, quern_nn_linear(quern_scope_in(z->scope, "head"), x, V("classes"), NULL));
}

static quern_tensor *normed(quern_scope *scope, const char *name, quern_tensor *x) {
  return quern_nn_layer_norm(quern_scope_in(scope, name), x, NULL);
}

/* ---- rows of patches: Dosovitskiy et al. 2021; Tolstikhin et al., "MLP-Mixer", 2021 ------------------------------ */

quern_tensor *zoo_vit(struct zoo *z) {
  quern_nn_transformer_options o = QUERN_INIT(quern_nn_transformer_options);
  quern_init init = {QUERN_INIT_NORMAL, 0, 0.02};
  o.hidden = 4 * V("C");
  o.activation = "gelu";
  o.norm_first = true;
  quern_tensor *x = patches(z), *class = quern_scope_parameter(z->scope, "class", QUERN_LIST(1, 1, V("C")), init);
  class = quern_broadcast_to(class, QUERN_LIST(z->batch, 1, V("C")));
  x = quern_concat(2, (quern_tensor *[]){class, x}, 1);
  quern_nn_embedding_options rows = QUERN_INIT(quern_nn_embedding_options);
  rows.init = &init;
  x = quern_nn_position(quern_scope_in(z->scope, "positions"), x, quern_tensor_dim(x, 1), NULL, &rows);
  for (int64_t i = 0; i < V("layers"); i++)
    x = quern_nn_transformer_encoder(quern_scope_at(z->scope, "layers", i), x, V("H"), &o);
  return classified(z, normed(z->scope, "norm", quern_select(x, 1, 0)));
}

quern_tensor *zoo_mixer(struct zoo *z) {
  quern_nn_mlp_options o = QUERN_INIT(quern_nn_mlp_options);
  o.activation = "gelu";
  quern_tensor *x = patches(z);
  for (int64_t i = 0; i < V("layers"); i++) {
    quern_scope *layer = quern_scope_at(z->scope, "layers", i);
    quern_tensor *y = quern_transpose(normed(layer, "norm1", x), 1, 2);
    y = quern_nn_mlp(quern_scope_in(layer, "patches"), y, V("P"), &o);
    x = quern_add(x, quern_transpose(y, 1, 2));
    y = quern_nn_mlp(quern_scope_in(layer, "channels"), normed(layer, "norm2", x), V("F"), &o);
    x = quern_add(x, y);
  }
  return classified(z, quern_mean(normed(z->scope, "norm", x), QUERN_LIST(1), false));
}

/* ---- convolutions: He et al. 2016; Sandler et al., "MobileNetV2", 2018; Liu et al., "ConvNeXt", 2022 ------------- */

quern_tensor *zoo_resnet(struct zoo *z) {
  return zoo_classes(z, quern_resnet(z->scope, zoo_images(z), (int)V("depth"), V("classes"), V("size") <= 64));
}

/* A convolution, a batch norm, and with clip relu6. */
static quern_tensor *conv_norm(quern_scope *scope, quern_tensor *x, int64_t out, int64_t window, int64_t stride,
                               int64_t groups, bool clip) {
  x = zoo_conv(quern_scope_in(scope, "conv"), x, out, window, stride, window / 2, groups, false);
  x = quern_nn_batch_norm(quern_scope_in(scope, "norm"), x, NULL);
  return clip ? quern_clip(x, 0, 6) : x;
}

static quern_tensor *inverted_residual(quern_scope *scope, quern_tensor *x, int64_t expand, int64_t out,
                                       int64_t stride) {
  int64_t in = quern_tensor_dim(x, 1), wide = in * expand;
  quern_tensor *y = expand > 1 ? conv_norm(quern_scope_in(scope, "expand"), x, wide, 1, 1, 1, true) : x;
  y = conv_norm(quern_scope_in(scope, "depthwise"), y, wide, 3, stride, wide, true);
  y = conv_norm(quern_scope_in(scope, "project"), y, out, 1, 1, 1, false);
  return stride == 1 && in == out ? quern_add(x, y) : y;
}

quern_tensor *zoo_mobilenet(struct zoo *z) {
  static const struct {
    int64_t expand, out, n, stride;
  } stages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  quern_tensor *x = conv_norm(quern_scope_in(z->scope, "stem"), zoo_images(z), 32, 3, 2, 1, true);
  for (size_t s = 0, k = 0; s < sizeof stages / sizeof *stages; s++)
    for (int64_t i = 0; i < stages[s].n; i++, k++)
      x = inverted_residual(quern_scope_at(z->scope, "blocks", (int64_t)k), x, stages[s].expand, stages[s].out,
                            i == 0 ? stages[s].stride : 1);
  x = conv_norm(quern_scope_in(z->scope, "last"), x, 1280, 1, 1, 1, true);
  return classified(z, quern_mean(x, QUERN_LIST(2, 3), false));
}

/* LayerNorm of the channels of (N, C, H, W). */
static quern_tensor *channel_norm(quern_scope *scope, const char *name, quern_tensor *x) {
  return quern_permute(normed(scope, name, quern_permute(x, QUERN_LIST(0, 2, 3, 1))), QUERN_LIST(0, 3, 1, 2));
}

static quern_tensor *convnext_block(quern_scope *scope, quern_tensor *x) {
  int64_t C = quern_tensor_dim(x, 1);
  quern_nn_mlp_options o = QUERN_INIT(quern_nn_mlp_options);
  o.activation = "gelu";
  quern_tensor *y = zoo_conv(quern_scope_in(scope, "depthwise"), x, C, 7, 1, 3, C, true);
  y = normed(scope, "norm", quern_permute(y, QUERN_LIST(0, 2, 3, 1)));
  y = quern_nn_mlp(quern_scope_in(scope, "mlp"), y, 4 * C, &o);
  quern_init tenth = {QUERN_INIT_CONSTANT, 0.1, 0};
  y = quern_mul(y, quern_scope_parameter(scope, "scale", QUERN_LIST(C), tenth));
  return quern_add(x, quern_permute(y, QUERN_LIST(0, 3, 1, 2)));
}

quern_tensor *zoo_convnext(struct zoo *z) {
  static const int64_t depths[] = {1, 1, 3, 1};
  quern_tensor *x = zoo_conv(quern_scope_in(z->scope, "stem"), zoo_images(z), V("C"), 4, 4, 0, 1, true);
  x = channel_norm(z->scope, "stem_norm", x);
  for (int64_t s = 0; s < 4; s++) {
    quern_scope *stage = quern_scope_at(z->scope, "stages", s);
    if (s > 0) {
      x = channel_norm(stage, "norm", x);
      x = zoo_conv(quern_scope_in(stage, "halve"), x, V("C") << s, 2, 2, 0, 1, true);
    }
    for (int64_t i = 0; i < depths[s] * V("depth"); i++) x = convnext_block(quern_scope_at(stage, "blocks", i), x);
  }
  return classified(z, normed(z->scope, "norm", quern_mean(x, QUERN_LIST(2, 3), false)));
}
