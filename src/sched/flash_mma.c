/* sched/flash_mma.c -- forward attention of f32 on GPUs by units for matrices, as flash.c otherwise
** how:   a product of f32 is three of tf32: each number is high + low, rounded to 11 bits each, and low low is left out. A warp has one or
**        two tiles of 16 queries, and four tiles of 8 keys pass by at a time; scores become weights where they are, in registers, since
**        MMA has its left operand where it has its sums. Which key of a block and which column is which of a tile is free: such that
**        operands are loaded 16 bytes at a time.
** keeps: units for matrices cut what they add: sums of more than CHAIN terms are made by additions
** see:   flash.c, kern/ops.def (MMA), docs/design/007-gpu.md      tests: tests/sched/test_attention.c
*/
#include <math.h>

#include "sched/flash.h"

enum {
  TILE = 8,  /* keys of a tile, columns of one of values, terms of an MMA */
  ROWS = 16, /* queries of a tile */
  KEYS = 32, /* of a block */
  KEY_TILES = KEYS / TILE,
  STEP = 16,  /* columns of q and k that are loaded at a time: of two MMAs */
  CHAIN = 32, /* terms of a sum by units for matrices */
  GROUP = 32, /* columns of v that are loaded at a time: of four tiles */
  TILES = GROUP / TILE,
  MOST_WIDTH = 128,
  MOST_ROWS = 2, /* tiles of queries of a warp */
  MOST_OUT = 16, /* tiles of its output */
  WARPS = TILE_THREADS / KERN_WARP
};

/* A number as two of 11 bits. */
struct pair {
  kern_id high, low;
};

struct mma {
  struct flash f;
  int rows;              /* tiles of queries of a warp */
  bool split;            /* queries lie in LOCAL memory as pairs */
  int64_t queries;       /* of a block */
  kern_id q, q_low, own; /* LOCAL memory of queries; the place of the thread's first */
  struct tile_local k, v;
  kern_id row, g, t; /* of a thread: its first row in the block; its number in the warp / 4, and mod 4 */
  kern_id out[MOST_ROWS * MOST_OUT], top[2 * MOST_ROWS], sum[2 * MOST_ROWS]; /* variables */
  kern_id factor[2 * MOST_ROWS];                                             /* that what was there is less by */
  kern_id score[MOST_ROWS][KEY_TILES][4];
  struct pair weight[MOST_ROWS][KEY_TILES];
  kern_id q0, j0;
};

/* ---- which ---------------------------------------------------------------------------------------------------- */

/* Rows are so far apart that eight threads find 16 bytes each in different banks: of k two rows of four threads, of v four rows,
** two apart, of two. */
static int64_t row_stride(int64_t width) {
  int64_t steps = sched_ceil(width, STEP);
  return (steps % 2 == 0 ? steps + 1 : steps) * STEP;
}
static int64_t value_stride(int64_t width) { return sched_ceil(width, GROUP) * GROUP + 4; }

static int rows_of(const struct pass_attention *a) {
  return a->value_width > MOST_WIDTH / 2 || a->width > MOST_WIDTH / 2 ? 1 : 2;
}

static int64_t bytes_of(const struct pass_attention *a, bool split) {
  int64_t queries = (int64_t)rows_of(a) * ROWS * WARPS * (split ? 2 : 1);
  int64_t covered = sched_ceil(a->width, STEP) * STEP;
  return 4 * (queries * covered + KEYS * (row_stride(a->width) + value_stride(a->value_width)));
}

bool flash_mma_claims(const struct base_target *target, quern_dtype dtype, const struct pass_attention *a) {
  bool fits = a->width <= MOST_WIDTH && a->value_width <= MOST_WIDTH && bytes_of(a, false) <= target->shared_bytes;
  return (target->libraries & BASE_UNITS_MMA) != 0 && dtype == QUERN_DTYPE_F32 && !a->back && fits;
}

/* ---- values of all threads -------------------------------------------------------------------------------------- */

