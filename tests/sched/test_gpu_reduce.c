/* tests/sched/test_gpu_reduce.c -- kernels of REDUCE groups by thread blocks: values, races, bounds, lanes, lack of memory
** GPUs have an order of sums of their own: values are compared with the evaluator's, within what the dtype allows.
*/
#include "quern/quern.h"
#include "run.h"

static const struct run_way gpu_ways[] = {
    {"a GPU", true, 1, 16, 16384, 0, false, true},
    {"a GPU, a kernel a node", false, 1, 16, 16384, 0, false, true},
    {"a GPU, not optimized", true, 0, 16, 16384, 0, false, true},
};

/* The first n_ways of them. */
static void run_gpu(size_t n_ways, size_t n, quern_tensor *const *roots, const char *file, int line) {
  void *want[8], *got[8];
  assert_true(n <= 8);
  for (size_t i = 0; i < n; i++) {
    if (quern_tensor_is_poison(roots[i])) print_error("%s\n", ctx->message);
    assert_false(quern_tensor_is_poison(roots[i]));
    want[i] = malloc(ir_bytes(roots[i]) + 64);
    got[i] = malloc(ir_bytes(roots[i]) + 64);
  }
  EXPECT_OK(ir_eval(ctx, n, roots, want, 0, NULL));
  const struct ways ways = ways_from(0, n_ways);
  for (size_t w = ways.at; w < ways.end; w++) {
    run_way(&gpu_ways[w], n, roots, got);
    for (size_t i = 0; i < n; i++) {
      for (int64_t k = 0; k < ir_count(roots[i]); k++) {
        if (run_near(roots[i]->dtype, got[i], want[i], k)) continue;
        bool is_float = base_dtype_is(roots[i]->dtype, BASE_FLOAT);
        double x = is_float ? base_load_float(roots[i]->dtype, got[i], (size_t)k)
                            : (double)(int64_t)base_load_int(roots[i]->dtype, got[i], (size_t)k);
        double y = is_float ? base_load_float(roots[i]->dtype, want[i], (size_t)k)
                            : (double)(int64_t)base_load_int(roots[i]->dtype, want[i], (size_t)k);
        print_error("%s: root %zu, element %lld is %.17g, evaluated %.17g\n", gpu_ways[w].name, i, (long long)k, x, y);
        _fail(file, line);
      }
    }
  }
  for (size_t i = 0; i < n; i++) {
    free(want[i]);
    free(got[i]);
  }
}
#define RUN_GPU(n_ways, ...)                                                                                           \
  run_gpu(n_ways, sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *), (quern_tensor *[]){__VA_ARGS__},   \
          __FILE__, __LINE__)
#define EXPECT_NEAR(...) RUN_GPU(BASE_COUNT(gpu_ways), __VA_ARGS__)
#define EXPECT_NEAR_FUSED(...) RUN_GPU(1, __VA_ARGS__) /* what is large enough to take long else */

/* ---- rows ---------------------------------------------------------------------------------------------------- */

static const int64_t lengths[] = {1,    2,    31,   32,    33,    48,    63,    64,    65,   100,  255,
                                  256,  257,  512,  767,   768,   769,   1000,  1024,  1026, 2047, 2048,
                                  4097, 8192, 9000, 16384, 16388, 33333, 50304, 65536, 70000};

static void rows(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(lengths); i++) {
    test_renew();
    quern_tensor *x = DATA(F32, 3, lengths[i]), *mean = quern_mean(x, QUERN_LIST(1), true);
    EXPECT_NEAR(quern_mean(x, QUERN_LIST(1), false), quern_max(x, QUERN_LIST(1), false));
    EXPECT_NEAR(quern_argmax(x, 1, false), quern_argmin(quern_sub(x, mean), 1, false));
    EXPECT_NEAR(quern_softmax(quern_mul(x, quern_scalar(ctx, QUERN_DTYPE_F32, 4)), 1));
    EXPECT_NEAR(quern_layer_norm(x, 1, DATA(F32, lengths[i]), DATA(F32, lengths[i]), 1e-5));
  }
}

