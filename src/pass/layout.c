/* pass/layout.c -- permutes move to where they cost nothing
** They sink towards the results: through elementwise ops whose sources are all permuted alike, through slices, flips,
** pads and broadcasts, into one another; a permute that swaps the free axes of a contraction swaps its operands.
** Reshapes of permutes sink through concatenations. Then the rules of ir/ put them into the axes of contractions and
** reductions. Single elements of rows: gather.c.
** keeps: every bit: elements are computed from the same elements, terms of sums stay in their order
** tests: tests/pass/test_passes.c
*/
#include "pass/pass_int.h"

struct job {
  struct ir_order order; /* of the graph as it was */
  int *users;
  bool gpu, first; /* the first of its rounds */
};

static quern_tensor *permute(quern_tensor *x, int n, const int64_t *axes) {
  return IR_MAKE(x->node->ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {n, axes}}), x);
}

/* The axes of a permuted source, or NULL. */
static const int64_t *axes_of(const quern_tensor *t) {
  return t->node->op == IR_PERMUTE ? t->node->attrs->axes.at : NULL;
}

static bool same_axes(const quern_tensor *a, const quern_tensor *b) {
  return a->rank == b->rank && memcmp(axes_of(a), axes_of(b), (size_t)a->rank * sizeof(int64_t)) == 0;
}

/* The one element that a constant tensor is made of, at the shape of like; NULL when t is something else. */
static quern_tensor *uniform_like(const quern_tensor *t, const quern_tensor *like) {
  const quern_tensor *x = t;
  while (x->node->op == IR_BROADCAST || x->node->op == IR_RESHAPE) x = x->node->src[0];
  if (x->node->op != IR_CONST || ir_count(x) != 1) return NULL;
  static const int64_t ones[QUERN_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  quern_context *ctx = t->node->ctx;
  quern_tensor *one = IR_MAKE(ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {like->rank, ones}}), x->node->out);
  return IR_MAKE(ctx, IR_BROADCAST, (&(struct ir_attrs){.shape = {like->rank, like->dims}}), one);
}

/* op(permute(a), permute(b), c) = permute(op(a, b, c)), c of one element in every place; on GPUs any. */
static quern_tensor *sink_elementwise(const struct job *job, struct ir_node *node, quern_tensor *const *src) {
  const quern_tensor *first = NULL;
  for (int i = 0; i < node->n_src && first == NULL; i++) first = axes_of(src[i]) != NULL ? src[i] : NULL;
  if (first == NULL) return NULL;
  const quern_tensor *inner = first->node->src[0];
  quern_tensor *under[3];
  for (int i = 0; i < node->n_src; i++) {
    if (axes_of(src[i]) != NULL)
      under[i] = same_axes(src[i], first) ? src[i]->node->src[0] : NULL;
    else
      under[i] = uniform_like(src[i], inner);
    if (under[i] == NULL && job->gpu) under[i] = pass_unpermute(src[i], first, job->first);
    if (under[i] == NULL) return NULL;
  }
  quern_tensor *y = ir_make(node->ctx, node->op, node->n_src, under, node->attrs);
  return ir_is_poison(y) ? y : permute(y, inner->rank, axes_of(first));
}

/* from[axes[k]] = to[k] */
static void unpermute(int n, const int64_t *axes, const int64_t *to, int64_t *from) {
  for (int k = 0; k < n; k++) from[axes[k]] = to[k];
}

/* slice, flip, pad and broadcast of a permute = the permute of them. */
static quern_tensor *sink_movement(struct ir_node *node, quern_tensor *const *src) {
  const int64_t *axes = axes_of(src[0]);
  if (axes == NULL) return NULL;
  int n = src[0]->rank;
  int64_t lists[3][QUERN_MAX_RANK];
  const struct ir_attrs *old = node->attrs;
  struct ir_attrs attrs = *old;
  quern_tensor *from[2] = {src[0]->node->src[0], node->n_src > 1 ? src[1] : NULL};
  if (node->op == IR_FLIP) {
    for (int i = 0; i < old->axes.n; i++) lists[0][i] = axes[old->axes.at[i]];
    for (int i = 1; i < old->axes.n; i++) { /* in increasing order */
      for (int k = i; k > 0 && lists[0][k] < lists[0][k - 1]; k--) {
        int64_t swap = lists[0][k];
        lists[0][k] = lists[0][k - 1];
        lists[0][k - 1] = swap;
      }
    }
    attrs.axes.at = lists[0];
  } else if (node->op == IR_BROADCAST) {
    unpermute(n, axes, old->shape.at, lists[0]);
    attrs.shape.at = lists[0];
  } else {
    unpermute(n, axes, old->lo.at, lists[0]);
    unpermute(n, axes, old->hi.at, lists[1]);
    unpermute(n, axes, node->op == IR_PAD ? old->mid.at : old->step.at, lists[2]);
    attrs.lo.at = lists[0];
    attrs.hi.at = lists[1];
    *(node->op == IR_PAD ? &attrs.mid : &attrs.step) = (struct ir_ints){n, lists[2]};
  }
  quern_tensor *y = ir_make(node->ctx, node->op, node->n_src, from, &attrs);
  return ir_is_poison(y) ? y : permute(y, n, axes);
}

