/* sched/reduce_plan.c -- in which pass over its row each stage and out of a REDUCE group is computed, and what is kept
** keeps: a pass needs results of earlier passes only; what is kept is dearer to compute than to store and load
** tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

/* ---- passes ---------------------------------------------------------------------------------------------- */

static struct reduce_about *find_about(const struct pass_group *group, struct reduce_about *about,
                                       const struct ir_node *node) {
  size_t i = pass_group_find(group, node);
  return i < group->n_nodes ? &about[i] : NULL;
}

static bool is_stage(const struct ir_node *node) { return node->op == IR_REDUCE || node->op == IR_ARGREDUCE; }

/* The number of an in, or -1. */
static int find_in(const struct pass_group *group, const quern_tensor *t) {
  for (size_t i = 0; i < group->n_ins; i++)
    if (group->ins[i] == t) return (int)i;
  return -1;
}

static struct reduce_about about_tensor(const struct pass_group *group, struct reduce_about *about,
                                        const quern_tensor *t) {
  int in = find_in(group, t);
  struct reduce_about *found = in >= 0 ? NULL : find_about(group, about, t->node);
  if (in >= 0) return (struct reduce_about){.reads = UINT64_C(1) << BASE_MIN(in, 63)};
  return found != NULL ? *found : (struct reduce_about){.level = 0};
}

int reduce_level(const struct reduce *rd, const quern_tensor *t) {
  return about_tensor(rd->job->group, rd->about, t).level;
}

/* Whether a node has more elements than rows: others are computed once a row, and weigh nothing. */
static bool is_wide(const struct pass_group *group, const struct ir_node *node) {
  return ir_count(&node->out[0]) > ir_count(&group->stages[0].node->out[0]);
}

static void describe_nodes(const struct pass_group *group, struct reduce_about *about) {
  for (size_t i = 0; i < group->n_nodes; i++) {
    const struct ir_node *node = group->nodes[i];
    about[i] = (struct reduce_about){.level = 0, .wait = about[i].wait};
    bool wide = is_wide(group, node);
    if (wide && !is_stage(node)) about[i].weight = sched_weight(node->op);
    for (int s = 0; s < node->n_src; s++) {
      struct reduce_about source = about_tensor(group, about, node->src[s]);
      about[i].level = BASE_MAX(about[i].level, source.level);
      if (wide && !is_stage(node)) about[i].weight += source.weight;
      if (!is_stage(node)) about[i].reads |= source.reads;
    }
    if (is_stage(node)) about[i].level = BASE_MAX(about[i].level, about[i].wait) + 1;
  }
}

static bool uses_inner(const struct reduce *rd, const struct sched_point *point) {
  for (int i = rd->nest.n_outer; i < rd->nest.n_loops; i++)
    if (sched_point_uses(point, rd->nest.loops[i].var)) return true;
  return false;
}

static bool uses_outer(const struct reduce *rd, const struct sched_point *point) {
  for (int i = 0; i < rd->nest.n_outer; i++)
    if (sched_point_uses(point, rd->nest.loops[i].var)) return true;
  return false;
}

static struct reduce_stage describe_stage(struct reduce *rd, const struct ir_node *node,
                                          const struct pass_index **source, const struct pass_index **result) {
  quern_dtype dtype = node->src[0]->dtype;
  bool arg = node->op == IR_ARGREDUCE;
  enum ir_reduce reduce = node->attrs->reduce;
  quern_dtype acc = arg && dtype == QUERN_DTYPE_BOOL ? QUERN_DTYPE_I32 : kern_acc_dtype(dtype);
  bool bits =
      !arg && reduce == IR_REDUCE_MAX && node->src[0]->node->op == IR_ABS && acc == QUERN_DTYPE_F32 && rd->count > 0;
  if (bits) acc = QUERN_DTYPE_I32;
  struct reduce_stage stage = {
      .source = node->src[0],
      .result = &node->out[0],
      .source_at = source,
      .result_at = result,
      .reduce = reduce,
      .arg = arg,
      .ordered = !arg && base_dtype_is(dtype, BASE_FLOAT) && (reduce == IR_SUM || reduce == IR_PROD),
      .bits = bits,
      .acc = acc,
      .n_acc = kern_accumulators(acc),
      .pass = reduce_level(rd, &node->out[0]) - 1,
  };
  rd->n_passes = BASE_MAX(rd->n_passes, stage.pass + 1);
  return stage;
}

