/* sched/reduce_share.c -- the last pass of a block of rows that have the same accumulators over the rows
** Of each vector of columns the rows are taken one after another, so that accumulators, and whatever else is the same in
** all rows, are read and written once for all of them.
** keeps: the order of kern.h; everything is loaded before anything is stored: rows that lie a multiple of a page apart
**        look like one to a CPU that compares the lower bits of addresses
** tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

struct share {
  struct reduce *rd;
  int q;
  kern_id *rows;  /* their numbers */
  kern_id *next;  /* those of the next block, or KERN_NONE */
  kern_id *fixed; /* what stays the same along a row: of row i from i * n_fixed on */
  kern_id *sums;  /* a fused column reduction */
  kern_id *outs;  /* of row i from i * n_outs on */
  int64_t room;
};

bool reduce_may_share(const struct reduce *rd) {
  int last = rd->n_passes - 1, shared = 0;
  for (size_t i = 0; i < rd->n_stages; i++)
    if (rd->stages[i].pass == last) return false;
  for (size_t i = 0; i < rd->n_column_reductions; i++) shared += rd->column_reductions[i].pass == last;
  return shared > 0 && rd->count <= KERN_CHUNK;
}

static bool alloc(struct share *s) {
  struct reduce *rd = s->rd;
  size_t side = (size_t)rd->block_rows;
  s->rows = base_arena_alloc(rd->arena, side * sizeof *s->rows);
  s->fixed = base_arena_alloc(rd->arena, (side * rd->fixed[s->q].n + 1) * sizeof *s->fixed);
  s->sums = base_arena_alloc(rd->arena, rd->n_column_reductions * sizeof *s->sums);
  s->outs = base_arena_alloc(rd->arena, side * rd->job->group->n_outs * sizeof *s->outs);
  s->next = base_arena_alloc(rd->arena, side * sizeof *s->next);
  return s->next != NULL && s->rows != NULL && s->fixed != NULL && s->sums != NULL && s->outs != NULL;
}

static void enter_row(struct share *s, int i) {
  struct reduce *rd = s->rd;
  kern_values_enter(rd->values);
  sched_nest_set(&rd->nest, &rd->b, rd->values, 0, rd->nest.n_outer, -1, s->rows[i]);
}

/* What is known of the rows before the pass. */
static void find_fixed(struct share *s) {
  struct reduce *rd = s->rd;
  const struct sched_points *fixed = &rd->fixed[s->q];
  for (int i = 0; i < (int)rd->block_rows; i++) {
    enter_row(s, i);
    reduce_block_known(rd, s->q, kern_index(&rd->b, i));
    for (size_t k = 0; k < fixed->n; k++) {
      const struct sched_point *p = &fixed->at[k];
      s->fixed[(size_t)i * fixed->n + k] = kern_values_get(rd->values, p->tensor, p->tensor->rank, p->at);
    }
    kern_values_leave(rd->values);
  }
}

/* Row i stands at the vector of columns from `at` on, with what is known of it. */
static void enter_vector(struct share *s, int i, kern_id at, kern_id active) {
  struct reduce *rd = s->rd;
  const struct sched_points *fixed = &rd->fixed[s->q];
  enter_row(s, i);
  kern_values_set(rd->values, rd->nest.loops[rd->nest.n_outer].var, at, rd->lanes, active);
  for (size_t k = 0; k < fixed->n; k++) {
    const struct sched_point *p = &fixed->at[k];
    kern_values_bind(rd->values, p->tensor, p->tensor->rank, p->at, s->fixed[(size_t)i * fixed->n + k]);
  }
  kern_id kept = kern_add_i(&rd->b, at, (int64_t)i * s->room);
  for (size_t k = 0; k < rd->n_keeps; k++)
    if (rd->keeps[k].made < s->q) reduce_keep_bind(rd, &rd->keeps[k], kept, rd->lanes, active);
}

