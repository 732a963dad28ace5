/* tests/sched/test_attention.c -- attention in tiles, forward and backward, of CPUs and of GPUs, against the evaluator */
#include "quern/grad.h"
#include "run.h"

static const struct run_way claimed_ways[] = {{"64 bytes", true, 1, 64, 1, 0, false, false},
                                              {"32 bytes", true, 1, 32, 2, 0, false, false},
                                              {"16 bytes", true, 0, 16, 3, 0, false, false},
                                              {"a GPU", true, 1, 4, 16384, 0, false, true},
                                              {"a GPU that shares little", true, 1, 4, 16384, 0, true, true}};
static int gpu_more; /* kernels that only GPUs have; below 0: that they do not have */

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
  options.supports = sched_supports;
  for (size_t i = 0; i < n; i++) after[i] = roots[i];
  struct pass_graph graph = {.ctx = ctx, .n_roots = n, .roots = after};
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  for (size_t i = 0; i < groups.groups.n; i++) {
    claims += groups.groups.at[i]->kind == PASS_KIND_COMPOSITE;
    run_group(groups.groups.at[i], way, memory);
  }
  for (size_t i = 0; i < n; i++) memcpy(dst[i], run_find(memory, after[i]), ir_bytes(after[i]));
  for (size_t i = 0; i < memory->n; i++) free(memory->at[i].data);
  free(memory);
  pass_groups_fini(&groups);
  return claims;
}

/* The ways, and last a GPU with tensor cores. */
static const struct run_way *claimed_way(size_t at) {
  run_libraries = at < BASE_COUNT(claimed_ways) ? 0 : BASE_TENSOR_CORES;
  return &claimed_ways[at < BASE_COUNT(claimed_ways) ? at : BASE_COUNT(claimed_ways) - 2];
}

static void expect_from(size_t first, int claims, size_t n, quern_tensor *const *roots) {
  void *want[8], *got[8];
  for (size_t i = 0; i < n; i++) {
    assert_false(quern_tensor_is_poison(roots[i]));
    want[i] = malloc(ir_bytes(roots[i]) + 64);
    got[i] = malloc(ir_bytes(roots[i]) + 64);
  }
  EXPECT_OK(ir_eval(ctx, n, roots, want, 0, NULL));
  const struct ways ways = ways_from(first, BASE_COUNT(claimed_ways) + 1);
  for (size_t at = ways.at; at < ways.end; at++) {
    const struct run_way *way = claimed_way(at);
    assert_int_equal(run_claimed(way, n, roots, got), claims + (way->gpu ? gpu_more : 0));
    for (size_t i = 0; i < n; i++) {
      for (int64_t k = 0; k < ir_count(roots[i]); k++) {
        if (run_near(roots[i]->dtype, got[i], want[i], k)) continue;
        fail_msg("%s: root %zu, element %lld is %.9g, evaluated %.9g", way->name, i, (long long)k,
                 base_load_float(roots[i]->dtype, got[i], (size_t)k),
                 base_load_float(roots[i]->dtype, want[i], (size_t)k));
      }
    }
  }
  for (size_t i = 0; i < n; i++) free(want[i]), free(got[i]);
}
static void expect_claimed(int claims, size_t n, quern_tensor *const *roots) { expect_from(0, claims, n, roots); }

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

/* Few queries of many keys, which a GPU takes in parts: of 16 rows and less a task, of tiles, in one part and in several. */
static const struct shape few[] = {
    {1, 1, 1, 1, 1025, 20, 33, false}, {2, 4, 1, 1, 300, 7, 5, true},      {1, 6, 2, 3, 700, 130, 70, true},
    {1, 24, 1, 1, 260, 8, 12, false},  {1, 1, 1, 16, 129, 64, 255, true},  {1, 2, 1, 17, 1030, 24, 40, true},
    {2, 2, 1, 3, 128, 4, 4, false},    {1, 3, 1, 7, 128, 256, 256, false},
};

static void test_few(void **state) {
  (void)state;
  static const quern_dtype dtypes[] = {QUERN_DTYPE_F32, QUERN_DTYPE_F64, QUERN_DTYPE_BF16};
  for (size_t i = 0; i < BASE_COUNT(few); i++) {
    for (size_t k = 0; k < BASE_COUNT(dtypes); k++) {
      quern_tensor *qkv[3], *roots[2];
      attend(&few[i], dtypes[k], NULL, qkv, &roots[0], &roots[1]);
      expect_claimed(1, 2, roots);
    }
  }
}

