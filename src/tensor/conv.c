/* tensor/conv.c -- convolution and transposed convolution of 1 to 3 spatial axes
** A convolution is padding, windows, and one contraction with the weight; groups are batch axes of the
** contraction. A transposed one is a contraction, folding the windows' transpose, and cutting the padding
** off. Both are composites whose gradient is that of the body.
** tests: tests/tensor/test_conv.c
*/
#include "tensor/compound.h"
#include "tensor/kinds.h"

#include <string.h>

enum { MAX_SPATIAL = 3 };

/* Options with their defaults filled in; the composite's ints are these, then 1 when there is a bias. */
struct geometry {
  int64_t groups;
  int64_t stride[MAX_SPATIAL], dilation[MAX_SPATIAL], lo[MAX_SPATIAL], hi[MAX_SPATIAL], more[MAX_SPATIAL];
};
enum { GEOMETRY_INTS = sizeof(struct geometry) / sizeof(int64_t) };

static struct geometry geometry_of(const struct ir_attrs *attrs) {
  struct geometry g;
  memcpy(&g, attrs->ints.at, sizeof g);
  return g;
}

/* ---- meaning --------------------------------------------------------------------------------- */

/* Labels of axes in contractions: batch, group, channels in and out of a group, place i, place i in the
** window. */
enum { LABEL_N, LABEL_G, LABEL_C, LABEL_O, LABEL_PLACE, LABEL_WINDOW = LABEL_PLACE + MAX_SPATIAL };

struct labels {
  int n, at[QUERN_MAX_RANK];
};

static void labels_add(struct labels *labels, int first, int n) {
  for (int i = 0; i < n; i++) labels->at[labels->n++] = first + i;
}

/* An operand's axes, each with a label. */
struct axes {
  struct labels labels;
  int64_t dims[QUERN_MAX_RANK];
};

static void axes_add(struct axes *axes, int label, int64_t dim) {
  axes->dims[axes->labels.n] = dim;
  labels_add(&axes->labels, label, 1);
}

static void axes_add_many(struct axes *axes, int label, int n, const int64_t *dims) {
  for (int i = 0; i < n; i++) axes_add(axes, label + i, dims[i]);
}

/* The contraction of a and b, seen with those axes, to the axes of out. */
static quern_tensor *contract(quern_tensor *a, const struct axes *a_axes, quern_tensor *b, const struct axes *b_axes,
                              const struct labels *out) {
  a = tensor_reshape(a, a_axes->labels.n, a_axes->dims);
  b = tensor_reshape(b, b_axes->labels.n, b_axes->dims);
  return tensor_contract("conv", a, a_axes->labels.at, b, b_axes->labels.at, out->n, out->at, IR_SUM, IR_COMBINE_MUL);
}

/* What both operands and the result begin with: samples, and groups if there are some. */
static void begin_axes(struct axes *a, struct axes *b, struct labels *y, int64_t samples, int64_t groups) {
  axes_add(a, LABEL_N, samples);
  labels_add(y, LABEL_N, 1);
  if (groups == 1) return;
  axes_add(a, LABEL_G, groups);
  axes_add(b, LABEL_G, groups);
  labels_add(y, LABEL_G, 1);
}

static quern_tensor *add_bias(quern_tensor *y, quern_tensor *bias, int spatial) {
  int64_t dims[1 + MAX_SPATIAL] = {bias->dims[0], 1, 1, 1};
  return quern_add(y, tensor_reshape(bias, 1 + spatial, dims));
}

