/* tests/fuzz/fuzz.h -- what the fuzz targets share */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quern/status.h"

/* Called with each input. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)                                                                                                  \
  do {                                                                                                                 \
    if (!(cond)) {                                                                                                     \
      fprintf(stderr, "%s:%d: %s\n  %s\n", __FILE__, __LINE__, #cond, quern_last_error());                             \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)

#endif