static void short_dtypes(void **state) {
  (void)state;
  static const int64_t some[] = {40, 64, 768, 1001, 2048, 50304};
  for (size_t i = 0; i < BASE_COUNT(some); i++) {
    test_renew();
    quern_tensor *x = DATA(BF16, 2, some[i]), *y = DATA(F16, 2, some[i]);
    EXPECT_NEAR(quern_softmax(x, 1), quern_argmax(x, 1, true), quern_mean(x, QUERN_LIST(1), false));
    EXPECT_NEAR(quern_layer_norm(y, 1, DATA(F16, some[i]), NULL, 1e-5));
  }
}

static void many_dtypes(void **state) {
  (void)state;
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
    test_renew();
    quern_tensor *x = run_data((quern_dtype)d, 2, (int64_t[]){40, 70}, 9), *y = quern_transpose(x, 0, 1);
    EXPECT_NEAR(quern_max(x, QUERN_LIST(1), false), quern_min(x, QUERN_LIST(0), false));
    EXPECT_NEAR(quern_argmax(x, 1, false), quern_argmin(x, 0, false), quern_argmax(y, 1, true));
    if (d == QUERN_DTYPE_BOOL) continue;
    EXPECT_NEAR(quern_sum(x, QUERN_LIST(1), false), quern_sum(x, QUERN_LIST(0), false));
    EXPECT_NEAR(quern_prod(x, QUERN_LIST(1), false), quern_prod(y, QUERN_LIST(1), false));
  }
  quern_tensor *x = DATA(BOOL, 40, 40);
  EXPECT_NEAR(quern_any(x, QUERN_LIST(1), false), quern_all(x, QUERN_LIST(0), false));
}

static void nan_and_ties(void **state) {
  (void)state;
  float data[3 * 300];
  for (int i = 0; i < 900; i++) data[i] = (float)(i % 7);
  data[250] = NAN;
  data[299] = NAN;
  for (int i = 300; i < 600; i++) data[i] = -INFINITY;
  quern_tensor *x = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(3, 300), data);
  quern_tensor *y = quern_transpose(x, 0, 1);
  EXPECT_NEAR(quern_argmax(x, 1, false), quern_max(x, QUERN_LIST(1), false), quern_min(x, QUERN_LIST(1), false));
  EXPECT_NEAR(quern_argmin(x, 1, false), quern_argmax(y, 0, false), quern_argmax(y, 1, false));
}

static void nothing(void **state) {
  (void)state;
  EXPECT_NEAR(quern_sum(DATA(F32, 4, 0), QUERN_LIST(1), false), quern_sum(DATA(F32, 0, 64), QUERN_LIST(0), false));
  EXPECT_NEAR(quern_sum(DATA(F32, 0, 64), QUERN_LIST(1), false));
}

/* ---- columns, several axes, few long rows ---------------------------------------------------------------------- */

static void columns(void **state) {
  (void)state;
  static const int64_t heights[] = {1, 2, 7, 8, 9, 40, 64, 65, 700, 3000},
                       widths[] = {1, 16, 31, 32, 40, 128, 257, 300};
  for (size_t i = 0; i < BASE_COUNT(heights); i++) {
    for (size_t k = 0; k < BASE_COUNT(widths); k++) {
      test_renew();
      quern_tensor *x = DATA(F32, heights[i], widths[k]), *y = DATA(BF16, heights[i], widths[k]);
      EXPECT_NEAR(quern_mean(x, QUERN_LIST(0), false), quern_mean(y, QUERN_LIST(0), false));
      EXPECT_NEAR(quern_argmax(x, 0, false), quern_softmax(x, 0));
      EXPECT_NEAR(quern_mean(quern_gelu(x), QUERN_LIST(0), false), quern_gelu(x));
    }
  }
}

static void high_columns(void **state) {
  (void)state;
  EXPECT_NEAR(quern_mean(DATA(F32, 100003, 33), QUERN_LIST(0), false));
  EXPECT_NEAR(quern_mean(DATA(BF16, 3, 20000, 64), QUERN_LIST(1), false));
  EXPECT_NEAR(quern_argmin(DATA(F32, 20001, 40), 0, false));
}

