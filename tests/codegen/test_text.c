/* tests/codegen/test_text.c -- the text of units: golden, each thing once, literals; what compilers make of it
 */
#define _DEFAULT_SOURCE
#include "codegen/cg_int.h"
#include "codegen/run.h"

static void text_of(struct base_str *text, const struct cg_target *target, size_t n, struct kern *const *kernels) {
  struct cg_unit unit;
  cg_unit_init(&unit, &heap, target);
  base_str_init(text, &heap);
  for (size_t i = 0; i < n; i++) EXPECT_OK(cg_unit_add(&unit, kernels[i]));
  EXPECT_OK(cg_unit_text(&unit, text));
  cg_unit_fini(&unit);
}

static size_t count(const char *text, const char *word) {
  size_t n = 0;
  for (const char *at = text; (at = strstr(at, word)) != NULL; at++) n++;
  return n;
}

/* ---- golden -------------------------------------------------------------------------------------------- */

/* y = x x + 1/2 for 20 floats. */
static struct kern *make_small(void) {
  struct kern *kern = new_kernel();
  int in = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, 20), out = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, 20);
  struct kern_builder p = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(1))}, *b = &p;
  kern_id i = kern_for(b, kern_index(b, 0), kern_index(b, 20), 8);
  kern_id left = kern_sub(b, kern_index(b, 20), i), x = kern_load_n(b, kern_mem(b, in), i, 8, left);
  kern_id y = kern_fma(b, x, x, kern_const_f(b, QUERN_DTYPE_F32, 8, 0.5));
  kern_store_n(b, kern_mem(b, out), i, y, left);
  kern_end(b);
  EXPECT_OK(kern_finish(kern, "small", NULL));
  return kern;
}

static const char golden[] = "typedef f32 f32x8 __attribute__((vector_size(32)));\n"
                             "INLINE f32x8 splat_f32x8(f32 x) {\n"
                             "  return x - (f32x8){};\n"
                             "}\n"
                             "typedef i32 i32x8 __attribute__((vector_size(32)));\n"
                             "INLINE i32x8 first_i32x8(i64 n) {\n"
                             "  return (i32x8)((i32x8){0, 1, 2, 3, 4, 5, 6, 7} < (i32)(n < 0 ? 0 : n > 8 ? 8 : n));\n"
                             "}\n"
                             "INLINE f32x8 load_f32x8(const f32 *p, i64 n) {\n"
                             "  return (f32x8)__builtin_ia32_maskloadd256((const void *)p, first_i32x8(n));\n"
                             "}\n"
                             "INLINE f32x8 fma_f32x8(f32x8 a, f32x8 b, f32x8 c) {\n"
                             "#if __has_builtin(__builtin_elementwise_fma)\n"
                             "  return __builtin_elementwise_fma(a, b, c);\n"
                             "#else\n"
                             "  return __builtin_ia32_vfmaddps256(a, b, c);\n"
                             "#endif\n"
                             "}\n"
                             "INLINE void store_f32x8(f32 *p, i64 n, f32x8 x) {\n"
                             "  __builtin_ia32_maskstored256((void *)p, first_i32x8(n), (i32x8)x);\n"
                             "}\n"
                             "\n"
                             "void NAME_0(void *const *mems, const i64 *scalars, i64 begin, i64 end, char *scratch) {\n"
                             "  f32 *const m0 = mems[0];\n"
                             "  f32 *const m1 = mems[1];\n"
                             "  for (i64 task = begin; task < end; task++) {\n"
                             "    f32x8 v7 = splat_f32x8(0x1.000000p-1f); __asm__(\"\" : \"+x\"(v7));\n"
                             "    for (i64 v2 = 0; v2 < 20; v2 += 8) {\n"
                             "      const i64 v4 = 20 - v2;\n"
                             "      const f32x8 v6 = load_f32x8(m0 + v2, v4);\n"
                             "      const f32x8 v8 = fma_f32x8(v6, v6, v7);\n"
                             "      store_f32x8(m1 + v2, v4, v8);\n"
                             "    }\n"
                             "  }\n"
                             "}\n";

static void test_golden(void **state) {
  (void)state;
  struct kern *kern = make_small();
  struct base_str text;
  text_of(&text, cg_target_find("avx2"), 1, &kern);
  const char *at = strstr(text.at, "typedef f32 "), *name = strstr(text.at, kern->name);
  assert_non_null(at);
  assert_non_null(name);
  size_t before = (size_t)(name - at), length = strlen(kern->name);
  assert_int_equal(strlen(at) - length + 4, strlen(golden)); /* NAME */
  assert_memory_equal(at, golden, before);
  assert_string_equal(name + length, golden + before + 4);
  base_str_fini(&text);
  kern_free(kern);
}

