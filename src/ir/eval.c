/* ir/eval.c -- the reference evaluator: what every op means, slow and plain
** in:    roots, values of the leaves          out: the elements of the roots
** keeps: nodes are evaluated in order of their ids, each once; a value is freed after its last use;
**        nothing is kept in nodes, which subgraphs share; recursion only into subgraphs
** see:   ops.def for the equations, eval.h for rules; tests: tests/ir/test_eval_*.c
*/
#include "ir/eval.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static eval_rule *const rules[IR_OP_COUNT] = {
#define OP(NAME, ...) [IR_##NAME] = eval_##NAME,
#include "ir/ops.def"
#undef OP
};

/* Leaves whose elements are used where they lie. */
static const bool lends[IR_OP_COUNT] = {
    [IR_INPUT] = true, [IR_STATE] = true, [IR_BUFFER] = true, [IR_CONST] = true, [IR_PARAM] = true};

/* ---- elements --------------------------------------------------------------------------------------- */

union eval_scalar eval_load(quern_dtype dtype, const void *data, int64_t i) {
  if (base_dtype_is(dtype, BASE_FLOAT)) return (union eval_scalar){.f = base_load_float(dtype, data, (size_t)i)};
  return (union eval_scalar){.i = base_load_int(dtype, data, (size_t)i)};
}

void eval_store(quern_dtype dtype, void *data, int64_t i, union eval_scalar x) {
  if (base_dtype_is(dtype, BASE_FLOAT))
    base_store_float(dtype, data, (size_t)i, x.f);
  else
    base_store_int(dtype, data, (size_t)i, x.i);
}

void eval_copy(quern_dtype dtype, void *dst, int64_t to, const void *src, int64_t from) {
  size_t size = base_dtypes[dtype].size;
  memcpy((char *)dst + (size_t)to * size, (const char *)src + (size_t)from * size, size);
}

void eval_copy_bytes(void *dst, const void *src, size_t bytes) {
  if (bytes > 0) memcpy(dst, src, bytes);
}

/* ---- leaves ----------------------------------------------------------------------------------------- */

/* The bound elements of a leaf, or NULL. */
static const void *bound(const struct eval_call *call) {
  for (size_t i = 0; i < call->run->n_bindings; i++) {
    if (call->run->bindings[i].leaf == call->node->out) return call->run->bindings[i].data;
  }
  return NULL;
}

quern_status ir_unbound(const struct ir_node *node) {
  char type[IR_TYPE_TEXT];
  const char *op = ir_ops[node->op].name, *name = node->attrs->name;
  QUERN_CHECK(name == NULL, UNBOUND, "eval: the %s \"%s\", %s, has no value", op, name, ir_type_text(type, node->out));
  return base_error(QUERN_STATUS_UNBOUND, "eval: a %s, %s, has no value", op, ir_type_text(type, node->out));
}

/* Lends data; NULL will do when there are no elements. */
static quern_status lend(struct eval_call *call, const void *data) {
  static const char nothing[1];
  call->lent = data == NULL && ir_count(call->node->out) == 0 ? nothing : data;
  return call->lent != NULL ? QUERN_STATUS_OK : ir_unbound(call->node);
}

quern_status eval_INPUT(struct eval_call *call) { return lend(call, bound(call)); }
quern_status eval_STATE(struct eval_call *call) { return lend(call, bound(call)); }

quern_status eval_BUFFER(struct eval_call *call) {
  const void *data = bound(call);
  return lend(call, data != NULL ? data : call->node->attrs->buffer->data);
}

quern_status eval_CONST(struct eval_call *call) { return lend(call, call->node->attrs->data.at); }
quern_status eval_PARAM(struct eval_call *call) { return lend(call, call->params[call->node->attrs->index]); }

quern_status eval_IOTA(struct eval_call *call) {
  const quern_tensor *y = call->node->out;
  int64_t index[QUERN_MAX_RANK] = {0}, count = ir_count(y);
  for (int64_t i = 0; i < count; i++, eval_step(y, index)) {
    base_convert(y->dtype, call->dst[0], (size_t)i, QUERN_DTYPE_I64, &index[call->node->attrs->axis], 0);
  }
  return QUERN_STATUS_OK;
}

quern_status eval_RANDOM(struct eval_call *call) {
  uint64_t seed = base_load_int(QUERN_DTYPE_U64, call->src[0], 0);
  uint64_t step = base_load_int(QUERN_DTYPE_U64, call->src[1], 0);
  uint64_t count = (uint64_t)ir_count(call->node->out);
  for (uint64_t i = 0; i < count; i++) {
    uint32_t bits = base_random_bits(seed, step, (uint32_t)call->node->attrs->stream, i);
    base_store_int(QUERN_DTYPE_U32, call->dst[0], i, bits);
  }
  return QUERN_STATUS_OK;
}

