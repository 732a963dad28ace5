/* io/checkpoint_json.c -- checkpoint.json: printed and parsed
** in:    any bytes                            out: step, seed, cursor, configuration, state, digests, or what is wrong
** keeps: the first line has a fixed length and the digest of all bytes after it: no byte changes unnoticed
** tests: tests/io/test_checkpoint.c, tests/fuzz/fuzz_checkpoint.c, tests/oracle/compare_safetensors.py
*/
#include <inttypes.h>
#include <stdio.h>

#include "io/checkpoint.h"
#include "io/json.h"

/* The first line, without its digest. */
#define HEAD "{\"quern_checkpoint\":%d,\"hash\":\"xxh64\",\"digest\":\""
#define HEAD_END "\",\n"
enum { HEX = 16 };

/* ---- printing ------------------------------------------------------------------------------------------- */

/* Adds a string and a colon. */
static quern_status add_key(struct base_str *str, const char *before, const char *key) {
  base_str_add(str, before);
  QUERN_TRY(io_json_add_string(str, key));
  base_str_add(str, ":");
  return QUERN_STATUS_OK;
}

static quern_status add_state(struct base_str *str, const char *state) {
  json_t *object = NULL;
  if (state == NULL) state = "{}";
  quern_status status = io_json_parse("state", state, strlen(state), &object);
  if (status == QUERN_STATUS_PARSE) status = base_error(QUERN_STATUS_INVALID, "%s", quern_last_error());
  if (status == QUERN_STATUS_OK) status = io_json_add(str, object);
  json_decref(object);
  return status;
}

quern_status io_checkpoint_print(struct base_str *str, const quern_checkpoint_contents *contents,
                                 const struct io_sum *sums, uint64_t model_bytes, uint64_t model_header) {
  char digest[HEX + 1];
  base_str_printf(str, HEAD, IO_CHECKPOINT_FORMAT);
  size_t at = str->n;
  base_str_add(str, "0000000000000000" HEAD_END);
  size_t first = str->n;
  base_str_printf(str, "\"step\":%" PRIu64 ",\n\"seed\":\"0x%016" PRIx64 "\",\n\"cursor\":%" PRIu64 ",\n\"config\":{",
                  contents->step, contents->seed, contents->cursor);
  for (size_t i = 0; i < contents->n_config; i++) {
    QUERN_TRY(add_key(str, i > 0 ? ",\n" : "\n", contents->config[i].key));
    QUERN_TRY(io_json_add_bytes(str, contents->config[i].value));
  }
  base_str_add(str, "},\n\"state\":");
  QUERN_TRY(add_state(str, contents->state));
  base_str_printf(str,
                  ",\n\"model\":{\"file\":\"%s\",\"bytes\":%" PRIu64 ",\"header\":\"%016" PRIx64 "\"},\n\"tensors\":{",
                  IO_CHECKPOINT_MODEL, model_bytes, model_header);
  for (size_t i = 0; i < contents->n_tensors; i++) {
    QUERN_TRY(add_key(str, i > 0 ? ",\n" : "\n", sums[i].name));
    base_str_printf(str, "\"%016" PRIx64 "\"", sums[i].digest);
  }
  base_str_add(str, "}}\n");
  QUERN_TRY(base_str_status(str));
  QUERN_CHECK(str->n <= IO_CHECKPOINT_JSON_MOST, OVERFLOW, "%s would have %zu bytes, at most %d are possible",
              IO_CHECKPOINT_JSON, str->n, IO_CHECKPOINT_JSON_MOST);
  snprintf(digest, sizeof digest, "%016" PRIx64, io_digest_of(str->at + first, str->n - first));
  memcpy(str->at + at, digest, HEX);
  return QUERN_STATUS_OK;
}

/* ---- parsing -------------------------------------------------------------------------------------------- */

/* 16 small hexadecimal digits. */
static bool read_hex(const char *text, size_t n, uint64_t *x) {
  *x = 0;
  for (size_t i = 0; i < n; i++) {
    int digit = text[i] >= '0' && text[i] <= '9'   ? text[i] - '0'
                : text[i] >= 'a' && text[i] <= 'f' ? text[i] - 'a' + 10
                                                   : -1;
    if (digit < 0) return false;
    *x = *x << 4 | (uint64_t)digit;
  }
  return n == HEX;
}

static bool is_hex(const json_t *value, const char *before, uint64_t *x) {
  const char *text = json_string_value(value);
  size_t n = strlen(before);
  return text != NULL && strncmp(text, before, n) == 0 && read_hex(text + n, strlen(text + n), x);
}

