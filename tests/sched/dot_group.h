/* tests/sched/dot_group.h -- a group of kind DOT made by hand, and its kernels run by the interpreter
** The roots are made of one DOT, of elementwise ops, casts and movement before it, and of elementwise ops, permute and reshape
** after it.
*/
#ifndef TESTS_SCHED_DOT_GROUP_H
#define TESTS_SCHED_DOT_GROUP_H
#include "ir/ir.h"
#include "sched/sched.h"
#include "unit.h"

enum { GROUP_MOST = 16 };

struct dot_group {
  struct base_arena arena;
  struct pass_group group;
  struct ir_order order;
};

/* ---- making ---------------------------------------------------------------------------------------------- */

static inline const struct pass_index **group_indices(struct dot_group *g, int rank) {
  const struct pass_index **at = base_arena_alloc(&g->arena, (size_t)(rank + 1) * sizeof *at);
  assert_non_null(at);
  return at;
}

/* Gives the axes of a list the variables from `first` on; -1 where an axis has none yet. */
static inline void group_axes(int *vars, struct ir_ints list, int first) {
  for (int i = 0; i < list.n; i++) vars[list.at[i]] = first + i;
}

/* The axes that have no variable yet get the next ones. */
static inline int group_rest(struct dot_group *g, int *vars, const quern_tensor *t) {
  int n = 0;
  for (int k = 0; k < t->rank; k++) {
    if (vars[k] >= 0) continue;
    vars[k] = pass_space_add(g->group.space, t->dims[k]);
    n++;
  }
  return n;
}

static inline const struct pass_index **group_reads(struct dot_group *g, const int *vars, int rank) {
  const struct pass_index **at = group_indices(g, rank);
  for (int k = 0; k < rank; k++) at[k] = pass_index_var(g->group.space, vars[k]);
  return at;
}

static inline void group_space(struct dot_group *g, struct ir_node *dot) {
  const struct ir_attrs *attrs = dot->attrs;
  const quern_tensor *a = dot->src[0], *b = dot->src[1];
  int va[QUERN_MAX_RANK], vb[QUERN_MAX_RANK], vy[QUERN_MAX_RANK], *counts = g->group.vars;
  for (int k = 0; k < QUERN_MAX_RANK; k++) va[k] = vb[k] = -1;
  EXPECT_OK(pass_space_new(&g->group.space, &ctx->heap));
  counts[0] = attrs->a_batch.n;
  for (int i = 0; i < counts[0]; i++) (void)pass_space_add(g->group.space, a->dims[attrs->a_batch.at[i]]);
  group_axes(va, attrs->a_batch, 0);
  group_axes(vb, attrs->b_batch, 0);
  group_axes(va, attrs->a_sum, 0); /* taken, so that the rest are rows */
  group_axes(vb, attrs->b_sum, 0);
  counts[1] = group_rest(g, va, a);
  counts[2] = group_rest(g, vb, b);
  counts[3] = attrs->a_sum.n;
  int terms = counts[0] + counts[1] + counts[2];
  for (int i = 0; i < counts[3]; i++) (void)pass_space_add(g->group.space, a->dims[attrs->a_sum.at[i]]);
  group_axes(va, attrs->a_sum, terms);
  group_axes(vb, attrs->b_sum, terms);
  for (int k = 0; k < terms; k++) vy[k] = k;
  g->group.n_outer = terms;
  g->group.n_stages = 1;
  g->group.stages = base_arena_new(&g->arena, struct pass_stage);
  g->group.stages[0] = (struct pass_stage){.node = dot,
                                           .source = group_reads(g, va, a->rank),
                                           .other = group_reads(g, vb, b->rank),
                                           .result = group_reads(g, vy, terms)};
}

/* Where a node after the contraction is written, from where its source is; NULL: it does not depend on it. */
static inline const struct pass_index **group_after(struct dot_group *g, const struct ir_node *node,
                                                    const struct pass_index **src) {
  struct pass_space *space = g->group.space;
  const quern_tensor *out = &node->out[0], *in = node->src[0];
  if (src == NULL || (node->op != IR_PERMUTE && node->op != IR_RESHAPE)) return src;
  const struct pass_index **at = group_indices(g, out->rank);
  if (node->op == IR_PERMUTE)
    for (int k = 0; k < out->rank; k++) at[k] = src[node->attrs->axes.at[k]];
  else
    pass_index_unflat(space, pass_index_flat(space, in->rank, in->dims, src), out->rank, out->dims, at);
  return at;
}

