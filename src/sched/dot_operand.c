/* sched/dot_operand.c -- the space, the operands and the outs of a contraction
** in:    a group of kind DOT, whose space has several variables of a kind
** out:   the same in flat variables; which tensors are read and written as they lie in memory; how the others are best
**        read, such as windows by a split im2col address
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

/* ---- the space -------------------------------------------------------------------------------------------- */

/* The group's variables of each axis, in order; those that are hoisted count as batch. */
struct parts {
  int n[DOT_AXES], vars[DOT_AXES][4 * QUERN_MAX_RANK];
  int64_t dims[DOT_AXES][4 * QUERN_MAX_RANK];
};

static void add_part(const struct pass_group *group, struct parts *parts, int axis, int var) {
  parts->dims[axis][parts->n[axis]] = group->space->extents.at[var];
  parts->vars[axis][parts->n[axis]++] = var;
}

static void find_terms(const struct pass_group *group, const struct dot_orientation *orientation, struct parts *parts) {
  static const int axes[2][DOT_AXES] = {{DOT_BATCH, DOT_ROW, DOT_COL, DOT_TERM},
                                        {DOT_BATCH, DOT_COL, DOT_ROW, DOT_TERM}};
  int var = 0;
  memset(parts, 0, sizeof *parts);
  for (int i = 0; i < DOT_AXES; i++) {
    for (int j = 0; j < group->vars[i]; j++, var++) {
      int axis = axes[orientation->swap_mn][i];
      add_part(group, parts, i == orientation->of && j < orientation->hoisted ? DOT_BATCH : axis, var);
    }
  }
}

/* The size of an axis, and the extent of its innermost variables of more than one value, as many as given. */
static struct dot_axis axis_of(const struct parts *parts, int axis, int n_inner) {
  struct dot_axis out = {.size = 1, .inner = 1};
  for (int i = parts->n[axis] - 1; i >= 0; i--) {
    int64_t dim = parts->dims[axis][i];
    out.size *= dim;
    if (dim != 1 && n_inner-- > 0) out.inner *= dim;
  }
  return out;
}

