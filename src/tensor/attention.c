/* tensor/attention.c -- scaled dot-product attention as one composite with its own gradient
** out = softmax(scale q k' + mask) v and lse, the log-sum-exp of each row of scores; both come from f32
** interiors when the operands are narrower, lse stays f32 then. Heads share keys and values in groups: q
** is seen as (B, G, H / G, S, D), and k and v are never repeated. The gradient recomputes P = e^(scores -
** lse) as in Dao et al., "FlashAttention"; its relative error is the rounding of lse, small unless scores
** are in the thousands. A row that sees nothing gives zeros and -inf, and no gradient.
** tests: tests/tensor/test_attention.c
*/
#include "tensor/compound.h"
#include "tensor/kinds.h"

#include <float.h>
#include <math.h>

/* Labels of axes in contractions: batch, group, head of the group, query, key, query-key width, value
** width. */
enum { B, G, R, S, T, D, E };

/* ints {causal, has mask}, reals {scale} */
struct attention {
  int64_t batch, heads, groups, queries, keys, width, value_width;
  bool causal, mask;
  double scale;
};

static struct attention attention_of(const struct ir_attrs *attrs, quern_tensor *const *src) {
  const int64_t *q = src[0]->dims, *v = src[2]->dims;
  return (struct attention){.batch = q[0],
                            .heads = q[1],
                            .groups = v[1],
                            .queries = q[2],
                            .keys = v[2],
                            .width = q[3],
                            .value_width = v[3],
                            .causal = attrs->ints.at[0] != 0,
                            .mask = attrs->ints.at[1] != 0,
                            .scale = attrs->reals.at[0]};
}

/* t (B, H, n, m) as (B, G, H / G, n, m). */
static quern_tensor *grouped(const struct attention *a, quern_tensor *t, int64_t n, int64_t m) {
  return tensor_reshape(t, 5, (int64_t[]){a->batch, a->groups, a->heads / a->groups, n, m});
}
static quern_tensor *ungrouped(const struct attention *a, quern_tensor *t, int64_t n, int64_t m) {
  return tensor_reshape(t, 4, (int64_t[]){a->batch, a->heads, n, m});
}

static quern_tensor *dot(quern_tensor *x, const int *x_labels, quern_tensor *y, const int *y_labels, int n_out,
                         const int *out) {
  return tensor_contract("attention", x, x_labels, y, y_labels, n_out, out, IR_SUM, IR_COMBINE_MUL);
}

static const int of_q[] = {B, G, R, S, D}, of_k[] = {B, G, T, D}, of_v[] = {B, G, T, E}, of_p[] = {B, G, R, S, T},
                 of_out[] = {B, G, R, S, E};

static bool is_added(const quern_tensor *mask) { return mask != NULL && base_dtype_is(mask->dtype, BASE_FLOAT); }

/* What may be seen, broadcastable to (B, H, S, T), or NULL for everything. */
static quern_tensor *seen(quern_context *ctx, const struct attention *a, quern_tensor *mask) {
  quern_tensor *past = NULL;
  int64_t dims[] = {a->queries, a->keys};
  if (a->causal) {
    quern_tensor *query = quern_iota(ctx, QUERN_DTYPE_I64, 2, dims, 0),
                 *key = quern_iota(ctx, QUERN_DTYPE_I64, 2, dims, 1);
    past = quern_le(key, quern_add(query, ir_const_int(ctx, QUERN_DTYPE_I64, a->keys - a->queries)));
  }
  if (mask == NULL || is_added(mask)) return past;
  if (mask->dtype == QUERN_DTYPE_I64) {
    quern_tensor *query = quern_iota(ctx, QUERN_DTYPE_I64, 2, dims, 0),
                 *key = quern_iota(ctx, QUERN_DTYPE_I64, 2, dims, 1);
    mask = quern_le(quern_sub(key, query), mask);
  }
  return past == NULL ? mask : quern_and(mask, past);
}

/* (B, H, S, T) in the wide dtype; -inf where nothing is seen. */
static quern_tensor *scores(quern_context *ctx, const struct attention *a, quern_tensor *const *src) {
  quern_tensor *mask = a->mask ? src[3] : NULL;
  quern_tensor *q = grouped(a, tensor_widen(src[0]), a->queries, a->width);
  quern_tensor *s = ungrouped(a, dot(q, of_q, tensor_widen(src[1]), of_k, 5, of_p), a->queries, a->keys);
  s = quern_mul_scalar(s, a->scale);
  if (is_added(mask)) s = quern_add(s, tensor_widen(mask));
  quern_tensor *visible = seen(ctx, a, mask);
  return visible == NULL ? s : quern_where(visible, s, tensor_scalar_of(s, -(double)INFINITY));
}

