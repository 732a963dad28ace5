/* sched/gpu_reduce_fused_columns.c -- REDUCE groups along their rows by thread blocks, with sums over all rows
** A task goes through neighboring rows (gpu_reduce_row.c) and adds each of their elements to a row of sums, the column reductions. Where
** registers suffice for these and for one row or two, rows stay in registers, two at a time where that is possible: what waits for memory
** and for other threads then waits once for both. Else rows are read in each pass, and sums are in shared memory, or in the device's. A task
** stores one row of sums, and phases of their own merge those.
** keeps: a sum takes its rows from the first of the task to the last
** tests: tests/sched/test_gpu_reduce.c
*/
#include "sched/reduce.h"

enum {
  REGISTERS = 128, /* of a thread */
  MOST_HELD =
      256, /* bytes that a thread holds: half of its registers; in a thread block of the most threads half of that */
  LEAST_RUN = 8,
};

/* ---- the shape ------------------------------------------------------------------------------------------- */

static int64_t size_of(quern_dtype dtype) { return (int64_t)base_dtypes[dtype].size; }

/* Bytes that a thread holds of `side` rows and of sums, between passes. What is the same in all rows is read again, from the nearest
** cache, and what only the last pass wants is loaded there. */
static int64_t held_bytes(const struct reduce *rd, int side) {
  int64_t row = 0, sums = 0;
  for (size_t i = 0; i < rd->n_loads; i++)
    if (!rd->loads[i].same && rd->loads[i].first < rd->n_passes - 1) row += size_of(rd->loads[i].point.tensor->dtype);
  for (size_t i = 0; i < rd->n_keeps; i++) row += size_of(rd->keeps[i].point.tensor->dtype);
  for (size_t i = 0; i < rd->n_column_reductions; i++) sums += size_of(rd->column_reductions[i].acc);
  return (side * row + sums) * (rd->steps * rd->lanes / rd->block_threads);
}

static bool can_hold(const struct reduce *rd, int side) {
  return rd->steps <= REDUCE_MOST_STEPS &&
         held_bytes(rd, side) <= (rd->block_threads < REDUCE_MOST_BLOCK ? MOST_HELD : MOST_HELD / 2);
}

static int64_t sum_bytes(const struct reduce *rd) {
  int64_t bytes = 0;
  for (size_t i = 0; i < rd->n_column_reductions; i++)
    bytes += rd->steps * rd->lanes * size_of(rd->column_reductions[i].acc);
  return bytes;
}

/* More threads share a row until it is held; what is read is loaded at once, but for what only the last pass wants. */
void gpu_reduce_fused_columns_shape(struct reduce *rd) {
  while (!can_hold(rd, 1) && rd->block_threads < REDUCE_MOST_BLOCK && rd->block_threads < rd->lanes)
    rd->block_threads *= 2;
  rd->fits = can_hold(rd, 1);
  rd->block_rows = rd->fits && can_hold(rd, 2) && rd->n_strips % 2 == 0 ? 2 : 1;
  bool shared = sum_bytes(rd) <= sched_shared(rd->job->target);
  rd->sums = rd->fits ? REDUCE_IN_VARS : shared ? REDUCE_IN_LOCAL : REDUCE_IN_WORK;
  for (size_t i = 0; i < rd->n_loads && rd->fits; i++) {
    rd->loads[i].again = rd->loads[i].same;
    if (rd->loads[i].first < rd->n_passes - 1) rd->loads[i].first = 0;
  }
}

/* Occupancy: thread blocks that an SM has registers for at a time. */
static int blocks_per_sm(const struct reduce *rd) {
  return BASE_MAX(rd->job->target->registers_per_sm / REGISTERS / rd->block_threads, 1);
}

/* ---- sums ------------------------------------------------------------------------------------------------ */

/* Of sums in memory: where those of an element lie. */
static kern_id place_of(struct reduce *rd, kern_id at) {
  return rd->sums == REDUCE_IN_WORK ? kern_add(&rd->b, rd->row_work, at) : at;
}

