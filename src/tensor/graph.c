/* tensor/graph.c -- the public side of evaluation and of graphs as text (quern/graph.h)
** keeps: an error that a builder recorded is reported by the first of these calls that is given its context
** tests: tests/tensor/test_graph.c
*/
#include <string.h>

#include "tensor/tensor.h"

/* ---- evaluation ----------------------------------------------------------------------------------------- */

/* Reports pending errors, then checks that n tensors are usable in the context. */
static quern_status check_outputs(const char *what, quern_context *ctx, size_t n, quern_tensor *const *outputs) {
  QUERN_CHECK(ctx != NULL, INVALID, "%s: the context is null", what);
  QUERN_TRY(quern_context_check(ctx));
  QUERN_CHECK(n == 0 || outputs != NULL, INVALID, "%s: the list of %zu outputs is null", what, n);
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(outputs[i] != NULL, INVALID, "%s: output %zu is null", what, i);
    QUERN_CHECK(!ir_is_poison(outputs[i]), INVALID, "%s: output %zu is the result of a call that failed", what, i);
    QUERN_CHECK(outputs[i]->node->ctx == ctx, INVALID, "%s: output %zu belongs to another context", what, i);
  }
  return QUERN_STATUS_OK;
}

static quern_status check_feeds(const char *what, const quern_context *ctx, size_t n, const quern_feed *feeds) {
  QUERN_CHECK(n == 0 || feeds != NULL, INVALID, "%s: the list of %zu feeds is null", what, n);
  for (size_t i = 0; i < n; i++) {
    const quern_tensor *leaf = feeds[i].leaf;
    QUERN_CHECK(leaf != NULL, INVALID, "%s: the leaf of feed %zu is null", what, i);
    QUERN_CHECK(!ir_is_poison(leaf), INVALID, "%s: the leaf of feed %zu is the result of a call that failed", what, i);
    QUERN_CHECK(leaf->node->ctx == ctx, INVALID, "%s: the leaf of feed %zu belongs to another context", what, i);
    enum ir_op op = leaf->node->op;
    QUERN_CHECK(op == IR_INPUT || op == IR_STATE || op == IR_BUFFER, INVALID,
                "%s: feed %zu is for the result of %s; only an input, a state or a buffer can be fed", what, i,
                ir_ops[op].name);
    QUERN_CHECK(feeds[i].data != NULL || ir_count(leaf) == 0, INVALID, "%s: the data of feed %zu, %s %s, is null", what,
                i, ir_ops[op].name, TENSOR_TYPE(leaf));
    for (size_t k = 0; k < i; k++) {
      QUERN_CHECK(feeds[k].leaf != leaf, INVALID, "%s: feeds %zu and %zu are for the same %s%s%s", what, k, i,
                  ir_ops[op].name, op == IR_BUFFER ? "" : " ", op == IR_BUFFER ? "" : leaf->node->attrs->name);
    }
  }
  return QUERN_STATUS_OK;
}

quern_status tensor_check_eval(const char *what, quern_context *ctx, size_t n, quern_tensor *const *outputs,
                               void *const *dst, size_t n_feeds, const quern_feed *feeds) {
  QUERN_TRY(check_outputs(what, ctx, n, outputs));
  QUERN_CHECK(n == 0 || dst != NULL, INVALID, "%s: the list of places for %zu outputs is null", what, n);
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(dst[i] != NULL || ir_count(outputs[i]) == 0, INVALID, "%s: the place for output %zu, %s, is null", what,
                i, TENSOR_TYPE(outputs[i]));
  }
  return check_feeds(what, ctx, n_feeds, feeds);
}

quern_status quern_eval_reference(quern_context *ctx, size_t n, quern_tensor *const *outputs, void *const *dst,
                                  size_t n_feeds, const quern_feed *feeds) {
  QUERN_TRY(tensor_check_eval("eval_reference", ctx, n, outputs, dst, n_feeds, feeds));
  size_t bytes = n_feeds * sizeof(struct ir_binding);
  struct ir_binding *bindings = base_alloc(&ctx->heap, bytes);
  if (bindings == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n_feeds; i++) bindings[i] = (struct ir_binding){.leaf = feeds[i].leaf, .data = feeds[i].data};
  quern_status status = ir_eval(ctx, n, outputs, dst, n_feeds, bindings);
  base_free(&ctx->heap, bindings, bytes);
  return status;
}

