/* tests/sched/test_dot.c -- contractions: every schedule gives the bits of the scalar loops, and those are what ir_eval says */
#include <math.h>

#include "quern/tensor.h"
#include "sched/dot_group.h"

#define ATTRS(...) (&(struct ir_attrs){__VA_ARGS__})
#define INPUT(dtype_, ...)                                                                                             \
  ir_make(ctx, IR_INPUT, 0, NULL, ATTRS(.name = "x", .dtype = (dtype_), .shape = IR_INTS(__VA_ARGS__)))
#define F32 QUERN_DTYPE_F32

/* Targets whose tiles differ; few threads and many. */
static const struct base_target targets[] = {
    {.name = "avx512",
     .vector_bytes = 64,
     .registers = 32,
     .fma = true,
     .vnni = true,
     .l1_bytes = 32768,
     .l2_bytes = 1 << 20,
     .l3_bytes = 1 << 25,
     .threads = 1},
    {.name = "avx2",
     .vector_bytes = 32,
     .registers = 16,
     .fma = true,
     .l1_bytes = 32768,
     .l2_bytes = 1 << 18,
     .l3_bytes = 1 << 23,
     .threads = 16},
    {.name = "neon",
     .vector_bytes = 16,
     .registers = 32,
     .fma = true,
     .l1_bytes = 32768,
     .l2_bytes = 1 << 16,
     .l3_bytes = 1 << 22,
     .threads = 3},
};

/* ---- comparing -------------------------------------------------------------------------------------------- */

/* What the oracle gives for the group's outs. */
static void evaluate(const struct pass_group *group, const struct group_memory *m, void **dst) {
  struct ir_binding bindings[GROUP_MOST];
  quern_tensor *roots[GROUP_MOST];
  for (size_t i = 0; i < group->n_ins; i++) bindings[i] = (struct ir_binding){group->ins[i], m->at[i]};
  for (size_t i = 0; i < group->n_outs; i++) {
    roots[i] = group->outs[i].tensor;
    dst[i] = base_alloc(&ctx->heap, ir_bytes(roots[i]));
    assert_non_null(dst[i]);
  }
  EXPECT_OK(ir_eval(ctx, group->n_outs, roots, dst, group->n_ins, bindings));
}

/* Floats within a few roundings of sums of `terms` products of numbers below 1; everything else exactly. */
static void expect_close(const quern_tensor *t, const void *got, const void *want, int64_t terms, bool f64,
                         const char *what) {
  if (!base_dtype_is(t->dtype, BASE_FLOAT)) {
    for (size_t i = 0; i < (size_t)ir_count(t); i++)
      if (base_load_int(t->dtype, got, i) != base_load_int(t->dtype, want, i))
        fail_msg("%s: element %zu is %lld, not %lld", what, i, (long long)base_load_int(t->dtype, got, i),
                 (long long)base_load_int(t->dtype, want, i));
    return;
  }
  double eps = ldexp(1, -base_dtypes[t->dtype].mantissa), sum = f64 ? 1e-16 : 6e-8;
  for (size_t i = 0; i < (size_t)ir_count(t); i++) {
    double x = base_load_float(t->dtype, got, i), y = base_load_float(t->dtype, want, i);
    double bound = 2 * eps * fabs(y) + sum * (double)(terms + 8) * (1 + 0.05 * fabs(y)) +
                   ldexp(1, t->dtype == QUERN_DTYPE_F16 ? -24 : -40);
    if (!(fabs(x - y) <= bound) && !(isnan(x) && isnan(y)) && x != y)
      fail_msg("%s: element %zu is %.9g, not %.9g (bound %g)", what, i, x, y, bound);
  }
}

/* Runs the group's kernels for all targets; all outs have the bits of the scalar loops, which are close to the oracle. */
static void check_group(const struct pass_group *group, const char *what) {
  struct group_memory plain, fast;
  struct sched sched;
  void *want[GROUP_MOST];
  size_t n = group->n_outs;
  const struct ir_node *dot = group->stages[0].node;
  int64_t terms = 1;
  for (int i = 0; i < dot->attrs->a_sum.n; i++) terms *= dot->src[0]->dims[dot->attrs->a_sum.at[i]];
  sched_choose(&sched, group, &targets[0], 0);
  assert_int_equal(sched.lanes, 1);
  struct kern *kern = group_kernel(group, &targets[0], &sched);
  group_memory_init(&plain, kern, group);
  group_run(kern, &plain);
  kern_free(kern);
  evaluate(group, &plain, want);
  for (size_t i = 0; i < n; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    expect_close(t, plain.at[group->n_ins + i], want[i], terms, dot->out[0].dtype == QUERN_DTYPE_F64, what);
    base_free(&ctx->heap, want[i], ir_bytes(t));
  }
  const struct ways ways = ways_from(0, BASE_COUNT(targets));
  for (size_t t = ways.at; t < ways.end; t++) {
    sched_choose(&sched, group, &targets[t], 1);
    kern = group_kernel(group, &targets[t], &sched);
    group_memory_init(&fast, kern, group);
    group_run(kern, &fast);
    for (size_t i = group->n_ins; i < group->n_ins + n; i++)
      if (memcmp(plain.at[i], fast.at[i], plain.bytes[i]) != 0)
        fail_msg("%s: out %zu on %s differs from the scalar loops", what, i - group->n_ins, targets[t].name);
    group_memory_fini(&fast);
    kern_free(kern);
  }
  group_memory_fini(&plain);
}

