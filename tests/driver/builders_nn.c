/* driver/builders_nn.c -- operations whose options are a struct */
#include <string.h>

#include "driver/builders.h"

/* ---- norms --------------------------------------------------------------------------------------------- */

int build_batch_norm(struct args *a) {
  quern_batch_norm_options o = {sizeof o, FLAG(train), REAL(momentum, 0.1), REAL(eps, 1e-5)};
  a->y[0] = quern_batch_norm(X(0), X(1), X(2), X(3), X(4), &o, &a->y[1], &a->y[2]);
  return o.train ? 3 : 1;
}

/* ---- convolution and pooling --------------------------------------------------------------------------- */

/* A list of up to three numbers, one for all axes when there is one only. */
static void spatial(struct args *a, const char *key, int64_t out[3]) {
  const struct ints *ints = args_ints(a, key);
  for (int i = 0; i < 3; i++) out[i] = ints->n == 0 ? 0 : ints->at[i < ints->n ? i : ints->n - 1];
}

static quern_conv_options conv_options(struct args *a) {
  quern_conv_options o = {.size = sizeof o, .groups = INT(groups, 0)};
  spatial(a, "stride", o.stride);
  spatial(a, "dilation", o.dilation);
  spatial(a, "lo", o.pad_lo);
  spatial(a, "hi", o.pad_hi);
  spatial(a, "output_pad", o.output_pad);
  return o;
}

static quern_tensor *conv(quern_tensor *x, quern_tensor *w, quern_tensor *bias, const quern_conv_options *o, int axes) {
  return axes == 1   ? quern_conv1d(x, w, bias, o)
         : axes == 2 ? quern_conv2d(x, w, bias, o)
                     : quern_conv3d(x, w, bias, o);
}

static quern_tensor *conv_transpose(quern_tensor *x, quern_tensor *w, quern_tensor *bias, const quern_conv_options *o,
                                    int axes) {
  return axes == 1   ? quern_conv_transpose1d(x, w, bias, o)
         : axes == 2 ? quern_conv_transpose2d(x, w, bias, o)
                     : quern_conv_transpose3d(x, w, bias, o);
}

/* The number of spatial axes is in the operation's name: "conv2d". */
static int axes_of(const struct args *a) { return a->c->builder->name[strlen(a->c->builder->name) - 2] - '0'; }

int build_conv(struct args *a) {
  quern_conv_options o = conv_options(a);
  return ONE(conv(X(0), X(1), X(2), &o, axes_of(a)));
}

int build_conv_transpose(struct args *a) {
  quern_conv_options o = conv_options(a);
  return ONE(conv_transpose(X(0), X(1), X(2), &o, axes_of(a)));
}

static quern_pool_options pool_options(struct args *a) {
  quern_pool_options o = {.size = sizeof o, .count_pad = FLAG(count_pad)};
  spatial(a, "window", o.window);
  spatial(a, "stride", o.stride);
  spatial(a, "dilation", o.dilation);
  spatial(a, "lo", o.pad_lo);
  spatial(a, "hi", o.pad_hi);
  return o;
}

int build_max_pool(struct args *a) {
  quern_pool_options o = pool_options(a);
  return ONE(quern_max_pool(X(0), &o));
}

int build_avg_pool(struct args *a) {
  quern_pool_options o = pool_options(a);
  return ONE(quern_avg_pool(X(0), &o));
}

/* sizes of the axes, or a scale of all of them. */
int build_interpolate(struct args *a) {
  quern_interpolate_options o = {.size = sizeof o, .align_corners = FLAG(align)};
  double scale = REAL(scale, 0);
  o.mode = (quern_interpolate_mode)WORD(mode, "nearest", "nearest_exact", "linear", "cubic");
  if (scale == 0) spatial(a, "sizes", o.sizes);
  for (int i = 0; i < 3; i++) o.scales[i] = scale;
  return ONE(quern_interpolate(X(0), &o));
}

/* ---- attention and losses ------------------------------------------------------------------------------ */

int build_attention(struct args *a) {
  quern_attention_options o = {sizeof o, REAL(scale, 0), FLAG(causal)};
  bool lse = FLAG(lse);
  a->y[0] = quern_attention(X(0), X(1), X(2), X(3), &o, lse ? &a->y[1] : NULL);
  return lse ? 2 : 1;
}

static quern_cross_entropy_options loss_options(struct args *a) {
  return (quern_cross_entropy_options){sizeof(quern_cross_entropy_options), REDUCTION, REAL(smoothing, 0),
                                       case_text(a->c, "ignore", NULL) != NULL, INT(ignore, 0)};
}

int build_cross_entropy(struct args *a) {
  quern_cross_entropy_options o = loss_options(a);
  return ONE(quern_cross_entropy(X(0), X(1), &o));
}

int build_linear_cross_entropy(struct args *a) {
  quern_cross_entropy_options o = loss_options(a);
  return ONE(quern_linear_cross_entropy(X(0), X(1), X(2), &o));
}

int build_nll_loss(struct args *a) {
  quern_cross_entropy_options o = loss_options(a);
  return ONE(quern_nll_loss(X(0), X(1), &o));
}
