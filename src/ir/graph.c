/* ir/graph.c -- walking graphs, rebuilding them, and closed subgraphs
** keeps: no recursion on graph depth; order is by node id
** tests: tests/ir/test_graph.c
*/
#include <string.h>

#include "ir/ir.h"

/* ---- order ---------------------------------------------------------------------------------------------------------- */

/* Merges sorted runs of width w, from src to dst; a pair already in order is copied. */
static void merge_runs(struct ir_node **dst, struct ir_node *const *src, size_t n, size_t w) {
  for (size_t lo = 0; lo < n; lo += 2 * w) {
    size_t mid = BASE_MIN(lo + w, n), hi = BASE_MIN(lo + 2 * w, n);
    size_t i = lo, j = mid;
    for (size_t k = lo; k < hi; k++) dst[k] = j >= hi || (i < mid && src[i]->id < src[j]->id) ? src[i++] : src[j++];
  }
}

static quern_status sort_by_id(quern_context *ctx, struct ir_order *order) {
  bool sorted = true;
  for (size_t i = 1; i < order->n && sorted; i++) sorted = order->at[i - 1]->id < order->at[i]->id;
  if (sorted) return QUERN_STATUS_OK;
  size_t bytes = order->cap * sizeof *order->at;
  struct ir_node **other = base_alloc(&ctx->heap, bytes);
  if (other == NULL) return QUERN_STATUS_MEMORY;
  for (size_t w = 1; w < order->n; w *= 2) {
    merge_runs(other, order->at, order->n, w);
    struct ir_node **swap = order->at;
    order->at = other;
    other = swap;
  }
  base_free(&ctx->heap, other, bytes);
  return QUERN_STATUS_OK;
}

void ir_order_fini(quern_context *ctx, struct ir_order *order) { base_vec_fini(&ctx->heap, order); }

uint32_t ir_epoch(quern_context *ctx) {
  if (ctx->epoch == UINT32_MAX) { /* all numbers were used once: begin again */
    for (size_t i = 0; i < ctx->nodes.cap; i++) {
      struct ir_node *node = ctx->nodes.slots[i].item;
      if (node != NULL) node->mark = 0;
    }
    for (size_t i = 0; i < ctx->graphs.cap; i++) {
      struct ir_graph *graph = ctx->graphs.slots[i].item;
      if (graph != NULL) graph->mark = 0;
    }
    ctx->epoch = 0;
  }
  return ++ctx->epoch;
}

/* Adds the node of a tensor to the order unless it is marked already. */
static quern_status order_add(quern_context *ctx, struct ir_order *order, const quern_tensor *t, uint32_t epoch) {
  QUERN_CHECK(!ir_is_poison(t), INTERNAL, "a graph reaches the poison");
  if (t->node->mark == epoch) return QUERN_STATUS_OK;
  t->node->mark = epoch;
  return base_vec_push(&ctx->heap, order, t->node) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

quern_status ir_topo(quern_context *ctx, size_t n, quern_tensor *const *roots, struct ir_order *order) {
  *order = (struct ir_order){0};
  uint32_t epoch = ir_epoch(ctx);
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) status = order_add(ctx, order, roots[i], epoch);
  for (size_t next = 0; next < order->n; next++) {
    const struct ir_node *node = order->at[next];
    for (int i = 0; i < node->n_src && status == QUERN_STATUS_OK; i++)
      status = order_add(ctx, order, node->src[i], epoch);
    if (status != QUERN_STATUS_OK) break;
  }
  for (size_t i = 0; i < order->n / 2; i++) { /* users came first: nearly sorted the other way round */
    struct ir_node *swap = order->at[i];
    order->at[i] = order->at[order->n - 1 - i];
    order->at[order->n - 1 - i] = swap;
  }
  if (status == QUERN_STATUS_OK) status = sort_by_id(ctx, order);
  if (status != QUERN_STATUS_OK) ir_order_fini(ctx, order);
  order->epoch = epoch;
  for (size_t i = 0; i < order->n; i++) order->at[i]->position = (uint32_t)i;
  return status;
}

