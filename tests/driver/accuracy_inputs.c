/* driver/accuracy_inputs.c -- the numbers on which functions are measured: the same in every run
*/
#include <float.h>
#include <math.h>
#include <string.h>

#include "driver/accuracy.h"

enum { ELEMENTS = 1 << 18, STEPS = 1 << 14, N_ROWS = 2048, COLUMNS = 96 };

int accuracy_operands(const struct accuracy *f) { return f->inputs == PAIRS || f->inputs == POWERS ? 2 : 1; }

void accuracy_shape(const struct accuracy *f, quern_dtype dtype, int64_t *rows, int64_t *columns) {
  *columns = f->inputs == ROWS ? COLUMNS : 1;
  *rows = f->inputs == ROWS                                         ? N_ROWS
          : f->inputs == WITHIN                                     ? STEPS
          : f->inputs == EVERYWHERE && quern_dtype_size(dtype) == 2 ? 1 << 16
                                                                    : ELEMENTS;
}

/* ---- random numbers ------------------------------------------------------------------------------------ */

static uint32_t word(uint32_t stream, int64_t i) { return base_random_bits(7, stream, 0, (uint64_t)i); }

static double between(double lo, double hi, uint32_t stream, int64_t i) {
  return lo + (hi - lo) * ((double)word(stream, i) * 0x1p-32);
}

static void store_bits(quern_dtype dtype, void *data, int64_t i, uint64_t bits) {
  size_t size = quern_dtype_size(dtype);
  if (size == 8) ((uint64_t *)data)[i] = bits;
  if (size == 4) ((uint32_t *)data)[i] = (uint32_t)bits;
  if (size == 2) ((uint16_t *)data)[i] = (uint16_t)bits;
}

static uint64_t load_bits(quern_dtype dtype, const void *data, int64_t i) {
  size_t size = quern_dtype_size(dtype);
  return size == 8   ? ((const uint64_t *)data)[i]
         : size == 4 ? ((const uint32_t *)data)[i]
                     : ((const uint16_t *)data)[i];
}

/* Number which of all signs and exponents, with a random mantissa. */
static uint64_t of_exponent(quern_dtype dtype, uint64_t which, uint32_t stream, int64_t i) {
  const struct base_dtype_info *d = &base_dtypes[dtype];
  uint64_t random = (uint64_t)word(stream, i) << 32 | word(stream + 1, i);
  return which << d->mantissa | (random & ((UINT64_C(1) << d->mantissa) - 1));
}

/* ---- numbers that are hard for some function ------------------------------------------------------------ */

/* Where functions overflow, underflow, change their form or have a zero or a pole; rounded to the dtype. */
static const double hard[] = {0,
                              1e-45,
                              0x1p-1074,
                              FLT_MIN,
                              DBL_MIN,
                              0x1p-24,
                              0x1p-14,
                              0x1p-126,
                              FLT_MAX,
                              DBL_MAX,
                              65504,
                              INFINITY,
                              NAN,
                              1,
                              0.5,
                              2,
                              0.70710678118654752,
                              0.78539816339744831,
                              1.5707963267948966,
                              3.1415926535897931,
                              6.2831853071795862,
                              1e22,
                              0x1.6ac5b262ca1ffp849,
                              0.69314718055994531,
                              5.5,
                              5.6,
                              5.9,
                              8.3,
                              9.1,
                              11.09,
                              13,
                              16.7,
                              17.3,
                              19.06,
                              22,
                              30,
                              87.336544750402377,
                              88.722839111672999,
                              103.97207708399179,
                              104,
                              708.39641853226408,
                              709.78271289338397,
                              745.13321910194122,
                              0x1p24,
                              0x1p53};
enum { NEIGHBORS = 5, N_HARD = (int)BASE_COUNT(hard) * 2 * NEIGHBORS };