/* ---- plans: what evaluating a graph needs to know, found out once ----------------------------------- */

/* A slot is the place of a result in a frame. */
struct eval_plan {
  const struct ir_graph *graph; /* NULL: of the roots */
  struct eval_plan *next;
  struct ir_order order;
  size_t n_roots;
  quern_tensor *const *roots;
  size_t *root_slots;
  size_t *first;     /* the slot of result 0 of each node */
  size_t *src_slots; /* of each source, node after node */
  size_t *uses;      /* of each slot: how often it is a source or a root */
  size_t n_slots;
  size_t most_src, most_out; /* that one node has */
};

/* Room for n numbers, zero, or NULL with the error recorded. */
static size_t *numbers(struct eval_run *run, size_t n) { return base_arena_alloc(&run->arena, n * sizeof(size_t)); }

/* The slot of a tensor that the plan's order holds, with one use more. */
static size_t use(struct eval_plan *plan, const quern_tensor *t) {
  size_t slot = plan->first[ir_order_find(&plan->order, t->node)] + (size_t)t->result;
  plan->uses[slot]++;
  return slot;
}

static quern_status build_plan(struct eval_run *run, struct eval_plan *plan) {
  QUERN_TRY(ir_topo(run->ctx, plan->n_roots, plan->roots, &plan->order));
  size_t n = plan->order.n, n_src = 0;
  plan->first = numbers(run, n);
  if (plan->first == NULL) return quern_last_status();
  for (size_t k = 0; k < n; k++) {
    const struct ir_node *node = plan->order.at[k];
    plan->first[k] = plan->n_slots;
    plan->n_slots += (size_t)node->n_out;
    n_src += (size_t)node->n_src;
    plan->most_src = BASE_MAX(plan->most_src, (size_t)node->n_src);
    plan->most_out = BASE_MAX(plan->most_out, (size_t)node->n_out);
  }
  plan->uses = numbers(run, plan->n_slots);
  plan->src_slots = numbers(run, n_src);
  plan->root_slots = numbers(run, plan->n_roots);
  if (plan->uses == NULL || plan->src_slots == NULL || plan->root_slots == NULL) return quern_last_status();
  size_t at = 0;
  for (size_t k = 0; k < n; k++) {
    const struct ir_node *node = plan->order.at[k];
    for (int i = 0; i < node->n_src; i++) plan->src_slots[at++] = use(plan, node->src[i]);
  }
  for (size_t i = 0; i < plan->n_roots; i++) plan->root_slots[i] = use(plan, plan->roots[i]);
  return QUERN_STATUS_OK;
}

/* Adds a plan to the run, so that its order is freed whatever happens. */
static quern_status add_plan(struct eval_run *run, const struct ir_graph *graph, size_t n, quern_tensor *const *roots,
                             const struct eval_plan **out) {
  struct eval_plan *plan = base_arena_new(&run->arena, struct eval_plan);
  if (plan == NULL) return quern_last_status();
  *plan = (struct eval_plan){.graph = graph, .next = run->plans, .n_roots = n, .roots = roots};
  run->plans = plan;
  *out = plan;
  return build_plan(run, plan);
}

/* ---- frames: the values while a graph is evaluated -------------------------------------------------- */

struct slot {
  const void *data;
  void *owned; /* data when it is ours to free, else NULL */
  size_t bytes;
  size_t left; /* uses to come */
};

static void release(struct eval_run *run, struct slot *slot) {
  base_free(&run->ctx->heap, slot->owned, slot->bytes);
  slot->owned = NULL;
}

/* Ops whose results are rounded; those that reduce, where it is a sum or a product. */
static const bool rounds[IR_OP_COUNT] = {
    [IR_EXP] = true,    [IR_EXPM1] = true, [IR_LOG] = true, [IR_LOG1P] = true, [IR_SQRT] = true,   [IR_SIN] = true,
    [IR_COS] = true,    [IR_TANH] = true,  [IR_ERF] = true, [IR_ERFC] = true,  [IR_ADD] = true,    [IR_SUB] = true,
    [IR_MUL] = true,    [IR_DIV] = true,   [IR_POW] = true, [IR_ATAN2] = true, [IR_COL2IM] = true, [IR_SCATTER] = true,
    [IR_REDUCE] = true, [IR_SCAN] = true,  [IR_DOT] = true};

