/* plan/offsets.c -- offsets in the arena: blocks whose live ranges overlap lie apart, in as little memory as can be
** Few blocks: each is put into the best gap that those before it leave, in several orders, of which the best is taken;
** then the blocks at the top are put first, again and again. Many blocks: a heap is simulated, run by run.
** in:    blocks with their lifetimes       out: offsets, multiples of 64, and the end of the last block
** tests: tests/plan/test_offsets.c
*/
#include "plan/plan_int.h"

enum { FEW_BLOCKS = 4000, CLIMB_BLOCKS = 600, CLIMBS = 40 };

/* ---- a few blocks: best fit --------------------------------------------------------------------------- */

struct fit {
  size_t n;
  struct plan_block *blocks;
  int *order;      /* in which they are placed */
  int64_t *weight; /* by which the order is made */
  int *placed;     /* those placed, by offset */
  int64_t *at, *best_at;
  int64_t best;
};

/* The offset of the smallest gap that a block fits, among those that are alive with it; the end of all, if there is
** none. */
static int64_t best_gap(const struct fit *f, size_t n_placed, const struct plan_block *block, bool lowest) {
  int64_t end = 0, gap_at = -1, gap = INT64_MAX;
  for (size_t i = 0; i < n_placed; i++) {
    const struct plan_block *other = &f->blocks[f->placed[i]];
    if (other->last < block->first || other->first > block->last) continue;
    int64_t at = f->at[f->placed[i]], room = at - end;
    if (room >= block->bytes && room < gap) {
      gap = room;
      gap_at = end;
      if (lowest) break;
    }
    end = BASE_MAX(end, at + other->bytes);
  }
  return gap_at >= 0 ? gap_at : end;
}

/* Places all blocks in f->order; the end of the last. Gives up when it is no less than the best. */
static int64_t place_all(struct fit *f, bool lowest) {
  int64_t total = 0;
  for (size_t n = 0; n < f->n; n++) {
    int b = f->order[n];
    int64_t at = best_gap(f, n, &f->blocks[b], lowest);
    size_t k = n;
    for (; k > 0 && f->at[f->placed[k - 1]] > at; k--) f->placed[k] = f->placed[k - 1];
    f->placed[k] = b;
    f->at[b] = at;
    total = BASE_MAX(total, at + f->blocks[b].bytes);
    if (total >= f->best) return total;
  }
  return total;
}

static void try_order(struct fit *f) {
  for (int lowest = 0; lowest < 2; lowest++) {
    int64_t total = place_all(f, lowest != 0);
    if (total >= f->best) continue;
    f->best = total;
    memcpy(f->best_at, f->at, f->n * sizeof *f->at);
  }
}

/* Merge sort of the order by decreasing weight; equal ones stay as they are. */
static void sort_order(struct fit *f) {
  int *from = f->order, *to = f->placed;
  for (size_t width = 1; width < f->n; width *= 2) {
    for (size_t lo = 0; lo < f->n; lo += 2 * width) {
      size_t mid = BASE_MIN(lo + width, f->n), hi = BASE_MIN(lo + 2 * width, f->n), a = lo, b = mid;
      for (size_t i = lo; i < hi; i++) {
        bool left = b >= hi || (a < mid && f->weight[from[a]] >= f->weight[from[b]]);
        to[i] = from[left ? a++ : b++];
      }
    }
    int *swap = from;
    from = to;
    to = swap;
  }
  f->order = from;
  f->placed = to;
}

enum weight { BY_BYTES, BY_AREA, BY_SPAN, BY_START, BY_PEAK, WEIGHTS };

static int64_t weigh(const struct plan_block *b, enum weight kind, int peak) {
  int64_t span = b->last - b->first + 1;
  bool at_peak = b->first <= peak && peak <= b->last;
  switch (kind) {
  case BY_BYTES: return b->bytes;
  case BY_AREA: return b->bytes / PLAN_ALIGN * span;
  case BY_SPAN: return span;
  case BY_START: return -b->first;
  default: return at_peak ? INT64_MAX / 2 + span : b->bytes;
  }
}

/* Puts the blocks at the top before all others. */
static void raise_top(struct fit *f) {
  for (size_t i = 0; i < f->n; i++) f->weight[f->order[i]] = (int64_t)(f->n - i);
  for (size_t b = 0; b < f->n; b++)
    if (f->best_at[b] + f->blocks[b].bytes == f->best) f->weight[b] += 2 * (int64_t)f->n;
  sort_order(f);
}

