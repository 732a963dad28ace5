/* tests/engine/test_remote.c -- programs on a device with memory of its own: OpenCL, where there is some */
#include "engine/engine_test.h"

static quern_program_options remote_options(void) {
  quern_program_options options = QUERN_PROGRAM_OPTIONS;
  options.device = "opencl";
  return options;
}

/* Skips a test where there is no device. */
static void need_device(void) {
  char text[256];
  struct rt_stream *stream;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  if (rt_opencl.remote->open(&stream, &heap) != QUERN_STATUS_OK) {
    print_message("%s\n", quern_last_error());
    skip();
  }
  rt_opencl.remote->close(stream);
  rt_opencl.describe(&heap, text, sizeof text);
  assert_true(strlen(text) > 3);
}

/* ---- what it computes ------------------------------------------------------------------------------------ */

static float weights[64];

static quern_tensor *some_weights(void) {
  for (int i = 0; i < 64; i++) weights[i] = (float)(i % 7) / 4 - 0.5f;
  return quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(8, 8), weights);
}

static void results_and_constants(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *x = F32_INPUT("x", 5, 8), *s = F32_STATE("s", 8), *w = some_weights();
  quern_tensor *h = quern_gelu(quern_linear(quern_layer_norm(x, 1, s, NULL, 1e-5), w, NULL));
  quern_tensor *empty = F32_INPUT("empty", 0, 3);
  expect_same(TENSORS(quern_softmax(h, 1), x, quern_sum(h, QUERN_LIST(0, 1), false), quern_neg(empty)), &options);
  options.optimise = 0;
  expect_same(TENSORS(quern_softmax(h, 1), quern_cast(x, QUERN_DTYPE_BF16)), &options);
}

static void body_add(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(quern_add(in[1], quern_mul(in[2], in[3])), quern_cast(in[0], QUERN_DTYPE_F32));
  out[1] = quern_sub(in[1], in[2]);
}
static void body_double(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(in[0], in[0]);
}
static void is_small(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_lt(in[0], quern_scalar(ctx, QUERN_DTYPE_F32, 100));
}
static void body_neg(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_neg(in[0]);
}

static void control(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *c = F32_INPUT("c", 3), *xs = F32_INPUT("x", 4, 3), *k = F32_INPUT("k", 3), *looped[2], *grown[1],
               *chosen[1];
  for (int64_t trip = 0; trip <= 4; trip += 4) {
    quern_loop_options loop = {sizeof loop, trip, trip > 0, 1, 1, 1, 1};
    quern_tensor *operands[] = {c, trip > 0 ? xs : F32_INPUT("none", 0, 3), k};
    EXPECT_OK(quern_loop(ctx, &loop, operands, body_add, NULL, looped));
    expect_same(TENSORS(looped[0], looped[1]), &options);
  }
  quern_tensor *one = quern_add(quern_mul(k, k), quern_scalar(ctx, QUERN_DTYPE_F32, 1));
  quern_tensor *start = quern_max(one, QUERN_LIST(0), false);
  EXPECT_OK(quern_while(ctx, 1, 0, (quern_tensor *[]){start}, is_small, body_double, NULL, grown));
  quern_tensor *positive = quern_lt(quern_scalar(ctx, QUERN_DTYPE_F32, 0), quern_sum(k, QUERN_LIST(0), false));
  EXPECT_OK(quern_if(positive, 1, (quern_tensor *[]){k}, 1, body_double, body_neg, NULL, chosen));
  expect_same(TENSORS(grown[0], chosen[0]), &options);
}

/* ---- states ----------------------------------------------------------------------------------------------- */

