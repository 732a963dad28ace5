/* io/npy.c -- NumPy's .npy files
** in:    any bytes; format versions 1 to 3, C and Fortran order, both byte orders
** out:   a tensor that the context owns, or IO or PARSE with the numbers; written files are whole or not there
** see:   https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
** tests: tests/io/test_npy.c, tests/fuzz/fuzz_npy.c
*/
#include "quern/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io.h"
#include "ir/ir.h"

enum {
  HEAD_BYTES = 8,        /* magic and version */
  HEADER_MOST = 1 << 16, /* bytes of the dictionary; NumPy writes about 100 */
  HEADER_WRITTEN = 1024, /* room for the longest that is written */
  ALIGNMENT = 64,        /* of the elements in a file */
};

static const unsigned char magic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

/* NumPy's letter and size of each dtype; kind 0: it has none. */
static const struct {
  char kind;
  char size;
} codes[QUERN_DTYPE_COUNT] = {
    [QUERN_DTYPE_F64] = {'f', '8'}, [QUERN_DTYPE_F32] = {'f', '4'}, [QUERN_DTYPE_F16] = {'f', '2'},
    [QUERN_DTYPE_I8] = {'i', '1'},  [QUERN_DTYPE_I16] = {'i', '2'}, [QUERN_DTYPE_I32] = {'i', '4'},
    [QUERN_DTYPE_I64] = {'i', '8'}, [QUERN_DTYPE_U8] = {'u', '1'},  [QUERN_DTYPE_U16] = {'u', '2'},
    [QUERN_DTYPE_U32] = {'u', '4'}, [QUERN_DTYPE_U64] = {'u', '8'}, [QUERN_DTYPE_BOOL] = {'b', '1'},
};

static char native_order(void) {
  const uint16_t one = 1;
  unsigned char first;
  memcpy(&first, &one, 1);
  return first == 1 ? '<' : '>';
}

/* A file's description of its elements. */
struct layout {
  quern_dtype dtype;
  bool swapped, fortran;
  int rank;
  int64_t dims[QUERN_MAX_RANK];
};

/* ---- the header: a Python dictionary -------------------------------------------------------------------- */

/* A place in the header. */
struct scan {
  const char *path; /* for messages */
  const char *begin, *at, *stop;
};

