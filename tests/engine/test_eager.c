/* tests/engine/test_eager.c -- eager use: programs found again, the same bits from interpreter and compiler, graphs
** in an order of their own, loops that do not grow
*/
#include <unistd.h>

#include "engine/engine_test.h"

static struct engine_eager_stats stats(void) { return engine_eager_get(ctx); }

static void expect_stats(size_t programs, uint64_t compiled, uint64_t interpreted, uint64_t found) {
  struct engine_eager_stats now = stats();
  if (now.programs == programs && now.compiled == compiled && now.interpreted == interpreted && now.found == found)
    return;
  print_error("%zu programs, %d compiled, %d interpreted, %d found; expected %zu, %d, %d, %d\n", now.programs,
              (int)now.compiled, (int)now.interpreted, (int)now.found, programs, (int)compiled, (int)interpreted,
              (int)found);
  fail();
}

/* n numbers from a seed. */
static quern_tensor *numbers(int rank, const int64_t *dims, uint64_t seed) {
  double x[4096];
  float data[4096];
  size_t n = 1;
  for (int k = 0; k < rank; k++) n *= (size_t)dims[k];
  assert_true(n <= BASE_COUNT(data));
  test_fill(n, x, seed);
  for (size_t i = 0; i < n; i++) data[i] = (float)x[i];
  return quern_tensor_copy(ctx, QUERN_DTYPE_F32, rank, dims, data);
}

/* Realizes x and compares it with the evaluator. */
static quern_tensor *expect_realized(quern_tensor *x) {
  char expected[4 * 4096];
  void *dst = expected;
  assert_true(quern_tensor_bytes(x) <= sizeof expected);
  EXPECT_OK(quern_eval_reference(ctx, 1, &x, &dst, 0, NULL));
  EXPECT_OK(quern_tensor_realize(&x));
  assert_non_null(quern_tensor_data(x));
  expect_near(x, quern_tensor_data(x), expected);
  return x;
}

/* ---- programs ------------------------------------------------------------------------------------------- */

static void programs_are_found_again(void **state) {
  (void)state;
  for (uint64_t i = 0; i < 5; i++) {
    quern_tensor *x = numbers(QUERN_LIST(3, 4), i), *w = numbers(QUERN_LIST(4, 2), 10 + i);
    expect_realized(quern_tanh(quern_add_scalar(quern_matmul(x, w), 1.5)));
    expect_stats(1, 0, 1, i);
  }
  quern_tensor *x = numbers(QUERN_LIST(3, 4), 1);
  expect_realized(
      quern_tanh(quern_add_scalar(quern_matmul(x, numbers(QUERN_LIST(4, 2), 5)), 2.5))); /* another constant */
  expect_stats(2, 0, 2, 4);
  expect_realized(quern_tanh(quern_add_scalar(quern_matmul(x, numbers(QUERN_LIST(4, 1), 5)), 1.5))); /* another shape */
  expect_stats(3, 0, 3, 4);
  expect_realized(quern_sub(x, x)); /* one leaf, or two */
  expect_realized(quern_sub(x, numbers(QUERN_LIST(3, 4), 2)));
  expect_stats(5, 0, 5, 4);
}

/* a - b is found whichever of the two is older, and whatever order commutative operands are in. */
static void age_does_not_matter(void **state) {
  (void)state;
  quern_tensor *a = numbers(QUERN_LIST(4), 1), *b = numbers(QUERN_LIST(4), 2);
  expect_realized(quern_sub(quern_mul(a, quern_exp(b)), quern_add_scalar(b, 3)));
  expect_stats(1, 0, 1, 0);
  expect_realized(quern_sub(quern_mul(b, quern_exp(a)), quern_add_scalar(a, 3)));
  expect_stats(1, 0, 1, 1);
  quern_tensor *e = quern_exp(a), *younger = numbers(QUERN_LIST(4), 3);
  expect_realized(quern_sub(quern_mul(e, younger), quern_add_scalar(a, 3)));
  expect_stats(1, 0, 1, 2);
}

