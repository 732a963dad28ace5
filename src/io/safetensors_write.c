/* io/safetensors_write.c -- safetensors files from tensors in memory
** in:    tensors by name, checked here        out: one file, or shards and an index; whole or not there
** keeps: elements fill the file without holes, as the format demands; each tensor begins at a multiple of the power of two, up to
**        64, that its bytes are a multiple of, because those with a larger one come before it
** tests: tests/io/test_safetensors.c, tests/oracle/compare_safetensors.py
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/json.h"
#include "io/safetensors.h"
#include "ir/ir.h"

static const char metadata_key[] = "__metadata__", index_end[] = ".index.json", shard_end[] = ".safetensors";

uint64_t io_safetensor_bytes(const quern_safetensor *tensor) {
  uint64_t n = base_dtypes[tensor->dtype].size;
  for (int i = 0; i < tensor->rank; i++)
    if (tensor->dims[i] == 0) return 0;
  for (int i = 0; i < tensor->rank; i++) n *= (uint64_t)tensor->dims[i];
  return n;
}

/* ---- checks --------------------------------------------------------------------------------------------- */

static bool is_text(const void *item, const void *key) { return strcmp(item, key) == 0; }

/* Adds a name that must be new. */
static quern_status add_name(struct base_map *map, const char *name, bool *fresh) {
  uint64_t hash = base_hash_string(BASE_HASH_SEED, name);
  *fresh = base_map_find(map, hash, is_text, name) == NULL;
  if (*fresh && !base_map_add(map, hash, (void *)(uintptr_t)name)) return QUERN_STATUS_MEMORY;
  return QUERN_STATUS_OK;
}

static quern_status check_tensor(const char *what, struct base_map *names, size_t i, const quern_safetensor *tensor,
                                 bool given) {
  char shape[256], name[160];
  int64_t count;
  bool fresh;
  QUERN_CHECK(tensor->name != NULL, INVALID, "%s: the name of tensor %zu is null", what, i);
  io_json_shown(name, sizeof name, tensor->name);
  QUERN_CHECK(strcmp(tensor->name, metadata_key) != 0, INVALID, "%s: tensor %zu: the name '%s' is the format's own",
              what, i, name);
  QUERN_CHECK((unsigned)tensor->dtype < QUERN_DTYPE_COUNT, INVALID, "%s: tensor '%s': %d is no dtype", what, name,
              (int)tensor->dtype);
  QUERN_CHECK(tensor->rank >= 0 && tensor->rank <= QUERN_MAX_RANK, SHAPE, "%s: tensor '%s': rank %d is not in 0..%d",
              what, name, tensor->rank, QUERN_MAX_RANK);
  QUERN_CHECK(tensor->rank == 0 || tensor->dims != NULL, INVALID, "%s: tensor '%s': the shape of rank %d is null", what,
              name, tensor->rank);
  base_shape_text(shape, sizeof shape, tensor->rank, tensor->dims);
  for (int k = 0; k < tensor->rank; k++)
    QUERN_CHECK(tensor->dims[k] >= 0, SHAPE, "%s: tensor '%s': axis %d of %s is negative", what, name, k, shape);
  QUERN_CHECK(ir_type_count(tensor->dtype, tensor->rank, tensor->dims, &count) == QUERN_STATUS_OK, OVERFLOW,
              "%s: tensor '%s': %s of %s has more than 2^63 - 1 bytes", what, name, shape,
              base_dtypes[tensor->dtype].name);
  QUERN_CHECK(tensor->data != NULL || count == 0 || given, INVALID, "%s: tensor '%s': the data of %s is null", what,
              name, shape);
  QUERN_TRY(add_name(names, tensor->name, &fresh));
  QUERN_CHECK(fresh, INVALID, "%s: there are two tensors '%s'", what, name);
  return QUERN_STATUS_OK;
}