/* ---- graphs --------------------------------------------------------------------------------------------- */

struct quern_graph {
  quern_context *ctx;
  struct base_arena arena; /* of the lists and the names */
  size_t n_inputs, n_outputs;
  quern_tensor **inputs, **outputs;
  const char **names;
  uint64_t pin; /* in the context: its tensors stay */
};

/* An ir_pinned. */
static quern_status pinned(void *holder, struct ir_live *live) {
  const quern_graph *graph = holder;
  for (size_t i = 0; i < graph->n_outputs; i++) QUERN_TRY(ir_live_add(live, graph->outputs[i]));
  for (size_t i = 0; i < graph->n_inputs; i++) QUERN_TRY(ir_live_add(live, graph->inputs[i]));
  return QUERN_STATUS_OK;
}

#define CHECK_GRAPH(what, graph) QUERN_CHECK((graph) != NULL, INVALID, "%s: the graph is null", (what))

/* A graph with room for its outputs; NULL when there is no memory. */
static quern_graph *new_graph(quern_context *ctx, size_t n_outputs, quern_tensor *const *outputs,
                              const char *const *names) {
  quern_graph *graph = base_alloc_zero(&ctx->heap, sizeof *graph);
  if (graph == NULL) return NULL;
  graph->ctx = ctx;
  base_arena_init(&graph->arena, &ctx->heap);
  graph->n_outputs = n_outputs;
  graph->outputs = base_arena_copy(&graph->arena, outputs, n_outputs * sizeof *graph->outputs);
  graph->names = base_arena_alloc(&graph->arena, n_outputs * sizeof *graph->names);
  bool whole = graph->outputs != NULL && graph->names != NULL;
  for (size_t i = 0; i < n_outputs && whole && names != NULL; i++) {
    if (names[i] == NULL) continue;
    graph->names[i] = base_arena_string(&graph->arena, names[i], strlen(names[i]));
    whole = graph->names[i] != NULL;
  }
  if (whole) graph->pin = ir_pin_add(ctx, pinned, graph);
  if (graph->pin != 0) return graph;
  quern_graph_free(graph);
  return NULL;
}

static bool is_input(const struct ir_node *node) { return node->op == IR_INPUT || node->op == IR_STATE; }