static void axes(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 5, 6, 17, 20);
  for (int mask = 1; mask < 16; mask++) {
    int64_t list[4];
    int n = 0;
    for (int k = 0; k < 4; k++)
      if ((mask >> k & 1) != 0) list[n++] = k;
    EXPECT_NEAR(quern_mean(x, n, list, false), quern_min(x, n, list, false));
  }
  quern_tensor *y = DATA(F32, 70, 4, 70);
  EXPECT_NEAR(quern_mean(y, QUERN_LIST(0, 2), false), quern_var(y, QUERN_LIST(0, 2), false, 0));
  EXPECT_NEAR(quern_mean(quern_permute(y, QUERN_LIST(2, 1, 0)), QUERN_LIST(2), false));
}

static void few_long_rows(void **state) {
  (void)state;
  static const int64_t some[] = {16385, 40000, 70001, 300004, 1048576};
  for (size_t i = 0; i < BASE_COUNT(some); i++) {
    test_renew();
    quern_tensor *x = DATA(F32, some[i]), *y = DATA(BF16, 2, some[i] / 2);
    EXPECT_NEAR(quern_mean(x, QUERN_ALL, false), quern_argmax(x, 0, false));
    EXPECT_NEAR(quern_mean(y, QUERN_LIST(1), false), quern_max(y, QUERN_ALL, false));
    EXPECT_NEAR(quern_mean(quern_mul(x, x), QUERN_ALL, false), quern_neg(x));
  }
}

/* ---- sums over the rows ------------------------------------------------------------------------------------------ */

static void crosses(void **state) {
  (void)state;
  static const int64_t heights[] = {1, 3, 64, 300, 5000}, widths[] = {32, 40, 100, 768, 1025};
  for (size_t i = 0; i < BASE_COUNT(heights); i++) {
    for (size_t k = 0; k < BASE_COUNT(widths); k++) {
      if (heights[i] * widths[k] > 600000) continue;
      test_renew();
      quern_tensor *x = DATA(F32, heights[i], widths[k]), *w = DATA(F32, widths[k]), *b = DATA(F32, widths[k]);
      quern_tensor *y = quern_layer_norm(x, 1, w, b, 1e-5), *wanted[] = {x, w, b}, *got[3];
      quern_tensor *loss = quern_mean(quern_mul(y, DATA(F32, heights[i], widths[k])), QUERN_ALL, false);
      EXPECT_OK(quern_grad(loss, 3, wanted, got));
      EXPECT_NEAR(got[0], got[1], got[2]);
    }
  }
}

/* Sums of 16-bit rows, one or two rows at a time, in registers; in the memory that threads share; in the device's. */
static void cross_shapes(void **state) {
  (void)state;
  static const int64_t shapes[][2] = {{300, 768}, {301, 768}, {270, 1000}, {256, 12288}, {256, 20000}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    int64_t h = shapes[i][0], w = shapes[i][1];
    if (TEST_ASAN && h * w > 1 << 20) continue; /* a minute */
    test_renew();
    quern_tensor *x = DATA(BF16, h, w), *gain = DATA(BF16, w), *bias = DATA(BF16, w), *more = DATA(BF16, h, w);
    quern_tensor *y = quern_layer_norm(x, 1, gain, bias, 1e-5), *wanted[] = {x, gain, bias}, *got[3];
    quern_tensor *loss = quern_mean(quern_mul(quern_cast(y, QUERN_DTYPE_F32), DATA(F32, h, w)), QUERN_ALL, false);
    EXPECT_OK(quern_grad(loss, 3, wanted, got));
    EXPECT_NEAR_FUSED(quern_add(got[0], more), got[1], got[2]);
  }
}

static void long_crosses(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 300, 40000), *y = quern_layer_norm(x, 1, NULL, NULL, 1e-5);
  EXPECT_NEAR_FUSED(y, quern_mean(y, QUERN_LIST(0), false));
}

