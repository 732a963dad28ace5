/* optim/autocast.c -- mixed precision: an expression of f32 computed with 16-bit activations
** in:    expressions, before they are differentiated       out: the same with casts in them; parameters stay f32
** keeps: what is not f32 stays as it is; the results keep their dtypes; again is the same as once
** see:   policy.def, docs/optim.md; Micikevicius et al., "Mixed precision training" (2018)
** tests: tests/optim/test_autocast.c
*/
#include <string.h>

#include "optim/optim_int.h"
#include "tensor/kinds.h"

enum policy { LOW, LOW_F32, F32, F32_LOW, FOLLOW, LOOKUP, BODY, BUILT, POLICIES };
static const char *const policy_names[POLICIES] = {"low",    "low_f32", "f32",  "f32_low",
                                                   "follow", "lookup",  "body", "built"};

enum {
#define OPERATION(NAME, POLICY) POLICY_OF_##NAME = POLICY,
#define COMPOSITE(name, POLICY)
#include "optim/policy.def"
#undef OPERATION
#undef COMPOSITE
};

struct row {
  const char *name;
  enum policy policy;
};

#define OP(NAME, text, ...) {#text, (enum policy)POLICY_OF_##NAME},
#define OPERATION(NAME, POLICY)
#define COMPOSITE(name, POLICY) {#name, POLICY},
static const struct row defaults[] = {
/* operations by number, then composites */
#include "ir/ops.def"
#include "optim/policy.def"
};
#undef OP
#undef OPERATION
#undef COMPOSITE
enum { ROWS = BASE_COUNT(defaults) };

/* The values of one graph's nodes. */
struct frame {
  struct job *job;
  struct ir_order order;
  bool *plain;               /* by place: made of parameters, constants and random numbers alone */
  quern_tensor *const *args; /* of a subgraph: what its params become, and whether they are plain */
  const bool *args_plain;
};

struct job {
  quern_context *ctx;
  quern_dtype low;
  enum policy rows[ROWS];
};

/* ---- rows ----------------------------------------------------------------------------------------------- */

static size_t find_composite(const char *name) {
  size_t i = IR_OP_COUNT;
  while (i < ROWS && strcmp(defaults[i].name, name) != 0) i++;
  return i;
}

/* True when a result only picks elements: neither sums nor multiplies. */
static bool picks(const struct ir_node *node) {
  bool sums = node->attrs->reduce == IR_SUM || node->attrs->reduce == IR_PROD;
  if (node->op == IR_DOT) return node->attrs->reduce != IR_SUM || node->attrs->combine != IR_COMBINE_MUL;
  return (node->op == IR_REDUCE || node->op == IR_SCAN || node->op == IR_SCATTER) && !sums;
}

static enum policy policy_of(const struct job *job, const struct ir_node *node) {
  if (node->op != IR_COMPOSITE) return picks(node) ? FOLLOW : job->rows[node->op];
  size_t i = find_composite(node->attrs->name);
  if (i < ROWS) return job->rows[i];
  const size_t n = strlen(node->attrs->name);
  bool derived = n > 4 && strcmp(node->attrs->name + n - 4, ".vjp") == 0;
  return derived || ir_composite_find(job->ctx, node->attrs->name) != NULL ? BUILT : job->rows[IR_COMPOSITE];
}

/* True when an operation or composite can have that row. */
static bool row_fits(size_t i, enum policy policy) {
  enum policy usual = defaults[i].policy;
  if (usual == BODY) return policy == BODY || policy == BUILT;
  if (usual == BUILT) return policy == BUILT;
  return policy != BODY && (policy != LOOKUP || usual == LOOKUP);
}

