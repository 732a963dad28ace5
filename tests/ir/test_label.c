/* tests/ir/test_label.c -- labels: names of layers on nodes, which change nothing but texts */
#include "ir/ir.h"
#include "quern/quern.h"
#include "unit.h"

static uint32_t find(const char *text) {
  uint32_t label = 0;
  EXPECT_OK(ir_label_find(ctx, text, &label));
  assert_true(label > 0);
  assert_string_equal(ir_label_text(ctx, label), text);
  return label;
}

static quern_tensor *input(void) { return quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(4)); }

static void texts_and_numbers(void **state) {
  (void)state;
  uint32_t a = find("h.0"), b = find("h.1"), derivative, again;
  assert_int_not_equal(a, b);
  assert_int_equal(find("h.0"), a);
  assert_string_equal(ir_label_text(ctx, 0), "");
  EXPECT_OK(ir_label_derivative(ctx, a, &derivative));
  assert_string_equal(ir_label_text(ctx, derivative), "grad(h.0)");
  EXPECT_OK(ir_label_derivative(ctx, derivative, &again)); /* of any order */
  assert_int_equal(again, derivative);
  EXPECT_OK(ir_label_derivative(ctx, 0, &again));
  assert_int_equal(again, 0);
}

/* Equal nodes are one, with the label of the first; numbers of nodes do not depend on labels. */
static void nodes_stay_what_they_are(void **state) {
  (void)state;
  quern_tensor *x = input();
  ctx->label = find("a");
  quern_tensor *y = quern_exp(x);
  ctx->label = find("b");
  assert_ptr_equal(quern_exp(x), y);
  quern_tensor *z = quern_neg(y);
  ctx->label = 0;
  assert_int_equal(x->node->label, 0);
  assert_string_equal(ir_label_text(ctx, y->node->label), "a");
  assert_string_equal(ir_label_text(ctx, z->node->label), "b");
  assert_int_equal(z->node->id, y->node->id + 1);
}

/* What replaces a node has its label; a composite's body has none, and what it is replaced by has the composite's. */
static void what_is_made_of_a_node(void **state) {
  (void)state;
  quern_tensor *x = input(), *out;
  ctx->label = find("h.0");
  quern_tensor *y = quern_gelu(x);
  ctx->label = find("h.1");
  quern_tensor *z = quern_neg(quern_neg(quern_gelu(quern_neg(y))));
  ctx->label = 0;
  assert_int_equal(y->node->op, IR_COMPOSITE);
  EXPECT_OK(ir_inline_composites(ctx, 1, &y, &out));
  assert_int_not_equal(out->node->op, IR_COMPOSITE);
  assert_string_equal(ir_label_text(ctx, out->node->label), "h.0");
  assert_int_equal(y->node->attrs->body->results[0]->node->label, 0);
  EXPECT_OK(ir_inline_composites(ctx, 1, &z, &out)); /* the same body in the other layer */
  assert_string_equal(ir_label_text(ctx, out->node->src[0]->node->src[0]->node->label), "h.1");
  EXPECT_OK(ir_rewrite(ctx, 1, &out, NULL, &out));
  assert_string_equal(ir_label_text(ctx, out->node->label), "h.1");
  assert_int_equal(ctx->label, 0);
}

static void derivatives(void **state) {
  (void)state;
  quern_tensor *x = input(), *dx, *ddx;
  ctx->label = find("h.7.mlp");
  quern_tensor *y = quern_sin(x);
  ctx->label = 0;
  quern_tensor *loss = quern_sum(y, QUERN_ALL, false);
  EXPECT_OK(quern_grad(loss, 1, &x, &dx));
  assert_string_equal(ir_label_text(ctx, dx->node->label), "grad(h.7.mlp)");
  EXPECT_OK(quern_grad(quern_sum(dx, QUERN_ALL, false), 1, &x, &ddx));
  assert_string_equal(ir_label_text(ctx, ddx->node->label), "grad(h.7.mlp)");
  assert_int_equal(ctx->label, 0);
}

/* Labels outlive what is taken back. */
static void going_back_and_collecting(void **state) {
  (void)state;
  quern_mark mark;
  quern_tensor *x = input();
  EXPECT_OK(quern_context_mark(ctx, &mark));
  ctx->label = find("kept");
  quern_tensor *y = quern_exp(x);
  EXPECT_OK(quern_context_rewind(ctx, mark, 0, NULL));
  y = quern_exp(x);
  assert_string_equal(ir_label_text(ctx, y->node->label), "kept");
  ctx->label = 0;
  EXPECT_OK(quern_context_collect(ctx, 1, &y));
  assert_string_equal(ir_label_text(ctx, y->node->label), "kept");
}

static void lack_of_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    uint32_t label = 0, derivative = 0;
    fault_begin(&fault);
    quern_status status = ir_label_find(ctx, "a layer", &label);
    if (status == QUERN_STATUS_OK) status = ir_label_derivative(ctx, label, &derivative);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(find("a layer"), 1);
    EXPECT_OK(ir_label_derivative(ctx, 1, &derivative));
    assert_string_equal(ir_label_text(ctx, derivative), "grad(a layer)");
  }
  assert_true(fault.n > 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(texts_and_numbers),         TEST(nodes_stay_what_they_are),
                                     TEST(what_is_made_of_a_node),    TEST(derivatives),
                                     TEST(going_back_and_collecting), TEST(lack_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
