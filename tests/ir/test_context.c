/* tests/ir/test_context.c -- making and freeing contexts, and how the errors of builders are kept, placed and reported */
#include "ir/ir_test.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tensor/tensor.h"

/* ---- making and freeing ----------------------------------------------------------------------------------------- */

static void test_wrong_calls(void **state) {
  (void)state;
  quern_context *c = (quern_context *)&c;
  EXPECT_ERROR(ir_context_new(NULL, NULL), INVALID, "the place for the context is null");
  quern_context_options options = {.size = sizeof options.size - 1};
  EXPECT_ERROR(ir_context_new(&c, &options), INVALID, "context_new: quern_context_options has a size of 7 bytes");
  assert_null(c);
  options = (quern_context_options){.size = sizeof options, .allocator = {.alloc = memory_alloc}};
  EXPECT_ERROR(ir_context_new(&c, &options), INVALID, "needs both alloc and free");
  options = (quern_context_options){.size = sizeof options, .allocator = {.free = memory_free}};
  EXPECT_ERROR(quern_context_new(&c, &options), INVALID, "needs both alloc and free");
  assert_null(c);
  EXPECT_ERROR(quern_context_check(NULL), INVALID, "the context is null");
  quern_context_free(NULL);
  assert_int_equal(quern_context_node_count(NULL), 0);
}

static void test_defaults(void **state) {
  (void)state;
  quern_context *c = NULL;
  assert_int_equal(ir_context_new(&c, NULL), QUERN_STATUS_OK);
  assert_int_equal(c->seed, 0);
  assert_int_equal(quern_context_check(c), QUERN_STATUS_OK);
  quern_context_free(c);
  quern_context_options options = {.size = sizeof options, .seed = 42};
  assert_int_equal(ir_context_new(&c, &options), QUERN_STATUS_OK);
  assert_int_equal(c->seed, 42);
  quern_context_free(c);
}

/* The seed of a context that a new process makes; argument: see main. */
static int seed_of_process(const char *argument) {
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    execl("/proc/self/exe", "test_context", argument, (char *)NULL);
    _exit(201);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static void test_seed_of_environment(void **state) {
  (void)state;
  assert_int_equal(setenv("QUERN_SEED", "77", 1), 0);
  assert_int_equal(seed_of_process("0"), 77);
  assert_int_equal(seed_of_process("5"), 5); /* the option wins */
  assert_int_equal(unsetenv("QUERN_SEED"), 0);
}

/* What the new process does: its exit status is the seed. */
static int seed_of_context(uint64_t given) {
  quern_context *c = NULL;
  quern_context_options options = {.size = sizeof options, .seed = given};
  if (ir_context_new(&c, &options) != QUERN_STATUS_OK) return 202;
  int seed = (int)c->seed;
  quern_context_free(c);
  return seed;
}

static void test_kinds_are_registered(void **state) {
  (void)state;
  quern_context *c = NULL;
  assert_int_equal(quern_context_new(&c, NULL), QUERN_STATUS_OK);
  for (const struct ir_composite *const *kind = tensor_composites; *kind != NULL; kind++) {
    assert_ptr_equal(ir_composite_find(c, (*kind)->name), *kind);
  }
  assert_null(ir_composite_find(c, "no such composite"));
  assert_null(ir_composite_find(ctx, tensor_composites[0]->name));
  quern_context_free(c);
}

static void test_memory_is_counted(void **state) {
  (void)state;
  quern_context_stats before = context_stats(ctx);
  assert_int_equal(before.live_bytes, memory_live);
  assert_true(before.live_bytes >= sizeof(struct quern_context));
  struct ir_buffer *buffer = ir_buffer_new(ctx, 1 << 20);
  assert_non_null(buffer);
  assert_true(buffer->owned);
  quern_context_stats after = context_stats(ctx);
  assert_true(after.live_bytes >= before.live_bytes + (1 << 20));
  assert_int_equal(after.live_bytes, memory_live);
  assert_true(after.allocations > before.allocations);
  ir_buffer_free(ctx, buffer);
  assert_int_equal(context_stats(ctx).live_bytes, after.live_bytes); /* the pool keeps it */
  assert_int_equal(quern_pool_trim(ctx, 0), QUERN_STATUS_OK);
  quern_context_stats freed = context_stats(ctx);
  assert_true(freed.live_bytes < after.live_bytes);
  assert_true(freed.peak_bytes >= after.live_bytes);
  assert_non_null(ir_buffer_new(ctx, 100)); /* is freed with the context: the teardown looks */
}

static void test_nodes_are_counted(void **state) {
  (void)state;
  assert_int_equal(quern_context_node_count(ctx), 0);
  quern_tensor *x = INPUT(F32, "x", DIMS(2));
  IR_MAKE(ctx, IR_NEG, NULL, x);
  assert_int_equal(quern_context_node_count(ctx), 2);
  IR_MAKE(ctx, IR_NEG, NULL, x);
  assert_int_equal(quern_context_node_count(ctx), 2);
  IR_MAKE(ctx, IR_NOT, NULL, x); /* fails: not counted */
  assert_int_equal(quern_context_node_count(ctx), 2);
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_DTYPE);
}

