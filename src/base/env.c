/* base/env.c -- the environment variables of env.def, read once for the whole process
** keeps: no heap; the values never change after the first read; a malformed value is an error of
**        base_env_read and counts as unset elsewhere
** tests: tests/base/test_env.c
*/
#include "base/base.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quern/env.h"

extern char **environ;

#define PREFIX "QUERN_"
enum { PREFIX_BYTES = sizeof PREFIX - 1, NAME_BYTES = 256, VALUE_BYTES = 4096 };

/* A whole text as a number of 64 bits: decimal, or hexadecimal after 0x. */
static bool parse_u64(const char *text, uint64_t *number) {
  bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  const char *digits = hex ? text + 2 : text;
  size_t n = strspn(digits, hex ? "0123456789abcdefABCDEF" : "0123456789");
  if (n == 0 || digits[n] != 0) return false;
  uint64_t base = hex ? 16 : 10, x = 0;
  for (size_t i = 0; i < n; i++) {
    uint64_t digit = (uint64_t)(digits[i] <= '9' ? digits[i] - '0' : (digits[i] | 0x20) - 'a' + 10);
    if (x > (UINT64_MAX - digit) / base) return false;
    x = x * base + digit;
  }
  *number = x;
  return true;
}

/* True when a comma-separated list holds the n letters at word. */
static bool list_has(const char *list, const char *word, size_t n) {
  for (;;) {
    size_t length = strcspn(list, ",");
    if (length == n && memcmp(list, word, n) == 0) return true;
    if (list[length] == 0) return false;
    list += length + 1;
  }
}

/* ---- the checks: is that text a value of the variable, whose form is given? ---------------------------- */

/* Names of files and commands: not blank. */
static bool valid_CACHE(const char *text, const char *form) {
  (void)form;
  return text[strspn(text, " ")] != 0;
}

static bool valid_CC(const char *text, const char *form) { return valid_CACHE(text, form); }

static bool valid_DEBUG(const char *text, const char *form) {
  (void)form;
  return text[0] >= '0' && text[0] <= '4' && text[1] == 0;
}

static bool valid_DUMP_DIR(const char *text, const char *form) { return valid_CACHE(text, form); }

static bool valid_FAULT(const char *text, const char *form) {
  uint64_t number;
  size_t n = strcspn(form, ":") + 1;
  return strncmp(text, form, n) == 0 && text[n + strspn(text + n, "0123456789")] == 0 && parse_u64(text + n, &number) &&
         number > 0;
}

static bool valid_PASS(const char *text, const char *form) {
  (void)form;
  return text[0] == '-' || text[0] == '+';
}

static bool valid_REF(const char *text, const char *form) {
  (void)form;
  return (text[0] == '0' || text[0] == '1') && text[1] == 0;
}
static bool valid_SYNC(const char *text, const char *form) {
  (void)form;
  return (text[0] == '0' || text[0] == '1') && text[1] == 0;
}
static bool valid_TUNE(const char *text, const char *form) { return valid_SYNC(text, form); }

static bool valid_GRAPH(const char *text, const char *form) { return valid_SYNC(text, form); }
static bool valid_NVTX(const char *text, const char *form) { return valid_SYNC(text, form); }

static bool valid_SEED(const char *text, const char *form) {
  (void)form;
  uint64_t number;
  return parse_u64(text, &number);
}

static bool valid_THREADS(const char *text, const char *form) {
  uint64_t number;
  (void)form;
  return parse_u64(text, &number) && number >= 1 && number <= 1024;
}

static bool valid_PYTHON(const char *text, const char *form) { return valid_CACHE(text, form); }

static bool valid_WISDOM(const char *text, const char *form) { return valid_CACHE(text, form); }

static bool valid_VERBOSE(const char *text, const char *form) {
  for (;;) {
    size_t length = strcspn(text, ",");
    if (!list_has(form, text, length)) return false;
    if (text[length] == 0) return true;
    text += length + 1;
  }
}

