/* tests/engine/test_pack.c -- constants that contractions read packed: packed once, the same bits, originals dropped */
#include "engine/engine_test.h"

#include <sys/stat.h>
#include <unistd.h>

#define PATH "build-test-pack.qprg"

enum { M = 16, K = 24, N = 40, WEIGHT = K * N * 4, PACKED = 48 * K * 4 }; /* columns are packed by whole vectors */

static float weights[2][N * K];
static char folder[64];

static void set_weights(int seed) {
  for (int i = 0; i < N * K; i++) {
    weights[0][i] = (float)((i * 7 + seed) % 11) / 8 - 0.5f;
    weights[1][i] = (float)((i * 5 + seed) % 13) / 8 - 0.5f;
  }
}

static quern_tensor *known(int w) { return quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(N, K), weights[w]); }
static quern_tensor *input(const char *name) { return F32_INPUT(name, M, K); }

/* Rows of a weight are its terms: a kernel packs it. */
static quern_tensor *linear(quern_tensor *x, quern_tensor *w) { return quern_linear(x, w, NULL); }

/* Inputs by their names: weights are what they are, others some numbers. */
static void fill_inputs(void) {
  for (size_t i = 0; i < program->n_inputs; i++) {
    const char *name = program->inputs[i].name;
    float *to = inputs.at[i];
    if (name[0] == 'w') memcpy(to, weights[name[1] - '0'], WEIGHT);
    for (int k = 0; k < M * K && name[0] != 'w'; k++) to[k] = (float)((k * 3 + name[0]) % 17) / 7 - 1;
  }
}

/* Compiles for a device, without looking at what is verified: so programs are looked for in the cache. */
static void open_for(const char *device, size_t n, quern_tensor *const *roots, bool ref) {
  struct engine_request request = {
      .ctx = ctx, .n_outputs = n, .outputs = roots, .options = QUERN_INIT(quern_program_options)};
  EXPECT_OK(rt_device_find(&request.device, "test", device));
  request.options.device = device;
  request.options.threads = 2;
  request.ref = ref;
  EXPECT_OK(engine_compile(&program, &request));
  EXPECT_OK(quern_instance_new(&instance, program));
  slots_fill(&inputs, program->n_inputs, program->inputs, 1);
  slots_fill(&outputs, program->n_outputs, program->outputs, 100);
  fill_inputs();
}

static int64_t constant_bytes(void) {
  quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
  EXPECT_OK(quern_program_get_memory(program, &memory));
  return memory.constants;
}

/* What the program that is open computes is what one with the weights as inputs does, bit by bit. */
static void expect_bits(size_t n, const quern_tensor *const *expected) {
  static char want[MOST_SLOTS][MOST_BYTES];
  fill_inputs();
  for (int time = 0; time < 2; time++) {
    instance->poison = time == 1;
    run_program();
  }
  for (size_t i = 0; i < n; i++) memcpy(want[i], outputs.at[i], program->outputs[i].bytes);
  close_program();
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  open_program(n, (quern_tensor *const *)expected, &options);
  fill_inputs();
  run_program();
  for (size_t i = 0; i < n; i++) assert_memory_equal(want[i], outputs.at[i], program->outputs[i].bytes);
  close_program();
}

/* A weight that is a constant of the graph, not in a buffer of it. */
static quern_tensor *written(int w) {
  const int64_t dims[] = {N, K};
  struct ir_attrs attrs = {.dtype = QUERN_DTYPE_F32, .shape = {2, dims}, .data = {WEIGHT, weights[w]}};
  return ir_make(ctx, IR_CONST, 0, NULL, &attrs);
}

static quern_tensor *given(int w) { return F32_INPUT(w == 0 ? "w0" : "w1", N, K); }

static void packed_once(void **state) {
  (void)state;
  static const char *const devices[] = {"interp", "cpu"};
  for (size_t d = 0; d < BASE_COUNT(devices); d++) {
    quern_tensor *x = input("x"), *y = linear(x, known(0));
    open_for(devices[d], 1, &y, false);
    assert_int_equal(program->n_kernels, 2);
    assert_int_equal(program->subprograms[0].n_steps, 1);
    assert_int_equal(constant_bytes(), PACKED); /* the weight itself is not in the program */
    expect_bits(1, (const quern_tensor *[]){linear(x, given(0))});
  }
}

