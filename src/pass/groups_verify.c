/* pass/groups_verify.c -- checks everything that pass.h states about fusion groups
** in:    groups and the graph they compute    out: OK, or INTERNAL with what is wrong and where
** keeps: shares no code with the making of groups but index expressions themselves; small spaces are counted through
** tests: tests/pass/test_groups.c (each kind of fault is planted)
*/
#include "pass/pass_int.h"

enum { SMALL = 4096, MOST_MEMORIES = 240, MOST_VISITS = 4096 };

struct visit {
  int next; /* of the same node; -1: none */
  size_t at;
};
struct check {
  const struct pass_groups *groups;
  struct base_heap *heap;
  const struct pass_group *group;
  size_t number;
  struct base_map written; /* tensors that groups before have written */
  BASE_VEC(struct visit) visits;
  BASE_VEC(const struct pass_index *) indices;
  BASE_VEC(int) heads;        /* first visit of each node of the group */
  BASE_VEC(int) visited;      /* node of each visit */
  BASE_VEC(bool) ins, stages; /* met */
  BASE_VEC(bool) ends;        /* nodes of the group that are made of sums over its rows */
};

#define FAULT(c, cond, ...)                                                                                            \
  do {                                                                                                                 \
    if (!(cond)) return fault((c), __VA_ARGS__);                                                                       \
  } while (0)

static quern_status fault(const struct check *c, const char *fmt, ...) BASE_PRINTF(2, 3);
static quern_status fault(const struct check *c, const char *fmt, ...) {
  char what[BASE_MESSAGE_BYTES];
  va_list args;
  va_start(args, fmt);
  (void)base_error_v(QUERN_STATUS_INTERNAL, fmt, args);
  va_end(args);
  strncpy(what, quern_last_error(), sizeof what - 1);
  what[sizeof what - 1] = '\0';
  const char *kind = c->group != NULL && (int)c->group->kind < PASS_KIND_COUNT ? pass_kind_names[c->group->kind] : "?";
  return base_error(QUERN_STATUS_INTERNAL, "groups: group %zu (%s): %.900s", c->number, kind, what);
}

/* ---- what is in memory ------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const quern_tensor *t) {
  return base_hash_u64(BASE_HASH_SEED, (uint64_t)t->node->id << 16 | (uint64_t)t->result);
}

static bool is_same(const void *item, const void *key) { return item == key; }

static bool is_written(const struct check *c, const quern_tensor *t) {
  return base_map_find(&c->written, hash_of(t), is_same, t) != NULL;
}

static int find_in(const struct pass_group *group, const quern_tensor *t) {
  for (size_t i = 0; i < group->n_ins; i++)
    if (group->ins[i] == t) return (int)i;
  return -1;
}

static int find_node(const struct pass_group *group, const struct ir_node *node) {
  for (size_t i = 0; i < group->n_nodes; i++)
    if (group->nodes[i] == node) return (int)i;
  return -1;
}

static const struct pass_stage *find_cross(const struct pass_group *group, const struct ir_node *node) {
  for (size_t i = 0; i < group->n_column_reductions; i++)
    if (group->column_reductions[i].node == node) return &group->column_reductions[i];
  return NULL;
}

static const struct pass_stage *find_stage(const struct pass_group *group, const struct ir_node *node, size_t *i) {
  for (*i = 0; *i < group->n_stages; ++*i)
    if (group->stages[*i].node == node) return &group->stages[*i];
  return NULL;
}

/* ---- points ------------------------------------------------------------------------------------------------------ */

static int64_t value_at(const struct pass_index *e, const int64_t *point) {
  int64_t sum = e->constant;
  for (int i = 0; i < e->n_terms; i++) {
    const struct pass_atom *atom = e->terms[i].atom;
    int64_t x = atom->kind == PASS_ATOM_VAR ? point[atom->var] : value_at(atom->of, point), n = atom->by;
    if (atom->kind == PASS_ATOM_DIV) x = x / n - (x % n < 0 ? 1 : 0);
    if (atom->kind == PASS_ATOM_MOD) x = x % n + (x % n < 0 ? n : 0);
    if (atom->kind == PASS_ATOM_CLAMP) x = BASE_MIN(BASE_MAX(x, 0), n - 1);
    sum += e->terms[i].coef * x;
  }
  return sum;
}

