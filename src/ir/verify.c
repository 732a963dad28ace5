/* ir/verify.c -- checks that a graph is what the rest of Quern may rely on
** in:    roots      out: OK, or INTERNAL with the first node that is wrong
** tests: tests/ir/test_verify.c plants each kind of defect
*/
#include "ir/ir.h"

/* A broken node: which, and what about it. */
static quern_status broken(const struct ir_node *node, const char *what) {
  return base_error(QUERN_STATUS_INTERNAL, "verify: node %u (%s): %s", node->id,
                    node->op < IR_OP_COUNT ? ir_ops[node->op].name : "?", what);
}

/* True when t is one of its node's results, not a copy of it. */
static bool is_result(const quern_tensor *t) {
  return t->result >= 0 && t->result < t->node->n_out && t == &t->node->out[t->result];
}

static quern_status verify_types(quern_context *ctx, const struct ir_node *node) {
  int n_out;
  struct ir_type *types;
  quern_status status = ir_infer(ctx, node->op, node->n_src, node->src, node->attrs, &n_out, &types);
  if (status == QUERN_STATUS_MEMORY) return status;
  if (status != QUERN_STATUS_OK) return broken(node, quern_last_error());
  if (n_out != node->n_out || (ir_ops[node->op].n_out >= 0 && n_out != ir_ops[node->op].n_out)) {
    return broken(node, "wrong number of results");
  }
  for (int i = 0; i < n_out; i++) {
    const quern_tensor *out = &node->out[i];
    bool same = out->node == node && out->result == i && out->dtype == types[i].dtype && out->rank == types[i].rank;
    for (int k = 0; same && k < out->rank; k++) same = out->dims[k] == types[i].dims[k];
    if (!same) return broken(node, "a result is not of the inferred type");
  }
  return QUERN_STATUS_OK;
}

/* Sources are not poison: the walk would have failed. */
static quern_status verify_node(quern_context *ctx, const struct ir_node *node, bool closed) {
  if (node->op >= IR_OP_COUNT) return broken(node, "no such op");
  if (node->ctx != ctx) return broken(node, "belongs to another context");
  if (node->id >= ctx->n_nodes) return broken(node, "its id was never given");
  if (node->attrs == NULL) return broken(node, "has no attributes");
  const struct ir_op_info *info = &ir_ops[node->op];
  if (info->n_src >= 0 && node->n_src != info->n_src) return broken(node, "wrong number of sources");
  for (int i = 0; i < node->n_src; i++) {
    if (node->src[i]->node->id >= node->id) return broken(node, "a source is not older than its user");
    if (!is_result(node->src[i])) return broken(node, "a source is no result of its node");
  }
  if (closed && (node->op == IR_INPUT || node->op == IR_STATE || node->op == IR_BUFFER)) {
    return broken(node, "stands in a closed subgraph");
  }
  if (!closed && node->op == IR_PARAM) return broken(node, "stands outside a subgraph");
  if ((info->flags & IR_COMM) != 0) {
    const quern_tensor *a = node->src[0], *b = node->src[1];
    bool in_order = a->node == b->node ? a->result <= b->result : a->node->id < b->node->id;
    if (!in_order) return broken(node, "commutative sources are not in order");
  }
  if (!ir_node_is_interned(node)) return broken(node, "is not the interned one");
  return verify_types(ctx, node);
}

static bool is_item(const void *item, const void *key) { return item == key; }

/* Graphs found so far; each is verified once. */
struct found {
  BASE_VEC(const struct ir_graph *) graphs;
  struct base_map seen;
};

static quern_status find_graph(quern_context *ctx, struct found *found, const struct ir_graph *graph) {
  if (graph == NULL) return QUERN_STATUS_OK;
  uint64_t hash = base_hash_u64(BASE_HASH_SEED, graph->id);
  if (base_map_find(&found->seen, hash, is_item, graph) != NULL) return QUERN_STATUS_OK;
  bool kept =
      base_map_add(&found->seen, hash, (void *)(uintptr_t)graph) && base_vec_push(&ctx->heap, &found->graphs, graph);
  return kept ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status verify_roots(quern_context *ctx, struct found *found, size_t n, quern_tensor *const *roots,
                                 bool closed) {
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, n, roots, &order));
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) {
    status = verify_node(ctx, order.at[i], closed);
    if (status == QUERN_STATUS_OK) status = find_graph(ctx, found, order.at[i]->attrs->body);
    if (status == QUERN_STATUS_OK) status = find_graph(ctx, found, order.at[i]->attrs->other);
  }
  ir_order_fini(ctx, &order);
  return status;
}

/* The graph's parameters are PARAM 0, 1, ..., and every PARAM that the results reach is one of them; *depth is that of the
** subgraphs inside. */
static quern_status verify_reached(quern_context *ctx, const struct ir_graph *graph, int *depth) {
  for (int i = 0; i < graph->n_params; i++) {
    const struct ir_node *node = graph->params[i]->node;
    QUERN_CHECK(node->op == IR_PARAM && node->attrs->index == i, INTERNAL,
                "verify: parameter %d of graph %u is node %u (%s)", i, graph->id, node->id, ir_ops[node->op].name);
  }
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, (size_t)graph->n_results, graph->results, &order));
  quern_status status = QUERN_STATUS_OK;
  *depth = 0;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) {
    const struct ir_node *node = order.at[i];
    int64_t k = node->attrs->index;
    bool own = node->op != IR_PARAM || (k < graph->n_params && graph->params[k]->node == node);
    if (!own) status = broken(node, "is no parameter of its graph");
    if (node->attrs->body != NULL) *depth = BASE_MAX(*depth, node->attrs->body->depth + 1);
    if (node->attrs->other != NULL) *depth = BASE_MAX(*depth, node->attrs->other->depth + 1);
  }
  ir_order_fini(ctx, &order);
  return status;
}

static quern_status verify_graph(quern_context *ctx, struct found *found, const struct ir_graph *graph) {
  QUERN_TRY(verify_roots(ctx, found, (size_t)graph->n_params, graph->params, true));
  QUERN_TRY(verify_roots(ctx, found, (size_t)graph->n_results, graph->results, true));
  int depth = 0;
  QUERN_TRY(verify_reached(ctx, graph, &depth));
  QUERN_CHECK(depth == graph->depth, INTERNAL, "verify: graph %u says it is %d deep, it is %d", graph->id, graph->depth,
              depth);
  QUERN_CHECK(ir_graph_is_interned(graph), INTERNAL, "verify: graph %u is not the interned one", graph->id);
  return QUERN_STATUS_OK;
}

quern_status ir_verify(quern_context *ctx, size_t n, quern_tensor *const *roots) {
  QUERN_TRY(quern_context_check(ctx));
  for (size_t i = 0; i < n; i++) QUERN_CHECK(!ir_is_poison(roots[i]), INVALID, "verify: root %zu is poison or null", i);
  for (size_t i = 0; i < n; i++)
    QUERN_CHECK(is_result(roots[i]), INTERNAL, "verify: root %zu is no result of its node", i);
  struct found found = {0};
  base_map_init(&found.seen, &ctx->heap);
  quern_status status = verify_roots(ctx, &found, n, roots, false);
  for (size_t i = 0; i < found.graphs.n && status == QUERN_STATUS_OK; i++) {
    status = verify_graph(ctx, &found, found.graphs.at[i]);
  }
  base_vec_fini(&ctx->heap, &found.graphs);
  base_map_fini(&found.seen);
  return status;
}
