/* tests/grad/test_control.c -- derivatives of loops, branches and composites */
#include "grad/grad_test.h"
#include "nested.h"

/* ---- loops ------------------------------------------------------------------------------------------------------ */

/* Operands: carries c (3,), n (i64), scanned xs (trip, 3), captures w (3,), k (i64); results: c, n, stacked products and
** integers. c' = c w sin(x) + i k, n' = n + k, y = c x + n. */
static void turn(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  quern_tensor *i = args[0], *c = args[1], *n = args[2], *x = args[3], *w = args[4], *k = args[5];
  quern_tensor *shift = quern_cast(quern_mul(i, k), QUERN_DTYPE_F64), *count = quern_cast(n, QUERN_DTYPE_F64);
  results[0] = quern_add(quern_mul(quern_mul(c, w), quern_sin(x)), quern_mul_scalar(shift, 0.25));
  results[1] = quern_add(n, k);
  results[2] = quern_add(quern_mul(c, x), quern_mul(count, w));
  results[3] = quern_mul(n, i);
}

static int64_t trip;
static bool backwards;

static void loop(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *results[4], *operands[] = {x[0], INT(I64, 2), x[1], x[2], INT(I64, 3)};
  quern_loop_options options = {.size = sizeof options,
                                .trip = trip,
                                .reverse = backwards,
                                .n_carries = 2,
                                .n_scanned = 1,
                                .n_captures = 2,
                                .n_stacked = 2};
  EXPECT_OK(quern_loop(ctx, &options, operands, turn, NULL, results));
  y[0] = quern_square(results[0]);
  y[1] = quern_exp(results[2]);
  y[2] = quern_cast(results[1], QUERN_DTYPE_F64); /* no gradient, but a use of the loop */
}

static void test_loop(void **state) {
  (void)state;
  for (trip = 0; trip <= 3; trip++) {
    for (int reverse = 0; reverse < 2; reverse++) {
      backwards = reverse != 0;
      CHECK_DERIVATIVES(.build = loop, .n_x = 3, .shapes = {DIMS(3), DIMS(trip, 3), DIMS(3)}, .n_y = 3);
    }
  }
}

/* Only one kind of operand is x: the others' gradients are not made. */
static void loop_of_carry(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *scanned = REALS(F64, DIMS(2, 3), 0.1, 0.2, -0.3, 0.4, -0.5, 0.6), *w = REALS(F64, DIMS(3), 1, 0.5, -2);
  trip = 2, backwards = false;
  loop((quern_tensor *[]){x[0], scanned, w}, y);
}
static void loop_of_scanned(quern_tensor *const *x, quern_tensor **y) {
  trip = 2, backwards = false;
  loop((quern_tensor *[]){REALS(F64, DIMS(3), 1, 0.5, -1), x[0], REALS(F64, DIMS(3), 0.2, 1, -0.3)}, y);
}
static void loop_of_capture(quern_tensor *const *x, quern_tensor **y) {
  trip = 2, backwards = true;
  loop(
      (quern_tensor *[]){REALS(F64, DIMS(3), 1, 0.5, -1), REALS(F64, DIMS(2, 3), 0.1, 0.2, -0.3, 0.4, -0.5, 0.6), x[0]},
      y);
}

static void test_loop_of_one_kind(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = loop_of_carry, .n_x = 1, .shapes = {DIMS(3)}, .n_y = 3);
  CHECK_DERIVATIVES(.build = loop_of_scanned, .n_x = 1, .shapes = {DIMS(2, 3)}, .n_y = 3);
  CHECK_DERIVATIVES(.build = loop_of_capture, .n_x = 1, .shapes = {DIMS(3)}, .n_y = 3);
}

/* Exact values: c' = c x, y = c; trip 0 and 1 and 3. */
static void multiply(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul(args[1], args[2]);
  results[1] = args[1];
}

