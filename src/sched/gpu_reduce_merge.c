/* sched/gpu_reduce_merge.c -- partial results of reductions that lie in memory, merged in one phase or more
** Each level merges RUN rows of them into one, until there are few enough for the last phase, which stores what comes of them.
** tests: tests/sched/test_gpu_reduce.c
*/
#include "sched/reduce.h"

enum { RUN = 32, FEW = 2112, WARP = 32, BLOCK = 8, MOST_LEVELS = 2 };

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

static void merge_into(struct reduce *rd, const struct reduce_stage *stage, struct reduce_value acc,
                       struct reduce_value x) {
  reduce_set(rd, stage, acc, reduce_join(rd, stage, reduce_get(rd, stage, acc), x));
}

/* Rows first .. first + many - 1 at place `at` of each, which are `pitch` apart, joined; `first` is a multiple of BLOCK. */
static struct reduce_value merge_rows(struct reduce *rd, const struct reduce_stage *stage, kern_id first, kern_id many,
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
  merge_into(rd, stage, acc, x[0]);
  kern_end(b);
  kern_id from = kern_mul_i(b, blocks, BLOCK);
  row = kern_add(b, first, kern_for(b, from, many, 1));
  place = kern_add(b, kern_mul_i(b, row, pitch), at);
  merge_into(rd, stage, acc, reduce_partial_load(rd, stage, place, lanes, KERN_NONE));
  kern_end(b);
  return reduce_get(rd, stage, acc);
}

/* RUN rows become one. */
static quern_status emit_level(struct reduce *rd, struct reduce_partial *p, int level) {
  struct kern_builder *b = &rd->b;
  int64_t pitch = p->others * p->width, rows = (p->rows + RUN - 1) / RUN;
  int lanes = pitch % (4 * WARP) == 0 ? 4 * WARP : WARP;
  int64_t blocks = pitch / lanes;
  QUERN_TRY(gpu_reduce_begin(rd, rows * blocks, WARP));
  kern_id task = kern_task(b), row = kern_idiv(b, task, blocks);
  kern_id at = kern_mul_i(b, kern_imod(b, task, blocks), lanes), first = kern_mul_i(b, row, RUN);
  kern_id many = kern_index(b, RUN);
  if (p->rows % RUN > 0) { /* all but the last have as many */
    kern_id last = gpu_reduce_last(rd, row, rows);
    many = kern_sub(b, many, kern_mul_i(b, last, RUN - p->rows % RUN));
  }
  kern_id to = kern_add(b, kern_mul_i(b, row, pitch), at);
  for (size_t i = 0; i < p->n_stages; i++) {
    struct reduce_stage *stage = &p->stages[i];
    struct reduce_value sum = merge_rows(rd, stage, first, many, at, pitch, lanes);
    stage->work = stage->more[level];
    reduce_partial_store(rd, stage, to, sum);
  }
  p->rows = rows;
  return QUERN_STATUS_OK;
}

/* ---- the last phase ---------------------------------------------------------------------------------------- */

/* A thread block has WARP columns: warp s of it takes rows s, s + slices, ...; then warps are joined, halves to halves. */
struct slices {
  int n, lanes;
  kern_id slice, base; /* a lane: its warp; its place in row `slice` */
};

enum { MANY = 528 }; /* rows that are worth 32 warps */

static struct slices choose_slices(struct reduce *rd, const struct reduce_partial *p, int n) {
  struct kern_builder *b = &rd->b;
  struct slices s = {.n = n, .lanes = n * WARP};
  kern_id lane = kern_lane(b, QUERN_DTYPE_I64, s.lanes);
  s.slice = kern_idiv(b, lane, WARP);
  kern_id pitch = kern_const_i(b, QUERN_DTYPE_I64, s.lanes, p->others * p->width);
  kern_id row = kern_mul(b, s.slice, pitch);
  s.base = kern_add(b, row, kern_imod(b, lane, WARP));
  return s;
}

/* What lies at the lanes' places after `at`. */
static struct reduce_value gather(struct reduce *rd, const struct reduce_stage *stage, kern_id at, kern_id places) {
  struct kern_builder *b = &rd->b;
  struct reduce_value x = {KERN_NONE, KERN_NONE};
  x.value = kern_gather(b, kern_at(b, kern_mem(b, stage->work), at), places);
  if (stage->arg) x.index = kern_gather(b, kern_at(b, kern_mem(b, stage->work + 1), at), places);
  return x;
}

