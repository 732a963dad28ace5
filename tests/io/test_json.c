/* tests/io/test_json.c -- JSON: what is parsed is all there, or there is no memory */
#include "io/json.h"
#include "io/json_memory.h"

enum { LONG = 3000 };

/* Long strings before numbers: jansson grows its buffer for them, drops a byte when it cannot, and goes on. */
static void no_memory(void **state) {
  (void)state;
  static char key[LONG + 1], text[3 * LONG];
  memset(key, 'k', LONG);
  int n =
      snprintf(text, sizeof text, "{\"%.40s\":1,\"a\":[12,-3,0.5e3],\"%s\":7,\"b\":{\"%.999s\":\"%.2000s\",\"c\":8}}",
               key, key, key, key);
  struct fault fault = {0};
  while (fault_next(&fault)) {
    json_t *object;
    fault_begin(&fault);
    quern_status status = io_json_parse("text", text, (size_t)n, &object);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(object == NULL, fault.met);
    if (object == NULL) continue;
    assert_int_equal(json_integer_value(json_object_get(object, key)), 7);
    assert_int_equal(json_array_size(json_object_get(object, "a")), 3);
    json_decref(object);
  }
  assert_true(fault.n > 20);
}

/* Adding values and strings to a text. */
static void adding(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    struct base_heap heap;
    struct base_str str;
    json_t *object;
    base_heap_init(&heap, &memory_allocator);
    base_str_init(&str, &heap);
    EXPECT_OK(io_json_parse("text", "{\"a\" : [1, {\"b\" : \"\\u00fc\\n\"}]}", 31, &object));
    fault_begin(&fault);
    quern_status status = io_json_add(&str, object);
    if (status == QUERN_STATUS_OK) status = io_json_add_string(&str, "\"\\\x01");
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    if (status == QUERN_STATUS_OK)
      assert_string_equal(str.at, "{\"a\":[1,{\"b\":\"\xc3\xbc\\n\"}]}\"\\\"\\\\\\u0001\"");
    base_str_fini(&str);
    json_decref(object);
  }
  assert_true(fault.n > 3);
}

/* Texts of any bytes are JSON strings, and the same bytes again. */
static void any_bytes(void **state) {
  (void)state;
  static const char *const texts[] = {"",
                                      "plain",
                                      "\xc3\xbc",
                                      "\xff",
                                      "\xc3",
                                      "\xed\xa0\x80",
                                      "\xef\x9e\x80",
                                      "\xef\x9f\xbf",
                                      "\xef\x9e",
                                      "a\xf0\x9f\x98\x80\x80z"};
  uint64_t random = 7;
  for (size_t i = 0; i < 2000; i++) {
    char text[40], bytes[160];
    size_t n = i < BASE_COUNT(texts) ? strlen(texts[i]) : i % sizeof text;
    for (size_t k = 0; k < n; k++) {
      random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
      int any = (random >> 33) % 3 == 0 ? "\xef\x9e\x9f\x80"[i % 4] : (int)(1 + (random >> 40) % 255);
      text[k] = (char)(i < BASE_COUNT(texts) ? texts[i][k] : any);
    }
    text[n] = 0;
    struct base_heap heap;
    struct base_str str;
    base_heap_init(&heap, &memory_allocator);
    base_str_init(&str, &heap);
    base_str_add(&str, "{\"a\":");
    EXPECT_OK(io_json_add_bytes(&str, text));
    base_str_add(&str, "}");
    json_t *object;
    EXPECT_OK(io_json_parse("text", str.at, str.n, &object));
    const json_t *value = json_object_get(object, "a");
    assert_true(json_string_length(value) < sizeof bytes);
    assert_int_equal(io_json_bytes(json_string_value(value), json_string_length(value), bytes), n);
    assert_memory_equal(bytes, text, n);
    json_decref(object);
    base_str_fini(&str);
  }
}

static void malformed(void **state) {
  (void)state;
  json_t *object;
  EXPECT_ERROR(io_json_parse("t", "", 0, &object), PARSE, "t: line 1, column 0 of the JSON: '[' or '{' expected");
  EXPECT_ERROR(io_json_parse("t", "{\n\"a\": tru}", 11, &object), PARSE,
               "t: line 2, column 8 of the JSON: invalid token near 'tru'");
  EXPECT_ERROR(io_json_parse("t", "[1]", 3, &object), PARSE, "t: the JSON is an array, expected an object");
  EXPECT_ERROR(io_json_parse("t", "12", 2, &object), PARSE,
               "t: line 1, column 2 of the JSON: '[' or '{' expected near '12'");
  assert_null(object);
}

static void shown(void **state) {
  (void)state;
  char buffer[8];
  assert_string_equal(io_json_shown(buffer, sizeof buffer, "abc"), "abc");
  assert_string_equal(io_json_shown(buffer, sizeof buffer, "a\n\xff\x7f"), "a???");
  assert_string_equal(io_json_shown(buffer, sizeof buffer, "1234567"), "1234567");
  assert_string_equal(io_json_shown(buffer, sizeof buffer, "12345678"), "1234...");
}

int main(void) {
  const struct CMUnitTest tests[] = {JSON_TEST(no_memory), JSON_TEST(adding), JSON_TEST(any_bytes),
                                     JSON_TEST(malformed), JSON_TEST(shown)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
