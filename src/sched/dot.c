/* sched/dot.c -- a contraction on a CPU: tasks, blocks of terms, chunks of columns, M-strips and N-panels around the
** micro-kernel
** A task has some M-strips (rows of register tiles) and N-panels (columns of them). For each block of terms, and for
** each chunk of its panels: side b is packed, so that it lies in the second-level cache; then, strip by strip,
** micro-kernels read a strip of side a, which stays in the first. Sums grow in an out where that can be, else in
** scratch; after the last block the epilogue makes the strip into the outs while it is hot. (Goto, van de Geijn:
** "Anatomy of high-performance matrix multiplication", 2008; BLIS.)
** keeps: sums are those of dot_scalar.c, bit by bit, whatever the sizes of tiles and tasks
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

enum { TILE_ROWS = 32 };

/* The function of the phase while it is being built. */
struct body {
  struct dot *d;
  struct kern_builder *b;
  struct kern_values *values;
  kern_id strip_lo, strip_hi, panel_lo, panel_hi; /* of the task */
  kern_id rows, panels, sums, start; /* scratch: packed a, packed b, c, their biases; KERN_NONE where there is none */
  kern_id transposed;                /* scratch: sums, columns by rows */
  int64_t sums_stride, sums_strips;  /* of c in scratch */
  kern_id sums_lo;                   /* the strip that it begins with */
  bool all_sums;                     /* it has the sums of the task */
  kern_id batch, split;              /* of the task */
};

/* A block of terms, and a chunk of panels. */
struct block {
  kern_id pc, add;
  int64_t kb;
  bool last;
  kern_id lo, hi;
};

static kern_id clamp(struct kern_builder *b, kern_id x, int64_t hi) {
  return kern_min_i(b, kern_max(b, x, kern_index(b, 0)), hi);
}

static kern_id times(struct kern_builder *b, kern_id x, int64_t by) { return kern_mul(b, x, kern_index(b, by)); }

static kern_id open_loop(struct body *f, kern_id lo, kern_id hi, int64_t step) {
  kern_id i = kern_for(f->b, lo, hi, step);
  kern_values_enter(f->values);
  return i;
}

static void open_if(struct body *f, kern_id x, kern_id less_than) {
  kern_if(f->b, kern_bin(f->b, KERN_LT, x, less_than));
  kern_values_enter(f->values);
}

static void open_else(struct body *f) {
  kern_values_leave(f->values);
  kern_else(f->b);
  kern_values_enter(f->values);
}

static void close_block(struct body *f) {
  kern_values_leave(f->values);
  kern_end(f->b);
}

/* ---- shapes of tiles ------------------------------------------------------------------------------------- */

static int64_t panel_width(const struct dot *d) { return (int64_t)d->nv * d->lanes; }
static int64_t full_strips(const struct dot *d) { return d->m / d->mr; }
static int64_t full_panels(const struct dot *d) { return d->n / panel_width(d); }
static int last_rows(const struct dot *d) { return (int)(d->m % d->mr); }
static int last_vectors(const struct dot *d) { return (int)sched_ceil(d->n % panel_width(d), d->lanes); }
static int last_lanes(const struct dot *d) { return (int)(d->n % d->lanes); }

/* True when the sums of all rows of the task are transposed in the end. */
static bool is_column_major(const struct dot *d) { return d->column_major_epilogue && d->k_splits == 0; }

static void make_functions(struct dot *d) {
  bool padded = d->c.mem < 0 || d->k_splits > 0, cut = last_lanes(d) != 0 && (!padded || !d->b.packed);
  for (int i = 0; i < 2; i++) {
    int rows = i == 0 ? (full_strips(d) > 0 ? d->mr : 0) : last_rows(d);
    for (int j = 0; j < 2; j++) {
      int vectors = j == 0 ? (full_panels(d) > 0 ? d->nv : 0) : last_vectors(d);
      if (rows > 0 && vectors > 0 && j == 0 && d->b_transposed)
        d->micro[i][j] = dot_micro_kernel_transposed(d, rows);
      else if (rows > 0 && vectors > 0)
        d->micro[i][j] =
            dot_micro_kernel(d, rows, vectors, j == 1 && cut, d->b.packed ? (int64_t)vectors * d->lanes : 0);
    }
  }
  for (int j = 0; j < 2 && d->biased; j++) {
    int vectors = j == 0 ? (full_panels(d) > 0 ? d->nv : 0) : last_vectors(d);
    if (vectors > 0) d->bias[j] = dot_bias(d, vectors);
  }
  bool turns = (d->a.packed && d->a.across) || (d->b.packed && d->b.across && !d->prepacked);
  if (turns || is_column_major(d)) d->transpose = dot_transpose(d);
}

