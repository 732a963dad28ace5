/* sched/gpu_mma.c -- products by tensor cores (gpu_mma.h) */
#include <math.h>

#include "sched/gpu_mma.h"

/* ---- values of all threads -------------------------------------------------------------------------------------- */

int64_t mma_block(int rows) { return (int64_t)rows * MMA_ROWS * (TILE_THREADS / KERN_WARP); }

bool mma_takes(quern_dtype dtype) {
  return dtype == QUERN_DTYPE_F32 || dtype == QUERN_DTYPE_BF16 || dtype == QUERN_DTYPE_F16;
}
bool mma_pairs(quern_dtype dtype) { return dtype == QUERN_DTYPE_F32; }

struct mma mma_begin(const struct tile *t, quern_dtype dtype, int rows) {
  struct mma m = {.t = t, .b = t->b, .dtype = dtype, .rows = rows};
  m.block = mma_block(rows);
  m.lane = kern_imod(m.b, t->lane, KERN_WARP);
  m.warp = kern_idiv(m.b, t->lane, KERN_WARP);
  m.g = kern_idiv(m.b, m.lane, 4);
  m.u = kern_imod(m.b, m.lane, 4);
  m.row = kern_add(m.b, mma_times(&m, m.warp, (int64_t)rows * MMA_ROWS), m.g);
  return m;
}

kern_id mma_plus(const struct mma *m, kern_id x, int64_t y) { return y == 0 ? x : kern_add(m->b, x, tile_i(m->t, y)); }
kern_id mma_times(const struct mma *m, kern_id x, int64_t y) { return y == 1 ? x : kern_mul(m->b, x, tile_i(m->t, y)); }

kern_id mma_interleave(const struct mma *m, kern_id x0, kern_id x1, kern_id x2, kern_id x3) {
  kern_id even = kern_interleave(m->b, x0, x2), odd = kern_interleave(m->b, x1, x3);
  return kern_interleave(m->b, even, odd);
}

struct mma_pair mma_split(const struct mma *m, kern_id x) {
  struct mma_pair p = {kern_un(m->b, KERN_TF32, x), KERN_NONE};
  if (mma_pairs(m->dtype)) p.low = kern_sub(m->b, x, p.high);
  return p;
}

/* A loaded number as a pair; where operands are no pairs it has few enough bits as it is. */
static struct mma_pair split_loaded(const struct mma *m, kern_id x) {
  return mma_pairs(m->dtype) ? mma_split(m, x) : (struct mma_pair){x, KERN_NONE};
}

kern_id mma_no_sums(const struct mma *m) { return kern_const_f(m->b, m->t->acc, 4 * TILE_THREADS, 0); }

kern_id mma_row_reduce(const struct mma *m, enum ir_reduce reduce, kern_id x) {
  x = kern_combine(m->b, reduce, x, kern_shuffle_xor(m->b, x, 1));
  return kern_combine(m->b, reduce, x, kern_shuffle_xor(m->b, x, 2));
}

kern_id mma_exp_shifted(const struct mma *m, kern_id x, kern_id from) {
  kern_id less = kern_sub(m->b, x, from);
  return kern_un(m->b, KERN_EXP2, kern_mul(m->b, less, tile_f(m->t, 1 / log(2))));
}

kern_id mma_row(const struct mma *m, kern_id first, int tile, int h) {
  kern_id from = tile_all(m->t, first);
  return kern_add(m->b, from, mma_plus(m, m->row, tile * MMA_ROWS + h * MMA_TILE));
}

/* sums[tile * n + i] += a[tile] b[i] by three products of pairs, the small ones first; each goes through all sums, which do not wait for each
** other. transposed: a is what b is otherwise. */
static void multiply(const struct mma *m, kern_id *sums, const struct mma_pair *a, const struct mma_pair *b, int n,
                     bool transposed) {
  for (int product = mma_pairs(m->dtype) ? 0 : 2; product < 3; product++)
    for (int i = 0; i < n; i++)
      for (int tile = 0; tile < m->rows; tile++) {
        kern_id left = product == (transposed ? 1 : 0) ? a[tile].low : a[tile].high;
        kern_id right = product == (transposed ? 0 : 1) ? b[i].low : b[i].high;
        sums[tile * n + i] = kern_mma(m->b, sums[tile * n + i], left, right);
      }
}

/* ---- left operands ------------------------------------------------------------------------------------------------ */

static int steps_of(int64_t width) { return (int)sched_ceil(width, MMA_STEP); }

int64_t mma_left_bytes(int rows, int64_t width) { return 4 * mma_block(rows) * steps_of(width) * MMA_STEP; }

