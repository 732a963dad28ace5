/* sched/flash.h -- what forward and backward attention by groups of threads share */
#ifndef SCHED_FLASH_H
#define SCHED_FLASH_H
#include "sched/attention.h"
#include "sched/tile.h"

/* The tile of a phase: a task has TILE_DOWN rows of it a row of a thread, and blocks of TILE_ACROSS columns a column pass by. */
struct flash_shape {
  int rows, columns; /* of scores that a thread has */
};

struct flash {
  struct sched_job *job;
  struct pass_attention a;
  quern_dtype acc;
  const quern_tensor *mask; /* NULL: none */
  int mask_mem, lse_mem;
  int mem[PASS_VIEWS];
  struct kern_builder *b;
  struct tile t;
  kern_id batch, head, kv; /* numbers: of the batch, of the head, of its keys and values */
  kern_id offset;          /* of a mask that says up to which key the first query sees; KERN_NONE: none */
};

/* False when shared memory or registers do not suffice. */
bool flash_shape(struct flash_shape *shape, const struct base_target *target, quern_dtype acc,
                 const struct pass_attention *a, bool by_keys);
bool flash_setup(struct flash *f, const struct ir_node *node);

/* A new phase of that many tasks by groups of threads. */
struct kern_builder flash_phase(struct flash *f, int64_t tasks);
/* The task's head of so many, and its block of a head, those of several heads in turn: the first blocks, which take longest where keys are
** not seen by all queries, are begun before the others. */
kern_id flash_task(struct flash *f, int64_t heads, int64_t blocks, kern_id *block);
/* Both for blocks of so many queries of a head, and its tile; first: the first of them. False: the kernel has failed. */
bool flash_begin_queries(struct flash *f, struct kern_builder *b, int64_t queries, kern_id *first);
/* Rows of an operand of the current head: all of them, from `first` on. */
struct tile_source flash_source(struct flash *f, int view, kern_id first);
/* The last key that query i may see; whether it sees key j: vectors. */
kern_id flash_limit(struct flash *f, kern_id i);
kern_id flash_sees(struct flash *f, kern_id i, kern_id j, kern_id limit);
/* Whether blocks of so many queries and keys may have a pair that is not seen, or not there. */
bool flash_hides(const struct flash *f, int64_t queries, int64_t keys);
/* Whether there is a float mask; a score and what it adds. */
bool flash_adds(const struct flash *f);
kern_id flash_added(struct flash *f, kern_id i, kern_id j, kern_id score);
/* e^x of a score less the greatest of its row, or less lse: x is at most about 0. In f32 by few instructions, and 0 below 2^-126. */
kern_id flash_exp(struct flash *f, kern_id x);
/* Element numbers of rows i of (batch, head, row), dense: those that are not there are the last. */
kern_id flash_line(struct flash *f, kern_id i, int64_t rows);
/* The sums of a phase, times scale, become rows of a result, of those that are there. */
void flash_store(struct flash *f, const struct tile_sums *sums, int view, kern_id first, int64_t rows, double scale);

#endif