static kern_id plus(const struct mma *w, kern_id x, int64_t y) {
  return y == 0 ? x : kern_add(w->f.b, x, tile_i(&w->f.t, y));
}
static kern_id times(const struct mma *w, kern_id x, int64_t y) {
  return y == 1 ? x : kern_mul(w->f.b, x, tile_i(&w->f.t, y));
}

/* Four values of a thread as one. */
static kern_id weave(const struct mma *w, kern_id x0, kern_id x1, kern_id x2, kern_id x3) {
  kern_id even = kern_weave(w->f.b, x0, x2), odd = kern_weave(w->f.b, x1, x3);
  return kern_weave(w->f.b, even, odd);
}

static struct pair split(const struct mma *w, kern_id x) {
  struct pair p = {.high = kern_un(w->f.b, KERN_TF32, x)};
  p.low = kern_sub(w->f.b, x, p.high);
  return p;
}

/* The place of four neighbouring elements, number `four` of a row. */
static kern_id place_of(const struct mma *w, kern_id row, int64_t stride, kern_id four) {
  kern_id first = times(w, row, stride);
  return kern_add(w->f.b, first, times(w, four, 4));
}

/* Four neighbouring elements of a row of LOCAL memory. */
static kern_id load_four(const struct mma *w, const struct tile_local *from, kern_id base, int64_t at) {
  return kern_gather_n(w->f.b, kern_at(w->f.b, from->mem, kern_index(w->f.b, at)), base, 4);
}

/* sums[m * n + i] += a[m] b[i] by three products, the small ones first; each goes through all sums, which do not wait for each other. */
static void multiply(const struct mma *w, kern_id *sums, const struct pair *a, const struct pair *b, int n) {
  for (int product = 0; product < 3; product++)
    for (int i = 0; i < n; i++)
      for (int m = 0; m < w->rows; m++) {
        kern_id left = product == 0 ? a[m].low : a[m].high, right = product == 1 ? b[i].low : b[i].high;
        sums[m * n + i] = kern_mma(w->f.b, sums[m * n + i], left, right);
      }
}

static kern_id no_sums(const struct mma *w) { return kern_const_f(w->f.b, w->f.acc, 4 * TILE_THREADS, 0); }

/* ---- scores ----------------------------------------------------------------------------------------------------- */

/* Numbers of the query and the key of score i of a thread's four of a tile. */
static kern_id query_of(const struct mma *w, int m, int i) {
  kern_id first = tile_all(&w->f.t, w->q0);
  return kern_add(w->f.b, first, plus(w, w->row, m * ROWS + i / 2 * TILE));
}
static kern_id key_of(const struct mma *w, int s, int i) {
  kern_id first = tile_all(&w->f.t, w->j0);
  return kern_add(w->f.b, first, plus(w, times(w, w->t, 2), s * TILE + i % 2));
}

/* Where operand number k of a step of tile m of the queries lies: those of a warp's threads after each other. */
static kern_id place_of_query(const struct mma *w, int m, int step, int k) {
  int64_t each = 2 * sched_ceil(w->f.a.width, STEP);
  return kern_index(w->f.b, (m * each + 2 * step + k) * 4 * KERN_WARP);
}

/* Columns 4 t, ... of a step of a query, times scale; 0 where there are none. */
static void read_query(const struct mma *w, const struct tile_source *from, kern_id query, int step, kern_id x[4]) {
  struct kern_builder *b = w->f.b;
  kern_id mem = kern_at(b, from->mem, from->at), row = kern_min(b, query, tile_all(&w->f.t, from->last));
  row = times(w, row, from->row);
  for (int i = 0; i < 4; i += from->run) {
    kern_id column = plus(w, times(w, w->t, 4), step * STEP + i), last = tile_i(&w->f.t, from->width - from->run);
    kern_id there = kern_bin(b, KERN_LE, column, last), at = kern_add(b, row, kern_min(b, column, last));
    kern_id run = kern_gather_n(b, mem, at, from->run), zero = tile_f(&w->f.t, 0);
    for (int k = 0; k < from->run; k++) {
      kern_id one = kern_pick(b, run, from->run, k);
      one = kern_mul(b, one, tile_f(&w->f.t, w->f.a.scale));
      x[i + k] = (step + 1) * STEP > from->width ? kern_select(b, there, one, zero) : one;
    }
  }
}

