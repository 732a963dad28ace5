/* tests/train/test_adder.c -- the built-in task at small size: addition is learned, and exact answers are counted
** `quern train adder` itself goes on to 99 % of pairs that it has never seen.
*/
#include "train/train_test.h"

static void learns_to_add(void **state) {
  (void)state;
  static const char *const words[] = {"batch=64", "steps=700", "out=", "threads=2", "eval_every=0", "eval_batches=0"};
  quern_config *config;
  EXPECT_OK(quern_train_config(&config, NULL));
  EXPECT_OK(quern_train_preset(config, "adder"));
  for (size_t i = 0; i < BASE_COUNT(words); i++) EXPECT_OK(quern_config_word(config, words[i]));
  quern_trainer *trainer = trainer_of(config);
  quern_eval_record before = QUERN_INIT(quern_eval_record), after = QUERN_INIT(quern_eval_record);
  EXPECT_OK(quern_trainer_eval(trainer, &before));
  run_to(trainer, 700);
  EXPECT_OK(quern_trainer_eval(trainer, &after));
  print_message("exact answers %.2f %%, loss %.3f\n", 100 * after.accuracy, after.loss);
  assert_int_equal(after.samples, 4000);
  assert_true(before.accuracy == 0 && before.loss > 4);
  assert_true(after.accuracy > 0.01 && after.accuracy <= 1 &&
              after.loss < 1.25); /* by chance: one in a thousand or two */
  quern_trainer_free(trainer);
  quern_config_free(config);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(learns_to_add)};
  return cmocka_run_group_tests_name("train/adder", tests, setup_folder, remove_folder);
}
