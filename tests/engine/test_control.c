/* tests/engine/test_control.c -- loops, while and if as steps with plans of their own, against the evaluator */
/* tests/engine/test_control.c -- loops, while and if as steps with plans of their own, against the evaluator */
#include "engine/engine_test.h"
#include "nested.h"

/* ---- loops --------------------------------------------------------------------------------------------- */

static quern_status make_loop(int64_t trip, bool reverse, int carries, int scanned, int captures, int stacked,
                              quern_tensor *const *operands, quern_body *body, void *user, quern_tensor **results) {
  quern_loop_options options = {sizeof options, trip, reverse, carries, scanned, captures, stacked};
  return quern_loop(ctx, &options, operands, body, user, results);
}

/* body(i, c, x, k): c' = c + x k + i, y = (c - x, i) */
static void body_step(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(quern_add(in[1], quern_mul(in[2], in[3])), quern_cast(in[0], QUERN_DTYPE_F32));
  out[1] = quern_sub(in[1], in[2]);
  out[2] = in[0];
}

static void loops_of_any_length(void **state) {
  (void)state;
  for (int64_t trip = 0; trip <= 5; trip++) {
    for (int reverse = 0; reverse < 2; reverse++) {
      quern_tensor *results[3];
      quern_tensor *operands[] = {F32_INPUT("c", 3), F32_INPUT("x", trip, 3), F32_INPUT("k", 3)};
      EXPECT_OK(make_loop(trip, reverse != 0, 1, 1, 1, 2, operands, body_step, NULL, results));
      expect_all(TENSORS(results[0], results[1], results[2]));
    }
  }
}

/* body(i, a, b, c): a' = b, b' = a, c' = c: carries that move, and one that stays */
static void body_swap(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = in[2];
  out[1] = in[1];
  out[2] = in[3];
  out[3] = in[1];
}

static void carries_that_move(void **state) {
  (void)state;
  for (int64_t trip = 1; trip <= 4; trip++) {
    quern_tensor *results[4], *operands[] = {F32_INPUT("a", 3), F32_INPUT("b", 3), F32_INPUT("c", 2)};
    EXPECT_OK(make_loop(trip, false, 3, 0, 0, 1, operands, body_swap, NULL, results));
    expect_all(TENSORS(results[0], results[1], results[2], results[3]));
  }
}

/* A loop in a loop, whose number of turns the inner one sums up: rows of a matrix, elements of a row. */
static void body_inner(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(in[1], quern_tanh(in[2]));
}

static void body_outer(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  quern_tensor *inner[1];
  if (make_loop(4, false, 1, 1, 0, 0, (quern_tensor *[]){in[1], in[2]}, body_inner, NULL, inner) != QUERN_STATUS_OK) {
    out[0] = out[1] = NULL;
    return;
  }
  out[0] = quern_mul(inner[0], in[3]);
  out[1] = quern_sum(quern_add(inner[0], in[2]), QUERN_ALL, false);
}

static void loops_in_loops(void **state) {
  (void)state;
  quern_tensor *results[2], *operands[] = {quern_input(ctx, "c", QUERN_DTYPE_F32, QUERN_SCALAR), F32_INPUT("x", 5, 4),
                                           quern_input(ctx, "k", QUERN_DTYPE_F32, QUERN_SCALAR)};
  EXPECT_OK(make_loop(5, true, 1, 1, 1, 1, operands, body_outer, NULL, results));
  expect_all(TENSORS(results[0], results[1], quern_add(results[0], results[0])));
}

/* A carry that is only added to is kept in one place, that of its source; one that is multiplied is not. */
static void body_sum(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(in[1], in[3]);
  out[1] = quern_matmul(in[2], in[3]);
}

static const struct engine_control *find_control(void) {
  for (int i = 0; i < program->subprograms[0].n_steps; i++)
    if (program->subprograms[0].steps[i].control != NULL) return program->subprograms[0].steps[i].control;
  return NULL;
}

