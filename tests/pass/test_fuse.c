/* tests/pass/test_fuse.c -- which groups fusion makes: of common operations, composite and by hand; of whole models
** Every case is also verified and run group by group, and compared bit by bit with the graph.
*/
#include "unit.h"

#include "gpt2.h"
#include "pass/pass_test.h"

enum { N = 12, C = 40, D = 24 };

#define INPUT(name, ...) quern_input(ctx, name, QUERN_DTYPE_F32, QUERN_LIST(__VA_ARGS__))
#define LAST ((int64_t[]){1})
#define FIRST ((int64_t[]){0})
#define SCALAR(x) quern_scalar(ctx, QUERN_DTYPE_F32, (x))

/* ---- cases: composites, and the same by hand --------------------------------------------------------------------- */

/* The operands of all cases; new ones with each context. */
static struct { quern_tensor *x, *y, *gamma, *beta, *weight, *bias, *labels, *mask, *dy, *step; } in;

static void make_inputs(void) {
  in.x = INPUT("x", N, C);
  in.y = INPUT("y", N, C);
  in.gamma = INPUT("gamma", C);
  in.beta = INPUT("beta", C);
  in.weight = INPUT("weight", D, C);
  in.bias = INPUT("bias", D);
  in.labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(N));
  in.mask = quern_input(ctx, "mask", QUERN_DTYPE_BOOL, QUERN_LIST(N, C));
  in.dy = INPUT("dy", N, C);
  in.step = quern_input(ctx, "step", QUERN_DTYPE_F32, 0, NULL);
}

typedef quern_tensor *make_one(quern_tensor *x);

static quern_tensor *softmax(quern_tensor *x) { return quern_softmax(x, -1); }
static quern_tensor *softmax_by_hand(quern_tensor *x) {
  quern_tensor *e = quern_exp(quern_sub(x, quern_stop_gradient(quern_max(x, 1, LAST, true))));
  return quern_div(e, quern_sum(e, 1, LAST, true));
}
static quern_tensor *columns(quern_tensor *x) { return quern_softmax(x, 0); }
static quern_tensor *columns_by_hand(quern_tensor *x) {
  quern_tensor *e = quern_exp(quern_sub(x, quern_stop_gradient(quern_max(x, 1, FIRST, true))));
  return quern_div(e, quern_sum(e, 1, FIRST, true));
}
static quern_tensor *log_softmax(quern_tensor *x) { return quern_log_softmax(x, -1); }
static quern_tensor *log_softmax_by_hand(quern_tensor *x) {
  quern_tensor *z = quern_sub(x, quern_stop_gradient(quern_max(x, 1, LAST, true)));
  return quern_sub(z, quern_log(quern_sum(quern_exp(z), 1, LAST, true)));
}
static quern_tensor *layer_norm(quern_tensor *x) { return quern_layer_norm(x, 1, in.gamma, in.beta, 1e-5); }
static quern_tensor *layer_norm_by_hand(quern_tensor *x) {
  quern_tensor *d = quern_sub(x, quern_mean(x, 1, LAST, true));
  quern_tensor *var = quern_mean(quern_mul(d, d), 1, LAST, true);
  return quern_add(quern_mul(quern_div(d, quern_sqrt(quern_add_scalar(var, 1e-5))), in.gamma), in.beta);
}
static quern_tensor *rms_norm(quern_tensor *x) { return quern_rms_norm(x, 1, in.gamma, 1e-5); }
static quern_tensor *rms_norm_by_hand(quern_tensor *x) {
  quern_tensor *mean = quern_mean(quern_mul(x, x), 1, LAST, true);
  return quern_mul(quern_div(x, quern_sqrt(quern_add_scalar(mean, 1e-5))), in.gamma);
}
static quern_tensor *cross_entropy(quern_tensor *x) { return quern_cross_entropy(x, in.labels, NULL); }
static quern_tensor *cross_entropy_by_hand(quern_tensor *x) {
  quern_tensor *log_p = log_softmax_by_hand(x);
  quern_tensor *index = quern_unsqueeze(quern_cast(in.labels, QUERN_DTYPE_I64), -1);
  return quern_neg(quern_mean(quern_take_along(log_p, index, 1), QUERN_ALL, false));
}
static quern_tensor *gelu(quern_tensor *x) { return quern_gelu(x); }
static quern_tensor *gelu_by_hand(quern_tensor *x) {
  return quern_mul(quern_mul_scalar(x, 0.5), quern_add_scalar(quern_erf(quern_mul_scalar(x, 0.7071067811865476)), 1));
}
static quern_tensor *linear(quern_tensor *x) { return quern_linear(x, in.weight, in.bias); }
static quern_tensor *linear_by_hand(quern_tensor *x) {
  return quern_add(quern_matmul(x, quern_transpose(in.weight, 0, 1)), in.bias);
}
static quern_tensor *linear_gelu(quern_tensor *x) { return quern_gelu(linear(x)); }
static quern_tensor *linear_gelu_by_hand(quern_tensor *x) { return gelu_by_hand(linear_by_hand(x)); }
static quern_tensor *linear_relu(quern_tensor *x) { return quern_relu(linear(x)); }
static quern_tensor *linear_relu_by_hand(quern_tensor *x) { return quern_maximum(linear_by_hand(x), SCALAR(0)); }
static quern_tensor *norm_linear(quern_tensor *x) { return linear(layer_norm(x)); }
static quern_tensor *norm_linear_by_hand(quern_tensor *x) { return linear_by_hand(layer_norm_by_hand(x)); }
static quern_tensor *residual_norm(quern_tensor *x) { return layer_norm(quern_add(x, in.y)); }
static quern_tensor *residual_norm_by_hand(quern_tensor *x) { return layer_norm_by_hand(quern_add(x, in.y)); }
static quern_tensor *masked(quern_tensor *x) { return quern_where(in.mask, x, SCALAR(-1e30)); }
static quern_tensor *masked_softmax(quern_tensor *x) { return softmax(masked(x)); }
static quern_tensor *masked_softmax_by_hand(quern_tensor *x) { return softmax_by_hand(masked(x)); }

