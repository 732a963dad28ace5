/* sched/gpu_flash_mma.c -- flash attention on GPUs by tensor cores; otherwise as gpu_flash.c
** how:   a warp has one or two tiles of 16 queries, and four tiles of 8 keys pass by at a time; scores become weights where they are, in
**        registers (gpu_mma.h)
** see:   gpu_flash.c, gpu_flash_mma_back.c, docs/design/007-gpu.md      tests: tests/sched/test_attention.c
*/
#include <math.h>

#include "sched/gpu_flash.h"
#include "sched/gpu_mma.h"

struct forward {
  struct flash f;
  struct mma m;
  struct mma_left q;
  struct mma_right k, v;
  struct mma_out out;
  kern_id row_max[2 * MMA_MOST_ROWS], sum[2 * MMA_MOST_ROWS]; /* variables */
  kern_id factor[2 * MMA_MOST_ROWS];                          /* that what was there is less by */
  kern_id score[MMA_SCORES];
  kern_id q0, j0;
};

/* ---- which ---------------------------------------------------------------------------------------------------- */

static int rows_of(const struct pass_attention *a) {
  return a->value_width > MMA_MOST_WIDTH / 2 || a->width > MMA_MOST_WIDTH / 2 ? 1 : 2;
}

static int64_t bytes_of(const struct pass_attention *a, bool split) {
  return mma_left_bytes(rows_of(a), a->width) * (split ? 2 : 1) + mma_right_bytes(a->width, MMA_AS_COLUMNS) +
         mma_right_bytes(a->value_width, MMA_AS_TERMS);
}

bool flash_mma_supports(const struct base_target *target, quern_dtype dtype, const struct pass_attention *a) {
  bool fits = a->width <= MMA_MOST_WIDTH && a->value_width <= MMA_MOST_WIDTH;
  return (target->capabilities & BASE_TENSOR_CORES) != 0 && mma_takes(dtype) && fits &&
         bytes_of(a, false) <= target->shared_bytes;
}

/* ---- scores ----------------------------------------------------------------------------------------------------- */

/* Numbers of the query and the key of score number `at` of a thread. */
static kern_id query_of(const struct forward *w, int at) {
  return mma_row(&w->m, w->q0, at / 4 / MMA_TILES, at % 4 / 2);
}
static kern_id key_of(const struct forward *w, int at) {
  return mma_column(&w->m, &w->k, w->j0, at / 4 % MMA_TILES, at % 2);
}

static void add_mask(struct forward *w) {
  for (int at = 0; at < w->m.rows * MMA_TILES * 4; at++) {
    kern_id query = query_of(w, at), key = key_of(w, at);
    w->score[at] = flash_add_bias(&w->f, query, key, w->score[at]);
  }
}

/* -inf where the key is masked; of blocks that all queries attend to, nothing is asked. */
static void mask_scores(struct forward *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  bool asks = f->mask == NULL || f->mask->dtype != QUERN_DTYPE_BOOL;
  kern_id nothing = tile_f(&f->t, -(double)INFINITY), seen[MMA_SCORES];
  int n = w->m.rows * MMA_TILES * 4;
  for (int at = 0; at < n; at++) seen[at] = kern_var(b, w->score[at]);
  if (asks) {
    kern_id after = kern_add_i(b, w->q0, 1), all = flash_keys_attended(f, after), end = kern_add_i(b, w->j0, MMA_BLOCK);
    kern_if(b, kern_bin(b, KERN_LT, all, end));
  }
  kern_id limit[2 * MMA_MOST_ROWS];
  for (int row = 0; row < 2 * w->m.rows; row++) limit[row] = flash_limit(f, mma_row(&w->m, w->q0, row / 2, row % 2));
  for (int at = 0; at < n; at++) {
    kern_id query = query_of(w, at), key = key_of(w, at);
    kern_id there = flash_attends(f, query, key, limit[at / 4 / MMA_TILES * 2 + at % 4 / 2]);
    kern_set(b, seen[at], kern_select(b, there, kern_get(b, seen[at]), nothing));
  }
  if (asks) kern_end(b);
  for (int at = 0; at < n; at++) w->score[at] = kern_get(b, seen[at]);
}

/* ---- weights ------------------------------------------------------------------------------------------------------ */

