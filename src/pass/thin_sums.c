/* pass/thin_sums.c -- weight gradients of depthwise convolutions are summed along columns of the image first
** in:    a sum-of-products DOT with windows, few sums for each element of its batch, and all positions as terms
** out:   the same with the last position, and if need be others, as batch, and a REDUCE over those: vectors then run
**        along rows of the image in both operands
** keeps: every product that is added; the order of sums is another one: docs/design/011-convolution-gradients.md
** tests: tests/pass/test_col2im.c
*/
#include "pass/pass_int.h"

/* Sums for each element of the batch, which are in registers; terms of one: a block of the order of sums; terms of all from
** which on it pays. */
enum { MOST_SUMS = 25, MOST_TERMS = 512, LEAST_TERMS = 32 };

static bool has(const struct ir_ints *list, int64_t axis) {
  for (int i = 0; i < list->n; i++)
    if (list->at[i] == axis) return true;
  return false;
}

/* The products of the axes that are summed, and of those that are neither that nor batch. */
static int64_t free_count(const quern_tensor *t, const struct ir_ints *batch, const struct ir_ints *sum) {
  int64_t n = 1;
  for (int k = 0; k < t->rank; k++) n *= has(batch, k) || has(sum, k) ? 1 : t->dims[k];
  return n;
}

/* The axes of t that are positions of windows: place[i] for spatial axis i; how many, 0 when t is not windows or has
** them otherwise. */
static int find_places(quern_context *ctx, quern_tensor *t, int *place, bool *failed) {
  const struct pass_index *at[QUERN_MAX_RANK], *in[QUERN_MAX_RANK];
  struct pass_space *space;
  int n = 0, rank = t->rank;
  if (pass_space_new(&space, &ctx->heap) != QUERN_STATUS_OK) {
    *failed = true;
    return 0;
  }
  for (int k = 0; k < rank; k++) at[k] = pass_index_var(space, pass_space_add(space, t->dims[k]));
  while (t->node->op == IR_RESHAPE || t->node->op == IR_PERMUTE || t->node->op == IR_FLIP) {
    if (!pass_index_source(space, t->node, 0, at, in)) break;
    t = t->node->src[0];
    for (int k = 0; k < t->rank; k++) at[k] = in[k];
  }
  for (int i = 0; t->node->op == IR_WINDOW && i < t->node->attrs->axes.n; i++) {
    int64_t axis = t->node->attrs->axes.at[i];
    place[n] = -1;
    for (int k = 0; k < rank && t->dims[axis] > 1; k++)
      if (at[axis] == pass_index_var(space, k)) place[n] = k;
    n++;
  }
  *failed = space->failed;
  pass_space_free(space);
  return n;
}

/* The number among the summed axes of `axis`; -1: it is not one. */
static int sum_number(const struct ir_ints *sum, int64_t axis) {
  for (int i = 0; i < sum->n; i++)
    if (sum->at[i] == axis) return i;
  return -1;
}

/* The product with those of its summed axes as batch, and their sum. */
static quern_tensor *split(const struct ir_node *dot, const bool *moved) {
  const struct ir_attrs *old = dot->attrs;
  int64_t batch[2][QUERN_MAX_RANK], sum[2][QUERN_MAX_RANK], axes[QUERN_MAX_RANK];
  int n_batch = old->a_batch.n, n_sum = 0, n_axes = 0;
  for (int i = 0; i < n_batch; i++) batch[0][i] = old->a_batch.at[i], batch[1][i] = old->b_batch.at[i];
  for (int i = 0; i < old->a_sum.n; i++) {
    int n = moved[i] ? n_batch : n_sum;
    int64_t(*to)[QUERN_MAX_RANK] = moved[i] ? batch : sum;
    to[0][n] = old->a_sum.at[i], to[1][n] = old->b_sum.at[i];
    if (moved[i]) axes[n_axes++] = n_batch++;
    if (!moved[i]) n_sum++;
  }
  struct ir_attrs attrs = *old;
  attrs.a_batch = (struct ir_ints){n_batch, batch[0]};
  attrs.b_batch = (struct ir_ints){n_batch, batch[1]};
  attrs.a_sum = (struct ir_ints){n_sum, sum[0]};
  attrs.b_sum = (struct ir_ints){n_sum, sum[1]};
  quern_tensor *y = IR_MAKE(dot->ctx, IR_DOT, &attrs, dot->src[0], dot->src[1]);
  struct ir_attrs reduce = {.reduce = IR_SUM, .axes = {n_axes, axes}};
  return ir_is_poison(y) ? y : IR_MAKE(dot->ctx, IR_REDUCE, &reduce, y);
}

