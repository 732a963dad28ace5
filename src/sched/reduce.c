/* sched/reduce.c -- kernels of REDUCE groups: along or across the rows, in one phase or two
** in:    stages whose results are only read on their own rows     out: one phase, or two where long rows are split
** keeps: the order of float sums is that of kern.h whatever the variant chosen
** see:   reduce.h                                                  tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

/* ---- along or across ------------------------------------------------------------------------------------- */

struct variant {
  bool along, packed, scattered;
  int vector; /* across: the outer loop that has lanes */
  int insts;
  double cost; /* of a row */
};

static double trees(const struct reduce *rd) { return 14.0 * (double)rd->n_stages; }

static quern_status try_along(struct reduce *rd, const struct sched_nest *nest, struct variant *best) {
  struct sched_trial trial;
  if (nest->n_loops - nest->n_outer != 1) return QUERN_STATUS_OK;
  for (size_t i = 0; i < rd->n_stages && rd->n_column_reductions == 0; i++)
    if (rd->stages[i].n_acc / rd->lanes > 16) return QUERN_STATUS_OK;
  QUERN_TRY(sched_nest_try(&trial, nest, nest->n_outer, rd->lanes));
  double vectors = (double)((rd->count + rd->lanes - 1) / rd->lanes);
  double cost = vectors * trial.cost + trees(rd);
  if (trial.valid && (best->cost < 0 || cost < best->cost))
    *best = (struct variant){.along = true, .vector = -1, .insts = trial.insts, .cost = cost};
  return QUERN_STATUS_OK;
}

/* Along rows that lie in pieces; each value is stored and loaded once more. */
static quern_status try_packed(struct reduce *rd, const struct sched_nest *nest, struct variant *best) {
  struct sched_trial trial;
  if (nest->n_loops - nest->n_outer < 2 || rd->count == 0) return QUERN_STATUS_OK;
  for (size_t i = 0; i < rd->n_stages; i++)
    if (rd->stages[i].n_acc / rd->lanes > 16) return QUERN_STATUS_OK;
  QUERN_TRY(sched_nest_try(&trial, nest, nest->n_loops - 1, rd->lanes));
  int64_t extent = nest->loops[nest->n_loops - 1].extent, vectors = (extent + rd->lanes - 1) / rd->lanes;
  double each = trial.cost + 3 * (double)rd->n_stages + 8 / (double)vectors;
  double cost = (double)rd->count / (double)extent * (double)vectors * each + trees(rd);
  if (trial.valid && (best->cost < 0 || cost < best->cost))
    *best = (struct variant){.along = true, .packed = true, .vector = -1, .insts = trial.insts, .cost = cost};
  return QUERN_STATUS_OK;
}

static quern_status try_across(struct reduce *rd, const struct sched_nest *nest, int loop, int lanes,
                               struct variant *best) {
  struct sched_trial trial;
  QUERN_TRY(sched_nest_try(&trial, nest, loop, lanes));
  int64_t extent = loop >= 0 ? nest->loops[loop].extent : 1, vectors = (extent + lanes - 1) / lanes;
  double each = trial.cost + 0.5 * (double)(nest->n_loops - nest->n_outer - 1);
  for (size_t i = 0; i < rd->n_stages; i++) each += rd->stages[i].ordered && rd->count > 16 ? 2 : 0;
  double cost = (double)rd->count * each * (double)vectors / (double)extent;
  if (trial.valid && (best->cost < 0 || cost < best->cost))
    *best = (struct variant){.vector = loop, .scattered = trial.scattered > 0, .insts = trial.insts, .cost = cost};
  return QUERN_STATUS_OK;
}

/* Chooses the variant, and the nest for it. Scalar code runs across, a row at a time. */
static quern_status choose_variant(struct reduce *rd, struct variant *variant) {
  struct sched_nest merged;
  *variant = (struct variant){.cost = -1, .vector = -1};
  QUERN_TRY(sched_nest_collapse(&rd->nest, rd->nest.n_outer, rd->nest.n_loops));
  QUERN_TRY(sched_nest_collapse(&rd->nest, 0, rd->nest.n_outer));
  if (rd->lanes == 1 && rd->n_column_reductions == 0) {
    QUERN_TRY(try_across(rd, &rd->nest, rd->nest.n_outer - 1, 1, variant));
    QUERN_CHECK(variant->cost >= 0, INTERNAL, "schedule: a group of reductions cannot be built");
    return QUERN_STATUS_OK;
  }
  QUERN_TRY(sched_nest_copy(&merged, &rd->nest));
  if (merged.n_loops - merged.n_outer > 1) QUERN_TRY(sched_nest_merge(&merged, merged.n_outer, merged.n_loops - 1));
  QUERN_TRY(try_along(rd, &merged, variant));
  if (rd->n_column_reductions == 0) {
    QUERN_TRY(try_packed(rd, &rd->nest, variant));
    if (rd->nest.n_outer == 0) QUERN_TRY(try_across(rd, &rd->nest, -1, 1, variant));
    for (int i = rd->nest.n_outer - 1; i >= 0; i--) QUERN_TRY(try_across(rd, &rd->nest, i, rd->lanes, variant));
  }
  QUERN_CHECK(variant->cost >= 0, INTERNAL, "schedule: a group of reductions cannot be built");
  if (variant->along && !variant->packed) rd->nest = merged;
  return QUERN_STATUS_OK;
}

