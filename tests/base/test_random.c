/* tests/base/test_random.c -- Philox, uniform and normal numbers */
#include "base/test.h"

#include <math.h>

/* The known answers for philox4x32-10 that Random123 publishes. */
static void test_philox(void **state) {
  (void)state;
  static const struct {
    uint32_t counter[4], key[2], want[4];
  } cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    uint32_t out[4];
    base_philox(cases[i].counter, cases[i].key, out);
    assert_memory_equal(out, cases[i].want, sizeof out);
  }
  uint32_t in_place[4] = {0, 0, 0, 0};
  base_philox(in_place, cases[0].key, in_place);
  assert_memory_equal(in_place, cases[0].want, sizeof in_place);
}

static void test_bits(void **state) {
  (void)state;
  assert_int_equal(base_random_bits(0, 0, 0, 0), 0x6627e8d5);
  assert_int_equal(base_random_bits(0, 0, 0, 3), 0x9b00dbd8);
  assert_int_equal(base_random_bits(UINT64_MAX, UINT64_MAX, 0xffffffff, (UINT64_C(1) << 34) - 2), 0xa20bc7c6);
  const uint64_t seed = UINT64_C(0x299f31d0a4093822), step = UINT64_C(0x0370734413198a2e);
  static const uint32_t want[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  for (uint64_t j = 0; j < 4; j++) {
    assert_int_equal(base_random_bits(seed, step, 0x85a308d3, 4 * UINT64_C(0x243f6a88) + j), want[j]);
  }
}

static void test_uniform(void **state) {
  (void)state;
  assert_true(base_random_uniform(0) == 0);
  assert_true(base_random_uniform(0xff) == 0);
  assert_true(base_random_uniform(0x100) == 0x1p-24f);
  assert_true(base_random_uniform(0x80000000) == 0.5f);
  assert_true(base_random_uniform(0xffffffff) == 1 - 0x1p-24f);
  double sum = 0;
  for (uint64_t i = 0; i < 100000; i++) {
    uint32_t bits = base_random_bits(5, 1, 2, i);
    float x = base_random_uniform(bits);
    assert_true((double)x == floor((double)bits / 256) / 16777216);
    sum += (double)x;
  }
  assert_true(fabs(sum / 100000 - 0.5) < 0.003);
}

static double reference_normal(uint32_t bits0, uint32_t bits1) {
  double u = ((double)(bits0 >> 8) + 1) / 16777216, v = (double)(bits1 >> 8) / 16777216;
  return sqrt(-2 * log(u)) * cos(2 * acos(-1.0) * v);
}

static void check_normal(uint32_t u, uint32_t v) {
  double got = (double)base_random_normal(u << 8, v << 8), want = reference_normal(u << 8, v << 8);
  if (!(fabs(got - want) < 1e-6)) fail_msg("normal(%u, %u) is %.9g, want %.9g", u, v, got, want);
}

/* Around every place where a branch of the reductions changes, and in between. */
static void test_normal_values(void **state) {
  (void)state;
  static uint32_t us[4000], vs[4000];
  size_t nu = 0, nv = 0;
  for (int i = 0; i <= 24; i++) {
    for (int d = -3; d <= 3; d++) {
      double edges[2] = {ldexp(1, i), ldexp(sqrt(0.5), i)};
      for (int e = 0; e < 2; e++) {
        double at = floor(edges[e]) + d - 1;
        if (at >= 0 && at < 16777216) us[nu++] = (uint32_t)at;
      }
    }
  }
  for (int i = 0; i <= 8; i++) {
    for (int d = -3; d <= 3; d++) vs[nv++] = (uint32_t)(i * 0x200000 + d) & 0xffffff;
  }
  for (uint64_t i = 0; i < 200; i++) {
    us[nu++] = base_random_bits(1, 0, 0, i) >> 8;
    vs[nv++] = base_random_bits(1, 0, 1, i) >> 8;
  }
  for (size_t i = 0; i < nu; i++) {
    for (size_t j = 0; j < nv; j++) check_normal(us[i], vs[j]);
  }
  assert_true(base_random_normal(0xffffffff, 0) == 0); /* u = 1 */
  assert_true(base_random_normal(0x12345600, 0x87654300) == base_random_normal(0x123456ff, 0x876543ff));
  double largest = sqrt(-2 * log(0x1p-24));
  assert_true(fabs((double)base_random_normal(0, 0) - largest) < 1e-6);
  assert_true(fabs((double)base_random_normal(0, 0x80000000) + largest) < 1e-6);
}

/* Small radii keep their relative accuracy: ln u is good near u = 1. */
static void test_normal_near_one(void **state) {
  (void)state;
  for (uint32_t u = 0xffff00; u < 0xffffff; u++) {
    double got = (double)base_random_normal(u << 8, 0), want = reference_normal(u << 8, 0);
    assert_true(fabs(got - want) < 3e-7 * want);
  }
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void test_normal_distribution(void **state) {
  (void)state;
  enum { N = 1000000 };
  double *sample = malloc(N * sizeof *sample), moments[5] = {0}, worst = 0;
  assert_non_null(sample);
  for (uint64_t i = 0; i < N; i++) {
    uint32_t bits0 = base_random_bits(42, 7, 3, 2 * i), bits1 = base_random_bits(42, 7, 3, 2 * i + 1);
    double x = sample[i] = (double)base_random_normal(bits0, bits1);
    assert_true(fabs(x - reference_normal(bits0, bits1)) < 1e-6);
    for (int k = 1; k <= 4; k++) moments[k] += pow(x, k) / N;
  }
  /* Standard errors of the moments of 10^6 samples: 0.001, 0.0014, 0.0039, 0.0098; four of them. */
  assert_true(fabs(moments[1]) < 0.004);
  assert_true(fabs(moments[2] - 1) < 0.0057);
  assert_true(fabs(moments[3]) < 0.0156);
  assert_true(fabs(moments[4] - 3) < 0.039);
  qsort(sample, N, sizeof *sample, compare);
  for (int i = 0; i < N; i++) {
    double expected = 0.5 * erfc(-sample[i] / sqrt(2.0));
    worst = fmax(worst, fmax(fabs(expected - (double)i / N), fabs(expected - (double)(i + 1) / N)));
  }
  assert_true(worst < 1.63 / sqrt(N)); /* Kolmogorov and Smirnov, 1 % */
  free(sample);
}

/* The bits themselves, the same with every compiler and at every level of optimization. */
static void test_normal_bits(void **state) {
  (void)state;
  uint64_t hash = BASE_HASH_SEED;
  for (uint64_t i = 0; i < 200000; i += 2) {
    float x = base_random_normal(base_random_bits(9, 8, 7, i), base_random_bits(9, 8, 7, i + 1));
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    hash = base_hash_u64(hash, bits);
  }
  if (hash != UINT64_C(0x2526ab70b7e63b1c)) fail_msg("hash is 0x%016llx", (unsigned long long)hash);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_philox),          cmocka_unit_test(test_bits),
      cmocka_unit_test(test_uniform),         cmocka_unit_test(test_normal_values),
      cmocka_unit_test(test_normal_near_one), cmocka_unit_test(test_normal_distribution),
      cmocka_unit_test(test_normal_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