static void product_loop(int64_t n, quern_tensor *c, quern_tensor *xs, quern_tensor **results) {
  quern_loop_options options = {.size = sizeof options, .trip = n, .n_carries = 1, .n_scanned = 1, .n_stacked = 1};
  EXPECT_OK(quern_loop(ctx, &options, (quern_tensor *[]){c, xs}, multiply, NULL, results));
}

static void test_loop_values(void **state) {
  (void)state;
  quern_tensor *c = REAL(F64, 2), *xs = REALS(F64, DIMS(3), 3, 5, 7), *y[2];
  product_loop(3, c, xs, y);
  EXPECT_EXACT(y[0], 210);
  EXPECT_EXACT(y[1], 2, 6, 30);
  EXPECT_EXACT(GRAD(y[0], c), 105);
  EXPECT_EXACT(GRAD(y[0], xs), 70, 42, 30);
  EXPECT_EXACT(VJP(y[1], c, 1, 10, 100), 1 + 30 + 1500);
  EXPECT_EXACT(VJP(y[1], xs, 1, 10, 100), 20 + 1000, 600, 0);
  EXPECT_EXACT(JVP(y[1], xs, 1, 1, 1), 0, 2, 16);
  quern_tensor *one = REALS(F64, DIMS(1), 3);
  product_loop(1, c, one, y);
  EXPECT_EXACT(GRAD(y[0], c), 3);
  EXPECT_EXACT(GRAD(y[0], one), 2);
  quern_tensor *none = EMPTY(F64, DIMS(0));
  product_loop(0, c, none, y);
  EXPECT_EXACT(GRAD(y[0], c), 1);
  EXPECT_EMPTY(GRAD(y[0], none));
  EXPECT_EXACT(JVP(y[0], c, 9), 9);
}

/* A result that is an operand as it is, and an operand that no result needs. */
static void pass_through(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = args[1]; /* carry */
  results[1] = args[3]; /* capture, stacked */
  results[2] = args[2]; /* scanned, stacked */
  results[3] = quern_ones_like(args[1]);
}

static void test_loop_of_operands(void **state) {
  (void)state;
  quern_tensor *c = REAL(F64, 2), *xs = REALS(F64, DIMS(2), 3, 5), *p = REAL(F64, 7), *unused = REAL(F64, 1), *y[4];
  quern_loop_options options = {
      .size = sizeof options, .trip = 2, .n_carries = 1, .n_scanned = 1, .n_captures = 2, .n_stacked = 3};
  EXPECT_OK(quern_loop(ctx, &options, (quern_tensor *[]){c, xs, p, unused}, pass_through, NULL, y));
  EXPECT_EXACT(GRAD(y[0], c), 1);
  EXPECT_EXACT(VJP(y[1], p, 3, 4), 7);
  EXPECT_EXACT(VJP(y[2], xs, 3, 4), 3, 4);
  EXPECT_EXACT(VJP(y[3], c, 3, 4), 0);
  EXPECT_EXACT(VJP(y[1], unused, 3, 4), 0);
  EXPECT_EXACT(JVP(y[1], p, 3), 3, 3);
  EXPECT_EXACT(JVP(y[3], c, 3), 0, 0);
}

/* A loop in a loop, whose trip is the outer scan's row. */
static void inner_turn(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(quern_mul(args[1], args[2]), quern_sin(args[3])); /* c x + sin p */
}

static void outer_turn(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  quern_tensor *inner[1];
  quern_loop_options options = {
      .size = sizeof options, .trip = 2, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .reverse = true};
  EXPECT_OK(quern_loop(ctx, &options, (quern_tensor *[]){args[1], args[2], args[3]}, inner_turn, NULL, inner));
  results[0] = quern_tanh(inner[0]);
  results[1] = quern_mul(inner[0], args[3]);
}

