/* tests/tensor/test_create.c -- leaves, constants and ranges */
#include <float.h>

#include "tensor/compound_test.h"

#define F32 QUERN_DTYPE_F32
#define I32 QUERN_DTYPE_I32
#define NO_DTYPE ((quern_dtype)QUERN_DTYPE_COUNT)

static void leaves(void **state) {
  (void)state;
  quern_tensor *a = quern_input(ctx, "a", F32, QUERN_LIST(2)), *b = quern_input(ctx, "a", F32, QUERN_LIST(2));
  assert_ptr_not_equal(a, b);
  assert_int_equal(a->node->op, IR_INPUT);
  quern_tensor *s = quern_state(ctx, "s", I32, QUERN_SCALAR);
  assert_int_equal(s->node->op, IR_STATE);
  assert_string_equal(quern_tensor_name(s), "s");
  EXPECT_TYPE(s, I32, SCALAR);
}

static void wrong_leaves(void **state) {
  (void)state;
  static const int64_t many[17] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_NULL_ERROR(quern_input(NULL, "x", F32, QUERN_LIST(2)), "input: the context is null");
  EXPECT_POISON(quern_input(ctx, NULL, F32, QUERN_LIST(2)), INVALID, "input: the name is null");
  EXPECT_POISON(quern_input(ctx, "", F32, QUERN_LIST(2)), INVALID, "input: the name is empty");
  EXPECT_POISON(quern_input(ctx, "x", NO_DTYPE, QUERN_LIST(2)), DTYPE, "input: 15 is no dtype");
  EXPECT_POISON(quern_input(ctx, "x", (quern_dtype)-1, QUERN_LIST(2)), DTYPE, "is no dtype");
  EXPECT_POISON(quern_input(ctx, "x", F32, QUERN_LIST(2, -3)), SHAPE, "input: dim 1 of (2, -3) is negative");
  EXPECT_POISON(quern_input(ctx, "x", F32, 17, many), SHAPE, "input: rank 17 is not in 0..16");
  EXPECT_POISON(quern_input(ctx, "x", F32, -1, many), SHAPE, "input: rank -1 is not in 0..16");
  EXPECT_POISON(quern_input(ctx, "x", F32, 2, NULL), INVALID, "input: a list of 2 dims is null");
  EXPECT_POISON(quern_input(ctx, "x", F32, QUERN_LIST(INT64_C(1) << 40, INT64_C(1) << 40)), OVERFLOW,
                "more than 2^63 - 1 bytes");
  EXPECT_POISON(quern_input(ctx, "x", F32, QUERN_LIST(INT64_MAX)), OVERFLOW, "more than 2^63 - 1 bytes");
  EXPECT_POISON(quern_state(ctx, NULL, F32, QUERN_LIST(2)), INVALID, "state: the name is null");
  EXPECT_POISON(quern_state(ctx, "s", F32, 1, NULL), INVALID, "state: a list of 1 dims is null");
  EXPECT_TYPE(quern_input(ctx, "x", F32, 16, many), F32, ((struct ir_ints){16, many}));
}

static void memory(void **state) {
  (void)state;
  float data[3] = {1, 2, 3};
  quern_tensor *w = quern_tensor_wrap(ctx, F32, QUERN_LIST(3), data),
               *c = quern_tensor_copy(ctx, F32, QUERN_LIST(3), data);
  assert_ptr_equal(quern_tensor_data(w), data);
  assert_ptr_not_equal(quern_tensor_data(c), data);
  data[0] = 9;
  EXPECT(w, 9, 2, 3);
  EXPECT(c, 1, 2, 3);
  assert_ptr_not_equal(quern_tensor_copy(ctx, F32, QUERN_LIST(3), data),
                       quern_tensor_copy(ctx, F32, QUERN_LIST(3), data));
  EXPECT_TYPE(quern_tensor_wrap(ctx, F32, QUERN_LIST(0), NULL), F32, DIMS(0));
  EXPECT_TYPE(quern_tensor_copy(ctx, F32, QUERN_LIST(2, 0), NULL), F32, DIMS(2, 0));
  unsigned char bools[3] = {0, 7, 1};
  const unsigned char *kept = quern_tensor_data(quern_tensor_copy(ctx, QUERN_DTYPE_BOOL, QUERN_LIST(3), bools));
  assert_memory_equal(kept, ((unsigned char[]){0, 1, 1}), 3);
  EXPECT_POISON(quern_tensor_wrap(ctx, F32, QUERN_LIST(3), NULL), INVALID, "tensor_wrap: the data of (3,) is null");
  EXPECT_POISON(quern_tensor_wrap(ctx, F32, QUERN_LIST(-3), data), SHAPE, "tensor_wrap: dim 0 of (-3,) is negative");
  EXPECT_POISON(quern_tensor_copy(ctx, F32, QUERN_LIST(2, 2), NULL), INVALID,
                "tensor_copy: the data of (2, 2) is null");
  EXPECT_POISON(quern_tensor_copy(ctx, NO_DTYPE, QUERN_LIST(3), data), DTYPE, "tensor_copy: 15 is no dtype");
}

