/* sched/nest.c -- the loop nest over a group's space: merging variables, and what a point costs
** keeps: indices are rewritten from the group's own, so that merging is never applied twice
** tests: tests/sched/test_map.c, tests/sched/test_reduce.c
*/
#include "sched/nest.h"

/* ---- making ---------------------------------------------------------------------------------------------- */

/* One more than the last variable that some of these indices use. */
static int last_variable(const struct pass_space *space, int rank, const struct pass_index **at, int least) {
  for (int k = 0; k < rank; k++)
    for (int v = least; v < SCHED_MOST_VARS && (size_t)v < space->extents.n; v++)
      if (pass_index_uses(at[k], v)) least = v + 1;
  return least;
}

/* The variables of the group's own: its space may have more, of nests that were made before. Those of extent 1 are in
** no index. */
static int group_variables(const struct pass_group *group) {
  int n = 0;
  for (size_t i = 0; i < group->n_outs; i++)
    n = last_variable(group->space, group->outs[i].tensor->rank, group->outs[i].at, n);
  for (size_t i = 0; i < group->n_stages; i++)
    n = last_variable(group->space, group->stages[i].node->src[0]->rank, group->stages[i].source, n);
  for (size_t i = 0; i < group->n_column_reductions; i++)
    n = last_variable(group->space, group->column_reductions[i].node->src[0]->rank, group->column_reductions[i].source,
                      n);
  return n;
}

static const struct pass_index **rewrite(struct sched_nest *nest, int rank, const struct pass_index **at,
                                         const struct pass_index *const *by) {
  const struct pass_index **made = base_arena_alloc(nest->arena, (size_t)(rank + 1) * sizeof(*made));
  for (int k = 0; made != NULL && k < rank; k++) made[k] = pass_index_replace(nest->job->group->space, at[k], by);
  return made;
}

