/* ir/text_number.c -- the order and the numbers in which graphs are printed
** out:   inputs, states and buffers first, by id; the rest as a walk from the roots meets it, sources before users
** keeps: the numbers depend on what is computed and on the order of the inputs only, not on the ids or on what
**        else the context holds. So a text that is parsed, in any context, prints as the same text.
** tests: tests/ir/test_text.c
*/
#include "ir/text.h"

#include <stdlib.h>
#include <string.h>

static const void *field_of(const struct ir_node *node, int attr) {
  return (const char *)node->attrs + ir_attr_table[attr].offset;
}

static bool has_attr(const struct ir_node *node, int attr) { return (ir_ops[node->op].attrs >> attr & 1) != 0; }

static bool is_identity(const struct ir_node *node) { return (ir_ops[node->op].flags & IR_IDENTITY) != 0; }

/* ---- finding the subgraphs ----------------------------------------------------------------------------- */

static uint64_t hash_graph(const struct ir_graph *graph) { return base_hash_u64(BASE_HASH_SEED, graph->id); }

static bool is_block_of(const void *item, const void *graph) {
  return ((const struct ir_text_block *)item)->graph == graph;
}

const struct ir_text_block *ir_text_blocks_find(const struct ir_text_blocks *blocks, const struct ir_graph *graph) {
  return base_map_find(&blocks->graphs, hash_graph(graph), is_block_of, graph);
}

static quern_status add_block(struct ir_text_blocks *blocks, const struct ir_graph *graph, size_t n,
                              quern_tensor *const *roots) {
  struct ir_text_block *block = base_arena_new(&blocks->scratch, struct ir_text_block);
  if (block == NULL || !base_vec_push(&blocks->ctx->heap, &blocks->found, block)) return QUERN_STATUS_MEMORY;
  *block = (struct ir_text_block){.graph = graph, .n_roots = n, .roots = roots};
  if (graph != NULL && !base_map_add(&blocks->graphs, hash_graph(graph), block)) return QUERN_STATUS_MEMORY;
  QUERN_TRY(ir_topo(blocks->ctx, n, roots, &block->order));
  block->hash = base_arena_alloc(&blocks->scratch, block->order.n * sizeof *block->hash);
  block->number = base_arena_alloc(&blocks->scratch, block->order.n * sizeof *block->number);
  block->sequence = base_arena_alloc(&blocks->scratch, block->order.n * sizeof *block->sequence);
  if (block->hash == NULL || block->number == NULL || block->sequence == NULL) return QUERN_STATUS_MEMORY;
  return QUERN_STATUS_OK;
}

/* The next subgraph that a node has from attribute *attr on, or NULL; *attr is left after it. */
static const struct ir_graph *next_graph(const struct ir_node *node, int *attr) {
  while (*attr < IR_ATTR_COUNT) {
    int k = (*attr)++;
    if (!has_attr(node, k) || ir_attr_table[k].kind != IR_KIND_GRAPH) continue;
    const struct ir_graph *graph = *(const struct ir_graph *const *)field_of(node, k);
    if (graph != NULL) return graph;
  }
  return NULL;
}

static quern_status add_blocks_of(struct ir_text_blocks *blocks, const struct ir_text_block *block) {
  for (size_t i = 0; i < block->order.n; i++) {
    int attr = 0;
    for (const struct ir_graph *graph; (graph = next_graph(block->order.at[i], &attr)) != NULL;) {
      if (ir_text_blocks_find(blocks, graph) != NULL) continue;
      QUERN_TRY(add_block(blocks, graph, (size_t)graph->n_results, graph->results));
    }
  }
  return QUERN_STATUS_OK;
}

/* Inner graphs are made before the ones they stand in. */
static int by_graph_id(const void *a, const void *b) {
  const struct ir_graph *x = (*(struct ir_text_block *const *)a)->graph,
                        *y = (*(struct ir_text_block *const *)b)->graph;
  if (x == NULL || y == NULL) return (x == NULL) - (y == NULL);
  return (x->id > y->id) - (x->id < y->id);
}

/* ---- hashes of meaning ---------------------------------------------------------------------------------- */

