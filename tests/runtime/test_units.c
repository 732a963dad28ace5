/* tests/runtime/test_units.c -- which kernels are compiled together */
#include "runtime/kernels.h"

#include "runtime/cpu/cpu_int.h"

enum { N = 24 };

static struct base_heap heap;
static struct kern *kernels[N];
static bool pick[N];
static int unit[N];

/* A kernel of about n instructions that calls functions of those names, 300 instructions each. */
static struct kern *kernel_of(int n, const char *const *calls) {
  struct kern *kern;
  EXPECT_OK(kern_new(&kern, &heap));
  for (; calls != NULL && *calls; calls++) {
    struct kern_builder b = {kern, kern_add_fn(kern, *calls, 0, NULL, 0)};
    for (int i = 0; i < 300; i++) kern_index(&b, i);
  }
  struct kern_builder b = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(1))};
  for (int i = 0; i < n; i++) kern_index(&b, i);
  EXPECT_OK(kern_finish(kern, "test", NULL));
  return kern;
}

static int setup(void **state) {
  (void)state;
  base_heap_init(&heap, &memory_allocator);
  memset(kernels, 0, sizeof kernels);
  for (int i = 0; i < N; i++) {
    pick[i] = true;
    unit[i] = -1;
  }
  return 0;
}

static int teardown(void **state) {
  (void)state;
  for (int i = 0; i < N; i++) kern_free(kernels[i]);
  return memory_live == 0 ? 0 : -1;
}

static int deal(size_t n, int most) {
  int units = -1;
  EXPECT_OK(rt_units_assign(&heap, n, (const struct kern *const *)kernels, pick, most, unit, &units));
  return units;
}

static void few_instructions(void **state) {
  (void)state;
  for (int i = 0; i < 5; i++) kernels[i] = kernel_of(10, NULL);
  assert_int_equal(deal(5, 8), 1); /* not worth a second process */
  for (int i = 0; i < 5; i++) assert_int_equal(unit[i], 0);
  memset(pick, 0, sizeof pick);
  assert_int_equal(deal(5, 8), 0);
  assert_int_equal(deal(0, 8), 0);
}

static void balance(void **state) {
  (void)state;
  for (int i = 0; i < N; i++) kernels[i] = kernel_of(i == 3 ? 2400 : 100, NULL);
  pick[7] = false;
  assert_int_equal(deal(N, 2), 2);
  int cost[2] = {0};
  for (int i = 0; i < N; i++) {
    if (i == 7)
      assert_int_equal(unit[i], -1);
    else
      assert_in_range(unit[i], 0, 1);
    if (i != 7) cost[unit[i]] += i == 3 ? 2420 : 120;
  }
  assert_in_range(cost[0], cost[1] - 120, cost[1] + 120);
  assert_int_equal(deal(N, 4), 4);
  for (int i = 0; i < N; i++) assert_true(i == 3 || unit[i] != unit[3]); /* which has enough with itself */
  assert_int_equal(deal(4, 100), 4);                                     /* never more than kernels */
}

/* Kernels that call the same come together. */
static void shared_functions(void **state) {
  (void)state;
  static const char *const a[] = {"a", "b", NULL}, *const c[] = {"c", "d", NULL};
  for (int i = 0; i < 8; i++) kernels[i] = kernel_of(20, i % 2 ? a : c);
  assert_int_equal(deal(8, 2), 2);
  for (int i = 0; i < 8; i++) assert_int_equal(unit[i], unit[i % 2]);
  assert_int_not_equal(unit[0], unit[1]);
}

/* No unit becomes longer than a compiler takes, but by a kernel alone. */
static void long_kernels(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) kernels[i] = kernel_of(i == 2 ? 60000 : 20000, NULL);
  assert_int_equal(deal(4, 1), 4);
  for (int i = 0; i < 4; i++) {
    for (int k = 0; k < i; k++) assert_int_not_equal(unit[i], unit[k]);
  }
  for (int i = 0; i < 4; i++) kern_free(kernels[i]);
  for (int i = 0; i < N; i++) kernels[i] = kernel_of(5000, NULL);
  assert_int_equal(deal(N, 1), 4);
}

static void faults(void **state) {
  (void)state;
  static const char *const a[] = {"a", NULL};
  struct fault fault = {0};
  for (int i = 0; i < 8; i++) kernels[i] = kernel_of(100, a);
  size_t live = memory_live;
  while (fault_next(&fault)) {
    int units;
    fault_begin(&fault);
    quern_status status = rt_units_assign(&heap, 8, (const struct kern *const *)kernels, pick, 3, unit, &units);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(memory_live, live);
  }
  assert_true(fault.n > 3);
}

#define UNIT_TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {UNIT_TEST(few_instructions), UNIT_TEST(balance), UNIT_TEST(shared_functions),
                                     UNIT_TEST(long_kernels), UNIT_TEST(faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
