/* ir/rewind.c -- marks of a context, and going back to one: what was made since is gone, but for tensors that are kept
** keeps: all or nothing: what can fail is done before anything is freed; afterwards the context is what it was when it
**        was marked, with the kept tensors as its newest nodes; streams of random numbers are not given out twice
** tests: tests/ir/test_rewind.c
*/
#include "ir/ir.h"

bool ir_intern(quern_context *ctx, struct base_map *map, uint64_t hash, void *item) {
  bool marked = ctx->marks.n > 0;
  if (marked && !base_vec_reserve(&ctx->heap, &ctx->entries, 1)) return false;
  if (!base_map_add(map, hash, item)) return false;
  if (marked) ctx->entries.at[ctx->entries.n++] = (struct ir_entry){map, hash, item};
  return true;
}

/* ---- marks ---------------------------------------------------------------------------------------------- */

static bool same_moment(const struct ir_mark *a, const struct ir_mark *b) {
  return a->arena.newest == b->arena.newest && a->arena.next == b->arena.next && a->arena.used == b->arena.used &&
         a->n_nodes == b->n_nodes && a->n_graphs == b->n_graphs && a->n_buffers == b->n_buffers &&
         a->n_entries == b->n_entries && a->next_pin == b->next_pin;
}

/* What the context is now. */
static struct ir_mark take(const quern_context *ctx, uint64_t number) {
  return (struct ir_mark){.number = number,
                          .arena = base_arena_mark(&ctx->arena),
                          .n_nodes = ctx->n_nodes,
                          .n_graphs = ctx->n_graphs,
                          .n_buffers = ctx->buffers.n,
                          .n_entries = ctx->entries.n,
                          .next_pin = ctx->next_pin};
}

quern_status quern_context_mark(quern_context *ctx, quern_mark *mark) {
  QUERN_CHECK(mark != NULL, INVALID, "context_mark: the place for the mark is null");
  *mark = (quern_mark){0};
  QUERN_CHECK(ctx != NULL, INVALID, "context_mark: the context is null");
  QUERN_TRY(quern_context_check(ctx));
  struct ir_mark now = take(ctx, ctx->next_mark + 1);
  if (ctx->marks.n > 0 && same_moment(&ctx->marks.at[ctx->marks.n - 1], &now)) {
    now.number = ctx->marks.at[ctx->marks.n - 1].number;
  } else if (base_vec_push(&ctx->heap, &ctx->marks, now)) {
    ctx->next_mark = now.number;
  } else {
    return QUERN_STATUS_MEMORY;
  }
  *mark = (quern_mark){ctx, now.number};
  return QUERN_STATUS_OK;
}

/* The place of a mark, or how many there are. Their numbers grow. */
static size_t find_mark(const quern_context *ctx, uint64_t number) {
  size_t i = ctx->marks.n;
  while (i > 0 && ctx->marks.at[i - 1].number > number) i--;
  return i > 0 && ctx->marks.at[i - 1].number == number ? i - 1 : ctx->marks.n;
}

/* ---- tensors to keep ------------------------------------------------------------------------------------ */

/* A tensor with elements that moves: its new node, which is none of the context yet. */
struct kept {
  struct ir_node *from, *node;
};

static quern_status check_kept(quern_context *ctx, const struct ir_mark *mark, size_t n, quern_tensor *const *keep) {
  QUERN_CHECK(n == 0 || keep != NULL, INVALID, "context_rewind: the list of %zu tensors to keep is null", n);
  for (size_t i = 0; i < n; i++) {
    char type[IR_TYPE_TEXT];
    QUERN_CHECK(keep[i] != NULL, INVALID, "context_rewind: tensor %zu to keep is null", i);
    QUERN_CHECK(!ir_is_poison(keep[i]), INVALID,
                "context_rewind: tensor %zu to keep is the result of a call that failed", i);
    const struct ir_node *node = keep[i]->node;
    QUERN_CHECK(node->ctx == ctx, INVALID, "context_rewind: tensor %zu to keep belongs to another context", i);
    if (node->id < mark->n_nodes) continue;
    QUERN_CHECK(node->op == IR_BUFFER, INVALID,
                "context_rewind: tensor %zu to keep, %s, is the result of %s and holds no elements HINT: "
                "quern_tensor_realize it before",
                i, ir_type_text(type, keep[i]), ir_ops[node->op].name);
    QUERN_CHECK(node->attrs->buffer->data != NULL, INVALID,
                "context_rewind: tensor %zu to keep, %s, holds no elements any more", i, ir_type_text(type, keep[i]));
  }
  return QUERN_STATUS_OK;
}

/* Numbers the tensors that must move, each once, in their nodes; how many there are. */
static size_t number_kept(quern_context *ctx, const struct ir_mark *mark, size_t n, quern_tensor *const *keep) {
  uint32_t epoch = ir_epoch(ctx), count = 0;
  for (size_t i = 0; i < n; i++) {
    struct ir_node *node = keep[i]->node;
    if (node->id < mark->n_nodes || node->mark == epoch) continue;
    node->mark = epoch;
    node->position = count++;
  }
  return count;
}

