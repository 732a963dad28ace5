/* sched/reduce_gpu_cross.c -- REDUCE groups along their rows by groups of threads, with sums over all rows
** A task goes through neighbouring rows and adds each of their elements to a row of sums. Where registers suffice for these and for
** one row or two, rows are held as those without such sums are, two at a time where that is possible: what waits for memory and for
** other threads then waits once for both. Else rows are read in each pass, and sums are in the memory that threads share, or in the
** device's. A task leaves one row of sums, and phases of their own join those.
** keeps: a sum takes its rows from the first of the task to the last
** tests: tests/sched/test_reduce_gpu.c
*/
#include "sched/reduce.h"

enum {
  THREADS = 512,   /* that a processor has at a time: 128 registers each */
  MOST_HELD = 256, /* bytes that a thread holds: half of its registers; of a group of the most threads half of it */
  LEAST_RUN = 8,
};

/* ---- the shape ------------------------------------------------------------------------------------------- */

static int64_t size_of(quern_dtype dtype) { return (int64_t)base_dtypes[dtype].size; }

/* Bytes that a thread holds of `side` rows and of sums, between passes. What is the same in all rows is read again, from the nearest
** cache, and what only the last pass wants is loaded there. */
static int64_t held_bytes(const struct reduce *rd, int side) {
  int64_t row = 0, sums = 0;
  for (size_t i = 0; i < rd->n_loads; i++)
    if (!rd->loads[i].same && rd->loads[i].first < rd->n_passes - 1) row += size_of(rd->loads[i].point.tensor->dtype);
  for (size_t i = 0; i < rd->n_keeps; i++) row += size_of(rd->keeps[i].point.tensor->dtype);
  for (size_t i = 0; i < rd->n_crosses; i++) sums += size_of(rd->crosses[i].acc);
  return (side * row + sums) * (rd->steps * rd->lanes / rd->group);
}

static bool can_hold(const struct reduce *rd, int side) {
  return rd->steps <= REDUCE_MOST_STEPS &&
         held_bytes(rd, side) <= (rd->group < REDUCE_MOST_GROUP ? MOST_HELD : MOST_HELD / 2);
}

static int64_t sum_bytes(const struct reduce *rd) {
  int64_t bytes = 0;
  for (size_t i = 0; i < rd->n_crosses; i++) bytes += rd->steps * rd->lanes * size_of(rd->crosses[i].acc);
  return bytes;
}

/* More threads share a row until it is held; what is read is loaded at once, but for what only the last pass wants. */
void reduce_gpu_cross_shape(struct reduce *rd) {
  while (!can_hold(rd, 1) && rd->group < REDUCE_MOST_GROUP && rd->group < rd->lanes) rd->group *= 2;
  rd->fits = can_hold(rd, 1);
  rd->side = rd->fits && can_hold(rd, 2) && rd->n_units % 2 == 0 ? 2 : 1;
  bool shared = sum_bytes(rd) <= reduce_shared(rd->job->target);
  rd->sums = rd->fits ? REDUCE_IN_VARS : shared ? REDUCE_IN_LOCAL : REDUCE_IN_WORK;
  for (size_t i = 0; i < rd->n_loads && rd->fits; i++)
    if (rd->loads[i].first < rd->n_passes - 1) rd->loads[i].first = 0;
}

/* ---- sums ------------------------------------------------------------------------------------------------ */

/* Of sums in memory: where those of an element lie. */
static kern_id place_of(struct reduce *rd, kern_id at) {
  return rd->sums == REDUCE_IN_WORK ? kern_add(&rd->b, rd->row_work, at) : at;
}

void reduce_gpu_cross_take(struct reduce *rd, int q, int step, kern_id at) {
  struct kern_builder *b = &rd->b;
  for (size_t i = 0; i < rd->n_crosses; i++) {
    const struct reduce_stage *cross = &rd->crosses[i];
    if (cross->pass != q || rd->job->kern->failed != QUERN_STATUS_OK) continue;
    struct reduce_value x = {reduce_source(rd, cross, rd->lanes), KERN_NONE}, acc = {KERN_NONE, KERN_NONE};
    if (rd->sums == REDUCE_IN_VARS) {
      kern_id var = rd->cross_acc[i * (size_t)rd->steps + (size_t)step];
      acc.value = kern_get(b, var);
      kern_set(b, var, reduce_join(rd, cross, acc, x).value);
    } else {
      kern_id place = place_of(rd, at);
      acc.value = kern_load(b, rd->cross_acc[i], place, rd->lanes);
      kern_store(b, rd->cross_acc[i], place, reduce_join(rd, cross, acc, x).value);
    }
  }
}

