/* driver/gen.c -- the inputs of cases
** Every element is a function of the case's text, the operand's number and the element's, through Philox; so
** a repro line gives the same inputs, and so do all dtypes of a line before rounding.
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

/* One array being filled. */
struct fill {
  const struct test_case *c;
  uint64_t seed;
  int operand;
  quern_dtype dtype;
  int64_t n;
  void *data;
  double a, b; /* parameters of the generator */
};

static uint64_t seed_of(const struct test_case *c) {
  return base_hash_string(base_hash_string(BASE_HASH_SEED, c->builder->name), c->text);
}

static uint32_t bits(const struct fill *f, int64_t i, uint32_t stream) {
  return base_random_bits(f->seed, (uint64_t)f->operand, stream, (uint64_t)i);
}

static double uniform(const struct fill *f, int64_t i) { return (double)base_random_uniform(bits(f, i, 0)); }

static double normal(const struct fill *f, int64_t i) {
  return (double)base_random_normal(bits(f, i, 0), bits(f, i, 1));
}

/* Whole numbers go to integer dtypes as such, anything else is rounded to the dtype. */
static void put(const struct fill *f, int64_t i, double value) {
  if (base_dtype_is(f->dtype, BASE_FLOAT)) {
    base_store_float(f->dtype, f->data, (size_t)i, value);
  } else {
    base_store_int(f->dtype, f->data, (size_t)i, (uint64_t)(int64_t)nearbyint(value));
  }
}

/* ---- generators, one function each --------------------------------------------------------------------- */

static void fill_normal(const struct fill *f) {
  for (int64_t i = 0; i < f->n; i++) put(f, i, normal(f, i));
}

/* [a, b) */
static void fill_uniform(const struct fill *f) {
  for (int64_t i = 0; i < f->n; i++) put(f, i, f->a + (f->b - f->a) * uniform(f, i));
}

/* [0.3, 3.3): for logarithms, roots and divisors */
static void fill_positive(const struct fill *f) {
  for (int64_t i = 0; i < f->n; i++) put(f, i, 0.3 + 3 * uniform(f, i));
}

/* At least 0.1 from 0 on either side. */
static void fill_away(const struct fill *f) {
  for (int64_t i = 0; i < f->n; i++) {
    double x = normal(f, i);
    put(f, i, x < 0 ? x - 0.1 : x + 0.1);
  }
}

/* At least 0.1 from multiples of 1/2. */
static void fill_fraction(const struct fill *f) {
  for (int64_t i = 0; i < f->n; i++) {
    uint32_t word = bits(f, i, 1);
    put(f, i, (double)(word % 11) / 2 - 2.5 + 0.1 + 0.3 * uniform(f, i));
  }
}

/* Whole numbers from a to b, both included. */
static void fill_int(const struct fill *f) {
  for (int64_t i = 0; i < f->n; i++) put(f, i, f->a + (double)(bits(f, i, 0) % (uint32_t)(f->b - f->a + 1)));
}

static void fill_ties(const struct fill *f) {
  bool is_unsigned = base_dtype_is(f->dtype, BASE_UNSIGNED);
  for (int64_t i = 0; i < f->n; i++) put(f, i, (double)(bits(f, i, 0) % 4) - (is_unsigned ? 0 : 2));
}

static void fill_const(const struct fill *f) {
  for (int64_t i = 0; i < f->n; i++) put(f, i, f->a);
}

static void fill_sign(const struct fill *f) {
  for (int64_t i = 0; i < f->n; i++) put(f, i, (bits(f, i, 0) & 1) != 0 ? 1 : -1);
}

/* No two elements closer than 0.02, also between operands; in a random order. */
static void fill_distinct(const struct fill *f) {
  int64_t *order = grab((size_t)f->n * sizeof *order);
  for (int64_t i = 0; i < f->n; i++) {
    int64_t j = bits(f, i, 0) % (uint32_t)(i + 1);
    order[i] = order[j];
    order[j] = i;
  }
  for (int64_t i = 0; i < f->n; i++) put(f, i, 0.1 * ((double)order[i] - (double)f->n / 2) + 0.023 * (f->operand + 1));
  free(order);
}