/* The group's indices in the variables of the loops. */
static quern_status rewrite_all(struct sched_nest *nest) {
  const struct pass_group *group = nest->job->group;
  struct pass_space *space = group->space;
  const struct pass_index *by[SCHED_MOST_VARS] = {NULL};
  int64_t extents[SCHED_MOST_VARS];
  bool plain = true;
  for (int i = 0; i < nest->n_loops; i++) {
    const struct sched_loop *loop = &nest->loops[i];
    if (loop->var < nest->n_group) continue;
    int n = loop->last - loop->first + 1;
    for (int k = 0; k < n; k++) extents[k] = space->extents.at[loop->first + k];
    const struct pass_index *flat = pass_index_const(space, loop->start);
    flat = pass_index_add(space, pass_index_var(space, loop->var), flat);
    pass_index_unflat(space, flat, n, extents, by + loop->first);
    plain = false;
  }
  for (size_t i = 0; i < group->n_outs; i++) {
    nest->outs[i] = plain ? group->outs[i].at : rewrite(nest, group->outs[i].tensor->rank, group->outs[i].at, by);
    if (nest->outs[i] == NULL) return QUERN_STATUS_MEMORY;
  }
  for (size_t i = 0; i < group->n_stages + group->n_column_reductions; i++) {
    bool cross = i >= group->n_stages;
    size_t k = cross ? i - group->n_stages : i;
    const struct pass_stage *stage = cross ? &group->column_reductions[k] : &group->stages[k];
    const struct pass_index **source = stage->source, **result = stage->result;
    if (!plain) {
      source = rewrite(nest, stage->node->src[0]->rank, source, by);
      result = rewrite(nest, stage->node->out[0].rank, result, by);
    }
    if (source == NULL || result == NULL) return QUERN_STATUS_MEMORY;
    (cross ? nest->column_sources : nest->sources)[k] = source;
    (cross ? nest->column_results : nest->results)[k] = result;
  }
  return space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

quern_status sched_nest_init(struct sched_nest *nest, struct sched_job *job, struct base_arena *arena) {
  const struct pass_group *group = job->group;
  *nest = (struct sched_nest){.job = job, .arena = arena, .n_group = group_variables(group)};
  for (int v = 0; v < nest->n_group; v++) {
    int64_t extent = group->space->extents.at[v];
    if (extent == 1) continue;
    nest->loops[nest->n_loops++] = (struct sched_loop){.var = v, .extent = extent, .first = v, .last = v};
    if (group->kind == PASS_KIND_REDUCE && v < group->n_outer) nest->n_outer = nest->n_loops;
  }
  nest->outs = base_arena_alloc(arena, (group->n_outs + 1) * sizeof(*nest->outs));
  nest->sources = base_arena_alloc(arena, (group->n_stages + 1) * sizeof(*nest->sources));
  nest->results = base_arena_alloc(arena, (group->n_stages + 1) * sizeof(*nest->results));
  nest->column_sources = base_arena_alloc(arena, 2 * (group->n_column_reductions + 1) * sizeof(*nest->column_sources));
  if (nest->outs == NULL || nest->sources == NULL || nest->results == NULL || nest->column_sources == NULL)
    return QUERN_STATUS_MEMORY;
  nest->column_results = nest->column_sources + group->n_column_reductions + 1;
  return rewrite_all(nest);
}

/* ---- merging --------------------------------------------------------------------------------------------- */

quern_status sched_nest_copy(struct sched_nest *copy, const struct sched_nest *nest) {
  const struct pass_group *group = nest->job->group;
  *copy = *nest;
  copy->outs = base_arena_copy(nest->arena, nest->outs, (group->n_outs + 1) * sizeof(*nest->outs));
  copy->sources = base_arena_copy(nest->arena, nest->sources, (group->n_stages + 1) * sizeof(*nest->sources));
  copy->results = base_arena_copy(nest->arena, nest->results, (group->n_stages + 1) * sizeof(*nest->results));
  size_t n_column_points = 2 * (group->n_column_reductions + 1);
  copy->column_sources =
      base_arena_copy(nest->arena, nest->column_sources, n_column_points * sizeof(*nest->column_sources));
  if (copy->outs == NULL || copy->sources == NULL || copy->results == NULL || copy->column_sources == NULL)
    return QUERN_STATUS_MEMORY;
  copy->column_results = copy->column_sources + group->n_column_reductions + 1;
  return QUERN_STATUS_OK;
}

quern_status sched_nest_merge(struct sched_nest *nest, int first, int last) {
  if (first >= last) return QUERN_STATUS_OK;
  int64_t extent = sched_nest_count(nest, first, last + 1, -1);
  int var = pass_space_add(nest->job->group->space, extent);
  if (nest->job->group->space->failed) return QUERN_STATUS_MEMORY;
  struct sched_loop merged = {
      .var = var, .extent = extent, .first = nest->loops[first].first, .last = nest->loops[last].last};
  int gone = last - first;
  nest->loops[first] = merged;
  for (int i = last + 1; i < nest->n_loops; i++) nest->loops[i - gone] = nest->loops[i];
  nest->n_loops -= gone;
  if (first < nest->n_outer) nest->n_outer -= gone;
  return rewrite_all(nest);
}

quern_status sched_nest_collapse(struct sched_nest *nest, int first, int last) {
  struct sched_trial plain, merged;
  struct sched_nest other;
  if (last - first < 2) return QUERN_STATUS_OK;
  QUERN_TRY(sched_nest_try(&plain, nest, -1, 1));
  QUERN_TRY(sched_nest_copy(&other, nest));
  QUERN_TRY(sched_nest_merge(&other, first, last - 1));
  QUERN_TRY(sched_nest_try(&merged, &other, -1, 1));
  if (merged.valid && merged.divisions <= plain.divisions) {
    *nest = other;
    return QUERN_STATUS_OK;
  }
  for (int i = last - 2; last - first > 2 && i >= first; i--) {
    QUERN_TRY(sched_nest_copy(&other, nest));
    QUERN_TRY(sched_nest_merge(&other, i, i + 1));
    QUERN_TRY(sched_nest_try(&merged, &other, -1, 1));
    if (!merged.valid || merged.divisions > plain.divisions) continue;
    *nest = other;
    plain = merged;
  }
  return QUERN_STATUS_OK;
}

quern_status sched_nest_narrow(struct sched_nest *nest, int loop, int64_t start, int64_t extent) {
  struct sched_loop *l = &nest->loops[loop];
  QUERN_ASSERT(l->start == 0 && start >= 0 && start + extent <= l->extent);
  l->var = pass_space_add(nest->job->group->space, extent);
  if (nest->job->group->space->failed) return QUERN_STATUS_MEMORY;
  l->start = start;
  l->extent = extent;
  return rewrite_all(nest);
}

/* ---- trials ---------------------------------------------------------------------------------------------- */

/* About how many machine instructions one of the kernel's takes; next to vectors, scalars cost little. */
static double inst_cost(const struct kern_inst *inst, int vector_bytes, double scalar) {
  double registers = (double)(inst->lanes * (int)base_dtypes[inst->dtype].size) / vector_bytes;
  double wide = inst->lanes > 1 ? BASE_MAX(registers, 1) : scalar;
  switch ((int)inst->op) {
  case KERN_CONST:
  case KERN_LANE:
  case KERN_SPLAT:
  case KERN_MEM:
  case KERN_TASK: return 0;
  case KERN_GATHER: return 1.5 * inst->lanes;
  case KERN_EXTRACT: return 1;
  case KERN_STORE: return 1;
  case KERN_DIV:
  case KERN_MOD: return base_dtype_is(inst->dtype, BASE_FLOAT) || inst->lanes == 1 ? 5 * wide : 6 * inst->lanes;
  case KERN_SQRT: return 5 * wide;
  case KERN_IDIV:
  case KERN_IMOD: return inst->lanes == 1 ? 0.5 : 3 * inst->lanes;
  default: return wide;
  }
}

static void weigh(struct sched_trial *trial, const struct kern_fn *fn, int vector_bytes, double scalar) {
  for (size_t i = 0; i < fn->insts.n; i++) {
    const struct kern_inst *inst = &fn->insts.at[i];
    trial->cost += inst_cost(inst, vector_bytes, scalar);
    trial->divisions += inst->op == KERN_IDIV || inst->op == KERN_IMOD;
    trial->scattered += inst->op == KERN_GATHER || inst->op == KERN_EXTRACT;
    trial->not_spmd = trial->not_spmd || inst->op == KERN_IF || inst->op == KERN_EXTRACT || inst->op == KERN_SHUFFLE;
  }
  trial->insts = (int)fn->insts.n;
}

/* Builds every stage's source and every out at one point, where each variable has a value of its own; what a stage
** gives is taken as some constant. */
static void build_point(const struct sched_nest *nest, struct kern_builder *b, struct kern_values *values, int vector,
                        int lanes) {
  const struct pass_group *group = nest->job->group;
  int var = vector >= 0 ? nest->loops[vector].var : -1;
  for (int v = 0; v < nest->n_group; v++) kern_values_set(values, v, kern_task(b), 1, KERN_NONE);
  for (int i = 0; i < nest->n_loops; i++) {
    bool wide = i == vector && lanes > 1;
    kern_values_set(values, nest->loops[i].var, kern_task(b), wide ? lanes : 1, KERN_NONE);
  }
  for (size_t i = 0; i < group->n_stages + group->n_column_reductions; i++) {
    bool cross = i >= group->n_stages;
    size_t k = cross ? i - group->n_stages : i;
    const struct ir_node *node = cross ? group->column_reductions[k].node : group->stages[k].node;
    const quern_tensor *result = &node->out[0], *source = node->src[0];
    struct sched_point point = {result, cross ? nest->column_results[k] : nest->results[k]};
    (void)kern_values_get(values, source, source->rank, cross ? nest->column_sources[k] : nest->sources[k]);
    int n = var >= 0 && sched_point_uses(&point, var) ? lanes : 1;
    kern_values_bind(values, result, result->rank, point.at, kern_const_bits(b, result->dtype, n, 0));
  }
  for (size_t i = 0; i < group->n_outs; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    kern_id x = kern_values_get(values, t, t->rank, nest->outs[i]);
    sched_store_at(nest->job, b, values, i, nest->outs[i], x, KERN_NONE);
  }
}

/* Calls look with the function of one point, built in a kernel of its own. valid: whether it could be built. */
static quern_status with_point(const struct sched_nest *nest, int vector, int lanes, bool *valid, void *user,
                               void (*look)(void *user, const struct kern_fn *fn)) {
  struct kern *kern = NULL;
  struct kern_values *values = NULL;
  QUERN_TRY(kern_new(&kern, &nest->job->ctx->heap));
  for (int i = 0; i < nest->job->kern->n_mems; i++) {
    const struct kern_mem *mem = &nest->job->kern->mems[i];
    (void)kern_add_mem(kern, mem->dtype, mem->role, mem->count);
  }
  struct kern_builder b = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(1))};
  struct sched_job job = *nest->job;
  struct sched_nest copy = *nest;
  job.kern = kern;
  copy.job = &job;
  quern_status status = kern->failed;
  if (status == QUERN_STATUS_OK) status = sched_values(&job, &b, &values);
  if (status == QUERN_STATUS_OK) {
    build_point(&copy, &b, values, vector, lanes);
    status = job.group->space->failed ? QUERN_STATUS_MEMORY : kern->failed;
  }
  *valid = status == QUERN_STATUS_OK;
  if (*valid) look(user, b.fn);
  kern_values_free(values);
  kern_free(kern);
  return status == QUERN_STATUS_INTERNAL ? QUERN_STATUS_OK : status;
}

