/* sched/dot_skinny.c -- skinny products (GEMV and the like): few rows by a large side b whose columns are contiguous,
** limited by reading it
** Some terms of b are read side by side, each along a long row of columns, as memory likes best; the sums of a task,
** few enough for the first-level cache, are read and written for each such set of terms. The chains are those of the
** micro-kernels.
** tests: tests/sched/test_dot.c
*/
#include <stdio.h>

#include "sched/dot.h"

/* Rows at most; terms read side by side, and of a single row where b stays in a cache; elements of a that are kept in
** registers along the columns, at most; bytes of b from which on, and of the sums of a task, up to which it pays. The
** sums of a single row may fill the first-level cache: the longer rows of b are read, the better. */
enum { ROWS = 8, TERMS = 8, TERMS_NEAR = 4, HELD = 16, LEAST_BYTES = 1 << 18, SUMS_BYTES = 1 << 14 };

bool dot_is_skinny(const struct dot *d) {
  const struct dot_view *b = &d->b.view;
  return d->m <= ROWS && d->n >= 4 * d->lanes && b->mem >= 0 && b->own == 1 && b->term >= d->n && !d->bytes &&
         d->k * d->n * (int64_t)base_dtypes[d->acc].size >= LEAST_BYTES;
}

static kern_id times(struct kern_builder *b, kern_id x, int64_t by) { return kern_mul(b, x, kern_index(b, by)); }

/* ---- the function ------------------------------------------------------------------------------------------- */

enum { KB, LDA, LDB, LDC, COLUMNS, SCALARS };

struct stream {
  const struct dot *d;
  struct kern_builder *b;
  kern_id a, right, sums, scalar[SCALARS];
  bool held;
  kern_id x[HELD]; /* held: term u of row i is x[i n + u] */
};

/* Term u of row i from k on, in all lanes. */
static kern_id left_term(const struct stream *s, int64_t i, kern_id k, int u) {
  struct kern_builder *b = s->b;
  kern_id row = kern_mul(b, kern_index(b, i), s->scalar[LDA]);
  kern_id x = kern_load(b, s->a, kern_add_i(b, kern_add(b, row, k), u), 1);
  return kern_splat(b, x, s->d->lanes);
}

/* n terms from k on, for the vector of columns that begins at j, `active` of which count. */
static void add_terms(const struct stream *s, kern_id k, int n, kern_id j, kern_id active) {
  struct kern_builder *b = s->b;
  kern_id y[TERMS];
  for (int u = 0; u < n; u++) {
    kern_id row = kern_mul(b, kern_add(b, k, kern_index(b, u)), s->scalar[LDB]);
    y[u] = kern_load_n(b, s->right, kern_add(b, row, j), s->d->lanes, active);
  }
  for (int64_t i = 0; i < s->d->m; i++) {
    kern_id at = kern_add(b, kern_mul(b, kern_index(b, i), s->scalar[LDC]), j);
    kern_id sum = kern_load(b, s->sums, at, s->d->lanes);
    for (int u = 0; u < n; u++) {
      kern_id x = s->held ? s->x[i * n + u] : left_term(s, i, k, u);
      sum = dot_term(s->d, b, sum, x, y[u]);
    }
    kern_store(b, s->sums, at, sum);
  }
}

static void each_column(struct stream *s, kern_id k, int n) {
  struct kern_builder *b = s->b;
  s->held = s->d->m * n <= HELD;
  for (int64_t i = 0; s->held && i < s->d->m; i++)
    for (int u = 0; u < n; u++) s->x[i * n + u] = left_term(s, i, k, u);
  kern_id columns = s->scalar[COLUMNS], rest = kern_imod(b, columns, s->d->lanes), whole = kern_sub(b, columns, rest);
  kern_id j = kern_for(b, kern_index(b, 0), whole, s->d->lanes);
  add_terms(s, k, n, j, KERN_NONE);
  kern_end(b);
  kern_if(b, kern_bin(b, KERN_LT, whole, columns));
  add_terms(s, k, n, whole, rest);
  kern_end(b);
}

static int terms_of(const struct dot *d) {
  int64_t bytes = d->batch * d->k * d->n * (int64_t)base_dtypes[d->acc].size;
  return d->m == 1 && bytes <= d->job->target->l3_bytes / 2 ? TERMS_NEAR : TERMS;
}

