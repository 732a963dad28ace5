/* tests/engine/test_eval.c -- quern_eval, which runs compiled code, against the reference evaluator */
#include <unistd.h>

#include "engine/engine_test.h"

enum { ROWS = 6, COLUMNS = 8, COUNT = ROWS * COLUMNS };

static float values[4][COUNT];

static void fill_values(void) {
  for (uint64_t i = 0; i < BASE_COUNT(values); i++) {
    double x[COUNT];
    test_fill(COUNT, x, i + 1);
    for (int k = 0; k < COUNT; k++) values[i][k] = (float)x[k];
  }
}

/* Evaluates n tensors both ways, and compares them. */
static void expect_reference(size_t n, quern_tensor *const *xs, size_t n_feeds, const quern_feed *feeds) {
  static char got[MOST_SLOTS][MOST_BYTES], expected[MOST_SLOTS][MOST_BYTES];
  void *to[MOST_SLOTS], *wanted[MOST_SLOTS];
  assert_true(n <= MOST_SLOTS);
  for (size_t i = 0; i < n; i++) {
    assert_true(quern_tensor_bytes(xs[i]) <= MOST_BYTES);
    to[i] = got[i];
    wanted[i] = expected[i];
  }
  memset(got, 0x55, sizeof got);
  EXPECT_OK(quern_eval(ctx, n, xs, to, n_feeds, feeds));
  EXPECT_OK(quern_eval_reference(ctx, n, xs, wanted, n_feeds, feeds));
  for (size_t i = 0; i < n; i++) expect_near(xs[i], got[i], expected[i]);
}

/* Inputs, states and buffers, fed and not; several outputs, one of them twice; leaves and empty tensors as outputs. */
static void all_kinds_of_leaves_and_outputs(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", ROWS, COLUMNS), *w = F32_STATE("w", COLUMNS, ROWS);
  quern_tensor *b = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(ROWS), values[2]);
  quern_tensor *y = quern_softmax(quern_add(quern_matmul(x, w), b), 1);
  quern_tensor *empty = quern_neg(F32_INPUT("none", 0, 3));
  quern_tensor *index = quern_argmax(y, 1, false);
  const quern_feed feeds[] = {{x, values[0]}, {w, values[1]}, {b, values[3]}, {quern_neg(empty)->node->src[0], NULL}};
  expect_reference(TENSORS(y, quern_sum(y, QUERN_ALL, false), y, x, b, index), 2, feeds);
  expect_reference(TENSORS(y, x, b, w), 3, feeds); /* the buffer as something else */
  quern_feed nothing = {empty->node->src[0], NULL};
  expect_reference(TENSORS(empty), 1, &nothing);
}

/* One program for all elements, and the same one for realizing. */
static void programs_are_found_again(void **state) {
  (void)state;
  for (size_t turn = 0; turn < 5; turn++) {
    quern_tensor *x = F32_INPUT("x", ROWS, COLUMNS), *y = quern_tanh(quern_mul(x, x));
    expect_reference(TENSORS(y), 1, &(quern_feed){x, values[turn % 4]});
  }
  struct engine_eager_stats stats = engine_eager_get(ctx);
  assert_int_equal(stats.programs, 1);
  assert_int_equal(stats.found, 4);
}

/* What is expensive runs as machine code, at once. */
static void large_expressions_are_compiled(void **state) {
  (void)state;
  enum { N = 256 };
  static float data[N * N], got[N], expected[N];
  for (int i = 0; i < N * N; i++) data[i] = values[0][i % COUNT];
  quern_tensor *x = F32_INPUT("x", N, N), *y = quern_sum(quern_matmul(x, x), QUERN_LIST(1), false);
  quern_feed feed = {x, data};
  quern_run_stats counts = QUERN_INIT(quern_run_stats);
  EXPECT_OK(quern_eval(ctx, 1, &y, &(void *){got}, 1, &feed));
  EXPECT_OK(quern_eval_reference(ctx, 1, &y, &(void *){expected}, 1, &feed));
  for (int i = 0; i < N; i++) assert_true(fabs((double)(got[i] - expected[i])) < 1e-2);
  EXPECT_OK(quern_eager_get_stats(ctx, &counts));
  assert_true(counts.runs == 1 && counts.compiled > 0 && counts.interpreted == 0);
}

