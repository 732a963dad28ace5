/* sched/cpu_attention_back.c -- the gradient of flash attention on CPUs, in tiles: probabilities are recomputed from q, k and lse
** in:    a supported composite "attention.vjp": q, k, v, perhaps a bool mask, out, lse, dout; results dq, dk, dv
** how:   with P = e^(scale q k' - lse), D = rowsum(dout out), dS = scale P (dout v' - D):
**        dv = P' dout, dk = dS' q, dq = dS k. A task has one head of k and v: blocks of its keys, and for each
**        the blocks of queries of all heads that share it. Tiles are transposed, one row per key, so that P' and dS' are at hand.
**        Queries of a block before the first that attends to one of the keys are left out: what they add is nothing.
** keeps: every sum runs over blocks in one order; the blocks of queries depend on S only, those of keys on T only; memory grows
**        with S + T
** see:   cpu_attention.c      tests: tests/sched/test_attention.c
*/
#include <math.h>

#include "sched/cpu_attention.h"

enum { BLOCK_QUERIES = 128, FEW_KEYS = 256 }; /* at most; keys are taken in smaller blocks up to that many */

struct backward {
  struct att a;
  struct kern_builder *b;
  int64_t keys, queries, granule;   /* of a block; queries that are left out or not together */
  int64_t blocks, panels, padded;   /* of the queries of a head */
  int64_t width, value_width;       /* D and E rounded up to whole vectors */
  int q_mem, dout_mem;              /* as accumulators' dtype */
  int qt_mem, doutt_mem;            /* in panels: (B H, panels, width, nr) */
  int lse_mem, shift_mem, dq_mem;   /* work: (B H, padded), twice; (B H, padded, width), or the result itself */
  const struct kern_fn *tile;       /* mr x nr */
  struct att_cover to_d, to_e;      /* products that have D and E columns */
  kern_id kv, j0, head, i0, block;  /* (b, g); first key; (b, h); first query; its block */
  kern_id from;                     /* queries of the block that are left out, whole granules */
  kern_id k, v, p, ds, dst, dk, dv; /* LOCAL: keys, values, P', dS', dS, sums */
};

/* ---- before: q and dout in panels -------------------------------------------------------------------------- */

/* The panels of a head of src (B H, S, width): nr rows are columns of a panel; rows that are not there repeat the last. */
static void pack_head(struct backward *f, int src_mem, int dst_mem, int64_t width) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  kern_id src = kern_mem(b, src_mem), dst = kern_mem(b, dst_mem), rows[KERN_MAX_LANES], row_at[KERN_MAX_LANES];
  kern_id panel = kern_range(b, 0, f->panels, 1);
  kern_id column = kern_range(b, 0, a->nr, a->lanes);
  kern_id first = kern_add(b, kern_mul_i(b, panel, a->nr), column), start = kern_mul_i(b, f->head, a->S);
  for (int r = 0; r < a->lanes; r++) {
    kern_id row = kern_min_i(b, kern_add_i(b, first, r), a->S - 1);
    row_at[r] = kern_mul_i(b, kern_add(b, start, row), width);
  }
  kern_id base = kern_mul_i(b, kern_add(b, kern_mul_i(b, f->head, f->panels), panel), width * a->nr);
  base = kern_add(b, base, column);
  for (int64_t d = 0; d < width; d += a->lanes) {
    for (int r = 0; r < a->lanes; r++) rows[r] = att_load(a, b, src, kern_add_i(b, row_at[r], d), a->lanes, width - d);
    att_transpose(b, a->lanes, rows);
    for (int64_t c = 0; c < BASE_MIN(a->lanes, width - d); c++)
      kern_store(b, dst, kern_add_i(b, base, (d + c) * a->nr), rows[c]);
  }
  kern_end(b);
  kern_end(b);
}

/* ---- before: delta (D) and lse of each query, with rows that are not there weighing nothing --------- */

