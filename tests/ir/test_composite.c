/* tests/ir/test_composite.c -- kinds of composites and their bodies */
#include "ir/ir_test.h"

static int calls; /* of body functions */

/* y0 = x * scale, y1 = x + shift, with scale from the ints and shift from the reals */
static void affine_body(quern_context *c, const struct ir_attrs *attrs, quern_tensor *const *args,
                        quern_tensor **results) {
  calls++;
  quern_dtype dtype = args[0]->dtype;
  results[0] = IR_MAKE(c, IR_MUL, NULL, args[0], ir_const_int(c, dtype, attrs->ints.n > 0 ? attrs->ints.at[0] : 1));
  results[1] = IR_MAKE(c, IR_ADD, NULL, args[0], ir_const(c, dtype, attrs->reals.n > 0 ? attrs->reals.at[0] : 0));
}

static void failing_body(quern_context *c, const struct ir_attrs *attrs, quern_tensor *const *args,
                         quern_tensor **results) {
  (void)attrs;
  results[0] = IR_MAKE(c, IR_NOT, NULL, args[0]);
}

static void forgetful_body(quern_context *c, const struct ir_attrs *attrs, quern_tensor *const *args,
                           quern_tensor **results) {
  (void)c, (void)attrs, (void)args, (void)results;
}

static void open_body(quern_context *c, const struct ir_attrs *attrs, quern_tensor *const *args,
                      quern_tensor **results) {
  (void)attrs;
  results[0] = IR_MAKE(c, IR_ADD, NULL, args[0], ir_leaf_like(args[0]));
}

static const struct ir_composite affine = {.name = "affine", .n_results = 2, .body = affine_body};
static const struct ir_composite twin = {.name = "twin", .n_results = 2, .body = affine_body};
static const struct ir_composite failing = {.name = "failing", .n_results = 1, .body = failing_body};
static const struct ir_composite forgetful = {.name = "forgetful", .n_results = 1, .body = forgetful_body};
static const struct ir_composite open_kind = {.name = "open", .n_results = 1, .body = open_body};

#define NO_REALS ((struct ir_reals){0})
#define REAL_LIST(...)                                                                                                 \
  ((struct ir_reals){(int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__}})

static void test_kinds(void **state) {
  (void)state;
  assert_null(ir_composite_find(ctx, "affine"));
  assert_int_equal(ir_composite_add(ctx, &affine), QUERN_STATUS_OK);
  assert_int_equal(ir_composite_add(ctx, &twin), QUERN_STATUS_OK);
  assert_ptr_equal(ir_composite_find(ctx, "affine"), &affine);
  assert_ptr_equal(ir_composite_find(ctx, "twin"), &twin);
  assert_null(ir_composite_find(ctx, "affin"));
  EXPECT_ERROR(ir_composite_add(ctx, &affine), INVALID, "composite: the name 'affine' is taken");
  struct ir_composite same_name = failing;
  same_name.name = "twin";
  EXPECT_ERROR(ir_composite_add(ctx, &same_name), INVALID, "composite: the name 'twin' is taken");
}

static void test_node(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 1);
  quern_tensor *y = ir_composite_make(ctx, &affine, DIMS(3), REAL_LIST(0.5), 1, &x);
  assert_int_equal(y->node->op, IR_COMPOSITE);
  assert_int_equal(y->node->n_out, 2);
  assert_string_equal(y->node->attrs->name, "affine");
  assert_int_equal(y->node->attrs->ints.at[0], 3);
  assert_true(y->node->attrs->reals.at[0] == 0.5);
  quern_tensor *two[] = {y, ir_result(y, 1)};
  assert_int_equal(ir_verify(ctx, 2, two), QUERN_STATUS_OK);
}

static void test_values(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 2);
  quern_tensor *y = ir_composite_make(ctx, &affine, DIMS(3), REAL_LIST(0.5), 1, &x);
  EXPECT_REALS(y, 6);
  EXPECT_REALS(ir_result(y, 1), 2.5);
}

