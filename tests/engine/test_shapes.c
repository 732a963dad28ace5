/* tests/engine/test_shapes.c -- kernels of large and odd shapes are proven: they are compiled and verified, not run
** The cases of the operation driver are small, and what is chosen for large tensors (packing, splitting, tiles) is not
** met there.
*/
#include "quern/quern.h"
#include "unit.h"

/* For targets that are named, so that it is the same on every machine. */
static void compile(const char *what, const int64_t *sizes, size_t n, quern_tensor *const *outputs) {
  static const char *const targets[] = {"avx512", "avx2"};
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "null";
  for (int i = 0; i < 6; i++) {
    quern_program *program;
    options.target = targets[i % 2];
    options.threads = 1 << (i / 2 * 2);
    quern_status status = quern_program_compile(&program, ctx, n, outputs, &options);
    if (status != QUERN_STATUS_OK)
      fail_msg("%s of %lld %lld %lld %lld %lld for %s on %d threads: %s", what, (long long)sizes[0],
               (long long)sizes[1], (long long)sizes[2], (long long)sizes[3], (long long)sizes[4], options.target,
               options.threads, quern_last_error());
    quern_program_free(program);
  }
}

/* Outputs and gradients of a function of two tensors. */
static void compile_all(const char *what, const int64_t *sizes, quern_tensor *y, quern_tensor *a, quern_tensor *b) {
  quern_tensor *dy = quern_input(ctx, "dy", QUERN_DTYPE_F32, quern_tensor_rank(y), quern_tensor_dims(y));
  quern_tensor *outputs[3] = {y};
  EXPECT_OK(quern_vjp(1, &y, &dy, 2, (quern_tensor *[]){a, b}, outputs + 1));
  compile(what, sizes, 3, outputs);
}

static quern_tensor *input(const char *name, int rank, const int64_t *dims) {
  return quern_input(ctx, name, QUERN_DTYPE_F32, rank, dims);
}

static void convolutions(void **state) {
  (void)state;
  static const int64_t cases[][5] = {/* batch, channels, out, size, window */
                                     {1, 3, 64, 224, 7},  {8, 64, 64, 56, 3},   {2, 64, 64, 56, 3}, {8, 64, 64, 28, 3},
                                     {1, 64, 256, 56, 1}, {4, 128, 128, 28, 3}, {3, 17, 33, 29, 5}, {1, 512, 512, 7, 3},
                                     {16, 32, 10, 14, 3}, {2, 256, 256, 14, 3}, {5, 1, 8, 63, 4},   {7, 96, 40, 9, 2}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const int64_t *c = cases[i];
    for (int64_t stride = 1; stride <= 2; stride++) {
      test_renew();
      int64_t pad = c[4] / 2;
      quern_conv_options options = {
          .size = sizeof options, .stride = {stride, stride}, .pad_lo = {pad, pad}, .pad_hi = {pad, pad}};
      quern_tensor *x = input("x", QUERN_LIST(c[0], c[1], c[3], c[3])),
                   *w = input("w", QUERN_LIST(c[2], c[1], c[4], c[4]));
      compile_all("a convolution", c, quern_conv2d(x, w, NULL, &options), x, w);
    }
  }
}

