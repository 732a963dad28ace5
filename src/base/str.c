/* base/str.c -- a string that grows, the text of a shape, the nearest word
** keeps: after a failed allocation nothing more is added
** tests: tests/base/test_str.c
*/
#include "base/base.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void base_str_init(struct base_str *str, struct base_heap *heap) { *str = (struct base_str){.heap = heap}; }

void base_str_fini(struct base_str *str) {
  base_free(str->heap, str->at, str->cap);
  base_str_init(str, str->heap);
}

/* Room for n characters and the terminator. */
static bool reserve(struct base_str *str, size_t n) {
  if (!str->failed && (n == SIZE_MAX || !base_vec_grow(str->heap, &str->at, str->n, &str->cap, 1, n + 1))) {
    str->failed = true;
  }
  return !str->failed;
}

void base_str_add_n(struct base_str *str, const char *text, size_t n) {
  if (!reserve(str, n)) return;
  if (n > 0) memcpy(str->at + str->n, text, n);
  str->n += n;
  str->at[str->n] = 0;
}

void base_str_add(struct base_str *str, const char *text) { base_str_add_n(str, text, strlen(text)); }

void base_str_printf(struct base_str *str, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, fmt, args);
  if (n < 0) str->failed = true;
  if (n >= 0 && reserve(str, (size_t)n)) {
    vsnprintf(str->at + str->n, (size_t)n + 1, fmt, again);
    str->n += (size_t)n;
  }
  va_end(again);
  va_end(args);
}

quern_status base_str_status(const struct base_str *str) {
  QUERN_CHECK(!str->failed, MEMORY, "no memory for a text of more than %zu bytes", str->n);
  return QUERN_STATUS_OK;
}

char *base_shape_text(char *buffer, size_t bytes, int rank, const int64_t *dims) {
  size_t n = (size_t)snprintf(buffer, bytes, "(");
  for (int i = 0; i < rank && n < bytes; i++) {
    n += (size_t)snprintf(buffer + n, bytes - n, i > 0 ? ", %" PRId64 : "%" PRId64, dims[i]);
  }
  if (n < bytes) snprintf(buffer + n, bytes - n, rank == 1 ? ",)" : ")");
  return buffer;
}

enum { LONGEST_WORD = 63 };

static char lower(char c) { return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); }

/* How many letters to add, drop or replace to make a into b (Levenshtein); capitals equal small letters. */
static size_t distance(const char *a, size_t na, const char *b, size_t nb) {
  size_t row[LONGEST_WORD + 1];
  for (size_t j = 0; j <= nb; j++) row[j] = j;
  for (size_t i = 1; i <= na; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= nb; j++) {
      size_t replaced = diagonal + (lower(a[i - 1]) != lower(b[j - 1]));
      diagonal = row[j];
      row[j] = BASE_MIN(replaced, BASE_MIN(row[j], row[j - 1]) + 1);
    }
  }
  return row[nb];
}

/* Near: one change, and one more for every four letters of the word. Of equally near ones the first. */
const char *base_nearest(const char *word, const char *const *list, size_t n) {
  size_t length = strlen(word), best = 2 + length / 4;
  const char *nearest = NULL;
  for (size_t i = 0; i < n && length <= LONGEST_WORD; i++) {
    size_t other = strlen(list[i]);
    if (other > LONGEST_WORD) continue;
    size_t d = distance(word, length, list[i], other);
    if (d < best) {
      best = d;
      nearest = list[i];
    }
  }
  return nearest;
}
