/* tests/codegen/test_control.c -- kernels written by hand: the compiled C gives the interpreter's bits
** Blocks, variables, calls, scratch, phases, tables, dot products, division of indices, ends of memory.
*/
#define _DEFAULT_SOURCE
#include "codegen/run.h"

enum { N = 1024, ODD = 1021 };

static struct kern_builder phase(struct kern *kern, struct kern_tasks tasks) {
  struct kern_fn *fn = kern_add_phase(kern, tasks);
  assert_non_null(fn);
  return (struct kern_builder){kern, fn};
}

static void add(struct built *built, struct kern *kern, const char *name) {
  EXPECT_OK(kern_finish(kern, name, NULL));
  assert_true(built->n < MAX_KERNELS);
  built->kernels[built->n++] = kern;
}

/* ---- ends of memory ------------------------------------------------------------------------------------ */

/* A copy whose last vector is not whole, forwards and backwards from the end. */
static struct kern *make_tail(quern_dtype dtype, int lanes) {
  struct kern *kern = new_kernel();
  int in = kern_add_mem(kern, dtype, KERN_IN, ODD), copy = kern_add_mem(kern, dtype, KERN_OUT, ODD);
  int wide = kern_add_mem(kern, dtype, KERN_OUT, ODD + lanes);
  struct kern_builder p = phase(kern, KERN_FIXED_TASKS((ODD + lanes - 1) / lanes)), *b = &p;
  kern_id at = kern_mul(b, kern_task(b), kern_index(b, lanes));
  kern_id count = kern_min(b, kern_sub(b, kern_index(b, ODD), at), kern_index(b, lanes));
  kern_id x = kern_load_n(b, kern_mem(b, in), at, lanes, count);
  kern_store_n(b, kern_mem(b, copy), at, x, count);
  kern_store(b, kern_mem(b, wide), at, x);
  return kern;
}
static void make_tails(struct built *built, const struct cg_target *target, bool best) {
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
    int full = target->base.vector_bytes / (int)base_dtypes[d].size;
    for (int lanes = full; lanes <= (best ? 2 : 1) * full && lanes <= KERN_MAX_LANES; lanes *= 2)
      add(built, make_tail((quern_dtype)d, lanes), "tail");
    if (best) add(built, make_tail((quern_dtype)d, 2), "tail");
  }
}

/* ---- blocks and variables ------------------------------------------------------------------------------ */

/* Nested loops, one with a bound that is given at run time, a branch, variables of every kind. */
static struct kern *make_blocks(int lanes) {
  struct kern *kern = new_kernel();
  kern->n_scalars = 2;
  int in = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, N), out = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, N);
  int counts = kern_add_mem(kern, QUERN_DTYPE_I64, KERN_OUT, N);
  struct kern_builder p = phase(kern, (struct kern_tasks){0, 3, 2}), *b = &p; /* 8 tasks */
  kern_id zero = kern_index(b, 0), at = kern_mul(b, kern_task(b), kern_index(b, lanes));
  kern_id sum = kern_var(b, kern_const_f(b, QUERN_DTYPE_F32, lanes, -0.0));
  kern_id any = kern_var(b, kern_const_bits(b, QUERN_DTYPE_BOOL, lanes, 0));
  kern_id turns = kern_var(b, zero), odd = kern_var(b, kern_const_bits(b, QUERN_DTYPE_BOOL, 1, 0));
  kern_id i = kern_for(b, zero, kern_scalar(b, 0), 1);
  kern_id j = kern_for(b, i, kern_add(b, kern_scalar(b, 1), kern_index(b, 4)), 2);
  kern_id ij = kern_add(b, kern_mul(b, i, kern_index(b, 7)), j);
  kern_id x = kern_load(b, kern_mem(b, in), kern_add(b, at, ij), lanes);
  kern_id is_odd = kern_bin(b, KERN_EQ, kern_imod(b, ij, 2), kern_index(b, 1));
  kern_if(b, is_odd);
  kern_set(b, sum, kern_add(b, kern_get(b, sum), x));
  kern_set(b, odd, kern_un(b, KERN_NOT, kern_get(b, odd)));
  kern_else(b);
  kern_id y = kern_mul(b, x, x);
  kern_if(b, kern_get(b, odd));
  kern_set(b, sum, kern_sub(b, kern_get(b, sum), y));
  kern_end(b);
  kern_set(b, any, kern_bin(b, KERN_OR, kern_get(b, any), kern_bin(b, KERN_LT, x, y)));
  kern_end(b);
  kern_set(b, turns, kern_add(b, kern_get(b, turns), kern_index(b, 1)));
  kern_end(b);
  kern_end(b);
  kern_id picked = kern_select(b, kern_get(b, any), kern_get(b, sum), kern_const_f(b, QUERN_DTYPE_F32, lanes, 0.1));
  kern_store(b, kern_mem(b, out), at, picked);
  kern_store(b, kern_mem(b, counts), kern_task(b), kern_get(b, turns));
  return kern;
}
static void make_all_blocks(struct built *built, const struct cg_target *target, bool best) {
  (void)best;
  int full = target->base.vector_bytes / 4;
  for (int lanes = 1; lanes <= 2 * full; lanes *= lanes == 1 ? full : 2) add(built, make_blocks(lanes), "blocks");
}

