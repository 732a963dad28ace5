/* tests/sched/test_gpu_dot_skinny.c -- skinny products of GPUs: as the scalar loops, what is chosen, splits
*/
#include <math.h>

#include "quern/tensor.h"
#include "sched/dot_group.h"

#define ATTRS(...) (&(struct ir_attrs){__VA_ARGS__})
#define INPUT(dtype_, ...)                                                                                             \
  ir_make(ctx, IR_INPUT, 0, NULL, ATTRS(.name = "x", .dtype = (dtype_), .shape = IR_INTS(__VA_ARGS__)))
#define F32 QUERN_DTYPE_F32
#define BF16 QUERN_DTYPE_BF16

static const struct base_target target = {.name = "test",
                                          .vector_bytes = 4,
                                          .registers = 64,
                                          .fma = true,
                                          .l1_bytes = 2048,
                                          .l2_bytes = 16384,
                                          .l3_bytes = 1 << 25,
                                          .threads = 1 << 14,
                                          .gpu = true,
                                          .shared_bytes = 63 << 10,
                                          .multiprocessors = 132,
                                          .max_threads_per_sm = 2048,
                                          .registers_per_sm = 65536};

/* ---- comparing -------------------------------------------------------------------------------------------- */

/* Floats within a few roundings of sums of numbers below 1; everything else exactly. */
static void expect_close(const quern_tensor *t, const void *got, const void *want, int64_t terms, const char *what) {
  if (!base_dtype_is(t->dtype, BASE_FLOAT)) {
    assert_memory_equal(got, want, ir_bytes(t));
    return;
  }
  double eps = ldexp(1, -base_dtypes[t->dtype].mantissa);
  for (size_t i = 0; i < (size_t)ir_count(t); i++) {
    double x = base_load_float(t->dtype, got, i), y = base_load_float(t->dtype, want, i);
    double bound = 2 * eps * fabs(y) + 6e-8 * (double)(terms + 8) * (1 + 0.05 * fabs(y));
    if (!(fabs(x - y) <= bound) && x != y && !(isnan(x) && isnan(y)))
      fail_msg("%s: element %zu is %.9g, not %.9g (bound %g)", what, i, x, y, bound);
  }
}

static int64_t terms_of(const struct ir_node *dot) {
  int64_t terms = 1;
  for (int i = 0; i < dot->attrs->a_sum.n; i++) terms *= dot->src[0]->dims[dot->attrs->a_sum.at[i]];
  return terms;
}

/* Runs a schedule; the memory is the caller's. */
static struct kern *run(const struct pass_group *group, int mr, struct group_memory *m) {
  struct sched sched;
  sched_choose(&sched, group, &target, 1);
  sched.mr = mr;
  struct kern *kern = group_kernel(group, &target, &sched);
  group_memory_init(m, kern, group);
  group_run(kern, m);
  return kern;
}

static void check_group(const struct pass_group *group, const char *what) {
  struct group_memory plain, skinny;
  kern_free(run(group, 0, &plain));
  struct kern *kern = run(group, 1, &skinny);
  assert_in_range(kern->phases[0].block_threads, 32, 256);
  for (size_t i = 0; i < group->n_outs; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    const void *got = skinny.at[group->n_ins + i], *want = plain.at[group->n_ins + i];
    expect_close(t, got, want, terms_of(group->stages[0].node), what);
  }
  group_memory_fini(&skinny);
  group_memory_fini(&plain);
  kern_free(kern);
}

#include "dot_build.h"

/* ---- tests ------------------------------------------------------------------------------------------------ */

static const char *const ways[] = {"nn", "nt", "tn", "tt"};

/* Around pieces, steps, thread blocks and splits; few rows or few columns. */
static void test_sizes(void **state) {
  (void)state;
  static const int64_t rows[] = {1, 2, 3, 5, 8}, sizes[] = {1, 3, 8, 31, 33, 64, 100, 130, 257, 768, 1025};
  uint32_t s = 1;
  for (int i = 0; i < 80; i++) {
    int64_t dims[3];
    for (int d = 0; d < 3; d++) {
      s = s * 1664525 + 1013904223;
      dims[d] = d == 0 ? rows[(s >> 16) % BASE_COUNT(rows)] : sizes[(s >> 16) % BASE_COUNT(sizes)];
    }
    struct product p = {1 + i % 7 / 6 * 2, dims[0], dims[1], dims[2], ways[i % 4], F32, IR_SUM, IR_COMBINE_MUL};
    if (i % 5 == 4) p.m = dims[2], p.n = dims[0];
    CHECK(name_of(&p), product(&p));
    p.dtype = i % 2 == 0 ? BF16 : QUERN_DTYPE_I32;
    CHECK(name_of(&p), product(&p));
    test_renew();
  }
}

/* Columns that are several of a thread block, with some left over. */
static void test_wide(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {{1, 40, 8449}, {2, 64, 9000}, {5, 33, 4300}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    struct product p = {1, shapes[i][0], shapes[i][1], shapes[i][2], "nt", F32, IR_SUM, IR_COMBINE_MUL};
    quern_tensor *y = product(&p);
    CHECK("wide", y);
    CHECK("wide, biased",
          op2(IR_ADD, op1(IR_TANH, op2(IR_ADD, y, along(INPUT(F32, p.n), y))), INPUT(F32, 1, p.m, p.n)));
    test_renew();
  }
}

