/* tensor/random.c -- random tensors, a function of seed, step and stream alone
** keeps: the f32 numbers are those of base/philox.c, bit for bit: word i, or words 2i and 2i + 1
** see:   base/philox.c: base_random_uniform, base_random_normal
** tests: tests/tensor/test_random.c
*/
#include "tensor/tensor.h"

#include <math.h>

#include "tensor/kinds.h"

/* ---- sources ------------------------------------------------------------------------------------------- */

struct source {
  quern_tensor *seed, *step;
  uint32_t stream;
};

static bool u64_scalar(const char *what, const char *name, quern_context *ctx, quern_tensor **x, uint64_t otherwise) {
  if (*x == NULL) *x = ir_const_int(ctx, QUERN_DTYPE_U64, (int64_t)otherwise);
  if (ir_is_poison(*x)) return false;
  if ((*x)->node->ctx != ctx) {
    ir_fail(ctx, QUERN_STATUS_INVALID, "%s: the %s belongs to another context", what, name);
    return false;
  }
  if ((*x)->dtype == QUERN_DTYPE_U64 && (*x)->rank == 0) return true;
  ir_fail(ctx, QUERN_STATUS_DTYPE, "%s: the %s is %s, must be a u64 scalar HINT: quern_cast to u64", what, name,
          TENSOR_TYPE(*x));
  return false;
}

/* Where the numbers come from; takes the context's next stream when none is given. False with the error
** recorded. */
static bool source_init(struct source *source, const char *what, quern_context *ctx, const quern_random *from) {
  *source = from == NULL ? (struct source){0} : (struct source){from->seed, from->step, from->stream};
  if (!u64_scalar(what, "seed", ctx, &source->seed, ctx->seed) || !u64_scalar(what, "step", ctx, &source->step, 0))
    return false;
  if (source->stream == 0) {
    if (ctx->next_stream == UINT32_MAX) {
      ir_fail(ctx, QUERN_STATUS_OVERFLOW, "%s: the context has no stream left", what);
      return false;
    }
    source->stream = ++ctx->next_stream;
  }
  return true;
}

/* False with the error recorded unless a stream has so many words for each element of a shape. */
static bool stream_has(const char *what, quern_context *ctx, int rank, const int64_t *dims, int each) {
  int64_t count = 0, most = (INT64_C(1) << 34) / each;
  if (ir_type_count(QUERN_DTYPE_U8, rank, dims, &count) == QUERN_STATUS_OK && count <= most) return true;
  ir_fail(ctx, QUERN_STATUS_OVERFLOW, "%s: %s has more elements than the %lld that a stream has numbers for", what,
          TENSOR_DIMS(rank, dims), (long long)most);
  return false;
}

static quern_tensor *words(quern_context *ctx, quern_tensor *seed, quern_tensor *step, int64_t stream, int rank,
                           const int64_t *dims) {
  return IR_MAKE(ctx, IR_RANDOM, TENSOR_ATTRS(.shape = {rank, dims}, .stream = stream), seed, step);
}

/* Words 2i and 2i + 1 of a stream as two tensors of a shape. */
static void word_pairs(quern_context *ctx, quern_tensor *seed, quern_tensor *step, int64_t stream, int rank,
                       const int64_t *dims, quern_tensor *pair[2]) {
  int64_t count = 0;
  pair[0] = pair[1] = &ir_poison;
  if (ir_type_count(QUERN_DTYPE_U64, rank, dims, &count) != QUERN_STATUS_OK) {
    ir_fail_last(ctx);
    return;
  }
  quern_tensor *both = words(ctx, seed, step, stream, 2, (int64_t[]){count, 2});
  for (int i = 0; i < 2; i++) pair[i] = tensor_reshape(quern_select(both, 1, i), rank, dims);
}

/* ---- operations with a constant ------------------------------------------------------------------------ */

