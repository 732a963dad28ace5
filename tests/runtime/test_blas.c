/* tests/runtime/test_blas.c -- products by cuBLASLt: what the library is given, which algorithm is taken, what goes wrong
** The library is a fake that does what cuBLASLt's documentation requires; the kernel interpreter computes what should come out.
*/
#include "runtime/cuda/blas.h"

#include <math.h>
#include <unistd.h>

#define TEST_CONTEXT_NEW ir_context_new
#include "unit.h"

#include "fake_blas.h"
#include "fake_memory.h"

static struct rt_blas blas;

/* ---- kernels ------------------------------------------------------------------------------------------------ */

struct shape {
  int64_t batch, rows, columns, terms;
  bool a_down, b_down, y_down; /* column after column */
  int64_t at, gap;             /* where each matrix begins, and what lies between its lines */
};
struct end {
  const char *name;
  enum kern_activation act;
  bool back, bias, kept, a_sums, y_sums, add;
};

static struct kern_matrix lay(struct kern *kern, quern_dtype dtype, enum kern_role role, const struct shape *s,
                              int64_t rows, int64_t columns, bool down) {
  int64_t line = (down ? rows : columns) + s->gap, lines = down ? columns : rows;
  struct kern_matrix m = {.at = s->at, .batch = line * lines + 8, .row = down ? 1 : line, .column = down ? line : 1};
  m.mem = kern_add_mem(kern, dtype, role, s->at + s->batch * m.batch);
  return m;
}

/* IN before OUT before WORK. */
static struct kern *make_gemm(quern_dtype dtype, const struct shape *s, const struct end *end) {
  struct kern *kern = NULL;
  EXPECT_OK(kern_new(&kern, &ctx->heap));
  struct kern_library_call call = {.kind = KERN_LIBRARY_GEMM};
  struct kern_gemm *g = &call.gemm;
  *g = (struct kern_gemm){
      .batch = s->batch, .rows = s->rows, .columns = s->columns, .terms = s->terms, .act = end->act, .back = end->back};
  g->add.mem = g->aux.mem = g->bias = g->a_sums = g->y_sums = KERN_NONE;
  g->a = lay(kern, dtype, KERN_IN, s, s->rows, s->terms, s->a_down);
  g->b = lay(kern, dtype, KERN_IN, s, s->columns, s->terms, s->b_down);
  if (end->add) g->add = lay(kern, dtype, KERN_IN, s, s->rows, s->columns, s->y_down);
  if (end->bias) g->bias = kern_add_mem(kern, dtype, KERN_IN, s->columns);
  if (end->kept && end->back) g->aux = lay(kern, dtype, KERN_IN, s, s->rows, s->columns, s->y_down);
  g->y = lay(kern, dtype, KERN_OUT, s, s->rows, s->columns, s->y_down);
  if (end->kept && !end->back) g->aux = lay(kern, dtype, KERN_OUT, s, s->rows, s->columns, s->y_down);
  if (end->a_sums) g->a_sums = kern_add_mem(kern, dtype, KERN_OUT, s->rows);
  if (end->y_sums) g->y_sums = kern_add_mem(kern, dtype, KERN_OUT, s->columns);
  call.work = kern_add_mem(kern, QUERN_DTYPE_U8, KERN_WORK, 1);
  kern_add_library_call(kern, &call);
  EXPECT_OK(kern_finish(kern, "gemm", NULL));
  EXPECT_OK(kern_verify(kern, NULL));
  return kern;
}

static const struct shape square = {1, 8, 8, 8, false, false, false, 0, 0};
static const struct end plain = {.name = "plain"};

/* ---- values ------------------------------------------------------------------------------------------------- */

struct mems {
  int n;
  void *at[KERN_MAX_MEMS];
};

static struct mems make_mems(const struct kern *kern) {
  struct mems mems = {.n = kern->n_mems};
  for (int i = 0; i < kern->n_mems; i++) {
    size_t n = (size_t)kern->mems[i].count;
    mems.at[i] = calloc(n, 8);
    for (size_t e = 0; e < n && kern->mems[i].role != KERN_WORK; e++) {
      double x = kern->mems[i].role == KERN_OUT ? -77 : (double)((e * 7 + (size_t)i * 3) % 11) / 4 - 1.25;
      base_store_float(kern->mems[i].dtype, mems.at[i], e, x);
    }
  }
  return mems;
}
static void free_mems(struct mems *mems) {
  for (int i = 0; i < mems->n; i++) free(mems->at[i]);
}

