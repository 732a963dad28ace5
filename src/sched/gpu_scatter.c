/* sched/gpu_scatter.c -- kernels of SCATTER groups on GPUs: each position finds its updates in a sorted list
** Indices are divided into blocks, positions into buckets of neighbors. How many indices of a block fall into a bucket is counted; sums
** over the blocks before and the buckets before say where the block's split of the bucket's list begins; the lists are written. Then each
** position goes through the list of its bucket, and writes its own updates, in their order, behind those of lower positions. Last, a
** thread block takes a position: its threads have neighboring columns and add one update after another. Positions that take many updates
** are left to more thread blocks, with fewer columns each, so that more updates can be in flight.
** keeps: the updates of an element are taken in increasing i; sums of 8-bit and 16-bit floats stay in f32 until the end; no
**        atomics: everything is where the values alone say
** tests: tests/sched/test_scatter.c
*/
#include "sched/scatter.h"

enum {
  BLOCK = 256,         /* indices that a thread goes through */
  BUCKET_INDICES = 64, /* that a bucket's list should have, if indices are spread evenly */
  MOST_BUCKETS = 1024, /* of one batch */
  AHEAD = 4,           /* updates that are loaded before they are added */
  MOST_AHEAD = 16,     /* and of positions that take many */
  MANY = 24,           /* at least MOST_AHEAD: then their split of the list has a multiple of it */
  MOST_VECTORS = 4,    /* of a row that one task has */
  ROW_LOADS = 12,      /* of vectors, under way at a time */
  THREADS = 32,        /* the least that share a row */
  COPY_THREADS = 256,  /* that copy a piece */
  THREAD_BYTES = 16    /* that a thread loads at a time */
};

struct sort {
  const struct scatter *s;
  struct kern_builder b;
  int64_t blocks, buckets, span; /* of a batch; positions of a bucket */
  quern_dtype key;               /* in which indices are compared */
  int counts, totals, starts;    /* by block and bucket, by bucket: how many, and where they begin */
  int list, keys;                /* by bucket: numbers of updates, and their positions */
  int sorted, first, end;        /* numbers of updates by position, and where those of a position are */
  int group, lanes, vectors;     /* threads, lanes and vectors of a split of a row */
  int64_t splits;                /* of a row */
};

static int size_of(quern_dtype dtype) { return (int)base_dtypes[dtype].size; }

/* ---- choosing -------------------------------------------------------------------------------------------- */

/* Lanes of a row: 16 bytes a thread where rows are long enough, and few vectors beyond the row's end. */
static void choose_row(struct sort *t) {
  int64_t q = t->s->q, waste = INT64_MAX;
  t->group = 0, t->lanes = 1, t->vectors = 1;
  if (q >= THREADS / 2) {
    int each = BASE_MAX(THREAD_BYTES / BASE_MAX(size_of(t->s->dtype), 1), 1);
    while (each > 1 && (q < (int64_t)THREADS * each || q % each != 0)) each /= 2;
    for (int group = THREADS; group <= COPY_THREADS; group *= 2) {
      int64_t lanes = (int64_t)group * each, vectors = BASE_MIN(sched_ceil(q, lanes), MOST_VECTORS);
      int64_t over = sched_ceil(q, lanes * vectors) * lanes * vectors - q;
      if (over >= waste && !(over == waste && t->vectors == MOST_VECTORS)) continue;
      t->group = group, t->lanes = (int)lanes, t->vectors = (int)vectors;
      waste = over;
    }
  }
  t->splits = sched_ceil(q, (int64_t)t->lanes * t->vectors);
}

