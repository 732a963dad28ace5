/* tests/plan/test_offsets.c -- offsets: blocks apart, near the bound; memory taken over in place */
/* tests/plan/test_offsets.c -- offsets: blocks apart, near the bound; memory taken over in place */
#include "plan/plan_test.h"

/* ---- packing --------------------------------------------------------------------------------------------- */

static struct plan_block blocks[20000];

static int64_t bound_of(size_t n, int runs) {
  int64_t most = 0;
  for (int r = 0; r < runs; r++) {
    int64_t live = 0;
    for (size_t i = 0; i < n; i++) live += blocks[i].first <= r && r <= blocks[i].last ? blocks[i].bytes : 0;
    most = BASE_MAX(most, live);
  }
  return most;
}

static void expect_apart(size_t n, int64_t total) {
  int64_t end = 0;
  for (size_t i = 0; i < n; i++) {
    const struct plan_block *a = &blocks[i];
    assert_true(a->at >= 0 && a->at % 64 == 0);
    end = BASE_MAX(end, a->at + a->bytes);
    for (size_t k = 0; k < i; k++) {
      const struct plan_block *b = &blocks[k];
      bool together = a->first <= b->last && b->first <= a->last;
      assert_true(!together || a->at + a->bytes <= b->at || b->at + b->bytes <= a->at);
    }
  }
  assert_true(end == total);
}

static double pack(size_t n, int runs) {
  struct base_arena arena;
  int64_t total, bound = bound_of(n, runs);
  base_arena_init(&arena, &ctx->heap);
  EXPECT_OK(plan_assign_offsets(&arena, n, blocks, bound, &total));
  base_arena_fini(&arena);
  expect_apart(n, total);
  assert_true(total >= bound);
  return (double)total / (double)bound;
}

static void random_blocks(size_t n, int runs, int span, int64_t sizes) {
  for (size_t i = 0; i < n; i++) {
    int first = (int)below(runs), last = first + (int)below(below(8) == 0 ? runs : span);
    blocks[i] = (struct plan_block){64 * (1 + below(sizes)), first, BASE_MIN(last, runs - 1), -1};
  }
}

static void random_blocks_are_packed_near_the_bound(void **state) {
  (void)state;
  double sum = 0;
  random_state = 3;
  for (int i = 0; i < 60; i++) {
    size_t n = (size_t)(10 + below(150));
    random_blocks(n, 60, 10, i % 2 == 0 ? 16 : 1000);
    double ratio = pack(n, 60);
    assert_true(ratio <= 1.25);
    sum += ratio;
  }
  assert_true(sum / 60 <= 1.06);
}

/* The blocks of a training step: activations until the way back, and some that are short-lived. */
static void nested_blocks_are_packed_tightly(void **state) {
  (void)state;
  enum { LAYERS = 48 };
  size_t n = 0;
  for (int i = 0; i < LAYERS; i++) {
    int back = 4 * LAYERS - 1 - 2 * i;
    blocks[n++] = (struct plan_block){64 * 40, 2 * i, back, 0};
    blocks[n++] = (struct plan_block){64 * 160, 2 * i + 1, back, 0};
    blocks[n++] = (struct plan_block){64 * 100, 2 * i, 2 * i + 1, 0};
    blocks[n++] = (struct plan_block){64 * 170, back - 1, back, 0};
    blocks[n++] = (struct plan_block){64 * 30, back, BASE_MIN(back + 2, 4 * LAYERS - 1), 0};
  }
  assert_true(pack(n, 4 * LAYERS) <= 1.05);
}

static void many_blocks(void **state) {
  (void)state;
  random_state = 4;
  random_blocks(6000, 4000, 6, 8);
  assert_true(pack(6000, 4000) <= 1.25);
}

/* ---- in place ---------------------------------------------------------------------------------------------- */

