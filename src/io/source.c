/* io/source.c -- sources of samples: windows of token files, rows of arrays in files and in memory, a function
** keeps: reading changes nothing, so that threads may read at the same time; a mapped file that became shorter is an error
** tests: tests/io/test_data.c
*/
#include <inttypes.h>

#include "io/data.h"
#include "ir/ir.h"

enum { AT_ONCE = 1024 }; /* ids that are read together */

static quern_status new_source(quern_source **source, const quern_allocator *allocator) {
  struct base_heap heap;
  base_heap_init(&heap, allocator);
  quern_source *made = base_alloc_zero(&heap, sizeof *made);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  base_heap_init(&made->heap, allocator);
  base_arena_init(&made->arena, &made->heap);
  made->arena.first = 1024;
  *source = made;
  return QUERN_STATUS_OK;
}

void quern_source_free(quern_source *source) {
  if (source == NULL) return;
  for (size_t i = 0; i < source->n_rows; i++) io_map_close(&source->rows[i].map, &source->heap);
  base_arena_fini(&source->arena);
  quern_allocator user = source->heap.user;
  user.free(user.self, source, sizeof *source);
}

/* Gives the source, or frees it. */
static quern_status give(quern_source **source, quern_source *made, quern_status status) {
  if (status == QUERN_STATUS_OK)
    *source = made;
  else
    quern_source_free(made);
  return status;
}

/* Adds a field, with a copy of its name. */
static quern_status add_field(quern_source *source, const char *what, const quern_field *field) {
  int64_t count;
  size_t number = source->n_fields;
  QUERN_CHECK(field->name != NULL, INVALID, "%s: field %zu has no name", what, number);
  QUERN_CHECK((unsigned)field->dtype < QUERN_DTYPE_COUNT, INVALID, "%s: field \"%s\": %d is no dtype", what,
              field->name, (int)field->dtype);
  QUERN_CHECK(field->rank >= 0 && field->rank <= QUERN_MAX_RANK, SHAPE, "%s: field \"%s\": rank %d is not in 0..%d",
              what, field->name, field->rank, QUERN_MAX_RANK);
  for (int i = 0; i < field->rank; i++)
    QUERN_CHECK(field->dims[i] >= 0, SHAPE, "%s: field \"%s\": dimension %d is %" PRId64, what, field->name, i,
                field->dims[i]);
  if (ir_type_count(field->dtype, field->rank, field->dims, &count) != QUERN_STATUS_OK)
    return base_error(quern_last_status(), "%s: field \"%s\": %s", what, field->name, quern_last_error());
  source->fields[number] = *field;
  source->fields[number].name = base_arena_string(&source->arena, field->name, strlen(field->name));
  if (source->fields[number].name == NULL) return QUERN_STATUS_MEMORY;
  source->bytes[number] = (size_t)count * base_dtypes[field->dtype].size;
  source->n_fields++;
  return QUERN_STATUS_OK;
}

/* ---- tokens -------------------------------------------------------------------------------------------- */