/* Memory for a tensor that moves, and for its buffer. */
static bool prepare(struct kept *to, struct base_arena *arena, struct ir_node *node) {
  const quern_tensor *x = &node->out[0];
  struct ir_type type = {.dtype = x->dtype, .rank = x->rank};
  struct ir_buffer *buffer = base_arena_alloc(arena, ir_cell_bytes(sizeof *buffer));
  if (buffer == NULL) return false;
  for (int k = 0; k < x->rank; k++) type.dims[k] = x->dims[k];
  struct ir_attrs attrs = {.dtype = x->dtype, .shape = {x->rank, x->dims}, .buffer = buffer};
  *to = (struct kept){node, ir_node_in(arena, node->ctx, IR_BUFFER, &attrs, &type)};
  return to->node != NULL;
}

/* Its elements are the new node's. */
static void move(const struct kept *kept) {
  struct ir_buffer *from = kept->from->attrs->buffer;
  *kept->node->attrs->buffer = *from;
  from->data = NULL;
}

/* ---- going back ----------------------------------------------------------------------------------------- */

/* Takes everything newer than the mark out of the context. */
static void drop(quern_context *ctx, const struct ir_mark *mark) {
  while (ctx->entries.n > mark->n_entries) {
    const struct ir_entry *entry = &ctx->entries.at[--ctx->entries.n];
    base_map_remove(entry->map, entry->hash, entry->item);
  }
  while (ctx->buffers.n > mark->n_buffers) ir_buffer_free(ctx, ctx->buffers.at[--ctx->buffers.n]);
  while (ctx->pins.n > 0 && ctx->pins.at[ctx->pins.n - 1].number >= mark->next_pin) ctx->pins.n--;
  ctx->n_nodes = mark->n_nodes;
  ctx->n_graphs = mark->n_graphs;
  base_arena_rewind(&ctx->arena, mark->arena);
}

/* Makes it a node. As many were dropped before, so no list needs to grow. */
static void add(quern_context *ctx, struct ir_node *node) {
  node->hash = base_hash_u64(BASE_HASH_SEED, ctx->n_nodes);
  node->id = ctx->n_nodes++;
  bool added =
      ir_intern(ctx, &ctx->nodes, node->hash, node) && base_vec_push(&ctx->heap, &ctx->buffers, node->attrs->buffer);
  QUERN_ASSERT(added);
  (void)added;
}

quern_status ir_scope_begin(quern_context *ctx) {
  struct ir_mark now = take(ctx, ctx->next_mark + 1);
  if (!base_vec_push(&ctx->heap, &ctx->marks, now)) return QUERN_STATUS_MEMORY;
  ctx->n_scopes++;
  return QUERN_STATUS_OK;
}

void ir_scope_end(quern_context *ctx) {
  ctx->n_scopes--;
  drop(ctx, &ctx->marks.at[--ctx->marks.n]);
  if (ctx->marks.n > 0) return;
  base_vec_fini(&ctx->heap, &ctx->marks);
  base_vec_fini(&ctx->heap, &ctx->entries);
}

quern_status quern_context_rewind(quern_context *ctx, quern_mark mark, size_t n, quern_tensor **keep) {
  QUERN_CHECK(ctx != NULL, INVALID, "context_rewind: the context is null");
  QUERN_TRY(quern_context_check(ctx));
  QUERN_CHECK(mark.ctx == ctx, INVALID, "context_rewind: the mark is %s",
              mark.ctx == NULL ? "none of any context" : "of another context");
  size_t place = find_mark(ctx, mark.number);
  QUERN_CHECK(place < ctx->marks.n, STATE,
              "context_rewind: the mark is gone: the context went back to an earlier one, or was collected");
  const struct ir_mark *to = &ctx->marks.at[place];
  QUERN_TRY(check_kept(ctx, to, n, keep));
  struct base_arena side;
  base_arena_init(&side, &ctx->heap);
  size_t count = number_kept(ctx, to, n, keep);
  struct kept *kept = base_alloc_zero(&ctx->heap, (count + 1) * sizeof *kept);
  bool ready = kept != NULL;
  for (size_t i = 0; i < n && ready; i++) {
    struct ir_node *node = keep[i]->node;
    if (node->id >= to->n_nodes && kept[node->position].node == NULL)
      ready = prepare(&kept[node->position], &side, node);
  }
  if (!ready) {
    base_arena_fini(&side);
    base_free(&ctx->heap, kept, (count + 1) * sizeof *kept);
    return QUERN_STATUS_MEMORY;
  }
  for (size_t i = 0; i < n; i++)
    if (keep[i]->node->id >= to->n_nodes) keep[i] = &kept[keep[i]->node->position].node->out[0];
  for (size_t i = 0; i < count; i++) move(&kept[i]);
  drop(ctx, to);
  ctx->marks.n = place + 1;
  base_arena_join(&ctx->arena, &side);
  for (size_t i = 0; i < count; i++) add(ctx, kept[i].node);
  base_free(&ctx->heap, kept, (count + 1) * sizeof *kept);
  return QUERN_STATUS_OK;
}
