/* tests/tensor/test_graph.c -- quern/graph.h: evaluation, realizing, graphs as text; wrong calls; failing allocations */
#include "ir/ir.h"
#include "quern/quern.h"
#include "unit.h"

static quern_tensor *input(const char *name) { return quern_input(ctx, name, QUERN_DTYPE_F32, QUERN_LIST(2)); }

/* ---- evaluation ----------------------------------------------------------------------------------------- */

static void feeds(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *s = quern_state(ctx, "s", QUERN_DTYPE_F32, QUERN_LIST(2)), *unused = input("unused");
  float wrapped[2] = {100, 200}, other[2] = {1000, 2000}, one[2] = {1, 2}, ten[2] = {10, 20}, y[2], z[2];
  quern_tensor *b = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(2), wrapped);
  quern_tensor *outputs[] = {quern_add(quern_add(x, s), b), quern_neg(x)};
  quern_feed fed[] = {{s, ten}, {x, one}, {b, other}, {unused, one}};
  EXPECT_OK(quern_eval_reference(ctx, 2, outputs, (void *[]){y, z}, 2, fed));
  assert_true(y[0] == 111 && y[1] == 222 && z[0] == -1 && z[1] == -2);
  EXPECT_OK(quern_eval_reference(ctx, 2, outputs, (void *[]){y, z}, 4, fed));
  assert_true(y[0] == 1011 && y[1] == 2022);
  EXPECT_OK(quern_eval_reference(ctx, 0, NULL, NULL, 0, NULL));
  quern_tensor *empty = quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(0, 3));
  EXPECT_OK(quern_eval_reference(ctx, 1, &empty, (void *[]){NULL}, 0, NULL));
  quern_tensor *none = quern_input(ctx, "none", QUERN_DTYPE_F32, QUERN_LIST(0));
  EXPECT_OK(quern_eval_reference(ctx, 1, &none, (void *[]){NULL}, 1, &(quern_feed){none, NULL}));
}

static void wrong_evaluations(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *y = quern_neg(x), *none = NULL;
  float data[2] = {1, 2}, out[2];
  void *dst = out, *nowhere = NULL;
  quern_context *elsewhere;
  EXPECT_OK(quern_context_new(&elsewhere, NULL));
  quern_tensor *far = quern_input(elsewhere, "far", QUERN_DTYPE_F32, QUERN_SCALAR);
  EXPECT_ERROR(quern_eval_reference(NULL, 1, &y, &dst, 0, NULL), INVALID, "eval_reference: the context is null");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, NULL, &dst, 0, NULL), INVALID,
               "eval_reference: the list of 1 outputs is null");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &none, &dst, 0, NULL), INVALID, "eval_reference: output 0 is null");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &far, &dst, 0, NULL), INVALID,
               "eval_reference: output 0 belongs to another context");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &y, NULL, 0, NULL), INVALID,
               "eval_reference: the list of places for 1 outputs is null");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &y, &nowhere, 0, NULL), INVALID,
               "eval_reference: the place for output 0, f32(2,), is null");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &y, &dst, 1, NULL), INVALID, "eval_reference: the list of 1 feeds is null");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &y, &dst, 1, &(quern_feed){NULL, data}), INVALID,
               "eval_reference: the leaf of feed 0 is null");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &y, &dst, 1, &(quern_feed){far, data}), INVALID,
               "the leaf of feed 0 belongs to another context");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &y, &dst, 1, &(quern_feed){y, data}), INVALID,
               "eval_reference: feed 0 is for the result of neg; only");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &y, &dst, 1, &(quern_feed){x, NULL}), INVALID,
               "eval_reference: the data of feed 0, input f32(2,), is null");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &y, &dst, 2, (quern_feed[]){{x, data}, {x, data}}), INVALID,
               "eval_reference: feeds 0 and 1 are for the same input x");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &y, &dst, 0, NULL), UNBOUND, "x");
  quern_context_free(elsewhere);
}

