/* tests/io/test_checkpoint_kill.c -- kill -9 at any moment of saving: the newest whole checkpoint is found, bit for bit
** A child saves one state after another, each step twice, and reports the last that was saved; it is killed after a random time. What is
** found then is that one, or the one on its way, and nothing is reported to be damaged; the next child goes on from there.
*/
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "io/folder.h"
#include "quern/quern.h"
#include "unit.h"

enum { KILLS = 30, N = 1 << 16, PARTS = 3, KEEP = 2 };

static _Atomic uint64_t *done; /* the last state that was saved, in memory that survives the child */
static uint32_t data[PARTS][N];
static const int64_t dims[] = {N};
static const char *const names[PARTS] = {"weight", "optim.m", "optim.v"};

/* State s is step s / 2, for the first or the second time. */
static void fill(uint64_t s) {
  for (uint32_t k = 0; k < PARTS; k++)
    for (uint32_t i = 0; i < N; i++) data[k][i] = (uint32_t)s * 2654435761u + k * 40503u + i;
}

static quern_status save(uint64_t s) {
  quern_safetensor tensors[PARTS];
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  fill(s);
  for (int k = 0; k < PARTS; k++)
    tensors[k] =
        (quern_safetensor){.name = names[k], .dtype = QUERN_DTYPE_U32, .rank = 1, .dims = dims, .data = data[k]};
  contents.step = s / 2;
  contents.cursor = s;
  contents.n_tensors = PARTS;
  contents.tensors = tensors;
  contents.keep = KEEP;
  return quern_checkpoint_save(folder, &contents);
}

static _Noreturn void child(uint64_t s) {
  for (;; s++) {
    if (save(s) != QUERN_STATUS_OK) {
      fprintf(stderr, "state %llu: %s\n", (unsigned long long)s, quern_last_error());
      _exit(1);
    }
    atomic_store(done, s);
  }
}

/* The state that is found, checked bit for bit. */
static uint64_t found(void) {
  static uint32_t got[N];
  quern_checkpoint *checkpoint;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, folder, NULL));
  if (checkpoint == NULL) return 0;
  EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.skipped, 0);
  assert_int_equal(info.step, info.cursor / 2);
  fill(info.cursor);
  for (int k = 0; k < PARTS; k++) {
    EXPECT_OK(quern_checkpoint_load(checkpoint, names[k], QUERN_DTYPE_U32, 1, dims, got));
    assert_memory_equal(got, data[k], sizeof got);
  }
  quern_checkpoint_close(checkpoint);
  return info.cursor;
}

/* Names that begin with a dot: what a kill left. All others are whole checkpoints, older ones too. */
static int hidden(void) {
  int n = 0;
  DIR *dir = opendir(folder);
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    quern_checkpoint *checkpoint;
    n += strncmp(entry->d_name, ".step-", 6) == 0;
    if (entry->d_name[0] == '.') continue;
    EXPECT_OK(quern_checkpoint_open(&checkpoint, in_folder(entry->d_name), NULL));
    EXPECT_OK(quern_checkpoint_verify(checkpoint));
    quern_checkpoint_close(checkpoint);
  }
  closedir(dir);
  return n;
}

static void killed(void **state) {
  (void)state;
  uint64_t random = 1, last = 0;
  int amid = 0;
  done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(done != MAP_FAILED);
  for (int i = 0; i < KILLS; i++) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) child(last + 1);
    random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    nanosleep(&(struct timespec){.tv_nsec = (long)(random >> 33) % 40000000}, NULL);
    int status;
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    uint64_t told = atomic_load(done), now = found();
    assert_true(now == told || now == told + 1);
    amid += hidden() > 0;
    last = now;
    atomic_store(done, last);
  }
  print_message("%d of %d kills were amid a save; %llu states were saved\n", amid, KILLS, (unsigned long long)last);
  assert_true(amid >= 1 && last >= 3);
  EXPECT_OK(save(last + 1));
  assert_int_equal(found(), last + 1);
  assert_int_equal(hidden(), 0);
  assert_in_range(folder_count(folder), 1, KEEP);
  munmap((void *)done, sizeof *done);
}

static int make_folder(void **state) {
  (void)state;
  return folder_make() ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  folder_clear(folder);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(killed)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
