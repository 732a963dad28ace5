/* tests/sched/test_reduce.c -- kernels of REDUCE groups: values, the order of sums, bits, races, passes, lack of
** memory */
#include "quern/quern.h"
#include "run.h"

static const int64_t sizes[] = {1, 3, 15, 16, 17, 63, 64, 65, 129, 1000};

/* ---- along rows, down columns, over everything -------------------------------------------------------------- */

static void rows_and_columns(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    quern_tensor *rows = DATA(F32, 5, sizes[i]), *columns = DATA(F32, sizes[i], 37);
    EXPECT_SAME(quern_sum(rows, QUERN_LIST(1), false), quern_sum(rows, QUERN_ALL, false));
    EXPECT_SAME(quern_sum(columns, QUERN_LIST(0), false), quern_max(columns, QUERN_LIST(0), true));
  }
}

static void axes(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 3, 5, 7, 20);
  for (int mask = 1; mask < 16; mask++) {
    int64_t list[4];
    int n = 0;
    for (int k = 0; k < 4; k++)
      if ((mask >> k & 1) != 0) list[n++] = k;
    EXPECT_SAME(quern_sum(x, n, list, false), quern_min(x, n, list, false));
  }
  EXPECT_SAME(quern_sum(DATA(F32, 2, 67, 3, 40), QUERN_LIST(1, 3), false));
  EXPECT_SAME(quern_sum(DATA(F32, 70, 2, 70), QUERN_LIST(0, 2), false));
}

static void long_rows(void **state) {
  (void)state;
  EXPECT_SAME(quern_sum(DATA(F32, 40000), QUERN_ALL, false));
  EXPECT_SAME(quern_sum(DATA(F32, 32768), QUERN_ALL, false), quern_max(DATA(F32, 16385), QUERN_ALL, false));
  EXPECT_SAME(quern_sum(DATA(F32, 17000, 3), QUERN_LIST(0), false));
  EXPECT_SAME(quern_sum(DATA(F64, 2, 20000), QUERN_LIST(1), false));
  EXPECT_SAME(quern_argmax(DATA(F32, 33000), 0, false), quern_softmax(DATA(F32, 16500), 0));
  EXPECT_SAME(quern_argmin(DATA(F32, 17000, 2), 0, false));
}

static void many_dtypes(void **state) {
  (void)state;
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
    quern_tensor *x = run_data((quern_dtype)d, 2, (int64_t[]){4, 70}, 9), *y = quern_transpose(x, 0, 1);
    EXPECT_SAME(quern_max(x, QUERN_LIST(1), false), quern_min(x, QUERN_LIST(0), false));
    EXPECT_SAME(quern_argmax(x, 1, false), quern_argmin(x, 1, false), quern_argmax(y, 1, true));
    if (d == QUERN_DTYPE_BOOL) continue;
    EXPECT_SAME(quern_sum(x, QUERN_LIST(1), false), quern_sum(x, QUERN_LIST(0), false));
    EXPECT_SAME(quern_prod(x, QUERN_LIST(1), false), quern_prod(y, QUERN_LIST(1), false));
  }
  quern_tensor *x = DATA(BOOL, 9, 40);
  EXPECT_SAME(quern_any(x, QUERN_LIST(1), false), quern_all(x, QUERN_LIST(0), false));
}

static void mixed_dtypes(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 3, 100), *wide = quern_cast(x, QUERN_DTYPE_F64);
  EXPECT_SAME(quern_sum(x, QUERN_LIST(1), false), quern_sum(wide, QUERN_LIST(1), false));
  EXPECT_SAME(quern_sum(x, QUERN_LIST(0), false), quern_sum(wide, QUERN_LIST(0), false));
  EXPECT_SAME(quern_sum(quern_cast(quern_lt(x, quern_neg(x)), QUERN_DTYPE_I64), QUERN_LIST(1), false));
}

/* ---- special values ------------------------------------------------------------------------------------------- */

