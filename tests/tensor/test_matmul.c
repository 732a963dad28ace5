/* tests/tensor/test_matmul.c -- matrix products against NumPy's rule, and the graphs they make */
#include "tensor/compound_test.h"
#include "tensor/tensor.h"

static void values(void **state) {
  (void)state;
  quern_tensor *a = REALS(F32, DIMS(2, 3), 1, 2, 3, 4, 5, 6), *b = REALS(F32, DIMS(3, 2), 1, 0, 0, 1, 2, 2),
               *v = REALS(F32, DIMS(3), 1, 1, 2);
  EXPECT(quern_matmul(a, b), 7, 8, 16, 17);
  EXPECT(quern_matmul(a, v), 9, 21);
  EXPECT(quern_matmul(v, b), 5, 5);
  EXPECT(quern_matmul(v, v), 6);
  EXPECT_TYPE(quern_matmul(v, v), F32, SCALAR);
  EXPECT(quern_matmul(ZEROS(F32, 2, 0), ZEROS(F32, 0, 2)), 0, 0, 0, 0);
  EXPECT(quern_matmul(REALS(I32, DIMS(1, 2), 3, -4), REALS(I32, DIMS(2, 1), 5, 6)), -9);
  quern_tensor *w = REALS(F32, DIMS(2, 3), 1, 0, 2, 0, 1, 0), *bias = REALS(F32, DIMS(2), 10, 20);
  EXPECT(quern_linear(v, w, NULL), 5, 1);
  EXPECT(quern_linear(a, w, bias), 17, 22, 26, 25);
  EXPECT_TYPE(quern_linear(INPUT(4, 5, 3), w, bias), F32, DIMS(4, 5, 2));
}

/* Batches broadcast: every shape of a and b against sums by hand. */
static void batches(void **state) {
  (void)state;
  const struct {
    struct ir_ints a, b, y;
  } cases[] = {
      {DIMS(2, 3, 4), DIMS(4, 5), DIMS(2, 3, 5)},
      {DIMS(3, 4), DIMS(2, 4, 5), DIMS(2, 3, 5)},
      {DIMS(2, 3, 4), DIMS(2, 4, 5), DIMS(2, 3, 5)},
      {DIMS(1, 3, 4), DIMS(2, 4, 5), DIMS(2, 3, 5)},
      {DIMS(2, 3, 4), DIMS(1, 4, 5), DIMS(2, 3, 5)},
      {DIMS(2, 1, 3, 4), DIMS(3, 4, 5), DIMS(2, 3, 3, 5)},
      {DIMS(3, 1, 2, 4), DIMS(1, 2, 4, 1), DIMS(3, 2, 2, 1)},
      {DIMS(1, 2, 1, 2, 3), DIMS(3, 1, 2, 3, 2), DIMS(3, 2, 2, 2, 2)},
      {DIMS(4), DIMS(2, 4, 3), DIMS(2, 3)},
      {DIMS(2, 3, 4), DIMS(4), DIMS(2, 3)},
      {DIMS(4), DIMS(3, 2, 4, 1), DIMS(3, 2, 1)},
      {DIMS(1, 3, 4), DIMS(1, 4, 5), DIMS(1, 3, 5)},
      {DIMS(2, 3, 1), DIMS(1, 5), DIMS(2, 3, 5)},
  };
  for (size_t c = 0; c < BASE_COUNT(cases); c++) {
    struct ir_ints sa = cases[c].a, sb = cases[c].b, sy = cases[c].y;
    double da[200], db[200], want[400];
    test_fill(200, da, c);
    test_fill(200, db, c + 100);
    size_t na = 1, nb = 1, ny = 1;
    for (int k = 0; k < sa.n; k++) na *= (size_t)sa.at[k];
    for (int k = 0; k < sb.n; k++) nb *= (size_t)sb.at[k];
    for (int k = 0; k < sy.n; k++) ny *= (size_t)sy.at[k];
    quern_tensor *a = ARRAY(F64, sa, na, da), *b = ARRAY(F64, sb, nb, db), *y = quern_matmul(a, b);
    test_type(y, QUERN_DTYPE_F64, sy, __FILE__, __LINE__);
    assert_true(test_count_ops(y, IR_DOT) == 1);
    assert_true(test_count_ops(y, IR_BROADCAST) == 0);
    int am = BASE_MIN(sa.n, 2), bm = BASE_MIN(sb.n, 2);
    int64_t inner = sa.at[sa.n - 1], rows = am == 2 ? sa.at[sa.n - 2] : 1, columns = bm == 2 ? sb.at[sb.n - 1] : 1;
    int batch = sy.n - (am == 2) - (bm == 2);
    for (size_t i = 0; i < ny; i++) {
      size_t column = i % (size_t)columns, row = i / (size_t)columns % (size_t)rows,
             rest = i / (size_t)columns / (size_t)rows;
      size_t at_a = 0, at_b = 0, stride_a = 1, stride_b = 1;
      for (int k = batch - 1; k >= 0; k--) {
        size_t position = rest % (size_t)sy.at[k];
        rest /= (size_t)sy.at[k];
        int ka = k - batch + sa.n - am, kb = k - batch + sb.n - bm;
        if (ka >= 0) at_a += sa.at[ka] == 1 ? 0 : position * stride_a, stride_a *= (size_t)sa.at[ka];
        if (kb >= 0) at_b += sb.at[kb] == 1 ? 0 : position * stride_b, stride_b *= (size_t)sb.at[kb];
      }
      want[i] = 0;
      for (size_t k = 0; k < (size_t)inner; k++) {
        want[i] += da[(at_a * (size_t)rows + row) * (size_t)inner + k] *
                   db[(at_b * (size_t)inner + k) * (size_t)columns + column];
      }
    }
    EXPECT_ARRAY(y, 1e-12, ny, want);
  }
}

