/* grad/rules_reduce.c -- derivatives of reductions, scans, sort and contraction
** Equal maxima share the gradient; a running maximum gives it to the first of equals; sort follows its permutation.
** Products use no division, so zeros among the factors are no exception.
** tests: querntest --mode grad, jvp, grad2; tests/grad/test_rules.c
*/
#include <string.h>

#include "grad/grad.h"

#define NODE g->node
#define ATTRS g->node->attrs
#define SRC g->node->src
#define DY g->dy[0]

/* ---- reduce --------------------------------------------------------------------------------------------------------- */

/* A reduced tensor stretched back over the axes it lost. */
static quern_tensor *stretch(const struct ir_node *n, quern_tensor *t) {
  const quern_tensor *x = n->src[0];
  return quern_broadcast_to(tensor_restore_axes(t, x, n->attrs->axes.n, n->attrs->axes.at), x->rank, x->dims);
}

static quern_tensor *reduce_sum(const struct ir_node *n, quern_tensor *t) {
  return IR_MAKE(n->ctx, IR_REDUCE, (&(struct ir_attrs){.reduce = IR_SUM, .axes = n->attrs->axes}), t);
}

static quern_tensor *scan_product(quern_tensor *x, int axis, bool reverse) {
  if (ir_is_poison(x)) return x;
  return IR_MAKE(x->node->ctx, IR_SCAN, (&(struct ir_attrs){.reduce = IR_PROD, .axis = axis, .reverse = reverse}), x);
}

/* x shifted by one along an axis towards the end (or the beginning), with a 1 coming in. */
static quern_tensor *shift_in_one(quern_tensor *x, int axis, bool to_end) {
  int64_t lo[QUERN_MAX_RANK] = {0}, hi[QUERN_MAX_RANK] = {0};
  (to_end ? lo : hi)[axis] = 1;
  quern_tensor *padded = quern_pad(x, x->rank, lo, hi, 1);
  return to_end ? quern_slice(padded, axis, 0, x->dims[axis], 1) : quern_slice(padded, axis, 1, QUERN_END, 1);
}

/* The product of all others over the reduced axes, in x's shape: what comes before times what comes after. */
static quern_tensor *product_of_others(const struct ir_node *n) {
  quern_tensor *x = n->src[0];
  struct ir_ints axes = n->attrs->axes;
  if (axes.n == 0 || ir_count(x) == 0) return quern_ones_like(x);
  int64_t order[QUERN_MAX_RANK], back[QUERN_MAX_RANK], flat[QUERN_MAX_RANK];
  int kept = 0, at = x->rank - axes.n;
  int64_t last = 1;
  for (int k = 0, i = 0; k < x->rank; k++) {
    bool reduced = i < axes.n && axes.at[i] == k;
    if (reduced) {
      i++;
      last *= x->dims[k];
      order[at] = k;
      back[k] = at++;
    } else {
      order[kept] = k;
      back[k] = kept;
      flat[kept++] = x->dims[k];
    }
  }
  flat[kept] = last;
  quern_tensor *moved = quern_permute(x, x->rank, order);
  if (ir_is_poison(moved)) return moved;
  quern_tensor *rows = quern_reshape(moved, kept + 1, flat);
  if (ir_is_poison(rows)) return rows;
  quern_tensor *before = scan_product(shift_in_one(rows, kept, true), kept, false);
  quern_tensor *after = scan_product(shift_in_one(rows, kept, false), kept, true);
  return quern_permute(quern_reshape(quern_mul(before, after), moved->rank, moved->dims), x->rank, back);
}

/* Where x equals the extremum, and how often, stretched. */
static quern_tensor *extremum_mask(const struct ir_node *n) { return quern_eq(n->src[0], stretch(n, &n->out[0])); }
static quern_tensor *extremum_count(const struct ir_node *n, quern_tensor *mask) {
  return reduce_sum(n, quern_cast(mask, n->src[0]->dtype));
}

