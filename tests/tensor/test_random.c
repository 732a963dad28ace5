/* tests/tensor/test_random.c -- random tensors are the numbers of base/philox.c, bit for bit */
#include "tensor/compound_test.h"

#define F32 QUERN_DTYPE_F32
enum { MANY = 100000 };

static void evaluate(quern_tensor *x, void *dst) {
  test_ok(x, __FILE__, __LINE__);
  if (quern_eval_reference(ctx, 1, &x, &dst, 0, NULL) != QUERN_STATUS_OK) fail_msg("%s", quern_last_error());
}

static quern_random from(uint64_t seed, uint64_t step, uint32_t stream) {
  return (quern_random){quern_scalar_int(ctx, QUERN_DTYPE_U64, (int64_t)seed),
                        quern_scalar_int(ctx, QUERN_DTYPE_U64, (int64_t)step), stream};
}

static const uint64_t SEED = UINT64_C(0xfedcba9876543210), STEP = UINT64_C(0x8000000000000007);

static void bits_and_uniform(void **state) {
  (void)state;
  quern_random source = from(SEED, STEP, 42);
  uint32_t *bits = malloc(MANY * sizeof *bits);
  float *u = malloc(MANY * sizeof *u);
  evaluate(quern_random_bits(ctx, QUERN_LIST(MANY / 100, 100), &source), bits);
  evaluate(quern_random_uniform(ctx, F32, QUERN_LIST(MANY), 0, 1, &source), u);
  for (uint64_t i = 0; i < MANY; i++) {
    assert_true(bits[i] == base_random_bits(SEED, STEP, 42, i));
    assert_true(u[i] == base_random_uniform(bits[i]));
    assert_true(u[i] >= 0 && u[i] < 1);
  }
  free(bits);
  free(u);
}

static void normal_bit_for_bit(void **state) {
  (void)state;
  quern_random source = from(SEED, STEP, 7);
  float *z = malloc(MANY * sizeof *z);
  evaluate(quern_random_normal(ctx, F32, QUERN_LIST(100, MANY / 100), 0, 1, &source), z);
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < MANY; i++) {
    float want = base_random_normal(base_random_bits(SEED, STEP, 7, 2 * i), base_random_bits(SEED, STEP, 7, 2 * i + 1));
    assert_memory_equal(&z[i], &want, sizeof want);
    sum += (double)want;
    squares += (double)want * (double)want;
  }
  assert_true(fabs(sum / MANY) < 0.02 && fabs(squares / MANY - 1) < 0.02);
  free(z);
}

static void f64_and_narrow(void **state) {
  (void)state;
  quern_random source = from(1, 2, 3);
  double u[50], v[50], z[50];
  float f[50], n[50];
  evaluate(quern_random_uniform(ctx, QUERN_DTYPE_F64, QUERN_LIST(5, 10), 0, 1, &source), u);
  evaluate(quern_random_uniform(ctx, QUERN_DTYPE_F64, QUERN_LIST(50), -3, 5, &source), v);
  evaluate(quern_random_uniform(ctx, F32, QUERN_LIST(50), -3, 5, &source), f);
  evaluate(quern_random_normal(ctx, QUERN_DTYPE_F64, QUERN_LIST(50), 10, 0.3, &source), z);
  evaluate(quern_random_normal(ctx, F32, QUERN_LIST(50), 0, 1, &source), n);
  for (uint64_t i = 0; i < 50; i++) {
    uint64_t high = base_random_bits(1, 2, 3, 2 * i) >> 5, low = base_random_bits(1, 2, 3, 2 * i + 1) >> 6;
    double unit = (double)(high << 26 | low) * 0x1p-53, scaled = unit * 8;
    assert_true(u[i] == unit);
    assert_true(v[i] == scaled + -3);
    float half = base_random_uniform(base_random_bits(1, 2, 3, i)) * 8;
    assert_true(f[i] == half + -3);
    double wide = (double)n[i] * 0.3;
    assert_true(z[i] == wide + 10);
  }
  quern_tensor *narrow = quern_random_uniform(ctx, QUERN_DTYPE_BF16, QUERN_LIST(50), -3, 5, &source);
  assert_ptr_equal(narrow,
                   quern_cast(quern_random_uniform(ctx, F32, QUERN_LIST(50), -3, 5, &source), QUERN_DTYPE_BF16));
  EXPECT_TYPE(quern_random_normal(ctx, QUERN_DTYPE_F16, QUERN_LIST(3), 0, 1, NULL), F16, DIMS(3));
  EXPECT_TYPE(quern_random_normal(ctx, F32, QUERN_SCALAR, 0, 1, NULL), F32, SCALAR);
  EXPECT_TYPE(quern_random_uniform(ctx, QUERN_DTYPE_F64, QUERN_LIST(2, 0), 0, 1, NULL), F64, DIMS(2, 0));
  EXPECT(quern_random_uniform(ctx, F32, QUERN_LIST(2), 4, 4, NULL), 4, 4);
}

