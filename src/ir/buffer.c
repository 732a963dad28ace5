/* ir/buffer.c -- memory of tensors that a context owns
** tests: tests/ir/test_text.c, tests/ir/test_pool.c, tests/tensor/test_graph.c
*/
#include "ir/ir.h"

struct ir_buffer *ir_buffer_new(quern_context *ctx, size_t bytes) {
  struct ir_buffer *buffer = base_arena_new(&ctx->arena, struct ir_buffer);
  if (buffer == NULL || !base_vec_reserve(&ctx->heap, &ctx->buffers, 1)) return NULL;
  *buffer = (struct ir_buffer){.bytes = bytes, .owned = true};
  buffer->data = ir_pool_take(ctx, bytes, &buffer->room);
  if (buffer->data == NULL) return NULL;
  ctx->buffers.at[ctx->buffers.n++] = buffer;
  return buffer;
}

void ir_buffer_free(quern_context *ctx, struct ir_buffer *buffer) {
  if (buffer->owned && buffer->data != NULL) ir_pool_give(ctx, buffer->data, buffer->room);
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
