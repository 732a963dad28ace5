/* sched/reduce_gpu_join.c -- partial results of reductions that lie in memory, joined in one phase or more
** Each level joins RUN rows of them to one, until there are few enough for the last phase, which stores what comes of them.
** tests: tests/sched/test_reduce_gpu.c
*/
#include "sched/reduce.h"

enum { RUN = 32, FEW = 96, WARP = 32, BLOCK = 8, MOST_LEVELS = 2 };

void reduce_partial_store(struct reduce *rd, const struct reduce_stage *stage, kern_id at, struct reduce_value x) {
  struct kern_builder *b = &rd->b;
  if (rd->job->kern->failed != QUERN_STATUS_OK) return;
  kern_store(b, kern_mem(b, stage->work), at, x.value);
  if (stage->arg) kern_store(b, kern_mem(b, stage->work + 1), at, x.index);
}

struct reduce_value reduce_partial_load(struct reduce *rd, const struct reduce_stage *stage, kern_id at, int lanes,
                                        kern_id active) {
  struct kern_builder *b = &rd->b;
  struct reduce_value x = {kern_load_n(b, kern_mem(b, stage->work), at, lanes, active), KERN_NONE};
  if (stage->arg) x.index = kern_load_n(b, kern_mem(b, stage->work + 1), at, lanes, active);
  return x;
}

/* ---- planning -------------------------------------------------------------------------------------------- */

static int add_memory(struct reduce *rd, const struct reduce_stage *stage, int64_t count) {
  int mem = kern_add_mem(rd->job->kern, stage->acc, KERN_WORK, count);
  if (stage->arg) (void)kern_add_mem(rd->job->kern, QUERN_DTYPE_I32, KERN_WORK, count);
  return mem;
}

void reduce_partial_plan(struct reduce *rd, struct reduce_partial *p) {
  for (size_t i = 0; i < p->n_stages; i++) {
    struct reduce_stage *stage = &p->stages[i];
    int64_t rows = p->rows;
    stage->work = add_memory(rd, stage, rows * p->others * p->width);
    for (int level = 0; level < MOST_LEVELS && rows > FEW; level++) {
      rows = (rows + RUN - 1) / RUN;
      stage->more[level] = add_memory(rd, stage, rows * p->others * p->width);
    }
  }
}

/* ---- joining --------------------------------------------------------------------------------------------- */

static void join_into(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value acc,
                      struct reduce_value x) {
  reduce_set(rd, stage, acc, reduce_join(rd, stage, reduce_get(rd, stage, acc), x));
}

/* Rows from .. to - 1 at place `at` of each, which are `pitch` apart, joined; `first` is a multiple of BLOCK. */
static struct reduce_value join_rows(struct reduce *rd, const struct reduce_stage *stage, kern_id first, kern_id many,
                                     kern_id at, int64_t pitch, int lanes) {
  struct kern_builder *b = &rd->b;
  struct reduce_value acc = reduce_var(rd, stage, reduce_neutral(rd, stage, lanes)), x[BLOCK];
  kern_id blocks = kern_idiv(b, many, BLOCK), zero = kern_index(b, 0);
  kern_id block = kern_for(b, zero, blocks, 1);
  kern_id row = kern_add(b, first, kern_mul_i(b, block, BLOCK));
  kern_id place = kern_add(b, kern_mul_i(b, row, pitch), at);
  for (int i = 0; i < BLOCK; i++)
    x[i] = reduce_partial_load(rd, stage, kern_add_i(b, place, i * pitch), lanes, KERN_NONE);
  for (int h = 1; h < BLOCK; h *= 2)
    for (int i = 0; i < BLOCK; i += 2 * h) x[i] = reduce_join(rd, stage, x[i], x[i + h]);
  join_into(rd, stage, acc, x[0]);
  kern_end(b);
  kern_id from = kern_mul_i(b, blocks, BLOCK);
  row = kern_add(b, first, kern_for(b, from, many, 1));
  place = kern_add(b, kern_mul_i(b, row, pitch), at);
  join_into(rd, stage, acc, reduce_partial_load(rd, stage, place, lanes, KERN_NONE));
  kern_end(b);
  return reduce_get(rd, stage, acc);
}

