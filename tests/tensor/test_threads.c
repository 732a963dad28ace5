/* tests/tensor/test_threads.c -- contexts are independent: one per thread, the same bits in all (run it under tsan) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "quern/quern.h"

enum { THREADS = 4, ROUNDS = 3, N = 6 };

struct job {
  quern_status status;
  float value[1 + N * N];
};

/* Builds, differentiates and evaluates a small network in a context of its own. */
static quern_status compute(float *value) {
  quern_context *ctx;
  quern_context_options options = {.size = sizeof options, .seed = 7};
  QUERN_TRY(quern_context_new(&ctx, &options));
  quern_tensor *x = quern_random_normal(ctx, QUERN_DTYPE_F32, QUERN_LIST(N, N), 0, 1, NULL);
  quern_tensor *w = quern_random_uniform(ctx, QUERN_DTYPE_F32, QUERN_LIST(N, N), -1, 1, NULL);
  quern_tensor *out[2] = {quern_mean(quern_square(quern_softmax(quern_gelu(quern_matmul(x, w)), 1)), QUERN_ALL, false)};
  void *dst[2] = {value, value + 1};
  quern_status status = quern_grad(out[0], 1, &w, &out[1]);
  if (status == QUERN_STATUS_OK) status = quern_eval(ctx, 2, out, dst, 0, NULL);
  quern_context_free(ctx);
  return status;
}

static void run(void *arg) {
  struct job *job = arg;
  for (int i = 0; i < ROUNDS && job->status == QUERN_STATUS_OK; i++) job->status = compute(job->value);
  if (job->status != QUERN_STATUS_OK) return;
  /* an error in one thread is not seen by another */
  if (quern_last_error()[0] != '\0') job->status = QUERN_STATUS_STATE;
  (void)base_error(QUERN_STATUS_INVALID, "of thread %p", arg);
}

static void same_bits_in_every_thread(void **state) {
  (void)state;
  float expected[1 + N * N];
  assert_int_equal(compute(expected), QUERN_STATUS_OK);
  struct base_thread threads[THREADS];
  struct job jobs[THREADS];
  memset(jobs, 0, sizeof jobs);
  for (int i = 0; i < THREADS; i++) assert_int_equal(base_thread_start(&threads[i], run, &jobs[i]), QUERN_STATUS_OK);
  for (int i = 0; i < THREADS; i++) base_thread_join(&threads[i]);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(jobs[i].status, QUERN_STATUS_OK);
    assert_memory_equal(jobs[i].value, expected, sizeof expected);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_in_every_thread)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
