/* sched/dot_pack.c -- packing: copies of operands in the order in which micro-kernels read them
** Side a: rows of terms. Side b: N-panels, terms of vectors of columns. The prologue, what is fused before the
** contraction, is computed here. Vectors are read along the axis that is contiguous in memory; where that is not the
** one that is contiguous when packed, squares of T x T elements are transposed in registers. An axis of several
** variables may be split into runs, in each of which the innermost variable counts up.
** tests: tests/sched/test_dot.c
*/
#include <stdio.h>

#include "sched/dot.h"

/* ---- squares -------------------------------------------------------------------------------------------- */

int dot_transpose_size(const struct dot *d) { return BASE_MIN(d->lanes, 16); }

/* Exchanges the off-diagonal quarters of all squares of side 2 h: log2(T) such steps transpose. */
static void exchange(struct kern_builder *b, int size, int h, kern_id *x) {
  int low[16], high[16];
  for (int i = 0; i < size; i++) {
    low[i] = (i & h) != 0 ? size + i - h : i;
    high[i] = (i & h) != 0 ? size + i : i + h;
  }
  for (int i = 0; i < size; i++) {
    if ((i & h) != 0) continue;
    kern_id u = x[i], v = x[i + h];
    x[i] = kern_shuffle(b, u, v, size, low);
    x[i + h] = kern_shuffle(b, u, v, size, high);
  }
}

void dot_transpose_square(struct kern_builder *b, int size, kern_id *x) {
  for (int h = size / 2; h >= 1; h /= 2) exchange(b, size, h, x);
}

const struct kern_fn *dot_transpose(struct dot *d) {
  int size = dot_transpose_size(d);
  char name[64];
  snprintf(name, sizeof name, "transpose_%s_%dx%d", base_dtypes[d->acc].name, size, size);
  const quern_dtype dtypes[] = {d->acc, d->acc};
  struct kern_fn *fn = kern_add_fn(d->job->kern, name, 2, dtypes, 4);
  if (fn == NULL) return NULL;
  struct kern_builder builder = {.kern = d->job->kern, .fn = fn}, *b = &builder;
  kern_id src = kern_mem(b, 0), dst = kern_mem(b, 1);
  kern_id src_stride = kern_scalar(b, 0), dst_stride = kern_scalar(b, 1), count = kern_scalar(b, 2), x[16];
  kern_id next = kern_scalar(b, 3);
  kern_id i = kern_for(b, kern_index(b, 0), count, 1), from = kern_mul(b, i, kern_index(b, size));
  kern_id later = kern_add(b, from, next);
  for (int r = 0; r < size; r++) kern_prefetch(b, src, kern_add(b, later, kern_mul_i(b, src_stride, r)));
  for (int r = 0; r < size; r++)
    x[r] = kern_load(b, src, kern_add(b, from, kern_mul(b, kern_index(b, r), src_stride)), size);
  dot_transpose_square(b, size, x);
  for (int r = 0; r < size; r++) kern_store(b, dst, kern_mul(b, kern_add(b, from, kern_index(b, r)), dst_stride), x[r]);
  kern_end(b);
  return fn;
}

/* ---- one side being packed ------------------------------------------------------------------------------- */

struct pack {
  struct dot *d;
  struct kern_builder *b;
  struct kern_values *values;
  const struct dot_operand *side;
  kern_id dst, pc;
  int64_t kb;
  struct dot_word word; /* of bytes: takes the place of the axis of terms */
};

static void set(struct pack *p, int axis, kern_id value, int lanes, kern_id active) {
  if (axis == DOT_TERM && p->d->bytes)
    p->word = (struct dot_word){value, lanes, active != KERN_NONE};
  else
    dot_set(p->d, p->b, p->values, p->side->split_axes, axis, value, lanes, active);
}

