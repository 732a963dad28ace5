/* tests/runtime/test_libraries.c -- kernels that are calls of libraries on device cuda: settled, planned, run, refused
** Driver and library are fakes on memory of the host; the kernel interpreter computes what should come out.
*/
#include "runtime/cuda/libraries.h"

#define TEST_CONTEXT_NEW ir_context_new
#include "unit.h"

#include "fake_blas.h"

/* ---- a driver ----------------------------------------------------------------------------------------------- */

static int pushed; /* contexts */
static bool push_fails;
static int fake_push(void *context) {
  (void)context;
  if (push_fails) return 3;
  pushed++;
  return 0;
}
static int fake_pop(void **context) {
  *context = NULL;
  pushed--;
  return 0;
}
static int fake_error(int code, const char **text) {
  (void)code;
  *text = "planted";
  return 0;
}

static struct rt_cuda_driver driver;
static struct rt_blas blas;

/* Those of the process are fakes until end(). */
static void begin(void) {
  fake_blas_open(&blas);
  driver = (struct rt_cuda_driver){
      .context_push = fake_push, .context_pop = fake_pop, .error_name = fake_error, .error_string = fake_error};
  snprintf(driver.name, sizeof driver.name, "fake");
  push_fails = false;
  rt_cuda_use(&driver);
  rt_blas_use(&blas);
}
static void end(void) {
  rt_cuda_use(NULL);
  rt_blas_use(NULL);
  assert_int_equal(pushed, 0);
  assert_int_equal(fake_blas.live, 0);
}

/* ---- kernels ------------------------------------------------------------------------------------------------ */

enum { SIDE = 4, N = SIDE * SIDE };

/* y = a b' of 4 x 4. after: a phase that comes after the call, whose memories are those of the kernel. */
static struct kern *make_kernel(bool work, bool after) {
  struct kern *kern = NULL;
  struct kern_library_call call = {.kind = KERN_LIBRARY_GEMM,
                                   .gemm = {.batch = 1, .rows = SIDE, .columns = SIDE, .terms = SIDE}};
  struct kern_gemm *g = &call.gemm;
  EXPECT_OK(kern_new(&kern, &ctx->heap));
  struct kern_matrix *const matrices[] = {&g->a, &g->b, &g->y};
  for (int i = 0; i < 3; i++)
    *matrices[i] = (struct kern_matrix){
        .mem = kern_add_mem(kern, QUERN_DTYPE_F32, i < 2 ? KERN_IN : KERN_OUT, N), .row = SIDE, .column = 1};
  g->add.mem = g->aux.mem = g->bias = g->a_sums = g->y_sums = KERN_NONE;
  call.work = work ? kern_add_mem(kern, QUERN_DTYPE_U8, KERN_WORK, 1) : KERN_NONE;
  kern_add_library_call(kern, &call);
  if (after) (void)kern_add_phase(kern, KERN_FIXED_TASKS(1));
  EXPECT_OK(kern_finish(kern, "gemm", NULL));
  return kern;
}

/* ---- the list ----------------------------------------------------------------------------------------------- */

static void test_list(void **state) {
  (void)state;
  size_t n = 0;
  while (rt_cuda_library_get(n) != NULL) n++;
  assert_int_equal(n, 2);
  assert_ptr_equal(rt_cuda_library_of(KERN_LIBRARY_GEMM), &rt_cuda_blas);
  assert_ptr_equal(rt_cuda_library_of(KERN_LIBRARY_ATTENTION), &rt_cuda_dnn);
  assert_ptr_equal(rt_cuda_library_of(KERN_LIBRARY_ATTENTION_BACK), &rt_cuda_dnn);
  assert_null(rt_cuda_library_of(KERN_LIBRARY_NONE));
  begin();
  char text[512];
  assert_true(rt_cuda_libraries(&driver) & BASE_LIBRARY_BLAS);
  rt_cuda_describe_libraries(&driver, text, sizeof text);
  assert_non_null(strstr(text, "cuBLASLt 13.0.0"));
  rt_cuda_describe_libraries(&driver, text, 9);
  assert_string_equal(text, "cuBLASLt");
  push_fails = true;
  assert_int_equal(rt_cuda_libraries(&driver), 0);
  end();
}

