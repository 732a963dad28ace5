/* tests/grad/test_jvp.c -- forward mode: wrong calls, and how tangents travel over a graph */
#include "grad/grad_test.h"

#include "grad/grad.h"

static void test_wrong_calls(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2), 1, 2), *y = quern_exp(x), *one = REAL(F32, 1), *i = INT(I32, 1), *ty = NULL,
               *null = NULL;
  quern_tensor *poison = &ir_poison;
  EXPECT_ERROR(quern_jvp(1, NULL, &x, 1, &y, &ty), INVALID, "jvp: the list x of 1 is null");
  EXPECT_ERROR(quern_jvp(1, &x, NULL, 1, &y, &ty), INVALID, "jvp: the list tx of 1 is null");
  EXPECT_ERROR(quern_jvp(1, &x, &null, 1, &y, &ty), INVALID, "jvp: tx[0] is null");
  EXPECT_ERROR(quern_jvp(1, &x, &x, 1, NULL, &ty), INVALID, "jvp: the list y of 1 is null");
  EXPECT_ERROR(quern_jvp(1, &x, &x, 1, &y, NULL), INVALID, "jvp: the list ty of 1 is null");
  EXPECT_ERROR(quern_jvp(1, &x, &one, 1, &y, &ty), SHAPE,
               "jvp: tx[0] is f32(), x[0] is f32(2,): their types must be equal");
  EXPECT_ERROR(quern_jvp(1, &i, &i, 1, &y, &ty), DTYPE, "jvp: x[0] is i32(): derivatives need a float dtype");
  EXPECT_ERROR(quern_jvp(1, &x, &x, 1, &i, &ty), DTYPE, "jvp: y[0] is i32()");
  EXPECT_ERROR(quern_jvp(1, &x, &poison, 1, &y, &ty), INVALID, "jvp: tx[0] is the result of a call that failed");
  assert_null(ty);
  EXPECT_OK(quern_jvp(0, NULL, NULL, 0, NULL, NULL));
  EXPECT_OK(quern_jvp(1, &x, &x, 0, NULL, NULL));
  EXPECT_OK(quern_jvp(0, NULL, NULL, 1, &y, &ty));
  EXPECT_EXACT(ty, 0, 0);

  quern_context *other = NULL;
  EXPECT_OK(quern_context_new(&other, NULL));
  quern_tensor *foreign = ir_const(other, QUERN_DTYPE_F32, 1);
  EXPECT_ERROR(quern_jvp(1, &x, &x, 1, &foreign, &ty), INVALID, "jvp: y[0] belongs to another context");
  quern_context_free(other);
  quern_add(x, REALS(F32, DIMS(3), 1, 2, 3));
  EXPECT_ERROR(quern_jvp(1, &x, &x, 1, &y, &ty), SHAPE, "add");
  EXPECT_OK(quern_jvp(1, &x, &x, 1, &y, &ty));
}

static void test_travel(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2), 3, 5), *unreached = REAL(F64, 1);
  EXPECT_EXACT(JVP(quern_square(x), x, 1, 10), 6, 100);
  EXPECT_EXACT(JVP(quern_sub(quern_mul(x, x), x), x, 1, 10), 5, 90);
  EXPECT_EXACT(JVP(x, x, 7, 8), 7, 8);
  EXPECT_EXACT(JVP(unreached, x, 7, 8), 0);
  EXPECT_EXACT(JVP(x, unreached, 9), 0, 0);
}

/* x on the way to y: its own tangent is added to what comes through it, as in quern_vjp. */
static void test_intermediate(void **state) {
  (void)state;
  quern_tensor *x = REAL(F64, 3), *middle = quern_square(x), *y = quern_mul(middle, quern_add(middle, x)), *ty;
  quern_tensor *tx[] = {REAL(F64, 10), REAL(F64, 1)};
  EXPECT_OK(quern_jvp(2, (quern_tensor *[]){middle, x}, tx, 1, &y, &ty));
  EXPECT_EXACT(ty, (2 * 9 + 3) * 10 + (9 + (2 * 9 + 3) * 6));
  EXPECT_OK(quern_jvp(2, (quern_tensor *[]){x, middle}, (quern_tensor *[]){tx[1], tx[0]}, 1, &y, &ty));
  EXPECT_EXACT(ty, (2 * 9 + 3) * 10 + (9 + (2 * 9 + 3) * 6));
}

static void test_same_x_twice(void **state) {
  (void)state;
  quern_tensor *x = REAL(F64, 3), *y = quern_square(x), *ty, *tx[] = {REAL(F64, 1), REAL(F64, 10)};
  EXPECT_OK(quern_jvp(2, (quern_tensor *[]){x, x}, tx, 1, &y, &ty));
  EXPECT_EXACT(ty, 66);
}

static void test_several(void **state) {
  (void)state;
  quern_tensor *x = REAL(F64, 3), *s = REAL(F64, 2), *ty[3];
  quern_tensor *y[] = {quern_mul(x, s), x, quern_mul(x, s)}, *tx[] = {REAL(F64, 1), REAL(F64, 10)};
  EXPECT_OK(quern_jvp(2, (quern_tensor *[]){x, s}, tx, 3, y, ty));
  EXPECT_EXACT(ty[0], 2 + 30);
  EXPECT_EXACT(ty[1], 1);
  assert_ptr_equal(ty[2], ty[0]);
}

static void test_results(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(3), 3, 1, 2), *index = NULL, *sorted = quern_sort(x, 0, true, &index);
  EXPECT_EXACT(JVP(sorted, x, 10, 20, 30), 10, 30, 20);
  EXPECT_EXACT(JVP(quern_cast(index, QUERN_DTYPE_F64), x, 10, 20, 30), 0, 0, 0);
}

