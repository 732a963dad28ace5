/* io/json.c -- JSON by jansson, with statuses and messages of ours
** in:    any bytes                            out: an object, or PARSE with line and column, or MEMORY
** keeps: when memory ends, jansson drops a byte and goes on, or gives no reason; malloc sets errno, and only a number clears it, after
**        the byte behind it was asked for. So the text is given to the parser in pieces that end with each number, and errno is looked at between
** tests: tests/io/test_json.c, tests/io/test_safetensors.c, tests/fuzz/fuzz_safetensors.c
*/
#include "io/json.h"

#include <errno.h>

#include "io/tokenizer.h"

char *io_json_shown(char *buffer, size_t bytes, const char *text) {
  size_t n = 0;
  for (; text[n] != 0 && n + 1 < bytes; n++) {
    unsigned char c = (unsigned char)text[n];
    buffer[n] = (char)(c < 0x20 || c >= 0x7f ? '?' : c);
  }
  buffer[n] = 0;
  if (text[n] != 0 && n >= 3) memcpy(buffer + n - 3, "...", 3);
  return buffer;
}

/* A text on its way to jansson. */
struct source {
  const char *at, *end;
  bool starved; /* an allocation failed */
};

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The next piece: it ends where digits do. */
static size_t feed(void *buffer, size_t room, void *data) {
  struct source *source = data;
  size_t n = 0, left = (size_t)(source->end - source->at);
  source->starved |= errno == ENOMEM;
  if (source->starved) return 0;
  while (n < room && n < left) {
    n++;
    if (is_digit(source->at[n - 1]) && (n == left || !is_digit(source->at[n]))) break;
  }
  memcpy(buffer, source->at, n);
  source->at += n;
  return n;
}

quern_status io_json_parse(const char *what, const char *text, size_t n, json_t **object) {
  struct source source = {.at = text, .end = text + n};
  json_error_t error = {0};
  char shown[JSON_ERROR_TEXT_LENGTH];
  errno = 0;
  *object = json_load_callback(feed, &source, JSON_REJECT_DUPLICATES, &error);
  source.starved |= errno == ENOMEM;
  if (*object != NULL && !source.starved && json_is_object(*object)) return QUERN_STATUS_OK;
  bool parsed = *object != NULL;
  json_decref(*object);
  *object = NULL;
  QUERN_CHECK(!source.starved, MEMORY, "%s: no memory for %zu bytes of JSON", what, n);
  QUERN_CHECK(!parsed, PARSE, "%s: the JSON is an array, expected an object", what);
  return base_error(QUERN_STATUS_PARSE, "%s: line %d, column %d of the JSON: %s", what, error.line, error.column,
                    io_json_shown(shown, sizeof shown, error.text));
}

/* Takes a part of what jansson prints. */
static int take(const char *text, size_t n, void *str) {
  base_str_add_n(str, text, n);
  return ((struct base_str *)str)->failed ? -1 : 0;
}

quern_status io_json_add(struct base_str *str, const json_t *value) {
  int failed = json_dump_callback(value, take, str, JSON_COMPACT | JSON_ENCODE_ANY);
  QUERN_TRY(base_str_status(str));
  QUERN_CHECK(failed == 0, MEMORY, "no memory for the text of a JSON value");
  return QUERN_STATUS_OK;
}

quern_status io_json_add_string(struct base_str *str, const char *text) {
  char shown[64];
  errno = 0;
  json_t *value = json_string(text);
  if (value == NULL) {
    QUERN_CHECK(errno != ENOMEM, MEMORY, "no memory for a JSON string of %zu bytes", strlen(text));
    return base_error(QUERN_STATUS_INVALID, "\"%s\" is no UTF-8", io_json_shown(shown, sizeof shown, text));
  }
  quern_status status = io_json_add(str, value);
  json_decref(value);
  return status;
}

/* ---- texts of any bytes --------------------------------------------------------------------------------- */

enum { BYTE_FIRST = 0xf700 }; /* the private character that is byte 0 */

static bool is_byte(uint32_t c) { return c >= BYTE_FIRST + 0x80 && c <= BYTE_FIRST + 0xff; }

quern_status io_json_add_bytes(struct base_str *str, const char *text) {
  struct base_str shown;
  base_str_init(&shown, str->heap);
  base_str_add(&shown, "");
  for (size_t left = strlen(text); left > 0;) {
    uint32_t c;
    unsigned char escaped[4];
    size_t n = io_utf8_get((const unsigned char *)text, left, &c);
    bool plain = c != IO_UTF8_BAD && !is_byte(c);
    if (plain)
      base_str_add_n(&shown, text, n);
    else
      base_str_add_n(&shown, (const char *)escaped, io_utf8_put(BYTE_FIRST + (unsigned char)*text, escaped));
    n = plain ? n : 1;
    text += n;
    left -= n;
  }
  quern_status status = base_str_status(&shown);
  if (status == QUERN_STATUS_OK) status = io_json_add_string(str, shown.at);
  base_str_fini(&shown);
  return status;
}

size_t io_json_bytes(const char *text, size_t n, char *bytes) {
  size_t to = 0;
  for (size_t at = 0; at < n;) {
    uint32_t c;
    size_t length = io_utf8_get((const unsigned char *)text + at, n - at, &c);
    if (is_byte(c))
      bytes[to++] = (char)(c - BYTE_FIRST);
    else
      for (size_t i = 0; i < length; i++) bytes[to++] = text[at + i];
    at += length;
  }
  return to;
}
