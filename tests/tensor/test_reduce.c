/* tests/tensor/test_reduce.c -- reductions, scans and order */
#include "tensor/compound_test.h"

#define INF ((double)INFINITY)
#define NOT_A_NUMBER ((double)NAN)

typedef quern_tensor *reduction(quern_tensor *, int, const int64_t *, bool);

static quern_tensor *var0(quern_tensor *x, int n, const int64_t *axes, bool keep) {
  return quern_var(x, n, axes, keep, 0);
}
static quern_tensor *std0(quern_tensor *x, int n, const int64_t *axes, bool keep) {
  return quern_std(x, n, axes, keep, 0);
}

/* Every reduction: over axis 1 of ((1, 2, 3), (4, 5, 9)), over all, and a dtype that it refuses. */
static const struct {
  const char *name;
  reduction *build;
  double row[2], all;
  int refuses;
} reductions[] = {
    {"sum", quern_sum, {6, 18}, 24, QUERN_DTYPE_BOOL},
    {"prod", quern_prod, {6, 180}, 1080, QUERN_DTYPE_BOOL},
    {"max", quern_max, {3, 9}, 9, -1},
    {"min", quern_min, {1, 4}, 1, -1},
    {"mean", quern_mean, {2, 6}, 4, QUERN_DTYPE_I32},
    {"var", var0, {2.0 / 3, 14.0 / 3}, 20.0 / 3, QUERN_DTYPE_I32},
    {"std", std0, {0.81649658092772603, 2.1602468994692869}, 2.5819888974716112, QUERN_DTYPE_I64},
    {"logsumexp", quern_logsumexp, {3.4076059644443806, 9.0247448901388232}, 9.0283733257233418, QUERN_DTYPE_I32},
};

static void every_reduction(void **state) {
  (void)state;
  quern_tensor *x = REALS(F64, DIMS(2, 3), 1, 2, 3, 4, 5, 9);
  for (size_t i = 0; i < BASE_COUNT(reductions); i++) {
    reduction *build = reductions[i].build;
    quern_tensor *rows = build(x, QUERN_LIST(-1), false), *kept = build(x, QUERN_LIST(1), true),
                 *all = build(x, QUERN_ALL, true);
    EXPECT_ARRAY(rows, 1e-15, 2, reductions[i].row);
    EXPECT_ARRAY(kept, 1e-15, 2, reductions[i].row);
    EXPECT_ARRAY(all, 1e-15, 1, &reductions[i].all);
    EXPECT_TYPE(rows, F64, DIMS(2));
    EXPECT_TYPE(kept, F64, DIMS(2, 1));
    EXPECT_TYPE(all, F64, DIMS(1, 1));
    EXPECT_TYPE(build(x, QUERN_ALL, false), F64, SCALAR);
    EXPECT_TYPE(build(x, QUERN_LIST(1, 0), false), F64, SCALAR);
    assert_ptr_equal(build(x, QUERN_LIST(1, -2), true), all);
    char words[100];
    snprintf(words, sizeof words, "%s: axis 2 is out of range for (2, 3) of rank 2", reductions[i].name);
    EXPECT_POISON(build(x, QUERN_LIST(2), false), SHAPE, words);
    snprintf(words, sizeof words, "%s: axis 1 of (2, 3) is listed twice in (1, -1)", reductions[i].name);
    EXPECT_POISON(build(x, QUERN_LIST(1, -1), false), SHAPE, words);
    snprintf(words, sizeof words, "%s: a list of 2 axes is null", reductions[i].name);
    EXPECT_POISON(build(x, 2, NULL, false), INVALID, words);
    snprintf(words, sizeof words, "%s: the operand is null", reductions[i].name);
    EXPECT_NULL_ERROR(build(NULL, QUERN_ALL, false), words);
    if (reductions[i].refuses < 0) continue;
    snprintf(words, sizeof words, "%s: does not admit %s", reductions[i].name, base_dtypes[reductions[i].refuses].name);
    EXPECT_POISON(build(quern_zeros(ctx, (quern_dtype)reductions[i].refuses, QUERN_LIST(2)), QUERN_ALL, false), DTYPE,
                  words);
  }
}

