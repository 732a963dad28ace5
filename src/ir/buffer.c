/* ir/buffer.c -- memory of tensors that a context owns
** tests: tests/ir/test_text.c, tests/ir/test_buffer_cache.c, tests/tensor/test_graph.c
*/
#include "ir/ir.h"

struct ir_buffer *ir_buffer_wrap(quern_context *ctx, void *data, size_t bytes) {
  struct ir_buffer *buffer = ir_cell_new(ctx, sizeof *buffer);
  if (buffer == NULL) return NULL;
  *buffer = (struct ir_buffer){.data = data, .bytes = bytes};
  if (base_vec_push(&ctx->heap, &ctx->buffers, buffer)) return buffer;
  return NULL;
}

struct ir_buffer *ir_buffer_new(quern_context *ctx, size_t bytes) {
  size_t room;
  void *data = ir_buffer_cache_take(&ctx->buffer_cache, bytes, &room);
  struct ir_buffer *buffer = data != NULL ? ir_buffer_wrap(ctx, data, bytes) : NULL;
  if (data != NULL && buffer == NULL) ir_buffer_cache_give(&ctx->buffer_cache, data, room);
  if (buffer == NULL) return NULL;
  buffer->room = room;
  buffer->owned = true;
  return buffer;
}

void ir_buffer_free(quern_context *ctx, struct ir_buffer *buffer) {
  if (buffer->owned && buffer->data != NULL) ir_buffer_cache_give(&ctx->buffer_cache, buffer->data, buffer->room);
  if (buffer->remote != NULL) ir_buffer_cache_give(&ctx->remote_cache, buffer->remote, buffer->remote_room);
  *buffer = (struct ir_buffer){0};
}

/* ---- elements in the memory of a device ------------------------------------------------------------------- */

struct ir_buffer *ir_buffer_new_remote(quern_context *ctx, size_t bytes) {
  size_t room;
  void *at = ir_buffer_cache_take(&ctx->remote_cache, bytes, &room);
  struct ir_buffer *buffer = at != NULL ? ir_buffer_wrap(ctx, NULL, bytes) : NULL;
  if (at != NULL && buffer == NULL) ir_buffer_cache_give(&ctx->remote_cache, at, room);
  if (buffer == NULL) return NULL;
  buffer->remote = at;
  buffer->remote_room = room;
  return buffer;
}

quern_status ir_buffer_fetch(quern_context *ctx, struct ir_buffer *buffer) {
  if (buffer->data != NULL || buffer->remote == NULL) return QUERN_STATUS_OK;
  size_t room;
  void *data = ir_buffer_cache_take(&ctx->buffer_cache, buffer->bytes, &room);
  if (data == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = ctx->remote->download(ctx->remote, data, buffer->remote, buffer->bytes);
  if (status != QUERN_STATUS_OK) {
    ir_buffer_cache_give(&ctx->buffer_cache, data, room);
    return status;
  }
  buffer->data = data;
  buffer->room = room;
  buffer->owned = true;
  return QUERN_STATUS_OK;
}

quern_status ir_fetch(quern_context *ctx, size_t n, quern_tensor *const *roots) {
  struct ir_order order;
  if (ctx->remote == NULL) return QUERN_STATUS_OK;
  QUERN_TRY(ir_topo(ctx, n, roots, &order));
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < order.n && status == QUERN_STATUS_OK; i++)
    if (order.at[i]->op == IR_BUFFER) status = ir_buffer_fetch(ctx, order.at[i]->attrs->buffer);
  ir_order_fini(ctx, &order);
  return status;
}

void ir_remote_open(quern_context *ctx, struct ir_remote *remote) {
  size_t limit = ctx->buffer_cache.stats.limit_bytes;
  ir_buffer_cache_init(&ctx->remote_cache, &ctx->heap, remote);
  ctx->remote_cache.stats.limit_bytes = limit;
  ctx->remote = remote;
}

void ir_remote_close(quern_context *ctx) {
  for (size_t i = 0; i < ctx->buffers.n; i++) {
    struct ir_buffer *buffer = ctx->buffers.at[i];
    if (buffer->remote != NULL) ir_buffer_cache_give(&ctx->remote_cache, buffer->remote, buffer->remote_room);
    buffer->remote = NULL;
  }
  ir_buffer_cache_fini(&ctx->remote_cache);
  ir_buffer_cache_init(&ctx->remote_cache, &ctx->heap, NULL);
  ctx->remote = NULL;
}

quern_status quern_tensor_release(quern_tensor *x) {
  QUERN_CHECK(x != NULL, INVALID, "tensor_release: the tensor is null");
  QUERN_CHECK(!ir_is_poison(x), INVALID, "tensor_release: the tensor is the result of a call that failed");
  const struct ir_node *node = x->node;
  char type[IR_TYPE_TEXT];
  QUERN_TRY(quern_context_check(node->ctx));
  QUERN_CHECK(node->op == IR_BUFFER, INVALID,
              "tensor_release: the tensor, %s, is the result of %s and holds no elements", ir_type_text(type, x),
              ir_ops[node->op].name);
  QUERN_CHECK(ir_buffer_bound(node->attrs->buffer), STATE, "tensor_release: the tensor, %s, holds no elements any more",
              ir_type_text(type, x));
  ir_buffer_free(node->ctx, node->attrs->buffer);
  return QUERN_STATUS_OK;
}
