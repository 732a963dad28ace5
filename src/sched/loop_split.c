/* sched/loop_split.c -- where a loop can be split so that paddings and concatenations make no difference inside the splits
** Inside a split an index has a range of its own, from which value.c sees which source is meant, and loads whole
** vectors.
** tests: tests/sched/test_map.c, tests/sched/test_reduce.c
*/
#include "sched/nest.h"

struct search {
  const struct sched_nest *nest;
  int loop;
  int n; /* more than SCHED_MOST_SPLITS: too many */
  int64_t starts[SCHED_MOST_SPLITS];
};

static void add_start(struct search *search, int64_t start) {
  if (start <= 0 || start >= search->nest->loops[search->loop].extent || search->n > SCHED_MOST_SPLITS) return;
  int i = search->n;
  for (int k = 0; k < search->n; k++)
    if (search->starts[k] == start) return;
  search->n++;
  if (search->n > SCHED_MOST_SPLITS) return;
  for (; search->starts[i - 1] > start; i--) search->starts[i] = search->starts[i - 1];
  search->starts[i] = start;
}

static int64_t floor_div(int64_t a, int64_t n) { return a / n - (a % n < 0); }

/* The loop's values for which index e lies inside 0 .. n - 1, whatever the other variables are. */
static void add_inside(struct search *search, const struct pass_index *e, int64_t n) {
  struct pass_space *space = search->nest->job->group->space;
  int var = search->nest->loops[search->loop].var;
  int64_t stride;
  if ((e->lo >= 0 && e->hi < n) || !pass_index_uses(e, var) || !pass_index_stride(space, e, var, &stride) ||
      stride <= 0)
    return;
  const struct pass_index *rest =
      pass_index_add(space, e, pass_index_scale(space, pass_index_var(space, var), -stride));
  add_start(search, -floor_div(rest->lo, stride));
  add_start(search, floor_div(n - 1 - rest->hi, stride) + 1);
}

static bool visit(void *user, const struct sched_point *point) {
  struct search *search = user;
  const struct ir_node *node = point->tensor->node;
  struct pass_space *space = search->nest->job->group->space;
  if (node->op == IR_PAD) {
    for (int k = 0; k < point->tensor->rank; k++) {
      const struct pass_index *shift = pass_index_const(space, -node->attrs->lo.at[k]);
      if (node->attrs->mid.at[k] == 0)
        add_inside(search, pass_index_add(space, point->at[k], shift), node->src[0]->dims[k]);
    }
  } else if (node->op == IR_CONCAT) {
    int64_t axis = node->attrs->axis, before = 0;
    for (int s = 0; s < node->n_src; s++) {
      const struct pass_index *shift = pass_index_const(space, -before);
      add_inside(search, pass_index_add(space, point->at[axis], shift), node->src[s]->dims[axis]);
      before += node->src[s]->dims[axis];
    }
  }
  return true;
}

quern_status sched_nest_splits(const struct sched_nest *nest, int loop, int *n, int64_t *starts) {
  const struct pass_group *group = nest->job->group;
  struct search search = {.nest = nest, .loop = loop, .n = 1};
  struct sched_walk walk;
  sched_walk_init(&walk, nest);
  walk.beyond = true;
  for (size_t i = 0; i < group->n_stages; i++)
    sched_walk_run(&walk, group->stages[i].node->src[0], nest->sources[i], visit, &search);
  for (size_t i = 0; i < group->n_column_reductions; i++)
    sched_walk_run(&walk, group->column_reductions[i].node->src[0], nest->column_sources[i], visit, &search);
  for (size_t i = 0; i < group->n_outs; i++)
    sched_walk_run(&walk, group->outs[i].tensor, nest->outs[i], visit, &search);
  sched_walk_fini(&walk);
  if (walk.failed || group->space->failed) return QUERN_STATUS_MEMORY;
  *n = search.n > SCHED_MOST_SPLITS ? 1 : search.n;
  for (int i = 0; i < *n; i++) starts[i] = search.starts[i];
  return QUERN_STATUS_OK;
}
