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

/* tensor_einsum_order with sets of labels as bits. */
static void order(int n, const uint64_t *sets, uint64_t out, const int64_t *size, struct einsum_pair *pairs) {
  struct einsum_term terms[90];
  int uses[64];
  for (int k = 0; k < 64; k++) uses[k] = out >> k & 1;
  for (int i = 0; i < n; i++) {
    terms[i].n = 0;
    for (int k = 0; k < 64; k++) {
      if (sets[i] >> k & 1) terms[i].labels[terms[i].n++] = k, uses[k]++;
    }
  }
  tensor_einsum_order(n, terms, size, uses, pairs);
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
    order(n, sets, out, size, pairs);
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
    order(n, sets, UINT64_C(1) << n | 1, size, pairs);
    double cost = cost_of(n, sets, UINT64_C(1) << n | 1, size, pairs);
    assert_true(cost <= 30.0 * n);
    order(n, sets, UINT64_C(1) << n | 1, size, again);
    assert_memory_equal(pairs, again, (size_t)(n - 1) * sizeof *pairs);
  }
  uint64_t sets[90];
  int64_t size[64];
  struct einsum_pair pairs[89];
  for (int round = 0; round < 20; round++) {
    int n = 9 + draw(80);
    for (int k = 0; k < 64; k++) size[k] = 1 + draw(3);
    for (int i = 0; i < n; i++) sets[i] = (uint64_t)draw(1 << 10) << draw(54);
    order(n, sets, 5, size, pairs);
    (void)cost_of(n, sets, 5, size, pairs);
  }
}

/* Eight operands of sixteen labels each, in a ring of pairs: 64 different ones. Neighbors first keeps products small; any
** other first pair would have more axes than a tensor can have. */
static void products_fit(void **state) {
  (void)state;
  struct einsum_term terms[8];
  int64_t size[64];
  int uses[64];
  for (int k = 0; k < 64; k++) size[k] = 2, uses[k] = 2;
  for (int i = 0; i < 8; i++) {
    terms[i].n = 16;
    for (int k = 0; k < 8; k++) terms[i].labels[k] = 8 * i + k, terms[i].labels[8 + k] = 8 * ((i + 1) % 8) + k;
  }
  struct einsum_pair pairs[7];
  tensor_einsum_order(8, terms, size, uses, pairs);
  struct einsum_term held[15];
  for (int i = 0; i < 8; i++) held[i] = terms[i];
  for (int i = 0; i < 7; i++) {
    const struct einsum_term *a = &held[pairs[i].a], *b = &held[pairs[i].b];
    struct einsum_term y = {.n = 0};
    for (int k = 0; k < a->n + b->n; k++) {
      int label = k < a->n ? a->labels[k] : b->labels[k - a->n];
      bool both = tensor_einsum_has(a, label) && tensor_einsum_has(b, label);
      if (both) continue; /* each label is in two operands only */
      assert_true(y.n < QUERN_MAX_RANK);
      y.labels[y.n++] = label;
    }
    held[8 + i] = y;
  }
  assert_int_equal(held[14].n, 0);
}

/* Products of too many axes are taken when there is no other way. */
static void products_that_do_not_fit(void **state) {
  (void)state;
  for (int n = 2; n <= 12; n++) {
    struct einsum_term terms[12];
    int64_t size[12 * 16];
    int uses[12 * 16];
    struct einsum_pair pairs[11];
    bool used[23] = {0};
    for (int k = 0; k < n * 16; k++) size[k] = 2, uses[k] = 2; /* in one operand, and in the result */
    for (int i = 0; i < n; i++) {
      terms[i].n = 16;
      for (int k = 0; k < 16; k++) terms[i].labels[k] = 16 * i + k;
    }
    tensor_einsum_order(n, terms, size, uses, pairs);
    for (int i = 0; i < n - 1; i++) {
      assert_true(pairs[i].a < n + i && pairs[i].b < n + i && pairs[i].a != pairs[i].b);
      assert_false(used[pairs[i].a] || used[pairs[i].b]);
      used[pairs[i].a] = used[pairs[i].b] = true;
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_best_of_all_orders), cmocka_unit_test(many_operands),
                                     cmocka_unit_test(products_fit), cmocka_unit_test(products_that_do_not_fit)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
