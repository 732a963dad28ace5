/* tests/base/test_temporary.c -- temporary files of the living and the killed; locks */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/base.h"
#include "io/folder.h"

static int at; /* the folder's descriptor */

static void touch(const char *name) { file_store(in_folder(name), "old", 3); }

static bool is_there(const char *name) {
  struct stat there;
  return fstatat(at, name, &there, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Opens a temporary file of a, which must have that name and be empty. */
static int expect_open(const char *expected) {
  char name[64];
  struct stat there;
  int fd = base_temporary_open(at, "a", name, sizeof name);
  assert_true(fd >= 0);
  assert_string_equal(name, expected);
  assert_int_equal(fstat(fd, &there), 0);
  assert_int_equal(there.st_size, 0);
  return fd;
}

/* What a killed writer left does not stand in the way, and is gone. */
static void of_the_killed(void **state) {
  (void)state;
  touch("a.0.tmp");
  int fd = expect_open("a.0.tmp");
  assert_int_equal(unlinkat(at, "a.0.tmp", 0), 0);
  close(fd);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    char name[64];
    bool made = base_temporary_open(at, "a", name, sizeof name) >= 0;
    (void)kill(made ? getpid() : 0, SIGKILL);
    _exit(1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && is_there("a.0.tmp"));
  assert_true(base_temporary_remove(at, "a.0.tmp"));
  assert_int_equal(folder_count(folder), 0);
}

/* A living writer's stays, as long as its descriptor is open. */
static void of_the_living(void **state) {
  (void)state;
  int first = expect_open("a.0.tmp"), second = expect_open("a.1.tmp");
  assert_false(base_temporary_remove(at, "a.0.tmp"));
  assert_int_equal(renameat(at, "a.0.tmp", at, "a"), 0);
  close(first);
  assert_false(base_temporary_remove(at, "a.0.tmp"));
  first = expect_open("a.0.tmp");
  close(first);
  close(second);
  assert_true(base_temporary_remove(at, "a.0.tmp") && base_temporary_remove(at, "a.1.tmp"));
  assert_int_equal(folder_count(folder), 1);
  folder_clear(folder);
}

/* Links, files with other names, folders and pipes are left alone. */
static void of_others(void **state) {
  (void)state;
  touch("precious");
  assert_int_equal(symlinkat("precious", at, "a.0.tmp"), 0);
  assert_int_equal(linkat(at, "precious", at, "a.1.tmp", 0), 0);
  assert_int_equal(mkdirat(at, "a.2.tmp", 0777), 0);
  assert_int_equal(mkfifoat(at, "a.3.tmp", 0666), 0);
  close(expect_open("a.4.tmp"));
  for (int i = 0; i < 4; i++) {
    char name[64];
    snprintf(name, sizeof name, "a.%d.tmp", i);
    assert_false(base_temporary_remove(at, name));
    assert_true(is_there(name));
  }
  unsigned char text[8];
  assert_int_equal(file_load(in_folder("precious"), text, sizeof text), 3);
  folder_clear(folder);
}

static void names(void **state) {
  (void)state;
  static const struct {
    const char *name;
    bool is;
  } rows[] = {{"a.0.tmp", true},  {"a.12.tmp", true}, {"a..tmp", false},    {"a.x.tmp", false}, {"a.0.tmp.1", false},
              {"b.0.tmp", false}, {"a", false},       {"a.b.0.tmp", false}, {"a.0", false},     {"aa.0.tmp", false}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) assert_int_equal(base_temporary_is(rows[i].name, "a"), rows[i].is);
  char name[8];
  assert_int_equal(base_temporary_open(at, "long-name", name, sizeof name), -1);
  assert_int_equal(errno, ENAMETOOLONG);
  assert_int_equal(base_temporary_open(at, "missing/a", (char[64]){0}, 64), -1);
  assert_int_equal(errno, ENOENT);
}

/* One has the lock; who asks for it learns who that is; a killed process has it no more. */
static void locks(void **state) {
  (void)state;
  long holder;
  int fd = base_lock_take(at, ".lock", &holder), ready[2], status;
  assert_true(fd >= 0);
  assert_int_equal(base_lock_take(at, ".lock", &holder), -1);
  assert_int_equal(errno, EWOULDBLOCK);
  assert_int_equal(holder, getpid());
  base_lock_release(at, ".lock", fd);
  assert_false(is_there(".lock"));
  assert_int_equal(pipe(ready), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    bool taken = base_lock_take(at, ".lock", &holder) >= 0;
    (void)!write(ready[1], taken ? "y" : "n", 1);
    for (;;) pause();
  }
  char answer = 0;
  assert_int_equal(read(ready[0], &answer, 1), 1);
  assert_int_equal(answer, 'y');
  assert_int_equal(base_lock_take(at, ".lock", &holder), -1);
  assert_int_equal(holder, child);
  assert_int_equal(kill(child, SIGKILL), 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(is_there(".lock"));
  fd = base_lock_take(at, ".lock", &holder);
  assert_true(fd >= 0);
  base_lock_release(at, ".lock", fd);
  close(ready[0]);
  close(ready[1]);
  touch("precious");
  assert_int_equal(symlinkat("precious", at, ".lock"), 0);
  assert_int_equal(base_lock_take(at, ".lock", &holder), -1);
  assert_int_equal(errno, ELOOP);
  folder_clear(folder);
}

/* A backup by hard links gives a lock a second name, and is in nobody's way; what is no file is said to be none. */
static void linked_locks(void **state) {
  (void)state;
  long holder;
  int fd = base_lock_take(at, ".lock", &holder);
  assert_true(fd >= 0);
  assert_int_equal(linkat(at, ".lock", at, "backup", 0), 0);
  base_lock_release(at, ".lock", fd);
  assert_false(is_there(".lock"));
  assert_int_equal(linkat(at, "backup", at, ".lock", 0), 0); /* as a killed process would leave it */
  fd = base_lock_take(at, ".lock", &holder);
  assert_true(fd >= 0);
  base_lock_release(at, ".lock", fd);
  assert_false(is_there(".lock"));
  assert_int_equal(mkfifoat(at, ".lock", 0600), 0);
  assert_int_equal(base_lock_take(at, ".lock", &holder), -1);
  assert_int_equal(errno, EINVAL);
  folder_clear(folder);
}

static int begin(void **state) {
  (void)state;
  if (!folder_make()) return -1;
  at = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return at >= 0 ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  close(at);
  folder_clear(folder);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(of_the_killed), cmocka_unit_test(of_the_living),
                                     cmocka_unit_test(of_others),     cmocka_unit_test(names),
                                     cmocka_unit_test(locks),         cmocka_unit_test(linked_locks)};
  return cmocka_run_group_tests_name("base/temporary", tests, begin, end);
}
