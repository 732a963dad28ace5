/* sched/gpu_reduce_row.c -- REDUCE groups along their rows by thread blocks: a task has a row, a split of a row, or some rows
** A pass takes a row step by step, one vector at a time. What a step reads is loaded before anything is computed, so that all of it is
** in flight at once. Rows that fit into registers are written out, and their values stay; others are loops over blocks of steps. Where a
** thread block has an SM for itself, its task has several rows, and the next row is prefetched into shared memory.
** keeps: lanes beyond the end of a row take the neutral element
** tests: tests/sched/test_gpu_reduce.c
*/
#include "sched/reduce.h"

enum {
  BLOCK = 4, /* steps of a round of the loop over a row that is not held */
  AHEAD = 2, /* steps that loads of the row ahead are before their stores */
};

static int inner_var(const struct reduce *rd) { return rd->nest.loops[rd->nest.n_outer].var; }

/* Lanes below `active` take x, the others the neutral element. */
static kern_id only(struct reduce *rd, const struct reduce_stage *stage, kern_id x, kern_id active) {
  struct kern_builder *b = &rd->b;
  if (active == KERN_NONE) return x;
  kern_id lane = kern_lane(b, QUERN_DTYPE_I32, rd->lanes);
  kern_id most = kern_splat(b, kern_cast(b, active, QUERN_DTYPE_I32), rd->lanes);
  kern_id mask = kern_bin(b, KERN_LT, lane, most);
  return kern_select(b, mask, x, kern_neutral(b, stage->reduce, stage->acc, rd->lanes));
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

/* What follows is about row u of those that are worked on together. */
static void use_row(struct reduce *rd, int u) {
  rd->row = &rd->rows[u];
  rd->values = rd->row->values;
  rd->total = rd->row->total;
  rd->accs = rd->row->accs;
}

typedef void row_visit(struct reduce *rd, int q);

static void each_row(struct reduce *rd, int q, row_visit *visit) {
  for (int u = 0; u < rd->block_rows; u++) {
    use_row(rd, u);
    visit(rd, q);
  }
  use_row(rd, 0);
}

/* ---- steps ----------------------------------------------------------------------------------------------- */

struct step {
  int q;
  kern_id at;     /* the first element */
  kern_id active; /* lanes that count, or KERN_NONE: all */
  int number;
};

static kern_id *loaded(const struct reduce_row *row, size_t i, const struct step *s) {
  return &row->at[i * REDUCE_MOST_STEPS + (size_t)s->number];
}

static void enter_step(struct reduce *rd, const struct step *s) {
  kern_values_enter(rd->values);
  kern_values_set(rd->values, inner_var(rd), s->at, rd->lanes, s->active);
}

static void leave_steps(struct reduce *rd, int q) {
  (void)q;
  kern_values_set(rd->values, inner_var(rd), kern_index(&rd->b, 0), 1, KERN_NONE);
}

/* Whether pass q loads it anew. */
static bool is_fresh(const struct reduce *rd, const struct reduce_load *load, int q) {
  return rd->fits && !load->again ? load->first == q : (load->passes >> q & 1) != 0;
}

static bool is_prefetched(const struct reduce *rd, const struct reduce_load *load) {
  return rd->prefetched != NULL && load->first == 0 && !load->same;
}

/* Loads what the pass does not know yet; again: what all rows have in common, and only that. */
static void load_step(struct reduce *rd, const struct step *s, bool again) {
  enter_step(rd, s);
  for (size_t i = 0; i < rd->n_loads; i++) {
    const struct reduce_load *load = &rd->loads[i];
    if (load->again != again || !is_fresh(rd, load, s->q) || is_prefetched(rd, load)) continue;
    kern_id x = sched_point_get(rd->values, &load->point);
    *loaded(rd->row, i, s) = x;
    for (int u = 0; u < rd->block_rows && again; u++) *loaded(&rd->rows[u], i, s) = x;
  }
  kern_values_leave(rd->values);
}

/* Loads a step of the row ahead; puts it into shared memory. */
static void load_prefetched(struct reduce *rd, const struct step *s) {
  kern_values_enter(rd->prefetched);
  kern_values_set(rd->prefetched, inner_var(rd), s->at, rd->lanes, s->active);
  for (size_t i = 0; i < rd->n_loads; i++)
    if (is_prefetched(rd, &rd->loads[i])) *loaded(rd->row, i, s) = sched_point_get(rd->prefetched, &rd->loads[i].point);
  kern_values_leave(rd->prefetched);
}

static void keep_prefetched(struct reduce *rd, const struct step *s) {
  for (size_t i = 0; i < rd->n_loads; i++)
    if (is_prefetched(rd, &rd->loads[i])) kern_store(&rd->b, rd->loads[i].local, s->at, *loaded(rd->row, i, s));
}

static void bind_step(struct reduce *rd, const struct step *s) {
  for (size_t i = 0; i < rd->n_loads; i++) {
    const struct reduce_load *load = &rd->loads[i];
    if (is_prefetched(rd, load)) {
      if (load->passes >> s->q & 1)
        sched_point_bind(rd->values, &load->point, kern_load(&rd->b, load->local, s->at, rd->lanes));
      continue;
    }
    bool held = rd->fits && !load->again && load->first <= s->q;
    if (held || is_fresh(rd, load, s->q)) sched_point_bind(rd->values, &load->point, *loaded(rd->row, i, s));
  }
  for (size_t i = 0; i < rd->n_keeps; i++) {
    kern_id *kept = &rd->row->kept[i * REDUCE_MOST_STEPS + (size_t)s->number];
    if (rd->keeps[i].made < s->q) sched_point_bind(rd->values, &rd->keeps[i].point, *kept);
    if (rd->keeps[i].made == s->q)
      *kept = kern_splat(&rd->b, sched_point_get(rd->values, &rd->keeps[i].point), rd->lanes);
  }
}

/* What a stage takes of a step. */
static struct reduce_value element(struct reduce *rd, const struct reduce_stage *stage, const struct step *s) {
  struct kern_builder *b = &rd->b;
  struct reduce_value x = {only(rd, stage, reduce_source(rd, stage, rd->lanes), s->active), KERN_NONE};
  if (stage->arg) {
    kern_id first = kern_splat(b, kern_cast(b, s->at, QUERN_DTYPE_I32), rd->lanes);
    x.index = kern_add(b, first, kern_lane(b, QUERN_DTYPE_I32, rd->lanes));
  }
  return x;
}

static void take_stage(struct reduce *rd, size_t i, const struct step *s) {
  const struct reduce_stage *stage = &rd->stages[i];
  struct reduce_value x = element(rd, stage, s);
  if (rd->fits)
    rd->accs[i] = rd->accs[i].value == KERN_NONE ? x : reduce_take(rd, stage, rd->accs[i], x);
  else
    reduce_set(rd, stage, rd->accs[i], reduce_take(rd, stage, reduce_get(rd, stage, rd->accs[i]), x));
}

static void take_step(struct reduce *rd, const struct step *s) {
  enter_step(rd, s);
  bind_step(rd, s);
  for (size_t i = 0; i < rd->n_stages; i++)
    if (rd->stages[i].pass == s->q) take_stage(rd, i, s);
  gpu_reduce_fused_columns_take(rd, s->q, s->number, s->at);
  reduce_store(rd, s->q, s->active);
  kern_values_leave(rd->values);
}

/* A step of all rows, so that what they have in common is loaded and converted once. */
static void take_rows(struct reduce *rd, const struct step *s) {
  use_row(rd, 0);
  load_step(rd, s, true);
  for (int u = 0; u < rd->block_rows; u++) {
    use_row(rd, u);
    take_step(rd, s);
  }
  use_row(rd, 0);
}

/* n steps from element `base` on; of the last one `active` lanes count (KERN_NONE: all). Nothing is computed before all rows are
** loaded. */
static void emit_steps(struct reduce *rd, int q, kern_id base, int64_t n, kern_id active) {
  struct step steps[REDUCE_MOST_STEPS];
  for (int i = 0; i < (int)n; i++) {
    kern_id at = kern_add_i(&rd->b, base, (int64_t)i * rd->lanes);
    steps[i] = (struct step){q, at, i + 1 == n ? active : KERN_NONE, i};
  }
  for (int u = 0; u < rd->block_rows; u++) {
    use_row(rd, u);
    for (int i = 0; i < (int)n; i++) load_step(rd, &steps[i], false);
  }
  bool last =
      rd->prefetched != NULL && q == rd->n_passes - 1; /* registers become free, and the row ahead is near by then */
  for (int i = 0, next = 0; i < (int)n; i++) {
    for (; last && next < n && next <= i + AHEAD; next++) load_prefetched(rd, &steps[next]);
    take_rows(rd, &steps[i]);
    if (last) keep_prefetched(rd, &steps[i]);
  }
  each_row(rd, q, leave_steps);
}

/* ---- passes ---------------------------------------------------------------------------------------------- */

static void begin_pass(struct reduce *rd, int q) {
  sched_points_get(rd->values, &rd->fixed[q]);
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass != q) continue;
    rd->accs[i] = (struct reduce_value){KERN_NONE, KERN_NONE};
    if (!rd->fits) rd->accs[i] = reduce_var(rd, stage, reduce_neutral(rd, stage, rd->lanes));
  }
}