static void nested(quern_tensor *const *x, quern_tensor **y) {
  quern_loop_options options = {
      .size = sizeof options, .trip = 3, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1};
  EXPECT_OK(quern_loop(ctx, &options, x, outer_turn, NULL, y));
}

static void test_nested_loops(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = nested, .n_x = 3, .shapes = {SCALAR, DIMS(3, 2), SCALAR}, .n_y = 2);
}

/* Third derivative of c x^3 by a loop that multiplies by a capture. */
static void times_capture(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul(args[1], args[2]);
}

static void test_loop_three_times(void **state) {
  (void)state;
  quern_tensor *x = REAL(F64, 2), *one = REAL(F64, 1), *y;
  quern_loop_options options = {.size = sizeof options, .trip = 4, .n_carries = 1, .n_captures = 1};
  EXPECT_OK(quern_loop(ctx, &options, (quern_tensor *[]){one, x}, times_capture, NULL, &y));
  quern_tensor *d = GRAD(y, x), *dd = GRAD(d, x), *ddd = GRAD(dd, x);
  EXPECT_EXACT(y, 16);
  EXPECT_EXACT(d, 32);
  EXPECT_EXACT(dd, 48);
  EXPECT_EXACT(ddd, 48);
}

/* ---- if --------------------------------------------------------------------------------------------------------- */

static void first_branch(void *user, quern_tensor *const *args, quern_tensor **results) {
  quern_tensor *out[1];
  quern_loop_options options = {.size = sizeof options, .trip = 2, .n_carries = 1, .n_captures = 1};
  (void)user;
  EXPECT_OK(quern_loop(ctx, &options, (quern_tensor *[]){args[0], args[1]}, times_capture, NULL, out));
  results[0] = out[0];
  results[1] = args[2];
}

static void second_branch(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_exp(args[1]); /* does not use args[0] */
  results[1] = quern_neg(args[2]);
}

static int64_t taken;

static void branches(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *results[2];
  EXPECT_OK(quern_if(INT(BOOL, taken), 3, (quern_tensor *[]){x[0], x[1], INT(I32, 5)}, 2, first_branch, second_branch,
                     NULL, results));
  y[0] = results[0];
  y[1] = quern_mul(quern_cast(results[1], QUERN_DTYPE_F64), x[0]);
}

static void test_if(void **state) {
  (void)state;
  for (taken = 0; taken < 2; taken++)
    CHECK_DERIVATIVES(.build = branches, .n_x = 2, .shapes = {SCALAR, SCALAR}, .n_y = 2);
}

static void test_if_values(void **state) {
  (void)state;
  quern_tensor *x = REAL(F64, 3), *p = REAL(F64, 2), *y[2], *condition = quern_gt(x, p);
  EXPECT_OK(quern_if(condition, 3, (quern_tensor *[]){x, p, INT(I32, 5)}, 2, first_branch, second_branch, NULL, y));
  EXPECT_EXACT(GRAD(y[0], x), 4);
  EXPECT_EXACT(GRAD(y[0], p), 12);
  EXPECT_OK(quern_if(quern_not(condition), 3, (quern_tensor *[]){x, p, INT(I32, 5)}, 2, first_branch, second_branch,
                     NULL, y));
  EXPECT_EXACT(GRAD(y[0], x), 0);
  EXPECT_NEAR(GRAD(y[0], p), 1e-15, exp(2));
  EXPECT_NEAR(JVP(y[0], p, 3), 1e-15, 3 * exp(2));
}

/* ---- while ------------------------------------------------------------------------------------------------------ */

static void below(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_lt(args[0], quern_full_like(args[0], 100));
}

static void grow(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul(args[0], args[2]);
  results[1] = quern_add(args[1], args[3]);
}

