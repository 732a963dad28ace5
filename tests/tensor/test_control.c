/* tests/tensor/test_control.c -- loops, branches and composites of a caller's functions */
#include "tensor/compound_test.h"

#define F32 QUERN_DTYPE_F32
#define LOOP(...) (&(quern_loop_options){.size = sizeof(quern_loop_options), __VA_ARGS__})

static void expect_status(quern_status got, quern_status want, const char *words, quern_tensor *const *results,
                          int line) {
  test_expect_error(got, want, words, __FILE__, line);
  if (results != NULL && !ir_is_poison(results[0])) _fail(__FILE__, line);
  if (ctx->error != QUERN_STATUS_OK) _fail(__FILE__, line); /* reported means forgotten */
}
#define EXPECT_STATUS(call, STATUS, words)                                                                             \
  (results[0] = NULL, expect_status((call), QUERN_STATUS_##STATUS, (words), results, __LINE__))

/* ---- loop ---------------------------------------------------------------------------------------------- */

/* (i, carry, x, capture) -> (carry + x * capture, carry * 10 + i) */
static void running(void *user, quern_tensor *const *args, quern_tensor **results) {
  *(int *)user += 1;
  results[0] = quern_add(args[1], quern_mul(args[2], args[3]));
  results[1] = quern_add(quern_mul_scalar(args[1], 10), quern_cast(args[0], F32));
}

static void loops(void **state) {
  (void)state;
  quern_tensor *operands[] = {REALS(F32, SCALAR, 1), REALS(F32, DIMS(3), 1, 2, 3), REALS(F32, SCALAR, 2)}, *results[2];
  int calls = 0;
  EXPECT_OK(quern_loop(ctx, LOOP(.trip = 3, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1), operands,
                       running, &calls, results));
  assert_int_equal(calls, 1);
  EXPECT(results[0], 13);
  EXPECT(results[1], 10, 31, 72);
  EXPECT_OK(
      quern_loop(ctx, LOOP(.trip = 3, .reverse = true, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1),
                 operands, running, &calls, results));
  EXPECT(results[0], 13);
  EXPECT(results[1], 110, 71, 12);
  quern_tensor *again[2];
  EXPECT_OK(
      quern_loop(ctx, LOOP(.trip = 3, .reverse = true, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1),
                 operands, running, &calls, again));
  assert_ptr_equal(again[0], results[0]); /* equal bodies are one graph */
  quern_tensor *dx;
  EXPECT_OK(quern_grad(results[0], 1, &operands[2], &dx));
  EXPECT(dx, 6);
}

static void counts(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = args[0];
}

static void loops_of_nothing(void **state) {
  (void)state;
  quern_tensor *results[1];
  EXPECT_OK(quern_loop(ctx, LOOP(.trip = 4, .n_stacked = 1), NULL, counts, NULL, results));
  EXPECT(results[0], 0, 1, 2, 3);
  EXPECT_OK(quern_loop(ctx, LOOP(.trip = 0, .n_stacked = 1), NULL, counts, NULL, results));
  EXPECT_TYPE(results[0], I64, DIMS(0));
}

static void gives_null(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user, (void)args, (void)results;
}
static void gives_user(void *user, quern_tensor *const *args, quern_tensor **results) { (void)args, results[0] = user; }
static void gives_wrong(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user, results[0] = quern_exp(args[0]);
}
static void gives_first(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user, results[0] = args[0];
}
static void gives_second(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user, results[0] = args[1];
}
static void gives_double(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user, results[0] = quern_add(args[0], args[0]);
}
static void gives_less(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user, results[0] = quern_lt(args[0], args[1]);
}

static void wrong_loops(void **state) {
  (void)state;
  quern_tensor *x = ZEROS(F32, 3), *one[] = {x}, *bad[] = {NULL}, *results[2];
  quern_tensor *stranger = quern_input(ctx, "stranger", QUERN_DTYPE_I64, QUERN_SCALAR);
  const quern_loop_options *carry = LOOP(.trip = 2, .n_carries = 1), *stack = LOOP(.trip = 2, .n_stacked = 1);
  EXPECT_STATUS(quern_loop(ctx, carry, one, gives_first, NULL, results), SHAPE,
                "loop: carry 0 starts as f32(3,), the body gives i64(); a carry keeps its type");
  EXPECT_STATUS(quern_loop(ctx, stack, NULL, gives_null, NULL, results), INVALID, "loop: result 0 of the body is null");
  EXPECT_STATUS(quern_loop(ctx, stack, NULL, gives_user, &ir_poison, results), INVALID,
                "loop: result 0 of the body is poison");
  EXPECT_STATUS(quern_loop(ctx, stack, NULL, gives_wrong, NULL, results), DTYPE, "exp: does not admit i64");
  EXPECT_STATUS(quern_loop(ctx, stack, NULL, gives_user, stranger, results), INVALID, "stranger");
  EXPECT_STATUS(quern_loop(ctx, carry, bad, gives_first, NULL, results), INVALID, "loop: operand 0 is null");
  EXPECT_STATUS(quern_loop(ctx, carry, NULL, gives_first, NULL, results), INVALID,
                "loop: the list of 1 operands is null");
  EXPECT_STATUS(quern_loop(ctx, LOOP(.trip = 2, .n_scanned = 1, .n_stacked = 1), one, gives_first, NULL, results),
                SHAPE, "loop: scanned operand 0 is (3,), its first axis must be the trip, 2");
  results[0] = NULL;
  expect_status(quern_loop(ctx, LOOP(.trip = -1, .n_stacked = 1), NULL, counts, NULL, results), QUERN_STATUS_INVALID,
                "loop: the trip is -1", NULL, __LINE__);
  expect_status(quern_loop(ctx, LOOP(.trip = 1), NULL, counts, NULL, results), QUERN_STATUS_INVALID,
                "one result is needed", NULL, __LINE__);
  expect_status(quern_loop(ctx, LOOP(.n_carries = -1), NULL, counts, NULL, results), QUERN_STATUS_INVALID,
                "each must be at least 0", NULL, __LINE__);
  expect_status(quern_loop(ctx, NULL, NULL, counts, NULL, results), QUERN_STATUS_INVALID, "loop: the options are null",
                NULL, __LINE__);
  expect_status(quern_loop(ctx, &(quern_loop_options){.n_stacked = 1}, NULL, counts, NULL, results),
                QUERN_STATUS_INVALID, "loop: quern_loop_options has a size of 0 bytes", NULL, __LINE__);
  expect_status(quern_loop(ctx, stack, NULL, NULL, NULL, results), QUERN_STATUS_INVALID, "loop: the body is null", NULL,
                __LINE__);
  expect_status(quern_loop(ctx, stack, NULL, counts, NULL, NULL), QUERN_STATUS_INVALID,
                "loop: the place for the results is null", NULL, __LINE__);
  expect_status(quern_loop(NULL, stack, NULL, counts, NULL, results), QUERN_STATUS_INVALID, "loop: the context is null",
                NULL, __LINE__);
  /* poison: the first error, or, when that was reported before, that there was one */
  bad[0] = quern_exp(ZEROS(I32, 1));
  EXPECT_STATUS(quern_loop(ctx, carry, bad, gives_second, NULL, results), DTYPE, "exp: does not admit i32");
  EXPECT_STATUS(quern_loop(ctx, carry, bad, gives_second, NULL, results), INVALID, "loop: an operand is poison");
  char place[100];
  snprintf(place, sizeof place, "at %s:%d", __FILE__, __LINE__ + 1);
  assert_int_equal(quern_loop(ctx, LOOP(.trip = -1), NULL, counts, NULL, results), QUERN_STATUS_INVALID);
  assert_non_null(strstr(quern_last_error(), place));
}

/* ---- while and if -------------------------------------------------------------------------------------- */

static void whiles(void **state) {
  (void)state;
  quern_tensor *operands[] = {REALS(F32, SCALAR, 3), REALS(F32, SCALAR, 50)}, *results[1];
  EXPECT_OK(quern_while(ctx, 1, 1, operands, gives_less, gives_double, NULL, results));
  EXPECT(results[0], 96);
  EXPECT_STATUS(quern_while(ctx, 1, 1, operands, gives_first, gives_double, NULL, results), DTYPE,
                "while: the condition gives f32(), must be a bool scalar");
  EXPECT_STATUS(quern_while(ctx, 1, 1, operands, gives_less, gives_less, NULL, results), SHAPE,
                "while: carry 0 starts as f32(), the body gives bool()");
  EXPECT_STATUS(quern_while(ctx, 1, 1, operands, gives_null, gives_double, NULL, results), INVALID,
                "while: result 0 of the condition is null");
  EXPECT_STATUS(quern_while(ctx, 1, 1, NULL, gives_less, gives_double, NULL, results), INVALID,
                "while: the list of 2 operands is null");
  quern_tensor *rows[] = {ZEROS(F32, 2), ZEROS(F32, 2)};
  EXPECT_STATUS(quern_while(ctx, 1, 1, rows, gives_less, gives_double, NULL, results), DTYPE,
                "while: the condition gives bool(2,)");
  expect_status(quern_while(ctx, 0, 1, operands, gives_less, gives_double, NULL, results), QUERN_STATUS_INVALID,
                "while: 0 carries and 1 captures; one carry is needed", NULL, __LINE__);
  expect_status(quern_while(ctx, 1, -1, operands, gives_less, gives_double, NULL, results), QUERN_STATUS_INVALID,
                "while: 1 carries and -1 captures", NULL, __LINE__);
  expect_status(quern_while(ctx, 1, 1, operands, NULL, gives_double, NULL, results), QUERN_STATUS_INVALID,
                "while: the condition is null", NULL, __LINE__);
  expect_status(quern_while(ctx, 1, 1, operands, gives_less, NULL, NULL, results), QUERN_STATUS_INVALID,
                "while: the body is null", NULL, __LINE__);
}

static void branches(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2), 1, 2), *one[] = {x}, *results[1];
  quern_tensor *yes = quern_scalar(ctx, QUERN_DTYPE_BOOL, 1), *no = quern_scalar(ctx, QUERN_DTYPE_BOOL, 0);
  EXPECT_OK(quern_if(yes, 1, one, 1, gives_double, gives_first, NULL, results));
  EXPECT(results[0], 2, 4);
  EXPECT_OK(quern_if(no, 1, one, 1, gives_double, gives_first, NULL, results));
  EXPECT(results[0], 1, 2);
  EXPECT_OK(quern_if(no, 0, NULL, 1, gives_user, gives_user, quern_scalar(ctx, F32, 8), results));
  EXPECT(results[0], 8);
  EXPECT_STATUS(quern_if(x, 1, one, 1, gives_double, gives_first, NULL, results), DTYPE,
                "if: the condition is f32(2,), must be a bool scalar");
  EXPECT_STATUS(quern_if(ZEROS(BOOL, 1), 1, one, 1, gives_double, gives_first, NULL, results), DTYPE,
                "if: the condition is bool(1,)");
  EXPECT_STATUS(quern_if(yes, 1, one, 1, gives_double, gives_user, quern_scalar(ctx, F32, 8), results), SHAPE,
                "if: result 0 is f32(2,) in the first branch, f32() in the second");
  EXPECT_STATUS(quern_if(NULL, 1, one, 1, gives_double, gives_first, NULL, results), INVALID,
                "if: the condition is null");
  EXPECT_STATUS(quern_if(&ir_poison, 1, one, 1, gives_double, gives_first, NULL, results), INVALID,
                "if: the condition is poison");
  EXPECT_STATUS(quern_if(yes, 1, NULL, 1, gives_double, gives_first, NULL, results), INVALID,
                "if: the list of 1 operands is null");
  EXPECT_STATUS(quern_if(yes, -1, one, 1, gives_double, gives_first, NULL, results), INVALID, "if: -1 operands");
  EXPECT_STATUS(quern_if(yes, 1, one, 1, gives_double, gives_null, NULL, results), INVALID,
                "if: result 0 of the second branch is null");
  EXPECT_STATUS(quern_if(yes, 1, one, 1, NULL, gives_first, NULL, results), INVALID, "if: the first branch is null");
  EXPECT_STATUS(quern_if(yes, 1, one, 1, gives_double, NULL, NULL, results), INVALID, "if: the second branch is null");
  expect_status(quern_if(yes, 1, one, 0, gives_double, gives_first, NULL, results), QUERN_STATUS_INVALID,
                "one result is needed", NULL, __LINE__);
}

