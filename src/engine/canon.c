/* engine/canon.c -- a graph in an order of its own: the same for graphs of one structure, whenever they were made
** A node's label describes what it computes, with leaves known by type alone. From the roots on, sources before users and
** those of commutative ops by label, each node has its place; leaves are numbered as they come.
** keeps: recursion is as deep as subgraphs lie in subgraphs; equal subgraphs are looked at once
** tests: tests/engine/test_eager.c
*/
#include "engine/engine.h"

/* ---- labels --------------------------------------------------------------------------------------------- */

/* What subgraphs compute, as far as they were met. */
struct labels {
  struct base_arena *arena;
  struct base_map graphs;
};

struct graph_label {
  const struct ir_graph *graph;
  struct engine_key key;
};

static bool same_graph(const void *item, const void *graph) {
  return ((const struct graph_label *)item)->graph == graph;
}

static quern_status label_nodes(struct labels *l, const struct ir_order *order, struct engine_key *label);

static quern_status label_graph(struct labels *l, const struct ir_graph *graph, struct engine_key *key) {
  uint64_t hash = base_hash_u64(BASE_HASH_SEED, graph->id);
  struct graph_label *known = base_map_find(&l->graphs, hash, same_graph, graph);
  if (known == NULL) {
    struct ir_order order;
    QUERN_TRY(ir_topo(graph->ctx, (size_t)graph->n_results, graph->results, &order));
    struct engine_key *label = base_arena_alloc(l->arena, order.n * sizeof *label);
    quern_status status = label != NULL ? label_nodes(l, &order, label) : QUERN_STATUS_MEMORY;
    known = status == QUERN_STATUS_OK ? base_arena_new(l->arena, struct graph_label) : NULL;
    if (known != NULL) {
      *known = (struct graph_label){graph, ENGINE_KEY};
      engine_key_add(&known->key, (uint64_t)graph->n_params);
      for (int i = 0; i < graph->n_results; i++) {
        const struct engine_key *of = &label[ir_order_find(&order, graph->results[i]->node)];
        engine_key_add(&known->key, of->word[0]);
        engine_key_add(&known->key, of->word[1] ^ (uint64_t)graph->results[i]->result);
      }
    }
    ir_order_fini(graph->ctx, &order);
    QUERN_TRY(status);
    if (known == NULL || !base_map_add(&l->graphs, hash, known)) return QUERN_STATUS_MEMORY;
  }
  *key = known->key;
  return QUERN_STATUS_OK;
}

static quern_status label_attrs(struct labels *l, const struct ir_node *node, struct engine_key *key) {
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    if ((ir_ops[node->op].attrs >> k & 1) == 0) continue;
    const void *field = (const char *)node->attrs + ir_attr_table[k].offset;
    if (ir_attr_table[k].kind != IR_KIND_GRAPH) {
      engine_key_add_attr(key, ir_attr_table[k].kind, field);
      continue;
    }
    const struct ir_graph *graph = *(const struct ir_graph *const *)field;
    struct engine_key of = {{0}};
    if (graph != NULL) QUERN_TRY(label_graph(l, graph, &of));
    engine_key_add(key, of.word[0]);
    engine_key_add(key, of.word[1]);
  }
  return QUERN_STATUS_OK;
}

/* True when the sources of a commutative op stand in the other order. */
static bool is_swapped(const struct ir_order *order, const struct engine_key *label, const struct ir_node *node) {
  if ((ir_ops[node->op].flags & IR_COMM) == 0) return false;
  const struct engine_key *a = &label[ir_order_find(order, node->src[0]->node)];
  const struct engine_key *b = &label[ir_order_find(order, node->src[1]->node)];
  return a->word[0] != b->word[0] ? a->word[0] > b->word[0] : a->word[1] > b->word[1];
}

/* Source i of a node in the canonical order. */
static const quern_tensor *source(const struct ir_order *order, const struct engine_key *label,
                                  const struct ir_node *node, int i) {
  return node->src[is_swapped(order, label, node) ? 1 - i : i];
}

static quern_status label_nodes(struct labels *l, const struct ir_order *order, struct engine_key *label) {
  for (size_t i = 0; i < order->n; i++) {
    const struct ir_node *node = order->at[i];
    struct engine_key key = ENGINE_KEY;
    engine_key_add(&key, (uint64_t)node->op << 32 | (uint64_t)(uint32_t)node->n_src);
    for (int s = 0; s < node->n_src; s++) {
      const quern_tensor *src = source(order, label, node, s);
      const struct engine_key *of = &label[ir_order_find(order, src->node)];
      engine_key_add(&key, of->word[0]);
      engine_key_add(&key, of->word[1] ^ (uint64_t)src->result);
    }
    QUERN_TRY(label_attrs(l, node, &key));
    label[i] = key;
  }
  return QUERN_STATUS_OK;
}

