/* tests/base/test_heap.c -- counters, alignment, faults, the user's allocator */
#include "base/test.h"

static void test_counters(void **state) {
  (void)state;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  assert_int_equal(heap.live, 0);
  assert_int_equal(heap.peak, 0);
  assert_int_equal(heap.count, 0);
  void *a = base_alloc(&heap, 100), *b = base_alloc(&heap, 50);
  assert_non_null(a);
  assert_non_null(b);
  assert_int_equal(heap.live, 150);
  assert_int_equal(heap.peak, 150);
  base_free(&heap, a, 100);
  assert_int_equal(heap.live, 50);
  assert_int_equal(heap.peak, 150);
  a = base_alloc(&heap, 99);
  assert_int_equal(heap.live, 149);
  assert_int_equal(heap.peak, 150);
  base_free(&heap, b, 50);
  base_free(&heap, a, 99);
  base_free(&heap, NULL, 1000);
  assert_int_equal(heap.live, 0);
  assert_int_equal(heap.peak, 150);
  assert_int_equal(heap.count, 3);
}

static void test_alignment(void **state) {
  (void)state;
  struct base_heap heap;
  void *blocks[200];
  base_heap_init(&heap, NULL);
  for (size_t n = 0; n < BASE_COUNT(blocks); n++) {
    blocks[n] = base_alloc(&heap, n);
    assert_non_null(blocks[n]);
    assert_int_equal((uintptr_t)blocks[n] % 64, 0);
    memset(blocks[n], 0xff, n);
    for (size_t i = 0; i < n; i++) assert_ptr_not_equal(blocks[i], blocks[n]);
  }
  assert_int_equal(heap.live, 199 * 200 / 2);
  for (size_t n = 0; n < BASE_COUNT(blocks); n++) base_free(&heap, blocks[n], n);
  assert_int_equal(heap.live, 0);
}

static void test_zero(void **state) {
  (void)state;
  struct watch watch;
  struct base_heap heap;
  watch_init(&watch, &heap);
  for (size_t n = 1; n < 100; n++) {
    unsigned char *a = base_alloc(&heap, n), *b = base_alloc_zero(&heap, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(a[i], 0xa5);
    for (size_t i = 0; i < n; i++) assert_int_equal(b[i], 0);
    base_free(&heap, a, n);
    base_free(&heap, b, n);
  }
  assert_int_equal(watch.live, 0);
}

static void test_no_memory(void **state) {
  (void)state;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 62, SIZE_MAX - 63, SIZE_MAX / 2 + 1, SIZE_MAX / 2};
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    char number[32];
    base_error(QUERN_STATUS_INTERNAL, "earlier");
    assert_null(base_alloc(&heap, sizes[i]));
    assert_int_equal(quern_last_status(), QUERN_STATUS_MEMORY);
    snprintf(number, sizeof number, " %zu bytes", sizes[i]);
    assert_non_null(strstr(quern_last_error(), number));
    assert_null(base_alloc_zero(&heap, sizes[i]));
  }
  assert_int_equal(heap.live, 0);
  assert_int_equal(heap.peak, 0);
  assert_int_equal(heap.count, 10);
}

static void test_fail_at(void **state) {
  (void)state;
  for (uint64_t fail_at = 1; fail_at < 5; fail_at++) {
    struct base_heap heap;
    void *blocks[6] = {0};
    base_heap_init(&heap, NULL);
    assert_int_equal(heap.fail_at, 0);
    heap.fail_at = fail_at;
    for (uint64_t i = 1; i <= BASE_COUNT(blocks); i++) {
      blocks[i - 1] = base_alloc(&heap, 10);
      assert_int_equal(blocks[i - 1] != NULL, i < fail_at);
    }
    assert_int_equal(quern_last_status(), QUERN_STATUS_MEMORY);
    assert_non_null(strstr(quern_last_error(), "for 10 bytes"));
    assert_non_null(strstr(quern_last_error(), "allocation 6"));
    assert_int_equal(heap.live, (fail_at - 1) * 10);
    assert_int_equal(heap.count, 6);
    for (size_t i = 0; i < BASE_COUNT(blocks); i++) base_free(&heap, blocks[i], 10);
    assert_int_equal(heap.live, 0);
  }
}

