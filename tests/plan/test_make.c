/* tests/plan/test_make.c -- whole plans: results, states, constants, views, copies, workspaces, text, lack of memory */
/* tests/plan/test_make.c -- whole plans: results, states, constants, views, copies, workspaces, text, lack of memory */
#include "plan/plan_test.h"

static int count_copies(void) {
  int n = 0;
  for (size_t i = 0; i < plan->n_steps; i++) n += plan->steps[i].kind == PLAN_COPY;
  return n;
}

static void nothing_to_do(void **state) {
  (void)state;
  problem_open();
  expect_plan();
  assert_int_equal(plan->n_steps, 0);
  assert_int_equal(plan->memory.arena, 0);
  problem_close();
}

/* Results are written where they belong; those that nothing computes, or that come twice, are copied. */
static void results(void **state) {
  (void)state;
  problem_open();
  quern_tensor *in = problem_param(100), *constant = problem_leaf(PLAN_CONST, 128, 64);
  quern_tensor *x = OUT(problem_step(200, INS(in, constant)));
  problem_result(x);
  expect_plan();
  assert_int_equal(plan->memory.arena, 0);
  assert_int_equal(count_copies(), 0);
  problem_result(in);
  problem_result(constant);
  problem_result(x);
  problem_result(problem_view(x));
  problem_result(problem_view(problem_view(OUT(problem_step(64, INS(x))))));
  expect_plan();
  assert_int_equal(count_copies(), 4);
  problem_close();
}

/* A state's new value is computed in its place once the old one is no longer read. */
static void a_state_in_place(void **state) {
  (void)state;
  problem_open();
  quern_tensor *old = problem_leaf(PLAN_STATE, 0, 640), *in = problem_param(64);
  quern_tensor *value = OUT(problem_step(640, INS(in))); /* given before the readers of the old one */
  problem_result(OUT(problem_step(64, INS(old))));
  problem_result(OUT(problem_step(64, INS(old, in))));
  problem_result(OUT(problem_step(64, INS(value))));
  problem_update(old, value);
  expect_plan();
  assert_int_equal(count_copies(), 0);
  assert_int_equal(plan->memory.arena, 0);
  problem_close();
}

/* The writer may read the old value itself, when it works in place. */
static void a_state_that_is_updated_in_place(void **state) {
  (void)state;
  for (int way = 0; way < 2; way++) {
    problem_open();
    quern_tensor *old = problem_leaf(PLAN_STATE, 64, 640), *in = problem_param(64);
    struct fake *f = problem_step(640, INS(in, old));
    if (way == 0) in_place(f, 1);
    problem_update(old, OUT(f));
    expect_plan();
    assert_int_equal(count_copies(), way);
    assert_int_equal(plan->memory.arena, way * 640);
    problem_close();
  }
}

/* A step with three states and two gradients that all are read and written at the same place: every state gets its
** own value. */
static void states_that_share_a_spot(void **state) {
  (void)state;
  problem_open();
  quern_tensor *s[3], *in = problem_param(64);
  quern_tensor *g = OUT(problem_step(640, INS(in))), *h = OUT(problem_step(640, INS(in)));
  for (int i = 0; i < 3; i++) s[i] = problem_leaf(PLAN_STATE, 640 * i, 640);
  struct fake *f = problem_step(640, INS(g, s[0], s[1], h, s[2]));
  add_out(f, 640);
  add_out(f, 640);
  add_out(f, 640);
  one_spot(f);
  problem_update(s[0], f->outs[2].tensor);
  problem_update(s[1], f->outs[0].tensor);
  problem_update(s[2], f->outs[1].tensor);
  problem_result(OUT(problem_step(64, INS(f->outs[3].tensor))));
  expect_plan();
  assert_int_equal(count_copies(), 0);
  assert_int_equal(plan->memory.arena, 2 * 640); /* the gradients, of which one becomes the fourth value */
  problem_close();
}

