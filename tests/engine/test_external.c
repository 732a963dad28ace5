/* tests/engine/test_external.c -- runs on the caller's memory, and layers in one call */
#include "engine/engine_test.h"
#include "quern/call.h"

enum { ROWS = 5, FROM = 8, TO = 12 };

static const quern_call_options on_cpu = {sizeof on_cpu, "cpu", NULL, false};

static _Alignas(256) float x[ROWS * FROM], weight[TO * FROM], bias[TO], y[ROWS * TO], wide[2][TO];

static void fill(float *to, size_t n, uint64_t seed) {
  double values[256];
  assert_true(n <= BASE_COUNT(values));
  test_fill(n, values, seed);
  for (size_t i = 0; i < n; i++) to[i] = (float)values[i];
}

static double phi(double v) { return v * 0.5 * (1 + erf(v / sqrt(2.0))); }
static double by_tanh(double v) {
  return 0.5 * v * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v)));
}

static void near_to(double got, double want) { assert_true(fabs(got - want) <= 1e-5 * (1 + fabs(want))); }

/* ---- calls ------------------------------------------------------------------------------------------------ */

static void gelu(void **state) {
  (void)state;
  fill(x, ROWS * FROM, 1);
  for (int times = 0; times < 2; times++) { /* the second finds the first one's program */
    memset(y, 0xff, sizeof y);
    EXPECT_OK(quern_call_gelu(QUERN_DTYPE_F32, ROWS * FROM, false, x, y, &on_cpu));
    for (int i = 0; i < ROWS * FROM; i++) near_to((double)y[i], phi((double)x[i]));
  }
  EXPECT_OK(quern_call_gelu(QUERN_DTYPE_F32, ROWS * FROM, true, x, y, &on_cpu));
  for (int i = 0; i < ROWS * FROM; i++) near_to((double)y[i], by_tanh((double)x[i]));
  quern_call_clear();
}

static void linear_gelu(void **state) {
  (void)state;
  const quern_call_linear sizes = {sizeof sizes, ROWS, FROM, TO, true};
  fill(x, ROWS * FROM, 1);
  fill(weight, TO * FROM, 2);
  fill(bias, TO, 3);
  for (int with = 0; with < 2; with++) {
    EXPECT_OK(quern_call_linear_gelu(QUERN_DTYPE_F32, &sizes, x, weight, with ? bias : NULL, y, &on_cpu));
    for (int i = 0; i < ROWS; i++)
      for (int j = 0; j < TO; j++) {
        double sum = with ? (double)bias[j] : 0;
        for (int k = 0; k < FROM; k++) sum += (double)x[i * FROM + k] * (double)weight[j * FROM + k];
        near_to((double)y[i * TO + j], by_tanh(sum));
      }
  }
  quern_call_clear();
}

static void layer_norm(void **state) {
  (void)state;
  const quern_call_norm sizes = {sizeof sizes, ROWS, FROM, 0};
  fill(x, ROWS * FROM, 1);
  fill(wide[0], FROM, 2);
  fill(wide[1], FROM, 3);
  EXPECT_OK(quern_call_layer_norm(QUERN_DTYPE_F32, &sizes, x, wide[0], wide[1], y, &on_cpu));
  for (int i = 0; i < ROWS; i++) {
    double mean = 0, square = 0;
    for (int k = 0; k < FROM; k++) mean += (double)x[i * FROM + k] / FROM;
    for (int k = 0; k < FROM; k++) square += pow((double)x[i * FROM + k] - mean, 2) / FROM;
    for (int k = 0; k < FROM; k++) {
      double scaled = ((double)x[i * FROM + k] - mean) / sqrt(square + 1e-5);
      near_to((double)y[i * FROM + k], scaled * (double)wide[0][k] + (double)wide[1][k]);
    }
  }
  quern_call_clear();
}

/* One query sees one key, and takes its value; heads of a group share it. */
static void attention(void **state) {
  (void)state;
  const quern_call_heads sizes = {sizeof sizes, 1, 2, 1, 3, 3, 4, 0, true};
  static _Alignas(256) float q[2 * 3 * 4], k[3 * 4], v[3 * 4], out[2 * 3 * 4];
  fill(q, BASE_COUNT(q), 1);
  fill(k, BASE_COUNT(k), 2);
  fill(v, BASE_COUNT(v), 3);
  EXPECT_OK(quern_call_attention(QUERN_DTYPE_F32, &sizes, q, k, v, out, &on_cpu));
  for (int h = 0; h < 2; h++)
    for (int d = 0; d < 4; d++) near_to((double)out[h * 12 + d], (double)v[d]);
  quern_call_clear();
}