/* The operand at the point that is set, in the dtype of accumulators. */
static kern_id value(const struct pack *p, int lanes) {
  if (p->d->bytes) return dot_words(p->d, p->b, p->values, p->side, &p->word, lanes);
  const quern_tensor *t = p->side->tensor;
  kern_id x = kern_values_get(p->values, t, t->rank, p->side->at);
  return kern_cast(p->b, kern_splat(p->b, x, lanes), p->d->acc);
}

static kern_id open_loop(const struct pack *p, kern_id lo, kern_id hi, int64_t step) {
  kern_id i = kern_for(p->b, lo, hi, step);
  kern_values_enter(p->values);
  return i;
}

static void close_loop(const struct pack *p) {
  kern_values_leave(p->values);
  kern_end(p->b);
}

static kern_id times(struct kern_builder *b, kern_id x, int64_t by) { return kern_mul(b, x, kern_index(b, by)); }

static bool is_const(const struct kern_builder *b, kern_id x, int64_t *value) {
  if (b->kern->failed != QUERN_STATUS_OK) return false;
  *value = kern_at_id(b, x)->imm;
  return kern_at_id(b, x)->op == KERN_CONST;
}

static bool is_empty(const struct kern_builder *b, kern_id lo, kern_id hi) {
  int64_t x, y;
  return is_const(b, lo, &x) && is_const(b, hi, &y) && x >= y;
}

/* ---- vectors along an axis --------------------------------------------------------------------------------- */

/* Does something with the vector that is set, which begins `at` places after the first, and `active` lanes of which
** count (KERN_NONE: all). */
typedef void each_vector(struct pack *p, kern_id at, kern_id active, const void *arg);

static void one_vector(struct pack *p, int axis, kern_id base, kern_id at, kern_id active, each_vector *each,
                       const void *arg) {
  set(p, axis, kern_add(p->b, base, at), p->d->lanes, active);
  each(p, at, active, arg);
  set(p, axis, base, 1, KERN_NONE);
}

/* Indices that the run does not change: here, before its loops, so that they are known where the run's end is. */
static void fix_indices(const struct pack *p, int axis) {
  for (int k = 0; k < p->side->tensor->rank; k++) {
    const struct pass_index *at = p->side->at[k];
    if (!pass_index_uses(at, DOT_OUTER + axis) && !pass_index_uses(at, DOT_INNER + axis))
      (void)kern_values_first(p->values, at);
  }
}

/* In runs: the inner variable counts up from its first value or that of base, to its last or that of the end. */
static void each_run(struct pack *p, int axis, kern_id base, kern_id count, each_vector *each, const void *arg) {
  struct kern_builder *b = p->b;
  int64_t inner = p->d->axis[axis].inner;
  fix_indices(p, axis);
  kern_id end = kern_add(b, base, count), last = kern_idiv(b, kern_sub(b, end, kern_index(b, 1)), inner);
  kern_id all = kern_index(b, p->d->axis[axis].size / inner), next = kern_add(b, last, kern_index(b, 1));
  kern_id outer = kern_idiv(b, base, inner);
  outer = open_loop(p, outer, kern_min(b, next, all), 1);
  kern_id first = times(b, outer, inner), lo = kern_max_i(b, kern_sub(b, base, first), 0);
  kern_id hi = kern_min_i(b, kern_sub(b, end, first), inner), i = open_loop(p, lo, hi, p->d->lanes);
  kern_id active = kern_min_i(b, kern_sub(b, hi, i), p->d->lanes);
  dot_set_parts(p->values, axis, outer, i, p->d->lanes, active);
  each(p, kern_add(b, kern_sub(b, first, base), i), active, arg);
  dot_set_parts(p->values, axis, outer, i, 1, KERN_NONE);
  close_loop(p);
  close_loop(p);
}

