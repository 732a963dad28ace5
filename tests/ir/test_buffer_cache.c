/* tests/ir/test_buffer_cache.c -- blocks of memory used again: which, how many bytes are kept, figures, releasing tensors */
#include "ir/ir_test.h"

static quern_pool_stats stats(void) {
  quern_pool_stats now = QUERN_INIT(quern_pool_stats);
  EXPECT_OK(quern_pool_get_stats(ctx, &now));
  return now;
}

static void *take(size_t bytes, size_t *room) {
  void *data = ir_buffer_cache_take(&ctx->buffer_cache, bytes, room);
  assert_non_null(data);
  assert_int_equal((uintptr_t)data % 64, 0);
  assert_int_equal(*room % 64, 0);
  assert_true(*room >= bytes);
  memset(data, 1, bytes);
  return data;
}

static void blocks_are_used_again(void **state) {
  (void)state;
  size_t room, other;
  void *a = take(1000, &room);
  assert_int_equal(room, 1024);
  assert_int_equal(stats().used_bytes, 1024);
  ir_buffer_cache_give(&ctx->buffer_cache, a, room);
  assert_int_equal(stats().used_bytes, 0);
  assert_int_equal(stats().kept_bytes, 1024);
  void *b = take(961, &room), *c = take(1024, &other);
  assert_ptr_equal(b, a);
  assert_ptr_not_equal(c, a);
  assert_int_equal(stats().hits, 1);
  assert_int_equal(stats().misses, 2);
  assert_int_equal(stats().peak_bytes, 2048);
  ir_buffer_cache_give(&ctx->buffer_cache, b, room);
  ir_buffer_cache_give(&ctx->buffer_cache, c, other);
  assert_ptr_equal(take(1000, &room), c); /* the last that came */
  assert_ptr_equal(take(1000, &other), b);
  ir_buffer_cache_give(&ctx->buffer_cache, c, room);
  ir_buffer_cache_give(&ctx->buffer_cache, b, other);
}

/* The smallest that is large enough, if it is no more than an eighth larger. */
static void sizes_fit(void **state) {
  (void)state;
  static const size_t sizes[] = {6400, 512, 7168, 640, 6400, 576};
  void *blocks[BASE_COUNT(sizes)];
  size_t room;
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) blocks[i] = take(sizes[i], &room);
  for (size_t i = 0; i < BASE_COUNT(sizes); i++) ir_buffer_cache_give(&ctx->buffer_cache, blocks[i], sizes[i]);
  void *taken[7];
  size_t rooms[7];
  static const struct {
    size_t bytes;
    int block; /* -1: a new one */
  } wants[7] = {{6336, 4}, {6336, 0}, {6336, -1}, {6400, 2}, {513, 5}, {500, 1}, {500, -1}};
  for (size_t i = 0; i < 7; i++) {
    taken[i] = take(wants[i].bytes, &rooms[i]);
    if (wants[i].block >= 0) assert_ptr_equal(taken[i], blocks[wants[i].block]);
    if (wants[i].block < 0) assert_int_equal(rooms[i], (wants[i].bytes + 63) / 64 * 64);
  }
  assert_int_equal(stats().hits, 5);
  assert_int_equal(stats().kept_bytes, 640);
  for (size_t i = 0; i < 7; i++) ir_buffer_cache_give(&ctx->buffer_cache, taken[i], rooms[i]);
}

static void bytes_are_limited(void **state) {
  (void)state;
  void *blocks[8];
  size_t room;
  for (size_t i = 0; i < 8; i++) blocks[i] = take(1024 * (i + 1), &room);
  EXPECT_OK(quern_pool_limit(ctx, 9 * 1024));
  assert_int_equal(stats().limit_bytes, 9 * 1024);
  ir_buffer_cache_give(&ctx->buffer_cache, blocks[0], 1024);
  ir_buffer_cache_give(&ctx->buffer_cache, blocks[2], 3072);
  ir_buffer_cache_give(&ctx->buffer_cache, blocks[1], 2048);
  assert_int_equal(stats().kept_bytes, 6144);
  ir_buffer_cache_give(&ctx->buffer_cache, blocks[3], 4096); /* the oldest one goes */
  assert_int_equal(stats().kept_bytes, 9216);
  EXPECT_OK(quern_pool_trim(ctx, 6145)); /* the second goes: 6144 are left */
  assert_int_equal(stats().kept_bytes, 6144);
  ir_buffer_cache_give(&ctx->buffer_cache, blocks[7], 8192); /* all others go */
  assert_int_equal(stats().kept_bytes, 8192);
  EXPECT_OK(quern_pool_limit(ctx, 100));
  assert_int_equal(stats().kept_bytes, 0);
  ir_buffer_cache_give(&ctx->buffer_cache, blocks[4], 5120); /* larger than the limit: freed at once */
  assert_int_equal(stats().kept_bytes, 0);
  EXPECT_OK(quern_pool_limit(ctx, SIZE_MAX));
  ir_buffer_cache_give(&ctx->buffer_cache, blocks[5], 6144);
  ir_buffer_cache_give(&ctx->buffer_cache, blocks[6], 7168);
  assert_int_equal(stats().kept_bytes, 13312);
  assert_int_equal(stats().used_bytes, 0);
  EXPECT_OK(quern_pool_trim(ctx, 0));
  assert_int_equal(stats().kept_bytes, 0);
}