/* ---- warps --------------------------------------------------------------------------------------------- */

/* A warp has an instruction for the greatest of integers, and none for that of floats or for sums; lines are asked for in a loop where
** there are more than threads. */
static void test_warps(void **state) {
  (void)state;
  enum { LANES = 128 };
  struct kern *kern = new_kernel();
  kern_add_mem(kern, QUERN_DTYPE_I32, KERN_IN, 1 << 16);
  kern_add_mem(kern, QUERN_DTYPE_I32, KERN_OUT, 3);
  struct kern_builder p = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(1))}, *b = &p;
  kern->phases[0].block_threads = LANES;
  kern_id in = kern_mem(b, 0), out = kern_mem(b, 1), zero = kern_index(b, 0), x = kern_load(b, in, zero, LANES);
  kern_prefetch_n(b, in, zero, 32 * LANES);
  kern_prefetch_n(b, in, zero, 33 * LANES);
  kern_id most = kern_hreduce(b, KERN_MAX, x), sum = kern_hreduce(b, KERN_ADD, x);
  kern_id highest = kern_hreduce(b, KERN_MAX, kern_bitcast(b, x, QUERN_DTYPE_F32));
  kern_store(b, out, kern_index(b, 0), most);
  kern_store(b, out, kern_index(b, 1), sum);
  kern_store(b, out, kern_index(b, 2), kern_bitcast(b, highest, QUERN_DTYPE_I32));
  EXPECT_OK(kern_finish(kern, "warps", NULL));
  struct base_str text;
  text_of(&text, cg_target_find("sm_90"), 1, &kern);
  assert_int_equal(count(text.at, "= warpmax_i32(v"), 2); /* of a warp's threads, and of the warps */
  assert_int_equal(count(text.at, "warpmax_f32("), 0);
  assert_int_equal(count(text.at, "+ (u32)__shfl_xor_sync("), 7);
  assert_int_equal(count(text.at, "if (lane < 128) asm"), 1);
  assert_int_equal(count(text.at, "for (i32 p = lane; p < 132; p += 128) asm"), 1);
  base_str_fini(&text);
  kern_free(kern);
}

/* ---- once ---------------------------------------------------------------------------------------------- */

/* A phase that calls a function which adds one; `tasks` makes kernels different. */
static struct kern *make_caller(int tasks) {
  struct kern *kern = new_kernel();
  kern_add_mem(kern, QUERN_DTYPE_I32, KERN_OUT, 16);
  const quern_dtype i32 = QUERN_DTYPE_I32;
  struct kern_builder f = {kern, kern_add_fn(kern, "add one", 1, &i32, 0)}, *b = &f;
  kern_id x = kern_load(b, kern_mem(b, 0), kern_index(b, 0), 4);
  kern_store(b, kern_mem(b, 0), kern_index(b, 0), kern_add(b, x, kern_const_i(b, i32, 4, 1)));
  struct kern_builder p = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(tasks))};
  b = &p;
  kern_id mem = kern_at(b, kern_mem(b, 0), kern_mul(b, kern_task(b), kern_index(b, 4)));
  kern_call_fn(b, f.fn, 1, &mem, 0, NULL);
  EXPECT_OK(kern_finish(kern, "caller", NULL));
  return kern;
}

static void test_once(void **state) {
  (void)state;
  struct kern *kernels[] = {make_caller(1), make_caller(2), make_caller(1)};
  struct base_str one, three, again;
  text_of(&one, cg_target_find("generic"), 1, kernels);
  text_of(&three, cg_target_find("generic"), 3, kernels);
  text_of(&again, cg_target_find("generic"), 3, kernels);
  assert_int_equal(count(one.at, "\nvoid "), 1);
  assert_int_equal(count(three.at, "\nvoid "), 2); /* the third is the first */
  assert_int_equal(count(three.at, "\nstatic __attribute__((noinline))"), 1);
  assert_int_equal(count(three.at, "fn_add_one_"), 3);
  assert_int_equal(count(three.at, "typedef i32 i32x4 "), 1);
  assert_string_equal(three.at, again.at);
  kernels[2]->hash++; /* another kernel that has the name */
  struct cg_unit unit;
  cg_unit_init(&unit, &heap, cg_target_find("generic"));
  EXPECT_OK(cg_unit_add(&unit, kernels[0]));
  EXPECT_ERROR(cg_unit_add(&unit, kernels[2]), INTERNAL, "two kernels are named");
  cg_unit_fini(&unit);
  base_str_fini(&one);
  base_str_fini(&three);
  base_str_fini(&again);
  for (int i = 0; i < 3; i++) kern_free(kernels[i]);
}