static void logic_and_integers(void **state) {
  (void)state;
  quern_tensor *b = REALS(BOOL, DIMS(2, 2), 1, 0, 1, 1), *i = REALS(I32, DIMS(3), -1, 5, 7);
  EXPECT(quern_any(b, QUERN_LIST(1), false), 1, 1);
  EXPECT(quern_all(b, QUERN_LIST(1), false), 0, 1);
  EXPECT_TYPE(quern_all(b, QUERN_ALL, true), BOOL, DIMS(1, 1));
  EXPECT(quern_sum(i, QUERN_ALL, false), 11);
  EXPECT(quern_max(b, QUERN_ALL, false), 1);
  EXPECT_POISON(quern_any(i, QUERN_ALL, false), DTYPE, "any: does not admit i32");
  EXPECT_POISON(quern_any(b, QUERN_LIST(5), false), SHAPE, "any: axis 5 is out of range");
  EXPECT_POISON(quern_all(i, QUERN_ALL, false), DTYPE, "all: does not admit i32");
  EXPECT_POISON(quern_all(b, -1, NULL, false), INVALID, "all: a list of -1 axes");
  EXPECT(quern_sum(ZEROS(F32, 2, 0), QUERN_LIST(1), false), 0, 0);
  EXPECT(quern_max(ZEROS(F32, 1, 0), QUERN_LIST(1), false), -INF);
  EXPECT(quern_mean(ZEROS(F32, 1, 0), QUERN_LIST(1), false), NOT_A_NUMBER);
  quern_tensor *s = quern_scalar(ctx, QUERN_DTYPE_F32, 3);
  assert_ptr_equal(quern_sum(s, QUERN_ALL, true), s);
  EXPECT(quern_mean(s, QUERN_ALL, false), 3);
  EXPECT(quern_var(s, QUERN_ALL, false, 0), 0);
  assert_ptr_equal(quern_logsumexp(s, QUERN_ALL, false), s);
}

static void averages(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(4), 1, 2, 3, 6);
  EXPECT(quern_var(x, QUERN_ALL, false, 0), 3.5);
  EXPECT_NEAR(quern_var(x, QUERN_ALL, false, 1), 1e-7, 14.0 / 3);
  EXPECT(quern_var(x, QUERN_ALL, false, 4), INF);
  EXPECT(quern_var(REALS(F32, DIMS(1), 5), QUERN_ALL, false, 1), NOT_A_NUMBER);
  EXPECT(quern_var(x, QUERN_ALL, false, 9), INF);
  EXPECT_POISON(quern_var(x, QUERN_ALL, false, -1), INVALID, "var: the correction -1 is negative");
  EXPECT_POISON(quern_std(x, QUERN_ALL, false, -2), INVALID, "std: the correction -2 is negative");
  /* large offsets do not cancel: the mean is taken off first */
  EXPECT(quern_var(REALS(F32, DIMS(3), 1e6, 1e6 + 1, 1e6 + 2), QUERN_ALL, false, 1), 1);
  /* sums of narrow floats do not overflow: 1000 times 100 is beyond f16 */
  EXPECT(quern_mean(quern_full(ctx, QUERN_DTYPE_F16, QUERN_LIST(1000), 100), QUERN_ALL, false), 100);
  EXPECT(quern_var(quern_full(ctx, QUERN_DTYPE_F16, QUERN_LIST(1000), 300), QUERN_ALL, false, 0), 0);
  EXPECT(quern_mean(quern_full(ctx, QUERN_DTYPE_F8E4M3, QUERN_LIST(1000), 3), QUERN_ALL, false), 3);
  EXPECT_TYPE(quern_std(ZEROS(BF16, 2), QUERN_ALL, false, 0), BF16, SCALAR);
  EXPECT_TYPE(quern_var(ZEROS(BF16, 2), QUERN_ALL, false, 0), BF16, SCALAR);
}

