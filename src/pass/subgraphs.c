/* pass/subgraphs.c -- visiting every node of a graph and of the subgraphs of its control nodes
** keeps: a subgraph is visited once, however many nodes have it; recursion as deep as subgraphs nest
** tests: tests/pass/test_passes.c
*/
#include "pass/pass_int.h"

struct entry {
  const struct ir_graph *from, *to;
};

static bool is_from(const void *item, const void *key) { return ((const struct entry *)item)->from == key; }

static bool is_control(const struct ir_node *node) {
  return node->op == IR_LOOP || node->op == IR_WHILE || node->op == IR_IF;
}

static quern_status visit_node(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  struct pass_subgraphs *deep = user;
  if (!is_control(node)) return deep->visit(deep->user, node, src, out);
  struct ir_attrs attrs = *node->attrs;
  if (attrs.body != NULL) QUERN_TRY(pass_subgraphs_one(deep, attrs.body, &attrs.body));
  if (attrs.other != NULL) QUERN_TRY(pass_subgraphs_one(deep, attrs.other, &attrs.other));
  if (deep->control != NULL) return deep->control(deep, node, src, &attrs, out);
  quern_tensor *made = ir_make(deep->ctx, node->op, node->n_src, src, &attrs);
  if (ir_is_poison(made)) return ir_poison_error(deep->ctx);
  for (int i = 0; i < node->n_out; i++) out[i] = ir_result(made, i);
  return QUERN_STATUS_OK;
}

/* ---- swaps: those of a graph are the last of the list when its nodes have been visited --------------------------- */

struct swapping {
  const struct pass_replacements *swaps;
  size_t first;
};

static quern_status swap_node(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  const struct swapping *s = user;
  QUERN_TRY(ir_rebuild(node, src, out));
  for (size_t i = s->first; i < s->swaps->list.n; i++) {
    const struct pass_replacement *swap = &s->swaps->list.at[i];
    if (swap->from->node == node) out[swap->from->result] = swap->to;
  }
  return QUERN_STATUS_OK;
}

/* What is to be known of a graph before its nodes are visited. */
static quern_status begin_graph(struct pass_subgraphs *deep, size_t n, quern_tensor *const *roots, size_t *mark) {
  return deep->begin != NULL ? deep->begin(deep, n, roots, mark) : QUERN_STATUS_OK;
}
static void end_graph(struct pass_subgraphs *deep, size_t mark) {
  if (deep->end != NULL) deep->end(deep, mark);
}

static size_t swaps_of(const struct pass_subgraphs *deep) { return deep->swaps != NULL ? deep->swaps->list.n : 0; }

/* Visits the nodes of a subgraph, then does the swaps that were asked for. */
static quern_status visit_graph(struct pass_subgraphs *deep, const struct ir_graph *graph,
                                const struct ir_graph **out) {
  struct swapping s = {deep->swaps, swaps_of(deep)};
  size_t mark = 0;
  QUERN_TRY(begin_graph(deep, (size_t)graph->n_results, graph->results, &mark));
  QUERN_TRY(ir_graph_transform(deep->ctx, graph, visit_node, deep, out));
  end_graph(deep, mark);
  if (swaps_of(deep) == s.first) return QUERN_STATUS_OK;
  quern_status status = ir_graph_transform(deep->ctx, *out, swap_node, &s, out);
  deep->swaps->list.n = s.first;
  return status;
}

/* Visits the nodes that roots reach, then makes the replacements that were asked for. */
static quern_status visit_roots(struct pass_subgraphs *deep, const struct pass_graph *graph, quern_tensor **out) {
  struct swapping s = {deep->swaps, swaps_of(deep)};
  size_t mark = 0;
  QUERN_TRY(begin_graph(deep, graph->n_roots, graph->roots, &mark));
  QUERN_TRY(ir_transform(deep->ctx, graph->n_roots, graph->roots, visit_node, deep, out));
  end_graph(deep, mark);
  if (swaps_of(deep) == s.first) return QUERN_STATUS_OK;
  quern_status status = ir_transform(deep->ctx, graph->n_roots, out, swap_node, &s, out);
  deep->swaps->list.n = s.first;
  return status;
}

/* ----------------------------------------------------------------------------------------------------------------- */

quern_status pass_subgraphs_one(struct pass_subgraphs *deep, const struct ir_graph *graph,
                                const struct ir_graph **out) {
  uint64_t hash = base_hash_u64(BASE_HASH_SEED, graph->id);
  struct entry *entry = base_map_find(&deep->graphs, hash, is_from, graph);
  if (entry == NULL) {
    entry = base_arena_new(&deep->arena, struct entry);
    if (entry == NULL) return QUERN_STATUS_MEMORY;
    entry->from = graph;
    QUERN_TRY(visit_graph(deep, graph, &entry->to));
    if (!base_map_add(&deep->graphs, hash, entry)) return QUERN_STATUS_MEMORY;
  }
  *out = entry->to;
  return QUERN_STATUS_OK;
}

quern_status pass_subgraphs(struct pass_graph *graph, ir_visit *visit, void *user) {
  return pass_subgraphs_replace(graph, visit, user, NULL);
}

static quern_status run(struct pass_graph *graph, struct pass_subgraphs *deep) {
  quern_context *ctx = graph->ctx;
  size_t bytes = graph->n_roots * sizeof *graph->roots;
  quern_tensor **out = base_alloc(&ctx->heap, bytes);
  if (out == NULL) return QUERN_STATUS_MEMORY;
  base_map_init(&deep->graphs, &ctx->heap);
  base_arena_init(&deep->arena, &ctx->heap);
  quern_status status = visit_roots(deep, graph, out);
  if (status == QUERN_STATUS_OK && bytes > 0) memcpy(graph->roots, out, bytes);
  base_map_fini(&deep->graphs);
  base_arena_fini(&deep->arena);
  base_free(&ctx->heap, out, bytes);
  return status;
}

quern_status pass_subgraphs_replace(struct pass_graph *graph, ir_visit *visit, void *user,
                                    struct pass_replacements *swaps) {
  struct pass_subgraphs deep = {.ctx = graph->ctx, .visit = visit, .user = user, .swaps = swaps};
  return run(graph, &deep);
}

quern_status pass_subgraphs_control(struct pass_graph *graph, const struct pass_subgraphs *how) {
  struct pass_subgraphs deep = *how;
  deep.ctx = graph->ctx;
  return run(graph, &deep);
}
