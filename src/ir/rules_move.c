/* ir/rules_move.c -- rewrite rules of movement ops
** keeps: elements are copied, so every rule here is exact
** see:   rules.def                             tests: tests/ir/test_rules.c, tests/prop/
*/
#include <string.h>

#include "ir/rules.h"

/* The first source when it is of that op, else NULL. */
static struct ir_node *inner(const struct ir_node *node, enum ir_op op) {
  return node->src[0]->node->op == op ? node->src[0]->node : NULL;
}

static bool same_dims(const struct ir_node *node, const quern_tensor *x) { return ir_same_shape(&node->out[0], x); }

/* ---- reshape, permute, broadcast --------------------------------------------------------------------- */

quern_tensor *ir_rule_reshape_same(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  return same_dims(node, node->src[0]) ? node->src[0] : NULL;
}

quern_tensor *ir_rule_reshape_reshape(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const struct ir_node *in = inner(node, IR_RESHAPE);
  return in == NULL ? NULL : ir_reshape_to(in->src[0], node->out[0].rank, node->out[0].dims);
}

quern_tensor *ir_rule_reshape_const(quern_context *ctx, struct ir_node *node) {
  const struct ir_node *in = inner(node, IR_CONST);
  if (in == NULL) return NULL;
  struct ir_attrs attrs = {.dtype = in->attrs->dtype, .shape = node->attrs->shape, .data = in->attrs->data};
  return ir_make(ctx, IR_CONST, 0, NULL, &attrs);
}

quern_tensor *ir_rule_permute_same(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  struct ir_ints axes = node->attrs->axes;
  for (int k = 0; k < axes.n; k++) {
    if (axes.at[k] != k) return NULL;
  }
  return node->src[0];
}

quern_tensor *ir_rule_permute_permute(quern_context *ctx, struct ir_node *node) {
  const struct ir_node *in = inner(node, IR_PERMUTE);
  if (in == NULL) return NULL;
  struct ir_ints axes = node->attrs->axes;
  int64_t both[QUERN_MAX_RANK];
  for (int k = 0; k < axes.n; k++) both[k] = in->attrs->axes.at[axes.at[k]];
  return IR_MAKE(ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {axes.n, both}}), in->src[0]);
}

quern_tensor *ir_rule_permute_units(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  quern_tensor *x = node->src[0];
  struct ir_ints axes = node->attrs->axes;
  int64_t last = -1;
  for (int k = 0; k < axes.n; k++) {
    if (x->dims[axes.at[k]] == 1) continue;
    if (axes.at[k] < last) return NULL;
    last = axes.at[k];
  }
  return ir_reshape_to(x, node->out[0].rank, node->out[0].dims);
}

quern_tensor *ir_rule_broadcast_same(quern_context *ctx, struct ir_node *node) {
  return ir_rule_reshape_same(ctx, node);
}

quern_tensor *ir_rule_broadcast_broadcast(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const struct ir_node *in = inner(node, IR_BROADCAST);
  return in == NULL ? NULL : ir_broadcast_to(in->src[0], node->out[0].rank, node->out[0].dims);
}

/* ---- pad --------------------------------------------------------------------------------------------- */

quern_tensor *ir_rule_pad_none(quern_context *ctx, struct ir_node *node) { return ir_rule_reshape_same(ctx, node); }

quern_tensor *ir_rule_pad_pad(quern_context *ctx, struct ir_node *node) {
  const struct ir_node *in = inner(node, IR_PAD);
  if (in == NULL || in->src[1] != node->src[1]) return NULL;
  const struct ir_attrs *outer = node->attrs, *first = in->attrs;
  int64_t lo[QUERN_MAX_RANK], hi[QUERN_MAX_RANK];
  for (int k = 0; k < outer->lo.n; k++) {
    if (outer->mid.at[k] != 0) return NULL;
    lo[k] = first->lo.at[k] + outer->lo.at[k];
    hi[k] = first->hi.at[k] + outer->hi.at[k];
  }
  struct ir_attrs attrs = {.lo = {outer->lo.n, lo}, .hi = {outer->lo.n, hi}, .mid = first->mid};
  return IR_MAKE(ctx, IR_PAD, &attrs, in->src[0], in->src[1]);
}

