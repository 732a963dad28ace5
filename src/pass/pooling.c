/* pass/pooling.c -- GPUs: col2im of windows whose elements are cheap to compute becomes a sum of slices, one for each place in the
** window
** The gradient of pooling is computed for every element of every window, and added up where windows overlap. Each slice is moved to
** where it is added: all are computed where the result is written, once, and nothing as large as the windows lies in memory.
** in:    COL2IM of what elementwise ops compute, few elements a window
** keeps: each sum, but for the order of its terms: that of the window's elements, in the dtype of accumulators
** tests: tests/pass/test_passes.c
*/
#include "pass/pass_int.h"

enum { MOST_PARTS = 9 };

struct overlap {
  const struct ir_node *node;
  quern_tensor *x;
  int rank;                   /* of the result */
  int64_t at[QUERN_MAX_RANK]; /* the place in the window */
  quern_tensor *zero;
};

/* Elements of all windows at one place in them, in the dtype of accumulators. */
static quern_tensor *slice_part(const struct overlap *f) {
  const quern_tensor *x = f->x;
  int64_t lo[QUERN_MAX_RANK] = {0}, hi[QUERN_MAX_RANK], step[QUERN_MAX_RANK];
  for (int k = 0; k < x->rank; k++) {
    step[k] = 1;
    hi[k] = x->dims[k];
    if (k < f->rank) continue;
    lo[k] = f->at[k - f->rank];
    hi[k] = lo[k] + 1;
  }
  struct ir_attrs slice = {.lo = {x->rank, lo}, .hi = {x->rank, hi}, .step = {x->rank, step}};
  quern_tensor *y = IR_MAKE(f->node->ctx, IR_SLICE, &slice, f->x);
  if (ir_is_poison(y)) return y;
  y = IR_MAKE(f->node->ctx, IR_RESHAPE, (&(struct ir_attrs){.shape = {f->rank, x->dims}}), y);
  if (ir_is_poison(y) || y->dtype == f->zero->dtype) return y;
  return IR_MAKE(f->node->ctx, IR_CAST, (&(struct ir_attrs){.dtype = f->zero->dtype}), y);
}

/* The part where it is added. */
static quern_tensor *move_part(const struct overlap *f, quern_tensor *part) {
  const struct ir_attrs *a = f->node->attrs;
  int64_t lo[QUERN_MAX_RANK] = {0}, hi[QUERN_MAX_RANK] = {0}, mid[QUERN_MAX_RANK] = {0};
  for (int i = 0; i < a->axes.n; i++) {
    int64_t k = a->axes.at[i];
    lo[k] = f->at[i] * a->dilate.at[i];
    mid[k] = a->step.at[i] - 1;
    hi[k] = a->shape.at[k] - lo[k] - (part->dims[k] - 1) * a->step.at[i] - 1;
  }
  struct ir_attrs pad = {.lo = {f->rank, lo}, .hi = {f->rank, hi}, .mid = {f->rank, mid}};
  return ir_is_poison(part) ? part : IR_MAKE(f->node->ctx, IR_PAD, &pad, part, f->zero);
}

/* The next place in the window; false after the last. */
static bool next_place(struct overlap *f) {
  for (int i = f->node->attrs->axes.n - 1; i >= 0; i--) {
    if (++f->at[i] < f->x->dims[f->rank + i]) return true;
    f->at[i] = 0;
  }
  return false;
}

static quern_tensor *sum_parts(struct overlap *f) {
  quern_context *ctx = f->node->ctx;
  quern_tensor *sum = NULL;
  do {
    quern_tensor *part = move_part(f, slice_part(f));
    if (ir_is_poison(part)) return part;
    sum = sum == NULL ? part : IR_MAKE(ctx, IR_ADD, NULL, sum, part);
    if (ir_is_poison(sum)) return sum;
  } while (next_place(f));
  quern_dtype dtype = f->node->out[0].dtype;
  if (sum->dtype != dtype) sum = IR_MAKE(ctx, IR_CAST, (&(struct ir_attrs){.dtype = dtype}), sum);
  return ir_is_poison(sum) ? sum : IR_MAKE(ctx, IR_CHECKPOINT, NULL, sum);
}

static bool is_computed_here(const struct ir_node *node, const quern_tensor *x) {
  int64_t parts = 1;
  for (int k = node->out[0].rank; k < x->rank; k++) parts *= x->dims[k];
  bool computed = pass_is_elementwise(x->node) || x->node->op == IR_BROADCAST;
  return computed && parts > 1 && parts <= MOST_PARTS && ir_count(x) > 0 && base_dtype_is(x->dtype, BASE_FLOAT);
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  (void)user;
  if (node->op != IR_COL2IM || !is_computed_here(node, src[0])) return ir_rebuild(node, src, out);
  quern_dtype acc = src[0]->dtype == QUERN_DTYPE_F64 ? QUERN_DTYPE_F64 : QUERN_DTYPE_F32;
  struct overlap f = {.node = node, .x = src[0], .rank = node->out[0].rank};
  f.zero = ir_const(node->ctx, acc, 0);
  out[0] = ir_is_poison(f.zero) ? f.zero : sum_parts(&f);
  return ir_is_poison(out[0]) ? ir_poison_error(node->ctx) : QUERN_STATUS_OK;
}

quern_status pass_pooling(struct pass_graph *graph, const struct pass_options *options) {
  bool gpu = options->target != NULL && options->target->gpu;
  return gpu ? pass_subgraphs(graph, visit, NULL) : QUERN_STATUS_OK;
}
