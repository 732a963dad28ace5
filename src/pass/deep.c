/* pass/deep.c -- visiting every node of a graph and of the sub-graphs of its control nodes
** keeps: a sub-graph is visited once, however many nodes have it; recursion as deep as sub-graphs nest
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
  struct pass_deep *deep = user;
  if (!is_control(node)) return deep->visit(deep->user, node, src, out);
  struct ir_attrs attrs = *node->attrs;
  if (attrs.body != NULL) QUERN_TRY(pass_deep_graph(deep, attrs.body, &attrs.body));
  if (attrs.other != NULL) QUERN_TRY(pass_deep_graph(deep, attrs.other, &attrs.other));
  quern_tensor *made = ir_make(deep->ctx, node->op, node->n_src, src, &attrs);
  if (ir_is_poison(made)) return ir_poison_error(deep->ctx);
  for (int i = 0; i < node->n_out; i++) out[i] = ir_result(made, i);
  return QUERN_STATUS_OK;
}

quern_status pass_deep_graph(struct pass_deep *deep, const struct ir_graph *graph, const struct ir_graph **out) {
  uint64_t hash = base_hash_u64(BASE_HASH_SEED, graph->id);
  struct entry *entry = base_map_find(&deep->graphs, hash, is_from, graph);
  if (entry == NULL) {
    entry = base_arena_new(&deep->arena, struct entry);
    if (entry == NULL) return QUERN_STATUS_MEMORY;
    entry->from = graph;
    QUERN_TRY(ir_graph_transform(deep->ctx, graph, visit_node, deep, &entry->to));
    if (!base_map_add(&deep->graphs, hash, entry)) return QUERN_STATUS_MEMORY;
  }
  *out = entry->to;
  return QUERN_STATUS_OK;
}

quern_status pass_deep(struct pass_graph *graph, ir_visit *visit, void *user) {
  quern_context *ctx = graph->ctx;
  size_t bytes = graph->n_roots * sizeof *graph->roots;
  quern_tensor **out = base_alloc(&ctx->heap, bytes);
  if (out == NULL) return QUERN_STATUS_MEMORY;
  struct pass_deep deep = {.ctx = ctx, .visit = visit, .user = user};
  base_map_init(&deep.graphs, &ctx->heap);
  base_arena_init(&deep.arena, &ctx->heap);
  quern_status status = ir_transform(ctx, graph->n_roots, graph->roots, visit_node, &deep, out);
  if (status == QUERN_STATUS_OK && bytes > 0) memcpy(graph->roots, out, bytes);
  base_map_fini(&deep.graphs);
  base_arena_fini(&deep.arena);
  base_free(&ctx->heap, out, bytes);
  return status;
}
