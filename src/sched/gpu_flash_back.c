/* sched/gpu_flash_back.c -- the gradient of flash attention on GPUs, in tiles: probabilities are recomputed from q, k and lse
** in:    a supported composite "attention.vjp", or what pass/attention_views.c made of it; results dq, dk, dv, perhaps that of the mask
** how:   with P = e^(scale q k' - lse), D = rowsum(dout out), dS = P (dout v' - D): dv = P' dout, dk = dS' scale q, dq = scale dS k.
**        A phase computes D, one dq by blocks of queries, one dk and dv by blocks of keys, whose tiles are transposed: one row per key. Of
**        a mask that is added, one more computes dS by blocks of the mask, and adds over heads and samples that have the same.
**        lse has lost digits where scores are in the thousands, as many for a whole row: so P is divided by its sum over the row, which the
**        phase of dq has at its end and leaves for the other. Scores have the same bits as forward's: those of queries that are scaled first.
** keeps: every sum runs over blocks in one order, and nothing is added by two tasks: the same bits every time
** see:   gpu_flash.c, cpu_attention_back.c (CPUs), gpu_flash_mma_back.c (tensor cores)      tests: tests/sched/test_attention.c
*/
#include <math.h>

#include "sched/gpu_flash.h"

enum { MOST_ROWS = 8 };

struct backward {
  struct flash f;
  struct flash_shape shape;
  int64_t rows, columns;          /* of a block: queries and keys, or keys and queries */
  int delta_mem, inv_row_sum_mem; /* work, of each query: D; one by the sum of its P */
  struct tile_local x, dx;        /* rows: q and dout, or k and v */
  struct tile_local y, dy;        /* columns: k and v, or q and dout */
  struct tile_local p;            /* P or dS of the block */
  struct tile_sums scores, slope; /* q k', dout v' */
  int view, value_view;           /* whose rows are columns */
  kern_id r0, c0;                 /* the first row and column */
  kern_id query[MOST_ROWS], limit[MOST_ROWS], less[MOST_ROWS], delta[MOST_ROWS]; /* of the thread's queries */
  kern_id inv_row_sum[MOST_ROWS]; /* the same, where P is divided at once; of dq the sums of P so far, variables */
  bool divides;                   /* P is divided by its sum, which is known */
};

/* ---- before: D of each query ------------------------------------------------------------------------------- */

/* A row of a view of the current head. */
static kern_id line_of(struct flash *f, int view, kern_id row) {
  kern_id mem = kern_mem(f->b, f->mem[view]), at = flash_view_at(f, view);
  at = kern_add(f->b, at, kern_mul_i(f->b, row, f->a.views[view].row));
  return kern_at(f->b, mem, at);
}

bool flash_begin_delta(struct flash *f, struct kern_builder *b, kern_id *task, kern_id *delta) {
  const struct pass_attention *a = &f->a;
  struct kern *kern = f->job->kern;
  *b = (struct kern_builder){kern, kern_add_phase(kern, KERN_FIXED_TASKS(a->batch * a->heads * a->queries))};
  if (kern->failed != QUERN_STATUS_OK) return false;
  kern->phases[kern->n_phases - 1].block_threads = KERN_WARP;
  f->b = b;
  *task = kern_task(b);
  kern_id head = kern_idiv(b, *task, a->queries), row = kern_imod(b, *task, a->queries);
  f->batch = kern_idiv(b, head, a->heads);
  f->head = kern_imod(b, head, a->heads);
  kern_id out = line_of(f, PASS_VIEW_Y, row), dout = line_of(f, PASS_VIEW_DY, row);
  kern_id sum = kern_const_f(b, f->acc, KERN_WARP, 0);
  for (int64_t e = 0; e < a->value_width; e += KERN_WARP) {
    kern_id at = kern_index(b, e), count = kern_index(b, BASE_MIN(a->value_width - e, KERN_WARP));
    kern_id x = kern_cast(b, kern_load_n(b, out, at, KERN_WARP, count), f->acc);
    kern_id y = kern_cast(b, kern_load_n(b, dout, at, KERN_WARP, count), f->acc);
    sum = kern_fma(b, x, y, sum);
  }
  *delta = kern_hreduce(b, KERN_ADD, sum);
  return true;
}

static void delta_phase(struct backward *w) {
  struct kern_builder b;
  kern_id task, delta;
  if (flash_begin_delta(&w->f, &b, &task, &delta)) kern_store(&b, kern_mem(&b, w->delta_mem), task, delta);
}

