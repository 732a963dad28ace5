/* sched/reduce_row.c -- REDUCE groups along their rows: the reduced variable has lanes, a row strip is one row
** The accumulators of a chunk are n_acc / lanes vectors in variables; vector v of a block of elements goes to vector v
** of them.
** keeps: the order of kern.h; lanes beyond the end of a row take the neutral element, which changes no accumulator
** tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

/* Vectors of a block: as many as the most accumulators fill; without stages the schedule's unroll. */
static int block_vectors(const struct reduce *rd, int q) {
  int vectors = 0;
  for (size_t i = 0; i < rd->n_stages; i++)
    if (rd->stages[i].pass == q) vectors = BASE_MAX(vectors, rd->stages[i].n_acc / rd->lanes);
  return vectors > 0 ? vectors : BASE_MAX(rd->job->sched->unroll, 1);
}

/* Lanes below n take x, the others the neutral element. */
static kern_id only(struct reduce *rd, const struct reduce_stage *stage, kern_id x, int n) {
  struct kern_builder *b = &rd->b;
  kern_id mask = kern_lane(b, QUERN_DTYPE_I32, rd->lanes);
  mask = kern_bin(b, KERN_LT, mask, kern_const_i(b, QUERN_DTYPE_I32, rd->lanes, n));
  return kern_select(b, mask, x, kern_neutral(b, stage->reduce, stage->acc, rd->lanes));
}

void reduce_row_take(struct reduce *rd, size_t i, kern_id value, kern_id at, int n, int v) {
  struct kern_builder *b = &rd->b;
  const struct reduce_stage *stage = &rd->stages[i];
  struct reduce_value x = {n > 0 ? only(rd, stage, value, n) : value, KERN_NONE};
  struct reduce_value acc = rd->accs[i * KERN_MAX_LANES + (size_t)(v % (stage->n_acc / rd->lanes))];
  if (stage->arg) {
    kern_id first = kern_splat(b, kern_cast(b, at, QUERN_DTYPE_I32), rd->lanes);
    x.index = kern_add(b, first, kern_lane(b, QUERN_DTYPE_I32, rd->lanes));
  }
  reduce_set(rd, stage, acc, reduce_take(rd, stage, reduce_get(rd, stage, acc), x));
}

bool reduce_row_begin(struct reduce *rd, int q) {
  bool any = false;
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    for (int v = 0; stage->pass == q && v < stage->n_acc / rd->lanes; v++)
      rd->accs[i * KERN_MAX_LANES + (size_t)v] = reduce_var(rd, stage, reduce_neutral(rd, stage, rd->lanes));
    any = any || stage->pass == q;
  }
  return any;
}

void reduce_row_end(struct reduce *rd, int q, struct reduce_value *part) {
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    struct reduce_value last[KERN_MAX_LANES];
    if (stage->pass != q) continue;
    for (int v = 0; v < stage->n_acc / rd->lanes; v++)
      last[v] = reduce_get(rd, stage, rd->accs[i * KERN_MAX_LANES + (size_t)v]);
    part[i] = reduce_tree(rd, stage, stage->n_acc / rd->lanes, last);
  }
}

/* One vector of elements from `at` on, the first n lanes of it (0: all), vector number v of its block. */
static void emit_vector(struct reduce *rd, int q, kern_id at, int n, int v) {
  struct kern_builder *b = &rd->b;
  kern_id active = n > 0 ? kern_index(b, n) : KERN_NONE;
  kern_id kept = rd->keep_base == KERN_NONE ? at : kern_add(b, rd->keep_base, at);
  kern_values_enter(rd->values);
  kern_values_set(rd->values, rd->nest.loops[rd->nest.n_outer].var, at, rd->lanes, active);
  for (size_t i = 0; i < rd->n_keeps; i++)
    if (rd->keeps[i].made < q) reduce_keep_bind(rd, &rd->keeps[i], kept, rd->lanes, active);
  for (size_t i = 0; i < rd->n_keeps; i++)
    if (rd->keeps[i].made == q) reduce_keep_store(rd, &rd->keeps[i], kept, rd->lanes);
  for (size_t i = 0; i < rd->n_stages; i++)
    if (rd->stages[i].pass == q) reduce_row_take(rd, i, reduce_source(rd, &rd->stages[i], rd->lanes), at, n, v);
  reduce_fused_columns_take(rd, q, at);
  reduce_prefetch(rd, q, at, (int64_t)v * rd->lanes);
  reduce_store(rd, q, active);
  kern_values_leave(rd->values);
}

static void emit_block(struct reduce *rd, int q, kern_id at, int vectors) {
  for (int v = 0; v < vectors; v++)
    emit_vector(rd, q, kern_add(&rd->b, at, kern_index(&rd->b, (int64_t)v * rd->lanes)), 0, v);
}