static bool is_rounded(const struct ir_node *node) {
  bool reduces = (ir_ops[node->op].attrs & (UINT64_C(1) << IR_ATTR_reduce)) != 0;
  return rounds[node->op] && (!reduces || node->attrs->reduce == IR_SUM || node->attrs->reduce == IR_PROD);
}

/* Moves the elements of t by a unit in their last place. */
static void perturb(const quern_tensor *t, void *data, uint64_t noise) {
  double unit = ldexp(1, -base_dtypes[t->dtype].mantissa);
  int64_t count = base_dtype_is(t->dtype, BASE_FLOAT) ? ir_count(t) : 0;
  for (int64_t i = 0; i < count; i++) {
    double x = base_load_float(t->dtype, data, (size_t)i);
    bool up = base_hash_u64(noise, (uint64_t)i) % 2 == 0;
    base_store_float(t->dtype, data, (size_t)i, x * (up ? 1 + unit : 1 - unit));
  }
}

/* Evaluates call's node into out, the slots of its results; dst is call's. */
static quern_status eval_node(struct eval_call *call, struct slot *out, void **dst) {
  const struct ir_node *node = call->node;
  for (int i = 0; i < node->n_out && !lends[node->op]; i++) {
    out[i].bytes = ir_bytes(&node->out[i]);
    out[i].owned = dst[i] = base_alloc(&call->run->ctx->heap, out[i].bytes);
    if (dst[i] == NULL) return quern_last_status();
    out[i].data = dst[i];
  }
  double start = call->run->debug >= 2 ? base_clock() : 0;
  QUERN_TRY(rules[node->op](call));
  for (int i = 0; i < node->n_out && call->run->noise != 0 && is_rounded(node); i++)
    perturb(&node->out[i], dst[i], base_hash_u64(base_hash_u64(call->run->noise, node->id), (uint64_t)i));
  if (lends[node->op]) {
    out[0].data = call->lent;
  } else if (call->run->debug >= 2) {
    base_log(2, "eval: node %u %s, %s, %.3f ms", node->id,
             node->op == IR_COMPOSITE ? node->attrs->name : ir_ops[node->op].name,
             ir_type_text((char[IR_TYPE_TEXT]){0}, node->out), 1e3 * (base_clock() - start));
  }
  return QUERN_STATUS_OK;
}

static quern_status eval_nodes(struct eval_run *run, const struct eval_plan *plan, const void *const *params,
                               struct slot *slots, const void **src, void **dst) {
  const size_t *from = plan->src_slots;
  for (size_t k = 0; k < plan->order.n; k++) {
    const struct ir_node *node = plan->order.at[k];
    struct slot *out = slots + plan->first[k];
    for (int i = 0; i < node->n_src; i++) src[i] = slots[from[i]].data;
    struct eval_call call = {.run = run, .node = node, .params = params, .src = src, .dst = dst};
    QUERN_TRY(eval_node(&call, out, dst));
    for (int i = 0; i < node->n_src; i++) {
      if (--slots[from[i]].left == 0) release(run, &slots[from[i]]);
    }
    for (int i = 0; i < node->n_out; i++) {
      if (out[i].left == 0) release(run, &out[i]);
    }
    from += node->n_src;
  }
  return QUERN_STATUS_OK;
}

static quern_status eval_plan(struct eval_run *run, const struct eval_plan *plan, const void *const *params,
                              void *const *dst) {
  size_t bytes = plan->n_slots * sizeof(struct slot) + (plan->most_src + plan->most_out) * sizeof(void *);
  struct slot *slots = base_alloc(&run->ctx->heap, bytes);
  if (slots == NULL) return quern_last_status();
  const void **node_src = (const void **)(slots + plan->n_slots);
  void **node_dst = (void **)(node_src + plan->most_src);
  for (size_t i = 0; i < plan->n_slots; i++) slots[i] = (struct slot){.left = plan->uses[i]};

  quern_status status = eval_nodes(run, plan, params, slots, node_src, node_dst);
  for (size_t i = 0; i < plan->n_roots && status == QUERN_STATUS_OK; i++) {
    eval_copy_bytes(dst[i], slots[plan->root_slots[i]].data, ir_bytes(plan->roots[i]));
  }
  for (size_t i = 0; i < plan->n_slots; i++) release(run, &slots[i]);
  base_free(&run->ctx->heap, slots, bytes);
  return status;
}

quern_status eval_graph(struct eval_run *run, const struct ir_graph *graph, const void *const *args, void *const *dst) {
  const struct eval_plan *plan = run->plans;
  while (plan != NULL && plan->graph != graph) plan = plan->next;
  if (plan == NULL) QUERN_TRY(add_plan(run, graph, (size_t)graph->n_results, graph->results, &plan));
  return eval_plan(run, plan, args, dst);
}