/* The old value is read by what depends on the new one: it is copied at the end. */
static void a_state_that_is_read_after_its_new_value(void **state) {
  (void)state;
  problem_open();
  quern_tensor *old = problem_leaf(PLAN_STATE, 0, 640);
  quern_tensor *value = OUT(problem_step(640, INS(problem_param(64))));
  problem_result(OUT(problem_step(64, INS(value, old))));
  problem_update(old, value);
  expect_plan();
  assert_int_equal(count_copies(), 1);
  assert_int_equal(plan->memory.arena, 640);
  problem_close();
}

/* States that exchange their values, keep them, take those of inputs, constants, results, and each other's new ones. */
static void states_that_exchange(void **state) {
  (void)state;
  problem_open();
  quern_tensor *a = problem_leaf(PLAN_STATE, 0, 64), *b = problem_leaf(PLAN_STATE, 64, 64);
  quern_tensor *c = problem_leaf(PLAN_STATE, 128, 64), *d = problem_leaf(PLAN_STATE, 192, 64);
  quern_tensor *e = problem_leaf(PLAN_STATE, 256, 64), *f = problem_leaf(PLAN_STATE, 320, 64);
  quern_tensor *g = problem_leaf(PLAN_STATE, 384, 64), *in = problem_param(64);
  quern_tensor *value = OUT(problem_step(64, INS(in, c)));
  problem_result(value);
  problem_result(a);
  problem_update(a, b);
  problem_update(b, problem_view(a));
  problem_update(c, c);
  problem_update(d, in);
  problem_update(e, value);
  quern_tensor *other = OUT(problem_step(64, INS(value)));
  problem_update(f, other);
  problem_update(g, other);
  expect_plan();
  problem_close();
}

/* Two updates, each of which could be in place if the other were not: the new value of one needs the old of the
** other. */
static void states_that_need_each_other(void **state) {
  (void)state;
  problem_open();
  quern_tensor *a = problem_leaf(PLAN_STATE, 0, 64), *b = problem_leaf(PLAN_STATE, 64, 64), *in = problem_param(64);
  problem_update(a, OUT(in_place(problem_step(64, INS(a, b)), 0)));
  problem_update(b, OUT(in_place(problem_step(64, INS(b, a)), 0)));
  problem_result(OUT(problem_step(64, INS(in))));
  expect_plan();
  assert_int_equal(count_copies(), 1);
  problem_close();
}

/* Carries: in the place of their params where all readers can run before; moved, kept or read later otherwise. */
static void carries(void **state) {
  (void)state;
  problem_open();
  quern_tensor *a = problem_param(640), *b = problem_param(640), *c = problem_param(640), *d = problem_param(640);
  quern_tensor *sum = OUT(in_place(problem_step(640, INS(a, b)), 0)), *last = OUT(problem_step(640, INS(sum)));
  quern_tensor *late = OUT(problem_step(640, INS(last, d)));
  problem_result(sum);                                  /* a: in place */
  problem_result(c);                                    /* b: moved */
  problem_result(c);                                    /* c: kept */
  problem_result(OUT(problem_step(640, INS(late, d)))); /* d: read by its writer, which does not work in place */
  problem_result(a);                                    /* the old one, which must be read before */
  p.options.n_carried = 4;
  p.options.carried = (struct plan_carry[]){{0, 0}, {1, 1}, {2, 2}, {3, 3}};
  EXPECT_OK(problem_plan());
  EXPECT_OK(plan_verify(plan, &ctx->heap));
  assert_true(plan->in_place[0] && !plan->in_place[1] && plan->in_place[2] && !plan->in_place[3] && !plan->in_place[4]);
  assert_true(plan->buffers[plan->results[0]].memory == PLAN_PARAM && plan->buffers[plan->results[0]].at == 0);
  assert_int_equal(count_copies(), 2);
  problem_close();
}