static void losses(void **state) {
  (void)state;
  static const int64_t some[] = {50, 1000, 50304};
  for (size_t i = 0; i < BASE_COUNT(some); i++) {
    test_renew();
    quern_tensor *x = DATA(BF16, 3, some[i]), *got;
    int32_t labels[] = {3, 0, (int32_t)some[i] - 1};
    quern_tensor *loss = quern_cross_entropy(x, quern_tensor_copy(ctx, QUERN_DTYPE_I32, QUERN_LIST(3), labels), NULL);
    EXPECT_OK(quern_grad(loss, 1, &x, &got));
    EXPECT_NEAR(loss, got);
  }
}

/* Rows of which an SM has one at a time: a task has two of them. */
static void large_rows(void **state) {
  (void)state;
  enum { ROWS = 133, WIDTH = 33000 };
  int32_t labels[ROWS];
  for (int i = 0; i < ROWS; i++) labels[i] = i == 7 ? -1 : i * (WIDTH - 1) / (ROWS - 1);
  quern_tensor *x = quern_cast(DATA(BF16, ROWS, WIDTH), QUERN_DTYPE_F32), *y = DATA(F32, 3, 40001);
  quern_tensor *most = quern_max(x, QUERN_LIST(1), true), *e = quern_exp(quern_sub(x, most));
  quern_tensor *sum = quern_sum(e, QUERN_LIST(1), true);
  quern_tensor *label = quern_tensor_copy(ctx, QUERN_DTYPE_I32, QUERN_LIST(ROWS, 1), labels);
  quern_tensor *hot = quern_eq(quern_iota(ctx, QUERN_DTYPE_I32, QUERN_LIST(ROWS, WIDTH), 1), label);
  quern_tensor *back = quern_sub(quern_div(e, sum), quern_cast(hot, QUERN_DTYPE_F32));
  EXPECT_NEAR_FUSED(quern_cast(back, QUERN_DTYPE_F16), quern_add(quern_log(sum), most));
  EXPECT_NEAR(quern_softmax(y, 1), quern_max(y, QUERN_LIST(1), false));
}

/* ---- kernels --------------------------------------------------------------------------------------------------- */

static struct pass_groups groups;

static struct kern *kernel_of(quern_tensor *root) {
  struct pass_options options = {0};
  struct base_target target = run_target(&gpu_ways[0]);
  struct sched sched;
  struct kern *kern;
  struct pass_graph graph = {.ctx = ctx, .n_roots = 1, .roots = &root};
  EXPECT_OK(ir_inline_composites(ctx, 1, &root, &root));
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  options.target = &target;
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  assert_int_equal(groups.groups.n, 1);
  sched_choose(&sched, groups.groups.at[0], &target, 1);
  EXPECT_OK(sched_lower(&kern, &ctx->heap, ctx, groups.groups.at[0], &target, &sched));
  int unproven;
  EXPECT_OK(kern_verify(kern, &unproven));
  assert_int_equal(unproven, 0);
  return kern;
}

static void drop(struct kern *kern) {
  kern_free(kern);
  pass_groups_fini(&groups);
}

static int count(const struct kern *kern, enum kern_op op) {
  int n = 0;
  for (size_t f = 0; f < kern->fns.n; f++)
    for (size_t i = 0; i < kern->fns.at[f]->insts.n; i++) n += kern->fns.at[f]->insts.at[i].op == op;
  return n;
}

/* A row is read once, and by as many threads as have 16 bytes at a time. */
static void rows_are_held(void **state) {
  (void)state;
  struct kern *kern = kernel_of(quern_softmax(DATA(F32, 64, 8192), 1));
  assert_int_equal(kern->n_phases, 1);
  assert_int_equal(kern->phases[0].block_threads, 512);
  assert_int_equal(count(kern, KERN_LOAD), 4);
  assert_int_equal(count(kern, KERN_STORE), 4);
  assert_int_equal(count(kern, KERN_FOR) + count(kern, KERN_LOCAL) + count(kern, KERN_IF), 0);
  drop(kern);
  kern = kernel_of(quern_layer_norm(DATA(BF16, 64, 768), 1, NULL, NULL, 1e-5));
  assert_int_equal(kern->phases[0].block_threads, 32);
  assert_int_equal(count(kern, KERN_LOAD), 3);
  drop(kern);
  quern_tensor *large = quern_input(ctx, "x", QUERN_DTYPE_BF16, QUERN_LIST(8192, 40000));
  kern = kernel_of(quern_cast(quern_softmax(large, 1), QUERN_DTYPE_F32));
  assert_int_equal(kern->phases[0].block_threads, 512);
  assert_int_equal(kern_task_count(&kern->phases[0], NULL), 131); /* of 63 rows */
  assert_int_equal(count(kern, KERN_LOCAL), 1);
  assert_int_equal(count(kern, KERN_LOAD), 4 * 10); /* the first row, the row ahead, two passes */
  drop(kern);
}

