/* sched/gpu_flash_mma_back.c -- the gradient of flash attention on GPUs by tensor cores; otherwise as gpu_flash_back.c
** how:   the same phases: delta (D) of each query; dq by blocks of queries, which stores 1 / row_sum, the sums of P; dk and dv by blocks of keys,
**        whose tiles are transposed, one row per key, so that P' and dS' are left operands where they are (gpu_mma.h). Scores have the bits of
**        forward's.
** keeps: every sum runs over blocks in one order, and nothing is added by two tasks: the same bits every time
** see:   gpu_flash_back.c, gpu_flash_mma.c, docs/design/007-gpu.md      tests: tests/sched/test_attention.c
*/
#include <math.h>

#include "sched/gpu_flash.h"
#include "sched/gpu_mma.h"

enum {
  LSE,
  DELTA,
  INV_ROW_SUM,
  LINE = 4
}; /* of a query in WORK memory: lse, or 0 where it attends to nothing; D; one by the sum of its P */

struct backward {
  struct flash f;
  struct mma m;
  bool by_keys;                                                         /* rows are keys, and columns queries */
  int line_mem;                                                         /* work: (B H, queries, LINE) */
  int view, value_view;                                                 /* whose rows are columns */
  struct mma_left x, dx;                                                /* rows: q and dout, or k and v */
  struct mma_right y, dy;                                               /* columns: k and v, or q and dout */
  kern_id lines;                                                        /* LOCAL: those of queries that are columns */
  kern_id sum[MMA_SCORES];                                              /* variables: of rows, the sums of P so far */
  kern_id less[MMA_SCORES], delta[MMA_SCORES], inv_row_sum[MMA_SCORES]; /* of rows or columns: see position_of */
  kern_id p[MMA_SCORES], ds[MMA_SCORES];
  kern_id r0, c0; /* the first row and column */
};

/* ---- which ---------------------------------------------------------------------------------------------------- */

static bool is_wide(const struct pass_attention *a) { return BASE_MAX(a->width, a->value_width) > MMA_MOST_WIDTH / 2; }
static int blocks_per_sm(const struct pass_attention *a, bool by_keys) { return by_keys && !is_wide(a) ? 3 : 2; }

/* Shared memory of a thread block of a phase, of which so many of both left operands lie as pairs. */
static int64_t bytes_of(const struct pass_attention *a, int rows, int pairs) {
  int64_t x = mma_left_bytes(rows, a->width), dx = mma_left_bytes(rows, a->value_width);
  x += mma_right_bytes(a->width, MMA_AS_BOTH) + (pairs > 0 ? x : 0);
  dx += mma_right_bytes(a->value_width, MMA_AS_BOTH) + (pairs > 1 ? dx : 0);
  return x + dx + (int64_t)4 * LINE * MMA_BLOCK;
}
/* Tiles of a warp. */
static int rows_of(const struct base_target *target, const struct pass_attention *a, bool by_keys) {
  return by_keys || is_wide(a) || bytes_of(a, 2, 0) > target->shared_bytes ? 1 : 2;
}
/* As many as leave an SM room for its thread blocks: it is taken to have room for two that are as large as one may be. */
static int pairs_of(const struct base_target *target, const struct pass_attention *a, bool by_keys) {
  int64_t room = 2 * target->shared_bytes / blocks_per_sm(a, by_keys);
  int pairs = 2;
  while (pairs > 0 && bytes_of(a, rows_of(target, a, by_keys), pairs) > room) pairs--;
  return pairs;
}

bool flash_mma_back_supports(const struct base_target *target, const struct ir_node *node,
                             const struct pass_attention *a) {
  bool units = (target->capabilities & BASE_TENSOR_CORES) != 0 && mma_takes(node->src[0]->dtype);
  return units && a->width <= MMA_MOST_WIDTH && a->value_width <= MMA_MOST_WIDTH && node->n_out <= FLASH_DMASK &&
         bytes_of(a, 1, 0) <= target->shared_bytes;
}

/* ---- before: lse and D of each query ------------------------------------------------------------------------------ */

