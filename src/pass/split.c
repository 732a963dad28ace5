/* pass/split.c -- concatenations of many sources become concatenations of concatenations
** A kernel has a bounded number of memories, so one concatenation has at most PASS_MOST_CONCAT sources.
** tests: tests/pass/test_passes.c
*/
#include "pass/pass_int.h"

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  (void)user;
  if (node->op != IR_CONCAT || node->n_src <= PASS_MOST_CONCAT) return ir_rebuild(node, src, out);
  quern_context *ctx = node->ctx;
  size_t bytes = (size_t)node->n_src * sizeof(quern_tensor *);
  quern_tensor **parts = base_alloc(&ctx->heap, bytes);
  if (parts == NULL) return QUERN_STATUS_MEMORY;
  memcpy(parts, src, bytes);
  int n = node->n_src;
  while (n > 1) {
    int made = 0;
    for (int i = 0; i < n; i += PASS_MOST_CONCAT)
      parts[made++] = ir_make(ctx, IR_CONCAT, BASE_MIN(PASS_MOST_CONCAT, n - i), parts + i, node->attrs);
    n = made;
  }
  out[0] = parts[0];
  base_free(&ctx->heap, parts, bytes);
  return ir_is_poison(out[0]) ? ir_poison_error(ctx) : QUERN_STATUS_OK;
}

quern_status pass_split(struct pass_graph *graph, const struct pass_options *options) {
  (void)options;
  struct ir_order order;
  QUERN_TRY(ir_topo(graph->ctx, graph->n_roots, graph->roots, &order));
  bool many = false;
  for (size_t i = 0; i < order.n && !many; i++) {
    const struct ir_node *node = order.at[i];
    many = (node->op == IR_CONCAT && node->n_src > PASS_MOST_CONCAT) || node->attrs->body != NULL;
  }
  ir_order_fini(graph->ctx, &order);
  return many ? pass_subgraphs(graph, visit, NULL) : QUERN_STATUS_OK;
}
