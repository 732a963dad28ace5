/* tests/io/json_memory.h -- jansson's allocations fail as those of unit.h do
** A test program owns its process, so it may replace jansson's allocator; the library never does.
*/
#ifndef TESTS_IO_JSON_MEMORY_H
#define TESTS_IO_JSON_MEMORY_H
#include <errno.h>
#include <jansson.h>

#include "unit.h"

static size_t json_live; /* blocks held */

static inline void *json_memory_alloc(size_t bytes) {
  void *memory = memory_fails() ? NULL : malloc(bytes);
  if (memory == NULL) errno = ENOMEM;
  json_live += memory != NULL;
  return memory;
}

static inline void json_memory_free(void *memory) {
  json_live -= memory != NULL;
  free(memory);
}

static inline int json_memory_setup(void **state) {
  json_set_alloc_funcs(json_memory_alloc, json_memory_free);
  return test_setup(state);
}

static inline int json_memory_teardown(void **state) {
  if (json_live != 0) print_error("%zu blocks of JSON are not freed\n", json_live);
  return test_teardown(state) == 0 && json_live == 0 ? 0 : -1;
}

#define JSON_TEST(function) cmocka_unit_test_setup_teardown(function, json_memory_setup, json_memory_teardown)

#endif
