/* ir/buffer.c -- memory of tensors that a context owns
** tests: tests/ir/test_text.c, tests/tensor/test_graph.c
*/
#include "ir/ir.h"

struct ir_buffer *ir_buffer_new(quern_context *ctx, size_t bytes) {
  struct ir_buffer *buffer = base_arena_new(&ctx->arena, struct ir_buffer);
  if (buffer == NULL || !base_vec_reserve(&ctx->heap, &ctx->buffers, 1)) return NULL;
  *buffer = (struct ir_buffer){.data = base_alloc(&ctx->heap, bytes), .bytes = bytes, .owned = true};
  if (buffer->data == NULL) return NULL;
  ctx->buffers.at[ctx->buffers.n++] = buffer;
  return buffer;
}

void ir_buffer_free(quern_context *ctx, struct ir_buffer *buffer) {
  base_free(&ctx->heap, buffer->data, buffer->bytes);
  *buffer = (struct ir_buffer){0};
}
