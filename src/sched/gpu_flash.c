/* sched/gpu_flash.c -- flash attention on GPUs, in tiles with online softmax: memory grows with S + T, never with S T
** in:    a supported composite "attention", or what pass/attention_views.c made of it: any float, any mask
** how:   a thread block has a block of queries of one head, in shared memory; blocks of keys and values pass by, and with each
**        the rows' maxima, sums and outputs, all in registers, are rescaled (Dao et al., "FlashAttention").
** keeps: every sum runs over blocks in one order: the same bits every time
** see:   cpu_attention.c (CPUs), gpu_attention_library.c (a library), gpu_tile.h      tests: tests/sched/test_attention.c
*/
#include <math.h>

#include "sched/gpu_flash.h"

/* ---- the problem ----------------------------------------------------------------------------------------- */

enum { MOST_WIDTH = 256, REGISTERS = 144 }; /* of 4 bytes, for sums */

/* Bytes of the tiles of a phase. */
static int64_t bytes_of(const struct flash_shape *s, quern_dtype acc, const struct pass_attention *a) {
  int64_t rows = (int64_t)s->rows * TILE_DOWN, columns = (int64_t)s->columns * TILE_ACROSS;
  int64_t wide = tile_covered(acc, a->width), value_wide = tile_covered(acc, a->value_width);
  int64_t scores = tile_local_warp_bytes(acc, rows, columns);
  if (a->back)
    return scores + tile_bytes(acc, rows, a->width) + tile_bytes(acc, rows, a->value_width) +
           tile_bytes(acc, columns, wide) + tile_bytes(acc, columns, value_wide);
  int64_t keys = tile_bytes(acc, columns, BASE_MAX(a->width, value_wide)); /* and values, in heads_per_wave */
  return scores + tile_bytes(acc, rows, a->width) + tile_local_warp_bytes(acc, rows, TILE_ACROSS) + keys;
}

/* Registers and shared memory suffice; by_keys: of a gradient, dk and dv, else dq. */
static bool fits(const struct flash_shape *s, quern_dtype acc, const struct pass_attention *a, bool by_keys,
                 int64_t shared) {
  int words = (int)base_dtypes[acc].size / 4, scores = s->rows * s->columns * (a->back ? 2 : 1), outs = 0;
  if (a->back) outs += s->rows * tile_columns(acc, a->width);
  if (!a->back || by_keys) outs += s->rows * tile_columns(acc, a->value_width);
  return words * (scores + outs) <= REGISTERS && bytes_of(s, acc, a) <= shared;
}

/* Loads from shared memory for a score, in all products that it is part of. */
static double loads_of(const struct flash_shape *s, quern_dtype acc, const struct pass_attention *a, bool by_keys) {
  int wide = tile_columns(acc, a->width), value_wide = tile_columns(acc, a->value_width),
      terms = s->columns * TILE_ACROSS;
  double along = (double)(s->rows + s->columns) * (double)(a->back ? a->width + a->value_width : a->width), across = 0;
  if (a->back) across += (s->rows + wide) * terms;
  if (!a->back || by_keys) across += (s->rows + value_wide) * terms;
  return (along + across) / (s->rows * s->columns);
}

bool flash_shape(struct flash_shape *shape, const struct base_target *target, quern_dtype acc,
                 const struct pass_attention *a, bool by_keys) {
  enum { MOST = 8 };
  int64_t rows = by_keys ? a->keys : a->queries, columns = by_keys ? a->queries : a->keys;
  double best = 0;
  shape->rows = 0;
  for (int m = MOST; m >= 1; m /= 2) {
    if (m > 1 && (int64_t)m * TILE_DOWN / 2 >= rows) continue;
    for (int n = MOST; n >= 1; n /= 2) {
      struct flash_shape s = {.rows = m, .columns = n};
      if (n > 1 && (int64_t)n * TILE_ACROSS / 2 >= columns) continue;
      if (!fits(&s, acc, a, by_keys, target->shared_bytes)) continue;
      double loads = loads_of(&s, acc, a, by_keys);
      if (shape->rows > 0 && loads >= best) continue;
      *shape = s;
      best = loads;
    }
  }
  return shape->rows > 0;
}