/* ---- tiles ------------------------------------------------------------------------------------------------- */

static void read_query(struct backward *w, int k) {
  struct flash *f = &w->f;
  kern_id at = flash_line(f, w->query[k], f->a.queries), zero = tile_f(&f->t, 0);
  kern_id x = kern_cast(f->b, kern_gather(f->b, kern_mem(f->b, f->lse_mem), at), f->acc);
  x = kern_select(f->b, kern_bin(f->b, KERN_EQ, x, tile_f(&f->t, -(double)INFINITY)), zero, x);
  w->less[k] = kern_un(f->b, KERN_NEG, x);
  w->delta[k] = kern_gather(f->b, kern_mem(f->b, w->delta_mem), at);
  w->inv_row_sum[k] = w->divides ? kern_gather(f->b, kern_mem(f->b, w->inv_row_sum_mem), at) : kern_var(f->b, zero);
}

/* Queries of the thread: minus their lse, 0 where one attends to nothing, and D. */
static void read_queries(struct backward *w, bool by_keys) {
  for (int k = 0; k < (by_keys ? w->shape.columns : w->shape.rows); k++) {
    w->query[k] = by_keys ? tile_column(&w->f.t, w->c0, k) : tile_row(&w->f.t, w->r0, k);
    kern_id i = w->query[k], there = kern_bin(w->f.b, KERN_LT, i, tile_i(&w->f.t, w->f.a.queries));
    w->limit[k] = flash_limit(&w->f, i);
    w->limit[k] =
        kern_select(w->f.b, there, w->limit[k], tile_i(&w->f.t, -1)); /* one that is not there attends to nothing */
    read_query(w, k);
  }
}

/* The scores become P, and the slopes dS, from scale q k' and dout v'; w->divides: both divided by the sum of P. by_keys: rows are keys. */
static void softmax_grad(struct backward *w, bool by_keys) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  int columns = w->shape.columns, all = w->shape.rows * columns;
  const kern_id *query = w->query;
  kern_id zero = tile_f(&f->t, 0);
  bool adds = flash_has_bias(f),
       masked = flash_may_mask(f, by_keys ? w->columns : w->rows, by_keys ? w->rows : w->columns);
  for (int at = 0; at < all; at++) {
    int k = by_keys ? at % columns : at / columns;
    kern_id key = by_keys ? tile_row(&f->t, w->r0, at / columns) : tile_column(&f->t, w->c0, at % columns);
    kern_id x = kern_get(b, w->scores.at[at]);
    if (adds) x = flash_add_bias(f, query[k], key, x);
    x = kern_add(b, x, w->less[k]);
    x = flash_exp(f, kern_min(b, x, zero)); /* above 0 where lse is another's, whose scores were rounded otherwise */
    if (masked) x = kern_select(b, flash_attends(f, query[k], key, w->limit[k]), x, zero);
    if (w->divides)
      x = kern_mul(b, x, w->inv_row_sum[k]);
    else
      kern_set(b, w->inv_row_sum[k], kern_add(b, kern_get(b, w->inv_row_sum[k]), x));
    kern_set(b, w->scores.at[at], x);
  }
  for (int at = 0; at < all; at++) {
    kern_id slope = kern_sub(b, kern_get(b, w->slope.at[at]), w->delta[by_keys ? at % columns : at / columns]);
    kern_set(b, w->slope.at[at], kern_mul(b, kern_get(b, w->scores.at[at]), slope));
  }
}

static void put(struct backward *w, const struct tile_sums *values) {
  int columns = w->shape.columns;
  for (int at = 0; at < w->shape.rows * columns; at++) {
    kern_id value = kern_get(w->f.b, values->at[at]);
    tile_put(&w->f.t, &w->p, at / columns, at % columns, value);
  }
}

/* What rows of an operand are multiplied by when they are loaded: queries as forward. */
static double scale_of(const struct backward *w, int view) { return view == PASS_VIEW_Q ? w->f.a.scale : 1; }

/* Tiles of a phase. */
static void start(struct backward *w) {
  struct flash *f = &w->f;
  const struct pass_attention *a = &f->a;
  w->x = tile_local(&f->t, w->rows, a->width);
  w->dx = tile_local(&f->t, w->rows, a->value_width);
  w->y = tile_local(&f->t, w->columns, tile_covered(f->acc, a->width));
  w->dy = tile_local(&f->t, w->columns, tile_covered(f->acc, a->value_width));
  w->p = tile_local_warp(&f->t, w->rows, w->columns);
  tile_sums(&f->t, &w->scores, w->shape.rows, w->shape.columns);
  tile_sums(&f->t, &w->slope, w->shape.rows, w->shape.columns);
}

