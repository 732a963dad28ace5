/* tests/ir/test_text.c -- printing: every op and kind of attribute, exact bits, one text for one meaning, pictures */
#include "ir/ir_test.h"

#include <math.h>

/* ---- helpers -------------------------------------------------------------------------------------------- */

/* The text of roots, in memory that the caller frees. */
static char *print_in(quern_context *in, size_t n, quern_tensor *const *roots, const char *const *names) {
  struct base_str str;
  base_str_init(&str, &in->heap);
  quern_status status = ir_print(in, &str, n, roots, names);
  if (status != QUERN_STATUS_OK) print_error("%s\n", quern_last_error());
  assert_int_equal(status, QUERN_STATUS_OK);
  char *text = strdup(str.at);
  base_str_fini(&str);
  return text;
}

static struct ir_module parse_in(quern_context *in, const char *text) {
  struct ir_module module;
  quern_status status = ir_parse(in, text, strlen(text), &module);
  if (status != QUERN_STATUS_OK) print_error("%s\n%s\n", quern_last_error(), text);
  assert_int_equal(status, QUERN_STATUS_OK);
  assert_int_equal(ir_verify(in, module.n_outputs, module.outputs), QUERN_STATUS_OK);
  return module;
}

/* Fails unless the text, parsed in a context, prints as itself. */
static void expect_same(quern_context *in, const char *text) {
  struct ir_module module = parse_in(in, text);
  char *again = print_in(in, module.n_outputs, module.outputs, module.names);
  assert_string_equal(again, text);
  free(again);
}

/* Prints roots and fails unless the text comes back in this context, twice, and in a fresh one. Returns the text. */
static char *round_trip(size_t n, quern_tensor *const *roots, const char *const *names) {
  quern_context *fresh;
  char *text = print_in(ctx, n, roots, names);
  expect_same(ctx, text);
  expect_same(ctx, text);
  assert_int_equal(ir_context_new(&fresh, NULL), QUERN_STATUS_OK);
  expect_same(fresh, text);
  quern_context_free(fresh);
  return text;
}

static void expect_text(quern_tensor *x, const char *expected) {
  char *text = round_trip(1, &x, NULL);
  assert_string_equal(text, expected);
  free(text);
}

static char *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  char *text = calloc(1, 1 << 16);
  assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
  fclose(file);
  return text;
}

/* ---- tests ---------------------------------------------------------------------------------------------- */

/* A file with every op and every kind of attribute is its own text. */
static void every_op(void **state) {
  (void)state;
  char *text = read_file("tests/fuzz/corpus/fuzz_qir/all.qir");
  for (int op = 0; op < IR_OP_COUNT; op++) {
    char line[64];
    snprintf(line, sizeof line, " = %s ", ir_ops[op].name);
    if (op != IR_PARAM && strstr(text, line) == NULL) fail_msg("all.qir has no %s", ir_ops[op].name);
  }
  for (int k = 0; k < IR_ATTR_COUNT; k++) {
    char attr[64];
    snprintf(attr, sizeof attr, " %s=", ir_attr_table[k].name);
    if (k != IR_ATTR_index && strstr(text, attr) == NULL)
      fail_msg("all.qir has no attribute %s", ir_attr_table[k].name);
  }
  expect_same(ctx, text);
  expect_same(ctx, text);
  struct ir_module module = parse_in(ctx, text);
  assert_int_equal(module.n_inputs, 2);
  assert_string_equal(module.inputs[0]->node->attrs->name, "x");
  assert_string_equal(module.inputs[1]->node->attrs->name, "step \"1\"\n");
  assert_int_equal(module.n_outputs, 14);
  assert_string_equal(module.names[0], "loss");
  assert_string_equal(module.names[1], "a name");
  assert_null(module.names[2]);
  assert_int_equal(module.outputs[1]->result, 1);
  free(text);
}

