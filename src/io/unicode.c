/* io/unicode.c -- UTF-8, and what kind of character a code point is
** in:    any bytes; one that begins no character of UTF-8 is a character of its own, of no kind
** see:   tools/unicode.py makes unicode.def        tests: tests/io/test_split.c
*/
#include "io/tokenizer.h"

/* The first code point of each range, times 8, plus its case. */
static const uint32_t ranges[] = {
#define RANGE(first, KIND) ((uint32_t)(first) << 3 | IO_CASE_##KIND),
#define O(first) RANGE(first, OTHER)
#define U(first) RANGE(first, UPPER)
#define L(first) RANGE(first, LOWER)
#define B(first) RANGE(first, BOTH)
#define M(first) RANGE(first, MARK)
#define N(first) RANGE(first, NUMBER)
#define S(first) RANGE(first, SPACE)
#include "io/unicode.def"
#undef O
#undef U
#undef L
#undef B
#undef M
#undef N
#undef S
};

enum io_case io_unicode_case(uint32_t c) {
  size_t low = 0, high = BASE_COUNT(ranges); /* ranges[low] begins at c or before, ranges[high] after it */
  if (c > 0x10ffff) return IO_CASE_OTHER;
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    if (ranges[middle] >> 3 <= c)
      low = middle;
    else
      high = middle;
  }
  return (enum io_case)(ranges[low] & 7);
}

enum io_kind io_unicode_kind(uint32_t c) {
  static const enum io_kind kinds[] = {
      [IO_CASE_OTHER] = IO_KIND_OTHER, [IO_CASE_UPPER] = IO_KIND_LETTER,  [IO_CASE_LOWER] = IO_KIND_LETTER,
      [IO_CASE_BOTH] = IO_KIND_LETTER, [IO_CASE_NUMBER] = IO_KIND_NUMBER, [IO_CASE_SPACE] = IO_KIND_SPACE,
      [IO_CASE_MARK] = IO_KIND_OTHER};
  return kinds[io_unicode_case(c)];
}

/* Bytes a character has by its first byte, 0: none begins with it; the least code point of that many bytes. */
static size_t length_of(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}
static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};

size_t io_utf8_get(const unsigned char *at, size_t n, uint32_t *c) {
  size_t length = length_of(at[0]);
  *c = IO_UTF8_BAD;
  if (length == 0 || length > n) return 1;
  uint32_t code = length == 1 ? at[0] : at[0] & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    if ((at[i] & 0xc0) != 0x80) return 1;
    code = code << 6 | (at[i] & 0x3f);
  }
  if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 1;
  *c = code;
  return length;
}

size_t io_utf8_put(uint32_t c, unsigned char out[4]) {
  size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = n; i-- > 1; c >>= 6) out[i] = (unsigned char)(0x80 | (c & 0x3f));
  out[0] = (unsigned char)(n == 1 ? c : (0xf00u >> n & 0xff) | c);
  return n;
}