static void nan_and_ties(void **state) {
  (void)state;
  float x[5 * 70];
  for (int i = 0; i < 5 * 70; i++) x[i] = (float)(i * 37 % 11);
  x[70 + 33] = x[70 + 40] = NAN;
  for (int i = 140; i < 210; i++) x[i] = -INFINITY;
  for (int i = 210; i < 280; i++) x[i] = i % 2 == 0 ? 0.0f : -0.0f;
  x[280] = INFINITY;
  quern_tensor *t = quern_tensor_copy(ctx, QUERN_DTYPE_F32, 2, (int64_t[]){5, 70}, x), *u = quern_transpose(t, 0, 1);
  EXPECT_SAME(quern_argmax(t, 1, false), quern_argmin(t, 1, false), quern_max(t, QUERN_LIST(1), false));
  EXPECT_SAME(quern_argmax(u, 0, false), quern_argmin(u, 0, false), quern_min(u, QUERN_LIST(0), false));
  EXPECT_SAME(quern_argmax(t, 0, false), quern_max(t, QUERN_LIST(0), false), quern_argmin(t, 0, false));
  EXPECT_SAME(quern_softmax(t, 1));
}

/* A sum of -0 alone is -0 in every way: accumulators start there. Of nothing it is 0. */
static void negative_zero(void **state) {
  (void)state;
  float x[40];
  void *got = malloc(64 * 4);
  for (int i = 0; i < 40; i++) x[i] = -0.0f;
  quern_tensor *t = quern_tensor_copy(ctx, QUERN_DTYPE_F32, 2, (int64_t[]){2, 20}, x);
  for (int axis = 0; axis < 2; axis++) {
    quern_tensor *sum = quern_sum(t, 1, (int64_t[]){axis}, false);
    for (size_t w = 0; w < BASE_COUNT(run_ways); w++) {
      run_way(&run_ways[w], 1, &sum, &got);
      assert_int_equal(((uint32_t *)got)[0], UINT32_C(0x80000000));
    }
  }
  free(got);
}

static void nothing(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 3, 0), *y = DATA(I32, 0, 4);
  EXPECT_SAME(quern_sum(x, QUERN_LIST(1), false), quern_prod(x, QUERN_LIST(1), false),
              quern_max(x, QUERN_LIST(1), false));
  EXPECT_SAME(quern_min(y, QUERN_LIST(0), false), quern_max(y, QUERN_LIST(0), false), quern_sum(y, QUERN_ALL, false));
  EXPECT_SAME(quern_sum(x, QUERN_LIST(0), false), quern_max(DATA(F8E4M3, 2, 0), QUERN_LIST(1), false));
  EXPECT_SAME(quern_sum(DATA(F32, 4, 1), QUERN_LIST(1), false),
              quern_sum(run_data(QUERN_DTYPE_F32, 0, NULL, 4), QUERN_ALL, false));
}

/* ---- the order of sums ---------------------------------------------------------------------------------------- */

/* As kern.h says it, in plain C. */
static float sum_in_order(const float *x, int64_t n, int64_t step) {
  float total = 0;
  for (int64_t lo = 0; lo < n; lo += KERN_CHUNK) {
    float acc[64] = {0};
    for (int64_t i = lo; i < n && i < lo + KERN_CHUNK; i++) acc[(i - lo) % 64] += x[i * step];
    for (int h = 32; h >= 1; h /= 2)
      for (int i = 0; i < h; i++) acc[i] += acc[i + h];
    total = lo == 0 ? acc[0] : total + acc[0];
  }
  return total;
}

static void order(void **state) {
  (void)state;
  static const int64_t counts[] = {5, 64, 100, 1000, 20000};
  float got[8];
  void *dst = got;
  for (size_t i = 0; i < BASE_COUNT(counts); i++) {
    quern_tensor *x = DATA(F32, 2, counts[i]), *y = DATA(F32, counts[i], 2);
    const float *data = quern_tensor_data(x), *other = quern_tensor_data(y);
    quern_tensor *along = quern_sum(x, QUERN_LIST(1), false), *across = quern_sum(y, QUERN_LIST(0), false);
    for (size_t w = 0; w < BASE_COUNT(run_ways); w++) {
      run_way(&run_ways[w], 1, &along, &dst);
      assert_true(got[0] == sum_in_order(data, counts[i], 1) && got[1] == sum_in_order(data + counts[i], counts[i], 1));
      run_way(&run_ways[w], 1, &across, &dst);
      assert_true(got[0] == sum_in_order(other, counts[i], 2) && got[1] == sum_in_order(other + 1, counts[i], 2));
    }
  }
}