/* The group's variables as expressions of the kernel's: flat[v] over flat axes, cut[v] over outer and inner ones. */
static quern_status make_space(struct dot *d, const struct dot_orientation *orientation, const struct pass_index **flat,
                               const struct pass_index **cut) {
  struct pass_space *space = d->space;
  struct parts parts;
  find_terms(d->job->group, orientation, &parts);
  for (int x = 0; x < DOT_AXES; x++) d->axis[x] = axis_of(&parts, x, x == DOT_TERM ? d->inner_terms : 1);
  for (int x = 0; x < DOT_AXES; x++) (void)pass_space_add(space, d->axis[x].size);
  for (int x = 0; x < DOT_AXES; x++) (void)pass_space_add(space, d->axis[x].size / BASE_MAX(d->axis[x].inner, 1));
  for (int x = 0; x < DOT_AXES; x++) (void)pass_space_add(space, d->axis[x].inner);
  size_t n_own = d->job->group->space->extents.n;
  QUERN_ASSERT(n_own <= DOT_VARS - DOT_OWN);
  for (size_t v = 0; v < DOT_VARS - DOT_OWN; v++)
    (void)pass_space_add(space, v < n_own ? d->job->group->space->extents.at[v] : 1);
  for (int x = 0; x < DOT_AXES; x++) {
    const struct pass_index *at[4 * QUERN_MAX_RANK], *inner = pass_index_var(space, DOT_INNER + x);
    const struct pass_index *outer = pass_index_scale(space, pass_index_var(space, DOT_OUTER + x), d->axis[x].inner);
    pass_index_unflat(space, pass_index_var(space, x), parts.n[x], parts.dims[x], at);
    for (int i = 0; i < parts.n[x]; i++) flat[parts.vars[x][i]] = at[i];
    pass_index_unflat(space, pass_index_add(space, outer, inner), parts.n[x], parts.dims[x], at);
    for (int i = 0; i < parts.n[x]; i++) cut[parts.vars[x][i]] = at[i];
  }
  d->batch = d->axis[DOT_BATCH].size;
  d->m = d->axis[DOT_ROW].size;
  d->n = d->axis[DOT_COL].size;
  d->k = d->axis[DOT_TERM].size;
  return space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* True when an axis has several variables of more than one value. */
static bool is_several(const struct dot *d, int axis) {
  return d->axis[axis].inner < d->axis[axis].size && d->axis[axis].size > 0;
}

/* A list of indices over the kernel's space, of those over the group's. */
static const struct pass_index **translate(struct dot *d, int rank, const struct pass_index *const *at,
                                           const struct pass_index *const *by) {
  const struct pass_index **out = base_arena_alloc(&d->arena, (size_t)(rank + 1) * sizeof *out);
  if (out == NULL) return NULL;
  for (int k = 0; k < rank; k++) out[k] = pass_index_replace(d->space, at[k], by);
  return out;
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

bool dot_is_movement(const struct ir_node *node) {
  static const bool moves[IR_OP_COUNT] = {
      [IR_RESHAPE] = true, [IR_PERMUTE] = true, [IR_BROADCAST] = true, [IR_SLICE] = true,
      [IR_FLIP] = true,    [IR_WINDOW] = true,  [IR_STOP_GRAD] = true};
  return moves[node->op];
}

/* The memory that a tensor is in, or -1. */
static int memory_of(const struct dot *d, const quern_tensor *t) {
  for (size_t i = 0; i < d->job->group->n_ins; i++)
    if (d->job->group->ins[i] == t) return (int)i;
  for (int i = 0; i < d->n_materialized; i++)
    if (d->materialized[i].tensor == t) return d->materialized[i].mem;
  return -1;
}

/* What windows overlap on is read many times: where it has to be computed, that is done once, into a workspace. */
static void keep_windows(struct dot *d, const quern_tensor *t) {
  bool windows = false;
  while (memory_of(d, t) < 0 && dot_is_movement(t->node)) {
    windows |= t->node->op == IR_WINDOW;
    t = t->node->src[0];
  }
  if (!windows || memory_of(d, t) >= 0 || ir_count(t) <= 1) return;
  int mem = kern_add_mem(d->job->kern, t->dtype, KERN_WORK, ir_count(t));
  d->materialized[d->n_materialized++] = (struct dot_materialized){.tensor = t, .mem = mem};
}

void dot_drop_materialized(struct dot *d) {
  d->job->kern->n_mems -= d->n_materialized;
  d->n_materialized = 0;
}

/* ---- strides ---------------------------------------------------------------------------------------------- */

/* The stride of an offset in an axis, which is cut or not. */
static bool stride_of(const struct dot *d, const struct pass_index *offset, unsigned cut, int axis, int64_t *stride) {
  int64_t outer;
  if ((cut >> axis & 1) == 0) return pass_index_stride(d->space, offset, axis, stride);
  return pass_index_stride(d->space, offset, DOT_INNER + axis, stride) &&
         pass_index_stride(d->space, offset, DOT_OUTER + axis, &outer) && outer == *stride * d->axis[axis].inner;
}

struct dot_view dot_find_view(struct dot *d, const struct dot_operand *side) {
  const struct pass_index *at[QUERN_MAX_RANK], *in[QUERN_MAX_RANK];
  const quern_tensor *t = side->tensor;
  struct dot_view place = {.mem = memory_of(d, t)};
  for (int k = 0; k < t->rank; k++) at[k] = side->at[k];
  while (place.mem < 0 && dot_is_movement(t->node) && pass_index_source(d->space, t->node, 0, at, in)) {
    t = t->node->src[0];
    for (int k = 0; k < t->rank; k++) at[k] = in[k];
    place.mem = memory_of(d, t);
  }
  if (place.mem >= 0) place.offset = pass_index_flat(d->space, t->rank, t->dims, at);
  return place;
}

/* The view of an operand that has the accumulators' dtype; mem -1 of others. */
static struct dot_view find_view(struct dot *d, const struct dot_operand *side) {
  struct dot_view place = dot_find_view(d, side);
  if (side->tensor->dtype != d->acc) place.mem = -1;
  return place;
}

/* Where it lies with strides. */
static struct dot_view view_of(struct dot *d, const struct dot_operand *side) {
  struct dot_view place = find_view(d, side);
  if (place.mem >= 0 && (!stride_of(d, place.offset, 0, side->own, &place.own) ||
                         !stride_of(d, place.offset, 0, DOT_TERM, &place.term) || place.own < 0 || place.term < 0))
    place.mem = -1;
  return place;
}

/* Where rows lie when they and the terms each add a part of the offset. */
static struct dot_im2col im2col_of(struct dot *d, const struct dot_operand *side) {
  struct pass_space *space = d->space;
  struct dot_view place = find_view(d, side);
  struct dot_im2col im2col = {.mem = -1};
  const struct pass_index *no_terms[3 * DOT_AXES] = {NULL}, *only_terms[3 * DOT_AXES], *none[3 * DOT_AXES];
  if (place.mem < 0 || d->lanes == 1 || !dot_has_windows(d->job->group, side->tensor)) return im2col;
  for (int v = 0; v < 3 * DOT_AXES; v++) only_terms[v] = none[v] = pass_index_const(space, 0);
  no_terms[DOT_TERM] = none[DOT_TERM];
  only_terms[DOT_TERM] = NULL;
  im2col.rows = pass_index_replace(space, place.offset, no_terms);
  im2col.terms = pass_index_replace(space, place.offset, only_terms);
  const struct pass_index *first = pass_index_scale(space, pass_index_replace(space, place.offset, none), -1);
  im2col.terms = pass_index_add(space, im2col.terms, first);
  bool sum = pass_index_add(space, im2col.rows, im2col.terms) == place.offset;
  if (sum && !space->failed && im2col.terms->lo >= 0) im2col.mem = place.mem;
  return im2col;
}

/* ---- how an operand is best read ----------------------------------------------------------------------------- */

enum { LOOKS = 24, GATHER_COST = 16 };

/* A run that is shorter than a vector costs as much as one. */
static int64_t vector_cost(const struct dot *d, const struct pass_index *offset, unsigned cut, int axis) {
  bool runs = (cut >> axis & 1) != 0;
  int64_t stride, part = runs ? BASE_MAX(d->lanes / BASE_MAX(d->axis[axis].inner, 1), 1) : 1;
  bool affine = pass_index_stride(d->space, offset, runs ? DOT_INNER + axis : axis, &stride);
  return part * (!affine || stride > 1 || stride < 0 ? GATHER_COST : stride);
}

struct seen {
  const quern_tensor *t;
  const struct pass_index *at[QUERN_MAX_RANK];
};

/* What vectors along its own axis and along the terms cost, over the memories that the operand is made of: a walk of at
** most LOOKS nodes. */
static void look(struct dot *d, const quern_tensor *t, const struct pass_index *const *at, unsigned cut, int own,
                 int64_t cost[2]) {
  struct seen stack[LOOKS];
  int n = 1, left = LOOKS;
  stack[0].t = t;
  for (int k = 0; k < t->rank; k++) stack[0].at[k] = at[k];
  cost[0] = cost[1] = 0;
  while (n > 0 && left-- > 0) {
    struct seen x = stack[--n];
    if (memory_of(d, x.t) >= 0) {
      const struct pass_index *offset = pass_index_flat(d->space, x.t->rank, x.t->dims, x.at);
      cost[0] += vector_cost(d, offset, cut, own);
      cost[1] += vector_cost(d, offset, cut, DOT_TERM);
      continue;
    }
    const struct ir_node *node = x.t->node;
    for (int i = 0; i < node->n_src && n < LOOKS; i++) {
      stack[n].t = node->src[i];
      if (pass_index_source(d->space, node, i, x.at, stack[n].at)) n++;
    }
  }
}

/* Reads operand `number` at the group's indices: flat where that is as good, else cut into runs. */
static quern_status make_side(struct dot *d, struct dot_operand *side, const quern_tensor *t,
                              const struct pass_index *const *read, const struct pass_index *const *flat,
                              const struct pass_index *const *cut) {
  size_t n_vars = d->job->group->space->extents.n;
  const int axes[2] = {side->own, DOT_TERM};
  int64_t plain[2], runs[2];
  const struct pass_index **by = base_arena_copy(&d->arena, flat, (n_vars + 1) * sizeof *by);
  const struct pass_index **in_runs = translate(d, t->rank, read, cut);
  side->tensor = t;
  side->in_runs = in_runs;
  side->at = translate(d, t->rank, read, flat);
  if (by == NULL || in_runs == NULL || side->at == NULL) return QUERN_STATUS_MEMORY;
  side->view = view_of(d, side);
  side->im2col.mem = -1;
  if (side->view.mem < 0 && side->own == DOT_ROW) side->im2col = im2col_of(d, side);
  look(d, t, side->at, 0, side->own, plain);
  if (d->lanes > 1 && side->view.mem < 0) {
    look(d, t, in_runs, ~0u, side->own, runs);
    for (int i = 0; i < 2; i++) {
      if (!is_several(d, axes[i]) || runs[i] >= plain[i]) continue;
      side->split_axes |= 1u << axes[i];
      plain[i] = runs[i];
      for (size_t v = 0; v < n_vars; v++)
        if (pass_index_uses(cut[v], DOT_OUTER + axes[i]) || pass_index_uses(cut[v], DOT_INNER + axes[i]))
          by[v] = cut[v];
    }
    if (side->split_axes != 0) side->at = translate(d, t->rank, read, by);
    if (side->at == NULL) return QUERN_STATUS_MEMORY;
  }
  side->across = side->own == DOT_ROW ? plain[0] < plain[1] : plain[1] < plain[0];
  side->cost = side->view.mem >= 0 ? 0 : BASE_MIN(plain[0], plain[1]);
  return QUERN_STATUS_OK;
}

/* ---- outs -------------------------------------------------------------------------------------------------- */

/* An out that can hold the sums while they grow: of the accumulators' dtype, columns contiguous. */
static void choose_sums(struct dot *d) {
  const struct pass_group *group = d->job->group;
  d->c.mem = -1;
  for (size_t i = 0; i < group->n_outs && d->c.mem < 0; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    struct dot_view c = {.mem = (int)(group->n_ins + i)};
    c.offset = pass_index_flat(d->space, t->rank, t->dims, d->outs[i]);
    if (t->dtype == d->acc && stride_of(d, c.offset, d->split_axes, DOT_COL, &c.own) && (c.own == 1 || d->n == 1) &&
        stride_of(d, c.offset, 0, DOT_ROW, &c.term) && c.term >= 0)
      d->c = c;
  }
  d->bare = d->c.mem >= 0 && group->n_outs == 1 && group->outs[0].tensor == &d->node->out[0];
}

/* True when the first out is contiguous along rows, not along columns, and vectors can be transposed. */
static bool is_column_major(const struct dot *d) {
  const quern_tensor *t = d->job->group->outs[0].tensor;
  int64_t row, col;
  const struct pass_index *offset = pass_index_flat(d->space, t->rank, t->dims, d->outs[0]);
  bool contiguous = stride_of(d, offset, d->split_axes, DOT_COL, &col) && col == 1;
  return d->lanes > 1 && d->lanes == dot_transpose_size(d) && d->m >= d->lanes && d->n > 1 && !contiguous &&
         stride_of(d, offset, 0, DOT_ROW, &row) && row == 1;
}

/* Columns are cut where vectors of them never cross the end of the inner variable. */
static quern_status make_outs(struct dot *d, const struct pass_index *const *flat,
                              const struct pass_index *const *cut) {
  const struct pass_group *group = d->job->group;
  const struct pass_index *own[DOT_VARS - DOT_OWN];
  bool whole = d->lanes > 1 && is_several(d, DOT_COL) && d->axis[DOT_COL].inner % d->lanes == 0;
  const struct pass_index **by = base_arena_copy(&d->arena, flat, (group->space->extents.n + 1) * sizeof *by);
  d->outs = base_arena_alloc(&d->arena, group->n_outs * sizeof *d->outs);
  d->made = base_arena_alloc(&d->arena, group->n_outs * sizeof *d->made);
  if (by == NULL || d->outs == NULL || d->made == NULL) return QUERN_STATUS_MEMORY;
  if (whole) {
    d->split_axes = 1u << DOT_COL;
    for (size_t v = 0; v < group->space->extents.n; v++)
      if (pass_index_uses(cut[v], DOT_OUTER + DOT_COL) || pass_index_uses(cut[v], DOT_INNER + DOT_COL)) by[v] = cut[v];
  }
  d->own = by;
  for (size_t v = 0; v < group->space->extents.n; v++) own[v] = pass_index_var(d->space, DOT_OWN + (int)v);
  d->result = translate(d, d->node->out[0].rank, group->stages[0].result, own);
  if (d->result == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < group->n_outs; i++) {
    d->outs[i] = translate(d, group->outs[i].tensor->rank, group->outs[i].at, by);
    d->made[i] = translate(d, group->outs[i].tensor->rank, group->outs[i].at, own);
    if (d->outs[i] == NULL || d->made[i] == NULL) return QUERN_STATUS_MEMORY;
  }
  choose_sums(d);
  d->column_major_epilogue = d->c.mem < 0 && is_column_major(d);
  return QUERN_STATUS_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------------------- */

/* The space and both operands, with so many innermost variables of the terms as one; *cost: of packing. */
static quern_status make_sides(struct dot *d, const struct dot_orientation *orientation, int inner_terms,
                               const struct pass_index **flat, const struct pass_index **cut, int64_t *cost) {
  const struct pass_stage *stage = &d->job->group->stages[0];
  pass_space_free(d->space);
  d->inner_terms = inner_terms;
  d->space = NULL;
  QUERN_TRY(pass_space_new(&d->space, d->job->kern->heap));
  d->group.space = d->space;
  QUERN_TRY(make_space(d, orientation, flat, cut));
  d->a = (struct dot_operand){.own = DOT_ROW};
  d->b = (struct dot_operand){.own = DOT_COL};
  struct dot_operand *sides[] = {orientation->swap_mn ? &d->b : &d->a, orientation->swap_mn ? &d->a : &d->b};
  QUERN_TRY(make_side(d, sides[0], d->node->src[0], stage->source, flat, cut));
  QUERN_TRY(make_side(d, sides[1], d->node->src[1], stage->other, flat, cut));
  *cost = d->a.cost + d->b.cost;
  return d->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* The operands, with terms in runs of as many variables as makes packing cheapest: such as both window axes of weights,
** where one alone would be shorter than a vector. */
static quern_status choose_sides(struct dot *d, const struct dot_orientation *orientation,
                                 const struct pass_index **flat, const struct pass_index **cut) {
  int64_t costs[2], least = 0;
  int best = 1;
  QUERN_TRY(make_sides(d, orientation, 1, flat, cut, &least));
  for (int n = 2; n <= 3 && least > 0 && d->lanes > 1 && d->axis[DOT_TERM].inner < d->lanes; n++) {
    if (d->axis[DOT_TERM].inner == d->axis[DOT_TERM].size) break;
    QUERN_TRY(make_sides(d, orientation, n, flat, cut, &costs[0]));
    if (costs[0] < least) best = n, least = costs[0];
  }
  if (d->inner_terms != best) QUERN_TRY(make_sides(d, orientation, best, flat, cut, &costs[1]));
  return QUERN_STATUS_OK;
}

quern_status dot_setup(struct dot *d, struct sched_job *job) {
  const struct pass_group *group = job->group;
  const struct ir_node *node = group->stages[0].node;
  struct dot_orientation orientation;
  memset(d, 0, sizeof *d);
  d->job = job;
  d->node = node;
  d->group = *group;
  d->inner = *job;
  d->inner.group = &d->group;
  d->reduce = node->attrs->reduce;
  d->combine = node->attrs->combine;
  d->combine = node->attrs->combine;
  d->acc = kern_acc_dtype(node->out[0].dtype);
  int bytes = 4 * job->sched->lanes, size = (int)base_dtypes[d->acc].size;
  d->lanes = job->sched->lanes <= 1 ? 1 : BASE_MIN(BASE_MAX(bytes / size, 1), KERN_MAX_LANES);
  base_arena_init(&d->arena, job->kern->heap);
  QUERN_TRY(dot_choose_orientation(job, &orientation));
  size_t room = (group->space->extents.n + 1) * sizeof(const struct pass_index *);
  const struct pass_index **flat = base_arena_alloc(&d->arena, room), **cut = base_arena_alloc(&d->arena, room);
  if (flat == NULL || cut == NULL) return QUERN_STATUS_MEMORY;
  d->columns = orientation.swap_mn ? 0 : 1;
  bool some = dot_extents(group, 0, (int)group->space->extents.n) > 0;
  if (d->lanes > 1 && some)
    for (int i = 0; i < 2; i++) keep_windows(d, node->src[i]);
  QUERN_TRY(choose_sides(d, &orientation, flat, cut));
  QUERN_TRY(make_outs(d, flat, cut));
  QUERN_TRY(dot_find_bytes(d));
  return d->space->failed ? QUERN_STATUS_MEMORY : job->kern->failed;
}

void dot_fini(struct dot *d) {
  pass_space_free(d->space);
  base_arena_fini(&d->arena);
}
