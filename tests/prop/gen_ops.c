/* prop/gen_ops.c -- one random node of each op: a function a row of ops.def's inference column */
#include <string.h>

#include "prop/prop.h"

typedef void op_maker(struct gen *g, enum ir_op op);

#define INTS(n, at) ((struct ir_ints){(n), (at)})

static int64_t between(struct gen *g, int64_t lo, int64_t hi) { return lo + rng_below(g->rng, (int)(hi - lo + 1)); }

/* Each axis with that chance; their number. */
static int some_axes(struct gen *g, int rank, int percent, int64_t *axes) {
  int n = 0;
  for (int k = 0; k < rank; k++) {
    if (rng_chance(g->rng, percent)) axes[n++] = k;
  }
  return n;
}

/* ---- leaves ------------------------------------------------------------------------------------------ */

static void gen_LEAF(struct gen *g, enum ir_op op) {
  if (op == IR_PARAM) {
    gen_control(g, IR_IF);
    return;
  }
  int64_t dims[GEN_RANK];
  int rank = gen_shape(g, dims, 0);
  gen_leaf(g, rng_dtype(g->rng, BASE_ANY), rank, dims);
}

static void gen_CONST(struct gen *g, enum ir_op op) {
  (void)op;
  int64_t dims[GEN_RANK];
  int rank = gen_shape(g, dims, 0);
  gen_const(g, rng_dtype(g->rng, BASE_ANY), rank, dims);
}

static void gen_IOTA(struct gen *g, enum ir_op op) {
  int64_t dims[GEN_RANK];
  int rank = gen_shape(g, dims, 1);
  struct ir_attrs attrs = {.dtype = rng_dtype(g->rng, BASE_NUM), .shape = {rank, dims}};
  attrs.axis = rng_below(g->rng, rank);
  gen_make(g, op, 0, NULL, &attrs);
}

static void gen_RANDOM(struct gen *g, enum ir_op op) {
  int64_t dims[GEN_RANK];
  struct ir_attrs attrs = {.shape = {gen_shape(g, dims, 0), dims}};
  attrs.stream = rng_below(g->rng, 9);
  quern_tensor *seed = gen_scalar(g, QUERN_DTYPE_U64), *step = gen_scalar(g, QUERN_DTYPE_U64);
  GEN_MAKE(g, op, &attrs, seed, step);
}

/* ---- elementwise ------------------------------------------------------------------------------------- */

static void gen_SAME(struct gen *g, enum ir_op op) { GEN_MAKE(g, op, NULL, gen_pick(g, ir_ops[op].dtypes, 0)); }

static void gen_CAST(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 0);
  GEN_MAKE(g, op, (&(struct ir_attrs){.dtype = rng_dtype(g->rng, BASE_ANY)}), x);
}

quern_tensor *gen_bitcast(struct gen *g, quern_tensor *x, quern_dtype dtype) {
  static const quern_dtype words[] = {
      [1] = QUERN_DTYPE_U8, [2] = QUERN_DTYPE_U16, [4] = QUERN_DTYPE_U32, [8] = QUERN_DTYPE_U64};
  size_t size = base_dtypes[dtype].size;
  if (base_dtype_is(dtype, BASE_FLOAT) && x->dtype != dtype && !ir_is_poison(x)) {
    /* Without the highest exponent bit it is neither infinite nor NaN. */
    if (x->dtype != words[size]) x = GEN_MAKE(g, IR_BITCAST, (&(struct ir_attrs){.dtype = words[size]}), x);
    unsigned char bits[8] = {0};
    base_store_int(words[size], bits, 0, ~(UINT64_C(1) << (8 * size - 2)));
    x = GEN_MAKE(g, IR_AND, NULL, x, gen_full(g, words[size], x->rank, x->dims, bits));
  }
  return GEN_MAKE(g, IR_BITCAST, (&(struct ir_attrs){.dtype = dtype}), x);
}