static void delta_phase(struct backward *w) {
  struct flash *f = &w->f;
  struct kern_builder b;
  kern_id task, delta;
  if (!flash_begin_delta(f, &b, &task, &delta)) return;
  kern_id to = kern_mem(&b, w->line_mem), at = kern_mul_i(&b, task, LINE);
  kern_id lse = kern_load(&b, kern_mem(&b, f->lse_mem), task, 1), zero = kern_const_f(&b, f->acc, 1, 0);
  lse = kern_cast(&b, lse, f->acc);
  kern_id none = kern_bin(&b, KERN_EQ, lse, kern_const_f(&b, f->acc, 1, -(double)INFINITY));
  lse = kern_select(&b, none, zero, lse);
  kern_store(&b, to, kern_add_i(&b, at, LSE), lse);
  kern_store(&b, to, kern_add_i(&b, at, DELTA), delta);
}

/* ---- tiles -------------------------------------------------------------------------------------------------------- */

/* Of score number `at` of a thread: the number of its query among the thread's, those of rows or those of columns. */
static int position_of(const struct backward *w, int at) {
  return w->by_keys ? at / 4 % MMA_TILES * 2 + at % 2 : at / 4 / MMA_TILES * 2 + at % 4 / 2;
}
static int positions_of(const struct backward *w) { return w->by_keys ? 2 * MMA_TILES : 2 * w->m.rows; }

static kern_id query_at(const struct backward *w, int place) {
  return w->by_keys ? mma_column(&w->m, &w->y, w->c0, place / 2, place % 2)
                    : mma_row(&w->m, w->r0, place / 2, place % 2);
}
static kern_id key_of(const struct backward *w, int at) {
  return w->by_keys ? mma_row(&w->m, w->r0, at / 4 / MMA_TILES, at % 4 / 2)
                    : mma_column(&w->m, &w->y, w->c0, at / 4 % MMA_TILES, at % 2);
}

/* What rows of an operand are multiplied by when they are loaded: queries as forward. What scores are multiplied by otherwise. */
static double scale_of(const struct backward *w, int view) {
  return view == PASS_VIEW_Q && mma_pairs(w->m.dtype) ? w->f.a.scale : 1;
}
static double later_scale(const struct backward *w) { return mma_pairs(w->m.dtype) ? 1 : w->f.a.scale; }

static void clear_end(const struct backward *w, const struct mma_right *r) {
  tile_clear(&w->f.t, &r->at, r->at.width, sched_ceil(r->at.width, MMA_STEP) * MMA_STEP);
}

/* Tiles of a phase, and its rows, which stay. */
static void start(struct backward *w, int view, int value_view) {
  struct flash *f = &w->f;
  const struct pass_attention *a = &f->a;
  quern_dtype dtype = f->job->group->anchor->src[0]->dtype;
  int pairs = mma_pairs(dtype) ? pairs_of(f->job->target, a, w->by_keys) : 0;
  f->b->kern->phases[f->b->kern->n_phases - 1].min_blocks_per_sm = blocks_per_sm(a, w->by_keys);
  w->m = mma_begin(&f->t, dtype, rows_of(f->job->target, a, w->by_keys));
  w->x = mma_left(&w->m, a->width, pairs > 0);
  w->dx = mma_left(&w->m, a->value_width, pairs > 1);
  w->y = mma_right(&w->m, a->width, MMA_AS_BOTH);
  w->dy = mma_right(&w->m, a->value_width, MMA_AS_BOTH);
  if (w->by_keys) w->lines = kern_local(f->b, f->acc, MMA_BLOCK * LINE);
  clear_end(w, &w->y);
  clear_end(w, &w->dy);
  struct tile_source one = flash_source(f, view, KERN_NONE), other = flash_source(f, value_view, KERN_NONE);
  mma_left_store_shared(&w->m, &w->x, &one, w->r0, scale_of(w, view));
  mma_left_store_shared(&w->m, &w->dx, &other, w->r0, 1);
}

