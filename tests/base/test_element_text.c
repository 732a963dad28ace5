/* tests/base/test_element_text.c -- elements as text and back */
#include "base/test.h"

#include <locale.h>
#include <math.h>

static struct base_heap heap;

static int setup(void **state) {
  (void)state;
  base_heap_init(&heap, NULL);
  return 0;
}

/* Prints an element into text. */
static void print(char *text, size_t bytes, quern_dtype dtype, const void *data, size_t i) {
  struct base_str str;
  base_str_init(&str, &heap);
  base_element_print(&str, dtype, data, i);
  assert_int_equal(base_str_status(&str), QUERN_STATUS_OK);
  assert_true(str.n < bytes);
  memcpy(text, str.at, str.n + 1);
  base_str_fini(&str);
}

/* Print, parse from a block that ends where the text ends, compare the bits. */
static void check_round_trip(quern_dtype dtype, uint64_t bits) {
  char text[64];
  uint64_t back[2] = {0, 0};
  size_t size = quern_dtype_size(dtype);
  print(text, sizeof text, dtype, &bits, 0);
  size_t n = strlen(text);
  char *exact = malloc(n);
  const char *end = NULL;
  memcpy(exact, text, n);
  bool parsed = base_element_parse(exact, exact + n, &end, dtype, back, 1);
  if (!parsed || end != exact + n || memcmp((char *)back + size, &bits, size) != 0) {
    fail_msg("%s %#llx prints as \"%s\"", quern_dtype_name(dtype), (unsigned long long)bits, text);
  }
  free(exact);
}

static bool is_nan(quern_dtype dtype, uint64_t bits) {
  return base_dtype_is(dtype, BASE_FLOAT) && isnan(base_load_float(dtype, &bits, 0));
}

static void test_all_patterns(void **state) {
  (void)state;
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
    quern_dtype dtype = (quern_dtype)d;
    if (quern_dtype_size(dtype) > 2) continue;
    uint64_t n = dtype == QUERN_DTYPE_BOOL ? 2 : UINT64_C(1) << (8 * quern_dtype_size(dtype));
    for (uint64_t bits = 0; bits < n; bits++) {
      char text[64];
      if (!is_nan(dtype, bits))
        check_round_trip(dtype, bits);
      else
        print(text, sizeof text, dtype, &bits, 0), assert_string_equal(text, "nan");
    }
  }
}

static void test_random_patterns(void **state) {
  (void)state;
  static const quern_dtype wide[] = {QUERN_DTYPE_F64, QUERN_DTYPE_F32, QUERN_DTYPE_I64,
                                     QUERN_DTYPE_I32, QUERN_DTYPE_U64, QUERN_DTYPE_U32};
  for (size_t t = 0; t < BASE_COUNT(wide); t++) {
    for (uint64_t i = 0; i < 20000; i++) {
      uint64_t bits = (uint64_t)base_random_bits(4, 0, 0, i) << 32 | base_random_bits(4, 0, 1, i);
      if (i % 3 == 1) bits >>= i % 64; /* small integers, subnormal floats */
      if (i % 3 == 2) bits &= ~UINT64_C(0) << i % 64;
      if (quern_dtype_size(wide[t]) == 4) bits = i % 2 ? bits & 0xffffffff : bits >> 32;
      if (!is_nan(wide[t], bits)) check_round_trip(wide[t], bits);
    }
  }
}

static void check_print(quern_dtype dtype, double x, const char *want) {
  char text[64];
  uint64_t data[3] = {0};
  base_convert(dtype, data, 2, QUERN_DTYPE_F64, &x, 0);
  print(text, sizeof text, dtype, data, 2);
  assert_string_equal(text, want);
}