/* memories a, b, sums: sums[i, j] = the chain over kb terms, for all rows and as many columns; rows of sums are whole
** vectors. */
static const struct kern_fn *make_function(struct dot *d) {
  char name[64];
  snprintf(name, sizeof name, "dot_%s_%s_%s_stream_%lld", ir_reduce_names[d->reduce], ir_combine_names[d->combine],
           base_dtypes[d->acc].name, (long long)d->m);
  const quern_dtype dtypes[] = {d->acc, d->acc, d->acc};
  struct kern_fn *fn = kern_add_fn(d->job->kern, name, 3, dtypes, SCALARS);
  if (fn == NULL) return NULL;
  struct kern_builder builder = {.kern = d->job->kern, .fn = fn}, *b = &builder;
  struct stream s = {.d = d, .b = b, .a = kern_mem(b, 0)};
  s.right = kern_mem(b, 1);
  s.sums = kern_mem(b, 2);
  for (int i = 0; i < SCALARS; i++) s.scalar[i] = kern_scalar(b, i);
  kern_id neutral = kern_neutral(b, d->reduce, d->acc, d->lanes),
          j = kern_for(b, kern_index(b, 0), s.scalar[LDC], d->lanes);
  for (int64_t i = 0; i < d->m; i++)
    kern_store(b, s.sums, kern_add(b, kern_mul(b, kern_index(b, i), s.scalar[LDC]), j), neutral);
  kern_end(b);
  int terms = terms_of(d);
  kern_id kb = s.scalar[KB], whole = kern_sub(b, kb, kern_imod(b, kb, terms));
  each_column(&s, kern_for(b, kern_index(b, 0), whole, terms), terms);
  kern_end(b);
  each_column(&s, kern_for(b, whole, kb, 1), 1);
  kern_end(b);
  return fn;
}

/* ---- the loops ----------------------------------------------------------------------------------------------- */

struct body {
  struct dot *d;
  struct kern_builder *b;
  struct kern_values *values;
  const struct kern_fn *fn;
  int64_t width;             /* columns of a task */
  kern_id col, columns;      /* of this task */
  kern_id total, part, rows; /* scratch: sums, those of one block, packed a */
};

/* A block of kb terms from pc on, to `sums`. */
static void one_block(struct body *f, kern_id pc, int64_t kb, kern_id sums) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  kern_values_set(f->values, DOT_ROW, kern_index(b, 0), 1, KERN_NONE);
  kern_values_set(f->values, DOT_TERM, pc, 1, KERN_NONE);
  kern_values_set(f->values, DOT_COL, f->col, 1, KERN_NONE);
  kern_id zero = kern_index(b, 0);
  if (d->a.packed) dot_pack_rows(d, b, f->values, f->rows, zero, kern_index(b, d->m), d->m, pc, kb);
  kern_values_set(f->values, DOT_ROW, zero, 1, KERN_NONE);
  kern_values_set(f->values, DOT_TERM, pc, 1, KERN_NONE);
  kern_id left = f->rows;
  if (!d->a.packed) left = dot_view_mem(b, f->values, &d->a.view);
  kern_id right = dot_view_mem(b, f->values, &d->b.view), scalars[SCALARS];
  scalars[KB] = kern_index(b, kb);
  scalars[LDA] = kern_index(b, d->a.packed ? DOT_PACKED_ROW : d->a.view.own);
  scalars[LDB] = kern_index(b, d->b.view.term);
  scalars[LDC] = kern_index(b, f->width);
  scalars[COLUMNS] = f->columns;
  kern_call_fn(b, f->fn, 3, (const kern_id[]){left, right, sums}, SCALARS, scalars);
}

static void add_part(struct body *f) {
  struct kern_builder *b = f->b;
  int lanes = f->d->lanes;
  kern_id i = kern_range(b, 0, f->d->m * f->width, lanes);
  kern_id sum = kern_load(b, f->total, i, lanes);
  sum = kern_combine(b, f->d->reduce, sum, kern_load(b, f->part, i, lanes));
  kern_store(b, f->total, i, sum);
  kern_end(b);
}

