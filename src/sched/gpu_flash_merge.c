/* sched/gpu_flash_merge.c -- split-KV: each task has a split of the keys; what a split stores, and the phase that merges the splits
** in:    in WORK memory, of each query and split: the row's maximum, the sum of its exponentials, the values weighted by these
** how:   splits are weighted as keys are, by their row maxima, and their outputs summed as values are. In a weighted sum of rows, a thread
**        has columns of 16 bytes; the threads form as many row groups as there are threads for, each with rows of its own, which are added last.
** keeps: sums run over rows, row groups and splits in one order: the same bits every time
** see:   gpu_flash.c, gpu_flash_decode.c      tests: tests/sched/test_attention.c
*/
#include <math.h>

#include "sched/gpu_flash.h"

/* ---- sums of rows by weights ------------------------------------------------------------------------------- */

enum { LEAST_ACROSS = 8 }; /* so that a round of all groups is TILE_THREADS rows at most */

void flash_blend_shape(struct flash_blend *s, quern_dtype acc, int rows, int64_t width, int run) {
  int words = (int)base_dtypes[acc].size / 4;
  *s = (struct flash_blend){.rows = rows, .run = run, .across = LEAST_ACROSS, .width = width};
  while (s->run > 1 && rows * s->run * words > FLASH_BLEND_MOST) s->run /= 2;
  int64_t runs = width / s->run;
  while (s->across < runs && s->across < TILE_THREADS) s->across *= 2;
  s->rounds = (int)sched_ceil(runs, s->across);
}

/* Column `round` of the thread: its number, in runs. */
static kern_id run_of(const struct flash *f, const struct flash_blend *s, int round) {
  kern_id column = kern_imod(f->b, f->t.lane, s->across);
  return kern_add(f->b, column, tile_i(&f->t, (int64_t)round * s->across));
}

/* What the thread adds in a round: of `run` columns of its rows. */
static void load_rows(const struct flash *f, const struct flash_blend *s, const struct tile_source *from, kern_id row,
                      kern_id *values) {
  struct kern_builder *b = f->b;
  kern_id mem = kern_at(b, from->mem, from->at), last = tile_all(&f->t, from->last);
  for (int k = 0; k < FLASH_BLEND_ROWS; k++) {
    kern_id at = kern_min(b, kern_add(b, row, tile_i(&f->t, k)), last);
    at = kern_mul(b, at, tile_i(&f->t, from->row));
    for (int round = 0; round < s->rounds; round++) {
      kern_id run = run_of(f, s, round);
      run = kern_min(b, run, tile_i(&f->t, s->width / s->run - 1));
      kern_id place = kern_add(b, at, kern_mul(b, run, tile_i(&f->t, s->run)));
      values[k * s->rounds + round] = kern_gather_n(b, mem, place, s->run);
    }
  }
}

/* Sums of weights' row r += the loaded rows by its weights. */
static void add_row(const struct flash *f, const struct flash_blend *s, int r, kern_id weights, kern_id group,
                    const kern_id *values) {
  struct kern_builder *b = f->b;
  int quad = f->t.quad, columns = s->rounds * s->run;
  for (int k = 0; k < FLASH_BLEND_ROWS; k++) {
    kern_id mem = kern_at(b, weights, kern_index(b, k - k % quad)), quads = kern_gather_n(b, mem, group, quad);
    kern_id weight = kern_deinterleave(b, quads, quad, k % quad);
    for (int c = 0; c < columns; c++) {
      kern_id value = kern_cast(b, values[k * s->rounds + c / s->run], f->acc), sum = s->sum[r * columns + c];
      if (s->run > 1) value = kern_deinterleave(b, value, s->run, c % s->run);
      kern_set(b, sum, kern_fma(b, weight, value, kern_get(b, sum)));
    }
  }
}