static void test_no_tangent(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2), 1.5, -2.5);
  EXPECT_EXACT(JVP(quern_cast(quern_cast(x, QUERN_DTYPE_I32), QUERN_DTYPE_F64), x, 1, 1), 0, 0);
  EXPECT_EXACT(JVP(quern_floor(x), x, 1, 1), 0, 0);
  EXPECT_EXACT(JVP(quern_mul(quern_stop_gradient(x), x), x, 1, 1), 1.5, -2.5);
  EXPECT_EXACT(JVP(quern_mul(quern_checkpoint_activation(x), x), x, 1, 1), 3, -5);
  quern_tensor *h = REALS(F16, DIMS(2), 1.5, -2.5);
  EXPECT_EXACT(JVP(quern_cast(h, QUERN_DTYPE_F64), h, 1, 2), 1, 2);
}

/* Only some sources have a tangent: the others count as zeros. */
static void test_some_sources(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2), 1, 2), *c = REALS(F64, DIMS(2), 5, 7), *fill = REAL(F64, 3);
  EXPECT_EXACT(JVP(quern_concat(3, (quern_tensor *[]){c, x, c}, 0), x, 10, 20), 0, 0, 10, 20, 0, 0);
  EXPECT_EXACT(JVP(quern_where(quern_lt(x, quern_full_like(x, 1.5)), x, c), x, 10, 20), 10, 0);
  EXPECT_EXACT(JVP(quern_where(quern_lt(x, quern_full_like(x, 1.5)), c, x), x, 10, 20), 0, 20);
  EXPECT_EXACT(JVP(quern_matmul(c, x), x, 10, 20), 190);
  EXPECT_EXACT(JVP(quern_matmul(x, c), x, 10, 20), 190);
  struct ir_attrs pad = {.lo = DIMS(1), .hi = DIMS(0), .mid = DIMS(1)};
  EXPECT_EXACT(JVP(IR_MAKE(ctx, IR_PAD, &pad, x, fill), x, 10, 20), 0, 10, 0, 20);
  EXPECT_EXACT(JVP(IR_MAKE(ctx, IR_PAD, &pad, x, fill), fill, 7), 7, 0, 7, 0);
  quern_tensor *start = INT(I64, 1), *u = REAL(F64, 9);
  quern_tensor *updated = quern_update_at(x, quern_reshape(u, QUERN_LIST(1)), 1, &start);
  EXPECT_EXACT(JVP(updated, x, 10, 20), 10, 0);
  EXPECT_EXACT(JVP(updated, u, 7), 0, 7);
}

/* A tangent of all results from a vjp rule. */
static quern_status wrong_vjp(const struct grad_back *g) {
  g->dx[0] = quern_zeros(g->ctx, QUERN_DTYPE_F32, QUERN_LIST(7));
  return QUERN_STATUS_OK;
}

static quern_status no_vjp(const struct grad_back *g) {
  (void)g;
  return QUERN_STATUS_OK;
}

static quern_status failing_vjp(const struct grad_back *g) {
  g->dx[0] = quern_not(g->dy[0]);
  return QUERN_STATUS_OK;
}

static void test_transposed(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2), 3, 5), *y = quern_mul(x, quern_exp(x)), *ty = NULL;
  quern_tensor *t[] = {REALS(F64, DIMS(2), 1, 2), NULL};
  quern_tensor *product = quern_mul(x, REALS(F64, DIMS(2), 7, 8));
  struct grad_fore g = {ctx, product->node, product->node->src[0] == x ? t : (quern_tensor *[]){NULL, t[0]}, &ty};
  EXPECT_OK(grad_jvp_transposed(&g, grad_vjp_MUL));
  EXPECT_EXACT(ty, 7, 16);
  quern_tensor *both[] = {t[0], t[0]};
  quern_tensor *square = IR_MAKE(ctx, IR_MUL, NULL, x, x);
  g = (struct grad_fore){ctx, square->node, both, &ty};
  EXPECT_OK(grad_jvp_transposed(&g, grad_vjp_MUL));
  EXPECT_EXACT(ty, 6, 20);

  quern_tensor *node = quern_neg(y);
  ty = NULL;
  g = (struct grad_fore){ctx, node->node, t, &ty};
  EXPECT_ERROR(grad_jvp_transposed(&g, wrong_vjp), INTERNAL,
               "the derivative rule of neg gives f32(7,) for source 0, which is f64(2,)");
  EXPECT_ERROR(grad_jvp_transposed(&g, failing_vjp), DTYPE, "not");
  EXPECT_OK(grad_jvp_transposed(&g, no_vjp));
  assert_null(ty);
}

static void curves(quern_tensor *const *x, quern_tensor **y) {
  y[0] = quern_atan2(quern_sin(x[0]), quern_add_scalar(quern_square(x[1]), 1));
  y[1] = quern_cumprod(quern_mul(x[0], x[1]), 0);
}

static void test_curves(void **state) {
  (void)state;
  CHECK_DERIVATIVES(.build = curves, .n_x = 2, .shapes = {DIMS(3, 2), DIMS(3, 2)}, .n_y = 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_wrong_calls), TEST(test_travel),  TEST(test_intermediate), TEST(test_same_x_twice),
      TEST(test_several),     TEST(test_results), TEST(test_no_tangent),   TEST(test_some_sources),
      TEST(test_transposed),  TEST(test_curves),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