static void exact_lines(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", DIMS(2, 3));
  expect_text(x, "quern 1\n%0 = input name=\"x\" dtype=f32 shape=[2,3]\nreturn %0\n");
  quern_tensor *sorted = IR_MAKE(ctx, IR_SORT, ATTRS(.axis = 1, .reverse = 1), x);
  expect_text(ir_result(sorted, 1), "quern 1\n%0 = input name=\"x\" dtype=f32 shape=[2,3]\n"
                                    "%1 = sort %0 axis=1 reverse=1 : f32[2,3] i64[2,3]\nreturn %1.1\n");
  quern_tensor *roots[] = {sorted, x, sorted};
  char *text = round_trip(3, roots, (const char *[]){"a.b_1", NULL, "7 %"});
  assert_non_null(strstr(text, "\nreturn a.b_1=%1.0 %0 \"7 %\"=%1.0\n"));
  free(text);
  text = round_trip(0, NULL, NULL);
  assert_string_equal(text, "quern 1\nreturn\n");
  free(text);
  text = round_trip(1, &x, (const char *[]){""});
  assert_non_null(strstr(text, "return \"\"=%0\n"));
  free(text);
}

/* Elements of each dtype come back as the same bits, NaNs with their payload. */
static void bits_of_constants(void **state) {
  (void)state;
  for (int dtype = 0; dtype < QUERN_DTYPE_COUNT; dtype++) {
    unsigned char bits[256];
    size_t n = sizeof bits / base_dtypes[dtype].size;
    uint64_t seed = 88172645463325252u + (uint64_t)dtype;
    for (size_t i = 0; i < sizeof bits; i++) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      bits[i] = (unsigned char)(seed >> 56);
      if (i < sizeof bits / 2 && seed >> 63) bits[i] |= 0x7f; /* many exponents of all ones: infinities, NaNs */
      if (dtype == QUERN_DTYPE_BOOL) bits[i] &= 1;
    }
    int64_t dim = (int64_t)n;
    struct ir_attrs attrs = {.dtype = (quern_dtype)dtype, .shape = {1, &dim}, .data = {sizeof bits, bits}};
    quern_tensor *x = ir_make(ctx, IR_CONST, 0, NULL, &attrs);
    assert_false(ir_is_poison(x));
    char *text = round_trip(1, &x, NULL);
    quern_context *fresh;
    assert_int_equal(ir_context_new(&fresh, NULL), QUERN_STATUS_OK);
    struct ir_module module = parse_in(fresh, text);
    assert_int_equal(module.outputs[0]->node->attrs->data.n, sizeof bits);
    assert_memory_equal(module.outputs[0]->node->attrs->data.at, bits, sizeof bits);
    assert_ptr_equal(parse_in(ctx, text).outputs[0], x);
    quern_context_free(fresh);
    free(text);
  }
}

static void special_elements(void **state) {
  (void)state;
  expect_text(REALS(F32, DIMS(5), 0.1f, -0.0, INFINITY, (double)NAN, 16777216),
              "quern 1\n%0 = const dtype=f32 shape=[5] data={0.1, -0, inf, nan, 16777216}\nreturn %0\n");
  uint32_t quiet = 0xffc00001;
  quern_tensor *x = ir_make(ctx, IR_CONST, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_F32, .data = {4, &quiet}));
  expect_text(x, "quern 1\n%0 = const dtype=f32 shape=[] data={0xffc00001}\nreturn %0\n");
  expect_text(INTS(BOOL, DIMS(2), 1, 0), "quern 1\n%0 = const dtype=bool shape=[2] data={true, false}\nreturn %0\n");
  expect_text(EMPTY(I8, DIMS(0, 2)), "quern 1\n%0 = const dtype=i8 shape=[0,2] data={}\nreturn %0\n");
}

static void strings(void **state) {
  (void)state;
  expect_text(INPUT(F32, "a\"b\\c\nd\te\x01\x7f\xc3\xa9 #%", SCALAR),
              "quern 1\n%0 = input name=\"a\\\"b\\\\c\\nd\\te\\x01\\x7f\xc3\xa9 #%\" dtype=f32 shape=[]\nreturn %0\n");
}

static quern_tensor *buffer_of(size_t n, bool bound) {
  struct ir_buffer *buffer = bound ? ir_buffer_new(ctx, n) : base_arena_new(&ctx->arena, struct ir_buffer);
  assert_non_null(buffer);
  if (bound) memset(buffer->data, 7, n);
  int64_t dim = (int64_t)n;
  return ir_make(ctx, IR_BUFFER, 0, NULL, ATTRS(.dtype = QUERN_DTYPE_U8, .shape = {1, &dim}, .buffer = buffer));
}

