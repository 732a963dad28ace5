/* tests/base/test_vec.c -- vectors: growth, contents, failures */
#include "base/test.h"

struct item {
  int64_t a, b, c;
};

static void test_push(void **state) {
  (void)state;
  struct watch watch;
  struct base_heap heap;
  BASE_VEC(int) vec = {0};
  watch_init(&watch, &heap);
  for (int i = 0; i < 1000; i++) {
    assert_true(base_vec_push(&heap, &vec, i * i));
    assert_int_equal(vec.n, i + 1);
    assert_true(vec.cap >= vec.n);
    assert_int_equal(heap.live, vec.cap * sizeof(int));
  }
  for (int i = 0; i < 1000; i++) assert_int_equal(vec.at[i], i * i);
  assert_int_equal(vec.cap, 1024);
  assert_int_equal(watch.n, 8);
  for (size_t i = 0; i < 8; i++) assert_int_equal(watch.sizes[i], (size_t)32 << i);
  base_vec_fini(&heap, &vec);
  assert_null(vec.at);
  assert_int_equal(vec.n, 0);
  assert_int_equal(vec.cap, 0);
  assert_int_equal(watch.live, 0);
  assert_int_equal(heap.live, 0);
}

static void test_reserve(void **state) {
  (void)state;
  struct base_heap heap;
  BASE_VEC(struct item) vec = {0};
  base_heap_init(&heap, NULL);
  assert_true(base_vec_reserve(&heap, &vec, 0));
  assert_int_equal(heap.count, 0);
  assert_true(base_vec_reserve(&heap, &vec, 3));
  assert_int_equal(vec.cap, 8);
  assert_true(base_vec_reserve(&heap, &vec, 8));
  assert_int_equal(heap.count, 1);
  assert_true(base_vec_push(&heap, &vec, ((struct item){1, 2, 3})));
  assert_true(base_vec_reserve(&heap, &vec, 8));
  assert_int_equal(vec.cap, 16);
  assert_true(base_vec_reserve(&heap, &vec, 20));
  assert_int_equal(vec.cap, 32);
  assert_true(base_vec_reserve(&heap, &vec, 100));
  assert_int_equal(vec.cap, 101);
  assert_int_equal(vec.n, 1);
  assert_int_equal(vec.at[0].a + vec.at[0].b * 10 + vec.at[0].c * 100, 321);
  assert_int_equal(heap.live, 101 * sizeof(struct item));
  base_vec_fini(&heap, &vec);
  assert_int_equal(heap.live, 0);
}

static void test_failure(void **state) {
  (void)state;
  struct base_heap heap;
  BASE_VEC(struct item) vec = {0};
  base_heap_init(&heap, NULL);
  heap.fail_at = 3;
  for (int64_t i = 0; i < 16; i++) assert_true(base_vec_push(&heap, &vec, ((struct item){i, i, i})));
  struct item *at = vec.at;
  bool pushed = base_vec_push(&heap, &vec, ((struct item){9, 9, 9}));
  assert_false(pushed);
  assert_int_equal(quern_last_status(), QUERN_STATUS_MEMORY);
  assert_ptr_equal(vec.at, at);
  assert_int_equal(vec.n, 16);
  assert_int_equal(vec.cap, 16);
  assert_int_equal(vec.at[15].c, 15);
  heap.fail_at = 0;
  static const size_t more[] = {SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 16, SIZE_MAX / sizeof(struct item)};
  for (size_t i = 0; i < BASE_COUNT(more); i++) {
    base_error(QUERN_STATUS_INTERNAL, "earlier");
    assert_false(base_vec_reserve(&heap, &vec, more[i]));
    assert_int_equal(quern_last_status(), QUERN_STATUS_MEMORY);
    assert_int_equal(vec.cap, 16);
  }
  assert_int_equal(heap.live, 16 * sizeof(struct item));
  base_vec_fini(&heap, &vec);
  assert_int_equal(heap.live, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_push),
      cmocka_unit_test(test_reserve),
      cmocka_unit_test(test_failure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