static void test_print(void **state) {
  (void)state;
  const quern_dtype f64 = QUERN_DTYPE_F64, f32 = QUERN_DTYPE_F32, f16 = QUERN_DTYPE_F16, bf16 = QUERN_DTYPE_BF16;
  check_print(f32, 1.5, "1.5");
  check_print(f32, -0.0, "-0");
  check_print(f64, 0, "0");
  check_print(f32, INFINITY, "inf");
  check_print(f16, -INFINITY, "-inf");
  check_print(QUERN_DTYPE_F8E4M3, INFINITY, "nan");
  check_print(f64, NAN, "nan");
  check_print(f64, 0.1, "0.1");
  check_print(f32, 0.1, "0.1");
  check_print(f16, 0.1, "0.1");
  check_print(bf16, 0.1, "0.1");
  check_print(f64, (double)0.1f, "0.10000000149011612");
  check_print(f64, 1.0 / 3, "0.3333333333333333");
  check_print(f32, 1.0 / 3, "0.33333334");
  check_print(bf16, 100000, "99840");
  check_print(QUERN_DTYPE_F8E4M3, 448, "448");
  check_print(f64, -16777215, "-16777215");
  check_print(f64, 16777217, "16777217");
  check_print(f64, 1e22, "1e+22");
  check_print(f64, 5e-324, "5e-324");
  check_print(f64, 0x1.fffffffffffffp1023, "1.7976931348623157e+308");
  check_print(f32, 0x1p-149, "1e-45");
  check_print(QUERN_DTYPE_I8, -128, "-128");
  check_print(QUERN_DTYPE_U8, 255, "255");
  check_print(QUERN_DTYPE_I64, -INFINITY, "-9223372036854775808");
  check_print(QUERN_DTYPE_U64, INFINITY, "18446744073709551615");
  check_print(QUERN_DTYPE_BOOL, 1, "true");
  check_print(QUERN_DTYPE_BOOL, 0, "false");
}