static void fit_all(struct fit *f, int64_t bound, int peak, bool quick) {
  int climbs = quick || f->n > CLIMB_BLOCKS ? 0 : CLIMBS;
  for (int kind = 0; kind < WEIGHTS && f->best > bound; kind++) {
    for (size_t i = 0; i < f->n; i++) {
      f->order[i] = (int)i;
      f->weight[i] = weigh(&f->blocks[i], (enum weight)kind, peak);
    }
    sort_order(f);
    try_order(f);
    for (int climb = 0; climb < climbs && f->best > bound; climb++) {
      int64_t before = f->best;
      raise_top(f);
      try_order(f);
      if (f->best == before && climb > 4) break;
    }
  }
}

/* ---- many blocks: a heap that is run through --------------------------------------------------------------- */

struct gap {
  int64_t at, bytes;
};

struct sweep {
  struct base_heap *heap;
  BASE_VEC(struct gap) gaps; /* by offset; none of them touch */
  int64_t end;               /* of what was ever in use */
};

/* Takes the smallest gap that fits, else grows; -1 without memory. */
static int64_t sweep_take(struct sweep *w, int64_t bytes) {
  size_t best = w->gaps.n;
  for (size_t i = 0; i < w->gaps.n; i++)
    if (w->gaps.at[i].bytes >= bytes && (best == w->gaps.n || w->gaps.at[i].bytes < w->gaps.at[best].bytes)) best = i;
  if (best < w->gaps.n) {
    struct gap *gap = &w->gaps.at[best];
    int64_t at = gap->at;
    gap->at += bytes;
    gap->bytes -= bytes;
    if (gap->bytes == 0) memmove(gap, gap + 1, (--w->gaps.n - best) * sizeof *gap);
    return at;
  }
  int64_t at = w->end;
  const struct gap *last = w->gaps.n > 0 ? &w->gaps.at[w->gaps.n - 1] : NULL;
  if (last != NULL && last->at + last->bytes == w->end) {
    at = last->at;
    w->gaps.n--;
  }
  w->end = at + bytes;
  return at;
}

static bool sweep_give(struct sweep *w, int64_t at, int64_t bytes) {
  size_t lo = 0, hi = w->gaps.n;
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (w->gaps.at[mid].at < at)
      lo = mid + 1;
    else
      hi = mid;
  }
  bool joins_left = lo > 0 && w->gaps.at[lo - 1].at + w->gaps.at[lo - 1].bytes == at;
  bool joins_right = lo < w->gaps.n && at + bytes == w->gaps.at[lo].at;
  if (joins_left) {
    w->gaps.at[lo - 1].bytes += bytes + (joins_right ? w->gaps.at[lo].bytes : 0);
    if (joins_right) memmove(&w->gaps.at[lo], &w->gaps.at[lo + 1], (--w->gaps.n - lo) * sizeof *w->gaps.at);
    return true;
  }
  if (joins_right) {
    w->gaps.at[lo] = (struct gap){at, bytes + w->gaps.at[lo].bytes};
    return true;
  }
  if (!base_vec_reserve(w->heap, &w->gaps, 1)) return false;
  memmove(&w->gaps.at[lo + 1], &w->gaps.at[lo], (w->gaps.n++ - lo) * sizeof *w->gaps.at);
  w->gaps.at[lo] = (struct gap){at, bytes};
  return true;
}

