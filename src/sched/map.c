/* sched/map.c -- kernels of MAP groups: every element of the outs by itself
** Loops that can run as one do; the variable along which memory is contiguous has lanes. Elements are taken in blocks
** of `unroll` vectors, what is left of a row in single vectors, the last of them perhaps in part. Where ins are
** contiguous along another variable than outs, squares of both are transposed in registers (map_tile.c). Where
** paddings or concatenations split a loop, each split is a phase of its own.
** keeps: loops count blocks, so that bounds follow from the loops' ranges alone
** tests: tests/sched/test_map.c
*/
#include "sched/map.h"

/* ---- GPUs: a thread has as many elements as 16 bytes hold -------------------------------------------------- */

enum { GPU_BYTES = 16, GPU_LANES = 8, GPU_INSTS = 40, GPU_UNROLL = 2, GPU_CUT_ELEMENTS = 1 << 18, GPU_BLOCK = 256 };

/* Elements of 16 bytes, of the widest out that is as large as any: what a thread stores follows what its neighbor does. */
static int gpu_lanes(const struct sched_job *job) {
  const struct pass_group *group = job->group;
  size_t size = 1;
  int64_t most = 0;
  for (size_t i = 0; i < group->n_outs; i++) most = BASE_MAX(most, ir_count(group->outs[i].tensor));
  for (size_t i = 0; i < group->n_outs; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    if (ir_count(t) >= most) size = BASE_MAX(size, base_dtypes[t->dtype].size);
  }
  return BASE_MIN(BASE_MIN(GPU_BYTES / (int)size, GPU_LANES), job->sched->lanes);
}

/* Vectors a task: two where a thread would wait for few bytes only. */
static int gpu_unroll(const struct sched_map *m) {
  const struct pass_group *group = m->job->group;
  int64_t most = ir_count(group->outs[0].tensor), bytes = 0;
  for (size_t i = 0; i < group->n_ins; i++)
    if (ir_count(group->ins[i]) >= most) bytes += m->lanes * (int64_t)base_dtypes[group->ins[i]->dtype].size;
  return m->lanes > 1 && bytes > 0 && bytes <= GPU_BYTES && m->insts <= GPU_INSTS ? GPU_UNROLL : 1;
}

/* Blocks that an SM should have at once: of what computes much for few memories as many as there can be. f64 takes too many
** registers for that. */
static int gpu_min_blocks(const struct sched_map *m) {
  const struct pass_group *group = m->job->group;
  const struct kern_fn *fn = m->b.fn;
  bool wide = false;
  for (size_t i = 0; i < fn->insts.n; i++) wide = wide || fn->insts.at[i].dtype == QUERN_DTYPE_F64;
  bool much = group->n_ins <= 2 && group->n_outs == 1 && m->insts > GPU_INSTS && !wide;
  return much ? m->job->target->max_threads_per_sm / GPU_BLOCK : 0;
}

/* Fewer lanes where rows are no multiples of them: their first elements would not be aligned. One where lanes would be scattered:
** then threads that are neighbors take neighboring elements. */
static void fit_lanes(struct sched_map *m) {
  int64_t extent = m->vector >= 0 ? m->nest.loops[m->vector].extent : 1;
  int64_t rows = sched_nest_count(&m->nest, 0, m->nest.n_loops, m->vector);
  while (m->lanes > 1 && (extent < m->lanes || (rows > 1 && extent % m->lanes != 0))) m->lanes /= 2;
  if (m->scattered) m->lanes = 1;
  if (m->lanes == 1) m->vector = m->nest.n_loops - 1;
}

/* ---- loops ------------------------------------------------------------------------------------------------- */

/* The loop that is to have lanes: where an element costs least. */
static quern_status choose_vector(struct sched_map *m) {
  struct sched_nest *nest = &m->nest;
  double best = 0;
  m->vector = nest->n_loops - 1;
  if (nest->n_loops == 0) m->lanes = 1;
  if (m->lanes == 1) return QUERN_STATUS_OK;
  for (int i = nest->n_loops - 1; i >= 0; i--) {
    struct sched_trial trial;
    QUERN_TRY(sched_nest_try(&trial, nest, i, m->lanes));
    if (!trial.valid) continue;
    int64_t extent = nest->loops[i].extent, vectors = (extent + m->lanes - 1) / m->lanes;
    double cost = trial.cost * (double)vectors / (double)extent;
    if (i == nest->n_loops - 1 || cost < best) {
      best = cost;
      m->vector = i;
      m->insts = trial.insts;
      m->scattered = trial.scattered > 0;
    }
    if (trial.scattered == 0 && extent >= m->lanes) break;
  }
  return QUERN_STATUS_OK;
}