/* x with 0 where it is -inf, as of rows that see nothing. */
static quern_tensor *without_nothing(quern_tensor *x) {
  quern_tensor *zero = tensor_scalar_of(x, 0);
  return quern_where(quern_eq(x, tensor_scalar_of(x, -(double)INFINITY)), zero, x);
}

/* The values, with zeros where no query attends to them by the offset: what lies there may be anything. */
static quern_tensor *values(quern_context *ctx, const struct attention *a, quern_tensor *const *src) {
  quern_tensor *v = tensor_widen(src[2]);
  if (!a->mask || src[3]->dtype != QUERN_DTYPE_I64) return v;
  int64_t dims[] = {a->keys, 1};
  quern_tensor *key = quern_iota(ctx, QUERN_DTYPE_I64, 2, dims, 0);
  quern_tensor *last = ir_const_int(ctx, QUERN_DTYPE_I64, a->queries - 1);
  quern_tensor *some = quern_le(quern_sub(key, last), src[3]);
  return quern_where(some, v, tensor_scalar_of(v, 0));
}

static void attention_body(quern_context *ctx, const struct ir_attrs *attrs, quern_tensor *const *args,
                           quern_tensor **results) {
  struct attention a = attention_of(attrs, args);
  const int64_t last = 3;
  quern_tensor *s = scores(ctx, &a, args);
  quern_tensor *top = quern_stop_gradient(without_nothing(quern_max(s, 1, &last, true)));
  quern_tensor *e = quern_exp(quern_sub(s, top)), *sum = quern_sum(e, 1, &last, true);
  quern_tensor *nothing = quern_eq(sum, tensor_scalar_of(sum, 0));
  quern_tensor *divisor = quern_where(nothing, tensor_scalar_of(sum, 1), sum);
  quern_tensor *out = grouped(&a, e, a.queries, a.keys);
  out = dot(out, of_p, values(ctx, &a, args), of_v, 5, of_out);
  out = quern_div(ungrouped(&a, out, a.queries, a.value_width), divisor);
  quern_tensor *lse = quern_add(top, quern_log(divisor));
  lse = quern_where(nothing, tensor_scalar_of(sum, -(double)INFINITY), lse);
  results[0] = tensor_to(out, args[0]->dtype);
  results[1] = tensor_reshape(lse, 3, (int64_t[]){a.batch, a.heads, a.queries});
}

/* With dP = dout v' and D = rowsum(dout out): dS = P (dP - D + dlse); then dq = scale dS k, dk = scale dS' q,
** dv = P' dout. */
static void attention_vjp(const struct ir_composite *self, const struct ir_node *node, quern_tensor *const *dy,
                          quern_tensor **dx) {
  (void)self;
  struct attention a = attention_of(node->attrs, node->src);
  quern_context *ctx = node->ctx;
  const int64_t last = 3, row[] = {a.batch, a.heads, a.queries, 1};
  quern_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2];
  quern_tensor *lse = tensor_reshape(&node->out[1], 4, row);
  quern_tensor *p = scores(ctx, &a, node->src);
  p = quern_exp(quern_sub(p, without_nothing(lse)));
  quern_tensor *dout = tensor_widen(dy[0]), *dout_grouped = grouped(&a, dout, a.queries, a.value_width);

  quern_tensor *shift = quern_sum(quern_mul(dout, tensor_widen(&node->out[0])), 1, &last, true);
  if (!ir_is_const(dy[1], 0)) {
    quern_tensor *nothing = quern_eq(lse, tensor_scalar_of(lse, -(double)INFINITY));
    quern_tensor *zero = tensor_scalar_of(lse, 0);
    shift = quern_sub(shift, quern_where(nothing, zero, tensor_reshape(dy[1], 4, row)));
  }
  quern_tensor *dp = ungrouped(&a, dot(dout_grouped, of_out, tensor_widen(v), of_v, 5, of_p), a.queries, a.keys);
  quern_tensor *ds = quern_mul(p, quern_sub(dp, shift));
  if (a.mask && is_added(node->src[3])) dx[3] = tensor_to(tensor_unbroadcast(ds, node->src[3]), node->src[3]->dtype);

  quern_tensor *scaled = grouped(&a, quern_mul_scalar(ds, a.scale), a.queries, a.keys);
  quern_tensor *dq = dot(scaled, of_p, tensor_widen(k), of_k, 5, of_q);
  quern_tensor *dk = dot(scaled, of_p, grouped(&a, tensor_widen(q), a.queries, a.width), of_q, 4, of_k);
  quern_tensor *dv = dot(grouped(&a, p, a.queries, a.keys), of_p, dout_grouped, of_out, 4, of_v);
  dx[0] = tensor_to(ungrouped(&a, dq, a.queries, a.width), q->dtype);
  dx[1] = tensor_to(dk, k->dtype);
  dx[2] = tensor_to(dv, v->dtype);
}