static void test_few_masks(void **state) {
  (void)state;
  static const struct shape p[] = {{2, 4, 2, 3, 520, 8, 12, false}, {2, 2, 1, 18, 530, 8, 12, true}};
  for (size_t i = 0; i < 4 * BASE_COUNT(p); i++) {
    const struct shape *s = &p[i / 4];
    const int64_t dims[][4] = {{1, 1, s->s, s->t}, {2, 1, 1, s->t}, {2, s->h, s->s, 1}, {1, s->h, s->s, s->t}};
    quern_tensor *qkv[3], *roots[2], *zero = quern_scalar(ctx, QUERN_DTYPE_F32, 0);
    quern_tensor *mask = run_data(QUERN_DTYPE_F32, 4, dims[i % 4], 7), *seen = quern_gt(mask, zero);
    EXPECT_OK(quern_tensor_realize(&seen));
    attend(s, QUERN_DTYPE_F32, mask, qkv, &roots[0], &roots[1]);
    expect_claimed(1, 2, roots);
    attend(s, QUERN_DTYPE_F32, seen, qkv, &roots[0], &roots[1]);
    expect_claimed(1, 2, roots);
  }
}

/* Keys and values behind the last that is seen may be anything, also in a part of which some are seen. */
static void test_few_offsets(void **state) {
  (void)state;
  static const struct shape p[] = {{2, 4, 2, 1, 700, 8, 12, false}, {2, 2, 1, 20, 900, 8, 12, false}};
  static const int64_t offsets[][2] = {{0, 699}, {-1, 300}, {-30, 555}};
  for (size_t i = 0; i < BASE_COUNT(p) * BASE_COUNT(offsets); i++) {
    const struct shape *s = &p[i / BASE_COUNT(offsets)];
    const int64_t *offset = offsets[i % BASE_COUNT(offsets)], dims[] = {2, s->g, s->t, s->e};
    quern_tensor *qkv[3], *roots[2];
    quern_tensor *mask = quern_constant(ctx, QUERN_DTYPE_I64, 4, (int64_t[]){2, 1, 1, 1}, offset);
    quern_tensor *key = quern_iota(ctx, QUERN_DTYPE_I64, 4, dims, 2);
    quern_tensor *last = quern_add(mask, quern_scalar(ctx, QUERN_DTYPE_I64, (double)(s->s - 1)));
    quern_tensor *nan = quern_scalar(ctx, QUERN_DTYPE_F32, (double)NAN);
    attend(s, QUERN_DTYPE_F32, mask, qkv, &roots[0], &roots[1]);
    quern_tensor *values = quern_where(quern_le(key, last), qkv[2], nan);
    EXPECT_OK(quern_tensor_realize(&values));
    EXPECT_OK(quern_tensor_realize(&mask));
    roots[0] = quern_attention(qkv[0], qkv[1], values, mask, NULL, &roots[1]);
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
      gpu_more = shapes[i].s == 1 ? -1 : 0; /* a GPU composes the gradient of one query */
      expect_claimed(2, 3, dx);
      gpu_more = 0;
    }
  }
}