#include "dot_build.h"

static quern_tensor *zeros_like(const quern_tensor *t) {
  quern_tensor *zero = IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = IR_INTS(1, 1, 1)), ir_const(ctx, t->dtype, 0));
  return IR_MAKE(ctx, IR_BROADCAST, ATTRS(.shape = {t->rank, t->dims}), zero);
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

static void test_sizes(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 2, 5, 6, 7, 13, 16, 17, 31, 33, 64, 65, 70};
  uint32_t s = 1;
  for (int i = 0; i < 160; i++) {
    int64_t dims[3];
    for (int d = 0; d < 3; d++) {
      s = s * 1664525 + 1013904223;
      dims[d] = sizes[(s >> 16) % BASE_COUNT(sizes)];
    }
    static const char *const ways[] = {"nn", "nt", "tn", "tt"};
    struct product p = {1 + i % 7 / 6 * 2, dims[0], dims[1], dims[2], ways[i % 4], F32, IR_SUM, IR_COMBINE_MUL};
    CHECK(name_of(&p), product(&p));
    test_renew();
  }
}

/* Around the block of the order of sums: 512 terms. */
static void test_blocks(void **state) {
  (void)state;
  static const int64_t terms[] = {0, 1, 3, 511, 512, 513, 1025};
  static const char *const ways[] = {"nn", "nt", "tn"};
  for (size_t i = 0; i < BASE_COUNT(terms); i++) {
    for (size_t w = 0; w < BASE_COUNT(ways); w++) {
      struct product p = {1, 7, terms[i], 19, ways[w], F32, IR_SUM, IR_COMBINE_MUL};
      CHECK(name_of(&p), product(&p));
      test_renew();
    }
  }
}

/* The scalar loops themselves, against the order as kern.h says it. */
static void test_order(void **state) {
  (void)state;
  enum { M = 2, K = 1300, N = 3 };
  struct product p = {1, M, K, N, "nn", F32, IR_SUM, IR_COMBINE_MUL};
  quern_tensor *y = product(&p);
  struct dot_group g;
  struct group_memory m;
  struct sched sched;
  group_init(&g, 1, &y);
  sched_choose(&sched, &g.group, &targets[0], 0);
  struct kern *kern = group_kernel(&g.group, &targets[0], &sched);
  group_memory_init(&m, kern, &g.group);
  group_run(kern, &m);
  const float *a = m.at[0], *b = m.at[1], *c = m.at[2];
  for (int i = 0; i < M; i++) {
    for (int j = 0; j < N; j++) {
      float total = 0;
      for (int pc = 0; pc < K; pc += KERN_DOT_BLOCK) {
        float acc = 0;
        for (int k = pc; k < K && k < pc + KERN_DOT_BLOCK; k++) acc = fmaf(a[i * K + k], b[k * N + j], acc);
        total = pc == 0 ? acc : total + acc;
      }
      assert_memory_equal(&total, &c[i * N + j], sizeof total);
    }
  }
  group_memory_fini(&m);
  kern_free(kern);
  group_fini(&g);
}

static void test_dtypes(void **state) {
  (void)state;
  static const char *const ways[] = {"nn", "nt", "tn"};
  check_dtypes(BASE_COUNT(ways), ways, 3, 600, 70);
}

static void test_semirings(void **state) {
  (void)state;
  static const int64_t terms[] = {5, 0, 515};
  check_semirings(BASE_COUNT(terms), terms);
}

/* Shapes without elements. */
static void test_empty(void **state) {
  (void)state;
  static const int64_t shapes[][4] = {{0, 3, 4, 5}, {2, 0, 4, 5}, {2, 3, 4, 0}, {1, 0, 0, 0}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    const int64_t *s = shapes[i];
    struct product p = {s[0], s[1], s[2], s[3], "nn", F32, IR_SUM, IR_COMBINE_MUL};
    CHECK(name_of(&p), product(&p));
  }
}

