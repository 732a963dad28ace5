/* tests/engine/test_cache.c -- programs that were compiled before: the same program, other constants, other requests */
/* tests/engine/test_cache.c -- programs that were compiled before: the same program, other constants, other requests */
#include "engine/engine_test.h"

#include <unistd.h>

static float weights[4];
static char folder[64];

/* y = x w + 2.5, with w known. */
static quern_tensor *build(void) {
  quern_tensor *w = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(4), weights);
  return quern_add_scalar(quern_mul(F32_INPUT("x", 4), w), 2.5);
}

static void compile(quern_tensor *y, int threads, const char *passes) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "cpu";
  options.threads = threads;
  options.passes = passes;
  open_program(1, &y, &options);
}

/* Whether the program that is open came from the cache, and that it computes the right thing. */
static bool was_cached(void) {
  quern_program_stats counts = QUERN_INIT(quern_program_stats);
  EXPECT_OK(quern_program_get_stats(program, &counts));
  run_program();
  for (int i = 0; i < 4; i++)
    assert_true(((float *)outputs.at[0])[i] == ((float *)inputs.at[0])[i] * weights[i] + 2.5f);
  bool cached = counts.compiled == 0 && counts.kernels == 1 && counts.seconds_passes == 0;
  close_program();
  return cached;
}

static void programs_are_found_again(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) weights[i] = (float)i + 1;
  for (int i = 0; i < 2;
       i++) { /* twice: the first time constants are made, the second time they are older than the rest */
    compile(build(), 1, NULL);
    (void)was_cached();
  }
  compile(build(), 1, NULL); /* another graph of the same structure */
  quern_program_stats counts = QUERN_INIT(quern_program_stats);
  EXPECT_OK(quern_program_get_stats(program, &counts));
  assert_int_equal(counts.compiled, 0);
  (void)was_cached();
  for (int i = 0; i < 4; i++) weights[i] = (float)i - 7; /* other elements */
  compile(build(), 1, NULL);
  (void)was_cached();
  compile(build(), 2, NULL); /* another request */
  (void)was_cached();
  compile(build(), 1, "-fuse");
  (void)was_cached();
}

/* What differs in an attribute, a constant or an option has another key. */
static void keys_differ(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 4), *roots[] = {quern_add_scalar(x, 1), quern_add_scalar(x, 2), quern_neg(x),
                                                   quern_sum(x, QUERN_ALL, false), quern_max(x, QUERN_ALL, false)};
  uint64_t keys[3 * BASE_COUNT(roots)][2];
  size_t n = 0;
  for (size_t i = 0; i < BASE_COUNT(roots); i++) {
    for (int way = 0; way < 3; way++, n++) {
      struct engine_request request = {.ctx = ctx,
                                       .n_outputs = 1,
                                       .outputs = &roots[i],
                                       .options = QUERN_INIT(quern_program_options),
                                       .device = rt_device_at(&rt_cpu, 0)};
      request.options.threads = way == 1 ? 2 : 1;
      request.options.gradient_checkpointing = way == 2;
      EXPECT_OK(engine_cache_key(&request, keys[n]));
      for (size_t k = 0; k < n; k++) assert_true(keys[k][0] != keys[n][0] && keys[k][1] != keys[n][1]);
    }
  }
}

int main(void) {
  snprintf(folder, sizeof folder, "/tmp/quern-test-cache-XXXXXX");
  if (mkdtemp(folder) == NULL) return 1;
  setenv("QUERN_CACHE", folder, 1);
  const struct CMUnitTest tests[] = {TEST(programs_are_found_again), TEST(keys_differ)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command) == 0 ? failed : 1;
}