/* The next point of the variables 0 .. n - 1, the last fastest; false after the last. */
static bool next_point(const struct pass_space *space, int n, int64_t *point) {
  for (int v = n - 1; v >= 0; v--) {
    if (++point[v] < space->extents.at[v]) return true;
    point[v] = 0;
  }
  return false;
}

static int64_t points(const struct pass_space *space, int n) {
  uint64_t count = 1;
  for (int v = 0; v < n; v++) count *= (uint64_t)space->extents.at[v];
  return (int64_t)count;
}

/* The element number at a point, or -1 when an index is outside. */
static int64_t element_at(const quern_tensor *t, const struct pass_index *const *at, const int64_t *point) {
  int64_t flat = 0;
  for (int k = 0; k < t->rank; k++) {
    int64_t i = value_at(at[k], point);
    if (i < 0 || i >= t->dims[k]) return -1;
    flat = flat * t->dims[k] + i;
  }
  return flat;
}

/* Every index of t lies inside at every point. */
static quern_status check_inside(const struct check *c, const quern_tensor *t, const struct pass_index *const *at) {
  const struct pass_space *space = c->group->space;
  int n = (int)space->extents.n;
  bool proven = true;
  if (points(space, n) == 0 || ir_count(t) == 0) return QUERN_STATUS_OK;
  for (int k = 0; k < t->rank; k++) proven = proven && at[k]->lo >= 0 && at[k]->hi < t->dims[k];
  if (proven) return QUERN_STATUS_OK;
  FAULT(c, points(space, n) <= SMALL, "an index of the result of %s is not proven to lie inside",
        ir_ops[t->node->op].name);
  int64_t point[PASS_MOST_VARS + QUERN_MAX_RANK] = {0};
  do {
    FAULT(c, element_at(t, at, point) >= 0, "an index of the result of %s lies outside", ir_ops[t->node->op].name);
  } while (next_point(space, n, point));
  return QUERN_STATUS_OK;
}

/* Each element of t is that of exactly one point of the first n variables, whatever the others are. */
static quern_status check_once(struct check *c, const quern_tensor *t, const struct pass_index *const *at, int n) {
  struct pass_space *space = c->group->space;
  int all = (int)space->extents.n;
  char type[IR_TYPE_TEXT];
  FAULT(c, points(space, n) == ir_count(t), "%lld points write the %lld elements of %s", (long long)points(space, n),
        (long long)ir_count(t), ir_type_text(type, t));
  for (int k = 0; k < t->rank; k++) {
    for (int v = n; v < all; v++)
      FAULT(c, !pass_index_uses(at[k], v), "an index of %s uses variable %d, over which it is reduced",
            ir_ops[t->node->op].name, v);
  }
  if (ir_count(t) == 0) return QUERN_STATUS_OK;
  QUERN_TRY(check_inside(c, t, at));
  if (ir_count(t) > SMALL) {
    enum pass_cover cover = pass_index_covers(space, all, n, t, at);
    FAULT(c, cover != PASS_COVER_NONE, "the elements of %s are not proven to be written once",
          ir_ops[t->node->op].name);
    return QUERN_STATUS_OK;
  }
  unsigned char seen[SMALL] = {0};
  int64_t point[PASS_MOST_VARS + QUERN_MAX_RANK] = {0};
  do {
    int64_t e = element_at(t, at, point);
    FAULT(c, e >= 0 && seen[e] == 0, "element %lld of %s is written twice", (long long)e, ir_ops[t->node->op].name);
    seen[e] = 1;
  } while (next_point(space, n, point));
  return QUERN_STATUS_OK;
}