/* Reads the composite; false when it is not one for these kernels. */
static bool read_node(const struct ir_node *node, struct pass_attention *a, const quern_tensor **mask) {
  *mask = NULL;
  if (!pass_attention_read(node, a)) return false;
  if (node->attrs->ints.n > 2 || node->attrs->ints.at[1] == 0) return true;
  *mask = node->src[3];
  if (!a->back) return true;
  int64_t head = a->queries * a->value_width; /* the mask stands before out, lse and dout */
  for (int i = PASS_VIEW_Y; i <= PASS_VIEW_DY; i++)
    a->views[i] = (struct pass_operand_view){a->views[i].operand + 1, 0, a->heads * head, head, a->value_width};
  a->lse++;
  return true;
}

static bool has_dims(const quern_tensor *t, const quern_tensor *other) {
  return t->rank == other->rank && memcmp(t->dims, other->dims, (size_t)t->rank * sizeof *t->dims) == 0;
}

/* The gradient with a float mask. It needs none: the three results are those of q, k and v, which is certain where the mask has other
** dimensions than v. Or it is the fourth, of a mask that has all keys, and one query or all. */
static bool adds(const struct ir_node *node) {
  if (strcmp(node->attrs->name, "attention.vjp") != 0 || node->attrs->ints.at[1] == 0 || node->n_src != 7) return false;
  const quern_tensor *mask = node->src[3];
  if (base_dtypes[mask->dtype].class != BASE_FLOAT || node->src[6]->rank != 4) return false;
  int64_t queries = node->src[0]->dims[2], keys = node->src[2]->dims[2];
  if (node->n_out == FLASH_DMASK + 1) return mask->dims[3] == keys && (mask->dims[2] == queries || mask->dims[2] == 1);
  return node->n_out == FLASH_DMASK && has_dims(&node->out[2], node->src[2]) && !has_dims(mask, node->src[2]);
}

bool flash_supports(const struct base_target *target, const struct ir_node *node) {
  struct pass_attention a;
  struct flash_shape shape;
  const quern_tensor *mask;
  bool placed = node->attrs->ints.n > 2;
  if ((!placed && !att_supports(node) && !adds(node)) || !read_node(node, &a, &mask)) return false;
  if (a.batch < 1 || a.heads < 1 || a.keys < 1 || a.queries < 1 || a.width < 1 || a.value_width < 1) return false;
  if (a.width > MOST_WIDTH || a.value_width > MOST_WIDTH) return false;
  quern_dtype acc = kern_acc_dtype(node->src[0]->dtype);
  struct flash_decode_shape few;
  if (flash_decode_shape(&few, target, acc, &a)) return true;
  return a.queries > 1 && flash_shape(&shape, target, acc, &a, false) &&
         (!a.back || flash_shape(&shape, target, acc, &a, true));
}

bool flash_setup(struct flash *f, const struct ir_node *node) {
  if (!read_node(node, &f->a, &f->mask)) return false;
  f->acc = kern_acc_dtype(node->src[0]->dtype);
  f->mask_mem = f->mask != NULL ? att_operand_mem(f->job, 3, false) : KERN_NONE;
  f->lse_mem = att_operand_mem(f->job, f->a.lse, !f->a.back);
  f->offset = KERN_NONE;
  f->splits.n = 1;
  for (int i = 0; i < PASS_VIEWS; i++) {
    int place = f->a.views[i].operand;
    f->mem[i] = place < 0 ? KERN_NONE : att_operand_mem(f->job, place, pass_operand_view_is_out(i, f->a.back));
  }
  return true;
}

/* ---- pieces that forward and backward share ---------------------------------------------------------- */

struct kern_builder flash_phase(struct flash *f, int64_t tasks) {
  struct kern *kern = f->job->kern;
  struct kern_builder b = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(tasks))};
  if (kern->failed == QUERN_STATUS_OK) kern->phases[kern->n_phases - 1].block_threads = TILE_THREADS;
  return b;
}

/* Heads whose keys and values take a third of the cache: tasks of all of them run at a time. */
static int64_t heads_per_wave_of(const struct flash *f, int64_t heads) {
  const struct pass_attention *a = &f->a;
  quern_dtype dtype = f->job->kern->mems[f->mem[PASS_VIEW_K]].dtype;
  int64_t bytes = a->keys * (a->width + a->value_width) * (int64_t)base_dtypes[dtype].size;
  int64_t heads_per_wave = BASE_MAX(BASE_MIN(f->job->target->l3_bytes / 3 / bytes, 32), 1);
  while (heads % heads_per_wave != 0) heads_per_wave--;
  return heads_per_wave;
}

