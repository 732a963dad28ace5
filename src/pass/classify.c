/* pass/classify.c -- what fusion knows of each op, and index expressions of sources
** keeps: one row per op; a missing one does not compile
** tests: tests/pass/test_fuse.c
*/
#include "pass/pass_int.h"

#define LEAF                                                                                                           \
  { PASS_CLASS_LEAF, 0, PASS_KIND_MAP, false }
#define MOVE                                                                                                           \
  { PASS_CLASS_MOVE, 0, PASS_KIND_MAP, false }
#define MATH(cost)                                                                                                     \
  { PASS_CLASS_MATH, cost, PASS_KIND_MAP, false }
#define ANCHOR(KIND)                                                                                                   \
  { PASS_CLASS_ANCHOR, 0, PASS_KIND_##KIND, false }
/* elementwise: the element itself, and what is computed from elements */
#define SAME                                                                                                           \
  { PASS_CLASS_MOVE, 0, PASS_KIND_MAP, true }
#define EACH(cost)                                                                                                     \
  { PASS_CLASS_MATH, cost, PASS_KIND_MAP, true }

#define FUSE_INPUT LEAF
#define FUSE_STATE LEAF
#define FUSE_BUFFER LEAF
#define FUSE_CONST LEAF
#define FUSE_PARAM LEAF
#define FUSE_IOTA MOVE
#define FUSE_RANDOM MATH(32)

#define FUSE_NEG EACH(1)
#define FUSE_ABS EACH(1)
#define FUSE_SIGN EACH(1)
#define FUSE_FLOOR EACH(1)
#define FUSE_CEIL EACH(1)
#define FUSE_ROUND EACH(1)
#define FUSE_TRUNC EACH(1)
#define FUSE_EXP EACH(16)
#define FUSE_EXPM1 EACH(16)
#define FUSE_LOG EACH(16)
#define FUSE_LOG1P EACH(16)
#define FUSE_SQRT EACH(4)
#define FUSE_SIN EACH(16)
#define FUSE_COS EACH(16)
#define FUSE_TANH EACH(16)
#define FUSE_ERF EACH(16)
#define FUSE_ERFC EACH(24)
#define FUSE_NOT EACH(1)
#define FUSE_STOP_GRAD SAME
#define FUSE_CHECKPOINT SAME
#define FUSE_CAST EACH(1)
#define FUSE_BITCAST SAME

#define FUSE_ADD EACH(1)
#define FUSE_SUB EACH(1)
#define FUSE_MUL EACH(1)
#define FUSE_DIV EACH(4)
#define FUSE_MOD EACH(6)
#define FUSE_POW EACH(32)
#define FUSE_ATAN2 EACH(32)
#define FUSE_MAX EACH(1)
#define FUSE_MIN EACH(1)
#define FUSE_AND EACH(1)
#define FUSE_OR EACH(1)
#define FUSE_XOR EACH(1)
#define FUSE_SHL EACH(1)
#define FUSE_SHR EACH(1)
#define FUSE_EQ EACH(1)
#define FUSE_LT EACH(1)
#define FUSE_LE EACH(1)
#define FUSE_SELECT EACH(1)

#define FUSE_RESHAPE MOVE
#define FUSE_PERMUTE MOVE
#define FUSE_BROADCAST MOVE
#define FUSE_PAD MOVE
#define FUSE_SLICE MOVE
#define FUSE_FLIP MOVE
#define FUSE_CONCAT MOVE
#define FUSE_SLICE_AT MATH(2)
#define FUSE_UPDATE_AT MATH(2)
#define FUSE_WINDOW MOVE
#define FUSE_COL2IM MATH(32)
#define FUSE_GATHER MATH(4)
#define FUSE_SCATTER ANCHOR(SCATTER)

#define FUSE_REDUCE ANCHOR(REDUCE)
#define FUSE_ARGREDUCE ANCHOR(REDUCE)
#define FUSE_SCAN ANCHOR(SCAN)
#define FUSE_SORT ANCHOR(SORT)
#define FUSE_DOT ANCHOR(DOT)
#define FUSE_LOOP ANCHOR(CONTROL)
#define FUSE_WHILE ANCHOR(CONTROL)
#define FUSE_IF ANCHOR(CONTROL)
#define FUSE_COMPOSITE ANCHOR(COMPOSITE)

const struct pass_op pass_ops[IR_OP_COUNT] = {
#define OP(NAME, ...) [IR_##NAME] = FUSE_##NAME,
#include "ir/ops.def"
#undef OP
};

bool pass_is_leaf(const struct ir_node *node) { return pass_ops[node->op].class == PASS_CLASS_LEAF; }

bool pass_is_given(const quern_tensor *t) {
  return pass_is_leaf(t->node) && (t->node->op != IR_CONST || ir_count(t) != 1);
}

bool pass_needs_memory(const struct ir_node *node, int src) {
  bool piece = (node->op == IR_PAD && src == 0) || node->op == IR_CONCAT;
  if (piece && ir_count(node->src[src]) == 0) return true; /* never read, at indices that it does not have */
  return (src == 0 &&
          (node->op == IR_CHECKPOINT || node->op == IR_GATHER || node->op == IR_SLICE_AT || node->op == IR_COL2IM)) ||
         (src == 1 && node->op == IR_UPDATE_AT);
}

bool pass_is_number(const struct ir_node *node, int src) {
  return node->op == IR_RANDOM || (node->op == IR_SLICE_AT && src > 0) || (node->op == IR_UPDATE_AT && src > 1);
}

bool pass_is_view(const struct ir_node *node) {
  return node->op == IR_RESHAPE || node->op == IR_STOP_GRAD || node->op == IR_CHECKPOINT || node->op == IR_BITCAST;
}

bool pass_is_widening(const struct ir_node *node) {
  if (node->op != IR_CAST || !base_dtype_is(node->src[0]->dtype, BASE_FLOAT)) return false;
  return base_dtype_is(node->out[0].dtype, BASE_FLOAT) &&
         base_dtypes[node->src[0]->dtype].size < base_dtypes[node->out[0].dtype].size;
}

/* ---- sources ----------------------------------------------------------------------------------------------------- */

/* floor((at - lo) / (mid + 1)), kept inside: what is outside is the fill. */
static void pad_source(struct pass_space *space, const struct ir_node *node, const struct pass_index *const *at,
                       const struct pass_index **in) {
  const quern_tensor *src = node->src[0];
  for (int k = 0; k < src->rank; k++) {
    const struct pass_index *e = pass_index_add(space, at[k], pass_index_const(space, -node->attrs->lo.at[k]));
    e = pass_index_div(space, e, node->attrs->mid.at[k] + 1);
    in[k] = pass_index_clamp(space, e, BASE_MAX(src->dims[k], 1));
  }
}

static void concat_source(struct pass_space *space, const struct ir_node *node, int src,
                          const struct pass_index *const *at, const struct pass_index **in) {
  int64_t axis = node->attrs->axis, start = 0, n = node->src[src]->dims[axis];
  for (int i = 0; i < src; i++) start += node->src[i]->dims[axis];
  for (int k = 0; k < node->out[0].rank; k++) in[k] = at[k];
  in[axis] = pass_index_clamp(space, pass_index_add(space, at[axis], pass_index_const(space, -start)), BASE_MAX(n, 1));
}

bool pass_index_of_source(struct pass_space *space, const struct ir_node *node, int src,
                          const struct pass_index *const *at, const struct pass_index **in) {
  if (pass_needs_memory(node, src)) return false;
  if (node->op == IR_PAD && src == 0) {
    pad_source(space, node, at, in);
    return true;
  }
  if (node->op == IR_CONCAT) {
    concat_source(space, node, src, at, in);
    return true;
  }
  if (node->op == IR_UPDATE_AT && src == 0) {
    for (int k = 0; k < node->out[0].rank; k++) in[k] = at[k];
    return true;
  }
  if (node->op == IR_GATHER) {
    int batch = (int)node->attrs->batch, axis = (int)node->attrs->axis;
    for (int k = 0; k < node->src[1]->rank; k++) in[k] = at[k < batch ? k : k - batch + axis];
    return true;
  }
  if (node->src[src]->rank == 0 && !pass_is_elementwise(node)) return true; /* starts, seeds, fills; reshaped scalars */
  return pass_index_source(space, node, src, at, in);
}

/* ---- which points write what ------------------------------------------------------------------------------------- */

const struct pass_index *pass_index_of_vars(struct pass_space *space, int first, int end) {
  const struct pass_index *flat = pass_index_const(space, 0);
  for (int v = first; v < end; v++) {
    flat = pass_index_scale(space, flat, space->extents.at[v]);
    flat = pass_index_add(space, flat, pass_index_var(space, v));
  }
  return flat;
}

static int64_t points(const struct pass_space *space, int first, int end) {
  uint64_t n = 1; /* wraps only where another extent is 0 */
  for (int v = first; v < end; v++) n *= (uint64_t)space->extents.at[v];
  return (int64_t)n;
}

/* True when 0 + sum of coef[v] * v is a mixed-radix number of the variables before end and uses no other. */
static bool is_radix(const struct pass_space *space, int n_vars, int end, const int64_t *coef) {
  int left = 0;
  for (int v = 0; v < n_vars; v++) {
    if (space->extents.at[v] <= 1) continue;
    if (v >= end && coef[v] != 0) return false;
    left += v < end ? 1 : 0;
  }
  for (int64_t next = 1; left > 0; left--) {
    int found = -1;
    for (int v = 0; v < end; v++) found = space->extents.at[v] > 1 && coef[v] == next ? v : found;
    if (found < 0) return false;
    next *= space->extents.at[found];
  }
  return true;
}

enum pass_cover pass_index_covers(struct pass_space *space, int n_vars, int n_outer, const quern_tensor *t,
                                  const struct pass_index *const *at) {
  int64_t coef[PASS_MOST_VARS + QUERN_MAX_RANK], constant, count = ir_count(t);
  bool all = points(space, 0, n_vars) == count, outer = points(space, 0, n_outer) == count;
  if (!all && !outer) return PASS_COVER_NONE;
  if (count == 0) return all ? PASS_COVER_ALL : PASS_COVER_OUTER;
  const struct pass_index *flat = pass_index_flat(space, t->rank, t->dims, at);
  if ((int)space->extents.n > (int)BASE_COUNT(coef) || !pass_index_affine(space, flat, coef, &constant))
    return PASS_COVER_NONE;
  if (constant != 0) return PASS_COVER_NONE;
  if (all && is_radix(space, n_vars, n_vars, coef)) return PASS_COVER_ALL;
  return outer && is_radix(space, n_vars, n_outer, coef) ? PASS_COVER_OUTER : PASS_COVER_NONE;
}
