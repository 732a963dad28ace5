/* tests/pass/test_passes.c -- passes one by one: what they change, and that values stay */
#include "unit.h"

#include "pass/pass_test.h"

#define INPUT(name, ...) quern_input(ctx, name, QUERN_DTYPE_F32, QUERN_LIST(__VA_ARGS__))
#define MAKE(op, attrs, ...) IR_MAKE(ctx, IR_##op, attrs, __VA_ARGS__)
#define ATTRS(...) (&(struct ir_attrs){__VA_ARGS__})

/* Runs one pass on a root. */
static quern_tensor *run_pass(enum pass_id pass, quern_tensor *t, struct pass_options options) {
  struct pass_graph graph = {ctx, 1, &t};
  struct pass_report reports[PASS_COUNT];
  EXPECT_OK(quern_context_check(ctx));
  for (int i = 0; i < PASS_COUNT; i++) options.on[i] = i == (int)pass;
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(ir_verify(ctx, 1, &t));
  return t;
}
#define RUN(PASS, t) run_pass(PASS_##PASS, (t), (struct pass_options){0})

static size_t count_op(quern_tensor *t, enum ir_op op) {
  struct ir_order order;
  size_t n = 0;
  EXPECT_OK(ir_topo(ctx, 1, &t, &order));
  for (size_t i = 0; i < order.n; i++) n += order.at[i]->op == op;
  ir_order_fini(ctx, &order);
  return n;
}

/* Both have the same values for random inputs; within `bound` of each other, bit by bit when it is 0. */
static void expect_same(quern_tensor *a, quern_tensor *b, double bound) {
  quern_tensor *both[] = {a, b};
  struct ir_order order;
  struct ir_binding leaves[32];
  size_t n = 0;
  assert_true(ir_same_type(a, b));
  EXPECT_OK(ir_topo(ctx, 2, both, &order));
  for (size_t i = 0; i < order.n; i++) {
    const quern_tensor *t = &order.at[i]->out[0];
    if (t->node->op != IR_INPUT && t->node->op != IR_STATE) continue;
    size_t count = (size_t)ir_count(t);
    double *reals = malloc((count + 1) * sizeof *reals);
    char *data = malloc(ir_bytes(t) + 1);
    test_fill(count, reals, t->node->id);
    for (size_t k = 0; k < count; k++) {
      double real = base_dtype_is(t->dtype, BASE_FLOAT) ? reals[k] : floor(reals[k] * 30);
      base_convert(t->dtype, data, k, QUERN_DTYPE_F64, &real, 0);
    }
    free(reals);
    assert_true(n < BASE_COUNT(leaves));
    leaves[n++] = (struct ir_binding){t, data};
  }
  ir_order_fini(ctx, &order);
  void *dst[] = {malloc(ir_bytes(a) + 1), malloc(ir_bytes(b) + 1)};
  EXPECT_OK(ir_eval(ctx, 2, both, dst, n, leaves));
  if (bound == 0) assert_true(pass_test_same(a, dst[0], dst[1]));
  for (size_t i = 0; bound > 0 && i < (size_t)ir_count(a); i++)
    assert_true(fabs(base_load_float(a->dtype, dst[0], i) - base_load_float(a->dtype, dst[1], i)) <= bound);
  for (size_t i = 0; i < n; i++) free((void *)(uintptr_t)leaves[i].data);
  free(dst[0]), free(dst[1]);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void test_options(void **state) {
  (void)state;
  struct pass_options options = {0};
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  for (int i = 0; i < PASS_COUNT; i++) assert_true(options.on[i]);
  EXPECT_OK(pass_options_parse(&options, 0, ""));
  for (int i = 0; i < PASS_COUNT; i++)
    assert_int_equal(options.on[i], i == PASS_INLINE || i == PASS_COL2IM || i == PASS_THIN_SUMS);
  EXPECT_OK(pass_options_parse(&options, 1, "-fuse,,-layout,+fuse,"));
  assert_true(options.on[PASS_FUSE]);
  assert_false(options.on[PASS_LAYOUT]);
  assert_true(options.on[PASS_CONSTANT_FOLDING]);
  EXPECT_OK(pass_options_parse(&options, 0, "+constant_folding"));
  assert_true(options.on[PASS_CONSTANT_FOLDING]);
  assert_false(options.on[PASS_FUSE]);
  EXPECT_ERROR(pass_options_parse(&options, 1, "-fusse"), INVALID,
               "there is no pass 'fusse' HINT: a list looks like \"-fuse");
  EXPECT_ERROR(pass_options_parse(&options, 1, "-fuse,-lay"), INVALID, "'lay'");
  EXPECT_ERROR(pass_options_parse(&options, 1, "fuse"), INVALID, "neither + nor -");
  EXPECT_ERROR(pass_options_parse(&options, 1, "-inline"), INVALID, "nothing runs without");
  for (int i = 0; i < PASS_COUNT; i++) assert_true(pass_table[i].name[0] != 0 && pass_table[i].description[0] != 0);
}

static void test_reports(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 4, 8), *y = quern_softmax(quern_mul_scalar(x, 1), -1);
  struct pass_graph graph = {ctx, 1, &y};
  struct pass_options options = {0};
  struct pass_report r[PASS_COUNT];
  EXPECT_OK(pass_options_parse(&options, 1, "-constant_folding"));
  EXPECT_OK(pass_run(&graph, &options, r));
  assert_true(r[PASS_INLINE].nodes_after > r[PASS_INLINE].nodes_before);
  assert_true(r[PASS_SIMPLIFY].nodes_after < r[PASS_SIMPLIFY].nodes_before);
  assert_true(r[PASS_SIMPLIFY].seconds > 0);
  assert_int_equal(r[PASS_CONSTANT_FOLDING].nodes_after, r[PASS_CONSTANT_FOLDING].nodes_before);
  assert_true(r[PASS_CONSTANT_FOLDING].seconds == 0);
}