/* Weights are not copied before they are packed; afterwards the program has no use for them. */
static void originals_are_dropped(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *y = linear(x, known(0));
  set_weights(3);
  open_for("interp", 1, &y, false);
  set_weights(9);
  float before[M * N];
  run_program();
  memcpy(before, outputs.at[0], sizeof before);
  close_program();
  set_weights(3);
  open_program(1, &y, NULL);
  fill_inputs();
  run_program();
  assert_memory_equal(before, outputs.at[0], sizeof before);
  close_program();
}

/* Windows meet weights that are packed: other loops, the same bits. */
static void convolutions(void **state) {
  (void)state;
  static const char *const devices[] = {"interp", "cpu"};
  for (size_t d = 0; d < BASE_COUNT(devices); d++) {
    quern_conv_options options = {.size = sizeof options, .pad_lo = {1, 1}, .pad_hi = {1, 1}};
    quern_tensor *x = quern_reshape(input("x"), QUERN_LIST(1, 6, 8, 8)), *y[2];
    for (int i = 0; i < 2; i++) {
      quern_tensor *w =
          quern_reshape(quern_slice(quern_reshape(i == 0 ? known(0) : given(0), QUERN_LIST(N * K)), 0, 0, 864, 1),
                        QUERN_LIST(16, 6, 3, 3));
      y[i] = quern_relu(quern_conv2d(x, w, NULL, &options));
    }
    open_for(devices[d], 1, y, false);
    assert_int_equal(constant_bytes(), 16 * 54 * 4);
    expect_bits(1, (const quern_tensor *[]){y[1]});
  }
}

static void groups_share_what_is_packed(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *y = input("y");
  quern_tensor *roots[] = {linear(x, known(0)), quern_tanh(linear(y, known(0))), linear(y, known(1))};
  open_for("interp", 3, roots, false);
  assert_int_equal(constant_bytes(), 3 * PACKED); /* each wrap is a constant of its own */
  close_program();
  quern_tensor *w = known(0), *again[] = {linear(x, w), quern_tanh(linear(y, w)), linear(y, known(1))};
  open_for("interp", 3, again, false);
  assert_int_equal(constant_bytes(), 2 * PACKED);
  expect_bits(3, (const quern_tensor *[]){linear(x, given(0)), quern_tanh(linear(y, given(0))), linear(y, given(1))});
}

static void read_elsewhere_too(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *w = known(0), *roots[] = {linear(x, w), quern_sum(w, QUERN_ALL, false)};
  open_for("interp", 2, roots, false);
  assert_int_equal(constant_bytes(), PACKED + WEIGHT);
  quern_tensor *g = given(0);
  expect_bits(2, (const quern_tensor *[]){linear(x, g), quern_sum(g, QUERN_ALL, false)});
}

/* Equal groups, one with a constant and one with an input, have kernels of their own. */
static void inputs_are_not_packed(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *s = F32_STATE("s", N, K);
  quern_tensor *roots[] = {linear(x, given(1)), linear(x, known(0)), linear(input("y"), given(1))};
  open_for("interp", 3, roots, false);
  assert_int_equal(program->n_kernels, 3);
  assert_int_equal(constant_bytes(), PACKED);
  expect_bits(3, (const quern_tensor *[]){linear(x, given(1)), linear(x, given(0)), linear(input("y"), given(1))});
  quern_tensor *y = linear(x, s);
  open_for("interp", 1, &y, false);
  assert_int_equal(constant_bytes(), 0);
  close_program();
}

/* Without vectors, and where the evaluator runs beside, operands are read as they are. */
static void not_packed(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *y = linear(x, known(0));
  open_for("interp", 1, &y, true);
  assert_int_equal(constant_bytes(), WEIGHT);
  expect_bits(1, (const quern_tensor *[]){linear(x, given(0))});
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.optimize = QUERN_OPTIMIZE_NONE;
  options.device = "interp";
  open_program(1, &y, &options);
  assert_int_equal(constant_bytes(), WEIGHT);
  expect_bits(1, (const quern_tensor *[]){linear(x, given(0))});
}