static void expect_same(const struct kern *kern, const struct mems *got, const struct mems *want, const char *name) {
  for (int i = 0; i < kern->n_mems; i++) {
    if (kern->mems[i].role != KERN_OUT) continue;
    quern_dtype dtype = kern->mems[i].dtype;
    double most = dtype == QUERN_DTYPE_BF16 ? 1.0 / 128 : 1e-5;
    for (size_t e = 0; e < (size_t)kern->mems[i].count; e++) {
      double x = base_load_float(dtype, got->at[i], e), y = base_load_float(dtype, want->at[i], e);
      if (!(fabs(x - y) <= most * (1 + fabs(y))))
        fail_msg("%s: memory %d, element %zu: %g, should be %g", name, i, e, x, y);
    }
  }
}

/* Settles, plans and runs it by the fake and compares it with the interpreter. */
static void expect_right(struct kern *kern, const char *name) {
  size_t bytes = 99;
  void *plan;
  struct mems got = make_mems(kern), want = make_mems(kern);
  EXPECT_OK(rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, &kern->library_call, &bytes));
  assert_int_equal(bytes, 0);
  EXPECT_OK(rt_blas_plan(&blas, &ctx->heap, kern, &plan));
  EXPECT_OK(rt_blas_run(&blas, plan, NULL, got.at, NULL));
  rt_blas_plan_free(&blas, plan);
  EXPECT_OK(kern_interp(kern, &(struct kern_launch){.mems = want.at}, 0));
  expect_same(kern, &got, &want, name);
  assert_int_equal(fake_blas.live, 0);
  free_mems(&got);
  free_mems(&want);
}

static const struct end ends[] = {
    {"plain", KERN_ACT_NONE, .add = false},
    {"add", KERN_ACT_NONE, .add = true},
    {"bias", KERN_ACT_NONE, .bias = true},
    {"bias, add", KERN_ACT_NONE, .bias = true, .add = true},
    {"relu", KERN_ACT_RELU, .add = false},
    {"relu, bias", KERN_ACT_RELU, .bias = true, .add = true},
    {"gelu", KERN_ACT_GELU_TANH, .add = false},
    {"gelu, bias", KERN_ACT_GELU_TANH, .bias = true},
    {"gelu, kept", KERN_ACT_GELU_TANH, .kept = true},
    {"gelu, kept, bias", KERN_ACT_GELU_TANH, .kept = true, .bias = true, .add = true},
    {"back gelu", KERN_ACT_GELU_TANH, .back = true, .kept = true},
    {"back gelu, sums", KERN_ACT_GELU_TANH, .back = true, .kept = true, .y_sums = true},
    {"sums of a", KERN_ACT_NONE, .a_sums = true},
    {"sums of a, add", KERN_ACT_NONE, .a_sums = true, .add = true},
};

/* Every end with every layout of the operands. */
static void test_ends(void **state) {
  (void)state;
  fake_blas_open(&blas);
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F64, QUERN_DTYPE_BF16};
  for (size_t e = 0; e < BASE_COUNT(ends); e++)
    for (int lies = 0; lies < 8; lies++)
      for (size_t d = 0; d < BASE_COUNT(dtypes); d++) {
        const struct shape s = {1, 5, 16, 7, (lies & 1) != 0, (lies & 2) != 0, (lies & 4) != 0, 0, 0};
        struct kern *kern = make_gemm(dtypes[d], &s, &ends[e]);
        struct rt_blas_problem problem;
        bool coarse = ends[e].act == KERN_ACT_GELU_TANH && dtypes[d] != QUERN_DTYPE_BF16;
        if (s.y_down && ends[e].kept) /* 5 rows are no multiple of 8 */
          EXPECT_ERROR(rt_blas_problem_make(&problem, kern), UNSUPPORTED, "a multiple of 8 is needed");
        else if (coarse)
          EXPECT_ERROR(rt_blas_problem_make(&problem, kern), UNSUPPORTED, "gelu is not exact enough");
        else if (s.y_down && ends[e].bias)
          EXPECT_ERROR(rt_blas_problem_make(&problem, kern), UNSUPPORTED, "column after column");
        else
          expect_right(kern, ends[e].name);
        kern_free(kern);
      }
}