/* All values before the first store, so that an out may lie where an in does. */
void sched_map_store(struct sched_map *m, kern_id active) {
  const struct pass_group *group = m->job->group;
  for (size_t i = 0; i < group->n_outs; i++) {
    const quern_tensor *t = group->outs[i].tensor;
    m->stored[i] = kern_values_get(m->values, t, t->rank, m->nest.outs[i]);
  }
  for (size_t i = 0; i < group->n_outs; i++)
    sched_store_at(m->job, &m->b, m->values, i, m->nest.outs[i], m->stored[i], active);
}

/* One vector (or scalar) of the space from `at` on. */
static void emit_vector(struct sched_map *m, kern_id at, kern_id active) {
  kern_values_enter(m->values);
  if (m->vector >= 0) kern_values_set(m->values, m->nest.loops[m->vector].var, at, m->lanes, active);
  sched_map_store(m, active);
  kern_values_leave(m->values);
}

/* A block of a row. */
static void emit_block(struct sched_map *m, kern_id block) {
  struct kern_builder *b = &m->b;
  kern_id at = kern_mul(b, block, kern_index(b, (int64_t)m->unroll * m->lanes));
  kern_values_enter(m->values);
  for (int u = 0; u < m->unroll; u++) emit_vector(m, kern_add(b, at, kern_index(b, (int64_t)u * m->lanes)), KERN_NONE);
  kern_values_leave(m->values);
}

/* Blocks of a row, and the end of the loop that counts them. */
static void emit_blocks(struct sched_map *m, kern_id block) {
  emit_block(m, block);
  kern_end(&m->b);
}

/* The rest of a row element by element, which is less text than lanes of a thread of which some do not count. */
static void emit_single(struct sched_map *m, int64_t from, int64_t to) {
  int lanes = m->lanes;
  kern_id at = kern_range(&m->b, from, to, 1);
  m->lanes = 1;
  emit_vector(m, at, KERN_NONE);
  m->lanes = lanes;
  kern_end(&m->b);
}

/* What is left of a row after its whole blocks. */
static void emit_rest(struct sched_map *m, int64_t from, int64_t to) {
  struct kern_builder *b = &m->b;
  for (; from + m->lanes <= to; from += m->lanes) emit_vector(m, kern_index(b, from), KERN_NONE);
  if (from == to) return;
  if (m->job->target->gpu) {
    emit_single(m, from, to);
    return;
  }
  kern_id first = kern_index(b, from);
  emit_vector(m, first, kern_index(b, to - from));
}

quern_status sched_map_hoist(struct sched_map *m, int n_vars, const int *vars) {
  const struct pass_group *group = m->job->group;
  struct sched_points points = {0};
  for (size_t i = 0; i < group->n_outs; i++)
    QUERN_TRY(sched_invariants(&m->nest, group->outs[i].tensor, m->nest.outs[i], n_vars, vars, &points));
  sched_points_get(m->values, &points);
  return QUERN_STATUS_OK;
}

/* On a GPU a task has `unroll` vectors that are `tasks` apart, so that what neighbors load and store lies side by side. All are
** loaded before the first is stored. */
static quern_status emit_apart(struct sched_map *m, int64_t rows, int64_t segments, int64_t tasks) {
  struct kern_builder *b = &m->b;
  const struct pass_group *group = m->job->group;
  kern_id at[GPU_UNROLL], task = kern_task(b);
  for (int store = 0; store < 2; store++)
    for (int u = 0; u < m->unroll; u++) {
      kern_id flat = kern_add_i(b, task, u * tasks), *values = m->stored + (size_t)u * group->n_outs;
      kern_values_enter(m->values);
      if (rows > 1) {
        sched_nest_set(&m->nest, b, m->values, 0, m->nest.n_loops, m->vector, kern_idiv(b, flat, segments));
        flat = kern_imod(b, flat, segments);
      }
      if (store == 0) at[u] = kern_mul_i(b, flat, m->lanes);
      kern_values_set(m->values, m->nest.loops[m->vector].var, at[u], m->lanes, KERN_NONE);
      for (size_t i = 0; i < group->n_outs; i++) {
        const quern_tensor *t = group->outs[i].tensor;
        if (store == 0)
          values[i] = kern_values_get(m->values, t, t->rank, m->nest.outs[i]);
        else
          sched_store_at(m->job, b, m->values, i, m->nest.outs[i], values[i], KERN_NONE);
      }
      kern_values_leave(m->values);
    }
  return QUERN_STATUS_OK;
}