/* ---- literals ------------------------------------------------------------------------------------------ */

static void test_literals(void **state) {
  (void)state;
  static const struct {
    quern_dtype dtype;
    uint64_t bits;
    const char *text;
  } rows[] = {
      {QUERN_DTYPE_F32, 0x3f800000, "0x1.000000p0f"},
      {QUERN_DTYPE_F32, 0x80000000, "-0x0.000000p-126f"},
      {QUERN_DTYPE_F32, 0x00000001, "0x0.000002p-126f"},
      {QUERN_DTYPE_F32, 0x7f7fffff, "0x1.fffffep127f"},
      {QUERN_DTYPE_F32, 0xff800000, "-__builtin_inff()"},
      {QUERN_DTYPE_F32, 0x7fc00000, "__builtin_nanf(\"\")"},
      {QUERN_DTYPE_F64, 0x3fb999999999999a, "0x1.999999999999ap-4"},
      {QUERN_DTYPE_F64, 0x0010000000000000, "0x1.0000000000000p-1022"},
      {QUERN_DTYPE_F64, 0x7ff0000000000000, "__builtin_inf()"},
      {QUERN_DTYPE_BF16, 0x3f80, "16256"},
      {QUERN_DTYPE_F8E4M3, 0xff, "255"},
      {QUERN_DTYPE_I8, 0x80, "(-128)"},
      {QUERN_DTYPE_I16, 0x7fff, "32767"},
      {QUERN_DTYPE_I32, 0x80000000, "(-2147483648)"},
      {QUERN_DTYPE_I64, 0x8000000000000000, "(-0x7fffffffffffffffll - 1)"},
      {QUERN_DTYPE_I64, 0xffffffffffffffff, "(-1ll)"},
      {QUERN_DTYPE_U8, 0xff, "255"},
      {QUERN_DTYPE_U32, 0xffffffff, "4294967295u"},
      {QUERN_DTYPE_U64, 0xffffffffffffffff, "18446744073709551615ull"},
      {QUERN_DTYPE_BOOL, 1, "1"},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    struct base_str text;
    base_str_init(&text, &heap);
    cg_literal(&text, cg_dialect(cg_target_find("generic")), rows[i].dtype, rows[i].bits);
    assert_string_equal(text.at, rows[i].text);
    base_str_fini(&text);
  }
}

/* ---- what the compilers make of a register tile ---------------------------------------------------------- */

enum { MR = 6, NV = 4, UNROLL = 4 };

/* C (6 rows, 4 vectors) = A B: the inner loop of a contraction, as sched/ writes it. */
static struct kern *make_tile(int lanes) {
  struct kern *kern = new_kernel();
  for (int i = 0; i < 3; i++) kern_add_mem(kern, QUERN_DTYPE_F32, i < 2 ? KERN_IN : KERN_OUT, 1 << 20);
  struct kern_builder p = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(1))}, *b = &p;
  kern_id acc[MR][NV];
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NV; j++) acc[i][j] = kern_var(b, kern_const_f(b, QUERN_DTYPE_F32, lanes, 0));
  kern_id k = kern_for(b, kern_index(b, 0), kern_index(b, 512), UNROLL);
  for (int u = 0; u < UNROLL; u++) {
    kern_id ku = kern_add(b, k, kern_index(b, u)), row = kern_mul(b, ku, kern_index(b, NV * lanes)), x[NV];
    for (int j = 0; j < NV; j++) x[j] = kern_load(b, kern_mem(b, 1), kern_add(b, row, kern_index(b, j * lanes)), lanes);
    for (int i = 0; i < MR; i++) {
      kern_id a = kern_load(b, kern_mem(b, 0), kern_add(b, ku, kern_index(b, 512 * i)), 1);
      kern_id splat = kern_splat(b, a, lanes);
      for (int j = 0; j < NV; j++) kern_set(b, acc[i][j], kern_fma(b, splat, x[j], kern_get(b, acc[i][j])));
    }
  }
  kern_end(b);
  for (int i = 0; i < MR; i++)
    for (int j = 0; j < NV; j++)
      kern_store(b, kern_mem(b, 2), kern_index(b, (i * NV + j) * lanes), kern_get(b, acc[i][j]));
  EXPECT_OK(kern_finish(kern, "tile", NULL));
  return kern;
}

