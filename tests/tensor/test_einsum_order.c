/* tests/tensor/test_einsum_order.c -- contraction orders against all there are */
#include "tensor/compound_test.h"
#include "tensor/einsum.h"

static uint64_t seed = 1;
static int draw(int n) {
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (int)(seed >> 33) % n;
}

static double volume(uint64_t set, const int64_t *size) {
  double product = 1;
  for (int k = 0; k < 64; k++) product *= set >> k & 1 ? (double)size[k] : 1;
  return product;
}

/* The least cost of any order, by trying all. */
static double least(int n, const uint64_t *sets, uint64_t out, const int64_t *size) {
  if (n == 1) return 0;
  double best = (double)INFINITY;
  for (int a = 0; a < n; a++) {
    for (int b = a + 1; b < n; b++) {
      uint64_t rest[8], needed = out;
      int m = 0;
      for (int i = 0; i < n; i++) {
        if (i == a || i == b) continue;
        rest[m++] = sets[i];
        needed |= sets[i];
      }
      rest[m++] = (sets[a] | sets[b]) & needed;
      best = fmin(best, volume(sets[a] | sets[b], size) + least(m, rest, out, size));
    }
  }
  return best;
}

/* The cost of pairs; fails unless each operand and each result but the last is used once. */
static double cost_of(int n, const uint64_t *sets, uint64_t out, const int64_t *size, const struct einsum_pair *pairs) {
  uint64_t held[200];
  bool used[200] = {0};
  double cost = 0;
  for (int i = 0; i < n; i++) held[i] = sets[i];
  for (int i = 0; i < n - 1; i++) {
    int a = pairs[i].a, b = pairs[i].b;
    assert_true(a >= 0 && b >= 0 && a < n + i && b < n + i && a != b && !used[a] && !used[b]);
    used[a] = used[b] = true;
    uint64_t needed = out;
    for (int j = 0; j < n + i; j++) needed |= used[j] ? 0 : held[j];
    cost += volume(held[a] | held[b], size);
    held[n + i] = (held[a] | held[b]) & needed;
  }
  return cost;
}

static void the_best_of_all_orders(void **state) {
  (void)state;
  for (int round = 0; round < 400; round++) {
    int n = 2 + draw(4);
    uint64_t sets[5], out = (uint64_t)draw(64);
    int64_t size[64] = {0};
    for (int k = 0; k < 6; k++) size[k] = 1 + draw(9);
    for (int i = 0; i < n; i++) sets[i] = (uint64_t)draw(64);
    struct einsum_pair pairs[4];
    tensor_einsum_order(n, sets, out, size, pairs);
    assert_true(cost_of(n, sets, out, size, pairs) == least(n, sets, out, size));
  }
}

/* A chain of matrices of sizes 1 and 30 in turn: the greedy order finds the cheap pairs first. */
static void many_operands(void **state) {
  (void)state;
  for (int n = 9; n <= 63; n += 6) {
    uint64_t sets[63];
    int64_t size[64];
    struct einsum_pair pairs[62], again[62];
    for (int k = 0; k <= n; k++) size[k] = k % 2 == 0 ? 1 : 30;
    for (int i = 0; i < n; i++) sets[i] = UINT64_C(3) << i;
    tensor_einsum_order(n, sets, UINT64_C(1) << n | 1, size, pairs);
    double cost = cost_of(n, sets, UINT64_C(1) << n | 1, size, pairs);
    assert_true(cost <= 30.0 * n);
    tensor_einsum_order(n, sets, UINT64_C(1) << n | 1, size, again);
    assert_memory_equal(pairs, again, (size_t)(n - 1) * sizeof *pairs);
  }
  uint64_t sets[90];
  int64_t size[64];
  struct einsum_pair pairs[89];
  for (int round = 0; round < 20; round++) {
    int n = 9 + draw(80);
    for (int k = 0; k < 64; k++) size[k] = 1 + draw(3);
    for (int i = 0; i < n; i++) sets[i] = (uint64_t)draw(1 << 10) << draw(54);
    tensor_einsum_order(n, sets, 5, size, pairs);
    (void)cost_of(n, sets, 5, size, pairs);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_best_of_all_orders), cmocka_unit_test(many_operands)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
