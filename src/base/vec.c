/* base/vec.c -- how the vectors of BASE_VEC grow: doubling, at least 8 items
** tests: tests/base/test_vec.c
*/
#include "base/base.h"

#include <string.h>

enum { FEWEST = 8 };

bool base_vec_grow(struct base_heap *heap, void *at, size_t n, size_t *cap, size_t item, size_t more) {
  if (more <= *cap - n) return true;
  size_t bytes, want = SIZE_MAX;
  if (more <= SIZE_MAX - n) want = BASE_MAX(n + more, FEWEST);
  if (*cap <= SIZE_MAX / 2 && want < 2 * *cap) want = 2 * *cap;
  if (!base_size(want, item, 0, &bytes)) {
    base_error(QUERN_STATUS_MEMORY, "no memory for %zu more items of %zu bytes after %zu", more, item, n);
    return false;
  }
  void *grown = base_alloc(heap, bytes), *old;
  if (!grown) return false;
  memcpy(&old, at, sizeof old);
  if (n > 0) memcpy(grown, old, n * item);
  base_free(heap, old, *cap * item);
  memcpy(at, &grown, sizeof grown);
  *cap = want;
  return true;
}
