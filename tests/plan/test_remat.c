/* tests/plan/test_remat.c -- plans that fit a limit by computing again: they run, they fit, and the smallest limit is
** exact */
#include "plan/plan_test.h"

/* Layers forwards, each of which the way back reads again: a (x, big inside, y) a layer. */
static void training_step(int layers) {
  quern_tensor *x = problem_param(640), *inside[64], *outs[64];
  for (int i = 0; i < layers; i++) {
    struct fake *f = problem_step(2560, INS(x));
    p.steps[p.n - 1].seconds = 1e-6;
    inside[i] = OUT(f);
    x = outs[i] = OUT(problem_step(640, INS(inside[i])));
    p.steps[p.n - 1].seconds = 1e-4;
  }
  quern_tensor *d = OUT(problem_step(640, INS(x)));
  for (int i = layers; i-- > 0;) {
    d = OUT(problem_step(640, INS(d, inside[i], outs[i])));
    p.steps[p.n - 1].seconds = 1e-4;
  }
  problem_result(d);
}

/* The smallest limit that the message of a refusal names. */
static int64_t named_least(void) {
  const char *at = strstr(quern_last_error(), "the smallest that can is ");
  assert_non_null(at);
  return strtoll(at + strlen("the smallest that can is "), NULL, 10);
}

static int64_t find_least(void) {
  p.options.limit = 1;
  assert_int_equal(problem_plan(), QUERN_STATUS_MEMORY);
  return named_least();
}

static void a_training_step_fits_less(void **state) {
  (void)state;
  problem_open();
  training_step(24);
  expect_plan();
  int64_t whole = plan->memory.arena;
  assert_int_equal(count_again(), 0);
  for (int percent = 90; percent >= 40; percent -= 10) {
    p.options.limit = whole * percent / 100;
    expect_plan();
    assert_true(plan->memory.arena <= p.options.limit);
    assert_true(count_again() > 0);
    /* the cheap insides are computed again, not the costly rest */
    for (size_t i = 0; i < plan->n_steps; i++)
      if (plan->steps[i].rematerialized && percent >= 60) assert_true(p.steps[plan->steps[i].kernel].seconds < 1e-5);
  }
  problem_close();
}

static void the_smallest_limit_is_exact(void **state) {
  (void)state;
  random_state = 30;
  for (int i = 0; i < 40; i++) {
    problem_open();
    if (i < 4)
      training_step(8 + i);
    else
      random_problem(24, i % 2 == 0);
    expect_plan();
    int64_t whole = plan->memory.arena, least = find_least();
    assert_true(least <= whole);
    p.options.limit = least;
    if (least > 0) expect_plan();
    p.options.limit = least - 1;
    if (least > 1) {
      EXPECT_ERROR(problem_plan(), MEMORY, "cannot be met");
      assert_true(named_least() == least);
    }
    p.options.limit = (least + whole) / 2 + 1;
    expect_plan();
    assert_true(plan->memory.arena <= p.options.limit);
    problem_close();
    test_renew();
  }
}

static void the_message_names_the_largest(void **state) {
  (void)state;
  problem_open();
  quern_tensor *in = problem_param(64), *a[6];
  for (int i = 0; i < 6; i++) a[i] = OUT(problem_step(100 * (i + 1), INS(in)));
  problem_result(OUT(problem_step(64, INS(a[0], a[1], a[2], a[3], a[4], a[5]))));
  p.options.limit = 1000;
  EXPECT_ERROR(problem_plan(), MEMORY,
               "plan: the limit of 1000 bytes cannot be met; the smallest that can is 2304 bytes; the largest tensors: "
               "input u8(600,) of 600 bytes, input u8(500,) of 500 bytes, input u8(400,) of 400 bytes, "
               "input u8(300,) of 300 bytes, input u8(200,) of 200 bytes");
  problem_close();
}

/* Scratch of the threads counts. */
static void scratch_counts(void **state) {
  (void)state;
  problem_open();
  training_step(4);
  expect_plan();
  int64_t whole = plan->memory.arena;
  p.steps[0].scratch = 64;
  p.options.threads = 2;
  p.options.limit = whole + 128;
  expect_plan();
  assert_int_equal(count_again(), 0);
  p.options.limit = whole + 127;
  expect_plan();
  assert_true(count_again() > 0);
  problem_close();
}

