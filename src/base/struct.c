/* base/struct.c -- structs of the public API that can grow: callers have older or newer ones than the library
** keeps: of a caller's struct no byte is read or written behind the size that it says
** tests: tests/base/test_struct.c, tests/abi/
*/
#include "base/base.h"

/* The size that a caller's struct says; 0 with the error recorded when it cannot be one. */
static size_t size_of(const void *caller, const char *type, const char *what) {
  size_t size;
  memcpy(&size, caller, sizeof size);
  if (size >= sizeof size && size <= BASE_STRUCT_MOST) return size;
  base_error(QUERN_STATUS_INVALID, "%s: %s has a size of %zu bytes HINT: start from QUERN_INIT(%s)", what, type, size,
             type);
  return 0;
}

quern_status base_struct_take(void *dst, size_t known, const void *caller, const char *type, const char *what) {
  memset(dst, 0, known);
  memcpy(dst, &known, sizeof known);
  if (caller == NULL) return QUERN_STATUS_OK;
  size_t size = size_of(caller, type, what);
  if (size == 0) return QUERN_STATUS_INVALID;
  for (size_t i = known; i < size; i++)
    QUERN_CHECK(
        ((const unsigned char *)caller)[i] == 0, INVALID,
        "%s: %s has %zu bytes, this version of Quern knows %zu, and byte %zu is not zero: it asks for what only a "
        "newer version has",
        what, type, size, known, i);
  memcpy((char *)dst + sizeof known, (const char *)caller + sizeof known, BASE_MIN(size, known) - sizeof known);
  return QUERN_STATUS_OK;
}

quern_status base_struct_give(void *caller, const void *src, size_t known, const char *type, const char *what) {
  size_t size = size_of(caller, type, what);
  if (size == 0) return QUERN_STATUS_INVALID;
  base_struct_put(caller, size, src, known);
  return QUERN_STATUS_OK;
}

void base_struct_put(void *caller, size_t size, const void *src, size_t known) {
  size_t n = BASE_MIN(size, known);
  memmove(caller, src, n);
  if (size > n) memset((char *)caller + n, 0, size - n);
  memcpy(caller, &size, sizeof size);
}