static struct sort sort_of(const struct scatter *s) {
  struct kern *kern = s->job->kern;
  quern_dtype dtype = s->node->src[1]->dtype;
  struct sort t = {.s = s, .b = {kern, NULL}, .key = QUERN_DTYPE_I64};
  if (size_of(dtype) < 4 || dtype == QUERN_DTYPE_I32) t.key = QUERN_DTYPE_I32;
  t.blocks = sched_ceil(s->n_indices, BLOCK);
  t.buckets = BASE_MIN(BASE_MIN(sched_ceil(s->n_indices, BUCKET_INDICES), MOST_BUCKETS), s->positions);
  t.span = sched_ceil(s->positions, BASE_MAX(t.buckets, 1));
  t.buckets = sched_ceil(s->positions, t.span);
  if (t.buckets > 1) {
    t.counts = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_WORK, s->n * t.blocks * t.buckets);
    t.totals = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_WORK, s->n * t.buckets);
    t.starts = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_WORK, s->n * t.buckets);
    t.list = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_WORK, s->n * s->n_indices);
    t.keys = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_WORK, s->n * s->n_indices);
  }
  if (s->n_indices > 0) {
    t.sorted = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_WORK, s->n * s->n_indices);
    t.first = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_WORK, s->n * s->positions);
    t.end = kern_add_mem(kern, QUERN_DTYPE_I32, KERN_WORK, s->n * s->positions);
  }
  choose_row(&t);
  return t;
}

/* ---- small things ---------------------------------------------------------------------------------------- */

static void open_phase(struct sort *t, int64_t tasks, int group) {
  struct kern *kern = t->b.kern;
  t->b.fn = kern_add_phase(kern, KERN_FIXED_TASKS(tasks));
  if (kern->failed == QUERN_STATUS_OK) kern->phases[kern->n_phases - 1].block_threads = group;
}

/* Element at of a workspace, as an index. */
static kern_id get(struct sort *t, int mem, kern_id at) {
  kern_id m = kern_mem(&t->b, mem);
  return kern_cast(&t->b, kern_load(&t->b, m, at, 1), QUERN_DTYPE_I64);
}

static void put(struct sort *t, int mem, kern_id at, kern_id x) {
  kern_id m = kern_mem(&t->b, mem);
  kern_store(&t->b, m, at, kern_cast(&t->b, x, QUERN_DTYPE_I32));
}

/* number * size + at */
static kern_id at_of(struct sort *t, kern_id number, int64_t size, kern_id at) {
  return kern_add(&t->b, kern_mul_i(&t->b, number, size), at);
}

/* What was loaded as a position in a list, 0 .. most: it is that, and here it shows. */
static kern_id within(struct sort *t, kern_id x, int64_t most) {
  return kern_min_i(&t->b, kern_max_i(&t->b, x, 0), most);
}

/* Element `at` of the list of a batch. */
static kern_id list_at(struct sort *t, kern_id batch, kern_id at) {
  int64_t n = t->s->n_indices;
  return at_of(t, batch, n, within(t, at, n - 1));
}

/* x + 1 where the mask says so. */
static void count_if(struct sort *t, kern_id var, kern_id mask) {
  struct kern_builder *b = &t->b;
  kern_id one = kern_index(b, 1), step = kern_select(b, mask, one, kern_index(b, 0)), old = kern_get(b, var);
  kern_set(b, var, kern_add(b, old, step));
}

/* ---- lists of buckets ------------------------------------------------------------------------------------ */

/* A task of a block of indices and a bucket. */
struct cell {
  kern_id bucket, batch, at; /* at: in counts */
  kern_id i, key, match;     /* in the loop over the block's indices */
};

/* Opens the loop over the indices of a task's block. */
static struct cell open_block(struct sort *t, kern_id task, kern_id *var, int init) {
  struct kern_builder *b = &t->b;
  struct cell c = {.bucket = kern_imod(b, task, t->buckets), .at = task};
  kern_id row = kern_idiv(b, task, t->buckets), block = kern_imod(b, row, t->blocks);
  c.batch = kern_idiv(b, row, t->blocks);
  kern_id lo = kern_mul_i(b, c.bucket, t->span), hi = kern_min_i(b, kern_add_i(b, lo, t->span), t->s->positions);
  lo = kern_cast(b, lo, t->key);
  hi = kern_cast(b, hi, t->key);
  kern_id first = kern_index(b, 0);
  if (init >= 0) {
    first = get(t, init, at_of(t, c.batch, t->buckets, c.bucket));
    first = kern_add(b, first, get(t, t->counts, c.at));
  }
  *var = kern_var(b, first);
  kern_id from = kern_mul_i(b, block, BLOCK), to = kern_min_i(b, kern_add_i(b, from, BLOCK), t->s->n_indices);
  c.i = kern_for(b, from, to, 1);
  kern_id indices = kern_mem(b, t->s->indices), at = at_of(t, c.batch, t->s->n_indices, c.i);
  c.key = kern_cast(b, kern_load(b, indices, at, 1), t->key);
  kern_id low = kern_bin(b, KERN_LE, lo, c.key);
  c.match = kern_bin(b, KERN_AND, low, kern_bin(b, KERN_LT, c.key, hi));
  return c;
}

