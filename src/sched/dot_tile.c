/* sched/dot_tile.c -- a contraction on a GPU that no library does: tiles of sums by groups of threads
** A task is a tile. Its terms pass by in stages through two halves of shared memory: while one is multiplied, the next
** is loaded into registers, and then stored to the other half. A thread's rows and columns are runs of 16 bytes, ACROSS
** runs apart, so that it loads 16 bytes at a time. Where there are fewer tiles than a GPU has room for, terms are cut
** into parts, and a second phase adds them.
** keeps: a sum is one chain over the terms of its part, in order; parts are added from the first to the last. How many
**        there are depends on extents, dtype and target only.
** see:   docs/design/007-gpu.md          tests: tests/sched/test_dot_tile.c
*/
#include "sched/dot_tile.h"

/* Groups that a processor has at a time; terms of a part at least, and what they are a multiple of; terms and products that are
** worth a tile; and what is better done by a thread an element: many of a batch, of fewer rows and columns than THIN. */
enum {
  BESIDE = 2,
  PART_TERMS = 512,
  PART_UNIT = 32,
  LEAST_TERMS = 8,
  LEAST_PRODUCTS = 1 << 20,
  THIN = 32,
  MANY = 4096
};

const struct pass_index *dot_tile_sum(struct dot_tile *t, const struct pass_index *x, int64_t by,
                                      const struct pass_index *y) {
  return pass_index_add(t->d->space, pass_index_scale(t->d->space, x, by), y);
}

/* ---- sizes -------------------------------------------------------------------------------------------------- */

void sched_choose_tile(struct sched *sched, const struct pass_group *group) {
  const struct ir_node *node = group->stages[0].node;
  double terms = 1;
  for (int i = 0; i < node->attrs->a_sum.n; i++) terms *= (double)node->src[0]->dims[node->attrs->a_sum.at[i]];
  int64_t m = dot_extents(group, group->vars[0], group->vars[1]);
  int64_t n = dot_extents(group, group->vars[0] + group->vars[1], group->vars[2]);
  int64_t count = ir_count(&node->out[0]);
  bool thin = BASE_MAX(m, n) < THIN && count >= MANY;
  if (!thin && terms >= LEAST_TERMS && terms * (double)count >= LEAST_PRODUCTS) sched->mr = DOT_TILE_OWN;
}

/* Not where dot_alias has added variables to the space (of folds): those of tiles are right behind dot.h's. */
bool dot_is_tiled(const struct dot *d) {
  bool wanted = d->job->target->gpu && d->job->sched->mr > 0 && d->k > 0;
  return wanted && d->space->extents.n == DOT_TILE_ROW;
}

static int64_t tiles_of(const struct dot *d, int64_t side) {
  return d->batch * sched_ceil(d->m, side) * sched_ceil(d->n, side);
}

static void choose_sizes(struct dot_tile *t) {
  const struct dot *d = t->d;
  int64_t large = DOT_TILE_ACROSS * DOT_TILE_OWN, small = large / 2, parts = BASE_MAX(d->k / PART_TERMS, 1);
  int64_t processors = d->job->target->multiprocessors;
  bool few = BASE_MIN(d->m, d->n) <= small || tiles_of(d, large) * parts < processors;
  t->side = few ? small : large;
  parts = BASE_MAX(BASE_MIN(parts, BESIDE * processors / tiles_of(d, t->side)), 1);
  if (d->job->sched->nr > 0) t->side = d->job->sched->nr < DOT_TILE_OWN ? small : large;
  t->own = (int)t->side / DOT_TILE_ACROSS;
  t->run = 16 / BASE_MAX((int)base_dtypes[d->acc].size, 4);
  t->out_run = d->n % t->run == 0 ? t->run : 1;
  t->stride = t->side + t->run;
  t->terms = DOT_TILE_THREADS * t->run / t->side; /* a piece of each side for a thread */
  t->stages = sched_ceil(d->k, t->terms);
  t->rows = sched_ceil(d->m, t->side);
  t->columns = sched_ceil(d->n, t->side);
  t->each = sched_ceil(sched_ceil(d->k, parts), PART_UNIT) * PART_UNIT / t->terms;
  t->parts = sched_ceil(t->stages, t->each);
}