/* "softmax=f32,tanh=f32" */
static quern_status read_rows(enum policy rows[ROWS], const char *text) {
  const char *names[ROWS];
  for (size_t i = 0; i < ROWS; i++) names[i] = defaults[i].name;
  for (const char *at = text; at != NULL && *at != 0;) {
    size_t n = strcspn(at, ","), split = strcspn(at, "=,");
    char name[64], policy[64];
    QUERN_CHECK(split < n && split < sizeof name && n - split - 1 < sizeof policy, PARSE,
                "autocast: rows are as in \"softmax=f32,tanh=low\"; '%.*s' is not", (int)BASE_MIN(n, (size_t)64), at);
    memcpy(name, at, split);
    name[split] = 0;
    memcpy(policy, at + split + 1, n - split - 1);
    policy[n - split - 1] = 0;
    size_t row = 0, to = 0;
    while (row < ROWS && strcmp(names[row], name) != 0) row++;
    while (to < POLICIES && strcmp(policy_names[to], policy) != 0) to++;
    if (row == ROWS) {
      const char *near = base_nearest(name, names, ROWS);
      return base_error(QUERN_STATUS_INVALID, "autocast: there is no operation or composite '%s'%s%s", name,
                        near != NULL ? " HINT: did you mean " : "", near != NULL ? near : "");
    }
    QUERN_CHECK(to < POLICIES, INVALID,
                "autocast: '%s' of %s is none of low, low_f32, f32, f32_low, follow, lookup, body, built", policy,
                name);
    QUERN_CHECK(row_fits(row, (enum policy)to), INVALID, "autocast: %s is %s and cannot be %s", name,
                policy_names[defaults[row].policy], policy);
    rows[row] = (enum policy)to;
    at += at[n] == ',' ? n + 1 : n;
  }
  return QUERN_STATUS_OK;
}

/* ---- one node ------------------------------------------------------------------------------------------- */

static bool is_plain(const struct frame *frame, const quern_tensor *t) {
  return frame->plain[ir_order_find(&frame->order, t->node)];
}

/* Whether a node's results are f32 without a reason. A bool is exact in any dtype. */
static bool plain_node(const struct frame *frame, const struct ir_node *node) {
  if (node->op == IR_INPUT) return false;
  if (node->op == IR_PARAM) return frame->args_plain != NULL && frame->args_plain[node->attrs->index];
  if (node->op == IR_CAST && node->src[0]->dtype == QUERN_DTYPE_BOOL) return true;
  for (int i = 0; i < node->n_src; i++)
    if (!is_plain(frame, node->src[i])) return false;
  return true;
}

/* The dtype that operands which were f32 have under FOLLOW. */
static quern_dtype followed(const struct frame *frame, const struct ir_node *node, quern_tensor *const *src) {
  bool low = false;
  for (int i = 0; i < node->n_src; i++) {
    if (node->src[i]->dtype != QUERN_DTYPE_F32) continue;
    if (src[i]->dtype != QUERN_DTYPE_F32)
      low = true;
    else if (!is_plain(frame, node->src[i]))
      return QUERN_DTYPE_F32;
  }
  return low ? frame->job->low : QUERN_DTYPE_F32;
}

static bool any_low(const struct ir_node *node, quern_tensor *const *src) {
  for (int i = 0; i < node->n_src; i++)
    if (node->src[i]->dtype == QUERN_DTYPE_F32 && src[i]->dtype != QUERN_DTYPE_F32) return true;
  return false;
}

/* The node on other sources, whose dtypes may differ from those it had. */
static quern_status remake(struct ir_node *node, quern_tensor *const *src, const struct ir_attrs *attrs,
                           quern_tensor **out) {
  quern_tensor *made;
  const struct ir_composite *kind = node->op == IR_COMPOSITE ? ir_composite_find(node->ctx, node->attrs->name) : NULL;
  if (node->op == IR_CAST)
    made = quern_cast(src[0], attrs->dtype);
  else if (kind != NULL && kind->body != NULL)
    made = ir_composite_make(node->ctx, kind, attrs->ints, attrs->reals, node->n_src, src);
  else
    made = ir_make(node->ctx, node->op, node->n_src, src, attrs);
  if (ir_is_poison(made)) return ir_poison_error(node->ctx);
  for (int i = 0; i < node->n_out; i++) out[i] = node->op == IR_CAST ? made : ir_result(made, i);
  return QUERN_STATUS_OK;
}