kern_id flash_task(struct flash *f, int64_t heads, int64_t blocks, kern_id *block) {
  int64_t heads_per_wave = heads_per_wave_of(f, heads);
  kern_id task = kern_task(f->b), in_wave = kern_imod(f->b, task, heads_per_wave * blocks),
          first = kern_idiv(f->b, task, heads_per_wave * blocks);
  *block = kern_idiv(f->b, in_wave, heads_per_wave);
  kern_id head = kern_imod(f->b, in_wave, heads_per_wave);
  return kern_add(f->b, kern_mul_i(f->b, first, heads_per_wave), head);
}

static bool is_shared(int view) {
  return view == PASS_VIEW_K || view == PASS_VIEW_V || view == PASS_VIEW_DK || view == PASS_VIEW_DV;
}

kern_id flash_view_at(struct flash *f, int view) {
  const struct pass_operand_view *v = &f->a.views[view];
  kern_id at = kern_add_i(f->b, kern_mul_i(f->b, f->batch, v->batch), v->at);
  return kern_add(f->b, at, kern_mul_i(f->b, is_shared(view) ? f->kv : f->head, v->head));
}

static int64_t width_of(const struct flash *f, int view) {
  bool values = view == PASS_VIEW_V || view == PASS_VIEW_Y || view == PASS_VIEW_DY || view == PASS_VIEW_DV;
  return values ? f->a.value_width : f->a.width;
}

struct tile_source flash_source(struct flash *f, int view, kern_id first) {
  const struct pass_operand_view *v = &f->a.views[view];
  struct tile_source s = {.row = v->row, .width = width_of(f, view), .first = first};
  s.mem = kern_mem(f->b, f->mem[view]);
  s.at = flash_view_at(f, view);
  s.last = kern_index(f->b, (is_shared(view) ? f->a.keys : f->a.queries) - 1);
  int64_t strides[] = {s.width, v->at, v->batch, v->head, v->row};
  s.run = tile_run(f->job->kern->mems[f->mem[view]].dtype, BASE_COUNT(strides), strides);
  return s;
}

void flash_read_offset(struct flash *f) {
  if (f->mask == NULL || f->mask->dtype != QUERN_DTYPE_I64) return;
  kern_id at = f->mask->dims[0] > 1 ? f->batch : kern_index(f->b, 0);
  kern_id offset = kern_load(f->b, kern_mem(f->b, f->mask_mem), at, 1);
  f->offset = kern_min_i(f->b, kern_max_i(f->b, offset, -f->a.queries), f->a.keys);
}

kern_id flash_keys_attended(struct flash *f, kern_id end) {
  kern_id keys = kern_index(f->b, f->a.keys);
  if (f->a.causal) keys = kern_min(f->b, keys, kern_add_i(f->b, end, f->a.keys - f->a.queries));
  if (f->offset != KERN_NONE) keys = kern_min(f->b, keys, kern_add(f->b, end, f->offset));
  return kern_max_i(f->b, keys, 0);
}

kern_id flash_limit(struct flash *f, kern_id i) {
  kern_id limit = tile_i(&f->t, f->a.keys - 1);
  if (f->a.causal) limit = kern_min(f->b, limit, kern_add(f->b, i, tile_i(&f->t, f->a.keys - f->a.queries)));
  if (f->offset != KERN_NONE) limit = kern_min(f->b, limit, kern_add(f->b, i, tile_all(&f->t, f->offset)));
  return limit;
}

/* The mask's elements at (i, j). */
static kern_id mask_at(struct flash *f, kern_id i, kern_id j) {
  struct kern_builder *b = f->b;
  const int64_t *dims = f->mask->dims;
  kern_id zero = kern_index(b, 0), at = kern_mul_i(b, dims[0] > 1 ? f->batch : zero, dims[1]);
  at = kern_mul_i(b, kern_add(b, at, dims[1] > 1 ? f->head : zero), dims[2] * dims[3]);
  kern_id place = tile_i(&f->t, 0);
  if (dims[2] > 1) {
    kern_id row = kern_min(b, i, tile_i(&f->t, f->a.queries - 1));
    place = kern_mul(b, row, tile_i(&f->t, dims[3]));
  }
  if (dims[3] > 1) place = kern_add(b, place, kern_min(b, j, tile_i(&f->t, f->a.keys - 1)));
  return kern_gather(b, kern_at(b, kern_mem(b, f->mask_mem), at), place);
}