ptrdiff_t ir_order_find(const struct ir_order *order, const struct ir_node *node) {
  if (node->mark == order->epoch && node->position < order->n && order->at[node->position] == node)
    return node->position;
  size_t lo = 0, hi = order->n; /* found in a later order since, or not in this one */
  while (lo < hi) {
    size_t mid = lo + (hi - lo) / 2;
    if (order->at[mid]->id < node->id) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo < order->n && order->at[lo] == node ? (ptrdiff_t)lo : -1;
}

/* ---- rebuilding ----------------------------------------------------------------------------------------------------- */

quern_status ir_poison_error(quern_context *ctx) {
  QUERN_TRY(quern_context_check(ctx));
  return base_error(QUERN_STATUS_INTERNAL, "a poison tensor without an error");
}

quern_status ir_rebuild(struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  struct ir_node *now = node;
  if (node->n_src > 0 && memcmp(src, node->src, (size_t)node->n_src * sizeof *src) != 0) {
    quern_tensor *made = ir_make(node->ctx, node->op, node->n_src, src, node->attrs);
    if (ir_is_poison(made)) return ir_poison_error(node->ctx);
    now = made->node;
  }
  for (int i = 0; i < node->n_out; i++) out[i] = &now->out[i];
  return QUERN_STATUS_OK;
}

quern_status ir_transform(quern_context *ctx, size_t n, quern_tensor *const *roots, ir_visit *visit, void *user,
                          quern_tensor **out) {
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, n, roots, &order));
  quern_status status = QUERN_STATUS_MEMORY;
  size_t n_out = 0, n_src = 1;
  for (size_t i = 0; i < order.n; i++) {
    n_out += (size_t)order.at[i]->n_out;
    n_src = BASE_MAX(n_src, (size_t)order.at[i]->n_src);
  }
  size_t first_bytes = order.n * sizeof(size_t), now_bytes = n_out * sizeof *out, src_bytes = n_src * sizeof *out;
  size_t *first = base_alloc(&ctx->heap, first_bytes); /* where the results of node i start in now */
  quern_tensor **now = base_alloc(&ctx->heap, now_bytes);
  quern_tensor **src = base_alloc(&ctx->heap, src_bytes);
  if (first == NULL || now == NULL || src == NULL) goto done;
  size_t place = 0;
  for (size_t i = 0; i < order.n; i++) {
    struct ir_node *node = order.at[i];
    first[i] = place;
    for (int k = 0; k < node->n_src; k++) {
      src[k] = now[first[ir_order_find(&order, node->src[k]->node)] + (size_t)node->src[k]->result];
    }
    status = visit(user, node, src, now + place);
    if (status != QUERN_STATUS_OK) goto done;
    place += (size_t)node->n_out;
  }
  for (size_t i = 0; i < n; i++) out[i] = now[first[ir_order_find(&order, roots[i]->node)] + (size_t)roots[i]->result];
  status = QUERN_STATUS_OK;
done:
  base_free(&ctx->heap, src, src_bytes);
  base_free(&ctx->heap, now, now_bytes);
  base_free(&ctx->heap, first, first_bytes);
  ir_order_fini(ctx, &order);
  return status;
}

struct pairs {
  size_t n;
  quern_tensor *const *from, *const *to;
};

static quern_status visit_pairs(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  const struct pairs *pairs = user;
  QUERN_TRY(ir_rebuild(node, src, out));
  for (size_t k = 0; k < pairs->n; k++) {
    if (pairs->from[k]->node == node) out[pairs->from[k]->result] = pairs->to[k];
  }
  return QUERN_STATUS_OK;
}

quern_status ir_substitute(quern_context *ctx, size_t n, quern_tensor *const *roots, size_t n_pairs,
                           quern_tensor *const *from, quern_tensor *const *to, quern_tensor **out) {
  for (size_t k = 0; k < n_pairs; k++) {
    QUERN_CHECK(ir_same_type(from[k], to[k]), INTERNAL, "substitute: %s by %s",
                ir_type_text((char[IR_TYPE_TEXT]){0}, from[k]), ir_type_text((char[IR_TYPE_TEXT]){0}, to[k]));
  }
  return ir_transform(ctx, n, roots, visit_pairs, &(struct pairs){n_pairs, from, to}, out);
}

/* ---- closed graphs -------------------------------------------------------------------------------------------------- */