/* ---- slice ------------------------------------------------------------------------------------------- */

/* A slice being worked out: first position, step and how many, an axis each. */
struct cut {
  int64_t lo[QUERN_MAX_RANK], step[QUERN_MAX_RANK], n[QUERN_MAX_RANK];
};

static struct cut cut_of(const struct ir_node *node) {
  struct cut cut;
  for (int k = 0; k < node->attrs->lo.n; k++) {
    cut.lo[k] = node->attrs->lo.at[k];
    cut.step[k] = node->attrs->step.at[k];
    cut.n[k] = node->out[0].dims[k];
  }
  return cut;
}

static quern_tensor *make_slice(quern_tensor *x, const struct cut *cut) {
  int64_t lo[QUERN_MAX_RANK], hi[QUERN_MAX_RANK], step[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) {
    lo[k] = cut->n[k] > 0 ? cut->lo[k] : 0;
    step[k] = cut->n[k] > 1 ? cut->step[k] : 1;
    hi[k] = cut->n[k] > 0 ? lo[k] + (cut->n[k] - 1) * step[k] + 1 : 0;
  }
  struct ir_attrs attrs = {.lo = {x->rank, lo}, .hi = {x->rank, hi}, .step = {x->rank, step}};
  return IR_MAKE(x->node->ctx, IR_SLICE, &attrs, x);
}

quern_tensor *ir_rule_slice_all(quern_context *ctx, struct ir_node *node) { return ir_rule_reshape_same(ctx, node); }

quern_tensor *ir_rule_slice_slice(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const struct ir_node *in = inner(node, IR_SLICE);
  if (in == NULL) return NULL;
  struct cut cut = cut_of(node), first = cut_of(in);
  for (int k = 0; k < node->out[0].rank; k++) {
    if (cut.n[k] > 0) cut.lo[k] = first.lo[k] + cut.lo[k] * first.step[k];
    if (cut.n[k] > 1) cut.step[k] *= first.step[k];
  }
  return make_slice(in->src[0], &cut);
}

quern_tensor *ir_rule_slice_pad(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const struct ir_node *in = inner(node, IR_PAD);
  if (in == NULL) return NULL;
  quern_tensor *x = in->src[0];
  struct cut cut = cut_of(node);
  for (int k = 0; k < x->rank; k++) {
    if (cut.n[k] == 0) continue;
    int64_t every = in->attrs->mid.at[k] + 1, first = cut.lo[k] - in->attrs->lo.at[k];
    int64_t last = first + (cut.n[k] - 1) * (cut.n[k] > 1 ? cut.step[k] : 0);
    if (first < 0 || first % every != 0 || last % every != 0 || last / every >= x->dims[k]) return NULL;
    if (cut.n[k] > 1 && cut.step[k] % every != 0) return NULL;
    cut.lo[k] = first / every;
    cut.step[k] /= every;
  }
  return make_slice(x, &cut);
}

quern_tensor *ir_rule_slice_broadcast(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const struct ir_node *in = inner(node, IR_BROADCAST);
  if (in == NULL) return NULL;
  quern_tensor *x = in->src[0];
  struct cut cut = cut_of(node);
  for (int k = 0; k < x->rank; k++) {
    if (x->dims[k] == 1 && in->out[0].dims[k] != 1) cut.lo[k] = 0, cut.n[k] = 1;
  }
  return ir_broadcast_to(make_slice(x, &cut), x->rank, node->out[0].dims);
}