static inline void group_init(struct dot_group *g, size_t n, quern_tensor *const *roots) {
  memset(g, 0, sizeof *g);
  base_arena_init(&g->arena, &ctx->heap);
  for (size_t i = 0; i < n; i++)
    if (ir_is_poison(roots[i])) fail_msg("%s", ctx->message);
  EXPECT_OK(ir_topo(ctx, n, roots, &g->order));
  g->group.kind = PASS_KIND_DOT;
  g->group.nodes = base_arena_alloc(&g->arena, g->order.n * sizeof *g->group.nodes);
  g->group.ins = base_arena_alloc(&g->arena, g->order.n * sizeof *g->group.ins);
  const struct pass_index ***at = base_arena_alloc(&g->arena, g->order.n * sizeof *at);
  for (size_t i = 0; i < g->order.n; i++) {
    struct ir_node *node = g->order.at[i];
    if (node->op == IR_INPUT) g->group.ins[g->group.n_ins++] = &node->out[0];
    if (node->op != IR_INPUT) g->group.nodes[g->group.n_nodes++] = node;
    if (node->op == IR_DOT) {
      group_space(g, node);
      g->group.anchor = node;
      at[i] = g->group.stages[0].result;
      continue;
    }
    for (int s = 0; s < node->n_src && at[i] == NULL; s++)
      at[i] = group_after(g, node, at[ir_order_find(&g->order, node->src[s]->node)]);
  }
  g->group.n_outs = n;
  g->group.outs = base_arena_alloc(&g->arena, n * sizeof *g->group.outs);
  for (size_t i = 0; i < n; i++)
    g->group.outs[i] = (struct pass_out){.tensor = roots[i], .at = at[ir_order_find(&g->order, roots[i]->node)]};
}

static inline void group_fini(struct dot_group *g) {
  pass_space_free(g->group.space);
  ir_order_fini(ctx, &g->order);
  base_arena_fini(&g->arena);
}

/* ---- data ------------------------------------------------------------------------------------------------ */

/* Numbers of [-1, 1) for floats, of the whole range for integers. */
static inline void group_fill(const quern_tensor *t, void *data, uint64_t seed) {
  uint64_t s = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
  for (size_t i = 0; i < (size_t)ir_count(t); i++) {
    s = s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    if (base_dtype_is(t->dtype, BASE_FLOAT))
      base_store_float(t->dtype, data, i, (double)(s >> 11) / 4503599627370496.0 - 1);
    else
      base_store_int(t->dtype, data, i, t->dtype == QUERN_DTYPE_BOOL ? s >> 63 : s >> 32);
  }
}

/* Memories of a kernel: ins with numbers, outs and workspaces with rubbish. */
struct group_memory {
  int n;
  size_t bytes[GROUP_MOST];
  void *at[GROUP_MOST];
};

static inline void group_memory_init(struct group_memory *m, const struct kern *kern, const struct pass_group *group) {
  m->n = kern->n_mems;
  assert_true(m->n <= GROUP_MOST);
  for (int i = 0; i < m->n; i++) {
    m->bytes[i] = (size_t)kern->mems[i].count * base_dtypes[kern->mems[i].dtype].size;
    m->at[i] = base_alloc(&ctx->heap, m->bytes[i]);
    assert_non_null(m->at[i]);
    memset(m->at[i], 0x77, m->bytes[i]);
    if ((size_t)i < group->n_ins) group_fill(group->ins[i], m->at[i], (uint64_t)i + 1);
  }
}

static inline void group_memory_fini(struct group_memory *m) {
  for (int i = 0; i < m->n; i++) base_free(&ctx->heap, m->at[i], m->bytes[i]);
  m->n = 0;
}

/* ---- running --------------------------------------------------------------------------------------------- */

/* The kernel of a schedule, verified. */
static inline struct kern *group_kernel(const struct pass_group *group, const struct base_target *target,
                                        const struct sched *sched) {
  struct kern *kern = NULL;
  int unproven = 0;
  EXPECT_OK(sched_lower(&kern, &ctx->heap, ctx, group, target, sched));
  EXPECT_OK(kern_verify(kern, &unproven));
  return kern;
}

static inline void group_run(const struct kern *kern, const struct group_memory *m) {
  struct kern_launch launch = {.mems = m->at};
  EXPECT_OK(kern_interp(kern, &launch, KERN_CHECK_RACES));
}

#endif
