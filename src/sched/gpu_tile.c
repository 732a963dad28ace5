/* sched/gpu_tile.c -- matrices by a thread block: tiles in shared memory, sums in registers
** how:   both operands of a product are read along their terms, 16 bytes at a time, where they lie row by row; so tiles are copies
**        of what memory has, and nothing is transposed. A row is 16 bytes longer than its width, so that threads that read
**        the same columns of neighboring rows find them in different banks: without bank conflicts.
** see:   gpu_tile.h, gpu_flash.c      tests: tests/sched/test_attention.c
*/
#include "sched/gpu_tile.h"

static int quad_of(quern_dtype acc) { return 16 / (int)base_dtypes[acc].size; }

/* ---- values of all threads --------------------------------------------------------------------------------- */

kern_id tile_i(const struct tile *t, int64_t value) { return kern_const_i(t->b, QUERN_DTYPE_I64, TILE_THREADS, value); }
kern_id tile_f(const struct tile *t, double value) { return kern_const_f(t->b, t->acc, TILE_THREADS, value); }
kern_id tile_all(const struct tile *t, kern_id scalar) { return kern_splat(t->b, scalar, TILE_THREADS); }

static kern_id times_i(const struct tile *t, kern_id x, int64_t value) {
  return value == 1 ? x : kern_mul(t->b, x, tile_i(t, value));
}
static kern_id plus_i(const struct tile *t, kern_id x, int64_t value) {
  return value == 0 ? x : kern_add(t->b, x, tile_i(t, value));
}

/* Threads are two by two: 0 and 1 are neighbors in a row, 0 and 2 in a column. A load of 16 bytes takes half as long where those whose
** numbers differ in the last bit, or in the one before it, have one address: that is so for both operands of a product. */
struct tile tile_begin(struct kern_builder *b, quern_dtype acc) {
  struct tile t = {.b = b, .acc = acc, .quad = quad_of(acc), .down = TILE_DOWN, .across = TILE_ACROSS};
  t.lane = kern_lane(b, QUERN_DTYPE_I64, TILE_THREADS);
  kern_id square = kern_idiv(b, t.lane, 4), right = kern_imod(b, t.lane, 2), lower = kern_idiv(b, t.lane, 2);
  t.row = times_i(&t, kern_idiv(b, square, TILE_ACROSS / 2), 2);
  t.row = kern_add(b, t.row, kern_imod(b, lower, 2));
  t.column = times_i(&t, kern_imod(b, square, TILE_ACROSS / 2), 2);
  t.column = kern_add(b, t.column, right);
  return t;
}

struct tile tile_begin_flat(struct kern_builder *b, quern_dtype acc) {
  struct tile t = {.b = b, .acc = acc, .quad = quad_of(acc), .down = 1, .across = TILE_THREADS};
  t.lane = t.column = kern_lane(b, QUERN_DTYPE_I64, TILE_THREADS);
  t.row = tile_i(&t, 0);
  return t;
}

kern_id tile_row(const struct tile *t, kern_id first, int m) {
  kern_id at = tile_all(t, first);
  return kern_add(t->b, at, plus_i(t, t->row, (int64_t)m * t->down));
}
kern_id tile_column(const struct tile *t, kern_id first, int n) {
  kern_id at = tile_all(t, first);
  return kern_add(t->b, at, plus_i(t, t->column, (int64_t)n * t->across));
}
kern_id tile_wide_column(const struct tile *t, int n) {
  return plus_i(t, times_i(t, t->column, t->quad), (int64_t)(n / t->quad) * TILE_ACROSS * t->quad + n % t->quad);
}

/* ---- tiles in LOCAL memory --------------------------------------------------------------------------------- */