/* Equal expressions are one node, and what no root reaches is not there: neither needs a pass. */
static void test_interning_and_reach(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 4), *y = INPUT("y", 4);
  quern_tensor *a = quern_mul(quern_add(x, y), quern_add(x, y)), *b = quern_mul(quern_add(y, x), quern_add(x, y));
  assert_ptr_equal(a, b);
  (void)quern_exp(a); /* used by nobody */
  struct pass_graph graph = {ctx, 1, &a};
  struct pass_options options = {0};
  struct pass_groups groups;
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  assert_int_equal(groups.groups.n, 1);
  assert_int_equal(groups.groups.at[0]->n_nodes, 2);
  pass_groups_fini(&groups);
}

/* ---- inline ------------------------------------------------------------------------------------------------------ */

static const quern_loop_options thrice = {.size = sizeof thrice, .trip = 3, .n_carries = 1};
static void twice_softmax(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_softmax(quern_softmax(args[1], -1), -1);
}

static void test_inline(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 4, 8), *dx;
  quern_tensor *y = quern_mish(quern_gelu(x));
  EXPECT_OK(quern_grad(quern_sum(y, QUERN_ALL, false), 1, &x, &dx));
  assert_true(count_op(dx, IR_COMPOSITE) > 0);
  quern_tensor *plain = RUN(INLINE, dx);
  assert_int_equal(count_op(plain, IR_COMPOSITE), 0);
  expect_same(dx, plain, 0);
}

static bool claims_gelu(const struct base_target *target, const struct ir_node *composite) {
  (void)target;
  return strcmp(composite->attrs->name, "gelu") == 0;
}

static void test_inline_keeps_claimed(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 4, 8), *y = quern_softmax(quern_gelu(x), -1);
  quern_tensor *z = run_pass(PASS_INLINE, y, (struct pass_options){.supports = claims_gelu});
  assert_int_equal(count_op(z, IR_COMPOSITE), 1);
  expect_same(y, z, 0);
}

