/* sched/reduce_col.c -- REDUCE groups across their rows: an outer variable has lanes
** A row strip is `width` vectors of neighboring rows. Elements of a row are taken one after another. Accumulators of sums
** and products of floats are rows of scratch, element i going to row i mod n_acc; where the order does not matter
** there is one accumulator, in a variable. Rows of few elements are written out.
** keeps: the order of kern.h; rows of accumulators that no element would go to do not exist
** tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

static int vector_var(const struct reduce *rd) { return rd->vector >= 0 ? rd->nest.loops[rd->vector].var : -1; }

/* ---- where the loops stand ------------------------------------------------------------------------------- */

/* Element number p of the rows. */
static void set_element(struct reduce *rd, kern_id p) {
  sched_nest_set(&rd->nest, &rd->b, rd->values, rd->nest.n_outer, rd->nest.n_loops, -1, p);
}

static void set_scalar(struct reduce *rd) {
  if (rd->vector >= 0) kern_values_set(rd->values, vector_var(rd), rd->column, 1, KERN_NONE);
}

/* Enters vector u of the strip in pass q; the lanes that count. What is known of these rows is bound. */
static kern_id enter_vector(struct reduce *rd, int u, int q) {
  struct kern_builder *b = &rd->b;
  kern_id active = u == rd->strip - 1 && rd->rest > 0 ? kern_index(b, rd->rest) : KERN_NONE;
  kern_values_enter(rd->values);
  if (rd->vector >= 0)
    kern_values_set(rd->values, vector_var(rd), kern_add(b, rd->column, kern_index(b, (int64_t)u * rd->lanes)),
                    rd->lanes, active);
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass >= q) continue;
    kern_id result = rd->total[i * (size_t)rd->width + (size_t)u].value;
    kern_values_bind(rd->values, stage->result, stage->result->rank, stage->result_at, result);
  }
  return active;
}

static void leave_vector(struct reduce *rd) { kern_values_leave(rd->values); }

/* Computes what stays the same along the rows, before the loops of pass q. */
static void hold_fixed(struct reduce *rd, int q) {
  const struct sched_points *fixed = &rd->fixed[q];
  for (int u = 0; u < rd->strip; u++) {
    for (int wide = 0; wide < 2; wide++) {
      if (wide == 1) (void)enter_vector(rd, u, q);
      for (size_t i = 0; i < fixed->n; i++) {
        const struct sched_point *p = &fixed->at[i];
        bool own = rd->vector < 0 || sched_point_uses(p, vector_var(rd)); /* of these rows: may depend on results */
        if (own != (wide == 1)) continue;
        rd->held[i * (size_t)rd->width + (size_t)u] = sched_point_get(rd->values, p);
      }
    }
    leave_vector(rd);
    set_scalar(rd);
  }
}

static void bind_fixed(struct reduce *rd, int q, int u) {
  const struct sched_points *fixed = &rd->fixed[q];
  for (size_t i = 0; i < fixed->n; i++) {
    const struct sched_point *p = &fixed->at[i];
    sched_point_bind(rd->values, p, rd->held[i * (size_t)rd->width + (size_t)u]);
  }
}

/* ---- one element of the rows ----------------------------------------------------------------------------- */

/* What is done with the value of a stage's source. */
struct taking {
  kern_id row; /* of the accumulators, for each number of them: 0 of 64, 1 of 32 */
  kern_id other_row;
  bool first;                 /* there is nothing in the accumulators yet */
  struct reduce_value *small; /* not NULL: the values are put here, one per stage and vector */
};

static kern_id acc_index(struct reduce *rd, kern_id row, int u) {
  struct kern_builder *b = &rd->b;
  kern_id at = kern_mul(b, row, kern_index(b, (int64_t)rd->width * rd->lanes));
  return kern_add(b, at, kern_index(b, (int64_t)u * rd->lanes));
}

static void take(struct reduce *rd, size_t i, int u, struct reduce_value x, const struct taking *t) {
  struct kern_builder *b = &rd->b;
  const struct reduce_stage *stage = &rd->stages[i];
  size_t slot = i * (size_t)rd->width + (size_t)u;
  if (t->small != NULL) {
    t->small[slot] = x;
  } else if (stage->ordered) {
    kern_id at = acc_index(rd, stage->n_acc == 64 ? t->row : t->other_row, u);
    kern_id acc =
        t->first ? kern_neutral(b, stage->reduce, stage->acc, rd->lanes) : kern_load(b, stage->local, at, rd->lanes);
    kern_store(b, stage->local, at, kern_combine(b, stage->reduce, acc, x.value));
  } else {
    reduce_set(rd, stage, rd->accs[slot], reduce_take(rd, stage, reduce_get(rd, stage, rd->accs[slot]), x));
  }
}

