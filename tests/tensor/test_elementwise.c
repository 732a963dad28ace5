/* tests/tensor/test_elementwise.c -- operations element by element: values, broadcasting, dtypes */
#include "tensor/compound_test.h"

typedef quern_tensor *unary(quern_tensor *);
typedef quern_tensor *binary(quern_tensor *, quern_tensor *);

#define INF ((double)INFINITY)
#define NOT_A_NUMBER ((double)NAN)

/* Every builder of one operand: the value at 0.5 in f64, and a dtype that it does not admit. */
static const struct {
  const char *name;
  unary *build;
  double at_half;
  int refuses; /* a dtype, or -1 */
} unaries[] = {
#define ROW(name, value, refuses)                                                                                      \
  { #name, quern_##name, value, refuses }
    ROW(neg, -0.5, QUERN_DTYPE_BOOL),
    ROW(abs, 0.5, QUERN_DTYPE_BOOL),
    ROW(sign, 1, QUERN_DTYPE_BOOL),
    ROW(floor, 0, QUERN_DTYPE_I32),
    ROW(ceil, 1, QUERN_DTYPE_I32),
    ROW(round, 0, QUERN_DTYPE_I32),
    ROW(trunc, 0, QUERN_DTYPE_U8),
    ROW(exp, 1.6487212707001282, QUERN_DTYPE_I32),
    ROW(expm1, 0.6487212707001282, QUERN_DTYPE_I32),
    ROW(log, -0.6931471805599453, QUERN_DTYPE_I64),
    ROW(log1p, 0.4054651081081644, QUERN_DTYPE_I32),
    ROW(sqrt, 0.7071067811865476, QUERN_DTYPE_I32),
    ROW(rsqrt, 1.4142135623730951, QUERN_DTYPE_I32),
    ROW(reciprocal, 2, QUERN_DTYPE_I32),
    ROW(square, 0.25, QUERN_DTYPE_BOOL),
    ROW(sin, 0.479425538604203, QUERN_DTYPE_I32),
    ROW(cos, 0.8775825618903728, QUERN_DTYPE_I32),
    ROW(tan, 0.5463024898437905, QUERN_DTYPE_I32),
    ROW(tanh, 0.46211715726000973, QUERN_DTYPE_I32),
    ROW(erf, 0.5204998778130465, QUERN_DTYPE_BOOL),
    ROW(erfc, 0.4795001221869535, QUERN_DTYPE_BOOL),
    ROW(isnan, 0, QUERN_DTYPE_I32),
    ROW(isinf, 0, QUERN_DTYPE_I32),
    ROW(isfinite, 1, QUERN_DTYPE_BOOL),
    ROW(stop_gradient, 0.5, -1),
    ROW(checkpoint_activation, 0.5, -1),
#undef ROW
};

static void one_operand(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(1, 1), 0.5);
  for (size_t i = 0; i < BASE_COUNT(unaries); i++) {
    quern_tensor *y = unaries[i].build(x);
    EXPECT_ARRAY(y, 1e-15, 1, &unaries[i].at_half);
    assert_true(ir_same_shape(x, y));
    char words[64];
    snprintf(words, sizeof words, "%s: the operand is null", unaries[i].name);
    EXPECT_NULL_ERROR(unaries[i].build(NULL), words);
    if (unaries[i].refuses < 0) continue;
    snprintf(words, sizeof words, "%s: does not admit %s", unaries[i].name, base_dtypes[unaries[i].refuses].name);
    EXPECT_POISON(unaries[i].build(quern_zeros(ctx, (quern_dtype)unaries[i].refuses, QUERN_LIST(2))), DTYPE, words);
  }
}

