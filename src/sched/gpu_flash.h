/* sched/gpu_flash.h -- what forward and backward flash attention by thread blocks share */
#ifndef SCHED_GPU_FLASH_H
#define SCHED_GPU_FLASH_H
#include "sched/cpu_attention.h"
#include "sched/gpu_tile.h"

/* The result that is the gradient of a mask, where there is one. */
enum { FLASH_DMASK = 3 };

/* The tile of a phase: a task has TILE_DOWN rows of it a row of a thread, and blocks of TILE_ACROSS columns a column pass by. */
struct flash_shape {
  int rows, columns; /* of scores that a thread has */
};

/* Keys in splits, each a task's. WORK: of each query and part the greatest score, the sum of weights and the values by weights, which
** have `row` elements. */
struct flash_splits {
  int64_t n, keys, row; /* n 1: they are not in parts, and there is no WORK */
  int max_mem, sum_mem, out_mem;
};

struct flash {
  struct sched_job *job;
  struct pass_attention a;
  quern_dtype acc;
  const quern_tensor *mask; /* NULL: none */
  int mask_mem, lse_mem;
  int mem[PASS_VIEWS];
  struct flash_splits splits;
  struct kern_builder *b;
  struct tile t;
  kern_id batch, head, kv; /* numbers: of the batch, of the head, of its keys and values */
  kern_id split;           /* number: of a split of the keys */
  kern_id offset;          /* of a mask that says up to which key the first query attends; KERN_NONE: none */
};

/* False when shared memory or registers do not suffice. */
bool flash_shape(struct flash_shape *shape, const struct base_target *target, quern_dtype acc,
                 const struct pass_attention *a, bool by_keys);
bool flash_setup(struct flash *f, const struct ir_node *node);

/* A new phase of that many tasks by thread blocks. */
struct kern_builder flash_phase(struct flash *f, int64_t tasks);
/* The task's head of so many, and its block of a head, those of several heads in round: the first blocks, which take longest where keys are
** masked by all queries, are begun before the others. */
kern_id flash_task(struct flash *f, int64_t heads, int64_t blocks, kern_id *block);
/* Begins a phase for blocks of so many queries of a head, and its tile; first: the first query. False: the kernel has failed. */
bool flash_begin_queries(struct flash *f, struct kern_builder *b, int64_t queries, kern_id *first);
/* The blocks of keys that pass by for such a block of queries; the last key that some query of it attends to. */
struct flash_keys {
  kern_id from, to, last;
};
struct flash_keys flash_keys(struct flash *f, kern_id q0, int64_t queries, int64_t keys);
/* Loads the offset of the current sample, if the mask is one: within -queries and keys. */
void flash_read_offset(struct flash *f);
/* The keys that some query before number `end` may attend to. */
kern_id flash_keys_attended(struct flash *f, kern_id end);
/* Where row 0 of the current head begins. */
kern_id flash_view_at(struct flash *f, int view);
/* Rows of an operand of the current head: all of them, from `first` on. */
struct tile_source flash_source(struct flash *f, int view, kern_id first);
/* The last key that query i may attend to; whether it attends to key j: vectors. */
kern_id flash_limit(struct flash *f, kern_id i);
kern_id flash_attends(struct flash *f, kern_id i, kern_id j, kern_id limit);
/* Whether blocks of so many queries and keys may have a pair that is masked, or not there. */
bool flash_may_mask(const struct flash *f, int64_t queries, int64_t keys);
/* Whether there is a float mask; a score and what it adds. */
bool flash_has_bias(const struct flash *f);
kern_id flash_add_bias(struct flash *f, kern_id i, kern_id j, kern_id score);
/* e^x of a score less the greatest of its row, or less lse: x is at most about 0. In f32 by few instructions, and 0 below 2^-126. */
kern_id flash_exp(struct flash *f, kern_id x);
/* Element numbers of rows i of (batch, head, row), dense: those that are not there are the last. */
kern_id flash_line(struct flash *f, kern_id i, int64_t rows);
/* The sums of a phase, times scale, become rows of a result, of those that are there. */
void flash_store(struct flash *f, const struct tile_sums *sums, int view, kern_id first, int64_t rows, double scale);

