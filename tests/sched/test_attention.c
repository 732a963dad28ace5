/* tests/sched/test_attention.c -- attention in tiles, forward and backward, of processors and of GPUs, against the evaluator */
#include "quern/grad.h"
#include "run.h"

static const struct run_way claimed_ways[] = {{"64 bytes", true, 1, 64, 1, 0, false, false},
                                              {"32 bytes", true, 1, 32, 2, 0, false, false},
                                              {"16 bytes", true, 0, 16, 3, 0, false, false},
                                              {"a GPU", true, 1, 4, 16384, 0, false, true},
                                              {"a GPU that shares little", true, 1, 4, 16384, 0, true, true}};
static bool one_query; /* which a GPU has no kernel for */
static int gpu_more;   /* kernels that only GPUs have */

/* Runs with the composites that have kernels left whole; how many groups were such. */
static int run_claimed(const struct run_way *way, size_t n, quern_tensor *const *roots, void **dst) {
  struct pass_options options = {0};
  struct pass_groups groups;
  struct pass_report reports[PASS_COUNT];
  struct base_target target = run_target(way);
  struct run_memory *memory = calloc(1, sizeof *memory);
  quern_tensor *after[8];
  int claims = 0;
  assert_true(memory != NULL && n <= BASE_COUNT(after));
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  options.target = &target;
  options.claims = sched_claims;
  for (size_t i = 0; i < n; i++) after[i] = roots[i];
  struct pass_graph graph = {.ctx = ctx, .n_roots = n, .roots = after};
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  for (size_t i = 0; i < groups.groups.n; i++) {
    claims += groups.groups.at[i]->kind == PASS_KIND_CLAIM;
    run_group(groups.groups.at[i], way, memory);
  }
  for (size_t i = 0; i < n; i++) memcpy(dst[i], run_find(memory, after[i]), ir_bytes(after[i]));
  for (size_t i = 0; i < memory->n; i++) free(memory->at[i].data);
  free(memory);
  pass_groups_fini(&groups);
  return claims;
}

static void expect_claimed(int claims, size_t n, quern_tensor *const *roots) {
  void *want[8], *got[8];
  for (size_t i = 0; i < n; i++) {
    assert_false(quern_tensor_is_poison(roots[i]));
    want[i] = malloc(ir_bytes(roots[i]) + 64);
    got[i] = malloc(ir_bytes(roots[i]) + 64);
  }
  EXPECT_OK(ir_eval(ctx, n, roots, want, 0, NULL));
  for (size_t w = 0; w < BASE_COUNT(claimed_ways); w++) {
    assert_int_equal(run_claimed(&claimed_ways[w], n, roots, got),
                     one_query && claimed_ways[w].gpu ? 0 : claims + (claimed_ways[w].gpu ? gpu_more : 0));
    for (size_t i = 0; i < n; i++) {
      for (int64_t k = 0; k < ir_count(roots[i]); k++) {
        if (run_near(roots[i]->dtype, got[i], want[i], k)) continue;
        fail_msg("%s: root %zu, element %lld is %.9g, evaluated %.9g", claimed_ways[w].name, i, (long long)k,
                 base_load_float(roots[i]->dtype, got[i], (size_t)k),
                 base_load_float(roots[i]->dtype, want[i], (size_t)k));
      }
    }
  }
  for (size_t i = 0; i < n; i++) free(want[i]), free(got[i]);
}

struct shape {
  int64_t b, h, g, s, t, d, e;
  bool causal;
};
static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 4, 4, false},     {1, 2, 1, 5, 7, 8, 3, false},      {2, 2, 2, 17, 17, 16, 16, true},
    {1, 4, 2, 6, 130, 20, 33, false}, {1, 1, 1, 131, 129, 64, 64, true}, {1, 2, 1, 50, 9, 7, 5, true},
    {1, 1, 1, 9, 50, 17, 80, true},   {1, 2, 2, 64, 64, 32, 32, true},   {1, 1, 1, 40, 290, 16, 16, true},
    {1, 2, 1, 288, 70, 8, 8, true},
};

static void attend(const struct shape *p, quern_dtype dtype, quern_tensor *mask, quern_tensor **qkv, quern_tensor **y,
                   quern_tensor **lse) {
  one_query = p->s == 1;
  qkv[0] = run_data(dtype, 4, (int64_t[]){p->b, p->h, p->s, p->d}, 1);
  qkv[1] = run_data(dtype, 4, (int64_t[]){p->b, p->g, p->t, p->d}, 2);
  qkv[2] = run_data(dtype, 4, (int64_t[]){p->b, p->g, p->t, p->e}, 3);
  quern_attention_options options = {.size = sizeof options, .causal = p->causal};
  *y = quern_attention(qkv[0], qkv[1], qkv[2], mask, &options, lse);
}