/* Matrices by vectors, vectors by matrices, vectors by vectors; long ones. */
static void test_thin(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {{1, 40, 1},    {1, 700, 130},  {130, 700, 1}, {1, 9000, 1}, {2, 17, 200},
                                      {8, 530, 50},  {300, 33, 2},   {16, 64, 64},  {1, 1, 1},    {1, 1, 65},
                                      {65, 1, 1},    {12, 1030, 33}, {1, 8192, 3},  {4, 16, 400}, {1, 70, 1000},
                                      {3, 1537, 65}, {7, 513, 301},  {8, 40, 2050}};
  static const char *const ways[] = {"nn", "nt", "tn", "tt"};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (size_t w = 0; w < BASE_COUNT(ways); w++) {
      struct product p = {1, shapes[i][0], shapes[i][1], shapes[i][2], ways[w], F32, IR_SUM, IR_COMBINE_MUL};
      CHECK(name_of(&p), product(&p));
      test_renew();
    }
  }
}

/* Several axes of a kind, in any order. */
static void test_axes(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, 2, 3, 4, 5, 6), *b = INPUT(F32, 5, 7, 2, 8, 6);
  CHECK("axes",
        IR_MAKE(ctx, IR_DOT,
                ATTRS(.a_batch = IR_INTS(3), .b_batch = IR_INTS(0), .a_sum = IR_INTS(4, 0), .b_sum = IR_INTS(4, 2)), a,
                b));
  CHECK("axes",
        IR_MAKE(ctx, IR_DOT,
                ATTRS(.a_batch = IR_INTS(0, 3), .b_batch = IR_INTS(2, 0), .a_sum = IR_INTS(4), .b_sum = IR_INTS(4)), a,
                b));
  CHECK("outer", IR_MAKE(ctx, IR_DOT, ATTRS(0), INPUT(F32, 9), INPUT(F32, 4, 16)));
  CHECK("inner", IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(0, 1), .b_sum = IR_INTS(1, 0)), INPUT(F32, 9, 7),
                         INPUT(F32, 7, 9)));
}

/* Heads of attention: (b, s, h, d) operands read through permutations, outs written through them. */
static void test_heads(void **state) {
  (void)state;
  enum { B = 2, S = 20, H = 3, D = 16 };
  quern_tensor *q = INPUT(F32, B, S, H, D), *k = INPUT(F32, B, S, H, D);
  quern_tensor *scores = IR_MAKE(
      ctx, IR_DOT, ATTRS(.a_batch = IR_INTS(0, 2), .b_batch = IR_INTS(0, 2), .a_sum = IR_INTS(3), .b_sum = IR_INTS(3)),
      q, k);
  CHECK("scores", scores);
  quern_tensor *p = INPUT(F32, B, H, S, S);
  quern_tensor *mixed = IR_MAKE(
      ctx, IR_DOT, ATTRS(.a_batch = IR_INTS(0, 1), .b_batch = IR_INTS(0, 2), .a_sum = IR_INTS(3), .b_sum = IR_INTS(1)),
      p, q);
  CHECK("mixed", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 2, 1, 3)), mixed));
  quern_tensor *x = INPUT(F32, B, S, 24), *w = INPUT(F32, 24, H, D);
  quern_tensor *heads = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(2), .b_sum = IR_INTS(0)), x, w);
  CHECK("projected", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 2, 1, 3)), heads));
  quern_tensor *odd = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(2), .b_sum = IR_INTS(0)), x, INPUT(F32, 24, H, 13));
  CHECK("odd heads", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(2, 0, 1, 3)), odd));
}

static void test_before(void **state) {
  (void)state;
  static const char *const ways[] = {"nn", "nt", "tn", "tt"};
  for (size_t w = 0; w < BASE_COUNT(ways); w++) {
    for (int64_t m = 3; m <= 25; m += 22) {
      struct product p = {1, m, 533, 39, ways[w], F32, IR_SUM, IR_COMBINE_MUL};
      quern_tensor *a = left(&p, F32), *b = right(&p, F32);
      CHECK("scaled", dot(&p, op2(IR_MUL, a, along(INPUT(F32, a->dims[2]), a)), op1(IR_NEG, b)));
      CHECK("cast", dot(&p, cast(left(&p, QUERN_DTYPE_BF16), F32), cast(right(&p, QUERN_DTYPE_F16), F32)));
      quern_tensor *flipped = IR_MAKE(ctx, IR_FLIP, ATTRS(.axes = IR_INTS(2)), b);
      CHECK("flipped", dot(&p, IR_MAKE(ctx, IR_FLIP, ATTRS(.axes = IR_INTS(1)), a), flipped));
      test_renew();
    }
  }
}

