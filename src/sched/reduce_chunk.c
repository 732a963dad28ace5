/* sched/reduce_chunk.c -- rows in chunks: their results combined from the first to the last, in one phase or in two
** keeps: chunks of KERN_CHUNK elements whatever the variant, so that the order of sums is that of kern.h
** tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

void reduce_store(struct reduce *rd, int q, kern_id active) {
  const struct pass_group *group = rd->job->group;
  for (size_t i = 0; i < group->n_outs; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    if (rd->out_pass[i] == q) rd->stored[i] = kern_values_get(rd->values, t, t->rank, rd->nest.outs[i]);
  }
  for (size_t i = 0; i < group->n_outs; i++)
    if (rd->out_pass[i] == q) sched_store_at(rd->job, &rd->b, rd->values, i, rd->nest.outs[i], rd->stored[i], active);
}

void reduce_keep_store(struct reduce *rd, const struct reduce_keep *keep, kern_id index, int lanes) {
  const struct sched_point *p = &keep->point;
  if (keep->out >= 0) return;
  kern_id x = sched_point_get(rd->values, p);
  kern_store(&rd->b, keep->local, index, kern_splat(&rd->b, x, lanes));
}

void reduce_keep_bind(struct reduce *rd, const struct reduce_keep *keep, kern_id index, int lanes, kern_id active) {
  const struct sched_point *p = &keep->point;
  kern_id x;
  if (keep->out < 0) {
    x = kern_load(&rd->b, keep->local, index, lanes);
  } else {
    struct pass_space *space = rd->job->group->space;
    const struct pass_index *flat = pass_index_flat(space, p->tensor->rank, p->tensor->dims, p->at);
    kern_id mem = sched_out_mem(rd->job, &rd->b, (size_t)keep->out);
    int64_t stride = 0;
    int n, var = kern_values_vector(rd->values, &n);
    if (var >= 0 && pass_index_uses(flat, var) && (!pass_index_stride(space, flat, var, &stride) || stride != 1))
      return;
    bool wide = var >= 0 && pass_index_uses(flat, var);
    x = kern_load_n(&rd->b, mem, kern_values_first(rd->values, flat), wide ? n : 1, wide ? active : KERN_NONE);
  }
  sched_point_bind(rd->values, p, x);
}

/* ---- chunks ---------------------------------------------------------------------------------------------- */

int64_t reduce_parts(const struct reduce *rd) { return (rd->count + KERN_CHUNK - 1) / KERN_CHUNK; }

static size_t slots(const struct reduce *rd) { return rd->n_stages * (size_t)rd->width; }

/* The stage of a slot when it is of pass q and in the strip, else NULL. */
static const struct reduce_stage *stage_of(const struct reduce *rd, size_t slot, int q) {
  const struct reduce_stage *stage = &rd->stages[slot / (size_t)rd->width];
  return stage->pass == q && (int)(slot % (size_t)rd->width) < rd->strip ? stage : NULL;
}

static void begin_totals(struct reduce *rd, int q) {
  for (size_t i = 0; i < slots(rd); i++) {
    const struct reduce_stage *stage = stage_of(rd, i, q);
    if (stage != NULL) rd->total[i] = reduce_var(rd, stage, reduce_neutral(rd, stage, rd->acc_lanes));
  }
}

static void add_parts(struct reduce *rd, int q) {
  for (size_t i = 0; i < slots(rd); i++) {
    const struct reduce_stage *stage = stage_of(rd, i, q);
    if (stage == NULL) continue;
    reduce_set(rd, stage, rd->total[i], reduce_join(rd, stage, reduce_get(rd, stage, rd->total[i]), rd->part[i]));
  }
}

static void end_totals(struct reduce *rd, int q) {
  for (size_t i = 0; i < slots(rd); i++) {
    const struct reduce_stage *stage = stage_of(rd, i, q);
    if (stage != NULL) rd->total[i] = reduce_get(rd, stage, rd->total[i]);
  }
}