static void count_blocks(struct sort *t) {
  kern_id n;
  open_phase(t, t->s->n * t->blocks * t->buckets, 0);
  struct cell c = open_block(t, kern_task(&t->b), &n, -1);
  count_if(t, n, c.match);
  kern_end(&t->b);
  put(t, t->counts, c.at, kern_get(&t->b, n));
}

/* A bucket: counts become how many there are in the blocks before. */
static void add_blocks(struct sort *t) {
  struct kern_builder *b = &t->b;
  open_phase(t, t->s->n * t->buckets, 0);
  kern_id task = kern_task(b), bucket = kern_imod(b, task, t->buckets), batch = kern_idiv(b, task, t->buckets);
  kern_id sum = kern_var(b, kern_index(b, 0)), block = kern_range(b, 0, t->blocks, 1);
  kern_id at = at_of(t, at_of(t, batch, t->blocks, block), t->buckets, bucket);
  kern_id n = get(t, t->counts, at), before = kern_get(b, sum);
  put(t, t->counts, at, before);
  kern_set(b, sum, kern_add(b, before, n));
  kern_end(b);
  put(t, t->totals, task, kern_get(b, sum));
}

/* A bucket: where its list begins. */
static void add_buckets(struct sort *t) {
  struct kern_builder *b = &t->b;
  open_phase(t, t->s->n * t->buckets, 0);
  kern_id task = kern_task(b), bucket = kern_imod(b, task, t->buckets), batch = kern_idiv(b, task, t->buckets);
  kern_id sum = kern_var(b, kern_index(b, 0)), k = kern_for(b, kern_index(b, 0), bucket, 1);
  kern_id n = get(t, t->totals, at_of(t, batch, t->buckets, k));
  kern_set(b, sum, kern_add(b, kern_get(b, sum), n));
  kern_end(b);
  put(t, t->starts, task, kern_get(b, sum));
}

static void write_lists(struct sort *t) {
  struct kern_builder *b = &t->b;
  kern_id position;
  open_phase(t, t->s->n * t->blocks * t->buckets, 0);
  struct cell c = open_block(t, kern_task(b), &position, t->starts);
  kern_if(b, c.match);
  kern_id now = kern_get(b, position), at = list_at(t, c.batch, now);
  put(t, t->list, at, c.i);
  put(t, t->keys, at, c.key);
  kern_set(b, position, kern_add_i(b, now, 1));
  kern_end(b);
  kern_end(b);
}

/* ---- lists of positions ------------------------------------------------------------------------------------- */

/* The position of update number j of a bucket's list, or with one bucket of all. */
static kern_id key_at(struct sort *t, kern_id batch, kern_id j) {
  struct kern_builder *b = &t->b;
  kern_id at = at_of(t, batch, t->s->n_indices, j);
  if (t->buckets > 1) return get(t, t->keys, at);
  kern_id indices = kern_mem(b, t->s->indices);
  return kern_cast(b, kern_load(b, indices, at, 1), QUERN_DTYPE_I64);
}

