/* sched/choose.c -- the numbers of a schedule from the shape of a group and the target
** keeps: any numbers give the same bits
** see:   dot_choose.c for contractions         tests: tests/sched/test_map.c, tests/sched/test_reduce.c
*/
#include "sched/nest.h"

/* Bytes of memory traffic that are worth a task of their own. */
enum { TASK_BYTES = 65536 };

/* Bytes that one element of the widest tensor of the group costs, and how many elements that one has. */
static double traffic(const struct pass_group *group, double *elements) {
  double bytes = 0;
  *elements = 1;
  for (size_t i = 0; i < group->n_ins; i++) {
    bytes += (double)ir_bytes(group->ins[i]);
    *elements = BASE_MAX(*elements, (double)ir_count(group->ins[i]));
  }
  for (size_t i = 0; i < group->n_outs; i++) {
    bytes += (double)ir_bytes(group->outs[i].tensor);
    *elements = BASE_MAX(*elements, (double)ir_count(group->outs[i].tensor));
  }
  return bytes;
}

double sched_weight(enum ir_op op) {
  static const float weights[IR_OP_COUNT] = {
      [IR_EXP] = 10,  [IR_EXPM1] = 12, [IR_LOG] = 12,    [IR_LOG1P] = 12, [IR_SIN] = 12, [IR_COS] = 12,
      [IR_TANH] = 12, [IR_ERF] = 16,   [IR_ERFC] = 24,   [IR_POW] = 40,   [IR_DIV] = 5,  [IR_SQRT] = 5,
      [IR_MOD] = 10,  [IR_ATAN2] = 20, [IR_RANDOM] = 40, [IR_GATHER] = 8};
  return op < IR_OP_COUNT && weights[op] > 0 ? (double)weights[op] : 1;
}

static double work(const struct pass_group *group) {
  double sum = 1;
  for (size_t i = 0; i < group->n_nodes; i++) sum += sched_weight(group->nodes[i]->op);
  return sum;
}

/* Points of the space that are worth a task: by bytes, or by arithmetic when that is more. */
static int64_t points_a_task(const struct pass_group *group) {
  double elements, bytes = traffic(group, &elements);
  double each = BASE_MAX(BASE_MAX(bytes / elements, 1), work(group) / 8);
  return BASE_MAX((int64_t)(TASK_BYTES / each), 1);
}

/* Elements of a row of a REDUCE group. */
static int64_t row_elements(const struct pass_group *group) {
  const struct ir_node *first = group->stages[0].node;
  return BASE_MAX(ir_count(first->src[0]) / BASE_MAX(ir_count(&first->out[0]), 1), 1);
}

void sched_choose(struct sched *sched, const struct pass_group *group, const struct base_target *target, int optimize) {
  *sched = (struct sched){.lanes = 1, .unroll = 1, .grain = 1};
  if (target->gpu) { /* as many tasks as there can be: neighbors work on neighboring elements */
    if (group->kind == PASS_KIND_MAP && optimize > 0) sched->lanes = 8;
    if (group->kind == PASS_KIND_DOT && optimize > 0) sched_choose_gpu_dot(sched, group);
    return;
  }
  if (optimize > 0) {
    sched->lanes = BASE_MAX(target->vector_bytes / 4, 1);
    sched->unroll = 4;
  }
  if (group->kind == PASS_KIND_COMPOSITE) sched_choose_dot(sched, target, 1);
  if (group->kind == PASS_KIND_MAP) sched->grain = points_a_task(group);
  if (group->kind == PASS_KIND_DOT) sched_choose_dot(sched, target, optimize);
  if (group->kind == PASS_KIND_REDUCE) sched->grain = BASE_MAX(points_a_task(group) / row_elements(group), 1);
}