/* What reads an old state is not repeated once the state is overwritten. */
static void old_states_are_not_read_again(void **state) {
  (void)state;
  for (int updated = 0; updated < 2; updated++) {
    problem_open();
    quern_tensor *old = problem_leaf(PLAN_STATE, 0, 64), *in = problem_param(64);
    quern_tensor *a = OUT(problem_step(6400, INS(old)));
    quern_tensor *small = OUT(problem_step(64, INS(a)));
    quern_tensor *value = OUT(in_place(problem_step(64, INS(old, small)), 0));
    quern_tensor *big = OUT(problem_step(6400, INS(value)));
    quern_tensor *other = OUT(problem_step(64, INS(big, in)));
    problem_result(OUT(problem_step(64, INS(other, a))));
    problem_update(updated != 0 ? old : problem_leaf(PLAN_STATE, 64, 64), value);
    int64_t least = find_least();
    assert_true(updated != 0 ? least > 2 * 6400 : least < 2 * 6400);
    p.options.limit = least;
    expect_plan();
    problem_close();
  }
}

/* Results that are written by what is repeated are written again; several outs are let go together. */
static void several_outs(void **state) {
  (void)state;
  problem_open();
  quern_tensor *in = problem_param(64);
  struct fake *f = problem_step(3200, INS(in));
  add_out(f, 3200);
  add_out(f, 64);
  problem_result(f->outs[2].tensor);
  quern_tensor *s = OUT(problem_step(64, INS(OUT(f), f->outs[1].tensor)));
  quern_tensor *big = OUT(problem_step(12800, INS(s)));
  quern_tensor *t = OUT(problem_step(64, INS(big)));
  problem_result(OUT(problem_step(64, INS(t, OUT(f), f->outs[1].tensor))));
  expect_plan();
  assert_true(plan->memory.arena >= 12800 + 6400);
  p.options.limit = 12800 + 64 * 4;
  expect_plan();
  assert_int_equal(count_again(), 1);
  problem_close();
}

/* What was repeated before something better was found is taken back. */
static void needless_repetitions_are_taken_back(void **state) {
  (void)state;
  problem_open();
  quern_tensor *in = problem_param(64), *x = in, *kept[6];
  quern_tensor *large = OUT(problem_step(64000, INS(in))); /* few bytes for its time, and all that must go */
  p.steps[p.n - 1].seconds = 1e-3;
  quern_tensor *y = OUT(problem_step(64, INS(large)));
  for (int i = 0; i < 6; i++) {
    kept[i] = OUT(problem_step(640, INS(y)));
    p.steps[p.n - 1].seconds = 1e-6 * (i + 1);
    y = OUT(problem_step(64, INS(kept[i], y)));
  }
  struct fake *middle = problem_step(64, INS(y));
  add_work(middle, 64000);
  x = OUT(middle);
  for (int i = 0; i < 6; i++) x = OUT(problem_step(64, INS(x, kept[i])));
  problem_result(OUT(problem_step(64, INS(x, large))));
  expect_plan();
  int64_t whole = plan->memory.arena;
  p.options.limit = whole - 32000;
  expect_plan();
  assert_true(plan->memory.arena <= p.options.limit);
  assert_int_equal(count_again(), 1);
  for (size_t i = 0; i < plan->n_steps; i++)
    if (plan->steps[i].rematerialized) assert_int_equal(plan->steps[i].kernel, 0);
  problem_close();
}

static void build(int layers) {
  training_step(layers);
  p.options.limit = 640 * 17;
}

static void lack_of_memory(void **state) {
  (void)state;
  expect_faults(build, 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(a_training_step_fits_less),           TEST(the_smallest_limit_is_exact),
                                     TEST(the_message_names_the_largest),       TEST(scratch_counts),
                                     TEST(old_states_are_not_read_again),       TEST(several_outs),
                                     TEST(needless_repetitions_are_taken_back), TEST(lack_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