/* count values of an axis from base on. */
static void along(struct pack *p, int axis, kern_id base, kern_id count, each_vector *each, const void *arg) {
  struct kern_builder *b = p->b;
  int64_t lanes = p->d->lanes, n;
  if ((p->side->split_axes >> axis & 1) != 0) {
    each_run(p, axis, base, count, each, arg);
    return;
  }
  kern_id rest = kern_imod(b, count, lanes), whole = kern_sub(b, count, rest);
  if (!is_empty(b, kern_index(b, 0), whole)) {
    one_vector(p, axis, base, open_loop(p, kern_index(b, 0), whole, lanes), KERN_NONE, each, arg);
    close_loop(p);
  }
  if (is_const(b, rest, &n) && n == 0) return;
  kern_if(b, kern_bin(b, KERN_LT, kern_index(b, 0), rest));
  kern_values_enter(p->values);
  one_vector(p, axis, base, whole, rest, each, arg);
  close_loop(p);
}

/* Stores the vector to memory `arg` names, of which p->dst is the first element. */
struct to {
  kern_id mem, at;
};
static void store_vector(struct pack *p, kern_id at, kern_id active, const void *arg) {
  const struct to *to = arg;
  kern_id x = value(p, p->d->lanes);
  kern_store_n(p->b, to->mem, kern_add(p->b, to->at, at), x, active);
}

/* ---- across -------------------------------------------------------------------------------------------------- */

/* A box of elements: `outer` is the axis along which memory is not contiguous, n_outer values from outer_base on,
** `inner` the other, of which there are inner_all in all. Element (o, i), counted from the bases, is packed at
** i * stride + o. */
struct box {
  int outer, inner;
  kern_id outer_base, inner_base, n_inner;
  int64_t n_outer, inner_all, stride;
};

/* Elements (o, i) with o_lo <= o < o_hi and i_lo <= i < i_hi, one by one. */
static void pack_slowly(struct pack *p, const struct box *box, kern_id o_lo, kern_id o_hi, kern_id i_lo, kern_id i_hi) {
  struct kern_builder *b = p->b;
  if (is_empty(b, o_lo, o_hi) || is_empty(b, i_lo, i_hi)) return;
  kern_id o = open_loop(p, o_lo, o_hi, 1);
  set(p, box->outer, kern_add(b, box->outer_base, o), 1, KERN_NONE);
  kern_id i = open_loop(p, i_lo, i_hi, 1); /* i is inside by what the caller says, and is said to be here */
  kern_id at = kern_min_i(b, kern_add(b, box->inner_base, i), box->inner_all - 1);
  set(p, box->inner, at, 1, KERN_NONE);
  kern_id x = value(p, 1);
  kern_store(b, p->dst, kern_add(b, times(b, i, box->stride), o), x);
  close_loop(p);
  close_loop(p);
}

static void call_transpose(const struct pack *p, kern_id src, int64_t src_stride, kern_id dst, int64_t dst_stride,
                           kern_id count, kern_id next) {
  kern_id from = kern_index(p->b, src_stride), to = kern_index(p->b, dst_stride);
  kern_call_fn(p->b, p->d->transpose, 2, (const kern_id[]){src, dst}, 4, (const kern_id[]){from, to, count, next});
}

/* From memory as it lies. */
static void transpose_block(struct pack *p, const struct box *box) {
  struct kern_builder *b = p->b;
  const struct dot_view *place = &p->side->view;
  int size = dot_transpose_size(p->d);
  int64_t step = box->outer == DOT_TERM ? place->term : place->own, groups = box->n_outer / size;
  kern_id zero = kern_index(b, 0), squares = kern_idiv(b, box->n_inner, size), done = kern_index(b, groups * size);
  if (groups > 0 && box->inner_all >= size) {
    kern_id first = times(b, open_loop(p, zero, kern_index(b, groups), 1), size);
    set(p, box->outer, kern_add(b, box->outer_base, first), 1, KERN_NONE);
    set(p, box->inner, box->inner_base, 1, KERN_NONE);
    kern_id src = dot_view_mem(b, p->values, place), left = kern_add(b, box->outer_base, first);
    left = kern_sub(b, kern_index(b, p->d->axis[box->outer].size - size), left);
    kern_id next = times(b, kern_min_i(b, kern_max_i(b, left, 0), size), step);
    call_transpose(p, src, step, kern_at(b, p->dst, first), box->stride, squares, next);
    close_loop(p);
  }
  pack_slowly(p, box, zero, done, times(b, squares, size), box->n_inner);
  pack_slowly(p, box, done, kern_index(b, box->n_outer), zero, box->n_inner);
}

