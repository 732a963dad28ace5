/* tests/base/test_text.c -- texts that the caller frees: whole, counted no more, and without a leak when there is no memory */
#include "unit.h"

#include "base/base.h"

static void given(void **state) {
  (void)state;
  struct base_heap heap;
  base_heap_init(&heap, &(quern_allocator){memory_alloc, memory_free, NULL});
  size_t before = memory_live; /* of the context */
  struct base_str str;
  char *text = NULL;
  base_str_init(&str, &heap);
  base_str_add(&str, "one ");
  base_str_printf(&str, "%d", 2);
  EXPECT_OK(base_str_give(QUERN_STATUS_OK, &str, &text));
  assert_string_equal(text, "one 2");
  assert_int_equal(heap.live, 0); /* it is the caller's */
  assert_true(memory_live > before);
  quern_free_text(text);
  base_str_init(&str, &heap);
  EXPECT_OK(base_str_give(QUERN_STATUS_OK, &str, &text)); /* nothing was added */
  assert_string_equal(text, "");
  quern_free_text(text);
  quern_free_text(NULL);
  assert_int_equal(memory_live, before);
}

static void failed(void **state) {
  (void)state;
  struct base_heap heap;
  base_heap_init(&heap, &(quern_allocator){memory_alloc, memory_free, NULL});
  size_t before = memory_live; /* of the context */
  struct base_str str;
  char *text = NULL;
  base_str_init(&str, &heap);
  base_str_add(&str, "something");
  assert_int_equal(base_str_give(QUERN_STATUS_STATE, &str, &text),
                   QUERN_STATUS_STATE); /* the builder is gone all the same */
  assert_null(text);
  for (uint64_t i = 1; i <= 2; i++) {
    base_str_init(&str, &heap);
    memory_fault.left = i;
    base_str_add(&str, "something");
    assert_int_equal(base_str_give(QUERN_STATUS_OK, &str, &text), QUERN_STATUS_MEMORY);
    memory_fault.left = 0;
    assert_null(text);
    assert_int_equal(memory_live, before);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(given), TEST(failed)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
