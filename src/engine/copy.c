/* engine/copy.c -- a graph in another context
** in:    a canon                      out: the same expressions on inputs in place of its leaves
** keeps: what is made, and in which order, depends on the structure of the graph alone; equal subgraphs are copied
**        once; recursion is as deep as subgraphs lie in subgraphs
** tests: tests/engine/test_eager.c
*/
#include "engine/engine.h"

struct copying {
  quern_context *to;
  struct base_arena arena;
  struct base_map graphs; /* copied ones */
  quern_tensor **leaves;  /* where the next one of the main graph is stored; NULL: they are not */
};

struct copied {
  const struct ir_graph *from, *to;
};

static bool same_graph(const void *item, const void *graph) { return ((const struct copied *)item)->from == graph; }

static quern_status copy_graph(struct copying *c, const struct ir_graph *graph, const struct ir_graph **out);

/* The leaf that stands for one of the graph. Subgraphs have parameters only. */
static quern_tensor *copy_leaf(struct copying *c, const struct ir_node *node, quern_tensor *const *params) {
  QUERN_ASSERT(node->op != IR_PARAM || params != NULL);
  if (node->op == IR_PARAM) return params[node->attrs->index];
  quern_tensor *leaf = ir_leaf(c->to, node->out[0].dtype, node->out[0].rank, node->out[0].dims);
  if (c->leaves != NULL) *c->leaves++ = leaf;
  return leaf;
}

static quern_status copy_node(struct copying *c, const struct ir_node *node, quern_tensor *const *src,
                              quern_tensor *const *params, quern_tensor **made) {
  bool leaf = node->op == IR_INPUT || node->op == IR_STATE || node->op == IR_BUFFER || node->op == IR_PARAM;
  if (leaf) {
    *made = copy_leaf(c, node, params);
  } else {
    struct ir_attrs attrs = *node->attrs;
    if (attrs.body != NULL) QUERN_TRY(copy_graph(c, attrs.body, &attrs.body));
    if (attrs.other != NULL) QUERN_TRY(copy_graph(c, attrs.other, &attrs.other));
    *made = ir_make(c->to, node->op, node->n_src, src, &attrs);
  }
  return ir_is_poison(*made) ? ir_poison_error(c->to) : QUERN_STATUS_OK;
}

/* out[i] = roots[i], which the canon is of. */
static quern_status copy_nodes(struct copying *c, const struct engine_canon *canon, size_t n,
                               quern_tensor *const *roots, quern_tensor *const *params, quern_tensor **out) {
  const struct ir_order *order = &canon->order;
  size_t most = 1;
  for (size_t i = 0; i < order->n; i++) most = BASE_MAX(most, (size_t)order->at[i]->n_src);
  quern_tensor **now = base_arena_alloc(&c->arena, order->n * sizeof *now); /* result 0 of each node */
  quern_tensor **src = base_arena_alloc(&c->arena, most * sizeof *src);
  if (now == NULL || src == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < order->n; i++) {
    const struct ir_node *node = order->at[canon->at[i]];
    for (int s = 0; s < node->n_src; s++)
      src[s] = ir_result(now[ir_order_find(order, node->src[s]->node)], node->src[s]->result);
    QUERN_TRY(copy_node(c, node, src, params, &now[canon->at[i]]));
  }
  for (size_t i = 0; i < n; i++) out[i] = ir_result(now[ir_order_find(order, roots[i]->node)], roots[i]->result);
  return QUERN_STATUS_OK;
}

/* A subgraph is built on leaves of its own, which then become its parameters. */
static quern_status build_graph(struct copying *c, const struct ir_graph *graph, const struct ir_graph **out) {
  size_t n_params = (size_t)graph->n_params, n_results = (size_t)graph->n_results;
  quern_tensor **params = base_arena_alloc(&c->arena, n_params * sizeof *params);
  quern_tensor **results = base_arena_alloc(&c->arena, n_results * sizeof *results);
  if (params == NULL || results == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n_params; i++) {
    const quern_tensor *p = graph->params[i];
    params[i] = ir_leaf(c->to, p->dtype, p->rank, p->dims);
    if (ir_is_poison(params[i])) return ir_poison_error(c->to);
  }
  struct engine_canon canon;
  QUERN_TRY(engine_canon_make(&canon, &c->arena, graph->ctx, n_results, graph->results));
  quern_status status = copy_nodes(c, &canon, n_results, graph->results, params, results);
  if (status == QUERN_STATUS_OK) status = ir_graph_make(c->to, graph->n_params, params, graph->n_results, results, out);
  engine_canon_fini(&canon);
  return status;
}

static quern_status copy_graph(struct copying *c, const struct ir_graph *graph, const struct ir_graph **out) {
  uint64_t hash = base_hash_u64(BASE_HASH_SEED, graph->id);
  struct copied *known = base_map_find(&c->graphs, hash, same_graph, graph);
  if (known == NULL) {
    known = base_arena_new(&c->arena, struct copied);
    if (known == NULL) return QUERN_STATUS_MEMORY;
    known->from = graph;
    QUERN_TRY(build_graph(c, graph, &known->to));
    if (!base_map_add(&c->graphs, hash, known)) return QUERN_STATUS_MEMORY;
  }
  *out = known->to;
  return QUERN_STATUS_OK;
}

quern_status engine_copy(quern_context *to, const struct engine_canon *canon, size_t n, quern_tensor *const *roots,
                         quern_tensor **out, quern_tensor **leaves) {
  struct copying c = {.to = to, .leaves = leaves};
  base_arena_init(&c.arena, &to->heap);
  base_map_init(&c.graphs, &to->heap);
  quern_status status = copy_nodes(&c, canon, n, roots, NULL, out);
  base_map_fini(&c.graphs);
  base_arena_fini(&c.arena);
  return status;
}
