/* tests/ir/test_node.c -- making nodes: interning, order of sources, wrong sources and attributes, constants, sizes */
#include "ir/ir_test.h"

#include <float.h>
#include <math.h>

/* ---- interning -------------------------------------------------------------------------------------------------- */

enum { MAX_VARIANTS = 12 };

/* All variants of an op's attributes on the same sources are different nodes, each found again by equal attributes. */
static void expect_distinct(enum ir_op op, int n_src, quern_tensor *const *src, size_t n,
                            const struct ir_attrs *variants, const char *file, int line) {
  quern_tensor *made[MAX_VARIANTS];
  if (n > MAX_VARIANTS) _fail(file, line);
  for (size_t i = 0; i < n; i++) {
    made[i] = ir_make(ctx, op, n_src, src, &variants[i]);
    if (ir_is_poison(made[i])) print_error("%s variant %zu: %s\n", ir_ops[op].name, i, ctx->message);
    if (ir_is_poison(made[i])) _fail(file, line);
    for (size_t k = 0; k < i; k++) {
      if (made[k]->node == made[i]->node) print_error("%s: variants %zu and %zu are one node\n", ir_ops[op].name, k, i);
      if (made[k]->node == made[i]->node) _fail(file, line);
    }
  }
  size_t nodes = quern_context_node_count(ctx);
  for (size_t i = 0; i < n; i++) {
    struct ir_attrs copy = *made[i]->node->attrs; /* equal values in other memory */
    if (ir_make(ctx, op, n_src, src, &variants[i]) != made[i] || ir_make(ctx, op, n_src, src, &copy) != made[i]) {
      print_error("%s variant %zu was not found again\n", ir_ops[op].name, i);
      _fail(file, line);
    }
    if (!ir_node_is_interned(made[i]->node)) _fail(file, line);
  }
  assert_int_equal(quern_context_node_count(ctx), nodes);
  for (size_t i = 1; i < n; i++) { /* not only their hashes differ */
    test_swap_items(&ctx->nodes, made[i - 1]->node, made[i]->node);
    quern_tensor *a = ir_make(ctx, op, n_src, src, &variants[i - 1]), *b = ir_make(ctx, op, n_src, src, &variants[i]);
    if (a == made[i] || b == made[i - 1])
      print_error("%s: variants %zu and %zu are taken for equal\n", ir_ops[op].name, i - 1, i);
    if (a == made[i] || b == made[i - 1]) _fail(file, line);
    test_swap_items(&ctx->nodes, made[i - 1]->node, made[i]->node);
  }
}

#define A(...)                                                                                                         \
  { __VA_ARGS__ }
#define DISTINCT(OP, sources, ...)                                                                                     \
  expect_distinct(IR_##OP, sources, sizeof((struct ir_attrs[]){__VA_ARGS__}) / sizeof(struct ir_attrs),                \
                  (struct ir_attrs[]){__VA_ARGS__}, __FILE__, __LINE__)
#define NO_SOURCES 0, NULL