static void graphs(void **state) {
  (void)state;
  quern_tensor *x = INPUT(2, 3, 4), *w = INPUT(4, 5), *y = quern_matmul(x, w);
  assert_int_equal(y->node->op, IR_DOT);
  assert_ptr_equal(y->node->src[0], x);
  assert_int_equal(y->node->attrs->a_batch.n, 0);
  quern_tensor *b = quern_matmul(x, INPUT(2, 4, 6));
  assert_int_equal(b->node->op, IR_DOT);
  assert_int_equal(b->node->attrs->a_batch.n, 1);
  assert_ptr_equal(quern_matmul(x, w), y);
  quern_tensor *weight = INPUT(7, 4);
  assert_int_equal(quern_linear(x, weight, NULL)->node->op, IR_DOT);
}

static void wrong_products(void **state) {
  (void)state;
  quern_tensor *s = quern_scalar(ctx, QUERN_DTYPE_F32, 1);
  EXPECT_POISON(quern_matmul(INPUT(32, 768), INPUT(512, 64)), SHAPE,
                "matmul: inner dimensions differ: a is (32, 768), b is (512, 64); a's last must equal b's first");
  EXPECT_POISON(quern_matmul(INPUT(32, 768), INPUT(64, 768)), SHAPE, "HINT: did you mean quern_linear");
  (void)quern_matmul(INPUT(32, 768), INPUT(512, 64));
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_SHAPE);
  assert_null(strstr(quern_last_error(), "HINT"));
  EXPECT_POISON(quern_matmul(INPUT(3), INPUT(4)), SHAPE, "a's last must equal b's first");
  EXPECT_POISON(quern_matmul(INPUT(2, 3, 4), INPUT(2, 5, 4)), SHAPE, "a's last must equal b's second last");
  EXPECT_POISON(quern_matmul(INPUT(2, 3, 4), INPUT(3, 4, 5)), SHAPE,
                "matmul: batch axes do not broadcast: a is (2, 3, 4), b is (3, 4, 5); 2 and 3 differ");
  EXPECT_POISON(quern_matmul(s, INPUT(2)), SHAPE, "matmul: a is (), b is (2,); scalars have no rows");
  EXPECT_POISON(quern_matmul(ZEROS(BOOL, 2, 2), ZEROS(BOOL, 2, 2)), DTYPE, "matmul: does not admit bool");
  EXPECT_POISON(quern_matmul(ZEROS(F64, 2, 2), ZEROS(F32, 2, 2)), DTYPE, "matmul: dtypes differ");
  EXPECT_POISON(quern_linear(INPUT(2, 3), INPUT(3, 4), NULL), SHAPE,
                "linear: x is (2, 3), weight is (3, 4); weight must be (out, in)");
  EXPECT_POISON(quern_linear(INPUT(2, 3), INPUT(3), NULL), SHAPE, "linear: x is (2, 3), weight is (3,)");
  EXPECT_POISON(quern_linear(s, INPUT(3, 4), NULL), SHAPE, "linear: x is ()");
  EXPECT_POISON(quern_linear(INPUT(2, 3), INPUT(4, 3), INPUT(3)), SHAPE,
                "linear: bias is (3,), weight is (4, 3); bias must be (out,)");
  EXPECT_POISON(quern_linear(INPUT(2, 3), INPUT(4, 3), ZEROS(F64, 4)), DTYPE,
                "linear: dtypes differ: operand 0 is f32(2, 3), operand 2 is f64(4,)");
  EXPECT_POISON(quern_linear(INPUT(2, 3), NULL, NULL), INVALID, "linear: operand 1 is null");
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(values), TEST(batches), TEST(graphs), TEST(wrong_products)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