static bool body_has(const struct ir_graph *graph, enum ir_op op) {
  for (int i = 0; i < graph->n_results; i++)
    if (count_op(graph->results[i], op) > 0) return true;
  return false;
}

static void test_inline_in_loops(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 4, 8), *y;
  EXPECT_OK(quern_loop(ctx, &thrice, &x, twice_softmax, NULL, &y));
  assert_int_equal(y->node->op, IR_LOOP);
  assert_true(body_has(y->node->attrs->body, IR_COMPOSITE));
  quern_tensor *plain = RUN(INLINE, y);
  assert_false(body_has(plain->node->attrs->body, IR_COMPOSITE));
  expect_same(y, plain, 0);
}

/* ---- fold -------------------------------------------------------------------------------------------------------- */

static quern_tensor *reals(int n, double first) {
  float at[64];
  for (int i = 0; i < n; i++) at[i] = (float)(first + 0.37 * i);
  return ir_make(ctx, IR_CONST, 0, NULL,
                 ATTRS(.dtype = QUERN_DTYPE_F32, .shape = IR_INTS(n), .data = {(size_t)n * sizeof *at, at}));
}

static void test_fold(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 4), *a = reals(4, 1), *b = reals(4, -2);
  quern_tensor *y = quern_add(x, quern_mul(quern_sub(a, b), quern_sqrt(a)));
  quern_tensor *z = RUN(CONSTANT_FOLDING, y);
  assert_int_equal(count_op(z, IR_CONST), 1);
  assert_int_equal(count_op(z, IR_MUL), 0);
  expect_same(y, z, 0);
  /* what devices approximate, and sums of floats, stay; integers and with numerics=fast they do not */
  quern_tensor *e = quern_add(x, quern_exp(a)), *s = quern_add(x, quern_sum(quern_mul(a, b), QUERN_ALL, false));
  assert_int_equal(count_op(RUN(CONSTANT_FOLDING, e), IR_EXP), 1);
  assert_int_equal(count_op(RUN(CONSTANT_FOLDING, s), IR_REDUCE), 1);
  assert_int_equal(count_op(run_pass(PASS_CONSTANT_FOLDING, e, (struct pass_options){.approximate = true}), IR_EXP), 0);
  assert_int_equal(count_op(run_pass(PASS_CONSTANT_FOLDING, s, (struct pass_options){.approximate = true}), IR_REDUCE),
                   0);
  quern_tensor *i = quern_cast(a, QUERN_DTYPE_I32), *sum = quern_sum(quern_mul(i, i), QUERN_ALL, false);
  assert_int_equal(RUN(CONSTANT_FOLDING, sum)->node->op, IR_CONST);
  expect_same(sum, RUN(CONSTANT_FOLDING, sum), 0);
  assert_int_equal(RUN(CONSTANT_FOLDING, quern_max(a, QUERN_ALL, false))->node->op, IR_CONST);
  /* a stretched constant stays what it is */
  quern_tensor *wide = quern_broadcast_to(quern_scalar(ctx, QUERN_DTYPE_F32, 2), QUERN_LIST(100, 100));
  assert_int_equal(RUN(CONSTANT_FOLDING, wide)->node->op, IR_BROADCAST);
  /* both results of a sort */
  quern_tensor *index, *sorted = quern_sort(b, 0, true, &index);
  assert_int_equal(RUN(CONSTANT_FOLDING, sorted)->node->op, IR_CONST);
  expect_same(index, RUN(CONSTANT_FOLDING, index), 0);
}

static void test_fold_leaves_random(void **state) {
  (void)state;
  quern_tensor *seed = quern_input(ctx, "seed", QUERN_DTYPE_U64, 0, NULL),
               *step = ir_const_int(ctx, QUERN_DTYPE_U64, 0);
  quern_tensor *r = MAKE(RANDOM, ATTRS(.shape = IR_INTS(4), .stream = 1), seed, step);
  assert_ptr_equal(RUN(CONSTANT_FOLDING, r), r);
}

