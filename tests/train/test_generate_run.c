/* tests/train/test_generate_run.c -- generators of runs: the model and the tokenizer of a folder that was trained into */
#include "quern/generate.h"
#include "train/train_test.h"

/* The logits after a text. */
static void logits_of(quern_generator *generator, const quern_tokenizer *tokenizer, float logits[257]) {
  uint32_t ids[8];
  size_t n;
  EXPECT_OK(quern_tokenizer_encode(tokenizer, "the sto", 7, QUERN_ENCODE_PLAIN, 8, ids, &n));
  EXPECT_OK(quern_generator_feed(generator, n, ids, logits));
}

static quern_status open_run(quern_generator **generator, const char *dir, quern_tokenizer **tokenizer) {
  quern_generate_options options = QUERN_INIT(quern_generate_options);
  options.device = "interp";
  options.threads = 1;
  options.allocator = memory_allocator;
  return quern_generator_open_run(generator, dir, &options, tokenizer);
}

static void runs(void **state) {
  (void)state;
  static const char *const precisions[] = {"f32", "f64", "bf16"};
  float after[3][257];
  for (size_t i = 0; i < BASE_COUNT(precisions); i++) {
    quern_config *config = tiny_config(precisions[i]);
    set(config, "precision", precisions[i]);
    set(config, "position", "rope");
    set(config, "steps", "60");
    EXPECT_OK(quern_train(config, NULL, NULL));
    quern_generator *generator;
    quern_tokenizer *tokenizer;
    EXPECT_OK(open_run(&generator, quern_config_get(config, "out"), &tokenizer));
    assert_int_equal(quern_generator_vocab(generator), 257);
    assert_int_equal(quern_generator_most(generator), 8);
    logits_of(generator, tokenizer, after[i]);
    quern_sampling greedy = QUERN_INIT(quern_sampling);
    greedy.temperature = 0;
    uint32_t id;
    EXPECT_OK(quern_generator_next(generator, &greedy, &id));
    assert_int_equal(id, 'n'); /* of "stone", the only word with an o */
    quern_generator_free(generator);
    quern_tokenizer_free(tokenizer);
    EXPECT_OK(open_run(&generator, quern_config_get(config, "out"), NULL)); /* who has a tokenizer already */
    quern_generator_free(generator);
    quern_config_free(config);
  }
  for (int k = 0; k < 257; k++) assert_true(fabs((double)after[0][k] - (double)after[1][k]) < 0.05);
}

static void refused(void **state) {
  (void)state;
  quern_config *config = tiny_config("lstm");
  quern_generator *generator;
  set(config, "model", "lstm");
  set(config, "heads", "model");
  set(config, "steps", "1");
  EXPECT_OK(quern_train(config, NULL, NULL));
  EXPECT_ERROR(open_run(&generator, quern_config_get(config, "out"), NULL), UNSUPPORTED,
               "is a run of model 'lstm', which does not generate");
  assert_null(generator);
  EXPECT_ERROR(open_run(&generator, in_folder("nothing"), NULL), IO, "there is no checkpoint in it");
  quern_config_free(config);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(runs), TEST(refused)};
  return cmocka_run_group_tests(tests, setup_folder, remove_folder);
}
