/* tests/sched/test_gpu_dot.c -- contractions of GPUs in tiles: as the scalar loops, and the order of sums
** Sums of up to 512 terms are one chain either way, and have the same bits.
*/
#include <math.h>

#include "quern/tensor.h"
#include "sched/dot_group.h"

#define ATTRS(...) (&(struct ir_attrs){__VA_ARGS__})
#define INPUT(dtype_, ...)                                                                                             \
  ir_make(ctx, IR_INPUT, 0, NULL, ATTRS(.name = "x", .dtype = (dtype_), .shape = IR_INTS(__VA_ARGS__)))
#define F32 QUERN_DTYPE_F32

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

static int64_t terms_of(const struct ir_node *dot) {
  int64_t terms = 1;
  for (int i = 0; i < dot->attrs->a_sum.n; i++) terms *= dot->src[0]->dims[dot->attrs->a_sum.at[i]];
  return terms;
}

/* Floats within a few roundings of sums of numbers below 1; everything else exactly. */
static void expect_close(const quern_tensor *t, const void *got, const void *want, int64_t terms, const char *what) {
  double eps = base_dtype_is(t->dtype, BASE_FLOAT) ? ldexp(1, -base_dtypes[t->dtype].mantissa) : 0;
  for (size_t i = 0; i < (size_t)ir_count(t); i++) {
    double x = base_load_float(t->dtype, got, i), y = base_load_float(t->dtype, want, i);
    double bound = 2 * eps * fabs(y) + 6e-8 * (double)(terms + 8) * (1 + 0.05 * fabs(y));
    if (!(fabs(x - y) <= bound) && x != y && !(isnan(x) && isnan(y)))
      fail_msg("%s: element %zu is %.9g, not %.9g (bound %g)", what, i, x, y, bound);
  }
}

/* Runs a schedule; the memory is the caller's. */
static struct kern *run(const struct pass_group *group, int mr, int nr, struct group_memory *m) {
  struct sched sched;
  sched_choose(&sched, group, &target, 1);
  sched.mr = mr;
  sched.nr = nr;
  struct kern *kern = group_kernel(group, &target, &sched);
  group_memory_init(m, kern, group);
  group_run(kern, m);
  return kern;
}

/* Tiles of either size and scalar loops. */
static void check_group(const struct pass_group *group, const char *what) {
  static const int sizes[] = {4, 8};
  struct group_memory plain, tiled;
  int64_t terms = terms_of(group->stages[0].node);
  bool whole = !base_dtype_is(group->stages[0].node->out[0].dtype, BASE_FLOAT);
  kern_free(run(group, 0, 0, &plain));
  for (size_t s = 0; s < BASE_COUNT(sizes); s++) {
    struct kern *kern = run(group, 8, sizes[s], &tiled);
    assert_int_equal(kern->phases[0].block_threads, 256);
    for (size_t i = 0; i < group->n_outs; i++) {
      const quern_tensor *t = group->outs[i].tensor;
      const void *got = tiled.at[group->n_ins + i], *want = plain.at[group->n_ins + i];
      if (terms > KERN_DOT_BLOCK && !whole)
        expect_close(t, got, want, terms, what);
      else if (memcmp(got, want, ir_bytes(t)) != 0)
        fail_msg("%s: out %zu in tiles of %d differs from the scalar loops", what, i, 16 * sizes[s]);
    }
    group_memory_fini(&tiled);
    kern_free(kern);
  }
  group_memory_fini(&plain);
}

#include "dot_build.h"

/* ---- tests ------------------------------------------------------------------------------------------------ */

static const char *const ways[] = {"nn", "nt", "tn", "tt"};

/* Around tiles, stages, runs and pairs of stages. */
static void test_sizes(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 2, 3, 4, 7, 8, 9, 16, 17, 24, 31, 32, 33, 63, 64, 65, 100, 128, 130};
  uint32_t s = 1;
  for (int i = 0; i < 80; i++) {
    int64_t dims[3];
    for (int d = 0; d < 3; d++) {
      s = s * 1664525 + 1013904223;
      dims[d] = sizes[(s >> 16) % BASE_COUNT(sizes)];
    }
    struct product p = {1 + i % 7 / 6 * 2, dims[0], dims[1], dims[2], ways[i % 4], F32, IR_SUM, IR_COMBINE_MUL};
    CHECK(name_of(&p), product(&p));
    test_renew();
  }
}