/* ---- simplify ---------------------------------------------------------------------------------------------------- */

static void test_simplify(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 4, 8);
  quern_tensor *y = quern_neg(quern_neg(quern_mul_scalar(x, 1)));
  assert_ptr_equal(RUN(SIMPLIFY, y), x);
  quern_tensor *z = quern_add_scalar(x, 0); /* loses the sign of -0: only when asked for */
  assert_int_equal(count_op(RUN(SIMPLIFY, z), IR_ADD), 1);
  assert_ptr_equal(run_pass(PASS_SIMPLIFY, z, (struct pass_options){.approximate = true}), x);
}

/* ---- layout ------------------------------------------------------------------------------------------------------ */

static void test_layout(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 3, 4, 5), *y = INPUT("y", 3, 4, 5), *w = INPUT("w", 5, 6);
  int64_t axes[] = {1, 2, 0}, back[] = {2, 0, 1};
  quern_tensor *a = quern_permute(x, 3, axes), *b = quern_permute(y, 3, axes);
  /* alike permutes of all sources sink, and meet the one that undoes them */
  quern_tensor *t = quern_permute(quern_add(quern_exp(a), quern_mul_scalar(b, 3)), 3, back);
  quern_tensor *u = RUN(LAYOUT, t);
  assert_int_equal(count_op(u, IR_PERMUTE), 0);
  expect_same(t, u, 0);
  /* through slices, flips, pads and broadcasts */
  quern_tensor *s = quern_slice(a, 1, 1, 4, 2);
  s = quern_flip(s, 1, (int64_t[]){1});
  s = quern_pad(s, 3, (int64_t[]){1, 0, 2}, (int64_t[]){0, 1, 0}, 7);
  t = quern_permute(s, 3, back);
  u = RUN(LAYOUT, t);
  assert_int_equal(count_op(u, IR_PERMUTE), 0);
  expect_same(t, u, 0);
  /* reshapes of them through concatenations, where the axis is one of theirs */
  quern_tensor *h = INPUT("h", 2, 3, 4, 5), *g = INPUT("g", 2, 2, 4, 5);
  quern_tensor *parts[] = {quern_reshape(quern_permute(h, QUERN_LIST(0, 2, 1, 3)), QUERN_LIST(2, 4, 15)),
                           quern_reshape(quern_permute(g, QUERN_LIST(0, 2, 1, 3)), QUERN_LIST(2, 4, 10))};
  t = quern_concat(2, parts, 2);
  u = RUN(LAYOUT, t);
  assert_int_equal(u->node->op, IR_RESHAPE);
  assert_int_equal(u->node->src[0]->node->op, IR_CONCAT);
  expect_same(t, u, 0);
  t = quern_concat(2, (quern_tensor *[]){parts[0], parts[0]}, 1);
  u = RUN(LAYOUT, t);
  expect_same(t, u, 0);
  parts[1] = quern_reshape(quern_permute(g, QUERN_LIST(0, 2, 3, 1)), QUERN_LIST(2, 4, 10)); /* other widths */
  t = quern_concat(2, parts, 2);
  u = RUN(LAYOUT, t);
  assert_int_equal(u->node->op, IR_CONCAT);
  expect_same(t, u, 0);
  /* into a contraction */
  t = quern_matmul(quern_transpose(quern_transpose(x, 1, 2), 1, 2), w);
  u = RUN(LAYOUT, t);
  assert_int_equal(count_op(u, IR_PERMUTE), 0);
  expect_same(t, u, 0);
  /* the transpose of a contraction is the contraction the other way round, unless both are used */
  quern_tensor *m = INPUT("m", 7, 4), *k = INPUT("k", 4, 6), *dot = quern_matmul(m, k);
  t = quern_transpose(dot, 0, 1);
  u = RUN(LAYOUT, t);
  assert_int_equal(u->node->op, IR_DOT);
  expect_same(t, u, 0);
  t = quern_matmul(t, dot);
  u = RUN(LAYOUT, t);
  assert_int_equal(count_op(u, IR_DOT), 2);
  expect_same(t, u, 0);
}

