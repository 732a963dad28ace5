/* tests/sched/test_update_at.c -- blocks written into tensors at places known at run time: shapes, dtypes, starts, in place */
#include "sched/run.h"

/* x with a block of these dims at `first` of each axis, which may lie outside. */
static quern_tensor *update(quern_dtype dtype, quern_dtype of_start, int rank, const int64_t *dims,
                            const int64_t *block, int64_t first) {
  quern_tensor *start[4], *x = run_data(dtype, rank, dims, 1), *u = run_data(dtype, rank, block, 2);
  for (int k = 0; k < rank; k++) {
    unsigned char value[8];
    base_store_int(of_start, value, 0, (uint64_t)(first + k));
    start[k] = quern_tensor_copy(ctx, of_start, 0, NULL, value);
  }
  return quern_update_at(x, u, rank, start);
}

static void expect(int rank, const int64_t *dims, const int64_t *block) {
  for (int64_t first = -2; first < 12; first += 3)
    EXPECT_SAME(update(QUERN_DTYPE_F32, QUERN_DTYPE_I64, rank, dims, block, first));
}
#define EXPECT_UPDATE(rank, ...)                                                                                       \
  expect(rank, ((const int64_t[2][4]){__VA_ARGS__})[0], ((const int64_t[2][4]){__VA_ARGS__})[1])

static void test_shapes(void **state) {
  (void)state;
  EXPECT_UPDATE(1, {20}, {3});
  EXPECT_UPDATE(1, {20}, {19});
  EXPECT_UPDATE(2, {7, 33}, {2, 33});
  EXPECT_UPDATE(2, {7, 33}, {7, 5});
  EXPECT_UPDATE(2, {7, 33}, {1, 1});
  EXPECT_UPDATE(3, {3, 9, 17}, {2, 4, 17});
  EXPECT_UPDATE(4, {1, 3, 40, 8}, {1, 3, 1, 8}); /* as a cache has it */
  EXPECT_UPDATE(4, {2, 3, 11, 20}, {2, 3, 5, 20});
  EXPECT_UPDATE(4, {4, 3, 5, 6}, {2, 2, 2, 2});
}

static void test_large(void **state) {
  (void)state;
  EXPECT_UPDATE(2, {3, 40000}, {2, 40000});
  EXPECT_UPDATE(2, {5, 40000}, {3, 35001});
  EXPECT_UPDATE(2, {3000, 20}, {2500, 20});
  EXPECT_UPDATE(2, {3000, 20}, {2500, 7});
}

static void test_dtypes(void **state) {
  (void)state;
  static const int64_t dims[] = {4, 9, 6}, block[] = {4, 2, 6};
  for (quern_dtype dtype = 0; dtype < QUERN_DTYPE_COUNT; dtype++) {
    EXPECT_SAME(update(dtype, QUERN_DTYPE_I64, 3, dims, block, 1));
    if (!base_dtype_is(dtype, BASE_INT)) continue;
    for (int64_t first = -2; first < 12; first += 3) EXPECT_SAME(update(QUERN_DTYPE_F32, dtype, 3, dims, block, first));
  }
}

/* More than an update: what is stored is computed from it, or the block is in the tensor. */
static void test_others(void **state) {
  (void)state;
  static const int64_t dims[] = {4, 9}, block[] = {2, 9};
  quern_tensor *y = update(QUERN_DTYPE_F32, QUERN_DTYPE_I64, 2, dims, block, 1);
  EXPECT_SAME(quern_exp(y), y);
  quern_tensor *x = DATA(F32, 6, 5), *zero = quern_scalar_int(ctx, QUERN_DTYPE_I64, 0);
  quern_tensor *two = quern_scalar_int(ctx, QUERN_DTYPE_I64, 2);
  EXPECT_SAME(quern_update_at(x, quern_slice(x, 0, 0, 3, 1), 2, (quern_tensor *[]){two, zero}));
  EXPECT_SAME(quern_update_at(x, x, 2, (quern_tensor *[]){two, zero}));
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_shapes), TEST(test_large), TEST(test_dtypes), TEST(test_others)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
