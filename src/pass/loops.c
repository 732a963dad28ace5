/* pass/loops.c -- what a recurrence does not have to do step by step is done before and after its loop
** in:    loops with a recurrence: a carry that is more than a sum of what iterations give. Loops without one, such as
**        those over chunks or micro-batches, are there to save memory, and stay
** out:   contractions that depend on no carry: of all iterations at once, before the loop, or read from the loop that
**        has computed them already; sums of contractions, and contractions that are only stacked: after it
** keeps: values within rounding where a sum over iterations leaves the loop; else every bit
** see:   docs/design/012-loops.md               tests: tests/pass/test_loops.c
*/
#include "pass/loops.h"

enum { LEAST_WORK = 1 << 14, LEAST_TRIP = 2, ROOM = 4 };

/* What is stacked has at most so many times the bytes of what the loop scans and of its recurrence in all iterations. */
static quern_status find_recurrence(struct loop_edit *edit, bool *found) {
  struct ir_order order;
  int *users = NULL;
  double bytes = 0;
  *found = false;
  QUERN_TRY(loop_edit_order(edit, &order));
  quern_status status = loop_count_users(edit, &order, &users);
  for (size_t i = 0; i < edit->operands.n && status == QUERN_STATUS_OK; i++) {
    const struct loop_operand *o = &edit->operands.at[i];
    quern_tensor *added;
    if (o->kind == LOOP_SCANNED) bytes += (double)ir_bytes(o->source);
    if (o->kind != LOOP_CARRY || o->next == o->leaf || loop_is_sum(&order, users, o, &added)) continue;
    if (ir_order_find(&order, o->leaf->node) < 0) continue;
    bytes += (double)ir_bytes(o->source) * (double)edit->trip;
    *found = true;
  }
  edit->room = bytes * ROOM < 1e18 ? (int64_t)bytes * ROOM : INT64_MAX;
  base_free(edit->heap, users, users != NULL ? order.n * sizeof *users : 0);
  ir_order_fini(edit->ctx, &order);
  return status;
}

static quern_status rewrite(const struct pass_options *options, const struct ir_node *loop, quern_tensor **out) {
  struct loop_edit edit;
  bool recurs = false;
  int64_t work = options->loop_work > 0 ? options->loop_work : LEAST_WORK;
  quern_status status = loop_edit_begin(&edit, loop);
  if (status == QUERN_STATUS_OK) status = find_recurrence(&edit, &recurs);
  if (status == QUERN_STATUS_OK && recurs) status = loop_hoist(&edit, work);
  if (status == QUERN_STATUS_OK && recurs) status = loop_take_sums(&edit, work);
  if (status == QUERN_STATUS_OK && recurs) status = loop_sink(&edit, work);
  if (status == QUERN_STATUS_OK && recurs && edit.changed) status = loop_edit_finish(&edit, out);
  loop_edit_end(&edit);
  return status;
}

/* Whether the loop's own nodes have a contraction that is worth the trouble. */
static quern_status multiplies(const struct ir_graph *body, bool *found) {
  struct ir_order order;
  *found = false;
  QUERN_TRY(ir_topo(body->ctx, (size_t)body->n_results, body->results, &order));
  for (size_t i = 0; i < order.n && !*found; i++) *found = order.at[i]->op == IR_DOT;
  ir_order_fini(body->ctx, &order);
  return QUERN_STATUS_OK;
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  (void)user;
  return ir_rebuild(node, src, out);
}

static quern_status control(struct pass_subgraphs *deep, struct ir_node *node, quern_tensor *const *src,
                            const struct ir_attrs *attrs, quern_tensor **out) {
  bool worth = false;
  quern_tensor *made = ir_make(deep->ctx, node->op, node->n_src, src, attrs);
  if (ir_is_poison(made)) return ir_poison_error(deep->ctx);
  for (int i = 0; i < node->n_out; i++) out[i] = ir_result(made, i);
  if (node->op != IR_LOOP || attrs->trip < LEAST_TRIP || attrs->carries == 0) return QUERN_STATUS_OK;
  QUERN_TRY(multiplies(attrs->body, &worth));
  return worth ? rewrite(deep->user, made->node, out) : QUERN_STATUS_OK;
}

quern_status pass_loops(struct pass_graph *graph, const struct pass_options *options) {
  struct pass_options copy = *options;
  return pass_subgraphs_control(graph, &(struct pass_subgraphs){.visit = visit, .control = control, .user = &copy});
}