struct mma_left mma_left(const struct mma *m, int64_t width, bool split) {
  int64_t covered = (int64_t)steps_of(width) * MMA_STEP;
  struct mma_left left = {.width = width, .low = KERN_NONE};
  left.own = mma_times(m, m->warp, m->rows * MMA_ROWS * covered);
  left.own = kern_add(m->b, left.own, mma_times(m, m->lane, 4));
  left.mem = kern_local_warp(m->b, m->t->acc, m->block * covered);
  if (split) left.low = kern_local_warp(m->b, m->t->acc, m->block * covered);
  return left;
}

/* Where operand number k of a step of a tile lies: those of a warp's threads after each other. */
static kern_id place_of(const struct mma *m, const struct mma_left *left, int tile, int step, int k) {
  return kern_index(m->b, ((int64_t)tile * 2 * steps_of(left->width) + 2 * step + k) * 4 * KERN_WARP);
}

/* Columns 4 u, ... of a step of a row, times scale; 0 where there are none. */
static void read_row(const struct mma *m, const struct tile_source *from, kern_id row, int step, double scale,
                     kern_id x[4]) {
  kern_id mem = kern_at(m->b, from->mem, from->at), last_row = tile_all(m->t, from->last);
  kern_id at_row = mma_times(m, kern_min(m->b, row, last_row), from->row);
  int n = BASE_MIN(from->run, 4);
  for (int i = 0; i < 4; i += n) {
    kern_id column = mma_plus(m, mma_times(m, m->u, 4), step * MMA_STEP + i), last = tile_i(m->t, from->width - n);
    kern_id there = kern_bin(m->b, KERN_LE, column, last), at = kern_add(m->b, at_row, kern_min(m->b, column, last));
    kern_id run = kern_cast(m->b, kern_gather_n(m->b, mem, at, n), m->t->acc), zero = tile_f(m->t, 0);
    for (int k = 0; k < n; k++) {
      kern_id one = kern_deinterleave(m->b, run, n, k);
      if (scale != 1) one = kern_mul(m->b, one, tile_f(m->t, scale));
      x[i + k] = (step + 1) * MMA_STEP > from->width ? kern_select(m->b, there, one, zero) : one;
    }
  }
}

void mma_left_store_shared(const struct mma *m, const struct mma_left *to, const struct tile_source *from,
                           kern_id first, double scale) {
  bool split = to->low != KERN_NONE || !mma_pairs(m->dtype);
  for (int at = 0; at < m->rows * steps_of(to->width); at++) {
    int tile = at / steps_of(to->width), step = at % steps_of(to->width);
    kern_id x[2][4];
    for (int h = 0; h < 2; h++) read_row(m, from, mma_row(m, first, tile, h), step, scale, x[h]);
    for (int k = 0; k < 2; k++) {
      kern_id all = mma_interleave(m, x[0][2 * k], x[1][2 * k], x[0][2 * k + 1], x[1][2 * k + 1]);
      kern_id place = place_of(m, to, tile, step, k);
      struct mma_pair p = {all, KERN_NONE};
      if (split) p = mma_split(m, all);
      kern_scatter_n(m->b, kern_at(m->b, to->mem, place), to->own, p.high, KERN_NONE);
      if (to->low != KERN_NONE) kern_scatter_n(m->b, kern_at(m->b, to->low, place), to->own, p.low, KERN_NONE);
    }
  }
}

static struct mma_pair load_left(const struct mma *m, const struct mma_left *left, int tile, int step, int k) {
  kern_id at = place_of(m, left, tile, step, k), x = kern_gather_n(m->b, kern_at(m->b, left->mem, at), left->own, 4);
  if (left->low == KERN_NONE) return split_loaded(m, x);
  return (struct mma_pair){x, kern_gather_n(m->b, kern_at(m->b, left->low, at), left->own, 4)};
}

/* ---- right operands ----------------------------------------------------------------------------------------------- */

/* Eight threads load 16 bytes each at a time. As columns: two rows of four threads. As terms: four rows of two; they are two apart,
** unless they are for both. */
static int64_t stride_of(int64_t width, enum mma_use use) {
  int64_t covered = sched_ceil(width, MMA_BLOCK) * MMA_BLOCK;
  if (use == MMA_AS_COLUMNS) return steps_of(width) % 2 == 0 ? covered + MMA_STEP : covered - MMA_STEP;
  return covered + (use == MMA_AS_TERMS ? 4 : 8);
}

int64_t mma_right_bytes(int64_t width, enum mma_use use) { return 4 * MMA_BLOCK * stride_of(width, use); }

