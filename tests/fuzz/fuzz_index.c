/* tests/fuzz/fuzz_index.c -- any text as the index of sharded safetensors files, beside one shard: accepted ones name its tensors */
#include <unistd.h>

#include "fuzz/fuzz.h"
#include "quern/quern.h"

static char folder[64] = "/dev/shm/quern_fuzz_XXXXXX", shard[80], path[80];

static void clean_up(void) {
  unlink(path);
  unlink(shard);
  rmdir(folder);
}

/* A folder, in memory if possible, with a shard of two tensors. */
static void prepare(void) {
  static const float x[2] = {1, 2};
  const int64_t dims[] = {2};
  const quern_safetensor tensors[] = {{.name = "a", .dtype = QUERN_DTYPE_F32, .rank = 1, .dims = dims, .data = x},
                                      {.name = "b.c", .dtype = QUERN_DTYPE_F32, .data = x}};
  if (mkdtemp(folder) == NULL) {
    snprintf(folder, sizeof folder, "/tmp/quern_fuzz_XXXXXX");
    REQUIRE(mkdtemp(folder) != NULL);
  }
  snprintf(shard, sizeof shard, "%s/s", folder);
  snprintf(path, sizeof path, "%s/x.index.json", folder);
  REQUIRE(quern_safetensors_write(shard, 2, tensors, NULL) == QUERN_STATUS_OK);
  atexit(clean_up);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  quern_safetensors *file;
  quern_safetensor tensor;
  if (path[0] == 0) prepare();
  FILE *index = fopen(path, "wb");
  REQUIRE(index != NULL && fwrite(data, 1, size, index) == size && fclose(index) == 0);
  quern_status status = quern_safetensors_open(&file, path, NULL);
  REQUIRE(status == QUERN_STATUS_OK || status == QUERN_STATUS_PARSE || status == QUERN_STATUS_IO);
  REQUIRE((file != NULL) == (status == QUERN_STATUS_OK));
  REQUIRE(quern_safetensors_shard_count(file) <= 1 && quern_safetensors_count(file) <= 2);
  for (size_t i = 0; i < quern_safetensors_count(file); i++) {
    REQUIRE(quern_safetensors_get(file, i, &tensor) == QUERN_STATUS_OK);
    REQUIRE(strcmp(tensor.name, "a") == 0 || strcmp(tensor.name, "b.c") == 0);
    REQUIRE(*(const float *)tensor.data == 1);
  }
  quern_safetensors_close(file);
  return 0;
}