const struct ir_composite tensor_kind_attention = {.name = "attention",
                                                   .n_results = 2,
                                                   .body = attention_body,
                                                   .vjp = attention_vjp,
                                                   .admits = tensor_admits_attention};

/* ---- builder --------------------------------------------------------------------------------- */

/* The mask with four axes, each 1 or that of the scores; the poison with the error recorded. */
static quern_tensor *check_mask(quern_context *ctx, quern_tensor *mask, const quern_tensor *q, const quern_tensor *k) {
  bool offset = mask->dtype == QUERN_DTYPE_I64;
  TENSOR_CHECK(ctx, mask->dtype == QUERN_DTYPE_BOOL || mask->dtype == q->dtype || offset, DTYPE,
               "attention: mask is %s, must be bool or of q's dtype %s, or i64 HINT: quern_cast converts",
               TENSOR_TYPE(mask), base_dtypes[q->dtype].name);
  const int64_t full[] = {q->dims[0], offset ? 1 : q->dims[1], offset ? 1 : q->dims[2], offset ? 1 : k->dims[2]};
  int64_t dims[] = {1, 1, 1, 1};
  bool fits = mask->rank <= 4;
  for (int i = 0; fits && i < mask->rank; i++) {
    int at = 4 - mask->rank + i;
    dims[at] = mask->dims[i];
    fits = dims[at] == 1 || dims[at] == full[at];
  }
  TENSOR_CHECK(ctx, fits, SHAPE, "attention: mask is %s, does not broadcast to (B, %s) = %s", TENSOR_TYPE(mask),
               offset ? "1, 1, 1" : "H, S, T", TENSOR_DIMS(4, full));
  return tensor_reshape(mask, 4, dims);
}

quern_tensor *quern_attention(quern_tensor *q, quern_tensor *k, quern_tensor *v, quern_tensor *mask,
                              const quern_attention_options *options, quern_tensor **lse) {
  if (lse != NULL) *lse = &ir_poison;
  quern_tensor *src[] = {q, k, v, mask};
  quern_context *ctx = tensor_enter_some("attention", 3, 4, src);
  if (ctx == NULL) return &ir_poison;
  TENSOR_OPTIONS(ctx, "attention", quern_attention_options, options);
  if (!tensor_need_float("attention", "q", q) || !tensor_need_real(ctx, "attention", "scale", options->scale, -DBL_MAX))
    return &ir_poison;
  TENSOR_CHECK(ctx, q->dtype == k->dtype && q->dtype == v->dtype, DTYPE,
               "attention: dtypes differ: q is %s, k is %s, v is %s HINT: quern_cast makes them equal", TENSOR_TYPE(q),
               TENSOR_TYPE(k), TENSOR_TYPE(v));
  TENSOR_CHECK(ctx, q->rank == 4 && k->rank == 4 && v->rank == 4, SHAPE,
               "attention: q is %s, k is %s, v is %s; they must be (B, H, S, D), (B, G, T, D), (B, G, T, E)",
               TENSOR_TYPE(q), TENSOR_TYPE(k), TENSOR_TYPE(v));
  TENSOR_CHECK(ctx, q->dims[0] == k->dims[0] && q->dims[0] == v->dims[0], SHAPE,
               "attention: batches differ: q is %s, k is %s, v is %s", TENSOR_TYPE(q), TENSOR_TYPE(k), TENSOR_TYPE(v));
  TENSOR_CHECK(ctx, q->dims[3] == k->dims[3], SHAPE,
               "attention: q %s and k %s differ in width: the last axes must be equal", TENSOR_TYPE(q), TENSOR_TYPE(k));
  TENSOR_CHECK(ctx, k->dims[1] == v->dims[1] && k->dims[2] == v->dims[2], SHAPE,
               "attention: k %s and v %s must agree in heads and keys", TENSOR_TYPE(k), TENSOR_TYPE(v));
  TENSOR_CHECK(ctx, k->dims[1] >= 1 && q->dims[1] % k->dims[1] == 0, SHAPE,
               "attention: %lld heads of q %s are no multiple of the %lld heads of k %s", (long long)q->dims[1],
               TENSOR_TYPE(q), (long long)k->dims[1], TENSOR_TYPE(k));
  if (mask != NULL) {
    src[3] = check_mask(ctx, mask, q, k);
    if (ir_is_poison(src[3])) return &ir_poison;
  }
  double scale = options->scale != 0 ? options->scale : 1 / sqrt((double)BASE_MAX(q->dims[3], 1));
  quern_tensor *out = ir_composite_make(ctx, &tensor_kind_attention, IR_INTS(options->causal, mask != NULL),
                                        (struct ir_reals){1, &scale}, mask != NULL ? 4 : 3, src);
  if (lse != NULL) *lse = ir_result(out, 1);
  return out;
}
