/* tests/pass/test_attention_views.c -- attention in place: what the pass makes of it, also in subgraphs, and that values stay as they are */
#include "pass/pass.h"
#include "quern/grad.h"
#include "quern/quern.h"
#include "unit.h"

static const struct base_target gpu = {.name = "sm_90", .gpu = true, .capabilities = BASE_LIBRARY_DNN};

/* As a device that has a kernel for each. */
static bool claims(const struct base_target *target, const struct ir_node *node) {
  return target == &gpu && strncmp(node->attrs->name, "attention", strlen("attention")) == 0;
}

static quern_status run(struct pass_graph *graph, const struct base_target *target) {
  struct pass_options options = {.target = target, .supports = claims};
  struct pass_report reports[PASS_COUNT];
  QUERN_TRY(pass_options_parse(&options, 1, NULL));
  return pass_run(graph, &options, reports);
}

enum { B = 2, T = 6, H = 2, D = 8, E = H * D };

static quern_tensor *heads(quern_tensor *x) {
  return quern_transpose(quern_reshape(x, 4, (int64_t[]){B, T, H, D}), 1, 2);
}

/* (B, T, 3 E) -> (B, T, E) */
static quern_tensor *attend(quern_tensor *qkv) {
  quern_tensor *parts[3];
  for (int i = 0; i < 3; i++) parts[i] = heads(quern_slice(qkv, 2, i * E, (i + 1) * E, 1));
  quern_attention_options options = {.size = sizeof options, .causal = true};
  quern_tensor *y = quern_attention(parts[0], parts[1], parts[2], NULL, &options, NULL);
  return quern_reshape(quern_transpose(y, 1, 2), 3, (int64_t[]){B, T, E});
}

static quern_tensor *data(void) {
  double x[B * T * 3 * E];
  uint16_t half[B * T * 3 * E];
  test_fill(BASE_COUNT(x), x, 3);
  for (size_t i = 0; i < BASE_COUNT(x); i++) base_store_float(QUERN_DTYPE_F16, half, i, x[i]);
  return quern_tensor_copy(ctx, QUERN_DTYPE_F16, 3, (int64_t[]){B, T, 3 * E}, half);
}

/* How many nodes of that name the roots reach; *last is one of them. */
static int count(size_t n, quern_tensor *const *roots, const char *name, const struct ir_node **last) {
  struct ir_order order;
  int found = 0;
  EXPECT_OK(ir_topo(ctx, n, roots, &order));
  for (size_t i = 0; i < order.n; i++) {
    const struct ir_node *node = order.at[i];
    bool is =
        node->op == IR_COMPOSITE ? strcmp(node->attrs->name, name) == 0 : strcmp(ir_ops[node->op].name, name) == 0;
    if (is && last != NULL) *last = node;
    found += is;
  }
  ir_order_fini(ctx, &order);
  return found;
}

static void expect_same(quern_tensor *x, quern_tensor *y) {
  char a[B * T * 3 * E * 4], b[B * T * 3 * E * 4];
  assert_true(ir_same_type(x, y) && ir_bytes(x) <= sizeof a);
  void *to_a = a, *to_b = b;
  EXPECT_OK(ir_eval(ctx, 1, &x, &to_a, 0, NULL));
  EXPECT_OK(ir_eval(ctx, 1, &y, &to_b, 0, NULL));
  assert_memory_equal(a, b, ir_bytes(x));
}