struct weighing {
  struct sched_trial *trial;
  int vector_bytes;
  double scalar;
};

static void look_weigh(void *user, const struct kern_fn *fn) {
  struct weighing *w = user;
  weigh(w->trial, fn, w->vector_bytes, w->scalar);
}

quern_status sched_nest_try(struct sched_trial *trial, const struct sched_nest *nest, int vector, int lanes) {
  *trial = (struct sched_trial){.cost = 0};
  struct weighing w = {trial, BASE_MAX(nest->job->target->vector_bytes, 8), lanes > 1 ? 0.1 : 1};
  return with_point(nest, vector, lanes, &trial->valid, &w, look_weigh);
}

/* ---- taking over memory ---------------------------------------------------------------------------------- */

struct aliasing {
  struct sched_nest *nest;
  const bool *may;
};

/* Whether every load of memory `in` is at instruction `index`, and there is one. */
static bool read_only_at(const struct kern_fn *fn, int in, kern_id index) {
  bool any = false;
  for (size_t i = 0; i < fn->insts.n; i++) {
    const struct kern_inst *inst = &fn->insts.at[i];
    if (inst->op != KERN_LOAD && inst->op != KERN_GATHER) continue;
    const struct kern_inst *mem = &fn->insts.at[inst->arg[0]];
    if (mem->op != KERN_MEM || mem->imm != in) continue;
    if (inst->op == KERN_GATHER || inst->arg[1] != index) return false;
    any = true;
  }
  return any;
}