quern_tensor *ir_rule_slice_concat(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const struct ir_node *in = inner(node, IR_CONCAT);
  if (in == NULL) return NULL;
  struct cut cut = cut_of(node);
  int64_t axis = in->attrs->axis, start = 0;
  for (int i = 0; i < in->n_src; i++) {
    int64_t size = in->src[i]->dims[axis], lo = cut.lo[axis] - start;
    int64_t last = lo + (cut.n[axis] > 1 ? (cut.n[axis] - 1) * cut.step[axis] : 0);
    if (cut.n[axis] == 0 || (lo >= 0 && last < size)) {
      cut.lo[axis] = lo;
      return make_slice(in->src[i], &cut);
    }
    start += size;
  }
  return NULL;
}

static quern_tensor *make_flip(quern_tensor *x, unsigned axes) {
  int64_t list[QUERN_MAX_RANK];
  int n = 0;
  for (int k = 0; k < x->rank; k++) {
    if ((axes >> k & 1) != 0) list[n++] = k;
  }
  return n == 0 ? x : IR_MAKE(x->node->ctx, IR_FLIP, (&(struct ir_attrs){.axes = {n, list}}), x);
}

quern_tensor *ir_rule_slice_flip(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const struct ir_node *in = inner(node, IR_FLIP);
  if (in == NULL) return NULL;
  quern_tensor *x = in->src[0];
  struct cut cut = cut_of(node);
  unsigned flipped = ir_axes_set(in->attrs->axes);
  for (int k = 0; k < x->rank; k++) {
    if ((flipped >> k & 1) == 0 || cut.n[k] == 0) continue;
    cut.lo[k] = x->dims[k] - 1 - cut.lo[k] - (cut.n[k] > 1 ? (cut.n[k] - 1) * cut.step[k] : 0);
  }
  quern_tensor *y = make_slice(x, &cut);
  return ir_is_poison(y) ? y : make_flip(y, flipped);
}

/* ---- flip -------------------------------------------------------------------------------------------- */

quern_tensor *ir_rule_flip_none(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  struct ir_ints axes = node->attrs->axes;
  for (int i = 0; i < axes.n; i++) {
    if (node->out[0].dims[axes.at[i]] > 1) return NULL;
  }
  return node->src[0];
}

quern_tensor *ir_rule_flip_flip(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const struct ir_node *in = inner(node, IR_FLIP);
  if (in == NULL) return NULL;
  return make_flip(in->src[0], ir_axes_set(node->attrs->axes) ^ ir_axes_set(in->attrs->axes));
}

quern_tensor *ir_rule_flip_broadcast(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const struct ir_node *in = inner(node, IR_BROADCAST);
  if (in == NULL) return NULL;
  quern_tensor *x = in->src[0];
  unsigned axes = ir_axes_set(node->attrs->axes);
  for (int k = 0; k < x->rank; k++) {
    if (x->dims[k] == 1) axes &= ~(1u << k);
  }
  return ir_broadcast_to(make_flip(x, axes), x->rank, node->out[0].dims);
}

/* ---- concat ------------------------------------------------------------------------------------------ */

/* Sources of a concat being built; room for as many as the caller counted. */
struct parts {
  quern_context *ctx;
  int n, room;
  quern_tensor **at;
};

static bool parts_init(struct parts *parts, quern_context *ctx, int room) {
  *parts = (struct parts){.ctx = ctx, .room = room};
  parts->at = base_alloc(&ctx->heap, (size_t)room * sizeof *parts->at);
  return parts->at != NULL;
}

/* The concat of the parts, which are freed. */
static quern_tensor *parts_take(struct parts *parts, int64_t axis) {
  quern_tensor *y = ir_make(parts->ctx, IR_CONCAT, parts->n, parts->at, &(struct ir_attrs){.axis = axis});
  base_free(&parts->ctx->heap, parts->at, (size_t)parts->room * sizeof *parts->at);
  return y;
}