/* For both, column n of a tile is row n / 2, or 4 + (n / 2 + 2) mod 4 of odd ones: neighbors are two apart mod 4, and both the even and
** the odd ones are all of them. */
struct mma_right mma_right(const struct mma *m, int64_t width, enum mma_use use) {
  struct mma_right r = {.at = {.rows = MMA_BLOCK, .width = width, .stride = stride_of(width, use)}};
  kern_id row = m->g;
  r.at.mem = kern_local(m->b, m->t->acc, MMA_BLOCK * r.at.stride);
  r.column[0] = mma_times(m, m->u, 2);
  r.column[1] = mma_plus(m, r.column[0], 1);
  if (use == MMA_AS_BOTH) {
    kern_id odd = kern_imod(m->b, m->g, 2), half = kern_idiv(m->b, m->g, 2);
    row = kern_imod(m->b, kern_add(m->b, half, mma_times(m, odd, 2)), 4);
    row = kern_add(m->b, row, mma_times(m, odd, 4));
    r.column[0] = m->u;
    r.column[1] = mma_plus(m, kern_imod(m->b, mma_plus(m, m->u, 2), 4), 4);
  }
  row = mma_times(m, row, r.at.stride);
  r.own = kern_add(m->b, row, mma_times(m, m->u, 4));
  for (int i = 0; i < 2; i++) {
    row = mma_times(m, r.column[i], r.at.stride);
    r.pair[i] = kern_add(m->b, row, mma_times(m, m->g, 4));
  }
  return r;
}

kern_id mma_column(const struct mma *m, const struct mma_right *r, kern_id first, int s, int i) {
  kern_id from = tile_all(m->t, first);
  return kern_add(m->b, from, mma_plus(m, r->column[i], s * MMA_TILE));
}

/* Four neighboring elements of a row of tile s, as pairs. */
static struct mma_pair load_four(const struct mma *m, const struct mma_right *r, kern_id base, int s, int at) {
  kern_id place = kern_index(m->b, s * MMA_TILE * r->at.stride + at);
  return split_loaded(m, kern_gather_n(m->b, kern_at(m->b, r->at.mem, place), base, 4));
}

/* Number i of four of x, and number k of four of y, as one. */
static kern_id join_two(const struct mma *m, kern_id x, int i, kern_id y, int k) {
  kern_id first = kern_deinterleave(m->b, x, 4, i);
  return kern_interleave(m->b, first, kern_deinterleave(m->b, y, 4, k));
}
static struct mma_pair join_pairs(const struct mma *m, struct mma_pair x, int i, struct mma_pair y, int k) {
  struct mma_pair p = {join_two(m, x.high, i, y.high, k), KERN_NONE};
  if (x.low != KERN_NONE) p.low = join_two(m, x.low, i, y.low, k);
  return p;
}

/* Columns 4 u, ... of a step of row g of tile s: of two operands. */
static void load_columns(const struct mma *m, const struct mma_right *r, int s, int step, struct mma_pair b[2]) {
  struct mma_pair four = load_four(m, r, r->own, s, step * MMA_STEP);
  for (int k = 0; k < 2; k++) b[k] = join_pairs(m, four, 2 * k, four, 2 * k + 1);
}

/* Of the thread's two rows of tile s, columns 4 g, ... of a group: column g of tile i is that of number 4 g + i. */
static void load_terms(const struct mma *m, const struct mma_right *r, int s, int group, struct mma_pair b[MMA_TILES]) {
  struct mma_pair row[2];
  for (int k = 0; k < 2; k++) row[k] = load_four(m, r, r->pair[k], s, group * MMA_BLOCK);
  for (int i = 0; i < MMA_TILES; i++) b[i] = join_pairs(m, row[0], i, row[1], i);
}

/* ---- products ------------------------------------------------------------------------------------------------------ */

void mma_scores(const struct mma *m, const struct mma_left *left, const struct mma_right *right, bool transposed,
                double scale, kern_id *scores) {
  int steps = steps_of(left->width), n = m->rows * MMA_TILES;
  kern_id total[MMA_MOST_ROWS * MMA_TILES], chain[MMA_MOST_ROWS * MMA_TILES];
  for (int step = 0; step < steps; step++) {
    struct mma_pair b[MMA_TILES][2];
    kern_id zero = step % (MMA_CHAIN / MMA_STEP) == 0 ? mma_no_sums(m) : KERN_NONE;
    for (int i = 0; i < n && zero != KERN_NONE; i++) chain[i] = zero;
    for (int s = 0; s < MMA_TILES; s++) load_columns(m, right, s, step, b[s]);
    for (int k = 0; k < 2; k++) {
      struct mma_pair one[MMA_MOST_ROWS], other[MMA_TILES];
      for (int tile = 0; tile < m->rows; tile++) one[tile] = load_left(m, left, tile, step, k);
      for (int s = 0; s < MMA_TILES; s++) other[s] = b[s][k];
      multiply(m, chain, one, other, MMA_TILES, transposed);
    }
    bool ends = step + 1 == steps || (step + 1) % (MMA_CHAIN / MMA_STEP) == 0;
    for (int i = 0; i < n && ends; i++)
      total[i] = step < MMA_CHAIN / MMA_STEP ? chain[i] : kern_add(m->b, total[i], chain[i]);
  }
  for (int i = 0; i < 4 * n; i++) {
    scores[i] = kern_deinterleave(m->b, total[i / 4], 4, i % 4);
    if (scale != 1) scores[i] = kern_mul(m->b, scores[i], tile_f(m->t, scale));
  }
}