/* ---- composites ---------------------------------------------------------------------------------------- */

/* (a, b) -> (a b, a + b) */
static void both(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul(args[0], args[1]);
  results[1] = quern_add(args[0], args[1]);
}

/* A gradient that can be told from the true one: 7 times dy[0] for a, none for b. */
static void seven(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                  quern_tensor *const *dy, quern_tensor **dx) {
  assert_int_equal(n, 2);
  assert_int_equal(n_results, 2);
  assert_true(ir_same_type(x[1], y[1]));
  dx[0] = quern_mul_scalar(dy[0], *(double *)user);
}

static void rows(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                 quern_tensor *const *dy, quern_tensor **dx) {
  (void)user, (void)n, (void)x, (void)n_results, (void)y;
  dx[1] = quern_unsqueeze(dy[0], 0);
}

static void composites(void **state) {
  (void)state;
  quern_tensor *operands[] = {REALS(F32, DIMS(2), 3, 4), REALS(F32, DIMS(2), 5, 6)}, *results[2], *dx[2];
  EXPECT_OK(quern_composite(ctx, "both", 2, operands, 2, both, NULL, results));
  EXPECT(results[0], 15, 24);
  EXPECT(results[1], 8, 10);
  assert_int_equal(results[0]->node->op, IR_COMPOSITE);
  assert_string_equal(results[0]->node->attrs->name, "both");
  EXPECT_OK(quern_grad(quern_sum(results[0], QUERN_ALL, false), 2, operands, dx));
  EXPECT(dx[0], 5, 6);
  EXPECT(dx[1], 3, 4);
  double factor = 7;
  EXPECT_OK(quern_composite_rule(ctx, "both", seven, &factor));
  EXPECT_OK(quern_grad(quern_sum(results[0], QUERN_ALL, false), 2, operands, dx));
  EXPECT(dx[0], 7, 7);
  EXPECT(dx[1], 0, 0);
  EXPECT_OK(quern_composite(ctx, "rows", 2, operands, 2, both, NULL, results));
  EXPECT_OK(quern_composite_rule(ctx, "rows", rows, NULL));
  assert_int_equal(quern_grad(quern_sum(results[0], QUERN_ALL, false), 2, operands, dx), QUERN_STATUS_SHAPE);
  assert_non_null(
      strstr(quern_last_error(), "composite \"rows\": its rule gives dx[1] as f32(1, 2), the operand is f32(2,)"));
}