/* Checks that each element of t is that of exactly one point of the variables n_outer .., when t's elements are in their order. */
static quern_status check_inner(struct check *c, const quern_tensor *t, const struct pass_index *const *at) {
  struct pass_space *space = c->group->space;
  const struct pass_index *wanted = pass_index_of_vars(space, c->group->n_outer, (int)space->extents.n);
  FAULT(c, pass_index_flat(space, t->rank, t->dims, at) == wanted && wanted->hi == ir_count(t) - 1,
        "the elements of %s are not those of the inner variables", ir_ops[t->node->op].name);
  return check_inside(c, t, at);
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

/* Finds the ends of the group. Nodes are in an order in which they can be computed. */
static quern_status find_epilogues(struct check *c) {
  const struct pass_group *group = c->group;
  c->ends.n = 0;
  for (size_t i = 0; i < group->n_nodes; i++) {
    const struct ir_node *node = group->nodes[i];
    size_t s;
    bool end = false, reduces = find_stage(group, node, &s) != NULL || find_cross(group, node) != NULL;
    for (int k = 0; k < node->n_src && !reduces; k++) {
      int source = find_in(group, node->src[k]) >= 0 ? -1 : find_node(group, node->src[k]->node);
      if (source < 0 || source >= (int)i) continue;
      end = end || c->ends.at[source] || find_cross(group, node->src[k]->node) != NULL;
    }
    if (!base_vec_push(c->heap, &c->ends, end)) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

/* A tensor that is wanted at indices[at ..]; late: when all rows are done, by an out or an end. */
static quern_status meet(struct check *c, const quern_tensor *t, size_t at, bool late) {
  const struct pass_group *group = c->group;
  const struct pass_index *const *indices = c->indices.at + at;
  QUERN_TRY(check_inside(c, t, indices));
  int in = find_in(group, t), node = find_node(group, t->node);
  size_t s;
  if (in >= 0) {
    c->ins.at[in] = true;
    return QUERN_STATUS_OK;
  }
  FAULT(c, node >= 0, "the result of %s is neither read nor computed", ir_ops[t->node->op].name);
  const struct pass_stage *stage = find_stage(group, t->node, &s), *cross = find_cross(group, t->node);
  if (stage != NULL) {
    bool same = t->rank == 0 || memcmp(stage->result, indices, (size_t)t->rank * sizeof *indices) == 0;
    FAULT(c, same, "the result of a %s is read elsewhere than where it is computed", ir_ops[t->node->op].name);
  } else if (cross != NULL || c->ends.at[node]) {
    bool same = cross == NULL || t->rank == 0 || memcmp(cross->result, indices, (size_t)t->rank * sizeof *indices) == 0;
    FAULT(c, same, "the result of a %s is read elsewhere than where it is computed", ir_ops[t->node->op].name);
    FAULT(c, late, "the result of a %s over the rows is read before it is known", ir_ops[t->node->op].name);
  } else if (!(group->kind == PASS_KIND_SCAN && t->node == group->anchor)) {
    FAULT(c, pass_ops[t->node->op].class != PASS_CLASS_ANCHOR, "%s cannot be computed at a point",
          ir_ops[t->node->op].name);
  }
  for (int v = c->heads.at[node]; v >= 0; v = c->visits.at[v].next) {
    if (t->rank == 0 || memcmp(c->indices.at + c->visits.at[v].at, indices, (size_t)t->rank * sizeof *indices) == 0)
      return QUERN_STATUS_OK;
  }
  struct visit visit = {c->heads.at[node], at};
  FAULT(c, c->visits.n < MOST_VISITS, "more than %d values a point", (int)MOST_VISITS);
  if (!base_vec_push(c->heap, &c->visits, visit) || !base_vec_push(c->heap, &c->visited, node))
    return QUERN_STATUS_MEMORY;
  c->heads.at[node] = (int)c->visits.n - 1;
  return QUERN_STATUS_OK;
}

/* Copies indices and meets t there. */
static quern_status start(struct check *c, const quern_tensor *t, const struct pass_index *const *at, bool late) {
  size_t first = c->indices.n;
  if (!base_vec_reserve(c->heap, &c->indices, QUERN_MAX_RANK)) return QUERN_STATUS_MEMORY;
  for (int k = 0; k < t->rank; k++) c->indices.at[c->indices.n++] = at[k];
  return meet(c, t, first, late);
}

static quern_status visit_sources(struct check *c, size_t number) {
  const struct pass_group *group = c->group;
  const struct ir_node *node = group->nodes[c->visited.at[number]];
  size_t at = c->visits.at[number].at, s;
  const struct pass_stage *stage = find_stage(group, node, &s);
  const struct pass_stage *cross = find_cross(group, node);
  if (cross != NULL) return start(c, node->src[0], (const struct pass_index *const *)cross->source, false);
  if (stage != NULL) {
    c->stages.at[s] = true;
    QUERN_TRY(start(c, node->src[0], (const struct pass_index *const *)stage->source, false));
    return stage->other == NULL ? QUERN_STATUS_OK
                                : start(c, node->src[1], (const struct pass_index *const *)stage->other, false);
  }
  for (int i = 0; i < node->n_src; i++) {
    if (pass_needs_memory(node, i)) {
      int in = find_in(group, node->src[i]);
      FAULT(c, in >= 0, "%s reads its source %d at run-time indices, but it is not among the ins",
            ir_ops[node->op].name, i);
      c->ins.at[in] = true;
      continue;
    }
    if (group->kind == PASS_KIND_SCAN && node == group->anchor) {
      QUERN_TRY(start(c, node->src[0], (const struct pass_index *const *)group->outs[0].at, false));
      continue;
    }
    size_t first = c->indices.n;
    if (!base_vec_reserve(c->heap, &c->indices, QUERN_MAX_RANK)) return QUERN_STATUS_MEMORY;
    FAULT(c, pass_index_of_source(group->space, node, i, c->indices.at + at, c->indices.at + first),
          "%s cannot be computed at a point", ir_ops[node->op].name);
    c->indices.n += (size_t)node->src[i]->rank;
    QUERN_TRY(meet(c, node->src[i], first, c->ends.at[c->visited.at[number]]));
  }
  return QUERN_STATUS_OK;
}

static quern_status check_walk(struct check *c) {
  const struct pass_group *group = c->group;
  c->visits.n = c->indices.n = c->visited.n = c->ins.n = c->stages.n = c->heads.n = 0;
  for (size_t i = 0; i < group->n_nodes; i++)
    if (!base_vec_push(c->heap, &c->heads, -1)) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < group->n_ins; i++)
    if (!base_vec_push(c->heap, &c->ins, false)) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < group->n_stages; i++)
    if (!base_vec_push(c->heap, &c->stages, false)) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < group->n_outs; i++)
    QUERN_TRY(start(c, group->outs[i].tensor, (const struct pass_index *const *)group->outs[i].at, true));
  for (size_t i = 0; i < c->visits.n; i++) QUERN_TRY(visit_sources(c, i));
  if (group->space->failed) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < group->n_ins; i++)
    FAULT(c, c->ins.at[i], "in %zu, %s, is not read", i, ir_ops[group->ins[i]->node->op].name);
  for (size_t i = 0; i < group->n_nodes; i++)
    FAULT(c, c->heads.at[i] >= 0, "node %zu, %s, is not used", i, ir_ops[group->nodes[i]->op].name);
  for (size_t i = 0; i < group->n_stages; i++) FAULT(c, c->stages.at[i], "stage %zu is not used", i);
  return QUERN_STATUS_OK;
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

