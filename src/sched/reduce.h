/* sched/reduce.h -- what the builders of REDUCE groups share
** A group is computed in passes over its rows: a pass runs over all elements of a row, takes the stages whose sources
** are known by then, and stores the outs that are; a row's own outs come last. There are two variants: along rows
** (reduce_row.c: the reduced variable has lanes, a row strip is one row) or across (reduce_col.c: an outer variable has
** lanes, a row strip is a few vectors of neighboring rows).
*/
#ifndef SCHED_REDUCE_H
#define SCHED_REDUCE_H
#include "sched/nest.h"

struct reduce_stage {
  const quern_tensor *source, *result;
  const struct pass_index **source_at, **result_at;
  enum ir_reduce reduce;
  bool arg;        /* ARGREDUCE: accumulators are pairs of value and index */
  bool ordered;    /* the order of terms matters: sums and products of floats */
  bool bits;       /* the greatest of absolute values, whose bits are in the order of integers: acc is i32 */
  quern_dtype acc; /* of accumulators */
  int n_acc;
  int pass;
  int work;    /* memory of the parts' results, when rows are split; of ARGREDUCE the indices are in the next one. Of a
                 ** cross the memory of all accumulators */
  int more[2]; /* memories of partial results of partial results */
  kern_id local; /* accumulators in scratch */
  kern_id row;   /* results of a block's rows in scratch */
};

/* A value, or the variable that holds it; index: of ARGREDUCE only. */
struct reduce_value {
  kern_id value, index;
};

struct reduce_keep { /* what is expensive and needed by several passes */
  struct sched_point point;
  int made;      /* the pass that computes it; later ones load it */
  int out;       /* the out it is stored to anyway, or -1 */
  kern_id local; /* else the scratch it is kept in */
};

struct reduce_note { /* a value of a row that passes after the one that makes it need */
  struct sched_point point;
  int made;
  kern_id row; /* scratch: one per row of a block */
};

struct reduce_about { /* a node of the group */
  int level;          /* passes that must be over before its value is known */
  int wait;           /* of a stage: the first pass that it may be in */
  double weight;      /* of computing an element, in additions */
  uint64_t reads;     /* bit i: it is computed from in i (all from 63 on: bit 63), results of stages left out */
};

struct reduce_load { /* an element of an in that passes read */
  struct sched_point point;
  uint64_t passes; /* bit q: pass q reads it */
  int first;       /* the first of them */
  bool same;       /* it is the same in all rows */
  bool again;      /* each pass loads it anew, once for all rows that are worked on together */
  kern_id local;   /* with rows ahead: the row, in shared memory */
};

/* On GPUs: vectors of a row that is written out; threads of a group; rows that a task works on together. */
enum { REDUCE_MOST_STEPS = 16, REDUCE_MOST_BLOCK = 1024, REDUCE_MOST_SIDE = 2 };

struct reduce_row { /* on GPUs: one of the rows that a task works on together */
  struct kern_values *values;
  kern_id *at, *kept;                /* of load or keep i at step s: i * REDUCE_MOST_STEPS + s */
  struct reduce_value *total, *accs; /* a stage */
};

struct reduce;
/* Takes elements base .. base + n - 1 of the current rows in pass q: the accumulators' results are put into part,
** `width` a stage; stores what is to be stored. */
typedef void reduce_range(struct reduce *rd, int q, kern_id base, int64_t n, struct reduce_value *part);

enum reduce_phase { REDUCE_WHOLE, REDUCE_PART, REDUCE_MERGE };

struct reduce {
  struct sched_job *job;
  struct sched_nest nest;
  struct base_arena *arena;
  struct kern_builder b;
  struct kern_values *values;
  int lanes;
  int64_t count; /* elements of a row */
  size_t n_stages, n_keeps;
  struct reduce_stage *stages;
  struct reduce_keep *keeps;
  int n_passes;
  struct reduce_about *about; /* a node */
  int *
      out_pass; /* of an out: the pass that stores it; -1: once a row; -2: it has no elements; -3: a fused column reduction */
  struct sched_points *fixed; /* a pass: points that stay the same along a row */

