/* tests/pass/test_chunk.c -- linear + cross-entropy as a loop over rows gives what the whole gives */
#include <math.h>

#include "pass/pass.h"
#include "quern/grad.h"
#include "quern/tensor.h"
#include "tensor/kinds.h"
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

/* Nodes of an op that the roots reach, in bodies of loops as well, each body once. */
static size_t count_ops(enum ir_op op, size_t n, quern_tensor *const *roots) {
  struct ir_order order;
  size_t found = 0;
  EXPECT_OK(ir_topo(ctx, n, roots, &order));
  for (size_t i = 0; i < order.n; i++) {
    const struct ir_graph *body = order.at[i]->attrs->body;
    found += order.at[i]->op == op;
    if (body != NULL) found += count_ops(op, (size_t)body->n_results, body->results);
  }
  ir_order_fini(ctx, &order);
  return found;
}

/* The trip of a loop that the roots reach. */
static int64_t trip_of(size_t n, quern_tensor *const *roots) {
  struct ir_order order;
  int64_t trip = 0;
  EXPECT_OK(ir_topo(ctx, n, roots, &order));
  for (size_t i = 0; i < order.n; i++)
    if (order.at[i]->op == IR_LOOP) trip = order.at[i]->attrs->trip;
  ir_order_fini(ctx, &order);
  return trip;
}

static const struct base_target gpu = {.name = "gpu", .gpu = true};

/* The graph after the pass and inlining. */
static void chunk(const struct base_target *target, int64_t bytes, size_t n, quern_tensor *const *roots,
                  quern_tensor **after) {
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  EXPECT_OK(pass_options_parse(&options, 0, "+chunk"));
  options.chunk_bytes = bytes;
  options.target = target;
  for (size_t i = 0; i < n; i++) {
    assert_false(quern_tensor_is_poison(roots[i]));
    after[i] = roots[i];
  }
  struct pass_graph graph = {.ctx = ctx, .n_roots = n, .roots = after};
  EXPECT_OK(pass_run(&graph, &options, reports));
}

static void expect_near(double bound, size_t n, quern_tensor *const *roots, quern_tensor *const *after) {
  for (size_t i = 0; i < n; i++) {
    assert_true(ir_same_type(roots[i], after[i]));
    size_t count = (size_t)ir_count(roots[i]);
    double *want = malloc(count * 8 + 8), *got = malloc(count * 8 + 8);
    void *places[] = {want}, *others[] = {got};
    quern_tensor *wide[2] = {quern_cast(roots[i], QUERN_DTYPE_F64), quern_cast(after[i], QUERN_DTYPE_F64)};
    EXPECT_OK(ir_eval(ctx, 1, &wide[0], places, 0, NULL));
    EXPECT_OK(ir_eval(ctx, 1, &wide[1], others, 0, NULL));
    for (size_t k = 0; k < count; k++)
      assert_true((isnan(want[k]) && isnan(got[k])) || fabs(want[k] - got[k]) <= bound * (1 + fabs(want[k])));
    free(want);
    free(got);
  }
}

/* The roots before and after the pass, element by element; how many loops it made. */
static void expect_chunked(size_t loops, size_t n, quern_tensor *const *roots) {
  quern_tensor *after[6];
  chunk(NULL, 4096, n, roots, after);
  assert_int_equal(count_ops(IR_LOOP, n, after), loops);
  expect_near(1e-12, n, roots, after);
}

enum { CLASSES = 11, WIDTH = 5 };

static const quern_cross_entropy_options counted = {.size = sizeof counted, .ignore = true, .ignore_index = -1};

/* n labels, some of them -1. */
static quern_tensor *some_labels(int64_t n) {
  int64_t labels[1024];
  for (int64_t i = 0; i < n; i++) labels[i] = i % 7 == 3 ? -1 : (i * 5) % CLASSES;
  return quern_tensor_copy(ctx, QUERN_DTYPE_I64, 1, &n, labels);
}

