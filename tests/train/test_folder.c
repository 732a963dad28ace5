/* tests/train/test_folder.c -- the folder of a run: one process, what killed runs left, files that are not the run's */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>

#include "train/report.h"
#include "train/train_test.h"

static bool has(const char *name) {
  struct stat there;
  return lstat(in_folder(name), &there) == 0;
}

static void expect_text(const char *name, const char *text) {
  static unsigned char bytes[1 << 16];
  size_t n = file_load(in_folder(name), bytes, sizeof bytes);
  assert_int_equal(n, strlen(text));
  assert_memory_equal(bytes, text, n);
}

/* ---- one process ---------------------------------------------------------------------------------------- */

static const quern_config *first;
static quern_trainer *other;
static int refused;

/* Another run in the same folder, while the first one is under way. */
static bool on_step(void *user, const quern_train_record *record) {
  (void)user;
  if (record->step != 2) return true;
  EXPECT_ERROR(quern_train(first, NULL, NULL), STATE,
               "another run of this process trains in this folder HINT: another");
  assert_non_null(strstr(quern_last_error(), in_folder("run")));
  EXPECT_ERROR(quern_trainer_save(other, NULL), STATE, "trains in this folder");
  refused++;
  return true;
}

static void one_at_a_time(void **state) {
  (void)state;
  quern_config *config = tiny_config("run");
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  callbacks.step = on_step;
  first = config;
  other = trainer_of(config);
  EXPECT_OK(quern_train(config, &callbacks, NULL));
  assert_int_equal(refused, 1);
  assert_false(has("run/.lock"));
  EXPECT_OK(quern_trainer_save(other, NULL)); /* from now on it is its folder */
  EXPECT_ERROR(quern_train(config, NULL, NULL), STATE, "trains in this folder");
  quern_trainer_free(other);
  EXPECT_OK(quern_train(config, NULL, NULL));
  quern_config_free(config);
  folder_clear(folder);
}

/* ---- what killed runs left ------------------------------------------------------------------------------ */

static void leftovers(void **state) {
  (void)state;
  static const char *const left[] = {"run/config.0.tmp",   "run/metrics.jsonl.0.tmp", "run/run.json.3.tmp",
                                     "run/data.bin.0.tmp", "run/report.html.1.tmp",   "run/tokenizer.json.0.tmp"};
  quern_config *config = tiny_config("run");
  assert_int_equal(mkdir(in_folder("run"), 0777), 0);
  for (size_t i = 0; i < BASE_COUNT(left); i++) file_store(in_folder(left[i]), "half", 4);
  file_store(in_folder("run/mine.0.tmp"), "mine", 4);
  file_store(in_folder("run/.lock"), "1\n", 2);
  assert_int_equal(mkdir(in_folder("run/.step-00000002.0.tmp"), 0777), 0);
  file_store(in_folder("run/.step-00000002.0.tmp/model.safetensors"), "half", 4);
  int file = open(in_folder("run/run.json.9.tmp"), O_RDONLY | O_CREAT, 0666);
  close(file);
  EXPECT_OK(quern_train(config, NULL, NULL));
  expect_text("run/mine.0.tmp", "mine");
  assert_int_equal(folder_count(in_folder("run")), 5); /* step-00000006, config, metrics.jsonl, run.json, mine.0.tmp */
  quern_config_free(config);
  folder_clear(folder);
}

/* A save in place of a damaged checkpoint has another name, which is reported. */
static void on_saved(void *user, const char *path, int64_t step, double seconds) {
  (void)seconds;
  assert_int_equal(step, 6);
  assert_int_equal(access(path, F_OK), 0);
  snprintf(user, 512, "%s", path);
}

static void told_names(void **state) {
  (void)state;
  char saved[512] = "", model[sizeof saved + 32];
  quern_config *config = tiny_config("run");
  set(config, "steps", "3");
  EXPECT_OK(quern_train(config, NULL, NULL));
  set(config, "steps", "6");
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  callbacks.user = saved;
  callbacks.saved = on_saved;
  EXPECT_OK(quern_train(config, &callbacks, NULL));
  assert_string_equal(saved, in_folder("run/step-00000006"));
  snprintf(model, sizeof model, "%s/model.safetensors", saved);
  assert_int_equal(truncate(model, 100), 0);
  EXPECT_OK(quern_train(config, &callbacks, NULL));
  assert_string_equal(saved, in_folder("run/step-00000006.1"));
  quern_config_free(config);
  folder_clear(folder);
}

