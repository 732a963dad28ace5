/* tests/ir/test_eval_float.c -- elementwise ops on floats, and what has no number: select, casts, bits */
#include <math.h>

#include "ir/ir_test.h"

#define U(NAME, x) IR_MAKE(ctx, IR_##NAME, NULL, x)
#define B(NAME, a, b) IR_MAKE(ctx, IR_##NAME, NULL, a, b)
#define INF ((double)INFINITY)
#define NOT_A_NUMBER ((double)NAN)

static void test_signs(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(7), 1.5, -2, 0.0, -0.0, INF, -INF, NOT_A_NUMBER);
  EXPECT_REALS(U(NEG, x), -1.5, 2, -0.0, 0.0, -INF, INF, NOT_A_NUMBER);
  EXPECT_REALS(U(ABS, x), 1.5, 2, 0, 0, INF, INF, NOT_A_NUMBER);
  EXPECT_REALS(U(SIGN, x), 1, -1, 0.0, -0.0, 1, -1, NOT_A_NUMBER);
  EXPECT_REALS(U(SIGN, REALS(F64, DIMS(2), 1e-300, -1e-300)), 1, -1);
}

static void test_rounding(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(10), 1.5, 2.5, -1.5, -2.5, 0.4, -0.4, -0.0, 1.2, -1.2, 3);
  EXPECT_REALS(U(FLOOR, x), 1, 2, -2, -3, 0, -1, -0.0, 1, -2, 3);
  EXPECT_REALS(U(CEIL, x), 2, 3, -1, -2, 1, -0.0, -0.0, 2, -1, 3);
  EXPECT_REALS(U(ROUND, x), 2, 2, -2, -2, 0, -0.0, -0.0, 1, -1, 3);
  EXPECT_REALS(U(TRUNC, x), 1, 2, -1, -2, 0, -0.0, -0.0, 1, -1, 3);
  quern_tensor *wild = REALS(F64, DIMS(4), INF, -INF, NOT_A_NUMBER, 4503599627370497.0);
  EXPECT_REALS(U(FLOOR, wild), INF, -INF, NOT_A_NUMBER, 4503599627370497.0);
  EXPECT_REALS(U(ROUND, wild), INF, -INF, NOT_A_NUMBER, 4503599627370497.0);
}

/* To 15 digits in f64, and exactly as rounded from there to f32. */
static void check_function(enum ir_op op, double x, double y) {
  double got;
  void *dst = &got;
  quern_tensor *t = IR_MAKE(ctx, op, NULL, REAL(F64, x));
  assert_int_equal(ir_eval(ctx, 1, &t, &dst, 0, NULL), QUERN_STATUS_OK);
  if (!(fabs(got - y) <= 4e-16 * fabs(y))) fail_msg("%s(%.17g) = %.17g, expected %.17g", ir_ops[op].name, x, got, y);
}

static void test_functions(void **state) {
  (void)state;
  check_function(IR_EXP, 0.5, 1.6487212707001282);
  check_function(IR_EXPM1, 1e-10, 1.00000000005e-10);
  check_function(IR_LOG, 3, 1.0986122886681098);
  check_function(IR_LOG1P, 1e-10, 9.9999999995e-11);
  check_function(IR_SQRT, 2, 1.4142135623730951);
  check_function(IR_SIN, 2, 0.90929742682568170);
  check_function(IR_COS, 2, -0.41614683654714239);
  check_function(IR_TANH, 0.5, 0.46211715726000976);
  check_function(IR_ERF, 0.5, 0.52049987781304654);
  check_function(IR_ERFC, 0.5, 0.47950012218695346);
  quern_tensor *x = REALS(F32, DIMS(5), 0.0, -0.0, INF, -INF, NOT_A_NUMBER);
  EXPECT_REALS(U(EXP, x), 1, 1, INF, 0, NOT_A_NUMBER);
  EXPECT_REALS(U(EXPM1, x), 0.0, -0.0, INF, -1, NOT_A_NUMBER);
  EXPECT_REALS(U(LOG, x), -INF, -INF, INF, NOT_A_NUMBER, NOT_A_NUMBER);
  EXPECT_REALS(U(LOG1P, x), 0.0, -0.0, INF, NOT_A_NUMBER, NOT_A_NUMBER);
  EXPECT_REALS(U(SQRT, x), 0.0, -0.0, INF, NOT_A_NUMBER, NOT_A_NUMBER);
  EXPECT_REALS(U(SIN, x), 0.0, -0.0, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER);
  EXPECT_REALS(U(COS, x), 1, 1, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER);
  EXPECT_REALS(U(TANH, x), 0.0, -0.0, 1, -1, NOT_A_NUMBER);
  EXPECT_REALS(U(ERF, x), 0.0, -0.0, 1, -1, NOT_A_NUMBER);
  EXPECT_REALS(U(EXP, REALS(F32, DIMS(3), 1, 88, 100)), 2.718281828459045, 1.6516362549940018e38, INF);
  EXPECT_REALS(U(EXP, REALS(F16, DIMS(2), 1, 12)), 2.71875, INF);
  EXPECT_REALS(U(EXP, REALS(BF16, DIMS(1), 1)), 2.71875);
  EXPECT_REALS(U(EXP, REALS(F8E4M3, DIMS(2), 1, 7)), 2.75, NOT_A_NUMBER);
  EXPECT_REALS(U(EXP, REALS(F8E5M2, DIMS(2), 1, 12)), 2.5, INF);
}

