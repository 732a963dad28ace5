/* tests/fuzz/fuzz_npy.c -- any bytes as a .npy file: accepted ones hold the elements they say */
#include "fuzz/fuzz.h"
#include "quern/quern.h"

/* The sum of all bytes: the order of elements and of their bytes does not change it. */
static uint64_t sum(size_t n, const unsigned char *bytes) {
  uint64_t total = 0;
  for (size_t i = 0; i < n; i++) total += bytes[i];
  return total;
}

static void check(const quern_tensor *x, const uint8_t *data, size_t size) {
  size_t bytes = quern_tensor_bytes(x);
  const unsigned char *elements = quern_tensor_data(x);
  REQUIRE(bytes < size && elements != NULL);
  if (quern_tensor_dtype(x) == QUERN_DTYPE_BOOL) {
    for (size_t i = 0; i < bytes; i++) REQUIRE(elements[i] <= 1);
  } else {
    REQUIRE(sum(bytes, elements) == sum(bytes, data + (size - bytes)));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  quern_context *ctx;
  quern_tensor *x;
  REQUIRE(quern_context_new(&ctx, NULL) == QUERN_STATUS_OK);
  quern_status status = quern_npy_parse(ctx, data, size, &x);
  REQUIRE(status == QUERN_STATUS_OK || status == QUERN_STATUS_PARSE || status == QUERN_STATUS_OVERFLOW);
  REQUIRE(quern_tensor_is_poison(x) == (status != QUERN_STATUS_OK));
  if (status == QUERN_STATUS_OK) check(x, data, size);
  quern_context_free(ctx);
  return 0;
}
