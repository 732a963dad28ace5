/* tests/io/test_split.c -- characters and words: against what HuggingFace's library makes of every code point
** tests/oracle/hf_tokenizers.py made the digests.
*/
#include "io/tokenizer.h"
#include "unit.h"

/* ---- characters ---------------------------------------------------------------------------------------- */

static void code_points_come_back(void **state) {
  (void)state;
  for (uint32_t c = 0; c < 0x110000; c++) {
    unsigned char bytes[4];
    uint32_t back;
    size_t n = io_utf8_put(c, bytes);
    bool surrogate = c >= 0xd800 && c < 0xe000;
    assert_int_equal(io_utf8_get(bytes, n, &back), surrogate ? 1 : n);
    assert_true(back == (surrogate ? IO_UTF8_BAD : c));
    for (size_t cut = 1; cut < n; cut++) { /* not whole: the first byte alone */
      assert_int_equal(io_utf8_get(bytes, cut, &back), 1);
      assert_true(back == IO_UTF8_BAD);
    }
  }
}

static void bytes_that_are_no_characters(void **state) {
  (void)state;
  static const char *const rows[] = {"\x80",
                                     "\xbf",
                                     "\xc0\x80",
                                     "\xc1\xbf",
                                     "\xe0\x80\x80",
                                     "\xe0\x9f\xbf",
                                     "\xed\xa0\x80",
                                     "\xf0\x80\x80\x80",
                                     "\xf0\x8f\xbf\xbf",
                                     "\xf4\x90\x80\x80",
                                     "\xf5\x80\x80\x80",
                                     "\xff",
                                     "\xc3(",
                                     "\xe2\x82(",
                                     "\xf0\x9f\x9a("};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    uint32_t c;
    assert_int_equal(io_utf8_get((const unsigned char *)rows[i], strlen(rows[i]), &c), 1);
    assert_true(c == IO_UTF8_BAD);
  }
}

static void kinds(void **state) {
  (void)state;
  static const struct {
    uint32_t c;
    enum io_kind kind;
  } rows[] = {
      {0, IO_KIND_OTHER},        {'a', IO_KIND_LETTER},     {'Z', IO_KIND_LETTER},       {'0', IO_KIND_NUMBER},
      {' ', IO_KIND_SPACE},      {0x1c, IO_KIND_OTHER},     {0x85, IO_KIND_SPACE},       {0xb2, IO_KIND_NUMBER},
      {0xe9, IO_KIND_LETTER},    {0x301, IO_KIND_OTHER},    {0x2167, IO_KIND_NUMBER},    {0x200b, IO_KIND_OTHER},
      {0x3000, IO_KIND_SPACE},   {0x4e2d, IO_KIND_LETTER},  {0x1f680, IO_KIND_OTHER},    {0x2ebf0, IO_KIND_LETTER},
      {0x10ffff, IO_KIND_OTHER}, {0x110000, IO_KIND_OTHER}, {IO_UTF8_BAD, IO_KIND_OTHER}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) assert_int_equal(io_unicode_kind(rows[i].c), rows[i].kind);
}

/* ---- words --------------------------------------------------------------------------------------------- */

/* Adds a text with a code point for every %. */
static size_t make_text(unsigned char text[128], const char *pattern, uint32_t c) {
  size_t n = 0;
  for (; *pattern != 0; pattern++) {
    if (*pattern == '%')
      n += io_utf8_put(c, text + n);
    else
      text[n++] = (unsigned char)*pattern;
  }
  return n;
}

static uint64_t digest(enum io_split how) {
  uint64_t value = UINT64_C(0xcbf29ce484222325);
  for (uint32_t c = 0; c < 0x110000; c++) {
    unsigned char text[128];
    if (c >= 0xd800 && c < 0xe000) continue;
    size_t n = make_text(text, "a%1%%2 %b\n%! % '% \t%A%Ba%%'s/%", c);
    for (size_t i = 0, word; i < n; i += word) {
      word = io_split_next(how, text + i, n - i);
      value = (value ^ (uint64_t)word) * UINT64_C(0x100000001b3);
    }
  }
  return value;
}

static void every_code_point(void **state) {
  (void)state;
  static const struct {
    const char *name;
    enum io_split how;
  } rows[] = {{"gpt2", IO_SPLIT_GPT2}, {"gpt4", IO_SPLIT_GPT4}, {"qwen2", IO_SPLIT_QWEN2}, {"gpt4o", IO_SPLIT_GPT4O}};
  FILE *file = fopen("tests/io/tokenizers/split.txt", "r");
  assert_non_null(file);
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    char name[16];
    unsigned long long expected;
    assert_int_equal(fscanf(file, "%15s %llx", name, &expected), 2);
    assert_string_equal(name, rows[i].name);
    if (digest(rows[i].how) != expected) fail_msg("%s splits differently from the library", name);
  }
  fclose(file);
}

