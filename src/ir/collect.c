/* ir/collect.c -- collecting a context: nodes that no tensor needs any more are freed, those that stay stay where they
** are
** in:    tensors, and the holders that pinned theirs (models, steps, graphs)
** keeps: all or nothing: marking is what can fail, and changes nothing; ids are not given out again
** tests: tests/ir/test_collect.c
*/
#include "ir/ir.h"

/* ---- what stays ----------------------------------------------------------------------------------------- */

/* Nodes that were reached; those from next on have not been looked at. */
struct ir_live {
  quern_context *ctx;
  uint32_t epoch;
  size_t next;
  BASE_VEC(struct ir_node *) nodes;
};

quern_status ir_live_add(struct ir_live *live, const quern_tensor *x) {
  if (ir_is_poison(x) || x->node->mark == live->epoch) return QUERN_STATUS_OK;
  if (!base_vec_push(&live->ctx->heap, &live->nodes, x->node)) return QUERN_STATUS_MEMORY;
  x->node->mark = live->epoch;
  return QUERN_STATUS_OK;
}

static quern_status add_list(struct ir_live *live, int n, quern_tensor *const *xs) {
  for (int i = 0; i < n; i++) QUERN_TRY(ir_live_add(live, xs[i]));
  return QUERN_STATUS_OK;
}

static quern_status add_graph(struct ir_live *live, const struct ir_graph *graph) {
  if (graph == NULL || graph->mark == live->epoch) return QUERN_STATUS_OK;
  QUERN_TRY(add_list(live, graph->n_params, graph->params));
  QUERN_TRY(add_list(live, graph->n_results, graph->results));
  ((struct ir_graph *)(uintptr_t)graph)->mark = live->epoch; /* scratch, as a node's mark */
  return QUERN_STATUS_OK;
}

/* Everything that the nodes are made of. */
static quern_status follow(struct ir_live *live) {
  while (live->next < live->nodes.n) {
    const struct ir_node *node = live->nodes.at[live->next++];
    QUERN_TRY(add_list(live, node->n_src, node->src));
    QUERN_TRY(add_graph(live, node->attrs->body));
    QUERN_TRY(add_graph(live, node->attrs->other));
    if (node->op == IR_BUFFER) node->attrs->buffer->live = true;
  }
  return QUERN_STATUS_OK;
}

static quern_status find_live(struct ir_live *live, size_t n, quern_tensor *const *roots) {
  const quern_context *ctx = live->ctx;
  for (size_t i = 0; i < ctx->buffers.n; i++) ctx->buffers.at[i]->live = false;
  for (size_t i = 0; i < n; i++) QUERN_TRY(ir_live_add(live, roots[i]));
  for (size_t i = 0; i < ctx->pins.n; i++) QUERN_TRY(ctx->pins.at[i].visit(ctx->pins.at[i].holder, live));
  return follow(live);
}

/* ---- what goes ------------------------------------------------------------------------------------------ */

/* base_map_drops: free an item that was not reached. */
static bool drop_node(void *user, void *item) {
  const struct ir_live *live = user;
  const struct ir_node *node = item;
  if (node->mark == live->epoch) return false;
  ir_cell_free(live->ctx, item, ir_node_bytes(node));
  return true;
}

static bool drop_graph(void *user, void *item) {
  const struct ir_live *live = user;
  const struct ir_graph *graph = item;
  if (graph->mark == live->epoch) return false;
  ir_cell_free(live->ctx, item, ir_graph_bytes(graph));
  return true;
}

static void sweep_buffers(quern_context *ctx) {
  size_t n = 0;
  for (size_t i = 0; i < ctx->buffers.n; i++) {
    struct ir_buffer *buffer = ctx->buffers.at[i];
    if (buffer->live) {
      ctx->buffers.at[n++] = buffer;
      continue;
    }
    ir_buffer_free(ctx, buffer);
    ir_cell_free(ctx, buffer, sizeof *buffer);
  }
  ctx->buffers.n = n;
}

/* Users before what they use: a body's key lies in its graph, attributes of a node name graphs and buffers. */
static void sweep(struct ir_live *live) {
  quern_context *ctx = live->ctx;
  base_vec_fini(&ctx->heap, &ctx->marks);
  base_vec_fini(&ctx->heap, &ctx->entries);
  ir_bodies_sweep(ctx, live->epoch);
  base_map_sweep(&ctx->nodes, drop_node, live);
  base_map_sweep(&ctx->graphs, drop_graph, live);
  sweep_buffers(ctx);
}

/* ---- holders -------------------------------------------------------------------------------------------- */

uint64_t ir_pin_add(quern_context *ctx, ir_pinned *visit, void *holder) {
  struct ir_pin pin = {ctx->next_pin + 1, visit, holder};
  if (!base_vec_push(&ctx->heap, &ctx->pins, pin)) return 0;
  ctx->next_pin = pin.number;
  return pin.number;
}

void ir_pin_remove(quern_context *ctx, uint64_t number) {
  size_t n = 0;
  for (size_t i = 0; i < ctx->pins.n; i++)
    if (ctx->pins.at[i].number != number) ctx->pins.at[n++] = ctx->pins.at[i];
  ctx->pins.n = n;
}

/* ---- the public side ------------------------------------------------------------------------------------ */

quern_status quern_context_collect(quern_context *ctx, size_t n, quern_tensor *const *roots) {
  QUERN_CHECK(ctx != NULL, INVALID, "context_collect: the context is null");
  QUERN_TRY(quern_context_check(ctx));
  QUERN_CHECK(n == 0 || roots != NULL, INVALID, "context_collect: the list of %zu tensors is null", n);
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(roots[i] != NULL, INVALID, "context_collect: tensor %zu is null", i);
    QUERN_CHECK(!ir_is_poison(roots[i]), INVALID, "context_collect: tensor %zu is the result of a call that failed", i);
    QUERN_CHECK(roots[i]->node->ctx == ctx, INVALID, "context_collect: tensor %zu belongs to another context", i);
  }
  QUERN_CHECK(ctx->n_scopes == 0, STATE, "context_collect: a program is being compiled in the context");
  struct ir_live live = {.ctx = ctx, .epoch = ir_epoch(ctx)};
  quern_status status = find_live(&live, n, roots);
  if (status == QUERN_STATUS_OK) sweep(&live);
  base_vec_fini(&ctx->heap, &live.nodes);
  return status;
}
