/* prop/values.c -- random numbers by Philox, and elements that find bugs */
#include <math.h>
#include <string.h>

#include "prop/prop.h"

uint32_t rng_bits(struct rng *rng) { return base_random_bits(rng->seed, 0, 7, rng->next++); }

int rng_below(struct rng *rng, int n) { return (int)((uint64_t)rng_bits(rng) * (uint64_t)n >> 32); }

bool rng_chance(struct rng *rng, int percent) { return rng_below(rng, 100) < percent; }

quern_dtype rng_dtype(struct rng *rng, enum base_dtype_class class) {
  for (;;) {
    quern_dtype dtype = (quern_dtype)rng_below(rng, QUERN_DTYPE_COUNT);
    if (base_dtype_is(dtype, class)) return dtype;
  }
}

static double float_value(struct rng *rng, quern_dtype dtype, bool tame) {
  static const double few[] = {0, -0.0, 1, -1, 2, 0.5, -3, 1.5};
  int kind = rng_below(rng, 100);
  if (kind < 25) return few[rng_below(rng, (int)BASE_COUNT(few))];
  if (kind < 90 || tame) return ldexp((double)(int32_t)rng_bits(rng), -29);
  if (kind < 93) return rng_chance(rng, 50) ? (double)INFINITY : -(double)INFINITY;
  if (kind < 95) return (double)NAN;
  const struct base_dtype_info *info = &base_dtypes[dtype];
  int range = 1 << (info->exponent - 1);
  int power = rng_below(rng, 2 * range + info->mantissa) - range - info->mantissa - 31;
  return ldexp((double)(int32_t)rng_bits(rng), power);
}

static uint64_t int_value(struct rng *rng, quern_dtype dtype, bool tame) {
  uint64_t top = UINT64_C(1) << (base_dtypes[dtype].bits - 1);
  const uint64_t few[] = {0, 1, 2, 3, 4, UINT64_MAX, top, top - 1};
  int kind = rng_below(rng, 100);
  if (kind < 40 || (tame && kind < 90)) return few[rng_below(rng, tame ? 5 : (int)BASE_COUNT(few))];
  if (kind < 75 || tame) return (uint64_t)(int64_t)(rng_below(rng, 20) - 8);
  uint64_t upper = (uint64_t)rng_bits(rng) << 32;
  return upper | rng_bits(rng);
}

void values_fill(struct rng *rng, quern_dtype dtype, size_t n, void *data, bool tame) {
  for (size_t i = 0; i < n; i++) {
    if (base_dtype_is(dtype, BASE_FLOAT)) {
      base_store_float(dtype, data, i, float_value(rng, dtype, tame));
    } else if (dtype == QUERN_DTYPE_BOOL) {
      base_store_int(dtype, data, i, rng_bits(rng) & 1);
    } else {
      base_store_int(dtype, data, i, int_value(rng, dtype, tame));
    }
  }
}

void values_of_leaf(uint64_t seed, const char *name, quern_dtype dtype, size_t n, void *data) {
  struct rng rng = {.seed = base_hash_string(base_hash_u64(BASE_HASH_SEED, seed), name)};
  values_fill(&rng, dtype, n, data, rng_chance(&rng, 50));
}