static void gen_BITCAST(struct gen *g, enum ir_op op) {
  (void)op;
  quern_tensor *x = gen_pick(g, BASE_ANY, 0);
  for (int try = 0; try < 50; try++) {
    quern_dtype dtype = rng_dtype(g->rng, BASE_NUM);
    if (base_dtypes[dtype].size != base_dtypes[x->dtype].size) continue;
    gen_bitcast(g, x, dtype);
    return;
  }
}

static void gen_PAIR(struct gen *g, enum ir_op op) {
  quern_tensor *a = gen_pick(g, ir_ops[op].dtypes, 0);
  quern_tensor *b = rng_chance(g->rng, 15) ? gen_special(g, a->dtype, a->rank, a->dims) : gen_pick_like(g, a);
  bool swap = rng_chance(g->rng, 30);
  GEN_MAKE(g, op, NULL, swap ? b : a, swap ? a : b);
}

static void gen_COMPARE(struct gen *g, enum ir_op op) { gen_PAIR(g, op); }

static void gen_SELECT(struct gen *g, enum ir_op op) {
  quern_tensor *a = gen_pick(g, BASE_ANY, 0);
  quern_tensor *mask = gen_pick_type(g, QUERN_DTYPE_BOOL, a->rank, a->dims);
  GEN_MAKE(g, op, NULL, mask, a, gen_pick_like(g, a));
}

/* ---- movement ---------------------------------------------------------------------------------------- */

static void gen_RESHAPE(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 0);
  int64_t dims[QUERN_MAX_RANK];
  int rank = 0;
  for (int k = 0; k < x->rank; k++) { /* join neighbors, split even axes, put ones between */
    if (rank < GEN_RANK - 1 && rng_chance(g->rng, 15)) dims[rank++] = 1;
    if (rank > 0 && (rng_chance(g->rng, 40) || rank >= GEN_RANK - 1)) {
      dims[rank - 1] *= x->dims[k];
    } else if (x->dims[k] % 2 == 0 && x->dims[k] > 0 && rank < GEN_RANK - 2 && rng_chance(g->rng, 30)) {
      dims[rank++] = 2;
      dims[rank++] = x->dims[k] / 2;
    } else {
      dims[rank++] = x->dims[k];
    }
  }
  if (rank < GEN_RANK && rng_chance(g->rng, 20)) dims[rank++] = 1;
  GEN_MAKE(g, op, (&(struct ir_attrs){.shape = {rank, dims}}), x);
}

static void gen_PERMUTE(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, rng_chance(g->rng, 80) ? 2 : 0);
  int64_t axes[QUERN_MAX_RANK] = {0};
  for (int k = 0; k < x->rank; k++) {
    int at = rng_chance(g->rng, 80) ? rng_below(g->rng, k + 1) : k;
    axes[k] = axes[at];
    axes[at] = k;
  }
  GEN_MAKE(g, op, (&(struct ir_attrs){.axes = {x->rank, axes}}), x);
}

static void gen_BROADCAST(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 0);
  int64_t dims[QUERN_MAX_RANK];
  int rank = 0;
  for (int k = 0; k < x->rank; k++) { /* new axes of size 1 to stretch */
    if (x->rank < GEN_RANK && rng_chance(g->rng, 20) && rank < GEN_RANK - 1) dims[rank++] = 1;
    dims[rank++] = x->dims[k];
  }
  if (rank < GEN_RANK && rng_chance(g->rng, 40)) dims[rank++] = 1;
  if (rank != x->rank) x = GEN_MAKE(g, IR_RESHAPE, (&(struct ir_attrs){.shape = {rank, dims}}), x);
  for (int k = 0; k < rank; k++) {
    if (dims[k] == 1 && rng_chance(g->rng, 85)) dims[k] = rng_chance(g->rng, 4) ? 0 : between(g, 1, 3);
  }
  GEN_MAKE(g, op, (&(struct ir_attrs){.shape = {rank, dims}}), x);
}

static void gen_PAD(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 0);
  int64_t lists[3][QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) {
    for (int i = 0; i < 3; i++) lists[i][k] = rng_chance(g->rng, i == 2 ? 85 : 50) ? 0 : between(g, 1, 2);
  }
  struct ir_attrs attrs = {
      .lo = INTS(x->rank, lists[0]), .hi = INTS(x->rank, lists[1]), .mid = INTS(x->rank, lists[2])};
  GEN_MAKE(g, op, &attrs, x, gen_scalar(g, x->dtype));
}

