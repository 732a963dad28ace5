/* pass/loop_hoist.c -- contractions of an iteration that depend on no carry leave the loop
** What the loop that made the scanned values has computed itself is stacked there and read: a backward loop does not
** compute the forward iteration's products again. Anything else becomes one product of all iterations, before the loop.
** An elementwise node that alone uses the product goes with it.
** keeps: every bit: terms are summed in the same order
** tests: tests/pass/test_loops.c
*/
#include "pass/loops.h"

int64_t loop_work(const struct ir_node *dot) {
  double terms = 1;
  for (int i = 0; i < dot->attrs->a_sum.n; i++) terms *= (double)dot->src[0]->dims[dot->attrs->a_sum.at[i]];
  terms *= (double)ir_count(&dot->out[0]);
  return terms < 1e18 ? (int64_t)terms : INT64_MAX / 4;
}

/* What is known of a node of the iteration, by its place. */
struct fact {
  bool carried;    /* it depends on a carry */
  bool each;       /* it differs between iterations, though not by a carry */
  bool multiplies; /* it is a contraction, or made of one that does not depend on a carry either */
  bool summed;     /* a carry is a sum of it: loop_sums.c */
  int user;        /* place of a node that uses it */
};

struct hoist {
  struct loop_edit *edit;
  int64_t least_work;
  struct ir_order order;
  struct fact *facts;
  int *users;
};

static bool is_product(const struct hoist *h, const struct ir_node *node) {
  return node->op == IR_DOT && loop_work(node) >= h->least_work;
}

/* A cast that all iterations share and that makes nothing larger: of weights to 16 bits. */
static bool is_shared_cast(const struct hoist *h, size_t i) {
  const struct ir_node *node = h->order.at[i];
  return node->op == IR_CAST && !h->facts[i].each && ir_count(&node->out[0]) >= h->least_work &&
         ir_bytes(&node->out[0]) < ir_bytes(node->src[0]);
}

static void find_facts(struct hoist *h) {
  for (size_t i = 0; i < h->order.n; i++) {
    const struct ir_node *node = h->order.at[i];
    const struct loop_operand *operand = node->n_src == 0 ? loop_edit_find(h->edit, node) : NULL;
    struct fact *fact = &h->facts[i];
    *fact = (struct fact){.user = -1};
    if (operand != NULL) fact->carried = operand->kind == LOOP_CARRY;
    fact->each = node == h->edit->index->node || (operand != NULL && operand->kind == LOOP_SCANNED);
    for (int k = 0; k < node->n_src; k++) {
      struct fact *src = &h->facts[ir_order_find(&h->order, node->src[k]->node)];
      fact->carried |= src->carried;
      fact->each |= src->each;
      fact->multiplies |= src->multiplies && !src->carried;
      src->user = (int)i;
    }
    fact->multiplies |= is_product(h, node);
  }
}

/* What carries are sums of, through additions, movement and casts. */
static void find_summed(struct hoist *h) {
  for (size_t i = 0; i < h->edit->n_carries; i++) {
    quern_tensor *added;
    if (loop_is_sum(&h->order, h->users, &h->edit->operands.at[i], &added))
      h->facts[ir_order_find(&h->order, added->node)].summed = true;
  }
  for (size_t i = h->order.n; i-- > 0;) {
    const struct ir_node *node = h->order.at[i];
    bool passes = node->op == IR_ADD || node->op == IR_NEG || node->op == IR_CAST || node->op == IR_PERMUTE ||
                  node->op == IR_RESHAPE;
    for (int k = 0; k < node->n_src && passes && h->facts[i].summed; k++)
      h->facts[ir_order_find(&h->order, node->src[k]->node)].summed = true;
  }
}