/* Both signs of each, and two neighbors on each side. */
static void put_hard(quern_dtype dtype, void *data, int64_t i, int64_t which) {
  double x = hard[which / (2 * NEIGHBORS)];
  base_store_float(dtype, data, (size_t)i, which % 2 == 0 ? x : -x);
  if (isfinite(x) && x != 0)
    store_bits(dtype, data, i, load_bits(dtype, data, i) + (uint64_t)(which / 2 % NEIGHBORS) - NEIGHBORS / 2);
}

/* ---- the sweeps ---------------------------------------------------------------------------------------- */

/* Half by exponent, a quarter over lo to hi, a quarter there by magnitude. */
static void fill_everywhere(const struct accuracy *f, quern_dtype dtype, int64_t n, void *data) {
  const struct base_dtype_info *d = &base_dtypes[dtype];
  for (int64_t i = 0; i < n; i++) {
    double widest = fmax(fabs(f->lo), fabs(f->hi));
    if (d->size == 2) {
      store_bits(dtype, data, i, (uint64_t)i);
    } else if (i < N_HARD) {
      put_hard(dtype, data, i, i);
    } else if (i % 2 == 0) {
      store_bits(dtype, data, i, of_exponent(dtype, (uint64_t)(i / 2) % (UINT64_C(2) << d->exponent), 0, i));
    } else if (i % 4 == 1) {
      base_store_float(dtype, data, (size_t)i, between(f->lo, f->hi, 2, i));
    } else {
      double x = widest * exp2(between(-40, 0, 3, i));
      base_store_float(dtype, data, (size_t)i, f->hi <= 0 || (f->lo < 0 && word(4, i) % 2 == 0) ? -x : x);
    }
  }
}

/* Hard numbers with each other, then half by exponent, half over lo to hi; bases of powers also near 1, and powers of any
** size for these. */
static void fill_pairs(const struct accuracy *f, int operand, quern_dtype dtype, int64_t n, void *data) {
  const int64_t count = 2 * (int64_t)BASE_COUNT(hard);
  uint32_t stream = 10 + 10 * (uint32_t)operand;
  for (int64_t i = 0; i < n; i++) {
    bool power = f->inputs == POWERS, exponent = power && operand == 1;
    double x = exponent ? between(-30, 30, stream, i) : between(f->lo, f->hi, stream, i);
    if (power && i % 4 == 3) x = exponent ? between(-8000, 8000, stream, i) : between(0.99, 1.01, stream, i);
    if (i < count * count) {
      int64_t which = operand == 0 ? i % count : i / count;
      x = which % 2 == 0 ? hard[which / 2] : -hard[which / 2];
    }
    base_store_float(dtype, data, (size_t)i, x);
    if (i >= count * count && i % 2 == 0)
      store_bits(dtype, data, i,
                 of_exponent(dtype, word(stream + 3, i) % (UINT32_C(2) << base_dtypes[dtype].exponent), stream + 1, i));
  }
}

/* Rows of scales 1/8 to 16, and of means 0, 0, 3 and -3 times that. */
static void fill_rows(quern_dtype dtype, void *data) {
  static const double offsets[] = {0, 0, 3, -3};
  for (int64_t i = 0; i < N_ROWS * COLUMNS; i++) {
    int64_t row = i / COLUMNS;
    double x = (double)base_random_normal(word(30, i), word(31, i)) + offsets[row / 8 % 4];
    base_store_float(dtype, data, (size_t)i, ldexp(x, (int)(row % 8) - 3));
  }
}

void accuracy_fill(const struct accuracy *f, int operand, quern_dtype dtype, void *data) {
  int64_t rows, columns;
  accuracy_shape(f, dtype, &rows, &columns);
  switch (f->inputs) {
  case EVERYWHERE: fill_everywhere(f, dtype, rows, data); break;
  case WITHIN:
    for (int64_t i = 0; i < rows; i++)
      base_store_float(dtype, data, (size_t)i, f->lo + (f->hi - f->lo) * (double)i / (double)(rows - 1));
    break;
  case PAIRS:
  case POWERS: fill_pairs(f, operand, dtype, rows, data); break;
  case ROWS: fill_rows(dtype, data); break;
  }
}
