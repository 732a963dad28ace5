/* sched/gpu_dot_epilogue.c -- the epilogue of a tile: the outs from its sums; and adding the partial sums of split-K
** Sums go through shared memory, some rows of each thread at a time, so that stores are coalesced: neighboring threads make
** neighboring elements of the outs, 16 bytes each where they follow each other.
** tests: tests/sched/test_gpu_dot.c
*/
#include "sched/gpu_dot.h"

enum { CHUNK_BYTES = 16384 };

/* Rows of a thread that are finished together. */
static int64_t rows_of(const struct gpu_dot *t) {
  int64_t row = GPU_DOT_ACROSS * t->side * (int64_t)base_dtypes[t->d->acc].size;
  return BASE_MIN(t->run, BASE_MAX(CHUNK_BYTES / row, 1));
}

int64_t gpu_dot_chunk(const struct gpu_dot *t) { return rows_of(t) * GPU_DOT_ACROSS * t->side; }

/* ---- where points of a chunk lie --------------------------------------------------------------------------- */

/* Where points of a chunk lie: those that `run` neighbors begin with, counted by a variable. */
struct site {
  const struct pass_index *row, *column; /* that may lie behind the last; columns by runs */
  const struct pass_index *by[GPU_DOT_VARS];
  int64_t run;
  int var;
};

static void make_site(struct gpu_dot *t, struct site *site, int var, int64_t run) {
  struct pass_space *space = t->d->space;
  int64_t each = rows_of(t), wide = t->side / run;
  const struct pass_index *x = pass_index_var(space, var), *line = pass_index_div(space, x, wide);
  const struct pass_index *row = pass_index_var(space, GPU_DOT_FIRST);
  *site = (struct site){.run = run, .var = var};
  row = gpu_dot_sum(t, pass_index_div(space, line, each), t->run, row);
  row = pass_index_add(space, row, pass_index_mod(space, line, each));
  site->row = gpu_dot_sum(t, pass_index_var(space, GPU_DOT_ROW), t->side, row);
  const struct pass_index *column = pass_index_mod(space, x, wide);
  site->column = gpu_dot_sum(t, pass_index_var(space, GPU_DOT_COL), wide, column);
  site->by[DOT_ROW] = pass_index_clamp(space, site->row, t->d->m);
  site->by[DOT_COL] = pass_index_scale(space, pass_index_clamp(space, site->column, t->d->n / run), run);
}

static kern_id is_below(struct gpu_dot *t, const struct pass_index *x, int64_t n, kern_id also) {
  struct kern_builder *b = t->build;
  if (x->hi < n) return also;
  kern_id at = kern_values_index(t->values, x);
  if (b->kern->failed != QUERN_STATUS_OK) return also;
  kern_id below = kern_bin(b, KERN_LT, at, gpu_dot_i(t, kern_at_id(b, at)->lanes, n));
  return also == KERN_NONE ? below : kern_bin(b, KERN_AND, also, below);
}

/* The points of the site that are there. */
static kern_id is_there(struct gpu_dot *t, const struct site *site, int lanes) {
  kern_id mask = is_below(t, site->row, t->d->m, KERN_NONE);
  mask = is_below(t, site->column, t->d->n / site->run, mask);
  return mask == KERN_NONE ? mask : kern_splat(t->build, mask, lanes);
}

/* ---- outs --------------------------------------------------------------------------------------------------- */

/* Rows and columns, which the group's variables stand for, stand for these indices themselves. */
static void define_point(struct gpu_dot *t, const struct pass_index *const *by) {
  for (int var = 0; var < GPU_DOT_VARS; var++)
    if (by[var] != NULL) kern_values_define(t->values, var, by[var]);
}

/* The values of all outs from the sum, at the points that are set. */
static void make_outs(struct gpu_dot *t, kern_id sum, kern_id *x) {
  struct dot *d = t->d;
  const quern_tensor *result = &d->node->out[0];
  int lanes = GPU_DOT_THREADS * t->run;
  kern_values_bind(t->values, result, result->rank, d->result, kern_cast(t->build, sum, result->dtype));
  for (size_t i = 0; i < d->group.n_outs; i++) {
    const quern_tensor *out = d->group.outs[i].tensor;
    x[i] = kern_splat(t->build, kern_values_get(t->values, out, out->rank, d->made[i]), lanes);
  }
  kern_values_unbind(t->values, result);
}

