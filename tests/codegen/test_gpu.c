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

/* Rows of `wide` elements by thread blocks with several lanes each: y is what the row's sum, least and greatest make of an
** element. The last vector of a row has what is left; shift moves rows away from where 16 bytes begin. */
static struct kern *make_wide(quern_dtype dtype, int64_t wide, int lanes, int group, int64_t shift) {
  struct kern *kern = new_kernel();
  kern_add_mem(kern, dtype, KERN_IN, ROWS * wide + shift);
  kern_add_mem(kern, dtype, KERN_OUT, ROWS * wide);
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(ROWS))}, *b = &builder;
  kern->phases[0].block_threads = group;
  quern_dtype acc = base_dtypes[dtype].size < 4 ? QUERN_DTYPE_F32 : dtype;
  kern_id base = kern_mul_i(b, kern_task(b), wide), x[16] = {0}, sum = KERN_NONE, most = KERN_NONE;
  int n = 0;
  for (int64_t at = 0; at < wide; at += lanes, n++) {
    kern_id count = wide - at < lanes ? kern_index(b, wide - at) : KERN_NONE;
    kern_id raw = kern_load_n(b, kern_mem(b, 0), kern_add_i(b, base, at + shift), lanes, count);
    x[n] = kern_cast(b, raw, acc);
    sum = n == 0 ? x[n] : kern_add(b, sum, x[n]);
    most = n == 0 ? x[n] : kern_max(b, most, x[n]);
  }
  sum = kern_hreduce(b, KERN_ADD, sum);
  kern_id least = kern_hreduce(b, KERN_MIN, x[0]), all = kern_add(b, sum, least);
  all = kern_add(b, all, kern_hreduce(b, KERN_MAX, most));
  all = kern_add(b, all, kern_extract(b, x[0], lanes / 2 + 1));
  n = 0;
  for (int64_t at = 0; at < wide; at += lanes, n++) {
    kern_id count = wide - at < lanes ? kern_index(b, wide - at) : KERN_NONE;
    kern_id lane = kern_cast(b, kern_lane(b, QUERN_DTYPE_I32, lanes), acc);
    kern_id y = kern_add(b, kern_add(b, x[n], kern_splat(b, all, lanes)), lane);
    kern_store_n(b, kern_mem(b, 1), kern_add_i(b, base, at), kern_cast(b, y, dtype), count);
  }
  return finish(kern, "wide");
}

/* ---- which ------------------------------------------------------------------------------------------------ */

static void test_groups(void **state) {
  (void)state;
  struct kern *kern = make_shifted(1, false);
  const struct cg_target *cuda = cg_target_find("sm_90"), *avx2 = cg_target_find("avx2");
  assert_int_equal(cg_block_threads(kern, 0, cuda), LANES);
  assert_int_equal(cg_shared_bytes(kern, 0, cuda), (ROW + LANES) * 4);
  assert_int_equal(cg_scratch(kern, cuda), 0);
  assert_int_equal(cg_scratch(kern, avx2), kern_scratch_bytes(kern));
  kern_free(kern);
  kern = make_branch();
  assert_int_equal(cg_block_threads(kern, 0, cuda), LANES);
  assert_int_equal(cg_block_threads(kern, 0, cg_target_find("opencl")), 1);
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
    assert_int_equal(cg_block_threads(kern, 0, cuda), odd == 1 ? 1 : LANES);
    assert_int_equal(cg_shared_bytes(kern, 0, cuda), 0);
    assert_int_equal(cg_scratch(kern, cuda), 4 * CG_SHARED_BYTES / (odd == 1 ? 1 : LANES));
    kern_free(kern);
  }
}