/* What is interpreted at first and compiled later has the same bits. */
static void bits_do_not_change(void **state) {
  (void)state;
  const int64_t wide[] = {32, 64}, tall[] = {64, 16};
  char first[32 * 64 * 4];
  for (int k = 0; k < 4; k++) {
    test_renew();
    for (int turn = 0;; turn++) {
      quern_tensor *x = numbers(2, wide, 1), *w = numbers(2, tall, 2), *y;
      if (k == 0) y = quern_softmax(quern_gelu(quern_matmul(x, w)), 1);
      if (k == 1) y = quern_layer_norm(x, 1, NULL, NULL, 1e-5);
      if (k == 2) y = quern_sum(quern_exp(x), QUERN_ALL, false);
      if (k == 3) y = quern_cumsum(quern_erf(x), 1);
      size_t bytes = quern_tensor_bytes(y);
      EXPECT_OK(quern_tensor_realize(&y));
      if (turn == 0) memcpy(first, quern_tensor_data(y), bytes);
      assert_memory_equal(quern_tensor_data(y), first, bytes);
      if (stats().compiled == 1) {
        quern_run_stats counts = QUERN_INIT(quern_run_stats);
        assert_true(turn >= 9 && stats().interpreted == 1);
        EXPECT_OK(quern_eager_get_stats(ctx, &counts));
        assert_true(counts.runs == (uint64_t)turn + 1 && counts.compiled > 0 &&
                    counts.interpreted == counts.compiled * (uint64_t)turn);
        break;
      }
      assert_true(turn < 1000);
    }
  }
}

static void large_expressions_are_compiled_at_once(void **state) {
  (void)state;
  quern_tensor *x = quern_iota(ctx, QUERN_DTYPE_F32, QUERN_LIST(400, 400), 1);
  EXPECT_OK(quern_tensor_realize(&x));
  expect_stats(1, 1, 0, 0);
  assert_true(((const float *)quern_tensor_data(x))[159999] == 399);
}

static void the_oldest_programs_go(void **state) {
  (void)state;
  quern_tensor *x = numbers(QUERN_LIST(2), 1), *first = quern_add_scalar(x, 0.5), *y;
  expect_realized(first);
  for (int i = 1; i < 256; i++) {
    y = quern_add_scalar(x, (double)i);
    EXPECT_OK(quern_tensor_realize(&y));
    y = first; /* used ever again */
    EXPECT_OK(quern_tensor_realize(&y));
  }
  expect_stats(256, 0, 256, 255);
  y = quern_add_scalar(x, 256); /* in place of the one of 1 */
  EXPECT_OK(quern_tensor_realize(&y));
  expect_stats(256, 0, 257, 255);
  y = first;
  EXPECT_OK(quern_tensor_realize(&y));
  expect_stats(256, 0, 257, 256);
  y = quern_add_scalar(x, 1);
  EXPECT_OK(quern_tensor_realize(&y));
  expect_stats(256, 0, 258, 256);
}

/* Programs that need more memory, then less: the space moves, and instances with it. */
static void programs_share_their_space(void **state) {
  (void)state;
  for (int turn = 0; turn < 3; turn++) {
    for (int64_t n = 1; n <= 64; n *= 4) {
      quern_tensor *x = numbers(QUERN_LIST(n, n), (uint64_t)n), *s = quern_softmax(quern_matmul(x, x), 0);
      expect_realized(quern_matmul(quern_matmul(s, x), s));
    }
  }
  expect_stats(4, 1, 3, 8); /* the largest is compiled at once */
}

/* ---- what is realized ----------------------------------------------------------------------------------- */

static void sum_turns(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[1], quern_mul(args[2], quern_cast(args[0], QUERN_DTYPE_F32)));
}

static void below_a_hundred(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_lt(args[0], quern_scalar_int(quern_tensor_context(args[0]), QUERN_DTYPE_I32, 100));
}

static void twice(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[0], args[0]);
}