/* Batches, offsets, gaps, extents of one. */
static void test_shapes(void **state) {
  (void)state;
  static const struct shape shapes[] = {
      {3, 4, 6, 5, false, false, false, 0, 0}, {3, 4, 6, 5, true, true, true, 3, 2},
      {2, 4, 8, 5, true, false, false, 8, 8},  {1, 1, 6, 5, false, true, false, 1, 0},
      {1, 6, 1, 5, true, false, true, 0, 3},   {1, 6, 7, 1, false, false, false, 0, 0},
      {1, 1, 1, 1, true, true, true, 0, 0},    {2, 1, 1, 9, false, true, false, 2, 1}};
  fake_blas_open(&blas);
  for (size_t i = 0; i < BASE_COUNT(shapes); i++)
    for (size_t e = 0; e < 2; e++) {
      struct kern *kern = make_gemm(QUERN_DTYPE_F32, &shapes[i], &ends[e]);
      expect_right(kern, ends[e].name);
      kern_free(kern);
    }
}

/* A result that takes the memory of what is added. */
static void test_in_place(void **state) {
  (void)state;
  void *plan;
  size_t bytes;
  struct kern *kern = make_gemm(QUERN_DTYPE_F32, &square, &ends[1]);
  const struct kern_gemm *g = &kern->library_call.gemm;
  struct mems got = make_mems(kern), want = make_mems(kern);
  void *own[] = {got.at[g->y.mem], want.at[g->y.mem]};
  got.at[g->y.mem] = got.at[g->add.mem];
  want.at[g->y.mem] = want.at[g->add.mem];
  fake_blas_open(&blas);
  EXPECT_OK(kern_interp(kern, &(struct kern_launch){.mems = want.at}, 0));
  EXPECT_OK(rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, &kern->library_call, &bytes));
  EXPECT_OK(rt_blas_plan(&blas, &ctx->heap, kern, &plan));
  EXPECT_OK(rt_blas_run(&blas, plan, NULL, got.at, NULL));
  expect_same(kern, &got, &want, "in place");
  fake_blas.fail = fake_blas.calls + 1;
  EXPECT_ERROR(rt_blas_run(&blas, plan, NULL, got.at, NULL), INTERNAL,
               "(in place), 1 bytes of workspace at 0: an internal");
  got.at[g->y.mem] = own[0];
  want.at[g->y.mem] = own[1];
  rt_blas_plan_free(&blas, plan);
  free_mems(&got);
  free_mems(&want);
  kern_free(kern);
}

/* ---- what the library is given ------------------------------------------------------------------------------- */

static struct rt_blas_problem problem_of(quern_dtype dtype, quern_dtype y, const struct shape *s,
                                         const struct end *end) {
  struct rt_blas_problem problem;
  struct kern *kern = make_gemm(dtype, s, end);
  kern->mems[kern->library_call.gemm.y.mem].dtype = y;
  EXPECT_OK(rt_blas_problem_make(&problem, kern));
  kern_free(kern);
  return problem;
}