/* What is parsed, how much of it is used (want < 0: not a value), and what it means. */
static const struct parse_case {
  quern_dtype dtype;
  const char *text;
  int used;
  double value;
} parse_cases[] = {
    {QUERN_DTYPE_F64, "1.5", 3, 1.5},
    {QUERN_DTYPE_F64, "-1.5e3,", 6, -1500},
    {QUERN_DTYPE_F64, "2E-2]", 4, 0.02},
    {QUERN_DTYPE_F64, "1e+2 ", 4, 100},
    {QUERN_DTYPE_F64, "7", 1, 7},
    {QUERN_DTYPE_F64, "7.", 2, 7},
    {QUERN_DTYPE_F64, ".5", 2, 0.5},
    {QUERN_DTYPE_F64, "-.5", 3, -0.5},
    {QUERN_DTYPE_F64, "0012", 4, 12},
    {QUERN_DTYPE_F64, "inf", 3, INFINITY},
    {QUERN_DTYPE_F64, "-inf)", 4, -INFINITY},
    {QUERN_DTYPE_F64, "1-2", 1, 1},
    {QUERN_DTYPE_F64, "1e-400", 6, 0},
    {QUERN_DTYPE_F64, "1e400", -1, 0},
    {QUERN_DTYPE_F64, "-1e400", -1, 0},
    {QUERN_DTYPE_F64, "", -1, 0},
    {QUERN_DTYPE_F64, "-", -1, 0},
    {QUERN_DTYPE_F64, ".", -1, 0},
    {QUERN_DTYPE_F64, "-.", -1, 0},
    {QUERN_DTYPE_F64, "+1", -1, 0},
    {QUERN_DTYPE_F64, " 1", -1, 0},
    {QUERN_DTYPE_F64, "1e", -1, 0},
    {QUERN_DTYPE_F64, "1e+", -1, 0},
    {QUERN_DTYPE_F64, "1.2.3", -1, 0},
    {QUERN_DTYPE_F64, "1x", -1, 0},
    {QUERN_DTYPE_F64, "1_", -1, 0},
    {QUERN_DTYPE_F64, "1Z", -1, 0},
    {QUERN_DTYPE_F64, "1a", -1, 0},
    {QUERN_DTYPE_F64, "1z", -1, 0},
    {QUERN_DTYPE_F64, "1A", -1, 0},
    {QUERN_DTYPE_F64, "1[", 1, 1},
    {QUERN_DTYPE_F64, "1{", 1, 1},
    {QUERN_DTYPE_F64, "1@", 1, 1},
    {QUERN_DTYPE_F64, "1`", 1, 1},
    {QUERN_DTYPE_F64, "1/2", 1, 1},
    {QUERN_DTYPE_F64, "1:2", 1, 1},
    {QUERN_DTYPE_F64, "0x10", -1, 0},
    {QUERN_DTYPE_F64, "e5", -1, 0},
    {QUERN_DTYPE_F64, "in", -1, 0},
    {QUERN_DTYPE_F64, "info", -1, 0},
    {QUERN_DTYPE_F64, "inf9", -1, 0},
    {QUERN_DTYPE_F64, "nan0", -1, 0},
    {QUERN_DTYPE_F64, "-nan", -1, 0},
    {QUERN_DTYPE_F64, "true", -1, 0},
    {QUERN_DTYPE_F32, "1.0000000596046448", 18, 1.0000001192092896}, /* just above the middle: one rounding */
    {QUERN_DTYPE_F32, "1.000000059604644775390625", 26, 1},
    {QUERN_DTYPE_F32, "1e39", -1, 0},
    {QUERN_DTYPE_F16, "65519", 5, 65504},
    {QUERN_DTYPE_F16, "65520", -1, 0},
    {QUERN_DTYPE_F8E4M3, "464", 3, 448},
    {QUERN_DTYPE_F8E4M3, "465", -1, 0},
    {QUERN_DTYPE_F8E4M3, "inf", -1, 0},
    {QUERN_DTYPE_F8E4M3, "-inf", -1, 0},
    {QUERN_DTYPE_F8E5M2, "-inf", 4, -INFINITY},
    {QUERN_DTYPE_I8, "127", 3, 127},
    {QUERN_DTYPE_I8, "128", -1, 0},
    {QUERN_DTYPE_I8, "-128", 4, -128},
    {QUERN_DTYPE_I8, "-129", -1, 0},
    {QUERN_DTYPE_I8, "-0", 2, 0},
    {QUERN_DTYPE_I8, "00000000000000000000000000127", 29, 127},
    {QUERN_DTYPE_I8, "1270", -1, 0},
    {QUERN_DTYPE_I8, "1.5", -1, 0},
    {QUERN_DTYPE_I8, "1e1", -1, 0},
    {QUERN_DTYPE_I8, "--1", -1, 0},
    {QUERN_DTYPE_I8, "-", -1, 0},
    {QUERN_DTYPE_I8, "nan", -1, 0},
    {QUERN_DTYPE_I8, "5, 6", 1, 5},
    {QUERN_DTYPE_I16, "32767", 5, 32767},
    {QUERN_DTYPE_I16, "32768", -1, 0},
    {QUERN_DTYPE_I16, "-32768", 6, -32768},
    {QUERN_DTYPE_I32, "2147483647", 10, 2147483647},
    {QUERN_DTYPE_I32, "2147483648", -1, 0},
    {QUERN_DTYPE_I32, "-2147483648", 11, -2147483648.0},
    {QUERN_DTYPE_I32, "-2147483649", -1, 0},
    {QUERN_DTYPE_I64, "9223372036854775807", 19, 0x1p63},
    {QUERN_DTYPE_I64, "9223372036854775808", -1, 0},
    {QUERN_DTYPE_I64, "-9223372036854775808", 20, -0x1p63},
    {QUERN_DTYPE_I64, "-9223372036854775809", -1, 0},
    {QUERN_DTYPE_U8, "255", 3, 255},
    {QUERN_DTYPE_U8, "256", -1, 0},
    {QUERN_DTYPE_U8, "-1", -1, 0},
    {QUERN_DTYPE_U8, "-0", -1, 0},
    {QUERN_DTYPE_U16, "65535", 5, 65535},
    {QUERN_DTYPE_U16, "65536", -1, 0},
    {QUERN_DTYPE_U32, "4294967295", 10, 4294967295.0},
    {QUERN_DTYPE_U32, "4294967296", -1, 0},
    {QUERN_DTYPE_U64, "18446744073709551615", 20, 0x1p64},
    {QUERN_DTYPE_U64, "18446744073709551616", -1, 0},
    {QUERN_DTYPE_U64, "99999999999999999999", -1, 0},
    {QUERN_DTYPE_BOOL, "true", 4, 1},
    {QUERN_DTYPE_BOOL, "false]", 5, 0},
    {QUERN_DTYPE_BOOL, "tru", -1, 0},
    {QUERN_DTYPE_BOOL, "truest", -1, 0},
    {QUERN_DTYPE_BOOL, "1", -1, 0},
    {QUERN_DTYPE_BOOL, "", -1, 0},
};