/* Windows of a signal that is padded by one at both sides of its last two axes, with `mid` between the elements. */
static quern_tensor *windows_of(quern_tensor *x, int64_t size, int64_t step, int64_t mid) {
  quern_tensor *padded =
      IR_MAKE(ctx, IR_PAD, ATTRS(.lo = IR_INTS(0, 0, 1, 1), .hi = IR_INTS(0, 0, 1, 1), .mid = IR_INTS(0, 0, mid, mid)),
              x, ir_const(ctx, F32, 0.25));
  return IR_MAKE(
      ctx, IR_WINDOW,
      ATTRS(.axes = IR_INTS(2, 3), .size = IR_INTS(size, size), .step = IR_INTS(step, step), .dilate = IR_INTS(1, 1)),
      padded);
}

/* Convolutions: rows that are windows. */
static void test_windows(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {{11, 9, 1}, {6, 18, 1}, {9, 33, 2}, {5, 5, 1}, {16, 16, 1}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (int64_t images = 1; images <= 2; images++) {
      quern_tensor *x = INPUT(F32, images, 5, shapes[i][0], shapes[i][1]), *w = INPUT(F32, 20, 5, 3, 3);
      quern_tensor *windows = windows_of(x, 3, shapes[i][2], 0);
      quern_tensor *y = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(1, 4, 5), .b_sum = IR_INTS(1, 2, 3)), windows, w);
      CHECK("convolution", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 3, 1, 2)), y));
      CHECK("channels last", y);
      quern_tensor *after = windows_of(op1(IR_NEG, x), 3, shapes[i][2], 0);
      y = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(1, 2, 3), .b_sum = IR_INTS(1, 4, 5)), w, after);
      CHECK("after another op", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(1, 0, 2, 3)), y));
      quern_tensor *dy = INPUT(F32, images, 20, windows->dims[2], windows->dims[3]);
      CHECK("gradient of the weight",
            IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(0, 2, 3), .b_sum = IR_INTS(0, 2, 3)), dy, windows));
      quern_tensor *each =
          IR_MAKE(ctx, IR_DOT,
                  ATTRS(.a_batch = IR_INTS(1), .b_batch = IR_INTS(0), .a_sum = IR_INTS(4, 5), .b_sum = IR_INTS(1, 2)),
                  windows, INPUT(F32, 5, 3, 3));
      CHECK("each channel", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(1, 0, 2, 3)), each));
      quern_tensor *spread = windows_of(x, 3, 1, 1);
      CHECK("spread", IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(1, 4, 5), .b_sum = IR_INTS(1, 2, 3)), spread, w));
      test_renew();
    }
  }
}

/* The one contraction that the fusion pass makes of the roots, composites written out. */
static void check_fused(size_t n, quern_tensor *const *roots, const char *what) {
  struct pass_options options = {0};
  struct pass_groups groups;
  quern_tensor *plain[GROUP_MOST];
  for (size_t i = 0; i < n; i++)
    if (ir_is_poison(roots[i])) fail_msg("%s", ctx->message);
  EXPECT_OK(ir_inline_composites(ctx, n, roots, plain));
  EXPECT_OK(pass_options_parse(&options, 1, ""));
  struct pass_graph graph = {.ctx = ctx, .n_roots = n, .roots = plain};
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  int found = 0;
  for (size_t i = 0; i < groups.groups.n; i++) {
    if (groups.groups.at[i]->kind != PASS_KIND_DOT) continue;
    check_group(groups.groups.at[i], what);
    found++;
  }
  assert_int_equal(found, 1);
  assert_int_equal(groups.groups.n, 1);
  pass_groups_fini(&groups);
}

#define CHECK_FUSED(what, ...)                                                                                         \
  check_fused(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *), (quern_tensor *[]){__VA_ARGS__}, (what))