static void test_dtypes(void **state) {
  (void)state;
  static const quern_dtype dtypes[] = {F32, BF16, QUERN_DTYPE_F16, QUERN_DTYPE_F64, QUERN_DTYPE_I8, QUERN_DTYPE_I64};
  for (size_t t = 0; t < BASE_COUNT(dtypes); t++) {
    for (size_t w = 0; w < BASE_COUNT(ways); w++) {
      struct product p = {2, 3, 136, 200, ways[w], dtypes[t], IR_SUM, IR_COMBINE_MUL};
      CHECK(name_of(&p), product(&p));
      test_renew();
    }
  }
}

static void test_semirings(void **state) {
  (void)state;
  for (int i = 0; i < 16; i++) {
    struct product p = {1, 7, 37, 140, ways[i % 4], F32, (enum ir_reduce)(i / 4), (enum ir_combine)(i % 4)};
    CHECK(name_of(&p), product(&p));
    test_renew();
  }
}

/* What is computed before the product, of either side: nothing behind the last term counts, whatever it becomes. */
static void test_before(void **state) {
  (void)state;
  for (size_t w = 0; w < BASE_COUNT(ways); w++) {
    struct product p = {1, 3, 133, 200, ways[w], F32, IR_SUM, IR_COMBINE_MUL};
    quern_tensor *a = left(&p, F32), *b = right(&p, F32);
    CHECK("scaled", dot(&p, op2(IR_MUL, a, along(INPUT(F32, a->dims[2]), a)), op1(IR_NEG, b)));
    CHECK("cast", dot(&p, cast(left(&p, BF16), F32), cast(right(&p, QUERN_DTYPE_F16), F32)));
    CHECK("narrowed", dot(&p, cast(cast(a, BF16), F32), cast(cast(b, BF16), F32)));
    CHECK("powers",
          dot(&p, op1(IR_EXP, op1(IR_NEG, a)), op2(IR_DIV, b, op2(IR_ADD, op2(IR_MUL, b, b), op1(IR_EXP, b)))));
    test_renew();
  }
}

static void test_after(void **state) {
  (void)state;
  static const int64_t shapes[][4] = {{1, 1, 768, 70}, {2, 4, 96, 130}, {1, 2, 230, 129}, {1, 8, 64, 264}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (int turned = 0; turned < 2; turned++) {
      const int64_t *s = shapes[i];
      struct product p = {s[0], s[1], s[2], s[3], ways[2 * turned + 1], F32, IR_SUM, IR_COMBINE_MUL};
      if (turned) p.how = ways[i % 4];
      quern_tensor *y = product(&p), *biased = op2(IR_ADD, y, along(INPUT(F32, p.n), y));
      CHECK("both", y, op1(IR_ABS, biased));
      CHECK("residual", op2(IR_ADD, biased, INPUT(F32, p.b, p.m, p.n)));
      CHECK("wide", cast(biased, QUERN_DTYPE_F64));
      CHECK("narrow", cast(biased, BF16));
      CHECK("transposed", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 2, 1)), biased));
      CHECK("flat", IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = IR_INTS(p.b * p.m * p.n)), y));
      test_renew();
    }
  }
}

/* The weights of a layer are read by enough thread blocks, in one phase; columns side by side are split where few. */
static void test_choice(void **state) {
  (void)state;
  static const struct {
    int64_t m, k, n;
    const char *how;
    bool skinny;
    int phases;
  } rows[] = {{1, 768, 768, "nt", true, 1},   {1, 3072, 768, "nt", true, 1}, {1, 768, 50257, "nt", true, 1},
              {1, 768, 768, "nn", true, 2},   {8, 768, 768, "nt", true, 1},  {9, 768, 768, "nt", false, 1},
              {768, 768, 1, "nn", true, 1},   {1, 16, 4096, "nt", false, 1}, {1, 64, 64, "nt", false, 1},
              {2, 768, 60000, "nn", true, 2}, {1, 768, 32, "nt", false, 1}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    struct product p = {1, rows[i].m, rows[i].k, rows[i].n, rows[i].how, F32, IR_SUM, IR_COMBINE_MUL};
    quern_tensor *y = product(&p);
    struct dot_group g;
    struct sched sched;
    group_init(&g, 1, &y);
    sched_choose(&sched, &g.group, &target, 1);
    assert_int_equal(sched.mr == 1, rows[i].skinny);
    if (rows[i].skinny) {
      struct kern *kern = group_kernel(&g.group, &target, &sched);
      assert_int_equal(kern->n_phases, rows[i].phases);
      assert_true(kern_task_count(&kern->phases[0], NULL) >= target.multiprocessors);
      kern_free(kern);
    }
    group_fini(&g);
    test_renew();
  }
}

static void test_faults(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    struct product p = {1, 2, 700, 300, i == 0 ? "nt" : "nn", F32, IR_SUM, IR_COMBINE_MUL};
    quern_tensor *x = product(&p), *y = op2(IR_ADD, x, along(INPUT(F32, p.n), x));
    struct dot_group g;
    group_init(&g, 1, &y);
    struct sched sched = {.lanes = 1, .unroll = 1, .grain = 1, .mr = 1};
    struct fault fault = {0};
    while (fault_next(&fault)) {
      struct kern *kern = NULL;
      fault_begin(&fault);
      quern_status status = sched_lower(&kern, &ctx->heap, ctx, &g.group, &target, &sched);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      assert_int_equal(status == QUERN_STATUS_OK, kern != NULL);
      kern_free(kern);
    }
    assert_true(fault.n > 20);
    group_fini(&g);
    test_renew();
  }
}

int main(void) {
  (void)check_dtypes; /* rows of these are more than few */
  (void)check_semirings;
  const struct CMUnitTest tests[] = {TEST(test_sizes),  TEST(test_wide),  TEST(test_dtypes), TEST(test_semirings),
                                     TEST(test_before), TEST(test_after), TEST(test_choice), TEST(test_faults)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