static void test_all(void **state) {
  (void)state;
  static const int64_t counts[] = {128, 150, 191, 100};
  for (size_t c = 0; c < BASE_COUNT(counts); c++) {
    for (int reduction = 0; reduction < 3; reduction++) {
      int64_t n = counts[c];
      quern_tensor *xs[2] = {floats(2, (int64_t[]){n, WIDTH}, 1), floats(2, (int64_t[]){CLASSES, WIDTH}, 2)};
      quern_tensor *y = some_labels(n);
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
      quern_tensor *all[] = {loss, dx[0], dx[1]}, *after[3];
      expect_chunked(loops, 3, all); /* losses and gradients by one loop */
      chunk(NULL, 4096, 3, all, after);
      assert_int_equal(count_ops(IR_DOT, 3, after),
                       n % 64 == 0 || loops == 0 ? 3 : 6); /* and logits are computed once */
    }
  }
}

/* Operands that were rounded to a low dtype and cast up again: the loop is given what they were before, and casts in each iteration. */
static void test_casts(void **state) {
  (void)state;
  enum { ROWS = 150 };
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

/* A loss of 128 rows and its operands. */
static quern_tensor *loss_of(quern_reduction reduction, quern_tensor **xs) {
  quern_cross_entropy_options options = {
      .size = sizeof options, .reduction = reduction, .ignore = true, .ignore_index = -1};
  xs[0] = floats(2, (int64_t[]){128, WIDTH}, 1);
  xs[1] = floats(2, (int64_t[]){CLASSES, WIDTH}, 2);
  return quern_linear_cross_entropy(xs[0], xs[1], some_labels(128), &options);
}

/* A gradient that depends on the losses waits for them: two loops. One of something else that depends on them does not. */
static void test_dependent(void **state) {
  (void)state;
  for (int reduction = 0; reduction < 3; reduction++) {
    quern_tensor *xs[2], *roots[4], *after[3], *loss = loss_of((quern_reduction)reduction, xs);
    quern_tensor *squared = quern_square(loss);
    roots[0] = loss;
    EXPECT_OK(quern_vjp(1, &squared, (quern_tensor *[]){quern_ones_like(loss)}, 2, xs, roots + 1));
    expect_chunked(2, 3, roots);
    chunk(NULL, 4096, 3, roots, after);
    assert_int_equal(count_ops(IR_DOT, 3, after), 4);
    quern_tensor *scale = quern_add_scalar(quern_cast(quern_ones_like(loss), QUERN_DTYPE_F64), 2);
    roots[0] = squared;
    EXPECT_OK(quern_vjp(1, &loss, &scale, 2, xs, roots + 1));
    roots[3] = quern_mul(squared, scale); /* all that reads the losses reads those of the one loop */
    expect_chunked(1, 4, roots);
  }
}

/* Two gradients of the same losses: the losses come with the first. Losses of other options are others. */
static void test_several(void **state) {
  (void)state;
  quern_tensor *xs[2], *roots[6], *loss = loss_of(QUERN_REDUCTION_MEAN, xs), *dy[2];
  for (int i = 0; i < 2; i++) dy[i] = quern_full(ctx, QUERN_DTYPE_F64, 0, NULL, 1 + i);
  roots[0] = loss;
  EXPECT_OK(quern_vjp(1, &loss, &dy[0], 2, xs, roots + 1));
  EXPECT_OK(quern_vjp(1, &loss, &dy[1], 2, xs, roots + 3));
  expect_chunked(2, 5, roots);
  quern_cross_entropy_options smooth = {
      .size = sizeof smooth, .ignore = true, .ignore_index = -1, .label_smoothing = 0.25};
  roots[0] = quern_linear_cross_entropy(xs[0], xs[1], some_labels(128), &smooth);
  expect_chunked(2, 3, roots);
}

/* (i, sum, x, labels, weight) to (sum + loss, dx + loss) */
static void part(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  quern_tensor *xs[2] = {args[2], args[4]}, *dx[2];
  quern_tensor *loss = quern_linear_cross_entropy(xs[0], xs[1], args[3], &counted);
  quern_tensor *one = quern_ones_like(loss);
  results[0] = quern_add(args[1], loss);
  results[1] = &ir_poison;
  if (quern_vjp(1, &loss, &one, 2, xs, dx) == QUERN_STATUS_OK) results[1] = quern_add(dx[0], loss);
}

/* Inside the loop that takes a batch in parts. */
static void test_inside(void **state) {
  (void)state;
  quern_tensor *operands[4], *results[2], *after[2];
  operands[0] = quern_zeros(ctx, QUERN_DTYPE_F64, 0, NULL);
  operands[1] = floats(3, (int64_t[]){2, 128, WIDTH}, 1);
  operands[2] = quern_reshape(some_labels(256), 2, (int64_t[]){2, 128});
  operands[3] = floats(2, (int64_t[]){CLASSES, WIDTH}, 2);
  quern_loop_options options = {
      .size = sizeof options, .trip = 2, .n_carries = 1, .n_scanned = 2, .n_captures = 1, .n_stacked = 1};
  EXPECT_OK(quern_loop(ctx, &options, operands, part, NULL, results));
  expect_chunked(2, 2, results);
  chunk(NULL, 4096, 2, results, after);
  assert_int_equal(count_ops(IR_DOT, 2, after), 3);
}

/* On a GPU turns have as many rows each, where that can be, a multiple of 128. */
static void test_turns(void **state) {
  (void)state;
  static const struct {
    int64_t n, fit, trip; /* rows in all, that fit, and how many turns there are; 0: no loop */
  } cases[] = {{1024, 128, 8}, {1024, 300, 4}, {1024, 400, 4}, {768, 640, 2}, {768, 400, 2},
               {1000, 260, 3}, {300, 128, 2},  {512, 511, 2},  {255, 100, 0}};
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    quern_tensor *xs[2] = {floats(2, (int64_t[]){cases[i].n, WIDTH}, 1), floats(2, (int64_t[]){CLASSES, WIDTH}, 2)};
    quern_tensor *loss = quern_linear_cross_entropy(xs[0], xs[1], some_labels(cases[i].n), &counted), *roots[3],
                 *after[3];
    roots[0] = loss;
    EXPECT_OK(quern_vjp(1, &loss, (quern_tensor *[]){quern_ones_like(loss)}, 2, xs, roots + 1));
    chunk(&gpu, cases[i].fit * CLASSES * 8, 3, roots, after);
    assert_int_equal(trip_of(3, after), cases[i].trip);
    expect_near(1e-12, 3, roots, after);
  }
}