static void special_values(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(4), NOT_A_NUMBER, INF, -INF, 1);
  EXPECT(quern_isnan(x), 1, 0, 0, 0);
  EXPECT(quern_isinf(x), 0, 1, 1, 0);
  EXPECT(quern_isfinite(x), 0, 0, 0, 1);
  quern_tensor *small = REALS(F8E4M3, DIMS(3), NOT_A_NUMBER, 448, 1);
  EXPECT(quern_isfinite(small), 0, 1, 1);
  EXPECT(quern_isinf(small), 0, 0, 0);
  EXPECT(quern_isnan(small), 1, 0, 0);
  EXPECT(quern_round(REALS(F32, DIMS(3), 0.5, 1.5, -2.5)), 0, 2, -2);
  EXPECT(quern_reciprocal(REALS(F32, DIMS(2), 0, -4)), INF, -0.25);
  EXPECT(quern_not(REALS(BOOL, DIMS(2), 1, 0)), 0, 1);
  EXPECT(quern_not(REALS(U8, DIMS(2), 1, 255)), 254, 0);
  EXPECT_POISON(quern_not(ZEROS(F32, 1)), DTYPE, "HINT: quern_cast to an integer dtype");
  EXPECT_NULL_ERROR(quern_not(NULL), "not: the operand is null");
}

/* Every builder of two operands: its value of (7, 2) and (-7, 2) in a dtype, and a dtype that it does not
** admit. */
static const struct {
  const char *name;
  binary *build;
  quern_dtype dtype;
  double first, second;
  int refuses;
} binaries[] = {
#define ROW(name, DTYPE, first, second, refuses)                                                                       \
  { #name, quern_##name, QUERN_DTYPE_##DTYPE, first, second, refuses }
    ROW(add, I32, 9, -5, QUERN_DTYPE_BOOL),
    ROW(sub, I32, 5, -9, QUERN_DTYPE_BOOL),
    ROW(mul, I32, 14, -14, QUERN_DTYPE_BOOL),
    ROW(div, I32, 3, -4, QUERN_DTYPE_BOOL),
    ROW(div, F32, 3.5, -3.5, QUERN_DTYPE_BOOL),
    ROW(mod, I32, 1, 1, QUERN_DTYPE_BOOL),
    ROW(mod, F32, 1, 1, QUERN_DTYPE_BOOL),
    ROW(pow, F32, 49, 49, QUERN_DTYPE_I32),
    ROW(atan2, F64, 1.2924966677897853, -1.2924966677897853, QUERN_DTYPE_I32),
    ROW(maximum, F32, 7, 2, -1),
    ROW(minimum, F32, 2, -7, -1),
    ROW(eq, F32, 0, 0, -1),
    ROW(ne, F32, 1, 1, -1),
    ROW(lt, F32, 0, 1, -1),
    ROW(le, F32, 0, 1, -1),
    ROW(gt, F32, 1, 0, -1),
    ROW(ge, F32, 1, 0, -1),
    ROW(and, I32, 2, 0, QUERN_DTYPE_F32),
    ROW(or, I32, 7, -5, QUERN_DTYPE_F32),
    ROW(xor, I32, 5, -5, QUERN_DTYPE_F16),
    ROW(shl, I32, 28, -28, QUERN_DTYPE_BOOL),
    ROW(shr, I32, 1, -2, QUERN_DTYPE_F32),
#undef ROW
};

static void two_operands(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(binaries); i++) {
    binary *build = binaries[i].build;
    quern_tensor *a = test_reals(binaries[i].dtype, DIMS(2, 1), LIST_OF(double, 7, -7), __FILE__, __LINE__);
    quern_tensor *b = test_reals(binaries[i].dtype, DIMS(2), LIST_OF(double, 2, 2), __FILE__, __LINE__);
    quern_tensor *y = build(a, b);
    const double want[] = {binaries[i].first, binaries[i].first, binaries[i].second, binaries[i].second};
    EXPECT_ARRAY(y, 1e-15, 4, want);
    assert_true(y->rank == 2 && y->dims[0] == 2 && y->dims[1] == 2);
    char words[160];
    snprintf(words, sizeof words, "%s: operand 1 is null", binaries[i].name);
    EXPECT_POISON(build(a, NULL), INVALID, words);
    snprintf(words, sizeof words, "%s: dtypes differ: operand 0 is f32(2,), operand 1 is f64(2,)", binaries[i].name);
    EXPECT_POISON(build(ZEROS(F32, 2), ZEROS(F64, 2)), DTYPE, words);
    if (binaries[i].refuses >= 0) {
      quern_tensor *wrong = quern_zeros(ctx, (quern_dtype)binaries[i].refuses, QUERN_LIST(2));
      snprintf(words, sizeof words, "%s: does not admit %s", binaries[i].name, base_dtypes[binaries[i].refuses].name);
      EXPECT_POISON(build(wrong, wrong), DTYPE, words);
    }
    snprintf(words, sizeof words,
             "%s: shapes do not broadcast: operand 0 is (2, 3), operand 1 is (4, 1, 2); axis 1 from the end "
             "is 3 and 2",
             binaries[i].name);
    quern_tensor *c = quern_zeros(ctx, binaries[i].dtype, QUERN_LIST(2, 3)),
                 *d = quern_zeros(ctx, binaries[i].dtype, QUERN_LIST(4, 1, 2));
    EXPECT_POISON(build(c, d), SHAPE, words);
  }
}