/* Kernels whose launches may be joined take their memories from a table, in CUDA; its rows are as many as asked for, and as parameters
** have room for. */
static void test_joined(void **state) {
  (void)state;
  const struct cg_target *cuda = cg_target_find("sm_90");
  struct kern *kern = make_tree();
  assert_int_equal(cg_batched_launches(kern, cuda), 1);
  assert_int_equal(count_words(kern, "sm_90", "blockIdx.y"), 0);
  const int wanted[][2] = {{1, 1}, {2, 4}, {5, 8}, {74, 128}, {1000, (512 - 3) / 2}};
  for (size_t i = 0; i < BASE_COUNT(wanted); i++) {
    kern->max_batched = wanted[i][0];
    assert_int_equal(cg_batched_launches(kern, cuda), wanted[i][1]);
    assert_int_equal(cg_batched_launches(kern, cg_target_find("opencl")), 1);
  }
  kern->max_batched = 5;
  assert_int_equal(count_words(kern, "sm_90", "void *at[8][2];"), kern->n_phases);
  assert_int_equal(count_words(kern, "sm_90", "table.at[blockIdx.y][1]"), kern->n_phases);
  assert_int_equal(count_words(kern, "opencl", "table"), 0);
  kern_free(kern);
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

/* Each thread puts a number, and takes that of its neighbor in the warp. */
static struct kern *make_near(bool near) {
  struct kern *kern = new_kernel();
  kern_add_mem(kern, QUERN_DTYPE_I64, KERN_OUT, LANES);
  struct kern_builder b = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(1))};
  kern->phases[0].block_threads = LANES;
  kern_id local = near ? kern_local_warp(&b, QUERN_DTYPE_I64, LANES) : kern_local(&b, QUERN_DTYPE_I64, LANES);
  kern_id lane = kern_lane(&b, QUERN_DTYPE_I64, LANES), two = kern_const_i(&b, QUERN_DTYPE_I64, LANES, 2);
  kern_scatter_n(&b, local, lane, kern_mul(&b, lane, lane), KERN_NONE);
  kern_id first = kern_mul(&b, kern_idiv(&b, lane, 2), two), zero = kern_index(&b, 0), out = kern_mem(&b, 0);
  kern_store(&b, out, zero, kern_gather(&b, local, first));
  return finish(kern, near ? "near" : "far");
}

/* What only threads of a warp share asks the warp to wait, not the group. */
static void test_near(void **state) {
  (void)state;
  for (int near = 0; near < 2; near++) {
    struct kern *kern = make_near(near == 1);
    assert_int_equal(count_words(kern, "sm_90", "__syncthreads();"), near == 1 ? 1 : 2);
    assert_int_equal(count_words(kern, "sm_90", "__syncwarp();"), near);
    assert_int_equal(count_words(kern, "opencl", "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"), 2);
    kern_free(kern);
  }
}

/* What a warp does by tensor cores, and beside that. */
static struct kern *make_mma(void) {
  struct kern *kern = new_kernel();
  kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, 4 * LANES);
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(1))}, *b = &builder;
  kern->phases[0].block_threads = LANES;
  kern_id lane = kern_cast(b, kern_lane(b, QUERN_DTYPE_I32, LANES), QUERN_DTYPE_F32),
          other = kern_shuffle_xor(b, lane, 2);
  kern_id two = kern_interleave(b, lane, other), four = kern_interleave(b, two, kern_un(b, KERN_EXP2, two));
  kern_store(b, kern_mem(b, 0), kern_index(b, 0), kern_mma(b, four, kern_un(b, KERN_TF32, four), two));
  return finish(kern, "mma");
}

/* Each is an instruction of CUDA, and nothing of other dialects. */
static void test_mma(void **state) {
  (void)state;
  struct kern *kern = make_mma();
  assert_int_equal(cg_block_threads(kern, 0, cg_target_find("sm_90")), LANES);
  assert_int_equal(count_words(kern, "sm_90", "mma_f32("), 1);
  assert_int_equal(count_words(kern, "sm_90", "tf32_f32("), 4);
  assert_int_equal(count_words(kern, "sm_90", "exp2_f32("), 2);
  assert_int_equal(count_words(kern, "sm_90", "__shfl_xor_sync(0xffffffffu, "), 1);
  struct cg_unit unit;
  cg_unit_init(&unit, &heap, cg_target_find("opencl"));
  EXPECT_ERROR(cg_unit_add(&unit, kern), INTERNAL, "is for warps of CUDA, not for opencl");
  cg_unit_fini(&unit);
  kern_free(kern);
}