/* ---- files that are not the run's ----------------------------------------------------------------------- */

static void not_ours(void **state) {
  (void)state;
  static const char *const names[] = {"config", "metrics.jsonl", "tokenizer.json", "run.json", "report.html"};
  quern_config *config = tiny_config("run");
  for (size_t i = 0; i < BASE_COUNT(names); i++) {
    char name[64], message[128];
    snprintf(name, sizeof name, "run/%s", names[i]);
    snprintf(message, sizeof message, "%s: is there already, and ", name);
    assert_int_equal(mkdir(in_folder("run"), 0777), 0);
    file_store(in_folder(name), "lr = 1e-2 # mine\n", 17);
    EXPECT_ERROR(quern_train(config, NULL, NULL), STATE, message);
    assert_non_null(strstr(quern_last_error(), "HINT: another folder: out=FOLDER"));
    expect_text(name, "lr = 1e-2 # mine\n");
    assert_int_equal(folder_count(in_folder("run")), 1);
    folder_clear(in_folder("run"));
    assert_int_equal(rmdir(in_folder("run")), 0);
  }
  quern_config_free(config);
  folder_clear(folder);
}

/* Metrics that are a link: nothing is added to what that leads to. */
static void linked_metrics(void **state) {
  (void)state;
  static char before[1 << 16], after[1 << 16];
  struct stat there;
  char outside[512];
  quern_config *config = tiny_config("run");
  EXPECT_OK(quern_train(config, NULL, NULL));
  snprintf(outside, sizeof outside, "%s", in_folder("outside.jsonl"));
  assert_int_equal(rename(in_folder("run/metrics.jsonl"), outside), 0);
  assert_int_equal(symlink(outside, in_folder("run/metrics.jsonl")), 0);
  size_t n = file_load(outside, (unsigned char *)before, sizeof before);
  set(config, "steps", "8");
  EXPECT_OK(quern_train(config, NULL, NULL));
  assert_int_equal(file_load(outside, (unsigned char *)after, sizeof after), n);
  assert_memory_equal(before, after, n);
  assert_true(lstat(in_folder("run/metrics.jsonl"), &there) == 0 && S_ISREG(there.st_mode));
  assert_true(file_load(in_folder("run/metrics.jsonl"), (unsigned char *)after, sizeof after) > n);
  assert_memory_equal(before, after, n);
  quern_config_free(config);
  folder_clear(folder);
}

/* A run that was killed before its first checkpoint begins anew; another one does not take its place, unless it made
** no step. */
static void before_the_first(void **state) {
  (void)state;
  static char before[1 << 16], after[1 << 16];
  quern_config *config = tiny_config("run");
  EXPECT_OK(quern_train(config, NULL, NULL));
  folder_clear(in_folder("run/step-00000006"));
  assert_int_equal(rmdir(in_folder("run/step-00000006")), 0);
  size_t n = file_load(in_folder("run/metrics.jsonl"), (unsigned char *)before, sizeof before);
  assert_true(n > 0);
  set(config, "lr", "2e-2");
  EXPECT_ERROR(
      quern_train(config, NULL, NULL), INVALID,
      "the run in this folder was made with lr = '1e-2', not '2e-2' HINT: another folder: out=FOLDER; or begin it as "
      "it was: quern train ");
  assert_int_equal(file_load(in_folder("run/metrics.jsonl"), (unsigned char *)after, sizeof after), n);
  assert_memory_equal(before, after, n);
  quern_config *again;
  EXPECT_OK(quern_train_config(&again, &memory_allocator));
  EXPECT_ERROR(quern_train_config_of(again, in_folder("run")), IO, "run/config out=");
  EXPECT_OK(quern_config_file(again, in_folder("run/config")));
  EXPECT_OK(quern_train(again, NULL, NULL)); /* as the hint says */
  quern_config_free(again);
  folder_clear(in_folder("run/step-00000006"));
  assert_int_equal(rmdir(in_folder("run/step-00000006")), 0);
  assert_int_equal(truncate(in_folder("run/metrics.jsonl"), 0), 0);
  EXPECT_OK(quern_train(config, NULL, NULL)); /* nothing had been trained */
  EXPECT_OK(quern_train(config, NULL, NULL));
  set(config, "lr", "3e-2");
  EXPECT_ERROR(quern_train(config, NULL, NULL), INVALID, "was made with lr = '2e-2', not '3e-2'");
  set(config, "lr", "20e-3");
  set(config, "steps", "7");
  EXPECT_OK(quern_train(config, NULL, NULL));
  assert_true(has("run/step-00000007"));
  quern_config_free(config);
  folder_clear(folder);
}