/* The columns of a block come to shared memory through registers: those of y may be left for the end, where registers are few. */
struct coming {
  struct tile_source from, value_from;
  struct tile_pieces pieces, value_pieces;
  kern_id lines;
};
static void load_columns(struct backward *w, kern_id first, struct coming *next) {
  struct flash *f = &w->f;
  next->from = flash_source(f, w->view, first);
  next->value_from = flash_source(f, w->value_view, first);
  tile_load_registers(&f->t, &w->dy.at, &next->value_from, &next->value_pieces);
  next->pieces.n = 0;
  if (!w->by_keys || !is_wide(&f->a)) tile_load_registers(&f->t, &w->y.at, &next->from, &next->pieces);
  if (!w->by_keys) return;
  kern_id number = kern_idiv(f->b, f->t.lane, LINE), part = kern_imod(f->b, f->t.lane, LINE);
  kern_id line = flash_line(f, kern_add(f->b, tile_all(&f->t, first), number), f->a.queries);
  part = kern_min(f->b, part, tile_i(&f->t, INV_ROW_SUM));
  line = kern_add(f->b, mma_times(&w->m, line, LINE), part);
  next->lines = kern_gather(f->b, kern_mem(f->b, w->line_mem), line);
}
static void store_columns_shared(struct backward *w, const struct coming *next) {
  struct flash *f = &w->f;
  tile_store_shared(&f->t, &w->dy.at, &next->value_from, &next->value_pieces, 1);
  tile_store_shared(&f->t, &w->y.at, &next->from, &next->pieces, scale_of(w, w->view));
  if (w->by_keys) kern_scatter_n(f->b, w->lines, f->t.lane, next->lines, KERN_NONE);
}
static void first_columns(struct backward *w, kern_id first) {
  struct coming columns;
  load_columns(w, first, &columns);
  store_columns_shared(w, &columns);
}

/* Of queries that are rows, once. */
static void read_rows(struct backward *w) {
  struct flash *f = &w->f;
  for (int i = 0; i < positions_of(w); i++) {
    kern_id at = mma_times(&w->m, flash_line(f, query_at(w, i), f->a.queries), LINE);
    kern_id two = kern_gather_n(f->b, kern_mem(f->b, w->line_mem), at, 2);
    w->less[i] = kern_deinterleave(f->b, two, 2, LSE);
    w->delta[i] = kern_deinterleave(f->b, two, 2, DELTA);
    w->sum[i] = kern_var(f->b, tile_f(&f->t, 0));
  }
}
/* Of queries that are columns, of each block. */
static void read_columns(struct backward *w) {
  struct flash *f = &w->f;
  for (int i = 0; i < positions_of(w); i++) {
    kern_id from = kern_at(f->b, w->lines, kern_index(f->b, (int64_t)i / 2 * MMA_TILE * LINE));
    kern_id all = kern_gather_n(f->b, from, mma_times(&w->m, w->y.column[i % 2], LINE), LINE);
    w->less[i] = kern_deinterleave(f->b, all, LINE, LSE);
    w->delta[i] = kern_deinterleave(f->b, all, LINE, DELTA);
    w->inv_row_sum[i] = kern_deinterleave(f->b, all, LINE, INV_ROW_SUM);
  }
}

/* Scores are -inf where the key is masked, or the query not there; of blocks where nothing is masked, nothing is asked. */
static void mask_scores(struct backward *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  bool asks = f->mask == NULL || f->mask->dtype != QUERN_DTYPE_BOOL;
  kern_id nothing = tile_f(&f->t, -(double)INFINITY), seen[MMA_SCORES], limit[MMA_SCORES];
  int n = w->m.rows * MMA_TILES * 4;
  for (int at = 0; at < n; at++) seen[at] = kern_var(b, w->p[at]);
  if (asks) {
    kern_id query = w->by_keys ? w->c0 : w->r0, all = flash_keys_attended(f, kern_add_i(b, query, 1));
    kern_id end = w->by_keys ? kern_add_i(b, w->r0, w->m.block) : kern_add_i(b, w->c0, MMA_BLOCK);
    kern_id some = kern_bin(b, KERN_LT, all, end), last = kern_index(b, f->a.queries - MMA_BLOCK);
    if (w->by_keys) some = kern_bin(b, KERN_OR, some, kern_bin(b, KERN_LT, last, w->c0));
    kern_if(b, some);
  }
  for (int i = 0; i < positions_of(w); i++) {
    kern_id query = query_at(w, i), there = kern_bin(b, KERN_LT, query, tile_i(&f->t, f->a.queries));
    kern_id none = tile_i(&f->t, -1);
    limit[i] = kern_select(b, there, flash_limit(f, query), none);
  }
  for (int at = 0; at < n; at++) {
    kern_id query = query_at(w, position_of(w, at)), key = key_of(w, at);
    kern_id there = flash_attends(f, query, key, limit[position_of(w, at)]);
    kern_set(b, seen[at], kern_select(b, there, kern_get(b, seen[at]), nothing));
  }
  if (asks) kern_end(b);
  for (int at = 0; at < n; at++) w->p[at] = kern_get(b, seen[at]);
}

