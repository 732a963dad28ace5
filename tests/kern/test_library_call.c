/* tests/kern/test_library_call.c -- calls of products: what they compute, what is refused, as text, in the hash */
#include <math.h>

#include "kern_test.h"

enum { BATCH = 2, ROWS = 3, COLUMNS = 8, TERMS = 5 };
enum { A, B, ADD, BIAS, KEPT_IN, INS, Y = INS, KEPT, A_SUMS, Y_SUMS, WORK, MEMS };

/* A product with everything that can be beside it, row after row; a begins at its second element, b lies by columns. */
static struct kern_library_call product(int64_t batch) {
  struct kern_matrix whole = {Y, 0, ROWS * COLUMNS, COLUMNS, 1}, none = {.mem = KERN_NONE};
  struct kern_library_call call = {.kind = KERN_LIBRARY_GEMM, .work = WORK};
  call.gemm = (struct kern_gemm){.batch = batch,
                                 .rows = ROWS,
                                 .columns = COLUMNS,
                                 .terms = TERMS,
                                 .a = {A, 1, ROWS * TERMS, TERMS, 1},
                                 .b = {B, 0, COLUMNS * TERMS, 1, COLUMNS},
                                 .y = whole,
                                 .add = none,
                                 .aux = none,
                                 .bias = KERN_NONE,
                                 .a_sums = KERN_NONE,
                                 .y_sums = KERN_NONE};
  return call;
}

static struct kern *make(quern_dtype dtype, const struct kern_library_call *call) {
  static const int64_t counts[MEMS] = {BATCH * ROWS * TERMS + 1,
                                       BATCH * COLUMNS * TERMS,
                                       BATCH * ROWS * COLUMNS,
                                       COLUMNS,
                                       BATCH * ROWS * COLUMNS,
                                       BATCH * ROWS * COLUMNS,
                                       BATCH * ROWS * COLUMNS,
                                       ROWS,
                                       COLUMNS,
                                       1};
  struct made m = made_new();
  for (int i = 0; i < MEMS; i++)
    kern_add_mem(m.kern, i == WORK ? QUERN_DTYPE_U8 : dtype,
                 i < INS    ? KERN_IN
                 : i < WORK ? KERN_OUT
                            : KERN_WORK,
                 counts[i]);
  kern_add_library_call(m.kern, call);
  made_finish(&m);
  return m.kern;
}

static struct kern_library_call with_all(void) {
  struct kern_library_call call = product(1);
  call.gemm.add = (struct kern_matrix){ADD, 0, 0, COLUMNS, 1};
  call.gemm.bias = BIAS;
  call.gemm.aux = (struct kern_matrix){KEPT, 0, 0, COLUMNS, 1};
  call.gemm.act = KERN_ACT_GELU_TANH;
  return call;
}

/* ---- values ---------------------------------------------------------------------------------------------- */

struct memory {
  void *mems[MEMS];
};

static void fill(struct memory *memory, const struct kern *kern) {
  for (int i = 0; i < MEMS; i++) {
    size_t n = (size_t)kern->mems[i].count;
    memory->mems[i] = calloc(n + 1, 8);
    for (size_t k = 0; k < n && i < INS; k++)
      base_store_float(kern->mems[i].dtype, memory->mems[i], k, sin((double)(i * 100) + (double)k * 1.7));
  }
}

static void drop(struct memory *memory) {
  for (int i = 0; i < MEMS; i++) free(memory->mems[i]);
}

static double at(const struct kern *kern, const struct memory *memory, int mem, int64_t i) {
  return base_load_float(kern->mems[mem].dtype, memory->mems[mem], (size_t)i);
}

/* The sum of a product of the call above, from its elements. */
static double sum_at(const struct kern *kern, const struct memory *memory, int64_t n, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t k = 0; k < TERMS; k++)
    sum += at(kern, memory, A, 1 + n * ROWS * TERMS + i * TERMS + k) *
           at(kern, memory, B, n * COLUMNS * TERMS + k * COLUMNS + j);
  return sum;
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * pow(x, 3)))); }

static double tolerance(quern_dtype dtype) { return 2 * pow(2, -base_dtypes[dtype].mantissa); }