/* Up to 4096 bytes are in the text; a larger or unbound buffer is unbound when it comes back. */
static void buffers(void **state) {
  (void)state;
  quern_tensor *small = buffer_of(4096, true), *large = buffer_of(4097, true);
  char *text = round_trip(1, &small, NULL);
  struct ir_module module = parse_in(ctx, text);
  const struct ir_buffer *back = module.outputs[0]->node->attrs->buffer;
  assert_ptr_not_equal(module.outputs[0], small);
  assert_true(back->owned);
  assert_int_equal(back->bytes, 4096);
  assert_memory_equal(back->data, small->node->attrs->buffer->data, 4096);
  free(text);
  expect_text(large, "quern 1\n%0 = buffer dtype=u8 shape=[4097]\nreturn %0\n");
  text = print_in(ctx, 1, &large, NULL);
  module = parse_in(ctx, text);
  assert_null(module.outputs[0]->node->attrs->buffer->data);
  free(text);
  expect_text(buffer_of(2, false), "quern 1\n%0 = buffer dtype=u8 shape=[2]\nreturn %0\n");
  expect_text(buffer_of(0, true), "quern 1\n%0 = buffer dtype=u8 shape=[0] buffer={}\nreturn %0\n");
  EXPECT_INTS(parse_in(ctx, "quern 1\n%0 = buffer dtype=i16 shape=[3] buffer={-1, 2, 3}\nreturn %0").outputs[0], -1, 2,
              3);
}

/* f(x) = c + x inside another graph with the same constant: each graph has its own lines, each subgraph one text. */
static void sub_graphs(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", SCALAR), *one = REAL(F32, 1), *p = LEAF0(F32), *q = LEAF0(F32);
  const struct ir_graph *inner = GRAPH(TENSORS(p), TENSORS(IR_MAKE(ctx, IR_ADD, NULL, p, one)));
  quern_tensor *call = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "inner", .body = inner), q);
  const struct ir_graph *outer = GRAPH(TENSORS(q), TENSORS(IR_MAKE(ctx, IR_NEG, NULL, call)));
  quern_tensor *a = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "outer", .body = outer), x);
  quern_tensor *b = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "inner", .body = inner), a);
  quern_tensor *y = IR_MAKE(ctx, IR_SUB, NULL, b, one);
  expect_text(y, "quern 1\n"
                 "fn @f0 (%0: f32[]) {\n"
                 "  %1 = const dtype=f32 shape=[] data={1}\n"
                 "  %2 = add %0 %1 : f32[]\n"
                 "  return %2\n"
                 "}\n"
                 "fn @f1 (%0: f32[]) {\n"
                 "  %1 = composite %0 name=\"inner\" ints=[] reals=[] body=@f0 : f32[]\n"
                 "  %2 = neg %1 : f32[]\n"
                 "  return %2\n"
                 "}\n"
                 "%0 = input name=\"x\" dtype=f32 shape=[]\n"
                 "%1 = composite %0 name=\"outer\" ints=[] reals=[] body=@f1 : f32[]\n"
                 "%2 = composite %1 name=\"inner\" ints=[] reals=[] body=@f0 : f32[]\n"
                 "%3 = const dtype=f32 shape=[] data={1}\n"
                 "%4 = sub %2 %3 : f32[]\n"
                 "return %4\n");
  char *text = print_in(ctx, 1, &y, NULL);
  assert_ptr_equal(parse_in(ctx, text).outputs[0]->node->src[0]->node->attrs->body, inner);
  free(text);
}

/* (exp x + 3) + (2 3): built in two orders. The operands of commutative ops are sorted by id, the text is not. */
static quern_tensor *build_in_order(quern_context *in, bool constants_first) {
  quern_context *outside = ctx;
  ctx = in;
  quern_tensor *product = NULL, *x = NULL, *sum = NULL;
  for (int turn = 0; turn < 2; turn++) {
    if ((turn == 0) == constants_first) product = IR_MAKE(ctx, IR_MUL, NULL, REAL(F32, 2), REAL(F32, 3));
    if ((turn == 0) != constants_first) x = INPUT(F32, "x", SCALAR);
    if ((turn == 0) != constants_first) sum = IR_MAKE(ctx, IR_ADD, NULL, IR_MAKE(ctx, IR_EXP, NULL, x), REAL(F32, 3));
  }
  quern_tensor *y = IR_MAKE(ctx, IR_ADD, NULL, sum, product);
  ctx = outside;
  return y;
}

