/* io/safetensors.c -- open safetensors files: mapped, listed, found by name, copied
** in:    a file, an index or a folder         out: tensors whose elements are where the file is mapped
** keeps: everything of the structure is checked before the caller sees any of it
** tests: tests/io/test_safetensors.c, tests/fuzz/fuzz_safetensors.c, tests/oracle/compare_safetensors.py
*/
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/json.h"

const char *const io_safetensors_dtypes[QUERN_DTYPE_COUNT] = {
    [QUERN_DTYPE_F64] = "F64",   [QUERN_DTYPE_F32] = "F32",        [QUERN_DTYPE_F16] = "F16",
    [QUERN_DTYPE_BF16] = "BF16", [QUERN_DTYPE_F8E4M3] = "F8_E4M3", [QUERN_DTYPE_F8E5M2] = "F8_E5M2",
    [QUERN_DTYPE_I8] = "I8",     [QUERN_DTYPE_I16] = "I16",        [QUERN_DTYPE_I32] = "I32",
    [QUERN_DTYPE_I64] = "I64",   [QUERN_DTYPE_U8] = "U8",          [QUERN_DTYPE_U16] = "U16",
    [QUERN_DTYPE_U32] = "U32",   [QUERN_DTYPE_U64] = "U64",        [QUERN_DTYPE_BOOL] = "BOOL",
};

quern_status io_safetensors_check_machine(void) {
  const uint16_t one = 1;
  unsigned char first;
  memcpy(&first, &one, 1);
  QUERN_CHECK(first == 1, UNSUPPORTED, "safetensors files are little-endian, this machine is not");
  return QUERN_STATUS_OK;
}

/* ---- shards --------------------------------------------------------------------------------------------- */

quern_status io_shard_read(const struct io_shard *shard, uint64_t at, void *dst, size_t n) {
  if (shard->fd < 0) {
    if (n > 0) memcpy(dst, shard->bytes + at, n);
    return QUERN_STATUS_OK;
  }
  for (size_t done = 0; done < n;) {
    ssize_t got = pread(shard->fd, (char *)dst + done, BASE_MIN(n - done, (size_t)1 << 30), (off_t)(at + done));
    if (got < 0 && errno == EINTR) continue;
    QUERN_CHECK(got >= 0, IO, "%s: cannot be read at byte %" PRIu64 ": %s", shard->path, at + done, strerror(errno));
    QUERN_CHECK(got > 0, IO, "%s: ends at byte %" PRIu64 ", it had %" PRIu64 " when it was opened", shard->path,
                at + done, shard->size);
    done += (size_t)got;
  }
  return QUERN_STATUS_OK;
}

/* Maps an open file; what was done before a failure is undone when the whole is closed. */
static quern_status map_shard(struct io_shard *shard) {
  struct stat there;
  QUERN_CHECK(fstat(shard->fd, &there) == 0, IO, "%s: cannot be examined: %s", shard->path, strerror(errno));
  QUERN_CHECK(S_ISREG(there.st_mode), IO, "%s: is no regular file", shard->path);
  QUERN_CHECK(there.st_size >= IO_SAFETENSORS_LENGTH, PARSE,
              "%s: has %lld bytes, a safetensors file begins with %d bytes of its header's length", shard->path,
              (long long)there.st_size, IO_SAFETENSORS_LENGTH);
  QUERN_CHECK((uint64_t)there.st_size <= SIZE_MAX, OVERFLOW, "%s: has %lld bytes, more than can be mapped", shard->path,
              (long long)there.st_size);
  void *bytes = mmap(NULL, (size_t)there.st_size, PROT_READ, MAP_SHARED, shard->fd, 0);
  QUERN_CHECK(bytes != MAP_FAILED, IO, "%s: cannot be mapped: %s", shard->path, strerror(errno));
  shard->bytes = bytes;
  shard->size = (uint64_t)there.st_size;
  return QUERN_STATUS_OK;
}

quern_status io_shard_open(quern_safetensors *file, const char *path) {
  struct io_shard shard = {.path = base_arena_string(&file->arena, path, strlen(path)), .fd = -1};
  if (shard.path == NULL || !base_vec_reserve(&file->heap, &file->shards, 1)) return QUERN_STATUS_MEMORY;
  shard.fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  QUERN_CHECK(shard.fd >= 0, IO, "%s: cannot be opened: %s", path, strerror(errno));
  struct io_shard *last = &file->shards.at[file->shards.n++];
  *last = shard;
  return map_shard(last);
}

/* ---- open and close ------------------------------------------------------------------------------------- */

