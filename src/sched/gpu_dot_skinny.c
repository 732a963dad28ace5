/* sched/gpu_dot_skinny.c -- skinny products (GEMV and the like) on a GPU: few rows by a large matrix, limited by reading it
** Every element of the matrix is read once, 16 bytes per thread, whichever of its axes is contiguous:
** - along the terms, as weights of layers (out, in) lie: a thread block has some columns, lanes run along the terms, and
**   the threads' sums are joined by HREDUCE;
** - along the columns: a thread block is a warp whose lanes are columns, and the terms are divided into splits (split-K)
**   that a second phase adds, where columns are too few to keep the GPU busy.
** Operands are values of graph nodes, so that casts and other elementwise operations before the product are done in
** registers; the epilogue of the group is done with the sums.
** keeps: the order of sums depends on extents, dtype and target only: in a thread terms in order, then HREDUCE; splits
**        from the first to the last
** see:   pass_is_skinny_dot (which products), dot_skinny.c (CPUs)      tests: tests/sched/test_gpu_dot_skinny.c
*/
#include "sched/gpu_dot.h"
#include "sched/nest.h"

enum { WARP = 32, MOST_THREADS = 256, MOST_COLUMNS = 8, MOST_SUMS = 32, MOST_STEPS = 16 };

/* Steps of a thread block along the terms that are worth more of them than threads; thread blocks, and warps across
** columns, that an SM should have; pieces of 16 bytes that a thread has under way; splits, and terms of a split. */
enum {
  STEPS = 3,
  BLOCKS_PER_SM = 8,
  WARPS_PER_SM = 8,
  PIECES = 24,
  MOST_SPLITS = 32,
  LEAST_SPLIT = 8,
  ACROSS_TERMS = 8
};

struct skinny {
  struct dot *d;
  const struct dot_operand *few, *wide; /* the operand of few rows; the large one, whose rows are called columns here */
  int64_t rows, columns;
  int threads, run, lanes;  /* of a thread block; neighbors that a thread loads; both together */
  int block_columns, steps; /* along the terms: columns of a thread block, steps that are loaded before they are used */
  int64_t k_splits, split_terms, blocks; /* across: splits; either way: thread blocks side by side */
  int work;                              /* partial sums of splits; -1: there is one split */
  struct kern_builder *b;
  struct kern_values *values;
  kern_id block, first, batch; /* of the task: its number among `blocks`, its first column, its number of the batch */
  kern_id sums[MOST_SUMS];
  struct kern_values *ends[MOST_SUMS]; /* along the terms: of the epilogue of each sum */
};

/* ---- sizes -------------------------------------------------------------------------------------------------- */

/* Elements of 16 bytes of the matrix, no more than divide an extent. */
static int run_of(const struct skinny *s, int64_t extent) {
  const quern_tensor *t = s->wide->tensor;
  while (t->node->n_src == 1 && t->node->op == IR_CAST) t = t->node->src[0];
  int run = 16 / (int)BASE_MAX(base_dtypes[t->dtype].size, 2);
  while (run > 1 && extent % run != 0) run /= 2;
  return run;
}

static int64_t power_below(int64_t n) {
  int64_t p = 1;
  while (2 * p <= n) p *= 2;
  return p;
}

static void choose_along(struct skinny *s) {
  const struct dot *d = s->d;
  int64_t enough = (int64_t)BLOCKS_PER_SM * d->job->target->multiprocessors;
  s->run = run_of(s, d->k);
  s->threads = (int)BASE_MIN(BASE_MAX(power_below(d->k / s->run / STEPS), WARP), MOST_THREADS);
  s->lanes = s->threads * s->run;
  int64_t most = BASE_MIN(MOST_COLUMNS, MOST_SUMS / s->rows);
  s->block_columns = (int)power_below(BASE_MAX(BASE_MIN(d->batch * s->columns / enough, most), 1));
  int64_t steps = BASE_MAX(PIECES / (s->block_columns + s->rows), 1);
  s->steps = (int)BASE_MIN(BASE_MIN(steps, sched_ceil(d->k, s->lanes)), MOST_STEPS);
  s->blocks = sched_ceil(s->columns, s->block_columns);
}

