/* sched/cpu_attention.c -- flash attention on CPUs, in tiles with online softmax: memory grows with S + T, never with S T
** in:    a supported composite "attention": q (B, H, S, D), k (B, G, T, D), v (B, G, T, E), perhaps a mask; out, lse
**        a mask of i64 says up to which key the first query attends: later blocks are left out at run time
** how:   Dao et al., "FlashAttention": a task has a block of queries of one head; blocks of keys pass by, and with each the
**        row's maximum, sum and output are rescaled. k is first packed into panels, transposed, once for all heads and tasks.
** keeps: the blocks of keys depend on the target only, so bits do not depend on threads
** see:   tensor/attention.c (the meaning), cpu_attention_back.c      tests: tests/sched/test_attention.c
*/
#include <math.h>

#include "sched/cpu_attention.h"

/* ---- the problem ----------------------------------------------------------------------------------------- */

static bool has_elements(const quern_tensor *t) { return ir_count(t) > 0; }

bool att_supports(const struct ir_node *node) {
  int base = node->attrs->ints.at[1] != 0 ? 4 : 3;
  bool back = strcmp(node->attrs->name, "attention.vjp") == 0;
  if (!back && strcmp(node->attrs->name, "attention") != 0) return false;
  for (int i = 0; i < node->n_src; i++)
    if (!has_elements(node->src[i])) return false;
  if (node->src[0]->dims[3] > 512 || node->src[2]->dims[3] > 512) return false;
  if (!back) return node->n_src == base && node->n_out == 2;
  bool bool_mask = base == 3 || node->src[3]->dtype == QUERN_DTYPE_BOOL;
  /* all of dq, dk, dv are wanted, and only the gradient of out is given */
  return bool_mask && node->n_out == 3 && node->n_src == base + 3 && node->src[base + 2]->rank == 4;
}

/* Two products forward; five backward, counted as they must be done. */
double att_flops(const struct ir_node *node) {
  const int64_t *q = node->src[0]->dims, *v = node->src[2]->dims;
  double pairs = (double)q[0] * (double)q[1] * (double)q[2] * (double)v[2];
  if (node->attrs->ints.at[0] != 0) pairs /= 2;
  bool back = strcmp(node->attrs->name, "attention.vjp") == 0;
  return 2 * pairs * (back ? 3 * (double)q[3] + 2 * (double)v[3] : (double)q[3] + (double)v[3]);
}

static int mem_of(const struct sched_job *job, const quern_tensor *t) {
  for (size_t i = 0; i < job->group->n_ins; i++)
    if (job->group->ins[i] == t) return (int)i;
  return -1;
}

int att_mem_out(const struct sched_job *job, int result) {
  for (size_t i = 0; i < job->group->n_outs; i++)
    if (job->group->outs[i].tensor == &job->group->anchor->out[result]) return (int)(job->group->n_ins + i);
  return -1;
}

void att_setup(struct att *a, struct sched_job *job) {
  const struct ir_node *node = job->group->anchor;
  const int64_t *q = node->src[0]->dims, *v = node->src[2]->dims;
  *a = (struct att){.job = job, .B = q[0], .H = q[1], .G = v[1], .S = q[2], .T = v[2], .D = q[3], .E = v[3]};
  a->causal = node->attrs->ints.at[0] != 0;
  a->scale = node->attrs->reals.at[0];
  a->acc = kern_acc_dtype(node->src[0]->dtype);
  for (int i = 0; i < node->n_src && i < ATT_MAX_MEMS; i++) a->mem[i] = mem_of(job, node->src[i]);
  a->mask = node->attrs->ints.at[1] != 0 ? node->src[3] : NULL;
  a->lanes = BASE_MAX(1, job->sched->lanes * 4 / (int)base_dtypes[a->acc].size);
  a->mr = job->sched->mr;
  a->nv = job->sched->nr / job->sched->lanes;
  a->nr = a->nv * a->lanes;
  a->dot = (struct dot){.job = job, .reduce = IR_SUM, .combine = IR_COMBINE_MUL, .acc = a->acc, .lanes = a->lanes};
}

/* The register tile: fewer columns than a contraction's, so that little is computed beyond the last query or key, and a
** power of two of rows, so that blocks of few sizes fit. */
void att_choose_tile(struct att *a) {
  int sums = a->mr * a->nv;
  a->nv = (a->nv + 1) / 2;
  a->mr = 1;
  while (a->mr < 8 && 2 * a->mr * a->nv <= sums) a->mr *= 2;
  a->nr = a->nv * a->lanes;
}

