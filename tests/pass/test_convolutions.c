/* tests/pass/test_convolutions.c -- convolutions for a library: which are taken, with the channels last, and that values stay */
#include <math.h>

#include "pass/pass.h"
#include "quern/grad.h"
#include "quern/quern.h"
#include "sched/sched.h"
#include "unit.h"

static const struct base_target gpu = {.name = "sm_90", .gpu = true, .capabilities = BASE_LIBRARY_DNN};
static const struct base_target bare = {.name = "sm_90", .gpu = true};

static void run(size_t n, quern_tensor **roots, const struct base_target *target, bool no_convolutions) {
  struct pass_options options = {.target = target, .supports = sched_supports, .no_convolutions = no_convolutions};
  struct pass_graph graph = {ctx, n, roots};
  struct pass_report reports[PASS_COUNT];
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  EXPECT_OK(quern_context_check(ctx));
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(ir_verify(ctx, n, roots));
}

static int count(size_t n, quern_tensor *const *roots, const char *name) {
  struct ir_order order;
  int found = 0;
  EXPECT_OK(ir_topo(ctx, n, roots, &order));
  for (size_t i = 0; i < order.n; i++)
    found += order.at[i]->op == IR_COMPOSITE && strcmp(order.at[i]->attrs->name, name) == 0;
  ir_order_fini(ctx, &order);
  return found;
}

static quern_tensor *data(int rank, const int64_t *dims, uint64_t seed) {
  quern_tensor *like = quern_zeros(ctx, QUERN_DTYPE_F32, rank, dims);
  size_t n = (size_t)ir_count(like);
  double *x = malloc(n * sizeof *x);
  float *narrow = malloc(n * sizeof *narrow);
  test_fill(n, x, seed);
  for (size_t i = 0; i < n; i++) narrow[i] = (float)x[i];
  quern_tensor *t = quern_tensor_copy(ctx, QUERN_DTYPE_F32, rank, dims, narrow);
  free(x), free(narrow);
  return t;
}

static void expect_near(size_t n, quern_tensor *const *a, quern_tensor *const *b) {
  for (size_t i = 0; i < n; i++) {
    quern_tensor *both[] = {a[i], b[i]};
    size_t all = (size_t)ir_count(a[i]);
    float *dst[2] = {malloc(all * sizeof(float)), malloc(all * sizeof(float))};
    EXPECT_OK(ir_eval(ctx, 2, both, (void *const *)dst, 0, NULL));
    for (size_t k = 0; k < all; k++)
      if (!(fabsf(dst[0][k] - dst[1][k]) <= 2e-5F * (1 + fabsf(dst[0][k]))))
        fail_msg("root %zu, element %zu: %.9g, not %.9g", i, k, (double)dst[1][k], (double)dst[0][k]);
    free(dst[0]), free(dst[1]);
  }
}

/* ---- what becomes of convolutions -------------------------------------------------------------------------- */

typedef quern_tensor *builder(quern_tensor *, quern_tensor *, quern_tensor *, const quern_conv_options *);

static const struct row {
  builder *build;
  bool transposed;
  int spatial;
  int64_t x[5], w[5];
  quern_conv_options options;
} rows[] = {
#define OPTIONS(...)                                                                                                   \
  { .size = sizeof(quern_conv_options), __VA_ARGS__ }
    {quern_conv1d, false, 1, {2, 4, 9}, {6, 4, 3}, OPTIONS(.pad_lo = {1}, .pad_hi = {1})},
    {quern_conv2d, false, 2, {2, 4, 7, 6}, {6, 2, 3, 2}, OPTIONS(.groups = 2, .stride = {2, 1}, .dilation = {1, 2})},
    {quern_conv2d, false, 2, {1, 4, 6, 6}, {4, 1, 3, 3}, OPTIONS(.groups = 4, .pad_lo = {1, 1}, .pad_hi = {1, 1})},
    {quern_conv2d, false, 2, {2, 4, 5, 5}, {6, 4, 1, 1}, OPTIONS(.stride = {2, 2})},
    {quern_conv3d, false, 3, {1, 2, 4, 5, 4}, {3, 2, 2, 2, 2}, OPTIONS(.stride = {1, 2, 1})},
    {quern_conv_transpose1d, true, 1, {2, 4, 5}, {4, 3, 4}, OPTIONS(.stride = {3})},
    {quern_conv_transpose2d,
     true,
     2,
     {2, 4, 4, 3},
     {4, 3, 3, 3},
     OPTIONS(.stride = {2, 2}, .pad_lo = {1, 1}, .pad_hi = {1, 1}, .output_pad = {1, 0})},
    {quern_conv_transpose2d, true, 2, {1, 4, 4, 4}, {4, 2, 2, 2}, OPTIONS(.groups = 2, .stride = {2, 2})},
};

/* y, dx, dw, db of a row. */
static void build(const struct row *r, quern_tensor *roots[4]) {
  int64_t outputs = r->transposed ? r->w[1] * BASE_MAX(r->options.groups, 1) : r->w[0];
  quern_tensor *x = data(2 + r->spatial, r->x, 1), *w = data(2 + r->spatial, r->w, 2), *b = data(1, &outputs, 3);
  quern_tensor *y = roots[0] = r->build(x, w, b, &r->options), *from[] = {x, w, b};
  EXPECT_OK(quern_context_check(ctx));
  quern_tensor *dy = data(y->rank, y->dims, 4);
  EXPECT_OK(quern_vjp(1, &y, &dy, 3, from, roots + 1));
}

