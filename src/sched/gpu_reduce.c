/* sched/gpu_reduce.c -- REDUCE groups by thread blocks: along or across rows, how many lanes and threads, how many splits
** A vector has as many lanes as its thread block touches at a time, 16 bytes per thread where rows are so aligned. Rows that
** fit are read once and stay in registers, written out step by step; longer ones are read in each pass. Where there are too
** few rows, each is divided into splits whose partial results are merged in phases of their own.
** keeps: the order of sums is that of the kernel: lanes of accumulators, then HREDUCE; splits from the first to the last
** see:   docs/design/007-gpu.md                    tests: tests/sched/test_gpu_reduce.c
*/
#include "sched/reduce.h"

enum {
  WARP = 32,
  LARGE_GROUP = 512,  /* for rows of which an SM has one at a time: a thread has 128 registers */
  LEAST_ROW = 32,     /* elements of a row that is worth a thread block */
  LEAST_COLUMNS = 16, /* rows side by side that are worth a thread block across */
  TRIAL_LANES = 2 * KERN_MAX_LANES,
  LONG_ROW = 16384,
  FOUR_STEPS = 4 * KERN_BLOCK_LANES,
  MOST_HELD_ROW = 53248, /* elements of a row that an SM's registers can hold as f32 beside what it works with */
};

/* ---- variants -------------------------------------------------------------------------------------------- */

static bool is_good(const struct sched_trial *trial) { return trial->valid && !trial->not_spmd; }

/* Chooses the variant, and the loop nest for it: along is set, or the loop that has lanes; false: there is none. */
static quern_status choose_variant(struct reduce *rd, bool *along, bool *any) {
  struct sched_nest merged;
  struct sched_trial trial = {.valid = false};
  QUERN_TRY(sched_nest_collapse(&rd->nest, rd->nest.n_outer, rd->nest.n_loops));
  QUERN_TRY(sched_nest_collapse(&rd->nest, 0, rd->nest.n_outer));
  QUERN_TRY(sched_nest_copy(&merged, &rd->nest));
  if (merged.n_loops - merged.n_outer > 1) QUERN_TRY(sched_nest_merge(&merged, merged.n_outer, merged.n_loops - 1));
  if (merged.n_loops - merged.n_outer == 1 && rd->count >= LEAST_ROW)
    QUERN_TRY(sched_nest_try(&trial, &merged, merged.n_outer, TRIAL_LANES));
  *along = *any = is_good(&trial);
  rd->vector = -1;
  for (int i = rd->nest.n_outer - 1; i >= 0 && rd->n_column_reductions == 0 && !(*along && trial.scattered == 0); i--) {
    struct sched_trial across;
    if (rd->nest.loops[i].extent < LEAST_COLUMNS) continue;
    QUERN_TRY(sched_nest_try(&across, &rd->nest, i, TRIAL_LANES));
    if (!is_good(&across) || across.scattered > 0) continue;
    rd->vector = i;
    *along = false;
    *any = true;
    break;
  }
  if (*along) rd->nest = merged;
  return QUERN_STATUS_OK;
}

/* ---- lanes and threads ----------------------------------------------------------------------------------- */

/* Elements of 16 bytes of the shortest dtype that has as many elements as there are; no more than divide `extent`. */
static int thread_lanes(const struct reduce *rd, int64_t extent) {
  const struct pass_group *group = rd->job->group;
  int64_t all = rd->n_strips * rd->count;
  int size = 8, lanes;
  for (size_t i = 0; i < group->n_ins; i++)
    if (ir_count(group->ins[i]) >= all) size = BASE_MIN(size, (int)base_dtypes[group->ins[i]->dtype].size);
  for (size_t i = 0; i < group->n_outs; i++)
    if (rd->out_pass[i] >= 0) size = BASE_MIN(size, (int)base_dtypes[group->outs[i].tensor->dtype].size);
  lanes = 16 / BASE_MAX(size, 2);
  while (lanes > 1 && extent % lanes != 0) lanes /= 2;
  return lanes;
}

static int64_t power_above(int64_t n) {
  int64_t p = 1;
  while (p < n) p *= 2;
  return p;
}

/* A row is four steps of its thread block, as far as there can be so many lanes: the order of sums depends on the length only. */
static void choose_row_lanes(struct reduce *rd) {
  int64_t lanes = rd->count <= 256 ? power_above(rd->count) : BASE_MAX(power_above((rd->count + 3) / 4), 256);
  lanes = BASE_MIN(BASE_MAX(lanes, WARP), KERN_BLOCK_LANES);
  bool large = rd->count > FOUR_STEPS && rd->count <= MOST_HELD_ROW;
  if (large) lanes = KERN_BLOCK_LANES / 2;
  int64_t each = BASE_MAX(thread_lanes(rd, rd->count), lanes / (large ? LARGE_GROUP : REDUCE_MOST_BLOCK));
  each = BASE_MIN(each, lanes / WARP);
  rd->lanes = (int)lanes;
  rd->block_threads = (int)(lanes / each);
  rd->steps = (rd->count + lanes - 1) / lanes;
}

