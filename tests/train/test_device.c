/* tests/train/test_device.c -- runs on a device with memory of its own, OpenCL where there is some: the same losses, checkpoints and
** texts as on CPUs, and steps that are not waited for */
#include "quern/generate.h"

#include <signal.h>

#include "train/device_test.h"

static bool near(double a, double b) { return fabs(a - b) <= 1e-5 * fabs(b); }

/* ---- the same run ----------------------------------------------------------------------------------------- */

static void same_losses(void **state) {
  (void)state;
  need_device();
  static const char *const devices[] = {"opencl", "cpu", "interp"};
  quern_train_record records[3][6];
  quern_eval_record evals[3];
  for (int d = 0; d < 3; d++) {
    quern_config *config = config_on(devices[d], "");
    quern_trainer *trainer = trainer_of(config);
    assert_string_equal(quern_trainer_info(trainer)->precision, "f32");
    for (int i = 0; i < 6; i++) {
      records[d][i] = QUERN_INIT(quern_train_record);
      EXPECT_OK(quern_trainer_step(trainer, &records[d][i]));
    }
    evals[d] = QUERN_INIT(quern_eval_record);
    EXPECT_OK(quern_trainer_eval(trainer, &evals[d]));
    assert_true(quern_instance_state(quern_trainer_instance(trainer), 0) == NULL || d > 0);
    quern_trainer_free(trainer);
    quern_config_free(config);
  }
  for (int d = 1; d < 3; d++) {
    for (int i = 0; i < 6; i++) {
      assert_true(records[0][i].known && records[d][i].known);
      assert_true(near(records[0][i].loss, records[d][i].loss));
      assert_true(near(records[0][i].norm, records[d][i].norm));
    }
    assert_true(near(evals[0].loss, evals[d].loss) && evals[0].samples == evals[d].samples);
  }
  assert_true(records[0][5].loss < records[0][0].loss);
}

/* A checkpoint of any device is gone on with on any other. */
static void across_devices(void **state) {
  (void)state;
  need_device();
  static const char *const ways[][3] = {
      {"interp", "interp", "interp"}, {"opencl", "interp", "opencl"}, {"interp", "opencl", "cpu"}};
  double losses[3];
  for (int w = 0; w < 3; w++) {
    char out[16];
    snprintf(out, sizeof out, "way%d", w);
    for (int part = 0; part < 3; part++) {
      quern_config *config = config_on(ways[w][part], out);
      quern_trainer *trainer = trainer_of(config);
      assert_int_equal(quern_trainer_info(trainer)->step, 4 * part);
      losses[w] = run_to(trainer, 4 * (part + 1));
      EXPECT_OK(quern_trainer_save(trainer, NULL));
      uint64_t digest = digest_of(trainer);
      quern_trainer_free(trainer);
      trainer = trainer_of(config); /* what was saved is what was there */
      assert_true(digest_of(trainer) == digest);
      quern_trainer_free(trainer);
      quern_config_free(config);
    }
  }
  assert_true(near(losses[1], losses[0]) && near(losses[2], losses[0]));
}

/* Runs on two devices of a process, in turn; and on the best there is, which they say by its own name. */
static void side_by_side(void **state) {
  (void)state;
  static const char *const devices[] = {"interp", "interp:1", "auto"};
  quern_config *configs[3];
  quern_trainer *trainers[3];
  quern_train_record records[3];
  for (int d = 0; d < 3; d++) {
    records[d] = (quern_train_record)QUERN_INIT(quern_train_record);
    configs[d] = config_on(devices[d], "");
    set(configs[d], "precision", "f32");
    trainers[d] = trainer_of(configs[d]);
    const char *name = quern_trainer_info(trainers[d])->device;
    assert_true(d == 2 ? strcmp(name, "auto") != 0 : strcmp(name, devices[d]) == 0);
  }
  for (int i = 0; i < 3; i++) {
    for (int d = 0; d < 3; d++) EXPECT_OK(quern_trainer_step(trainers[d], &records[d]));
    assert_true(records[0].loss == records[1].loss && records[0].norm == records[1].norm);
    assert_true(near(records[2].loss, records[0].loss));
  }
  for (int d = 0; d < 3; d++) {
    quern_trainer_free(trainers[d]);
    quern_config_free(configs[d]);
  }
}

static void devices_that_there_are_not(void **state) {
  (void)state;
  static const struct {
    const char *name, *words;
  } rows[] = {{"interp:16", "device: there is no device \"interp:16\": of kind interp there are 16"},
              {"cuda:x", "device: there is no device \"cuda:x\": what follows the colon must be a number"}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_config *config = config_on(rows[i].name, "");
    quern_trainer *trainer;
    EXPECT_ERROR(quern_trainer_new(&trainer, config, NULL), INVALID, rows[i].words);
    quern_config_free(config);
  }
}

/* ---- steps that are not waited for ------------------------------------------------------------------------- */