static void constants(void **state) {
  (void)state;
  float data[2] = {1, 2};
  quern_tensor *a = quern_constant(ctx, F32, QUERN_LIST(2), data);
  assert_ptr_equal(quern_constant(ctx, F32, QUERN_LIST(2), data), a);
  assert_ptr_not_equal(quern_constant(ctx, F32, QUERN_LIST(1, 2), data), a);
  EXPECT(a, 1, 2);
  static const float most[16384];
  EXPECT_TYPE(quern_constant(ctx, F32, QUERN_LIST(16384), most), F32, DIMS(16384));
  EXPECT(quern_constant(ctx, QUERN_DTYPE_BOOL, QUERN_LIST(2), "\5\0"), 1, 0);
  EXPECT_TYPE(quern_constant(ctx, F32, QUERN_LIST(0), NULL), F32, DIMS(0));
  EXPECT_POISON(quern_constant(ctx, F32, QUERN_LIST(2), NULL), INVALID, "constant: the data of (2,) is null");
  EXPECT_POISON(quern_constant(ctx, F32, QUERN_LIST(16385), data), OVERFLOW, "has 65540 bytes, at most 65536");
  EXPECT(quern_scalar(ctx, F32, 0.1), 0.1);
  EXPECT(quern_scalar(ctx, QUERN_DTYPE_BOOL, 1), 1);
  EXPECT(quern_scalar(ctx, QUERN_DTYPE_I8, -128), -128);
  EXPECT(quern_scalar(ctx, F32, (double)INFINITY), (double)INFINITY);
  EXPECT_POISON(quern_scalar(ctx, I32, 2.5), INVALID, "scalar: 2.5 is not a value of i32");
  EXPECT_POISON(quern_scalar(ctx, I32, (double)NAN), INVALID, "scalar: nan is not a value of i32");
  EXPECT_POISON(quern_scalar(ctx, I32, (double)INFINITY), INVALID, "scalar: inf is not a value of i32");
  EXPECT_POISON(quern_scalar(ctx, QUERN_DTYPE_I8, 128), INVALID, "scalar: 128 does not fit i8");
  EXPECT_POISON(quern_scalar(ctx, QUERN_DTYPE_U32, -1), INVALID, "scalar: -1 does not fit u32");
  EXPECT_POISON(quern_scalar(ctx, QUERN_DTYPE_U64, 0x1p64), INVALID, "does not fit u64");
  EXPECT_POISON(quern_scalar(ctx, QUERN_DTYPE_BOOL, 2), INVALID, "scalar: 2 does not fit bool");
  EXPECT(quern_scalar(ctx, QUERN_DTYPE_U64, 0x1p63), 0x1p63);
  EXPECT_POISON(quern_scalar(ctx, NO_DTYPE, 2), DTYPE, "scalar: 15 is no dtype");
  EXPECT(quern_scalar_int(ctx, QUERN_DTYPE_F64, 3), 3);
  EXPECT(quern_scalar_int(ctx, QUERN_DTYPE_U64, -1), 0x1p64);
  EXPECT(quern_scalar_int(ctx, QUERN_DTYPE_U32, UINT32_MAX), UINT32_MAX);
  EXPECT_POISON(quern_scalar_int(ctx, QUERN_DTYPE_U8, 256), INVALID, "scalar_int: 256 does not fit u8");
  EXPECT_POISON(quern_scalar_int(ctx, QUERN_DTYPE_I16, -32769), INVALID, "scalar_int: -32769 does not fit i16");
  EXPECT_NULL_ERROR(quern_scalar_int(NULL, F32, 1), "scalar_int: the context is null");
  int64_t big = (INT64_C(1) << 62) + 1, got;
  quern_tensor *exact = quern_scalar_int(ctx, QUERN_DTYPE_I64, big);
  void *dst = &got;
  assert_int_equal(quern_eval_reference(ctx, 1, &exact, &dst, 0, NULL), QUERN_STATUS_OK);
  assert_true(got == big);
}