/* The place of an element among those of its row must be the same for all stages whose order matters. */
static quern_status check_order(const struct reduce *rd) {
  const struct pass_group *group = rd->job->group;
  struct pass_space *space = group->space;
  const struct pass_index *place = NULL, *at[QUERN_MAX_RANK];
  int64_t dims[QUERN_MAX_RANK];
  for (size_t i = 0; i < group->n_stages; i++) {
    const struct ir_node *node = group->stages[i].node;
    struct ir_ints axes = rd->stages[i].arg ? (struct ir_ints){1, &node->attrs->axis} : node->attrs->axes;
    bool listed[QUERN_MAX_RANK] = {false};
    int n = 0;
    for (int k = 0; k < axes.n; k++) listed[axes.at[k]] = true;
    for (int k = 0; k < node->src[0]->rank; k++) {
      if (!listed[k]) continue;
      dims[n] = node->src[0]->dims[k];
      at[n++] = group->stages[i].source[k];
    }
    if (!rd->stages[i].arg && !rd->stages[i].ordered) continue;
    const struct pass_index *own = pass_index_flat(space, n, dims, at);
    if (place == NULL) place = own;
    QUERN_CHECK(own == place || space->failed, INTERNAL,
                "schedule: stage %zu of a group runs over its elements in another order than the first", i);
  }
  return space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* ---- stages that can wait -------------------------------------------------------------------------------- */

/* The pass of an out or a reduction of the group as levels are now, and what that pass needs for it. */
struct need {
  const struct ir_node *node; /* of a reduction, or NULL */
  int pass;
  uint64_t reads;
};

/* All of them: stages, fused column reductions, outs that are stored in passes. */
static size_t find_needs(const struct reduce *rd, struct need *needs) {
  const struct pass_group *group = rd->job->group;
  size_t n = 0;
  for (size_t i = 0; i < rd->n_stages + rd->n_column_reductions; i++) {
    const struct ir_node *node =
        i < rd->n_stages ? group->stages[i].node : group->column_reductions[i - rd->n_stages].node;
    struct reduce_about source = about_tensor(group, rd->about, node->src[0]);
    needs[n++] = (struct need){node, reduce_level(rd, &node->out[0]) - 1, source.reads};
  }
  for (size_t i = 0; i < group->n_outs; i++) {
    struct sched_point point = {group->outs[i].tensor, rd->nest.outs[i]};
    struct reduce_about about = about_tensor(group, rd->about, point.tensor);
    if (uses_inner(rd, &point) && (rd->n_column_reductions == 0 || uses_outer(rd, &point)))
      needs[n++] = (struct need){NULL, about.level, about.reads};
  }
  return n;
}

/* Ins that pass q would have to read for need i alone. */
static int count_more(size_t n, const struct need *needs, size_t i, int q) {
  uint64_t reads = 0;
  for (size_t j = 0; j < n; j++)
    if (j != i && needs[j].pass == q) reads |= needs[j].reads;
  return __builtin_popcountll(needs[i].reads & ~reads);
}

/* Lets reduction i of the needs wait for pass q; false, as it was, when something else would have to wait for it. */
static bool wait_for(struct reduce *rd, size_t n, const struct need *needs, struct need *then, size_t i, int q) {
  struct reduce_about *about = find_about(rd->job->group, rd->about, needs[i].node);
  int before = about->wait;
  bool same = true;
  about->wait = q;
  describe_nodes(rd->job->group, rd->about);
  (void)find_needs(rd, then);
  for (size_t j = 0; j < n; j++) same = same && (j == i || then[j].pass == needs[j].pass);
  if (same) return true;
  about->wait = before;
  describe_nodes(rd->job->group, rd->about);
  return false;
}

/* The pass of need i, at most `last`, that reads most of what it needs for others: of a stage the first such, of a fused column reduction
** the last, where its accumulators may be shared by several rows. */
static void choose_wait(struct reduce *rd, size_t n, struct need *needs, size_t i, int last) {
  int least = count_more(n, needs, i, needs[i].pass);
  for (int q = needs[i].pass + 1; q <= last; q++) {
    int more = count_more(n, needs, i, q);
    if (i < rd->n_stages ? more >= least : more > least) continue;
    if (!wait_for(rd, n, needs, needs + n, i, q)) return;
    least = more;
    needs[i].pass = q;
  }
}

/* A reduction whose result is not needed at once may wait. */
static quern_status choose_waits(struct reduce *rd) {
  size_t most = rd->n_stages + rd->n_column_reductions + rd->job->group->n_outs;
  struct need *needs = base_arena_alloc(rd->arena, 2 * most * sizeof *needs);
  if (needs == NULL) return QUERN_STATUS_MEMORY;
  int last = 0;
  size_t n = find_needs(rd, needs);
  for (size_t j = 0; j < n; j++) last = BASE_MAX(last, needs[j].pass);
  for (size_t i = rd->n_stages; i-- > 0;) choose_wait(rd, n, needs, i, last);
  for (size_t i = rd->n_stages; i < rd->n_stages + rd->n_column_reductions; i++) choose_wait(rd, n, needs, i, last);
  return QUERN_STATUS_OK;
}

/* ---- all of it ------------------------------------------------------------------------------------------- */

quern_status reduce_describe(struct reduce *rd) {
  const struct pass_group *group = rd->job->group;
  for (size_t i = 0; i < group->n_nodes; i++) rd->about[i].wait = 0;
  describe_nodes(group, rd->about);
  QUERN_TRY(choose_waits(rd));
  rd->n_passes = 0;
  for (size_t i = 0; i < rd->n_stages; i++)
    rd->stages[i] = describe_stage(rd, group->stages[i].node, rd->nest.sources[i], rd->nest.results[i]);
  for (size_t i = 0; i < rd->n_column_reductions; i++) {
    int work = rd->column_reductions[i].work;
    rd->column_reductions[i] =
        describe_stage(rd, group->column_reductions[i].node, rd->nest.column_sources[i], rd->nest.column_results[i]);
    rd->column_reductions[i].work = work;
  }
  for (size_t i = 0; i < group->n_outs; i++) {
    struct sched_point point = {group->outs[i].tensor, rd->nest.outs[i]};
    rd->out_pass[i] = uses_inner(rd, &point) ? about_tensor(group, rd->about, point.tensor).level : -1;
    if (ir_count(point.tensor) == 0) rd->out_pass[i] = -2;
    if (rd->out_pass[i] >= 0 && rd->n_column_reductions > 0 && !uses_outer(rd, &point)) rd->out_pass[i] = -3;
    rd->n_passes = BASE_MAX(rd->n_passes, rd->out_pass[i] + 1);
  }
  rd->fixed = base_arena_alloc(rd->arena, (size_t)rd->n_passes * sizeof *rd->fixed);
  rd->steady = base_arena_alloc(rd->arena, (size_t)rd->n_passes * sizeof *rd->steady);
  if (rd->fixed == NULL || rd->steady == NULL) return QUERN_STATUS_MEMORY;
  return check_order(rd);
}

/* ---- what later passes need again ------------------------------------------------------------------------ */

struct keeping {
  struct reduce *rd;
  struct sched_walk *walks; /* one per pass */
  int pass;
  struct sched_points found; /* of keeps */
  BASE_VEC(int) made;
  bool failed;
};

static bool find_same(const void *item, const void *key) { return sched_point_same(item, key); }

/* The out that has this point and is stored in this pass, or -1. */
static int find_out(const struct reduce *rd, const struct sched_point *point, int pass) {
  const struct pass_group *group = rd->job->group;
  for (size_t i = 0; i < group->n_outs; i++) {
    struct sched_point out = {group->outs[i].tensor, rd->nest.outs[i]};
    if (rd->out_pass[i] == pass && sched_point_same(&out, point)) return (int)i;
  }
  return -1;
}

/* Computing this much is dearer than a store and a load. */
enum { DEAR = 10 };

static bool visit_again(void *user, const struct sched_point *point) {
  struct keeping *k = user;
  struct reduce *rd = k->rd;
  if (!uses_inner(rd, point)) return false;
  double weight = about_tensor(rd->job->group, rd->about, point->tensor).weight;
  uint64_t hash = sched_point_hash(point->tensor, point->at);
  for (int q = 0; q < k->pass; q++) {
    if (base_map_find(&k->walks[q].seen, hash, find_same, point) == NULL) continue;
    if (weight < (find_out(rd, point, q) >= 0 ? 1 : DEAR)) break;
    for (size_t i = 0; i < k->found.n; i++)
      if (sched_point_same(&k->found.at[i], point)) return false;
    if (!sched_points_add(&rd->nest, &k->found, point) || !base_vec_push(&rd->job->ctx->heap, &k->made, q))
      k->failed = true;
    return false;
  }
  return true;
}

static void walk_passes(struct keeping *k) {
  struct reduce *rd = k->rd;
  const struct pass_group *group = rd->job->group;
  for (int q = 0; q < rd->n_passes; q++) {
    k->pass = q;
    for (size_t i = 0; i < rd->n_stages; i++)
      if (rd->stages[i].pass == q)
        sched_walk_run(&k->walks[q], rd->stages[i].source, rd->stages[i].source_at, visit_again, k);
    for (size_t i = 0; i < rd->n_column_reductions; i++)
      if (rd->column_reductions[i].pass == q)
        sched_walk_run(&k->walks[q], rd->column_reductions[i].source, rd->column_reductions[i].source_at, visit_again,
                       k);
    for (size_t i = 0; i < group->n_outs; i++)
      if (rd->out_pass[i] == q) sched_walk_run(&k->walks[q], group->outs[i].tensor, rd->nest.outs[i], visit_again, k);
    k->failed = k->failed || k->walks[q].failed;
  }
}

quern_status reduce_find_keeps(struct reduce *rd, int64_t room) {
  struct keeping k = {.rd = rd};
  rd->n_keeps = 0;
  k.walks = base_arena_alloc(rd->arena, (size_t)rd->n_passes * sizeof *k.walks);
  if (k.walks == NULL) return QUERN_STATUS_MEMORY;
  for (int q = 0; q < rd->n_passes; q++) sched_walk_init(&k.walks[q], &rd->nest);
  walk_passes(&k);
  for (int q = 0; q < rd->n_passes; q++) sched_walk_fini(&k.walks[q]);
  rd->keeps = base_arena_alloc(rd->arena, (k.found.n + 1) * sizeof *rd->keeps);
  int64_t bytes = 0, limit = rd->job->target->l2_bytes / 2;
  for (size_t i = 0; rd->keeps != NULL && !k.failed && i < k.found.n; i++) {
    struct reduce_keep keep = {
        .point = k.found.at[i], .made = k.made.at[i], .out = find_out(rd, &k.found.at[i], k.made.at[i])};
    int64_t more = room * (int64_t)base_dtypes[keep.point.tensor->dtype].size;
    if (keep.out < 0 && (room < 0 || bytes + more > limit)) continue;
    if (keep.out < 0) bytes += more;
    rd->keeps[rd->n_keeps++] = keep;
  }
  bool failed = k.failed || rd->keeps == NULL;
  base_vec_fini(&rd->job->ctx->heap, &k.made);
  return failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* ---- what stays the same --------------------------------------------------------------------------------- */

static quern_status find_invariants(struct reduce *rd, int n, const int *vars, struct sched_points *points) {
  const struct pass_group *group = rd->job->group;
  for (size_t i = 0; i < rd->n_stages; i++)
    QUERN_TRY(sched_invariants(&rd->nest, rd->stages[i].source, rd->stages[i].source_at, n, vars,
                               &points[rd->stages[i].pass]));
  for (size_t i = 0; i < rd->n_column_reductions; i++)
    QUERN_TRY(sched_invariants(&rd->nest, rd->column_reductions[i].source, rd->column_reductions[i].source_at, n, vars,
                               &points[rd->column_reductions[i].pass]));
  for (size_t i = 0; i < group->n_outs; i++) {
    if (rd->out_pass[i] < 0) continue;
    QUERN_TRY(sched_invariants(&rd->nest, group->outs[i].tensor, rd->nest.outs[i], n, vars, &points[rd->out_pass[i]]));
  }
  return QUERN_STATUS_OK;
}

quern_status reduce_find_fixed(struct reduce *rd) {
  int vars[SCHED_MOST_VARS], n = 0;
  if (rd->count == 0) return QUERN_STATUS_OK; /* nothing is read */
  for (int i = rd->nest.n_outer; i < rd->nest.n_loops; i++) vars[n++] = rd->nest.loops[i].var;
  QUERN_TRY(find_invariants(rd, n, vars, rd->fixed));
  if (rd->vector < 0) return QUERN_STATUS_OK;
  QUERN_TRY(find_invariants(rd, 1, &rd->nest.loops[rd->vector].var, rd->steady));
  for (int q = 0; q < rd->n_passes; q++) { /* what stays the same along the rows as well is fixed */
    struct sched_points *steady = &rd->steady[q];
    size_t kept = 0;
    for (size_t i = 0; i < steady->n; i++)
      if (uses_inner(rd, &steady->at[i])) steady->at[kept++] = steady->at[i];
    steady->n = kept;
  }
  return QUERN_STATUS_OK;
}