/* ---- one tile -------------------------------------------------------------------------------------------- */

/* Where a panel of the chunk lies in scratch that has `size` elements a panel. */
static kern_id of_panel(struct body *f, const struct block *k, kern_id panel, kern_id scratch, int64_t size) {
  kern_id number = clamp(f->b, kern_sub(f->b, panel, k->lo), f->d->chunk_n_panels - 1);
  return kern_at(f->b, scratch, times(f->b, number, size));
}

static kern_id packed_panel(struct body *f, const struct block *k, kern_id panel) {
  if (f->d->prepacked) {
    kern_id mem = kern_mem(f->b, f->d->job->sched->packed - 1);
    return kern_at(f->b, mem, dot_packed_at(f->d, f->b, f->batch, panel, k->pc, k->kb));
  }
  if (f->d->b_transposed) return f->panels;
  return of_panel(f, k, panel, f->panels, DOT_BLOCK * panel_width(f->d));
}

/* Where the sums of row 0 of a strip in scratch begin. */
static kern_id sums_row(struct body *f, kern_id strip) {
  if (f->sums_strips == 1) return kern_index(f->b, 0);
  kern_id number = clamp(f->b, kern_sub(f->b, strip, f->sums_lo), f->sums_strips - 1);
  return times(f->b, number, f->d->mr * f->sums_stride);
}

/* The column of scratch at which a panel begins. */
static kern_id sums_col(struct body *f, const struct block *k, kern_id panel) {
  kern_id first = f->all_sums ? f->panel_lo : k->lo;
  int64_t n = f->sums_stride / panel_width(f->d);
  return times(f->b, clamp(f->b, kern_sub(f->b, panel, first), n - 1), panel_width(f->d));
}

/* Memories of side a for a strip: where it begins, or where each of its rows does. Returns how many. */
static int left_of(struct body *f, kern_id strip, kern_id pc, int rows, kern_id *mems) {
  const struct dot *d = f->d;
  struct kern_builder *b = f->b;
  kern_id row = clamp(b, kern_sub(b, strip, f->strip_lo), d->task_m_strips - 1), first = times(b, strip, d->mr);
  mems[0] = d->packs_a_once     ? dot_packed_once_at(d, b, strip, pc)
            : d->a.packed       ? kern_at(b, f->rows, times(b, row, (int64_t)d->mr * DOT_PACKED_ROW))
            : d->a.reads_im2col ? KERN_NONE
                                : dot_view_mem(b, f->values, &d->a.view);
  if (!d->a.reads_im2col) return 1;
  kern_id mem = kern_mem(b, d->a.im2col.mem);
  for (int i = 0; i < rows; i++) {
    kern_values_set(f->values, DOT_ROW, kern_min_i(b, kern_add_i(b, first, i), d->m - 1), 1, KERN_NONE);
    mems[i] = kern_at(b, mem, kern_values_first(f->values, d->a.im2col.rows));
  }
  kern_values_set(f->values, DOT_ROW, first, 1, KERN_NONE);
  return rows;
}