quern_tensor *ir_leaf(quern_context *ctx, quern_dtype dtype, int rank, const int64_t *dims) {
  return ir_make(ctx, IR_INPUT, 0, NULL, &(struct ir_attrs){.name = "", .dtype = dtype, .shape = {rank, dims}});
}

quern_tensor *ir_leaf_like(quern_tensor *t) {
  return ir_is_poison(t) ? &ir_poison : ir_leaf(t->node->ctx, t->dtype, t->rank, t->dims);
}

/* Fails when results reach a leaf that a closed graph cannot have; fills the graph's depth and count of nodes. */
static quern_status check_closed(quern_context *ctx, int n_params, quern_tensor *const *params, int n_results,
                                 quern_tensor *const *results, struct ir_graph *graph) {
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, (size_t)n_results, results, &order));
  quern_status status = QUERN_STATUS_OK;
  graph->depth = 0;
  graph->n_nodes = order.n;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) {
    const struct ir_node *node = order.at[i];
    const struct ir_graph *inside[] = {node->attrs->body, node->attrs->other};
    for (size_t k = 0; k < BASE_COUNT(inside); k++) {
      if (inside[k] != NULL) graph->depth = BASE_MAX(graph->depth, inside[k]->depth + 1);
    }
    bool leaf = node->op == IR_INPUT || node->op == IR_STATE || node->op == IR_BUFFER || node->op == IR_PARAM;
    for (int k = 0; k < n_params && leaf; k++) leaf = params[k]->node != node;
    if (leaf) {
      status = base_error(QUERN_STATUS_INVALID,
                          "a body uses %s '%s' %s, which is not among its operands HINT: pass it as an operand",
                          ir_ops[node->op].name, node->attrs->name == NULL ? "" : node->attrs->name,
                          ir_type_text((char[IR_TYPE_TEXT]){0}, &node->out[0]));
    }
  }
  ir_order_fini(ctx, &order);
  return status;
}

static bool graph_equals(const void *item, const void *against) {
  const struct ir_graph *a = item, *b = against;
  return a->n_params == b->n_params && a->n_results == b->n_results &&
         memcmp(a->params, b->params, (size_t)a->n_params * sizeof *a->params) == 0 &&
         memcmp(a->results, b->results, (size_t)a->n_results * sizeof *a->results) == 0;
}

static uint64_t hash_graph(const struct ir_graph *graph) {
  uint64_t h = base_hash_u64(BASE_HASH_SEED, (uint64_t)graph->n_params);
  for (int i = 0; i < graph->n_params; i++) h = base_hash_u64(h, graph->params[i]->node->id);
  for (int i = 0; i < graph->n_results; i++) {
    h = base_hash_u64(h, (uint64_t)graph->results[i]->node->id << 32 | (uint64_t)graph->results[i]->result);
  }
  return h;
}

bool ir_graph_is_interned(const struct ir_graph *graph) {
  return hash_graph(graph) == graph->hash &&
         base_map_find(&graph->ctx->graphs, graph->hash, graph_equals, graph) == graph;
}

size_t ir_graph_bytes(const struct ir_graph *graph) {
  return sizeof *graph + (size_t)(graph->n_params + graph->n_results) * sizeof(quern_tensor *);
}

/* The interned graph of these params and results, which are final. */
static quern_status intern_graph(quern_context *ctx, const struct ir_graph *like, const struct ir_graph **out) {
  uint64_t h = hash_graph(like);
  struct ir_graph *graph = base_map_find(&ctx->graphs, h, graph_equals, like);
  if (graph == NULL) {
    graph = ir_cell_new(ctx, ir_graph_bytes(like));
    if (graph == NULL) return QUERN_STATUS_MEMORY;
    *graph = *like;
    graph->params = (quern_tensor **)(graph + 1);
    graph->results = graph->params + like->n_params;
    for (int i = 0; i < like->n_params; i++) graph->params[i] = like->params[i];
    for (int i = 0; i < like->n_results; i++) graph->results[i] = like->results[i];
    if (!ir_intern(ctx, &ctx->graphs, h, graph)) return QUERN_STATUS_MEMORY;
    graph->hash = h;
    graph->mark = 0;
    graph->id = ctx->n_graphs++;
  }
  *out = graph;
  return QUERN_STATUS_OK;
}