/* ---- calls, scratch, phases ---------------------------------------------------------------------------- */

/* fn 0 reverses a row through scratch of its own; fn 1 calls it, with scratch before and after. The first phase writes
** a workspace, the second reads what other tasks of the first have written. */
static struct kern *make_calls(int shift) {
  enum { ROW = 32 };
  struct kern *kern = new_kernel();
  int in = kern_add_mem(kern, QUERN_DTYPE_BF16, KERN_IN, N), out = kern_add_mem(kern, QUERN_DTYPE_BF16, KERN_OUT, N);
  int work = kern_add_mem(kern, QUERN_DTYPE_BF16, KERN_WORK, N);
  const quern_dtype types[] = {QUERN_DTYPE_BF16, QUERN_DTYPE_BF16};
  struct kern_builder f = {kern, kern_add_fn(kern, "reverse", 2, types, 1)}, *b = &f;
  kern_id local = kern_local(b, QUERN_DTYPE_BF16, ROW), n = kern_scalar(b, 0);
  kern_id i = kern_for(b, kern_index(b, 0), n, 1);
  kern_id back = kern_sub(b, kern_sub(b, n, kern_index(b, 1)), i);
  kern_store(b, local, back, kern_load(b, kern_mem(b, 0), i, 1));
  kern_end(b);
  i = kern_for(b, kern_index(b, 0), n, 1);
  kern_store(b, kern_mem(b, 1), i, kern_load(b, local, i, 1));
  kern_end(b);
  struct kern_builder g = {kern, kern_add_fn(kern, "around reverse", 2, types, 0)};
  b = &g;
  kern_id before = kern_local(b, QUERN_DTYPE_BF16, ROW), size = kern_index(b, ROW);
  kern_call_fn(b, f.fn, 2, (kern_id[]){kern_mem(b, 0), before}, 1, &size);
  i = kern_for(b, kern_index(b, 0), kern_index(b, 2), 1);
  kern_id inner = kern_local(b, QUERN_DTYPE_BF16, 3); /* is released at the loop's end */
  kern_store(b, inner, kern_index(b, 0), kern_load(b, before, i, 1));
  kern_call_fn(b, f.fn, 2, (kern_id[]){before, before}, 1, &size);
  kern_store(b, before, i, kern_load(b, inner, kern_index(b, 0), 1));
  kern_end(b);
  kern_id after = kern_local(b, QUERN_DTYPE_BF16, ROW);
  kern_call_fn(b, f.fn, 2, (kern_id[]){before, after}, 1, &size);
  i = kern_for(b, kern_index(b, 0), size, 16);
  kern_store(b, kern_mem(b, 1), i, kern_load(b, after, i, 16));
  kern_end(b);
  struct kern_builder p = phase(kern, KERN_FIXED_TASKS(N / ROW));
  b = &p;
  kern_id row = kern_mul(b, kern_task(b), size = kern_index(b, ROW));
  kern_call_fn(b, g.fn, 2, (kern_id[]){kern_at(b, kern_mem(b, in), row), kern_at(b, kern_mem(b, work), row)}, 0, NULL);
  struct kern_builder q = phase(kern, KERN_FIXED_TASKS(N / ROW));
  b = &q;
  row = kern_mul(b, kern_task(b), kern_index(b, ROW));
  kern_id other =
      kern_mul(b, kern_imod(b, kern_add(b, kern_task(b), kern_index(b, shift)), N / ROW), kern_index(b, ROW));
  kern_store(b, kern_mem(b, out), row, kern_load(b, kern_mem(b, work), other, ROW));
  return kern;
}
static void make_all_calls(struct built *built, const struct cg_target *target, bool best) {
  (void)target, (void)best;
  add(built, make_calls(1), "calls");
  add(built, make_calls(5), "calls"); /* whose functions are the first's */
}

