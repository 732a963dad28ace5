/* tests/tensor/test_support.c -- what a tensor is, and what all builders do with wrong operands */
#include "tensor/compound_test.h"
#include "tensor/tensor.h"

static void what_a_tensor_is(void **state) {
  (void)state;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_I16, QUERN_LIST(2, 3, 4)),
               *s = quern_scalar(ctx, QUERN_DTYPE_F64, 1);
  assert_false(quern_tensor_is_poison(x));
  assert_ptr_equal(quern_tensor_context(x), ctx);
  assert_int_equal(quern_tensor_dtype(x), QUERN_DTYPE_I16);
  assert_int_equal(quern_tensor_rank(x), 3);
  assert_int_equal(quern_tensor_dim(x, 0), 2);
  assert_int_equal(quern_tensor_dim(x, 2), 4);
  assert_int_equal(quern_tensor_dim(x, -1), 4);
  assert_int_equal(quern_tensor_dim(x, -3), 2);
  assert_int_equal(quern_tensor_dim(x, 3), -1);
  assert_int_equal(quern_tensor_dim(x, -4), -1);
  assert_int_equal(quern_tensor_dims(x)[1], 3);
  assert_int_equal(quern_tensor_count(x), 24);
  assert_int_equal(quern_tensor_bytes(x), 48);
  assert_string_equal(quern_tensor_name(x), "x");
  assert_null(quern_tensor_data(x));
  assert_int_equal(quern_tensor_rank(s), 0);
  assert_int_equal(quern_tensor_count(s), 1);
  assert_int_equal(quern_tensor_bytes(s), 8);
  assert_int_equal(quern_tensor_dim(s, 0), -1);
  assert_null(quern_tensor_name(s));
  assert_null(quern_tensor_data(s));
}

static void what_a_poison_is(void **state) {
  (void)state;
  quern_tensor *p = quern_neg(NULL), *list[] = {p, NULL};
  for (int i = 0; i < 2; i++) {
    assert_true(quern_tensor_is_poison(list[i]));
    assert_null(quern_tensor_context(list[i]));
    assert_int_equal(quern_tensor_rank(list[i]), 0);
    assert_int_equal(quern_tensor_dim(list[i], 0), -1);
    assert_null(quern_tensor_dims(list[i]));
    assert_int_equal(quern_tensor_count(list[i]), 0);
    assert_int_equal(quern_tensor_bytes(list[i]), 0);
    assert_null(quern_tensor_name(list[i]));
    assert_null(quern_tensor_data(list[i]));
    assert_in_range(quern_tensor_dtype(list[i]), 0, QUERN_DTYPE_COUNT - 1);
  }
}

static void wrong_operands(void **state) {
  (void)state;
  quern_tensor *x = ZEROS(F32, 2, 3), *p = quern_exp(ZEROS(I32, 2));
  EXPECT_POISON(p, DTYPE, "exp: does not admit i32");
  EXPECT_NULL_ERROR(quern_neg(NULL), "neg: the operand is null");
  EXPECT_POISON(quern_add(x, NULL), INVALID, "add: operand 1 is null");
  EXPECT_POISON(quern_where(NULL, x, x), INVALID, "where: operand 0 is null");
  /* the poison adds no error, whatever else is wrong */
  quern_tensor *operands[] = {x, p};
  quern_tensor *silent[] = {quern_neg(p),
                            quern_add(x, p),
                            quern_add(p, x),
                            quern_sum(p, QUERN_ALL, false),
                            quern_reshape(p, QUERN_LIST(-5)),
                            quern_matmul(p, x),
                            quern_concat(2, operands, 7),
                            quern_einsum("?", 2, operands),
                            quern_cast(p, (quern_dtype)99),
                            quern_slice(p, 9, 0, 0, 0),
                            quern_gather(x, p, 5),
                            quern_dropout(p, 7, NULL),
                            quern_topk(p, 1, 0, true, NULL),
                            quern_logsumexp(p, QUERN_ALL, true),
                            quern_linear(x, p, NULL),
                            quern_full_like(p, 1),
                            quern_window(p, 0, NULL, NULL, NULL, NULL)};
  for (size_t i = 0; i < BASE_COUNT(silent); i++) assert_ptr_equal(silent[i], &ir_poison);
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
}

