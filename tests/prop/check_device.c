/* prop/check_device.c -- programs of random graphs: whichever passes run, and compiled or interpreted, the same bits;
** and those of the evaluator where every operation is exact Graphs of one context become one program, so that a
** compiler runs once for many.
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "prop/prop.h"
#include "quern/program.h"

/* ---- which roots can be compared ------------------------------------------------------------------------ */

typedef bool node_test(const struct ir_node *node);

/* True when all nodes that roots reach pass, those of subgraphs too, as deep as subgraphs can be. */
static bool all_pass(quern_context *ctx, size_t n, quern_tensor *const *roots, node_test *test) {
  struct ir_order order;
  if (ir_topo(ctx, n, roots, &order) != QUERN_STATUS_OK) return false;
  bool pass = true;
  for (size_t i = 0; i < order.n && pass; i++) {
    const struct ir_graph *graphs[] = {order.at[i]->attrs->body, order.at[i]->attrs->other};
    pass = test(order.at[i]);
    for (size_t k = 0; k < BASE_COUNT(graphs) && pass; k++)
      pass = graphs[k] == NULL || all_pass(ctx, (size_t)graphs[k]->n_results, graphs[k]->results, test);
  }
  ir_order_fini(ctx, &order);
  return pass;
}

/* The bits of a NaN that arithmetic gives are not part of the contract: no float may be read as bits. */
static bool keeps_nans(const struct ir_node *node) {
  return node->op != IR_BITCAST || !base_dtype_is(node->src[0]->dtype, BASE_FLOAT);
}

/* True when the result does not depend on the order of sums, nor on how a function is approximated. */
static bool is_exact(const struct ir_node *node) {
  static const bool approximate[IR_OP_COUNT] = {
      [IR_EXP] = true,  [IR_EXPM1] = true, [IR_LOG] = true,  [IR_LOG1P] = true, [IR_SIN] = true,   [IR_COS] = true,
      [IR_TANH] = true, [IR_ERF] = true,   [IR_ERFC] = true, [IR_POW] = true,   [IR_ATAN2] = true, [IR_MOD] = true};
  static const bool sums[IR_OP_COUNT] = {
      [IR_REDUCE] = true, [IR_SCAN] = true, [IR_DOT] = true, [IR_COL2IM] = true, [IR_SCATTER] = true};
  bool floats = node->n_src > 0 && base_dtype_is(node->src[0]->dtype, BASE_FLOAT);
  enum ir_reduce reduce = node->attrs->reduce;
  bool orderly = reduce == IR_REDUCE_MAX || reduce == IR_REDUCE_MIN || reduce == IR_SET;
  return !floats || !(approximate[node->op] || (sums[node->op] && (node->op == IR_COL2IM || !orderly)));
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

struct run {
  quern_context *ctx;
  size_t n; /* roots of all graphs */
  quern_tensor **roots;
  const struct seeded **graph_of; /* of each root */
  struct base_arena arena;
};

/* The elements of a leaf: those of its name in the graph that reaches it. */
static void *leaf_values(struct run *r, const struct seeded *graph, const quern_tensor *leaf) {
  void *data = base_arena_alloc(&r->arena, ir_bytes(leaf) + 1);
  if (data != NULL) values_of_leaf(graph->seed, leaf->node->attrs->name, leaf->dtype, (size_t)ir_count(leaf), data);
  return data;
}

/* All inputs and states that the roots reach with their elements, in the order of their ids. */
struct leaves {
  size_t n_inputs, n_states;
  void **inputs, **states;
};

static quern_status find_leaves(struct run *r, struct leaves *leaves) {
  struct ir_order order;
  size_t total = 0;
  QUERN_TRY(ir_topo(r->ctx, r->n, r->roots, &order));
  total = order.n;
  void **data = base_arena_alloc(&r->arena, (total + 1) * sizeof *data);
  *leaves = (struct leaves){.inputs = base_arena_alloc(&r->arena, (total + 1) * sizeof(void *)),
                            .states = base_arena_alloc(&r->arena, (total + 1) * sizeof(void *))};
  bool ok = data != NULL && leaves->inputs != NULL && leaves->states != NULL;
  for (size_t i = 0; i < r->n && ok; i++) {
    struct ir_order own;
    ok = ir_topo(r->ctx, 1, &r->roots[i], &own) == QUERN_STATUS_OK;
    for (size_t k = 0, place = 0; ok && k < own.n; k++) { /* both are in increasing order */
      const struct ir_node *node = own.at[k];
      while (order.at[place] != node) place++;
      if ((node->op != IR_INPUT && node->op != IR_STATE) || data[place] != NULL) continue;
      data[place] = leaf_values(r, r->graph_of[i], &node->out[0]);
      ok = data[place] != NULL;
    }
    if (ok) ir_order_fini(r->ctx, &own);
  }
  for (size_t i = 0; i < total && ok; i++) {
    if (order.at[i]->op == IR_INPUT) leaves->inputs[leaves->n_inputs++] = data[i];
    if (order.at[i]->op == IR_STATE) leaves->states[leaves->n_states++] = data[i];
  }
  ir_order_fini(r->ctx, &order);
  return ok ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

struct way {
  const char *name, *device;
  int optimize;
  const char *passes, *target;
};

static quern_status run_program(struct run *r, const struct leaves *leaves, quern_program *program, void **dst) {
  quern_instance *instance;
  QUERN_TRY(quern_instance_new(&instance, program));
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < leaves->n_states && status == QUERN_STATUS_OK; i++)
    status = quern_instance_set_state(instance, i, leaves->states[i]);
  for (size_t i = 0; i < r->n && status == QUERN_STATUS_OK; i++) {
    dst[i] = base_arena_alloc(&r->arena, ir_bytes(r->roots[i]) + 1);
    if (dst[i] == NULL) status = QUERN_STATUS_MEMORY;
  }
  if (status == QUERN_STATUS_OK) status = quern_instance_run(instance, (const void *const *)leaves->inputs, dst);
  quern_instance_free(instance);
  return status;
}

static quern_status run_way(struct run *r, const struct leaves *leaves, const struct way *way, void **dst) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_program *program;
  options.device = way->device;
  options.optimize = way->optimize > 0 ? QUERN_OPTIMIZE_DEFAULT : QUERN_OPTIMIZE_NONE;
  options.passes = way->passes;
  options.target = way->target;
  options.threads = 2;
  quern_status status = quern_program_compile(&program, r->ctx, r->n, r->roots, &options);
  if (status == QUERN_STATUS_OK) {
    status = run_program(r, leaves, program, dst);
    quern_program_free(program);
  }
  return check_named(status, way->name);
}