/* The queries of a warp to LOCAL memory, as its threads will load them. */
static void keep_queries(struct mma *w) {
  struct kern_builder *b = w->f.b;
  struct tile_source from = flash_source(&w->f, PASS_VIEW_Q, KERN_NONE);
  for (int m = 0; m < w->rows; m++)
    for (int step = 0; step < (int)sched_ceil(from.width, STEP); step++) {
      kern_id x[2][4];
      for (int h = 0; h < 2; h++) read_query(w, &from, query_of(w, m, 2 * h), step, x[h]);
      for (int k = 0; k < 2; k++) {
        kern_id all = weave(w, x[0][2 * k], x[1][2 * k], x[0][2 * k + 1], x[1][2 * k + 1]);
        kern_id at = place_of_query(w, m, step, k);
        struct pair p = {all, KERN_NONE};
        if (w->split) p = split(w, all);
        kern_scatter_n(b, kern_at(b, w->q, at), w->own, p.high, KERN_NONE);
        if (w->split) kern_scatter_n(b, kern_at(b, w->q_low, at), w->own, p.low, KERN_NONE);
      }
    }
}

static struct pair load_queries(const struct mma *w, int m, int step, int k) {
  struct kern_builder *b = w->f.b;
  kern_id at = place_of_query(w, m, step, k), x = kern_gather_n(b, kern_at(b, w->q, at), w->own, 4);
  if (!w->split) return split(w, x);
  return (struct pair){x, kern_gather_n(b, kern_at(b, w->q_low, at), w->own, 4)};
}

/* Columns 4 t, ... of a step of key g of tile s: of two operands. */
static void load_keys(const struct mma *w, int s, int step, struct pair b[2]) {
  kern_id base = place_of(w, w->g, w->k.stride, w->t);
  struct pair four = split(w, load_four(w, &w->k, base, (int64_t)s * TILE * w->k.stride + step * STEP));
  for (int k = 0; k < 2; k++) {
    kern_id part[2];
    for (int low = 0; low < 2; low++) {
      kern_id x = low ? four.low : four.high, first = kern_pick(w->f.b, x, 4, 2 * k);
      part[low] = kern_weave(w->f.b, first, kern_pick(w->f.b, x, 4, 2 * k + 1));
    }
    b[k] = (struct pair){part[0], part[1]};
  }
}

static void find_scores(struct mma *w) {
  int steps = (int)sched_ceil(w->f.a.width, STEP), n = w->rows * KEY_TILES;
  kern_id total[MOST_ROWS * KEY_TILES], chain[MOST_ROWS * KEY_TILES];
  for (int step = 0; step < steps; step++) {
    struct pair b[KEY_TILES][2];
    kern_id zero = step % (CHAIN / STEP) == 0 ? no_sums(w) : KERN_NONE;
    for (int i = 0; i < n && zero != KERN_NONE; i++) chain[i] = zero;
    for (int s = 0; s < KEY_TILES; s++) load_keys(w, s, step, b[s]);
    for (int k = 0; k < 2; k++) {
      struct pair left[MOST_ROWS], right[KEY_TILES];
      for (int m = 0; m < w->rows; m++) left[m] = load_queries(w, m, step, k);
      for (int s = 0; s < KEY_TILES; s++) right[s] = b[s][k];
      multiply(w, chain, left, right, KEY_TILES);
    }
    bool ends = step + 1 == steps || (step + 1) % (CHAIN / STEP) == 0;
    for (int i = 0; i < n && ends; i++)
      total[i] = step < CHAIN / STEP ? chain[i] : kern_add(w->f.b, total[i], chain[i]);
  }
  for (int i = 0; i < 4 * n; i++)
    w->score[i / 4 / KEY_TILES][i / 4 % KEY_TILES][i % 4] = kern_pick(w->f.b, total[i / 4], 4, i % 4);
}

