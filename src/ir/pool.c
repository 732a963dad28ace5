/* ir/pool.c -- blocks of memory for elements, used again
** A block that comes back is kept; a request takes the smallest kept one that is large enough and at most an eighth
** larger, of several of a size the one that came back last.
** keeps: kept blocks are sorted; they have no more bytes than the limit, or the oldest of them are freed; there is room
**        in the list for those that are used, so that giving one back needs no memory
** tests: tests/ir/test_pool.c
*/
#include <string.h>

#include "ir/ir.h"

enum { ALIGNMENT = 64, SLACK = 8 };

void ir_pool_init(struct ir_pool *pool) { *pool = (struct ir_pool){.stats = {.limit_bytes = (size_t)1 << 30}}; }

void ir_pool_fini(quern_context *ctx) {
  struct ir_pool *pool = &ctx->pool;
  for (size_t i = 0; i < pool->kept.n; i++) base_free(&ctx->heap, pool->kept.at[i].data, pool->kept.at[i].bytes);
  base_vec_fini(&ctx->heap, &pool->kept);
}

/* The first kept block of more bytes. */
static size_t first_above(const struct ir_pool *pool, size_t bytes) {
  size_t lo = 0, hi = pool->kept.n;
  while (lo < hi) {
    size_t mid = lo + (hi - lo) / 2;
    if (pool->kept.at[mid].bytes > bytes)
      hi = mid;
    else
      lo = mid + 1;
  }
  return lo;
}

/* Takes a block out of the kept ones. */
static struct ir_pool_block take(struct ir_pool *pool, size_t i) {
  struct ir_pool_block block = pool->kept.at[i];
  pool->kept.n--;
  memmove(pool->kept.at + i, pool->kept.at + i + 1, (pool->kept.n - i) * sizeof block);
  pool->stats.kept_bytes -= block.bytes;
  return block;
}

/* Frees the oldest blocks until those that are left have no more bytes. */
static void trim(quern_context *ctx, size_t bytes) {
  struct ir_pool *pool = &ctx->pool;
  while (pool->stats.kept_bytes > bytes) {
    size_t oldest = 0;
    for (size_t i = 1; i < pool->kept.n; i++)
      if (pool->kept.at[i].age < pool->kept.at[oldest].age) oldest = i;
    struct ir_pool_block block = take(pool, oldest);
    base_free(&ctx->heap, block.data, block.bytes);
  }
}

void *ir_pool_take(quern_context *ctx, size_t bytes, size_t *room) {
  struct ir_pool *pool = &ctx->pool;
  quern_pool_stats *stats = &pool->stats;
  size_t need = (BASE_MAX(bytes, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  size_t i = first_above(pool, need - 1);
  struct ir_pool_block block = {.bytes = need};
  if (i < pool->kept.n && pool->kept.at[i].bytes - need <= need / SLACK) {
    block = take(pool, first_above(pool, pool->kept.at[i].bytes) - 1);
    stats->hits++;
  } else {
    if (!base_vec_reserve(&ctx->heap, &pool->kept, pool->n_used + 1)) return NULL;
    block.data = base_alloc(&ctx->heap, need);
    if (block.data == NULL && pool->kept.n > 0) { /* what is kept may be what is missing */
      trim(ctx, 0);
      block.data = base_alloc(&ctx->heap, need);
    }
    if (block.data == NULL) return NULL;
    stats->misses++;
  }
  pool->n_used++;
  stats->used_bytes += block.bytes;
  stats->peak_bytes = BASE_MAX(stats->peak_bytes, stats->used_bytes + stats->kept_bytes);
  *room = block.bytes;
  return block.data;
}

void ir_pool_give(quern_context *ctx, void *data, size_t room) {
  struct ir_pool *pool = &ctx->pool;
  pool->n_used--;
  pool->stats.used_bytes -= room;
  if (room > pool->stats.limit_bytes) {
    base_free(&ctx->heap, data, room);
    return;
  }
  trim(ctx, pool->stats.limit_bytes - room);
  size_t i = first_above(pool, room);
  memmove(pool->kept.at + i + 1, pool->kept.at + i, (pool->kept.n - i) * sizeof *pool->kept.at);
  pool->kept.at[i] = (struct ir_pool_block){data, room, ++pool->age};
  pool->kept.n++;
  pool->stats.kept_bytes += room;
}

/* ---- the public side -------------------------------------------------------------------------------------- */

quern_status quern_pool_limit(quern_context *ctx, size_t bytes) {
  QUERN_CHECK(ctx != NULL, INVALID, "pool_limit: the context is null");
  ctx->pool.stats.limit_bytes = bytes;
  trim(ctx, bytes);
  return QUERN_STATUS_OK;
}

quern_status quern_pool_trim(quern_context *ctx, size_t bytes) {
  QUERN_CHECK(ctx != NULL, INVALID, "pool_trim: the context is null");
  trim(ctx, bytes);
  return QUERN_STATUS_OK;
}

quern_status quern_pool_get(const quern_context *ctx, quern_pool_stats *stats) {
  QUERN_CHECK(stats != NULL, INVALID, "pool_get: the place for the figures is null");
  *stats = (quern_pool_stats){0};
  QUERN_CHECK(ctx != NULL, INVALID, "pool_get: the context is null");
  *stats = ctx->pool.stats;
  return QUERN_STATUS_OK;
}