/* Partial sums are added by a phase of tiles, whose variables the kernel's space may not have; they lie row by row. */
static void choose_across(struct skinny *s) {
  const struct dot *d = s->d;
  int64_t enough = (int64_t)WARPS_PER_SM * d->job->target->multiprocessors;
  s->threads = WARP;
  s->run = run_of(s, s->columns);
  while (s->run > 2 && d->batch * sched_ceil(s->columns, WARP * s->run) * MOST_SPLITS < enough) s->run /= 2;
  s->lanes = WARP * s->run;
  s->blocks = sched_ceil(s->columns, s->lanes);
  bool may = d->space->extents.n == GPU_DOT_ROW && s->wide->own == DOT_COL;
  int64_t splits = may ? BASE_MIN(enough / (d->batch * s->blocks), BASE_MIN(d->k / LEAST_SPLIT, MOST_SPLITS)) : 1;
  s->split_terms = sched_ceil(sched_ceil(d->k, BASE_MAX(splits, 1)), ACROSS_TERMS) * ACROSS_TERMS;
  s->k_splits = sched_ceil(d->k, s->split_terms);
}

/* ---- operands ----------------------------------------------------------------------------------------------- */

static kern_id get_operand(struct skinny *s, const struct dot_operand *side) {
  kern_id x = kern_values_get(s->values, side->tensor, side->tensor->rank, side->at);
  return kern_cast(s->b, x, s->d->acc);
}

static void set_scalar(struct skinny *s, int axis, kern_id value) {
  kern_values_set(s->values, axis, value, 1, KERN_NONE);
}

static void set_row(struct skinny *s, int64_t row) { set_scalar(s, s->few->own, kern_index(s->b, row)); }

/* Column number i of the task; those behind the last repeat it. */
static kern_id column_of(struct skinny *s, int64_t i) {
  kern_id column = kern_add_i(s->b, s->first, i);
  return s->columns % s->block_columns != 0 ? kern_min_i(s->b, column, s->columns - 1) : column;
}

/* ---- along the terms ---------------------------------------------------------------------------------------- */

static kern_id element_of(struct skinny *s, kern_id x, int i) {
  return s->run > 1 ? kern_deinterleave(s->b, x, s->run, i) : x;
}

/* The sum of a thread with `run` more products; active: lanes that count. */
static void add_products(struct skinny *s, kern_id var, kern_id x, kern_id w, kern_id active) {
  struct kern_builder *b = s->b;
  kern_id old = kern_get(b, var), sum = old;
  for (int i = 0; i < s->run; i++) {
    kern_id left = element_of(s, x, i);
    sum = dot_term(s->d, b, sum, left, element_of(s, w, i));
  }
  if (active != KERN_NONE) {
    kern_id lane = kern_lane(b, QUERN_DTYPE_I64, s->threads);
    lane = kern_mul(b, lane, kern_const_i(b, QUERN_DTYPE_I64, s->threads, s->run));
    sum = kern_select(b, kern_bin(b, KERN_LT, lane, kern_splat(b, active, s->threads)), sum, old);
  }
  kern_set(b, var, sum);
}

/* Steps from term `base` on; of the last one `active` lanes count (KERN_NONE: all). All of the matrix is loaded before
** anything is multiplied. */
static void take_steps(struct skinny *s, kern_id base, int n, kern_id active) {
  struct kern_builder *b = s->b;
  kern_id w[MOST_STEPS][MOST_COLUMNS], at[MOST_STEPS], left[MOST_STEPS];
  for (int i = 0; i < n; i++) {
    at[i] = kern_add_i(b, base, (int64_t)i * s->lanes);
    left[i] = i + 1 == n ? active : KERN_NONE;
    for (int c = 0; c < s->block_columns; c++) {
      set_scalar(s, s->wide->own, column_of(s, c));
      kern_values_set(s->values, DOT_TERM, at[i], s->lanes, left[i]);
      w[i][c] = kern_splat(b, get_operand(s, s->wide), s->lanes);
      set_scalar(s, DOT_TERM, at[i]);
    }
  }
  for (int i = 0; i < n; i++) {
    for (int64_t row = 0; row < s->rows; row++) {
      set_row(s, row);
      kern_values_set(s->values, DOT_TERM, at[i], s->lanes, left[i]);
      kern_id x = kern_splat(b, get_operand(s, s->few), s->lanes);
      set_scalar(s, DOT_TERM, at[i]);
      for (int c = 0; c < s->block_columns; c++)
        add_products(s, s->sums[row * s->block_columns + c], x, w[i][c], left[i]);
    }
  }
}

