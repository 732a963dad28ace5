/* train/data.c -- the samples of a run: texts as tokens, token files, arrays; which of them are held out
** in:    a configuration                       out: a source to train on, and one to evaluate with or none
** keeps: samples that are held out are never trained on; the order of files in a folder is that of their names
** tests: tests/train/test_data.c
*/
#define _DEFAULT_SOURCE /* DT_UNKNOWN and lstat */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/data.h"
#include "io/io.h"
#include "train/train.h"

size_t train_large_text = (size_t)256 << 20;

enum {
  DEPTH = 32,
  PEEK = 8192,
  MOST_PATHS = 256,
  RELEASE = 1 << 18, /* ids after which pages of the text are given back */
  LIMITED_TEXT = 4 << 20
};

/* ---- which files ---------------------------------------------------------------------------------------- */

struct file {
  char *path;
  size_t bytes;
  bool found; /* in a folder: left out when it is no text */
};

/* Files that are being gathered. */
struct files {
  struct base_heap *heap;
  struct base_arena arena;
  BASE_VEC(struct file) list;
  size_t bytes;
};

static char *join(struct files *files, const char *folder, const char *name) {
  size_t n = strlen(folder), m = strlen(name);
  while (n > 1 && folder[n - 1] == '/') n--;
  char *path = base_arena_alloc(&files->arena, n + m + 2);
  if (path == NULL) return NULL;
  snprintf(path, n + m + 2, "%.*s/%s", (int)n, folder, name);
  return path;
}

