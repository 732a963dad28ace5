/* sched/map_tile.c -- MAP groups whose ins are contiguous along one loop and whose outs along another
** A square of lanes x lanes elements of such an in is read along its loop, transposed in registers, and used along the
** outs' loop: both sides see whole lines of memory. On GPUs the square lies in shared memory, and a thread block has it.
** tests: tests/sched/test_map.c
*/
#include "sched/map.h"

struct tile {
  struct sched_map *m;
  int along;                      /* the loop ins are contiguous along */
  struct sched_points transposed; /* points of ins that are to be transposed */
  kern_id *columns; /* lanes of them a point: the in at element i of loop `along`, with lanes over the vector loop */
};

/* ---- what is transposed ---------------------------------------------------------------------------------- */

struct search {
  struct tile *tile;
  int counts[SCHED_MOST_VARS]; /* points that are contiguous along a loop, and not along the vector's */
  struct sched_points points;
  bool failed;
};

static bool stride_of(const struct sched_map *m, const struct sched_point *point, int loop, int64_t *stride) {
  struct pass_space *space = m->job->group->space;
  const struct pass_index *flat = pass_index_flat(space, point->tensor->rank, point->tensor->dims, point->at);
  return pass_index_stride(space, flat, m->nest.loops[loop].var, stride);
}

static bool visit_in(void *user, const struct sched_point *point) {
  struct search *search = user;
  const struct sched_map *m = search->tile->m;
  bool in = false;
  for (size_t i = 0; i < m->job->group->n_ins; i++) in = in || m->job->group->ins[i] == point->tensor;
  if (!in) return true;
  int64_t stride;
  if (!stride_of(m, point, m->vector, &stride) || (stride >= -1 && stride <= 1)) return false;
  for (int i = 0; i < m->nest.n_loops; i++)
    if (i != m->vector && stride_of(m, point, i, &stride) && stride == 1) search->counts[i]++;
  if (!sched_points_add(&search->tile->m->nest, &search->points, point)) search->failed = true;
  return false;
}

