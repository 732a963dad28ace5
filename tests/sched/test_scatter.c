/* tests/sched/test_scatter.c -- updates at places known at run time: all reductions, axes, batches, dtypes, boxes */
#include "sched/run.h"

/* Indices of -2 .. size + 1: some outside, many equal. */
static quern_tensor *indices(quern_dtype dtype, int rank, const int64_t *dims, int64_t size, uint64_t seed) {
  int64_t n = 1;
  for (int k = 0; k < rank; k++) n *= dims[k];
  double *x = malloc((size_t)(n + 1) * sizeof *x);
  void *data = malloc((size_t)(n + 1) * 8);
  test_fill((size_t)n, x, seed);
  for (int64_t i = 0; i < n; i++)
    base_store_int(dtype, data, (size_t)i, (uint64_t)(int64_t)floor((x[i] + 1) / 2 * (double)(size + 4) - 2));
  quern_tensor *t = quern_tensor_copy(ctx, dtype, rank, dims, data);
  free(x);
  free(data);
  return t;
}

static quern_tensor *scatter(enum ir_reduce reduce, int64_t axis, int64_t batch, quern_tensor *a, quern_tensor *b,
                             quern_tensor *u) {
  return IR_MAKE(ctx, IR_SCATTER, (&(struct ir_attrs){.reduce = reduce, .axis = axis, .batch = batch}), a, b, u);
}

static const struct run_way gpu_way = {"gpu", true, 1, 4, 16384, 0, false, true};

/* A kernel for GPUs gives the bits of the first way. */
static void expect_gpu(quern_tensor *root) {
  size_t bytes = ir_bytes(root), size = base_dtypes[root->dtype].size;
  void *first = malloc(bytes + 64), *got = malloc(bytes + 64);
  run_way(&run_ways[0], 1, &root, &first);
  run_way(&gpu_way, 1, &root, &got);
  for (int64_t k = 0; k < ir_count(root); k++) {
    if (run_equal(root->dtype, first, got, k)) continue;
    print_error("%s: element %lld of size %zu has other bits\n", ir_reduce_names[root->node->attrs->reduce],
                (long long)k, size);
    fail();
  }
  free(first);
  free(got);
}

static void expect_all(int64_t axis, int64_t batch, quern_tensor *a, quern_tensor *b, quern_tensor *u) {
  EXPECT_SAME(scatter(IR_REDUCE_MAX, axis, batch, a, b, u), scatter(IR_REDUCE_MIN, axis, batch, a, b, u));
  EXPECT_SAME(scatter(IR_SET, axis, batch, a, b, u));
  if (a->dtype != QUERN_DTYPE_BOOL) EXPECT_SAME(scatter(IR_SUM, axis, batch, a, b, u));
  static const enum ir_reduce reduces[] = {IR_REDUCE_MAX, IR_REDUCE_MIN, IR_SET, IR_SUM};
  for (size_t i = 0; i < BASE_COUNT(reduces); i++)
    if (a->dtype != QUERN_DTYPE_BOOL || reduces[i] != IR_SUM) expect_gpu(scatter(reduces[i], axis, batch, a, b, u));
}

static void test_shapes(void **state) {
  (void)state;
  expect_all(0, 0, DATA(F32, 7), indices(QUERN_DTYPE_I64, 1, (int64_t[]){20}, 7, 1), DATA(F32, 20));
  expect_all(0, 0, DATA(F32, 7, 33), indices(QUERN_DTYPE_I64, 1, (int64_t[]){20}, 7, 2), DATA(F32, 20, 33));
  expect_all(1, 0, DATA(F32, 3, 7), indices(QUERN_DTYPE_I64, 1, (int64_t[]){9}, 7, 3), DATA(F32, 3, 9));
  expect_all(1, 0, DATA(F32, 3, 7, 16), indices(QUERN_DTYPE_I32, 2, (int64_t[]){2, 5}, 7, 4), DATA(F32, 3, 2, 5, 16));
  expect_all(1, 1, DATA(F32, 4, 6, 5), indices(QUERN_DTYPE_I64, 2, (int64_t[]){4, 11}, 6, 5), DATA(F32, 4, 11, 5));
  expect_all(2, 1, DATA(F32, 2, 3, 6, 17), indices(QUERN_DTYPE_I64, 2, (int64_t[]){2, 4}, 6, 6),
             DATA(F32, 2, 3, 4, 17));
  expect_all(0, 0, DATA(F32, 4, 3), indices(QUERN_DTYPE_I64, 0, NULL, 4, 7), DATA(F32, 3)); /* one index */
  expect_all(0, 0, DATA(F32, 4, 3), indices(QUERN_DTYPE_I64, 1, (int64_t[]){0}, 4, 8), DATA(F32, 0, 3));
  expect_all(0, 0, DATA(F32, 0, 3), indices(QUERN_DTYPE_I64, 1, (int64_t[]){2}, 4, 9), DATA(F32, 2, 3));
  expect_all(0, 0, DATA(F32, 4, 0), indices(QUERN_DTYPE_I64, 1, (int64_t[]){2}, 4, 9), DATA(F32, 2, 0));
}

