/* tests/base/test_env.c -- the environment and the log, each case in a process of its own: it is read once */
#include "base/test.h"

#include "quern/env.h"

static char text[8192];

static void clear(void) {
  static const char *const names[] = {"QUERN_CACHE", "QUERN_CC",   "QUERN_DEBUG",   "QUERN_DUMP_DIR",
                                      "QUERN_FAULT", "QUERN_SEED", "QUERN_THREADS", "QUERN_VERBOSE"};
  for (size_t i = 0; i < BASE_COUNT(names); i++) unsetenv(names[i]);
}

static void expect_pass(void (*body)(void)) {
  int status = in_child(body, text, sizeof text);
  if (status != 0) fail_msg("child ended with %d: %s", status, text);
}

static void defaults(void) {
  clear();
  setenv("QUERN_SEED", "", 1); /* as if unset */
  CHILD_CHECK(base_env_read() == QUERN_STATUS_OK);
  CHILD_CHECK(strcmp(base_env_get(BASE_ENV_DEBUG), "0") == 0);
  CHILD_CHECK(strcmp(base_env_get(BASE_ENV_FAULT), "") == 0);
  CHILD_CHECK(strcmp(base_env_get(BASE_ENV_SEED), "0") == 0);
  CHILD_CHECK(base_env_int(BASE_ENV_SEED) == 0);
  CHILD_CHECK(!base_env_has(BASE_ENV_VERBOSE, "check"));
  unsetenv("QUERN_SEED");
  CHILD_CHECK(base_env_read() == QUERN_STATUS_OK);
}

static void test_defaults(void **state) {
  (void)state;
  expect_pass(defaults);
  assert_string_equal(text, "");
}

static void set(void) {
  clear();
  setenv("QUERN_DEBUG", "4", 1);
  setenv("QUERN_FAULT", "alloc:12", 1);
  setenv("QUERN_SEED", "18446744073709551615", 1);
  setenv("QUERN_VERBOSE", "check,check", 1);
  CHILD_CHECK(base_env_read() == QUERN_STATUS_OK);
  CHILD_CHECK(base_env_read() == QUERN_STATUS_OK);
  CHILD_CHECK(base_env_int(BASE_ENV_DEBUG) == 4);
  CHILD_CHECK(strcmp(base_env_get(BASE_ENV_FAULT), "alloc:12") == 0);
  CHILD_CHECK(base_env_int(BASE_ENV_FAULT) == 0);
  CHILD_CHECK((uint64_t)base_env_int(BASE_ENV_SEED) == UINT64_MAX);
  CHILD_CHECK(base_env_has(BASE_ENV_VERBOSE, "check"));
  CHILD_CHECK(!base_env_has(BASE_ENV_VERBOSE, "chec"));
  CHILD_CHECK(!base_env_has(BASE_ENV_VERBOSE, "checks"));
  CHILD_CHECK(!base_env_has(BASE_ENV_VERBOSE, "heck"));
  CHILD_CHECK(!base_env_has(BASE_ENV_VERBOSE, ""));
}

static void test_set(void **state) {
  (void)state;
  expect_pass(set);
  assert_string_equal(text, "");
}