static void test_while(void **state) {
  (void)state;
  quern_tensor *c = REAL(F64, 2), *p = REAL(F64, 3), *n = INT(I64, 0), *y[2], *dx = NULL;
  EXPECT_OK(quern_while(ctx, 2, 2, (quern_tensor *[]){c, n, p, INT(I64, 1)}, below, grow, NULL, y));
  EXPECT_EXACT(y[0], 162); /* 2 3^4 */
  EXPECT_INTS(y[1], 4);
  EXPECT_EXACT(JVP(y[0], c, 1), 81);
  EXPECT_EXACT(JVP(y[0], p, 1), 4 * 2 * 27);
  EXPECT_ERROR(quern_grad(y[0], 1, &c, &dx), UNSUPPORTED,
               "while has no gradient, since the number of its iterations is not known HINT: quern_loop has one");
  EXPECT_ERROR(quern_grad(quern_square(y[0]), 1, &p, &dx), UNSUPPORTED, "quern_jvp goes through while");
  assert_null(dx);
  EXPECT_OK(quern_context_check(ctx));
  /* no gradient is asked through it: no error */
  EXPECT_EXACT(GRAD(quern_add(quern_stop_gradient(y[0]), c), c), 1);
  EXPECT_EXACT(GRAD(quern_mul(y[0], p), y[0]), 3);
  EXPECT_EXACT(GRAD(quern_mul(quern_cast(y[1], QUERN_DTYPE_F64), c), c), 4);
  quern_tensor *square = quern_square(p), *ty;
  EXPECT_OK(quern_while(ctx, 2, 2, (quern_tensor *[]){c, n, square, INT(I64, 1)}, below, grow, NULL, y)); /* 2 p^4 */
  EXPECT_OK(quern_jvp(2, (quern_tensor *[]){c, p}, (quern_tensor *[]){REAL(F64, 1), REAL(F64, 1)}, 1, y, &ty));
  EXPECT_EXACT(ty, 81 + 8 * 27);
}

/* ---- composites ------------------------------------------------------------------------------------------------- */

static void energy_body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user; /* args: a, b (floats), n (integer) */
  results[0] = quern_mul(quern_sin(args[0]), quern_mul(args[1], quern_cast(args[2], QUERN_DTYPE_F64)));
  results[1] = quern_add(args[2], args[2]);
  results[2] = quern_exp(args[1]);
}

static void energy(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *out[3];
  EXPECT_OK(quern_composite(ctx, "energy", 3, (quern_tensor *[]){x[0], x[1], INT(I32, 3)}, 3, energy_body, NULL, out));
  y[0] = quern_mul(out[0], quern_cast(out[1], QUERN_DTYPE_F64));
  y[1] = out[2];
}

static void test_composite(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = energy, .n_x = 2, .shapes = {SCALAR, SCALAR}, .n_y = 2);
  /* the gradient is a composite, too */
  quern_tensor *x = REAL(F64, 1), *y[2];
  energy((quern_tensor *[]){x, REAL(F64, 2)}, y);
  quern_tensor *dx = GRAD(y[1], x), *dx0 = GRAD(y[0], x);
  EXPECT_EXACT(dx, 0);
  assert_int_equal(dx0->node->op, IR_COMPOSITE);
  assert_string_equal(dx0->node->attrs->name, "energy.vjp");
}

/* A rule that is deliberately not the body's: dx = 100 dy, so that one sees that it is used. */
static int rule_calls;

static void cube_body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul(args[0], quern_square(args[0]));
  results[1] = quern_cast(args[0], QUERN_DTYPE_I32);
  results[2] = quern_add(args[0], args[1]);
}

static void cube_rule(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                      quern_tensor *const *dy, quern_tensor **dx) {
  rule_calls++;
  assert_int_equal(n, 2);
  assert_int_equal(n_results, 3);
  assert_int_equal(quern_tensor_dtype(y[1]), QUERN_DTYPE_I32);
  assert_null(dy[1]);
  assert_null(dx[0]);
  assert_string_equal(user, "user");
  dx[0] = quern_add(quern_mul_scalar(quern_mul(dy[0], x[0]), 100), dy[2]); /* dx[1] stays NULL: zero */
}