static void filled(void **state) {
  (void)state;
  quern_tensor *x = quern_full(ctx, I32, QUERN_LIST(2, 2), 7);
  EXPECT(x, 7, 7, 7, 7);
  EXPECT(quern_zeros(ctx, F32, QUERN_LIST(2)), 0, 0);
  EXPECT(quern_ones(ctx, F32, QUERN_SCALAR), 1);
  assert_ptr_equal(quern_zeros_like(x), quern_zeros(ctx, I32, QUERN_LIST(2, 2)));
  assert_ptr_equal(quern_ones_like(x), quern_full(ctx, I32, QUERN_LIST(2, 2), 1));
  EXPECT(quern_full_like(x, -3), -3, -3, -3, -3);
  EXPECT_TYPE(quern_zeros(ctx, F32, QUERN_LIST(3, 0)), F32, DIMS(3, 0));
  EXPECT_POISON(quern_full(ctx, I32, QUERN_LIST(2), 0.5), INVALID, "full: 0.5 is not a value of i32");
  EXPECT_POISON(quern_full(ctx, F32, QUERN_LIST(-2), 0.5), SHAPE, "full: dim 0 of (-2,) is negative");
  EXPECT_POISON(quern_zeros(ctx, F32, 3, NULL), INVALID, "zeros: a list of 3 dims is null");
  EXPECT_POISON(quern_zeros(ctx, NO_DTYPE, QUERN_LIST(3)), DTYPE, "zeros: 15 is no dtype");
  EXPECT_POISON(quern_ones(ctx, F32, 99, NULL), SHAPE, "ones: rank 99 is not in 0..16");
  EXPECT_POISON(quern_ones(ctx, F32, QUERN_LIST(INT64_MAX, 2)), OVERFLOW, "ones: ");
  EXPECT_POISON(quern_full_like(x, 1e10), INVALID, "full_like: 10000000000 does not fit i32");
  EXPECT_NULL_ERROR(quern_full_like(NULL, 1), "full_like: the operand is null");
  EXPECT_NULL_ERROR(quern_zeros_like(NULL), "zeros_like: the operand is null");
  EXPECT_NULL_ERROR(quern_ones_like(NULL), "ones_like: the operand is null");
}

static void iotas(void **state) {
  (void)state;
  EXPECT(quern_iota(ctx, F32, QUERN_LIST(2, 3), 1), 0, 1, 2, 0, 1, 2);
  assert_ptr_equal(quern_iota(ctx, I32, QUERN_LIST(2, 3), -2), quern_iota(ctx, I32, QUERN_LIST(2, 3), 0));
  EXPECT(quern_iota(ctx, I32, QUERN_LIST(2, 2), 0), 0, 0, 1, 1);
  EXPECT_POISON(quern_iota(ctx, I32, QUERN_LIST(2, 3), 2), SHAPE, "iota: axis 2 is out of range for (2, 3) of rank 2");
  EXPECT_POISON(quern_iota(ctx, I32, QUERN_SCALAR, 0), SHAPE, "iota: axis 0 is out of range for () of rank 0");
  EXPECT_POISON(quern_iota(ctx, QUERN_DTYPE_BOOL, QUERN_LIST(2), 0), DTYPE, "iota: does not admit bool");
  EXPECT(quern_eye(ctx, F32, 2, 3), 1, 0, 0, 0, 1, 0);
  EXPECT_TYPE(quern_eye(ctx, QUERN_DTYPE_BOOL, 2, 2), BOOL, DIMS(2, 2));
  EXPECT_POISON(quern_eye(ctx, F32, -1, 2), SHAPE, "eye: dim 0 of (-1, 2) is negative");
  EXPECT_POISON(quern_eye(ctx, NO_DTYPE, 1, 2), DTYPE, "eye: 15 is no dtype");
}

