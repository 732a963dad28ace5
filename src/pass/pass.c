/* pass/pass.c -- the table of passes, their options, and running them
** in:    roots of a graph                     out: roots of the same types and values
** keeps: the order of passes.def
** see:   README.md                            tests: tests/pass/test_passes.c
*/
#include "pass/pass_int.h"

#include <stdio.h>

const struct pass_info pass_table[PASS_COUNT] = {
#define PASS(NAME, text, description) {#text, description},
#include "pass/passes.def"
#undef PASS
};

/* FUSE makes groups, not a graph: pass_fuse. */
static pass_function *const functions[PASS_COUNT] = {
    [PASS_CHUNK] = pass_chunk,
    [PASS_INLINE] = pass_inline,
    [PASS_CONSTANT_FOLDING] = pass_constant_folding,
    [PASS_LOOPS] = pass_loops,
    [PASS_LOOP_MERGE] = pass_loop_merge,
    [PASS_SIMPLIFY] = pass_simplify,
    [PASS_COL2IM] = pass_col2im,
    [PASS_THIN_SUMS] = pass_thin_sums,
    [PASS_POOLING] = pass_pooling,
    [PASS_LAYOUT] = pass_layout,
    [PASS_LOOP_OPERANDS] = pass_loop_operands,
    [PASS_BATCHNORM] = pass_batchnorm,
    [PASS_ATTENTION_VIEWS] = pass_attention_views,
};

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* The pass of that name, or -1. */
static int find_pass(const char *name, size_t n) {
  for (int i = 0; i < PASS_COUNT; i++) {
    if (strlen(pass_table[i].name) == n && memcmp(pass_table[i].name, name, n) == 0) return i;
  }
  return -1;
}

static quern_status unknown_pass(const char *name, size_t n) {
  const char *names[PASS_COUNT];
  char word[64];
  snprintf(word, sizeof word, "%.*s", (int)BASE_MIN(n, sizeof word - 1), name);
  for (int i = 0; i < PASS_COUNT; i++) names[i] = pass_table[i].name;
  const char *near = base_nearest(word, names, PASS_COUNT);
  if (near == NULL) near = "fuse";
  return base_error(QUERN_STATUS_INVALID, "there is no pass '%s' HINT: a list looks like \"-%s,+layout\"", word, near);
}

quern_status pass_options_parse(struct pass_options *options, int optimize, const char *list) {
  for (int i = 0; i < PASS_COUNT; i++)
    options->on[i] = optimize > 0 || i == PASS_INLINE || i == PASS_COL2IM || i == PASS_THIN_SUMS;
  while (list != NULL && *list != '\0') {
    size_t n = strcspn(list, ",");
    if (n > 0) {
      QUERN_CHECK(*list == '-' || *list == '+', INVALID, "passes: '%.*s' starts with neither + nor -",
                  (int)BASE_MIN(n, 64), list);
      int pass = find_pass(list + 1, n - 1);
      if (pass < 0) return unknown_pass(list + 1, n - 1);
      QUERN_CHECK(pass != PASS_INLINE || *list == '+', INVALID, "passes: nothing runs without 'inline'");
      options->on[pass] = *list == '+';
    }
    list += n + (list[n] == ',' ? 1 : 0);
  }
  return QUERN_STATUS_OK;
}

/* ---- what changed ------------------------------------------------------------------------------------------------ */

static void log_node(char sign, const struct ir_node *node) {
  char line[BASE_MESSAGE_BYTES], type[IR_TYPE_TEXT];
  int n = snprintf(line, sizeof line, "  %c %%%u = %s", sign, node->id, ir_ops[node->op].name);
  for (int i = 0; i < node->n_src && n < (int)sizeof line - 64; i++)
    n += snprintf(line + n, sizeof line - (size_t)n, " %%%u", node->src[i]->node->id);
  snprintf(line + n, sizeof line - (size_t)n, " : %s", ir_type_text(type, &node->out[0]));
  base_log(3, "%s", line);
}

/* Logs the nodes that only one of two orders has. */
static void log_changes(const struct ir_order *before, const struct ir_order *after) {
  for (size_t i = 0, j = 0; i < before->n || j < after->n;) {
    bool old = i < before->n && (j == after->n || before->at[i]->id <= after->at[j]->id);
    bool new = j < after->n && (i == before->n || after->at[j]->id <= before->at[i]->id);
    if (!(old && new)) log_node(old ? '-' : '+', old ? before->at[i] : after->at[j]);
    i += old ? 1 : 0;
    j += new ? 1 : 0;
  }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* One pass, and the order of what it left. */
static quern_status run_pass(struct pass_graph *graph, const struct pass_options *options, pass_function *function,
                             const char *name, struct ir_order *order, struct pass_report *report) {
  double start = base_clock();
  struct ir_order after;
  QUERN_TRY(function(graph, options));
  QUERN_TRY(ir_topo(graph->ctx, graph->n_roots, graph->roots, &after));
  *report = (struct pass_report){order->n, after.n, base_clock() - start};
  base_log(1, "pass %-9s %7zu nodes became %7zu in %.3f ms", name, order->n, after.n, report->seconds * 1e3);
  if (base_env_int(BASE_ENV_DEBUG) >= 3) log_changes(order, &after);
  ir_order_fini(graph->ctx, order);
  *order = after;
  return QUERN_STATUS_OK;
}

quern_status pass_run(struct pass_graph *graph, const struct pass_options *options, struct pass_report *reports) {
  struct ir_order order;
  QUERN_TRY(ir_topo(graph->ctx, graph->n_roots, graph->roots, &order));
  quern_status status = QUERN_STATUS_OK;
  for (int i = 0; i < PASS_COUNT && status == QUERN_STATUS_OK; i++) {
    reports[i] = (struct pass_report){order.n, order.n, 0};
    if (options->on[i] && functions[i] != NULL)
      status = run_pass(graph, options, functions[i], pass_table[i].name, &order, &reports[i]);
  }
  if (status == QUERN_STATUS_OK) status = pass_split(graph, options);
  if (status == QUERN_STATUS_OK) status = pass_gemm_operands(graph, options);
  ir_order_fini(graph->ctx, &order);
  return status;
}

quern_status pass_count_users(const struct pass_graph *graph, const struct ir_order *order, int **users) {
  *users = base_alloc_zero(&graph->ctx->heap, order->n * sizeof **users);
  if (*users == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < order->n; i++) {
    for (int k = 0; k < order->at[i]->n_src; k++) (*users)[ir_order_find(order, order->at[i]->src[k]->node)]++;
  }
  for (size_t i = 0; i < graph->n_roots; i++) (*users)[ir_order_find(order, graph->roots[i]->node)]++;
  return QUERN_STATUS_OK;
}