static void test_user_rule(void **state) {
  (void)state;
  EXPECT_OK(quern_composite_rule(ctx, "cube", cube_rule, "user"));
  quern_tensor *x = REAL(F64, 2), *b = REAL(F64, 5), *y[3], *dx[2];
  EXPECT_OK(quern_composite(ctx, "cube", 2, (quern_tensor *[]){x, b}, 3, cube_body, NULL, y));
  rule_calls = 0;
  EXPECT_OK(quern_grad(y[0], 2, (quern_tensor *[]){x, b}, dx));
  assert_int_equal(rule_calls, 1);
  EXPECT_EXACT(y[0], 8);
  EXPECT_EXACT(dx[0], 200);
  EXPECT_EXACT(dx[1], 0);
  EXPECT_EXACT(GRAD(quern_add(y[0], y[2]), x), 201);
  EXPECT_EXACT(GRAD(dx[0], x), 100); /* the rule's own derivative */
  /* forward mode is the transpose of the rule */
  EXPECT_EXACT(JVP(y[0], x, 3), 600);
  EXPECT_EXACT(JVP(y[2], x, 3), 3);
  EXPECT_EXACT(JVP(y[0], b, 3), 0);
  EXPECT_EXACT(JVP(dx[0], x, 3), 300);
}

static void linear_body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul(quern_sin(args[0]), quern_exp(args[1]));
  results[1] = quern_mul(args[0], args[1]);
}

static void linear_rule(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                        quern_tensor *const *dy, quern_tensor **dx) {
  (void)user, (void)n, (void)n_results;
  dx[0] = quern_add(quern_mul(dy[0], quern_mul(quern_cos(x[0]), quern_exp(x[1]))), quern_mul(dy[1], x[1]));
  dx[1] = quern_add(quern_mul(dy[0], y[0]), quern_mul(dy[1], x[0]));
}

static void with_rule(quern_tensor *const *x, quern_tensor **y) {
  EXPECT_OK(quern_composite(ctx, "with_rule", 2, x, 2, linear_body, NULL, y));
}

/* A right rule: all derivatives agree with differences, also those of the rule and those of y inside it. */
static void test_right_rule(void **state) {
  (void)state;
  EXPECT_OK(quern_composite_rule(ctx, "with_rule", linear_rule, NULL));
  CHECK_DERIVATIVES(.build = with_rule, .n_x = 2, .shapes = {DIMS(2), DIMS(2)}, .n_y = 2);
}

static quern_tensor *wrong; /* what the rule below gives */

static void wrong_rule(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                       quern_tensor *const *dy, quern_tensor **dx) {
  (void)user, (void)n, (void)n_results, (void)y, (void)x, (void)dy;
  dx[0] = wrong;
}

static void failing_rule(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                         quern_tensor *const *dy, quern_tensor **dx) {
  (void)user, (void)n, (void)n_results, (void)y;
  dx[0] = quern_add(dy[0], quern_cast(x[0], QUERN_DTYPE_F32));
}

static void same_body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_exp(args[0]);
}