static quern_tensor *with_int(quern_tensor *(*op)(quern_tensor *, quern_tensor *), quern_tensor *x, uint32_t value) {
  return ir_is_poison(x) ? x : op(x, ir_const_int(x->node->ctx, x->dtype, value));
}

/* x times scale plus offset, leaving out what changes nothing. */
static quern_tensor *scaled(quern_tensor *x, double scale, double offset) {
  if (scale != 1) x = quern_mul_scalar(x, scale);
  return offset != 0 ? quern_add_scalar(x, offset) : x;
}

/* ---- bits and uniform numbers -------------------------------------------------------------------------- */

quern_tensor *quern_random_bits(quern_context *ctx, int rank, const int64_t *dims, const quern_random *from) {
  struct source source;
  if (!tensor_type_ok("random_bits", ctx, QUERN_DTYPE_U32, rank, dims) ||
      !stream_has("random_bits", ctx, rank, dims, 1) || !source_init(&source, "random_bits", ctx, from)) {
    return &ir_poison;
  }
  return words(ctx, source.seed, source.step, source.stream, rank, dims);
}

/* In [0, 1): 24 bits of one word as f32, or 53 bits of two as f64. */
static quern_tensor *unit(quern_context *ctx, const struct source *source, quern_dtype dtype, int rank,
                          const int64_t *dims) {
  if (dtype != QUERN_DTYPE_F64) {
    quern_tensor *bits = words(ctx, source->seed, source->step, source->stream, rank, dims);
    return quern_mul_scalar(quern_cast(with_int(quern_shr, bits, 8), QUERN_DTYPE_F32), 0x1p-24);
  }
  quern_tensor *pair[2];
  word_pairs(ctx, source->seed, source->step, source->stream, rank, dims, pair);
  quern_tensor *high = quern_cast(with_int(quern_shr, pair[0], 5), QUERN_DTYPE_F64);
  quern_tensor *low = quern_cast(with_int(quern_shr, pair[1], 6), QUERN_DTYPE_F64);
  return quern_mul_scalar(quern_add(quern_mul_scalar(high, 0x1p26), low), 0x1p-53);
}

static bool float_ok(const char *what, quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims) {
  if (!tensor_type_ok(what, ctx, dtype, rank, dims)) return false;
  if (base_dtype_is(dtype, BASE_FLOAT)) return true;
  ir_fail(ctx, QUERN_STATUS_DTYPE, "%s: does not admit %s HINT: quern_random_bits gives integers", what,
          base_dtypes[dtype].name);
  return false;
}

quern_tensor *quern_random_uniform(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, double lo,
                                   double hi, const quern_random *from) {
  if (!float_ok("random_uniform", ctx, dtype, rank, dims)) return &ir_poison;
  double most = dtype == QUERN_DTYPE_F64 ? 0x1.fffffffffffffp1023 : 0x1.fffffep127;
  TENSOR_CHECK(ctx, lo <= hi && fabs(lo) <= most && fabs(hi) <= most && hi - lo <= most, INVALID,
               "random_uniform: from %g to %g is no range of %s", lo, hi, base_dtypes[dtype].name);
  struct source source;
  if (!stream_has("random_uniform", ctx, rank, dims, dtype == QUERN_DTYPE_F64 ? 2 : 1) ||
      !source_init(&source, "random_uniform", ctx, from)) {
    return &ir_poison;
  }
  return quern_cast(scaled(unit(ctx, &source, dtype, rank, dims), hi - lo, lo), dtype);
}

/* A word is at most floor(p 2^32) - 1, so exact for p a multiple of 2^-32, 0 and 1 included. */
static quern_tensor *bernoulli(quern_context *ctx, const struct source *source, int rank, const int64_t *dims,
                               double p) {
  uint64_t below = (uint64_t)ldexp(p, 32);
  if (below == 0) return quern_zeros(ctx, QUERN_DTYPE_BOOL, rank, dims);
  return with_int(quern_le, words(ctx, source->seed, source->step, source->stream, rank, dims), (uint32_t)(below - 1));
}

