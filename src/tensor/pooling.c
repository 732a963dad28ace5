/* tensor/pooling.c -- maxima and averages of windows of 1 to 3 spatial axes
** Padding, windows, one reduction over them. Maxima are padded with the lowest value of the dtype; at
** ties the gradient is shared equally. Averages divide by the elements of the input under a window, or by
** all its places with count_pad.
** tests: tests/tensor/test_pooling.c
*/
#include "tensor/compound.h"

#include <math.h>

enum { MAX_SPATIAL = 3, MAX_PIECES = 65536 }; /* pieces of different sizes are nodes of their own */

struct pool {
  int spatial;
  int64_t window[MAX_SPATIAL], stride[MAX_SPATIAL], dilation[MAX_SPATIAL];
  int64_t lo[2 + MAX_SPATIAL], hi[2 + MAX_SPATIAL]; /* of all axes */
  bool padded, count_pad;
};

/* The context of an x with 1 to 3 spatial axes, or NULL with the error recorded. */
static quern_context *enter(const char *what, quern_tensor *x) {
  quern_context *ctx = tensor_enter(what, 1, &x);
  if (ctx == NULL) return NULL;
  if (x->rank >= 3 && x->rank <= 2 + MAX_SPATIAL) return ctx;
  ir_fail(ctx, QUERN_STATUS_SHAPE, "%s: x is %s, must be (N, C, ..) with 1 to 3 spatial axes", what, TENSOR_TYPE(x));
  return NULL;
}

/* Options with their defaults for an x; false with the error recorded. */
static bool read_options(quern_context *ctx, const char *what, const quern_tensor *x, const quern_pool_options *options,
                         struct pool *p) {
  if (options == NULL) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: options is null; it has the window", what);
    return false;
  }
  quern_pool_options taken;
  if (!tensor_options(ctx, what, &taken, sizeof taken, options, "quern_pool_options")) return false;
  options = &taken;
  *p = (struct pool){.spatial = x->rank - 2, .count_pad = options->count_pad};
  for (int i = 0; i < p->spatial; i++) {
    const struct {
      const char *name;
      int64_t value, least;
    } fields[] = {
        {"window", options->window[i], 1}, {"stride", options->stride[i], 0}, {"dilation", options->dilation[i], 0},
        {"pad_lo", options->pad_lo[i], 0}, {"pad_hi", options->pad_hi[i], 0},
    };
    for (size_t f = 0; f < BASE_COUNT(fields); f++) {
      if (fields[f].value >= fields[f].least && fields[f].value <= INT32_MAX) continue;
      ir_fail(ctx, QUERN_STATUS_INVALID, "%s: %s[%d] is %lld, must be in %lld..2^31-1", what, fields[f].name, i,
              (long long)fields[f].value, (long long)fields[f].least);
      return false;
    }
    int64_t window = options->window[i], lo = options->pad_lo[i], hi = options->pad_hi[i], n = x->dims[2 + i], places;
    p->window[i] = window;
    p->stride[i] = options->stride[i] > 0 ? options->stride[i] : window;
    p->dilation[i] = options->dilation[i] > 0 ? options->dilation[i] : 1;
    p->lo[2 + i] = lo;
    p->hi[2 + i] = hi;
    p->padded |= lo > 0 || hi > 0;
    if (lo >= window || hi >= window) {
      ir_fail(ctx, QUERN_STATUS_INVALID,
              "%s: padding %lld, %lld of spatial axis %d must be less than the window's size %lld", what, (long long)lo,
              (long long)hi, i, (long long)window);
      return false;
    }
    int64_t span = (window - 1) * p->dilation[i] + 1;
    if (__builtin_add_overflow(n, lo + hi, &places) || span > places) {
      ir_fail(ctx, QUERN_STATUS_SHAPE,
              "%s: the window of size %lld and dilation %lld needs %lld places of spatial axis %d, x %s has "
              "%lld with padding %lld, %lld",
              what, (long long)window, (long long)p->dilation[i], (long long)span, i, TENSOR_TYPE(x), (long long)places,
              (long long)lo, (long long)hi);
      return false;
    }
  }
  return true;
}

/* x, padded with fill, reduced over its windows. */
static quern_tensor *reduce_windows(quern_tensor *x, const struct pool *p, quern_tensor *fill, enum ir_reduce reduce) {
  if (ir_is_poison(x)) return &ir_poison;
  int rank = 2 + p->spatial;
  int64_t none[2 + MAX_SPATIAL] = {0}, axes[MAX_SPATIAL], window_axes[MAX_SPATIAL];
  for (int i = 0; i < p->spatial; i++) {
    axes[i] = 2 + i;
    window_axes[i] = rank + i;
  }
  if (p->padded) {
    x = IR_MAKE(x->node->ctx, IR_PAD, TENSOR_ATTRS(.lo = {rank, p->lo}, .hi = {rank, p->hi}, .mid = {rank, none}), x,
                fill);
  }
  x = quern_window(x, p->spatial, axes, p->window, p->stride, p->dilation);
  return tensor_reduce(x, reduce, p->spatial, window_axes);
}

/* The lowest value of a dtype: -inf where there is one. */
static quern_tensor *lowest(quern_context *ctx, quern_dtype dtype) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  if (info->class == BASE_SIGNED)
    return ir_const_int(ctx, dtype, info->bits == 64 ? INT64_MIN : -(INT64_C(1) << (info->bits - 1)));
  if (info->class != BASE_FLOAT) return ir_const_int(ctx, dtype, 0);
  if (info->inf) return ir_const(ctx, dtype, -(double)INFINITY);
  int bias = (1 << (info->exponent - 1)) - 1; /* all exponents are of numbers, all ones but for the mantissa of NaN */
  return ir_const(ctx, dtype, -ldexp(2 - ldexp(1, 1 - info->mantissa), (1 << info->exponent) - 1 - bias));
}