/* A subgraph hashes as what it computes, whatever its number; a buffer not at all. */
static uint64_t hash_attr(const struct ir_text_blocks *blocks, uint64_t h, enum ir_attr_kind kind, const void *field) {
  if (kind != IR_KIND_GRAPH) return ir_attr_hash(h, kind, field);
  const struct ir_text_block *inner = ir_text_blocks_find(blocks, *(const struct ir_graph *const *)field);
  for (size_t i = 0; i < inner->n_roots; i++) {
    ptrdiff_t place = ir_order_find(&inner->order, inner->roots[i]->node);
    h = base_hash_u64(base_hash_u64(h, inner->hash[place]), (uint64_t)inner->roots[i]->result);
  }
  return h;
}

/* Nodes that only differ in the order of a commutative op's sources hash alike; leaves that intern by identity hash as
** their rank among those of the block. */
static void hash_block(const struct ir_text_blocks *blocks, struct ir_text_block *block) {
  uint64_t rank = 0;
  for (size_t i = 0; i < block->order.n; i++) {
    const struct ir_node *node = block->order.at[i];
    uint64_t h = base_hash_u64(BASE_HASH_SEED, (uint64_t)node->op), two[2] = {0};
    for (int s = 0; s < node->n_src; s++) {
      ptrdiff_t place = ir_order_find(&block->order, node->src[s]->node);
      uint64_t source = base_hash_u64(block->hash[place], (uint64_t)node->src[s]->result);
      if (ir_ops[node->op].flags & IR_COMM)
        two[s] = source;
      else
        h = base_hash_u64(h, source);
    }
    if (ir_ops[node->op].flags & IR_COMM)
      h = base_hash_u64(base_hash_u64(h, BASE_MIN(two[0], two[1])), BASE_MAX(two[0], two[1]));
    for (int k = 0; k < IR_ATTR_COUNT; k++) {
      if (has_attr(node, k)) h = hash_attr(blocks, h, ir_attr_table[k].kind, field_of(node, k));
    }
    block->hash[i] = is_identity(node) ? base_hash_u64(h, rank++) : h;
  }
}

/* ---- numbers -------------------------------------------------------------------------------------------- */

struct step {
  size_t place;
  int next; /* source */
};

struct walk {
  bool *done; /* by place */
  BASE_VEC(struct step) stack;
};

/* Source i in the order a walk visits them. */
static quern_tensor *visited_source(const struct ir_text_block *block, const struct ir_node *node, int i) {
  if (!(ir_ops[node->op].flags & IR_COMM)) return node->src[i];
  uint64_t h[2];
  for (int s = 0; s < 2; s++) {
    h[s] = base_hash_u64(block->hash[ir_order_find(&block->order, node->src[s]->node)], (uint64_t)node->src[s]->result);
  }
  return node->src[h[0] <= h[1] ? i : 1 - i];
}

static void give_number(struct ir_text_block *block, size_t place, size_t *next) {
  block->number[place] = (*next)++;
  block->sequence[block->n++] = place;
}