/* Weights of a half of a tile's rows, in the place of their scores; the row's maximum and sum follow. */
static void update_online_softmax_row(struct forward *w, int m, int h) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  int row = 2 * m + h;
  kern_id most = KERN_NONE, sum = KERN_NONE, zero = tile_f(&f->t, 0), nothing = tile_f(&f->t, -(double)INFINITY);
  for (int c = 0; c < 2 * MMA_TILES; c++) {
    kern_id x = w->score[(m * MMA_TILES + c / 2) * 4 + 2 * h + c % 2];
    most = c == 0 ? x : kern_max(b, most, x);
  }
  most = mma_row_reduce(&w->m, IR_REDUCE_MAX, most);
  kern_id before = kern_get(b, w->row_max[row]), row_max = kern_max(b, before, most);
  kern_id from = kern_select(b, kern_bin(b, KERN_EQ, row_max, nothing), zero, row_max);
  w->factor[row] = mma_exp_shifted(&w->m, before, from);
  kern_set(b, w->row_max[row], row_max);
  for (int c = 0; c < 2 * MMA_TILES; c++) {
    kern_id *x = &w->score[(m * MMA_TILES + c / 2) * 4 + 2 * h + c % 2];
    *x = mma_exp_shifted(&w->m, *x, from);
    sum = c == 0 ? *x : kern_add(b, sum, *x);
  }
  kern_set(b, w->sum[row], kern_fma(b, kern_get(b, w->sum[row]), w->factor[row], sum));
}

/* Of a block, the outputs follow too. */
static void add_values(struct forward *w) {
  struct mma_pair weight[MMA_MOST_ROWS * MMA_TILES];
  kern_id factor[MMA_MOST_ROWS];
  for (int row = 0; row < 2 * w->m.rows; row++) update_online_softmax_row(w, row / 2, row % 2);
  mma_weights(&w->m, w->score, weight);
  for (int m = 0; m < w->m.rows; m++) {
    const kern_id *x = &w->factor[(ptrdiff_t)2 * m];
    factor[m] = mma_interleave(&w->m, x[0], x[0], x[1], x[1]);
  }
  mma_add(&w->m, &w->out, factor, weight, &w->v);
}

/* ---- results ------------------------------------------------------------------------------------------------------ */

/* The thread that stores what is of a query, not of its columns. */
static kern_id stores_line(const struct forward *w, kern_id query) {
  struct kern_builder *b = w->f.b;
  kern_id there = kern_bin(b, KERN_LT, query, tile_i(&w->f.t, w->f.a.queries));
  return kern_bin(b, KERN_AND, there, kern_bin(b, KERN_EQ, w->m.u, tile_i(&w->f.t, 0)));
}

/* What the part leaves. */
static void store_split(const struct forward *w, const kern_id *sum) {
  struct flash f = w->f;
  struct kern_builder *b = f.b;
  const struct flash_splits *p = &f.splits;
  for (int row = 0; row < 2 * w->m.rows; row++) {
    kern_id query = mma_row(&w->m, w->q0, row / 2, row % 2), at = flash_line(&f, query, f.a.queries);
    at = mma_times(&w->m, at, p->n);
    at = kern_add(b, at, tile_all(&f.t, f.split));
    kern_id row_maxima = kern_mem(b, p->max_mem), totals = kern_mem(b, p->sum_mem), there = stores_line(w, query);
    kern_scatter_n(b, row_maxima, at, kern_get(b, w->row_max[row]), there);
    kern_scatter_n(b, totals, at, sum[row], there);
  }
  kern_id head = kern_add(b, kern_mul_i(b, f.batch, f.a.heads), f.head);
  kern_id line = kern_add(b, kern_mul_i(b, head, f.a.queries * p->n), f.split);
  const int64_t strides[] = {p->row, f.a.value_width};
  struct mma_to to = {.dtype = f.acc,
                      .row = p->n * p->row,
                      .width = f.a.value_width,
                      .last = f.a.queries - 1,
                      .run = tile_run(f.acc, 2, strides)};
  to.mem = kern_mem(b, p->out_mem);
  to.mem = kern_at(b, to.mem, kern_mul_i(b, line, p->row));
  mma_store(&w->m, &to, w->q0, &w->out, KERN_DIV, NULL);
}

static void finish(struct forward *w, const kern_id *sum) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  kern_id zero = tile_f(&f->t, 0), one = tile_f(&f->t, 1), nothing = tile_f(&f->t, -(double)INFINITY);
  kern_id divisor[2 * MMA_MOST_ROWS];
  for (int row = 0; row < 2 * w->m.rows; row++) {
    kern_id none = kern_bin(b, KERN_EQ, sum[row], zero);
    divisor[row] = kern_select(b, none, one, sum[row]);
    if (f->lse_mem < 0) continue;
    kern_id query = mma_row(&w->m, w->q0, row / 2, row % 2), line = flash_line(f, query, f->a.queries);
    kern_id x = kern_math(b, IR_LOG, f->acc, 1, &divisor[row]), there = stores_line(w, query);
    x = kern_select(b, none, nothing, kern_add(b, kern_get(b, w->row_max[row]), x));
    kern_id to = kern_mem(b, f->lse_mem);
    kern_scatter_n(b, to, line, kern_cast(b, x, f->job->kern->mems[f->lse_mem].dtype), there);
  }
  if (f->mem[PASS_VIEW_Y] < 0) return;
  struct tile_source like = flash_source(f, PASS_VIEW_Y, KERN_NONE);
  struct mma_to to = {
      .dtype = w->m.dtype, .row = like.row, .width = like.width, .last = f->a.queries - 1, .run = like.run};
  to.mem = kern_at(b, like.mem, like.at);
  mma_store(&w->m, &to, w->q0, &w->out, KERN_DIV, divisor);
}