static void test_numbers_and_lists(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", DIMS(4, 4)), *zero = REAL(F32, 0);
  DISTINCT(IOTA, NO_SOURCES, A(.dtype = QUERN_DTYPE_I32, .shape = DIMS(2, 2)),
           A(.dtype = QUERN_DTYPE_I32, .shape = DIMS(2, 2), .axis = 1),
           A(.dtype = QUERN_DTYPE_I64, .shape = DIMS(2, 2)), A(.dtype = QUERN_DTYPE_I32, .shape = DIMS(2)),
           A(.dtype = QUERN_DTYPE_I32, .shape = DIMS(2, 3)), A(.dtype = QUERN_DTYPE_I32, .shape = DIMS(2, 2, 1)));
  DISTINCT(PARAM, NO_SOURCES, A(.dtype = QUERN_DTYPE_F32), A(.dtype = QUERN_DTYPE_F32, .index = 1),
           A(.dtype = QUERN_DTYPE_F64), A(.dtype = QUERN_DTYPE_F32, .shape = DIMS(1)));
  DISTINCT(CAST, TENSORS(x), A(.dtype = QUERN_DTYPE_F64), A(.dtype = QUERN_DTYPE_F16), A(.dtype = QUERN_DTYPE_F32));
  DISTINCT(RESHAPE, TENSORS(x), A(.shape = DIMS(16)), A(.shape = DIMS(2, 8)), A(.shape = DIMS(8, 2)),
           A(.shape = DIMS(4, 4)));
  DISTINCT(FLIP, TENSORS(x), A(.axes = DIMS(0)), A(.axes = DIMS(1)), A(.axes = DIMS(0, 1)), A(.axes = SCALAR));
  DISTINCT(SLICE, TENSORS(x), A(.lo = DIMS(0, 0), .hi = DIMS(2, 2), .step = DIMS(1, 1)),
           A(.lo = DIMS(1, 0), .hi = DIMS(2, 2), .step = DIMS(1, 1)),
           A(.lo = DIMS(0, 0), .hi = DIMS(2, 1), .step = DIMS(1, 1)),
           A(.lo = DIMS(0, 0), .hi = DIMS(2, 2), .step = DIMS(2, 1)),
           A(.lo = DIMS(0, 0), .hi = DIMS(2, 2), .step = DIMS(1, 2)));
  DISTINCT(PAD, TENSORS(x, zero), A(.lo = DIMS(1, 0), .hi = DIMS(0, 0), .mid = DIMS(0, 0)),
           A(.lo = DIMS(0, 0), .hi = DIMS(1, 0), .mid = DIMS(0, 0)),
           A(.lo = DIMS(0, 0), .hi = DIMS(0, 0), .mid = DIMS(1, 0)));
  DISTINCT(WINDOW, TENSORS(x), A(.axes = DIMS(0), .size = DIMS(2), .step = DIMS(1), .dilate = DIMS(1)),
           A(.axes = DIMS(1), .size = DIMS(2), .step = DIMS(1), .dilate = DIMS(1)),
           A(.axes = DIMS(0), .size = DIMS(1), .step = DIMS(1), .dilate = DIMS(1)),
           A(.axes = DIMS(0), .size = DIMS(2), .step = DIMS(2), .dilate = DIMS(1)),
           A(.axes = DIMS(0), .size = DIMS(2), .step = DIMS(1), .dilate = DIMS(2)));
}

static void test_reductions(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", DIMS(2, 2, 2)), *y = INPUT(F32, "y", DIMS(2, 2, 2));
  quern_tensor *index = INPUT(I32, "i", DIMS(2, 2)), *u = INPUT(F32, "u", DIMS(2, 2, 2, 2));
  DISTINCT(REDUCE, TENSORS(x), A(.reduce = IR_SUM, .axes = DIMS(0)), A(.reduce = IR_PROD, .axes = DIMS(0)),
           A(.reduce = IR_REDUCE_MAX, .axes = DIMS(0)), A(.reduce = IR_REDUCE_MIN, .axes = DIMS(0)),
           A(.reduce = IR_SUM, .axes = DIMS(1)));
  DISTINCT(SORT, TENSORS(x), A(.axis = 0), A(.axis = 0, .reverse = 1), A(.axis = 2));
  DISTINCT(SCAN, TENSORS(x), A(.axis = 0), A(.axis = 0, .reverse = 1), A(.axis = 0, .reduce = IR_PROD));
  DISTINCT(GATHER, TENSORS(x, index), A(.axis = 1), A(.axis = 1, .batch = 1), A(.axis = 2));
  DISTINCT(SCATTER, TENSORS(x, index, u), A(.axis = 0), A(.axis = 0, .reduce = IR_SET),
           A(.axis = 0, .reduce = IR_REDUCE_MAX));
  DISTINCT(DOT, TENSORS(x, y), A(.a_batch = DIMS(0), .b_batch = DIMS(0), .a_sum = DIMS(1), .b_sum = DIMS(1)),
           A(.a_batch = DIMS(2), .b_batch = DIMS(0), .a_sum = DIMS(1), .b_sum = DIMS(1)),
           A(.a_batch = DIMS(0), .b_batch = DIMS(2), .a_sum = DIMS(1), .b_sum = DIMS(1)),
           A(.a_batch = DIMS(0), .b_batch = DIMS(0), .a_sum = DIMS(2), .b_sum = DIMS(1)),
           A(.a_batch = DIMS(0), .b_batch = DIMS(0), .a_sum = DIMS(1), .b_sum = DIMS(2)),
           A(.a_batch = DIMS(0), .b_batch = DIMS(0), .a_sum = DIMS(1), .b_sum = DIMS(1), .combine = IR_COMBINE_ADD),
           A(.a_batch = DIMS(0), .b_batch = DIMS(0), .a_sum = DIMS(1), .b_sum = DIMS(1), .reduce = IR_REDUCE_MAX),
           A(.a_sum = DIMS(1), .b_sum = DIMS(1)), A(.a_batch = DIMS(1), .b_batch = DIMS(1)));
  quern_tensor *word = INT(U64, 1);
  DISTINCT(RANDOM, TENSORS(word, word), A(.shape = DIMS(2), .stream = 1), A(.shape = DIMS(2), .stream = 2),
           A(.shape = DIMS(3), .stream = 1));
}

