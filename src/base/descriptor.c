/* base/descriptor.c -- descriptors of files that are written, above those of the standard streams
** A host that closed standard output or error prints into whatever file is opened next: its descriptor is 1 or 2.
** tests: tests/base/test_descriptor.c, tests/cli/test_streams.c
*/
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int base_fd_high(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
  close(fd);
  errno = error;
  return high;
}

/* With "w", fdopen does not truncate: fopen has done it. */
FILE *base_fopen(const char *path, const char *mode) {
  FILE *file = fopen(path, mode);
  if (file == NULL || fileno(file) > STDERR_FILENO) return file;
  int high = fcntl(fileno(file), F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
  (void)fclose(file);
  file = high >= 0 ? fdopen(high, mode) : NULL;
  if (file == NULL && high >= 0) {
    error = errno;
    close(high);
  }
  if (file == NULL) errno = error;
  return file;
}
