/* tests/engine/test_eager_device.c -- eager use on other devices than the CPU: the interpreter of kernels, and one that has
** memory of its own: OpenCL where there is some, or the device that is named ("cuda")
*/
#include <unistd.h>

#include "engine/engine_test.h"

enum { ROWS = 12, COLUMNS = 4 };

static const char *devices[] = {"interp", "opencl"};
#define REMOTE devices[1]

static float values[ROWS * COLUMNS];

static bool is_there(const char *device) {
  struct base_heap heap;
  const quern_device *found;
  base_heap_init(&heap, NULL);
  if (rt_device_find(&found, "test", device) == QUERN_STATUS_OK && rt_device_probe(found, &heap) == QUERN_STATUS_OK)
    return true;
  print_message("%s\n", quern_last_error());
  return false;
}

/* A context of its own on the device; false: the device is not there. */
static bool use_device(const char *device) {
  test_renew();
  if (!is_there(device)) return false;
  EXPECT_OK(quern_context_set_device(ctx, device));
  return true;
}

static void need_remote(void) {
  if (!use_device(REMOTE)) skip();
}

static quern_tensor *numbers(int rank, const int64_t *dims, uint64_t seed) {
  double x[ROWS * COLUMNS];
  size_t n = 1;
  for (int k = 0; k < rank; k++) n *= (size_t)dims[k];
  assert_true(n <= BASE_COUNT(values));
  test_fill(n, x, seed);
  for (size_t i = 0; i < n; i++) values[i] = (float)x[i];
  return quern_tensor_copy(ctx, QUERN_DTYPE_F32, rank, dims, values);
}

static const struct ir_buffer *buffer_of(const quern_tensor *x) {
  assert_int_equal(x->node->op, IR_BUFFER);
  return x->node->attrs->buffer;
}

/* Realizes it, and compares what it holds with what the evaluator says of it. */
static quern_tensor *expect_realized(quern_tensor *x) {
  char expected[MOST_BYTES];
  void *dst = expected;
  quern_tensor *y = x;
  EXPECT_OK(quern_tensor_realize(&y));
  if (ctx->remote != NULL) assert_true(buffer_of(y)->data == NULL && buffer_of(y)->remote != NULL);
  EXPECT_OK(quern_eval_reference(ctx, 1, &x, &dst, 0, NULL));
  expect_near(y, quern_tensor_data(y), expected);
  return y;
}

static void realized_values(void **state) {
  (void)state;
  for (size_t d = 0; d < BASE_COUNT(devices); d++) {
    if (!use_device(devices[d])) continue;
    quern_tensor *x = numbers(QUERN_LIST(ROWS, COLUMNS), 1), *w = numbers(QUERN_LIST(COLUMNS, COLUMNS), 2);
    quern_tensor *h = expect_realized(quern_tanh(quern_matmul(x, w)));
    quern_tensor *y = expect_realized(quern_softmax(quern_matmul(h, w), 1)); /* of realized ones */
    expect_realized(quern_cumsum(quern_add(y, x), 0));
    expect_realized(quern_argmax(y, 1, false));
    expect_realized(quern_neg(quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(0, 3))));
    assert_int_equal(engine_eager_get(ctx).interpreted, 0); /* none is for another device */
    assert_int_equal(engine_eager_get(ctx).compiled, 5);
  }
}

