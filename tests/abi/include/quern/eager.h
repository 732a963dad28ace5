/* quern/eager.h -- eager use: tensors with elements now, the memory they lie in, and loops that do not grow
** Realizing compiles what a tensor is made of, keeps the program in the context, and finds it again for an expression
** of the same structure on other elements. See docs/runtime.md, "Eager use".
*/
#ifndef QUERN_EAGER_H
#define QUERN_EAGER_H
#include "quern/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Replaces *x, which must need no feed, by a tensor that holds its elements. */
QUERN_API quern_status quern_tensor_realize(quern_tensor **x) QUERN_NODISCARD;
/* The same for several of one context, by one program. All are replaced, or none. */
QUERN_API quern_status quern_tensors_realize(size_t n, quern_tensor **xs) QUERN_NODISCARD;

/* Where the context realizes and evaluates (quern_eval) from now on: "cpu", as at first, "interp", "opencl" or "cuda". On a
** device that has its own memory, elements stay there from one realization to the next, quern_tensor_realize returns
** before they are computed, and what goes wrong meanwhile is told by a later call. Elements that are on another device
** come to the host, and go to the new one when they are used; programs of the other are dropped. A device that is not
** there is an error, and nothing has changed then. */
QUERN_API quern_status quern_context_set_device(quern_context *ctx, const char *device) QUERN_NODISCARD;

/* Gives the memory of a realized, copied or wrapped tensor back, the pool's to the pool. Its elements are gone:
** evaluating what is made of it fails with UNBOUND. What was realized from it stays. */
QUERN_API quern_status quern_tensor_release(quern_tensor *x) QUERN_NODISCARD;

/* ---- the pool: where the elements of tensors that a context owns lie --------------------------------------------
** On a device that has its own memory there is a pool of that memory and one of the host's, for what is copied or read
** there: limit and trim are for each of them, and the figures are of the device's. */

typedef struct quern_pool_stats {
  size_t size;
  size_t used_bytes;     /* held by tensors */
  size_t kept_bytes;     /* of blocks that came back, to be used again */
  size_t peak_bytes;     /* used and kept, at most */
  size_t limit_bytes;    /* kept at most */
  uint64_t hits, misses; /* requests that a kept block served, and that the allocator did */
} quern_pool_stats;

/* How many bytes may be kept (1 GiB at first; 0: none); and freeing those that came back longest ago until so many
** are left. */
QUERN_API quern_status quern_pool_limit(quern_context *ctx, size_t bytes) QUERN_NODISCARD;
QUERN_API quern_status quern_pool_trim(quern_context *ctx, size_t bytes) QUERN_NODISCARD;
QUERN_API quern_status quern_pool_get_stats(const quern_context *ctx, quern_pool_stats *stats) QUERN_NODISCARD;

/* ---- marks: going back ------------------------------------------------------------------------------------------ */

/* A moment of a context. It holds until the context goes back to an earlier one. */
typedef struct quern_mark {
  const quern_context *ctx;
  uint64_t number;
} quern_mark;
QUERN_API quern_status quern_context_mark(quern_context *ctx, quern_mark *mark) QUERN_NODISCARD;

/* Frees everything that was made in the context since the mark: tensors, rules of composites, later marks. Whatever
** of it the caller still points to, graphs included, must not be used any more (graphs are freed as ever). Programs
** and instances stay. keep[i] must be older than the mark, or hold elements: then it is replaced by a tensor that
** holds them. On failure nothing has changed. */
QUERN_API quern_status quern_context_rewind(quern_context *ctx, quern_mark mark, size_t n,
                                            quern_tensor **keep) QUERN_NODISCARD;

/* ---- collecting --------------------------------------------------------------------------------------------------- */

/* Frees every node of the context that nothing needs any more: roots stay, and what they are made of, and all that
** models, steps and graphs of the context hold; they stay where they are. Any other tensor must not be used any more,
** and all marks are gone. Memory of nodes is used again, so a loop that collects now and then does not grow. Programs
** and instances need no tensors. On failure nothing has changed. */
QUERN_API quern_status quern_context_collect(quern_context *ctx, size_t n, quern_tensor *const *roots) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
