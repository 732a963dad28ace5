/* ir/rules_control.c -- rewrite rules of if, loop and while
** see: rules.def                               tests: tests/ir/test_rules.c, tests/prop/
*/
#include "ir/rules.h"

/* Fills all results with the poison: the engine reports the error that this thread recorded last. */
static bool give_up(struct ir_node *node, quern_tensor **out) {
  for (int i = 0; i < node->n_out; i++) out[i] = ir_fail_last(node->ctx);
  return true;
}

/* Bodies in bodies that double at each level are left where they are when they have become as large as composites
** may. */
static bool is_large(const struct ir_graph *body) { return body->n_nodes > IR_MOST_INLINED; }

static bool give_branch(quern_context *ctx, struct ir_node *node, const struct ir_graph *branch, quern_tensor **out) {
  if (is_large(branch)) return false;
  return ir_inline(ctx, branch, node->src + 1, out) == QUERN_STATUS_OK || give_up(node, out);
}

static bool give_carries(struct ir_node *node, quern_tensor **out) {
  for (int i = 0; i < node->n_out; i++) out[i] = node->src[i];
  return true;
}

bool ir_rule_if_constant(quern_context *ctx, struct ir_node *node, quern_tensor **out) {
  if (ir_is_const(node->src[0], 1)) return give_branch(ctx, node, node->attrs->body, out);
  return ir_is_const(node->src[0], 0) && give_branch(ctx, node, node->attrs->other, out);
}

bool ir_rule_if_same(quern_context *ctx, struct ir_node *node, quern_tensor **out) {
  return node->attrs->body == node->attrs->other && give_branch(ctx, node, node->attrs->body, out);
}

bool ir_rule_if_not(quern_context *ctx, struct ir_node *node, quern_tensor **out) {
  if (node->src[0]->node->op != IR_NOT) return false;
  size_t bytes = (size_t)node->n_src * sizeof *node->src;
  quern_tensor **src = base_alloc(&ctx->heap, bytes);
  if (src == NULL) return give_up(node, out);
  for (int i = 0; i < node->n_src; i++) src[i] = i == 0 ? node->src[0]->node->src[0] : node->src[i];
  struct ir_attrs attrs = {.body = node->attrs->other, .other = node->attrs->body};
  quern_tensor *made = ir_make(ctx, IR_IF, node->n_src, src, &attrs);
  for (int i = 0; i < node->n_out; i++) out[i] = ir_result(made, i);
  base_free(&ctx->heap, src, bytes);
  return true;
}

bool ir_rule_loop_none(quern_context *ctx, struct ir_node *node, quern_tensor **out) {
  (void)ctx;
  return node->attrs->trip == 0 && node->attrs->carries == node->n_out && give_carries(node, out);
}

bool ir_rule_loop_once(quern_context *ctx, struct ir_node *node, quern_tensor **out) {
  const struct ir_attrs *a = node->attrs;
  if (a->trip != 1 || is_large(a->body)) return false;
  size_t bytes = (size_t)(node->n_src + 1) * sizeof *node->src;
  quern_tensor **args = base_alloc(&ctx->heap, bytes);
  if (args == NULL) return give_up(node, out);
  bool ok = true;
  for (int i = 0; i <= node->n_src; i++) {
    const quern_tensor *param = a->body->params[i];
    args[i] =
        i == 0 ? ir_const_int(ctx, QUERN_DTYPE_I64, 0) : ir_reshape_to(node->src[i - 1], param->rank, param->dims);
    ok &= !ir_is_poison(args[i]);
  }
  ok = ok && ir_inline(ctx, a->body, args, out) == QUERN_STATUS_OK;
  base_free(&ctx->heap, args, bytes);
  if (!ok) return give_up(node, out);
  for (int i = 0; i < node->n_out; i++) out[i] = ir_reshape_to(out[i], node->out[i].rank, node->out[i].dims);
  return true;
}

bool ir_rule_while_never(quern_context *ctx, struct ir_node *node, quern_tensor **out) {
  (void)ctx;
  return ir_is_const(node->attrs->other->results[0], 0) && give_carries(node, out);
}