/* Warps that keep a device busy: three in four of those that it can have at a time. */
static int64_t wanted_warps(const struct reduce *rd) {
  return (int64_t)rd->job->target->multiprocessors * rd->job->target->max_threads_per_sm / WARP * 3 / 4;
}

/* Fewer where all of a column must be a task's, and tasks are few. */
static void choose_column_lanes(struct reduce *rd) {
  int64_t extent = rd->nest.loops[rd->vector].extent, each = thread_lanes(rd, extent);
  int64_t most = rd->n_passes > 1 ? extent * rd->n_strips / wanted_warps(rd) : extent;
  while (each > 1 && WARP * each / 2 >= BASE_MIN(most, extent)) each /= 2;
  rd->lanes = (int)(WARP * each);
  rd->block_threads = WARP;
}

/* ---- what rows read -------------------------------------------------------------------------------------- */

static bool uses(const struct reduce *rd, const struct sched_point *point, int first, int last) {
  for (int i = first; i < last; i++)
    if (sched_point_uses(point, rd->nest.loops[i].var)) return true;
  return false;
}

struct finding {
  struct reduce *rd;
  int pass;
  size_t room;
  bool failed;
};

static bool is_in(const struct pass_group *group, const quern_tensor *t) {
  for (size_t i = 0; i < group->n_ins; i++)
    if (group->ins[i] == t) return true;
  return false;
}

static void add_load(struct finding *f, const struct sched_point *point) {
  struct reduce *rd = f->rd;
  for (size_t i = 0; i < rd->n_loads; i++) {
    if (!sched_point_same(&rd->loads[i].point, point)) continue;
    rd->loads[i].passes |= UINT64_C(1) << f->pass;
    return;
  }
  if (rd->n_loads == f->room) {
    size_t more = 2 * f->room + 8;
    struct reduce_load *loads = base_arena_alloc(rd->arena, more * sizeof *loads);
    f->failed = f->failed || loads == NULL;
    if (loads == NULL) return;
    for (size_t i = 0; i < rd->n_loads; i++) loads[i] = rd->loads[i];
    rd->loads = loads;
    f->room = more;
  }
  rd->loads[rd->n_loads++] = (struct reduce_load){.point = *point,
                                                  .passes = UINT64_C(1) << f->pass,
                                                  .first = f->pass,
                                                  .same = !uses(rd, point, 0, rd->nest.n_outer)};
}

static bool visit_load(void *user, const struct sched_point *point) {
  struct finding *f = user;
  struct reduce *rd = f->rd;
  if (!uses(rd, point, rd->nest.n_outer, rd->nest.n_loops)) return false;
  for (size_t i = 0; i < rd->n_keeps; i++)
    if (rd->keeps[i].made < f->pass && sched_point_same(&rd->keeps[i].point, point)) return false;
  if (is_in(rd->job->group, point->tensor)) add_load(f, point);
  return true;
}

