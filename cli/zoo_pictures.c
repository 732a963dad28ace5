/* cli/zoo_pictures.c -- the zoo's networks whose answers are images */
#include "zoo.h"

#define V(key) zoo_value(z, key)

static quern_tensor *halved(quern_tensor *x) {
  quern_pool_options o = QUERN_INIT(quern_pool_options);
  o.window[0] = o.window[1] = 2;
  return quern_max_pool(x, &o);
}

static quern_tensor *conv_up(quern_scope *scope, quern_tensor *x, int64_t out, int64_t window, int64_t stride,
                             int64_t padding, bool bias) {
  quern_nn_conv_options o = QUERN_INIT(quern_nn_conv_options);
  for (int i = 0; i < 2; i++) o.stride[i] = stride, o.padding[i] = padding;
  o.no_bias = !bias;
  return quern_nn_conv_transpose(scope, x, out, QUERN_LIST(window, window), &o);
}

/* ---- U-Net: Ronneberger et al. 2015 ------------------------------------------------------------------------------ */

/* Two times convolution, batch norm, relu. */
static quern_tensor *double_conv(quern_scope *scope, quern_tensor *x, int64_t out) {
  for (int64_t i = 0; i < 2; i++) {
    x = zoo_conv(quern_scope_at(scope, "conv", i), x, out, 3, 1, 1, 1, false);
    x = quern_relu(quern_nn_batch_norm(quern_scope_at(scope, "norm", i), x, NULL));
  }
  return x;
}

quern_tensor *zoo_unet(struct zoo *z) {
  enum { MOST = 8 };
  int64_t levels = V("levels") < MOST ? V("levels") : MOST;
  quern_tensor *skips[MOST], *x = zoo_images(z);
  for (int64_t i = 0; i < levels; i++) {
    skips[i] = double_conv(quern_scope_at(z->scope, "down", i), x, V("C") << i);
    x = halved(skips[i]);
  }
  x = double_conv(quern_scope_in(z->scope, "middle"), x, V("C") << levels);
  for (int64_t i = levels - 1; i >= 0; i--) {
    x = conv_up(quern_scope_at(z->scope, "grow", i), x, V("C") << i, 2, 2, 0, true);
    x = quern_concat(2, (quern_tensor *[]){skips[i], x}, 1);
    x = double_conv(quern_scope_at(z->scope, "up", i), x, V("C") << i);
  }
  x = zoo_conv(quern_scope_in(z->scope, "out"), x, 2, 1, 1, 0, 1, true);
  return zoo_classes(z, quern_permute(x, QUERN_LIST(0, 2, 3, 1)));
}

/* ---- diffusion: Ho et al., "Denoising diffusion probabilistic models", 2020 -------------------------------------- */

enum { GROUPS = 8 };

static quern_tensor *group_silu(quern_scope *scope, const char *name, quern_tensor *x) {
  return quern_silu(quern_nn_group_norm(quern_scope_in(scope, name), x, GROUPS, NULL));
}

/* Two convolutions with the time between them, and a way around. */
static quern_tensor *time_block(quern_scope *scope, quern_tensor *x, quern_tensor *time, int64_t out) {
  quern_tensor *y = zoo_conv(quern_scope_in(scope, "conv1"), group_silu(scope, "norm1", x), out, 3, 1, 1, 1, true);
  quern_tensor *shift = quern_nn_linear(quern_scope_in(scope, "time"), time, out, NULL);
  y = quern_add(y, quern_unsqueeze(quern_unsqueeze(shift, 2), 3));
  y = zoo_conv(quern_scope_in(scope, "conv2"), group_silu(scope, "norm2", y), out, 3, 1, 1, 1, true);
  if (quern_tensor_dim(x, 1) != out) x = zoo_conv(quern_scope_in(scope, "around"), x, out, 1, 1, 0, 1, true);
  return quern_add(x, y);
}

/* x plus attention among its pixels. */
static quern_tensor *pixel_attention(quern_scope *scope, quern_tensor *x, int64_t heads) {
  quern_tensor *y = quern_nn_group_norm(quern_scope_in(scope, "norm"), x, GROUPS, NULL);
  y = quern_transpose(quern_flatten(y, 2, 3), 1, 2);
  y = quern_transpose(quern_nn_attention(quern_scope_in(scope, "attn"), y, heads, NULL), 1, 2);
  return quern_add(x, quern_reshape(y, quern_tensor_rank(x), quern_tensor_dims(x)));
}

