/* sched/point_walk.c -- which tensors at which indices a value is made from
** keeps: no recursion; a point is visited once
** tests: tests/sched/test_reduce.c
*/
#include "sched/nest.h"

bool sched_point_uses(const struct sched_point *point, int var) {
  for (int k = 0; k < point->tensor->rank; k++)
    if (pass_index_uses(point->at[k], var)) return true;
  return false;
}

bool sched_point_same(const struct sched_point *a, const struct sched_point *b) {
  if (a->tensor != b->tensor) return false;
  for (int k = 0; k < a->tensor->rank; k++)
    if (a->at[k] != b->at[k]) return false;
  return true;
}

static bool same_point(const void *item, const void *key) { return sched_point_same(item, key); }

uint64_t sched_point_hash(const quern_tensor *t, const struct pass_index *const *at) {
  uint64_t hash = base_hash_u64(BASE_HASH_SEED, (uint64_t)t->node->id << 8 | (uint64_t)t->result);
  for (int k = 0; k < t->rank; k++) hash = base_hash_u64(hash, at[k]->id);
  return hash;
}

bool sched_points_add(const struct sched_nest *nest, struct sched_points *points, const struct sched_point *point) {
  if (points->n == points->cap) {
    size_t cap = points->cap == 0 ? 16 : 2 * points->cap;
    struct sched_point *more = base_arena_alloc(nest->arena, cap * sizeof *more);
    if (more == NULL) return false;
    for (size_t i = 0; i < points->n; i++) more[i] = points->at[i];
    points->at = more;
    points->cap = cap;
  }
  points->at[points->n++] = *point;
  return true;
}

/* ---- the walk -------------------------------------------------------------------------------------------- */

void sched_walk_init(struct sched_walk *walk, const struct sched_nest *nest) {
  *walk = (struct sched_walk){.nest = nest};
  base_map_init(&walk->seen, &nest->job->ctx->heap);
}

void sched_walk_fini(struct sched_walk *walk) { base_map_fini(&walk->seen); }

/* Puts a point on the stack that was not seen before. */
static void push(struct sched_walk *walk, const quern_tensor *t, const struct pass_index *const *at) {
  struct base_arena *arena = walk->nest->arena;
  uint64_t hash = sched_point_hash(t, at);
  const struct pass_index *room[QUERN_MAX_RANK];
  for (int k = 0; k < t->rank; k++) room[k] = at[k];
  struct sched_point key = {t, room};
  if (walk->failed || base_map_find(&walk->seen, hash, same_point, &key) != NULL) return;
  key.at = base_arena_copy(arena, room, (size_t)(t->rank + 1) * sizeof *room);
  struct sched_point *made = base_arena_copy(arena, &key, sizeof key);
  walk->failed = key.at == NULL || made == NULL || !base_map_add(&walk->seen, hash, made) ||
                 !sched_points_add(walk->nest, &walk->stack, made);
}

static bool is_in(const struct pass_group *group, const quern_tensor *t) {
  for (size_t i = 0; i < group->n_ins; i++)
    if (group->ins[i] == t) return true;
  return false;
}

/* Where GATHER reads its indices. */
static void gather_index(const struct ir_node *node, const struct pass_index *const *at, const struct pass_index **in) {
  int batch = (int)node->attrs->batch, axis = (int)node->attrs->axis;
  for (int k = 0; k < batch; k++) in[k] = at[k];
  for (int k = batch; k < node->src[1]->rank; k++) in[k] = at[axis + k - batch];
}

/* Where an element of a padded or concatenated source would be, which may be outside. False for other ops. */
static bool beyond_source(struct pass_space *space, const struct ir_node *node, int src,
                          const struct pass_index *const *at, const struct pass_index **in) {
  const quern_tensor *t = node->src[src];
  int64_t before = 0;
  for (int s = 0; node->op == IR_CONCAT && s < src; s++) before += node->src[s]->dims[node->attrs->axis];
  for (int k = 0; k < t->rank; k++) in[k] = at[k];
  if (node->op == IR_CONCAT) {
    int64_t axis = node->attrs->axis;
    in[axis] = pass_index_add(space, at[axis], pass_index_const(space, -before));
    return true;
  }
  if (node->op != IR_PAD || src != 0) return false;
  for (int k = 0; k < t->rank; k++) {
    in[k] = pass_index_add(space, at[k], pass_index_const(space, -node->attrs->lo.at[k]));
    if (node->attrs->mid.at[k] > 0) return false;
  }
  return true;
}

static void push_sources(struct sched_walk *walk, const struct sched_point *point) {
  const struct ir_node *node = point->tensor->node;
  const struct pass_index *in[QUERN_MAX_RANK];
  struct pass_space *space = walk->nest->job->group->space;
  bool reduced = node->op == IR_REDUCE || node->op == IR_ARGREDUCE;
  if (is_in(walk->nest->job->group, point->tensor) || reduced || point->tensor->result != 0) return;
  for (int s = 0; s < node->n_src; s++) {
    const quern_tensor *src = node->src[s];
    if (node->op == IR_GATHER && s == 1) {
      gather_index(node, point->at, in);
      push(walk, src, in);
    } else if (src->rank == 0 || pass_index_source(space, node, s, point->at, in) ||
               (walk->beyond && beyond_source(space, node, s, point->at, in))) {
      push(walk, src, in);
    }
  }
}

void sched_walk_run(struct sched_walk *walk, const quern_tensor *t, const struct pass_index *const *at,
                    sched_visit *visit, void *user) {
  push(walk, t, at);
  while (walk->stack.n > 0 && !walk->failed) {
    struct sched_point point = walk->stack.at[--walk->stack.n];
    if (visit(user, &point)) push_sources(walk, &point);
  }
}

/* ---- what can be computed before a loop ------------------------------------------------------------------ */

struct search {
  struct sched_nest *nest;
  int n_vars;
  const int *vars;
  struct sched_points *points;
  bool failed;
};

static bool visit_invariant(void *user, const struct sched_point *point) {
  struct search *search = user;
  for (int i = 0; i < search->n_vars; i++)
    if (sched_point_uses(point, search->vars[i])) return true;
  if (point->tensor->node->op == IR_CONST) return false;
  for (size_t i = 0; i < search->points->n; i++)
    if (sched_point_same(point, &search->points->at[i])) return false;
  if (!sched_points_add(search->nest, search->points, point)) search->failed = true;
  return false;
}

quern_status sched_invariants(struct sched_nest *nest, const quern_tensor *t, const struct pass_index *const *at,
                              int n_vars, const int *vars, struct sched_points *points) {
  struct search search = {nest, n_vars, vars, points, false};
  struct sched_walk walk;
  sched_walk_init(&walk, nest);
  sched_walk_run(&walk, t, at, visit_invariant, &search);
  sched_walk_fini(&walk);
  return search.failed || walk.failed || nest->job->group->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

void sched_points_get(struct kern_values *values, const struct sched_points *points) {
  for (size_t i = 0; i < points->n; i++)
    (void)kern_values_get(values, points->at[i].tensor, points->at[i].tensor->rank, points->at[i].at);
}
