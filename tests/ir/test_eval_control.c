/* tests/ir/test_eval_control.c -- loops, choices and composites, and graphs inside graphs */
#include "ir/ir_test.h"

#define B(NAME, a, b) IR_MAKE(ctx, IR_##NAME, NULL, a, b)
#define C64(x) INT(I64, x)

/* ---- loops ------------------------------------------------------------------------------------------ */

/* (c, y[i], z[i]) = (2 c + x[i], c + k, i) over x, from c = 1, with k = 100 */
static quern_tensor *horner(int64_t reverse, quern_tensor *xs) {
  quern_tensor *i = LEAF0(I64), *c = LEAF0(I64), *x = LEAF0(I64), *k = LEAF0(I64);
  quern_tensor *next = B(ADD, B(ADD, c, c), x);
  const struct ir_graph *body = GRAPH(TENSORS(i, c, x, k), TENSORS(next, B(ADD, c, k), i));
  struct ir_attrs attrs = {.trip = xs->dims[0], .carries = 1, .scanned = 1, .reverse = reverse, .body = body};
  return IR_MAKE(ctx, IR_LOOP, &attrs, C64(1), xs, C64(100));
}

static void test_loop(void **state) {
  (void)state;
  quern_tensor *x = INTS(I64, DIMS(3), 3, 5, 7);
  quern_tensor *up = horner(0, x), *down = horner(1, x);
  EXPECT_INTS(up, 37); /* 1, 5, 15, 37 */
  EXPECT_INTS(ir_result(up, 1), 101, 105, 115);
  EXPECT_INTS(ir_result(up, 2), 0, 1, 2);
  EXPECT_INTS(down, 49); /* 1, 9, 23, 49 */
  EXPECT_INTS(ir_result(down, 1), 123, 109, 101);
  EXPECT_INTS(ir_result(down, 2), 0, 1, 2);
  quern_tensor *none = horner(0, EMPTY(I64, DIMS(0)));
  EXPECT_INTS(none, 1);
  EXPECT_EMPTY(ir_result(none, 1));
}

/* Both carries of a turn are those of the turn before. */
static void test_carries(void **state) {
  (void)state;
  quern_tensor *i = LEAF0(I64), *a = LEAF0(I64), *b = LEAF0(I64);
  const struct ir_graph *body = GRAPH(TENSORS(i, a, b), TENSORS(b, B(ADD, a, b), a));
  quern_tensor *y = IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 8, .carries = 2, .body = body), C64(0), C64(1));
  EXPECT_INTS(y, 21);
  EXPECT_INTS(ir_result(y, 1), 34);
  EXPECT_INTS(ir_result(y, 2), 0, 1, 1, 2, 3, 5, 8, 13);
}

static void test_loop_without_sources(void **state) {
  (void)state;
  quern_tensor *i = LEAF0(I64);
  const struct ir_graph *body = GRAPH(TENSORS(i), TENSORS(B(MUL, i, i), INTS(U8, DIMS(2), 7, 8)));
  quern_tensor *y = ir_make(ctx, IR_LOOP, 0, NULL, ATTRS(.trip = 4, .body = body));
  EXPECT_INTS(y, 0, 1, 4, 9);
  EXPECT_SHAPE(ir_result(y, 1), 4, 2);
  EXPECT_INTS(ir_result(y, 1), 7, 8, 7, 8, 7, 8, 7, 8);
}

/* Rows in, rows out; two scanned sources and two captures, of unlike types. */
static void test_rows(void **state) {
  (void)state;
  quern_tensor *i = LEAF0(I64), *c = LEAF(F32, 1, (int64_t[]){2}), *x = LEAF(F32, 1, (int64_t[]){2}), *s = LEAF0(F32);
  quern_tensor *k = LEAF(F32, 1, (int64_t[]){2}), *flag = LEAF0(BOOL);
  quern_tensor *wide =
      IR_MAKE(ctx, IR_BROADCAST, ATTRS(.shape = DIMS(2)), IR_MAKE(ctx, IR_RESHAPE, ATTRS(.shape = DIMS(1)), s));
  quern_tensor *next = B(ADD, c, B(MUL, x, wide));
  const struct ir_graph *body = GRAPH(TENSORS(i, c, x, s, k, flag), TENSORS(next, flag, B(SUB, next, k)));
  quern_tensor *xs = REALS(F32, DIMS(3, 2), 1, 2, 3, 4, 5, 6), *ss = REALS(F32, DIMS(3), 1, 10, 100);
  quern_tensor *y = IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 3, .carries = 1, .scanned = 2, .body = body),
                            REALS(F32, DIMS(2), 0.5, 0), xs, ss, REALS(F32, DIMS(2), 1, 2), INT(BOOL, 1));
  EXPECT_REALS(y, 531.5, 642);
  EXPECT_INTS(ir_result(y, 1), 1, 1, 1);
  EXPECT_SHAPE(ir_result(y, 2), 3, 2);
  EXPECT_REALS(ir_result(y, 2), 0.5, 0, 30.5, 40, 530.5, 640);
}

