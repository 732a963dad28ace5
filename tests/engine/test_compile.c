/* tests/engine/test_compile.c -- the compiler: kernels once each, passes by name, stages in order, lack of memory */
/* tests/engine/test_compile.c -- the compiler: kernels once each, passes by name, stages in order, lack of memory */
#include <fenv.h>

#include "engine/engine_test.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#if defined(__SSE__) || defined(__aarch64__)
enum { FLUSHES = 1 };
#else
enum { FLUSHES = 0 };
#endif

static quern_tensor *layer(quern_tensor *x, quern_tensor *w) { return quern_softmax(quern_matmul(x, w), 1); }

/* Twelve equal layers have the kernels of one. */
static void equal_layers_compile_once(void **state) {
  (void)state;
  size_t kernels[2];
  for (int way = 0; way < 2; way++) {
    quern_tensor *x = F32_INPUT("x", 8, 8);
    quern_program_stats counts = QUERN_INIT(quern_program_stats);
    for (int i = 0; i < (way == 0 ? 1 : 12); i++) x = layer(x, F32_INPUT("w", 8, 8));
    open_program(TENSORS(x), NULL);
    EXPECT_OK(quern_program_get_stats(program, &counts));
    kernels[way] = counts.kernels;
    assert_true(counts.nodes_after > 0 && counts.nodes_before > 0 && counts.steps >= counts.kernels);
    close_program();
  }
  assert_int_equal(kernels[0], kernels[1]);
}

/* Equal expressions are one node: nothing is computed twice. */
static void equal_expressions_are_one(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 8, 8), *a = quern_matmul(x, x), *b = quern_matmul(x, x);
  assert_ptr_equal(a, b);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.passes = "-fuse";
  open_program(TENSORS(quern_add(quern_exp(a), quern_exp(b))), &options);
  assert_int_equal(program->counts.steps, 3);
  close_program();
}

static void passes_by_name(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 8, 8), *y = quern_tanh(quern_exp(quern_neg(x)));
  size_t steps[2];
  for (int way = 0; way < 2; way++) {
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.passes = way == 0 ? NULL : "-fuse";
    open_program(TENSORS(y), &options);
    steps[way] = program->counts.steps;
    close_program();
  }
  assert_true(steps[0] == 1 && steps[1] == 3);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.passes = "-fuze";
  EXPECT_ERROR(quern_program_compile(&program, ctx, TENSORS(y), &options), INVALID, "fuze");
  assert_null(program);
}

/* Nodes that compute something: an unfused group has one. */
static int computing_nodes(const struct pass_group *group) {
  int n = 0;
  for (size_t i = 0; i < group->n_nodes; i++) {
    enum ir_op op = group->nodes[i]->op;
    n += op != IR_RESHAPE && op != IR_BROADCAST && op != IR_STOP_GRAD && op != IR_CONST;
  }
  return n;
}

/* Groups that are said to have no kernel: contractions with an epilogue, all that is fused, or every contraction. */
static bool fused_dots_fail(const struct pass_group *group) {
  return group->kind == PASS_KIND_DOT && computing_nodes(group) > 1;
}
static bool fused_groups_fail(const struct pass_group *group) { return computing_nodes(group) > 1; }
static bool dots_fail(const struct pass_group *group) { return group->kind == PASS_KIND_DOT; }

static quern_status compile_failing(bool (*fails)(const struct pass_group *), const char *device, const char *target,
                                    quern_tensor *y) {
  struct engine_request request;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = device;
  options.target = target;
  EXPECT_OK(engine_request_make(&request, ctx, 1, &y, &options));
  request.fails = fails;
  return engine_compile(&program, &request);
}