static void gen_SLICE(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, rng_chance(g->rng, 90) ? 1 : 0);
  int64_t lo[QUERN_MAX_RANK], hi[QUERN_MAX_RANK], step[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) {
    bool whole = rng_chance(g->rng, 50);
    lo[k] = whole ? 0 : between(g, 0, x->dims[k]);
    hi[k] = whole ? x->dims[k] : between(g, lo[k], x->dims[k]);
    step[k] = rng_chance(g->rng, 75) ? 1 : between(g, 1, 3);
  }
  struct ir_attrs attrs = {.lo = INTS(x->rank, lo), .hi = INTS(x->rank, hi), .step = INTS(x->rank, step)};
  GEN_MAKE(g, op, &attrs, x);
}

static void gen_FLIP(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 0);
  int64_t axes[QUERN_MAX_RANK];
  GEN_MAKE(g, op, (&(struct ir_attrs){.axes = INTS(some_axes(g, x->rank, 50, axes), axes)}), x);
}

static void gen_CONCAT(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 1), *src[4];
  int axis = rng_below(g->rng, x->rank), n = 1 + rng_below(g->rng, 4);
  int64_t dims[QUERN_MAX_RANK];
  memcpy(dims, x->dims, (size_t)x->rank * sizeof *dims);
  for (int i = 0; i < n; i++) {
    dims[axis] = rng_chance(g->rng, 50) ? x->dims[axis] : between(g, 0, 2);
    src[i] = i == 0 ? x : gen_pick_type(g, x->dtype, x->rank, dims);
  }
  gen_make(g, op, n, src, &(struct ir_attrs){.axis = axis});
}

static void starts(struct gen *g, int rank, quern_tensor **src) {
  for (int k = 0; k < rank; k++) {
    quern_dtype dtype = rng_dtype(g->rng, BASE_INT);
    src[k] = rng_chance(g->rng, 30) ? gen_const(g, dtype, 0, NULL) : gen_scalar(g, dtype);
  }
}

static void gen_SLICE_AT(struct gen *g, enum ir_op op) {
  quern_tensor *src[1 + QUERN_MAX_RANK];
  quern_tensor *x = src[0] = gen_pick(g, BASE_ANY, 0);
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) dims[k] = rng_chance(g->rng, 40) ? x->dims[k] : between(g, 0, x->dims[k]);
  starts(g, x->rank, src + 1);
  gen_make(g, op, 1 + x->rank, src, &(struct ir_attrs){.shape = {x->rank, dims}});
}

static void gen_UPDATE_AT(struct gen *g, enum ir_op op) {
  quern_tensor *src[2 + QUERN_MAX_RANK];
  quern_tensor *x = src[0] = gen_pick(g, BASE_ANY, 0);
  int64_t dims[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) dims[k] = rng_chance(g->rng, 40) ? x->dims[k] : between(g, 0, x->dims[k]);
  src[1] = gen_pick_type(g, x->dtype, x->rank, dims);
  starts(g, x->rank, src + 2);
  gen_make(g, op, 2 + x->rank, src, NULL);
}

/* Windows that fit into dims: the number of axes. */
static int windows(struct gen *g, int rank, const int64_t *dims, int64_t lists[4][QUERN_MAX_RANK]) {
  int n = 0;
  for (int k = 0; k < rank; k++) {
    if (dims[k] < 1 || !rng_chance(g->rng, 60)) continue;
    int64_t size = between(g, 1, BASE_MIN(dims[k], 3)), dilate = between(g, 1, 2);
    if ((size - 1) * dilate + 1 > dims[k]) dilate = 1;
    lists[0][n] = k;
    lists[1][n] = size;
    lists[2][n] = rng_chance(g->rng, 70) ? 1 : between(g, 1, 3);
    lists[3][n++] = dilate;
  }
  return n;
}

