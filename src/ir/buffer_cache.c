/* ir/buffer_cache.c -- a caching allocator for elements
** A block that comes back stays in the cache; a request takes the smallest cached one that is large enough and at most
** an eighth larger, of several of one size the one that came back last.
** keeps: cached blocks are sorted; they have no more bytes than the limit, or the oldest of them are freed; there is
**        room in the list for those that are used, so that giving one back needs no memory
** tests: tests/ir/test_buffer_cache.c
*/
#include <string.h>

#include "ir/ir.h"

enum { ALIGNMENT = 64, SLACK = 8 };

void ir_buffer_cache_init(struct ir_buffer_cache *cache, struct base_heap *heap, struct ir_remote *remote) {
  *cache = (struct ir_buffer_cache){.heap = heap, .remote = remote, .stats = {.limit_bytes = (size_t)1 << 30}};
}

static void *block_new(const struct ir_buffer_cache *cache, size_t bytes) {
  return cache->remote != NULL ? cache->remote->alloc(cache->remote, bytes) : base_alloc(cache->heap, bytes);
}

static void block_free(const struct ir_buffer_cache *cache, void *data, size_t bytes) {
  if (cache->remote != NULL)
    cache->remote->free(cache->remote, data, bytes);
  else
    base_free(cache->heap, data, bytes);
}

void ir_buffer_cache_fini(struct ir_buffer_cache *cache) {
  for (size_t i = 0; i < cache->kept.n; i++) block_free(cache, cache->kept.at[i].data, cache->kept.at[i].bytes);
  base_vec_fini(cache->heap, &cache->kept);
}

/* The first kept block of more bytes. */
static size_t first_above(const struct ir_buffer_cache *cache, size_t bytes) {
  size_t lo = 0, hi = cache->kept.n;
  while (lo < hi) {
    size_t mid = lo + (hi - lo) / 2;
    if (cache->kept.at[mid].bytes > bytes)
      hi = mid;
    else
      lo = mid + 1;
  }
  return lo;
}

/* Takes a block out of the kept ones. */
static struct ir_cached_buffer take(struct ir_buffer_cache *cache, size_t i) {
  struct ir_cached_buffer block = cache->kept.at[i];
  cache->kept.n--;
  memmove(cache->kept.at + i, cache->kept.at + i + 1, (cache->kept.n - i) * sizeof block);
  cache->stats.kept_bytes -= block.bytes;
  return block;
}

/* Frees the oldest blocks until those that are left have no more bytes. */
static void trim(struct ir_buffer_cache *cache, size_t bytes) {
  while (cache->stats.kept_bytes > bytes) {
    size_t oldest = 0;
    for (size_t i = 1; i < cache->kept.n; i++)
      if (cache->kept.at[i].age < cache->kept.at[oldest].age) oldest = i;
    struct ir_cached_buffer block = take(cache, oldest);
    block_free(cache, block.data, block.bytes);
  }
}

void *ir_buffer_cache_take(struct ir_buffer_cache *cache, size_t bytes, size_t *room) {
  quern_pool_stats *stats = &cache->stats;
  size_t need = (BASE_MAX(bytes, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  size_t i = first_above(cache, need - 1);
  struct ir_cached_buffer block = {.bytes = need};
  if (i < cache->kept.n && cache->kept.at[i].bytes - need <= need / SLACK) {
    block = take(cache, first_above(cache, cache->kept.at[i].bytes) - 1);
    stats->hits++;
  } else {
    if (!base_vec_reserve(cache->heap, &cache->kept, cache->n_used + 1)) return NULL;
    block.data = block_new(cache, need);
    if (block.data == NULL && cache->kept.n > 0) { /* what is kept may be what is missing */
      trim(cache, 0);
      block.data = block_new(cache, need);
    }
    if (block.data == NULL) return NULL;
    stats->misses++;
  }
  cache->n_used++;
  stats->used_bytes += block.bytes;
  stats->peak_bytes = BASE_MAX(stats->peak_bytes, stats->used_bytes + stats->kept_bytes);
  *room = block.bytes;
  return block.data;
}

void ir_buffer_cache_give(struct ir_buffer_cache *cache, void *data, size_t room) {
  cache->n_used--;
  cache->stats.used_bytes -= room;
  if (room > cache->stats.limit_bytes) {
    block_free(cache, data, room);
    return;
  }
  trim(cache, cache->stats.limit_bytes - room);
  size_t i = first_above(cache, room);
  memmove(cache->kept.at + i + 1, cache->kept.at + i, (cache->kept.n - i) * sizeof *cache->kept.at);
  cache->kept.at[i] = (struct ir_cached_buffer){data, room, ++cache->age};
  cache->kept.n++;
  cache->stats.kept_bytes += room;
}

/* ---- the public side -------------------------------------------------------------------------------------- */

quern_status quern_pool_limit(quern_context *ctx, size_t bytes) {
  QUERN_CHECK(ctx != NULL, INVALID, "pool_limit: the context is null");
  ctx->buffer_cache.stats.limit_bytes = ctx->remote_cache.stats.limit_bytes = bytes;
  trim(&ctx->buffer_cache, bytes);
  trim(&ctx->remote_cache, bytes);
  return QUERN_STATUS_OK;
}

quern_status quern_pool_trim(quern_context *ctx, size_t bytes) {
  QUERN_CHECK(ctx != NULL, INVALID, "pool_trim: the context is null");
  trim(&ctx->buffer_cache, bytes);
  trim(&ctx->remote_cache, bytes);
  return QUERN_STATUS_OK;
}

quern_status quern_pool_get_stats(const quern_context *ctx, quern_pool_stats *stats) {
  QUERN_CHECK(stats != NULL, INVALID, "pool_get_stats: the place for the figures is null");
  QUERN_CHECK(ctx != NULL, INVALID, "pool_get_stats: the context is null");
  return base_give(quern_pool_stats, stats, ctx->remote != NULL ? &ctx->remote_cache.stats : &ctx->buffer_cache.stats,
                   "pool_get_stats");
}
