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
  void *data = ir_buffer_cache_take(ctx, bytes, &room);
  struct ir_buffer *buffer = data != NULL ? ir_buffer_wrap(ctx, data, bytes) : NULL;
  if (data != NULL && buffer == NULL) ir_buffer_cache_give(ctx, data, room);
  if (buffer == NULL) return NULL;
  buffer->room = room;
  buffer->owned = true;
  return buffer;
}

void ir_buffer_free(quern_context *ctx, struct ir_buffer *buffer) {
  if (buffer->owned && buffer->data != NULL) ir_buffer_cache_give(ctx, buffer->data, buffer->room);
  *buffer = (struct ir_buffer){0};
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
  QUERN_CHECK(node->attrs->buffer->data != NULL, STATE, "tensor_release: the tensor, %s, holds no elements any more",
              ir_type_text(type, x));
  ir_buffer_free(node->ctx, node->attrs->buffer);
  return QUERN_STATUS_OK;
}
