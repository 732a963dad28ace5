/* nn/attention.c -- multi-head, grouped-query and multi-query attention, with a cache of keys and values
** With a cache position is the mask: places that are not written yet are neither read nor worked on, so the work of a step grows with
** the length in use. With a mask of the caller's, or open, all places below cache_used are attended to and masked.
** Vaswani et al., "Attention is all you need", 2017; Shazeer, "Fast transformer decoding: one write-head is all you need", 2019;
** Ainslie et al., "GQA", 2023; Su et al., "RoFormer", 2021.
** tests: tests/nn/test_layers.c, tests/nn/test_train.c
*/
#include "nn/nn.h"

#include <math.h>

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool optional_ok(const struct nn_call *call, const char *name, const quern_tensor *x) {
  if (x == NULL) return true;
  if (ir_is_poison(x)) return false;
  if (x->node->ctx == call->ctx) return true;
  return nn_wrong(call, QUERN_STATUS_INVALID, "%s is of another context than the model", name);
}

static bool attention_ok(const struct nn_call *call, int64_t heads, const quern_nn_attention_options *o) {
  if (!nn_size(call, "heads", heads) || !nn_rate(call, "dropout", o->dropout) ||
      !optional_ok(call, "memory", o->memory) || !optional_ok(call, "mask", o->mask) ||
      !optional_ok(call, "position", o->position))
    return false;
  if (o->kv_heads < 0 || heads % (o->kv_heads > 0 ? o->kv_heads : heads) != 0)
    return nn_wrong(call, QUERN_STATUS_INVALID, "%lld heads are no multiple of %lld kv_heads", (long long)heads,
                    (long long)o->kv_heads);
  if (o->cache < 0 || !isfinite(o->rope) || o->rope < 0 || !isfinite(o->scale))
    return nn_wrong(call, QUERN_STATUS_INVALID, "cache is %lld, rope %g, scale %g; cache and rope must be at least 0",
                    (long long)o->cache, o->rope, o->scale);
  if (o->cache_used < 0 || o->cache_used > o->cache)
    return nn_wrong(call, QUERN_STATUS_INVALID, "cache_used is %lld of a cache of %lld", (long long)o->cache_used,
                    (long long)o->cache);
  if (o->position == NULL || (o->position->rank == 0 && base_dtype_is(o->position->dtype, BASE_INT))) return true;
  return nn_wrong(call, QUERN_STATUS_DTYPE, "position is %s, must be an integer scalar", TENSOR_TYPE(o->position));
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

/* (B, S, n D) -> (B, n, S, D) */
static quern_tensor *split(quern_tensor *x, int64_t n) {
  int64_t dims[] = {x->dims[0], x->dims[1], n, x->dims[2] / n};
  return quern_transpose(quern_reshape(x, 4, dims), 1, 2);
}

/* (B, G, T, D) -> (B, heads, T, D), each repeated. */
static quern_tensor *repeat(quern_tensor *x, int64_t heads) {
  int64_t B = x->dims[0], G = x->dims[1], T = x->dims[2], D = x->dims[3];
  if (G == heads) return x;
  int64_t stretched[] = {B, G, heads / G, T, D}, merged[] = {B, heads, T, D};
  return quern_reshape(quern_broadcast_to(quern_unsqueeze(x, 2), 5, stretched), 4, merged);
}

/* Where key j <= query i + offset: bool (S, T). offset: an i64 scalar. */
static quern_tensor *seen(quern_context *ctx, int64_t S, int64_t T, quern_tensor *offset) {
  quern_tensor *query = quern_iota(ctx, QUERN_DTYPE_I64, 2, (int64_t[]){S, 1}, 0);
  quern_tensor *key = quern_iota(ctx, QUERN_DTYPE_I64, 2, (int64_t[]){1, T}, 1);
  quern_tensor *last = quern_add(query, offset);
  return quern_le(key, last);
}

/* Both masks: bools are combined by and, a float is kept where the other is true. */
static quern_tensor *join(quern_tensor *mask, quern_tensor *given) {
  if (given == NULL || mask == NULL) return mask != NULL ? mask : given;
  if (given->dtype == QUERN_DTYPE_BOOL) return quern_and(mask, given);
  quern_tensor *never = quern_scalar(given->node->ctx, given->dtype, (double)-INFINITY);
  return quern_where(mask, given, never);
}

/* Attention whose weights are dropped: with their matrix in memory. A row that sees nothing gives zeros. */
static quern_tensor *dropped(quern_scope *scope, quern_tensor *q, quern_tensor *k, quern_tensor *v, quern_tensor *mask,
                             double scale, double p) {
  quern_context *ctx = scope->model->ctx;
  k = repeat(k, q->dims[1]);
  v = repeat(v, q->dims[1]);
  quern_tensor *scores = quern_mul_scalar(quern_matmul(q, quern_transpose(k, 2, 3)), scale);
  bool logical = mask != NULL && mask->dtype == QUERN_DTYPE_BOOL;
  if (mask != NULL && !logical) scores = quern_add(scores, mask);
  if (logical) {
    quern_tensor *low = quern_scalar(ctx, scores->dtype, -30000);
    scores = quern_where(mask, scores, low);
  }
  quern_tensor *weights = quern_softmax(scores, -1);
  if (logical) {
    quern_tensor *zero = quern_scalar(ctx, weights->dtype, 0);
    weights = quern_where(mask, weights, zero);
  }
  return quern_matmul(quern_nn_dropout(scope, weights, p), v);
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */

/* The cache of that name with x (B, G, S, D) written at position. */
static quern_tensor *remember(quern_scope *scope, const char *name, quern_tensor *x, int64_t most,
                              quern_tensor *position) {
  int64_t dims[] = {x->dims[0], x->dims[1], most, x->dims[3]};
  quern_tensor *cache = nn_cache(scope, name, x->dtype, 4, dims);
  quern_tensor *zero = quern_scalar_int(scope->model->ctx, QUERN_DTYPE_I64, 0), *old = quern_scope_value(scope, cache);
  quern_tensor *next = quern_update_at(old, x, 4, (quern_tensor *[]){zero, zero, position, zero});
  quern_scope_change(scope, cache, next);
  return next;
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* q (B, H, S, D), k and v (B, G, T, D) -> (B, H, S, D). */
static quern_tensor *attend(const struct nn_call *call, quern_tensor *q, quern_tensor *k, quern_tensor *v,
                            const quern_nn_attention_options *o) {
  quern_scope *scope = call->scope;
  int64_t S = q->dims[2], D = q->dims[3];
  quern_tensor *position = NULL, *mask = o->mask;
  if (o->position != NULL) position = quern_cast(o->position, QUERN_DTYPE_I64);
  if (o->rope > 0) {
    q = quern_rope(q, position, o->rope, o->rope_interleaved);
    k = quern_rope(k, position, o->rope, o->rope_interleaved);
    if (ir_is_poison(q) || ir_is_poison(k)) return &ir_poison;
  }
  bool causal = o->causal;
  if (o->cache > 0) {
    int64_t used = o->cache_used > 0 ? o->cache_used : o->cache;
    NN_CHECK(*call, k->dims[2] == S && S <= used, SHAPE,
             "%lld queries and %lld keys with a cache of %lld; a cache is of x itself", (long long)S,
             (long long)k->dims[2], (long long)used);
    if (position == NULL) position = quern_scalar_int(call->ctx, QUERN_DTYPE_I64, 0);
    k = remember(scope, "cache_k", k, o->cache, position);
    v = remember(scope, "cache_v", v, o->cache, position);
    k = quern_slice(k, 2, 0, used, 1);
    v = quern_slice(v, 2, 0, used, 1);
    if (ir_is_poison(k) || ir_is_poison(v)) return &ir_poison;
    bool plain = mask == NULL && !o->open && !(scope->model->train && o->dropout > 0);
    quern_tensor *offset = position;
    if (o->open) offset = quern_add_scalar(position, (double)(S - 1));
    mask = plain ? offset : join(seen(call->ctx, o->open ? 1 : S, used, offset), mask);
    causal = false;
  }
  double scale = o->scale != 0 ? o->scale : 1 / sqrt((double)BASE_MAX(D, 1));
  if (scope->model->train && o->dropout > 0) {
    if (causal) {
      quern_tensor *offset = quern_scalar_int(call->ctx, QUERN_DTYPE_I64, k->dims[2] - S);
      mask = join(seen(call->ctx, S, k->dims[2], offset), mask);
    }
    return dropped(scope, q, k, v, mask, scale, o->dropout);
  }
  quern_attention_options plain = {.size = sizeof plain, .scale = scale, .causal = causal};
  return quern_attention(q, k, v, mask, &plain, NULL);
}

quern_tensor *quern_nn_attend(quern_scope *scope, quern_tensor *q, quern_tensor *k, quern_tensor *v, int64_t heads,
                              const quern_nn_attention_options *options) {
  NN_ENTER(call, "nn_attend", scope, q, k, v);
  NN_OPTIONS(call, quern_nn_attention_options, o, options);
  if (!attention_ok(&call, heads, o)) return &ir_poison;
  if (!nn_operand(&call, "q", q, 0, "") || !nn_operand(&call, "k", k, 0, "") || !nn_operand(&call, "v", v, 0, ""))
    return &ir_poison;
  int64_t G = o->kv_heads > 0 ? o->kv_heads : heads;
  NN_CHECK(call, q->rank == 3 && k->rank == 3 && v->rank == 3, SHAPE,
           "q is %s, k is %s, v is %s; they must be (B, S, heads D), (B, T, kv_heads D), (B, T, kv_heads D)",
           TENSOR_TYPE(q), TENSOR_TYPE(k), TENSOR_TYPE(v));
  NN_CHECK(call, q->dims[2] % heads == 0 && k->dims[2] % G == 0 && v->dims[2] % G == 0, SHAPE,
           "q is %s, k is %s, v is %s; their widths must be multiples of %lld heads and %lld kv_heads", TENSOR_TYPE(q),
           TENSOR_TYPE(k), TENSOR_TYPE(v), (long long)heads, (long long)G);
  int64_t dims[] = {q->dims[0], q->dims[1], v->dims[2] / G * heads};
  quern_tensor *of_q = split(q, heads), *of_k = split(k, G), *of_v = split(v, G);
  if (ir_is_poison(of_q) || ir_is_poison(of_k) || ir_is_poison(of_v)) return nn_leave(&call, &ir_poison);
  quern_tensor *y = attend(&call, of_q, of_k, of_v, o);
  return nn_leave(&call, quern_reshape(quern_transpose(y, 1, 2), 3, dims));
}

/* x times rows first .. first + rows of the biases. */
static quern_tensor *project(quern_tensor *x, quern_tensor *weight, quern_tensor *bias, int64_t first, int64_t rows) {
  if (bias != NULL) bias = quern_slice(bias, 0, first, first + rows, 1);
  return quern_linear(x, weight, bias);
}

quern_tensor *quern_nn_attention(quern_scope *scope, quern_tensor *x, int64_t heads,
                                 const quern_nn_attention_options *options) {
  NN_ENTER(call, "nn_attention", scope, x);
  NN_OPTIONS(call, quern_nn_attention_options, o, options);
  if (!attention_ok(&call, heads, o) || !nn_operand(&call, "x", x, 3, "(B, S, E)") ||
      (o->memory != NULL && !nn_operand(&call, "memory", o->memory, 3, "(B, T, M)")))
    return &ir_poison;
  quern_tensor *memory = o->memory != NULL ? o->memory : x;
  NN_CHECK(call, x->rank == 3 && memory->rank == 3 && x->dims[2] % heads == 0, SHAPE,
           "x is %s, memory is %s; they must be (B, S, E) and (B, T, M), E a multiple of %lld heads", TENSOR_TYPE(x),
           TENSOR_TYPE(memory), (long long)heads);
  int64_t E = x->dims[2], M = memory->dims[2], G = o->kv_heads > 0 ? o->kv_heads : heads, K = G * (E / heads);
  NN_CHECK(call, E >= 1 && E <= INT64_MAX / 3, SHAPE, "x is %s", TENSOR_TYPE(x));
  quern_init xavier = {QUERN_INIT_XAVIER_UNIFORM, 0, 0}, zero = {QUERN_INIT_CONSTANT, 0, 0};
  quern_tensor *q, *k, *v, *bias = NULL;
  if (K == E && M == E) {
    quern_tensor *weight = quern_scope_parameter(scope, "in_proj_weight", 2, (int64_t[]){3 * E, E}, xavier);
    if (!o->no_bias) bias = quern_scope_parameter(scope, "in_proj_bias", 1, (int64_t[]){3 * E}, zero);
    if (memory == x) {
      quern_tensor *all = quern_linear(x, weight, bias);
      q = quern_slice(all, 2, 0, E, 1);
      k = quern_slice(all, 2, E, 2 * E, 1);
      v = quern_slice(all, 2, 2 * E, 3 * E, 1);
    } else {
      q = project(x, quern_slice(weight, 0, 0, E, 1), bias, 0, E);
      k = project(memory, quern_slice(weight, 0, E, 2 * E, 1), bias, E, E);
      v = project(memory, quern_slice(weight, 0, 2 * E, 3 * E, 1), bias, 2 * E, E);
    }
  } else {
    quern_tensor *of_q = quern_scope_parameter(scope, "q_proj_weight", 2, (int64_t[]){E, E}, xavier);
    quern_tensor *of_k = quern_scope_parameter(scope, "k_proj_weight", 2, (int64_t[]){K, M}, xavier);
    quern_tensor *of_v = quern_scope_parameter(scope, "v_proj_weight", 2, (int64_t[]){K, M}, xavier);
    if (!o->no_bias) bias = quern_scope_parameter(scope, "in_proj_bias", 1, (int64_t[]){E + 2 * K}, zero);
    q = project(x, of_q, bias, 0, E);
    k = project(memory, of_k, bias, E, K);
    v = project(memory, of_v, bias, E + K, K);
  }
  if (ir_is_poison(q) || ir_is_poison(k) || ir_is_poison(v)) return nn_leave(&call, &ir_poison);
  quern_tensor *y = quern_nn_attend(scope, q, k, v, heads, o);
  quern_nn_linear_options out = {.size = sizeof out, .no_bias = o->no_bias, .bias_init = &zero};
  return nn_leave(&call, quern_nn_linear(quern_scope_in(scope, "out_proj"), y, E, &out));
}
