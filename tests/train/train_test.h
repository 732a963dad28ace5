/* tests/train/train_test.h -- small runs in a folder of the test's own */
#ifndef TESTS_TRAIN_TRAIN_TEST_H
#define TESTS_TRAIN_TRAIN_TEST_H
#include <math.h>

#include "io/folder.h"
#include "quern/quern.h"
#include "quern/train.h"
#include "train/train.h"

/* A text file in the folder: words that follow each other in a way that can be learned. */
static inline const char *make_text(const char *name, size_t bytes) {
  static const char words[] = "the mill turns and the stone grinds the grain, ";
  const char *path = in_folder(name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  for (size_t i = 0; i < bytes; i++) assert_true(fputc(words[i % (sizeof words - 1)], file) != EOF);
  assert_int_equal(fclose(file), 0);
  return path;
}

static inline void set(quern_config *config, const char *key, const char *value) {
  EXPECT_OK(quern_config_set(config, key, value));
}

/* A tiny transformer on a text, on the interpreter, without threads of the loader; out is a folder in the test's. */
static inline quern_config *tiny_config(const char *out) {
  static const char *const settings[][2] = {
      {"model", "lm"},     {"layers", "1"},     {"width", "16"},   {"heads", "2"},        {"hidden", "32"},
      {"length", "8"},     {"batch", "4"},      {"steps", "6"},    {"lr", "1e-2"},        {"device", "interp"},
      {"threads", "1"},    {"workers", "0"},    {"prefetch", "0"}, {"eval_batches", "2"}, {"eval_every", "0"},
      {"save_every", "0"}, {"report", "false"}, {"profile", "0"},  {"seed", "7"},         {"eval_part", "0.1"}};
  quern_config *config;
  EXPECT_OK(quern_train_config(&config, &memory_allocator));
  for (size_t i = 0; i < BASE_COUNT(settings); i++) set(config, settings[i][0], settings[i][1]);
  set(config, "data", make_text("text.txt", 2000));
  set(config, "out", out[0] != 0 ? in_folder(out) : "");
  return config;
}

static inline quern_trainer *trainer_of(const quern_config *config) {
  quern_trainer *trainer;
  EXPECT_OK(quern_trainer_new(&trainer, config, NULL));
  return trainer;
}

/* Steps until so many are done. */
static inline double run_to(quern_trainer *trainer, int64_t step) {
  quern_train_record record = QUERN_INIT(quern_train_record);
  while (quern_trainer_info(trainer)->step < step) EXPECT_OK(quern_trainer_step(trainer, &record));
  return record.loss;
}

/* A digest of all states' bytes. */
static inline uint64_t digest_of(quern_trainer *trainer) {
  const quern_program *program = quern_trainer_program(trainer);
  struct io_digest digest;
  io_digest_init(&digest);
  for (size_t i = 0; i < quern_program_state_count(program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(program, i, &slot));
    void *data = malloc(slot.bytes + 1);
    assert_non_null(data);
    EXPECT_OK(quern_instance_get_state(quern_trainer_instance(trainer), i, data));
    io_digest_add(&digest, data, slot.bytes);
    free(data);
  }
  return io_digest_get(&digest);
}

static inline int setup_folder(void **state) { return (void)state, folder_make() ? 0 : -1; }
static inline int remove_folder(void **state) {
  (void)state;
  folder_clear(folder);
  return rmdir(folder);
}

#endif
