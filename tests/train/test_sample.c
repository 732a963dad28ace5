/* tests/train/test_sample.c -- the choice of tokens: temperature, top_k, top_p, seeds, ties, edges */
#include <math.h>

#include "quern/generate.h"
#include "unit.h"

enum { MANY = 20000 };

static uint32_t pick(double temperature, int64_t top_k, double top_p, uint64_t seed, int64_t position, size_t n,
                     const float *logits) {
  quern_sampling s = QUERN_INIT(quern_sampling);
  s.temperature = temperature, s.top_k = top_k, s.top_p = top_p, s.seed = seed;
  uint32_t id = 77;
  EXPECT_OK(quern_sample(&s, position, n, logits, &id));
  assert_true(id < n);
  return id;
}

/* How often each id comes within MANY positions, against its probability by another way of counting: sorted. */
static void expect_shares(double temperature, int64_t top_k, double top_p, size_t n, const float *logits) {
  enum { MOST = 16 };
  size_t order[MOST], kept = 0, counts[MOST] = {0};
  double p[MOST], all = 0, sum = 0, left = 0;
  for (size_t i = 0; i < n; i++) { /* by insertion: the most likely first, the lowest id of equals */
    size_t k = i;
    for (; k > 0 && logits[order[k - 1]] < logits[i]; k--) order[k] = order[k - 1];
    order[k] = i;
  }
  if (top_k > 0 && (size_t)top_k < n)
    kept = (size_t)top_k;
  else
    kept = n;
  for (size_t i = 0; i < kept; i++) all += p[order[i]] = exp((double)logits[order[i]] / temperature);
  size_t some = 0;
  while (some < kept && (some == 0 || sum < top_p * all)) sum += p[order[some++]];
  for (int64_t i = 0; i < MANY; i++) counts[pick(temperature, top_k, top_p, 5, i, n, logits)]++;
  for (size_t i = 0; i < n; i++) {
    double share = i < some ? p[order[i]] / sum : 0, got = (double)counts[order[i]] / MANY;
    left += share;
    if (share == 0) assert_int_equal(counts[order[i]], 0);
    if (fabs(got - share) > 5 * sqrt(share * (1 - share) / MANY))
      fail_msg("temperature %g, top_k %lld, top_p %g: id %zu came %g of the time, must be %g", temperature,
               (long long)top_k, top_p, order[i], got, share);
  }
  assert_true(fabs(left - 1) < 1e-9);
}

static void shares(void **state) {
  (void)state;
  static const float logits[] = {0.5f, 2, -1, 2, 0, -0.0f, 1.25f, -3, 2, -40};
  static const struct {
    double temperature;
    int64_t top_k;
    double top_p;
  } rows[] = {{1, 0, 1},     {0.8, 0, 1},   {2, 0, 1},   {1, 1, 1},    {1, 2, 1},   {1, 5, 1},
              {1, 6, 1},     {1, 10, 1},    {1, 99, 1},  {1, 0, 0.9},  {1, 0, 0.5}, {1, 0, 0.25},
              {1, 0, 1e-12}, {1, 0, 0.999}, {1, 4, 0.8}, {0.01, 0, 1}, {50, 3, 0.7}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    expect_shares(rows[i].temperature, rows[i].top_k, rows[i].top_p, 10, logits);
}

static void edges(void **state) {
  (void)state;
  static const float logits[] = {-1, 3, 3, 2, 3}, one[] = {-5}, zeros[] = {-0.0f, 0, -0.0f},
                     far[] = {-3e38f, 3e38f, 0, 3e38f}, equal[] = {1, 1, 1, 1};
  assert_int_equal(pick(0, 0, 1, 3, 9, 5, logits), 1);
  assert_int_equal(pick(0, 2, 0.1, 4, 10, 5, logits), 1);
  assert_int_equal(pick(1, 1, 1, 3, 9, 5, logits), 1);
  assert_int_equal(pick(1, 0, 1e-300, 3, 9, 5, logits), 1);
  assert_int_equal(pick(1, 0, 1, 3, 9, 1, one), 0);
  assert_int_equal(pick(0, 5, 0.5, 3, 9, 1, one), 0);
  assert_int_equal(pick(0, 0, 1, 0, 0, 3, zeros), 0);
  assert_int_equal(pick(1, 1, 1, 0, 0, 3, zeros), 0);
  for (int64_t i = 0; i < 50; i++) {
    assert_int_equal(pick(1e-300, 0, 1, 1, i, 5, logits) % 5 == 0, 0);
    assert_int_equal(pick(1, 0, 1, 1, i, 4, far) % 2, 1);
    assert_true(pick(1, 2, 1, 1, i, 4, equal) < 2);
    assert_true(pick(1, 0, 0.5, 1, i, 4, equal) < 2);
    assert_true(pick(1, 0, 0.51, 1, i, 4, equal) < 3);
  }
}

/* A function of seed and position: the same again, others otherwise. */
static void seeds(void **state) {
  (void)state;
  float logits[300];
  double x[300];
  uint32_t first[100];
  size_t same_seed = 0, same_place = 0;
  test_fill(300, x, 3);
  for (int i = 0; i < 300; i++) logits[i] = (float)x[i];
  for (int64_t i = 0; i < 100; i++) first[i] = pick(1, 100, 0.95, 42, i, 300, logits);
  for (int64_t i = 99; i >= 0; i--) assert_int_equal(pick(1, 100, 0.95, 42, i, 300, logits), first[i]);
  for (int64_t i = 0; i < 100; i++) {
    same_seed += pick(1, 100, 0.95, 43, i, 300, logits) == first[i];
    same_place += pick(1, 100, 0.95, 42 + (UINT64_C(1) << 32), i, 300, logits) == first[i];
    same_place += pick(1, 100, 0.95, 42, i + (INT64_C(1) << 32), 300, logits) == first[i];
  }
  assert_true(same_seed < 10 && same_place < 20);
}

static void wrong(void **state) {
  (void)state;
  float logits[] = {0, NAN, INFINITY};
  quern_sampling s = QUERN_INIT(quern_sampling);
  uint32_t id = 9;
  EXPECT_ERROR(quern_sample(&s, 0, 2, logits, &id), INVALID, "sample: logit 1 of 2 is");
  assert_int_equal(id, 0);
  logits[1] = -INFINITY;
  s.temperature = 0;
  EXPECT_ERROR(quern_sample(&s, 0, 3, logits, &id), INVALID, "sample: logit 1 of 3 is -inf; all must be finite");
  s.temperature = -1;
  EXPECT_ERROR(quern_sample(&s, 0, 1, logits, &id), INVALID, "temperature is -1, must be finite and at least 0");
  s.temperature = NAN;
  EXPECT_ERROR(quern_sample(&s, 0, 1, logits, &id), INVALID, "temperature is");
  s.temperature = 1, s.top_k = -2;
  EXPECT_ERROR(quern_sample(&s, 0, 1, logits, &id), INVALID, "top_k is -2");
  s.top_k = 0, s.top_p = -0.5;
  EXPECT_ERROR(quern_sample(&s, 0, 1, logits, &id), INVALID, "top_p is -0.5, must be above 0 and at most 1");
  s.top_p = 1.5;
  EXPECT_ERROR(quern_sample(&s, 0, 1, logits, &id), INVALID, "top_p is 1.5");
  s.top_p = 1;
  EXPECT_OK(quern_sample(&s, 0, 1, logits, &id));
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(shares), TEST(edges), TEST(seeds), TEST(wrong)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
