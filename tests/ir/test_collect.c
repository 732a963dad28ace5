/* tests/ir/test_collect.c -- collecting: what is needed stays where it is, the rest is gone, its memory is used again */
#define TEST_CONTEXT_NEW quern_context_new
#include "ir/ir_test.h"
#include "quern/quern.h"

static quern_tensor *copy(int64_t n, float first) {
  float data[64];
  for (int64_t i = 0; i < n; i++) data[i] = first + (float)i;
  return quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(n), data);
}

static void expect_values(quern_tensor *y, size_t n, const float *expected) {
  float out[64];
  void *dst = out;
  EXPECT_OK(quern_eval_reference(ctx, 1, &y, &dst, 0, NULL));
  assert_memory_equal(out, expected, n * sizeof *out);
  EXPECT_OK(ir_verify(ctx, 1, &y));
}

/* A quern_body: i, and what is carried. */
static void twice(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[1], args[1]);
}

/* Expressions of all kinds: composites with attributes, their bodies, a loop, constants, several results. */
static quern_tensor *build(quern_tensor *x, float first) {
  quern_tensor *y = quern_softmax(quern_gelu(quern_add(x, copy(8, first))), 0);
  quern_loop_options loop = {.size = sizeof loop, .trip = 3, .n_carries = 1};
  quern_tensor *carry = NULL, *dx = NULL;
  EXPECT_OK(quern_loop(ctx, &loop, &y, twice, NULL, &carry));
  EXPECT_OK(quern_grad(quern_sum(quern_tanh(y), QUERN_ALL, false), 1, &x, &dx));
  return quern_add(carry, dx);
}

static void what_is_needed_stays(void **state) {
  (void)state;
  quern_tensor *x = copy(8, 1), *y = build(x, 3), *older = quern_neg(x);
  EXPECT_OK(quern_context_collect(ctx, 2, (quern_tensor *[]){y, older}));
  size_t before = quern_context_node_count(ctx);
  (void)quern_exp(older);
  float expected[8];
  void *dst = expected;
  EXPECT_OK(quern_eval_reference(ctx, 1, &y, &dst, 0, NULL));
  quern_tensor *roots[] = {y, older, y};
  EXPECT_OK(quern_context_collect(ctx, 3, roots));
  assert_int_equal(quern_context_node_count(ctx), before);
  expect_values(y, 8, expected);
  assert_ptr_equal(quern_neg(x), older);  /* found as ever */
  quern_tensor *again = quern_exp(older); /* may lie where the other was */
  EXPECT_OK(ir_verify(ctx, 1, &again));
}

static void nothing_is_needed(void **state) {
  (void)state;
  (void)build(copy(8, 1), 2);
  (void)quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(2), (float[]){1, 2});
  quern_tensor *released = copy(16, 1);
  EXPECT_OK(quern_tensor_release(released));
  EXPECT_OK(quern_context_collect(ctx, 0, NULL));
  assert_int_equal(quern_context_node_count(ctx), 0);
  assert_int_equal(ctx->graphs.n, 0);
  assert_int_equal(ctx->bodies.n, 0);
  assert_int_equal(ctx->buffers.n, 0);
  assert_int_equal(ctx->buffer_cache.stats.used_bytes, 0);
  float expected[8];
  void *dst = expected;
  quern_tensor *y = build(copy(8, 1), 2);
  EXPECT_OK(quern_eval_reference(ctx, 1, &y, &dst, 0, NULL));
  expect_values(y, 8, expected);
}

/* The same loop with and without collecting: with it the memory of the context does not change after some turns. */
static void loops_do_not_grow(void **state) {
  (void)state;
  enum { TURNS = 300 };
  quern_tensor *x = copy(8, 1);
  size_t live = 0, allocations = 0;
  for (int turn = 0; turn < TURNS; turn++) {
    quern_tensor *y = build(x, (float)turn);
    float out[8];
    void *dst = out;
    EXPECT_OK(quern_eval_reference(ctx, 1, &y, &dst, 0, NULL));
    x = copy(8, out[0]);
    /* another size each time, so that every class of cells is met */
    float wide[64] = {(float)turn};
    (void)quern_constant(ctx, QUERN_DTYPE_F32, QUERN_LIST(1 + turn % 64), wide);
    EXPECT_OK(quern_context_collect(ctx, 1, &x));
    if (turn == TURNS / 2) live = ctx->heap.live, allocations = ctx->arena.used;
    if (turn > TURNS / 2) assert_true(ctx->heap.live == live && ctx->arena.used == allocations);
  }
  assert_int_equal(quern_context_node_count(ctx), 1);
}

/* Large and small nodes share no cells. */
static void cells_of_all_sizes(void **state) {
  (void)state;
  static unsigned char data[IR_CONST_BYTES];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)i;
  for (int turn = 0; turn < 3; turn++) {
    quern_tensor *kept[20];
    for (int i = 0; i < 20; i++) {
      int64_t n = (int64_t)1 << (i * 16 / 19);
      kept[i] = quern_constant(ctx, QUERN_DTYPE_U8, QUERN_LIST(n), data);
      (void)quern_constant(ctx, QUERN_DTYPE_I8, QUERN_LIST(n), data);
    }
    EXPECT_OK(quern_context_collect(ctx, 20, kept));
    for (int i = 0; i < 20; i++) {
      const struct ir_data *at = &kept[i]->node->attrs->data;
      assert_memory_equal(at->at, data, at->n);
      EXPECT_OK(ir_verify(ctx, 1, &kept[i]));
    }
  }
}