/* args: x (N, C, ..), weight (O, C / groups, ..), and bias (O,) when ints end with 1. */
static void conv_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                      quern_tensor **results) {
  (void)ctx;
  struct geometry g = geometry_of(attrs);
  const quern_tensor *x = args[0], *w = args[1];
  int spatial = x->rank - 2;
  int64_t lo[2 + MAX_SPATIAL] = {0}, hi[2 + MAX_SPATIAL] = {0}, axes[MAX_SPATIAL],
                 dims[2 + MAX_SPATIAL] = {x->dims[0], w->dims[0]};
  bool padded = false;
  for (int i = 0; i < spatial; i++) {
    lo[2 + i] = g.lo[i];
    hi[2 + i] = g.hi[i];
    padded |= g.lo[i] > 0 || g.hi[i] > 0;
    axes[i] = 2 + i;
    dims[2 + i] = (x->dims[2 + i] + g.lo[i] + g.hi[i] - g.dilation[i] * (w->dims[2 + i] - 1) - 1) / g.stride[i] + 1;
  }
  quern_tensor *windows = padded ? quern_pad(args[0], x->rank, lo, hi, 0) : args[0];
  windows = quern_window(windows, spatial, axes, w->dims + 2, g.stride, g.dilation);

  struct axes a = {0}, b = {0};
  struct labels y = {0};
  int64_t channels = w->dims[1], outputs = w->dims[0] / g.groups;
  begin_axes(&a, &b, &y, x->dims[0], g.groups);
  axes_add(&a, LABEL_C, channels);
  axes_add_many(&a, LABEL_PLACE, spatial, dims + 2);
  axes_add_many(&a, LABEL_WINDOW, spatial, w->dims + 2);
  axes_add(&b, LABEL_O, outputs);
  axes_add(&b, LABEL_C, channels);
  axes_add_many(&b, LABEL_WINDOW, spatial, w->dims + 2);
  labels_add(&y, LABEL_O, 1);
  labels_add(&y, LABEL_PLACE, spatial);
  quern_tensor *out = tensor_reshape(contract(windows, &a, args[1], &b, &y), x->rank, dims);
  results[0] = attrs->ints.at[GEOMETRY_INTS] != 0 ? add_bias(out, args[2], spatial) : out;
}

/* args: x (N, C, ..), weight (C, O / groups, ..), and bias (O,) when ints end with 1. */
static void conv_transpose_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                                quern_tensor **results) {
  struct geometry g = geometry_of(attrs);
  const quern_tensor *x = args[0], *w = args[1];
  int spatial = x->rank - 2;
  int64_t channels = w->dims[0] / g.groups, outputs = w->dims[1];

  struct axes a = {0}, b = {0};
  struct labels y = {0};
  begin_axes(&a, &b, &y, x->dims[0], g.groups);
  axes_add(&a, LABEL_C, channels);
  axes_add_many(&a, LABEL_PLACE, spatial, x->dims + 2);
  axes_add(&b, LABEL_C, channels);
  axes_add(&b, LABEL_O, outputs);
  axes_add_many(&b, LABEL_WINDOW, spatial, w->dims + 2);
  labels_add(&y, LABEL_O, 1);
  labels_add(&y, LABEL_PLACE, spatial);
  labels_add(&y, LABEL_WINDOW, spatial);
  quern_tensor *windows = contract(args[0], &a, args[1], &b, &y);

  /* Folded, then lo and hi cut off and what output_pad asks for beyond that filled with 0. */
  int64_t cols[2 + 2 * MAX_SPATIAL], full[2 + MAX_SPATIAL], axes[MAX_SPATIAL];
  int64_t zero[2 + MAX_SPATIAL] = {0}, beyond[2 + MAX_SPATIAL] = {0}, from[2 + MAX_SPATIAL] = {0}, to[2 + MAX_SPATIAL];
  static const int64_t ones[2 + MAX_SPATIAL] = {1, 1, 1, 1, 1};
  cols[0] = full[0] = to[0] = x->dims[0];
  cols[1] = full[1] = to[1] = outputs * g.groups;
  bool grows = false, cut = false;
  for (int i = 0; i < spatial; i++) {
    int64_t n = x->dims[2 + i], k = w->dims[2 + i];
    axes[i] = 2 + i;
    cols[2 + i] = n;
    cols[2 + spatial + i] = k;
    full[2 + i] = (n - 1) * g.stride[i] + g.dilation[i] * (k - 1) + 1;
    beyond[2 + i] = BASE_MAX(g.more[i] - g.hi[i], 0);
    from[2 + i] = g.lo[i];
    to[2 + i] = full[2 + i] - g.hi[i] + g.more[i];
    grows |= beyond[2 + i] > 0;
    cut |= g.lo[i] > 0 || g.hi[i] > g.more[i];
  }
  windows = tensor_reshape(windows, 2 + 2 * spatial, cols);
  quern_tensor *out = IR_MAKE(ctx, IR_COL2IM,
                              TENSOR_ATTRS(.shape = {x->rank, full}, .axes = {spatial, axes},
                                           .step = {spatial, g.stride}, .dilate = {spatial, g.dilation}),
                              windows);
  if (grows) out = quern_pad(out, x->rank, zero, beyond, 0);
  if (cut) {
    out =
        IR_MAKE(ctx, IR_SLICE, TENSOR_ATTRS(.lo = {x->rank, from}, .hi = {x->rank, to}, .step = {x->rank, ones}), out);
  }
  results[0] = attrs->ints.at[GEOMETRY_INTS] != 0 ? add_bias(out, args[2], spatial) : out;
}

