/* tests/train/test_plan.c -- plans of training: they tell what the run would be, and leave nothing behind */
#include "unit.h"

#include "train/train_test.h"

struct told {
  int begins, notes;
  quern_train_info info;
  quern_memory_plan memory;
  char text[2048];
};

static void take_info(void *user, const quern_train_info *info) {
  struct told *told = user;
  told->begins++;
  told->info = *info;
  told->memory = *info->memory;
}

static void take_note(void *user, const char *text) {
  struct told *told = user;
  size_t n = strlen(told->text);
  snprintf(told->text + n, sizeof told->text - n, "%s\n", text);
  told->notes++;
}

static quern_train_callbacks callbacks_of(struct told *told) {
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  callbacks.user = told;
  callbacks.begin = take_info;
  callbacks.note = take_note;
  return callbacks;
}

static bool is_there(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file != NULL) fclose(file);
  return file != NULL;
}

/* What is planned is what a run has. */
static void same_as_run(void **state) {
  (void)state;
  struct told told = {0};
  quern_train_callbacks callbacks = callbacks_of(&told);
  quern_curve_point points[6] = {QUERN_INIT(quern_curve_point)};
  size_t n = 0;
  quern_config *config = tiny_config("run");
  EXPECT_OK(quern_train_plan(config, &callbacks, 6, points, &n));
  assert_int_equal(told.begins, 1);
  assert_true(told.notes >= 2 && strstr(told.text, "kernels  ") != NULL && strstr(told.text, "GFLOP a step") != NULL);
  assert_false(is_there(in_folder("run")));
  assert_in_range(n, 2, 6);
  for (size_t i = 1; i < n; i++) assert_true(points[i].bytes < points[i - 1].bytes);
  quern_trainer *trainer = trainer_of(config);
  const quern_train_info *info = quern_trainer_info(trainer);
  assert_int_equal(told.info.parameters, info->parameters);
  assert_int_equal(told.memory.state, info->memory->state);
  assert_int_equal(told.memory.arena, info->memory->arena);
  assert_int_equal(told.info.steps, info->steps);
  assert_int_equal(told.info.first_launch, 0);
  assert_true(told.info.flops == info->flops);
  quern_trainer_free(trainer);
  quern_config_free(config);
}

static void limits(void **state) {
  (void)state;
  struct told told = {0};
  quern_train_callbacks callbacks = callbacks_of(&told);
  quern_config *config = tiny_config("");
  EXPECT_OK(quern_train_plan(config, NULL, 0, NULL, NULL));
  set(config, "memory", "1000");
  EXPECT_ERROR(quern_train_plan(config, &callbacks, 0, NULL, NULL), MEMORY, "the run needs");
  assert_int_equal(told.begins, 0);
  set(config, "memory", "8GiB");
  set(config, "accum", "auto");
  EXPECT_OK(quern_train_plan(config, &callbacks, 0, NULL, NULL));
  assert_int_equal(told.begins, 1);
  assert_int_equal(told.info.limit, INT64_C(8) << 30);
  set(config, "data", in_folder("none"));
  EXPECT_ERROR(quern_train_plan(config, NULL, 0, NULL, NULL), IO, "none");
  quern_config_free(config);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(same_as_run), TEST(limits)};
  return cmocka_run_group_tests(tests, setup_folder, remove_folder);
}
