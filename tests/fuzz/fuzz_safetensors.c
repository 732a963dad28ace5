/* tests/fuzz/fuzz_safetensors.c -- any bytes as a safetensors file: accepted ones consist of their tensors, one after another */
#include "fuzz/fuzz.h"
#include "quern/quern.h"

static void check(const quern_safetensors *file, const uint8_t *data, size_t size) {
  uint64_t at = 0;
  quern_string_pair pair;
  for (size_t i = 0; i < quern_safetensors_count(file); i++) {
    quern_safetensor tensor, again;
    REQUIRE(quern_safetensors_get(file, i, &tensor) == QUERN_STATUS_OK);
    REQUIRE((i == 0 || tensor.offset == at) && tensor.offset + tensor.bytes <= size);
    REQUIRE((const uint8_t *)tensor.data == data + tensor.offset);
    at = tensor.offset + tensor.bytes;
    REQUIRE(quern_safetensors_find(file, tensor.name, &again) == QUERN_STATUS_OK && again.offset == tensor.offset);
    unsigned char *copy = malloc(tensor.bytes + 1);
    REQUIRE(copy != NULL && quern_safetensors_copy(file, i, copy, tensor.bytes) == QUERN_STATUS_OK);
    REQUIRE(memcmp(copy, data + tensor.offset, tensor.bytes) == 0);
    free(copy);
  }
  REQUIRE(quern_safetensors_count(file) == 0 || at == size);
  for (size_t i = 0; i < quern_safetensors_pair_count(file); i++)
    REQUIRE(quern_safetensors_pair(file, i, &pair) == QUERN_STATUS_OK && pair.key != NULL && pair.value != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  quern_safetensors *file;
  quern_status status = quern_safetensors_parse(&file, data, size, NULL);
  REQUIRE(status == QUERN_STATUS_OK || status == QUERN_STATUS_PARSE || status == QUERN_STATUS_OVERFLOW);
  REQUIRE((file != NULL) == (status == QUERN_STATUS_OK));
  if (file != NULL) check(file, data, size);
  quern_safetensors_close(file);
  return 0;
}
