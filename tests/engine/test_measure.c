/* tests/engine/test_measure.c -- quern_program_measure: what it runs, how often, and what it says of it */
#include "engine/engine_test.h"
#include "quern/profile.h"

static quern_measure_stats stats;

static quern_status measure(const quern_measure_options *options) {
  stats = (quern_measure_stats){.size = sizeof stats};
  return quern_program_measure(program, options, &stats);
}

static void expect_sense(void) {
  assert_true(stats.runs > 0 && stats.least > 0 && stats.runs_per_second > 0);
  assert_true(stats.least <= stats.p10 && stats.p10 <= stats.median && stats.median <= stats.p90);
  assert_true(stats.p90 <= stats.p99 && stats.runs_per_second <= 1.001 / stats.least);
  assert_int_equal(stats.planned_bytes, program->memory.total);
  assert_true(stats.used_bytes >= program->memory.arena + program->memory.state + program->memory.constants);
  assert_true(stats.used_bytes < stats.planned_bytes + (1 << 20));
}

static void runs_are_counted(void **state) {
  (void)state;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  quern_tensor *s = F32_STATE("t", 8), *y = quern_mul(s, F32_INPUT("x", 8));
  quern_update update = {s, quern_add(s, y)};
  options.n_updates = 1;
  options.updates = &update;
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &y, &options));
  quern_measure_options o = {.size = sizeof o, .warm_up = 2, .most_runs = 5, .seconds = 100};
  EXPECT_OK(measure(&o));
  assert_int_equal(stats.runs, 5);
  assert_false(stats.stopped);
  expect_sense();
  o = (quern_measure_options){.size = sizeof o, .seconds = 1e-9}; /* one run at least */
  EXPECT_OK(measure(&o));
  assert_int_equal(stats.runs, 1);
  expect_sense();
  close_program();
}

/* An instance of the caller's is run, with its states and whatever has set them. */
static void an_instance_that_is_given(void **state) {
  (void)state;
  quern_tensor *s = F32_STATE("s", 2), *y = quern_mul_scalar(s, 2);
  quern_update update = {s, y};
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  options.n_updates = 1;
  options.updates = &update;
  quern_measure_options o = {.size = sizeof o, .warm_up = 1, .most_runs = 3, .seconds = 100};
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &y, &options));
  EXPECT_OK(quern_instance_new(&instance, program));
  o.instance = instance;
  EXPECT_ERROR(measure(&o), STATE, "the program reads state 0, \"s\", which nothing has set");
  float value[2] = {1, -1};
  EXPECT_OK(quern_instance_set_state(instance, 0, value));
  EXPECT_OK(measure(&o));
  EXPECT_OK(quern_instance_get_state(instance, 0, value));
  assert_true(value[0] == 16 && value[1] == -16); /* doubled by every run */
  expect_sense();
  close_program();
}

/* A batch that is given at each run: as many rows as asked for, and the instance's own afterwards. */
static void rows(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 16, 4), *y = quern_tanh(x);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  options.n_dynamic_batch = 1;
  options.dynamic_batch = &x;
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &y, &options));
  EXPECT_OK(quern_instance_new(&instance, program));
  quern_measure_options o = {.size = sizeof o, .most_runs = 2, .instance = instance};
  for (o.rows = 0; o.rows <= 16; o.rows += 4) {
    EXPECT_OK(measure(&o));
    assert_int_equal(stats.runs, 2);
    assert_int_equal(instance->rows, 16);
  }
  EXPECT_ERROR(measure(&o), INVALID, "instance_set_dynamic_batch: 20 rows; the program was compiled for 0 to 16");
  assert_int_equal(instance->rows, 16);
  close_program();
}

static bool after_three(void *user) { return ++*(int *)user > 3; }
static bool at_once(void *user) { return user == NULL; }

static void stopping(void **state) {
  (void)state;
  int asked = 0;
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_tensor *y = quern_neg(F32_INPUT("x", 8));
  options.device = "interp";
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &y, &options));
  quern_measure_options o = {.size = sizeof o, .warm_up = 1, .seconds = 1000, .stop = after_three, .user = &asked};
  EXPECT_OK(measure(&o));
  assert_true(stats.stopped);
  assert_int_equal(stats.runs, 2);
  expect_sense();
  o = (quern_measure_options){.size = sizeof o, .stop = at_once};
  EXPECT_OK(measure(&o));
  assert_true(stats.stopped && stats.runs == 0 && stats.median == 0 && stats.runs_per_second == 0);
  close_program();
}

static void what_cannot_run(void **state) {
  (void)state;
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_tensor *y = quern_neg(F32_INPUT("x", 8));
  options.device = "null";
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &y, &options));
  EXPECT_ERROR(measure(NULL), UNSUPPORTED, "was not run");
  close_program();
  options.device = "interp";
  options.plan_only = true;
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &y, &options));
  EXPECT_ERROR(measure(NULL), INVALID, "the program was only planned");
  close_program();
}

static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_tensor *y = quern_mul(F32_INPUT("x", 8), F32_STATE("s", 8));
  quern_measure_options o = {.size = sizeof o, .most_runs = 2};
  options.device = "interp";
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &y, &options));
  while (fault_next(&fault)) {
    size_t live = memory_live;
    fault_begin(&fault);
    quern_status status = measure(&o);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(memory_live, live);
  }
  assert_true(fault.n > 5);
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(runs_are_counted), TEST(an_instance_that_is_given), TEST(rows),
                                     TEST(stopping),         TEST(what_cannot_run),           TEST(lack_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
