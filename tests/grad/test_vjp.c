/* tests/grad/test_vjp.c -- reverse mode: wrong calls, and how gradients are collected over a graph */
#include "grad/grad_test.h"

/* ---- wrong calls ------------------------------------------------------------------------------------------------ */

static void test_wrong_grad(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2), 1, 2), *loss = quern_sum(x, QUERN_ALL, false), *i = INT(I32, 1),
               *dx[2] = {NULL, NULL};
  quern_tensor *null = NULL, *poison = &ir_poison;
  EXPECT_ERROR(quern_grad(NULL, 1, &x, dx), INVALID, "grad: loss[0] is null");
  EXPECT_ERROR(quern_grad(x, 1, &x, dx), SHAPE,
               "grad: the loss is f32(2,), must have one element HINT: quern_sum or quern_mean");
  EXPECT_ERROR(quern_grad(i, 1, &x, dx), DTYPE, "grad: loss[0] is i32(): derivatives need a float dtype");
  EXPECT_ERROR(quern_grad(loss, 1, NULL, dx), INVALID, "grad: the list x of 1 is null");
  EXPECT_ERROR(quern_grad(loss, 1, &null, dx), INVALID, "grad: x[0] is null");
  EXPECT_ERROR(quern_grad(loss, 2, (quern_tensor *[]){x, i}, dx), DTYPE, "grad: x[1] is i32()");
  EXPECT_ERROR(quern_grad(loss, 1, &x, NULL), INVALID, "grad: the list dx of 1 is null");
  EXPECT_ERROR(quern_grad(loss, 1, &poison, dx), INVALID, "grad: x[0] is the result of a call that failed");
  EXPECT_ERROR(quern_grad(poison, 1, &x, dx), INVALID, "grad: loss[0] is the result of a call that failed");
  EXPECT_ERROR(quern_grad(poison, 0, NULL, dx), INVALID, "grad: loss[0] is the result of a call that failed");
  EXPECT_ERROR(quern_grad(EMPTY(F32, DIMS(0)), 1, &x, dx), SHAPE, "grad: the loss is f32(0,)");
  assert_null(dx[0]);
  EXPECT_OK(quern_grad(loss, 0, NULL, NULL));
  EXPECT_OK(quern_grad(quern_reshape(loss, QUERN_LIST(1, 1)), 1, &x, dx)); /* one element, whatever the rank */
  EXPECT_EXACT(dx[0], 1, 1);
}

static void test_wrong_vjp(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2), 1, 2), *y = quern_exp(x), *one = REAL(F32, 1),
               *wide = REALS(F64, DIMS(2), 1, 1), *dx;
  quern_tensor *null = NULL, *i = INT(I32, 1);
  EXPECT_ERROR(quern_vjp(1, NULL, &y, 1, &x, &dx), INVALID, "vjp: the list y of 1 is null");
  EXPECT_ERROR(quern_vjp(1, &y, NULL, 1, &x, &dx), INVALID, "vjp: the list dy of 1 is null");
  EXPECT_ERROR(quern_vjp(1, &y, &null, 1, &x, &dx), INVALID, "vjp: dy[0] is null");
  EXPECT_ERROR(quern_vjp(1, &y, &one, 1, &x, &dx), SHAPE,
               "vjp: dy[0] is f32(), y[0] is f32(2,): their types must be equal");
  EXPECT_ERROR(quern_vjp(1, &y, &wide, 1, &x, &dx), SHAPE, "vjp: dy[0] is f64(2,), y[0] is f32(2,)");
  EXPECT_ERROR(quern_vjp(1, &i, &i, 1, &x, &dx), DTYPE, "vjp: y[0] is i32()");
  EXPECT_ERROR(quern_vjp(1, &y, &y, 1, &x, NULL), INVALID, "vjp: the list dx of 1 is null");
  EXPECT_OK(quern_vjp(0, NULL, NULL, 0, NULL, NULL));
  EXPECT_OK(quern_vjp(0, NULL, NULL, 1, &x, &dx));
  EXPECT_EXACT(dx, 0, 0);
}