/* What cannot be compiled fused is compiled unfused, and has the same bits. */
static void unfused_where_fusing_fails(void **state) {
  (void)state;
  bool (*const fails[])(const struct pass_group *) = {NULL, fused_dots_fail, fused_groups_fail};
  static char want[MOST_BYTES];
  size_t steps[BASE_COUNT(fails)];
  for (size_t way = 0; way < BASE_COUNT(fails); way++) {
    quern_tensor *x = F32_INPUT("x", 8, 8), *w = F32_INPUT("w", 8, 8);
    quern_tensor *y = quern_tanh(quern_add(quern_matmul(x, w), x));
    y = quern_softmax(quern_reshape(y, QUERN_LIST(4, 16)), 1);
    EXPECT_OK(compile_failing(fails[way], "interp", "sm_90", y));
    steps[way] = program->counts.steps;
    fill_program();
    run_program();
    if (way == 0) memcpy(want, outputs.at[0], sizeof want);
    assert_memory_equal(outputs.at[0], want, ir_bytes(y));
    close_program();
  }
  assert_true(steps[0] < steps[1] && steps[1] < steps[2]);
  for (int time = 0; time < 2; time++) { /* compiled, then found in the cache: it is reported again */
    quern_tensor *x = F32_INPUT("x", 8, 8), *y = quern_tanh(quern_matmul(x, x));
    EXPECT_OK(compile_failing(fused_dots_fail, "cpu", NULL, y));
    assert_true(program->counts.unfused == 2);
    close_program();
  }
}

/* A node that has no kernel by itself is an error that names it and its layer. */
static void errors_name_the_layer(void **state) {
  (void)state;
  quern_tensor *y = quern_matmul(F32_INPUT("x", 8, 8), F32_STATE("encoder.0.weight", 8, 8));
  EXPECT_ERROR(compile_failing(dots_fail, "interp", "sm_90", quern_tanh(y)), INTERNAL, "a dot of layer encoder.0: %");
  assert_null(program);
}

/* Every allocation of compiling, and of making an instance, may fail. */
static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_tensor *x = F32_INPUT("x", 4, 4), *s = F32_STATE("s", 4, 4), *y = layer(quern_add(x, s), x);
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.device = "interp";
    options.threads = 1;
    options.n_updates = 1;
    options.updates = &(quern_update){s, y};
    EXPECT_OK(quern_context_check(ctx));
    fault_begin(&fault);
    quern_status status = quern_program_compile(&program, ctx, TENSORS(y, quern_sum(y, QUERN_ALL, false)), &options);
    if (status == QUERN_STATUS_OK) status = quern_instance_new(&instance, program);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    close_program();
    test_renew();
  }
  assert_true(fault.n > 50);
}

/* The same with control, whose bodies have plans of their own. */
static void body(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(in[1], quern_exp(in[1]));
}

static void lack_of_memory_in_loops(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_tensor *results[1], *x = F32_INPUT("x", 4);
    quern_loop_options loop = {sizeof loop, 3, false, 1, 0, 0, 0};
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.device = "interp";
    options.threads = 1;
    EXPECT_OK(quern_loop(ctx, &loop, &x, body, NULL, results));
    fault_begin(&fault);
    quern_status status = quern_program_compile(&program, ctx, 1, results, &options);
    if (status == QUERN_STATUS_OK) status = quern_instance_new(&instance, program);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    close_program();
    test_renew();
  }
  assert_true(fault.n > 20);
}

/* A compilation leaves the context as it was: whether it succeeds, fails or finds the program in the cache. */
static void the_context_does_not_grow(void **state) {
  (void)state;
  quern_tensor *results[1], *x = F32_INPUT("x", 4, 4), *y = quern_layer_norm(layer(x, x), 1, NULL, NULL, 1e-5);
  quern_loop_options loop = {sizeof loop, 3, false, 1, 0, 0, 0};
  EXPECT_OK(quern_loop(ctx, &loop, &y, body, NULL, results));
  EXPECT_OK(quern_grad(quern_sum(results[0], QUERN_ALL, false), 1, &x, &y));
  size_t nodes = quern_context_node_count(ctx), live = 0;
  char text[2][64];
  for (int i = 0; i < 1000; i++) {
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.device = i % 3 == 2 ? "cpu" : "interp";
    options.threads = 1;
    options.memory_limit = i % 3 == 1; /* a byte is too little */
    quern_status status = quern_program_compile(&program, ctx, TENSORS(results[0], y), &options);
    assert_int_equal(status, i % 3 == 1 ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK);
    if (i % 3 == 0) snprintf(text[i > 0], sizeof *text, "%s", program->kernels[0]->name);
    quern_program_free(program);
    assert_int_equal(quern_context_node_count(ctx), nodes);
    if (i < 3) live = context_stats(ctx).live_bytes; /* tables of the maps have grown as far as they will */
    assert_int_equal(context_stats(ctx).live_bytes, live);
    assert_int_equal(ctx->marks.n + ctx->entries.n, 0);
  }
  program = NULL;
  assert_string_equal(text[0], text[1]);
  EXPECT_OK(quern_context_check(ctx));
  expect_all(TENSORS(results[0], y)); /* and its nodes are good for use */
}

