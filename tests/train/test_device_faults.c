/* tests/train/test_device_faults.c -- what goes wrong in runs on a device with memory of its own: steps that are not finite and were not
** waited for, overflow of scaled losses, saving without memory */
#include "train/device_test.h"

/* ---- steps ------------------------------------------------------------------------------------------------- */

/* A step that is not finite is found when it is looked for, and named as if it had been waited for; nothing is saved after it. */
static void faults_are_found_later(void **state) {
  (void)state;
  need_device();
  static const char *const devices[] = {"interp", "opencl"};
  char messages[2][1024];
  for (int d = 0; d < 2; d++) {
    quern_config *config = config_on(devices[d], "broken");
    set(config, "lr", "1e30");
    assert_int_equal(quern_train(config, NULL, NULL), QUERN_STATUS_STATE);
    snprintf(messages[d], sizeof messages[d], "%s", quern_last_error());
    assert_non_null(strstr(messages[d], "step 2: "));
    assert_non_null(strstr(messages[d], "is the first operation that gave a value that is not finite"));
    quern_checkpoint *checkpoint;
    EXPECT_OK(quern_checkpoint_find(&checkpoint, in_folder("broken"), NULL));
    assert_null(checkpoint);
    folder_clear(in_folder("broken"));
    quern_config_free(config);
  }
  assert_string_equal(messages[0], messages[1]);
  struct heard heard = {.stop = 4}; /* of steps that were not read, a save looks at what became of them */
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  callbacks.user = &heard;
  callbacks.step = on_step;
  quern_config *config = config_on("opencl", "broken");
  set(config, "lr", "1e30");
  assert_int_equal(quern_train(config, &callbacks, NULL), QUERN_STATUS_STATE);
  assert_string_equal(quern_last_error(), messages[0]);
  assert_true(heard.steps == 4 && heard.known == 1);
  quern_config_free(config);
}

/* Loss scaling looks at every step. */
static void scaled_losses(void **state) {
  (void)state;
  need_device();
  double losses[2];
  for (int d = 0; d < 2; d++) {
    quern_config *config = config_on(d == 0 ? "opencl" : "interp", "");
    struct heard heard = {0};
    quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
    callbacks.user = &heard;
    callbacks.step = on_step;
    set(config, "precision", "f16");
    EXPECT_OK(quern_train(config, &callbacks, NULL));
    assert_true(heard.steps == 12 && heard.known == 12);
    quern_trainer *trainer = trainer_of(config);
    quern_train_record record = QUERN_INIT(quern_train_record);
    EXPECT_OK(quern_trainer_step(trainer, &record));
    assert_true(record.scale == 65536 && !record.skipped);
    losses[d] = record.loss;
    quern_trainer_free(trainer);
    quern_config_free(config);
  }
  assert_true(fabs(losses[0] - losses[1]) < 1e-3 * losses[1]);
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* Whichever allocation fails, a save ends with an error and the next one does not. */
static void saving_fails(void **state) {
  (void)state;
  need_device();
  quern_config *config = config_on("opencl", "faults");
  quern_trainer *trainer = trainer_of(config);
  run_to(trainer, 1);
  bool met = true;
  for (uint64_t n = 1; met; n++) {
    memory_fault.left = n;
    memory_fault.alone = false;
    memory_fault.met = false;
    quern_status status = quern_trainer_save(trainer, NULL);
    met = memory_fault.met;
    memory_fault.left = 0;
    if (!met) assert_int_equal(status, QUERN_STATUS_OK);
    if (met && status != QUERN_STATUS_OK) assert_int_equal(status, QUERN_STATUS_MEMORY);
    if (met && status != QUERN_STATUS_OK && access(in_folder("faults"), F_OK) == 0)
      assert_int_equal(folder_count(in_folder("faults")), 1); /* the lock of a run that is under way */
  }
  quern_trainer_free(trainer);
  trainer = trainer_of(config);
  assert_int_equal(quern_trainer_info(trainer)->step, 1);
  quern_trainer_free(trainer);
  quern_config_free(config);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(faults_are_found_later), TEST(scaled_losses), TEST(saving_fails)};
  return cmocka_run_group_tests_name("train/device_faults", tests, setup_folder, remove_folder);
}
