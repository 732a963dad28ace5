/* base/dtype.c -- elements in memory: load, store, convert, each with at most one rounding
** keeps: the narrow float formats share one decoder and one encoder, driven by base_dtypes; every stored NaN
**        is the positive quiet one
** see:   IEEE 754-2019; Micikevicius et al., "FP8 formats for deep learning", 2022 (f8e4m3: no infinity)
** tests: tests/base/test_dtype.c, tests/base/test_convert.c
*/
#include "base/base.h"

#include <math.h>
#include <string.h>

const struct base_dtype_info base_dtypes[QUERN_DTYPE_COUNT] = {
#define DTYPE(NAME, TEXT, CLASS, BYTES, BITS, MANTISSA, EXPONENT, INF)                                                 \
  [QUERN_DTYPE_##NAME] = {TEXT, BYTES, BASE_##CLASS, BITS, MANTISSA, EXPONENT, INF},
#include "base/dtypes.def"
#undef DTYPE
};

enum { DOUBLE_MANTISSA = 52, DOUBLE_BIAS = 1023, DOUBLE_EXPONENT_ONES = 0x7ff };

static double double_from_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint64_t double_to_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static double power_of_two(int n) { return double_from_bits((uint64_t)(n + DOUBLE_BIAS) << DOUBLE_MANTISSA); }

/* ---- raw elements of 1, 2, 4 or 8 bytes ---------------------------------------------------------------- */

static uint64_t load_raw(size_t size, const void *data, size_t i) {
  const unsigned char *at = (const unsigned char *)data + i * size;
  uint8_t x8;
  uint16_t x16;
  uint32_t x32;
  uint64_t x64;
  switch (size) {
  case 1: return memcpy(&x8, at, 1), x8;
  case 2: return memcpy(&x16, at, 2), x16;
  case 4: return memcpy(&x32, at, 4), x32;
  default: return memcpy(&x64, at, 8), x64;
  }
}

static void store_raw(size_t size, void *data, size_t i, uint64_t x) {
  unsigned char *at = (unsigned char *)data + i * size;
  uint8_t x8 = (uint8_t)x;
  uint16_t x16 = (uint16_t)x;
  uint32_t x32 = (uint32_t)x;
  switch (size) {
  case 1: memcpy(at, &x8, 1); break;
  case 2: memcpy(at, &x16, 2); break;
  case 4: memcpy(at, &x32, 4); break;
  default: memcpy(at, &x, 8); break;
  }
}

/* ---- floats narrower than double ----------------------------------------------------------------------- */

/* A format's numbers, all without the sign bit. */
struct format {
  int mantissa, bias;
  uint64_t largest;  /* finite */
  uint64_t overflow; /* what becomes of more: infinity, or NaN without one */
  uint64_t nan;
};

static struct format format_of(quern_dtype dtype) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  uint64_t ones = (UINT64_C(1) << (info->bits - 1)) - 1;
  uint64_t inf = ones >> info->mantissa << info->mantissa;
  struct format format = {.mantissa = info->mantissa, .bias = (1 << (info->exponent - 1)) - 1};
  format.nan = info->inf ? inf | UINT64_C(1) << (info->mantissa - 1) : ones;
  format.overflow = info->inf ? inf : ones;
  format.largest = format.overflow - 1;
  return format;
}

static double decode(quern_dtype dtype, uint64_t bits) {
  struct format format = format_of(dtype);
  uint64_t sign_bit = UINT64_C(1) << (base_dtypes[dtype].bits - 1), code = bits & (sign_bit - 1);
  uint64_t implicit = UINT64_C(1) << format.mantissa, fraction = code & (implicit - 1);
  int exponent = (int)(code >> format.mantissa);
  double x;
  if (code > format.largest) {
    x = base_dtypes[dtype].inf && code == format.overflow ? (double)INFINITY : (double)NAN;
  } else if (exponent == 0) {
    x = (double)fraction * power_of_two(1 - format.bias - format.mantissa);
  } else {
    x = (double)(fraction | implicit) * power_of_two(exponent - format.bias - format.mantissa);
  }
  return bits & sign_bit ? -x : x;
}

/* Shifts right by 1..53, to nearest, ties to even. */
static uint64_t shift_rounded(uint64_t x, int shift) {
  uint64_t half = UINT64_C(1) << (shift - 1), odd = x >> shift & 1;
  return (x + half - 1 + odd) >> shift;
}