static const quern_conv_options padded = {.size = sizeof padded, .pad_lo = {1, 1}, .pad_hi = {1, 1}};
static quern_tensor *conv_relu(quern_tensor *x) {
  quern_tensor *image = quern_reshape(x, QUERN_LIST(1, 4, 12, 10)), *w = INPUT("cw", 8, 4, 3, 3), *b = INPUT("cb", 8);
  return quern_relu(quern_conv2d(image, w, b, &padded));
}
static quern_tensor *conv_relu_by_hand(quern_tensor *x) {
  quern_tensor *image = quern_reshape(x, QUERN_LIST(1, 4, 12, 10)), *w = INPUT("cw", 8, 4, 3, 3),
               *b = INPUT("cb", 8, 1, 1);
  image = quern_pad(image, 4, (int64_t[]){0, 0, 1, 1}, (int64_t[]){0, 0, 1, 1}, 0);
  image = quern_window(image, 2, (int64_t[]){2, 3}, (int64_t[]){3, 3}, (int64_t[]){1, 1}, (int64_t[]){1, 1});
  quern_tensor *y = quern_einsum("ncyxhw,ochw->noyx", 2, (quern_tensor *[]){image, w});
  return quern_maximum(quern_add(y, b), SCALAR(0));
}

static const struct pattern {
  const char *name;
  make_one *composite, *by_hand;
  size_t map, reduce, dot, scan; /* kernels */
  size_t back;                   /* of the gradient by x; 0: not of interest */
} patterns[] = {
    {"softmax", softmax, softmax_by_hand, 0, 1, 0, 0, 1},
    {"softmax of columns", columns, columns_by_hand, 0, 1, 0, 0, 1},
    {"log_softmax", log_softmax, log_softmax_by_hand, 0, 1, 0, 0, 1},
    {"layer_norm", layer_norm, layer_norm_by_hand, 0, 1, 0, 0, 1},
    {"rms_norm", rms_norm, rms_norm_by_hand, 0, 1, 0, 0, 1},
    {"cross_entropy", cross_entropy, cross_entropy_by_hand, 0, 2, 0, 0, 1},
    {"gelu", gelu, gelu_by_hand, 1, 0, 0, 0, 1},
    {"linear", linear, linear_by_hand, 0, 0, 1, 0, 0},
    {"linear + gelu", linear_gelu, linear_gelu_by_hand, 0, 0, 1, 0, 0},
    {"linear + relu", linear_relu, linear_relu_by_hand, 0, 0, 1, 0, 0},
    {"convolution + bias + relu", conv_relu, conv_relu_by_hand, 0, 0, 1, 0, 0},
    {"layer_norm + linear", norm_linear, norm_linear_by_hand, 0, 1, 1, 0, 0},
    {"residual + layer_norm", residual_norm, residual_norm_by_hand, 0, 1, 0, 0, 1},
    {"mask + softmax", masked_softmax, masked_softmax_by_hand, 0, 1, 0, 0, 1},
};

/* ---- judging ----------------------------------------------------------------------------------------------------- */

/* The groups of roots after all passes, verified. */
static void fuse(struct pass_groups *groups, struct pass_graph *graph, const char *list) {
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  EXPECT_OK(quern_context_check(ctx));
  EXPECT_OK(pass_options_parse(&options, 1, list));
  EXPECT_OK(pass_run(graph, &options, reports));
  EXPECT_OK(pass_fuse(groups, graph, &options));
  EXPECT_OK(pass_groups_verify(groups, graph));
}

/* Random leaves, and what the roots are made from them. */
static void expect_values(const struct pass_groups *groups, const struct pass_graph *graph) {
  struct ir_order order;
  EXPECT_OK(ir_topo(ctx, graph->n_roots, graph->roots, &order));
  struct ir_binding leaves[64];
  size_t n = 0;
  for (size_t i = 0; i < order.n; i++) {
    const quern_tensor *t = &order.at[i]->out[0];
    if (order.at[i]->op != IR_INPUT && order.at[i]->op != IR_STATE) continue;
    size_t count = (size_t)ir_count(t);
    double *reals = malloc(count * sizeof *reals);
    char *data = malloc(ir_bytes(t) + 1);
    test_fill(count, reals, t->node->id);
    for (size_t k = 0; k < count; k++) {
      double real = base_dtype_is(t->dtype, BASE_INT) ? fabs(reals[k]) * 20 : reals[k];
      if (t->dtype == QUERN_DTYPE_BOOL) real = real > 0;
      base_convert(t->dtype, data, k, QUERN_DTYPE_F64, &real, 0);
    }
    free(reals);
    assert_true(n < BASE_COUNT(leaves));
    leaves[n++] = (struct ir_binding){t, data};
  }
  ir_order_fini(ctx, &order);
  void **expected = calloc(graph->n_roots, sizeof *expected);
  for (size_t i = 0; i < graph->n_roots; i++) expected[i] = malloc(ir_bytes(graph->roots[i]) + 1);
  EXPECT_OK(ir_eval(ctx, graph->n_roots, graph->roots, expected, n, leaves));
  EXPECT_OK(pass_test_run(groups, graph, n, leaves, expected));
  for (size_t i = 0; i < graph->n_roots; i++) free(expected[i]);
  for (size_t i = 0; i < n; i++) free((void *)(uintptr_t)leaves[i].data);
  free(expected);
}

