/* tests/runtime/test_measure.c -- what a GPU can do, measured on a fake one: all rates are there, nothing is left of the measuring */
#include "runtime/cuda/blas.h"

#define TEST_CONTEXT_NEW ir_context_new
#include "unit.h"

#include "fake_blas.h"

static int held, left; /* blocks and streams; calls of the driver until one fails, 0: none does */
static int step(void) { return left > 0 && --left == 0 ? 2 : 0; }
static int fake_push(void *context) {
  (void)context;
  return step();
}
static int fake_pop(void **context) {
  *context = NULL;
  return 0;
}
static int fake_info(size_t *some, size_t *all) {
  *some = *all = 1 << 20;
  return step();
}
static int fake_alloc(uint64_t *at, size_t bytes) {
  (void)bytes;
  int code = step();
  if (code != 0) return code;
  *at = 4096;
  held++;
  return 0;
}
static int fake_release(uint64_t at) {
  (void)at;
  held--;
  return 0;
}
static int fake_upload(uint64_t to, const void *from, size_t bytes, void *stream) {
  (void)to, (void)from, (void)bytes, (void)stream;
  return step();
}
static int fake_copy(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  (void)to, (void)from, (void)bytes, (void)stream;
  return step();
}
static int fake_fill(uint64_t at, unsigned char byte, size_t bytes, void *stream) {
  (void)at, (void)byte, (void)bytes, (void)stream;
  return step();
}
static int fake_stream(void **stream, unsigned flags) {
  (void)flags;
  int code = step();
  if (code != 0) return code;
  *stream = &held;
  held++;
  return 0;
}
static int fake_stream_end(void *stream) {
  (void)stream;
  held--;
  return 0;
}
static int fake_wait(void *stream) {
  (void)stream;
  return step();
}
static int fake_error(int code, const char **text) {
  (void)code;
  *text = "planted";
  return 0;
}
/* Takes no time; nothing is computed. */
static int no_product(void *handle, void *product, const void *alpha, const void *a, void *a_layout, const void *b,
                      void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                      const void *algorithm, void *work, size_t bytes, void *stream) {
  (void)handle, (void)product, (void)alpha, (void)a, (void)a_layout, (void)b, (void)b_layout, (void)beta, (void)c;
  (void)c_layout, (void)d, (void)d_layout, (void)algorithm, (void)work, (void)bytes, (void)stream;
  return 0;
}

static void test_measure(void **state) {
  (void)state;
  struct rt_blas blas;
  struct rt_rates rates;
  struct rt_cuda_driver driver = {.context_push = fake_push,
                                  .context_pop = fake_pop,
                                  .info = fake_info,
                                  .alloc = fake_alloc,
                                  .free = fake_release,
                                  .upload = fake_upload,
                                  .copy = fake_copy,
                                  .fill = fake_fill,
                                  .stream_create = fake_stream,
                                  .stream_destroy = fake_stream_end,
                                  .stream_wait = fake_wait,
                                  .error_name = fake_error,
                                  .error_string = fake_error};
  fake_blas_open(&blas);
  blas.product = no_product;
  rt_device_use(rt_device_at(&rt_cuda, 0), &driver);
  driver.blas = &blas;
  left = 0;
  EXPECT_OK(rt_cuda.measure(rt_device_at(&rt_cuda, 0), &ctx->heap, &rates));
  const double all[] = {rates.f32, rates.tf32, rates.bf16,   rates.f16,
                        rates.f64, rates.copy, rates.cached, rates.launch};
  for (size_t i = 0; i < BASE_COUNT(all); i++) assert_true(all[i] > 0);
  assert_true(rates.cached >= rates.copy && held == 0 && fake_blas.live == 0);
  for (int i = 1; i < 200; i++) { /* each of the first calls of the driver */
    left = i;
    assert_int_not_equal(rt_cuda.measure(rt_device_at(&rt_cuda, 0), &ctx->heap, &rates), QUERN_STATUS_OK);
    assert_true(held == 0 && fake_blas.live == 0);
  }
  left = 0;
  fake_blas.offers = 0; /* the library can do nothing: memory is still measured */
  EXPECT_OK(rt_cuda.measure(rt_device_at(&rt_cuda, 0), &ctx->heap, &rates));
  assert_true(rates.bf16 == 0 && rates.copy > 0);
  rt_device_use(rt_device_at(&rt_cuda, 0), NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_measure)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