/* Its rows, which stay: q and dout, or k and v. */
static void load_rows(struct backward *w, int view, int value_view) {
  struct flash *f = &w->f;
  const struct pass_attention *a = &f->a;
  struct tile_source one = flash_source(f, view, w->r0), other = flash_source(f, value_view, w->r0);
  tile_load(&f->t, &w->x, &one, scale_of(w, view));
  tile_load(&f->t, &w->dx, &other, 1);
  tile_clear_end(&f->t, &w->x, a->width);
  tile_clear_end(&f->t, &w->dx, a->value_width);
}

/* The columns of a block come to shared memory: to begin with, or in two steps from registers. */
struct coming {
  struct tile_source from, value_from;
  struct tile_pieces pieces, value_pieces;
};
static void load_columns(struct backward *w, kern_id first, struct coming *next) {
  struct flash *f = &w->f;
  next->from = flash_source(f, w->view, first);
  next->value_from = flash_source(f, w->value_view, first);
  tile_load_registers(&f->t, &w->y, &next->from, &next->pieces);
  tile_load_registers(&f->t, &w->dy, &next->value_from, &next->value_pieces);
}
static void store_columns_shared(struct backward *w, const struct coming *next) {
  struct flash *f = &w->f;
  tile_store_shared(&f->t, &w->y, &next->from, &next->pieces, scale_of(w, w->view));
  tile_store_shared(&f->t, &w->dy, &next->value_from, &next->value_pieces, 1);
  tile_clear_end(&f->t, &w->y, f->a.width);
  tile_clear_end(&f->t, &w->dy, f->a.value_width);
}
static void first_columns(struct backward *w, kern_id first) {
  struct coming columns;
  load_columns(w, first, &columns);
  store_columns_shared(w, &columns);
}

/* Both products of a block's columns with the rows. */
static void multiply_block(struct backward *w) {
  struct flash *f = &w->f;
  int64_t quad = f->t.quad;
  tile_set_zero(&f->t, &w->scores);
  tile_set_zero(&f->t, &w->slope);
  tile_multiply_rows(&f->t, &w->scores, &w->x, &w->y, sched_ceil(f->a.width, quad) * quad);
  tile_multiply_rows(&f->t, &w->slope, &w->dx, &w->dy, sched_ceil(f->a.value_width, quad) * quad);
}

static bool set_shape(struct backward *w, bool by_keys) {
  if (!flash_shape(&w->shape, w->f.job->target, w->f.acc, &w->f.a, by_keys)) return false;
  w->rows = (int64_t)w->shape.rows * TILE_DOWN;
  w->columns = (int64_t)w->shape.columns * TILE_ACROSS;
  return true;
}

/* ---- dq ---------------------------------------------------------------------------------------------------- */

/* Divides dq by the sums of P, and leaves one by them. A query that attends to nothing has 0. */
static void divide_rows(struct backward *w, const struct tile_sums *dq) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  kern_id sum[MOST_ROWS], zero = tile_f(&f->t, 0), one = tile_f(&f->t, 1);
  for (int m = 0; m < w->shape.rows; m++) sum[m] = kern_get(b, w->inv_row_sum[m]);
  tile_row_reduce(&f->t, &w->p, IR_SUM, w->shape.rows, sum);
  for (int m = 0; m < w->shape.rows; m++) {
    kern_id none = kern_bin(b, KERN_EQ, sum[m], zero);
    kern_id inv_row_sum = kern_select(b, none, zero, kern_bin(b, KERN_DIV, one, sum[m]));
    for (int e = 0; e < dq->columns; e++) {
      kern_id x = dq->at[m * dq->columns + e];
      kern_set(b, x, kern_mul(b, kern_get(b, x), inv_row_sum));
    }
    kern_id to = kern_mem(b, w->inv_row_sum_mem), at = flash_line(f, w->query[m], f->a.queries);
    kern_id there = kern_bin(b, KERN_LT, w->query[m], tile_i(&f->t, f->a.queries));
    there = kern_bin(b, KERN_AND, there, kern_bin(b, KERN_EQ, f->t.column, tile_i(&f->t, 0)));
    kern_scatter_n(b, to, at, inv_row_sum, there);
  }
}