/* ---- the phase ---------------------------------------------------------------------------------------------------- */

static void start(struct forward *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  quern_dtype dtype = f->job->group->anchor->src[0]->dtype;
  bool split = mma_pairs(dtype) && bytes_of(&f->a, true) <= f->job->target->shared_bytes;
  w->m = mma_begin(&f->t, dtype, rows_of(&f->a));
  w->q = mma_left(&w->m, f->a.width, split);
  w->k = mma_right(&w->m, f->a.width, MMA_AS_COLUMNS);
  w->v = mma_right(&w->m, f->a.value_width, MMA_AS_TERMS);
  mma_out(&w->m, &w->out, f->a.value_width);
  for (int row = 0; row < 2 * w->m.rows; row++) {
    w->row_max[row] = kern_var(b, tile_f(&f->t, -(double)INFINITY));
    w->sum[row] = kern_var(b, tile_f(&f->t, 0));
  }
  tile_clear(&f->t, &w->k.at, f->a.width, sched_ceil(f->a.width, MMA_STEP) * MMA_STEP);
  struct tile_source from = flash_source(f, PASS_VIEW_Q, KERN_NONE);
  mma_left_store_shared(&w->m, &w->q, &from, w->q0, mma_pairs(dtype) ? f->a.scale : 1);
}

/* A block of keys and its values. Values are on their way while scores are computed, and the next keys while they are added. */
static void add_block(struct forward *w, kern_id last) {
  struct flash *f = &w->f;
  struct tile_pieces pieces;
  struct tile_source values = flash_source(f, PASS_VIEW_V, w->j0);
  if (f->offset != KERN_NONE) values.last = last; /* what lies behind may be anything */
  tile_load_registers(&f->t, &w->v.at, &values, &pieces);
  mma_scores(&w->m, &w->q, &w->k, false, mma_pairs(w->m.dtype) ? 1 : f->a.scale, w->score);
  tile_store_shared(&f->t, &w->v.at, &values, &pieces, 1);
  struct tile_source next = flash_source(f, PASS_VIEW_K, kern_add_i(f->b, w->j0, MMA_BLOCK));
  tile_load_registers(&f->t, &w->k.at, &next, &pieces);
  if (flash_has_bias(f)) add_mask(w);
  if (flash_may_mask(f, w->m.block, MMA_BLOCK)) mask_scores(w);
  add_values(w);
  tile_store_shared(&f->t, &w->k.at, &next, &pieces, 1);
}

static void forward_phase(struct forward *w, int64_t queries) {
  enum { BLOCKS_PER_SM = 2 };
  struct flash *f = &w->f;
  struct kern_builder b;
  kern_id sum[2 * MMA_MOST_ROWS];
  if (!flash_begin_queries(f, &b, queries, &w->q0)) return;
  b.kern->phases[b.kern->n_phases - 1].min_blocks_per_sm = BLOCKS_PER_SM;
  flash_read_offset(f);
  start(w);
  struct flash_keys passing = flash_keys(f, w->q0, queries, MMA_BLOCK);
  struct tile_source first = flash_source(f, PASS_VIEW_K, kern_mul_i(&b, passing.from, MMA_BLOCK));
  tile_load(&f->t, &w->k.at, &first, 1);
  kern_id number = kern_for(&b, passing.from, passing.to, 1);
  w->j0 = kern_mul_i(&b, number, MMA_BLOCK);
  add_block(w, passing.last);
  kern_end(&b);
  for (int row = 0; row < 2 * w->m.rows; row++) sum[row] = mma_row_reduce(&w->m, IR_SUM, kern_get(&b, w->sum[row]));
  if (f->splits.n > 1)
    store_split(w, sum);
  else
    finish(w, sum);
}

quern_status sched_gpu_flash_mma(struct sched_job *job) {
  struct forward w = {.f = {.job = job}};
  QUERN_CHECK(flash_setup(&w.f, job->group->anchor), INTERNAL, "schedule: %s is no attention",
              job->group->anchor->attrs->name);
  int64_t queries = mma_block(rows_of(&w.f.a));
  flash_choose_splits(&w.f, queries, MMA_BLOCK);
  forward_phase(&w, queries);
  flash_merge_phase(&w.f);
  return job->kern->failed;
}
