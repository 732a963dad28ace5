/* sched/gpu_flash_decode.c -- attention of decode queries on GPUs, as generating asks for: a task has a split of the keys
** in:    a supported composite "attention", or what pass/attention_views.c made of it: any float, any mask
** how:   rows are queries of all heads that share keys and values, 16 at most. Keys pass by in shared memory, a thread each, which has the scores of all
**        rows; scores of the split stay in shared memory, so that there is one maximum and nothing is rescaled. Values are read where they lie.
**        Parts are as many as make a GPU busy, and another phase joins them (gpu_flash_merge.c).
** keeps: splits depend on extents, dtype and target only, and are joined in one order: the same bits every time
** see:   gpu_flash.c      tests: tests/sched/test_attention.c
*/
#include <math.h>

#include "sched/gpu_flash.h"

enum {
  KEYS = TILE_THREADS,
  MOST_QUERIES = 16,
  MOST_ROWS = 16,
  CHUNK_BYTES = 256, /* of a key, that are in shared memory at a time */
  SCORE_BYTES = 16384,
  MOST_KEYS = 1024, /* of a split */
  MOST_PARTS = 8192,
  GROUPS = 512 /* that make a GPU busy */
};

struct decode {
  struct flash f;
  struct flash_decode_shape shape;
  struct tile_local q, k;
  struct tile_sums scores;
  struct flash_blend out;
  kern_id head[MOST_ROWS], query[MOST_ROWS],
      there[MOST_ROWS];                    /* of rows: numbers; whether there is one, or KERN_NONE */
  kern_id most[MOST_ROWS], sum[MOST_ROWS]; /* variables: the thread's of each row */
  kern_id block, split;                    /* numbers: of rows, of keys */
  kern_id weights; /* LOCAL: scores of the split's keys, then their weights, a row after another */
  kern_id first, seen,
      blocks; /* the split's first key; keys that some query attends to; blocks of the split that have one */
};

/* ---- the problem ----------------------------------------------------------------------------------------- */

static int64_t chunk_of(quern_dtype acc, int64_t width) {
  return BASE_MIN(width, CHUNK_BYTES / (int64_t)base_dtypes[acc].size);
}

/* Elements of LOCAL memory for keys, and then for sums of values. */
static int64_t space_of(quern_dtype acc, int64_t width) {
  int64_t sums = TILE_THREADS * FLASH_BLEND_MOST * 4 / (int64_t)base_dtypes[acc].size;
  return BASE_MAX(KEYS * tile_stride(acc, chunk_of(acc, width)), sums);
}