/* Many sizes in some order: what is kept and what is used adds up, and no block is given twice. */
static void a_long_life(void **state) {
  (void)state;
  enum { N = 40 };
  struct {
    unsigned char *at;
    size_t bytes, room;
  } held[N] = {{0}};
  size_t used = 0;
  EXPECT_OK(quern_pool_limit(ctx, 50000));
  for (uint64_t k = 0; k < 5000; k++) {
    uint64_t r = base_hash_u64(3, k);
    size_t i = r % N;
    if (held[i].at != NULL) {
      for (size_t b = 0; b < held[i].bytes; b++) assert_int_equal(held[i].at[b], i);
      ir_buffer_cache_give(&ctx->buffer_cache, held[i].at, held[i].room);
      used -= held[i].room;
      held[i].at = NULL;
    } else {
      held[i].bytes = (r >> 32) % 5000;
      held[i].at = take(held[i].bytes, &held[i].room);
      assert_true(held[i].room <= held[i].bytes + held[i].bytes / 8 + 72);
      memset(held[i].at, (int)i, held[i].bytes);
      used += held[i].room;
    }
    assert_int_equal(stats().used_bytes, used);
    assert_true(stats().kept_bytes <= 50000);
    assert_true(stats().peak_bytes >= used + stats().kept_bytes);
  }
  assert_true(stats().hits > 100 && stats().misses > 100);
  for (size_t i = 0; i < N; i++)
    if (held[i].at != NULL) ir_buffer_cache_give(&ctx->buffer_cache, held[i].at, held[i].room);
}

/* What is kept is freed when it is needed elsewhere. */
static void kept_memory_is_given_up(void **state) {
  (void)state;
  size_t room;
  ir_buffer_cache_give(&ctx->buffer_cache, take(4096, &room), 4096);
  struct fault first = {.n = 1, .alone = true};
  fault_begin(&first);
  void *data = take(100000, &room);
  fault_end(&first);
  assert_true(first.met);
  assert_int_equal(stats().kept_bytes, 0);
  fault_begin(&first);
  assert_null(ir_buffer_cache_take(&ctx->buffer_cache, 200000, &room)); /* there is nothing to free any more */
  fault_end(&first);
  assert_int_equal(quern_last_status(), QUERN_STATUS_MEMORY);
  fault_begin(&first);
  ir_buffer_cache_give(&ctx->buffer_cache, data, 100032); /* which needs no memory */
  fault_end(&first);
  assert_false(first.met);
  assert_true(stats().used_bytes == 0 && stats().kept_bytes == 100032);
}

/* A tensor on memory of the context. */
static quern_tensor *holds(int64_t n, float value) {
  struct ir_buffer *buffer = ir_buffer_new(ctx, (size_t)n * sizeof(float));
  assert_non_null(buffer);
  for (int64_t i = 0; i < n; i++) ((float *)buffer->data)[i] = value;
  return ir_make(ctx, IR_BUFFER, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .shape = DIMS(n), .buffer = buffer));
}

static void released_tensors_are_unbound(void **state) {
  (void)state;
  quern_tensor *x = holds(100, 2), *y = IR_MAKE(ctx, IR_NEG, NULL, x);
  float out[100];
  void *dst = out, *data = x->node->attrs->buffer->data;
  EXPECT_OK(ir_eval(ctx, 1, &y, &dst, 0, NULL));
  EXPECT_OK(quern_tensor_release(x));
  assert_int_equal(stats().kept_bytes, 448);
  EXPECT_ERROR(ir_eval(ctx, 1, &y, &dst, 0, NULL), UNBOUND, "eval: a buffer, f32(100,), has no value");
  EXPECT_ERROR(quern_tensor_release(x), STATE, "tensor_release: the tensor, f32(100,), holds no elements any more");
  EXPECT_ERROR(quern_tensor_release(y), INVALID, "tensor_release: the tensor, f32(100,), is the result of neg");
  quern_tensor *z = holds(100, 3);
  assert_ptr_equal(z->node->attrs->buffer->data, data);
  EXPECT_OK(ir_eval(ctx, 1, &z, &dst, 0, NULL));
  assert_true(out[99] == 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(blocks_are_used_again),   TEST(sizes_fit),
                                     TEST(bytes_are_limited),       TEST(a_long_life),
                                     TEST(kept_memory_is_given_up), TEST(released_tensors_are_unbound)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