/* A task of a position: counts those of its bucket's list that are lower and that are its own, then writes these. */
static void sort_positions(struct sort *t) {
  struct kern_builder *b = &t->b;
  int64_t n = t->s->n_indices;
  open_phase(t, t->s->n * t->s->positions, 0);
  kern_id task = kern_task(b), batch = kern_idiv(b, task, t->s->positions),
          position = kern_imod(b, task, t->s->positions);
  kern_id from = kern_index(b, 0), to = kern_index(b, n), zero = kern_index(b, 0);
  if (t->buckets > 1) {
    kern_id bucket = at_of(t, batch, t->buckets, kern_idiv(b, position, t->span));
    from = within(t, get(t, t->starts, bucket), n);
    to = within(t, kern_add(b, from, get(t, t->totals, bucket)), n);
  }
  kern_id lower = kern_var(b, from), own = kern_var(b, zero), j = kern_for(b, from, to, 1);
  kern_id key = key_at(t, batch, j), below = kern_bin(b, KERN_LT, key, position);
  if (t->buckets == 1) below = kern_bin(b, KERN_AND, below, kern_bin(b, KERN_LE, zero, key)); /* others are dropped */
  count_if(t, lower, below);
  count_if(t, own, kern_bin(b, KERN_EQ, key, position));
  kern_end(b);
  kern_id first = kern_get(b, lower);
  put(t, t->first, task, first);
  put(t, t->end, task, kern_add(b, first, kern_get(b, own)));
  j = kern_for(b, from, to, 1);
  kern_if(b, kern_bin(b, KERN_EQ, key_at(t, batch, j), position));
  kern_id now = kern_get(b, lower), number = j;
  if (t->buckets > 1) number = get(t, t->list, at_of(t, batch, n, j));
  put(t, t->sorted, list_at(t, batch, now), number);
  kern_set(b, lower, kern_add_i(b, now, 1));
  kern_end(b);
  kern_end(b);
}

/* ---- updates --------------------------------------------------------------------------------------------- */

/* A task's split of a row. */
struct split {
  kern_id row, batch, at; /* number of (n, p), and n; where the row begins in y */
  kern_id columns[MOST_VECTORS], active[MOST_VECTORS];
};

/* Vector v of the row that begins at `first`. */
static kern_id load_vector(struct sort *t, const struct split *split, int mem, kern_id first, int v) {
  kern_id m = kern_mem(&t->b, mem), at = kern_add(&t->b, first, split->columns[v]);
  return kern_load_n(&t->b, m, at, t->lanes, split->active[v]);
}

/* Part number `split` of row number `number`, of all rows of y. */
static struct split split_of(struct sort *t, kern_id number, kern_id part_number) {
  struct kern_builder *b = &t->b;
  const struct scatter *s = t->s;
  int64_t width = (int64_t)t->lanes * t->vectors;
  kern_id column = kern_mul_i(b, part_number, width);
  struct split split = {.row = kern_idiv(b, number, s->positions)};
  split.batch = kern_idiv(b, split.row, s->p);
  split.at = kern_mul_i(b, number, s->q);
  for (int v = 0; v < t->vectors; v++) {
    split.columns[v] = kern_add_i(b, column, (int64_t)v * t->lanes);
    split.active[v] = KERN_NONE;
    if (s->q % width == 0) continue;
    split.columns[v] = kern_min_i(b, split.columns[v], s->q); /* a vector may begin behind the row */
    split.active[v] = kern_min_i(b, kern_sub(b, kern_index(b, s->q), split.columns[v]), t->lanes);
  }
  return split;
}

/* Updates number j .. j + n - 1 of the sorted list, or the last where it ends before: vectors of each. */
static void load_updates(struct sort *t, const struct split *split, kern_id j, int n, kern_id *u) {
  struct kern_builder *b = &t->b;
  const struct scatter *s = t->s;
  kern_id rows[MOST_AHEAD];
  for (int k = 0; k < n; k++) {
    kern_id number = within(t, get(t, t->sorted, list_at(t, split->batch, kern_add_i(b, j, k))), s->n_indices - 1);
    rows[k] = kern_mul_i(b, at_of(t, split->row, s->n_indices, number), s->q);
  }
  for (int k = 0; k < n; k++)
    for (int v = 0; v < t->vectors; v++) u[k * t->vectors + v] = load_vector(t, split, s->u, rows[k], v);
}