static void end_pass(struct reduce *rd, int q) {
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass == q)
      rd->total[i] = reduce_hreduce(rd, stage, rd->fits ? rd->accs[i] : reduce_get(rd, stage, rd->accs[i]));
  }
}

/* Blocks lo .. hi - 1 of a row. */
static void emit_blocks(struct reduce *rd, int q, kern_id lo, kern_id hi) {
  struct kern_builder *b = &rd->b;
  kern_id block = kern_for(b, lo, hi, 1);
  kern_values_enter(rd->values);
  emit_steps(rd, q, kern_mul_i(b, block, (int64_t)BLOCK * rd->lanes), BLOCK, KERN_NONE);
  kern_values_leave(rd->values);
  kern_end(b);
}

static void emit_pass(struct reduce *rd, int q) {
  struct kern_builder *b = &rd->b;
  int64_t blocks = rd->fits ? 0 : rd->count / rd->lanes / BLOCK, from = blocks * BLOCK * rd->lanes;
  int64_t left = (rd->count - from + rd->lanes - 1) / rd->lanes, rest = rd->count % rd->lanes;
  each_row(rd, q, begin_pass);
  kern_id zero = kern_index(b, 0);
  if (blocks > 0) emit_blocks(rd, q, zero, kern_index(b, blocks));
  kern_id base = kern_index(b, from);
  if (left > 0) emit_steps(rd, q, base, left, rest > 0 ? kern_index(b, rest) : KERN_NONE);
  each_row(rd, q, end_pass); /* folds that follow each other are exchanged between warps with one barrier */
}