/* P and dS of a block: of dq not divided yet, and its sums follow; of dk and dv divided. */
static void softmax_grad(struct backward *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  int n = w->m.rows * MMA_TILES * 4;
  mma_scores(&w->m, &w->x, &w->y, w->by_keys, later_scale(w), w->p);
  for (int at = 0; at < n && flash_has_bias(f); at++) {
    kern_id query = query_at(w, position_of(w, at)), key = key_of(w, at);
    w->p[at] = flash_add_bias(f, query, key, w->p[at]);
  }
  if (flash_may_mask(f, w->by_keys ? MMA_BLOCK : w->m.block, w->by_keys ? w->m.block : MMA_BLOCK)) mask_scores(w);
  if (w->by_keys) read_columns(w);
  for (int at = 0; at < n; at++) {
    int i = position_of(w, at);
    kern_id x =
        kern_min(b, w->p[at], w->less[i]); /* above where lse is another's, whose scores were rounded otherwise */
    w->p[at] = mma_exp_shifted(&w->m, x, w->less[i]);
    if (w->by_keys)
      w->p[at] = kern_mul(b, w->p[at], w->inv_row_sum[i]);
    else
      kern_set(b, w->sum[i], kern_add(b, kern_get(b, w->sum[i]), w->p[at]));
  }
  mma_scores(&w->m, &w->dx, &w->dy, w->by_keys, 1, w->ds);
  for (int at = 0; at < n; at++)
    w->ds[at] = kern_mul(b, w->p[at], kern_sub(b, w->ds[at], w->delta[position_of(w, at)]));
}

static void store(const struct backward *w, int view, const struct mma_out *out, const kern_id *factor) {
  struct flash f = w->f;
  if (f.mem[view] < 0) return;
  struct tile_source like = flash_source(&f, view, KERN_NONE);
  struct mma_to to = {.dtype = w->m.dtype, .row = like.row, .width = like.width, .run = like.run};
  to.last = (w->by_keys ? f.a.keys : f.a.queries) - 1;
  to.mem = kern_at(f.b, like.mem, like.at);
  mma_store(&w->m, &to, w->r0, out, KERN_MUL, factor);
}

/* ---- dq ----------------------------------------------------------------------------------------------------------- */

/* Divides dq by the sums of P, and leaves one by them. A query that attends to nothing has 0. */
static void finish_rows(struct backward *w, const struct mma_out *dq) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  kern_id factor[2 * MMA_MOST_ROWS], zero = tile_f(&f->t, 0), one = tile_f(&f->t, 1);
  for (int i = 0; i < positions_of(w); i++) {
    kern_id sum = mma_row_reduce(&w->m, IR_SUM, kern_get(b, w->sum[i])), none = kern_bin(b, KERN_EQ, sum, zero);
    kern_id inv_row_sum = kern_select(b, none, zero, kern_bin(b, KERN_DIV, one, sum)), query = query_at(w, i);
    kern_id at = mma_plus(&w->m, mma_times(&w->m, flash_line(f, query, f->a.queries), LINE), INV_ROW_SUM);
    kern_id there = kern_bin(b, KERN_LT, query, tile_i(&f->t, f->a.queries));
    there = kern_bin(b, KERN_AND, there, kern_bin(b, KERN_EQ, w->m.u, tile_i(&f->t, 0)));
    kern_scatter_n(b, kern_mem(b, w->line_mem), at, inv_row_sum, there);
    factor[i] = kern_mul(b, inv_row_sum, tile_f(&f->t, f->a.scale));
  }
  store(w, PASS_VIEW_DQ, dq, factor);
}

