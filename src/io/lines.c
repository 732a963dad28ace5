/* io/lines.c -- a file read line by line, in memory that does not grow with it
** tests: tests/io/test_lines.c
*/
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io.h"

quern_status io_lines_open(struct io_lines *lines, const char *path) {
  struct stat there;
  lines->path = path;
  lines->number = 0;
  lines->bytes = 0;
  lines->at = lines->end = 0;
  lines->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  QUERN_CHECK(lines->fd >= 0, IO, "%s: cannot be opened: %s", path, strerror(errno));
  if (fstat(lines->fd, &there) == 0 && S_ISREG(there.st_mode)) return QUERN_STATUS_OK;
  io_lines_close(lines);
  return base_error(QUERN_STATUS_IO, "%s: is no regular file", path);
}

void io_lines_close(struct io_lines *lines) {
  if (lines->fd >= 0) close(lines->fd);
  lines->fd = -1;
}

/* Reads on behind what is there, which moves to the front; *more: bytes came. */
static quern_status fill(struct io_lines *lines, bool *more) {
  memmove(lines->buffer, lines->buffer + lines->at, lines->end - lines->at);
  lines->end -= lines->at;
  lines->at = 0;
  ssize_t got;
  do got = read(lines->fd, lines->buffer + lines->end, sizeof lines->buffer - lines->end);
  while (got < 0 && errno == EINTR);
  QUERN_CHECK(got >= 0, IO, "%s: cannot be read: %s", lines->path, strerror(errno));
  *more = got > 0;
  lines->end += (size_t)got;
  lines->bytes += (uint64_t)got;
  return QUERN_STATUS_OK;
}

quern_status io_lines_next(struct io_lines *lines, const char **line, size_t *n) {
  bool more = true, cut = false;
  *line = NULL;
  *n = 0;
  for (size_t seen = 0; more;) {
    char *from = lines->buffer + lines->at;
    char *stop = memchr(from + seen, '\n', lines->end - lines->at - seen);
    if (stop != NULL) {
      lines->number++;
      lines->at = (size_t)(stop + 1 - lines->buffer);
      *line = from;
      *n = cut ? IO_LINE_CUT : (size_t)(stop - from);
      return QUERN_STATUS_OK;
    }
    seen = lines->end - lines->at;
    if (seen == sizeof lines->buffer) { /* too long: its bytes are let go */
      cut = true;
      lines->at = lines->end;
      seen = 0;
    }
    QUERN_TRY(fill(lines, &more));
  }
  return QUERN_STATUS_OK;
}