static quern_status check_pair(const char *what, struct base_map *keys, size_t i, const quern_string_pair *pair) {
  char shown[160];
  bool fresh;
  QUERN_CHECK(pair->key != NULL && pair->value != NULL, INVALID, "%s: the %s of pair %zu is null", what,
              pair->key == NULL ? "key" : "value", i);
  QUERN_TRY(add_name(keys, pair->key, &fresh));
  QUERN_CHECK(fresh, INVALID, "%s: there are two pairs '%s'", what, io_json_shown(shown, sizeof shown, pair->key));
  return QUERN_STATUS_OK;
}

quern_status io_safetensors_check(const char *what, struct base_heap *heap, size_t n, const quern_safetensor *tensors,
                                  bool given, size_t n_pairs, const quern_string_pair *pairs) {
  QUERN_CHECK(tensors != NULL || n == 0, INVALID, "%s: the list of %zu tensors is null", what, n);
  QUERN_CHECK(pairs != NULL || n_pairs == 0, INVALID, "%s: the list of %zu pairs is null", what, n_pairs);
  struct base_map names, keys;
  quern_status status = QUERN_STATUS_OK;
  uint64_t bytes = 0;
  base_map_init(&names, heap);
  base_map_init(&keys, heap);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) {
    status = check_tensor(what, &names, i, &tensors[i], given);
    if (status != QUERN_STATUS_OK) break;
    bytes += io_safetensor_bytes(&tensors[i]);
    if (bytes > INT64_MAX)
      status =
          base_error(QUERN_STATUS_OVERFLOW, "%s: the first %zu tensors have more than 2^63 - 1 bytes", what, i + 1);
  }
  for (size_t i = 0; i < n_pairs && status == QUERN_STATUS_OK; i++) status = check_pair(what, &keys, i, &pairs[i]);
  base_map_fini(&keys);
  base_map_fini(&names);
  return status;
}

/* ---- layout and header ---------------------------------------------------------------------------------- */

struct ranked {
  uint64_t alignment;
  size_t tensor, place;
};

/* Larger alignments first, else as they were. */
static int by_alignment(const void *a, const void *b) {
  const struct ranked *x = a, *y = b;
  if (x->alignment != y->alignment) return x->alignment > y->alignment ? -1 : 1;
  return x->place < y->place ? -1 : 1;
}

/* The power of two, at most 64, that a size is a multiple of. */
static uint64_t alignment_of(uint64_t bytes) {
  bytes |= IO_SAFETENSORS_ALIGNMENT;
  return bytes & (0 - bytes);
}

