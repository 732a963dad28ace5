/* tests/plan/test_task_order.c -- orders: against the optimum of small graphs by another search, at size, and their
** validity */
#include "plan/plan_test.h"

/* ---- the optimum, by dynamic programming over the sets of steps that are done ---------------------------------- */

/* Bytes alive when the steps of a set are done: what a step of it made and one outside it reads. */
static bool is_read_outside(const quern_tensor *t, unsigned set) {
  for (size_t i = 0; i < p.n; i++) {
    if ((set >> i & 1) != 0) continue;
    for (size_t k = 0; k < p.fakes[i].group.n_ins; k++)
      if (p.fakes[i].ins[k] == t) return true;
  }
  return false;
}

static bool is_result(const quern_tensor *t) {
  for (size_t i = 0; i < p.options.n_results; i++)
    if (p.results[i] == t) return true;
  return false;
}

static int64_t size_of(const quern_tensor *t) { return is_result(t) ? 0 : ((int64_t)ir_bytes(t) + 63) / 64 * 64; }

static int64_t alive_after(unsigned set) {
  int64_t bytes = 0;
  for (size_t i = 0; i < p.n; i++)
    if ((set >> i & 1) != 0 && is_read_outside(OUT(&p.fakes[i]), set)) bytes += size_of(OUT(&p.fakes[i]));
  return bytes;
}

/* Bytes that are taken beside those alive while a step runs. */
static int64_t taken_by(size_t step, unsigned set) {
  const struct fake *f = &p.fakes[step];
  const struct kern_mem *out = &f->kern.mems[f->group.n_ins];
  int64_t bytes = size_of(OUT(f));
  if (out->alias >= 0 && f->ins[out->alias] != p.params[0] && !is_result(f->ins[out->alias]) && !is_result(OUT(f)) &&
      !is_read_outside(f->ins[out->alias], set | 1u << step))
    bytes = 0;
  for (int i = (int)f->group.n_ins + 1; i < f->kern.n_mems; i++) bytes += (f->kern.mems[i].count + 63) / 64 * 64;
  return bytes;
}

static int64_t optimum(void) {
  static int64_t best[1 << 14];
  unsigned all = (1u << p.n) - 1;
  for (unsigned set = 1; set <= all; set++) best[set] = INT64_MAX;
  best[0] = 0;
  for (unsigned set = 0; set < all; set++) {
    if (best[set] == INT64_MAX) continue;
    int64_t alive = alive_after(set);
    for (size_t i = 0; i < p.n; i++) {
      bool ready = (set >> i & 1) == 0;
      for (size_t k = 0; k < p.n && ready; k++)
        for (size_t j = 0; j < p.fakes[i].group.n_ins; j++)
          ready = ready && !(p.fakes[i].ins[j] == OUT(&p.fakes[k]) && (set >> k & 1) == 0);
      if (!ready) continue;
      int64_t peak = BASE_MAX(best[set], alive + taken_by(i, set));
      if (peak < best[set | 1u << i]) best[set | 1u << i] = peak;
    }
  }
  return best[all];
}

/* Of 1000 random graphs of 12 steps, how many are ordered as well as can be. */
static int count_best(bool alias) {
  int best = 0;
  for (int i = 0; i < 1000; i++) {
    problem_open();
    random_problem(12, alias);
    expect_plan();
    int64_t least = optimum();
    assert_true(plan->memory.bound >= least);
    best += plan->memory.bound == least;
    problem_close();
    test_renew();
  }
  return best;
}

static void small_graphs_are_ordered_best(void **state) {
  (void)state;
  random_state = 7;
  assert_int_equal(count_best(false), 1000);
}

static void small_graphs_in_place_are_ordered_best(void **state) {
  (void)state;
  random_state = 8;
  assert_int_equal(count_best(true), 1000);
}

/* Without the exhaustive search of all: what remains are sweeps and windows of 8 of the 12 steps. */
static void sweeps_and_windows_are_near_the_best(void **state) {
  (void)state;
  int best = 0, n = 300;
  random_state = 9;
  for (int i = 0; i < n; i++) {
    problem_open();
    random_problem(12, false);
    int64_t least = optimum();
    int order[16], at[16], left[64], peak_at;
    struct plan_job job = {.heap = &ctx->heap, .n_inputs = p.n, .inputs = p.steps, .options = &p.options};
    struct plan_task_graph g;
    struct plan_exact *tables;
    int64_t before[16];
    base_arena_init(&job.arena, &ctx->heap);
    EXPECT_OK(plan_tasks(&job));
    EXPECT_OK(plan_task_graph_make(&job, &g, 12, &job.arena));
    EXPECT_OK(plan_exact_new(&tables, &job.arena, 8));
    int from[16];
    for (int k = 0; k < 12; k++) from[k] = k;
    EXPECT_OK(plan_sweep(&g, &job.arena, PLAN_EAGER, from, order));
    for (int k = 0; k < 12; k++) at[order[k]] = k;
    for (int round = 0; round < 8; round++) {
      int64_t peak = plan_order_peak(&g, order, left, before, &peak_at);
      for (int lo = 0; lo <= 4; lo++) (void)plan_exact_window(tables, &g, order, at, lo, lo + 8, peak - before[lo]);
    }
    best += plan_order_peak(&g, order, left, NULL, NULL) == least;
    base_vec_fini(job.heap, &job.stores);
    base_vec_fini(job.heap, &job.tasks);
    base_vec_fini(job.heap, &job.edges);
    base_arena_fini(&job.arena);
    problem_close();
    test_renew();
  }
  assert_true(best >= n * 3 / 4);
}

