/* tests/sched/test_gpu_dot_library.c -- contractions that a library does: which groups become calls, with which matrices
** Everything is run by the kernel interpreter, and compared with the evaluator of the graph.
*/
#include "quern/quern.h"
#include "sched/run.h"

static const struct base_target gpu = RUN_CARD("test", BASE_LIBRARY_BLAS);

/* What a graph became. */
struct made {
  struct pass_graph graph;
  struct pass_groups groups;
  quern_tensor *roots[80];
};

static void make(struct made *m, const struct base_target *target, const char *passes, size_t n,
                 quern_tensor *const *roots) {
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  EXPECT_OK(pass_options_parse(&options, 1, passes));
  options.target = target;
  options.supports = NULL;
  assert_true(n <= BASE_COUNT(m->roots));
  for (size_t i = 0; i < n; i++) {
    if (quern_tensor_is_poison(roots[i])) print_error("%s\n", ctx->message);
    assert_false(quern_tensor_is_poison(roots[i]));
    m->roots[i] = roots[i];
  }
  m->graph = (struct pass_graph){.ctx = ctx, .n_roots = n, .roots = m->roots};
  EXPECT_OK(pass_run(&m->graph, &options, reports));
  EXPECT_OK(pass_fuse(&m->groups, &m->graph, &options));
  EXPECT_OK(pass_groups_verify(&m->groups, &m->graph));
}

static size_t kernels_of(const struct made *m) {
  size_t n = 0;
  for (size_t i = 0; i < m->groups.groups.n; i++) n += m->groups.groups.at[i]->kind != PASS_KIND_VIEW;
  return n;
}

/* The call number `which`, or NULL. */
static const struct pass_gemm *call_of(const struct made *m, size_t which) {
  for (size_t i = 0; i < m->groups.groups.n; i++) {
    const struct pass_gemm *g = m->groups.groups.at[i]->gemm;
    if (g != NULL && which-- == 0) return g;
  }
  return NULL;
}

static size_t calls_of(const struct made *m) {
  size_t n = 0;
  while (call_of(m, n) != NULL) n++;
  return n;
}

static size_t dots_of(const struct made *m) {
  size_t n = 0;
  for (size_t i = 0; i < m->groups.groups.n; i++) n += m->groups.groups.at[i]->kind == PASS_KIND_DOT;
  return n;
}

static void lower(struct kern **kern, const struct pass_group *group, bool plain) {
  struct sched sched;
  sched_choose(&sched, group, &gpu, 1);
  sched.no_library = plain;
  EXPECT_OK(sched_lower(kern, &ctx->heap, ctx, group, &gpu, &sched));
  EXPECT_OK(kern_verify(*kern, NULL));
}

/* Runs all kernels. plain: the library refuses. */
static void run_groups(const struct made *m, bool plain, struct run_memory *memory) {
  for (size_t i = 0; i < m->groups.groups.n; i++) {
    const struct pass_group *group = m->groups.groups.at[i];
    if (group->kind == PASS_KIND_VIEW) {
      memcpy(run_add(memory, group->outs[0].tensor), run_find(memory, group->ins[0]), ir_bytes(group->ins[0]));
      continue;
    }
    struct kern *kern;
    lower(&kern, group, plain);
    if (group->gemm != NULL)
      assert_true(kern->cost.flops > 0 && (kern->library_call.kind == KERN_LIBRARY_GEMM) == !plain);
    if (group->gemm != NULL) assert_true((kern->fns.n == 0) == !plain);
    run_kernel(kern, group, memory);
    kern_free(kern);
  }
}

static void run_forget(struct run_memory *memory) {
  for (size_t i = 0; i < memory->n; i++) free(memory->at[i].data);
  free(memory);
}