static bool is_reduced(const struct ir_node *node, int axis) {
  if (node->op == IR_ARGREDUCE) return node->attrs->axis == axis;
  for (int i = 0; i < node->attrs->axes.n; i++)
    if (node->attrs->axes.at[i] == axis) return true;
  return false;
}

/* The reduced axes run through the inner variables in row-major order; the others are the result's. */
static quern_status check_reduction(struct check *c, const struct pass_stage *stage) {
  const struct pass_group *group = c->group;
  const struct ir_node *node = stage->node;
  const quern_tensor *s = node->src[0];
  FAULT(c, node->op == IR_REDUCE || node->op == IR_ARGREDUCE, "stage %s is no reduction", ir_ops[node->op].name);
  int64_t dims[QUERN_MAX_RANK];
  const struct pass_index *inner[QUERN_MAX_RANK];
  int n = 0, kept = 0;
  for (int k = 0; k < s->rank; k++) {
    if (is_reduced(node, k)) {
      dims[n] = s->dims[k];
      inner[n++] = stage->source[k];
    } else {
      FAULT(c, stage->source[k] == stage->result[kept], "a reduction's result and source differ in index %d", kept);
      kept++;
    }
  }
  const struct pass_index *flat = pass_index_flat(group->space, n, dims, inner);
  const struct pass_index *wanted = pass_index_of_vars(group->space, group->n_outer, (int)group->space->extents.n);
  FAULT(c, flat == wanted, "a reduction does not take its terms in the order of the inner variables");
  FAULT(c, ir_count(s) == points(group->space, (int)group->space->extents.n),
        "a reduction of %lld terms over other points", (long long)ir_count(s));
  return check_once(c, &node->out[0], (const struct pass_index *const *)stage->result, group->n_outer);
}