/* Of a gradient: a new phase with a warp for each query; task is its number, delta the sum of dout out (gpu_flash_back.c). False: the kernel
** has failed. */
bool flash_begin_delta(struct flash *f, struct kern_builder *b, kern_id *task, kern_id *shift);

/* ---- few queries (gpu_flash_decode.c) ------------------------------------------------------------------------------- */

struct flash_decode_shape {
  int rows;                     /* of a task: queries of heads that share keys and values */
  int64_t blocks, keys, splits; /* of such rows; of keys: their parts */
};
/* False when there are too many queries, or shared memory does not suffice. */
bool flash_decode_shape(struct flash_decode_shape *shape, const struct base_target *target, quern_dtype acc,
                        const struct pass_attention *a);
sched_build sched_gpu_flash_decode;

/* ---- tensor cores (gpu_flash_mma.c, gpu_flash_mma_back.c) ------------------------------------------------------ */

/* Whether forward attention is for them: of this target, dtype and widths. Whether its gradient is: one of a mask is not. */
bool flash_mma_supports(const struct base_target *target, quern_dtype dtype, const struct pass_attention *a);
bool flash_mma_back_supports(const struct base_target *target, const struct ir_node *node,
                             const struct pass_attention *a);
sched_build sched_gpu_flash_mma, sched_gpu_flash_mma_back;

/* ---- split-KV: splits of the keys (gpu_flash_merge.c) ---------------------------------------------------------------------------- */

/* Few blocks of queries leave most of a GPU idle: then the keys are divided into splits. */
void flash_choose_splits(struct flash *f, int64_t queries, int64_t keys);
/* Adds the WORK memories of so many parts of so many keys. */
void flash_add_splits(struct flash *f, int64_t parts, int64_t keys);
/* The phase that makes results of what parts left; none where there is one part. */
void flash_merge_phase(struct flash *f);
/* The shift of the exponentials of a row: its maximum, or 0 where nothing is attended to. */
kern_id flash_exp_shift(struct flash *f, kern_id top);

/* Weighted sums of rows of a matrix: a thread has `rounds` runs of `run` columns, `across` runs apart, of the rows of its row group. */
enum {
  FLASH_BLEND_MOST = 64,
  FLASH_BLEND_ROWS = 8
}; /* sums of a thread, of 4 bytes; rows of a row group that are loaded at a time */
struct flash_blend {
  int rows; /* of weights, and so of sums */
  int run, across, rounds;
  int64_t width;
  kern_id sum[FLASH_BLEND_MOST]; /* variables: [row][round][place in the run] */
};
/* run: elements that may be loaded at a time. */
void flash_blend_shape(struct flash_blend *s, quern_dtype acc, int rows, int64_t width, int run);
/* Sums the rows from->first, ... by LOCAL weights, whose rows are `stride` elements long. rows: how many, a multiple of what all groups
** load at a time, as TILE_THREADS is; those behind the last are as it is, and should weigh nothing. */
void flash_blend_add(struct flash *f, struct flash_blend *s, const struct tile_source *from, kern_id weights,
                     int64_t stride, kern_id rows);
/* Sums of all groups to LOCAL memory of so many elements. */
int64_t flash_blend_count(const struct flash_blend *s);
void flash_blend_put(struct flash *f, const struct flash_blend *s, kern_id mem);

/* A query of the current head: its number, whether it is there (KERN_NONE: it is), its greatest score, its sum of weights: scalars. */
struct flash_row {
  kern_id query, is_there, row_max, row_sum;
};
/* What a part leaves of the query; its results, if there is one part. The sums are row r of LOCAL memory. */
void flash_leave_row(struct flash *f, const struct flash_blend *s, kern_id sums, int r, const struct flash_row *row,
                     kern_id part);
void flash_finish_row(struct flash *f, const struct flash_blend *s, kern_id sums, int r, const struct flash_row *row);

#endif