/* More programs than are kept: the oldest make room, and come back. */
static void many(void **state) {
  (void)state;
  fill(x, ROWS * FROM, 1);
  for (int64_t n = 1; n <= ROWS * FROM; n++)
    for (int tanh_or_not = 0; tanh_or_not < 2; tanh_or_not++) {
      EXPECT_OK(quern_call_gelu(QUERN_DTYPE_F32, n, tanh_or_not != 0, x, y,
                                &(quern_call_options){sizeof on_cpu, "interp", NULL, false}));
      near_to((double)y[n - 1], tanh_or_not ? by_tanh((double)x[n - 1]) : phi((double)x[n - 1]));
    }
  quern_call_clear();
}

/* Calls on two devices in turn: each finds its own program again; "interp:0" is "interp". */
static void calls_on_two_devices(void **state) {
  (void)state;
  static const char *const names[] = {"interp", "interp:1", "interp:0"};
  fill(x, ROWS * FROM, 1);
  for (int i = 0; i < 9; i++) {
    y[0] = 0;
    EXPECT_OK(quern_call_gelu(QUERN_DTYPE_F32, ROWS * FROM, false, x, y,
                              &(quern_call_options){sizeof on_cpu, names[i % 3], NULL, false}));
    near_to((double)y[0], phi((double)x[0]));
  }
  quern_call_clear();
}

static void refusals(void **state) {
  (void)state;
  const quern_call_norm sizes = {sizeof sizes, ROWS, FROM, -1};
  EXPECT_ERROR(quern_call_gelu(QUERN_DTYPE_I32, 4, false, x, y, &on_cpu), DTYPE, "call_gelu: the dtype is i32");
  EXPECT_ERROR(quern_call_gelu(QUERN_DTYPE_F32, 0, false, x, y, &on_cpu), INVALID, "n is 0, must be at least 1");
  EXPECT_ERROR(quern_call_layer_norm(QUERN_DTYPE_F32, &sizes, x, NULL, NULL, y, &on_cpu), INVALID, "eps is -1");
  quern_call_options other = on_cpu;
  other.device = "gpu";
  EXPECT_ERROR(quern_call_gelu(QUERN_DTYPE_F32, 4, false, x, y, &other), INVALID, "there is no device \"gpu\"");
  other.device = "interp:16";
  EXPECT_ERROR(quern_call_gelu(QUERN_DTYPE_F32, 4, false, x, y, &other), INVALID,
               "call_gelu: there is no device \"interp:16\": of kind interp there are 16");
  other.device = "cpu";
  other.queue = x;
  EXPECT_ERROR(quern_call_gelu(QUERN_DTYPE_F32, 4, false, x, y, &other), UNSUPPORTED, "device cpu has no queues");
  other.size = 1;
  EXPECT_ERROR(quern_call_gelu(QUERN_DTYPE_F32, 4, false, x, y, &other), INVALID,
               "call_gelu: quern_call_options has a size of 1 bytes");
  quern_call_clear();
}

/* ---- runs --------------------------------------------------------------------------------------------------- */

static void runs_on_host(void **state) {
  (void)state;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  open_program(TENSORS(quern_exp(F32_INPUT("x", 4))), &options);
  fill(x, 4, 1);
  const void *ins[] = {x};
  void *outs[] = {y};
  EXPECT_OK(quern_instance_run_on(instance, NULL, ins, outs));
  for (int i = 0; i < 4; i++) near_to((double)y[i], exp((double)x[i]));
  close_program();
}

/* OpenCL's addresses are its own. */
static void runs_not_on_opencl(void **state) {
  (void)state;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "opencl";
  quern_tensor *root = quern_exp(F32_INPUT("x", 4));
  if (quern_program_compile(&program, ctx, 1, &root, &options) != QUERN_STATUS_OK) skip();
  EXPECT_OK(quern_instance_new(&instance, program));
  const void *ins[] = {x};
  void *outs[] = {y};
  EXPECT_ERROR(quern_instance_run_on(instance, NULL, ins, outs), UNSUPPORTED, "addresses of device opencl");
  EXPECT_ERROR(quern_instance_run_on(instance, NULL, (const void *[]){(char *)x + 4}, outs), INVALID,
               "not a multiple of 256");
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(gelu),      TEST(linear_gelu),  TEST(layer_norm),
                                     TEST(attention), TEST(many),         TEST(calls_on_two_devices),
                                     TEST(refusals),  TEST(runs_on_host), TEST(runs_not_on_opencl)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