static void delta_of_head(struct backward *f) {
  struct att *a = &f->a;
  int base = a->mask != NULL ? 4 : 3;
  struct kern_builder *b = f->b;
  kern_id out = kern_mem(b, a->mem[base]), lse = kern_mem(b, a->mem[base + 1]), dout = kern_mem(b, a->mem[base + 2]);
  kern_id to = kern_range(b, 0, f->padded, 1);
  kern_id first = kern_mul_i(b, f->head, a->S), row = kern_add(b, first, kern_min_i(b, to, a->S - 1));
  kern_id there = kern_bin(b, KERN_LT, to, kern_index(b, a->S)), at = kern_mul_i(b, row, a->E), sum = KERN_NONE;
  for (int64_t e = 0; e < a->E; e += a->lanes) {
    kern_id x = att_load(a, b, out, kern_add_i(b, at, e), a->lanes, a->E - e);
    kern_id y = att_load(a, b, dout, kern_add_i(b, at, e), a->lanes, a->E - e);
    x = kern_mul(b, x, y);
    sum = sum == KERN_NONE ? x : kern_add(b, sum, x);
  }
  kern_id zero = kern_const_f(b, a->acc, 1, 0), far = kern_const_f(b, a->acc, 1, (double)INFINITY);
  kern_id shift = kern_tree(b, IR_SUM, 1, &sum), x = kern_cast(b, kern_load(b, lse, row, 1), a->acc);
  x = kern_select(b, kern_bin(b, KERN_EQ, x, kern_un(b, KERN_NEG, far)), zero, x);
  to = kern_add(b, to, kern_mul_i(b, f->head, f->padded));
  shift = kern_select(b, there, shift, zero);
  kern_store(b, kern_mem(b, f->shift_mem), to, shift);
  x = kern_select(b, there, x, far);
  kern_store(b, kern_mem(b, f->lse_mem), to, x);
  kern_end(b);
}

/* ---- a block of keys ------------------------------------------------------------------------------------ */

static void fill_zero(struct backward *f, kern_id mem, kern_id at, int64_t count) {
  struct kern_builder *b = f->b;
  kern_id zero = kern_const_f(b, f->a.acc, f->a.lanes, 0), i = kern_range(b, 0, count, f->a.lanes);
  kern_store(b, mem, kern_add(b, at, i), zero);
  kern_end(b);
}

/* Rows of k or v of the block to LOCAL memory; rows that are not there repeat the last. */
static void copy_keys(struct backward *f, int src_mem, kern_id dst, int64_t width) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  kern_id src = kern_mem(b, src_mem), r = kern_range(b, 0, f->keys, 1);
  kern_id row = kern_min_i(b, kern_add(b, f->j0, r), a->T - 1);
  kern_id from = kern_mul_i(b, kern_add(b, kern_mul_i(b, f->kv, a->T), row), width), to = kern_mul_i(b, r, width);
  for (int64_t d = 0; d < width; d += a->lanes) {
    kern_id x = att_load(a, b, src, kern_add_i(b, from, d), a->lanes, width - d);
    att_store(b, dst, kern_add_i(b, to, d), x, width - d);
  }
  kern_end(b);
}

/* tile (keys x queries) = rows of LOCAL memory times panels. */
static void tile_product(struct backward *f, kern_id rows, int64_t width, int panel_mem, kern_id tile) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  int64_t per_block = f->queries / a->nr;
  kern_id first = kern_mul_i(b, f->head, f->panels), panels = kern_mem(b, panel_mem), terms = kern_index(b, width);
  first = kern_add(b, first, kern_mul_i(b, f->block, per_block));
  kern_id skipped = kern_idiv(b, f->from, a->nr), p = kern_for(b, skipped, kern_index(b, per_block), 1);
  kern_id panel = kern_at(b, panels, kern_mul_i(b, kern_add(b, first, p), width * a->nr));
  kern_id r = kern_range(b, 0, f->keys, a->mr), row = kern_at(b, rows, kern_mul_i(b, r, width));
  kern_id at = kern_mul_i(b, r, f->queries);
  at = kern_add(b, at, kern_mul_i(b, p, a->nr));
  kern_id to = kern_at(b, tile, at);
  att_call(b, f->tile,
           &(struct att_product){.a = row, .lda = width, .b = panel, .c = to, .ldc = f->queries, .terms = terms});
  kern_end(b);
  kern_end(b);
}