/* The instruction that is the index of the store to an out. */
static kern_id store_index(const struct kern_fn *fn, int out) {
  for (size_t i = 0; i < fn->insts.n; i++) {
    const struct kern_inst *inst = &fn->insts.at[i];
    if (inst->op == KERN_STORE && fn->insts.at[inst->arg[0]].imm == out) return inst->arg[1];
  }
  return KERN_NONE;
}

static bool same_kind(const struct kern_mem *a, const struct kern_mem *b) {
  return a->dtype == b->dtype && a->count == b->count;
}

void sched_find_in_place(struct kern_mem *mems, int n_ins, int n_outs, const bool *may, const struct kern_fn *fn) {
  bool taken[KERN_MAX_MEMS] = {false};
  for (int out = n_ins; out < n_ins + n_outs; out++) {
    kern_id index = store_index(fn, out);
    if (may != NULL && !may[out - n_ins]) continue;
    mems[out].in_place_class = out;
    for (int other = n_ins; other < out; other++)
      if (mems[other].in_place_class == other && same_kind(&mems[other], &mems[out]) && store_index(fn, other) == index)
        mems[out].in_place_class = other;
    for (int in = 0; in < n_ins; in++) {
      if (!same_kind(&mems[in], &mems[out]) || !read_only_at(fn, in, index)) continue;
      mems[in].in_place_class = mems[out].in_place_class;
      if (mems[out].alias >= 0 || taken[in]) continue;
      mems[out].alias = in;
      taken[in] = true;
    }
  }
}

static void look_alias(void *user, const struct kern_fn *fn) {
  const struct aliasing *a = user;
  const struct pass_group *group = a->nest->job->group;
  sched_find_in_place(a->nest->job->kern->mems, (int)group->n_ins, (int)group->n_outs, a->may, fn);
}

quern_status sched_alias(struct sched_nest *nest, const bool *may) {
  bool valid;
  return with_point(nest, -1, 1, &valid, &(struct aliasing){nest, may}, look_alias);
}

/* ---- counting -------------------------------------------------------------------------------------------- */

int64_t sched_nest_count(const struct sched_nest *nest, int first, int last, int skip) {
  int64_t n = 1;
  for (int i = first; i < last; i++) n *= i == skip ? 1 : nest->loops[i].extent;
  return n;
}

void sched_nest_set(const struct sched_nest *nest, struct kern_builder *b, struct kern_values *values, int first,
                    int last, int skip, kern_id flat) {
  int outermost = first == skip ? first + 1 : first;
  for (int i = last - 1; i >= outermost; i--) {
    if (i == skip) continue;
    kern_id x = i == outermost ? flat : kern_imod(b, flat, nest->loops[i].extent);
    kern_values_set(values, nest->loops[i].var, x, 1, KERN_NONE);
    flat = kern_idiv(b, flat, nest->loops[i].extent);
  }
}

int sched_lanes(const struct sched_job *job) {
  const struct pass_group *group = job->group;
  bool narrow = false, wide = false;
  for (size_t i = 0; i < group->n_nodes; i++) {
    const quern_tensor *t = &group->nodes[i]->out[0];
    bool mask = t->dtype == QUERN_DTYPE_BOOL;
    narrow = narrow || (base_dtypes[t->dtype].size < 8 && !mask && ir_count(t) > 1);
    wide = wide || base_dtypes[t->dtype].size == 8;
  }
  for (size_t i = 0; i < group->n_ins; i++) {
    const quern_tensor *t = group->ins[i];
    narrow = narrow || (base_dtypes[t->dtype].size < 8 && t->dtype != QUERN_DTYPE_BOOL && ir_count(t) > 1);
    wide = wide || base_dtypes[t->dtype].size == 8;
  }
  int lanes = BASE_MIN(BASE_MAX(job->sched->lanes, 1), KERN_MAX_LANES);
  return wide && !narrow && lanes > 1 ? lanes / 2 : lanes;
}