/* Runs all kernels and compares the roots with what the graph evaluates to. */
static void run_as(const struct made *m, bool plain, size_t n, quern_tensor *const *roots) {
  struct run_memory *memory = calloc(1, sizeof *memory);
  run_groups(m, plain, memory);
  for (size_t i = 0; i < n; i++) {
    void *want = malloc(ir_bytes(roots[i]) + 1), *got = run_find(memory, m->roots[i]);
    EXPECT_OK(ir_eval(ctx, 1, &roots[i], &want, 0, NULL));
    for (int64_t k = 0; k < ir_count(roots[i]); k++)
      if (!run_near(roots[i]->dtype, got, want, k))
        fail_msg("root %zu, element %lld is %.9g, evaluated %.9g", i, (long long)k,
                 base_load_float(roots[i]->dtype, got, (size_t)k), base_load_float(roots[i]->dtype, want, (size_t)k));
    free(want);
  }
  run_forget(memory);
}

static void run(struct made *m, size_t n, quern_tensor *const *roots) {
  run_as(m, false, n, roots);
  run_as(m, true, n, roots);
}

/* Makes, checks the number of calls and of all kernels, runs. */
static void expect(struct made *m, size_t calls, size_t kernels, size_t n, quern_tensor *const *roots, int line) {
  make(m, &gpu, NULL, n, roots);
  if (calls_of(m) != calls || kernels_of(m) != kernels) {
    struct base_str str;
    base_str_init(&str, &ctx->heap);
    if (pass_groups_print(&str, &m->groups) == QUERN_STATUS_OK) print_error("%s", str.at);
    base_str_fini(&str);
    print_error("line %d: %zu calls of %zu kernels\n", line, calls_of(m), kernels_of(m));
  }
  assert_int_equal(calls_of(m), calls);
  assert_int_equal(kernels_of(m), kernels);
  run(m, n, roots);
}
#define EXPECT(m, calls, kernels, ...)                                                                                 \
  expect((m), (calls), (kernels), sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *),                    \
         (quern_tensor *[]){__VA_ARGS__}, __LINE__)

static void expect_matrix(const struct pass_matrix *x, int64_t at, int64_t batch, int64_t row, int64_t column) {
  assert_non_null(x->tensor);
  assert_int_equal(x->at, at);
  assert_int_equal(x->batch, batch);
  assert_int_equal(x->row, row);
  assert_int_equal(x->column, column);
}

/* ---- operands -------------------------------------------------------------------------------------------- */

/* A linear layer and its gradients: three products of what is there, by the strides alone. */
static void test_linear(void **state) {
  (void)state;
  quern_tensor *x = DATA(BF16, 2, 3, 16), *w = DATA(BF16, 8, 16), *dy = DATA(BF16, 2, 3, 8);
  quern_tensor *y = quern_linear(x, w, NULL);
  quern_tensor *sum =
      quern_sum(quern_mul(quern_cast(y, QUERN_DTYPE_F32), quern_cast(dy, QUERN_DTYPE_F32)), QUERN_ALL, false);
  quern_tensor *d[2];
  EXPECT_OK(quern_grad(sum, 2, (quern_tensor *[]){x, w}, d));
  struct made m;
  EXPECT(&m, 3, 3, y, d[0], d[1]);
  const struct pass_gemm *g = call_of(&m, 0);
  assert_true(g->batch == 1 && g->rows == 6 && g->columns == 8 && g->terms == 16);
  expect_matrix(&g->a, 0, 0, 16, 1);
  expect_matrix(&g->b, 0, 0, 16, 1);
  expect_matrix(&g->y, 0, 0, 8, 1);
  g = call_of(&m, 1);
  assert_true(g->rows == 6 && g->columns == 16 && g->terms == 8);
  expect_matrix(&g->b, 0, 0, 1, 16);
  g = call_of(&m, 2); /* (batch, row) are the terms */
  assert_true(g->rows * g->columns == 8 * 16 && g->terms == 6);
  assert_true(g->a.row == 1 && g->b.row == 1);
  pass_groups_fini(&m.groups);
}