static void wrong_composites(void **state) {
  (void)state;
  quern_tensor *x = ZEROS(F32, 2), *one[] = {x}, *results[2];
  EXPECT_STATUS(quern_composite(ctx, NULL, 1, one, 1, gives_first, NULL, results), INVALID,
                "composite: the name is null");
  EXPECT_STATUS(quern_composite(ctx, "", 1, one, 1, gives_first, NULL, results), INVALID,
                "composite: the name is empty");
  EXPECT_STATUS(quern_composite(ctx, "topk", 1, one, 1, gives_first, NULL, results), INVALID,
                "composite: the name \"topk\" is one of Quern's own");
  EXPECT_STATUS(quern_composite(ctx, "mine", 1, one, 1, NULL, NULL, results), INVALID,
                "composite: the body of \"mine\" is null");
  EXPECT_STATUS(quern_composite(ctx, "mine", 1, NULL, 1, gives_first, NULL, results), INVALID,
                "composite: the list of 1 operands is null");
  EXPECT_STATUS(quern_composite(ctx, "mine", 1, one, 2, gives_first, NULL, results), INVALID,
                "composite: result 1 of the body is null");
  EXPECT_STATUS(quern_composite(NULL, "mine", 1, one, 1, gives_first, NULL, results), INVALID,
                "composite: the context is null");
  quern_tensor *stranger = quern_input(ctx, "stranger", F32, QUERN_LIST(2));
  EXPECT_STATUS(quern_composite(ctx, "mine", 1, one, 1, gives_user, stranger, results), INVALID, "stranger");
  expect_status(quern_composite_rule(NULL, "mine", seven, NULL), QUERN_STATUS_INVALID,
                "composite_rule: the context is null", NULL, __LINE__);
  expect_status(quern_composite_rule(ctx, NULL, seven, NULL), QUERN_STATUS_INVALID, "composite_rule: the name is null",
                NULL, __LINE__);
  expect_status(quern_composite_rule(ctx, "logsumexp", seven, NULL), QUERN_STATUS_INVALID,
                "composite_rule: the name \"logsumexp\" is one of Quern's own", NULL, __LINE__);
  expect_status(quern_composite_rule(ctx, "mine", NULL, NULL), QUERN_STATUS_INVALID,
                "composite_rule: the rule of \"mine\" is null", NULL, __LINE__);
  EXPECT_OK(quern_composite_rule(ctx, "mine", seven, NULL));
  expect_status(quern_composite_rule(ctx, "mine", seven, NULL), QUERN_STATUS_INVALID,
                "composite_rule: \"mine\" has a rule already", NULL, __LINE__);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(loops),    TEST(loops_of_nothing), TEST(wrong_loops),     TEST(whiles),
                                     TEST(branches), TEST(composites),       TEST(wrong_composites)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