/* Bodies, composites of the user, gradients, random numbers, several results. */
static void graphs_in_graphs(void **state) {
  (void)state;
  quern_tensor *x = numbers(QUERN_LIST(3, 4), 1), *y, *dx;
  quern_loop_options loop = {.size = sizeof loop, .trip = 5, .n_carries = 1, .n_captures = 1};
  for (uint64_t turn = 0; turn < 2; turn++) {
    EXPECT_OK(quern_loop(ctx, &loop, (quern_tensor *[]){x, quern_exp(x)}, sum_turns, NULL, &y));
    expect_realized(y);
    EXPECT_OK(quern_composite(ctx, "mine", 1, &x, 1, twice, NULL, &y));
    y = quern_sum(quern_softmax(quern_gelu(y), 1), QUERN_LIST(0), false);
    EXPECT_OK(quern_grad(quern_sum(quern_square(y), QUERN_ALL, false), 1, &x, &dx));
    expect_realized(dx);
    quern_random from = {.seed = quern_scalar_int(ctx, QUERN_DTYPE_U64, 7), .stream = 3};
    expect_realized(quern_dropout(x, 0.5, &from));
    quern_tensor *three = quern_scalar_int(ctx, QUERN_DTYPE_I32, 3);
    EXPECT_OK(quern_while(ctx, 1, 0, &three, below_a_hundred, twice, NULL, &y));
    expect_realized(y);
    assert_int_equal(stats().programs, 4);
    x = numbers(QUERN_LIST(3, 4), 5);
  }
  expect_stats(4, 1, 3, 4); /* nobody knows how long a while is */
}

static void several_at_once(void **state) {
  (void)state;
  quern_tensor *x = numbers(QUERN_LIST(3), 1), *e = quern_exp(x), *parts[2], *held = x;
  EXPECT_OK(quern_split(quern_concat(2, (quern_tensor *[]){x, e}, 0), 0, QUERN_LIST(3, 3), parts));
  quern_tensor *xs[] = {e, x, quern_neg(e), e, parts[1], parts[0], quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(0))};
  EXPECT_OK(quern_tensors_realize(7, xs));
  expect_stats(1, 0, 1, 0);
  assert_ptr_equal(xs[1], held);
  assert_ptr_equal(xs[0], xs[3]);
  const float *a = quern_tensor_data(xs[0]), *b = quern_tensor_data(xs[2]);
  for (int i = 0; i < 3; i++) assert_true(a[i] > 0 && a[i] == -b[i]);
  assert_memory_equal(quern_tensor_data(xs[4]), a, 12);
  assert_memory_equal(quern_tensor_data(xs[5]), quern_tensor_data(x), 12);
  assert_int_equal(quern_tensor_count(xs[6]), 0);
  EXPECT_OK(quern_tensors_realize(7, xs)); /* nothing is left to do */
  expect_stats(1, 0, 1, 0);
  EXPECT_OK(quern_tensors_realize(0, NULL));
}

static void leaves_without_elements(void **state) {
  (void)state;
  quern_tensor *x = numbers(QUERN_LIST(2), 1), *y = quern_add(quern_exp(x), F32_INPUT("hole", 2)), *before = y;
  EXPECT_ERROR(quern_tensor_realize(&y), UNBOUND, "eval: the input \"hole\", f32(2,), has no value");
  quern_tensor *xs[] = {quern_neg(x), quern_add(x, F32_STATE("weight", 2))};
  EXPECT_ERROR(quern_tensors_realize(2, xs), UNBOUND, "eval: the state \"weight\", f32(2,), has no value");
  assert_ptr_equal(y, before);
  assert_null(quern_tensor_data(xs[0]));
  y = quern_neg(x);
  EXPECT_OK(quern_tensor_release(x));
  EXPECT_ERROR(quern_tensor_realize(&y), UNBOUND, "eval: a buffer, f32(2,), has no value");
  EXPECT_ERROR(quern_tensor_realize(&x), UNBOUND, "eval: a buffer, f32(2,), has no value");
  expect_stats(0, 0, 0, 0);
}

/* Memory of the caller is read at every call. */
static void wrapped_memory_is_read_again(void **state) {
  (void)state;
  float mine[2] = {1, 2};
  quern_tensor *x = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(2), mine);
  for (int turn = 0; turn < 3; turn++) {
    quern_tensor *y = quern_mul_scalar(x, 2);
    mine[0] = (float)turn;
    EXPECT_OK(quern_tensor_realize(&y));
    assert_true(*(const float *)quern_tensor_data(y) == 2 * (float)turn);
  }
  expect_stats(1, 0, 1, 2);
}

