/* tests/io/test_config.c -- configurations: values of each type, words, texts, what is refused, memory */
#include "quern/config.h"
#include "unit.h"

#include "quern/status.h"

static const quern_config_key keys[] = {
    {"model", QUERN_CONFIG_CHOICE, "char", "char|gpt2:*|mlp", 0, 0, "what is trained"},
    {"batch", QUERN_CONFIG_INT, "8", "auto", 1, 4096, "sequences a step"},
    {"lr", QUERN_CONFIG_REAL, "3e-4", NULL, 0, 10, "learning rate"},
    {"shuffle", QUERN_CONFIG_FLAG, "true", NULL, 0, 0, "in another order each epoch"},
    {"memory", QUERN_CONFIG_BYTES, "0", NULL, 0, 0, "bytes of a step"},
    {"out", QUERN_CONFIG_TEXT, "", NULL, 0, 0, "folder"},
};

static quern_config *config;

static int setup(void **state) {
  (void)state;
  return quern_config_new(&config, sizeof keys / sizeof *keys, keys, &memory_allocator) == QUERN_STATUS_OK ? 0 : -1;
}
static int teardown(void **state) {
  (void)state;
  quern_config_free(config);
  return memory_live == 0 ? 0 : -1;
}

static void defaults(void **state) {
  (void)state;
  assert_string_equal(quern_config_get(config, "model"), "char");
  assert_int_equal(quern_config_int(config, "batch"), 8);
  assert_true(quern_config_real(config, "lr") == 3e-4);
  assert_true(quern_config_real(config, "batch") == 8);
  assert_true(quern_config_flag(config, "shuffle"));
  assert_int_equal(quern_config_int(config, "memory"), 0);
  assert_false(quern_config_is_set(config, "model"));
  assert_string_equal(quern_config_get(config, "nothing"), "");
  assert_int_equal(quern_config_int(config, "model"), 0);
  assert_false(quern_config_flag(config, "batch"));
  char *printed;
  EXPECT_OK(quern_config_print(config, false, &printed));
  assert_string_equal(printed, "");
  quern_free_text(printed);
}

static void words(void **state) {
  (void)state;
  EXPECT_OK(quern_config_word(config, "model=gpt2:124M"));
  EXPECT_OK(quern_config_word(config, "batch=auto"));
  EXPECT_OK(quern_config_word(config, "lr=1e-3"));
  EXPECT_OK(quern_config_word(config, "shuffle=off"));
  EXPECT_OK(quern_config_word(config, "memory=1.5GiB"));
  assert_int_equal(quern_config_int(config, "memory"), 1610612736);
  EXPECT_OK(quern_config_word(config, "memory=1.5GB"));
  assert_int_equal(quern_config_int(config, "memory"), 1500000000);
  EXPECT_OK(quern_config_word(config, "memory=1.5GiB"));
  EXPECT_OK(quern_config_word(config, "out=a=b"));
  assert_string_equal(quern_config_get(config, "model"), "gpt2:124M");
  assert_int_equal(quern_config_int(config, "batch"), 0);
  assert_string_equal(quern_config_get(config, "batch"), "auto");
  assert_true(quern_config_real(config, "lr") == 1e-3);
  assert_false(quern_config_flag(config, "shuffle"));
  assert_int_equal(quern_config_int(config, "memory"), INT64_C(3) << 29);
  assert_string_equal(quern_config_get(config, "out"), "a=b");
  assert_true(quern_config_is_set(config, "out"));
}