/* A run that cannot begin leaves nothing, where there was nothing; what was there stays. */
static void never_begun(void **state) {
  (void)state;
  quern_config *config = tiny_config("run");
  set(config, "data", in_folder("missing.txt"));
  EXPECT_ERROR(quern_train(config, NULL, NULL), IO, "missing.txt");
  assert_false(has("run"));
  assert_int_equal(mkdir(in_folder("run"), 0777), 0);
  EXPECT_ERROR(quern_train(config, NULL, NULL), IO, "missing.txt");
  assert_int_equal(folder_count(in_folder("run")), 0);
  file_store(in_folder("run/mine"), "mine", 4);
  EXPECT_ERROR(quern_train(config, NULL, NULL), IO, "missing.txt");
  assert_int_equal(folder_count(in_folder("run")), 1);
  quern_config_free(config);
  folder_clear(folder);
}

/* ---- names and states ------------------------------------------------------------------------------------- */

/* Paths of any bytes: the run is saved, gone on with, and shown. */
static void any_paths(void **state) {
  (void)state;
  quern_config *config = tiny_config("r\xffun"), *again;
  set(config, "data", make_text("te\xc3(xt", 2000));
  set(config, "report", "true");
  EXPECT_OK(quern_train(config, NULL, NULL));
  EXPECT_OK(quern_train_config(&again, &memory_allocator));
  EXPECT_OK(quern_train_config_of(again, in_folder("r\xffun")));
  assert_string_equal(quern_config_get(again, "data"), quern_config_get(config, "data"));
  set(again, "steps", "8");
  EXPECT_OK(quern_train(again, NULL, NULL));
  assert_true(has("r\xffun/step-00000008"));
  quern_config_free(again);
  quern_config_free(config);
  folder_clear(folder);
}

/* Replaces a part of a checkpoint's JSON, whose digest then is right. */
static void rewrite(const char *name, const char *old, const char *new) {
  static char text[1 << 16], made[1 << 16];
  const char *path = in_folder(name);
  text[file_load(path, (unsigned char *)text, sizeof text - 1)] = 0;
  const char *rest = strchr(text, '\n') + 1, *at = strstr(rest, old);
  assert_non_null(at);
  int n = snprintf(made, sizeof made, "%.*s%s%s", (int)(at - rest), rest, new, at + strlen(old));
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_true(fprintf(file, "{\"quern_checkpoint\":1,\"hash\":\"xxh64\",\"digest\":\"%016llx\",\n%s",
                      (unsigned long long)io_digest_of(made, (size_t)n), made) > 0);
  assert_int_equal(fclose(file), 0);
}

