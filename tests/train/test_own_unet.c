/* tests/train/test_own_unet.c -- examples/train_unet.c: killed with SIGKILL while it trains and started again with
** another number of threads, it ends with the bits of the run that was not killed; gradient checkpointing and memory
** limits change no bit
*/
#define _DEFAULT_SOURCE
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

int unet_main(int argc, char **argv);
#define main unet_main
#include "../../examples/train_unet.c"
#undef main

#include "train/train_test.h"

enum { STEPS = 24, KILLS = 3, LINES = 120 };

/* The example in a process of its own. */
static pid_t begin_unet(const char *out, const char *threads) {
  static char words[5][600];
  snprintf(words[0], sizeof words[0], "train_unet");
  snprintf(words[1], sizeof words[1], "out=%s", in_folder(out));
  snprintf(words[2], sizeof words[2], "steps=%d", STEPS);
  snprintf(words[3], sizeof words[3], "save_every=2");
  snprintf(words[4], sizeof words[4], "threads=%s", threads);
  char *arguments[] = {words[0], words[1], words[2], words[3], words[4], NULL};
  (void)fflush(stdout);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(unet_main(5, arguments));
  return child;
}

/* The step of the newest checkpoint; 0: there is none. */
static int64_t newest_step(const char *out) {
  quern_checkpoint *checkpoint;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, in_folder(out), NULL));
  if (checkpoint != NULL) EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
  quern_checkpoint_close(checkpoint);
  return (int64_t)info.step;
}

static void expect_done(pid_t child) {
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("a run ended with status %d", status);
}