static void states_stay_there(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options(), plain = remote_options();
  quern_tensor *s = F32_STATE("s", 2), *x = F32_INPUT("x", 2);
  options.n_updates = 1;
  options.updates = (quern_update[]){{s, quern_add(s, x)}};
  open_program(0, NULL, &options);
  EXPECT_OK(quern_instance_set_state(instance, 0, (float[]){1, 2}));
  assert_null(quern_instance_state(instance, 0));
  quern_program *reading, *host;
  quern_instance *reader = NULL;
  EXPECT_OK(quern_program_compile(&reading, ctx, TENSORS(quern_mul(s, s)), &plain));
  EXPECT_OK(quern_instance_new_with(&reader, reading, instance));
  float a[2], b[2];
  for (int i = 1; i <= 3; i++) {
    EXPECT_OK(quern_instance_run(instance, (const void *[]){(float[]){1, 1}}, NULL));
    EXPECT_OK(quern_instance_run(reader, NULL, (void *[]){a}));
    EXPECT_OK(quern_instance_get_state(instance, 0, b));
    assert_true(b[0] == (float)(1 + i) && a[0] == b[0] * b[0] && a[1] == b[1] * b[1]);
  }
  plain.device = "interp";
  EXPECT_OK(quern_program_compile(&host, ctx, TENSORS(quern_neg(s)), &plain));
  quern_instance *wrong;
  EXPECT_ERROR(quern_instance_new_with(&wrong, host, instance), INVALID, "the program is for device interp");
  quern_program_free(host);
  close_program();
  quern_program_free(reading);
  EXPECT_OK(quern_instance_run(reader, NULL, (void *[]){a}));
  assert_true(a[0] == 16);
  quern_instance_free(reader);
}

static void rows_of_a_leading_dimension(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *x = F32_INPUT("x", 6, 8), *y = quern_softmax(quern_linear(x, some_weights(), NULL), 1);
  options.n_leading = 1;
  options.leading = (quern_tensor *[]){x};
  open_program(TENSORS(y), &options);
  assert_int_equal(program->memory.staging, 2 * 6 * 8 * 4);
  float all[48];
  run_program();
  memcpy(all, outputs.at[0], sizeof all);
  for (int64_t rows = 0; rows <= 6; rows++) {
    float some[49];
    for (int i = 0; i < 49; i++) some[i] = -7;
    EXPECT_OK(quern_instance_set_leading(instance, rows));
    EXPECT_OK(quern_instance_run(instance, (const void *const *)inputs.at, (void *[]){some}));
    assert_memory_equal(some, all, (size_t)rows * 8 * sizeof *some);
    assert_true(some[rows * 8] == -7); /* nothing behind the rows */
  }
  close_program();
}

/* ---- what goes wrong --------------------------------------------------------------------------------------- */

static void targets_that_do_not_fit(void **state) {
  (void)state;
  quern_program_options options = remote_options();
  quern_program *none;
  quern_tensor *y = quern_neg(F32_INPUT("x", 2));
  options.target = "sm_90";
  EXPECT_ERROR(quern_program_compile(&none, ctx, TENSORS(y), &options), INVALID,
               "device \"opencl\" does not run what is made for target \"sm_90\"");
  options.target = "sm_1";
  EXPECT_ERROR(quern_program_compile(&none, ctx, TENSORS(y), &options), INVALID, "there is no target \"sm_1\"");
  options.device = "cpu";
  options.target = "opencl";
  EXPECT_ERROR(quern_program_compile(&none, ctx, TENSORS(y), &options), INVALID, "device \"cpu\" does not run");
  options.device = "cuda";
  EXPECT_ERROR(quern_program_compile(&none, ctx, TENSORS(y), &options), INVALID, "device \"cuda\" does not run");
  options.device = "interp";
  EXPECT_OK(quern_program_compile(&none, ctx, TENSORS(y), &options));
  quern_program_free(none);
}

/* A device that fails at the n-th call of all that can fail. */
static int calls_left;
static bool fails(void) { return calls_left > 0 && --calls_left == 0; }
#define FAILING(NAME, PARAMETERS, ARGUMENTS)                                                                           \
  static quern_status failing_##NAME PARAMETERS {                                                                      \
    if (fails()) return base_error(QUERN_STATUS_INTERNAL, "planted: " #NAME);                                          \
    return rt_opencl.remote->NAME ARGUMENTS;                                                                           \
  }