static void refused(void **state) {
  (void)state;
  static const struct {
    const char *word, *why;
  } rows[] = {
      {"bach=3", "there is no key 'bach'; did you mean 'batch'?"},
      {"zzzzzz=3", "there is no key 'zzzzzz'"},
      {"batch", "'batch' is no setting; one looks like key=value"},
      {"=3", "'=3' is no setting"},
      {"batch=0", "batch = '0': must be a whole number from 1 to 4096, or auto"},
      {"batch=4097", "must be a whole number from 1 to 4096"},
      {"batch=3x", "batch = '3x'"},
      {"batch= 3", "batch = ' 3'"},
      {"batch=99999999999999999999", "must be a whole number"},
      {"lr=nan", "lr = 'nan': must be a number from 0 to 10"},
      {"lr=inf", "lr = 'inf'"},
      {"lr=1e999", "lr = '1e999'"},
      {"lr=", "lr = ''"},
      {"lr=0x1p3", "lr = '0x1p3'"},
      {"lr=-1", "must be a number from 0 to 10"},
      {"shuffle=maybe", "shuffle = 'maybe': must be true or false"},
      {"memory=3 GiB", "must be bytes such as 64KiB or 1.5GiB"},
      {"memory=-1", "must be bytes"},
      {"memory=99999999TiB", "must be bytes"},
      {"model=gpt3", "model = 'gpt3': must be char, gpt2:*, mlp"},
      {"out=a\nb", "out = 'a\nb'"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    EXPECT_ERROR(quern_config_word(config, rows[i].word), INVALID, rows[i].why);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) assert_false(quern_config_is_set(config, keys[i].name));
}

static void text(const char *lines) { EXPECT_OK(quern_config_text(config, "run.cfg", lines, strlen(lines))); }

static void texts(void **state) {
  (void)state;
  text("# a run\n\n  batch = 16   # small\r\nlr=0.5\n\tout = \" a \\\"b\\\" \\\\ # c \"\nmodel = mlp");
  assert_int_equal(quern_config_int(config, "batch"), 16);
  assert_true(quern_config_real(config, "lr") == 0.5);
  assert_string_equal(quern_config_get(config, "out"), " a \"b\" \\ # c ");
  assert_string_equal(quern_config_get(config, "model"), "mlp");
  text("out = \"\"");
  assert_string_equal(quern_config_get(config, "out"), "");
  text("out = x");
  char *printed;
  EXPECT_OK(quern_config_print(config, false, &printed));
  quern_config *other;
  EXPECT_OK(quern_config_new(&other, sizeof keys / sizeof *keys, keys, &memory_allocator));
  EXPECT_OK(quern_config_text(other, NULL, printed, strlen(printed)));
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    assert_string_equal(quern_config_get(config, keys[i].name), quern_config_get(other, keys[i].name));
  quern_free_text(printed);
  quern_config_free(other);
  EXPECT_OK(quern_config_help(config, &printed));
  assert_non_null(strstr(printed, "batch          sequences a step (16; a whole number from 1 to 4096, or auto)"));
  quern_free_text(printed);
}

static void bad_texts(void **state) {
  (void)state;
  static const struct {
    const char *text;
    quern_status status;
    const char *why;
  } rows[] = {
      {"batch = 3\nbatsh = 4\n", QUERN_STATUS_INVALID, "run.cfg:2: there is no key 'batsh'; did you mean 'batch'?"},
      {"batch = 3\n\n\nlr = much", QUERN_STATUS_INVALID, "run.cfg:4: lr = 'much': must be"},
      {"batch = 3\njust words\n", QUERN_STATUS_PARSE, "run.cfg:2: 'just' is no setting; a line is key = value"},
      {"batch = 3\n= 4\n", QUERN_STATUS_PARSE, "run.cfg:2: '' is no setting"},
      {"batch = 3\nout = \"abc\n", QUERN_STATUS_PARSE, "run.cfg:2: a value begins with \" and does not end"},
      {"batch = 3\nout = \"abc\" d\n", QUERN_STATUS_PARSE, "run.cfg:2: something follows the value's last \""},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    test_expect_error(quern_config_text(config, "run.cfg", rows[i].text, strlen(rows[i].text)), rows[i].status,
                      rows[i].why, __FILE__, __LINE__);
    assert_false(quern_config_is_set(config, "batch"));
  }
  EXPECT_ERROR(quern_config_text(config, NULL, "out = a\0b", 9), PARSE, "text:1: a zero byte");
  EXPECT_ERROR(quern_config_file(config, "tests/io/no-such-file.cfg"), IO, "no-such-file.cfg");
}

static void tables(void **state) {
  (void)state;
  quern_config *none;
  EXPECT_ERROR(quern_config_new(&none, 1, &(quern_config_key){"a", QUERN_CONFIG_INT, "x", NULL, 0, 0, ""}, NULL),
               INVALID, "key 'a' has the value 'x', which is not allowed");
  EXPECT_ERROR(quern_config_new(&none, 1, &(quern_config_key){"a", QUERN_CONFIG_CHOICE, "x", NULL, 0, 0, ""}, NULL),
               INVALID, "nothing is allowed for key 'a'");
  EXPECT_ERROR(quern_config_new(&none, 1, &(quern_config_key){"a", QUERN_CONFIG_TEXT, NULL, NULL, 0, 0, ""}, NULL),
               INVALID, "key 0 has no name or no value");
  EXPECT_ERROR(quern_config_new(&none, 1, NULL, NULL), INVALID, "the table of 1 keys is null");
  assert_null(none);
}

static void no_memory(void **state) {
  (void)state;
  static const char lines[] = "batch = 3\nout = \"some words\"\nlr = 1\n";
  for (struct fault fault = {0}; fault_next(&fault);) {
    quern_config *c = NULL;
    char *printed = NULL;
    fault_begin(&fault);
    quern_status status = quern_config_new(&c, sizeof keys / sizeof *keys, keys, &memory_allocator);
    if (status == QUERN_STATUS_OK) status = quern_config_text(c, "x", lines, sizeof lines - 1);
    if (status == QUERN_STATUS_OK) status = quern_config_print(c, true, &printed);
    fault_end(&fault);
    quern_free_text(printed);
    quern_config_free(c);
    EXPECT_FAULT(&fault, status);
  }
}

int main(void) {
#define CONFIG_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {CONFIG_TEST(defaults), CONFIG_TEST(words),     CONFIG_TEST(refused),
                                     CONFIG_TEST(texts),    CONFIG_TEST(bad_texts), CONFIG_TEST(tables),
                                     CONFIG_TEST(no_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