/* A mask that says up to which key the first query attends. */
static bool has_offset(const struct att *a) { return a->mask != NULL && a->mask->dtype == QUERN_DTYPE_I64; }

/* The offset of a sample, within -S and T. */
static kern_id offset_of(const struct att *a, struct kern_builder *b, kern_id batch) {
  kern_id at = a->mask->dims[0] > 1 ? batch : kern_index(b, 0);
  kern_id offset = kern_load(b, kern_mem(b, a->mem[ATT_MASK]), at, 1);
  return kern_min_i(b, kern_max_i(b, offset, -a->S), a->T);
}

/* ---- pieces that forward and backward share ---------------------------------------------------------- */

kern_id att_load(struct att *a, struct kern_builder *b, kern_id mem, kern_id index, int lanes, int64_t count) {
  kern_id x = count < lanes ? kern_load_n(b, mem, index, lanes, kern_index(b, count)) : kern_load(b, mem, index, lanes);
  return kern_cast(b, x, a->acc);
}

void att_store(struct kern_builder *b, kern_id mem, kern_id index, kern_id value, int64_t count) {
  if (b->kern->failed != QUERN_STATUS_OK) return;
  if (count < kern_at_id(b, value)->lanes)
    kern_store_n(b, mem, index, value, kern_index(b, count));
  else
    kern_store(b, mem, index, value);
}

/* rows[i], i < lanes, becomes column i: at each stage the blocks beside the diagonal change places. */
void att_transpose(struct kern_builder *b, int lanes, kern_id *rows) {
  for (int h = lanes / 2; h >= 1; h /= 2) {
    int first[KERN_MAX_LANES], second[KERN_MAX_LANES];
    for (int i = 0; i < lanes; i++) {
      first[i] = (i & h) == 0 ? i : lanes + i - h;
      second[i] = (i & h) == 0 ? i + h : lanes + i;
    }
    for (int i = 0; i < lanes; i++) {
      if ((i & h) != 0) continue;
      kern_id x = rows[i], y = rows[i + h];
      rows[i] = kern_shuffle(b, x, y, lanes, first);
      rows[i + h] = kern_shuffle(b, x, y, lanes, second);
    }
  }
}

/* Columns col .. col + count - 1 of `lanes` rows of src become rows of dst, which are nr long, at dst_col. */
static void transpose_block(struct att *a, struct kern_builder *b, kern_id src, const kern_id *row_at, kern_id col,
                            int64_t count, kern_id dst, kern_id dst_row, kern_id dst_col) {
  kern_id rows[KERN_MAX_LANES];
  for (int r = 0; r < a->lanes; r++) rows[r] = att_load(a, b, src, kern_add(b, row_at[r], col), a->lanes, count);
  att_transpose(b, a->lanes, rows);
  for (int64_t c = 0; c < BASE_MIN(a->lanes, count); c++) {
    kern_id row = kern_add_i(b, dst_row, c);
    kern_id at = kern_add(b, kern_mul_i(b, row, a->nr), dst_col);
    kern_store(b, dst, at, rows[c]);
  }
}

enum { FETCH_PANELS = 2 }; /* that a cache of keys is asked for ahead */

/* One task per panel: nr rows of src, a tensor (heads, rows, width), are columns of the panel; rows that are not there
** repeat the last. dst: (heads, panels, width, nr). */
void att_pack_phase(struct att *a, int src_mem, int dst_mem, int64_t heads, int64_t rows, int64_t width,
                    int64_t panels) {
  struct kern_fn *fn = kern_add_phase(a->job->kern, KERN_FIXED_TASKS(heads * panels));
  struct kern_builder builder = {a->job->kern, fn}, *b = &builder;
  kern_id task = kern_task(b), src = kern_mem(b, src_mem), dst = kern_mem(b, dst_mem);
  kern_id head = kern_idiv(b, task, panels), panel = kern_imod(b, task, panels);
  kern_id base = kern_mul_i(b, task, width); /* in rows of dst */
  if (has_offset(a)) {                       /* keys that nobody sees are left out */
    kern_id seen = kern_add_i(b, offset_of(a, b, kern_idiv(b, head, heads / a->B)), a->S);
    kern_if(b, kern_bin(b, KERN_LT, kern_mul_i(b, panel, a->nr), seen));
  }
  kern_id block = kern_range(b, 0, a->nr, a->lanes);
  kern_id first = kern_add(b, kern_mul_i(b, panel, a->nr), block), row_at[KERN_MAX_LANES];
  for (int r = 0; r < a->lanes; r++) {
    kern_id row = kern_min_i(b, kern_add_i(b, first, r), rows - 1);
    row = kern_add(b, row, kern_mul_i(b, head, rows));
    row_at[r] = kern_mul_i(b, row, width);
  }
  int64_t whole = width - width % a->lanes;
  if (whole > 0) {
    kern_id col = kern_range(b, 0, whole, a->lanes);
    transpose_block(a, b, src, row_at, col, a->lanes, dst, kern_add(b, base, col), block);
    for (int r = 0; has_offset(a) && r < a->lanes; r++) { /* from memory, and only once: asked for ahead */
      kern_id ahead = kern_add_i(b, kern_add(b, row_at[r], col), FETCH_PANELS * a->nr * width);
      kern_prefetch(b, src, kern_min_i(b, ahead, heads * rows * width - 1));
    }
    kern_end(b);
  }
  if (whole < width) {
    kern_id col = kern_index(b, whole);
    transpose_block(a, b, src, row_at, col, width - whole, dst, kern_add(b, base, col), block);
  }
  kern_end(b);
  if (has_offset(a)) kern_end(b);
}

