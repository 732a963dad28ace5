/* pass/batchnorm.c -- inference: scales and shifts by constants after a contraction become part of its weights
** Of y = (conv(x, w) - mean) * factor + beta, and of any chain of such steps, with w and the rest made of constants and
** buffers: y = conv(x, w * factor) + ((0 - mean) * factor + beta), the new weights and the shift computed here, once.
** A chain by states is left alone: computing its weights in every run would cost more than the steps, which fusion puts
** behind the contraction anyway.
** keeps: values up to rounding: the products are rounded before they are summed; only with options.inference
** see:   docs/ir.md (numerics)               tests: tests/pass/test_passes.c
*/
#include "pass/pass_int.h"

enum { MOST_STEPS = 8 };

struct job {
  quern_context *ctx;
  struct ir_order order;
  int *users;
};

/* One step of a chain: x op c, c a stretched vector with one element per channel. */
struct step {
  enum ir_op op;
  bool turned;          /* c - x */
  quern_tensor *vector; /* (channels) */
};

/* The chain from a contraction up to y. */
struct chain {
  quern_tensor *dot;
  int n;
  struct step steps[MOST_STEPS]; /* the last first */
  struct pass_space *space;
};

static bool is_single(const struct job *job, const quern_tensor *t) {
  ptrdiff_t place = ir_order_find(&job->order, t->node);
  return place >= 0 && job->users[place] == 1;
}

/* True when t is computed from constants and buffers that hold elements only. */
static quern_status is_constant(quern_context *ctx, quern_tensor *t, bool *constant) {
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, 1, &t, &order));
  *constant = order.n <= 64;
  for (size_t i = 0; i < order.n && *constant; i++) {
    const struct ir_node *node = order.at[i];
    bool fed = node->op == IR_INPUT || node->op == IR_STATE || node->op == IR_PARAM || node->op == IR_RANDOM;
    *constant = !fed && (node->op != IR_BUFFER || node->attrs->buffer->data != NULL);
  }
  ir_order_fini(ctx, &order);
  return QUERN_STATUS_OK;
}

/* The channel of a contraction's element: its number among batch and column indices. */
static const struct pass_index *channel_of(struct pass_space *space, const struct ir_node *dot,
                                           const struct pass_index *const *at, int64_t *channels) {
  const quern_tensor *y = &dot->out[0];
  int batch = dot->attrs->a_batch.n, rows = dot->src[0]->rank - batch - dot->attrs->a_sum.n;
  const struct pass_index *flat = pass_index_const(space, 0);
  *channels = 1;
  for (int k = 0; k < y->rank; k++) {
    if (k >= batch && k < batch + rows) continue;
    *channels *= y->dims[k];
    flat = pass_index_add(space, pass_index_scale(space, flat, y->dims[k]), at[k]);
  }
  return flat;
}

/* Follows the only path of reshapes, permutes and steps from t at `at` down to a contraction; at becomes its indices.
** The vectors' indices, flat, are noted. */
static bool follow(const struct job *job, struct chain *chain, quern_tensor *t, const struct pass_index **at,
                   const struct pass_index **flats) {
  for (int turns = 0; turns < 16; turns++) {
    struct ir_node *node = t->node;
    const struct pass_index *in[QUERN_MAX_RANK];
    if (node->op == IR_DOT) {
      chain->dot = t;
      return chain->n > 0;
    }
    int from = 0;
    if (node->op == IR_ADD || node->op == IR_SUB || node->op == IR_MUL) {
      int stretched = node->src[1]->node->op == IR_BROADCAST ? 1 : node->src[0]->node->op == IR_BROADCAST ? 0 : -1;
      if (stretched < 0 || chain->n == MOST_STEPS) return false;
      from = 1 - stretched;
      quern_tensor *c = node->src[stretched];
      const struct pass_index *of[QUERN_MAX_RANK];
      if (!pass_index_source(chain->space, c->node, 0, at, of)) return false;
      c = c->node->src[0];
      flats[chain->n] = pass_index_flat(chain->space, c->rank, c->dims, of);
      chain->steps[chain->n++] = (struct step){node->op, node->op == IR_SUB && stretched == 0, c};
    } else if (node->op != IR_RESHAPE && node->op != IR_PERMUTE) {
      return false;
    }
    if (!pass_index_source(chain->space, node, from, at, in)) return false;
    t = node->src[from];
    if (!is_single(job, t)) return false;
    for (int k = 0; k < t->rank; k++) at[k] = in[k];
  }
  return false;
}

