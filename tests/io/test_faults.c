/* tests/io/test_faults.c -- the n-th call of the system fails, for n = 1, 2, ...: files are whole or not there
** The calls below stand in place of the C library's for the whole program: a linker takes the first it finds.
*/
#define _GNU_SOURCE /* syscall, SYS_* */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "io/folder.h"
#include "quern/quern.h"
#include "unit.h"

/* ---- calls that can fail -------------------------------------------------------------------------------- */

enum call { OPEN, WRITE, FSYNC, RENAME, MKDIR, PREAD, CALLS };

static struct {
  bool on;         /* calls are counted */
  enum call which; /* the kind that fails */
  int left, error; /* the call that many from now fails */
  bool met, half;  /* it did; half: a write does a part before */
} plan;

static bool fails(enum call which) {
  if (!plan.on || which != plan.which || plan.left == 0 || --plan.left > 0) return false;
  plan.met = true;
  errno = plan.error;
  return true;
}

/* The declarations are the system's. */
int open(const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  int mode = (flags & O_CREAT) != 0 ? va_arg(list, int) : 0;
  va_end(list);
  return fails(OPEN) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int in, const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  int mode = (flags & O_CREAT) != 0 ? va_arg(list, int) : 0;
  va_end(list);
  return fails(OPEN) ? -1 : (int)syscall(SYS_openat, in, path, flags, mode);
}

ssize_t write(int fd, const void *bytes, size_t n) {
  bool fail = fails(WRITE);
  if (fail && plan.half && n > 1) {
    plan.left = 1; /* the next one fails */
    plan.half = false;
    return syscall(SYS_write, fd, bytes, n / 2);
  }
  return fail ? -1 : syscall(SYS_write, fd, bytes, n);
}

int fsync(int fd) { return fails(FSYNC) ? -1 : (int)syscall(SYS_fsync, fd); }

int rename(const char *old, const char *new) {
  return fails(RENAME) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, old, AT_FDCWD, new, 0);
}

int renameat(int from, const char *old, int to, const char *new) {
  return fails(RENAME) ? -1 : (int)syscall(SYS_renameat2, from, old, to, new, 0);
}

int mkdirat(int in, const char *path, mode_t mode) {
  return fails(MKDIR) ? -1 : (int)syscall(SYS_mkdirat, in, path, mode);
}

int mkdir(const char *path, mode_t mode) { return fails(MKDIR) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode); }

ssize_t pread(int fd, void *bytes, size_t n, off_t at) {
  return fails(PREAD) ? -1 : syscall(SYS_pread64, fd, bytes, n, at);
}

/* Plans the next failure: of each kind the first, second, ... call, writes also after a part. False when all were had. */
static bool next_fault(int *turn, int *n) {
  if (*n > 0 && !plan.met) {
    ++*turn;
    *n = 0;
  }
  if (*turn >= CALLS + 1) return false;
  plan.which = *turn == CALLS ? WRITE : (enum call) * turn;
  plan.half = *turn == CALLS;
  plan.error = plan.which == WRITE || plan.which == MKDIR ? ENOSPC : EIO;
  plan.left = ++*n;
  plan.met = false;
  return true;
}

/* ---- what is saved -------------------------------------------------------------------------------------- */

static uint64_t values[64];
static const int64_t dims[] = {64}, few[] = {3};

static void make(quern_safetensor tensors[3], uint64_t seed) {
  for (size_t i = 0; i < 64; i++) values[i] = seed * 1000 + i;
  tensors[0] = (quern_safetensor){.name = "a", .dtype = QUERN_DTYPE_U64, .rank = 1, .dims = dims, .data = values};
  tensors[1] = (quern_safetensor){.name = "b", .dtype = QUERN_DTYPE_U8, .rank = 1, .dims = few, .data = values};
  tensors[2] = (quern_safetensor){.name = "c", .dtype = QUERN_DTYPE_U64, .data = values + 1};
}

static quern_status save(uint64_t step) {
  quern_safetensor tensors[3];
  quern_checkpoint_contents contents = QUERN_INIT(quern_checkpoint_contents);
  make(tensors, step);
  contents.step = step;
  contents.n_tensors = 3;
  contents.tensors = tensors;
  contents.keep = 1;
  return quern_checkpoint_save(folder, &contents);
}

static void expect_values(const quern_safetensors *file, uint64_t seed) {
  quern_safetensor tensor;
  EXPECT_OK(quern_safetensors_find(file, "a", &tensor));
  const uint64_t *got = tensor.data;
  for (size_t i = 0; i < 64; i++) assert_true(got[i] == seed * 1000 + i);
}