static quern_status make_space(struct dot_tile *t) {
  struct dot *d = t->d;
  t->a = (struct dot_tile_side){.side = &d->a, .size = d->m};
  t->b = (struct dot_tile_side){.side = &d->b, .size = d->n, .begin = t->terms * t->stride};
  dot_tile_choose(t, &t->a);
  dot_tile_choose(t, &t->b);
  int64_t chunk = dot_tile_chunk(t), last = chunk / t->side / DOT_TILE_ACROSS - 1;
  const int64_t extents[DOT_TILE_VARS - DOT_TILE_ROW] = {
      t->rows,
      t->columns,
      t->stages,
      t->side * t->terms / t->a.run,
      t->side * t->terms / t->b.run,
      t->side - (DOT_TILE_ACROSS - 1) * t->run - last,
      chunk,
      chunk / t->out_run,
      d->batch * d->m * d->n,
  };
  for (size_t i = 0; i < BASE_COUNT(extents); i++) (void)pass_space_add(d->space, extents[i]);
  QUERN_TRY(d->space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK);
  QUERN_TRY(dot_tile_find(t, &t->a));
  return dot_tile_find(t, &t->b);
}

/* ---- products ----------------------------------------------------------------------------------------------- */

/* The thread's rows, or columns, of term k. */
static void load_own(struct dot_tile *t, const struct dot_tile_side *s, kern_id stage, kern_id k, kern_id *out) {
  struct kern_builder *b = t->build;
  kern_id own = s == &t->a ? t->row : t->column;
  own = dot_tile_times(t, DOT_TILE_THREADS, own, t->run);
  kern_id begin = kern_add_i(b, kern_mul_i(b, k, t->stride), s->begin);
  for (int i = 0; i < t->own; i += t->run) {
    kern_id mem = kern_at(b, stage, kern_add_i(b, begin, (int64_t)i * DOT_TILE_ACROSS));
    kern_id some = kern_gather_n(b, mem, own, t->run);
    for (int x = 0; x < t->run; x++) out[i + x] = kern_pick(b, some, t->run, x);
  }
}