/* Contractions that are computed directly: windows of planes, few terms, or few sums along rows of the image. */
static void test_direct(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {{11, 9, 1}, {6, 18, 1}, {9, 33, 2}, {5, 5, 1}, {17, 16, 2}, {3, 40, 1}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (int64_t images = 1; images <= 3; images += 2) {
      int64_t mid = shapes[i][2] == 1 && images == 3;
      quern_tensor *x = INPUT(F32, images, 5, shapes[i][0], shapes[i][1]), *w = INPUT(F32, 5, 3, 3);
      quern_tensor *windows = windows_of(x, 3, shapes[i][2], mid);
      quern_tensor *turned = IR_MAKE(ctx, IR_FLIP, ATTRS(.axes = IR_INTS(4, 5)), windows);
      quern_tensor *y =
          IR_MAKE(ctx, IR_DOT,
                  ATTRS(.a_batch = IR_INTS(0), .b_batch = IR_INTS(1), .a_sum = IR_INTS(1, 2), .b_sum = IR_INTS(4, 5)),
                  w, turned);
      CHECK("each channel, flipped", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(1, 0, 2, 3)), y));
      quern_tensor *many = INPUT(F32, 3, 5, 3, 3);
      y = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(1, 2, 3), .b_sum = IR_INTS(1, 4, 5)), many, windows);
      CHECK("few rows", op1(IR_NEG, IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(1, 0, 2, 3)), y)));
      quern_tensor *dy = INPUT(F32, images, 5, windows->dims[2], windows->dims[3]);
      struct ir_attrs along = {
          .a_batch = IR_INTS(1, 3), .b_batch = IR_INTS(1, 3), .a_sum = IR_INTS(0, 2), .b_sum = IR_INTS(0, 2)};
      CHECK("along rows", IR_MAKE(ctx, IR_DOT, &along, dy, windows));
      along.a_batch = along.b_batch = IR_INTS(1, 0, 3), along.a_sum = along.b_sum = IR_INTS(2);
      CHECK("along rows, of each image", IR_MAKE(ctx, IR_DOT, &along, dy, turned));
      test_renew();
    }
  }
}

/* Weights whose terms are not contiguous, packed once for several images. */
static void test_packed_once(void **state) {
  (void)state;
  for (int64_t o = 7; o <= 71; o += 64) {
    quern_tensor *x = INPUT(F32, 3, 60, 12, 12), *w = INPUT(F32, 60, o, 3, 3), *windows = windows_of(x, 3, 1, 0);
    quern_tensor *y = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(0, 2, 3), .b_sum = IR_INTS(1, 4, 5)), w, windows);
    CHECK("weights", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(1, 0, 2, 3)), y));
    y = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(0), .b_sum = IR_INTS(1)), INPUT(F32, 60, o), x);
    CHECK("rows contiguous", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(1, 0, 2, 3)), y));
    test_renew();
  }
}

static void test_fused(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, 3, 20, 48), *w = INPUT(F32, 48, 70), *bias = INPUT(F32, 70);
  CHECK_FUSED("gelu", quern_gelu(quern_add(quern_matmul(x, w), bias)));
  CHECK_FUSED("scaled", quern_matmul(quern_mul(x, INPUT(F32, 48)), quern_neg(w)));
  quern_tensor *image = INPUT(F32, 2, 3, 9, 11), *weight = INPUT(F32, 8, 3, 3, 3);
  quern_conv_options options = {.size = sizeof options, .pad_lo = {1, 1}, .pad_hi = {1, 1}};
  CHECK_FUSED("convolution", quern_relu(quern_conv2d(image, weight, INPUT(F32, 8), &options)));
  quern_tensor *q = INPUT(F32, 2, 12, 4, 16), *k = INPUT(F32, 2, 12, 4, 16);
  static const int64_t heads[] = {0, 2, 1, 3};
  CHECK_FUSED("scores", quern_matmul(quern_permute(q, 4, heads), quern_transpose(quern_permute(k, 4, heads), 2, 3)));
}

static void test_after(void **state) {
  (void)state;
  static const int64_t shapes[][4] = {{1, 25, 40, 70}, {2, 13, 530, 37}, {1, 2, 1030, 129}, {1, 64, 3, 64}};
  static const char *const ways[] = {"nn", "nt", "tn", "tt"};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    const int64_t *s = shapes[i];
    struct product p = {s[0], s[1], s[2], s[3], ways[i], F32, IR_SUM, IR_COMBINE_MUL};
    quern_tensor *y = product(&p), *biased = op2(IR_ADD, y, along(INPUT(F32, p.n), y));
    CHECK("relu", op2(IR_MAX, biased, zeros_like(y)));
    CHECK("both", y, op2(IR_MAX, biased, zeros_like(y)));
    CHECK("both ways", op1(IR_TANH, biased), y);
    CHECK("residual", op2(IR_ADD, biased, INPUT(F32, p.b, p.m, p.n)));
    CHECK("narrow", cast(biased, QUERN_DTYPE_BF16));
    CHECK("wide", cast(biased, QUERN_DTYPE_F64));
    CHECK("turned", IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 2, 1)), biased));
    CHECK("turned, narrow", cast(IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(2, 0, 1)), biased), QUERN_DTYPE_F16));
    CHECK("flat", IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = IR_INTS(p.b * p.m * p.n)), y));
    p.dtype = QUERN_DTYPE_BF16;
    quern_tensor *narrow = product(&p);
    CHECK("bf16", op2(IR_ADD, narrow, along(INPUT(QUERN_DTYPE_BF16, p.n), narrow)));
    test_renew();
  }
}