/* Marks of the caller's are good afterwards, and nothing of a program is in the context. */
static void marks_stay(void **state) {
  (void)state;
  quern_mark mark;
  quern_tensor *x = F32_INPUT("x", 4, 4);
  EXPECT_OK(quern_context_mark(ctx, &mark));
  size_t nodes = quern_context_node_count(ctx);
  quern_tensor *y = layer(quern_add(x, quern_scalar(ctx, QUERN_DTYPE_F32, 2)), x);
  static char expected[MOST_SLOTS][MOST_BYTES];
  open_program(TENSORS(y), NULL);
  eval_roots(TENSORS(y), expected);
  EXPECT_OK(quern_context_rewind(ctx, mark, 0, NULL));
  assert_int_equal(quern_context_node_count(ctx), nodes);
  quern_tensor *other = F32_INPUT("y", 4, 4); /* memory of the nodes is used again */
  for (int i = 0; i < 100; i++) other = quern_exp(other);
  run_program();
  for (size_t i = 0; i < 16; i++)
    assert_true(fabs((double)((float *)(void *)outputs.data[0])[i] - (double)((float *)(void *)expected[0])[i]) < 1e-5);
  close_program();
}

/* ---- hosts with a floating-point state of their own -------------------------------------------------------------- */

/* Denormals become 0, as games and audio hosts have it, and results are rounded up. */
static void set_host_floats(void) {
  fesetround(FE_UPWARD);
#if defined(__SSE__)
  _mm_setcsr(_mm_getcsr() | 0x8040); /* FTZ, DAZ */
#elif defined(__aarch64__)
  unsigned long long state;
  __asm__ volatile("mrs %0, fpcr" : "=r"(state));
  __asm__ volatile("msr fpcr, %0" : : "r"(state | 1ull << 24));
#endif
}

static volatile float tiny = 1e-20f, tenth = 0.1f;

/* What is folded, computed and evaluated has the same bits, and the host has its state afterwards. */
static void host_floats(void **state) {
  (void)state;
  float computed[2][4], evaluated[2][4], folded[2][4], denormal = tiny * tiny, square = tenth * tenth;
  assert_true(denormal > 0);
  fenv_t normal;
  fegetenv(&normal);
  for (int host = 0; host < 2; host++) {
    quern_mark mark;
    quern_graph *graph;
    EXPECT_OK(quern_context_mark(ctx, &mark));
    quern_tensor *x = quern_constant(ctx, QUERN_DTYPE_F32, QUERN_LIST(4), (float[]){1e-20f, 0.1f, -0.3f, 1e-38f});
    quern_tensor *y = quern_mul(x, x), *z = quern_mul(F32_INPUT("x", 4), x);
    EXPECT_OK(quern_graph_new(&graph, ctx, 1, &y, NULL));
    if (host) set_host_floats();
    open_program(TENSORS(quern_add(z, y)), NULL);
    memcpy(inputs.at[0], (float[]){1e-21f, 0.7f, 0.3f, 0.01f}, 16);
    run_program();
    memcpy(computed[host], outputs.at[0], 16);
    close_program();
    EXPECT_OK(quern_eval_reference(ctx, 1, &y, &(void *){evaluated[host]}, 0, NULL));
    EXPECT_OK(quern_graph_rewrite(graph, false));
    memcpy(folded[host], quern_graph_output(graph, 0)->node->attrs->data.at, 16);
    if (host) {
      assert_true(tiny * tiny == 0 || FLUSHES == 0);
      assert_int_equal(fegetround(), FE_UPWARD);
    }
    fesetenv(&normal);
    quern_graph_free(graph);
    EXPECT_OK(quern_context_rewind(ctx, mark, 0, NULL));
  }
  assert_true(evaluated[0][0] == denormal && evaluated[0][1] == square);
  assert_memory_equal(computed[0], computed[1], 16);
  assert_memory_equal(evaluated[0], evaluated[1], 16);
  assert_memory_equal(folded[0], folded[1], 16);
  assert_memory_equal(folded[0], evaluated[0], 16);
}

/* ---- graphs that double ------------------------------------------------------------------------------------------ */