static void test_wrong_rules(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2), 1, 2), *y, *out, *one = quern_ones_like(x);
  EXPECT_OK(quern_composite_rule(ctx, "wrong", wrong_rule, NULL));
  EXPECT_OK(quern_composite_rule(ctx, "failing", failing_rule, NULL));
  EXPECT_OK(quern_composite(ctx, "wrong", 1, &x, 1, same_body, NULL, &y));
  quern_tensor *const wrongs[] = {REALS(F32, DIMS(2), 1, 2), REALS(F64, DIMS(3), 1, 2, 3), INTS(I64, DIMS(2), 1, 2)};
  static const char *const types[] = {"f32(2,)", "f64(3,)", "i64(2,)"};
  for (size_t k = 0; k < BASE_COUNT(wrongs); k++) {
    wrong = wrongs[k];
    EXPECT_ERROR(quern_vjp(1, &y, &one, 1, &x, &out), SHAPE, "\"wrong\": its rule gives dx[0] as");
    assert_non_null(strstr(quern_last_error(), types[k]));
    assert_non_null(strstr(quern_last_error(), "the operand is f64(2,)"));
    EXPECT_ERROR(quern_jvp(1, &x, &one, 1, &y, &out), SHAPE, "\"wrong\": its rule gives dx[0] as");
    EXPECT_OK(quern_context_check(ctx));
  }
  wrong = NULL; /* zero */
  EXPECT_EXACT(VJP(y, x, 1, 1), 0, 0);
  EXPECT_EXACT(JVP(y, x, 1, 1), 0, 0);
  quern_context *other = NULL;
  EXPECT_OK(quern_context_new(&other, NULL));
  wrong = quern_zeros(other, QUERN_DTYPE_F64, QUERN_LIST(2));
  EXPECT_ERROR(quern_vjp(1, &y, &one, 1, &x, &out), INVALID, "another context");
  EXPECT_ERROR(quern_jvp(1, &x, &one, 1, &y, &out), INVALID, "another context");
  quern_context_free(other);

  EXPECT_OK(quern_composite(ctx, "failing", 1, &x, 1, same_body, NULL, &y));
  EXPECT_ERROR(quern_vjp(1, &y, &one, 1, &x, &out), DTYPE, "add: dtypes differ");
  EXPECT_ERROR(quern_jvp(1, &x, &one, 1, &y, &out), DTYPE, "add: dtypes differ");
  EXPECT_OK(quern_context_check(ctx));
}

/* A composite in a loop, with and without a rule. */
static void composite_turn(void *user, quern_tensor *const *args, quern_tensor **results) {
  quern_tensor *out[2];
  EXPECT_OK(quern_composite(ctx, user, 2, (quern_tensor *[]){args[1], args[2]}, 2, linear_body, NULL, out));
  results[0] = quern_tanh(out[0]);
  results[1] = out[1];
}

static void loop_of_composites(quern_tensor *const *x, quern_tensor **y) {
  static const char *const names[] = {"with_rule", "without_rule"};
  for (int k = 0; k < 2; k++) {
    quern_loop_options options = {.size = sizeof options, .trip = 2, .n_carries = 1, .n_captures = 1, .n_stacked = 1};
    EXPECT_OK(quern_loop(ctx, &options, x, composite_turn, (void *)(uintptr_t)names[k], y + 2 * k));
  }
}

static void test_loop_of_composites(void **state) {
  (void)state;
  EXPECT_OK(quern_composite_rule(ctx, "with_rule", linear_rule, NULL));
  CHECK_DERIVATIVES(.build = loop_of_composites, .n_x = 2, .shapes = {DIMS(2), DIMS(2)}, .n_y = 4);
}

/* Quern's own composites have rules: they agree with what their bodies say. */
static void own_composites(quern_tensor *const *x, quern_tensor **y) {
  y[0] = quern_gelu(x[0]);
  y[1] = quern_log_softmax(x[0], 1);
  y[2] = quern_logsumexp(x[0], QUERN_LIST(0), true);
  y[3] = quern_layer_norm(x[0], 1, NULL, NULL, 1e-3);
}

static void test_own_composites(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = own_composites, .n_x = 1, .shapes = {DIMS(2, 3)}, .n_y = 4);
}