quern_tensor *ir_rule_concat_one(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  return node->n_src == 1 ? node->src[0] : NULL;
}

quern_tensor *ir_rule_concat_empty(quern_context *ctx, struct ir_node *node) {
  int64_t axis = node->attrs->axis;
  int full = 0;
  for (int i = 0; i < node->n_src; i++) full += node->src[i]->dims[axis] > 0;
  if (full == node->n_src) return NULL;
  if (full == 0) return node->src[0];
  struct parts parts;
  if (!parts_init(&parts, ctx, full)) return ir_fail_last(ctx);
  for (int i = 0; i < node->n_src; i++) {
    if (node->src[i]->dims[axis] > 0) parts.at[parts.n++] = node->src[i];
  }
  return parts_take(&parts, axis);
}

static bool is_concat(const quern_tensor *t, int64_t axis) {
  return t->node->op == IR_CONCAT && t->node->attrs->axis == axis;
}

/* What is put together from what is put together twice has sources that double at each level. */
enum { MOST_SOURCES = 96 };

quern_tensor *ir_rule_concat_concat(quern_context *ctx, struct ir_node *node) {
  int64_t axis = node->attrs->axis;
  int n = 0;
  for (int i = 0; i < node->n_src; i++) n += is_concat(node->src[i], axis) ? node->src[i]->node->n_src : 1;
  bool any = false;
  for (int i = 0; i < node->n_src; i++) any |= is_concat(node->src[i], axis);
  if (!any || n > MOST_SOURCES) return NULL;
  struct parts parts;
  if (!parts_init(&parts, ctx, n)) return ir_fail_last(ctx);
  for (int i = 0; i < node->n_src; i++) {
    const struct ir_node *in = node->src[i]->node;
    if (!is_concat(node->src[i], axis)) parts.at[parts.n++] = node->src[i];
    for (int k = 0; is_concat(node->src[i], axis) && k < in->n_src; k++) parts.at[parts.n++] = in->src[k];
  }
  return parts_take(&parts, axis);
}

/* The slice that a and b, slices of one tensor, are when b goes on along axis where a ends; else NULL. */
static quern_tensor *join_slices(const quern_tensor *a, const quern_tensor *b, int64_t axis) {
  if (a->node->op != IR_SLICE || b->node->op != IR_SLICE || a->node->src[0] != b->node->src[0]) return NULL;
  struct cut first = cut_of(a->node), second = cut_of(b->node);
  if (first.n[axis] == 0 || second.n[axis] == 0) return NULL;
  int64_t step = first.n[axis] > 1    ? first.step[axis]
                 : second.n[axis] > 1 ? second.step[axis]
                                      : second.lo[axis] - first.lo[axis];
  for (int k = 0; k < a->rank; k++) {
    if (k == axis) continue;
    if (first.n[k] != second.n[k] || (first.n[k] > 0 && first.lo[k] != second.lo[k])) return NULL;
    if (first.n[k] > 1 && first.step[k] != second.step[k]) return NULL;
  }
  if (step < 1 || (second.n[axis] > 1 && second.step[axis] != step)) return NULL;
  if (second.lo[axis] != first.lo[axis] + first.n[axis] * step) return NULL;
  first.step[axis] = step;
  first.n[axis] += second.n[axis];
  return make_slice(a->node->src[0], &first);
}

quern_tensor *ir_rule_concat_slices(quern_context *ctx, struct ir_node *node) {
  int64_t axis = node->attrs->axis;
  struct parts parts;
  if (!parts_init(&parts, ctx, node->n_src)) return ir_fail_last(ctx);
  bool ok = true;
  for (int i = 0; i < node->n_src && ok; i++) {
    quern_tensor *joined = parts.n == 0 ? NULL : join_slices(parts.at[parts.n - 1], node->src[i], axis);
    if (joined != NULL) {
      parts.at[parts.n - 1] = joined;
      ok = !ir_is_poison(joined);
    } else {
      parts.at[parts.n++] = node->src[i];
    }
  }
  bool fewer = parts.n < node->n_src;
  quern_tensor *y = parts_take(&parts, axis);
  return fewer ? y : NULL;
}