kern_id flash_attends(struct flash *f, kern_id i, kern_id j, kern_id limit) {
  kern_id seen = kern_bin(f->b, KERN_LE, j, limit);
  if (f->mask == NULL || f->mask->dtype != QUERN_DTYPE_BOOL) return seen;
  return kern_bin(f->b, KERN_AND, seen, mask_at(f, i, j));
}

bool flash_has_bias(const struct flash *f) {
  return f->mask != NULL && base_dtypes[f->mask->dtype].class == BASE_FLOAT;
}

kern_id flash_add_bias(struct flash *f, kern_id i, kern_id j, kern_id score) {
  return kern_add(f->b, score, kern_cast(f->b, mask_at(f, i, j), f->acc));
}

bool flash_may_mask(const struct flash *f, int64_t queries, int64_t keys) {
  const struct pass_attention *a = &f->a;
  bool ends = a->keys % keys != 0 || (a->back && a->queries % queries != 0);
  return ends || a->causal || (f->mask != NULL && !flash_has_bias(f));
}

kern_id flash_line(struct flash *f, kern_id i, int64_t rows) {
  kern_id row = kern_min(f->b, i, tile_i(&f->t, rows - 1));
  kern_id first = kern_add(f->b, kern_mul_i(f->b, f->batch, f->a.heads), f->head);
  return kern_add(f->b, row, tile_all(&f->t, kern_mul_i(f->b, first, rows)));
}

kern_id flash_exp(struct flash *f, kern_id x) {
  return f->acc == QUERN_DTYPE_F32 ? kern_exp_below(f->b, x) : kern_math(f->b, IR_EXP, f->acc, 1, &x);
}

/* Where sums of a phase become rows: from `mem` on, each row `row` elements after the other. */
struct rows_to {
  kern_id mem;
  int64_t row, width;
  quern_dtype dtype;
};
static void store_rows(struct flash *f, const struct tile_sums *sums, const struct rows_to *to, kern_id first,
                       int64_t rows, double scale) {
  struct kern_builder *b = f->b;
  const struct tile *t = &f->t;
  for (int m = 0; m < sums->rows; m++) {
    kern_id i = tile_row(t, first, m), last = tile_i(t, rows - 1), there = kern_bin(b, KERN_LE, i, last);
    kern_id row = kern_min(b, i, last), each = tile_i(t, to->row);
    row = kern_mul(b, row, each);
    for (int n = 0; n < sums->columns; n++) {
      kern_id e = tile_wide_column(t, n), end = tile_i(t, to->width - 1);
      kern_id both = kern_bin(b, KERN_AND, there, kern_bin(b, KERN_LE, e, end));
      kern_id at = kern_add(b, row, kern_min(b, e, end));
      kern_id x = kern_get(b, sums->at[m * sums->columns + n]);
      if (scale != 1) x = kern_mul(b, x, tile_f(t, scale));
      kern_scatter_n(b, to->mem, at, kern_cast(b, x, to->dtype), both);
    }
  }
}

void flash_store(struct flash *f, const struct tile_sums *sums, int view, kern_id first, int64_t rows, double scale) {
  if (f->mem[view] < 0) return;
  struct rows_to to = {.row = f->a.views[view].row, .width = width_of(f, view)};
  to.dtype = f->job->kern->mems[f->mem[view]].dtype;
  to.mem = kern_mem(f->b, f->mem[view]);
  to.mem = kern_at(f->b, to.mem, flash_view_at(f, view));
  store_rows(f, sums, &to, first, rows, scale);
}

/* ---- forward --------------------------------------------------------------------------------------------- */

enum { MOST_ROWS = 8, MOST_COLUMNS = 8 };