/* The first line, and that the rest has its digest. */
static quern_status check_head(const char *path, const char *text, size_t n) {
  char head[80];
  uint64_t digest, got;
  size_t length = (size_t)snprintf(head, sizeof head, HEAD, IO_CHECKPOINT_FORMAT),
         rest = length + HEX + strlen(HEAD_END);
  QUERN_CHECK(n >= rest && memcmp(text, head, length) == 0 && read_hex(text + length, HEX, &digest) &&
                  memcmp(text + length + HEX, HEAD_END, strlen(HEAD_END)) == 0,
              PARSE, "%s: does not begin as a checkpoint of format %d does", path, IO_CHECKPOINT_FORMAT);
  got = io_digest_of(text + rest, n - rest);
  QUERN_CHECK(got == digest, PARSE, "%s: is damaged: its digest is %016" PRIx64 ", the file records %016" PRIx64, path,
              got, digest);
  return QUERN_STATUS_OK;
}

static quern_status read_number(const char *path, const json_t *object, const char *key, uint64_t *number) {
  const json_t *value = json_object_get(object, key);
  QUERN_CHECK(json_is_integer(value) && json_integer_value(value) >= 0, PARSE, "%s: has no %s that is a number", path,
              key);
  *number = (uint64_t)json_integer_value(value);
  return QUERN_STATUS_OK;
}

static quern_status read_config(quern_checkpoint *c, const char *path, json_t *object) {
  char shown[160];
  const char *key;
  json_t *value;
  QUERN_CHECK(json_is_object(object), PARSE, "%s: has no config that is an object", path);
  json_object_foreach(object, key, value) {
    QUERN_CHECK(json_is_string(value), PARSE, "%s: '%s' of config is no string", path,
                io_json_shown(shown, sizeof shown, key));
    size_t n = json_string_length(value);
    char *bytes = base_arena_string(&c->arena, json_string_value(value), n);
    if (bytes != NULL) bytes[io_json_bytes(json_string_value(value), n, bytes)] = 0;
    quern_string_pair pair = {base_arena_string(&c->arena, key, strlen(key)), bytes};
    if (pair.key == NULL || pair.value == NULL || !base_vec_push(&c->heap, &c->config, pair))
      return QUERN_STATUS_MEMORY;
  }
  c->info.n_config = c->config.n;
  c->info.config = c->config.at;
  return QUERN_STATUS_OK;
}

static quern_status read_state(quern_checkpoint *c, const char *path, const json_t *object) {
  struct base_str str;
  QUERN_CHECK(json_is_object(object), PARSE, "%s: has no state that is an object", path);
  base_str_init(&str, &c->heap);
  quern_status status = io_json_add(&str, object);
  if (status == QUERN_STATUS_OK) {
    c->info.state = base_arena_string(&c->arena, str.at, str.n);
    if (c->info.state == NULL) status = QUERN_STATUS_MEMORY;
  }
  base_str_fini(&str);
  return status;
}

static quern_status read_model(quern_checkpoint *c, const char *path, const json_t *object) {
  const char *file = json_string_value(json_object_get(object, "file"));
  QUERN_CHECK(file != NULL && strcmp(file, IO_CHECKPOINT_MODEL) == 0, PARSE, "%s: has no model with the file %s", path,
              IO_CHECKPOINT_MODEL);
  QUERN_TRY(read_number(path, object, "bytes", &c->model_bytes));
  QUERN_CHECK(is_hex(json_object_get(object, "header"), "", &c->model_header), PARSE,
              "%s: the model has no header's digest", path);
  return QUERN_STATUS_OK;
}

static quern_status read_sums(quern_checkpoint *c, const char *path, json_t *object) {
  char shown[160];
  const char *key;
  json_t *value;
  QUERN_CHECK(json_is_object(object), PARSE, "%s: has no tensors that are an object", path);
  json_object_foreach(object, key, value) {
    struct io_sum sum = {.name = base_arena_string(&c->arena, key, strlen(key))};
    if (sum.name == NULL) return QUERN_STATUS_MEMORY;
    QUERN_CHECK(is_hex(value, "", &sum.digest), PARSE, "%s: tensor '%s' has no digest of %d digits", path,
                io_json_shown(shown, sizeof shown, key), HEX);
    if (!base_vec_push(&c->heap, &c->sums, sum)) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

static quern_status read_object(quern_checkpoint *c, const char *path, const json_t *object) {
  QUERN_TRY(read_number(path, object, "step", &c->info.step));
  QUERN_TRY(read_number(path, object, "cursor", &c->info.cursor));
  QUERN_CHECK(is_hex(json_object_get(object, "seed"), "0x", &c->info.seed), PARSE,
              "%s: has no seed that is 0x and %d digits", path, HEX);
  QUERN_TRY(read_config(c, path, json_object_get(object, "config")));
  QUERN_TRY(read_state(c, path, json_object_get(object, "state")));
  QUERN_TRY(read_model(c, path, json_object_get(object, "model")));
  return read_sums(c, path, json_object_get(object, "tensors"));
}

quern_status io_checkpoint_parse(quern_checkpoint *c, const char *path, const char *text, size_t n) {
  json_t *object = NULL;
  QUERN_TRY(check_head(path, text, n));
  quern_status status = io_json_parse(path, text, n, &object);
  if (status == QUERN_STATUS_OK) status = read_object(c, path, object);
  json_decref(object);
  return status;
}
