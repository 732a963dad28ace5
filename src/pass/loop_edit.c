/* pass/loop_edit.c -- a LOOP taken apart into sources, values and results, and put together again
** tests: tests/pass/test_loops.c
*/
#include "pass/loops.h"

quern_tensor *loop_edit_add(struct loop_edit *edit, enum loop_kind kind, quern_tensor *source) {
  if (ir_is_poison(source)) return source;
  int skip = kind == LOOP_SCANNED ? 1 : 0;
  quern_tensor *leaf = ir_leaf(edit->ctx, source->dtype, source->rank - skip, source->dims + skip);
  struct loop_operand operand = {.kind = kind, .source = source, .leaf = leaf};
  if (ir_is_poison(leaf)) return leaf;
  return base_vec_push(edit->heap, &edit->operands, operand) ? leaf : ir_fail_last(edit->ctx);
}

quern_status loop_edit_begin(struct loop_edit *edit, const struct ir_node *loop) {
  const struct ir_attrs *attrs = loop->attrs;
  const struct ir_graph *body = attrs->body;
  quern_context *ctx = loop->ctx;
  *edit = (struct loop_edit){.ctx = ctx,
                             .heap = &ctx->heap,
                             .trip = attrs->trip,
                             .reverse = attrs->reverse != 0,
                             .n_carries = (size_t)attrs->carries,
                             .n_given = (size_t)(loop->n_out - attrs->carries)};
  size_t bytes = (size_t)(body->n_params + body->n_results) * sizeof(quern_tensor *);
  quern_tensor **args = base_alloc(edit->heap, bytes);
  if (args == NULL) return QUERN_STATUS_MEMORY;
  quern_tensor **results = args + body->n_params;
  edit->index = args[0] = ir_leaf(ctx, QUERN_DTYPE_I64, 0, NULL);
  for (int i = 0; i < loop->n_src; i++) {
    bool carried = i < attrs->carries, scanned = !carried && i < attrs->carries + attrs->scanned;
    args[1 + i] = loop_edit_add(edit, carried ? LOOP_CARRY : scanned ? LOOP_SCANNED : LOOP_CAPTURE, loop->src[i]);
  }
  quern_status status = QUERN_STATUS_OK;
  for (int i = 0; i < body->n_params && status == QUERN_STATUS_OK; i++)
    if (ir_is_poison(args[i])) status = ir_poison_error(ctx);
  if (status == QUERN_STATUS_OK) status = ir_inline(ctx, body, args, results);
  for (int i = 0; i < body->n_results && status == QUERN_STATUS_OK; i++) {
    struct loop_stacked stacked = {.value = results[i]};
    if (i < attrs->carries)
      edit->operands.at[i].next = results[i];
    else if (!base_vec_push(edit->heap, &edit->stacked, stacked))
      status = QUERN_STATUS_MEMORY;
  }
  base_free(edit->heap, args, bytes);
  return status;
}

void loop_edit_end(struct loop_edit *edit) {
  base_vec_fini(edit->heap, &edit->operands);
  base_vec_fini(edit->heap, &edit->stacked);
}

/* The value among those that the loop stacks, or NULL. */
static struct loop_stacked *find_stacked(const struct loop_edit *edit, const quern_tensor *value) {
  for (size_t i = 0; i < edit->stacked.n; i++)
    if (edit->stacked.at[i].value == value && edit->stacked.at[i].instead == NULL) return &edit->stacked.at[i];
  return NULL;
}

bool loop_edit_stacks(const struct loop_edit *edit, const quern_tensor *value) {
  return find_stacked(edit, value) != NULL;
}

quern_tensor *loop_edit_stack(struct loop_edit *edit, quern_tensor *value) {
  struct loop_stacked *found = find_stacked(edit, value);
  if (found == NULL) {
    struct loop_stacked made = {.value = value};
    if (!base_vec_push(edit->heap, &edit->stacked, made)) return ir_fail_last(edit->ctx);
    found = &edit->stacked.at[edit->stacked.n - 1];
  }
  if (found->all == NULL) {
    int64_t dims[QUERN_MAX_RANK] = {edit->trip};
    for (int k = 0; k < value->rank; k++) dims[1 + k] = value->dims[k];
    found->all = ir_leaf(edit->ctx, value->dtype, value->rank + 1, dims);
  }
  return found->all;
}

/* What the iterations give: the next carries, then what is stacked. Places for all operands and values are needed. */
static size_t list_results(const struct loop_edit *edit, quern_tensor **list) {
  size_t n = 0;
  for (size_t i = 0; i < edit->n_carries; i++)
    if (edit->operands.at[i].last == NULL) list[n++] = edit->operands.at[i].next;
  for (size_t i = 0; i < edit->stacked.n; i++)
    if (edit->stacked.at[i].instead == NULL) list[n++] = edit->stacked.at[i].value;
  return n;
}

static size_t list_bytes(const struct loop_edit *edit) {
  return (edit->operands.n + edit->stacked.n + 1) * sizeof(quern_tensor *);
}