/* t of another dtype; what was that before it was widened is taken from there. */
static quern_tensor *cast(quern_tensor *t, quern_dtype dtype) {
  bool back = t->dtype == QUERN_DTYPE_F32 && t->node->op == IR_CAST && t->node->src[0]->dtype == dtype &&
              (dtype == QUERN_DTYPE_BF16 || dtype == QUERN_DTYPE_F16);
  return back ? t->node->src[0] : quern_cast(t, dtype);
}

/* Casts the sources that were f32 to dtype. */
static void cast_sources(const struct ir_node *node, quern_tensor *const *src, quern_dtype dtype, quern_tensor **to) {
  for (int i = 0; i < node->n_src; i++) to[i] = node->src[i]->dtype == QUERN_DTYPE_F32 ? cast(src[i], dtype) : src[i];
}

/* The node's attributes. Logits of a loss stay f32, what is kept for their gradient does not. */
static struct ir_attrs attrs_of(const struct ir_node *node, enum policy policy, quern_dtype low, int64_t ints[4]) {
  struct ir_attrs attrs = *node->attrs;
  bool logits = node->op == IR_COMPOSITE && strcmp(attrs.name, tensor_kind_linear_cross_entropy.name) == 0;
  if (policy != LOW_F32 || !logits || attrs.ints.n != 3 || node->src[0]->dtype != QUERN_DTYPE_F32) return attrs;
  for (int i = 0; i < 3; i++) ints[i] = attrs.ints.at[i];
  ints[3] = low == QUERN_DTYPE_BF16 ? TENSOR_NARROW_BF16 : TENSOR_NARROW_F16;
  attrs.ints = (struct ir_ints){4, ints};
  return attrs;
}

static quern_status rewrite(const struct frame *frame, struct ir_node *node, quern_tensor *const *src,
                            quern_tensor **to, quern_tensor **out) {
  const quern_dtype low = frame->job->low;
  enum policy policy = policy_of(frame->job, node);
  bool rounds = policy == F32_LOW && any_low(node, src);
  if (policy == LOOKUP) rounds = is_plain(frame, node->src[0]) && !is_plain(frame, node->src[1]);
  switch (policy) {
  case LOW: cast_sources(node, src, low, to); break;
  case LOW_F32:
    cast_sources(node, src, low, to);
    cast_sources(node, to, QUERN_DTYPE_F32, to);
    break;
  case F32:
  case F32_LOW:
  case BUILT: cast_sources(node, src, QUERN_DTYPE_F32, to); break;
  default: cast_sources(node, src, followed(frame, node, src), to); break;
  }
  if (node->op == IR_CAST) to[0] = src[0];
  int64_t ints[4];
  struct ir_attrs attrs = attrs_of(node, policy, low, ints);
  QUERN_TRY(remake(node, to, &attrs, out));
  if (rounds && node->out[0].dtype == QUERN_DTYPE_F32) out[0] = quern_cast(out[0], low);
  return ir_is_poison(out[0]) ? ir_poison_error(node->ctx) : QUERN_STATUS_OK;
}

/* ---- graphs, and those inside --------------------------------------------------------------------------- */

static ir_visit visit;

/* out[i] = roots[i] rewritten; args: of a subgraph, else NULL. */
static quern_status rewrite_graph(struct job *job, size_t n, quern_tensor *const *roots, quern_tensor *const *args,
                                  const bool *args_plain, quern_tensor **out) {
  struct frame frame = {.job = job, .args = args, .args_plain = args_plain};
  QUERN_TRY(ir_topo(job->ctx, n, roots, &frame.order));
  quern_status status = QUERN_STATUS_MEMORY;
  frame.plain = base_alloc(&job->ctx->heap, frame.order.n * sizeof *frame.plain);
  if (frame.plain == NULL) goto done;
  for (size_t i = 0; i < frame.order.n; i++) frame.plain[i] = plain_node(&frame, frame.order.at[i]);
  status = ir_transform(job->ctx, n, roots, visit, &frame, out);
done:
  base_free(&job->ctx->heap, frame.plain, frame.order.n * sizeof *frame.plain);
  ir_order_fini(job->ctx, &frame.order);
  return status;
}

