/* tests/ir/ir_test.h -- what the tests of ir/ share: short names
** A test is TEST(function) of unit.h; its context knows no composites.
**   quern_tensor *x = REALS(F32, DIMS(2, 2), 1, 2, 3, 4);
**   EXPECT_REALS(IR_MAKE(ctx, IR_REDUCE, ATTRS(.axes = DIMS(0)), x), 4, 6);
*/
#ifndef TESTS_IR_IR_TEST_H
#define TESTS_IR_IR_TEST_H
#ifndef TEST_CONTEXT_NEW
#define TEST_CONTEXT_NEW ir_context_new
#endif
#include "ir/ir.h"
#include "unit.h"

/* ---- building --------------------------------------------------------------------------------------- */

#define DIMS(...) IR_INTS(__VA_ARGS__)
#define SCALAR ((struct ir_ints){0, NULL})
#define ATTRS(...) (&(struct ir_attrs){__VA_ARGS__})

/* A constant of dtype whose n elements are converted from values of another dtype. */
static inline quern_tensor *test_const(quern_dtype dtype, struct ir_ints shape, quern_dtype from, size_t n,
                                       const void *values) {
  unsigned char data[4096];
  assert_true(n * base_dtypes[dtype].size <= sizeof data);
  for (size_t i = 0; i < n; i++) base_convert(dtype, data, i, from, values, i);
  quern_tensor *t = ir_make(ctx, IR_CONST, 0, NULL,
                            ATTRS(.dtype = dtype, .shape = shape, .data = {n * base_dtypes[dtype].size, data}));
  if (ir_is_poison(t)) print_error("%s\n", ctx->message);
  assert_false(ir_is_poison(t));
  return t;
}

#define REALS_OF(...)                                                                                                  \
  sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]) { __VA_ARGS__ }
#define INTS_OF(...)                                                                                                   \
  sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]) { __VA_ARGS__ }

