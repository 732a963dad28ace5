/* tests/ir/test_rewind.c -- marks: going back frees everything since, and nothing else; kept tensors; loops do not
** grow */
#define TEST_CONTEXT_NEW quern_context_new
#include "ir/ir_test.h"
#include "quern/quern.h"

/* What a context holds. */
struct size {
  size_t live, nodes, graphs, bodies, composites, buffers, used;
};

static struct size size_now(void) {
  return (struct size){.live = ctx->heap.live,
                       .nodes = ctx->nodes.n,
                       .graphs = ctx->graphs.n,
                       .bodies = ctx->bodies.n,
                       .composites = ctx->composites.n,
                       .buffers = ctx->buffers.n,
                       .used = ctx->buffer_cache.stats.used_bytes};
}

/* All but the bytes that maps and lists have grown by. */
static void expect_size(const struct size *then) {
  struct size now = size_now();
  assert_int_equal(now.nodes, then->nodes);
  assert_int_equal(now.nodes, ctx->n_nodes);
  assert_int_equal(now.graphs, then->graphs);
  assert_int_equal(now.graphs, ctx->n_graphs);
  assert_int_equal(now.bodies, then->bodies);
  assert_int_equal(now.composites, then->composites);
  assert_int_equal(now.buffers, then->buffers);
  assert_int_equal(now.used, then->used);
}

static quern_tensor *copy(int64_t n, float first) {
  float data[64];
  for (int64_t i = 0; i < n; i++) data[i] = first + (float)i;
  return quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(n), data);
}

static void double_it(void *user, quern_tensor *const *src, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(src[0], src[0]);
}

static void double_it_back(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                           quern_tensor *const *dy, quern_tensor **dx) {
  (void)user, (void)n, (void)x, (void)n_results, (void)y;
  dx[0] = quern_mul_scalar(dy[0], 2);
}

/* Expressions of all kinds: composites, their bodies, loops, a rule of the user, constants, memory. */
static quern_tensor *build(quern_tensor *x) {
  quern_tensor *y = quern_softmax(quern_gelu(quern_add(x, copy(8, 3))), 0);
  quern_tensor *z = NULL;
  EXPECT_OK(quern_composite_rule(ctx, "twice", double_it_back, NULL)); /* once a context: the last one is gone */
  EXPECT_OK(quern_composite(ctx, "twice", 1, &y, 1, double_it, NULL, &z));
  quern_tensor *dx = NULL;
  EXPECT_OK(quern_grad(quern_sum(z, QUERN_ALL, false), 1, &x, &dx));
  return quern_add(z, dx);
}

static void expect_values(quern_tensor *y, const float *expected) {
  float out[8];
  void *dst = out;
  EXPECT_OK(quern_eval(ctx, 1, &y, &dst, 0, NULL));
  assert_memory_equal(out, expected, sizeof out);
  EXPECT_OK(ir_verify(ctx, 1, &y));
}

static void everything_since_is_gone(void **state) {
  (void)state;
  quern_tensor *x = copy(8, 1), *old = quern_tanh(x);
  quern_mark mark;
  float expected[8];
  void *dst = expected;
  EXPECT_OK(quern_context_mark(ctx, &mark));
  struct size then = size_now();
  quern_tensor *y = build(x);
  EXPECT_OK(quern_eval(ctx, 1, &y, &dst, 0, NULL));
  assert_true(ctx->nodes.n > then.nodes + 20 && ctx->bodies.n > then.bodies && ctx->graphs.n > then.graphs);
  for (int turn = 0; turn < 3; turn++) {
    EXPECT_OK(quern_context_rewind(ctx, mark, 0, NULL));
    expect_size(&then);
    assert_ptr_equal(quern_tanh(x), old); /* older nodes are found as ever */
    assert_int_equal(ctx->n_nodes, then.nodes);
    expect_values(build(x), expected);
  }
  EXPECT_OK(quern_context_rewind(ctx, mark, 0, NULL));
  EXPECT_OK(ir_verify(ctx, 1, &old));
}