/* ---- building -------------------------------------------------------------------------------------------- */

quern_status reduce_begin(struct reduce *rd, int64_t tasks, int64_t room) {
  rd->b = (struct kern_builder){.kern = rd->job->kern, .fn = kern_add_phase(rd->job->kern, KERN_FIXED_TASKS(tasks))};
  kern_values_free(rd->values);
  rd->values = NULL;
  QUERN_TRY(rd->job->kern->failed);
  QUERN_TRY(sched_values(rd->job, &rd->b, &rd->values));
  for (int v = 0; v < rd->nest.n_group; v++) kern_values_set(rd->values, v, kern_index(&rd->b, 0), 1, KERN_NONE);
  for (size_t i = 0; i < rd->n_keeps; i++)
    if (rd->keeps[i].out < 0) rd->keeps[i].local = kern_local(&rd->b, rd->keeps[i].point.tensor->dtype, room);
  return QUERN_STATUS_OK;
}

/* Vectors of rows side by side: a line of memory or more, fewer where that is too much code or too few tasks. */
static void choose_width(struct reduce *rd, const struct variant *variant) {
  int64_t extent = rd->vector >= 0 ? rd->nest.loops[rd->vector].extent : 1;
  int64_t vectors = (extent + rd->lanes - 1) / rd->lanes,
          rows = sched_nest_count(&rd->nest, 0, rd->nest.n_outer, rd->vector);
  rd->small = rd->count <= 16 && rd->count * variant->insts <= 400;
  int64_t insts = variant->insts * (rd->small ? rd->count : 1), most = rd->lanes == 1 ? 1 : 4;
  int64_t enough = rd->job->target->threads > 1 ? 2 * rd->job->target->threads : 1;
  rd->width = 1;
  while (rd->width < most && 2 * rd->width <= vectors && 2 * rd->width * insts <= 400 &&
         rows * (vectors / (2 * rd->width)) >= enough)
    rd->width *= 2;
}

/* Long rows are split where there are too few of them for all threads. */
static void choose_split(struct reduce *rd) {
  const struct pass_group *group = rd->job->group;
  int threads = rd->job->target->threads;
  rd->split = rd->n_passes == 1 && rd->n_column_reductions == 0 && rd->count > KERN_CHUNK && threads > 1 &&
              rd->n_strips < 2 * threads;
  for (size_t i = 0; i < group->n_outs; i++) rd->split = rd->split && rd->out_pass[i] < 0;
  if (!rd->split) return;
  int64_t elements = rd->n_strips * reduce_parts(rd) * rd->width * rd->acc_lanes;
  for (size_t i = 0; i < rd->n_stages; i++) {
    rd->stages[i].work = kern_add_mem(rd->job->kern, rd->stages[i].acc, KERN_WORK, elements);
    if (rd->stages[i].arg) (void)kern_add_mem(rd->job->kern, QUERN_DTYPE_I32, KERN_WORK, elements);
  }
}

/* An out that is stored before the last pass, or by another task than read its row, keeps its own memory. */
static quern_status choose_aliases(struct reduce *rd) {
  size_t n = rd->job->group->n_outs;
  if (rd->split) return QUERN_STATUS_OK;
  bool *may = base_arena_alloc(rd->arena, n * sizeof *may);
  if (may == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) may[i] = rd->out_pass[i] == -1 || rd->out_pass[i] == rd->n_passes - 1;
  sched_mark_streaming(rd->job, may);
  return sched_alias(&rd->nest, may);
}