/* The graph that applies `inner` to its parameter as a composite. */
static const struct ir_graph *wrapped(const struct ir_graph *inner) {
  quern_tensor *p = LEAF0(F32);
  return GRAPH(TENSORS(p), TENSORS(IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "c", .body = inner), p)));
}

/* max(if(1, f, g)(2), if(1, g, f)(2)), where f and g differ in a graph inside a graph only, built in two orders. */
static quern_tensor *build_nested(quern_context *in, bool swapped) {
  quern_context *outside = ctx;
  ctx = in;
  quern_tensor *p = LEAF0(F32), *c = INT(BOOL, 1), *two = REAL(F32, 2), *y[2];
  const struct ir_graph *f = wrapped(GRAPH(TENSORS(p), TENSORS(IR_MAKE(ctx, IR_EXP, NULL, p))));
  const struct ir_graph *g = wrapped(GRAPH(TENSORS(p), TENSORS(IR_MAKE(ctx, IR_SIN, NULL, p))));
  for (int turn = 0; turn < 2; turn++) {
    bool first = (turn == 0) != swapped;
    y[turn] = IR_MAKE(ctx, IR_IF, ATTRS(.body = first ? f : g, .other = first ? g : f), c, two);
  }
  quern_tensor *x = IR_MAKE(ctx, IR_MAX, NULL, y[0], y[1]);
  ctx = outside;
  return x;
}

static void order_of_building(void **state) {
  (void)state;
  for (int nested = 0; nested < 2; nested++) {
    quern_tensor *(*build)(quern_context *, bool) = nested ? build_nested : build_in_order;
    quern_context *other;
    assert_int_equal(ir_context_new(&other, NULL), QUERN_STATUS_OK);
    quern_tensor *a = build(ctx, false), *b = build(other, true);
    char *text = round_trip(1, &a, NULL), *same = print_in(other, 1, &b, NULL);
    assert_string_equal(text, same);
    free(same);
    free(text);
    quern_context_free(other);
  }
}

/* Nodes that differ in nothing but a subgraph, an attribute list's split or a result keep their places. */
static void near_equals(void **state) {
  (void)state;
  quern_tensor *x = INPUT(F32, "x", DIMS(2, 2)), *p = LEAF(F32, 2, ((const int64_t[]){2, 2}));
  const struct ir_graph *f = GRAPH(TENSORS(p), TENSORS(IR_MAKE(ctx, IR_EXP, NULL, p)));
  const struct ir_graph *g = GRAPH(TENSORS(p), TENSORS(IR_MAKE(ctx, IR_SIN, NULL, p)));
  quern_tensor *c = INT(BOOL, 1);
  quern_tensor *u = IR_MAKE(ctx, IR_IF, ATTRS(.body = f, .other = g), c, x);
  quern_tensor *v = IR_MAKE(ctx, IR_IF, ATTRS(.body = g, .other = f), c, x);
  quern_tensor *w = IR_MAKE(ctx, IR_MAX, NULL, u, v);
  quern_tensor *sorted = IR_MAKE(ctx, IR_SORT, ATTRS(.axis = 0), w);
  quern_tensor *i = ir_result(sorted, 1), *j = IR_MAKE(ctx, IR_ADD, NULL, i, i);
  quern_tensor *roots[] = {sorted, j, IR_MAKE(ctx, IR_MIN, NULL, v, u),
                           IR_MAKE(ctx, IR_FLIP, ATTRS(.axes = DIMS(0)), w)};
  free(round_trip(4, roots, NULL));
}

/* A long chain: the stack does not grow with it. */
static void large_graphs(void **state) {
  (void)state;
  enum { N = 50000 };
  quern_tensor *x = INPUT(F32, "x", SCALAR), *y = x;
  for (int i = 0; i < N; i++) y = i % 2 == 0 ? IR_MAKE(ctx, IR_EXP, NULL, y) : IR_MAKE(ctx, IR_SUB, NULL, y, x);
  char *text = round_trip(1, &y, NULL);
  assert_non_null(strstr(text, "%50000 = sub %49999 %0 : f32[]\nreturn %50000\n"));
  free(text);
}

