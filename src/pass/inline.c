/* pass/inline.c -- composites that the device does not support become their bodies, convolutions those that a library knows
** keeps: also inside subgraphs and inside bodies; a supported composite keeps its body as it is
** tests: tests/pass/test_passes.c
*/
#include "pass/pass_int.h"

struct job {
  const struct pass_options *options;
  struct pass_subgraphs deep; /* for the bodies */
  uint32_t nodes;             /* of the context before */
};

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  struct job *job = user;
  const struct pass_options *options = job->options;
  if (node->op != IR_COMPOSITE) return ir_rebuild(node, src, out);
  bool placed;
  QUERN_TRY(pass_place_convolution(options, node, src, out, &placed));
  if (placed) return QUERN_STATUS_OK;
  QUERN_TRY(ir_rebuild(node, src, out));
  if (options->supports != NULL && options->supports(options->target, out[0]->node)) return QUERN_STATUS_OK;
  const struct ir_graph *body;
  QUERN_TRY(pass_subgraphs_one(&job->deep, node->attrs->body, &body));
  return ir_inline_composite(node, body, src, job->nodes, out);
}

quern_status pass_inline(struct pass_graph *graph, const struct pass_options *options) {
  struct job job = {
      .options = options, .deep = {.ctx = graph->ctx, .visit = visit, .user = &job}, .nodes = graph->ctx->n_nodes};
  base_map_init(&job.deep.graphs, &graph->ctx->heap);
  base_arena_init(&job.deep.arena, &graph->ctx->heap);
  quern_status status = pass_subgraphs(graph, visit, &job);
  base_map_fini(&job.deep.graphs);
  base_arena_fini(&job.deep.arena);
  return status;
}
