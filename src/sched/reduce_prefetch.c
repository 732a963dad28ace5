/* sched/reduce_prefetch.c -- rows that come from beyond the caches: while one is worked on, the next is prefetched
** A CPU's own prefetcher finds out that a row is read from its beginning to its end, but anew for each row and each pass.
** tests: tests/sched/test_reduce.c
*/
#include "sched/reduce.h"

enum { LINE = 64 };

/* Whether an in has a row for each row of the group, one behind the other as far as can be seen. */
static bool has_rows(const struct reduce *rd, const quern_tensor *t) {
  return ir_count(t) == rd->n_strips * rd->count && rd->n_strips > 1;
}

void reduce_prefetch_plan(struct reduce *rd) {
  const struct pass_group *group = rd->job->group;
  int64_t bytes = 0;
  for (size_t i = 0; i < group->n_ins; i++) bytes += (int64_t)ir_bytes(group->ins[i]);
  for (size_t i = 0; i < group->n_outs; i++) bytes += (int64_t)ir_bytes(group->outs[i].tensor);
  rd->exceeds_cache = !rd->packed && !rd->split && bytes > rd->job->target->l3_bytes;
}

void reduce_prefetch_next(struct reduce *rd, kern_id row, int64_t step, kern_id end) {
  struct kern_builder *b = &rd->b;
  rd->next = KERN_NONE;
  if (!rd->exceeds_cache || rd->phase != REDUCE_WHOLE) return;
  kern_id last = kern_add_i(b, end, -1);
  rd->next = reduce_fused_columns_row(rd, kern_min(b, kern_add_i(b, row, step), last));
}

/* The ins take turns in the passes, from the last one back: what comes first in the next row is not yet pushed out by it. */
void reduce_prefetch(struct reduce *rd, int q, kern_id at, int64_t from) {
  const struct pass_group *group = rd->job->group;
  struct kern_builder *b = &rd->b;
  if (rd->next == KERN_NONE) return;
  for (size_t i = 0; i < group->n_ins; i++) {
    const quern_tensor *t = group->ins[i];
    bool begins = from * (int64_t)base_dtypes[t->dtype].size % LINE == 0; /* a line, or so it is hoped */
    if (!begins || rd->n_passes - 1 - (int)(i % (size_t)rd->n_passes) != q || !has_rows(rd, t)) continue;
    kern_id index = kern_add(b, kern_mul_i(b, rd->next, rd->count), at);
    kern_prefetch(b, kern_mem(b, (int)i), index);
  }
}