/* ---- loops ---------------------------------------------------------------------------------------------- */

enum { STEPS = 10000, ROWS = 16, COLUMNS = 4 };
#define RATE 0.0005

/* The same training in double: the mean of (x w - y)^2, and w after so many steps. */
static double train_plainly(const float *x, const float *y, double *w) {
  double loss = 0;
  for (int step = 0; step < STEPS; step++) {
    double dw[COLUMNS] = {0};
    loss = 0;
    for (int i = 0; i < ROWS; i++) {
      double off = -y[i];
      for (int k = 0; k < COLUMNS; k++) off += x[i * COLUMNS + k] * w[k];
      for (int k = 0; k < COLUMNS; k++) dw[k] += 2 * off * x[i * COLUMNS + k] / ROWS;
      loss += off * off / ROWS;
    }
    for (int k = 0; k < COLUMNS; k++) w[k] -= RATE * dw[k];
  }
  return loss;
}

/* Least squares by gradient descent: right after 10,000 steps, and nothing grows. */
static void training_does_not_grow(void **state) {
  (void)state;
  quern_tensor *x = numbers(QUERN_LIST(ROWS, COLUMNS), 1), *y = numbers(QUERN_LIST(ROWS, 1), 2);
  quern_tensor *keep[2] = {numbers(QUERN_LIST(COLUMNS, 1), 3), NULL};
  double w[COLUMNS];
  for (int k = 0; k < COLUMNS; k++) w[k] = (double)((const float *)quern_tensor_data(keep[0]))[k];
  double expected = train_plainly(quern_tensor_data(x), quern_tensor_data(y), w);
  quern_mark mark;
  EXPECT_OK(quern_context_mark(ctx, &mark));
  size_t live = 0, nodes = 0;
  for (int step = 0; step < STEPS; step++) {
    quern_tensor *loss = quern_mse_loss(quern_matmul(x, keep[0]), y, QUERN_REDUCTION_MEAN), *dw;
    EXPECT_OK(quern_grad(loss, 1, keep, &dw));
    keep[0] = quern_sub(keep[0], quern_mul_scalar(dw, RATE));
    keep[1] = loss;
    EXPECT_OK(quern_tensors_realize(2, keep));
    EXPECT_OK(quern_context_rewind(ctx, mark, 2, keep));
    if (step == STEPS / 2) live = memory_live, nodes = quern_context_node_count(ctx);
    if (step > STEPS / 2) assert_true(memory_live == live && quern_context_node_count(ctx) == nodes);
  }
  assert_true(fabs((double)*(const float *)quern_tensor_data(keep[1]) - expected) < 1e-4);
  for (int k = 0; k < COLUMNS; k++)
    assert_true(fabs((double)((const float *)quern_tensor_data(keep[0]))[k] - w[k]) < 1e-4);
  expect_stats(1, 1, 1, STEPS - 2);
  quern_pool_stats pool = QUERN_INIT(quern_pool_stats);
  EXPECT_OK(quern_pool_get_stats(ctx, &pool));
  assert_true(pool.misses < 20 && pool.hits > 2 * STEPS - 20);
}

/* The same loop, collected now and then instead of going back to a mark. */
static void collecting_does_not_grow(void **state) {
  (void)state;
  enum { EVERY = 10 };
  quern_tensor *x = numbers(QUERN_LIST(ROWS, COLUMNS), 1), *y = numbers(QUERN_LIST(ROWS, 1), 2);
  quern_tensor *keep[4] = {numbers(QUERN_LIST(COLUMNS, 1), 3), NULL, x, y};
  double w[COLUMNS];
  for (int k = 0; k < COLUMNS; k++) w[k] = (double)((const float *)quern_tensor_data(keep[0]))[k];
  double expected = train_plainly(quern_tensor_data(x), quern_tensor_data(y), w);
  size_t live = 0;
  for (int step = 1; step <= STEPS; step++) {
    quern_tensor *loss = quern_mse_loss(quern_matmul(x, keep[0]), y, QUERN_REDUCTION_MEAN), *dw;
    EXPECT_OK(quern_grad(loss, 1, keep, &dw));
    keep[0] = quern_sub(keep[0], quern_mul_scalar(dw, RATE));
    keep[1] = loss;
    EXPECT_OK(quern_tensors_realize(2, keep));
    if (step % EVERY != 0) continue;
    EXPECT_OK(quern_context_collect(ctx, 4, keep));
    assert_int_equal(quern_context_node_count(ctx), 4);
    if (step == STEPS / 2) live = memory_live;
    if (step > STEPS / 2) assert_int_equal(memory_live, live);
  }
  assert_true(fabs((double)*(const float *)quern_tensor_data(keep[1]) - expected) < 1e-4);
  for (int k = 0; k < COLUMNS; k++)
    assert_true(fabs((double)((const float *)quern_tensor_data(keep[0]))[k] - w[k]) < 1e-4);
}