static void test_data(void **state) {
  (void)state;
  float two[2] = {1, 2}, other[2] = {1, 3}, nought[2] = {0, 0}, minus[2] = {0, -0.0f};
  uint32_t bits[2] = {0, 0x80000000u};
  DISTINCT(CONST, NO_SOURCES, A(.dtype = QUERN_DTYPE_F32, .shape = DIMS(2), .data = {8, two}),
           A(.dtype = QUERN_DTYPE_F32, .shape = DIMS(2), .data = {8, other}),
           A(.dtype = QUERN_DTYPE_F32, .shape = DIMS(2), .data = {8, nought}),
           A(.dtype = QUERN_DTYPE_F32, .shape = DIMS(2), .data = {8, minus}),
           A(.dtype = QUERN_DTYPE_U32, .shape = DIMS(2), .data = {8, bits}), /* the same bytes as minus */
           A(.dtype = QUERN_DTYPE_F32, .shape = DIMS(1, 2), .data = {8, two}),
           A(.dtype = QUERN_DTYPE_F32, .shape = DIMS(1), .data = {4, two}),
           A(.dtype = QUERN_DTYPE_F32, .shape = DIMS(0)), A(.dtype = QUERN_DTYPE_F32, .shape = DIMS(0, 3)));
}

static const struct ir_graph *shifted(double by) {
  quern_tensor *x = LEAF0(F32);
  return GRAPH(TENSORS(x), TENSORS(IR_MAKE(ctx, IR_ADD, NULL, x, REAL(F32, by))));
}

static void test_names_graphs_and_reals(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 1), *yes = INT(BOOL, 1);
  const struct ir_graph *one = shifted(1), *two = shifted(2);
  double half[] = {0.5}, third[] = {0.25}, nan_bits[] = {NAN}, none[] = {-0.0}, zero[] = {0.0};
  DISTINCT(COMPOSITE, TENSORS(x), A(.name = "a", .body = one), A(.name = "b", .body = one),
           A(.name = "ab", .body = one), A(.name = "a", .body = two), A(.name = "a", .body = one, .ints = DIMS(1)),
           A(.name = "a", .body = one, .ints = DIMS(1, 1)), A(.name = "a", .body = one, .ints = DIMS(2)),
           A(.name = "a", .body = one, .reals = {1, half}), A(.name = "a", .body = one, .reals = {1, third}),
           A(.name = "a", .body = one, .reals = {1, nan_bits}), A(.name = "a", .body = one, .reals = {1, none}),
           A(.name = "a", .body = one, .reals = {1, zero}));
  DISTINCT(IF, TENSORS(yes, x), A(.body = one, .other = two), A(.body = two, .other = one),
           A(.body = one, .other = one));

  quern_tensor *i = LEAF0(I64), *c = LEAF0(F32);
  const struct ir_graph *body = GRAPH(TENSORS(i, c), TENSORS(IR_MAKE(ctx, IR_NEG, NULL, c)));
  DISTINCT(LOOP, TENSORS(x), A(.trip = 2, .carries = 1, .body = body), A(.trip = 3, .carries = 1, .body = body),
           A(.trip = 2, .body = body), A(.trip = 2, .carries = 1, .reverse = 1, .body = body));
}

/* Attributes that are not the op's own do not count, and are not kept. */
static void test_foreign_attributes(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 1);
  quern_tensor *plain = IR_MAKE(ctx, IR_NEG, NULL, x);
  assert_ptr_equal(IR_MAKE(ctx, IR_NEG, ATTRS(.axis = 3, .shape = DIMS(7), .dtype = QUERN_DTYPE_I8), x), plain);
  assert_int_equal(plain->node->attrs->axis, 0);
  quern_tensor *cast = IR_MAKE(ctx, IR_CAST, ATTRS(.dtype = QUERN_DTYPE_F64, .axis = 9), x);
  assert_int_equal(cast->node->attrs->axis, 0);
}