/* The capture of the loop that the roots reach, number k from the last. */
static const quern_tensor *capture_of(size_t n, quern_tensor *const *roots, int k) {
  struct ir_order order;
  const quern_tensor *found = NULL;
  EXPECT_OK(ir_topo(ctx, n, roots, &order));
  for (size_t i = 0; i < order.n; i++)
    if (order.at[i]->op == IR_LOOP) found = order.at[i]->src[order.at[i]->n_src - 1 - k];
  ir_order_fini(ctx, &order);
  return found;
}

static const struct base_target library = {.name = "gpu", .gpu = true, .capabilities = BASE_LIBRARY_BLAS};

/* The gradient of logits is rounded in a turn as it is without a loop, where autocast says so. On a GPU the loop is given
** the low operands, and logits of such are rounded, too; where a library computes them they have more columns. */
static void expect_narrow(bool narrow, double smoothing) {
  enum { ROWS = 256 };
  static const struct base_target *const targets[] = {NULL, &gpu, &library};
  const struct ir_composite *kind = ir_composite_find(ctx, "linear_cross_entropy");
  int64_t ints[] = {QUERN_REDUCTION_SUM, 1, -1, TENSOR_NARROW_BF16};
  quern_cross_entropy_options plain = counted;
  plain.reduction = QUERN_REDUCTION_SUM;
  plain.label_smoothing = smoothing;
  quern_tensor *xs[3] = {floats(2, (int64_t[]){ROWS, WIDTH}, 1), floats(2, (int64_t[]){CLASSES, WIDTH}, 2)}, *low[2];
  for (int i = 0; i < 2; i++) {
    low[i] = quern_cast(xs[i], QUERN_DTYPE_BF16);
    xs[i] = quern_cast(low[i], QUERN_DTYPE_F32);
  }
  xs[2] = some_labels(ROWS);
  quern_tensor *rounded = quern_cast(quern_linear(xs[0], xs[1], NULL), QUERN_DTYPE_BF16), *after[3];
  rounded = quern_cross_entropy(quern_cast(rounded, QUERN_DTYPE_F32), xs[2], &plain);
  struct ir_ints some = {narrow ? 4 : 3, ints};
  quern_tensor *loss = ir_composite_make(ctx, kind, some, (struct ir_reals){1, &smoothing}, 3, xs);
  quern_tensor *roots[3] = {loss}, *stored[3] = {rounded}, *one = quern_ones_like(loss);
  EXPECT_OK(quern_vjp(1, &loss, &one, 2, xs, roots + 1));
  EXPECT_OK(quern_vjp(1, &rounded, &one, 2, xs, stored + 1));
  for (size_t device = 0; device < BASE_COUNT(targets); device++) {
    bool halved = narrow && device > 0, padded = smoothing == 0 && device == 2;
    chunk(targets[device], 128 * (padded ? 128 : CLASSES) * (halved ? 2 : 4), 3, roots, after);
    assert_int_equal(trip_of(3, after), 2);
    assert_int_equal(count_ops(IR_PAD, 3, after), padded ? 1 : 0);
    expect_near(1e-6, 3, halved ? stored : roots, after);
    if (device == 1) assert_ptr_equal(capture_of(3, after, 0), low[1]);
  }
  for (int bytes = 3; bytes <= 4; bytes++) { /* an element: whether there is a loop depends on logits in f32 */
    chunk(&gpu, ROWS * CLASSES * bytes, 3, roots, after);
    assert_int_equal(trip_of(3, after), bytes < 4 ? 2 : 0);
  }
}