/* ---- stages --------------------------------------------------------------------------------------------------- */

static void softmax(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    quern_tensor *x = DATA(F32, 4, sizes[i]);
    EXPECT_SAME(quern_softmax(x, 1), quern_log_softmax(x, 1));
  }
  EXPECT_SAME(quern_softmax(DATA(F32, 70, 33), 0));
  EXPECT_SAME(quern_softmax(DATA(F16, 3, 70), 1), quern_softmax(DATA(F64, 3, 70), 1));
  EXPECT_SAME(quern_softmax(DATA(F32, 3, 20, 19), 1));
  EXPECT_SAME(quern_logsumexp(DATA(F32, 9, 50), QUERN_LIST(1), false));
}

static void norms(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 6, 100), *w = DATA(F32, 100), *b = DATA(F32, 100);
  EXPECT_SAME(quern_layer_norm(x, 1, w, b, 1e-5), quern_rms_norm(x, 1, w, 1e-5));
  EXPECT_SAME(quern_layer_norm(quern_add(x, DATA(F32, 6, 100)), 1, w, b, 1e-5), quern_add(x, x));
  EXPECT_SAME(quern_var(DATA(F32, 40, 30), QUERN_LIST(0), false, 1));
  EXPECT_SAME(quern_group_norm(DATA(F32, 2, 6, 5, 7), 3, DATA(F32, 6), DATA(F32, 6), 1e-5));
  EXPECT_SAME(quern_layer_norm(DATA(BF16, 3, 48), 1, DATA(BF16, 48), DATA(BF16, 48), 1e-5));
}

static void losses(void **state) {
  (void)state;
  quern_tensor *logits = DATA(F32, 9, 33), *labels = quern_abs(DATA(I32, 9)), *other = DATA(F32, 9, 33);
  EXPECT_SAME(quern_mse_loss(logits, other, QUERN_REDUCTION_MEAN));
  EXPECT_SAME(quern_cosine_similarity(logits, other, 1, 1e-6));
  EXPECT_SAME(quern_cross_entropy(logits, labels, NULL));
}

/* What comes between and after reductions of one source. */
static void several_outs(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 7, 90), *e = quern_exp(x);
  quern_tensor *sum = quern_sum(e, QUERN_LIST(1), true), *squares = quern_sum(quern_square(e), QUERN_LIST(1), true);
  EXPECT_SAME(sum, squares, quern_div(e, sum), e, quern_sqrt(squares));
  quern_tensor *y = DATA(F32, 7, 90), *both = quern_add(x, y); /* stored before x is read again */
  EXPECT_SAME(both, quern_mul(x, quern_sum(both, QUERN_LIST(1), true)),
              quern_sub(y, quern_max(both, QUERN_LIST(1), true)));
  EXPECT_SAME(both, quern_mul(x, quern_sum(both, QUERN_LIST(0), true)));
  quern_tensor *down = quern_sum(e, QUERN_LIST(0), true), *top = quern_max(x, QUERN_LIST(0), true);
  EXPECT_SAME(down, quern_mul(quern_sub(x, top), down), e, quern_argmax(x, 0, true));
}

static void pools(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 2, 3, 12, 40);
  quern_pool_options options = {.size = sizeof options, .window = {2, 2}};
  EXPECT_SAME(quern_max_pool(x, &options), quern_avg_pool(x, &options));
  EXPECT_SAME(quern_adaptive_avg_pool(x, QUERN_LIST(1, 1)));
  quern_pool_options padded = {
      .size = sizeof padded, .window = {3, 3}, .stride = {2, 1}, .pad_lo = {1, 1}, .pad_hi = {1, 1}};
  EXPECT_SAME(quern_max_pool(x, &padded), quern_avg_pool(x, &padded));
}