static void words(void **state) {
  (void)state;
  static const struct {
    enum io_split how;
    const char *text, *words; /* with | between them */
  } rows[] = {
      {IO_SPLIT_WHOLE, "a b 1", "a b 1"},
      {IO_SPLIT_GPT2, "it's  we'll IT'S", "it|'s| | we|'ll| IT|'|S"},
      {IO_SPLIT_GPT2, "a\n\n b   ", "a|\n\n| b|   "},
      {IO_SPLIT_GPT2, "x1234 !?\xff\xfe y", "x|1234| !?\xff\xfe| y"},
      {IO_SPLIT_GPT4, "IT'S 12345 a\n\n b", "IT|'S| |123|45| a|\n\n| b"},
      {IO_SPLIT_GPT4, "(a) \"b\"?!\r\n\tc  \n  d", "(a|)| \"|b|\"?!\r\n|\tc|  \n| | d"},
      {IO_SPLIT_GPT4,
       "'\xc5\xbf"
       "x 'LLx",
       "'\xc5\xbf|x| '|LLx"},
      {IO_SPLIT_GPT4, "x'S\xc3\xa9'S", "x|'S|\xc3\xa9|'S"},
      {IO_SPLIT_GPT4, "'Vx've'\xc5", "'Vx|'ve|'\xc5"},
      {IO_SPLIT_QWEN2, "12 3", "1|2| |3"},
      {IO_SPLIT_GPT4O, "HelloWORLD'S (aB) a/b ?!/\n 1234", "Hello|WORLD'S| (|a|B|)| a|/b| ?!/\n| |123|4"},
      {IO_SPLIT_DIGITS, "ab12c3", "ab|12|c|3"},
      {IO_SPLIT_DIGIT, "ab12c3", "ab|1|2|c|3"},
      {IO_SPLIT_META, "a" IO_META "b" IO_META IO_META "c", "a|" IO_META "b|" IO_META "|" IO_META "c"},
  };
  for (size_t k = 0; k < BASE_COUNT(rows); k++) {
    char got[256] = "";
    size_t n = strlen(rows[k].text), used = 0;
    for (size_t i = 0, word; i < n; i += word) {
      word = io_split_next(rows[k].how, (const unsigned char *)rows[k].text + i, n - i);
      assert_true(word > 0 && word <= n - i);
      used += (size_t)snprintf(got + used, sizeof got - used, "%s%.*s", i > 0 ? "|" : "", (int)word, rows[k].text + i);
    }
    assert_string_equal(got, rows[k].words);
  }
}

static void expressions(void **state) {
  (void)state;
  enum io_split how;
  size_t n = 0;
  for (const char *regex; (regex = io_split_regex(n)) != NULL; n++) assert_true(io_split_find(regex, &how));
  assert_int_equal(n, 7);
  assert_false(io_split_find("\\s+", &how));
  assert_false(io_split_find("", &how));
}

/* White space and marks in long runs take a time that grows with the length. */
static void long_runs(void **state) {
  (void)state;
  enum { N = 1 << 20 };
  static const char *const units[] = {" ", "\n", "a", "1", "'", " a", " \n", "\t!", "\xff"};
  static const enum io_split hows[] = {IO_SPLIT_GPT2,  IO_SPLIT_GPT4,   IO_SPLIT_QWEN2,
                                       IO_SPLIT_GPT4O, IO_SPLIT_DIGITS, IO_SPLIT_META};
  unsigned char *text = malloc(N);
  double start = base_clock();
  for (size_t u = 0; u < BASE_COUNT(units); u++) {
    for (size_t i = 0; i < N; i++) text[i] = (unsigned char)units[u][i % strlen(units[u])];
    for (size_t h = 0; h < BASE_COUNT(hows); h++) {
      size_t i = 0;
      while (i < N) i += io_split_next(hows[h], text + i, N - i);
      assert_int_equal(i, N);
    }
  }
  assert_true(base_clock() - start < 60);
  free(text);
}

/* ---- the alphabet -------------------------------------------------------------------------------------- */

static void alphabet(void **state) {
  (void)state;
  size_t known = 0;
  for (unsigned i = 0; i < 256; i++) assert_int_equal(io_alphabet_byte(io_alphabet_char((unsigned char)i)), i);
  for (uint32_t c = 0; c < 0x110000; c++) known += io_alphabet_byte(c) >= 0 ? 1 : 0;
  assert_int_equal(known, 256);
  assert_int_equal(io_alphabet_char(' '), 0x120); /* as in "\u0120the" */
  assert_int_equal(io_alphabet_char('\n'), 0x10a);
  assert_int_equal(io_alphabet_char(0xad), 0x143);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(code_points_come_back),
      TEST(bytes_that_are_no_characters),
      TEST(kinds),
      TEST(every_code_point),
      TEST(words),
      TEST(expressions),
      TEST(long_runs),
      TEST(alphabet),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