static void add_mask(struct mma *w) {
  for (int at = 0; at < w->rows * KEY_TILES * 4; at++) {
    int m = at / 4 / KEY_TILES, s = at / 4 % KEY_TILES, i = at % 4;
    kern_id query = query_of(w, m, i), key = key_of(w, s, i);
    w->score[m][s][i] = flash_added(&w->f, query, key, w->score[m][s][i]);
  }
}

/* -inf where the key is not seen; of blocks that all queries see, nothing is asked. */
static void hide(struct mma *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  bool asks = f->mask == NULL || f->mask->dtype != QUERN_DTYPE_BOOL;
  kern_id nothing = tile_f(&f->t, -(double)INFINITY), seen[MOST_ROWS * KEY_TILES * 4];
  int n = w->rows * KEY_TILES * 4;
  for (int at = 0; at < n; at++) seen[at] = kern_var(b, w->score[at / 4 / KEY_TILES][at / 4 % KEY_TILES][at % 4]);
  if (asks) {
    kern_id after = kern_add_i(b, w->q0, 1), all = flash_keys_seen(f, after), end = kern_add_i(b, w->j0, KEYS);
    kern_if(b, kern_bin(b, KERN_LT, all, end));
  }
  for (int m = 0; m < w->rows; m++)
    for (int h = 0; h < 2; h++) {
      kern_id query = query_of(w, m, 2 * h), limit = flash_limit(f, query);
      for (int c = 0; c < 2 * KEY_TILES; c++) {
        kern_id key = key_of(w, c / 2, c % 2), var = seen[(m * KEY_TILES + c / 2) * 4 + 2 * h + c % 2];
        kern_id there = flash_sees(f, query, key, limit);
        kern_set(b, var, kern_select(b, there, kern_get(b, var), nothing));
      }
    }
  if (asks) kern_end(b);
  for (int at = 0; at < n; at++) w->score[at / 4 / KEY_TILES][at / 4 % KEY_TILES][at % 4] = kern_get(b, seen[at]);
}

/* ---- weights and outputs ------------------------------------------------------------------------------------------ */

/* What the four threads of a row have, joined. */
static kern_id join_row(const struct mma *w, enum ir_reduce reduce, kern_id x) {
  x = kern_combine(w->f.b, reduce, x, kern_swap(w->f.b, x, 1));
  return kern_combine(w->f.b, reduce, x, kern_swap(w->f.b, x, 2));
}

/* e^(x - from) */
static kern_id weigh(const struct mma *w, kern_id x, kern_id from) {
  kern_id less = kern_sub(w->f.b, x, from);
  return kern_un(w->f.b, KERN_EXP2, kern_mul(w->f.b, less, tile_f(&w->f.t, 1 / log(2))));
}

/* Weights of a half of a tile's rows, in the place of their scores; the row's maximum and sum follow. */
static void soften_row(struct mma *w, int m, int h) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  int row = 2 * m + h;
  kern_id most = KERN_NONE, sum = KERN_NONE, zero = tile_f(&f->t, 0), nothing = tile_f(&f->t, -(double)INFINITY);
  for (int c = 0; c < 2 * KEY_TILES; c++) {
    kern_id x = w->score[m][c / 2][2 * h + c % 2];
    most = c == 0 ? x : kern_max(b, most, x);
  }
  most = join_row(w, IR_REDUCE_MAX, most);
  kern_id before = kern_get(b, w->top[row]), top = kern_max(b, before, most);
  kern_id from = kern_select(b, kern_bin(b, KERN_EQ, top, nothing), zero, top);
  w->factor[row] = weigh(w, before, from);
  kern_set(b, w->top[row], top);
  for (int c = 0; c < 2 * KEY_TILES; c++) {
    kern_id *x = &w->score[m][c / 2][2 * h + c % 2];
    *x = weigh(w, *x, from);
    sum = c == 0 ? *x : kern_add(b, sum, *x);
  }
  kern_set(b, w->sum[row], kern_fma(b, kern_get(b, w->sum[row]), w->factor[row], sum));
}

static void soften(struct mma *w) {
  for (int m = 0; m < w->rows; m++) {
    for (int h = 0; h < 2; h++) soften_row(w, m, h);
    for (int s = 0; s < KEY_TILES; s++) {
      const kern_id *x = w->score[m][s];
      w->weight[m][s] = split(w, weave(w, x[0], x[2], x[1], x[3]));
    }
  }
}

