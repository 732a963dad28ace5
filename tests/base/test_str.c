/* tests/base/test_str.c -- the string builder, the text of a shape, the nearest word */
#include "base/test.h"

static void test_build(void **state) {
  (void)state;
  struct watch watch;
  struct base_heap heap;
  struct base_str str;
  watch_init(&watch, &heap);
  base_str_init(&str, &heap);
  assert_null(str.at);
  assert_int_equal(base_str_status(&str), QUERN_STATUS_OK);
  base_str_add(&str, "");
  assert_string_equal(str.at, "");
  base_str_add(&str, "abc");
  base_str_add_n(&str, "defghi", 3);
  base_str_add_n(&str, NULL, 0);
  base_str_printf(&str, "-%d-%s-", 42, "x");
  assert_string_equal(str.at, "abcdef-42-x-");
  assert_int_equal(str.n, 12);
  assert_int_equal(heap.live, str.cap);
  base_str_add_n(&str, "\0z", 2);
  assert_int_equal(str.n, 14);
  assert_memory_equal(str.at, "abcdef-42-x-\0z", 15);
  assert_false(str.failed);
  base_str_fini(&str);
  assert_null(str.at);
  assert_int_equal(str.n, 0);
  assert_int_equal(watch.live, 0);
  assert_int_equal(heap.live, 0);
}

/* Every length across the points where the buffer grows, by each of the two ways to add. */
static void test_lengths(void **state) {
  (void)state;
  char text[201];
  memset(text, 'q', 200);
  text[200] = 0;
  for (int n = 0; n <= 200; n++) {
    struct base_heap heap;
    struct base_str str;
    base_heap_init(&heap, NULL);
    base_str_init(&str, &heap);
    base_str_add_n(&str, text, (size_t)n);
    assert_true(str.cap > str.n);
    base_str_printf(&str, "%.*s", n, text);
    assert_true(str.cap > str.n);
    base_str_printf(&str, "%s", "");
    assert_int_equal(base_str_status(&str), QUERN_STATUS_OK);
    assert_int_equal(str.n, 2 * n);
    assert_int_equal(strlen(str.at), 2 * n);
    assert_int_equal(strspn(str.at, "q"), 2 * n);
    base_str_fini(&str);
    assert_int_equal(heap.live, 0);
  }
}

static void test_empty_printf(void **state) {
  (void)state;
  struct base_heap heap;
  struct base_str str;
  base_heap_init(&heap, NULL);
  base_str_init(&str, &heap);
  base_str_printf(&str, "%s", "");
  assert_non_null(str.at);
  assert_string_equal(str.at, "");
  base_str_fini(&str);
}

static void test_failure(void **state) {
  (void)state;
  uint64_t fail_at = 1;
  for (bool done = false; !done; fail_at++) {
    struct base_heap heap;
    struct base_str str;
    base_heap_init(&heap, NULL);
    heap.fail_at = fail_at;
    base_str_init(&str, &heap);
    base_str_add(&str, "0123456");
    base_str_printf(&str, "%s", "89abcdefg");
    base_str_add(&str, "0123456789012345678901234567890123456789");
    done = !str.failed;
    assert_int_equal(base_str_status(&str), done ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY);
    assert_int_equal(str.n, fail_at == 1 ? 0 : fail_at == 2 ? 7 : fail_at == 3 ? 16 : 56);
    if (fail_at == 2) assert_string_equal(str.at, "0123456");
    heap.fail_at = 0;
    size_t n = str.n;
    base_str_add(&str, "x");
    base_str_printf(&str, "y");
    assert_int_equal(str.n, done ? n + 2 : n);
    assert_int_equal(str.failed, !done);
    base_str_fini(&str);
    assert_false(str.failed);
    assert_int_equal(heap.live, 0);
  }
  assert_int_equal(fail_at, 5);

  struct base_heap heap;
  struct base_str str;
  base_heap_init(&heap, NULL);
  base_str_init(&str, &heap);
  base_str_add_n(&str, "x", SIZE_MAX);
  assert_true(str.failed);
  base_error(QUERN_STATUS_IO, "something else");
  assert_int_equal(base_str_status(&str), QUERN_STATUS_MEMORY);
  assert_int_equal(quern_last_status(), QUERN_STATUS_MEMORY);
  base_str_fini(&str);
}