#define REALS(DTYPE, SHAPE, ...) test_const(QUERN_DTYPE_##DTYPE, SHAPE, QUERN_DTYPE_F64, REALS_OF(__VA_ARGS__))
#define INTS(DTYPE, SHAPE, ...) test_const(QUERN_DTYPE_##DTYPE, SHAPE, QUERN_DTYPE_I64, INTS_OF(__VA_ARGS__))
#define REAL(DTYPE, x) REALS(DTYPE, SCALAR, x)
#define INT(DTYPE, x) INTS(DTYPE, SCALAR, x)
/* A tensor without elements. */
#define EMPTY(DTYPE, SHAPE) test_const(QUERN_DTYPE_##DTYPE, SHAPE, QUERN_DTYPE_I64, 0, NULL)
#define INPUT(DTYPE, NAME, SHAPE)                                                                                      \
  ir_make(ctx, IR_INPUT, 0, NULL, ATTRS(.name = (NAME), .dtype = QUERN_DTYPE_##DTYPE, .shape = SHAPE))
#define LEAF(DTYPE, ...) ir_leaf(ctx, QUERN_DTYPE_##DTYPE, __VA_ARGS__) /* rank, dims */
#define LEAF0(DTYPE) ir_leaf(ctx, QUERN_DTYPE_##DTYPE, 0, NULL)

/* The closed graph from params to results. */
static inline const struct ir_graph *test_graph(int n_params, quern_tensor *const *params, int n_results,
                                                quern_tensor *const *results) {
  const struct ir_graph *graph = NULL;
  quern_status status = ir_graph_make(ctx, n_params, params, n_results, results, &graph);
  if (status != QUERN_STATUS_OK) print_error("%s\n", quern_last_error());
  assert_int_equal(status, QUERN_STATUS_OK);
  return graph;
}

#define TENSORS(...)                                                                                                   \
  (int)(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *)), (quern_tensor *[]) { __VA_ARGS__ }
#define GRAPH(params, results) test_graph(params, results) /* GRAPH(TENSORS(a, b), TENSORS(y)) */

/* ---- comparing -------------------------------------------------------------------------------------- */

static inline void test_print(const char *what, const quern_tensor *t, const void *data) {
  struct base_str str;
  char type[IR_TYPE_TEXT];
  base_str_init(&str, &ctx->heap);
  for (int64_t i = 0; i < ir_count(t); i++) {
    base_element_print(&str, t->dtype, data, (size_t)i);
    base_str_add(&str, " ");
  }
  print_error("%s %s: %s\n", what, ir_type_text(type, t), str.at == NULL ? "" : str.at);
  base_str_fini(&str);
}

/* Fails unless t evaluates to exactly these bits; NULL: prints why it does not evaluate. */
static inline void test_expect_bits(quern_tensor *t, const void *expected, const char *file, int line) {
  unsigned char got[4096];
  void *dst = got;
  if (ir_is_poison(t)) print_error("poison: %s\n", ctx->message);
  if (ir_is_poison(t)) _fail(file, line);
  if (ir_bytes(t) > sizeof got) _fail(file, line);
  memset(got, 0xcd, sizeof got);
  if (ir_eval(ctx, 1, &t, &dst, 0, NULL) != QUERN_STATUS_OK) {
    print_error("%s\n", quern_last_error());
    _fail(file, line);
  }
  if (ir_bytes(t) == 0 || memcmp(got, expected, ir_bytes(t)) == 0) return;
  test_print("expected", t, expected);
  test_print("got     ", t, got);
  _fail(file, line);
}

/* The same with values of another dtype, each converted to that of t. */
static inline void test_expect(quern_tensor *t, quern_dtype from, size_t n, const void *values, const char *file,
                               int line) {
  unsigned char expected[4096];
  if (!ir_is_poison(t) && (size_t)ir_count(t) != n) {
    print_error("%zu values expected, there are %lld\n", n, (long long)ir_count(t));
    _fail(file, line);
  }
  if (n * 8 > sizeof expected) _fail(file, line);
  for (size_t i = 0; i < n && !ir_is_poison(t); i++) base_convert(t->dtype, expected, i, from, values, i);
  test_expect_bits(t, expected, file, line);
}

/* -0 and 0 differ; every NaN must be the canonical one. */
#define EXPECT_REALS(t, ...) test_expect((t), QUERN_DTYPE_F64, REALS_OF(__VA_ARGS__), __FILE__, __LINE__)
#define EXPECT_INTS(t, ...) test_expect((t), QUERN_DTYPE_I64, INTS_OF(__VA_ARGS__), __FILE__, __LINE__)
#define EXPECT_EMPTY(t) test_expect((t), QUERN_DTYPE_I64, 0, NULL, __FILE__, __LINE__)
#define EXPECT_BITS(t, bytes) test_expect_bits((t), (bytes), __FILE__, __LINE__)

static inline void test_expect_shape(const quern_tensor *t, struct ir_ints shape, const char *file, int line) {
  bool same = !ir_is_poison(t) && t->rank == shape.n;
  for (int k = 0; same && k < shape.n; k++) same = t->dims[k] == shape.at[k];
  if (!same) _fail(file, line);
}
#define EXPECT_SHAPE(t, ...) test_expect_shape((t), DIMS(__VA_ARGS__), __FILE__, __LINE__)

/* Swaps two items of a map, so that each is met when the other is looked for, as if their hashes were equal. */
static inline void test_swap_items(struct base_map *map, const void *a, const void *b) {
  struct base_map_slot *at[2] = {NULL, NULL};
  for (size_t i = 0; i < map->cap; i++) {
    if (map->slots[i].item == a) at[0] = &map->slots[i];
    if (map->slots[i].item == b) at[1] = &map->slots[i];
  }
  assert_true(at[0] != NULL && at[1] != NULL);
  void *item = at[0]->item;
  at[0]->item = at[1]->item;
  at[1]->item = item;
}

#endif
