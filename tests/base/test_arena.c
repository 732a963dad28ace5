/* tests/base/test_arena.c -- chunk sizes, own chunks, cleared memory, failures, going back, joining */
#include "base/test.h"

enum { KIB = 1024 };

static struct watch watch;
static struct base_heap heap;
static struct base_arena arena;

/* A new arena, all of whose memory is watched. */
static void begin(void) {
  watch_init(&watch, &heap);
  base_arena_init(&arena, &heap);
}

static bool is_zero(const unsigned char *at, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (at[i] != 0) return false;
  }
  return true;
}

static void test_small(void **state) {
  (void)state;
  begin();
  assert_int_equal(watch.n, 0);
  char *before = base_arena_alloc(&arena, 0);
  for (size_t n = 0; n < 300; n++) {
    char *at = base_arena_alloc(&arena, n);
    assert_non_null(at);
    assert_int_equal((uintptr_t)at % 16, 0);
    assert_true(is_zero((unsigned char *)at, n));
    size_t step = n == 0 ? 1 : n - 1;
    assert_int_equal(at - before, (BASE_MAX(step, 1) + 15) / 16 * 16);
    memset(at, 0xff, n);
    before = at;
  }
  assert_int_equal(watch.n, 1);
  assert_int_equal(watch.sizes[0], 64 * KIB);
  base_arena_fini(&arena);
  assert_int_equal(watch.live, 0);
  assert_int_equal(heap.live, 0);
  assert_non_null(base_arena_alloc(&arena, 5));
  assert_int_equal(watch.sizes[1], 64 * KIB);
  base_arena_fini(&arena);
  base_arena_fini(&arena);
  assert_int_equal(heap.live, 0);
}

/* Fills chunk after chunk with blocks of 4 KiB: every chunk is twice the one before, up to 4 MiB. */
static void test_growth(void **state) {
  (void)state;
  begin();
  while (watch.n < 10) {
    size_t n = watch.n;
    unsigned char *at = base_arena_alloc(&arena, 4 * KIB);
    assert_true(is_zero(at, 4 * KIB));
    memset(at, 0xff, 4 * KIB);
    if (n > 0 && watch.n > n) assert_true(arena.used <= 4 * KIB + 64);
  }
  size_t want = 64 * KIB;
  for (size_t i = 0; i < 10; i++) {
    assert_int_equal(watch.sizes[i], want);
    want = BASE_MIN(2 * want, 4096 * KIB);
  }
  base_arena_fini(&arena);
  assert_int_equal(heap.live, 0);
}

static void test_exact_fill(void **state) {
  (void)state;
  begin();
  base_arena_alloc(&arena, 16);
  while (64 * KIB - arena.used >= 4096) base_arena_alloc(&arena, 4096);
  char *last = base_arena_alloc(&arena, 64 * KIB - arena.used);
  assert_int_equal(watch.n, 1);
  assert_true(last < (char *)watch.blocks[0] + 64 * KIB);
  base_arena_alloc(&arena, 1);
  assert_int_equal(watch.n, 2);
  assert_int_equal(watch.sizes[1], 128 * KIB);
  base_arena_fini(&arena);
}

static void test_big(void **state) {
  (void)state;
  begin();
  char *a = base_arena_alloc(&arena, 16);
  unsigned char *big = base_arena_alloc(&arena, 1000 * KIB);
  assert_int_equal((uintptr_t)big % 16, 0);
  assert_true(is_zero(big, 1000 * KIB));
  memset(big, 0xff, 1000 * KIB);
  char *b = base_arena_alloc(&arena, 16), *c = base_arena_alloc(&arena, 16 * KIB);
  assert_ptr_equal(b, a + 16);
  assert_ptr_equal(c, b + 16);
  assert_int_equal(watch.n, 2);
  assert_in_range(watch.sizes[1], 1000 * KIB, 1000 * KIB + 64);
  base_arena_alloc(&arena, 1001 * KIB);
  assert_ptr_equal(base_arena_alloc(&arena, 1), c + 16 * KIB);
  assert_int_equal(watch.n, 3);
  base_arena_fini(&arena);
  assert_int_equal(watch.live, 0);
  assert_int_equal(heap.live, 0);
}

/* What does not fit the current chunk shares a new one up to a quarter of it. */
static void test_share(void **state) {
  (void)state;
  for (size_t extra = 0; extra <= 1; extra++) {
    begin();
    assert_non_null(base_arena_alloc(&arena, 16 * KIB + extra));
    if (extra == 0) assert_int_equal(watch.sizes[0], 64 * KIB);
    if (extra == 1) assert_in_range(watch.sizes[0], 16 * KIB + 16, 16 * KIB + 80);
    assert_non_null(base_arena_alloc(&arena, 16));
    assert_int_equal(watch.n, 1 + extra);
    assert_int_equal(watch.sizes[extra], 64 * KIB);
    base_arena_fini(&arena);
    assert_int_equal(heap.live, 0);
  }
}