/* Asks for the rows from `next` on of all ins that have one per row of the group, before they are worked on. */
static void ask(struct reduce *rd, kern_id next) {
  const struct pass_group *group = rd->job->group;
  for (size_t i = 0; i < group->n_ins; i++) {
    if (ir_count(group->ins[i]) != rd->n_strips * rd->count) continue;
    kern_id first = kern_mul_i(&rd->b, next, rd->count);
    kern_prefetch_n(&rd->b, kern_mem(&rd->b, (int)i), first, rd->block_rows * rd->count);
  }
}

static bool get_in(void *user, const struct sched_point *point) {
  struct reduce *rd = user;
  if (sched_point_uses(point, inner_var(rd))) return true;
  for (size_t i = 0; i < rd->job->group->n_ins; i++)
    if (rd->job->group->ins[i] == point->tensor) (void)sched_point_get(rd->values, point);
  return true;
}

static bool get_early(void *user, const struct sched_point *point) {
  struct reduce *rd = user;
  if (sched_point_uses(point, inner_var(rd)) || reduce_level(rd, point->tensor) > 0) return true;
  if (point->tensor->node->op != IR_CONST) (void)sched_point_get(rd->values, point);
  return false;
}

/* What outs want that is known before the passes are over, so that it is on its way meanwhile: before them what ins have of the row,
** after the first what is loaded at places that were loaded. */
static void load_early(struct reduce *rd, int q) {
  const struct pass_group *group = rd->job->group;
  struct sched_walk walk;
  sched_walk_init(&walk, &rd->nest);
  for (size_t i = 0; i < group->n_outs; i++)
    if (rd->out_pass[i] >= -1)
      sched_walk_run(&walk, group->outs[i].tensor, rd->nest.outs[i], q < 0 ? get_in : get_early, rd);
  if (walk.failed && rd->job->kern->failed == QUERN_STATUS_OK) rd->job->kern->failed = QUERN_STATUS_MEMORY;
  sched_walk_fini(&walk);
}