/* The reduced axes run through the outer variables in row-major order, the result's through the inner ones. */
static quern_status check_column_reduction(struct check *c, const struct pass_stage *cross) {
  const struct pass_group *group = c->group;
  const struct ir_node *node = cross->node;
  const quern_tensor *s = node->src[0];
  FAULT(c, node->op == IR_REDUCE, "column reduction %s is no reduction", ir_ops[node->op].name);
  int64_t dims[QUERN_MAX_RANK];
  const struct pass_index *outer[QUERN_MAX_RANK];
  int n = 0, kept = 0;
  for (int k = 0; k < s->rank; k++) {
    if (is_reduced(node, k)) {
      dims[n] = s->dims[k];
      outer[n++] = cross->source[k];
    } else {
      FAULT(c, cross->source[k] == cross->result[kept], "a reduction's result and source differ in index %d", kept);
      kept++;
    }
  }
  const struct pass_index *flat = pass_index_flat(group->space, n, dims, outer);
  FAULT(c, flat == pass_index_of_vars(group->space, 0, group->n_outer),
        "a reduction over the rows does not take its terms in the order of the outer variables");
  FAULT(c, ir_count(s) == points(group->space, (int)group->space->extents.n),
        "a reduction of %lld terms over other points", (long long)ir_count(s));
  bool out = false;
  for (size_t i = 0; i < group->n_outs; i++) out = out || group->outs[i].tensor == &node->out[0];
  for (size_t i = 0; i < group->n_nodes; i++)
    for (int k = 0; k < group->nodes[i]->n_src; k++)
      out = out || (c->ends.at[i] && group->nodes[i]->src[k] == &node->out[0]);
  FAULT(c, out, "the result of a reduction over the rows is not written");
  return check_inner(c, &node->out[0], (const struct pass_index *const *)cross->result);
}

/* The next variable is the index k of an operand. */
static bool is_variable(const struct pass_group *group, int var, const struct pass_index *e, int64_t dim) {
  return group->space->extents.at[var] == dim && e == pass_index_var(group->space, var);
}

static bool is_listed(struct ir_ints axes, int64_t axis) {
  for (int i = 0; i < axes.n; i++)
    if (axes.at[i] == axis) return true;
  return false;
}

static quern_status check_dot(struct check *c) {
  const struct pass_group *group = c->group;
  FAULT(c,
        group->n_stages == 1 && group->stages[0].node == group->anchor && group->anchor->op == IR_DOT &&
            group->stages[0].other != NULL,
        "a contraction has its anchor as its only stage");
  const struct ir_node *node = group->anchor;
  const struct pass_stage *stage = &group->stages[0];
  const struct ir_attrs *a = node->attrs;
  struct ir_ints batch[2] = {a->a_batch, a->b_batch}, sum[2] = {a->a_sum, a->b_sum};
  const struct pass_index **at[2] = {stage->source, stage->other};
  int var = 0, rank = 0;
  FAULT(c,
        group->vars[0] == batch[0].n && group->vars[3] == sum[0].n &&
            (int)group->space->extents.n == group->vars[0] + group->vars[1] + group->vars[2] + group->vars[3] &&
            group->vars[0] + group->vars[1] + group->vars[2] == node->out[0].rank &&
            group->n_outer == node->out[0].rank,
        "the variables of a contraction are not those of its axes");
  for (int i = 0; i < batch[0].n; i++, var++) {
    for (int s = 0; s < 2; s++)
      FAULT(c, is_variable(group, var, at[s][batch[s].at[i]], node->src[s]->dims[batch[s].at[i]]), "batch index %d", i);
    FAULT(c, stage->result[rank++] == at[0][batch[0].at[i]], "batch index %d of the result", i);
  }
  for (int s = 0; s < 2; s++) {
    for (int k = 0; k < node->src[s]->rank; k++) {
      if (is_listed(batch[s], k) || is_listed(sum[s], k)) continue;
      FAULT(c, is_variable(group, var++, at[s][k], node->src[s]->dims[k]), "index %d of operand %d", k, s);
      FAULT(c, stage->result[rank++] == at[s][k], "index %d of operand %d in the result", k, s);
    }
  }
  for (int i = 0; i < sum[0].n; i++, var++) {
    for (int s = 0; s < 2; s++)
      FAULT(c, is_variable(group, var, at[s][sum[s].at[i]], node->src[s]->dims[sum[s].at[i]]), "term index %d", i);
  }
  return QUERN_STATUS_OK;
}