static void expect_kernels(const char *name, const char *form, const struct pass_groups *groups, size_t kernels) {
  struct pass_counts counts = pass_test_count(groups);
  if (counts.kernels == kernels) return;
  struct base_str str;
  base_str_init(&str, &ctx->heap);
  EXPECT_OK(pass_groups_print(&str, groups));
  print_error("%s %s: %zu kernels, expected %zu\n%s", name, form, counts.kernels, kernels, str.at);
  base_str_fini(&str);
  fail();
}

static void test_patterns(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(patterns); i++) {
    const struct pattern *p = &patterns[i];
    make_one *const makers[] = {p->composite, p->by_hand};
    for (size_t k = 0; k < BASE_COUNT(makers); k++) {
      test_renew();
      make_inputs();
      quern_tensor *y = makers[k](in.x);
      struct pass_graph graph = {ctx, 1, &y};
      struct pass_groups groups;
      fuse(&groups, &graph, "");
      expect_kernels(p->name, k == 0 ? "" : "by hand", &groups, p->map + p->reduce + p->dot + p->scan);
      struct pass_counts counts = pass_test_count(&groups);
      assert_int_equal(counts.kinds[PASS_KIND_MAP], p->map);
      assert_int_equal(counts.kinds[PASS_KIND_REDUCE], p->reduce);
      assert_int_equal(counts.kinds[PASS_KIND_DOT], p->dot);
      expect_values(&groups, &graph);
      for (size_t g = 0; g < groups.groups.n; g++) {
        const struct pass_group *group = groups.groups.at[g];
        assert_true(group->speedup >= group->threshold && group->threshold >= 1);
      }
      pass_groups_fini(&groups);
    }
  }
}

/* Backward: the gradient by x is one kernel more at most; dy comes from outside. */
static void test_gradients(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(patterns); i++) {
    const struct pattern *p = &patterns[i];
    make_one *const makers[] = {p->composite, p->by_hand};
    for (size_t k = 0; k < BASE_COUNT(makers) && p->back > 0; k++) {
      test_renew();
      make_inputs();
      quern_tensor *y = makers[k](in.x), *dx, *dy = ir_same_shape(y, in.dy) ? in.dy : SCALAR(1);
      EXPECT_OK(quern_vjp(1, &y, &dy, 1, &in.x, &dx));
      struct pass_graph graph = {ctx, 1, &dx};
      struct pass_groups groups;
      fuse(&groups, &graph, "");
      expect_kernels(p->name, k == 0 ? "backward" : "by hand, backward", &groups, p->back);
      expect_values(&groups, &graph);
      pass_groups_fini(&groups);
    }
  }
}