static void call_micro(struct body *f, const struct block *k, kern_id strip, kern_id panel, bool small_strip,
                       bool small_panel) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  kern_id col = times(b, panel, panel_width(d));
  kern_values_set(f->values, DOT_ROW, times(b, strip, d->mr), 1, KERN_NONE);
  kern_values_set(f->values, DOT_TERM, k->pc, 1, KERN_NONE);
  kern_values_set(f->values, DOT_COL, col, 1, KERN_NONE);
  if (d->c.mem >= 0 && d->split_axes != 0) dot_set(d, b, f->values, d->split_axes, DOT_COL, col, 1, KERN_NONE);
  kern_id mems[TILE_ROWS + 3];
  int lefts = left_of(f, strip, k->pc, small_strip ? last_rows(d) : d->mr, mems);
  bool transposed = d->b_transposed && !small_panel, packed = d->b.packed && !transposed;
  kern_id right = packed ? packed_panel(f, k, panel) : dot_view_mem(b, f->values, &d->b.view), sums;
  if (d->c.mem >= 0) {
    sums = dot_view_mem(b, f->values, &d->c);
  } else {
    sums = sums_row(f, strip);
    sums = kern_at(b, f->sums, kern_add(b, sums, sums_col(f, k, panel)));
  }
  if (d->k_splits > 0) sums = kern_at(b, sums, times(b, f->split, d->k_split_size));
  kern_id scalars[DOT_SCALARS];
  scalars[DOT_KB] = kern_index(b, k->kb);
  scalars[DOT_LDA] = kern_index(b, d->a.packed ? DOT_PACKED_ROW : d->a.view.own);
  scalars[DOT_LDB] = kern_index(b, packed ? panel_width(d) : transposed ? d->b.view.own : d->b.view.term);
  scalars[DOT_LDC] = kern_index(b, d->c.mem >= 0 ? d->c.term : f->sums_stride);
  scalars[DOT_ADD] = k->add;
  scalars[DOT_TAIL] = kern_index(b, last_lanes(d));
  scalars[DOT_PC] = k->pc;
  mems[lefts] = right;
  mems[lefts + 1] = sums;
  if (d->biased) mems[lefts + 2] = of_panel(f, k, panel, f->start, panel_width(d));
  kern_call_fn(b, d->micro[small_strip][small_panel], lefts + (d->biased ? 3 : 2), mems, DOT_SCALARS, scalars);
}

static void each_panel(struct body *f, const struct block *k, kern_id strip, bool small_strip) {
  struct dot *d = f->d;
  kern_id full = kern_index(f->b, full_panels(d)), panel = open_loop(f, k->lo, k->hi, 1);
  bool both = full_panels(d) > 0 && full_panels(d) < d->n_panels;
  if (both) open_if(f, panel, full);
  if (full_panels(d) > 0) call_micro(f, k, strip, panel, small_strip, false);
  if (both) open_else(f);
  if (full_panels(d) < d->n_panels) call_micro(f, k, strip, panel, small_strip, true);
  if (both) close_block(f);
  close_block(f);
}

/* ---- the epilogue ------------------------------------------------------------------------------------- */

/* The outs from the vector of sums that begins at column col of the row that is set. */
static void finish_vector(struct body *f, const struct block *k, kern_id sums_at, kern_id col, kern_id active) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  dot_set(d, b, f->values, d->split_axes, DOT_COL, col, d->lanes, active);
  kern_id mem = f->sums, at;
  if (d->c.mem >= 0) {
    mem = kern_mem(b, d->c.mem);
    at = kern_values_first(f->values, d->c.offset);
  } else {
    kern_id first = times(b, f->all_sums ? f->panel_lo : k->lo, panel_width(d));
    at = kern_add(b, sums_at, clamp(b, kern_sub(b, col, first), f->sums_stride - d->lanes));
  }
  dot_finish(d, b, f->values, kern_load_n(b, mem, at, d->lanes, d->c.mem >= 0 ? active : KERN_NONE), active);
  dot_set(d, b, f->values, d->split_axes, DOT_COL, col, 1, KERN_NONE);
}

static void finish_strip(struct body *f, const struct block *k, kern_id strip) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  kern_id first = times(b, strip, d->mr);
  kern_id rows = kern_min_i(b, kern_sub(b, kern_index(b, d->m), first), d->mr);
  kern_id i = open_loop(f, kern_index(b, 0), rows, 1);
  kern_values_set(f->values, DOT_ROW, kern_min_i(b, kern_add(b, first, i), d->m - 1), 1, KERN_NONE);
  kern_id at = d->c.mem >= 0 ? KERN_NONE : sums_row(f, strip);
  if (d->c.mem < 0) at = kern_add(b, at, times(b, i, f->sums_stride));
  if (d->n >= d->lanes) {
    kern_id end = kern_min_i(b, times(b, k->hi, d->nv), d->n / d->lanes);
    kern_id vector = open_loop(f, times(b, k->lo, d->nv), end, 1);
    finish_vector(f, k, at, times(b, vector, d->lanes), KERN_NONE);
    close_block(f);
  }
  if (last_lanes(d) != 0) {
    open_if(f, kern_index(b, d->n_panels - 1), k->hi);
    kern_id col = kern_index(b, d->n - last_lanes(d));
    finish_vector(f, k, at, col, kern_index(b, last_lanes(d)));
    close_block(f);
  }
  close_block(f);
}