/* Two reduced axes in another order would be summed in another order: that permute stays. */
/* On GPUs permutes also sink through windows, col2im, reshapes, concatenations, and beside what is stretched or lies otherwise. */
static void test_layout_on_gpus(void **state) {
  (void)state;
  static const struct base_target gpu = {.name = "sm_90", .gpu = true};
  const struct pass_options options = {.target = &gpu};
  const int64_t last[] = {0, 2, 3, 1}, two[] = {1, 1}, three[] = {3, 3}, grouped[] = {2, 2, 3, 5, 6};
  quern_tensor *x = INPUT("x", 2, 5, 6, 6), *y = INPUT("y", 2, 5, 6, 6), *bias = INPUT("bias", 6);
  quern_tensor *a = quern_permute(x, 4, (int64_t[]){0, 3, 1, 2}), *b = quern_permute(y, 4, (int64_t[]){0, 3, 1, 2});
  quern_tensor *other = INPUT("other", 2, 6, 5, 6);
  quern_tensor *windows = quern_window(a, 2, (int64_t[]){2, 3}, three, two, two);
  quern_tensor *folded = MAKE(COL2IM,
                              ATTRS(.shape = {4, (int64_t[]){2, 6, 5, 6}}, .axes = {2, (int64_t[]){2, 3}},
                                    .step = {2, two}, .dilate = {2, two}),
                              windows);
  quern_tensor *both[] = {a, b}, *channels = quern_reshape(bias, 3, (int64_t[]){6, 1, 1});
  const struct {
    quern_tensor *t;
    int permutes; /* beside the one that undoes them */
  } rows[] = {
      {quern_permute(quern_add(quern_mul(a, channels), b), 4, last), 0},
      {quern_permute(quern_max(windows, 2, (int64_t[]){4, 5}, false), 4, last), 0},
      {quern_permute(folded, 4, last), 0},
      {quern_permute(quern_concat(2, both, 1), 4, last), 0},
      {quern_permute(quern_reshape(a, 5, grouped), 5, (int64_t[]){0, 3, 4, 1, 2}), 0},
      {quern_permute(quern_add(a, other), 4, last), 1},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_tensor *u = run_pass(PASS_LAYOUT, rows[i].t, options);
    if ((int)count_op(u, IR_PERMUTE) != rows[i].permutes)
      fail_msg("row %zu has %zu permutes, not %d", i, count_op(u, IR_PERMUTE), rows[i].permutes);
    expect_same(rows[i].t, u, 0);
  }
  /* an axis that becomes one with another, which lies elsewhere, stays where it is */
  quern_tensor *t = quern_reshape(a, 3, (int64_t[]){2, 30, 6}), *u = run_pass(PASS_LAYOUT, t, options);
  expect_same(t, u, 0);
}