/* Movement is read through where it leaves a matrix; else the operand is copied first. */
static void test_movement(void **state) {
  (void)state;
  struct made m;
  quern_tensor *qkv = DATA(F32, 1, 4, 3, 2, 8), *w = DATA(F32, 6, 8); /* one batch: heads are a stride */
  quern_tensor *q = quern_reshape(quern_slice(qkv, 2, 0, 1, 1), QUERN_LIST(4, 2, 8));
  quern_tensor *k = quern_reshape(quern_slice(qkv, 2, 1, 2, 1), QUERN_LIST(4, 2, 8));
  quern_tensor *scores = quern_matmul(quern_transpose(q, 0, 1), quern_permute(k, QUERN_LIST(1, 2, 0)));
  EXPECT(&m, 1, 1, scores);
  const struct pass_gemm *g = call_of(&m, 0);
  assert_true(g->batch == 2 && g->rows == 4 && g->columns == 4 && g->terms == 8);
  expect_matrix(&g->a, 0, 8, 48, 1);
  expect_matrix(&g->b, 16, 8, 48, 1);
  expect_matrix(&g->y, 0, 16, 4, 1);
  pass_groups_fini(&m.groups);
  quern_tensor *two = DATA(F32, 2, 4, 3, 8); /* heads of two batches have two strides: one copy */
  quern_tensor *heads = quern_transpose(two, 1, 2), *keys = DATA(F32, 2, 3, 4, 8);
  EXPECT(&m, 1, 2, quern_matmul(heads, quern_transpose(keys, 2, 3)));
  pass_groups_fini(&m.groups);
  quern_tensor *steps = quern_slice(DATA(F32, 6, 32), 1, 0, 32, 2); /* elements two apart: one copy */
  EXPECT(&m, 1, 2, quern_linear(steps, DATA(F32, 5, 16), NULL));
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 2, quern_linear(quern_exp(DATA(F32, 4, 8)), w, NULL)); /* computed before, not inside */
  pass_groups_fini(&m.groups);
}

/* Both operands are 16-bit numbers in f32: the library takes them as they were. */
static void test_through_casts(void **state) {
  (void)state;
  quern_tensor *x = quern_cast(DATA(BF16, 6, 16), QUERN_DTYPE_F32), *w = quern_cast(DATA(BF16, 8, 16), QUERN_DTYPE_F32);
  struct made m;
  EXPECT(&m, 1, 1, quern_linear(x, w, NULL));
  assert_true(call_of(&m, 0)->a.tensor->dtype == QUERN_DTYPE_BF16 &&
              call_of(&m, 0)->b.tensor->dtype == QUERN_DTYPE_BF16);
  assert_true(call_of(&m, 0)->y.tensor->dtype == QUERN_DTYPE_F32);
  pass_groups_fini(&m.groups);
  quern_tensor *f16 = quern_cast(DATA(F16, 8, 16), QUERN_DTYPE_F32); /* of another kind: both are cast before */
  EXPECT(&m, 1, 3, quern_linear(x, f16, NULL));
  assert_true(call_of(&m, 0)->a.tensor->dtype == QUERN_DTYPE_F32);
  pass_groups_fini(&m.groups);
}

/* What is generated: other sums, integers, single terms, windows of a convolution; and everything for a target without a library. */
static void test_generated(void **state) {
  (void)state;
  struct made m;
  struct base_target plain = gpu;
  plain.capabilities = BASE_LIBRARY_DNN;
  quern_tensor *y = quern_linear(DATA(F32, 6, 16), DATA(F32, 8, 16), NULL);
  make(&m, &plain, NULL, 1, &y);
  assert_true(calls_of(&m) == 0 && dots_of(&m) == 1);
  pass_groups_fini(&m.groups);
  EXPECT(&m, 0, 1, quern_matmul(DATA(I32, 4, 8), DATA(I32, 8, 4)));
  pass_groups_fini(&m.groups);
  EXPECT(&m, 0, 1, quern_matmul(DATA(F32, 4, 1), DATA(F32, 1, 4)));
  pass_groups_fini(&m.groups);
  EXPECT(&m, 0, 1, quern_conv2d(DATA(F32, 1, 4, 9, 9), DATA(F32, 8, 4, 3, 3), NULL, NULL));
  assert_int_equal(dots_of(&m), 1);
  pass_groups_fini(&m.groups);
}

