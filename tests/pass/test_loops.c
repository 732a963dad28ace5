/* tests/pass/test_loops.c -- what leaves a recurrent loop, what stays, and that values are the same */
#include <math.h>

#include "pass/pass.h"
#include "quern/grad.h"
#include "quern/nn.h"
#include "quern/tensor.h"
#include "unit.h"

enum { T = 5, B = 3, I = 4, H = 6 };

static quern_tensor *floats(int rank, const int64_t *dims, uint64_t seed) {
  size_t n = 1;
  for (int k = 0; k < rank; k++) n *= (size_t)dims[k];
  double *x = malloc(n * sizeof *x + 1);
  test_fill(n, x, seed);
  quern_tensor *t = quern_tensor_copy(ctx, QUERN_DTYPE_F64, rank, dims, x);
  free(x);
  return t;
}

#define SHAPED(seed, ...)                                                                                              \
  floats((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}, seed)

/* ---- what there is ----------------------------------------------------------------------------------------------- */

/* Loops, contractions outside of them and inside, carries, scanned sources and stacked results of all loops. */
struct shape {
  int loops, outside, inside, carries, scanned, stacked;
};

static int count_ops(enum ir_op op, size_t n, quern_tensor *const *roots) {
  struct ir_order order;
  int found = 0;
  EXPECT_OK(ir_topo(ctx, n, roots, &order));
  for (size_t i = 0; i < order.n; i++) found += order.at[i]->op == op;
  ir_order_fini(ctx, &order);
  return found;
}

static struct shape shape_of(size_t n, quern_tensor *const *roots) {
  struct shape shape = {.outside = count_ops(IR_DOT, n, roots)};
  struct ir_order order;
  EXPECT_OK(ir_topo(ctx, n, roots, &order));
  for (size_t i = 0; i < order.n; i++) {
    const struct ir_attrs *attrs = order.at[i]->attrs;
    if (order.at[i]->op != IR_LOOP) continue;
    shape.loops++;
    shape.inside += count_ops(IR_DOT, (size_t)attrs->body->n_results, attrs->body->results);
    shape.carries += (int)attrs->carries;
    shape.scanned += (int)attrs->scanned;
    shape.stacked += order.at[i]->n_out - (int)attrs->carries;
  }
  ir_order_fini(ctx, &order);
  return shape;
}