static void test_empty(void **state) {
  (void)state;
  static const int64_t shapes[][4] = {{0, 3, 4, 5}, {2, 0, 4, 5}, {2, 3, 4, 0}, {1, 3, 0, 5}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    const int64_t *s = shapes[i];
    struct product p = {s[0], s[1], s[2], s[3], "nn", F32, IR_SUM, IR_COMBINE_MUL};
    quern_tensor *y = product(&p);
    struct dot_group g;
    struct group_memory m;
    group_init(&g, 1, &y);
    kern_free(run(&g.group, 8, 0, &m));
    for (size_t b = 0; b < m.bytes[2]; b++) assert_int_equal(((const unsigned char *)m.at[2])[b], 0);
    group_memory_fini(&m);
    group_fini(&g);
  }
}

static void test_dtypes(void **state) {
  (void)state;
  check_dtypes(BASE_COUNT(ways), ways, 64, 32, 132);
}

static void test_semirings(void **state) {
  (void)state;
  static const int64_t terms[] = {37};
  check_semirings(BASE_COUNT(terms), terms);
}

/* Few sums of many terms, with an odd end or none. */
static void test_parts(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {{1, 2101, 1}, {3, 1601, 70}, {65, 1056, 5}, {2, 2048, 4}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (size_t w = i % 2; w < BASE_COUNT(ways); w += 2) {
      struct product p = {1, shapes[i][0], shapes[i][1], shapes[i][2], ways[w], F32, IR_SUM, IR_COMBINE_MUL};
      quern_tensor *y = product(&p);
      CHECK("parts, biased", op1(IR_TANH, op2(IR_ADD, y, along(INPUT(F32, p.n), y))));
      CHECK("parts, turned", cast(IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 2, 1)), y), QUERN_DTYPE_BF16), y);
      p.dtype = QUERN_DTYPE_I32;
      CHECK(name_of(&p), product(&p));
      test_renew();
    }
  }
}

/* One chain a part, parts from the first to the last; the same for both sizes of tiles. */
static void test_order(void **state) {
  (void)state;
  enum { M = 3, K = 2611, N = 5, PARTS = 5, PART = 544 }; /* K / 512 parts, of terms that are a multiple of 32 */
  struct product p = {1, M, K, N, "nn", F32, IR_SUM, IR_COMBINE_MUL};
  quern_tensor *y = product(&p);
  struct dot_group g;
  struct group_memory m;
  group_init(&g, 1, &y);
  for (int size = 4; size <= 8; size += 4) {
    kern_free(run(&g.group, 8, size, &m));
    const float *a = m.at[0], *b = m.at[1], *c = m.at[2];
    for (int i = 0; i < M; i++) {
      for (int j = 0; j < N; j++) {
        float total = 0;
        for (int part = 0; part < PARTS; part++) {
          float acc = -0.0f;
          for (int k = part * PART; k < K && k < (part + 1) * PART; k++) acc = fmaf(a[i * K + k], b[k * N + j], acc);
          total = part == 0 ? acc : total + acc;
        }
        assert_memory_equal(&total, &c[i * N + j], sizeof total);
      }
    }
    group_memory_fini(&m);
  }
  group_fini(&g);
}

static void test_before(void **state) {
  (void)state;
  for (size_t w = 0; w < BASE_COUNT(ways); w++) {
    struct product p = {1, 25, 133, 39, ways[w], F32, IR_SUM, IR_COMBINE_MUL};
    quern_tensor *a = left(&p, F32), *b = right(&p, F32);
    CHECK("scaled", dot(&p, op2(IR_MUL, a, along(INPUT(F32, a->dims[2]), a)), op1(IR_NEG, b)));
    CHECK("cast", dot(&p, cast(left(&p, QUERN_DTYPE_BF16), F32), cast(right(&p, QUERN_DTYPE_F16), F32)));
    quern_tensor *flipped = IR_MAKE(ctx, IR_FLIP, ATTRS(.axes = IR_INTS(2)), b);
    CHECK("flipped", dot(&p, IR_MAKE(ctx, IR_FLIP, ATTRS(.axes = IR_INTS(1)), a), flipped));
    test_renew();
  }
}