/* Element number p of the strip's rows in pass q. */
static void emit_element(struct reduce *rd, int q, kern_id p, const struct taking *t) {
  struct kern_builder *b = &rd->b;
  kern_values_enter(rd->values);
  set_element(rd, p);
  if (rd->vector >= 0 && rd->lanes > 1) sched_points_get(rd->values, &rd->steady[q]);
  for (int u = 0; u < rd->strip; u++) {
    kern_id active = enter_vector(rd, u, q), place = acc_index(rd, p, u);
    bind_fixed(rd, q, u);
    for (size_t i = 0; i < rd->n_keeps; i++)
      if (rd->keeps[i].made < q) reduce_keep_bind(rd, &rd->keeps[i], place, rd->lanes, active);
    for (size_t i = 0; i < rd->n_keeps; i++)
      if (rd->keeps[i].made == q) reduce_keep_store(rd, &rd->keeps[i], place, rd->lanes);
    for (size_t i = 0; i < rd->n_stages; i++) {
      const struct reduce_stage *stage = &rd->stages[i];
      if (stage->pass != q) continue;
      struct reduce_value x = {reduce_source(rd, stage, rd->lanes), KERN_NONE};
      if (stage->arg) x.index = kern_splat(b, kern_cast(b, p, QUERN_DTYPE_I32), rd->lanes);
      take(rd, i, u, x, t);
    }
    reduce_store(rd, q, active);
    leave_vector(rd);
  }
  set_scalar(rd);
  kern_values_leave(rd->values);
}

/* ---- short rows: all elements side by side --------------------------------------------------------------- */

/* Joins n values as n accumulators of one element each would be: empty ones are left out. */
static struct reduce_value merge_few(struct reduce *rd, const struct reduce_stage *stage, int n,
                                     struct reduce_value *x) {
  for (int h = KERN_MAX_LANES / 2; h >= 1; h /= 2) {
    for (int i = 0; i < h && i + h < n; i++) x[i] = reduce_join(rd, stage, x[i], x[i + h]);
    n = BASE_MIN(n, h);
  }
  if (stage->ordered && stage->reduce == IR_SUM)
    x[0] = reduce_join(rd, stage, reduce_neutral(rd, stage, rd->lanes), x[0]);
  return x[0];
}

static void range_small(struct reduce *rd, int q, struct reduce_value *part) {
  struct reduce_value few[KERN_MAX_LANES];
  size_t slots = rd->n_stages * (size_t)rd->width;
  for (int64_t p = 0; p < rd->count; p++) {
    struct taking t = {.small = rd->few + (size_t)p * slots};
    emit_element(rd, q, kern_index(&rd->b, p), &t);
  }
  for (size_t i = 0; i < slots; i++) {
    const struct reduce_stage *stage = &rd->stages[i / (size_t)rd->width];
    if (stage->pass != q || (int)(i % (size_t)rd->width) >= rd->strip) continue;
    for (int64_t p = 0; p < rd->count; p++) few[p] = rd->few[(size_t)p * slots + i];
    part[i] = rd->count == 0 ? reduce_neutral(rd, stage, rd->lanes) : merge_few(rd, stage, (int)rd->count, few);
  }
}

/* ---- loops over the elements ----------------------------------------------------------------------------- */

static kern_id row_of(struct reduce *rd, kern_id p, int n_acc, int64_t n) {
  return n <= n_acc ? p : kern_imod(&rd->b, p, n_acc);
}

/* Elements lo .. hi - 1 of the n of a chunk. */
static void emit_elements(struct reduce *rd, int q, kern_id base, int64_t lo, int64_t hi, int64_t n, bool first) {
  struct kern_builder *b = &rd->b;
  if (lo >= hi) return;
  kern_id p = kern_range(b, lo, hi, 1);
  struct taking t = {.first = first, .row = row_of(rd, p, 64, first ? 0 : n)};
  t.other_row = row_of(rd, p, 32, first ? 0 : n);
  emit_element(rd, q, kern_add(b, base, p), &t);
  kern_end(b);
}

