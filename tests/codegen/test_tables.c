/* tests/codegen/test_tables.c -- tables in CUDA: rows in shared memory, one access for those of an index
** With the argument cuda the kernels are run there, and compared with the interpreter.
*/
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "codegen/cg_int.h"
#include "codegen/run.h"

enum { N = 1024, LANES = 4, GROUP_LANES = 64 };

/* f(x), or in another branch where x[0] is negative. */
static struct kern *make(enum ir_op op, int lanes, bool branch) {
  struct kern *kern = new_kernel();
  for (int i = 0; i < 2; i++) kern_add_mem(kern, QUERN_DTYPE_F32, i == 0 ? KERN_IN : KERN_OUT, N);
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(N / lanes))}, *b = &builder;
  kern_id at = kern_mul_i(b, kern_task(b), lanes), x = kern_load(b, kern_mem(b, 0), at, lanes);
  kern_id y = kern_var(b, x);
  if (branch)
    kern_if(b, kern_bin(b, KERN_LT, kern_load(b, kern_mem(b, 0), at, 1), kern_const_f(b, QUERN_DTYPE_F32, 1, 0)));
  kern_set(b, y, kern_math(b, op, QUERN_DTYPE_F32, 1, &x));
  if (branch) kern_end(b);
  kern_id last = kern_get(b, y);
  kern_store(b, kern_mem(b, 1), at, kern_math(b, op, QUERN_DTYPE_F32, 1, &last));
  EXPECT_OK(kern_finish(kern, "looked_up", NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  return kern;
}

static void test_texts(void **state) {
  (void)state;
  static const struct {
    enum ir_op op;
    int lanes, rows, own; /* rows of the block; lanes of a thread */
    bool branch;
  } cases[] = {{IR_ERF, LANES, 1, LANES, false},  {IR_TANH, LANES, 2, LANES, false}, {IR_ERF, GROUP_LANES, 1, 1, false},
               {IR_ERF, GROUP_LANES, 1, 1, true}, {IR_ERF, LANES, 0, 0, true}, /* threads of a warp go different ways */
               {IR_COS, LANES, 0, 0, false} /* its tables are of f64 */};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct kern *kern = make(cases[i].op, cases[i].lanes, cases[i].branch);
    int rows = count_words(kern, "sm_90", "__shared__ w4 s_"), loads = count_words(kern, "sm_90", " = s_");
    if (rows != cases[i].rows || loads != 2 * rows * cases[i].own)
      fail_msg("case %zu: %d rows, %d loads", i, rows, loads);
    assert_int_equal(count_words(kern, "sm_90", "__syncthreads();\n  for (i64 "), rows > 0 ? 1 : 0);
    assert_int_equal(count_words(kern, "opencl", "w4 s_"), 0);
    kern_free(kern);
  }
}

static void make_all(struct built *built, const struct cg_target *target, bool best) {
  (void)target, (void)best;
  for (int branch = 0; branch < 2; branch++)
    for (int wide = 0; wide < 2; wide++) {
      built->kernels[built->n++] = make(IR_ERF, wide ? GROUP_LANES : LANES, branch);
      built->kernels[built->n++] = make(IR_TANH, wide ? GROUP_LANES : LANES, branch);
    }
}

static void test_run(void **state) {
  (void)state;
  need_device();
  compare_all(make_all);
}

int main(int argc, char **argv) {
  read_arguments(argc, argv);
  const struct CMUnitTest tests[] = {TEST_HEAP(test_texts), TEST_HEAP(test_run)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