static void test_after(void **state) {
  (void)state;
  static const int64_t shapes[][4] = {{1, 25, 40, 70}, {2, 130, 30, 36}, {1, 2, 230, 129}, {1, 64, 3, 64}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    const int64_t *s = shapes[i];
    struct product p = {s[0], s[1], s[2], s[3], ways[i], F32, IR_SUM, IR_COMBINE_MUL};
    quern_tensor *y = product(&p), *biased = op2(IR_ADD, y, along(INPUT(F32, p.n), y));
    CHECK("both", y, op1(IR_ABS, biased));
    CHECK("residual", op2(IR_ADD, biased, INPUT(F32, p.b, p.m, p.n)));
    CHECK("wide", cast(biased, QUERN_DTYPE_F64));
    CHECK("turned", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 2, 1)), biased));
    CHECK("turned, narrow", cast(IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(2, 0, 1)), biased), QUERN_DTYPE_F16));
    CHECK("turned and not", biased, IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(2, 1, 0)), y));
    CHECK("flat", IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = IR_INTS(p.b * p.m * p.n)), y));
    test_renew();
  }
}

/* A vector as dim `axis` of a tensor. */
static quern_tensor *along_axis(int axis, const quern_tensor *like) {
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < like->rank; k++) dims[k] = k == axis ? like->dims[k] : 1;
  quern_tensor *x = IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = {like->rank, dims}), INPUT(F32, like->dims[axis]));
  return IR_MAKE(ctx, IR_BROADCAST, ATTRS(.shape = {like->rank, like->dims}), x);
}

#define RESHAPE(x, ...) IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = IR_INTS(__VA_ARGS__)), (x))

/* Dims split and merged behind the sums, of sizes that tiles divide and that they do not: what a tile holds must be found
** through the reshape, whichever way the points of the tile are numbered. */
static void test_reshaped(void **state) {
  (void)state;
  static const int64_t shapes[][4] = {{1, 128, 64, 128}, {2, 128, 16, 192}, {4, 32, 8, 64},
                                      {1, 96, 40, 90},   {2, 36, 33, 260},  {1, 6, 1601, 70}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    const int64_t *s = shapes[i];
    struct product p = {s[0], s[1], s[2], s[3], ways[i % 4], F32, IR_SUM, IR_COMBINE_MUL};
    quern_tensor *y = product(&p), *biased = op2(IR_ADD, y, along(INPUT(F32, p.n), y));
    quern_tensor *columns = RESHAPE(y, p.b, p.m, 2, p.n / 2), *rows = RESHAPE(biased, p.b, 2, p.m / 2, p.n);
    CHECK("columns split", columns);
    CHECK("columns split, biased", op2(IR_MUL, columns, along_axis(2, columns)));
    CHECK("rows split", rows);
    CHECK("heads", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 2, 1, 3)), columns));
    CHECK("rows merged", RESHAPE(op1(IR_ABS, biased), p.b * p.m, p.n));
    CHECK("split otherwise", RESHAPE(y, p.b, p.m / 2, 2 * p.n));
    CHECK("merged and not", RESHAPE(y, p.b * p.m, 2, p.n / 2), biased);
    quern_tensor *merged = RESHAPE(biased, p.b * p.m, p.n);
    CHECK("merged, normalized", op2(IR_MUL, merged, along_axis(1, merged)));
    test_renew();
  }
}

/* A convolution, then what networks put behind it: flattened, normalized by channel, its image split. */
static void test_convolution_reshaped(void **state) {
  (void)state;
  static const int64_t sizes[][3] = {{16, 16, 64}, {12, 20, 36}};
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) {
    int64_t h = sizes[i][0], w = sizes[i][1], c = sizes[i][2];
    quern_tensor *windows =
        IR_MAKE(ctx, IR_WINDOW,
                ATTRS(.axes = IR_INTS(2, 3), .size = IR_INTS(3, 3), .step = IR_INTS(1, 1), .dilate = IR_INTS(1, 1)),
                INPUT(F32, 2, 3, h + 2, w + 2));
    quern_tensor *y = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(1, 4, 5), .b_sum = IR_INTS(1, 2, 3)), windows,
                              INPUT(F32, c, 3, 3, 3));
    quern_tensor *image = IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 3, 1, 2)), y);
    CHECK("flattened", RESHAPE(image, 2, c * h * w));
    CHECK("pixels in a row", RESHAPE(op1(IR_ABS, image), 2, c, h * w));
    quern_tensor *groups = RESHAPE(image, 2, 4, c / 4, h * w);
    CHECK("groups of channels", op2(IR_MUL, groups, along_axis(1, groups)));
    quern_tensor *normalized = op2(IR_ADD, image, along_axis(1, image));
    CHECK("normalized, image split", RESHAPE(normalized, 2, c, h / 2, 2, w / 2, 2), image);
    CHECK("channels last, flat", RESHAPE(y, 2 * h * w, c));
    test_renew();
  }
}

