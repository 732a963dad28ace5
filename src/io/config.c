/* io/config.c -- configurations: values by name, checked against a table of what there is
** keeps: a value that was accepted is one of its type; a call that fails changes nothing
** tests: tests/io/test_config.c, tests/fuzz/fuzz_config.c
*/
#include "quern/config.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/io.h"

enum { MOST_KEYS = 512, MOST_FILE = 1 << 20 };

struct quern_config {
  struct base_heap heap;
  size_t n;
  const quern_config_key *keys;
  char **values; /* NULL: the table's */
};

/* ---- values --------------------------------------------------------------------------------------------- */

/* True when the n letters of a word are one of the words of a list. */
static bool is_listed(const char *list, const char *word) {
  size_t n = strlen(word);
  for (const char *at = list; at != NULL; at = strchr(at, '|') != NULL ? strchr(at, '|') + 1 : NULL) {
    size_t length = strcspn(at, "|");
    bool open = length > 0 && at[length - 1] == '*';
    if (open ? n >= length - 1 && memcmp(at, word, length - 1) == 0 : n == length && memcmp(at, word, n) == 0)
      return true;
  }
  return false;
}

static bool within(const quern_config_key *key, double x) {
  return (key->least == 0 && key->most == 0) || (x >= key->least && x <= key->most);
}

/* A whole text as a number; decimal points are points in every locale. */
static bool parse_real(const char *text, double *x) {
  size_t n = strspn(text, "0123456789+-.eE");
  const char *end;
  return n > 0 && text[n] == 0 && base_element_parse(text, text + n, &end, QUERN_DTYPE_F64, x, 0) && end == text + n &&
         isfinite(*x);
}

static bool parse_int(const char *text, int64_t *x) {
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  *x = value;
  return errno == 0 && end != text && *end == 0 && strchr("+-0123456789", text[0]) != NULL;
}

static bool parse_flag(const char *text, bool *x) {
  *x = is_listed("true|1|yes|on", text);
  return *x || is_listed("false|0|no|off", text);
}

