/* tests/train/test_loop.c -- whole runs: how they end, what they write, a full disk */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "io/json.h"
#include "train/train_test.h"

struct told {
  int begins, steps, evals, saves, notes;
  int64_t stop_at; /* 0: never */
  int64_t last_saved;
  double last_loss;
};

static void on_begin(void *user, const quern_train_info *info) {
  struct told *told = user;
  assert_true(info->parameters > 0 && info->planned > 0 && info->first_launch > 0);
  told->begins++;
}
static bool on_step(void *user, const quern_train_record *record) {
  struct told *told = user;
  told->steps++;
  told->last_loss = record->loss;
  assert_true(record->seconds > 0 && record->per_second > 0 && record->lr >= 0 && record->norm > 0);
  return record->step != told->stop_at;
}
static bool on_eval(void *user, const quern_eval_record *record) {
  struct told *told = user;
  assert_true(record->loss > 0);
  told->evals++;
  return true;
}
static void on_saved(void *user, const char *path, int64_t step, double seconds) {
  struct told *told = user;
  assert_true(seconds > 0 && access(path, F_OK) == 0);
  told->saves++;
  told->last_saved = step;
}

static quern_train_end train(const quern_config *config, struct told *told) {
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  callbacks.user = told;
  callbacks.begin = on_begin;
  callbacks.step = on_step;
  callbacks.eval = on_eval;
  callbacks.saved = on_saved;
  quern_train_end end;
  EXPECT_OK(quern_train(config, &callbacks, &end));
  return end;
}

/* The lines of metrics.jsonl: steps must follow each other; how many there are of steps and of evaluations. */
static void read_metrics(const char *path, int *steps, int *evals) {
  char line[1024];
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  *steps = *evals = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    json_t *object;
    EXPECT_OK(io_json_parse("line", line, strlen(line), &object));
    if (json_object_get(object, "eval_loss") != NULL)
      ++*evals;
    else
      assert_int_equal(json_integer_value(json_object_get(object, "step")), ++*steps);
    json_decref(object);
  }
  assert_int_equal(fclose(file), 0);
}

static void whole_run(void **state) {
  (void)state;
  quern_config *config = tiny_config("run");
  set(config, "eval_every", "2");
  set(config, "save_every", "4");
  set(config, "keep", "1");
  struct told told = {0};
  assert_int_equal(train(config, &told), QUERN_TRAIN_DONE);
  assert_int_equal(told.begins, 1);
  assert_int_equal(told.steps, 6);
  assert_int_equal(told.evals, 3);
  assert_int_equal(told.saves, 2);
  assert_int_equal(told.last_saved, 6);
  int steps, evals;
  read_metrics(in_folder("run/metrics.jsonl"), &steps, &evals);
  assert_int_equal(steps, 6);
  assert_int_equal(evals, 3);
  assert_int_equal(folder_count(in_folder("run")), 4); /* step-00000006, config, metrics.jsonl, run.json */
  static char text[1 << 20];
  size_t n = file_load(in_folder("run/run.json"), (unsigned char *)text, sizeof text);
  json_t *run;
  EXPECT_OK(io_json_parse("run.json", text, n, &run));
  const json_t *info = json_object_get(run, "info"), *memory = json_object_get(run, "memory");
  assert_int_equal(json_integer_value(json_object_get(info, "step")), 6);
  assert_string_equal(json_string_value(json_object_get(json_object_get(run, "config"), "width")), "16");
  assert_true(json_integer_value(json_object_get(memory, "peak")) > 0);
  assert_true(json_array_size(json_object_get(memory, "timeline")) > 10);
  assert_true(json_integer_value(json_object_get(run, "measured_peak_bytes")) > 1 << 20);
  json_decref(run);
  told = (struct told){0}; /* there is nothing left to do */
  assert_int_equal(train(config, &told), QUERN_TRAIN_DONE);
  assert_int_equal(told.steps + told.evals + told.saves, 0);
  quern_config_free(config);
}

/* A run that was stopped is saved; going on it has one line per step, though some were made twice. */
static void stopped(void **state) {
  (void)state;
  quern_config *config = tiny_config("stopped");
  struct told told = {.stop_at = 4};
  assert_int_equal(train(config, &told), QUERN_TRAIN_STOPPED);
  assert_int_equal(told.steps, 4);
  assert_int_equal(told.last_saved, 4);
  FILE *file =
      fopen(in_folder("stopped/metrics.jsonl"), "a"); /* as a kill leaves it: steps that were not saved, half a line */
  assert_non_null(file);
  assert_true(fputs("{\"step\":5,\"loss\":1}\n{\"step\":5,\"eval_loss\":1}\n{\"step\":6,\"lo", file) >= 0);
  assert_int_equal(fclose(file), 0);
  told = (struct told){0};
  assert_int_equal(train(config, &told), QUERN_TRAIN_DONE);
  assert_int_equal(told.steps, 2);
  int steps, evals;
  read_metrics(in_folder("stopped/metrics.jsonl"), &steps, &evals);
  assert_int_equal(steps, 6);
  assert_int_equal(evals, 1);
  double got = told.last_loss;
  set(config, "out", "");
  told = (struct told){0};
  assert_int_equal(train(config, &told), QUERN_TRAIN_DONE);
  assert_true(told.last_loss == got);
  assert_int_equal(told.saves, 0);
  quern_config_free(config);
}

