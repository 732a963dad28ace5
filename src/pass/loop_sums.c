/* pass/loop_sums.c -- a carry that only adds up contractions of an iteration's values becomes one contraction
** The loop gives the operands of all iterations, and the contraction sums over iterations as well: the gradients of
** weights that a loop shares are one product after it.
** keeps: values within rounding: the sum over iterations is taken in the order of the product's terms
** tests: tests/pass/test_loops.c
*/
#include "pass/loops.h"
#include "quern/tensor.h"

struct sums {
  struct loop_edit *edit;
  int64_t work; /* multiplications of its contractions */
  double bytes; /* that the loop would have to stack for the sum */
  bool builds;  /* else only looks whether it can be had */
};

/* A value in all iterations: a scanned source, a movement of such, or stacked by the loop. While nothing is built: t,
** where it can be had. */
static struct loop_value all_of(struct sums *s, quern_tensor *t) {
  const struct loop_operand *operand = loop_edit_find(s->edit, t->node);
  struct loop_value none = {NULL, false};
  if (operand != NULL && operand->kind == LOOP_CAPTURE) return none;
  if (operand != NULL && operand->kind == LOOP_SCANNED) return (struct loop_value){operand->source, true};
  bool moves = t->node->op == IR_PERMUTE || t->node->op == IR_RESHAPE;
  if (moves && !loop_edit_stacks(s->edit, t)) {
    struct loop_value from = all_of(s, t->node->src[0]);
    if (from.t == NULL || t->rank >= QUERN_MAX_RANK) return none;
    return s->builds ? loop_batch_node(s->edit->ctx, s->edit->trip, t->node, &from) : from;
  }
  if (t->rank >= QUERN_MAX_RANK || (t->node->n_src == 0 && operand == NULL)) return none;
  if (!s->builds) {
    if (!loop_edit_stacks(s->edit, t)) s->bytes += (double)ir_bytes(t) * (double)s->edit->trip;
    return (struct loop_value){t, true};
  }
  return (struct loop_value){loop_edit_stack(s->edit, t), true};
}

/* List of axes with the first one before them, all of them one further back. */
static struct ir_ints with_first(struct ir_ints list, int64_t *room) {
  room[0] = 0;
  for (int i = 0; i < list.n; i++) room[1 + i] = list.at[i] + 1;
  return (struct ir_ints){list.n + 1, room};
}

static quern_tensor *sum_of(struct sums *s, quern_tensor *t);

static quern_tensor *sum_of_dot(struct sums *s, const struct ir_node *node) {
  const struct ir_attrs *old = node->attrs;
  if (old->reduce != IR_SUM || old->combine != IR_COMBINE_MUL || !base_dtype_is(node->out[0].dtype, BASE_FLOAT))
    return NULL;
  struct loop_value a = all_of(s, node->src[0]), b = {NULL, false};
  if (a.t != NULL && !ir_is_poison(a.t)) b = all_of(s, node->src[1]);
  if (a.t == NULL || b.t == NULL) return NULL;
  s->work = BASE_MAX(s->work, loop_work(node));
  if (!s->builds || ir_is_poison(a.t) || ir_is_poison(b.t)) return a.t;
  int64_t room[4][QUERN_MAX_RANK + 1];
  struct ir_attrs attrs = *old;
  attrs.a_sum = with_first(old->a_sum, room[0]);
  attrs.b_sum = with_first(old->b_sum, room[1]);
  attrs.a_batch = with_first(old->a_batch, room[2]);
  attrs.b_batch = with_first(old->b_batch, room[3]);
  attrs.a_batch = (struct ir_ints){old->a_batch.n, attrs.a_batch.at + 1};
  attrs.b_batch = (struct ir_ints){old->b_batch.n, attrs.b_batch.at + 1};
  return IR_MAKE(s->edit->ctx, IR_DOT, &attrs, a.t, b.t);
}

static quern_tensor *sum_of_reduction(struct sums *s, const struct ir_node *node) {
  const struct ir_attrs *old = node->attrs;
  if (old->reduce != IR_SUM || !base_dtype_is(node->out[0].dtype, BASE_FLOAT)) return NULL;
  struct loop_value x = all_of(s, node->src[0]);
  if (x.t == NULL || !s->builds || ir_is_poison(x.t)) return x.t;
  int64_t room[QUERN_MAX_RANK + 1];
  struct ir_attrs attrs = *old;
  attrs.axes = with_first(old->axes, room);
  return IR_MAKE(s->edit->ctx, IR_REDUCE, &attrs, x.t);
}

