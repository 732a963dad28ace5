/* tests/pass/test_col2im.c -- overlap-adds of products become convolutions, weight gradients of depthwise ones partial sums:
** where, and with the same values
** Elements are small integers, so that sums in any order are equal.
*/
#include "unit.h"

#include "pass/pass_test.h"

enum { MOST = 3 };

struct geometry {
  int spatial;
  int64_t n, in, out, groups, size[MOST], k[MOST];
  quern_conv_options options;
};

/* Runs inline, simplify and col2im, or without the last. */
static quern_tensor *compile(quern_tensor *t, bool with) {
  struct pass_graph graph = {ctx, 1, &t};
  struct pass_report reports[PASS_COUNT];
  struct pass_options options = {0};
  EXPECT_OK(quern_context_check(ctx));
  options.on[PASS_INLINE] = options.on[PASS_SIMPLIFY] = true;
  options.on[PASS_COL2IM] = options.on[PASS_THIN_SUMS] = with;
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(ir_verify(ctx, 1, &t));
  return t;
}

static size_t count_op(quern_tensor *t, enum ir_op op) {
  struct ir_order order;
  size_t n = 0;
  EXPECT_OK(ir_topo(ctx, 1, &t, &order));
  for (size_t i = 0; i < order.n; i++) n += order.at[i]->op == op;
  ir_order_fini(ctx, &order);
  return n;
}

/* Small integers for every input. */
static void expect_equal(quern_tensor *a, quern_tensor *b) {
  quern_tensor *both[] = {a, b};
  struct ir_order order;
  struct ir_binding leaves[4];
  size_t n = 0, count = (size_t)ir_count(a);
  assert_true(ir_same_type(a, b));
  EXPECT_OK(ir_topo(ctx, 2, both, &order));
  for (size_t i = 0; i < order.n; i++) {
    const quern_tensor *t = &order.at[i]->out[0];
    if (t->node->op != IR_INPUT) continue;
    double *data = malloc(ir_bytes(t) + 8);
    for (size_t k = 0; k < (size_t)ir_count(t); k++) data[k] = (double)((k * 7 + k / 5 + n * 3) % 11) - 5;
    assert_true(n < BASE_COUNT(leaves));
    leaves[n++] = (struct ir_binding){t, data};
  }
  ir_order_fini(ctx, &order);
  double *dst[] = {malloc(ir_bytes(a) + 8), malloc(ir_bytes(a) + 8)};
  EXPECT_OK(ir_eval(ctx, 2, both, (void *const *)dst, n, leaves));
  for (size_t i = 0; i < count; i++) assert_true(dst[0][i] == dst[1][i]);
  for (size_t i = 0; i < n; i++) free((void *)(uintptr_t)leaves[i].data);
  free(dst[0]), free(dst[1]);
}

static quern_tensor *input(const char *name, int64_t n, int64_t channels, int spatial, const int64_t *dims) {
  int64_t all[2 + MOST] = {n, channels};
  for (int i = 0; i < spatial; i++) all[2 + i] = dims[i];
  return quern_input(ctx, name, QUERN_DTYPE_F64, 2 + spatial, all);
}

/* The input gradient of a convolution. */
static quern_tensor *input_gradient(const struct geometry *g) {
  quern_tensor *(*conv[])(quern_tensor *, quern_tensor *, quern_tensor *,
                          const quern_conv_options *) = {quern_conv1d, quern_conv2d, quern_conv3d};
  quern_tensor *x = input("x", g->n, g->in, g->spatial, g->size);
  quern_tensor *w = input("w", g->out, g->in / g->groups, g->spatial, g->k);
  quern_tensor *y = conv[g->spatial - 1](x, w, NULL, &g->options), *dx = NULL;
  EXPECT_OK(quern_context_check(ctx));
  quern_tensor *dy = quern_input(ctx, "dy", QUERN_DTYPE_F64, y->rank, y->dims);
  EXPECT_OK(quern_vjp(1, &y, &dy, 1, &x, &dx));
  return dx;
}

