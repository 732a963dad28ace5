/* sched/dot_micro.c -- micro-kernels: a register tile, rows x vectors sums in registers, over the terms of a block
** keeps: each sum is one chain in the order of the terms, so that tiles of every size give the same bits
** needs: rows * vectors accumulators, the vectors of b and one of a fit the registers; dot_choose.c sees to it
** tests: tests/sched/test_dot.c
*/
#include <stdio.h>

#include "sched/dot.h"

enum { UNROLL = 4, MOST = 32 };

kern_id dot_term(const struct dot *d, struct kern_builder *b, kern_id acc, kern_id x, kern_id y) {
  static const enum kern_op combines[IR_COMBINE_COUNT] = {[IR_COMBINE_MUL] = KERN_MUL,
                                                          [IR_COMBINE_ADD] = KERN_ADD,
                                                          [IR_COMBINE_MAX] = KERN_MAX,
                                                          [IR_COMBINE_MIN] = KERN_MIN};
  if (d->bytes) return kern_dot4(b, acc, d->unsigned_a ? x : y, d->unsigned_a ? y : x);
  if (d->reduce == IR_SUM && d->combine == IR_COMBINE_MUL && base_dtype_is(d->acc, BASE_FLOAT))
    return kern_fma(b, x, y, acc);
  return kern_combine(b, d->reduce, acc, kern_bin(b, combines[d->combine], x, y));
}

/* The tile while its function is being built. */
struct tile {
  const struct dot *d;
  struct kern_builder *b;
  int rows, vectors;
  bool partial;
  int64_t ldb;                /* a constant that takes the scalar's place, or 0 */
  struct kern_values *values; /* where side a is split: tells where terms lie; else NULL */
  kern_id scalar[DOT_SCALARS];
  kern_id row[MOST], right, result; /* memories */
  kern_id acc[MOST];
};

static kern_id load_right(const struct tile *t, kern_id at, int v) {
  kern_id index = kern_add(t->b, at, kern_index(t->b, (int64_t)v * t->d->lanes));
  bool cut = t->partial && v == t->vectors - 1;
  return kern_load_n(t->b, t->right, index, t->d->lanes, cut ? t->scalar[DOT_TAIL] : KERN_NONE);
}

/* Where term k of the block lies in a row. */
static kern_id left_at(const struct tile *t, kern_id k) {
  if (t->values == NULL) return k;
  kern_values_set(t->values, DOT_TERM, kern_add(t->b, t->scalar[DOT_PC], k), 1, KERN_NONE);
  return kern_values_first(t->values, t->d->a.im2col.terms);
}

/* One term: all sums of the tile. */
static void term(const struct tile *t, kern_id k) {
  struct kern_builder *b = t->b;
  kern_id right[MOST], ldb = t->ldb > 0 ? kern_index(b, t->ldb) : t->scalar[DOT_LDB], at = kern_mul(b, k, ldb);
  for (int v = 0; v < t->vectors; v++) right[v] = load_right(t, at, v);
  k = left_at(t, k);
  for (int i = 0; i < t->rows; i++) {
    kern_id x = kern_splat(b, kern_load(b, t->row[i], k, 1), t->d->lanes);
    for (int v = 0; v < t->vectors; v++) {
      kern_id acc = t->acc[i * t->vectors + v];
      kern_set(b, acc, dot_term(t->d, b, kern_get(b, acc), x, right[v]));
    }
  }
}

static kern_id open_terms(const struct tile *t, kern_id lo, kern_id hi, int64_t step) {
  kern_id k = kern_for(t->b, lo, hi, step);
  if (t->values != NULL) kern_values_enter(t->values);
  return k;
}

static void close_terms(const struct tile *t) {
  if (t->values != NULL) kern_values_leave(t->values);
  kern_end(t->b);
}

static void terms(const struct tile *t) {
  struct kern_builder *b = t->b;
  kern_id kb = t->scalar[DOT_KB], whole = kern_sub(b, kb, kern_imod(b, kb, UNROLL));
  kern_id k = open_terms(t, kern_index(b, 0), whole, UNROLL);
  for (int u = 0; u < UNROLL; u++) term(t, kern_add_i(b, k, u));
  close_terms(t);
  term(t, open_terms(t, whole, kb, 1));
  close_terms(t);
}

/* Vector v of row i of the result: its index, and how many lanes of it count. */
static kern_id result_at(const struct tile *t, int i, int v, kern_id *count) {
  struct kern_builder *b = t->b;
  *count = t->partial && v == t->vectors - 1 ? t->scalar[DOT_TAIL] : KERN_NONE;
  kern_id row = kern_mul(b, kern_index(b, i), t->scalar[DOT_LDC]);
  return kern_add(b, row, kern_index(b, (int64_t)v * t->d->lanes));
}

static void add_before(const struct tile *t) {
  struct kern_builder *b = t->b;
  kern_if(b, kern_bin(b, KERN_LT, kern_index(b, 0), t->scalar[DOT_ADD]));
  for (int i = 0; i < t->rows * t->vectors; i++) {
    kern_id count, at = result_at(t, i / t->vectors, i % t->vectors, &count);
    kern_id before = kern_load_n(b, t->result, at, t->d->lanes, count);
    kern_set(b, t->acc[i], kern_combine(b, t->d->reduce, before, kern_get(b, t->acc[i])));
  }
  kern_end(b);
}