static void take_row(struct share *s, int i, kern_id at, kern_id active) {
  struct reduce *rd = s->rd;
  const struct pass_group *group = rd->job->group;
  enter_vector(s, i, at, active);
  for (size_t k = 0; k < rd->n_column_reductions; k++) {
    const struct reduce_stage *cross = &rd->column_reductions[k];
    if (cross->pass != s->q) continue;
    struct reduce_value x = {reduce_source(rd, cross, rd->lanes), KERN_NONE}, sum = {s->sums[k], KERN_NONE};
    s->sums[k] = reduce_join(rd, cross, sum, x).value;
  }
  for (size_t k = 0; k < group->n_outs; k++) {
    const quern_tensor *t = group->outs[k].tensor;
    if (rd->out_pass[k] == s->q)
      s->outs[(size_t)i * group->n_outs + k] = kern_values_get(rd->values, t, t->rank, rd->nest.outs[k]);
  }
  kern_values_leave(rd->values);
}

static void store_row(struct share *s, int i, kern_id at, kern_id active) {
  struct reduce *rd = s->rd;
  size_t n = rd->job->group->n_outs;
  enter_vector(s, i, at, active);
  for (size_t k = 0; k < n; k++)
    if (rd->out_pass[k] == s->q)
      sched_store_at(rd->job, &rd->b, rd->values, k, rd->nest.outs[k], s->outs[(size_t)i * n + k], active);
  kern_values_leave(rd->values);
}

/* The vector of columns from `at` on, the first n lanes of it (0: all), of all rows; number v of its step. */
static void emit_vector(struct share *s, kern_id at, int n, int64_t v) {
  struct reduce *rd = s->rd;
  struct kern_builder *b = &rd->b;
  kern_id active = n > 0 ? kern_index(b, n) : KERN_NONE, index = kern_add(b, rd->row_work, at);
  if (rd->job->kern->failed != QUERN_STATUS_OK) return;
  for (size_t k = 0; k < rd->n_column_reductions; k++)
    if (rd->column_reductions[k].pass == s->q)
      s->sums[k] = kern_load(b, kern_mem(b, rd->column_reductions[k].work), index, rd->lanes);
  for (int i = 0; i < (int)rd->block_rows; i++) take_row(s, i, at, active);
  for (size_t k = 0; k < rd->n_column_reductions; k++)
    if (rd->column_reductions[k].pass == s->q)
      kern_store(b, kern_mem(b, rd->column_reductions[k].work), index, s->sums[k]);
  for (int i = 0; i < (int)rd->block_rows; i++) {
    rd->next = s->next[i];
    reduce_prefetch(rd, s->q, at, v * rd->lanes);
    store_row(s, i, at, active);
  }
}

static void emit_columns(struct share *s) {
  struct reduce *rd = s->rd;
  struct kern_builder *b = &rd->b;
  int64_t unroll = BASE_MAX(rd->job->sched->unroll / rd->block_rows, 1), step = unroll * rd->lanes;
  int64_t whole = rd->count / step, from = whole * step;
  if (whole > 0) {
    kern_id at = kern_mul_i(b, kern_range(b, 0, whole, 1), step);
    kern_values_enter(rd->values);
    for (int64_t u = 0; u < unroll; u++) emit_vector(s, kern_add_i(b, at, u * rd->lanes), 0, u);
    kern_values_leave(rd->values);
    kern_end(b);
  }
  for (; from < rd->count; from += rd->lanes)
    emit_vector(s, kern_index(b, from), (int)(rd->count - from < rd->lanes ? rd->count - from : 0), 0);
  kern_values_set(rd->values, rd->nest.loops[rd->nest.n_outer].var, kern_index(b, 0), 1, KERN_NONE);
}

void reduce_share_rows(struct reduce *rd, kern_id lo, kern_id hi, int64_t room) {
  struct share s = {.rd = rd, .q = rd->n_passes - 1, .room = room};
  if (!alloc(&s)) {
    rd->job->kern->failed = QUERN_STATUS_MEMORY;
    return;
  }
  for (int64_t i = 0; i < rd->block_rows; i++) {
    kern_id row = kern_add_i(&rd->b, lo, i);
    reduce_prefetch_next(rd, row, rd->block_rows, hi);
    s.next[i] = rd->next;
    s.rows[i] = reduce_fused_columns_row(rd, row);
  }
  find_fixed(&s);
  emit_columns(&s);
  for (int i = 0; i < (int)rd->block_rows; i++) { /* the rows' own outs */
    enter_row(&s, i);
    reduce_block_known(rd, s.q, kern_index(&rd->b, i));
    reduce_store(rd, -1, KERN_NONE);
    kern_values_leave(rd->values);
  }
}