static void carries_in_place(void **state) {
  (void)state;
  for (int64_t trip = 2; trip <= 3; trip++) {
    quern_tensor *results[2];
    quern_tensor *operands[] = {quern_exp(F32_INPUT("a", 16, 16)), F32_INPUT("b", 16, 16),
                                F32_INPUT("x", trip, 16, 16)};
    EXPECT_OK(make_loop(trip, false, 2, 1, 0, 0, operands, body_sum, NULL, results));
    quern_tensor *sum = quern_sum(results[0], QUERN_ALL, false), *other = quern_sum(results[1], QUERN_ALL, false);
    open_program(TENSORS(sum, other), NULL);
    const struct engine_control *control = find_control();
    assert_non_null(control);
    assert_true(control->in_place[0] == 1 && control->in_place[1] == 0);
    assert_true(program->memory.arena < 4 * 1024); /* exp a and the sum in one place, two for b */
    close_program();
    expect_all(TENSORS(sum, other));
  }
}

/* A carry that is stacked lies where it is stacked, and the other one, which is not, does not. */
static void body_stacked(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  quern_tensor *swapped = quern_transpose(in[1], 0, 1), *less = quern_mul_scalar(in[2], 0.5);
  out[0] = quern_add(swapped, in[3]);
  out[1] = quern_add(less, in[1]);
  out[2] = quern_tanh(in[3]);
  out[3] = out[0];
}

static void carries_that_are_stacked(void **state) {
  (void)state;
  for (int64_t trip = 0; trip <= 4; trip++) {
    for (int reverse = 0; reverse < 2; reverse++) {
      quern_tensor *results[4];
      quern_tensor *operands[] = {F32_INPUT("a", 4, 4), F32_INPUT("b", 4, 4), F32_INPUT("x", trip, 4, 4)};
      EXPECT_OK(make_loop(trip, reverse != 0, 2, 1, 0, 2, operands, body_stacked, NULL, results));
      open_program(TENSORS(results[0], results[1], results[2], results[3]), NULL);
      const struct engine_control *control = find_control();
      assert_true(control == NULL || (control->slot[0] == 3 && control->slot[1] == 0 && control->in_place[0] == 0));
      close_program();
      expect_all(TENSORS(results[0], results[1], results[2], results[3]));
      expect_all(TENSORS(results[1], quern_sum(results[3], QUERN_ALL, false)));
    }
  }
}

/* Carries in place that start as one tensor: the first has its place, unless somebody else reads it as well. */
struct start {
  int carries, captures; /* a third carry is multiplied; a capture is stacked */
  bool taken;
};

static void body_sums(void *user, quern_tensor *const *in, quern_tensor **out) {
  const struct start *start = user;
  quern_tensor *x = in[1 + start->carries];
  out[0] = quern_add(in[1], x);
  out[1] = quern_sub(in[2], x);
  if (start->carries == 3) out[2] = quern_matmul(in[3], x);
  if (start->captures == 1) out[2] = quern_mul(in[2 + start->carries], x);
}

static bool takes_start(void) {
  const struct engine_subprogram *part = &program->subprograms[0];
  for (int i = 0; i < part->n_steps; i++) {
    const struct engine_step *step = &part->steps[i];
    if (step->control == NULL) continue;
    const struct engine_buffer *from = &part->buffers[step->buffers[0]];
    const struct engine_buffer *to = &part->buffers[step->buffers[step->control->n_src]];
    return from->place == to->place && from->at == to->at;
  }
  return false;
}