/* Their gradients are composites of a name that a device may know; operands: sources, results, dy that are not zero. */
static void test_gradients_of_own_composites(void **state) {
  (void)state;
  quern_tensor *q = INPUT(F64, "q", DIMS(1, 2, 3, 4)), *k = INPUT(F64, "k", DIMS(1, 1, 5, 4)), *y[2], *dy[2], *dq;
  y[0] = quern_attention(q, k, k, NULL, NULL, &y[1]);
  dy[0] = INPUT(F64, "dout", DIMS(1, 2, 3, 4)), dy[1] = INPUT(F64, "dlse", DIMS(1, 2, 3));
  EXPECT_OK(quern_vjp(2, y, dy, 1, &q, &dq));
  assert_int_equal(dq->node->op, IR_COMPOSITE);
  assert_string_equal(dq->node->attrs->name, "attention.vjp");
  assert_int_equal(dq->node->n_src, 3 + 2 + 2);
  assert_int_equal(dq->node->n_out, 1); /* only q's is wanted */
  assert_ptr_equal(dq->node->src[4], y[1]);
  assert_ptr_equal(dq->node->src[6], dy[1]);
  assert_memory_equal(dq->node->attrs->reals.at, y[0]->node->attrs->reals.at, sizeof(double));

  EXPECT_OK(quern_vjp(1, y, dy, 1, &q, &dq));
  assert_int_equal(dq->node->n_src, 3 + 2 + 1);
  quern_tensor *both[2];
  EXPECT_OK(quern_vjp(1, y, dy, 2, (quern_tensor *[]){q, k}, both));
  assert_int_equal(both[0]->node->n_out, 3); /* q, and k as keys and as values */
  EXPECT_OK(ir_verify(ctx, 2, both));
}

/* Branches that hold two others each: derivatives and casts of few are made, those of 25 levels are refused before they fill
** the memory. */
static quern_tensor *nested_branches(int levels, quern_tensor **x) {
  char rest[160];
  snprintf(rest, sizeof rest,
           "%%0 = input name=\"c\" dtype=bool shape=[]\n%%1 = input name=\"x\" dtype=f32 shape=[4]\n"
           "%%2 = if %%0 %%0 %%1 body=@f%d other=@f0\nreturn %%2\n",
           levels);
  quern_graph *graph = test_nested_graph(levels, "[4]", rest);
  quern_tensor *y = quern_sum(quern_graph_output(graph, 0), QUERN_ALL, false);
  *x = quern_graph_input(graph, 1);
  quern_graph_free(graph);
  return y;
}

static void test_nested_branches(void **state) {
  (void)state;
  static const char words[] = "loops, branches and composites that hold two others each double at each level";
  quern_model *model;
  quern_tensor *x, *dx, *y = nested_branches(6, &x), *tx = quern_ones_like(x);
  EXPECT_OK(quern_model_new(&model, ctx, NULL));
  EXPECT_OK(quern_grad(y, 1, &x, &dx));
  EXPECT_OK(quern_jvp(1, &x, &tx, 1, &y, &dx));
  EXPECT_OK(quern_autocast(model, 1, &y, &dx, NULL));
  y = nested_branches(25, &x);
  tx = quern_ones_like(x);
  EXPECT_ERROR(quern_grad(y, 1, &x, &dx), UNSUPPORTED, words);
  EXPECT_ERROR(quern_jvp(1, &x, &tx, 1, &y, &dx), UNSUPPORTED, words);
  EXPECT_ERROR(quern_autocast(model, 1, &y, &dx, NULL), UNSUPPORTED, words);
  y = nested_branches(3, &x); /* the context goes on */
  EXPECT_OK(quern_grad(y, 1, &x, &dx));
  quern_model_free(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_loop),
      TEST(test_loop_of_one_kind),
      TEST(test_loop_values),
      TEST(test_loop_of_operands),
      TEST(test_nested_loops),
      TEST(test_loop_three_times),
      TEST(test_if),
      TEST(test_if_values),
      TEST(test_while),
      TEST(test_composite),
      TEST(test_user_rule),
      TEST(test_right_rule),
      TEST(test_wrong_rules),
      TEST(test_loop_of_composites),
      TEST(test_own_composites),
      TEST(test_gradients_of_own_composites),
      TEST(test_nested_branches),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
