/* sched/gpu_dot.h -- what the files of the tiled contraction of GPUs share
** A thread block has a tile of side x side sums, a thread `own` x `own` of them in registers. Terms pass by in
** stages: one of both operands lies in memory that the threads share, while the next is on its way.
** see: gpu_dot.c (sizes, loops), gpu_dot_operand.c (operands), gpu_dot_epilogue.c (outs)
*/
#ifndef SCHED_GPU_DOT_H
#define SCHED_GPU_DOT_H
#include "sched/dot.h"

/* Threads of a thread block: ACROSS x ACROSS of them. Sums of a thread: OWN x OWN at most. */
enum { GPU_DOT_THREADS = 256, GPU_DOT_ACROSS = 16, GPU_DOT_OWN = 8 };

/* A schedule's mr where there are no tiles but few rows: gpu_dot_skinny.c. */
enum { GPU_DOT_SKINNY = 1 };

/* Pieces of a side that a thread has of a stage, at most: it reads 16 bytes of it. */
enum { GPU_DOT_PIECES = 4 };

/* Variables of the kernel's space, behind those of dot.h: the row and the column of tiles, the stage, the piece of each
** side in it; of the end the first row of a chunk, its element and its run; and the element of all results. */
enum {
  GPU_DOT_ROW = DOT_VARS,
  GPU_DOT_COL,
  GPU_DOT_STAGE,
  GPU_DOT_PIECE_A,
  GPU_DOT_PIECE_B,
  GPU_DOT_FIRST,
  GPU_DOT_POINT,
  GPU_DOT_RUN,
  GPU_DOT_FLAT,
  GPU_DOT_VARS
};

/* One operand: threads copy pieces of `run` neighbors, along its rows or columns or along the terms. */
struct gpu_dot_operand {
  const struct dot_operand *side;
  int64_t size;                    /* of its own axis */
  bool along;                      /* pieces run along its own axis; else along the terms */
  int run, pieces;                 /* of a thread */
  int mem;                         /* that it lies in; -1: it is computed */
  const struct pass_index *offset; /* in mem: of an element of the axes, then of a piece */
  const struct pass_index **at;    /* of an element that is computed */
  int64_t begin;                   /* where it begins in a stage */
};

struct gpu_dot {
  struct dot *d;
  int64_t side;                   /* rows and columns of a tile */
  int own, run;                   /* rows and columns of a thread; neighbors of a stage that are loaded at once */
  int out_run;                    /* neighbors of an out that are stored at once: t->run of them, or one */
  int64_t stride;                 /* of a stage: from term to term */
  int64_t terms, stages;          /* of a stage, the last may have fewer; stages of all terms */
  int64_t rows, columns;          /* tiles */
  int64_t k_splits, split_stages; /* split-K: splits of the stages; stages of a split, an even number */
  int work;                       /* the splits' partial sums; -1: there is one split */
  struct gpu_dot_operand a, b;
  struct kern_builder *build;
  struct kern_values *values;
  kern_id row, column;                     /* the thread's, of ACROSS */
  kern_id sums[GPU_DOT_OWN * GPU_DOT_OWN]; /* variables: [row * own + column] */
  kern_id k_split;                         /* of the task */
};

/* A constant in as many lanes. */
static inline kern_id gpu_dot_i(const struct gpu_dot *t, int lanes, int64_t value) {
  return kern_const_i(t->build, QUERN_DTYPE_I64, lanes, value);
}
/* x, which has as many lanes, times a number. */
static inline kern_id gpu_dot_times(const struct gpu_dot *t, int lanes, kern_id x, int64_t by) {
  return kern_mul(t->build, x, gpu_dot_i(t, lanes, by));
}

/* Expressions of the space: x * by + y. */
const struct pass_index *gpu_dot_sum(struct gpu_dot *t, const struct pass_index *x, int64_t by,
                                     const struct pass_index *y);

/* ---- gpu_dot_operand.c */

/* How a side is read; then, in terms of the space's variables, where. */
void gpu_dot_choose(struct gpu_dot *t, struct gpu_dot_operand *s);
quern_status gpu_dot_find(struct gpu_dot *t, struct gpu_dot_operand *s) QUERN_NODISCARD;
/* The thread's pieces of a stage; and where they go to. */
void gpu_dot_load(struct gpu_dot *t, const struct gpu_dot_operand *s, kern_id stage, kern_id *x);
void gpu_dot_store_shared(struct gpu_dot *t, const struct gpu_dot_operand *s, kern_id to, const kern_id *x);

/* ---- gpu_dot_epilogue.c */

/* Elements of shared memory that the end takes. */
int64_t gpu_dot_chunk(const struct gpu_dot *t);
/* The outs, or the split's partial sums, from the sums in registers. */
quern_status gpu_dot_epilogue(struct gpu_dot *t, kern_id shared) QUERN_NODISCARD;
/* The phase that adds the splits from the first to the last, and makes the outs. */
quern_status gpu_dot_add_splits(struct gpu_dot *t) QUERN_NODISCARD;

#endif