/* Nothing of the caller's memory is kept. */
static void test_attributes_are_copied(void **state) {
  (void)state;
  int64_t dims[] = {3, 1}, ints[] = {5};
  double reals[] = {0.5};
  float data[] = {1, 2, 3};
  char name[] = "kind";
  quern_tensor *c =
      ir_make(ctx, IR_CONST, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .shape = {2, dims}, .data = {12, data}));
  quern_tensor *k = IR_MAKE(
      ctx, IR_COMPOSITE, ATTRS(.name = name, .ints = {1, ints}, .reals = {1, reals}, .body = shifted(1)), REAL(F32, 1));
  dims[0] = ints[0] = 77, reals[0] = 7, data[0] = 70, name[0] = 'K';
  EXPECT_SHAPE(c, 3, 1);
  assert_int_equal(c->node->attrs->shape.at[0], 3);
  EXPECT_REALS(c, 1, 2, 3);
  assert_string_equal(k->node->attrs->name, "kind");
  assert_int_equal(k->node->attrs->ints.at[0], 5);
  assert_true(k->node->attrs->reals.at[0] == 0.5);
  assert_true(ir_node_is_interned(c->node) && ir_node_is_interned(k->node));
}

static void test_identity_ops(void **state) {
  (void)state;
  struct ir_buffer *buffer = ir_buffer_new(ctx, 8);
  struct ir_attrs attrs = {.name = "x", .dtype = QUERN_DTYPE_F32, .shape = DIMS(2), .buffer = buffer};
  static const enum ir_op ops[] = {IR_INPUT, IR_STATE, IR_BUFFER};
  for (size_t i = 0; i < BASE_COUNT(ops); i++) {
    quern_tensor *a = ir_make(ctx, ops[i], 0, NULL, &attrs), *b = ir_make(ctx, ops[i], 0, NULL, &attrs);
    assert_false(ir_is_poison(a));
    assert_ptr_not_equal(a, b);
    assert_true(ir_node_is_interned(a->node) && ir_node_is_interned(b->node));
    assert_ptr_not_equal(IR_MAKE(ctx, IR_NEG, NULL, a), IR_MAKE(ctx, IR_NEG, NULL, b));
  }
  quern_tensor *c = ir_make(ctx, IR_BUFFER, 0, NULL, &attrs);
  assert_ptr_equal(c->node->attrs->buffer, buffer);
}

/* ---- sources ---------------------------------------------------------------------------------------------------- */

static void test_order_of_sources(void **state) {
  (void)state;
  quern_tensor *a = INPUT(I64, "a", DIMS(3)), *b = INPUT(I64, "b", DIMS(3));
  for (enum ir_op op = 0; op < IR_OP_COUNT; op++) {
    if (ir_ops[op].n_src != 2 || ir_ops[op].attrs != 0 || (ir_ops[op].dtypes & BASE_SIGNED) == 0) continue;
    bool commutes = (ir_ops[op].flags & IR_COMM) != 0;
    quern_tensor *ab = IR_MAKE(ctx, op, NULL, a, b), *ba = IR_MAKE(ctx, op, NULL, b, a);
    assert_false(ir_is_poison(ab));
    assert_int_equal(ab == ba, commutes);
    assert_ptr_equal(ba->node->src[0], commutes ? a : b);
    assert_ptr_equal(ba->node->src[1], commutes ? b : a);
  }
  static const enum ir_op commuting[] = {IR_ADD, IR_MUL, IR_MAX, IR_MIN, IR_AND, IR_OR, IR_XOR, IR_EQ};
  for (size_t i = 0; i < BASE_COUNT(commuting); i++) assert_true((ir_ops[commuting[i]].flags & IR_COMM) != 0);
  static const enum ir_op not [] = {IR_SUB, IR_DIV, IR_MOD, IR_POW,    IR_ATAN2, IR_SHL,
                                    IR_SHR, IR_LT,  IR_LE,  IR_SELECT, IR_DOT};
  for (size_t i = 0; i < BASE_COUNT(not ); i++) assert_true((ir_ops[not [i]].flags & IR_COMM) == 0);
}

/* Two results of one node: ordered by result. */
static void test_order_of_results(void **state) {
  (void)state;
  quern_tensor *sorted = IR_MAKE(ctx, IR_SORT, NULL, INPUT(I64, "x", DIMS(3))), *index = ir_result(sorted, 1);
  quern_tensor *sum = IR_MAKE(ctx, IR_ADD, NULL, index, sorted);
  assert_ptr_equal(sum, IR_MAKE(ctx, IR_ADD, NULL, sorted, index));
  assert_ptr_equal(sum->node->src[0], sorted);
  assert_ptr_not_equal(IR_MAKE(ctx, IR_ADD, NULL, sorted, sorted), sum);
  assert_ptr_not_equal(IR_MAKE(ctx, IR_NEG, NULL, sorted), IR_MAKE(ctx, IR_NEG, NULL, index));
  assert_ptr_equal(index->node, sorted->node);
  assert_int_equal(index->result, 1);
  assert_int_equal(index->dtype, QUERN_DTYPE_I64);
  assert_ptr_equal(ir_result(&ir_poison, 1), &ir_poison);
}