static void moved_sources(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 20, 37), *index = DATA(I32, 9);
  EXPECT_SAME(quern_sum(quern_pad(x, QUERN_LIST(1, 1), (int64_t[]){0, 2}, 3), QUERN_LIST(1), false));
  EXPECT_SAME(quern_sum(quern_gather(x, quern_abs(index), 0), QUERN_LIST(1), false));
  EXPECT_SAME(quern_sum(quern_concat(2, (quern_tensor *[]){x, quern_exp(x)}, 1), QUERN_LIST(1), false));
  EXPECT_SAME(quern_sum(quern_mul(quern_transpose(x, 0, 1), DATA(F32, 37, 20)), QUERN_LIST(1), false));
  EXPECT_SAME(quern_sum(quern_reshape(x, QUERN_LIST(37, 20)), QUERN_LIST(1), false));
}

/* ---- schedules ------------------------------------------------------------------------------------------------ */

static struct pass_groups groups;

static struct kern *kernel_for(quern_tensor *root, const struct run_way *way) {
  struct pass_options options = {0};
  struct base_target target = run_target(way);
  struct sched sched;
  struct kern *kern = NULL;
  struct pass_graph graph = {.ctx = ctx, .n_roots = 1, .roots = &root};
  EXPECT_OK(ir_inline_composites(ctx, 1, &root, &root));
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  options.target = &target;
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  assert_int_equal(groups.groups.n, 1);
  sched_choose(&sched, groups.groups.at[0], &target, 1);
  EXPECT_OK(sched_lower(&kern, &ctx->heap, ctx, groups.groups.at[0], &target, &sched));
  return kern;
}

static struct kern *kernel_of(quern_tensor *root, int threads) {
  return kernel_for(root, &(struct run_way){.fuse = true, .optimize = 1, .vector_bytes = 64, .threads = threads});
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

/* Softmax: three loops in loops of rows, two rows at a time; the exponentials kept between the last two, no gather. */
static void softmax_keeps_exponentials(void **state) {
  (void)state;
  struct kern *kern = kernel_of(quern_softmax(DATA(F32, 64, 1024), 1), 1);
  assert_int_equal(count(kern, KERN_LOCAL), 5);
  assert_int_equal(count(kern, KERN_FOR), 7);
  assert_int_equal(count(kern, KERN_GATHER), 0);
  assert_int_equal(kern->mems[1].alias, 0);
  assert_int_equal(kern_scratch_bytes(kern), 2 * 4096 + 4 * 64);
  assert_true(kern->cost.bytes == 2 * 64 * 1024 * 4);
  drop(kern);
}

/* A row's out must not lie in what other rows read, though the places look alike. */
static void rows_read_all(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 40), *y = quern_broadcast_to(x, QUERN_LIST(40, 40));
  EXPECT_SAME(quern_sum(y, QUERN_LIST(1), false), quern_max(y, QUERN_LIST(1), false));
  struct kern *kern = kernel_of(quern_sum(y, QUERN_LIST(1), false), 1);
  assert_int_equal(kern->mems[1].alias, -1);
  drop(kern);
  kern = kernel_of(quern_mul(x, quern_sum(DATA(F32, 40, 70), QUERN_LIST(1), false)), 1);
  assert_int_equal(kern->mems[2].alias, groups.groups.at[0]->ins[0] == x ? 0 : 1);
  drop(kern);
}

/* Columns are read along memory, whatever is summed. */
static void columns_without_gathers(void **state) {
  (void)state;
  struct kern *kern = kernel_of(quern_sum(DATA(F32, 300, 640), QUERN_LIST(0), false), 1);
  assert_int_equal(count(kern, KERN_GATHER), 0);
  assert_int_equal(kern->n_phases, 1);
  drop(kern);
}

static void long_rows_are_split(void **state) {
  (void)state;
  quern_tensor *x = DATA(F32, 100000);
  struct kern *kern = kernel_of(quern_sum(x, QUERN_ALL, false), 2);
  assert_int_equal(kern->n_phases, 2);
  assert_int_equal(kern->phases[0].tasks.mul, 7);
  drop(kern);
  kern = kernel_of(quern_sum(x, QUERN_ALL, false), 1);
  assert_int_equal(kern->n_phases, 1);
  drop(kern);
}