/* True when all that reads param k of a body computes in the low dtype. */
static quern_status wants_low(const struct job *job, const struct ir_graph *body, int k, bool *wants) {
  struct ir_order order;
  QUERN_TRY(ir_topo(job->ctx, (size_t)body->n_results, body->results, &order));
  bool read = false, other = false;
  for (size_t i = 0; i < order.n; i++) {
    for (int s = 0; s < order.at[i]->n_src; s++) {
      if (order.at[i]->src[s] != body->params[k]) continue;
      read = true;
      other |= policy_of(job, order.at[i]) != LOW;
    }
  }
  for (int i = 0; i < body->n_results; i++) other |= body->results[i] == body->params[k];
  ir_order_fini(job->ctx, &order);
  *wants = read && !other;
  return QUERN_STATUS_OK;
}

/* The results of a subgraph on fresh leaves of the types of args. */
struct inside {
  int n_params, n_results;
  quern_tensor **params, **results;
  size_t bytes;
};

static quern_status rewrite_inside(struct job *job, const struct ir_graph *graph, const quern_dtype *dtypes,
                                   const bool *plain, struct inside *in) {
  struct base_heap *heap = &job->ctx->heap;
  *in = (struct inside){.n_params = graph->n_params, .n_results = graph->n_results};
  in->bytes = (size_t)(graph->n_params + graph->n_results) * sizeof *in->params;
  in->params = base_alloc_zero(heap, in->bytes);
  if (in->params == NULL) return QUERN_STATUS_MEMORY;
  in->results = in->params + graph->n_params;
  for (int i = 0; i < graph->n_params; i++) {
    in->params[i] = ir_leaf(job->ctx, dtypes[i], graph->params[i]->rank, graph->params[i]->dims);
    if (ir_is_poison(in->params[i])) return ir_poison_error(job->ctx);
  }
  return rewrite_graph(job, (size_t)graph->n_results, graph->results, in->params, plain, in->results);
}

static quern_status close_inside(struct job *job, const struct inside *in, const struct ir_graph **graph) {
  return ir_graph_make(job->ctx, in->n_params, in->params, in->n_results, in->results, graph);
}

/* What the bodies of a node are given: params[k] is source k - first (LOOP: param 0 is the index). */
struct control {
  int first_param, first_src; /* where params that are sources begin, and the sources that they are */
  quern_dtype *dtypes;        /* by param */
  bool *plain;
};

/* dtypes and plainness of params; a loop's carries stay f32, and parameters that only low operations read are cast outside. */
static quern_status choose_params(const struct frame *frame, const struct ir_node *node, quern_tensor *const *src,
                                  struct control *c, quern_tensor **to) {
  const struct ir_graph *body = node->attrs->body;
  for (int p = 0; p < c->first_param; p++) {
    c->dtypes[p] = body->params[p]->dtype;
    c->plain[p] = false;
  }
  for (int i = 0; i < c->first_src; i++) to[i] = src[i];
  for (int i = c->first_src; i < node->n_src; i++) {
    int p = i - c->first_src + c->first_param;
    bool carry = node->op == IR_LOOP && i < node->attrs->carries, wants = false;
    quern_dtype was = node->src[i]->dtype, now = src[i]->dtype;
    c->plain[p] = !carry && is_plain(frame, node->src[i]);
    if (was == QUERN_DTYPE_F32 && carry) now = was;
    if (was == QUERN_DTYPE_F32 && !carry && now == was) {
      QUERN_TRY(wants_low(frame->job, body, p, &wants));
      if (wants && node->attrs->other != NULL) QUERN_TRY(wants_low(frame->job, node->attrs->other, p, &wants));
      if (wants) now = frame->job->low;
    }
    c->dtypes[p] = now;
    to[i] = quern_cast(src[i], now);
  }
  return QUERN_STATUS_OK;
}