void gpu_reduce_fused_columns_take(struct reduce *rd, int q, int step, kern_id at) {
  struct kern_builder *b = &rd->b;
  for (size_t i = 0; i < rd->n_column_reductions; i++) {
    const struct reduce_stage *cross = &rd->column_reductions[i];
    if (cross->pass != q || rd->job->kern->failed != QUERN_STATUS_OK) continue;
    struct reduce_value x = {reduce_source(rd, cross, rd->lanes), KERN_NONE}, acc = {KERN_NONE, KERN_NONE};
    if (rd->sums == REDUCE_IN_VARS) {
      kern_id var = rd->column_acc[i * (size_t)rd->steps + (size_t)step];
      acc.value = kern_get(b, var);
      kern_set(b, var, reduce_take(rd, cross, acc, x).value);
    } else {
      kern_id place = place_of(rd, at);
      acc.value = kern_load(b, rd->column_acc[i], place, rd->lanes);
      kern_store(b, rd->column_acc[i], place, reduce_take(rd, cross, acc, x).value);
    }
  }
}

static void begin_sums(struct reduce *rd) {
  struct kern_builder *b = &rd->b;
  int64_t width = rd->steps * rd->lanes;
  for (size_t i = 0; i < rd->n_column_reductions; i++) {
    const struct reduce_stage *cross = &rd->column_reductions[i];
    kern_id neutral = reduce_neutral(rd, cross, rd->lanes).value;
    if (rd->sums == REDUCE_IN_VARS) {
      for (int64_t s = 0; s < rd->steps; s++) rd->column_acc[(int64_t)i * rd->steps + s] = kern_var(b, neutral);
      continue;
    }
    rd->column_acc[i] = rd->sums == REDUCE_IN_LOCAL ? kern_local(b, cross->acc, width) : kern_mem(b, cross->work);
    kern_id at = place_of(rd, kern_range(b, 0, width, rd->lanes));
    kern_store(b, rd->column_acc[i], at, neutral);
    kern_end(b);
  }
}

static void end_sums(struct reduce *rd) {
  struct kern_builder *b = &rd->b;
  for (size_t i = 0; i < rd->n_column_reductions && rd->sums != REDUCE_IN_WORK; i++) {
    const struct reduce_stage *cross = &rd->column_reductions[i];
    struct reduce_value sum = {KERN_NONE, KERN_NONE};
    for (int64_t s = 0; rd->sums == REDUCE_IN_VARS && s < rd->steps; s++) {
      sum.value = kern_get(b, rd->column_acc[(int64_t)i * rd->steps + s]);
      reduce_partial_store(rd, cross, kern_add_i(b, rd->row_work, s * rd->lanes), sum);
    }
    if (rd->sums == REDUCE_IN_VARS) continue;
    kern_id at = kern_range(b, 0, rd->steps * rd->lanes, rd->lanes);
    sum.value = kern_load(b, rd->column_acc[i], at, rd->lanes);
    reduce_partial_store(rd, cross, kern_add(b, rd->row_work, at), sum);
    kern_end(b);
  }
}

/* ---- tasks ----------------------------------------------------------------------------------------------- */

static quern_status emit_tasks(struct reduce *rd, int64_t run) {
  struct kern_builder *b = &rd->b;
  QUERN_TRY(gpu_reduce_begin(rd, (rd->n_strips + run - 1) / run, rd->block_threads));
  rd->job->kern->phases[rd->job->kern->n_phases - 1].min_blocks_per_sm = blocks_per_sm(rd);
  kern_id task = kern_task(b), lo = kern_mul_i(b, task, run);
  rd->row_work = kern_mul_i(b, task, rd->steps * rd->lanes);
  begin_sums(rd);
  kern_id row = kern_for(b, lo, kern_min_i(b, kern_add_i(b, lo, run), rd->n_strips), rd->block_rows);
  gpu_reduce_row(rd, row, kern_min_i(b, kern_add_i(b, row, rd->block_rows), rd->n_strips - rd->block_rows));
  kern_end(b);
  end_sums(rd);
  return QUERN_STATUS_OK;
}

quern_status gpu_reduce_fused_columns(struct reduce *rd) {
  int64_t multiprocessors = rd->job->target->multiprocessors;
  int64_t most = BASE_MAX(BASE_MIN(multiprocessors * blocks_per_sm(rd), rd->n_strips / LEAST_RUN), multiprocessors);
  int64_t run = (rd->n_strips + most - 1) / most;
  run = (run + rd->block_rows - 1) / rd->block_rows * rd->block_rows;
  struct reduce_partial p = {.n_stages = rd->n_column_reductions,
                             .stages = rd->column_reductions,
                             .rows = (rd->n_strips + run - 1) / run,
                             .others = 1,
                             .width = rd->steps * rd->lanes,
                             .loop = rd->nest.n_outer,
                             .outs = -3};
  reduce_partial_plan(rd, &p);
  QUERN_TRY(emit_tasks(rd, run));
  rd->block_rows = 1;
  return reduce_partial_merge(rd, &p);
}
