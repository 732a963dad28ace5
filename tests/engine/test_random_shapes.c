/* tests/engine/test_random_shapes.c -- random shapes of a few million operations, every kernel compared with the evaluator
** Between the small cases of the operation driver and the large ones of test_shapes.c, which are not run: blocks, packing and
** splitting are met here, and computed. The kernels are interpreted, which checks their memory too.
*/
#include "quern/quern.h"
#include "unit.h"

static uint64_t seed = 1;

static uint64_t some(uint64_t n) {
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (seed >> 33) % n;
}

/* 1 .. most, each number of digits as likely as another. */
static int64_t size(int64_t most) {
  int64_t limit = 2;
  while (limit < most && some(5) != 0) limit *= 2;
  return 1 + (int64_t)some((uint64_t)(limit < most ? limit : most));
}

static quern_tensor *input(const char *name, quern_dtype dtype, int rank, const int64_t *dims) {
  return quern_input(ctx, name, dtype, rank, dims);
}

/* Runs a program; QUERN_REF=1 makes it fail where a kernel is wrong. */
static void expect_reference(size_t n, quern_tensor *const *outputs) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  options.threads = 1 + (int)some(3);
  quern_program *program;
  quern_instance *instance;
  EXPECT_OK(quern_program_compile(&program, ctx, n, outputs, &options));
  EXPECT_OK(quern_instance_new(&instance, program));
  void *memory[8];
  size_t inputs = quern_program_input_count(program), all = inputs + n;
  assert_true(all <= 8);
  for (size_t i = 0; i < all; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(i < inputs ? quern_program_input(program, i, &slot) : quern_program_output(program, i - inputs, &slot));
    memory[i] = malloc(slot.bytes + 1);
    assert_non_null(memory[i]);
    for (size_t k = 0; k < slot.bytes / quern_dtype_size(slot.dtype); k++) {
      double x = (double)some(2001) / 1000 - 1;
      if (slot.dtype == QUERN_DTYPE_F64) ((double *)memory[i])[k] = x;
      if (slot.dtype == QUERN_DTYPE_F32) ((float *)memory[i])[k] = (float)x;
    }
  }
  EXPECT_OK(quern_instance_run(instance, (const void *const *)memory, memory + inputs));
  for (size_t i = 0; i < all; i++) free(memory[i]);
  quern_instance_free(instance);
  quern_program_free(program);
}

static quern_dtype real(void) { return some(2) == 0 ? QUERN_DTYPE_F32 : QUERN_DTYPE_F64; }

/* y, and gradients of two operands. */
static void expect_reference_all(quern_tensor *y, quern_tensor *a, quern_tensor *b) {
  quern_tensor *outputs[3] = {y}, *dy = input("dy", quern_tensor_dtype(y), quern_tensor_rank(y), quern_tensor_dims(y));
  EXPECT_OK(quern_vjp(1, &y, &dy, 2, (quern_tensor *[]){a, b}, outputs + 1));
  expect_reference(3, outputs);
}

enum { TIMES = 24 };
static const double MOST = 1.5e6; /* products */

static void convolutions(void **state) {
  (void)state;
  for (int i = 0; i < TIMES; i++) {
    int64_t n, c, out, side, window, stride, pad, places;
    do {
      n = size(5), c = size(300), out = size(600), window = 1 + (int64_t)some(4), side = window + size(20) - 1;
      stride = 1 + (int64_t)some(2), pad = (int64_t)some((uint64_t)window);
      places = (side + 2 * pad - window) / stride + 1;
    } while ((double)(n * c * out * window * window * places * places) > MOST);
    quern_conv_options options = {
        .size = sizeof options, .stride = {stride, stride}, .pad_lo = {pad, pad}, .pad_hi = {pad, pad}};
    test_renew();
    quern_dtype dtype = real();
    quern_tensor *x = input("x", dtype, QUERN_LIST(n, c, side, side)),
                 *w = input("w", dtype, QUERN_LIST(out, c, window, window));
    expect_reference_all(quern_conv2d(x, w, NULL, &options), x, w);
  }
}

static void products(void **state) {
  (void)state;
  for (int i = 0; i < TIMES; i++) {
    int64_t batch, m, n, k;
    do {
      batch = size(4), m = size(3000), n = size(3000), k = size(9000);
    } while ((double)(batch * m * n * k) > MOST);
    test_renew();
    quern_dtype dtype = real();
    quern_tensor *a = some(2) != 0 ? input("a", dtype, QUERN_LIST(batch, m, k))
                                   : quern_transpose(input("a", dtype, QUERN_LIST(batch, k, m)), 1, 2);
    quern_tensor *b = input("b", dtype, QUERN_LIST(k, n)), *bias = input("bias", dtype, QUERN_LIST(n));
    expect_reference_all(quern_tanh(quern_add(quern_matmul(a, b), bias)), b, bias);
  }
}

static void rows(void **state) {
  (void)state;
  for (int i = 0; i < TIMES; i++) {
    int64_t m, n;
    do {
      m = size(40000), n = size(40000);
    } while ((double)(m * n) > 2e5);
    test_renew();
    quern_dtype dtype = real();
    int axis = (int)some(2);
    quern_tensor *x = input("x", dtype, QUERN_LIST(m, n)), *w = input("w", dtype, QUERN_LIST(n));
    quern_tensor *y = i % 3 == 0   ? quern_mul(quern_softmax(x, axis), w)
                      : i % 3 == 1 ? quern_layer_norm(x, 1, w, NULL, 1e-5)
                                   : quern_mul(quern_logsumexp(x, 1, (int64_t[]){axis}, true), w);
    expect_reference_all(y, x, w);
  }
}

static void attention(void **state) {
  (void)state;
  for (int i = 0; i < TIMES / 3; i++) {
    int64_t heads = size(3), s = size(200), t = size(200), d = 8 * size(10);
    quern_attention_options options = {.size = sizeof options, .causal = some(2) != 0};
    test_renew();
    quern_dtype dtype = real();
    quern_tensor *q = input("q", dtype, QUERN_LIST(1, heads, s, d)), *k = input("k", dtype, QUERN_LIST(1, heads, t, d));
    expect_reference_all(quern_attention(q, k, quern_neg(k), NULL, &options, NULL), q, k);
  }
}

int main(int argc, char **argv) {
  if (argc > 1) seed = strtoull(argv[1], NULL, 10);
  setenv("QUERN_REF", "1", 1);
  memory_largest = SIZE_MAX;
  const struct CMUnitTest tests[] = {TEST(convolutions), TEST(products), TEST(rows), TEST(attention)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