static void streams(void **state) {
  (void)state;
  /* automatic streams are 1, 2, ...; a given one is not counted */
  quern_tensor *a = quern_random_bits(ctx, QUERN_LIST(4), NULL);
  quern_random fifth = {.stream = 5};
  quern_tensor *given = quern_random_bits(ctx, QUERN_LIST(4), &fifth),
               *b = quern_random_bits(ctx, QUERN_LIST(4), &(quern_random){0});
  assert_int_equal(a->node->attrs->stream, 1);
  assert_int_equal(given->node->attrs->stream, 5);
  assert_int_equal(b->node->attrs->stream, 2);
  assert_ptr_equal(quern_random_bits(ctx, QUERN_LIST(4), &fifth), given);
  uint32_t x[4];
  evaluate(a, x);
  for (uint64_t i = 0; i < 4; i++) assert_true(x[i] == base_random_bits(0, 0, 1, i));
  /* the seed is the context's */
  quern_context *seeded;
  assert_int_equal(quern_context_new(&seeded, &(quern_context_options){.size = sizeof(quern_context_options),
                                                                       .seed = UINT64_MAX - 1}),
                   QUERN_STATUS_OK);
  quern_tensor *y = quern_random_bits(seeded, QUERN_LIST(4), NULL);
  void *dst = x;
  assert_int_equal(quern_eval_reference(seeded, 1, &y, &dst, 0, NULL), QUERN_STATUS_OK);
  for (uint64_t i = 0; i < 4; i++) assert_true(x[i] == base_random_bits(UINT64_MAX - 1, 0, 1, i));
  EXPECT_POISON(
      quern_random_bits(ctx, QUERN_LIST(4), &(quern_random){.seed = quern_scalar_int(seeded, QUERN_DTYPE_U64, 1)}),
      INVALID, "random_bits: the seed belongs to another context");
  quern_context_free(seeded);
}

static void coins(void **state) {
  (void)state;
  unsigned char *coin = malloc(MANY);
  quern_random source = from(9, 0, 1);
  evaluate(quern_random_bernoulli(ctx, QUERN_LIST(MANY), 0.3, &source), coin);
  int heads = 0;
  for (uint64_t i = 0; i < MANY; i++) {
    assert_true(coin[i] == (base_random_bits(9, 0, 1, i) < (uint32_t)(0.3 * 0x1p32)));
    heads += coin[i];
  }
  assert_in_range(heads, 29000, 31000);
  free(coin);
  EXPECT(quern_random_bernoulli(ctx, QUERN_LIST(3), 0, NULL), 0, 0, 0);
  EXPECT(quern_random_bernoulli(ctx, QUERN_LIST(3), 1, NULL), 1, 1, 1);
  EXPECT_TYPE(quern_random_bernoulli(ctx, QUERN_SCALAR, 0.5, NULL), BOOL, SCALAR);
}

static void dropout(void **state) {
  (void)state;
  enum { N = 1000 };
  quern_random source = from(4, 4, 4);
  double *x = malloc(N * sizeof *x), *y;
  unsigned char mask[N];
  for (int i = 0; i < N; i++) x[i] = i % 7 == 0 ? (double)NAN : i + 1;
  quern_tensor *t = ARRAY(F64, DIMS(N), N, x);
  evaluate(quern_random_bernoulli(ctx, QUERN_LIST(N), 0.75, &source), mask);
  y = VALUES(quern_dropout(t, 0.25, &source));
  for (int i = 0; i < N; i++) assert_true(mask[i] ? (isnan(x[i]) ? isnan(y[i]) : y[i] == x[i] / 0.75) : y[i] == 0);
  free(x);
  free(y);
  uint32_t before = ctx->next_stream;
  assert_ptr_equal(quern_dropout(t, 0, NULL), t);
  assert_int_equal(ctx->next_stream, before + 1); /* so that a rate of 0 does not change the other streams */
  assert_ptr_not_equal(quern_dropout(t, 0.5, NULL), quern_dropout(t, 0.5, NULL));
}