static void test_types(void **state) {
  (void)state;
  static const struct {
    quern_dtype dtype, y;
    bool tf32;
    int type, y_type, compute, scale;
  } cases[] = {{QUERN_DTYPE_F32, QUERN_DTYPE_F32, false, 0, 0, 68, 0},
               {QUERN_DTYPE_F32, QUERN_DTYPE_F32, true, 0, 0, 77, 0},
               {QUERN_DTYPE_F64, QUERN_DTYPE_F64, false, 1, 1, 70, 1},
               {QUERN_DTYPE_F16, QUERN_DTYPE_F16, false, 2, 2, 68, 0},
               {QUERN_DTYPE_F16, QUERN_DTYPE_F32, true, 2, 0, 68, 0},
               {QUERN_DTYPE_BF16, QUERN_DTYPE_BF16, false, 14, 14, 68, 0},
               {QUERN_DTYPE_BF16, QUERN_DTYPE_F32, false, 14, 0, 68, 0},
               {QUERN_DTYPE_F64, QUERN_DTYPE_F64, true, 1, 1, 70, 1}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct kern *kern = make_gemm(cases[i].dtype, &square, &plain);
    struct rt_blas_problem p;
    kern->mems[kern->library_call.gemm.y.mem].dtype = cases[i].y;
    kern->library_call.gemm.tf32 = cases[i].tf32;
    EXPECT_OK(rt_blas_problem_make(&p, kern));
    assert_true(p.a.type == cases[i].type && p.b.type == cases[i].type && p.d.type == cases[i].y_type);
    assert_true(p.compute == cases[i].compute && p.scale == cases[i].scale && p.epilogue == 1);
    kern_free(kern);
  }
}

/* Memories are aligned to 64 bytes; what begins inside of them, or is a batch, may be less so. */
static void test_alignment(void **state) {
  (void)state;
  static const struct {
    struct shape shape;
    uint32_t alignment;
  } cases[] = {{{1, 8, 8, 8, false, false, false, 0, 0}, 64},
               {{1, 8, 8, 8, false, false, false, 8, 0}, 16},
               {{1, 8, 8, 8, false, false, false, 3, 0}, 2},
               {{2, 8, 8, 8, false, false, false, 0, 0}, 16},  /* 72 elements apart */
               {{2, 8, 8, 8, false, false, false, 0, 1}, 32}}; /* 80 */
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct rt_blas_problem p = problem_of(QUERN_DTYPE_BF16, QUERN_DTYPE_BF16, &cases[i].shape, &plain);
    assert_int_equal(p.a.alignment, cases[i].alignment);
    assert_int_equal(p.d.alignment, cases[i].alignment);
  }
  struct kern *kern = make_gemm(QUERN_DTYPE_BF16, &square, &plain);
  struct rt_blas_problem p;
  kern->unaligned_base = true; /* memories begin at any element */
  EXPECT_OK(rt_blas_problem_make(&p, kern));
  assert_true(p.a.alignment == 2 && p.b.alignment == 2 && p.d.alignment == 2);
  kern_free(kern);
}

static void test_refusals(void **state) {
  (void)state;
  struct rt_blas_problem p;
  struct kern *kern = make_gemm(QUERN_DTYPE_F32, &square, &plain);
  struct kern_gemm *g = &kern->library_call.gemm, was = *g;
  g->act = KERN_ACT_RELU, g->back = true, g->aux = g->a;
  EXPECT_ERROR(rt_blas_problem_make(&p, kern), UNSUPPORTED, "no epilogue has activation 1, backward, kept");
  *g = was, g->act = KERN_ACT_RELU, g->aux = g->y;
  EXPECT_ERROR(rt_blas_problem_make(&p, kern), UNSUPPORTED, "no epilogue");
  *g = was, g->bias = 0, g->a_sums = 1;
  EXPECT_ERROR(rt_blas_problem_make(&p, kern), UNSUPPORTED, "bias, sums of a together");
  *g = was, g->terms = 0;
  EXPECT_ERROR(rt_blas_problem_make(&p, kern), UNSUPPORTED, "with 0 terms");
  *g = was, g->a.row = 4;
  EXPECT_ERROR(rt_blas_problem_make(&p, kern), UNSUPPORTED, "matrix a of 8 x 8 with strides 4 and 1");
  *g = was, g->b.row = 9, g->b.column = 2;
  EXPECT_ERROR(rt_blas_problem_make(&p, kern), UNSUPPORTED, "matrix b");
  *g = was, g->add = g->y, g->add.row = 0;
  EXPECT_ERROR(rt_blas_problem_make(&p, kern), UNSUPPORTED, "matrix add");
  *g = was, g->batch = 2, g->bias = 1;
  EXPECT_ERROR(rt_blas_problem_make(&p, kern), UNSUPPORTED, "a bias of 2 products");
  *g = was;
  kern->mems[g->b.mem].dtype = QUERN_DTYPE_F64;
  EXPECT_ERROR(rt_blas_problem_make(&p, kern), UNSUPPORTED, "products of f32 and f64 as f32");
  kern->mems[g->a.mem].dtype = kern->mems[g->b.mem].dtype = kern->mems[g->y.mem].dtype = QUERN_DTYPE_I32;
  EXPECT_ERROR(rt_blas_problem_make(&p, kern), UNSUPPORTED, "products of i32");
  kern_free(kern);
}