/* The only elementwise user of a value, and its only one, and so on, as long as they depend on nothing that will not be
** outside as well. */
static size_t climb(const struct hoist *h, size_t i) {
  for (;;) {
    if (h->users[i] != 1 || h->facts[i].user < 0) return i;
    size_t user = (size_t)h->facts[i].user;
    const struct ir_node *node = h->order.at[user];
    if (h->facts[user].carried || !pass_is_elementwise(node) || node->n_out != 1) return i;
    if (ir_bytes(&node->out[0]) > ir_bytes(&h->order.at[i]->out[0])) return i;
    for (int k = 0; k < node->n_src; k++) {
      size_t src = (size_t)ir_order_find(&h->order, node->src[k]->node);
      if (src != i && h->facts[src].multiplies) return i;
    }
    i = user;
  }
}

/* ---- what another loop has computed ------------------------------------------------------------------------------ */

/* What the operand is in an iteration of the loop `from`, as its body's tensor; NULL when it is nothing there. */
static quern_tensor *in_other(const struct ir_node *from, const struct loop_operand *operand) {
  const struct ir_attrs *attrs = from->attrs;
  const quern_tensor *source = operand->source;
  bool made = source->node->op == IR_LOOP && source->result >= attrs->carries && loop_is_same(source->node, from);
  if (operand->kind == LOOP_SCANNED && made) return source->node->attrs->body->results[source->result];
  int64_t first = operand->kind == LOOP_SCANNED ? attrs->carries : attrs->carries + attrs->scanned;
  int64_t end = operand->kind == LOOP_SCANNED ? attrs->carries + attrs->scanned : from->n_src;
  for (int64_t i = first; i < end; i++)
    if (from->src[i] == source) return attrs->body->params[1 + i];
  return NULL;
}

/* The value in an iteration of the loop `from`, or NULL when that does not compute it. */
static quern_status find_in(const struct loop_edit *edit, const struct ir_node *from, quern_tensor *value,
                            quern_tensor **found) {
  const struct ir_graph *body = from->attrs->body;
  struct ir_order order;
  size_t n = 0, bytes = 2 * (edit->operands.n + 1) * sizeof(quern_tensor *);
  *found = NULL;
  quern_tensor **leaves = base_alloc(edit->heap, bytes);
  if (leaves == NULL) return QUERN_STATUS_MEMORY;
  quern_tensor **to = leaves + edit->operands.n + 1;
  bool all = true;
  quern_status status = ir_topo(edit->ctx, 1, &value, &order);
  if (status != QUERN_STATUS_OK) goto done;
  for (size_t i = 0; i < order.n && all; i++) {
    const struct loop_operand *operand = loop_edit_find(edit, order.at[i]);
    bool index = order.at[i] == edit->index->node;
    if (operand == NULL && !index) continue;
    leaves[n] = &order.at[i]->out[0];
    to[n] = index ? body->params[0] : in_other(from, operand);
    all = to[n++] != NULL;
  }
  ir_order_fini(edit->ctx, &order);
  if (!all) goto done;
  status = ir_substitute(edit->ctx, 1, &value, n, leaves, to, found);
  if (status != QUERN_STATUS_OK) goto done;
  status = ir_topo(edit->ctx, (size_t)body->n_results, body->results, &order);
  if (status != QUERN_STATUS_OK) goto done;
  if (ir_order_find(&order, (*found)->node) < 0) *found = NULL;
  ir_order_fini(edit->ctx, &order);
done:
  base_free(edit->heap, leaves, bytes);
  return status;
}

/* What the other loop gives to the value in all iterations: a result of it, or of the same loop with one more. Loops of
** the same sources become one (loop_merge.c). */
static quern_status stack_in(const struct loop_edit *edit, struct ir_node *from, quern_tensor *value,
                             quern_tensor **all) {
  const struct ir_graph *body = from->attrs->body;
  for (int i = (int)from->attrs->carries; i < from->n_out; i++) {
    if (body->results[i] != value) continue;
    *all = &from->out[i];
    return QUERN_STATUS_OK;
  }
  size_t bytes = (size_t)(body->n_results + 1) * sizeof(quern_tensor *);
  quern_tensor **results = base_alloc(edit->heap, bytes);
  if (results == NULL) return QUERN_STATUS_MEMORY;
  memcpy(results, body->results, (size_t)body->n_results * sizeof *results);
  results[body->n_results] = value;
  struct ir_attrs attrs = *from->attrs;
  quern_status status =
      ir_graph_make(edit->ctx, body->n_params, body->params, body->n_results + 1, results, &attrs.body);
  base_free(edit->heap, results, bytes);
  QUERN_TRY(status);
  quern_tensor *made = ir_make(edit->ctx, IR_LOOP, from->n_src, from->src, &attrs);
  *all = ir_result(made, from->n_out);
  return ir_is_poison(made) ? ir_poison_error(edit->ctx) : QUERN_STATUS_OK;
}