static quern_status add_file(struct files *files, char *path, const struct stat *stat, bool found) {
  struct file file = {path, (size_t)stat->st_size, found};
  QUERN_CHECK(base_vec_push(files->heap, &files->list, file), MEMORY, "%s: no memory for its name", path);
  files->bytes += file.bytes;
  return QUERN_STATUS_OK;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The names in a folder, sorted; those that begin with a dot are left out. */
static quern_status list_folder(struct files *files, const char *folder, size_t *n, char ***names) {
  BASE_VEC(char *) list = {0};
  DIR *dir = opendir(folder);
  QUERN_CHECK(dir != NULL, IO, "data: %s: %s", folder, strerror(errno));
  quern_status status = QUERN_STATUS_OK;
  for (const struct dirent *entry; status == QUERN_STATUS_OK && (entry = readdir(dir)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    char *path = join(files, folder, entry->d_name);
    if (path == NULL || !base_vec_push(files->heap, &list, path)) status = QUERN_STATUS_MEMORY;
  }
  (void)closedir(dir);
  if (list.n > 0) qsort(list.at, list.n, sizeof *list.at, by_name);
  *names = status == QUERN_STATUS_OK ? base_arena_copy(&files->arena, list.at, list.n * sizeof *list.at) : NULL;
  *n = list.n;
  if (status == QUERN_STATUS_OK && *names == NULL) status = QUERN_STATUS_MEMORY;
  base_vec_fini(files->heap, &list);
  return status;
}

/* A file, or all files of a folder and the folders in it; links in folders are not followed. */
static quern_status gather(struct files *files, char *path, int depth) {
  struct stat info;
  int rc = depth == 0 ? stat(path, &info) : lstat(path, &info);
  QUERN_CHECK(rc == 0, IO, "data: %s: %s", path, strerror(errno));
  if (S_ISREG(info.st_mode)) return add_file(files, path, &info, depth > 0);
  if (!S_ISDIR(info.st_mode) && depth > 0) return QUERN_STATUS_OK;
  QUERN_CHECK(S_ISDIR(info.st_mode), IO, "data: %s: is neither a file nor a folder", path);
  QUERN_CHECK(depth < DEPTH, IO, "data: %s: folders lie deeper than %d", path, DEPTH);
  size_t n;
  char **names;
  QUERN_TRY(list_folder(files, path, &n, &names));
  for (size_t i = 0; i < n; i++) QUERN_TRY(gather(files, names[i], depth + 1));
  return QUERN_STATUS_OK;
}

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

/* The paths of a list with commas between; *n is how many. */
static quern_status split_paths(struct files *files, const char *key, const char *list, size_t *n,
                                char *paths[MOST_PATHS]) {
  *n = 0;
  for (const char *at = list; *at != 0;) {
    size_t length = strcspn(at, ",");
    QUERN_CHECK(length > 0, INVALID, "%s = '%.64s': a path is empty", key, list);
    QUERN_CHECK(*n < MOST_PATHS, INVALID, "%s: more than %d paths", key, MOST_PATHS);
    paths[*n] = base_arena_string(&files->arena, at, length);
    if (paths[(*n)++] == NULL) return QUERN_STATUS_MEMORY;
    at += length + (at[length] == ',');
  }
  QUERN_CHECK(*n > 0, INVALID, "%s: nothing is given; must be 'adder', texts, folders, token files or x.npy,y.npy",
              key);
  return QUERN_STATUS_OK;
}

/* ---- texts to tokens ------------------------------------------------------------------------------------ */

/* Where ids go: to memory, as 2 or 4 bytes each, or to a file. */
struct sink {
  struct base_heap *heap;
  BASE_VEC(unsigned char) bytes;
  size_t width;
  quern_tokens_writer *writer; /* NULL: to memory */
  struct io_digest digest;
  const struct io_map *text; /* that is encoded */
  size_t since;              /* ids since its pages were given back */
};

static quern_status add_ids(void *self, size_t n, const uint32_t *ids) {
  struct sink *sink = self;
  io_digest_add(&sink->digest, ids, n * sizeof *ids);
  sink->since += n;
  if (sink->since >= RELEASE) {
    io_map_release(sink->text);
    sink->since = 0;
  }
  if (sink->writer != NULL) return quern_tokens_writer_add(sink->writer, n, ids);
  if (!base_vec_reserve(sink->heap, &sink->bytes, n * sink->width)) return QUERN_STATUS_MEMORY;
  unsigned char *to = sink->bytes.at + sink->bytes.n;
  for (size_t i = 0; i < n; i++)
    for (size_t k = 0; k < sink->width; k++) *to++ = (unsigned char)(ids[i] >> (8 * k));
  sink->bytes.n += n * sink->width;
  return QUERN_STATUS_OK;
}

/* A text, and the token that ends a document where there is one. */
static quern_status encode_file(const quern_tokenizer *tokenizer, const struct file *file, struct sink *sink) {
  struct io_map map;
  QUERN_TRY(io_map_open(&map, sink->heap, file->path));
  sink->text = &map;
  bool text = !file->found || memchr(map.bytes, 0, BASE_MIN(map.n, (size_t)PEEK)) == NULL;
  quern_status status = QUERN_STATUS_OK;
  if (text && map.n > 0) {
    int64_t end = quern_tokenizer_end(tokenizer);
    status = quern_tokenizer_encode_to(tokenizer, map.bytes, map.n, QUERN_ENCODE_PLAIN, add_ids, sink);
    if (status == QUERN_STATUS_OK && end >= 0) status = add_ids(sink, 1, &(uint32_t){(uint32_t)end});
  }
  io_map_close(&map, sink->heap);
  return status;
}

static quern_status encode_files(const quern_tokenizer *tokenizer, const struct files *files, struct sink *sink) {
  for (size_t i = 0; i < files->list.n; i++) QUERN_TRY(encode_file(tokenizer, &files->list.at[i], sink));
  return QUERN_STATUS_OK;
}

static quern_status push_tokens(struct train_data *data, quern_tokens *tokens) {
  if (base_vec_push(data->heap, &data->tokens, tokens)) return QUERN_STATUS_OK;
  quern_tokens_free(tokens);
  return QUERN_STATUS_MEMORY;
}

/* Ids in memory become tokens; the memory is the data's. */
static quern_status keep_ids(struct train_data *data, struct sink *sink, quern_dtype dtype) {
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  quern_tokens *tokens;
  struct train_ids ids = {sink->bytes.at, sink->bytes.cap};
  if (!base_vec_push(data->heap, &data->ids, ids)) return QUERN_STATUS_MEMORY;
  sink->bytes.at = NULL;
  options.raw = true;
  options.dtype = dtype;
  options.allocator = data->heap->user;
  data->bytes += (int64_t)sink->bytes.n;
  QUERN_TRY(quern_tokens_wrap(&tokens, ids.at, sink->bytes.n, &options));
  return push_tokens(data, tokens);
}

/* The tokens of texts: in memory, or in a file without a name in the run's folder when they are many. Under a limit of
** memory few are many, whatever the limit: what a run needs does not depend on it. */
static quern_status encode_texts(struct train_data *data, const char *key, const quern_config *config,
                                 const struct files *files) {
  const char *out = quern_config_get(config, "out");
  size_t most = quern_config_int(config, "memory") > 0 ? BASE_MIN(train_large_text, LIMITED_TEXT) : train_large_text;
  quern_dtype dtype = quern_tokenizer_vocab(data->tokenizer) <= 65536 ? QUERN_DTYPE_U16 : QUERN_DTYPE_U32;
  struct sink sink = {.heap = data->heap, .width = dtype == QUERN_DTYPE_U16 ? 2 : 4};
  io_digest_init(&sink.digest);
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  options.dtype = dtype;
  options.vocab = quern_tokenizer_vocab(data->tokenizer);
  options.allocator = data->heap->user;
  char path[IO_PATH_MOST];
  snprintf(path, sizeof path, "%s/%s.bin", out, key);
  quern_status status = QUERN_STATUS_OK;
  struct stat there;
  bool large = files->bytes > most && out[0] != 0, made = large && stat(out, &there) != 0;
  if (large) {
    status = train_make_folder(out);
    if (status == QUERN_STATUS_OK) status = quern_tokens_writer_new(&sink.writer, path, &options);
    large = status != QUERN_STATUS_IO || files->bytes > train_large_text; /* a plan is made in any folder */
  }
  if (!large)
    status = base_vec_reserve(sink.heap, &sink.bytes, (files->bytes + files->list.n) * sink.width)
                 ? QUERN_STATUS_OK
                 : QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK) status = encode_files(data->tokenizer, files, &sink);
  quern_tokens *tokens = NULL;
  if (status == QUERN_STATUS_OK && large) status = io_tokens_writer_take(sink.writer, &tokens);
  quern_tokens_writer_free(sink.writer);
  if (made) (void)rmdir(out); /* a plan leaves nothing */
  if (status == QUERN_STATUS_OK && large) {
    status = push_tokens(data, tokens);
  } else if (status == QUERN_STATUS_OK) {
    status = keep_ids(data, &sink, dtype);
  }
  base_vec_fini(sink.heap, &sink.bytes);
  data->digest = base_hash_u64(data->digest, io_digest_get(&sink.digest));
  return status;
}

/* A token file: with a header, or without one, when its first word is not that of one; then ids have 2 bytes. */
static quern_status open_tokens(struct train_data *data, const char *path, struct train_spec *spec) {
  quern_tokens_options options = QUERN_INIT(quern_tokens_options);
  options.allocator = data->heap->user;
  struct io_map map; /* a pipe is refused, and not waited for */
  QUERN_TRY(io_map_open(&map, data->heap, path));
  const unsigned char *at = map.bytes;
  uint32_t first = map.n < 4 ? 0 : at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
  bool headed = first == 20240520 || first == 20240801;
  io_map_close(&map, data->heap);
  options.raw = !headed;
  quern_tokens *tokens;
  QUERN_TRY(quern_tokens_open(&tokens, path, &options));
  data->digest = base_hash_u64(data->digest, (uint64_t)quern_tokens_count(tokens));
  int64_t ids = (int64_t)quern_tokens_vocab(tokens);
  QUERN_TRY(push_tokens(data, tokens));
  QUERN_CHECK(ids > 0 || !spec->open_vocabulary, INVALID,
              "vocabulary: %s does not say how many ids there are HINT: vocabulary=N", path);
  return train_spec_vocabulary(spec, ids, path);
}

/* All texts and token files of a key as one source of windows. */
static quern_status open_texts(struct train_data *data, const char *key, const quern_config *config,
                               struct train_spec *spec, size_t n, char *const *paths, struct files *files,
                               quern_source **source) {
  size_t before = data->tokens.n;
  for (size_t i = 0; i < n; i++)
    if (!ends_with(paths[i], ".bin")) QUERN_TRY(gather(files, paths[i], 0));
  if (files->list.n > 0) {
    if (data->tokenizer == NULL) QUERN_TRY(train_tokenizer(&data->tokenizer, config, &data->heap->user));
    QUERN_TRY(train_spec_vocabulary(spec, (int64_t)quern_tokenizer_vocab(data->tokenizer), "the tokenizer"));
    QUERN_TRY(encode_texts(data, key, config, files));
  }
  for (size_t i = 0; i < n; i++)
    if (ends_with(paths[i], ".bin")) QUERN_TRY(open_tokens(data, paths[i], spec));
  int64_t most = 0;
  for (size_t i = before; i < data->tokens.n; i++) most = BASE_MAX(most, quern_tokens_count(data->tokens.at[i]));
  QUERN_CHECK(
      most > spec->length, INVALID, "%s = '%.200s': %lld tokens in a row; a sample needs %lld HINT: length=%lld", key,
      quern_config_get(config, key), (long long)most, (long long)spec->length + 1, (long long)BASE_MAX(most / 4, 1));
  quern_token_window window = QUERN_INIT(quern_token_window);
  window.length = spec->length;
  window.stride = quern_config_int(config, "stride");
  window.vocab = (uint64_t)spec->lm.vocabulary;
  return quern_source_tokens(source, data->tokens.n - before, data->tokens.at + before, &window, &data->heap->user);
}

/* ---- arrays --------------------------------------------------------------------------------------------- */

/* The largest label; the labels must be whole numbers from 0 on. */
static quern_status scan_labels(struct train_data *data, const quern_source *source, const char *path,
                                int64_t *largest) {
  const quern_field *fields;
  (void)quern_source_fields(source, &fields);
  size_t bytes = quern_dtype_size(fields[0].dtype);
  for (int i = 0; i < fields[0].rank; i++) bytes *= (size_t)fields[0].dims[i];
  void *x = base_alloc(data->heap, bytes);
  if (x == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = QUERN_STATUS_OK;
  uint64_t label[2] = {0};
  for (int64_t i = 0; i < quern_source_sample_count(source) && status == QUERN_STATUS_OK; i++) {
    status = quern_source_get(source, i, (void *[]){x, label});
    int64_t value = (int64_t)base_load_int(fields[1].dtype, label, 0);
    if (status == QUERN_STATUS_OK && (value < 0 || value >= 1 << 24))
      status = base_error(QUERN_STATUS_INVALID, "data: %s: label %lld is %lld; must be 0 to %d", path, (long long)i,
                          (long long)value, (1 << 24) - 1);
    *largest = BASE_MAX(*largest, value);
  }
  base_free(data->heap, x, bytes);
  return status;
}

static quern_status open_arrays(struct train_data *data, const char *key, struct train_spec *spec, size_t n,
                                char *const *paths, bool first, quern_source **source) {
  const quern_field *fields;
  int64_t largest = 0;
  QUERN_CHECK(n == 2, INVALID, "%s: %zu paths; classification needs two: x.npy,y.npy", key, n);
  QUERN_TRY(quern_source_arrays(source, n, (const char *const *)paths, &data->heap->user));
  (void)quern_source_fields(*source, &fields);
  QUERN_CHECK(fields[1].rank == 0 && base_dtype_is(fields[1].dtype, BASE_INT), INVALID,
              "%s: %s: labels of rank %d and dtype %s; must be (N,) of integers", key, paths[1], fields[1].rank + 1,
              quern_dtype_name(fields[1].dtype));
  QUERN_TRY(scan_labels(data, *source, paths[1], &largest));
  data->digest = base_hash_u64(data->digest, (uint64_t)quern_source_sample_count(*source));
  if (first && spec->classes == 0) spec->classes = BASE_MAX(largest + 1, 2);
  QUERN_CHECK(largest < spec->classes, INVALID, "%s: %s: a label is %lld; the model has %lld classes", key, paths[1],
              (long long)largest, (long long)spec->classes);
  return QUERN_STATUS_OK;
}

/* ---- what is held out ----------------------------------------------------------------------------------- */

static quern_status read_split(void *self, int64_t i, void *const *fields) {
  const struct train_split *split = self;
  if (split->every > 0) i = split->held ? i * split->every + split->every - 1 : i + i / (split->every - 1);
  return quern_source_get(split->source, split->first + i, fields);
}

static quern_status open_split(struct train_data *data, struct train_split *split, int64_t samples,
                               quern_source **source) {
  const quern_field *of;
  quern_field fields[QUERN_MAX_FIELDS];
  size_t n = quern_source_fields(split->source, &of);
  memcpy(fields, of, n * sizeof *fields);
  if (data->labels >= 0) fields[data->labels].pad = -1; /* they do not count */
  return quern_source_call(source, samples, n, fields, read_split, split, &data->heap->user);
}

/* Every so many samples one is held out; where samples overlap, the last ones are, and none that overlaps them is trained on. */
static quern_status divide(struct train_data *data, const quern_config *config, int64_t length) {
  int64_t n = quern_source_sample_count(data->all), stride = quern_config_int(config, "stride");
  double share = quern_config_real(config, "eval_part");
  bool apart = data->all_eval == NULL && share > 0 && n > 1, overlap = length > 0 && stride > 0 && stride < length;
  int64_t every = apart ? BASE_MIN(BASE_MAX((int64_t)round(1 / share), 2), n) : 0, held = apart ? n / every : 0;
  int64_t gap = overlap && apart ? (length + stride - 1) / stride : 0;
  if (overlap && apart) held = BASE_MAX((int64_t)((double)n * share), 1);
  int64_t left = n - held - gap;
  QUERN_CHECK(left > 0, INVALID, "eval_part = %s: nothing is left to train on: %lld samples, %lld held out",
              quern_config_get(config, "eval_part"), (long long)n, (long long)(held + gap));
  data->splits[0] = (struct train_split){data->all, 0, overlap ? 0 : every, false};
  data->splits[1] = (struct train_split){data->all, overlap ? n - held : 0, overlap ? 0 : every, true};
  QUERN_TRY(open_split(data, &data->splits[0], left, &data->train));
  if (data->all_eval != NULL) {
    data->splits[1] = (struct train_split){data->all_eval, 0, 0, true};
    held = quern_source_sample_count(data->all_eval);
  }
  return held > 0 ? open_split(data, &data->splits[1], held, &data->eval) : QUERN_STATUS_OK;
}

/* ---- the door ------------------------------------------------------------------------------------------- */

static quern_status open_key(struct train_data *data, const char *key, const quern_config *config,
                             struct train_spec *spec, quern_source **source) {
  struct files files = {.heap = data->heap};
  char *paths[MOST_PATHS];
  size_t n;
  base_arena_init(&files.arena, data->heap);
  quern_status status = split_paths(&files, key, quern_config_get(config, key), &n, paths);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++)
    if (ends_with(paths[i], ".npy") != (spec->task == TRAIN_TASK_CLASSES))
      status =
          base_error(QUERN_STATUS_INVALID, "%s: %s: a model '%s' is trained on %s", key, paths[i],
                     quern_config_get(config, "model"), spec->task == TRAIN_TASK_CLASSES ? "x.npy,y.npy" : "texts");
  if (status == QUERN_STATUS_OK && spec->task == TRAIN_TASK_CLASSES)
    status = open_arrays(data, key, spec, n, paths, source == &data->opened[0], source);
  else if (status == QUERN_STATUS_OK)
    status = open_texts(data, key, config, spec, n, paths, &files, source);
  base_vec_fini(data->heap, &files.list);
  base_arena_fini(&files.arena);
  return status;
}

/* ---- a task's own data ---------------------------------------------------------------------------------- */

static int find_field(const quern_source *source, const char *name) {
  const quern_field *fields;
  size_t n = quern_source_fields(source, &fields);
  for (size_t i = 0; i < n && name != NULL; i++)
    if (strcmp(fields[i].name, name) == 0) return (int)i;
  return -1;
}

static bool same_field(const quern_field *a, const quern_field *b) {
  return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank &&
         memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

/* Names that inputs of a step's program can have, each once. */
static quern_status check_fields(const quern_source *source) {
  static const char *const taken[] = {"lr", "made"};
  const quern_field *fields;
  size_t n = quern_source_fields(source, &fields);
  for (size_t i = 0; i < n; i++) {
    const char *name = fields[i].name;
    bool other = name[0] != 0 && find_field(source, name) == (int)i;
    for (size_t k = 0; k < BASE_COUNT(taken); k++) other = other && strcmp(name, taken[k]) != 0;
    QUERN_CHECK(other, INVALID, "task: field %zu is named \"%.64s\"; must be a name of its own, not lr or made", i,
                name);
    QUERN_CHECK(fields[i].rank + 1 < QUERN_MAX_RANK, SHAPE, "task: field \"%.64s\" has rank %d; at most %d", name,
                fields[i].rank, QUERN_MAX_RANK - 2);
  }
  return QUERN_STATUS_OK;
}

static quern_status check_eval_fields(const quern_source *data, const quern_source *eval) {
  const quern_field *ours, *its;
  size_t n = quern_source_fields(data, &ours), m = quern_source_fields(eval, &its);
  bool same = n == m;
  for (size_t i = 0; i < n && same; i++) same = same_field(&ours[i], &its[i]);
  QUERN_CHECK(same, INVALID,
              "task: the fields of eval_data are not those of data: names, dtypes, shapes or their order");
  return QUERN_STATUS_OK;
}

/* Adds a sample's bytes to the digest. */
static quern_status digest_sample(struct train_data *data, int64_t i, size_t bytes, unsigned char *memory) {
  void *at[QUERN_MAX_FIELDS];
  size_t n = data->all->n_fields, used = 0;
  for (size_t k = 0; k < n; k++) {
    at[k] = memory + used;
    used += (data->all->bytes[k] + 15) / 16 * 16;
  }
  memset(memory, 0, bytes);
  QUERN_TRY(quern_source_get(data->all, i, at));
  data->digest = base_hash_u64(data->digest, io_digest_of(memory, bytes));
  return QUERN_STATUS_OK;
}

/* Of the number of samples, of their fields, and of the first sample, the one in the middle and the last. */
static quern_status digest_task(struct train_data *data) {
  const quern_source *all = data->all;
  const int64_t some[] = {0, all->samples / 2, all->samples - 1};
  size_t bytes = 16;
  data->digest = base_hash_u64(data->digest, (uint64_t)all->samples);
  for (size_t i = 0; i < all->n_fields; i++) {
    const quern_field *field = &all->fields[i];
    data->digest = base_hash_u64(data->digest, io_digest_of(field->name, strlen(field->name)));
    data->digest = base_hash_u64(data->digest, (uint64_t)field->dtype);
    for (int k = 0; k < field->rank; k++) data->digest = base_hash_u64(data->digest, (uint64_t)field->dims[k]);
    bytes += (all->bytes[i] + 15) / 16 * 16;
  }
  unsigned char *memory = base_alloc(data->heap, bytes);
  if (memory == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < BASE_COUNT(some) && status == QUERN_STATUS_OK; i++)
    status = digest_sample(data, some[i], bytes, memory);
  base_free(data->heap, memory, bytes);
  return status;
}

static quern_status open_task(struct train_data *data, const quern_config *config, const quern_train_task *task) {
  data->all = task->data;
  data->all_eval = task->eval_data;
  QUERN_TRY(check_fields(data->all));
  if (data->all_eval != NULL) QUERN_TRY(check_eval_fields(data->all, data->all_eval));
  data->labels = find_field(data->all, task->labels);
  QUERN_CHECK(task->labels == NULL || data->labels >= 0, INVALID, "task: labels = \"%.64s\": data has no such field",
              task->labels);
  if (data->labels >= 0) {
    quern_dtype dtype = data->all->fields[data->labels].dtype;
    QUERN_CHECK(base_dtype_is(dtype, BASE_SIGNED), DTYPE,
                "task: labels = \"%.64s\": its elements are %s; must be signed integers", task->labels,
                quern_dtype_name(dtype));
  }
  QUERN_TRY(digest_task(data));
  return divide(data, config, 0);
}

quern_status train_data_open(struct train_data *data, struct base_heap *heap, const quern_config *config,
                             struct train_spec *spec, const quern_train_task *task) {
  double start = base_clock();
  uint64_t seed = (uint64_t)quern_config_int(config, "seed");
  *data = (struct train_data){.heap = heap, .digest = BASE_HASH_SEED, .labels = TRAIN_FIELDS - 1};
  if (task != NULL) {
    QUERN_TRY(open_task(data, config, task));
  } else if (spec->task == TRAIN_TASK_ADDER) {
    QUERN_TRY(quern_tokenizer_read(&data->tokenizer, "bytes", &heap->user));
    QUERN_TRY(train_spec_vocabulary(spec, TRAIN_ADDER_IDS, "the adder"));
    QUERN_TRY(train_adder_open(&data->train, &data->adders[0], seed, spec->length, false, &heap->user));
    QUERN_TRY(train_adder_open(&data->eval, &data->adders[1], seed, spec->length, true, &heap->user));
  } else {
    QUERN_TRY(open_key(data, "data", config, spec, &data->opened[0]));
    data->all = data->opened[0];
    uint64_t digest = data->digest; /* of what is trained on: other data may be evaluated with */
    if (quern_config_get(config, "eval_data")[0] != 0)
      QUERN_TRY(open_key(data, "eval_data", config, spec, &data->opened[1]));
    data->all_eval = data->opened[1];
    data->digest = digest;
    QUERN_TRY(divide(data, config, spec->length));
  }
  data->seconds = base_clock() - start;
  return QUERN_STATUS_OK;
}

void train_data_close(struct train_data *data) {
  quern_source_free(data->train);
  quern_source_free(data->eval);
  for (size_t i = 0; i < BASE_COUNT(data->opened); i++) quern_source_free(data->opened[i]);
  for (size_t i = 0; i < data->tokens.n; i++) quern_tokens_free(data->tokens.at[i]);
  for (size_t i = 0; i < data->ids.n; i++) base_free(data->heap, data->ids.at[i].at, data->ids.at[i].bytes);
  if (data->heap != NULL) {
    base_vec_fini(data->heap, &data->tokens);
    base_vec_fini(data->heap, &data->ids);
  }
  quern_tokenizer_free(data->tokenizer);
}
