/* tests/engine/test_watch.c -- the probe that watches memory sees what it is to see: growth, allocations, the interpreter */
#include "probe/probe.c"

#include "engine/engine_test.h"
#include "probe/watch.h"

static void calls_are_counted(void **state) {
  (void)state;
  if (!probe_counts()) skip();
  void *volatile memory[4];
  uint64_t before = probe_allocations();
  memory[0] = malloc(10);
  memory[1] = calloc(10, 10);
  memory[2] = aligned_alloc(64, 64);
  memory[0] = realloc(memory[0], 1000);
  assert_int_equal(posix_memalign((void **)&memory[3], 4096, 10), 0);
  assert_int_equal(probe_allocations() - before, 5);
  assert_true((uintptr_t)memory[3] % 4096 == 0 && ((char *)memory[1])[99] == 0);
  for (int i = 0; i < 4; i++) free(memory[i]);
  assert_int_equal(probe_allocations() - before, 5);
}

enum defect { NONE, GROWTH, LEAK, ALLOCATION, DEFECTS };

/* Runs a program twice, doing something beside it that is not planned. */
static quern_status watched(enum defect defect, const char *device) {
  struct watch watch;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = device;
  options.threads = 2;
  EXPECT_OK(quern_program_compile(&program, ctx, TENSORS(quern_exp(F32_INPUT("x", 64))), &options));
  slots_fill(&inputs, program->n_inputs, program->inputs, 1);
  slots_fill(&outputs, program->n_outputs, program->outputs, 100);
  watch_begin(&watch);
  EXPECT_OK(quern_instance_new(&instance, program));
  run_program();
  size_t bytes = 48 << 20;
  char *more = defect == GROWTH || defect == LEAK ? malloc(bytes) : NULL;
  for (size_t i = 0; i < bytes && more != NULL; i += 4096) ((volatile char *)more)[i] = 1;
  if (defect == GROWTH) free(more); /* the peak stays */
  watch_second(&watch, instance);
  run_program();
  void *volatile one = defect == ALLOCATION ? malloc(1) : NULL;
  quern_status status = watch_end(&watch, instance);
  free(one);
  if (defect == LEAK) free(more);
  close_program();
  return status;
}

static void defects_are_seen(void **state) {
  (void)state;
  struct probe_bytes bytes;
  bool proc = probe_reset_peak() && probe_read(&bytes);
  EXPECT_OK(watched(NONE, "cpu"));
  if (proc) EXPECT_ERROR(watched(GROWTH, "cpu"), INTERNAL, "resident memory grew by");
  if (proc) EXPECT_ERROR(watched(LEAK, "cpu"), INTERNAL, "resident memory grew by");
  if (probe_counts()) EXPECT_ERROR(watched(ALLOCATION, "cpu"), INTERNAL, "the second run made 1 allocations");
}

/* A step is counted where it runs. */
static void the_interpreter_is_seen(void **state) {
  (void)state;
  const char *devices[] = {"cpu", "interp"};
  for (int i = 0; i < 2; i++) {
    quern_program_options options = QUERN_INIT(quern_program_options);
    quern_run_stats counts = QUERN_INIT(quern_run_stats);
    options.device = devices[i];
    quern_tensor *x = F32_INPUT("x", 8, 8);
    open_program(TENSORS(quern_softmax(quern_matmul(x, x), 1), x), &options); /* a result that is a copy of an input */
    for (int run = 0; run < 3; run++) run_program();
    EXPECT_OK(quern_instance_get_stats(instance, &counts));
    assert_int_equal(program->counts.copies, 1);
    uint64_t kernels = 3 * (program->counts.steps - program->counts.copies - program->counts.controls);
    assert_true(kernels > 0 && counts.runs == 3 && counts.copies == 3 && counts.controls == 0 && counts.evaluated == 0);
    assert_int_equal(counts.compiled, i == 0 ? kernels : 0);
    assert_int_equal(counts.interpreted, i == 0 ? 0 : kernels);
    close_program();
  }
  quern_status status = watched(NONE, "interp");
  assert_int_equal(status, QUERN_STATUS_INTERNAL); /* it allocates, and it is interpreted */
}

static void body(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_exp(quern_neg(in[1]));
}

static void bodies_are_counted(void **state) {
  (void)state;
  quern_tensor *results[1], *x = F32_INPUT("x", 4);
  quern_loop_options loop = {sizeof loop, 5, false, 1, 0, 0, 0};
  quern_run_stats counts = QUERN_INIT(quern_run_stats);
  EXPECT_OK(quern_loop(ctx, &loop, &x, body, NULL, results));
  open_program(1, results, NULL);
  run_program();
  EXPECT_OK(quern_instance_get_stats(instance, &counts));
  assert_true(counts.controls == 1 && counts.interpreted == 5 && program->counts.controls == 1);
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(calls_are_counted), TEST(defects_are_seen), TEST(the_interpreter_is_seen),
                                     TEST(bodies_are_counted)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