static bool parse_bytes(const char *text, int64_t *x) {
  static const struct {
    const char *name;
    double bytes;
  } units[] = {{"", 1},     {"B", 1},    {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {"TiB", 1099511627776},
               {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},   {"TB", 1e12}};
  char number[64];
  double value;
  size_t n = strspn(text, "0123456789.");
  if (n == 0 || n >= sizeof number) return false;
  memcpy(number, text, n);
  number[n] = 0;
  if (!parse_real(number, &value)) return false;
  for (size_t i = 0; i < BASE_COUNT(units); i++) {
    if (strcmp(text + n, units[i].name) != 0 || value * units[i].bytes >= 0x1p62) continue;
    *x = (int64_t)(value * units[i].bytes);
    return true;
  }
  return false;
}

/* Whether a text is a value of the key. */
static bool fits(const quern_config_key *key, const char *text) {
  int64_t whole;
  double real;
  bool flag;
  if (strchr(text, '\n') != NULL) return false; /* a value is part of a line */
  if (key->allowed != NULL && is_listed(key->allowed, text)) return true;
  switch (key->type) {
  case QUERN_CONFIG_TEXT: return true;
  case QUERN_CONFIG_CHOICE: return false;
  case QUERN_CONFIG_INT: return parse_int(text, &whole) && within(key, (double)whole);
  case QUERN_CONFIG_REAL: return parse_real(text, &real) && within(key, real);
  case QUERN_CONFIG_FLAG: return parse_flag(text, &flag);
  case QUERN_CONFIG_BYTES: return parse_bytes(text, &whole) && within(key, (double)whole);
  }
  return false;
}

/* What a key takes, for messages and tables. */
static void describe(struct base_str *str, const quern_config_key *key) {
  static const char *const types[] = {
      "a text", "", "a whole number", "a number", "true or false", "bytes such as 64KiB or 1.5GiB"};
  bool limits = key->least != 0 || key->most != 0;
  if (key->type != QUERN_CONFIG_CHOICE) base_str_add(str, types[key->type]);
  if (limits && key->type != QUERN_CONFIG_BYTES) base_str_printf(str, " from %.15g to %.15g", key->least, key->most);
  if (key->allowed == NULL) return;
  if (key->type != QUERN_CONFIG_CHOICE) base_str_add(str, ", or ");
  for (const char *at = key->allowed; *at != 0; at++) base_str_add_n(str, *at == '|' ? ", " : at, *at == '|' ? 2 : 1);
}

/* ---- keys ----------------------------------------------------------------------------------------------- */

static const quern_config_key *find(const quern_config *config, const char *key) {
  for (size_t i = 0; config != NULL && key != NULL && i < config->n; i++)
    if (strcmp(config->keys[i].name, key) == 0) return &config->keys[i];
  return NULL;
}

static const char *value_of(const quern_config *config, const quern_config_key *key) {
  const char *value = config->values[key - config->keys];
  return value != NULL ? value : key->value;
}

static quern_status no_such_key(const quern_config *config, const char *key) {
  const char *names[MOST_KEYS];
  for (size_t i = 0; i < config->n; i++) names[i] = config->keys[i].name;
  const char *nearest = base_nearest(key, names, config->n);
  return base_error(QUERN_STATUS_INVALID, "there is no key '%.64s'%s%s%s", key,
                    nearest != NULL ? "; did you mean '" : "", nearest != NULL ? nearest : "",
                    nearest != NULL ? "'?" : "");
}

static quern_status bad_value(const quern_config *config, const quern_config_key *key, const char *value) {
  struct base_str str;
  base_str_init(&str, (struct base_heap *)&config->heap); /* a message leaves nothing in it */
  describe(&str, key);
  quern_status status = base_str_status(&str);
  if (status == QUERN_STATUS_OK)
    status = base_error(QUERN_STATUS_INVALID, "%s = '%.64s': must be %s", key->name, value, str.at);
  base_str_fini(&str);
  return status;
}

/* ---- making --------------------------------------------------------------------------------------------- */

quern_status quern_config_new(quern_config **config, size_t n, const quern_config_key *keys,
                              const quern_allocator *allocator) {
  QUERN_CHECK(config != NULL, INVALID, "config_new: the place for the configuration is null");
  *config = NULL;
  QUERN_CHECK(n <= MOST_KEYS, INVALID, "config_new: %zu keys; at most %d are possible", n, MOST_KEYS);
  QUERN_CHECK(n == 0 || keys != NULL, INVALID, "config_new: the table of %zu keys is null", n);
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(keys[i].name != NULL && keys[i].value != NULL, INVALID, "config_new: key %zu has no name or no value",
                i);
    QUERN_CHECK(keys[i].type != QUERN_CONFIG_CHOICE || keys[i].allowed != NULL, INVALID,
                "config_new: nothing is allowed for key '%s'", keys[i].name);
    QUERN_CHECK(fits(&keys[i], keys[i].value), INVALID, "config_new: key '%s' has the value '%s', which is not allowed",
                keys[i].name, keys[i].value);
  }
  struct base_heap heap;
  base_heap_init(&heap, allocator);
  quern_config *made = base_alloc_zero(&heap, sizeof *made + n * sizeof *made->values);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  made->heap = heap;
  made->n = n;
  made->keys = keys;
  made->values = (char **)(made + 1);
  *config = made;
  return QUERN_STATUS_OK;
}

static void free_value(quern_config *config, size_t i) {
  if (config->values[i] != NULL) base_free(&config->heap, config->values[i], strlen(config->values[i]) + 1);
  config->values[i] = NULL;
}

void quern_config_free(quern_config *config) {
  if (config == NULL) return;
  for (size_t i = 0; i < config->n; i++) free_value(config, i);
  struct base_heap heap = config->heap;
  base_free(&heap, config, sizeof *config + config->n * sizeof *config->values);
}

const quern_allocator *io_config_allocator(const quern_config *config) {
  return config != NULL ? &config->heap.user : NULL;
}

/* ---- setting -------------------------------------------------------------------------------------------- */

quern_status quern_config_set(quern_config *config, const char *key, const char *value) {
  QUERN_CHECK(config != NULL, INVALID, "config_set: the configuration is null");
  QUERN_CHECK(key != NULL && value != NULL, INVALID, "config_set: the %s is null", key == NULL ? "key" : "value");
  const quern_config_key *row = find(config, key);
  if (row == NULL) return no_such_key(config, key);
  if (!fits(row, value)) return bad_value(config, row, value);
  size_t i = (size_t)(row - config->keys), bytes = strlen(value) + 1;
  char *copy = base_alloc(&config->heap, bytes);
  if (copy == NULL) return QUERN_STATUS_MEMORY;
  memcpy(copy, value, bytes);
  free_value(config, i);
  config->values[i] = copy;
  return QUERN_STATUS_OK;
}

/* Sets a key of n letters. */
static quern_status set_n(quern_config *config, const char *key, size_t n, const char *value) {
  char name[65];
  snprintf(name, sizeof name, "%.*s", (int)BASE_MIN(n, sizeof name - 1), key);
  return quern_config_set(config, name, value);
}