  enum reduce_phase phase;
  reduce_range *range;
  int width;                         /* vectors of rows that are computed side by side; 1 along rows */
  int acc_lanes;                     /* of results: 1 along rows */
  struct reduce_value *total, *part; /* results of the stages, width each */
  struct reduce_value *accs;         /* accumulators in variables */
  kern_id *stored;                   /* one value per out */

  /* along */
  bool packed;        /* rows lie in pieces */
  int64_t block_rows; /* rows of a block: each pass is over all of them before the next begins */
  kern_id keep_base;  /* where the row's own part of a keep's scratch begins; KERN_NONE: 0 */
  bool exceeds_cache; /* ins and outs are more than all caches hold */
  kern_id next;       /* then: the row after the current one, or KERN_NONE */
  size_t n_notes;
  struct reduce_note *notes;
  size_t n_column_reductions; /* reductions over the rows: what comes of each element is added to memory on the way */
  struct reduce_stage *column_reductions;
  int64_t
      run; /* with fused column reductions: neighboring rows that a task has, of as many accumulators; others follow n_acc apart */
  bool share;        /* rows of a block have the same accumulators */
  kern_id row_first; /* the task's first row, or KERN_NONE */
  kern_id row_work;  /* where the accumulators of the row begin */

  /* across */
  int vector;                  /* the outer loop that has lanes, or -1 */
  int strip;                   /* vectors of the strip being built, at most width */
  kern_id column;              /* its first row */
  int rest;                    /* lanes of the strip's last vector that count; 0: all */
  bool small;                  /* rows are so short that their elements stand side by side in the code */
  struct sched_points *steady; /* a pass: points that stay the same across the strip */
  kern_id *held;               /* values of fixed points, width each */
  struct reduce_value *few;    /* small: values of all elements */

  /* thread blocks on GPUs */
  int block_threads; /* threads of a task */
  int64_t steps;     /* along: vectors of a row */
  bool fits;         /* along: a row is written out step by step, and what it reads is read once */
  size_t n_loads;
  struct reduce_load *loads;
  bool one_block_per_sm; /* along: a group has an SM for itself */
  bool follow;           /* along: a task has several rows, of which one is loaded while another is worked on */
  struct kern_values *prefetched;                 /* along: values at the row that is loaded meanwhile; NULL: none is */
  struct reduce_row rows[REDUCE_MOST_SIDE], *row; /* along: `side` rows, and the one that is worked on */
  enum reduce_sums {
    REDUCE_IN_VARS,
    REDUCE_IN_LOCAL,
    REDUCE_IN_WORK
  } sums;              /* where a task has its fused column reductions */
  kern_id *column_acc; /* along, of cross k at step s: a variable; of cross k: a memory */
  int64_t splits;      /* of a row, each a task; 1: it is not split */
  int64_t split_size;  /* blocks of steps, or of elements across, that a part has */

  /* rows split into parts: one phase computes parts, the next joins them */
  bool split;
  int64_t n_strips;
};

/* The neutral element, and x joined to acc, which comes before it. */
struct reduce_value reduce_neutral(struct reduce *rd, const struct reduce_stage *stage, int lanes);
struct reduce_value reduce_join(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value acc,
                                struct reduce_value x);
/* Element x with index `index` joined to acc: all before it have smaller indices. On GPUs a product is added by an fma. */
struct reduce_value reduce_take(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value acc,
                                struct reduce_value x);