/* A bool vector: which of the queries first, first + 1, ... attend to key j; KERN_NONE: all. */
static kern_id attends(struct backward *f, kern_id first, kern_id key) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  kern_id seen = KERN_NONE;
  if (a->causal) { /* key <= query + T - S */
    kern_id i = kern_splat(b, kern_cast(b, first, QUERN_DTYPE_I32), a->lanes);
    i = kern_add(b, i, kern_lane(b, QUERN_DTYPE_I32, a->lanes));
    kern_id least = kern_cast(b, kern_add_i(b, key, a->S - a->T), QUERN_DTYPE_I32);
    seen = kern_bin(b, KERN_LE, kern_splat(b, least, a->lanes), i);
  }
  if (a->mask == NULL) return seen;
  const int64_t *dims = a->mask->dims;
  kern_id i = kern_splat(b, first, a->lanes);
  i = kern_add(b, i, kern_lane(b, QUERN_DTYPE_I64, a->lanes));
  i = kern_min(b, i, kern_const_i(b, QUERN_DTYPE_I64, a->lanes, a->S - 1));
  kern_id zero = kern_index(b, 0), batch = kern_idiv(b, f->head, a->H), head = kern_imod(b, f->head, a->H);
  kern_id at = kern_mul_i(b, kern_add(b, kern_mul_i(b, dims[0] > 1 ? batch : zero, dims[1]), dims[1] > 1 ? head : zero),
                          dims[2]);
  kern_id column = dims[3] > 1 ? kern_min_i(b, key, a->T - 1) : zero;
  at = kern_splat(b, kern_add(b, kern_mul_i(b, at, dims[3]), column), a->lanes);
  if (dims[2] > 1) at = kern_add(b, at, kern_mul(b, i, kern_const_i(b, QUERN_DTYPE_I64, a->lanes, dims[3])));
  kern_id mask = kern_gather(b, kern_mem(b, a->mem[ATT_MASK]), at);
  return seen == KERN_NONE ? mask : kern_bin(b, KERN_AND, mask, seen);
}

/* P' and dS' of a row of the tiles, from q k' in p and dout v' in ds. */
static void softmax_grad_row(struct backward *f, kern_id r) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  kern_id n = kern_for(b, f->from, kern_index(b, f->queries), a->lanes);
  kern_id at = kern_add(b, kern_mul_i(b, r, f->queries), n), first = kern_add(b, f->i0, n);
  kern_id row = kern_add(b, kern_mul_i(b, f->head, f->padded), first);
  kern_id scale = kern_const_f(b, a->acc, a->lanes, a->scale), zero = kern_const_f(b, a->acc, a->lanes, 0);
  kern_id x = kern_mul(b, kern_load(b, f->p, at, a->lanes), scale);
  x = kern_sub(b, x, kern_load(b, kern_mem(b, f->lse_mem), row, a->lanes));
  kern_id p = kern_math(b, IR_EXP, a->acc, 1, &x);
  kern_id seen = attends(f, first, kern_add(b, f->j0, r));
  if (seen != KERN_NONE) p = kern_select(b, seen, p, zero);
  kern_id ds = kern_load(b, f->ds, at, a->lanes);
  ds = kern_sub(b, ds, kern_load(b, kern_mem(b, f->shift_mem), row, a->lanes));
  kern_store(b, f->p, at, p);
  kern_store(b, f->ds, at, kern_mul(b, kern_mul(b, p, ds), scale));
  kern_end(b);
}