/* ---- libraries --------------------------------------------------------------------------------------------------- */

/* The row-major number of a point in part `part` of the variables. */
static int64_t part_at(const struct pass_group *group, int part, const int64_t *point) {
  int first = 0;
  int64_t number = 0;
  for (int i = 0; i < part; i++) first += group->vars[i];
  for (int v = first; v < first + group->vars[part]; v++) number = number * group->space->extents.at[v] + point[v];
  return number;
}

/* Whether t at these indices is the matrix, rows and columns being those parts of the variables: both are affine, so that the first
** point and the last of each variable are enough. The order of terms is open. */
static bool is_matrix_at(const struct pass_group *group, const struct pass_matrix *m, const quern_tensor *t,
                         const struct pass_index *const *at, int down, int across) {
  int n = (int)group->space->extents.n;
  int64_t coef[PASS_MOST_VARS + QUERN_MAX_RANK], constant;
  const struct pass_index *flat = pass_index_flat(group->space, t->rank, t->dims, at);
  if (t != m->tensor || !pass_index_affine(group->space, flat, coef, &constant)) return false;
  for (int v = -1; v < n; v++) {
    int64_t point[PASS_MOST_VARS + QUERN_MAX_RANK] = {0};
    if (v >= 0) point[v] = group->space->extents.at[v] - 1;
    bool term = v >= n - group->vars[3] && group->vars[3] > 1 && across == 3;
    int64_t place = m->at + part_at(group, 0, point) * m->batch + part_at(group, down, point) * m->row +
                    part_at(group, across, point) * m->column;
    if (!term && value_at(flat, point) != place) return false;
  }
  return true;
}

/* Whether an operand is the matrix m, followed through the group's nodes to what it reads. */
static bool is_operand(const struct pass_group *group, const struct pass_matrix *m, int side) {
  const struct pass_stage *stage = &group->stages[0];
  const quern_tensor *t = stage->node->src[side];
  const struct pass_index *at[QUERN_MAX_RANK], *in[QUERN_MAX_RANK];
  for (int k = 0; k < t->rank; k++) at[k] = side == 0 ? stage->source[k] : stage->other[k];
  while (t != m->tensor) {
    bool computed = find_node(group, t->node) >= 0 && t->node->n_src == 1;
    if (!computed || !pass_index_of_source(group->space, t->node, 0, (const struct pass_index *const *)at, in))
      return false;
    t = t->node->src[0];
    for (int k = 0; k < t->rank; k++) at[k] = in[k];
  }
  return find_in(group, t) >= 0 && is_matrix_at(group, m, t, (const struct pass_index *const *)at, 1 + side, 3);
}

static const struct pass_out *find_out(const struct pass_group *group, const quern_tensor *t) {
  for (size_t i = 0; i < group->n_outs; i++)
    if (group->outs[i].tensor == t) return &group->outs[i];
  return NULL;
}

static bool is_result(const struct pass_group *group, const struct pass_matrix *m, bool swapped) {
  const struct pass_out *out = find_out(group, m->tensor);
  struct pass_matrix x = *m;
  if (swapped) x = (struct pass_matrix){m->tensor, m->at, m->batch, m->column, m->row};
  return out != NULL && is_matrix_at(group, &x, out->tensor, (const struct pass_index *const *)out->at, 1, 2);
}

