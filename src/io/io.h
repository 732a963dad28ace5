/* io/io.h -- files: read whole or line by line, written whole or not at all */
#ifndef IO_IO_H
#define IO_IO_H
#include "base/base.h"

struct io_piece {
  const void *at;
  size_t n;
};

/* Writes the parts one after another to a new file beside path, synchronizes it and renames it to path: path is never half
** written. what names the caller in messages. A path that is no regular file is refused. */
quern_status io_file_write(const char *what, const char *path, size_t n, const struct io_piece *pieces) QUERN_NODISCARD;

/* The same in two steps, for several files that belong together: begin writes and synchronizes the new file under a
** temporary name; end renames it to path (and sync_folder makes that last), or removes it when it is to be kept no
** more. In between its descriptor stays open, since the lock on it means that the file's writer lives
** (base_temporary_open). */
enum { IO_PATH_MOST = 4096 };
struct io_pending {
  int fd;
  char path[IO_PATH_MOST], temporary[IO_PATH_MOST];
};
quern_status io_file_begin(struct io_pending *file, const char *what, const char *path, size_t n,
                           const struct io_piece *pieces) QUERN_NODISCARD;
quern_status io_file_end(struct io_pending *file, bool keep) QUERN_NODISCARD;
/* Gives the descriptor back before the end: another writer of that name may take the file for left behind. */
void io_file_unlock(struct io_pending *file);
/* Writes out the folder that a path is in, so that a rename in it lasts; or an open folder. Where that is not
** possible at all it is not an error. */
quern_status io_file_sync_folder(const char *path) QUERN_NODISCARD;
quern_status io_folder_sync(int folder, const char *path) QUERN_NODISCARD;

/* The same as io_file_write, with what gives the bytes as they are needed, one after another by io_out_add. */
struct io_out {
  const char *path;
  int fd;
};
quern_status io_out_add(struct io_out *out, const void *bytes, size_t n) QUERN_NODISCARD;
typedef quern_status io_fill(struct io_out *out, void *user);
quern_status io_file_fill(const char *what, const char *path, io_fill *fill, void *user) QUERN_NODISCARD;
/* A file that must be new, in an open folder that has a temporary name itself; path is for messages. */
quern_status io_file_make(int folder, const char *name, const char *path, io_fill *fill, void *user) QUERN_NODISCARD;
/* An io_fill of a struct io_piece. */
quern_status io_fill_piece(struct io_out *out, void *user) QUERN_NODISCARD;

/* The bytes of a regular file of at most `most` bytes, in memory of the heap: base_free(heap, *bytes, *n). */
quern_status io_file_read(const char *path, struct base_heap *heap, size_t most, void **bytes,
                          size_t *n) QUERN_NODISCARD;

/* ---- files read line by line (lines.c) --------------------------------------------------------------------------- */

#define IO_LINE_CUT ((size_t)-1)
struct io_lines {
  const char *path;
  int fd;
  uint64_t number, bytes; /* of the last line, from 1 on; read so far */
  size_t at, end;         /* what is in the buffer and was not given yet */
  char buffer[1 << 14];
};
/* Opens a regular file; path is for messages, and must stay. io_lines_close whatever happened afterwards. */
quern_status io_lines_open(struct io_lines *lines, const char *path) QUERN_NODISCARD;
/* The next line, without its end, valid until the next call; NULL: there is no more, or none that was written to its
** end. *n is IO_LINE_CUT when it is longer than the buffer. */
quern_status io_lines_next(struct io_lines *lines, const char **line, size_t *n) QUERN_NODISCARD;
void io_lines_close(struct io_lines *lines);

/* ---- digests (digest.c): XXH64, 64 bits by which bytes are recognized ------------------------------------- */

struct io_digest {
  uint64_t lanes[4], total;
  unsigned char rest[32]; /* the last total % 32 bytes */
};
void io_digest_init(struct io_digest *digest);
void io_digest_add(struct io_digest *digest, const void *bytes, size_t n);
uint64_t io_digest_get(const struct io_digest *digest);
uint64_t io_digest_of(const void *bytes, size_t n);

/* ---- mapped files (mapped_file.c) ------------------------------------------------------------------------------------------ */

/* A file whose bytes are read where they lie. */
struct io_map {
  const unsigned char *bytes; /* of an empty file: not NULL */
  size_t n;
  int fd;
  char *path; /* for messages */
};
/* Maps a regular file for reading; io_map_close later. */
quern_status io_map_open(struct io_map *map, struct base_heap *heap, const char *path) QUERN_NODISCARD;
/* IO when the file has become shorter since: its bytes cannot be read. */
quern_status io_map_check(const struct io_map *map) QUERN_NODISCARD;
/* Copies n bytes of the file that has so many. Mapped pages that are looked at count as the process's memory, these do
** not; and what cannot be read is a status, not a signal. */
quern_status io_map_read(const struct io_map *map, size_t first, size_t n, void *bytes) QUERN_NODISCARD;
/* Gives back the memory of all pages that were looked at: they are read again when they are looked at again. */
void io_map_release(const struct io_map *map);
void io_map_close(struct io_map *map, struct base_heap *heap);

/* ---- configurations (config.c) ---------------------------------------------------------------------------------------- */

/* The allocator that a configuration was made with; NULL of NULL. */
struct quern_config;
const quern_allocator *io_config_allocator(const struct quern_config *config);

/* ---- headers of .npy files (npy.c) --------------------------------------------------------------------------------- */

enum { IO_NPY_RANK = 16 };
struct io_npy {
  quern_dtype dtype;
  int rank;
  int64_t dims[IO_NPY_RANK];
  int64_t count;         /* elements */
  size_t first;          /* byte of the first element */
  bool swapped, fortran; /* bytes in the other order; columns first */
};
/* Reads the header of a file in memory, whose length must be that of the header. path begins the messages. */
quern_status io_npy_head(struct io_npy *npy, struct base_heap *heap, const char *path, const void *bytes,
                         size_t n) QUERN_NODISCARD;

#endif
