/* tensor/interpolate.c -- spatial axes of another size by interpolation; channels to places and back
** One axis after another, the last first: an element of the result is a sum of weights times elements of x at places that are known here.
** Places that form a slice or a repetition become one, so that integral factors of nearest read nothing by index. Positions are
** computed in double, weights rounded to the dtype that is computed in.
** see:   Keys, "Cubic convolution interpolation for digital image processing", 1981 (a = -0.75)
** tests: tests/tensor/test_interpolate.c
*/
#include "tensor/compound.h"

#include <math.h>

enum { MAX_SPATIAL = 3, MAX_TAPS = 4, MAX_OUT = 1 << 22 };

/* An axis of size n that becomes one of size m. */
struct axis {
  int axis;
  int64_t n, m;
  double scale; /* that was asked for; 0: m / n */
  quern_interpolate_mode mode;
  bool align;
};

/* What every element of the result reads: tap t of element i is at place[t * m + i]. */
struct taps {
  int n;
  int32_t *place;
  double *weight;
};

/* ---- positions ------------------------------------------------------------------------------------------- */

/* Where the middle of element i of the result lies in x, whose elements have their middles at 0, 1, .. */
static double position(const struct axis *a, int64_t i) {
  if (a->align) return a->m > 1 ? (double)i * (double)(a->n - 1) / (double)(a->m - 1) : 0;
  if (a->scale != 0) return ((double)i + 0.5) / a->scale - 0.5;
  return ((double)(2 * i + 1) * (double)a->n - (double)a->m) / (2 * (double)a->m);
}

static int64_t nearest(const struct axis *a, int64_t i) {
  int64_t half = a->mode == QUERN_INTERPOLATE_NEAREST_EXACT;
  double exact = floor(((double)i + 0.5 * (double)half) / a->scale);
  return BASE_MIN(a->scale != 0 ? (int64_t)exact : (2 * i + half) * a->n / (2 * a->m), a->n - 1);
}