/* `rows` values of the outer axis from `first` on: computed to rows of scratch, then transposed. */
static void transpose_stage(struct pack *p, const struct box *box, kern_id stage, kern_id first, int rows) {
  struct kern_builder *b = p->b;
  int size = dot_transpose_size(p->d);
  kern_id zero = kern_index(b, 0), row = open_loop(p, zero, kern_index(b, rows), 1);
  set(p, box->outer, kern_add(b, box->outer_base, kern_add(b, first, row)), 1, KERN_NONE);
  struct to to = {stage, times(b, row, DOT_PACKED_ROW)};
  along(p, box->inner, box->inner_base, box->n_inner, store_vector, &to);
  close_loop(p);
  kern_id squares = rows == size ? kern_idiv(b, box->n_inner, size) : zero, dst = kern_at(b, p->dst, first);
  if (rows == size) call_transpose(p, stage, DOT_PACKED_ROW, dst, box->stride, squares, zero);
  if (is_empty(b, times(b, squares, size), box->n_inner)) return;
  kern_id o = open_loop(p, zero, kern_index(b, rows), 1), i = open_loop(p, times(b, squares, size), box->n_inner, 1);
  kern_id x = kern_load(b, stage, kern_add(b, times(b, o, DOT_PACKED_ROW), i), 1);
  kern_store(b, dst, kern_add(b, times(b, i, box->stride), o), x);
  close_loop(p);
  close_loop(p);
}