static void carries_of_one_start(void **state) {
  (void)state;
  struct start cases[] = {{2, 0, true}, {3, 0, false}, {2, 1, false}};
  for (size_t k = 0; k < BASE_COUNT(cases); k++) {
    int n = cases[k].carries, captures = cases[k].captures;
    quern_tensor *results[3], *sums[3], *start = quern_exp(F32_INPUT("a", 16, 16));
    quern_tensor *operands[5] = {start, start, start};
    operands[n] = F32_INPUT("x", 2, 16, 16);
    operands[n + 1] = start;
    EXPECT_OK(make_loop(2, false, n, 1, captures, captures, operands, body_sums, &cases[k], results));
    for (int i = 0; i < n + captures; i++) sums[i] = quern_sum(quern_tanh(results[i]), QUERN_ALL, false);
    open_program((size_t)(n + captures), sums, NULL);
    assert_int_equal(takes_start(), cases[k].taken);
    close_program();
    expect_all((size_t)(n + captures), sums);
  }
}

/* A carry that two kernels make one after the other, a product and rows that are added, is in place for both; but not when what is
** between them is asked for as well. */
static void body_chain(void *user, quern_tensor *const *in, quern_tensor **out) {
  const bool *asked = user;
  quern_tensor *x = in[2], *first = quern_add(in[1], quern_matmul(x, x));
  out[0] = quern_scatter(first, in[3], in[4], 0, QUERN_SCATTER_ADD);
  if (*asked) out[1] = first;
}

static void carries_of_many_kernels(void **state) {
  (void)state;
  for (int k = 0; k < 2; k++) {
    bool asked = k == 1;
    quern_tensor *results[2];
    quern_tensor *operands[] = {quern_exp(F32_INPUT("a", 16, 16)), F32_INPUT("x", 3, 16, 16), I64_INPUT("rows", 4),
                                F32_INPUT("u", 4, 16)};
    EXPECT_OK(make_loop(3, false, 1, 1, 2, k, operands, body_chain, &asked, results));
    open_program((size_t)(1 + k), results, NULL);
    const struct engine_control *control = find_control();
    assert_true(control != NULL && control->in_place[0] == 1);
    assert_int_equal(program->subprograms[control->body].memory.arena, 0);
    assert_int_equal(program->subprograms[control->body].n_steps, 2);
    close_program();
    expect_all((size_t)(1 + k), results);
  }
}

/* What a body does counts as often as it does it. */
static void counts_of_turns(void **state) {
  (void)state;
  double flops[3], bytes[3];
  for (int64_t k = 0; k < 3; k++) {
    quern_tensor *results[2],
        *operands[] = {F32_INPUT("a", 16, 16), F32_INPUT("b", 16, 16), F32_INPUT("x", 2 + k, 16, 16)};
    EXPECT_OK(make_loop(2 + k, false, 2, 1, 0, 0, operands, body_sum, NULL, results));
    open_program(2, results, NULL);
    flops[k] = program->counts.flops;
    bytes[k] = program->counts.bytes;
    close_program();
  }
  assert_true(flops[1] - flops[0] >= 2 * 16 * 16 * 16 && flops[2] - flops[1] == flops[1] - flops[0]);
  assert_true(bytes[1] - bytes[0] >= 4 * 16 * 16 * 4 && bytes[2] - bytes[1] == bytes[1] - bytes[0]);
}

/* The same body in two loops is compiled once. */
static void equal_bodies(void **state) {
  (void)state;
  quern_tensor *a[3], *b[3];
  quern_tensor *first[] = {F32_INPUT("c", 3), F32_INPUT("x", 4, 3), F32_INPUT("k", 3)};
  EXPECT_OK(make_loop(4, false, 1, 1, 1, 2, first, body_step, NULL, a));
  quern_tensor *second[] = {a[0], F32_INPUT("x", 4, 3), F32_INPUT("k", 3)};
  EXPECT_OK(make_loop(4, false, 1, 1, 1, 2, second, body_step, NULL, b));
  open_program(TENSORS(b[0], b[1]), NULL);
  assert_int_equal(program->n_subprograms, 2);
  close_program();
  expect_all(TENSORS(b[0], b[1], a[1]));
}

