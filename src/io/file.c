/* io/file.c -- files: read whole, written whole or not at all
** tests: tests/io/test_npy.c, tests/io/test_safetensors.c, tests/engine/test_save.c
*/
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_all(int fd, const char *at, size_t n) {
  while (n > 0) {
    ssize_t done = write(fd, at, BASE_MIN(n, (size_t)1 << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    n -= (size_t)done;
  }
  return true;
}

quern_status io_folder_sync(int folder, const char *path) {
  bool done = fsync(folder) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS;
  QUERN_CHECK(done, IO, "%s: cannot be synchronized: %s", path, strerror(errno));
  return QUERN_STATUS_OK;
}

quern_status io_file_sync_folder(const char *path) {
  char folder[IO_PATH_MOST];
  const char *slash = strrchr(path, '/');
  snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1, slash == NULL ? "." : path);
  int fd = open(folder, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return QUERN_STATUS_OK; /* it may be written to, but not read */
  quern_status status = io_folder_sync(fd, folder);
  close(fd);
  return status;
}

quern_status io_out_add(struct io_out *out, const void *bytes, size_t n) {
  QUERN_CHECK(write_all(out->fd, bytes, n), IO, "%s: cannot be written: %s", out->path, strerror(errno));
  return QUERN_STATUS_OK;
}

/* ---- written whole -------------------------------------------------------------------------------------- */

/* Fills a file that is open and synchronizes it. */
static quern_status fill_file(int fd, const char *path, io_fill *fill, void *user) {
  struct io_out out = {path, fd};
  QUERN_TRY(fill(&out, user));
  QUERN_CHECK(fsync(fd) == 0, IO, "%s: cannot be synchronized: %s", path, strerror(errno));
  return QUERN_STATUS_OK;
}

static quern_status begin(struct io_pending *file, const char *what, const char *path, io_fill *fill, void *user) {
  struct stat there; /* a device, a pipe or a folder is not replaced */
  size_t n = strlen(path);
  file->fd = -1;
  QUERN_CHECK(stat(path, &there) != 0 || S_ISREG(there.st_mode), IO, "%s: is no regular file", path);
  QUERN_CHECK(n < sizeof file->path, IO, "%s: the path has %zu bytes, which is too long", what, n);
  memcpy(file->path, path, n + 1);
  file->fd = base_temporary_open(AT_FDCWD, path, file->temporary, sizeof file->temporary);
  QUERN_CHECK(file->fd >= 0 || errno != ENAMETOOLONG, IO, "%s: the path has %zu bytes, which is too long", what, n);
  QUERN_CHECK(file->fd >= 0, IO, "%s: cannot be made: %s", path, strerror(errno));
  quern_status status = fill_file(file->fd, path, fill, user);
  if (status == QUERN_STATUS_OK) return status;
  (void)!io_file_end(file, false);
  return status;
}

struct pieces {
  size_t n;
  const struct io_piece *at;
};

/* An io_fill. */
static quern_status fill_pieces(struct io_out *out, void *user) {
  const struct pieces *pieces = user;
  for (size_t i = 0; i < pieces->n; i++) QUERN_TRY(io_out_add(out, pieces->at[i].at, pieces->at[i].n));
  return QUERN_STATUS_OK;
}

quern_status io_fill_piece(struct io_out *out, void *user) { return fill_pieces(out, &(struct pieces){1, user}); }

quern_status io_file_begin(struct io_pending *file, const char *what, const char *path, size_t n,
                           const struct io_piece *pieces) {
  return begin(file, what, path, fill_pieces, &(struct pieces){n, pieces});
}

void io_file_unlock(struct io_pending *file) {
  if (file->fd >= 0) close(file->fd);
  file->fd = -1;
}

quern_status io_file_end(struct io_pending *file, bool keep) {
  bool renamed = keep && rename(file->temporary, file->path) == 0;
  int why = errno;
  if (!renamed) unlink(file->temporary);
  io_file_unlock(file);
  QUERN_CHECK(renamed || !keep, IO, "%s: cannot be renamed: %s", file->path, strerror(why));
  return QUERN_STATUS_OK;
}

quern_status io_file_fill(const char *what, const char *path, io_fill *fill, void *user) {
  struct io_pending file;
  QUERN_TRY(begin(&file, what, path, fill, user));
  QUERN_TRY(io_file_end(&file, true));
  return io_file_sync_folder(path);
}

quern_status io_file_write(const char *what, const char *path, size_t n, const struct io_piece *pieces) {
  return io_file_fill(what, path, fill_pieces, &(struct pieces){n, pieces});
}

quern_status io_file_make(int folder, const char *name, const char *path, io_fill *fill, void *user) {
  int fd = base_fd_high(openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  QUERN_CHECK(fd >= 0, IO, "%s: cannot be made: %s", path, strerror(errno));
  quern_status status = fill_file(fd, path, fill, user);
  if (close(fd) != 0 && status == QUERN_STATUS_OK)
    status = base_error(QUERN_STATUS_IO, "%s: cannot be closed: %s", path, strerror(errno));
  return status;
}

/* ---- read whole ----------------------------------------------------------------------------------------- */

/* Reads until the file ends or n bytes are there; how many, or -1. */
static ssize_t read_all(int fd, char *at, size_t n) {
  size_t got = 0;
  while (got < n) {
    ssize_t more = read(fd, at + got, BASE_MIN(n - got, (size_t)1 << 30));
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return -1;
    if (more == 0) break;
    got += (size_t)more;
  }
  return (ssize_t)got;
}

quern_status io_file_read(const char *path, struct base_heap *heap, size_t most, void **bytes, size_t *n) {
  *bytes = NULL;
  *n = 0;
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  QUERN_CHECK(fd >= 0, IO, "%s: cannot be opened: %s", path, strerror(errno));
  struct stat there;
  quern_status status = QUERN_STATUS_OK;
  if (fstat(fd, &there) != 0 || !S_ISREG(there.st_mode))
    status = base_error(QUERN_STATUS_IO, "%s: is no regular file", path);
  else if ((uint64_t)there.st_size > most)
    status = base_error(QUERN_STATUS_IO, "%s: has %lld bytes, more than %zu", path, (long long)there.st_size, most);
  if (status == QUERN_STATUS_OK) {
    *bytes = base_alloc(heap, (size_t)there.st_size);
    if (*bytes == NULL) status = QUERN_STATUS_MEMORY;
  }
  if (status == QUERN_STATUS_OK) {
    *n = (size_t)there.st_size;
    ssize_t got = read_all(fd, *bytes, *n);
    if (got != (ssize_t)*n)
      status =
          base_error(QUERN_STATUS_IO, "%s: cannot be read: %s", path, got < 0 ? strerror(errno) : "it became shorter");
  }
  close(fd);
  if (status != QUERN_STATUS_OK && *bytes != NULL) {
    base_free(heap, *bytes, *n);
    *bytes = NULL;
  }
  return status;
}