/* ---- larger ones ---------------------------------------------------------------------------------------------- */

/* The order given is never made worse, and usually better. */
static void larger_graphs_get_better(void **state) {
  (void)state;
  int better = 0;
  random_state = 10;
  for (int i = 0; i < 40; i++) {
    problem_open();
    random_problem(60, i % 2 == 0);
    expect_plan();
    int64_t ordered = plan->memory.bound;
    p.options.reorder = false;
    expect_plan();
    assert_true(ordered <= plan->memory.bound);
    better += ordered < plan->memory.bound;
    problem_close();
    test_renew();
  }
  assert_true(better >= 20);
}

/* Values that are made long before they are read wait; those that can be used up at once are. */
static void makers_wait_and_users_hurry(void **state) {
  (void)state;
  enum { LAYERS = 20 };
  problem_open();
  quern_tensor *x = problem_param(640), *masks[LAYERS], *grads[LAYERS];
  for (int i = 0; i < LAYERS; i++) masks[i] = OUT(problem_step(640, INS(x)));
  for (int i = 0; i < LAYERS; i++) {
    x = OUT(problem_step(640, INS(x, masks[i])));
    grads[i] = OUT(problem_step(6400, INS(x)));
  }
  for (int i = 0; i < LAYERS; i++) problem_result(OUT(problem_step(64, INS(grads[i]))));
  expect_plan();
  assert_true(plan->memory.bound <= 6400 + 2 * 640);
  problem_close();
}

/* 100,000 steps in a few seconds at most: a chain of layers whose activations are read again backwards. */
static void many_steps(void **state) {
  (void)state;
  enum { N = 100000 };
  static struct pass_group groups[N];
  static quern_tensor *ins[N][2];
  static struct pass_out outs[N];
  static struct plan_input_step steps[N];
  static struct kern one = {.name = "one", .n_mems = 2}, two = {.name = "two", .n_mems = 3};
  one.mems[1].alias = two.mems[2].alias = -1;
  base_arena_init(&plan_arena, &ctx->heap);
  quern_tensor *x = fake_tensor(4096), *params[1] = {x};
  for (int i = 0; i < N; i++) {
    bool back = i >= N / 2;
    outs[i].tensor = quern_input(ctx, "t", QUERN_DTYPE_U8, 1, (const int64_t[]){64 * (1 + i % 7)});
    ins[i][0] = i == 0 ? x : outs[i - 1].tensor;
    ins[i][1] = back ? outs[N - 1 - i].tensor : NULL;
    groups[i] =
        (struct pass_group){.kind = PASS_KIND_MAP, .n_ins = back ? 2 : 1, .ins = ins[i], .n_outs = 1, .outs = &outs[i]};
    steps[i] = (struct plan_input_step){.group = &groups[i], .kern = back ? &two : &one};
  }
  struct plan_options options = {.reorder = true, .share = true, .threads = 1, .n_params = 1, .params = params};
  options.n_results = 1;
  options.results = &outs[N - 1].tensor;
  double start = base_clock();
  EXPECT_OK(plan_make(&plan, &plan_arena, N, steps, &options));
  assert_true(base_clock() - start < 20);
  assert_int_equal(plan->n_steps, N);
  assert_true((double)plan->memory.arena <= 1.1 * (double)plan->memory.bound);
  EXPECT_OK(plan_verify(plan, &ctx->heap));
  base_arena_fini(&plan_arena);
}

/* The peak is where it must be; elsewhere what frees memory comes early: the gradients of weights with the layer they are of. */
static void what_frees_comes_early(void **state) {
  (void)state;
  enum { LAYERS = 8 };
  quern_tensor *kept[LAYERS], *d[LAYERS + 1], *x;
  int made[LAYERS], at[FAKE_STEPS];
  problem_open();
  x = problem_param(640);
  for (int i = 0; i < LAYERS; i++) x = kept[i] = OUT(problem_step(640, INS(x)));
  struct fake *loss = problem_step(640, INS(x));
  add_work(loss, 64000);
  d[LAYERS] = OUT(loss);
  for (int i = LAYERS; i-- > 0;) d[i] = OUT(problem_step(640, INS(d[i + 1])));
  for (int i = 0; i < LAYERS; i++) { /* given last, and the first layer's first */
    made[i] = (int)p.n;
    problem_result(OUT(problem_step(64, INS(d[i + 1], kept[i]))));
  }
  problem_result(d[0]);
  expect_plan();
  for (int i = 0; i < (int)plan->n_steps; i++) at[plan->steps[i].kernel] = i;
  for (int i = 2; i < LAYERS; i++) assert_true(at[made[i]] < at[2 * LAYERS - i + 2]); /* d[i - 2] comes after it */
  problem_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(small_graphs_are_ordered_best),
                                     TEST(small_graphs_in_place_are_ordered_best),
                                     TEST(sweeps_and_windows_are_near_the_best),
                                     TEST(larger_graphs_get_better),
                                     TEST(makers_wait_and_users_hurry),
                                     TEST(many_steps),
                                     TEST(what_frees_comes_early)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