static quern_status sweep_all(struct base_arena *arena, size_t n, struct plan_block *blocks, int64_t *total) {
  struct sweep w = {.heap = arena->heap};
  int runs = 0;
  for (size_t i = 0; i < n; i++) runs = BASE_MAX(runs, blocks[i].last + 1);
  /* the blocks that begin, and end, in each run: chains */
  int *begins = PLAN_NEW(arena, int, runs), *ends = PLAN_NEW(arena, int, runs);
  int *next_begin = PLAN_NEW(arena, int, n), *next_end = PLAN_NEW(arena, int, n);
  if (begins == NULL || ends == NULL || next_begin == NULL || next_end == NULL) return QUERN_STATUS_MEMORY;
  for (int r = 0; r < runs; r++) begins[r] = ends[r] = -1;
  for (size_t i = n; i-- > 0;) {
    next_begin[i] = begins[blocks[i].first];
    begins[blocks[i].first] = (int)i;
    next_end[i] = ends[blocks[i].last];
    ends[blocks[i].last] = (int)i;
  }
  bool ok = true;
  for (int r = 0; r < runs && ok; r++) {
    for (int b = begins[r]; b >= 0; b = next_begin[b]) blocks[b].at = sweep_take(&w, blocks[b].bytes);
    for (int b = ends[r]; b >= 0 && ok; b = next_end[b]) ok = sweep_give(&w, blocks[b].at, blocks[b].bytes);
  }
  *total = w.end;
  base_vec_fini(w.heap, &w.gaps);
  return ok ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* ---- the door ------------------------------------------------------------------------------------------- */

/* The run in which the most bytes are alive. */
static quern_status find_peak(struct base_arena *arena, size_t n, const struct plan_block *blocks, int *peak) {
  int runs = 0;
  for (size_t i = 0; i < n; i++) runs = BASE_MAX(runs, blocks[i].last + 1);
  int64_t *change = PLAN_NEW(arena, int64_t, runs + 1), live = 0, most = -1;
  if (change == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) {
    change[blocks[i].first] += blocks[i].bytes;
    change[blocks[i].last + 1] -= blocks[i].bytes;
  }
  for (int r = 0; r < runs; r++) {
    live += change[r];
    if (live <= most) continue;
    most = live;
    *peak = r;
  }
  return QUERN_STATUS_OK;
}

static quern_status pack(struct base_arena *arena, size_t n, struct plan_block *blocks, int64_t bound, bool quick,
                         int64_t *total) {
  int peak = 0;
  *total = 0;
  if (n == 0) return QUERN_STATUS_OK;
  QUERN_TRY(sweep_all(arena, n, blocks, total));
  if (n > FEW_BLOCKS || *total <= bound) return QUERN_STATUS_OK;
  QUERN_TRY(find_peak(arena, n, blocks, &peak));
  struct fit f = {.n = n, .blocks = blocks, .best = *total};
  f.order = PLAN_NEW(arena, int, n);
  f.placed = PLAN_NEW(arena, int, n);
  f.weight = PLAN_NEW(arena, int64_t, n);
  f.at = PLAN_NEW(arena, int64_t, n);
  f.best_at = PLAN_NEW(arena, int64_t, n);
  if (f.order == NULL || f.placed == NULL || f.weight == NULL || f.at == NULL || f.best_at == NULL)
    return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) f.best_at[i] = blocks[i].at;
  fit_all(&f, bound, peak, quick);
  for (size_t i = 0; i < n; i++) blocks[i].at = f.best_at[i];
  *total = f.best;
  return QUERN_STATUS_OK;
}

quern_status plan_assign_offsets(struct base_arena *arena, size_t n, struct plan_block *blocks, int64_t bound,
                                 int64_t *total) {
  return pack(arena, n, blocks, bound, false, total);
}

/* Moves the blocks of at most so many bytes, which get memory of their own, to the end: gives how many others there are. All of them when
** the arena would become much larger. */
static size_t part_small(size_t n, struct plan_block *blocks, int *numbers, int64_t most, int64_t bound) {
  enum { PART = 64, FEW_BYTES = 4 << 20 };
  size_t left = 0;
  int64_t own = 0;
  for (size_t b = 0; b < n; b++) own += blocks[b].bytes <= most ? blocks[b].bytes : 0;
  if (own > BASE_MAX(bound / PART, FEW_BYTES)) return n;
  for (size_t b = 0; b < n; b++) {
    if (blocks[b].bytes <= most) continue;
    struct plan_block block = blocks[b];
    int number = numbers[b];
    blocks[b] = blocks[left];
    numbers[b] = numbers[left];
    blocks[left] = block;
    numbers[left++] = number;
  }
  return left;
}

static void place_apart(size_t n, struct plan_block *blocks, int64_t *total) {
  for (size_t b = 0; b < n; b++) {
    blocks[b].at = *total;
    *total += blocks[b].bytes;
  }
}

quern_status plan_assign_stores(const struct plan_job *job, const struct plan_liveness *life, struct base_arena *arena,
                                int64_t enough, int64_t *at, int64_t *total) {
  const struct plan_options *options = job->options;
  size_t n = 0, shared;
  int *block_of = PLAN_NEW(arena, int, job->stores.n), *stores = PLAN_NEW(arena, int, job->stores.n);
  struct plan_block *blocks = PLAN_NEW(arena, struct plan_block, job->stores.n);
  if (block_of == NULL || stores == NULL || blocks == NULL) return QUERN_STATUS_MEMORY;
  for (size_t s = 0; s < job->stores.n; s++) {
    const struct plan_store *store = &job->stores.at[s];
    block_of[s] = -1;
    if (life->home[s] != (int)s || store->memory != PLAN_ARENA || store->room == 0 || life->first[s] > life->last[s])
      continue;
    stores[n] = (int)s;
    blocks[n++] = (struct plan_block){store->room, life->first[s], life->until[s], 0};
  }
  *total = 0;
  shared = options->share ? part_small(n, blocks, stores, options->apart, life->bound) : 0;
  if (shared > 0) QUERN_TRY(pack(arena, shared, blocks, BASE_MAX(life->bound, enough), enough > 0, total));
  place_apart(n - shared, blocks + shared, total);
  for (size_t b = 0; b < n; b++) block_of[stores[b]] = (int)b;
  for (size_t s = 0; s < job->stores.n && at != NULL; s++) {
    int block = block_of[life->home[s]];
    at[s] = block >= 0 ? blocks[block].at : 0;
  }
  return QUERN_STATUS_OK;
}