static void runs_ahead(void **state) {
  (void)state;
  need_device();
  quern_config *config = config_on("opencl", "steps");
  quern_trainer *trainer = trainer_of(config);
  run_to(trainer, 12);
  uint64_t digest = digest_of(trainer);
  quern_trainer_free(trainer);
  quern_config_free(config);
  struct heard heard = {.stop = 8};
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  callbacks.user = &heard;
  callbacks.step = on_step;
  quern_train_end end;
  config = config_on("opencl", "ahead");
  EXPECT_OK(quern_train(config, &callbacks, &end));
  assert_int_equal(end, QUERN_TRAIN_STOPPED);
  assert_true(heard.steps == 8 && heard.known == 2 && heard.last == 5); /* 1 and 5 */
  heard.stop = 0;
  EXPECT_OK(quern_train(config, &callbacks, &end));
  assert_int_equal(end, QUERN_TRAIN_DONE);
  assert_true(heard.steps == 12 && heard.known == 5 && heard.last == 12); /* 9, 10 and 12 */
  /* a mean over steps, of which the last record has two, without the first of the process */
  const quern_train_record *r = &heard.records[2];
  double work = r[0].per_second * r[0].seconds, mean = (r[1].seconds + 2 * r[2].seconds) / 3;
  assert_true(fabs(r[2].per_second * mean - work) < 1e-9 * work);
  trainer = trainer_of(config);
  assert_int_equal(quern_trainer_info(trainer)->step, 12);
  assert_true(digest_of(trainer) == digest);
  quern_trainer_free(trainer);
  quern_config_free(config);
}

/* ---- texts ------------------------------------------------------------------------------------------------- */

static void same_tokens(void **state) {
  (void)state;
  need_device();
  static const char *const devices[] = {"opencl", "interp"};
  quern_config *config = config_on("interp", "written");
  set(config, "position", "rope");
  EXPECT_OK(quern_train(config, NULL, NULL));
  uint32_t ids[2][8];
  for (int d = 0; d < 2; d++) {
    quern_generate_options options = QUERN_INIT(quern_generate_options);
    options.device = devices[d];
    options.threads = 1;
    quern_generator *generator;
    EXPECT_OK(quern_generator_open_run(&generator, quern_config_get(config, "out"), &options, NULL));
    EXPECT_OK(quern_generator_feed(generator, 2, (uint32_t[]){'t', 'h'}, NULL));
    quern_sampling sampling = QUERN_INIT(quern_sampling, .temperature = 0.8);
    for (int i = 0; i < 6; i++) EXPECT_OK(quern_generator_next(generator, &sampling, &ids[d][i]));
    quern_generator_free(generator);
  }
  assert_memory_equal(ids[0], ids[1], 6 * sizeof ids[0][0]);
  quern_config_free(config);
}

/* ---- devices and precisions --------------------------------------------------------------------------------- */

static void missing_device(void **state) {
  (void)state;
  struct rt_stream *stream;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  if (rt_cuda.remote->open(rt_device_at(&rt_cuda, 0), &stream, &heap) == QUERN_STATUS_OK) {
    rt_cuda.remote->close(stream);
    skip();
  }
  quern_config *config = config_on("cuda", "none");
  size_t large = train_large_text;
  train_large_text = 100; /* the text would be kept as tokens in the folder */
  quern_trainer *trainer;
  quern_status status = quern_trainer_new(&trainer, config, NULL);
  train_large_text = large;
  assert_true(status != QUERN_STATUS_OK && trainer == NULL);
  assert_non_null(strstr(quern_last_error(), "cuda"));
  assert_non_null(strstr(quern_last_error(), "HINT: quern devices shows what is there"));
  assert_int_not_equal(access(in_folder("none"), F_OK), 0);
  quern_config_free(config);
}

/* What nothing is said of is settled once for a run: as its checkpoint has it. */
static void precision_stays(void **state) {
  (void)state;
  quern_config *config = config_on("interp", "bf16");
  set(config, "precision", "bf16");
  quern_trainer *trainer = trainer_of(config);
  run_to(trainer, 1);
  EXPECT_OK(quern_trainer_save(trainer, NULL));
  quern_trainer_free(trainer);
  set(config, "precision", "auto");
  trainer = trainer_of(config);
  assert_string_equal(quern_trainer_info(trainer)->precision, "bf16");
  assert_int_equal(quern_trainer_info(trainer)->step, 1);
  quern_trainer_free(trainer);
  set(config, "precision", "f32");
  EXPECT_ERROR(quern_trainer_new(&trainer, config, NULL), INVALID, "was made with precision = 'bf16', not 'f32'");
  quern_config_free(config);
}

static char planned[512];
static void on_begin(void *user, const quern_train_info *info) {
  (void)user;
  snprintf(planned, sizeof planned, "%s %s %s", info->device, info->target, info->precision);
}

/* A run on a card is planned where there is none. */
static void plans_for_cards(void **state) {
  (void)state;
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  callbacks.begin = on_begin;
  quern_config *config = config_on("cuda", "");
  EXPECT_OK(quern_train_plan(config, &callbacks, 0, NULL, NULL));
  assert_non_null(strstr(planned, "cuda sm_"));
  set(config, "memory", "10KiB");
  EXPECT_ERROR(quern_train_plan(config, &callbacks, 0, NULL, NULL), MEMORY, "on the device");
  quern_config_free(config);
}

/* Compilers of devices leave signals to the host. */
static const int numbers[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1};
static void on_signal(int number) { (void)number; }
static void signals_stay(void **state) {
  (void)state;
  struct sigaction action;
  need_device();
  for (size_t i = 0; i < BASE_COUNT(numbers); i++) {
    assert_int_equal(sigaction(numbers[i], NULL, &action), 0);
    assert_true(action.sa_handler == on_signal);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(same_losses),     TEST(across_devices),
                                     TEST(runs_ahead),      TEST(same_tokens),
                                     TEST(missing_device),  TEST(precision_stays),
                                     TEST(plans_for_cards), TEST(signals_stay),
                                     TEST(side_by_side),    TEST(devices_that_there_are_not)};
  for (size_t i = 0; i < BASE_COUNT(numbers); i++) signal(numbers[i], on_signal);
  return cmocka_run_group_tests_name("train/device", tests, setup_folder, remove_folder);
}