static void test_forward(void **state) {
  (void)state;
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F64, QUERN_DTYPE_BF16};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (size_t k = 0; k < BASE_COUNT(dtypes); k++) {
      quern_tensor *qkv[3], *roots[2];
      attend(&shapes[i], dtypes[k], NULL, qkv, &roots[0], &roots[1]);
      expect_claimed(1, 2, roots);
    }
  }
}

static void test_masks(void **state) {
  (void)state;
  const struct shape p = {2, 2, 1, 19, 21, 8, 8, false};
  static const int64_t dims[][4] = {{1, 1, 19, 21}, {2, 1, 1, 21}, {2, 2, 19, 1}, {1, 1, 1, 1}};
  for (size_t i = 0; i < BASE_COUNT(dims); i++) {
    quern_tensor *qkv[3], *roots[2], *zero = quern_scalar(ctx, QUERN_DTYPE_F32, 0);
    quern_tensor *mask = run_data(QUERN_DTYPE_F32, 4, dims[i], 7), *seen = quern_gt(mask, zero);
    EXPECT_OK(quern_tensor_realize(&seen));
    attend(&p, QUERN_DTYPE_F32, mask, qkv, &roots[0], &roots[1]);
    expect_claimed(1, 2, roots);
    attend(&p, QUERN_DTYPE_F32, seen, qkv, &roots[0], &roots[1]);
    expect_claimed(1, 2, roots);
  }
}

/* Query i of a sample sees keys up to i + its offset, as with a mask of bools. */
static void test_offsets(void **state) {
  (void)state;
  static const int64_t offsets[][2] = {{0, 3}, {-5, 200}, {INT64_MIN, INT64_MAX}, {110, 63}, {-6, 0}};
  for (size_t i = 0; i < 2 * BASE_COUNT(offsets); i++) {
    const struct shape p = {2, 4, 2, 6, 130, 20, 33, i % 2 == 1};
    quern_tensor *qkv[3], *roots[2];
    quern_tensor *mask = quern_constant(ctx, QUERN_DTYPE_I64, 4, (int64_t[]){2, 1, 1, 1}, offsets[i / 2]);
    EXPECT_OK(quern_tensor_realize(&mask));
    attend(&p, QUERN_DTYPE_F32, mask, qkv, &roots[0], &roots[1]);
    expect_claimed(1, 2, roots);
    quern_tensor *first = quern_select(mask, 0, 0);
    EXPECT_OK(quern_tensor_realize(&first));
    attend(&p, QUERN_DTYPE_F64, first, qkv, &roots[0], &roots[1]);
    expect_claimed(1, 2, roots);
  }
}

static void test_backward(void **state) {
  (void)state;
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F64};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (size_t k = 0; k < BASE_COUNT(dtypes); k++) {
      quern_tensor *qkv[3], *y, *dx[3];
      attend(&shapes[i], dtypes[k], NULL, qkv, &y, NULL);
      quern_tensor *dy = run_data(dtypes[k], 4, (int64_t[]){shapes[i].b, shapes[i].h, shapes[i].s, shapes[i].e}, 4);
      EXPECT_OK(quern_vjp(1, &y, &dy, 3, qkv, dx));
      expect_claimed(2, 3, dx);
    }
  }
}

static void test_backward_mask(void **state) {
  (void)state;
  const struct shape p = {2, 2, 1, 19, 21, 8, 8, true};
  quern_tensor *qkv[3], *y, *dx[3], *zero = quern_scalar(ctx, QUERN_DTYPE_F32, 0);
  quern_tensor *seen = quern_gt(run_data(QUERN_DTYPE_F32, 4, (int64_t[]){2, 1, 19, 21}, 7), zero);
  EXPECT_OK(quern_tensor_realize(&seen));
  attend(&p, QUERN_DTYPE_F32, seen, qkv, &y, NULL);
  quern_tensor *dy = run_data(QUERN_DTYPE_F32, 4, (int64_t[]){2, 2, 19, 8}, 4);
  EXPECT_OK(quern_vjp(1, &y, &dy, 3, qkv, dx));
  expect_claimed(2, 3, dx);
}

/* A mask that is added, and whose gradient nobody wants: GPUs have a kernel for that, processors compose it. */
static void test_backward_added(void **state) {
  (void)state;
  const struct shape p = {2, 2, 1, 70, 37, 8, 12, true};
  quern_tensor *qkv[3], *y, *dx[3], *mask = run_data(QUERN_DTYPE_F32, 4, (int64_t[]){1, 2, 70, 37}, 7);
  attend(&p, QUERN_DTYPE_F32, mask, qkv, &y, NULL);
  quern_tensor *dy = run_data(QUERN_DTYPE_F32, 4, (int64_t[]){2, 2, 70, 12}, 4);
  EXPECT_OK(quern_vjp(1, &y, &dy, 3, qkv, dx));
  gpu_more = 1;
  expect_claimed(1, 3, dx);
  gpu_more = 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_forward),  TEST(test_masks),         TEST(test_offsets),
                                     TEST(test_backward), TEST(test_backward_mask), TEST(test_backward_added)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
