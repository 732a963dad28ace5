/* sched/scatter.c -- kernels of SCATTER groups: updates of elements whose positions are found at run time (GPUs: gpu_scatter.c)
** y[n, p, b[n, i], q] takes u[n, p, i, q]. A task owns a box of y: some positions along the axis, some q, of one (n, p).
** It copies its box from a, in a phase of its own that is left out where y takes a's memory, then goes through all indices in
** order and takes the updates that fall into it.
** keeps: the updates of an element are taken in increasing i, whatever the boxes, so bits depend on the values only;
**        sums of 8-bit and 16-bit floats are kept in f32 until the end
** tests: tests/sched/test_scatter.c
*/
#include "sched/nest.h"
#include "sched/scatter.h"

enum { BOX_ELEMENTS = 4096 }; /* of y, that are worth a task */

static int64_t product(const quern_tensor *t, int from, int to) {
  int64_t n = 1;
  for (int k = from; k < to; k++) n *= t->dims[k];
  return n;
}

static int number_of(const struct pass_group *group, const quern_tensor *t) {
  size_t i = 0;
  while (i < group->n_ins && group->ins[i] != t) i++;
  QUERN_ASSERT(i < group->n_ins);
  return (int)i;
}

/* ---- choosing -------------------------------------------------------------------------------------------- */

/* Few (n, p): boxes along q, where rows are long, else along the axis. */
static void choose_boxes(struct scatter *s) {
  int64_t threads = s->job->target->threads, want = threads > 1 ? 4 * threads : 1, rows = s->n * s->p;
  int64_t most = BASE_MAX(s->positions * s->q / BASE_MAX(BOX_ELEMENTS, s->job->sched->grain), 1);
  int64_t boxes = rows >= want ? 1 : BASE_MIN(sched_ceil(want, rows), most);
  s->box_positions = s->positions;
  s->box_q = s->q;
  if (s->q >= BOX_ELEMENTS)
    s->box_q = sched_ceil(sched_ceil(s->q, boxes), s->lanes) * s->lanes;
  else
    s->box_positions = sched_ceil(s->positions, boxes);
  s->position_boxes = sched_ceil(s->positions, s->box_positions);
  s->q_boxes = sched_ceil(s->q, s->box_q);
}

static struct scatter scatter_of(struct sched_job *job) {
  const struct ir_node *node = job->group->anchor;
  const quern_tensor *y = &node->out[0], *b = node->src[1];
  int axis = (int)node->attrs->axis, batch = (int)node->attrs->batch;
  struct scatter s = {.job = job, .node = node, .dtype = y->dtype, .lanes = sched_lanes(job)};
  s.acc = node->attrs->reduce == IR_SUM ? kern_acc_dtype(y->dtype) : y->dtype;
  s.n = product(y, 0, batch);
  s.p = product(y, batch, axis);
  s.positions = y->dims[axis];
  s.q = product(y, axis + 1, y->rank);
  s.n_indices = product(b, batch, b->rank);
  s.a = number_of(job->group, node->src[0]);
  s.indices = number_of(job->group, b);
  s.u = number_of(job->group, node->src[2]);
  s.sums = (int)job->group->n_ins;
  while (s.lanes / 2 >= s.q && s.lanes > 1) s.lanes /= 2;
  choose_boxes(&s);
  return s;
}

/* ---- building -------------------------------------------------------------------------------------------- */

/* A task's box: row is the number of (n, p), positions and q go from .. to. */
struct box {
  kern_id row, batch, place_from, place_to, q_from, q_to;
};

static void range_of(struct kern_builder *b, kern_id number, int64_t size, int64_t all, kern_id *from, kern_id *to) {
  *from = kern_mul_i(b, number, size);
  *to = kern_min_i(b, kern_add_i(b, *from, size), all);
}

static struct box box_of(const struct scatter *s, struct kern_builder *b) {
  struct box box;
  kern_id task = kern_task(b), number = kern_idiv(b, task, s->q_boxes);
  range_of(b, kern_imod(b, task, s->q_boxes), s->box_q, s->q, &box.q_from, &box.q_to);
  range_of(b, kern_imod(b, number, s->position_boxes), s->box_positions, s->positions, &box.place_from, &box.place_to);
  box.row = kern_idiv(b, number, s->position_boxes);
  box.batch = kern_idiv(b, box.row, s->p);
  return box;
}

/* The first element of row `position` of (n, p), where there are `positions` of them: y's, or u's. */
static kern_id row_at(const struct scatter *s, struct kern_builder *b, const struct box *box, int64_t positions,
                      kern_id position) {
  kern_id row = kern_add(b, kern_mul_i(b, box->row, positions), position);
  return kern_mul_i(b, row, s->q);
}