int64_t tile_stride(quern_dtype acc, int64_t width) {
  int quad = quad_of(acc);
  return (sched_ceil(width, quad) + 1) * quad;
}
static int64_t bytes_of(quern_dtype acc, int64_t elements) {
  return sched_ceil(elements * (int64_t)base_dtypes[acc].size, 64) * 64;
}
int64_t tile_bytes(quern_dtype acc, int64_t rows, int64_t width) {
  return bytes_of(acc, rows * tile_stride(acc, width));
}
struct tile_local tile_local(const struct tile *t, int64_t rows, int64_t width) {
  struct tile_local local = {.rows = rows, .width = width, .stride = tile_stride(t->acc, width)};
  local.mem = kern_local(t->b, t->acc, rows * local.stride);
  return local;
}

/* Rows of a warp are so far apart that what its threads put lies in different banks. */
static int64_t near_stride(quern_dtype acc, int64_t width) {
  int64_t banks = 128 / (int64_t)base_dtypes[acc].size;
  return sched_ceil(BASE_MAX(width - TILE_ACROSS, 0), banks) * banks + TILE_ACROSS;
}
int64_t tile_local_warp_bytes(quern_dtype acc, int64_t rows, int64_t width) {
  return bytes_of(acc, rows * near_stride(acc, width));
}
struct tile_local tile_local_warp(const struct tile *t, int64_t rows, int64_t width) {
  struct tile_local local = {.rows = rows, .width = width, .stride = near_stride(t->acc, width)};
  local.mem = kern_local_warp(t->b, t->acc, rows * local.stride);
  return local;
}

void tile_clear_end(const struct tile *t, const struct tile_local *to, int64_t from) {
  tile_clear(t, to, from, sched_ceil(from, t->quad) * t->quad);
}

void tile_clear(const struct tile *t, const struct tile_local *to, int64_t from, int64_t end) {
  for (int64_t column = from; column < end; column++) {
    for (int64_t first = 0; first < to->rows; first += TILE_THREADS) {
      kern_id row = plus_i(t, t->lane, first), last = tile_i(t, to->rows - 1);
      kern_id there = kern_bin(t->b, KERN_LE, row, last);
      kern_id at = times_i(t, kern_min(t->b, row, last), to->stride);
      at = plus_i(t, at, column);
      kern_scatter_n(t->b, to->mem, at, tile_f(t, 0), there);
    }
  }
}

int tile_run(quern_dtype dtype, int n, const int64_t *strides) {
  int run = 16 / (int)base_dtypes[dtype].size;
  for (int i = 0; i < n; i++)
    while (strides[i] % run != 0) run /= 2;
  return run;
}

enum { AT_ONCE = 8 }; /* loads that stand before their stores */

/* Where piece number `first` of a thread lies: pieces are TILE_THREADS apart. there: which threads have one; KERN_NONE: all. */
struct place {
  kern_id row, column, there;
};
static struct place find_piece(const struct tile *t, const struct tile_local *to, const struct tile_source *from,
                               int64_t first) {
  struct kern_builder *b = t->b;
  int64_t each = from->width / from->run, all = to->rows * each;
  struct place p = {.there = KERN_NONE};
  kern_id number = plus_i(t, t->lane, first);
  if (first + TILE_THREADS > all) {
    p.there = kern_bin(b, KERN_LT, number, tile_i(t, all));
    number = kern_min(b, number, tile_i(t, all - 1));
  }
  p.row = kern_idiv(b, number, each);
  p.column = times_i(t, kern_imod(b, number, each), from->run);
  return p;
}

static kern_id load_piece(const struct tile *t, const struct tile_local *to, const struct tile_source *from,
                          int64_t first) {
  struct kern_builder *b = t->b;
  struct place p = find_piece(t, to, from, first);
  kern_id memory = kern_at(b, from->mem, from->at), row = kern_add(b, p.row, tile_all(t, from->first));
  row = kern_min(b, row, tile_all(t, from->last));
  kern_id place = kern_add(b, times_i(t, row, from->row), p.column);
  return kern_gather_n(b, memory, place, from->run);
}

