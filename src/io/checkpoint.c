/* io/checkpoint.c -- an open checkpoint: its contents, its tensors, their digests
** keeps: names, dtypes, shapes and places are covered by the digest of the model's header, elements by one a tensor
** tests: tests/io/test_checkpoint.c, tests/fuzz/fuzz_checkpoint.c, tests/oracle/compare_safetensors.py
*/
#include "io/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>

#include "io/json.h"

enum { CHUNK = 1 << 18 }; /* bytes read at a time: they are still in the cache when they are digested */

/* ---- opening -------------------------------------------------------------------------------------------- */

quern_status io_checkpoint_make(quern_checkpoint **checkpoint, const quern_allocator *allocator) {
  struct base_heap heap;
  base_heap_init(&heap, allocator);
  quern_checkpoint *made = base_alloc_zero(&heap, sizeof *made);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  made->heap = heap;
  base_arena_init(&made->arena, &made->heap);
  made->arena.first = 4096;
  *checkpoint = made;
  return QUERN_STATUS_OK;
}

static quern_status read_json(quern_checkpoint *c) {
  char path[IO_PATH_MOST];
  void *text;
  size_t n;
  QUERN_TRY(io_path_join(path, c->info.path, IO_CHECKPOINT_JSON));
  QUERN_TRY(io_file_read(path, &c->heap, IO_CHECKPOINT_JSON_MOST, &text, &n));
  quern_status status = io_checkpoint_parse(c, path, text, n);
  base_free(&c->heap, text, n);
  return status;
}

/* What is before the elements has its digest, and the file its bytes. */
static quern_status check_header(quern_checkpoint *c) {
  const struct io_shard *shard = &c->model->shards.at[0];
  QUERN_CHECK(shard->size == c->model_bytes, PARSE, "%s: has %" PRIu64 " bytes, the checkpoint was saved with %" PRIu64,
              shard->path, shard->size, c->model_bytes);
  void *header = base_alloc(&c->heap, (size_t)shard->data);
  if (header == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = io_shard_read(shard, 0, header, (size_t)shard->data);
  uint64_t digest = status == QUERN_STATUS_OK ? io_digest_of(header, (size_t)shard->data) : 0;
  base_free(&c->heap, header, (size_t)shard->data);
  QUERN_TRY(status);
  QUERN_CHECK(digest == c->model_header, PARSE,
              "%s: is damaged: the digest of its header is %016" PRIx64 ", the checkpoint was saved with %016" PRIx64,
              shard->path, digest, c->model_header);
  return QUERN_STATUS_OK;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const struct io_sum *)a)->name, ((const struct io_sum *)b)->name);
}

/* The digests in the order of the model's tensors. */
static quern_status match_sums(quern_checkpoint *c) {
  size_t n = c->sums.n, bytes = BASE_MAX(n, 1) * sizeof *c->sums.at;
  const char *path = c->model->shards.at[0].path;
  QUERN_CHECK(n == c->model->entries.n, PARSE, "%s: has %zu tensors, the checkpoint has digests of %zu", path,
              c->model->entries.n, n);
  struct io_sum *sorted = base_alloc(&c->heap, bytes);
  if (sorted == NULL) return QUERN_STATUS_MEMORY;
  if (n > 0) memcpy(sorted, c->sums.at, n * sizeof *sorted);
  if (n > 1) qsort(sorted, n, sizeof *sorted, by_name);
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) {
    char shown[160];
    struct io_sum key = {.name = c->model->entries.at[i].name};
    const struct io_sum *found = bsearch(&key, sorted, n, sizeof *sorted, by_name);
    if (found != NULL)
      c->sums.at[i] = *found;
    else
      status = base_error(QUERN_STATUS_PARSE, "%s: the checkpoint has no digest of tensor '%s'", path,
                          io_json_shown(shown, sizeof shown, key.name));
  }
  base_free(&c->heap, sorted, bytes);
  return status;
}

static quern_status open_folder(quern_checkpoint *c, const char *path) {
  char model[IO_PATH_MOST];
  c->info.path = base_arena_string(&c->arena, path, strlen(path));
  if (c->info.path == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(read_json(c));
  QUERN_TRY(io_path_join(model, path, IO_CHECKPOINT_MODEL));
  QUERN_TRY(quern_safetensors_open(&c->model, model, &c->heap.user));
  QUERN_TRY(check_header(c));
  return match_sums(c);
}

quern_status io_checkpoint_open(quern_checkpoint **checkpoint, const char *path, const quern_allocator *allocator) {
  QUERN_TRY(io_checkpoint_make(checkpoint, allocator));
  quern_status status = open_folder(*checkpoint, path);
  if (status == QUERN_STATUS_OK) return status;
  quern_checkpoint_close(*checkpoint);
  *checkpoint = NULL;
  return status;
}

quern_status quern_checkpoint_open(quern_checkpoint **checkpoint, const char *path, const quern_allocator *allocator) {
  QUERN_CHECK(checkpoint != NULL, INVALID, "checkpoint_open: the place for the checkpoint is null");
  *checkpoint = NULL;
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "checkpoint_open: the path is %s",
              path == NULL ? "null" : "empty");
  QUERN_CHECK(allocator == NULL || (allocator->alloc == NULL) == (allocator->free == NULL), INVALID,
              "checkpoint_open: an allocator needs both alloc and free");
  QUERN_TRY(base_env_read());
  return io_checkpoint_open(checkpoint, path, allocator);
}