/* The phases of one part of the vector's loop, or of all rows. */
static quern_status build_part(struct reduce *rd, const struct variant *variant) {
  QUERN_TRY(reduce_describe(rd));
  rd->width = 1;
  if (!variant->along) choose_width(rd, variant);
  rd->strip = rd->width;
  rd->acc_lanes = variant->along ? 1 : rd->lanes;
  int64_t extent = rd->vector >= 0 ? rd->nest.loops[rd->vector].extent : 1, step = (int64_t)rd->width * rd->lanes;
  int64_t strips = variant->along ? 1 : (extent + step - 1) / step;
  rd->n_strips = sched_nest_count(&rd->nest, 0, rd->nest.n_outer, rd->vector) * strips;
  size_t slots = rd->n_stages * (size_t)rd->width;
  rd->total = base_arena_alloc(rd->arena, 2 * slots * sizeof *rd->total);
  if (rd->total == NULL) return QUERN_STATUS_MEMORY;
  rd->part = rd->total + slots;
  int64_t room = variant->along ? (rd->count + rd->lanes - 1) / rd->lanes * rd->lanes : rd->count * step;
  QUERN_TRY(reduce_find_keeps(rd, rd->packed ? -1 : room));
  QUERN_TRY(reduce_find_fixed(rd));
  if (rd->job->kern->n_phases == 0) {
    choose_split(rd);
    reduce_fused_columns_plan(rd);
    QUERN_TRY(choose_aliases(rd));
  }
  return variant->along ? reduce_rows(rd, room) : reduce_columns(rd, room);
}

static quern_status build(struct reduce *rd) {
  struct variant variant;
  struct sched_nest whole;
  int n = 1;
  int64_t starts[SCHED_MOST_SPLITS] = {0};
  QUERN_TRY(reduce_describe(rd));
  QUERN_TRY(choose_variant(rd, &variant));
  rd->vector = variant.vector;
  rd->packed = variant.packed;
  if (!variant.along && variant.vector < 0) rd->lanes = 1;
  rd->stored = base_arena_alloc(rd->arena, rd->job->group->n_outs * sizeof *rd->stored);
  if (rd->stored == NULL) return QUERN_STATUS_MEMORY;
  if (variant.scattered && rd->lanes > 1 && rd->count <= KERN_CHUNK)
    QUERN_TRY(sched_nest_splits(&rd->nest, variant.vector, &n, starts));
  /* a part of one column has no variable that tells what is known of it from what is known of all */
  for (int i = 0; i < n && n > 1 && rd->n_passes > 1; i++)
    if ((i + 1 < n ? starts[i + 1] : rd->nest.loops[variant.vector].extent) - starts[i] == 1) n = 1;
  if (n == 1) return build_part(rd, &variant);
  QUERN_TRY(sched_nest_copy(&whole, &rd->nest));
  for (int i = 0; i < n; i++) {
    int64_t end = i + 1 < n ? starts[i + 1] : whole.loops[variant.vector].extent;
    QUERN_TRY(sched_nest_copy(&rd->nest, &whole));
    QUERN_TRY(sched_nest_narrow(&rd->nest, variant.vector, starts[i], end - starts[i]));
    QUERN_TRY(build_part(rd, &variant));
  }
  return QUERN_STATUS_OK;
}

quern_status sched_reduce(struct sched_job *job) {
  const struct pass_group *group = job->group;
  struct base_arena arena;
  struct reduce rd = {.job = job, .arena = &arena, .lanes = sched_lanes(job), .n_stages = group->n_stages, .count = 1};
  rd.n_column_reductions = group->n_column_reductions;
  rd.keep_base = rd.row_first = rd.next = KERN_NONE;
  const struct ir_node *first = group->stages[0].node;
  int64_t rows = ir_count(&first->out[0]);
  struct ir_ints axes = first->op == IR_ARGREDUCE ? (struct ir_ints){1, &first->attrs->axis} : first->attrs->axes;
  for (int i = 0; i < axes.n; i++) rd.count *= first->src[0]->dims[axes.at[i]];
  if (rows == 0) {
    (void)kern_add_phase(job->kern, KERN_FIXED_TASKS(0));
    return job->kern->failed;
  }
  base_arena_init(&arena, &job->ctx->heap);
  rd.stages = base_arena_alloc(&arena, group->n_stages * sizeof *rd.stages);
  rd.about = base_arena_alloc(&arena, group->n_nodes * sizeof *rd.about);
  rd.out_pass = base_arena_alloc(&arena, group->n_outs * sizeof *rd.out_pass);
  rd.column_reductions = base_arena_alloc(&arena, (group->n_column_reductions + 1) * sizeof *rd.column_reductions);
  quern_status status = QUERN_STATUS_MEMORY;
  bool built = false;
  if (rd.stages != NULL && rd.about != NULL && rd.out_pass != NULL && rd.column_reductions != NULL)
    status = sched_nest_init(&rd.nest, job, &arena);
  if (status == QUERN_STATUS_OK && job->target->gpu) {
    status = gpu_reduce(&rd, &built);
    rd.lanes = 1;
  }
  if (status == QUERN_STATUS_OK && !built) status = build(&rd);
  kern_values_free(rd.values);
  base_arena_fini(&arena);
  return status;
}