const struct ir_composite tensor_kind_conv = {
    .name = "conv", .n_results = 1, .body = conv_body, .admits = tensor_admits_conv};
const struct ir_composite tensor_kind_conv_transpose = {
    .name = "conv_transpose", .n_results = 1, .body = conv_transpose_body, .admits = tensor_admits_conv};

/* ---- builders -------------------------------------------------------------------------------- */

/* The options of spatial axes with their defaults; false with the error recorded. */
static bool read_options(quern_context *ctx, const char *what, int spatial, bool transposed,
                         const quern_conv_options *options, struct geometry *g) {
  quern_conv_options taken;
  if (!tensor_options(ctx, what, &taken, sizeof taken, options, "quern_conv_options")) return false;
  options = &taken;
  *g = (struct geometry){
      .groups = options->groups == 0 ? 1 : options->groups, .stride = {1, 1, 1}, .dilation = {1, 1, 1}};
  for (int i = 0; i < spatial; i++) {
    const struct {
      const char *name;
      int64_t value;
    } fields[] = {
        {"stride", options->stride[i]}, {"dilation", options->dilation[i]},     {"pad_lo", options->pad_lo[i]},
        {"pad_hi", options->pad_hi[i]}, {"output_pad", options->output_pad[i]},
    };
    for (size_t f = 0; f < BASE_COUNT(fields); f++) {
      if (fields[f].value >= 0 && fields[f].value <= INT32_MAX) continue;
      ir_fail(ctx, QUERN_STATUS_INVALID, "%s: %s[%d] is %lld, must be in 0..2^31-1", what, fields[f].name, i,
              (long long)fields[f].value);
      return false;
    }
    if (options->stride[i] > 0) g->stride[i] = options->stride[i];
    if (options->dilation[i] > 0) g->dilation[i] = options->dilation[i];
    g->lo[i] = options->pad_lo[i];
    g->hi[i] = options->pad_hi[i];
    g->more[i] = options->output_pad[i];
    if (!transposed && g->more[i] != 0) {
      ir_fail(ctx, QUERN_STATUS_INVALID, "%s: output_pad[%d] is %lld; only transposed convolution has it", what, i,
              (long long)g->more[i]);
      return false;
    }
    if (transposed && g->more[i] >= BASE_MAX(g->stride[i], g->dilation[i])) {
      ir_fail(ctx, QUERN_STATUS_INVALID, "%s: output_pad[%d] is %lld, must be below stride %lld or dilation %lld", what,
              i, (long long)g->more[i], (long long)g->stride[i], (long long)g->dilation[i]);
      return false;
    }
  }
  return true;
}

/* False with the error recorded unless each spatial axis gives at least one place. */
static bool extents_ok(quern_context *ctx, const char *what, int spatial, bool transposed, const quern_tensor *x,
                       const quern_tensor *w, const struct geometry *g) {
  for (int i = 0; i < spatial; i++) {
    int64_t n = x->dims[2 + i], k = w->dims[2 + i], window, places;
    if (n < 1 || k < 1) {
      ir_fail(ctx, QUERN_STATUS_SHAPE, "%s: spatial axis %d is empty: x is %s, weight is %s", what, i, TENSOR_TYPE(x),
              TENSOR_TYPE(w));
      return false;
    }
    bool fits = !__builtin_mul_overflow(k - 1, g->dilation[i], &window) && !__builtin_add_overflow(window, 1, &window);
    if (transposed) {
      fits = fits && !__builtin_mul_overflow(n - 1, g->stride[i], &places) &&
             !__builtin_add_overflow(places, window, &places) && !__builtin_add_overflow(places, g->more[i], &places);
    } else {
      fits = fits && !__builtin_add_overflow(n, g->lo[i] + g->hi[i], &places);
    }
    if (!fits) {
      ir_fail(ctx, QUERN_STATUS_OVERFLOW,
              "%s: spatial axis %d of x %s and weight %s with stride %lld, dilation %lld: its size does not fit", what,
              i, TENSOR_TYPE(x), TENSOR_TYPE(w), (long long)g->stride[i], (long long)g->dilation[i]);
      return false;
    }
    if (transposed && places - g->lo[i] - g->hi[i] < 1) {
      ir_fail(ctx, QUERN_STATUS_SHAPE,
              "%s: spatial axis %d gives %lld places, padding %lld + %lld cuts off all of them", what, i,
              (long long)places, (long long)g->lo[i], (long long)g->hi[i]);
      return false;
    }
    if (!transposed && window > places) {
      ir_fail(ctx, QUERN_STATUS_SHAPE,
              "%s: spatial axis %d has %lld + %lld + %lld = %lld places with padding, the window of size "
              "%lld and dilation %lld needs "
              "%lld HINT: set pad_lo and pad_hi",
              what, i, (long long)n, (long long)g->lo[i], (long long)g->hi[i], (long long)places, (long long)k,
              (long long)g->dilation[i], (long long)window);
      return false;
    }
  }
  return true;
}

