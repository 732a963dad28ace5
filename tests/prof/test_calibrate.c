/* tests/prof/test_calibrate.c -- what the machine can do: plausible figures, kept, measured again when asked */
#include "prof/prof.h"
#include "runtime/files.h"

static struct base_heap heap;

static int begin(void **state) {
  (void)state;
  files_begin();
  assert_int_equal(setenv("QUERN_CACHE", in_folder("cache"), 1), 0);
  base_heap_init(&heap, &memory_allocator);
  return 0;
}

static int end(void **state) {
  (void)state;
  files_end();
  return memory_live == 0 ? 0 : -1;
}

static bool same(const struct prof_limits *a, const struct prof_limits *b) {
  bool equal = a->threads == b->threads && a->flops_f32 == b->flops_f32 && a->flops_f64 == b->flops_f64 &&
               a->copy == b->copy && a->launch == b->launch;
  for (int i = 0; i < PROF_LEVELS && equal; i++)
    equal = a->bytes[i] == b->bytes[i] && a->bandwidth[i] == b->bandwidth[i];
  return equal;
}

static bool near(const struct prof_limits *a, const struct prof_limits *b) {
  return a->flops_f32 > 0.9999 * b->flops_f32 && a->flops_f32 < 1.0001 * b->flops_f32;
}

static void figures(void **state) {
  (void)state;
  struct prof_limits limits;
  struct cg_target target;
  EXPECT_OK(rt_cpu.target(&target));
  EXPECT_OK(prof_limits_get(&limits, &heap, 1, false));
  assert_int_equal(limits.threads, 1);
  /* from the slowest machine that might run this, emulated, to ten times the fastest there is */
  assert_true(limits.flops_f32 > 1e7 && limits.flops_f32 < 1e13);
  assert_true(limits.flops_f64 > 1e6 && limits.flops_f64 < 1.2 * limits.flops_f32);
  for (int i = 0; i < PROF_LEVELS; i++) {
    assert_true(limits.bandwidth[i] > 1e7 && limits.bandwidth[i] < 1e14);
    assert_true(i == 0 || limits.bandwidth[i] <= limits.bandwidth[i - 1]);
  }
  assert_true(limits.copy > 1e6 && limits.launch > 0 && limits.launch < 1e-2);
  assert_true(limits.bytes[PROF_L1] <= target.base.l1_bytes && 2 * limits.bytes[PROF_L1] > target.base.l1_bytes);
  assert_true(limits.bytes[PROF_L1] < limits.bytes[PROF_L2]);
}

static void kept(void **state) {
  (void)state;
  struct prof_limits first, second, again, two;
  EXPECT_OK(prof_limits_get(&first, &heap, 1, false));
  EXPECT_OK(prof_limits_get(&second, &heap, 1, false));
  assert_true(near(&first, &second)); /* the text that is kept has fewer digits */
  EXPECT_OK(prof_limits_get(&first, &heap, 1, false));
  assert_true(same(&first, &second));
  EXPECT_OK(prof_limits_get(&again, &heap, 1, true));
  assert_false(same(&again, &first));
  EXPECT_OK(prof_limits_get(&second, &heap, 1, false)); /* and that is what is kept now */
  assert_true(near(&again, &second));
  EXPECT_OK(prof_limits_get(&two, &heap, 2, false));
  assert_int_equal(two.threads, 2);
  assert_true(two.bytes[PROF_L1] == 2 * second.bytes[PROF_L1]);
}

/* A text of another kind under the name is not believed. */
static void damaged(void **state) {
  (void)state;
  struct prof_limits before, after;
  EXPECT_OK(prof_limits_get(&before, &heap, 1, false));
  DIR *dir = opendir(in_folder("cache"));
  assert_non_null(dir);
  int spoilt = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    char path[1200], text[512] = "";
    snprintf(path, sizeof path, "%s/%s", in_folder("cache"), entry->d_name);
    FILE *file = fopen(path, "rb");
    size_t n = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL) fclose(file);
    if (n == 0 || strstr(text, "limits ") == NULL) continue;
    files_write(path, "limits 1 1 nonsense");
    spoilt++;
  }
  closedir(dir);
  assert_true(spoilt > 0);
  EXPECT_OK(prof_limits_get(&after, &heap, 1, false));
  assert_true(after.flops_f32 > 1e7 && after.threads == 1);
}

static void no_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault) && fault.n < 60) {
    struct prof_limits limits;
    fault_begin(&fault);
    quern_status status = prof_limits_get(&limits, &heap, 1, true);
    fault_end(&fault);
    if (fault.met && status != QUERN_STATUS_OK) EXPECT_FAULT(&fault, status);
    assert_int_equal(memory_live, 0);
  }
  assert_true(fault.n > 10);
}

