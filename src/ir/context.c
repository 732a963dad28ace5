/* ir/context.c -- the owner of nodes, and how builders report errors
** keeps: an error that a builder records stays until a call that returns a status reports it; the first one wins
** tests: tests/ir/test_context.c
*/
#include <stdio.h>
#include <string.h>

#include "ir/ir.h"

quern_tensor ir_poison = {.node = NULL, .dtype = QUERN_DTYPE_F32};

quern_status ir_context_new(quern_context **out, const quern_context_options *options) {
  QUERN_CHECK(out != NULL, INVALID, "context_new: the place for the context is null");
  *out = NULL;
  QUERN_TRY(base_env_read());
  quern_context_options o;
  QUERN_TRY(base_take(quern_context_options, &o, options, "context_new"));
  const quern_allocator *user = &o.allocator;
  QUERN_CHECK((user->alloc == NULL) == (user->free == NULL), INVALID,
              "context_new: an allocator needs both alloc and free");

  struct base_heap heap;
  base_heap_init(&heap, user->alloc != NULL ? user : NULL);
  quern_context *ctx = base_alloc_zero(&heap, sizeof *ctx);
  if (ctx == NULL) return QUERN_STATUS_MEMORY;
  ctx->heap = heap;
  base_arena_init(&ctx->arena, &ctx->heap);
  base_map_init(&ctx->nodes, &ctx->heap);
  base_map_init(&ctx->graphs, &ctx->heap);
  base_map_init(&ctx->composites, &ctx->heap);
  base_map_init(&ctx->bodies, &ctx->heap);
  base_map_init(&ctx->label_map, &ctx->heap);
  base_arena_init(&ctx->label_arena, &ctx->heap);
  ir_buffer_cache_init(&ctx->buffer_cache, &ctx->heap, NULL);
  ir_buffer_cache_init(&ctx->remote_cache, &ctx->heap, NULL);
  ctx->seed = o.seed != 0 ? o.seed : (uint64_t)base_env_int(BASE_ENV_SEED);
  *out = ctx;
  return QUERN_STATUS_OK;
}

void quern_context_free(quern_context *ctx) {
  if (ctx == NULL) return;
  if (ctx->eager.state != NULL) ctx->eager.free(ctx->eager.state);
  for (size_t i = 0; i < ctx->buffers.n; i++) {
    const struct ir_buffer *buffer = ctx->buffers.at[i];
    if (buffer->owned) base_free(&ctx->heap, buffer->data, buffer->room);
  }
  ir_buffer_cache_fini(&ctx->buffer_cache);
  ir_buffer_cache_fini(&ctx->remote_cache);
  base_vec_fini(&ctx->heap, &ctx->pins);
  base_vec_fini(&ctx->heap, &ctx->entries);
  base_vec_fini(&ctx->heap, &ctx->marks);
  base_vec_fini(&ctx->heap, &ctx->buffers);
  base_vec_fini(&ctx->heap, &ctx->types);
  base_map_fini(&ctx->label_map);
  base_vec_fini(&ctx->heap, &ctx->labels);
  base_arena_fini(&ctx->label_arena);
  base_map_fini(&ctx->bodies);
  base_map_fini(&ctx->composites);
  base_map_fini(&ctx->graphs);
  base_map_fini(&ctx->nodes);
  base_arena_fini(&ctx->arena);
  struct base_heap heap = ctx->heap;
  base_free(&heap, ctx, sizeof *ctx);
}

quern_status quern_context_check(quern_context *ctx) {
  QUERN_CHECK(ctx != NULL, INVALID, "context_check: the context is null");
  quern_status status = ctx->error;
  ctx->error = QUERN_STATUS_OK;
  if (status != QUERN_STATUS_OK) ctx->label = 0; /* a layer that failed may not have been left */
  if (status != QUERN_STATUS_OK) (void)base_error(status, "%s", ctx->message);
  return status;
}

quern_status quern_context_get_stats(const quern_context *ctx, quern_context_stats *stats) {
  QUERN_CHECK(ctx != NULL, INVALID, "context_get_stats: the context is null");
  QUERN_CHECK(stats != NULL, INVALID, "context_get_stats: the place for the numbers is null");
  quern_context_stats now = {
      .live_bytes = ctx->heap.live, .peak_bytes = ctx->heap.peak, .allocations = ctx->heap.count};
  return base_give(quern_context_stats, stats, &now, "context_get_stats");
}

size_t quern_context_node_count(const quern_context *ctx) { return ctx == NULL ? 0 : ctx->nodes.n; }

/* Keeps this thread's last error as the context's first, with the caller's place. */
quern_tensor *ir_fail_last(quern_context *ctx) {
  if (ctx == NULL || ctx->error != QUERN_STATUS_OK) return &ir_poison;
  const char *file;
  int line;
  base_place_get(&file, &line);
  ctx->error = quern_last_status();
  if (file != NULL && strstr(quern_last_error(), "\n  at ") == NULL) {
    /* The place goes before a hint, and survives when the message is long. */
    const char *text = quern_last_error(), *hint = strstr(text, " HINT:");
    int head = hint != NULL ? (int)(hint - text) : (int)strlen(text);
    int room = BASE_MESSAGE_BYTES - 300;
    if (head > room) head = room;
    snprintf(ctx->message, sizeof ctx->message, "%.*s\n  at %.200s:%d%s", head, text, file, line,
             hint != NULL ? hint : "");
  } else {
    snprintf(ctx->message, sizeof ctx->message, "%s", quern_last_error());
  }
  return &ir_poison;
}

quern_tensor *ir_fail(quern_context *ctx, quern_status status, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  (void)base_error_v(status, fmt, args);
  va_end(args);
  return ir_fail_last(ctx);
}