static void expect_step(uint64_t step) {
  quern_checkpoint *checkpoint;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  EXPECT_OK(quern_checkpoint_find(&checkpoint, folder, NULL));
  assert_non_null(checkpoint);
  EXPECT_OK(quern_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.step, step);
  assert_int_equal(info.skipped, 0);
  expect_values(quern_checkpoint_tensors(checkpoint), step);
  quern_checkpoint_close(checkpoint);
}

/* A save that fails leaves the older checkpoint and nothing else; what fails after it is safe is no failure. */
static void saving(void **state) {
  (void)state;
  int turn = 0, n = 0, failed[CALLS + 1] = {0};
  while (next_fault(&turn, &n)) {
    folder_clear(folder);
    EXPECT_OK(save(1));
    plan.on = true;
    quern_status status = save(2);
    plan.on = false;
    failed[turn] += status != QUERN_STATUS_OK;
    assert_true(plan.met || status == QUERN_STATUS_OK);
    if (status == QUERN_STATUS_OK) {
      expect_step(2);
      continue;
    }
    EXPECT_ERROR(status, IO, plan.error == EIO ? "Input/output error" : "No space left on device");
    assert_int_equal(folder_count(folder), 1);
    expect_step(1);
  }
  assert_true(failed[OPEN] >= 3 && failed[WRITE] >= 4 && failed[FSYNC] >= 4 && failed[RENAME] >= 1 &&
              failed[MKDIR] >= 1);
  assert_true(failed[CALLS] >= 4);
  folder_clear(folder);
}

/* Files of tensors: the old ones, or the new ones. */
static void writing(void **state) {
  (void)state;
  quern_safetensors_options options = QUERN_INIT(quern_safetensors_options);
  options.shard_bytes = 8;
  for (int sharded = 0; sharded < 2; sharded++) {
    const char *name = sharded ? "model.safetensors.index.json" : "model.safetensors";
    int turn = 0, n = 0, failed = 0;
    while (next_fault(&turn, &n)) {
      quern_safetensor tensors[3];
      quern_safetensors *file;
      folder_clear(folder);
      make(tensors, 1);
      EXPECT_OK(quern_safetensors_write(in_folder(name), 3, tensors, sharded ? &options : NULL));
      int files = folder_count(folder);
      make(tensors, 2);
      plan.on = true;
      quern_status status = quern_safetensors_write(in_folder(name), 3, tensors, sharded ? &options : NULL);
      plan.on = false;
      failed += status != QUERN_STATUS_OK;
      assert_true(plan.met || status == QUERN_STATUS_OK);
      assert_int_equal(folder_count(folder), files);
      EXPECT_OK(quern_safetensors_open(&file, in_folder(name), NULL));
      /* Renames and what comes after them can fail with some files renamed: none of them is half. */
      if (status == QUERN_STATUS_OK || (plan.which != RENAME && plan.which != FSYNC))
        expect_values(file, status == QUERN_STATUS_OK ? 2 : 1);
      quern_safetensors_close(file);
    }
    assert_true(failed >= 5);
  }
  folder_clear(folder);
}

/* A disk that cannot be read: an error for each call, or the older checkpoint. */
static void reading(void **state) {
  (void)state;
  int turn = 0, n = 0, failed = 0;
  EXPECT_OK(save(1));
  while (next_fault(&turn, &n)) {
    quern_checkpoint *checkpoint;
    char path[128];
    uint64_t got[64];
    snprintf(path, sizeof path, "%s/step-00000001", folder);
    plan.on = true;
    quern_status status = quern_checkpoint_open(&checkpoint, path, NULL);
    if (status == QUERN_STATUS_OK) status = quern_checkpoint_verify(checkpoint);
    if (status == QUERN_STATUS_OK) status = quern_checkpoint_load(checkpoint, "a", QUERN_DTYPE_U64, 1, dims, got);
    plan.on = false;
    failed += status != QUERN_STATUS_OK;
    assert_true((status != QUERN_STATUS_OK) == plan.met);
    if (plan.met) EXPECT_ERROR(status, IO, "Input/output error");
    quern_checkpoint_close(checkpoint);
  }
  assert_true(failed >= 6);
  folder_clear(folder);
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
  const struct CMUnitTest tests[] = {cmocka_unit_test(saving), cmocka_unit_test(writing), cmocka_unit_test(reading)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