/* The file that a sample is in: the last whose first sample is not behind it. */
static size_t file_of(const quern_source *source, int64_t index) {
  size_t low = 0, high = source->n_tokens;
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    if (source->first[middle] <= index)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Element i of a field of i32 or i64. */
static inline void put_id(quern_dtype dtype, void *field, int64_t i, uint32_t id) {
  if (dtype == QUERN_DTYPE_I32)
    ((int32_t *)field)[i] = (int32_t)id;
  else
    ((int64_t *)field)[i] = id;
}

static quern_status read_window(void *self, int64_t index, void *const *fields) {
  const quern_source *source = self;
  size_t file = file_of(source, index);
  const quern_tokens *tokens = source->tokens[file];
  int64_t length = source->window.length, start = (index - source->first[file]) * source->window.stride;
  uint64_t vocab = source->window.vocab > 0 ? source->window.vocab : tokens->vocab;
  if (source->window.dtype == QUERN_DTYPE_I32 && (vocab == 0 || vocab > (uint64_t)INT32_MAX + 1))
    vocab = (uint64_t)INT32_MAX + 1;
  uint32_t ids[AT_ONCE];
  for (int64_t i = 0, from = 0; i <= length; i++) {
    if (i == from) {
      size_t n = (size_t)BASE_MIN(length + 1 - from, (int64_t)AT_ONCE);
      QUERN_TRY(io_tokens_read(tokens, start + from, n, ids));
      from += (int64_t)n;
    }
    uint32_t id = ids[i % AT_ONCE];
    QUERN_CHECK(vocab == 0 || id < vocab, PARSE, "%s: the id at %" PRId64 " is %" PRIu32 ", there are %" PRIu64,
                io_tokens_path(tokens), start + i, id, vocab);
    if (i < length) put_id(source->window.dtype, fields[0], i, id);
    if (i > 0) put_id(source->window.dtype, fields[1], i - 1, id);
  }
  return QUERN_STATUS_OK;
}

static quern_status fill_tokens(quern_source *source, size_t n, quern_tokens *const *tokens,
                                const quern_token_window *window) {
  quern_field field = {.name = "inputs", .dtype = window->dtype, .rank = 1, .dims = {window->length}};
  QUERN_TRY(add_field(source, "source_tokens", &field));
  field.name = "labels";
  field.pad = -1;
  QUERN_TRY(add_field(source, "source_tokens", &field));
  source->window = *window;
  if (window->stride == 0) source->window.stride = window->length;
  source->tokens = base_arena_copy(&source->arena, tokens, n * sizeof *tokens);
  source->first = base_arena_alloc(&source->arena, (n + 1) * sizeof *source->first);
  if (source->tokens == NULL || source->first == NULL) return QUERN_STATUS_MEMORY;
  source->n_tokens = n;
  for (size_t i = 0; i < n; i++) {
    int64_t left = tokens[i]->n - window->length - 1; /* beginnings behind the first */
    int64_t samples = left < 0 ? 0 : left / source->window.stride + 1;
    source->first[i + 1] = source->first[i] + samples;
  }
  source->samples = source->first[n];
  source->read = read_window;
  source->self = source;
  QUERN_CHECK(source->samples > 0, INVALID, "source_tokens: no file has the %" PRId64 " ids of a window",
              window->length + 1);
  return QUERN_STATUS_OK;
}

quern_status quern_source_tokens(quern_source **source, size_t n, quern_tokens *const *tokens,
                                 const quern_token_window *window, const quern_allocator *allocator) {
  QUERN_CHECK(source != NULL, INVALID, "source_tokens: the place for the source is null");
  *source = NULL;
  QUERN_CHECK(tokens != NULL && n > 0, INVALID, "source_tokens: there are no tokens");
  for (size_t i = 0; i < n; i++) QUERN_CHECK(tokens[i] != NULL, INVALID, "source_tokens: tokens %zu are null", i);
  QUERN_CHECK(window != NULL, INVALID, "source_tokens: the window is null");
  quern_token_window taken;
  QUERN_TRY(base_take(quern_token_window, &taken, window, "source_tokens"));
  if (taken.dtype == 0) taken.dtype = QUERN_DTYPE_I32;
  window = &taken;
  QUERN_CHECK(window->length > 0 && window->length < INT64_C(1) << 40, INVALID, "source_tokens: the length is %" PRId64,
              window->length);
  QUERN_CHECK(window->stride >= 0, INVALID, "source_tokens: the stride is %" PRId64, window->stride);
  QUERN_CHECK(window->dtype == QUERN_DTYPE_I32 || window->dtype == QUERN_DTYPE_I64, DTYPE,
              "source_tokens: fields are i32 or i64, not %s", quern_dtype_name(window->dtype));
  quern_source *made;
  QUERN_TRY(new_source(&made, allocator));
  return give(source, made, fill_tokens(made, n, tokens, window));
}

/* ---- arrays -------------------------------------------------------------------------------------------- */

static void swap(unsigned char *at, size_t n, size_t size) {
  for (size_t i = 0; i + size <= n; i += size) {
    for (size_t k = 0; k < size / 2; k++) {
      unsigned char byte = at[i + k];
      at[i + k] = at[i + size - 1 - k];
      at[i + size - 1 - k] = byte;
    }
  }
}

static quern_status read_rows(void *self, int64_t index, void *const *fields) {
  const quern_source *source = self;
  for (size_t i = 0; i < source->n_rows; i++) {
    const struct io_rows *rows = &source->rows[i];
    QUERN_TRY(io_map_read(&rows->map, rows->first + (size_t)index * rows->bytes, rows->bytes, fields[i]));
    if (rows->size > 0) swap(fields[i], rows->bytes, rows->size);
    unsigned char *bytes = fields[i];
    for (size_t k = 0; source->fields[i].dtype == QUERN_DTYPE_BOOL && k < rows->bytes; k++) bytes[k] = bytes[k] != 0;
  }
  return QUERN_STATUS_OK;
}

/* Maps a file as the next field. */
static quern_status add_rows(quern_source *source, const char *path) {
  struct io_rows *rows = &source->rows[source->n_rows];
  struct io_npy npy;
  QUERN_TRY(io_map_open(&rows->map, &source->heap, path));
  source->n_rows++;
  QUERN_TRY(io_npy_head(&npy, &source->heap, path, rows->map.bytes, rows->map.n));
  QUERN_CHECK(npy.rank > 0, SHAPE, "%s: is a scalar, which has no rows", path);
  QUERN_CHECK(!npy.fortran || npy.rank == 1, UNSUPPORTED, "%s: has its columns first HINT: numpy.ascontiguousarray",
              path);
  QUERN_CHECK(source->n_rows == 1 || npy.dims[0] == source->samples, SHAPE, "%s: has %" PRId64 " rows, %s has %" PRId64,
              path, npy.dims[0], source->fields[0].name, source->samples);
  source->samples = npy.dims[0];
  QUERN_CHECK(source->samples > 0, SHAPE, "%s: has no rows", path);
  quern_field field = {.name = path, .dtype = npy.dtype, .rank = npy.rank - 1};
  memcpy(field.dims, npy.dims + 1, (size_t)field.rank * sizeof *field.dims);
  QUERN_TRY(add_field(source, "source_arrays", &field));
  rows->first = npy.first;
  rows->bytes = source->bytes[source->n_fields - 1];
  rows->size = npy.swapped ? base_dtypes[npy.dtype].size : 0;
  return QUERN_STATUS_OK;
}

static quern_status fill_arrays(quern_source *source, size_t n, const char *const *paths) {
  source->rows = base_arena_alloc(&source->arena, n * sizeof *source->rows);
  if (source->rows == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) QUERN_TRY(add_rows(source, paths[i]));
  source->read = read_rows;
  source->self = source;
  return QUERN_STATUS_OK;
}

quern_status quern_source_arrays(quern_source **source, size_t n, const char *const *paths,
                                 const quern_allocator *allocator) {
  QUERN_CHECK(source != NULL, INVALID, "source_arrays: the place for the source is null");
  *source = NULL;
  QUERN_CHECK(paths != NULL && n > 0 && n <= QUERN_MAX_FIELDS, INVALID,
              "source_arrays: %zu paths; 1 to %d are possible", paths != NULL ? n : 0, QUERN_MAX_FIELDS);
  for (size_t i = 0; i < n; i++) QUERN_CHECK(paths[i] != NULL, INVALID, "source_arrays: path %zu is null", i);
  quern_source *made;
  QUERN_TRY(new_source(&made, allocator));
  return give(source, made, fill_arrays(made, n, paths));
}

/* ---- a function ---------------------------------------------------------------------------------------- */

static quern_status new_with_fields(quern_source **made, const char *what, int64_t samples, size_t n_fields,
                                    const quern_field *fields, const quern_allocator *allocator) {
  QUERN_CHECK(samples > 0, INVALID, "%s: there are %" PRId64 " samples", what, samples);
  QUERN_CHECK(fields != NULL && n_fields > 0 && n_fields <= QUERN_MAX_FIELDS, INVALID,
              "%s: %zu fields; 1 to %d are possible", what, fields != NULL ? n_fields : 0, QUERN_MAX_FIELDS);
  QUERN_TRY(new_source(made, allocator));
  (*made)->samples = samples;
  for (size_t i = 0; i < n_fields; i++) {
    quern_status status = add_field(*made, what, &fields[i]);
    if (status == QUERN_STATUS_OK) continue;
    quern_source_free(*made);
    return status;
  }
  return QUERN_STATUS_OK;
}

quern_status quern_source_call(quern_source **source, int64_t samples, size_t n_fields, const quern_field *fields,
                               quern_source_read *read, void *self, const quern_allocator *allocator) {
  QUERN_CHECK(source != NULL, INVALID, "source_call: the place for the source is null");
  *source = NULL;
  QUERN_CHECK(read != NULL, INVALID, "source_call: the function is null");
  quern_source *made;
  QUERN_TRY(new_with_fields(&made, "source_call", samples, n_fields, fields, allocator));
  made->read = read;
  made->self = self;
  *source = made;
  return QUERN_STATUS_OK;
}

/* A quern_source_read. */
static quern_status read_memory(void *self, int64_t index, void *const *fields) {
  const quern_source *source = self;
  for (size_t i = 0; i < source->n_fields; i++) {
    const unsigned char *array = source->arrays[i];
    memcpy(fields[i], array + (size_t)index * source->bytes[i], source->bytes[i]);
  }
  return QUERN_STATUS_OK;
}

quern_status quern_source_memory(quern_source **source, int64_t samples, size_t n_fields, const quern_field *fields,
                                 const void *const *arrays, const quern_allocator *allocator) {
  QUERN_CHECK(source != NULL, INVALID, "source_memory: the place for the source is null");
  *source = NULL;
  QUERN_CHECK(arrays != NULL, INVALID, "source_memory: the list of arrays is null");
  quern_source *made;
  QUERN_TRY(new_with_fields(&made, "source_memory", samples, n_fields, fields, allocator));
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < n_fields && status == QUERN_STATUS_OK; i++) {
    made->arrays[i] = arrays[i];
    if (arrays[i] == NULL)
      status = base_error(QUERN_STATUS_INVALID, "source_memory: the array of field \"%s\" is null", fields[i].name);
  }
  made->read = read_memory;
  made->self = made;
  return give(source, made, status);
}