void quern_checkpoint_close(quern_checkpoint *c) {
  if (c == NULL) return;
  quern_safetensors_close(c->model);
  base_vec_fini(&c->heap, &c->sums);
  base_vec_fini(&c->heap, &c->config);
  base_arena_fini(&c->arena);
  struct base_heap heap = c->heap;
  base_free(&heap, c, sizeof *c);
}

/* ---- what is in it -------------------------------------------------------------------------------------- */

quern_status quern_checkpoint_get_info(const quern_checkpoint *c, quern_checkpoint_info *info) {
  QUERN_CHECK(c != NULL, INVALID, "checkpoint_get_info: the checkpoint is null");
  QUERN_CHECK(info != NULL, INVALID, "checkpoint_get_info: the place for the info is null");
  return base_give(quern_checkpoint_info, info, &c->info, "checkpoint_get_info");
}

const char *quern_checkpoint_config(const quern_checkpoint *c, const char *key) {
  for (size_t i = 0; c != NULL && key != NULL && i < c->config.n; i++)
    if (strcmp(c->config.at[i].key, key) == 0) return c->config.at[i].value;
  return NULL;
}

const quern_safetensors *quern_checkpoint_tensors(const quern_checkpoint *c) { return c == NULL ? NULL : c->model; }

/* ---- elements ------------------------------------------------------------------------------------------- */

/* Reads tensor i in chunks, which must have its digest: to dst, or all into one chunk. */
static quern_status read_tensor(const quern_checkpoint *c, size_t i, unsigned char *dst, unsigned char *chunk) {
  char shown[160];
  const struct io_entry *entry = &c->model->entries.at[i];
  const struct io_shard *shard = &c->model->shards.at[entry->shard];
  struct io_digest digest;
  io_digest_init(&digest);
  for (uint64_t at = entry->begin; at < entry->end;) {
    size_t n = (size_t)BASE_MIN(entry->end - at, CHUNK);
    unsigned char *to = dst != NULL ? dst + (at - entry->begin) : chunk;
    QUERN_TRY(io_shard_read(shard, shard->data + at, to, n));
    io_digest_add(&digest, to, n);
    at += n;
  }
  QUERN_CHECK(io_digest_get(&digest) == c->sums.at[i].digest, PARSE,
              "%s: tensor '%s' is damaged: its digest is %016" PRIx64 ", the checkpoint was saved with %016" PRIx64,
              shard->path, io_json_shown(shown, sizeof shown, entry->name), io_digest_get(&digest),
              c->sums.at[i].digest);
  return QUERN_STATUS_OK;
}

quern_status quern_checkpoint_verify(const quern_checkpoint *c) {
  QUERN_CHECK(c != NULL, INVALID, "checkpoint_verify: the checkpoint is null");
  struct base_heap heap; /* of its own: the checkpoint does not change */
  base_heap_init(&heap, &c->heap.user);
  unsigned char *chunk = base_alloc(&heap, CHUNK);
  if (chunk == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < c->model->entries.n && status == QUERN_STATUS_OK; i++) status = read_tensor(c, i, NULL, chunk);
  base_free(&heap, chunk, CHUNK);
  return status;
}

static bool has_name(const void *item, const void *name) {
  return strcmp(((const struct io_entry *)item)->name, name) == 0;
}

quern_status quern_checkpoint_load(const quern_checkpoint *c, const char *name, quern_dtype dtype, int rank,
                                   const int64_t *dims, void *dst) {
  char shown[160], had[256], wanted[256];
  QUERN_CHECK(c != NULL, INVALID, "checkpoint_load: the checkpoint is null");
  QUERN_CHECK(name != NULL, INVALID, "checkpoint_load: the name is null");
  io_json_shown(shown, sizeof shown, name);
  QUERN_CHECK((unsigned)dtype < QUERN_DTYPE_COUNT, INVALID, "checkpoint_load: tensor '%s': %d is no dtype", shown,
              (int)dtype);
  QUERN_CHECK(rank >= 0 && (rank == 0 || dims != NULL), INVALID,
              "checkpoint_load: tensor '%s': the shape of rank %d %s", shown, rank,
              rank < 0 ? "makes no sense" : "is null");
  const struct io_entry *entry =
      base_map_find(&c->model->names, base_hash_string(BASE_HASH_SEED, name), has_name, name);
  QUERN_CHECK(entry != NULL, INVALID, "checkpoint_load: %s has no tensor '%s' among its %zu", c->info.path, shown,
              c->model->entries.n);
  QUERN_CHECK(entry->dtype == dtype, DTYPE, "checkpoint_load: %s: tensor '%s' is %s, wanted is %s", c->info.path, shown,
              base_dtypes[entry->dtype].name, base_dtypes[dtype].name);
  QUERN_CHECK(entry->rank == rank && (rank == 0 || memcmp(entry->dims, dims, (size_t)rank * sizeof *dims) == 0), SHAPE,
              "checkpoint_load: %s: tensor '%s' is %s, wanted is %s", c->info.path, shown,
              base_shape_text(had, sizeof had, entry->rank, entry->dims),
              base_shape_text(wanted, sizeof wanted, rank, dims));
  QUERN_CHECK(dst != NULL || entry->begin == entry->end, INVALID,
              "checkpoint_load: tensor '%s': the memory for %" PRIu64 " bytes is null", shown,
              entry->end - entry->begin);
  return read_tensor(c, (size_t)(entry - c->model->entries.at), dst, NULL);
}
