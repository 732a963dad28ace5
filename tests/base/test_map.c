/* tests/base/test_map.c -- the hash map and the hashes */
#include "base/test.h"

struct entry {
  uint64_t hash;
  int key;
};

static bool equal(const void *item, const void *key) { return ((const struct entry *)item)->key == *(const int *)key; }

static void *find(const struct base_map *map, uint64_t hash, int key) { return base_map_find(map, hash, equal, &key); }

static void test_empty(void **state) {
  (void)state;
  struct base_heap heap;
  struct base_map map;
  base_heap_init(&heap, NULL);
  base_map_init(&map, &heap);
  assert_null(find(&map, 0, 0));
  base_map_fini(&map);
  assert_int_equal(heap.count, 0);
}

/* Many items under good hashes, bad hashes (few values, so long runs) and hashes that wrap around the end. */
static void test_find(void **state) {
  (void)state;
  enum { N = 3000 };
  static struct entry entries[N];
  for (int kind = 0; kind < 4; kind++) {
    struct base_heap heap;
    struct base_map map;
    base_heap_init(&heap, NULL);
    base_map_init(&map, &heap);
    size_t n = kind == 0 ? N : 300;
    for (size_t i = 0; i < n; i++) {
      uint64_t hash = kind == 0   ? base_hash_u64(BASE_HASH_SEED, i)
                      : kind == 1 ? i % 3
                      : kind == 2 ? UINT64_MAX - i % 2
                                  : (uint64_t)i << 40;
      entries[i] = (struct entry){hash, (int)i};
      assert_null(find(&map, hash, (int)i));
      assert_true(base_map_add(&map, hash, &entries[i]));
      assert_int_equal(map.n, i + 1);
      assert_true(map.n <= map.cap / 4 * 3);
      assert_int_equal(map.cap & (map.cap - 1), 0);
      assert_int_equal(heap.live, map.cap * sizeof *map.slots);
    }
    for (size_t i = 0; i < n; i++) {
      assert_ptr_equal(find(&map, entries[i].hash, (int)i), &entries[i]);
      assert_null(find(&map, entries[i].hash, (int)(i + n)));
      assert_null(find(&map, entries[i].hash ^ UINT64_C(0x123400000000), (int)i));
    }
    base_map_fini(&map);
    assert_int_equal(map.n, 0);
    assert_int_equal(map.cap, 0);
    assert_int_equal(heap.live, 0);
    assert_null(find(&map, 0, 0));
  }
}

/* Items leave in some order, under good hashes and under bad ones; the others are found, and as many fit again
** without memory. */
static void test_remove(void **state) {
  (void)state;
  enum { N = 192 }; /* as many as a map of 256 slots holds */
  static struct entry entries[N];
  for (int kind = 0; kind < 4; kind++) {
    struct base_heap heap;
    struct base_map map;
    base_heap_init(&heap, NULL);
    base_map_init(&map, &heap);
    for (size_t i = 0; i < N; i++) {
      uint64_t hash = kind == 0   ? base_hash_u64(BASE_HASH_SEED, i)
                      : kind == 1 ? i % 3
                      : kind == 2 ? UINT64_MAX - i % 7
                                  : i / 2;
      entries[i] = (struct entry){hash, (int)i};
      assert_true(base_map_add(&map, hash, &entries[i]));
    }
    assert_int_equal(map.cap, 256);
    bool there[N];
    memset(there, true, sizeof there);
    for (size_t k = 0; k < N; k++) {
      size_t leaves = (k * 55 + 5) % N; /* each once */
      base_map_remove(&map, entries[leaves].hash, &entries[leaves]);
      there[leaves] = false;
      assert_int_equal(map.n, N - 1 - k);
      for (size_t i = 0; i < N; i++) {
        const struct entry *found = find(&map, entries[i].hash, (int)i);
        assert_ptr_equal(found, there[i] ? &entries[i] : NULL);
      }
    }
    heap.fail_at = 1;
    for (size_t i = 0; i < N; i++) assert_true(base_map_add(&map, entries[i].hash, &entries[i]));
    base_map_fini(&map);
    assert_int_equal(heap.live, 0);
  }
}