static quern_status choose_order(struct io_layout *layout, const size_t *which, const quern_safetensor *tensors) {
  struct base_heap *heap = layout->header.heap;
  size_t n = layout->n, bytes;
  if (!base_size(BASE_MAX(n, 1), sizeof(struct ranked), 0, &bytes))
    return base_error(QUERN_STATUS_MEMORY, "no memory for a list of %zu tensors", n);
  struct ranked *ranked = base_alloc(heap, bytes);
  layout->order = ranked != NULL ? base_alloc(heap, BASE_MAX(n, 1) * sizeof *layout->order) : NULL;
  for (size_t i = 0; i < n && layout->order != NULL; i++) {
    size_t tensor = which != NULL ? which[i] : i;
    ranked[i] = (struct ranked){alignment_of(io_safetensor_bytes(&tensors[tensor])), tensor, i};
  }
  if (layout->order != NULL && n > 1) qsort(ranked, n, sizeof *ranked, by_alignment);
  for (size_t i = 0; i < n && layout->order != NULL; i++) layout->order[i] = ranked[i].tensor;
  base_free(heap, ranked, bytes);
  return layout->order != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status add_pairs(struct base_str *str, size_t n, const quern_string_pair *pairs) {
  for (size_t i = 0; i < n; i++) {
    if (i > 0) base_str_add(str, ",");
    QUERN_TRY(io_json_add_string(str, pairs[i].key));
    base_str_add(str, ":");
    QUERN_TRY(io_json_add_string(str, pairs[i].value));
  }
  return QUERN_STATUS_OK;
}

static quern_status add_tensor(struct io_layout *layout, const quern_safetensor *tensor) {
  struct base_str *str = &layout->header;
  uint64_t end = layout->bytes + io_safetensor_bytes(tensor);
  QUERN_TRY(io_json_add_string(str, tensor->name));
  base_str_printf(str, ":{\"dtype\":\"%s\",\"shape\":[", io_safetensors_dtypes[tensor->dtype]);
  for (int i = 0; i < tensor->rank; i++) base_str_printf(str, i > 0 ? ",%" PRId64 : "%" PRId64, tensor->dims[i]);
  base_str_printf(str, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", layout->bytes, end);
  layout->bytes = end;
  return QUERN_STATUS_OK;
}

/* Pads the header with blanks and fills in its length. */
static quern_status end_header(struct base_str *str) {
  static const char blanks[IO_SAFETENSORS_ALIGNMENT + 1] =
      "                                                                ";
  base_str_add(str, "}");
  base_str_add_n(str, blanks,
                 (IO_SAFETENSORS_ALIGNMENT - str->n % IO_SAFETENSORS_ALIGNMENT) % IO_SAFETENSORS_ALIGNMENT);
  QUERN_TRY(base_str_status(str));
  uint64_t length = str->n - IO_SAFETENSORS_LENGTH;
  QUERN_CHECK(length <= IO_SAFETENSORS_HEADER_MOST, OVERFLOW,
              "the header would have %" PRIu64 " bytes, at most %d are possible", length, IO_SAFETENSORS_HEADER_MOST);
  for (int i = 0; i < IO_SAFETENSORS_LENGTH; i++) str->at[i] = (char)(length >> (8 * i) & 0xff);
  return QUERN_STATUS_OK;
}

quern_status io_layout_make(struct io_layout *layout, struct base_heap *heap, size_t n, const size_t *which,
                            const quern_safetensor *tensors, size_t n_pairs, const quern_string_pair *pairs) {
  *layout = (struct io_layout){.n = n};
  base_str_init(&layout->header, heap);
  QUERN_TRY(choose_order(layout, which, tensors));
  base_str_add_n(&layout->header, "\0\0\0\0\0\0\0", IO_SAFETENSORS_LENGTH);
  base_str_add(&layout->header, "{");
  if (n_pairs > 0) {
    base_str_printf(&layout->header, "\"%s\":{", metadata_key);
    QUERN_TRY(add_pairs(&layout->header, n_pairs, pairs));
    base_str_add(&layout->header, n > 0 ? "}," : "}");
  }
  for (size_t i = 0; i < n; i++) {
    if (i > 0) base_str_add(&layout->header, ",");
    QUERN_TRY(add_tensor(layout, &tensors[layout->order[i]]));
  }
  return end_header(&layout->header);
}

void io_layout_fini(struct io_layout *layout) {
  if (layout->order != NULL)
    base_free(layout->header.heap, layout->order, BASE_MAX(layout->n, 1) * sizeof *layout->order);
  base_str_fini(&layout->header);
  layout->order = NULL;
}

/* ---- files ---------------------------------------------------------------------------------------------- */

/* A call of quern_safetensors_write. */
struct writing {
  struct base_heap *heap;
  const char *path;
  size_t n, n_pairs;
  const quern_safetensor *tensors;
  const quern_string_pair *pairs;
};

/* Writes some of the tensors to a file beside path. */
static quern_status begin_file(const struct writing *writing, size_t n, const size_t *which, const char *path,
                               struct io_pending *file) {
  struct io_layout layout;
  size_t bytes = 0;
  struct io_piece *pieces = NULL;
  quern_status status =
      io_layout_make(&layout, writing->heap, n, which, writing->tensors, writing->n_pairs, writing->pairs);
  if (status == QUERN_STATUS_OK) {
    bytes = (n + 1) * sizeof *pieces;
    pieces = base_alloc(writing->heap, bytes);
    if (pieces == NULL) status = QUERN_STATUS_MEMORY;
  }
  if (status == QUERN_STATUS_OK) {
    pieces[0] = (struct io_piece){layout.header.at, layout.header.n};
    for (size_t i = 0; i < n; i++) {
      const quern_safetensor *tensor = &writing->tensors[layout.order[i]];
      pieces[i + 1] = (struct io_piece){tensor->data, (size_t)io_safetensor_bytes(tensor)};
    }
    status = io_file_begin(file, "safetensors_write", path, n + 1, pieces);
  } else if (status != QUERN_STATUS_MEMORY) {
    status = base_error(status, "safetensors_write: %s", quern_last_error());
  }
  base_free(writing->heap, pieces, bytes);
  io_layout_fini(&layout);
  return status;
}

static quern_status write_one(const struct writing *writing) {
  struct io_pending file;
  QUERN_TRY(begin_file(writing, writing->n, NULL, writing->path, &file));
  QUERN_TRY(io_file_end(&file, true));
  return io_file_sync_folder(writing->path);
}

/* ---- shards --------------------------------------------------------------------------------------------- */

/* Which shard each tensor goes to, in their order: a shard ends before the tensor that would make it too large. */
static size_t share_out(const struct writing *writing, uint64_t most, size_t *shard) {
  size_t n = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < writing->n; i++) {
    uint64_t more = io_safetensor_bytes(&writing->tensors[i]);
    if (i > 0 && more > 0 && bytes > 0 && (bytes > most || more > most - bytes)) {
      n++;
      bytes = 0;
    }
    shard[i] = n;
    bytes += more;
  }
  return n + 1;
}

/* The name of a shard, beside the index when whole, else alone. */
static quern_status shard_path(const struct writing *writing, size_t i, size_t n, bool whole, char path[IO_PATH_MOST]) {
  size_t stem = strlen(writing->path) - strlen(index_end), end = strlen(shard_end);
  if (stem >= end && strncmp(writing->path + stem - end, shard_end, end) == 0) stem -= end;
  const char *slash = strrchr(writing->path, '/');
  size_t first = whole || slash == NULL ? 0 : (size_t)(slash - writing->path) + 1;
  first = BASE_MIN(first, stem);
  int length = snprintf(path, IO_PATH_MOST, "%.*s-%05zu-of-%05zu%s", (int)(stem - first), writing->path + first, i + 1,
                        n, shard_end);
  QUERN_CHECK(length > 0 && length < IO_PATH_MOST, IO, "safetensors_write: the path has %zu bytes, which is too long",
              strlen(writing->path));
  return QUERN_STATUS_OK;
}

static quern_status make_index(const struct writing *writing, size_t n_shards, const size_t *shard,
                               struct base_str *str) {
  uint64_t total = 0;
  char path[IO_PATH_MOST];
  for (size_t i = 0; i < writing->n; i++) total += io_safetensor_bytes(&writing->tensors[i]);
  base_str_printf(str, "{\n\"metadata\":{\"total_size\":%" PRIu64 "%s", total, writing->n_pairs > 0 ? "," : "");
  QUERN_TRY(add_pairs(str, writing->n_pairs, writing->pairs));
  base_str_add(str, "},\n\"weight_map\":{");
  for (size_t i = 0; i < writing->n; i++) {
    base_str_add(str, i > 0 ? ",\n" : "\n");
    QUERN_TRY(io_json_add_string(str, writing->tensors[i].name));
    base_str_add(str, ":");
    QUERN_TRY(shard_path(writing, shard[i], n_shards, false, path));
    QUERN_TRY(io_json_add_string(str, path));
  }
  base_str_add(str, "\n}}\n");
  return base_str_status(str);
}

static quern_status begin_index(const struct writing *writing, size_t n_shards, const size_t *shard,
                                struct io_pending *file) {
  struct base_str str;
  base_str_init(&str, writing->heap);
  quern_status status = make_index(writing, n_shards, shard, &str);
  if (status == QUERN_STATUS_OK)
    status = io_file_begin(file, "safetensors_write", writing->path, 1, &(struct io_piece){str.at, str.n});
  base_str_fini(&str);
  return status;
}

/* Shards beyond these are not held open: descriptors are few. Two processes that write the same name at a time then get
** an error. */
enum { MOST_LOCKED = 200 };

/* Writes all files beside their paths, the index last; *done of them are there. which: room for all tensors. */
static quern_status begin_shards(const struct writing *writing, size_t n, const size_t *shard, size_t *which,
                                 struct io_pending *files, size_t *done) {
  size_t at = 0;
  for (*done = 0; *done < n; ++*done) {
    size_t count = 0;
    char path[IO_PATH_MOST];
    for (; at < writing->n && shard[at] == *done; at++) which[count++] = at;
    QUERN_TRY(shard_path(writing, *done, n, true, path));
    QUERN_TRY(begin_file(writing, count, which, path, &files[*done]));
    if (*done >= MOST_LOCKED) io_file_unlock(&files[*done]);
  }
  QUERN_TRY(begin_index(writing, n, shard, &files[n]));
  ++*done;
  return QUERN_STATUS_OK;
}

static quern_status write_files(const struct writing *writing, size_t n, const size_t *shard, size_t *which) {
  size_t done = 0, bytes;
  if (!base_size(n + 1, sizeof(struct io_pending), 0, &bytes))
    return base_error(QUERN_STATUS_MEMORY, "no memory for a list of %zu shards", n);
  struct io_pending *files = base_alloc(writing->heap, bytes);
  if (files == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = begin_shards(writing, n, shard, which, files, &done);
  for (size_t i = 0; i < done; i++) {
    quern_status ended = io_file_end(&files[i], status == QUERN_STATUS_OK);
    if (status == QUERN_STATUS_OK) status = ended;
  }
  if (status == QUERN_STATUS_OK) status = io_file_sync_folder(writing->path);
  base_free(writing->heap, files, bytes);
  return status;
}

static quern_status write_shards(const struct writing *writing, uint64_t most) {
  size_t bytes;
  for (size_t i = 0; i < writing->n_pairs; i++)
    QUERN_CHECK(strcmp(writing->pairs[i].key, "total_size") != 0, INVALID,
                "safetensors_write: the pair 'total_size' is the index's own");
  if (!base_size(BASE_MAX(writing->n, 1), 2 * sizeof(size_t), 0, &bytes))
    return base_error(QUERN_STATUS_MEMORY, "no memory for a list of %zu tensors", writing->n);
  size_t *shard = base_alloc(writing->heap, bytes);
  if (shard == NULL) return QUERN_STATUS_MEMORY;
  size_t n = share_out(writing, most, shard);
  quern_status status = write_files(writing, n, shard, shard + BASE_MAX(writing->n, 1));
  base_free(writing->heap, shard, bytes);
  return status;
}

quern_status quern_safetensors_write(const char *path, size_t n, const quern_safetensor *tensors,
                                     const quern_safetensors_options *options) {
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "safetensors_write: the path is %s",
              path == NULL ? "null" : "empty");
  quern_safetensors_options taken;
  QUERN_TRY(base_take(quern_safetensors_options, &taken, options, "safetensors_write"));
  options = &taken;
  QUERN_CHECK((options->allocator.alloc == NULL) == (options->allocator.free == NULL), INVALID,
              "safetensors_write: an allocator needs both alloc and free");
  QUERN_TRY(base_env_read());
  QUERN_TRY(io_safetensors_check_machine());
  size_t length = strlen(path), end = strlen(index_end);
  bool index = length > end && strcmp(path + length - end, index_end) == 0;
  QUERN_CHECK(index || options->shard_bytes == 0, INVALID,
              "safetensors_write: shards of %" PRIu64 " bytes need an index: %s does not end in %s",
              options->shard_bytes, path, index_end);
  QUERN_CHECK(!index || options->shard_bytes > 0, INVALID, "safetensors_write: the index %s needs options.shard_bytes",
              path);
  struct base_heap heap;
  base_heap_init(&heap, &options->allocator);
  QUERN_TRY(io_safetensors_check("safetensors_write", &heap, n, tensors, false, options->n_pairs, options->pairs));
  struct writing writing = {&heap, path, n, options->n_pairs, tensors, options->pairs};
  return options->shard_bytes > 0 ? write_shards(&writing, options->shard_bytes) : write_one(&writing);
}