/* ---- order ---------------------------------------------------------------------------------------------- */

/* A node that is waited for, and the next of its sources to look at. */
struct visit {
  uint32_t place;
  int next;
};

static bool is_leaf(const struct ir_node *node) {
  return node->op == IR_INPUT || node->op == IR_STATE || node->op == IR_BUFFER;
}

/* Gives what a root reaches its places, from *n on. */
static void visit_root(struct engine_canon *c, uint32_t root, struct visit *stack, uint32_t *number, uint32_t *n) {
  size_t depth = 0;
  if (number[root] != 0) return;
  stack[depth++] = (struct visit){root, 0};
  while (depth > 0) {
    struct visit *top = &stack[depth - 1];
    struct ir_node *node = c->order.at[top->place];
    if (top->next < node->n_src) {
      const quern_tensor *src = source(&c->order, c->label, node, top->next++);
      uint32_t place = (uint32_t)ir_order_find(&c->order, src->node);
      if (number[place] == 0) stack[depth++] = (struct visit){place, 0};
      continue;
    }
    depth--;
    c->at[*n] = top->place;
    number[top->place] = ++*n;
    if (is_leaf(node)) c->leaves[c->n_leaves++] = node;
  }
}

/* The key: what each node is, by the places of its sources; then the roots. */
static void make_key(struct engine_canon *c, const uint32_t *number, size_t n, quern_tensor *const *roots) {
  c->key = ENGINE_KEY;
  engine_key_add(&c->key, c->order.n);
  for (size_t i = 0; i < c->order.n; i++) {
    const struct ir_node *node = c->order.at[c->at[i]];
    engine_key_add(&c->key, c->label[c->at[i]].word[0]);
    engine_key_add(&c->key, c->label[c->at[i]].word[1]);
    for (int s = 0; s < node->n_src; s++) {
      const quern_tensor *src = source(&c->order, c->label, node, s);
      engine_key_add(&c->key, (uint64_t)number[ir_order_find(&c->order, src->node)] << 32 | (uint64_t)src->result);
    }
  }
  for (size_t i = 0; i < n; i++)
    engine_key_add(&c->key,
                   (uint64_t)number[ir_order_find(&c->order, roots[i]->node)] << 32 | (uint64_t)roots[i]->result);
}

static quern_status make_order(struct engine_canon *c, struct base_arena *arena, size_t n, quern_tensor *const *roots) {
  size_t count = c->order.n + 1;
  struct labels labels = {.arena = arena};
  c->label = base_arena_alloc(arena, count * sizeof *c->label);
  c->at = base_arena_alloc(arena, count * sizeof *c->at);
  c->leaves = base_arena_alloc(arena, count * sizeof *c->leaves);
  uint32_t *number = base_arena_alloc(arena, count * sizeof *number); /* 0: none yet */
  struct visit *stack = base_arena_alloc(arena, count * sizeof *stack);
  if (c->label == NULL || c->at == NULL || c->leaves == NULL || number == NULL || stack == NULL)
    return QUERN_STATUS_MEMORY;
  base_map_init(&labels.graphs, &c->ctx->heap);
  quern_status status = label_nodes(&labels, &c->order, c->label);
  base_map_fini(&labels.graphs);
  QUERN_TRY(status);
  uint32_t next = 0;
  for (size_t i = 0; i < n; i++)
    visit_root(c, (uint32_t)ir_order_find(&c->order, roots[i]->node), stack, number, &next);
  make_key(c, number, n, roots);
  return QUERN_STATUS_OK;
}

quern_status engine_canon_make(struct engine_canon *canon, struct base_arena *arena, quern_context *ctx, size_t n,
                               quern_tensor *const *roots) {
  *canon = (struct engine_canon){.ctx = ctx};
  QUERN_TRY(ir_topo(ctx, n, roots, &canon->order));
  quern_status status = make_order(canon, arena, n, roots);
  if (status != QUERN_STATUS_OK) engine_canon_fini(canon);
  return status;
}

void engine_canon_fini(struct engine_canon *canon) { ir_order_fini(canon->ctx, &canon->order); }