/* Least squares by gradient descent, in elements that stay where they are computed. */
static void training_does_not_grow(void **state) {
  (void)state;
  enum { STEPS = 300 };
  for (size_t d = 0; d < BASE_COUNT(devices); d++) {
    if (!use_device(devices[d])) continue;
    quern_tensor *x = numbers(QUERN_LIST(ROWS, COLUMNS), 1), *y = numbers(QUERN_LIST(ROWS, 1), 2);
    quern_tensor *keep[2] = {numbers(QUERN_LIST(COLUMNS, 1), 3), NULL};
    quern_mark mark;
    float first = 0, last = 0;
    size_t live = 0;
    EXPECT_OK(quern_context_mark(ctx, &mark));
    for (int step = 0; step < STEPS; step++) {
      quern_tensor *loss = quern_mse_loss(quern_matmul(x, keep[0]), y, QUERN_REDUCTION_MEAN), *dw;
      EXPECT_OK(quern_grad(loss, 1, keep, &dw));
      keep[0] = quern_sub(keep[0], quern_mul_scalar(dw, 0.05));
      keep[1] = loss;
      EXPECT_OK(quern_tensors_realize(2, keep));
      EXPECT_OK(quern_context_rewind(ctx, mark, 2, keep));
      if (step == STEPS / 2) live = memory_live;
      if (step > STEPS / 2) assert_int_equal(memory_live, live);
      if (step == 0) first = *(const float *)quern_tensor_data(keep[1]);
    }
    last = *(const float *)quern_tensor_data(keep[1]);
    assert_true(last > 0 && last < 0.9f * first);
    quern_pool_stats pool = QUERN_INIT(quern_pool_stats);
    EXPECT_OK(quern_pool_get_stats(ctx, &pool));
    assert_true(pool.misses < 20 && pool.hits > 2 * STEPS - 20 && pool.used_bytes <= 8 * 256);
  }
}

/* The pool is one of the device's memory. */
static void blocks_are_used_again(void **state) {
  (void)state;
  need_remote();
  quern_pool_stats pool = QUERN_INIT(quern_pool_stats);
  quern_tensor *x = numbers(QUERN_LIST(ROWS), 1);
  for (int turn = 0; turn < 5; turn++) {
    quern_tensor *y = quern_mul_scalar(x, 0.5);
    EXPECT_OK(quern_tensor_realize(&y));
    EXPECT_OK(quern_tensor_release(x));
    x = y;
  }
  EXPECT_OK(quern_pool_get_stats(ctx, &pool));
  assert_int_equal(pool.misses, 2);
  assert_int_equal(pool.hits, 4); /* the first operand was uploaded */
  assert_int_equal(pool.used_bytes, 64);
  assert_int_equal(pool.kept_bytes, 64);
  assert_int_equal(pool.peak_bytes, 128);
  EXPECT_OK(quern_pool_trim(ctx, 0));
  EXPECT_OK(quern_pool_get_stats(ctx, &pool));
  assert_int_equal(pool.kept_bytes, 0);
  EXPECT_OK(quern_pool_limit(ctx, 0));
  EXPECT_OK(quern_tensor_release(x));
  EXPECT_OK(quern_pool_get_stats(ctx, &pool));
  assert_true(pool.used_bytes == 0 && pool.kept_bytes == 0 && pool.limit_bytes == 0);
}

/* What is realized on one device is used on another, and by all that reads elements on the host. */
static void elements_move_between_devices(void **state) {
  (void)state;
  need_remote();
  quern_tensor *x = numbers(QUERN_LIST(ROWS, COLUMNS), 1), *y = quern_exp(x), *z;
  EXPECT_OK(quern_tensor_realize(&y));
  EXPECT_OK(quern_context_set_device(ctx, "cpu"));
  assert_true(buffer_of(y)->data != NULL && buffer_of(y)->remote == NULL);
  z = expect_realized(quern_mul(y, x));
  EXPECT_OK(quern_context_set_device(ctx, REMOTE));
  z = expect_realized(quern_sub(z, y));
  EXPECT_OK(quern_context_set_device(ctx, "interp"));
  expect_realized(quern_neg(z));
}

static void realized_constants_are_read(void **state) {
  (void)state;
  need_remote();
  quern_tensor *x = F32_INPUT("x", 3), *y = numbers(QUERN_LIST(3), 1), *before = quern_exp(y);
  float expected[3];
  y = before;
  EXPECT_OK(quern_tensor_realize(&y));
  EXPECT_OK(quern_eval_reference(ctx, 1, &before, &(void *){expected}, 0, NULL));
  quern_graph *graph;
  char *text;
  EXPECT_OK(quern_graph_new(&graph, ctx, 1, &y, NULL));
  EXPECT_OK(quern_graph_print(graph, &text));
  assert_non_null(strstr(text, " buffer={")); /* its elements stand there */
  quern_free_text(text);
  quern_graph_free(graph);
  y = before;
  EXPECT_OK(quern_tensor_realize(&y));
  expect_same(TENSORS(quern_add(x, y)), NULL); /* a constant of a program */
}