static void expect_near(quern_dtype dtype, double got, double want) {
  if (!(fabs(got - want) <= tolerance(dtype) * (1 + fabs(want)))) print_error("%.9g is not %.9g\n", got, want);
  assert_true(fabs(got - want) <= tolerance(dtype) * (1 + fabs(want)));
}

static void run(const struct kern *kern, struct memory *memory) {
  fill(memory, kern);
  EXPECT_OK(kern_verify(kern, NULL));
  EXPECT_OK(kern_interp(kern, &(struct kern_launch){.mems = memory->mems}, KERN_CHECK_RACES));
}

static const quern_dtype dtypes[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F64, QUERN_DTYPE_BF16, QUERN_DTYPE_F16};

static void test_batches(void **state) {
  (void)state;
  for (size_t d = 0; d < BASE_COUNT(dtypes); d++) {
    struct kern_library_call call = product(BATCH);
    struct kern *kern = make(dtypes[d], &call);
    struct memory memory;
    run(kern, &memory);
    for (int64_t n = 0; n < BATCH; n++)
      for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < COLUMNS; j++)
          expect_near(dtypes[d], at(kern, &memory, Y, (n * ROWS + i) * COLUMNS + j), sum_at(kern, &memory, n, i, j));
    drop(&memory);
    kern_free(kern);
  }
}

/* All that may be added, the activations, and what is kept: y is made of the sum that is not rounded. */
static void test_ends(void **state) {
  (void)state;
  for (size_t d = 0; d < BASE_COUNT(dtypes); d++) {
    for (int act = KERN_ACT_NONE; act <= KERN_ACT_GELU_TANH; act++) {
      struct kern_library_call call = with_all();
      call.gemm.act = (enum kern_activation)act;
      call.gemm.a_sums = A_SUMS;
      call.gemm.y_sums = Y_SUMS;
      struct kern *kern = make(dtypes[d], &call);
      struct memory memory;
      double y_sums[COLUMNS] = {0};
      run(kern, &memory);
      for (int64_t i = 0; i < ROWS; i++) {
        double a_sum = 0;
        for (int64_t k = 0; k < TERMS; k++) a_sum += at(kern, &memory, A, 1 + i * TERMS + k);
        expect_near(dtypes[d], at(kern, &memory, A_SUMS, i), a_sum);
        for (int64_t j = 0; j < COLUMNS; j++) {
          double s =
              sum_at(kern, &memory, 0, i, j) + at(kern, &memory, ADD, i * COLUMNS + j) + at(kern, &memory, BIAS, j);
          double y = act == KERN_ACT_NONE ? s : act == KERN_ACT_RELU ? fmax(s, 0) : gelu(s);
          expect_near(dtypes[d], at(kern, &memory, Y, i * COLUMNS + j), y);
          expect_near(dtypes[d], at(kern, &memory, KEPT, i * COLUMNS + j), s);
          y_sums[j] += y;
        }
      }
      for (int64_t j = 0; j < COLUMNS; j++) expect_near(dtypes[d], at(kern, &memory, Y_SUMS, j), y_sums[j]);
      drop(&memory);
      kern_free(kern);
    }
  }
}

/* The gradient is that of differences. */
static void test_back(void **state) {
  (void)state;
  for (int act = KERN_ACT_RELU; act <= KERN_ACT_GELU_TANH; act++) {
    struct kern_library_call call = product(1);
    call.gemm.act = (enum kern_activation)act;
    call.gemm.back = true;
    call.gemm.aux = (struct kern_matrix){KEPT_IN, 0, 0, COLUMNS, 1};
    struct kern *kern = make(QUERN_DTYPE_F64, &call);
    struct memory memory;
    run(kern, &memory);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
      double x = at(kern, &memory, KEPT_IN, i), h = 1e-5;
      double slope = act == KERN_ACT_RELU ? (x > 0 ? 1 : 0) : (gelu(x + h) - gelu(x - h)) / (2 * h);
      double want = sum_at(kern, &memory, 0, i / COLUMNS, i % COLUMNS) * slope;
      assert_true(fabs(at(kern, &memory, Y, i) - want) < 1e-8);
    }
    drop(&memory);
    kern_free(kern);
  }
}