/* The weight of a neighbor at distance x of a cubic convolution. */
static double cubic(double x) {
  const double a = -0.75;
  x = fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

static void set_tap(const struct axis *a, struct taps *taps, int tap, int64_t i, int64_t place, double weight) {
  taps->place[tap * a->m + i] = (int32_t)BASE_MIN(BASE_MAX(place, 0), a->n - 1);
  taps->weight[tap * a->m + i] = weight;
}

static void fill_taps(const struct axis *a, struct taps *taps) {
  for (int64_t i = 0; i < a->m; i++) {
    if (taps->n == 1) {
      set_tap(a, taps, 0, i, nearest(a, i), 1);
      continue;
    }
    double at = position(a, i);
    if (taps->n == 2) at = fmin(fmax(at, 0), (double)(a->n - 1));
    double from = floor(at);
    for (int t = 0; t < taps->n; t++) {
      double distance = at - from - (double)(t - (taps->n / 2 - 1));
      set_tap(a, taps, t, i, (int64_t)from + t - (taps->n / 2 - 1),
              taps->n == 2 ? 1 - fabs(distance) : cubic(distance));
    }
  }
}

/* ---- expressions ----------------------------------------------------------------------------------------- */

/* A constant in the expression where it may be one, so that equal ones are the same. */
static quern_tensor *table(quern_context *ctx, quern_dtype dtype, int64_t n, const void *data) {
  enum { MOST = 64 << 10 };
  bool small = (size_t)n * base_dtypes[dtype].size <= MOST;
  return small ? quern_constant(ctx, dtype, 1, &n, data) : quern_tensor_copy(ctx, dtype, 1, &n, data);
}

/* Every element of an axis `times` times in a row. */
static quern_tensor *repeat(quern_tensor *x, int axis, int64_t times) {
  int64_t dims[QUERN_MAX_RANK], out[QUERN_MAX_RANK];
  int rank = x->rank;
  for (int k = 0; k <= rank; k++) dims[k] = k <= axis ? x->dims[k] : k == axis + 1 ? times : x->dims[k - 1];
  for (int k = 0; k < rank; k++) out[k] = k == axis ? x->dims[k] * times : x->dims[k];
  return tensor_reshape(quern_broadcast_to(quern_unsqueeze(x, axis + 1), rank + 1, dims), rank, out);
}

/* x at the places of a tap. */
static quern_tensor *take(quern_tensor *x, const struct axis *a, const int32_t *place) {
  int64_t m = a->m, times = m / a->n, step = m > 1 ? place[1] - place[0] : 1;
  bool slice = step > 0, repeats = m % a->n == 0;
  for (int64_t i = 0; i < m && (slice || repeats); i++) {
    slice = slice && place[i] == place[0] + i * step;
    repeats = repeats && place[i] == i / times;
  }
  if (slice) return quern_slice(x, a->axis, place[0], place[0] + (m - 1) * step + 1, step);
  return repeats ? repeat(x, a->axis, times) : quern_gather(x, table(x->node->ctx, QUERN_DTYPE_I32, m, place), a->axis);
}

/* The weights of a tap, one for each element along the axis. */
static quern_tensor *weights(quern_tensor *x, const struct axis *a, const double *weight) {
  quern_context *ctx = x->node->ctx;
  int64_t dims[QUERN_MAX_RANK] = {a->m, 1, 1, 1, 1};
  size_t bytes = (size_t)a->m * base_dtypes[x->dtype].size;
  void *data = base_alloc(&ctx->heap, bytes);
  if (data == NULL) return ir_fail_last(ctx);
  for (int64_t i = 0; i < a->m; i++) base_store_float(x->dtype, data, (size_t)i, weight[i]);
  quern_tensor *w = table(ctx, x->dtype, a->m, data);
  base_free(&ctx->heap, data, bytes);
  return ir_is_poison(w) ? w : tensor_reshape(w, x->rank - a->axis, dims);
}

static quern_tensor *sum_taps(quern_tensor *x, const struct axis *a, const struct taps *taps) {
  quern_tensor *sum = NULL;
  for (int t = 0; t < taps->n; t++) {
    const double *weight = taps->weight + t * a->m;
    bool none = true, whole = true;
    for (int64_t i = 0; i < a->m; i++) {
      none = none && weight[i] == 0;
      whole = whole && weight[i] == 1;
    }
    if (none) continue;
    quern_tensor *part = take(x, a, taps->place + t * a->m);
    if (!whole) part = quern_mul(part, weights(x, a, weight));
    sum = sum == NULL ? part : quern_add(sum, part);
  }
  return sum;
}

/* x with one axis interpolated. */
static quern_tensor *along(quern_tensor *x, const struct axis *a) {
  if (ir_is_poison(x)) return x;
  quern_context *ctx = x->node->ctx;
  struct taps taps = {.n = a->mode == QUERN_INTERPOLATE_LINEAR ? 2 : a->mode == QUERN_INTERPOLATE_CUBIC ? MAX_TAPS : 1};
  size_t n = (size_t)taps.n * (size_t)a->m;
  taps.place = base_alloc(&ctx->heap, n * sizeof *taps.place);
  taps.weight = base_alloc(&ctx->heap, n * sizeof *taps.weight);
  quern_tensor *y = &ir_poison;
  if (taps.place != NULL && taps.weight != NULL) {
    fill_taps(a, &taps);
    y = sum_taps(x, a, &taps);
  } else {
    y = ir_fail_last(ctx);
  }
  base_free(&ctx->heap, taps.place, n * sizeof *taps.place);
  base_free(&ctx->heap, taps.weight, n * sizeof *taps.weight);
  return y;
}

/* ---- the door -------------------------------------------------------------------------------------------- */

/* Spatial axis i of x with its new size; false with the error recorded. */
static bool read_axis(quern_context *ctx, const char *what, const quern_tensor *x, const quern_interpolate_options *o,
                      int i, struct axis *a) {
  int64_t size = o->sizes[i];
  double scale = o->scales[i];
  *a = (struct axis){.axis = 2 + i, .n = x->dims[2 + i], .m = size, .mode = o->mode, .align = o->align_corners};
  if ((size != 0) == (scale != 0) || size < 0 || !isfinite(scale) || scale < 0) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: sizes[%d] is %lld, scales[%d] is %g; one of them must be above 0", what, i,
            (long long)size, i, scale);
    return false;
  }
  if (scale != 0) {
    double m = floor((double)a->n * scale);
    a->m = m <= MAX_OUT ? (int64_t)m : (int64_t)MAX_OUT + 1;
    a->scale = scale;
  }
  if (a->n >= 1 && a->n <= INT32_MAX && a->m >= 1 && a->m <= MAX_OUT) return true;
  ir_fail(ctx, QUERN_STATUS_SHAPE,
          "%s: spatial axis %d of x %s would have %lld places%s; must be 1 to %d of 1 at least", what, i,
          TENSOR_TYPE(x), (long long)a->m, a->m > MAX_OUT ? " or more" : "", (int)MAX_OUT);
  return false;
}

