/* tests/api/test_wrong_generate.c -- wrong calls of generate.h */
#include "api/wrong.h"
#include "train/generate_test.h"

#define NOT_THERE "tests/api/no_such_file"

static const quern_lm_options tiny = {
    .size = sizeof tiny, .vocabulary = 5, .positions = 4, .layers = 1, .width = 8, .heads = 2};
static const quern_sampling plain = QUERN_INIT(quern_sampling);
static quern_generate_options unsized = {.size = 1};
static const uint32_t five = 5, zeros[5];
static quern_generator *generator;
static float logits[5];
static uint32_t id;

static quern_generator *opened(void) {
  struct weights w;
  quern_generate_options options = QUERN_INIT(quern_generate_options);
  options.device = "interp";
  options.allocator = memory_allocator;
  weights_make(&w, &tiny);
  const char *path = weights_write(&w, "wrong");
  EXPECT_OK(quern_generator_open(&generator, path, &tiny, &options));
  unlink(path);
  weights_free(&w);
  return generator;
}

static quern_status close_after(quern_status status) {
  quern_generator_free(generator);
  generator = NULL;
  return status;
}

#define on_generator(call) (opened(), close_after(call))
#define with_generator(condition)                                                                                      \
  (opened(), close_after((condition) ? QUERN_STATUS_OK : QUERN_STATUS_INTERNAL) == QUERN_STATUS_OK)

#define ROWS "api/wrong_generate.def"
#include "api/rows.h"
