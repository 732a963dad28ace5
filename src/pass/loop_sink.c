/* pass/loop_sink.c -- a contraction whose only use is to be stacked is made after the loop, of all iterations at once
** The loop stacks what the contraction takes. Elementwise nodes between it and the stacked value follow it.
** keeps: every bit: terms are summed in the same order
** tests: tests/pass/test_loops.c
*/
#include "pass/loops.h"

struct sink {
  struct loop_edit *edit;
  int64_t least_work;
  struct ir_order order;
  int *users;
  bool *carried; /* of each node, whether it depends on a carry */
  double bytes;  /* that the loop would have to stack */
};

static size_t place(const struct sink *s, const quern_tensor *t) { return (size_t)ir_order_find(&s->order, t->node); }

/* A contraction that nobody else uses, of which one side depends on no carry. */
static bool is_product(const struct sink *s, const quern_tensor *t) {
  const struct ir_node *node = t->node;
  return node->op == IR_DOT && s->users[place(s, t)] == 1 && loop_work(node) >= s->least_work &&
         (!s->carried[place(s, node->src[0])] || !s->carried[place(s, node->src[1])]);
}

/* Whether t is such a contraction, or made of one by elementwise nodes that nobody else uses. Counts what would have to
** be stacked. Recursion is as deep as such nodes lie on one another. */
static bool can_sink(struct sink *s, const quern_tensor *t) {
  const struct ir_node *node = t->node;
  bool found = false;
  if (!s->carried[place(s, t)]) return false;
  if (is_product(s, t)) {
    for (int k = 0; k < 2; k++)
      if (s->carried[place(s, node->src[k])]) s->bytes += (double)ir_bytes(node->src[k]) * (double)s->edit->trip;
    return true;
  }
  if (s->users[place(s, t)] != 1 || !pass_is_elementwise(node) || node->n_src == 0 || node->n_src > 3) return false;
  for (int k = 0; k < node->n_src; k++) {
    bool sinks = can_sink(s, node->src[k]);
    if (!sinks && s->carried[place(s, node->src[k])])
      s->bytes += (double)ir_bytes(node->src[k]) * (double)s->edit->trip;
    found |= sinks;
  }
  return found;
}

static quern_status after(struct sink *s, quern_tensor *t, struct loop_value *out);

static quern_status after_node(struct sink *s, const struct ir_node *node, bool product, struct loop_value *out) {
  struct loop_value src[3];
  for (int k = 0; k < node->n_src; k++) {
    if (product && s->carried[place(s, node->src[k])])
      src[k] = (struct loop_value){loop_edit_stack(s->edit, node->src[k]), true};
    else
      QUERN_TRY(after(s, node->src[k], &src[k]));
    if (src[k].t != NULL && ir_is_poison(src[k].t)) return ir_poison_error(s->edit->ctx);
  }
  *out = loop_batch_node(s->edit->ctx, s->edit->trip, node, src);
  return out->t != NULL && ir_is_poison(out->t) ? ir_poison_error(s->edit->ctx) : QUERN_STATUS_OK;
}

/* The value in all iterations, outside of the loop. */
static quern_status after(struct sink *s, quern_tensor *t, struct loop_value *out) {
  double bytes = s->bytes;
  if (!s->carried[place(s, t)]) return loop_batch(s->edit, t, out);
  bool sinks = can_sink(s, t);
  s->bytes = bytes;
  if (sinks) return after_node(s, t->node, is_product(s, t), out);
  *out = (struct loop_value){loop_edit_stack(s->edit, t), true};
  return ir_is_poison(out->t) ? ir_poison_error(s->edit->ctx) : QUERN_STATUS_OK;
}

static void find_carried(struct sink *s) {
  for (size_t i = 0; i < s->order.n; i++) {
    const struct ir_node *node = s->order.at[i];
    const struct loop_operand *operand = node->n_src == 0 ? loop_edit_find(s->edit, node) : NULL;
    s->carried[i] = operand != NULL && operand->kind == LOOP_CARRY;
    for (int k = 0; k < node->n_src; k++) s->carried[i] |= s->carried[place(s, node->src[k])];
  }
}

/* Stacked value number i is made after the loop, if that can be. */
static quern_status sink_one(struct sink *s, size_t i) {
  quern_tensor *value = s->edit->stacked.at[i].value;
  struct loop_value made = {NULL, false};
  s->bytes = -(double)ir_bytes(value) * (double)s->edit->trip;
  if (value->rank >= QUERN_MAX_RANK || s->edit->stacked.at[i].all != NULL || !can_sink(s, value) ||
      s->bytes > (double)s->edit->room)
    return QUERN_STATUS_OK;
  int64_t bytes = (int64_t)s->bytes;
  size_t n = s->edit->stacked.n;
  QUERN_TRY(after(s, value, &made));
  if (made.t == NULL) { /* a form that there is none of: what was to be stacked is not */
    s->edit->stacked.n = n;
    return QUERN_STATUS_OK;
  }
  s->edit->room -= bytes;
  s->edit->stacked.at[i].instead = made.t;
  s->edit->changed = true;
  return QUERN_STATUS_OK;
}

quern_status loop_sink(struct loop_edit *edit, int64_t least_work) {
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < edit->n_given && status == QUERN_STATUS_OK; i++) {
    struct sink s = {.edit = edit, .least_work = least_work};
    QUERN_TRY(loop_edit_order(edit, &s.order));
    status = loop_count_users(edit, &s.order, &s.users);
    s.carried = base_alloc_zero(edit->heap, s.order.n);
    if (s.carried == NULL) status = QUERN_STATUS_MEMORY;
    if (status == QUERN_STATUS_OK) {
      find_carried(&s);
      status = sink_one(&s, i);
    }
    base_free(edit->heap, s.carried, s.order.n);
    base_free(edit->heap, s.users, s.users != NULL ? s.order.n * sizeof *s.users : 0);
    ir_order_fini(edit->ctx, &s.order);
  }
  return status;
}