FAILING(open, (struct rt_stream * *stream, struct base_heap *heap), (stream, heap))
FAILING(alloc, (struct rt_stream * stream, size_t bytes, void **at), (stream, bytes, at))
FAILING(upload, (struct rt_stream * stream, void *to, const void *from, size_t bytes), (stream, to, from, bytes))
FAILING(download, (struct rt_stream * stream, void *to, const void *from, size_t bytes), (stream, to, from, bytes))
FAILING(copy, (struct rt_stream * stream, void *to, const void *from, size_t bytes), (stream, to, from, bytes))
FAILING(fill, (struct rt_stream * stream, void *at, int byte, size_t bytes), (stream, at, byte, bytes))
FAILING(wait, (struct rt_stream * stream), (stream))
FAILING(launch,
        (struct rt_stream * stream, struct rt_module *module, size_t k, const struct kern_launch *launch, void *scratch,
         size_t stride),
        (stream, module, k, launch, scratch, stride))

static void every_call_may_fail(void **state) {
  (void)state;
  need_device();
  struct rt_remote failing = {failing_open,   rt_opencl.remote->close, failing_alloc, rt_opencl.remote->release,
                              failing_upload, failing_download,        failing_copy,  failing_fill,
                              failing_wait,   failing_launch};
  struct rt_device device = rt_opencl;
  device.remote = &failing;
  quern_program_options options = remote_options();
  quern_tensor *s = F32_STATE("s", 3), *x = F32_INPUT("x", 3), *looped[2];
  quern_loop_options loop = {sizeof loop, 2, false, 1, 1, 1, 1};
  EXPECT_OK(quern_loop(ctx, &loop, (quern_tensor *[]){s, F32_INPUT("xs", 2, 3), x}, body_add, NULL, looped));
  options.n_updates = 1;
  options.updates = (quern_update[]){{s, looped[0]}};
  open_program(TENSORS(looped[1], x), &options);
  quern_instance_free(instance);
  instance = NULL;
  program->device = &device;
  int n = 1, met = 0;
  for (bool again = true; again; n++) {
    calls_left = n;
    quern_status status = quern_instance_new(&instance, program);
    if (status == QUERN_STATUS_OK) status = quern_instance_set_state(instance, 0, states.at[0]);
    if (status == QUERN_STATUS_OK) instance->poison = true;
    if (status == QUERN_STATUS_OK) status = quern_instance_run(instance, (const void *const *)inputs.at, outputs.at);
    again = calls_left == 0;
    calls_left = 0;
    assert_int_equal(status != QUERN_STATUS_OK, again);
    if (again) met += strstr(quern_last_error(), "planted") != NULL;
    quern_instance_free(instance);
    instance = NULL;
  }
  assert_true(met == n - 2 && n > 20);
  program->device = &rt_opencl;
  close_program();
}

static void allocations_may_fail(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *s = F32_STATE("s", 8), *y = quern_softmax(quern_linear(F32_INPUT("x", 4, 8), some_weights(), NULL), 1);
  options.n_updates = 1;
  options.updates = (quern_update[]){{s, quern_add(s, quern_sum(y, QUERN_LIST(0), false))}};
  open_program(TENSORS(y), &options); /* what is compiled is in the cache */
  close_program();
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = quern_program_compile(&program, ctx, TENSORS(y), &options);
    if (status == QUERN_STATUS_OK) status = quern_instance_new(&instance, program);
    if (status == QUERN_STATUS_OK) status = quern_instance_run(instance, (const void *const *)inputs.at, outputs.at);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    close_program();
  }
  assert_true(fault.n > 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(results_and_constants),   TEST(control),
                                     TEST(states_stay_there),       TEST(rows_of_a_leading_dimension),
                                     TEST(targets_that_do_not_fit), TEST(every_call_may_fail),
                                     TEST(allocations_may_fail)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