static void each_block(struct body *f) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  int64_t blocks = sched_ceil(d->k, DOT_BLOCK), before = (blocks - 1) * DOT_BLOCK;
  one_block(f, kern_index(b, 0), BASE_MIN(d->k, DOT_BLOCK), f->total);
  if (blocks > 2) {
    kern_id block = kern_range(b, 1, blocks - 1, 1);
    kern_values_enter(f->values);
    one_block(f, times(b, block, DOT_BLOCK), DOT_BLOCK, f->part);
    add_part(f);
    kern_values_leave(f->values);
    kern_end(b);
  }
  if (blocks > 1) {
    one_block(f, kern_index(b, before), d->k - before, f->part);
    add_part(f);
  }
}

/* The outs from the vector of sums `at` columns after the first of the task. */
static void finish_vector(struct body *f, kern_id row, kern_id at, kern_id active) {
  struct dot *d = f->d;
  kern_id col = kern_add(f->b, f->col, at);
  dot_set(d, f->b, f->values, d->split_axes, DOT_COL, col, d->lanes, active);
  kern_id sum = kern_load_n(f->b, f->total, kern_add(f->b, times(f->b, row, f->width), at), d->lanes, active);
  dot_finish(d, f->b, f->values, sum, active);
  dot_set(d, f->b, f->values, d->split_axes, DOT_COL, col, 1, KERN_NONE);
}

static void finish(struct body *f) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  kern_id row = kern_range(b, 0, d->m, 1);
  kern_values_enter(f->values);
  kern_values_set(f->values, DOT_ROW, row, 1, KERN_NONE);
  kern_id whole = kern_mul_i(b, kern_idiv(b, f->columns, d->lanes), d->lanes), rest = kern_sub(b, f->columns, whole);
  kern_id at = kern_for(b, kern_index(b, 0), whole, d->lanes);
  kern_values_enter(f->values);
  finish_vector(f, row, at, KERN_NONE);
  kern_values_leave(f->values);
  kern_end(b);
  if (d->n % d->lanes != 0) { /* of the last task only */
    kern_if(b, kern_bin(b, KERN_LT, whole, f->columns));
    kern_values_enter(f->values);
    finish_vector(f, row, whole, rest);
    kern_values_leave(f->values);
    kern_end(b);
  }
  kern_values_leave(f->values);
  kern_end(b);
}

/* Columns of a task: a task a thread, as long as they are long enough and their sums fit. */
static int64_t choose_width(const struct dot *d) {
  int64_t size = (int64_t)base_dtypes[d->acc].size, unit = 4 * d->lanes;
  int64_t most = (d->m == 1 ? 2 : 1) * SUMS_BYTES / (size * d->m);
  int64_t width = sched_ceil(d->n * d->batch, BASE_MAX(d->job->target->threads, 1));
  width = BASE_MAX(BASE_MIN(width, most), 1024 / size);
  return sched_ceil(BASE_MIN(width, d->n), unit) * unit;
}

quern_status dot_skinny(struct dot *d) {
  struct kern *kern = d->job->kern;
  const struct dot_view *a = &d->a.view;
  int64_t width = choose_width(d), along = sched_ceil(d->n, width);
  d->a.packed = !(a->mem >= 0 && (a->term == 1 || d->k == 1));
  d->mr = (int)d->m; /* of packing */
  d->task_m_strips = 1;
  if (d->a.packed && d->a.across) d->transpose = dot_transpose(d);
  struct body f = {.d = d, .width = width, .fn = make_function(d)};
  struct kern_builder builder = {.kern = kern, .fn = kern_add_phase(kern, KERN_FIXED_TASKS(d->batch * along))},
                      *b = &builder;
  f.b = b;
  QUERN_TRY(dot_values(d, b, &f.values));
  kern_id task = kern_task(b);
  kern_values_set(f.values, DOT_BATCH, kern_idiv(b, task, along), 1, KERN_NONE);
  f.col = times(b, kern_imod(b, task, along), width);
  f.columns = kern_min_i(b, kern_sub(b, kern_index(b, d->n), f.col), width);
  f.total = kern_local(b, d->acc, d->m * width);
  f.part = d->k > DOT_BLOCK ? kern_local(b, d->acc, d->m * width) : KERN_NONE;
  f.rows = d->a.packed ? kern_local(b, d->acc, d->m * DOT_PACKED_ROW) : KERN_NONE;
  each_block(&f);
  finish(&f);
  kern_values_free(f.values);
  return QUERN_STATUS_OK;
}