/* Two rows at a time, of which each is read once; sums in registers, and one phase that joins them. */
static void crosses_are_held(void **state) {
  (void)state;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_BF16, QUERN_LIST(16384, 8192));
  quern_tensor *y = quern_layer_norm(x, 1, NULL, NULL, 1e-5);
  struct kern *kern = kernel_of(quern_cast(quern_sum(y, QUERN_LIST(0), false), QUERN_DTYPE_F16));
  assert_int_equal(kern->n_phases, 2);
  int threads = kern->phases[0].block_threads;
  assert_int_equal(threads * kern->phases[0].min_blocks_per_sm, 512);
  assert_int_equal(count(kern, KERN_LOCAL), 0);
  const struct kern_fn *fn = kern->fns.at[kern->phases[0].fn];
  int loads = 0, folds = 0, together = 0;
  for (size_t i = 0; i < fn->insts.n; i++) {
    bool fold = fn->insts.at[i].op == KERN_HREDUCE;
    if (fn->insts.at[i].op == KERN_LOAD) loads += fn->insts.at[i].lanes;
    folds += fold;
    together += fold && fn->insts.at[i - 1].op == KERN_HREDUCE;
  }
  assert_int_equal(loads, 2 * 8192);
  assert_true(folds > 2 && together > 0);
  assert_int_equal(kern->phases[1].block_threads, 256);
  drop(kern);
}

static void tasks_are_many(void **state) {
  (void)state;
  struct kern *kern =
      kernel_of(quern_sum(quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(38597376)), QUERN_ALL, false));
  assert_int_equal(kern->n_phases, 2);
  assert_true(kern_task_count(&kern->phases[0], NULL) >= 1000);
  drop(kern);
  test_renew();
  kern = kernel_of(quern_sum(quern_input(ctx, "x", QUERN_DTYPE_BF16, QUERN_LIST(65536, 3072)), QUERN_LIST(0), false));
  assert_int_equal(kern->phases[0].block_threads, 32);
  assert_true(kern_task_count(&kern->phases[0], NULL) >= 3000);
  assert_true(kern->n_phases <= 3);
  drop(kern);
}

/* ---- lack of memory ------------------------------------------------------------------------------------------- */

static quern_tensor *make_softmax(void) { return quern_softmax(DATA(F32, 4, 70), 1); }
static quern_tensor *make_columns(void) { return quern_argmax(DATA(F32, 1000, 40), 0, false); }
static quern_tensor *make_cross(void) { return quern_sum(quern_softmax(DATA(F32, 256, 40), 1), QUERN_LIST(0), false); }
static quern_tensor *make_split(void) { return quern_argmax(DATA(F32, 40000), 0, false); }

static quern_tensor *make_large(void) { return quern_cast(quern_softmax(DATA(BF16, 2, 33000), 1), QUERN_DTYPE_F32); }

static void faults(void **state) {
  (void)state;
  run_faults(&gpu_ways[0], make_softmax);
  run_faults(&gpu_ways[0], make_columns);
  run_faults(&gpu_ways[0], make_split);
  run_faults(&gpu_ways[0], make_cross);
  run_faults(&gpu_ways[0], make_large);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(rows),           TEST(short_dtypes), TEST(many_dtypes),   TEST(nan_and_ties),
      TEST(nothing),        TEST(columns),      TEST(high_columns),  TEST(axes),
      TEST(few_long_rows),  TEST(crosses),      TEST(cross_shapes),  TEST(long_crosses),
      TEST(losses),         TEST(large_rows),   TEST(rows_are_held), TEST(crosses_are_held),
      TEST(tasks_are_many), TEST(faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