void reduce_totals(struct reduce *rd, int q) {
  struct kern_builder *b = &rd->b;
  int64_t whole = rd->count / KERN_CHUNK, rest = rd->count % KERN_CHUNK;
  if (rd->count <= KERN_CHUNK) {
    rd->range(rd, q, kern_index(b, 0), rd->count, rd->total);
    return;
  }
  begin_totals(rd, q);
  kern_id chunk = kern_range(b, 0, whole, 1);
  kern_values_enter(rd->values);
  rd->range(rd, q, kern_mul(b, chunk, kern_index(b, KERN_CHUNK)), KERN_CHUNK, rd->part);
  add_parts(rd, q);
  kern_values_leave(rd->values);
  kern_end(b);
  if (rest > 0) {
    rd->range(rd, q, kern_index(b, whole * KERN_CHUNK), rest, rd->part);
    add_parts(rd, q);
  }
  end_totals(rd, q);
}

/* ---- in two phases --------------------------------------------------------------------------------------- */

/* Where the parts of a slot are kept. */
static kern_id work_index(struct reduce *rd, kern_id row_strip, kern_id part, size_t slot) {
  struct kern_builder *b = &rd->b;
  kern_id row = kern_add(b, kern_mul(b, part, kern_index(b, rd->n_strips)), row_strip);
  int64_t u = (int64_t)(slot % (size_t)rd->width) * rd->acc_lanes;
  return kern_add_i(b, kern_mul(b, row, kern_index(b, (int64_t)rd->width * rd->acc_lanes)), u);
}

/* One chunk of n elements, its results kept. */
static void keep_part(struct reduce *rd, kern_id row_strip, kern_id part, kern_id base, int64_t n) {
  rd->range(rd, 0, base, n, rd->part);
  for (size_t i = 0; i < slots(rd); i++) {
    const struct reduce_stage *stage = stage_of(rd, i, 0);
    if (stage == NULL) continue;
    kern_id index = work_index(rd, row_strip, part, i);
    kern_store(&rd->b, kern_mem(&rd->b, stage->work), index, rd->part[i].value);
    if (stage->arg) kern_store(&rd->b, kern_mem(&rd->b, stage->work + 1), index, rd->part[i].index);
  }
}

void reduce_part(struct reduce *rd, kern_id row_strip, kern_id part) {
  struct kern_builder *b = &rd->b;
  int64_t whole = rd->count / KERN_CHUNK, rest = rd->count % KERN_CHUNK;
  if (rest > 0) kern_if(b, kern_bin(b, KERN_LT, part, kern_index(b, whole)));
  kern_id chunk = rest > 0 ? kern_min(b, part, kern_index(b, whole - 1)) : part;
  kern_values_enter(rd->values);
  keep_part(rd, row_strip, part, kern_mul(b, chunk, kern_index(b, KERN_CHUNK)), KERN_CHUNK);
  kern_values_leave(rd->values);
  if (rest == 0) return;
  kern_else(b);
  kern_values_enter(rd->values);
  keep_part(rd, row_strip, part, kern_index(b, whole * KERN_CHUNK), rest);
  kern_values_leave(rd->values);
  kern_end(b);
}

void reduce_merged(struct reduce *rd, kern_id row_strip) {
  struct kern_builder *b = &rd->b;
  begin_totals(rd, 0);
  kern_id part = kern_range(b, 0, reduce_parts(rd), 1);
  for (size_t i = 0; i < slots(rd); i++) {
    const struct reduce_stage *stage = stage_of(rd, i, 0);
    if (stage == NULL) continue;
    kern_id index = work_index(rd, row_strip, part, i);
    rd->part[i].value = kern_load(b, kern_mem(b, stage->work), index, rd->acc_lanes);
    if (stage->arg) rd->part[i].index = kern_load(b, kern_mem(b, stage->work + 1), index, rd->acc_lanes);
  }
  add_parts(rd, 0);
  kern_end(b);
  end_totals(rd, 0);
}
