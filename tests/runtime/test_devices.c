/* tests/runtime/test_devices.c -- the devices interp and null: the one runs kernels, the other only prints them */
#include "runtime/runtime.h"

#define TEST_CONTEXT_NEW ir_context_new
#include "unit.h"

/* y[i] = x[i] + 1 for 20 elements of f32. */
static struct kern *make_kernel(void) {
  struct kern *kern = NULL;
  EXPECT_OK(kern_new(&kern, &ctx->heap));
  kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, 20);
  kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, 20);
  struct kern_builder b = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(5))};
  kern_id at = kern_mul(&b, kern_task(&b), kern_index(&b, 4)), x = kern_mem(&b, 0), y = kern_mem(&b, 1);
  kern_store(&b, y, at, kern_add(&b, kern_load(&b, x, at, 4), kern_const_f(&b, QUERN_DTYPE_F32, 4, 1)));
  EXPECT_OK(kern_finish(kern, "inc", NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  return kern;
}

static void test_find(void **state) {
  (void)state;
  assert_ptr_equal(rt_device_find("interp"), &rt_interp);
  assert_ptr_equal(rt_device_find("null"), &rt_null);
  assert_ptr_equal(rt_device_find("cpu"), &rt_cpu);
  assert_null(rt_device_find("none"));
}

/* The target is the one that kernels for this CPU are made for. */
static void test_targets(void **state) {
  (void)state;
  const struct rt_device *devices[] = {&rt_interp, &rt_null};
  struct cg_target detected;
  cg_target_detect(&detected);
  for (size_t i = 0; i < 2; i++) {
    struct cg_target target;
    EXPECT_OK(devices[i]->target(&target));
    assert_string_equal(target.base.name, detected.base.name);
    assert_true(target.base.threads >= 1);
  }
}

static void test_interp(void **state) {
  (void)state;
  struct kern *kern = make_kernel();
  struct cg_target target;
  struct rt_module *module = NULL;
  struct rt_stats stats = {.compiled = 9, .cached = 9, .seconds = -1};
  float x[20], y[20] = {0};
  for (int i = 0; i < 20; i++) x[i] = (float)i;
  EXPECT_OK(rt_interp.target(&target));
  const struct kern *kernels[] = {kern, kern};
  EXPECT_OK(rt_interp.build(&module, &ctx->heap, 2, kernels, &target, &stats));
  assert_true(stats.compiled == 0 && stats.cached == 0 && stats.seconds >= 0);
  EXPECT_OK(rt_interp.launch(module, 1, &(struct kern_launch){.mems = (void *[]){x, y}}, NULL, NULL, 0));
  for (int i = 0; i < 20; i++) assert_true(y[i] == (float)i + 1);
  rt_interp.free(module);
  rt_interp.free(NULL);
  kern_free(kern);
}

static void test_null(void **state) {
  (void)state;
  struct kern *kern = make_kernel();
  struct cg_target target;
  struct rt_module *module = NULL;
  float x[20] = {0}, y[20] = {0};
  EXPECT_OK(rt_null.target(&target));
  EXPECT_OK(rt_null.build(&module, &ctx->heap, 1, (const struct kern *[]){kern}, &target, NULL));
  EXPECT_ERROR(rt_null.launch(module, 0, &(struct kern_launch){.mems = (void *[]){x, y}}, NULL, NULL, 0), UNSUPPORTED,
               "device null: kernel 0 was not run");
  rt_null.free(module);
  rt_null.free(NULL);
  kern_free(kern);
}

static void test_faults(void **state) {
  (void)state;
  struct kern *kern = make_kernel();
  const struct rt_device *devices[] = {&rt_interp, &rt_null};
  struct cg_target target;
  cg_target_detect(&target);
  for (size_t i = 0; i < 2; i++) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      struct rt_module *module = NULL;
      fault_begin(&fault);
      quern_status status = devices[i]->build(&module, &ctx->heap, 1, (const struct kern *[]){kern}, &target, NULL);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      devices[i]->free(module);
    }
    assert_true(fault.n > (i == 0 ? 1 : 5));
  }
  kern_free(kern);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_find), TEST(test_targets), TEST(test_interp), TEST(test_null),
                                     TEST(test_faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
