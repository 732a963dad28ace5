/* tests/base/test_dtype.c -- load and store of every dtype against a search among all values of the format */
#include "base/test.h"

#include <math.h>

/* The formats again, written from their definitions: the values of all non-negative finite codes, ascending,
** then what the next code would be worth, where rounding starts to overflow. */
static const struct format {
  quern_dtype dtype;
  int bits, mantissa, bias;
  uint32_t largest, overflow, nan; /* codes */
} formats[] = {
    {QUERN_DTYPE_F16, 16, 10, 15, 0x7bff, 0x7c00, 0x7e00},
    {QUERN_DTYPE_BF16, 16, 7, 127, 0x7f7f, 0x7f80, 0x7fc0},
    {QUERN_DTYPE_F8E4M3, 8, 3, 7, 0x7e, 0x7f, 0x7f},
    {QUERN_DTYPE_F8E5M2, 8, 2, 15, 0x7b, 0x7c, 0x7e},
};

static double value_of(const struct format *format, uint32_t code) {
  int exponent = (int)(code >> format->mantissa), fraction = (int)(code & ((1u << format->mantissa) - 1));
  double significand = fraction / ldexp(1, format->mantissa) + (exponent > 0);
  return ldexp(significand, (exponent > 0 ? exponent : 1) - format->bias);
}

static double table[0x8000];

static void fill_table(const struct format *format) {
  for (uint32_t code = 0; code <= format->largest + 1; code++) table[code] = value_of(format, code);
}

/* The nearest code by bisection in the table; ties to the even code. */
static uint32_t nearest_code(const struct format *format, double x) {
  uint32_t sign = signbit(x) ? 1u << (format->bits - 1) : 0, low = 0, high = format->largest + 1;
  x = fabs(x);
  if (x >= table[high]) low = high;
  while (high - low > 1 && low != high) {
    uint32_t middle = (low + high) / 2;
    if (table[middle] <= x)
      low = middle;
    else
      high = middle;
  }
  double half = (table[low] + table[high]) / 2;
  uint32_t code = x > half || (x == half && (low & 1)) ? high : low;
  if (code > format->largest) code = format->overflow;
  return code == format->nan ? code : sign | code;
}

static uint32_t load_code(const struct format *format, const void *data) {
  uint8_t x8;
  uint16_t x16;
  memcpy(&x8, data, 1);
  memcpy(&x16, data, format->bits == 16 ? 2 : 1);
  return format->bits == 16 ? x16 : x8;
}

static void store_code(const struct format *format, void *data, uint32_t code) {
  uint8_t x8 = (uint8_t)code;
  uint16_t x16 = (uint16_t)code;
  if (format->bits == 16)
    memcpy(data, &x16, 2);
  else
    memcpy(data, &x8, 1);
}

static void check_store(const struct format *format, double x) {
  unsigned char data[4];
  memset(data, 0xee, sizeof data);
  base_store_float(format->dtype, data, 0, x);
  uint32_t got = load_code(format, data), want = nearest_code(format, x);
  if (got != want) fail_msg("%s of %a is %#x, want %#x", quern_dtype_name(format->dtype), x, got, want);
  for (int i = format->bits / 8; i < 4; i++) assert_int_equal(data[i], 0xee);
}

static void test_round_trip(void **state) {
  (void)state;
  for (size_t f = 0; f < BASE_COUNT(formats); f++) {
    const struct format *format = &formats[f];
    uint32_t sign = 1u << (format->bits - 1);
    for (uint32_t code = 0; code < 2 * sign; code++) {
      unsigned char data[2], back[2];
      uint32_t magnitude = code & (sign - 1);
      store_code(format, data, code);
      double x = base_load_float(format->dtype, data, 0);
      base_store_float(format->dtype, back, 0, x);
      bool is_inf = magnitude == format->overflow && format->overflow != format->nan;
      if (magnitude <= format->largest) {
        double want = value_of(format, magnitude);
        assert_true(x == (code & sign ? -want : want));
        assert_int_equal(signbit(x) != 0, (code & sign) != 0);
        assert_int_equal(load_code(format, back), code);
      } else if (is_inf) {
        assert_true(isinf(x) && (x < 0) == ((code & sign) != 0));
        assert_int_equal(load_code(format, back), code);
      } else {
        assert_true(isnan(x));
        assert_int_equal(load_code(format, back), format->nan);
      }
    }
  }
}