static void test_shape(void **state) {
  (void)state;
  char buffer[128];
  const int64_t dims[] = {2, 30, -4, INT64_MAX};
  assert_string_equal(base_shape_text(buffer, sizeof buffer, 0, NULL), "()");
  assert_string_equal(base_shape_text(buffer, sizeof buffer, 1, dims), "(2,)");
  assert_string_equal(base_shape_text(buffer, sizeof buffer, 2, dims), "(2, 30)");
  assert_string_equal(base_shape_text(buffer, sizeof buffer, 4, dims), "(2, 30, -4, 9223372036854775807)");
  assert_ptr_equal(base_shape_text(buffer, sizeof buffer, 3, dims), buffer);
  for (int rank = 0; rank <= 4; rank++) {
    char full[128];
    base_shape_text(full, sizeof full, rank, dims);
    for (size_t bytes = 0; bytes < 40; bytes++) {
      char *cut = malloc(bytes + 1);
      memset(cut, '#', bytes + 1);
      base_shape_text(cut, bytes, rank, dims);
      assert_int_equal(cut[bytes], '#');
      size_t n = bytes == 0 ? 0 : BASE_MIN(bytes - 1, strlen(full));
      assert_memory_equal(cut, full, n);
      if (bytes > 0) assert_int_equal(cut[n], 0);
      free(cut);
    }
  }
}

static void test_nearest(void **state) {
  (void)state;
  static const char *const list[] = {"matmul", "softmax", "relu", "gelu", "f32", "bf16", "mean"};
  static const struct {
    const char *word, *want;
  } cases[] = {
      {"matmul", "matmul"},      {"MatMul", "matmul"}, {"matmull", "matmul"},
      {"mtmul", "matmul"},       {"natmul", "matmul"}, {"sofmtax", "softmax"},
      {"softmx", "softmax"},     {"rleu", "relu"},     {"delu", "relu"},
      {"zgelu", "gelu"},         {"f23", NULL},        {"f31", "f32"},
      {"b16", "bf16"},           {"f", NULL},          {"", NULL},
      {"transpose", NULL},       {"man", "mean"},      {"mena", "mean"},
      {"maen", "mean"},          {"max", NULL},        {"softmaxxxxx", NULL},
      {"softmaxxxx", "softmax"}, {"oftma", "softmax"}, {"soft", NULL},
  };
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    const char *got = base_nearest(cases[i].word, list, BASE_COUNT(list));
    if (!cases[i].want != !got || (got && strcmp(got, cases[i].want) != 0)) {
      fail_msg("nearest of \"%s\" is %s, want %s", cases[i].word, got ? got : "none",
               cases[i].want ? cases[i].want : "none");
    }
  }
  static const char *const ends[] = {"qz", "az", "aq"}, *const short_ones[] = {"xy", "x"};
  assert_string_equal(base_nearest("AZ", ends, 3), "az");
  assert_string_equal(base_nearest("Az", ends, 3), "az");
  static const char *const turned[] = {"aq", "az"};
  assert_string_equal(base_nearest("AZ", turned, 2), "az");
  assert_null(base_nearest("@[", ends, 3));
  assert_null(base_nearest("", short_ones, 1));
  assert_string_equal(base_nearest("", short_ones, 2), "x");
  assert_null(base_nearest("relu", list, 0));
  assert_null(base_nearest("relu", list, 2));
  assert_string_equal(base_nearest("relu", list, 3), "relu");

  char long63[64], long64[65];
  memset(long63, 'w', 63);
  memset(long64, 'w', 64);
  long63[63] = long64[64] = 0;
  const char *const only[] = {long64, long63};
  assert_ptr_equal(base_nearest(long63, only, 2), long63);
  assert_null(base_nearest(long64, only, 2));
  assert_null(base_nearest(long63, only, 1));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_build),   cmocka_unit_test(test_lengths), cmocka_unit_test(test_empty_printf),
      cmocka_unit_test(test_failure), cmocka_unit_test(test_shape),   cmocka_unit_test(test_nearest),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