/* Without fusion there is nothing in a call but the product. */
static void test_not_fused(void **state) {
  (void)state;
  quern_tensor *x = DATA(BF16, 6, 16), *w = DATA(BF16, 8, 16), *b = DATA(BF16, 8),
               *y = quern_relu(quern_linear(x, w, b));
  struct made m;
  make(&m, &gpu, "-fuse", 1, &y);
  assert_int_equal(calls_of(&m), 1);
  assert_true(call_of(&m, 0)->bias == NULL && call_of(&m, 0)->act == PASS_ACT_NONE);
  run(&m, 1, &y);
  pass_groups_fini(&m.groups);
}

/* ---- the epilogue ------------------------------------------------------------------------------------ */

static void test_bias(void **state) {
  (void)state;
  struct made m;
  quern_tensor *x = DATA(BF16, 6, 16), *w = DATA(BF16, 8, 16), *b = DATA(BF16, 8), *r = DATA(BF16, 6, 8);
  EXPECT(&m, 1, 1, quern_linear(x, w, b));
  assert_true(call_of(&m, 0)->bias != NULL && call_of(&m, 0)->add.tensor == NULL);
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 1, quern_add(r, quern_linear(x, w, b)));
  const struct pass_gemm *g = call_of(&m, 0);
  assert_true(g->bias != NULL && g->add.tensor == r && g->act == PASS_ACT_NONE);
  struct kern *kern;
  lower(&kern, m.groups.groups.at[m.groups.groups.n - 1], false);
  const struct kern_gemm *k = &kern->library_call.gemm;
  assert_true(kern->mems[k->y.mem].alias == k->add.mem && k->add.mem >= 0 && k->bias >= 0);
  assert_true(kern->mems[kern->library_call.work].role == KERN_WORK &&
              kern->mems[kern->library_call.work].dtype == QUERN_DTYPE_U8);
  assert_non_null(strstr(kern->name, "dot"));
  kern_free(kern);
  pass_groups_fini(&m.groups);
  /* along the rows: the sides change places, if the result lies by its columns */
  quern_tensor *turned =
      quern_transpose(quern_add(quern_matmul(w, quern_transpose(x, 0, 1)), quern_unsqueeze(b, 1)), 0, 1);
  EXPECT(&m, 1, 1, turned);
  assert_true(call_of(&m, 0)->bias == b && call_of(&m, 0)->columns == 8 && call_of(&m, 0)->rows == 6);
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 2, quern_linear(x, w, quern_cast(DATA(F32, 8), QUERN_DTYPE_BF16))); /* cast before */
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 2,
         quern_add(quern_matmul(DATA(F64, 4, 8), DATA(F64, 8, 4)), DATA(F64, 4))); /* the library has none of f64 */
  pass_groups_fini(&m.groups);
}

static void test_activations(void **state) {
  (void)state;
  struct made m;
  quern_tensor *x = DATA(BF16, 6, 16), *w = DATA(BF16, 8, 16), *b = DATA(BF16, 8);
  EXPECT(&m, 1, 1, quern_relu(quern_linear(x, w, b)));
  assert_int_equal(call_of(&m, 0)->act, PASS_ACT_RELU);
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 1, quern_gelu_tanh(quern_linear(x, w, b)));
  assert_int_equal(call_of(&m, 0)->act, PASS_ACT_GELU_TANH);
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 1, quern_gelu_tanh(quern_linear(x, w, NULL)));
  assert_true(call_of(&m, 0)->act == PASS_ACT_GELU_TANH && call_of(&m, 0)->bias == NULL);
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 2, quern_gelu(quern_linear(x, w, b))); /* another one: a kernel of its own */
  assert_int_equal(call_of(&m, 0)->act, PASS_ACT_NONE);
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 2, quern_silu(quern_linear(x, w, b)));
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 2, quern_mul_scalar(quern_linear(x, w, b), 0.5));
  pass_groups_fini(&m.groups);
  quern_tensor *f32 = quern_gelu_tanh(quern_linear(DATA(F32, 6, 16), DATA(F32, 8, 16), NULL)); /* not exact enough */
  EXPECT(&m, 1, 2, f32);
  pass_groups_fini(&m.groups);
  quern_tensor *odd = quern_linear(x, DATA(BF16, 5, 16), NULL); /* rows of 5 cannot be kept */
  EXPECT(&m, 1, 2, odd, quern_gelu_tanh(odd));
  pass_groups_fini(&m.groups);
}