quern_status grad_vjp_REDUCE(const struct grad_back *g) {
  if (ATTRS->reduce == IR_SUM) {
    g->dx[0] = stretch(NODE, DY);
  } else if (ATTRS->reduce == IR_PROD) {
    quern_tensor *dy = stretch(NODE, DY);
    g->dx[0] = quern_mul(dy, product_of_others(NODE));
  } else {
    quern_tensor *mask = extremum_mask(NODE);
    quern_tensor *share = stretch(NODE, quern_div(DY, extremum_count(NODE, mask)));
    g->dx[0] = quern_where(mask, share, quern_zeros_like(share));
  }
  return QUERN_STATUS_OK;
}
quern_status grad_jvp_REDUCE(const struct grad_fore *g) {
  quern_tensor *t = g->tx[0];
  if (ATTRS->reduce == IR_SUM) {
    g->ty[0] = grad_again(NODE, 0, t);
  } else if (ATTRS->reduce == IR_PROD) {
    g->ty[0] = reduce_sum(NODE, quern_mul(t, product_of_others(NODE)));
  } else {
    quern_tensor *mask = extremum_mask(NODE);
    quern_tensor *sum = reduce_sum(NODE, quern_where(mask, t, quern_zeros_like(t)));
    g->ty[0] = quern_div(sum, extremum_count(NODE, mask));
  }
  return QUERN_STATUS_OK;
}

/* ---- scan ----------------------------------------------------------------------------------------------------------- */

/* For each place of a running maximum or minimum, the index of the element that it shows: the first of equals. */
static quern_tensor *source_index(const struct ir_node *n) {
  quern_tensor *x = n->src[0], *y = (quern_tensor *)&n->out[0];
  int axis = (int)n->attrs->axis;
  bool reverse = n->attrs->reverse != 0;
  int64_t size = x->dims[axis];
  quern_tensor *place = quern_iota(n->ctx, QUERN_DTYPE_I64, x->rank, x->dims, axis);
  if (size < 2) return place;
  /* an element is new when it differs from what the running value was before it; the first one always is */
  quern_tensor *before = reverse ? quern_slice(y, axis, 1, size, 1) : quern_slice(y, axis, 0, size - 1, 1);
  quern_tensor *now = reverse ? quern_slice(y, axis, 0, size - 1, 1) : quern_slice(y, axis, 1, size, 1);
  quern_tensor *is_new = quern_ne(before, now);
  int64_t lo[QUERN_MAX_RANK] = {0}, hi[QUERN_MAX_RANK] = {0};
  (reverse ? hi : lo)[axis] = 1;
  is_new = quern_pad(is_new, x->rank, lo, hi, 1);
  /* forward the index grows: keep the largest so far; backward it falls: keep the smallest */
  quern_tensor *never = quern_full_like(place, reverse ? (double)size : -1);
  struct ir_attrs scan = {.reduce = reverse ? IR_REDUCE_MIN : IR_REDUCE_MAX, .axis = axis, .reverse = reverse};
  return IR_MAKE(n->ctx, IR_SCAN, &scan, quern_where(is_new, place, never));
}

/* x along its axis from the first to the last index, for a loop: that axis first. */
static quern_tensor *axis_first(quern_tensor *x, int axis) { return quern_transpose(x, 0, axis); }

/* R[k] = dy[k] + x[k+1] R[k+1], in scan order from the end: what reaches place k from later results of a running product. */
static void weighted_tail(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user; /* args: i, R of the later place, dy, the x that lies between */
  results[0] = quern_add(args[2], quern_mul(args[3], args[1]));
  results[1] = results[0];
}