/* All values of a value, from a loop that made one of the scanned sources; NULL when none computes it. */
static quern_status find_elsewhere(const struct loop_edit *edit, quern_tensor *value, quern_tensor **all) {
  quern_tensor *found = NULL;
  *all = NULL;
  for (size_t i = 0; i < edit->operands.n; i++) {
    const struct loop_operand *operand = &edit->operands.at[i];
    struct ir_node *from = operand->source->node;
    if (operand->kind != LOOP_SCANNED || from->op != IR_LOOP || from->attrs->trip != edit->trip) continue;
    if (operand->source->result < from->attrs->carries) continue;
    QUERN_TRY(find_in(edit, from, value, &found));
    if (found != NULL) return stack_in(edit, from, found, all);
  }
  return QUERN_STATUS_OK;
}

/* ---- out of the loop --------------------------------------------------------------------------------------------- */

/* Takes the value out of the loop, if that can be done. */
static quern_status take_out(struct loop_edit *edit, quern_tensor *value, bool *done) {
  struct loop_value all = {NULL, true};
  double bytes = (double)ir_bytes(value) * (double)edit->trip;
  QUERN_TRY(find_elsewhere(edit, value, &all.t));
  if (all.t == NULL) QUERN_TRY(loop_batch(edit, value, &all));
  if (all.t == NULL || (all.each && bytes > (double)edit->room)) return QUERN_STATUS_OK;
  quern_tensor *leaf = loop_edit_add(edit, all.each ? LOOP_SCANNED : LOOP_CAPTURE, all.t);
  if (ir_is_poison(leaf)) return ir_poison_error(edit->ctx);
  *done = edit->changed = true;
  if (all.each) edit->room -= (int64_t)bytes;
  return loop_edit_replace(edit, value, leaf);
}

/* Takes one value out; *done stays false when none can be. What is first in the order is made of nothing that could be
** taken out by itself. */
static quern_status take_one(struct hoist *h, bool *done) {
  for (size_t i = 0; i < h->order.n && !*done; i++) {
    const struct ir_node *node = h->order.at[i];
    if (h->facts[i].carried || h->facts[i].summed || (!is_product(h, node) && !is_shared_cast(h, i))) continue;
    size_t top = node->op == IR_DOT ? climb(h, i) : i;
    QUERN_TRY(take_out(h->edit, &h->order.at[top]->out[0], done));
    if (!*done && top != i) QUERN_TRY(take_out(h->edit, &h->order.at[i]->out[0], done));
  }
  return QUERN_STATUS_OK;
}

quern_status loop_hoist(struct loop_edit *edit, int64_t least_work) {
  quern_status status = QUERN_STATUS_OK;
  for (bool more = true; more && status == QUERN_STATUS_OK;) {
    struct hoist h = {.edit = edit, .least_work = least_work};
    more = false;
    QUERN_TRY(loop_edit_order(edit, &h.order));
    size_t bytes = h.order.n * sizeof *h.facts;
    status = loop_count_users(edit, &h.order, &h.users);
    h.facts = base_alloc(edit->heap, bytes);
    if (h.facts == NULL) status = QUERN_STATUS_MEMORY;
    if (status == QUERN_STATUS_OK) {
      find_facts(&h);
      find_summed(&h);
      status = take_one(&h, &more);
    }
    base_free(edit->heap, h.facts, bytes);
    base_free(edit->heap, h.users, h.users != NULL ? h.order.n * sizeof *h.users : 0);
    ir_order_fini(edit->ctx, &h.order);
  }
  return status;
}