quern_status ir_graph_make(quern_context *ctx, int n_params, quern_tensor *const *params, int n_results,
                           quern_tensor *const *results, const struct ir_graph **out) {
  for (int i = 0; i < n_params + n_results; i++) {
    const quern_tensor *t = i < n_params ? params[i] : results[i - n_params];
    const char *what = i < n_params ? "parameter" : "result";
    int number = i < n_params ? i : i - n_params;
    QUERN_CHECK(t != NULL, INVALID, "a body's %s %d is null", what, number);
    if (ir_is_poison(t)) return ir_poison_error(ctx);
    QUERN_CHECK(t->node->ctx == ctx, INVALID, "a body's %s %d belongs to another context", what, number);
  }
  struct ir_graph graph = {.ctx = ctx, .n_params = n_params, .n_results = n_results};
  QUERN_TRY(check_closed(ctx, n_params, params, n_results, results, &graph));
  quern_status status = QUERN_STATUS_MEMORY;
  size_t bytes = (size_t)(n_params + n_results) * sizeof *graph.params;
  graph.params = base_alloc(&ctx->heap, bytes);
  if (graph.params == NULL) return status;
  graph.results = graph.params + n_params;
  for (int i = 0; i < n_params; i++) {
    const quern_tensor *p = params[i];
    graph.params[i] =
        ir_make(ctx, IR_PARAM, 0, NULL, &(struct ir_attrs){.index = i, .dtype = p->dtype, .shape = {p->rank, p->dims}});
    if (ir_is_poison(graph.params[i])) {
      status = ir_poison_error(ctx);
      goto done;
    }
  }
  status = ir_substitute(ctx, (size_t)n_results, results, (size_t)n_params, params, graph.params, graph.results);
  if (status == QUERN_STATUS_OK) status = intern_graph(ctx, &graph, out);
done:
  base_free(&ctx->heap, graph.params, bytes);
  return status;
}

quern_status ir_inline(quern_context *ctx, const struct ir_graph *graph, quern_tensor *const *args,
                       quern_tensor **results) {
  QUERN_ASSERT(graph != NULL);
  return ir_substitute(ctx, (size_t)graph->n_results, graph->results, (size_t)graph->n_params, graph->params, args,
                       results);
}

/* ---- subgraphs inside, and composites out -------------------------------------------------------------------------- */

quern_status ir_graph_transform(quern_context *ctx, const struct ir_graph *graph, ir_visit *visit, void *user,
                                const struct ir_graph **out) {
  struct ir_graph now = *graph;
  size_t bytes = (size_t)graph->n_results * sizeof *now.results;
  now.results = base_alloc(&ctx->heap, bytes);
  if (now.results == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = ir_transform(ctx, (size_t)graph->n_results, graph->results, visit, user, now.results);
  if (status == QUERN_STATUS_OK) {
    status = check_closed(ctx, now.n_params, now.params, now.n_results, now.results, &now);
  }
  if (status == QUERN_STATUS_OK) status = intern_graph(ctx, &now, out);
  base_free(&ctx->heap, now.results, bytes);
  return status;
}

/* Bodies in which composites are inlined already, by the body's id: a body in a body in a body is visited once. */
struct inlining {
  quern_context *ctx;
  uint32_t nodes; /* of the context before the first */
  struct base_arena arena;
  struct base_map bodies;
};

struct inlined {
  const struct ir_graph *from, *to;
};

static bool is_from(const void *item, const void *key) { return ((const struct inlined *)item)->from == key; }

static quern_status visit_inline(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out);

static quern_status inline_body(struct inlining *in, const struct ir_graph **body) {
  if (*body == NULL) return QUERN_STATUS_OK;
  uint64_t hash = base_hash_u64(BASE_HASH_SEED, (*body)->id);
  struct inlined *known = base_map_find(&in->bodies, hash, is_from, *body);
  if (known == NULL) {
    known = base_arena_new(&in->arena, struct inlined);
    if (known == NULL) return QUERN_STATUS_MEMORY;
    known->from = *body;
    QUERN_TRY(ir_graph_transform(in->ctx, *body, visit_inline, in, &known->to));
    if (!base_map_add(&in->bodies, hash, known)) return QUERN_STATUS_MEMORY;
  }
  *body = known->to;
  return QUERN_STATUS_OK;
}

/* Nodes that subgraphs in subgraphs may add where there are so many: large graphs may grow more. */
static uint64_t most_added(uint64_t nodes) { return BASE_MAX((uint64_t)IR_MOST_INLINED, 64 * nodes); }

/* Adds the nodes that roots reach, and once those of each subgraph. Recursion is as deep as subgraphs lie in subgraphs. */
static quern_status count_nodes(quern_context *ctx, size_t n, quern_tensor *const *roots, uint32_t epoch,
                                uint64_t *count) {
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, n, roots, &order));
  quern_status status = QUERN_STATUS_OK;
  *count += order.n;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) {
    const struct ir_graph *inside[] = {order.at[i]->attrs->body, order.at[i]->attrs->other};
    for (size_t k = 0; k < BASE_COUNT(inside) && status == QUERN_STATUS_OK; k++) {
      if (inside[k] == NULL || inside[k]->mark == epoch) continue;
      ((struct ir_graph *)(uintptr_t)inside[k])->mark = epoch; /* scratch, as a node's mark */
      status = count_nodes(ctx, (size_t)inside[k]->n_results, inside[k]->results, epoch, count);
    }
  }
  ir_order_fini(ctx, &order);
  return status;
}

