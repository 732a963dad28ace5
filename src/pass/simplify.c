/* pass/simplify.c -- the rewrite rules of ir/rules.def until none applies
** keeps: every bit, unless approximate rules were asked for
** tests: tests/pass/test_passes.c, tests/ir/test_rules.c
*/
#include "pass/pass_int.h"

quern_status pass_simplify(struct pass_graph *graph, const struct pass_options *options) {
  quern_context *ctx = graph->ctx;
  struct ir_rewrite_options rewrite = {.approximate = options->approximate};
  size_t bytes = graph->n_roots * sizeof *graph->roots;
  quern_tensor **out = base_alloc(&ctx->heap, bytes);
  if (out == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = ir_rewrite(ctx, graph->n_roots, graph->roots, &rewrite, out);
  if (status == QUERN_STATUS_OK && bytes > 0) memcpy(graph->roots, out, bytes);
  base_free(&ctx->heap, out, bytes);
  return status;
}
