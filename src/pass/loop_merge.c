/* pass/loop_merge.c -- loops that do the same become one, which gives what others use of each
** A gradient needs the carries of all iterations, and asks for them by the forward loop with more results.
** keeps: every bit
** tests: tests/pass/test_loops.c
*/
#include "pass/loops.h"

/* A loop, and the group of loops that it does the same as. */
struct member {
  struct ir_node *node;
  bool *used;                  /* of each result, whether anything uses it */
  size_t leader, n;            /* place of the first of its group; how many are in it */
  const struct ir_graph *body; /* of the leader: with all results of the group that are used */
};

struct merge {
  struct base_arena arena;
  BASE_VEC(struct member) members; /* of the graphs that are being visited, the innermost last */
};

bool loop_is_same(const struct ir_node *a, const struct ir_node *b) {
  const struct ir_attrs *x = a->attrs, *y = b->attrs;
  return a->n_src == b->n_src && x->trip == y->trip && x->reverse == y->reverse && x->carries == y->carries &&
         x->scanned == y->scanned && memcmp(a->src, b->src, (size_t)a->n_src * sizeof *a->src) == 0 &&
         memcmp(x->body->results, y->body->results, (size_t)x->carries * sizeof *x->body->results) == 0;
}

static int find_result(const struct ir_graph *body, int64_t first, const quern_tensor *value) {
  for (int i = (int)first; i < body->n_results; i++)
    if (body->results[i] == value) return i;
  return -1;
}

/* A body with the carries of the member's and those stacked results of the other body and of it that are used. */
static quern_status join(quern_context *ctx, const struct ir_graph *other, const struct member *member,
                         const struct ir_graph **out) {
  const struct ir_graph *body = member->node->attrs->body;
  int64_t carries = member->node->attrs->carries;
  size_t bytes = (size_t)(body->n_results + (other != NULL ? other->n_results : 0)) * sizeof(quern_tensor *);
  quern_tensor **results = base_alloc(&ctx->heap, bytes);
  if (results == NULL) return QUERN_STATUS_MEMORY;
  int n = other != NULL ? other->n_results : (int)carries;
  memcpy(results, other != NULL ? other->results : body->results, (size_t)n * sizeof *results);
  for (int i = (int)carries; i < body->n_results; i++)
    if (member->used[i] && (other == NULL || find_result(other, carries, body->results[i]) < 0))
      results[n++] = body->results[i];
  quern_status status = QUERN_STATUS_OK;
  *out = body;
  if (n > 0) status = ir_graph_make(ctx, body->n_params, body->params, n, results, out);
  base_free(&ctx->heap, results, bytes);
  return status;
}

/* Adds the loop to the group of the first one that does the same; mark: of this graph. */
static quern_status add(struct merge *merge, size_t mark, struct member member) {
  quern_context *ctx = member.node->ctx;
  struct member *leader = NULL;
  for (size_t i = mark; i < merge->members.n && leader == NULL; i++)
    if (merge->members.at[i].leader == i && loop_is_same(merge->members.at[i].node, member.node)) {
      leader = &merge->members.at[i];
      leader->n++;
      member.leader = i;
    }
  QUERN_TRY(join(ctx, leader != NULL ? leader->body : NULL, &member, leader != NULL ? &leader->body : &member.body));
  return base_vec_push(&ctx->heap, &merge->members, member) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static void mark_used(const struct ir_order *order, bool *const *used, const quern_tensor *t) {
  bool *marks = used[ir_order_find(order, t->node)];
  if (marks != NULL) marks[t->result] = true;
}

static quern_status find_loops(struct pass_subgraphs *deep, size_t n, quern_tensor *const *roots,
                               const struct ir_order *order, size_t mark) {
  struct merge *merge = deep->user;
  bool **used = base_arena_alloc(&merge->arena, (order->n + 1) * sizeof *used);
  if (used == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < order->n; i++) {
    const struct ir_node *node = order->at[i];
    used[i] = NULL;
    for (int k = 0; k < node->n_src; k++) mark_used(order, used, node->src[k]);
    if (node->op != IR_LOOP) continue;
    used[i] = base_arena_alloc(&merge->arena, (size_t)node->n_out);
    if (used[i] == NULL) return QUERN_STATUS_MEMORY;
    memset(used[i], 0, (size_t)node->n_out);
  }
  for (size_t i = 0; i < n; i++) mark_used(order, used, roots[i]);
  for (size_t i = 0; i < order->n; i++)
    if (used[i] != NULL)
      QUERN_TRY(
          add(merge, mark, (struct member){.node = order->at[i], .used = used[i], .leader = merge->members.n, .n = 1}));
  return QUERN_STATUS_OK;
}

static quern_status begin(struct pass_subgraphs *deep, size_t n, quern_tensor *const *roots, size_t *mark) {
  struct ir_order order;
  *mark = ((struct merge *)deep->user)->members.n;
  QUERN_TRY(ir_topo(deep->ctx, n, roots, &order));
  quern_status status = find_loops(deep, n, roots, &order, *mark);
  ir_order_fini(deep->ctx, &order);
  return status;
}

static void end(struct pass_subgraphs *deep, size_t mark) { ((struct merge *)deep->user)->members.n = mark; }

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  (void)user;
  return ir_rebuild(node, src, out);
}

/* The leader of the node's group, or NULL when it is alone. */
static const struct member *find_leader(const struct merge *merge, const struct ir_node *node) {
  for (size_t i = merge->members.n; i-- > 0;) {
    if (merge->members.at[i].node != node) continue;
    const struct member *leader = &merge->members.at[merge->members.at[i].leader];
    return leader->n > 1 ? leader : NULL;
  }
  return NULL;
}

/* A result that nothing uses is the poison. */
static quern_status control(struct pass_subgraphs *deep, struct ir_node *node, quern_tensor *const *src,
                            const struct ir_attrs *attrs, quern_tensor **out) {
  const struct member *leader = node->op == IR_LOOP ? find_leader(deep->user, node) : NULL;
  const struct ir_graph *all = leader != NULL ? leader->body : NULL;
  struct ir_attrs now = *attrs;
  if (all != NULL) QUERN_TRY(pass_subgraphs_one(deep, all, &now.body));
  quern_tensor *made = ir_make(deep->ctx, node->op, node->n_src, src, &now);
  if (ir_is_poison(made)) return ir_poison_error(deep->ctx);
  for (int i = 0; i < node->n_out; i++) {
    bool carry = all == NULL || i < attrs->carries;
    int at = carry ? i : find_result(all, attrs->carries, node->attrs->body->results[i]);
    out[i] = at >= 0 ? ir_result(made, at) : &ir_poison;
  }
  return QUERN_STATUS_OK;
}

quern_status pass_loop_merge(struct pass_graph *graph, const struct pass_options *options) {
  struct merge merge = {0};
  (void)options;
  base_arena_init(&merge.arena, &graph->ctx->heap);
  quern_status status = pass_subgraphs_control(
      graph, &(struct pass_subgraphs){.visit = visit, .control = control, .begin = begin, .end = end, .user = &merge});
  base_vec_fini(&graph->ctx->heap, &merge.members);
  base_arena_fini(&merge.arena);
  return status;
}