/* dst (queries x keys) = ds (keys x queries) transposed. */
static void transpose_tile(struct backward *f) {
  struct kern_builder *b = f->b;
  int lanes = f->a.lanes;
  kern_id rows[KERN_MAX_LANES];
  kern_id j = kern_range(b, 0, f->keys, lanes);
  kern_id i = kern_for(b, f->from, kern_index(b, f->queries), lanes);
  for (int r = 0; r < lanes; r++)
    rows[r] = kern_load(b, f->ds, kern_add(b, kern_mul_i(b, kern_add_i(b, j, r), f->queries), i), lanes);
  att_transpose(b, lanes, rows);
  for (int r = 0; r < lanes; r++)
    kern_store(b, f->dst, kern_add(b, kern_mul_i(b, kern_add_i(b, i, r), f->keys), j), rows[r]);
  kern_end(b);
  kern_end(b);
}

/* A block of queries of one head. */
static void query_block(struct backward *f) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  tile_product(f, f->k, a->D, f->qt_mem, f->p);
  tile_product(f, f->v, a->E, f->doutt_mem, f->ds);
  softmax_grad_row(f, kern_range(b, 0, f->keys, 1));
  kern_end(b);
  transpose_tile(f);
  kern_id queries = kern_min_i(b, kern_sub(b, kern_index(b, a->S), f->i0), f->queries);
  queries = kern_sub(b, queries, f->from);
  kern_id keys = kern_min_i(b, kern_sub(b, kern_index(b, a->T), f->j0), f->keys), zero = kern_index(b, 0);
  kern_id row = kern_add(b, kern_mul_i(b, f->head, a->S), f->i0), dout = kern_mem(b, f->dout_mem);
  row = kern_add(b, row, f->from);
  dout = kern_at(b, dout, kern_mul_i(b, row, a->E));
  struct att_product product = {.a = kern_at(b, f->p, f->from),
                                .lda = f->queries,
                                .b = dout,
                                .c = f->dv,
                                .ldc = f->value_width,
                                .terms = queries};
  att_multiply_add(&f->a, f->b, &f->to_e, zero, f->keys, &product);
  kern_id q = kern_mem(b, f->q_mem);
  product.a = kern_at(b, f->ds, f->from);
  product.b = kern_at(b, q, kern_mul_i(b, row, a->D));
  product.c = f->dk;
  product.ldc = f->width;
  att_multiply_add(&f->a, f->b, &f->to_d, zero, f->keys, &product);
  kern_id to = kern_mul_i(b, kern_add(b, kern_mul_i(b, f->head, f->padded), f->i0), f->width);
  kern_id dq = kern_mem(b, f->dq_mem);
  product = (struct att_product){
      .a = f->dst, .lda = f->keys, .b = f->k, .c = kern_at(b, dq, to), .ldc = f->width, .terms = keys};
  att_multiply_add(&f->a, f->b, &f->to_d, f->from, f->queries, &product);
}

/* Rows that are there, from LOCAL sums to a result. */
static void store_keys(struct backward *f, int result, kern_id src, int64_t row_length, int64_t width) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  int mem = att_mem_out(a->job, result);
  if (mem < 0) return;
  kern_id end = kern_min_i(b, kern_add_i(b, f->j0, f->keys), a->T);
  kern_id key = kern_for(b, f->j0, end, 1), from = kern_mul_i(b, kern_imod(b, key, f->keys), row_length);
  kern_id to = kern_mul_i(b, kern_add(b, kern_mul_i(b, f->kv, a->T), key), width), out = kern_mem(b, mem);
  for (int64_t d = 0; d < width; d += a->lanes) {
    kern_id x = kern_load(b, src, kern_add_i(b, from, d), a->lanes);
    x = kern_cast(b, x, a->job->group->anchor->out[result].dtype);
    att_store(b, out, kern_add_i(b, to, d), x, width - d);
  }
  kern_end(b);
}