static quern_tensor *transposed(const struct geometry *g) {
  quern_tensor *(*conv[])(quern_tensor *, quern_tensor *, quern_tensor *, const quern_conv_options *) = {
      quern_conv_transpose1d, quern_conv_transpose2d, quern_conv_transpose3d};
  quern_tensor *x = input("x", g->n, g->in, g->spatial, g->size);
  quern_tensor *w = input("w", g->in, g->out / g->groups, g->spatial, g->k);
  return conv[g->spatial - 1](x, w, NULL, &g->options);
}

static struct geometry make(int spatial, int64_t n, int64_t in, int64_t out, int64_t groups, int64_t size, int64_t k,
                            int64_t stride, int64_t dilation) {
  struct geometry g = {.spatial = spatial, .n = n, .in = in, .out = out, .groups = groups};
  g.options = (quern_conv_options){.size = sizeof g.options, .groups = groups};
  for (int i = 0; i < spatial; i++) {
    g.size[i] = size + i, g.k[i] = k;
    g.options.stride[i] = stride, g.options.dilation[i] = dilation;
  }
  return g;
}

/* Both the gradient and the transposed convolution have the values they had, with so many products or with columns. */
static void expect_products(const struct geometry *g, size_t products) {
  for (int i = 0; i < 2; i++) {
    quern_tensor *y = i == 0 ? input_gradient(g) : transposed(g);
    quern_tensor *before = compile(y, false), *after = compile(y, true);
    size_t columns = count_op(before, IR_COL2IM); /* none where windows lie side by side: a rule moves their elements */
    assert_true(columns == 1 || (columns == 0 && products == 0));
    assert_int_equal(count_op(after, IR_COL2IM), products == 0 ? columns : 0);
    if (products > 0) assert_int_equal(count_op(after, IR_DOT), products);
    expect_equal(before, after);
  }
}

static void test_strides_and_dilations(void **state) {
  (void)state;
  for (int spatial = 1; spatial <= 3; spatial++)
    for (int64_t stride = 1; stride <= 3; stride++)
      for (int64_t dilation = 1; dilation <= 3; dilation++) {
        struct geometry g = make(spatial, 2, 3, 2, 1, 7, 3, stride, dilation);
        bool overlaps = dilation * 2 >= stride;
        size_t classes = 1, each = (size_t)(stride == dilation ? 1 : stride);
        for (int i = 0; i < spatial; i++) classes *= each;
        for (int i = 0; i < spatial; i++) g.options.pad_lo[i] = g.options.pad_hi[i] = dilation;
        expect_products(&g, overlaps ? classes : 0);
      }
}

static void test_groups(void **state) {
  (void)state;
  for (int64_t groups = 1; groups <= 6; groups++)
    for (int64_t stride = 1; stride <= 2; stride++) {
      if (6 % groups != 0) continue;
      struct geometry g = make(2, 2, 6, 6, groups, 6, 3, stride, 1);
      g.options.pad_lo[0] = g.options.pad_lo[1] = 1;
      bool thin = 6 / groups * (6 / groups) <= 4; /* zeros between the positions, and one convolution */
      expect_products(&g, stride == 1 || thin ? 1 : 4);
    }
}

/* Padding that differs from end to end and from axis to axis, and may be larger than the window; output_pad. */
static void test_padding(void **state) {
  (void)state;
  for (int64_t lo = 0; lo <= 4; lo++)
    for (int64_t hi = 0; hi <= 3; hi++)
      for (int64_t stride = 1; stride <= 2; stride++) {
        struct geometry g = make(2, 1, 2, 3, 1, 6, 3, stride, 1);
        g.options.pad_lo[0] = lo, g.options.pad_hi[0] = hi, g.options.pad_lo[1] = hi;
        quern_tensor *dx = input_gradient(&g), *after = compile(dx, true);
        assert_int_equal(count_op(after, IR_COL2IM), 0);
        expect_equal(compile(dx, false), after);
        for (int64_t more = 0; more < stride; more++) {
          g.options.output_pad[0] = g.options.output_pad[1] = more;
          quern_tensor *y = transposed(&g);
          after = compile(y, true);
          assert_int_equal(count_op(after, IR_COL2IM), 0);
          expect_equal(compile(y, false), after);
        }
      }
}