/* Nodes with other ops, other sources or more of them are not taken for equal. */
static void test_equal_hashes(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(3)), *b = INPUT(F32, "b", DIMS(3)), *made[6];
  for (int turn = 0; turn < 2; turn++) {
    quern_tensor *const now[] = {IR_MAKE(ctx, IR_SUB, NULL, a, b),       IR_MAKE(ctx, IR_SUB, NULL, b, a),
                                 IR_MAKE(ctx, IR_DIV, NULL, a, b),       IR_MAKE(ctx, IR_CONCAT, NULL, a, b),
                                 IR_MAKE(ctx, IR_CONCAT, NULL, a, b, a), IR_MAKE(ctx, IR_CONCAT, NULL, a)};
    if (turn == 0) memcpy(made, now, sizeof made);
    for (int i = 0; i < 6; i++) {
      for (int k = 0; k < 6 && turn == 1; k++) assert_ptr_not_equal(now[i], made[k]);
    }
    for (int i = 1; i < 6 && turn == 0; i++) test_swap_items(&ctx->nodes, made[i - 1]->node, made[i]->node);
  }
}

static void test_ids_grow(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(3)), *b = IR_MAKE(ctx, IR_EXP, NULL, a), *c = IR_MAKE(ctx, IR_ADD, NULL, b, a);
  assert_int_equal(a->node->id, 0);
  assert_int_equal(b->node->id, 1);
  assert_int_equal(c->node->id, 2);
  assert_int_equal(c->node->n_src, 2);
  assert_int_equal(c->node->n_out, 1);
  assert_ptr_equal(c->node->ctx, ctx);
  assert_ptr_equal(c->node->out[0].node, c->node);
}

#define EXPECT_FAIL(t, STATUS, words)                                                                                  \
  do {                                                                                                                 \
    assert_true(ir_is_poison(t));                                                                                      \
    EXPECT_ERROR(quern_context_check(ctx), STATUS, words);                                                             \
  } while (0)

static void test_wrong_sources(void **state) {
  (void)state;
  quern_place_set("here.c", 12);
  quern_tensor *x = REAL(F32, 1);
  EXPECT_FAIL(IR_MAKE(ctx, IR_ADD, NULL, x, NULL), INVALID, "add: source 1 is null\n  at here.c:12");
  EXPECT_FAIL(IR_MAKE(ctx, IR_ADD, NULL, NULL, x), INVALID, "add: source 0 is null");
  EXPECT_FAIL(IR_MAKE(ctx, IR_ADD, NULL, x), INVALID, "add: takes 2 sources, got 1");
  EXPECT_FAIL(IR_MAKE(ctx, IR_NEG, NULL, x, x), INVALID, "neg: takes 1 sources, got 2");
  EXPECT_FAIL(IR_MAKE(ctx, IR_CONST, ATTRS(.dtype = QUERN_DTYPE_F32), x), INVALID, "const: takes 0 sources, got 1");
  quern_context *other = NULL;
  assert_int_equal(ir_context_new(&other, NULL), QUERN_STATUS_OK);
  quern_tensor *foreign = ir_const(other, QUERN_DTYPE_F32, 1);
  EXPECT_FAIL(IR_MAKE(ctx, IR_ADD, NULL, x, foreign), INVALID, "add: source 1 belongs to another context");
  EXPECT_FAIL(IR_MAKE(ctx, IR_NEG, NULL, foreign), INVALID, "neg: source 0 belongs to another context");
  assert_int_equal(quern_context_check(other), QUERN_STATUS_OK);
  quern_context_free(other);
  quern_place_set(NULL, 0);
}

static void test_poison_sources(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 1);
  quern_tensor *bad = IR_MAKE(ctx, IR_NOT, NULL, x);
  assert_true(ir_is_poison(bad) && ir_is_poison(NULL) && !ir_is_poison(x));
  assert_ptr_equal(IR_MAKE(ctx, IR_ADD, NULL, x, bad), &ir_poison);
  assert_ptr_equal(IR_MAKE(ctx, IR_ADD, NULL, IR_MAKE(ctx, IR_NEG, NULL, bad), x), &ir_poison);
  EXPECT_ERROR(quern_context_check(ctx), DTYPE,
               "not: does not admit f32, only integers and bool HINT: quern_cast converts");
  assert_ptr_equal(IR_MAKE(ctx, IR_ADD, NULL, x, bad), &ir_poison); /* no error of its own */
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
}