/* The gemm is that of the anchor, as it stands or with its sides in each other's place; what it names is read or written. */
static quern_status check_gemm(struct check *c) {
  const struct pass_group *group = c->group;
  const struct pass_gemm *g = group->gemm;
  bool kept = g->aux.tensor != NULL && !g->back, is = false;
  for (int swapped = 0; swapped < 2 && !is; swapped++)
    is = is_operand(group, swapped ? &g->b : &g->a, 0) && is_operand(group, swapped ? &g->a : &g->b, 1) &&
         is_result(group, &g->y, swapped) && (!kept || is_result(group, &g->aux, swapped));
  FAULT(c, is, "the matrices of its library call are not those of the contraction");
  const quern_tensor *const reads[] = {g->add.tensor, g->back ? g->aux.tensor : NULL, g->bias};
  for (size_t i = 0; i < BASE_COUNT(reads); i++)
    FAULT(c, reads[i] == NULL || find_in(group, reads[i]) >= 0, "its library call reads what is no in of it");
  FAULT(c, group->n_outs == (kept ? 2u : 1u), "%zu outs of a library call", group->n_outs);
  return QUERN_STATUS_OK;
}

static quern_status check_view(struct check *c) {
  const struct pass_group *group = c->group;
  FAULT(c, group->n_ins == 1 && group->n_outs == 1 && group->space == NULL, "a view has one in and one out");
  FAULT(c, ir_bytes(group->ins[0]) == ir_bytes(group->outs[0].tensor), "a view changes the number of bytes");
  const quern_tensor *t = group->outs[0].tensor;
  size_t n = 0;
  for (; t != group->ins[0]; t = t->node->src[0], n++)
    FAULT(c, pass_is_view(t->node) && find_node(group, t->node) >= 0, "a view of %s", ir_ops[t->node->op].name);
  FAULT(c, n == group->n_nodes, "a view has other nodes");
  return QUERN_STATUS_OK;
}

static quern_status check_alone(struct check *c) {
  const struct pass_group *group = c->group;
  const struct ir_node *node = group->anchor;
  FAULT(c, group->n_nodes == 1 && group->nodes[0] == node, "its node is not its anchor");
  FAULT(c, pass_ops[node->op].kind == group->kind, "%s is of another kind", ir_ops[node->op].name);
  for (int i = 0; i < node->n_src; i++)
    FAULT(c, find_in(group, node->src[i]) >= 0, "source %d of %s is not among the ins", i, ir_ops[node->op].name);
  for (size_t i = 0; i < group->n_ins; i++) {
    bool used = false;
    for (int k = 0; k < node->n_src; k++) used = used || node->src[k] == group->ins[i];
    FAULT(c, used, "in %zu is no source", i);
  }
  FAULT(c, (int)group->n_outs == node->n_out, "%zu outs of %d results", group->n_outs, node->n_out);
  for (int i = 0; i < node->n_out; i++) FAULT(c, group->outs[i].tensor == &node->out[i], "out %d is another tensor", i);
  return QUERN_STATUS_OK;
}

/* Groups with a space: every out is written once, every index is right. */
static quern_status check_points(struct check *c) {
  const struct pass_group *group = c->group;
  FAULT(c, group->space != NULL, "it has no space");
  int n = (int)group->space->extents.n;
  FAULT(c, n <= PASS_MOST_VARS && group->n_outer <= n, "%d variables, %d of them outer", n, group->n_outer);
  for (size_t i = 0; i < group->n_stages && group->kind == PASS_KIND_REDUCE; i++) {
    FAULT(c, i == 0 || group->stages[i - 1].node->id < group->stages[i].node->id, "stages are out of order");
    QUERN_TRY(check_reduction(c, &group->stages[i]));
  }
  FAULT(c, group->n_column_reductions == 0 || group->kind == PASS_KIND_REDUCE, "column reductions without rows");
  QUERN_TRY(find_epilogues(c));
  for (size_t i = 0; i < group->n_column_reductions; i++) {
    FAULT(c, i == 0 || group->column_reductions[i - 1].node->id < group->column_reductions[i].node->id,
          "column reductions are out of order");
    QUERN_TRY(check_column_reduction(c, &group->column_reductions[i]));
  }
  if (group->kind == PASS_KIND_REDUCE)
    FAULT(c, group->n_stages > 0 && group->anchor == group->stages[0].node, "its anchor is not its first reduction");
  else if (group->kind == PASS_KIND_DOT)
    QUERN_TRY(check_dot(c));
  else
    FAULT(c, group->n_stages == 0 && group->n_outer == n, "stages or inner variables");
  for (size_t i = 0; i < group->n_outs; i++) {
    const struct pass_out *out = &group->outs[i];
    FAULT(c, out->at != NULL, "out %zu has no indices", i);
    int node = find_node(group, out->tensor->node);
    if (find_cross(group, out->tensor->node) != NULL || (node >= 0 && c->ends.at[node])) {
      QUERN_TRY(check_inner(c, out->tensor, (const struct pass_index *const *)out->at));
      continue;
    }
    bool outer = group->kind == PASS_KIND_DOT || ir_count(out->tensor) != points(group->space, n);
    QUERN_TRY(check_once(c, out->tensor, (const struct pass_index *const *)out->at, outer ? group->n_outer : n));
  }
  FAULT(c, group->gemm == NULL || group->kind == PASS_KIND_DOT, "a library call of no contraction");
  if (group->gemm != NULL) QUERN_TRY(check_gemm(c));
  return check_walk(c);
}