static void query_phase(struct backward *w) {
  struct flash *f = &w->f;
  const struct pass_attention *a = &f->a;
  struct kern_builder b;
  if (!flash_begin_queries(f, &b, w->rows, &w->r0)) return;
  w->view = PASS_VIEW_K, w->value_view = PASS_VIEW_V;
  start(w);
  load_rows(w, PASS_VIEW_Q, PASS_VIEW_DY);
  struct tile_sums dq;
  tile_sums(&f->t, &dq, w->shape.rows, tile_columns(f->acc, a->width));
  kern_id end = kern_min_i(&b, kern_add_i(&b, w->r0, w->rows), a->queries), keys = flash_keys_attended(f, end);
  keys = kern_idiv(&b, kern_add_i(&b, keys, w->columns - 1), w->columns);
  read_queries(w, false);
  kern_id zero = kern_index(&b, 0);
  first_columns(w, zero);
  kern_id number = kern_for(&b, zero, keys, 1);
  w->c0 = kern_mul_i(&b, number, w->columns);
  multiply_block(w);
  softmax_grad(w, false);
  put(w, &w->slope);
  struct coming next;
  load_columns(w, kern_add_i(&b, w->c0, w->columns), &next);
  tile_multiply(&f->t, &dq, &w->p, &w->y, w->columns);
  store_columns_shared(w, &next);
  kern_end(&b);
  divide_rows(w, &dq);
  flash_store(f, &dq, PASS_VIEW_DQ, w->r0, a->queries, a->scale);
}

/* ---- dk and dv --------------------------------------------------------------------------------------------- */

/* The first block of queries that attends to one of the task's keys. */
static kern_id first_block(struct backward *w) {
  struct kern_builder *b = w->f.b;
  kern_id first = kern_index(b, 0);
  if (w->f.a.causal) first = kern_max_i(b, kern_add_i(b, w->r0, w->f.a.queries - w->f.a.keys), 0);
  return kern_idiv(b, first, w->columns);
}

static void key_phase(struct backward *w) {
  struct flash *f = &w->f;
  const struct pass_attention *a = &f->a;
  int64_t blocks = sched_ceil(a->keys, w->rows), sharing = a->heads / a->kv_heads;
  struct kern_builder b = flash_phase(f, a->batch * a->kv_heads * blocks);
  if (b.kern->failed != QUERN_STATUS_OK) return;
  f->b = &b;
  kern_id block, head = flash_task(f, a->batch * a->kv_heads, blocks, &block);
  f->batch = kern_idiv(&b, head, a->kv_heads);
  f->kv = kern_imod(&b, head, a->kv_heads);
  w->r0 = kern_mul_i(&b, block, w->rows);
  f->t = tile_begin(&b, f->acc);
  w->view = PASS_VIEW_Q, w->value_view = PASS_VIEW_DY;
  start(w);
  load_rows(w, PASS_VIEW_K, PASS_VIEW_V);
  struct tile_sums dk, dv;
  tile_sums(&f->t, &dk, w->shape.rows, tile_columns(f->acc, a->width));
  tile_sums(&f->t, &dv, w->shape.rows, tile_columns(f->acc, a->value_width));
  kern_id first = first_block(w);
  kern_id shared = kern_range(&b, 0, sharing, 1);
  f->head = kern_add(&b, kern_mul_i(&b, f->kv, sharing), shared);
  first_columns(w, kern_mul_i(&b, first, w->columns));
  kern_id number = kern_for(&b, first, kern_index(&b, sched_ceil(a->queries, w->columns)), 1);
  w->c0 = kern_mul_i(&b, number, w->columns);
  read_queries(w, true);
  multiply_block(w);
  softmax_grad(w, true);
  put(w, &w->scores);
  tile_multiply(&f->t, &dv, &w->p, &w->dy, w->columns);
  put(w, &w->slope);
  struct coming next;
  load_columns(w, kern_add_i(&b, w->c0, w->columns), &next);
  tile_multiply(&f->t, &dk, &w->p, &w->y, w->columns);
  store_columns_shared(w, &next);
  kern_end(&b);
  kern_end(&b);
  flash_store(f, &dk, PASS_VIEW_DK, w->r0, a->keys, 1);
  flash_store(f, &dv, PASS_VIEW_DV, w->r0, a->keys, 1);
}

/* ---- a mask that is added ------------------------------------------------------------------------------------ */