/* ---- algorithms --------------------------------------------------------------------------------------------------- */

static void test_choices(void **state) {
  (void)state;
  size_t bytes;
  void *plan;
  struct kern *kern = make_gemm(QUERN_DTYPE_F32, &square, &plain);
  struct kern_library_call *call = &kern->library_call;
  fake_blas_open(&blas);
  fake_blas.schemes[0] = 1; /* parts are added in place: not the same every time, and rounded often */
  fake_blas.schemes[1] = 2;
  EXPECT_OK(rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, call, &bytes));
  assert_true(call->algorithm[0] == 2 && bytes == 4096);
  assert_true(fake_blas.wish.work == 32 << 20 && fake_blas.wish.reductions == 2 && fake_blas.wish.alignment[3] == 64);
  kern->mems[call->work].count = 4096;
  EXPECT_OK(rt_blas_plan(&blas, &ctx->heap, kern, &plan));
  struct mems mems = make_mems(kern);
  EXPECT_OK(rt_blas_run(&blas, plan, NULL, mems.at, mems.at[call->work]));
  assert_true(fake_blas.way == 2 && fake_blas.work == mems.at[call->work] && fake_blas.work_bytes == 4096);
  rt_blas_plan_free(&blas, plan);
  kern->mems[call->work].count = 1; /* less than that algorithm needs */
  EXPECT_ERROR(rt_blas_plan(&blas, &ctx->heap, kern, &plan), UNSUPPORTED, "has no algorithm for gemm");
  fake_blas.schemes[0] = 0; /* now there is another */
  EXPECT_OK(rt_blas_plan(&blas, &ctx->heap, kern, &plan));
  EXPECT_OK(rt_blas_run(&blas, plan, NULL, mems.at, mems.at[call->work]));
  assert_int_equal(fake_blas.way, 1);
  rt_blas_plan_free(&blas, plan);
  free_mems(&mems);
  int work = call->work;
  call->work = KERN_NONE;
  fake_blas.bytes[0] = 1;
  EXPECT_ERROR(rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, call, &bytes), UNSUPPORTED,
               "has no algorithm for gemm");
  call->work = work;
  fake_blas.offers = 0;
  EXPECT_ERROR(rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, call, &bytes), UNSUPPORTED, "(error 15)");
  assert_int_equal(fake_blas.live, 0);
  kern_free(kern);
}

/* On Hopper large products without an end take the first algorithm on smaller tiles. */
static void test_preference(void **state) {
  (void)state;
  static const struct {
    int major;
    float waves;
    bool add, relu;
    uint32_t customs[3];
    uint64_t way;
  } cases[] = {{9, 2, false, false, {7, 4, 3}, 3},    {9, 40, true, false, {4, 0, 1}, 2},
               {9, 1.5f, false, false, {7, 3, 3}, 1}, {8, 40, false, false, {7, 3, 3}, 1},
               {9, 40, false, true, {7, 3, 3}, 1},    {9, 40, false, false, {7, 7, 4}, 1},
               {9, 40, false, false, {3, 0, 0}, 1}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    const struct end end = {.act = cases[i].relu ? KERN_ACT_RELU : KERN_ACT_NONE, .add = cases[i].add};
    struct kern *kern = make_gemm(QUERN_DTYPE_F32, &square, &end);
    size_t bytes;
    fake_blas_open(&blas);
    fake_memory_open("preference");
    driver.major = cases[i].major;
    fake_blas.offers = 3;
    fake_blas.waves[0] = cases[i].waves;
    memcpy(fake_blas.customs, cases[i].customs, sizeof cases[i].customs);
    EXPECT_OK(rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, &kern->library_call, &bytes));
    assert_int_equal(kern->library_call.algorithm[0], cases[i].way);
    kern_free(kern);
  }
}

