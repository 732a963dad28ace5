/* tests/ir/test_rewrite.c -- the engine of rewrite rules: order, subgraphs, ends, errors
** The rules themselves are tested in test_pattern.c and test_rules.c.
*/
#include "ir/ir_test.h"
#include "ir/rules.h"

static quern_tensor *rewritten(quern_tensor *t) {
  quern_tensor *out = NULL;
  quern_status status = ir_rewrite(ctx, 1, &t, NULL, &out);
  if (status != QUERN_STATUS_OK) fail_msg("%s", quern_last_error());
  assert_int_equal(ir_verify(ctx, 1, &out), QUERN_STATUS_OK);
  return out;
}

static uint64_t *zero_counts(void) { return calloc(ir_rule_count, sizeof(uint64_t)); }

static size_t rule_number(const char *name) {
  size_t i = 0;
  while (i < ir_rule_count && strcmp(ir_rules[i].name, name) != 0) i++;
  assert_true(i < ir_rule_count);
  return i;
}

#define ONE(x) ir_full(ctx, (x)->dtype, (x)->rank, (x)->dims, (const unsigned char[8]){0, 0, 0x80, 0x3f}) /* 1.0f */

/* ---- what is rewritten ------------------------------------------------------------------------------- */

static void what_rules_make_is_rewritten(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(2)), *b = INPUT(F32, "b", DIMS(2));
  /* add_neg makes sub(a, neg(b)), which sub_neg makes add(a, b) */
  quern_tensor *t = IR_MAKE(ctx, IR_NEG, NULL, IR_MAKE(ctx, IR_MUL, NULL, IR_MAKE(ctx, IR_NEG, NULL, b), ONE(b)));
  assert_ptr_equal(rewritten(IR_MAKE(ctx, IR_SUB, NULL, a, IR_MAKE(ctx, IR_NEG, NULL, t))),
                   IR_MAKE(ctx, IR_ADD, NULL, a, b));
  assert_ptr_equal(rewritten(IR_MAKE(ctx, IR_ADD, NULL, a, t)), IR_MAKE(ctx, IR_ADD, NULL, a, b));
}

static void nothing_to_do_gives_the_same_node(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(2)), *t = IR_MAKE(ctx, IR_EXP, NULL, IR_MAKE(ctx, IR_SIN, NULL, a));
  size_t nodes = quern_context_node_count(ctx);
  assert_ptr_equal(rewritten(t), t);
  assert_int_equal(quern_context_node_count(ctx), nodes);
}

static void several_roots(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(2)), *n = IR_MAKE(ctx, IR_NEG, NULL, a), *out[4];
  quern_tensor *roots[] = {IR_MAKE(ctx, IR_NEG, NULL, n), n, a, IR_MAKE(ctx, IR_NEG, NULL, n)};
  assert_int_equal(ir_rewrite(ctx, 4, roots, NULL, out), QUERN_STATUS_OK);
  assert_ptr_equal(out[0], a);
  assert_ptr_equal(out[1], n);
  assert_ptr_equal(out[2], a);
  assert_ptr_equal(out[3], a);
  assert_int_equal(ir_rewrite(ctx, 0, NULL, NULL, NULL), QUERN_STATUS_OK);
}

static void results_of_many_keep_their_places(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(3));
  quern_tensor *sorted = IR_MAKE(ctx, IR_SORT, NULL, IR_MAKE(ctx, IR_MUL, NULL, a, ONE(a)));
  quern_tensor *out = rewritten(ir_result(sorted, 1)), *plain = IR_MAKE(ctx, IR_SORT, NULL, a);
  assert_ptr_equal(out, ir_result(plain, 1));
}

static void long_chains(void **state) {
  (void)state;
  enum { LONG = 200000 };
  quern_tensor *a = INPUT(F32, "a", DIMS(2)), *t = a, *u = a;
  for (int i = 0; i < LONG; i++) t = IR_MAKE(ctx, IR_NEG, NULL, t);
  assert_ptr_equal(rewritten(t), a);
  for (int i = 0; i < LONG; i++) u = IR_MAKE(ctx, i % 2 == 0 ? IR_SIN : IR_TANH, NULL, u);
  assert_ptr_equal(rewritten(u), u);
}

static void shared_nodes_are_done_once(void **state) {
  (void)state;
  quern_tensor *a = INPUT(F32, "a", DIMS(2)), *b = a, *t = IR_MAKE(ctx, IR_MUL, NULL, a, ONE(a));
  for (int i = 0; i < 90; i++) { /* 2^90 paths */
    t = IR_MAKE(ctx, IR_ADD, NULL, t, t);
    b = IR_MAKE(ctx, IR_ADD, NULL, b, b);
  }
  assert_ptr_equal(rewritten(t), b);
}

/* ---- subgraphs -------------------------------------------------------------------------------------- */

