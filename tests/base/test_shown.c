/* tests/base/test_shown.c -- what a terminal would obey is shown instead; and where: errors, warnings */
#include "base/test.h"

#include <unistd.h>

static void expect(const char *text, size_t bytes, bool lines, const char *shown) {
  char buffer[128];
  memset(buffer, 'x', sizeof buffer);
  assert_ptr_equal(base_text_shown(buffer, bytes, text, lines), buffer);
  assert_string_equal(buffer, shown);
  assert_int_equal(buffer[bytes], 'x');
}

static void test_shown(void **state) {
  (void)state;
  expect("plain text, \"quoted\" \\ too", 64, false, "plain text, \"quoted\" \\ too");
  expect("\x1b]0;title\x07\x1b[2J\x7f", 64, false, "\\x1b]0;title\\x07\\x1b[2J\\x7f");
  expect("a\nb\tc\rd", 64, false, "a\\x0ab\\x09c\\x0dd");
  expect("a\nb\tc\rd", 64, true, "a\nb\tc\\x0dd");
  expect("\u00e9\u20ac\U0001f600\u00a0", 64, false, "\u00e9\u20ac\U0001f600\u00a0");
  expect("\xc2\x9b"
         "31m",
         64, false, "\\xc2\\x9b31m"); /* CSI as one character */
  expect("\x9b\xff\xc0\xaf", 64, false, "\\x9b\\xff\\xc0\\xaf");
  expect("\xed\xa0\x80\xf4\x90\x80\x80", 64, false, "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
  expect("\xe2\x82", 64, false, "\\xe2\\x82");
  expect("a\u202eb\u2066c\u2028", 64, false, "a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6c\\xe2\\x80\\xa8");
}

static void test_cut(void **state) {
  (void)state;
  expect("abcdef", 7, false, "abcdef");
  expect("abcdefg", 7, false, "abc...");
  expect("ab\u20acdef", 7, false, "ab...");
  expect("\x1b\x1b", 7, false, "...");
  expect("ab", 2, false, ".");
  expect("ab", 1, false, "");
  char none = 'x';
  base_text_shown(&none, 0, "a", false);
  assert_int_equal(none, 'x');
}

static void test_errors(void **state) {
  (void)state;
  assert_int_equal(base_error(QUERN_STATUS_IO, "%s: no\n  HINT: more", "a\x1b[31m"), QUERN_STATUS_IO);
  assert_string_equal(quern_last_error(), "a\\x1b[31m: no\n  HINT: more");
  char text[2 * BASE_MESSAGE_BYTES];
  memset(text, '\x1b', sizeof text - 1);
  text[sizeof text - 1] = 0;
  (void)base_error(QUERN_STATUS_IO, "%s", text);
  assert_true(strlen(quern_last_error()) < BASE_MESSAGE_BYTES);
  assert_string_equal(quern_last_error() + strlen(quern_last_error()) - 7, "\\x1b...");
}

static void test_warnings(void **state) {
  (void)state;
  char text[64] = "";
  int ends[2], before = dup(STDERR_FILENO);
  assert_int_equal(pipe(ends), 0);
  fflush(stderr);
  assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
  base_log(0, "%s is new", "a\x1b[31m");
  fflush(stderr);
  dup2(before, STDERR_FILENO);
  assert_true(read(ends[0], text, sizeof text - 1) > 0);
  assert_string_equal(text, "quern: warning: a\\x1b[31m is new\n");
  close(ends[0]), close(ends[1]), close(before);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_shown), cmocka_unit_test(test_cut),
                                     cmocka_unit_test(test_errors), cmocka_unit_test(test_warnings)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