/* ---- ahead of time ------------------------------------------------------------------------------------------ */

static void test_warm_up(void **state) {
  (void)state;
  begin();
  rt_cuda_blas.warm_up();
  assert_true(fake_blas.calls > 0 && fake_blas.wish.alignment[0] == 256);
  int all = fake_blas.calls;
  for (int i = 1; i <= all; i++) { /* nothing is left, whatever fails */
    fake_blas.calls = 0;
    fake_blas.fail = i;
    rt_cuda_blas.warm_up();
    assert_int_equal(fake_blas.live, 0);
  }
  fake_blas.fail = 0;
  end();
}

/* Once per process, and only the libraries of the target. */
static void test_preload(void **state) {
  (void)state;
  struct cg_target target = *cg_target_find("sm_90");
  begin();
  fake_blas.calls = 0;
  rt_cuda.preload(&target);
  rt_cuda.preload(NULL);
  assert_int_equal(fake_blas.calls, 0);
  target.base.capabilities = BASE_LIBRARY_BLAS;
  for (int i = 0; i < 2; i++) {
    rt_cuda.preload(&target);
    rt_cuda.preload(NULL);
    assert_int_equal(fake_blas.calls > 0, i == 0);
    fake_blas.calls = 0;
  }
  end();
}

/* ---- querying algorithms ------------------------------------------------------------------------------------ */

static void test_query_algorithm(void **state) {
  (void)state;
  struct kern *kern = make_kernel(true, true);
  int work = kern->library_call.work;
  begin();
  fake_blas.bytes[0] = 512;
  EXPECT_OK(rt_cuda.query_algorithm(kern, NULL));
  assert_true(kern->library_call.algorithm[0] == 1 && kern->mems[work].count == 512);
  assert_int_equal(kern->fns.at[0]->mems[work].count, 512);
  fake_blas.bytes[0] = 0;
  EXPECT_OK(rt_cuda.query_algorithm(kern, NULL)); /* no bytes are one */
  assert_int_equal(kern->mems[work].count, 1);
  fake_blas.offers = 0;
  EXPECT_ERROR(rt_cuda.query_algorithm(kern, NULL), UNSUPPORTED, "has no algorithm");
  push_fails = true;
  EXPECT_ERROR(rt_cuda.query_algorithm(kern, NULL), INTERNAL, "its context");
  kern->library_call.kind = KERN_LIBRARY_NONE;
  EXPECT_OK(rt_cuda.query_algorithm(kern, NULL));
  kern->library_call.kind = (enum kern_library_kind)77;
  EXPECT_ERROR(rt_cuda.query_algorithm(kern, NULL), UNSUPPORTED, "no library does calls of kind 77");
  end();
  kern_free(kern);
}

/* A library that asks for workspace although there is none. */
static quern_status ask_too_much(const struct rt_cuda_driver *d, struct base_heap *heap, const struct kern *kern,
                                 struct kern_library_call *call, size_t *bytes) {
  (void)d, (void)heap, (void)kern, (void)call;
  *bytes = 64;
  return QUERN_STATUS_OK;
}

static void test_no_work(void **state) {
  (void)state;
  const struct rt_cuda_library library = {.name = "greedy", .query_algorithm = ask_too_much};
  struct kern *kern = make_kernel(false, false);
  begin();
  EXPECT_ERROR(rt_cuda_call_query(&library, &driver, kern), INTERNAL, "greedy asks for 64 bytes of workspace");
  EXPECT_OK(rt_cuda.query_algorithm(kern, NULL));
  assert_true(kern->library_call.algorithm[0] == 1 && fake_blas.wish.work == 0);
  end();
  kern_free(kern);
}

/* ---- modules ------------------------------------------------------------------------------------------------ */