static quern_tensor *sum_of_two(struct sums *s, const struct ir_node *node) {
  quern_tensor *a = sum_of(s, node->src[0]), *b = a != NULL ? sum_of(s, node->src[1]) : NULL;
  if (a == NULL || b == NULL || !s->builds) return b;
  return quern_add(a, b);
}

/* The sum of a value over all iterations, outside of the loop, or NULL where there is no better way than to carry it.
** Recursion is as deep as sums, movement and casts lie on one another. */
static quern_tensor *sum_of(struct sums *s, quern_tensor *t) {
  const struct ir_node *node = t->node;
  switch (node->op) {
  case IR_DOT: return sum_of_dot(s, node);
  case IR_REDUCE: return sum_of_reduction(s, node);
  case IR_ADD: return sum_of_two(s, node);
  case IR_CAST:
    if (!pass_is_widening(node)) return NULL;
    break;
  case IR_PERMUTE:
  case IR_RESHAPE:
  case IR_NEG: break;
  default: return NULL;
  }
  quern_tensor *x = sum_of(s, node->src[0]);
  if (x == NULL || !s->builds || ir_is_poison(x)) return x;
  return ir_make(s->edit->ctx, node->op, 1, &x, node->attrs);
}

/* ---- carries ----------------------------------------------------------------------------------------------------- */

quern_status loop_count_users(const struct loop_edit *edit, const struct ir_order *order, int **users) {
  *users = base_alloc_zero(edit->heap, order->n * sizeof **users);
  if (*users == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < order->n; i++)
    for (int k = 0; k < order->at[i]->n_src; k++) (*users)[ir_order_find(order, order->at[i]->src[k]->node)]++;
  for (size_t i = 0; i < edit->n_carries; i++)
    if (edit->operands.at[i].last == NULL) (*users)[ir_order_find(order, edit->operands.at[i].next->node)]++;
  for (size_t i = 0; i < edit->stacked.n; i++)
    if (edit->stacked.at[i].instead == NULL) (*users)[ir_order_find(order, edit->stacked.at[i].value->node)]++;
  return QUERN_STATUS_OK;
}

bool loop_is_sum(const struct ir_order *order, const int *users, const struct loop_operand *carry,
                 quern_tensor **added) {
  const struct ir_node *next = carry->next->node;
  if (next->op != IR_ADD || (next->src[0] != carry->leaf && next->src[1] != carry->leaf)) return false;
  *added = next->src[next->src[0] == carry->leaf ? 1 : 0];
  ptrdiff_t leaf = ir_order_find(order, carry->leaf->node);
  return *added != carry->leaf && users[leaf] == 1 && users[ir_order_find(order, next)] == 1;
}

static quern_status take_sum(struct loop_edit *edit, struct loop_operand *carry, quern_tensor *added,
                             int64_t least_work) {
  struct sums s = {.edit = edit};
  if (sum_of(&s, added) == NULL || s.bytes > (double)edit->room) return QUERN_STATUS_OK;
  if (s.work < least_work && !(edit->changed && s.bytes == 0)) return QUERN_STATUS_OK;
  s.builds = edit->changed = true;
  edit->room -= (int64_t)s.bytes;
  quern_tensor *sum = sum_of(&s, added);
  if (sum == NULL || ir_is_poison(sum)) return ir_poison_error(edit->ctx);
  carry->last = ir_is_const(carry->source, 0) ? sum : quern_add(carry->source, sum);
  return ir_is_poison(carry->last) ? ir_poison_error(edit->ctx) : QUERN_STATUS_OK;
}

quern_status loop_take_sums(struct loop_edit *edit, int64_t least_work) {
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < edit->n_carries && status == QUERN_STATUS_OK; i++) {
    struct ir_order order;
    int *users = NULL;
    quern_tensor *added = NULL;
    QUERN_TRY(loop_edit_order(edit, &order));
    status = loop_count_users(edit, &order, &users);
    bool sum = status == QUERN_STATUS_OK && loop_is_sum(&order, users, &edit->operands.at[i], &added);
    base_free(edit->heap, users, users != NULL ? order.n * sizeof *users : 0);
    ir_order_fini(edit->ctx, &order);
    if (sum) status = take_sum(edit, &edit->operands.at[i], added, least_work);
  }
  return status;
}
