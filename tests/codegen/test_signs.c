/* tests/codegen/test_signs.c -- shorter ways on GPUs, where signs of floats are known or a number is rounded and used again
** Texts are looked at everywhere; where OpenCL has a device, they are run too, and compared with the interpreter.
*/
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "codegen/cg_int.h"
#include "codegen/run.h"

enum { N = 1024, LANES = 4 };
enum argument { ANYTHING, BY_NEG, BY_PRODUCT, SQUARE, LEAST, OTHER_WAY, ARGUMENTS };

static kern_id constant(struct kern_builder *b, double value) { return kern_const_f(b, QUERN_DTYPE_F32, LANES, value); }

/* What the exponential is taken of: not positive, but for the first and the last. */
static kern_id argument_of(struct kern_builder *b, kern_id x, enum argument which) {
  kern_id zero = constant(b, 0), scaled = kern_mul(b, x, constant(b, 1.5)), other = kern_mul(b, constant(b, -1.5), x);
  kern_id minus = kern_un(b, KERN_NEG, x), square = kern_mul(b, x, x);
  switch (which) {
  case BY_NEG: return kern_select(b, kern_bin(b, KERN_LT, x, zero), x, minus);
  case BY_PRODUCT: return kern_select(b, kern_bin(b, KERN_LT, scaled, zero), scaled, other);
  case SQUARE: return kern_mul(b, square, constant(b, -0.5));
  case LEAST: return kern_min(b, x, kern_un(b, KERN_NEG, kern_un(b, KERN_ABS, x)));
  case OTHER_WAY: return kern_select(b, kern_bin(b, KERN_LT, x, zero), minus, x);
  default: return x;
  }
}

/* y = e^x of the argument; y / (1 + y), 1 / (1 + y), one of them, and a quotient that is neither. */
static struct kern *make_share(enum argument which) {
  struct kern *kern = new_kernel();
  kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, N);
  for (int i = 0; i < 5; i++) kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, N);
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(N / LANES))}, *b = &builder;
  kern_id at = kern_mul_i(b, kern_task(b), LANES), x = kern_load(b, kern_mem(b, 0), at, LANES), one = constant(b, 1);
  kern_id argument = argument_of(b, x, which), y = kern_math(b, IR_EXP, QUERN_DTYPE_F32, 1, &argument);
  kern_id whole = kern_add(b, one, y), negative = kern_bin(b, KERN_LT, x, constant(b, 0));
  kern_id parts[] = {y, one, kern_select(b, negative, y, one), x};
  kern_store(b, kern_mem(b, 1), at, y);
  for (int i = 0; i < 4; i++) kern_store(b, kern_mem(b, 2 + i), at, kern_bin(b, KERN_DIV, parts[i], whole));
  EXPECT_OK(kern_finish(kern, "powers", NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  return kern;
}

/* x rounded to bf16, as an f32 and as it is. */
static struct kern *make_rounded(void) {
  struct kern *kern = new_kernel();
  kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, N);
  kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, N);
  kern_add_mem(kern, QUERN_DTYPE_BF16, KERN_OUT, N);
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(N / LANES))}, *b = &builder;
  kern_id at = kern_mul_i(b, kern_task(b), LANES), x = kern_load(b, kern_mem(b, 0), at, LANES);
  kern_id narrow = kern_cast(b, x, QUERN_DTYPE_BF16);
  kern_store(b, kern_mem(b, 1), at, kern_cast(b, narrow, QUERN_DTYPE_F32));
  kern_store(b, kern_mem(b, 2), at, narrow);
  EXPECT_OK(kern_finish(kern, "narrow", NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  return kern;
}

static void test_texts(void **state) {
  (void)state;
  for (int which = 0; which < ARGUMENTS; which++) {
    struct kern *kern = make_share((enum argument)which);
    bool down = which != ANYTHING && which != OTHER_WAY;
    for (int opencl = 0; opencl < 2; opencl++) {
      const char *target = opencl ? "opencl" : "sm_90";
      assert_int_equal(count_words(kern, target, " = lower_f32("), down ? LANES : 0);
      assert_int_equal(count_words(kern, target, " = raise_f32("), down ? 0 : LANES);
      assert_int_equal(count_words(kern, target, " = lesser_f32("), down ? 0 : LANES);
      assert_int_equal(count_words(kern, target, " = share_f32("), down && !opencl ? 3 * LANES : 0);
      assert_int_equal(count_words(kern, target, " / "), down && !opencl ? LANES : 4 * LANES);
    }
    assert_int_equal(count_words(kern, "avx2", "lower_") + count_words(kern, "avx2", "raise_") +
                         count_words(kern, "avx2", "share_"),
                     0);
    kern_free(kern);
  }
  struct kern *kern = make_rounded();
  assert_int_equal(count_words(kern, "sm_90", " = rounded_f32("), LANES);
  assert_int_equal(count_words(kern, "sm_90", " = cvt_bf16_f32("), LANES);
  assert_int_equal(count_words(kern, "opencl", "rounded_"), 0);
  kern_free(kern);
}

static void make_all(struct built *built, const struct cg_target *target, bool best) {
  (void)target, (void)best;
  for (int which = 0; which < ARGUMENTS; which++) built->kernels[built->n++] = make_share((enum argument)which);
  built->kernels[built->n++] = make_rounded();
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
