/* io/tokens.c -- token files: ids of 2 or 4 bytes, read as they are needed; written piece by piece, whole or not at all
** in:    any bytes                out: ids, or IO or PARSE with the numbers
** see:   the header is that of llm.c (github.com/karpathy/llm.c, llmc/dataloader.h)
** tests: tests/io/test_tokens.c, tests/fuzz/fuzz_tokens.c
*/
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "io/data.h"
#include "io/io.h"

enum { HEAD_BYTES = 1024, BLOCK = 4096 };

/* The kinds of header: its first two words, and the bytes of an id. */
static const struct kind {
  uint32_t magic, version;
  quern_dtype dtype;
} kinds[] = {{20240520, 1, QUERN_DTYPE_U16}, {20240801, 7, QUERN_DTYPE_U32}};

static uint32_t load32(const unsigned char *at) {
  return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void store(unsigned char *at, uint64_t x, size_t bytes) {
  for (size_t i = 0; i < bytes; i++, x >>= 8) at[i] = (unsigned char)x;
}

static const struct kind *kind_of(quern_dtype dtype) {
  for (size_t i = 0; i < BASE_COUNT(kinds); i++) {
    if (kinds[i].dtype == dtype) return &kinds[i];
  }
  return NULL;
}

static quern_status take_options(const char *what, const quern_tokens_options *options, quern_tokens_options *o) {
  QUERN_TRY(base_take(quern_tokens_options, o, options, what));
  if (o->dtype == 0) o->dtype = QUERN_DTYPE_U16;
  QUERN_CHECK(kind_of(o->dtype) != NULL, DTYPE, "%s: ids are u16 or u32, not %s", what, quern_dtype_name(o->dtype));
  return QUERN_STATUS_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* The contents of a header of n bytes. */
static quern_status read_head(quern_tokens *tokens, const char *path, const unsigned char *bytes, size_t n) {
  QUERN_CHECK(n >= HEAD_BYTES, PARSE, "%s: has %zu bytes, a header takes %d HINT: is it raw?", path, n, HEAD_BYTES);
  uint32_t magic = load32(bytes), version = load32(bytes + 4);
  const struct kind *kind = NULL;
  for (size_t i = 0; i < BASE_COUNT(kinds); i++) {
    if (kinds[i].magic == magic && kinds[i].version == version) kind = &kinds[i];
  }
  QUERN_CHECK(kind != NULL, PARSE,
              "%s: begins with %" PRIu32 " and %" PRIu32
              ", a token file with 20240520 and 1, or 20240801 and 7 HINT: is it raw?",
              path, magic, version);
  tokens->dtype = kind->dtype;
  tokens->vocab = load32(bytes + 16);
  uint64_t count = load32(bytes + 8) | (uint64_t)load32(bytes + 12) << 32, size = base_dtypes[kind->dtype].size;
  QUERN_CHECK((n - HEAD_BYTES) % size == 0 && count == (n - HEAD_BYTES) / size, PARSE,
              "%s: the header speaks of %" PRIu64 " ids of %" PRIu64 " bytes, but %zu bytes follow it", path, count,
              size, n - HEAD_BYTES);
  tokens->at = bytes + HEAD_BYTES;
  tokens->n = (int64_t)count;
  return QUERN_STATUS_OK;
}

static quern_status read_raw(quern_tokens *tokens, const char *path, const unsigned char *bytes, size_t n,
                             const quern_tokens_options *options) {
  size_t size = base_dtypes[options->dtype].size;
  QUERN_CHECK(n % size == 0, PARSE, "%s: has %zu bytes, which is no whole number of ids of %zu", path, n, size);
  *tokens = (quern_tokens){.heap = tokens->heap,
                           .map = tokens->map,
                           .at = bytes,
                           .n = (int64_t)(n / size),
                           .dtype = options->dtype,
                           .vocab = options->vocab};
  return QUERN_STATUS_OK;
}

/* Tokens of a file when there is a path, else of bytes. */
static quern_status open_tokens(quern_tokens **tokens, const char *path, const void *bytes, size_t n,
                                const quern_tokens_options *options) {
  struct base_heap heap;
  base_heap_init(&heap, &options->allocator);
  quern_tokens *made = base_alloc_zero(&heap, sizeof *made);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  base_heap_init(&made->heap, &options->allocator);
  made->map.fd = -1;
  quern_status status = path != NULL ? io_map_open(&made->map, &made->heap, path) : QUERN_STATUS_OK;
  if (path != NULL) bytes = made->map.bytes, n = made->map.n;
  if (status == QUERN_STATUS_OK) {
    const char *name = path != NULL ? path : "tokens";
    status = options->raw ? read_raw(made, name, bytes, n, options) : read_head(made, name, bytes, n);
  }
  if (status == QUERN_STATUS_OK)
    *tokens = made;
  else
    quern_tokens_free(made);
  return status;
}

quern_status quern_tokens_open(quern_tokens **tokens, const char *path, const quern_tokens_options *options) {
  quern_tokens_options o;
  QUERN_CHECK(tokens != NULL, INVALID, "tokens_open: the place for the tokens is null");
  *tokens = NULL;
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "tokens_open: the path is %s", path == NULL ? "null" : "empty");
  QUERN_TRY(take_options("tokens_open", options, &o));
  return open_tokens(tokens, path, NULL, 0, &o);
}

quern_status quern_tokens_wrap(quern_tokens **tokens, const void *bytes, size_t n,
                               const quern_tokens_options *options) {
  quern_tokens_options o;
  QUERN_CHECK(tokens != NULL, INVALID, "tokens_wrap: the place for the tokens is null");
  *tokens = NULL;
  QUERN_CHECK(bytes != NULL || n == 0, INVALID, "tokens_wrap: the %zu bytes are null", n);
  QUERN_TRY(take_options("tokens_wrap", options, &o));
  return open_tokens(tokens, NULL, bytes, n, &o);
}

void quern_tokens_free(quern_tokens *tokens) {
  if (tokens == NULL) return;
  io_map_close(&tokens->map, &tokens->heap);
  quern_allocator user = tokens->heap.user;
  user.free(user.self, tokens, sizeof *tokens);
}

int64_t quern_tokens_count(const quern_tokens *tokens) { return tokens != NULL ? tokens->n : 0; }
quern_dtype quern_tokens_dtype(const quern_tokens *tokens) { return tokens != NULL ? tokens->dtype : QUERN_DTYPE_U16; }
uint64_t quern_tokens_vocab(const quern_tokens *tokens) { return tokens != NULL ? tokens->vocab : 0; }

const char *io_tokens_path(const quern_tokens *tokens) {
  return tokens->map.path != NULL ? tokens->map.path : "tokens";
}

/* An id, the lowest byte first. */
static uint32_t id_at(const unsigned char *at, size_t size) {
  return size == 4 ? load32(at) : at[0] | (uint32_t)at[1] << 8;
}

quern_status io_tokens_read(const quern_tokens *tokens, int64_t first, size_t n, uint32_t *ids) {
  unsigned char block[BLOCK];
  size_t size = base_dtypes[tokens->dtype].size, some;
  for (size_t i = 0; i < n; i += some) {
    const unsigned char *at = tokens->at + ((size_t)first + i) * size;
    some = BASE_MIN(n - i, BLOCK / size);
    if (tokens->map.path != NULL) {
      QUERN_TRY(io_map_read(&tokens->map, (size_t)(at - tokens->map.bytes), some * size, block));
      at = block;
    }
    for (size_t k = 0; k < some; k++) ids[i + k] = id_at(at + k * size, size);
  }
  return QUERN_STATUS_OK;
}

quern_status quern_tokens_get(const quern_tokens *tokens, int64_t first, size_t n, uint32_t *ids) {
  QUERN_CHECK(tokens != NULL, INVALID, "tokens_get: the tokens are null");
  QUERN_CHECK(ids != NULL || n == 0, INVALID, "tokens_get: the place for %zu ids is null", n);
  QUERN_CHECK(first >= 0 && first <= tokens->n && n <= (uint64_t)(tokens->n - first), INVALID,
              "tokens_get: %s: %zu ids from %" PRId64 " on, there are %" PRId64, io_tokens_path(tokens), n, first,
              tokens->n);
  return io_tokens_read(tokens, first, n, ids);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

struct quern_tokens_writer {
  struct base_heap heap;
  quern_tokens_options options;
  struct io_pending pending; /* begun as long as its fd is not -1 */
  FILE *file;                /* NULL: ended, or a write failed */
  uint64_t n;                /* ids written */
};

static quern_status cannot(const quern_tokens_writer *writer, const char *what) {
  return base_error(QUERN_STATUS_IO, "%s: cannot be %s: %s", writer->pending.path, what, strerror(errno));
}

/* Opens the temporary file behind the header. */
static quern_status begin(quern_tokens_writer *writer, const char *path) {
  static const char zeros[HEAD_BYTES];
  QUERN_TRY(io_file_begin(&writer->pending, "tokens_writer_new", path, 0, NULL));
  int fd = fcntl(writer->pending.fd, F_DUPFD_CLOEXEC,
                 STDERR_FILENO + 1); /* the stream's own; the other one keeps the lock */
  writer->file = fd >= 0 ? fdopen(fd, "r+b") : NULL;
  if (writer->file == NULL) {
    if (fd >= 0) (void)close(fd);
    return cannot(writer, "opened");
  }
  if (!writer->options.raw && fwrite(zeros, 1, HEAD_BYTES, writer->file) != HEAD_BYTES)
    return cannot(writer, "written");
  return QUERN_STATUS_OK;
}

quern_status quern_tokens_writer_new(quern_tokens_writer **writer, const char *path,
                                     const quern_tokens_options *options) {
  quern_tokens_options o;
  QUERN_CHECK(writer != NULL, INVALID, "tokens_writer_new: the place for the writer is null");
  *writer = NULL;
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "tokens_writer_new: the path is %s",
              path == NULL ? "null" : "empty");
  QUERN_TRY(take_options("tokens_writer_new", options, &o));
  struct base_heap heap;
  base_heap_init(&heap, &o.allocator);
  quern_tokens_writer *made = base_alloc_zero(&heap, sizeof *made);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  base_heap_init(&made->heap, &o.allocator);
  made->options = o;
  made->pending.fd = -1;
  quern_status status = begin(made, path);
  if (status == QUERN_STATUS_OK)
    *writer = made;
  else
    quern_tokens_writer_free(made);
  return status;
}

quern_status quern_tokens_writer_add(quern_tokens_writer *writer, size_t n, const uint32_t *ids) {
  QUERN_CHECK(writer != NULL, INVALID, "tokens_writer_add: the writer is null");
  QUERN_CHECK(ids != NULL || n == 0, INVALID, "tokens_writer_add: the %zu ids are null", n);
  QUERN_CHECK(writer->file != NULL, STATE, "tokens_writer_add: %s has ended", writer->pending.path);
  size_t size = base_dtypes[writer->options.dtype].size;
  uint64_t most = size == 2 ? UINT16_MAX : UINT32_MAX;
  if (writer->options.vocab > 0) most = BASE_MIN(most, writer->options.vocab - 1);
  for (size_t i = 0; i < n;) {
    unsigned char block[BLOCK];
    size_t used = 0;
    for (; i < n && used + size <= BLOCK; i++, used += size) {
      QUERN_CHECK(ids[i] <= most, INVALID,
                  "tokens_writer_add: %s: id %" PRIu64 " is %" PRIu32 ", the largest is %" PRIu64, writer->pending.path,
                  writer->n + i, ids[i], most);
      store(block + used, ids[i], size);
    }
    if (fwrite(block, 1, used, writer->file) != used) return cannot(writer, "written");
  }
  writer->n += n;
  return QUERN_STATUS_OK;
}

static quern_status finish(quern_tokens_writer *writer) {
  unsigned char head[20];
  const struct kind *kind = kind_of(writer->options.dtype);
  store(head, kind->magic, 4);
  store(head + 4, kind->version, 4);
  store(head + 8, writer->n, 8);
  store(head + 16, BASE_MIN(writer->options.vocab, UINT32_MAX), 4);
  if (!writer->options.raw &&
      (fseek(writer->file, 0, SEEK_SET) != 0 || fwrite(head, 1, sizeof head, writer->file) != sizeof head))
    return cannot(writer, "written");
  if (fflush(writer->file) != 0) return cannot(writer, "written");
  return QUERN_STATUS_OK;
}

static quern_status close_file(quern_tokens_writer *writer, quern_status status) {
  if (fclose(writer->file) != 0 && status == QUERN_STATUS_OK) status = cannot(writer, "closed");
  writer->file = NULL;
  return status;
}

quern_status io_tokens_writer_take(quern_tokens_writer *writer, quern_tokens **tokens) {
  *tokens = NULL;
  QUERN_CHECK(writer->file != NULL, STATE, "tokens_writer_take: %s has ended", writer->pending.path);
  quern_status status = close_file(writer, finish(writer));
  if (status == QUERN_STATUS_OK) status = open_tokens(tokens, writer->pending.temporary, NULL, 0, &writer->options);
  (void)!io_file_end(&writer->pending, false);
  return status;
}

quern_status quern_tokens_writer_end(quern_tokens_writer *writer) {
  QUERN_CHECK(writer != NULL, INVALID, "tokens_writer_end: the writer is null");
  QUERN_CHECK(writer->file != NULL, STATE, "tokens_writer_end: %s has ended", writer->pending.path);
  quern_status status = finish(writer);
  if (status == QUERN_STATUS_OK && fsync(fileno(writer->file)) != 0) status = cannot(writer, "written");
  status = close_file(writer, status);
  quern_status ended = io_file_end(&writer->pending, status == QUERN_STATUS_OK);
  if (status == QUERN_STATUS_OK) status = ended;
  if (status == QUERN_STATUS_OK) status = io_file_sync_folder(writer->pending.path);
  return status;
}

void quern_tokens_writer_free(quern_tokens_writer *writer) {
  if (writer == NULL) return;
  if (writer->file != NULL) fclose(writer->file);
  if (writer->pending.fd >= 0) (void)!io_file_end(&writer->pending, false);
  quern_allocator user = writer->heap.user;
  user.free(user.self, writer, sizeof *writer);
}
