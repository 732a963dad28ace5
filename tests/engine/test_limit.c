/* tests/engine/test_limit.c -- memory limits: the smallest is exact, bodies of loops count, bits stay the same */
#include "engine/engine_test.h"

enum { ROWS = 8, COLS = 16, LAYERS = 6 };
static int layers = LAYERS;

/* Values forwards that the way back reads again. */
static quern_tensor *deep(quern_tensor *x) {
  quern_tensor *kept[LAYERS];
  for (int i = 0; i < layers; i++) {
    kept[i] = quern_concat(2, (quern_tensor *[]){quern_exp(x), quern_sin(x)}, 0); /* large, and cheap to make again */
    x = quern_softmax(quern_slice(kept[i], 0, 0, ROWS, 1), 0);
  }
  for (int i = layers; i-- > 0;) x = quern_add(quern_softmax(x, 1), quern_slice(kept[i], 0, ROWS, 2 * ROWS, 1));
  return x;
}

static quern_program_options with_limit(int64_t limit) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  options.threads = 1;
  options.passes = "-fuse"; /* one step an operation: there is something to choose from */
  options.memory_limit = limit;
  return options;
}

/* The smallest limit that the message of a refusal names; it names five tensors too. */
static int64_t named_least(void) {
  const char *text = quern_last_error(), *at = strstr(text, "the smallest that can is ");
  int tensors = 0;
  assert_non_null(at);
  const char *tensor = strstr(text, "the largest tensors: ");
  assert_non_null(tensor);
  for (; (tensor = strstr(tensor + 1, " bytes")) != NULL;) tensors++;
  assert_int_equal(tensors, 5);
  return strtoll(at + strlen("the smallest that can is "), NULL, 10);
}

static int count_again(int part) {
  int n = 0;
  for (int i = 0; i < program->subprograms[part].n_steps; i++) n += program->subprograms[part].steps[i].rematerialized;
  return n;
}

/* Runs with a limit: the bits are the expected ones, dead bytes overwritten too. */
static void expect_bits(quern_tensor *y, int64_t limit, const void *expected) {
  quern_program_options options = with_limit(limit);
  open_program(TENSORS(y), &options);
  assert_true(program->memory.arena + program->memory.scratch <= limit);
  for (int i = 0; i < 2; i++) {
    instance->poison = i == 1;
    run_program();
    assert_memory_equal(outputs.at[0], expected, ir_bytes(y));
  }
}

/* The smallest limit works, one byte less is refused and names it again. */
static int64_t expect_exact(quern_tensor *y, int64_t *whole) {
  char expected[MOST_BYTES];
  quern_program_options options = with_limit(0);
  open_program(TENSORS(y), &options);
  run_program();
  memcpy(expected, outputs.at[0], ir_bytes(y));
  *whole = program->memory.arena + program->memory.scratch;
  for (int i = 0; i < program->n_subprograms; i++) assert_int_equal(count_again(i), 0);
  close_program();

  options = with_limit(1);
  EXPECT_ERROR(quern_program_compile(&program, ctx, TENSORS(y), &options), MEMORY,
               "the limit of 1 bytes cannot be met");
  int64_t least = named_least();
  assert_true(least < *whole);
  options = with_limit(least - 1);
  EXPECT_ERROR(quern_program_compile(&program, ctx, TENSORS(y), &options), MEMORY, "cannot be met");
  assert_int_equal(named_least(), least);
  for (int part = 1; part < 4; part++) {
    expect_bits(y, least + (*whole - least) * part / 4, expected);
    close_program();
  }
  expect_bits(y, least, expected); /* is left open */
  return least;
}

static void the_smallest_is_exact(void **state) {
  (void)state;
  int64_t whole;
  expect_exact(deep(F32_INPUT("x", ROWS, COLS)), &whole);
  assert_true(count_again(0) > 0);
  close_program();
}

static void body(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = deep(in[1]);
}

/* The arena of a body counts, and the body repeats steps. */
static void bodies_repeat(void **state) {
  (void)state;
  quern_tensor *y, *x = quern_exp(F32_INPUT("x", ROWS, COLS));
  quern_loop_options loop = {sizeof loop, 3, false, 1, 0, 0, 0};
  int64_t whole, least;
  EXPECT_OK(quern_loop(ctx, &loop, &x, body, NULL, &y));
  least = expect_exact(quern_tanh(y), &whole);
  assert_int_equal(program->n_subprograms, 2);
  assert_true(count_again(1) > 0);
  close_program();
  /* no more is repeated than is needed */
  quern_program_options options = with_limit(whole - 64);
  open_program(TENSORS(quern_tanh(y)), &options);
  int few = count_again(1);
  close_program();
  options = with_limit(least);
  open_program(TENSORS(quern_tanh(y)), &options);
  assert_true(few > 0 && few < count_again(1));
  close_program();
}

static void inner(void *user, quern_tensor *const *in, quern_tensor **out) {
  quern_loop_options loop = {sizeof loop, 2, false, 1, 0, 0, 0};
  quern_tensor *x = quern_exp(in[1]);
  (void)user;
  if (quern_loop(ctx, &loop, &x, body, NULL, out) != QUERN_STATUS_OK) out[0] = x;
}

static void bodies_of_bodies_repeat(void **state) {
  (void)state;
  quern_tensor *y, *x = F32_INPUT("x", ROWS, COLS);
  quern_loop_options loop = {sizeof loop, 2, false, 1, 0, 0, 0};
  int64_t whole;
  EXPECT_OK(quern_loop(ctx, &loop, &x, inner, NULL, &y));
  expect_exact(y, &whole);
  assert_int_equal(program->n_subprograms, 3);
  assert_true(count_again(1) + count_again(2) > 0);
  close_program();
}

static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  int64_t least = 0;
  layers = 3;
  while (fault_next(&fault)) {
    quern_tensor *y, *x = F32_INPUT("x", ROWS, COLS);
    quern_loop_options loop = {sizeof loop, 3, false, 1, 0, 0, 0};
    EXPECT_OK(quern_loop(ctx, &loop, &x, body, NULL, &y));
    quern_program_options options = with_limit(1);
    if (least == 0) assert_int_equal(quern_program_compile(&program, ctx, TENSORS(y), &options), QUERN_STATUS_MEMORY);
    if (least == 0) least = named_least();
    options = with_limit(least);
    fault_begin(&fault);
    quern_status status = quern_program_compile(&program, ctx, TENSORS(y), &options);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    if (status == QUERN_STATUS_OK) assert_true(count_again(1) > 0);
    close_program();
    test_renew();
  }
  assert_true(fault.n > 50);
  layers = LAYERS;
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(the_smallest_is_exact), TEST(bodies_repeat), TEST(bodies_of_bodies_repeat),
                                     TEST(lack_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