static void query_phase(struct backward *w) {
  struct flash *f = &w->f;
  struct kern_builder b;
  struct mma_out dq;
  struct mma_pair weights[MMA_MOST_ROWS * MMA_TILES];
  struct coming next;
  int64_t queries = mma_block(rows_of(f->job->target, &f->a, false));
  w->by_keys = false;
  w->view = PASS_VIEW_K, w->value_view = PASS_VIEW_V;
  if (!flash_begin_queries(f, &b, queries, &w->r0)) return;
  start(w, PASS_VIEW_Q, PASS_VIEW_DY);
  mma_out(&w->m, &dq, f->a.width);
  read_rows(w);
  struct flash_keys passing = flash_keys(f, w->r0, queries, MMA_BLOCK);
  first_columns(w, kern_mul_i(&b, passing.from, MMA_BLOCK));
  kern_id number = kern_for(&b, passing.from, passing.to, 1);
  w->c0 = kern_mul_i(&b, number, MMA_BLOCK);
  softmax_grad(w);
  mma_weights(&w->m, w->ds, weights);
  load_columns(w, kern_add_i(&b, w->c0, MMA_BLOCK), &next);
  mma_add(&w->m, &dq, NULL, weights, &w->y);
  store_columns_shared(w, &next);
  kern_end(&b);
  finish_rows(w, &dq);
}

/* ---- dk and dv ---------------------------------------------------------------------------------------------------- */

/* The first block of queries that attends to one of the task's keys. */
static kern_id first_block(struct backward *w) {
  struct kern_builder *b = w->f.b;
  kern_id first = kern_index(b, 0);
  if (w->f.a.causal) first = kern_max_i(b, kern_add_i(b, w->r0, w->f.a.queries - w->f.a.keys), 0);
  return kern_idiv(b, first, MMA_BLOCK);
}

static void key_phase(struct backward *w) {
  struct flash *f = &w->f;
  const struct pass_attention *a = &f->a;
  int64_t keys = mma_block(rows_of(f->job->target, a, true)), blocks = sched_ceil(a->keys, keys),
          sharing = a->heads / a->kv_heads;
  struct mma_out dk, dv;
  struct mma_pair weights[MMA_MOST_ROWS * MMA_TILES];
  struct coming next;
  struct kern_builder b = flash_phase(f, a->batch * a->kv_heads * blocks);
  if (b.kern->failed != QUERN_STATUS_OK) return;
  f->b = &b;
  kern_id block, head = flash_task(f, a->batch * a->kv_heads, blocks, &block);
  f->batch = kern_idiv(&b, head, a->kv_heads);
  f->kv = kern_imod(&b, head, a->kv_heads);
  f->t = tile_begin(&b, f->acc);
  w->r0 = kern_mul_i(&b, block, keys);
  w->by_keys = true;
  w->view = PASS_VIEW_Q, w->value_view = PASS_VIEW_DY;
  start(w, PASS_VIEW_K, PASS_VIEW_V);
  mma_out(&w->m, &dk, a->width);
  mma_out(&w->m, &dv, a->value_width);
  kern_id first = first_block(w);
  kern_id shared = kern_range(&b, 0, sharing, 1);
  f->head = kern_add(&b, kern_mul_i(&b, f->kv, sharing), shared);
  first_columns(w, kern_mul_i(&b, first, MMA_BLOCK));
  kern_id number = kern_for(&b, first, kern_index(&b, sched_ceil(a->queries, MMA_BLOCK)), 1);
  w->c0 = kern_mul_i(&b, number, MMA_BLOCK);
  softmax_grad(w);
  mma_weights(&w->m, w->p, weights);
  mma_add(&w->m, &dv, NULL, weights, &w->dy);
  load_columns(w, kern_add_i(&b, w->c0, MMA_BLOCK), &next);
  mma_weights(&w->m, w->ds, weights);
  mma_add(&w->m, &dk, NULL, weights, &w->y);
  store_columns_shared(w, &next);
  kern_end(&b);
  kern_end(&b);
  kern_id scale = tile_f(&f->t, later_scale(w)), factor[2 * MMA_MOST_ROWS];
  for (int i = 0; i < 2 * w->m.rows; i++) factor[i] = scale;
  store(w, PASS_VIEW_DK, &dk, mma_pairs(w->m.dtype) ? NULL : factor);
  store(w, PASS_VIEW_DV, &dv, NULL);
}

quern_status sched_gpu_flash_mma_back(struct sched_job *job) {
  struct backward w = {.f = {.job = job}};
  QUERN_CHECK(flash_setup(&w.f, job->group->anchor), INTERNAL, "schedule: %s is no attention",
              job->group->anchor->attrs->name);
  const struct pass_attention *a = &w.f.a;
  w.line_mem = kern_add_mem(job->kern, w.f.acc, KERN_WORK, a->batch * a->heads * a->queries * LINE);
  delta_phase(&w);
  query_phase(&w);
  key_phase(&w);
  return job->kern->failed;
}