/* Opens a loop over all that have the same mask, of no turns where `some`, if it is there, is false; or the mask's own number, in a loop of
** one turn. */
static kern_id open_shared(struct backward *w, int64_t dim, int64_t all, kern_id own, kern_id some) {
  struct kern_builder *b = w->f.b;
  kern_id zero = kern_index(b, 0), turns = kern_index(b, dim > 1 ? 1 : all);
  if (some != KERN_NONE) turns = kern_select(b, some, turns, zero);
  kern_id number = kern_for(b, zero, turns, 1);
  return dim > 1 ? own : number;
}

/* The element where the mask's row i begins. */
static kern_id mask_line(struct backward *w, kern_id i) {
  const struct tile *t = &w->f.t;
  const int64_t *dims = w->f.mask->dims;
  kern_id row = kern_min(w->f.b, i, tile_i(t, w->f.a.queries - 1));
  return kern_mul(w->f.b, row, tile_i(t, dims[3]));
}

/* Sums of dS of the block: (query, key), each stored by its thread. */
static void store_pairs(struct backward *w, kern_id mem, const struct tile_sums *total) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  for (int at = 0; at < total->rows * total->columns; at++) {
    kern_id i = tile_row(&f->t, w->r0, at / total->columns), j = tile_column(&f->t, w->c0, at % total->columns);
    kern_id there = kern_bin(b, KERN_LT, i, tile_i(&f->t, f->a.queries)), end = tile_i(&f->t, f->a.keys - 1);
    there = kern_bin(b, KERN_AND, there, kern_bin(b, KERN_LE, j, end));
    kern_id key = kern_min(b, j, end), to = kern_add(b, mask_line(w, i), key), x = kern_get(b, total->at[at]);
    kern_scatter_n(b, mem, to, kern_cast(b, x, f->mask->dtype), there);
  }
}

/* Of a mask that all queries have: of each key, which is a row, the sum over queries. */
static void store_keys(struct backward *w, kern_id mem, const struct tile_sums *total) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  kern_id sum[MOST_ROWS];
  for (int m = 0; m < total->rows; m++) {
    sum[m] = kern_get(b, total->at[m * total->columns]);
    for (int n = 1; n < total->columns; n++)
      sum[m] = kern_add(b, sum[m], kern_get(b, total->at[m * total->columns + n]));
  }
  tile_row_reduce(&f->t, &w->p, IR_SUM, total->rows, sum);
  for (int m = 0; m < total->rows; m++) {
    kern_id j = tile_row(&f->t, w->r0, m), end = tile_i(&f->t, f->a.keys - 1), there = kern_bin(b, KERN_LE, j, end);
    there = kern_bin(b, KERN_AND, there, kern_bin(b, KERN_EQ, f->t.column, tile_i(&f->t, 0)));
    kern_id key = kern_min(b, j, end);
    kern_scatter_n(b, mem, key, kern_cast(b, sum[m], f->mask->dtype), there);
  }
}

/* The task's block of the mask, in w; which head of it, and whether some of it is attended to. */
static kern_id find_block(struct backward *w, int64_t down, int64_t across, kern_id *some) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  kern_id task = kern_task(b), block = kern_imod(b, task, down * across);
  w->r0 = kern_mul_i(b, kern_idiv(b, block, across), w->rows);
  w->c0 = kern_mul_i(b, kern_imod(b, block, across), w->columns);
  kern_id end = kern_min_i(b, kern_add_i(b, w->r0, w->rows), f->a.queries);
  *some = kern_bin(b, KERN_LT, w->c0, flash_keys_attended(f, end));
  return kern_idiv(b, task, down * across);
}

/* Adds dS of the block at r0 and c0 to the sums. */
static void add_slopes(struct backward *w, bool by_keys, const struct tile_sums *total) {
  struct kern_builder *b = w->f.b;
  first_columns(w, w->c0);
  read_queries(w, by_keys);
  multiply_block(w);
  softmax_grad(w, by_keys);
  for (int at = 0; at < total->rows * total->columns; at++) {
    kern_id sum = kern_get(b, total->at[at]);
    kern_set(b, total->at[at], kern_add(b, sum, kern_get(b, w->slope.at[at])));
  }
}