/* ---- the door --------------------------------------------------------------------------------------- */

static quern_status check_tensor(const quern_context *ctx, const char *what, size_t i, const quern_tensor *t) {
  QUERN_CHECK(t != NULL, INVALID, "eval: %s %zu is null", what, i);
  QUERN_CHECK(!ir_is_poison(t), INVALID, "eval: %s %zu is the result of a call that failed", what, i);
  QUERN_CHECK(t->node->ctx == ctx, INVALID, "eval: %s %zu belongs to another context", what, i);
  return QUERN_STATUS_OK;
}

static quern_status check_arguments(quern_context *ctx, size_t n, quern_tensor *const *roots, void *const *dst,
                                    size_t n_bindings, const struct ir_binding *bindings) {
  QUERN_TRY(quern_context_check(ctx));
  QUERN_CHECK(n == 0 || (roots != NULL && dst != NULL), INVALID, "eval: the list of %s is null",
              roots == NULL ? "roots" : "places for results");
  QUERN_CHECK(n_bindings == 0 || bindings != NULL, INVALID, "eval: the list of %zu bindings is null", n_bindings);
  for (size_t i = 0; i < n; i++) {
    char type[IR_TYPE_TEXT];
    QUERN_TRY(check_tensor(ctx, "root", i, roots[i]));
    QUERN_CHECK(dst[i] != NULL || ir_count(roots[i]) == 0, INVALID, "eval: the place for root %zu, %s, is null", i,
                ir_type_text(type, roots[i]));
  }
  for (size_t i = 0; i < n_bindings; i++) {
    const quern_tensor *leaf = bindings[i].leaf;
    QUERN_TRY(check_tensor(ctx, "bound leaf", i, leaf));
    QUERN_CHECK(leaf->node->op == IR_INPUT || leaf->node->op == IR_STATE || leaf->node->op == IR_BUFFER, INVALID,
                "eval: binding %zu is to a %s; only an input, a state or a buffer can be bound", i,
                ir_ops[leaf->node->op].name);
  }
  return QUERN_STATUS_OK;
}

static quern_status evaluate(quern_context *ctx, size_t n, quern_tensor *const *roots, void *const *dst,
                             size_t n_bindings, const struct ir_binding *bindings, uint64_t noise) {
  struct eval_run run = {.ctx = ctx, .n_bindings = n_bindings, .bindings = bindings, .noise = noise};
  run.check = base_env_has(BASE_ENV_VERBOSE, "check");
  run.debug = base_env_int(BASE_ENV_DEBUG);
  double start = base_clock();
  base_arena_init(&run.arena, &ctx->heap);
  const struct eval_plan *plan = NULL;
  quern_status status = add_plan(&run, NULL, n, roots, &plan);
  QUERN_ASSERT(status != QUERN_STATUS_OK || plan != NULL);
  if (status == QUERN_STATUS_OK) status = eval_plan(&run, plan, NULL, dst);
  if (run.debug >= 1 && status == QUERN_STATUS_OK) {
    base_log(1, "eval: %zu results of %zu nodes, %.3f ms, at most %zu bytes held by the context", n, plan->order.n,
             1e3 * (base_clock() - start), (size_t)ctx->heap.peak);
  }
  for (struct eval_plan *made = run.plans; made != NULL; made = made->next) ir_order_fini(ctx, &made->order);
  base_arena_fini(&run.arena);
  return status;
}

static quern_status eval_roots(quern_context *ctx, size_t n, quern_tensor *const *roots, void *const *dst,
                               size_t n_bindings, const struct ir_binding *bindings, uint64_t noise) {
  QUERN_TRY(check_arguments(ctx, n, roots, dst, n_bindings, bindings));
  QUERN_TRY(ir_fetch(ctx, n, roots));
  struct base_floats floats = base_floats_enter();
  quern_status status = evaluate(ctx, n, roots, dst, n_bindings, bindings, noise);
  base_floats_leave(floats);
  return status;
}

quern_status ir_eval(quern_context *ctx, size_t n, quern_tensor *const *roots, void *const *dst, size_t n_bindings,
                     const struct ir_binding *bindings) {
  return eval_roots(ctx, n, roots, dst, n_bindings, bindings, 0);
}

quern_status ir_eval_perturbed(quern_context *ctx, size_t n, quern_tensor *const *roots, void *const *dst,
                               size_t n_bindings, const struct ir_binding *bindings, uint64_t noise) {
  return eval_roots(ctx, n, roots, dst, n_bindings, bindings, noise);
}