/* Constants as operands and as results of a body. */
static void body_constant(void *user, quern_tensor *const *in, quern_tensor **out) {
  quern_context *context = user;
  out[0] = quern_full(context, QUERN_DTYPE_F32, QUERN_LIST(2), 3);
  out[1] = quern_add(in[1], quern_constant(context, QUERN_DTYPE_F32, QUERN_LIST(2), (float[]){1, 2}));
  out[2] = in[2];
}

static void constants(void **state) {
  (void)state;
  quern_tensor *results[3], *operands[] = {quern_full(ctx, QUERN_DTYPE_F32, QUERN_LIST(2), 7),
                                           quern_full(ctx, QUERN_DTYPE_F32, QUERN_SCALAR, 2)};
  EXPECT_OK(make_loop(3, false, 1, 0, 1, 2, operands, body_constant, ctx, results));
  expect_all(TENSORS(results[0], results[1], results[2]));
}

/* ---- while ---------------------------------------------------------------------------------------------- */

/* while c < limit: (c, s) = (c + 1, s x) */
static void while_less(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_lt(in[0], in[2]);
}

static void while_body(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(in[0], quern_full(quern_tensor_context(in[0]), QUERN_DTYPE_I64, QUERN_SCALAR, 1));
  out[1] = quern_add(quern_mul(in[1], in[3]), in[3]);
}

static void whiles_of_any_length(void **state) {
  (void)state;
  for (int turns = 0; turns <= 4; turns++) {
    quern_tensor *results[2];
    quern_tensor *operands[] = {quern_full(ctx, QUERN_DTYPE_I64, QUERN_SCALAR, 0), F32_INPUT("s", 3),
                                quern_full(ctx, QUERN_DTYPE_I64, QUERN_SCALAR, turns), F32_INPUT("x", 3)};
    EXPECT_OK(quern_while(ctx, 2, 2, operands, while_less, while_body, NULL, results));
    expect_all(TENSORS(results[0], results[1]));
  }
}

/* ---- if -------------------------------------------------------------------------------------------------- */

static void if_then(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_exp(in[0]);
  out[1] = in[1];
}

static void if_else(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(in[0], quern_mul(in[1], in[1]));
  out[1] = quern_sum(quern_matmul(quern_reshape(in[0], QUERN_LIST(3, 1)), quern_reshape(in[1], QUERN_LIST(1, 3))),
                     QUERN_LIST(0), false);
}

static void both_branches(void **state) {
  (void)state;
  for (int yes = 0; yes < 2; yes++) {
    quern_tensor *results[2], *operands[] = {F32_INPUT("a", 3), F32_INPUT("b", 3)};
    quern_tensor *sum = quern_sum(operands[0], QUERN_ALL, false);
    quern_tensor *far = quern_full(ctx, QUERN_DTYPE_F32, QUERN_SCALAR, yes != 0 ? -1000 : 1000);
    EXPECT_OK(quern_if(quern_gt(sum, far), 2, operands, 2, if_then, if_else, NULL, results));
    expect_all(TENSORS(results[0], results[1]));
  }
}

/* ---- one subgraph in many places --------------------------------------------------------------------------------- */

static quern_graph *parse(const char *text) {
  quern_graph *graph;
  EXPECT_OK(quern_graph_parse(&graph, ctx, text, strlen(text)));
  return graph;
}

/* Branches that hold two others each, 30 deep: a billion ways to the innermost, of which a run goes few. */
static void branches_in_branches(void **state) {
  (void)state;
  quern_graph *graph = test_nested_graph(
      30, "[4]",
      "%0 = input name=\"x\" dtype=f32 shape=[4]\n%1 = reduce %0 axes=[0] reduce=max\n"
      "%2 = const dtype=f32 shape=[] data={-1000}\n%3 = lt %2 %1\n%4 = if %3 %3 %0 body=@f30 other=@f0\nreturn %4\n");
  quern_program_options options = QUERN_INIT(quern_program_options);
  expect_same(TENSORS(quern_graph_output(graph, 0)), &options);
  options.device = "cpu"; /* its programs are looked for in the cache */
  expect_same(TENSORS(quern_graph_output(graph, 0)), &options);
  quern_graph_free(graph);
}