static void test_rounding(void **state) {
  (void)state;
  for (size_t f = 0; f < BASE_COUNT(formats); f++) {
    const struct format *format = &formats[f];
    fill_table(format);
    for (uint32_t code = 0; code <= format->largest; code++) {
      double low = table[code], high = table[code + 1], half = (low + high) / 2;
      const double points[] = {low,
                               nextafter(low, -INFINITY),
                               nextafter(low, INFINITY),
                               half,
                               nextafter(half, 0),
                               nextafter(half, INFINITY),
                               low + (high - low) / 4,
                               low + (high - low) * 3 / 4,
                               half + (high - low) * 0x1p-30,
                               half - (high - low) * 0x1p-30};
      for (size_t i = 0; i < BASE_COUNT(points); i++) {
        check_store(format, points[i]);
        check_store(format, -points[i]);
      }
    }
    double end = table[format->largest + 1];
    const double far[] = {end,
                          nextafter(end, 0),
                          nextafter(end, INFINITY),
                          2 * end,
                          1e30,
                          1e300,
                          0x1.fffffffffffffp1023,
                          INFINITY,
                          table[1] / 2,
                          nextafter(table[1] / 2, 0),
                          nextafter(table[1] / 2, 1),
                          table[1] / 4,
                          table[1] / 3,
                          table[1] * 0x1p-40,
                          table[1] * 0x1p-70,
                          1e-300,
                          0x1p-1022,
                          0x1p-1074,
                          0x0.fffffffffffffp-1022,
                          0};
    for (size_t i = 0; i < BASE_COUNT(far); i++) {
      check_store(format, far[i]);
      check_store(format, -far[i]);
    }
    for (uint64_t i = 0; i < 100000; i++) { /* random doubles over somewhat more than the format's range */
      double x = ldexp(1 + base_random_bits(3, f, 0, i) * 0x1p-32 + base_random_bits(3, f, 1, i) * 0x1p-52,
                       (int)(base_random_bits(3, f, 2, i) % (2 * (unsigned)format->bias + 30)) - format->bias - 20);
      check_store(format, i % 2 ? x : -x);
    }
  }
}

/* Famous numbers, so that the reference above cannot be wrong in the same way. */
static void test_famous(void **state) {
  (void)state;
  static const struct {
    quern_dtype dtype;
    double x;
    uint32_t code;
  } cases[] = {
      {QUERN_DTYPE_F16, 1, 0x3c00},          {QUERN_DTYPE_F16, 65504, 0x7bff},
      {QUERN_DTYPE_F16, 65519, 0x7bff},      {QUERN_DTYPE_F16, 65520, 0x7c00},
      {QUERN_DTYPE_F16, 0x1p-24, 1},         {QUERN_DTYPE_F16, 0x1p-25, 0},
      {QUERN_DTYPE_F16, 0x1p-14, 0x400},     {QUERN_DTYPE_F16, -0.0, 0x8000},
      {QUERN_DTYPE_F16, 0.1, 0x2e66},        {QUERN_DTYPE_BF16, 1, 0x3f80},
      {QUERN_DTYPE_BF16, 3.140625, 0x4049},  {QUERN_DTYPE_BF16, -INFINITY, 0xff80},
      {QUERN_DTYPE_BF16, 3.4e38, 0x7f80},    {QUERN_DTYPE_BF16, 0x1p-133, 1},
      {QUERN_DTYPE_F8E4M3, 448, 0x7e},       {QUERN_DTYPE_F8E4M3, 464, 0x7e},
      {QUERN_DTYPE_F8E4M3, 464.001, 0x7f},   {QUERN_DTYPE_F8E4M3, -465, 0x7f},
      {QUERN_DTYPE_F8E4M3, -INFINITY, 0x7f}, {QUERN_DTYPE_F8E4M3, 0x1p-9, 1},
      {QUERN_DTYPE_F8E4M3, 0x1p-6, 8},       {QUERN_DTYPE_F8E4M3, -1, 0xb8},
      {QUERN_DTYPE_F8E4M3, -448, 0xfe},      {QUERN_DTYPE_F8E5M2, 57344, 0x7b},
      {QUERN_DTYPE_F8E5M2, 61439, 0x7b},     {QUERN_DTYPE_F8E5M2, 61440, 0x7c},
      {QUERN_DTYPE_F8E5M2, -INFINITY, 0xfc}, {QUERN_DTYPE_F8E5M2, 0x1p-16, 1},
      {QUERN_DTYPE_F8E5M2, 1, 0x3c},         {QUERN_DTYPE_F16, NAN, 0x7e00},
      {QUERN_DTYPE_BF16, -NAN, 0x7fc0},      {QUERN_DTYPE_F8E4M3, -NAN, 0x7f},
      {QUERN_DTYPE_F8E5M2, NAN, 0x7e},
  };
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    uint32_t data = 0;
    base_store_float(cases[i].dtype, &data, 0, cases[i].x);
    uint16_t code = 0;
    memcpy(&code, &data, quern_dtype_size(cases[i].dtype));
    if (code != cases[i].code) fail_msg("%s of %a is %#x", quern_dtype_name(cases[i].dtype), cases[i].x, code);
  }
}