/* The roots that are exact, as the evaluator has them. */
static quern_status compare_exact(struct run *r, void *const *values) {
  for (size_t i = 0; i < r->n; i++) {
    void *expected;
    if (!all_pass(r->ctx, 1, &r->roots[i], is_exact)) continue;
    QUERN_TRY(check_named(check_evaluate(r->ctx, r->graph_of[i]->seed, 1, &r->roots[i], &expected), "evaluate"));
    QUERN_TRY(check_same(r->ctx, "the evaluator and a program", 1, &r->roots[i], &expected, &values[i]));
  }
  return QUERN_STATUS_OK;
}

/* The row of a GPU's target, whose order of sums is its own and may be another where nothing is fused; NULL: no GPU. */
static const char *gpu_row(const char *device) {
  const quern_device *found;
  struct cg_target target;
  if (rt_device_find(&found, "device", device) != QUERN_STATUS_OK ||
      found->backend->target(found, &target) != QUERN_STATUS_OK || !target.base.gpu)
    return NULL;
  return cg_target_find(target.base.name)->base.name;
}

static quern_status run_ways(struct run *r, const char *device, const char *target) {
  const char *row = target != NULL ? target : gpu_row(device);
  const struct way ways[] = {{"optimized", device, 1, NULL, row},
                             {"not fused", device, 1, "-fuse", row},
                             {"not simplified", device, 1, "-simplify,-constant_folding,-layout", row},
                             {"not optimized", device, 0, NULL, row},
                             {"interpreted", "interp", 1, NULL, row}};
  size_t n_ways = strcmp(device, "interp") == 0 ? BASE_COUNT(ways) - 1 : BASE_COUNT(ways);
  struct leaves leaves;
  void **first = base_arena_alloc(&r->arena, (r->n + 1) * sizeof *first);
  void **next = base_arena_alloc(&r->arena, (r->n + 1) * sizeof *next);
  if (first == NULL || next == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(find_leaves(r, &leaves));
  QUERN_TRY(run_way(r, &leaves, &ways[0], first));
  QUERN_TRY(compare_exact(r, first));
  for (size_t w = row != NULL ? BASE_COUNT(ways) - 1 : 1; w < n_ways; w++) {
    QUERN_TRY(run_way(r, &leaves, &ways[w], next));
    QUERN_TRY(check_same(r->ctx, ways[w].name, r->n, r->roots, first, next));
  }
  return QUERN_STATUS_OK;
}

/* Adds the roots of a graph that can be compared. */
static void add_graph(struct run *r, const struct seeded *graph) {
  for (size_t i = 0; i < graph->n; i++) {
    if (!all_pass(r->ctx, 1, &graph->roots[i], keeps_nans)) continue;
    r->graph_of[r->n] = graph;
    r->roots[r->n++] = graph->roots[i];
  }
}

quern_status check_device(const char *device, const char *target, quern_context *ctx, size_t n_graphs,
                          const struct seeded *graphs) {
  struct run r = {.ctx = ctx};
  base_arena_init(&r.arena, &ctx->heap);
  size_t most = 0;
  for (size_t g = 0; g < n_graphs; g++) most += graphs[g].n;
  r.roots = base_arena_alloc(&r.arena, (most + 1) * sizeof *r.roots);
  r.graph_of = base_arena_alloc(&r.arena, (most + 1) * sizeof *r.graph_of);
  quern_status status = r.roots == NULL || r.graph_of == NULL ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
  for (size_t g = 0; g < n_graphs && status == QUERN_STATUS_OK; g++) add_graph(&r, &graphs[g]);
  if (status == QUERN_STATUS_OK) status = run_ways(&r, device, target);
  base_arena_fini(&r.arena);
  return status;
}