static quern_status walk_from(struct ir_text_blocks *blocks, struct ir_text_block *block, struct walk *walk,
                              const struct ir_node *root, size_t *next) {
  struct base_heap *heap = &blocks->ctx->heap;
  struct step start = {.place = (size_t)ir_order_find(&block->order, root)};
  if (walk->done[start.place]) return QUERN_STATUS_OK;
  if (!base_vec_push(heap, &walk->stack, start)) return QUERN_STATUS_MEMORY;
  while (walk->stack.n > 0) {
    struct step *top = &walk->stack.at[walk->stack.n - 1];
    const struct ir_node *node = block->order.at[top->place];
    if (top->next == node->n_src) {
      walk->done[top->place] = true;
      give_number(block, top->place, next);
      walk->stack.n--;
      continue;
    }
    const quern_tensor *source = visited_source(block, node, top->next++);
    struct step step = {.place = (size_t)ir_order_find(&block->order, source->node)};
    if (!walk->done[step.place] && !base_vec_push(heap, &walk->stack, step)) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

static quern_status number_block(struct ir_text_blocks *blocks, struct ir_text_block *block) {
  struct walk walk = {.done = base_arena_alloc(&blocks->scratch, block->order.n * sizeof *walk.done)};
  size_t next = block->graph != NULL ? (size_t)block->graph->n_params : 0;
  if (walk.done == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < block->order.n; i++) {
    const struct ir_node *node = block->order.at[i];
    if (node->op == IR_PARAM && block->graph != NULL) {
      block->number[i] = (size_t)node->attrs->index;
      walk.done[i] = true;
    } else if (is_identity(node)) {
      give_number(block, i, &next);
      walk.done[i] = true;
    }
  }
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < block->n_roots && status == QUERN_STATUS_OK; i++) {
    status = walk_from(blocks, block, &walk, block->roots[i]->node, &next);
  }
  base_vec_fini(&blocks->ctx->heap, &walk.stack);
  return status;
}

/* ---- the order of blocks -------------------------------------------------------------------------------- */

/* Where the scan of a block for subgraphs stands. */
struct scan {
  struct ir_text_block *block;
  size_t i;
  int attr;
  struct scan *outer;
  bool seen;
};

/* A walk through the blocks as the main graph's text meets them; each is put after those inside it. */
static quern_status order_blocks(struct ir_text_blocks *blocks) {
  size_t n = blocks->found.n;
  struct scan *scans = base_arena_alloc(&blocks->scratch, n * sizeof *scans);
  blocks->at = base_arena_alloc(&blocks->scratch, n * sizeof *blocks->at);
  if (scans == NULL || blocks->at == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) {
    scans[i].block = blocks->found.at[i];
    scans[i].block->name = i; /* of its scan, until it gets its own */
  }
  for (struct scan *scan = &scans[n - 1]; scan != NULL;) {
    const struct ir_graph *graph = NULL;
    if (scan->i < scan->block->n) {
      graph = next_graph(scan->block->order.at[scan->block->sequence[scan->i]], &scan->attr);
    }
    if (graph != NULL) {
      struct scan *inner = &scans[ir_text_blocks_find(blocks, graph)->name];
      if (inner->seen) continue;
      inner->seen = true;
      inner->outer = scan;
      scan = inner;
    } else if (scan->i < scan->block->n) {
      scan->i++;
      scan->attr = 0;
    } else {
      blocks->at[blocks->n++] = scan->block;
      scan = scan->outer;
    }
  }
  for (size_t i = 0; i < n; i++) blocks->at[i]->name = i;
  return QUERN_STATUS_OK;
}

quern_status ir_text_blocks_init(struct ir_text_blocks *blocks, quern_context *ctx, size_t n,
                                 quern_tensor *const *roots) {
  *blocks = (struct ir_text_blocks){.ctx = ctx};
  base_arena_init(&blocks->scratch, &ctx->heap);
  base_map_init(&blocks->graphs, &ctx->heap);
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(!ir_is_poison(roots[i]), INVALID, "output %zu is null or the result of a failed call", i);
    QUERN_CHECK(roots[i]->node->ctx == ctx, INVALID, "output %zu belongs to another context", i);
  }
  QUERN_TRY(add_block(blocks, NULL, n, roots));
  for (size_t i = 0; i < blocks->found.n; i++) QUERN_TRY(add_blocks_of(blocks, blocks->found.at[i]));
  qsort(blocks->found.at, blocks->found.n, sizeof *blocks->found.at, by_graph_id);
  for (size_t i = 0; i < blocks->found.n; i++) hash_block(blocks, blocks->found.at[i]);
  for (size_t i = 0; i < blocks->found.n; i++) QUERN_TRY(number_block(blocks, blocks->found.at[i]));
  return order_blocks(blocks);
}

void ir_text_blocks_fini(struct ir_text_blocks *blocks) {
  for (size_t i = 0; i < blocks->found.n; i++) ir_order_fini(blocks->ctx, &blocks->found.at[i]->order);
  base_vec_fini(&blocks->ctx->heap, &blocks->found);
  base_map_fini(&blocks->graphs);
  base_arena_fini(&blocks->scratch);
}

size_t ir_text_block_number(const struct ir_text_block *block, const struct ir_node *node) {
  return block->number[ir_order_find(&block->order, node)];
}

quern_tensor *ir_text_block_source(const struct ir_text_block *block, const struct ir_node *node, int i) {
  if (!(ir_ops[node->op].flags & IR_COMM)) return node->src[i];
  const quern_tensor *a = node->src[0], *b = node->src[1];
  size_t na = ir_text_block_number(block, a->node), nb = ir_text_block_number(block, b->node);
  bool in_order = na != nb ? na < nb : a->result <= b->result;
  return node->src[in_order ? i : 1 - i];
}