/* Elements that are computed now, in a buffer of their own. */
static quern_status computed(quern_context *ctx, quern_tensor *t, quern_tensor **out) {
  if (ir_is_poison(t)) return ir_poison_error(ctx);
  struct ir_buffer *buffer = ir_buffer_new(ctx, ir_bytes(t));
  if (buffer == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(ir_eval(ctx, 1, &t, &buffer->data, 0, NULL));
  struct ir_attrs attrs = {.dtype = t->dtype, .shape = {t->rank, t->dims}, .buffer = buffer};
  *out = ir_make(ctx, IR_BUFFER, 0, NULL, &attrs);
  return ir_is_poison(*out) ? ir_poison_error(ctx) : QUERN_STATUS_OK;
}

static quern_tensor *reshape(quern_tensor *x, int rank, const int64_t *dims) {
  if (ir_is_poison(x)) return x;
  return IR_MAKE(x->node->ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {rank, dims}}), x);
}

static quern_tensor *stretch(quern_tensor *x, int rank, const int64_t *dims) {
  if (ir_is_poison(x)) return x;
  return IR_MAKE(x->node->ctx, IR_BROADCAST, (&(struct ir_attrs){.shape = {rank, dims}}), x);
}

/* y = factor * dot + shift over all steps, as vectors. */
static void combine(quern_context *ctx, const struct chain *chain, int64_t channels, quern_tensor **factor,
                    quern_tensor **shift) {
  quern_dtype dtype = chain->dot->dtype;
  static const int64_t one[1] = {1};
  *factor = stretch(reshape(ir_const(ctx, dtype, 1), 1, one), 1, &channels);
  *shift = stretch(reshape(ir_const(ctx, dtype, 0), 1, one), 1, &channels);
  for (int i = chain->n - 1; i >= 0; i--) {
    const struct step *step = &chain->steps[i];
    quern_tensor *c = reshape(step->vector, 1, &channels);
    if (step->turned) {
      *factor = IR_MAKE(ctx, IR_NEG, NULL, *factor);
      *shift = IR_MAKE(ctx, IR_SUB, NULL, c, *shift);
    } else {
      if (step->op == IR_MUL) *factor = IR_MAKE(ctx, IR_MUL, NULL, *factor, c);
      *shift = IR_MAKE(ctx, step->op, NULL, *shift, c);
    }
  }
}

/* The contraction with its second operand scaled by one factor per channel. */
static quern_status scaled_dot(quern_context *ctx, const struct ir_node *dot, quern_tensor *factor,
                               quern_tensor **out) {
  const struct ir_attrs *attrs = dot->attrs;
  quern_tensor *w = dot->src[1], *weights;
  int64_t vector[QUERN_MAX_RANK], dims[QUERN_MAX_RANK], order[QUERN_MAX_RANK], place[QUERN_MAX_RANK];
  int n = 0;
  for (int k = 0; k < w->rank; k++) dims[k] = 1;
  for (int i = 0; i < attrs->b_batch.n; i++) place[n++] = attrs->b_batch.at[i];
  for (int k = 0; k < w->rank; k++) {
    bool taken = false;
    for (int i = 0; i < attrs->b_batch.n; i++) taken = taken || attrs->b_batch.at[i] == k;
    for (int i = 0; i < attrs->b_sum.n; i++) taken = taken || attrs->b_sum.at[i] == k;
    if (!taken) place[n++] = k;
  }
  for (int i = 0; i < n; i++) { /* the axes of the channels in the order they have in w */
    vector[i] = w->dims[place[i]];
    dims[place[i]] = vector[i];
    int before = 0;
    for (int k = 0; k < n; k++) before += place[k] < place[i] ? 1 : 0;
    order[before] = i;
  }
  quern_tensor *f = IR_MAKE(ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {n, order}}), reshape(factor, n, vector));
  f = stretch(reshape(f, w->rank, dims), w->rank, w->dims);
  QUERN_TRY(computed(ctx, IR_MAKE(ctx, IR_MUL, NULL, w, f), &weights));
  *out = IR_MAKE(ctx, IR_DOT, attrs, dot->src[0], weights);
  return ir_is_poison(*out) ? ir_poison_error(ctx) : QUERN_STATUS_OK;
}

/* y built again from the scaled contraction: reshapes and permutes as they were, then the shift. */
static quern_tensor *rebuilt(const struct chain *chain, quern_tensor *y, quern_tensor *dot) {
  struct ir_node *path[32];
  int n = 0;
  for (const quern_tensor *t = y; t != chain->dot && n < 32;) {
    struct ir_node *node = t->node;
    bool moves = node->op == IR_RESHAPE || node->op == IR_PERMUTE;
    if (moves) path[n++] = node;
    t = node->src[!moves && node->src[0]->node->op == IR_BROADCAST && node->src[1]->node->op != IR_BROADCAST ? 1 : 0];
  }
  while (n-- > 0 && !ir_is_poison(dot)) dot = IR_MAKE(dot->node->ctx, path[n]->op, path[n]->attrs, dot);
  return dot;
}

