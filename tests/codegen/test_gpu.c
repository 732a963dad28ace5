/* tests/codegen/test_gpu.c -- kernels of GPUs: lanes that are threads, barriers, dialects
** Texts are looked at everywhere; where OpenCL has a device, they are run too, and compared with the interpreter.
*/
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "codegen/cg_int.h"
#include "codegen/run.h"

enum { ROWS = 5, ROW = 256, LANES = 64 };

static struct kern *finish(struct kern *kern, const char *name) {
  EXPECT_OK(kern_finish(kern, name, NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  return kern;
}

/* A task has a row of x, of which it makes one of y. */
static struct kern_builder rows(struct kern **kern, int64_t wide, kern_id *base) {
  *kern = new_kernel();
  kern_add_mem(*kern, QUERN_DTYPE_F32, KERN_IN, ROWS * ROW);
  kern_add_mem(*kern, QUERN_DTYPE_F32, KERN_OUT, ROWS * wide);
  struct kern_builder b = {.kern = *kern, .fn = kern_add_phase(*kern, KERN_FIXED_TASKS(ROWS))};
  *base = kern_mul_i(&b, kern_task(&b), ROW);
  return b;
}

/* y[i] = 2 x[i + shift] by way of scratch: what a thread stores, another loads unless shift is a multiple of the lanes. */
static struct kern *make_shifted(int64_t shift, bool backwards) {
  struct kern *kern;
  kern_id base;
  struct kern_builder builder = rows(&kern, ROW, &base), *b = &builder;
  kern_id local = kern_local(b, QUERN_DTYPE_F32, ROW + LANES);
  kern_store(b, local, kern_index(b, ROW), kern_const_f(b, QUERN_DTYPE_F32, LANES, 3));
  kern_id i = kern_range(b, 0, ROW, LANES);
  kern_id x = kern_load(b, kern_mem(b, 0), kern_add(b, base, i), LANES);
  kern_store(b, local, i, kern_add(b, x, x));
  kern_end(b);
  i = kern_range(b, 0, ROW, LANES);
  kern_id y;
  if (backwards) {
    kern_id down =
        kern_sub(b, kern_const_i(b, QUERN_DTYPE_I64, LANES, LANES - 1), kern_lane(b, QUERN_DTYPE_I64, LANES));
    y = kern_gather(b, local, kern_add(b, kern_splat(b, i, LANES), down));
  } else {
    y = kern_load(b, local, kern_add_i(b, i, shift), LANES);
  }
  kern_store(b, kern_mem(b, 1), kern_add(b, base, i), y);
  kern_end(b);
  return finish(kern, "shifted");
}

/* Sums of rows by halving, stored as scalars, loaded again, and a last vector that is not whole. */
static struct kern *make_tree(void) {
  struct kern *kern;
  kern_id base;
  struct kern_builder builder = rows(&kern, 1, &base), *b = &builder;
  kern_id sum = kern_var(b, kern_const_f(b, QUERN_DTYPE_F32, LANES, 0));
  kern_id i = kern_range(b, 0, ROW - LANES, LANES);
  kern_set(b, sum, kern_add(b, kern_get(b, sum), kern_load(b, kern_mem(b, 0), kern_add(b, base, i), LANES)));
  kern_end(b);
  kern_id rest = kern_load_n(b, kern_mem(b, 0), kern_add_i(b, base, ROW - LANES), LANES, kern_index(b, 40));
  kern_id all = kern_add(b, kern_get(b, sum), rest);
  kern_id low = kern_low(b, all);
  all = kern_join(b, kern_high(b, all), low); /* halves change places */
  kern_id third = kern_extract(b, all, 3), total = kern_tree(b, IR_SUM, 1, &all);
  kern_store(b, kern_mem(b, 1), kern_task(b), total);
  kern_id again = kern_load(b, kern_mem(b, 1), kern_task(b), 1);
  kern_store(b, kern_mem(b, 1), kern_task(b), kern_add(b, again, third));
  return finish(kern, "tree");
}

/* Rows whose number is odd are negated: a branch that all threads of a task take alike. */
static struct kern *make_branch(void) {
  struct kern *kern;
  kern_id base;
  struct kern_builder builder = rows(&kern, 1, &base), *b = &builder;
  kern_id x = kern_load(b, kern_mem(b, 0), base, LANES), odd = kern_imod(b, kern_task(b), 2);
  kern_if(b, kern_bin(b, KERN_EQ, odd, kern_index(b, 1)));
  kern_store(b, kern_mem(b, 1), kern_task(b), kern_un(b, KERN_NEG, kern_tree(b, IR_SUM, 1, &x)));
  kern_else(b);
  kern_store(b, kern_mem(b, 1), kern_task(b), kern_tree(b, IR_SUM, 1, &x));
  kern_end(b);
  return finish(kern, "branch");
}

/* ---- which ------------------------------------------------------------------------------------------------ */

static void test_groups(void **state) {
  (void)state;
  struct kern *kern = make_shifted(1, false);
  const struct cg_target *cuda = cg_target_find("sm_90"), *avx2 = cg_target_find("avx2");
  assert_int_equal(cg_group(kern, 0, cuda), LANES);
  assert_int_equal(cg_shared(kern, 0, cuda), (ROW + LANES) * 4);
  assert_int_equal(cg_scratch(kern, cuda), 0);
  assert_int_equal(cg_scratch(kern, avx2), kern_scratch_bytes(kern));
  kern_free(kern);
  kern = make_branch();
  assert_int_equal(cg_group(kern, 0, cuda), LANES);
  assert_int_equal(cg_group(kern, 0, cg_target_find("opencl")), 1);
  kern_free(kern);
  /* too much for shared memory: each thread has a part of it; and what crosses lanes in a way of its own is one thread's */
  for (int odd = 0; odd < 2; odd++) {
    kern = new_kernel();
    kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, LANES);
    struct kern_builder b = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(1))};
    kern_id local = kern_local(&b, QUERN_DTYPE_F32, CG_SHARED_BYTES), at = kern_index(&b, 0);
    kern_id x = kern_const_f(&b, QUERN_DTYPE_F32, LANES, 1);
    int pattern[LANES];
    for (int i = 0; i < LANES; i++) pattern[i] = LANES - 1 - i;
    if (odd == 1) x = kern_shuffle(&b, x, x, LANES, pattern);
    kern_store(&b, local, at, x);
    kern_store(&b, kern_mem(&b, 0), at, x);
    (void)finish(kern, "large");
    assert_int_equal(cg_group(kern, 0, cuda), odd == 1 ? 1 : LANES);
    assert_int_equal(cg_shared(kern, 0, cuda), 0);
    assert_int_equal(cg_scratch(kern, cuda), 4 * CG_SHARED_BYTES / (odd == 1 ? 1 : LANES));
    kern_free(kern);
  }
}