/* Passes over a few rows at a time; what rows know is kept between them. */
static void rows_in_blocks(void **state) {
  (void)state;
  for (int64_t rows = 7; rows < 40; rows += 5) {
    quern_tensor *x = run_data(QUERN_DTYPE_F32, 2, (int64_t[]){rows, 70}, 3);
    quern_tensor *y = quern_softmax(x, 1), *z = quern_layer_norm(x, 1, NULL, NULL, 1e-5);
    EXPECT_SAME(y, quern_max(x, QUERN_LIST(1), false), quern_sum(quern_mul(y, x), QUERN_LIST(1), false));
    EXPECT_SAME(z, quern_sub(z, quern_max(quern_abs(z), QUERN_LIST(1), true)), quern_argmax(z, 1, false));
  }
  EXPECT_SAME(quern_softmax(DATA(F64, 16, 33), 1), quern_log_softmax(DATA(BF16, 24, 100), 1));
}

/* The greatest absolute value, which is found as an integer. */
static void greatest_absolute(void **state) {
  (void)state;
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
    if (!base_dtype_is((quern_dtype)d, BASE_FLOAT)) continue;
    quern_tensor *x = run_data((quern_dtype)d, 2, (int64_t[]){20, 37}, 5), *hole = quern_log(x);
    EXPECT_SAME(quern_max(quern_abs(x), QUERN_LIST(1), false), quern_max(quern_abs(x), QUERN_LIST(0), false));
    EXPECT_SAME(quern_max(quern_abs(hole), QUERN_LIST(1), false), quern_max(quern_abs(hole), QUERN_ALL, false));
  }
  EXPECT_SAME(quern_max(quern_abs(DATA(F32, 3, 0)), QUERN_LIST(1), false));
}

/* Sums over the rows of what is computed along them. */
static void crosses(void **state) {
  (void)state;
  static const int64_t shapes[][2] = {{256, 16}, {257, 17},  {300, 70},  {320, 64},
                                      {384, 5},  {16384, 2}, {16448, 3}, {33000, 2}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    quern_tensor *x = run_data(QUERN_DTYPE_F32, 2, shapes[i], 7), *y = quern_softmax(x, 1);
    EXPECT_SAME(y, quern_sum(quern_mul(y, x), QUERN_LIST(0), false), quern_max(y, QUERN_LIST(0), false));
  }
  for (int d = 0; d < QUERN_DTYPE_COUNT; d++) {
    if (!base_dtype_is((quern_dtype)d, BASE_FLOAT)) continue;
    quern_tensor *x = run_data((quern_dtype)d, 3, (int64_t[]){4, 70, 20}, 8),
                 *y = quern_layer_norm(x, 1, NULL, NULL, 1e-5);
    EXPECT_SAME(quern_sum(quern_mul(x, y), QUERN_LIST(0, 1), false), y);
  }
  quern_tensor *x = DATA(F32, 300, 40), *w = DATA(F32, 40), *b = DATA(F32, 40), *dy = DATA(F32, 300, 40), *d[3];
  quern_tensor *y = quern_layer_norm(x, 1, w, b, 1e-5), *wanted[] = {x, w, b};
  EXPECT_OK(quern_vjp(1, &y, &dy, 3, wanted, d));
  EXPECT_SAME(d[0], d[1], d[2]);
  EXPECT_SAME(quern_sum(quern_softmax(DATA(F64, 16640, 3), 1), QUERN_LIST(0), false));
}

static quern_tensor *norm_gradient(int64_t rows, int64_t columns, int which) {
  quern_tensor *x = run_data(QUERN_DTYPE_F32, 2, (int64_t[]){rows, columns}, 1), *w = DATA(F32, columns);
  quern_tensor *dy = run_data(QUERN_DTYPE_F32, 2, (int64_t[]){rows, columns}, 2), *d[2];
  quern_tensor *y = quern_layer_norm(x, 1, w, NULL, 1e-5), *wanted[] = {x, w};
  EXPECT_OK(quern_vjp(1, &y, &dy, 2, wanted, d));
  return d[which];
}