/* ---- the end of a tile -------------------------------------------------------------------------------------- */

struct end {
  struct gpu_dot *t;
  struct site point, run; /* an element; some that are stored at once */
  kern_id shared;
};

/* An out's memory, or that of the splits' sums, whose elements lie at an offset of row and column. */
struct target {
  kern_id mem;
  const struct pass_index *offset;
  kern_id x;
};

/* Stores runs where columns follow each other, else elements. */
static void store(struct end *e, const struct target *to, kern_id base) {
  struct gpu_dot *t = e->t;
  struct pass_space *space = t->d->space;
  int64_t stride;
  bool follows = pass_index_stride(space, to->offset, DOT_COL, &stride) && stride == 1;
  const struct site *site = follows ? &e->run : &e->point;
  int lanes = GPU_DOT_THREADS * t->run / (int)site->run;
  kern_id first = kern_idiv(t->build, base, site->run);
  kern_values_set(t->values, site->var, first, lanes, KERN_NONE);
  kern_id at = kern_values_index(t->values, pass_index_replace(space, to->offset, site->by));
  kern_id mask = is_there(t, site, lanes);
  kern_scatter_n(t->build, to->mem, kern_splat(t->build, at, lanes), to->x, mask);
  kern_values_set(t->values, site->var, first, 1, KERN_NONE);
}

/* The split's sums. */
static void store_split(struct end *e, kern_id base, kern_id sum) {
  struct gpu_dot *t = e->t;
  struct dot *d = t->d;
  const struct pass_index *at = pass_index_var(d->space, DOT_BATCH);
  at = gpu_dot_sum(t, at, d->m, pass_index_var(d->space, DOT_ROW));
  at = gpu_dot_sum(t, at, d->n, pass_index_var(d->space, DOT_COL));
  kern_id begin = kern_mul_i(t->build, t->k_split, d->batch * d->m * d->n), mem = kern_mem(t->build, t->work);
  struct target to = {.mem = kern_at(t->build, mem, begin), .offset = at, .x = sum};
  store(e, &to, base);
}

static void store_outs(struct end *e, kern_id base, kern_id sum) {
  struct gpu_dot *t = e->t;
  struct dot *d = t->d;
  kern_id x[KERN_MAX_MEMS];
  kern_values_set(t->values, GPU_DOT_POINT, base, GPU_DOT_THREADS * t->run, KERN_NONE);
  make_outs(t, sum, x);
  kern_values_set(t->values, GPU_DOT_POINT, base, 1, KERN_NONE);
  for (size_t i = 0; i < d->group.n_outs; i++) {
    const quern_tensor *out = d->group.outs[i].tensor;
    struct target to = {.mem = sched_out_mem(&d->inner, t->build, i), .x = x[i]};
    to.offset = pass_index_flat(d->space, out->rank, out->dims, d->outs[i]);
    store(e, &to, base);
  }
}

/* Rows m, m + 1, ... of all threads. */
static void finish_rows(struct end *e, int m) {
  struct gpu_dot *t = e->t;
  struct kern_builder *b = t->build;
  int lanes = GPU_DOT_THREADS, each = (int)rows_of(t);
  kern_id place = gpu_dot_times(t, lanes, t->row, each * t->side);
  place = kern_add(b, place, gpu_dot_times(t, lanes, t->column, t->run));
  for (int i = 0; i < each; i++) {
    for (int n = 0; n < t->own; n++) {
      int64_t column = (int64_t)(n / t->run) * GPU_DOT_ACROSS * t->run + n % t->run;
      kern_id mem = kern_at(b, e->shared, kern_index(b, i * t->side + column));
      kern_scatter_n(b, mem, place, kern_get(b, t->sums[(m + i) * t->own + n]), KERN_NONE);
    }
  }
  kern_id first = kern_index(b, (int64_t)(m / t->run) * GPU_DOT_ACROSS * t->run + m % t->run);
  kern_values_set(t->values, GPU_DOT_FIRST, first, 1, KERN_NONE);
  kern_id base = kern_range(b, 0, gpu_dot_chunk(t), (int64_t)lanes * t->run);
  kern_values_enter(t->values);
  kern_id sum = kern_load(b, e->shared, base, lanes * t->run);
  if (t->work >= 0)
    store_split(e, base, sum);
  else
    store_outs(e, base, sum);
  kern_values_leave(t->values);
  kern_end(b);
}