/* What another version of the library chose is asked again. */
static void test_other_version(void **state) {
  (void)state;
  size_t bytes;
  void *plan;
  struct kern *kern = make_gemm(QUERN_DTYPE_F32, &square, &plain);
  struct mems mems = make_mems(kern);
  fake_blas_open(&blas);
  EXPECT_OK(rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, &kern->library_call, &bytes));
  for (int i = 0; i < 3; i++) {
    kern->library_call.algorithm[0] = 7; /* the fake would use that algorithm if it is believed */
    fake_blas.check_fails = i == 1;
    fake_blas.versions[1] = i == 2;
    EXPECT_OK(rt_blas_load(&blas, NULL, fake_blas_find));
    EXPECT_OK(rt_blas_plan(&blas, &ctx->heap, kern, &plan));
    EXPECT_OK(rt_blas_run(&blas, plan, NULL, mems.at, NULL));
    assert_int_equal(fake_blas.way, i == 0 ? 7 : 1);
    rt_blas_plan_free(&blas, plan);
  }
  free_mems(&mems);
  kern_free(kern);
}

/* ---- what goes wrong ---------------------------------------------------------------------------------------- */

static void test_loading(void **state) {
  (void)state;
  static const char *const symbols[] = {
#define BLAS(NAME, SYMBOL, PARAMETERS) #SYMBOL,
#include "runtime/cuda/blas.def"
#undef BLAS
  };
  char expected[128];
  fake_blas_open(&blas);
  for (size_t i = 0; i < BASE_COUNT(symbols); i++) {
    char missing[64];
    snprintf(missing, sizeof missing, "%s", symbols[i]);
    snprintf(expected, sizeof expected, "cuBLASLt has no function %s", symbols[i]);
    EXPECT_ERROR(rt_blas_load(&blas, missing, fake_blas_find), UNSUPPORTED, expected);
  }
  fake_blas.versions[0] = 11;
  EXPECT_ERROR(rt_blas_load(&blas, NULL, fake_blas_find), UNSUPPORTED, "cuBLASLt 11.0.0 is too old");
  fake_blas.versions[0] = 14;
  EXPECT_ERROR(rt_blas_load(&blas, NULL, fake_blas_find), UNSUPPORTED, "cuBLASLt 14.0.0 is too new");
  fake_blas.versions[0] = 12;
  for (fake_blas.fail = 1; fake_blas.fail <= 4; fake_blas.fail++) {
    fake_blas.calls = 0;
    EXPECT_ERROR(rt_blas_load(&blas, NULL, fake_blas_find), INTERNAL, "an internal error (error 14)");
  }
  fake_blas.fail = 0;
  EXPECT_OK(rt_blas_load(&blas, NULL, fake_blas_find));
  EXPECT_ERROR(rt_blas_check(&blas, 3, "it"), MEMORY, "cuBLASLt 12.0.0: it: there is no memory (error 3)");
  EXPECT_ERROR(rt_blas_check(&blas, 8, "it"), UNSUPPORTED, "not on this GPU");
  EXPECT_ERROR(rt_blas_check(&blas, 77, "it"), INTERNAL, "cuBLASLt 12.0.0: it: error 77");
}

/* Every call of the library fails once: an error, and nothing is left. */
static void test_failures(void **state) {
  (void)state;
  const struct shape s = {2, 8, 8, 8, false, true, false, 0, 0};
  const struct end end = {.act = KERN_ACT_GELU_TANH, .kept = true, .add = true};
  struct kern *kern = make_gemm(QUERN_DTYPE_BF16, &s, &end);
  struct mems mems = make_mems(kern);
  int failed = 0;
  fake_blas_open(&blas);
  fake_blas.offers = 1;
  for (int n = 1;; n++) {
    void *plan = NULL;
    size_t bytes;
    fake_blas.calls = 0;
    fake_blas.fail = n;
    quern_status status = rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, &kern->library_call, &bytes);
    if (status == QUERN_STATUS_OK) status = rt_blas_plan(&blas, &ctx->heap, kern, &plan);
    if (status == QUERN_STATUS_OK) status = rt_blas_run(&blas, plan, NULL, mems.at, NULL);
    rt_blas_plan_free(&blas, plan);
    assert_int_equal(fake_blas.live, 0);
    if (fake_blas.calls < n) break;
    failed += status != QUERN_STATUS_OK;
  }
  assert_true(failed > 40); /* a check of an algorithm that fails is asked again instead */
  fake_blas.fail = 0;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    void *plan;
    fault_begin(&fault);
    quern_status status = rt_blas_plan(&blas, &ctx->heap, kern, &plan);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    rt_blas_plan_free(&blas, plan);
  }
  assert_int_equal(fake_blas.live, 0);
  free_mems(&mems);
  kern_free(kern);
}