static void ranges(void **state) {
  (void)state;
  EXPECT(quern_arange(ctx, F32, 4, 1, 0.5), 1, 1.5, 2, 2.5);
  EXPECT(quern_arange(ctx, I32, 3, 5, -7), 5, -2, -9);
  EXPECT(quern_arange(ctx, QUERN_DTYPE_U8, 2, 255, -255), 255, 0);
  EXPECT(quern_arange(ctx, QUERN_DTYPE_I8, 2, -128, 127), -128, -1);
  EXPECT(quern_arange(ctx, QUERN_DTYPE_U64, 2, 0x1p63, 0x1p62), 0x1p63, 0x1.8p63);
  EXPECT_TYPE(quern_arange(ctx, I32, 0, 5, 1), I32, DIMS(0));
  EXPECT(quern_arange(ctx, QUERN_DTYPE_I8, 3, -100, 100), -100, 0, 100);
  EXPECT(quern_arange(ctx, QUERN_DTYPE_I8, 3, 100, -100), 100, 0, -100);
  EXPECT_POISON(quern_arange(ctx, QUERN_DTYPE_I8, 2, -100, -100), OVERFLOW, "does not fit i8");
  EXPECT_POISON(quern_arange(ctx, QUERN_DTYPE_U8, 2, 200, 100), OVERFLOW, "does not fit u8");
  EXPECT(quern_linspace(ctx, F32, 5, 0, 1), 0, 0.25, 0.5, 0.75, 1);
  EXPECT(quern_linspace(ctx, F32, 1, 3, 9), 3);
  EXPECT(quern_linspace(ctx, F32, 2, 3, 9), 3, 9);
  EXPECT_TYPE(quern_linspace(ctx, F32, 0, 3, 9), F32, DIMS(0));
  EXPECT_POISON(quern_arange(ctx, F32, -1, 0, 1), SHAPE, "arange: dim 0 of (-1,) is negative");
  EXPECT_POISON(quern_arange(ctx, I32, 3, 0.5, 1), INVALID, "arange: 0.5 is not a value of i32");
  EXPECT_POISON(quern_arange(ctx, I32, 3, 0, 0.5), INVALID, "arange: the step 0.5 is no integer, but the dtype is i32");
  EXPECT_POISON(quern_arange(ctx, I32, 3, 0, (double)NAN), INVALID, "arange: the step");
  EXPECT_POISON(quern_arange(ctx, QUERN_DTYPE_I8, 3, 0, 64), OVERFLOW, "arange: element 2 of 0 + i 64 does not fit i8");
  EXPECT_POISON(quern_arange(ctx, QUERN_DTYPE_U8, 2, 0, -1), OVERFLOW, "arange: element 1 of 0 + i -1 does not fit u8");
  EXPECT_POISON(quern_arange(ctx, QUERN_DTYPE_I64, 3, 0, 0x1p62), OVERFLOW, "does not fit i64");
  EXPECT_POISON(quern_arange(ctx, QUERN_DTYPE_U64, 3, 0x1p63, 0x1p62), OVERFLOW, "does not fit u64");
  EXPECT_POISON(quern_arange(ctx, QUERN_DTYPE_BOOL, 2, 0, 1), DTYPE, "arange: does not admit bool");
  EXPECT_POISON(quern_linspace(ctx, I32, 2, 0, 1), DTYPE, "linspace: does not admit i32");
  EXPECT_POISON(quern_linspace(ctx, F32, 2, 0, (double)INFINITY), INVALID, "linspace: 0 to inf is no finite range");
  EXPECT_POISON(quern_linspace(ctx, F32, 3, -DBL_MAX, DBL_MAX), INVALID, "is no finite range");
}

/* The constant of a short range is the beginning of the expression of a long one, bit for bit. */
static void short_and_long_ranges_agree(void **state) {
  (void)state;
  enum { SHORT = 1024, LONG = 1025 };
  const quern_dtype dtypes[] = {QUERN_DTYPE_F64, QUERN_DTYPE_F32, QUERN_DTYPE_F16,
                                QUERN_DTYPE_I32, QUERN_DTYPE_U16, QUERN_DTYPE_U64};
  for (size_t d = 0; d < BASE_COUNT(dtypes); d++) {
    bool real = base_dtype_is(dtypes[d], BASE_FLOAT);
    double step = real ? 0.1 : 3, start = real ? -3.7 : 5;
    quern_tensor *a = quern_arange(ctx, dtypes[d], SHORT, start, step),
                 *b = quern_arange(ctx, dtypes[d], LONG, start, step);
    test_ok(a, __FILE__, __LINE__);
    assert_int_equal(a->node->op, IR_CONST);
    assert_int_not_equal(b->node->op, IR_CONST);
    double *x = VALUES(a), *y = VALUES(b);
    for (int i = 0; i < SHORT; i++) assert_true(x[i] == y[i]);
    double last = start + LONG * step - step;
    assert_true(fabs(y[LONG - 1] - last) <= 1e-3 * last);
    free(x);
    free(y);
  }
  double *z = VALUES(quern_linspace(ctx, F32, LONG, 0.1, 0.7));
  assert_true(z[LONG - 1] == (double)0.7f && z[0] == (double)0.1f);
  assert_true(z[512] == (double)(float)(0.1 + 512 * ((0.7 - 0.1) / 1024)));
  free(z);
  double *w = VALUES(quern_linspace(ctx, F32, SHORT, 0.1, 0.7));
  assert_true(w[SHORT - 1] == (double)0.7f && w[0] == (double)0.1f);
  free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(leaves), TEST(wrong_leaves), TEST(memory), TEST(constants),
                                     TEST(filled), TEST(iotas),        TEST(ranges), TEST(short_and_long_ranges_agree)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