/* Of what is computed it becomes a sum of slices, in f32 where they are narrow; of what lies in memory, and of large windows, it stays. */
static void test_pooling(void **state) {
  (void)state;
  static const struct base_target gpu = {.name = "sm_90", .gpu = true}, cpu = {.name = "avx2"};
  const int64_t axes[] = {1, 2}, size[] = {3, 2}, step[] = {2, 1}, dilate[] = {1, 2}, dims[] = {2, 7, 6};
  quern_tensor *x = INPUT("x", 2, 7, 6), *wide = INPUT("wide", 2, 9, 9);
  struct ir_attrs fold = {.shape = {3, dims}, .axes = {2, axes}, .step = {2, step}, .dilate = {2, dilate}};
  quern_tensor *windows = quern_window(x, 2, axes, size, step, dilate);
  for (int narrow = 0; narrow < 2; narrow++) {
    quern_tensor *w = narrow ? quern_cast(windows, QUERN_DTYPE_BF16) : quern_mul(windows, windows);
    quern_tensor *t = IR_MAKE(ctx, IR_COL2IM, &fold, w),
                 *u = run_pass(PASS_POOLING, t, (struct pass_options){.target = &gpu});
    assert_int_equal(count_op(u, IR_COL2IM), 0);
    assert_int_equal(count_op(u, IR_PAD), 6);
    expect_same(t, u, narrow ? 0.05 : 1e-5);
    assert_ptr_equal(run_pass(PASS_POOLING, t, (struct pass_options){.target = &cpu}), t);
  }
  quern_tensor *there = IR_MAKE(ctx, IR_COL2IM, &fold, INPUT("w", 2, 3, 4, 3, 2));
  assert_ptr_equal(run_pass(PASS_POOLING, there, (struct pass_options){.target = &gpu}), there);
  const int64_t four[] = {4, 4}, one[] = {1, 1}, nine[] = {2, 9, 9};
  quern_tensor *many = quern_exp(quern_window(wide, 2, axes, four, one, one));
  struct ir_attrs large = {.shape = {3, nine}, .axes = {2, axes}, .step = {2, one}, .dilate = {2, one}};
  quern_tensor *stays = IR_MAKE(ctx, IR_COL2IM, &large, many);
  assert_ptr_equal(run_pass(PASS_POOLING, stays, (struct pass_options){.target = &gpu}), stays);
}

static void test_layout_keeps_the_order_of_sums(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 7, 9), *t = quern_sum(quern_transpose(x, 0, 1), QUERN_ALL, false);
  assert_int_equal(count_op(RUN(LAYOUT, t), IR_PERMUTE), 1);
  t = quern_max(quern_transpose(x, 0, 1), QUERN_ALL, false); /* of a maximum the order does not matter */
  assert_int_equal(count_op(RUN(LAYOUT, t), IR_PERMUTE), 0);
}

/* What is picked from a row is computed with the row. */
static void test_layout_of_gathers(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 6, 20), *labels = quern_input(ctx, "labels", QUERN_DTYPE_I8, QUERN_LIST(6, 1));
  quern_tensor *t = quern_take_along(quern_log_softmax(x, -1), labels, 1);
  t = RUN(INLINE, t);
  quern_tensor *u = RUN(LAYOUT, t);
  struct ir_order order;
  EXPECT_OK(ir_topo(ctx, 1, &u, &order));
  for (size_t i = 0; i < order.n; i++)
    if (order.at[i]->op == IR_GATHER) assert_ptr_equal(order.at[i]->src[0], x);
  ir_order_fini(ctx, &order);
  assert_int_equal(u->node->op, IR_SELECT);
  expect_same(t, u, 0); /* labels reach from -30 to 29: those outside give 0 */
  /* a gather of what does not depend on rows stays */
  quern_tensor *plain = quern_take_along(quern_exp(x), labels, 1);
  assert_ptr_equal(RUN(LAYOUT, plain), plain);
}

/* One index a row: a choice, whatever it is combined by. */
static void test_layout_of_scatters(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 6, 20), *u = INPUT("u", 6, 1);
  quern_tensor *labels = quern_input(ctx, "labels", QUERN_DTYPE_I8, QUERN_LIST(6, 1));
  for (int mode = 0; mode < 4; mode++) {
    quern_tensor *t = quern_scatter_along(x, labels, u, 1, (quern_scatter_mode)mode), *v = RUN(LAYOUT, t);
    assert_int_equal(count_op(t, IR_SCATTER), 1);
    assert_int_equal(count_op(v, IR_SCATTER), 0);
    expect_same(t, v, 0);
  }
  quern_tensor *two = quern_input(ctx, "two", QUERN_DTYPE_I8, QUERN_LIST(6, 2)), *more = INPUT("more", 6, 2);
  quern_tensor *t = quern_scatter_along(x, two, more, 1, (quern_scatter_mode)0);
  assert_int_equal(count_op(RUN(LAYOUT, t), IR_SCATTER), 1);
}

