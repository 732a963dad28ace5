/* ir/lex.c -- a cursor in a text, and the small pieces that lines are made of
** keeps: never reads at or after stop; every failure says line:column, what was expected and what was found
** tests: tests/ir/test_parse.c, tests/fuzz/fuzz_qir.c
*/
#include "ir/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- errors --------------------------------------------------------------------------------------------- */

quern_status ir_cursor_error(const struct ir_cursor *cursor, const char *at, quern_status status, const char *fmt,
                             ...) {
  char text[BASE_MESSAGE_BYTES];
  size_t line = 1, column = 1;
  for (const char *c = cursor->begin; c < at; c++) {
    column = *c == '\n' ? 1 : column + 1;
    line += *c == '\n';
  }
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return base_error(status, "%zu:%zu: %s", line, column, text);
}

enum { FOUND_BYTES = 40 };

static size_t word_length(const char *at, const char *stop) {
  size_t n = 0;
  while (at + n < stop && ir_text_is_word(at[n])) n++;
  return n;
}

/* What stands at the cursor, for a message: 'word', a character, or the end of something. */
static const char *found(const struct ir_cursor *cursor, char buffer[FOUND_BYTES]) {
  if (cursor->at == cursor->stop) return "the end of the text";
  unsigned char c = (unsigned char)*cursor->at;
  if (c == '\n') return "the end of the line";
  size_t sign = c == '-' || c == '%' || c == '@';
  size_t n = sign + word_length(cursor->at + sign, cursor->stop);
  if (n > sign)
    snprintf(buffer, FOUND_BYTES, "'%.*s%s'", (int)BASE_MIN(n, 32), cursor->at, n > 32 ? "..." : "");
  else if (c < 0x20 || c >= 0x7f)
    snprintf(buffer, FOUND_BYTES, "the byte 0x%02x", c);
  else
    snprintf(buffer, FOUND_BYTES, "'%c'", c);
  return buffer;
}

quern_status ir_cursor_expected(const struct ir_cursor *cursor, const char *what) {
  char buffer[FOUND_BYTES];
  return ir_cursor_error(cursor, cursor->at, QUERN_STATUS_PARSE, "expected %s, found %s", what, found(cursor, buffer));
}

/* ---- blanks and characters ------------------------------------------------------------------------------ */

void ir_cursor_skip_space(struct ir_cursor *cursor) {
  while (ir_cursor_is(cursor, ' ') || ir_cursor_is(cursor, '\t') || ir_cursor_is(cursor, '\r')) cursor->at++;
  if (!ir_cursor_is(cursor, '#')) return;
  while (cursor->at < cursor->stop && *cursor->at != '\n') cursor->at++;
}

void ir_cursor_skip_lines(struct ir_cursor *cursor) {
  do ir_cursor_skip_space(cursor);
  while (ir_cursor_take(cursor, '\n'));
}

bool ir_cursor_is(const struct ir_cursor *cursor, char c) { return cursor->at < cursor->stop && *cursor->at == c; }

bool ir_cursor_take(struct ir_cursor *cursor, char c) {
  if (!ir_cursor_is(cursor, c)) return false;
  cursor->at++;
  return true;
}

quern_status ir_cursor_take_end_of_line(struct ir_cursor *cursor) {
  ir_cursor_skip_space(cursor);
  if (cursor->at == cursor->stop || ir_cursor_take(cursor, '\n')) return QUERN_STATUS_OK;
  return ir_cursor_expected(cursor, "the end of the line");
}

quern_status ir_cursor_next(struct ir_cursor *cursor, bool first, char close, bool *more) {
  char what[] = "',' or '?'";
  what[sizeof what - 3] = close;
  ir_cursor_skip_lines(cursor);
  *more = !ir_cursor_take(cursor, close);
  if (!*more || first) return QUERN_STATUS_OK;
  if (!ir_cursor_take(cursor, ',')) return ir_cursor_expected(cursor, what);
  ir_cursor_skip_lines(cursor);
  return QUERN_STATUS_OK;
}

