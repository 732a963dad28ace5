/* tests/train/test_memory.c -- the memory limit of a run: planned and measured bytes of the whole process, and the same bits
** Every run is a process of its own, whose peak is its own.
*/
#define _DEFAULT_SOURCE
#include <sys/wait.h>

#include "train/train_test.h"

struct told {
  quern_status status;
  int64_t planned, peak, limit, least;
  uint64_t digest;
  char message[256];
};

/* Two steps, an evaluation and a checkpoint with that limit, from a checkpoint where there is one. */
static void train_here(const char *text, const char *memory, const char *out, struct told *told) {
  quern_config *config;
  quern_trainer *trainer = NULL;
  quern_eval_record eval = QUERN_INIT(quern_eval_record);
  quern_train_record record = QUERN_INIT(quern_train_record);
  if (quern_train_config(&config, NULL) != QUERN_STATUS_OK) return;
  if (quern_config_text(config, "test", text, strlen(text)) != QUERN_STATUS_OK) return;
  if (quern_config_set(config, "memory", memory) != QUERN_STATUS_OK) return;
  if (quern_config_set(config, "out", out) != QUERN_STATUS_OK) return;
  told->status = quern_trainer_new(&trainer, config, NULL);
  const char *least = strstr(quern_last_error(), "at least (");
  if (told->status != QUERN_STATUS_OK && least != NULL) told->least = strtoll(least + strlen("at least ("), NULL, 10);
  for (int i = 0; i < 2 && told->status == QUERN_STATUS_OK; i++) told->status = quern_trainer_step(trainer, &record);
  if (told->status == QUERN_STATUS_OK) told->status = quern_trainer_eval(trainer, &eval);
  if (told->status == QUERN_STATUS_OK) told->status = quern_trainer_save(trainer, NULL);
  if (told->status == QUERN_STATUS_OK) {
    told->planned = quern_trainer_info(trainer)->planned;
    told->limit = quern_trainer_info(trainer)->limit;
    told->digest = digest_of(trainer);
  }
  quern_trainer_free(trainer);
  snprintf(told->message, sizeof told->message, "%s", quern_last_error());
  told->peak = train_peak();
  quern_config_free(config);
}

static struct told train_apart(const char *text, const char *memory, const char *out) {
  struct told told = {.status = QUERN_STATUS_INTERNAL};
  int ends[2], status;
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    train_here(text, memory, out, &told);
    _exit(write(ends[1], &told, sizeof told) == (ssize_t)sizeof told ? 0 : 1);
  }
  (void)close(ends[1]);
  assert_int_equal(read(ends[0], &told, sizeof told), sizeof told);
  (void)close(ends[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  return told;
}

/* What the process holds is what was planned, within a limit that was given. */
static void check(const struct told *told, const char *what) {
  enum { NEAR = 6 << 20 };
  if (told->status != QUERN_STATUS_OK) fail_msg("%s: %s", what, told->message);
  print_message("%s: limit %.1f MiB, planned %.1f, measured %.1f\n", what, (double)told->limit / 1048576,
                (double)told->planned / 1048576, (double)told->peak / 1048576);
  if (told->limit > 0) assert_true(told->planned <= told->limit && told->peak <= told->limit);
  assert_true(llabs(told->peak - told->planned) < NEAR);
}

/* Two processes after each other, the second from the first one's checkpoint: the bits in the end. */
static uint64_t run_twice(const char *text, const char *memory, const char *what, int64_t *planned) {
  static int number;
  char name[32], out[512];
  snprintf(name, sizeof name, "memory%d", number++);
  snprintf(out, sizeof out, "%s", in_folder(name));
  struct told first = train_apart(text, memory, out), second = train_apart(text, memory, out);
  check(&first, what);
  check(&second, "  going on");
  assert_true(first.digest != second.digest);
  if (planned != NULL) *planned = first.planned;
  return second.digest;
}

static void limits(void **state) {
  (void)state;
  if (TEST_ASAN) skip(); /* it holds memory of its own */
  quern_config *config = tiny_config("");
  static const char *const settings[][2] = {{"device", "cpu"}, {"layers", "4"}, {"width", "64"},  {"hidden", "256"},
                                            {"length", "128"}, {"batch", "32"}, {"threads", "2"}, {"workers", "1"},
                                            {"prefetch", "2"}, {"steps", "4"}};
  for (size_t i = 0; i < BASE_COUNT(settings); i++) set(config, settings[i][0], settings[i][1]);
  set(config, "data", make_text("long.txt", 20000));
  char *text, number[32];
  EXPECT_OK(quern_config_print(config, false, &text));
  int64_t planned;
  uint64_t want = run_twice(text, "0", "no limit", &planned);
  for (int percent = 102; percent > 50; percent -= 22) {
    snprintf(number, sizeof number, "%lld", (long long)planned * percent / 100);
    assert_true(run_twice(text, number, number, NULL) == want);
  }
  struct told none = train_apart(text, "1MiB", "");
  assert_int_equal(none.status, QUERN_STATUS_MEMORY);
  assert_true(none.least > 1 << 20 && none.least < planned);
  snprintf(number, sizeof number, "%lld", (long long)none.least);
  assert_true(run_twice(text, number, "the smallest", NULL) == want);
  quern_free_text(text);
  quern_config_free(config);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(limits)};
  return cmocka_run_group_tests_name("train/memory", tests, setup_folder, remove_folder);
}