/* Numbers that are missing, of another type or too large: an error that names the checkpoint. */
static void crafted(void **state) {
  (void)state;
  static const struct {
    const char *old, *new, *message;
  } rows[] = {
      {"0,\"position\":", "0,\"place\":", "its state has no \"position\" that is a whole number from 0 to "},
      {"0,\"position\":", "0,\"position\":1e3,\"place\":", "has no \"position\""},
      {"0,\"position\":", "0,\"position\":9999999,\"place\":", "has no \"position\""},
      {"0,\"position\":", "0,\"position\":-1,\"place\":", "has no \"position\""},
      {"\"epoch\":", "\"epoch\":9223372036854775807,\"e\":", "has no \"epoch\""},
      {"\"epoch\":", "\"e\":", "has no \"epoch\""},
      {"\"bad\":", "\"bad\":9223372036854775807,\"b\":", "has no \"bad\""},
      {",\"accum\":", ",\"accum\":0,\"a\":", "has no \"accum\""},
      {",\"data\":", ",\"d\":", "has no \"data\" that is a digest"},
      {",\"data\":", ",\"data\":7,\"d\":", "has no \"data\" that is a digest"},
      {"\"best\":", "\"best\":\"x\",\"a\":", "has no \"best\" that is a number"},
      {"\"falls\":", "\"falls\":9223372036854775807,\"a\":", "has no \"falls\""},
      {"\"reports\":", "\"reports\":9223372036854775807,\"a\":", "has no \"reports\""},
      {"\"step\":6", "\"step\":9223372036854775807",
       "has made 9223372036854775807 steps of 4 samples, which is too many"},
      {"\"step\":6", "\"step\":5", "has made 5 steps, and its state \"step\" says 6"},
      {"\"step\":6", "\"step\":1000000000000001", "has made 1000000000000001 steps"},
  };
  static const char name[] = "run/step-00000006/checkpoint.json";
  static unsigned char whole[1 << 16];
  quern_config *config = tiny_config("run");
  quern_trainer *trainer;
  set(config, "schedule", "plateau");
  EXPECT_OK(quern_train(config, NULL, NULL));
  rewrite(name, "\"step\":6", "\"step\":6"); /* which changes nothing */
  trainer = trainer_of(config);
  assert_int_equal(quern_trainer_info(trainer)->step, 6);
  quern_trainer_free(trainer);
  size_t n = file_load(in_folder(name), whole, sizeof whole);
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    rewrite(name, rows[i].old, rows[i].new);
    test_expect_error(quern_trainer_new(&trainer, config, NULL), QUERN_STATUS_PARSE, rows[i].message, rows[i].new,
                      (int)i);
    assert_non_null(strstr(quern_last_error(), "run/step-00000006"));
    file_store(in_folder(name), whole, n);
  }
  quern_config_free(config);
  folder_clear(folder);
}

/* States that are not finite do not take the place of those that are. */
static void not_finite(void **state) {
  (void)state;
  quern_config *config = tiny_config("run");
  quern_trainer *trainer = trainer_of(config);
  set(config, "keep", "1");
  run_to(trainer, 1);
  EXPECT_OK(quern_trainer_save(trainer, NULL));
  run_to(trainer, 2);
  float *values_of = quern_instance_state(quern_trainer_instance(trainer), 0);
  assert_non_null(values_of);
  const float values[] = {NAN, INFINITY, -INFINITY};
  const float before = values_of[0];
  for (size_t i = 0; i < BASE_COUNT(values); i++) {
    values_of[0] = values[i];
    EXPECT_ERROR(quern_trainer_save(trainer, NULL), STATE, "trainer_save: after step 2 ");
    assert_non_null(strstr(quern_last_error(), " has a value that is not finite: it is not saved"));
    assert_true(has("run/step-00000001") && !has("run/step-00000002"));
  }
  values_of[0] = before;
  EXPECT_OK(quern_trainer_save(trainer, NULL));
  assert_true(has("run/step-00000002"));
  quern_trainer_free(trainer);
  EXPECT_ERROR(quern_config_set(config, "eps", "0"), INVALID, "eps = '0': must be ");
  quern_config_free(config);
  folder_clear(folder);
}

/* ---- long metrics --------------------------------------------------------------------------------------- */

/* An allocator that knows the most bytes that were had at once. */
static struct { size_t live, most; } counted;

static void *counted_alloc(void *self, size_t bytes) {
  void *memory = memory_allocator.alloc(self, bytes);
  if (memory != NULL) counted.live += bytes;
  counted.most = BASE_MAX(counted.most, counted.live);
  return memory;
}
static void counted_free(void *self, void *memory, size_t bytes) {
  if (memory != NULL) counted.live -= bytes;
  memory_allocator.free(self, memory, bytes);
}
static void ignore(void *user, const char *text) { (void)user, (void)text; }

