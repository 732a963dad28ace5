/* tests/train/test_train.c -- runs step by step: learning, going on, evaluation, values that are not finite, wrong configurations */
#include "train/train_test.h"

/* ---- learning ------------------------------------------------------------------------------------------- */

static void learns(void **state) {
  (void)state;
  static const char *const models[] = {"lm", "lstm"};
  for (size_t i = 0; i < BASE_COUNT(models); i++) {
    quern_config *config = tiny_config("");
    set(config, "model", models[i]);
    if (i > 0) set(config, "heads", "model");
    set(config, "steps", "40");
    quern_trainer *trainer = trainer_of(config);
    quern_eval_record before = QUERN_INIT(quern_eval_record), after = QUERN_INIT(quern_eval_record);
    EXPECT_OK(quern_trainer_eval(trainer, &before));
    run_to(trainer, 40);
    EXPECT_OK(quern_trainer_eval(trainer, &after));
    assert_true(before.loss > 5 &&
                after.loss < 3.5); /* log of 257 ids, to that of about as many letters as there are */
    assert_true(isnan(after.accuracy) && after.best && after.samples == 8 && after.step == 40);
    quern_train_record record = QUERN_INIT(quern_train_record);
    EXPECT_OK(quern_trainer_step(trainer, &record)); /* all steps are done */
    assert_int_equal(record.step, 40);
    quern_trainer_free(trainer);
    quern_config_free(config);
  }
}

/* What would end a run at its first evaluation ends it before its first step. */
static void compiles_evaluation_first(void **state) {
  (void)state;
  quern_config *config = tiny_config("");
  quern_trainer *trainer = trainer_of(config);
  assert_non_null(trainer->eval.program);
  assert_int_equal(quern_trainer_info(trainer)->step, 0);
  quern_trainer_free(trainer);
  quern_config_free(config);
}

/* Every precision, and batches in parts, give about the same losses. */
static void variants(void **state) {
  (void)state;
  static const char *const others[][2] = {{"precision", "f64"}, {"precision", "bf16"},   {"precision", "f16"},
                                          {"accum", "4"},       {"checkpoint", "block"}, {"threads", "2"},
                                          {"optimizer", "sgd"}, {"optimizer", "lion"},   {"schedule", "plateau"},
                                          {"numerics", "fast"}, {"numerics", "tf32"}};
  static const double bounds[] = {1e-4, 0.05, 0.02, 1e-4, 0, 0, 1, 1, 1, 1e-5, 0};
  quern_config *config = tiny_config("");
  quern_trainer *trainer = trainer_of(config);
  double want = run_to(trainer, 6);
  quern_trainer_free(trainer);
  quern_config_free(config);
  for (size_t i = 0; i < BASE_COUNT(others); i++) {
    config = tiny_config("");
    set(config, others[i][0], others[i][1]);
    trainer = trainer_of(config);
    double got = run_to(trainer, 6);
    if (!(fabs(got - want) <= bounds[i])) fail_msg("%s=%s: loss %g, not %g", others[i][0], others[i][1], got, want);
    quern_trainer_free(trainer);
    quern_config_free(config);
  }
}

/* Two clouds of points are separated. */
static void classes(void **state) {
  (void)state;
  enum { N = 200, D = 6 };
  static float x[N * D];
  static int64_t y[N];
  for (int i = 0; i < N; i++) {
    y[i] = i / 7 % 3;
    for (int k = 0; k < D; k++) x[i * D + k] = (float)(sin(i * 1.7 + k) * 0.3 + (k % 3 == y[i] ? 1 : 0));
  }
  const char *x_path = in_folder("x.npy"), *y_path = in_folder("y.npy");
  EXPECT_OK(quern_npy_write(x_path, QUERN_DTYPE_F32, 2, (int64_t[]){N, D}, x));
  EXPECT_OK(quern_npy_write(y_path, QUERN_DTYPE_I64, 1, (int64_t[]){N}, y));
  char data[1024];
  snprintf(data, sizeof data, "%s,%s", x_path, y_path);
  quern_config *config = tiny_config("");
  static const char *const settings[][2] = {{"model", "mlp"},     {"heads", "model"}, {"width", "model"},
                                            {"hidden", "16"},     {"batch", "20"},    {"steps", "60"},
                                            {"eval_batches", "0"}};
  for (size_t i = 0; i < BASE_COUNT(settings); i++) set(config, settings[i][0], settings[i][1]);
  set(config, "data", data);
  quern_trainer *trainer = trainer_of(config);
  const quern_train_info *info = quern_trainer_info(trainer);
  assert_int_equal(info->train_samples, 180);
  assert_int_equal(info->eval_samples, 20);
  assert_int_equal(info->length, 0);
  assert_int_equal(info->parameters, (6 + 1) * 16 + (16 + 1) * 3);
  run_to(trainer, 60);
  quern_eval_record record = QUERN_INIT(quern_eval_record);
  EXPECT_OK(quern_trainer_eval(trainer, &record));
  assert_int_equal(record.samples, 20);
  assert_true(record.accuracy == 1 && record.loss < 0.2);
  quern_trainer_free(trainer);
  quern_config_free(config);
}

