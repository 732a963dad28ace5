/* models/resnet.c -- residual networks over images
** see:   He et al., "Deep residual learning for image recognition" (2016); names and the place of strides as in torchvision
** tests: tests/models/test_models.c
*/
#include <math.h>

#include "quern/models.h"
#include "tensor/tensor.h"

static quern_tensor *conv(quern_scope *in, const char *name, quern_tensor *x, int64_t out, int64_t window,
                          int64_t stride) {
  int64_t pad = window / 2;
  quern_init init = {QUERN_INIT_NORMAL, 0,
                     sqrt(2.0 / ((double)out * (double)(window * window)))}; /* by what goes out */
  quern_nn_conv_options options = {
      .size = sizeof options, .stride = {stride, stride}, .padding = {pad, pad}, .no_bias = true, .weight_init = &init};
  return quern_nn_conv(quern_scope_in(in, name), x, out, QUERN_LIST(window, window), &options);
}

static quern_tensor *norm(quern_scope *in, const char *name, quern_tensor *x) {
  return quern_nn_batch_norm(quern_scope_in(in, name), x, NULL);
}

/* What is added to a block's result: x, or x brought to its shape. */
static quern_tensor *shortcut(quern_scope *block, quern_tensor *x, int64_t out, int64_t stride) {
  if (stride == 1 && quern_tensor_dim(x, 1) == out) return x;
  return norm(block, "downsample.1", conv(block, "downsample.0", x, out, 1, stride));
}

static quern_tensor *basic(quern_scope *block, quern_tensor *x, int64_t width, int64_t stride) {
  quern_tensor *y = quern_relu(norm(block, "bn1", conv(block, "conv1", x, width, 3, stride)));
  y = norm(block, "bn2", conv(block, "conv2", y, width, 3, 1));
  return quern_relu(quern_add(y, shortcut(block, x, width, stride)));
}

static quern_tensor *bottleneck(quern_scope *block, quern_tensor *x, int64_t width, int64_t stride) {
  quern_tensor *y = quern_relu(norm(block, "bn1", conv(block, "conv1", x, width, 1, 1)));
  y = quern_relu(norm(block, "bn2", conv(block, "conv2", y, width, 3, stride)));
  y = norm(block, "bn3", conv(block, "conv3", y, 4 * width, 1, 1));
  return quern_relu(quern_add(y, shortcut(block, x, 4 * width, stride)));
}

/* The first layers: 7 x 7 and a pool, or 3 x 3. */
static quern_tensor *stem(quern_scope *scope, quern_tensor *x, bool small) {
  x = quern_relu(norm(scope, "bn1", conv(scope, "conv1", x, 64, small ? 3 : 7, small ? 1 : 2)));
  quern_pool_options pool = {
      .size = sizeof pool, .window = {3, 3}, .stride = {2, 2}, .pad_lo = {1, 1}, .pad_hi = {1, 1}};
  return small ? x : quern_max_pool(x, &pool);
}

quern_tensor *quern_resnet(quern_scope *scope, quern_tensor *x, int depth, int64_t classes, bool small) {
  static const struct {
    int depth, blocks[4];
    quern_tensor *(*block)(quern_scope *block, quern_tensor *x, int64_t width, int64_t stride);
  } kinds[] = {{18, {2, 2, 2, 2}, basic}, {34, {3, 4, 6, 3}, basic}, {50, {3, 4, 6, 3}, bottleneck}};
  quern_context *ctx = quern_model_context(quern_scope_model(scope));
  size_t k = 0;
  while (k < BASE_COUNT(kinds) && kinds[k].depth != depth) k++;
  TENSOR_CHECK(ctx, k < BASE_COUNT(kinds), INVALID, "resnet: there is none of depth %d; there are 18, 34 and 50",
               depth);
  TENSOR_CHECK(ctx, x != NULL, INVALID, "resnet: the images are null");
  if (ir_is_poison(x)) return x;
  TENSOR_CHECK(ctx, x->rank == 4, SHAPE, "resnet: images of rank %d; must be (N, C, H, W)", x->rank);
  x = stem(scope, x, small);
  for (int stage = 0; stage < 4; stage++) {
    static const char *const stages[] = {"layer1", "layer2", "layer3", "layer4"};
    for (int i = 0; i < kinds[k].blocks[stage]; i++)
      x = kinds[k].block(quern_scope_at(scope, stages[stage], i), x, INT64_C(64) << stage, i == 0 && stage > 0 ? 2 : 1);
  }
  x = quern_flatten(quern_adaptive_avg_pool(x, QUERN_LIST(1, 1)), 1, 3);
  return quern_nn_linear(quern_scope_in(scope, "fc"), x, classes, NULL);
}