struct forward {
  struct flash f;
  struct flash_shape shape;
  int64_t queries, keys; /* of a block */
  struct tile_local q, k, v, p, part;
  struct tile_sums scores, out;
  kern_id row_max[MOST_ROWS],
      sum[MOST_ROWS];   /* variables: a row's maximum, as a power of 2; the thread's part of its sum */
  kern_id q0, j0, last; /* the first query and key of the blocks; the last key that some query attends to */
};

/* Scores of the thread, with what the mask adds; -inf where the key is masked. */
static void mask_scores(struct forward *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  int n = w->shape.columns, all = n * w->shape.rows;
  kern_id nothing = tile_f(&f->t, -(double)INFINITY);
  for (int at = 0; flash_has_bias(f) && at < all; at++) {
    kern_id i = tile_row(&f->t, w->q0, at / n), j = tile_column(&f->t, w->j0, at % n);
    kern_set(b, w->scores.at[at], flash_add_bias(f, i, j, kern_get(b, w->scores.at[at])));
  }
  for (int m = 0; flash_may_mask(f, w->queries, w->keys) && m < w->shape.rows; m++) {
    kern_id i = tile_row(&f->t, w->q0, m), limit = flash_limit(f, i);
    for (int c = 0; c < n; c++) {
      kern_id j = tile_column(&f->t, w->j0, c), x = kern_get(b, w->scores.at[m * n + c]);
      kern_set(b, w->scores.at[m * n + c], kern_select(b, flash_attends(f, i, j, limit), x, nothing));
    }
  }
}

/* Weights to LOCAL memory; maxima, sums and outputs follow. */
static void update_online_softmax(struct forward *w) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  int columns = w->shape.columns;
  kern_id score[MOST_ROWS * MOST_COLUMNS];
  for (int at = 0; at < w->shape.rows * columns; at++) score[at] = kern_get(b, w->scores.at[at]);
  kern_id most[MOST_ROWS], zero = tile_f(&f->t, 0), nothing = tile_f(&f->t, -(double)INFINITY);
  for (int m = 0; m < w->shape.rows; m++) {
    most[m] = score[m * columns];
    for (int c = 1; c < columns; c++) most[m] = kern_max(b, most[m], score[m * columns + c]);
  }
  tile_row_reduce(&f->t, &w->part, IR_REDUCE_MAX, w->shape.rows, most);
  for (int m = 0; m < w->shape.rows; m++) {
    kern_id before = kern_get(b, w->row_max[m]), row_max = kern_max(b, before, most[m]);
    kern_id from = kern_select(b, kern_bin(b, KERN_EQ, row_max, nothing), zero, row_max);
    kern_id factor = flash_exp(f, kern_sub(b, before, from)), sum = KERN_NONE;
    kern_set(b, w->row_max[m], row_max);
    for (int c = 0; c < columns; c++) {
      kern_id p = flash_exp(f, kern_sub(b, score[m * columns + c], from));
      sum = c == 0 ? p : kern_add(b, sum, p);
      tile_put(&f->t, &w->p, m, c, p);
    }
    kern_set(b, w->sum[m], kern_fma(b, kern_get(b, w->sum[m]), factor, sum));
    for (int e = 0; e < w->out.columns; e++) {
      kern_id out = w->out.at[m * w->out.columns + e];
      kern_set(b, out, kern_mul(b, kern_get(b, out), factor));
    }
  }
}

/* The thread that stores what is of a query, not of its columns: those of the first column. */
static kern_id stores_line(const struct forward *w, kern_id i) {
  struct kern_builder *b = w->f.b;
  kern_id there = kern_bin(b, KERN_LT, i, tile_i(&w->f.t, w->f.a.queries));
  return kern_bin(b, KERN_AND, there, kern_bin(b, KERN_EQ, w->f.t.column, tile_i(&w->f.t, 0)));
}