/* Bytes, as i32: exact, whatever instruction sums them. */
static void test_bytes(void **state) {
  (void)state;
  static const int64_t shapes[][3] = {{7, 5, 33}, {1, 64, 16}, {20, 515, 70}, {64, 64, 64}, {6, 1030, 1}};
  static const char *const ways[] = {"nn", "nt", "tn", "tt"};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (size_t w = 0; w < BASE_COUNT(ways); w++) {
      struct product p = {1,       shapes[i][0],    shapes[i][1], shapes[i][2],
                          ways[w], QUERN_DTYPE_I32, IR_SUM,       IR_COMBINE_MUL};
      quern_tensor *a = cast(left(&p, QUERN_DTYPE_I8), QUERN_DTYPE_I32);
      CHECK(name_of(&p), dot(&p, a, cast(right(&p, QUERN_DTYPE_I8), QUERN_DTYPE_I32)));
      CHECK(name_of(&p),
            dot(&p, cast(left(&p, QUERN_DTYPE_U8), QUERN_DTYPE_I32), cast(right(&p, QUERN_DTYPE_I8), QUERN_DTYPE_I32)));
      test_renew();
    }
  }
}

/* A side that is packed ahead gives the same bits. */
static void check_packed(quern_tensor *root, int in, bool expected, const char *what) {
  struct dot_group g;
  struct group_memory plain, fast, packs;
  struct kern *pack = NULL;
  int64_t count;
  group_init(&g, 1, &root);
  const struct ways ways = ways_from(0, BASE_COUNT(targets));
  for (size_t t = ways.at; t < ways.end; t++) {
    struct sched sched;
    sched_choose(&sched, &g.group, &targets[t], 1);
    struct kern *kern = group_kernel(&g.group, &targets[t], &sched);
    group_memory_init(&plain, kern, &g.group);
    group_run(kern, &plain);
    kern_free(kern);
    EXPECT_OK(sched_pack(&pack, &count, &ctx->heap, ctx, &g.group, &targets[t], &sched, in));
    if ((pack != NULL) != expected) fail_msg("%s: packed is %d on %s", what, pack != NULL, targets[t].name);
    if (pack != NULL) {
      EXPECT_OK(kern_verify(pack, NULL));
      struct pass_group alone = {.n_ins = 1, .ins = &g.group.ins[in]};
      group_memory_init(&packs, pack, &alone);
      memcpy(packs.at[0], plain.at[in], packs.bytes[0]);
      group_run(pack, &packs);
      sched.packed = 1 + in;
      kern = group_kernel(&g.group, &targets[t], &sched);
      assert_int_equal(kern->mems[in].count, count);
      group_memory_init(&fast, kern, &g.group);
      memcpy(fast.at[in], packs.at[1], fast.bytes[in]);
      group_run(kern, &fast);
      assert_memory_equal(fast.at[g.group.n_ins], plain.at[g.group.n_ins], plain.bytes[g.group.n_ins]);
      group_memory_fini(&packs);
      group_memory_fini(&fast);
      kern_free(kern);
      kern_free(pack);
    }
    group_memory_fini(&plain);
  }
  group_fini(&g);
}

static void test_packed(void **state) {
  (void)state;
  static const char *const ways[] = {"nn", "nt", "tn", "tt"};
  static const int64_t shapes[][4] = {{1, 40, 700, 70}, {2, 37, 512, 64}, {1, 64, 1030, 33}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (size_t w = 0; w < BASE_COUNT(ways); w++) {
      struct product p = {shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], ways[w], F32, IR_SUM, IR_COMBINE_MUL};
      quern_tensor *a = left(&p, F32), *b = right(&p, F32), *y = dot(&p, a, op1(IR_ABS, b));
      check_packed(y, 1, true, name_of(&p));
      check_packed(y, 0, false, "the other side");
      check_packed(dot(&p, a, op2(IR_ADD, b, right(&p, F32))), 1, false, "made of two");
      p.dtype = QUERN_DTYPE_BF16;
      check_packed(product(&p), 1, true, name_of(&p));
      p.dtype = QUERN_DTYPE_I32;
      quern_tensor *i8 = cast(left(&p, QUERN_DTYPE_I8), QUERN_DTYPE_I32);
      quern_tensor *u8 = cast(left(&p, QUERN_DTYPE_U8), QUERN_DTYPE_I32);
      quern_tensor *bytes = cast(right(&p, QUERN_DTYPE_I8), QUERN_DTYPE_I32);
      check_packed(dot(&p, i8, bytes), 1, true, "bytes");
      check_packed(dot(&p, u8, bytes), 1, true, "bytes, one side unsigned");
      test_renew();
    }
  }
  struct product square = {1, 40, 40, 40, "nn", F32, IR_SUM, IR_COMBINE_MUL};
  quern_tensor *x = left(&square, F32), *y = dot(&square, left(&square, F32), op1(IR_ABS, x));
  check_packed(op2(IR_ADD, y, x), 0, false, "read after it too");
  check_packed(dot(&square, x, op1(IR_ABS, x)), 0, false, "both sides");
}