static void test_user_allocator(void **state) {
  (void)state;
  struct watch watch;
  struct base_heap heap;
  watch_init(&watch, &heap);
  void *a = base_alloc(&heap, 7), *b = base_alloc(&heap, 0), *c = base_alloc(&heap, 1);
  assert_ptr_not_equal(b, c);
  assert_int_equal(watch.n, 3);
  assert_int_equal(watch.sizes[0], 7);
  assert_int_equal(watch.sizes[2], 1);
  assert_int_equal(heap.live, 8);
  base_free(&heap, a, 7);
  base_free(&heap, b, 0);
  base_free(&heap, c, 1);
  assert_int_equal(watch.live, 0);
  assert_int_equal(heap.live, 0);

  base_heap_init(&heap, &(quern_allocator){0});
  a = base_alloc(&heap, 3);
  assert_non_null(a);
  base_free(&heap, a, 3);
  assert_int_equal(watch.n, 3);
}

static void test_misaligned_allocator(void **state) {
  (void)state;
  struct watch watch;
  struct base_heap heap;
  watch_init(&watch, &heap);
  watch.shift = 32;
  assert_null(base_alloc(&heap, 20));
  assert_int_equal(quern_last_status(), QUERN_STATUS_INVALID);
  assert_non_null(strstr(quern_last_error(), "aligned"));
  assert_null(base_alloc(&heap, 0));
  assert_int_equal(watch.n, 2);
  assert_int_equal(watch.live, 0);
  assert_int_equal(heap.live, 0);
}

static void test_size(void **state) {
  (void)state;
  size_t bytes = 5;
  assert_true(base_size(3, 4, 2, &bytes));
  assert_int_equal(bytes, 14);
  assert_true(base_size(0, 9, 1, &bytes));
  assert_int_equal(bytes, 1);
  assert_true(base_size(SIZE_MAX, 0, 7, &bytes));
  assert_int_equal(bytes, 7);
  assert_true(base_size(SIZE_MAX, 1, 0, &bytes));
  assert_true(bytes == SIZE_MAX);
  assert_true(base_size(SIZE_MAX / 8, 8, 7, &bytes));
  assert_true(bytes == SIZE_MAX);
  assert_false(base_size(SIZE_MAX / 8, 8, 8, &bytes));
  assert_false(base_size(SIZE_MAX, 1, 1, &bytes));
  assert_false(base_size(SIZE_MAX / 2, 3, 0, &bytes));
  assert_false(base_size((size_t)1 << 32, (size_t)1 << 32, 0, &bytes));
  assert_true(bytes == SIZE_MAX);
}

enum { ROUNDS = 2000 };

static void churn(void *arg) {
  struct base_heap *heap = arg;
  for (size_t i = 0; i < ROUNDS; i++) {
    void *a = base_alloc(heap, 1000), *b = base_alloc(heap, i % 7);
    base_free(heap, a, 1000);
    base_free(heap, b, i % 7);
  }
}

static void test_threads(void **state) {
  (void)state;
  struct base_heap heap;
  struct base_thread threads[4];
  base_heap_init(&heap, NULL);
  for (size_t i = 0; i < 4; i++) assert_int_equal(base_thread_start(&threads[i], churn, &heap), QUERN_STATUS_OK);
  for (size_t i = 0; i < 4; i++) base_thread_join(&threads[i]);
  assert_int_equal(heap.live, 0);
  assert_int_equal(heap.count, 4 * 2 * ROUNDS);
  assert_in_range(heap.peak, 1006, 4 * 1006);
}

static void fault_child(void) {
  setenv("QUERN_FAULT", "alloc:3", 1);
  struct base_heap heap, other;
  base_heap_init(&heap, NULL);
  CHILD_CHECK(heap.fail_at == 3);
  void *a = base_alloc(&heap, 8), *b = base_alloc(&heap, 8);
  CHILD_CHECK(a && b && !base_alloc(&heap, 8) && !base_alloc(&heap, 8));
  base_heap_init(&other, NULL);
  void *c = base_alloc(&other, 8);
  CHILD_CHECK(c);
  base_free(&heap, a, 8);
  base_free(&heap, b, 8);
  base_free(&other, c, 8);
}

static void test_fault_variable(void **state) {
  (void)state;
  char text[512];
  int status = in_child(fault_child, text, sizeof text);
  assert_string_equal(text, "");
  assert_int_equal(status, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_fault_variable), /* first: the environment is not read yet */
      cmocka_unit_test(test_counters),
      cmocka_unit_test(test_alignment),
      cmocka_unit_test(test_zero),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_fail_at),
      cmocka_unit_test(test_user_allocator),
      cmocka_unit_test(test_misaligned_allocator),
      cmocka_unit_test(test_size),
      cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