static void test_contexts(void **state) {
  (void)state;
  quern_context *other = NULL;
  EXPECT_OK(quern_context_new(&other, NULL));
  quern_tensor *x = REAL(F32, 1), *foreign = ir_const(other, QUERN_DTYPE_F32, 1), *dx;
  EXPECT_ERROR(quern_grad(x, 1, &foreign, &dx), INVALID, "grad: x[0] belongs to another context");
  EXPECT_ERROR(quern_vjp(1, &x, &foreign, 1, &x, &dx), INVALID, "vjp: dy[0] belongs to another context");
  quern_context_free(other);
}

/* What a builder got wrong is reported first, whichever list knows the context. */
static void test_earlier_errors(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2), 1, 2), *y = REALS(F32, DIMS(3), 1, 2, 3), *dx;
  EXPECT_ERROR(quern_grad(quern_sum(quern_add(x, y), QUERN_ALL, false), 1, &x, &dx), SHAPE, "add");
  EXPECT_OK(quern_context_check(ctx)); /* it was reported */
  quern_tensor *loss = quern_sum(x, QUERN_ALL, false), *bad = quern_add(x, y);
  assert_true(quern_tensor_is_poison(bad));
  EXPECT_ERROR(quern_grad(loss, 1, &x, &dx), SHAPE, "add");
  EXPECT_OK(quern_grad(loss, 1, &x, &dx));
}

/* ---- collecting ------------------------------------------------------------------------------------------------- */

static void test_unreached(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2), 1, 2), *other = REALS(F16, DIMS(2, 2), 1, 2, 3, 4), *dx[2];
  EXPECT_OK(quern_grad(quern_sum(quern_square(x), QUERN_ALL, false), 2, (quern_tensor *[]){other, x}, dx));
  assert_true(ir_same_type(dx[0], other));
  EXPECT_EXACT(dx[0], 0, 0, 0, 0);
  EXPECT_EXACT(dx[1], 2, 4);
  /* a user of x that the loss does not need, and x that comes after the loss */
  quern_tensor *y = quern_exp(x), *loss = quern_sum(x, QUERN_ALL, false);
  EXPECT_EXACT(GRAD(loss, y), 0, 0);
  EXPECT_EXACT(GRAD(loss, quern_neg(loss)), 0);
}

static void test_sum_over_uses(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2), 3, 5);
  quern_tensor *y = quern_add(quern_mul(x, x), quern_neg(x)); /* x^2 - x */
  EXPECT_EXACT(VJP(y, x, 1, 10), 5, 90);
  EXPECT_EXACT(VJP(quern_sub(x, x), x, 1, 1), 0, 0);
  EXPECT_EXACT(VJP(x, x, 7, 8), 7, 8); /* y is x */
}

/* x may be anything on the way; what x depends on does not matter. */
static void test_intermediate(void **state) {
  (void)state;
  quern_tensor *x = REAL(F64, 3), *middle = quern_square(x), *loss = quern_mul(middle, quern_add(middle, x)), *dx[3];
  EXPECT_OK(quern_grad(loss, 3, (quern_tensor *[]){middle, x, loss}, dx));
  EXPECT_EXACT(dx[0], 2 * 9 + 3);
  EXPECT_EXACT(dx[1], 9 + (2 * 9 + 3) * 6); /* also through middle */
  EXPECT_EXACT(dx[2], 1);
}

static void test_same_x_twice(void **state) {
  (void)state;
  quern_tensor *x = REAL(F64, 3), *dx[2];
  EXPECT_OK(quern_grad(quern_square(x), 2, (quern_tensor *[]){x, x}, dx));
  assert_ptr_equal(dx[0], dx[1]);
  EXPECT_EXACT(dx[0], 6);
}

