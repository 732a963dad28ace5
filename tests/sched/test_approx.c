/* tests/sched/test_approx.c -- what is rounded to 16 bits on GPUs: all bf16 and f16 against the C library, and where shorter forms are used
** From the expression by way of groups and kernels to the interpreter. Errors are those of the rounded result, in units in its last
** place.
*/
#include "quern/quern.h"
#include "run.h"

enum { N = 65536 };

static const struct run_way gpu = {"a GPU", true, 1, 16, 16384, 0, false, true};

/* ---- what is true ------------------------------------------------------------------------------------------- */

static const long double pi = 3.14159265358979323846264338327950288L;

static long double true_share(long double x) { return erfcl(-x * sqrtl(0.5L)) / 2; }
static long double true_gelu(long double x) { return x * true_share(x); }
static long double true_gelu_slope(long double x) { return true_share(x) + x * expl(-x * x / 2) / sqrtl(2 * pi); }
static long double true_tanh_share(long double x) {
  return 1 / (1 + expl(-2 * sqrtl(2 / pi) * (x + 0.044715L * x * x * x)));
}
static long double true_gelu_tanh(long double x) { return x * true_tanh_share(x); }
static long double true_gelu_tanh_slope(long double x) {
  long double bend = true_tanh_share(x) * true_tanh_share(-x);
  if (bend == 0) return true_tanh_share(x);
  return true_tanh_share(x) + x * bend * 2 * sqrtl(2 / pi) * (1 + 3 * 0.044715L * x * x);
}

struct function {
  const char *name;
  quern_tensor *(*make)(quern_tensor *x);
  long double (*value)(long double), (*slope)(long double);
};
static const struct function functions[] = {
    {"gelu", quern_gelu, true_gelu, true_gelu_slope},
    {"gelu_tanh", quern_gelu_tanh, true_gelu_tanh, true_gelu_tanh_slope},
};

/* ---- all inputs --------------------------------------------------------------------------------------------- */

static quern_tensor *numbers(quern_dtype dtype) {
  static uint16_t bits[N];
  for (int i = 0; i < N; i++) bits[i] = (uint16_t)i;
  return quern_tensor_copy(ctx, dtype, 1, (int64_t[]){N}, bits);
}

/* Of the other factor: numbers in 1 .. 2. */
static quern_tensor *factors(quern_dtype dtype) {
  static uint16_t bits[N];
  for (int i = 0; i < N; i++) base_store_float(dtype, bits, (size_t)i, 1 + (double)(i * 97 % 127) / 128);
  return quern_tensor_copy(ctx, dtype, 1, (int64_t[]){N}, bits);
}

static quern_tensor *gradient(quern_tensor *y, quern_tensor *dy, quern_tensor *x) {
  quern_tensor *dx = NULL;
  EXPECT_OK(quern_vjp(1, &y, &dy, 1, &x, &dx));
  return dx;
}

/* One unit in the last place of a number, of those that are at least `least`. */
static long double unit(quern_dtype dtype, long double x, long double least) {
  int exponent;
  frexpl(fmaxl(fabsl(x), least), &exponent);
  return ldexpl(1, exponent - 1 - base_dtypes[dtype].mantissa);
}

/* The largest error of dtype's numbers. What is small counts by the unit of `least`. */
static double worst(quern_dtype dtype, const uint16_t *got, long double (*f)(long double), const quern_tensor *dy,
                    long double least) {
  double most = 0;
  for (int i = 0; i < N; i++) {
    uint16_t bits = (uint16_t)i;
    long double x = base_load_float(dtype, &bits, 0), y = base_load_float(dtype, got, (size_t)i), want = f(x);
    if (dy != NULL) want *= base_load_float(dtype, dy->node->attrs->buffer->data, (size_t)i);
    if (isnan(x)) assert_true(isnan(y));
    if (isnan(x) || isinf(x)) continue;
    assert_true(isfinite(y));
    most = fmax(most, (double)(fabsl(y - want) / unit(dtype, want, least)));
  }
  return most;
}