/* A body is built once for a kind, attributes and types. */
static void test_bodies_are_kept(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 2), *y = REAL(F32, 3), *wide = REAL(F64, 2), *i = INT(I32, 2), *out[12];
  calls = 0;
  out[0] = ir_composite_make(ctx, &affine, DIMS(3), NO_REALS, 1, &x);
  assert_int_equal(calls, 1);
  assert_ptr_equal(ir_composite_make(ctx, &affine, DIMS(3), NO_REALS, 1, &x), out[0]);
  out[1] = ir_composite_make(ctx, &affine, DIMS(3), NO_REALS, 1, &y); /* another operand of the same type */
  assert_int_equal(calls, 1);
  assert_ptr_equal(out[1]->node->attrs->body, out[0]->node->attrs->body);
  assert_ptr_not_equal(out[1], out[0]);

  const struct {
    const struct ir_composite *kind;
    struct ir_ints ints;
    struct ir_reals reals;
    quern_tensor *src;
  } others[] = {
      {&affine, DIMS(4), NO_REALS, x},     {&affine, DIMS(3, 0), NO_REALS, x},  {&affine, SCALAR, NO_REALS, x},
      {&affine, DIMS(3), REAL_LIST(1), x}, {&affine, DIMS(3), REAL_LIST(2), x}, {&affine, DIMS(3), NO_REALS, wide},
      {&affine, DIMS(3), NO_REALS, i},     {&twin, DIMS(3), NO_REALS, x},
  };
  for (size_t k = 0; k < BASE_COUNT(others); k++) {
    quern_tensor *src = others[k].src;
    quern_tensor *made = ir_composite_make(ctx, others[k].kind, others[k].ints, others[k].reals, 1, &src);
    assert_false(ir_is_poison(made));
    assert_int_equal(calls, 2 + (int)k);
    ir_composite_make(ctx, others[k].kind, others[k].ints, others[k].reals, 1, &src);
    assert_int_equal(calls, 2 + (int)k);
  }
  /* a list that ends elsewhere: (3,) and reals (), not () and reals of the same bits */
  double bits;
  int64_t three = 3;
  memcpy(&bits, &three, sizeof bits);
  ir_composite_make(ctx, &affine, SCALAR, REAL_LIST(bits), 1, &x);
  assert_int_equal(calls, 2 + (int)BASE_COUNT(others));
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
}

/* Bodies whose hashes are equal, but nothing else: the lookup of one meets the other, and the body is built again. */
static void test_equal_hashes(void **state) {
  (void)state;
  const struct {
    const struct ir_composite *kind;
    struct ir_ints ints;
    struct ir_reals reals;
    bool wide;
  } keys[] = {
      {&affine, DIMS(3, 5), REAL_LIST(1, 2), false}, {&affine, DIMS(3, 6), REAL_LIST(1, 2), false},
      {&affine, DIMS(3), REAL_LIST(1, 2), false},    {&affine, DIMS(3, 5), REAL_LIST(1, 3), false},
      {&affine, DIMS(3, 5), REAL_LIST(1), false},    {&affine, DIMS(3, 5), NO_REALS, false},
      {&affine, DIMS(4), REAL_LIST(1, 2), false},    {&affine, DIMS(3, 5), REAL_LIST(2), false},
      {&affine, SCALAR, REAL_LIST(1, 2), false},     {&twin, DIMS(3, 5), REAL_LIST(1, 2), false},
      {&affine, DIMS(3, 5), REAL_LIST(1, 2), true},
  };
  enum { KEYS = BASE_COUNT(keys) };
  for (size_t pair = 0; pair < (size_t)KEYS * KEYS; pair++) {
    const size_t two[] = {pair / KEYS, pair % KEYS};
    if (two[0] >= two[1]) continue;
    for (int turn = 0; turn < 2; turn++) { /* with the items in their own slots, then in each other's */
      const struct ir_graph *body = NULL;
      calls = 0;
      for (size_t k = 0; k < 2; k++) {
        size_t i = two[k];
        quern_tensor *src = keys[i].wide ? REAL(F64, 2) : REAL(F32, 2);
        assert_int_equal(
            ir_composite_body(ctx, keys[i].kind, ATTRS(.ints = keys[i].ints, .reals = keys[i].reals), 1, &src, &body),
            QUERN_STATUS_OK);
      }
      assert_int_equal(calls, 2);
      assert_int_equal(ctx->bodies.n, turn == 0 ? 2 : 4);
      struct base_map_slot *found[2], *slot = ctx->bodies.slots;
      for (size_t n = 0; turn == 0 && n < 2; slot++) {
        if (slot->item != NULL) found[n++] = slot;
      }
      if (turn > 0) continue;
      void *item = found[0]->item;
      found[0]->item = found[1]->item;
      found[1]->item = item;
    }
    test_teardown(NULL);
    assert_int_equal(test_setup(NULL), 0);
  }
}

