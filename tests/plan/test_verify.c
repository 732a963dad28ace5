/* tests/plan/test_verify.c -- the verifier finds what is planted */
/* tests/plan/test_verify.c -- the verifier finds what is planted */
#include "plan/plan_test.h"

/* x -> a -> b -> result, and a is read by the last step as well. */
static void open_plan(void) {
  problem_open();
  quern_tensor *in = problem_param(64), *old = problem_leaf(PLAN_STATE, 0, 128);
  quern_tensor *a = OUT(problem_step(128, INS(in, old))), *b = OUT(problem_step(192, INS(a)));
  struct fake *last = problem_step(64, INS(a, b));
  add_work(last, 64);
  problem_result(OUT(last));
  problem_update(old, OUT(problem_step(128, INS(b))));
  expect_plan();
}

static struct plan_buffer *buffer_of(size_t step, int i) { return &plan->buffers[plan->steps[step].buffers[i]]; }

#define PLANTED(change, words)                                                                                         \
  do {                                                                                                                 \
    open_plan();                                                                                                       \
    change;                                                                                                            \
    EXPECT_ERROR(plan_verify(plan, &ctx->heap), INTERNAL, words);                                                      \
    problem_close();                                                                                                   \
  } while (0)

static void defects_are_found(void **state) {
  (void)state;
  PLANTED(buffer_of(0, 2)->at += 8, "not a multiple of 64");
  PLANTED(buffer_of(0, 2)->at += 1 << 20, "the arena has");
  PLANTED(plan->memory.arena -= 64, "the arena has");
  PLANTED(buffer_of(0, 2)->bytes = -1, "bytes at");
  PLANTED(buffer_of(0, 2)->takes = 99, "takes over buffer 99");
  PLANTED(plan->steps[1].buffers[0] = 77, "uses buffer 77");
  PLANTED(plan->steps[1].buffers[0] = plan->steps[2].buffers[1], "which is not written yet");
  PLANTED(buffer_of(0, 2)->last = 1, "which is alive in steps 0 to 1");
  PLANTED(plan->steps[1].n_buffers = 1, "has 1 buffers for 1 reads and 1 writes");
  PLANTED(buffer_of(1, 1)->at = buffer_of(0, 2)->at, "overlap");
  PLANTED(plan->buffers[plan->params[0]].at = 1, "param 0 is not in its place");
  PLANTED(plan->buffers[plan->results[0]].at = 1, "result 0 is not written to its place");
  PLANTED(plan->n_steps -= 2, "result 0 is not written to its place");
}

/* The steps in another order: something is read before it is written. */
static void order_is_checked(void **state) {
  (void)state;
  open_plan();
  struct plan_step swap = plan->steps[0];
  plan->steps[0] = plan->steps[1];
  plan->steps[1] = swap;
  buffer_of(0, 0)->last = buffer_of(0, 1)->last = (int)plan->n_steps;
  buffer_of(0, 0)->first = buffer_of(0, 1)->first = 0;
  EXPECT_ERROR(plan_verify(plan, &ctx->heap), INTERNAL, "which is not written yet");
  problem_close();
}

/* A state is overwritten while it is still to be read. */
static void states_are_checked(void **state) {
  (void)state;
  open_plan();
  for (size_t i = 0; i < plan->n_buffers; i++)
    if (plan->buffers[i].memory == PLAN_STATE && plan->buffers[i].first < 0) plan->buffers[i].last = (int)plan->n_steps;
  EXPECT_ERROR(plan_verify(plan, &ctx->heap), INTERNAL, "overlap");
  problem_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(defects_are_found), TEST(order_is_checked), TEST(states_are_checked)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
