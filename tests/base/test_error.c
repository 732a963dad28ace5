/* tests/base/test_error.c -- the last failure and the caller's place */
#include "base/test.h"

#include <signal.h>

static void test_nothing_yet(void **state) {
  (void)state;
  assert_string_equal(quern_last_error(), "");
  assert_int_equal(quern_last_status(), QUERN_STATUS_OK);
}

static void test_record(void **state) {
  (void)state;
  assert_int_equal(base_error(QUERN_STATUS_SHAPE, "axis %d of %s", 3, "a"), QUERN_STATUS_SHAPE);
  assert_string_equal(quern_last_error(), "axis 3 of a");
  assert_int_equal(quern_last_status(), QUERN_STATUS_SHAPE);
  assert_int_equal(base_error(QUERN_STATUS_IO, "%s, read", quern_last_error()), QUERN_STATUS_IO);
  assert_string_equal(quern_last_error(), "axis 3 of a, read");
  assert_int_equal(quern_last_status(), QUERN_STATUS_IO);
  base_error(QUERN_STATUS_PARSE, "%s", "");
  assert_string_equal(quern_last_error(), "");
}

static quern_status check_positive(int x) {
  QUERN_CHECK(x > 0, OVERFLOW, "x is %d", x);
  return QUERN_STATUS_OK;
}

static quern_status try_both(int x, int y, int *passed) {
  QUERN_TRY(check_positive(x));
  ++*passed;
  QUERN_TRY(check_positive(y));
  ++*passed;
  return QUERN_STATUS_OK;
}

static void test_macros(void **state) {
  (void)state;
  int passed = 0;
  assert_int_equal(try_both(1, 2, &passed), QUERN_STATUS_OK);
  assert_int_equal(passed, 2);
  assert_int_equal(try_both(1, -7, &passed), QUERN_STATUS_OVERFLOW);
  assert_int_equal(passed, 3);
  assert_string_equal(quern_last_error(), "x is -7");
  assert_int_equal(try_both(0, 1, &passed), QUERN_STATUS_OVERFLOW);
  assert_int_equal(passed, 3);
}

static void test_long_messages(void **state) {
  (void)state;
  char text[BASE_MESSAGE_BYTES + 10], want[BASE_MESSAGE_BYTES + 10];
  memset(text, 'a', sizeof text);
  text[BASE_MESSAGE_BYTES - 1] = 0;
  base_error(QUERN_STATUS_PARSE, "%s", text);
  assert_string_equal(quern_last_error(), text);

  text[BASE_MESSAGE_BYTES - 1] = 'a';
  text[BASE_MESSAGE_BYTES] = 0;
  memset(want, 'a', sizeof want);
  memcpy(want + BASE_MESSAGE_BYTES - 4, "...", 4);
  base_error(QUERN_STATUS_PARSE, "%s", text);
  assert_string_equal(quern_last_error(), want);

  /* A character of three bytes lies across the cut: it goes as a whole. */
  memcpy(text + BASE_MESSAGE_BYTES - 6, "\xe2\x82\xac", 3);
  memcpy(want + BASE_MESSAGE_BYTES - 6, "...", 4);
  base_error(QUERN_STATUS_PARSE, "%s", text);
  assert_string_equal(quern_last_error(), want);

  /* One that ends before the cut stays. */
  memset(text, 'a', BASE_MESSAGE_BYTES);
  memcpy(text + BASE_MESSAGE_BYTES - 7, "\xe2\x82\xac", 3);
  memset(want, 'a', BASE_MESSAGE_BYTES);
  memcpy(want + BASE_MESSAGE_BYTES - 7, "\xe2\x82\xac...", 7);
  base_error(QUERN_STATUS_PARSE, "%s", text);
  assert_string_equal(quern_last_error(), want);
}

static void test_names(void **state) {
  (void)state;
  static const char *const want[] = {"ok",    "invalid", "shape",       "dtype", "overflow", "memory", "io",
                                     "parse", "unbound", "unsupported", "state", "internal", "device"};
  assert_int_equal(BASE_COUNT(want), QUERN_STATUS_COUNT);
  for (int i = 0; i < QUERN_STATUS_COUNT; i++) assert_string_equal(quern_status_name((quern_status)i), want[i]);
  assert_string_equal(quern_status_name(QUERN_STATUS_COUNT), "unknown");
  assert_string_equal(quern_status_name((quern_status)-1), "unknown");
}

static void test_place(void **state) {
  (void)state;
  const char *file = "x";
  int line = 1;
  base_place_get(&file, &line);
  assert_null(file);
  assert_int_equal(line, 0);
  quern_place_set("a.c", 12);
  base_place_get(&file, &line);
  assert_string_equal(file, "a.c");
  assert_int_equal(line, 12);
}

static void other_thread(void *arg) {
  bool *fresh = arg;
  const char *file;
  int line;
  base_place_get(&file, &line);
  *fresh = strcmp(quern_last_error(), "") == 0 && quern_last_status() == QUERN_STATUS_OK && !file;
  base_error(QUERN_STATUS_STATE, "of the other thread");
  quern_place_set("other.c", 99);
}

static void test_thread_local(void **state) {
  (void)state;
  struct base_thread thread;
  bool fresh = false;
  const char *file;
  int line;
  base_error(QUERN_STATUS_DTYPE, "of this thread");
  quern_place_set("this.c", 5);
  assert_int_equal(base_thread_start(&thread, other_thread, &fresh), QUERN_STATUS_OK);
  base_thread_join(&thread);
  assert_true(fresh);
  assert_string_equal(quern_last_error(), "of this thread");
  assert_int_equal(quern_last_status(), QUERN_STATUS_DTYPE);
  base_place_get(&file, &line);
  assert_string_equal(file, "this.c");
  assert_int_equal(line, 5);
}

#if QUERN_ASSERTS
static void broken(void) {
  signal(SIGABRT, SIG_DFL);
  QUERN_ASSERT(1 + 1 == 2);
  QUERN_ASSERT(1 + 1 == 3);
}

static void test_assert(void **state) {
  (void)state;
  char text[512];
  assert_int_equal(in_child(broken, text, sizeof text), 128 + SIGABRT);
  assert_non_null(strstr(text, "1 + 1 == 3"));
  assert_non_null(strstr(text, "test_error.c"));
}
#else
static void test_assert(void **state) {
  (void)state;
  int evaluated = 0;
  QUERN_ASSERT(++evaluated);
  assert_int_equal(evaluated, 0);
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nothing_yet),   cmocka_unit_test(test_record), cmocka_unit_test(test_macros),
      cmocka_unit_test(test_long_messages), cmocka_unit_test(test_names),  cmocka_unit_test(test_place),
      cmocka_unit_test(test_thread_local),  cmocka_unit_test(test_assert),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