static quern_status vjp_running_product(const struct grad_back *g) {
  quern_tensor *x = SRC[0];
  int axis = (int)ATTRS->axis;
  bool reverse = ATTRS->reverse != 0;
  if (ir_count(x) == 0) {
    g->dx[0] = quern_zeros_like(x);
    return QUERN_STATUS_OK;
  }
  quern_tensor *next =
      axis_first(shift_in_one(x, axis, reverse), axis); /* the factor after each place, in scan order */
  quern_tensor *rows = axis_first(DY, axis);
  if (ir_is_poison(next) || ir_is_poison(rows)) return ir_poison_error(g->ctx);
  quern_tensor *none = quern_zeros(g->ctx, x->dtype, rows->rank - 1, rows->dims + 1);
  quern_tensor *operands[] = {none, rows, next}, *results[2];
  quern_loop_options options = {.size = sizeof options,
                                .trip = x->dims[axis],
                                .reverse = !reverse,
                                .n_carries = 1,
                                .n_scanned = 2,
                                .n_stacked = 1};
  QUERN_TRY(quern_loop(g->ctx, &options, operands, weighted_tail, NULL, results));
  quern_tensor *before = scan_product(shift_in_one(x, axis, !reverse), axis, reverse);
  g->dx[0] = quern_mul(before, axis_first(results[1], axis));
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_SCAN(const struct grad_back *g) {
  if (ATTRS->reduce == IR_PROD) return vjp_running_product(g);
  if (ATTRS->reduce == IR_SUM) {
    g->dx[0] = IR_MAKE(g->ctx, IR_SCAN,
                       (&(struct ir_attrs){.reduce = IR_SUM, .axis = ATTRS->axis, .reverse = !ATTRS->reverse}), DY);
  } else {
    quern_tensor *zero = quern_zeros_like(DY);
    g->dx[0] = quern_scatter_along(zero, source_index(NODE), DY, (int)ATTRS->axis, QUERN_SCATTER_ADD);
  }
  return QUERN_STATUS_OK;
}
quern_status grad_jvp_SCAN(const struct grad_fore *g) {
  if (ATTRS->reduce == IR_PROD) return grad_jvp_transposed(g, grad_vjp_SCAN);
  g->ty[0] = ATTRS->reduce == IR_SUM ? grad_again(NODE, 0, g->tx[0])
                                     : quern_take_along(g->tx[0], source_index(NODE), (int)ATTRS->axis);
  return QUERN_STATUS_OK;
}

/* ---- sort ----------------------------------------------------------------------------------------------------------- */

quern_status grad_vjp_SORT(const struct grad_back *g) {
  g->dx[0] = quern_scatter_along(quern_zeros_like(SRC[0]), &NODE->out[1], DY, (int)ATTRS->axis, QUERN_SCATTER_ADD);
  return QUERN_STATUS_OK;
}
quern_status grad_jvp_SORT(const struct grad_fore *g) {
  g->ty[0] = quern_take_along(g->tx[0], &NODE->out[1], (int)ATTRS->axis);
  return QUERN_STATUS_OK;
}

/* ---- dot ------------------------------------------------------------------------------------------------------------ */

static bool holds(struct ir_ints list, int64_t axis, int *at) {
  for (int i = 0; i < list.n; i++) {
    if (list.at[i] == axis) {
      *at = i;
      return true;
    }
  }
  return false;
}

/* How many members of a list are smaller. */
static int rank_in(struct ir_ints list, int64_t value) {
  int below = 0;
  for (int i = 0; i < list.n; i++) below += list.at[i] < value;
  return below;
}

struct side {
  quern_tensor *x;
  struct ir_ints batch, sum;
};

/* The axes of a side that are neither batch nor summed. */
static int free_axes(struct side s, int64_t *out) {
  int n = 0, at;
  for (int k = 0; k < s.x->rank; k++) {
    if (!holds(s.batch, k, &at) && !holds(s.sum, k, &at)) out[n++] = k;
  }
  return n;
}

/* The gradient of one side: contract dy with the other over the other's free axes, then put the axes in place. */
static quern_tensor *dot_gradient(quern_context *ctx, quern_tensor *dy, struct side own, struct side other,
                                  bool own_first) {
  int64_t own_free[QUERN_MAX_RANK], other_free[QUERN_MAX_RANK], dy_batch[QUERN_MAX_RANK], dy_sum[QUERN_MAX_RANK];
  int n_batch = own.batch.n, n_own = free_axes(own, own_free), n_other = free_axes(other, other_free);
  for (int i = 0; i < n_batch; i++) dy_batch[i] = i;
  for (int i = 0; i < n_other; i++) dy_sum[i] = n_batch + (own_first ? n_own : 0) + i;
  struct ir_attrs dot = {.a_batch = {n_batch, dy_batch},
                         .b_batch = other.batch,
                         .a_sum = {n_other, dy_sum},
                         .b_sum = {n_other, other_free}};
  quern_tensor *d =
      IR_MAKE(ctx, IR_DOT, &dot, dy, other.x); /* axes: batch, own free, then other's summed in increasing order */
  int64_t place[QUERN_MAX_RANK];
  for (int k = 0, at; k < own.x->rank; k++) {
    if (holds(own.batch, k, &at)) {
      place[k] = at;
    } else if (holds(own.sum, k, &at)) {
      place[k] = n_batch + n_own + rank_in(other.sum, other.sum.at[at]);
    } else {
      place[k] = n_batch + rank_in((struct ir_ints){n_own, own_free}, k);
    }
  }
  return quern_permute(d, own.x->rank, place);
}

/* The contraction written out: operands stretched over all axes, combined, reduced. */
static quern_tensor *dot_expanded(const struct ir_node *n, quern_tensor *a, quern_tensor *b) {
  const struct ir_attrs *t = n->attrs;
  struct side sides[2] = {{a, t->a_batch, t->a_sum}, {b, t->b_batch, t->b_sum}};
  int64_t free[2][QUERN_MAX_RANK];
  int n_free[2] = {free_axes(sides[0], free[0]), free_axes(sides[1], free[1])};
  quern_tensor *wide[2];
  for (int s = 0; s < 2; s++) { /* axes: batch, a's free, b's free, summed; those of the other side with size 1 */
    int64_t order[QUERN_MAX_RANK], shape[2 * QUERN_MAX_RANK];
    int at = 0, rank = 0;
    struct side own = sides[s];
    for (int i = 0; i < own.batch.n; i++) order[at++] = own.batch.at[i], shape[rank++] = own.x->dims[own.batch.at[i]];
    for (int i = 0; i < n_free[0]; i++) {
      if (s == 0) order[at++] = free[0][i];
      shape[rank++] = s == 0 ? own.x->dims[free[0][i]] : 1;
    }
    for (int i = 0; i < n_free[1]; i++) {
      if (s == 1) order[at++] = free[1][i];
      shape[rank++] = s == 1 ? own.x->dims[free[1][i]] : 1;
    }
    for (int i = 0; i < own.sum.n; i++) order[at++] = own.sum.at[i], shape[rank++] = own.x->dims[own.sum.at[i]];
    wide[s] = quern_reshape(quern_permute(own.x, own.x->rank, order), rank, shape);
  }
  quern_tensor *(*const combine[IR_COMBINE_COUNT])(quern_tensor *, quern_tensor *) = {quern_mul, quern_add,
                                                                                      quern_maximum, quern_minimum};
  quern_tensor *all = combine[t->combine](wide[0], wide[1]);
  int64_t axes[QUERN_MAX_RANK];
  for (int i = 0; i < t->a_sum.n; i++) axes[i] = n->out[0].rank + i;
  return IR_MAKE(n->ctx, IR_REDUCE, (&(struct ir_attrs){.reduce = t->reduce, .axes = {t->a_sum.n, axes}}), all);
}

static bool is_plain(const struct ir_node *n) {
  return n->attrs->reduce == IR_SUM && n->attrs->combine == IR_COMBINE_MUL;
}

/* Another semiring: the gradient of the contraction written out. */
static quern_status vjp_expanded(const struct grad_back *g) {
  quern_tensor *stands[] = {SRC[0], SRC[1], DY}, *leaf[3], *dx[2] = {NULL, NULL};
  for (int i = 0; i < 3; i++) leaf[i] = ir_leaf_like(stands[i]);
  QUERN_TRY(quern_context_check(g->ctx));
  quern_tensor *y = dot_expanded(NODE, leaf[0], leaf[1]);
  if (ir_is_poison(y)) return ir_poison_error(g->ctx);
  QUERN_TRY(grad_vjp(g->ctx, 1, &y, &leaf[2], 2, leaf, dx));
  for (int i = 0; i < 2; i++) {
    if (g->need[i] && dx[i] != NULL) QUERN_TRY(ir_substitute(g->ctx, 1, &dx[i], 3, leaf, stands, &g->dx[i]));
  }
  return QUERN_STATUS_OK;
}

quern_status grad_vjp_DOT(const struct grad_back *g) {
  if (!is_plain(NODE)) return vjp_expanded(g);
  struct side a = {SRC[0], ATTRS->a_batch, ATTRS->a_sum}, b = {SRC[1], ATTRS->b_batch, ATTRS->b_sum};
  if (g->need[0]) g->dx[0] = dot_gradient(g->ctx, DY, a, b, true);
  if (g->need[1]) g->dx[1] = dot_gradient(g->ctx, DY, b, a, false);
  return QUERN_STATUS_OK;
}

quern_status grad_jvp_DOT(const struct grad_fore *g) {
  if (!is_plain(NODE)) {
    quern_tensor *stands[4], *leaf[4], *t = NULL;
    for (int i = 0; i < 4; i++) {
      leaf[i] = ir_leaf_like(SRC[i % 2]);
      stands[i] = i < 2 ? SRC[i] : grad_or_zero(g->tx[i - 2], SRC[i - 2]);
    }
    QUERN_TRY(quern_context_check(g->ctx));
    quern_tensor *y = dot_expanded(NODE, leaf[0], leaf[1]);
    if (ir_is_poison(y)) return ir_poison_error(g->ctx);
    QUERN_TRY(grad_jvp(g->ctx, 2, leaf, leaf + 2, 1, &y, &t));
    return t == NULL ? QUERN_STATUS_OK : ir_substitute(g->ctx, 1, &t, 4, leaf, stands, &g->ty[0]);
  }
  quern_tensor *sum = NULL;
  for (int i = 0; i < 2; i++) {
    if (g->tx[i] == NULL) continue;
    quern_tensor *t = grad_again(NODE, i, g->tx[i]);
    sum = sum == NULL ? t : quern_add(sum, t);
  }
  g->ty[0] = sum;
  return QUERN_STATUS_OK;
}