static void store_row(struct reduce *rd, int q) {
  reduce_store(rd, q, KERN_NONE);
  kern_values_leave(rd->values);
}

void gpu_reduce_row(struct reduce *rd, kern_id row, kern_id next) {
  for (int u = 0; u < rd->block_rows; u++) {
    use_row(rd, u);
    kern_values_enter(rd->values);
    sched_nest_set(&rd->nest, &rd->b, rd->values, 0, rd->nest.n_outer, -1, kern_add_i(&rd->b, row, u));
  }
  each_row(rd, -1, load_early);
  for (int q = 0; q < rd->n_passes; q++) {
    emit_pass(rd, q);
    if (q == 0) each_row(rd, q, load_early);
    if (q == 0 && next != KERN_NONE) ask(rd, next);
    each_row(rd, q, reduce_row_results);
  }
  each_row(rd, -1, store_row);
}

/* ---- rows in splits --------------------------------------------------------------------------------------- */

/* Part `part` of a row; the last one takes what is more than whole blocks, of which others take nothing. */
static void emit_split(struct reduce *rd, kern_id part) {
  struct kern_builder *b = &rd->b;
  int64_t steps = rd->count / rd->lanes, blocks = steps / BLOCK, rest = rd->count % rd->lanes;
  kern_id lo = kern_mul_i(b, part, rd->split_size);
  kern_id hi = kern_min_i(b, kern_add_i(b, lo, rd->split_size), blocks);
  begin_pass(rd, 0);
  emit_blocks(rd, 0, lo, hi);
  kern_id last = gpu_reduce_last(rd, part, rd->splits);
  if (steps % BLOCK > 0) {
    kern_id first = kern_index(b, 0);
    kern_id step = kern_for(b, first, kern_mul_i(b, last, steps % BLOCK), 1);
    kern_values_enter(rd->values);
    kern_id at = kern_mul_i(b, step, rd->lanes);
    emit_steps(rd, 0, kern_add_i(b, at, blocks * BLOCK * rd->lanes), 1, KERN_NONE);
    kern_values_leave(rd->values);
    kern_end(b);
  }
  if (rest > 0) {
    kern_id active = kern_mul_i(b, last, rest);
    emit_steps(rd, 0, kern_index(b, steps * rd->lanes), 1, active);
  }
  end_pass(rd, 0);
}

static quern_status emit_splits(struct reduce *rd) {
  struct kern_builder *b = &rd->b;
  QUERN_TRY(gpu_reduce_begin(rd, rd->n_strips * rd->splits, rd->block_threads));
  kern_id task = kern_task(b), row = kern_idiv(b, task, rd->splits);
  sched_nest_set(&rd->nest, b, rd->values, 0, rd->nest.n_outer, -1, row);
  emit_split(rd, kern_imod(b, task, rd->splits));
  for (size_t i = 0; i < rd->n_stages; i++) reduce_partial_store(rd, &rd->stages[i], task, rd->total[i]);
  return QUERN_STATUS_OK;
}

/* The splits of a row, as a row. */
static quern_status merge_splits(struct reduce *rd) {
  enum { MOST = 1024, WARP = 32 };
  struct kern_builder *b = &rd->b;
  int lanes = WARP;
  while (lanes < MOST && lanes < rd->splits) lanes *= 2;
  QUERN_TRY(gpu_reduce_begin(rd, rd->n_strips, BASE_MAX(lanes / 4, WARP)));
  kern_id row = kern_task(b), first = kern_mul_i(b, row, rd->splits);
  rd->lanes = lanes;
  sched_nest_set(&rd->nest, b, rd->values, 0, rd->nest.n_outer, -1, row);
  int64_t whole = rd->splits / lanes, rest = rd->splits % lanes;
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    struct reduce_value acc = reduce_var(rd, stage, reduce_neutral(rd, stage, lanes));
    if (whole > 0) {
      kern_id at = kern_mul_i(b, kern_range(b, 0, whole, 1), lanes);
      struct reduce_value x = reduce_partial_load(rd, stage, kern_add(b, first, at), lanes, KERN_NONE);
      reduce_set(rd, stage, acc, reduce_join(rd, stage, reduce_get(rd, stage, acc), x));
      kern_end(b);
    }
    if (rest > 0) {
      kern_id at = kern_add_i(b, first, whole * lanes), active = kern_index(b, rest);
      struct reduce_value x = reduce_partial_load(rd, stage, at, lanes, active);
      x.value = only(rd, stage, x.value, active);
      reduce_set(rd, stage, acc, reduce_join(rd, stage, reduce_get(rd, stage, acc), x));
    }
    rd->total[i] = reduce_hreduce(rd, stage, reduce_get(rd, stage, acc));
  }
  reduce_row_results(rd, 0);
  reduce_store(rd, -1, KERN_NONE);
  return QUERN_STATUS_OK;
}

