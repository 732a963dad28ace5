/* sched/gpu_dot_operand.c -- the operands of a tiled contraction: from memory to what a thread block shares
** A stage has a row of each side for every term. What lies in memory along the side's own axis is copied as it lies, 16
** bytes at a time; what lies along the terms is transposed on the way; what is computed, or lies otherwise, comes singly,
** neighboring threads along the axis on which it is best read. Rows, columns and terms behind the last repeat it.
** tests: tests/sched/test_gpu_dot.c
*/
#include "sched/gpu_dot.h"

/* Neighboring terms of a row, before the next row: so the stores of a warp meet no bank twice. */
enum { TERMS_TOGETHER = 8 };

static int64_t together(const struct gpu_dot *t, const struct gpu_dot_operand *s) {
  return BASE_MIN(TERMS_TOGETHER, t->terms) / s->run;
}

static int tile_of(const struct gpu_dot_operand *s) { return s->side->own == DOT_ROW ? GPU_DOT_ROW : GPU_DOT_COL; }
static int piece_of(const struct gpu_dot_operand *s) {
  return s->side->own == DOT_ROW ? GPU_DOT_PIECE_A : GPU_DOT_PIECE_B;
}

/* ---- where a piece lies ------------------------------------------------------------------------------------ */

/* Number `base * each + more` of n, times by. */
static const struct pass_index *number(struct gpu_dot *t, int base, int64_t each, const struct pass_index *more,
                                       int64_t n, int64_t by) {
  struct pass_space *space = t->d->space;
  const struct pass_index *x = gpu_dot_sum(t, pass_index_var(space, base), each, more);
  return pass_index_scale(space, pass_index_clamp(space, x, n), by);
}

/* The axes in terms of tile, stage and piece. */
static void place_piece(struct gpu_dot *t, const struct gpu_dot_operand *s, const struct pass_index **by) {
  struct pass_space *space = t->d->space;
  const struct pass_index *piece = pass_index_var(space, piece_of(s));
  int64_t k = t->d->k;
  if (s->along) {
    int64_t each = t->side / s->run;
    const struct pass_index *own = pass_index_mod(space, piece, each), *term = pass_index_div(space, piece, each);
    by[s->side->own] = number(t, tile_of(s), each, own, s->size / s->run, s->run);
    by[DOT_TERM] = number(t, GPU_DOT_STAGE, t->terms, term, k, 1);
  } else {
    int64_t n = together(t, s);
    const struct pass_index *own = pass_index_mod(space, pass_index_div(space, piece, n), t->side);
    const struct pass_index *term = pass_index_mod(space, piece, n);
    term = gpu_dot_sum(t, pass_index_div(space, piece, n * t->side), n, term);
    by[s->side->own] = number(t, tile_of(s), t->side, own, s->size, 1);
    by[DOT_TERM] = number(t, GPU_DOT_STAGE, t->terms / s->run, term, k / s->run, s->run);
  }
}

/* The most neighbors, up to t->run, that divide an extent. */
static int run_of(const struct gpu_dot *t, int64_t extent) {
  int run = t->run;
  while (extent % run != 0) run /= 2;
  return run;
}

void gpu_dot_choose(struct gpu_dot *t, struct gpu_dot_operand *s) {
  struct dot *d = t->d;
  int64_t own = 0, term = 0;
  struct dot_view place = dot_find_view(d, s->side);
  bool affine = place.mem >= 0 && pass_index_stride(d->space, place.offset, s->side->own, &own) &&
                pass_index_stride(d->space, place.offset, DOT_TERM, &term);
  s->mem = affine && (own == 1 || term == 1) ? place.mem : -1;
  s->offset = place.offset;
  s->along = s->mem >= 0 ? own == 1 : s->side->across == (s->side->own == DOT_ROW);
  s->run = s->mem >= 0 ? run_of(t, own == 1 ? s->size : d->k) : 1;
  s->pieces = (int)(t->side * t->terms / s->run / GPU_DOT_THREADS);
  QUERN_ASSERT(s->pieces >= 1 && s->pieces <= GPU_DOT_PIECES);
}