/* ---- going on ------------------------------------------------------------------------------------------- */

/* Wherever a run is cut, what follows has the bits of the run that was not; whatever the number of threads, and what is computed again. */
static void goes_on(void **state) {
  (void)state;
  enum { STEPS = 6 };
  static const char *const settings[][2] = {{"dropout", "0.1"}, {"ema", "0.9"}, {"warmup", "2"}, {"batch", "16"}};
  quern_config *config = tiny_config("whole");
  for (size_t i = 0; i < BASE_COUNT(settings); i++) set(config, settings[i][0], settings[i][1]);
  quern_trainer *trainer = trainer_of(config);
  run_to(trainer, STEPS);
  uint64_t want = digest_of(trainer);
  quern_trainer_free(trainer);
  for (int cut = 1; cut < STEPS; cut++) {
    char out[32];
    snprintf(out, sizeof out, "cut%d", cut);
    set(config, "out", in_folder(out));
    set(config, "threads", cut % 2 == 0 ? "1" : "2");
    trainer = trainer_of(config);
    run_to(trainer, cut);
    const char *path;
    EXPECT_OK(quern_trainer_save(trainer, &path));
    assert_non_null(strstr(path, "step-0000000"));
    quern_trainer_free(trainer);
    set(config, "threads", cut % 2 == 0 ? "2" : "1");
    set(config, "checkpoint", cut % 2 == 0 ? "block" : "none");
    trainer = trainer_of(config);
    assert_int_equal(quern_trainer_info(trainer)->step, cut);
    run_to(trainer, STEPS);
    assert_true(digest_of(trainer) == want);
    quern_trainer_free(trainer);
  }
  quern_config_free(config);
}

/* What evaluations have found is kept as well. */
static void keeps_evaluations(void **state) {
  (void)state;
  quern_config *config = tiny_config("kept");
  set(config, "schedule", "plateau");
  set(config, "lr_patience", "0");
  set(config, "lr", "0");
  quern_trainer *trainer = trainer_of(config);
  quern_eval_record first = QUERN_INIT(quern_eval_record), second = QUERN_INIT(quern_eval_record);
  run_to(trainer, 1);
  EXPECT_OK(quern_trainer_eval(trainer, &first));
  EXPECT_OK(quern_trainer_eval(trainer, &second));
  assert_true(first.best && !second.best && first.loss == second.loss);
  int64_t falls = trainer->schedule.plateau.falls;
  assert_true(falls > 0);
  EXPECT_OK(quern_trainer_save(trainer, NULL));
  quern_trainer_free(trainer);
  trainer = trainer_of(config);
  assert_int_equal(trainer->bad, 1);
  assert_true(trainer->best == first.loss && trainer->schedule.plateau.falls == falls);
  EXPECT_OK(quern_trainer_eval(trainer, &second));
  assert_true(!second.best && second.loss == first.loss);
  quern_trainer_free(trainer);
  quern_config_free(config);
}