/* Not for NaN. Numbers of the format's least exponent and below step alike. A significand that rounds up to a
** power of two carries into the exponent by itself, and infinity is only a number that is too large. */
static uint64_t encode(quern_dtype dtype, double x) {
  struct format format = format_of(dtype);
  uint64_t bits = double_to_bits(x), implicit = UINT64_C(1) << DOUBLE_MANTISSA;
  uint64_t sign = bits >> 63 << (base_dtypes[dtype].bits - 1);
  uint64_t significand = (bits & (implicit - 1)) | implicit;
  int target = ((int)(bits >> DOUBLE_MANTISSA) & DOUBLE_EXPONENT_ONES) - DOUBLE_BIAS + format.bias;
  int shift = DOUBLE_MANTISSA - format.mantissa + BASE_MAX(1 - target, 0);
  uint64_t rounded = shift <= DOUBLE_MANTISSA + 1 ? shift_rounded(significand, shift) : 0;
  uint64_t code = ((uint64_t)BASE_MAX(target - 1, 0) << format.mantissa) + rounded;
  if (code > format.largest) code = format.overflow;
  return code == format.nan ? code : sign | code;
}

/* ---- elements ------------------------------------------------------------------------------------------ */

double base_load_float(quern_dtype dtype, const void *data, size_t i) {
  if (dtype == QUERN_DTYPE_F32) return (double)base_bits_float((uint32_t)load_raw(4, data, i));
  uint64_t raw = load_raw(base_dtypes[dtype].size, data, i);
  return dtype == QUERN_DTYPE_F64 ? double_from_bits(raw) : decode(dtype, raw);
}

void base_store_float(quern_dtype dtype, void *data, size_t i, double x) {
  uint64_t raw;
  if (x != x)
    raw = format_of(dtype).nan;
  else if (dtype == QUERN_DTYPE_F64)
    raw = double_to_bits(x);
  else if (dtype == QUERN_DTYPE_F32)
    raw = base_float_bits((float)x);
  else
    raw = encode(dtype, x);
  store_raw(base_dtypes[dtype].size, data, i, raw);
}

uint64_t base_load_int(quern_dtype dtype, const void *data, size_t i) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  uint64_t raw = load_raw(info->size, data, i);
  if (info->class == BASE_BOOL) return raw != 0;
  uint64_t sign = info->class == BASE_SIGNED ? UINT64_C(1) << (info->bits - 1) : 0;
  return (raw ^ sign) - sign;
}

void base_store_int(quern_dtype dtype, void *data, size_t i, uint64_t x) {
  const struct base_dtype_info *info = &base_dtypes[dtype];
  store_raw(info->size, data, i, info->class == BASE_BOOL ? x != 0 : x);
}

/* ---- conversions --------------------------------------------------------------------------------------- */

/* A double that rounds to any narrower format as the integer would: exact up to 53 bits; above, the 53rd is
** set when a later one is (rounding to odd: Boldo and Melquiond, 2008). */
static double odd_double(uint64_t magnitude) {
  int shift = 0;
  while (magnitude >> shift >> (DOUBLE_MANTISSA + 1)) shift++;
  uint64_t kept = magnitude >> shift, lost = magnitude - (kept << shift);
  return (double)(kept | (lost != 0)) * power_of_two(shift);
}

static void int_to_float(quern_dtype dtype, void *dst, size_t i, uint64_t x, bool negative) {
  uint64_t magnitude = negative ? 0 - x : x;
  double y = dtype == QUERN_DTYPE_F64 ? (double)magnitude : odd_double(magnitude);
  base_store_float(dtype, dst, i, negative ? -y : y);
}

static uint64_t float_to_int(quern_dtype dtype, double x) {
  int bits = base_dtypes[dtype].bits;
  if (x != x) return 0;
  if (base_dtype_is(dtype, BASE_UNSIGNED)) {
    if (x <= 0) return 0;
    return x < power_of_two(bits) ? (uint64_t)x : UINT64_MAX;
  }
  if (x <= -power_of_two(bits - 1)) return UINT64_C(1) << (bits - 1);
  return x < power_of_two(bits - 1) ? (uint64_t)(int64_t)x : (UINT64_C(1) << (bits - 1)) - 1;
}