/* Of a mask that each query has its own of: a task has a block of it, and samples and heads that share it pass by. */
static void pair_phase(struct backward *w, int mem) {
  struct flash *f = &w->f;
  const struct pass_attention *a = &f->a;
  const int64_t *dims = f->mask->dims;
  int64_t down = sched_ceil(a->queries, w->rows), across = sched_ceil(a->keys, w->columns);
  struct kern_builder b = flash_phase(f, dims[0] * dims[1] * down * across);
  struct tile_sums total;
  if (b.kern->failed != QUERN_STATUS_OK) return;
  f->b = &b;
  f->t = tile_begin(&b, f->acc);
  kern_id some, own = find_block(w, down, across, &some);
  w->view = PASS_VIEW_K, w->value_view = PASS_VIEW_V;
  start(w);
  tile_sums(&f->t, &total, w->shape.rows, w->shape.columns);
  f->batch = open_shared(w, dims[0], a->batch, kern_idiv(&b, own, dims[1]), some);
  f->head = open_shared(w, dims[1], a->heads, kern_imod(&b, own, dims[1]), KERN_NONE);
  f->kv = kern_idiv(&b, f->head, a->heads / a->kv_heads);
  load_rows(w, PASS_VIEW_Q, PASS_VIEW_DY);
  add_slopes(w, false, &total);
  kern_end(&b);
  kern_end(&b);
  kern_id to = kern_mem(&b, mem);
  store_pairs(w, kern_at(&b, to, kern_mul_i(&b, own, dims[2] * dims[3])), &total);
}

/* Of a mask that all queries have: a task has a block of its keys, and queries of samples and heads that share it pass by. */
static void shared_phase(struct backward *w, int mem) {
  struct flash *f = &w->f;
  const struct pass_attention *a = &f->a;
  const int64_t *dims = f->mask->dims;
  struct kern_builder b = flash_phase(f, dims[0] * dims[1] * sched_ceil(a->keys, w->rows));
  struct tile_sums total;
  if (b.kern->failed != QUERN_STATUS_OK) return;
  f->b = &b;
  f->t = tile_begin(&b, f->acc);
  kern_id task = kern_task(&b), own = kern_idiv(&b, task, sched_ceil(a->keys, w->rows));
  w->r0 = kern_mul_i(&b, kern_imod(&b, task, sched_ceil(a->keys, w->rows)), w->rows);
  w->view = PASS_VIEW_Q, w->value_view = PASS_VIEW_DY;
  start(w);
  tile_sums(&f->t, &total, w->shape.rows, w->shape.columns);
  kern_id first = first_block(w);
  f->batch = open_shared(w, dims[0], a->batch, kern_idiv(&b, own, dims[1]), KERN_NONE);
  f->head = open_shared(w, dims[1], a->heads, kern_imod(&b, own, dims[1]), KERN_NONE);
  f->kv = kern_idiv(&b, f->head, a->heads / a->kv_heads);
  load_rows(w, PASS_VIEW_K, PASS_VIEW_V);
  kern_id number = kern_for(&b, first, kern_index(&b, sched_ceil(a->queries, w->columns)), 1);
  w->c0 = kern_mul_i(&b, number, w->columns);
  add_slopes(w, true, &total);
  kern_end(&b);
  kern_end(&b);
  kern_end(&b);
  kern_id to = kern_mem(&b, mem);
  store_keys(w, kern_at(&b, to, kern_mul_i(&b, own, dims[3])), &total);
}

quern_status sched_gpu_flash_back(struct sched_job *job) {
  struct backward w = {.f = {.job = job}};
  const char *name = job->group->anchor->attrs->name;
  QUERN_CHECK(flash_setup(&w.f, job->group->anchor), INTERNAL, "schedule: %s is no attention", name);
  const struct pass_attention *a = &w.f.a;
  if (flash_mma_back_supports(job->target, job->group->anchor, a)) return sched_gpu_flash_mma_back(job);
  w.delta_mem = kern_add_mem(job->kern, w.f.acc, KERN_WORK, a->batch * a->heads * a->queries);
  w.inv_row_sum_mem = kern_add_mem(job->kern, w.f.acc, KERN_WORK, a->batch * a->heads * a->queries);
  delta_phase(&w);
  QUERN_CHECK(set_shape(&w, false), INTERNAL, "schedule: no tile for %s", name);
  query_phase(&w);
  w.divides = true;
  QUERN_CHECK(set_shape(&w, true), INTERNAL, "schedule: no tile for %s", name);
  key_phase(&w);
  int mask_mem = job->group->anchor->n_out > FLASH_DMASK ? att_operand_mem(job, FLASH_DMASK, true) : KERN_NONE;
  if (mask_mem < 0) return job->kern->failed;
  bool by_keys = w.f.mask->dims[2] == 1;
  QUERN_CHECK(set_shape(&w, by_keys), INTERNAL, "schedule: no tile for %s", name);
  (by_keys ? shared_phase : pair_phase)(&w, mask_mem);
  return job->kern->failed;
}