/* Sines and cosines of the time (B,), through two layers. */
static quern_tensor *time_vector(struct zoo *z, int64_t C) {
  quern_tensor *t = quern_mul_scalar(zoo_floats(z, "time", QUERN_LIST(z->batch, 1)), 100);
  quern_tensor *rates = quern_exp(quern_arange(z->ctx, z->dtype, C / 2, 0, -8 / (double)C));
  quern_tensor *angle = quern_mul(t, quern_unsqueeze(rates, 0)), *sine = quern_sin(angle), *cosine = quern_cos(angle);
  quern_nn_mlp_options o = QUERN_INIT(quern_nn_mlp_options);
  o.activation = "silu";
  o.out = 4 * C;
  quern_tensor *both = quern_concat(2, (quern_tensor *[]){sine, cosine}, 1);
  return quern_silu(quern_nn_mlp(quern_scope_in(z->scope, "time"), both, 4 * C, &o));
}

quern_tensor *zoo_diffusion(struct zoo *z) {
  enum { LEVELS = 3 };
  static const int64_t times[LEVELS] = {1, 2, 2};
  int64_t C = V("C");
  quern_tensor *skips[LEVELS], *time = time_vector(z, C);
  quern_tensor *x = zoo_conv(quern_scope_in(z->scope, "in"), zoo_images(z), C, 3, 1, 1, 1, true);
  for (int64_t i = 0; i < LEVELS; i++) {
    quern_scope *level = quern_scope_at(z->scope, "down", i);
    x = time_block(quern_scope_in(level, "a"), x, time, C * times[i]);
    x = time_block(quern_scope_in(level, "b"), x, time, C * times[i]);
    if (i == LEVELS - 1) x = pixel_attention(quern_scope_in(level, "attention"), x, 4);
    skips[i] = x;
    if (i < LEVELS - 1) x = zoo_conv(quern_scope_in(level, "halve"), x, C * times[i], 3, 2, 1, 1, true);
  }
  quern_scope *middle = quern_scope_in(z->scope, "middle");
  x = time_block(quern_scope_in(middle, "a"), x, time, 2 * C);
  x = pixel_attention(quern_scope_in(middle, "attention"), x, 4);
  x = time_block(quern_scope_in(middle, "b"), x, time, 2 * C);
  quern_interpolate_options twice = QUERN_INIT(quern_interpolate_options);
  twice.scales[0] = twice.scales[1] = 2;
  for (int64_t i = LEVELS - 1; i >= 0; i--) {
    quern_scope *level = quern_scope_at(z->scope, "up", i);
    x = quern_concat(2, (quern_tensor *[]){x, skips[i]}, 1);
    x = time_block(quern_scope_in(level, "a"), x, time, C * times[i]);
    if (i == LEVELS - 1) x = pixel_attention(quern_scope_in(level, "attention"), x, 4);
    if (i == 0) break;
    x = quern_interpolate(x, &twice);
    x = zoo_conv(quern_scope_in(level, "grow"), x, C * times[i], 3, 1, 1, 1, true);
  }
  x = zoo_conv(quern_scope_in(z->scope, "out"), group_silu(z->scope, "norm", x), 3, 3, 1, 1, 1, true);
  return zoo_regression(z, x);
}

/* ---- DCGAN: Radford et al., "Unsupervised representation learning", 2016 ----------------------------------------- */

/* Noise (B, Z, 1, 1) to images (B, 3, 64, 64). */
static quern_tensor *generated(struct zoo *z) {
  static const int64_t widths[] = {8, 4, 2, 1};
  quern_tensor *x = zoo_floats(z, "noise", QUERN_LIST(z->batch, V("Z"), 1, 1));
  for (int64_t i = 0; i < 4; i++) {
    quern_scope *layer = quern_scope_at(z->scope, "generator", i);
    x = conv_up(quern_scope_in(layer, "conv"), x, widths[i] * V("C"), 4, i == 0 ? 1 : 2, i == 0 ? 0 : 1, false);
    x = quern_relu(quern_nn_batch_norm(quern_scope_in(layer, "norm"), x, NULL));
  }
  return quern_tanh(conv_up(quern_scope_in(z->scope, "generator.out"), x, 3, 4, 2, 1, false));
}

/* A parameter of the discriminator; frozen: the loss of the generator does not move it. */
static quern_tensor *weight(quern_scope *scope, const char *name, int rank, const int64_t *dims, double mean,
                            double std, bool frozen) {
  quern_init init = {std > 0 ? QUERN_INIT_NORMAL : QUERN_INIT_CONSTANT, mean, std};
  quern_tensor *w = quern_scope_parameter(scope, name, rank, dims, init);
  return frozen ? quern_stop_gradient(w) : w;
}

