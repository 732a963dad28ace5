/* tests/base/test_convert.c -- conversions between all dtypes: one rounding, saturation, wrapping, arguments
 */
#include "base/test.h"

#include <math.h>

static const quern_dtype floats[] = {QUERN_DTYPE_F64,  QUERN_DTYPE_F32,    QUERN_DTYPE_F16,
                                     QUERN_DTYPE_BF16, QUERN_DTYPE_F8E4M3, QUERN_DTYPE_F8E5M2};

/* An integer rounded once to a format of `digits` bits, in integer arithmetic. */
static double rounded_integer(uint64_t magnitude, int digits) {
  int shift = 0;
  while (digits + shift < 64 && magnitude >> (digits + shift)) shift++;
  if (shift == 0) return (double)magnitude;
  uint64_t kept = magnitude >> shift, half = UINT64_C(1) << (shift - 1), rest = magnitude - (kept << shift);
  if (rest > half || (rest == half && (kept & 1))) kept++;
  return ldexp((double)kept, shift);
}

static void check_int_to_float(quern_dtype src, uint64_t x) {
  static const int digits[] = {53, 24, 11, 8, 4, 3};
  static const double largest[] = {INFINITY, INFINITY, 65504, INFINITY, 448, 57344};
  bool negative = src == QUERN_DTYPE_I64 && x >> 63;
  for (size_t f = 0; f < BASE_COUNT(floats); f++) {
    uint64_t out = 0;
    base_convert(floats[f], &out, 0, src, &x, 0);
    double got = base_load_float(floats[f], &out, 0), want = rounded_integer(negative ? 0 - x : x, digits[f]);
    if (want > largest[f]) want = floats[f] == QUERN_DTYPE_F8E4M3 ? (double)NAN : (double)INFINITY;
    if (negative) want = -want;
    if (!(got == want || (isnan(got) && isnan(want)))) {
      fail_msg("%s %#llx to %s is %a, want %a", quern_dtype_name(src), (unsigned long long)x,
               quern_dtype_name(floats[f]), got, want);
    }
  }
}

static void test_int_to_float(void **state) {
  (void)state;
  static const int digits[] = {53, 24, 11, 8, 4, 3};
  for (int top = 0; top < 64; top++) {
    uint64_t base = UINT64_C(1) << top;
    for (uint64_t d = 0; d < 5; d++) {
      const uint64_t around[] = {base + d, base - d, base + base / 2 + d, base + base / 2 - d};
      for (size_t i = 0; i < 4; i++) {
        check_int_to_float(QUERN_DTYPE_U64, around[i]);
        check_int_to_float(QUERN_DTYPE_I64, around[i]);
        check_int_to_float(QUERN_DTYPE_I64, 0 - around[i]);
      }
    }
    /* Just beside the middle of two neighbors of each format: where rounding to double first would go wrong.
     */
    for (size_t f = 0; f < BASE_COUNT(digits); f++) {
      if (top < digits[f]) continue;
      uint64_t half = UINT64_C(1) << (top - digits[f]);
      for (uint64_t odd = 0; odd < 2; odd++) {
        uint64_t middle = base + odd * 2 * half + half;
        for (int64_t d = -1; d <= 1; d++) {
          check_int_to_float(QUERN_DTYPE_U64, middle + (uint64_t)d);
          check_int_to_float(QUERN_DTYPE_I64, middle + (uint64_t)d);
          check_int_to_float(QUERN_DTYPE_I64, 0 - (middle + (uint64_t)d));
        }
      }
    }
  }
  for (uint64_t i = 0; i < 20000; i++) {
    uint64_t x = (uint64_t)base_random_bits(1, 2, 3, i) << 32 | base_random_bits(1, 2, 4, i);
    x >>= base_random_bits(1, 2, 5, i) % 64;
    check_int_to_float(QUERN_DTYPE_U64, x);
    check_int_to_float(QUERN_DTYPE_I64, x);
    check_int_to_float(QUERN_DTYPE_I64, 0 - x);
  }
}