/* Whoever else uses what lies between keeps it from being lost. */
static void test_users(void **state) {
  (void)state;
  struct made m;
  quern_tensor *x = DATA(BF16, 6, 16), *w = DATA(BF16, 8, 16), *b = DATA(BF16, 8), *r = DATA(BF16, 6, 8);
  quern_tensor *dot = quern_linear(x, w, NULL), *p = quern_linear(x, w, b);
  EXPECT(&m, 1, 2, dot, p); /* both are wanted: the sum is a kernel of its own */
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 1, p, quern_gelu_tanh(p));
  assert_true(call_of(&m, 0)->aux.tensor != NULL && call_of(&m, 0)->act == PASS_ACT_GELU_TANH);
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 2, p, quern_relu(p)); /* the library would keep bits */
  pass_groups_fini(&m.groups);
  EXPECT(&m, 1, 2, p, quern_add(p, r));
  pass_groups_fini(&m.groups);
}

/* A block of two layers and its gradients, y, dx, dw1 and dw2, of operands in that dtype. */
static void make_mlp(quern_dtype dtype, quern_tensor *const *data, quern_tensor **roots) {
  quern_tensor *in[5];
  for (int i = 0; i < 5; i++) in[i] = quern_cast(data[i], i < 4 || dtype == QUERN_DTYPE_F64 ? dtype : QUERN_DTYPE_F32);
  quern_tensor *hidden = quern_gelu_tanh(quern_linear(in[0], in[1], in[2]));
  roots[0] = quern_add(in[0], quern_linear(hidden, in[3], NULL));
  quern_tensor *loss = quern_sum(quern_mul(quern_cast(roots[0], in[4]->dtype), in[4]), QUERN_ALL, false);
  EXPECT_OK(quern_grad(loss, 3, (quern_tensor *[]){in[0], in[1], in[3]}, roots + 1));
}

/* The same with nothing but sums of absolute values, and bounds of gelu: |gelu(p)| <= |p|, |gelu'| < 1.2, |gelu''| < 1. One rounding of anything
** on the way, of 2^-8 at most, changes a result by no more than that part of it. */
static void make_mlp_bounds(quern_tensor *const *data, quern_tensor **bounds) {
  quern_tensor *in[5];
  for (int i = 0; i < 5; i++) in[i] = quern_abs(quern_cast(data[i], QUERN_DTYPE_F64));
  quern_tensor *hidden = quern_linear(in[0], in[1], in[2]);
  quern_tensor *d = quern_mul(quern_matmul(in[4], in[3]), quern_add_scalar(hidden, 1.2));
  bounds[0] = quern_add(in[0], quern_linear(hidden, in[3], NULL));
  bounds[1] = quern_add(in[4], quern_matmul(d, in[1]));
  bounds[2] = quern_matmul(quern_transpose(d, 0, 1), in[0]);
  bounds[3] = quern_matmul(quern_transpose(in[4], 0, 1), hidden);
}