/* Going on with a run of many lines, of which later steps' are removed, and telling of it takes memory of no more
** than some of them. */
static void long_metrics(void **state) {
  (void)state;
  enum { LINES = 150000 };
  const quern_allocator allocator = {counted_alloc, counted_free, memory_allocator.self};
  quern_config *config = tiny_config("run"), *counting;
  char *text;
  EXPECT_OK(quern_config_print(config, true, &text));
  EXPECT_OK(quern_train_config(&counting, &allocator));
  EXPECT_OK(quern_config_text(counting, "copy", text, strlen(text)));
  quern_free_text(text);
  quern_config_free(config);
  EXPECT_OK(quern_train(counting, NULL, NULL));
  size_t usual = counted.most;
  FILE *file = fopen(in_folder("run/metrics.jsonl"), "ab");
  assert_non_null(file);
  for (int i = 0; i < LINES; i++) {
    int step = i % 4 == 3 ? 7 + i : 6;
    assert_true(fprintf(file, "{\"step\":%d,\"loss\":%d,\"norm\":1,\"lr\":0.001,\"ms\":1,\"tok_s\":1}\n", step, i) > 0);
    if (i % 8 == 0) assert_true(fprintf(file, "{\"step\":%d,\"eval_loss\":%d}\n", step, LINES - i) > 0);
  }
  size_t bytes = (size_t)ftell(file);
  assert_int_equal(fclose(file), 0);
  set(counting, "steps", "7");
  EXPECT_OK(quern_train(counting, NULL, NULL));
  quern_config_free(counting);
  struct stat there;
  assert_int_equal(stat(in_folder("run/metrics.jsonl"), &there), 0);
  assert_true((size_t)there.st_size < bytes * 4 / 5 && (size_t)there.st_size > bytes / 2);
  EXPECT_OK(train_report_write(in_folder("run"), &allocator));
  EXPECT_OK(train_summary_print(in_folder("run"), ignore, NULL, &allocator));
  assert_int_equal(counted.live, 0);
  if (counted.most > usual + bytes / 8)
    fail_msg("%zu bytes at once for %zu bytes of lines, %zu without them", counted.most, bytes, usual);
  folder_clear(folder);
}

/* Of many points the first, the last, the best and every spike stay. */
static void thinned(void **state) {
  (void)state;
  enum { LINES = 100000, SPIKE = 43210 };
  struct train_history history;
  assert_int_equal(mkdir(in_folder("run"), 0777), 0);
  FILE *file = fopen(in_folder("run/metrics.jsonl"), "wb");
  assert_non_null(file);
  for (int i = 1; i <= LINES; i++) {
    assert_true(fprintf(file, "{\"step\":%d,\"loss\":%d,\"norm\":%d}\n", i, i == SPIKE ? 999 : i % 7,
                        i == SPIKE + 1 ? -5 : 1) > 0);
    if (i % 5 == 0) assert_true(fprintf(file, "{\"step\":%d,\"eval_loss\":%d}\n", i, i == 500 ? 1 : 2) > 0);
  }
  assert_int_equal(fclose(file), 0);
  EXPECT_OK(train_history_read(&history, "test", in_folder("run"), NULL));
  assert_in_range(history.points.n, TRAIN_POINTS_MOST / 2 - 4, TRAIN_POINTS_MOST);
  assert_in_range(history.marks.n, TRAIN_POINTS_MOST / 2 - 4, TRAIN_POINTS_MOST);
  assert_true(history.points.at[0].step == 1 && history.points.at[history.points.n - 1].step == LINES);
  assert_true(history.points.at[0].loss == 1 && history.points.at[history.points.n - 1].loss == LINES % 7);
  int spikes = 0, dips = 0;
  for (size_t i = 0; i < history.points.n; i++) {
    const struct train_point *point = &history.points.at[i];
    assert_true(i == 0 || point->step > point[-1].step);
    spikes += point->loss == 999 && fabs(point->step - SPIKE) < 64;
    dips += point->norm == -5;
  }
  assert_true(spikes == 1 && dips == 1);
  assert_int_equal(history.evaluations, LINES / 5);
  assert_true(train_best(&history)->step == 500 && train_best(&history)->loss == 1);
  train_history_fini(&history);
  folder_clear(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(one_at_a_time),  TEST(leftovers),        TEST(told_names),   TEST(not_ours),
                                     TEST(linked_metrics), TEST(before_the_first), TEST(never_begun),  TEST(any_paths),
                                     TEST(crafted),        TEST(not_finite),       TEST(long_metrics), TEST(thinned)};
  return cmocka_run_group_tests_name("train/folder", tests, setup_folder, remove_folder);
}