static quern_tensor *rows_logsumexp(quern_tensor *const *x, const void *user) {
  (void)user;
  return quern_logsumexp(x[0], QUERN_LIST(1), false);
}

static void log_sum_exp(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(6, 2), -INF, -INF, INF, 0, 1000, 1000, -1000, -1000, NOT_A_NUMBER, 1, 0, -INF);
  EXPECT_NEAR(quern_logsumexp(x, QUERN_LIST(1), false), 1e-6, -INF, INF, 1000.6931471805599, -999.30685281944,
              NOT_A_NUMBER, 0);
  EXPECT(quern_logsumexp(ZEROS(F32, 1, 0), QUERN_LIST(1), false), -INF);
  EXPECT_TYPE(quern_logsumexp(ZEROS(F16, 2, 3), QUERN_LIST(0), true), F16, DIMS(1, 3));
  quern_tensor *y = quern_logsumexp(x, QUERN_LIST(-1), false);
  assert_int_equal(y->node->op, IR_COMPOSITE);
  assert_string_equal(y->node->attrs->name, "logsumexp");
  /* the gradient is the softmax, and 0 where nothing counts */
  quern_tensor *z = REALS(F32, DIMS(3, 2), -INF, -INF, 0, -INF, 5, 5),
               *dz = GRAD_OF_SUM(quern_logsumexp(z, QUERN_LIST(1), false), z);
  EXPECT_NEAR(dz, 1e-6, 0, 0, 1, 0, 0.5, 0.5);
  quern_tensor *ddz = GRAD_OF_SUM(quern_mul(dz, REALS(F32, DIMS(3, 2), 1, 2, 3, 4, 5, 6)), z);
  EXPECT_NEAR(ddz, 1e-6, 0, 0, 0, 0, -0.25, 0.25);
  double data[6];
  test_fill(6, data, 3);
  CHECK_GRADIENTS(rows_logsumexp, NULL, 1, (&(struct ir_ints){2, (int64_t[]){2, 3}}), (double *[]){data}, true);
}

static void positions(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2, 3), 1, 5, 5, NOT_A_NUMBER, -2, 7);
  EXPECT(quern_argmax(x, 1, false), 1, 0);
  EXPECT(quern_argmin(x, 1, false), 0, 0);
  EXPECT(quern_argmax(REALS(I32, DIMS(2, 2), 3, 1, 2, 9), 0, false), 0, 1);
  EXPECT(quern_argmin(REALS(I32, DIMS(2, 2), 3, 1, 2, 9), -1, false), 1, 0);
  EXPECT_TYPE(quern_argmax(x, 1, true), I64, DIMS(2, 1));
  EXPECT_TYPE(quern_argmin(x, 0, false), I64, DIMS(3));
  EXPECT_POISON(quern_argmax(x, 2, false), SHAPE, "argmax: axis 2 is out of range");
  EXPECT_POISON(quern_argmax(ZEROS(F32, 2, 0), 1, false), SHAPE, "argmax: axis 1 of (2, 0) has no elements");
  EXPECT_POISON(quern_argmin(ZEROS(F32, 0), 0, false), SHAPE, "argmin: axis 0 of (0,) has no elements");
  EXPECT_POISON(quern_argmin(quern_scalar(ctx, QUERN_DTYPE_F32, 1), 0, false), SHAPE,
                "argmin: axis 0 is out of range for () of rank 0");
}