/* Numbers to memory, and from there those of other threads: the lane `other`. */
static kern_id put_and_take(struct kern_builder *b, kern_id local, kern_id numbers, kern_id other) {
  kern_scatter_n(b, local, kern_lane(b, QUERN_DTYPE_I64, LANES), numbers, KERN_NONE);
  return kern_gather(b, local, other);
}

/* Scratch of a block that is closed, each warp's or each thread's own, and of what follows, all threads': both lie in the same bytes.
** Between them the warps may have waited, each for itself, for another memory. */
enum overlaid { OF_WARPS, OF_THREADS, WARPS_WAIT };
static struct kern *make_overlaid(enum overlaid how) {
  struct kern *kern = new_kernel();
  kern_add_mem(kern, QUERN_DTYPE_I64, KERN_OUT, 3 * LANES);
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(1))}, *b = &builder;
  kern->phases[0].block_threads = LANES;
  kern_id lane = kern_lane(b, QUERN_DTYPE_I64, LANES), last = kern_const_i(b, QUERN_DTYPE_I64, LANES, LANES - 1);
  kern_id first = kern_mul(b, kern_idiv(b, lane, 2), kern_const_i(b, QUERN_DTYPE_I64, LANES, 2)), out = kern_mem(b, 0);
  kern_id open = how == WARPS_WAIT ? kern_local_warp(b, QUERN_DTYPE_I64, LANES) : KERN_NONE, zero = kern_index(b, 0);
  kern_id i = kern_range(b, 0, 2, 1);
  kern_id near = kern_local_warp(b, QUERN_DTYPE_I64, LANES);
  kern_id squares = kern_add(b, kern_mul(b, lane, lane), kern_splat(b, i, LANES));
  if (how == OF_THREADS) kern_store(b, near, zero, squares);
  squares = how == OF_THREADS ? kern_load(b, near, zero, LANES) : put_and_take(b, near, squares, first);
  kern_store(b, out, kern_mul_i(b, i, LANES), squares);
  kern_end(b);
  kern_id numbers = how == WARPS_WAIT ? put_and_take(b, open, lane, first) : lane;
  kern_id all = kern_local(b, QUERN_DTYPE_I64, LANES);
  kern_store(b, out, kern_index(b, 2 * LANES), put_and_take(b, all, numbers, kern_sub(b, last, lane)));
  return finish(kern, "overlaid");
}

/* One branch puts numbers that are taken behind both; the other has barriers. */
static struct kern *make_branches(void) {
  struct kern *kern = new_kernel();
  kern_add_mem(kern, QUERN_DTYPE_I64, KERN_OUT, 2 * LANES);
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(2))}, *b = &builder;
  kern->phases[0].block_threads = LANES;
  kern_id lane = kern_lane(b, QUERN_DTYPE_I64, LANES), last = kern_const_i(b, QUERN_DTYPE_I64, LANES, LANES - 1);
  kern_id local = kern_local(b, QUERN_DTYPE_I64, LANES), other = kern_local(b, QUERN_DTYPE_I64, LANES);
  kern_id down = kern_sub(b, last, lane), before = put_and_take(b, local, lane, down), sum = kern_var(b, before);
  kern_if(b, kern_bin(b, KERN_EQ, kern_task(b), kern_index(b, 1)));
  kern_scatter_n(b, local, lane, kern_mul(b, lane, lane), KERN_NONE);
  kern_else(b);
  kern_set(b, sum, put_and_take(b, other, before, down));
  kern_end(b);
  kern_id total = kern_add(b, kern_get(b, sum), kern_gather(b, local, down));
  kern_store(b, kern_mem(b, 0), kern_mul_i(b, kern_task(b), LANES), total);
  return finish(kern, "branches");
}

/* What stands in the CUDA text of a kernel's body, in order: S a barrier of all, W one of a warp, L the place of a LOCAL, } the end of
** a block, = a value that was gathered. */
static void print_order(const struct kern *kern, char *to, size_t room) {
  static const struct {
    char mark;
    const char *text;
  } marks[] = {
      {'S', "__syncthreads();"}, {'W', "__syncwarp();"}, {'L', "(scratch + "}, {'}', "}\n"}, {'=', "= *(v"},
  };
  struct cg_unit unit;
  size_t n = 0;
  cg_unit_init(&unit, &heap, cg_target_find("sm_90"));
  EXPECT_OK(cg_unit_add(&unit, kern));
  for (const char *at = unit.body.at; *at != '\0'; at++)
    for (size_t i = 0; i < BASE_COUNT(marks) && n + 1 < room; i++)
      if (strncmp(at, marks[i].text, strlen(marks[i].text)) == 0) to[n++] = marks[i].mark;
  to[n] = '\0';
  cg_unit_fini(&unit);
}