static void two_contexts(void **state) {
  (void)state;
  quern_context *other;
  assert_int_equal(quern_context_new(&other, NULL), QUERN_STATUS_OK);
  quern_tensor *x = ZEROS(F32, 2), *y = quern_zeros(other, QUERN_DTYPE_F32, QUERN_LIST(2)), *list[] = {x, y};
  EXPECT_POISON(quern_add(x, y), INVALID, "add: operands 0 and 1 belong to different contexts");
  EXPECT_POISON(quern_matmul(x, y), INVALID, "matmul: operands 0 and 1 belong to different contexts");
  EXPECT_POISON(quern_concat(2, list, 0), INVALID, "concat: operands 0 and 1 belong");
  EXPECT_POISON(quern_einsum("i,i", 2, list), INVALID, "einsum: operands 0 and 1 belong");
  assert_int_equal(quern_context_check(other), QUERN_STATUS_OK);
  quern_context_free(other);
}

static void the_first_error_stands_with_its_place(void **state) {
  (void)state;
  quern_tensor *x = ZEROS(F32, 2, 3);
  quern_tensor *y = quern_matmul(x, x);
  int line = __LINE__ - 1;
  quern_tensor *z = quern_exp(quern_cast(x, QUERN_DTYPE_I32));
  assert_true(quern_tensor_is_poison(y) && quern_tensor_is_poison(z));
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_SHAPE);
  char want[300];
  snprintf(want, sizeof want,
           "matmul: inner dimensions differ: a is (2, 3), b is (2, 3); a's last must equal b's first\n  at "
           "%s:%d HINT: did you "
           "mean quern_linear, which takes weight as (out, in)?",
           __FILE__, line);
  assert_string_equal(quern_last_error(), want);
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  quern_tensor *parts[1];
  assert_int_equal(quern_split(x, 5, 1, (int64_t[]){2}, parts), QUERN_STATUS_SHAPE);
  line = __LINE__ - 1;
  snprintf(want, sizeof want, "at %s:%d", __FILE__, line);
  assert_non_null(strstr(quern_last_error(), want));
}

static void a_name_without_parentheses_is_the_function(void **state) {
  (void)state;
  quern_tensor *(*op)(quern_tensor *, quern_tensor *) = quern_add;
  quern_tensor *x = REALS(F32, DIMS(2), 1, 2);
  assert_ptr_equal(op(x, x), quern_add(x, x));
}

static void equal_expressions_are_one(void **state) {
  (void)state;
  quern_tensor *x = ZEROS(F32, 2, 3), *y = ZEROS(F32, 3);
  size_t nodes = quern_context_node_count(ctx);
  quern_tensor *a = quern_add(x, y);
  assert_true(quern_context_node_count(ctx) > nodes);
  nodes = quern_context_node_count(ctx);
  assert_ptr_equal(quern_add(x, y), a);
  assert_ptr_equal(quern_add(y, x), a);
  assert_int_equal(quern_context_node_count(ctx), nodes);
  assert_ptr_equal(quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(2, 3)), x);
  assert_ptr_not_equal(quern_sub(x, y), quern_sub(y, x));
}