void flash_blend_add(struct flash *f, struct flash_blend *s, const struct tile_source *from, kern_id weights,
                     int64_t stride, kern_id rows) {
  struct kern_builder *b = f->b;
  int64_t groups = TILE_THREADS / s->across;
  kern_id values[FLASH_BLEND_ROWS * 2], zero = kern_index(b, 0), nothing = tile_f(&f->t, 0);
  for (int i = 0; i < s->rows * s->rounds * s->run; i++) s->sum[i] = kern_var(b, nothing);
  kern_id first = kern_for(b, zero, rows, groups * FLASH_BLEND_ROWS), group = kern_idiv(b, f->t.lane, s->across);
  group = kern_mul(b, group, tile_i(&f->t, FLASH_BLEND_ROWS));
  kern_id row = tile_all(&f->t, kern_add(b, from->first, first));
  load_rows(f, s, from, kern_add(b, row, group), values);
  for (int r = 0; r < s->rows; r++) {
    kern_id at = kern_add_i(b, first, r * stride);
    add_row(f, s, r, kern_at(b, weights, at), group, values);
  }
  kern_end(b);
}

/* Elements of a group's sums in LOCAL memory: rows, rounds, places in a run, columns. */
static int64_t row_group_size(const struct flash_blend *s) { return (int64_t)s->rows * s->rounds * s->run * s->across; }
int64_t flash_blend_count(const struct flash_blend *s) { return row_group_size(s) * (TILE_THREADS / s->across); }

void flash_blend_put(struct flash *f, const struct flash_blend *s, kern_id mem) {
  struct kern_builder *b = f->b;
  kern_id group = kern_idiv(b, f->t.lane, s->across), column = kern_imod(b, f->t.lane, s->across);
  kern_id at = kern_add(b, kern_mul(b, group, tile_i(&f->t, row_group_size(s))), column);
  for (int i = 0; i < s->rows * s->rounds * s->run; i++) {
    kern_id to = kern_at(b, mem, kern_index(b, (int64_t)i * s->across));
    kern_scatter_n(b, to, at, kern_get(b, s->sum[i]), KERN_NONE);
  }
}

/* Columns first, first + 1, ... of the sums of row r, a lane each; those behind the last are the last. */
static kern_id take_columns(const struct flash *f, const struct flash_blend *s, kern_id mem, int r, int64_t first) {
  struct kern_builder *b = f->b;
  kern_id column = kern_add(b, f->t.lane, tile_i(&f->t, first)), sum = KERN_NONE;
  column = kern_min(b, column, tile_i(&f->t, s->width - 1));
  kern_id run = kern_idiv(b, column, s->run), in_run = kern_imod(b, column, s->run),
          round = kern_idiv(b, run, s->across);
  kern_id at = kern_add(b, kern_mul(b, round, tile_i(&f->t, s->run)), in_run);
  at = kern_mul(b, at, tile_i(&f->t, s->across));
  at = kern_add(b, at, kern_imod(b, run, s->across));
  for (int g = 0; g < TILE_THREADS / s->across; g++) {
    kern_id from = kern_index(b, g * row_group_size(s) + r * (row_group_size(s) / s->rows));
    kern_id x = kern_gather(b, kern_at(b, mem, from), at);
    sum = g == 0 ? x : kern_add(b, sum, x);
  }
  return sum;
}

/* ---- what a split leaves, and results ----------------------------------------------------------------------- */

void flash_add_splits(struct flash *f, int64_t splits, int64_t keys) {
  struct kern *kern = f->job->kern;
  struct flash_splits *p = &f->splits;
  const quern_tensor *q = f->job->group->ins[f->mem[PASS_VIEW_Q]];
  int64_t lines = f->a.batch * f->a.heads * f->a.queries, quad = 16 / (int64_t)base_dtypes[f->acc].size;
  *p = (struct flash_splits){.n = splits, .keys = keys, .row = sched_ceil(f->a.value_width, quad) * quad};
  if (splits == 1) return;
  p->max_mem = kern_add_mem(kern, f->acc, KERN_WORK, lines * splits);
  p->sum_mem = kern_add_mem(kern, f->acc, KERN_WORK, lines * splits);
  p->out_mem = kern_add_mem(kern, f->acc, KERN_WORK, lines * splits * p->row);
  const int mems[] = {p->max_mem, p->sum_mem, p->out_mem};
  for (size_t i = 0; i < BASE_COUNT(mems); i++) sched_work_rows(f->job, mems[i], q, f->a.batch);
}