/* A loop's carries are what they were; what it stacks is low when anything that it is given is. */
static void cast_loop(const struct frame *frame, const struct ir_node *node, quern_tensor *const *to,
                      struct inside *in) {
  bool low = any_low(node, to);
  for (int i = 0; i < in->n_results; i++) {
    if (node->attrs->body->results[i]->dtype != QUERN_DTYPE_F32) continue;
    bool rounds = i >= node->attrs->carries && low;
    in->results[i] = quern_cast(in->results[i], rounds ? frame->job->low : QUERN_DTYPE_F32);
  }
}

/* Both branches give one dtype: low when both are. */
static void cast_branches(struct inside *a, struct inside *b) {
  for (int i = 0; i < a->n_results; i++) {
    if (a->results[i]->dtype == b->results[i]->dtype) continue;
    a->results[i] = quern_cast(a->results[i], QUERN_DTYPE_F32);
    b->results[i] = quern_cast(b->results[i], QUERN_DTYPE_F32);
  }
}

static quern_status rewrite_bodies(const struct frame *frame, struct ir_node *node, quern_tensor *const *src,
                                   struct control *c, quern_tensor **to, quern_tensor **out) {
  struct job *job = frame->job;
  struct ir_attrs attrs = *node->attrs;
  struct inside body = {0}, other = {0};
  QUERN_TRY(choose_params(frame, node, src, c, to));
  quern_status status = rewrite_inside(job, attrs.body, c->dtypes, c->plain, &body);
  if (status == QUERN_STATUS_OK && attrs.other != NULL)
    status = rewrite_inside(job, attrs.other, c->dtypes, c->plain, &other);
  if (status == QUERN_STATUS_OK && node->op == IR_LOOP) cast_loop(frame, node, to, &body);
  if (status == QUERN_STATUS_OK && attrs.other != NULL) cast_branches(&body, &other);
  if (status == QUERN_STATUS_OK) status = close_inside(job, &body, &attrs.body);
  if (status == QUERN_STATUS_OK && attrs.other != NULL) status = close_inside(job, &other, &attrs.other);
  if (status == QUERN_STATUS_OK) status = remake(node, to, &attrs, out);
  base_free(&job->ctx->heap, body.params, body.bytes);
  base_free(&job->ctx->heap, other.params, other.bytes);
  return status;
}

static quern_status rewrite_control(const struct frame *frame, struct ir_node *node, quern_tensor *const *src,
                                    quern_tensor **to, quern_tensor **out) {
  struct base_heap *heap = &frame->job->ctx->heap;
  struct control c = {.first_param = node->op == IR_LOOP ? 1 : 0, .first_src = node->op == IR_IF ? 1 : 0};
  size_t n = (size_t)node->attrs->body->n_params;
  c.dtypes = base_alloc(heap, n * sizeof *c.dtypes);
  c.plain = base_alloc(heap, n * sizeof *c.plain);
  quern_status status = QUERN_STATUS_MEMORY;
  if (c.dtypes != NULL && c.plain != NULL) status = rewrite_bodies(frame, node, src, &c, to, out);
  base_free(heap, c.plain, n * sizeof *c.plain);
  base_free(heap, c.dtypes, n * sizeof *c.dtypes);
  return status;
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  const struct frame *frame = user;
  if (node->op == IR_PARAM && frame->args != NULL) {
    out[0] = frame->args[node->attrs->index];
    return QUERN_STATUS_OK;
  }
  if (node->n_src == 0) return ir_rebuild(node, src, out);
  struct base_heap *heap = &frame->job->ctx->heap;
  size_t bytes = (size_t)node->n_src * sizeof(quern_tensor *);
  quern_tensor **to = base_alloc(heap, bytes);
  if (to == NULL) return QUERN_STATUS_MEMORY;
  bool inside = policy_of(frame->job, node) == BODY;
  quern_status status = inside ? rewrite_control(frame, node, src, to, out) : rewrite(frame, node, src, to, out);
  base_free(heap, to, bytes);
  return status == QUERN_STATUS_OK ? ir_growth_check(frame->job->ctx, "autocast") : status;
}