/* ---- words, numbers, texts ------------------------------------------------------------------------------ */

quern_status ir_cursor_word(struct ir_cursor *cursor, const char *what, struct ir_span *word) {
  *word = (struct ir_span){.at = cursor->at, .n = word_length(cursor->at, cursor->stop)};
  if (word->n == 0) return ir_cursor_expected(cursor, what);
  cursor->at += word->n;
  return QUERN_STATUS_OK;
}

quern_status ir_cursor_int(struct ir_cursor *cursor, const char *what, int64_t least, int64_t most, int64_t *x) {
  const char *at = cursor->at, *end;
  size_t n = (size_t)ir_cursor_is(cursor, '-');
  n += word_length(at + n, cursor->stop);
  if (n == 0 || (at[0] != '-' && (at[0] < '0' || at[0] > '9'))) return ir_cursor_expected(cursor, what);
  if (!base_element_parse(at, at + n, &end, QUERN_DTYPE_I64, x, 0) || end != at + n)
    return ir_cursor_error(cursor, at, QUERN_STATUS_PARSE, "expected %s, found '%.*s', which is no 64-bit integer",
                           what, (int)BASE_MIN(n, 32), at);
  if (*x < least || *x > most)
    return ir_cursor_error(cursor, at, QUERN_STATUS_PARSE,
                           "expected %s from %" PRId64 " to %" PRId64 ", found %" PRId64, what, least, most, *x);
  cursor->at = end;
  return QUERN_STATUS_OK;
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Reads n hexadecimal digits; false when there are fewer. */
static bool take_hex(struct ir_cursor *cursor, size_t n, uint64_t *x) {
  *x = 0;
  if ((size_t)(cursor->stop - cursor->at) < n) return false;
  for (size_t i = 0; i < n; i++) {
    int digit = hex_digit(cursor->at[i]);
    if (digit < 0) return false;
    *x = *x << 4 | (uint64_t)digit;
  }
  cursor->at += n;
  return true;
}

static quern_status take_escape(struct ir_cursor *cursor, char *c) {
  static const char letters[] = "nt\"\\", meaning[] = "\n\t\"\\";
  const char *letter = cursor->at < cursor->stop && *cursor->at != 0 ? strchr(letters, *cursor->at) : NULL;
  uint64_t code = 0;
  if (letter != NULL) {
    *c = meaning[letter - letters];
    cursor->at++;
    return QUERN_STATUS_OK;
  }
  if (!ir_cursor_take(cursor, 'x')) return ir_cursor_expected(cursor, "one of n t \" \\ x after '\\'");
  if (!take_hex(cursor, 2, &code)) return ir_cursor_expected(cursor, "two hexadecimal digits");
  if (code == 0) return ir_cursor_error(cursor, cursor->at - 2, QUERN_STATUS_PARSE, "a string cannot hold \\x00");
  *c = (char)code;
  return QUERN_STATUS_OK;
}

quern_status ir_cursor_string(struct ir_cursor *cursor, struct base_arena *arena, const char **text) {
  const char *open = cursor->at;
  if (!ir_cursor_take(cursor, '"')) return ir_cursor_expected(cursor, "a quoted string");
  const char *close = cursor->at;
  while (close < cursor->stop && *close != '"' && *close != '\n')
    close += *close == '\\' && close + 1 < cursor->stop ? 2 : 1;
  char *copy = base_arena_alloc(arena, (size_t)(close - open)), *to = copy;
  if (copy == NULL) return QUERN_STATUS_MEMORY;
  while (!ir_cursor_is(cursor, '"')) {
    if (cursor->at == cursor->stop || *cursor->at == '\n')
      return ir_cursor_error(cursor, open, QUERN_STATUS_PARSE, "the string that begins here does not end on this line");
    if (ir_cursor_take(cursor, '\\')) {
      QUERN_TRY(take_escape(cursor, to++));
      continue;
    }
    if ((unsigned char)*cursor->at < 0x20) return ir_cursor_expected(cursor, "a printable character (others as \\x1f)");
    *to++ = *cursor->at++;
  }
  cursor->at++;
  *to = 0;
  *text = copy;
  return QUERN_STATUS_OK;
}

quern_status ir_cursor_name(struct ir_cursor *cursor, const char *what, size_t n, const char *const *names, size_t *i) {
  const char *start = cursor->at;
  struct ir_span span;
  char word[64];
  QUERN_TRY(ir_cursor_word(cursor, what, &span));
  snprintf(word, sizeof word, "%.*s", (int)BASE_MIN(span.n, sizeof word - 1), span.at);
  for (*i = 0; *i < n; (*i)++) {
    if (strlen(names[*i]) == span.n && strcmp(names[*i], word) == 0) return QUERN_STATUS_OK;
  }
  const char *nearest = base_nearest(word, names, n);
  cursor->at = start;
  return ir_cursor_error(cursor, start, QUERN_STATUS_PARSE, "expected %s, found '%s'%s%s%s", what, word,
                         nearest != NULL ? " HINT: did you mean '" : "", nearest != NULL ? nearest : "",
                         nearest != NULL ? "'?" : "");
}

quern_status ir_cursor_element(struct ir_cursor *cursor, quern_dtype dtype, void *data) {
  const char *start = cursor->at, *end;
  size_t digits = 2 * base_dtypes[dtype].size;
  uint64_t bits;
  char what[64];
  if (base_element_parse(start, cursor->stop, &end, dtype, data, 0)) {
    cursor->at = end;
    return QUERN_STATUS_OK;
  }
  bool is_hex = cursor->stop - start > 2 && start[0] == '0' && start[1] == 'x' && base_dtype_is(dtype, BASE_FLOAT);
  if (is_hex) {
    cursor->at += 2;
    if (take_hex(cursor, digits, &bits) && word_length(cursor->at, cursor->stop) == 0) {
      base_store_int(ir_text_bits_dtype(dtype), data, 0, bits);
      return QUERN_STATUS_OK;
    }
    cursor->at = start;
  }
  if (is_hex)
    snprintf(what, sizeof what, "%zu hexadecimal digits, the bits of %s", digits, base_dtypes[dtype].name);
  else
    snprintf(what, sizeof what, "an element of %s", base_dtypes[dtype].name);
  return ir_cursor_expected(cursor, what);
}

/* ---- dtypes and types ----------------------------------------------------------------------------------- */

quern_status ir_cursor_dtype(struct ir_cursor *cursor, quern_dtype *dtype) {
  const char *names[QUERN_DTYPE_COUNT];
  size_t i;
  for (i = 0; i < QUERN_DTYPE_COUNT; i++) names[i] = base_dtypes[i].name;
  QUERN_TRY(ir_cursor_name(cursor, "a dtype", QUERN_DTYPE_COUNT, names, &i));
  *dtype = (quern_dtype)i;
  return QUERN_STATUS_OK;
}

quern_status ir_cursor_type(struct ir_cursor *cursor, struct ir_type *type) {
  *type = (struct ir_type){0};
  QUERN_TRY(ir_cursor_dtype(cursor, &type->dtype));
  if (!ir_cursor_take(cursor, '[')) return ir_cursor_expected(cursor, "'[' of the shape");
  for (bool more;; type->rank++) {
    QUERN_TRY(ir_cursor_next(cursor, type->rank == 0, ']', &more));
    if (!more) return QUERN_STATUS_OK;
    if (type->rank == QUERN_MAX_RANK)
      return ir_cursor_error(cursor, cursor->at, QUERN_STATUS_PARSE, "a shape has at most %d axes", QUERN_MAX_RANK);
    QUERN_TRY(ir_cursor_int(cursor, "a size", 0, INT64_MAX, &type->dims[type->rank]));
  }
}
