/* tests/pass/test_groups.c -- the verifier of groups finds every kind of fault that is planted in right ones */
#include "unit.h"

#include "pass/pass_test.h"

enum { N = 6, C = 10, D = 4 };

static struct pass_graph graph;
static struct pass_groups groups;
static quern_tensor *roots[8];

/* layer_norm + linear + gelu, a sort, a scan and views: a group of nearly every kind. */
static void make_groups(void) {
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(N, C)), *indices;
  quern_tensor *w = quern_input(ctx, "w", QUERN_DTYPE_F32, QUERN_LIST(D, C));
  quern_tensor *y = quern_gelu(quern_linear(quern_layer_norm(x, 1, NULL, NULL, 1e-5), w, NULL));
  quern_tensor *s = quern_sort(quern_neg(x), 1, false, &indices);
  size_t n = 0;
  roots[n++] = y;
  roots[n++] = s;
  roots[n++] = indices;
  roots[n++] = quern_cumsum(quern_add(x, x), 1);
  roots[n++] = quern_reshape(s, QUERN_LIST(C, N));
  roots[n++] = quern_exp(quern_transpose(x, 0, 1));
  graph = (struct pass_graph){ctx, n, roots};
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  EXPECT_OK(quern_context_check(ctx));
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_groups_verify(&groups, &graph));
}

static struct pass_group *group_of(enum pass_kind kind) {
  for (size_t i = 0; i < groups.groups.n; i++)
    if (groups.groups.at[i]->kind == kind) return groups.groups.at[i];
  fail_msg("no %s group", pass_kind_names[kind]);
  return NULL;
}