/* One task per head: src (heads, rows, width) in the dtype of accumulators. */
void att_widen_phase(struct att *a, int src_mem, int dst_mem, int64_t heads, int64_t size) {
  struct kern_fn *fn = kern_add_phase(a->job->kern, KERN_FIXED_TASKS(heads));
  struct kern_builder builder = {a->job->kern, fn}, *b = &builder;
  kern_id base = kern_mul_i(b, kern_task(b), size), src = kern_mem(b, src_mem), dst = kern_mem(b, dst_mem);
  int64_t whole = size - size % a->lanes;
  if (whole > 0) {
    kern_id at = kern_add(b, base, kern_range(b, 0, whole, a->lanes));
    kern_store(b, dst, at, att_load(a, b, src, at, a->lanes, a->lanes));
    kern_end(b);
  }
  if (whole < size) {
    kern_id at = kern_add_i(b, base, whole);
    att_store(b, dst, at, att_load(a, b, src, at, a->lanes, size - whole), size - whole);
  }
}

/* The memory with a tensor's elements in the dtype of accumulators: itself, or a workspace that a phase fills. */
int att_add_wide(struct att *a, int mem) {
  const struct kern_mem *m = &a->job->kern->mems[mem];
  if (m->dtype == a->acc) return mem;
  int wide = kern_add_mem(a->job->kern, a->acc, KERN_WORK, m->count);
  a->job->kern->mems[wide].row = m->row;
  return wide;
}

const struct kern_fn *att_tile(struct att *a, int64_t columns, int64_t ldb) {
  return dot_micro_kernel(&a->dot, a->mr, (int)sched_ceil(columns, a->lanes), columns % a->lanes != 0, ldb);
}

struct att_cover att_cover(struct att *a, int64_t width, int64_t ldb) {
  struct att_cover cover = {.width = width, .rest = width % a->nr};
  if (width >= a->nr) cover.whole = att_tile(a, a->nr, ldb);
  if (cover.rest > 0) cover.last = att_tile(a, cover.rest, ldb);
  return cover;
}

void att_call(struct kern_builder *b, const struct kern_fn *fn, const struct att_product *p) {
  kern_id mems[3] = {p->a, p->b, p->c}, scalars[DOT_SCALARS];
  scalars[DOT_KB] = p->terms;
  scalars[DOT_LDA] = kern_index(b, p->lda);
  scalars[DOT_LDB] = kern_index(b, 0); /* the tile knows it */
  scalars[DOT_LDC] = kern_index(b, p->ldc);
  scalars[DOT_ADD] = kern_index(b, p->add);
  scalars[DOT_TAIL] = kern_index(b, p->tail);
  scalars[DOT_PC] = kern_index(b, 0);
  if (b->kern->failed == QUERN_STATUS_OK) kern_call_fn(b, fn, 3, mems, DOT_SCALARS, scalars);
}

static void multiply_m_strips(struct att *a, struct kern_builder *b, const struct kern_fn *fn, kern_id from,
                              int64_t rows, kern_id col, int64_t tail, const struct att_product *p) {
  kern_id r = kern_for(b, from, kern_index(b, rows), a->mr);
  struct att_product q = *p;
  q.a = kern_at(b, p->a, kern_mul_i(b, r, p->lda));
  q.b = kern_at(b, p->b, col);
  q.c = kern_at(b, p->c, kern_add(b, kern_mul_i(b, r, p->ldc), col));
  q.add = 1;
  q.tail = tail;
  att_call(b, fn, &q);
  kern_end(b);
}

