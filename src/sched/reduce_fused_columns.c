/* sched/reduce_fused_columns.c -- fused column reductions: REDUCE groups whose elements are also summed over the rows, as a bias' gradient is
** The order of kern.h gives the rows of a chunk to n_acc accumulators in turn. So a task has the rows of a few
** neighboring accumulators: it goes through them as any group does, and adds each element to its place in the row's
** accumulators in memory, which stay in a cache. A second phase joins the accumulators of all tasks, column by column.
** keeps: the order of kern.h; what a row needs is read once
** tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

enum { MOST_RUN = 64, STRIP = 4 }; /* STRIP: vectors of columns a task of the second phase */

static int accumulators(const struct reduce *rd) { return rd->column_reductions[0].n_acc; }
static int64_t chunks(const struct reduce *rd) { return (rd->n_strips + KERN_CHUNK - 1) / KERN_CHUNK; }
static int64_t padded(const struct reduce *rd) { return (rd->count + rd->lanes - 1) / rd->lanes * rd->lanes; }

/* Neighboring rows lie one behind the other in memory; but there must be tasks enough, and accumulators must stay near. */
static void choose_run(struct reduce *rd) {
  int64_t most = rd->job->target->l2_bytes / 2, n = accumulators(rd) * chunks(rd), bytes = 0;
  int64_t threads = rd->job->target->threads, enough = threads > 1 ? 2 * threads : 1;
  for (size_t i = 0; i < rd->n_column_reductions; i++)
    bytes += padded(rd) * (int64_t)base_dtypes[rd->column_reductions[i].acc].size;
  rd->run = 1;
  while (rd->run < BASE_MIN(MOST_RUN, accumulators(rd)) && rd->n_strips % (2 * rd->run) == 0 &&
         2 * rd->run * bytes <= most && n / (2 * rd->run) >= enough)
    rd->run *= 2;
}

/* Whether all tasks have as many rows. */
static bool are_even(const struct reduce *rd) {
  return rd->n_strips % (rd->n_strips <= KERN_CHUNK ? accumulators(rd) : KERN_CHUNK) == 0;
}

int64_t reduce_fused_columns_rounds(const struct reduce *rd) {
  return are_even(rd) ? BASE_MIN(rd->n_strips, KERN_CHUNK) / accumulators(rd) : 0;
}

void reduce_fused_columns_plan(struct reduce *rd) {
  if (rd->n_column_reductions > 0) choose_run(rd);
  for (size_t i = 0; i < rd->n_column_reductions; i++)
    rd->column_reductions[i].work = kern_add_mem(rd->job->kern, rd->column_reductions[i].acc, KERN_WORK,
                                                 chunks(rd) * accumulators(rd) * padded(rd));
}

kern_id reduce_fused_columns_row(struct reduce *rd, kern_id number) {
  struct kern_builder *b = &rd->b;
  if (rd->row_first == KERN_NONE) return number;
  kern_id of_block = rd->share ? kern_imod(b, number, rd->block_rows) : KERN_NONE;
  if (rd->share) number = kern_idiv(b, number, rd->block_rows);
  kern_id round = kern_idiv(b, number, rd->run), place = kern_imod(b, number, rd->run);
  if (rd->share) round = kern_add(b, kern_mul_i(b, round, rd->block_rows), of_block);
  kern_id acc = kern_add(b, kern_mul_i(b, kern_task(b), rd->run), place);
  rd->row_work = kern_mul(b, acc, kern_index(b, padded(rd)));
  kern_id row = kern_add(b, rd->row_first, kern_mul(b, round, kern_index(b, accumulators(rd))));
  row = kern_add(b, row, place);
  return are_even(rd) ? row : kern_min(b, row, kern_index(b, rd->n_strips - 1));
}

void reduce_fused_columns_take(struct reduce *rd, int q, kern_id at) {
  struct kern_builder *b = &rd->b;
  for (size_t i = 0; i < rd->n_column_reductions; i++) {
    const struct reduce_stage *cross = &rd->column_reductions[i];
    if (cross->pass != q || rd->job->kern->failed != QUERN_STATUS_OK) continue;
    kern_id mem = kern_mem(b, cross->work), index = kern_add(b, rd->row_work, at);
    struct reduce_value x = {reduce_source(rd, cross, rd->lanes), KERN_NONE};
    struct reduce_value acc = {kern_load(b, mem, index, rd->lanes), KERN_NONE};
    kern_store(b, mem, index, reduce_join(rd, cross, acc, x).value);
  }
}

/* ---- the rows -------------------------------------------------------------------------------------------- */

static void clear(struct reduce *rd) {
  struct kern_builder *b = &rd->b;
  int64_t size = rd->run * padded(rd);
  kern_id first = kern_mul_i(b, kern_task(b), size);
  kern_id at = kern_add(b, first, kern_range(b, 0, size, rd->lanes));
  for (size_t i = 0; i < rd->n_column_reductions; i++) {
    const struct reduce_stage *cross = &rd->column_reductions[i];
    kern_id mem = kern_mem(b, cross->work);
    kern_store(b, mem, at, reduce_neutral(rd, cross, rd->lanes).value);
  }
  kern_end(b);
}

