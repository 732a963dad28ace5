/* sched/dot_pack_once.c -- side a packed once, in a phase of its own, for all tasks that read it
** Weights whose terms are not contiguous, as in the input gradient of a convolution, would else be packed by every task:
** for each sample and for each group of columns. Groups of strips follow each other in a workspace, of each the blocks
** of terms, of each the rows.
** tests: tests/sched/test_dot.c
*/
#include "sched/dot.h"

/* M-strips of a task: their rows are whole squares of a transposition for most register tiles. Elements at most. */
enum { STRIPS = 8, MOST_ELEMENTS = 1 << 23 };

static int64_t group_rows(const struct dot *d) { return (int64_t)STRIPS * d->mr; }
static int64_t group_elements(const struct dot *d) {
  return sched_ceil(d->k, DOT_BLOCK) * group_rows(d) * DOT_PACKED_ROW;
}
static int64_t count(const struct dot *d) { return sched_ceil(d->m_strips, STRIPS) * group_elements(d); }

bool dot_can_pack_once(const struct dot *d) {
  bool by_batch = dot_has_windows(d->job->group, d->a.tensor);
  for (int k = 0; k < d->a.tensor->rank; k++) by_batch = by_batch || pass_index_uses(d->a.at[k], DOT_BATCH);
  return d->a.packed && !by_batch && !d->bytes && d->job->sched->rows == NULL && count(d) <= MOST_ELEMENTS;
}

void dot_make_pack_once(struct dot *d) { d->a_once = kern_add_mem(d->job->kern, d->acc, KERN_WORK, count(d)); }

kern_id dot_packed_once_at(const struct dot *d, struct kern_builder *b, kern_id strip, kern_id pc) {
  kern_id group = kern_mul_i(b, kern_idiv(b, strip, STRIPS), group_elements(d));
  kern_id block = kern_mul_i(b, kern_idiv(b, pc, DOT_BLOCK), group_rows(d) * DOT_PACKED_ROW);
  kern_id row = kern_mul_i(b, kern_imod(b, strip, STRIPS), (int64_t)d->mr * DOT_PACKED_ROW);
  kern_id at = kern_add(b, group, kern_add(b, block, row)), mem = kern_mem(b, d->a_once);
  return kern_at(b, mem, at);
}

/* A block of kb terms from pc on, of the rows of a task. */
static void pack_block(struct dot *d, struct kern_builder *b, struct kern_values *values, kern_id pc, int64_t kb) {
  kern_id first = kern_mul_i(b, kern_task(b), group_rows(d));
  kern_id end = kern_min_i(b, kern_add_i(b, first, group_rows(d)), d->m);
  kern_id dst = dot_packed_once_at(d, b, kern_mul_i(b, kern_task(b), STRIPS), pc);
  dot_pack_rows(d, b, values, dst, first, end, group_rows(d), pc, kb);
}

quern_status dot_pack_once(struct dot *d) {
  int64_t blocks = sched_ceil(d->k, DOT_BLOCK), before = (blocks - 1) * DOT_BLOCK;
  struct kern_tasks tasks = KERN_FIXED_TASKS(sched_ceil(d->m_strips, STRIPS));
  struct kern_builder builder = {.kern = d->job->kern, .fn = kern_add_phase(d->job->kern, tasks)}, *b = &builder;
  struct kern_values *values;
  QUERN_TRY(dot_values(d, b, &values));
  kern_values_set(values, DOT_BATCH, kern_index(b, 0), 1, KERN_NONE);
  if (blocks > 1) {
    kern_id block = kern_range(b, 0, blocks - 1, 1);
    kern_values_enter(values);
    pack_block(d, b, values, kern_mul_i(b, block, DOT_BLOCK), DOT_BLOCK);
    kern_values_leave(values);
    kern_end(b);
  }
  pack_block(d, b, values, kern_index(b, before), d->k - before);
  kern_values_free(values);
  return QUERN_STATUS_OK;
}