/* What less memory costs, and which rows go where, are asked of each of many nested branches once. */
static void rows_in_branches(void **state) {
  (void)state;
  quern_graph *graph =
      test_nested_graph(30, "[4,3]",
                        "%0 = input name=\"c\" dtype=bool shape=[]\n%1 = input name=\"x\" dtype=f32 shape=[4,3]\n"
                        "%2 = if %0 %0 %1 body=@f30 other=@f0\nreturn %2\n");
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_tensor *out = quern_graph_output(graph, 0);
  quern_curve_point points[4] = {QUERN_INIT(quern_curve_point)};
  size_t n_points;
  EXPECT_OK(quern_program_curve(ctx, 1, &out, &options, 4, points, &n_points));
  assert_true(n_points >= 1 && points[0].seconds > 0);
  quern_tensor *x = quern_graph_input(graph, 1);
  options.dynamic_batch = &x;
  options.n_dynamic_batch = 1;
  options.plan_only = true;
  quern_program *planned;
  EXPECT_OK(quern_program_compile(&planned, ctx, 1, &out, &options));
  quern_program_free(planned);
  quern_graph_free(graph);
}

/* The body of a while is that of a loop in its condition, too. */
static void bodies_in_conditions(void **state) {
  (void)state;
  quern_graph *graph =
      parse("quern 1\nfn @f (%0: i64[], %1: i64[]) {\n%2 = add %0 %1\nreturn %2\n}\n"
            "fn @g (%0: i64[], %1: i64[]) {\n"
            "%2 = loop %1 trip=3 carries=1 scanned=0 reverse=0 body=@f\n%3 = lt %0 %2\nreturn %3\n}\n"
            "%0 = input name=\"x\" dtype=f32 shape=[4]\n%1 = reduce %0 axes=[0] reduce=max\n"
            "%2 = abs %1\n%3 = cast %2 dtype=i64\n%4 = const dtype=i64 shape=[] data={3}\n%5 = add %3 %4\n"
            "%6 = const dtype=i64 shape=[] data={-20}\n"
            "%7 = while %6 %5 carries=1 body=@f other=@g\nreturn %7\n");
  expect_all(TENSORS(quern_graph_output(graph, 0)));
  quern_graph_free(graph);
}

/* Gradients through a loop: the way back is a loop over saved carries. */
static void gradients(void **state) {
  (void)state;
  quern_tensor *results[3], *dx[3];
  quern_tensor *operands[] = {F32_INPUT("c", 3), F32_INPUT("x", 4, 3), F32_INPUT("k", 3)};
  EXPECT_OK(make_loop(4, false, 1, 1, 1, 2, operands, body_step, NULL, results));
  quern_tensor *loss = quern_sum(quern_tanh(results[0]), QUERN_ALL, false);
  EXPECT_OK(quern_grad(loss, 3, operands, dx));
  expect_all(TENSORS(loss, dx[0], dx[1], dx[2]));
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(loops_of_any_length),
                                     TEST(carries_that_move),
                                     TEST(loops_in_loops),
                                     TEST(carries_in_place),
                                     TEST(carries_that_are_stacked),
                                     TEST(carries_of_one_start),
                                     TEST(carries_of_many_kernels),
                                     TEST(counts_of_turns),
                                     TEST(equal_bodies),
                                     TEST(constants),
                                     TEST(whiles_of_any_length),
                                     TEST(both_branches),
                                     TEST(gradients),
                                     TEST(branches_in_branches),
                                     TEST(rows_in_branches),
                                     TEST(bodies_in_conditions)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