static void products(void **state) {
  (void)state;
  static const int64_t cases[][5] = {/* batch, rows, columns, terms, transposed */
                                     {1, 1000, 1000, 1000, 0}, {1, 999, 1001, 1023, 1}, {1, 1, 50257, 768, 0},
                                     {1, 1, 768, 3072, 1},     {1, 8, 3072, 769, 0},    {1, 256, 50257, 768, 0},
                                     {12, 64, 64, 1024, 1},    {96, 17, 33, 129, 0},    {1, 4096, 1, 4097, 0},
                                     {1, 13, 7, 100003, 0},    {3, 255, 513, 511, 1},   {1, 2049, 15, 31, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const int64_t *c = cases[i];
    test_renew();
    quern_tensor *a = input("a", QUERN_LIST(c[0], c[1], c[3]));
    quern_tensor *b = c[4] != 0 ? input("b", QUERN_LIST(c[0], c[2], c[3])) : input("b", QUERN_LIST(c[0], c[3], c[2]));
    compile_all("a product", c, quern_gelu(quern_matmul(a, c[4] != 0 ? quern_transpose(b, 1, 2) : b)), a, b);
  }
}

static void rows(void **state) {
  (void)state;
  static const int64_t cases[][5] = {{1024, 1024}, {4096, 768}, {3, 1000003}, {1000003, 3},
                                     {511, 50257}, {70001, 33}, {257, 4097}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const int64_t *c = cases[i];
    for (int axis = 0; axis < 2; axis++) {
      test_renew();
      quern_tensor *x = input("x", QUERN_LIST(c[0], c[1])), *w = input("w", QUERN_LIST(c[1]));
      compile_all("a softmax", c, quern_mul(quern_softmax(x, axis), w), x, w);
      compile_all("a norm", c, quern_layer_norm(x, 1, w, NULL, 1e-5), x, w);
      compile_all("sums", c, quern_mul(quern_sum(x, 1, (int64_t[]){axis}, true), w), x, w);
    }
  }
}

static void attention(void **state) {
  (void)state;
  static const int64_t cases[][5] = {{1, 12, 1024, 1024, 64},
                                     {2, 3, 1000, 777, 40},
                                     {1, 1, 1, 4097, 128},
                                     {1, 2, 16384, 16384, 64},
                                     {4, 8, 129, 129, 96}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const int64_t *c = cases[i];
    for (int causal = 0; causal < 2; causal++) {
      test_renew();
      quern_attention_options options = {.size = sizeof options, .causal = causal != 0};
      quern_tensor *q = input("q", QUERN_LIST(c[0], c[1], c[2], c[4])),
                   *k = input("k", QUERN_LIST(c[0], c[1], c[3], c[4]));
      compile_all("attention", c, quern_attention(q, k, quern_neg(k), NULL, &options, NULL), q, k);
    }
  }
}

/* Sizes that are small more often than large. */
static int64_t some(uint64_t *seed, int64_t most) {
  *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  int64_t x = (int64_t)(*seed >> 40);
  return 1 + x % (1 + (most - 1) % ((x >> 12) % most + 1));
}

static void random_ones(void **state) {
  (void)state;
  uint64_t seed = 1;
  for (int i = 0; i < 150; i++) {
    test_renew();
    int64_t window = some(&seed, 7), size = window + some(&seed, 100), stride = some(&seed, 3), groups = some(&seed, 3);
    int64_t c[5] = {some(&seed, 9), groups * some(&seed, 70), groups * some(&seed, 70), size, window};
    int64_t pad = some(&seed, window) - 1, dilation = some(&seed, 2);
    quern_conv_options options = {.size = sizeof options,
                                  .stride = {stride, 1},
                                  .pad_lo = {pad, pad},
                                  .pad_hi = {0, pad},
                                  .dilation = {1, size > 2 * window ? dilation : 1},
                                  .groups = groups};
    quern_tensor *x = input("x", QUERN_LIST(c[0], c[1], size, size));
    quern_tensor *w = input("w", QUERN_LIST(c[2], c[1] / groups, window, window));
    compile_all("a convolution", c, quern_conv2d(x, w, NULL, &options), x, w);
    test_renew();
    int64_t p[5] = {some(&seed, 20), some(&seed, 3000), some(&seed, 3000), some(&seed, 3000), some(&seed, 2) - 1};
    quern_tensor *a = p[4] != 0 ? input("a", QUERN_LIST(p[0], p[3], p[1])) : input("a", QUERN_LIST(p[0], p[1], p[3]));
    quern_tensor *b = input("b", QUERN_LIST(p[3], p[2]));
    compile_all("a product", p, quern_matmul(p[4] != 0 ? quern_transpose(a, 1, 2) : a, b), a, b);
  }
}

int main(void) {
  setenv("QUERN_VERBOSE", "check", 1);
  setenv("QUERN_CACHE", "0", 1);
  memory_largest = SIZE_MAX;
  const struct CMUnitTest tests[] = {TEST(convolutions), TEST(products), TEST(rows), TEST(attention),
                                     TEST(random_ones)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