static void test_all(void **state) {
  (void)state;
  static const struct {
    quern_dtype dtype;
    double value, slope;
    long double least; /* of f16 its least normal number; far out results are near, but not to the last place */
  } types[] = {{QUERN_DTYPE_BF16, 0.55, 0.55, 0x1p-25L}, {QUERN_DTYPE_F16, 0.62, 0.6, 0x1p-14L}};
  static uint16_t y[N], dx[N];
  for (size_t t = 0; t < BASE_COUNT(types); t++) {
    for (size_t k = 0; k < BASE_COUNT(functions); k++) {
      test_renew();
      quern_dtype dtype = types[t].dtype;
      quern_tensor *x = numbers(dtype), *dy = factors(dtype), *value = functions[k].make(x);
      run_way(&gpu, 1, &value, (void *[]){y});
      double error = worst(dtype, y, functions[k].value, NULL, types[t].least);
      quern_tensor *slope = gradient(value, dy, x);
      run_way(&gpu, 1, &slope, (void *[]){dx});
      double slope_error = worst(dtype, dx, functions[k].slope, dy, types[t].least);
      bool near = error > 0.49 && error <= types[t].value && slope_error > 0.49 && slope_error <= types[t].slope;
      if (!near)
        print_error("%s %s: off by %.4f units, its gradient by %.4f\n", functions[k].name, quern_dtype_name(dtype),
                    error, slope_error);
      assert_true(near);
    }
  }
}

/* Limits, signs of zeros. */
static void test_ends(void **state) {
  (void)state;
  static const float ends[] = {-INFINITY, INFINITY, -0.0F, 0, -3e38F, 3e38F, -0x1p-126F, 0x1p-126F};
  enum { COUNT = BASE_COUNT(ends) };
  for (size_t k = 0; k < BASE_COUNT(functions); k++) {
    uint16_t bits[COUNT], one[COUNT], y[COUNT], dx[COUNT];
    test_renew();
    for (size_t i = 0; i < COUNT; i++) {
      base_store_float(QUERN_DTYPE_BF16, bits, i, (double)ends[i]);
      base_store_float(QUERN_DTYPE_BF16, one, i, 1);
    }
    quern_tensor *x = quern_tensor_copy(ctx, QUERN_DTYPE_BF16, 1, (int64_t[]){COUNT}, bits);
    quern_tensor *dy = quern_tensor_copy(ctx, QUERN_DTYPE_BF16, 1, (int64_t[]){COUNT}, one);
    quern_tensor *value = functions[k].make(x), *slope = gradient(value, dy, x);
    run_way(&gpu, 1, &value, (void *[]){y});
    run_way(&gpu, 1, &slope, (void *[]){dx});
    for (size_t i = 0; i < COUNT; i++) {
      double in = base_load_float(QUERN_DTYPE_BF16, bits, i), out = base_load_float(QUERN_DTYPE_BF16, y, i);
      bool small = fabs(in) < 1, never = isinf(in) && in < 0; /* -inf times 0 */
      assert_true(never ? isnan(out) : signbit(in) == signbit(out));
      assert_true(never || out == (small ? in / 2 : in > 0 ? in : 0));
      assert_true(base_load_float(QUERN_DTYPE_BF16, dx, i) == (small ? 0.5 : in > 0 ? 1 : 0));
    }
  }
}

/* ---- where they are used ------------------------------------------------------------------------------------ */

/* Whether kernels have neither tables nor quotients, which the longer forms have. */
static bool is_short(const struct run_way *way, size_t n, quern_tensor **roots) {
  struct pass_options options = {0};
  struct pass_groups groups;
  struct base_target target = run_target(way);
  struct sched sched;
  struct kern *kern = NULL;
  bool found = false;
  struct pass_graph graph = {.ctx = ctx, .n_roots = n, .roots = roots};
  EXPECT_OK(ir_inline_composites(ctx, n, roots, roots));
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  options.on[PASS_FUSE] = way->fuse;
  options.target = &target;
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  for (size_t g = 0; g < groups.groups.n; g++) {
    sched_choose(&sched, groups.groups.at[g], &target, way->optimize);
    EXPECT_OK(sched_lower(&kern, &ctx->heap, ctx, groups.groups.at[g], &target, &sched));
    for (size_t i = 0; i < kern->fns.at[0]->insts.n; i++) {
      enum kern_op op = kern->fns.at[0]->insts.at[i].op;
      found = found || op == KERN_TABLE || op == KERN_DIV;
    }
    kern_free(kern);
  }
  pass_groups_fini(&groups);
  return !found;
}
#define IS_SHORT(WAY, ...)                                                                                             \
  is_short(WAY, sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *), (quern_tensor *[]){__VA_ARGS__})