static void test_wrong_attributes(void **state) {
  (void)state;
  quern_tensor *x = REALS(F32, DIMS(2), 1, 2), *z = REAL(F32, 0);
  EXPECT_FAIL(ir_make(ctx, IR_INPUT, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32)), INVALID, "input: the name is null");
  EXPECT_FAIL(ir_make(ctx, IR_INPUT, 0, NULL, NULL), INVALID, "input: the name is null");
  EXPECT_FAIL(IR_MAKE(ctx, IR_COMPOSITE, NULL, x), INVALID, "composite: the name is null");
  EXPECT_FAIL(IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "a", .reals = {1, NULL}), x), INVALID,
              "composite: the reals is null");
  EXPECT_FAIL(IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = {2, NULL}), x), INVALID, "reshape: the shape is null");
  EXPECT_FAIL(IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = {-2, NULL}), x), INVALID, "reshape: shape has -2 numbers");
  EXPECT_FAIL(IR_MAKE(ctx, IR_PAD, ATTRS(.lo = DIMS(1), .hi = {1, NULL}, .mid = DIMS(0)), x, z), INVALID,
              "pad: the hi is null");
  EXPECT_FAIL(ir_make(ctx, IR_CONST, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .data = {4, NULL})), INVALID,
              "const: the data is null");
  EXPECT_FAIL(ir_make(ctx, IR_CONST, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_COUNT)), DTYPE, "const: 15 is no dtype");
}

static void test_context_is_full(void **state) {
  (void)state;
  quern_tensor *x = REAL(F32, 1);
  uint32_t n = ctx->n_nodes;
  ctx->n_nodes = UINT32_MAX;
  EXPECT_FAIL(IR_MAKE(ctx, IR_NEG, NULL, x), OVERFLOW, "neg: the context holds 2^32 - 1 nodes");
  assert_ptr_equal(REAL(F32, 1), x);
  ctx->n_nodes = n;
  assert_int_equal(IR_MAKE(ctx, IR_NEG, NULL, x)->node->id, n);
}

/* Each allocation of a new node fails once; the error is kept, and the node is made when there is memory again. */
static void test_no_memory(void **state) {
  (void)state;
  static int64_t many[1 << 17]; /* these lists are more than a chunk of the arena has left */
  for (size_t i = 0; i < BASE_COUNT(many); i++) many[i] = (int64_t)i;
  static double reals[IR_CONST_BYTES / sizeof(double)];
  static char name[1 << 17];
  memset(name, 'n', sizeof name - 1);
  const struct ir_attrs big[] = {
      {.name = "big", .ints = {BASE_COUNT(many), many}},
      {.name = "big", .reals = {BASE_COUNT(reals), reals}},
      {.name = name},
      {.dtype = QUERN_DTYPE_F64, .shape = DIMS(BASE_COUNT(reals)), .data = {sizeof reals, reals}}};
  for (size_t k = 0; k < BASE_COUNT(big); k++) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      test_renew();
      quern_tensor *x = REAL(F32, 1);
      struct ir_attrs attrs = big[k];
      bool is_const = attrs.data.at != NULL;
      if (!is_const) attrs.body = shifted(1);
      size_t nodes = quern_context_node_count(ctx);
      for (int again = 0; again < 2; again++) {
        if (again == 0) fault_begin(&fault);
        quern_tensor *t = ir_make(ctx, is_const ? IR_CONST : IR_COMPOSITE, is_const ? 0 : 1, &x, &attrs);
        if (again == 0) fault_end(&fault);
        bool made = again == 1 || !fault.met;
        assert_int_equal(ir_is_poison(t), !made);
        if (again == 0) EXPECT_FAULT(&fault, quern_context_check(ctx));
        assert_int_equal(quern_context_node_count(ctx), nodes + made);
      }
      assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
    }
    assert_true(fault.n > 1);
  }
}

/* ---- constants -------------------------------------------------------------------------------------------------- */

