/* sched/gpu_dot.c -- a contraction on a GPU that no library does: tiles of sums by thread blocks, split-K where tiles
** are few
** A task is a tile. Its terms pass by in stages of a double buffer in shared memory: while one stage is multiplied, the
** next is loaded into registers, and then stored to the other half. A thread's rows and columns are runs of 16 bytes,
** ACROSS runs apart, so that it loads 16 bytes at a time without bank conflicts. Where there are fewer tiles than a GPU
** has room for, the terms are divided into splits (split-K), and a second phase adds their partial sums.
** keeps: a sum is one chain over the terms of its split, in order; splits are added from the first to the last. How
**        many there are depends on extents, dtype and target only.
** see:   docs/design/007-gpu.md          tests: tests/sched/test_gpu_dot.c
*/
#include "sched/gpu_dot.h"

/* Thread blocks that an SM has at a time; terms of a split at least, and what they are a multiple of; terms and
** products that are worth a tile; and what is better done by one thread per element: many of a batch, of fewer rows and
** columns than THIN. */
enum {
  BLOCKS_PER_SM = 2,
  PART_TERMS = 512,
  PART_UNIT = 32,
  LEAST_TERMS = 8,
  LEAST_PRODUCTS = 1 << 20,
  THIN = 32,
  MANY = 4096
};

const struct pass_index *gpu_dot_sum(struct gpu_dot *t, const struct pass_index *x, int64_t by,
                                     const struct pass_index *y) {
  return pass_index_add(t->d->space, pass_index_scale(t->d->space, x, by), y);
}

/* ---- sizes -------------------------------------------------------------------------------------------------- */

void sched_choose_gpu_dot(struct sched *sched, const struct pass_group *group) {
  const struct ir_node *node = group->stages[0].node;
  double terms = 1;
  for (int i = 0; i < node->attrs->a_sum.n; i++) terms *= (double)node->src[0]->dims[node->attrs->a_sum.at[i]];
  int64_t m = dot_extents(group, group->vars[0], group->vars[1]);
  int64_t n = dot_extents(group, group->vars[0] + group->vars[1], group->vars[2]);
  int64_t count = ir_count(&node->out[0]);
  bool thin = BASE_MAX(m, n) < THIN && count >= MANY;
  if (pass_is_skinny_dot(node)) {
    sched->mr = GPU_DOT_SKINNY;
    return;
  }
  if (!thin && terms >= LEAST_TERMS && terms * (double)count >= LEAST_PRODUCTS) sched->mr = GPU_DOT_OWN;
}

/* Not where dot_alias has added variables to the space (of folds): those of tiles are right behind dot.h's. */
bool dot_is_tiled(const struct dot *d) {
  bool wanted = d->job->target->gpu && d->job->sched->mr > GPU_DOT_SKINNY && d->k > 0;
  return wanted && d->space->extents.n == GPU_DOT_ROW;
}

static int64_t tiles_of(const struct dot *d, int64_t side) {
  return d->batch * sched_ceil(d->m, side) * sched_ceil(d->n, side);
}

static void choose_sizes(struct gpu_dot *t) {
  const struct dot *d = t->d;
  int64_t large = GPU_DOT_ACROSS * GPU_DOT_OWN, small = large / 2, splits = BASE_MAX(d->k / PART_TERMS, 1);
  int64_t multiprocessors = d->job->target->multiprocessors;
  bool few = BASE_MIN(d->m, d->n) <= small || tiles_of(d, large) * splits < multiprocessors;
  t->side = few ? small : large;
  splits = BASE_MAX(BASE_MIN(splits, BLOCKS_PER_SM * multiprocessors / tiles_of(d, t->side)), 1);
  if (d->job->sched->nr > 0) t->side = d->job->sched->nr < GPU_DOT_OWN ? small : large;
  t->own = (int)t->side / GPU_DOT_ACROSS;
  t->run = 16 / BASE_MAX((int)base_dtypes[d->acc].size, 4);
  t->out_run = d->n % t->run == 0 ? t->run : 1;
  t->stride = t->side + t->run;
  t->terms = GPU_DOT_THREADS * t->run / t->side; /* a piece of each side for a thread */
  t->stages = sched_ceil(d->k, t->terms);
  t->rows = sched_ceil(d->m, t->side);
  t->columns = sched_ceil(d->n, t->side);
  t->split_stages = sched_ceil(sched_ceil(d->k, splits), PART_UNIT) * PART_UNIT / t->terms;
  t->k_splits = sched_ceil(t->stages, t->split_stages);
}