/* A vector of columns of some rows, where outs are contiguous along rows: squares of sums are transposed, then lanes
** run along rows. sums: from the first row and column on. */
static void finish_columns(struct body *f, kern_id sums, kern_id first, kern_id rows, kern_id col) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  int64_t lanes = d->lanes, most = d->strip_group * d->mr;
  bool whole = d->m % lanes == 0 && d->batch_rows == 0;
  kern_id zero = kern_index(b, 0), stride = kern_index(b, f->sums_stride), width = kern_index(b, most);
  kern_id one = kern_index(b, 1), i = kern_min_i(b, open_loop(f, zero, rows, lanes), most - lanes);
  kern_id from = kern_at(b, sums, times(b, i, f->sums_stride)), to = kern_at(b, f->transposed, i);
  kern_call_fn(b, d->transpose, 2, (const kern_id[]){from, to}, 4, (const kern_id[]){stride, width, one, zero});
  close_block(f);
  kern_id cols = kern_min_i(b, kern_sub(b, kern_index(b, d->n), col), lanes), j = open_loop(f, zero, cols, 1);
  dot_set(d, b, f->values, d->split_axes, DOT_COL, kern_min_i(b, kern_add(b, col, j), d->n - 1), 1, KERN_NONE);
  i = kern_min_i(b, open_loop(f, zero, rows, lanes), most - lanes);
  kern_id active = whole ? KERN_NONE : kern_min_i(b, kern_sub(b, rows, i), lanes), row = kern_add(b, first, i);
  if (whole) row = kern_min_i(b, row, d->m - lanes);
  kern_values_set(f->values, DOT_ROW, row, d->lanes, active);
  i = kern_add(b, times(b, j, most), i);
  dot_finish(d, b, f->values, kern_load(b, f->transposed, i, d->lanes), active);
  kern_values_set(f->values, DOT_ROW, row, 1, KERN_NONE);
  close_block(f);
  close_block(f);
}

static void finish_strip_group(struct body *f, const struct block *k, kern_id lo, kern_id hi) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  kern_id first = times(b, lo, d->mr), end = kern_min_i(b, times(b, hi, d->mr), d->m);
  kern_id rows = kern_min_i(b, kern_sub(b, end, first), d->strip_group * d->mr), sums = sums_row(f, lo);
  kern_id last = kern_min_i(b, times(b, k->hi, d->nv), sched_ceil(d->n, d->lanes));
  kern_id col = times(b, open_loop(f, times(b, k->lo, d->nv), last, 1), d->lanes);
  kern_id left = kern_sub(b, col, times(b, f->all_sums ? f->panel_lo : k->lo, panel_width(d)));
  sums = kern_add(b, sums, clamp(b, left, f->sums_stride - d->lanes));
  finish_columns(f, kern_at(b, f->sums, sums), first, rows, col);
  close_block(f);
}

/* ---- the loops -------------------------------------------------------------------------------------------- */

static void pack_panel(struct body *f, const struct block *k, kern_id panel, bool small) {
  struct dot *d = f->d;
  kern_id to = packed_panel(f, k, panel);
  if (!d->prepacked)
    dot_pack_panel(d, f->b, f->values, to, panel, small ? last_vectors(d) : d->nv, small ? last_lanes(d) : 0, k->pc,
                   k->kb);
  if (d->biased) {
    kern_id kb = kern_index(f->b, k->kb), start = of_panel(f, k, panel, f->start, panel_width(d));
    kern_call_fn(f->b, d->bias[small], 2, (const kern_id[]){to, start}, 1, &kb);
  }
}

static void pack_chunk(struct body *f, const struct block *k) {
  struct dot *d = f->d;
  kern_id full = kern_index(f->b, full_panels(d)), panel = open_loop(f, k->lo, k->hi, 1);
  bool both = full_panels(d) > 0 && full_panels(d) < d->n_panels;
  if (both) open_if(f, panel, full);
  if (full_panels(d) > 0 && !d->b_transposed) pack_panel(f, k, clamp(f->b, panel, full_panels(d) - 1), false);
  if (both) open_else(f);
  if (full_panels(d) < d->n_panels) pack_panel(f, k, full, true);
  if (both) close_block(f);
  close_block(f);
}

static void each_strip(struct body *f, const struct block *k, kern_id lo, kern_id hi) {
  struct dot *d = f->d;
  kern_id full = kern_index(f->b, full_strips(d)), strip = open_loop(f, lo, hi, 1);
  bool both = full_strips(d) > 0 && full_strips(d) < d->m_strips;
  if (both) open_if(f, strip, full);
  if (full_strips(d) > 0) each_panel(f, k, strip, false);
  if (both) open_else(f);
  if (full_strips(d) < d->m_strips) each_panel(f, k, strip, true);
  if (both) close_block(f);
  if (k->last && !d->bare && d->k_splits == 0 && !d->column_major_epilogue) finish_strip(f, k, strip);
  close_block(f);
}