/* The error of a builder is reported by the next call that can, once. */
static void pending_errors(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *bad;
  float out[2];
  void *dst = out;
  quern_graph *graph;
  char *text;
  EXPECT_OK(quern_graph_new(&graph, ctx, 1, &x, NULL));
  bad = quern_reshape(x, QUERN_LIST(3));
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &bad, &dst, 0, NULL), SHAPE, "reshape");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &bad, &dst, 0, NULL), INVALID,
               "eval_reference: output 0 is the result of a call that failed");
  EXPECT_ERROR(quern_tensor_realize(&bad), INVALID, "tensor_realize: the tensor is the result of a call that failed");
  EXPECT_ERROR(quern_eval_reference(ctx, 1, &x, &dst, 1, &(quern_feed){bad, out}), INVALID,
               "the leaf of feed 0 is the result of a call that failed");
  quern_tensor *good = quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(2));
  quern_reshape(x, QUERN_LIST(3));
  EXPECT_ERROR(quern_tensor_realize(&good), SHAPE, "reshape");
  EXPECT_OK(quern_tensor_realize(&good));
  quern_reshape(x, QUERN_LIST(3));
  EXPECT_ERROR(quern_graph_rewrite(graph, false), SHAPE, "reshape");
  quern_reshape(x, QUERN_LIST(3));
  EXPECT_ERROR(quern_graph_inline(graph), SHAPE, "reshape");
  quern_reshape(x, QUERN_LIST(3));
  EXPECT_ERROR(quern_graph_print(graph, &text), SHAPE, "reshape");
  assert_null(text);
  quern_reshape(x, QUERN_LIST(3));
  EXPECT_ERROR(quern_graph_graphviz(graph, &text), SHAPE, "reshape");
  quern_reshape(x, QUERN_LIST(3));
  EXPECT_ERROR(quern_graph_verify(graph), SHAPE, "reshape");
  quern_graph_free(graph);
  quern_reshape(x, QUERN_LIST(3));
  EXPECT_ERROR(quern_graph_new(&graph, ctx, 1, &x, NULL), SHAPE, "reshape");
  assert_null(graph);
  quern_reshape(x, QUERN_LIST(3));
  EXPECT_ERROR(quern_graph_parse(&graph, ctx, "quern 1\nreturn", 14), SHAPE, "reshape");
}

static void realizing(void **state) {
  (void)state;
  quern_tensor *x = quern_arange(ctx, QUERN_DTYPE_F32, 3, 1, 1), *y = quern_mul(x, x), *lazy = y;
  assert_null(quern_tensor_data(y));
  EXPECT_OK(quern_tensor_realize(&y));
  assert_ptr_not_equal(y, lazy);
  assert_int_equal(quern_tensor_dim(y, 0), 3);
  const float *data = quern_tensor_data(y);
  assert_true(data[0] == 1 && data[1] == 4 && data[2] == 9);
  quern_tensor *again = y;
  EXPECT_OK(quern_tensor_realize(&again));
  assert_ptr_equal(again, y);
  quern_tensor *z = quern_add(y, y);
  EXPECT_OK(quern_tensor_realize(&z));
  assert_true(((const float *)quern_tensor_data(z))[2] == 18);

  quern_tensor *none = NULL, *fed = quern_neg(input("x")), *before = fed;
  EXPECT_ERROR(quern_tensor_realize(NULL), INVALID, "tensor_realize: the tensor is null");
  EXPECT_ERROR(quern_tensor_realize(&none), INVALID, "tensor_realize: the tensor is null");
  size_t live = context_stats(ctx).live_bytes;
  for (int i = 0; i < 100; i++) EXPECT_ERROR(quern_tensor_realize(&fed), UNBOUND, "x");
  assert_ptr_equal(fed, before);
  assert_true(context_stats(ctx).live_bytes < live + 70000); /* what failed is not kept */
}

/* ---- graphs --------------------------------------------------------------------------------------------- */