static void test_narrow(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) expect_narrow(i % 2 == 1, i < 2 ? 0.125 : 0);
}

/* For a library logits have rows of whole tiles: what is beyond the classes changes nothing, nor is it a label. */
static void test_padded(void **state) {
  (void)state;
  enum { ROWS = 300 };
  static const int64_t ignored[] = {-1, 12};
  const struct ir_composite *kind = ir_composite_find(ctx, "linear_cross_entropy");
  int64_t n = ROWS, labels[ROWS];
  for (int64_t i = 0; i < n; i++) labels[i] = i % 15 - 1; /* -1 .. 13, of 11 classes */
  quern_tensor *xs[3] = {floats(2, (int64_t[]){n, WIDTH}, 1), floats(2, (int64_t[]){CLASSES, WIDTH}, 2)};
  xs[2] = quern_tensor_copy(ctx, QUERN_DTYPE_I64, 1, &n, labels);
  for (int i = 0; i < 2; i++) xs[i] = quern_cast(xs[i], QUERN_DTYPE_F32);
  for (size_t i = 0; i < 2 * BASE_COUNT(ignored); i++) {
    int64_t ints[] = {QUERN_REDUCTION_NONE, 1, ignored[i / 2], TENSOR_NARROW_BF16};
    double smoothing = 0;
    struct ir_ints some = {3 + (int)i % 2, ints};
    quern_tensor *loss = ir_composite_make(ctx, kind, some, (struct ir_reals){1, &smoothing}, 3, xs);
    quern_tensor *roots[3] = {loss}, *after[3];
    EXPECT_OK(quern_vjp(1, &loss, (quern_tensor *[]){quern_ones_like(loss)}, 2, xs, roots + 1));
    chunk(&library, 128 * 128 * 4, 3, roots, after);
    assert_int_equal(trip_of(3, after), 2);
    assert_int_equal(count_ops(IR_PAD, 3, after), 1);
    expect_near(1e-6, 3, roots, after);
  }
  quern_cross_entropy_options smooth = {.size = sizeof smooth, .label_smoothing = 0.1};
  quern_tensor *loss = quern_linear_cross_entropy(xs[0], xs[1], xs[2], &smooth), *after;
  chunk(&library, 128 * 11 * 4, 1, &loss, &after);
  assert_int_equal(trip_of(1, &after), 2);
  assert_int_equal(count_ops(IR_PAD, 1, &after), 0);
}

/* Memory that is not there. */
static void test_fault(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    struct pass_options options = {0};
    struct pass_report reports[PASS_COUNT];
    quern_tensor *xs[2], *roots[3];
    EXPECT_OK(pass_options_parse(&options, 0, "+chunk"));
    options.chunk_bytes = 4096;
    roots[0] = loss_of(QUERN_REDUCTION_MEAN, xs);
    EXPECT_OK(quern_vjp(1, roots, (quern_tensor *[]){quern_ones_like(roots[0])}, 2, xs, roots + 1));
    struct pass_graph graph = {.ctx = ctx, .n_roots = 3, .roots = roots};
    fault_begin(&fault);
    quern_status status = pass_run(&graph, &options, reports);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_all),     TEST(test_casts),  TEST(test_dependent),
                                     TEST(test_several), TEST(test_inside), TEST(test_turns),
                                     TEST(test_narrow),  TEST(test_padded), TEST(test_fault)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
