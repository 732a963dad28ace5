/* tests/tensor/test_composites.c -- the table of kinds, and what those of reductions and random admit */
#include "tensor/compound_test.h"
#include "tensor/kinds.h"

static void the_table(void **state) {
  (void)state;
  int n = 0;
  for (const struct ir_composite *const *kind = tensor_composites; *kind != NULL; kind++, n++) {
    assert_non_null((*kind)->body);
    assert_non_null((*kind)->admits);
    assert_null((*kind)->rule);
    assert_true((*kind)->n_results >= 1);
    assert_ptr_equal(ir_composite_find(ctx, (*kind)->name), *kind);
    for (int i = 0; i < n; i++) assert_string_not_equal(tensor_composites[i]->name, (*kind)->name);
  }
  assert_true(n >= 3);
}

static bool admits(const struct ir_composite *kind, struct ir_ints ints, int n_reals, int n, quern_tensor *const *src) {
  static const double reals[1] = {0};
  return kind->admits(&(struct ir_attrs){.name = kind->name, .ints = ints, .reals = {n_reals, reals}}, n, src);
}

static void what_is_admitted(void **state) {
  (void)state;
  quern_tensor *x = ZEROS(F32, 2, 3), *h = ZEROS(F16, 2, 3), *i = ZEROS(I32, 2, 3), *two[] = {x, x};
  const struct ir_composite *lse = &tensor_kind_logsumexp, *topk = &tensor_kind_topk,
                            *normal = &tensor_kind_random_normal;
  const struct ir_ints none = {0, NULL};
  assert_true(admits(lse, DIMS(0), 0, 1, &x));
  assert_true(admits(lse, DIMS(0, 1), 0, 1, &x));
  assert_false(admits(lse, none, 0, 1, &x));
  assert_false(admits(lse, DIMS(1, 0), 0, 1, &x));
  assert_false(admits(lse, DIMS(0, 0), 0, 1, &x));
  assert_false(admits(lse, DIMS(2), 0, 1, &x));
  assert_false(admits(lse, DIMS(-1), 0, 1, &x));
  assert_false(admits(lse, DIMS(0), 1, 1, &x));
  assert_false(admits(lse, DIMS(0), 0, 0, NULL));
  assert_false(admits(lse, DIMS(0), 0, 2, two));
  assert_false(admits(lse, DIMS(0), 0, 1, &h)); /* the builder computes in f32 */
  assert_false(admits(lse, DIMS(0), 0, 1, &i));
  const struct ir_composite *narrow = &tensor_kind_narrow_gradient, *linear = &tensor_kind_linear_cross_entropy;
  assert_true(admits(narrow, DIMS(TENSOR_NARROW_BF16), 0, 1, &x));
  assert_true(admits(narrow, DIMS(TENSOR_NARROW_F16), 0, 1, &x));
  assert_false(admits(narrow, DIMS(0), 0, 1, &x));
  assert_false(admits(narrow, DIMS(3), 0, 1, &x));
  assert_false(admits(narrow, none, 0, 1, &x));
  assert_false(admits(narrow, DIMS(1), 1, 1, &x));
  assert_false(admits(narrow, DIMS(1), 0, 2, two));
  assert_false(admits(narrow, DIMS(1), 0, 1, &h));
  quern_tensor *losing[] = {x, x, ZEROS(I32, 2)}, *low[] = {h, h, losing[2]};
  assert_true(admits(linear, DIMS(0, 0, 0), 1, 3, losing));
  assert_true(admits(linear, DIMS(0, 0, 0, TENSOR_NARROW_F16), 1, 3, losing));
  assert_false(admits(linear, DIMS(0, 0, 0, 3), 1, 3, losing));
  assert_false(admits(linear, DIMS(0, 0, 0, 1, 1), 1, 3, losing));
  assert_true(admits(linear, DIMS(0, 0, 0), 1, 3, low));
  assert_false(admits(linear, DIMS(0, 0, 0, 1), 1, 3, low));
  assert_true(admits(topk, DIMS(3, 1, 1), 0, 1, &x));
  assert_true(admits(topk, DIMS(0, 0, 0), 0, 1, &i));
  assert_false(admits(topk, DIMS(4, 1, 1), 0, 1, &x));
  assert_false(admits(topk, DIMS(-1, 1, 1), 0, 1, &x));
  assert_false(admits(topk, DIMS(1, 2, 1), 0, 1, &x));
  assert_false(admits(topk, DIMS(1, -1, 1), 0, 1, &x));
  assert_false(admits(topk, DIMS(1, 1, 2), 0, 1, &x));
  assert_false(admits(topk, DIMS(1, 1), 0, 1, &x));
  assert_false(admits(topk, DIMS(1, 1, 1), 1, 1, &x));
  assert_false(admits(topk, DIMS(1, 1, 1), 0, 2, two));
  quern_tensor *seed[] = {quern_scalar(ctx, QUERN_DTYPE_U64, 1), quern_scalar(ctx, QUERN_DTYPE_U64, 0)};
  quern_tensor *wide[] = {seed[0], ZEROS(U64, 1)}, *real[] = {quern_scalar(ctx, QUERN_DTYPE_F32, 1), seed[1]};
  assert_true(admits(normal, DIMS(1, 2, 3), 0, 2, seed));
  assert_true(admits(normal, DIMS(UINT32_MAX), 0, 2, seed));
  assert_true(admits(normal, DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), 0, 2, seed));
  assert_false(admits(normal, DIMS(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), 0, 2, seed));
  assert_false(admits(normal, none, 0, 2, seed));
  assert_false(admits(normal, DIMS(INT64_C(1) << 32, 2), 0, 2, seed));
  assert_false(admits(normal, DIMS(-1, 2), 0, 2, seed));
  assert_false(admits(normal, DIMS(1, -2), 0, 2, seed));
  assert_false(admits(normal, DIMS(1, 2), 1, 2, seed));
  assert_false(admits(normal, DIMS(1, 2), 0, 1, seed));
  assert_false(admits(normal, DIMS(1, 2), 0, 2, wide));
  assert_false(admits(normal, DIMS(1, 2), 0, 2, real));
}