/* ---- blocks, windows, indices ------------------------------------------------------------------------ */

quern_tensor *ir_rule_slice_at_all(quern_context *ctx, struct ir_node *node) { return ir_rule_reshape_same(ctx, node); }

quern_tensor *ir_rule_slice_at_constant(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  quern_tensor *x = node->src[0];
  struct cut cut;
  for (int k = 0; k < x->rank; k++) {
    const quern_tensor *start = node->src[k + 1];
    unsigned char bits[8];
    if (!ir_uniform(start, bits)) return NULL;
    uint64_t value = base_load_int(start->dtype, bits, 0);
    bool negative = base_dtype_is(start->dtype, BASE_SIGNED) && value >> 63 != 0;
    uint64_t most = (uint64_t)(x->dims[k] - node->out[0].dims[k]);
    cut.lo[k] = negative ? 0 : (int64_t)BASE_MIN(value, most);
    cut.step[k] = 1;
    cut.n[k] = node->out[0].dims[k];
  }
  return make_slice(x, &cut);
}

quern_tensor *ir_rule_update_at_all(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  return same_dims(node, node->src[1]) ? node->src[1] : NULL;
}

quern_tensor *ir_rule_update_at_empty(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  return ir_count(node->src[1]) == 0 ? node->src[0] : NULL;
}

quern_tensor *ir_rule_window_unit(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const struct ir_attrs *a = node->attrs;
  for (int i = 0; i < a->axes.n; i++) {
    if (a->size.at[i] != 1 || a->step.at[i] != 1) return NULL;
  }
  return ir_reshape_to(node->src[0], node->out[0].rank, node->out[0].dims);
}

/* Windows that lie side by side and cover all there is: a window's elements become neighbors, and then one axis. */
quern_tensor *ir_rule_col2im_tiles(quern_context *ctx, struct ir_node *node) {
  const struct ir_attrs *a = node->attrs;
  const quern_tensor *y = &node->out[0];
  quern_tensor *x = node->src[0];
  int64_t axes[QUERN_MAX_RANK];
  int n = 0, next = 0;
  bool moves = false;
  for (int k = 0; k < y->rank; k++) {
    axes[n++] = k;
    if (next == a->axes.n || a->axes.at[next] != k) continue;
    int64_t size = x->dims[y->rank + next];
    bool near = size == 1 || a->dilate.at[next] == 1, touch = x->dims[k] == 1 || a->step.at[next] == size;
    if (!near || !touch || x->dims[k] * size != y->dims[k]) return NULL;
    moves = moves || (size != 1 && n != y->rank + next);
    axes[n++] = y->rank + next++;
  }
  if (next != a->axes.n) return NULL;
  if (moves) x = IR_MAKE(ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {n, axes}}), x);
  return ir_is_poison(x) ? x : ir_reshape_to(x, y->rank, y->dims);
}

quern_tensor *ir_rule_gather_iota(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  const quern_tensor *x = node->src[0], *index = node->src[1];
  int64_t n = x->dims[node->attrs->axis];
  if (index->node->op != IR_IOTA || index->rank != 1 || index->dims[0] != n || node->attrs->batch != 0) return NULL;
  unsigned char bits[8]; /* the last index must be one that the dtype can hold */
  base_store_int(index->dtype, bits, 0, (uint64_t)(n - 1));
  return n == 0 || (int64_t)base_load_int(index->dtype, bits, 0) == n - 1 ? node->src[0] : NULL;
}

quern_tensor *ir_rule_scatter_nothing(quern_context *ctx, struct ir_node *node) {
  (void)ctx;
  return ir_count(node->src[2]) == 0 ? node->src[0] : NULL;
}