static void test_several_y(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2), 3, 5), *s = REAL(F64, 2), *dx[2];
  quern_tensor *y[] = {quern_square(x), quern_mul(s, s), quern_mul(x, quern_broadcast_to(s, QUERN_LIST(2)))};
  quern_tensor *dy[] = {REALS(F64, DIMS(2), 1, 2), REAL(F64, 10), REALS(F64, DIMS(2), 100, 1000)};
  EXPECT_OK(quern_vjp(3, y, dy, 2, (quern_tensor *[]){x, s}, dx));
  EXPECT_EXACT(dx[0], 6 + 200, 20 + 2000);
  EXPECT_EXACT(dx[1], 40 + 300 + 5000);
}

/* The same y twice counts twice, and y may be on the way to another y. */
static void test_repeated_y(void **state) {
  (void)state;
  quern_tensor *x = REAL(F64, 3), *y = quern_square(x), *z = quern_neg(y), *one = REAL(F64, 1), *ten = REAL(F64, 10),
               *dx;
  EXPECT_OK(quern_vjp(2, (quern_tensor *[]){y, y}, (quern_tensor *[]){one, ten}, 1, &x, &dx));
  EXPECT_EXACT(dx, 66);
  EXPECT_OK(quern_vjp(2, (quern_tensor *[]){y, z}, (quern_tensor *[]){one, ten}, 1, &x, &dx));
  EXPECT_EXACT(dx, 6 - 60);
  EXPECT_OK(quern_vjp(2, (quern_tensor *[]){y, z}, (quern_tensor *[]){one, ten}, 1, &y, &dx));
  EXPECT_EXACT(dx, 1 - 10);
}

/* Nodes with several results, of which one is no float. */
static void test_results(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(3), 3, 1, 2), *index = NULL, *sorted = quern_sort(x, 0, false, &index);
  EXPECT_EXACT(VJP(sorted, x, 10, 20, 30), 30, 10, 20);
  /* through the indices nothing flows */
  EXPECT_EXACT(VJP(quern_cast(index, QUERN_DTYPE_F64), x, 1, 1, 1), 0, 0, 0);
  EXPECT_EXACT(VJP(quern_gather(x, index, 0), x, 10, 20, 30), 30, 10, 20);
  /* only some of the results have a gradient */
  quern_tensor *rows = REALS(F64, DIMS(2, 2), 1, 2, 3, 4), *parts[2];
  EXPECT_OK(quern_split(rows, 1, 2, (int64_t[]){1, 1}, parts));
  EXPECT_EXACT(VJP(parts[1], rows, 5, 6), 0, 5, 0, 6);
}

/* A result of a node as x, while another one is used too. */
static void two_results(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul(args[0], args[0]);
  results[1] = quern_neg(args[0]);
}

static void test_result_as_x(void **state) {
  (void)state;
  quern_tensor *x = REAL(F64, 3), *y[2], *dx[3];
  EXPECT_OK(quern_composite(ctx, "two", 1, &x, 2, two_results, NULL, y));
  quern_tensor *loss = quern_mul(y[0], y[1]); /* -x^3 */
  EXPECT_OK(quern_grad(loss, 3, (quern_tensor *[]){y[0], y[1], x}, dx));
  EXPECT_EXACT(dx[0], -3);
  EXPECT_EXACT(dx[1], 9);
  EXPECT_EXACT(dx[2], -27);
  EXPECT_EXACT(GRAD(y[1], x), -1); /* the other result has no gradient: zeros stand for it */
}

/* Integers, bools and piecewise constant ops carry no gradient. */
static void test_no_gradient(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2), 1.5, -2.5);
  EXPECT_EXACT(VJP(quern_cast(quern_cast(x, QUERN_DTYPE_I32), QUERN_DTYPE_F64), x, 1, 1), 0, 0);
  EXPECT_EXACT(VJP(quern_cast(quern_gt(x, quern_zeros_like(x)), QUERN_DTYPE_F64), x, 1, 1), 0, 0);
  EXPECT_EXACT(VJP(quern_floor(x), x, 1, 1), 0, 0);
  EXPECT_EXACT(VJP(quern_mul(quern_sign(x), x), x, 1, 1), 1, -1);
  EXPECT_EXACT(VJP(quern_bitcast(quern_bitcast(x, QUERN_DTYPE_U64), QUERN_DTYPE_F64), x, 1, 1), 0, 0);
  EXPECT_EXACT(VJP(quern_stop_gradient(x), x, 1, 1), 0, 0);
  EXPECT_EXACT(VJP(quern_mul(quern_stop_gradient(x), x), x, 1, 1), 1.5, -2.5);
  EXPECT_EXACT(VJP(quern_mul(quern_checkpoint_activation(x), x), x, 1, 1), 3, -5);
  quern_tensor *stopped = quern_stop_gradient(quern_square(x));
  EXPECT_EXACT(VJP(quern_square(stopped), stopped, 1, 1), 2 * 2.25, 2 * 6.25); /* beyond the stop */
}