void att_multiply_add(struct att *a, struct kern_builder *b, const struct att_cover *cover, kern_id from, int64_t rows,
                      const struct att_product *p) {
  int64_t whole = cover->width - cover->rest;
  if (whole > 0) {
    kern_id col = kern_range(b, 0, whole, a->nr);
    multiply_m_strips(a, b, cover->whole, from, rows, col, 0, p);
    kern_end(b);
  }
  if (cover->rest > 0)
    multiply_m_strips(a, b, cover->last, from, rows, kern_index(b, whole), cover->rest % a->lanes, p);
}

/* ---- forward --------------------------------------------------------------------------------------------- */

/* Keys a block are PANELS panels of a contraction's register tile; queries a block, up to that many of a head and above. */
enum { PANELS = 2, FEW_QUERIES = 256, QUERIES = 32, MORE_QUERIES = 64 };

struct forward {
  struct att a;
  struct kern_builder *b;
  int64_t block, queries, row; /* keys a block, queries a block, elements a row of the output tile */
  int64_t lines;               /* queries rounded up to whole vectors */
  int64_t per_block, panels;   /* panels of a block's keys, of a head's */
  int k_mem, v_mem;
  const struct kern_fn *scores;
  struct att_cover outputs;
  kern_id batch, head, kv; /* numbers: of the batch, of the head, of (batch, group of heads) */
  kern_id q0, j0;          /* the first query and the first key of the blocks */
  kern_id offset;          /* of has_offset */
  kern_id keys, left, n; /* that some query of the block attends to: of all, of the block; the block's panels of them */
  kern_id q, s, o, m, l; /* LOCAL: queries, scores, output, maxima, sums */
  kern_id part, top,
      factor; /* LOCAL: one vector per query, what its scores are taken relative to, what the output is scaled by */
};

/* Queries of the block times the scale; the output, the maxima and the sums start. */
static void start_block(struct forward *f) {
  struct kern_builder *b = f->b;
  const struct att *a = &f->a;
  kern_id src = kern_mem(b, a->mem[ATT_Q]), scale = kern_const_f(b, a->acc, a->lanes, a->scale);
  kern_id r = kern_range(b, 0, f->queries, 1);
  kern_id row = kern_min_i(b, kern_add(b, f->q0, r), a->S - 1);
  kern_id head = kern_add(b, kern_mul_i(b, f->batch, a->H), f->head);
  kern_id from = kern_mul_i(b, kern_add(b, kern_mul_i(b, head, a->S), row), a->D);
  kern_id to = kern_mul_i(b, r, a->D);
  for (int64_t d = 0; d < a->D; d += a->lanes) {
    kern_id x = att_load(&f->a, b, src, kern_add_i(b, from, d), a->lanes, a->D - d);
    x = kern_mul(b, x, scale);
    att_store(b, f->q, kern_add_i(b, to, d), x, a->D - d);
  }
  kern_id zero = kern_const_f(b, a->acc, a->lanes, 0), out = kern_mul_i(b, r, f->row);
  for (int64_t e = 0; e < f->row; e += a->lanes) kern_store(b, f->o, kern_add_i(b, out, e), zero);
  kern_end(b);
  kern_id line = kern_range(b, 0, f->lines, a->lanes);
  kern_store(b, f->m, line, kern_const_f(b, a->acc, a->lanes, -(double)INFINITY));
  kern_store(b, f->l, line, kern_const_f(b, a->acc, a->lanes, 0));
  kern_end(b);
  if (f->lines == f->queries) return;
  line = kern_range(b, f->queries, f->lines, 1); /* queries that are not there */
  kern_id at = kern_mul_i(b, line, a->lanes);
  kern_store(b, f->part, at, kern_const_f(b, a->acc, a->lanes, 0));
  kern_end(b);
}

/* Vector number n of a row of scores, -inf where the key is masked. */
static kern_id masked_scores(struct forward *f, kern_id at, int n, kern_id limit, kern_id mask_row) {
  struct kern_builder *b = f->b;
  const struct att *a = &f->a;
  kern_id x = kern_load(b, f->s, at, a->lanes), nothing = kern_const_f(b, a->acc, a->lanes, -(double)INFINITY);
  kern_id first = kern_add_i(b, f->j0, (int64_t)n * a->lanes);
  if (mask_row != KERN_NONE) {
    kern_id mask = att_mask(&f->a, b, mask_row, first, a->T % f->block == 0);
    if (a->mask->dtype == QUERN_DTYPE_BOOL)
      x = kern_select(b, mask, x, nothing);
    else
      x = kern_add(b, x, mask);
  }
  if (limit == KERN_NONE) return x;
  kern_id j = kern_splat(b, kern_cast(b, first, QUERN_DTYPE_I32), a->lanes);
  j = kern_add(b, j, kern_lane(b, QUERN_DTYPE_I32, a->lanes));
  return kern_select(b, kern_bin(b, KERN_LE, j, limit), x, nothing);
}

