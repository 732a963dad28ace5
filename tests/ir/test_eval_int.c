/* tests/ir/test_eval_int.c -- elementwise ops on integers and bools: wrapping, floors, shifts, signs */
#include "ir/ir_test.h"

#define U(NAME, x) IR_MAKE(ctx, IR_##NAME, NULL, x)
#define B(NAME, a, b) IR_MAKE(ctx, IR_##NAME, NULL, a, b)

static void test_one_source(void **state) {
  (void)state;
  quern_tensor *x = INTS(I8, DIMS(5), 5, 0, -5, 127, -128);
  EXPECT_INTS(U(NEG, x), -5, 0, 5, -127, -128);
  EXPECT_INTS(U(ABS, x), 5, 0, 5, 127, -128);
  EXPECT_INTS(U(SIGN, x), 1, 0, -1, 1, -1);
  EXPECT_INTS(U(NOT, x), -6, -1, 4, -128, 127);
  quern_tensor *u = INTS(U16, DIMS(3), 5, 0, 65535);
  EXPECT_INTS(U(NEG, u), 65531, 0, 1);
  EXPECT_INTS(U(ABS, u), 5, 0, 65535);
  EXPECT_INTS(U(SIGN, u), 1, 0, 1);
  EXPECT_INTS(U(NOT, u), 65530, 65535, 0);
  EXPECT_INTS(U(SIGN, INTS(U64, DIMS(2), -1, INT64_MIN)), 1, 1);
  EXPECT_INTS(U(ABS, INTS(U64, DIMS(1), -1)), -1);
  EXPECT_INTS(U(ABS, INTS(I64, DIMS(2), INT64_MIN, INT64_MAX)), INT64_MIN, INT64_MAX);
  EXPECT_INTS(U(NOT, INTS(BOOL, DIMS(2), 1, 0)), 0, 1);
}

static void test_wrapping(void **state) {
  (void)state;
  quern_tensor *a = INTS(I8, DIMS(3), 127, -128, 100), *b = INTS(I8, DIMS(3), 1, 1, 3);
  EXPECT_INTS(B(ADD, a, b), -128, -127, 103);
  EXPECT_INTS(B(SUB, a, b), 126, 127, 97);
  EXPECT_INTS(B(SUB, b, a), -126, -127, -97);
  EXPECT_INTS(B(MUL, a, b), 127, -128, 44);
  EXPECT_INTS(B(ADD, INTS(U8, DIMS(2), 255, 7), INTS(U8, DIMS(2), 1, 7)), 0, 14);
  EXPECT_INTS(B(SUB, INTS(U32, DIMS(1), 0), INTS(U32, DIMS(1), 1)), 4294967295);
  EXPECT_INTS(B(MUL, INTS(I64, DIMS(1), INT64_MAX), INTS(I64, DIMS(1), 2)), -2);
  EXPECT_INTS(B(ADD, INTS(U64, DIMS(1), -1), INTS(U64, DIMS(1), 2)), 1);
}

static void test_floor_division(void **state) {
  (void)state;
  quern_tensor *a = INTS(I32, DIMS(9), 7, -7, 7, -7, 6, -6, 7, 0, -7);
  quern_tensor *b = INTS(I32, DIMS(9), 2, 2, -2, -2, 2, 2, 0, 5, 0);
  EXPECT_INTS(B(DIV, a, b), 3, -4, -4, 3, 3, -3, 0, 0, 0);
  EXPECT_INTS(B(MOD, a, b), 1, 1, -1, -1, 0, 0, 0, 0, 0);
  quern_tensor *least = INTS(I8, DIMS(2), -128, -128), *minus = INTS(I8, DIMS(2), -1, 3);
  EXPECT_INTS(B(DIV, least, minus), -128, -43);
  EXPECT_INTS(B(MOD, least, minus), 0, 1);
  quern_tensor *least64 = INTS(I64, DIMS(1), INT64_MIN), *minus64 = INTS(I64, DIMS(1), -1);
  EXPECT_INTS(B(DIV, least64, minus64), INT64_MIN);
  EXPECT_INTS(B(MOD, least64, minus64), 0);
  quern_tensor *c = INTS(U64, DIMS(3), -1, -1, 9), *d = INTS(U64, DIMS(3), 2, -1, 0);
  EXPECT_INTS(B(DIV, c, d), INT64_MAX, 1, 0);
  EXPECT_INTS(B(MOD, c, d), 1, 0, 0);
}