static void test_dtypes(void **state) {
  (void)state;
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F64,  QUERN_DTYPE_F32,    QUERN_DTYPE_F16,
                                       QUERN_DTYPE_BF16, QUERN_DTYPE_F8E4M3, QUERN_DTYPE_F8E5M2};
  for (size_t k = 0; k < BASE_COUNT(dtypes); k++) {
    quern_tensor *x = test_const(dtypes[k], DIMS(2), QUERN_DTYPE_F64, REALS_OF(2, -3));
    EXPECT_EXACT(VJP(quern_square(x), x, 1, 0.5), 4, -3);
    EXPECT_EXACT(VJP(quern_square(quern_cast(x, QUERN_DTYPE_F32)), x, 1, 0.5), 4, -3);
  }
}

/* The same call gives the same expressions, and the graph of y stays as it is. */
static void test_same_expressions(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", DIMS(3)), *y = quern_sum(quern_mul(quern_tanh(x), quern_exp(x)), QUERN_ALL, false);
  quern_tensor *first = GRAD(y, x);
  size_t nodes = quern_context_node_count(ctx);
  assert_ptr_equal(GRAD(y, x), first);
  assert_int_equal(quern_context_node_count(ctx), nodes);
  EXPECT_OK(ir_verify(ctx, 2, (quern_tensor *[]){y, first}));
}

/* A long chain: no recursion. x is far from the root, and only what leads to x is worked on. */
static void test_long_chain(void **state) {
  (void)state;
  enum { LENGTH = 5000 };
  quern_tensor *x = INPUT(F64, "x", SCALAR), *other = INPUT(F64, "other", SCALAR), *y = x, *z = other;
  for (int i = 0; i < LENGTH; i++) y = quern_add(y, x), z = quern_sin(z);
  size_t nodes = quern_context_node_count(ctx);
  quern_tensor *dx = GRAD(quern_mul(y, z), x);
  assert_true(quern_context_node_count(ctx) - nodes < LENGTH + 100); /* none for the sines */
  double at[2] = {1, 0.5}, got;
  struct ir_binding bindings[] = {{x, &at[0]}, {other, &at[1]}};
  quern_tensor *ratio = quern_div(dx, z);
  test_doubles(ratio, 2, bindings, &got, __FILE__, __LINE__);
  assert_true(fabs(got - (LENGTH + 1)) < 1e-6);
}

/* ---- against differences ---------------------------------------------------------------------------------------- */

static void network(quern_tensor *const *x, quern_tensor **y) {
  quern_tensor *hidden = quern_tanh(quern_add(quern_matmul(x[0], x[1]), x[2]));
  y[0] = quern_softmax(hidden, -1);
  y[1] = quern_sum(quern_square(hidden), QUERN_LIST(0), false);
}

static void test_network(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = network, .n_x = 3, .shapes = {DIMS(2, 3), DIMS(3, 4), DIMS(4)}, .n_y = 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_wrong_grad),  TEST(test_wrong_vjp),     TEST(test_contexts),         TEST(test_earlier_errors),
      TEST(test_unreached),   TEST(test_sum_over_uses), TEST(test_intermediate),     TEST(test_same_x_twice),
      TEST(test_several_y),   TEST(test_repeated_y),    TEST(test_results),          TEST(test_result_as_x),
      TEST(test_no_gradient), TEST(test_dtypes),        TEST(test_same_expressions), TEST(test_long_chain),
      TEST(test_network),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