static void take_terms(struct skinny *s) {
  struct kern_builder *b = s->b;
  int64_t step = (int64_t)s->steps * s->lanes, whole = s->d->k / step * step, rest = s->d->k - whole;
  kern_id zero = kern_index(b, 0);
  if (whole == step) take_steps(s, zero, s->steps, KERN_NONE);
  if (whole > step) {
    kern_id base = kern_for(b, zero, kern_index(b, whole), step);
    kern_values_enter(s->values);
    take_steps(s, base, s->steps, KERN_NONE);
    kern_values_leave(s->values);
    kern_end(b);
  }
  if (rest == 0) return;
  kern_id active = rest % s->lanes != 0 ? kern_index(b, rest % s->lanes) : KERN_NONE;
  take_steps(s, kern_index(b, whole), (int)sched_ceil(rest, s->lanes), active);
}

/* ---- along the terms: the epilogue ---------------------------------------------------------------------------- */

struct search {
  struct skinny *s;
  struct kern_values *values;
};

static bool load_in(void *user, const struct sched_point *point) {
  struct search *search = user;
  const struct pass_group *group = &search->s->d->group;
  if (point->tensor == &search->s->d->node->out[0]) return false;
  for (size_t i = 0; i < group->n_ins; i++)
    if (group->ins[i] == point->tensor) (void)sched_point_get(search->values, point);
  return true;
}

/* Loads what the epilogue of a sum reads, so that it is there when the sum is: what is loaded behind a barrier, or behind
** the store of another sum, is waited for. */
static void load_early(struct skinny *s, struct kern_values *values) {
  struct dot *d = s->d;
  struct sched_nest nest = {.job = &d->inner, .arena = &d->arena};
  struct search search = {s, values};
  struct sched_walk walk;
  sched_walk_init(&walk, &nest);
  for (size_t i = 0; i < d->group.n_outs; i++)
    sched_walk_run(&walk, d->group.outs[i].tensor, d->made[i], load_in, &search);
  if (walk.failed && s->b->kern->failed == QUERN_STATUS_OK) s->b->kern->failed = QUERN_STATUS_MEMORY;
  sched_walk_fini(&walk);
}

static quern_status begin_ends(struct skinny *s) {
  struct kern_builder *b = s->b;
  for (int i = 0; i < (int)s->rows * s->block_columns; i++) {
    QUERN_TRY(dot_values(s->d, b, &s->ends[i]));
    kern_values_for_gpu(s->ends[i]);
    kern_values_set(s->ends[i], DOT_BATCH, s->batch, 1, KERN_NONE);
    kern_values_set(s->ends[i], s->few->own, kern_index(b, i / s->block_columns), 1, KERN_NONE);
    kern_values_set(s->ends[i], s->wide->own, column_of(s, i % s->block_columns), 1, KERN_NONE);
    load_early(s, s->ends[i]);
  }
  return b->kern->failed;
}

static enum kern_op joining(enum ir_reduce reduce) {
  return reduce == IR_SUM ? KERN_ADD : reduce == IR_PROD ? KERN_MUL : reduce == IR_REDUCE_MAX ? KERN_MAX : KERN_MIN;
}

/* What HREDUCE joins in neighboring instructions is exchanged between warps with one barrier. */
static void finish_along(struct skinny *s) {
  struct kern_builder *b = s->b;
  int n = (int)s->rows * s->block_columns;
  kern_id total[MOST_SUMS];
  for (int i = 0; i < n; i++) total[i] = kern_get(b, s->sums[i]);
  for (int i = 0; i < n; i++) total[i] = kern_hreduce(b, joining(s->d->reduce), total[i]);
  for (int i = 0; i < n; i++) {
    int c = i % s->block_columns;
    bool may_miss = s->columns % s->block_columns != 0 && c > 0;
    if (may_miss) {
      kern_id column = kern_add_i(b, s->first, c);
      kern_if(b, kern_bin(b, KERN_LT, column, kern_index(b, s->columns)));
    }
    kern_values_enter(s->ends[i]);
    dot_finish(s->d, b, s->ends[i], total[i], KERN_NONE);
    kern_values_leave(s->ends[i]);
    if (may_miss) kern_end(b);
  }
}