static quern_status split_rows(struct reduce *rd) {
  rd->fits = false; /* the splits are loops */
  for (size_t i = 0; i < rd->n_stages; i++) {
    rd->stages[i].work = kern_add_mem(rd->job->kern, rd->stages[i].acc, KERN_WORK, rd->n_strips * rd->splits);
    if (rd->stages[i].arg) (void)kern_add_mem(rd->job->kern, QUERN_DTYPE_I32, KERN_WORK, rd->n_strips * rd->splits);
  }
  QUERN_TRY(emit_splits(rd));
  return merge_splits(rd);
}

/* ---- rows one after another ------------------------------------------------------------------------------- */

static void set_prefetched(struct reduce *rd, kern_id row) {
  sched_nest_set(&rd->nest, &rd->b, rd->prefetched, 0, rd->nest.n_outer, -1, row);
}

static void load_first(struct reduce *rd) {
  int64_t rest = rd->count % rd->lanes;
  for (size_t i = 0; i < rd->n_loads; i++)
    if (is_prefetched(rd, &rd->loads[i]))
      rd->loads[i].local = kern_local(&rd->b, rd->loads[i].point.tensor->dtype, rd->steps * rd->lanes);
  for (int64_t i = 0; i < rd->steps; i++) {
    kern_id active = i + 1 == rd->steps && rest > 0 ? kern_index(&rd->b, rest) : KERN_NONE;
    struct step s = {0, kern_index(&rd->b, i * rd->lanes), active, (int)i};
    load_prefetched(rd, &s);
    keep_prefetched(rd, &s);
  }
}

/* Rows lo .. hi - 1 of a task: one is asked for and loaded while another is worked on. */
static void emit_run(struct reduce *rd, kern_id lo, kern_id hi) {
  struct kern_builder *b = &rd->b;
  kern_id last = kern_add_i(b, hi, -1);
  set_prefetched(rd, lo);
  load_first(rd);
  kern_id row = kern_for(b, lo, hi, 1), next = kern_add_i(b, row, 1);
  next = kern_min(b, next, last);
  kern_values_enter(rd->prefetched);
  set_prefetched(rd, next);
  gpu_reduce_row(rd, row, next);
  kern_values_leave(rd->prefetched);
  kern_end(b);
}

static quern_status follow_rows(struct reduce *rd) {
  struct kern_builder *b = &rd->b;
  int64_t multiprocessors = rd->job->target->multiprocessors,
          run = (rd->n_strips + multiprocessors - 1) / multiprocessors;
  QUERN_TRY(gpu_reduce_begin(rd, (rd->n_strips + run - 1) / run, rd->block_threads));
  QUERN_TRY(gpu_reduce_values(rd, &rd->prefetched));
  kern_id lo = kern_mul_i(b, kern_task(b), run), hi = kern_add_i(b, lo, run);
  emit_run(rd, lo, kern_min_i(b, hi, rd->n_strips));
  kern_values_free(rd->prefetched);
  rd->prefetched = NULL;
  return QUERN_STATUS_OK;
}

quern_status gpu_reduce_rows(struct reduce *rd) {
  if (rd->splits > 1) return split_rows(rd);
  if (rd->follow) return follow_rows(rd);
  QUERN_TRY(gpu_reduce_begin(rd, rd->n_strips, rd->block_threads));
  kern_id row = kern_task(&rd->b), next = KERN_NONE;
  int64_t multiprocessors = rd->job->target->multiprocessors;
  if (rd->one_block_per_sm && rd->n_strips > multiprocessors)
    next = kern_min_i(&rd->b, kern_add_i(&rd->b, row, multiprocessors), rd->n_strips - 1);
  gpu_reduce_row(rd, row, next);
  return QUERN_STATUS_OK;
}
