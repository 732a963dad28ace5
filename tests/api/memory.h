/* tests/api/memory.h -- the allocator of these tests: counts bytes, fills what is not written yet, refuses what is huge
** Each block is one of the C library's, so that AddressSanitizer sees its ends.
*/
#ifndef TESTS_API_MEMORY_H
#define TESTS_API_MEMORY_H
#include <stdlib.h>
#include <string.h>

#include "quern/context.h"

static size_t memory_live; /* bytes held */

static inline void *memory_alloc(void *self, size_t bytes) {
  (void)self;
  if (bytes > (size_t)1 << 28) return NULL; /* a sanitizer would stop the program */
  void *memory = NULL;
  if (posix_memalign(&memory, 64, bytes) != 0) return NULL;
  memset(memory, 0xa5, bytes);
  memory_live += bytes;
  return memory;
}

static inline void memory_free(void *self, void *memory, size_t bytes) {
  (void)self;
  memory_live -= bytes;
  free(memory);
}

static const quern_allocator memory_allocator = {.alloc = memory_alloc, .free = memory_free};

#endif