/* Several axes of a kind; heads; windows. */
static void test_axes(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, 2, 3, 4, 5, 6), *b = INPUT(F32, 5, 7, 2, 8, 6);
  CHECK("axes",
        IR_MAKE(ctx, IR_DOT,
                ATTRS(.a_batch = IR_INTS(3), .b_batch = IR_INTS(0), .a_sum = IR_INTS(4, 0), .b_sum = IR_INTS(4, 2)), a,
                b));
  CHECK("outer", IR_MAKE(ctx, IR_DOT, ATTRS(0), INPUT(F32, 9), INPUT(F32, 4, 16)));
  CHECK("inner", IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(0, 1), .b_sum = IR_INTS(1, 0)), INPUT(F32, 9, 7),
                         INPUT(F32, 7, 9)));
  quern_tensor *p = INPUT(F32, 2, 3, 20, 20), *q = INPUT(F32, 2, 20, 3, 16);
  quern_tensor *mixed = IR_MAKE(
      ctx, IR_DOT, ATTRS(.a_batch = IR_INTS(0, 1), .b_batch = IR_INTS(0, 2), .a_sum = IR_INTS(3), .b_sum = IR_INTS(1)),
      p, q);
  CHECK("heads", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 2, 1, 3)), mixed));
  quern_tensor *x = INPUT(F32, 2, 5, 11, 9), *w = INPUT(F32, 20, 5, 3, 3);
  quern_tensor *padded =
      IR_MAKE(ctx, IR_PAD, ATTRS(.lo = IR_INTS(0, 0, 1, 1), .hi = IR_INTS(0, 0, 1, 1), .mid = IR_INTS(0, 0, 0, 0)),
              op1(IR_NEG, x), ir_const(ctx, F32, 0.25));
  quern_tensor *windows = IR_MAKE(
      ctx, IR_WINDOW,
      ATTRS(.axes = IR_INTS(2, 3), .size = IR_INTS(3, 3), .step = IR_INTS(1, 1), .dilate = IR_INTS(1, 1)), padded);
  quern_tensor *y = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(1, 4, 5), .b_sum = IR_INTS(1, 2, 3)), windows, w);
  CHECK("convolution", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 3, 1, 2)), y));
  CHECK("channels last", y);
  quern_tensor *dy = INPUT(F32, 2, 20, 11, 9);
  CHECK("gradient of the weight",
        IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(0, 2, 3), .b_sum = IR_INTS(0, 2, 3)), dy, windows));
}

/* Small contractions are not worth a tile, nor are many of few rows and columns. */
static void test_choice(void **state) {
  (void)state;
  static const struct {
    int64_t batch, m, k, n;
    bool tiled;
  } rows[] = {{1, 64, 64, 64, false},   {1, 128, 128, 128, true}, {1, 1, 2048, 1024, true}, {1, 2048, 4, 2048, false},
              {30000, 1, 40, 1, false}, {300, 4, 1000, 4, false}, {300, 4, 1000, 40, true}, {1, 1, 1 << 20, 1, true}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    struct product p = {rows[i].batch, rows[i].m, rows[i].k, rows[i].n, "nn", F32, IR_SUM, IR_COMBINE_MUL};
    quern_tensor *y = product(&p);
    struct dot_group g;
    struct sched sched;
    group_init(&g, 1, &y);
    sched_choose(&sched, &g.group, &target, 1);
    assert_int_equal(sched.mr > 0, rows[i].tiled);
    sched_choose(&sched, &g.group, &target, 0);
    assert_int_equal(sched.mr, 0);
    group_fini(&g);
  }
}

static void test_faults(void **state) {
  (void)state;
  struct product p = {1, 70, 1100, 3, "nt", F32, IR_SUM, IR_COMBINE_MUL};
  quern_tensor *x = product(&p), *y = op2(IR_ADD, x, along(INPUT(F32, p.n), x));
  struct dot_group g;
  group_init(&g, 1, &y);
  for (int mr = 4; mr <= 8; mr += 4) {
    struct sched sched = {.lanes = 1, .unroll = 1, .grain = 1, .mr = mr, .nr = mr};
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
  }
  group_fini(&g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_sizes), TEST(test_empty),  TEST(test_dtypes), TEST(test_semirings), TEST(test_parts),
      TEST(test_order), TEST(test_before), TEST(test_after),  TEST(test_reshaped),  TEST(test_convolution_reshaped),
      TEST(test_axes),  TEST(test_choice), TEST(test_faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