static void gen_WINDOW(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, rng_chance(g->rng, 90) ? 1 : 0);
  int64_t lists[4][QUERN_MAX_RANK];
  int n = windows(g, x->rank, x->dims, lists);
  struct ir_attrs attrs = {
      .axes = INTS(n, lists[0]), .size = INTS(n, lists[1]), .step = INTS(n, lists[2]), .dilate = INTS(n, lists[3])};
  GEN_MAKE(g, op, &attrs, x);
}

static void gen_COL2IM(struct gen *g, enum ir_op op) {
  int64_t shape[QUERN_MAX_RANK], dims[QUERN_MAX_RANK], lists[4][QUERN_MAX_RANK];
  int rank = gen_shape(g, shape, 1);
  if (rank > 3) rank = 3;
  int n = windows(g, rank, shape, lists);
  memcpy(dims, shape, (size_t)rank * sizeof *dims);
  for (int i = 0; i < n; i++) {
    int64_t span = (lists[1][i] - 1) * lists[3][i] + 1;
    dims[lists[0][i]] = (shape[lists[0][i]] - span) / lists[2][i] + 1;
    dims[rank + i] = lists[1][i];
  }
  quern_tensor *x = gen_pick_type(g, rng_dtype(g->rng, BASE_NUM), rank + n, dims);
  struct ir_attrs attrs = {
      .shape = {rank, shape}, .axes = INTS(n, lists[0]), .step = INTS(n, lists[2]), .dilate = INTS(n, lists[3])};
  GEN_MAKE(g, op, &attrs, x);
}

/* Indices for an axis of x, and how many batch axes they share with it. */
static quern_tensor *indices(struct gen *g, const quern_tensor *x, int axis, int *batch) {
  int64_t dims[QUERN_MAX_RANK];
  *batch = rng_chance(g->rng, 70) ? 0 : rng_below(g->rng, axis + 1);
  int rank = *batch + rng_below(g->rng, 3);
  for (int k = 0; k < rank; k++) dims[k] = k < *batch ? x->dims[k] : between(g, rng_chance(g->rng, 20) ? 0 : 1, 3);
  quern_dtype dtype = rng_dtype(g->rng, BASE_INT);
  return rng_chance(g->rng, 50) ? gen_pick_type(g, dtype, rank, dims) : gen_leaf(g, dtype, rank, dims);
}

static int gathered(const quern_tensor *x, const quern_tensor *index, int axis, int batch, int64_t *dims) {
  int rank = 0;
  for (int k = 0; k < axis; k++) dims[rank++] = x->dims[k];
  for (int k = batch; k < index->rank; k++) dims[rank++] = index->dims[k];
  for (int k = axis + 1; k < x->rank; k++) dims[rank++] = x->dims[k];
  return rank;
}

static void gen_GATHER(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 1);
  int axis = rng_below(g->rng, x->rank), batch;
  quern_tensor *index = indices(g, x, axis, &batch);
  GEN_MAKE(g, op, (&(struct ir_attrs){.axis = axis, .batch = batch}), x, index);
}

static void gen_SCATTER(struct gen *g, enum ir_op op) {
  static const enum ir_reduce kinds[] = {IR_REDUCE_MAX, IR_REDUCE_MIN, IR_SET, IR_SUM};
  quern_tensor *x = gen_pick(g, BASE_ANY, 1);
  int axis = rng_below(g->rng, x->rank), batch;
  quern_tensor *index = indices(g, x, axis, &batch);
  int64_t dims[2 * QUERN_MAX_RANK];
  int rank = gathered(x, index, axis, batch, dims);
  enum ir_reduce kind = kinds[rng_below(g->rng, x->dtype == QUERN_DTYPE_BOOL ? 3 : 4)];
  struct ir_attrs attrs = {.axis = axis, .batch = batch, .reduce = kind};
  GEN_MAKE(g, op, &attrs, x, index, gen_pick_type(g, x->dtype, rank, dims));
}

/* ---- reductions, order, contraction ------------------------------------------------------------------ */

static enum ir_reduce reduce_kind(struct gen *g, quern_dtype dtype) {
  return dtype == QUERN_DTYPE_BOOL ? (rng_chance(g->rng, 50) ? IR_REDUCE_MAX : IR_REDUCE_MIN)
                                   : (enum ir_reduce)rng_below(g->rng, IR_SET);
}