/* One term: all sums of the thread. */
static void multiply_term(struct dot_tile *t, kern_id stage, kern_id k) {
  struct kern_builder *b = t->build;
  kern_id x[DOT_TILE_OWN], y[DOT_TILE_OWN];
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
static void multiply_all(struct dot_tile *t, kern_id stage) {
  for (int64_t k = 0; k < t->terms; k++) multiply_term(t, stage, kern_index(t->build, k));
}

/* Those before `end`. */
static void multiply_some(struct dot_tile *t, kern_id stage, kern_id end) {
  kern_id zero = kern_index(t->build, 0), k = kern_for(t->build, zero, end, 1);
  multiply_term(t, stage, k);
  kern_end(t->build);
}

/* ---- stages ------------------------------------------------------------------------------------------------- */

struct fetched {
  kern_id a[DOT_TILE_PIECES], b[DOT_TILE_PIECES];
};

/* The stage, or the last there is. */
static void fetch(struct dot_tile *t, kern_id stage, struct fetched *x) {
  stage = kern_min_i(t->build, stage, t->stages - 1);
  dot_tile_fetch(t, &t->a, stage, x->a);
  dot_tile_fetch(t, &t->b, stage, x->b);
}

static void keep(struct dot_tile *t, kern_id to, const struct fetched *x) {
  dot_tile_keep(t, &t->a, to, x->a);
  dot_tile_keep(t, &t->b, to, x->b);
}

/* Multiplies the stage that half `now` holds, and fills the other with the next. */
static void turn(struct dot_tile *t, kern_id now, kern_id other, kern_id next) {
  struct fetched x;
  fetch(t, next, &x);
  multiply_all(t, now);
  keep(t, other, &x);
}

/* The stages of the part: pairs of whole ones, then what is left. */
static void each_stage(struct dot_tile *t, const kern_id half[2]) {
  struct kern_builder *b = t->build;
  int64_t terms = t->terms, left = t->d->k % (2 * terms);
  kern_id first = kern_mul_i(b, t->part, t->each), whole = kern_index(b, t->d->k / terms);
  kern_id count = kern_min_i(b, kern_sub(b, whole, first), t->each);
  kern_id end = kern_add(b, first, kern_mul_i(b, kern_idiv(b, count, 2), 2));
  struct fetched x;
  fetch(t, first, &x);
  keep(t, half[0], &x);
  kern_id stage = kern_for(b, first, end, 2);
  kern_values_enter(t->values);
  turn(t, half[0], half[1], kern_add_i(b, stage, 1));
  turn(t, half[1], half[0], kern_add_i(b, stage, 2));
  kern_values_leave(t->values);
  kern_end(b);
  if (left == 0) return;
  kern_id last = kern_index(b, t->d->k), rest = kern_sub(b, last, kern_mul_i(b, end, terms));
  if (t->parts > 1) { /* only the last part ends with the terms */
    kern_id next = kern_add_i(b, first, t->each);
    rest = kern_min(b, rest, kern_mul_i(b, kern_sub(b, next, end), terms));
  }
  if (left > terms) fetch(t, kern_add_i(b, end, 1), &x);
  multiply_some(t, half[0], kern_min_i(b, rest, terms));
  if (left <= terms) return;
  keep(t, half[1], &x);
  multiply_some(t, half[1], kern_min_i(b, kern_add_i(b, rest, -terms), terms));
}

/* ---- the phase ---------------------------------------------------------------------------------------------- */

/* Threads of a warp are 4 rows of 8, squares of 2 x 2 one after another: so that neighbors load the same 16 bytes of
** either side. */
static void place_thread(struct dot_tile *t) {
  struct kern_builder *b = t->build;
  int n = DOT_TILE_THREADS;
  kern_id lane = kern_lane(b, QUERN_DTYPE_I64, n), square = kern_idiv(b, lane, 4), warp = kern_idiv(b, lane, 32);
  kern_id row = kern_imod(b, kern_idiv(b, lane, 2), 2), column = kern_imod(b, lane, 2);
  row = kern_add(b, row, dot_tile_times(t, n, kern_imod(b, kern_idiv(b, square, 4), 2), 2));
  column = kern_add(b, column, dot_tile_times(t, n, kern_imod(b, square, 4), 2));
  t->row = kern_add(b, row, dot_tile_times(t, n, kern_idiv(b, warp, 2), 4));
  t->column = kern_add(b, column, dot_tile_times(t, n, kern_imod(b, warp, 2), 8));
}

/* Which tile, and which part. */
static void place_task(struct dot_tile *t) {
  struct kern_builder *b = t->build;
  kern_id task = kern_task(b), line = kern_idiv(b, task, t->columns), part = kern_idiv(b, line, t->rows);
  kern_values_set(t->values, DOT_TILE_COL, kern_imod(b, task, t->columns), 1, KERN_NONE);
  kern_values_set(t->values, DOT_TILE_ROW, kern_imod(b, line, t->rows), 1, KERN_NONE);
  t->part = t->parts > 1 ? kern_imod(b, part, t->parts) : kern_index(b, 0);
  kern_values_set(t->values, DOT_BATCH, kern_idiv(b, part, t->parts), 1, KERN_NONE);
}

static quern_status build(struct dot_tile *t) {
  struct dot *d = t->d;
  struct kern *kern = d->job->kern;
  int64_t tasks = d->batch * t->parts * t->rows * t->columns, stage = 2 * t->terms * t->stride;
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(tasks))}, *b = &builder;
  QUERN_TRY(kern->failed);
  kern->phases[kern->n_phases - 1].group = DOT_TILE_THREADS;
  int words = (int)BASE_MAX(base_dtypes[d->acc].size, 4) / 4;
  kern->phases[kern->n_phases - 1].beside = BESIDE / words; /* 128 registers a thread */
  QUERN_TRY(dot_values(d, b, &t->values));
  t->build = b;
  place_task(t);
  place_thread(t);
  kern_id half[2] = {kern_local(b, d->acc, BASE_MAX(stage, dot_tile_chunk(t))), KERN_NONE};
  half[1] = kern_local(b, d->acc, stage);
  kern_id none = kern_neutral(b, d->reduce, d->acc, DOT_TILE_THREADS);
  for (int i = 0; i < t->own * t->own; i++) t->sums[i] = kern_var(b, none);
  each_stage(t, half);
  quern_status status = dot_tile_end(t, half[0]);
  kern_values_free(t->values);
  t->values = NULL;
  return status;
}

quern_status dot_tile(struct dot *d) {
  struct dot_tile t = {.d = d, .work = -1};
  choose_sizes(&t);
  QUERN_TRY(make_space(&t));
  if (t.parts > 1) t.work = kern_add_mem(d->job->kern, d->acc, KERN_WORK, t.parts * d->batch * d->m * d->n);
  QUERN_TRY(build(&t));
  return t.parts > 1 ? dot_tile_join(&t) : QUERN_STATUS_OK;
}