/* ---- the public door ------------------------------------------------------------------------------------ */

static quern_status read_options(struct job *job, const quern_autocast_options *options) {
  quern_autocast_options o;
  QUERN_TRY(base_take(quern_autocast_options, &o, options, "autocast"));
  if (o.low == 0) o.low = QUERN_DTYPE_BF16;
  QUERN_CHECK(o.low == QUERN_DTYPE_BF16 || o.low == QUERN_DTYPE_F16, DTYPE,
              "autocast: the low dtype is %s; must be bf16 or f16", quern_dtype_name(o.low));
  job->low = o.low;
  for (size_t i = 0; i < ROWS; i++) job->rows[i] = defaults[i].policy;
  return read_rows(job->rows, o.rows);
}

/* Tensors, then the values of the model's changes; out has room for as many. */
static quern_status cast_all(struct job *job, quern_model *model, size_t n, quern_tensor *const *x, size_t changes,
                             quern_tensor **in, quern_tensor **out) {
  for (size_t i = 0; i < n; i++) in[i] = x[i];
  for (size_t i = 0; i < changes; i++) in[n + i] = quern_model_change(model, i).value;
  bool outermost;
  QUERN_TRY(ir_growth_begin(job->ctx, n + changes, in, &outermost));
  quern_status status = rewrite_graph(job, n + changes, in, NULL, NULL, out);
  ir_growth_end(job->ctx, outermost);
  QUERN_TRY(status);
  for (size_t i = 0; i < n + changes; i++) out[i] = quern_cast(out[i], in[i]->dtype);
  QUERN_TRY(quern_context_check(job->ctx));
  for (size_t i = 0; i < changes; i++)
    quern_scope_change(quern_model_scope(model), quern_model_change(model, i).state, out[n + i]);
  return quern_context_check(job->ctx);
}

quern_status quern_autocast(quern_model *model, size_t n, quern_tensor *const *x, quern_tensor **y,
                            const quern_autocast_options *options) {
  QUERN_CHECK(model != NULL, INVALID, "autocast: the model is null");
  QUERN_CHECK(n == 0 || (x != NULL && y != NULL), INVALID, "autocast: the list of %zu tensors is null", n);
  struct job job = {.ctx = quern_model_context(model)};
  QUERN_TRY(quern_context_check(job.ctx));
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(!ir_is_poison(x[i]), INVALID, "autocast: tensor %zu is the result of a call that failed", i);
    QUERN_CHECK(x[i]->node->ctx == job.ctx, INVALID, "autocast: tensor %zu belongs to another context", i);
    QUERN_TRY(optim_check_order("autocast", model, x[i]));
  }
  QUERN_TRY(read_options(&job, options));
  struct base_heap *heap = &job.ctx->heap;
  size_t changes = quern_model_change_count(model), bytes = 2 * (n + changes) * sizeof(quern_tensor *);
  quern_tensor **all = base_alloc(heap, bytes);
  if (all == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = cast_all(&job, model, n, x, changes, all, all + n + changes);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) y[i] = all[n + changes + i];
  base_free(heap, all, bytes);
  return status;
}

quern_status quern_autocast_print(quern_context *ctx, const quern_autocast_options *options, char **text) {
  QUERN_CHECK(text != NULL, INVALID, "autocast_print: the place for the text is null");
  *text = NULL;
  QUERN_CHECK(ctx != NULL, INVALID, "autocast_print: the context is null");
  struct job job = {.ctx = ctx};
  QUERN_TRY(read_options(&job, options));
  struct base_str str;
  base_str_init(&str, &ctx->heap);
  for (int policy = 0; policy < POLICIES; policy++) {
    for (size_t i = 0; i < ROWS; i++)
      if (job.rows[i] == (enum policy)policy)
        base_str_printf(&str, "%-8s %-9s %s%s\n", policy_names[policy], i < IR_OP_COUNT ? "operation" : "composite",
                        defaults[i].name, job.rows[i] != defaults[i].policy ? " (changed)" : "");
  }
  return base_str_give(QUERN_STATUS_OK, &str, text);
}