static quern_status make_space(struct gpu_dot *t) {
  struct dot *d = t->d;
  t->a = (struct gpu_dot_operand){.side = &d->a, .size = d->m};
  t->b = (struct gpu_dot_operand){.side = &d->b, .size = d->n, .begin = t->terms * t->stride};
  gpu_dot_choose(t, &t->a);
  gpu_dot_choose(t, &t->b);
  int64_t chunk = gpu_dot_chunk(t), last = chunk / t->side / GPU_DOT_ACROSS - 1;
  const int64_t extents[GPU_DOT_VARS - GPU_DOT_ROW] = {
      t->rows,
      t->columns,
      t->stages,
      t->side * t->terms / t->a.run,
      t->side * t->terms / t->b.run,
      t->side - (GPU_DOT_ACROSS - 1) * t->run - last,
      chunk,
      chunk / t->out_run,
      d->batch * d->m * d->n,
  };
  for (size_t i = 0; i < BASE_COUNT(extents); i++) (void)pass_space_add(d->space, extents[i]);
  QUERN_TRY(d->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK);
  QUERN_TRY(gpu_dot_find(t, &t->a));
  return gpu_dot_find(t, &t->b);
}

/* ---- products ----------------------------------------------------------------------------------------------- */

/* The thread's rows, or columns, of term k. */
static void load_own(struct gpu_dot *t, const struct gpu_dot_operand *s, kern_id stage, kern_id k, kern_id *out) {
  struct kern_builder *b = t->build;
  kern_id own = s == &t->a ? t->row : t->column;
  own = gpu_dot_times(t, GPU_DOT_THREADS, own, t->run);
  kern_id begin = kern_add_i(b, kern_mul_i(b, k, t->stride), s->begin);
  for (int i = 0; i < t->own; i += t->run) {
    kern_id mem = kern_at(b, stage, kern_add_i(b, begin, (int64_t)i * GPU_DOT_ACROSS));
    kern_id some = kern_gather_n(b, mem, own, t->run);
    for (int x = 0; x < t->run; x++) out[i + x] = kern_deinterleave(b, some, t->run, x);
  }
}

/* One term: all sums of the thread. */
static void multiply_term(struct gpu_dot *t, kern_id stage, kern_id k) {
  struct kern_builder *b = t->build;
  kern_id x[GPU_DOT_OWN], y[GPU_DOT_OWN];
  load_own(t, &t->a, stage, k, x);
  load_own(t, &t->b, stage, k, y);
  for (int m = 0; m < t->own; m++) {
    for (int n = 0; n < t->own; n++) {
      kern_id var = t->sums[m * t->own + n];
      kern_set(b, var, dot_term(t->d, b, kern_get(b, var), x[m], y[n]));
    }
  }
}

/* All terms of a stage, written out: what is loaded for one comes while others are multiplied. */
static void multiply_all(struct gpu_dot *t, kern_id stage) {
  for (int64_t k = 0; k < t->terms; k++) multiply_term(t, stage, kern_index(t->build, k));
}

/* The terms of a stage before `end`, in a loop. */
static void multiply_some(struct gpu_dot *t, kern_id stage, kern_id end) {
  kern_id zero = kern_index(t->build, 0), k = kern_for(t->build, zero, end, 1);
  multiply_term(t, stage, k);
  kern_end(t->build);
}

/* ---- stages ------------------------------------------------------------------------------------------------- */

struct fetched {
  kern_id a[GPU_DOT_PIECES], b[GPU_DOT_PIECES];
};

/* The stage, or the last there is. */
static void load_stage(struct gpu_dot *t, kern_id stage, struct fetched *x) {
  stage = kern_min_i(t->build, stage, t->stages - 1);
  gpu_dot_load(t, &t->a, stage, x->a);
  gpu_dot_load(t, &t->b, stage, x->b);
}

static void store_stage(struct gpu_dot *t, kern_id to, const struct fetched *x) {
  gpu_dot_store_shared(t, &t->a, to, x->a);
  gpu_dot_store_shared(t, &t->b, to, x->b);
}

/* Multiplies the stage that half `now` holds, and fills the other with the next. */
static void iteration(struct gpu_dot *t, kern_id now, kern_id other, kern_id next) {
  struct fetched x;
  load_stage(t, next, &x);
  multiply_all(t, now);
  store_stage(t, other, &x);
}

