/* base/error.c -- the last failure and the caller's place, one of each a thread
** keeps: no heap; a message may quote the one it replaces
** tests: tests/base/test_error.c
*/
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct {
  quern_status status;
  char message[BASE_MESSAGE_BYTES];
} last;

static _Thread_local struct {
  const char *file;
  int line;
} place;

static const char *const names[QUERN_STATUS_COUNT] = {
    [QUERN_STATUS_OK] = "ok",
    [QUERN_STATUS_INVALID] = "invalid",
    [QUERN_STATUS_SHAPE] = "shape",
    [QUERN_STATUS_DTYPE] = "dtype",
    [QUERN_STATUS_OVERFLOW] = "overflow",
    [QUERN_STATUS_MEMORY] = "memory",
    [QUERN_STATUS_IO] = "io",
    [QUERN_STATUS_PARSE] = "parse",
    [QUERN_STATUS_UNBOUND] = "unbound",
    [QUERN_STATUS_UNSUPPORTED] = "unsupported",
    [QUERN_STATUS_STATE] = "state",
    [QUERN_STATUS_INTERNAL] = "internal",
    [QUERN_STATUS_DEVICE] = "device",
};

const char *quern_status_name(quern_status status) {
  return (unsigned)status < QUERN_STATUS_COUNT ? names[status] : "unknown";
}

const char *quern_last_error(void) { return last.message; }

quern_status quern_last_status(void) { return last.status; }

quern_status base_error_swap(quern_status status) {
  quern_status before = last.status;
  last.status = status;
  return before;
}

void quern_place_set(const char *file, int line) {
  place.file = file;
  place.line = line;
}

void base_place_get(const char **file, int *line) {
  *file = place.file;
  *line = place.line;
}

/* Ends a text that fills its buffer with "...", not inside a UTF-8 character. */
static void mark_cut(char *text, size_t bytes) {
  size_t n = bytes - sizeof "...";
  while (n > 0 && ((unsigned char)text[n] & 0xc0u) == 0x80u) n--;
  memcpy(text + n, "...", sizeof "...");
}

quern_status base_error_v(quern_status status, const char *fmt, va_list args) {
  char text[BASE_MESSAGE_BYTES];
  int n = vsnprintf(text, sizeof text, fmt, args);
  if (n < 0) snprintf(text, sizeof text, "%s", fmt);
  if (n >= (int)sizeof text) mark_cut(text, sizeof text);
  base_text_shown(last.message, sizeof last.message, text, true);
  last.status = status;
  return status;
}

quern_status base_error(quern_status status, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  base_error_v(status, fmt, args);
  va_end(args);
  return status;
}

#if QUERN_ASSERTS
_Noreturn void base_assert_failed(const char *cond, const char *file, int line) {
  fprintf(stderr, "quern: %s:%d: broken invariant: %s\n", file, line, cond);
  abort();
}
#endif