static void test_arithmetic(void **state) {
  (void)state;
  quern_tensor *a = REALS(F32, DIMS(6), 1, -1, 3e38, 0.0, INF, 5);
  quern_tensor *b = REALS(F32, DIMS(6), 3, 0.0, 3e38, 0.0, INF, -2);
  EXPECT_REALS(B(ADD, a, b), 4, -1, INF, 0, INF, 3);
  EXPECT_REALS(B(SUB, a, b), -2, -1, 0, 0, NOT_A_NUMBER, 7);
  EXPECT_REALS(B(SUB, b, a), 2, 1, 0, 0, NOT_A_NUMBER, -7);
  EXPECT_REALS(B(MUL, a, b), 3, -0.0, INF, 0, INF, -10);
  EXPECT_REALS(B(DIV, a, b), 0.3333333432674408, -INF, 1, NOT_A_NUMBER, NOT_A_NUMBER, -2.5);
  EXPECT_REALS(B(DIV, b, a), 3, -0.0, 1, NOT_A_NUMBER, NOT_A_NUMBER, -0.4000000059604645);
  /* Rounded once: 2048 + 1 is halfway in f16 and goes to the even one. */
  EXPECT_REALS(B(ADD, REALS(F16, DIMS(2), 2048, 2048), REALS(F16, DIMS(2), 1, 3)), 2048, 2052);
  EXPECT_REALS(B(ADD, REAL(F64, 1), REAL(F64, 0x1p-52)), 1.0000000000000002);
}

static void test_mod(void **state) {
  (void)state;
  quern_tensor *a = REALS(F64, DIMS(8), 5, -5, 5, -5, 6, -6, 0.0, -0.0);
  quern_tensor *b = REALS(F64, DIMS(8), 3, 3, -3, -3, 3, 3, 3, -3);
  EXPECT_REALS(B(MOD, a, b), 2, 1, -1, -2, 0, 0, 0, -0.0);
  quern_tensor *c = REALS(F64, DIMS(9), 5, -5, 5, -5, INF, 1, -0.0, NOT_A_NUMBER, 6);
  quern_tensor *d = REALS(F64, DIMS(9), INF, INF, -INF, -INF, 3, 0.0, INF, 2, -3);
  EXPECT_REALS(B(MOD, c, d), 5, INF, -INF, -5, NOT_A_NUMBER, NOT_A_NUMBER, 0.0, NOT_A_NUMBER, -0.0);
  EXPECT_REALS(B(MOD, REALS(F32, DIMS(2), 0.75, -0.25), REALS(F32, DIMS(2), 0.5, 0.5)), 0.25, 0.25);
  EXPECT_REALS(B(MOD, REAL(F32, -1e-20), REAL(F32, 1)), 1);
}

static void test_pow_atan2(void **state) {
  (void)state;
  quern_tensor *a = REALS(F32, DIMS(7), 2, -2, 0.0, NOT_A_NUMBER, 9, -8, 2);
  quern_tensor *b = REALS(F32, DIMS(7), 10, 3, -1, 0, 0.5, 0.5, -1);
  EXPECT_REALS(B(POW, a, b), 1024, -8, INF, 1, 3, NOT_A_NUMBER, 0.5);
  double pi = 3.14159265358979323846;
  quern_tensor *y = REALS(F32, DIMS(7), 0.0, -0.0, 1, -1, 1, 0.0, NOT_A_NUMBER);
  quern_tensor *x = REALS(F32, DIMS(7), -1, -1, 0, 0, -1, 1, 1);
  EXPECT_REALS(B(ATAN2, y, x), pi, -pi, pi / 2, -pi / 2, 0.75 * pi, 0, NOT_A_NUMBER);
}

