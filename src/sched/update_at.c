/* sched/update_at.c -- kernels of UPDATE_AT alone, as a KV cache has them: a block written into a tensor, in place
** where the plan lets the out
** take its memory
** The first phase copies the tensor and is left out where both are one memory: then only the block is written, whatever
** the tensor's size. The second writes the block: rows of the block that lie in one piece in both.
** keeps: MAP groups of other nodes, and those of a dynamic batch, are map.c's
** tests: tests/sched/test_update_at.c
*/
#include "sched/nest.h"

/* Elements of a task: on a GPU, where it is a thread, one vector of 16 bytes at most. */
enum { TASK_ELEMENTS = 16384, THREAD_BYTES = 16 };

static int number_of(const struct pass_group *group, const quern_tensor *t) {
  for (size_t i = 0; i < group->n_ins; i++)
    if (group->ins[i] == t) return (int)i;
  return -1;
}

/* How often the group's nodes read a tensor. */
static int count_uses(const struct pass_group *group, const quern_tensor *t) {
  int uses = 0;
  for (size_t i = 0; i < group->n_nodes; i++)
    for (int s = 0; s < group->nodes[i]->n_src; s++) uses += group->nodes[i]->src[s] == t;
  return uses;
}

bool sched_is_update_at(const struct sched_job *job) {
  const struct pass_group *group = job->group;
  const struct ir_node *node = group->outs[0].tensor->node;
  if (group->n_outs != 1 || node->op != IR_UPDATE_AT || job->sched->rows != NULL) return false;
  for (int s = 0; s < 2; s++)
    if (number_of(group, node->src[s]) < 0 || count_uses(group, node->src[s]) != 1) return false;
  return ir_count(node->src[1]) > 0;
}

struct update {
  struct sched_job *job;
  const quern_tensor *x, *block;
  int from, of, to;     /* memories: x, the block, the out */
  int axis;             /* from this one on a row of the block is one piece of x */
  int64_t rows, length; /* of the block: rows of so many elements */
  int lanes;
  int64_t task; /* elements */
};

/* Opens a loop over elements begin .. end in vectors; active: how many of its lanes count. */
static kern_id open_elements(const struct update *u, struct kern_builder *b, kern_id begin, kern_id end,
                             kern_id *active) {
  kern_id at = kern_for(b, begin, end, u->lanes);
  *active = kern_min_i(b, kern_sub(b, end, at), u->lanes);
  return at;
}

static void copy_phase(const struct update *u) {
  struct kern *kern = u->job->kern;
  int64_t count = ir_count(u->x);
  struct kern_builder builder = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(sched_ceil(count, u->task)))},
                      *b = &builder;
  kern_id begin = kern_mul_i(b, kern_task(b), u->task), active;
  kern_id end = kern_min_i(b, kern_add_i(b, begin, u->task), count);
  kern_id at = open_elements(u, b, begin, end, &active), from = kern_mem(b, u->from), to = kern_mem(b, u->to);
  kern_store_n(b, to, at, kern_load_n(b, from, at, u->lanes, active), active);
  kern_end(b);
  if (kern->failed == QUERN_STATUS_OK) kern_phase_copies(kern, u->from, u->to);
}

/* Where row number `row` of the block begins in x. */
static kern_id row_in_x(const struct update *u, struct kern_builder *b, const kern_id *start, kern_id row) {
  kern_id at = kern_index(b, 0);
  int64_t stride = 1;
  for (int k = u->x->rank - 1; k >= 0; k--) {
    kern_id place = start[k];
    if (k < u->axis) {
      place = kern_add(b, place, kern_imod(b, row, u->block->dims[k]));
      row = kern_idiv(b, row, u->block->dims[k]);
    }
    at = kern_add(b, at, kern_mul_i(b, place, stride));
    stride *= u->x->dims[k];
  }
  return at;
}

static quern_status block_phase(const struct update *u) {
  struct kern *kern = u->job->kern;
  const struct ir_node *node = u->job->group->outs[0].tensor->node;
  int64_t pieces = sched_ceil(u->length, u->task), each = BASE_MAX(u->task / u->length, 1);
  int64_t tasks = pieces > 1 ? u->rows * pieces : sched_ceil(u->rows, each), size = sched_ceil(u->length, pieces);
  struct kern_builder builder = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(tasks))}, *b = &builder;
  struct kern_values *values;
  QUERN_TRY(sched_values(u->job, b, &values));
  kern_id task = kern_task(b), start[QUERN_MAX_RANK], active;
  for (int k = 0; k < u->x->rank; k++)
    start[k] = kern_values_start(values, node->src[2 + k], u->x->dims[k] - u->block->dims[k]);
  kern_values_free(values);
  kern_id row = kern_idiv(b, task, pieces), begin = kern_mul_i(b, kern_imod(b, task, pieces), size);
  if (pieces == 1) {
    kern_id first = kern_mul_i(b, task, each);
    row = kern_for(b, first, kern_min_i(b, kern_add_i(b, first, each), u->rows), 1);
  }
  kern_id end = kern_min_i(b, kern_add_i(b, begin, size), u->length), to = row_in_x(u, b, start, row);
  kern_id at = open_elements(u, b, begin, end, &active), from = kern_add(b, kern_mul_i(b, row, u->length), at);
  kern_id x = kern_load_n(b, kern_mem(b, u->of), from, u->lanes, active);
  kern_id out = sched_out_mem(u->job, b, 0);
  kern_store_n(b, out, kern_add(b, to, at), x, active);
  kern_end(b);
  if (pieces == 1) kern_end(b);
  return kern->failed;
}

quern_status sched_update_at(struct sched_job *job) {
  const struct pass_group *group = job->group;
  const struct ir_node *node = group->outs[0].tensor->node;
  struct update u = {.job = job, .x = node->src[0], .block = node->src[1], .lanes = sched_lanes(job)};
  u.from = number_of(group, u.x);
  u.of = number_of(group, u.block);
  u.to = (int)group->n_ins;
  u.axis = u.x->rank - 1;
  while (u.axis > 0 && u.block->dims[u.axis] == u.x->dims[u.axis]) u.axis--;
  u.rows = u.length = 1;
  for (int k = 0; k < u.x->rank; k++) *(k < u.axis ? &u.rows : &u.length) *= u.block->dims[k];
  bool gpu = job->target->gpu;
  if (gpu) u.lanes = (int)BASE_MIN(u.lanes, BASE_MAX(THREAD_BYTES / (int)base_dtypes[u.x->dtype].size, 1));
  while (u.lanes / 2 >= u.length && u.lanes > 1) u.lanes /= 2;
  while (gpu && u.length % u.lanes != 0) u.lanes /= 2;
  u.task = gpu ? u.lanes : TASK_ELEMENTS;
  job->kern->mems[u.to].alias = u.from;
  copy_phase(&u);
  QUERN_TRY(job->kern->failed);
  return block_phase(&u);
}
