/* sched/flash.h -- what forward and backward attention by groups of threads share */
#ifndef SCHED_FLASH_H
#define SCHED_FLASH_H
#include "sched/attention.h"
#include "sched/tile.h"

/* The tile of a phase: a task has TILE_DOWN rows of it a row of a thread, and blocks of TILE_ACROSS columns a column pass by. */
struct flash_shape {
  int rows, columns; /* of scores that a thread has */
  bool one;          /* forward: keys and values take turns in one place */
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
/* Rows of an operand of the current head: all of them, from `first` on. */
struct tile_source flash_source(struct flash *f, int view, kern_id first);
/* The last key that query i may see; whether it sees key j: vectors. */
kern_id flash_limit(struct flash *f, kern_id i);
kern_id flash_sees(struct flash *f, kern_id i, kern_id j, kern_id limit);
/* What a float mask adds to a score. */
kern_id flash_added(struct flash *f, kern_id i, kern_id j, kern_id score);
/* e^x of a weight, to 1 ulp in f32; 0 below e^-86, the largest weight of a row being 1. x is at most 88. */
kern_id flash_exp(struct flash *f, kern_id x);
/* Element numbers of rows i of (batch, head, row), dense: those that are not there are the last. */
kern_id flash_line(struct flash *f, kern_id i, int64_t rows);
/* The sums of a phase become rows of a result, of those that are there. */
void flash_store(struct flash *f, const struct tile_sums *sums, int view, kern_id first, int64_t rows, int64_t width);

#endif