/* The classic: to double it ties down to the even neighbor, which is then exactly halfway for f32. */
static void test_double_rounding(void **state) {
  (void)state;
  const int64_t x = (INT64_C(1) << 62) + (INT64_C(1) << 38) + 1;
  float y;
  base_convert(QUERN_DTYPE_F32, &y, 0, QUERN_DTYPE_I64, &x, 0);
  assert_true(y == 0x1.000002p62f);
  assert_true((float)(double)x == 0x1p62f);
}

static void test_float_to_int(void **state) {
  (void)state;
  static const struct {
    quern_dtype dtype;
    uint64_t least, most; /* of 64 bits, sign-extended */
    int bits;
    bool is_signed;
  } types[] = {
      {QUERN_DTYPE_I8, (uint64_t)INT8_MIN, INT8_MAX, 7, true},
      {QUERN_DTYPE_I16, (uint64_t)INT16_MIN, INT16_MAX, 15, true},
      {QUERN_DTYPE_I32, (uint64_t)INT32_MIN, INT32_MAX, 31, true},
      {QUERN_DTYPE_I64, (uint64_t)INT64_MIN, INT64_MAX, 63, true},
      {QUERN_DTYPE_U8, 0, UINT8_MAX, 8, false},
      {QUERN_DTYPE_U16, 0, UINT16_MAX, 16, false},
      {QUERN_DTYPE_U32, 0, UINT32_MAX, 32, false},
      {QUERN_DTYPE_U64, 0, UINT64_MAX, 64, false},
  };
  for (size_t t = 0; t < BASE_COUNT(types); t++) {
    double end = ldexp(1, types[t].bits), below = nextafter(end, 0), start = types[t].is_signed ? -end : 0;
    uint64_t inner = types[t].bits < 53 ? types[t].most : (uint64_t)below;
    bool is_signed = types[t].is_signed;
    const struct {
      double x;
      uint64_t want;
    } cases[] = {
        {0, 0},
        {-0.0, 0},
        {0.9, 0},
        {-0.9, 0},
        {1, 1},
        {1.999, 1},
        {99.5, 99},
        {-1, is_signed ? UINT64_MAX : 0},
        {-1.999, is_signed ? UINT64_MAX : 0},
        {-99.5, is_signed ? (uint64_t)-99 : 0},
        {end, types[t].most},
        {below, inner},
        {end + 1, types[t].most},
        {2 * end, types[t].most},
        {4 * end, types[t].most},
        {start, types[t].least},
        {start - 0.5, types[t].least},
        {start - 1, types[t].least},
        {2 * start - 3, types[t].least},
        {1e300, types[t].most},
        {-1e300, types[t].least},
        {INFINITY, types[t].most},
        {-INFINITY, types[t].least},
        {NAN, 0},
        {-NAN, 0},
        {5e-324, 0},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
      uint64_t out = 0;
      base_convert(types[t].dtype, &out, 0, QUERN_DTYPE_F64, &cases[i].x, 0);
      uint64_t got = base_load_int(types[t].dtype, &out, 0);
      if (got != cases[i].want) {
        fail_msg("%a to %s is %#llx", cases[i].x, quern_dtype_name(types[t].dtype), (unsigned long long)got);
      }
    }
    if (types[t].bits < 53) { /* the limits themselves and their neighbors inside */
      double most = end - 1;
      uint64_t out = 0;
      base_convert(types[t].dtype, &out, 0, QUERN_DTYPE_F64, &most, 0);
      assert_true(base_load_int(types[t].dtype, &out, 0) == types[t].most);
      most -= 1;
      base_convert(types[t].dtype, &out, 0, QUERN_DTYPE_F64, &most, 0);
      assert_true(base_load_int(types[t].dtype, &out, 0) == types[t].most - 1);
      double least = start + 1;
      base_convert(types[t].dtype, &out, 0, QUERN_DTYPE_F64, &least, 0);
      assert_true(base_load_int(types[t].dtype, &out, 0) == types[t].least + 1);
    }
  }
  float big = 3e9f;
  int32_t i32;
  uint32_t u32;
  base_convert(QUERN_DTYPE_I32, &i32, 0, QUERN_DTYPE_F32, &big, 0);
  base_convert(QUERN_DTYPE_U32, &u32, 0, QUERN_DTYPE_F32, &big, 0);
  assert_int_equal(i32, INT32_MAX);
  assert_int_equal(u32, 3000000000u);
}

