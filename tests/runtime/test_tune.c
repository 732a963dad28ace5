/* tests/runtime/test_tune.c -- QUERN_TUNE=1: algorithms are timed, the fastest is taken, kept, and taken from there */
#include "runtime/cuda/blas.h"

#define TEST_CONTEXT_NEW ir_context_new
#include "unit.h"

#include "fake_blas.h"
#include "fake_memory.h"

enum { SIDE = 8, SLOW_NS = 200000 };

static uint64_t fast; /* the algorithm that does not take long */

/* A product that takes its time, and computes nothing. */
static int slow_product(void *handle, void *product, const void *alpha, const void *a, void *a_layout, const void *b,
                        void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                        const void *algorithm, void *work, size_t bytes, void *stream) {
  (void)handle, (void)product, (void)alpha, (void)a, (void)a_layout, (void)b, (void)b_layout, (void)beta, (void)c;
  (void)c_layout, (void)d, (void)d_layout, (void)work, (void)bytes, (void)stream;
  fake_blas.way = *(const uint64_t *)algorithm;
  fake_blas.calls++;
  double end = base_clock() + (fake_blas.way == fast ? 0 : SLOW_NS * 1e-9);
  while (base_clock() < end) continue;
  return 0;
}

static struct kern *make_kernel(void) {
  struct kern *kern = NULL;
  struct kern_library_call call = {.kind = KERN_LIBRARY_GEMM,
                                   .gemm = {.batch = 1, .rows = SIDE, .columns = SIDE, .terms = SIDE}};
  struct kern_gemm *g = &call.gemm;
  EXPECT_OK(kern_new(&kern, &ctx->heap));
  struct kern_matrix *const matrices[] = {&g->a, &g->b, &g->y};
  for (int i = 0; i < 3; i++)
    *matrices[i] = (struct kern_matrix){
        .mem = kern_add_mem(kern, QUERN_DTYPE_F32, i < 2 ? KERN_IN : KERN_OUT, SIDE * SIDE), .row = SIDE, .column = 1};
  g->add.mem = g->aux.mem = g->bias = g->a_sums = g->y_sums = KERN_NONE;
  call.work = kern_add_mem(kern, QUERN_DTYPE_U8, KERN_WORK, 1);
  kern_add_library_call(kern, &call);
  EXPECT_OK(kern_finish(kern, "gemm", NULL));
  return kern;
}

static void test_tuning(void **state) {
  (void)state;
  struct rt_blas blas;
  char before[64], after[64];
  size_t bytes;
  struct kern *kern = make_kernel();
  fake_memory_open("tuning");
  fake_blas_open(&blas);
  blas.product = slow_product;
  fake_blas.offers = 3;
  fake_blas.bytes[2] = 128;
  fast = 3;
  rt_cuda_tuned(&ctx->heap, &driver, before, sizeof before);
  EXPECT_OK(rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, &kern->library_call, &bytes));
  assert_true(kern->library_call.algorithm[0] == 3 && bytes == 128 && held == 0);
  rt_cuda_tuned(&ctx->heap, &driver, after, sizeof after);
  if (after[0] == 0) skip(); /* there is no cache */
  assert_string_not_equal(before, after);
  fast = 2; /* it is not timed again */
  EXPECT_OK(rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, &kern->library_call, &bytes));
  assert_true(kern->library_call.algorithm[0] == 3 && bytes == 128);
  rt_cuda_tuned(&ctx->heap, &driver, before, sizeof before);
  assert_string_equal(before, after);
  assert_int_equal(fake_blas.live, 0);
  kern_free(kern);
}

/* Where there is no memory to time in, the first algorithm is taken, and nothing is kept. */
static void test_no_memory(void **state) {
  (void)state;
  struct rt_blas blas;
  char text[64];
  size_t bytes;
  struct kern *kern = make_kernel();
  fake_memory_open("no memory");
  fake_blas_open(&blas);
  blas.product = slow_product;
  fast = 2;
  left = 3;
  EXPECT_OK(rt_blas_query_algorithm(&blas, &driver, &ctx->heap, kern, &kern->library_call, &bytes));
  assert_true(kern->library_call.algorithm[0] == 1 && held == 0 && fake_blas.live == 0);
  rt_cuda_tuned(&ctx->heap, &driver, text, sizeof text);
  assert_string_equal(text, "");
  kern_free(kern);
}

static int no_context(void *context) {
  (void)context;
  return 3;
}

/* A program is not taken from the cache then: it would not be tuned. */
static void test_identity(void **state) {
  (void)state;
  uint64_t key[2];
  fake_memory_open("identity");
  driver.context_push = no_context; /* it has no libraries then */
  rt_cuda_use(&driver);
  assert_false(rt_cuda.identity(&ctx->heap, cg_target_find("sm_90"), key));
  rt_cuda_use(NULL);
}

int main(void) {
  if (setenv("QUERN_TUNE", "1", 1) != 0) return 1;
  const struct CMUnitTest tests[] = {TEST(test_tuning), TEST(test_no_memory), TEST(test_identity)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