static void store_piece(const struct tile *t, const struct tile_local *to, const struct tile_source *from,
                        int64_t first, kern_id value, double scale) {
  struct kern_builder *b = t->b;
  struct place p = find_piece(t, to, from, first);
  kern_id at = kern_add(b, times_i(t, p.row, to->stride), p.column), x = kern_cast(b, value, t->acc);
  if (scale != 1) x = kern_mul(b, x, kern_const_f(b, t->acc, TILE_THREADS * from->run, scale));
  kern_scatter_n(b, to->mem, at, x, p.there);
}

void tile_load(const struct tile *t, const struct tile_local *to, const struct tile_source *from, double scale) {
  int64_t all = to->rows * (from->width / from->run), step = TILE_THREADS;
  for (int64_t first = 0; first < all; first += AT_ONCE * step) {
    kern_id values[AT_ONCE];
    int n = (int)BASE_MIN(sched_ceil(all - first, step), AT_ONCE);
    for (int i = 0; i < n; i++) values[i] = load_piece(t, to, from, first + i * step);
    for (int i = 0; i < n; i++) store_piece(t, to, from, first + i * step, values[i], scale);
  }
}

void tile_load_registers(const struct tile *t, const struct tile_local *to, const struct tile_source *from,
                         struct tile_pieces *pieces) {
  int64_t n = sched_ceil(to->rows * (from->width / from->run), TILE_THREADS);
  pieces->n = n <= TILE_PIECES && n * from->run <= TILE_PIECES * t->quad ? (int)n : 0;
  for (int i = 0; i < pieces->n; i++) pieces->at[i] = load_piece(t, to, from, (int64_t)i * TILE_THREADS);
}

void tile_store_shared(const struct tile *t, const struct tile_local *to, const struct tile_source *from,
                       const struct tile_pieces *pieces, double scale) {
  if (pieces->n == 0) tile_load(t, to, from, scale);
  for (int i = 0; i < pieces->n; i++) store_piece(t, to, from, (int64_t)i * TILE_THREADS, pieces->at[i], scale);
}

/* ---- products ---------------------------------------------------------------------------------------------- */

void tile_sums(const struct tile *t, struct tile_sums *sums, int rows, int columns) {
  sums->rows = rows;
  sums->columns = columns;
  for (int i = 0; i < rows * columns; i++) sums->at[i] = kern_var(t->b, tile_f(t, 0));
}
void tile_set_zero(const struct tile *t, const struct tile_sums *sums) {
  kern_id zero = tile_f(t, 0);
  for (int i = 0; i < sums->rows * sums->columns; i++) kern_set(t->b, sums->at[i], zero);
}

enum { MOST_ROWS = 16, MOST_QUAD = 4 };

/* Columns k, k + 1, ... of the thread's rows of a: of row m, quad values. */
static void load_rows(const struct tile *t, const struct tile_local *a, kern_id base, kern_id k, int rows,
                      kern_id out[MOST_ROWS][MOST_QUAD]) {
  for (int m = 0; m < rows; m++) {
    kern_id at = kern_add_i(t->b, k, (int64_t)m * t->down * a->stride);
    kern_id four = kern_gather_n(t->b, kern_at(t->b, a->mem, at), base, t->quad);
    for (int x = 0; x < t->quad; x++) out[m][x] = kern_deinterleave(t->b, four, t->quad, x);
  }
}

/* sums of a column += a[m][x] b[x], x < n */
static void add_products(const struct tile *t, const struct tile_sums *sums, int column, int n,
                         kern_id a[MOST_ROWS][MOST_QUAD], int from, const kern_id *b) {
  kern_id sum[MOST_ROWS];
  for (int m = 0; m < sums->rows; m++) sum[m] = kern_get(t->b, sums->at[m * sums->columns + column]);
  for (int x = 0; x < n; x++)
    for (int m = 0; m < sums->rows; m++) sum[m] = kern_fma(t->b, a[m][from + x], b[x], sum[m]);
  for (int m = 0; m < sums->rows; m++) kern_set(t->b, sums->at[m * sums->columns + column], sum[m]);
}

