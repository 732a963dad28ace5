/* runtime/cpu/file.c -- files and private folders
** tests: tests/runtime/test_cache.c
*/
#define _XOPEN_SOURCE 700 /* realpath */
#include "runtime/cpu/cpu_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

bool rt_path(char *path, const char *folder, const char *name) {
  int n = snprintf(path, RT_PATH_BYTES, "%s/%s", folder, name);
  return n > 0 && n < RT_PATH_BYTES;
}

bool rt_path_real(char *path, const char *name) {
  _Static_assert(PATH_MAX <= RT_PATH_BYTES, "realpath fits");
  return realpath(name, path) != NULL;
}

quern_status rt_folder_make(char *path, const char *in) {
  const char *tmp = getenv("TMPDIR"), *name = *in ? "tmp-XXXXXX" : "quern-XXXXXX";
  if (*in == 0) in = tmp && *tmp ? tmp : "/tmp";
  QUERN_CHECK(rt_path(path, in, name), IO, "the name of the folder for temporary files is too long: %s", in);
  QUERN_CHECK(mkdtemp(path), IO, "cannot make a folder for temporary files in %s: %s", in, strerror(errno));
  return QUERN_STATUS_OK;
}

void rt_folder_remove(const char *path) {
  DIR *folder = opendir(path);
  struct dirent *entry;
  while (folder && (entry = readdir(folder))) unlinkat(dirfd(folder), entry->d_name, 0); /* fails for . and .. */
  if (folder) closedir(folder);
  rmdir(path);
}

quern_status rt_file_write(const char *path, const void *bytes, size_t n) {
  int fd = base_fd_high(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700));
  QUERN_CHECK(fd >= 0, IO, "cannot write %s: %s", path, strerror(errno));
  size_t done = 0;
  while (done < n) {
    ssize_t put = write(fd, (const char *)bytes + done, n - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    done += (size_t)put;
  }
  int error = errno;
  bool closed = close(fd) == 0;
  if (done == n && !closed) error = errno;
  QUERN_CHECK(done == n && closed, IO, "cannot write %s: %s", path, strerror(error));
  return QUERN_STATUS_OK;
}

quern_status rt_file_read(struct base_heap *heap, int fd, const char *path, struct rt_bytes *bytes) {
  struct stat info;
  *bytes = (struct rt_bytes){0};
  QUERN_CHECK(fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= 0, IO, "%s is not a file", path);
  bytes->room = (size_t)info.st_size;
  bytes->at = base_alloc(heap, bytes->room);
  if (!bytes->at) return QUERN_STATUS_MEMORY;
  while (bytes->n < bytes->room) {
    ssize_t got = read(fd, (char *)bytes->at + bytes->n, bytes->room - bytes->n);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    bytes->n += (size_t)got;
  }
  bool whole = bytes->n == bytes->room;
  if (!whole) rt_bytes_free(heap, bytes);
  QUERN_CHECK(whole, IO, "cannot read %s", path);
  return QUERN_STATUS_OK;
}

void rt_bytes_free(struct base_heap *heap, struct rt_bytes *bytes) {
  base_free(heap, bytes->at, bytes->room);
  *bytes = (struct rt_bytes){0};
}