static void inputs_and_outputs(void **state) {
  (void)state;
  quern_tensor *a = input("a"), *b = input("b"), *s = quern_state(ctx, "s", QUERN_DTYPE_F32, QUERN_LIST(2));
  quern_tensor *outputs[] = {quern_add(s, a), quern_neg(a)};
  char name[] = "sum";
  const char *names[] = {name, NULL};
  quern_graph *graph;
  EXPECT_OK(quern_graph_new(&graph, ctx, 2, outputs, names));
  name[0] = '?'; /* names are copied */
  assert_int_equal(quern_graph_input_count(graph), 2);
  assert_ptr_equal(quern_graph_input(graph, 0), a);
  assert_ptr_equal(quern_graph_input(graph, 1), s);
  assert_null(quern_graph_input(graph, 2));
  assert_int_equal(quern_graph_output_count(graph), 2);
  assert_ptr_equal(quern_graph_output(graph, 1), outputs[1]);
  assert_null(quern_graph_output(graph, 2));
  assert_string_equal(quern_graph_output_name(graph, 0), "sum");
  assert_null(quern_graph_output_name(graph, 1));
  assert_null(quern_graph_output_name(graph, 2));
  EXPECT_OK(quern_graph_verify(graph));
  quern_graph_free(graph);
  EXPECT_OK(quern_graph_new(&graph, ctx, 1, &b, NULL));
  assert_null(quern_graph_output_name(graph, 0));
  quern_graph_free(graph);
  quern_graph_free(NULL);
  assert_int_equal(quern_graph_input_count(NULL), 0);
  assert_int_equal(quern_graph_output_count(NULL), 0);
  assert_null(quern_graph_input(NULL, 0));
  assert_null(quern_graph_output(NULL, 0));
  assert_null(quern_graph_output_name(NULL, 0));
}

static void texts(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *y = quern_softmax(quern_add_scalar(quern_mul_scalar(x, 1), 0.5), -1);
  const char *names[] = {"y"};
  quern_graph *graph, *back;
  char *text, *again, *dot;
  EXPECT_OK(quern_graph_new(&graph, ctx, 1, &y, names));
  EXPECT_OK(quern_graph_print(graph, &text));
  assert_non_null(strstr(text, "composite %"));
  EXPECT_OK(quern_graph_parse(&back, ctx, text, strlen(text)));
  EXPECT_OK(quern_graph_print(back, &again));
  assert_string_equal(text, again);
  assert_int_equal(quern_graph_input_count(back), 1);
  assert_string_equal(quern_tensor_name(quern_graph_input(back, 0)), "x");
  assert_string_equal(quern_graph_output_name(back, 0), "y");
  quern_free_text(again);

  EXPECT_OK(quern_graph_rewrite(back, false));
  EXPECT_OK(quern_graph_print(back, &again));
  assert_null(strstr(again, "%2 = mul ")); /* x * 1 = x */
  assert_ptr_not_equal(quern_graph_input(back, 0), x);
  quern_free_text(again);
  EXPECT_OK(quern_graph_inline(back));
  EXPECT_OK(quern_graph_print(back, &again));
  assert_null(strstr(again, "composite"));
  assert_non_null(strstr(again, "= exp"));
  EXPECT_OK(quern_graph_verify(back));
  quern_free_text(again);
  EXPECT_OK(quern_graph_graphviz(back, &dot));
  assert_int_equal(strncmp(dot, "digraph quern {", 15), 0);
  quern_free_text(dot);

  float in[] = {0, 1}, first[2], second[2];
  quern_tensor *rewritten = quern_graph_output(back, 0);
  EXPECT_OK(quern_eval_reference(ctx, 1, &y, (void *[]){first}, 1, &(quern_feed){x, in}));
  EXPECT_OK(
      quern_eval_reference(ctx, 1, &rewritten, (void *[]){second}, 1, &(quern_feed){quern_graph_input(back, 0), in}));
  assert_memory_equal(first, second, sizeof first);
  quern_free_text(text);
  quern_free_text(NULL);
  quern_free_text(NULL);
  quern_graph_free(back);
  quern_graph_free(graph);
}