/* Tasks are parts of rows: `segments` of them a row, of `blocks` blocks each. */
static quern_status emit_long_rows(struct sched_map *m, int64_t rows, int64_t blocks, int64_t segments, int64_t whole) {
  struct kern_builder *b = &m->b;
  int64_t extent = m->vector >= 0 ? m->nest.loops[m->vector].extent : 1;
  bool gpu = m->job->target->gpu;
  kern_id task = kern_task(b), segment = segments == 1      ? kern_index(b, 0)
                                         : gpu && rows == 1 ? task
                                                            : kern_imod(b, task, segments);
  if (rows > 1) {
    sched_nest_set(&m->nest, b, m->values, 0, m->nest.n_loops, m->vector, kern_idiv(b, task, segments));
    QUERN_TRY(sched_map_hoist(m, 1, &m->nest.loops[m->vector].var));
  }
  if (segments == 1) {
    if (whole > 0) emit_blocks(m, kern_range(b, 0, whole, 1));
    emit_rest(m, whole * m->unroll * m->lanes, extent);
    return QUERN_STATUS_OK;
  }
  if (gpu && blocks == 1) { /* each task has one */
    emit_block(m, segment);
  } else {
    kern_id lo = kern_mul(b, segment, kern_index(b, blocks));
    kern_id hi = kern_min_i(b, kern_add(b, lo, kern_index(b, blocks)), whole);
    emit_blocks(m, kern_for(b, lo, hi, 1));
  }
  if (whole * m->unroll * m->lanes == extent) return QUERN_STATUS_OK;
  kern_if(b, kern_bin(b, KERN_EQ, segment, kern_index(b, segments - 1)));
  kern_values_enter(m->values);
  emit_rest(m, whole * m->unroll * m->lanes, extent);
  kern_values_leave(m->values);
  kern_end(b);
  return QUERN_STATUS_OK;
}

/* Tasks are `grain` whole rows. */
static quern_status emit_short_rows(struct sched_map *m, int64_t rows, int64_t grain, int64_t whole) {
  struct kern_builder *b = &m->b;
  int64_t extent = m->nest.loops[m->vector].extent;
  kern_id lo = kern_mul_i(b, kern_task(b), grain);
  kern_id hi = kern_min_i(b, kern_add(b, lo, kern_index(b, grain)), rows);
  kern_id row = kern_for(b, lo, hi, 1);
  kern_values_enter(m->values);
  sched_nest_set(&m->nest, b, m->values, 0, m->nest.n_loops, m->vector, row);
  QUERN_TRY(sched_map_hoist(m, 1, &m->nest.loops[m->vector].var));
  if (whole == 1)
    for (int u = 0; u < m->unroll; u++) emit_vector(m, kern_index(b, (int64_t)u * m->lanes), KERN_NONE);
  else if (whole > 1)
    emit_blocks(m, kern_range(b, 0, whole, 1));
  emit_rest(m, whole * m->unroll * m->lanes, extent);
  kern_values_leave(m->values);
  kern_end(b);
  return QUERN_STATUS_OK;
}

/* Starts the phase: its values, and what depends on no loop. */
quern_status sched_map_begin(struct sched_map *m, int64_t tasks) {
  int vars[SCHED_MOST_VARS];
  m->b = (struct kern_builder){.kern = m->job->kern, .fn = kern_add_phase(m->job->kern, KERN_FIXED_TASKS(tasks))};
  QUERN_TRY(m->job->kern->failed);
  QUERN_TRY(sched_values(m->job, &m->b, &m->values));
  for (int v = 0; v < m->nest.n_group; v++) kern_values_set(m->values, v, kern_index(&m->b, 0), 1, KERN_NONE);
  for (int i = 0; i < m->nest.n_loops; i++) vars[i] = m->nest.loops[i].var;
  return sched_map_hoist(m, m->nest.n_loops, vars);
}

static quern_status emit(struct sched_map *m) {
  int64_t extent = m->vector >= 0 ? m->nest.loops[m->vector].extent : 1;
  int64_t rows = sched_nest_count(&m->nest, 0, m->nest.n_loops, m->vector);
  int64_t step = (int64_t)m->unroll * m->lanes, whole = extent / step, grain = BASE_MAX(m->job->sched->grain, 1);
  if (m->job->target->gpu) {
    int64_t vectors = rows * (extent / m->lanes);
    m->unroll = gpu_unroll(m);
    if (m->unroll > 1 && extent % m->lanes == 0 && vectors % m->unroll == 0) {
      QUERN_TRY(sched_map_begin(m, vectors / m->unroll));
      return emit_apart(m, rows, extent / m->lanes, vectors / m->unroll);
    }
    m->unroll = 1;
    step = grain = m->lanes; /* a thread has one vector */
    whole = extent / step;
  }
  if (rows == 1 || extent >= grain) {
    int64_t blocks = BASE_MAX(grain / step, 1), segments = BASE_MAX((whole + blocks - 1) / blocks, 1);
    QUERN_TRY(sched_map_begin(m, rows * segments));
    return emit_long_rows(m, rows, blocks, segments, whole);
  }
  int64_t each = BASE_MAX(grain / extent, 1);
  QUERN_TRY(sched_map_begin(m, (rows + each - 1) / each));
  return emit_short_rows(m, rows, each, whole);
}