/* All threads wait before bytes that were a warp's are those of all, and behind branches of which one has not waited. */
static void test_order(void **state) {
  (void)state;
  static const char *const expected[] = {"=}SLS=", "=}SLS=", "=}W=SLS=", "=}S="};
  struct kern *kernels[] = {make_overlaid(OF_WARPS), make_overlaid(OF_THREADS), make_overlaid(WARPS_WAIT),
                            make_branches()};
  for (size_t i = 0; i < BASE_COUNT(kernels); i++) {
    char order[64];
    print_order(kernels[i], order, sizeof order);
    if (strstr(order, expected[i]) == NULL) fail_msg("case %zu: %s has no %s", i, order, expected[i]);
    kern_free(kernels[i]);
  }
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

/* Constants, rounded: compilers do it, and what a device has no integer of its own for must come out too. */
static struct kern *make_rounded(quern_dtype dtype) {
  static const enum kern_op ops[] = {KERN_ROUND, KERN_FLOOR, KERN_CEIL, KERN_TRUNC};
  static const double numbers[] = {NAN,  INFINITY, -INFINITY, 1e30,         -0x1p24,
                                   -0.0, -0.4,     2.5,       0x1p22 + 0.5, -0x1p23 + 0.5};
  struct kern *kern = new_kernel();
  kern_add_mem(kern, dtype, KERN_OUT, BASE_COUNT(ops) * BASE_COUNT(numbers));
  struct kern_builder b = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(1))};
  for (size_t i = 0; i < BASE_COUNT(ops) * BASE_COUNT(numbers); i++) {
    kern_id number = kern_const_f(&b, dtype, 1, numbers[i / BASE_COUNT(ops)]);
    number = kern_un(&b, ops[i % BASE_COUNT(ops)], number);
    kern_store(&b, kern_mem(&b, 0), kern_index(&b, (int64_t)i), number);
  }
  return finish(kern, "rounded");
}

static void make_all(struct built *built, const struct cg_target *target, bool best) {
  (void)target, (void)best;
  static const int64_t shifts[] = {0, 1, 40, LANES};
  for (size_t i = 0; i < BASE_COUNT(shifts); i++) built->kernels[built->n++] = make_shifted(shifts[i], false);
  built->kernels[built->n++] = make_shifted(0, true);
  built->kernels[built->n++] = make_tree();
  built->kernels[built->n++] = make_branch();
  built->kernels[built->n++] = make_near(true);
  built->kernels[built->n++] = make_overlaid(WARPS_WAIT);
  built->kernels[built->n++] = make_branches();
  built->kernels[built->n++] = make_rounded(QUERN_DTYPE_F32);
  built->kernels[built->n++] = make_rounded(QUERN_DTYPE_F64);
}

/* Lanes of a thread, dtypes, rows that are no multiples of the lanes or do not begin at multiples of 16 bytes; a warp and more. */
static void make_all_wide(struct built *built, const struct cg_target *target, bool best) {
  (void)target, (void)best;
  static const struct {
    quern_dtype dtype;
    int64_t wide;
    int lanes, group;
    int64_t shift;
  } cases[] = {{QUERN_DTYPE_BF16, 768, 256, 32, 0},    {QUERN_DTYPE_F16, 512, 256, 32, 1},
               {QUERN_DTYPE_F32, 300, 256, 64, 0},     {QUERN_DTYPE_F32, 1032, 1024, 256, 0},
               {QUERN_DTYPE_F64, 520, 512, 256, 2},    {QUERN_DTYPE_BF16, 2049, 2048, 256, 0},
               {QUERN_DTYPE_I32, 256, 128, 64, 4},     {QUERN_DTYPE_I64, 64, 64, 32, 0},
               {QUERN_DTYPE_F8E5M2, 512, 512, 128, 0}, {QUERN_DTYPE_F32, 64, 32, 32, 0}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++)
    built->kernels[built->n++] =
        make_wide(cases[i].dtype, cases[i].wide, cases[i].lanes, cases[i].group, cases[i].shift);
}