static void wrong_roots(void **state) {
  (void)state;
  struct base_str str;
  base_str_init(&str, &ctx->heap);
  quern_tensor *none = NULL, *poison = &ir_poison;
  EXPECT_ERROR(ir_print(ctx, &str, 1, &none, NULL), INVALID, "output 0 is null");
  EXPECT_ERROR(ir_print(ctx, &str, 1, &poison, NULL), INVALID, "output 0 is null or the result of a failed call");
  EXPECT_ERROR(ir_print_graphviz(ctx, &str, 1, &poison, NULL), INVALID, "output 0");
  quern_context *other;
  assert_int_equal(ir_context_new(&other, NULL), QUERN_STATUS_OK);
  quern_tensor *x = ir_leaf(other, QUERN_DTYPE_F32, 0, NULL);
  EXPECT_ERROR(ir_print(ctx, &str, 1, &x, NULL), INVALID, "belongs to another context");
  quern_context_free(other);
  base_str_fini(&str);
}

static void pictures(void **state) {
  (void)state;
  struct base_str str;
  base_str_init(&str, &ctx->heap);
  quern_tensor *x = INPUT(F32, "a\"b", DIMS(2)), *p = LEAF(F32, 1, ((const int64_t[]){2}));
  const struct ir_graph *body = GRAPH(TENSORS(p), TENSORS(IR_MAKE(ctx, IR_SORT, ATTRS(.axis = 0), p)));
  quern_tensor *y = IR_MAKE(ctx, IR_COMPOSITE, ATTRS(.name = "c", .body = body), x);
  quern_tensor *z = IR_MAKE(ctx, IR_SUB, NULL, y, REALS(F32, DIMS(2), 1, 2));
  quern_tensor *big = IR_MAKE(ctx, IR_NEG, NULL, REALS(F32, DIMS(9), 1, 2, 3, 4, 5, 6, 7, 8, 9));
  assert_int_equal(ir_print_graphviz(ctx, &str, 2, (quern_tensor *[]){z, big}, (const char *[]){"y\"", NULL}),
                   QUERN_STATUS_OK);
  static const char *const expected[] = {
      "digraph quern {\n",
      "subgraph cluster_f0 {\n  label=\"@f0\";\n  f0_n0 [label=\"%0\\nf32[2]\"",
      "  f0_n1 [label=\"sort\\naxis=0 reverse=0\\nf32[2] i64[2]\"];\n  f0_n0 -> f0_n1;\n",
      "  f0_n1 -> f0_out0 [label=\"0\"];\n}\n",
      "  n0 [label=\"input\\nname=\\\"a\\\\\\\"b\\\" dtype=f32 shape=[2]\\nf32[2]\"",
      "data={1, 2}\\nf32[2]\"",
      "const\\ndtype=f32 shape=[9]\\nf32[9]\"",
      "out0 [shape=plaintext label=\"y\\\"\"];",
      "out1 [shape=plaintext label=\"result 1\"];",
      "  f0_out0 -> n1 [style=dashed label=\"body\"];\n}\n",
  };
  for (size_t i = 0; i < BASE_COUNT(expected); i++) {
    if (strstr(str.at, expected[i]) == NULL) fail_msg("missing: %s\nin:\n%s", expected[i], str.at);
  }
  base_str_fini(&str);
}

/* Each allocation of printing fails once. */
static void no_memory(void **state) {
  (void)state;
  char *text = read_file("tests/fuzz/corpus/fuzz_qir/all.qir");
  struct ir_module module = parse_in(ctx, text);
  size_t live = ctx->heap.live;
  for (int dot = 0; dot < 2; dot++) {
    struct fault fault = {0};
    while (fault_next(&fault)) {
      struct base_str str;
      base_str_init(&str, &ctx->heap);
      fault_begin(&fault);
      quern_status status =
          (dot ? ir_print_graphviz : ir_print)(ctx, &str, module.n_outputs, module.outputs, module.names);
      fault_end(&fault);
      EXPECT_FAULT(&fault, status);
      if (!fault.met && !dot) assert_string_equal(str.at, text);
      base_str_fini(&str);
      assert_int_equal(ctx->heap.live, live);
    }
    assert_true(fault.n > 21);
  }
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_op),    TEST(exact_lines), TEST(bits_of_constants), TEST(special_elements), TEST(strings),
      TEST(buffers),     TEST(sub_graphs),  TEST(order_of_building), TEST(near_equals),      TEST(large_graphs),
      TEST(wrong_roots), TEST(pictures),    TEST(no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