/* The results of calls are those of real numbers within so many roundings: of what is kept for the next call and of the result. */
static void expect_mlp(struct made *m, quern_tensor *const *data) {
  static const int roundings[4] = {2, 4, 4, 3}; /* h, y; dy, p, dp, dx; dy, p, dp, dw1; dy, h, dw2 */
  static double want[4][512], bound[4][512];
  quern_tensor *exact[4], *bounds[4];
  void *got[4];
  struct run_memory *memory = calloc(1, sizeof *memory);
  make_mlp(QUERN_DTYPE_F64, data, exact);
  make_mlp_bounds(data, bounds);
  run_groups(m, false, memory);
  for (int i = 0; i < 4; i++) {
    assert_true(ir_count(exact[i]) <= 512 && ir_count(bounds[i]) == ir_count(exact[i]));
    EXPECT_OK(ir_eval(ctx, 1, &exact[i], &(void *){want[i]}, 0, NULL));
    EXPECT_OK(ir_eval(ctx, 1, &bounds[i], &(void *){bound[i]}, 0, NULL));
    got[i] = run_find(memory, m->roots[i]);
    for (size_t k = 0; k < (size_t)ir_count(exact[i]); k++) {
      double x = base_load_float(QUERN_DTYPE_BF16, got[i], k);
      if (fabs(x - want[i][k]) <= roundings[i] * 0x1p-8 * bound[i][k]) continue;
      fail_msg("result %d, element %zu is %g: %g off of %g, of %g", i, k, x, x - want[i][k], want[i][k], bound[i][k]);
    }
  }
  run_forget(memory);
}

/* A block of two layers, forward and backward: gelu and its gradient are part of the products. */
static void test_mlp(void **state) {
  (void)state;
  quern_tensor *data[] = {DATA_OF(1, BF16, 6, 16), DATA_OF(2, BF16, 32, 16), DATA_OF(3, BF16, 32),
                          DATA_OF(4, BF16, 16, 32), DATA_OF(5, BF16, 6, 16)};
  quern_tensor *roots[4];
  struct made m;
  make_mlp(QUERN_DTYPE_BF16, data, roots);
  make(&m, &gpu, NULL, 4, roots);
  assert_int_equal(calls_of(&m), dots_of(&m));
  size_t kept = 0, back = 0, added = 0;
  for (size_t i = 0; i < calls_of(&m); i++) {
    const struct pass_gemm *g = call_of(&m, i);
    kept += g->aux.tensor != NULL && !g->back;
    back += g->back;
    added += g->add.tensor != NULL;
  }
  assert_true(kept == 1 && back == 1 && added >= 1);
  expect_mlp(&m, data);
  run_as(&m, true, 4, roots);
  pass_groups_fini(&m.groups);
}

/* ---- a model --------------------------------------------------------------------------------------------- */

enum { MODEL_ROWS = 2, LENGTH = 16, WIDTH = 32, VOCABULARY = 64, LAYERS = 2 };