static void expect_small_kernels(quern_tensor *y) {
  open_program(TENSORS(y), NULL);
  assert_int_equal(program->counts.unfused, 0);
  for (int k = 0; k < program->n_kernels; k++) {
    size_t insts = 0;
    for (size_t i = 0; i < program->kernels[k]->fns.n; i++) insts += program->kernels[k]->fns.at[i]->insts.n;
    assert_in_range(insts, 1, 4000);
  }
  close_program();
  expect_all(TENSORS(y));
}

/* What is put together from itself ten times is read in parts, by kernels of a bounded size. */
static void doubled_concatenations(void **state) {
  (void)state;
  quern_tensor *y = quern_exp(F32_INPUT("x", 1));
  for (int i = 0; i < 10; i++) y = quern_concat(2, (quern_tensor *[]){y, y}, 0);
  expect_small_kernels(y);
}

/* The same with mirror images: a part that is cheap to put together again is read all the same where many are. */
static void mirrored_concatenations(void **state) {
  (void)state;
  quern_tensor *y = F32_INPUT("x", 2);
  for (int i = 0; i < 9; i++) y = quern_concat(2, (quern_tensor *[]){y, quern_flip(y, QUERN_LIST(0))}, 0);
  expect_small_kernels(y);
}

/* Composites in composites, two in each: of the same operand, or of different ones. */
static quern_graph *nested_composites(int depth, bool same) {
  static char text[1 << 14];
  quern_graph *graph = NULL;
  int n = snprintf(text, sizeof text, "quern 1\nfn @f0 (%%0: f32[8]) {\n%%1 = exp %%0 : f32[8]\nreturn %%1\n}\n");
  for (int k = 1; k < depth; k++)
    n += snprintf(text + n, sizeof text - (size_t)n,
                  "fn @f%d (%%0: f32[8]) {\n%%1 = exp %%0 : f32[8]\n%%2 = sin %%0 : f32[8]\n"
                  "%%3 = composite %%1 name=\"c%d\" ints=[] reals=[] body=@f%d : f32[8]\n"
                  "%%4 = composite %%%d name=\"d%d\" ints=[] reals=[] body=@f%d : f32[8]\n"
                  "%%5 = add %%3 %%4 : f32[8]\nreturn %%5\n}\n",
                  k, k, k - 1, same ? 1 : 2, k, k - 1);
  snprintf(text + n, sizeof text - (size_t)n,
           "%%0 = input name=\"x\" dtype=f32 shape=[8]\n"
           "%%1 = composite %%0 name=\"top\" ints=[] reals=[] body=@f%d : f32[8]\nreturn %%1\n",
           depth - 1);
  EXPECT_OK(quern_graph_parse(&graph, ctx, text, strlen(text)));
  return graph;
}

static void nested_composites_are_bounded(void **state) {
  (void)state;
  quern_graph *graph = nested_composites(30, true); /* each body once: 2^30 visits would not end */
  open_program(TENSORS(quern_graph_output(graph, 0)), NULL);
  run_program();
  EXPECT_OK(quern_graph_inline(graph));
  static char expected[MOST_SLOTS][MOST_BYTES];
  eval_roots(TENSORS(quern_graph_output(graph, 0)), expected);
  expect_near(quern_graph_output(graph, 0), outputs.at[0], expected[0]);
  close_program();
  quern_graph_free(graph);
  graph = nested_composites(30, false); /* 2^30 nodes */
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  EXPECT_ERROR(quern_program_compile(&program, ctx, TENSORS(quern_graph_output(graph, 0)), &options), UNSUPPORTED,
               "more than 262144 nodes");
  EXPECT_ERROR(quern_graph_inline(graph), UNSUPPORTED, "more than 262144 nodes");
  quern_graph_free(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(equal_layers_compile_once),
                                     TEST(equal_expressions_are_one),
                                     TEST(passes_by_name),
                                     TEST(unfused_where_fusing_fails),
                                     TEST(errors_name_the_layer),
                                     TEST(lack_of_memory),
                                     TEST(lack_of_memory_in_loops),
                                     TEST(the_context_does_not_grow),
                                     TEST(marks_stay),
                                     TEST(host_floats),
                                     TEST(doubled_concatenations),
                                     TEST(mirrored_concatenations),
                                     TEST(nested_composites_are_bounded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