quern_status ir_growth_begin(quern_context *ctx, size_t n, quern_tensor *const *roots, bool *outermost) {
  uint64_t count = 0;
  *outermost = !ctx->growing;
  if (ctx->growing) return QUERN_STATUS_OK;
  QUERN_TRY(count_nodes(ctx, n, roots, ir_epoch(ctx), &count));
  ctx->growing = true;
  ctx->growth_from = ctx->n_nodes;
  ctx->growth_most = most_added(count);
  return QUERN_STATUS_OK;
}

void ir_growth_end(quern_context *ctx, bool outermost) {
  if (outermost) ctx->growing = false;
}

quern_status ir_growth_check(const quern_context *ctx, const char *what) {
  QUERN_CHECK(!ctx->growing || ctx->n_nodes - ctx->growth_from <= ctx->growth_most, UNSUPPORTED,
              "%s: more than %llu nodes were made\n"
              "  HINT: loops, branches and composites that hold two others each double at each level; let fewer lie in "
              "each other",
              what, (unsigned long long)ctx->growth_most);
  return QUERN_STATUS_OK;
}

quern_status ir_inline_composite(struct ir_node *node, const struct ir_graph *body, quern_tensor *const *src,
                                 uint32_t nodes_before, quern_tensor **out) {
  quern_context *ctx = node->ctx;
  QUERN_TRY(ir_inline(ctx, body, src, out));
  uint64_t most = most_added(nodes_before);
  QUERN_CHECK(
      ctx->n_nodes - nodes_before <= most, UNSUPPORTED,
      "inline: with the body of composite \"%s\" there are more than %llu nodes\n"
      "  HINT: a body that holds another composite twice doubles at each level; compute shared values once, or use a "
      "loop",
      node->attrs->name, (unsigned long long)most);
  return QUERN_STATUS_OK;
}

static quern_status visit_inline(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  struct inlining *in = user;
  quern_context *ctx = in->ctx;
  struct ir_attrs attrs = *node->attrs;
  QUERN_TRY(inline_body(in, &attrs.body));
  QUERN_TRY(inline_body(in, &attrs.other));
  if (node->op == IR_COMPOSITE) return ir_inline_composite(node, attrs.body, src, in->nodes, out);
  if (attrs.body == node->attrs->body && attrs.other == node->attrs->other) return ir_rebuild(node, src, out);
  quern_tensor *made = ir_make(ctx, node->op, node->n_src, src, &attrs);
  if (ir_is_poison(made)) return ir_poison_error(ctx);
  for (int i = 0; i < node->n_out; i++) out[i] = ir_result(made, i);
  return QUERN_STATUS_OK;
}

quern_status ir_inline_composites(quern_context *ctx, size_t n, quern_tensor *const *roots, quern_tensor **out) {
  struct inlining in = {.ctx = ctx, .nodes = ctx->n_nodes};
  base_arena_init(&in.arena, &ctx->heap);
  base_map_init(&in.bodies, &ctx->heap);
  quern_status status = ir_transform(ctx, n, roots, visit_inline, &in, out);
  base_map_fini(&in.bodies);
  base_arena_fini(&in.arena);
  return status;
}
