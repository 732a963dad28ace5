/* sched/sort.c -- kernels of SORT groups: keys, and what is sorted in which task
** Short lines are sorted by counting, longer ones by the digits of their keys, one line per task; few long lines are cut
** into blocks that are sorted in one phase and merged in the phases after it.
** see: sort_line.c, sort_merge.c                  tests: tests/sched/test_sort.c
*/
#include "sched/sort.h"

enum {
  LOCAL_BYTES = 1 << 18, /* items of longer lines lie in a workspace */
  BLOCK = 4096,          /* items that are worth a task */
  MOST_BLOCKS = 64
};

static const quern_dtype u64 = QUERN_DTYPE_U64, i64 = QUERN_DTYPE_I64;

/* ---- items ----------------------------------------------------------------------------------------------- */

kern_id sort_clamp(struct kern_builder *b, kern_id x, int64_t n) { return kern_min_i(b, kern_max_i(b, x, 0), n - 1); }

kern_id sort_line_base(const struct sort *s, struct kern_builder *b, kern_id line) {
  kern_id outer = kern_mul_i(b, kern_idiv(b, line, s->stride), s->n * s->stride);
  return kern_add(b, outer, kern_imod(b, line, s->stride));
}

static int lanes_of(struct kern_builder *b, kern_id x) {
  return b->kern->failed == QUERN_STATUS_OK ? kern_at_id(b, x)->lanes : 1;
}

static kern_id as_unsigned(struct kern_builder *b, kern_id x, quern_dtype dtype) {
  static const quern_dtype same_size[9] = {
      [1] = QUERN_DTYPE_U8, [2] = QUERN_DTYPE_U16, [4] = QUERN_DTYPE_U32, [8] = QUERN_DTYPE_U64};
  quern_dtype bits = same_size[base_dtypes[dtype].size];
  if (dtype != QUERN_DTYPE_BOOL && dtype != bits) x = kern_bitcast(b, x, bits);
  return kern_cast(b, x, u64);
}

static kern_id key_of(const struct sort *s, struct kern_builder *b, kern_id x) {
  quern_dtype dtype = s->x->dtype;
  const struct base_dtype_info *info = &base_dtypes[dtype];
  int lanes = lanes_of(b, x), width = 8 * (int)info->size;
  uint64_t all = UINT64_MAX >> (64 - width), top = UINT64_C(1) << (width - 1);
  kern_id key = as_unsigned(b, x, dtype), ones = kern_const_bits(b, u64, lanes, all);
  kern_id high = kern_const_bits(b, u64, lanes, top);
  if (info->class == BASE_SIGNED) key = kern_bin(b, KERN_XOR, key, high);
  if (info->class == BASE_FLOAT) {
    kern_id value = kern_cast(b, x, dtype == QUERN_DTYPE_F64 ? QUERN_DTYPE_F64 : QUERN_DTYPE_F32);
    kern_id zero = kern_const_bits(b, dtype == QUERN_DTYPE_F64 ? QUERN_DTYPE_F64 : QUERN_DTYPE_F32, lanes, 0);
    kern_id minus = kern_bin(b, KERN_LT, value, zero), below = kern_bin(b, KERN_XOR, key, ones);
    key = kern_select(b, minus, below, kern_bin(b, KERN_OR, key, high));
    key = kern_select(b, kern_bin(b, KERN_EQ, value, zero), high, key);
    key = kern_select(b, kern_bin(b, KERN_EQ, value, value), key, ones);
  }
  return s->reverse ? kern_bin(b, KERN_XOR, key, ones) : key;
}

struct sort_item sort_make_item(const struct sort *s, struct kern_builder *b, kern_id x, kern_id number) {
  struct sort_item item = {key_of(s, b, x), number};
  if (!s->packed) return item;
  int lanes = lanes_of(b, x);
  kern_id key = kern_bin(b, KERN_SHL, item.key, kern_const_i(b, u64, lanes, 32));
  return (struct sort_item){kern_bin(b, KERN_OR, key, kern_bitcast(b, number, u64)), KERN_NONE};
}

struct sort_item sort_load(const struct sort *s, struct kern_builder *b, struct sort_items items, kern_id at) {
  struct sort_item item = {kern_load(b, items.keys, at, 1), KERN_NONE};
  if (!s->packed) item.number = kern_load(b, items.numbers, at, 1);
  return item;
}

void sort_store(const struct sort *s, struct kern_builder *b, struct sort_items items, kern_id at,
                struct sort_item item) {
  kern_store(b, items.keys, at, item.key);
  if (!s->packed) kern_store(b, items.numbers, at, item.number);
}

void sort_write(const struct sort *s, struct kern_builder *b, kern_id base, kern_id at, struct sort_item item) {
  kern_id number = item.number, stride = kern_index(b, s->stride);
  kern_id src = kern_mem(b, 0), dst = kern_mem(b, 1);
  if (s->packed) {
    number = kern_bitcast(b, item.key, i64);
    number = kern_bin(b, KERN_AND, number, kern_const_i(b, i64, 1, UINT32_MAX));
  }
  number = sort_clamp(b, number, s->n);
  kern_id to = kern_add(b, base, kern_mul(b, at, stride)), from = kern_add(b, base, kern_mul(b, number, stride));
  kern_store(b, dst, to, kern_load(b, src, from, 1));
  kern_store(b, kern_mem(b, 2), to, number);
}

/* ---- memory for items ------------------------------------------------------------------------------------ */