/* Without marks, memory comes back by releasing. */
static void released_memory_serves_again(void **state) {
  (void)state;
  quern_tensor *x = numbers(QUERN_LIST(1000), 1);
  quern_pool_stats pool = QUERN_INIT(quern_pool_stats);
  for (int turn = 0; turn < 10; turn++) {
    quern_tensor *y = quern_mul_scalar(x, 0.5);
    EXPECT_OK(quern_tensor_realize(&y));
    EXPECT_OK(quern_tensor_release(x));
    x = y;
  }
  EXPECT_OK(quern_pool_get_stats(ctx, &pool));
  assert_int_equal(pool.misses, 2);
  assert_int_equal(pool.peak_bytes, 2 * 4032);
}

static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    quern_tensor *x = numbers(QUERN_LIST(4), 1);
    quern_tensor *xs[] = {quern_softmax(x, 0), quern_neg(x)}, *before[] = {xs[0], xs[1]};
    EXPECT_OK(quern_context_check(ctx));
    fault_begin(&fault);
    quern_status status = quern_tensors_realize(2, xs);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    EXPECT_OK(quern_context_check(ctx));
    if (status == QUERN_STATUS_OK) continue;
    assert_true(xs[0] == before[0] && xs[1] == before[1]);
    EXPECT_OK(quern_tensors_realize(2, xs));
    assert_true(((const float *)quern_tensor_data(xs[1]))[3] == -((const float *)quern_tensor_data(x))[3]);
    assert_int_equal(ctx->buffer_cache.stats.used_bytes, 3 * 64);
  }
  assert_true(fault.n > 20);
}

/* With a program there already: found, then one that needs more space. */
static void lack_of_memory_later(void **state) {
  (void)state;
  for (int kind = 0; kind < 2; kind++) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      test_renew();
      quern_tensor *x = numbers(QUERN_LIST(4), 1), *y = quern_softmax(x, 0), *w = numbers(QUERN_LIST(9, 9), 2), *z;
      EXPECT_OK(quern_tensor_realize(&y));
      y = quern_softmax(numbers(QUERN_LIST(4), 2), 0);
      z = kind == 0 ? y : quern_matmul(quern_softmax(quern_matmul(w, w), 1), w);
      EXPECT_OK(quern_context_check(ctx));
      fault_begin(&fault);
      quern_status status = quern_tensor_realize(&z);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      expect_realized(y);
      if (kind == 1) expect_realized(z);
    }
    assert_true(fault.n > 4);
  }
}

int main(void) {
  char folder[] = "/tmp/quern-test-eager-XXXXXX", command[64];
  if (mkdtemp(folder) == NULL) return 1;
  setenv("QUERN_CACHE", folder, 1);
  const struct CMUnitTest tests[] = {TEST(programs_are_found_again),
                                     TEST(age_does_not_matter),
                                     TEST(bits_do_not_change),
                                     TEST(large_expressions_are_compiled_at_once),
                                     TEST(the_oldest_programs_go),
                                     TEST(programs_share_their_space),
                                     TEST(graphs_in_graphs),
                                     TEST(several_at_once),
                                     TEST(leaves_without_elements),
                                     TEST(wrapped_memory_is_read_again),
                                     TEST(training_does_not_grow),
                                     TEST(collecting_does_not_grow),
                                     TEST(released_memory_serves_again),
                                     TEST(lack_of_memory),
                                     TEST(lack_of_memory_later)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command) == 0 ? failed : 1;
}