quern_status quern_config_word(quern_config *config, const char *word) {
  QUERN_CHECK(config != NULL, INVALID, "config_word: the configuration is null");
  QUERN_CHECK(word != NULL, INVALID, "config_word: the word is null");
  size_t n = strcspn(word, "=");
  QUERN_CHECK(n > 0 && word[n] == '=', INVALID, "'%.64s' is no setting; one looks like key=value", word);
  return set_n(config, word, n, word + n + 1);
}

/* ---- texts ---------------------------------------------------------------------------------------------- */

/* A text that is read line by line. */
struct reader {
  const char *name, *at, *stop;
  int line;
  struct base_str value;
};

#define READER_CHECK(cond, ...)                                                                                        \
  do {                                                                                                                 \
    if (!(cond)) return base_error(QUERN_STATUS_PARSE, __VA_ARGS__);                                                   \
  } while (0)

static void skip_blanks(struct reader *r) {
  while (r->at < r->stop && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r')) r->at++;
}

static bool at_end_of_line(const struct reader *r) { return r->at == r->stop || *r->at == '\n' || *r->at == '#'; }

static void skip_line(struct reader *r) {
  while (r->at < r->stop && *r->at != '\n') r->at++;
  if (r->at < r->stop) r->at++;
  r->line++;
}

/* "..." with \" and \\ inside. */
static quern_status read_quoted(struct reader *r) {
  for (r->at++; r->at < r->stop && *r->at != '"' && *r->at != '\n'; r->at++) {
    bool escaped = *r->at == '\\' && r->at + 1 < r->stop && (r->at[1] == '"' || r->at[1] == '\\');
    if (escaped) r->at++;
    base_str_add_n(&r->value, r->at, 1);
  }
  READER_CHECK(r->at < r->stop && *r->at == '"', "%s:%d: a value begins with \" and does not end", r->name, r->line);
  r->at++;
  skip_blanks(r);
  READER_CHECK(at_end_of_line(r), "%s:%d: something follows the value's last \"", r->name, r->line);
  return QUERN_STATUS_OK;
}

static void read_plain(struct reader *r) {
  const char *from = r->at, *last = r->at;
  for (; !at_end_of_line(r); r->at++)
    if (*r->at != ' ' && *r->at != '\t' && *r->at != '\r') last = r->at + 1;
  base_str_add_n(&r->value, from, (size_t)(last - from));
}

/* One line: nothing, or a key and its value. */
static quern_status read_line(struct reader *r, quern_config *config) {
  skip_blanks(r);
  if (at_end_of_line(r)) return QUERN_STATUS_OK;
  const char *key = r->at;
  while (!at_end_of_line(r) && *r->at != '=' && *r->at != ' ' && *r->at != '\t') r->at++;
  size_t n = (size_t)(r->at - key);
  skip_blanks(r);
  READER_CHECK(n > 0 && r->at < r->stop && *r->at == '=', "%s:%d: '%.*s' is no setting; a line is key = value", r->name,
               r->line, (int)BASE_MIN(n, 64), key);
  r->at++;
  skip_blanks(r);
  base_str_fini(&r->value);
  base_str_init(&r->value, &config->heap);
  if (r->at < r->stop && *r->at == '"')
    QUERN_TRY(read_quoted(r));
  else
    read_plain(r);
  QUERN_TRY(base_str_status(&r->value));
  const char *value = r->value.n > 0 ? r->value.at : "";
  READER_CHECK(memchr(value, 0, r->value.n) == NULL, "%s:%d: a zero byte", r->name, r->line);
  quern_status status = set_n(config, key, n, value);
  if (status != QUERN_STATUS_INVALID) return status;
  char why[512];
  snprintf(why, sizeof why, "%s", quern_last_error());
  return base_error(QUERN_STATUS_INVALID, "%s:%d: %s", r->name, r->line, why);
}

static quern_status read_lines(quern_config *config, const char *name, const char *text, size_t bytes) {
  struct reader r = {.name = name, .at = text, .stop = text + bytes, .line = 1};
  quern_status status = QUERN_STATUS_OK;
  base_str_init(&r.value, &config->heap);
  while (r.at < r.stop && status == QUERN_STATUS_OK) {
    status = read_line(&r, config);
    skip_line(&r);
  }
  base_str_fini(&r.value);
  return status;
}

quern_status quern_config_text(quern_config *config, const char *name, const char *text, size_t bytes) {
  QUERN_CHECK(config != NULL, INVALID, "config_text: the configuration is null");
  QUERN_CHECK(text != NULL || bytes == 0, INVALID, "config_text: the text is null");
  quern_config *copy; /* so that nothing changes when a line is wrong */
  QUERN_TRY(quern_config_new(&copy, config->n, config->keys, &config->heap.user));
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < config->n && status == QUERN_STATUS_OK; i++)
    if (config->values[i] != NULL) status = quern_config_set(copy, config->keys[i].name, config->values[i]);
  if (status == QUERN_STATUS_OK && bytes > 0) status = read_lines(copy, name != NULL ? name : "text", text, bytes);
  for (size_t i = 0; i < config->n && status == QUERN_STATUS_OK; i++) {
    char *value = config->values[i];
    config->values[i] = copy->values[i];
    copy->values[i] = value;
  }
  quern_config_free(copy);
  return status;
}

