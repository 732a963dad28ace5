/* sched/dot_tile.h -- what the files of the tiled contraction of GPUs share
** A group of threads has a tile of side x side sums, a thread `own` x `own` of them in registers. Terms pass by in
** stages: one of both operands lies in memory that the threads share, while the next is on its way.
** see: dot_tile.c (sizes, loops), dot_tile_side.c (operands), dot_tile_end.c (outs)
*/
#ifndef SCHED_DOT_TILE_H
#define SCHED_DOT_TILE_H
#include "sched/dot.h"

/* Threads of a group: ACROSS x ACROSS of them. Sums of a thread: OWN x OWN at most. */
enum { DOT_TILE_THREADS = 256, DOT_TILE_ACROSS = 16, DOT_TILE_OWN = 8 };

/* Pieces of a side that a thread has of a stage, at most: it reads 16 bytes of it. */
enum { DOT_TILE_PIECES = 4 };

/* Variables of the kernel's space, behind those of dot.h: the row and the column of tiles, the stage, the piece of each
** side in it; of the end the first row of a chunk, its element and its run; and the element of all results. */
enum {
  DOT_TILE_ROW = DOT_VARS,
  DOT_TILE_COL,
  DOT_TILE_STAGE,
  DOT_TILE_PIECE_A,
  DOT_TILE_PIECE_B,
  DOT_TILE_FIRST,
  DOT_TILE_POINT,
  DOT_TILE_RUN,
  DOT_TILE_FLAT,
  DOT_TILE_VARS
};

/* One operand: threads copy pieces of `run` neighbors, along its rows or columns or along the terms. */
struct dot_tile_side {
  const struct dot_side *side;
  int64_t size;                    /* of its own axis */
  bool along;                      /* pieces run along its own axis; else along the terms */
  int run, pieces;                 /* of a thread */
  int mem;                         /* that it lies in; -1: it is computed */
  const struct pass_index *offset; /* in mem: of an element of the axes, then of a piece */
  const struct pass_index **at;    /* of an element that is computed */
  int64_t begin;                   /* where it begins in a stage */
};

struct dot_tile {
  struct dot *d;
  int64_t side;          /* rows and columns of a tile */
  int own, run;          /* rows and columns of a thread; neighbors of a stage that are loaded at once */
  int out_run;           /* neighbors of an out that are stored at once: t->run of them, or one */
  int64_t stride;        /* of a stage: from term to term */
  int64_t terms, stages; /* of a stage, the last may have fewer; stages of all terms */
  int64_t rows, columns; /* tiles */
  int64_t parts, each;   /* of the stages; stages of a part, an even number */
  int work;              /* the parts' sums; -1: there is one part */
  struct dot_tile_side a, b;
  struct kern_builder *build;
  struct kern_values *values;
  kern_id row, column;                       /* the thread's, of ACROSS */
  kern_id sums[DOT_TILE_OWN * DOT_TILE_OWN]; /* variables: [row * own + column] */
  kern_id part;                              /* of the task */
};

/* A constant in as many lanes. */
static inline kern_id dot_tile_i(const struct dot_tile *t, int lanes, int64_t value) {
  return kern_const_i(t->build, QUERN_DTYPE_I64, lanes, value);
}
/* x, which has as many lanes, times a number. */
static inline kern_id dot_tile_times(const struct dot_tile *t, int lanes, kern_id x, int64_t by) {
  return kern_mul(t->build, x, dot_tile_i(t, lanes, by));
}

/* Expressions of the space: x * by + y. */
const struct pass_index *dot_tile_sum(struct dot_tile *t, const struct pass_index *x, int64_t by,
                                      const struct pass_index *y);

/* ---- dot_tile_side.c */

/* How a side is read; then, in terms of the space's variables, where. */
void dot_tile_choose(struct dot_tile *t, struct dot_tile_side *s);
quern_status dot_tile_find(struct dot_tile *t, struct dot_tile_side *s) QUERN_NODISCARD;
/* The thread's pieces of a stage; and where they go to. */
void dot_tile_fetch(struct dot_tile *t, const struct dot_tile_side *s, kern_id stage, kern_id *x);
void dot_tile_keep(struct dot_tile *t, const struct dot_tile_side *s, kern_id to, const kern_id *x);

/* ---- dot_tile_end.c */

/* Elements of shared memory that the end takes. */
int64_t dot_tile_chunk(const struct dot_tile *t);
/* The outs, or the part's sums, from the sums in registers. */
quern_status dot_tile_end(struct dot_tile *t, kern_id shared) QUERN_NODISCARD;
/* The phase that adds the parts from the first to the last, and makes the outs. */
quern_status dot_tile_join(struct dot_tile *t) QUERN_NODISCARD;

#endif