/* The replacement of y when it ends a chain, else NULL. */
static quern_status fold_chain(const struct job *job, quern_tensor *y, quern_tensor **out) {
  quern_context *ctx = job->ctx;
  struct chain chain = {0};
  const struct pass_index *at[QUERN_MAX_RANK] = {NULL}, *flats[MOST_STEPS] = {NULL}, *outer[QUERN_MAX_RANK] = {NULL};
  *out = NULL;
  QUERN_TRY(pass_space_new(&chain.space, &ctx->heap));
  for (int k = 0; k < y->rank; k++)
    outer[k] = at[k] = pass_index_var(chain.space, pass_space_add(chain.space, y->dims[k]));
  bool found = follow(job, &chain, y, at, flats) && is_single(job, chain.dot);
  int64_t channels = 0;
  int which = -1; /* the axis of y that is the channel */
  if (found) {
    const struct ir_node *dot = chain.dot->node;
    const struct pass_index *channel = channel_of(chain.space, dot, at, &channels);
    found = dot->attrs->reduce == IR_SUM && dot->attrs->combine == IR_COMBINE_MUL && channels > 1 &&
            base_dtype_is(y->dtype, BASE_FLOAT);
    bool scales = false;
    for (int i = 0; i < chain.n; i++) scales = scales || chain.steps[i].op == IR_MUL;
    found = found && scales;
    for (int i = 0; i < chain.n; i++)
      found = found && flats[i] == channel && ir_count(chain.steps[i].vector) == channels;
    for (int k = 0; k < y->rank; k++) which = outer[k] == channel ? k : which;
    found = found && which >= 0;
  }
  bool failed = chain.space->failed;
  pass_space_free(chain.space);
  if (failed) return QUERN_STATUS_MEMORY;
  for (int i = -1; i < chain.n && found; i++) {
    QUERN_TRY(is_constant(ctx, i < 0 ? chain.dot->node->src[1] : chain.steps[i].vector, &found));
  }
  if (!found) return QUERN_STATUS_OK;
  quern_tensor *factor, *shift, *dot;
  combine(ctx, &chain, channels, &factor, &shift);
  QUERN_TRY(computed(ctx, shift, &shift));
  QUERN_TRY(scaled_dot(ctx, chain.dot->node, factor, &dot));
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < y->rank; k++) dims[k] = k == which ? channels : 1;
  quern_tensor *moved = rebuilt(&chain, y, dot);
  if (ir_is_poison(moved)) return ir_poison_error(ctx);
  *out = IR_MAKE(ctx, IR_ADD, NULL, moved, stretch(reshape(shift, y->rank, dims), y->rank, y->dims));
  return ir_is_poison(*out) ? ir_poison_error(ctx) : QUERN_STATUS_OK;
}

/* Replaces the last chain of the graph that folds, below that id; *found turns false when there is none. The last step
** of a chain is met first. */
static quern_status fold_one(struct pass_graph *graph, uint32_t *below, bool *found) {
  struct job job = {.ctx = graph->ctx};
  *found = false;
  QUERN_TRY(ir_topo(graph->ctx, graph->n_roots, graph->roots, &job.order));
  quern_status status = pass_count_users(graph, &job.order, &job.users);
  for (size_t i = job.order.n; i-- > 0 && status == QUERN_STATUS_OK && !*found;) {
    struct ir_node *node = job.order.at[i];
    bool step = node->op == IR_ADD || node->op == IR_SUB || node->op == IR_MUL;
    if (!step || node->id >= *below) continue;
    *below = node->id;
    quern_tensor *y = &node->out[0], *to;
    status = fold_chain(&job, y, &to);
    if (status != QUERN_STATUS_OK || to == NULL) continue;
    *found = true;
    status = ir_substitute(graph->ctx, graph->n_roots, graph->roots, 1, &y, &to, graph->roots);
  }
  base_free(&graph->ctx->heap, job.users, job.order.n * sizeof *job.users);
  ir_order_fini(graph->ctx, &job.order);
  return status;
}

static bool has_contraction(const struct ir_order *order) {
  for (size_t i = 0; i < order->n; i++) {
    if (order->at[i]->op == IR_DOT) return true;
  }
  return false;
}

quern_status pass_batchnorm(struct pass_graph *graph, const struct pass_options *options) {
  if (!options->inference) return QUERN_STATUS_OK;
  struct ir_order order;
  QUERN_TRY(ir_topo(graph->ctx, graph->n_roots, graph->roots, &order));
  bool found = has_contraction(&order);
  ir_order_fini(graph->ctx, &order);
  uint32_t below = UINT32_MAX;
  while (found) QUERN_TRY(fold_one(graph, &below, &found));
  return QUERN_STATUS_OK;
}
