/* tests/base/test_descriptor.c -- descriptors above those of standard streams that the host closed */
#include "base/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GOOD = 7 };

/* In a process without the stream of that number: a file gets its descriptor. */
static int without(int closed, const char *path) {
  close(closed);
  int low = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), high = base_fd_high(low);
  if (low != closed || high <= STDERR_FILENO || fcntl(low, F_GETFD) >= 0 || write(high, "ab", 2) != 2) return 1;
  if ((fcntl(high, F_GETFD) & FD_CLOEXEC) == 0 || base_fd_high(high) != high || close(high) != 0) return 2;
  FILE *file = base_fopen(path, "ab");
  if (file == NULL || fileno(file) <= STDERR_FILENO || fcntl(closed, F_GETFD) >= 0) return 3;
  if (dprintf(closed, "lost") >= 0 || fputs("cd", file) < 0 || fclose(file) != 0) return 4;
  file = base_fopen(path, "w");
  if (file == NULL || fileno(file) <= STDERR_FILENO || fputs("e", file) < 0 || fclose(file) != 0) return 5;
  errno = 0;
  return base_fd_high(-1) == -1 && base_fopen("/none/none", "w") == NULL && errno == ENOENT ? GOOD : 6;
}

static void test_closed(void **state) {
  (void)state;
  char path[] = "/tmp/quern_descriptor_XXXXXX", text[8] = "";
  int fd = mkstemp(path), status;
  assert_true(fd > STDERR_FILENO);
  for (int closed = STDIN_FILENO; closed <= STDERR_FILENO; closed++) {
    pid_t pid = fork();
    if (pid == 0) _exit(without(closed, path));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), GOOD);
    assert_int_equal(pread(fd, text, sizeof text, 0), 1);
    assert_int_equal(text[0], 'e');
  }
  close(fd);
  unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_closed)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