/* Opens what is done with a panel's scores only where some query of the block attends to one of its keys. */
static void open_panel(struct forward *f, int64_t panel) {
  if (panel > 0) kern_if(f->b, kern_bin(f->b, KERN_LT, kern_index(f->b, panel), f->n));
}
static void close_panel(struct forward *f, int64_t panel) {
  if (panel > 0) kern_end(f->b);
}

static kern_id score_at(struct forward *f, kern_id r, int64_t vector) {
  return kern_add_i(f->b, kern_mul_i(f->b, r, f->block), vector * f->a.lanes);
}

/* Keys that a row does not attend to get -inf; the greatest of each lane is its part. */
static void mask_row(struct forward *f, kern_id r) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  kern_id query = kern_add(b, f->q0, r), limit = KERN_NONE, row = KERN_NONE;
  if (a->causal) limit = kern_min_i(b, kern_add_i(b, query, a->T - a->S), a->T - 1);
  if (!a->causal && (a->T % f->block != 0 || has_offset(a))) limit = kern_index(b, a->T - 1);
  if (has_offset(a)) limit = kern_min(b, limit, kern_add(b, query, f->offset));
  if (limit != KERN_NONE) limit = kern_splat(b, kern_cast(b, limit, QUERN_DTYPE_I32), a->lanes);
  if (a->mask != NULL && !has_offset(a)) row = att_mask_row(a, b, f->batch, f->head, query);
  kern_id top = kern_var(b, kern_const_f(b, a->acc, a->lanes, -(double)INFINITY));
  for (int64_t p = 0; p < f->per_block; p++) {
    open_panel(f, p);
    for (int v = 0; v < a->nv; v++) {
      int i = (int)p * a->nv + v;
      kern_id at = score_at(f, r, i), x = masked_scores(f, at, i, limit, row);
      if (limit != KERN_NONE || row != KERN_NONE) kern_store(b, f->s, at, x);
      kern_set(b, top, kern_combine(b, IR_REDUCE_MAX, kern_get(b, top), x));
    }
    close_panel(f, p);
  }
  kern_id to = kern_mul_i(b, r, a->lanes);
  kern_store(b, f->part, to, kern_get(b, top));
}

/* Scores of a row become weights; the sum of each lane is its part: neighbors first. */
static void exp_row(struct forward *f, kern_id r) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  kern_id all = kern_splat(b, kern_load(b, f->top, r, 1), a->lanes), zero = kern_const_f(b, a->acc, a->lanes, 0);
  kern_id weight[64];
  int n = (int)(f->block / a->lanes);
  for (int i = 0; i < n; i++) weight[i] = kern_var(b, zero);
  for (int64_t p = 0; p < f->per_block; p++) {
    open_panel(f, p);
    for (int v = 0; v < a->nv; v++) {
      int i = (int)p * a->nv + v;
      kern_id at = score_at(f, r, i), x = kern_sub(b, kern_load(b, f->s, at, a->lanes), all);
      x = kern_math(b, IR_EXP, a->acc, 1, &x);
      kern_store(b, f->s, at, x);
      kern_set(b, weight[i], x);
    }
    close_panel(f, p);
  }
  for (int i = 0; i < n; i++) weight[i] = kern_get(b, weight[i]);
  for (; n > 1; n = (n + 1) / 2)
    for (int i = 0; i < n; i += 2)
      weight[i / 2] = i + 1 < n ? kern_combine(b, IR_SUM, weight[i], weight[i + 1]) : weight[i];
  kern_id to = kern_mul_i(b, r, a->lanes);
  kern_store(b, f->part, to, weight[0]);
}

/* The parts of `lanes` queries from line on, each reduced by the tree of lanes: one value per query. */
static kern_id reduce_lanes(struct forward *f, enum ir_reduce reduce, kern_id line) {
  struct kern_builder *b = f->b;
  int lanes = f->a.lanes;
  kern_id part[KERN_MAX_LANES];
  for (int i = 0; i < lanes; i++) {
    kern_id at = kern_mul_i(b, kern_add_i(b, line, i), lanes);
    part[i] = kern_load(b, f->part, at, lanes);
  }
  att_transpose(b, lanes, part);
  for (int h = lanes / 2; h >= 1; h /= 2)
    for (int i = 0; i < h; i++) part[i] = kern_combine(b, reduce, part[i], part[i + h]);
  return part[0];
}

