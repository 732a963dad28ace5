/* sched/scatter.h -- what the builders of SCATTER groups share: y[n, p, b[n, i], q] takes u[n, p, i, q] */
#ifndef SCHED_SCATTER_H
#define SCHED_SCATTER_H
#include "sched/sched_int.h"

struct scatter {
  struct sched_job *job;
  const struct ir_node *node;
  quern_dtype dtype, acc;                /* of y, and of what is added up */
  int64_t n, p, positions, q, n_indices; /* y is (n, p, positions, q), u is (n, p, n_indices, q) */
  int64_t box_positions, box_q;          /* of a box, and how many boxes there are along each */
  int64_t position_boxes, q_boxes;
  int lanes;
  int a, indices, u, sums; /* memories; sums is y, or a workspace in acc */
};

/* What an element becomes. */
kern_id scatter_updated(const struct scatter *s, struct kern_builder *b, kern_id old, kern_id u);

/* The kernel of a GPU (gpu_scatter.c): updates are sorted by position first, with numbers of 32 bits. */
static inline bool scatter_can_sort(const struct scatter *s) {
  return s->positions <= INT32_MAX && s->n_indices <= INT32_MAX && s->n * s->p <= INT32_MAX;
}
quern_status scatter_sorted(const struct scatter *s) QUERN_NODISCARD;

#endif