/* Images to a logit each (B, 1, 1, 1); norms are of the batch. */
static quern_tensor *discriminated(struct zoo *z, quern_tensor *x, bool frozen) {
  quern_batch_norm_options batch = QUERN_INIT(quern_batch_norm_options);
  batch.train = true;
  batch.eps = 1e-5;
  for (int64_t i = 0; i < 5; i++) {
    quern_scope *layer = quern_scope_at(z->scope, "discriminator", i);
    int64_t out = i < 4 ? V("C") << i : 1;
    quern_conv_options o = QUERN_INIT(quern_conv_options);
    for (int k = 0; k < 2; k++) o.stride[k] = i < 4 ? 2 : 1, o.pad_lo[k] = o.pad_hi[k] = i < 4 ? 1 : 0;
    quern_tensor *w = weight(layer, "conv", QUERN_LIST(out, quern_tensor_dim(x, 1), 4, 4), 0, 0.02, frozen);
    x = quern_conv2d(x, w, NULL, &o);
    if (i > 0 && i < 4) {
      quern_tensor *scale = weight(layer, "scale", QUERN_LIST(out), 1, 0, frozen);
      quern_tensor *shift = weight(layer, "shift", QUERN_LIST(out), 0, 0, frozen);
      x = quern_batch_norm(x, scale, shift, NULL, NULL, &batch, NULL, NULL);
    }
    if (i < 4) x = quern_leaky_relu(x, 0.2);
  }
  return x;
}

static quern_tensor *adversarial(quern_tensor *logits, double truth) {
  return quern_bce_loss(logits, quern_full_like(logits, truth), QUERN_REDUCTION_MEAN);
}

/* Training: the discriminator's loss of images and of what is generated, and the generator's loss. Else: images. */
quern_tensor *zoo_dcgan(struct zoo *z) {
  quern_tensor *fake = generated(z);
  if (!z->train) return fake;
  quern_tensor *real = zoo_floats(z, "x", QUERN_LIST(z->batch, 3, 64, 64));
  quern_tensor *a = adversarial(discriminated(z, real, false), 1);
  quern_tensor *b = adversarial(discriminated(z, quern_stop_gradient(fake), false), 0);
  quern_tensor *c = adversarial(discriminated(z, fake, true), 1);
  return quern_add(quern_add(a, b), c);
}

/* ---- a variational autoencoder: Kingma and Welling 2014 ---------------------------------------------------------- */

quern_tensor *zoo_vae(struct zoo *z) {
  int64_t C = V("C"), Z = V("Z"), side = V("size") / 8;
  quern_tensor *image = zoo_images(z), *x = image;
  for (int64_t i = 0; i < 3; i++)
    x = quern_relu(zoo_conv(quern_scope_at(z->scope, "encoder", i), x, C << i, 3, 2, 1, 1, true));
  x = quern_nn_linear(quern_scope_in(z->scope, "moments"), quern_flatten(x, 1, 3), 2 * Z, NULL);
  quern_tensor *mean = quern_slice(x, 1, 0, Z, 1), *log_var = quern_slice(x, 1, Z, 2 * Z, 1), *code = mean;
  if (z->train) {
    quern_random stream = quern_scope_random(z->scope);
    quern_tensor *noise = quern_random_normal(z->ctx, z->dtype, QUERN_LIST(z->batch, Z), 0, 1, &stream);
    code = quern_add(mean, quern_mul(noise, quern_exp(quern_mul_scalar(log_var, 0.5))));
  }
  x = quern_nn_linear(quern_scope_in(z->scope, "code"), code, 4 * C * side * side, NULL);
  x = quern_relu(quern_reshape(x, QUERN_LIST(z->batch, 4 * C, side, side)));
  for (int64_t i = 0; i < 3; i++) {
    x = conv_up(quern_scope_at(z->scope, "decoder", i), x, i < 2 ? (2 * C) >> i : 3, 4, 2, 1, true);
    if (i < 2) x = quern_relu(x);
  }
  if (!z->train) return x;
  quern_tensor *spread = quern_sub(quern_sub(quern_add_scalar(log_var, 1), quern_square(mean)), quern_exp(log_var));
  quern_tensor *divergence = quern_mul_scalar(quern_mean(spread, QUERN_ALL, false), -0.5);
  return quern_add(quern_mse_loss(x, image, QUERN_REDUCTION_MEAN), divergence);
}