static void kept_tensors_move(void **state) {
  (void)state;
  quern_tensor *x = copy(8, 1), *older = quern_neg(x);
  static float mine[2] = {5, 6};
  quern_mark mark;
  EXPECT_OK(quern_context_mark(ctx, &mark));
  quern_tensor *lost = copy(16, 0), *a = copy(4, 10),
               *b = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(2, 1), mine);
  quern_tensor *none = quern_tensor_wrap(ctx, QUERN_DTYPE_I32, QUERN_LIST(0, 3), NULL);
  const void *data = quern_tensor_data(a), *gone = quern_tensor_data(lost);
  quern_tensor *keep[] = {b, older, a, none, a};
  EXPECT_OK(quern_context_rewind(ctx, mark, 5, keep));
  assert_ptr_equal(keep[1], older);
  assert_ptr_equal(keep[2], keep[4]);
  assert_ptr_equal(quern_tensor_data(keep[2]), data);
  assert_ptr_equal(quern_tensor_data(keep[0]), mine);
  assert_true(((const float *)quern_tensor_data(keep[2]))[3] == 13);
  assert_true(quern_tensor_rank(keep[0]) == 2 && quern_tensor_dim(keep[0], 0) == 2);
  assert_true(quern_tensor_dtype(keep[3]) == QUERN_DTYPE_I32 && quern_tensor_count(keep[3]) == 0);
  assert_int_equal(ctx->buffers.n, 4); /* x, and three that were kept */
  assert_int_equal(ctx->buffer_cache.stats.kept_bytes, 64);
  quern_tensor *again = copy(16, 7);
  assert_ptr_equal(quern_tensor_data(again), gone); /* the memory of what was not kept */
  quern_tensor *sum = quern_add(keep[0], keep[2]);
  float out[8];
  void *dst = out;
  EXPECT_OK(quern_eval(ctx, 1, &sum, &dst, 0, NULL));
  assert_true(out[0] == 15 && out[7] == 19);
  EXPECT_OK(ir_verify(ctx, 5, keep));
  EXPECT_OK(quern_context_rewind(ctx, mark, 1, &keep[2])); /* once more: the others go */
  assert_true(((const float *)quern_tensor_data(keep[2]))[3] == 13);
  EXPECT_OK(quern_context_rewind(ctx, mark, 0, NULL));
  assert_int_equal(ctx->buffers.n, 1);
}

static void marks_in_marks(void **state) {
  (void)state;
  quern_mark outer, inner, same, later;
  EXPECT_OK(quern_context_mark(ctx, &outer));
  quern_tensor *x = copy(8, 1);
  EXPECT_OK(quern_context_mark(ctx, &inner));
  EXPECT_OK(quern_context_mark(ctx, &same));
  assert_int_equal(inner.number, same.number); /* nothing was made in between */
  struct size then = size_now();
  (void)build(x);
  EXPECT_OK(quern_context_mark(ctx, &later));
  (void)copy(8, 5);
  EXPECT_OK(quern_context_rewind(ctx, inner, 0, NULL));
  expect_size(&then);
  EXPECT_ERROR(quern_context_rewind(ctx, later, 0, NULL), STATE, "context_rewind: the mark is gone");
  quern_tensor *keep = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_SCALAR, (float[]){4});
  EXPECT_OK(quern_context_rewind(ctx, outer, 1, &keep));
  assert_int_equal(ctx->n_nodes, 1);
  EXPECT_ERROR(quern_context_rewind(ctx, inner, 0, NULL), STATE, "context_rewind: the mark is gone");
  EXPECT_OK(quern_context_rewind(ctx, outer, 1, &keep));
  assert_true(*(const float *)quern_tensor_data(keep) == 4);
}