static quern_status rewrite(struct ir_node *dot, quern_tensor **out) {
  const struct ir_attrs *attrs = dot->attrs;
  const struct ir_ints *batches[] = {&attrs->a_batch, &attrs->b_batch}, *sums[] = {&attrs->a_sum, &attrs->b_sum};
  int place[QUERN_MAX_RANK];
  bool moved[QUERN_MAX_RANK] = {false}, failed = false;
  *out = NULL;
  if (attrs->reduce != IR_SUM || attrs->combine != IR_COMBINE_MUL || ir_count(&dot->out[0]) == 0)
    return QUERN_STATUS_OK;
  int64_t n = free_count(dot->src[0], batches[0], sums[0]) * free_count(dot->src[1], batches[1], sums[1]), terms = 1;
  for (int i = 0; i < sums[0]->n; i++) terms *= dot->src[0]->dims[sums[0]->at[i]];
  if (n < 2 || n > MOST_SUMS || terms < LEAST_TERMS) return QUERN_STATUS_OK;
  for (int side = 0; side < 2; side++) {
    int spatial = find_places(dot->ctx, dot->src[side], place, &failed);
    if (failed) return QUERN_STATUS_MEMORY;
    int last = spatial == 2 && place[1] >= 0 && place[0] >= 0 ? sum_number(sums[side], place[1]) : -1;
    int row = last >= 0 ? sum_number(sums[side], place[0]) : -1;
    if (row < 0) continue;
    const quern_tensor *t = dot->src[side];
    moved[last] = true;
    terms /= t->dims[place[1]];
    for (int i = 0; i < sums[side]->n && terms > MOST_TERMS; i++) {
      if (i == row || i == last) continue;
      moved[i] = true;
      terms /= t->dims[sums[side]->at[i]];
    }
    int64_t added = 0;
    for (int i = 0; i < sums[side]->n; i++) added += moved[i];
    bool fits = terms <= MOST_TERMS && dot->out[0].rank + added <= QUERN_MAX_RANK;
    if (fits) *out = split(dot, moved);
    return fits && ir_is_poison(*out) ? ir_poison_error(dot->ctx) : QUERN_STATUS_OK;
  }
  return QUERN_STATUS_OK;
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  (void)user;
  quern_tensor *y = NULL;
  QUERN_TRY(ir_rebuild(node, src, out));
  if (node->op == IR_DOT) QUERN_TRY(rewrite(out[0]->node, &y));
  if (y != NULL) out[0] = y;
  return QUERN_STATUS_OK;
}

static bool has_windows(const struct ir_order *order) {
  bool window = false;
  for (size_t i = 0; i < order->n; i++)
    window = window || order->at[i]->op == IR_WINDOW || order->at[i]->attrs->body != NULL;
  return window;
}

quern_status pass_thin_sums(struct pass_graph *graph, const struct pass_options *options) {
  if (options->target != NULL && options->target->gpu) return QUERN_STATUS_OK;
  struct ir_order order;
  QUERN_TRY(ir_topo(graph->ctx, graph->n_roots, graph->roots, &order));
  bool found = has_windows(&order);
  ir_order_fini(graph->ctx, &order);
  return found ? pass_subgraphs(graph, visit, NULL) : QUERN_STATUS_OK;
}
