/* io/safetensors_header.c -- the header of a safetensors file: names, dtypes, shapes, places
** in:    any bytes                            out: entries that lie one after another and fill the file, or what is wrong
** keeps: begin <= end, no two entries overlap, no byte of the file belongs to none; sizes are those of dtype and shape
** see:   https://github.com/huggingface/safetensors, "Format"
** tests: tests/io/test_safetensors.c, tests/fuzz/fuzz_safetensors.c
*/
#include <inttypes.h>
#include <stdlib.h>

#include "io/json.h"
#include "io/safetensors.h"
#include "ir/ir.h"

/* What messages begin with: the file and the tensor. */
struct place {
  const char *path;
  char name[160];
};

static quern_status read_dtype(const struct place *place, const json_t *info, struct io_entry *entry) {
  char shown[64];
  const json_t *value = json_object_get(info, "dtype");
  QUERN_CHECK(json_is_string(value), PARSE, "%s: tensor '%s': has no dtype that is a string", place->path, place->name);
  for (int i = 0; i < QUERN_DTYPE_COUNT; i++) {
    if (strcmp(json_string_value(value), io_safetensors_dtypes[i]) != 0) continue;
    entry->dtype = (quern_dtype)i;
    return QUERN_STATUS_OK;
  }
  return base_error(QUERN_STATUS_PARSE,
                    "%s: tensor '%s': the dtype '%s' is none of F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I8 I16 I32 I64 U8 U16 "
                    "U32 U64 BOOL",
                    place->path, place->name, io_json_shown(shown, sizeof shown, json_string_value(value)));
}

static quern_status read_shape(const struct place *place, struct base_arena *arena, const json_t *info,
                               struct io_entry *entry) {
  const json_t *value = json_object_get(info, "shape");
  QUERN_CHECK(json_is_array(value), PARSE, "%s: tensor '%s': has no shape that is an array", place->path, place->name);
  QUERN_CHECK(json_array_size(value) <= QUERN_MAX_RANK, PARSE,
              "%s: tensor '%s': the shape has %zu axes, at most %d are possible", place->path, place->name,
              json_array_size(value), QUERN_MAX_RANK);
  entry->rank = (int)json_array_size(value);
  int64_t *dims = base_arena_alloc(arena, (size_t)BASE_MAX(entry->rank, 1) * sizeof *dims);
  if (dims == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < entry->rank; i++) {
    const json_t *dim = json_array_get(value, (size_t)i);
    QUERN_CHECK(json_is_integer(dim) && json_integer_value(dim) >= 0, PARSE,
                "%s: tensor '%s': axis %d of the shape is no size", place->path, place->name, i);
    dims[i] = json_integer_value(dim);
  }
  entry->dims = dims;
  return QUERN_STATUS_OK;
}

static quern_status read_offsets(const struct place *place, const json_t *info, struct io_entry *entry) {
  const json_t *value = json_object_get(info, "data_offsets");
  QUERN_CHECK(json_is_array(value) && json_array_size(value) == 2, PARSE,
              "%s: tensor '%s': has no data_offsets that are two numbers", place->path, place->name);
  const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
  QUERN_CHECK(json_is_integer(begin) && json_is_integer(end) && json_integer_value(begin) >= 0 &&
                  json_integer_value(end) >= json_integer_value(begin),
              PARSE, "%s: tensor '%s': data_offsets must be two integers, 0 <= begin <= end", place->path, place->name);
  entry->begin = (uint64_t)json_integer_value(begin);
  entry->end = (uint64_t)json_integer_value(end);
  return QUERN_STATUS_OK;
}

/* The offsets are as far apart as dtype and shape require. */
static quern_status check_size(const struct place *place, const struct io_entry *entry) {
  char shape[256];
  int64_t count;
  if (ir_type_count(entry->dtype, entry->rank, entry->dims, &count) != QUERN_STATUS_OK)
    return base_error(QUERN_STATUS_OVERFLOW,
                      "%s: tensor '%s': a tensor of shape %s and dtype %s has more than 2^63 - 1 bytes", place->path,
                      place->name, base_shape_text(shape, sizeof shape, entry->rank, entry->dims),
                      base_dtypes[entry->dtype].name);
  uint64_t bytes = (uint64_t)count * base_dtypes[entry->dtype].size;
  QUERN_CHECK(entry->end - entry->begin == bytes, PARSE,
              "%s: tensor '%s': %s%s has %" PRIu64 " bytes, but data_offsets [%" PRIu64 ", %" PRIu64 "] span %" PRIu64,
              place->path, place->name, base_dtypes[entry->dtype].name,
              base_shape_text(shape, sizeof shape, entry->rank, entry->dims), bytes, entry->begin, entry->end,
              entry->end - entry->begin);
  return QUERN_STATUS_OK;
}