static quern_tensor *convolve(const char *what, int spatial, bool transposed, quern_tensor *x, quern_tensor *weight,
                              quern_tensor *bias, const quern_conv_options *options) {
  static const char *const layouts[] = {"", "(N, C, W)", "(N, C, H, W)", "(N, C, D, H, W)"};
  quern_tensor *src[] = {x, weight, bias};
  quern_context *ctx = tensor_enter_some(what, 2, 3, src);
  if (ctx == NULL || !tensor_admits(what, x, BASE_NUM)) return &ir_poison;
  TENSOR_CHECK(ctx, x->rank == 2 + spatial, SHAPE, "%s: x is %s, must be %s", what, TENSOR_TYPE(x), layouts[spatial]);
  TENSOR_CHECK(ctx, weight->rank == 2 + spatial, SHAPE, "%s: weight is %s, must be %s with %d window axes", what,
               TENSOR_TYPE(weight), transposed ? "(C, O / groups, ..)" : "(O, C / groups, ..)", spatial);
  if (!tensor_need_like(what, "weight", weight, x, weight->rank, weight->dims)) return &ir_poison;
  struct geometry g;
  if (!read_options(ctx, what, spatial, transposed, options, &g)) return &ir_poison;

  int64_t channels = x->dims[1], divided = transposed ? channels : weight->dims[0];
  TENSOR_CHECK(ctx, g.groups >= 1 && g.groups <= BASE_MAX(channels, 1) && channels % g.groups == 0, SHAPE,
               "%s: %lld groups do not divide the %lld channels of x %s", what, (long long)g.groups,
               (long long)channels, TENSOR_TYPE(x));
  TENSOR_CHECK(ctx, divided % g.groups == 0, SHAPE, "%s: %lld groups do not divide the %lld outputs of weight %s", what,
               (long long)g.groups, (long long)divided, TENSOR_TYPE(weight));
  int64_t wanted = weight->dims[0], outputs = weight->dims[0];
  TENSOR_CHECK(ctx, !__builtin_mul_overflow(weight->dims[1], g.groups, transposed ? &outputs : &wanted), OVERFLOW,
               "%s: weight %s with %lld groups has too many channels", what, TENSOR_TYPE(weight), (long long)g.groups);
  TENSOR_CHECK(ctx, wanted == channels, SHAPE,
               "%s: x %s has %lld channels, weight %s with %lld groups takes %lld HINT: weight is %s", what,
               TENSOR_TYPE(x), (long long)channels, TENSOR_TYPE(weight), (long long)g.groups, (long long)wanted,
               transposed ? "(C, O / groups, ..)" : "(O, C / groups, ..)");
  if (!tensor_need_like(what, "bias", bias, x, 1, &outputs)) return &ir_poison;
  if (!extents_ok(ctx, what, spatial, transposed, x, weight, &g)) return &ir_poison;

  int64_t ints[GEOMETRY_INTS + 1];
  memcpy(ints, &g, sizeof g);
  ints[GEOMETRY_INTS] = bias != NULL;
  const struct ir_composite *kind = transposed ? &tensor_kind_conv_transpose : &tensor_kind_conv;
  return ir_composite_make(ctx, kind, (struct ir_ints){GEOMETRY_INTS + 1, ints}, (struct ir_reals){0},
                           bias != NULL ? 3 : 2, src);
}

#define CONVOLUTION(name, spatial, transposed)                                                                         \
  quern_tensor *quern_##name(quern_tensor *x, quern_tensor *weight, quern_tensor *bias,                                \
                             const quern_conv_options *options) {                                                      \
    return convolve(#name, spatial, transposed, x, weight, bias, options);                                             \
  }
CONVOLUTION(conv1d, 1, false)
CONVOLUTION(conv2d, 2, false)
CONVOLUTION(conv3d, 3, false)
CONVOLUTION(conv_transpose1d, 1, true)
CONVOLUTION(conv_transpose2d, 2, true)
CONVOLUTION(conv_transpose3d, 3, true)
#undef CONVOLUTION
