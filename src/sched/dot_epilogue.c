/* sched/dot_epilogue.c -- where a contraction's variables stand; its epilogue: the outs from the sums
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

void dot_set_parts(struct kern_values *values, int axis, kern_id outer, kern_id inner, int lanes, kern_id active) {
  kern_values_set(values, DOT_OUTER + axis, outer, 1, KERN_NONE);
  kern_values_set(values, DOT_INNER + axis, inner, lanes, active);
}

kern_id dot_view_mem(struct kern_builder *b, struct kern_values *values, const struct dot_view *place) {
  kern_id mem = kern_mem(b, place->mem);
  return kern_at(b, mem, kern_values_first(values, place->offset));
}

void dot_set(const struct dot *d, struct kern_builder *b, struct kern_values *values, unsigned cut, int axis,
             kern_id value, int lanes, kern_id active) {
  int64_t inner = d->axis[axis].inner;
  if ((cut >> axis & 1) == 0) {
    kern_values_set(values, axis, value, lanes, active);
    return;
  }
  kern_id outer = kern_idiv(b, value, inner);
  dot_set_parts(values, axis, outer, kern_imod(b, value, inner), lanes, active);
}

quern_status dot_values(struct dot *d, struct kern_builder *b, struct kern_values **values) {
  QUERN_TRY(sched_values(&d->inner, b, values));
  for (int i = 0; i < d->n_materialized; i++)
    kern_values_bind_mem(*values, d->materialized[i].tensor, kern_mem(b, d->materialized[i].mem));
  for (size_t v = 0; v < d->job->group->space->extents.n; v++) kern_values_define(*values, DOT_OWN + (int)v, d->own[v]);
  return QUERN_STATUS_OK;
}

void dot_finish(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id sum, kern_id active) {
  const quern_tensor *result = &d->node->out[0];
  kern_values_bind(values, result, result->rank, d->result, kern_cast(b, sum, result->dtype));
  kern_id x[KERN_MAX_MEMS]; /* all are computed before any is stored: an out may have the memory of an in */
  for (size_t i = 0; i < d->group.n_outs; i++) {
    const quern_tensor *t = d->group.outs[i].tensor;
    x[i] = kern_values_get(values, t, t->rank, d->made[i]);
  }
  for (size_t i = 0; i < d->group.n_outs; i++) sched_store_at(&d->inner, b, values, i, d->outs[i], x[i], active);
  kern_values_unbind(values, result);
}
