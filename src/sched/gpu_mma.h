/* sched/gpu_mma.h -- matrix products by tensor cores: a warp has tiles of 16 rows, and blocks of 32 columns pass by
** A product of f32 is three of tf32: each number is high + low, rounded to 11 bits each, and low low is left out. Of 16-bit floats, which have no
** more than 11 bits, it is one, and what is computed of them is rounded to as many where it becomes an operand. Tensor cores cut what they add: sums of more than MMA_CHAIN terms are made by additions. Sums lie as a left operand does, so weights stay in registers.
** Which row of a block and which column is which of a tile is free: such that operands are loaded 16 bytes at a time.
** see: kern/ops.def (MMA), docs/design/007-gpu.md      tests: tests/sched/test_attention.c
*/
#ifndef SCHED_GPU_MMA_H
#define SCHED_GPU_MMA_H
#include "sched/gpu_tile.h"

enum {
  MMA_TILE = 8,  /* columns of a tile, terms of an MMA */
  MMA_ROWS = 16, /* rows of a tile */
  MMA_BLOCK = 32,
  MMA_TILES = MMA_BLOCK / MMA_TILE, /* of a block of columns; of columns of results that are made at a time */
  MMA_STEP = 16,                    /* terms that are loaded at a time: of two MMAs */
  MMA_CHAIN = 32,
  MMA_MOST_WIDTH = 128,
  MMA_MOST_ROWS = 2,                         /* tiles of rows of a warp */
  MMA_MOST_OUT = MMA_MOST_WIDTH / MMA_TILE,  /* tiles of columns of its results */
  MMA_SCORES = MMA_MOST_ROWS * MMA_TILES * 4 /* of a thread */
};

/* A number as two of 11 bits; low KERN_NONE: as one. */
struct mma_pair {
  kern_id high, low;
};

struct mma {
  const struct tile *t;
  struct kern_builder *b;
  quern_dtype dtype; /* of operands in memory */
  int rows;          /* tiles of a warp */
  int64_t block;     /* rows of all warps */
  kern_id warp, lane, row, g,
      u; /* of a thread: its warp, its number in it, its first row; that number / 4, and mod 4 */
};
int64_t mma_block(int rows);
struct mma mma_begin(const struct tile *t, quern_dtype dtype, int rows);
/* Whether operands of that dtype can be these. */
bool mma_takes(quern_dtype dtype);
/* Whether operands are pairs. */
bool mma_pairs(quern_dtype dtype);

/* ---- values of all threads */
kern_id mma_plus(const struct mma *m, kern_id x, int64_t y);
kern_id mma_times(const struct mma *m, kern_id x, int64_t y);
kern_id mma_interleave(const struct mma *m, kern_id x0, kern_id x1, kern_id x2, kern_id x3); /* four as one */
struct mma_pair mma_split(const struct mma *m, kern_id x);
kern_id mma_no_sums(const struct mma *m);
/* What the four threads of a row have, joined. */
kern_id mma_row_reduce(const struct mma *m, enum ir_reduce reduce, kern_id x);
/* e^(x - from) */
kern_id mma_exp_shifted(const struct mma *m, kern_id x, kern_id from);
/* Number of row h of a thread's two of tile `tile`, from a first one. */
kern_id mma_row(const struct mma *m, kern_id first, int tile, int h);

/* ---- left operands: rows that stay in LOCAL memory, as threads load them */
struct mma_left {
  kern_id mem, low, own; /* low: KERN_NONE, or they lie as pairs; the place of the thread's first */
  int64_t width;
};
int64_t mma_left_bytes(int rows, int64_t width);
struct mma_left mma_left(const struct mma *m, int64_t width, bool split);
/* Rows first, first + 1, ... times scale; columns that are not there are 0. */
void mma_left_store_shared(const struct mma *m, const struct mma_left *to, const struct tile_source *from,
                           kern_id first, double scale);

/* ---- right operands: a block of columns in LOCAL memory, row by row as in the device's */
struct mma_right {
  struct tile_local at;
  kern_id own, pair[2]; /* where the thread's row begins, as columns of a product; its two, as terms of one */
  kern_id column[2];    /* their numbers in a tile */
};
/* What they are for: by stride, eight threads find 16 bytes each in different banks. Of both, columns are not in the order of rows. */
enum mma_use { MMA_AS_COLUMNS, MMA_AS_TERMS, MMA_AS_BOTH };
int64_t mma_right_bytes(int64_t width, enum mma_use use);
struct mma_right mma_right(const struct mma *m, int64_t width, enum mma_use use);
/* Number of column i of a thread's two of tile s, from a first one. */
kern_id mma_column(const struct mma *m, const struct mma_right *r, kern_id first, int s, int i);

/* scores[(tile * MMA_TILES + s) * 4 + i] = scale left right', i: (row i / 2, column i % 2) of a thread. transposed: with the bits of right
** left'. */
void mma_scores(const struct mma *m, const struct mma_left *left, const struct mma_right *right, bool transposed,
                double scale, kern_id *scores);
/* Weights in the place of scores as left operands: [tile * MMA_TILES + s]. */
void mma_weights(const struct mma *m, const kern_id *scores, struct mma_pair *weights);

/* ---- results: variables, [tile * MMA_MOST_OUT + number of the tile of columns] */
struct mma_out {
  int64_t width;
  kern_id at[MMA_MOST_ROWS * MMA_MOST_OUT];
};
void mma_out(const struct mma *m, struct mma_out *out, int64_t width);
/* out = out factor[tile] + weights right; factor NULL: 1. */
void mma_add(const struct mma *m, const struct mma_out *out, const kern_id *factor, const struct mma_pair *weights,
             const struct mma_right *right);

/* Where rows go: row r to element r row of mem on, those to `last`; `run` may be stored at a time. */
struct mma_to {
  kern_id mem;
  quern_dtype dtype;
  int64_t row, width, last;
  int run;
};
/* Rows first, first + 1, ...; each by op with operand[2 tile + h], a value of its row. operand NULL: as they are. */
void mma_store(const struct mma *m, const struct mma_to *to, kern_id first, const struct mma_out *out, enum kern_op op,
               const kern_id *operand);

#endif