static void test_f32_f64(void **state) {
  (void)state;
  static const struct {
    double x;
    uint32_t bits;
  } cases[] = {
      {1, 0x3f800000},
      {-0.0, 0x80000000},
      {0x1.000001p0, 0x3f800000},
      {0x1.000003p0, 0x3f800002},
      {0x1.0000010000001p0, 0x3f800001},
      {0x1.fffffep127, 0x7f7fffff},
      {0x1.ffffffp127, 0x7f800000},
      {0x1.fffffefffffffp127, 0x7f7fffff},
      {-1e300, 0xff800000},
      {0x1p-149, 1},
      {0x1p-150, 0},
      {-0x1.8p-149, 0x80000002},
      {0x1.0000000000001p-150, 1},
      {1e-300, 0},
      {INFINITY, 0x7f800000},
      {NAN, 0x7fc00000},
      {-NAN, 0x7fc00000},
  };
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    uint32_t bits[3] = {7, 7, 7};
    base_store_float(QUERN_DTYPE_F32, bits, 1, cases[i].x);
    if (bits[1] != cases[i].bits) fail_msg("f32 of %a is %#x", cases[i].x, bits[1]);
    assert_int_equal(bits[0], 7);
    assert_int_equal(bits[2], 7);
  }
  uint32_t noisy = 0xffa00001, tiny = 0x80000001;
  assert_true(isnan(base_load_float(QUERN_DTYPE_F32, &noisy, 0)));
  assert_true(base_load_float(QUERN_DTYPE_F32, &tiny, 0) == -0x1p-149);

  double numbers[3] = {1, 2, 3};
  uint64_t bits;
  assert_true(base_load_float(QUERN_DTYPE_F64, numbers, 2) == 3);
  base_store_float(QUERN_DTYPE_F64, numbers, 1, -0x1.23456789abcdep-1000);
  assert_true(numbers[0] == 1 && numbers[1] == -0x1.23456789abcdep-1000 && numbers[2] == 3);
  base_store_float(QUERN_DTYPE_F64, numbers, 1, -(double)NAN);
  memcpy(&bits, &numbers[1], 8);
  assert_true(bits == UINT64_C(0x7ff8000000000000));
}

static void test_index(void **state) {
  (void)state;
  for (size_t f = 0; f < BASE_COUNT(formats); f++) {
    quern_dtype dtype = formats[f].dtype;
    unsigned char data[16] = {0};
    for (size_t i = 0; i < 5; i++) base_store_float(dtype, data, i, (double)i - 2);
    for (size_t i = 0; i < 5; i++) assert_true(base_load_float(dtype, data, i) == (double)i - 2);
  }
}

static void test_ints(void **state) {
  (void)state;
  static const struct {
    quern_dtype dtype;
    size_t size;
    bool is_signed;
  } types[] = {
      {QUERN_DTYPE_I8, 1, true},  {QUERN_DTYPE_I16, 2, true},  {QUERN_DTYPE_I32, 4, true},  {QUERN_DTYPE_I64, 8, true},
      {QUERN_DTYPE_U8, 1, false}, {QUERN_DTYPE_U16, 2, false}, {QUERN_DTYPE_U32, 4, false}, {QUERN_DTYPE_U64, 8, false},
  };
  for (size_t t = 0; t < BASE_COUNT(types); t++) {
    size_t size = types[t].size;
    uint64_t ones = UINT64_MAX >> (64 - 8 * size), top = (ones >> 1) + 1;
    const uint64_t words[] = {0, 1, 77, top - 1, top, top + 1, ones, UINT64_C(0x8877665544332211)};
    for (size_t i = 0; i < BASE_COUNT(words); i++) {
      unsigned char data[24];
      memset(data, 0x5a, sizeof data);
      base_store_int(types[t].dtype, data, 1, words[i]);
      for (size_t j = 0; j < sizeof data; j++) {
        if (j < size || j >= 2 * size) assert_int_equal(data[j], 0x5a);
      }
      uint64_t low = words[i] & ones, want = types[t].is_signed && low >= top ? low - ones - 1 : low;
      assert_true(base_load_int(types[t].dtype, data, 1) == want);
    }
  }
  unsigned char flags[4] = {0, 1, 2, 255};
  for (size_t i = 0; i < 4; i++) assert_int_equal(base_load_int(QUERN_DTYPE_BOOL, flags, i), i > 0);
  base_store_int(QUERN_DTYPE_BOOL, flags, 3, UINT64_C(1) << 40);
  base_store_int(QUERN_DTYPE_BOOL, flags, 2, 0);
  assert_int_equal(flags[3], 1);
  assert_int_equal(flags[2], 0);
}