/* ---- tables and dot products --------------------------------------------------------------------------- */

static struct kern *make_table(quern_dtype dtype, int lanes) {
  struct kern *kern = new_kernel();
  int in = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_IN, N), out = kern_add_mem(kern, dtype, KERN_OUT, N);
  struct kern_builder p = phase(kern, KERN_FIXED_TASKS(N / lanes)), *b = &p;
  kern_id at = kern_mul(b, kern_task(b), kern_index(b, lanes));
  kern_id index =
      kern_bin(b, KERN_AND, kern_load(b, kern_mem(b, in), at, lanes), kern_const_i(b, QUERN_DTYPE_I32, lanes, 15));
  uint64_t bits[16] = {0};
  for (size_t i = 0; i < 16; i++) {
    char element[8] = {0};
    double x = 0.37 * (double)i - 1;
    base_convert(dtype, element, 0, QUERN_DTYPE_F64, &x, 0);
    memcpy(&bits[i], element, base_dtypes[dtype].size);
  }
  kern_store(b, kern_mem(b, out), at, kern_table(b, index, dtype, bits));
  return kern;
}

/* bytes: the operands are vectors of bytes, else of i32. */
static struct kern *make_dot4(int lanes, bool bytes) {
  struct kern *kern = new_kernel();
  int acc = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_IN, N);
  int u = kern_add_mem(kern, bytes ? QUERN_DTYPE_U8 : QUERN_DTYPE_I32, KERN_IN, bytes ? 4 * N : N);
  int s = kern_add_mem(kern, bytes ? QUERN_DTYPE_I8 : QUERN_DTYPE_I32, KERN_IN, bytes ? 4 * N : N);
  int out = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_OUT, N);
  struct kern_builder p = phase(kern, KERN_FIXED_TASKS(N / lanes)), *b = &p;
  kern_id at = kern_mul(b, kern_task(b), kern_index(b, lanes)), four = bytes ? kern_mul(b, at, kern_index(b, 4)) : at;
  int n = bytes ? 4 * lanes : lanes;
  kern_id x = kern_load(b, kern_mem(b, u), four, n), y = kern_load(b, kern_mem(b, s), four, n);
  kern_store(b, kern_mem(b, out), at, kern_dot4(b, kern_load(b, kern_mem(b, acc), at, lanes), x, y));
  return kern;
}
static void make_special(struct built *built, const struct cg_target *target, bool best) {
  (void)best;
  const quern_dtype types[] = {QUERN_DTYPE_F32,  QUERN_DTYPE_F64, QUERN_DTYPE_I32,
                               QUERN_DTYPE_BF16, QUERN_DTYPE_U8,  QUERN_DTYPE_BOOL};
  int full = target->base.vector_bytes / 4;
  for (size_t i = 0; i < BASE_COUNT(types); i++)
    for (int lanes = 1; lanes <= 2 * full; lanes *= lanes == 1 ? full / 2 : 2)
      add(built, make_table(types[i], lanes), "table");
  for (int lanes = 1; lanes <= 32; lanes *= 2) {
    add(built, make_dot4(lanes, false), "dot4");
    if (lanes <= 16) add(built, make_dot4(lanes, true), "dot4_bytes");
  }
}