static int64_t product(int n, const int64_t *dims) {
  int64_t count = 1;
  for (int k = 0; k < n; k++) count *= dims[k];
  return count;
}

/* The axis along which what was reshaped into the sources of a concat can be put together instead, or -1: rows before
** it are those of the concat, and all other dims are alike. */
static int axis_before_reshape(const struct ir_node *node, quern_tensor *const *src) {
  const quern_tensor *x = src[0]->node->src[0];
  int64_t rows = product((int)node->attrs->axis, src[0]->dims);
  for (int axis = 0; axis < x->rank; axis++) {
    bool alike = product(axis, x->dims) == rows;
    for (int i = 1; i < node->n_src && alike; i++) {
      const quern_tensor *y = src[i]->node->src[0];
      alike = y->rank == x->rank;
      for (int k = 0; k < x->rank && alike; k++) alike = k == axis || x->dims[k] == y->dims[k];
    }
    if (alike) return axis;
  }
  return -1;
}

/* concat(reshape(a), reshape(b)) = reshape(concat(a, b)) where a or b is permuted: a row of a is then a row of the
** whole. */
static quern_tensor *sink_reshapes(struct ir_node *node, quern_tensor *const *src) {
  bool permuted = false;
  for (int i = 0; i < node->n_src; i++) {
    if (src[i]->node->op != IR_RESHAPE || ir_count(src[i]) == 0) return NULL;
    permuted = permuted || axes_of(src[i]->node->src[0]) != NULL;
  }
  int axis = permuted ? axis_before_reshape(node, src) : -1;
  if (axis < 0) return NULL;
  struct base_heap *heap = &node->ctx->heap;
  size_t bytes = (size_t)node->n_src * sizeof(quern_tensor *);
  quern_tensor **parts = base_alloc(heap, bytes);
  if (parts == NULL) return ir_fail_last(node->ctx);
  for (int i = 0; i < node->n_src; i++) parts[i] = src[i]->node->src[0];
  quern_tensor *y = ir_make(node->ctx, IR_CONCAT, node->n_src, parts, &(struct ir_attrs){.axis = axis});
  base_free(heap, parts, bytes);
  if (ir_is_poison(y)) return y;
  struct ir_attrs shape = {.shape = {node->out[0].rank, node->out[0].dims}};
  return IR_MAKE(node->ctx, IR_RESHAPE, &shape, y);
}

/* permute(dot(a, b)) = dot(b, a) when it puts b's free axes before a's; every combination commutes. */
static quern_tensor *swap_dot(const struct ir_node *node, const quern_tensor *y) {
  const struct ir_node *dot = y->node;
  if (dot->op != IR_DOT) return NULL;
  const struct ir_attrs *attrs = dot->attrs;
  int batch = attrs->a_batch.n, rows = dot->src[0]->rank - batch - attrs->a_sum.n, columns = y->rank - batch - rows;
  const int64_t *axes = node->attrs->axes.at;
  for (int k = 0; k < y->rank; k++) {
    int64_t from = k < batch ? k : k < batch + columns ? k + rows : k - columns;
    if (axes[k] != from) return NULL;
  }
  struct ir_attrs swapped = *attrs;
  swapped.a_batch = attrs->b_batch, swapped.b_batch = attrs->a_batch;
  swapped.a_sum = attrs->b_sum, swapped.b_sum = attrs->a_sum;
  return IR_MAKE(node->ctx, IR_DOT, &swapped, dot->src[1], dot->src[0]);
}

