/* tests/engine/test_compile.c -- the compiler: kernels once each, passes by name, stages in order, lack of memory */
/* tests/engine/test_compile.c -- the compiler: kernels once each, passes by name, stages in order, lack of memory */
#include "engine/engine_test.h"

static quern_tensor *layer(quern_tensor *x, quern_tensor *w) { return quern_softmax(quern_matmul(x, w), 1); }

/* Twelve equal layers have the kernels of one. */
static void equal_layers_compile_once(void **state) {
  (void)state;
  size_t kernels[2];
  for (int way = 0; way < 2; way++) {
    quern_tensor *x = F32_INPUT("x", 8, 8);
    quern_program_counts counts;
    for (int i = 0; i < (way == 0 ? 1 : 12); i++) x = layer(x, F32_INPUT("w", 8, 8));
    open_program(TENSORS(x), NULL);
    EXPECT_OK(quern_program_count(program, &counts));
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
  quern_program_options options = QUERN_PROGRAM_OPTIONS;
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
    quern_program_options options = QUERN_PROGRAM_OPTIONS;
    options.passes = way == 0 ? NULL : "-fuse";
    open_program(TENSORS(y), &options);
    steps[way] = program->counts.steps;
    close_program();
  }
  assert_true(steps[0] == 1 && steps[1] == 3);
  quern_program_options options = QUERN_PROGRAM_OPTIONS;
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
  quern_program_options options = QUERN_PROGRAM_OPTIONS;
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
    quern_program_options options = QUERN_PROGRAM_OPTIONS;
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
    quern_program_options options = QUERN_PROGRAM_OPTIONS;
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
  size_t nodes = quern_context_nodes(ctx), live = 0;
  char text[2][64];
  for (int i = 0; i < 1000; i++) {
    quern_program_options options = QUERN_PROGRAM_OPTIONS;
    options.device = i % 3 == 2 ? "cpu" : "interp";
    options.threads = 1;
    options.memory_limit = i % 3 == 1; /* a byte is too little */
    quern_status status = quern_program_compile(&program, ctx, TENSORS(results[0], y), &options);
    assert_int_equal(status, i % 3 == 1 ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK);
    if (i % 3 == 0) snprintf(text[i > 0], sizeof *text, "%s", program->kernels[0]->name);
    quern_program_free(program);
    assert_int_equal(quern_context_nodes(ctx), nodes);
    if (i < 3) live = quern_context_memory(ctx).live_bytes; /* tables of the maps have grown as far as they will */
    assert_int_equal(quern_context_memory(ctx).live_bytes, live);
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
  size_t nodes = quern_context_nodes(ctx);
  quern_tensor *y = layer(quern_add(x, quern_scalar(ctx, QUERN_DTYPE_F32, 2)), x);
  static char expected[MOST_SLOTS][MOST_BYTES];
  open_program(TENSORS(y), NULL);
  eval_roots(TENSORS(y), expected);
  EXPECT_OK(quern_context_rewind(ctx, mark, 0, NULL));
  assert_int_equal(quern_context_nodes(ctx), nodes);
  quern_tensor *other = F32_INPUT("y", 4, 4); /* memory of the nodes is used again */
  for (int i = 0; i < 100; i++) other = quern_exp(other);
  run_program();
  for (size_t i = 0; i < 16; i++)
    assert_true(fabs((double)((float *)(void *)outputs.data[0])[i] - (double)((float *)(void *)expected[0])[i]) < 1e-5);
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(equal_layers_compile_once),  TEST(equal_expressions_are_one), TEST(passes_by_name),
      TEST(unfused_where_fusing_fails), TEST(errors_name_the_layer),     TEST(lack_of_memory),
      TEST(lack_of_memory_in_loops),    TEST(the_context_does_not_grow), TEST(marks_stay)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