static void what_cannot_be_kept_is_named(void **state) {
  (void)state;
  quern_tensor *x = copy(8, 1), *keep[2] = {x, NULL};
  quern_mark mark;
  EXPECT_OK(quern_context_mark(ctx, &mark));
  quern_tensor *lazy = quern_neg(x), *released = copy(2, 1);
  EXPECT_OK(quern_tensor_release(released));
  struct size then = size_now();
  EXPECT_ERROR(quern_context_rewind(ctx, mark, 2, keep), INVALID, "context_rewind: tensor 1 to keep is null");
  keep[1] = lazy;
  EXPECT_ERROR(quern_context_rewind(ctx, mark, 2, keep), INVALID,
               "context_rewind: tensor 1 to keep, f32(8,), is the result of neg and holds no elements HINT: "
               "quern_tensor_realize it before");
  keep[1] = released;
  EXPECT_ERROR(quern_context_rewind(ctx, mark, 2, keep), INVALID,
               "context_rewind: tensor 1 to keep, f32(2,), holds no elements any more");
  keep[1] = &ir_poison;
  EXPECT_ERROR(quern_context_rewind(ctx, mark, 2, keep), INVALID,
               "context_rewind: tensor 1 to keep is the result of a call that failed");
  quern_reshape(x, QUERN_LIST(3));
  EXPECT_ERROR(quern_context_rewind(ctx, mark, 0, NULL), SHAPE, "reshape");
  expect_size(&then); /* nothing has changed */
  EXPECT_OK(ir_verify(ctx, 1, &lazy));
}

/* Streams of random numbers go on. */
static void numbers_are_not_given_twice(void **state) {
  (void)state;
  quern_mark mark;
  uint32_t a[2][4];
  EXPECT_OK(quern_context_mark(ctx, &mark));
  for (int i = 0; i < 2; i++) {
    quern_tensor *x = quern_random_bits(ctx, QUERN_LIST(4), NULL);
    void *dst = a[i];
    EXPECT_OK(quern_eval(ctx, 1, &x, &dst, 0, NULL));
    EXPECT_OK(quern_context_rewind(ctx, mark, 0, NULL));
  }
  assert_memory_not_equal(a[0], a[1], sizeof a[0]);
}

/* A loop that keeps its state does not grow, and big constants come and go. */
static void loops_do_not_grow(void **state) {
  (void)state;
  static float big[16000];
  quern_tensor *x = copy(8, 1), *keep[2] = {copy(8, 1), copy(4, 2)};
  quern_mark mark;
  size_t live = 0;
  EXPECT_OK(quern_context_mark(ctx, &mark));
  for (int turn = 0; turn < 2000; turn++) {
    if (turn % 10 == 0) (void)quern_constant(ctx, QUERN_DTYPE_F32, QUERN_LIST(16000), big);
    (void)build(quern_add(x, keep[0]));
    keep[0] = copy(8, (float)turn);
    keep[1] = copy(4 + turn % 2, (float)turn);
    EXPECT_OK(quern_context_rewind(ctx, mark, 2, keep));
    assert_true(((const float *)quern_tensor_data(keep[0]))[7] == (float)turn + 7);
    if (turn == 20) live = memory_live;
    if (turn > 20) assert_int_equal(memory_live, live);
  }
}

static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    quern_tensor *x = copy(8, 1), *keep[2] = {NULL};
    quern_mark mark;
    quern_tensor *made = NULL;
    fault_begin(&fault);
    quern_status status = quern_context_mark(ctx, &mark);
    if (status == QUERN_STATUS_OK) {
      made = quern_gelu(quern_add(x, copy(8, 2)));
      keep[0] = copy(8, 5);
      keep[1] = copy(2, 6);
      status = quern_context_check(ctx);
    }
    if (status == QUERN_STATUS_OK) status = quern_context_rewind(ctx, mark, 2, keep);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    EXPECT_OK(quern_context_check(ctx));
    if (status == QUERN_STATUS_OK || fault.n < 2) continue;
    quern_tensor *y = quern_neg(x); /* the context works */
    EXPECT_OK(ir_verify(ctx, 1, &y));
    if (!ir_is_poison(made) && !ir_is_poison(keep[0]) && !ir_is_poison(keep[1])) {
      EXPECT_OK(ir_verify(ctx, 1, &made)); /* nothing was freed */
      EXPECT_OK(quern_context_rewind(ctx, mark, 2, keep));
      assert_true(((const float *)quern_tensor_data(keep[1]))[1] == 7);
    }
  }
  assert_true(fault.n > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(everything_since_is_gone),
                                     TEST(kept_tensors_move),
                                     TEST(marks_in_marks),
                                     TEST(what_cannot_be_kept_is_named),
                                     TEST(numbers_are_not_given_twice),
                                     TEST(loops_do_not_grow),
                                     TEST(lack_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