/* The elements of ins that each pass reads, as far as their places are known. */
static quern_status find_loads(struct reduce *rd) {
  const struct pass_group *group = rd->job->group;
  struct finding f = {.rd = rd};
  rd->n_loads = 0;
  for (int q = 0; q < rd->n_passes && q < 64; q++) {
    struct sched_walk walk;
    f.pass = q;
    sched_walk_init(&walk, &rd->nest);
    for (size_t i = 0; i < rd->n_stages; i++)
      if (rd->stages[i].pass == q) sched_walk_run(&walk, rd->stages[i].source, rd->stages[i].source_at, visit_load, &f);
    for (size_t i = 0; i < rd->n_column_reductions; i++)
      if (rd->column_reductions[i].pass == q)
        sched_walk_run(&walk, rd->column_reductions[i].source, rd->column_reductions[i].source_at, visit_load, &f);
    for (size_t i = 0; i < group->n_outs; i++)
      if (rd->out_pass[i] == q) sched_walk_run(&walk, group->outs[i].tensor, rd->nest.outs[i], visit_load, &f);
    f.failed = f.failed || walk.failed;
    sched_walk_fini(&walk);
  }
  return f.failed || group->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* ---- what is held ---------------------------------------------------------------------------------------- */

/* Bytes of an element that a thread holds between pass q and the next. */
static int64_t held_after(const struct reduce *rd, int q) {
  int64_t bytes = 0;
  for (size_t i = 0; i < rd->n_loads; i++) {
    const struct reduce_load *load = &rd->loads[i];
    bool later = q + 1 < 64 && load->passes >> (q + 1) != 0;
    if (later && load->first <= q) bytes += (int64_t)base_dtypes[load->point.tensor->dtype].size;
  }
  for (size_t i = 0; i < rd->n_keeps; i++)
    if (rd->keeps[i].made <= q) bytes += (int64_t)base_dtypes[rd->keeps[i].point.tensor->dtype].size;
  return bytes;
}

/* Bytes of registers that a thread needs for what passes share. */
static int64_t held_bytes(const struct reduce *rd) {
  int64_t most = 0;
  for (int q = 0; q + 1 < rd->n_passes || q == 0; q++) {
    int64_t bytes = held_after(rd, q);
    most = BASE_MAX(most, bytes);
  }
  return most * (rd->steps * rd->lanes / rd->block_threads);
}

/* An SM has registers of 256 KiB for all of its threads; a thread block of few threads shares it with others. */
static int64_t most_held(const struct reduce *rd) {
  return rd->block_threads >= 1024 ? 224 : rd->block_threads >= 512 ? 416 : 512;
}

static void choose_fits(struct reduce *rd) {
  if (rd->n_column_reductions > 0)
    gpu_reduce_fused_columns_shape(rd);
  else
    rd->fits = rd->steps <= REDUCE_MOST_STEPS && held_bytes(rd) <= most_held(rd);
}

/* What is dear to compute is held as well where there is room. */
static quern_status choose_held(struct reduce *rd) {
  QUERN_TRY(reduce_find_keeps(rd, rd->steps));
  for (size_t i = 0; i < rd->n_keeps; i++) rd->keeps[i].out = -1;
  QUERN_TRY(find_loads(rd));
  int group = rd->block_threads;
  choose_fits(rd);
  if (!rd->fits && rd->n_keeps > 0) {
    rd->n_keeps = 0;
    rd->block_threads = group;
    QUERN_TRY(find_loads(rd));
    choose_fits(rd);
  }
  if (!rd->fits) rd->n_keeps = 0;
  rd->column_acc =
      base_arena_alloc(rd->arena, (rd->n_column_reductions * (size_t)rd->steps + 1) * sizeof *rd->column_acc);
  return rd->column_acc != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* Places for what is known of each of the rows that are worked on together. */
static quern_status make_rows(struct reduce *rd) {
  size_t points = (rd->n_loads + rd->n_keeps + 1) * REDUCE_MOST_STEPS;
  for (int u = 0; u < rd->block_rows; u++) {
    struct reduce_row *row = &rd->rows[u];
    row->at = base_arena_alloc(rd->arena, points * sizeof *row->at);
    row->total = base_arena_alloc(rd->arena, 2 * rd->n_stages * sizeof *row->total);
    if (row->at == NULL || row->total == NULL) return QUERN_STATUS_MEMORY;
    row->kept = row->at + rd->n_loads * REDUCE_MOST_STEPS;
    row->accs = row->total + rd->n_stages;
  }
  return QUERN_STATUS_OK;
}

/* ---- splits ----------------------------------------------------------------------------------------------- */

/* Few long rows that are read once. Two thread blocks per SM keep a device busy. */
static void choose_row_splits(struct reduce *rd) {
  enum { BLOCK = 4 };
  int64_t blocks = rd->count / rd->lanes / BLOCK, enough = 2 * rd->job->target->multiprocessors;
  rd->splits = rd->split_size = 1;
  if (rd->n_passes > 1 || rd->n_column_reductions > 0 || rd->count <= LONG_ROW || rd->n_strips >= enough) return;
  rd->split_size = BASE_MAX(blocks * rd->n_strips / (8 * enough), 1);
  rd->splits = BASE_MAX((blocks + rd->split_size - 1) / rd->split_size, 1);
}

/* Whatever the lanes are, a task counts as one of 128 columns: the order of sums depends on the extents only. */
static void choose_column_splits(struct reduce *rd) {
  enum { BLOCK = 8, LEAST = 4, COLUMNS = 128 };
  int64_t blocks = rd->count / BLOCK, extent = rd->nest.loops[rd->vector].extent;
  int64_t tasks = rd->n_strips * ((extent + COLUMNS - 1) / COLUMNS);
  int64_t wanted = wanted_warps(rd);
  rd->splits = rd->split_size = 1;
  if (rd->n_passes > 1 || tasks >= wanted || blocks < 2 * LEAST) return;
  rd->split_size = BASE_MAX((blocks * tasks + wanted - 1) / wanted, LEAST);
  rd->splits = (blocks + rd->split_size - 1) / rd->split_size;
}

/* ---- building -------------------------------------------------------------------------------------------- */

quern_status gpu_reduce_values(struct reduce *rd, struct kern_values **values) {
  QUERN_TRY(sched_values(rd->job, &rd->b, values));
  kern_values_for_gpu(*values);
  for (int v = 0; v < rd->nest.n_group; v++) kern_values_set(*values, v, kern_index(&rd->b, 0), 1, KERN_NONE);
  return QUERN_STATUS_OK;
}

static void free_values(struct reduce *rd) {
  for (int u = 0; u < REDUCE_MOST_SIDE; u++) {
    kern_values_free(rd->rows[u].values);
    rd->rows[u].values = NULL;
  }
  rd->values = NULL;
}

quern_status gpu_reduce_begin(struct reduce *rd, int64_t tasks, int group) {
  struct kern *kern = rd->job->kern;
  rd->b = (struct kern_builder){.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(tasks))};
  free_values(rd);
  QUERN_TRY(kern->failed);
  kern->phases[kern->n_phases - 1].block_threads = group;
  for (int u = 0; u < rd->block_rows; u++) QUERN_TRY(gpu_reduce_values(rd, &rd->rows[u].values));
  rd->row = &rd->rows[0];
  rd->values = rd->row->values;
  return QUERN_STATUS_OK;
}

kern_id gpu_reduce_last(struct reduce *rd, kern_id part, int64_t n) {
  return kern_max_i(&rd->b, kern_add_i(&rd->b, part, 2 - n), 0);
}

/* An out may take the memory of an in where the last pass stores it, or the same task that reads it. */
static quern_status choose_aliases(struct reduce *rd) {
  size_t n = rd->job->group->n_outs;
  bool *may = base_arena_alloc(rd->arena, n * sizeof *may);
  if (may == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++)
    may[i] = rd->out_pass[i] == rd->n_passes - 1 || (rd->out_pass[i] == -1 && rd->splits == 1);
  return sched_alias(&rd->nest, may);
}

/* Whether a thread block has an SM for itself, and then a row prefetched in shared memory. Where an out may take the memory of an in, a
** thread must have the same elements of both rows, or there would be barriers. */
static void choose_follow(struct reduce *rd) {
  const struct pass_group *group = rd->job->group;
  const struct kern_mem *mems = rd->job->kern->mems;
  int64_t bytes = 0;
  bool apart = true;
  for (size_t i = 0; i < rd->n_loads; i++)
    if (rd->loads[i].first == 0 && !rd->loads[i].same)
      bytes += rd->steps * rd->lanes * (int64_t)base_dtypes[rd->loads[i].point.tensor->dtype].size;
  for (size_t i = 0; i < group->n_ins; i++)
    apart = apart && (mems[i].in_place_class == 0 || ir_count(group->ins[i]) < rd->n_strips * rd->count);
  int64_t half = 2 * (int64_t)rd->job->target->registers_per_sm; /* of the bytes of all registers */
  bool large = rd->fits && rd->n_column_reductions == 0 && held_bytes(rd) * rd->block_threads > half;
  rd->follow = large && bytes <= sched_shared(rd->job->target) && (apart || rd->count % rd->lanes == 0);
  rd->one_block_per_sm = large || rd->block_threads >= REDUCE_MOST_BLOCK;
}

static quern_status build(struct reduce *rd, bool along) {
  const struct pass_group *group = rd->job->group;
  QUERN_TRY(reduce_describe(rd));
  rd->block_rows = 1;
  rd->n_strips = sched_nest_count(&rd->nest, 0, rd->nest.n_outer, rd->vector);
  if (along)
    choose_row_lanes(rd);
  else
    choose_column_lanes(rd);
  rd->stored = base_arena_alloc(rd->arena, group->n_outs * sizeof *rd->stored);
  if (rd->stored == NULL) return QUERN_STATUS_MEMORY;
  if (along) QUERN_TRY(choose_held(rd));
  QUERN_TRY(make_rows(rd));
  rd->total = rd->rows[0].total;
  rd->accs = rd->rows[0].accs;
  QUERN_TRY(reduce_find_fixed(rd));
  if (along)
    choose_row_splits(rd);
  else
    choose_column_splits(rd);
  QUERN_TRY(choose_aliases(rd));
  if (along) choose_follow(rd);
  if (rd->n_column_reductions > 0) return gpu_reduce_fused_columns(rd);
  return along ? gpu_reduce_rows(rd) : gpu_reduce_columns(rd);
}

quern_status gpu_reduce(struct reduce *rd, bool *built) {
  bool along;
  *built = false;
  if (rd->count == 0) return QUERN_STATUS_OK;
  QUERN_TRY(reduce_describe(rd));
  QUERN_TRY(choose_variant(rd, &along, built));
  if (!*built) return QUERN_STATUS_OK;
  quern_status status = build(rd, along);
  free_values(rd);
  return status;
}
