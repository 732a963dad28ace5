/* tests/train/test_kill.c -- a run that is killed at 30 random moments, during saves as well, and goes on each time with another
** number of threads: its last checkpoint has the bits of the run that was never interrupted
*/
#define _DEFAULT_SOURCE
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "train/train_test.h"

enum { KILLS = 30, STEPS = 1500 };

static quern_config *kill_config(const char *out, const char *threads, const char *save_every) {
  quern_config *config = tiny_config(out);
  static const char *const settings[][2] = {{"device", "cpu"}, {"batch", "32"},   {"dropout", "0.1"},
                                            {"workers", "1"},  {"prefetch", "2"}, {"eval_every", "100"},
                                            {"lr", "3e-3"}};
  for (size_t i = 0; i < BASE_COUNT(settings); i++) set(config, settings[i][0], settings[i][1]);
  char steps[16];
  snprintf(steps, sizeof steps, "%d", STEPS);
  set(config, "steps", steps);
  set(config, "threads", threads);
  set(config, "save_every", save_every);
  return config;
}

/* A process that trains, killed after so many seconds (0: never); whether it came to its end. */
static bool train_for(const char *out, const char *threads, const char *save_every, double seconds) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    quern_config *config = kill_config(out, threads, save_every);
    quern_status status = quern_train(config, NULL, NULL);
    if (status != QUERN_STATUS_OK) (void)fprintf(stderr, "%s\n", quern_last_error());
    _exit(status == QUERN_STATUS_OK ? 0 : 3);
  }
  if (seconds > 0) {
    struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - floor(seconds)))};
    (void)nanosleep(&time, NULL);
    (void)kill(child, SIGKILL);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (!killed && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) fail_msg("a run ended with status %d", status);
  return !killed;
}

static uint64_t last_digest(const char *out) {
  char path[600];
  snprintf(path, sizeof path, "%s/step-%08d/model.safetensors", in_folder(out), STEPS);
  struct base_heap heap;
  void *bytes;
  size_t n;
  base_heap_init(&heap, NULL);
  EXPECT_OK(io_file_read(path, &heap, 1 << 24, &bytes, &n));
  uint64_t digest = io_digest_of(bytes, n);
  base_free(&heap, bytes, n);
  return digest;
}

static int64_t newest_step(const char *out) {
  quern_checkpoint *checkpoint;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, in_folder(out), NULL));
  if (checkpoint != NULL) EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.skipped, 0);
  quern_checkpoint_close(checkpoint);
  return (int64_t)info.step;
}

/* Names of files and folders that are written, and of locks. */
static int left_over(const char *out) {
  int n = 0;
  DIR *dir = opendir(in_folder(out));
  assert_non_null(dir);
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    const char *end = strrchr(entry->d_name, '.');
    bool itself = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    n += !itself && (entry->d_name[0] == '.' || (end != NULL && strcmp(end, ".tmp") == 0));
  }
  closedir(dir);
  return n;
}

static void killed(void **state) {
  (void)state;
  assert_true(train_for("whole", "2", "0", 0)); /* and its kernels are compiled, for two threads and for one */
  assert_true(train_for("single", "1", "0", 0));
  assert_true(last_digest("whole") == last_digest("single"));
  struct timespec begin, end;
  (void)clock_gettime(CLOCK_MONOTONIC, &begin);
  assert_true(train_for("whole", "2", "0", 0)); /* nothing is left to do: as long as a run takes to begin */
  (void)clock_gettime(CLOCK_MONOTONIC, &end);
  double start = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
  uint64_t chance = 1;
  int kills = 0, going_on = 0, runs = 0;
  int64_t before = 0;
  char out[32] = "killed0";
  for (int i = 0; kills < KILLS; i++) {
    chance = chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    double seconds = start * (0.5 + 3 * (double)(chance >> 33) / 2147483648.0);
    bool ended = train_for(out, i % 2 == 0 ? "1" : "2", i % 3 == 0 ? "7" : "1", seconds);
    int64_t step = newest_step(out);
    assert_true(step >= before); /* what was saved stays */
    going_on += step > before && step < STEPS;
    before = step;
    kills += !ended;
    if (!ended) continue;
    assert_true(last_digest(out) == last_digest("whole"));
    assert_int_equal(left_over(out), 0);
    snprintf(out, sizeof out, "killed%d", ++runs); /* another one, until there were enough kills */
    before = 0;
  }
  print_message("%d kills, %d of them after more steps, in %d runs; a run begins in %.0f ms\n", kills, going_on,
                runs + 1, 1e3 * start);
  assert_true(train_for(out, "2", "0", 0));
  assert_true(last_digest(out) == last_digest("whole"));
  assert_int_equal(left_over(out), 0);
  assert_true(going_on > KILLS / 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(killed)};
  return cmocka_run_group_tests_name("train/kill", tests, setup_folder, remove_folder);
}