/* dq of a head in its dtype, without the rows that are not there. */
static void finish_head(struct backward *f) {
  struct att *a = &f->a;
  int mem = att_mem_out(a->job, 0);
  if (mem < 0 || mem == f->dq_mem) return;
  struct kern_builder *b = f->b;
  kern_id dq = kern_mem(b, f->dq_mem), out = kern_mem(b, mem), i = kern_range(b, 0, a->S, 1);
  kern_id from = kern_mul_i(b, kern_add(b, kern_mul_i(b, f->head, f->padded), i), f->width);
  kern_id to = kern_mul_i(b, kern_add(b, kern_mul_i(b, f->head, a->S), i), a->D);
  for (int64_t d = 0; d < a->D; d += a->lanes) {
    kern_id x = kern_load(b, dq, kern_add_i(b, from, d), a->lanes);
    x = kern_cast(b, x, a->job->group->anchor->out[0].dtype);
    att_store(b, out, kern_add_i(b, to, d), x, a->D - d);
  }
  kern_end(b);
}

/* Opens a loop over the heads that share the task's keys and values. */
static void open_heads(struct backward *f) {
  int64_t shared = f->a.H / f->a.G;
  kern_id h = kern_range(f->b, 0, shared, 1);
  f->head = kern_add(f->b, kern_mul_i(f->b, f->kv, shared), h);
}

static void key_block(struct backward *f) {
  struct kern_builder *b = f->b;
  struct att *a = &f->a;
  copy_keys(f, a->mem[ATT_K], f->k, a->D);
  copy_keys(f, a->mem[ATT_V], f->v, a->E);
  fill_zero(f, f->dk, kern_index(b, 0), f->keys * f->width);
  fill_zero(f, f->dv, kern_index(b, 0), f->keys * f->value_width);
  open_heads(f);
  kern_id lo = kern_index(b, 0), first = lo; /* the first query that attends a key of the block */
  if (a->causal) {
    first = kern_max_i(b, kern_add_i(b, f->j0, a->S - a->T), 0);
    lo = kern_idiv(b, first, f->queries);
  }
  f->block = kern_for(b, lo, kern_index(b, f->blocks), 1);
  f->i0 = kern_mul_i(b, f->block, f->queries);
  f->from = kern_index(b, 0);
  if (a->causal) {
    kern_id granules = kern_idiv(b, kern_max_i(b, kern_sub(b, first, f->i0), 0), f->granule);
    f->from = kern_mul_i(b, kern_min_i(b, granules, f->queries / f->granule - 1), f->granule);
  }
  query_block(f);
  kern_end(b);
  kern_end(b);
  store_keys(f, 1, f->dk, f->width, a->D);
  store_keys(f, 2, f->dv, f->value_width, a->E);
}

static void backward_phase(struct backward *f) {
  struct att *a = &f->a;
  struct kern_builder builder = {a->job->kern, kern_add_phase(a->job->kern, KERN_FIXED_TASKS(a->B * a->G))};
  struct kern_builder *b = f->b = &builder;
  f->kv = kern_task(b);
  f->k = kern_local(b, a->acc, f->keys * a->D);
  f->v = kern_local(b, a->acc, f->keys * a->E);
  f->p = kern_local(b, a->acc, f->keys * f->queries);
  f->ds = kern_local(b, a->acc, f->keys * f->queries);
  f->dst = kern_local(b, a->acc, f->keys * f->queries);
  f->dk = kern_local(b, a->acc, f->keys * f->width);
  f->dv = kern_local(b, a->acc, f->keys * f->value_width);
  open_heads(f);
  pack_head(f, a->mem[ATT_Q], f->qt_mem, a->D);
  pack_head(f, a->mem[a->mask != NULL ? 6 : 5], f->doutt_mem, a->E);
  delta_of_head(f);
  kern_id dq = kern_mem(b, f->dq_mem);
  fill_zero(f, dq, kern_mul_i(b, f->head, f->padded * f->width), f->padded * f->width);
  kern_end(b);
  kern_id block = kern_range(b, 0, sched_ceil(a->T, f->keys), 1);
  f->j0 = kern_mul_i(b, block, f->keys);
  key_block(f);
  kern_end(b);
  if (att_mem_out(a->job, 0) == f->dq_mem) return;
  open_heads(f);
  finish_head(f);
  kern_end(b);
}