/* One value at a time: name, value, good or not, and the number it is. */
static const struct value {
  const char *name, *value;
  bool good;
  uint64_t number;
} values[] = {
    {"QUERN_CACHE", "/some/where", true, 0},
    {"QUERN_CACHE", "0", true, 0},
    {"QUERN_CACHE", "  ", false, 0},
    {"QUERN_CC", "ccache gcc", true, 0},
    {"QUERN_CC", " ", false, 0},
    {"QUERN_DEBUG", "0", true, 0},
    {"QUERN_DEBUG", "1", true, 1},
    {"QUERN_DEBUG", "4", true, 4},
    {"QUERN_DEBUG", "5", false, 0},
    {"QUERN_DEBUG", "-1", false, 0},
    {"QUERN_DEBUG", "/", false, 0},
    {"QUERN_DEBUG", "10", false, 0},
    {"QUERN_DEBUG", "yes", false, 0},
    {"QUERN_DUMP_DIR", "here", true, 0},
    {"QUERN_DUMP_DIR", " ", false, 0},
    {"QUERN_FAULT", "alloc:1", true, 0},
    {"QUERN_FAULT", "alloc:18446744073709551615", true, 0},
    {"QUERN_FAULT", "alloc:18446744073709551616", false, 0},
    {"QUERN_FAULT", "alloc:0", false, 0},
    {"QUERN_FAULT", "alloc:", false, 0},
    {"QUERN_FAULT", "alloc", false, 0},
    {"QUERN_FAULT", "alloc:0x10", false, 0},
    {"QUERN_FAULT", "alloc:3x", false, 0},
    {"QUERN_FAULT", "read:3", false, 0},
    {"QUERN_FAULT", "7", false, 0},
    {"QUERN_SEED", "7", true, 7},
    {"QUERN_SEED", "0123", true, 123},
    {"QUERN_SEED", "0x1f", true, 31},
    {"QUERN_SEED", "0XaF9", true, 0xaf9},
    {"QUERN_SEED", "0xffffffffffffffff", true, UINT64_MAX},
    {"QUERN_SEED", "0x10000000000000000", false, 0},
    {"QUERN_SEED", "18446744073709551615", true, UINT64_MAX},
    {"QUERN_SEED", "18446744073709551616", false, 0},
    {"QUERN_SEED", "99999999999999999999", false, 0},
    {"QUERN_SEED", "0x", false, 0},
    {"QUERN_SEED", "12a", false, 0},
    {"QUERN_SEED", "0x1g", false, 0},
    {"QUERN_SEED", "-3", false, 0},
    {"QUERN_SEED", " 3", false, 0},
    {"QUERN_THREADS", "1", true, 1},
    {"QUERN_THREADS", "1024", true, 1024},
    {"QUERN_THREADS", "0", false, 0},
    {"QUERN_THREADS", "1025", false, 0},
    {"QUERN_THREADS", "two", false, 0},
    {"QUERN_VERBOSE", "check", true, 0},
    {"QUERN_VERBOSE", "check,", false, 0},
    {"QUERN_VERBOSE", "check,mem", false, 0},
    {"QUERN_VERBOSE", "mem,check", false, 0},
    {"QUERN_VERBOSE", "chec", false, 0},
    {"QUERN_VERBOSE", "checkx", false, 0},
};
static const struct value *value;

static enum base_env variable_of(const char *name) {
  for (size_t i = 0; i < quern_env_count(); i++) {
    quern_env_entry entry = QUERN_INIT(quern_env_entry);
    CHILD_CHECK(quern_env_get(i, &entry) == QUERN_STATUS_OK);
    if (strcmp(entry.name, name) == 0) return (enum base_env)i;
  }
  fprintf(stderr, "%s is not in the table\n", name);
  exit(1);
}

static void one_value(void) {
  clear();
  setenv(value->name, value->value, 1);
  for (int time = 0; time < 2; time++) {
    quern_status status = base_env_read();
    CHILD_CHECK(status == (value->good ? QUERN_STATUS_OK : QUERN_STATUS_INVALID));
    if (!value->good) CHILD_CHECK(strstr(quern_last_error(), value->name));
    if (!value->good) CHILD_CHECK(strstr(quern_last_error(), value->value));
  }
  enum base_env variable = variable_of(value->name);
  quern_env_entry entry = QUERN_INIT(quern_env_entry);
  CHILD_CHECK(quern_env_get(variable, &entry) == QUERN_STATUS_OK);
  CHILD_CHECK(strcmp(base_env_get(variable), value->good ? value->value : entry.fallback) == 0);
  CHILD_CHECK((uint64_t)base_env_int(variable) == value->number);
  if (!value->good) CHILD_CHECK(base_env_read() && strstr(quern_last_error(), entry.form));
}