/* A folder belongs to one configuration; some keys may change. */
static void same_configuration(void **state) {
  (void)state;
  quern_config *config = tiny_config("mine");
  quern_trainer *trainer = trainer_of(config);
  run_to(trainer, 2);
  EXPECT_OK(quern_trainer_save(trainer, NULL));
  quern_trainer_free(trainer);
  static const char *const others[][2] = {
      {"batch", "8"}, {"seed", "8"}, {"lr", "0.02"}, {"layers", "2"}, {"length", "4"}};
  for (size_t i = 0; i < BASE_COUNT(others); i++) {
    char before[64], words[128];
    snprintf(before, sizeof before, "%s", quern_config_get(config, others[i][0]));
    snprintf(words, sizeof words, "was made with %s = '%s', not '%s'", others[i][0], before, others[i][1]);
    set(config, others[i][0], others[i][1]);
    EXPECT_ERROR(quern_trainer_new(&trainer, config, NULL), INVALID, words);
    set(config, others[i][0], before);
  }
  static const char *const free_keys[][2] = {{"steps", "9"}, {"threads", "2"},    {"save_every", "3"},
                                             {"keep", "5"},  {"eval_every", "2"}, {"lr", "0.010"}};
  for (size_t i = 0; i < BASE_COUNT(free_keys); i++) set(config, free_keys[i][0], free_keys[i][1]);
  trainer = trainer_of(config);
  assert_int_equal(quern_trainer_info(trainer)->step, 2);
  assert_int_equal(quern_trainer_info(trainer)->steps, 9);
  quern_trainer_free(trainer);
  (void)make_text("text.txt", 1900);
  trainer = trainer_of(config); /* it can be evaluated, but not gone on with */
  quern_eval_record eval = QUERN_INIT(quern_eval_record);
  quern_train_record record = QUERN_INIT(quern_train_record);
  EXPECT_OK(quern_trainer_eval(trainer, &eval));
  EXPECT_ERROR(quern_trainer_step(trainer, &record), INVALID, "the data has changed since");
  quern_trainer_free(trainer);
  EXPECT_ERROR(quern_train(config, NULL, NULL), INVALID, "the data has changed since");
  quern_config *again;
  EXPECT_OK(quern_train_config(&again, &memory_allocator));
  EXPECT_OK(quern_train_config_of(again, in_folder("mine")));
  assert_string_equal(quern_config_get(again, "width"), "16");
  assert_string_equal(quern_config_get(again, "vocabulary"), "257");
  assert_string_equal(quern_config_get(again, "positions"), "8");
  EXPECT_ERROR(quern_train_config_of(again, in_folder("none")), IO, "there is no checkpoint");
  quern_config_free(again);
  quern_config_free(config);
}

/* ---- values that are not finite ------------------------------------------------------------------------- */

static void names_the_operation(void **state) {
  (void)state;
  static const char *const parts[] = {"1", "2"};
  for (size_t i = 0; i < BASE_COUNT(parts); i++) {
    quern_config *config = tiny_config("broken");
    set(config, "accum", parts[i]);
    set(config, "lr", "1e30");
    quern_trainer *trainer = trainer_of(config);
    quern_train_record record = QUERN_INIT(quern_train_record);
    run_to(trainer, 1);
    EXPECT_ERROR(quern_trainer_step(trainer, &record), STATE, "step 2: ");
    const char *message = quern_last_error();
    assert_non_null(strstr(message, "is the first operation that gave a value that is not finite"));
    assert_non_null(strstr(message, "near transformer."));
    assert_true(record.skipped && record.step == 2);
    EXPECT_ERROR(quern_trainer_step(trainer, &record), STATE, "there is nothing to go on from");
    EXPECT_ERROR(quern_trainer_save(trainer, NULL), STATE, "it is not saved");
    quern_trainer_free(trainer);
    quern_config_free(config);
  }
}

/* A parameter that is not finite is found where it is used first, and no state has changed. */
static void names_the_place(void **state) {
  (void)state;
  quern_config *config = tiny_config("");
  set(config, "layers", "3");
  quern_trainer *trainer = trainer_of(config);
  const quern_program *program = quern_trainer_program(trainer);
  quern_train_record record = QUERN_INIT(quern_train_record);
  run_to(trainer, 1);
  for (size_t i = 0; i < quern_program_state_count(program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(program, i, &slot));
    if (strcmp(slot.name, "transformer.h.1.mlp.c_fc.weight") != 0) continue;
    float *weight = quern_instance_state(quern_trainer_instance(trainer), i);
    for (int k = 0; k < 32 * 16; k++) weight[k] = 3e38F;
  }
  uint64_t before = digest_of(trainer);
  EXPECT_ERROR(quern_trainer_step(trainer, &record), STATE, "near transformer.h.1.mlp.c_fc.weight");
  assert_true(digest_of(trainer) == before);
  quern_trainer_free(trainer);
  quern_config_free(config);
}