/* What the part leaves. */
static void store_split(struct forward *w, const kern_id *sum) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  const struct flash_splits *p = &f->splits;
  for (int m = 0; m < w->shape.rows; m++) {
    kern_id i = tile_row(&f->t, w->q0, m), at = flash_line(f, i, f->a.queries), there = stores_line(w, i);
    at = kern_mul(b, at, tile_i(&f->t, p->n));
    at = kern_add(b, at, tile_all(&f->t, f->split));
    kern_id row_maxima = kern_mem(b, p->max_mem), totals = kern_mem(b, p->sum_mem);
    kern_scatter_n(b, row_maxima, at, kern_get(b, w->row_max[m]), there);
    kern_scatter_n(b, totals, at, sum[m], there);
  }
  kern_id head = kern_add(b, kern_mul_i(b, f->batch, f->a.heads), f->head);
  kern_id line = kern_add(b, kern_mul_i(b, head, f->a.queries * p->n), f->split);
  struct rows_to to = {.row = p->n * p->row, .width = f->a.value_width, .dtype = f->acc};
  to.mem = kern_mem(b, p->out_mem);
  to.mem = kern_at(b, to.mem, kern_mul_i(b, line, p->row));
  store_rows(f, &w->out, &to, w->q0, f->a.queries, 1);
}

static void finish(struct forward *w, const kern_id *sum) {
  struct flash *f = &w->f;
  struct kern_builder *b = f->b;
  kern_id zero = tile_f(&f->t, 0), one = tile_f(&f->t, 1), nothing = tile_f(&f->t, -(double)INFINITY);
  for (int m = 0; m < w->shape.rows; m++) {
    kern_id none = kern_bin(b, KERN_EQ, sum[m], zero), divisor = kern_select(b, none, one, sum[m]);
    for (int e = 0; e < w->out.columns; e++) {
      kern_id out = w->out.at[m * w->out.columns + e];
      kern_set(b, out, kern_bin(b, KERN_DIV, kern_get(b, out), divisor));
    }
    if (f->lse_mem < 0) continue;
    kern_id i = tile_row(&f->t, w->q0, m), line = flash_line(f, i, f->a.queries), there = stores_line(w, i);
    kern_id x = kern_math(b, IR_LOG, f->acc, 1, &divisor);
    x = kern_select(b, none, nothing, kern_add(b, kern_get(b, w->row_max[m]), x));
    kern_id to = kern_mem(b, f->lse_mem);
    kern_scatter_n(b, to, line, kern_cast(b, x, f->job->kern->mems[f->lse_mem].dtype), there);
  }
  flash_store(f, &w->out, PASS_VIEW_Y, w->q0, f->a.queries, 1);
}

static void start(struct forward *w) {
  struct flash *f = &w->f;
  const struct pass_attention *a = &f->a;
  int64_t wide = tile_covered(f->acc, a->value_width);
  w->q = tile_local(&f->t, w->queries, a->width);
  w->p = tile_local_warp(&f->t, w->queries, w->keys);
  w->part = tile_local_warp(&f->t, w->queries, TILE_ACROSS);
  w->k = w->v = tile_local(&f->t, w->keys, BASE_MAX(wide, a->width));
  tile_sums(&f->t, &w->scores, w->shape.rows, w->shape.columns);
  tile_sums(&f->t, &w->out, w->shape.rows, tile_columns(f->acc, a->value_width));
  for (int m = 0; m < w->shape.rows; m++) {
    w->row_max[m] = kern_var(f->b, tile_f(&f->t, -(double)INFINITY));
    w->sum[m] = kern_var(f->b, tile_f(&f->t, 0));
  }
  struct tile_source from = flash_source(f, PASS_VIEW_Q, w->q0);
  tile_load(&f->t, &w->q, &from, a->scale);
  tile_clear_end(&f->t, &w->q, a->width);
}

/* A block of keys and its values, which follow them to the same place. */
static void add_block(struct forward *w) {
  struct flash *f = &w->f;
  struct tile_source keys = flash_source(f, PASS_VIEW_K, w->j0), values = flash_source(f, PASS_VIEW_V, w->j0);
  if (f->offset != KERN_NONE) values.last = w->last; /* what lies behind may be anything */
  tile_load(&f->t, &w->k, &keys, 1);
  tile_clear_end(&f->t, &w->k, f->a.width);
  tile_set_zero(&f->t, &w->scores);
  tile_multiply_rows(&f->t, &w->scores, &w->q, &w->k, sched_ceil(f->a.width, f->t.quad) * f->t.quad);
  tile_load(&f->t, &w->v, &values, 1);
  mask_scores(w);
  update_online_softmax(w);
  tile_multiply(&f->t, &w->out, &w->p, &w->v, w->keys);
}