static int groups_of(const struct mma *w) { return (int)sched_ceil(w->f.a.value_width, GROUP); }

/* Of keys 2 t and 2 t + 1 of tile s, columns 4 g, ... of a group: column g of tile i is that of number 4 g + i. */
static void load_values(const struct mma *w, int s, int group, struct pair b[TILES]) {
  struct pair key[2];
  kern_id base = place_of(w, w->t, 2 * w->v.stride, w->g);
  for (int k = 0; k < 2; k++)
    key[k] = split(w, load_four(w, &w->v, base, (int64_t)(s * TILE + k) * w->v.stride + group * GROUP));
  for (int i = 0; i < TILES; i++) {
    kern_id high = kern_pick(w->f.b, key[0].high, 4, i), low = kern_pick(w->f.b, key[0].low, 4, i);
    b[i].high = kern_weave(w->f.b, high, kern_pick(w->f.b, key[1].high, 4, i));
    b[i].low = kern_weave(w->f.b, low, kern_pick(w->f.b, key[1].low, 4, i));
  }
}

static void add_values(struct mma *w) {
  struct kern_builder *b = w->f.b;
  kern_id factor[MOST_ROWS];
  for (int m = 0; m < w->rows; m++) {
    const kern_id *x = &w->factor[2 * m];
    factor[m] = weave(w, x[0], x[0], x[1], x[1]);
  }
  for (int group = 0; group < groups_of(w); group++) {
    kern_id sums[MOST_ROWS * TILES], zero = no_sums(w);
    for (int i = 0; i < w->rows * TILES; i++) sums[i] = zero;
    for (int s = 0; s < KEY_TILES; s++) {
      struct pair left[MOST_ROWS], right[TILES];
      for (int m = 0; m < w->rows; m++) left[m] = w->weight[m][s];
      load_values(w, s, group, right);
      multiply(w, sums, left, right, TILES);
    }
    for (int i = 0; i < w->rows * TILES; i++) {
      kern_id out = w->out[i / TILES * MOST_OUT + group * TILES + i % TILES];
      kern_set(b, out, kern_fma(b, kern_get(b, out), factor[i / TILES], sums[i]));
    }
  }
}

/* ---- results ------------------------------------------------------------------------------------------------------ */

/* Where rows go: from `mem` on, each `row` elements after the other; `run` may be stored at a time. */
struct rows_to {
  kern_id mem;
  int64_t row, width;
  int run;
};

/* Columns 8 t + 4 half, ... of a group: number 2 t + half of its four tiles, so many at a time. */
static void store_four(const struct mma *w, const struct rows_to *to, kern_id line, kern_id there, int group, int half,
                       const kern_id *x) {
  struct kern_builder *b = w->f.b;
  for (int i = 0; i < 4; i += to->run) {
    kern_id e = plus(w, times(w, w->t, TILE), group * GROUP + half * 4 + i), end = tile_i(&w->f.t, to->width - to->run);
    kern_id both = kern_bin(b, KERN_AND, there, kern_bin(b, KERN_LE, e, end)),
            at = kern_add(b, line, kern_min(b, e, end));
    kern_id value = to->run == 4   ? weave(w, x[0], x[1], x[2], x[3])
                    : to->run == 2 ? kern_weave(b, x[i], x[i + 1])
                                   : x[i];
    kern_scatter_n(b, to->mem, at, value, both);
  }
}

/* The outputs, divided where there is a divisor. */
static void store_rows(const struct mma *w, const struct rows_to *to, const kern_id *divisor) {
  struct kern_builder *b = w->f.b;
  for (int row = 0; row < 2 * w->rows; row++) {
    int m = row / 2, h = row % 2;
    kern_id query = query_of(w, m, 2 * h), last = tile_i(&w->f.t, w->f.a.queries - 1);
    kern_id there = kern_bin(b, KERN_LE, query, last), line = times(w, kern_min(b, query, last), to->row);
    for (int at = 0; at < 2 * groups_of(w); at++) {
      kern_id x[TILES];
      for (int i = 0; i < TILES; i++) {
        kern_id tile = kern_get(b, w->out[m * MOST_OUT + at / 2 * TILES + i]);
        x[i] = kern_pick(b, tile, 4, 2 * h + at % 2);
        if (divisor != NULL) x[i] = kern_bin(b, KERN_DIV, x[i], divisor[row]);
      }
      store_four(w, to, line, there, at / 2, at % 2, x);
    }
  }
}