/* Weights of convolutions: windows are rows then, and are read as they lie; outs are contiguous along rows or columns. */
static void test_packed_windows(void **state) {
  (void)state;
  static const struct {
    int64_t channels, h, w, step, out;
  } shapes[] = {{5, 11, 9, 1, 20}, {60, 7, 7, 1, 70}, {3, 9, 33, 2, 64}, {5, 5, 5, 1, 16}, {2, 16, 16, 1, 33}};
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (int64_t images = 1; images <= 2; images++) {
      int64_t c = shapes[i].channels, o = shapes[i].out;
      quern_tensor *x = INPUT(F32, images, c, shapes[i].h, shapes[i].w), *w = INPUT(F32, o, c, 3, 3);
      quern_tensor *windows = windows_of(x, 3, shapes[i].step, 0), *bias = INPUT(F32, o);
      quern_tensor *y = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(1, 4, 5), .b_sum = IR_INTS(1, 2, 3)), windows, w);
      check_packed(y, 1, true, "channels last");
      quern_tensor *first = IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 3, 1, 2)), y);
      check_packed(first, 1, true, "channels first");
      check_packed(first, 0, false, "windows");
      quern_tensor *more = INPUT(F32, images, o, windows->dims[2], windows->dims[3]);
      quern_tensor *after = IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = IR_INTS(1, 1, 1, o)), bias);
      after = op2(IR_ADD, y, IR_MAKE(ctx, IR_BROADCAST, ATTRS(.shape = {y->rank, y->dims}), after));
      after = IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(0, 3, 1, 2)), after);
      check_packed(op1(IR_ABS, op2(IR_ADD, after, more)), 1, true, "with what comes after");
      quern_tensor *turned = IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(1, 2, 3), .b_sum = IR_INTS(1, 4, 5)),
                                     op1(IR_NEG, w), windows_of(op1(IR_NEG, x), 3, shapes[i].step, 0));
      check_packed(IR_MAKE(ctx, IR_PERMUTE, ATTRS(.axes = IR_INTS(1, 0, 2, 3)), turned), 1, true, "weights first");
      test_renew();
    }
  }
}

/* What is built of the group for target 0. */
static quern_status lower(const struct dot_group *g, struct kern **kern) {
  struct sched sched;
  sched_choose(&sched, &g->group, &targets[0], 1);
  return sched_lower(kern, &ctx->heap, ctx, &g->group, &targets[0], &sched);
}

static quern_status pack(const struct dot_group *g, struct kern **kern) {
  struct sched sched;
  int64_t count;
  sched_choose(&sched, &g->group, &targets[0], 1);
  return sched_pack(kern, &count, &ctx->heap, ctx, &g->group, &targets[0], &sched, 1);
}

static void check_faults(quern_tensor *root, quern_status (*make)(const struct dot_group *, struct kern **)) {
  struct fault fault = {0};
  struct dot_group g;
  group_init(&g, 1, &root);
  while (fault_next(&fault)) {
    struct kern *kern = NULL;
    fault_begin(&fault);
    quern_status status = make(&g, &kern);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_true((kern != NULL) == (status == QUERN_STATUS_OK));
    kern_free(kern);
  }
  assert_true(fault.n > 20);
  group_fini(&g);
}