static void test_int_to_int(void **state) {
  (void)state;
  const int64_t x = INT64_C(-0x123456789abcdef1);
  int8_t i8;
  uint8_t u8, flag;
  uint16_t u16;
  int32_t i32;
  uint64_t u64;
  base_convert(QUERN_DTYPE_I8, &i8, 0, QUERN_DTYPE_I64, &x, 0);
  base_convert(QUERN_DTYPE_U8, &u8, 0, QUERN_DTYPE_I64, &x, 0);
  base_convert(QUERN_DTYPE_U16, &u16, 0, QUERN_DTYPE_I64, &x, 0);
  base_convert(QUERN_DTYPE_I32, &i32, 0, QUERN_DTYPE_I64, &x, 0);
  base_convert(QUERN_DTYPE_U64, &u64, 0, QUERN_DTYPE_I64, &x, 0);
  base_convert(QUERN_DTYPE_BOOL, &flag, 0, QUERN_DTYPE_I64, &x, 0);
  assert_int_equal(i8, 0x0f);
  assert_int_equal(u8, 0x0f);
  assert_int_equal(u16, 0x210f);
  assert_int_equal(i32, 0x6543210f);
  assert_true(u64 == (uint64_t)x);
  assert_int_equal(flag, 1);
  i8 = -1;
  base_convert(QUERN_DTYPE_U64, &u64, 0, QUERN_DTYPE_I8, &i8, 0);
  base_convert(QUERN_DTYPE_U16, &u16, 0, QUERN_DTYPE_I8, &i8, 0);
  assert_true(u64 == UINT64_MAX);
  assert_int_equal(u16, 0xffff);
  u8 = 200;
  base_convert(QUERN_DTYPE_I8, &i8, 0, QUERN_DTYPE_U8, &u8, 0);
  base_convert(QUERN_DTYPE_I32, &i32, 0, QUERN_DTYPE_U8, &u8, 0);
  assert_int_equal(i8, -56);
  assert_int_equal(i32, 200);
  const uint32_t high = 0x100;
  base_convert(QUERN_DTYPE_BOOL, &flag, 0, QUERN_DTYPE_U32, &high, 0);
  assert_int_equal(flag, 1);
}

static void test_to_bool(void **state) {
  (void)state;
  static const struct {
    double x;
    uint8_t want;
  } cases[] = {{0, 0}, {-0.0, 0}, {5e-324, 1}, {-0.25, 1}, {3, 1}, {256, 1}, {INFINITY, 1}, {NAN, 1}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    uint8_t flag = 9;
    base_convert(QUERN_DTYPE_BOOL, &flag, 0, QUERN_DTYPE_F64, &cases[i].x, 0);
    assert_int_equal(flag, cases[i].want);
  }
}

/* Numbers that every dtype but bool holds go through every pair of dtypes unharmed, at any index. */
static void test_all_pairs(void **state) {
  (void)state;
  static const int numbers[] = {0, 1, 2, 3, 7, 12, 96, -1, -2, -3, -7, -128};
  for (int s = 0; s < QUERN_DTYPE_COUNT; s++) {
    for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
      quern_dtype from = (quern_dtype)s, to = (quern_dtype)d;
      for (size_t i = 0; i < BASE_COUNT(numbers); i++) {
        bool no_sign = base_dtype_is(from, BASE_UNSIGNED) || base_dtype_is(to, BASE_UNSIGNED);
        bool is_bool = from == QUERN_DTYPE_BOOL || to == QUERN_DTYPE_BOOL;
        if (numbers[i] < 0 && (no_sign || is_bool)) continue;
        double double_in = numbers[i], want = is_bool ? numbers[i] != 0 : numbers[i];
        uint64_t src[4] = {0}, dst[4] = {0};
        double out[4] = {0};
        base_convert(from, src, 2, QUERN_DTYPE_F64, &double_in, 0);
        base_convert(to, dst, 3, from, src, 2);
        base_convert(QUERN_DTYPE_F64, out, 1, to, dst, 3);
        if (out[1] != want) {
          fail_msg("%d from %s to %s is %g", numbers[i], quern_dtype_name(from), quern_dtype_name(to), out[1]);
        }
      }
    }
  }
}