/* Columns of the row, if it is there, go to memory from `at` on, divided where there is a divisor. */
static void store_columns(struct flash *f, const struct flash_blend *s, kern_id sums, int r, kern_id row_there, int mem,
                          kern_id at, kern_id divisor) {
  struct kern_builder *b = f->b;
  kern_id to = kern_at(b, kern_mem(b, mem), at);
  for (int64_t first = 0; first < s->width; first += TILE_THREADS) {
    kern_id x = take_columns(f, s, sums, r, first), index = tile_i(&f->t, first);
    if (divisor != KERN_NONE) x = kern_bin(b, KERN_DIV, x, tile_all(&f->t, divisor));
    index = kern_add(b, f->t.lane, index);
    kern_id there = kern_bin(b, KERN_LT, index, tile_i(&f->t, s->width));
    if (row_there != KERN_NONE) there = kern_bin(b, KERN_AND, there, tile_all(&f->t, row_there));
    index = kern_min(b, index, tile_i(&f->t, s->width - 1));
    kern_scatter_n(b, to, index, kern_cast(b, x, f->job->kern->mems[mem].dtype), there);
  }
}

/* The number of the current query among all. */
static kern_id line_of(const struct flash *f, kern_id query) {
  kern_id head = kern_add(f->b, kern_mul_i(f->b, f->batch, f->a.heads), f->head);
  return kern_add(f->b, kern_mul_i(f->b, head, f->a.queries), query);
}

void flash_leave_row(struct flash *f, const struct flash_blend *s, kern_id sums, int r, const struct flash_row *row,
                     kern_id split) {
  struct kern_builder *b = f->b;
  kern_id at = kern_add(b, kern_mul_i(b, line_of(f, row->query), f->splits.n), split);
  kern_id row_maxima = kern_mem(b, f->splits.max_mem), totals = kern_mem(b, f->splits.sum_mem);
  kern_store(b, row_maxima, at, row->row_max);
  kern_store(b, totals, at, row->row_sum);
  store_columns(f, s, sums, r, row->is_there, f->splits.out_mem, kern_mul_i(b, at, f->splits.row), KERN_NONE);
}

void flash_finish_row(struct flash *f, const struct flash_blend *s, kern_id sums, int r, const struct flash_row *row) {
  struct kern_builder *b = f->b;
  kern_id zero = kern_const_f(b, f->acc, 1, 0), one = kern_const_f(b, f->acc, 1, 1);
  kern_id none = kern_bin(b, KERN_EQ, row->row_sum, zero), divisor = kern_select(b, none, one, row->row_sum);
  if (f->lse_mem >= 0) {
    kern_id x = kern_math(b, IR_LOG, f->acc, 1, &divisor), nothing = kern_const_f(b, f->acc, 1, -(double)INFINITY);
    x = kern_select(b, none, nothing, kern_add(b, row->row_max, x));
    kern_id lse = kern_mem(b, f->lse_mem), at = line_of(f, row->query);
    kern_store(b, lse, at, kern_cast(b, x, f->job->kern->mems[f->lse_mem].dtype));
  }
  if (f->mem[PASS_VIEW_Y] < 0) return;
  kern_id at = kern_mul_i(b, row->query, f->a.views[PASS_VIEW_Y].row);
  at = kern_add(b, flash_view_at(f, PASS_VIEW_Y), at);
  store_columns(f, s, sums, r, row->is_there, f->mem[PASS_VIEW_Y], at, divisor);
}

/* ---- joining ----------------------------------------------------------------------------------------------- */

kern_id flash_exp_shift(struct flash *f, kern_id row_max) {
  kern_id nothing = kern_const_f(f->b, f->acc, 1, -(double)INFINITY), none = kern_bin(f->b, KERN_EQ, row_max, nothing);
  return kern_select(f->b, none, kern_const_f(f->b, f->acc, 1, 0), row_max);
}