/* What a loop's body is given is no constant there. */
static void body(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(in[1], quern_slice(linear(in[1], in[2]), 1, 0, K, 1));
}

static void in_loops(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *results[2][1];
  quern_loop_options loop = {.size = sizeof loop, .trip = 3, .n_carries = 1, .n_captures = 1};
  for (int i = 0; i < 2; i++)
    EXPECT_OK(quern_loop(ctx, &loop, (quern_tensor *[]){x, i == 0 ? known(0) : given(0)}, body, NULL, results[i]));
  open_for("interp", 1, results[0], false);
  expect_bits(1, (const quern_tensor *[]){results[1][0]});
}

static void saved(void **state) {
  (void)state;
  float before[M * N];
  struct stat file;
  quern_tensor *x = input("x"), *y = linear(x, known(0));
  open_for("cpu", 1, &y, false);
  EXPECT_OK(quern_program_save(program, PATH));
  run_program();
  memcpy(before, outputs.at[0], sizeof before);
  char *constants = malloc(PACKED);
  assert_non_null(constants);
  memcpy(constants, program->constants, PACKED);
  close_program();
  assert_int_equal(stat(PATH, &file), 0);
  EXPECT_OK(quern_program_load(&program, PATH));
  assert_int_equal(constant_bytes(), PACKED);
  assert_memory_equal(constants, program->constants, PACKED); /* packed bytes are in the file */
  EXPECT_OK(quern_instance_new(&instance, program));
  run_program();
  assert_memory_equal(before, outputs.at[0], sizeof before);
  close_program();
  free(constants);
  unlink(PATH);
}

/* Found in the cache: packed again, from the elements that the graph has this time. */
static void found_in_the_cache(void **state) {
  (void)state;
  for (int time = 0; time < 4; time++) {
    set_weights(time);
    quern_tensor *x = input("x"), *y = linear(x, quern_abs(known(0)));
    open_for("cpu", 1, &y, false);
    assert_true(time < 2 || program->kernels[0]->fns.n == 0); /* it was read: nothing is known of its kernels */
    assert_int_equal(constant_bytes(), PACKED);
    expect_bits(1, (const quern_tensor *[]){linear(x, quern_abs(given(0)))});
    test_renew();
  }
}

/* The elements of such a constant are in the cache too, and need not be aligned there. */
static void constants_found_in_the_cache(void **state) {
  (void)state;
  set_weights(0);
  for (int time = 0; time < 3; time++) {
    quern_tensor *x = input("x"), *y = linear(x, quern_neg(written(1)));
    open_for("cpu", 1, &y, false);
    assert_true(time < 2 || program->kernels[0]->fns.n == 0);
    assert_int_equal(constant_bytes(), PACKED);
    expect_bits(1, (const quern_tensor *[]){linear(x, quern_neg(given(1)))});
    test_renew();
  }
}

static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_tensor *y = linear(input("x"), known(0));
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.device = "interp";
    options.threads = 1;
    EXPECT_OK(quern_context_check(ctx));
    fault_begin(&fault);
    quern_status status = quern_program_compile(&program, ctx, 1, &y, &options);
    if (status == QUERN_STATUS_OK) status = quern_instance_new(&instance, program);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    close_program();
    test_renew();
  }
  assert_true(fault.n > 50);
}

int main(void) {
  snprintf(folder, sizeof folder, "/tmp/quern-test-pack-XXXXXX");
  if (mkdtemp(folder) == NULL) return 1;
  setenv("QUERN_CACHE", folder, 1);
  set_weights(0);
  const struct CMUnitTest tests[] = {TEST(packed_once),
                                     TEST(originals_are_dropped),
                                     TEST(groups_share_what_is_packed),
                                     TEST(read_elsewhere_too),
                                     TEST(inputs_are_not_packed),
                                     TEST(not_packed),
                                     TEST(in_loops),
                                     TEST(saved),
                                     TEST(found_in_the_cache),
                                     TEST(constants_found_in_the_cache),
                                     TEST(convolutions),
                                     TEST(lack_of_memory)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command) == 0 ? failed : 1;
}