/* The last rows, fewer than slices: others take the last row, which does not count. */
static struct reduce_value gather_rest(struct reduce *rd, const struct reduce_stage *stage, const struct slices *s,
                                       kern_id at, int64_t pitch, int64_t rest) {
  struct kern_builder *b = &rd->b;
  kern_id last = kern_const_i(b, QUERN_DTYPE_I64, s->lanes, rest - 1);
  kern_id there = kern_bin(b, KERN_LE, s->slice, last), row = kern_min(b, s->slice, last);
  kern_id back = kern_sub(b, row, s->slice);
  kern_id places = kern_add(b, s->base, kern_mul(b, back, kern_const_i(b, QUERN_DTYPE_I64, s->lanes, pitch)));
  struct reduce_value x = gather(rd, stage, at, places), none = reduce_neutral(rd, stage, s->lanes);
  x.value = kern_select(b, there, x.value, none.value);
  if (stage->arg) x.index = kern_select(b, there, x.index, none.index);
  return x;
}

/* All rows at columns from `at` on: WARP of them. */
static struct reduce_value merge_slices(struct reduce *rd, const struct reduce_partial *p,
                                        const struct reduce_stage *stage, const struct slices *s, kern_id at) {
  struct kern_builder *b = &rd->b;
  int64_t pitch = p->others * p->width, rounds = p->rows / s->n, blocks = rounds / BLOCK, rest = p->rows % s->n;
  struct reduce_value acc = reduce_var(rd, stage, reduce_neutral(rd, stage, s->lanes)), x[BLOCK];
  if (blocks > 0) {
    kern_id first = kern_mul_i(b, kern_range(b, 0, blocks, 1), BLOCK * s->n * pitch);
    first = kern_add(b, first, at);
    for (int i = 0; i < BLOCK; i++) x[i] = gather(rd, stage, kern_add_i(b, first, i * s->n * pitch), s->base);
    for (int h = 1; h < BLOCK; h *= 2)
      for (int i = 0; i < BLOCK; i += 2 * h) x[i] = reduce_join(rd, stage, x[i], x[i + h]);
    merge_into(rd, stage, acc, x[0]);
    kern_end(b);
  }
  for (int64_t round = blocks * BLOCK; round < rounds; round++)
    merge_into(rd, stage, acc, gather(rd, stage, kern_add_i(b, at, round * s->n * pitch), s->base));
  if (rest > 0)
    merge_into(rd, stage, acc, gather_rest(rd, stage, s, kern_add_i(b, at, rounds * s->n * pitch), pitch, rest));
  struct reduce_value sum = reduce_get(rd, stage, acc);
  for (int n = s->n; n > 1; n /= 2) {
    struct reduce_value low = {kern_low(b, sum.value), KERN_NONE}, high = {kern_high(b, sum.value), KERN_NONE};
    if (stage->arg) low.index = kern_low(b, sum.index);
    if (stage->arg) high.index = kern_high(b, sum.index);
    sum = reduce_join(rd, stage, low, high);
  }
  return sum;
}

static quern_status emit_last(struct reduce *rd, struct reduce_partial *p) {
  struct kern_builder *b = &rd->b;
  const struct pass_group *group = rd->job->group;
  int64_t extent = rd->nest.loops[p->loop].extent, blocks = (extent + WARP - 1) / WARP;
  bool across = p->loop < rd->nest.n_outer;
  int n = p->rows > MANY ? 32 : 8;
  while (n > 1 && p->rows < n * BLOCK) n /= 2;
  QUERN_TRY(gpu_reduce_begin(rd, p->others * blocks, n * WARP));
  struct slices slices = choose_slices(rd, p, n);
  kern_id task = kern_task(b), other = kern_idiv(b, task, blocks);
  kern_id column = kern_mul_i(b, kern_imod(b, task, blocks), WARP), active = KERN_NONE;
  if (extent % WARP != 0) active = kern_min_i(b, kern_sub(b, kern_index(b, extent), column), WARP);
  if (across) sched_nest_set(&rd->nest, b, rd->values, 0, rd->nest.n_outer, p->loop, other);
  kern_values_set(rd->values, rd->nest.loops[p->loop].var, column, WARP, active);
  kern_id at = kern_add(b, kern_mul_i(b, other, p->width), column);
  for (size_t i = 0; i < p->n_stages; i++) {
    const struct reduce_stage *stage = &p->stages[i];
    struct reduce_value sum = merge_slices(rd, p, stage, &slices, at);
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

quern_status reduce_partial_merge(struct reduce *rd, struct reduce_partial *p) {
  for (int level = 0; level < MOST_LEVELS && p->rows > FEW; level++) QUERN_TRY(emit_level(rd, p, level));
  return emit_last(rd, p);
}