/* dx of the rows in one kernel, and the sums over rows for gamma and beta together in another. */
static void test_norm_parameters(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *y = layer_norm(in.x), *wanted[] = {in.x, in.gamma, in.beta}, *d[3];
  EXPECT_OK(quern_vjp(1, &y, &in.dy, 3, wanted, d));
  struct pass_graph graph = {ctx, 3, d};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  expect_kernels("layer_norm", "backward with parameters", &groups, 2);
  const struct pass_group *columns_of = groups.groups.at[1];
  assert_int_equal(columns_of->kind, PASS_KIND_REDUCE);
  assert_int_equal(columns_of->n_stages, 2);
  assert_int_equal(columns_of->space->extents.at[0], C);
  assert_int_equal(columns_of->space->extents.at[1], N);
  for (size_t i = 0; i < groups.groups.at[0]->n_outs; i++) /* statistics and dx only: nothing of (N, C) for the other */
    assert_true(ir_count(groups.groups.at[0]->outs[i].tensor) == N ||
                groups.groups.at[0]->outs[i].tensor == graph.roots[0]);
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

/* What is kept ends a kernel, once: no copy of it, and none of leaves; also where nothing is fused, and in -simplify. */
/* A reshape of something permuted is computed over the variables of that: no index is divided. What is put together and read by
** several is written once. */
static void test_moves(void **state) {
  (void)state;
  quern_tensor *x = INPUT("heads", 2, 3, 4, 8), *z = INPUT("more", 2, 3, 4, 8);
  quern_tensor *y = quern_reshape(quern_permute(x, QUERN_LIST(0, 2, 1, 3)), QUERN_LIST(2, 4, 24));
  struct pass_graph graph = {ctx, 1, &y};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  assert_int_equal(groups.groups.n, 1);
  assert_int_equal(groups.groups.at[0]->space->extents.n, 4);
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
  quern_tensor *both = quern_concat(2, (quern_tensor *[]){y, quern_reshape(z, QUERN_LIST(2, 4, 24))}, 2);
  quern_tensor *w = INPUT("w", 48, 5), *ys[] = {quern_matmul(both, w), quern_sum(both, QUERN_LIST(0, 1), false)};
  graph = (struct pass_graph){ctx, 2, ys};
  fuse(&groups, &graph, "");
  expect_kernels("moves", "", &groups, 3);
  for (size_t i = 0; i < groups.groups.n; i++)
    if (groups.groups.at[i]->kind == PASS_KIND_REDUCE) assert_int_equal(groups.groups.at[i]->n_ins, 1);
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

static void test_keep(void **state) {
  (void)state;
  static const char *const lists[] = {"", "-simplify", "-fuse"};
  for (size_t i = 0; i < BASE_COUNT(lists); i++) {
    test_renew();
    make_inputs();
    quern_tensor *kept = quern_checkpoint_activation(quern_exp(in.x));
    quern_tensor *ys[] = {quern_sin(quern_checkpoint_activation(kept)), quern_checkpoint_activation(in.y),
                          quern_checkpoint_activation(quern_permute(kept, 2, (int64_t[]){1, 0})),
                          quern_checkpoint_activation(SCALAR(2))};
    struct pass_graph graph = {ctx, 4, ys};
    struct pass_groups groups;
    fuse(&groups, &graph, lists[i]);
    expect_kernels("keep", lists[i], &groups, i < 2 ? 2 : 3); /* the sines and the permuted one read the same */
    expect_values(&groups, &graph);
    pass_groups_fini(&groups);
  }
  make_one *const plain[] = {linear_gelu, norm_linear};
  for (size_t i = 0; i < BASE_COUNT(plain); i++) { /* at the end of a chain it costs nothing */
    test_renew();
    make_inputs();
    size_t kernels[2];
    for (int k = 0; k < 2; k++) {
      quern_tensor *y = plain[i](in.x);
      if (k == 1) y = quern_checkpoint_activation(y);
      struct pass_graph graph = {ctx, 1, &y};
      struct pass_groups groups;
      fuse(&groups, &graph, "");
      kernels[k] = pass_test_count(&groups).kernels;
      pass_groups_fini(&groups);
    }
    assert_int_equal(kernels[0], kernels[1]);
  }
}

/* One parameter: one kernel with three outs. */
static void test_adamw(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *m = INPUT("m", N, C), *v = INPUT("v", N, C), *next[3];
  gpt2_adamw(in.x, m, v, in.dy, in.step, next);
  struct pass_graph graph = {ctx, 3, next};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  expect_kernels("adamw", "", &groups, 1);
  assert_int_equal(groups.groups.at[0]->kind, PASS_KIND_MAP);
  assert_int_equal(groups.groups.at[0]->n_outs, 3);
  assert_int_equal(groups.groups.at[0]->n_ins, 5);
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

/* Forward and backward of 16-bit activations with f32 inside: what goes from kernel to kernel is 16 bits wide, or small, and weights
** are cast where they are read. */
static void test_narrow(void **state) {
  (void)state;
  enum { ROWS = 64 };
  make_inputs();
  quern_tensor *x = quern_input(ctx, "x16", QUERN_DTYPE_BF16, QUERN_LIST(ROWS, C)),
               *dy = quern_input(ctx, "dy16", QUERN_DTYPE_BF16, QUERN_LIST(ROWS, C));
  quern_tensor *wide = quern_cast(quern_add(x, x), QUERN_DTYPE_F32), *w = quern_cast(in.weight, QUERN_DTYPE_BF16);
  quern_tensor *h = quern_linear(quern_cast(layer_norm(wide), QUERN_DTYPE_BF16), w, NULL);
  quern_tensor *y = quern_cast(quern_gelu_tanh(quern_cast(h, QUERN_DTYPE_F32)), QUERN_DTYPE_BF16);
  y = quern_matmul(y, w); /* (ROWS, C) */
  quern_tensor *wanted[] = {x, in.weight, in.gamma}, *roots[4] = {y};
  EXPECT_OK(quern_vjp(1, &y, &dy, 3, wanted, roots + 1));
  struct pass_graph graph = {ctx, 4, roots};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  for (size_t i = 0; i < groups.groups.n; i++) {
    const struct pass_group *group = groups.groups.at[i];
    for (size_t k = 0; k < group->n_outs; k++) {
      const quern_tensor *t = group->outs[k].tensor;
      bool root = false;
      for (size_t r = 0; r < 4; r++) root = root || t == roots[r];
      assert_true(root || t->dtype == QUERN_DTYPE_BF16 || ir_count(t) <= ROWS);
      assert_true(root || group->kind == PASS_KIND_DOT || !(t->rank == 2 && t->dims[0] == D && t->dims[1] == C));
    }
  }
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

/* Windows are never written: the convolution reads the image. */
static void test_convolution_reads_the_image(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *y = conv_relu(in.x);
  struct pass_graph graph = {ctx, 1, &y};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  const struct pass_group *group = groups.groups.at[0];
  assert_int_equal(group->n_ins, 3);
  for (size_t i = 0; i < group->n_ins; i++) assert_int_equal(group->ins[i]->node->op, IR_INPUT);
  assert_int_equal(group->vars[0], 0);
  assert_int_equal(group->vars[3], 3);
  pass_groups_fini(&groups);
}

/* What a device claims stays one group; everything else around it is as always. */
static bool claims_softmax(const struct base_target *target, const struct ir_node *composite) {
  (void)target;
  return strcmp(composite->attrs->name, "softmax") == 0;
}
static void test_claimed(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *y = quern_mul(quern_softmax(quern_add(in.x, in.y), -1), in.y);
  struct pass_graph graph = {ctx, 1, &y};
  struct pass_options options = {.supports = claims_softmax};
  struct pass_report reports[PASS_COUNT];
  struct pass_groups groups;
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  struct pass_counts counts = pass_test_count(&groups);
  assert_int_equal(counts.kinds[PASS_KIND_COMPOSITE], 1);
  assert_int_equal(counts.kinds[PASS_KIND_MAP], 2);
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

/* ---- odd graphs -------------------------------------------------------------------------------------------------- */

/* Leaves, constants, the same tensor twice, views, scalars and nothing at all as roots. */
static void test_odd_roots(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *none = INPUT("none", 0, C), *scalar = INPUT("scalar");
  scalar = quern_input(ctx, "one", QUERN_DTYPE_F32, 0, NULL);
  quern_tensor *sum = quern_add(in.x, in.y);
  quern_tensor *roots[] = {in.x,
                           in.x,
                           SCALAR(3),
                           quern_iota(ctx, QUERN_DTYPE_I32, QUERN_LIST(5), 0),
                           sum,
                           sum,
                           quern_reshape(sum, QUERN_LIST(C, N)),
                           quern_reshape(in.x, QUERN_LIST(C * N)),
                           quern_bitcast(quern_reshape(in.x, QUERN_LIST(2, C * N / 2)), QUERN_DTYPE_I32),
                           quern_exp(scalar),
                           quern_neg(none),
                           quern_sum(none, 1, FIRST, false),
                           quern_max(none, 1, LAST, false),
                           quern_matmul(quern_transpose(none, 0, 1), none),
                           quern_transpose(in.x, 0, 1)};
  struct pass_graph graph = {ctx, BASE_COUNT(roots), roots};
  for (int fused = 0; fused < 2; fused++) {
    struct pass_groups groups;
    fuse(&groups, &graph, fused ? "" : "-fuse");
    struct pass_counts counts = pass_test_count(&groups);
    assert_int_equal(counts.kinds[PASS_KIND_VIEW], 3);
    expect_values(&groups, &graph);
    pass_groups_fini(&groups);
  }
}

/* Without fusion every computing node is a kernel of its own; movement is not. */
static void test_unfused(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *y = softmax_by_hand(quern_transpose(in.x, 0, 1));
  struct pass_graph graph = {ctx, 1, &y};
  struct pass_groups groups;
  fuse(&groups, &graph, "-fuse");
  struct pass_counts counts = pass_test_count(&groups);
  assert_int_equal(counts.kinds[PASS_KIND_REDUCE], 2);
  assert_int_equal(counts.kinds[PASS_KIND_MAP], 3); /* sub, exp, div */
  assert_int_equal(counts.kernels, 5);
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

/* A concatenation of more tensors than a kernel has memories for. */
static void test_many_sources(void **state) {
  (void)state;
  enum { MANY = 300 };
  static quern_tensor *parts[MANY];
  make_inputs();
  for (int i = 0; i < MANY; i++) parts[i] = quern_slice(quern_mul_scalar(in.x, 1.0 + i), 0, i % N, i % N + 1, 1);
  quern_tensor *roots[] = {quern_concat(MANY, parts, 0)};
  for (int i = 0; i < MANY; i++) {
    char name[16];
    snprintf(name, sizeof name, "q%d", i);
    parts[i] = quern_state(ctx, name, QUERN_DTYPE_F32, QUERN_LIST(2));
  }
  struct pass_graph graph = {ctx, 1, roots};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
  quern_tensor *wide = quern_exp(quern_concat(MANY, parts, 0));
  graph.roots = &wide;
  fuse(&groups, &graph, "");
  for (size_t i = 0; i < groups.groups.n; i++) assert_true(groups.groups.at[i]->n_ins <= 128);
  pass_groups_fini(&groups);
  for (int i = 1; i < MANY; i++) parts[i] = quern_add(parts[i - 1], parts[i]); /* a sum of many */
  graph.roots = &parts[MANY - 1];
  fuse(&groups, &graph, "");
  for (size_t i = 0; i < groups.groups.n; i++) assert_true(groups.groups.at[i]->n_ins <= 40);
  pass_groups_fini(&groups);
}

/* A value that one reduction needs along rows and another along columns is written once, not computed twice. */
static void test_nothing_expensive_twice(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *e = quern_exp(quern_mul(in.x, in.y));
  quern_tensor *roots[] = {quern_sum(e, 1, LAST, false), quern_sum(e, 1, FIRST, false), quern_flip(e, 1, FIRST),
                           quern_matmul(e, quern_transpose(e, 0, 1))};
  struct pass_graph graph = {ctx, BASE_COUNT(roots), roots};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  size_t computed = 0;
  for (size_t i = 0; i < groups.groups.n; i++) {
    for (size_t k = 0; k < groups.groups.at[i]->n_nodes; k++) computed += groups.groups.at[i]->nodes[k]->op == IR_EXP;
  }
  assert_int_equal(computed, 1);
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

/* y needs the row's sum, z needs y of another row: z cannot be in y's kernel. */
static void test_other_rows(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *y = quern_mul(in.x, quern_sum(in.x, 1, LAST, true));
  quern_tensor *z = quern_add(quern_flip(y, 1, FIRST), y);
  struct pass_graph graph = {ctx, 1, &z};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  expect_kernels("flipped rows", "", &groups, 2);
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

static size_t count_crosses(const struct pass_groups *groups) {
  size_t n = 0;
  for (size_t i = 0; i < groups->groups.n; i++) n += groups->groups.at[i]->n_column_reductions;
  return n;
}

static void expect_crosses(const char *name, size_t n_roots, quern_tensor **roots, size_t kernels, size_t crosses) {
  struct pass_graph graph = {ctx, n_roots, roots};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  expect_kernels(name, "", &groups, kernels);
  assert_int_equal(count_crosses(&groups), crosses);
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

/* Many rows: sums over them are taken as the rows pass by, unless more comes of the sums, or of them the rows. */
static void test_crosses(void **state) {
  (void)state;
  quern_tensor *x = INPUT("x", 300, C), *dy = INPUT("dy", 300, C), *z = INPUT("z", 300, C);
  quern_tensor *gamma = INPUT("gamma", C), *beta = INPUT("beta", C), *wanted[] = {x, gamma, beta}, *d[3];
  quern_tensor *y = quern_layer_norm(x, 1, gamma, beta, 1e-5);
  EXPECT_OK(quern_vjp(1, &y, &dy, 3, wanted, d));
  expect_crosses("layer_norm backward", 3, d, 1, 2);
  quern_tensor *soft = quern_softmax(x, 1), *sum = quern_sum(soft, 1, FIRST, false);
  expect_crosses("softmax and its sums", 2, (quern_tensor *[]){soft, sum}, 1, 1);
  quern_tensor *more = quern_sub(gamma, sum);
  expect_crosses("what follows the sums", 2, (quern_tensor *[]){soft, more}, 2, 0);
  quern_tensor *use = quern_softmax(quern_mul(x, quern_sum(x, 1, FIRST, true)), 1);
  expect_crosses("rows made of sums", 1, &use, 2, 0);
  quern_tensor *other = quern_sum(quern_mul(x, z), 1, FIRST, false);
  expect_crosses("sums that read more", 2, (quern_tensor *[]){soft, other}, 2, 0);
  quern_tensor *twice = quern_sum(quern_mul(soft, sum), 1, FIRST, false);
  expect_crosses("sums made of sums", 3, (quern_tensor *[]){soft, sum, twice}, 2, 0);
}

/* On GPUs also where squares of the sums are wanted, for their norm: who sums the squares makes them. */
static void test_crosses_on_gpu(void **state) {
  (void)state;
  for (int gpu = 0; gpu < 2; gpu++) {
    struct base_target target = {.name = "test", .vector_bytes = 16, .registers = 32, .threads = 4, .gpu = gpu};
    quern_tensor *x = INPUT("x", 300, C), *dy = INPUT("dy", 300, C), *norm[2];
    quern_tensor *gamma = INPUT("gamma", C), *beta = INPUT("beta", C), *wanted[] = {x, gamma, beta}, *d[4];
    quern_tensor *y = quern_layer_norm(x, 1, gamma, beta, 1e-5);
    EXPECT_OK(quern_vjp(1, &y, &dy, 3, wanted, d));
    for (int i = 0; i < 2; i++) norm[i] = quern_sum(quern_mul(d[1 + i], d[1 + i]), QUERN_ALL, false);
    d[3] = quern_add(norm[0], norm[1]);
    struct pass_options options = {0};
    struct pass_report reports[PASS_COUNT];
    struct pass_groups groups;
    struct pass_graph graph = {ctx, 4, d};
    EXPECT_OK(pass_options_parse(&options, 1, ""));
    options.target = &target;
    EXPECT_OK(pass_run(&graph, &options, reports));
    EXPECT_OK(pass_fuse(&groups, &graph, &options));
    EXPECT_OK(pass_groups_verify(&groups, &graph));
    assert_int_equal(count_crosses(&groups), gpu ? 2 : 0);
    expect_values(&groups, &graph);
    pass_groups_fini(&groups);
  }
}

/* On GPUs what is made of the sums and of numbers alone goes along: not what reads more, nor what has them in another order. */
/* Statistics of few long columns, or of rows that lie apart, get a kernel a pass on GPUs, whose work is split; and normalization its own. */
static void test_statistics_on_gpu(void **state) {
  (void)state;
  for (int apart = 0; apart < 2; apart++)
    for (int gpu = 0; gpu < 2; gpu++) {
      struct base_target target = {.name = "test", .vector_bytes = 16, .registers = 32, .threads = 4, .gpu = gpu};
      target.multiprocessors = 4, target.max_threads_per_sm = 64;
      quern_tensor *x = apart ? INPUT("x", 4, 6, 5) : INPUT("x", 600, 7);
      const int64_t axes[] = {0, 2};
      int n = apart ? 2 : 1;
      quern_tensor *d = quern_sub(x, quern_mean(x, n, axes, true)), *var = quern_mean(quern_mul(d, d), n, axes, true);
      quern_tensor *y = quern_div(d, quern_sqrt(quern_add_scalar(var, 1e-5)));
      struct pass_options options = pass_test_options("-layout");
      options.target = &target;
      struct pass_groups groups;
      struct pass_graph graph = {ctx, 1, &y};
      EXPECT_OK(quern_context_check(ctx));
      EXPECT_OK(pass_fuse(&groups, &graph, &options));
      struct pass_counts counts = pass_test_count(&groups);
      assert_int_equal(counts.kinds[PASS_KIND_REDUCE], gpu ? 2 : 1);
      assert_int_equal(counts.kinds[PASS_KIND_MAP], gpu);
      pass_groups_fini(&groups);
    }
}

static void test_ends_on_gpu(void **state) {
  (void)state;
  struct base_target target = {.name = "test", .vector_bytes = 16, .registers = 32, .threads = 4, .gpu = true};
  quern_tensor *x = INPUT("x", 300, 4, C / 4), *bias = INPUT("bias", 4, C / 4), *soft = quern_softmax(x, 2);
  quern_tensor *rows = quern_reshape(soft, QUERN_LIST(300, C)), *all = quern_sum(quern_mul(rows, rows), 1, LAST, false);
  quern_tensor *sums = quern_sum(quern_mul(rows, quern_reshape(all, QUERN_LIST(300, 1))), 1, FIRST, false);
  quern_tensor *half = quern_mul(sums, quern_scalar(ctx, QUERN_DTYPE_F32, 0.5));
  quern_tensor *table = quern_reshape(half, QUERN_LIST(4, C / 4)), *wide = quern_cast(half, QUERN_DTYPE_F64);
  static const size_t crosses[] = {1, 1, 1, 0, 1}, kernels[] = {2, 2, 2, 3, 3};
  quern_tensor *ends[] = {wide, quern_cast(table, QUERN_DTYPE_F16), quern_add(half, quern_neg(sums)),
                          quern_add(table, bias), quern_cast(quern_transpose(table, 0, 1), QUERN_DTYPE_F16)};
  for (size_t i = 0; i < BASE_COUNT(ends); i++) {
    struct pass_options options = {0};
    struct pass_report reports[PASS_COUNT];
    struct pass_groups groups;
    quern_tensor *roots[] = {all, ends[i]};
    struct pass_graph graph = {ctx, 2, roots};
    EXPECT_OK(pass_options_parse(&options, 1, ""));
    options.target = &target;
    EXPECT_OK(pass_run(&graph, &options, reports));
    EXPECT_OK(pass_fuse(&groups, &graph, &options));
    EXPECT_OK(pass_groups_verify(&groups, &graph));
    assert_int_equal(count_crosses(&groups), crosses[i]);
    assert_int_equal(groups.groups.n, kernels[i]);
    expect_values(&groups, &graph);
    pass_groups_fini(&groups);
  }
}

/* A product of two contractions, each of which needs what the other gave: no cycle may come about. */
static void test_no_cycle(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *w = INPUT("w", C, C), *a = quern_matmul(in.x, w), *r = quern_softmax(a, -1);
  quern_tensor *b = quern_matmul(r, w);
  quern_tensor *roots[] = {quern_add(quern_add(a, b), r), quern_mul(a, quern_sum(b, 1, LAST, true)), quern_neg(a)};
  struct pass_graph graph = {ctx, BASE_COUNT(roots), roots};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

/* ---- equal groups, whole models, time ---------------------------------------------------------------------------- */

/* Layers of a network differ in their tensors only: they share kernels. */
static void test_layers_share_kernels(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *x = in.x;
  for (int i = 0; i < 6; i++) {
    quern_tensor *w = INPUT("w", C, C), *b = INPUT("b", C), *g = INPUT("g", C), *s = INPUT("s", C);
    x = quern_add(x, quern_gelu(quern_linear(quern_layer_norm(x, 1, g, s, 1e-5), w, b)));
  }
  struct pass_graph graph = {ctx, 1, &x};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  struct pass_counts counts = pass_test_count(&groups);
  assert_int_equal(counts.kernels, 12);
  assert_int_equal(counts.unique, 2);
  for (size_t i = 0; i < groups.groups.n; i++) { /* and equal ones have ins of the same types in the same order */
    const struct pass_group *a = groups.groups.at[i], *b = groups.groups.at[i % 2];
    assert_true(a->hash == b->hash);
    assert_int_equal(a->n_ins, b->n_ins);
    for (size_t k = 0; k < a->n_ins; k++) assert_true(ir_same_type(a->ins[k], b->ins[k]));
  }
  pass_groups_fini(&groups);
}

/* A constant, a shape, an attribute or which in is read where: each makes another kernel. */
static void test_hash_tells_apart(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *square = INPUT("square", C, C);
  quern_tensor *roots[] = {quern_sub(in.x, in.y),
                           quern_sub(in.y, quern_neg(in.dy)),
                           quern_mul_scalar(in.x, 3),
                           quern_mul_scalar(in.y, 5),
                           quern_exp(in.gamma),
                           quern_exp(in.bias),
                           quern_max(in.x, 1, LAST, false),
                           quern_min(in.y, 1, LAST, false),
                           quern_sum(square, 1, LAST, false),
                           quern_sum(square, 1, FIRST, false)};
  struct pass_graph graph = {ctx, BASE_COUNT(roots), roots};
  struct pass_groups groups;
  fuse(&groups, &graph, "-fuse,-simplify");
  struct pass_counts counts = pass_test_count(&groups);
  assert_int_equal(counts.kernels, 11);
  assert_int_equal(counts.unique, 10); /* the two subtractions are alike */
  pass_groups_fini(&groups);
}

static void test_gpt2(void **state) {
  (void)state;
  struct gpt2 m = gpt2_small(ctx);
  memory_largest = (size_t)1 << 32;
  static quern_tensor *roots[3 * GPT2_MOST_PARAMETERS + 1];
  static quern_update updates[3 * GPT2_MOST_PARAMETERS];
  EXPECT_OK(gpt2_build(&m));
  size_t n = gpt2_update(&m, updates);
  for (size_t i = 0; i < n; i++) roots[i] = updates[i].value;
  roots[3 * m.n] = m.loss;
  struct pass_graph graph = {ctx, 3 * m.n + 1, roots};
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  struct pass_groups groups;
  EXPECT_OK(quern_context_check(ctx));
  EXPECT_OK(pass_options_parse(&options, 1, "-chunk"));
  double start = base_clock();
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  double seconds = base_clock() - start;
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  struct pass_counts counts = pass_test_count(&groups);
  print_message("gpt2 with adamw: %zu nodes, %zu kernels, %zu of them different, %.1f ms\n",
                reports[PASS_FUSE].nodes_after, counts.kernels, counts.unique, seconds * 1e3);
  assert_true(counts.kernels <= 400);
  assert_true(counts.unique <= 52);
  assert_true(seconds < 2); /* 20 to 40 ms here; with room for sanitizers and busy machines */
  pass_groups_fini(&groups);
  memory_largest = MEMORY_LARGEST;
}

/* Small, with values: every group of a whole training step gives what the graph gives. */
static void test_gpt2_values(void **state) {
  (void)state;
  struct gpt2 m = {.layers = 1, .B = 1, .T = 4, .C = 8, .H = 2, .V = 24, .ctx = ctx};
  static quern_tensor *roots[64];
  EXPECT_OK(gpt2_build(&m));
  for (size_t i = 0; i < m.n; i++) roots[i] = m.gradient[i];
  roots[m.n] = m.loss;
  struct pass_graph graph = {ctx, m.n + 1, roots};
  struct pass_groups groups;
  fuse(&groups, &graph, "");
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

/* Seconds to fuse a chain of n nodes. */
static double time_chain(int n, size_t *kernels) {
  quern_tensor *x = INPUT("x", 16), *y = x;
  for (int i = 0; i < n; i++) y = i % 2 == 0 ? quern_sin(y) : quern_mul(y, x);
  struct pass_graph graph = {ctx, 1, &y};
  struct pass_options options = {0};
  struct pass_groups groups;
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  double start = base_clock();
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  double seconds = base_clock() - start;
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  *kernels = pass_test_count(&groups).kernels;
  pass_groups_fini(&groups);
  return seconds;
}

static void test_long_chains(void **state) {
  (void)state;
  size_t few, many;
  double small = time_chain(10000, &few);
  test_renew();
  double large = time_chain(100000, &many);
  print_message("chains of 10000 and 100000 nodes: %.1f and %.1f ms, %zu and %zu kernels\n", small * 1e3, large * 1e3,
                few, many);
  assert_true(few >= 10000 / 128 && few <= 10000 / 32);
  assert_true(many >= 100000 / 128 && many <= 100000 / 32);
  assert_true(large < 40 * small + 0.5);
}

/* Layers of rows on a GPU whose columns are summed, all sums in one: crosses are found, and no group reads more than a kernel can. */
static void test_many_crosses(void **state) {
  (void)state;
  enum { LAYERS = 2600, MOST = 240 };
  struct base_target target = {.name = "test", .vector_bytes = 16, .registers = 32, .threads = 4, .gpu = true};
  quern_tensor *x = INPUT("x", 256, 64), *all = NULL;
  for (int i = 0; i < LAYERS; i++) {
    quern_tensor *y = quern_mul(x, x), *sum = quern_sum(y, QUERN_LIST(1), true);
    x = quern_tanh(quern_sub(x, sum));
    quern_tensor *columns = quern_sum(quern_mul(x, y), QUERN_LIST(0), false);
    all = all == NULL ? columns : quern_add(all, columns);
  }
  quern_tensor *roots[] = {x, all};
  struct pass_graph graph = {ctx, 2, roots};
  struct pass_options options = pass_test_options(NULL);
  struct pass_groups groups;
  struct ir_order order;
  options.target = &target;
  EXPECT_OK(ir_topo(ctx, 2, roots, &order));
  assert_true(order.n > 20000);
  ir_order_fini(ctx, &order);
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  assert_true(count_crosses(&groups) > 20);
  for (size_t i = 0; i < groups.groups.n; i++)
    assert_true(groups.groups.at[i]->n_ins + groups.groups.at[i]->n_outs <= MOST);
  pass_groups_fini(&groups);
}

/* ---- text and faults --------------------------------------------------------------------------------------------- */

static void test_print(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *y = quern_gelu(linear(layer_norm(in.x)));
  struct pass_graph graph = {ctx, 1, &y};
  struct pass_groups groups;
  struct base_str str;
  fuse(&groups, &graph, "");
  base_str_init(&str, &ctx->heap);
  EXPECT_OK(pass_groups_print(&str, &groups));
  assert_non_null(strstr(str.at, "group 0 reduce "));
  assert_non_null(strstr(str.at, "group 1 dot "));
  assert_non_null(strstr(str.at, "over i0<12 ; i1<40"));
  assert_non_null(strstr(str.at, "batch 0 rows 1 columns 1 terms 1"));
  assert_non_null(strstr(str.at, "of[i0, i2] and[i1, i2] at[i0, i1]"));
  base_str_fini(&str);
  pass_groups_fini(&groups);
}

static void test_faults(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    make_inputs();
    quern_tensor *y = quern_gelu(linear(layer_norm(in.x))), *sorted[2];
    EXPECT_OK(quern_context_check(ctx));
    quern_tensor *s = quern_sort(quern_add(in.x, in.y), 1, false, &sorted[1]);
    quern_tensor *sums = quern_sum(quern_softmax(INPUT("rows", 256, 3), 1), 1, FIRST, false);
    quern_tensor *view = quern_reshape(s, QUERN_LIST(C, N));
    quern_tensor *roots[] = {y, s, view, quern_cumsum(in.x, 1), cross_entropy(in.x), sums};
    struct pass_graph graph = {ctx, BASE_COUNT(roots), roots};
    struct pass_options options = {0};
    struct pass_report reports[PASS_COUNT];
    struct pass_groups groups = {0};
    struct base_str str;
    EXPECT_OK(quern_context_check(ctx));
    EXPECT_OK(pass_options_parse(&options, 1, NULL));
    base_str_init(&str, &ctx->heap);
    fault_begin(&fault);
    quern_status status = pass_run(&graph, &options, reports);
    if (status == QUERN_STATUS_OK) status = pass_fuse(&groups, &graph, &options);
    if (status == QUERN_STATUS_OK) status = pass_groups_verify(&groups, &graph);
    if (status == QUERN_STATUS_OK) status = pass_groups_print(&str, &groups);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    base_str_fini(&str);
    pass_groups_fini(&groups);
  }
  assert_true(fault.n > 100);
}

/* The label's logit is picked from what lies in memory, not from a wider copy of it. */
static void test_narrow_logits(void **state) {
  (void)state;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_BF16, QUERN_LIST(64, 128));
  quern_tensor *labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(64));
  quern_tensor *loss = quern_cross_entropy(quern_cast(x, QUERN_DTYPE_F32), labels, NULL), *roots[2] = {loss};
  EXPECT_OK(quern_grad(loss, 1, &x, &roots[1]));
  struct pass_graph graph = {ctx, 2, roots};
  struct pass_groups groups;
  fuse(&groups, &graph, NULL);
  for (size_t i = 0; i < groups.groups.n; i++)
    for (size_t k = 0; k < groups.groups.at[i]->n_outs; k++) {
      const quern_tensor *out = groups.groups.at[i]->outs[k].tensor;
      assert_true(ir_count(out) < ir_count(x) || out->dtype == QUERN_DTYPE_BF16);
    }
  expect_values(&groups, &graph);
  pass_groups_fini(&groups);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_narrow_logits),
      TEST(test_patterns),
      TEST(test_gradients),
      TEST(test_norm_parameters),
      TEST(test_adamw),
      TEST(test_convolution_reads_the_image),
      TEST(test_claimed),
      TEST(test_odd_roots),
      TEST(test_unfused),
      TEST(test_many_sources),
      TEST(test_nothing_expensive_twice),
      TEST(test_other_rows),
      TEST(test_crosses),
      TEST(test_crosses_on_gpu),
      TEST(test_statistics_on_gpu),
      TEST(test_ends_on_gpu),
      TEST(test_no_cycle),
      TEST(test_moves),
      TEST(test_keep),
      TEST(test_narrow),
      TEST(test_layers_share_kernels),
      TEST(test_hash_tells_apart),
      TEST(test_gpt2),
      TEST(test_gpt2_values),
      TEST(test_long_chains),
      TEST(test_many_crosses),
      TEST(test_print),
      TEST(test_faults),
  };
  return cmocka_run_group_tests_name("pass/fuse", tests, NULL, NULL);
}
