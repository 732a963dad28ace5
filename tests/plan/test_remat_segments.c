/* tests/plan/test_remat_segments.c -- recomputation between kept tensors: what is repeated, what is held, and that plans run */
#include "plan/plan_test.h"

/* The same bytes, kept. */
static quern_tensor *kept(quern_tensor *of) {
  quern_tensor *y = problem_view(of);
  struct fake *f = &p.fakes[p.n - 1];
  static struct ir_node *nodes[FAKE_STEPS];
  nodes[p.n - 1] = quern_checkpoint_activation(of)->node;
  f->group.nodes = &nodes[p.n - 1];
  f->group.n_nodes = 1;
  return y;
}

/* Layers x -> large inside -> x, kept after every so many but the last (0: never); the way back reads the insides and what
** enters. Results: the loss, what comes back. table: a tensor that all layers read. */
static void training_step(int layers, int every, bool table) {
  quern_tensor *x = problem_param(640), *inside[64], *in[64];
  quern_tensor *shared = table ? OUT(problem_step(64, INS(x))) : x;
  for (int i = 0; i < layers; i++) {
    in[i] = x;
    inside[i] = OUT(problem_step(2560, INS(x, shared)));
    x = OUT(problem_step(640, INS(inside[i])));
    if (every > 0 && (i + 1) % every == 0 && i + 1 < layers) x = kept(x);
  }
  problem_result(OUT(problem_step(64, INS(x))));
  quern_tensor *d = OUT(problem_step(640, INS(x)));
  for (int i = layers; i-- > 0;) d = OUT(problem_step(640, INS(d, inside[i], in[i], shared)));
  problem_result(d);
}

/* A layer is repeated, and its inside is held no longer; the last one is held as it is. */
static void layers_are_repeated(void **state) {
  (void)state;
  enum { LAYERS = 10 };
  int64_t held[3], arena[3];
  for (int every = 0; every < 3; every++) {
    problem_open();
    training_step(LAYERS, every, false);
    p.options.recompute = true;
    expect_plan();
    held[every] = plan->memory.held;
    arena[every] = plan->memory.arena;
    /* insides of all layers but the last part; of parts of two layers also what enters the second */
    int again = every == 0 ? 0 : every == 1 ? LAYERS - 1 : (LAYERS - 2) + (LAYERS - 2) / 2;
    assert_int_equal(count_again(), again);
    p.options.recompute = false; /* and only then */
    expect_plan();
    assert_int_equal(count_again(), 0);
    assert_int_equal(plan->memory.arena, arena[0]);
    assert_int_equal(plan->memory.held, held[0]);
    problem_close();
  }
  assert_int_equal(held[0], LAYERS * 2560 + LAYERS * 640); /* the loss reads the last x, so does the way back */
  assert_int_equal(held[1], (LAYERS - 1) * 640 + 2560 + 640);
  assert_true(held[2] < held[0] / 2 && arena[1] < arena[0] / 2 && arena[2] < arena[0] / 2);
}

/* What all layers read is held: a repetition would live as long. */
static void what_all_read_is_held(void **state) {
  (void)state;
  problem_open();
  training_step(8, 1, true);
  p.options.recompute = true;
  expect_plan();
  assert_int_equal(count_again(), 7);
  for (size_t i = 0; i < plan->n_steps; i++)
    assert_true(!plan->steps[i].rematerialized || ir_bytes(plan->steps[i].group->outs[0].tensor) == 2560);
  problem_close();
}

/* Every repetition runs just before it is needed: no two insides are alive on the way back. */
static void one_part_at_a_time(void **state) {
  (void)state;
  problem_open();
  training_step(12, 1, false);
  p.options.recompute = true;
  expect_plan();
  for (size_t i = 0; i < plan->n_buffers; i++) {
    const struct plan_buffer *b = &plan->buffers[i];
    if (b->bytes != 2560) continue;
    for (size_t k = 0; k < i; k++) {
      const struct plan_buffer *other = &plan->buffers[k];
      assert_true(other->bytes != 2560 || other->last < b->first || b->last < other->first);
    }
  }
  problem_close();
}

/* The new value of a state is made once, by a step that reads the old one; what it makes beside is held. */
static void new_values_are_made_once(void **state) {
  (void)state;
  problem_open();
  quern_tensor *x = problem_param(640), *old = problem_leaf(PLAN_STATE, 0, 64);
  struct fake *norm = problem_step(640, INS(x, old));
  add_out(norm, 64);
  problem_update(old, norm->outs[1].tensor);
  quern_tensor *inside = OUT(problem_step(2560, INS(OUT(norm)))), *y = kept(OUT(problem_step(640, INS(inside))));
  problem_result(OUT(problem_step(64, INS(y))));
  quern_tensor *d = OUT(problem_step(640, INS(y)));
  problem_result(OUT(problem_step(640, INS(d, inside, OUT(norm)))));
  p.options.recompute = true;
  expect_plan();
  assert_int_equal(count_again(), 1);
  int norms = 0;
  for (size_t i = 0; i < plan->n_steps; i++) norms += plan->steps[i].group == &norm->group;
  assert_int_equal(norms, 1);
  problem_close();
}