quern_status loop_edit_order(const struct loop_edit *edit, struct ir_order *order) {
  size_t bytes = list_bytes(edit);
  quern_tensor **list = base_alloc(edit->heap, bytes);
  if (list == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = ir_topo(edit->ctx, list_results(edit, list), list, order);
  base_free(edit->heap, list, bytes);
  return status;
}

quern_status loop_edit_replace(struct loop_edit *edit, quern_tensor *from, quern_tensor *to) {
  size_t bytes = list_bytes(edit), n = 0;
  quern_tensor **list = base_alloc(edit->heap, bytes);
  if (list == NULL) return QUERN_STATUS_MEMORY;
  size_t count = list_results(edit, list);
  quern_status status = ir_substitute(edit->ctx, count, list, 1, &from, &to, list);
  for (size_t i = 0; i < edit->n_carries && status == QUERN_STATUS_OK; i++)
    if (edit->operands.at[i].last == NULL) edit->operands.at[i].next = list[n++];
  for (size_t i = 0; i < edit->stacked.n && status == QUERN_STATUS_OK; i++)
    if (edit->stacked.at[i].instead == NULL) edit->stacked.at[i].value = list[n++];
  base_free(edit->heap, list, bytes);
  return status;
}

const struct loop_operand *loop_edit_find(const struct loop_edit *edit, const struct ir_node *leaf) {
  for (size_t i = 0; i < edit->operands.n; i++)
    if (edit->operands.at[i].leaf->node == leaf) return &edit->operands.at[i];
  return NULL;
}

/* ---- the loop as it is now --------------------------------------------------------------------------------------- */

/* Room for the lists of a loop. */
struct made {
  struct base_arena arena;
  quern_tensor **params, **sources, **results, **from, **to;
  int n_params, n_results;
  struct ir_attrs attrs;
};

static void add_operands(const struct loop_edit *edit, struct made *made, const struct ir_order *order,
                         enum loop_kind kind) {
  for (size_t i = 0; i < edit->operands.n; i++) {
    const struct loop_operand *o = &edit->operands.at[i];
    bool used = kind == LOOP_CARRY ? o->last == NULL : ir_order_find(order, o->leaf->node) >= 0;
    if (o->kind != kind || !used) continue;
    if (kind == LOOP_CARRY) made->attrs.carries++;
    if (kind == LOOP_SCANNED) made->attrs.scanned++;
    made->sources[made->n_params - 1] = o->source;
    made->params[made->n_params++] = o->leaf;
  }
}

static quern_status make_loop(const struct loop_edit *edit, struct made *made, quern_tensor **loop) {
  struct ir_order order;
  QUERN_TRY(ir_topo(edit->ctx, (size_t)made->n_results, made->results, &order));
  made->params[made->n_params++] = edit->index;
  add_operands(edit, made, &order, LOOP_CARRY);
  add_operands(edit, made, &order, LOOP_SCANNED);
  add_operands(edit, made, &order, LOOP_CAPTURE);
  ir_order_fini(edit->ctx, &order);
  made->attrs.trip = edit->trip;
  made->attrs.reverse = edit->reverse;
  QUERN_TRY(ir_graph_make(edit->ctx, made->n_params, made->params, made->n_results, made->results, &made->attrs.body));
  *loop = ir_make(edit->ctx, IR_LOOP, made->n_params - 1, made->sources, &made->attrs);
  return ir_is_poison(*loop) ? ir_poison_error(edit->ctx) : QUERN_STATUS_OK;
}

/* The results of the loop as it was. */
static quern_status give_results(const struct loop_edit *edit, const struct made *made, quern_tensor *loop,
                                 quern_tensor **out) {
  size_t n = (size_t)made->attrs.carries, pairs = 0;
  for (size_t i = 0; i < edit->stacked.n; i++) {
    const struct loop_stacked *stacked = &edit->stacked.at[i];
    quern_tensor *all = stacked->instead != NULL ? NULL : ir_result(loop, (int)n++);
    if (i < edit->n_given) out[edit->n_carries + i] = all;
    if (all == NULL || stacked->all == NULL) continue;
    made->from[pairs] = stacked->all;
    made->to[pairs++] = all;
  }
  n = 0;
  for (size_t i = 0; i < edit->n_carries + edit->n_given; i++) {
    quern_tensor *later =
        i < edit->n_carries ? edit->operands.at[i].last : edit->stacked.at[i - edit->n_carries].instead;
    if (later != NULL)
      QUERN_TRY(ir_substitute(edit->ctx, 1, &later, pairs, made->from, made->to, &out[i]));
    else if (i < edit->n_carries)
      out[i] = ir_result(loop, (int)n++);
  }
  return QUERN_STATUS_OK;
}

quern_status loop_edit_finish(struct loop_edit *edit, quern_tensor **out) {
  struct made made = {0};
  quern_tensor *loop = NULL;
  base_arena_init(&made.arena, edit->heap);
  size_t bytes = list_bytes(edit) + sizeof(quern_tensor *);
  quern_tensor **lists[5];
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < BASE_COUNT(lists) && status == QUERN_STATUS_OK; i++) {
    lists[i] = base_arena_alloc(&made.arena, bytes);
    if (lists[i] == NULL) status = QUERN_STATUS_MEMORY;
  }
  if (status == QUERN_STATUS_OK) {
    made.params = lists[0];
    made.sources = lists[1];
    made.results = lists[2];
    made.from = lists[3];
    made.to = lists[4];
    made.n_results = (int)list_results(edit, made.results);
    status = make_loop(edit, &made, &loop);
  }
  if (status == QUERN_STATUS_OK) status = give_results(edit, &made, loop, out);
  base_arena_fini(&made.arena);
  return status;
}