static void test_max_min(void **state) {
  (void)state;
  quern_tensor *a = INTS(I16, DIMS(4), -1, 5, 3, -7), *b = INTS(I16, DIMS(4), 1, 4, 3, -8);
  EXPECT_INTS(B(MAX, a, b), 1, 5, 3, -7);
  EXPECT_INTS(B(MIN, a, b), -1, 4, 3, -8);
  quern_tensor *c = INTS(U64, DIMS(2), -1, 0), *d = INTS(U64, DIMS(2), 1, 7);
  EXPECT_INTS(B(MAX, c, d), -1, 7);
  EXPECT_INTS(B(MIN, c, d), 1, 0);
  quern_tensor *p = INTS(BOOL, DIMS(4), 0, 0, 1, 1), *q = INTS(BOOL, DIMS(4), 0, 1, 0, 1);
  EXPECT_INTS(B(MAX, p, q), 0, 1, 1, 1);
  EXPECT_INTS(B(MIN, p, q), 0, 0, 0, 1);
}

static void test_bits(void **state) {
  (void)state;
  quern_tensor *a = INTS(I32, DIMS(2), 12, -1), *b = INTS(I32, DIMS(2), 10, 7);
  EXPECT_INTS(B(AND, a, b), 8, 7);
  EXPECT_INTS(B(OR, a, b), 14, -1);
  EXPECT_INTS(B(XOR, a, b), 6, -8);
  quern_tensor *p = INTS(BOOL, DIMS(4), 0, 0, 1, 1), *q = INTS(BOOL, DIMS(4), 0, 1, 0, 1);
  EXPECT_INTS(B(AND, p, q), 0, 0, 0, 1);
  EXPECT_INTS(B(OR, p, q), 0, 1, 1, 1);
  EXPECT_INTS(B(XOR, p, q), 0, 1, 1, 0);
}

static void test_shifts(void **state) {
  (void)state;
  quern_tensor *a = INTS(I8, DIMS(7), 3, 3, 3, 3, -4, -4, 64), *b = INTS(I8, DIMS(7), 1, 7, 8, -1, 1, 100, 1);
  EXPECT_INTS(B(SHL, a, b), 6, -128, 0, 0, -8, 0, -128);
  EXPECT_INTS(B(SHR, a, b), 1, 0, 0, 0, -2, -1, 32);
  quern_tensor *c = INTS(U8, DIMS(4), 200, 200, 200, 200), *d = INTS(U8, DIMS(4), 1, 7, 8, 255);
  EXPECT_INTS(B(SHL, c, d), 144, 0, 0, 0);
  EXPECT_INTS(B(SHR, c, d), 100, 1, 0, 0);
  quern_tensor *e = INTS(I64, DIMS(4), -1, INT64_MIN, INT64_MIN, 1), *f = INTS(I64, DIMS(4), 63, 63, -5, 63);
  EXPECT_INTS(B(SHR, e, f), -1, -1, -1, 0);
  EXPECT_INTS(B(SHL, e, f), INT64_MIN, 0, 0, INT64_MIN);
  EXPECT_INTS(B(SHR, INTS(U64, DIMS(2), -1, -1), INTS(U64, DIMS(2), 63, 64)), 1, 0);
}

static void test_compare(void **state) {
  (void)state;
  quern_tensor *a = INTS(I32, DIMS(4), 1, -1, 5, -2), *b = INTS(I32, DIMS(4), 2, 1, 5, -3);
  EXPECT_INTS(B(EQ, a, b), 0, 0, 1, 0);
  EXPECT_INTS(B(LT, a, b), 1, 1, 0, 0);
  EXPECT_INTS(B(LE, a, b), 1, 1, 1, 0);
  quern_tensor *c = INTS(U64, DIMS(3), -1, 1, -1), *d = INTS(U64, DIMS(3), 1, -1, -1);
  EXPECT_INTS(B(LT, c, d), 0, 1, 0);
  EXPECT_INTS(B(LE, c, d), 0, 1, 1);
  quern_tensor *e = INTS(I64, DIMS(2), INT64_MIN, INT64_MAX), *f = INTS(I64, DIMS(2), INT64_MAX, INT64_MIN);
  EXPECT_INTS(B(LT, e, f), 1, 0);
  /* Beyond 2^53 doubles would not tell them apart. */
  quern_tensor *g = INTS(I64, DIMS(2), 9007199254740993, 9007199254740992);
  EXPECT_INTS(B(EQ, g, INTS(I64, DIMS(2), 9007199254740992, 9007199254740992)), 0, 1);
  quern_tensor *p = INTS(BOOL, DIMS(4), 0, 0, 1, 1), *q = INTS(BOOL, DIMS(4), 0, 1, 0, 1);
  EXPECT_INTS(B(EQ, p, q), 1, 0, 0, 1);
  EXPECT_INTS(B(LT, p, q), 0, 1, 0, 0);
  EXPECT_INTS(B(LE, p, q), 1, 1, 0, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_one_source), TEST(test_wrapping), TEST(test_floor_division), TEST(test_max_min),
      TEST(test_bits),       TEST(test_shifts),   TEST(test_compare),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