/* x -> (x * 1) + x */
static const struct ir_graph *wasteful(void) {
  quern_tensor *x = LEAF0(F32);
  return GRAPH(TENSORS(x), TENSORS(IR_MAKE(ctx, IR_ADD, NULL, IR_MAKE(ctx, IR_MUL, NULL, x, ONE(x)), x)));
}

static const struct ir_graph *thrifty(void) {
  quern_tensor *x = LEAF0(F32);
  return GRAPH(TENSORS(x), TENSORS(IR_MAKE(ctx, IR_ADD, NULL, x, x)));
}

static quern_tensor *branch(quern_tensor *cond, quern_tensor *x, const struct ir_graph *body,
                            const struct ir_graph *other) {
  return IR_MAKE(ctx, IR_IF, ATTRS(.body = body, .other = other), cond, x);
}

static void bodies_are_rewritten(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", SCALAR), *c = INPUT(BOOL, "c", SCALAR), *y = LEAF0(F32);
  const struct ir_graph *other = GRAPH(TENSORS(y), TENSORS(IR_MAKE(ctx, IR_SIN, NULL, y)));
  assert_ptr_equal(rewritten(branch(c, x, wasteful(), other)), branch(c, x, thrifty(), other));
  /* both branches become one, which is then inlined */
  assert_ptr_equal(rewritten(branch(c, x, wasteful(), thrifty())), IR_MAKE(ctx, IR_ADD, NULL, x, x));
}

/* A branch in a branch, IR_MAX_DEPTH - 2 deep, around x -> body(x). */
static quern_tensor *nested(quern_tensor *c, quern_tensor *x, const struct ir_graph *body) {
  quern_tensor *d = LEAF0(BOOL), *y = LEAF0(F32), *results[1];
  assert_int_equal(ir_inline(ctx, body, &y, results), QUERN_STATUS_OK);
  const struct ir_graph *inner = GRAPH(TENSORS(d, y), TENSORS(results[0]));
  const struct ir_graph *sine = GRAPH(TENSORS(d, y), TENSORS(IR_MAKE(ctx, IR_SIN, NULL, y)));
  for (int i = 0; i < IR_MAX_DEPTH - 2; i++) {
    inner = GRAPH(TENSORS(d, y), TENSORS(IR_MAKE(ctx, IR_IF, ATTRS(.body = inner, .other = sine), d, d, y)));
  }
  return IR_MAKE(ctx, IR_IF, ATTRS(.body = inner, .other = sine), c, c, x);
}

static void nested_bodies_are_rewritten(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", SCALAR), *c = INPUT(BOOL, "c", SCALAR);
  assert_ptr_equal(rewritten(nested(c, x, wasteful())), nested(c, x, thrifty()));
}

static void twice_body(quern_context *c, const struct ir_attrs *attrs, quern_tensor *const *args,
                       quern_tensor **results) {
  (void)c;
  (void)attrs;
  results[0] = IR_MAKE(ctx, IR_ADD, NULL, IR_MAKE(ctx, IR_MUL, NULL, args[0], ONE(args[0])), args[0]);
}

static void composites_keep_what_their_name_promises(void **state) {
  (void)state;
  static const struct ir_composite twice = {.name = "twice", .n_results = 1, .body = twice_body};
  assert_int_equal(ir_composite_add(ctx, &twice), QUERN_STATUS_OK);
  quern_tensor *x = INPUT(F32, "x", SCALAR), *more = IR_MAKE(ctx, IR_MUL, NULL, x, ONE(x));
  struct ir_ints none = {0};
  quern_tensor *t = ir_composite_make(ctx, &twice, none, (struct ir_reals){0}, 1, &more);
  assert_ptr_equal(rewritten(t), ir_composite_make(ctx, &twice, none, (struct ir_reals){0}, 1, &x));
  quern_tensor *mine = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "mine", .body = wasteful()), x);
  assert_ptr_equal(rewritten(mine), IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "mine", .body = thrifty()), x));
}

/* ---- options ----------------------------------------------------------------------------------------- */