static void wrong_graphs(void **state) {
  (void)state;
  quern_tensor *x = input("x"), *none = NULL;
  quern_graph *graph;
  char *text;
  EXPECT_ERROR(quern_graph_new(NULL, ctx, 1, &x, NULL), INVALID, "graph_new: the place for the graph is null");
  EXPECT_ERROR(quern_graph_new(&graph, NULL, 1, &x, NULL), INVALID, "graph_new: the context is null");
  EXPECT_ERROR(quern_graph_new(&graph, ctx, 1, NULL, NULL), INVALID, "graph_new: the list of 1 outputs is null");
  EXPECT_ERROR(quern_graph_new(&graph, ctx, 1, &none, NULL), INVALID, "graph_new: output 0 is null");
  EXPECT_ERROR(quern_graph_parse(NULL, ctx, "", 0), INVALID, "graph_parse: the place for the graph is null");
  EXPECT_ERROR(quern_graph_parse(&graph, NULL, "", 0), INVALID, "graph_parse: the context is null");
  EXPECT_ERROR(quern_graph_parse(&graph, ctx, NULL, 3), INVALID, "graph_parse: the text of 3 bytes is null");
  EXPECT_ERROR(quern_graph_parse(&graph, ctx, NULL, 0), PARSE, "1:1: expected the text to begin");
  EXPECT_ERROR(quern_graph_verify(NULL), INVALID, "graph_verify: the graph is null");
  EXPECT_ERROR(quern_graph_rewrite(NULL, false), INVALID, "graph_rewrite: the graph is null");
  EXPECT_ERROR(quern_graph_inline(NULL), INVALID, "graph_inline: the graph is null");
  EXPECT_ERROR(quern_graph_print(NULL, &text), INVALID, "graph_print: the graph is null");
  EXPECT_ERROR(quern_graph_graphviz(NULL, &text), INVALID, "graph_graphviz: the graph is null");
  EXPECT_OK(quern_graph_new(&graph, ctx, 1, &x, NULL));
  EXPECT_ERROR(quern_graph_print(graph, NULL), INVALID, "graph_print: the place for the text is null");
  EXPECT_ERROR(quern_graph_graphviz(graph, NULL), INVALID, "graph_graphviz: the place for the text is null");
  quern_graph_free(graph);
}

/* ---- failing allocations -------------------------------------------------------------------------------- */

/* Everything in order; the first failure. */
static quern_status use_all(quern_tensor *y, quern_tensor *x) {
  static const char text[] = "quern 1\n%0 = input name=\"x\" dtype=f32 shape=[2]\n%1 = neg %0\nreturn y=%1 %0\n";
  quern_graph *graph = NULL, *parsed = NULL;
  char *printed = NULL, *dot = NULL;
  const float in[2] = {1, 2};
  float out[2];
  quern_tensor *copy = quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(2));
  quern_status status = quern_context_check(ctx);
  if (status == QUERN_STATUS_OK) status = quern_graph_new(&graph, ctx, 1, &y, (const char *[]){"name"});
  if (status == QUERN_STATUS_OK) status = quern_graph_inline(graph);
  if (status == QUERN_STATUS_OK) status = quern_graph_rewrite(graph, false);
  if (status == QUERN_STATUS_OK) status = quern_graph_print(graph, &printed);
  if (status == QUERN_STATUS_OK) status = quern_graph_graphviz(graph, &dot);
  if (status == QUERN_STATUS_OK) status = quern_graph_parse(&parsed, ctx, text, sizeof text - 1);
  if (status == QUERN_STATUS_OK) status = quern_eval_reference(ctx, 1, &y, (void *[]){out}, 1, &(quern_feed){x, in});
  if (status == QUERN_STATUS_OK) status = quern_tensor_realize(&copy);
  if (status == QUERN_STATUS_OK) assert_non_null(quern_tensor_data(copy));
  quern_free_text(dot);
  quern_free_text(printed);
  quern_graph_free(parsed);
  quern_graph_free(graph);
  return status;
}

static void no_memory(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    test_renew();
    quern_tensor *x = input("x"), *y = quern_softmax(x, 0);
    fault_begin(&fault);
    quern_status status = use_all(y, x);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    EXPECT_OK(quern_context_check(ctx));
  }
  assert_true(fault.n > 21);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(feeds), TEST(wrong_evaluations), TEST(pending_errors), TEST(realizing), TEST(inputs_and_outputs),
      TEST(texts), TEST(wrong_graphs),      TEST(no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