quern_status gpu_dot_epilogue(struct gpu_dot *t, kern_id shared) {
  struct end e = {.t = t, .shared = shared};
  make_site(t, &e.point, GPU_DOT_POINT, 1);
  make_site(t, &e.run, GPU_DOT_RUN, t->out_run);
  if (t->work < 0) define_point(t, e.point.by);
  for (int m = 0; m < t->own; m += (int)rows_of(t)) finish_rows(&e, m);
  return t->d->space->failed ? QUERN_STATUS_MEMORY : t->build->kern->failed;
}

/* ---- splits -------------------------------------------------------------------------------------------------- */

/* Results are numbered in the order of the splits' sums. */
static void make_flat(struct gpu_dot *t, const struct pass_index **by) {
  struct pass_space *space = t->d->space;
  const struct pass_index *flat = pass_index_var(space, GPU_DOT_FLAT);
  const struct pass_index *line = pass_index_div(space, flat, t->d->n);
  by[DOT_COL] = pass_index_mod(space, flat, t->d->n);
  by[DOT_ROW] = pass_index_mod(space, line, t->d->m);
  by[DOT_BATCH] = pass_index_div(space, line, t->d->m);
}

static void store_flat(struct gpu_dot *t, size_t out, const struct pass_index *const *by, kern_id x, kern_id active) {
  struct kern_builder *b = t->build;
  const quern_tensor *tensor = t->d->group.outs[out].tensor;
  const struct pass_index *offset = pass_index_flat(t->d->space, tensor->rank, tensor->dims, t->d->outs[out]);
  offset = pass_index_replace(t->d->space, offset, by);
  int lanes = GPU_DOT_THREADS * t->run;
  int64_t stride;
  kern_id mem = sched_out_mem(&t->d->inner, b, out);
  if (pass_index_stride(t->d->space, offset, GPU_DOT_FLAT, &stride) && stride == 1) {
    kern_store_n(b, mem, kern_values_first(t->values, offset), x, active);
    return;
  }
  kern_id mask = KERN_NONE, at_lanes = kern_splat(b, kern_values_index(t->values, offset), lanes);
  if (active != KERN_NONE) {
    kern_id lane = kern_lane(b, QUERN_DTYPE_I64, lanes);
    mask = kern_bin(b, KERN_LT, lane, kern_splat(b, active, lanes));
  }
  kern_scatter_n(b, mem, at_lanes, x, mask);
}

static void add_splits(struct gpu_dot *t, const struct pass_index *const *by) {
  struct kern_builder *b = t->build;
  struct dot *d = t->d;
  int lanes = GPU_DOT_THREADS * t->run;
  int64_t all = d->batch * d->m * d->n;
  kern_id first = kern_mul_i(b, kern_task(b), lanes), active = KERN_NONE, mem = kern_mem(b, t->work), x[KERN_MAX_MEMS];
  if (all % lanes != 0) {
    kern_id end = kern_index(b, all);
    active = kern_min_i(b, kern_sub(b, end, first), lanes);
  }
  kern_values_set(t->values, GPU_DOT_FLAT, first, lanes, active);
  kern_id sum = kern_var(b, kern_load_n(b, mem, first, lanes, active)), split = kern_range(b, 1, t->k_splits, 1);
  kern_id next = kern_load_n(b, mem, kern_add(b, kern_mul_i(b, split, all), first), lanes, active);
  kern_set(b, sum, kern_combine(b, d->reduce, kern_get(b, sum), next));
  kern_end(b);
  make_outs(t, kern_get(b, sum), x);
  for (size_t i = 0; i < d->group.n_outs; i++) store_flat(t, i, by, x[i], active);
}

quern_status gpu_dot_add_splits(struct gpu_dot *t) {
  struct dot *d = t->d;
  struct kern *kern = d->job->kern;
  const struct pass_index *by[GPU_DOT_VARS] = {NULL};
  int64_t tasks = sched_ceil(d->batch * d->m * d->n, (int64_t)GPU_DOT_THREADS * t->run);
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(tasks))};
  QUERN_TRY(kern->failed);
  kern->phases[kern->n_phases - 1].block_threads = GPU_DOT_THREADS;
  make_flat(t, by);
  QUERN_TRY(dot_values(d, &builder, &t->values));
  t->build = &builder;
  define_point(t, by);
  add_splits(t, by);
  kern_values_free(t->values);
  t->values = NULL;
  return d->space->failed ? QUERN_STATUS_MEMORY : kern->failed;
}