static void each_strip_group(struct body *f, const struct block *k) {
  struct dot *d = f->d;
  kern_id lo = open_loop(f, f->strip_lo, f->strip_hi, d->strip_group);
  kern_id hi = kern_min(f->b, kern_add_i(f->b, lo, d->strip_group), f->strip_hi);
  if (!f->all_sums) f->sums_lo = lo;
  each_strip(f, k, lo, hi);
  if (k->last) finish_strip_group(f, k, lo, hi);
  close_block(f);
}

/* A block of kb terms from pc on. */
static void each_chunk(struct body *f, kern_id pc, int64_t kb, kern_id add, bool last) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  struct block k = {.pc = pc, .kb = kb, .add = add, .last = last, .lo = f->panel_lo, .hi = f->panel_hi};
  if (d->a.packed && !d->packs_a_once) {
    kern_id end = kern_min_i(b, times(b, f->strip_hi, d->mr), d->m);
    dot_pack_rows(d, b, f->values, f->rows, times(b, f->strip_lo, d->mr), end, d->task_m_strips * d->mr, pc, kb);
  }
  bool several = d->task_n_panels > d->chunk_n_panels;
  if (several) {
    k.lo = open_loop(f, f->panel_lo, f->panel_hi, d->chunk_n_panels);
    k.hi = kern_min(b, kern_add(b, k.lo, kern_index(b, d->chunk_n_panels)), f->panel_hi);
  }
  if (d->b.packed && (!d->prepacked || d->biased)) pack_chunk(f, &k);
  if (is_column_major(d))
    each_strip_group(f, &k);
  else
    each_strip(f, &k, f->strip_lo, f->strip_hi);
  if (several) close_block(f);
}

static void each_block(struct body *f) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  int64_t blocks = sched_ceil(d->k, DOT_BLOCK), before = (blocks - 1) * DOT_BLOCK;
  kern_id write = kern_index(b, 0);
  if (d->k_splits > 0) { /* the task has one block */
    open_if(f, f->split, kern_index(b, blocks - 1));
    each_chunk(f, times(b, clamp(b, f->split, blocks - 2), DOT_BLOCK), DOT_BLOCK, write, false);
    open_else(f);
    each_chunk(f, kern_index(b, before), d->k - before, write, true);
    close_block(f);
    return;
  }
  if (blocks > 1) {
    kern_id block = open_loop(f, write, kern_index(b, blocks - 1), 1), add = kern_min_i(b, block, 1);
    each_chunk(f, times(b, block, DOT_BLOCK), DOT_BLOCK, add, false);
    close_block(f);
  }
  kern_id add = kern_index(b, blocks > 1);
  each_chunk(f, kern_index(b, before), d->k - before, add, true);
}

/* Columns that are transposed are read along their terms: all blocks of a panel before the next one. */
static void each_column(struct body *f) {
  kern_id panel = open_loop(f, f->panel_lo, f->panel_hi, 1);
  f->panel_lo = panel;
  f->panel_hi = kern_add(f->b, panel, kern_index(f->b, 1));
  each_block(f);
  close_block(f);
}

static void make_scratch(struct body *f) {
  struct dot *d = f->d;
  f->all_sums = d->k > DOT_BLOCK;
  f->sums_lo = f->strip_lo;
  f->sums_strips = f->all_sums ? d->task_m_strips : 1;
  if (is_column_major(d)) {
    f->sums_strips = sched_ceil(f->sums_strips, d->strip_group) * d->strip_group;
    f->transposed = kern_local(f->b, d->acc, d->lanes * d->strip_group * d->mr);
  }
  f->sums_stride = (f->all_sums ? d->task_n_panels : d->chunk_n_panels) * panel_width(d);
  f->rows = f->panels = f->sums = f->start = KERN_NONE;
  if (d->a.packed && !d->packs_a_once) f->rows = kern_local(f->b, d->acc, d->task_m_strips * d->mr * DOT_PACKED_ROW);
  if (d->b.packed && !d->prepacked)
    f->panels = kern_local(f->b, d->acc, (d->b_transposed ? 1 : d->chunk_n_panels) * DOT_BLOCK * panel_width(d));
  if (d->biased) f->start = kern_local(f->b, d->acc, d->chunk_n_panels * panel_width(d));
  if (d->c.mem < 0) f->sums = kern_local(f->b, d->acc, f->sums_strips * d->mr * f->sums_stride);
}