/* The result in the memory of what is added. */
static void test_in_place(void **state) {
  (void)state;
  struct kern_library_call call = product(BATCH);
  call.gemm.add = (struct kern_matrix){ADD, 0, ROWS * COLUMNS, COLUMNS, 1};
  struct kern *kern = make(QUERN_DTYPE_BF16, &call);
  struct memory apart, one;
  run(kern, &apart);
  fill(&one, kern);
  void *mems[MEMS];
  memcpy(mems, one.mems, sizeof mems);
  mems[Y] = mems[ADD];
  EXPECT_OK(kern_interp(kern, &(struct kern_launch){.mems = mems}, 0));
  assert_memory_equal(mems[Y], apart.mems[Y], BATCH * ROWS * COLUMNS * 2);
  drop(&apart);
  drop(&one);
  kern_free(kern);
}

/* ---- what is refused ------------------------------------------------------------------------------------- */

#define PLANT(kern, place, value, words)                                                                               \
  do {                                                                                                                 \
    __typeof__(place) kept_ = (place);                                                                                 \
    (place) = (value);                                                                                                 \
    EXPECT_ERROR(kern_verify((kern), NULL), INTERNAL, words);                                                          \
    EXPECT_ERROR(kern_check_library_call(kern), INTERNAL, words);                                                      \
    (place) = kept_;                                                                                                   \
    EXPECT_OK(kern_verify((kern), NULL));                                                                              \
  } while (0)

static void test_refused(void **state) {
  (void)state;
  struct kern_library_call call = with_all();
  struct kern *k = make(QUERN_DTYPE_BF16, &call);
  struct kern_gemm *g = &k->library_call.gemm;
  PLANT(k, g->a.mem, MEMS, "a is memory 10, which there is not");
  PLANT(k, g->y.mem, KERN_NONE, "a product of 1 x 3 x 8 with 5 terms");
  PLANT(k, g->rows, -1, "a product of 1 x -1 x 8");
  PLANT(k, g->b.mem, Y, "b, memory 5, has role 1, not 0");
  PLANT(k, g->y.mem, A, "y, memory 0, has role 0");
  PLANT(k, g->aux.mem, KEPT_IN, "aux, memory 4, has role 0");
  PLANT(k, g->bias, Y_SUMS, "bias, memory 8, has role 1");
  PLANT(k, g->a.at, -1, "a has elements -1 to");
  PLANT(k, g->a.at, ROWS * TERMS + 2, "a has elements 17 to 31 of a memory of 31");
  PLANT(k, g->terms, COLUMNS * TERMS, "a has elements");
  PLANT(k, g->a.row, -1, "a has extent 3 with stride -1");
  PLANT(k, g->a.row, INT64_MAX, "a has extent 3 with stride");
  PLANT(k, g->b.row, 2, "neither rows nor columns of b are neighbors: strides 2 and 8");
  PLANT(k, g->act, (enum kern_activation)3, "activation 3");
  PLANT(k, g->back, true, "aux, memory 6, has role 1, not 0");
  PLANT(k, g->batch, BATCH, "a vector beside 2 products");
  PLANT(k, k->mems[B].dtype, QUERN_DTYPE_F16, "operands of bf16 and f16");
  PLANT(k, k->mems[BIAS].dtype, QUERN_DTYPE_F16, "memory 3 is of f16 beside operands of bf16");
  PLANT(k, k->library_call.work, Y, "memory 5 is no workspace of u8");
  PLANT(k, k->library_call.work, MEMS, "memory 10 is no workspace of u8");
  PLANT(k, k->library_call.kind, KERN_LIBRARY_NONE, "1 phases are calls, of kind 0");
  PLANT(k, k->library_call.kind, (enum kern_library_kind)9, "1 phases are calls, of kind 9");
  g->aux.mem = KERN_NONE;
  PLANT(k, g->back, true, "activation 2 backward, without the saved pre-activation");
  k->phases[0].library_call = false;
  EXPECT_ERROR(kern_verify(k, NULL), INTERNAL, "phase 0 has no function of its own");
  EXPECT_ERROR(kern_check_library_call(k), INTERNAL, "0 phases are calls, of kind 1");
  k->phases[0].library_call = true;
  k->mems[A].dtype = (quern_dtype)99; /* as a damaged file may have it */
  EXPECT_ERROR(kern_check_library_call(k), INTERNAL, "a, memory 0, has dtype 99");
  kern_free(k);
  call = product(1);
  k = make(QUERN_DTYPE_I32, &call);
  EXPECT_ERROR(kern_verify(k, NULL), INTERNAL, "operands of i32 and i32");
  kern_free(k);
}