/* ---- batchnorm --------------------------------------------------------------------------------------------------- */

static quern_tensor *weights(struct ir_ints shape, double first) {
  size_t n = 1;
  for (int k = 0; k < shape.n; k++) n *= (size_t)shape.at[k];
  float *at = malloc(n * sizeof *at);
  for (size_t i = 0; i < n; i++) at[i] = (float)(first + 0.01 * (double)(i * 7 % 31));
  quern_tensor *t = quern_tensor_copy(ctx, QUERN_DTYPE_F32, shape.n, shape.at, at);
  free(at);
  return t;
}

static quern_tensor *conv_norm_relu(bool states, int64_t groups) {
  quern_tensor *x = INPUT("x", 2, 4, 6, 6), *w, *b, *gamma, *beta, *mean, *var;
  int64_t c = 6;
  w = weights(IR_INTS(c, 4 / groups, 3, 3), -0.1);
  b = weights(IR_INTS(c), 0.2);
  gamma = weights(IR_INTS(c), 0.7);
  beta = weights(IR_INTS(c), -0.3);
  mean = weights(IR_INTS(c), 0.1);
  var = states ? quern_state(ctx, "var", QUERN_DTYPE_F32, 1, &c) : weights(IR_INTS(c), 1);
  quern_conv_options conv = {.size = sizeof conv, .pad_lo = {1, 1}, .pad_hi = {1, 1}, .groups = groups};
  quern_batch_norm_options norm = {.size = sizeof norm, .eps = 1e-5};
  quern_tensor *y = quern_conv2d(x, w, b, &conv);
  y = quern_batch_norm(y, gamma, beta, mean, var, &norm, NULL, NULL);
  y = RUN(INLINE, quern_relu(y));
  return RUN(SIMPLIFY, y);
}

static void test_batchnorm(void **state) {
  (void)state;
  for (int64_t g = 1; g <= 2; g++) {
    quern_tensor *y = conv_norm_relu(false, g);
    assert_ptr_equal(RUN(BATCHNORM, y), y); /* only for inference */
    quern_tensor *z = run_pass(PASS_BATCHNORM, y, (struct pass_options){.inference = true});
    assert_int_equal(count_op(y, IR_SQRT), 1);
    assert_int_equal(count_op(z, IR_SQRT), 0);
    assert_int_equal(count_op(z, IR_MUL), 0);
    assert_int_equal(count_op(z, IR_ADD), 1);
    expect_same(y, z, 1e-4);
    struct pass_graph graph = {ctx, 1, &z};
    struct pass_options options = {0};
    struct pass_groups groups;
    EXPECT_OK(pass_options_parse(&options, 1, NULL));
    EXPECT_OK(pass_fuse(&groups, &graph, &options));
    assert_int_equal(groups.groups.n, 1);
    assert_int_equal(groups.groups.at[0]->kind, PASS_KIND_DOT);
    pass_groups_fini(&groups);
  }
}

/* Statistics that a program keeps: the steps stay, behind the contraction in its kernel. */
static void test_batchnorm_of_states(void **state) {
  (void)state;
  quern_tensor *y = conv_norm_relu(true, 1), *z = run_pass(PASS_BATCHNORM, y, (struct pass_options){.inference = true});
  assert_ptr_equal(y, z);
  struct pass_graph graph = {ctx, 1, &z};
  struct pass_options options = {0};
  struct pass_groups groups;
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  struct pass_counts counts = pass_test_count(&groups);
  assert_int_equal(counts.kinds[PASS_KIND_DOT], 1);
  assert_int_equal(counts.kernels, 2); /* the factors, six numbers, are computed before */
  pass_groups_fini(&groups);
}