static void wrong_calls(void **state) {
  (void)state;
  quern_random no_seed = {.seed = quern_scalar(ctx, F32, 1)}, no_step = {.step = ZEROS(U64, 2)},
               poisoned = {.seed = &ir_poison};
  quern_random none = {0};
  EXPECT_NULL_ERROR(quern_random_bits(NULL, QUERN_LIST(2), NULL), "random_bits: the context is null");
  EXPECT_POISON(quern_random_bits(ctx, QUERN_LIST(-2), NULL), SHAPE, "random_bits: dim 0 of (-2,) is negative");
  EXPECT_POISON(quern_random_bits(ctx, QUERN_LIST(2), &no_seed), DTYPE,
                "random_bits: the seed is f32(), must be a u64 scalar");
  EXPECT_POISON(quern_random_bits(ctx, QUERN_LIST(INT64_C(1) << 40), NULL), OVERFLOW, "that a stream has numbers for");
  EXPECT_POISON(quern_random_uniform(ctx, QUERN_DTYPE_I32, QUERN_LIST(2), 0, 1, NULL), DTYPE,
                "random_uniform: does not admit i32");
  EXPECT_POISON(quern_random_uniform(ctx, F32, QUERN_LIST(2), 1, 0, NULL), INVALID,
                "random_uniform: from 1 to 0 is no range of f32");
  EXPECT_POISON(quern_random_uniform(ctx, F32, QUERN_LIST(2), 0, (double)NAN, NULL), INVALID, "is no range of f32");
  EXPECT_POISON(quern_random_uniform(ctx, F32, QUERN_LIST(2), -3e38, 3e38, NULL), INVALID, "is no range of f32");
  EXPECT_POISON(quern_random_uniform(ctx, F32, QUERN_LIST(2), 0, 1, &no_step), DTYPE,
                "random_uniform: the step is u64(2,), must be a u64 scalar");
  EXPECT_POISON(quern_random_normal(ctx, QUERN_DTYPE_BOOL, QUERN_LIST(2), 0, 1, NULL), DTYPE,
                "random_normal: does not admit bool");
  EXPECT_POISON(quern_random_normal(ctx, F32, QUERN_LIST(2), 0, -1, NULL), INVALID,
                "random_normal: mean 0 and std -1 must be finite");
  EXPECT_POISON(quern_random_normal(ctx, F32, QUERN_LIST(2), (double)INFINITY, 1, NULL), INVALID,
                "random_normal: mean inf");
  EXPECT_POISON(quern_random_normal(ctx, F32, QUERN_LIST(2), 0, 1, &no_seed), DTYPE, "random_normal: the seed");
  EXPECT_POISON(quern_random_normal(ctx, F32, QUERN_LIST((INT64_C(1) << 33) + 1), 0, 1, NULL), OVERFLOW,
                "random_normal: (8589934593,) has more elements than the 8589934592");
  EXPECT_TYPE(quern_random_normal(ctx, F32, QUERN_LIST(INT64_C(1) << 33), 0, 1, NULL), F32, DIMS(INT64_C(1) << 33));
  EXPECT_POISON(quern_random_normal(ctx, F32, 1, NULL, 0, 1, NULL), INVALID, "random_normal: a list of 1 dims is null");
  EXPECT_POISON(quern_random_bernoulli(ctx, QUERN_LIST(2), 1.5, NULL), INVALID,
                "random_bernoulli: p is 1.5, must be in [0, 1]");
  EXPECT_POISON(quern_random_bernoulli(ctx, QUERN_LIST(2), (double)NAN, NULL), INVALID, "random_bernoulli: p is nan");
  EXPECT_POISON(quern_random_bernoulli(ctx, 20, NULL, 0.5, NULL), SHAPE, "random_bernoulli: rank 20");
  EXPECT_POISON(quern_dropout(ZEROS(F32, 2), 1, NULL), INVALID, "dropout: p is 1, must be in [0, 1)");
  EXPECT_POISON(quern_dropout(ZEROS(F32, 2), -0.1, NULL), INVALID, "dropout: p is -0.1");
  EXPECT_POISON(quern_dropout(ZEROS(I32, 2), 0.1, NULL), DTYPE, "dropout: does not admit i32");
  assert_true(quern_tensor_is_poison(quern_random_bits(ctx, QUERN_LIST(2), &poisoned)));
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  ctx->next_stream = UINT32_MAX;
  EXPECT_POISON(quern_random_bits(ctx, QUERN_LIST(2), &none), OVERFLOW, "random_bits: the context has no stream left");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(bits_and_uniform), TEST(normal_bit_for_bit), TEST(f64_and_narrow), TEST(streams), TEST(coins),
      TEST(dropout),          TEST(wrong_calls)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
