/* tests/api/test_wrong_eager.c -- wrong calls of eager use */
#include "api/wrong.h"

static quern_pool_stats pool = QUERN_INIT(quern_pool_stats);
static quern_mark mark;
static quern_tensor *tensor;

static quern_tensor *input(void) { return quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(2)); }

static quern_status release_twice(void) {
  tensor = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(2), (float[]){1, 2});
  assert_int_equal(quern_tensor_release(tensor), QUERN_STATUS_OK);
  return quern_tensor_release(tensor);
}

/* Whether the pool keeps nothing of a tensor that is released. */
static bool nothing_is_kept(void) {
  tensor = quern_tensor_copy(ctx, QUERN_DTYPE_F32, QUERN_LIST(2), (float[]){1, 2});
  assert_int_equal(quern_tensor_release(tensor), QUERN_STATUS_OK);
  assert_int_equal(quern_pool_get_stats(ctx, &pool), QUERN_STATUS_OK);
  return pool.kept_bytes == 0;
}

/* A mark of the context. */
static quern_mark here(void) {
  quern_mark now;
  assert_int_equal(quern_context_mark(ctx, &now), QUERN_STATUS_OK);
  return now;
}

#define ROWS "api/wrong_eager.def"
#include "api/rows.h"
