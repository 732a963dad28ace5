/* io/io.h -- files: read whole, written whole or not at all */
#ifndef IO_IO_H
#define IO_IO_H
#include "base/base.h"

struct io_part {
  const void *at;
  size_t n;
};

/* Writes the parts one after another to a new file beside path, synchronises it and renames it to path: path is never half
** written. what names the caller in messages. A path that is no regular file is refused. */
quern_status io_file_write(const char *what, const char *path, size_t n, const struct io_part *parts) QUERN_NODISCARD;

/* The bytes of a regular file of at most `most` bytes, in memory of the heap: base_free(heap, *bytes, *n). */
quern_status io_file_read(const char *path, struct base_heap *heap, size_t most, void **bytes, size_t *n) QUERN_NODISCARD;

#endif
