/* ir/eval_move.c -- the reference evaluator: movement, element by element
** keeps: bits are copied as they are, NaNs included; an index outside its axis reads 0 and writes nothing
** tests: tests/ir/test_eval_move.c, tests/ir/test_eval_index.c
*/
#include "ir/eval.h"

#include <inttypes.h>

static void copy_index(int64_t *to, const int64_t *from, int n) {
  for (int k = 0; k < n; k++) to[k] = from[k];
}

/* Sets j, an index into source 0, to where element i of the result comes from; false: from outside. */
typedef bool place(const struct eval_call *call, const int64_t *i, int64_t *j);

/* y[i] = x[j], or the element at fill where j is outside. */
static quern_status move(struct eval_call *call, place *from, const void *fill) {
  const quern_tensor *x = call->node->src[0], *y = call->node->out;
  int64_t i[QUERN_MAX_RANK] = {0}, j[QUERN_MAX_RANK], count = ir_count(y);
  for (int64_t n = 0; n < count; n++, eval_step(y, i)) {
    if (from(call, i, j))
      eval_copy(y->dtype, call->dst[0], n, call->src[0], eval_offset(x, j));
    else
      eval_copy(y->dtype, call->dst[0], n, fill, 0);
  }
  return QUERN_STATUS_OK;
}

static bool from_permuted(const struct eval_call *call, const int64_t *i, int64_t *j) {
  const struct ir_ints *axes = &call->node->attrs->axes;
  for (int k = 0; k < axes->n; k++) j[axes->at[k]] = i[k];
  return true;
}

quern_status eval_PERMUTE(struct eval_call *call) { return move(call, from_permuted, NULL); }

static bool from_broadcast(const struct eval_call *call, const int64_t *i, int64_t *j) {
  const quern_tensor *x = call->node->src[0];
  for (int k = 0; k < x->rank; k++) j[k] = x->dims[k] == 1 ? 0 : i[k];
  return true;
}

quern_status eval_BROADCAST(struct eval_call *call) { return move(call, from_broadcast, NULL); }

static bool from_padded(const struct eval_call *call, const int64_t *i, int64_t *j) {
  const quern_tensor *x = call->node->src[0];
  for (int k = 0; k < x->rank; k++) {
    int64_t past = i[k] - call->node->attrs->lo.at[k];
    uint64_t apart = (uint64_t)call->node->attrs->mid.at[k] + 1;
    if (past < 0 || (uint64_t)past % apart != 0) return false;
    j[k] = (int64_t)((uint64_t)past / apart);
    if (j[k] >= x->dims[k]) return false;
  }
  return true;
}

quern_status eval_PAD(struct eval_call *call) { return move(call, from_padded, call->src[1]); }

static bool from_sliced(const struct eval_call *call, const int64_t *i, int64_t *j) {
  const struct ir_attrs *attrs = call->node->attrs;
  for (int k = 0; k < attrs->lo.n; k++) j[k] = attrs->lo.at[k] + i[k] * attrs->step.at[k];
  return true;
}

quern_status eval_SLICE(struct eval_call *call) { return move(call, from_sliced, NULL); }

static bool from_flipped(const struct eval_call *call, const int64_t *i, int64_t *j) {
  const quern_tensor *x = call->node->src[0];
  const struct ir_ints *axes = &call->node->attrs->axes;
  copy_index(j, i, x->rank);
  for (int t = 0; t < axes->n; t++) j[axes->at[t]] = x->dims[axes->at[t]] - 1 - i[axes->at[t]];
  return true;
}

quern_status eval_FLIP(struct eval_call *call) { return move(call, from_flipped, NULL); }

quern_status eval_CONCAT(struct eval_call *call) {
  const quern_tensor *y = call->node->out;
  int64_t axis = call->node->attrs->axis, before = 0;
  for (int s = 0; s < call->node->n_src; s++) {
    const quern_tensor *x = call->node->src[s];
    int64_t i[QUERN_MAX_RANK] = {0}, count = ir_count(x);
    for (int64_t n = 0; n < count; n++, eval_step(x, i)) {
      i[axis] += before;
      eval_copy(y->dtype, call->dst[0], eval_offset(y, i), call->src[s], n);
      i[axis] -= before;
    }
    before += x->dims[axis];
  }
  return QUERN_STATUS_OK;
}