bool flash_decode_shape(struct flash_decode_shape *s, const struct base_target *target, quern_dtype acc,
                        const struct pass_attention *a) {
  if (a->back || a->queries > MOST_QUERIES || (a->queries > 1 && a->keys < KEYS)) return false;
  int64_t size = (int64_t)base_dtypes[acc].size, all = a->heads / a->kv_heads * a->queries, most = 0;
  int64_t left = sched_shared(target) - space_of(acc, a->width) * size;
  int64_t rows = 2 * BASE_MIN(all, MOST_ROWS);
  while (rows > 1 && most == 0) {
    rows /= 2;
    int64_t bytes = BASE_MIN(left - tile_bytes(acc, rows, a->width), SCORE_BYTES);
    most = bytes > 0 ? bytes / (rows * size * KEYS) : 0; /* blocks of keys */
  }
  if (most == 0) return false;
  s->blocks = sched_ceil(all, rows);
  s->rows = (int)sched_ceil(all, s->blocks);
  if (a->queries > 1 && a->batch * a->kv_heads * s->blocks >= GROUPS)
    return false; /* tiles keep the GPU busy, without WORK */
  int64_t blocks = sched_ceil(a->keys, KEYS), splits = sched_ceil(GROUPS, a->batch * a->kv_heads * s->blocks);
  int64_t each = BASE_MIN(sched_ceil(blocks, BASE_MIN(splits, blocks)), BASE_MIN(most, MOST_KEYS / KEYS));
  each = sched_ceil(blocks, sched_ceil(blocks, each)); /* splits of about one size */
  s->keys = each * KEYS;
  s->splits = sched_ceil(blocks, each);
  return s->splits <= MOST_PARTS;
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

/* Where the task is: batch, keys and values, split; heads and queries of its rows. */
static void find_task(struct decode *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  const struct pass_attention *a = &f->a;
  int64_t sharing = a->heads / a->kv_heads, last = sharing * a->queries - 1;
  kern_id task = kern_task(b), at = kern_idiv(b, task, w->shape.blocks);
  w->block = kern_imod(b, task, w->shape.blocks);
  w->split = kern_imod(b, at, w->shape.splits);
  at = kern_idiv(b, at, w->shape.splits);
  f->batch = kern_idiv(b, at, a->kv_heads);
  f->kv = kern_imod(b, at, a->kv_heads);
  for (int r = 0; r < w->shape.rows; r++) {
    kern_id row = kern_add_i(b, kern_mul_i(b, w->block, w->shape.rows), r);
    bool ends = w->shape.blocks * w->shape.rows > last + 1;
    w->there[r] = ends ? kern_bin(b, KERN_LE, row, kern_index(b, last)) : KERN_NONE;
    row = kern_min_i(b, row, last); /* those behind the last are as it is, and not stored */
    w->query[r] = kern_imod(b, row, a->queries);
    kern_id in_group = kern_idiv(b, row, a->queries);
    w->head[r] = kern_add(b, kern_mul_i(b, f->kv, sharing), in_group);
  }
}

/* Queries of all rows, times the scale, to LOCAL memory. */
static void load_queries(struct decode *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  const struct tile *t = &f->t;
  const struct pass_operand_view *v = &f->a.views[PASS_VIEW_Q];
  f->head = kern_mul_i(b, f->kv, f->a.heads / f->a.kv_heads);
  struct tile_source from = flash_source(f, PASS_VIEW_Q, kern_index(b, 0));
  int64_t each = from.width / from.run, all = w->shape.rows * each, sharing = f->a.heads / f->a.kv_heads;
  kern_id mem = kern_at(b, from.mem, from.at);
  for (int64_t first = 0; first < all; first += TILE_THREADS) {
    kern_id number = kern_add(b, t->lane, tile_i(t, first)), there = kern_bin(b, KERN_LT, number, tile_i(t, all));
    number = kern_min(b, number, tile_i(t, all - 1));
    kern_id row = kern_idiv(b, number, each), column = kern_imod(b, number, each);
    column = kern_mul(b, column, tile_i(t, from.run));
    kern_id to = kern_add(b, kern_mul(b, row, tile_i(t, w->q.stride)), column);
    row = kern_add(b, row, tile_all(t, kern_mul_i(b, w->block, w->shape.rows)));
    row = kern_min(b, row, tile_i(t, sharing * f->a.queries - 1));
    kern_id head = kern_idiv(b, row, f->a.queries), query = kern_imod(b, row, f->a.queries);
    kern_id at = kern_mul(b, head, tile_i(t, v->head));
    at = kern_add(b, at, kern_mul(b, query, tile_i(t, v->row)));
    kern_id x = kern_cast(b, kern_gather_n(b, mem, kern_add(b, at, column), from.run), f->acc);
    x = kern_mul(b, x, kern_const_f(b, f->acc, TILE_THREADS * from.run, f->a.scale));
    kern_scatter_n(b, w->q.mem, to, x, there);
  }
  tile_clear_end(t, &w->q, f->a.width);
}

/* ---- keys -------------------------------------------------------------------------------------------------- */

/* Scores of a block of keys, a chunk of their width after another. */
static void multiply_keys(struct decode *w, kern_id first) {
  struct flash *f = &w->f;
  int64_t width = f->a.width, chunk = chunk_of(f->acc, width), quad = f->t.quad;
  tile_set_zero(&f->t, &w->scores);
  for (int64_t at = 0; at < width; at += chunk) {
    struct tile_source from = flash_source(f, PASS_VIEW_K, first);
    struct tile_local q = w->q;
    from.at = kern_add_i(f->b, from.at, at);
    from.width = BASE_MIN(chunk, width - at);
    q.mem = kern_at(f->b, w->q.mem, kern_index(f->b, at));
    tile_load(&f->t, &w->k, &from, 1);
    tile_clear_end(&f->t, &w->k, from.width);
    tile_multiply_rows(&f->t, &w->scores, &q, &w->k, sched_ceil(from.width, quad) * quad);
  }
}

/* The row's split of weights, from a block of keys on. */
static kern_id weights_at(struct decode *w, int r, kern_id block) {
  struct kern_builder *b = w->f.b;
  return kern_at(b, w->weights, kern_add_i(b, kern_mul_i(b, block, KEYS), r * w->shape.keys));
}

/* Scores with what the mask adds, -inf where the key is masked, to LOCAL memory; the thread's greatest. */
static void score_keys(struct decode *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  kern_id zero = kern_index(b, 0), block = kern_for(b, zero, w->blocks, 1);
  kern_id first = kern_add(b, w->first, kern_mul_i(b, block, KEYS));
  multiply_keys(w, first);
  kern_id key = tile_column(&f->t, first, 0), nothing = tile_f(&f->t, -(double)INFINITY);
  for (int r = 0; r < w->shape.rows; r++) {
    kern_id i = tile_all(&f->t, w->query[r]), x = kern_get(b, w->scores.at[r]);
    f->head = w->head[r];
    if (flash_has_bias(f)) x = flash_add_bias(f, i, key, x);
    if (flash_may_mask(f, 1, KEYS)) x = kern_select(b, flash_attends(f, i, key, flash_limit(f, i)), x, nothing);
    kern_set(b, w->most[r], kern_max(b, kern_get(b, w->most[r]), x));
    kern_scatter_n(b, weights_at(w, r, block), f->t.lane, x, KERN_NONE);
  }
  kern_end(b);
}

/* Scores become weights; the thread's sums. */
static void update_online_softmax(struct decode *w, const kern_id *from) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  kern_id zero = kern_index(b, 0), block = kern_for(b, zero, w->blocks, 1), x[MOST_ROWS];
  for (int r = 0; r < w->shape.rows; r++) x[r] = kern_gather(b, weights_at(w, r, block), f->t.lane);
  for (int r = 0; r < w->shape.rows; r++) {
    x[r] = flash_exp(f, kern_sub(b, x[r], tile_all(&f->t, from[r])));
    kern_set(b, w->sum[r], kern_add(b, kern_get(b, w->sum[r]), x[r]));
    kern_scatter_n(b, weights_at(w, r, block), f->t.lane, x[r], KERN_NONE);
  }
  kern_end(b);
}