quern_status gpu_dot_find(struct gpu_dot *t, struct gpu_dot_operand *s) {
  struct pass_space *space = t->d->space;
  const struct pass_index *by[GPU_DOT_VARS] = {NULL};
  int rank = s->side->tensor->rank;
  place_piece(t, s, by);
  if (s->mem >= 0) s->offset = pass_index_replace(space, s->offset, by);
  s->at = base_arena_alloc(&t->d->arena, (size_t)(rank + 1) * sizeof *s->at);
  if (s->at == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < rank; i++) s->at[i] = pass_index_replace(space, s->side->at[i], by);
  return space->failed ? QUERN_STATUS_MEMORY : QUERN_STATUS_OK;
}

/* ---- copying ----------------------------------------------------------------------------------------------- */

void gpu_dot_load(struct gpu_dot *t, const struct gpu_dot_operand *s, kern_id stage, kern_id *x) {
  struct kern_builder *b = t->build;
  const quern_tensor *tensor = s->side->tensor;
  kern_values_set(t->values, GPU_DOT_STAGE, stage, 1, KERN_NONE);
  for (int i = 0; i < s->pieces; i++) {
    kern_id first = kern_index(b, (int64_t)i * GPU_DOT_THREADS);
    kern_values_set(t->values, piece_of(s), first, GPU_DOT_THREADS, KERN_NONE);
    if (s->mem >= 0) {
      kern_id at = kern_splat(b, kern_values_index(t->values, s->offset), GPU_DOT_THREADS);
      x[i] = kern_gather_n(b, kern_mem(b, s->mem), at, s->run);
    } else {
      x[i] = kern_splat(b, kern_values_get(t->values, tensor, tensor->rank, s->at), GPU_DOT_THREADS);
    }
  }
  kern_values_set(t->values, piece_of(s), kern_index(b, 0), 1, KERN_NONE);
}

/* Where in a stage the lanes of piece i go to: one per piece along the side's own axis, else one per element. */
static kern_id place_in_stage(struct gpu_dot *t, const struct gpu_dot_operand *s, int i) {
  struct kern_builder *b = t->build;
  int run = s->along ? 1 : s->run, lanes = GPU_DOT_THREADS * run;
  kern_id lane = kern_lane(b, QUERN_DTYPE_I64, lanes), piece = run > 1 ? kern_idiv(b, lane, run) : lane;
  piece = kern_add(b, piece, gpu_dot_i(t, lanes, (int64_t)i * GPU_DOT_THREADS));
  kern_id own, term;
  if (s->along) {
    own = gpu_dot_times(t, lanes, kern_imod(b, piece, t->side / s->run), s->run);
    term = kern_idiv(b, piece, t->side / s->run);
  } else {
    int64_t n = together(t, s);
    own = kern_imod(b, kern_idiv(b, piece, n), t->side);
    term = gpu_dot_times(t, lanes, kern_idiv(b, piece, n * t->side), n);
    term = kern_add(b, term, kern_imod(b, piece, n));
    if (run > 1) {
      term = gpu_dot_times(t, lanes, term, run);
      term = kern_add(b, term, kern_imod(b, lane, run));
    }
  }
  term = gpu_dot_times(t, lanes, term, t->stride);
  return kern_add(b, term, own);
}

void gpu_dot_store_shared(struct gpu_dot *t, const struct gpu_dot_operand *s, kern_id to, const kern_id *x) {
  struct kern_builder *b = t->build;
  kern_id mem = kern_at(b, to, kern_index(b, s->begin));
  for (int i = 0; i < s->pieces; i++) {
    kern_id at = place_in_stage(t, s, i);
    kern_scatter_n(b, mem, at, kern_cast(b, x[i], t->d->acc), KERN_NONE);
  }
}