/* The tree over rows of accumulators in scratch. */
static void merge_rows(struct reduce *rd, size_t i, int64_t n, struct reduce_value *part) {
  struct kern_builder *b = &rd->b;
  const struct reduce_stage *stage = &rd->stages[i];
  int64_t rows = BASE_MIN(n, stage->n_acc);
  for (int64_t h = stage->n_acc / 2; h >= 1; h /= 2) {
    if (rows <= h) continue;
    kern_id row = rows - h > 1 ? kern_range(b, 0, rows - h, 1) : kern_index(b, 0);
    for (int u = 0; u < rd->strip; u++) {
      kern_id at = acc_index(rd, row, u), from = acc_index(rd, kern_add(b, row, kern_index(b, h)), u);
      kern_id x = kern_load(b, stage->local, at, rd->lanes), y = kern_load(b, stage->local, from, rd->lanes);
      kern_store(b, stage->local, at, kern_combine(b, stage->reduce, x, y));
    }
    if (rows - h > 1) kern_end(b);
    rows = h;
  }
  for (int u = 0; u < rd->strip; u++) {
    kern_id x = kern_load(b, stage->local, acc_index(rd, kern_index(b, 0), u), rd->lanes);
    part[i * (size_t)rd->width + (size_t)u] = (struct reduce_value){x, KERN_NONE};
  }
}

/* Fills rows lo .. hi - 1 of a stage's accumulators with the neutral element. */
static void clear_rows(struct reduce *rd, const struct reduce_stage *stage, int64_t lo, int64_t hi) {
  struct kern_builder *b = &rd->b;
  if (lo >= hi) return;
  kern_id neutral = kern_neutral(b, stage->reduce, stage->acc, rd->lanes);
  kern_id row = kern_range(b, lo, hi, 1);
  for (int u = 0; u < rd->strip; u++) kern_store(b, stage->local, acc_index(rd, row, u), neutral);
  kern_end(b);
}

/* Elements that are the first of their accumulators, in all stages of the pass: they need not be added to anything. In
** chunks of many it is less code to clear the accumulators. */
static int64_t first_elements(const struct reduce *rd, int q, int64_t n) {
  int64_t first = n;
  bool any = false;
  for (size_t i = 0; i < rd->n_stages; i++) {
    if (rd->stages[i].pass != q || !rd->stages[i].ordered) continue;
    any = true;
    first = BASE_MIN(first, rd->stages[i].n_acc);
  }
  return any && (n <= first || n <= 8 * first) ? first : 0;
}

static void range(struct reduce *rd, int q, kern_id base, int64_t n, struct reduce_value *part) {
  hold_fixed(rd, q);
  if (rd->small) {
    range_small(rd, q, part);
    return;
  }
  int64_t first = first_elements(rd, q, n);
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass != q) continue;
    if (stage->ordered) clear_rows(rd, stage, first, BASE_MIN(n, stage->n_acc));
    for (int u = 0; !stage->ordered && u < rd->strip; u++)
      rd->accs[i * (size_t)rd->width + (size_t)u] = reduce_var(rd, stage, reduce_neutral(rd, stage, rd->lanes));
  }
  emit_elements(rd, q, base, 0, first, n, true);
  emit_elements(rd, q, base, first, n, n, false);
  for (size_t i = 0; i < rd->n_stages; i++) {
    const struct reduce_stage *stage = &rd->stages[i];
    if (stage->pass != q) continue;
    if (stage->ordered) merge_rows(rd, i, n, part);
    for (int u = 0; !stage->ordered && u < rd->strip; u++) {
      size_t slot = i * (size_t)rd->width + (size_t)u;
      part[slot] = reduce_get(rd, stage, rd->accs[slot]);
    }
  }
}

/* ---- strips ---------------------------------------------------------------------------------------------- */

/* The totals of pass q become what the stages give. */
static void finish_pass(struct reduce *rd, int q) {
  for (size_t i = 0; i < rd->n_stages; i++) {
    if (rd->stages[i].pass != q) continue;
    for (int u = 0; u < rd->strip; u++) {
      struct reduce_value *total = &rd->total[i * (size_t)rd->width + (size_t)u];
      total->value = reduce_result(rd, &rd->stages[i], *total);
    }
  }
}

static void emit_strip(struct reduce *rd, kern_id row_strip, kern_id part) {
  if (rd->phase == REDUCE_PART) {
    reduce_part(rd, row_strip, part);
    return;
  }
  if (rd->phase == REDUCE_MERGE) {
    reduce_merged(rd, row_strip);
    finish_pass(rd, 0);
  }
  for (int q = 0; rd->phase == REDUCE_WHOLE && q < rd->n_passes; q++) {
    reduce_totals(rd, q);
    finish_pass(rd, q);
  }
  for (int u = 0; u < rd->strip; u++) {
    kern_id active = enter_vector(rd, u, rd->n_passes);
    reduce_store(rd, -1, active);
    leave_vector(rd);
  }
  set_scalar(rd);
}

