/* tests/api/test_wrong_checkpoint.c -- wrong calls of safetensors files and of checkpoints */
#include "api/wrong.h"

#include <unistd.h>

#define TWO "tests/fuzz/corpus/fuzz_safetensors/two.safetensors"
#define NOT_THERE "tests/api/no_such_file"

static char space[64]; /* for elements */
static quern_safetensors *file;
static quern_safetensor found;
static quern_string_pair pair;
static quern_checkpoint *checkpoint;
static quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
static const char *path;
static uint64_t bytes;
static const quern_allocator half = {.alloc = memory_alloc};

/* ---- safetensors ---------------------------------------------------------------------------------------- */

static quern_safetensors *open_two(void) {
  assert_int_equal(quern_safetensors_open(&file, TWO, &memory_allocator), QUERN_STATUS_OK);
  return file;
}

static quern_status close_after(quern_status status) {
  quern_safetensors_close(file);
  file = NULL;
  return status;
}

#define on_file(call) (open_two(), close_after(call))
#define with_file(condition)                                                                                           \
  (open_two(), close_after((condition) ? QUERN_STATUS_OK : QUERN_STATUS_INTERNAL) == QUERN_STATUS_OK)

/* A failed opening leaves NULL. */
static bool null_after_failure(void) {
  quern_safetensors *none = open_two();
  bool refused = quern_safetensors_open(&none, NOT_THERE, NULL) == QUERN_STATUS_IO;
  return close_after(QUERN_STATUS_OK) == QUERN_STATUS_OK && refused && none == NULL;
}

static bool close_frees(void) {
  size_t live = memory_live;
  open_two();
  bool held = memory_live > live;
  (void)close_after(QUERN_STATUS_OK);
  return held && memory_live == live;
}

/* Writes a tensor that differs from a good one in a field; nothing may be there afterwards. */
static quern_status write_with(quern_safetensor tensor) {
  quern_status status = quern_safetensors_write(NOT_THERE, 1, &tensor, NULL);
  assert_int_equal(access(NOT_THERE, F_OK), -1);
  return status;
}
#define write_tensor(...) write_with((quern_safetensor){.dtype = QUERN_DTYPE_F32, .data = space, __VA_ARGS__})

static quern_status write_options(quern_safetensors_options options) {
  return quern_safetensors_write(NOT_THERE, 0, NULL, &options);
}
#define write_option(...)                                                                                              \
  write_options((quern_safetensors_options){.size = sizeof(quern_safetensors_options), __VA_ARGS__})

/* ---- checkpoints: one in a folder of its own, made before a call, removed after it ---------------------- */

static char folder[] = "/tmp/quern_wrong_XXXXXX";

static quern_status save_with(quern_checkpoint_contents contents) {
  quern_status status = quern_checkpoint_save(NOT_THERE, &contents);
  assert_int_equal(access(NOT_THERE, F_OK), -1);
  return status;
}
#define save_contents(...)                                                                                             \
  save_with((quern_checkpoint_contents){.size = sizeof(quern_checkpoint_contents), __VA_ARGS__})

static quern_checkpoint *make_checkpoint(void) {
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  const quern_safetensor tensor = {.name = "w", .dtype = QUERN_DTYPE_F32, QUERN_LIST(2), .data = space};
  const quern_string_pair config = {"model", "mlp"};
  contents.n_tensors = 1;
  contents.tensors = &tensor;
  contents.n_config = 1;
  contents.config = &config;
  assert_non_null(mkdtemp(folder));
  assert_int_equal(quern_checkpoint_save(folder, &contents), QUERN_STATUS_OK);
  assert_int_equal(quern_checkpoint_find(&checkpoint, folder, &memory_allocator), QUERN_STATUS_OK);
  assert_non_null(checkpoint);
  return checkpoint;
}

static quern_status remove_after(quern_status status) {
  char line[128];
  quern_checkpoint_close(checkpoint);
  checkpoint = NULL;
  snprintf(line, sizeof line, "rm -r %s", folder);
  assert_int_equal(system(line), 0);
  memcpy(folder + strlen(folder) - 6, "XXXXXX", 6);
  return status;
}

#define on_checkpoint(call) (make_checkpoint(), remove_after(call))
#define with_checkpoint(condition)                                                                                     \
  (make_checkpoint(), remove_after((condition) ? QUERN_STATUS_OK : QUERN_STATUS_INTERNAL) == QUERN_STATUS_OK)

static quern_status verify_damaged(void) {
  char damaged[128];
  quern_safetensor tensor;
  make_checkpoint();
  assert_int_equal(quern_safetensors_find(quern_checkpoint_tensors(checkpoint), "w", &tensor), QUERN_STATUS_OK);
  snprintf(damaged, sizeof damaged, "%s/step-00000000/model.safetensors", folder);
  FILE *model = fopen(damaged, "r+b");
  assert_true(model != NULL && fseek(model, (long)tensor.offset, SEEK_SET) == 0 && fputc(1, model) == 1);
  fclose(model);
  return remove_after(quern_checkpoint_verify(checkpoint));
}

static bool checkpoint_close_frees(void) {
  size_t live = memory_live;
  make_checkpoint();
  bool held = memory_live > live;
  (void)remove_after(QUERN_STATUS_OK);
  return held && memory_live == live;
}

#define ROWS "api/wrong_checkpoint.def"
#include "api/rows.h"