static void test_run(void **state) {
  (void)state;
  struct kern *kernels[] = {make_kernel(true, false), make_kernel(false, false)};
  struct rt_module *module;
  struct rt_stats stats;
  struct kern_runs runs = {0};
  struct rt_stream stream = {.driver = &driver, .last = ""};
  float a[N], b[N], y[N], want[N];
  char work[64];
  void *mems[] = {a, b, y, work}, *same[] = {a, b, want, work};
  for (int i = 0; i < N; i++) a[i] = (float)(i % 5) - 2, b[i] = (float)(i % 7) / 2, y[i] = 0;
  begin();
  fake_blas.bytes[0] = 0;
  for (int i = 0; i < 2; i++) EXPECT_OK(rt_cuda.query_algorithm(kernels[i], NULL));
  kernels[0]->mems[3].count = 64;
  EXPECT_OK(
      rt_cuda.build(&module, &ctx->heap, 2, (const struct kern *const *)kernels, cg_target_find("sm_90"), &stats));
  assert_true(stats.compiled == 0 && stats.cached == 0); /* and there was no NVRTC */
  EXPECT_OK(kern_interp(kernels[0], &(struct kern_launch){.mems = same}, 0));
  for (size_t k = 0; k < 2; k++) {
    memset(y, 0, sizeof y);
    EXPECT_OK(rt_cuda_launch(&stream, module, k, &(struct kern_launch){.mems = mems, .runs = &runs}, NULL, 0));
    assert_memory_equal(y, want, sizeof y);
    assert_ptr_equal(fake_blas.work, k == 0 ? (void *)work : NULL);
    assert_int_equal(fake_blas.work_bytes, k == 0 ? 64 : 0);
  }
  assert_int_equal(runs.compiled, 2);
  fake_blas.fail = fake_blas.calls + 1;
  EXPECT_ERROR(rt_cuda_launch(&stream, module, 0, &(struct kern_launch){.mems = mems}, NULL, 0), INTERNAL,
               "cuBLASLt 13.0.0: gemm 68 0 tn 1*4 end 1");
  rt_cuda.free(module);
  end();
  kern_free(kernels[0]);
  kern_free(kernels[1]);
}

/* Every call of the library, every allocation and the context fail: an error, and nothing is left. */
static void test_failures(void **state) {
  (void)state;
  struct kern *kernels[] = {make_kernel(true, false), make_kernel(true, false)};
  const struct kern *const *list = (const struct kern *const *)kernels;
  const struct cg_target *target = cg_target_find("sm_90");
  struct rt_module *module;
  int failed = 0;
  begin();
  for (int i = 0; i < 2; i++) EXPECT_OK(rt_cuda.query_algorithm(kernels[i], NULL));
  for (int n = 1;; n++) {
    fake_blas.calls = 0;
    fake_blas.fail = n;
    quern_status status = rt_cuda.build(&module, &ctx->heap, 2, list, target, NULL);
    rt_cuda.free(module);
    assert_int_equal(fake_blas.live, 0);
    if (fake_blas.calls < n) break;
    failed += status != QUERN_STATUS_OK;
  }
  assert_true(failed > 10);
  fake_blas.fail = 0;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = rt_cuda.build(&module, &ctx->heap, 2, list, target, NULL);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    rt_cuda.free(module);
  }
  assert_true(fault.n > 3);
  push_fails = true;
  EXPECT_ERROR(rt_cuda.build(&module, &ctx->heap, 2, list, target, NULL), INTERNAL, "its context");
  end();
  kern_free(kernels[0]);
  kern_free(kernels[1]);
}

/* What the library does not do any more when it is built is named, and all of it. */
static void test_refused(void **state) {
  (void)state;
  struct kern *kernels[] = {make_kernel(true, false), make_kernel(false, false)};
  const struct kern *const *list = (const struct kern *const *)kernels;
  struct rt_module *module;
  struct rt_stats stats = {0};
  begin();
  for (int i = 0; i < 2; i++) EXPECT_OK(rt_cuda.query_algorithm(kernels[i], NULL));
  fake_blas.late = SIDE;
  EXPECT_ERROR(rt_cuda.build(&module, &ctx->heap, 2, list, cg_target_find("sm_90"), &stats), UNSUPPORTED,
               "has no algorithm");
  assert_int_equal(stats.n_refused, 2);
  for (int i = 0; i < 2; i++) assert_true(stats.refused[i] == kernels[i]->hash);
  end();
  kern_free(kernels[0]);
  kern_free(kernels[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_list),    TEST(test_warm_up), TEST(test_preload),  TEST(test_query_algorithm),
      TEST(test_no_work), TEST(test_run),     TEST(test_failures), TEST(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