/* Unit number `row_strip`: a whole strip, or the narrower one at the end of the rows. */
static void emit_row_strip(struct reduce *rd, kern_id row_strip, kern_id part) {
  struct kern_builder *b = &rd->b;
  int64_t extent = rd->vector >= 0 ? rd->nest.loops[rd->vector].extent : 1, step = (int64_t)rd->width * rd->lanes;
  int64_t whole = extent / step, rest = extent % step, strips = whole + (rest > 0);
  kern_id strip = kern_imod(b, row_strip, strips);
  kern_values_enter(rd->values);
  sched_nest_set(&rd->nest, b, rd->values, 0, rd->nest.n_outer, rd->vector, kern_idiv(b, row_strip, strips));
  if (whole > 0) {
    if (rest > 0) kern_if(b, kern_bin(b, KERN_LT, strip, kern_index(b, whole)));
    kern_values_enter(rd->values);
    rd->strip = rd->width;
    rd->rest = 0;
    rd->column = kern_mul_i(b, rest > 0 ? kern_min(b, strip, kern_index(b, whole - 1)) : strip, step);
    set_scalar(rd);
    emit_strip(rd, row_strip, part);
    kern_values_leave(rd->values);
    if (rest > 0) kern_else(b);
  }
  if (rest > 0) {
    kern_values_enter(rd->values);
    rd->strip = (int)((rest + rd->lanes - 1) / rd->lanes);
    rd->rest = (int)(rest % rd->lanes);
    rd->column = kern_index(b, whole * step);
    set_scalar(rd);
    emit_strip(rd, row_strip, part);
    kern_values_leave(rd->values);
    if (whole > 0) kern_end(b);
  }
  kern_values_leave(rd->values);
}

/* Scratch of the accumulators. */
static void add_locals(struct reduce *rd) {
  int64_t step = (int64_t)rd->width * rd->lanes, n = BASE_MIN(rd->count, KERN_CHUNK);
  for (size_t i = 0; i < rd->n_stages; i++) {
    struct reduce_stage *stage = &rd->stages[i];
    if (stage->ordered && !rd->small)
      stage->local = kern_local(&rd->b, stage->acc, BASE_MAX(BASE_MIN(n, stage->n_acc), 1) * step);
  }
}

static quern_status emit_row_strips(struct reduce *rd, int64_t room) {
  struct kern_builder *b = &rd->b;
  int64_t row_strips = rd->n_strips, grain = BASE_MAX(rd->job->sched->grain / ((int64_t)rd->width * rd->lanes), 1);
  QUERN_TRY(reduce_begin(rd, (row_strips + grain - 1) / grain, room));
  if (rd->phase == REDUCE_WHOLE) add_locals(rd);
  if (row_strips == 1) {
    emit_row_strip(rd, kern_index(b, 0), KERN_NONE);
    return QUERN_STATUS_OK;
  }
  kern_id lo = kern_mul_i(b, kern_task(b), grain);
  kern_id row_strip = kern_for(b, lo, kern_min_i(b, kern_add(b, lo, kern_index(b, grain)), row_strips), 1);
  emit_row_strip(rd, row_strip, KERN_NONE);
  kern_end(b);
  return QUERN_STATUS_OK;
}

quern_status reduce_columns(struct reduce *rd, int64_t room) {
  size_t slots = rd->n_stages * (size_t)rd->width, held = 1;
  for (int q = 0; q < rd->n_passes; q++) held = BASE_MAX(held, rd->fixed[q].n);
  rd->range = range;
  rd->accs = base_arena_alloc(rd->arena, slots * sizeof *rd->accs);
  rd->held = base_arena_alloc(rd->arena, held * (size_t)rd->width * sizeof *rd->held);
  rd->few = base_arena_alloc(rd->arena, rd->small ? (size_t)(rd->count + 1) * slots * sizeof *rd->few : 1);
  if (rd->accs == NULL || rd->held == NULL || rd->few == NULL) return QUERN_STATUS_MEMORY;
  rd->phase = REDUCE_WHOLE;
  if (!rd->split) return emit_row_strips(rd, room);
  int64_t parts = reduce_parts(rd);
  rd->phase = REDUCE_PART;
  QUERN_TRY(reduce_begin(rd, rd->n_strips * parts, room));
  add_locals(rd);
  kern_id task = kern_task(&rd->b), row_strip = kern_idiv(&rd->b, task, parts);
  emit_row_strip(rd, row_strip, kern_imod(&rd->b, task, parts));
  rd->phase = REDUCE_MERGE;
  return emit_row_strips(rd, room);
}