static void gen_REDUCE(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, rng_chance(g->rng, 90) ? 1 : 0);
  int64_t axes[QUERN_MAX_RANK];
  int n = some_axes(g, x->rank, 50, axes);
  GEN_MAKE(g, op, (&(struct ir_attrs){.reduce = reduce_kind(g, x->dtype), .axes = INTS(n, axes)}), x);
}

static void gen_ARGREDUCE(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 1);
  int axis = rng_below(g->rng, x->rank);
  if (x->dims[axis] == 0) return;
  enum ir_reduce kind = rng_chance(g->rng, 50) ? IR_REDUCE_MAX : IR_REDUCE_MIN;
  GEN_MAKE(g, op, (&(struct ir_attrs){.reduce = kind, .axis = axis}), x);
}

static void gen_SCAN(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 1);
  struct ir_attrs attrs = {.reduce = reduce_kind(g, x->dtype)};
  attrs.axis = rng_below(g->rng, x->rank);
  attrs.reverse = rng_below(g->rng, 2);
  GEN_MAKE(g, op, &attrs, x);
}

static void gen_SORT(struct gen *g, enum ir_op op) {
  quern_tensor *x = gen_pick(g, BASE_ANY, 1);
  struct ir_attrs attrs = {.axis = rng_below(g->rng, x->rank)};
  attrs.reverse = rng_below(g->rng, 2);
  GEN_MAKE(g, op, &attrs, x);
}

static void gen_DOT(struct gen *g, enum ir_op op) {
  quern_tensor *a = gen_pick(g, BASE_ANY, 1);
  int64_t lists[4][QUERN_MAX_RANK], dims[QUERN_MAX_RANK];
  int n_batch = 0, n_sum = 0, rank = 0;
  for (int k = 0; k < a->rank;
       k++) { /* each axis of a: batch, summed or free; b gets the shared ones and one of its own */
    int role = rng_below(g->rng, 3);
    if (role == 2) continue;
    if (rank == 0 && rng_chance(g->rng, 30)) dims[rank++] = between(g, 1, 3);
    lists[role][role == 0 ? n_batch : n_sum] = k;
    lists[2 + role][role == 0 ? n_batch++ : n_sum++] = rank;
    dims[rank++] = a->dims[k];
  }
  if (rank < 3 && rng_chance(g->rng, 50)) dims[rank++] = between(g, 1, 2);
  quern_tensor *b = gen_pick_type(g, a->dtype, rank, dims);
  bool is_bool = a->dtype == QUERN_DTYPE_BOOL;
  struct ir_attrs attrs = {.a_batch = INTS(n_batch, lists[0]),
                           .a_sum = INTS(n_sum, lists[1]),
                           .b_batch = INTS(n_batch, lists[2]),
                           .b_sum = INTS(n_sum, lists[3]),
                           .reduce = reduce_kind(g, a->dtype)};
  attrs.combine = is_bool ? (rng_chance(g->rng, 50) ? IR_COMBINE_MAX : IR_COMBINE_MIN)
                          : (enum ir_combine)rng_below(g->rng, IR_COMBINE_COUNT);
  GEN_MAKE(g, op, &attrs, a, b);
}

/* ---- control ----------------------------------------------------------------------------------------- */

static void gen_LOOP(struct gen *g, enum ir_op op) { gen_control(g, op); }
static void gen_WHILE(struct gen *g, enum ir_op op) { gen_control(g, op); }
static void gen_IF(struct gen *g, enum ir_op op) { gen_control(g, op); }
static void gen_COMPOSITE(struct gen *g, enum ir_op op) { gen_control(g, op); }

static op_maker *const makers[IR_OP_COUNT] = {
#define OP(NAME, text, src, out, INFER, ...) [IR_##NAME] = gen_##INFER,
#include "ir/ops.def"
#undef OP
};

void gen_op_of(struct gen *g, enum ir_op op) { makers[op](g, op); }

void gen_op(struct gen *g) { gen_op_of(g, (enum ir_op)rng_below(g->rng, IR_OP_COUNT)); }