static void range(struct reduce *rd, int q, kern_id base, int64_t n, struct reduce_value *part) {
  struct kern_builder *b = &rd->b;
  int vectors = block_vectors(rd, q);
  int64_t block = (int64_t)vectors * rd->lanes, whole = n / block;
  (void)reduce_row_begin(rd, q);
  if (whole > 1) {
    kern_id number = kern_range(b, 0, whole, 1);
    kern_values_enter(rd->values);
    emit_block(rd, q, kern_add(b, base, kern_mul(b, number, kern_index(b, block))), vectors);
    kern_values_leave(rd->values);
    kern_end(b);
  } else if (whole == 1) {
    emit_block(rd, q, base, vectors);
  }
  for (int64_t at = whole * block; at < n; at += rd->lanes) {
    int rest = n - at < rd->lanes ? (int)(n - at) : 0;
    emit_vector(rd, q, kern_add(b, base, kern_index(b, at)), rest, (int)((at - whole * block) / rd->lanes));
  }
  kern_values_set(rd->values, rd->nest.loops[rd->nest.n_outer].var, kern_index(b, 0), 1, KERN_NONE);
  reduce_row_end(rd, q, part);
}

void reduce_row_results(struct reduce *rd, int q) {
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass != q) continue;
    kern_id result = reduce_result(rd, stage, rd->total[i]);
    kern_values_bind(rd->values, stage->result, stage->result->rank, stage->result_at, result);
  }
}

static void emit_row(struct reduce *rd, kern_id row) {
  kern_values_enter(rd->values);
  sched_nest_set(&rd->nest, &rd->b, rd->values, 0, rd->nest.n_outer, -1, row);
  if (rd->phase == REDUCE_MERGE) {
    reduce_merged(rd, row);
    reduce_row_results(rd, 0);
  }
  for (int q = 0; rd->phase == REDUCE_WHOLE && q < rd->n_passes; q++) {
    sched_points_get(rd->values, &rd->fixed[q]);
    reduce_totals(rd, q);
    reduce_row_results(rd, q);
  }
  reduce_store(rd, -1, KERN_NONE);
  kern_values_leave(rd->values);
}

void reduce_row_loop(struct reduce *rd, kern_id lo, kern_id hi, int64_t room) {
  int64_t side = rd->phase == REDUCE_WHOLE ? rd->block_rows : 1;
  if (side > 1) reduce_block_locals(rd);
  kern_id row = kern_for(&rd->b, lo, hi, side);
  if (side > 1) {
    reduce_block_rows(rd, row, hi, room);
  } else {
    reduce_prefetch_next(rd, row, 1, hi);
    emit_row(rd, reduce_fused_columns_row(rd, row));
    rd->next = KERN_NONE;
  }
  kern_end(&rd->b);
}

/* Tasks are `grain` rows. */
static quern_status emit_rows(struct reduce *rd, int64_t room) {
  struct kern_builder *b = &rd->b;
  int64_t side = rd->phase == REDUCE_WHOLE ? rd->block_rows : 1, rows = rd->n_strips;
  int64_t grain = BASE_MAX(rd->job->sched->grain / side, 1) * side;
  QUERN_TRY(reduce_begin(rd, (rows + grain - 1) / grain, room * side));
  if (rd->packed) reduce_pack_locals(rd);
  if (rows == 1) {
    emit_row(rd, kern_index(b, 0));
    return QUERN_STATUS_OK;
  }
  kern_id lo = kern_mul_i(b, kern_task(b), grain);
  reduce_row_loop(rd, lo, kern_min_i(b, kern_add(b, lo, kern_index(b, grain)), rows), room);
  return QUERN_STATUS_OK;
}

quern_status reduce_rows(struct reduce *rd, int64_t room) {
  rd->range = rd->packed ? reduce_range_packed : range;
  rd->accs = base_arena_alloc(rd->arena, rd->n_stages * KERN_MAX_LANES * sizeof *rd->accs);
  if (rd->accs == NULL) return QUERN_STATUS_MEMORY;
  rd->phase = REDUCE_WHOLE;
  reduce_prefetch_plan(rd);
  QUERN_TRY(reduce_block_plan(rd, room));
  if (rd->n_column_reductions > 0) return reduce_fused_columns(rd, room);
  if (!rd->split) return emit_rows(rd, room);
  int64_t parts = reduce_parts(rd);
  QUERN_TRY(reduce_begin(rd, rd->n_strips * parts, room));
  if (rd->packed) reduce_pack_locals(rd);
  kern_id task = kern_task(&rd->b), row = kern_idiv(&rd->b, task, parts);
  sched_nest_set(&rd->nest, &rd->b, rd->values, 0, rd->nest.n_outer, -1, row);
  sched_points_get(rd->values, &rd->fixed[0]);
  reduce_part(rd, row, kern_imod(&rd->b, task, parts));
  rd->phase = REDUCE_MERGE;
  return emit_rows(rd, room);
}