static const struct pass_index *constant(struct pass_group *group, int64_t value) {
  return pass_index_const(group->space, value);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static void swap_groups(void) {
  struct pass_group **at = groups.groups.at;
  for (size_t i = 0; i < groups.groups.n; i++) { /* the contraction before the rows that it reads */
    if (at[i]->kind != PASS_KIND_DOT) continue;
    struct pass_group *dot = at[i];
    for (size_t k = i; k > 0; k--) at[k] = at[k - 1];
    at[0] = dot;
    return;
  }
}
static void drop_group(void) { pass_space_free(groups.groups.at[--groups.groups.n]->space); }
static void write_twice(void) {
  struct pass_group *a = group_of(PASS_KIND_MAP);
  a->outs[0].tensor = group_of(PASS_KIND_SCAN)->outs[0].tensor;
}
static void write_nothing(void) { group_of(PASS_KIND_DOT)->n_outs = 0; }
static void shift_out(void) {
  struct pass_group *g = group_of(PASS_KIND_MAP);
  g->outs[0].at[0] = pass_index_add(g->space, g->outs[0].at[0], constant(g, 1));
}
static void repeat_out(void) {
  struct pass_group *g = group_of(PASS_KIND_DOT);
  g->outs[0].at[0] = constant(g, 0);
}
static void write_terms(void) {
  struct pass_group *g = group_of(PASS_KIND_DOT);
  g->outs[0].at[1] = pass_index_mod(g->space, pass_index_var(g->space, 2), D);
}
static void forget_in(void) { group_of(PASS_KIND_DOT)->n_ins--; }
static void add_in(void) {
  struct pass_group *g = group_of(PASS_KIND_MAP);
  quern_tensor **ins = base_arena_alloc(&groups.arena, (g->n_ins + 1) * sizeof *ins);
  memcpy(ins, g->ins, g->n_ins * sizeof *ins);
  ins[g->n_ins++] = quern_input(ctx, "more", QUERN_DTYPE_F32, QUERN_LIST(3));
  g->ins = ins;
}
static void in_twice(void) {
  struct pass_group *g = group_of(PASS_KIND_DOT);
  g->ins[1] = g->ins[0];
}
static void forget_node(void) { group_of(PASS_KIND_REDUCE)->n_nodes--; }
static void shuffle_nodes(void) {
  struct pass_group *g = group_of(PASS_KIND_REDUCE);
  struct ir_node *first = g->nodes[0];
  g->nodes[0] = g->nodes[1];
  g->nodes[1] = first;
}
static void forget_stage(void) { group_of(PASS_KIND_REDUCE)->n_stages--; }
static void shuffle_stages(void) {
  struct pass_group *g = group_of(PASS_KIND_REDUCE);
  struct pass_stage first = g->stages[0];
  g->stages[0] = g->stages[1];
  g->stages[1] = first;
}
static void other_row(void) {
  struct pass_group *g = group_of(PASS_KIND_REDUCE);
  g->stages[1].result[0] =
      pass_index_add(g->space, pass_index_scale(g->space, g->stages[1].result[0], -1), constant(g, N - 1));
}
static void other_order(void) {
  struct pass_group *g = group_of(PASS_KIND_REDUCE);
  for (size_t i = 0; i < g->n_stages; i++)
    g->stages[i].source[1] =
        pass_index_add(g->space, pass_index_scale(g->space, g->stages[i].source[1], -1), constant(g, C - 1));
}
static void swap_operands(void) {
  struct pass_stage *stage = &group_of(PASS_KIND_DOT)->stages[0];
  const struct pass_index **source = stage->source;
  stage->source = stage->other;
  stage->other = source;
}
static void count_vars(void) { group_of(PASS_KIND_DOT)->vars[1]++; }
static void wrong_anchor(void) { group_of(PASS_KIND_REDUCE)->anchor = group_of(PASS_KIND_REDUCE)->nodes[0]; }
static void wrong_kind(void) { group_of(PASS_KIND_SORT)->kind = PASS_KIND_SCATTER; }
static void half_sorted(void) { group_of(PASS_KIND_SORT)->n_outs--; }
static void wide_view(void) { group_of(PASS_KIND_VIEW)->ins[0] = roots[0]; }
static void slow_group(void) { group_of(PASS_KIND_MAP)->speedup = 0.5; }
static void lost_root(void) {
  roots[graph.n_roots++] = quern_abs(quern_input(ctx, "lost", QUERN_DTYPE_F32, QUERN_LIST(3)));
}

static const struct plant {
  void (*plant)(void);
  const char *words; /* of the message */
} plants[] = {
    {swap_groups, "before it is written"},
    {drop_group, "written"},
    {write_twice, "does not compute"},
    {write_nothing, "writes nothing"},
    {shift_out, "outside"},
    {repeat_out, "twice"},
    {write_terms, "uses variable"},
    {forget_in, "neither read nor computed"},
    {add_in, "is not read"},
    {in_twice, "there twice"},
    {forget_node, "compute"},
    {shuffle_nodes, "out of order"},
    {forget_stage, "cannot be computed at a point"},
    {shuffle_stages, "out of order"},
    {other_row, "differ in index"},
    {other_order, "in the order of the inner variables"},
    {swap_operands, "index"},
    {count_vars, "not those of its axes"},
    {wrong_anchor, "not its first reduction"},
    {wrong_kind, "of another kind"},
    {half_sorted, "outs of"},
    {wide_view, "number of bytes"},
    {slow_group, "below"},
    {lost_root, "is not written"},
};

static void test_planted_faults(void **state) {
  (void)state;
  for (size_t i = 0; i < BASE_COUNT(plants); i++) {
    test_renew();
    make_groups();
    plants[i].plant();
    EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, plants[i].words);
    pass_groups_fini(&groups);
  }
}

/* Large spaces are proven, not counted: the same faults are found there. */
static void test_large(void **state) {
  (void)state;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(1000, 1000)), *y = quern_exp(x);
  graph = (struct pass_graph){ctx, 1, &y};
  struct pass_options options = {0};
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  struct pass_group *g = groups.groups.at[0];
  g->outs[0].at[0] = constant(g, 0);
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "not proven to be written once");
  g->outs[0].at[0] = pass_index_scale(g->space, pass_index_var(g->space, 0), 2);
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "not proven to lie inside");
  pass_groups_fini(&groups);
}