/* ---- the snapshot -------------------------------------------------------------------------------------- */

static const struct row {
  const char *name, *form, *fallback, *help;
  bool (*valid)(const char *text, const char *form);
} rows[BASE_ENV_COUNT] = {
#define ENV(NAME, TEXT, DEFAULT, HELP) {PREFIX #NAME, TEXT, DEFAULT, HELP, valid_##NAME},
#include "base/env.def"
#undef ENV
};

static struct {
  char text[VALUE_BYTES]; /* as found; "" when unset; cut when too long, which is malformed */
  const char *value;      /* in force */
  uint64_t number;        /* of value, 0 when it is none */
  bool malformed;
} values[BASE_ENV_COUNT];

static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *current(const char *name) {
  const char *text = getenv(name);
  return text ? text : "";
}

/* Warns of QUERN_ variables that are not in the table. */
static void warn_unknown(void) {
  const char *names[BASE_ENV_COUNT];
  for (size_t i = 0; i < BASE_ENV_COUNT; i++) names[i] = rows[i].name + PREFIX_BYTES;
  for (char **at = environ; at && *at; at++) {
    if (strncmp(*at, PREFIX, PREFIX_BYTES) != 0) continue;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
    const char *nearest = base_nearest(name + PREFIX_BYTES, names, BASE_ENV_COUNT);
    if (nearest && strcmp(nearest, name + PREFIX_BYTES) == 0) continue;
    if (nearest) base_log(0, "unknown environment variable %s; did you mean " PREFIX "%s?", name, nearest);
    if (!nearest) base_log(0, "unknown environment variable %s", name);
  }
}

static void read_all(void) {
  for (size_t i = 0; i < BASE_ENV_COUNT; i++) {
    const char *text = current(rows[i].name);
    snprintf(values[i].text, VALUE_BYTES, "%s", text);
    values[i].malformed = *text && (strlen(text) >= VALUE_BYTES || !rows[i].valid(text, rows[i].form));
    values[i].value = *text && !values[i].malformed ? values[i].text : rows[i].fallback;
    if (!parse_u64(values[i].value, &values[i].number)) values[i].number = 0;
  }
  warn_unknown();
}

const char *base_env_get(enum base_env var) {
  pthread_once(&once, read_all);
  return values[var].value;
}

int64_t base_env_int(enum base_env var) {
  pthread_once(&once, read_all);
  return (int64_t)values[var].number;
}

bool base_env_has(enum base_env var, const char *word) { return list_has(base_env_get(var), word, strlen(word)); }

quern_status base_env_read(void) {
  pthread_once(&once, read_all);
  for (size_t i = 0; i < BASE_ENV_COUNT; i++) {
    QUERN_CHECK(!values[i].malformed, INVALID, "%s is \"%s\"; expected %s", rows[i].name, values[i].text, rows[i].form);
    const char *now = current(rows[i].name);
    QUERN_CHECK(strcmp(now, values[i].text) == 0, STATE,
                "%s has changed from \"%s\" to \"%s\" after it was read; set it before the first use of Quern",
                rows[i].name, values[i].text, now);
  }
  return QUERN_STATUS_OK;
}

size_t quern_env_count(void) { return BASE_ENV_COUNT; }

quern_status quern_env_get(size_t i, quern_env_entry *entry) {
  QUERN_CHECK(entry, INVALID, "env_get: entry is null");
  QUERN_CHECK(i < BASE_ENV_COUNT, INVALID, "env_get: variable %zu of %d", i, (int)BASE_ENV_COUNT);
  const quern_env_entry row = {.name = rows[i].name,
                               .value = base_env_get((enum base_env)i),
                               .fallback = rows[i].fallback,
                               .form = rows[i].form,
                               .help = rows[i].help};
  return base_give(quern_env_entry, entry, &row, "env_get");
}
