/* io/mapped_file.c -- files read where they lie
** keeps: the descriptor stays open, so that a file that became shorter is noticed before its bytes are read
** tests: tests/io/test_tokens.c, tests/io/test_data.c
*/
#define _DEFAULT_SOURCE /* madvise */
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

quern_status io_map_open(struct io_map *map, struct base_heap *heap, const char *path) {
  struct stat there;
  *map = (struct io_map){.fd = -1};
  size_t length = strlen(path) + 1;
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  QUERN_CHECK(fd >= 0, IO, "%s: cannot be opened: %s", path, strerror(errno));
  quern_status status = QUERN_STATUS_OK;
  void *bytes = NULL;
  if (fstat(fd, &there) != 0 || !S_ISREG(there.st_mode)) {
    status = base_error(QUERN_STATUS_IO, "%s: is no regular file", path);
  } else if (there.st_size > 0) {
    bytes = mmap(NULL, (size_t)there.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) status = base_error(QUERN_STATUS_IO, "%s: cannot be mapped: %s", path, strerror(errno));
  }
  if (status == QUERN_STATUS_OK) {
    *map = (struct io_map){bytes != NULL ? bytes : "", (size_t)there.st_size, fd, base_alloc(heap, length)};
    if (map->path != NULL) {
      memcpy(map->path, path, length);
      return QUERN_STATUS_OK;
    }
    status = QUERN_STATUS_MEMORY;
    if (map->n > 0) munmap(bytes, map->n);
    *map = (struct io_map){.fd = -1};
  }
  close(fd);
  return status;
}

quern_status io_map_check(const struct io_map *map) {
  struct stat there;
  QUERN_CHECK(fstat(map->fd, &there) == 0 && (uint64_t)there.st_size >= map->n, IO,
              "%s: has become shorter than the %zu bytes it had", map->path, map->n);
  return QUERN_STATUS_OK;
}

quern_status io_map_read(const struct io_map *map, size_t first, size_t n, void *bytes) {
  unsigned char *to = bytes;
  QUERN_TRY(io_map_check(map));
  while (n > 0) {
    ssize_t got = pread(map->fd, to, BASE_MIN(n, (size_t)1 << 30), (off_t)first);
    if (got < 0 && errno == EINTR) continue;
    QUERN_CHECK(got >= 0, IO, "%s: cannot be read: %s", map->path, strerror(errno));
    QUERN_CHECK(got > 0, IO, "%s: has become shorter than the %zu bytes it had", map->path, map->n);
    to += got;
    first += (size_t)got;
    n -= (size_t)got;
  }
  return QUERN_STATUS_OK;
}

void io_map_release(const struct io_map *map) {
  if (map->n > 0) (void)madvise((void *)(uintptr_t)map->bytes, map->n, MADV_DONTNEED);
}

void io_map_close(struct io_map *map, struct base_heap *heap) {
  if (map->path == NULL) return;
  if (map->n > 0) munmap((void *)(uintptr_t)map->bytes, map->n);
  close(map->fd);
  base_free(heap, map->path, strlen(map->path) + 1);
  *map = (struct io_map){.fd = -1};
}
