/* tests/fuzz/fuzz_qir.c -- any bytes as a text: accepted ones verify, print as a text that prints as itself, and evaluate */
#include "fuzz/fuzz.h"
#include "ir/ir.h"

enum { WORK_MOST = 100000 };

/* ---- how much work evaluating would be ------------------------------------------------------------------ */

static void add(uint64_t *work, uint64_t more) {
  *work = more > WORK_MOST || *work > WORK_MOST ? WORK_MOST + 1 : *work + more;
}

static uint64_t times(uint64_t a, uint64_t b) { return a != 0 && b > WORK_MOST / a ? WORK_MOST + 1 : a * b; }

static uint64_t count(const quern_tensor *t) {
  int64_t n = ir_count(t);
  return n > WORK_MOST ? WORK_MOST + 1 : (uint64_t)n;
}

/* Adds the elements that roots read and write, each subgraph as often as it may run; stops at WORK_MOST. */
static void add_work(quern_context *ctx, size_t n, quern_tensor *const *roots, uint64_t *work) {
  struct ir_order order;
  REQUIRE(ir_topo(ctx, n, roots, &order) == QUERN_STATUS_OK);
  for (size_t i = 0; i < order.n && *work <= WORK_MOST; i++) {
    const struct ir_node *node = order.at[i];
    uint64_t inside = 0;
    add(work, 1);
    for (int k = 0; k < node->n_src; k++) add(work, count(node->src[k]));
    for (int k = 0; k < node->n_out; k++) add(work, count(&node->out[k]));
    if (node->op == IR_DOT) add(work, times(count(node->src[0]), count(node->src[1])));
    if (node->op == IR_WHILE) add(work, WORK_MOST + 1);
    const struct ir_graph *graphs[] = {node->attrs->body, node->attrs->other};
    for (int k = 0; k < 2 && *work <= WORK_MOST; k++) {
      if (graphs[k] != NULL) add_work(ctx, (size_t)graphs[k]->n_results, graphs[k]->results, &inside);
    }
    add(work, times(inside, node->op == IR_LOOP ? (uint64_t)node->attrs->trip : 1));
  }
  ir_order_fini(ctx, &order);
}

/* ---- evaluation with zeros for whatever has no value ---------------------------------------------------- */

static void evaluate(quern_context *ctx, const struct ir_module *module) {
  uint64_t work = 0;
  add_work(ctx, module->n_outputs, module->outputs, &work);
  for (size_t i = 0; i < module->n_outputs; i++) add(&work, count(module->outputs[i]));
  if (work > WORK_MOST) return;
  struct ir_order order;
  REQUIRE(ir_topo(ctx, module->n_outputs, module->outputs, &order) == QUERN_STATUS_OK);
  static const double zeros[WORK_MOST + 1];
  struct ir_binding *bindings = calloc(order.n + 1, sizeof *bindings);
  void **dst = calloc(module->n_outputs + 1, sizeof *dst);
  size_t n = 0;
  for (size_t i = 0; i < order.n; i++) {
    const struct ir_node *node = order.at[i];
    bool unbound =
        node->op == IR_INPUT || node->op == IR_STATE || (node->op == IR_BUFFER && node->attrs->buffer->data == NULL);
    if (unbound) bindings[n++] = (struct ir_binding){.leaf = &node->out[0], .data = zeros};
  }
  for (size_t i = 0; i < module->n_outputs; i++) dst[i] = malloc(ir_bytes(module->outputs[i]) + 1);
  REQUIRE(ir_eval(ctx, module->n_outputs, module->outputs, dst, n, bindings) == QUERN_STATUS_OK);
  for (size_t i = 0; i < module->n_outputs; i++) free(dst[i]);
  free(dst);
  free(bindings);
  ir_order_fini(ctx, &order);
}

/* ---- one input ------------------------------------------------------------------------------------------ */

static void print(quern_context *ctx, const struct ir_module *module, struct base_str *str) {
  base_str_init(str, &ctx->heap);
  REQUIRE(ir_print(ctx, str, module->n_outputs, module->outputs, module->names) == QUERN_STATUS_OK);
}

/* Parses a text that was printed; it must print as itself. */
static void expect_same(quern_context *ctx, const struct base_str *text) {
  struct ir_module module;
  struct base_str again;
  REQUIRE(ir_parse(ctx, text->at, text->n, &module) == QUERN_STATUS_OK);
  print(ctx, &module, &again);
  REQUIRE(again.n == text->n && memcmp(again.at, text->at, text->n) == 0);
  base_str_fini(&again);
}

static void check(quern_context *ctx, const struct ir_module *module) {
  struct base_str text, dot;
  quern_context *fresh;
  REQUIRE(ir_verify(ctx, module->n_outputs, module->outputs) == QUERN_STATUS_OK);
  print(ctx, module, &text);
  expect_same(ctx, &text);
  REQUIRE(quern_context_new(&fresh, NULL) == QUERN_STATUS_OK);
  expect_same(fresh, &text);
  quern_context_free(fresh);
  base_str_init(&dot, &ctx->heap);
  REQUIRE(ir_print_graphviz(ctx, &dot, module->n_outputs, module->outputs, module->names) == QUERN_STATUS_OK);
  base_str_fini(&dot);
  base_str_fini(&text);
  evaluate(ctx, module);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  quern_context *ctx;
  struct ir_module module;
  REQUIRE(quern_context_new(&ctx, NULL) == QUERN_STATUS_OK);
  quern_status status = ir_parse(ctx, (const char *)data, size, &module);
  REQUIRE(status != QUERN_STATUS_INTERNAL && status != QUERN_STATUS_MEMORY);
  REQUIRE(quern_context_check(ctx) == QUERN_STATUS_OK);
  if (status == QUERN_STATUS_OK) check(ctx, &module);
  quern_context_free(ctx);
  return 0;
}