static void test_growth(void **state) {
  (void)state;
  struct base_heap heap;
  struct base_map map;
  struct entry entries[49];
  base_heap_init(&heap, NULL);
  base_map_init(&map, &heap);
  for (int i = 0; i < 49; i++) {
    entries[i] = (struct entry){(uint64_t)i, i};
    assert_true(base_map_add(&map, (uint64_t)i, &entries[i]));
    assert_int_equal(map.cap, i < 12 ? 16 : i < 24 ? 32 : i < 48 ? 64 : 128);
  }
  assert_int_equal(heap.count, 4);
  base_map_fini(&map);
}

static void test_failure(void **state) {
  (void)state;
  struct entry entries[100];
  for (uint64_t fail_at = 1; fail_at <= 4; fail_at++) {
    struct base_heap heap;
    struct base_map map;
    base_heap_init(&heap, NULL);
    heap.fail_at = fail_at;
    base_map_init(&map, &heap);
    int n = 0;
    for (; n < 100; n++) {
      entries[n] = (struct entry){(uint64_t)n * 77, n};
      if (!base_map_add(&map, entries[n].hash, &entries[n])) break;
    }
    assert_int_equal(n, fail_at == 1 ? 0 : 6 << (fail_at - 1));
    assert_int_equal(quern_last_status(), QUERN_STATUS_MEMORY);
    assert_int_equal(map.n, n);
    for (int i = 0; i < n; i++) assert_ptr_equal(find(&map, entries[i].hash, i), &entries[i]);
    assert_null(find(&map, (uint64_t)n * 77, n));
    heap.fail_at = 0;
    assert_true(base_map_add(&map, (uint64_t)n * 77, &entries[n]));
    assert_ptr_equal(find(&map, (uint64_t)n * 77, n), &entries[n]);
    base_map_fini(&map);
    assert_int_equal(heap.live, 0);
  }
}

/* Computed independently from the definition: SplitMix64's first output for seed 0 is the first line. */
static void test_hash_values(void **state) {
  (void)state;
  const uint64_t seed = BASE_HASH_SEED;
  assert_true(base_hash_u64(0, 0) == UINT64_C(0xe220a8397b1dcdaf));
  assert_true(base_hash_u64(seed, 0) == UINT64_C(0x2cb0f69f4abea221));
  assert_true(base_hash_u64(seed, 1) == UINT64_C(0xedcc99d7f7403620));
  assert_true(base_hash_u64(base_hash_u64(seed, 1), 2) == UINT64_C(0xc7d360a7e6ccd4b8));
  assert_true(base_hash_u64(base_hash_u64(seed, 2), 1) == UINT64_C(0x09a538f355d4488f));
  assert_true(base_hash_string(seed, "") == UINT64_C(0x2cb0f69f4abea221));
  assert_true(base_hash_string(seed, "a") == UINT64_C(0xa20208f875918427));
  assert_true(base_hash_string(seed, "abcdefg") == UINT64_C(0xe8b57811ec8c0ed2));
  assert_true(base_hash_string(seed, "abcdefgh") == UINT64_C(0xad09d0cdde70b95a));
  assert_true(base_hash_string(seed, "abcdefghi") == UINT64_C(0x21d158ca3de389d7));
  assert_true(base_hash_bytes(seed, "\0\x80\xff", 3) == UINT64_C(0x38c0f3f617c63473));
  assert_true(base_hash_string(seed, "the quick brown fox") == UINT64_C(0x5bfc82a4b185968c));
  assert_true(base_hash_bytes(seed, "the quick brown fox", 19) == UINT64_C(0x5bfc82a4b185968c));
  assert_true(base_hash_bytes(seed, "a", 1) != base_hash_bytes(seed, "a\0", 2));
}

/* Small consecutive words fall evenly into slots. */
static void test_hash_spread(void **state) {
  (void)state;
  static unsigned counts[1024];
  for (uint64_t i = 0; i < 64 * 1024; i++) counts[base_hash_u64(BASE_HASH_SEED, i) & 1023]++;
  for (size_t i = 0; i < 1024; i++) assert_in_range(counts[i], 24, 104);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_empty),   cmocka_unit_test(test_find),        cmocka_unit_test(test_growth),
      cmocka_unit_test(test_failure), cmocka_unit_test(test_hash_values), cmocka_unit_test(test_hash_spread),
      cmocka_unit_test(test_remove),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