static void evaluating(void **state) {
  (void)state;
  for (size_t d = 0; d < BASE_COUNT(devices); d++) {
    if (!use_device(devices[d])) continue;
    float got[2][ROWS], expected[2][ROWS], place[ROWS];
    quern_tensor *x = F32_INPUT("x", ROWS), *b = numbers(QUERN_LIST(ROWS), 4), *empty = F32_INPUT("empty", 0);
    quern_tensor *outs[] = {quern_softmax(quern_mul(x, b), 0), x, quern_neg(empty)};
    const quern_feed feeds[] = {{x, values}, {empty, NULL}};
    EXPECT_OK(quern_eval(ctx, 3, outs, (void *[]){got[0], got[1], NULL}, 2, feeds));
    EXPECT_OK(quern_eval_reference(ctx, 3, outs, (void *[]){expected[0], expected[1], NULL}, 2, feeds));
    for (int i = 0; i < 2; i++) expect_near(outs[i], got[i], expected[i]);
    memcpy(place, values, sizeof place); /* in place */
    EXPECT_OK(quern_eval(ctx, 1, outs, (void *[]){place}, 1, &(quern_feed){x, place}));
    expect_near(outs[0], place, expected[0]);
    EXPECT_ERROR(quern_eval(ctx, 1, outs, (void *[]){place}, 0, NULL), UNBOUND, "eval: the input \"x\", f32(12,)");
    quern_pool_stats pool = QUERN_INIT(quern_pool_stats);
    EXPECT_OK(quern_pool_get_stats(ctx, &pool));
    assert_int_equal(pool.used_bytes, 64); /* those of b */
  }
}

/* Wrapped memory belongs to the caller, who may change it. */
static void wrapped_memory_is_read_again(void **state) {
  (void)state;
  need_remote();
  float data[2] = {1, 2};
  for (int turn = 0; turn < 3; turn++) {
    quern_tensor *x = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(2), data), *y = quern_neg(x);
    data[0] += 1;
    EXPECT_OK(quern_tensor_realize(&y));
    assert_true(((const float *)quern_tensor_data(y))[0] == -data[0]);
    y = quern_neg(x);
    data[0] += 1;
    EXPECT_OK(quern_tensor_realize(&y));
    assert_true(((const float *)quern_tensor_data(y))[0] == -data[0]);
  }
}

static void lack_of_memory(void **state) {
  (void)state;
  need_remote();
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    float got[4], *read = NULL;
    quern_tensor *x = numbers(QUERN_LIST(4), 1), *y = quern_softmax(x, 0), *z = F32_INPUT("z", 4), *sum;
    sum = quern_add(x, z);
    EXPECT_OK(quern_context_check(ctx));
    fault_begin(&fault);
    quern_status status = quern_context_set_device(ctx, REMOTE);
    if (status == QUERN_STATUS_OK) status = quern_tensor_realize(&y);
    if (status == QUERN_STATUS_OK) {
      read = (float *)(uintptr_t)quern_tensor_data(y);
      status = read != NULL ? QUERN_STATUS_OK : quern_last_status();
    }
    if (status == QUERN_STATUS_OK) status = quern_eval(ctx, 1, &sum, &(void *){got}, 1, &(quern_feed){z, values});
    if (status == QUERN_STATUS_OK) status = quern_context_set_device(ctx, "cpu");
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    EXPECT_OK(quern_context_check(ctx));
    if (status == QUERN_STATUS_OK) assert_true(got[1] == 2 * values[1] && read[0] > 0);
    expect_near(x, quern_tensor_data(x), values);
  }
  assert_true(fault.n > 20);
}

int main(int n, char **arguments) {
  if (n > 1) REMOTE = arguments[1];
  char folder[] = "/tmp/quern-test-eager-device-XXXXXX", command[64];
  if (mkdtemp(folder) == NULL) return 1;
  setenv("QUERN_CACHE", folder, 1);
  setenv("POCL_CACHE_DIR", folder, 0);
  const struct CMUnitTest tests[] = {TEST(realized_values),
                                     TEST(training_does_not_grow),
                                     TEST(blocks_are_used_again),
                                     TEST(elements_move_between_devices),
                                     TEST(realized_constants_are_read),
                                     TEST(evaluating),
                                     TEST(wrapped_memory_is_read_again),
                                     TEST(lack_of_memory)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command) == 0 ? failed : 1;
}
