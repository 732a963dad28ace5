/* tests/pass/test_chunk.c -- linear + cross-entropy as a loop over rows gives what the whole gives */
#include <math.h>

#include "pass/pass.h"
#include "quern/grad.h"
#include "quern/tensor.h"
#include "unit.h"

static quern_tensor *floats(int rank, const int64_t *dims, uint64_t seed) {
  size_t n = 1;
  for (int k = 0; k < rank; k++) n *= (size_t)dims[k];
  double *x = malloc(n * sizeof *x);
  test_fill(n, x, seed);
  quern_tensor *t = quern_tensor_copy(ctx, QUERN_DTYPE_F64, rank, dims, x);
  free(x);
  return t;
}

static size_t count_loops(size_t n, quern_tensor *const *roots) {
  struct ir_order order;
  size_t loops = 0;
  EXPECT_OK(ir_topo(ctx, n, roots, &order));
  for (size_t i = 0; i < order.n; i++) loops += order.at[i]->op == IR_LOOP;
  ir_order_fini(ctx, &order);
  return loops;
}

/* The roots before and after the pass, element by element; how many loops it made. */
static void expect_chunked(size_t loops, size_t n, quern_tensor *const *roots) {
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  quern_tensor *after[3];
  EXPECT_OK(pass_options_parse(&options, 0, "+chunk"));
  options.chunk_bytes = 4096;
  for (size_t i = 0; i < n; i++) {
    assert_false(quern_tensor_is_poison(roots[i]));
    after[i] = roots[i];
  }
  struct pass_graph graph = {.ctx = ctx, .n_roots = n, .roots = after};
  EXPECT_OK(pass_run(&graph, &options, reports));
  assert_int_equal(count_loops(n, after), loops);
  for (size_t i = 0; i < n; i++) {
    assert_true(ir_same_type(roots[i], after[i]));
    size_t count = (size_t)ir_count(roots[i]);
    double *want = malloc(count * 8 + 8), *got = malloc(count * 8 + 8);
    void *places[] = {want}, *others[] = {got};
    EXPECT_OK(ir_eval(ctx, 1, &roots[i], places, 0, NULL));
    EXPECT_OK(ir_eval(ctx, 1, &after[i], others, 0, NULL));
    for (size_t k = 0; k < count; k++) assert_true(fabs(want[k] - got[k]) <= 1e-12 * (1 + fabs(want[k])));
    free(want);
    free(got);
  }
}

static void test_all(void **state) {
  (void)state;
  enum { CLASSES = 11, WIDTH = 5 };
  static const int64_t counts[] = {128, 150, 191, 100};
  for (size_t c = 0; c < BASE_COUNT(counts); c++) {
    for (int reduction = 0; reduction < 3; reduction++) {
      int64_t n = counts[c], labels[200];
      for (int64_t i = 0; i < n; i++) labels[i] = i % 7 == 3 ? -1 : (i * 5) % CLASSES;
      quern_tensor *xs[2] = {floats(2, (int64_t[]){n, WIDTH}, 1), floats(2, (int64_t[]){CLASSES, WIDTH}, 2)};
      quern_tensor *y = quern_tensor_copy(ctx, QUERN_DTYPE_I64, 1, &n, labels);
      quern_cross_entropy_options options = {.size = sizeof options,
                                             .reduction = (quern_reduction)reduction,
                                             .ignore = true,
                                             .ignore_index = -1,
                                             .label_smoothing = c == 1 ? 0.1 : 0};
      quern_tensor *loss = quern_linear_cross_entropy(xs[0], xs[1], y, &options), *dx[2];
      quern_tensor *dy = floats(loss->rank, loss->dims, 3);
      EXPECT_OK(quern_vjp(1, &loss, &dy, 2, xs, dx));
      size_t loops = n / 64 >= 2 ? 1 : 0;
      expect_chunked(loops, 1, &loss);
      expect_chunked(loops, 2, dx);
      expect_chunked(loops, 1, &dx[1]);
    }
  }
}

/* Operands that were rounded to a low dtype and cast up again: the loop is given what they were before, and casts in each turn. */
static void test_casts(void **state) {
  (void)state;
  enum { CLASSES = 11, WIDTH = 5, ROWS = 150 };
  int64_t n = ROWS, labels[ROWS];
  for (int64_t i = 0; i < n; i++) labels[i] = (i * 5) % CLASSES;
  quern_tensor *xs[2] = {floats(2, (int64_t[]){n, WIDTH}, 1), floats(2, (int64_t[]){CLASSES, WIDTH}, 2)}, *wide[2];
  for (int i = 0; i < 2; i++) wide[i] = quern_cast(quern_cast(xs[i], QUERN_DTYPE_BF16), QUERN_DTYPE_F64);
  quern_tensor *y = quern_tensor_copy(ctx, QUERN_DTYPE_I64, 1, &n, labels);
  quern_tensor *loss = quern_linear_cross_entropy(wide[0], wide[1], y, NULL), *dx[2];
  quern_tensor *dy = floats(0, NULL, 3);
  EXPECT_OK(quern_vjp(1, &loss, &dy, 2, wide, dx));
  expect_chunked(1, 1, &loss);
  expect_chunked(1, 2, dx);
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  EXPECT_OK(pass_options_parse(&options, 0, "+chunk"));
  options.chunk_bytes = 4096;
  struct pass_graph graph = {.ctx = ctx, .n_roots = 1, .roots = &loss};
  EXPECT_OK(pass_run(&graph, &options, reports));
  struct ir_order order;
  EXPECT_OK(ir_topo(ctx, 1, graph.roots, &order));
  for (size_t i = 0; i < order.n; i++)
    if (order.at[i]->op == IR_LOOP) assert_ptr_equal(order.at[i]->src[order.at[i]->n_src - 1], xs[1]);
  ir_order_fini(ctx, &order);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_all), TEST(test_casts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
