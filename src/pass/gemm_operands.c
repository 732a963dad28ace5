/* pass/gemm_operands.c -- operands of contractions that a library does, with their axes in an order that makes them matrices
** in:    a contraction whose operand has its batch, own and summed axes mixed, as rules that put permutes into contractions leave it
** out:   the same of a permuted operand, which is a matrix in memory if it must be copied there
** keeps: every bit: elements and the order of terms are the same
** see:   gemm.c      tests: tests/sched/test_gpu_dot_library.c
*/
#include "pass/pass_int.h"

enum part { BATCH, OWN, SUM };

static enum part part_of(struct ir_ints batch, struct ir_ints sum, int axis) {
  for (int i = 0; i < batch.n; i++)
    if (batch.at[i] == axis) return BATCH;
  for (int i = 0; i < sum.n; i++)
    if (sum.at[i] == axis) return SUM;
  return OWN;
}

static bool is_increasing(const quern_tensor *x, struct ir_ints axes) {
  int64_t last = -1;
  for (int i = 0; i < axes.n; i++) {
    if (x->dims[axes.at[i]] == 1) continue;
    if (axes.at[i] < last) return false;
    last = axes.at[i];
  }
  return true;
}

/* Each of the three kinds of axes, those of one element left out, stands together; batch axes are in order. */
static bool is_matrix(const quern_tensor *x, struct ir_ints batch, struct ir_ints sum) {
  bool seen[3] = {false, false, false};
  int last = -1;
  for (int k = 0; k < x->rank; k++) {
    if (x->dims[k] == 1) continue;
    enum part part = part_of(batch, sum, k);
    if ((int)part != last && seen[part]) return false;
    seen[part] = true;
    last = (int)part;
  }
  return is_increasing(x, batch);
}

/* The operand as batch axes, then own and summed ones, the fastest axis among the last; and its lists as they are then. */
static quern_tensor *arrange(quern_tensor *x, struct ir_ints *batch, struct ir_ints *sum, int64_t *lists) {
  int64_t axes[QUERN_MAX_RANK];
  int n = 0, last = x->rank - 1;
  while (last > 0 && x->dims[last] == 1) last--;
  bool sum_last = part_of(*batch, *sum, last) != OWN;
  for (int i = 0; i < batch->n; i++) axes[n++] = batch->at[i];
  for (int i = 0; !sum_last && i < sum->n; i++) axes[n++] = sum->at[i];
  for (int k = 0; k < x->rank; k++)
    if (part_of(*batch, *sum, k) == OWN) axes[n++] = k;
  for (int i = 0; sum_last && i < sum->n; i++) axes[n++] = sum->at[i];
  for (int k = 0; k < n; k++) lists[k] = k;
  *sum = (struct ir_ints){sum->n, lists + (sum_last ? n - sum->n : batch->n)};
  *batch = (struct ir_ints){batch->n, lists};
  return IR_MAKE(x->node->ctx, IR_PERMUTE, (&(struct ir_attrs){.axes = {n, axes}}), x);
}

static quern_status visit(void *user, struct ir_node *node, quern_tensor *const *src, quern_tensor **out) {
  const struct pass_options *options = user;
  struct ir_attrs attrs = *node->attrs;
  struct ir_ints *batch[2] = {&attrs.a_batch, &attrs.b_batch}, *sum[2] = {&attrs.a_sum, &attrs.b_sum};
  if (!pass_is_gemm(options->target, node)) return ir_rebuild(node, src, out);
  int64_t lists[2][QUERN_MAX_RANK];
  quern_tensor *from[2] = {src[0], src[1]};
  for (int side = 0; side < 2; side++)
    if (!is_matrix(src[side], *batch[side], *sum[side]))
      from[side] = arrange(src[side], batch[side], sum[side], lists[side]);
  out[0] = ir_make(node->ctx, IR_DOT, 2, from, &attrs);
  return ir_is_poison(out[0]) ? ir_poison_error(node->ctx) : QUERN_STATUS_OK;
}

quern_status pass_gemm_operands(struct pass_graph *graph, const struct pass_options *options) {
  if (options->target == NULL || (options->target->capabilities & BASE_LIBRARY_BLAS) == 0) return QUERN_STATUS_OK;
  return pass_subgraphs(graph, visit, (void *)options);
}