static void test_float_to_float(void **state) {
  (void)state;
  float x = 0x1.004001p0f; /* to f16 directly: above the middle, up */
  uint16_t half;
  base_convert(QUERN_DTYPE_F16, &half, 0, QUERN_DTYPE_F32, &x, 0);
  assert_int_equal(half, 0x3c01);
  uint32_t noisy = 0xff812345;
  float y;
  uint32_t bits;
  base_convert(QUERN_DTYPE_F32, &y, 0, QUERN_DTYPE_F32, &noisy, 0);
  memcpy(&bits, &y, 4);
  assert_int_equal(bits, 0x7fc00000);
}

static void test_array(void **state) {
  (void)state;
  const float src[4] = {1.5f, -2, 300, NAN};
  int8_t dst[6] = {9, 9, 9, 9, 9, 9};
  assert_int_equal(quern_dtype_convert(dst + 1, QUERN_DTYPE_I8, src, QUERN_DTYPE_F32, 4), QUERN_STATUS_OK);
  const int8_t want[6] = {9, 1, -2, 127, 0, 9};
  assert_memory_equal(dst, want, sizeof dst);

  uint32_t both[3];
  memcpy(both, src, sizeof both);
  assert_int_equal(quern_dtype_convert(both, QUERN_DTYPE_U32, both, QUERN_DTYPE_F32, 3), QUERN_STATUS_OK);
  assert_int_equal(both[0], 1);
  assert_int_equal(both[1], 0);
  assert_int_equal(both[2], 300);
}

static void test_arguments(void **state) {
  (void)state;
  _Alignas(8) unsigned char data[64] = {0};
  const quern_dtype f32 = QUERN_DTYPE_F32, i8 = QUERN_DTYPE_I8, i16 = QUERN_DTYPE_I16;
  assert_int_equal(quern_dtype_convert(data, QUERN_DTYPE_COUNT, data, f32, 1), QUERN_STATUS_DTYPE);
  assert_int_equal(quern_dtype_convert(data, f32, data, (quern_dtype)-1, 1), QUERN_STATUS_DTYPE);
  assert_int_equal(quern_dtype_convert(NULL, f32, data, f32, 1), QUERN_STATUS_INVALID);
  assert_non_null(strstr(quern_last_error(), "dst"));
  assert_int_equal(quern_dtype_convert(data, f32, NULL, f32, 1), QUERN_STATUS_INVALID);
  assert_non_null(strstr(quern_last_error(), "src"));
  assert_int_equal(quern_dtype_convert(NULL, f32, NULL, f32, 0), QUERN_STATUS_OK);
  assert_int_equal(quern_dtype_convert(data, f32, data, i8, SIZE_MAX / 4 + 1), QUERN_STATUS_OVERFLOW);
  assert_int_equal(quern_dtype_convert(data, i8, data, f32, SIZE_MAX / 4 + 1), QUERN_STATUS_OVERFLOW);
  /* 4 elements: i16 at 16..23, i8 around it */
  static const struct {
    size_t at;
    quern_status want;
  } cases[] = {{11, QUERN_STATUS_OK},      {12, QUERN_STATUS_OK},      {13, QUERN_STATUS_INVALID},
               {15, QUERN_STATUS_INVALID}, {16, QUERN_STATUS_INVALID}, {20, QUERN_STATUS_INVALID},
               {23, QUERN_STATUS_INVALID}, {24, QUERN_STATUS_OK}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    assert_int_equal(quern_dtype_convert(data + cases[i].at, i8, data + 16, i16, 4), cases[i].want);
    assert_int_equal(quern_dtype_convert(data + 16, i16, data + cases[i].at, i8, 4), cases[i].want);
  }
  assert_int_equal(quern_dtype_convert(data + 1, i8, data, i8, 2), QUERN_STATUS_INVALID);
  assert_int_equal(quern_dtype_convert(data, i8, data, i8, 2), QUERN_STATUS_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_int_to_float),   cmocka_unit_test(test_double_rounding),
      cmocka_unit_test(test_float_to_int),   cmocka_unit_test(test_int_to_int),
      cmocka_unit_test(test_to_bool),        cmocka_unit_test(test_all_pairs),
      cmocka_unit_test(test_float_to_float), cmocka_unit_test(test_array),
      cmocka_unit_test(test_arguments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