/* Takes what was loaded, in order. */
static void take_updates(struct sort *t, int n, const kern_id *u, const kern_id *acc) {
  for (int k = 0; k < n * t->vectors; k++) {
    kern_id old = kern_get(&t->b, acc[k % t->vectors]);
    kern_set(&t->b, acc[k % t->vectors], scatter_updated(t->s, &t->b, old, u[k]));
  }
}

/* Takes updates first .. end - 1, a multiple of n, in a loop. */
static void take_range(struct sort *t, const struct split *split, kern_id first, kern_id end, int n,
                       const kern_id *acc) {
  kern_id u[MOST_AHEAD * MOST_VECTORS];
  load_updates(t, split, kern_for(&t->b, first, end, n), n, u);
  take_updates(t, n, u, acc);
  kern_end(&t->b);
}

/* Takes updates first .. end - 1, loading those of the next iteration in this one, so that the compiler leaves the loads together. */
static void take_long_range(struct sort *t, const struct split *split, kern_id first, kern_id end, int n,
                            const kern_id *acc) {
  struct kern_builder *b = &t->b;
  kern_id u[MOST_AHEAD * MOST_VECTORS], next[MOST_AHEAD * MOST_VECTORS];
  load_updates(t, split, first, n, u);
  for (int k = 0; k < n * t->vectors; k++) next[k] = kern_var(b, u[k]);
  kern_id j = kern_for(b, first, end, n);
  for (int k = 0; k < n * t->vectors; k++) u[k] = kern_get(b, next[k]);
  take_updates(t, n, u, acc);
  load_updates(t, split, kern_add_i(b, j, n), n, u);
  for (int k = 0; k < n * t->vectors; k++) kern_set(b, next[k], u[k]);
  kern_end(b);
}

/* Where the updates of a position are in the sorted list. */
struct span {
  kern_id first, end, count;
};

static struct span span_of(struct sort *t, kern_id batch, kern_id position) {
  kern_id at = at_of(t, batch, t->s->positions, position);
  struct span span = {.first = within(t, get(t, t->first, at), t->s->n_indices)};
  span.end = within(t, get(t, t->end, at), t->s->n_indices);
  span.count = kern_sub(&t->b, span.end, span.first);
  return span;
}

/* Takes all updates of a span, `ahead` at a time, if there is a iteration: a loop of at most one stands for a condition, which
** thread blocks do not have. */
static void take_span(struct sort *t, const struct split *split, struct span span, kern_id iterations, int ahead) {
  struct kern_builder *b = &t->b;
  const struct scatter *s = t->s;
  int y = (int)s->job->group->n_ins;
  kern_id acc[MOST_VECTORS];
  (void)kern_for(b, kern_index(b, 0), iterations, 1);
  for (int v = 0; v < t->vectors; v++)
    acc[v] = kern_var(b, kern_cast(b, load_vector(t, split, y, split->at, v), s->acc));
  kern_id middle = span.first;
  if (ahead > 1) {
    middle = kern_add(b, span.first, kern_mul_i(b, kern_idiv(b, span.count, ahead), ahead));
    (ahead == MOST_AHEAD ? take_long_range : take_range)(t, split, span.first, middle, ahead, acc);
  }
  take_range(t, split, middle, span.end, 1, acc);
  for (int v = 0; v < t->vectors; v++) {
    kern_id m = kern_mem(b, y), at = kern_add(b, split->at, split->columns[v]);
    kern_store_n(b, m, at, kern_cast(b, kern_get(b, acc[v]), s->dtype), split->active[v]);
  }
  kern_end(b);
}

/* Whether positions that take many updates are updated in a phase of their own. */
static bool has_many(const struct sort *t) { return t->s->n_indices > MANY && t->s->node->attrs->reduce != IR_SET; }

