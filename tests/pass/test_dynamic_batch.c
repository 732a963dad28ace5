/* tests/pass/test_dynamic_batch.c -- the rule of every op about rows of a dynamic batch: their stride, or why they are mixed */
#include "pass/pass.h"
#include "quern/quern.h"
#include "unit.h"

#define F32(name, ...) quern_input(ctx, name, QUERN_DTYPE_F32, QUERN_LIST(__VA_ARGS__))
#define I64(name, ...) quern_input(ctx, name, QUERN_DTYPE_I64, QUERN_LIST(__VA_ARGS__))
#define LIST(...) ((const int64_t[]){__VA_ARGS__})

enum { B = 4 };
static quern_tensor *x, *y, *ids, *w, *fixed; /* (B, 6, 10), (B, 3), (B, 3) have rows; (10, 5), (B, 6, 10) do not */

static void make_inputs(void) {
  x = F32("x", B, 6, 10);
  y = F32("y", B, 3);
  ids = I64("ids", B, 3);
  w = F32("w", 10, 5);
  fixed = F32("fixed", B, 6, 10);
}

static quern_status find(struct pass_dynamic_batch *rows, quern_tensor *t) {
  struct pass_graph graph = {ctx, 1, &t};
  quern_tensor *const leading[] = {x, y, ids};
  EXPECT_OK(quern_context_check(ctx));
  for (size_t i = 0; i < BASE_COUNT(leading); i++)
    QUERN_TRY(pass_dynamic_batch_set(rows, leading[i], ir_count(leading[i]) / B));
  return pass_dynamic_batch_find(rows, &graph);
}

static void expect_stride(quern_tensor *t, int64_t stride, int line) {
  struct pass_dynamic_batch rows;
  pass_dynamic_batch_init(&rows, &ctx->heap, B);
  EXPECT_OK(find(&rows, t));
  int64_t got = pass_dynamic_batch_get(&rows, t);
  if (got != stride) print_error("line %d: the stride is %lld, not %lld\n", line, (long long)got, (long long)stride);
  assert_true(got == stride);
  assert_true(pass_dynamic_batch_is_outermost(&rows, t) == (stride > 0 && stride * B == ir_count(t)));
  pass_dynamic_batch_fini(&rows);
}

static void expect_refused(quern_tensor *t, const char *words, int line) {
  struct pass_dynamic_batch rows;
  pass_dynamic_batch_init(&rows, &ctx->heap, B);
  quern_status status = find(&rows, t);
  pass_dynamic_batch_fini(&rows);
  if (status != QUERN_STATUS_UNSUPPORTED) print_error("line %d: it is not refused\n", line);
  EXPECT_ERROR(status, UNSUPPORTED, words);
}

#define ROWS(t, stride) expect_stride((t), (stride), __LINE__)
#define MIXED(t, words) expect_refused((t), (words), __LINE__)

