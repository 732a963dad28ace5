/* engine/leaves.c -- inputs, states and constants: found in the graph, and laid out
** keeps: inputs and states in the order they were made; every state and constant has one place, aligned as its target asks
** tests: tests/engine/test_compile.c
*/
#include "engine/engine.h"

/* A leaf that is given at each run: an input, or a buffer without elements. */
static bool is_input(const struct ir_node *node) {
  return node->op == IR_INPUT || (node->op == IR_BUFFER && node->attrs->buffer->data == NULL);
}

static bool has(const quern_tensor *const *list, size_t n, const quern_tensor *t) {
  for (size_t i = 0; i < n; i++)
    if (list[i] == t) return true;
  return false;
}

/* What a run does to each state. States are in the order of their nodes, as those of any graph are. */
static quern_status find_state_use(struct engine_build *b) {
  const quern_program_options *options = &b->request->options;
  const struct pass_graph *main = &b->subgraphs.at[0].roots;
  struct ir_order order;
  b->state_use = base_arena_alloc(&b->arena, (b->states.n + 1) * sizeof *b->state_use);
  if (b->state_use == NULL) return QUERN_STATUS_MEMORY;
  memset(b->state_use, 0, (b->states.n + 1) * sizeof *b->state_use);
  QUERN_TRY(ir_topo(b->ctx, main->n_roots, main->roots, &order));
  for (size_t i = 0, at = 0; i < order.n; i++) {
    if (order.at[i]->op != IR_STATE) continue;
    while (b->states.at[at]->node != order.at[i]) at++;
    b->state_use[at] |= ENGINE_STATE_READ;
  }
  ir_order_fini(b->ctx, &order);
  for (size_t i = 0; i < b->states.n; i++)
    for (size_t k = 0; k < options->n_updates; k++)
      if (options->updates[k].state == b->states.at[i]) b->state_use[i] |= ENGINE_STATE_WRITTEN;
  return QUERN_STATUS_OK;
}

quern_status engine_find_leaves(struct engine_build *b) {
  const quern_program_options *options = &b->request->options;
  const struct pass_graph *main = &b->subgraphs.at[0].roots;
  struct base_heap *heap = &b->ctx->heap;
  /* the states that are updated count, whether their old values are read or not */
  size_t n = main->n_roots + options->n_updates;
  quern_tensor **roots = base_arena_alloc(&b->arena, (n + 1) * sizeof *roots);
  if (roots == NULL) return QUERN_STATUS_MEMORY;
  memcpy(roots, main->roots, main->n_roots * sizeof *roots);
  for (size_t i = 0; i < options->n_updates; i++) roots[main->n_roots + i] = options->updates[i].state;
  struct ir_order order;
  QUERN_TRY(ir_topo(b->ctx, n, roots, &order));
  bool ok = true;
  for (size_t i = 0; i < order.n && ok; i++) {
    struct ir_node *node = order.at[i];
    if (is_input(node)) ok = base_vec_push(heap, &b->inputs, &node->out[0]);
    if (node->op == IR_STATE) ok = base_vec_push(heap, &b->states, &node->out[0]);
  }
  ir_order_fini(b->ctx, &order);
  if (!ok) return QUERN_STATUS_MEMORY;
  QUERN_TRY(find_state_use(b));
  for (size_t i = 0; i < options->n_donated; i++)
    QUERN_CHECK(has((const quern_tensor *const *)b->inputs.at, b->inputs.n, options->donated[i]), INVALID,
                "program_compile: donated tensor %zu is not an input that the outputs and updates need", i);
  for (size_t i = 0; i < options->n_dynamic_batch; i++)
    QUERN_CHECK(has((const quern_tensor *const *)b->inputs.at, b->inputs.n, options->dynamic_batch[i]), INVALID,
                "program_compile: dynamic-batch tensor %zu is not an input that the outputs and updates need", i);
  return QUERN_STATUS_OK;
}

/* ---- layout ------------------------------------------------------------------------------------------------- */

static uint64_t tensor_hash(const quern_tensor *t) { return base_hash_u64(BASE_HASH_SEED, t->node->id); }

static bool same_tensor(const void *item, const void *key) { return item == key; }

static bool is_packed(const struct engine_build *b, const quern_tensor *t) {
  for (size_t i = 0; i < b->packings.n; i++)
    if (b->packings.at[i].packed == t) return true;
  return false;
}

/* Gives a leaf its place, if it needs one and has none. */
static quern_status lay(struct engine_build *b, quern_tensor *t) {
  bool state = t->node->op == IR_STATE;
  bool constant = t->node->op == IR_CONST || engine_constant_data(t) != NULL || is_packed(b, t);
  if (!state && !constant) return QUERN_STATUS_OK;
  if (base_map_find(&b->leaf_map, tensor_hash(t), same_tensor, t) != NULL) return QUERN_STATUS_OK;
  int64_t *bytes = state ? &b->state_bytes : &b->constant_bytes;
  struct plan_leaf leaf = {t, state ? PLAN_STATE : PLAN_CONST, *bytes};
  *bytes += engine_room(&b->program->target.base, (int64_t)ir_bytes(t));
  bool ok = base_map_add(&b->leaf_map, tensor_hash(t), t) && base_vec_push(&b->ctx->heap, &b->leaves, leaf);
  return ok ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status lay_subgraph(struct engine_build *b, const struct engine_subgraph *subgraph) {
  for (size_t i = 0; i < subgraph->n_steps; i++) {
    const struct pass_group *group = subgraph->steps[i].group;
    const struct ir_node *node = group->kind == PASS_KIND_CONTROL ? group->anchor : NULL;
    for (size_t k = 0; k < group->n_ins; k++) QUERN_TRY(lay(b, group->ins[k]));
    for (int k = 0; node != NULL && k < node->n_src; k++) QUERN_TRY(lay(b, node->src[k]));
  }
  for (size_t i = 0; i < subgraph->roots.n_roots; i++) QUERN_TRY(lay(b, subgraph->roots.roots[i]));
  return QUERN_STATUS_OK;
}

quern_status engine_lay_leaves(struct engine_build *b) {
  for (size_t i = 0; i < b->states.n; i++) QUERN_TRY(lay(b, b->states.at[i]));
  for (size_t i = 0; i < b->subgraphs.n; i++) QUERN_TRY(lay_subgraph(b, &b->subgraphs.at[i]));
  return QUERN_STATUS_OK;
}

void engine_fill_constants(const struct engine_build *b, char *constants) {
  for (size_t i = 0; i < b->leaves.n; i++) {
    const struct plan_leaf *leaf = &b->leaves.at[i];
    const void *data = engine_constant_data(leaf->tensor);
    if (leaf->memory == PLAN_CONST && data != NULL) memcpy(constants + leaf->at, data, ir_bytes(leaf->tensor));
  }
}