/* A task of a split of a row of y. */
static void update_rows(struct sort *t) {
  struct kern_builder *b = &t->b;
  const struct scatter *s = t->s;
  int ahead = BASE_MAX(BASE_MIN(ROW_LOADS / t->vectors, AHEAD), 1);
  open_phase(t, s->n * s->p * s->positions * t->splits, t->group);
  kern_id task = kern_task(b), number = kern_idiv(b, task, t->splits);
  struct split split = split_of(t, number, kern_imod(b, task, t->splits));
  struct span span = span_of(t, split.batch, kern_imod(b, number, s->positions));
  kern_id iterations = kern_min_i(b, span.count, 1);
  if (has_many(t)) {
    kern_id few = kern_bin(b, KERN_LE, span.count, kern_index(b, MANY));
    iterations = kern_select(b, few, iterations, kern_index(b, 0));
  }
  if (s->node->attrs->reduce == IR_SET) { /* the last one is what stays */
    span.first = kern_max(b, span.first, kern_add_i(b, span.end, -1));
    ahead = 1;
  }
  take_span(t, &split, span, iterations, ahead);
}

/* Updates positions that take many. A task has a multiple of MOST_AHEAD in the list, and a split of the row; it works if that is
** the first of these which belongs to the position whose update is there. */
static void update_many(struct sort *t) {
  struct kern_builder *b = &t->b;
  const struct scatter *s = t->s;
  int64_t tries = sched_ceil(s->n_indices, MOST_AHEAD);
  t->vectors = 1;
  t->splits = sched_ceil(s->q, t->lanes);
  open_phase(t, s->n * s->p * tries * t->splits, t->group);
  kern_id task = kern_task(b), rest = kern_idiv(b, task, t->splits), row = kern_idiv(b, rest, tries);
  kern_id at = kern_mul_i(b, kern_imod(b, rest, tries), MOST_AHEAD), batch = kern_idiv(b, row, s->p);
  kern_id update = within(t, get(t, t->sorted, list_at(t, batch, at)), s->n_indices - 1);
  kern_id indices = kern_mem(b, s->indices), key = kern_load(b, indices, at_of(t, batch, s->n_indices, update), 1);
  kern_id position = within(t, kern_cast(b, key, QUERN_DTYPE_I64), s->positions - 1);
  struct span span = span_of(t, batch, position);
  kern_id number = at_of(t, row, s->positions, position);
  struct split split = split_of(t, number, kern_imod(b, task, t->splits));
  kern_id first = kern_idiv(b, kern_add_i(b, span.first, MOST_AHEAD - 1), MOST_AHEAD);
  kern_id mine = kern_bin(b, KERN_EQ, kern_mul_i(b, first, MOST_AHEAD), at), none = kern_index(b, 0);
  mine = kern_bin(b, KERN_AND, mine, kern_bin(b, KERN_LT, at, span.end));
  mine = kern_bin(b, KERN_AND, mine, kern_bin(b, KERN_LT, kern_index(b, MANY), span.count));
  take_span(t, &split, span, kern_select(b, mine, kern_index(b, 1), none), MOST_AHEAD);
}

/* y = a; left out where y takes the memory of a. */
static void copy_all(struct sort *t) {
  struct kern *kern = t->b.kern;
  struct kern_builder *b = &t->b;
  int y = (int)t->s->job->group->n_ins;
  int64_t count = kern->mems[y].count;
  int each = BASE_MAX(THREAD_BYTES / BASE_MAX(size_of(t->s->dtype), 1), 1), lanes = COPY_THREADS * each;
  open_phase(t, sched_ceil(count, lanes), COPY_THREADS);
  if (kern->mems[y].alias == t->s->a) kern_phase_copies(kern, t->s->a, y);
  kern_id at = kern_mul_i(b, kern_task(b), lanes), active = KERN_NONE, from = kern_mem(b, t->s->a);
  if (count % lanes != 0) active = within(t, kern_sub(b, kern_index(b, count), at), lanes);
  kern_id x = kern_load_n(b, from, at, lanes, active), to = kern_mem(b, y);
  kern_store_n(b, to, at, x, active);
}

quern_status scatter_sorted(const struct scatter *s) {
  struct sort t = sort_of(s);
  copy_all(&t);
  if (s->n_indices == 0) return t.b.kern->failed;
  if (t.buckets > 1) {
    count_blocks(&t);
    add_blocks(&t);
    add_buckets(&t);
    write_lists(&t);
  }
  sort_positions(&t);
  update_rows(&t);
  if (has_many(&t)) update_many(&t);
  return t.b.kern->failed;
}
