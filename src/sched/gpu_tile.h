/* sched/gpu_tile.h -- matrices by a thread block: tiles in shared memory, sums in registers
** A thread has rows row + down m and columns of a tile of sums, which are values of as many lanes as there are threads: lane t is
** thread t's. Operands lie in LOCAL memory row by row, as they do in the device's, and are loaded 16 bytes at a time.
** tests: tests/sched/test_attention.c
*/
#ifndef SCHED_GPU_TILE_H
#define SCHED_GPU_TILE_H
#include "sched/sched_int.h"

enum { TILE_THREADS = 128, TILE_ACROSS = 8, TILE_DOWN = TILE_THREADS / TILE_ACROSS, TILE_MOST = 256 };

struct tile {
  struct kern_builder *b;
  quern_dtype acc;
  int quad;            /* elements of 16 bytes */
  kern_id lane;        /* i64, one lane per thread: its number, */
  kern_id row, column; /* its row of `down`, its column of `across` */
  int down, across;    /* TILE_DOWN and TILE_ACROSS; or one row and as many columns as threads */
};
struct tile tile_begin(struct kern_builder *b, quern_dtype acc);
/* One whose threads have all rows and a column each: of tile_load, tile_multiply_rows and what is a number only. */
struct tile tile_begin_flat(struct kern_builder *b, quern_dtype acc);

/* A matrix in LOCAL memory: rows x width, a row `stride` elements from the next, so that neither rows nor columns lie in one bank. */
struct tile_local {
  kern_id mem;
  int64_t rows, width, stride;
};
int64_t tile_stride(quern_dtype acc, int64_t width);
int64_t tile_bytes(quern_dtype acc, int64_t rows, int64_t width);
struct tile_local tile_local(const struct tile *t, int64_t rows, int64_t width);
/* A warp-local matrix for what tile_put puts, which only threads of the same row load; its bytes. */
struct tile_local tile_local_warp(const struct tile *t, int64_t rows, int64_t width);
int64_t tile_local_warp_bytes(quern_dtype acc, int64_t rows, int64_t width);
/* Columns from, ..., end - 1 become 0; those from `from` on, up to whole 16 bytes: products read them. */
void tile_clear(const struct tile *t, const struct tile_local *to, int64_t from, int64_t end);
void tile_clear_end(const struct tile *t, const struct tile_local *to, int64_t from);

/* Sums of a thread: rows x columns variables. */
struct tile_sums {
  int rows, columns;
  kern_id at[TILE_MOST]; /* [row * columns + column] */
};
void tile_sums(const struct tile *t, struct tile_sums *sums, int rows, int columns);
void tile_set_zero(const struct tile *t, const struct tile_sums *sums);

/* The columns of a thread are column + across n: sums += a b', over `terms` columns of both, a multiple of t->quad. */
void tile_multiply_rows(const struct tile *t, const struct tile_sums *sums, const struct tile_local *a,
                        const struct tile_local *b, int64_t terms);
/* The columns of a thread are (TILE_ACROSS v + column) quad + x: sums += a b, over `terms` columns of a and rows of b. */
void tile_multiply(const struct tile *t, const struct tile_sums *sums, const struct tile_local *a,
                   const struct tile_local *b, int64_t terms);
/* Columns of tile_multiply's sums for a width, and the width that they cover. */
int tile_columns(quern_dtype acc, int64_t width);
static inline int64_t tile_covered(quern_dtype acc, int64_t width) {
  return (int64_t)tile_columns(acc, width) * TILE_ACROSS;
}

/* Where a matrix lies in memory: row r begins at element `at + r row` of mem; those from `last` on are as that one. */
struct tile_source {
  kern_id mem, at, first,
      last; /* the place of its row 0; the number of the first row wanted, of the last there is: scalars */
  int64_t row, width;
  int run; /* elements that are loaded at a time */
};
/* The elements, up to 16 bytes, that divide all of these. */
int tile_run(quern_dtype dtype, int n, const int64_t *strides);
/* Rows first, first + 1, ... times scale to LOCAL memory. */
void tile_load(const struct tile *t, const struct tile_local *to, const struct tile_source *from, double scale);
/* Loads rows in two steps, with something between, as double buffering needs: to registers, where they suffice, and from there to LOCAL. */
enum { TILE_PIECES = 16 };
struct tile_pieces {
  int n; /* 0: they do not suffice */
  kern_id at[TILE_PIECES];
};
void tile_load_registers(const struct tile *t, const struct tile_local *to, const struct tile_source *from,
                         struct tile_pieces *pieces);
void tile_store_shared(const struct tile *t, const struct tile_local *to, const struct tile_source *from,
                       const struct tile_pieces *pieces, double scale);

/* The thread's number of a row or a column, from a first one: vectors of i64. */
kern_id tile_row(const struct tile *t, kern_id first, int m);
kern_id tile_column(const struct tile *t, kern_id first, int n); /* of tile_multiply_rows */
kern_id tile_wide_column(const struct tile *t, int n);           /* of tile_multiply */
kern_id tile_i(const struct tile *t, int64_t value);             /* a constant, in all lanes */
kern_id tile_f(const struct tile *t, double value);
kern_id tile_all(const struct tile *t, kern_id scalar);

/* Puts value (m, n), of tile_multiply_rows' columns, to LOCAL memory. */
void tile_put(const struct tile *t, const struct tile_local *to, int m, int n, kern_id value);
/* Reduces what all threads of a row have: values[m] of each thread's row m. part: rows x TILE_ACROSS of LOCAL memory. */
void tile_row_reduce(const struct tile *t, const struct tile_local *part, enum ir_reduce reduce, int rows,
                     kern_id *values);

#endif