/* The thread that stores what is of a query, not of its columns. */
static kern_id stores_line(const struct mma *w, kern_id query) {
  struct kern_builder *b = w->f.b;
  kern_id there = kern_bin(b, KERN_LT, query, tile_i(&w->f.t, w->f.a.queries));
  return kern_bin(b, KERN_AND, there, kern_bin(b, KERN_EQ, w->t, tile_i(&w->f.t, 0)));
}

/* What the part leaves. */
static void leave(const struct mma *w, const kern_id *sum) {
  struct flash f = w->f;
  struct kern_builder *b = f.b;
  const struct flash_parts *p = &f.parts;
  for (int row = 0; row < 2 * w->rows; row++) {
    kern_id query = query_of(w, row / 2, row % 2 * 2), at = flash_line(&f, query, f.a.queries);
    at = times(w, at, p->n);
    at = kern_add(b, at, tile_all(&f.t, f.part));
    kern_id tops = kern_mem(b, p->top_mem), totals = kern_mem(b, p->sum_mem), there = stores_line(w, query);
    kern_scatter_n(b, tops, at, kern_get(b, w->top[row]), there);
    kern_scatter_n(b, totals, at, sum[row], there);
  }
  kern_id head = kern_add(b, kern_mul_i(b, f.batch, f.a.heads), f.head);
  kern_id line = kern_add(b, kern_mul_i(b, head, f.a.queries * p->n), f.part);
  const int64_t strides[] = {p->row, f.a.value_width};
  struct rows_to to = {.row = p->n * p->row, .width = f.a.value_width, .run = tile_run(f.acc, 2, strides)};
  to.mem = kern_mem(b, p->out_mem);
  to.mem = kern_at(b, to.mem, kern_mul_i(b, line, p->row));
  store_rows(w, &to, NULL);
}

static void finish(struct mma *w, const kern_id *sum) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  kern_id zero = tile_f(&f->t, 0), one = tile_f(&f->t, 1), nothing = tile_f(&f->t, -(double)INFINITY);
  kern_id divisor[2 * MOST_ROWS];
  for (int row = 0; row < 2 * w->rows; row++) {
    kern_id none = kern_bin(b, KERN_EQ, sum[row], zero);
    divisor[row] = kern_select(b, none, one, sum[row]);
    if (f->lse_mem < 0) continue;
    kern_id query = query_of(w, row / 2, row % 2 * 2), line = flash_line(f, query, f->a.queries);
    kern_id x = kern_math(b, IR_LOG, f->acc, 1, &divisor[row]), there = stores_line(w, query);
    x = kern_select(b, none, nothing, kern_add(b, kern_get(b, w->top[row]), x));
    kern_scatter_n(b, kern_mem(b, f->lse_mem), line, x, there);
  }
  if (f->mem[PASS_VIEW_Y] < 0) return;
  struct tile_source like = flash_source(f, PASS_VIEW_Y, KERN_NONE);
  struct rows_to to = {.row = like.row, .width = like.width, .run = like.run};
  to.mem = kern_at(b, like.mem, like.at);
  store_rows(w, &to, divisor);
}

/* ---- the phase ---------------------------------------------------------------------------------------------------- */

static struct tile_local local(const struct mma *w, int64_t rows, int64_t width, int64_t stride) {
  struct tile_local to = {.rows = rows, .width = width, .stride = stride};
  to.mem = kern_local(w->f.b, w->f.acc, rows * stride);
  return to;
}