/* ---- by the clock ------------------------------------------------------------------------------------------- */

static void test_timing(void **state) {
  (void)state;
  const struct shape s = {1, 64, 48, 200, false, false, false, 0, 0}; /* more than one copy of the noise */
  struct kern *kern = make_gemm(QUERN_DTYPE_F32, &s, &plain);
  struct rt_blas_product p;
  struct rt_blas_choice choices[RT_BLAS_CHOICES];
  double seconds[RT_BLAS_CHOICES] = {0};
  int n;
  fake_memory_open("timing");
  fake_blas_open(&blas);
  EXPECT_OK(rt_blas_product_init(&p, &blas, kern));
  EXPECT_OK(rt_blas_choose(&p, &blas, 4096, choices, &n));
  assert_int_equal(n, 2);
  for (int i = 1;; i++) {
    left = i;
    quern_status status = rt_blas_time(&p, &blas, &driver, &ctx->heap, kern, choices, n, seconds);
    assert_int_equal(held, 0);
    if (status == QUERN_STATUS_OK) break;
  }
  left = 0;
  assert_true(seconds[0] > 0 && seconds[1] > 0);
  rt_blas_product_fini(&p, &blas);
  kern_free(kern);
}

/* Without QUERN_TUNE a note decides, if the library still knows its algorithm, and the first algorithm else. */
static void test_notes(void **state) {
  (void)state;
  struct kern *kern = make_gemm(QUERN_DTYPE_F32, &square, &plain);
  struct rt_blas_product p;
  char name[768];
  fake_memory_open("notes");
  fake_blas_open(&blas);
  fake_blas.bytes[2] = 8192;
  EXPECT_OK(rt_blas_product_init(&p, &blas, kern));
  int at = snprintf(name, sizeof name, "%s, %s, ", blas.identity, driver.name);
  rt_blas_problem_print(&p.problem, name + at, sizeof name - (size_t)at);
  static const struct {
    const char *note;
    size_t most;
    uint64_t way;
  } cases[] = {{"way 1 8192 3 0 0 0 0 0 0 0", 8192, 3}, {"way 1 8192 3 0 0 0 0 0 0 0", 8191, 1},
               {"way 1 8191 3 0 0 0 0 0 0 0", 8192, 1}, {"way 1 0 9 0 0 0 0 0 0 0", 8192, 1},
               {"way 2 8192 3 0 0 0 0 0 0 0", 8192, 1}, {"way 1 8192 3 0 0 0 0 0 0", 8192, 1}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    struct rt_blas_choice choices[2] = {{.algorithm = {1}}, {.algorithm = {2}}};
    char kept[64] = "";
    rt_note_set(&ctx->heap, name, cases[i].note);
    rt_note_get(&ctx->heap, name, kept, sizeof kept);
    if (kept[0] == 0) skip(); /* there is no cache */
    rt_blas_tune(&p, &blas, &driver, &ctx->heap, kern, cases[i].most, choices, 2);
    assert_int_equal(choices[0].algorithm[0], cases[i].way);
  }
  rt_blas_product_fini(&p, &blas);
  kern_free(kern);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_ends),     TEST(test_shapes),  TEST(test_in_place),   TEST(test_types),         TEST(test_alignment),
      TEST(test_refusals), TEST(test_choices), TEST(test_preference), TEST(test_other_version), TEST(test_loading),
      TEST(test_failures), TEST(test_timing),  TEST(test_notes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