static void expect_shape(struct shape want, size_t n, quern_tensor *const *roots) {
  struct shape got = shape_of(n, roots);
  assert_int_equal(got.loops, want.loops);
  assert_int_equal(got.outside, want.outside);
  assert_int_equal(got.inside, want.inside);
  assert_int_equal(got.carries, want.carries);
  assert_int_equal(got.scanned, want.scanned);
  assert_int_equal(got.stacked, want.stacked);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static const struct base_target gpu = {.name = "gpu", .gpu = true};
static const struct base_target *target; /* NULL: a CPU */

/* The roots after passes, for contractions of any size. */
static quern_status run(const char *list, size_t n, quern_tensor *const *roots, quern_tensor **after) {
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  EXPECT_OK(pass_options_parse(&options, 0, list));
  options.loop_work = 1;
  options.target = target;
  for (size_t i = 0; i < n; i++) {
    assert_false(quern_tensor_is_poison(roots[i]));
    after[i] = roots[i];
  }
  struct pass_graph graph = {.ctx = ctx, .n_roots = n, .roots = after};
  quern_status status = pass_run(&graph, &options, reports);
  if (status == QUERN_STATUS_OK) EXPECT_OK(ir_verify(ctx, n, after));
  return status;
}

static void expect_same(double bound, size_t n, quern_tensor *const *roots, quern_tensor *const *after) {
  for (size_t i = 0; i < n; i++) {
    assert_true(ir_same_type(roots[i], after[i]));
    size_t count = (size_t)ir_count(roots[i]);
    double *want = malloc(count * 8 + 8), *got = malloc(count * 8 + 8);
    void *places[] = {want}, *others[] = {got};
    EXPECT_OK(ir_eval(ctx, 1, &roots[i], places, 0, NULL));
    EXPECT_OK(ir_eval(ctx, 1, &after[i], others, 0, NULL));
    for (size_t k = 0; k < count; k++) assert_true(fabs(want[k] - got[k]) <= bound * (1 + fabs(want[k])));
    free(want);
    free(got);
  }
}

#define ALL "+loops,+loop_merge"

/* The roots after the passes have the same values, to the bit with bound 0, and this shape. */
static void check(double bound, struct shape want, size_t n, quern_tensor *const *roots) {
  quern_tensor *after[24];
  assert_true(n <= BASE_COUNT(after));
  EXPECT_OK(run(ALL, n, roots, after));
  expect_same(bound, n, roots, after);
  expect_shape(want, n, after);
}

/* ---- a recurrence as users write it ------------------------------------------------------------------------------ */

/* h' = tanh(x w' + h u'), stacked: h' v'. Operands: h, x, w, u, v. */
static void cell(void *user, quern_tensor *const *args, quern_tensor **results) {
  quern_tensor *from_x = quern_linear(args[2], args[3], NULL);
  quern_tensor *from_h = quern_linear(args[1], args[4], NULL);
  (void)user;
  results[0] = quern_tanh(quern_add(from_x, from_h));
  results[1] = quern_linear(results[0], args[5], NULL);
}

static int64_t trip;
static bool backwards;

static void operands_of(quern_tensor **x) {
  x[0] = SHAPED(1, B, H);
  x[1] = SHAPED(2, trip, B, I);
  x[2] = SHAPED(3, H, I);
  x[3] = SHAPED(4, H, H);
  x[4] = SHAPED(5, I, H);
}

static void loop_of(quern_body *body, int carries, int captures, int stacked, quern_tensor *const *x,
                    quern_tensor **y) {
  quern_loop_options options = {.size = sizeof options,
                                .trip = trip,
                                .reverse = backwards,
                                .n_carries = carries,
                                .n_scanned = 1,
                                .n_captures = captures,
                                .n_stacked = stacked};
  EXPECT_OK(quern_loop(ctx, &options, x, body, NULL, y));
}

static void test_forward(void **state) {
  (void)state;
  quern_tensor *x[5], *y[2];
  for (int reverse = 0; reverse < 2; reverse++) {
    trip = T, backwards = reverse != 0;
    operands_of(x);
    loop_of(cell, 1, 3, 1, x, y);
    /* x w' before the loop, h' v' after it; h' is stacked for that */
    check(0, (struct shape){.loops = 1, .outside = 2, .inside = 1, .carries = 1, .scanned = 1, .stacked = 1}, 2, y);
  }
}

static void test_gradient(void **state) {
  (void)state;
  quern_tensor *x[5], *roots[7], *dy[2];
  for (int reverse = 0; reverse < 2; reverse++) {
    trip = T, backwards = reverse != 0;
    operands_of(x);
    loop_of(cell, 1, 3, 1, x, roots);
    dy[0] = SHAPED(6, B, H), dy[1] = SHAPED(7, trip, B, I);
    EXPECT_OK(quern_vjp(2, roots, dy, 5, x, roots + 2));
    quern_tensor *after[7];
    EXPECT_OK(run(ALL, 7, roots, after));
    expect_same(1e-12, 7, roots, after);
    struct shape got = shape_of(7, after);
    assert_int_equal(got.loops, 2);   /* forward, which also gives what the gradient needs, and backward */
    assert_int_equal(got.inside, 2);  /* a product with u each */
    assert_int_equal(got.carries, 2); /* no sums */
    assert_int_equal(got.outside, 7); /* x w', h v', dy v, and the gradients of w, u, v and x */
  }
}

/* ---- layers of nn ------------------------------------------------------------------------------------------------ */

/* y of layers in one direction or both, then the gradients of all weights. */
static size_t network(quern_rnn_kind kind, int layers, bool both, quern_model **model, quern_tensor **roots) {
  quern_nn_rnn_options options = {.size = sizeof options, .layers = layers, .bidirectional = both};
  quern_tensor *weights[24], *values[24];
  quern_model_options how = QUERN_INIT(quern_model_options);
  how.dtype = QUERN_DTYPE_F64;
  EXPECT_OK(quern_model_new(model, ctx, &how));
  quern_tensor *x = SHAPED(1, T, B, I);
  roots[0] = quern_nn_rnn(quern_model_scope(*model), x, H, kind, NULL, &options);
  size_t n = quern_model_parameter_count(*model);
  assert_true(n < BASE_COUNT(weights));
  for (size_t i = 0; i < n; i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    EXPECT_OK(quern_model_parameter(*model, i, &p));
    weights[i] = p.tensor;
    values[i] = floats(quern_tensor_rank(p.tensor), quern_tensor_dims(p.tensor), 10 + i);
  }
  quern_tensor *dy = SHAPED(2, T, B, both ? 2 * H : H);
  EXPECT_OK(quern_vjp(1, roots, &dy, n, weights, roots + 1));
  EXPECT_OK(ir_substitute(ctx, n + 1, roots, n, weights, values, roots));
  return n + 1;
}

static void test_layers(void **state) {
  (void)state;
  static const quern_rnn_kind kinds[] = {QUERN_RNN_TANH, QUERN_RNN_RELU, QUERN_RNN_LSTM, QUERN_RNN_GRU};
  for (size_t k = 0; k < BASE_COUNT(kinds); k++) {
    for (int both = 0; both < 2; both++) {
      quern_tensor *roots[25], *after[25];
      quern_model *model;
      size_t n = network(kinds[k], both ? 1 : 2, both != 0, &model, roots);
      EXPECT_OK(run(ALL, n, roots, after));
      expect_same(1e-12, n, roots, after);
      struct shape got = shape_of(n, after);
      int each = kinds[k] == QUERN_RNN_LSTM ? 2 : 1;
      assert_int_equal(got.loops, 4);          /* forward and backward, of two layers or directions */
      assert_int_equal(got.inside, 4);         /* one product with the recurrent weight in each */
      assert_int_equal(got.carries, 4 * each); /* weights' gradients are none of them */
      target = &gpu;
      EXPECT_OK(run(ALL, n, roots, after));
      expect_same(1e-12, n, roots, after);
      target = NULL;
      quern_model_free(model);
    }
  }
}

/* ---- what stays -------------------------------------------------------------------------------------------------- */

/* Carries h and s; s' = s + x' h', which the body uses elsewhere, or not linearly. */
enum { PLAIN, STACKED, USED, SQUARED };
static int variant;

static void summing(void *user, quern_tensor *const *args, quern_tensor **results) {
  quern_tensor *h = args[1], *s = args[2], *x = args[3], *u = args[4];
  quern_tensor *turned = quern_transpose(x, 0, 1), *product = quern_matmul(turned, h);
  quern_tensor *before = quern_linear(h, u, NULL);
  (void)user;
  if (variant == USED) before = quern_add(before, quern_matmul(x, s));
  if (variant == SQUARED) product = quern_mul(product, product);
  results[0] = quern_tanh(before);
  results[1] = quern_add(s, product);
  if (variant == STACKED) results[2] = results[1];
}

static void test_sums(void **state) {
  (void)state;
  for (variant = PLAIN; variant <= SQUARED; variant++) {
    for (int reverse = 0; reverse < 2; reverse++) {
      trip = T, backwards = reverse != 0;
      quern_tensor *x[] = {SHAPED(1, B, H), SHAPED(2, I, H), SHAPED(3, trip, B, I), SHAPED(4, H, H)}, *y[3];
      int stacked = variant == STACKED;
      loop_of(summing, 2, 1, stacked, x, y);
      bool leaves = variant == PLAIN;
      int inside = leaves ? 1 : variant == USED ? 3 : 2;
      struct shape want = {.loops = 1,
                           .outside = leaves,
                           .inside = inside,
                           .carries = leaves ? 1 : 2,
                           .scanned = !leaves,
                           .stacked = leaves ? 1 : stacked};
      check(leaves ? 1e-13 : 0, want, (size_t)(2 + stacked), y);
    }
  }
}

/* Only sums: a loop over chunks saves memory, and keeps its products. */
static void chunks(void *user, quern_tensor *const *args, quern_tensor **results) {
  quern_tensor *x = args[2], *y = quern_matmul(x, args[3]), *turned = quern_transpose(x, 0, 1);
  quern_tensor *product = quern_matmul(turned, y);
  (void)user;
  results[0] = quern_add(args[1], product);
}

static void test_chunks(void **state) {
  (void)state;
  trip = T, backwards = false;
  quern_tensor *x[] = {SHAPED(1, I, H), SHAPED(2, trip, B, I), SHAPED(3, I, H)}, *y[1];
  loop_of(chunks, 1, 1, 0, x, y);
  check(0, (struct shape){.loops = 1, .inside = 2, .carries = 1, .scanned = 1}, 1, y);
}

/* Loops of no iteration or one, and what is too large to be stacked. */
static void wide(void *user, quern_tensor *const *args, quern_tensor **results) {
  quern_tensor *h = args[1], *turned = quern_transpose(args[2], 0, 1), *all = quern_matmul(turned, args[2]);
  (void)user;
  results[0] = quern_tanh(quern_matmul(h, all));
}

static void test_limits(void **state) {
  (void)state;
  quern_tensor *x[5], *y[2];
  backwards = false;
  for (trip = 0; trip < 2; trip++) {
    operands_of(x);
    loop_of(cell, 1, 3, 1, x, y);
    check(0, (struct shape){.loops = 1, .inside = 3, .carries = 1, .scanned = 1, .stacked = 1}, 2, y);
  }
  trip = T;
  quern_tensor *long_rows[] = {SHAPED(1, 1, 40), SHAPED(2, trip, 1, 40)};
  loop_of(wide, 1, 0, 0, long_rows, y); /* 40 x 40 of 1 x 40 */
  check(0, (struct shape){.loops = 1, .inside = 2, .carries = 1, .scanned = 1}, 1, y);
}

/* ---- the same loop twice, and matrices ---------------------------------------------------------------------------- */

static void more(void *user, quern_tensor *const *args, quern_tensor **results) {
  cell(user, args, results);
  results[2] = args[1];
}

static void other(void *user, quern_tensor *const *args, quern_tensor **results) {
  cell(user, args, results);
  results[0] = quern_neg(results[0]);
}

static void test_merge(void **state) {
  (void)state;
  quern_tensor *x[5], *y[8], *after[8];
  trip = T, backwards = false;
  operands_of(x);
  loop_of(cell, 1, 3, 1, x, y);
  loop_of(more, 1, 3, 2, x, y + 2);
  EXPECT_OK(run("+loop_merge", 5, y, after));
  expect_same(0, 5, y, after);
  expect_shape((struct shape){.loops = 1, .inside = 3, .carries = 1, .scanned = 1, .stacked = 2}, 5, after);
  loop_of(other, 1, 3, 1, x, y + 5); /* another recurrence */
  EXPECT_OK(run("+loop_merge", 7, y, after));
  expect_same(0, 7, y, after);
  assert_int_equal(shape_of(7, after).loops, 2);
  backwards = true; /* the other way round */
  loop_of(cell, 1, 3, 1, x, y + 2);
  EXPECT_OK(run("+loop_merge", 4, y, after));
  expect_same(0, 4, y, after);
  assert_int_equal(shape_of(4, after).loops, 2);
  backwards = false; /* what nobody uses of either is not stacked */
  loop_of(more, 1, 3, 2, x, y + 2);
  quern_tensor *some[] = {y[0], y[4]};
  EXPECT_OK(run("+loop_merge", 2, some, after));
  expect_same(0, 2, some, after);
  expect_shape((struct shape){.loops = 1, .inside = 2, .carries = 1, .scanned = 1, .stacked = 1}, 2, after);
}

static void test_operands(void **state) {
  (void)state;
  quern_tensor *x[5], *y[2], *after[2];
  trip = T, backwards = false;
  operands_of(x);
  loop_of(cell, 1, 3, 1, x, y);
  EXPECT_OK(run("+loop_operands", 2, y, after));
  expect_same(0, 2, y, after);
  assert_int_equal(count_ops(IR_PERMUTE, 2, after), 3); /* all matrices are laid out by columns */
  target = &gpu;
  EXPECT_OK(run("+loop_operands", 2, y, after));
  assert_int_equal(count_ops(IR_PERMUTE, 2, after), 0);
  target = NULL;
}

/* A carry that is stacked as iterations begin is stacked as they end. */
static void test_shift(void **state) {
  (void)state;
  for (int reverse = 0; reverse < 2; reverse++) {
    quern_tensor *x[5], *y[3], *after[3];
    trip = T, backwards = reverse != 0;
    operands_of(x);
    loop_of(more, 1, 3, 2, x, y);
    EXPECT_OK(run("+loop_operands", 3, y, after));
    expect_same(0, 3, y, after);
    assert_int_equal(after[2]->node->op, IR_CONCAT);
    assert_int_equal(shape_of(3, after).stacked, 2);
  }
}

/* Carries that change places, and are stacked as iterations begin. */
static void swapped(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = args[2];
  results[1] = quern_tanh(quern_add(args[1], args[3]));
  results[2] = args[1];
  results[3] = args[2];
}

static void test_swapped(void **state) {
  (void)state;
  for (int reverse = 0; reverse < 2; reverse++) {
    trip = T, backwards = reverse != 0;
    quern_tensor *x[] = {SHAPED(1, B, H), SHAPED(2, B, H), SHAPED(3, trip, B, H)}, *y[4], *after[4];
    loop_of(swapped, 2, 0, 2, x, y);
    EXPECT_OK(run(ALL ",+loop_operands", 4, y, after));
    expect_same(0, 4, y, after);
  }
}

/* A recurrence in the iterations of a loop over micro-batches. */
static void nested(void *user, quern_tensor *const *args, quern_tensor **results) {
  quern_tensor *x[] = {args[2], args[3], args[4], args[5], args[6]}, *y[2];
  int64_t before = trip;
  (void)user;
  trip = T;
  loop_of(cell, 1, 3, 1, (quern_tensor *[]){x[1], x[0], x[2], x[3], x[4]}, y);
  trip = before;
  results[0] = quern_add(args[1], y[0]);
  results[1] = y[1];
}

static void test_nested(void **state) {
  (void)state;
  quern_tensor *y[2], *after[2];
  trip = 2, backwards = false;
  quern_tensor *x[] = {SHAPED(1, B, H), SHAPED(2, 2, T, B, I), SHAPED(3, B, H),
                       SHAPED(4, H, I), SHAPED(5, H, H),       SHAPED(6, I, H)};
  loop_of(nested, 1, 4, 1, x, y);
  EXPECT_OK(run(ALL, 2, y, after));
  expect_same(0, 2, y, after);
  expect_shape((struct shape){.loops = 1, .inside = 2, .carries = 1, .scanned = 1, .stacked = 1}, 2, after);
}

static void test_fault(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    quern_tensor *x[5], *roots[7], *dy[2], *after[7];
    trip = T, backwards = false;
    operands_of(x);
    loop_of(cell, 1, 3, 1, x, roots);
    dy[0] = SHAPED(6, B, H), dy[1] = SHAPED(7, trip, B, I);
    EXPECT_OK(quern_vjp(2, roots, dy, 5, x, roots + 2));
    struct pass_options options = {0};
    struct pass_report reports[PASS_COUNT];
    EXPECT_OK(pass_options_parse(&options, 0, ALL ",+loop_operands"));
    options.loop_work = 1;
    memcpy(after, roots, sizeof after);
    struct pass_graph graph = {.ctx = ctx, .n_roots = 7, .roots = after};
    fault_begin(&fault);
    quern_status status = pass_run(&graph, &options, reports);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_forward), TEST(test_gradient), TEST(test_layers), TEST(test_sums),
                                     TEST(test_chunks),  TEST(test_limits),   TEST(test_merge),  TEST(test_operands),
                                     TEST(test_shift),   TEST(test_swapped),  TEST(test_nested), TEST(test_fault)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