static void test_copy(void **state) {
  (void)state;
  begin();
  int numbers[5] = {1, -2, 3, -4, 5};
  int *copy = base_arena_copy(&arena, numbers, sizeof numbers);
  assert_memory_equal(copy, numbers, sizeof numbers);
  assert_ptr_not_equal(copy, numbers);
  assert_non_null(base_arena_copy(&arena, NULL, 0));
  char *fill = base_arena_alloc(&arena, 64);
  memset(fill, 0xff, 64);
  assert_string_equal(base_arena_string(&arena, "quern stones", 5), "quern");
  assert_string_equal(base_arena_string(&arena, NULL, 0), "");
  assert_string_equal(base_arena_string(&arena, "quern", 1), "q");
  assert_memory_equal(base_arena_copy(&arena, "quern", 1), "q", 1);
  char *s16 = base_arena_string(&arena, "0123456789abcdef", 16), *next = base_arena_alloc(&arena, 1);
  assert_string_equal(s16, "0123456789abcdef");
  assert_true(next >= s16 + 17);
  char *s15 = base_arena_string(&arena, "0123456789abcde", 15);
  assert_ptr_equal(base_arena_alloc(&arena, 1), s15 + 16);
  int *one = base_arena_new(&arena, int);
  assert_int_equal(*one, 0);
  base_arena_fini(&arena);
  assert_int_equal(heap.live, 0);
}

static void test_failure(void **state) {
  (void)state;
  base_heap_init(&heap, NULL);
  base_arena_init(&arena, &heap);
  static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 64, SIZE_MAX / 2};
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    base_error(QUERN_STATUS_INTERNAL, "earlier");
    assert_null(base_arena_alloc(&arena, sizes[i]));
    assert_int_equal(quern_last_status(), QUERN_STATUS_MEMORY);
  }
  assert_null(base_arena_string(&arena, "x", SIZE_MAX));
  base_arena_fini(&arena);

  uint64_t fail_at = 1;
  for (bool done = false; !done; fail_at++) {
    base_heap_init(&heap, NULL);
    heap.fail_at = fail_at;
    base_arena_init(&arena, &heap);
    bool a = base_arena_alloc(&arena, 100), b = base_arena_alloc(&arena, 200 * KIB);
    bool c = base_arena_copy(&arena, "abc", 3), d = base_arena_string(&arena, "abc", 3);
    bool e = base_arena_alloc(&arena, 70 * KIB);
    done = a && b && c && d && e;
    assert_int_equal(a, fail_at > 1);
    assert_int_equal(b, fail_at > 2);
    assert_int_equal(c, fail_at > 1);
    assert_int_equal(e, fail_at > 3);
    base_arena_fini(&arena);
    assert_int_equal(heap.live, 0);
  }
  assert_int_equal(fail_at, 5);
}

/* What an arena has allocated at a moment, and its bytes. */
struct moment {
  struct base_arena_mark mark;
  size_t live, used;
};

static struct moment moment_now(void) { return (struct moment){base_arena_mark(&arena), heap.live, arena.used}; }

static void expect_moment(const struct moment *then) {
  assert_int_equal(heap.live, then->live);
  assert_int_equal(arena.used, then->used);
  assert_ptr_equal(arena.chunks, then->mark.newest);
}

/* Allocations of all kinds, from a seed: small ones, such as make new chunks, such as have their own. */
static void allocate(int n, uint64_t seed) {
  for (int i = 0; i < n; i++) {
    uint64_t r = base_hash_u64(seed, (uint64_t)i);
    size_t bytes = r % 16 == 0 ? 20 * KIB + r % 100000 : r % 4 == 0 ? 3 * KIB : r % 100;
    unsigned char *at = base_arena_alloc(&arena, bytes);
    assert_true(is_zero(at, bytes));
    memset(at, 0xff, bytes);
  }
}

static void test_rewind(void **state) {
  (void)state;
  for (int before = 0; before < 40; before++) {
    base_heap_init(&heap, &memory_allocator);
    base_arena_init(&arena, &heap);
    allocate(before, 7);
    struct moment outer = moment_now();
    char *kept = before > 0 ? base_arena_string(&arena, "kept", 4) : NULL;
    struct moment inner = moment_now();
    for (int turn = 0; turn < 3; turn++) {
      for (int n = 0; n < 60; n += 7) {
        allocate(n, (uint64_t)n);
        base_arena_rewind(&arena, inner.mark);
        expect_moment(&inner);
      }
    }
    if (kept != NULL) assert_string_equal(kept, "kept");
    base_arena_rewind(&arena, outer.mark);
    expect_moment(&outer);
    base_arena_fini(&arena);
    assert_int_equal(memory_live, 0);
  }
}

/* Everything of both is there, and going back to before frees what was joined. */
static void test_join(void **state) {
  (void)state;
  for (int n = 0; n < 32; n++) {
    struct base_arena side;
    base_heap_init(&heap, &memory_allocator);
    base_arena_init(&arena, &heap);
    base_arena_init(&side, &heap);
    if ((n & 1) != 0) allocate(5, 1);
    struct moment then = moment_now();
    if ((n & 2) != 0) allocate(30, 2);
    char *text = (n & 4) != 0 ? base_arena_string(&side, "text", 4) : NULL;
    char *big = (n & 8) != 0 ? base_arena_alloc(&side, 500 * KIB) : NULL;
    size_t live = heap.live;
    base_arena_join(&arena, &side);
    assert_null(side.chunks);
    assert_int_equal(side.used, 0);
    base_arena_fini(&side);
    assert_int_equal(heap.live, live);
    if ((n & 16) != 0) allocate(30, 3);
    if (text != NULL) assert_string_equal(text, "text");
    if (big != NULL) assert_true(is_zero((unsigned char *)big, 500 * KIB));
    base_arena_rewind(&arena, then.mark);
    expect_moment(&then);
    base_arena_fini(&arena);
    assert_int_equal(memory_live, 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_small),   cmocka_unit_test(test_growth), cmocka_unit_test(test_exact_fill),
      cmocka_unit_test(test_big),     cmocka_unit_test(test_share),  cmocka_unit_test(test_copy),
      cmocka_unit_test(test_failure), cmocka_unit_test(test_rewind), cmocka_unit_test(test_join),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