quern_tensor *quern_max_pool(quern_tensor *x, const quern_pool_options *options) {
  const char *what = "max_pool";
  struct pool p;
  quern_context *ctx = enter(what, x);
  if (ctx == NULL || !tensor_admits(what, x, BASE_NUM) || !read_options(ctx, what, x, options, &p)) return &ir_poison;
  return reduce_windows(x, &p, lowest(ctx, x->dtype), IR_REDUCE_MAX);
}

quern_tensor *quern_avg_pool(quern_tensor *x, const quern_pool_options *options) {
  const char *what = "avg_pool";
  struct pool p;
  quern_context *ctx = enter(what, x);
  if (ctx == NULL || !tensor_need_float(what, "x", x) || !read_options(ctx, what, x, options, &p)) return &ir_poison;
  quern_dtype wide = tensor_wide(x->dtype);
  quern_tensor *zero = ir_const(ctx, wide, 0), *sum = reduce_windows(tensor_widen(x), &p, zero, IR_SUM);
  if (p.padded && !p.count_pad) {
    int64_t dims[2 + MAX_SPATIAL] = {1, 1};
    for (int i = 0; i < p.spatial; i++) dims[2 + i] = x->dims[2 + i];
    quern_tensor *ones = quern_ones(ctx, wide, x->rank, dims);
    return tensor_to(quern_div(sum, reduce_windows(ones, &p, zero, IR_SUM)), x->dtype);
  }
  double count = 1;
  for (int i = 0; i < p.spatial; i++) count *= (double)p.window[i];
  return tensor_to(quern_div_scalar(sum, count), x->dtype);
}

/* ---- adaptive -------------------------------------------------------------------------------- */

/* x with axis reduced to m pieces, the i-th from floor(i n / m) to ceil((i + 1) n / m). */
static quern_tensor *reduce_pieces(quern_tensor *x, int axis, int64_t n, int64_t m, bool average) {
  if (n == m || ir_is_poison(x)) return x;
  quern_context *ctx = x->node->ctx;
  size_t bytes = (size_t)m * sizeof(quern_tensor *);
  quern_tensor **pieces = base_alloc(&ctx->heap, bytes);
  if (pieces == NULL) return ir_fail_last(ctx);
  bool ok = true;
  int64_t whole = n / m, rest = n % m; /* i n / m in two parts, so that no product overflows */
  for (int64_t i = 0, over = axis; i < m && ok; i++) {
    int64_t from = i * whole + i * rest / m, to = (i + 1) * whole + ((i + 1) * rest + m - 1) / m;
    quern_tensor *piece = quern_slice(x, axis, from, to, 1);
    pieces[i] = average ? quern_mean(piece, 1, &over, true) : quern_max(piece, 1, &over, true);
    ok = !ir_is_poison(pieces[i]);
  }
  quern_tensor *y = ok ? quern_concat((int)m, pieces, axis) : &ir_poison;
  base_free(&ctx->heap, pieces, bytes);
  return y;
}

static quern_tensor *adaptive(const char *what, quern_tensor *x, int n, const int64_t *sizes, bool average) {
  quern_context *ctx = enter(what, x);
  if (ctx == NULL || (average ? !tensor_need_float(what, "x", x) : !tensor_admits(what, x, BASE_NUM)))
    return &ir_poison;
  TENSOR_CHECK(ctx, n == x->rank - 2, SHAPE, "%s: %d sizes for the %d spatial axes of x %s", what, n, x->rank - 2,
               TENSOR_TYPE(x));
  TENSOR_CHECK(ctx, sizes != NULL, INVALID, "%s: a list of %d sizes is null", what, n);
  struct pool p = {.spatial = n};
  bool even = true;
  double count = 1;
  for (int i = 0; i < n; i++) {
    int64_t have = x->dims[2 + i];
    TENSOR_CHECK(ctx, sizes[i] >= 1 && sizes[i] <= INT32_MAX, SHAPE, "%s: sizes[%d] is %lld, must be in 1..2^31-1",
                 what, i, (long long)sizes[i]);
    TENSOR_CHECK(ctx, have >= 1, SHAPE, "%s: spatial axis %d of x %s is empty", what, i, TENSOR_TYPE(x));
    even &= have % sizes[i] == 0;
    p.window[i] = p.stride[i] = have / sizes[i];
    p.dilation[i] = 1;
    count *= (double)p.window[i];
  }
  quern_tensor *y = average ? tensor_widen(x) : x;
  if (even) {
    y = reduce_windows(y, &p, NULL, average ? IR_SUM : IR_REDUCE_MAX);
    return average ? tensor_to(quern_div_scalar(y, count), x->dtype) : y;
  }
  for (int i = 0; i < n; i++) {
    TENSOR_CHECK(ctx, sizes[i] == x->dims[2 + i] || sizes[i] <= MAX_PIECES, SHAPE,
                 "%s: sizes[%d] is %lld, at most %d where sizes do not divide x %s", what, i, (long long)sizes[i],
                 (int)MAX_PIECES, TENSOR_TYPE(x));
  }
  for (int i = 0; i < n; i++) y = reduce_pieces(y, 2 + i, x->dims[2 + i], sizes[i], average);
  return tensor_to(y, x->dtype);
}

quern_tensor *quern_adaptive_avg_pool(quern_tensor *x, int n, const int64_t *sizes) {
  return adaptive("adaptive_avg_pool", x, n, sizes, true);
}
quern_tensor *quern_adaptive_max_pool(quern_tensor *x, int n, const int64_t *sizes) {
  return adaptive("adaptive_max_pool", x, n, sizes, false);
}
