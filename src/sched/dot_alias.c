/* sched/dot_alias.c -- which outs of a contraction may take the memory of which ins
** keeps: an in that an operand is made of keeps its memory; so does an out that holds the sums while they grow
** tests: tests/sched/test_dot.c, tests/engine/test_program.c
*/
#include "sched/dot.h"
#include "sched/nest.h"

/* Marks the ins that the operands are made of. */
static quern_status find_operands(const struct pass_group *group, struct base_arena *arena, bool *read) {
  bool *needed = base_arena_alloc(arena, group->n_nodes * sizeof *needed + 1);
  if (needed == NULL) return QUERN_STATUS_MEMORY;
  const struct ir_node *anchor = group->stages[0].node;
  for (size_t i = group->n_nodes; i-- > 0;) {
    const struct ir_node *node = group->nodes[i];
    if (node != anchor && !needed[i]) continue;
    for (int s = 0; s < node->n_src; s++) {
      bool in = false;
      for (size_t k = 0; k < group->n_ins; k++) {
        if (group->ins[k] != node->src[s]) continue;
        read[k] = in = true;
      }
      for (size_t k = 0; k < i && !in; k++) needed[k] = needed[k] || group->nodes[k] == node->src[s]->node;
    }
  }
  return QUERN_STATUS_OK;
}

/* Builds the epilogue at one point, in a kernel of its own; from its loads and stores come the
** spots. */
static quern_status look_after(const struct dot *d, struct kern *trial, struct kern_mem *mems) {
  struct dot copy = *d;
  struct kern_values *values = NULL;
  for (int i = 0; i < d->job->kern->n_mems; i++) {
    const struct kern_mem *mem = &d->job->kern->mems[i];
    (void)kern_add_mem(trial, mem->dtype, mem->role, mem->count);
  }
  struct kern_builder b = {.kern = trial, .fn = kern_add_phase(trial, KERN_FIXED_TASKS(1))};
  copy.inner.kern = trial;
  QUERN_TRY(trial->failed);
  QUERN_TRY(dot_values(&copy, &b, &values));
  kern_id some = kern_task(&b);
  for (int axis = 0; axis < DOT_AXES; axis++) {
    kern_values_set(values, axis, some, 1, KERN_NONE);
    dot_set_parts(values, axis, some, some, 1, KERN_NONE);
  }
  dot_finish(&copy, &b, values, kern_const_bits(&b, d->acc, 1, 0), KERN_NONE);
  quern_status status = d->space->failed ? QUERN_STATUS_MEMORY : trial->failed;
  if (status == QUERN_STATUS_OK) sched_find_in_place(mems, (int)d->group.n_ins, (int)d->group.n_outs, NULL, b.fn);
  kern_values_free(values);
  return status == QUERN_STATUS_INTERNAL ? QUERN_STATUS_OK
                                         : status; /* what cannot be built at any point has no spots */
}

/* True when the out could take a memory that lasts from iteration to iteration, or from run to run. */
static bool is_kept(const struct pass_group *group, const struct kern_mem *mems, int out) {
  for (size_t i = 0; i < group->n_ins; i++) {
    enum ir_op op = group->ins[i]->node->op;
    if (mems[i].in_place_class != 0 && mems[i].in_place_class == mems[out].in_place_class &&
        (op == IR_STATE || op == IR_PARAM))
      return true;
  }
  return false;
}

quern_status dot_alias(struct dot *d) {
  const struct pass_group *group = &d->group;
  struct kern_mem *mems = d->job->kern->mems;
  struct kern *trial = NULL;
  int n = (int)(group->n_ins + group->n_outs);
  bool *read = base_arena_alloc(&d->arena, group->n_ins * sizeof *read + 1);
  if (read == NULL) return QUERN_STATUS_MEMORY;
  if (d->bare) return QUERN_STATUS_OK;
  QUERN_TRY(find_operands(group, &d->arena, read));
  QUERN_TRY(kern_new(&trial, &d->job->ctx->heap));
  quern_status status = look_after(d, trial, mems);
  kern_free(trial);
  if (status != QUERN_STATUS_OK) return status;
  for (size_t i = 0; i < group->n_ins; i++)
    if (read[i]) mems[i].in_place_class = 0;
  if (d->c.mem >= 0 && is_kept(group, mems, d->c.mem)) d->c.mem = -1;
  if (d->c.mem >= 0) mems[d->c.mem].in_place_class = 0;
  for (int out = (int)group->n_ins; out < n; out++) mems[out].alias = -1; /* the spots say it all */
  return QUERN_STATUS_OK;
}