static void movement(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *first = quern_permute(x, QUERN_LIST(1, 0, 2)), *last = quern_permute(x, QUERN_LIST(1, 2, 0));
  ROWS(quern_exp(w), 0);
  ROWS(quern_exp(x), 60);
  ROWS(quern_add(x, fixed), 60);
  ROWS(quern_add(x, quern_neg(x)), 60);
  ROWS(quern_where(quern_gt(x, fixed), x, fixed), 60);
  ROWS(quern_cast(x, QUERN_DTYPE_F16), 60);
  ROWS(first, 10);
  ROWS(last, 1);
  ROWS(quern_reshape(x, QUERN_LIST(B * 6, 10)), 60);
  ROWS(quern_reshape(x, QUERN_LIST(2, 120)), 60);
  ROWS(quern_permute(quern_reshape(x, QUERN_LIST(B * 6, 10)), QUERN_LIST(1, 0)), 6);
  ROWS(quern_broadcast_to(quern_reshape(y, QUERN_LIST(B, 1, 3)), QUERN_LIST(B, 7, 3)), 21);
  ROWS(quern_broadcast_to(y, QUERN_LIST(5, B, 3)), 3);
  ROWS(quern_pad(x, QUERN_LIST(0, 1, 2), LIST(0, 0, 3), 0), 7 * 15);
  ROWS(quern_slice(x, 1, 2, 5, 1), 30);
  ROWS(quern_flip(x, QUERN_LIST(1, 2)), 60);
  ROWS(quern_concat(2, (quern_tensor *[]){x, fixed}, 2), 120);
  ROWS(quern_concat(2, (quern_tensor *[]){first, first}, 0), 10);
  ROWS(quern_window(x, QUERN_LIST(2), LIST(3), NULL, NULL), 6 * 8 * 3);
  ROWS(quern_window(first, QUERN_LIST(0, 2), LIST(2, 3), NULL, NULL), 8 * 2 * 3);
  MIXED(quern_add(quern_reshape(x, QUERN_LIST(6, B, 10)), first), "they lie differently in its sources");
  MIXED(quern_pad(x, QUERN_LIST(1, 0, 0), LIST(0, 0, 0), 0), "pad of f32(4, 6, 10) mixes rows");
  MIXED(quern_pad(x, QUERN_LIST(0, 0, 0), LIST(1, 0, 0), 0), "pad of f32(4, 6, 10) mixes rows");
  MIXED(quern_slice(x, 0, 0, 3, 1), "slice of f32(4, 6, 10)");
  MIXED(quern_slice(x, 0, 1, 4, 1), "slice of f32(4, 6, 10)");
  MIXED(quern_flip(last, QUERN_LIST(2)), "flip of f32(6, 10, 4) mixes rows, or leaves some out: the dynamic batch of 4 "
                                         "lies in axis 2 of its source 0");
  MIXED(quern_concat(2, (quern_tensor *[]){fixed, x}, 0), "lies in axis 0 of its source 1");
  quern_tensor *down = quern_broadcast_to(quern_reshape(y, QUERN_LIST(B, 1, 3)), QUERN_LIST(B, B, 3));
  quern_tensor *along = quern_broadcast_to(y, QUERN_LIST(B, B, 3));
  ROWS(down, 12);
  ROWS(along, 3);
  MIXED(quern_concat(2, (quern_tensor *[]){down, along}, 2),
        "concat mixes rows: they lie differently in its sources 0");
  quern_tensor *outside = quern_reshape(x, QUERN_LIST(B * 6, 10)),
               *inside = quern_reshape(first, QUERN_LIST(6 * B, 10));
  MIXED(quern_concat(2, (quern_tensor *[]){outside, inside}, 1), "concat mixes rows: they lie differently");
  MIXED(quern_window(x, QUERN_LIST(0), LIST(2), NULL, NULL), "window of");
  MIXED(quern_slice(quern_reshape(x, QUERN_LIST(2, 120)), 1, 0, 60, 1), "lies across several axes of its source 0");
}

static void blocks_and_indices(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *at[3], *start = quern_input(ctx, "start", QUERN_DTYPE_I64, 0, NULL);
  for (int k = 0; k < 3; k++) at[k] = k == 1 ? start : quern_scalar_int(ctx, QUERN_DTYPE_I64, 0);
  quern_tensor *part = quern_slice(x, 1, 0, 2, 1), *fixed_part = quern_slice(fixed, 0, 0, 2, 1);
  ROWS(quern_slice_at(x, 3, at, LIST(B, 2, 10)), 20);
  ROWS(quern_update_at(x, part, 3, at), 60);
  ROWS(quern_update_at(fixed, part, 3, at), 60);
  ROWS(quern_update_at(x, fixed_part, 3, at), 60);
  MIXED(quern_slice_at(x, 3, at, LIST(2, 2, 10)), "slice_at of");
  MIXED(quern_update_at(F32("large", 9, 6, 10), x, 3, at), "update_at of");
  quern_tensor *picks = I64("picks", 7), *table = F32("table", 9, 5);
  ROWS(quern_gather(table, ids, 0), 15);                                  /* (B, 3, 5) */
  ROWS(quern_gather(F32("t", 2, 9, 5), ids, 1), 15);                      /* (2, B, 3, 5) */
  ROWS(quern_gather(x, picks, 1), 70);                                    /* (B, 7, 10) */
  ROWS(quern_gather(quern_permute(x, QUERN_LIST(1, 2, 0)), picks, 0), 1); /* (7, 10, B) */
  quern_tensor *last = quern_permute(x, QUERN_LIST(1, 2, 0)), *pairs = I64("pairs", 7, 2);
  ROWS(quern_gather(last, pairs, 0), 1); /* (7, 2, 10, B) */
  ROWS(quern_scatter(last, picks, quern_gather(last, picks, 0), 0, QUERN_SCATTER_SET), 1);
  ROWS(quern_scatter(last, pairs, quern_gather(last, pairs, 0), 0, QUERN_SCATTER_ADD), 1);
  ROWS(quern_take_along(y, ids, 1), 3);
  ROWS(quern_scatter_along(y, ids, y, 1, QUERN_SCATTER_ADD), 3);
  ROWS(quern_scatter_along(quern_zeros_like(F32("like", B, 3)), ids, y, 1, QUERN_SCATTER_ADD), 3);
  ROWS(quern_scatter(x, picks, F32("u", 7, 10), 1, QUERN_SCATTER_SET), 60);
  ROWS(quern_scatter(fixed, picks, quern_gather(x, picks, 1), 1, QUERN_SCATTER_SET), 60);
  ROWS(quern_one_hot(ids, 8, QUERN_DTYPE_F32), 24);
  MIXED(quern_gather(x, picks, 0), "gather of");
  MIXED(quern_gather(x, ids, 2), "gather mixes rows");
  MIXED(quern_scatter(x, picks, F32("v", 7, 6, 10), 0, QUERN_SCATTER_SET), "scatter of");
  MIXED(quern_scatter(table, ids, quern_gather(table, ids, 0), 0, QUERN_SCATTER_ADD), "scatter of");
  MIXED(quern_scatter(table, ids, F32("updates", B, 3, 5), 0, QUERN_SCATTER_ADD), "scatter of i64(4, 3) mixes rows");
}