static void holders_keep_theirs(void **state) {
  (void)state;
  quern_model *model;
  quern_step *step;
  quern_graph *graph;
  const quern_update *updates;
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(4, 3));
  quern_tensor *y = quern_nn_batch_norm(quern_scope_in(quern_model_scope(model), "norm"), x, NULL);
  quern_tensor *loss =
      quern_mean(quern_square(quern_nn_linear(quern_model_scope(model), y, 2, NULL)), QUERN_ALL, false);
  EXPECT_OK(quern_step_new(&step, model, loss, NULL));
  EXPECT_OK(quern_graph_new(&graph, ctx, 1, &loss, NULL));
  size_t n = quern_step_updates(step, &updates);
  EXPECT_OK(quern_context_collect(ctx, 0, NULL));
  for (size_t i = 0; i < n; i++) {
    quern_tensor *pair[] = {updates[i].state, updates[i].value};
    EXPECT_OK(ir_verify(ctx, 2, pair));
  }
  quern_tensor *out = quern_graph_output(graph, 0);
  assert_ptr_equal(out, loss);
  EXPECT_OK(ir_verify(ctx, 1, &out));
  for (size_t i = 0; i < quern_model_parameter_count(model); i++) {
    quern_tensor *initial = quern_model_initial(model, i);
    EXPECT_OK(ir_verify(ctx, 1, &initial));
  }
  size_t nodes = quern_context_node_count(ctx);
  quern_graph_free(graph);
  quern_step_free(step);
  quern_model_free(model);
  assert_true(nodes > 20);
  EXPECT_OK(quern_context_collect(ctx, 0, NULL));
  assert_int_equal(quern_context_node_count(ctx), 0);
}

/* Marks are gone; a graph made since a mark, of which the context has gone back, pins nothing. */
static void marks_and_collecting(void **state) {
  (void)state;
  quern_mark mark;
  quern_graph *graph;
  quern_tensor *x = copy(8, 1);
  EXPECT_OK(quern_context_mark(ctx, &mark));
  quern_tensor *y = quern_exp(x);
  EXPECT_OK(quern_graph_new(&graph, ctx, 1, &y, NULL));
  EXPECT_OK(quern_context_rewind(ctx, mark, 0, NULL));
  quern_tensor *keep = copy(8, 5);
  EXPECT_OK(quern_context_rewind(ctx, mark, 1, &keep));
  EXPECT_OK(quern_context_collect(ctx, 1, &keep));
  quern_graph_free(graph);
  EXPECT_ERROR(quern_context_rewind(ctx, mark, 0, NULL), STATE, "or was collected");
  expect_values(keep, 8, (float[]){5, 6, 7, 8, 9, 10, 11, 12});
  assert_int_equal(quern_context_node_count(ctx), 1);
  /* what is made since a mark is freed with it, though there are free cells */
  EXPECT_OK(quern_context_mark(ctx, &mark));
  for (int turn = 0; turn < 3; turn++) {
    (void)build(keep, 1);
    EXPECT_OK(quern_context_rewind(ctx, mark, 0, NULL));
  }
  EXPECT_OK(quern_context_collect(ctx, 1, &keep));
  expect_values(keep, 8, (float[]){5, 6, 7, 8, 9, 10, 11, 12});
}

static void collect_inside(quern_context *c, const struct ir_attrs *attrs, quern_tensor *const *args,
                           quern_tensor **results) {
  (void)attrs;
  results[0] = quern_exp(args[0]);
  if (c->n_scopes > 0) EXPECT_ERROR(quern_context_collect(c, 0, NULL), STATE, "a program is being compiled");
}

static void not_while_compiling(void **state) {
  (void)state;
  static const struct ir_composite kind = {.name = "nosy", .n_results = 1, .body = collect_inside};
  EXPECT_OK(ir_composite_add(ctx, &kind));
  EXPECT_OK(ir_scope_begin(ctx));
  quern_tensor *x = copy(8, 1);
  (void)ir_composite_make(ctx, &kind, (struct ir_ints){0}, (struct ir_reals){0}, 1, &x);
  ir_scope_end(ctx);
  EXPECT_OK(quern_context_collect(ctx, 0, NULL));
}

/* Without memory nothing changes. */
static void without_memory(void **state) {
  (void)state;
  quern_tensor *x = copy(8, 1), *y = build(x, 3);
  (void)quern_exp(y);
  float expected[8];
  void *dst = expected;
  EXPECT_OK(quern_eval_reference(ctx, 1, &y, &dst, 0, NULL));
  EXPECT_OK(quern_context_collect(ctx, 1, &y));
  struct fault fault = {0};
  while (fault_next(&fault)) {
    (void)quern_exp(y);
    size_t nodes = quern_context_node_count(ctx);
    fault_begin(&fault);
    quern_status status = quern_context_collect(ctx, 1, &y);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(quern_context_node_count(ctx), status == QUERN_STATUS_OK ? nodes - 1 : nodes);
    expect_values(y, 8, expected);
  }
  assert_true(fault.n > 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(what_is_needed_stays), TEST(nothing_is_needed),    TEST(loops_do_not_grow),   TEST(cells_of_all_sizes),
      TEST(holders_keep_theirs),  TEST(marks_and_collecting), TEST(not_while_compiling), TEST(without_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