/* ---- division of indices ------------------------------------------------------------------------------- */

static struct kern *make_division(int lanes) {
  static const int64_t by[] = {2, 3, 7, 12, 64, 1000, 1021, INT64_C(1) << 40, (INT64_C(1) << 40) + 1, INT64_MAX};
  enum { BY = BASE_COUNT(by) };
  struct kern *kern = new_kernel();
  kern_add_mem(kern, QUERN_DTYPE_I64, KERN_IN, N);
  kern_add_mem(kern, QUERN_DTYPE_I32, KERN_IN, N);
  for (int i = 0; i < 10 * BY; i++) kern_add_mem(kern, QUERN_DTYPE_I64, KERN_OUT, N);
  struct kern_builder p = phase(kern, KERN_FIXED_TASKS(N / lanes)), *b = &p;
  kern_id at = kern_mul(b, kern_task(b), kern_index(b, lanes));
  kern_id any = kern_load(b, kern_mem(b, 0), at, lanes);                                 /* nothing is known of it */
  kern_id wide = kern_cast(b, kern_load(b, kern_mem(b, 1), at, lanes), QUERN_DTYPE_I64); /* of 32 bits, times 2^15 */
  wide = kern_mul(b, wide, kern_const_i(b, QUERN_DTYPE_I64, lanes, 32768));
  wide = kern_add(b, wide, kern_lane(b, QUERN_DTYPE_I64, lanes));
  kern_id index = kern_add(b, kern_splat(b, at, lanes), kern_lane(b, QUERN_DTYPE_I64, lanes)); /* not negative */
  kern_id less = kern_sub(b, index, kern_const_i(b, QUERN_DTYPE_I64, lanes, 700));
  kern_id negative = kern_mul(b, index, kern_const_i(b, QUERN_DTYPE_I64, lanes, -3));
  const kern_id x[] = {any, wide, index, less, negative};
  int out = 2;
  for (int i = 0; i < BY; i++)
    for (size_t j = 0; j < BASE_COUNT(x); j++) {
      kern_store(b, kern_mem(b, out++), at, kern_idiv(b, x[j], by[i]));
      kern_store(b, kern_mem(b, out++), at, kern_imod(b, x[j], by[i]));
    }
  return kern;
}
static void make_divisions(struct built *built, const struct cg_target *target, bool best) {
  (void)best;
  int full = target->base.vector_bytes / 8;
  for (int lanes = 1; lanes <= 2 * full; lanes *= lanes == 1 ? full : 2) add(built, make_division(lanes), "division");
}

/* ---- */

static void make_everything(struct built *built, const struct cg_target *target, bool best) {
  make_tails(built, target, best);
  make_all_blocks(built, target, best);
  make_all_calls(built, target, best);
  make_special(built, target, best);
  make_divisions(built, target, best);
}
static void test_control(void **state) {
  (void)state;
  compare_all(make_everything);
}

/* A kernel that is changed after it was compiled differs from what was compiled: the comparison sees it. */
static void test_comparison(void **state) {
  (void)state;
  if (gpu != NULL) skip(); /* its texts are C */
  static struct built built;
  const struct cg_target *target = cg_target_find("generic");
  const int64_t scalars[KERN_MAX_SCALARS] = {5, 3};
  add(&built, make_division(2), "division");
  build(&built, "cc", target);
  assert_int_equal(differences(&built, 0, scalars, "unchanged"), 0);
  struct kern_fn *fn = built.kernels[0]->fns.at[0];
  for (size_t i = 0; i < fn->insts.n; i++)
    if (fn->insts.at[i].op == KERN_IDIV && fn->insts.at[i].imm == 7) fn->insts.at[i].imm = 9;
  assert_int_equal(differences(&built, 0, scalars, "changed on purpose"), 5);
  free_built(&built);
}

int main(int argc, char **argv) {
  read_arguments(argc, argv);
  const struct CMUnitTest tests[] = {TEST_HEAP(test_control), TEST_HEAP(test_comparison)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