/* The scaler's numbers are keys: one that begins too high gets down by larger steps, and its interval follows. */
static void scaler_has_keys(void **state) {
  (void)state;
  static const char *const settings[][2] = {
      {"precision", "f16"},       {"steps", "12"},    {"scale_init", "1073741824"}, {"scale_max", "1e10"},
      {"scale_backoff", "0.125"}, {"scale_min", "8"}, {"scale_interval", "2"},      {"scale_growth", "4"},
      {"scale_adaptive", "true"}};
  quern_config *config = tiny_config("");
  quern_scaler_stats stats = {.size = sizeof stats};
  for (size_t i = 0; i < BASE_COUNT(settings); i++) set(config, settings[i][0], settings[i][1]);
  quern_trainer *trainer = trainer_of(config);
  quern_train_record record = QUERN_INIT(quern_train_record);
  double scale = 1073741824;
  for (int i = 0; i < 12; i++) {
    EXPECT_OK(quern_trainer_step(trainer, &record));
    assert_true(record.skipped ? record.scale == scale / 8 : record.scale == scale || record.scale == scale * 4);
    scale = record.scale;
  }
  EXPECT_OK(quern_scaler_get_stats(quern_trainer_instance(trainer), &stats));
  assert_true(stats.skipped >= 2 && stats.interval > 2 && stats.scale == scale);
  assert_true(stats.success_rate == record.success_rate && stats.made + stats.skipped == 12);
  quern_trainer_free(trainer);
  set(config, "scale_min", "1e6");
  set(config, "scale_init", "10");
  EXPECT_ERROR(quern_trainer_new(&trainer, config, NULL), INVALID, "the scale starts at 10; must be within 1e+06");
  quern_config_free(config);
}

/* Scaled losses may overflow: the step is left out, the scale falls, and training goes on. */
static void overflow_is_skipped(void **state) {
  (void)state;
  quern_config *config = tiny_config("");
  set(config, "precision", "f16");
  set(config, "steps", "30");
  quern_trainer *trainer = trainer_of(config);
  const quern_program *program = quern_trainer_program(trainer);
  quern_train_record record = QUERN_INIT(quern_train_record);
  double loss = run_to(trainer, 2);
  for (size_t i = 0; i < quern_program_state_count(program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(program, i, &slot));
    if (strcmp(slot.name, "scaler.scale") == 0)
      *(float *)quern_instance_state(quern_trainer_instance(trainer), i) = 0x1p20F;
  }
  int skipped = 0;
  double scale = 0x1p20;
  for (int i = 2; i < 30; i++) {
    EXPECT_OK(quern_trainer_step(trainer, &record));
    if (record.skipped) assert_true(record.scale == scale / 2);
    skipped += record.skipped;
    scale = record.scale;
  }
  assert_true(skipped >= 1 && skipped < 10 && record.loss < loss && !record.skipped);
  assert_true(record.success_rate == (30.0 - skipped) / 30);
  quern_trainer_free(trainer);
  quern_config_free(config);
}

/* ---- wrong configurations ------------------------------------------------------------------------------- */

static void wrong_configurations(void **state) {
  (void)state;
  char data[512], short_text[512], bin[512];
  snprintf(data, sizeof data, "%s", make_text("text.txt", 2000));
  snprintf(short_text, sizeof short_text, "%s", make_text("short.txt", 5));
  snprintf(bin, sizeof bin, "%s", make_text("raw.bin", 200));
  static const char *const none = "";
  const struct {
    const char *settings[3][2], *words;
  } cases[] = {{{{"data", ""}}, "data: nothing is given"},
               {{{"data", "/nowhere/text"}}, "data: /nowhere/text: No such file"},
               {{{"data", short_text}}, "6 tokens in a row; a sample needs 9"},
               {{{"data", bin}}, "does not say how many ids there are HINT: vocabulary=N"},
               {{{"data", "x.npy,y.npy"}}, "a model 'lm' is trained on texts"},
               {{{"model", "mlp"}, {"heads", "model"}, {"width", "model"}}, "a model 'mlp' is trained on x.npy,y.npy"},
               {{{"model", "resnet:19"}, {"heads", "model"}, {"width", "model"}}, "a model 'resnet:19' has none"},
               {{{"model", "gpt2:9M"}}, "there is no model 'gpt2:9M'"},
               {{{"model", "lstm"}}, "heads = '2': a model 'lstm' has none"},
               {{{"heads", "3"}}, "heads = 3: must divide the width, 16"},
               {{{"kv_heads", "4"}}, "kv_heads = 4: must divide the number of heads, 2"},
               {{{"positions", "4"}}, "length = 8: the model has 4 positions"},
               {{{"vocabulary", "100"}}, "the model has 100 ids, the tokenizer has 257"},
               {{{"tokenizer", "/nowhere"}}, "/nowhere: cannot be opened"},
               {{{"tokenizer", ""}}, "tokenizer: nothing is given"},
               {{{"batch", "1000"}}, "batch = 1000: there are "},
               {{{"accum", "3"}}, "accum = 3: must divide the batch, 4"},
               {{{"memory", "1MiB"}}, "memory = 1.0 MiB: the run needs "},
               {{{"checkpoint", "every:x"}}, "every:x"},
               {{{"model", "lstm"}, {"heads", "model"}, {"checkpoint", "every:0"}}, "there is no 'every:0'"}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    quern_config *config = tiny_config("");
    for (int k = 0; k < 3 && cases[i].settings[k][0] != NULL; k++)
      set(config, cases[i].settings[k][0], cases[i].settings[k][1]);
    quern_trainer *trainer = (quern_trainer *)(void *)&none;
    quern_status status = quern_trainer_new(&trainer, config, NULL);
    if (status == QUERN_STATUS_OK || trainer != NULL || strstr(quern_last_error(), cases[i].words) == NULL)
      fail_msg("case %zu: expected \"%s\", got %s: %s", i, cases[i].words, quern_status_name(status),
               quern_last_error());
    quern_config_free(config);
  }
}