static void skip_space(struct scan *scan) {
  while (scan->at < scan->stop && (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r')) {
    scan->at++;
  }
}

/* Takes a character after blanks. */
static bool take(struct scan *scan, char c) {
  skip_space(scan);
  if (scan->at == scan->stop || *scan->at != c) return false;
  scan->at++;
  return true;
}

static bool take_word(struct scan *scan, const char *word) {
  size_t n = strlen(word);
  skip_space(scan);
  if ((size_t)(scan->stop - scan->at) < n || memcmp(scan->at, word, n) != 0) return false;
  scan->at += n;
  return true;
}

static quern_status expected(const struct scan *scan, const char *what) {
  long place = (long)(scan->at - scan->begin);
  QUERN_CHECK(scan->at < scan->stop, PARSE, "%s: byte %ld of the header: expected %s, found its end", scan->path, place,
              what);
  unsigned char c = (unsigned char)*scan->at;
  if (c < 0x20 || c >= 0x7f)
    return base_error(QUERN_STATUS_PARSE, "%s: byte %ld of the header: expected %s, found the byte 0x%02x", scan->path,
                      place, what, c);
  return base_error(QUERN_STATUS_PARSE, "%s: byte %ld of the header: expected %s, found '%c'", scan->path, place, what,
                    c);
}

/* A string without escapes; its text is [*text, *text + *n). */
static quern_status take_string(struct scan *scan, const char *what, const char **text, size_t *n) {
  char quote = '\'';
  if (!take(scan, quote)) {
    quote = '"';
    if (!take(scan, quote)) return expected(scan, what);
  }
  *text = scan->at;
  while (scan->at < scan->stop && *scan->at != quote && *scan->at != '\\' && *scan->at != '\n') scan->at++;
  if (scan->at == scan->stop || *scan->at != quote) return expected(scan, "the end of a string");
  *n = (size_t)(scan->at++ - *text);
  return QUERN_STATUS_OK;
}

static quern_status read_descr(struct scan *scan, struct layout *layout) {
  const char *text;
  size_t n;
  if (take(scan, '['))
    return base_error(QUERN_STATUS_PARSE, "%s: has records, a tensor's elements are numbers", scan->path);
  QUERN_TRY(take_string(scan, "a dtype such as '<f4'", &text, &n));
  bool ordered = n == 3 && strchr("<>=|", text[0]) != NULL && text[0] != 0;
  for (int i = 0; i < QUERN_DTYPE_COUNT && ordered; i++) {
    if (codes[i].kind != text[1] || codes[i].size != text[2] || codes[i].kind == 0) continue;
    layout->dtype = (quern_dtype)i;
    layout->swapped = (text[0] == '<' || text[0] == '>') && text[0] != native_order();
    return QUERN_STATUS_OK;
  }
  char shown[32] = {0};
  for (size_t i = 0; i < n && i < sizeof shown - 1; i++) shown[i] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
  return base_error(QUERN_STATUS_PARSE,
                    "%s: the dtype '%s' is none of f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1 with < or > before it",
                    scan->path, shown);
}

static quern_status read_order(struct scan *scan, struct layout *layout) {
  layout->fortran = take_word(scan, "True");
  if (layout->fortran || take_word(scan, "False")) return QUERN_STATUS_OK;
  return expected(scan, "True or False");
}

static quern_status read_size(struct scan *scan, int64_t *size) {
  skip_space(scan);
  const char *start = scan->at;
  *size = 0;
  for (; scan->at < scan->stop && *scan->at >= '0' && *scan->at <= '9'; scan->at++) {
    int digit = *scan->at - '0';
    QUERN_CHECK(*size <= (INT64_MAX - digit) / 10, PARSE, "%s: byte %ld of the header: a size exceeds 2^63 - 1",
                scan->path, (long)(start - scan->begin));
    *size = *size * 10 + digit;
  }
  return scan->at > start ? QUERN_STATUS_OK : expected(scan, "a size");
}

static quern_status read_shape(struct scan *scan, struct layout *layout) {
  layout->rank = 0;
  if (!take(scan, '(')) return expected(scan, "'(' of the shape");
  while (!take(scan, ')')) {
    QUERN_CHECK(layout->rank < QUERN_MAX_RANK, PARSE, "%s: the shape has more than %d axes", scan->path,
                QUERN_MAX_RANK);
    QUERN_TRY(read_size(scan, &layout->dims[layout->rank++]));
    if (take(scan, ',')) continue;
    if (!take(scan, ')')) return expected(scan, "',' or ')' in the shape");
    break;
  }
  return QUERN_STATUS_OK;
}

static const struct {
  const char *key;
  quern_status (*read)(struct scan *scan, struct layout *layout);
} keys[] = {{"descr", read_descr}, {"fortran_order", read_order}, {"shape", read_shape}};

/* Reads the dictionary: each key once, in any order. */
static quern_status read_header(struct scan *scan, struct layout *layout) {
  bool seen[BASE_COUNT(keys)] = {0};
  if (!take(scan, '{')) return expected(scan, "'{'");
  while (!take(scan, '}')) {
    const char *text = "";
    size_t n = 0, k = 0;
    QUERN_TRY(take_string(scan, "a key", &text, &n));
    while (k < BASE_COUNT(keys) && (strlen(keys[k].key) != n || memcmp(keys[k].key, text, n) != 0)) k++;
    QUERN_CHECK(k < BASE_COUNT(keys) && !seen[k], PARSE, "%s: byte %ld of the header: the key %s", scan->path,
                (long)(text - scan->begin), k < BASE_COUNT(keys) ? "is there twice" : "is unknown");
    seen[k] = true;
    if (!take(scan, ':')) return expected(scan, "':'");
    QUERN_TRY(keys[k].read(scan, layout));
    if (take(scan, ',')) continue;
    if (!take(scan, '}')) return expected(scan, "',' or '}'");
    break;
  }
  for (size_t k = 0; k < BASE_COUNT(keys); k++) {
    QUERN_CHECK(seen[k], PARSE, "%s: the header has no key '%s'", scan->path, keys[k].key);
  }
  skip_space(scan);
  return scan->at == scan->stop ? QUERN_STATUS_OK : expected(scan, "the end of the header");
}

/* ---- where bytes come from ------------------------------------------------------------------------------ */

struct source {
  const char *path; /* for messages */
  FILE *file;       /* NULL: from memory */
  const unsigned char *at;
  uint64_t done, left; /* bytes */
};

static quern_status take_bytes(struct source *source, const char *what, void *dst, size_t n) {
  QUERN_CHECK(n <= source->left, PARSE, "%s: the %s takes %zu bytes after byte %" PRIu64 ", but %" PRIu64 " are left",
              source->path, what, n, source->done, source->left);
  if (n == 0) return QUERN_STATUS_OK;
  if (source->file != NULL) {
    size_t got = fread(dst, 1, n, source->file);
    QUERN_CHECK(got == n, IO, "%s: read %zu bytes of the %s after byte %" PRIu64 ", expected %zu", source->path, got,
                what, source->done, n);
  } else {
    memcpy(dst, source->at, n);
    source->at += n;
  }
  source->done += n;
  source->left -= n;
  return QUERN_STATUS_OK;
}

/* Reads magic, version and header. */
static quern_status take_layout(struct base_heap *heap, struct source *source, struct layout *layout) {
  unsigned char head[HEAD_BYTES], length[4] = {0};
  QUERN_TRY(take_bytes(source, "magic number", head, sizeof head));
  QUERN_CHECK(memcmp(head, magic, sizeof magic) == 0, PARSE, "%s: is no .npy file: it does not begin with \\x93NUMPY",
              source->path);
  int version = head[6];
  QUERN_CHECK(version >= 1 && version <= 3, PARSE, "%s: has format version %d.%d, known are 1 to 3", source->path,
              version, head[7]);
  QUERN_TRY(take_bytes(source, "header's length", length, version == 1 ? 2 : 4));
  uint32_t bytes = length[0] | (uint32_t)length[1] << 8 | (uint32_t)length[2] << 16 | (uint32_t)length[3] << 24;
  QUERN_CHECK(bytes <= HEADER_MOST, PARSE, "%s: the header has %" PRIu32 " bytes, at most %d make sense", source->path,
              bytes, HEADER_MOST);
  char *text = base_alloc(heap, bytes);
  if (text == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = take_bytes(source, "header", text, bytes);
  struct scan scan = {.path = source->path, .begin = text, .at = text, .stop = text + bytes};
  if (status == QUERN_STATUS_OK) status = read_header(&scan, layout);
  base_free(heap, text, bytes);
  return status;
}

/* The number of elements, whose bytes must be all that is left. */
static quern_status count_elements(const struct source *source, const struct layout *layout, int64_t *count) {
  if (ir_type_count(layout->dtype, layout->rank, layout->dims, count) != QUERN_STATUS_OK) {
    return base_error(quern_last_status(), "%s: %s", source->path, quern_last_error());
  }
  uint64_t bytes = (uint64_t)*count * base_dtypes[layout->dtype].size;
  char shape[256];
  QUERN_CHECK(bytes == source->left, PARSE,
              "%s: elements of %s%s take %" PRIu64 " bytes, but %" PRIu64 " follow the header", source->path,
              base_dtypes[layout->dtype].name, base_shape_text(shape, sizeof shape, layout->rank, layout->dims), bytes,
              source->left);
  return QUERN_STATUS_OK;
}

_Static_assert((int)IO_NPY_RANK == (int)QUERN_MAX_RANK, "a header holds every shape");

quern_status io_npy_head(struct io_npy *npy, struct base_heap *heap, const char *path, const void *bytes, size_t n) {
  struct source source = {.path = path, .at = bytes, .left = n};
  struct layout layout = {0};
  int64_t count = 0;
  QUERN_TRY(take_layout(heap, &source, &layout));
  QUERN_TRY(count_elements(&source, &layout, &count));
  *npy = (struct io_npy){.dtype = layout.dtype, .rank = layout.rank, .count = count, .first = (size_t)source.done};
  npy->swapped = layout.swapped;
  npy->fortran = layout.fortran;
  memcpy(npy->dims, layout.dims, sizeof npy->dims);
  return QUERN_STATUS_OK;
}

/* ---- elements ------------------------------------------------------------------------------------------- */

static void swap_bytes(unsigned char *at, size_t size, size_t n) {
  for (size_t i = 0; i < n; i++, at += size) {
    for (size_t k = 0; k < size / 2; k++) {
      unsigned char byte = at[k];
      at[k] = at[size - 1 - k];
      at[size - 1 - k] = byte;
    }
  }
}

/* dst in row-major order from src in column-major order. */
static void to_row_major(const struct layout *layout, size_t size, size_t n, unsigned char *dst,
                         const unsigned char *src) {
  int64_t index[QUERN_MAX_RANK] = {0};
  size_t stride[QUERN_MAX_RANK], from = 0, step = 1;
  for (int k = 0; k < layout->rank; k++) {
    stride[k] = step;
    step *= (size_t)layout->dims[k];
  }
  for (size_t i = 0; i < n; i++) {
    memcpy(dst + i * size, src + from * size, size);
    for (int k = layout->rank - 1; k >= 0; k--) {
      from += stride[k];
      if (++index[k] < layout->dims[k]) break;
      from -= stride[k] * (size_t)layout->dims[k];
      index[k] = 0;
    }
  }
}

static quern_status take_elements(quern_context *ctx, struct source *source, const struct layout *layout, size_t n,
                                  struct ir_buffer *buffer) {
  size_t size = base_dtypes[layout->dtype].size;
  bool turned = layout->fortran && layout->rank > 1 && n > 0;
  unsigned char *raw = turned ? base_alloc(&ctx->heap, buffer->bytes) : buffer->data;
  if (raw == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = take_bytes(source, "elements", raw, buffer->bytes);
  if (status == QUERN_STATUS_OK) {
    if (layout->swapped) swap_bytes(raw, size, n);
    if (turned) to_row_major(layout, size, n, buffer->data, raw);
    unsigned char *bytes = buffer->data;
    for (size_t i = 0; layout->dtype == QUERN_DTYPE_BOOL && i < n; i++) bytes[i] = bytes[i] != 0;
  }
  if (turned) base_free(&ctx->heap, raw, buffer->bytes);
  return status;
}

static quern_status take_tensor(quern_context *ctx, struct source *source, quern_tensor **x) {
  struct layout layout = {0};
  int64_t count = 0;
  QUERN_TRY(take_layout(&ctx->heap, source, &layout));
  QUERN_TRY(count_elements(source, &layout, &count));
  struct ir_buffer *buffer = ir_buffer_new(ctx, (size_t)count * base_dtypes[layout.dtype].size);
  if (buffer == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = take_elements(ctx, source, &layout, (size_t)count, buffer);
  if (status == QUERN_STATUS_OK) {
    struct ir_attrs attrs = {.dtype = layout.dtype, .shape = {layout.rank, layout.dims}, .buffer = buffer};
    quern_tensor *made = ir_make(ctx, IR_BUFFER, 0, NULL, &attrs);
    status = quern_context_check(ctx);
    if (status == QUERN_STATUS_OK) *x = made;
  }
  if (status != QUERN_STATUS_OK) ir_buffer_free(ctx, buffer);
  return status;
}

quern_status quern_npy_parse(quern_context *ctx, const void *bytes, size_t n, quern_tensor **x) {
  QUERN_CHECK(x != NULL, INVALID, "npy_parse: the place for the tensor is null");
  *x = &ir_poison;
  QUERN_CHECK(ctx != NULL, INVALID, "npy_parse: the context is null");
  QUERN_CHECK(bytes != NULL || n == 0, INVALID, "npy_parse: the %zu bytes are null", n);
  QUERN_TRY(quern_context_check(ctx));
  struct source source = {.path = "npy", .at = bytes, .left = n};
  return take_tensor(ctx, &source, x);
}

quern_status quern_npy_read(quern_context *ctx, const char *path, quern_tensor **x) {
  QUERN_CHECK(x != NULL, INVALID, "npy_read: the place for the tensor is null");
  *x = &ir_poison;
  QUERN_CHECK(ctx != NULL, INVALID, "npy_read: the context is null");
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "npy_read: the path is %s", path == NULL ? "null" : "empty");
  QUERN_TRY(quern_context_check(ctx));
  FILE *file = fopen(path, "rb");
  QUERN_CHECK(file != NULL, IO, "%s: cannot be opened: %s", path, strerror(errno));
  struct stat info;
  quern_status status = QUERN_STATUS_OK;
  if (fstat(fileno(file), &info) != 0) {
    status = base_error(QUERN_STATUS_IO, "%s: cannot be examined: %s", path, strerror(errno));
  } else if (!S_ISREG(info.st_mode)) {
    status = base_error(QUERN_STATUS_IO, "%s: is no regular file", path);
  } else {
    struct source source = {.path = path, .file = file, .left = (uint64_t)info.st_size};
    status = take_tensor(ctx, &source, x);
  }
  fclose(file);
  return status;
}

/* ---- writing -------------------------------------------------------------------------------------------- */

/* The bytes before the elements, padded so that these are aligned; their number. */
static size_t make_header(char text[HEADER_WRITTEN], quern_dtype dtype, int rank, const int64_t *dims) {
  char order = base_dtypes[dtype].size == 1 ? '|' : native_order();
  char *dictionary = text + HEAD_BYTES + 2;
  size_t room = HEADER_WRITTEN - HEAD_BYTES - 2, n;
  n = (size_t)snprintf(dictionary, room, "{'descr': '%c%c%c', 'fortran_order': False, 'shape': ", order,
                       codes[dtype].kind, codes[dtype].size);
  base_shape_text(dictionary + n, room - n, rank, dims);
  n += strlen(dictionary + n);
  n += (size_t)snprintf(dictionary + n, room - n, ", }");
  size_t whole = (HEAD_BYTES + 2 + n + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  memset(dictionary + n, ' ', whole - (HEAD_BYTES + 2) - n);
  text[whole - 1] = '\n';
  memcpy(text, magic, sizeof magic);
  text[6] = 1;
  text[7] = 0;
  text[8] = (char)((whole - HEAD_BYTES - 2) & 0xff);
  text[9] = (char)((whole - HEAD_BYTES - 2) >> 8);
  return whole;
}

quern_status quern_npy_write(const char *path, quern_dtype dtype, int rank, const int64_t *dims, const void *data) {
  char header[HEADER_WRITTEN], shape[256];
  int64_t count = 0;
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "npy_write: the path is %s", path == NULL ? "null" : "empty");
  QUERN_CHECK((unsigned)dtype < QUERN_DTYPE_COUNT, INVALID, "npy_write: %d is no dtype", (int)dtype);
  QUERN_CHECK(codes[dtype].kind != 0, DTYPE, "npy_write: %s has no NumPy dtype HINT: quern_cast to f32 first",
              base_dtypes[dtype].name);
  QUERN_CHECK(rank >= 0 && rank <= QUERN_MAX_RANK, SHAPE, "npy_write: rank %d is not in 0..%d", rank, QUERN_MAX_RANK);
  QUERN_CHECK(rank == 0 || dims != NULL, INVALID, "npy_write: the shape of rank %d is null", rank);
  for (int i = 0; i < rank; i++) {
    QUERN_CHECK(dims[i] >= 0, SHAPE, "npy_write: axis %d of %s is negative", i,
                base_shape_text(shape, sizeof shape, rank, dims));
  }
  if (ir_type_count(dtype, rank, dims, &count) != QUERN_STATUS_OK) {
    return base_error(quern_last_status(), "npy_write: %s", quern_last_error());
  }
  QUERN_CHECK(data != NULL || count == 0, INVALID, "npy_write: the data of %s is null",
              base_shape_text(shape, sizeof shape, rank, dims));
  size_t head = make_header(header, dtype, rank, dims), bytes = (size_t)count * base_dtypes[dtype].size;
  return io_file_write("npy_write", path, 2, (const struct io_piece[]){{header, head}, {data, bytes}});
}
