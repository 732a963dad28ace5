/* tests/kern/test_reduction_order.c -- accumulators: their dtype, number, neutral element, and the tree that joins them */
#include <math.h>

#include "kern/kern_test.h"

static void test_accumulators(void **state) {
  (void)state;
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
    quern_dtype dtype = (quern_dtype)d, acc = kern_acc_dtype(dtype);
    bool narrow = dtype == QUERN_DTYPE_F16 || dtype == QUERN_DTYPE_BF16 || dtype == QUERN_DTYPE_F8E4M3 ||
                  dtype == QUERN_DTYPE_F8E5M2;
    assert_int_equal(acc, narrow ? QUERN_DTYPE_F32 : dtype);
    bool wide = acc == QUERN_DTYPE_F64 || acc == QUERN_DTYPE_I64 || acc == QUERN_DTYPE_U64;
    assert_int_equal(kern_accumulators(acc), wide ? 32 : 64);
  }
}

/* out[r] = neutral element of reduction r; a set has none. */
static void run_neutral(quern_dtype dtype, void *out) {
  struct made m = made_new();
  kern_add_mem(m.kern, dtype, KERN_OUT, IR_SET);
  made_phase(&m, KERN_FIXED_TASKS(1));
  kern_id y = kern_mem(&m.b, 0);
  for (int r = 0; r < IR_SET; r++)
    kern_store(&m.b, y, I(&m.b, r), kern_extract(&m.b, kern_neutral(&m.b, (enum ir_reduce)r, dtype, 4), 3));
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = &out}, 0));
  kern_free(m.kern);
}

static void test_neutral(void **state) {
  (void)state;
  float f32[IR_SET];
  int8_t i8[IR_SET];
  uint16_t u16[IR_SET];
  int64_t i64[IR_SET];
  uint8_t bools[IR_SET];
  run_neutral(QUERN_DTYPE_F32, f32);
  assert_true(f32[IR_SUM] == 0 && signbit(f32[IR_SUM]) && f32[IR_PROD] == 1);
  assert_true(f32[IR_REDUCE_MAX] == -INFINITY && f32[IR_REDUCE_MIN] == INFINITY);
  run_neutral(QUERN_DTYPE_I8, i8);
  assert_true(i8[IR_SUM] == 0 && i8[IR_PROD] == 1 && i8[IR_REDUCE_MAX] == -128 && i8[IR_REDUCE_MIN] == 127);
  run_neutral(QUERN_DTYPE_U16, u16);
  assert_true(u16[IR_REDUCE_MAX] == 0 && u16[IR_REDUCE_MIN] == 65535);
  run_neutral(QUERN_DTYPE_I64, i64);
  assert_true(i64[IR_REDUCE_MAX] == INT64_MIN && i64[IR_REDUCE_MIN] == INT64_MAX);
  run_neutral(QUERN_DTYPE_BOOL, bools);
  assert_true(bools[IR_REDUCE_MAX] == 0 && bools[IR_REDUCE_MIN] == 1);
}

enum { ACCUMULATORS = 64 };

/* The tree over accumulators that lie in values of that many lanes. */
static float run_tree(const float *x, int lanes) {
  struct made m = made_new();
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_IN, ACCUMULATORS);
  kern_add_mem(m.kern, QUERN_DTYPE_F32, KERN_OUT, 1);
  made_phase(&m, KERN_FIXED_TASKS(1));
  kern_id values[ACCUMULATORS], in = kern_mem(&m.b, 0), out = kern_mem(&m.b, 1);
  int n = ACCUMULATORS / lanes;
  for (int i = 0; i < n; i++) values[i] = kern_load(&m.b, in, I(&m.b, i * lanes), lanes);
  kern_store(&m.b, out, I(&m.b, 0), kern_tree(&m.b, IR_SUM, n, values));
  made_finish(&m);
  EXPECT_OK(kern_verify(m.kern, NULL));
  float sum = NAN;
  float copy[ACCUMULATORS];
  memcpy(copy, x, sizeof copy);
  EXPECT_OK(kern_interp(m.kern, &(struct kern_launch){.mems = (void *[]){copy, &sum}}, 0));
  kern_free(m.kern);
  return sum;
}

/* Accumulator i takes i + h for h = 32, 16, ..., 1, whatever values they lie in. */
static void test_tree(void **state) {
  (void)state;
  float x[ACCUMULATORS], y[ACCUMULATORS], plain = 0;
  for (int i = 0; i < ACCUMULATORS; i++) {
    x[i] = y[i] = (i % 2 ? -1.0f : 1.0f) * 1e6f / (float)(i * i + 1) + 0.1f * (float)i;
    plain += x[i];
  }
  for (int h = ACCUMULATORS / 2; h >= 1; h /= 2)
    for (int i = 0; i < h; i++) y[i] = y[i] + y[i + h];
  for (int lanes = 1; lanes <= ACCUMULATORS; lanes *= 2) assert_true(run_tree(x, lanes) == y[0]);
  assert_true(y[0] != plain); /* else the test would not see the order */
}

static void test_combine(void **state) {
  (void)state;
  static const enum kern_op ops[] = {
      [IR_SUM] = KERN_ADD, [IR_PROD] = KERN_MUL, [IR_REDUCE_MAX] = KERN_MAX, [IR_REDUCE_MIN] = KERN_MIN};
  struct made m = made_new();
  made_phase(&m, KERN_FIXED_TASKS(1));
  kern_id x = kern_const_f(&m.b, QUERN_DTYPE_F32, 1, 2);
  for (int r = 0; r < IR_SET; r++)
    assert_int_equal(kern_at_id(&m.b, kern_combine(&m.b, (enum ir_reduce)r, x, x))->op, ops[r]);
  kern_free(m.kern);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_accumulators), TEST(test_neutral), TEST(test_tree), TEST(test_combine)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