/* Every contraction of GPT-2's step in bf16 is a call; of those of linear layers no operand is copied: what their kernels read is computed
** by something else than movement. */
static void test_gpt2(void **state) {
  (void)state;
  quern_model *model;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  quern_lm_options options = {.size = sizeof options,
                              .vocabulary = VOCABULARY,
                              .positions = LENGTH,
                              .layers = LAYERS,
                              .width = WIDTH,
                              .heads = 4};
  quern_tensor *tokens = quern_input(ctx, "tokens", QUERN_DTYPE_I32, QUERN_LIST(MODEL_ROWS, LENGTH));
  quern_tensor *labels = quern_input(ctx, "labels", QUERN_DTYPE_I32, QUERN_LIST(MODEL_ROWS, LENGTH));
  quern_tensor *loss = quern_lm_loss(quern_model_scope(model), tokens, labels, &options);
  EXPECT_OK(quern_autocast(model, 1, &loss, &loss, NULL));
  size_t n = quern_model_parameter_count(model);
  quern_tensor *parameters[80], *roots[80];
  assert_true(n < BASE_COUNT(roots));
  for (size_t i = 0; i < n; i++) {
    quern_parameter parameter = QUERN_INIT(quern_parameter);
    EXPECT_OK(quern_model_parameter(model, i, &parameter));
    parameters[i] = parameter.tensor;
  }
  EXPECT_OK(quern_grad(loss, n, parameters, roots));
  roots[n] = loss;
  struct made m;
  make(&m, &gpu, NULL, n + 1, roots);
  assert_int_equal(calls_of(&m), dots_of(&m));
  assert_int_equal(calls_of(&m), LAYERS * (3 * 4 + 6) + 3);
  size_t biases = 0, adds = 0, kept = 0, back = 0;
  for (size_t i = 0; i < calls_of(&m); i++) {
    const struct pass_gemm *g = call_of(&m, i);
    biases += g->bias != NULL;
    adds += g->add.tensor != NULL;
    kept += g->aux.tensor != NULL && !g->back;
    back += g->back;
    if (g->batch != 1) continue; /* heads */
    const quern_tensor *const operands[] = {g->a.tensor, g->b.tensor};
    for (int k = 0; k < 2; k++) {
      const struct ir_node *node = operands[k]->node;
      assert_int_equal(operands[k]->dtype, QUERN_DTYPE_BF16);
      while (node->op == IR_RESHAPE || node->op == IR_PERMUTE || node->op == IR_SLICE) node = node->src[0]->node;
      assert_true(node->op == IR_CAST || node->op == IR_ADD || node->op == IR_MUL || node->op == IR_CONCAT ||
                  node->op == IR_DOT);
    }
  }
  assert_int_equal(biases, 4 * LAYERS);
  assert_int_equal(kept, LAYERS);
  assert_int_equal(back, LAYERS);
  assert_true(adds >= 2 * LAYERS);
  pass_groups_fini(&m.groups);
  quern_model_free(model);
}

/* ---- what is wrong is found ------------------------------------------------------------------------------ */

#define PLANT(m, place, value, words)                                                                                  \
  do {                                                                                                                 \
    __typeof__(place) was = (place);                                                                                   \
    (place) = (value);                                                                                                 \
    EXPECT_ERROR(pass_groups_verify(&(m).groups, &(m).graph), INTERNAL, words);                                        \
    (place) = was;                                                                                                     \
    EXPECT_OK(pass_groups_verify(&(m).groups, &(m).graph));                                                            \
  } while (0)

static void test_wrong(void **state) {
  (void)state;
  quern_tensor *x = DATA(BF16, 6, 16), *p = quern_linear(x, DATA(BF16, 8, 16), DATA(BF16, 8));
  quern_tensor *roots[] = {quern_gelu_tanh(p), p}, *other = DATA(BF16, 8);
  struct made m;
  make(&m, &gpu, NULL, 2, roots);
  struct pass_group *group = m.groups.groups.at[m.groups.groups.n - 1];
  struct pass_gemm g = *group->gemm;
  group->gemm = &g;
  PLANT(m, g.a.row, 15, "the matrices of its library call");
  PLANT(m, g.b.at, 1, "the matrices of its library call");
  PLANT(m, g.y.column, 2, "the matrices of its library call");
  PLANT(m, g.aux.row, 9, "the matrices of its library call");
  PLANT(m, g.a.tensor, other, "the matrices of its library call");
  PLANT(m, g.bias, other, "reads what is no in of it");
  PLANT(m, g.add.tensor, other, "reads what is no in of it");
  PLANT(m, g.aux.tensor, NULL, "2 outs of a library call");
  pass_groups_fini(&m.groups);
}

/* ---- failures -------------------------------------------------------------------------------------------- */