/* The maxima after this block, and what the sums and outputs so far are to be scaled by. */
static void update_row_max(struct forward *f) {
  struct kern_builder *b = f->b;
  const struct att *a = &f->a;
  kern_id line = kern_range(b, 0, f->lines, a->lanes), top = reduce_lanes(f, IR_REDUCE_MAX, line);
  kern_id before = kern_load(b, f->m, line, a->lanes);
  top = kern_max(b, top, before);
  kern_id nothing = kern_const_f(b, a->acc, a->lanes, -(double)INFINITY), zero = kern_const_f(b, a->acc, a->lanes, 0);
  kern_id from = kern_select(b, kern_bin(b, KERN_EQ, top, nothing), zero, top), less = kern_sub(b, before, from);
  kern_store(b, f->m, line, top);
  kern_store(b, f->top, line, from);
  kern_store(b, f->factor, line, kern_math(b, IR_EXP, a->acc, 1, &less));
  kern_end(b);
}

static void add_sums(struct forward *f) {
  struct kern_builder *b = f->b;
  int lanes = f->a.lanes;
  kern_id line = kern_range(b, 0, f->lines, lanes), sum = reduce_lanes(f, IR_SUM, line);
  kern_id before = kern_load(b, f->l, line, lanes);
  before = kern_mul(b, before, kern_load(b, f->factor, line, lanes));
  kern_store(b, f->l, line, kern_add(b, before, sum));
  kern_end(b);
}

/* The output so far follows the maxima. Before the first block there is none. */
static void scale_output(struct forward *f) {
  struct kern_builder *b = f->b;
  const struct att *a = &f->a;
  kern_if(b, kern_bin(b, KERN_LT, kern_index(b, 0), f->j0));
  kern_id r = kern_range(b, 0, f->queries, 1), factor = kern_load(b, f->factor, r, 1);
  kern_if(b, kern_un(b, KERN_NOT, kern_bin(b, KERN_EQ, factor, kern_const_f(b, a->acc, 1, 1))));
  kern_id factors = kern_splat(b, factor, a->lanes);
  for (int64_t e = 0; e < f->row; e += a->lanes) {
    kern_id at = kern_add_i(b, kern_mul_i(b, r, f->row), e);
    kern_store(b, f->o, at, kern_mul(b, kern_load(b, f->o, at, a->lanes), factors));
  }
  kern_end(b);
  kern_end(b);
  kern_end(b);
}

/* Scores of a block become weights; maxima, sums and outputs follow. */
static void update_online_softmax(struct forward *f) {
  struct kern_builder *b = f->b;
  mask_row(f, kern_range(b, 0, f->queries, 1));
  kern_end(b);
  update_row_max(f);
  exp_row(f, kern_range(b, 0, f->queries, 1));
  kern_end(b);
  add_sums(f);
  scale_output(f);
}

/* Scores of a block of keys, for all strips of queries. */
static void score_block(struct forward *f, kern_id block) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  kern_id first = kern_mul_i(b, f->kv, f->panels), terms = kern_index(b, a->D), keys = kern_mem(b, f->k_mem);
  first = kern_add(b, first, kern_mul_i(b, block, f->per_block));
  kern_id p = kern_for(b, kern_index(b, 0), f->n, 1);
  keys = kern_at(b, keys, kern_mul_i(b, kern_add(b, first, p), a->D * a->nr));
  kern_id r = kern_range(b, 0, f->queries, a->mr), rows = kern_at(b, f->q, kern_mul_i(b, r, a->D));
  kern_id at = kern_mul_i(b, r, f->block);
  at = kern_add(b, at, kern_mul_i(b, p, a->nr));
  kern_id to = kern_at(b, f->s, at);
  att_call(b, f->scores,
           &(struct att_product){.a = rows, .lda = a->D, .b = keys, .c = to, .ldc = f->block, .terms = terms});
  kern_end(b);
  kern_end(b);
}

/* Asks for the values of a block of keys, while its scores are computed. */
static void prefetch_values(struct forward *f) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  int64_t line = 64 / (int64_t)base_dtypes[a->acc].size;
  kern_id values = kern_mem(b, f->v_mem), first = kern_add(b, kern_mul_i(b, f->kv, a->T), f->j0);
  kern_id row = kern_for(b, kern_index(b, 0), f->left, 1);
  row = kern_mul_i(b, kern_add(b, first, row), a->E);
  for (int64_t e = 0; e < a->E; e += line) kern_prefetch(b, values, kern_add_i(b, row, e));
  kern_end(b);
}