static quern_status along_phase(struct skinny *s) {
  kern_id none = kern_neutral(s->b, s->d->reduce, s->d->acc, s->threads);
  s->first = kern_mul_i(s->b, s->block, s->block_columns);
  quern_status status = begin_ends(s);
  for (int i = 0; i < (int)s->rows * s->block_columns; i++) s->sums[i] = kern_var(s->b, none);
  if (status == QUERN_STATUS_OK) {
    take_terms(s);
    finish_along(s);
  }
  for (int i = 0; i < MOST_SUMS; i++) kern_values_free(s->ends[i]);
  return status;
}

/* ---- across the terms ---------------------------------------------------------------------------------------- */

/* n terms from k on, whose rows of the matrix are loaded before they are multiplied; active: columns that count. */
static void take_rows(struct skinny *s, kern_id k, int n, kern_id active) {
  struct kern_builder *b = s->b;
  kern_id w[ACROSS_TERMS], at[ACROSS_TERMS];
  kern_values_enter(s->values);
  for (int i = 0; i < n; i++) {
    at[i] = kern_add_i(b, k, i);
    set_scalar(s, DOT_TERM, at[i]);
    kern_values_set(s->values, s->wide->own, s->first, s->lanes, active);
    w[i] = kern_splat(b, get_operand(s, s->wide), s->lanes);
    set_scalar(s, s->wide->own, s->first);
  }
  for (int i = 0; i < n; i++) {
    for (int64_t row = 0; row < s->rows; row++) {
      set_row(s, row);
      set_scalar(s, DOT_TERM, at[i]);
      kern_id x = kern_splat(b, get_operand(s, s->few), s->lanes);
      kern_set(b, s->sums[row], dot_term(s->d, b, kern_get(b, s->sums[row]), x, w[i]));
    }
  }
  kern_values_leave(s->values);
}

/* The outs of a row at the columns that are set; all are computed before any is stored: an out may have the memory of an
** in. */
static void store_row(struct skinny *s, kern_id sum, kern_id active) {
  struct kern_builder *b = s->b;
  struct dot *d = s->d;
  const quern_tensor *result = &d->node->out[0];
  kern_id x[KERN_MAX_MEMS], mask = KERN_NONE;
  kern_values_bind(s->values, result, result->rank, d->result, kern_cast(b, sum, result->dtype));
  for (size_t i = 0; i < d->group.n_outs; i++) {
    const quern_tensor *out = d->group.outs[i].tensor;
    x[i] = kern_splat(b, kern_values_get(s->values, out, out->rank, d->made[i]), s->lanes);
  }
  kern_values_unbind(s->values, result);
  if (active != KERN_NONE) {
    kern_id lane = kern_lane(b, QUERN_DTYPE_I64, s->lanes);
    mask = kern_bin(b, KERN_LT, lane, kern_splat(b, active, s->lanes));
  }
  for (size_t i = 0; i < d->group.n_outs; i++) {
    const quern_tensor *out = d->group.outs[i].tensor;
    const struct pass_index *offset = pass_index_flat(d->space, out->rank, out->dims, d->outs[i]);
    kern_id mem = sched_out_mem(&d->inner, b, i);
    int64_t stride;
    if (pass_index_stride(d->space, offset, s->wide->own, &stride) && stride == 1) {
      kern_store_n(b, mem, kern_values_first(s->values, offset), x[i], active);
      continue;
    }
    kern_id at = kern_splat(b, kern_values_index(s->values, offset), s->lanes);
    kern_scatter_n(b, mem, at, x[i], mask);
  }
}

static void finish_across(struct skinny *s, kern_id split, kern_id active) {
  struct kern_builder *b = s->b;
  const struct dot *d = s->d;
  for (int64_t row = 0; row < s->rows; row++) {
    kern_id sum = kern_get(b, s->sums[row]);
    if (s->work >= 0) {
      kern_id line = kern_add(b, kern_mul_i(b, split, d->batch), s->batch);
      line = kern_add_i(b, kern_mul_i(b, line, d->m), row);
      kern_id at = kern_add(b, kern_mul_i(b, line, d->n), s->first), mem = kern_mem(b, s->work);
      kern_store_n(b, mem, at, sum, active);
      continue;
    }
    kern_values_enter(s->values);
    set_row(s, row);
    kern_values_set(s->values, s->wide->own, s->first, s->lanes, active);
    store_row(s, sum, active);
    set_scalar(s, s->wide->own, s->first);
    kern_values_leave(s->values);
  }
}