static void begin_sums(struct reduce *rd) {
  struct kern_builder *b = &rd->b;
  int64_t width = rd->steps * rd->lanes;
  for (size_t i = 0; i < rd->n_crosses; i++) {
    const struct reduce_stage *cross = &rd->crosses[i];
    kern_id neutral = reduce_neutral(rd, cross, rd->lanes).value;
    if (rd->sums == REDUCE_IN_VARS) {
      for (int64_t s = 0; s < rd->steps; s++) rd->cross_acc[(int64_t)i * rd->steps + s] = kern_var(b, neutral);
      continue;
    }
    rd->cross_acc[i] = rd->sums == REDUCE_IN_LOCAL ? kern_local(b, cross->acc, width) : kern_mem(b, cross->work);
    kern_id at = place_of(rd, kern_range(b, 0, width, rd->lanes));
    kern_store(b, rd->cross_acc[i], at, neutral);
    kern_end(b);
  }
}

static void end_sums(struct reduce *rd) {
  struct kern_builder *b = &rd->b;
  for (size_t i = 0; i < rd->n_crosses && rd->sums != REDUCE_IN_WORK; i++) {
    const struct reduce_stage *cross = &rd->crosses[i];
    struct reduce_value sum = {KERN_NONE, KERN_NONE};
    for (int64_t s = 0; rd->sums == REDUCE_IN_VARS && s < rd->steps; s++) {
      sum.value = kern_get(b, rd->cross_acc[(int64_t)i * rd->steps + s]);
      reduce_partial_store(rd, cross, kern_add_i(b, rd->row_work, s * rd->lanes), sum);
    }
    if (rd->sums == REDUCE_IN_VARS) continue;
    kern_id at = kern_range(b, 0, rd->steps * rd->lanes, rd->lanes);
    sum.value = kern_load(b, rd->cross_acc[i], at, rd->lanes);
    reduce_partial_store(rd, cross, kern_add(b, rd->row_work, at), sum);
    kern_end(b);
  }
}

/* ---- rows that are held ---------------------------------------------------------------------------------- */

enum { MOST_SIDE = 2 };

/* A row of those that are worked on together. */
struct held {
  kern_id row;
  kern_id *at, *kept;                 /* of load or keep i at step s: i * steps + s */
  struct reduce_value *accs, *totals; /* a stage */
};

static quern_status new_held(struct reduce *rd, struct held *h) {
  size_t steps = (size_t)rd->steps;
  h->at = base_arena_alloc(rd->arena, (rd->n_loads + rd->n_keeps + 1) * steps * sizeof *h->at);
  h->accs = base_arena_alloc(rd->arena, 2 * rd->n_stages * sizeof *h->accs);
  if (h->at == NULL || h->accs == NULL) return QUERN_STATUS_MEMORY;
  h->kept = h->at + rd->n_loads * steps;
  h->totals = h->accs + rd->n_stages;
  return QUERN_STATUS_OK;
}

/* Lanes of a step that count, or KERN_NONE: all. */
static kern_id active_of(struct reduce *rd, int64_t step) {
  int64_t rest = rd->count % rd->lanes;
  return step + 1 == rd->steps && rest > 0 ? kern_index(&rd->b, rest) : KERN_NONE;
}

static kern_id enter_step(struct reduce *rd, int64_t step) {
  kern_id at = kern_index(&rd->b, step * rd->lanes);
  kern_values_enter(rd->values);
  kern_values_set(rd->values, rd->nest.loops[rd->nest.n_outer].var, at, rd->lanes, active_of(rd, step));
  return at;
}

static void leave_step(struct reduce *rd) {
  kern_values_leave(rd->values);
  kern_values_set(rd->values, rd->nest.loops[rd->nest.n_outer].var, kern_index(&rd->b, 0), 1, KERN_NONE);
}

/* The row, with what passes before q gave. */
static void enter_row(struct reduce *rd, const struct held *h, int q) {
  kern_values_enter(rd->values);
  sched_nest_set(&rd->nest, &rd->b, rd->values, 0, rd->nest.n_outer, -1, h->row);
  rd->total = h->totals;
  for (int p = 0; p < q; p++) reduce_row_results(rd, p);
  if (q < rd->n_passes) sched_points_get(rd->values, &rd->fixed[q]);
}

static void load_row(struct reduce *rd, const struct held *h, int q) {
  enter_row(rd, h, q);
  for (int64_t s = 0; s < rd->steps; s++) {
    (void)enter_step(rd, s);
    for (size_t i = 0; i < rd->n_loads; i++)
      if (!rd->loads[i].same && rd->loads[i].first == q)
        h->at[(int64_t)i * rd->steps + s] = sched_point_get(rd->values, &rd->loads[i].point);
    leave_step(rd);
  }
  kern_values_leave(rd->values);
}