/* ---- split, and a pass that is wrong ----------------------------------------------------------------------------- */

static void test_split(void **state) {
  (void)state;
  enum { MANY = 1000 };
  static quern_tensor *parts[MANY];
  quern_tensor *x = INPUT("x", 3, 2);
  for (int i = 0; i < MANY; i++) parts[i] = quern_mul_scalar(x, i);
  quern_tensor *y = quern_concat(MANY, parts, 1), *z = RUN(FUSE, y);
  struct ir_order order;
  EXPECT_OK(ir_topo(ctx, 1, &z, &order));
  for (size_t i = 0; i < order.n; i++) assert_true(order.at[i]->n_src <= 128);
  ir_order_fini(ctx, &order);
  expect_same(y, z, 0);
}

/* The comparison that all of these tests rest on notices a wrong bit. */
static void test_planted_pass(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 5), *y = quern_sub(x, x), *zero = quern_mul_scalar(x, 0);
  quern_tensor *both[] = {y, zero};
  float at[] = {1, -1, 0, -2, 3}, out[2][5];
  void *dst[] = {out[0], out[1]};
  EXPECT_OK(ir_eval(ctx, 2, both, dst, 1, &(struct ir_binding){x, at}));
  assert_false(pass_test_same(y, dst[0], dst[1])); /* -0 where x is negative */
  struct pass_graph graph = {ctx, 1, &y};
  struct pass_options options = {0};
  struct pass_groups groups;
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_test_run(&groups, &graph, 1, &(struct ir_binding){x, at}, &dst[0]));
  EXPECT_ERROR(pass_test_run(&groups, &graph, 1, &(struct ir_binding){x, at}, &dst[1]), INTERNAL, "other bits");
  pass_groups_fini(&groups);
}

static quern_tensor *transposed_convolution(void) {
  quern_conv_options options = {.size = sizeof options, .stride = {2}, .pad_lo = {1}};
  return quern_conv_transpose1d(INPUT("c", 2, 3, 5), INPUT("k", 3, 2, 3), NULL, &options);
}

static void test_faults(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    quern_tensor *x = INPUT("x", 4, 8), *labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(4)), *looped;
    EXPECT_OK(quern_loop(ctx, &thrice, &x, twice_softmax, NULL, &looped));
    quern_tensor *w = weights(IR_INTS(6, 8), 0.1), *f = weights(IR_INTS(6), 1);
    quern_tensor *roots[] = {looped, quern_cross_entropy(x, labels, NULL),
                             quern_mul(quern_linear(x, w, NULL), quern_add(f, quern_mul_scalar(f, 2))),
                             quern_transpose(quern_exp(quern_transpose(x, 0, 1)), 0, 1), transposed_convolution()};
    struct pass_graph graph = {ctx, BASE_COUNT(roots), roots};
    struct pass_options options = {.inference = true, .approximate = true};
    struct pass_report reports[PASS_COUNT];
    EXPECT_OK(quern_context_check(ctx));
    EXPECT_OK(pass_options_parse(&options, 1, NULL));
    fault_begin(&fault);
    quern_status status = pass_run(&graph, &options, reports);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_options),
      TEST(test_reports),
      TEST(test_interning_and_reach),
      TEST(test_inline),
      TEST(test_inline_keeps_claimed),
      TEST(test_inline_in_loops),
      TEST(test_fold),
      TEST(test_fold_leaves_random),
      TEST(test_simplify),
      TEST(test_layout),
      TEST(test_layout_on_gpus),
      TEST(test_pooling),
      TEST(test_layout_keeps_the_order_of_sums),
      TEST(test_layout_of_gathers),
      TEST(test_layout_of_scatters),
      TEST(test_batchnorm),
      TEST(test_batchnorm_of_states),
      TEST(test_split),
      TEST(test_planted_pass),
      TEST(test_faults),
  };
  return cmocka_run_group_tests_name("pass/passes", tests, NULL, NULL);
}
