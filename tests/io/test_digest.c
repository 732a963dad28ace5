/* tests/io/test_digest.c -- digests: those of the xxHash library, however the bytes are cut */
#include "io/io.h"
#include "unit.h"

static unsigned char bytes[1000];

static void known(void **state) {
  (void)state;
  static const struct {
    size_t n;
    uint64_t digest;
  } rows[] = {{31, UINT64_C(0x0f187c62b1e722b7)},
              {32, UINT64_C(0x91b0cb0931a8c629)},
              {101, UINT64_C(0x42312f4d55d9bd17)},
              {1000, UINT64_C(0x25275608a9cfc168)}};
  assert_true(io_digest_of("", 0) == UINT64_C(0xef46db3751d8e999));
  assert_true(io_digest_of("a", 1) == UINT64_C(0xd24ec4f1a98c6e5b));
  assert_true(io_digest_of("abc", 3) == UINT64_C(0x44bc2cf5ad770999));
  for (size_t i = 0; i < BASE_COUNT(rows); i++) assert_true(io_digest_of(bytes, rows[i].n) == rows[i].digest);
}

/* Calls of every length up to two stripes give what one call gives. */
static void cut(void **state) {
  (void)state;
  for (size_t n = 0; n < 200; n++) {
    uint64_t whole = io_digest_of(bytes, n);
    for (size_t step = 1; step < 70; step++) {
      struct io_digest digest;
      io_digest_init(&digest);
      for (size_t at = 0; at < n; at += step) io_digest_add(&digest, bytes + at, BASE_MIN(step, n - at));
      assert_true(io_digest_get(&digest) == whole);
    }
  }
}

/* Every bit counts, and so does the length. */
static void bits(void **state) {
  (void)state;
  for (size_t n = 1; n < 100; n++) {
    uint64_t whole = io_digest_of(bytes, n);
    assert_true(io_digest_of(bytes, n - 1) != whole);
    for (size_t bit = 0; bit < 8 * n; bit++) {
      bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
      assert_true(io_digest_of(bytes, n) != whole);
      bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
  }
}

static int fill(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 7);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(known), cmocka_unit_test(cut), cmocka_unit_test(bits)};
  return cmocka_run_group_tests(tests, fill, NULL);
}
