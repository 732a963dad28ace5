/* prop/check_pass.c -- passes keep the values of random graphs, and groups compute them
** Every pass alone, all passes, fused and not: the graph's values stay the same bit by bit, and groups that are run one
** after another by the evaluator write the same.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pass/pass_test.h"
#include "prop/prop.h"

/* The values of the leaves that roots reach, in the context's arena. */
static quern_status find_leaves(const struct check *check, size_t n, quern_tensor *const *roots, size_t *n_leaves,
                                struct ir_binding **leaves) {
  quern_context *ctx = check->ctx;
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, n, roots, &order));
  quern_status status = QUERN_STATUS_OK;
  *n_leaves = 0;
  *leaves = base_arena_alloc(&ctx->arena, order.n * sizeof **leaves);
  if (*leaves == NULL) status = QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) {
    const struct ir_node *node = order.at[i];
    if (node->op != IR_INPUT && node->op != IR_STATE) continue;
    const quern_tensor *leaf = &node->out[0];
    void *data = base_arena_alloc(&ctx->arena, ir_bytes(leaf));
    if (data == NULL) status = QUERN_STATUS_MEMORY;
    if (data != NULL) values_of_leaf(check->seed, node->attrs->name, leaf->dtype, (size_t)ir_count(leaf), data);
    (*leaves)[(*n_leaves)++] = (struct ir_binding){.leaf = leaf, .data = data};
  }
  ir_order_fini(ctx, &order);
  return status;
}

static quern_status named(quern_status status, const char *what, const char *list) {
  if (status == QUERN_STATUS_OK) return status;
  char message[BASE_MESSAGE_BYTES];
  snprintf(message, sizeof message, "%s", quern_last_error());
  return base_error(status, "%s with passes \"%s\": %s", what, list, message);
}

/* With those passes: the graph's values, and those of its groups. */
static quern_status check_list(const struct check *check, const char *list, size_t n, quern_tensor *const *roots,
                               void *const *values) {
  quern_context *ctx = check->ctx;
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  struct pass_graph graph = {ctx, n, base_arena_copy(&ctx->arena, roots, n * sizeof *roots)};
  void **now = base_arena_alloc(&ctx->arena, n * sizeof *now);
  if (graph.roots == NULL || now == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(pass_options_parse(&options, 1, list));
  options.on[PASS_COL2IM] = options.on[PASS_THIN_SUMS] = false; /* they change the order of sums: test_col2im.c */
  QUERN_TRY(named(pass_run(&graph, &options, reports), "passes", list));
  QUERN_TRY(named(ir_verify(ctx, n, graph.roots), "verify after passes", list));
  size_t n_leaves;
  struct ir_binding *leaves;
  QUERN_TRY(find_leaves(check, n, graph.roots, &n_leaves, &leaves));
  for (size_t i = 0; i < n; i++) {
    now[i] = base_arena_alloc(&ctx->arena, ir_bytes(roots[i]));
    if (now[i] == NULL) return QUERN_STATUS_MEMORY;
  }
  QUERN_TRY(named(ir_eval(ctx, n, graph.roots, now, n_leaves, leaves), "evaluate after passes", list));
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(ir_same_type(roots[i], graph.roots[i]), INTERNAL, "passes \"%s\": output %zu has another type", list,
                i);
    QUERN_CHECK(pass_test_same(roots[i], values[i], now[i]), INTERNAL, "passes \"%s\": output %zu has other bits", list,
                i);
  }
  struct pass_groups groups;
  QUERN_TRY(named(pass_fuse(&groups, &graph, &options), "fuse", list));
  quern_status status = named(pass_groups_verify(&groups, &graph), "verify groups", list);
  if (status == QUERN_STATUS_OK)
    status = named(pass_test_run(&groups, &graph, n_leaves, leaves, values), "run groups", list);
  pass_groups_fini(&groups);
  return status;
}

quern_status check_passes(const struct check *check, size_t n, quern_tensor *const *roots, void *const *values) {
  static const char *const lists[] = {
      "",
      "-fuse",
      "-constant_folding,-simplify,-layout,-batchnorm",
      "-constant_folding,-simplify,-layout,-batchnorm,-fuse",
      "-simplify,-layout,-batchnorm",
      "-constant_folding,-simplify,-batchnorm",
  };
  for (size_t i = 0; i < BASE_COUNT(lists); i++) QUERN_TRY(check_list(check, lists[i], n, roots, values));
  return QUERN_STATUS_OK;
}