static void options_choose_rules(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", SCALAR), *t = IR_MAKE(ctx, IR_NEG, NULL, IR_MAKE(ctx, IR_NEG, NULL, x)), *out;
  bool *enabled = calloc(ir_rule_count, sizeof *enabled);
  uint64_t *fired = zero_counts();
  struct ir_rewrite_options options = {.enabled = enabled, .fired = fired};
  assert_int_equal(ir_rewrite(ctx, 1, &t, &options, &out), QUERN_STATUS_OK);
  assert_ptr_equal(out, t);
  assert_int_equal(fired[rule_number("neg_neg")], 0);
  enabled[rule_number("neg_neg")] = true;
  assert_int_equal(ir_rewrite(ctx, 1, &t, &options, &out), QUERN_STATUS_OK);
  assert_ptr_equal(out, x);
  assert_int_equal(fired[rule_number("neg_neg")], 1);

  t = IR_MAKE(ctx, IR_LOG, NULL, IR_MAKE(ctx, IR_EXP, NULL, x));
  enabled[rule_number("log_exp")] = true;
  assert_int_equal(ir_rewrite(ctx, 1, &t, &options, &out), QUERN_STATUS_OK);
  assert_ptr_equal(out, t);
  options.approximate = true;
  assert_int_equal(ir_rewrite(ctx, 1, &t, &options, &out), QUERN_STATUS_OK);
  assert_ptr_equal(out, x);
  assert_int_equal(fired[rule_number("log_exp")], 1);
  free(enabled);
  free(fired);
}

/* ---- rules that go wrong ----------------------------------------------------------------------------- */

static quern_tensor *to_itself(quern_context *c, struct ir_node *node) {
  (void)c;
  return &node->out[0];
}

static quern_tensor *to_cosine(quern_context *c, struct ir_node *node) {
  return IR_MAKE(c, IR_COS, NULL, node->src[0]);
}

static quern_tensor *to_sine(quern_context *c, struct ir_node *node) { return IR_MAKE(c, IR_SIN, NULL, node->src[0]); }

static quern_tensor *to_more(quern_context *c, struct ir_node *node) {
  return IR_MAKE(c, IR_SIN, NULL, IR_MAKE(c, IR_EXP, NULL, node->src[0]));
}

static quern_tensor *around_itself(quern_context *c, struct ir_node *node) {
  return IR_MAKE(c, IR_EXP, NULL, &node->out[0]);
}

static quern_tensor *to_another_type(quern_context *c, struct ir_node *node) {
  return IR_MAKE(c, IR_CAST, ATTRS(.dtype = QUERN_DTYPE_F64), node->src[0]);
}

static quern_tensor *to_poison(quern_context *c, struct ir_node *node) {
  return IR_MAKE(c, IR_NOT, NULL, node->src[0]);
}

static void expect_error(size_t n, const struct ir_rule *rules, quern_status status, const char *message) {
  quern_tensor *x = INPUT(F32, "x", SCALAR), *t = IR_MAKE(ctx, IR_SIN, NULL, x), *out;
  struct ir_rewrite_options options = {.extra = rules, .n_extra = n};
  assert_int_equal(ir_rewrite(ctx, 1, &t, &options, &out), status);
  if (strstr(quern_last_error(), message) == NULL) fail_msg("%s", quern_last_error());
  assert_int_equal(quern_context_check(ctx), QUERN_STATUS_OK);
}

static void wrong_rules_are_errors(void **state) {
  (void)state;
  const struct ir_rule circle[] = {{.name = "there", .op = IR_SIN, .apply = to_cosine},
                                   {.name = "back", .op = IR_COS, .apply = to_sine}};
  expect_error(2, circle, QUERN_STATUS_INTERNAL, "by what contains it");
  expect_error(1, &(struct ir_rule){.name = "same", .op = IR_SIN, .apply = to_itself}, QUERN_STATUS_INTERNAL,
               "by what contains it");
  expect_error(1, &(struct ir_rule){.name = "around", .op = IR_SIN, .apply = around_itself}, QUERN_STATUS_INTERNAL,
               "by what contains it");
  expect_error(1, &(struct ir_rule){.name = "endless", .op = IR_SIN, .apply = to_more}, QUERN_STATUS_INTERNAL,
               "no end after");
  expect_error(1, &(struct ir_rule){.name = "typed", .op = IR_SIN, .apply = to_another_type}, QUERN_STATUS_INTERNAL,
               "from f32() into f64()");
  expect_error(1, &(struct ir_rule){.name = "poison", .op = IR_SIN, .apply = to_poison}, QUERN_STATUS_DTYPE,
               "not: does not admit f32");
}

static void extra_patterns_work(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", SCALAR), *t = IR_MAKE(ctx, IR_SIN, NULL, x), *out;
  const struct ir_rule rule = {.name = "sine", .op = IR_SIN, .identity = "sin(x) = cos(x)", .dtypes = BASE_FLOAT};
  assert_int_equal(ir_rewrite(ctx, 1, &t, &(struct ir_rewrite_options){.extra = &rule, .n_extra = 1}, &out),
                   QUERN_STATUS_OK);
  assert_ptr_equal(out, IR_MAKE(ctx, IR_COS, NULL, x));
}

