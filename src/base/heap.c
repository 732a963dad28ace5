/* base/heap.c -- the one allocator: counted, bounded by the user's allocator, made to fail by QUERN_FAULT
** keeps: live and peak are the bytes asked for; every block is 64-byte aligned
** tests: tests/base/test_heap.c
*/
#define _DEFAULT_SOURCE /* madvise */
#include "base/base.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, LARGE_PAGE = 2 << 20 };

/* Large blocks are asked to lie in large pages, as far as they fill them: a CPU finds those sooner. */
static void *libc_alloc(void *self, size_t bytes) {
  (void)self;
  size_t alignment = bytes < 2 * LARGE_PAGE ? ALIGNMENT : LARGE_PAGE;
  if (bytes > PTRDIFF_MAX - alignment) return NULL;
  void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
#ifdef MADV_HUGEPAGE
  if (memory != NULL && alignment == LARGE_PAGE) (void)madvise(memory, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
#endif
  return memory;
}

static void libc_free(void *self, void *memory, size_t bytes) {
  (void)self;
  (void)bytes;
  free(memory);
}

/* The N of QUERN_FAULT=alloc:N, or 0. */
static uint64_t fault_number(void) {
  const char *fault = base_env_get(BASE_ENV_FAULT);
  const char *colon = strchr(fault, ':');
  return colon ? strtoull(colon + 1, NULL, 10) : 0;
}

void base_heap_init(struct base_heap *heap, const quern_allocator *user) {
  *heap = (struct base_heap){.user = {libc_alloc, libc_free, NULL}, .fail_at = fault_number()};
  if (user && user->alloc && user->free) heap->user = *user;
}

static void raise_peak(struct base_heap *heap, size_t live) {
  size_t peak = atomic_load(&heap->peak);
  while (live > peak && !atomic_compare_exchange_weak(&heap->peak, &peak, live)) {}
}

void *base_alloc(struct base_heap *heap, size_t bytes) {
  uint64_t number = atomic_fetch_add(&heap->count, 1) + 1;
  bool fail = heap->fail_at != 0 && number >= heap->fail_at;
  void *memory = fail ? NULL : heap->user.alloc(heap->user.self, BASE_MAX(bytes, 1));
  if (!memory) {
    base_error(QUERN_STATUS_MEMORY, "no memory for %zu bytes (%zu are in use, allocation %" PRIu64 ")", bytes,
               atomic_load(&heap->live), number);
    return NULL;
  }
  if ((uintptr_t)memory % ALIGNMENT != 0) {
    heap->user.free(heap->user.self, memory, BASE_MAX(bytes, 1));
    base_error(QUERN_STATUS_INVALID, "the allocator gave memory for %zu bytes that is not %d-byte aligned", bytes,
               ALIGNMENT);
    return NULL;
  }
  raise_peak(heap, atomic_fetch_add(&heap->live, bytes) + bytes);
  return memory;
}

void *base_alloc_zero(struct base_heap *heap, size_t bytes) {
  void *memory = base_alloc(heap, bytes);
  return memory ? memset(memory, 0, bytes) : NULL;
}

void base_free(struct base_heap *heap, void *memory, size_t bytes) {
  if (!memory) return;
  atomic_fetch_sub(&heap->live, bytes);
  heap->user.free(heap->user.self, memory, BASE_MAX(bytes, 1));
}

bool base_size(size_t n, size_t size, size_t extra, size_t *bytes) {
  if (size != 0 && n > (SIZE_MAX - extra) / size) return false;
  *bytes = n * size + extra;
  return true;
}