static void test_constants(void **state) {
  (void)state;
  EXPECT_REALS(ir_const(ctx, QUERN_DTYPE_F32, 0.1), (double)0.1f);
  EXPECT_REALS(ir_const(ctx, QUERN_DTYPE_BF16, 1.00390625), 1); /* half way: to even */
  EXPECT_INTS(ir_const(ctx, QUERN_DTYPE_I8, -3), -3);
  EXPECT_INTS(ir_const(ctx, QUERN_DTYPE_BOOL, 2), 1);
  EXPECT_INTS(ir_const_int(ctx, QUERN_DTYPE_I64, INT64_MIN + 1), INT64_MIN + 1);
  EXPECT_INTS(ir_const_int(ctx, QUERN_DTYPE_U64, -1), -1);
  EXPECT_INTS(ir_const_int(ctx, QUERN_DTYPE_I64, (INT64_C(1) << 53) + 1), (INT64_C(1) << 53) + 1);
  EXPECT_REALS(ir_const_int(ctx, QUERN_DTYPE_F64, 7), 7);
  assert_ptr_equal(ir_const(ctx, QUERN_DTYPE_I32, 7), ir_const_int(ctx, QUERN_DTYPE_I32, 7));
  assert_ptr_equal(ir_const(ctx, QUERN_DTYPE_F32, NAN), ir_const(ctx, QUERN_DTYPE_F32, -NAN));
  assert_ptr_not_equal(ir_const(ctx, QUERN_DTYPE_F32, 0), ir_const(ctx, QUERN_DTYPE_F32, -0.0));
  assert_int_equal(ir_const(ctx, QUERN_DTYPE_F8E5M2, 1)->rank, 0);
}

static void test_is_const(void **state) {
  (void)state;
  quern_tensor *one = REAL(F32, 1), *row = IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = DIMS(1, 1)), one);
  quern_tensor *wide = IR_MAKE(ctx, IR_BROADCAST, ATTRS(.shape = DIMS(3, 2)), row);
  quern_tensor *flat = IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = DIMS(6)), wide);
  assert_true(ir_is_const(one, 1) && ir_is_const(row, 1) && ir_is_const(wide, 1) && ir_is_const(flat, 1));
  assert_false(ir_is_const(one, 2) || ir_is_const(flat, 0) || ir_is_const(one, NAN) ||
               ir_is_const(one, 1 + DBL_EPSILON));
  assert_false(ir_is_const(&ir_poison, 1) || ir_is_const(NULL, 1));
  assert_false(ir_is_const(IR_MAKE(ctx, IR_NEG, NULL, one), -1));
  assert_false(ir_is_const(INPUT(F32, "x", SCALAR), 1));

  assert_true(ir_is_const(REALS(F32, DIMS(3), 2, 2, 2), 2));
  assert_false(ir_is_const(REALS(F32, DIMS(3), 2, 2, 3), 2));
  assert_false(ir_is_const(REALS(F32, DIMS(3), 3, 2, 2), 2));
  assert_false(ir_is_const(EMPTY(F32, DIMS(0)), 2));

  assert_true(ir_is_const(REAL(F32, 0), 0) && !ir_is_const(REAL(F32, 0), -0.0));
  assert_true(ir_is_const(REAL(F32, -0.0), -0.0) && !ir_is_const(REAL(F32, -0.0), 0));
  assert_false(ir_is_const(REAL(F32, NAN), NAN));
  assert_true(ir_is_const(REAL(F32, INFINITY), INFINITY));
  assert_false(ir_is_const(REAL(F32, 0.1), 0.1)); /* the nearest f32 is another number */
  assert_true(ir_is_const(REAL(F32, 0.1), (double)0.1f));

  assert_true(ir_is_const(INT(I32, -5), -5) && !ir_is_const(INT(I32, 0), 0.5));
  assert_true(ir_is_const(INT(BOOL, 1), 1) && ir_is_const(INT(BOOL, 0), 0) && !ir_is_const(INT(BOOL, 1), 2));
  assert_false(ir_is_const(INT(I64, (INT64_C(1) << 53) + 1), 9007199254740992.0));
}

/* ---- types ------------------------------------------------------------------------------------------------------ */