static void reductions(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *last = quern_permute(x, QUERN_LIST(1, 2, 0)), *indices;
  ROWS(quern_sum(x, QUERN_LIST(1), false), 10);
  ROWS(quern_sum(x, QUERN_LIST(1, 2), false), 1);
  ROWS(quern_sum(last, QUERN_LIST(0), false), 1);
  ROWS(quern_argmax(x, 1, false), 10);
  ROWS(quern_argmax(last, 0, false), 1);
  ROWS(quern_cumsum(x, 2), 60);
  ROWS(quern_sort(last, 1, false, &indices), 1);
  ROWS(indices, 1);
  ROWS(quern_softmax(x, 1), 60);
  ROWS(quern_layer_norm(x, 2, NULL, NULL, 1e-5), 60);
  ROWS(quern_matmul(x, w), 30);
  ROWS(quern_matmul(quern_transpose(w, 0, 1), quern_transpose(x, 1, 2)), 30); /* (B, 5, 6) */
  ROWS(quern_einsum("bij,jk->kbi", 2, (quern_tensor *[]){x, w}), 6);
  ROWS(quern_einsum("bij,bkj->bik", 2, (quern_tensor *[]){x, fixed}), 36);
  ROWS(quern_matmul(x, quern_transpose(x, 1, 2)), 36);
  ROWS(quern_matmul(quern_reshape(x, QUERN_LIST(B * 6, 10)), w), 30);
  quern_tensor *turned = quern_transpose(y, 0, 1);
  const struct ir_attrs sums = {.a_sum = IR_INTS(0), .b_sum = IR_INTS(0)};
  ROWS(ir_make(ctx, IR_DOT, 2, (quern_tensor *[]){turned, F32("three", 3, 5)}, &sums), 5); /* (B, 5) */
  ROWS(ir_make(ctx, IR_DOT, 2, (quern_tensor *[]){F32("three", 3, 5), turned}, &sums), 1); /* (5, B) */
  MIXED(quern_sum(last, QUERN_LIST(2), false), "reduce of f32(6, 10, 4) mixes rows");
  MIXED(quern_argmax(x, 0, false), "argreduce of");
  MIXED(quern_cumsum(x, 0), "scan of");
  MIXED(quern_sort(last, 2, false, NULL), "sort of");
  MIXED(quern_einsum("bij,bij->ij", 2, (quern_tensor *[]){x, fixed}), "mixes rows");
  MIXED(quern_einsum("bj,cj->bc", 2, (quern_tensor *[]){y, y}), "dot mixes rows: they lie differently");
  MIXED(quern_matmul(quern_reshape(x, QUERN_LIST(60, B)), quern_reshape(y, QUERN_LIST(B, 3))), "dynamic batch: dot");
}

/* ---- subgraphs ------------------------------------------------------------------------------------------ */

static void add_row(void *user, quern_tensor *const *args, quern_tensor **results) { /* (i, carry, scanned, capture) */
  (void)user;
  results[0] = quern_add(args[1], quern_mul(args[2], args[3]));
  results[1] = quern_sum(results[0], QUERN_LIST(1), false);
}
static void old_carry(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[2], args[3]);
  results[1] = quern_exp(args[1]);
}
static void twice(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_mul_scalar(args[0], 2);
}
static void total(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_sub(args[0], quern_sum(args[0], QUERN_LIST(0), true));
}
static void is_small(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  quern_tensor *one = args[user != NULL ? 1 : 0];
  results[0] = quern_lt(quern_max(one, QUERN_ALL, false), quern_scalar(ctx, QUERN_DTYPE_F32, 9));
}
static void with_first(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[0], args[1]);
  results[1] = quern_mul_scalar(args[1], 2);
}