/* Permutes of permutes and of contractions that have no other use. */
static quern_tensor *join_permute(const struct job *job, const struct ir_node *node, quern_tensor *x) {
  const int64_t *outer = node->attrs->axes.at, *inner = axes_of(x);
  ptrdiff_t place = ir_order_find(&job->order, node->src[0]->node);
  if (inner == NULL) return place >= 0 && job->users[place] == 1 ? swap_dot(node, x) : NULL;
  int64_t both[QUERN_MAX_RANK];
  bool plain = true;
  for (int k = 0; k < x->rank; k++) {
    both[k] = inner[outer[k]];
    plain = plain && both[k] == k;
  }
  return plain ? x->node->src[0] : permute(x->node->src[0], x->rank, both);
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  struct job *job = user;
  quern_tensor *y = NULL;
  if (pass_is_elementwise(node) || (node->op == IR_CHECKPOINT && job->gpu)) {
    y = sink_elementwise(job, node, src);
  } else if (node->op == IR_SLICE || node->op == IR_FLIP || node->op == IR_PAD || node->op == IR_BROADCAST) {
    y = sink_movement(node, src);
  } else if (node->op == IR_PERMUTE) {
    y = join_permute(job, node, src[0]);
  } else if (node->op == IR_CONCAT) {
    y = sink_reshapes(node, src);
    if (y == NULL && job->gpu) y = pass_sink_concat(node, src);
  } else if (node->op == IR_WINDOW && job->gpu) {
    y = pass_sink_window(node, src[0]);
  } else if (node->op == IR_COL2IM && job->gpu) {
    y = pass_sink_col2im(node, src[0]);
  } else if (node->op == IR_RESHAPE && job->gpu) {
    y = pass_sink_reshape(node, src[0]);
  } else if (node->op == IR_GATHER) {
    y = pass_move_gather(node, src);
  } else if (node->op == IR_SCATTER) {
    y = pass_move_scatter(node, src);
  }
  if (y == NULL) return ir_rebuild(node, src, out);
  out[0] = y;
  return ir_is_poison(y) ? ir_poison_error(node->ctx) : QUERN_STATUS_OK;
}

/* Puts permutes into what they meet. */
static quern_status absorb(struct pass_graph *graph) {
  static const char *const names[] = {"permute_same",    "permute_permute", "permute_units",  "reshape_same",
                                      "reshape_reshape", "broadcast_same",  "reduce_permute", "dot_permute"};
  quern_context *ctx = graph->ctx;
  size_t bytes = graph->n_roots * sizeof *graph->roots;
  bool *enabled = base_alloc_zero(&ctx->heap, ir_rule_count);
  quern_tensor **out = base_alloc(&ctx->heap, bytes);
  quern_status status = enabled == NULL || out == NULL ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
  for (size_t i = 0; i < ir_rule_count && enabled != NULL; i++) {
    for (size_t k = 0; k < BASE_COUNT(names); k++) enabled[i] = enabled[i] || strcmp(ir_rules[i].name, names[k]) == 0;
  }
  struct ir_rewrite_options rewrite = {.enabled = enabled};
  if (status == QUERN_STATUS_OK) status = ir_rewrite(ctx, graph->n_roots, graph->roots, &rewrite, out);
  if (status == QUERN_STATUS_OK && bytes > 0) memcpy(graph->roots, out, bytes);
  base_free(&ctx->heap, enabled, ir_rule_count);
  base_free(&ctx->heap, out, bytes);
  return status;
}

static bool has_movement(const struct ir_order *order) {
  for (size_t i = 0; i < order->n; i++) {
    const struct ir_node *node = order->at[i];
    bool moves = node->op == IR_PERMUTE || node->op == IR_GATHER || node->op == IR_SCATTER;
    if (moves || node->attrs->body != NULL) return true;
  }
  return false;
}

static quern_status move_permutes(struct pass_graph *graph, struct job *job, bool *has) {
  quern_context *ctx = graph->ctx;
  QUERN_TRY(ir_topo(ctx, graph->n_roots, graph->roots, &job->order));
  quern_status status = QUERN_STATUS_OK;
  *has = has_movement(&job->order);
  if (*has) {
    status = pass_count_users(graph, &job->order, &job->users);
    if (status == QUERN_STATUS_OK) status = pass_subgraphs(graph, visit, job);
    base_free(&ctx->heap, job->users, job->order.n * sizeof *job->users);
  }
  ir_order_fini(ctx, &job->order);
  return status;
}

/* On GPUs twice: what permutes leave when they sink into reductions sinks on. */
quern_status pass_layout(struct pass_graph *graph, const struct pass_options *options) {
  struct job job = {.gpu = options->target != NULL && options->target->gpu};
  bool has = true;
  for (int round = 0; round < (job.gpu ? 2 : 1) && has; round++) {
    job.first = round == 0;
    QUERN_TRY(move_permutes(graph, &job, &has));
    if (has) QUERN_TRY(absorb(graph));
  }
  return QUERN_STATUS_OK;
}