static void test_run(void **state) {
  (void)state;
  need_device();
  compare_all(make_all);
}

static void test_run_wide(void **state) {
  (void)state;
  need_device();
  compare_all(make_all_wide);
}

/* Words of 16, 8 and 4 bytes where the place is known to be a multiple, elements otherwise. */
static void test_words(void **state) {
  (void)state;
  static const struct {
    quern_dtype dtype;
    int64_t wide;
    int lanes, group;
    int64_t shift;
    const char *word;
    int times; /* in loads and stores: where they are declared */
  } cases[] = {{QUERN_DTYPE_BF16, 768, 256, 32, 0, " w4 w", 6},  {QUERN_DTYPE_BF16, 768, 256, 32, 4, " w2 w", 6},
               {QUERN_DTYPE_BF16, 768, 256, 32, 1, " w4 w", 3},  {QUERN_DTYPE_F32, 512, 256, 32, 0, " w4 w", 8},
               {QUERN_DTYPE_F32, 512, 256, 64, 2, " w2 w", 4},   {QUERN_DTYPE_F64, 128, 64, 32, 0, " d2 w", 4},
               {QUERN_DTYPE_BF16, 320, 256, 32, 0, " w4 w", 4},  {QUERN_DTYPE_BF16, 322, 256, 32, 0, " w4 w", 0},
               {QUERN_DTYPE_BF16, 322, 256, 32, 0, " u32 w", 16}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct kern *kern = make_wide(cases[i].dtype, cases[i].wide, cases[i].lanes, cases[i].group, cases[i].shift);
    for (int opencl = 0; opencl < 2; opencl++) {
      int n = count_words(kern, opencl ? "opencl" : "sm_90", cases[i].word);
      if (n != cases[i].times) fail_msg("case %zu: %d times%s", i, n, cases[i].word);
    }
    struct cg_shape shape = cg_shape(kern, 0, cg_target_find("sm_90"));
    assert_true(shape.block_threads == cases[i].group && shape.tasks == 1); /* there are five */
    kern->phases[0].tasks.mul = 8;
    shape = cg_shape(kern, 0, cg_target_find("sm_90"));
    assert_true(shape.block_threads == cases[i].group && shape.tasks == (shape.block_threads == CG_WARP ? 4 : 1));
    kern_free(kern);
  }
}

/* Indices whose range is known have 32 bits. */
static void test_short(void **state) {
  (void)state;
  for (int large = 0; large < 2; large++) {
    struct kern *kern = new_kernel();
    int64_t tasks = large ? INT64_C(1) << 33 : 1000, step = 7;
    kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, tasks * step);
    kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, tasks);
    struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(tasks))}, *b = &builder;
    kern_id at = kern_add_i(b, kern_mul_i(b, kern_task(b), step), 3);
    kern_id back = kern_idiv(b, at, step), x = kern_load(b, kern_mem(b, 0), at, 1);
    kern_store(b, kern_mem(b, 1), back, x);
    (void)finish(kern, "short");
    assert_int_equal(count_words(kern, "sm_90", "(u32)"), large ? 0 : 1);
    assert_int_equal(count_words(kern, "sm_90", "const i64 v"), large ? 3 : 0);
    assert_int_equal(count_words(kern, "sm_90", "first < tasks"), large ? 1 : 0); /* all blocks are full, or not */
    kern_free(kern);
  }
}

int main(int argc, char **argv) {
  read_arguments(argc, argv);
  const struct CMUnitTest tests[] = {TEST_HEAP(test_groups),   TEST_HEAP(test_joined),  TEST_HEAP(test_barriers),
                                     TEST_HEAP(test_near),     TEST_HEAP(test_mma),     TEST_HEAP(test_order),
                                     TEST_HEAP(test_literals), TEST_HEAP(test_words),   TEST_HEAP(test_short),
                                     TEST_HEAP(test_run),      TEST_HEAP(test_run_wide)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