static void workspaces_and_scratch(void **state) {
  (void)state;
  problem_open();
  struct fake *f = problem_step(64, INS(problem_param(64)));
  add_work(f, 1000);
  p.steps[0].scratch = 65;
  p.options.threads = 3;
  problem_result(OUT(f));
  expect_plan();
  assert_int_equal(plan->memory.arena, 1024);
  assert_int_equal(plan->memory.scratch, 3 * 128);
  assert_int_equal(plan->steps[0].n_buffers, 3);
  problem_close();
}

/* Tensors without elements, and outs that nobody reads. */
static void empty_and_unread(void **state) {
  (void)state;
  problem_open();
  struct fake *f = problem_step(0, INS(problem_param(0)));
  add_out(f, 320);
  problem_result(OUT(problem_step(64, INS(OUT(f)))));
  expect_plan();
  assert_int_equal(plan->memory.arena, 320);
  problem_close();
}

static void random_plans_run(void **state) {
  (void)state;
  random_state = 20;
  for (int i = 0; i < 200; i++) {
    problem_open();
    random_problem(30, i % 2 == 0);
    p.donated[0] = i % 3 == 0;
    p.options.share = i % 5 != 0;
    expect_plan();
    problem_close();
    test_renew();
  }
}

static void text(void **state) {
  (void)state;
  struct base_str str;
  problem_open();
  quern_tensor *x = OUT(problem_step(200, INS(problem_param(64), problem_leaf(PLAN_CONST, 64, 32))));
  quern_tensor *y = OUT(problem_step(64, INS(x)));
  problem_result(y);
  problem_result(y);
  expect_plan();
  base_str_init(&str, &ctx->heap);
  EXPECT_OK(plan_print(&str, plan));
  assert_string_equal(
      str.at, "plan: 3 steps, 5 buffers; arena 256 bytes (alive at a time 256, without sharing 256), scratch 0\n"
              "   0 kernel 0 map input param[0] const[64+32] -> arena[0+200]\n"
              "   1 kernel 1 map input arena[0+200] -> result[0]\n"
              "   2 copy result[0] -> result[1]\n");
  base_str_fini(&str);
  problem_close();
}

static void what_nobody_makes(void **state) {
  (void)state;
  problem_open();
  problem_result(OUT(problem_step(64, INS(fake_tensor(64)))));
  EXPECT_ERROR(problem_plan(), INTERNAL, "reads a input, u8(64,), which nothing makes");
  assert_null(plan);
  problem_close();
}

/* Every allocation may fail. */
static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    problem_open();
    random_state = 21;
    random_problem(20, true);
    quern_tensor *old = problem_leaf(PLAN_STATE, 0, 64), *other = problem_leaf(PLAN_STATE, 64, 64);
    problem_update(old, OUT(problem_step(64, INS(old, other))));
    problem_update(other, OUT(problem_step(64, INS(p.params[0]))));
    EXPECT_OK(quern_context_check(ctx));
    fault_begin(&fault);
    quern_status status = problem_plan();
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    if (status == QUERN_STATUS_OK) {
      p.options.limit = plan->memory.arena - 64;
      status = problem_plan();
      assert_true(status == QUERN_STATUS_OK || status == QUERN_STATUS_MEMORY);
    }
    problem_close();
    test_renew();
  }
  assert_true(fault.n > 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(nothing_to_do),
                                     TEST(results),
                                     TEST(a_state_in_place),
                                     TEST(a_state_that_is_updated_in_place),
                                     TEST(states_that_share_a_spot),
                                     TEST(a_state_that_is_read_after_its_new_value),
                                     TEST(states_that_exchange),
                                     TEST(states_that_need_each_other),
                                     TEST(carries),
                                     TEST(workspaces_and_scratch),
                                     TEST(empty_and_unread),
                                     TEST(random_plans_run),
                                     TEST(text),
                                     TEST(what_nobody_makes),
                                     TEST(lack_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
