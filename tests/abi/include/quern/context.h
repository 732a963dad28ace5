/* quern/context.h -- the owner of expressions
** A context owns every tensor made in it and is used by one thread at a time. All heap memory goes through its allocator.
*/
#ifndef QUERN_CONTEXT_H
#define QUERN_CONTEXT_H
#include <stddef.h>
#include <stdint.h>

#include "quern/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quern_context quern_context;

/* Where memory comes from. alloc returns 64-byte aligned memory of that many bytes or NULL; free gets the same size back. Both
** may be called by several threads at once. */
typedef struct quern_allocator {
  void *(*alloc)(void *self, size_t bytes);
  void (*free)(void *self, void *memory, size_t bytes);
  void *self;
} quern_allocator;

typedef struct quern_context_options {
  size_t size;
  quern_allocator allocator; /* all zero: the C library's */
  uint64_t seed;             /* of random tensors; 0: QUERN_SEED, else 0 */
} quern_context_options;

/* The memory of a context, and what it holds. */
typedef struct quern_context_stats {
  size_t size;
  size_t live_bytes, peak_bytes; /* held now, and at most */
  uint64_t allocations;          /* how many there have been */
} quern_context_stats;

/* Makes a context. options may be NULL. */
QUERN_API quern_status quern_context_new(quern_context **ctx, const quern_context_options *options) QUERN_NODISCARD;

/* Frees a context with all its tensors. NULL is fine. */
QUERN_API void quern_context_free(quern_context *ctx);

/* Reports the first error that a builder recorded since the last report, and forgets it. */
QUERN_API quern_status quern_context_check(quern_context *ctx) QUERN_NODISCARD;

QUERN_API quern_status quern_context_get_stats(const quern_context *ctx, quern_context_stats *stats) QUERN_NODISCARD;

/* How many distinct nodes the context holds. */
QUERN_API size_t quern_context_node_count(const quern_context *ctx);

/* Remembers the caller's place for the messages of builders; used by the macros of tensor.h. */
QUERN_API void quern_place_set(const char *file, int line);

#ifdef __cplusplus
}
#endif
#endif
