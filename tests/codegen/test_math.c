/* tests/codegen/test_math.c -- mathematical functions and random numbers: the compiled C gives the interpreter's bits
*/
#define _DEFAULT_SOURCE
#include "codegen/run.h"

enum { N = 1024 };

static const struct {
  enum ir_op op;
  const char *name;
  int n;
} functions[] = {{IR_EXP, "exp", 1},  {IR_EXPM1, "expm1", 1}, {IR_LOG, "log", 1},   {IR_LOG1P, "log1p", 1},
                 {IR_SIN, "sin", 1},  {IR_COS, "cos", 1},     {IR_TANH, "tanh", 1}, {IR_ERF, "erf", 1},
                 {IR_POW, "pow", 2},  {IR_ATAN2, "atan2", 2}, {IR_SIGN, "sign", 1}, {IR_MOD, "mod", 2},
                 {IR_ERFC, "erfc", 1}};

/* All functions on all inputs as they are, and scaled to where they are interesting. */
static struct kern *make_functions(quern_dtype dtype, int lanes) {
  struct kern *kern = new_kernel();
  for (int i = 0; i < 2; i++) kern_add_mem(kern, dtype, KERN_IN, N);
  for (size_t i = 0; i < 2 * BASE_COUNT(functions); i++) kern_add_mem(kern, dtype, KERN_OUT, N);
  struct kern_builder p = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(N / lanes))}, *b = &p;
  kern_id at = kern_mul(b, kern_task(b), kern_index(b, lanes));
  kern_id x[2] = {kern_load(b, kern_mem(b, 0), at, lanes), kern_load(b, kern_mem(b, 1), at, lanes)};
  int out = 2;
  for (int scaled = 0; scaled < 2; scaled++) {
    for (size_t i = 0; i < BASE_COUNT(functions); i++)
      kern_store(b, kern_mem(b, out++), at, kern_math(b, functions[i].op, dtype, functions[i].n, x));
    kern_id small[2] = {x[0], x[1]};
    for (int i = 0; i < 2; i++) x[i] = kern_math(b, IR_SIN, dtype, 1, &small[i]);
  }
  EXPECT_OK(kern_finish(kern, "functions", NULL));
  return kern;
}

static struct kern *make_random(int lanes) {
  struct kern *kern = new_kernel();
  int out = kern_add_mem(kern, QUERN_DTYPE_U32, KERN_OUT, N);
  struct kern_builder p = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(N / lanes))}, *b = &p;
  kern_id at = kern_mul(b, kern_task(b), kern_index(b, lanes));
  kern_id index = kern_add(b, kern_splat(b, at, lanes), kern_lane(b, QUERN_DTYPE_I64, lanes));
  kern_id seed = kern_const_bits(b, QUERN_DTYPE_U64, 1, 0x123456789abcdef),
          step = kern_const_bits(b, QUERN_DTYPE_U64, 1, 42);
  kern_store(b, kern_mem(b, out), at, kern_random(b, seed, step, 7, index));
  EXPECT_OK(kern_finish(kern, "random", NULL));
  return kern;
}

static void make_all(struct built *built, const struct cg_target *target, bool best) {
  static const quern_dtype types[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F64, QUERN_DTYPE_BF16};
  for (size_t i = 0; i < BASE_COUNT(types); i++) {
    int full = target->base.vector_bytes / BASE_MAX(4, (int)base_dtypes[types[i]].size);
    if (best) built->kernels[built->n++] = make_functions(types[i], 1);
    built->kernels[built->n++] = make_functions(types[i], full);
  }
  built->kernels[built->n++] = make_random(1);
  built->kernels[built->n++] = make_random(16);
}
static void test_functions(void **state) {
  (void)state;
  compare_all(make_all);
}

int main(int argc, char **argv) {
  read_arguments(argc, argv);
  const struct CMUnitTest tests[] = {TEST_HEAP(test_functions)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