static void test_sizes(void **state) {
  (void)state;
  const struct {
    quern_dtype dtype;
    int rank;
    int64_t dims[3], count;
  } good[] = {
      {QUERN_DTYPE_F32, 0, {0}, 1},
      {QUERN_DTYPE_F32, 2, {3, 4}, 12},
      {QUERN_DTYPE_F32, 3, {INT64_MAX, 0, INT64_MAX}, 0},
      {QUERN_DTYPE_I8, 1, {INT64_MAX}, INT64_MAX},
      {QUERN_DTYPE_F64, 2, {INT64_C(1) << 30, (INT64_C(1) << 30) - 1}, ((INT64_C(1) << 30) - 1) << 30},
  };
  for (size_t i = 0; i < BASE_COUNT(good); i++) {
    int64_t count = -1;
    assert_int_equal(ir_type_count(good[i].dtype, good[i].rank, good[i].dims, &count), QUERN_STATUS_OK);
    assert_int_equal(count, good[i].count);
    quern_tensor t = {.dtype = good[i].dtype, .rank = good[i].rank, .dims = good[i].dims};
    assert_int_equal(ir_count(&t), good[i].count);
    assert_int_equal(ir_bytes(&t), (size_t)good[i].count * base_dtypes[good[i].dtype].size);
  }
  const struct {
    quern_dtype dtype;
    int64_t dims[3];
  } bad[] = {
      {QUERN_DTYPE_F64, {INT64_C(1) << 30, INT64_C(1) << 30, 1}},
      {QUERN_DTYPE_F64, {INT64_C(1) << 60, 1, 1}},
      {QUERN_DTYPE_I8, {INT64_C(1) << 32, INT64_C(1) << 31, 1}},
      {QUERN_DTYPE_BOOL, {INT64_C(1) << 40, INT64_C(1) << 40, INT64_C(1) << 40}},
      {QUERN_DTYPE_F16, {INT64_MAX, 1, 1}},
  };
  for (size_t i = 0; i < BASE_COUNT(bad); i++) {
    int64_t count;
    EXPECT_ERROR(ir_type_count(bad[i].dtype, 3, bad[i].dims, &count), OVERFLOW, "more than 2^63 - 1 bytes");
    assert_non_null(strstr(quern_last_error(), base_dtypes[bad[i].dtype].name));
  }
}

static void test_same_type(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(2, 3)), *b = INPUT(F32, "b", DIMS(2, 3)), *c = INPUT(F64, "c", DIMS(2, 3));
  quern_tensor *d = INPUT(F32, "d", DIMS(3, 2)), *e = INPUT(F32, "e", DIMS(2)), *s = REAL(F32, 0), *t = REAL(F32, 1);
  assert_true(ir_same_type(a, b) && ir_same_shape(a, c) && ir_same_type(s, t));
  assert_false(ir_same_type(a, c) || ir_same_shape(a, d) || ir_same_shape(a, e) || ir_same_shape(e, s));
  char text[IR_TYPE_TEXT];
  assert_string_equal(ir_type_text(text, a), "f32(2, 3)");
  assert_string_equal(ir_type_text(text, s), "f32()");
  assert_string_equal(ir_type_text(text, e), "f32(2,)");
  int64_t most[QUERN_MAX_RANK];
  for (int k = 0; k < QUERN_MAX_RANK; k++) most[k] = INT64_MIN; /* as long as a text can be */
  ir_type_text(text, &(quern_tensor){.dtype = QUERN_DTYPE_F8E4M3, .rank = QUERN_MAX_RANK, .dims = most});
  assert_true(strlen(text) < IR_TYPE_TEXT);
}

/* The tables have a row for each op and attribute, with names that no other has. */
static void test_tables(void **state) {
  (void)state;
  for (int op = 0; op < IR_OP_COUNT; op++) {
    assert_non_null(ir_ops[op].name);
    assert_true(strlen(ir_ops[op].equation) > 5);
    for (int other = 0; other < op; other++) assert_string_not_equal(ir_ops[op].name, ir_ops[other].name);
  }
  assert_string_equal(ir_ops[IR_ADD].name, "add");
  assert_string_equal(ir_reduce_names[IR_REDUCE_MIN], "min");
  assert_string_equal(ir_reduce_names[IR_SET], "set");
  assert_string_equal(ir_combine_names[IR_COMBINE_MIN], "min");
  for (int k = 0; k < IR_ATTR_COUNT; k++) assert_true(ir_attr_table[k].offset < sizeof(struct ir_attrs));
  assert_int_equal(ir_attr_table[IR_ATTR_axis].offset, offsetof(struct ir_attrs, axis));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_numbers_and_lists),
      TEST(test_reductions),
      TEST(test_data),
      TEST(test_names_graphs_and_reals),
      TEST(test_foreign_attributes),
      TEST(test_attributes_are_copied),
      TEST(test_identity_ops),
      TEST(test_order_of_sources),
      TEST(test_order_of_results),
      TEST(test_equal_hashes),
      TEST(test_ids_grow),
      TEST(test_wrong_sources),
      TEST(test_poison_sources),
      TEST(test_wrong_attributes),
      TEST(test_context_is_full),
      TEST(test_no_memory),
      TEST(test_constants),
      TEST(test_is_const),
      TEST(test_sizes),
      TEST(test_same_type),
      TEST(test_tables),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