static void test_values(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(values); i++) {
    value = &values[i];
    int status = in_child(one_value, text, sizeof text);
    if (status != 0) fail_msg("%s=%s: %s", value->name, value->value, text);
  }
}

static void too_long(void) {
  char seed[5000];
  clear();
  memset(seed, '0', sizeof seed);
  seed[4095] = 0;
  setenv("QUERN_SEED", seed, 1);
  CHILD_CHECK(base_env_read() == QUERN_STATUS_OK);
  CHILD_CHECK(strlen(base_env_get(BASE_ENV_SEED)) == 4095);
}

static void longer_still(void) {
  char seed[5000];
  clear();
  memset(seed, '0', sizeof seed);
  seed[4096] = 0;
  setenv("QUERN_SEED", seed, 1);
  CHILD_CHECK(base_env_read() == QUERN_STATUS_INVALID);
  CHILD_CHECK(strcmp(base_env_get(BASE_ENV_SEED), "0") == 0);
}

static void test_long_values(void **state) {
  (void)state;
  expect_pass(too_long);
  expect_pass(longer_still);
}

static void changed(void) {
  clear();
  setenv("QUERN_SEED", "5", 1);
  CHILD_CHECK(base_env_int(BASE_ENV_SEED) == 5); /* the first read, without base_env_read */
  setenv("QUERN_SEED", "6", 1);
  CHILD_CHECK(base_env_int(BASE_ENV_SEED) == 5);
  CHILD_CHECK(base_env_read() == QUERN_STATUS_STATE);
  CHILD_CHECK(strstr(quern_last_error(), "QUERN_SEED") && strstr(quern_last_error(), "\"5\""));
  CHILD_CHECK(strstr(quern_last_error(), "\"6\""));
  unsetenv("QUERN_SEED");
  CHILD_CHECK(base_env_read() == QUERN_STATUS_STATE);
  setenv("QUERN_SEED", "5", 1);
  CHILD_CHECK(base_env_read() == QUERN_STATUS_OK);
  setenv("QUERN_VERBOSE", "check", 1); /* the last of the list */
  CHILD_CHECK(base_env_read() == QUERN_STATUS_STATE);
  CHILD_CHECK(strstr(quern_last_error(), "QUERN_VERBOSE"));
  CHILD_CHECK(!base_env_has(BASE_ENV_VERBOSE, "check"));
}

static void test_changed(void **state) {
  (void)state;
  expect_pass(changed);
}

#define LONG_NAME "A_VERY_LONG_NAME_THAT_NOBODY_WOULD_USE_BUT_THAT_MUST_NOT_BREAK_ANYTHING_IN_HERE"

static void unknown(void) {
  clear();
  setenv("QUERN_DEBGU", "1", 1);
  setenv("QUERN_PURPLE_COW", "1", 1);
  setenv("QUERN_seed", "1", 1);
  setenv("QUERX_SEED", "1", 1);
  setenv("QUERN_" LONG_NAME, "1", 1);
  setenv("XQUERN_SEED", "1", 1);
  setenv("QUERN_SEED", "1", 1);
  CHILD_CHECK(base_env_read() == QUERN_STATUS_OK);
  CHILD_CHECK(base_env_read() == QUERN_STATUS_OK);
}

static size_t lines_with(const char *part) {
  size_t n = 0;
  for (const char *at = text; (at = strstr(at, part)); at++) n++;
  return n;
}

static void test_unknown(void **state) {
  (void)state;
  expect_pass(unknown);
  assert_int_equal(lines_with("quern: warning: unknown environment variable QUERN_DEBGU; did you mean QUERN_DEBUG?\n"),
                   1);
  assert_int_equal(lines_with("quern: warning: unknown environment variable QUERN_PURPLE_COW\n"), 1);
  assert_int_equal(lines_with("quern: warning: unknown environment variable QUERN_seed; did you mean QUERN_SEED?\n"),
                   1);
  assert_int_equal(lines_with("quern: warning: unknown environment variable QUERN_" LONG_NAME "\n"), 1);
  assert_int_equal(lines_with("\n"), 4);
}