static void pack_across(struct pack *p, const struct box *box) {
  struct kern_builder *b = p->b;
  int size = dot_transpose_size(p->d), left = (int)(box->n_outer % size);
  if (p->side->view.mem >= 0) {
    transpose_block(p, box);
    return;
  }
  kern_id stage = kern_local(b, p->d->acc, (int64_t)size * DOT_PACKED_ROW);
  if (box->n_outer >= size) {
    kern_id zero = kern_index(b, 0), group = open_loop(p, zero, kern_index(b, box->n_outer / size), 1);
    transpose_stage(p, box, stage, times(b, group, size), size);
    close_loop(p);
  }
  if (left > 0) transpose_stage(p, box, stage, kern_index(b, box->n_outer - left), left);
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

void dot_pack_rows(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id dst, kern_id first,
                   kern_id end, int64_t most, kern_id pc, int64_t kb) {
  struct pack p = {.d = d, .b = b, .values = values, .side = &d->a, .dst = dst, .pc = pc, .kb = kb};
  if (d->a.across) {
    kern_id rows = kern_max_i(b, kern_sub(b, end, first), 0);
    struct box box = {.outer = DOT_TERM,
                      .inner = DOT_ROW,
                      .outer_base = pc,
                      .inner_base = first,
                      .n_outer = kb,
                      .n_inner = kern_min(b, rows, kern_index(b, most)),
                      .inner_all = d->m,
                      .stride = DOT_PACKED_ROW};
    pack_across(&p, &box);
    return;
  }
  kern_id row = open_loop(&p, first, end, 1);
  set(&p, DOT_ROW, row, 1, KERN_NONE);
  struct to to = {dst, times(b, kern_sub(b, row, first), DOT_PACKED_ROW)};
  along(&p, DOT_TERM, pc, kern_index(b, kb), store_vector, &to);
  close_loop(&p);
}

/* ---- panels --------------------------------------------------------------------------------------------- */

/* Term by term, the columns in runs. */
static void pack_runs(struct pack *p, kern_id first, int64_t cols, int64_t width) {
  struct kern_builder *b = p->b;
  kern_id zero = kern_index(b, 0), k = open_loop(p, zero, kern_index(b, p->kb), 1);
  set(p, DOT_TERM, kern_add(b, p->pc, k), 1, KERN_NONE);
  struct to to = {p->dst, times(b, k, width)};
  along(p, DOT_COL, first, kern_index(b, cols), store_vector, &to);
  close_loop(p);
}

enum { AHEAD = 16 }; /* terms */

/* Prefetches the vectors of a later term: a panel's part of it is too short for a CPU's own prefetcher to see what
** comes next. */
static void fetch_terms(struct pack *p, kern_id k, kern_id first, int vectors) {
  struct kern_builder *b = p->b;
  const struct dot_view *place = &p->side->view;
  if (place->mem < 0) return;
  kern_id later = kern_min_i(b, kern_add_i(b, k, AHEAD), p->kb - 1);
  set(p, DOT_TERM, kern_add(b, p->pc, later), 1, KERN_NONE);
  for (int v = 0; v < vectors; v++) {
    set(p, DOT_COL, kern_add_i(b, first, (int64_t)v * p->d->lanes), 1, KERN_NONE);
    kern_id at = kern_values_first(p->values, place->offset);
    kern_prefetch(b, kern_mem(b, place->mem), at);
  }
}

/* Term by term, all vectors of the panel. */
static void pack_terms(struct pack *p, kern_id first, int vectors, int tail) {
  struct kern_builder *b = p->b;
  int lanes = p->d->lanes;
  kern_id zero = kern_index(b, 0), k = open_loop(p, zero, kern_index(b, p->kb), 1);
  fetch_terms(p, k, first, vectors);
  set(p, DOT_TERM, kern_add(b, p->pc, k), 1, KERN_NONE);
  for (int v = 0; v < vectors; v++) {
    kern_id active = tail > 0 && v == vectors - 1 ? kern_index(b, tail) : KERN_NONE,
            at = kern_index(b, (int64_t)v * lanes);
    set(p, DOT_COL, kern_add(b, first, at), lanes, active);
    kern_id x = value(p, lanes);
    kern_store(b, p->dst, kern_add(b, times(b, k, (int64_t)vectors * lanes), at), x);
  }
  set(p, DOT_COL, first, 1, KERN_NONE);
  close_loop(p);
}

/* Lanes that do not count hold numbers, not what scratch held before. */
static void clear_tail(struct pack *p, int vectors) {
  struct kern_builder *b = p->b;
  int64_t lanes = p->d->lanes, width = vectors * lanes;
  kern_id k = kern_range(b, 0, p->kb, 1);
  kern_id at = kern_add_i(b, times(b, k, width), width - lanes);
  kern_store(b, p->dst, at, kern_const_bits(b, p->d->acc, p->d->lanes, 0));
  kern_end(b);
}

void dot_pack_panel(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id dst, kern_id panel,
                    int vectors, int tail, kern_id pc, int64_t kb) {
  struct pack p = {.d = d, .b = b, .values = values, .side = &d->b, .dst = dst, .pc = pc, .kb = kb};
  int64_t width = (int64_t)vectors * d->lanes, cols = tail > 0 ? width - d->lanes + tail : width;
  kern_id first = times(b, panel, (int64_t)d->nv * d->lanes);
  bool runs = (d->b.split_axes >> DOT_COL & 1) != 0;
  if (!d->b.across && !runs) {
    pack_terms(&p, first, vectors, tail);
    return;
  }
  if (tail > 0) clear_tail(&p, vectors);
  if (d->b.across) {
    struct box box = {.outer = DOT_COL,
                      .inner = DOT_TERM,
                      .outer_base = first,
                      .inner_base = pc,
                      .n_outer = cols,
                      .n_inner = kern_index(b, kb),
                      .inner_all = d->k,
                      .stride = width};
    pack_across(&p, &box);
  } else {
    pack_runs(&p, first, cols, width);
  }
}