void tile_multiply_rows(const struct tile *t, const struct tile_sums *sums, const struct tile_local *a,
                        const struct tile_local *b, int64_t terms) {
  kern_id left = times_i(t, t->row, a->stride), right = times_i(t, t->column, b->stride);
  kern_id k = kern_range(t->b, 0, terms, t->quad), rows[MOST_ROWS][MOST_QUAD], other[MOST_QUAD];
  load_rows(t, a, left, k, sums->rows, rows);
  for (int n = 0; n < sums->columns; n++) {
    kern_id at = kern_add_i(t->b, k, (int64_t)n * t->across * b->stride);
    kern_id four = kern_gather_n(t->b, kern_at(t->b, b->mem, at), right, t->quad);
    for (int x = 0; x < t->quad; x++) other[x] = kern_deinterleave(t->b, four, t->quad, x);
    add_products(t, sums, n, t->quad, rows, 0, other);
  }
  kern_end(t->b);
}

void tile_multiply(const struct tile *t, const struct tile_sums *sums, const struct tile_local *a,
                   const struct tile_local *b, int64_t terms) {
  kern_id left = times_i(t, t->row, a->stride), right = times_i(t, t->column, t->quad);
  kern_id k = kern_range(t->b, 0, terms, t->quad), rows[MOST_ROWS][MOST_QUAD];
  load_rows(t, a, left, k, sums->rows, rows);
  kern_id first = kern_mul_i(t->b, k, b->stride);
  for (int x = 0; x < t->quad; x++) {
    for (int n = 0; n < sums->columns; n += t->quad) {
      kern_id at = kern_add_i(t->b, first, x * b->stride + (int64_t)n * TILE_ACROSS);
      kern_id four = kern_gather_n(t->b, kern_at(t->b, b->mem, at), right, t->quad);
      for (int i = 0; i < t->quad; i++) {
        kern_id other = kern_deinterleave(t->b, four, t->quad, i);
        add_products(t, sums, n + i, 1, rows, x, &other);
      }
    }
  }
  kern_end(t->b);
}

int tile_columns(quern_dtype acc, int64_t width) {
  int quad = quad_of(acc);
  return (int)sched_ceil(width, (int64_t)TILE_ACROSS * quad) * quad;
}

/* ---- what threads tell each other -------------------------------------------------------------------------- */

void tile_put(const struct tile *t, const struct tile_local *to, int m, int n, kern_id value) {
  kern_id at = kern_add(t->b, times_i(t, t->row, to->stride), t->column);
  kern_id mem =
      kern_at(t->b, to->mem, kern_index(t->b, (int64_t)m * TILE_DOWN * to->stride + (int64_t)n * TILE_ACROSS));
  kern_scatter_n(t->b, mem, at, value, KERN_NONE);
}

void tile_row_reduce(const struct tile *t, const struct tile_local *part, enum ir_reduce reduce, int rows,
                     kern_id *values) {
  kern_id base = times_i(t, t->row, part->stride);
  for (int m = 0; m < rows; m++) tile_put(t, part, m, 0, values[m]);
  for (int m = 0; m < rows; m++) {
    kern_id one[TILE_ACROSS];
    for (int i = 0; i < TILE_ACROSS; i += t->quad) {
      kern_id at = kern_index(t->b, (int64_t)m * TILE_DOWN * part->stride + i);
      kern_id four = kern_gather_n(t->b, kern_at(t->b, part->mem, at), base, t->quad);
      for (int x = 0; x < t->quad; x++) one[i + x] = kern_deinterleave(t->b, four, t->quad, x);
    }
    for (int h = TILE_ACROSS / 2; h >= 1; h /= 2)
      for (int i = 0; i < h; i++) one[i] = kern_combine(t->b, reduce, one[i], one[i + h]);
    values[m] = one[0];
  }
}