/* A state that is updated in place is not overwritten before repetitions have read it. */
static void parameters_are_read_before_they_change(void **state) {
  (void)state;
  problem_open();
  quern_tensor *x = problem_param(640), *weights[6], *in[6], *inside[6];
  for (int i = 0; i < 6; i++) weights[i] = problem_leaf(PLAN_STATE, 640 * i, 640);
  for (int i = 0; i < 6; i++) {
    in[i] = x;
    inside[i] = OUT(problem_step(2560, INS(x, weights[i])));
    x = kept(OUT(problem_step(640, INS(inside[i]))));
  }
  problem_result(OUT(problem_step(64, INS(x))));
  quern_tensor *d = OUT(problem_step(640, INS(x)));
  for (int i = 6; i-- > 0;) {
    quern_tensor *dw = OUT(in_place(problem_step(640, INS(weights[i], d, in[i])), 0));
    problem_update(weights[i], dw);
    d = OUT(problem_step(640, INS(d, inside[i])));
  }
  problem_result(d);
  p.options.recompute = true;
  expect_plan();
  assert_int_equal(count_again(), 6);
  for (size_t i = 0; i < plan->n_steps; i++) assert_true(plan->steps[i].kind != PLAN_COPY);
  problem_close();
}

/* Random graphs with random kept tensors run, whatever is the way there. */
static void random_graphs(void **state) {
  (void)state;
  int repeated = 0;
  for (int i = 0; i < 300; i++) {
    problem_open();
    quern_tensor *from[64] = {problem_param(64)};
    int n = 1;
    while (n < 40) {
      int64_t back = below(3), bytes = 64 * (1 + below(9));
      quern_tensor *ins[] = {from[below(n)], from[BASE_MAX(0, n - 1 - back)]};
      quern_tensor *y = OUT(problem_step(bytes, ins[0] == ins[1] ? 1 : 2, ins));
      from[n++] = below(4) == 0 ? kept(y) : y;
    }
    problem_result(from[20 + below(20)]);
    problem_result(from[39]);
    p.options.recompute = i % 3 != 0;
    p.options.recompute_every = i % 3 == 1 ? 0 : i % 4 == 0 ? -1 : 1 + i % 9;
    expect_plan();
    repeated += count_again();
    p.options.limit = plan->memory.arena - 64; /* and with single repetitions beside */
    if (problem_plan() == QUERN_STATUS_OK) {
      EXPECT_OK(plan_verify(plan, &ctx->heap));
      machine_run();
    }
    problem_close();
    test_renew();
  }
  assert_true(repeated > 100);
}

/* Without kept tensors, a limit that single repetitions do not meet is met by parts that are chosen. */
static void parts_are_chosen_under_a_limit(void **state) {
  (void)state;
  problem_open();
  training_step(24, 0, false);
  p.options.limit = 24 * 640 / 2 + 4 * 2560;
  expect_plan();
  assert_true(plan->memory.arena <= p.options.limit);
  assert_true(count_again() >= 23);
  problem_close();
}

/* A graph that keeps nothing is cut where the least is alive: the same is repeated as if it had kept that. A skip
** over all layers is held, and divides nothing. */
static void cuts(void **state) {
  (void)state;
  enum { LAYERS = 12 };
  static const int64_t every[] = {-1, 2, 6, 100};
  int64_t held[BASE_COUNT(every)];
  for (int skip = 0; skip < 2; skip++) {
    problem_open();
    training_step(LAYERS, 0, skip > 0);
    expect_plan();
    int64_t whole = plan->memory.held, arena = plan->memory.arena;
    assert_int_equal(count_again(), 0);
    for (size_t i = 0; i < BASE_COUNT(every); i++) {
      p.options.recompute_every = every[i];
      expect_plan();
      held[i] = plan->memory.held;
      assert_true(i == 3 ? count_again() == 0 && held[i] == whole
                         : count_again() >= LAYERS / 2 && held[i] < whole * 3 / 5);
      assert_true(plan->memory.arena <= arena);
    }
    problem_close();
  }
}

/* Repeated between kept tensors, or under a limit. */
static void build(int limit) {
  training_step(5, limit == 0 ? 1 : 0, false);
  p.options.recompute = limit == 0;
  p.options.limit = limit == 0 ? 0 : 640 * 9;
}

static void lack_of_memory(void **state) {
  (void)state;
  for (int limit = 0; limit < 2; limit++) expect_faults(build, limit);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(layers_are_repeated),
                                     TEST(what_all_read_is_held),
                                     TEST(one_part_at_a_time),
                                     TEST(new_values_are_made_once),
                                     TEST(random_graphs),
                                     TEST(parameters_are_read_before_they_change),
                                     TEST(parts_are_chosen_under_a_limit),
                                     TEST(cuts),
                                     TEST(lack_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