/* Which way is taken: the functions that the kernel of target 0 has. */
static void test_ways(void **state) {
  (void)state;
  static const struct {
    struct product p;
    quern_dtype from;
    const char *function;
  } rows[] = {
      {{1, 40, 600, 200, "nn", F32, IR_SUM, IR_COMBINE_MUL}, F32, "_6x64_packed"},
      {{8, 64, 64, 64, "nn", F32, IR_SUM, IR_COMBINE_MUL}, F32, "dot_sum_mul_f32_6x64"},
      {{1, 40, 600, 200, "nt", F32, IR_SUM, IR_COMBINE_MUL}, F32, "transpose_f32_16x16"},
      {{1, 2, 600, 200, "nt", F32, IR_SUM, IR_COMBINE_MUL}, F32, "_2x16_turned"},
      {{1, 2, 600, 200, "nn", F32, IR_SUM, IR_COMBINE_MUL}, F32, "_stream_2"},
      {{1, 1, 9000, 1, "nn", F32, IR_SUM, IR_COMBINE_MUL}, F32, "dot_blocks"},
      {{1, 40, 600, 200, "nn", QUERN_DTYPE_F64, IR_SUM, IR_COMBINE_MUL}, QUERN_DTYPE_F64, "f64_6x32_packed"},
      {{1, 40, 600, 200, "nn", F32, IR_REDUCE_MAX, IR_COMBINE_ADD}, F32, "dot_max_add_f32_6x64_packed"},
      {{1, 40, 600, 200, "nn", QUERN_DTYPE_I32, IR_SUM, IR_COMBINE_MUL}, QUERN_DTYPE_I8, "dot_bias_64"},
      {{1, 40, 600, 200, "nn", QUERN_DTYPE_I32, IR_SUM, IR_COMBINE_MUL}, QUERN_DTYPE_I8, "_bytes_6x64_packed"},
  };
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    const struct product *p = &rows[i].p;
    struct dot_group g;
    struct kern *kern = NULL;
    bool found = false;
    quern_tensor *x = left(p, rows[i].from), *y = right(p, rows[i].from);
    quern_tensor *root = rows[i].from == p->dtype ? dot(p, x, y) : dot(p, cast(x, p->dtype), cast(y, p->dtype));
    group_init(&g, 1, &root);
    EXPECT_OK(lower(&g, &kern));
    for (size_t k = 0; k < kern->fns.n; k++) found |= strstr(kern->fns.at[k]->name, rows[i].function) != NULL;
    if (!found) fail_msg("%s has no function %s", name_of(p), rows[i].function);
    kern_free(kern);
    group_fini(&g);
  }
}

static void test_faults(void **state) {
  (void)state;
  struct product p = {1, 9, 40, 37, "tt", F32, IR_SUM, IR_COMBINE_MUL},
                 thin = {1, 2, 700, 100, "nn", F32, IR_SUM, IR_COMBINE_MUL};
  struct product long_one = {1, 1, 9000, 1, "nn", F32, IR_SUM, IR_COMBINE_MUL};
  quern_tensor *y = product(&p), *biased = op2(IR_ADD, y, along(INPUT(F32, p.n), y));
  check_faults(biased, lower);
  check_faults(y, pack);
  check_faults(product(&thin), lower);
  check_faults(product(&long_one), lower);
  p.dtype = QUERN_DTYPE_I32;
  quern_tensor *a = cast(left(&p, QUERN_DTYPE_I8), QUERN_DTYPE_I32);
  check_faults(dot(&p, a, cast(right(&p, QUERN_DTYPE_I8), QUERN_DTYPE_I32)), lower);
  quern_tensor *windows = windows_of(INPUT(F32, 2, 3, 9, 9), 3, 1, 0);
  check_faults(IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(1, 2, 3), .b_sum = IR_INTS(1, 4, 5)), INPUT(F32, 2, 3, 3, 3),
                       windows),
               lower);
  check_faults(
      IR_MAKE(ctx, IR_DOT,
              ATTRS(.a_batch = IR_INTS(1, 3), .b_batch = IR_INTS(1, 3), .a_sum = IR_INTS(0, 2), .b_sum = IR_INTS(0, 2)),
              INPUT(F32, 2, 3, 9, 9), windows),
      lower);
  check_faults(IR_MAKE(ctx, IR_DOT, ATTRS(.a_sum = IR_INTS(1, 4, 5), .b_sum = IR_INTS(1, 2, 3)), windows,
                       INPUT(F32, 20, 3, 3, 3)),
               lower);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_sizes),          TEST(test_blocks), TEST(test_order),       TEST(test_dtypes), TEST(test_semirings),
      TEST(test_empty),          TEST(test_thin),   TEST(test_axes),        TEST(test_heads),  TEST(test_before),
      TEST(test_after),          TEST(test_fused),  TEST(test_windows),     TEST(test_bytes),  TEST(test_packed),
      TEST(test_packed_windows), TEST(test_direct), TEST(test_packed_once), TEST(test_ways),   TEST(test_faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