/* The least common multiple. */
static int64_t common(int64_t x, int64_t y) {
  int64_t m = x;
  while (m % y != 0) m += x;
  return m;
}

/* Blocks of about one size, each whole granules. */
static void choose_blocks(struct backward *f) {
  const struct att *a = &f->a;
  int64_t of_keys = common(a->mr, a->lanes), most = a->T > FEW_KEYS ? 64 : 32;
  f->keys = of_keys * BASE_MAX(BASE_MIN(most / of_keys, sched_ceil(a->T, of_keys)), 1);
  f->granule = common(a->mr, a->nr);
  int64_t granules = sched_ceil(a->S, f->granule), per_block = BASE_MAX(BLOCK_QUERIES / f->granule, 1);
  f->blocks = sched_ceil(granules, per_block);
  f->queries = sched_ceil(granules, f->blocks) * f->granule;
  f->blocks = sched_ceil(a->S, f->queries);
  f->padded = f->blocks * f->queries;
  f->panels = f->padded / a->nr;
}

/* Where sums of dq grow: in the result, where it is as they are, else in a workspace. */
static int choose_dq(const struct backward *f) {
  const struct att *a = &f->a;
  struct kern *kern = a->job->kern;
  int mem = att_mem_out(a->job, 0);
  if (mem >= 0 && kern->mems[mem].dtype == a->acc && f->width == a->D && f->padded == a->S) return mem;
  return kern_add_mem(kern, a->acc, KERN_WORK, a->B * a->H * f->padded * f->width);
}

quern_status sched_cpu_attention_back(struct sched_job *job) {
  struct backward f = {0};
  struct att *a = &f.a;
  struct kern *kern = job->kern;
  att_setup(a, job);
  int dout = a->mem[a->mask != NULL ? 6 : 5];
  att_choose_tile(a);
  choose_blocks(&f);
  f.width = sched_ceil(a->D, a->lanes) * a->lanes;
  f.value_width = sched_ceil(a->E, a->lanes) * a->lanes;
  int64_t heads = a->B * a->H;
  f.q_mem = att_add_wide(a, a->mem[ATT_Q]);
  f.dout_mem = att_add_wide(a, dout);
  f.qt_mem = kern_add_mem(kern, a->acc, KERN_WORK, heads * f.padded * a->D);
  f.doutt_mem = kern_add_mem(kern, a->acc, KERN_WORK, heads * f.padded * a->E);
  f.lse_mem = kern_add_mem(kern, a->acc, KERN_WORK, heads * f.padded);
  f.shift_mem = kern_add_mem(kern, a->acc, KERN_WORK, heads * f.padded);
  f.dq_mem = choose_dq(&f);
  f.tile = att_tile(a, a->nr, a->nr);
  f.to_d = att_cover(a, a->D, a->D);
  f.to_e = a->E == a->D ? f.to_d : att_cover(a, a->E, a->E);
  if (f.q_mem != a->mem[ATT_Q]) att_widen_phase(a, a->mem[ATT_Q], f.q_mem, heads, a->S * a->D);
  if (f.dout_mem != dout) att_widen_phase(a, dout, f.dout_mem, heads, a->S * a->E);
  if (kern->failed == QUERN_STATUS_OK) backward_phase(&f);
  return kern->failed;
}
