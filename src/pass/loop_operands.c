/* pass/loop_operands.c -- what iterations read and stack, laid out so that they copy and transpose nothing
** Stacked carries, as iterations begin, are those that iterations end with, one iteration later: a carry that is stacked
** as it ends lies there until the next iteration, and is not copied (engine/run.c).
** CPUs: a matrix that every iteration multiplies few rows by is laid out once, before the loop. A kernel's vectors run along the columns of a product. Where those do not follow each other in the matrix, the kernel
** transposes it, which takes as long as a product of few rows: in a loop, each time.
** keeps: every bit: terms are summed in the same order
** tests: tests/pass/test_loops.c
*/
#include "pass/loops.h"
#include "quern/tensor.h"

enum { MOST_ROWS = 64, LEAST_TRIP = 4, LEAST_WORK = 1 << 14 };

static bool has_axis(struct ir_ints list, int64_t axis) {
  for (int i = 0; i < list.n; i++)
    if (list.at[i] == axis) return true;
  return false;
}

/* Whether source `side` of the contraction is a matrix whose terms lie next to each other, of few rows. */
static bool is_across(const struct ir_node *dot, int side, int64_t least_work) {
  const struct ir_attrs *a = dot->attrs;
  const quern_tensor *x = dot->src[side], *other = dot->src[1 - side];
  struct ir_ints batch = side == 0 ? a->a_batch : a->b_batch, sum = side == 0 ? a->a_sum : a->b_sum;
  struct ir_ints other_batch = side == 0 ? a->b_batch : a->a_batch, other_sum = side == 0 ? a->b_sum : a->a_sum;
  int64_t columns = 1, rows = 1;
  for (int k = 0; k < x->rank; k++)
    if (!has_axis(batch, k) && !has_axis(sum, k)) columns *= x->dims[k];
  for (int k = 0; k < other->rank; k++)
    if (!has_axis(other_batch, k) && !has_axis(other_sum, k)) rows *= other->dims[k];
  return x != other && sum.n > 0 && has_axis(sum, x->rank - 1) && x->dims[x->rank - 1] > 1 && columns >= 4 &&
         rows > 1 && rows <= MOST_ROWS && loop_work(dot) >= least_work;
}

/* A contraction of the leaf that would have it laid out otherwise, *others: whether anything else uses the leaf. */
static const struct ir_node *find_dot(const struct ir_order *order, const quern_tensor *leaf, int64_t least_work,
                                      int *side, bool *others) {
  const struct ir_node *found = NULL;
  *others = false;
  for (size_t i = 0; i < order->n; i++) {
    const struct ir_node *node = order->at[i];
    for (int k = 0; k < node->n_src; k++) {
      if (node->src[k] != leaf) continue;
      bool across = node->op == IR_DOT && is_across(node, k, least_work);
      *others |= !across;
      if (across && found == NULL) found = node, *side = k;
    }
  }
  return found;
}

/* The axes of the operand as they will lie: batch, terms, columns. */
static void list_axes(const struct ir_node *dot, int side, int64_t *axes) {
  struct ir_ints batch = side == 0 ? dot->attrs->a_batch : dot->attrs->b_batch;
  struct ir_ints sum = side == 0 ? dot->attrs->a_sum : dot->attrs->b_sum;
  int n = 0;
  for (int i = 0; i < batch.n; i++) axes[n++] = batch.at[i];
  for (int i = 0; i < sum.n; i++) axes[n++] = sum.at[i];
  for (int k = 0; k < dot->src[side]->rank; k++)
    if (!has_axis(batch, k) && !has_axis(sum, k)) axes[n++] = k;
}

/* Where the axes of a list are now. */
static struct ir_ints moved(struct ir_ints list, int rank, const int64_t *axes, int64_t *room) {
  for (int i = 0; i < list.n; i++)
    for (int k = 0; k < rank; k++)
      if (axes[k] == list.at[i]) room[i] = k;
  return (struct ir_ints){list.n, room};
}

static quern_tensor *dot_of(const struct ir_node *dot, int side, quern_tensor *operand, const int64_t *axes) {
  int64_t room[2][QUERN_MAX_RANK];
  struct ir_attrs attrs = *dot->attrs;
  struct ir_ints *batch = side == 0 ? &attrs.a_batch : &attrs.b_batch, *sum = side == 0 ? &attrs.a_sum : &attrs.b_sum;
  *batch = moved(*batch, operand->rank, axes, room[0]);
  *sum = moved(*sum, operand->rank, axes, room[1]);
  quern_tensor *src[2] = {dot->src[0], dot->src[1]};
  src[side] = operand;
  return ir_make(operand->node->ctx, IR_DOT, 2, src, &attrs);
}