/* Strips of rows that the run has, if the task has any. */
static void open_batch_rows(struct body *f) {
  struct dot *d = f->d;
  struct kern_builder *b = f->b;
  kern_id rows = clamp(b, kern_scalar(b, 0), d->m / d->batch_rows);
  rows = kern_add_i(b, kern_mul_i(b, rows, d->batch_rows), d->mr - 1);
  f->strip_hi = kern_min(b, f->strip_hi, kern_idiv(b, rows, d->mr));
  open_if(f, f->strip_lo, f->strip_hi);
}

static quern_status build(struct dot *d) {
  struct kern *kern = d->job->kern;
  int64_t down = sched_ceil(d->m_strips, d->task_m_strips), along = sched_ceil(d->n_panels, d->task_n_panels);
  int64_t splits = BASE_MAX(d->k_splits, 1);
  make_functions(d);
  if (d->packs_a_once) QUERN_TRY(dot_pack_once(d));
  struct kern_builder b = {.kern = kern,
                           .fn = kern_add_phase(kern, KERN_FIXED_TASKS(d->batch * down * along * splits))};
  struct body f = {.d = d, .b = &b};
  QUERN_TRY(dot_values(d, &b, &f.values));
  kern_id task = kern_idiv(&b, kern_task(&b), splits), tile = kern_imod(&b, task, down * along);
  f.split = kern_imod(&b, kern_task(&b), splits);
  f.batch = kern_idiv(&b, task, down * along);
  kern_values_set(f.values, DOT_BATCH, f.batch, 1, KERN_NONE);
  f.strip_lo = times(&b, kern_imod(&b, tile, down), d->task_m_strips);
  f.strip_hi = kern_min_i(&b, kern_add(&b, f.strip_lo, kern_index(&b, d->task_m_strips)), d->m_strips);
  f.panel_lo = times(&b, kern_idiv(&b, tile, down), d->task_n_panels);
  f.panel_hi = kern_min_i(&b, kern_add(&b, f.panel_lo, kern_index(&b, d->task_n_panels)), d->n_panels);
  make_scratch(&f);
  if (d->batch_rows > 0) open_batch_rows(&f);
  if (d->b_transposed)
    each_column(&f);
  else
    each_block(&f);
  if (d->batch_rows > 0) close_block(&f);
  kern_values_free(f.values);
  return d->k_splits > 0 ? dot_add_split_k(d) : QUERN_STATUS_OK;
}

quern_status sched_dot(struct sched_job *job) {
  struct dot d;
  quern_status status = dot_setup(&d, job);
  bool none = d.batch * d.m * d.n == 0, plain = d.lanes == 1 || d.k == 0;
  if (status == QUERN_STATUS_OK && !none) status = dot_alias(&d);
  if (status == QUERN_STATUS_OK && none) (void)kern_add_phase(job->kern, KERN_FIXED_TASKS(0));
  if (status == QUERN_STATUS_OK && !none && plain)
    status = (dot_is_gpu_skinny(&d) ? gpu_dot_skinny : dot_is_tiled(&d) ? gpu_dot : dot_scalar)(&d);
  if (status == QUERN_STATUS_OK && !none && !plain) {
    bool back = dot_is_direct_back(&d), direct = back || dot_is_direct(&d);
    quern_status (*make)(struct dot *) = back                ? dot_direct_back
                                         : direct            ? dot_direct
                                         : dot_is_inner(&d)  ? dot_inner
                                         : dot_is_skinny(&d) ? dot_skinny
                                                             : build;
    d.prepacked = job->sched->packed > 0;
    if (make == build) dot_sizes(&d);
    if (d.prepacked) {
      struct kern_mem *mem = &job->kern->mems[job->sched->packed - 1];
      mem->dtype = d.acc;
      mem->count = dot_packed_count(&d);
    }
    if (d.k_splits > 0) dot_make_split_k(&d);
    if (d.packs_a_once) dot_make_pack_once(&d);
    if (direct) dot_drop_materialized(&d);
    status = dot_materialize(&d);
    if (status == QUERN_STATUS_OK) status = make(&d);
  }
  dot_fini(&d);
  return status;
}