/* How many rows a task has. */
static kern_id rows_of_task(struct reduce *rd) {
  struct kern_builder *b = &rd->b;
  int64_t n = accumulators(rd), most = BASE_MIN(rd->n_strips, KERN_CHUNK) / n;
  if (are_even(rd)) return kern_index(b, most * rd->run);
  kern_id left = kern_sub(b, kern_index(b, rd->n_strips + n - 1), rd->row_first);
  kern_id rounds = kern_min_i(b, kern_max_i(b, kern_idiv(b, left, n), 0), KERN_CHUNK / n);
  return kern_mul(b, rounds, kern_index(b, rd->run));
}

static quern_status emit_rows(struct reduce *rd, int64_t room) {
  struct kern_builder *b = &rd->b;
  int64_t n = accumulators(rd) / rd->run; /* tasks of a chunk */
  QUERN_TRY(reduce_begin(rd, chunks(rd) * n, room * rd->block_rows));
  kern_id task = kern_task(b);
  rd->row_first = kern_mul_i(b, chunks(rd) > 1 ? kern_imod(b, task, n) : task, rd->run);
  if (chunks(rd) > 1) rd->row_first = kern_add(b, kern_mul_i(b, kern_idiv(b, task, n), KERN_CHUNK), rd->row_first);
  clear(rd);
  kern_id zero = kern_index(b, 0);
  reduce_row_loop(rd, zero, rows_of_task(rd), room);
  rd->row_first = KERN_NONE;
  return QUERN_STATUS_OK;
}

/* ---- the accumulators ------------------------------------------------------------------------------------ */

/* What stands at place i once the tree is down to `width` places. Recursion of the tree's depth. */
static kern_id tree(struct reduce *rd, const struct reduce_stage *cross, kern_id at, int width, int i) {
  struct kern_builder *b = &rd->b;
  if (width == accumulators(rd)) {
    kern_id index = kern_add(b, at, kern_index(b, i * padded(rd)));
    return kern_load(b, kern_mem(b, cross->work), index, rd->lanes);
  }
  kern_id x = tree(rd, cross, at, 2 * width, i), y = tree(rd, cross, at, 2 * width, i + width);
  return kern_combine(b, cross->reduce, x, y);
}

/* The columns from `at` on, of all chunks. */
static kern_id total(struct reduce *rd, const struct reduce_stage *cross, kern_id at) {
  struct kern_builder *b = &rd->b;
  if (chunks(rd) == 1) return tree(rd, cross, at, 1, 0);
  kern_id sum = kern_var(b, reduce_neutral(rd, cross, rd->lanes).value);
  kern_id chunk = kern_range(b, 0, chunks(rd), 1);
  kern_id from = kern_mul(b, chunk, kern_index(b, accumulators(rd) * padded(rd)));
  kern_id next = tree(rd, cross, kern_add(b, from, at), 1, 0);
  kern_set(b, sum, kern_combine(b, cross->reduce, kern_get(b, sum), next));
  kern_end(b);
  return kern_get(b, sum);
}

/* One vector of columns, the first n lanes of it (0: all). */
static void emit_columns(struct reduce *rd, kern_id at, int n) {
  const struct pass_group *group = rd->job->group;
  kern_id active = n > 0 ? kern_index(&rd->b, n) : KERN_NONE;
  kern_values_enter(rd->values);
  kern_values_set(rd->values, rd->nest.loops[rd->nest.n_outer].var, at, rd->lanes, active);
  for (size_t i = 0; i < rd->n_column_reductions; i++) {
    const struct reduce_stage *cross = &rd->column_reductions[i];
    struct reduce_value sum = {total(rd, cross, at), KERN_NONE};
    kern_values_bind(rd->values, cross->result, cross->result->rank, cross->result_at, reduce_result(rd, cross, sum));
  }
  for (size_t i = 0; i < group->n_outs; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    if (rd->out_pass[i] != -3) continue;
    kern_id x = kern_values_get(rd->values, t, t->rank, rd->nest.outs[i]);
    sched_store_at(rd->job, &rd->b, rd->values, i, rd->nest.outs[i], x, active);
  }
  kern_values_leave(rd->values);
}

static quern_status emit_merge(struct reduce *rd) {
  struct kern_builder *b = &rd->b;
  int64_t whole = rd->count / rd->lanes, tasks = BASE_MAX((whole + STRIP - 1) / STRIP, 1);
  int rest = (int)(rd->count % rd->lanes);
  rd->n_keeps = 0;
  QUERN_TRY(reduce_begin(rd, tasks, 0));
  kern_id task = kern_task(b);
  if (whole > 0) {
    kern_id lo = kern_mul(b, task, kern_index(b, STRIP));
    kern_id vector = kern_for(b, lo, kern_min_i(b, kern_add(b, lo, kern_index(b, STRIP)), whole), 1);
    emit_columns(rd, kern_mul(b, vector, kern_index(b, rd->lanes)), 0);
    kern_end(b);
  }
  if (rest == 0) return QUERN_STATUS_OK;
  kern_if(b, kern_bin(b, KERN_EQ, task, kern_index(b, tasks - 1)));
  emit_columns(rd, kern_index(b, whole * rd->lanes), rest);
  kern_end(b);
  return QUERN_STATUS_OK;
}

quern_status reduce_fused_columns(struct reduce *rd, int64_t room) {
  QUERN_TRY(emit_rows(rd, room));
  return emit_merge(rd);
}