/* Fewer vectors a step where a vector is much work already. */
static int choose_unroll(const struct sched_map *m) {
  int unroll = BASE_MAX(m->job->sched->unroll, 1);
  while (unroll > 1 && unroll * m->insts > 160) unroll /= 2;
  return unroll;
}

/* The phases of one part of the vector's loop, or of all of it. */
static quern_status build_split(struct sched_map *m) {
  struct kern *kern = m->job->kern;
  bool tiled = false;
  bool gpu = m->job->target->gpu;
  if (m->lanes > 1) QUERN_TRY((gpu ? sched_map_tiled_gpu : sched_map_tiled)(m, &tiled));
  if (gpu && !tiled) fit_lanes(m);
  if (!tiled) QUERN_TRY(emit(m));
  if (!tiled && gpu) kern->phases[kern->n_phases - 1].min_blocks_per_sm = gpu_min_blocks(m);
  kern_values_free(m->values);
  m->values = NULL;
  return QUERN_STATUS_OK;
}

enum { MOST_CUTS = 8, CUT_ELEMENTS = 16384 }; /* parts of a loop without lanes, and what each must have */

/* The loop that paddings or concatenations cut, and the starts of its parts: that of the lanes where they would be
** scattered, else one whose parts are worth a phase each. */
static quern_status choose_split(const struct sched_map *m, int *loop, int *n, int64_t *starts) {
  const struct sched_nest *nest = &m->nest;
  *n = 1;
  *loop = m->vector;
  int64_t elements = sched_nest_count(nest, 0, nest->n_loops, -1);
  if (m->job->target->gpu && elements < 2 * GPU_CUT_ELEMENTS) return QUERN_STATUS_OK; /* not worth a launch */
  if (m->lanes > 1 && m->scattered) QUERN_TRY(sched_nest_splits(nest, m->vector, n, starts));
  for (int i = 0; m->lanes > 1 && i < nest->n_loops && *n == 1; i++) {
    *loop = i;
    if (i != m->vector) QUERN_TRY(sched_nest_splits(nest, i, n, starts));
    if (*n > MOST_CUTS || *n * (m->job->target->gpu ? GPU_CUT_ELEMENTS : CUT_ELEMENTS) > elements) *n = 1;
  }
  return QUERN_STATUS_OK;
}

static quern_status build(struct sched_map *m) {
  struct sched_nest *nest = &m->nest, whole;
  int n = 1, loop;
  int64_t starts[SCHED_MOST_SPLITS] = {0};
  QUERN_TRY(sched_nest_collapse(nest, 0, nest->n_loops));
  QUERN_TRY(sched_alias(nest, NULL));
  sched_mark_streaming(m->job, NULL);
  QUERN_TRY(choose_vector(m));
  m->unroll = choose_unroll(m);
  QUERN_TRY(choose_split(m, &loop, &n, starts));
  int lanes = m->lanes;
  if (n == 1) return build_split(m);
  QUERN_TRY(sched_nest_copy(&whole, nest));
  for (int i = 0; i < n; i++) {
    int64_t end = i + 1 < n ? starts[i + 1] : whole.loops[loop].extent;
    QUERN_TRY(sched_nest_copy(nest, &whole));
    QUERN_TRY(sched_nest_narrow(nest, loop, starts[i], end - starts[i]));
    m->lanes = lanes;
    if (loop != m->vector || m->job->target->gpu) QUERN_TRY(choose_vector(m));
    m->unroll = choose_unroll(m);
    QUERN_TRY(build_split(m));
  }
  return QUERN_STATUS_OK;
}

quern_status sched_map(struct sched_job *job) {
  struct base_arena arena;
  struct sched_map m = {.job = job, .lanes = job->target->gpu ? gpu_lanes(job) : sched_lanes(job), .unroll = 1};
  if (ir_count(job->group->outs[0].tensor) == 0) {
    (void)kern_add_phase(job->kern, KERN_FIXED_TASKS(0));
    return job->kern->failed;
  }
  if (sched_is_update_at(job)) return sched_update_at(job);
  base_arena_init(&arena, &job->ctx->heap);
  m.stored = base_arena_alloc(&arena, GPU_UNROLL * job->group->n_outs * sizeof *m.stored);
  quern_status status = m.stored == NULL ? QUERN_STATUS_MEMORY : sched_nest_init(&m.nest, job, &arena);
  if (status == QUERN_STATUS_OK) status = build(&m);
  kern_values_free(m.values);
  base_arena_fini(&arena);
  return status;
}