static void scans(void **state) {
  (void)state;
  quern_tensor *x = REALS(I32, DIMS(2, 3), 2, 1, 3, -1, 4, 0);
  EXPECT(quern_cumsum(x, 1), 2, 3, 6, -1, 3, 3);
  EXPECT(quern_cumsum(x, 0), 2, 1, 3, 1, 5, 3);
  EXPECT(quern_cumprod(x, -1), 2, 2, 6, -1, -4, 0);
  EXPECT(quern_cummax(x, 1), 2, 2, 3, -1, 4, 4);
  EXPECT(quern_cummin(x, 1), 2, 1, 1, -1, -1, -1);
  EXPECT_POISON(quern_cumsum(x, 2), SHAPE, "cumsum: axis 2 is out of range");
  EXPECT_POISON(quern_cumsum(ZEROS(BOOL, 2), 0), DTYPE, "cumsum: does not admit bool");
  EXPECT_POISON(quern_cumprod(x, -3), SHAPE, "cumprod: axis -3 is out of range");
  EXPECT_POISON(quern_cumprod(ZEROS(BOOL, 2), 0), DTYPE, "cumprod: does not admit bool");
  EXPECT_POISON(quern_cummax(x, 2), SHAPE, "cummax: axis 2 is out of range");
  EXPECT_NULL_ERROR(quern_cummax(NULL, 0), "cummax: the operand is null");
  EXPECT_POISON(quern_cummin(x, 2), SHAPE, "cummin: axis 2 is out of range");
  EXPECT_NULL_ERROR(quern_cummin(NULL, 0), "cummin: the operand is null");
}

static void order(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(1, 5), 3, NOT_A_NUMBER, 1, 3, -2), *i = NULL;
  EXPECT(quern_sort(x, 1, false, &i), -2, 1, 3, 3, NOT_A_NUMBER);
  EXPECT(i, 4, 2, 0, 3, 1);
  EXPECT(quern_sort(x, -1, true, NULL), NOT_A_NUMBER, 3, 3, 1, -2);
  EXPECT(quern_argsort(x, 1, true), 1, 0, 3, 2, 4);
  EXPECT(quern_topk(x, 3, 1, true, &i), NOT_A_NUMBER, 3, 3);
  EXPECT(i, 1, 0, 3);
  EXPECT(quern_topk(x, 2, -1, false, &i), -2, 1);
  EXPECT(i, 4, 2);
  EXPECT_TYPE(quern_topk(x, 0, 1, true, NULL), F32, DIMS(1, 0));
  EXPECT_TYPE(quern_topk(ZEROS(I32, 4, 2), 3, 0, true, &i), I32, DIMS(3, 2));
  EXPECT_TYPE(i, I64, DIMS(3, 2));
  assert_string_equal(i->node->attrs->name, "topk");
  quern_tensor *z = REALS(F32, DIMS(4), 3, 9, 1, 7), *top = quern_topk(z, 2, 0, true, NULL);
  EXPECT(GRAD_OF_SUM(quern_mul(top, REALS(F32, DIMS(2), 10, 20)), z), 0, 10, 0, 20);
  i = NULL;
  EXPECT_POISON(quern_sort(x, 2, false, &i), SHAPE, "sort: axis 2 is out of range");
  assert_ptr_equal(i, &ir_poison);
  EXPECT_NULL_ERROR(quern_sort(NULL, 0, false, NULL), "sort: the operand is null");
  EXPECT_POISON(quern_argsort(x, -3, false), SHAPE, "argsort: axis -3 is out of range");
  EXPECT_NULL_ERROR(quern_argsort(NULL, 0, false), "argsort: the operand is null");
  i = NULL;
  EXPECT_POISON(quern_topk(x, 6, 1, true, &i), SHAPE, "topk: 6 of axis 1 of (1, 5), which has 5");
  assert_ptr_equal(i, &ir_poison);
  EXPECT_POISON(quern_topk(x, -1, 1, true, NULL), SHAPE, "topk: -1 of axis 1");
  EXPECT_POISON(quern_topk(x, 1, 2, true, NULL), SHAPE, "topk: axis 2 is out of range");
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(every_reduction),
                                     TEST(logic_and_integers),
                                     TEST(averages),
                                     TEST(log_sum_exp),
                                     TEST(positions),
                                     TEST(scans),
                                     TEST(order)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