quern_tensor *quern_random_bernoulli(quern_context *ctx, int rank, const int64_t *dims, double p,
                                     const quern_random *from) {
  if (!tensor_type_ok("random_bernoulli", ctx, QUERN_DTYPE_U32, rank, dims)) return &ir_poison;
  TENSOR_CHECK(ctx, p >= 0 && p <= 1, INVALID, "random_bernoulli: p is %g, must be in [0, 1]", p);
  struct source source;
  if (!stream_has("random_bernoulli", ctx, rank, dims, 1) || !source_init(&source, "random_bernoulli", ctx, from)) {
    return &ir_poison;
  }
  return bernoulli(ctx, &source, rank, dims, p);
}

quern_tensor *quern_dropout(quern_tensor *x, double p, const quern_random *from) {
  TENSOR_ENTER(ctx, "dropout", x);
  if (!tensor_admits("dropout", x, BASE_FLOAT)) return &ir_poison;
  TENSOR_CHECK(ctx, p >= 0 && p < 1, INVALID, "dropout: p is %g, must be in [0, 1)", p);
  struct source source;
  if (!stream_has("dropout", ctx, x->rank, x->dims, 1) || !source_init(&source, "dropout", ctx, from)) {
    return &ir_poison;
  }
  if (p == 0) return x;
  quern_tensor *mask = bernoulli(ctx, &source, x->rank, x->dims, 1 - p);
  quern_tensor *kept = quern_div_scalar(x, 1 - p);
  return quern_where(mask, kept, tensor_scalar_of(x, 0));
}

/* ---- normal numbers: base_random_normal, operation by operation ---------------------------------------- */

/* p times x plus each coefficient in turn: Horner's scheme, after the first product. */
static quern_tensor *horner(quern_tensor *p, quern_tensor *x, int n, const double *coefficients) {
  for (int i = 0; i < n; i++) {
    if (i > 0) p = quern_mul(p, x);
    p = quern_add_scalar(p, coefficients[i]);
  }
  return p;
}

/* sqrt(-2 ln u), u = (top 24 bits + 1) / 2^24. */
static quern_tensor *normal_radius(quern_tensor *bits) {
  static const double log_terms[] = {0x1.07d0f2p-3, -0x1.0ce078p-3, 0x1.226e48p-3, -0x1.54788cp-3,
                                     0x1.99a596p-3, -0x1.00022p-2,  0x1.55554ap-2};
  quern_tensor *u_int = with_int(quern_add, with_int(quern_shr, bits, 8), 1);
  quern_tensor *u = quern_mul_scalar(quern_cast(u_int, QUERN_DTYPE_F32), 0x1p-24);
  quern_tensor *w = with_int(quern_add, quern_bitcast(u, QUERN_DTYPE_U32), 0x004afb0du);
  quern_tensor *k = quern_add_scalar(quern_cast(with_int(quern_shr, w, 23), QUERN_DTYPE_F32), -127);
  quern_tensor *m_bits = with_int(quern_add, with_int(quern_and, w, 0x007fffffu), 0x3f3504f3u);
  quern_tensor *f = quern_add_scalar(quern_bitcast(m_bits, QUERN_DTYPE_F32), -1);
  quern_tensor *f2 = quern_mul(f, f);
  quern_tensor *p = horner(quern_mul_scalar(f, -0x1.41ee1ep-4), f, (int)BASE_COUNT(log_terms), log_terms);
  p = quern_mul(p, quern_mul(f2, f));
  p = quern_add(p, quern_mul_scalar(k, 0x1.0bfbe8p-15));
  p = quern_sub(p, quern_mul_scalar(f2, 0.5));
  p = quern_add(p, f);
  p = quern_add(p, quern_mul_scalar(k, 0x1.62ep-1));
  return quern_sqrt(quern_mul_scalar(p, -2));
}