quern_status io_safetensors_add_pair(quern_safetensors *file, const char *key, const char *value) {
  quern_string_pair pair = {base_arena_string(&file->arena, key, strlen(key)),
                            base_arena_string(&file->arena, value, strlen(value))};
  bool added = pair.key != NULL && pair.value != NULL && base_vec_push(&file->heap, &file->pairs, pair);
  return added ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static bool is_folder(const char *path) {
  struct stat there;
  return stat(path, &there) == 0 && S_ISDIR(there.st_mode);
}

static bool is_index(const char *path) {
  size_t n = strlen(path);
  return n >= 5 && strcmp(path + n - 5, ".json") == 0;
}

/* The file of a folder: *path is left as it is when it is no folder. */
static quern_status enter_folder(const char **path, char inside[IO_PATH_MOST]) {
  static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
  if (!is_folder(*path)) return QUERN_STATUS_OK;
  for (size_t i = 0; i < BASE_COUNT(names); i++) {
    struct stat there;
    int n = snprintf(inside, IO_PATH_MOST, "%s/%s", *path, names[i]);
    QUERN_CHECK(n > 0 && n < IO_PATH_MOST, IO, "safetensors_open: the path has %zu bytes, which is too long",
                strlen(*path));
    if (stat(inside, &there) != 0) continue;
    *path = inside;
    return QUERN_STATUS_OK;
  }
  return base_error(QUERN_STATUS_IO, "%s: the folder has neither %s nor %s", *path, names[0], names[1]);
}

static quern_status read_path(quern_safetensors *file, const char *path) {
  char inside[IO_PATH_MOST];
  QUERN_TRY(enter_folder(&path, inside));
  if (is_index(path)) return io_safetensors_read_index(file, path);
  QUERN_TRY(io_shard_open(file, path));
  return io_safetensors_read_header(file, true);
}

static quern_status read_bytes(quern_safetensors *file, const void *bytes, size_t n) {
  struct io_shard shard = {.path = "safetensors", .fd = -1, .bytes = bytes, .size = n};
  QUERN_CHECK(n >= IO_SAFETENSORS_LENGTH, PARSE,
              "safetensors: has %zu bytes, a safetensors file begins with %d bytes of its header's length", n,
              IO_SAFETENSORS_LENGTH);
  if (!base_vec_push(&file->heap, &file->shards, shard)) return QUERN_STATUS_MEMORY;
  return io_safetensors_read_header(file, true);
}

static quern_status index_names(quern_safetensors *file) {
  for (size_t i = 0; i < file->entries.n; i++) {
    struct io_entry *entry = &file->entries.at[i];
    if (!base_map_add(&file->names, base_hash_string(BASE_HASH_SEED, entry->name), entry)) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

/* An empty one; or the status. */
static quern_status make(quern_safetensors **file, const char *what, const quern_allocator *allocator) {
  QUERN_TRY(base_env_read());
  QUERN_TRY(io_safetensors_check_machine());
  QUERN_CHECK(allocator == NULL || (allocator->alloc == NULL) == (allocator->free == NULL), INVALID,
              "%s: an allocator needs both alloc and free", what);
  struct base_heap heap;
  base_heap_init(&heap, allocator);
  quern_safetensors *made = base_alloc_zero(&heap, sizeof *made);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  made->heap = heap;
  base_arena_init(&made->arena, &made->heap);
  made->arena.first = 4096;
  base_map_init(&made->names, &made->heap);
  *file = made;
  return QUERN_STATUS_OK;
}

static quern_status finish(quern_safetensors **file, quern_status status) {
  if (status == QUERN_STATUS_OK) status = index_names(*file);
  if (status == QUERN_STATUS_OK) return status;
  quern_safetensors_close(*file);
  *file = NULL;
  return status;
}

quern_status quern_safetensors_open(quern_safetensors **file, const char *path, const quern_allocator *allocator) {
  QUERN_CHECK(file != NULL, INVALID, "safetensors_open: the place for the file is null");
  *file = NULL;
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "safetensors_open: the path is %s",
              path == NULL ? "null" : "empty");
  QUERN_TRY(make(file, "safetensors_open", allocator));
  return finish(file, read_path(*file, path));
}

quern_status quern_safetensors_parse(quern_safetensors **file, const void *bytes, size_t n,
                                     const quern_allocator *allocator) {
  QUERN_CHECK(file != NULL, INVALID, "safetensors_parse: the place for the file is null");
  *file = NULL;
  QUERN_CHECK(bytes != NULL || n == 0, INVALID, "safetensors_parse: the %zu bytes are null", n);
  QUERN_TRY(make(file, "safetensors_parse", allocator));
  return finish(file, read_bytes(*file, bytes, n));
}

void quern_safetensors_close(quern_safetensors *file) {
  if (file == NULL) return;
  for (size_t i = 0; i < file->shards.n; i++) {
    const struct io_shard *shard = &file->shards.at[i];
    if (shard->fd < 0) continue;
    if (shard->bytes != NULL) munmap((void *)(uintptr_t)shard->bytes, (size_t)shard->size);
    close(shard->fd);
  }
  base_map_fini(&file->names);
  base_vec_fini(&file->heap, &file->pairs);
  base_vec_fini(&file->heap, &file->entries);
  base_vec_fini(&file->heap, &file->shards);
  base_arena_fini(&file->arena);
  struct base_heap heap = file->heap;
  base_free(&heap, file, sizeof *file);
}

/* ---- what is in it -------------------------------------------------------------------------------------- */

size_t quern_safetensors_count(const quern_safetensors *file) { return file == NULL ? 0 : file->entries.n; }
size_t quern_safetensors_pair_count(const quern_safetensors *file) { return file == NULL ? 0 : file->pairs.n; }
size_t quern_safetensors_shard_count(const quern_safetensors *file) { return file == NULL ? 0 : file->shards.n; }

static void fill(const quern_safetensors *file, const struct io_entry *entry, quern_safetensor *tensor) {
  const struct io_shard *shard = &file->shards.at[entry->shard];
  *tensor = (quern_safetensor){.name = entry->name,
                               .dtype = entry->dtype,
                               .rank = entry->rank,
                               .dims = entry->dims,
                               .data = shard->bytes + shard->data + entry->begin,
                               .bytes = (size_t)(entry->end - entry->begin),
                               .offset = shard->data + entry->begin,
                               .shard = entry->shard};
}

quern_status quern_safetensors_get(const quern_safetensors *file, size_t i, quern_safetensor *tensor) {
  QUERN_CHECK(file != NULL, INVALID, "safetensors_get: the file is null");
  QUERN_CHECK(tensor != NULL, INVALID, "safetensors_get: the place for the tensor is null");
  QUERN_CHECK(i < file->entries.n, INVALID, "safetensors_get: there is no tensor %zu, the file has %zu", i,
              file->entries.n);
  fill(file, &file->entries.at[i], tensor);
  return QUERN_STATUS_OK;
}

static bool has_name(const void *item, const void *name) {
  return strcmp(((const struct io_entry *)item)->name, name) == 0;
}

quern_status quern_safetensors_find(const quern_safetensors *file, const char *name, quern_safetensor *tensor) {
  char shown[160];
  QUERN_CHECK(file != NULL, INVALID, "safetensors_find: the file is null");
  QUERN_CHECK(name != NULL, INVALID, "safetensors_find: the name is null");
  QUERN_CHECK(tensor != NULL, INVALID, "safetensors_find: the place for the tensor is null");
  const struct io_entry *entry = base_map_find(&file->names, base_hash_string(BASE_HASH_SEED, name), has_name, name);
  QUERN_CHECK(entry != NULL, INVALID, "safetensors_find: %s has no tensor '%s' among its %zu",
              file->shards.n > 0 ? file->shards.at[0].path : "the file", io_json_shown(shown, sizeof shown, name),
              file->entries.n);
  fill(file, entry, tensor);
  return QUERN_STATUS_OK;
}

quern_status quern_safetensors_copy(const quern_safetensors *file, size_t i, void *dst, size_t bytes) {
  char shown[160];
  QUERN_CHECK(file != NULL, INVALID, "safetensors_copy: the file is null");
  QUERN_CHECK(i < file->entries.n, INVALID, "safetensors_copy: there is no tensor %zu, the file has %zu", i,
              file->entries.n);
  const struct io_entry *entry = &file->entries.at[i];
  QUERN_CHECK(bytes == entry->end - entry->begin, INVALID,
              "safetensors_copy: tensor '%s' has %" PRIu64 " bytes, the memory %zu",
              io_json_shown(shown, sizeof shown, entry->name), entry->end - entry->begin, bytes);
  QUERN_CHECK(dst != NULL || bytes == 0, INVALID, "safetensors_copy: the memory for %zu bytes is null", bytes);
  const struct io_shard *shard = &file->shards.at[entry->shard];
  return io_shard_read(shard, shard->data + entry->begin, dst, bytes);
}

quern_status quern_safetensors_pair(const quern_safetensors *file, size_t i, quern_string_pair *pair) {
  QUERN_CHECK(file != NULL, INVALID, "safetensors_pair: the file is null");
  QUERN_CHECK(pair != NULL, INVALID, "safetensors_pair: the place for the pair is null");
  QUERN_CHECK(i < file->pairs.n, INVALID, "safetensors_pair: there is no pair %zu, the metadata has %zu", i,
              file->pairs.n);
  *pair = file->pairs.at[i];
  return QUERN_STATUS_OK;
}

quern_status quern_safetensors_shard(const quern_safetensors *file, size_t i, const char **path, uint64_t *bytes) {
  QUERN_CHECK(file != NULL, INVALID, "safetensors_shard: the file is null");
  QUERN_CHECK(path != NULL && bytes != NULL, INVALID, "safetensors_shard: the place for the %s is null",
              path == NULL ? "path" : "bytes");
  QUERN_CHECK(i < file->shards.n, INVALID, "safetensors_shard: there is no shard %zu, there are %zu", i,
              file->shards.n);
  *path = file->shards.at[i].path;
  *bytes = file->shards.at[i].size;
  return QUERN_STATUS_OK;
}