/* Lines of a compiler's assembly that have both words; -1 when it cannot compile for that target. */
static int lines_with(const char *compiler, const struct cg_target *target, const char *text, const char *one,
                      const char *two) {
  char line[2048], path[] = "/tmp/quern-tile-XXXXXX";
  int file = mkstemp(path), n = 0;
  assert_true(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && close(file) == 0);
  snprintf(line, sizeof line, "%s %s %s -S -o - -x c %s 2>&1", compiler, cg_flags, target->march, path);
  FILE *pipe = popen(line, "r");
  assert_non_null(pipe);
  while (fgets(line, sizeof line, pipe) != NULL) n += strstr(line, one) != NULL && strstr(line, two) != NULL;
  bool failed = pclose(pipe) != 0;
  unlink(path);
  return failed ? -1 : n;
}

/* Every fma of the loop is one instruction, and the 24 accumulators stay in registers, but for one with gcc 12. */
static void test_tile(void **state) {
  (void)state;
#if defined(__x86_64__)
  const struct cg_target *target = cg_target_find("avx512");
  struct kern *kern = make_tile(target->base.vector_bytes / 4);
  struct base_str text;
  text_of(&text, target, 1, &kern);
  for (size_t c = 0; c < BASE_COUNT(compilers); c++) {
    if (!has_command(compilers[c])) continue;
    assert_int_equal(lines_with(compilers[c], target, text.at, "vfmadd", "zmm"), MR * NV * UNROLL);
    assert_in_range(lines_with(compilers[c], target, text.at, "zmm", "(%rsp)"), 0, 2);
    assert_in_range(lines_with(compilers[c], target, text.at, "zmm", "(%rbp)"), 0, 2);
  }
  base_str_fini(&text);
  kern_free(kern);
#endif
}

/* ---- too much ------------------------------------------------------------------------------------------ */

/* A kernel that no compiler should be given. */
static void test_too_long(void **state) {
  (void)state;
  struct kern *kern = new_kernel();
  int in = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_IN, 32), out = kern_add_mem(kern, QUERN_DTYPE_F32, KERN_OUT, 32);
  struct kern_builder p = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(1))}, *b = &p;
  kern_id zero = kern_index(b, 0), x = kern_load(b, kern_mem(b, in), zero, 32);
  for (int i = 0; i < 60000; i++) x = kern_add(b, x, x);
  kern_store(b, kern_mem(b, out), zero, x);
  EXPECT_OK(kern_finish(kern, "long", NULL));
  struct cg_unit unit;
  cg_unit_init(&unit, &heap, cg_target_find("avx2"));
  EXPECT_ERROR(cg_unit_add(&unit, kern), UNSUPPORTED, "more than the 8388608 that are compiled");
  assert_non_null(strstr(quern_last_error(), kern->name));
  cg_unit_fini(&unit);
  kern_free(kern);
}

/* ---- no memory ----------------------------------------------------------------------------------------- */

static void test_faults(void **state) {
  (void)state;
  struct kern *kernels[] = {make_caller(1), make_small(), make_tile(16)};
  struct fault fault = {0};
  while (fault_next(&fault)) {
    struct cg_unit unit;
    struct base_str text;
    fault_begin(&fault);
    cg_unit_init(&unit, &heap, cg_target_find("avx2"));
    base_str_init(&text, &heap);
    quern_status status = QUERN_STATUS_OK;
    for (int i = 0; i < 3 && status == QUERN_STATUS_OK; i++) status = cg_unit_add(&unit, kernels[i]);
    if (status == QUERN_STATUS_OK) status = cg_unit_text(&unit, &text);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    base_str_fini(&text);
    cg_unit_fini(&unit);
  }
  assert_true(fault.n > 20);
  for (int i = 0; i < 3; i++) kern_free(kernels[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST_HEAP(test_golden),   TEST_HEAP(test_warps), TEST_HEAP(test_once),
                                     TEST_HEAP(test_literals), TEST_HEAP(test_tile),  TEST_HEAP(test_too_long),
                                     TEST_HEAP(test_faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