/* ---- memory --------------------------------------------------------------------------------------------- */

/* Whichever allocation fails, the run ends with an error, nothing is held and no file is left. */
static void allocations_fail(void **state) {
  (void)state;
  uint64_t failed = 0;
  for (uint64_t n = 1;; n += 1 + n / 12) {
    quern_config *config = tiny_config("faults");
    set(config, "layers", "1");
    set(config, "width", "4");
    set(config, "hidden", "4");
    quern_trainer *trainer = NULL;
    quern_train_record record = QUERN_INIT(quern_train_record);
    quern_eval_record eval = QUERN_INIT(quern_eval_record);
    size_t before = memory_live;
    memory_fault.left = n;
    memory_fault.alone = n % 2 == 0;
    memory_fault.met = false;
    quern_status status = quern_trainer_new(&trainer, config, NULL);
    if (status == QUERN_STATUS_OK) status = quern_trainer_step(trainer, &record);
    if (status == QUERN_STATUS_OK) status = quern_trainer_eval(trainer, &eval);
    if (status == QUERN_STATUS_OK) status = quern_trainer_save(trainer, NULL);
    bool met = memory_fault.met;
    memory_fault.left = 0;
    quern_trainer_free(trainer);
    if (memory_live != before)
      fail_msg("allocation %llu: %zu bytes are held", (unsigned long long)n, memory_live - before);
    quern_config_free(config);
    if (met && status == QUERN_STATUS_OK && !memory_fault.alone)
      fail_msg("allocation %llu failed, the run did not", (unsigned long long)n);
    if (!met) assert_int_equal(status, QUERN_STATUS_OK);
    if (!met) break;
    assert_true(status == QUERN_STATUS_OK || status == QUERN_STATUS_MEMORY);
    if (status != QUERN_STATUS_OK && access(in_folder("faults"), F_OK) == 0)
      assert_int_equal(folder_count(in_folder("faults")), 0);
    folder_clear(folder);
    failed++;
  }
  assert_true(failed > 40);
}

static void on_note(void *user, const char *text) {
  if (strncmp(text, "target ", 7) == 0) snprintf(user, 256, "%s", text);
}

/* A run that goes on on another target reports it: bits are promised for one. */
static void tells_another_target(void **state) {
  (void)state;
  char told[256] = "";
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  callbacks.note = on_note;
  callbacks.user = told;
  quern_config *config = tiny_config("target");
  for (int i = 0; i < 3; i++) {
    quern_trainer *trainer;
    EXPECT_OK(quern_trainer_new(&trainer, config, &callbacks));
    char expected[256] = "";
    if (i == 2)
      snprintf(expected, sizeof expected,
               "target   goes on on %s, was vax: the last bits can differ from those of a run that stayed there",
               trainer->info.target);
    assert_string_equal(told, expected);
    (void)run_to(trainer, i + 1);
    if (i == 1) trainer->info.target = "vax"; /* where this one was */
    EXPECT_OK(quern_trainer_save(trainer, NULL));
    quern_trainer_free(trainer);
  }
  quern_config_free(config);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(learns),
                                     TEST(compiles_evaluation_first),
                                     TEST(variants),
                                     TEST(classes),
                                     TEST(goes_on),
                                     TEST(keeps_evaluations),
                                     TEST(tells_another_target),
                                     TEST(same_configuration),
                                     TEST(names_the_operation),
                                     TEST(names_the_place),
                                     TEST(overflow_is_skipped),
                                     TEST(scaler_has_keys),
                                     TEST(wrong_configurations),
                                     TEST(allocations_fail)};
  return cmocka_run_group_tests_name("train/train", tests, setup_folder, remove_folder);
}
