/* io/safetensors_index.c -- several safetensors files with an index: *.index.json
** in:    {"metadata": {...}, "weight_map": {name: file, ...}}, files beside the index
** out:   the tensors of weight_map, each found in its file; others in the files are left out
** tests: tests/io/test_safetensors.c, tests/fuzz/fuzz_index.c
*/
#include <stdio.h>
#include <stdlib.h>

#include "io/json.h"
#include "io/safetensors.h"

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* A file beside the index, and nowhere else. */
static bool is_plain(const char *name) {
  return name[0] != 0 && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* The files of a map, each once and in the order of their names; names has room for one a tensor. */
static quern_status list_shards(const char *path, json_t *map, const char **names, size_t *n) {
  char shown[160], file[160];
  const char *key;
  json_t *value;
  size_t all = 0;
  json_object_foreach(map, key, value) {
    QUERN_CHECK(json_is_string(value), PARSE, "%s: tensor '%s': the file in weight_map is no string", path,
                io_json_shown(shown, sizeof shown, key));
    QUERN_CHECK(is_plain(json_string_value(value)), PARSE,
                "%s: tensor '%s': '%s' is no name of a file beside the index", path,
                io_json_shown(shown, sizeof shown, key), io_json_shown(file, sizeof file, json_string_value(value)));
    names[all++] = json_string_value(value);
  }
  if (all > 1) qsort(names, all, sizeof *names, by_name);
  *n = 0;
  for (size_t i = 0; i < all; i++)
    if (*n == 0 || strcmp(names[*n - 1], names[i]) != 0) names[(*n)++] = names[i];
  return QUERN_STATUS_OK;
}

/* Keeps those of the last shard's entries that the map has there. */
static void keep_mapped(quern_safetensors *file, const json_t *map, const char *name, size_t first) {
  size_t n = first;
  for (size_t i = first; i < file->entries.n; i++) {
    const json_t *value = json_object_get(map, file->entries.at[i].name);
    if (value == NULL || strcmp(json_string_value(value), name) != 0) continue;
    file->entries.at[n++] = file->entries.at[i];
  }
  file->entries.n = n;
}

static quern_status open_shard(quern_safetensors *file, const char *path, const json_t *map, const char *name) {
  char beside[IO_PATH_MOST];
  const char *slash = strrchr(path, '/');
  int n = snprintf(beside, sizeof beside, "%.*s%s", slash == NULL ? 0 : (int)(slash - path) + 1, path, name);
  QUERN_CHECK(n > 0 && (size_t)n < sizeof beside, IO, "%s: the path of a shard has more than %zu bytes", path,
              sizeof beside - 1);
  size_t first = file->entries.n;
  QUERN_TRY(io_shard_open(file, beside));
  QUERN_TRY(io_safetensors_read_header(file, false));
  keep_mapped(file, map, name, first);
  return QUERN_STATUS_OK;
}

static bool has_entry(const quern_safetensors *file, const char *name) {
  for (size_t i = 0; i < file->entries.n; i++)
    if (strcmp(file->entries.at[i].name, name) == 0) return true;
  return false;
}

/* The map is larger than what was found: the error names what is missing. */
static quern_status say_missing(const quern_safetensors *file, const char *path, json_t *map) {
  char shown[160], where[160];
  const char *key;
  json_t *value;
  json_object_foreach(map, key, value) {
    QUERN_CHECK(has_entry(file, key), PARSE, "%s: tensor '%s' is not in '%s', where the index has it", path,
                io_json_shown(shown, sizeof shown, key), io_json_shown(where, sizeof where, json_string_value(value)));
  }
  return base_error(QUERN_STATUS_INTERNAL, "%s: every tensor of the index is there, but their number is not", path);
}

static quern_status open_shards(quern_safetensors *file, const char *path, json_t *map) {
  size_t n = 0, room = BASE_MAX(json_object_size(map), 1) * sizeof(char *);
  const char **names = base_alloc(&file->heap, room);
  if (names == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = list_shards(path, map, names, &n);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) status = open_shard(file, path, map, names[i]);
  base_free(&file->heap, names, room);
  if (status == QUERN_STATUS_OK && file->entries.n != json_object_size(map)) status = say_missing(file, path, map);
  return status;
}

static quern_status read_object(quern_safetensors *file, const char *path, const json_t *object) {
  json_t *map = json_object_get(object, "weight_map"), *metadata = json_object_get(object, "metadata"), *value;
  const char *key;
  QUERN_CHECK(json_is_object(map), PARSE, "%s: has no weight_map that is an object", path);
  QUERN_CHECK(metadata == NULL || json_is_object(metadata), PARSE, "%s: metadata is no object", path);
  json_object_foreach(metadata, key, value) {
    if (json_is_string(value)) QUERN_TRY(io_safetensors_add_pair(file, key, json_string_value(value)));
  }
  return open_shards(file, path, map);
}

quern_status io_safetensors_read_index(quern_safetensors *file, const char *path) {
  void *text;
  size_t n;
  json_t *object = NULL;
  QUERN_TRY(io_file_read(path, &file->heap, IO_SAFETENSORS_HEADER_MOST, &text, &n));
  quern_status status = io_json_parse(path, text, n, &object);
  if (status == QUERN_STATUS_OK) status = read_object(file, path, object);
  json_decref(object);
  base_free(&file->heap, text, n);
  return status;
}
