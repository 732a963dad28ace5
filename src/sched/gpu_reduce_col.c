/* sched/gpu_reduce_col.c -- REDUCE groups across their rows by thread blocks: an outer variable has lanes
** A task has a block of neighboring rows and goes through their elements, or through a split of them; phases of their own merge what
** splits give. The elements of a round are loaded before anything is stored, and reduced as a tree; RUN rounds are one chain,
** and their sums another.
** tests: tests/sched/test_gpu_reduce.c
*/
#include "sched/reduce.h"

enum { BLOCK = 8, RUN = 32 }; /* elements of a round; rounds of one chain of sums */

struct round {
  struct reduce_value *x;   /* of element u of stage i: u * n_stages + i */
  kern_id *outs;            /* likewise */
  struct reduce_value *run; /* accumulators of a run, a stage */
};

static void enter_element(struct reduce *rd, kern_id p) {
  kern_values_enter(rd->values);
  sched_nest_set(&rd->nest, &rd->b, rd->values, rd->nest.n_outer, rd->nest.n_loops, -1, p);
}

/* What comes of element p, number u of its round. */
static void compute(struct reduce *rd, int q, kern_id p, int u, struct round *round) {
  struct kern_builder *b = &rd->b;
  const struct pass_group *group = rd->job->group;
  enter_element(rd, p);
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass != q) continue;
    struct reduce_value x = {reduce_source(rd, stage, rd->lanes), KERN_NONE};
    if (stage->arg) x.index = kern_splat(b, kern_cast(b, p, QUERN_DTYPE_I32), rd->lanes);
    round->x[(size_t)u * rd->n_stages + i] = x;
  }
  for (size_t i = 0; i < group->n_outs; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    if (rd->out_pass[i] == q)
      round->outs[(size_t)u * group->n_outs + i] = kern_values_get(rd->values, t, t->rank, rd->nest.outs[i]);
  }
  kern_values_leave(rd->values);
}

static void store(struct reduce *rd, int q, kern_id p, int u, kern_id active, const struct round *round) {
  const struct pass_group *group = rd->job->group;
  enter_element(rd, p);
  for (size_t i = 0; i < group->n_outs; i++)
    if (rd->out_pass[i] == q)
      sched_store_at(rd->job, &rd->b, rd->values, i, rd->nest.outs[i], round->outs[(size_t)u * group->n_outs + i],
                     active);
  kern_values_leave(rd->values);
}

/* n elements from p on: a tree of them is joined to the accumulators. */
static void emit_step(struct reduce *rd, int q, kern_id p, int n, kern_id active, struct round *round) {
  struct kern_builder *b = &rd->b;
  for (int u = 0; u < n; u++) compute(rd, q, kern_add_i(b, p, u), u, round);
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    struct reduce_value *x = round->x + i;
    if (stage->pass != q) continue;
    for (int h = 1; h < n; h *= 2)
      for (int u = 0; u + h < n; u += 2 * h)
        x[(size_t)u * rd->n_stages] =
            reduce_join(rd, stage, x[(size_t)u * rd->n_stages], x[(size_t)(u + h) * rd->n_stages]);
    reduce_set(rd, stage, rd->accs[i], reduce_join(rd, stage, reduce_get(rd, stage, rd->accs[i]), x[0]));
  }
  for (int u = 0; u < n; u++) store(rd, q, kern_add_i(b, p, u), u, active, round);
}

static void begin_sums(struct reduce *rd, int q) {
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass == q) rd->accs[i] = reduce_var(rd, stage, reduce_neutral(rd, stage, rd->lanes));
  }
}

static void emit_blocks(struct reduce *rd, int q, kern_id lo, kern_id hi, kern_id active, struct round *round) {
  struct kern_builder *b = &rd->b;
  kern_id block = kern_for(b, lo, hi, 1);
  kern_values_enter(rd->values);
  emit_step(rd, q, kern_mul_i(b, block, BLOCK), BLOCK, active, round);
  kern_values_leave(rd->values);
  kern_end(b);
}

/* Many blocks: RUN of them have sums of their own, so that errors do not grow with their number. */
static void emit_runs(struct reduce *rd, int q, kern_id lo, kern_id hi, kern_id active, struct round *round) {
  struct kern_builder *b = &rd->b;
  struct reduce_value *all = rd->accs;
  kern_id first = kern_for(b, lo, hi, RUN), end = kern_min(b, kern_add_i(b, first, RUN), hi);
  kern_values_enter(rd->values);
  rd->accs = round->run;
  begin_sums(rd, q);
  emit_blocks(rd, q, first, end, active, round);
  rd->accs = all;
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass != q) continue;
    struct reduce_value sum = reduce_get(rd, stage, round->run[i]), acc = reduce_get(rd, stage, all[i]);
    reduce_set(rd, stage, all[i], reduce_join(rd, stage, acc, sum));
  }
  kern_values_leave(rd->values);
  kern_end(b);
}

static bool has_stages(const struct reduce *rd, int q) {
  for (size_t i = 0; i < rd->n_stages; i++)
    if (rd->stages[i].pass == q) return true;
  return false;
}