/* A step in place: results go where the operands are. */
static void results_may_overlap_what_is_fed(void **state) {
  (void)state;
  float place[COUNT + 3], expected[COUNT];
  memcpy(place, values[0], sizeof values[0]);
  quern_tensor *w = F32_STATE("w", ROWS, COLUMNS);
  quern_tensor *flipped = quern_flip(quern_mul_scalar(w, 0.5), QUERN_LIST(0, 1));
  quern_feed feed = {w, place};
  EXPECT_OK(quern_eval_reference(ctx, 1, &flipped, &(void *){expected}, 1, &feed));
  EXPECT_OK(quern_eval(ctx, 1, &flipped, &(void *){place}, 1, &feed));
  assert_memory_equal(place, expected, sizeof expected);
  memcpy(place, values[0], sizeof values[0]); /* in part */
  EXPECT_OK(quern_eval(ctx, 1, &flipped, &(void *){place + 3}, 1, &feed));
  assert_memory_equal(place + 3, expected, sizeof expected);
  quern_pool_stats pool = QUERN_INIT(quern_pool_stats);
  EXPECT_OK(quern_pool_get_stats(ctx, &pool));
  assert_int_equal(pool.used_bytes, 0);
}

static void loops_and_branches(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", ROWS, COLUMNS), *dx;
  quern_tensor *y = quern_cumsum(quern_layer_norm(x, 1, NULL, NULL, 1e-5), 0);
  quern_tensor *loss = quern_mean(quern_mul(y, y), QUERN_ALL, false);
  EXPECT_OK(quern_grad(loss, 1, &x, &dx));
  expect_reference(TENSORS(loss, dx), 1, &(quern_feed){x, values[1]});
}

/* Many evaluations in a loop: no memory but that of the nodes that the loop makes, and none when it makes none. */
static void evaluating_does_not_grow(void **state) {
  (void)state;
  float got[COUNT];
  quern_tensor *x = F32_INPUT("x", ROWS, COLUMNS), *y = quern_exp(x);
  size_t live = 0;
  for (int i = 0; i < 1000; i++) {
    EXPECT_OK(quern_eval(ctx, 1, &y, &(void *){got}, 1, &(quern_feed){x, values[i % 4]}));
    if (i == 500) live = memory_live;
    if (i > 500) assert_int_equal(memory_live, live);
  }
}

/* Without a C compiler (a PATH of nothing), kernels are interpreted. */
static void without_a_compiler(void **state) {
  (void)state;
  enum { N = 64 };
  static float data[N * N], got[N * N], expected[N * N];
  for (int i = 0; i < N * N; i++) data[i] = values[0][i % COUNT];
  quern_tensor *x = F32_INPUT("x", N, N), *y = quern_tanh(quern_matmul(x, quern_sin(x)));
  quern_feed feed = {x, data};
  EXPECT_OK(quern_eval(ctx, 1, &y, &(void *){got}, 1, &feed));
  EXPECT_OK(quern_eval_reference(ctx, 1, &y, &(void *){expected}, 1, &feed));
  for (int i = 0; i < N * N; i++) assert_true(fabs((double)(got[i] - expected[i])) < 1e-4);
  quern_run_stats counts = QUERN_INIT(quern_run_stats);
  EXPECT_OK(quern_eager_get_stats(ctx, &counts));
  assert_true(counts.interpreted > 0 && counts.compiled == 0);
}

static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    float place[COUNT];
    memcpy(place, values[0], sizeof place);
    quern_tensor *x = F32_INPUT("x", ROWS, COLUMNS), *y = quern_softmax(x, 0);
    EXPECT_OK(quern_context_check(ctx));
    fault_begin(&fault);
    quern_status status = quern_eval(ctx, 1, &y, &(void *){place}, 1, &(quern_feed){x, place});
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(memcmp(place, values[0], sizeof place) == 0, status != QUERN_STATUS_OK);
    assert_int_equal(ctx->buffer_cache.stats.used_bytes, 0);
  }
  assert_true(fault.n > 20);
}

static const char *self;

/* The same test in a process of its own, which finds no compiler. */
static void interpreted_where_there_is_no_compiler(void **state) {
  (void)state;
  char command[512];
  snprintf(command, sizeof command, "PATH=/no/such/folder '%s' without-a-compiler >/dev/null 2>&1", self);
  assert_int_equal(system(command), 0);
}

int main(int n, char **arguments) {
  char folder[] = "/tmp/quern-test-eval-XXXXXX", command[64];
  fill_values();
  self = arguments[0];
  if (n > 1) return cmocka_run_group_tests(((struct CMUnitTest[]){TEST(without_a_compiler)}), NULL, NULL);
  if (mkdtemp(folder) == NULL) return 1;
  setenv("QUERN_CACHE", folder, 1);
  const struct CMUnitTest tests[] = {TEST(all_kinds_of_leaves_and_outputs),
                                     TEST(programs_are_found_again),
                                     TEST(large_expressions_are_compiled),
                                     TEST(results_may_overlap_what_is_fed),
                                     TEST(loops_and_branches),
                                     TEST(evaluating_does_not_grow),
                                     TEST(interpreted_where_there_is_no_compiler),
                                     TEST(lack_of_memory)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command) == 0 ? failed : 1;
}