/* Sums over the rows of a group of rows. */
static void test_crosses(void **state) {
  (void)state;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(300, C)), *y = quern_softmax(x, 1);
  int64_t rows = 0;
  roots[0] = y;
  roots[1] = quern_sum(y, 1, &rows, false);
  roots[2] = quern_max(quern_mul(x, y), 1, &rows, false);
  graph = (struct pass_graph){ctx, 3, roots};
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  struct pass_group *g = groups.groups.at[0];
  assert_int_equal(groups.groups.n, 1);
  assert_int_equal(g->n_column_reductions, 2);
  const struct pass_index *outer = pass_index_var(g->space, 0), *inner = pass_index_var(g->space, 1);
  g->column_reductions[0].source[0] = constant(g, 0);
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "order of the outer variables");
  g->column_reductions[0].source[0] = outer;
  g->column_reductions[0].result[0] = constant(g, 0);
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "result and source differ in index 0");
  g->column_reductions[0].source[1] = constant(g, 0);
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "not those of the inner variables");
  g->column_reductions[0].source[1] = g->column_reductions[0].result[0] = inner;
  struct pass_stage first = g->column_reductions[0];
  g->column_reductions[0] = g->column_reductions[1];
  g->column_reductions[1] = first;
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "column reductions are out of order");
  g->column_reductions[1] = g->column_reductions[0];
  g->column_reductions[0] = first;
  struct pass_stage stage = g->stages[0];
  g->column_reductions[0].node = stage.node;
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "");
  g->column_reductions[0] = first;
  g->n_column_reductions = 1;
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "points write the");
  g->n_column_reductions = 2;
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  pass_groups_fini(&groups);
}

/* On GPUs: what is made of such sums is computed when all rows are done, and nothing of a row is made of it. */
static void test_ends(void **state) {
  (void)state;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(300, C));
  quern_tensor *gain = quern_input(ctx, "gain", QUERN_DTYPE_F32, QUERN_LIST(C));
  quern_tensor *y = quern_mul(quern_softmax(x, 1), gain);
  struct base_target target = {.name = "test", .vector_bytes = 16, .registers = 32, .threads = 4, .gpu = true};
  struct pass_options options = {0};
  struct pass_report reports[PASS_COUNT];
  int64_t rows = 0;
  roots[0] = y;
  roots[1] = quern_cast(quern_sum(y, 1, &rows, false), QUERN_DTYPE_F16);
  graph = (struct pass_graph){ctx, 2, roots};
  EXPECT_OK(pass_options_parse(&options, 1, NULL));
  options.target = &target;
  EXPECT_OK(pass_run(&graph, &options, reports));
  EXPECT_OK(pass_fuse(&groups, &graph, &options));
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  assert_int_equal(groups.groups.n, 1);
  struct pass_group *g = groups.groups.at[0];
  assert_int_equal(g->n_column_reductions, 1);
  assert_int_equal(g->n_outs, 2);
  const struct pass_index **at = g->outs[1].at, *inner = at[0];
  at[0] = pass_index_var(g->space, 0);
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "not those of the inner variables");
  at[0] = inner;
  const struct pass_index *zero = constant(g, 0), **result = g->column_reductions[0].result;
  g->column_reductions[0].result = &zero;
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "result and source differ in index 0");
  g->column_reductions[0].result = result;
  quern_tensor **source = NULL;
  for (size_t i = 0; i < g->n_nodes; i++)
    if (g->nodes[i]->n_src > 0 && g->nodes[i]->src[0] == gain) source = &g->nodes[i]->src[0];
  assert_non_null(source);
  *source = &g->column_reductions[0].node->out[0];
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "over the rows is read before it is known");
  *source = gain;
  g->n_outs = 1;
  EXPECT_ERROR(pass_groups_verify(&groups, &graph), INTERNAL, "is not used");
  g->n_outs = 2;
  EXPECT_OK(pass_groups_verify(&groups, &graph));
  pass_groups_fini(&groups);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_planted_faults), TEST(test_large), TEST(test_crosses), TEST(test_ends)};
  return cmocka_run_group_tests_name("pass/groups", tests, NULL, NULL);
}