/* The caller's lists may change after the call. */
static void test_lists_are_copied(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 2);
  int64_t ints[] = {3};
  calls = 0;
  quern_tensor *y = ir_composite_make(ctx, &affine, (struct ir_ints){1, ints}, NO_REALS, 1, &x);
  ints[0] = 4;
  quern_tensor *z = ir_composite_make(ctx, &affine, (struct ir_ints){1, ints}, NO_REALS, 1, &x);
  assert_int_equal(calls, 2);
  EXPECT_REALS(y, 6);
  EXPECT_REALS(z, 8);
}

static void test_body(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 2);
  const struct ir_graph *body = NULL;
  assert_int_equal(ir_composite_body(ctx, &affine, ATTRS(.ints = DIMS(3)), 1, &x, &body), QUERN_STATUS_OK);
  assert_int_equal(body->n_params, 1);
  assert_int_equal(body->n_results, 2);
  assert_ptr_equal(ir_composite_make(ctx, &affine, DIMS(3), NO_REALS, 1, &x)->node->attrs->body, body);
}

#define EXPECT_FAIL(t, STATUS, words)                                                                                  \
  do {                                                                                                                 \
    assert_true(ir_is_poison(t));                                                                                      \
    EXPECT_ERROR(quern_context_check(ctx), STATUS, words);                                                             \
  } while (0)

static void test_wrong_calls(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 2), *null = NULL, *poison = &ir_poison;
  EXPECT_FAIL(ir_composite_make(ctx, &affine, SCALAR, NO_REALS, 1, &null), INVALID, "affine: operand 0 is null");
  assert_ptr_equal(ir_composite_make(ctx, &affine, SCALAR, NO_REALS, 1, &poison), &ir_poison);
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
  quern_place_set("model.c", 3);
  EXPECT_FAIL(ir_composite_make(ctx, &failing, SCALAR, NO_REALS, 1, &x), DTYPE,
              "not: does not admit f32, only integers and bool\n  at model.c:3 HINT");
  quern_place_set(NULL, 0);
  EXPECT_FAIL(ir_composite_make(ctx, &forgetful, SCALAR, NO_REALS, 1, &x), INVALID, "a body's result 0 is null");
  EXPECT_FAIL(ir_composite_make(ctx, &open_kind, SCALAR, NO_REALS, 1, &x), INVALID, "a body uses input '' f32()");
  assert_false(ir_is_poison(ir_composite_make(ctx, &affine, SCALAR, NO_REALS, 1, &x)));
}

/* An error that was there before stays, and does not make a composite fail. */
static void test_error_before(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 2);
  ir_fail(ctx, QUERN_STATUS_SHAPE, "before");
  assert_false(ir_is_poison(ir_composite_make(ctx, &affine, SCALAR, NO_REALS, 1, &x)));
  EXPECT_ERROR(quern_context_check(ctx), SHAPE, "before");
}

static void test_every_allocation_fails(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    fault_begin(&fault);
    quern_status status = ir_composite_add(ctx, &affine);
    quern_tensor *x = ir_const(ctx, QUERN_DTYPE_F32, 2), *y = &ir_poison;
    if (status == QUERN_STATUS_OK) {
      y = ir_composite_make(ctx, &affine, DIMS(3), REAL_LIST(1), 1, &x);
      status = quern_context_check(ctx);
    }
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(ir_is_poison(y), fault.met);
    if (!fault.met) EXPECT_REALS(y, 6);
  }
  assert_true(fault.n > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_kinds),        TEST(test_node),
      TEST(test_values),       TEST(test_bodies_are_kept),
      TEST(test_equal_hashes), TEST(test_lists_are_copied),
      TEST(test_body),         TEST(test_wrong_calls),
      TEST(test_error_before), TEST(test_every_allocation_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