/* Numbers of workspaces for two sets of items of all lines: keys, numbers, keys, numbers. */
static void add_work(const struct sort *s, int work[4]) {
  for (int i = 0; i < 4; i++) {
    work[i] = -1;
    if (i % 2 == 1 && s->packed) continue;
    work[i] = kern_add_mem(s->job->kern, i % 2 == 0 ? u64 : i64, KERN_WORK, s->lines * s->n);
    sched_work_rows(s->job, work[i], s->x, s->lines);
  }
}

/* The items of a line in set 0 or 1. */
static struct sort_items items_of(const struct sort *s, struct kern_builder *b, const int work[4], int set,
                                  kern_id line) {
  kern_id first = kern_mul_i(b, line, s->n);
  struct sort_items items = {kern_at(b, kern_mem(b, work[2 * set]), first), KERN_NONE};
  if (!s->packed) items.numbers = kern_at(b, kern_mem(b, work[2 * set + 1]), first);
  return items;
}

static struct sort_items local_items(const struct sort *s, struct kern_builder *b) {
  struct sort_items items = {kern_local(b, u64, s->n), KERN_NONE};
  if (!s->packed) items.numbers = kern_local(b, i64, s->n);
  return items;
}

/* ---- tasks ------------------------------------------------------------------------------------------------- */

/* Whole lines, each sorted by one task. */
static quern_status phase_of_lines(const struct sort *s) {
  struct kern *kern = s->job->kern;
  bool by_count = s->n <= SORT_SHORT, local = 4 * 8 * s->n <= BASE_MIN(LOCAL_BYTES, s->job->target->l2_bytes);
  int64_t least = s->job->target->gpu ? 1 : BLOCK / s->n;
  int64_t grain = BASE_MIN(BASE_MAX(BASE_MAX(s->job->sched->grain, 1), least), s->lines);
  int work[4] = {-1, -1, -1, -1};
  if (!by_count && !local) add_work(s, work);
  struct kern_builder b = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(sched_ceil(s->lines, grain)))};
  QUERN_TRY(kern->failed);
  struct sort_items items[2] = {{KERN_NONE, KERN_NONE}, {KERN_NONE, KERN_NONE}};
  for (int i = 0; i < 2 && !by_count && local; i++) items[i] = local_items(s, &b);
  kern_id first = kern_mul_i(&b, kern_task(&b), grain);
  kern_id last = kern_min_i(&b, kern_add_i(&b, first, grain), s->lines);
  kern_id line = kern_for(&b, first, last, 1), base = sort_line_base(s, &b, line);
  for (int i = 0; i < 2 && !by_count && !local; i++) items[i] = items_of(s, &b, work, i, line);
  if (by_count) {
    sort_by_count(s, &b, base);
  } else {
    kern_id zero = kern_index(&b, 0), all = kern_index(&b, s->n);
    sort_by_digits(s, &b, base, zero, all, items, true);
  }
  kern_end(&b);
  return kern->failed;
}

/* Blocks of lines are sorted in one phase, then merged two by two. */
static quern_status phases_of_blocks(const struct sort *s, int64_t blocks) {
  struct kern *kern = s->job->kern;
  int64_t block = sched_ceil(s->n, blocks);
  int work[4], set = (int)base_dtypes[s->x->dtype].size % 2; /* which set the blocks are in, once sorted */
  add_work(s, work);
  for (int64_t run = block; run <= block * blocks; run *= 2) {
    bool is_first = run == block, is_last = run == block * blocks;
    struct kern_builder b = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(s->lines * blocks))};
    QUERN_TRY(kern->failed);
    kern_id line = kern_idiv(&b, kern_task(&b), blocks), part = kern_imod(&b, kern_task(&b), blocks);
    kern_id base = sort_line_base(s, &b, line);
    struct sort_items items[2];
    for (int i = 0; i < 2; i++) items[i] = items_of(s, &b, work, i, line);
    if (is_first) {
      kern_id lo = kern_min_i(&b, kern_mul_i(&b, part, block), s->n);
      kern_id hi = kern_min_i(&b, kern_add_i(&b, lo, block), s->n);
      sort_by_digits(s, &b, base, lo, hi, items, false);
    } else {
      sort_merge(s, &b, base, part, block, run / 2, items[set], is_last ? NULL : &items[1 - set]);
      set = 1 - set;
    }
  }
  return kern->failed;
}

quern_status sched_sort(struct sched_job *job) {
  const struct ir_node *node = job->group->anchor;
  const quern_tensor *x = node->src[0];
  QUERN_ASSERT(job->group->n_ins == 1 && job->group->n_outs == 2);
  if (ir_count(x) == 0) {
    (void)kern_add_phase(job->kern, KERN_FIXED_TASKS(0));
    return job->kern->failed;
  }
  struct sort s = {.job = job, .x = x, .reverse = node->attrs->reverse != 0, .n = x->dims[node->attrs->axis]};
  s.packed = base_dtypes[x->dtype].size <= 4 && s.n <= UINT32_MAX;
  s.lanes = BASE_MAX(job->sched->lanes / 2, 1);
  s.stride = 1;
  for (int k = (int)node->attrs->axis + 1; k < x->rank; k++) s.stride *= x->dims[k];
  s.lines = ir_count(x) / s.n;
  int64_t blocks = 1, threads = job->target->threads;
  while (s.lines < threads && blocks < MOST_BLOCKS && blocks * s.lines < 2 * threads && s.n / (2 * blocks) >= BLOCK)
    blocks *= 2;
  return blocks > 1 ? phases_of_blocks(&s, blocks) : phase_of_lines(&s);
}
