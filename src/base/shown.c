/* base/shown.c -- texts from outside on their way to people: names in files, paths, arguments
** A terminal obeys control characters: what a file is named, or names its tensors, must not move the cursor, set titles
** or clear what was printed. They are shown as "\x1b", byte by byte, as is what is no UTF-8, and what turns the direction
** of text or ends its line.
** tests: tests/base/test_shown.c
*/
#include "base/base.h"

#include <stdio.h>

static bool follows(unsigned char c) { return (c & 0xc0u) == 0x80u; }

/* Bytes of the UTF-8 character at a text, 0: there is none. A text's end follows nothing, so that nothing behind it is
** read. */
static size_t utf8_bytes(const unsigned char *at) {
  static const struct {
    unsigned char first, last, second, second_last; /* of the first byte, and of the one behind it */
    size_t bytes;
  } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
               {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
               {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
  if (at[0] < 0x80) return at[0] != 0;
  for (size_t i = 0; i < BASE_COUNT(forms); i++) {
    if (at[0] < forms[i].first || at[0] > forms[i].last) continue;
    if (at[1] < forms[i].second || at[1] > forms[i].second_last) return 0;
    for (size_t k = 2; k < forms[i].bytes; k++)
      if (!follows(at[k])) return 0;
    return forms[i].bytes;
  }
  return 0;
}

size_t base_text_char(const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  size_t n = utf8_bytes(at);
  bool control = at[0] < 0x20 || at[0] == 0x7f || (n == 2 && at[0] == 0xc2 && at[1] < 0xa0); /* C0, DEL, C1 */
  bool layout =
      n == 3 && at[0] == 0xe2 && /* U+2028 to U+202E, U+2066 to U+2069 */
      ((at[1] == 0x80 && at[2] >= 0xa8 && at[2] <= 0xae) || (at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9));
  return control || layout ? 0 : n;
}

/* What stands for the beginning of a text, at most 4 bytes; how many bytes of the text. */
static size_t show(const char *text, bool lines, char shown[5]) {
  size_t n = base_text_char(text);
  if (n == 0 && lines && (*text == '\n' || *text == '\t')) n = 1;
  if (n == 0)
    snprintf(shown, 5, "\\x%02x", (unsigned)(unsigned char)*text);
  else
    snprintf(shown, 5, "%.*s", (int)n, text);
  return n > 0 ? n : 1;
}

char *base_text_shown(char *buffer, size_t bytes, const char *text, bool lines) {
  size_t n = 0, cut = 0; /* cut: where "..." still fits */
  if (bytes == 0) return buffer;
  while (*text != 0) {
    char shown[5];
    text += show(text, lines, shown);
    size_t more = strlen(shown);
    if (n + more >= bytes) { /* there is no room */
      snprintf(buffer + cut, bytes - cut, "...");
      return buffer;
    }
    memcpy(buffer + n, shown, more);
    n += more;
    if (n + sizeof "..." <= bytes) cut = n;
  }
  buffer[n] = 0;
  return buffer;
}

char *quern_text_shown(char *buffer, size_t bytes, const char *text) {
  if (buffer == NULL) return NULL;
  return base_text_shown(buffer, bytes, text != NULL ? text : "", false);
}