/* Each allocation of quern_context_new fails once. */
static void test_no_memory(void **state) {
  (void)state;
  size_t held = memory_live;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    quern_context_options options = {.size = sizeof options, .allocator = memory_allocator};
    quern_context *c = (quern_context *)&c;
    fault_begin(&fault);
    quern_status status = quern_context_new(&c, &options);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(c == NULL, fault.met);
    quern_context_free(c);
    assert_int_equal(memory_live, held);
  }
  assert_true(fault.n > 2); /* the context, and the map of composites at least */
}

/* ---- errors of builders ----------------------------------------------------------------------------------------- */

static void test_first_error_stands(void **state) {
  (void)state;
  quern_place_set(NULL, 0);
  assert_ptr_equal(ir_fail(ctx, QUERN_STATUS_SHAPE, "first: %d", 1), &ir_poison);
  assert_true(ir_is_poison(ir_fail(ctx, QUERN_STATUS_DTYPE, "second")));
  assert_string_equal(quern_last_error(), "second");
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "first: 1");
  assert_string_equal(quern_last_error(), "first: 1");
  assert_int_equal(quern_last_status(), QUERN_STATUS_SHAPE);
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK); /* reported once */
  ir_fail(ctx, QUERN_STATUS_DTYPE, "third");
  EXPECT_ERROR(quern_context_check(ctx), DTYPE, "third");
}

static void test_error_without_context(void **state) {
  (void)state;
  assert_ptr_equal(ir_fail(NULL, QUERN_STATUS_INVALID, "nowhere"), &ir_poison);
  assert_string_equal(quern_last_error(), "nowhere");
  assert_int_equal(quern_last_status(), QUERN_STATUS_INVALID);
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
}

static void test_place(void **state) {
  (void)state;
  quern_place_set("model.c", 41);
  ir_fail(ctx, QUERN_STATUS_SHAPE, "matmul: wrong");
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "matmul: wrong\n  at model.c:41");
  assert_string_equal(quern_last_error(), "matmul: wrong\n  at model.c:41");

  ir_fail(ctx, QUERN_STATUS_SHAPE, "matmul: wrong HINT: do this");
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "");
  assert_string_equal(quern_last_error(), "matmul: wrong\n  at model.c:41 HINT: do this");

  /* an error that comes back from a check has its place already */
  quern_place_set("other.c", 1);
  ir_fail_last(ctx);
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "");
  assert_string_equal(quern_last_error(), "matmul: wrong\n  at model.c:41 HINT: do this");
  quern_place_set(NULL, 0);
}

/* The place survives long messages, long hints and long paths. */
static void test_long_messages(void **state) {
  (void)state;
  char text[1500], path[600];
  memset(text, 'm', sizeof text);
  text[sizeof text - 1] = '\0';
  memset(path, 'p', sizeof path);
  path[sizeof path - 1] = '\0';
  quern_place_set("model.c", 41);
  ir_fail(ctx, QUERN_STATUS_SHAPE, "%s", text);
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "mmm\n  at model.c:41");
  ir_fail(ctx, QUERN_STATUS_SHAPE, "short HINT: %s", text);
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "short\n  at model.c:41 HINT: mmm");
  quern_place_set(path, 7);
  ir_fail(ctx, QUERN_STATUS_SHAPE, "%s HINT: cast", text);
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, ":7");
  assert_true(strlen(quern_last_error()) < BASE_MESSAGE_BYTES);
  quern_place_set(NULL, 0);
}

/* The macros of quern/place.h: an error names this file and line. */
static void test_place_of_builders(void **state) {
  (void)state;
  char place[64];
  quern_tensor *a = INPUT(F32, "a", DIMS(2)), *b = INPUT(F64, "b", DIMS(2));
  int line = __LINE__ + 1;
  quern_add(a, b);
  snprintf(place, sizeof place, "test_context.c:%d", line);
  EXPECT_ERROR(quern_context_check(ctx), DTYPE, place);
}

static void test_poison_error(void **state) {
  (void)state;
  ir_fail(ctx, QUERN_STATUS_SHAPE, "why");
  EXPECT_ERROR(ir_poison_error(ctx), SHAPE, "why");
  EXPECT_ERROR(ir_poison_error(ctx), INTERNAL, "poison tensor without an error");
}

int main(int argc, char **argv) {
  if (argc == 2) return seed_of_context(strtoull(argv[1], NULL, 10));
  const struct CMUnitTest tests[] = {
      TEST(test_wrong_calls),
      TEST(test_defaults),
      TEST(test_seed_of_environment),
      TEST(test_kinds_are_registered),
      TEST(test_memory_is_counted),
      TEST(test_nodes_are_counted),
      TEST(test_no_memory),
      TEST(test_first_error_stands),
      TEST(test_error_without_context),
      TEST(test_place),
      TEST(test_long_messages),
      TEST(test_place_of_builders),
      TEST(test_poison_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