void mma_weights(const struct mma *m, const kern_id *scores, struct mma_pair *weights) {
  for (int i = 0; i < m->rows * MMA_TILES; i++) {
    const kern_id *x = &scores[(ptrdiff_t)4 * i];
    weights[i] = mma_split(m, mma_interleave(m, x[0], x[2], x[1], x[3]));
  }
}

static int column_groups_of(int64_t width) { return (int)sched_ceil(width, MMA_BLOCK); }

void mma_out(const struct mma *m, struct mma_out *out, int64_t width) {
  int n = column_groups_of(width) * MMA_TILES;
  kern_id nothing = mma_no_sums(m);
  out->width = width;
  for (int i = 0; i < m->rows * n; i++) out->at[i / n * MMA_MOST_OUT + i % n] = kern_var(m->b, nothing);
}

void mma_add(const struct mma *m, const struct mma_out *out, const kern_id *factor, const struct mma_pair *weights,
             const struct mma_right *right) {
  for (int group = 0; group < column_groups_of(out->width); group++) {
    kern_id sums[MMA_MOST_ROWS * MMA_TILES], zero = mma_no_sums(m);
    for (int i = 0; i < m->rows * MMA_TILES; i++) sums[i] = zero;
    for (int s = 0; s < MMA_TILES; s++) {
      struct mma_pair one[MMA_MOST_ROWS], other[MMA_TILES];
      for (int tile = 0; tile < m->rows; tile++) one[tile] = weights[tile * MMA_TILES + s];
      load_terms(m, right, s, group, other);
      multiply(m, sums, one, other, MMA_TILES, false);
    }
    for (int i = 0; i < m->rows * MMA_TILES; i++) {
      int tile = i / MMA_TILES;
      kern_id to = out->at[tile * MMA_MOST_OUT + group * MMA_TILES + i % MMA_TILES], before = kern_get(m->b, to);
      kern_set(m->b, to,
               factor == NULL ? kern_add(m->b, before, sums[i]) : kern_fma(m->b, before, factor[tile], sums[i]));
    }
  }
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

/* Columns 8 u + 4 half, ... of a group: number 2 u + half of its four tiles, so many at a time. */
static void store_four(const struct mma *m, const struct mma_to *to, kern_id line, kern_id there, int group, int half,
                       const kern_id *x) {
  int n = BASE_MIN(to->run, 4);
  for (int i = 0; i < 4; i += n) {
    kern_id e = mma_plus(m, mma_times(m, m->u, MMA_TILE), group * MMA_BLOCK + half * 4 + i),
            end = tile_i(m->t, to->width - n);
    kern_id both = kern_bin(m->b, KERN_AND, there, kern_bin(m->b, KERN_LE, e, end)),
            at = kern_add(m->b, line, kern_min(m->b, e, end));
    kern_id value = n == 4   ? mma_interleave(m, x[0], x[1], x[2], x[3])
                    : n == 2 ? kern_interleave(m->b, x[i], x[i + 1])
                             : x[i];
    kern_scatter_n(m->b, to->mem, at, kern_cast(m->b, value, to->dtype), both);
  }
}

void mma_store(const struct mma *m, const struct mma_to *to, kern_id first, const struct mma_out *out, enum kern_op op,
               const kern_id *operand) {
  for (int row = 0; row < 2 * m->rows; row++) {
    kern_id number = mma_row(m, first, row / 2, row % 2), last = tile_i(m->t, to->last);
    kern_id there = kern_bin(m->b, KERN_LE, number, last), line = mma_times(m, kern_min(m->b, number, last), to->row);
    for (int at = 0; at < 2 * column_groups_of(out->width); at++) {
      kern_id x[MMA_TILES];
      for (int i = 0; i < MMA_TILES; i++) {
        kern_id tile = kern_get(m->b, out->at[row / 2 * MMA_MOST_OUT + at / 2 * MMA_TILES + i]);
        x[i] = kern_deinterleave(m->b, tile, 4, row % 2 * 2 + at % 2);
        if (operand != NULL) x[i] = kern_bin(m->b, op, x[i], operand[row]);
      }
      store_four(m, to, line, there, at / 2, at % 2, x);
    }
  }
}