/* What pass q knows of step s. */
static void bind_step(struct reduce *rd, const struct held *h, int q, int64_t s) {
  for (size_t i = 0; i < rd->n_loads; i++) {
    const struct reduce_load *load = &rd->loads[i];
    if (!load->same && load->first <= q) sched_point_bind(rd->values, &load->point, h->at[(int64_t)i * rd->steps + s]);
  }
  for (size_t i = 0; i < rd->n_keeps; i++) {
    kern_id *kept = &h->kept[(int64_t)i * rd->steps + s];
    if (rd->keeps[i].made < q) sched_point_bind(rd->values, &rd->keeps[i].point, *kept);
    if (rd->keeps[i].made == q) *kept = kern_splat(&rd->b, sched_point_get(rd->values, &rd->keeps[i].point), rd->lanes);
  }
}

static void take_row(struct reduce *rd, const struct held *h, int q) {
  enter_row(rd, h, q);
  for (int64_t s = 0; s < rd->steps; s++) {
    kern_id at = enter_step(rd, s), active = active_of(rd, s);
    bind_step(rd, h, q, s);
    for (size_t i = 0; i < rd->n_stages; i++) {
      const struct reduce_stage *stage = &rd->stages[i];
      if (stage->pass != q) continue;
      struct reduce_value x = reduce_gpu_element(rd, stage, at, active);
      h->accs[i] = s == 0 ? x : reduce_take(rd, stage, h->accs[i], x);
    }
    reduce_gpu_cross_take(rd, q, (int)s, at);
    reduce_store(rd, q, active);
    leave_step(rd);
  }
  kern_values_leave(rd->values);
}

static void fold_row(struct reduce *rd, const struct held *h, int q) {
  for (size_t i = 0; i < rd->n_stages; i++)
    if (rd->stages[i].pass == q) h->totals[i] = reduce_fold(rd, &rd->stages[i], h->accs[i]);
}

/* Pass by pass over all of the rows. Nothing is computed before the first pass has loaded all of them. Small groups fold both rows at
** once, with one barrier; large ones one after the other: their registers are scarce. */
static void emit_held(struct reduce *rd, const struct held *h, kern_id next) {
  for (int q = 0; q < rd->n_passes; q++) {
    for (int64_t u = 0; u < rd->side && q == 0; u++) load_row(rd, &h[u], q);
    for (int64_t u = 0; u < rd->side; u++) {
      if (q > 0) load_row(rd, &h[u], q);
      take_row(rd, &h[u], q);
      if (rd->group >= THREADS) fold_row(rd, &h[u], q);
    }
    for (int64_t u = 0; u < rd->side && rd->group < THREADS; u++) fold_row(rd, &h[u], q);
    if (q == 0) reduce_gpu_ask(rd, next, rd->side);
  }
  for (int64_t u = 0; u < rd->side; u++) {
    enter_row(rd, &h[u], rd->n_passes);
    reduce_store(rd, -1, KERN_NONE);
    kern_values_leave(rd->values);
  }
}

/* ---- tasks ----------------------------------------------------------------------------------------------- */

static quern_status emit_tasks(struct reduce *rd, int64_t run) {
  struct kern_builder *b = &rd->b;
  struct held held[MOST_SIDE];
  for (int64_t u = 0; u < rd->side; u++) QUERN_TRY(new_held(rd, &held[u]));
  QUERN_TRY(reduce_gpu_begin(rd, (rd->n_units + run - 1) / run, rd->group));
  rd->job->kern->phases[rd->job->kern->n_phases - 1].beside = BASE_MAX(THREADS / rd->group, 1);
  kern_id task = kern_task(b), lo = kern_mul_i(b, task, run);
  rd->row_work = kern_mul_i(b, task, rd->steps * rd->lanes);
  begin_sums(rd);
  kern_id row = kern_for(b, lo, kern_min_i(b, kern_add_i(b, lo, run), rd->n_units), rd->side);
  kern_id next = kern_min_i(b, kern_add_i(b, row, rd->side), rd->n_units - rd->side);
  for (int64_t u = 0; u < rd->side; u++) held[u].row = kern_add_i(b, row, u);
  if (rd->fits)
    emit_held(rd, held, next);
  else
    reduce_gpu_row(rd, row, next);
  kern_end(b);
  end_sums(rd);
  return QUERN_STATUS_OK;
}

quern_status reduce_gpu_crosses(struct reduce *rd) {
  int64_t most = (int64_t)REDUCE_PROCESSORS * BASE_MAX(THREADS / rd->group, 1);
  most = BASE_MAX(BASE_MIN(most, rd->n_units / LEAST_RUN), REDUCE_PROCESSORS);
  int64_t run = (rd->n_units + most - 1) / most;
  run = (run + rd->side - 1) / rd->side * rd->side;
  struct reduce_partial p = {.n_stages = rd->n_crosses,
                             .stages = rd->crosses,
                             .rows = (rd->n_units + run - 1) / run,
                             .others = 1,
                             .width = rd->steps * rd->lanes,
                             .loop = rd->nest.n_outer,
                             .outs = -3};
  reduce_partial_plan(rd, &p);
  QUERN_TRY(emit_tasks(rd, run));
  return reduce_partial_join(rd, &p);
}