/* Inner and outer bodies share their PARAM nodes: both have (i64, i64, i64). */
static void test_nested_loops(void **state) {
  (void)state;
  quern_tensor *i = LEAF0(I64), *c = LEAF0(I64), *k = LEAF0(I64);
  const struct ir_graph *inner = GRAPH(TENSORS(i, c, k), TENSORS(B(ADD, c, B(MUL, i, k))));
  quern_tensor *p = LEAF0(I64), *q = LEAF0(I64), *r = LEAF0(I64);
  quern_tensor *sum = IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 4, .carries = 1, .body = inner), q, p); /* q + 6 p */
  const struct ir_graph *outer = GRAPH(TENSORS(p, q, r), TENSORS(B(ADD, sum, r), B(SUB, sum, q)));
  assert_ptr_equal(inner->params[0], outer->params[0]);
  quern_tensor *y = IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 3, .carries = 1, .body = outer), C64(1000), C64(5));
  EXPECT_INTS(y, 1000 + 3 * 5 + 6 * (0 + 1 + 2));
  EXPECT_INTS(ir_result(y, 1), 0, 6, 12);
}

/* The order of a body is found once, not every turn: a turn more costs a frame and the body's one value. */
static void test_turns_are_cheap(void **state) {
  (void)state;
  quern_tensor *i = LEAF0(I64), *c = LEAF0(I64);
  const struct ir_graph *body = GRAPH(TENSORS(i, c), TENSORS(B(ADD, c, i)));
  uint64_t counts[2];
  for (int more = 0; more < 2; more++) {
    quern_tensor *y = IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 10 + more, .carries = 1, .body = body), C64(0));
    counts[more] = ctx->heap.count;
    EXPECT_INTS(y, more ? 55 : 45);
    counts[more] = ctx->heap.count - counts[more];
  }
  assert_int_equal(counts[1] - counts[0], 2);
}

/* ---- while ------------------------------------------------------------------------------------------ */

/* Halves n while it exceeds the limit, and counts: c = (n, turns). */
static quern_tensor *halving(int64_t n, int64_t limit) {
  quern_tensor *a = LEAF0(I64), *t = LEAF0(I64), *k = LEAF0(I64);
  const struct ir_graph *body = GRAPH(TENSORS(a, t, k), TENSORS(B(DIV, a, C64(2)), B(ADD, t, C64(1))));
  const struct ir_graph *more = GRAPH(TENSORS(a, t, k), TENSORS(B(LT, k, a)));
  return IR_MAKE(ctx, IR_WHILE, ATTRS(.carries = 2, .body = body, .other = more), C64(n), C64(0), C64(limit));
}

static void test_while(void **state) {
  (void)state;
  quern_tensor *y = halving(1000, 10), *z = halving(7, 10);
  EXPECT_INTS(y, 7);
  EXPECT_INTS(ir_result(y, 1), 7);
  EXPECT_INTS(z, 7);
  EXPECT_INTS(ir_result(z, 1), 0); /* not even once */
  EXPECT_INTS(ir_result(halving(1000, 0), 1), 10);
  /* The carries swap until the first is 3. */
  quern_tensor *a = LEAF0(I64), *b = LEAF0(I64);
  const struct ir_graph *swap = GRAPH(TENSORS(a, b), TENSORS(b, a));
  const struct ir_graph *until = GRAPH(TENSORS(a, b), TENSORS(IR_MAKE(ctx, IR_NOT, NULL, B(EQ, a, C64(3)))));
  quern_tensor *w = IR_MAKE(ctx, IR_WHILE, ATTRS(.carries = 2, .body = swap, .other = until), C64(8), C64(3));
  EXPECT_INTS(w, 3);
  EXPECT_INTS(ir_result(w, 1), 8);
}