/* cos(2 pi v), v = top 24 bits / 2^24. */
static quern_tensor *normal_cosine(quern_tensor *bits) {
  static const double sine_terms[] = {0x1.11076p-7, -0x1.555546p-3}, cosine_terms[] = {-0x1.6c0c8cp-10, 0x1.55554ap-5};
  quern_tensor *t = with_int(quern_add, with_int(quern_shr, bits, 8), 0x00200000u);
  quern_tensor *q = with_int(quern_shr, t, 22);
  quern_tensor *x = quern_cast(with_int(quern_and, t, 0x003fffffu), QUERN_DTYPE_F32);
  x = quern_mul_scalar(quern_add_scalar(x, -0x1p21), 0x1.921fb6p-22);
  quern_tensor *z = quern_mul(x, x);
  quern_tensor *s = horner(quern_mul_scalar(z, -0x1.994eb4p-13), z, 2, sine_terms);
  s = quern_add(quern_mul(quern_mul(s, z), x), x);
  quern_tensor *c = horner(quern_mul_scalar(z, 0x1.9a025ap-16), z, 2, cosine_terms);
  c = quern_mul(c, quern_mul(z, z));
  c = quern_add_scalar(quern_sub(c, quern_mul_scalar(z, 0.5)), 1);
  quern_tensor *turned = quern_where(with_int(quern_ne, with_int(quern_and, q, 1), 0), s, c);
  quern_tensor *sign = with_int(quern_shl, with_int(quern_and, with_int(quern_add, q, 1), 2), 30);
  return quern_bitcast(quern_xor(quern_bitcast(turned, QUERN_DTYPE_U32), sign), QUERN_DTYPE_F32);
}

static bool random_normal_admits(const struct ir_attrs *attrs, int n, quern_tensor *const *src) {
  struct ir_ints ints = attrs->ints;
  if (n != 2 || attrs->reals.n != 0 || ints.n < 1 || ints.n > 1 + QUERN_MAX_RANK) return false;
  for (int i = 0; i < 2; i++) {
    if (src[i]->dtype != QUERN_DTYPE_U64 || src[i]->rank != 0) return false;
  }
  for (int i = 0; i < ints.n; i++) {
    if (ints.at[i] < 0) return false;
  }
  return ints.at[0] <= UINT32_MAX;
}

static void random_normal_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                               quern_tensor **results) {
  struct ir_ints ints = attrs->ints;
  quern_tensor *pair[2];
  word_pairs(ctx, args[0], args[1], ints.at[0], ints.n - 1, ints.at + 1, pair);
  quern_tensor *radius = normal_radius(pair[0]);
  results[0] = quern_mul(radius, normal_cosine(pair[1]));
}

const struct ir_composite tensor_kind_random_normal = {
    .name = "random_normal", .n_results = 1, .body = random_normal_body, .admits = random_normal_admits};

quern_tensor *quern_random_normal(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims, double mean,
                                  double std, const quern_random *from) {
  if (!float_ok("random_normal", ctx, dtype, rank, dims)) return &ir_poison;
  TENSOR_CHECK(ctx, isfinite(mean) && isfinite(std) && std >= 0, INVALID,
               "random_normal: mean %g and std %g must be finite, std at least 0", mean, std);
  struct source source;
  if (!stream_has("random_normal", ctx, rank, dims, 2) || !source_init(&source, "random_normal", ctx, from)) {
    return &ir_poison;
  }
  int64_t ints[1 + QUERN_MAX_RANK] = {source.stream};
  for (int k = 0; k < rank; k++) ints[1 + k] = dims[k];
  quern_tensor *z = ir_composite_make(ctx, &tensor_kind_random_normal, (struct ir_ints){1 + rank, ints},
                                      (struct ir_reals){0}, 2, (quern_tensor *[]){source.seed, source.step});
  return quern_cast(scaled(quern_cast(z, tensor_wide(dtype)), std, mean), dtype);
}