static void broadcasting(void **state) {
  (void)state;
  quern_tensor *a = REALS(F32, DIMS(2, 1, 2), 1, 2, 3, 4), *b = REALS(F32, DIMS(3, 1), 10, 20, 30),
               *s = REALS(F32, SCALAR, 100);
  EXPECT(quern_add(a, b), 11, 12, 21, 22, 31, 32, 13, 14, 23, 24, 33, 34);
  EXPECT_TYPE(quern_add(a, b), F32, DIMS(2, 3, 2));
  EXPECT(quern_sub(s, b), 90, 80, 70);
  EXPECT(quern_sub(b, s), -90, -80, -70);
  EXPECT_TYPE(quern_add(ZEROS(F32, 0), ZEROS(F32, 2, 1)), F32, DIMS(2, 0));
  EXPECT_POISON(quern_add(ZEROS(F32, 0), ZEROS(F32, 2)), SHAPE, "axis 1 from the end is 0 and 2");
  quern_tensor *wide = quern_input(ctx, "wide", QUERN_DTYPE_F32, QUERN_LIST(INT64_C(1) << 32, 1));
  quern_tensor *tall = quern_input(ctx, "tall", QUERN_DTYPE_F32, QUERN_LIST(INT64_C(1) << 32));
  EXPECT_POISON(quern_add(wide, tall), OVERFLOW, "add: (4294967296, 4294967296) of f32 has more than 2^63 - 1 bytes");
}