static void test_placed(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_tensor *before[4], *after[4];
    build(&rows[i], before);
    memcpy(after, before, sizeof after);
    run(4, after, &gpu, false);
    assert_int_equal(count(4, after, "conv.placed"), 1);
    assert_int_equal(count(4, after, "conv.input_grad.placed"), 1);
    assert_int_equal(count(4, after, "conv.weight_grad.placed"), 1);
    expect_near(4, before, after);
    memcpy(after, before, sizeof after);
    run(4, after, &bare, false);
    assert_int_equal(count(4, after, "conv.placed"), 0);
    memcpy(after, before, sizeof after);
    run(4, after, &gpu, true);
    assert_int_equal(count(4, after, "conv.placed") + count(4, after, "conv.input_grad.placed"), 0);
    expect_near(4, before, after);
  }
}

/* One gradient is as good as all. */
static void test_one_gradient(void **state) {
  (void)state;
  quern_tensor *x = data(4, rows[1].x, 1), *w = data(4, rows[1].w, 2);
  quern_tensor *y = quern_conv2d(x, w, NULL, &rows[1].options), *dy = data(4, y->dims, 3), *dw;
  EXPECT_OK(quern_vjp(1, &y, &dy, 1, &w, &dw));
  quern_tensor *after = dw;
  run(1, &after, &gpu, false);
  assert_int_equal(count(1, &after, "conv.weight_grad.placed"), 1);
  assert_int_equal(count(1, &after, "conv.input_grad.placed"), 0);
  expect_near(1, &dw, &after);
}

/* Products stay products; uneven padding and other dtypes are for generated code. */
static void test_left_alone(void **state) {
  (void)state;
  quern_tensor *x = data(4, (int64_t[]){2, 4, 5, 5}, 1), *one = data(4, (int64_t[]){6, 4, 1, 1}, 2),
               *three = data(4, (int64_t[]){6, 4, 3, 3}, 2);
  quern_conv_options uneven = OPTIONS(.pad_lo = {1, 0}, .pad_hi = {0, 0});
  quern_tensor *roots[] = {
      quern_conv2d(x, one, NULL, NULL), quern_conv2d(x, three, NULL, &uneven),
      quern_conv2d(quern_cast(x, QUERN_DTYPE_F64), quern_cast(three, QUERN_DTYPE_F64), NULL, NULL)};
  run(3, roots, &gpu, false);
  assert_int_equal(count(3, roots, "conv.placed"), 0);
}

/* Between two convolutions everything is computed with the channels last: no permute is left but of what comes in and goes out. */
static void test_channels_stay_last(void **state) {
  (void)state;
  quern_tensor *x = data(4, (int64_t[]){2, 8, 8, 8}, 1), *w = data(4, (int64_t[]){8, 8, 3, 3}, 2),
               *gain = data(1, (int64_t[]){8}, 3);
  quern_conv_options same = OPTIONS(.pad_lo = {1, 1}, .pad_hi = {1, 1});
  quern_batch_norm_options norm = {.size = sizeof norm, .train = true, .eps = 1e-5};
  quern_tensor *y = quern_conv2d(x, w, NULL, &same);
  for (int i = 0; i < 2; i++) {
    quern_tensor *z = quern_relu(quern_batch_norm(y, gain, gain, NULL, NULL, &norm, NULL, NULL));
    y = quern_add(quern_conv2d(z, w, NULL, &same), y);
  }
  quern_tensor *before = y, *after = y;
  struct ir_order order;
  int permuted = 0;
  run(1, &after, &gpu, false);
  EXPECT_OK(ir_topo(ctx, 1, &after, &order));
  for (size_t i = 0; i < order.n; i++)
    permuted += order.at[i]->op == IR_PERMUTE && ir_count(&order.at[i]->out[0]) == 1024;
  ir_order_fini(ctx, &order);
  assert_int_equal(permuted, 2); /* of x, and of the result */
  assert_int_equal(count(1, &after, "conv.placed"), 3);
  expect_near(1, &before, &after);
}

static void test_faults(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    quern_tensor *x = data(4, rows[1].x, 1), *w = data(4, rows[1].w, 2), *roots[3];
    quern_tensor *y = roots[0] = quern_conv2d(x, w, NULL, &rows[1].options), *from[] = {x, w};
    EXPECT_OK(quern_vjp(1, &y, &y, 2, from, roots + 1));
    struct pass_options options = {.target = &gpu, .supports = sched_supports};
    struct pass_graph graph = {ctx, 3, roots};
    struct pass_report reports[PASS_COUNT];
    EXPECT_OK(pass_options_parse(&options, 1, NULL));
    fault_begin(&fault);
    quern_status status = pass_run(&graph, &options, reports);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_placed), TEST(test_one_gradient), TEST(test_left_alone),
                                     TEST(test_channels_stay_last), TEST(test_faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