/* A chain of steps in place needs one store. */
static void a_chain_in_place_shares_its_memory(void **state) {
  (void)state;
  problem_open();
  quern_tensor *x = OUT(problem_step(640, INS(problem_param(64))));
  for (int i = 0; i < 5; i++) x = OUT(in_place(problem_step(640, INS(x)), 0));
  problem_result(OUT(problem_step(64, INS(x))));
  expect_plan();
  assert_int_equal(plan->memory.arena, 640);
  assert_int_equal(plan->memory.unshared, 6 * 640);
  p.options.share = false;
  expect_plan();
  assert_int_equal(plan->memory.arena, 6 * 640);
  problem_close();
}

/* Small buffers have memory of their own where that is asked for and little, others share. */
static void small_buffers_stay_apart(void **state) {
  (void)state;
  problem_open();
  quern_tensor *x = problem_param(64);
  for (int i = 0; i < 6; i++) x = OUT(problem_step(i % 2 == 0 ? 640 : 64, INS(x)));
  problem_result(OUT(problem_step(64, INS(x))));
  expect_plan();
  assert_int_equal(plan->memory.arena, 640 + 64);
  p.options.apart = 64;
  expect_plan();
  assert_int_equal(plan->memory.arena, 640 + 3 * 64);
  p.options.apart = 640;
  expect_plan();
  assert_int_equal(plan->memory.arena, 3 * 640 + 3 * 64);
  for (int i = 0; i < 3; i++) x = OUT(problem_step((6 << 20) - 64 * i, INS(x))); /* too much of it */
  problem_result(OUT(problem_step(64, INS(x))));
  p.options.apart = 8 << 20;
  EXPECT_OK(problem_plan());
  assert_int_equal(plan->memory.arena, plan->memory.bound);
  problem_close();
}

/* Memory is not taken over while it is read later, read twice in the step, of another size, or of the caller. */
static void memory_in_use_is_not_taken_over(void **state) {
  (void)state;
  problem_open();
  quern_tensor *in = problem_param(640), *x = OUT(problem_step(640, INS(in)));
  quern_tensor *y = OUT(in_place(problem_step(640, INS(x)), 0));
  problem_result(OUT(problem_step(64, INS(x, y))));
  expect_plan();
  assert_int_equal(plan->memory.arena, 2 * 640);
  problem_close();

  problem_open();
  in = problem_param(640);
  x = OUT(problem_step(640, INS(in)));
  y = OUT(in_place(problem_step(640, INS(x, problem_view(x))), 0));
  problem_result(OUT(problem_step(64, INS(y))));
  expect_plan();
  assert_int_equal(plan->memory.arena, 2 * 640);
  problem_close();

  problem_open();
  in = problem_param(640);
  x = OUT(problem_step(640, INS(in)));
  y = OUT(in_place(problem_step(320, INS(x)), 0));
  problem_result(OUT(problem_step(64, INS(y))));
  expect_plan();
  assert_int_equal(plan->memory.arena, 640 + 320);
  problem_close();

  problem_open();
  in = problem_param(640);
  y = OUT(in_place(problem_step(640, INS(in)), 0));
  problem_result(OUT(problem_step(64, INS(y))));
  expect_plan();
  assert_int_equal(plan->memory.arena, 640);
  p.donated[0] = true;
  expect_plan();
  assert_int_equal(plan->memory.arena, 0);
  problem_close();
}

/* Two results of a step cannot take the same memory. */
static void memory_is_taken_over_once(void **state) {
  (void)state;
  problem_open();
  quern_tensor *x = OUT(problem_step(640, INS(problem_param(64))));
  struct fake *f = in_place(problem_step(640, INS(x)), 0);
  add_out(f, 640);
  f->kern.mems[2].alias = 0;
  problem_result(OUT(problem_step(64, INS(OUT(f), f->outs[1].tensor))));
  expect_plan();
  assert_int_equal(plan->memory.arena, 2 * 640);
  problem_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(random_blocks_are_packed_near_the_bound),
                                     TEST(nested_blocks_are_packed_tightly),
                                     TEST(many_blocks),
                                     TEST(a_chain_in_place_shares_its_memory),
                                     TEST(small_buffers_stay_apart),
                                     TEST(memory_in_use_is_not_taken_over),
                                     TEST(memory_is_taken_over_once)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
