/* tests/io/test_lines.c -- files line by line: lines of any length, at any place of the buffer */
#include "io/folder.h"
#include "io/io.h"

/* Writes lines of the letter x, of those lengths. */
static const char *make_lines(size_t n, const size_t *lengths, bool ended) {
  const char *path = in_folder("lines");
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  for (size_t i = 0; i < n; i++) {
    for (size_t k = 0; k < lengths[i]; k++) assert_true(fputc('x', file) != EOF);
    if (ended || i + 1 < n) assert_true(fputc('\n', file) != EOF);
  }
  assert_int_equal(fclose(file), 0);
  return path;
}

static void all_lengths(void **state) {
  (void)state;
  static struct io_lines lines;
  static const size_t most = sizeof lines.buffer;
  const size_t lengths[] = {0, 1, 0, 100, most - 1, 7, most, 3, most + 1, 3 * most + 5, 2, most - 100, 200, 0};
  for (int ended = 0; ended < 2; ended++) {
    const char *line;
    size_t n, whole = BASE_COUNT(lengths) - (ended ? 0 : 1);
    EXPECT_OK(io_lines_open(&lines, make_lines(BASE_COUNT(lengths), lengths, ended)));
    for (size_t i = 0; i < whole; i++) {
      EXPECT_OK(io_lines_next(&lines, &line, &n));
      assert_non_null(line);
      assert_int_equal(lines.number, i + 1);
      assert_true(n == (lengths[i] < most ? lengths[i] : IO_LINE_CUT));
      for (size_t k = 0; n != IO_LINE_CUT && k < n; k++) assert_true(line[k] == 'x');
    }
    EXPECT_OK(io_lines_next(&lines, &line, &n));
    assert_null(line);
    io_lines_close(&lines);
  }
}

static void errors(void **state) {
  (void)state;
  static struct io_lines lines;
  EXPECT_ERROR(io_lines_open(&lines, in_folder("missing")), IO, "missing: cannot be opened: No such file");
  EXPECT_ERROR(io_lines_open(&lines, folder), IO, "is no regular file");
}

static int begin(void **state) { return (void)state, folder_make() ? 0 : -1; }
static int end(void **state) {
  (void)state;
  folder_clear(folder);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(all_lengths), cmocka_unit_test(errors)};
  return cmocka_run_group_tests_name("io/lines", tests, begin, end);
}