/* What a builder made prints as text that another context reads back to the same values. */
static void through_text(void **state) {
  (void)state;
  quern_tensor *x = quern_constant(ctx, QUERN_DTYPE_F32, QUERN_LIST(2, 3), (float[]){3, 1, 2, 6, 5, 4}), *indices;
  quern_tensor *out[] = {quern_logsumexp(x, QUERN_LIST(1), false), quern_topk(x, 2, 1, true, &indices), NULL,
                         quern_random_normal(ctx, QUERN_DTYPE_F32, QUERN_LIST(4), 0, 1, NULL)};
  out[2] = indices;
  quern_graph *graph, *again;
  char *text;
  assert_int_equal(quern_graph_new(&graph, ctx, BASE_COUNT(out), out, NULL), QUERN_STATUS_OK);
  assert_int_equal(quern_graph_print(graph, &text), QUERN_STATUS_OK);
  quern_context *other;
  assert_int_equal(quern_context_new(&other, NULL), QUERN_STATUS_OK);
  if (quern_graph_parse(&again, other, text, strlen(text)) != QUERN_STATUS_OK)
    fail_msg("%s\n%s", quern_last_error(), text);
  for (size_t i = 0; i < BASE_COUNT(out); i++) {
    unsigned char a[64], b[64];
    void *to_a = a, *to_b = b;
    quern_tensor *y = quern_graph_output(again, i);
    assert_true(ir_same_type(y, out[i]) && ir_bytes(y) <= sizeof b);
    assert_int_equal(quern_eval_reference(ctx, 1, &out[i], &to_a, 0, NULL), QUERN_STATUS_OK);
    assert_int_equal(quern_eval_reference(other, 1, &y, &to_b, 0, NULL), QUERN_STATUS_OK);
    assert_memory_equal(a, b, ir_bytes(y));
  }
  quern_graph_free(again);
  quern_context_free(other);
  quern_free_text(text);
  quern_graph_free(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(the_table), TEST(what_is_admitted), TEST(through_text)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