/* RUN rows become one. */
static quern_status emit_level(struct reduce *rd, struct reduce_partial *p, int level) {
  struct kern_builder *b = &rd->b;
  int64_t pitch = p->others * p->width, rows = (p->rows + RUN - 1) / RUN;
  int lanes = pitch % (4 * WARP) == 0 ? 4 * WARP : WARP;
  int64_t blocks = pitch / lanes;
  QUERN_TRY(reduce_gpu_begin(rd, rows * blocks, WARP));
  kern_id task = kern_task(b), row = kern_idiv(b, task, blocks);
  kern_id at = kern_mul_i(b, kern_imod(b, task, blocks), lanes), first = kern_mul_i(b, row, RUN);
  kern_id many = kern_index(b, RUN);
  if (p->rows % RUN > 0) { /* all but the last have as many */
    kern_id last = reduce_gpu_last(rd, row, rows);
    many = kern_sub(b, many, kern_mul_i(b, last, RUN - p->rows % RUN));
  }
  kern_id to = kern_add(b, kern_mul_i(b, row, pitch), at);
  for (size_t i = 0; i < p->n_stages; i++) {
    struct reduce_stage *stage = &p->stages[i];
    struct reduce_value sum = join_rows(rd, stage, first, many, at, pitch, lanes);
    stage->work = stage->more[level];
    reduce_partial_store(rd, stage, to, sum);
  }
  p->rows = rows;
  return QUERN_STATUS_OK;
}

static quern_status emit_last(struct reduce *rd, struct reduce_partial *p) {
  struct kern_builder *b = &rd->b;
  const struct pass_group *group = rd->job->group;
  int64_t extent = rd->nest.loops[p->loop].extent, blocks = (extent + WARP - 1) / WARP;
  bool across = p->loop < rd->nest.n_outer;
  QUERN_TRY(reduce_gpu_begin(rd, p->others * blocks, WARP));
  kern_id task = kern_task(b), other = kern_idiv(b, task, blocks);
  kern_id column = kern_mul_i(b, kern_imod(b, task, blocks), WARP), active = KERN_NONE;
  if (extent % WARP != 0) active = kern_min_i(b, kern_sub(b, kern_index(b, extent), column), WARP);
  if (across) sched_nest_set(&rd->nest, b, rd->values, 0, rd->nest.n_outer, p->loop, other);
  kern_values_set(rd->values, rd->nest.loops[p->loop].var, column, WARP, active);
  kern_id at = kern_add(b, kern_mul_i(b, other, p->width), column), zero = kern_index(b, 0);
  kern_id rows = kern_index(b, p->rows);
  for (size_t i = 0; i < p->n_stages; i++) {
    const struct reduce_stage *stage = &p->stages[i];
    struct reduce_value sum = join_rows(rd, stage, zero, rows, at, p->others * p->width, WARP);
    kern_values_bind(rd->values, stage->result, stage->result->rank, stage->result_at, reduce_result(rd, stage, sum));
  }
  for (size_t i = 0; i < group->n_outs; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    if (rd->out_pass[i] != p->outs) continue;
    kern_id x = kern_values_get(rd->values, t, t->rank, rd->nest.outs[i]);
    sched_store_at(rd->job, b, rd->values, i, rd->nest.outs[i], x, active);
  }
  return QUERN_STATUS_OK;
}

quern_status reduce_partial_join(struct reduce *rd, struct reduce_partial *p) {
  for (int level = 0; level < MOST_LEVELS && p->rows > FEW; level++) QUERN_TRY(emit_level(rd, p, level));
  return emit_last(rd, p);
}