/* The output takes the weights times the values of a block of keys. */
static void add_weighted_values(struct forward *f) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  kern_id row = kern_add(b, kern_mul_i(b, f->kv, a->T), f->j0);
  kern_id from = kern_mul_i(b, row, a->E), first = kern_index(b, 0);
  att_multiply_add(a, b, &f->outputs, first, f->queries,
                   &(struct att_product){.a = f->s,
                                         .lda = f->block,
                                         .b = kern_at(b, kern_mem(b, f->v_mem), from),
                                         .c = f->o,
                                         .ldc = f->row,
                                         .terms = f->left}); /* what is masked may be anything */
}

static void finish_block(struct forward *f) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  const struct ir_node *node = a->job->group->anchor;
  int out_mem = att_mem_out(a->job, 0), lse_mem = att_mem_out(a->job, 1);
  kern_id end = kern_min_i(b, kern_add_i(b, f->q0, f->queries), a->S);
  kern_id query = kern_for(b, f->q0, end, 1), r = kern_imod(b, query, f->queries);
  kern_id head = kern_add(b, kern_mul_i(b, f->batch, a->H), f->head);
  kern_id row = kern_add(b, kern_mul_i(b, head, a->S), query);
  kern_id sum = kern_load(b, f->l, r, 1), zero = kern_const_f(b, a->acc, 1, 0);
  kern_id nothing = kern_bin(b, KERN_EQ, sum, zero);
  kern_id divisor = kern_select(b, nothing, kern_const_f(b, a->acc, 1, 1), sum);
  kern_id divisors = KERN_NONE, out = KERN_NONE;
  if (out_mem >= 0) {
    out = kern_mem(b, out_mem);
    divisors = kern_splat(b, divisor, a->lanes);
  }
  for (int64_t e = 0; out_mem >= 0 && e < a->E; e += a->lanes) {
    kern_id from = kern_add_i(b, kern_mul_i(b, r, f->row), e);
    kern_id x = kern_bin(b, KERN_DIV, kern_load(b, f->o, from, a->lanes), divisors);
    kern_id to = kern_add_i(b, kern_mul_i(b, row, a->E), e);
    att_store(b, out, to, kern_cast(b, x, node->out[0].dtype), a->E - e);
  }
  if (lse_mem >= 0) {
    kern_id x = kern_load(b, f->m, r, 1), lse = kern_mem(b, lse_mem);
    x = kern_add(b, x, kern_math(b, IR_LOG, a->acc, 1, &divisor));
    x = kern_select(b, nothing, kern_const_f(b, a->acc, 1, -(double)INFINITY), x);
    kern_store(b, lse, row, kern_cast(b, x, node->out[1].dtype));
  }
  kern_end(b);
}

/* The keys that some query of the block attends to: a number of blocks. */
static kern_id blocks_attended(struct forward *f) {
  struct kern_builder *b = f->b;
  const struct att *a = &f->a;
  kern_id keys = kern_index(b, a->T), end = kern_min_i(b, kern_add_i(b, f->q0, f->queries), a->S);
  if (a->causal) keys = kern_min(b, keys, kern_add_i(b, end, a->T - a->S));
  if (has_offset(a)) keys = kern_min(b, keys, kern_add(b, end, f->offset));
  f->keys = kern_max_i(b, keys, 0);
  return kern_idiv(b, kern_add_i(b, f->keys, f->block - 1), f->block);
}