static quern_status check_group(struct check *c) {
  const struct pass_group *group = c->group;
  FAULT(c, (int)group->kind < PASS_KIND_COUNT && group->anchor != NULL, "kind or anchor");
  FAULT(c, group->n_outs > 0, "it writes nothing");
  FAULT(c, group->kind == PASS_KIND_CONTROL || group->n_ins + group->n_outs <= MOST_MEMORIES, "%zu ins and %zu outs",
        group->n_ins, group->n_outs);
  FAULT(c, group->speedup >= group->threshold, "estimated %g, below %g", group->speedup, group->threshold);
  for (size_t i = 1; i < group->n_nodes; i++)
    FAULT(c, group->nodes[i - 1]->id < group->nodes[i]->id, "nodes are out of order");
  for (size_t i = 0; i < group->n_ins; i++) {
    const quern_tensor *t = group->ins[i];
    FAULT(c, pass_is_leaf(t->node) || is_written(c, t), "it reads the result of %s before it is written",
          ir_ops[t->node->op].name);
    FAULT(c, find_in(group, t) == (int)i, "in %zu is there twice", i);
  }
  for (size_t i = 0; i < group->n_outs; i++) {
    quern_tensor *t = group->outs[i].tensor;
    FAULT(c, !pass_is_leaf(t->node) && find_node(group, t->node) >= 0, "it writes what it does not compute");
    FAULT(c, !is_written(c, t), "the result of %s is written twice", ir_ops[t->node->op].name);
    if (!base_map_add(&c->written, hash_of(t), t)) return QUERN_STATUS_MEMORY;
  }
  if (group->kind == PASS_KIND_VIEW) return check_view(c);
  bool alone = group->kind == PASS_KIND_SORT || group->kind == PASS_KIND_SCATTER || group->kind == PASS_KIND_CONTROL ||
               group->kind == PASS_KIND_COMPOSITE;
  return alone ? check_alone(c) : check_points(c);
}

quern_status pass_groups_verify(const struct pass_groups *groups, const struct pass_graph *graph) {
  struct check c = {.groups = groups, .heap = &graph->ctx->heap};
  base_map_init(&c.written, c.heap);
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < groups->groups.n && status == QUERN_STATUS_OK; i++) {
    c.number = i;
    c.group = groups->groups.at[i];
    status = check_group(&c);
  }
  for (size_t i = 0; i < graph->n_roots && status == QUERN_STATUS_OK; i++) {
    const quern_tensor *root = graph->roots[i];
    if (!pass_is_leaf(root->node) && !is_written(&c, root))
      status = base_error(QUERN_STATUS_INTERNAL, "groups: root %zu, the result of %s, is not written", i,
                          ir_ops[root->node->op].name);
  }
  base_map_fini(&c.written);
  base_vec_fini(c.heap, &c.visits);
  base_vec_fini(c.heap, &c.indices);
  base_vec_fini(c.heap, &c.heads);
  base_vec_fini(c.heap, &c.visited);
  base_vec_fini(c.heap, &c.ins);
  base_vec_fini(c.heap, &c.stages);
  base_vec_fini(c.heap, &c.ends);
  return status;
}