/* ---- blocks at a run-time place --------------------------------------------------------------------- */

/* j = i + s with s from the scalar sources `first` and on, clamped so that block lies inside whole. */
static void shift(const struct eval_call *call, int first, const quern_tensor *whole, const quern_tensor *block,
                  const int64_t *i, int64_t *j) {
  for (int k = 0; k < whole->rank; k++) {
    quern_dtype dtype = call->node->src[first + k]->dtype;
    uint64_t start = base_load_int(dtype, call->src[first + k], 0);
    uint64_t last = (uint64_t)(whole->dims[k] - block->dims[k]);
    bool negative = base_dtype_is(dtype, BASE_SIGNED) && start >> 63 != 0;
    j[k] = i[k] + (negative ? 0 : (int64_t)BASE_MIN(start, last));
  }
}

static bool from_block(const struct eval_call *call, const int64_t *i, int64_t *j) {
  shift(call, 1, call->node->src[0], call->node->out, i, j);
  return true;
}

quern_status eval_SLICE_AT(struct eval_call *call) { return move(call, from_block, NULL); }

quern_status eval_UPDATE_AT(struct eval_call *call) {
  const quern_tensor *b = call->node->src[1], *y = call->node->out;
  int64_t i[QUERN_MAX_RANK] = {0}, j[QUERN_MAX_RANK], count = ir_count(b);
  eval_copy_bytes(call->dst[0], call->src[0], ir_bytes(y));
  for (int64_t n = 0; n < count; n++, eval_step(b, i)) {
    shift(call, 2, y, b, i, j);
    eval_copy(y->dtype, call->dst[0], eval_offset(y, j), call->src[1], n);
  }
  return QUERN_STATUS_OK;
}

/* ---- windows ---------------------------------------------------------------------------------------- */

/* p = where element i of the windows of a tensor of that rank lies in it: o step + w dilate on axes. */
static void in_window(const struct eval_call *call, int rank, const int64_t *i, int64_t *p) {
  const struct ir_attrs *attrs = call->node->attrs;
  copy_index(p, i, rank);
  for (int t = 0; t < attrs->axes.n; t++) {
    int64_t o = i[attrs->axes.at[t]], w = i[rank + t];
    p[attrs->axes.at[t]] = o * attrs->step.at[t] + w * attrs->dilate.at[t];
  }
}

static bool from_window(const struct eval_call *call, const int64_t *i, int64_t *j) {
  in_window(call, call->node->src[0]->rank, i, j);
  return true;
}

quern_status eval_WINDOW(struct eval_call *call) { return move(call, from_window, NULL); }

quern_status eval_COL2IM(struct eval_call *call) {
  const quern_tensor *x = call->node->src[0], *y = call->node->out;
  int64_t i[QUERN_MAX_RANK] = {0}, p[QUERN_MAX_RANK], n_x = ir_count(x), n_y = ir_count(y);
  size_t bytes = (size_t)n_y * sizeof(struct eval_acc);
  struct eval_acc *sums = base_alloc_zero(&call->run->ctx->heap, bytes);
  if (sums == NULL) return quern_last_status();
  for (int64_t n = 0; n < n_x; n++, eval_step(x, i)) {
    in_window(call, y->rank, i, p);
    eval_acc_add(&sums[eval_offset(y, p)], x->dtype, IR_SUM, eval_load(x->dtype, call->src[0], n));
  }
  for (int64_t n = 0; n < n_y; n++) eval_acc_store(&sums[n], y->dtype, IR_SUM, call->dst[0], n);
  base_free(&call->run->ctx->heap, sums, bytes);
  return QUERN_STATUS_OK;
}

/* ---- gather and scatter ----------------------------------------------------------------------------- */