/* Blocks lo .. hi - 1, and then `left` elements more, a multiple of count % BLOCK. */
static void emit_elements(struct reduce *rd, int q, kern_id lo, kern_id hi, kern_id left, kern_id active,
                          struct round *round) {
  struct kern_builder *b = &rd->b;
  int64_t blocks = rd->count / BLOCK, rest = rd->count % BLOCK, most = rd->splits > 1 ? rd->split_size : blocks;
  begin_sums(rd, q);
  sched_points_get(rd->values, &rd->fixed[q]);
  if (most > RUN && has_stages(rd, q))
    emit_runs(rd, q, lo, hi, active, round);
  else if (blocks > 0)
    emit_blocks(rd, q, lo, hi, active, round);
  if (rest > 0) {
    kern_id zero = kern_index(b, 0), more = kern_for(b, zero, left, 1);
    kern_values_enter(rd->values);
    emit_step(rd, q, kern_add_i(b, more, blocks * BLOCK), 1, active, round);
    kern_values_leave(rd->values);
    kern_end(b);
  }
}

static void bind_results(struct reduce *rd, int q) {
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass != q) continue;
    kern_id result = reduce_result(rd, stage, reduce_get(rd, stage, rd->accs[i]));
    kern_values_bind(rd->values, stage->result, stage->result->rank, stage->result_at, result);
  }
}

static void emit_whole(struct reduce *rd, kern_id active, struct round *round) {
  struct kern_builder *b = &rd->b;
  kern_id zero = kern_index(b, 0), blocks = kern_index(b, rd->count / BLOCK), left = kern_index(b, rd->count % BLOCK);
  for (int q = 0; q < rd->n_passes; q++) {
    emit_elements(rd, q, zero, blocks, left, active, round);
    bind_results(rd, q);
  }
  reduce_store(rd, -1, active);
}

static void emit_split(struct reduce *rd, kern_id part, kern_id to, kern_id active, struct round *round) {
  struct kern_builder *b = &rd->b;
  kern_id lo = kern_mul_i(b, part, rd->split_size);
  kern_id hi = kern_min_i(b, kern_add_i(b, lo, rd->split_size), rd->count / BLOCK);
  kern_id left = kern_mul_i(b, gpu_reduce_last(rd, part, rd->splits), rd->count % BLOCK);
  emit_elements(rd, 0, lo, hi, left, active, round);
  for (size_t i = 0; i < rd->n_stages; i++)
    reduce_partial_store(rd, &rd->stages[i], to, reduce_get(rd, &rd->stages[i], rd->accs[i]));
}

/* Task (part, other rows, block of rows side by side). */
static quern_status emit_tasks(struct reduce *rd, struct round *round) {
  struct kern_builder *b = &rd->b;
  int64_t extent = rd->nest.loops[rd->vector].extent, blocks = (extent + rd->lanes - 1) / rd->lanes;
  QUERN_TRY(gpu_reduce_begin(rd, rd->splits * rd->n_strips * blocks, rd->block_threads));
  kern_id task = kern_task(b), rest = kern_idiv(b, task, blocks), active = KERN_NONE;
  kern_id column = kern_mul_i(b, kern_imod(b, task, blocks), rd->lanes);
  kern_id other = rd->splits > 1 ? kern_imod(b, rest, rd->n_strips) : rest;
  if (extent % rd->lanes != 0) active = kern_min_i(b, kern_sub(b, kern_index(b, extent), column), rd->lanes);
  sched_nest_set(&rd->nest, b, rd->values, 0, rd->nest.n_outer, rd->vector, other);
  kern_values_set(rd->values, rd->nest.loops[rd->vector].var, column, rd->lanes, active);
  kern_id part = kern_idiv(b, rest, rd->n_strips), to = kern_mul_i(b, task, rd->lanes);
  if (rd->splits == 1)
    emit_whole(rd, active, round);
  else
    emit_split(rd, part, to, active, round);
  return QUERN_STATUS_OK;
}

quern_status gpu_reduce_columns(struct reduce *rd) {
  int64_t extent = rd->nest.loops[rd->vector].extent, blocks = (extent + rd->lanes - 1) / rd->lanes;
  struct round round = {base_arena_alloc(rd->arena, BLOCK * rd->n_stages * sizeof *round.x),
                        base_arena_alloc(rd->arena, BLOCK * rd->job->group->n_outs * sizeof *round.outs),
                        base_arena_alloc(rd->arena, rd->n_stages * sizeof *round.run)};
  struct reduce_partial p = {.n_stages = rd->n_stages,
                             .stages = rd->stages,
                             .rows = rd->splits,
                             .others = rd->n_strips,
                             .width = blocks * rd->lanes,
                             .loop = rd->vector,
                             .outs = -1};
  if (round.x == NULL || round.outs == NULL || round.run == NULL) return QUERN_STATUS_MEMORY;
  if (rd->splits > 1) reduce_partial_plan(rd, &p);
  QUERN_TRY(emit_tasks(rd, &round));
  return rd->splits > 1 ? reduce_partial_merge(rd, &p) : QUERN_STATUS_OK;
}