/* Indices into an axis of operand 0: the one of key axis, or the last one (labels). */
static void index_below(const struct fill *f, int axis) {
  const struct shape *s = &f->c->shapes[0];
  if (axis < 0) axis += s->rank;
  int64_t n = axis >= 0 && axis < s->rank ? s->dims[axis] : 1;
  for (int64_t i = 0; i < f->n; i++) put(f, i, n == 0 ? 0 : (double)(bits(f, i, 0) % (uint32_t)n));
}

static void fill_index(const struct fill *f) { index_below(f, (int)case_int(f->c, "axis", 0)); }
static void fill_label(const struct fill *f) { index_below(f, -1); }

/* The hard values of a dtype in turn: element i of operand k is value i / L^k of the L there are, so that L
** x L elements hold all pairs. */
enum { SPECIAL = 16 };

static double special_float(quern_dtype dtype, int64_t k) {
  const struct base_dtype_info *d = &base_dtypes[dtype];
  int bias = (1 << (d->exponent - 1)) - 1;
  double least = ldexp(1, 1 - bias - d->mantissa), normal_least = ldexp(1, 1 - bias);
  double most = d->inf ? ldexp(2 - ldexp(1, -d->mantissa), bias) : 448;
  const double values[SPECIAL] = {NAN,  INFINITY, -INFINITY, 0,    -0.0, least, -least,  normal_least - least,
                                  most, -most,    1,         -1.5, 0.5,  2.5,   -0.0625, 3};
  return values[k];
}

static uint64_t special_int(quern_dtype dtype, int64_t k) {
  const struct base_dtype_info *d = &base_dtypes[dtype];
  bool is_signed = base_dtype_is(dtype, BASE_SIGNED);
  uint64_t most = UINT64_MAX >> (64 - d->bits + (is_signed ? 1 : 0)), least = is_signed ? ~most : 0;
  const uint64_t values[SPECIAL] = {0,
                                    1,
                                    (uint64_t)-1,
                                    most,
                                    least,
                                    most - 1,
                                    least + 1,
                                    2,
                                    (uint64_t)-2,
                                    most / 2,
                                    3,
                                    7,
                                    8,
                                    (uint64_t)-7,
                                    100,
                                    (uint64_t)d->bits};
  return values[k];
}

static void fill_special(const struct fill *f) {
  int64_t stride = 1;
  for (int k = 0; k < f->operand; k++) stride *= SPECIAL;
  for (int64_t i = 0; i < f->n; i++) {
    int64_t k = i / stride % SPECIAL;
    if (base_dtype_is(f->dtype, BASE_FLOAT)) {
      base_store_float(f->dtype, f->data, (size_t)i, special_float(f->dtype, k));
    } else {
      base_store_int(f->dtype, f->data, (size_t)i,
                     special_int(f->dtype, k) & (f->dtype == QUERN_DTYPE_BOOL ? 1 : ~UINT64_C(0)));
    }
  }
}

static const struct {
  const char *name;
  void (*fill)(const struct fill *f);
} generators[] = {
    {"normal", fill_normal},   {"uniform", fill_uniform},   {"positive", fill_positive}, {"away", fill_away},
    {"int", fill_int},         {"fraction", fill_fraction}, {"ties", fill_ties},         {"const", fill_const},
    {"sign", fill_sign},       {"distinct", fill_distinct}, {"index", fill_index},       {"label", fill_label},
    {"special", fill_special},
};

bool gen_fill(const struct test_case *c, const char *generator, int operand, quern_dtype dtype, int64_t n, void *data) {
  struct fill f = {c, seed_of(c), operand, dtype, n, data, 0, 0};
  size_t name = strcspn(generator, ":");
  if (generator[name] == ':') sscanf(generator + name + 1, "%lf:%lf", &f.a, &f.b);
  for (size_t g = 0; g < BASE_COUNT(generators); g++) {
    if (strlen(generators[g].name) != name || strncmp(generators[g].name, generator, name) != 0) continue;
    generators[g].fill(&f);
    return true;
  }
  return false;
}

void gen_normal(const struct test_case *c, uint32_t stream, int64_t n, double *data) {
  struct fill f = {.c = c, .seed = seed_of(c) + stream, .operand = CASE_OPERANDS};
  for (int64_t i = 0; i < n; i++) data[i] = normal(&f, i);
}