/* Kills it some moments after a checkpoint of a later step; false: it ended before. */
static bool kill_after(pid_t child, const char *out, int64_t step, int64_t nanoseconds) {
  const struct timespec moment = {0, 2000000}, more = {0, (long)nanoseconds};
  int status;
  while (newest_step(out) <= step) {
    (void)nanosleep(&moment, NULL);
    if (waitpid(child, &status, WNOHANG) == child) return false;
  }
  (void)nanosleep(&more, NULL);
  (void)kill(child, SIGKILL);
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
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

static void killed(void **state) {
  (void)state;
  int kills = 0;
  expect_done(begin_unet("whole", "2"));
  for (int i = 0; i < KILLS; i++) {
    int64_t before = i == 0 ? 0 : newest_step("killed");
    kills += kill_after(begin_unet("killed", i % 2 == 0 ? "1" : "2"), "killed", before, 17000000 * (i + 1));
  }
  assert_true(kills > 0 && newest_step("killed") > 0);
  expect_done(begin_unet("killed", "2"));
  assert_true(last_digest("killed") == last_digest("whole"));
}

/* ---- memory --------------------------------------------------------------------------------------------- */

static quern_source *unet_source(void) {
  static const quern_field fields[] = {{"image", QUERN_DTYPE_F32, 3, {1, SIDE, SIDE}, 0},
                                       {"mask", QUERN_DTYPE_F32, 3, {1, SIDE, SIDE}, 0}};
  quern_source *data;
  EXPECT_OK(quern_source_call(&data, SAMPLES, 2, fields, make_sample, NULL, &memory_allocator));
  return data;
}

/* The U-Net with what is marked between its levels. */
static quern_tensor *marked_loss(quern_train_graph *graph, void *user) {
  quern_scope *scope = quern_train_graph_scope(graph);
  quern_tensor *x = quern_train_graph_input(graph, "image"), *mask = quern_train_graph_input(graph, "mask");
  (void)user;
  for (int i = 0; i < 4; i++) x = quern_checkpoint_activation(block(quern_scope_at(scope, "block", i), x, WIDTH));
  x = quern_nn_conv(quern_scope_in(scope, "head"), x, 1, QUERN_LIST(1, 1), NULL);
  return quern_bce_loss(x, mask, QUERN_REDUCTION_MEAN);
}

/* What a step holds for the way back, and the states after two of them. */
struct outcome {
  int64_t held, arena;
  uint64_t digest;
};

static struct outcome run_with(quern_train_loss *loss, const char *accum, const char *checkpoint) {
  quern_source *data = unet_source();
  const quern_train_task task = {.size = sizeof task, .name = "unet", .loss = loss, .data = data};
  const char *const settings[][2] = {
      {"out", ""},      {"batch", "4"},   {"steps", "2"},   {"accum", accum}, {"checkpoint", checkpoint},
      {"threads", "2"}, {"workers", "0"}, {"prefetch", "0"}};
  quern_config *config;
  quern_trainer *trainer;
  EXPECT_OK(quern_train_config(&config, &memory_allocator));
  for (size_t i = 0; i < BASE_COUNT(settings); i++) set(config, settings[i][0], settings[i][1]);
  EXPECT_OK(quern_trainer_new_with(&trainer, &task, config, NULL));
  run_to(trainer, 2);
  const quern_memory_plan *memory = quern_trainer_info(trainer)->memory;
  struct outcome outcome = {memory->held, memory->arena, digest_of(trainer)};
  quern_trainer_free(trainer);
  quern_config_free(config);
  quern_source_free(data);
  return outcome;
}

/* Less is held, and in a network that marks nothing all bits stay: its kernels are the same. (A bound of 0.8 before the input
** gradients of convolutions needed no columns, which were a third of what is held without checkpoints.) */
static void checkpoint_holds_less(void **state) {
  (void)state;
  static const char *const parts[] = {"1", "2"}, *const words[] = {"sqrt", "every:12", "block"};
  for (size_t k = 0; k < BASE_COUNT(parts); k++) {
    struct outcome none = run_with(loss_of, parts[k], "none");
    for (size_t i = 0; i < BASE_COUNT(words); i++) {
      struct outcome other = run_with(loss_of, parts[k], words[i]);
      print_message("accum %s: %s holds %lld of %lld bytes, arena %lld of %lld\n", parts[k], words[i],
                    (long long)other.held, (long long)none.held, (long long)other.arena, (long long)none.arena);
      assert_true(other.digest == none.digest);
      assert_true(other.held < none.held * 85 / 100 && other.arena < none.arena);
    }
    struct outcome automatic = run_with(loss_of, parts[k], "auto");
    assert_true(automatic.digest == none.digest && automatic.held == none.held);
  }
  struct outcome none = run_with(marked_loss, "1", "none"), block = run_with(marked_loss, "1", "block");
  assert_true(none.digest == block.digest && block.held < none.held * 6 / 10);
}

/* In the least memory that a run says it needs, the bits are those without a limit. */
static void within_a_limit(void **state) {
  (void)state;
  quern_source *data = unet_source();
  const quern_train_task task = {.size = sizeof task, .name = "unet", .loss = loss_of, .data = data};
  const char *const settings[][2] = {{"out", ""},      {"batch", "8"},   {"steps", "2"},
                                     {"threads", "1"}, {"workers", "0"}, {"prefetch", "0"}};
  uint64_t digests[2];
  quern_config *config;
  quern_trainer *trainer;
  EXPECT_OK(quern_train_config(&config, &memory_allocator));
  for (size_t i = 0; i < BASE_COUNT(settings); i++) set(config, settings[i][0], settings[i][1]);
  for (int limited = 0; limited < 2; limited++) {
    if (limited) {
      set(config, "memory", "1MiB");
      EXPECT_ERROR(quern_trainer_new_with(&trainer, &task, config, NULL), MEMORY, "memory = 1.0 MiB: the run needs");
      const char *bytes = strstr(quern_last_error(), " bytes)"), *open = strchr(quern_last_error(), '(');
      assert_true(bytes != NULL && open != NULL);
      char least[32];
      long long told = strtoll(open + 1, NULL, 10); /* of a process that a sanitizer lets grow between two attempts */
      snprintf(least, sizeof least, "%lld", told + told / 16);
      set(config, "memory", least);
    }
    EXPECT_OK(quern_trainer_new_with(&trainer, &task, config, NULL));
    run_to(trainer, 2);
    digests[limited] = digest_of(trainer);
    quern_trainer_free(trainer);
  }
  assert_true(digests[0] == digests[1]);
  quern_config_free(config);
  quern_source_free(data);
}

/* What the manual says of the program. */
static void is_short(void **state) {
  (void)state;
  FILE *file = fopen("examples/train_unet.c", "rb");
  int lines = 0;
  if (file == NULL) skip();
  for (int c; (c = fgetc(file)) != EOF;) lines += c == '\n';
  (void)fclose(file);
  assert_in_range(lines, 1, LINES - 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(killed), TEST(checkpoint_holds_less), TEST(within_a_limit), TEST(is_short)};
  return cmocka_run_group_tests_name("train/own_unet", tests, setup_folder, remove_folder);
}