static quern_tensor *input(quern_dtype dtype) { return quern_input(ctx, "x", dtype, 2, (int64_t[]){8, 64}); }
static quern_tensor *half(quern_tensor *x) { return quern_cast(x, QUERN_DTYPE_BF16); }

/* x (1 + erf(x slope)) / 2 */
static quern_tensor *share_of(quern_tensor *x, double slope) {
  quern_tensor *share = quern_add_scalar(quern_erf(quern_mul_scalar(x, slope)), 1);
  return quern_mul(quern_mul_scalar(x, 0.5), share);
}

static void test_where(void **state) {
  (void)state;
  static const struct run_way cpu = {"64 bytes", true, 1, 64, 1, 0, false, false},
                              apart = {"a GPU, a kernel a node", false, 1, 16, 16384, 0, false, true};
  for (int f16 = 0; f16 < 2; f16++) {
    quern_dtype dtype = f16 ? QUERN_DTYPE_F16 : QUERN_DTYPE_BF16;
    for (size_t k = 0; k < BASE_COUNT(functions); k++) {
      quern_tensor *x = input(dtype), *y = functions[k].make(x);
      quern_tensor *dy = quern_input(ctx, "dy", dtype, 2, (int64_t[]){8, 64}), *dx = gradient(y, dy, x);
      assert_true(IS_SHORT(&gpu, y));
      assert_true(IS_SHORT(&gpu, dx));
      assert_true(IS_SHORT(&gpu, y, dx));
      assert_true(IS_SHORT(&gpu, functions[k].make(quern_add(x, dy)))); /* of what is computed before, and rounded */
      assert_false(IS_SHORT(&cpu, y)); /* where bits are the same however nodes are grouped */
      assert_false(IS_SHORT(&apart, y));
    }
  }
  quern_tensor *x = input(QUERN_DTYPE_BF16), *wide = quern_cast(x, QUERN_DTYPE_F32);
  assert_true(IS_SHORT(&gpu, half(share_of(wide, 0.70710678))));
  assert_false(IS_SHORT(&gpu, half(share_of(wide, 0.7072)))); /* something else */
  assert_false(IS_SHORT(&gpu, half(quern_neg(share_of(wide, 0.70710678)))));
  assert_false(IS_SHORT(&gpu, share_of(wide, 0.70710678))); /* not rounded */
  quern_tensor *gate = quern_input(ctx, "gate", QUERN_DTYPE_BF16, 2, (int64_t[]){8, 64});
  quern_tensor *factor = quern_cast(gate, QUERN_DTYPE_F32);
  assert_true(IS_SHORT(&gpu, half(quern_mul(factor, share_of(wide, 0.70710678)))));
  assert_false(IS_SHORT(&gpu, half(quern_mul(quern_clip(factor, -10, 10), share_of(wide, 0.70710678)))));
  quern_tensor *both = share_of(wide, 0.70710678);
  assert_false(IS_SHORT(&gpu, half(both), both)); /* rounded, but wanted as it is as well */
  assert_false(IS_SHORT(&gpu, quern_gelu(input(QUERN_DTYPE_F32))));
  assert_false(IS_SHORT(&gpu, quern_gelu_quick(x)));
}

static quern_tensor *make_gradient(void) {
  quern_tensor *x = input(QUERN_DTYPE_BF16), *dy = quern_input(ctx, "dy", QUERN_DTYPE_BF16, 2, (int64_t[]){8, 64});
  return gradient(quern_gelu(x), dy, x);
}
static void test_fault(void **state) {
  (void)state;
  run_faults(&gpu, make_gradient);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_all), TEST(test_ends), TEST(test_where), TEST(test_fault)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