static quern_status read_entry(quern_safetensors *file, const char *name, const json_t *info) {
  struct place place = {.path = file->shards.at[file->shards.n - 1].path};
  struct io_entry entry = {.shard = file->shards.n - 1, .order = file->entries.n};
  io_json_shown(place.name, sizeof place.name, name);
  QUERN_CHECK(json_is_object(info), PARSE, "%s: tensor '%s': is no object", place.path, place.name);
  QUERN_TRY(read_dtype(&place, info, &entry));
  QUERN_TRY(read_shape(&place, &file->arena, info, &entry));
  QUERN_TRY(read_offsets(&place, info, &entry));
  QUERN_TRY(check_size(&place, &entry));
  entry.name = base_arena_string(&file->arena, name, strlen(name));
  bool added = entry.name != NULL && base_vec_push(&file->heap, &file->entries, entry);
  return added ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status read_pairs(quern_safetensors *file, const char *path, json_t *metadata, bool keep) {
  char shown[160];
  const char *key;
  json_t *value;
  QUERN_CHECK(json_is_object(metadata), PARSE, "%s: __metadata__ is no object", path);
  json_object_foreach(metadata, key, value) {
    QUERN_CHECK(json_is_string(value), PARSE, "%s: '%s' of __metadata__ is no string", path,
                io_json_shown(shown, sizeof shown, key));
    if (keep) QUERN_TRY(io_safetensors_add_pair(file, key, json_string_value(value)));
  }
  return QUERN_STATUS_OK;
}

static int by_place(const void *a, const void *b) {
  const struct io_entry *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  if (x->end != y->end) return x->end < y->end ? -1 : 1;
  return x->order < y->order ? -1 : 1;
}

/* Sorts the entries from `first` on; they must fill the elements' bytes. */
static quern_status place_entries(quern_safetensors *file, size_t first) {
  const struct io_shard *shard = &file->shards.at[file->shards.n - 1];
  size_t n = file->entries.n - first;
  uint64_t at = 0, whole = shard->size - shard->data;
  char name[160], before[160];
  if (n > 1) qsort(file->entries.at + first, n, sizeof *file->entries.at, by_place);
  for (size_t i = 0; i < n; i++) {
    const struct io_entry *entry = &file->entries.at[first + i];
    io_json_shown(name, sizeof name, entry->name);
    io_json_shown(before, sizeof before, i > 0 ? entry[-1].name : "");
    QUERN_CHECK(entry->begin >= at, PARSE,
                "%s: tensor '%s' begins at %" PRIu64 " of the elements, but tensor '%s' before it ends at %" PRIu64,
                shard->path, name, entry->begin, before, at);
    QUERN_CHECK(entry->begin == at, PARSE,
                "%s: bytes %" PRIu64 " to %" PRIu64 " of the elements, before tensor '%s', belong to no tensor",
                shard->path, at, entry->begin, name);
    QUERN_CHECK(entry->end <= whole, PARSE,
                "%s: tensor '%s' ends at %" PRIu64 " of the elements, but the file has only %" PRIu64, shard->path,
                name, entry->end, whole);
    at = entry->end;
  }
  QUERN_CHECK(at == whole, PARSE, "%s: the tensors end at %" PRIu64 " of the elements, but the file has %" PRIu64,
              shard->path, at, whole);
  return QUERN_STATUS_OK;
}

static quern_status read_object(quern_safetensors *file, json_t *object, bool pairs) {
  const char *path = file->shards.at[file->shards.n - 1].path, *key;
  size_t first = file->entries.n;
  json_t *value;
  json_object_foreach(object, key, value) {
    bool metadata = strcmp(key, "__metadata__") == 0;
    QUERN_TRY(metadata ? read_pairs(file, path, value, pairs) : read_entry(file, key, value));
  }
  return place_entries(file, first);
}

quern_status io_safetensors_read_header(quern_safetensors *file, bool pairs) {
  struct io_shard *shard = &file->shards.at[file->shards.n - 1];
  unsigned char length[IO_SAFETENSORS_LENGTH];
  uint64_t n = 0;
  QUERN_TRY(io_shard_read(shard, 0, length, sizeof length));
  for (int i = IO_SAFETENSORS_LENGTH - 1; i >= 0; i--) n = n << 8 | length[i];
  QUERN_CHECK(n <= IO_SAFETENSORS_HEADER_MOST, PARSE,
              "%s: is no safetensors file: its header would have %" PRIu64 " bytes, at most %d are possible",
              shard->path, n, IO_SAFETENSORS_HEADER_MOST);
  QUERN_CHECK(n <= shard->size - IO_SAFETENSORS_LENGTH, PARSE,
              "%s: the header has %" PRIu64 " bytes, but %" PRIu64 " follow its length", shard->path, n,
              shard->size - IO_SAFETENSORS_LENGTH);
  shard->data = IO_SAFETENSORS_LENGTH + n;
  char *text = base_alloc(&file->heap, (size_t)n);
  if (text == NULL) return QUERN_STATUS_MEMORY;
  json_t *object = NULL;
  quern_status status = io_shard_read(shard, IO_SAFETENSORS_LENGTH, text, (size_t)n);
  if (status == QUERN_STATUS_OK && (n == 0 || text[0] != '{'))
    status =
        base_error(QUERN_STATUS_PARSE, "%s: is no safetensors file: its header does not begin with '{'", shard->path);
  if (status == QUERN_STATUS_OK) status = io_json_parse(shard->path, text, (size_t)n, &object);
  if (status == QUERN_STATUS_OK) status = read_object(file, object, pairs);
  json_decref(object);
  base_free(&file->heap, text, (size_t)n);
  return status;
}