static void early_end(void **state) {
  (void)state;
  quern_config *config = tiny_config("early");
  set(config, "lr", "0");
  set(config, "eval_every", "1");
  set(config, "patience", "3");
  struct told told = {0};
  assert_int_equal(train(config, &told), QUERN_TRAIN_EARLY);
  assert_int_equal(told.steps, 4); /* the first evaluation is the best, three more are not better */
  assert_int_equal(told.last_saved, 4);
  quern_config_free(config);
}

static void epochs(void **state) {
  (void)state;
  quern_config *config = tiny_config("");
  set(config, "epochs", "2");
  set(config, "eval_part", "0");
  set(config, "batch", "100");
  struct told told = {0};
  assert_int_equal(train(config, &told), QUERN_TRAIN_DONE);
  assert_int_equal(told.steps, 4); /* 250 samples are 2 batches */
  assert_int_equal(told.evals, 0);
  quern_config_free(config);
}

static void not_finite(void **state) {
  (void)state;
  quern_config *config = tiny_config("infinite");
  set(config, "lr", "1e30");
  set(config, "save_every", "1");
  EXPECT_ERROR(quern_train(config, NULL, NULL), STATE, "is the first operation that gave a value that is not finite");
  quern_checkpoint *checkpoint;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, in_folder("infinite"), NULL));
  assert_non_null(checkpoint);
  EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.step, 1);
  quern_checkpoint_close(checkpoint);
  quern_config_free(config);
}

/* A disk that is full: the error reports it, the checkpoint before stays and is gone on from once there is room. */
static void full_disk(void **state) {
  (void)state;
  char small[256];
  snprintf(small, sizeof small, "%s", in_folder("small"));
  assert_int_equal(mkdir(small, 0700), 0);
  if (mount("quern", small, "tmpfs", 0, "size=400k") != 0) {
    print_message("full_disk: a small tmpfs cannot be mounted: %s\n", strerror(errno));
    skip();
  }
  quern_config *config = tiny_config("small/run");
  set(config, "save_every", "1");
  set(config, "keep", "0");
  set(config, "steps", "50");
  quern_status status = quern_train(config, NULL, NULL);
  char message[512];
  snprintf(message, sizeof message, "%s", quern_last_error());
  quern_checkpoint *checkpoint = NULL;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, in_folder("small/run"), NULL));
  assert_non_null(checkpoint);
  EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
  uint64_t step = info.step;
  size_t damaged = info.skipped;
  quern_checkpoint_close(checkpoint);
  assert_int_equal(mount("quern", small, "tmpfs", MS_REMOUNT, "size=4m"), 0);
  set(config, "keep", "1");
  set(config, "steps", "12");
  quern_trainer *trainer = trainer_of(config);
  int64_t begun = quern_trainer_info(trainer)->step;
  run_to(trainer, 12);
  EXPECT_OK(quern_trainer_save(trainer, NULL));
  quern_trainer_free(trainer);
  quern_config_free(config);
  folder_clear(small);
  assert_int_equal(umount(small), 0);
  assert_int_equal(status, QUERN_STATUS_IO);
  assert_non_null(strstr(message, "No space left"));
  assert_true(step >= 1 && step < 12 && damaged == 0 && begun == (int64_t)step);
}

static bool print_step(void *user, const quern_train_record *record) {
  (void)user;
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) dprintf(fd, "step %lld\n", (long long)record->step);
  return true;
}

/* A host that closed its standard streams, and prints all the same, spoils no file. */
static void closed_streams(void **state) {
  (void)state;
  int status, steps, evals;
  quern_config *config = tiny_config("closed");
  set(config, "save_every", "1");
  pid_t pid = fork();
  if (pid == 0) {
    quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
    callbacks.step = print_step;
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) close(fd);
    _exit(quern_train(config, &callbacks, NULL) == QUERN_STATUS_OK ? 0 : 1);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
  read_metrics(in_folder("closed/metrics.jsonl"), &steps, &evals);
  assert_int_equal(steps, 6);
  quern_trainer *trainer = trainer_of(config);
  assert_int_equal(quern_trainer_info(trainer)->step, 6);
  quern_trainer_free(trainer);
  quern_config_free(config);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(whole_run),  TEST(stopped),   TEST(early_end),     TEST(epochs),
                                     TEST(not_finite), TEST(full_disk), TEST(closed_streams)};
  return cmocka_run_group_tests_name("train/loop", tests, setup_folder, remove_folder);
}