/* Tensor cores: widths that fill tiles or do not, and several blocks of queries and keys. */
static void test_backward_units(void **state) {
  (void)state;
  static const struct shape more[] = {{1, 2, 1, 70, 100, 126, 126, true}, {1, 1, 1, 70, 66, 128, 128, false},
                                      {2, 4, 2, 50, 65, 80, 30, true},    {1, 1, 1, 33, 70, 127, 7, true},
                                      {1, 3, 1, 65, 129, 64, 64, false},  {1, 1, 1, 128, 64, 64, 64, false}};
  for (size_t i = 0; i < BASE_COUNT(more) + 2; i++) { /* f32, and one shape of both others */
    const struct shape *p = &more[i < BASE_COUNT(more) ? i : 2];
    quern_dtype dtype = i < BASE_COUNT(more)    ? QUERN_DTYPE_F32
                        : i == BASE_COUNT(more) ? QUERN_DTYPE_BF16
                                                : QUERN_DTYPE_F16;
    quern_tensor *qkv[3], *y, *dx[3];
    attend(p, dtype, NULL, qkv, &y, NULL);
    quern_tensor *dy = run_data(dtype, 4, (int64_t[]){p->b, p->h, p->s, p->e}, 4);
    EXPECT_OK(quern_vjp(1, &y, &dy, 3, qkv, dx));
    expect_from(BASE_COUNT(claimed_ways), 2, 3, dx);
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

/* A mask that is added, and whose gradient nobody wants: GPUs have a kernel for that, CPUs compose it. */
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

/* The gradient of such a mask, which samples, heads or queries share or not; one that keys share is composed. */
static void test_backward_of_mask(void **state) {
  (void)state;
  const struct shape p = {2, 4, 2, 70, 37, 8, 12, true};
  static const int64_t dims[][4] = {{1, 4, 70, 37}, {2, 1, 1, 37}, {1, 1, 70, 37},
                                    {2, 4, 70, 37}, {1, 1, 1, 37}, {1, 4, 70, 1}};
  for (size_t i = 0; i < BASE_COUNT(dims); i++) {
    quern_tensor *x[4], *y, *dx[4];
    x[3] = run_data(QUERN_DTYPE_F32, 4, dims[i], 7);
    attend(&p, QUERN_DTYPE_F32, x[3], x, &y, NULL);
    quern_tensor *dy = run_data(QUERN_DTYPE_F32, 4, (int64_t[]){2, 4, 70, 12}, 4);
    EXPECT_OK(quern_vjp(1, &y, &dy, 4, x, dx));
    gpu_more = dims[i][3] > 1;
    expect_claimed(1, 4, dx);
    gpu_more = 0;
  }
}

/* Rows of eighths, and 64 in front where there should be. */
static quern_tensor *eighths(quern_dtype dtype, const struct shape *p, int64_t rows, int64_t width, bool large,
                             uint64_t seed) {
  size_t n = (size_t)(p->b * p->h * rows * width);
  double *x = malloc(n * sizeof *x);
  void *data = malloc(n * sizeof *x);
  assert_true(x != NULL && data != NULL);
  test_fill(n, x, seed);
  for (size_t i = 0; i < n; i++)
    base_store_float(dtype, data, i, large && i % (size_t)width == 0 ? 64 : floor(8 * x[i]) / 8);
  quern_tensor *t = quern_tensor_copy(ctx, dtype, 4, (int64_t[]){p->b, p->h, rows, width}, data);
  free(x);
  free(data);
  return t;
}

static void gradient_of_eighths(quern_dtype dtype, const struct shape *p, quern_tensor **dx) {
  quern_tensor *qkv[] = {eighths(dtype, p, p->s, p->d, true, 1), eighths(dtype, p, p->t, p->d, true, 2),
                         eighths(dtype, p, p->t, p->e, false, 3)};
  quern_attention_options options = {.size = sizeof options, .causal = p->causal, .scale = 1};
  quern_tensor *y = quern_attention(qkv[0], qkv[1], qkv[2], NULL, &options, NULL);
  quern_tensor *dy = eighths(dtype, p, p->s, p->e, false, 4);
  EXPECT_OK(quern_vjp(1, &y, &dy, 3, qkv, dx));
}

/* Scores around 4096 that f32 has exactly: lse has three digits after the point, and gradients are as near as those of small scores. */
static void test_backward_large(void **state) {
  (void)state;
  static const struct shape p[] = {{1, 2, 2, 70, 90, 9, 12, false}, {1, 1, 1, 100, 100, 8, 8, true}};
  for (size_t i = 0; i < BASE_COUNT(p); i++) {
    quern_tensor *dx[3], *want_dx[3];
    void *got[3], *want[3];
    gradient_of_eighths(QUERN_DTYPE_F32, &p[i], dx);
    gradient_of_eighths(QUERN_DTYPE_F64, &p[i], want_dx);
    for (int k = 0; k < 3; k++) got[k] = malloc(ir_bytes(dx[k]) + 64), want[k] = malloc(ir_bytes(want_dx[k]) + 64);
    EXPECT_OK(ir_eval(ctx, 3, want_dx, want, 0, NULL));
    for (size_t at = 0; at <= BASE_COUNT(claimed_ways); at++) {
      const struct run_way *way = claimed_way(at);
      if (!way->gpu) continue;
      assert_int_equal(run_claimed(way, 3, dx, got), 2);
      for (int k = 0; k < 3; k++)
        for (int64_t e = 0; e < ir_count(dx[k]); e++) {
          double exact = ((double *)want[k])[e], error = fabs((double)((float *)got[k])[e] - exact);
          if (error > 2e-5 * fmax(fabs(exact), 1))
            fail_msg("gradient %d, element %lld: %g, off by %g", k, (long long)e, exact, error);
        }
    }
    for (int k = 0; k < 3; k++) free(got[k]), free(want[k]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_forward),        TEST(test_masks),
                                     TEST(test_offsets),        TEST(test_few),
                                     TEST(test_few_masks),      TEST(test_few_offsets),
                                     TEST(test_backward),       TEST(test_backward_mask),
                                     TEST(test_backward_added), TEST(test_backward_of_mask),
                                     TEST(test_backward_large), TEST(test_backward_units)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