void base_convert(quern_dtype dst_dtype, void *dst, size_t di, quern_dtype src_dtype, const void *src, size_t si) {
  bool to_float = base_dtype_is(dst_dtype, BASE_FLOAT);
  if (base_dtype_is(src_dtype, BASE_FLOAT)) {
    double x = base_load_float(src_dtype, src, si);
    if (to_float)
      base_store_float(dst_dtype, dst, di, x);
    else if (dst_dtype == QUERN_DTYPE_BOOL)
      base_store_int(dst_dtype, dst, di, x != 0);
    else
      base_store_int(dst_dtype, dst, di, float_to_int(dst_dtype, x));
  } else {
    uint64_t x = base_load_int(src_dtype, src, si);
    bool negative = base_dtype_is(src_dtype, BASE_SIGNED) && x >> 63;
    if (to_float)
      int_to_float(dst_dtype, dst, di, x, negative);
    else
      base_store_int(dst_dtype, dst, di, x);
  }
}

/* ---- public -------------------------------------------------------------------------------------------- */

static bool known(quern_dtype dtype) { return (unsigned)dtype < QUERN_DTYPE_COUNT; }

const char *quern_dtype_name(quern_dtype dtype) { return known(dtype) ? base_dtypes[dtype].name : "?"; }

size_t quern_dtype_size(quern_dtype dtype) { return known(dtype) ? base_dtypes[dtype].size : 0; }

quern_status quern_dtype_from_name(const char *name, quern_dtype *dtype) {
  QUERN_CHECK(name && dtype, INVALID, "quern_dtype_from_name: %s is null", name ? "dtype" : "name");
  const char *names[QUERN_DTYPE_COUNT];
  for (size_t i = 0; i < QUERN_DTYPE_COUNT; i++) {
    names[i] = base_dtypes[i].name;
    if (strcmp(name, names[i]) == 0) return *dtype = (quern_dtype)i, QUERN_STATUS_OK;
  }
  const char *nearest = base_nearest(name, names, QUERN_DTYPE_COUNT);
  QUERN_CHECK(!nearest, INVALID, "unknown dtype \"%s\"; did you mean %s?", name, nearest);
  return base_error(QUERN_STATUS_INVALID, "unknown dtype \"%s\"", name);
}

/* True when writing the one in order never overwrites what is still to be read of the other. */
static bool apart(const void *dst, size_t dst_bytes, const void *src, size_t src_bytes) {
  uintptr_t d = (uintptr_t)dst, s = (uintptr_t)src;
  return (d == s && dst_bytes == src_bytes) || (d < s ? s - d >= dst_bytes : d - s >= src_bytes);
}

quern_status quern_dtype_convert(void *dst, quern_dtype dst_dtype, const void *src, quern_dtype src_dtype, size_t n) {
  size_t dst_bytes, src_bytes;
  QUERN_CHECK(known(dst_dtype), DTYPE, "quern_dtype_convert: dst_dtype %d is unknown", (int)dst_dtype);
  QUERN_CHECK(known(src_dtype), DTYPE, "quern_dtype_convert: src_dtype %d is unknown", (int)src_dtype);
  if (n == 0) return QUERN_STATUS_OK;
  QUERN_CHECK(dst && src, INVALID, "quern_dtype_convert: %s is null", dst ? "src" : "dst");
  QUERN_CHECK(base_size(n, base_dtypes[dst_dtype].size, 0, &dst_bytes), OVERFLOW,
              "quern_dtype_convert: %zu elements of %s do not fit into memory", n, base_dtypes[dst_dtype].name);
  QUERN_CHECK(base_size(n, base_dtypes[src_dtype].size, 0, &src_bytes), OVERFLOW,
              "quern_dtype_convert: %zu elements of %s do not fit into memory", n, base_dtypes[src_dtype].name);
  QUERN_CHECK(apart(dst, dst_bytes, src, src_bytes), INVALID,
              "quern_dtype_convert: src and dst of %zu elements overlap, %s to %s", n, base_dtypes[src_dtype].name,
              base_dtypes[dst_dtype].name);
  for (size_t i = 0; i < n; i++) base_convert(dst_dtype, dst, i, src_dtype, src, i);
  return QUERN_STATUS_OK;
}