/* Finds the points and the loop; none when there is nothing to gain. */
static quern_status find(struct tile *tile) {
  struct sched_map *m = tile->m;
  const struct pass_group *group = m->job->group;
  struct search search = {.tile = tile};
  struct sched_walk walk;
  sched_walk_init(&walk, &m->nest);
  for (size_t i = 0; i < group->n_outs; i++)
    sched_walk_run(&walk, group->outs[i].tensor, m->nest.outs[i], visit_in, &search);
  sched_walk_fini(&walk);
  if (walk.failed || search.failed || group->space->failed) return QUERN_STATUS_MEMORY;
  tile->along = -1;
  for (int i = 0; i < m->nest.n_loops; i++) {
    bool wide = m->nest.loops[i].extent >= m->lanes;
    if (wide && search.counts[i] > 0 && (tile->along < 0 || search.counts[i] > search.counts[tile->along]))
      tile->along = i;
  }
  for (size_t i = 0; tile->along >= 0 && i < search.points.n; i++) {
    int64_t stride;
    if (!stride_of(m, &search.points.at[i], tile->along, &stride) || stride != 1) continue;
    if (!sched_points_add(&m->nest, &tile->transposed, &search.points.at[i])) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

/* ---- transposing ----------------------------------------------------------------------------------------- */

/* x[i] lane j becomes x[j] lane i, n x n, n a power of two: blocks of h x h change places for h = n / 2, ..., 1. */
static void transpose(struct kern_builder *b, int n, kern_id *x) {
  int first[KERN_MAX_LANES], second[KERN_MAX_LANES];
  for (int h = n / 2; h >= 1; h /= 2) {
    for (int k = 0; k < n; k++) {
      bool upper = (k & h) != 0;
      first[k] = upper ? n + k - h : k;
      second[k] = upper ? n + k : k + h;
    }
    for (int i = 0; i < n; i++) {
      if ((i & h) != 0) continue;
      kern_id top = x[i], bottom = x[i + h];
      x[i] = kern_shuffle(b, top, bottom, n, first);
      x[i + h] = kern_shuffle(b, top, bottom, n, second);
    }
  }
}

/* ---- loops ----------------------------------------------------------------------------------------------- */

/* The square from (row, column) on: rows of loop `along`, columns of the vector's loop; fewer than lanes at the end. */
static void emit_square(struct tile *tile, kern_id row, int n_rows, kern_id column, int n_columns) {
  struct sched_map *m = tile->m;
  struct kern_builder *b = &m->b;
  int along = m->nest.loops[tile->along].var, across = m->nest.loops[m->vector].var, n = m->lanes;
  kern_id some_rows = n_rows < n ? kern_index(b, n_rows) : KERN_NONE;
  kern_id some_columns = n_columns < n ? kern_index(b, n_columns) : KERN_NONE;
  kern_values_enter(m->values);
  for (size_t t = 0; t < tile->transposed.n; t++) {
    const struct sched_point *point = &tile->transposed.at[t];
    kern_id *x = tile->columns + t * (size_t)n;
    for (int j = 0; j < n_columns; j++) {
      kern_values_set(m->values, across, kern_add(b, column, kern_index(b, j)), 1, KERN_NONE);
      kern_values_set(m->values, along, row, n, some_rows);
      x[j] = kern_values_get(m->values, point->tensor, point->tensor->rank, point->at);
    }
    for (int j = n_columns; j < n; j++) x[j] = kern_const_bits(b, point->tensor->dtype, n, 0);
    transpose(b, n, x);
  }
  for (int i = 0; i < n_rows; i++) {
    kern_values_enter(m->values);
    kern_values_set(m->values, along, kern_add(b, row, kern_index(b, i)), 1, KERN_NONE);
    kern_values_set(m->values, across, column, n, some_columns);
    for (size_t t = 0; t < tile->transposed.n; t++) {
      const struct sched_point *point = &tile->transposed.at[t];
      kern_values_bind(m->values, point->tensor, point->tensor->rank, point->at,
                       tile->columns[t * (size_t)n + (size_t)i]);
    }
    sched_map_store(m, some_columns);
    kern_values_leave(m->values);
    kern_values_set(m->values, across, column, 1, KERN_NONE);
  }
  kern_values_leave(m->values);
}

/* A strip of n_rows rows from row on, all columns. */
static void emit_strip(struct tile *tile, kern_id row, int n_rows) {
  struct sched_map *m = tile->m;
  struct kern_builder *b = &m->b;
  int64_t extent = m->nest.loops[m->vector].extent, whole = extent / m->lanes;
  if (whole > 0) {
    kern_id block = kern_range(b, 0, whole, 1);
    kern_values_enter(m->values);
    emit_square(tile, row, n_rows, kern_mul(b, block, kern_index(b, m->lanes)), m->lanes);
    kern_values_leave(m->values);
    kern_end(b);
  }
  if (whole * m->lanes < extent)
    emit_square(tile, row, n_rows, kern_index(b, whole * m->lanes), (int)(extent - whole * m->lanes));
}

/* Sets the variables of the loops that are neither of the two. */
static void set_others(struct tile *tile, kern_id flat) {
  struct sched_map *m = tile->m;
  for (int i = m->nest.n_loops - 1; i >= 0; i--) {
    if (i == tile->along || i == m->vector) continue;
    kern_values_set(m->values, m->nest.loops[i].var, kern_imod(&m->b, flat, m->nest.loops[i].extent), 1, KERN_NONE);
    flat = kern_idiv(&m->b, flat, m->nest.loops[i].extent);
  }
}

static quern_status emit(struct tile *tile) {
  struct sched_map *m = tile->m;
  struct kern_builder *b = &m->b;
  int64_t extent = m->nest.loops[tile->along].extent, columns = m->nest.loops[m->vector].extent;
  int64_t whole = extent / m->lanes, strips = (extent + m->lanes - 1) / m->lanes;
  int64_t row_blocks = sched_nest_count(&m->nest, 0, m->nest.n_loops, m->vector) / extent * strips;
  int64_t each = BASE_MAX(m->job->sched->grain / (m->lanes * columns), 1);
  QUERN_TRY(sched_map_begin(m, (row_blocks + each - 1) / each));
  kern_id lo = kern_mul_i(b, kern_task(b), each);
  kern_id row_block = kern_for(b, lo, kern_min_i(b, kern_add(b, lo, kern_index(b, each)), row_blocks), 1);
  kern_values_enter(m->values);
  set_others(tile, kern_idiv(b, row_block, strips));
  kern_id strip = kern_imod(b, row_block, strips);
  if (whole < strips) kern_if(b, kern_bin(b, KERN_LT, strip, kern_index(b, whole)));
  kern_id row = kern_mul_i(b, kern_min(b, strip, kern_index(b, whole - 1)), m->lanes);
  kern_values_enter(m->values);
  emit_strip(tile, row, m->lanes);
  kern_values_leave(m->values);
  if (whole < strips) {
    kern_else(b);
    kern_values_enter(m->values);
    emit_strip(tile, kern_index(b, whole * m->lanes), (int)(extent - whole * m->lanes));
    kern_values_leave(m->values);
    kern_end(b);
  }
  kern_values_leave(m->values);
  kern_end(b);
  return QUERN_STATUS_OK;
}

quern_status sched_map_tiled(struct sched_map *m, bool *done) {
  struct tile tile = {.m = m};
  *done = false;
  if (m->vector < 0 || m->nest.n_loops < 2 || m->nest.loops[m->vector].extent < m->lanes) return QUERN_STATUS_OK;
  QUERN_TRY(find(&tile));
  if (tile.transposed.n == 0 || (int64_t)tile.transposed.n * m->lanes > 64) return QUERN_STATUS_OK;
  tile.columns = base_arena_alloc(m->nest.arena, tile.transposed.n * (size_t)m->lanes * sizeof *tile.columns);
  if (tile.columns == NULL) return QUERN_STATUS_MEMORY;
  *done = true;
  return emit(&tile);
}

/* ---- GPUs: through shared memory ----------------------------------------------------------------------------- */

/* Threads of a task, lanes at most, rows that a transposing of a loop loads, and points that are transposed at most. */
enum { GPU_GROUP = 32, GPU_MOST_LANES = 64, GPU_ROWS = 16, GPU_POINTS = 2 };

struct gpu_tile {
  struct tile tile;
  kern_id *local; /* a point: the square as it was read */
  int64_t pitch;  /* elements of a row of it: a little more than its lanes, so that a column lies in many banks */
};

/* The square from (row, column) on is read along its own loop, and kept. */
static void emit_in(struct gpu_tile *g, kern_id row, kern_id column) {
  struct sched_map *m = g->tile.m;
  struct kern_builder *b = &m->b;
  int along = m->nest.loops[g->tile.along].var, across = m->nest.loops[m->vector].var;
  kern_id first = kern_range(b, 0, m->lanes, GPU_ROWS), x[GPU_POINTS][GPU_ROWS];
  for (int j = 0; j < GPU_ROWS; j++) {
    kern_values_enter(m->values);
    kern_values_set(m->values, across, kern_add(b, column, kern_add_i(b, first, j)), 1, KERN_NONE);
    kern_values_set(m->values, along, row, m->lanes, KERN_NONE);
    for (size_t t = 0; t < g->tile.transposed.n; t++) {
      const struct sched_point *point = &g->tile.transposed.at[t];
      x[t][j] = kern_values_get(m->values, point->tensor, point->tensor->rank, point->at);
    }
    kern_values_leave(m->values);
    kern_values_set(m->values, along, row, 1, KERN_NONE);
  }
  for (int j = 0; j < GPU_ROWS; j++) { /* all are under way by now */
    kern_id place = kern_mul_i(b, kern_add_i(b, first, j), g->pitch);
    for (size_t t = 0; t < g->tile.transposed.n; t++) kern_store(b, g->local[t], place, x[t][j]);
  }
  kern_end(b);
}

/* The square from (row, column) on is written along the outs' loop. */
static void emit_out(struct gpu_tile *g, kern_id row, kern_id column) {
  struct sched_map *m = g->tile.m;
  struct kern_builder *b = &m->b;
  int along = m->nest.loops[g->tile.along].var, across = m->nest.loops[m->vector].var;
  kern_id lane = kern_lane(b, QUERN_DTYPE_I64, m->lanes);
  kern_id places = kern_mul(b, lane, kern_const_i(b, QUERN_DTYPE_I64, m->lanes, g->pitch));
  kern_id first = kern_range(b, 0, m->lanes, GPU_ROWS);
  for (int j = 0; j < GPU_ROWS; j++) {
    kern_id at = kern_add_i(b, first, j);
    kern_values_enter(m->values);
    kern_values_set(m->values, along, kern_add(b, row, at), 1, KERN_NONE);
    kern_values_set(m->values, across, column, m->lanes, KERN_NONE);
    for (size_t t = 0; t < g->tile.transposed.n; t++) {
      const struct sched_point *point = &g->tile.transposed.at[t];
      kern_id x = kern_gather(b, g->local[t], kern_add(b, places, kern_splat(b, at, m->lanes)));
      kern_values_bind(m->values, point->tensor, point->tensor->rank, point->at, x);
    }
    sched_map_store(m, KERN_NONE);
    kern_values_leave(m->values);
    kern_values_set(m->values, across, column, 1, KERN_NONE);
  }
  kern_end(b);
}

static quern_status emit_gpu(struct gpu_tile *g) {
  struct sched_map *m = g->tile.m;
  struct kern_builder *b = &m->b;
  int64_t rows = m->nest.loops[g->tile.along].extent / m->lanes, columns = m->nest.loops[m->vector].extent / m->lanes;
  int64_t others = sched_nest_count(&m->nest, 0, m->nest.n_loops, m->vector) / m->nest.loops[g->tile.along].extent;
  QUERN_TRY(sched_map_begin(m, others * rows * columns));
  m->job->kern->phases[m->job->kern->n_phases - 1].block_threads = GPU_GROUP;
  kern_id task = kern_task(b), flat = kern_idiv(b, task, columns);
  for (size_t t = 0; t < g->tile.transposed.n; t++)
    g->local[t] = kern_local(b, g->tile.transposed.at[t].tensor->dtype, m->lanes * g->pitch);
  set_others(&g->tile, kern_idiv(b, flat, rows));
  kern_id row = kern_mul_i(b, kern_imod(b, flat, rows), m->lanes);
  kern_id column = kern_mul_i(b, kern_imod(b, task, columns), m->lanes);
  emit_in(g, row, column);
  emit_out(g, row, column);
  return QUERN_STATUS_OK;
}

/* Whether all outs are contiguous along the vector's loop. */
static bool outs_follow(const struct sched_map *m) {
  const struct pass_group *group = m->job->group;
  for (size_t i = 0; i < group->n_outs; i++) {
    struct sched_point point = {group->outs[i].tensor, m->nest.outs[i]};
    int64_t stride;
    if (!stride_of(m, &point, m->vector, &stride) || stride != 1) return false;
  }
  return true;
}

/* Lanes of a square of 128 bytes a side: those of a thread are accessed at once. */
static int side_of(const struct tile *tile) {
  size_t size = 1;
  for (size_t i = 0; i < tile->transposed.n; i++)
    size = BASE_MAX(size, base_dtypes[tile->transposed.at[i].tensor->dtype].size);
  return BASE_MIN(GPU_GROUP * BASE_MAX(4 / (int)size, 1), GPU_MOST_LANES);
}

quern_status sched_map_tiled_gpu(struct sched_map *m, bool *done) {
  struct gpu_tile g = {.tile = {.m = m}};
  int lanes = m->lanes, vector = m->vector;
  *done = false;
  if (m->nest.n_loops < 2) return QUERN_STATUS_OK;
  m->vector = m->nest.n_loops - 1;
  m->lanes = GPU_GROUP;
  bool may = outs_follow(m);
  if (may) QUERN_TRY(find(&g.tile));
  if (may && g.tile.transposed.n > 0) {
    m->lanes = side_of(&g.tile);
    g.pitch = m->lanes + (m->lanes == GPU_GROUP ? 1 : m->lanes / GPU_GROUP);
    *done = g.tile.transposed.n <= GPU_POINTS && m->nest.loops[g.tile.along].extent % m->lanes == 0 &&
            m->nest.loops[m->vector].extent % m->lanes == 0;
  }
  if (*done) {
    g.local = base_arena_alloc(m->nest.arena, g.tile.transposed.n * sizeof *g.local);
    return g.local != NULL ? emit_gpu(&g) : QUERN_STATUS_MEMORY;
  }
  m->lanes = lanes;
  m->vector = vector;
  return QUERN_STATUS_OK;
}