quern_status quern_source_fail(quern_status status, const char *message) {
  if (status <= QUERN_STATUS_OK || status >= QUERN_STATUS_COUNT) status = QUERN_STATUS_IO;
  return base_error(status, "%s", message != NULL ? message : "no reason is given");
}

/* ---- a source's description----------------------------------------------------------------------------- */

int64_t quern_source_sample_count(const quern_source *source) { return source != NULL ? source->samples : 0; }

size_t quern_source_fields(const quern_source *source, const quern_field **fields) {
  if (fields != NULL) *fields = source != NULL ? source->fields : NULL;
  return source != NULL ? source->n_fields : 0;
}

quern_status io_source_read(const quern_source *source, int64_t index, void *const *fields) {
  quern_status before = base_error_swap(QUERN_STATUS_OK), status = source->read(source->self, index, fields);
  if (status == QUERN_STATUS_OK) {
    base_error_swap(before);
    return QUERN_STATUS_OK;
  }
  if (quern_last_status() != QUERN_STATUS_OK && status > QUERN_STATUS_OK && status < QUERN_STATUS_COUNT) return status;
  return base_error(QUERN_STATUS_IO, "the source gave status %d without a reason HINT: return quern_source_fail(..)",
                    (int)status);
}

quern_status quern_source_get(const quern_source *source, int64_t index, void *const *fields) {
  QUERN_CHECK(source != NULL, INVALID, "source_get: the source is null");
  QUERN_CHECK(fields != NULL, INVALID, "source_get: the fields are null");
  QUERN_CHECK(index >= 0 && index < source->samples, INVALID, "source_get: sample %" PRId64 " of %" PRId64, index,
              source->samples);
  for (size_t i = 0; i < source->n_fields; i++) {
    QUERN_CHECK(fields[i] != NULL, INVALID, "source_get: the place for field \"%s\" is null", source->fields[i].name);
  }
  quern_status status = io_source_read(source, index, fields);
  if (status != QUERN_STATUS_OK) base_error(status, "%s\n  in sample %" PRId64, quern_last_error(), index);
  return status;
}