static void test_max_min(void **state) {
  (void)state;
  quern_tensor *a = REALS(F32, DIMS(8), 1, 2, 0.0, -0.0, -0.0, NOT_A_NUMBER, 3, -INF);
  quern_tensor *b = REALS(F32, DIMS(8), 2, 1, -0.0, 0.0, -0.0, 3, NOT_A_NUMBER, INF);
  EXPECT_REALS(B(MAX, a, b), 2, 2, 0.0, 0.0, -0.0, NOT_A_NUMBER, NOT_A_NUMBER, INF);
  EXPECT_REALS(B(MIN, a, b), 1, 1, -0.0, -0.0, -0.0, NOT_A_NUMBER, NOT_A_NUMBER, -INF);
  EXPECT_REALS(B(MAX, REAL(F64, 0.0), REALS(F64, SCALAR, 0.0)), 0.0);
  EXPECT_REALS(B(MIN, REAL(F64, 0.0), REALS(F64, SCALAR, 0.0)), 0.0);
}

static void test_compare(void **state) {
  (void)state;
  quern_tensor *a = REALS(F32, DIMS(7), 1, 2, 2, 0.0, NOT_A_NUMBER, 1, -INF);
  quern_tensor *b = REALS(F32, DIMS(7), 2, 1, 2, -0.0, NOT_A_NUMBER, NOT_A_NUMBER, INF);
  EXPECT_INTS(B(EQ, a, b), 0, 0, 1, 1, 0, 0, 0);
  EXPECT_INTS(B(LT, a, b), 1, 0, 0, 0, 0, 0, 1);
  EXPECT_INTS(B(LE, a, b), 1, 0, 1, 1, 0, 0, 1);
  assert_int_equal(B(LE, a, b)->dtype, QUERN_DTYPE_BOOL);
}

static void test_select(void **state) {
  (void)state;
  quern_tensor *a = INTS(BOOL, DIMS(2, 2), 1, 0, 0, 1);
  quern_tensor *b = REALS(F32, DIMS(2, 2), 1, 2, 3, 4), *c = REALS(F32, DIMS(2, 2), 10, 20, 30, 40);
  EXPECT_REALS(IR_MAKE(ctx, IR_SELECT, NULL, a, b, c), 1, 20, 30, 4);
  quern_tensor *d = INTS(I64, DIMS(2, 2), INT64_MIN, 2, 3, 4), *e = INTS(I64, DIMS(2, 2), 5, 6, 7, 8);
  EXPECT_INTS(IR_MAKE(ctx, IR_SELECT, NULL, a, d, e), INT64_MIN, 6, 7, 4);
}

/* A NaN with a payload passes movement as it is and becomes canonical in arithmetic. */
static void test_nan_bits(void **state) {
  (void)state;
  const uint32_t odd[1] = {0xffc12345u}, canonical[1] = {0x7fc00000u}, flipped[1] = {0x7fc00000u};
  quern_tensor *x =
      ir_make(ctx, IR_CONST, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .shape = DIMS(1), .data = {4, odd}));
  EXPECT_BITS(U(STOP_GRAD, x), odd);
  EXPECT_BITS(U(CHECKPOINT, x), odd);
  EXPECT_BITS(IR_MAKE(ctx, IR_SELECT, NULL, INTS(BOOL, DIMS(1), 1), x, x), odd);
  EXPECT_BITS(IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = DIMS(1, 1)), x), odd);
  EXPECT_BITS(U(NEG, x), flipped);
  EXPECT_BITS(U(FLOOR, x), canonical);
}