/* The inputs and states that the outputs reach, in the order they were made. */
static quern_status find_inputs(quern_graph *graph) {
  struct ir_order order;
  QUERN_TRY(ir_topo(graph->ctx, graph->n_outputs, graph->outputs, &order));
  for (size_t i = 0; i < order.n; i++) graph->n_inputs += is_input(order.at[i]);
  graph->inputs = base_arena_alloc(&graph->arena, graph->n_inputs * sizeof *graph->inputs);
  size_t n = 0;
  for (size_t i = 0; i < order.n && graph->inputs != NULL; i++) {
    if (is_input(order.at[i])) graph->inputs[n++] = &order.at[i]->out[0];
  }
  ir_order_fini(graph->ctx, &order);
  return graph->inputs != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

quern_status quern_graph_new(quern_graph **graph, quern_context *ctx, size_t n, quern_tensor *const *outputs,
                             const char *const *names) {
  QUERN_CHECK(graph != NULL, INVALID, "graph_new: the place for the graph is null");
  *graph = NULL;
  QUERN_TRY(check_outputs("graph_new", ctx, n, outputs));
  quern_graph *made = new_graph(ctx, n, outputs, names);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = find_inputs(made);
  if (status == QUERN_STATUS_OK)
    *graph = made;
  else
    quern_graph_free(made);
  return status;
}

quern_status quern_graph_parse(quern_graph **graph, quern_context *ctx, const char *text, size_t bytes) {
  QUERN_CHECK(graph != NULL, INVALID, "graph_parse: the place for the graph is null");
  *graph = NULL;
  QUERN_CHECK(ctx != NULL, INVALID, "graph_parse: the context is null");
  QUERN_CHECK(text != NULL || bytes == 0, INVALID, "graph_parse: the text of %zu bytes is null", bytes);
  struct ir_module module;
  QUERN_TRY(ir_parse(ctx, text, bytes, &module));
  quern_graph *made = new_graph(ctx, module.n_outputs, module.outputs, module.names);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  made->n_inputs = module.n_inputs;
  made->inputs = module.inputs;
  *graph = made;
  return QUERN_STATUS_OK;
}

void quern_graph_free(quern_graph *graph) {
  if (graph == NULL) return;
  ir_pin_remove(graph->ctx, graph->pin);
  base_arena_fini(&graph->arena);
  base_free(&graph->ctx->heap, graph, sizeof *graph);
}

size_t quern_graph_input_count(const quern_graph *graph) { return graph != NULL ? graph->n_inputs : 0; }

quern_tensor *quern_graph_input(const quern_graph *graph, size_t i) {
  return graph != NULL && i < graph->n_inputs ? graph->inputs[i] : NULL;
}

size_t quern_graph_output_count(const quern_graph *graph) { return graph != NULL ? graph->n_outputs : 0; }

quern_tensor *quern_graph_output(const quern_graph *graph, size_t i) {
  return graph != NULL && i < graph->n_outputs ? graph->outputs[i] : NULL;
}

const char *quern_graph_output_name(const quern_graph *graph, size_t i) {
  return graph != NULL && i < graph->n_outputs ? graph->names[i] : NULL;
}

quern_status quern_graph_verify(const quern_graph *graph) {
  CHECK_GRAPH("graph_verify", graph);
  return ir_verify(graph->ctx, graph->n_outputs, graph->outputs);
}

/* Replaces the outputs by what a change makes of them, all or none. The inputs stay those of the graph. */
typedef quern_status change(quern_graph *graph, quern_tensor **out, const void *options);

static quern_status change_outputs(const char *what, quern_graph *graph, change *apply, const void *options) {
  CHECK_GRAPH(what, graph);
  QUERN_TRY(quern_context_check(graph->ctx));
  quern_tensor **out = base_arena_alloc(&graph->arena, graph->n_outputs * sizeof *out);
  if (out == NULL) return QUERN_STATUS_MEMORY;
  struct base_floats floats = base_floats_enter();
  quern_status status = apply(graph, out, options);
  base_floats_leave(floats);
  if (status == QUERN_STATUS_OK) graph->outputs = out;
  return status;
}

static quern_status apply_rewrite(quern_graph *graph, quern_tensor **out, const void *options) {
  return ir_rewrite(graph->ctx, graph->n_outputs, graph->outputs, options, out);
}

static quern_status apply_inline(quern_graph *graph, quern_tensor **out, const void *options) {
  (void)options;
  return ir_inline_composites(graph->ctx, graph->n_outputs, graph->outputs, out);
}

quern_status quern_graph_rewrite(quern_graph *graph, bool approximate) {
  return change_outputs("graph_rewrite", graph, apply_rewrite,
                        &(struct ir_rewrite_options){.approximate = approximate});
}

quern_status quern_graph_inline(quern_graph *graph) {
  return change_outputs("graph_inline", graph, apply_inline, NULL);
}

/* ---- text ---------------------------------------------------------------------------------------------------- */

typedef quern_status printer(quern_context *ctx, struct base_str *str, size_t n, quern_tensor *const *roots,
                             const char *const *names);

static quern_status print_with(const char *what, const quern_graph *graph, printer *print, char **text) {
  QUERN_CHECK(text != NULL, INVALID, "%s: the place for the text is null", what);
  *text = NULL;
  CHECK_GRAPH(what, graph);
  QUERN_TRY(quern_context_check(graph->ctx));
  QUERN_TRY(ir_fetch(graph->ctx, graph->n_outputs, graph->outputs));
  struct base_str str;
  base_str_init(&str, &graph->ctx->heap);
  quern_status status = print(graph->ctx, &str, graph->n_outputs, graph->outputs, graph->names);
  return base_str_give(status, &str, text);
}

quern_status quern_graph_print(const quern_graph *graph, char **text) {
  return print_with("graph_print", graph, ir_print, text);
}

quern_status quern_graph_graphviz(const quern_graph *graph, char **text) {
  return print_with("graph_graphviz", graph, ir_print_graphviz, text);
}