/* ---- if --------------------------------------------------------------------------------------------- */

static void test_if(void **state) {
  (void)state;
  quern_tensor *a = LEAF0(I64), *b = LEAF0(I64);
  const struct ir_graph *yes = GRAPH(TENSORS(a, b), TENSORS(B(SUB, a, b), a));
  const struct ir_graph *no = GRAPH(TENSORS(a, b), TENSORS(b, C64(-1)));
  for (int64_t cond = 0; cond < 2; cond++) {
    quern_tensor *y = IR_MAKE(ctx, IR_IF, ATTRS(.body = yes, .other = no), INT(BOOL, cond), C64(9), C64(4));
    EXPECT_INTS(y, cond ? 5 : 4);
    EXPECT_INTS(ir_result(y, 1), cond ? 9 : -1);
  }
  /* A branch not taken is not evaluated: this one would never end. */
  const struct ir_graph *forever = GRAPH(TENSORS(a), TENSORS(INT(BOOL, 1))), *same = GRAPH(TENSORS(a), TENSORS(a));
  quern_tensor *stuck = IR_MAKE(ctx, IR_WHILE, ATTRS(.carries = 1, .body = same, .other = forever), b);
  const struct ir_graph *trap = GRAPH(TENSORS(b), TENSORS(stuck));
  EXPECT_INTS(IR_MAKE(ctx, IR_IF, ATTRS(.body = same, .other = trap), INT(BOOL, 1), C64(6)), 6);
}

/* ---- composites ------------------------------------------------------------------------------------- */

static void body_of_pair(quern_context *context, const struct ir_attrs *attrs, quern_tensor *const *args,
                         quern_tensor **results) {
  quern_tensor *k = ir_const_int(context, QUERN_DTYPE_I64, attrs->ints.at[0]);
  results[0] = IR_MAKE(context, IR_ADD, NULL, IR_MAKE(context, IR_MUL, NULL, args[0], k), args[1]);
  results[1] = IR_MAKE(context, IR_SUB, NULL, args[0], args[1]);
}

static const struct ir_composite pair = {.name = "test.pair", .n_results = 2, .body = body_of_pair};

static quern_tensor *make_pair(int64_t k, quern_tensor *a, quern_tensor *b) {
  return ir_composite_make(ctx, &pair, DIMS(k), (struct ir_reals){0}, TENSORS(a, b));
}

static void test_composite(void **state) {
  (void)state;
  quern_tensor *y = make_pair(10, C64(7), C64(2));
  EXPECT_INTS(y, 72);
  EXPECT_INTS(ir_result(y, 1), 5);
  /* Two of one kind in one graph, one within the other's operands, and one in a loop. */
  quern_tensor *z = make_pair(10, y, ir_result(y, 1));
  EXPECT_INTS(z, 725);
  EXPECT_INTS(ir_result(z, 1), 67);
  quern_tensor *i = LEAF0(I64), *c = LEAF0(I64);
  const struct ir_graph *body = GRAPH(TENSORS(i, c), TENSORS(make_pair(10, c, i)));
  EXPECT_INTS(IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 4, .carries = 1, .body = body), C64(0)), 123);
}

/* Graphs within graphs within graphs. */
static void test_depth(void **state) {
  (void)state;
  quern_tensor *a = LEAF0(I64);
  const struct ir_graph *graph = GRAPH(TENSORS(a), TENSORS(B(ADD, a, C64(1))));
  for (int depth = 0; depth < 20; depth++) {
    quern_tensor *yes = INT(BOOL, 1), *inner = IR_MAKE(ctx, IR_IF, ATTRS(.body = graph, .other = graph), yes, a);
    graph = GRAPH(TENSORS(a), TENSORS(B(ADD, inner, a)));
  }
  EXPECT_INTS(IR_MAKE(ctx, IR_IF, ATTRS(.body = graph, .other = graph), INT(BOOL, 0), C64(3)), 3 * 21 + 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_loop),  TEST(test_carries),      TEST(test_loop_without_sources),
      TEST(test_rows),  TEST(test_nested_loops), TEST(test_turns_are_cheap),
      TEST(test_while), TEST(test_if),           TEST(test_composite),
      TEST(test_depth),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