/* ---- text and hash --------------------------------------------------------------------------------------- */

static void test_text(void **state) {
  (void)state;
  struct kern_library_call call = with_all();
  call.gemm.tf32 = true;
  call.gemm.a_sums = A_SUMS;
  struct kern *kern = make(QUERN_DTYPE_F32, &call);
  struct base_str str;
  base_str_init(&str, &ctx->heap);
  EXPECT_OK(kern_print(&str, kern));
  assert_non_null(strstr(str.at, "  mem 9: work u8[1]\n"
                                 "phase 0, call gemm 1 x 3 x 8, terms 5, gelu_tanh, tf32:\n"
                                 "  a: mem 0, 1 + 15 n + 5 i + 1 j\n"
                                 "  b: mem 1, 0 + 40 n + 1 i + 8 j\n"
                                 "  y: mem 5, 0 + 24 n + 8 i + 1 j\n"
                                 "  add: mem 2, 0 + 0 n + 8 i + 1 j\n"
                                 "  aux: mem 6, 0 + 0 n + 8 i + 1 j\n"
                                 "  bias: mem 3\n"
                                 "  a_sums: mem 7\n"));
  base_str_fini(&str);
  kern_free(kern);
}

static uint64_t hash_of(const struct kern_library_call *call) {
  struct kern *kern = make(QUERN_DTYPE_BF16, call);
  uint64_t hash = kern->hash;
  kern_free(kern);
  return hash;
}

#define DIFFERS(place, value)                                                                                          \
  do {                                                                                                                 \
    struct kern_library_call changed = call;                                                                           \
    changed.place = (value);                                                                                           \
    assert_true(hash_of(&changed) != hash_of(&call));                                                                  \
  } while (0)

static void test_hash(void **state) {
  (void)state;
  struct kern_library_call call = with_all(), other = call;
  DIFFERS(gemm.batch, 2);
  DIFFERS(gemm.rows, 2);
  DIFFERS(gemm.columns, 2);
  DIFFERS(gemm.terms, 2);
  DIFFERS(gemm.a.at, 0);
  DIFFERS(gemm.a.batch, 3);
  DIFFERS(gemm.b.row, 3);
  DIFFERS(gemm.b.column, 3);
  DIFFERS(gemm.y.mem, KEPT);
  DIFFERS(gemm.add.mem, KERN_NONE);
  DIFFERS(gemm.aux.mem, KERN_NONE);
  DIFFERS(gemm.bias, KERN_NONE);
  DIFFERS(gemm.a_sums, A_SUMS);
  DIFFERS(gemm.y_sums, Y_SUMS);
  DIFFERS(gemm.act, KERN_ACT_RELU);
  DIFFERS(gemm.back, true);
  DIFFERS(gemm.tf32, true);
  DIFFERS(work, KERN_NONE);
  other.algorithm[3] = 7;
  assert_true(hash_of(&other) == hash_of(&call));
  struct kern *bf16 = make(QUERN_DTYPE_BF16, &call), *f16 = make(QUERN_DTYPE_F16, &call);
  assert_true(bf16->hash != f16->hash);
  uint64_t hash = bf16->hash;
  bf16->mems[WORK].count = 1 << 20;
  made_finish(&(struct made){.kern = bf16});
  assert_true(bf16->hash == hash);
  bf16->mems[Y].alias = ADD;
  made_finish(&(struct made){.kern = bf16});
  assert_true(bf16->hash != hash);
  kern_free(bf16);
  kern_free(f16);
}

static void test_memory(void **state) {
  (void)state;
  struct kern_library_call call = with_all();
  struct kern *kern = make(QUERN_DTYPE_F32, &call);
  struct memory memory;
  fill(&memory, kern);
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = kern_interp(kern, &(struct kern_launch){.mems = memory.mems}, 0);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 3);
  drop(&memory);
  kern_free(kern);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_batches), TEST(test_ends), TEST(test_back), TEST(test_in_place),
                                     TEST(test_refused), TEST(test_text), TEST(test_hash), TEST(test_memory)};
  return cmocka_run_group_tests_name("kern/call", tests, NULL, NULL);
}