static void test_cast(void **state) {
  (void)state;
#define CAST(DTYPE, x) IR_MAKE(ctx, IR_CAST, ATTRS(.dtype = QUERN_DTYPE_##DTYPE), x)
  quern_tensor *x = REALS(F32, DIMS(8), 1.9, -1.9, 300, -300, INF, -INF, NOT_A_NUMBER, -0.0);
  EXPECT_INTS(CAST(I8, x), 1, -1, 127, -128, 127, -128, 0, 0);
  EXPECT_INTS(CAST(U8, x), 1, 0, 255, 0, 255, 0, 0, 0);
  EXPECT_INTS(CAST(I64, x), 1, -1, 300, -300, INT64_MAX, INT64_MIN, 0, 0);
  EXPECT_INTS(CAST(U64, x), 1, 0, 300, 0, -1, 0, 0, 0);
  EXPECT_INTS(CAST(BOOL, x), 1, 1, 1, 1, 1, 1, 1, 0);
  EXPECT_REALS(CAST(F16, REALS(F32, DIMS(3), 2049, 65519, 65520)), 2048, 65504, INF);
  EXPECT_INTS(CAST(I8, INTS(I32, DIMS(3), 127, 128, -129)), 127, -128, 127);
  EXPECT_INTS(CAST(U16, INTS(I8, DIMS(2), -1, 5)), 65535, 5);
  EXPECT_REALS(CAST(F32, INTS(I64, DIMS(2), 16777217, -3)), 16777216, -3);
  EXPECT_REALS(CAST(F32, INTS(BOOL, DIMS(2), 1, 0)), 1, 0);
  EXPECT_INTS(CAST(BOOL, INTS(I32, DIMS(3), 256, 0, -1)), 1, 0, 1);
  EXPECT_EMPTY(CAST(I8, EMPTY(F32, DIMS(0, 3))));
}

static void test_bitcast(void **state) {
  (void)state;
#define BITCAST(DTYPE, x) IR_MAKE(ctx, IR_BITCAST, ATTRS(.dtype = QUERN_DTYPE_##DTYPE), x)
  EXPECT_INTS(BITCAST(U32, REALS(F32, DIMS(2), 1, -0.0)), 0x3f800000, 0x80000000);
  EXPECT_REALS(BITCAST(F16, INTS(U16, DIMS(2), 0x3c00, 0xc000)), 1, -2);
  EXPECT_INTS(BITCAST(I8, INTS(U8, DIMS(2), 255, 1)), -1, 1);
}

static void test_shapes(void **state) {
  (void)state;
  EXPECT_EMPTY(U(NEG, EMPTY(F32, DIMS(2, 0))));
  EXPECT_EMPTY(B(ADD, EMPTY(F32, DIMS(0)), EMPTY(F32, DIMS(0))));
  EXPECT_EMPTY(B(LT, EMPTY(F32, DIMS(0)), EMPTY(F32, DIMS(0))));
  EXPECT_REALS(U(NEG, REAL(F64, 2)), -2);
  EXPECT_REALS(IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = DIMS(3, 2)), REALS(F32, DIMS(2, 3), 1, 2, 3, 4, 5, 6)), 1, 2, 3,
               4, 5, 6);
}

/* Sums move by a unit in the last place, what is only compared or copied not at all. */
static void test_perturbed(void **state) {
  (void)state;
  float moved[3], again[3], most[3];
  void *dst = moved, *dst_again = again, *dst_most = most;
  quern_tensor *a = REALS(F32, DIMS(3), 1, 3, 0), *b = REALS(F32, DIMS(3), 2, -1, 0);
  quern_tensor *sum = B(ADD, a, b), *larger = B(MAX, a, b);
  assert_int_equal(ir_eval_perturbed(ctx, 1, &sum, &dst, 0, NULL, 5), QUERN_STATUS_OK);
  assert_int_equal(ir_eval_perturbed(ctx, 1, &sum, &dst_again, 0, NULL, 5), QUERN_STATUS_OK);
  assert_int_equal(ir_eval_perturbed(ctx, 1, &larger, &dst_most, 0, NULL, 5), QUERN_STATUS_OK);
  assert_memory_equal(moved, again, sizeof moved);
  const float unit = ldexpf(1, -23);
  assert_true(moved[0] == 3 * (1 + unit) || moved[0] == 3 * (1 - unit));
  assert_true(moved[1] == 2 * (1 + unit) || moved[1] == 2 * (1 - unit));
  assert_true(moved[2] == 0 && most[0] == 2 && most[1] == 3 && most[2] == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_signs),     TEST(test_rounding), TEST(test_functions), TEST(test_arithmetic), TEST(test_mod),
      TEST(test_pow_atan2), TEST(test_max_min),  TEST(test_compare),   TEST(test_select),     TEST(test_nan_bits),
      TEST(test_cast),      TEST(test_bitcast),  TEST(test_shapes),    TEST(test_perturbed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
