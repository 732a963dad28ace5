/* tests/tensor/test_fault.c -- every allocation fails while expressions are built */
#include "tensor/compound_test.h"

static void gives_sum(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[0], args[1]);
}

static void gives_less(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_lt(args[0], args[1]);
}

static void step(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  results[0] = quern_add(args[1], args[2]);
}

static void no_rule(void *user, int n, quern_tensor *const *x, int n_results, quern_tensor *const *y,
                    quern_tensor *const *dy, quern_tensor **dx) {
  (void)user, (void)n, (void)x, (void)n_results, (void)y, (void)dy, (void)dx;
}

/* Something of every builder that allocates on its own, and of the rest a sample. */
static quern_status build(quern_context *c, quern_tensor **y) {
  static const float data[6] = {1, 2, 3, 4, 5, 6};
  static float kept[6];
  const quern_dtype f = QUERN_DTYPE_F32;
  quern_tensor *x = quern_input(c, "x", f, QUERN_LIST(2, 3)), *w = quern_tensor_copy(c, f, QUERN_LIST(2, 3), data);
  quern_tensor *k = quern_constant(c, f, QUERN_LIST(3), data), *v = quern_tensor_wrap(c, f, QUERN_LIST(3), kept);
  quern_tensor *i = quern_argmax(x, 1, true), *parts[2], *indices;
  quern_tensor *sums[] = {
      quern_mul(x, k),
      quern_add_scalar(w, 2),
      quern_where(quern_lt(x, w), x, quern_neg(v)),
      quern_broadcast_to(quern_take_along(x, i, 1), QUERN_LIST(2, 3)),
      quern_scatter(x, quern_arange(c, QUERN_DTYPE_I64, 2, 0, 1), w, 0, QUERN_SCATTER_ADD),
      quern_cast(quern_one_hot(quern_argmin(x, 1, false), 3, QUERN_DTYPE_BOOL), f),
      quern_sub(x, quern_logsumexp(x, QUERN_LIST(1), true)),
      quern_var(x, QUERN_LIST(0), true, 1),
      quern_linear(x, quern_eye(c, f, 3, 3), k),
      quern_tile(k, QUERN_LIST(2, 1)),
      quern_roll(x, 1, 1),
      quern_triu(x, 1),
      quern_random_normal(c, f, QUERN_LIST(2, 3), 0, 1, NULL),
      quern_dropout(x, 0.5, NULL),
      quern_random_uniform(c, f, QUERN_LIST(2, 3), -1, 1, NULL),
      quern_einsum("ij,jk,kl->il", 3, (quern_tensor *[]){x, quern_eye(c, f, 3, 4), quern_eye(c, f, 4, 3)}),
      quern_einsum("iij->ij", 1, (quern_tensor *[]){quern_zeros(c, f, QUERN_LIST(2, 2, 3))}),
      quern_einsum_over("ij,j,i->ij", 3, (quern_tensor *[]){x, k, quern_select(x, 1, 0)}, QUERN_REDUCE_MAX,
                        QUERN_COMBINE_MUL),
      quern_topk(x, 3, 1, true, &indices),
      quern_slice(x, 1, -1, QUERN_END, -1),
      quern_linspace(c, f, 3, 0, 1),
      quern_sum(quern_window(quern_pad(x, 2, (int64_t[]){0, 1}, (int64_t[]){0, 1}, 0), QUERN_LIST(1), (int64_t[]){3},
                             NULL, NULL),
                QUERN_LIST(2), false)};
  quern_tensor *total = sums[0];
  for (size_t n = 1; n < BASE_COUNT(sums); n++) total = quern_add(total, sums[n]);
  total = quern_add(total, quern_select(quern_stack(2, (quern_tensor *[]){x, w}, 0), 0, 1));
  QUERN_TRY(quern_context_check(c)); /* a poison has no context that split and if could ask */
  QUERN_TRY(quern_split(total, 0, 2, (int64_t[]){1, 1}, parts));
  quern_tensor *one = quern_sum(parts[0], QUERN_ALL, false),
               *carries[] = {one, quern_sum(parts[1], QUERN_LIST(0), false)}, *z;
  QUERN_TRY(quern_loop(
      c, &(quern_loop_options){.size = sizeof(quern_loop_options), .trip = 3, .n_carries = 1, .n_scanned = 1}, carries,
      step, NULL, &z));
  quern_tensor *pair[] = {z, one};
  QUERN_TRY(quern_while(c, 1, 1, pair, gives_less, gives_sum, NULL, &z));
  quern_tensor *less = quern_lt(z, one);
  QUERN_TRY(quern_context_check(c));
  QUERN_TRY(quern_if(less, 2, pair, 1, gives_sum, gives_sum, NULL, &z));
  QUERN_TRY(quern_composite(c, "mine", 2, pair, 1, gives_sum, NULL, &z));
  QUERN_TRY(quern_composite_rule(c, "mine", no_rule, NULL));
  *y = z;
  return quern_context_check(c);
}

/* The arena asks for memory in large pieces: moving its end moves the failure from node to node. */
static void every_allocation_may_fail(void **state) {
  (void)state;
  for (size_t used = 0; used < 64 * 1024; used += 1440) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      quern_tensor *y = NULL;
      test_renew();
      for (size_t i = 0; i < used; i += 16) assert_non_null(base_arena_alloc(&ctx->arena, 16));
      fault_begin(&fault);
      quern_status status = build(ctx, &y);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      if (!fault.met) assert_false(quern_tensor_is_poison(y));
    }
    assert_true(fault.n > 21);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(every_allocation_may_fail)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
