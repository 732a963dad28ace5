/* pass/estimate.c -- how much faster a group is estimated to be than one kernel per node
** A kernel takes the larger of the time to move its bytes and the time to compute its elements, and the time to be
** launched. The figures are those of a middling core: what counts is their ratio. The nodes alone: each op that
** computes reads its sources and writes its results; movement is free, as it is in groups. The group: ins and outs,
** once.
** A group of several computing nodes has to be faster than its parts; nothing else holds it together.
*/
#include "pass/pass_int.h"

static const double bytes_a_second = 10e9, steps_a_second = 4e9, launch_seconds = 2e-6;

static double seconds(double bytes, double steps) {
  double moved = bytes / bytes_a_second, computed = steps / steps_a_second;
  return launch_seconds + (moved > computed ? moved : computed);
}

static double bytes_of(const quern_tensor *t) {
  return pass_is_leaf(t->node) && !pass_is_given(t) ? 0 : (double)ir_bytes(t);
}

/* Elementary steps of all elements of a node; vectors do several at a time. */
static double steps_of(const struct ir_node *node) {
  double count = 0;
  for (int i = 0; i < node->n_out; i++) count += (double)ir_count(&node->out[i]);
  if (node->op == IR_DOT) {
    for (int i = 0; i < node->attrs->a_sum.n; i++) count *= (double)node->src[0]->dims[node->attrs->a_sum.at[i]];
    return count / 8;
  }
  if (pass_ops[node->op].class == PASS_CLASS_ANCHOR) {
    for (int i = 0; i < node->n_src; i++) count += (double)ir_count(node->src[i]);
    return count;
  }
  return count * pass_ops[node->op].cost / 8;
}

void pass_group_estimate(struct pass_group *group) {
  double apart = 0, steps = 0, bytes = 0;
  for (size_t i = 0; i < group->n_nodes; i++) {
    const struct ir_node *node = group->nodes[i];
    if (pass_ops[node->op].class == PASS_CLASS_LEAF || pass_ops[node->op].class == PASS_CLASS_MOVE) continue;
    double moved = 0;
    for (int k = 0; k < node->n_src; k++) moved += bytes_of(node->src[k]);
    for (int k = 0; k < node->n_out; k++) moved += (double)ir_bytes(&node->out[k]);
    apart += seconds(moved, steps_of(node));
    steps += steps_of(node);
  }
  for (size_t i = 0; i < group->n_ins; i++) bytes += (double)ir_bytes(group->ins[i]);
  for (size_t i = 0; i < group->n_outs; i++) bytes += (double)ir_bytes(group->outs[i].tensor);
  double together = seconds(bytes, steps);
  group->threshold = 1;
  group->speedup = group->kind == PASS_KIND_VIEW || apart < together ? 1 : apart / together;
}