quern_tensor *quern_interpolate(quern_tensor *x, const quern_interpolate_options *options) {
  const char *what = "interpolate";
  TENSOR_ENTER(ctx, what, x);
  TENSOR_CHECK(ctx, x->rank >= 3 && x->rank <= 2 + MAX_SPATIAL, SHAPE,
               "%s: x is %s, must be (N, C, ..) with 1 to 3 spatial axes", what, TENSOR_TYPE(x));
  TENSOR_CHECK(ctx, options != NULL, INVALID, "%s: options is null; it has the sizes", what);
  TENSOR_OPTIONS(ctx, what, quern_interpolate_options, options);
  TENSOR_CHECK(ctx, (unsigned)options->mode <= QUERN_INTERPOLATE_CUBIC, INVALID, "%s: there is no mode %d", what,
               (int)options->mode);
  bool near = options->mode == QUERN_INTERPOLATE_NEAREST || options->mode == QUERN_INTERPOLATE_NEAREST_EXACT;
  TENSOR_CHECK(ctx, !near || !options->align_corners, INVALID,
               "%s: align_corners is for linear and cubic; nearest takes elements as they are", what);
  if (!near && !tensor_need_float(what, "x", x)) return &ir_poison;
  struct axis axes[MAX_SPATIAL];
  for (int i = 0; i < x->rank - 2; i++)
    if (!read_axis(ctx, what, x, options, i, &axes[i])) return &ir_poison;
  quern_tensor *y = near ? x : tensor_widen(x);
  for (int i = x->rank - 3; i >= 0; i--) y = along(y, &axes[i]);
  return ir_is_poison(y) ? y : tensor_to(y, x->dtype);
}

/* ---- channels and places ----------------------------------------------------------------------------------- */

/* The context of an x (N, C, H, W) and a factor, or NULL with the error recorded. */
static quern_context *enter_shuffle(const char *what, quern_tensor *x, int64_t factor) {
  quern_context *ctx = tensor_enter(what, 1, &x);
  if (ctx == NULL) return NULL;
  if (x->rank != 4) {
    ir_fail(ctx, QUERN_STATUS_SHAPE, "%s: x is %s, must be (N, C, H, W)", what, TENSOR_TYPE(x));
    return NULL;
  }
  if (factor >= 1 && factor <= INT16_MAX) return ctx;
  ir_fail(ctx, QUERN_STATUS_INVALID, "%s: the factor is %lld, must be in 1..%d", what, (long long)factor, INT16_MAX);
  return NULL;
}

quern_tensor *quern_pixel_shuffle(quern_tensor *x, int64_t factor) {
  quern_context *ctx = enter_shuffle("pixel_shuffle", x, factor);
  if (ctx == NULL) return &ir_poison;
  int64_t n = x->dims[0], c = x->dims[1], h = x->dims[2], w = x->dims[3], r = factor, height, width;
  TENSOR_CHECK(ctx, c % (r * r) == 0, SHAPE, "pixel_shuffle: the factor %lld needs channels by %lld, x is %s",
               (long long)r, (long long)(r * r), TENSOR_TYPE(x));
  TENSOR_CHECK(ctx, !__builtin_mul_overflow(h, r, &height) && !__builtin_mul_overflow(w, r, &width), OVERFLOW,
               "pixel_shuffle: x %s by %lld has too many places", TENSOR_TYPE(x), (long long)r);
  const int64_t apart[] = {n, c / (r * r), r, r, h, w}, order[] = {0, 1, 4, 2, 5, 3};
  const int64_t out[] = {n, c / (r * r), height, width};
  return tensor_reshape(tensor_permute(tensor_reshape(x, 6, apart), order), 4, out);
}

quern_tensor *quern_pixel_unshuffle(quern_tensor *x, int64_t factor) {
  quern_context *ctx = enter_shuffle("pixel_unshuffle", x, factor);
  if (ctx == NULL) return &ir_poison;
  int64_t n = x->dims[0], c = x->dims[1], h = x->dims[2], w = x->dims[3], r = factor, channels;
  TENSOR_CHECK(ctx, h % r == 0 && w % r == 0, SHAPE, "pixel_unshuffle: the factor %lld does not divide x %s",
               (long long)r, TENSOR_TYPE(x));
  TENSOR_CHECK(ctx, !__builtin_mul_overflow(c, r * r, &channels), OVERFLOW,
               "pixel_unshuffle: x %s by %lld has too many channels", TENSOR_TYPE(x), (long long)r);
  const int64_t apart[] = {n, c, h / r, r, w / r, r}, order[] = {0, 1, 3, 5, 2, 4};
  const int64_t out[] = {n, channels, h / r, w / r};
  return tensor_reshape(tensor_permute(tensor_reshape(x, 6, apart), order), 4, out);
}