static void test_faults(void **state) {
  (void)state;
  quern_tensor *x = DATA(BF16, 6, 16), *w = DATA(BF16, 8, 16), *b = DATA(F32, 8), *r = DATA(BF16, 6, 8);
  quern_tensor *p = quern_linear(x, w, quern_cast(b, QUERN_DTYPE_BF16)), *in[2] = {quern_gelu_tanh(p), quern_add(p, r)};
  quern_tensor *roots[2];
  EXPECT_OK(ir_inline_composites(ctx, 2, in, roots));
  struct pass_graph graph = {.ctx = ctx, .n_roots = 2, .roots = roots};
  struct pass_options options = {0};
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  options.target = &gpu;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    struct pass_groups groups = {0};
    struct kern *kern = NULL;
    struct sched sched;
    fault_begin(&fault);
    quern_status status = pass_fuse(&groups, &graph, &options);
    for (size_t i = 0; i < groups.groups.n && status == QUERN_STATUS_OK; i++) {
      sched_choose(&sched, groups.groups.at[i], &gpu, 1);
      status = sched_lower(&kern, &ctx->heap, ctx, groups.groups.at[i], &gpu, &sched);
      kern_free(kern);
      kern = NULL;
    }
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    pass_groups_fini(&groups);
  }
  assert_true(fault.n > 20);
}

/* ---- what is no end -------------------------------------------------------------------------------------- */

static quern_tensor *number(const quern_tensor *like, double x) { return quern_scalar(ctx, like->dtype, x); }
static quern_tensor *relu6(quern_tensor *p) { return quern_minimum(quern_maximum(p, number(p, 0)), number(p, 6)); }
static quern_tensor *clipped(quern_tensor *p) { return quern_clip(p, -5, 5); }
static quern_tensor *bounded(quern_tensor *p) { return quern_minimum(p, number(p, 1e6)); }
static quern_tensor *cut(quern_tensor *p) { return quern_where(quern_lt(number(p, 5), p), number(p, -1), p); }
static quern_tensor *bent(quern_tensor *p) {
  return quern_where(quern_lt(quern_abs(p), number(p, 6)), p, quern_mul_scalar(p, 0.5));
}
static quern_tensor *gelu_below(quern_tensor *p) { return quern_minimum(quern_gelu_tanh(p), number(p, 4.5)); }
static quern_tensor *above_little(quern_tensor *p) { return quern_log(quern_maximum(p, number(p, 1e-6))); }
static quern_tensor *relu_and_little(quern_tensor *p) {
  return quern_div(number(p, 1), quern_add_scalar(quern_relu(p), 1e-6));
}
static quern_tensor *rounded(quern_tensor *p) { return quern_cast(quern_cast(p, QUERN_DTYPE_F8E4M3), p->dtype); }
static quern_tensor *silu(quern_tensor *p) { return quern_silu(p); }
static quern_tensor *gelu_exact(quern_tensor *p) { return quern_gelu(p); }

/* What looks like an end of the library near 0 only, or nearly: it is computed as it is written. */
static void test_lookalikes(void **state) {
  (void)state;
  quern_tensor *(*const ends[])(quern_tensor *) = {relu6,        clipped,         bounded, cut,  bent,      gelu_below,
                                                   above_little, relu_and_little, rounded, silu, gelu_exact};
  for (size_t i = 0; i < 2 * BASE_COUNT(ends); i++) {
    bool half = i % 2 == 0;
    struct made m;
    quern_tensor *x = half ? DATA(BF16, 6, 16) : DATA(F32, 6, 16), *w = half ? DATA(BF16, 8, 16) : DATA(F32, 8, 16);
    quern_tensor *y = ends[i / 2](quern_linear(quern_mul_scalar(x, 30), w, NULL));
    make(&m, &gpu, NULL, 1, &y);
    run(&m, 1, &y);
    pass_groups_fini(&m.groups);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_linear), TEST(test_movement),    TEST(test_through_casts), TEST(test_generated), TEST(test_not_fused),
      TEST(test_bias),   TEST(test_activations), TEST(test_users),         TEST(test_mlp),       TEST(test_gpt2),
      TEST(test_wrong),  TEST(test_faults),      TEST(test_lookalikes)};
  return cmocka_run_group_tests_name("sched/dot_call", tests, NULL, NULL);
}