static void forward_phase(struct forward *f) {
  struct att *a = &f->a;
  int64_t blocks = sched_ceil(a->S, f->queries);
  struct kern_builder b = {a->job->kern, kern_add_phase(a->job->kern, KERN_FIXED_TASKS(a->B * a->H * blocks))};
  f->b = &b;
  kern_id task = kern_task(&b), head = kern_idiv(&b, task, blocks);
  f->q0 = kern_mul_i(&b, kern_imod(&b, task, blocks), f->queries);
  f->batch = kern_idiv(&b, head, a->H);
  f->head = kern_imod(&b, head, a->H);
  f->kv = kern_idiv(&b, head, a->H / a->G); /* (b H + h) / (H / G) = b G + h / (H / G) */
  f->q = kern_local(&b, a->acc, f->queries * a->D);
  f->s = kern_local(&b, a->acc, f->queries * f->block);
  f->o = kern_local(&b, a->acc, f->queries * f->row);
  f->m = kern_local(&b, a->acc, f->lines);
  f->l = kern_local(&b, a->acc, f->lines);
  f->part = kern_local(&b, a->acc, f->lines * a->lanes);
  f->top = kern_local(&b, a->acc, f->lines);
  f->factor = kern_local(&b, a->acc, f->lines);
  if (has_offset(a)) f->offset = offset_of(a, &b, f->batch);
  start_block(f);
  kern_id zero = kern_index(&b, 0), block = kern_for(&b, zero, blocks_attended(f), 1);
  f->j0 = kern_mul_i(&b, block, f->block);
  f->left = kern_min_i(&b, kern_sub(&b, f->keys, f->j0), f->block);
  f->n = kern_min_i(&b, kern_idiv(&b, kern_add_i(&b, f->left, a->nr - 1), a->nr), f->per_block);
  if (has_offset(a)) prefetch_values(f);
  score_block(f, block);
  update_online_softmax(f);
  add_weighted_values(f);
  kern_end(&b);
  finish_block(f);
}

quern_status sched_cpu_attention(struct sched_job *job) {
  struct forward f = {0};
  struct att *a = &f.a;
  att_setup(a, job);
  f.block = (int64_t)PANELS * a->nr;
  att_choose_tile(a);
  f.per_block = f.block / a->nr;
  f.panels = f.per_block * sched_ceil(a->T, f.block);
  a->mr = (int)BASE_MIN((int64_t)a->mr, a->S);
  int64_t strips = (a->S > FEW_QUERIES ? MORE_QUERIES : QUERIES) / a->mr;
  f.queries = a->mr * BASE_MIN(strips, sched_ceil(a->S, a->mr));
  f.lines = sched_ceil(f.queries, a->lanes) * a->lanes;
  f.row = sched_ceil(a->E, a->lanes) * a->lanes;
  f.k_mem = kern_add_mem(job->kern, a->acc, KERN_WORK, a->B * a->G * f.panels * a->D * a->nr);
  sched_work_rows(job, f.k_mem, job->group->ins[a->mem[ATT_K]], a->B * a->G);
  f.v_mem = att_add_wide(a, a->mem[ATT_V]);
  f.scores = att_tile(a, a->nr, a->nr);
  f.outputs = att_cover(a, a->E, a->E);
  att_pack_phase(a, a->mem[ATT_K], f.k_mem, a->B * a->G, a->T, a->D, f.panels);
  if (f.v_mem != a->mem[ATT_V]) att_widen_phase(a, a->mem[ATT_V], f.v_mem, a->B * a->G, a->T * a->E);
  if (job->kern->failed == QUERN_STATUS_OK) forward_phase(&f);
  return job->kern->failed;
}

/* ---- masks ----------------------------------------------------------------------------------------------- */

/* The element number where the row of a query begins in the mask. */
kern_id att_mask_row(struct att *a, struct kern_builder *b, kern_id batch, kern_id head, kern_id query) {
  const int64_t *dims = a->mask->dims;
  kern_id row = kern_min_i(b, query, a->S - 1), zero = kern_index(b, 0);
  kern_id at = kern_mul_i(b, dims[0] > 1 ? batch : zero, dims[1]);
  at = kern_mul_i(b, kern_add(b, at, dims[1] > 1 ? head : zero), dims[2]);
  return kern_mul_i(b, kern_add(b, at, dims[2] > 1 ? row : zero), dims[3]);
}

/* The mask's elements of keys first .. first + lanes - 1; those of keys that are not there are the last one's. whole: all
** are there. */
kern_id att_mask(struct att *a, struct kern_builder *b, kern_id row, kern_id first, bool whole) {
  kern_id mem = kern_mem(b, a->mem[ATT_MASK]), x;
  if (a->mask->dims[3] == 1) {
    x = kern_splat(b, kern_load(b, mem, row, 1), a->lanes);
  } else if (whole) {
    x = kern_load(b, mem, kern_add(b, row, first), a->lanes);
  } else {
    kern_id j = kern_splat(b, first, a->lanes);
    j = kern_add(b, j, kern_lane(b, QUERN_DTYPE_I64, a->lanes));
    j = kern_min(b, j, kern_const_i(b, QUERN_DTYPE_I64, a->lanes, a->T - 1));
    x = kern_gather(b, mem, kern_add(b, kern_splat(b, row, a->lanes), j));
  }
  return a->mask->dtype == QUERN_DTYPE_BOOL ? x : kern_cast(b, x, a->acc);
}