bool flash_begin_queries(struct flash *f, struct kern_builder *b, int64_t queries, kern_id *first) {
  const struct pass_attention *a = &f->a;
  int64_t blocks = sched_ceil(a->queries, queries), parts = f->splits.n;
  *b = flash_phase(f, a->batch * a->heads * blocks * parts);
  if (b->kern->failed != QUERN_STATUS_OK) return false;
  f->b = b;
  kern_id block, head = flash_task(f, a->batch * a->heads, blocks * parts, &block);
  f->batch = kern_idiv(b, head, a->heads);
  f->head = kern_imod(b, head, a->heads);
  f->kv = kern_idiv(b, f->head, a->heads / a->kv_heads);
  f->split = kern_imod(b, block, parts);
  block = kern_idiv(b, block, parts);
  block = kern_sub(b, kern_index(b, blocks - 1), block); /* the last sees most */
  *first = kern_mul_i(b, block, queries);
  f->t = tile_begin(b, f->acc);
  return true;
}

struct flash_keys flash_keys(struct flash *f, kern_id q0, int64_t queries, int64_t keys) {
  struct kern_builder *b = f->b;
  kern_id end = kern_min_i(b, kern_add_i(b, q0, queries), f->a.queries), seen = flash_keys_attended(f, end);
  struct flash_keys k = {.to = kern_idiv(b, kern_add_i(b, seen, keys - 1), keys)};
  k.from = kern_index(b, 0);
  k.last = kern_max_i(b, kern_add_i(b, seen, -1), 0);
  if (f->splits.n > 1) {
    int64_t each = f->splits.keys / keys;
    k.from = kern_mul_i(b, f->split, each);
    k.to = kern_min(b, k.to, kern_add_i(b, k.from, each));
  }
  return k;
}

static void forward_phase(struct forward *w) {
  struct flash *f = &w->f;
  struct kern_builder b;
  kern_id sum[MOST_ROWS];
  if (!flash_begin_queries(f, &b, w->queries, &w->q0)) return;
  flash_read_offset(f);
  start(w);
  struct flash_keys passing = flash_keys(f, w->q0, w->queries, w->keys);
  w->last = passing.last;
  kern_id number = kern_for(&b, passing.from, passing.to, 1);
  w->j0 = kern_mul_i(&b, number, w->keys);
  add_block(w);
  kern_end(&b);
  for (int m = 0; m < w->shape.rows; m++) sum[m] = kern_get(&b, w->sum[m]);
  tile_row_reduce(&f->t, &w->part, IR_SUM, w->shape.rows, sum);
  (f->splits.n > 1 ? store_split : finish)(w, sum);
}

void flash_choose_splits(struct flash *f, int64_t queries, int64_t keys) {
  enum { GROUPS = 256, LEAST_KEYS = 256 }; /* that make a GPU busy; of a part */
  const struct pass_attention *a = &f->a;
  int64_t tasks = a->batch * a->heads * sched_ceil(a->queries, queries), blocks = sched_ceil(a->keys, keys);
  int64_t least = sched_ceil(LEAST_KEYS, keys), parts = BASE_MAX(BASE_MIN(GROUPS / tasks, blocks / least), 1);
  int64_t each = sched_ceil(blocks, parts);
  flash_add_splits(f, sched_ceil(blocks, each), each * keys);
}

quern_status sched_gpu_flash(struct sched_job *job) {
  struct forward w = {.f = {.job = job}};
  struct flash_decode_shape few;
  bool fine = flash_setup(&w.f, job->group->anchor);
  if (fine && flash_decode_shape(&few, job->target, w.f.acc, &w.f.a)) return sched_gpu_flash_decode(job);
  if (fine && flash_mma_supports(job->target, job->group->anchor->src[0]->dtype, &w.f.a))
    return sched_gpu_flash_mma(job);
  fine = fine && flash_shape(&w.shape, job->target, w.f.acc, &w.f.a, false);
  QUERN_CHECK(fine, INTERNAL, "schedule: no tile for %s", job->group->anchor->attrs->name);
  w.queries = (int64_t)w.shape.rows * TILE_DOWN;
  w.keys = (int64_t)w.shape.columns * TILE_ACROSS;
  flash_choose_splits(&w.f, w.queries, w.keys);
  forward_phase(&w);
  flash_merge_phase(&w.f);
  return job->kern->failed;
}