/* Axes of one position, and windows of one place. */
static void test_units(void **state) {
  (void)state;
  struct geometry g = make(2, 1, 3, 2, 1, 5, 3, 1, 1);
  g.k[1] = 1;
  expect_products(&g, 1);
  g.k[0] = 1, g.k[1] = 3;
  expect_products(&g, 1);
  g = make(2, 1, 1, 1, 1, 5, 3, 1, 1);
  expect_products(&g, 1);
  g.size[0] = 1, g.options.pad_lo[0] = g.options.pad_hi[0] = 1; /* three places, one position */
  expect_products(&g, 1);
}

/* Columns stay where windows do not overlap, and where convolutions would have much more to compute. */
static void test_stays(void **state) {
  (void)state;
  struct geometry g = make(2, 1, 3, 2, 1, 8, 2, 2, 1);
  expect_products(&g, 0);
  g = make(1, 1, 3, 2, 1, 17, 16, 1, 1);
  quern_tensor *dx = input_gradient(&g);
  assert_int_equal(count_op(compile(dx, true), IR_COL2IM), 1);
}

/* The halves of a concatenation's gradient share one convolution. */
static void test_channels_are_sliced(void **state) {
  (void)state;
  struct geometry g = make(2, 1, 4, 3, 1, 6, 3, 1, 1);
  g.options.pad_lo[0] = g.options.pad_lo[1] = g.options.pad_hi[0] = g.options.pad_hi[1] = 1;
  quern_tensor *dx = input_gradient(&g);
  const int64_t lo[] = {0, 1, 0, 0}, hi[] = {1, 3, 6, 7}, one[] = {1, 1, 1, 1};
  struct ir_attrs attrs = {.lo = {4, lo}, .hi = {4, hi}, .step = {4, one}};
  quern_tensor *part = IR_MAKE(ctx, IR_SLICE, &attrs, dx),
               *after = compile(quern_concat(2, (quern_tensor *[]){part, dx}, 1), true);
  assert_int_equal(count_op(after, IR_DOT), 1);
  assert_int_equal(count_op(after, IR_COL2IM), 0);
  expect_equal(quern_concat(2, (quern_tensor *[]){part, dx}, 1), after);
}

/* The weight gradient of a depthwise convolution of n samples of that size: how many axes are summed afterwards. */
static void expect_thin(int64_t n, int64_t groups, int64_t each, int64_t size, int64_t stride, int summed) {
  struct geometry g = make(2, n, groups * each, groups * each, groups, size, 3, stride, 1);
  g.options.pad_lo[0] = g.options.pad_hi[1] = 1;
  quern_tensor *x = input("x", g.n, g.in, 2, g.size), *w = input("w", g.out, each, 2, g.k), *dw = NULL;
  quern_tensor *y = quern_conv2d(x, w, NULL, &g.options), *dy = quern_input(ctx, "dy", QUERN_DTYPE_F64, 4, y->dims);
  EXPECT_OK(quern_vjp(1, &y, &dy, 1, &w, &dw));
  quern_tensor *before = compile(dw, false), *after = compile(dw, true);
  struct ir_order order;
  int axes = 0;
  EXPECT_OK(ir_topo(ctx, 1, &after, &order));
  for (size_t i = 0; i < order.n; i++) axes += order.at[i]->op == IR_REDUCE ? order.at[i]->attrs->axes.n : 0;
  ir_order_fini(ctx, &order);
  assert_int_equal(axes, summed);
  expect_equal(before, after);
}

static void test_thin_sums(void **state) {
  (void)state;
  expect_thin(2, 3, 1, 7, 1, 1);
  expect_thin(3, 2, 1, 9, 2, 1);
  expect_thin(30, 2, 1, 24, 1, 2); /* more terms than a block: samples are summed afterwards as well */
  expect_thin(2, 2, 2, 7, 1, 0);   /* more sums than registers */
  expect_thin(1, 2, 1, 4, 1, 0);   /* few terms */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_strides_and_dilations), TEST(test_groups),    TEST(test_padding), TEST(test_units), TEST(test_stays),
      TEST(test_channels_are_sliced),   TEST(test_thin_sums),
  };
  return cmocka_run_group_tests_name("pass/col2im", tests, NULL, NULL);
}