/* ---- of a GPU ------------------------------------------------------------------------------------------------ */

static int measured;
static const char *card = "a card";
static void describe_card(struct base_heap *with, char *text, size_t bytes) {
  (void)with;
  snprintf(text, bytes, "%s", card);
}
static quern_status measure_card(struct base_heap *with, struct rt_rates *rates) {
  (void)with;
  if (card[0] == 0) return base_error(QUERN_STATUS_MEMORY, "planted");
  measured++;
  *rates = (struct rt_rates){1e12, 2e12, 8e12, 7e12, 5e11, 1e11, 3e11, 2e-6};
  return QUERN_STATUS_OK;
}

static void of_a_gpu(void **state) {
  (void)state;
  const struct rt_device device = {.name = "fake", .describe = describe_card, .measure = measure_card};
  const struct cg_target *target = cg_target_find("sm_90");
  struct prof_limits limits;
  enum prof_bound bound;
  assert_false(prof_device_limits_find(&limits, &heap, &device, target));
  EXPECT_OK(prof_device_limits_get(&limits, &heap, &device, target, false));
  for (int i = 0; i < 2; i++) { /* measured, then as kept */
    assert_true(limits.flops_f32 == 1e12 && limits.flops_tf32 == 2e12 && limits.flops_bf16 == 8e12);
    assert_true(limits.flops_f16 == 7e12 && limits.flops_f64 == 5e11 && limits.copy == 1e11 && limits.launch == 2e-6);
    assert_true(limits.bandwidth[PROF_L1] == 3e11 && limits.bandwidth[PROF_DRAM] == 1e11);
    assert_true(limits.bytes[PROF_L3] == target->base.l3_bytes);
    assert_true(prof_device_limits_find(&limits, &heap, &device, target));
  }
  assert_true(prof_floor(&limits, &(struct kern_cost){8e12, 0}, QUERN_DTYPE_BF16, 0, &bound) == 1);
  assert_true(prof_floor(&limits, &(struct kern_cost){7e12, 0}, QUERN_DTYPE_F16, 0, &bound) == 1);
  assert_true(prof_floor(&limits, &(struct kern_cost){1e12, 0}, QUERN_DTYPE_I32, 0, &bound) == 1);
  struct prof_step steps[] = {{.cost = {4e12, 0}, .dtype = QUERN_DTYPE_F32},
                              {.cost = {4e12, 0}, .dtype = QUERN_DTYPE_F32, .tf32 = true}};
  prof_steps_floor(&limits, 2, steps);
  assert_true(steps[0].floor == 4 && steps[1].floor == 2);
  EXPECT_OK(prof_device_limits_get(&limits, &heap, &device, target, false));
  assert_int_equal(measured, 1);
  EXPECT_OK(prof_device_limits_get(&limits, &heap, &device, target, true));
  assert_int_equal(measured, 2);
  card = "another card";
  assert_false(prof_device_limits_find(&limits, &heap, &device, target));
  card = "";
  EXPECT_ERROR(prof_device_limits_get(&limits, &heap, &device, target, false), MEMORY, "planted");
}

/* Of devices that measure nothing, nothing is known; those that run on the CPU have its limits. */
static void of_others(void **state) {
  (void)state;
  struct cg_target target;
  struct prof_limits limits = {.threads = 77}, own;
  EXPECT_OK(prof_device_limits_get(&limits, &heap, &rt_null, cg_target_find("sm_90"), false));
  assert_true(limits.threads == 0 && limits.flops_f32 == 0);
  assert_false(prof_device_limits_find(&limits, &heap, &rt_null, cg_target_find("sm_90")));
  EXPECT_OK(rt_cpu.target(&target));
  target.base.threads = 1;
  EXPECT_OK(prof_limits_get(&own, &heap, 1, false));
  EXPECT_OK(prof_device_limits_get(&limits, &heap, &rt_interp, &target, false));
  assert_true(near(&own, &limits) && limits.flops_bf16 == 0);
}

int main(void) {
  memory_largest = (size_t)1 << 30; /* caches may be large, and memory is measured in several times their size */
  const struct CMUnitTest tests[] = {cmocka_unit_test(figures),  cmocka_unit_test(kept),
                                     cmocka_unit_test(damaged),  cmocka_unit_test(no_memory),
                                     cmocka_unit_test(of_a_gpu), cmocka_unit_test(of_others)};
  return cmocka_run_group_tests(tests, begin, end);
}