static void test_dtypes(void **state) {
  (void)state;
  for (quern_dtype dtype = 0; dtype < QUERN_DTYPE_COUNT; dtype++) {
    quern_tensor *a = run_data(dtype, 2, (int64_t[]){5, 18}, 1), *u = run_data(dtype, 2, (int64_t[]){40, 18}, 2);
    expect_all(0, 0, a, indices(QUERN_DTYPE_I64, 1, (int64_t[]){40}, 5, 3), u);
    if (!base_dtype_is(dtype, BASE_INT)) continue;
    expect_all(0, 0, DATA(F32, 5, 3), indices(dtype, 1, (int64_t[]){12}, 5, 4), DATA(F32, 12, 3)); /* of any integers */
  }
}

/* Boxes along the axis, and along long rows. */
static void test_boxes(void **state) {
  (void)state;
  expect_all(0, 0, DATA(F32, 700, 24), indices(QUERN_DTYPE_I64, 1, (int64_t[]){300}, 700, 1), DATA(F32, 300, 24));
  expect_all(0, 0, DATA(F32, 3, 9001), indices(QUERN_DTYPE_I64, 1, (int64_t[]){5}, 3, 2), DATA(F32, 5, 9001));
  expect_all(0, 0, DATA(F16, 20000), indices(QUERN_DTYPE_I32, 1, (int64_t[]){5000}, 20000, 3), DATA(F16, 5000));
}

/* Lists of buckets on GPUs: several blocks of indices, batches, one place that takes most, rows of several parts. */
static void test_lists(void **state) {
  (void)state;
  expect_all(0, 0, DATA(F32, 300, 3), indices(QUERN_DTYPE_I32, 1, (int64_t[]){1000}, 300, 1), DATA(F32, 1000, 3));
  expect_all(0, 0, DATA(F32, 2, 40), indices(QUERN_DTYPE_I64, 1, (int64_t[]){700}, 2, 2), DATA(F32, 700, 40));
  expect_all(1, 1, DATA(F32, 3, 90, 4), indices(QUERN_DTYPE_U8, 2, (int64_t[]){3, 600}, 90, 3), DATA(F32, 3, 600, 4));
  expect_all(2, 1, DATA(BF16, 2, 2, 70, 20), indices(QUERN_DTYPE_I64, 2, (int64_t[]){2, 300}, 70, 4),
             DATA(BF16, 2, 2, 300, 20));
  expect_all(0, 0, DATA(BF16, 9, 768), indices(QUERN_DTYPE_I32, 1, (int64_t[]){70}, 9, 5), DATA(BF16, 70, 768));
  expect_all(0, 0, DATA(F32, 9, 1100), indices(QUERN_DTYPE_I32, 1, (int64_t[]){70}, 9, 6), DATA(F32, 70, 1100));
  expect_all(0, 0, DATA(F64, 5, 33), indices(QUERN_DTYPE_U64, 1, (int64_t[]){130}, 5, 7), DATA(F64, 130, 33));
}

/* The same tensor as a and u: the result may not lie in its memory. */
static void test_same_source(void **state) {
  (void)state;
  quern_tensor *a = DATA(F32, 6, 5);
  expect_all(0, 0, a, indices(QUERN_DTYPE_I64, 1, (int64_t[]){6}, 6, 1), a);
  quern_tensor *i = indices(QUERN_DTYPE_I64, 1, (int64_t[]){6}, 6, 2);
  expect_all(0, 0, i, i, i);
}

static quern_tensor *make_rows(void) {
  quern_tensor *b = indices(QUERN_DTYPE_I64, 1, (int64_t[]){300}, 700, 1);
  quern_tensor *x = DATA(F16, 700, 24), *more = DATA(F16, 300, 24);
  return scatter(IR_SUM, 0, 0, x, b, more);
}

static void test_fault(void **state) {
  (void)state;
  run_faults(&run_ways[3], make_rows);
  run_faults(&gpu_way, make_rows);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_shapes), TEST(test_dtypes),      TEST(test_boxes),
                                     TEST(test_lists),  TEST(test_same_source), TEST(test_fault)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