/* Opens a loop over the q of a box in vectors: the first of a vector, and how many of its lanes count. */
static kern_id open_q(const struct scatter *s, struct kern_builder *b, const struct box *box, kern_id *active) {
  kern_id q = kern_for(b, box->q_from, box->q_to, s->lanes);
  *active = KERN_NONE;
  if (s->box_q % s->lanes != 0 || s->q % s->lanes != 0) *active = kern_min_i(b, kern_sub(b, box->q_to, q), s->lanes);
  return q;
}

/* to = from, all of the box. */
static void copy_box(const struct scatter *s, struct kern_builder *b, const struct box *box, int from, int to,
                     quern_dtype dtype) {
  kern_id position = kern_for(b, box->place_from, box->place_to, 1), row = row_at(s, b, box, s->positions, position),
          active;
  kern_id at = kern_add(b, row, open_q(s, b, box, &active));
  kern_id x = kern_cast(b, kern_load_n(b, kern_mem(b, from), at, s->lanes, active), dtype);
  kern_store_n(b, kern_mem(b, to), at, x, active);
  kern_end(b);
  kern_end(b);
}

kern_id scatter_updated(const struct scatter *s, struct kern_builder *b, kern_id old, kern_id u) {
  static const enum ir_op ops[IR_REDUCE_COUNT] = {
      [IR_SUM] = IR_ADD, [IR_REDUCE_MAX] = IR_MAX, [IR_REDUCE_MIN] = IR_MIN};
  enum ir_reduce reduce = s->node->attrs->reduce;
  u = kern_cast(b, u, s->acc);
  return reduce == IR_SET ? u : kern_math(b, ops[reduce], s->acc, 2, (kern_id[]){old, u});
}

static void take_updates(const struct scatter *s, struct kern_builder *b, const struct box *box) {
  kern_id i = kern_range(b, 0, s->n_indices, 1);
  kern_id number = kern_add(b, kern_mul_i(b, box->batch, s->n_indices), i);
  kern_id index = kern_cast(b, kern_load(b, kern_mem(b, s->indices), number, 1), QUERN_DTYPE_I64);
  kern_id not_before = kern_bin(b, KERN_LE, box->place_from, index),
          before_end = kern_bin(b, KERN_LT, index, box->place_to);
  kern_if(b, kern_bin(b, KERN_AND, not_before, before_end));
  kern_id last = kern_sub(b, box->place_to, kern_index(b, 1)); /* the clamps change nothing here, and show it */
  kern_id position = kern_min(b, kern_max(b, index, box->place_from), last), active;
  kern_id to = row_at(s, b, box, s->positions, position), from = row_at(s, b, box, s->n_indices, i);
  kern_id q = open_q(s, b, box, &active), at = kern_add(b, to, q), sums = kern_mem(b, s->sums);
  kern_id source = kern_mem(b, s->u), u = kern_load_n(b, source, kern_add(b, from, q), s->lanes, active);
  bool set = s->node->attrs->reduce == IR_SET;
  kern_id old = set ? KERN_NONE : kern_load_n(b, sums, at, s->lanes, active);
  kern_store_n(b, sums, at, scatter_updated(s, b, old, u), active);
  kern_end(b);
  kern_end(b);
  kern_end(b);
}

quern_status sched_scatter(struct sched_job *job) {
  struct kern *kern = job->kern;
  int y = (int)job->group->n_ins;
  QUERN_ASSERT(job->group->n_outs == 1);
  if (ir_count(job->group->outs[0].tensor) == 0) {
    (void)kern_add_phase(kern, KERN_FIXED_TASKS(0));
    return kern->failed;
  }
  struct scatter s = scatter_of(job);
  if (s.a != s.u && s.a != s.indices) kern->mems[y].alias = s.a;
  if (job->target->gpu && scatter_can_sort(&s)) return scatter_sorted(&s);
  if (s.acc != s.dtype) s.sums = kern_add_mem(kern, s.acc, KERN_WORK, kern->mems[y].count);
  int64_t tasks = s.n * s.p * s.position_boxes * s.q_boxes;
  struct kern_builder b = {kern, kern_add_phase(kern, KERN_FIXED_TASKS(tasks))};
  QUERN_TRY(kern->failed);
  struct box box = box_of(&s, &b);
  copy_box(&s, &b, &box, s.a, s.sums, s.acc);
  if (s.sums == y && kern->mems[y].alias == s.a) { /* left out where y takes the memory of a */
    kern_phase_copies(kern, s.a, y);
    b.fn = kern_add_phase(kern, KERN_FIXED_TASKS(tasks));
    QUERN_TRY(kern->failed);
    box = box_of(&s, &b);
  }
  if (s.n_indices > 0) take_updates(&s, &b, &box);
  if (s.sums != y) copy_box(&s, &b, &box, s.sums, y, s.dtype);
  return kern->failed;
}