static void scalars(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2), 1, -2), *i = REALS(I32, DIMS(2), 7, -7);
  EXPECT(quern_add_scalar(x, 0.5), 1.5, -1.5);
  EXPECT(quern_mul_scalar(x, 3), 3, -6);
  EXPECT(quern_div_scalar(x, 4), 0.25, -0.5);
  EXPECT(quern_div_scalar(i, 2), 3, -4);
  EXPECT(quern_add_scalar(i, -1), 6, -8);
  EXPECT(quern_pow_scalar(x, 3), 1, -8);
  EXPECT(quern_pow_scalar(x, -1), 1, -0.5);
  assert_ptr_equal(quern_pow_scalar(x, 1), x);
  assert_ptr_equal(quern_pow_scalar(x, 2), quern_square(x));
  EXPECT(quern_clip(REALS(F32, DIMS(4), -3, 0.5, 9, NOT_A_NUMBER), -1, 1), -1, 0.5, 1, NOT_A_NUMBER);
  EXPECT(quern_clip(i, 0, 5), 5, 0);
  EXPECT(quern_clip(x, -INF, 0), 0, -2);
  EXPECT_POISON(quern_add_scalar(i, 0.5), INVALID, "add_scalar: 0.5 is not a value of i32");
  EXPECT_POISON(quern_add_scalar(ZEROS(BOOL, 2), 1), DTYPE, "add_scalar: does not admit bool");
  EXPECT_POISON(quern_mul_scalar(i, NOT_A_NUMBER), INVALID, "mul_scalar: nan is not a value of i32");
  EXPECT_NULL_ERROR(quern_mul_scalar(NULL, 1), "mul_scalar: the operand is null");
  EXPECT_POISON(quern_div_scalar(i, INF), INVALID, "div_scalar: inf is not a value of i32");
  EXPECT_POISON(quern_div_scalar(i, 1e10), INVALID, "div_scalar: 10000000000 does not fit i32");
  EXPECT_POISON(quern_pow_scalar(i, 2), DTYPE, "pow_scalar: does not admit i32");
  EXPECT_NULL_ERROR(quern_pow_scalar(NULL, 2), "pow_scalar: the operand is null");
  EXPECT_POISON(quern_clip(x, 2, 1), INVALID, "clip: lo 2 is not at most hi 1");
  EXPECT_POISON(quern_clip(x, NOT_A_NUMBER, 1), INVALID, "clip: lo nan");
  EXPECT_POISON(quern_clip(i, 0, 1.5), INVALID, "clip: 1.5 is not a value of i32");
  EXPECT_POISON(quern_clip(ZEROS(BOOL, 1), 0, 1), DTYPE, "clip: does not admit bool");
}

static void casts(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(3), 1.9, -1.9, 300);
  EXPECT(quern_cast(x, QUERN_DTYPE_I32), 1, -1, 300);
  EXPECT(quern_cast(x, QUERN_DTYPE_U8), 1, 0, 255);
  EXPECT_TYPE(quern_cast(x, QUERN_DTYPE_BOOL), BOOL, DIMS(3));
  assert_ptr_equal(quern_cast(x, QUERN_DTYPE_F32), x);
  EXPECT(quern_bitcast(REALS(F32, DIMS(1), 1), QUERN_DTYPE_U32), 0x3f800000);
  assert_ptr_equal(quern_bitcast(x, QUERN_DTYPE_F32), x);
  EXPECT_POISON(quern_cast(x, (quern_dtype)15), DTYPE, "cast: 15 is no dtype");
  EXPECT_NULL_ERROR(quern_cast(NULL, QUERN_DTYPE_F32), "cast: the operand is null");
  EXPECT_POISON(quern_bitcast(x, QUERN_DTYPE_F64), DTYPE, "bitcast: f32 has 4 bytes, f64 has 8");
  EXPECT_POISON(quern_bitcast(x, (quern_dtype)-3), DTYPE, "bitcast: -3 is no dtype");
  EXPECT_POISON(quern_bitcast(ZEROS(U8, 2), QUERN_DTYPE_BOOL), DTYPE, "bitcast: ");
}

static void choice(void **state) {
  (void)state;
  quern_tensor *c = REALS(BOOL, DIMS(2, 1), 1, 0), *a = REALS(I32, DIMS(2), 1, 2), *b = REALS(I32, SCALAR, 9);
  EXPECT(quern_where(c, a, b), 1, 2, 9, 9);
  EXPECT_POISON(quern_where(a, a, b), DTYPE, "where: the condition is i32(2,), must be bool");
  EXPECT_POISON(quern_where(c, a, ZEROS(F32, 2)), DTYPE, "where: dtypes differ: a is i32(2,), b is f32(2,)");
  EXPECT_POISON(quern_where(c, ZEROS(F32, 3, 2), ZEROS(F32, 2)), SHAPE,
                "where: shapes do not broadcast: operand 0 is (2, 1), operand 1 is (3, 2)");
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(one_operand), TEST(special_values), TEST(two_operands), TEST(broadcasting),
                                     TEST(scalars),     TEST(casts),          TEST(choice)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