static void test_table(void **state) {
  (void)state;
  static const struct {
    const char *name;
    size_t size;
    enum base_dtype_class class;
    int bits, mantissa, exponent;
    bool inf;
  } want[] = {
      {"f32", 4, BASE_FLOAT, 32, 23, 8, true},    {"f64", 8, BASE_FLOAT, 64, 52, 11, true},
      {"f16", 2, BASE_FLOAT, 16, 10, 5, true},    {"bf16", 2, BASE_FLOAT, 16, 7, 8, true},
      {"f8e4m3", 1, BASE_FLOAT, 8, 3, 4, false},  {"f8e5m2", 1, BASE_FLOAT, 8, 2, 5, true},
      {"i8", 1, BASE_SIGNED, 8, 0, 0, false},     {"i16", 2, BASE_SIGNED, 16, 0, 0, false},
      {"i32", 4, BASE_SIGNED, 32, 0, 0, false},   {"i64", 8, BASE_SIGNED, 64, 0, 0, false},
      {"u8", 1, BASE_UNSIGNED, 8, 0, 0, false},   {"u16", 2, BASE_UNSIGNED, 16, 0, 0, false},
      {"u32", 4, BASE_UNSIGNED, 32, 0, 0, false}, {"u64", 8, BASE_UNSIGNED, 64, 0, 0, false},
      {"bool", 1, BASE_BOOL, 1, 0, 0, false},
  };
  assert_int_equal(BASE_COUNT(want), QUERN_DTYPE_COUNT);
  for (size_t i = 0; i < QUERN_DTYPE_COUNT; i++) {
    quern_dtype dtype = (quern_dtype)i, found = QUERN_DTYPE_COUNT;
    const struct base_dtype_info *info = &base_dtypes[i];
    assert_string_equal(info->name, want[i].name);
    assert_string_equal(quern_dtype_name(dtype), want[i].name);
    assert_int_equal(quern_dtype_size(dtype), want[i].size);
    assert_int_equal(info->size, want[i].size);
    assert_int_equal(info->class, want[i].class);
    assert_int_equal(info->bits, want[i].bits);
    assert_int_equal(info->mantissa, want[i].mantissa);
    assert_int_equal(info->exponent, want[i].exponent);
    assert_int_equal(info->inf, want[i].inf);
    assert_true(base_dtype_is(dtype, BASE_ANY));
    assert_int_equal(base_dtype_is(dtype, BASE_NUM), want[i].class != BASE_BOOL);
    assert_int_equal(base_dtype_is(dtype, BASE_INT), want[i].class == BASE_SIGNED || want[i].class == BASE_UNSIGNED);
    assert_int_equal(quern_dtype_from_name(want[i].name, &found), QUERN_STATUS_OK);
    assert_int_equal(found, dtype);
  }
  assert_string_equal(quern_dtype_name(QUERN_DTYPE_COUNT), "?");
  assert_string_equal(quern_dtype_name((quern_dtype)-1), "?");
  assert_int_equal(quern_dtype_size(QUERN_DTYPE_COUNT), 0);
  assert_int_equal(quern_dtype_size((quern_dtype)-1), 0);
}

static void test_from_name(void **state) {
  (void)state;
  quern_dtype dtype = QUERN_DTYPE_U8;
  assert_int_equal(quern_dtype_from_name("f33", &dtype), QUERN_STATUS_INVALID);
  assert_non_null(strstr(quern_last_error(), "f33"));
  assert_non_null(strstr(quern_last_error(), "did you mean f32?"));
  assert_int_equal(quern_dtype_from_name("complex128", &dtype), QUERN_STATUS_INVALID);
  assert_non_null(strstr(quern_last_error(), "complex128"));
  assert_null(strstr(quern_last_error(), "did you mean"));
  assert_int_equal(quern_dtype_from_name("", &dtype), QUERN_STATUS_INVALID);
  assert_int_equal(quern_dtype_from_name(NULL, &dtype), QUERN_STATUS_INVALID);
  assert_int_equal(quern_dtype_from_name("f32", NULL), QUERN_STATUS_INVALID);
  assert_int_equal(dtype, QUERN_DTYPE_U8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip), cmocka_unit_test(test_rounding),  cmocka_unit_test(test_famous),
      cmocka_unit_test(test_f32_f64),    cmocka_unit_test(test_index),     cmocka_unit_test(test_ints),
      cmocka_unit_test(test_table),      cmocka_unit_test(test_from_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