static void test_gradient(void **state) {
  (void)state;
  quern_tensor *x = data(), *y = attend(x), *dx, *loss = quern_sum(quern_mul(y, y), 0, NULL, false);
  EXPECT_OK(quern_grad(loss, 1, &x, &dx));
  quern_tensor *roots[] = {dx};
  struct pass_graph graph = {ctx, 1, roots};
  EXPECT_OK(run(&graph, &gpu));
  const struct ir_node *node = NULL;
  assert_int_equal(count(1, roots, "attention.placed", NULL), 1);
  assert_int_equal(count(1, roots, "attention.vjp.placed", &node), 1);
  assert_int_equal(count(1, roots, "attention", NULL) + count(1, roots, "attention.vjp", NULL), 0);
  assert_int_equal(count(1, roots, "slice", NULL) + count(1, roots, "permute", NULL) + count(1, roots, "concat", NULL),
                   0);
  struct pass_attention a;
  assert_true(pass_attention_read(node, &a));
  assert_true(a.back && a.causal && a.batch == B && a.heads == H && a.queries == T && a.width == D);
  assert_int_equal(a.views[PASS_VIEW_V].at, 2 * E);
  assert_int_equal(a.views[PASS_VIEW_DV].at, 2 * E);
  assert_int_equal(a.views[PASS_VIEW_DV].row, 3 * E);
  assert_int_equal(node->src[a.lse]->dtype, QUERN_DTYPE_F32);
  expect_same(dx, roots[0]);
  struct pass_attention none;
  assert_false(pass_attention_read(dx->node, &none));
}

/* Other devices keep what they have. */
static void test_others(void **state) {
  (void)state;
  static const struct base_target host = {.name = "test"};
  quern_tensor *y = attend(data()), *roots[] = {y};
  struct pass_graph graph = {ctx, 1, roots};
  EXPECT_OK(run(&graph, &host));
  assert_int_equal(count(1, roots, "attention.placed", NULL), 0);
  expect_same(y, roots[0]);
}

static void body(void *user, quern_tensor *const *args, quern_tensor **results) {
  (void)user;
  quern_tensor *y = attend(args[1]);
  results[0] = quern_concat(3, (quern_tensor *[]){y, y, y}, 2);
}

/* In the body of a loop, and of the loop that is its gradient. */
static void test_loop(void **state) {
  (void)state;
  const quern_loop_options twice = {.size = sizeof twice, .n_carries = 1, .trip = 2};
  quern_tensor *x = data(), *y, *roots[2], *plain[2];
  EXPECT_OK(quern_loop(ctx, &twice, &x, body, NULL, &y));
  quern_tensor *loss = quern_sum(quern_mul(y, y), 0, NULL, false);
  plain[0] = y;
  EXPECT_OK(quern_grad(loss, 1, &x, &plain[1]));
  memcpy(roots, plain, sizeof roots);
  struct pass_graph graph = {ctx, 2, roots};
  EXPECT_OK(run(&graph, &gpu));
  struct ir_order order;
  int forward = 0, backward = 0;
  EXPECT_OK(ir_topo(ctx, 2, roots, &order));
  for (size_t i = 0; i < order.n; i++) {
    const struct ir_graph *inner = order.at[i]->op == IR_LOOP ? order.at[i]->attrs->body : NULL;
    if (inner == NULL) continue;
    forward += count((size_t)inner->n_results, inner->results, "attention.placed", NULL);
    backward += count((size_t)inner->n_results, inner->results, "attention.vjp.placed", NULL);
    assert_int_equal(count((size_t)inner->n_results, inner->results, "attention", NULL), 0);
  }
  ir_order_fini(ctx, &order);
  assert_true(forward >= 1 && backward >= 1);
  expect_same(plain[0], roots[0]);
  expect_same(plain[1], roots[1]);
}

static void test_no_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    quern_tensor *x = data(), *y = attend(x), *dx, *loss = quern_sum(quern_mul(y, y), 0, NULL, false);
    EXPECT_OK(quern_grad(loss, 1, &x, &dx));
    struct pass_graph graph = {ctx, 1, &dx};
    fault_begin(&fault);
    quern_status status = run(&graph, &gpu);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
  }
  assert_true(fault.n > 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_gradient), TEST(test_others), TEST(test_loop), TEST(test_no_memory)};
  return cmocka_run_group_tests_name("pass/place", tests, NULL, NULL);
}