/* LayerNorm takes three passes, and its gradient as well: the mean of dy weight waits for the second, which reads dy for
** another sum; the first reads x only. */
static void stages_wait(void **state) {
  (void)state;
  struct kern *kern = kernel_of(quern_layer_norm(DATA(F32, 64, 1024), 1, NULL, NULL, 1e-5), 1);
  assert_int_equal(count(kern, KERN_FOR), 1 + 3 * 2);
  drop(kern);
  kern = kernel_of(norm_gradient(64, 1024, 0), 1);
  assert_int_equal(count(kern, KERN_FOR), 1 + 3 * 2);
  const struct kern_fn *fn = kern->fns.at[0];
  int loads = 0, loops = 0;
  for (size_t i = 0; i < fn->insts.n && loops < 4; i++) { /* up to the end of the first pass */
    loops += fn->insts.at[i].op == KERN_FOR;
    loads += loops < 4 && fn->insts.at[i].op == KERN_LOAD && fn->insts.at[i].lanes > 1;
  }
  assert_int_equal(loads, 4); /* a block of x */
  drop(kern);
}

/* The rows of a block take turns in the last pass: accumulators are loaded and stored once for two rows. */
static void rows_share_accumulators(void **state) {
  (void)state;
  static const int64_t rows[] = {128, 192, 256, 320, 1024}; /* 2 to 16 rows an accumulator, not always even */
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_tensor *x = run_data(QUERN_DTYPE_F32, 2, (int64_t[]){rows[i], 37}, 3), *y = quern_softmax(x, 1);
    EXPECT_SAME(y, quern_sum(quern_mul(y, x), QUERN_LIST(0), false), quern_max(x, QUERN_LIST(1), false));
    EXPECT_SAME(norm_gradient(rows[i], 50, 0), norm_gradient(rows[i], 50, 1));
  }
}

/* Rows from beyond the caches are asked for ahead, and what is stored goes past them. */
static void rows_from_memory(void **state) {
  (void)state;
  for (int far = 0; far < 2; far++) {
    struct run_way way = {.fuse = true, .optimize = 1, .vector_bytes = 64, .threads = 1, .far = far};
    struct kern *kern = kernel_for(quern_softmax(DATA(F32, 64, 1024), 1), &way);
    assert_int_equal(count(kern, KERN_PREFETCH) > 0, far);
    assert_int_equal(kern->mems[1].streaming, far);
    drop(kern);
  }
}

/* ---- lack of memory ------------------------------------------------------------------------------------------- */

static quern_tensor *make_softmax(void) { return quern_softmax(DATA(F32, 4, 70), 1); }
static quern_tensor *make_columns(void) { return quern_softmax(DATA(F32, 70, 40), 0); }
static quern_tensor *make_cross(void) { return quern_sum(quern_softmax(DATA(F32, 256, 20), 1), QUERN_LIST(0), false); }
static quern_tensor *make_split(void) { return quern_argmax(DATA(F32, 40000), 0, false); }

static void faults(void **state) {
  (void)state;
  const struct run_way one = {.fuse = true, .optimize = 1, .vector_bytes = 64, .threads = 1};
  struct run_way two = one;
  two.threads = 2;
  run_faults(&one, make_softmax);
  run_faults(&one, make_columns);
  run_faults(&two, make_split);
  run_faults(&one, make_cross);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(rows_and_columns),
      TEST(axes),
      TEST(long_rows),
      TEST(rows_in_blocks),
      TEST(greatest_absolute),
      TEST(crosses),
      TEST(many_dtypes),
      TEST(mixed_dtypes),
      TEST(nan_and_ties),
      TEST(negative_zero),
      TEST(nothing),
      TEST(order),
      TEST(softmax),
      TEST(norms),
      TEST(losses),
      TEST(several_outs),
      TEST(pools),
      TEST(moved_sources),
      TEST(softmax_keeps_exponentials),
      TEST(rows_read_all),
      TEST(columns_without_gathers),
      TEST(long_rows_are_split),
      TEST(stages_wait),
      TEST(rows_share_accumulators),
      TEST(rows_from_memory),
      TEST(faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