static void log_lines(void) {
  clear();
  setenv("QUERN_DEBUG", "2", 1);
  char *line = malloc(3000);
  memset(line, 'x', 2999);
  line[2999] = 0;
  for (int level = 0; level <= 4; level++) base_log(level, "level %d of %s", level, "4");
  base_log(1, "%s", line);
  base_log(2, "%s", "");
  free(line);
}

static void silent(void) {
  clear();
  base_log(1, "not heard");
  base_log(0, "heard");
}

static void test_log(void **state) {
  (void)state;
  static const char want[] = "quern: warning: level 0 of 4\nquern: level 1 of 4\nquern: level 2 of 4\nquern: xxx";
  expect_pass(log_lines);
  assert_memory_equal(text, want, sizeof want - 1);
  assert_int_equal(lines_with("\n"), 5);
  assert_non_null(strstr(text, "x\nquern: \n"));
  expect_pass(silent);
  assert_string_equal(text, "quern: warning: heard\n");
}

static void list(void) {
  clear();
  setenv("QUERN_DEBUG", "3", 1);
  CHILD_CHECK(quern_env_count() == BASE_ENV_COUNT);
  quern_env_entry entry = QUERN_INIT(quern_env_entry);
  for (size_t i = 0; i < quern_env_count(); i++) {
    CHILD_CHECK(quern_env_get(i, &entry) == QUERN_STATUS_OK);
    CHILD_CHECK(strncmp(entry.name, "QUERN_", 6) == 0 && entry.name[6]);
    CHILD_CHECK(*entry.help && *entry.form && entry.fallback && entry.value);
  }
  CHILD_CHECK(quern_env_get(BASE_ENV_DEBUG, &entry) == QUERN_STATUS_OK);
  CHILD_CHECK(strcmp(entry.name, "QUERN_DEBUG") == 0);
  CHILD_CHECK(strcmp(entry.value, "3") == 0 && strcmp(entry.fallback, "0") == 0);
  CHILD_CHECK(strcmp(entry.form, "0..4") == 0 && strstr(entry.help, "stderr"));
  CHILD_CHECK(quern_env_get(BASE_ENV_COUNT, &entry) == QUERN_STATUS_INVALID);
  CHILD_CHECK(quern_env_get(SIZE_MAX, &entry) == QUERN_STATUS_INVALID);
  CHILD_CHECK(quern_env_get(0, NULL) == QUERN_STATUS_INVALID);
}

static void test_list(void **state) {
  (void)state;
  expect_pass(list);
}

static void reader(void *arg) {
  *(int64_t *)arg = base_env_int(BASE_ENV_SEED);
  if (base_env_read() != QUERN_STATUS_OK) *(int64_t *)arg = -1;
}

static void threads(void) {
  clear();
  setenv("QUERN_SEED", "99", 1);
  struct base_thread thread[4];
  int64_t seen[4] = {0};
  for (size_t i = 0; i < 4; i++) CHILD_CHECK(base_thread_start(&thread[i], reader, &seen[i]) == QUERN_STATUS_OK);
  for (size_t i = 0; i < 4; i++) base_thread_join(&thread[i]);
  for (size_t i = 0; i < 4; i++) CHILD_CHECK(seen[i] == 99);
}

static void test_threads(void **state) {
  (void)state;
  expect_pass(threads);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults),    cmocka_unit_test(test_set),     cmocka_unit_test(test_values),
      cmocka_unit_test(test_long_values), cmocka_unit_test(test_changed), cmocka_unit_test(test_unknown),
      cmocka_unit_test(test_log),         cmocka_unit_test(test_list),    cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