/* How often a word stands in the text of a kernel's body. */
static int count_words(const struct kern *kern, const char *target, const char *word) {
  struct cg_unit unit;
  int n = 0;
  cg_unit_init(&unit, &heap, cg_target_find(target));
  EXPECT_OK(cg_unit_add(&unit, kern));
  for (const char *at = unit.body.at; (at = strstr(at, word)) != NULL; at += strlen(word)) n++;
  cg_unit_fini(&unit);
  return n;
}

/* One barrier a LOCAL; more where threads meet in memory. */
static void test_barriers(void **state) {
  (void)state;
  static const struct {
    int64_t shift;
    bool backwards, meets;
  } cases[] = {{0, false, false}, {LANES, false, false}, {1, false, true}, {0, true, true}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct kern *kern = make_shifted(cases[i].shift, cases[i].backwards);
    int n = count_words(kern, "sm_90", "__syncthreads();");
    if (cases[i].meets ? n < 3 : n != 1) fail_msg("case %zu has %d barriers", i, n);
    assert_int_equal(count_words(kern, "opencl", "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"), n);
    kern_free(kern);
  }
  struct kern *kern = make_tree();
  assert_true(count_words(kern, "sm_90", "__shfl_sync") == 10 && count_words(kern, "opencl", "__shfl_sync") == 0);
  assert_true(count_words(kern, "sm_90", "if (lane < 1)") == 2);
  kern_free(kern);
}

/* ---- literals and wrapping integers ------------------------------------------------------------------------- */

static void test_literals(void **state) {
  (void)state;
  static const struct {
    quern_dtype dtype;
    uint64_t bits;
    const char *cuda, *opencl;
  } cases[] = {
      {QUERN_DTYPE_F32, 0x7f800000, "as_f32_u32(0x7f800000u)", "as_f32_u32(0x7f800000u)"},
      {QUERN_DTYPE_F64, 0xfff0000000000000, "as_f64_u64(0xfff0000000000000ul)", "as_f64_u64(0xfff0000000000000ul)"},
      {QUERN_DTYPE_I64, 70000, "70000ll", "70000l"},
      {QUERN_DTYPE_U64, 70000, "70000ull", "70000ul"},
      {QUERN_DTYPE_I64, 0x8000000000000000, "(-0x7fffffffffffffffll - 1)", "(-0x7fffffffffffffffl - 1)"},
  };
  for (size_t i = 0; i < 2 * BASE_COUNT(cases); i++) {
    struct base_str text;
    const char *target = i % 2 == 0 ? "sm_90" : "opencl";
    base_str_init(&text, &heap);
    cg_literal(&text, cg_dialect(cg_target_find(target)), cases[i / 2].dtype, cases[i / 2].bits);
    assert_string_equal(text.at, i % 2 == 0 ? cases[i / 2].cuda : cases[i / 2].opencl);
    base_str_fini(&text);
  }
}

/* ---- run ---------------------------------------------------------------------------------------------------- */

static void make_all(struct built *built, const struct cg_target *target, bool best) {
  (void)target, (void)best;
  static const int64_t shifts[] = {0, 1, 40, LANES};
  for (size_t i = 0; i < BASE_COUNT(shifts); i++) built->kernels[built->n++] = make_shifted(shifts[i], false);
  built->kernels[built->n++] = make_shifted(0, true);
  built->kernels[built->n++] = make_tree();
  built->kernels[built->n++] = make_branch();
}

static void test_run(void **state) {
  (void)state;
  struct rt_stream *stream;
  if (gpu == NULL) gpu = &rt_opencl;
  if (gpu->remote->open(&stream, &heap) != QUERN_STATUS_OK) {
    print_message("%s\n", quern_last_error());
    skip();
  }
  gpu->remote->close(stream);
  compare_all(make_all);
}

int main(int argc, char **argv) {
  read_arguments(argc, argv);
  const struct CMUnitTest tests[] = {TEST_HEAP(test_groups), TEST_HEAP(test_barriers), TEST_HEAP(test_literals),
                                     TEST_HEAP(test_run)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