/* With i = (n, p, i, q): sets j = (n, p, b[n, i], q) in source 0; false when b[n, i] is outside its axis. */
static bool indexed(const struct eval_call *call, const int64_t *i, int64_t *j) {
  const quern_tensor *a = call->node->src[0], *b = call->node->src[1];
  int axis = (int)call->node->attrs->axis, batch = (int)call->node->attrs->batch, width = b->rank - batch;
  int64_t at[QUERN_MAX_RANK] = {0};
  copy_index(at, i, batch);
  copy_index(at + batch, i + axis, width);
  uint64_t index = base_load_int(b->dtype, call->src[1], (size_t)eval_offset(b, at));
  if (index >= (uint64_t)a->dims[axis]) return false; /* a negative one, sign-extended, is large */
  copy_index(j, i, axis);
  j[axis] = (int64_t)index;
  copy_index(j + axis + 1, i + axis + width, a->rank - axis - 1);
  return true;
}

/* With QUERN_VERBOSE=check: every index must lie inside its axis. */
static quern_status check_indices(const struct eval_call *call) {
  const quern_tensor *a = call->node->src[0], *b = call->node->src[1];
  int64_t size = a->dims[call->node->attrs->axis], count = call->run->check ? ir_count(b) : 0;
  const char *op = ir_ops[call->node->op].name;
  for (int64_t n = 0; n < count; n++) {
    uint64_t index = base_load_int(b->dtype, call->src[1], (size_t)n);
    if (index < (uint64_t)size) continue;
    QUERN_CHECK(base_dtype_is(b->dtype, BASE_UNSIGNED), INVALID,
                "eval: %s: index %" PRId64 ", number %" PRId64 ", is outside an axis of size %" PRId64, op,
                (int64_t)index, n, size);
    return base_error(QUERN_STATUS_INVALID,
                      "eval: %s: index %" PRIu64 ", number %" PRId64 ", is outside an axis of size %" PRId64, op, index,
                      n, size);
  }
  return QUERN_STATUS_OK;
}

quern_status eval_GATHER(struct eval_call *call) {
  static const char zero[8];
  QUERN_TRY(check_indices(call));
  return move(call, indexed, zero);
}

/* The last of the elements for one place stays. */
static quern_status scatter_set(struct eval_call *call) {
  const quern_tensor *u = call->node->src[2], *y = call->node->out;
  int64_t i[QUERN_MAX_RANK] = {0}, j[QUERN_MAX_RANK] = {0}, count = ir_count(u);
  for (int64_t n = 0; n < count; n++, eval_step(u, i)) {
    if (indexed(call, i, j)) eval_copy(y->dtype, call->dst[0], eval_offset(y, j), call->src[2], n);
  }
  return QUERN_STATUS_OK;
}

/* A place that is met several times is rounded once. */
static quern_status scatter_reduce(struct eval_call *call, enum ir_reduce reduce) {
  const quern_tensor *u = call->node->src[2], *y = call->node->out;
  int64_t i[QUERN_MAX_RANK] = {0}, j[QUERN_MAX_RANK] = {0}, n_u = ir_count(u), n_y = ir_count(y);
  size_t bytes = (size_t)n_y * sizeof(struct eval_acc);
  struct eval_acc *accs = base_alloc_zero(&call->run->ctx->heap, bytes);
  if (accs == NULL) return quern_last_status();
  for (int64_t n = 0; n < n_y; n++) eval_acc_add(&accs[n], y->dtype, reduce, eval_load(y->dtype, call->src[0], n));
  for (int64_t n = 0; n < n_u; n++, eval_step(u, i)) {
    if (!indexed(call, i, j)) continue;
    int64_t at = eval_offset(y, j);
    eval_acc_add(&accs[at], y->dtype, reduce, eval_load(u->dtype, call->src[2], n));
    eval_acc_store(&accs[at], y->dtype, reduce, call->dst[0], at);
  }
  base_free(&call->run->ctx->heap, accs, bytes);
  return QUERN_STATUS_OK;
}

quern_status eval_SCATTER(struct eval_call *call) {
  enum ir_reduce reduce = call->node->attrs->reduce;
  QUERN_TRY(check_indices(call));
  eval_copy_bytes(call->dst[0], call->src[0], ir_bytes(call->node->out));
  return reduce == IR_SET ? scatter_set(call) : scatter_reduce(call, reduce);
}