/* A function with its memories, its scalars and its sums at their start; false when there is no memory. */
static bool begin(struct tile *t, const char *kind) {
  const struct dot *d = t->d;
  QUERN_ASSERT(t->rows >= 1 && t->vectors >= 1 && t->rows * t->vectors <= MOST);
  char name[64];
  snprintf(name, sizeof name, "dot_%s_%s_%s_%dx%d%s%s", ir_reduce_names[d->reduce], ir_combine_names[d->combine],
           d->bytes ? "bytes" : base_dtypes[d->acc].name, t->rows, t->vectors * d->lanes, kind,
           t->partial ? "_part" : "");
  int lefts = d->a.reads_im2col ? t->rows : 1;
  quern_dtype dtypes[MOST + 3];
  for (int i = 0; i < lefts + 3; i++) dtypes[i] = d->acc;
  t->b->kern = d->job->kern;
  t->b->fn = kern_add_fn(d->job->kern, name, lefts + (d->biased ? 3 : 2), dtypes, DOT_SCALARS);
  if (t->b->fn == NULL) return false;
  for (int i = 0; i < DOT_SCALARS; i++) t->scalar[i] = kern_scalar(t->b, i);
  for (int i = 0; i < lefts; i++) t->row[i] = kern_mem(t->b, i);
  t->right = kern_mem(t->b, lefts);
  t->result = kern_mem(t->b, lefts + 1);
  for (int i = 0; i < t->rows && !d->a.reads_im2col; i++)
    t->row[i] = kern_at(t->b, t->row[0], kern_mul_i(t->b, t->scalar[DOT_LDA], i));
  kern_id start = kern_neutral(t->b, d->reduce, d->acc, d->lanes);
  for (int i = 0; i < t->rows * t->vectors; i++) {
    kern_id at = kern_index(t->b, (int64_t)(i % t->vectors) * d->lanes);
    t->acc[i] = kern_var(t->b, d->biased ? kern_load(t->b, kern_mem(t->b, lefts + 2), at, d->lanes) : start);
  }
  return true;
}

/* Adds what was there before, if asked to, and stores. */
static void end(const struct tile *t) {
  add_before(t);
  for (int i = 0; i < t->rows * t->vectors; i++) {
    kern_id count, at = result_at(t, i / t->vectors, i % t->vectors, &count);
    kern_store_n(t->b, t->result, at, kern_get(t->b, t->acc[i]), count);
  }
}

const struct kern_fn *dot_micro_kernel(struct dot *d, int rows, int vectors, bool partial, int64_t ldb) {
  struct kern_builder b;
  struct tile t = {.d = d, .b = &b, .rows = rows, .vectors = vectors, .partial = partial, .ldb = ldb};
  if (!begin(&t, d->a.reads_im2col ? "_windows" : ldb > 0 ? "_packed" : "")) return NULL;
  if (d->a.reads_im2col && kern_values_new(&t.values, &b, d->job->ctx, d->space) != QUERN_STATUS_OK) {
    d->job->kern->failed = QUERN_STATUS_MEMORY;
    return NULL;
  }
  terms(&t);
  kern_values_free(t.values);
  end(&t);
  return b.fn;
}

/* ---- side b transposed in registers -------------------------------------------------------------------------- */

static void transposed_term(const struct tile *t, kern_id k, kern_id right) {
  for (int i = 0; i < t->rows; i++) {
    kern_id x = kern_splat(t->b, kern_load(t->b, t->row[i], k, 1), t->d->lanes);
    kern_set(t->b, t->acc[i], dot_term(t->d, t->b, kern_get(t->b, t->acc[i]), x, right));
  }
}

/* Element k of column j. */
static kern_id transposed_at(const struct tile *t, int j, kern_id k) {
  return kern_add(t->b, kern_mul(t->b, kern_index(t->b, j), t->scalar[DOT_LDB]), k);
}

const struct kern_fn *dot_micro_kernel_transposed(struct dot *d, int rows) {
  int lanes = d->lanes;
  struct kern_builder builder, *b = &builder;
  struct tile t = {.d = d, .b = b, .rows = rows, .vectors = 1};
  if (!begin(&t, "_turned")) return NULL;
  kern_id kb = t.scalar[DOT_KB], whole = kern_sub(b, kb, kern_imod(b, kb, lanes)), x[MOST];
  kern_id k = kern_for(b, kern_index(b, 0), whole, lanes);
  for (int j = 0; j < lanes; j++) x[j] = kern_load(b, t.right, transposed_at(&t, j, k), lanes);
  dot_transpose_square(b, lanes, x);
  for (int j = 0; j < lanes; j++) transposed_term(&t, kern_add(b, k, kern_index(b, j)), x[j]);
  kern_end(b);
  kern_id column = kern_local(b, d->acc, lanes);
  k = kern_for(b, whole, kb, 1);
  for (int j = 0; j < lanes; j++) {
    kern_id element = kern_load(b, t.right, transposed_at(&t, j, k), 1);
    kern_store(b, column, kern_index(b, j), element);
  }
  transposed_term(&t, k, kern_load(b, column, kern_index(b, 0), lanes));
  kern_end(b);
  end(&t);
  return b->fn;
}
