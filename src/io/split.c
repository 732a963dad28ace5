/* io/split.c -- a text as words, by the regular expressions of known tokenizers, written out as scanners
** in:    any bytes; one that is no UTF-8 counts as a character that is no letter, number or space
** keeps: words follow each other without gaps; each has a byte at least; one look ahead a character
** see:   docs/data.md             tests: tests/io/test_split.c (against the expressions, every code point)
*/
#include "io/tokenizer.h"

/* The expressions, as they stand in files. Possessive quantifiers and the order of 's 't ... change nothing. */
#define WORDS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define MARKS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define BLANKS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define ENDINGS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
static const struct {
  enum io_split how;
  const char *regex;
} known[] = {
    {IO_SPLIT_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {IO_SPLIT_GPT2, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {IO_SPLIT_GPT2, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s"},
    {IO_SPLIT_GPT4, ENDINGS "|" WORDS "|\\p{N}{1,3}|" MARKS "|" BLANKS},
    {IO_SPLIT_GPT4, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|"
                    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
    {IO_SPLIT_GPT4O, UPPER "*" LOWER "+" ENDINGS "?|" UPPER "+" LOWER "*" ENDINGS "?|\\p{N}{1,3}|"
                           " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" BLANKS},
    {IO_SPLIT_QWEN2, ENDINGS "|" WORDS "|\\p{N}|" MARKS "|" BLANKS},
};

bool io_split_find(const char *regex, enum io_split *how) {
  for (size_t i = 0; i < BASE_COUNT(known); i++) {
    if (strcmp(known[i].regex, regex) != 0) continue;
    *how = known[i].how;
    return true;
  }
  return false;
}

const char *io_split_regex(size_t i) { return i < BASE_COUNT(known) ? known[i].regex : NULL; }

/* The kind of the character at i < n, and the bytes it takes. */
static enum io_kind kind_at(const unsigned char *at, size_t n, size_t i, size_t *bytes) {
  uint32_t c;
  *bytes = 1;
  if (at[i] < 0x80) {
    unsigned char lower = at[i] | 0x20;
    if (lower >= 'a' && lower <= 'z') return IO_KIND_LETTER;
    if (at[i] >= '0' && at[i] <= '9') return IO_KIND_NUMBER;
    return at[i] == ' ' || (at[i] >= 9 && at[i] <= 13) ? IO_KIND_SPACE : IO_KIND_OTHER;
  }
  *bytes = io_utf8_get(at + i, n - i, &c);
  return io_unicode_kind(c);
}

/* The end of the characters of that kind from i on, at most that many. */
static size_t run_end(const unsigned char *at, size_t n, size_t i, enum io_kind kind, size_t most) {
  for (size_t bytes; i < n && most > 0 && kind_at(at, n, i, &bytes) == kind; most--) i += bytes;
  return i;
}

static bool is_newline(unsigned char c) { return c == '\r' || c == '\n'; }

/* 's 't 'm 'd 're 've 'll, or 0; without regard to case also for the long s, which folds to s. */
static size_t ending(const unsigned char *at, size_t n, bool fold) {
  if (n < 2 || at[0] != '\'') return 0;
  unsigned char a = fold && at[1] < 0x80 ? at[1] | 0x20 : at[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (fold && n >= 3 && at[1] == 0xc5 && at[2] == 0xbf) return 3;
  if (n < 3) return 0;
  unsigned char b = fold && at[2] < 0x80 ? at[2] | 0x20 : at[2];
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* White space: \s+(?!\S)|\s+, that is, all of it at the end of the text, else all but the last; one alone is a word.
** With lines, \s*[\r\n]+ comes first: up to the last newline. */
static size_t blanks(const unsigned char *at, size_t n, bool lines) {
  size_t i = 0, last = 0, newline = 0, bytes;
  while (i < n && kind_at(at, n, i, &bytes) == IO_KIND_SPACE) {
    if (is_newline(at[i])) newline = i + 1;
    last = i;
    i += bytes;
  }
  if (lines && newline > 0) return newline;
  return i == n || last == 0 ? i : last;
}

/* 's| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t next_gpt2(const unsigned char *at, size_t n) {
  size_t bytes, start = n > 1 && at[0] == ' ' ? 1 : 0, end = ending(at, n, false);
  if (end > 0) return end;
  enum io_kind kind = kind_at(at, n, start, &bytes);
  return kind == IO_KIND_SPACE ? blanks(at, n, false) : run_end(at, n, start + bytes, kind, SIZE_MAX);
}

/* (?i:'s)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t next_gpt4(const unsigned char *at, size_t n, size_t digits) {
  size_t bytes, more, end = ending(at, n, true);
  if (end > 0) return end;
  enum io_kind kind = kind_at(at, n, 0, &bytes);
  if (kind == IO_KIND_LETTER) return run_end(at, n, bytes, kind, SIZE_MAX);
  if (kind == IO_KIND_NUMBER) return run_end(at, n, bytes, kind, digits - 1);
  if (!is_newline(at[0]) && bytes < n && kind_at(at, n, bytes, &more) == IO_KIND_LETTER)
    return run_end(at, n, bytes, IO_KIND_LETTER, SIZE_MAX);
  size_t start = n > 1 && at[0] == ' ' ? 1 : 0;
  if (kind_at(at, n, start, &more) != IO_KIND_OTHER) return blanks(at, n, true);
  end = run_end(at, n, start, IO_KIND_OTHER, SIZE_MAX);
  while (end < n && is_newline(at[end])) end++;
  return end;
}

/* The case of the character at i < n, and the bytes it takes. */
static enum io_case case_at(const unsigned char *at, size_t n, size_t i, size_t *bytes) {
  uint32_t c;
  *bytes = io_utf8_get(at + i, n - i, &c);
  return io_unicode_case(c);
}

/* The end of [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ from start on, or 0: capitals, then small ones. Without
** small ones the last letter without case or mark among the capitals is what the second part needs. *upper is the end of the first. */
static size_t cased_end(const unsigned char *at, size_t n, size_t start, size_t *upper) {
  size_t i = start, last = 0, bytes;
  for (; i < n; i += bytes) {
    enum io_case now = case_at(at, n, i, &bytes);
    if (now != IO_CASE_UPPER && now != IO_CASE_BOTH && now != IO_CASE_MARK) break;
    if (now != IO_CASE_UPPER) last = i + bytes;
  }
  *upper = i;
  for (; i < n; i += bytes) {
    enum io_case now = case_at(at, n, i, &bytes);
    if (now != IO_CASE_LOWER && now != IO_CASE_BOTH && now != IO_CASE_MARK) break;
  }
  return i > *upper ? i : last;
}

/* A word of GPT-4o: one other character or none, capitals, small letters, an ending; or 0. */
static size_t cased_word(const unsigned char *at, size_t n) {
  size_t bytes, end = 0, upper[2] = {0, 0};
  enum io_kind kind = kind_at(at, n, 0, &bytes);
  bool prefix = kind != IO_KIND_LETTER && kind != IO_KIND_NUMBER && !is_newline(at[0]);
  if (prefix) end = cased_end(at, n, bytes, &upper[1]);
  if (end == 0) end = cased_end(at, n, 0, &upper[0]);
  if (end == 0) end = prefix && upper[1] > bytes ? upper[1] : upper[0]; /* capitals alone */
  return end > 0 ? end + ending(at + end, n - end, true) : 0;
}

/* GPT-4's with words by case, and slashes behind marks. */
static size_t next_gpt4o(const unsigned char *at, size_t n) {
  size_t bytes, end = cased_word(at, n), start = n > 1 && at[0] == ' ' ? 1 : 0;
  if (end > 0) return end;
  if (kind_at(at, n, 0, &bytes) == IO_KIND_NUMBER) return run_end(at, n, bytes, IO_KIND_NUMBER, 2);
  if (kind_at(at, n, start, &bytes) != IO_KIND_OTHER) return blanks(at, n, true);
  end = run_end(at, n, start, IO_KIND_OTHER, SIZE_MAX);
  while (end < n && (is_newline(at[end]) || at[end] == '/')) end++;
  return end;
}

/* Numbers alone: each, or as many as there are; what is between them. */
static size_t next_digits(const unsigned char *at, size_t n, size_t most) {
  size_t bytes, i = run_end(at, n, 0, IO_KIND_NUMBER, most);
  if (i > 0) return i;
  while (i < n && kind_at(at, n, i, &bytes) != IO_KIND_NUMBER) i += bytes;
  return i;
}

/* Up to the next mark of a space. */
static size_t next_meta(const unsigned char *at, size_t n) {
  size_t i = 1, mark = strlen(IO_META);
  while (i < n && (n - i < mark || memcmp(at + i, IO_META, mark) != 0)) i++;
  return i;
}

size_t io_split_next(enum io_split how, const unsigned char *at, size_t n) {
  switch (how) {
  case IO_SPLIT_WHOLE: return n;
  case IO_SPLIT_GPT2: return next_gpt2(at, n);
  case IO_SPLIT_GPT4: return next_gpt4(at, n, 3);
  case IO_SPLIT_QWEN2: return next_gpt4(at, n, 1);
  case IO_SPLIT_GPT4O: return next_gpt4o(at, n);
  case IO_SPLIT_DIGITS: return next_digits(at, n, SIZE_MAX);
  case IO_SPLIT_DIGIT: return next_digits(at, n, 1);
  case IO_SPLIT_META: return next_meta(at, n);
  }
  return n;
}
