/* prop/check.c -- what must be true of every graph, and making a counterexample small */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "prop/prop.h"
#include "quern/grad.h"

/* ---- evaluation -------------------------------------------------------------------------------------- */

/* Leaves get the values that the seed and their names stand for. */
quern_status check_evaluate(quern_context *ctx, uint64_t seed, size_t n, quern_tensor *const *roots, void **dst) {
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, n, roots, &order));
  size_t n_bindings = 0;
  struct ir_binding *bindings = base_arena_alloc(&ctx->arena, order.n * sizeof *bindings);
  quern_status status = bindings == NULL ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++) {
    const struct ir_node *node = order.at[i];
    if (node->op != IR_INPUT && node->op != IR_STATE) continue;
    const quern_tensor *leaf = &node->out[0];
    void *data = base_arena_alloc(&ctx->arena, ir_bytes(leaf));
    if (data == NULL) status = QUERN_STATUS_MEMORY;
    if (data != NULL) values_of_leaf(seed, node->attrs->name, leaf->dtype, (size_t)ir_count(leaf), data);
    bindings[n_bindings++] = (struct ir_binding){.leaf = leaf, .data = data};
  }
  ir_order_fini(ctx, &order);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) {
    dst[i] = base_arena_alloc(&ctx->arena, ir_bytes(roots[i]));
    if (dst[i] == NULL) status = QUERN_STATUS_MEMORY;
  }
  return status == QUERN_STATUS_OK ? ir_eval(ctx, n, roots, dst, n_bindings, bindings) : status;
}

static bool same_element(quern_dtype dtype, const void *a, const void *b, size_t i) {
  size_t size = base_dtypes[dtype].size;
  if (memcmp((const char *)a + i * size, (const char *)b + i * size, size) == 0) return true;
  return base_dtype_is(dtype, BASE_FLOAT) && isnan(base_load_float(dtype, a, i)) && isnan(base_load_float(dtype, b, i));
}

quern_status check_same(quern_context *ctx, const char *what, size_t n, quern_tensor *const *roots, void *const *a,
                        void *const *b) {
  for (size_t i = 0; i < n; i++) {
    for (size_t k = 0; k < (size_t)ir_count(roots[i]); k++) {
      if (same_element(roots[i]->dtype, a[i], b[i], k)) continue;
      struct base_str str;
      base_str_init(&str, &ctx->heap);
      base_element_print(&str, roots[i]->dtype, a[i], k);
      base_str_add(&str, " became ");
      base_element_print(&str, roots[i]->dtype, b[i], k);
      quern_status status = base_error(QUERN_STATUS_INTERNAL, "%s: element %zu of output %zu (%s): %s", what, k, i,
                                       base_dtypes[roots[i]->dtype].name, str.at);
      base_str_fini(&str);
      return status;
    }
  }
  return QUERN_STATUS_OK;
}

quern_status check_named(quern_status status, const char *what) {
  if (status == QUERN_STATUS_OK) return status;
  char message[BASE_MESSAGE_BYTES];
  snprintf(message, sizeof message, "%s", quern_last_error());
  return base_error(status, "%s: %s", what, message);
}

/* ---- text -------------------------------------------------------------------------------------------- */