static void sub_graphs(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *results[2], *zeros = quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(B, 3)), *flat = F32("flat", B, 3);
  quern_loop_options options = {
      .size = sizeof options, .trip = 5, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1};
  quern_tensor *operands[] = {zeros, F32("weights", 5, 3), y}; /* the carry has rows after an iteration */
  EXPECT_OK(quern_loop(ctx, &options, operands, add_row, NULL, results));
  ROWS(results[0], 3);
  ROWS(results[1], 1); /* (5, B) */
  EXPECT_OK(quern_loop(ctx, &options, operands, old_carry, NULL, results));
  ROWS(results[1], 3); /* (5, B, 3): of a carry that has rows in the second turn */
  quern_tensor *by_turns[] = {zeros, quern_broadcast_to(y, QUERN_LIST(5, B, 3)), flat};
  EXPECT_OK(quern_loop(ctx, &options, by_turns, add_row, NULL, results));
  ROWS(results[0], 3);
  options.trip = B;
  quern_tensor *over_rows[] = {zeros, y, flat}; /* a turn takes a row */
  EXPECT_OK(quern_loop(ctx, &options, over_rows, add_row, NULL, results));
  MIXED(results[0], "loop of");
  quern_tensor *cond = quern_input(ctx, "cond", QUERN_DTYPE_BOOL, 0, NULL);
  EXPECT_OK(quern_if(cond, 1, &y, 1, twice, twice, NULL, results));
  ROWS(results[0], 3);
  EXPECT_OK(quern_if(cond, 1, &y, 1, twice, total, NULL, results));
  MIXED(results[0], "reduce of f32(4, 3) mixes rows");
  quern_tensor *both[] = {y, F32("norm", 3)};
  EXPECT_OK(quern_while(ctx, 2, 0, both, is_small, with_first, ctx, results));
  ROWS(results[0], 3);
  EXPECT_OK(quern_while(ctx, 2, 0, both, is_small, with_first, NULL, results));
  MIXED(results[0], "reduce of f32(4, 3) mixes rows");
  EXPECT_OK(quern_composite(ctx, "mine", 1, &y, 1, twice, NULL, results));
  ROWS(results[0], 3);
  EXPECT_OK(quern_composite(ctx, "mixing", 1, &y, 1, total, NULL, results));
  MIXED(results[0], "reduce of f32(4, 3) mixes rows");
}

/* Where there is one row, nothing is mixed, and everything that it reaches is of it; conditions are not, all the same. */
static void one_row(void **state) {
  (void)state;
  quern_tensor *a = F32("a", 1, 8), *results[2], *roots[4];
  quern_loop_options options = {
      .size = sizeof options, .trip = 8, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1};
  quern_tensor *operands[] = {F32("zero", 1, 3), quern_reshape(a, QUERN_LIST(8, 1)), F32("c", 1, 3)};
  EXPECT_OK(quern_loop(ctx, &options, operands, add_row, NULL, results));
  roots[0] = quern_sum(a, QUERN_ALL, false);
  roots[1] = results[0];
  roots[2] = results[1];
  roots[3] = quern_exp(operands[0]);
  struct pass_dynamic_batch rows;
  struct pass_graph graph = {ctx, 4, roots};
  pass_dynamic_batch_init(&rows, &ctx->heap, 1);
  EXPECT_OK(pass_dynamic_batch_set(&rows, a, 8));
  EXPECT_OK(pass_dynamic_batch_find(&rows, &graph));
  for (int i = 0; i < 4; i++) assert_true(pass_dynamic_batch_is_outermost(&rows, roots[i]) == (i < 3));
  EXPECT_OK(quern_while(ctx, 1, 0, &a, is_small, twice, NULL, roots));
  graph.n_roots = 1;
  EXPECT_ERROR(pass_dynamic_batch_find(&rows, &graph), UNSUPPORTED,
               "dynamic batch: the condition of while depends on rows");
  quern_tensor *any = quern_lt(quern_sum(a, QUERN_ALL, false), quern_scalar(ctx, QUERN_DTYPE_F32, 0));
  EXPECT_OK(quern_if(any, 1, &a, 1, twice, twice, NULL, roots));
  EXPECT_ERROR(pass_dynamic_batch_find(&rows, &graph), UNSUPPORTED,
               "dynamic batch: the condition of if depends on rows");
  pass_dynamic_batch_fini(&rows);
}

static void finding_without_memory(void **state) {
  (void)state;
  make_inputs();
  quern_tensor *results[2], *operands[] = {F32("zero", B, 3), F32("weights", 5, 3), y};
  quern_loop_options options = {
      .size = sizeof options, .trip = 5, .n_carries = 1, .n_scanned = 1, .n_captures = 1, .n_stacked = 1};
  EXPECT_OK(quern_loop(ctx, &options, operands, add_row, NULL, results));
  quern_tensor *t = quern_softmax(results[0], 1);
  struct fault fault = {0};
  while (fault_next(&fault)) {
    struct pass_dynamic_batch rows;
    pass_dynamic_batch_init(&rows, &ctx->heap, B);
    fault_begin(&fault);
    quern_status status = find(&rows, t);
    fault_end(&fault);
    pass_dynamic_batch_fini(&rows);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(movement), TEST(blocks_and_indices),    TEST(reductions), TEST(sub_graphs),
                                     TEST(one_row),  TEST(finding_without_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
