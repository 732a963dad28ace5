/* sched/reduce_block.c -- REDUCE groups along rows in several passes: a few rows at a time, pass by pass
** What reduces the accumulators of a row and what is computed from the result is a chain of slow instructions; while it runs, the next
** row is under way. What later passes need to know of a row is saved in scratch, one element per row.
** keeps: the rows of a block fit into the first cache; where rows come from memory beyond the last one, they come one by
**        one, as it is they that are waited for
** tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

enum { MOST_SIDE = 4 };

/* ---- planning -------------------------------------------------------------------------------------------- */

/* Bytes of a row that its passes read and write. */
static int64_t row_bytes(const struct reduce *rd, int64_t room) {
  const struct pass_group *group = rd->job->group;
  int64_t bytes = 0;
  for (size_t i = 0; i < group->n_ins; i++)
    if (ir_count(group->ins[i]) >= rd->n_strips * rd->count) bytes += (int64_t)ir_bytes(group->ins[i]) / rd->n_strips;
  for (size_t i = 0; i < group->n_outs; i++)
    if (rd->out_pass[i] >= 0) bytes += (int64_t)ir_bytes(group->outs[i].tensor) / rd->n_strips;
  for (size_t i = 0; i < rd->n_keeps; i++)
    if (rd->keeps[i].out < 0) bytes += room * (int64_t)base_dtypes[rd->keeps[i].point.tensor->dtype].size;
  return bytes;
}

static bool is_noted(const struct reduce *rd, const struct sched_point *point) {
  for (size_t i = 0; i < rd->n_stages; i++)
    if (rd->stages[i].result == point->tensor) return true;
  for (size_t i = 0; i < rd->n_notes; i++)
    if (sched_point_same(&rd->notes[i].point, point)) return true;
  return false;
}

static quern_status find_notes(struct reduce *rd) {
  size_t most = 0;
  for (int q = 0; q < rd->n_passes; q++) most += rd->fixed[q].n;
  rd->notes = base_arena_alloc(rd->arena, (most + 1) * sizeof *rd->notes);
  if (rd->notes == NULL) return QUERN_STATUS_MEMORY;
  for (int q = 0; q < rd->n_passes; q++) {
    for (size_t i = 0; i < rd->fixed[q].n; i++) {
      const struct sched_point *point = &rd->fixed[q].at[i];
      int made = reduce_level(rd, point->tensor) - 1;
      if (made >= 0 && !is_noted(rd, point)) rd->notes[rd->n_notes++] = (struct reduce_note){*point, made, KERN_NONE};
    }
  }
  return QUERN_STATUS_OK;
}

quern_status reduce_block_plan(struct reduce *rd, int64_t room) {
  int64_t enough = rd->job->target->threads > 1 ? 4 * rd->job->target->threads : 1;
  rd->block_rows = 1;
  rd->share = false;
  rd->n_notes = 0;
  if (rd->n_passes == 1 || rd->packed || rd->split || rd->count == 0) return QUERN_STATUS_OK;
  int64_t bytes = row_bytes(rd, room), limit = rd->job->target->l1_bytes / 4 * 3;
  bool far = rd->n_strips * bytes > rd->job->target->l2_bytes; /* then a pass or two are no more than memory gives */
  int64_t most = rd->n_column_reductions > 0 ? BASE_MIN(MOST_SIDE, rd->run) : MOST_SIDE;
  int64_t rounds = rd->n_column_reductions > 0 && reduce_may_share(rd) ? reduce_fused_columns_rounds(rd) : 0;
  rd->share = rounds > 0 && rounds % 2 == 0 && 2 * bytes <= limit && 2 * enough <= rd->n_strips;
  if (rd->share) {
    rd->block_rows = 2;
    return find_notes(rd);
  }
  if (rd->n_strips * bytes > rd->job->target->l3_bytes / 2 || (far && rd->n_passes == 2)) return QUERN_STATUS_OK;
  while (rd->block_rows < most && 2 * rd->block_rows * bytes <= limit && 2 * rd->block_rows * enough <= rd->n_strips)
    rd->block_rows *= 2;
  return rd->block_rows > 1 ? find_notes(rd) : QUERN_STATUS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

void reduce_block_locals(struct reduce *rd) {
  for (size_t i = 0; i < rd->n_stages; i++)
    rd->stages[i].row = kern_local(&rd->b, rd->stages[i].result->dtype, rd->block_rows);
  for (size_t i = 0; i < rd->n_notes; i++)
    rd->notes[i].row = kern_local(&rd->b, rd->notes[i].point.tensor->dtype, rd->block_rows);
}

static void bind_row(struct reduce *rd, const quern_tensor *t, const struct pass_index *const *at, kern_id from,
                     kern_id place) {
  kern_values_bind(rd->values, t, t->rank, at, kern_load(&rd->b, from, place, 1));
}

static void keep_row(struct reduce *rd, const quern_tensor *t, const struct pass_index *const *at, kern_id to,
                     kern_id place) {
  kern_store(&rd->b, to, place, kern_values_get(rd->values, t, t->rank, at));
}

void reduce_block_known(struct reduce *rd, int q, kern_id place) {
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass < q) bind_row(rd, stage->result, stage->result_at, stage->row, place);
  }
  for (size_t i = 0; i < rd->n_notes; i++) {
    const struct reduce_note *note = &rd->notes[i];
    if (note->made < q) bind_row(rd, note->point.tensor, note->point.at, note->row, place);
  }
}

/* Pass q over a row whose number in the block is `place`. */
static void emit_pass(struct reduce *rd, int q, kern_id place) {
  reduce_block_known(rd, q, place);
  sched_points_get(rd->values, &rd->fixed[q]);
  reduce_totals(rd, q);
  reduce_row_results(rd, q);
  if (q + 1 == rd->n_passes) {
    reduce_store(rd, -1, KERN_NONE);
    return;
  }
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass == q) keep_row(rd, stage->result, stage->result_at, stage->row, place);
  }
  for (size_t i = 0; i < rd->n_notes; i++) {
    const struct reduce_note *note = &rd->notes[i];
    if (note->made == q) keep_row(rd, note->point.tensor, note->point.at, note->row, place);
  }
}

void reduce_block_rows(struct reduce *rd, kern_id lo, kern_id hi, int64_t room) {
  struct kern_builder *b = &rd->b;
  kern_id end = kern_min(b, kern_add(b, lo, kern_index(b, rd->block_rows)), hi);
  for (int q = 0; q < rd->n_passes - rd->share; q++) {
    kern_id row = kern_for(b, lo, end, 1), place = kern_imod(b, row, rd->block_rows);
    kern_values_enter(rd->values);
    reduce_prefetch_next(rd, row, rd->block_rows, hi);
    sched_nest_set(&rd->nest, b, rd->values, 0, rd->nest.n_outer, -1, reduce_fused_columns_row(rd, row));
    rd->keep_base = kern_mul(b, place, kern_index(b, room));
    emit_pass(rd, q, place);
    kern_values_leave(rd->values);
    kern_end(b);
  }
  rd->keep_base = KERN_NONE;
  if (rd->share) reduce_share_rows(rd, lo, hi, room);
  rd->next = KERN_NONE;
}
