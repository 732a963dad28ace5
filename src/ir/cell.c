/* ir/cell.c -- memory of nodes, subgraphs, bodies and buffers: cells of a context's arena, with free lists by size
** keeps: every cell has the bytes of its size class, so that it serves any request of that class; free lists are used
**        only while the context has no mark, since going back to one frees the arena from there on
** tests: tests/ir/test_collect.c
*/
#include "ir/ir.h"

struct ir_free_cell {
  struct ir_free_cell *next;
};

enum { STEP = 16, SMALL = 1024, SMALL_CLASSES = SMALL / STEP, SMALL_BITS = 10 };

/* The class of a request and the bytes of its cells: multiples of 16 up to 1 KiB, then quarters between powers of two. */
static int class_of(size_t bytes, size_t *cell) {
  if (bytes <= SMALL) {
    size_t number = bytes == 0 ? 0 : (bytes - 1) / STEP;
    *cell = (number + 1) * STEP;
    return (int)number;
  }
  int bits = 63 - __builtin_clzll((unsigned long long)(bytes - 1)); /* 2^bits < bytes <= 2^(bits + 1) */
  size_t quarter = (size_t)1 << (bits - 2), number = (bytes - 1 - ((size_t)1 << bits)) / quarter;
  *cell = ((size_t)1 << bits) + (number + 1) * quarter;
  return SMALL_CLASSES + 4 * (bits - SMALL_BITS) + (int)number;
}

size_t ir_cell_bytes(size_t bytes) {
  size_t cell;
  return class_of(bytes, &cell) < IR_CELL_CLASSES ? cell : bytes;
}

void *ir_cell_new(quern_context *ctx, size_t bytes) {
  size_t cell;
  int class = class_of(bytes, &cell);
  struct ir_free_cell *first = class < IR_CELL_CLASSES && ctx->marks.n == 0 ? ctx->cells[class] : NULL;
  if (first == NULL) return base_arena_alloc(&ctx->arena, class < IR_CELL_CLASSES ? cell : bytes);
  ctx->cells[class] = first->next;
  return memset(first, 0, bytes);
}

void ir_cell_free(quern_context *ctx, void *memory, size_t bytes) {
  size_t cell;
  int class = class_of(bytes, &cell);
  QUERN_ASSERT(ctx->marks.n == 0);
  if (class >= IR_CELL_CLASSES) return; /* more than a context can hold */
  struct ir_free_cell *first = memory;
#if QUERN_ASSERTS
  memset(memory, 0xdd, bytes); /* whoever still reads it shall notice */
#endif
  first->next = ctx->cells[class];
  ctx->cells[class] = first;
}