static void pending_errors_are_reported(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", SCALAR), *out, *wrong = &ir_poison;
  IR_MAKE(ctx, IR_NOT, NULL, x);
  assert_int_equal(ir_rewrite(ctx, 1, &x, NULL, &out), QUERN_STATUS_DTYPE);
  assert_int_equal(ir_rewrite(ctx, 1, &x, NULL, &out), QUERN_STATUS_OK);
  assert_int_equal(ir_rewrite(ctx, 1, &wrong, NULL, &out), QUERN_STATUS_INVALID);
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static quern_tensor *many_rules(void) {
  quern_tensor *x = INPUT(F32, "x", DIMS(4)), *s = INPUT(F32, "s", SCALAR), *c = INPUT(BOOL, "c", SCALAR);
  quern_tensor *lo = IR_MAKE(ctx, IR_SLICE, ATTRS(.lo = DIMS(0), .hi = DIMS(2), .step = DIMS(1)), x);
  quern_tensor *hi = IR_MAKE(ctx, IR_SLICE, ATTRS(.lo = DIMS(2), .hi = DIMS(4), .step = DIMS(1)), x);
  quern_tensor *joined =
      IR_MAKE(ctx, IR_CONCAT, ATTRS(.axis = 0), lo, hi, IR_MAKE(ctx, IR_CONCAT, ATTRS(.axis = 0), lo, hi));
  quern_tensor *folded = IR_MAKE(ctx, IR_ADD, NULL, REALS(F32, DIMS(8), 1, 2, 3, 4, 5, 6, 7, 8),
                                 REALS(F32, DIMS(8), 1, 2, 3, 4, 5, 6, 7, 9));
  quern_tensor *sum = IR_MAKE(ctx, IR_REDUCE, ATTRS(.axes = DIMS(0)), IR_MAKE(ctx, IR_ADD, NULL, joined, folded));
  quern_tensor *one =
      IR_MAKE(ctx, IR_LOOP, ATTRS(.trip = 1, .carries = 1, .body = GRAPH(TENSORS(LEAF0(I64), s), TENSORS(s))), s);
  quern_tensor *inner = branch(IR_MAKE(ctx, IR_NOT, NULL, c), s, wasteful(), thrifty());
  return IR_MAKE(ctx, IR_ADD, NULL, IR_MAKE(ctx, IR_ADD, NULL, sum, one), inner);
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    quern_tensor *t = many_rules(), *out = NULL;
    assert_false(ir_is_poison(t));
    fault_begin(&fault);
    quern_status status = ir_rewrite(ctx, 1, &t, NULL, &out);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(ir_rewrite(ctx, 1, &t, NULL, &out), QUERN_STATUS_OK); /* the context is still usable */
    assert_int_equal(ir_verify(ctx, 1, &out), QUERN_STATUS_OK);
    assert_true(fault.n < 10000);
  }
}

/* Loops of one turn, two in each, become the nodes of their bodies as long as these are not too many: 2^30 would not end. */
static void bodies_that_double_are_bounded(void **state) {
  (void)state;
  static char text[1 << 13];
  quern_graph *graph;
  size_t n = (size_t)snprintf(text, sizeof text,
                              "quern 1\nfn @f0 (%%0: i64[], %%1: f32[4]) {\n%%2 = sin %%1\nreturn %%2\n}\n");
  for (int k = 1; k <= 30; k++)
    n += (size_t)snprintf(text + n, sizeof text - n,
                          "fn @f%d (%%0: i64[], %%1: f32[4]) {\n"
                          "%%2 = loop %%1 trip=1 carries=1 scanned=0 reverse=0 body=@f%d\n"
                          "%%3 = loop %%2 trip=1 carries=1 scanned=0 reverse=0 body=@f%d\nreturn %%3\n}\n",
                          k, k - 1, k - 1);
  snprintf(text + n, sizeof text - n,
           "%%0 = input name=\"x\" dtype=f32 shape=[4]\n"
           "%%1 = loop %%0 trip=1 carries=1 scanned=0 reverse=0 body=@f30\nreturn %%1\n");
  EXPECT_OK(quern_graph_parse(&graph, ctx, text, strlen(text)));
  EXPECT_OK(quern_graph_rewrite(graph, false));
  assert_in_range(quern_context_node_count(ctx), IR_MOST_INLINED, 16 * IR_MOST_INLINED);
  quern_graph_free(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(what_rules_make_is_rewritten),
                                     TEST(nothing_to_do_gives_the_same_node),
                                     TEST(several_roots),
                                     TEST(results_of_many_keep_their_places),
                                     TEST(long_chains),
                                     TEST(shared_nodes_are_done_once),
                                     TEST(bodies_are_rewritten),
                                     TEST(nested_bodies_are_rewritten),
                                     TEST(composites_keep_what_their_name_promises),
                                     TEST(options_choose_rules),
                                     TEST(wrong_rules_are_errors),
                                     TEST(extra_patterns_work),
                                     TEST(pending_errors_are_reported),
                                     TEST(bodies_that_double_are_bounded),
                                     TEST(every_allocation_may_fail)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
