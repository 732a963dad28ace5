/* tests/base/test_struct.c -- structs that callers have in other sizes: taken, given, refused */
#include "unit.h"

#include "base/base.h"

/* What the library knows. */
struct known {
  size_t size;
  int64_t a, b;
};
/* What older and newer callers have. */
struct older {
  size_t size;
  int64_t a;
};
struct newer {
  size_t size;
  int64_t a, b, c;
};

static void taken(void **state) {
  (void)state;
  struct known own;
  EXPECT_OK(base_take(struct known, &own, NULL, "f"));
  assert_true(own.size == sizeof own && own.a == 0 && own.b == 0);
  const struct known same = {sizeof same, 1, 2};
  EXPECT_OK(base_take(struct known, &own, &same, "f"));
  assert_true(own.size == sizeof own && own.a == 1 && own.b == 2);
  const struct {
    struct older it;
    int64_t behind;
  } small = {{sizeof small.it, 3}, 99};
  EXPECT_OK(base_take(struct known, &own, &small, "f"));
  assert_true(own.size == sizeof own && own.a == 3 && own.b == 0); /* what lies behind is not looked at */
  struct newer large = {sizeof large, 4, 5, 0};
  EXPECT_OK(base_take(struct known, &own, &large, "f"));
  assert_true(own.size == sizeof own && own.a == 4 && own.b == 5);
  ((unsigned char *)&large)[sizeof large - 1] = 1;
  EXPECT_ERROR(base_take(struct known, &own, &large, "f"), INVALID,
               "f: struct known has 32 bytes, this version of Quern knows 24, and byte 31 is not zero");
}

static void sizes_that_are_none(void **state) {
  (void)state;
  static const size_t sizes[] = {0, 1, sizeof(size_t) - 1, BASE_STRUCT_MOST + 1, (size_t)-1, 0xa5a5a5a5};
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    struct known own, caller = {sizes[i], 7, 8};
    EXPECT_ERROR(base_take(struct known, &own, &caller, "f"), INVALID, "HINT: start from QUERN_INIT(struct known)");
    EXPECT_ERROR(base_give(struct known, &caller, &own, "f"), INVALID, "f: struct known has a size of");
    assert_true(caller.size == sizes[i] && caller.a == 7 && caller.b == 8);
  }
}

static void given(void **state) {
  (void)state;
  const struct known own = {sizeof own, 1, 2};
  struct {
    struct older it;
    int64_t behind;
  } small = {{sizeof small.it, 0}, 99};
  EXPECT_OK(base_give(struct known, &small.it, &own, "f"));
  assert_true(small.it.size == sizeof small.it && small.it.a == 1 && small.behind == 99);
  struct newer large = {sizeof large, 9, 9, 9};
  EXPECT_OK(base_give(struct known, &large, &own, "f"));
  assert_true(large.size == sizeof large && large.a == 1 && large.b == 2 && large.c == 0);
  size_t only = sizeof only; /* a struct of nothing but its size */
  EXPECT_OK(base_give(struct known, &only, &own, "f"));
  assert_int_equal(only, sizeof only);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(taken), TEST(sizes_that_are_none), TEST(given)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