static void shared_helpers(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2, 3), 1, 2, 3, 4, 5, 6);
  EXPECT(tensor_unbroadcast(x, ZEROS(F32, 3)), 5, 7, 9);
  EXPECT(tensor_unbroadcast(x, ZEROS(F32, 2, 1)), 6, 15);
  EXPECT(tensor_unbroadcast(x, quern_scalar(ctx, QUERN_DTYPE_F32, 0)), 21);
  assert_ptr_equal(tensor_unbroadcast(x, ZEROS(F32, 2, 3)), x);
  quern_tensor *cube = quern_reshape(quern_arange(ctx, QUERN_DTYPE_F32, 8, 0, 1), QUERN_LIST(2, 2, 2));
  EXPECT(tensor_unbroadcast(cube, ZEROS(F32, 2, 1)), 10, 18);
  EXPECT(tensor_unbroadcast(cube, ZEROS(F32, 1, 2)), 12, 16);
  EXPECT(tensor_unbroadcast(cube, ZEROS(F32, 2)), 12, 16);
  EXPECT_TYPE(tensor_unbroadcast(ZEROS(F32, 4, 1, 3), ZEROS(F32, 1, 3)), F32, DIMS(1, 3));
  EXPECT_TYPE(tensor_unbroadcast(ZEROS(F32, 1, 3), ZEROS(F32, 1, 3)), F32, DIMS(1, 3));
  EXPECT_TYPE(tensor_restore_axes(ZEROS(F32, 3), x, 1, (int64_t[]){0}), F32, DIMS(1, 3));
  EXPECT(tensor_scalar_of(quern_cast(x, QUERN_DTYPE_U8), 255), 255);
  EXPECT_POISON(tensor_scalar_of(quern_cast(x, QUERN_DTYPE_U8), 256), INVALID, "256 does not fit u8");
  EXPECT_POISON(tensor_full_of(quern_cast(x, QUERN_DTYPE_I8), -129), INVALID, "-129 does not fit i8");
  EXPECT(tensor_full_of(x, 0.5), 0.5, 0.5, 0.5, 0.5, 0.5, 0.5);
  EXPECT_TYPE(tensor_move_axis(ZEROS(F32, 2, 3, 4), 0, 2), F32, DIMS(3, 4, 2));
  EXPECT_TYPE(tensor_move_axis(ZEROS(F32, 2, 3, 4), 2, 0), F32, DIMS(4, 2, 3));
  assert_int_equal(tensor_wide(QUERN_DTYPE_BF16), QUERN_DTYPE_F32);
  assert_int_equal(tensor_wide(QUERN_DTYPE_F32), QUERN_DTYPE_F32);
  assert_int_equal(tensor_wide(QUERN_DTYPE_F64), QUERN_DTYPE_F64);
}

/* Every helper given the poison gives the poison. */
static void poison_in_helpers(void **state) {
  (void)state;
  quern_tensor *p = &ir_poison, *x = ZEROS(F32, 2);
  int64_t none[1] = {0};
  quern_tensor *all[] = {tensor_reshape(p, 0, NULL),
                         tensor_stretch(p, none),
                         tensor_permute(p, none),
                         tensor_reduce(p, IR_SUM, 1, none),
                         tensor_restore_axes(p, x, 0, none),
                         tensor_restore_axes(x, p, 0, none),
                         tensor_unbroadcast(p, x),
                         tensor_unbroadcast(x, p),
                         tensor_move_axis(p, 0, 0),
                         tensor_scalar_of(p, 1),
                         tensor_full_of(p, 1),
                         tensor_align(p, (int[]){0}, 0, NULL),
                         tensor_contract("x", p, NULL, x, NULL, 0, NULL, IR_SUM, IR_COMBINE_MUL),
                         tensor_combine(IR_COMBINE_ADD, p, x)};
  for (size_t i = 0; i < BASE_COUNT(all); i++) assert_ptr_equal(all[i], p);
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(what_a_tensor_is),
                                     TEST(what_a_poison_is),
                                     TEST(wrong_operands),
                                     TEST(two_contexts),
                                     TEST(the_first_error_stands_with_its_place),
                                     TEST(a_name_without_parentheses_is_the_function),
                                     TEST(equal_expressions_are_one),
                                     TEST(shared_helpers),
                                     TEST(poison_in_helpers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