static void test_parse(void **state) {
  (void)state;
  for (size_t c = 0; c < BASE_COUNT(parse_cases); c++) {
    const struct parse_case *one = &parse_cases[c];
    size_t n = strlen(one->text), size = quern_dtype_size(one->dtype);
    unsigned char data[32], before[32];
    double value = 0;
    char *exact = malloc(n + !n);
    const char *end = exact;
    memcpy(exact, one->text, n);
    memset(data, 0x3c, sizeof data);
    memcpy(before, data, sizeof data);
    bool parsed = base_element_parse(exact, exact + n, &end, one->dtype, data, 1);
    if (parsed != (one->used >= 0)) fail_msg("%s \"%s\"", quern_dtype_name(one->dtype), one->text);
    assert_memory_equal(data, before, size);
    assert_memory_equal(data + 2 * size, before, size);
    if (parsed) {
      base_convert(QUERN_DTYPE_F64, &value, 0, one->dtype, data, 1);
      if (value != one->value || end != exact + one->used) {
        fail_msg("%s \"%s\" is %a after %d", quern_dtype_name(one->dtype), one->text, value, (int)(end - exact));
      }
    } else {
      assert_memory_equal(data, before, sizeof data);
      assert_ptr_equal(end, exact);
    }
    free(exact);
  }
}

static void test_parse_nan(void **state) {
  (void)state;
  static const char text[] = "nan, 1";
  const char *end = NULL;
  uint16_t bits = 0;
  assert_true(base_element_parse(text, text + 6, &end, QUERN_DTYPE_F16, &bits, 0));
  assert_int_equal(bits, 0x7e00);
  assert_ptr_equal(end, text + 3);
  uint8_t bits8 = 0;
  assert_true(base_element_parse(text, text + 3, &end, QUERN_DTYPE_F8E4M3, &bits8, 0));
  assert_int_equal(bits8, 0x7f);
}

/* The text ends at stop, whatever follows. */
static void test_stop(void **state) {
  (void)state;
  static const char text[] = "12345";
  const char *end = NULL;
  for (int n = 1; n <= 5; n++) {
    double x = 0;
    int32_t i = 0;
    assert_true(base_element_parse(text, text + n, &end, QUERN_DTYPE_F64, &x, 0));
    assert_ptr_equal(end, text + n);
    assert_true(x == floor(12345 / pow(10, 5 - n)));
    assert_true(base_element_parse(text, text + n, &end, QUERN_DTYPE_I32, &i, 0));
    assert_true(i == (int32_t)x);
  }
}

static void test_long_text(void **state) {
  (void)state;
  char text[1300];
  const char *end = NULL;
  double x = 0;
  memset(text, '0', sizeof text);
  text[0] = '1', text[1] = '.';
  assert_true(base_element_parse(text, text + 1199, &end, QUERN_DTYPE_F64, &x, 0));
  assert_true(x == 1 && end == text + 1199);
  assert_false(base_element_parse(text, text + 1200, &end, QUERN_DTYPE_F64, &x, 0));
  assert_false(base_element_parse(text, text + 1300, &end, QUERN_DTYPE_F64, &x, 0));
}

/* A program that runs in a locale with a decimal comma reads and writes points, and keeps its locale. */
static void test_locale(void **state) {
  (void)state;
  static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8", "nl_NL.UTF-8", "de_DE"};
  bool found = false;
  for (size_t i = 0; i < BASE_COUNT(names) && !found; i++) found = setlocale(LC_ALL, names[i]) != NULL;
  if (!found) skip();
  char text[16];
  const char *end;
  double x = 0;
  check_print(QUERN_DTYPE_F64, 2.5, "2.5");
  assert_true(base_element_parse("2.5", &"2.5"[3], &end, QUERN_DTYPE_F64, &x, 0) && x == 2.5);
  snprintf(text, sizeof text, "%.1f", 2.5);
  setlocale(LC_ALL, "C");
  assert_string_equal(text, "2,5");
}

static void test_no_memory(void **state) {
  (void)state;
  struct base_heap poor;
  struct base_str str;
  const double x = 1.5;
  base_heap_init(&poor, NULL);
  poor.fail_at = 1;
  base_str_init(&str, &poor);
  base_element_print(&str, QUERN_DTYPE_F64, &x, 0);
  assert_int_equal(base_str_status(&str), QUERN_STATUS_MEMORY);
  base_str_fini(&str);
}

static int teardown(void **state) {
  (void)state;
  return heap.live != 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_patterns), cmocka_unit_test(test_random_patterns), cmocka_unit_test(test_print),
      cmocka_unit_test(test_parse),        cmocka_unit_test(test_parse_nan),       cmocka_unit_test(test_stop),
      cmocka_unit_test(test_long_text),    cmocka_unit_test(test_locale),          cmocka_unit_test(test_no_memory),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