/* The stages of the split: pairs of whole ones, then what is left. */
static void each_stage(struct gpu_dot *t, const kern_id half[2]) {
  struct kern_builder *b = t->build;
  int64_t terms = t->terms, left = t->d->k % (2 * terms);
  kern_id first = kern_mul_i(b, t->k_split, t->split_stages), whole = kern_index(b, t->d->k / terms);
  kern_id count = kern_min_i(b, kern_sub(b, whole, first), t->split_stages);
  kern_id end = kern_add(b, first, kern_mul_i(b, kern_idiv(b, count, 2), 2));
  struct fetched x;
  load_stage(t, first, &x);
  store_stage(t, half[0], &x);
  kern_id stage = kern_for(b, first, end, 2);
  kern_values_enter(t->values);
  iteration(t, half[0], half[1], kern_add_i(b, stage, 1));
  iteration(t, half[1], half[0], kern_add_i(b, stage, 2));
  kern_values_leave(t->values);
  kern_end(b);
  if (left == 0) return;
  kern_id last = kern_index(b, t->d->k), rest = kern_sub(b, last, kern_mul_i(b, end, terms));
  if (t->k_splits > 1) { /* only the last split ends with the terms */
    kern_id next = kern_add_i(b, first, t->split_stages);
    rest = kern_min(b, rest, kern_mul_i(b, kern_sub(b, next, end), terms));
  }
  if (left > terms) load_stage(t, kern_add_i(b, end, 1), &x);
  multiply_some(t, half[0], kern_min_i(b, rest, terms));
  if (left <= terms) return;
  store_stage(t, half[1], &x);
  multiply_some(t, half[1], kern_min_i(b, kern_add_i(b, rest, -terms), terms));
}

/* ---- the phase ---------------------------------------------------------------------------------------------- */

/* Threads of a warp are 4 rows of 8, squares of 2 x 2 one after another: so that neighbors load the same 16 bytes of
** either side. */
static void place_thread(struct gpu_dot *t) {
  struct kern_builder *b = t->build;
  int n = GPU_DOT_THREADS;
  kern_id lane = kern_lane(b, QUERN_DTYPE_I64, n), square = kern_idiv(b, lane, 4), warp = kern_idiv(b, lane, 32);
  kern_id row = kern_imod(b, kern_idiv(b, lane, 2), 2), column = kern_imod(b, lane, 2);
  row = kern_add(b, row, gpu_dot_times(t, n, kern_imod(b, kern_idiv(b, square, 4), 2), 2));
  column = kern_add(b, column, gpu_dot_times(t, n, kern_imod(b, square, 4), 2));
  t->row = kern_add(b, row, gpu_dot_times(t, n, kern_idiv(b, warp, 2), 4));
  t->column = kern_add(b, column, gpu_dot_times(t, n, kern_imod(b, warp, 2), 8));
}

/* Which tile, and which split. */
static void place_task(struct gpu_dot *t) {
  struct kern_builder *b = t->build;
  kern_id task = kern_task(b), line = kern_idiv(b, task, t->columns), split = kern_idiv(b, line, t->rows);
  kern_values_set(t->values, GPU_DOT_COL, kern_imod(b, task, t->columns), 1, KERN_NONE);
  kern_values_set(t->values, GPU_DOT_ROW, kern_imod(b, line, t->rows), 1, KERN_NONE);
  t->k_split = t->k_splits > 1 ? kern_imod(b, split, t->k_splits) : kern_index(b, 0);
  kern_values_set(t->values, DOT_BATCH, kern_idiv(b, split, t->k_splits), 1, KERN_NONE);
}

static quern_status build(struct gpu_dot *t) {
  struct dot *d = t->d;
  struct kern *kern = d->job->kern;
  int64_t tasks = d->batch * t->k_splits * t->rows * t->columns, stage = 2 * t->terms * t->stride;
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(tasks))}, *b = &builder;
  QUERN_TRY(kern->failed);
  kern->phases[kern->n_phases - 1].block_threads = GPU_DOT_THREADS;
  int words = (int)BASE_MAX(base_dtypes[d->acc].size, 4) / 4;
  kern->phases[kern->n_phases - 1].min_blocks_per_sm = BLOCKS_PER_SM / words; /* 128 registers a thread */
  QUERN_TRY(dot_values(d, b, &t->values));
  t->build = b;
  place_task(t);
  place_thread(t);
  kern_id half[2] = {kern_local(b, d->acc, BASE_MAX(stage, gpu_dot_chunk(t))), KERN_NONE};
  half[1] = kern_local(b, d->acc, stage);
  kern_id none = kern_neutral(b, d->reduce, d->acc, GPU_DOT_THREADS);
  for (int i = 0; i < t->own * t->own; i++) t->sums[i] = kern_var(b, none);
  each_stage(t, half);
  quern_status status = gpu_dot_epilogue(t, half[0]);
  kern_values_free(t->values);
  t->values = NULL;
  return status;
}

quern_status gpu_dot(struct dot *d) {
  struct gpu_dot t = {.d = d, .work = -1};
  choose_sizes(&t);
  QUERN_TRY(make_space(&t));
  if (t.k_splits > 1) t.work = kern_add_mem(d->job->kern, d->acc, KERN_WORK, t.k_splits * d->batch * d->m * d->n);
  QUERN_TRY(build(&t));
  return t.k_splits > 1 ? gpu_dot_add_splits(&t) : QUERN_STATUS_OK;
}