/* Lays a capture out anew, if all that uses it would have it so. */
static quern_status lay_out(struct loop_edit *edit, size_t number, int64_t least_work) {
  quern_tensor *source = edit->operands.at[number].source, *leaf = edit->operands.at[number].leaf, *made = NULL;
  int64_t axes[QUERN_MAX_RANK];
  for (bool more = true; more;) {
    struct ir_order order;
    bool others;
    int side = 0;
    QUERN_TRY(loop_edit_order(edit, &order));
    const struct ir_node *dot = find_dot(&order, leaf, least_work, &side, &others);
    ir_order_fini(edit->ctx, &order);
    if (dot == NULL || (others && made == NULL)) return QUERN_STATUS_OK;
    if (made == NULL) {
      list_axes(dot, side, axes);
      made = IR_MAKE(edit->ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {source->rank, axes}}), source);
      made = loop_edit_add(edit, LOOP_CAPTURE, made);
    }
    quern_tensor *now = ir_is_poison(made) ? made : dot_of(dot, side, made, axes);
    if (ir_is_poison(now)) return ir_poison_error(edit->ctx);
    QUERN_TRY(loop_edit_replace(edit, (quern_tensor *)&dot->out[0], now));
    edit->changed = true;
  }
  return QUERN_STATUS_OK;
}

/* The carry as every iteration begins: as it was before the loop, then as all iterations but the last one end. */
static quern_tensor *begun(struct loop_edit *edit, const struct loop_operand *carry) {
  int64_t dims[QUERN_MAX_RANK] = {1}, n = edit->trip;
  memcpy(dims + 1, carry->source->dims, (size_t)carry->source->rank * sizeof *dims);
  quern_tensor *first = quern_reshape(carry->source, carry->source->rank + 1, dims);
  quern_tensor *ended = loop_edit_stack(edit, carry->next);
  quern_tensor *rest = quern_slice(ended, 0, edit->reverse ? 1 : 0, edit->reverse ? n : n - 1, 1);
  return quern_concat(2, edit->reverse ? (quern_tensor *[]){rest, first} : (quern_tensor *[]){first, rest}, 0);
}

static quern_status shift_carries(struct loop_edit *edit) {
  for (size_t i = 0; i < edit->n_given; i++) {
    const struct loop_operand *carry = loop_edit_find(edit, edit->stacked.at[i].value->node);
    if (carry == NULL || carry->kind != LOOP_CARRY || edit->stacked.at[i].all != NULL) continue;
    if (loop_edit_find(edit, carry->next->node) != NULL) continue; /* it ends as a source of the iteration */
    if (carry->leaf->rank >= QUERN_MAX_RANK || ir_count(carry->leaf) == 0) continue;
    quern_tensor *made = begun(edit, carry);
    if (ir_is_poison(made)) return ir_poison_error(edit->ctx);
    edit->stacked.at[i].instead = made;
    edit->changed = true;
  }
  return QUERN_STATUS_OK;
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  (void)user;
  return ir_rebuild(node, src, out);
}

static quern_status control(struct pass_subgraphs *deep, struct ir_node *node, quern_tensor *const *src,
                            const struct ir_attrs *attrs, quern_tensor **out) {
  const struct pass_options *options = deep->user;
  quern_tensor *made = ir_make(deep->ctx, node->op, node->n_src, src, attrs);
  if (ir_is_poison(made)) return ir_poison_error(deep->ctx);
  for (int i = 0; i < node->n_out; i++) out[i] = ir_result(made, i);
  if (node->op != IR_LOOP || attrs->trip < LEAST_TRIP) return QUERN_STATUS_OK;
  struct loop_edit edit;
  int64_t work = options->loop_work > 0 ? options->loop_work : LEAST_WORK;
  quern_status status = loop_edit_begin(&edit, made->node);
  size_t n = options->target != NULL && options->target->gpu ? 0 : edit.operands.n;
  if (status == QUERN_STATUS_OK) status = shift_carries(&edit);
  for (size_t i = edit.n_carries; i < n && status == QUERN_STATUS_OK; i++)
    if (edit.operands.at[i].kind == LOOP_CAPTURE) status = lay_out(&edit, i, work);
  if (status == QUERN_STATUS_OK && edit.changed) status = loop_edit_finish(&edit, out);
  loop_edit_end(&edit);
  return status;
}

quern_status pass_loop_operands(struct pass_graph *graph, const struct pass_options *options) {
  struct pass_options copy = *options;
  return pass_subgraphs_control(graph, &(struct pass_subgraphs){.visit = visit, .control = control, .user = &copy});
}
