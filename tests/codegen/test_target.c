/* tests/codegen/test_target.c -- the rows of targets.def and the one for this processor
*/
#include "codegen/codegen.h"
#include "unit.h"

static void test_rows(void **state) {
  (void)state;
  assert_string_equal(cg_targets[cg_target_count - 1].base.name, "generic");
  for (size_t i = 0; i < cg_target_count; i++) {
    const struct base_target *t = &cg_targets[i].base;
    assert_ptr_equal(cg_target_find(t->name), &cg_targets[i]); /* no name twice */
    assert_true(t->vector_bytes >= 16 && t->vector_bytes <= 64 && (t->vector_bytes & (t->vector_bytes - 1)) == 0);
    assert_true(t->registers >= 16 && t->threads == 1);
    assert_true(t->l1_bytes > 0 && t->l2_bytes > t->l1_bytes && t->l3_bytes > t->l2_bytes);
    assert_true(!t->vnni || cg_targets[i].isa == CG_ISA_AVX512);
  }
  for (size_t i = 0; i < cg_gpu_count; i++) {
    const struct base_target *t = &cg_gpus[i].base;
    assert_ptr_equal(cg_target_find(t->name), &cg_gpus[i]);
    assert_true(t->gpu && t->fma && t->vector_bytes == 4 && t->threads % CG_BLOCK_THREADS == 0);
    assert_true(t->l1_bytes > 0 && t->l2_bytes > t->l1_bytes && t->l3_bytes > t->l2_bytes);
    assert_true(t->multiprocessors > 0 && t->max_threads_per_sm >= 1024 &&
                t->max_threads_per_sm % CG_BLOCK_THREADS == 0);
    assert_true(t->registers_per_sm >= 32 * t->max_threads_per_sm);
    assert_true(cg_gpus[i].isa == CG_ISA_OPENCL || strstr(cg_gpus[i].march, t->name) != NULL);
    assert_false(cg_target_runs(&cg_gpus[i])); /* on the processor */
  }
  assert_null(cg_target_find("avx"));
  assert_null(strstr(cg_flags, "  "));
}

static void test_detect(void **state) {
  (void)state;
  struct cg_target target;
  cg_target_detect(&target);
  const struct cg_target *row = cg_target_find(target.base.name);
  assert_non_null(row);
  assert_true(cg_target_runs(row));
  for (const struct cg_target *better = cg_targets; better < row; better++) assert_false(cg_target_runs(better));
  assert_true(cg_target_runs(cg_target_find("generic")));
  assert_true(target.base.l1_bytes >= 4096 && target.base.l2_bytes >= target.base.l1_bytes);
  assert_int_equal(target.base.vector_bytes, row->base.vector_bytes);
  struct cg_target none = *row;
  none.base.name = "no such row";
  assert_false(cg_target_runs(&none));
}

/* Libraries and units behind the name, of cards that have them. */
static void test_parse(void **state) {
  (void)state;
  struct cg_target target;
  EXPECT_OK(cg_target_parse(&target, "sm_80+dnn+mma"));
  assert_int_equal(target.base.capabilities, BASE_LIBRARY_DNN | BASE_TENSOR_CORES);
  EXPECT_OK(cg_target_parse(&target, "sm_120"));
  assert_int_equal(target.base.capabilities, 0);
  assert_true(cg_target_has_mma(&target) && !cg_target_has_mma(cg_target_find("opencl")));
  EXPECT_ERROR(cg_target_parse(&target, "sm_75+mma"), INVALID, "from sm_80 on");
  EXPECT_ERROR(cg_target_parse(&target, "opencl+mma"), INVALID, "is no library of it");
  EXPECT_ERROR(cg_target_parse(&target, "sm_90+mm"), INVALID, "is no library of it");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_detect),
                                     cmocka_unit_test(test_parse)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