static void start(struct mma *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  int64_t width = f->a.width, stride = row_stride(width), covered = sched_ceil(width, STEP) * STEP;
  kern_id lane = kern_imod(b, f->t.lane, KERN_WARP), warp = kern_idiv(b, f->t.lane, KERN_WARP);
  w->g = kern_idiv(b, lane, 4);
  w->t = kern_imod(b, lane, 4);
  w->row = kern_add(b, times(w, warp, w->rows * ROWS), w->g);
  w->own = times(w, warp, w->rows * ROWS * covered);
  w->own = kern_add(b, w->own, times(w, lane, 4));
  w->q = kern_local_near(b, f->acc, w->queries * covered);
  if (w->split) w->q_low = kern_local_near(b, f->acc, w->queries * covered);
  w->k = local(w, KEYS, width, stride);
  w->v = local(w, KEYS, f->a.value_width, value_stride(f->a.value_width));
  kern_id nothing = no_sums(w);
  for (int i = 0; i < w->rows * groups_of(w) * TILES; i++)
    w->out[i / (groups_of(w) * TILES) * MOST_OUT + i % (groups_of(w) * TILES)] = kern_var(b, nothing);
  for (int row = 0; row < 2 * w->rows; row++) {
    w->top[row] = kern_var(b, tile_f(&f->t, -(double)INFINITY));
    w->sum[row] = kern_var(b, tile_f(&f->t, 0));
  }
  tile_clear(&f->t, &w->k, width, covered);
  keep_queries(w);
}

/* A block of keys and its values. Values are on their way while scores are computed, and the next keys while they are added. */
static void add_block(struct mma *w, kern_id last) {
  struct flash *f = &w->f;
  struct tile_pieces pieces;
  struct tile_source values = flash_source(f, PASS_VIEW_V, w->j0);
  if (f->offset != KERN_NONE) values.last = last; /* what lies behind may be anything */
  tile_fetch(&f->t, &w->v, &values, &pieces);
  find_scores(w);
  tile_keep(&f->t, &w->v, &values, &pieces, 1);
  struct tile_source next = flash_source(f, PASS_VIEW_K, kern_add_i(f->b, w->j0, KEYS));
  tile_fetch(&f->t, &w->k, &next, &pieces);
  if (flash_adds(f)) add_mask(w);
  if (flash_hides(f, w->queries, KEYS)) hide(w);
  soften(w);
  add_values(w);
  tile_keep(&f->t, &w->k, &next, &pieces, 1);
}

static void forward_phase(struct mma *w) {
  enum { BESIDE = 2 }; /* groups of a processor */
  struct flash *f = &w->f;
  struct kern_builder b;
  kern_id sum[2 * MOST_ROWS];
  if (!flash_begin_queries(f, &b, w->queries, &w->q0)) return;
  b.kern->phases[b.kern->n_phases - 1].beside = BESIDE;
  flash_read_offset(f);
  start(w);
  struct flash_keys passing = flash_keys(f, w->q0, w->queries, KEYS);
  struct tile_source first = flash_source(f, PASS_VIEW_K, kern_mul_i(&b, passing.from, KEYS));
  tile_load(&f->t, &w->k, &first, 1);
  kern_id number = kern_for(&b, passing.from, passing.to, 1);
  w->j0 = kern_mul_i(&b, number, KEYS);
  add_block(w, passing.last);
  kern_end(&b);
  for (int row = 0; row < 2 * w->rows; row++) sum[row] = join_row(w, IR_SUM, kern_get(&b, w->sum[row]));
  if (f->parts.n > 1)
    leave(w, sum);
  else
    finish(w, sum);
}

quern_status sched_flash_mma(struct sched_job *job) {
  struct mma w = {.f = {.job = job}};
  QUERN_CHECK(flash_setup(&w.f, job->group->anchor), INTERNAL, "schedule: %s is no attention",
              job->group->anchor->attrs->name);
  w.rows = rows_of(&w.f.a);
  w.split = bytes_of(&w.f.a, true) <= job->target->shared_bytes;
  w.queries = (int64_t)w.rows * ROWS * WARPS;
  flash_choose_parts(&w.f, w.queries, KEYS);
  forward_phase(&w);
  flash_join_phase(&w.f);
  return job->kern->failed;
}