struct reduce_value reduce_var(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value init);
struct reduce_value reduce_get(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value var);
void reduce_set(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value var, struct reduce_value x);
/* The one value of accumulators that lie in n vectors. */
struct reduce_value reduce_tree(struct reduce *rd, const struct reduce_stage *stage, int n, struct reduce_value *x);
/* What a stage gives: the accumulators' result in its own dtype. */
kern_id reduce_result(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value total);
/* The source of a stage at the current point, as an accumulator takes it. */
kern_id reduce_source(struct reduce *rd, const struct reduce_stage *stage, int lanes);

/* Results of pass q over the whole rows, into rd->total. */
void reduce_totals(struct reduce *rd, int q);
/* Results of the whole rows of a row strip, from the parts that were computed in an earlier phase. */
void reduce_merged(struct reduce *rd, kern_id row_strip);
/* Computes part `part` of the current rows and keeps it for reduce_merged. */
void reduce_part(struct reduce *rd, kern_id row_strip, kern_id part);
/* Parts that a row has. */
int64_t reduce_parts(const struct reduce *rd);

/* Gets and stores the outs of a pass (-1: those of rows) at the current point. */
void reduce_store(struct reduce *rd, int q, kern_id active);
/* The index in a keep's scratch or out, and the value from there or to there. */
void reduce_keep_store(struct reduce *rd, const struct reduce_keep *keep, kern_id index, int lanes);
void reduce_keep_bind(struct reduce *rd, const struct reduce_keep *keep, kern_id index, int lanes, kern_id active);

/* Passes that must be over before t is known. */
int reduce_level(const struct reduce *rd, const quern_tensor *t);
/* Fills in stages, passes and out_pass. */
quern_status reduce_describe(struct reduce *rd) QUERN_NODISCARD;
/* Finds what is worth keeping, `room` elements of each; room < 0: only what is stored to an out anyway. */
quern_status reduce_find_keeps(struct reduce *rd, int64_t room) QUERN_NODISCARD;
/* Finds fixed and steady points. */
quern_status reduce_find_fixed(struct reduce *rd) QUERN_NODISCARD;

/* Starts the next phase, of n tasks: its builder and values, scratch for keeps of `room` elements each. */
quern_status reduce_begin(struct reduce *rd, int64_t tasks, int64_t room) QUERN_NODISCARD;

/* reduce_row.c: accumulators of pass q in variables, whether there are any; element x of stage i taken, of which n
** lanes count (0: all), at place `at` of the row, vector v of a block; what came of it. */
bool reduce_row_begin(struct reduce *rd, int q);
void reduce_row_take(struct reduce *rd, size_t i, kern_id x, kern_id at, int n, int v);
void reduce_row_end(struct reduce *rd, int q, struct reduce_value *part);
/* Binds what the stages of pass q give. */
void reduce_row_results(struct reduce *rd, int q);
/* The loop over rows lo .. hi - 1 of a task, with `room` elements of keeps each. */
void reduce_row_loop(struct reduce *rd, kern_id lo, kern_id hi, int64_t room);
/* reduce_fused_columns.c: the memories; the phases; the row that is number `number` of a task, whose accumulators are set;
** fused column reductions of pass q take the vector of elements from `at` on. */
void reduce_fused_columns_plan(struct reduce *rd);
/* How many rows a task has of each accumulator; 0: not all as many. */
int64_t reduce_fused_columns_rounds(const struct reduce *rd);
quern_status reduce_fused_columns(struct reduce *rd, int64_t room) QUERN_NODISCARD;
kern_id reduce_fused_columns_row(struct reduce *rd, kern_id number);
void reduce_fused_columns_take(struct reduce *rd, int q, kern_id at);
/* reduce_block.c: chooses rd->side for keeps of `room` elements a row; the rows lo .. hi - 1, lo a multiple of it. */
quern_status reduce_block_plan(struct reduce *rd, int64_t room) QUERN_NODISCARD;
void reduce_block_locals(struct reduce *rd);
/* Binds what is known before pass q of the row that has number `place` in its block. */
void reduce_block_known(struct reduce *rd, int q, kern_id place);
void reduce_block_rows(struct reduce *rd, kern_id lo, kern_id hi, int64_t room);
/* reduce_share.c: whether the last pass can be over all rows of a block at once; that pass over the block from lo on,
** of rows before hi. */
bool reduce_may_share(const struct reduce *rd);
void reduce_share_rows(struct reduce *rd, kern_id lo, kern_id hi, int64_t room);
/* reduce_prefetch.c: chooses rd->far; sets rd->next for row number `row` of those before `end`, `step` of which are worked
** on at a time; asks for the element of the next row that stands at `at`, `from` elements after some line's beginning. */
void reduce_prefetch_plan(struct reduce *rd);
void reduce_prefetch_next(struct reduce *rd, kern_id row, int64_t step, kern_id end);
void reduce_prefetch(struct reduce *rd, int q, kern_id at, int64_t from);
/* reduce_pack.c */
reduce_range reduce_range_packed;
void reduce_pack_locals(struct reduce *rd);