static void across_phase(struct skinny *s, kern_id split) {
  struct kern_builder *b = s->b;
  kern_id none = kern_neutral(b, s->d->reduce, s->d->acc, s->lanes), active = KERN_NONE;
  s->first = kern_mul_i(b, s->block, s->lanes);
  if (s->columns % s->lanes != 0) {
    kern_id end = kern_index(b, s->columns);
    active = kern_min_i(b, kern_sub(b, end, s->first), s->lanes);
  }
  for (int64_t row = 0; row < s->rows; row++) s->sums[row] = kern_var(b, none);
  kern_id lo = kern_mul_i(b, split, s->split_terms);
  kern_id hi = kern_min_i(b, kern_add_i(b, lo, s->split_terms), s->d->k);
  kern_id whole = kern_mul_i(b, kern_idiv(b, kern_sub(b, hi, lo), ACROSS_TERMS), ACROSS_TERMS);
  whole = kern_add(b, lo, whole);
  take_rows(s, kern_for(b, lo, whole, ACROSS_TERMS), ACROSS_TERMS, active);
  kern_end(b);
  if (s->d->k % ACROSS_TERMS != 0) {
    take_rows(s, kern_for(b, whole, hi, 1), 1, active);
    kern_end(b);
  }
  finish_across(s, split, active);
}

/* ---- the kernel ----------------------------------------------------------------------------------------------- */

static quern_status build(struct skinny *s, bool along) {
  struct dot *d = s->d;
  struct kern *kern = d->job->kern;
  int64_t tasks = d->batch * s->k_splits * s->blocks;
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(tasks))}, *b = &builder;
  QUERN_TRY(kern->failed);
  kern->phases[kern->n_phases - 1].block_threads = s->threads;
  QUERN_TRY(dot_values(d, b, &s->values));
  kern_values_for_gpu(s->values);
  s->b = b;
  kern_id task = kern_task(b), line = kern_idiv(b, task, s->blocks);
  s->block = kern_imod(b, task, s->blocks);
  s->batch = kern_idiv(b, line, s->k_splits);
  set_scalar(s, DOT_BATCH, s->batch);
  quern_status status = QUERN_STATUS_OK;
  if (along)
    status = along_phase(s);
  else
    across_phase(s, kern_imod(b, line, s->k_splits));
  kern_values_free(s->values);
  s->values = NULL;
  if (status != QUERN_STATUS_OK) return status;
  return d->space->failed ? QUERN_STATUS_MEMORY : kern->failed;
}

/* The phase that adds the splits, of which a tile's sums know how. */
static quern_status add_splits(struct skinny *s) {
  struct dot *d = s->d;
  struct gpu_dot t = {.d = d, .work = s->work, .k_splits = s->k_splits};
  t.run = 16 / BASE_MAX((int)base_dtypes[d->acc].size, 4);
  for (int v = GPU_DOT_ROW; v < GPU_DOT_FLAT; v++) (void)pass_space_add(d->space, 1);
  (void)pass_space_add(d->space, d->batch * d->m * d->n);
  QUERN_TRY(d->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK);
  return gpu_dot_add_splits(&t);
}

bool dot_is_gpu_skinny(const struct dot *d) {
  return d->job->target->gpu && d->job->sched->mr == GPU_DOT_SKINNY && d->k > 0 &&
         BASE_MIN(d->m, d->n) <= PASS_SKINNY_ROWS;
}

quern_status gpu_dot_skinny(struct dot *d) {
  bool swapped = d->n < d->m;
  struct skinny s = {.d = d, .k_splits = 1, .block_columns = 1, .work = -1};
  s.few = swapped ? &d->b : &d->a;
  s.wide = swapped ? &d->a : &d->b;
  s.rows = swapped ? d->n : d->m;
  s.columns = swapped ? d->m : d->n;
  bool along = (s.wide->own == DOT_ROW) != s.wide->across;
  (along ? choose_along : choose_across)(&s);
  if (s.k_splits > 1) s.work = kern_add_mem(d->job->kern, d->acc, KERN_WORK, s.k_splits * d->batch * d->m * d->n);
  QUERN_TRY(build(&s, along));
  return s.k_splits > 1 ? add_splits(&s) : QUERN_STATUS_OK;
}