quern_status quern_config_file(quern_config *config, const char *path) {
  QUERN_CHECK(config != NULL, INVALID, "config_file: the configuration is null");
  QUERN_CHECK(path != NULL, INVALID, "config_file: the path is null");
  void *bytes;
  size_t n;
  QUERN_TRY(io_file_read(path, &config->heap, MOST_FILE, &bytes, &n));
  quern_status status = quern_config_text(config, path, bytes, n);
  base_free(&config->heap, bytes, n);
  return status;
}

/* ---- getting -------------------------------------------------------------------------------------------- */

const char *quern_config_get(const quern_config *config, const char *key) {
  const quern_config_key *row = find(config, key);
  return row != NULL ? value_of(config, row) : "";
}

int64_t quern_config_int(const quern_config *config, const char *key) {
  const quern_config_key *row = find(config, key);
  int64_t x = 0;
  bool good = row != NULL && ((row->type == QUERN_CONFIG_INT && parse_int(value_of(config, row), &x)) ||
                              (row->type == QUERN_CONFIG_BYTES && parse_bytes(value_of(config, row), &x)));
  return good ? x : 0;
}

double quern_config_real(const quern_config *config, const char *key) {
  const quern_config_key *row = find(config, key);
  double x;
  if (row == NULL || row->type != QUERN_CONFIG_REAL) return (double)quern_config_int(config, key);
  return parse_real(value_of(config, row), &x) ? x : 0;
}

bool quern_config_flag(const quern_config *config, const char *key) {
  const quern_config_key *row = find(config, key);
  bool x;
  return row != NULL && row->type == QUERN_CONFIG_FLAG && parse_flag(value_of(config, row), &x) && x;
}

bool quern_config_is_set(const quern_config *config, const char *key) {
  const quern_config_key *row = find(config, key);
  return row != NULL && config->values[row - config->keys] != NULL;
}

/* ---- printing ------------------------------------------------------------------------------------------- */

static void print_value(struct base_str *str, const char *value) {
  size_t n = strlen(value);
  bool plain = strpbrk(value, "\"#") == NULL &&
               (n == 0 || (strchr(" \t\r", value[0]) == NULL && strchr(" \t\r", value[n - 1]) == NULL));
  if (plain) {
    base_str_add(str, value);
    return;
  }
  base_str_add(str, "\"");
  for (size_t i = 0; i < n; i++) {
    if (value[i] == '"' || value[i] == '\\') base_str_add(str, "\\");
    base_str_add_n(str, &value[i], 1);
  }
  base_str_add(str, "\"");
}

static quern_status begin_text(const char *what, const quern_config *config, char **text, struct base_str *str) {
  QUERN_CHECK(text != NULL, INVALID, "%s: the place for the text is null", what);
  *text = NULL;
  QUERN_CHECK(config != NULL, INVALID, "%s: the configuration is null", what);
  base_str_init(str, (struct base_heap *)&config->heap);
  base_str_add(str, "");
  return QUERN_STATUS_OK;
}

quern_status quern_config_print(const quern_config *config, bool all, char **text) {
  struct base_str str;
  QUERN_TRY(begin_text("config_print", config, text, &str));
  for (size_t i = 0; i < config->n; i++) {
    if (!all && config->values[i] == NULL) continue;
    base_str_printf(&str, "%s = ", config->keys[i].name);
    print_value(&str, value_of(config, &config->keys[i]));
    base_str_add(&str, "\n");
  }
  return base_str_give(QUERN_STATUS_OK, &str, text);
}

quern_status quern_config_help(const quern_config *config, char **text) {
  struct base_str str;
  QUERN_TRY(begin_text("config_help", config, text, &str));
  for (size_t i = 0; i < config->n; i++) {
    const quern_config_key *key = &config->keys[i];
    base_str_printf(&str, "  %-14s %s (%s; ", key->name, key->help != NULL ? key->help : "", value_of(config, key));
    describe(&str, key);
    base_str_add(&str, ")\n");
  }
  return base_str_give(QUERN_STATUS_OK, &str, text);
}