/* gpu_reduce.c: the same for thread blocks, where they can run it; otherwise nothing is built. The next phase, of n tasks by
** `group` threads each. */
quern_status gpu_reduce(struct reduce *rd, bool *built) QUERN_NODISCARD;
quern_status gpu_reduce_begin(struct reduce *rd, int64_t tasks, int group) QUERN_NODISCARD;
quern_status gpu_reduce_values(struct reduce *rd, struct kern_values **values) QUERN_NODISCARD;
/* A number that is 1 in the last of n parts, and 0 in others. */
kern_id gpu_reduce_last(struct reduce *rd, kern_id part, int64_t n);
/* gpu_reduce_row.c, gpu_reduce_fused_columns.c, gpu_reduce_col.c: along rows, the same with fused column reductions, across rows. */
quern_status gpu_reduce_rows(struct reduce *rd) QUERN_NODISCARD;
quern_status gpu_reduce_fused_columns(struct reduce *rd) QUERN_NODISCARD;
quern_status gpu_reduce_columns(struct reduce *rd) QUERN_NODISCARD;
/* rd->side rows from `row` on; next: the row to ask for on the way, or KERN_NONE. */
void gpu_reduce_row(struct reduce *rd, kern_id row, kern_id next);
/* How many threads share a row of a group with fused column reductions, whether rows are held, and where sums are. Crosses of pass q take step
** `step` of a row, which begins at element `at`. */
void gpu_reduce_fused_columns_shape(struct reduce *rd);
void gpu_reduce_fused_columns_take(struct reduce *rd, int q, int step, kern_id at);
/* gpu_reduce_merge.c: partial results that lie in memory, row behind row. */
struct reduce_partial {
  size_t n_stages;
  struct reduce_stage *stages; /* work: the memory of the partial results */
  int64_t rows, others, width; /* rows of `others` times `width` partial results */
  int loop;                    /* its loop */
  int outs;                    /* whose outs come of it: a value of out_pass */
};
/* Adds their memories, before the first phase; the phases that join them and store what comes of it. */
void reduce_partial_plan(struct reduce *rd, struct reduce_partial *p);
quern_status reduce_partial_merge(struct reduce *rd, struct reduce_partial *p) QUERN_NODISCARD;
/* Stores what the accumulators of a stage hold to place `at` of its partial results; and loads it, `lanes` of it. */
void reduce_partial_store(struct reduce *rd, const struct reduce_stage *stage, kern_id at, struct reduce_value x);
struct reduce_value reduce_partial_load(struct reduce *rd, const struct reduce_stage *stage, kern_id at, int lanes,
                                        kern_id active);
/* A horizontal reduction: the one value of all lanes. */
struct reduce_value reduce_hreduce(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value x);

/* The phases. */
quern_status reduce_rows(struct reduce *rd, int64_t room) QUERN_NODISCARD;
quern_status reduce_columns(struct reduce *rd, int64_t room) QUERN_NODISCARD;

#endif