/* Numbers first, first + 1, ... of the line's splits, a lane each; where there is none, `instead`. */
static kern_id load_splits(struct flash *f, int mem, kern_id line, kern_id first, double instead) {
  struct kern_builder *b = f->b;
  kern_id last = tile_i(&f->t, f->splits.n - 1), number = kern_add(b, f->t.lane, tile_all(&f->t, first));
  kern_id there = kern_bin(b, KERN_LE, number, last), memory = kern_mem(b, mem);
  memory = kern_at(b, memory, kern_mul_i(b, line, f->splits.n));
  kern_id x = kern_gather(b, memory, kern_min(b, number, last));
  return kern_select(b, there, x, tile_f(&f->t, instead));
}

/* Weights of the splits of a line to LOCAL memory; the row's maximum and sum. */
static void weigh_splits(struct flash *f, kern_id line, kern_id weights, int64_t padded, struct flash_row *row) {
  struct kern_builder *b = f->b;
  kern_id most = kern_var(b, tile_f(&f->t, -(double)INFINITY)), sum = kern_var(b, tile_f(&f->t, 0));
  kern_id first = kern_range(b, 0, padded, TILE_THREADS);
  kern_id row_max = load_splits(f, f->splits.max_mem, line, first, -(double)INFINITY);
  kern_set(b, most, kern_max(b, kern_get(b, most), row_max));
  kern_end(b);
  row->row_max = kern_hreduce(b, KERN_MAX, kern_get(b, most));
  kern_id from = tile_all(&f->t, flash_exp_shift(f, row->row_max));
  first = kern_range(b, 0, padded, TILE_THREADS);
  row_max = load_splits(f, f->splits.max_mem, line, first, -(double)INFINITY);
  kern_id total = load_splits(f, f->splits.sum_mem, line, first, 0);
  kern_id weight = flash_exp(f, kern_sub(b, row_max, from));
  kern_set(b, sum, kern_fma(b, weight, total, kern_get(b, sum)));
  kern_scatter_n(b, kern_at(b, weights, first), f->t.lane, weight, KERN_NONE);
  kern_end(b);
  row->row_sum = kern_hreduce(b, KERN_ADD, kern_get(b, sum));
}

void flash_merge_phase(struct flash *f) {
  const struct pass_attention *a = &f->a;
  struct flash_splits *p = &f->splits;
  if (p->n == 1) return;
  struct kern_builder builder = flash_phase(f, a->batch * a->heads * a->queries), *b = &builder;
  if (b->kern->failed != QUERN_STATUS_OK) return;
  f->b = b;
  kern_id line = kern_task(b), head = kern_idiv(b, line, a->queries);
  struct flash_row row = {.query = kern_imod(b, line, a->queries), .is_there = KERN_NONE};
  struct flash_blend s;
  f->batch = kern_idiv(b, head, a->heads);
  f->head = kern_imod(b, head, a->heads);
  f->t = tile_begin_flat(b, f->acc);
  flash_blend_shape(&s, f->acc, 1, p->row, f->t.quad);
  int64_t padded = sched_ceil(p->n, TILE_THREADS) * TILE_THREADS, step = TILE_THREADS / s.across * FLASH_BLEND_ROWS;
  kern_id weights = kern_local(b, f->acc, padded), sums = kern_local(b, f->acc, flash_blend_count(&s));
  weigh_splits(f, line, weights, padded, &row);
  struct tile_source from = {.mem = kern_mem(b, p->out_mem), .row = p->row, .width = p->row};
  from.at = kern_mul_i(b, line, p->n * p->row);
  from.first = kern_index(b, 0);
  from.last = kern_index(b, p->n - 1);
  flash_blend_add(f, &s, &from, weights, padded, kern_index(b, sched_ceil(p->n, step) * step));
  flash_blend_put(f, &s, sums);
  s.width = a->value_width;
  flash_finish_row(f, &s, sums, 0, &row);
}