static quern_status check_parsed(const struct check *check, quern_context *other, const struct base_str *text, size_t n,
                                 quern_tensor *const *roots, void *const *values) {
  struct ir_module module;
  QUERN_TRY(check_named(ir_parse(other, text->at, text->n, &module), "parse"));
  QUERN_CHECK(module.n_outputs == n, INTERNAL, "parse: %zu outputs became %zu", n, module.n_outputs);
  QUERN_TRY(check_named(ir_verify(other, n, module.outputs), "verify what was parsed"));
  struct base_str again;
  base_str_init(&again, &other->heap);
  quern_status status = check_named(ir_print(other, &again, n, module.outputs, module.names), "print what was parsed");
  if (status == QUERN_STATUS_OK && (again.n != text->n || memcmp(again.at, text->at, text->n) != 0)) {
    status = base_error(QUERN_STATUS_INTERNAL, "print, parse, print: the texts differ");
  }
  base_str_fini(&again);
  QUERN_TRY(status);
  void **parsed = base_arena_alloc(&other->arena, n * sizeof *parsed);
  if (parsed == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(check_named(check_evaluate(other, check->seed, n, module.outputs, parsed), "evaluate what was parsed"));
  return check_same(check->ctx, "print and parse", n, roots, values, parsed);
}

static quern_status check_text(const struct check *check, size_t n, quern_tensor *const *roots, void *const *values) {
  struct base_str text;
  base_str_init(&text, &check->ctx->heap);
  quern_status status = check_named(ir_print(check->ctx, &text, n, roots, NULL), "print");
  quern_context *other = NULL;
  if (status == QUERN_STATUS_OK) status = quern_context_new(&other, NULL);
  if (status == QUERN_STATUS_OK) status = check_parsed(check, other, &text, n, roots, values);
  quern_context_free(other);
  base_str_fini(&text);
  return status;
}

/* ---- rewriting --------------------------------------------------------------------------------------- */

/* enabled: which rules may be used, NULL for all. */
static quern_status rewrite(const struct check *check, bool approximate, const bool *enabled, size_t n,
                            quern_tensor *const *roots, quern_tensor **out) {
  struct ir_rewrite_options options = {
      .approximate = approximate, .enabled = enabled, .extra = check->plant, .n_extra = check->plant != NULL};
  if (check->counts != NULL) options.fired = check->counts->rules;
  QUERN_TRY(check_named(ir_rewrite(check->ctx, n, roots, &options, out), "rewrite"));
  for (size_t i = 0; i < n; i++)
    QUERN_CHECK(ir_same_type(roots[i], out[i]), INTERNAL, "rewrite: output %zu has another type", i);
  return check_named(ir_verify(check->ctx, n, out), "verify what was rewritten");
}

/* With some rules only, so that no rule hides what another does wrong. */
static quern_status check_some_rules(const struct check *check, size_t n, quern_tensor *const *roots,
                                     void *const *values, quern_tensor **out, void **now) {
  bool *enabled = base_arena_alloc(&check->ctx->arena, ir_rule_count);
  if (enabled == NULL) return QUERN_STATUS_MEMORY;
  struct rng rng = {.seed = check->seed ^ 1};
  for (size_t i = 0; i < ir_rule_count; i++) enabled[i] = rng_chance(&rng, 50);
  QUERN_TRY(check_named(rewrite(check, false, enabled, n, roots, out), "some rules"));
  QUERN_TRY(check_named(check_evaluate(check->ctx, check->seed, n, out, now), "evaluate what some rules rewrote"));
  return check_same(check->ctx, "some rules", n, roots, values, now);
}

static quern_status check_rewrite(const struct check *check, size_t n, quern_tensor *const *roots,
                                  void *const *values) {
  quern_context *ctx = check->ctx;
  quern_tensor **out = base_arena_alloc(&ctx->arena, n * sizeof *out),
               **again = base_arena_alloc(&ctx->arena, n * sizeof *out);
  void **now = base_arena_alloc(&ctx->arena, n * sizeof *now);
  if (out == NULL || again == NULL || now == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(rewrite(check, false, NULL, n, roots, out));
  QUERN_TRY(check_named(check_evaluate(ctx, check->seed, n, out, now), "evaluate what was rewritten"));
  QUERN_TRY(check_same(ctx, "rewrite", n, roots, values, now));
  struct check quiet = *check;
  quiet.counts = NULL;
  QUERN_TRY(rewrite(&quiet, false, NULL, n, out, again));
  for (size_t i = 0; i < n; i++)
    QUERN_CHECK(out[i] == again[i], INTERNAL, "rewrite: output %zu changes when rewritten again", i);
  QUERN_TRY(check_some_rules(check, n, roots, values, out, now));
  return check_named(rewrite(check, true, NULL, n, roots, out), "approximate rules");
}

/* ---- gradients --------------------------------------------------------------------------------------- */

static bool has_while(const struct ir_order *order);

static bool graph_has_while(const struct ir_graph *graph) {
  struct ir_order order;
  if (graph == NULL || ir_topo(graph->ctx, (size_t)graph->n_results, graph->results, &order) != QUERN_STATUS_OK)
    return false;
  bool found = has_while(&order);
  ir_order_fini(graph->ctx, &order);
  return found;
}

static bool has_while(const struct ir_order *order) {
  for (size_t i = 0; i < order->n; i++) {
    const struct ir_attrs *a = order->at[i]->attrs;
    if (order->at[i]->op == IR_WHILE || graph_has_while(a->body) || graph_has_while(a->other)) return true;
  }
  return false;
}

/* The gradient of the sum of all float outputs exists, is well formed and can be evaluated. */
static quern_status check_gradient(const struct check *check, size_t n, quern_tensor *const *roots) {
  quern_context *ctx = check->ctx;
  quern_tensor *loss = quern_scalar(ctx, QUERN_DTYPE_F64, 0);
  for (size_t i = 0; i < n; i++) {
    if (!base_dtype_is(roots[i]->dtype, BASE_FLOAT)) continue;
    loss = quern_add(loss, quern_sum(quern_cast(roots[i], QUERN_DTYPE_F64), QUERN_ALL, false));
  }
  QUERN_TRY(check_named(quern_context_check(ctx), "loss"));
  struct ir_order order;
  QUERN_TRY(ir_topo(ctx, n, roots, &order));
  quern_tensor **x = base_arena_alloc(&ctx->arena, order.n * sizeof *x),
               **dx = base_arena_alloc(&ctx->arena, order.n * sizeof *x);
  void **values = base_arena_alloc(&ctx->arena, order.n * sizeof *values);
  size_t n_x = 0;
  for (size_t i = 0; i < order.n && x != NULL; i++) {
    quern_tensor *leaf = &order.at[i]->out[0];
    bool fed = leaf->node->op == IR_INPUT || leaf->node->op == IR_STATE;
    if (fed && base_dtype_is(leaf->dtype, BASE_FLOAT)) x[n_x++] = leaf;
  }
  bool may_refuse = has_while(&order);
  ir_order_fini(ctx, &order);
  if (x == NULL || dx == NULL || values == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = quern_grad(loss, n_x, x, dx);
  if (status == QUERN_STATUS_UNSUPPORTED && may_refuse) return QUERN_STATUS_OK;
  QUERN_TRY(check_named(status, "gradient"));
  for (size_t i = 0; i < n_x; i++)
    QUERN_CHECK(ir_same_type(x[i], dx[i]), INTERNAL, "gradient: dx[%zu] has another type than x", i);
  QUERN_TRY(check_named(ir_verify(ctx, n_x, dx), "verify the gradient"));
  if (check->counts != NULL) check->counts->gradients++;
  return check_named(check_evaluate(ctx, check->seed, n_x, dx, values), "evaluate the gradient");
}

/* ---- all --------------------------------------------------------------------------------------------- */

quern_status check_graph(const struct check *check, size_t n, quern_tensor *const *roots) {
  if (check->device != NULL)
    return check_device(check->device, check->target, check->ctx, 1, &(struct seeded){check->seed, n, roots});
  QUERN_TRY(check_named(ir_verify(check->ctx, n, roots), "verify"));
  void **values = base_arena_alloc(&check->ctx->arena, n * sizeof *values);
  if (values == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(check_named(check_evaluate(check->ctx, check->seed, n, roots, values), "evaluate"));
  QUERN_TRY(check_text(check, n, roots, values));
  QUERN_TRY(check_rewrite(check, n, roots, values));
  QUERN_TRY(check_passes(check, n, roots, values));
  QUERN_TRY(check_autocast(check, n, roots));
  return check->gradient ? check_gradient(check, n, roots) : QUERN_STATUS_OK;
}

void check_shrink(const struct check *check, size_t *n, quern_tensor **roots) {
  struct check quiet = *check;
  quiet.counts = NULL;
  for (size_t i = 0; i<*n && * n> 1; i++) { /* one output that fails alone */
    if (check_graph(&quiet, 1, &roots[i]) == QUERN_STATUS_OK) continue;
    roots[0] = roots[i];
    *n = 1;
  }
  for (bool smaller = *n == 1; smaller;) { /* a source that fails as well */
    smaller = false;
    const struct ir_node *node = roots[0]->node;
    for (int i = 0; i < node->n_src && !smaller; i++) {
      smaller = check_graph(&quiet, 1, &node->src[i]) != QUERN_STATUS_OK;
      if (smaller) roots[0] = node->src[i];
    }
  }
}

/* ---- counting ---------------------------------------------------------------------------------------- */

size_t check_count(quern_context *ctx, size_t n, quern_tensor *const *roots, struct counts *counts) {
  struct ir_order order;
  if (ir_topo(ctx, n, roots, &order) != QUERN_STATUS_OK) return 0;
  for (size_t i = 0; i < order.n; i++) {
    const struct ir_attrs *a = order.at[i]->attrs;
    counts->ops[order.at[i]->op]++;
    const struct ir_graph *graphs[] = {a->body, a->other};
    for (size_t k = 0; k < BASE_COUNT(graphs); k++) {
      if (graphs[k] != NULL) check_count(ctx, (size_t)graphs[k]->n_results, graphs[k]->results, counts);
    }
  }
  size_t nodes = order.n;
  ir_order_fini(ctx, &order);
  return nodes;
}