/* What the threads have of each row, joined. */
static void reduce_rows(struct decode *w, enum kern_op op, const kern_id *vars, kern_id *reduced) {
  for (int r = 0; r < w->shape.rows; r++) reduced[r] = kern_get(w->f.b, vars[r]);
  for (int r = 0; r < w->shape.rows; r++) reduced[r] = kern_hreduce(w->f.b, op, reduced[r]);
}

/* ---- a split ------------------------------------------------------------------------------------------------ */

/* Which of the split's keys some query attends to: with an offset, those behind are left out. */
static void find_keys(struct decode *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  w->first = kern_mul_i(b, w->split, w->shape.keys);
  w->seen = flash_keys_attended(f, kern_index(b, f->a.queries));
  kern_id left = kern_sub(b, w->seen, w->first);
  left = kern_min_i(b, kern_max_i(b, left, 0), w->shape.keys);
  w->blocks = kern_idiv(b, kern_add_i(b, left, KEYS - 1), KEYS);
}

static void start(struct decode *w) {
  struct flash *f = &w->f;
  int64_t width = f->a.width;
  w->q = tile_local(&f->t, w->shape.rows, width);
  w->k = (struct tile_local){.rows = KEYS, .width = chunk_of(f->acc, width)};
  w->k.stride = tile_stride(f->acc, w->k.width);
  w->k.mem = kern_local(f->b, f->acc, space_of(f->acc, width));
  w->weights = kern_local(f->b, f->acc, w->shape.rows * w->shape.keys);
  tile_sums(&f->t, &w->scores, w->shape.rows, 1);
  for (int r = 0; r < w->shape.rows; r++) {
    w->most[r] = kern_var(f->b, tile_f(&f->t, -(double)INFINITY));
    w->sum[r] = kern_var(f->b, tile_f(&f->t, 0));
  }
}

static void split_phase(struct decode *w) {
  struct flash *f = &w->f;
  const struct pass_attention *a = &f->a;
  struct kern_builder b = flash_phase(f, a->batch * a->kv_heads * w->shape.splits * w->shape.blocks);
  if (b.kern->failed != QUERN_STATUS_OK) return;
  f->b = &b;
  kern_id row_max[MOST_ROWS], from[MOST_ROWS], sum[MOST_ROWS];
  f->t = tile_begin_flat(&b, f->acc);
  find_task(w);
  flash_read_offset(f);
  find_keys(w);
  start(w);
  load_queries(w);
  score_keys(w);
  reduce_rows(w, KERN_MAX, w->most, row_max);
  for (int r = 0; r < w->shape.rows; r++) from[r] = flash_exp_shift(f, row_max[r]);
  update_online_softmax(w, from);
  reduce_rows(w, KERN_ADD, w->sum, sum);
  struct tile_source values = flash_source(f, PASS_VIEW_V, w->first);
  values.last = kern_max_i(&b, kern_add_i(&b, w->seen, -1), 0);
  flash_blend_shape(&w->out, f->acc, w->shape.rows, a->value_width, values.run);
  flash_blend_add(f, &w->out, &values, w->weights, w->shape.keys, kern_mul_i(&b, w->blocks, KEYS));
  flash_blend_put(f, &w->out, w->k.mem);
  for (int r = 0; r < w->shape.rows; r++) {
    struct flash_row row = {.query = w->query[r], .is_there = w->there[r], .row_max = row_max[r], .row_sum = sum[r]};
    f->head = w->head[r];
    if (f->splits.n > 1)
      flash_leave_row(f, &w->out, w->k.mem, r, &row, w->split);
    else
      flash_finish_row(f, &w->out, w->k.mem, r, &row);
  }
}

quern_status sched_gpu_flash_decode(struct sched_job *job) {
  struct decode w = {.f = {.job = job}};
  bool fine = flash_setup(&w.f, job->group->anchor) && flash_decode_shape(&w.shape, job->target, w.f.acc, &w.f.a);
  QUERN_CHECK(fine, INTERNAL, "schedule: no tile for %s", job->group->anchor->attrs->name);
  flash_add_splits(&w.f, w.shape.splits, w.shape.keys);
  split_phase(&w);
  flash_merge_phase(&w.f);
  return job->kern->failed;
}
