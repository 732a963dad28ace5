/* plan/remat_segments.c -- gradient checkpointing: what lies between checkpoints is computed twice
** The tasks that result 0 needs (a loss) are the forward pass, all others the backward pass. What the forward pass made before a
** checkpoint and the backward pass reads does not stay in memory: tasks of its own rematerialize it, from the checkpoint before it, just
** before its first reader. What was made after the last checkpoint stays: the backward pass begins with it. Which tensors are checkpoints
** the graph tells (CHECKPOINT); or they are chosen here, to meet a limit.
** in:    tasks in a valid order              out: the same with repetitions among them, each task repeated once at most
** keeps: new values of states and carries are made once; what is read two checkpoints later or more stays in memory as well,
**        as its repetition would
** tests: tests/plan/test_remat_segments.c
*/
#include "plan/plan_int.h"

struct again {
  struct plan_job *job;
  int n;                            /* tasks there were */
  bool *before;                     /* of each task: a kept store is made from it, or by it */
  bool *held;                       /* of each store: the backward pass reads it as it is */
  int *copy;                        /* of each task: its repetition among the new tasks; -1: none */
  int *renamed;                     /* of each store: what the repetition makes in its place; -1: none */
  int *number;                      /* of each task: what it is among the new ones */
  BASE_VEC(struct plan_task) tasks; /* the new ones */
  BASE_VEC(int) stack;
};

/* ---- forward and backward tasks -------------------------------------------------------------------------------- */

static quern_status push(struct again *a, bool *mark, int task) {
  if (task < 0 || mark[task]) return QUERN_STATUS_OK;
  mark[task] = true;
  return base_vec_push(a->job->heap, &a->stack, task) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* Marks what those on the stack are made from. */
static quern_status mark_sources(struct again *a, bool *mark) {
  const struct plan_job *job = a->job;
  while (a->stack.n > 0) {
    const struct plan_task *task = &job->tasks.at[a->stack.at[--a->stack.n]];
    for (int i = 0; i < task->n_reads; i++) QUERN_TRY(push(a, mark, job->stores.at[task->stores[i]].maker));
  }
  return QUERN_STATUS_OK;
}

/* Says which tasks the target is made by. */
static quern_status mark_there(struct again *a, int target) {
  struct plan_job *job = a->job;
  bool *there = PLAN_NEW(&job->arena, bool, a->n);
  if (there == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(push(a, there, job->stores.at[target].maker));
  QUERN_TRY(mark_sources(a, there));
  for (int t = 0; t < a->n; t++) job->tasks.at[t].there = there[t];
  return QUERN_STATUS_OK;
}

/* And which of them kept stores are made by. */
static quern_status mark_before(struct again *a) {
  struct plan_job *job = a->job;
  a->before = PLAN_NEW(&job->arena, bool, a->n);
  if (a->before == NULL) return QUERN_STATUS_MEMORY;
  for (size_t s = 0; s < job->stores.n; s++) {
    const struct plan_store *store = &job->stores.at[s];
    if (store->checkpoint && store->maker >= 0 && job->tasks.at[store->maker].there)
      QUERN_TRY(push(a, a->before, store->maker));
  }
  return mark_sources(a, a->before);
}

/* ---- choosing what is kept ------------------------------------------------------------------------------------- */

/* Of each store: the last forward task that reads it, or -1; and whether a backward task does. */
static void find_readers(const struct again *a, int *last, bool *back) {
  const struct plan_job *job = a->job;
  for (size_t s = 0; s < job->stores.n; s++) last[s] = -1;
  for (int t = 0; t < a->n; t++) {
    const struct plan_task *task = &job->tasks.at[t];
    for (int i = 0; i < task->n_reads; i++) {
      if (task->there)
        last[task->stores[i]] = t;
      else
        back[task->stores[i]] = true;
    }
  }
}

static bool is_made_there(const struct plan_job *job, int s) {
  const struct plan_store *store = &job->stores.at[s];
  return store->maker >= 0 && store->memory == PLAN_ARENA && job->tasks.at[store->maker].there;
}

/* The one store that the rest of the forward pass needs after task t, but for much smaller ones; -1: there are others. */
static int only_store(const struct again *a, size_t n, const int *alive, const int *last, int t) {
  const struct plan_store *stores = a->job->stores.at;
  int largest = -1;
  for (size_t i = 0; i < n; i++)
    if (last[alive[i]] > t && (largest < 0 || stores[alive[i]].room > stores[largest].room)) largest = alive[i];
  for (size_t i = 0; i < n; i++)
    if (last[alive[i]] > t && alive[i] != largest && 8 * stores[alive[i]].room > stores[largest].room) return -1;
  return largest;
}

/* Makes checkpoints of stores that all that follows goes through, so that there are about job->segments segments that backward reads as
** much of. */
static quern_status choose_checkpoints(struct again *a) {
  struct plan_job *job = a->job;
  int *last = PLAN_NEW(&job->arena, int, job->stores.n), *alive = PLAN_NEW(&job->arena, int, job->stores.n);
  bool *back = PLAN_NEW(&job->arena, bool, job->stores.n);
  if (last == NULL || alive == NULL || back == NULL) return QUERN_STATUS_MEMORY;
  find_readers(a, last, back);
  int64_t total = 0, sum = 0;
  for (size_t s = 0; s < job->stores.n; s++)
    if (back[s] && is_made_there(job, (int)s)) total += job->stores.at[s].room;
  size_t n = 0;
  for (int t = 0; t < a->n; t++) {
    const struct plan_task *task = &job->tasks.at[t];
    size_t kept = 0;
    if (!task->there) continue;
    for (size_t i = 0; i < n; i++)
      if (last[alive[i]] > t) alive[kept++] = alive[i];
    n = kept;
    for (int i = 0; i < task->n_writes; i++) {
      int s = task->stores[task->n_reads + i];
      if (back[s] && is_made_there(job, s)) sum += job->stores.at[s].room;
      if (last[s] > t) alive[n++] = s;
    }
    int only = sum * job->segments >= total ? only_store(a, n, alive, last, t) : -1;
    if (only < 0 || !is_made_there(job, only)) continue;
    job->stores.at[only].checkpoint = true;
    sum = 0;
  }
  return QUERN_STATUS_OK;
}

/* ---- what is held ---------------------------------------------------------------------------------------------- */

/* How many kept stores lie one after another before each task, at most; tasks are in a valid order. */
static void find_depths(const struct again *a, int *depth) {
  const struct plan_job *job = a->job;
  for (int t = 0; t < a->n; t++) {
    const struct plan_task *task = &job->tasks.at[t];
    for (int i = 0; i < task->n_reads; i++) {
      const struct plan_store *store = &job->stores.at[task->stores[i]];
      if (store->maker >= 0) depth[t] = BASE_MAX(depth[t], depth[store->maker] + (store->checkpoint ? 1 : 0));
    }
  }
}

static quern_status find_held(struct again *a, const bool *pinned) {
  struct plan_job *job = a->job;
  int *depth = PLAN_NEW(&job->arena, int, a->n);
  a->held = PLAN_NEW(&job->arena, bool, job->stores.n);
  if (depth == NULL || a->held == NULL) return QUERN_STATUS_MEMORY;
  find_depths(a, depth);
  for (size_t s = 0; s < job->stores.n; s++) {
    const struct plan_store *store = &job->stores.at[s];
    a->held[s] = store->maker < 0 || store->checkpoint || store->memory != PLAN_ARENA ||
                 !job->tasks.at[store->maker].there || !a->before[store->maker] || pinned[s];
  }
  for (int t = 0; t < a->n; t++) { /* what is made with a pinned store is as well */
    const struct plan_task *task = &job->tasks.at[t];
    bool held = false;
    for (int i = 0; i < task->n_writes; i++) held = held || pinned[task->stores[task->n_reads + i]];
    for (int i = 0; i < task->n_writes && held; i++) a->held[task->stores[task->n_reads + i]] = true;
    for (int i = 0; i < task->n_reads && task->there; i++) {
      const struct plan_store *store = &job->stores.at[task->stores[i]];
      if (store->maker >= 0 && depth[t] > depth[store->maker] + 1) a->held[task->stores[i]] = true;
    }
  }
  return QUERN_STATUS_OK;
}

/* ---- repetitions ----------------------------------------------------------------------------------------------- */

static quern_status add_task(struct again *a, struct plan_task task, int *number) {
  *number = (int)a->tasks.n;
  return base_vec_push(a->job->heap, &a->tasks, task) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* A task that does the same and writes stores of its own; what it reads is renamed already. */
static quern_status repeat(struct again *a, int t) {
  struct plan_job *job = a->job;
  struct plan_task task = job->tasks.at[t];
  int n = task.n_reads + task.n_writes + task.n_works;
  int *stores = base_arena_copy(&job->arena, task.stores, (size_t)n * sizeof(int));
  if (stores == NULL) return QUERN_STATUS_MEMORY;
  task.stores = stores;
  task.there = false;
  task.rematerializes = true;
  QUERN_TRY(add_task(a, task, &a->copy[t]));
  for (int i = 0; i < n; i++) {
    int s = stores[i];
    if (i < task.n_reads) {
      stores[i] = !a->held[s] ? a->renamed[s] : s;
      continue;
    }
    struct plan_store made = job->stores.at[s];
    made.memory = PLAN_ARENA;
    made.checkpoint = false;
    made.maker = a->copy[t];
    QUERN_TRY(plan_add_store(job, made, &stores[i]));
    if (i < task.n_reads + task.n_writes) a->renamed[s] = stores[i];
  }
  return QUERN_STATUS_OK;
}

/* The task that must be repeated before task t can be, or -1. */
static int missing(const struct again *a, int t) {
  const struct plan_task *task = &a->job->tasks.at[t];
  for (int i = 0; i < task->n_reads; i++) {
    int s = task->stores[i];
    if (!a->held[s] && a->copy[a->job->stores.at[s].maker] < 0) return a->job->stores.at[s].maker;
  }
  return -1;
}

/* Repeats everything that a backward task reads and that is not held, sources first. */
static quern_status repeat_sources(struct again *a, int t) {
  for (int first = missing(a, t); first >= 0; first = missing(a, t)) {
    a->stack.n = 0;
    if (!base_vec_push(a->job->heap, &a->stack, first)) return QUERN_STATUS_MEMORY;
    while (a->stack.n > 0) {
      int at = a->stack.at[a->stack.n - 1], source = missing(a, at);
      if (source >= 0) {
        if (!base_vec_push(a->job->heap, &a->stack, source)) return QUERN_STATUS_MEMORY;
        continue;
      }
      a->stack.n--;
      if (a->copy[at] < 0) QUERN_TRY(repeat(a, at));
    }
  }
  return QUERN_STATUS_OK;
}

static quern_status build(struct again *a) {
  struct plan_job *job = a->job;
  size_t n_stores = job->stores.n;
  a->copy = PLAN_NEW(&job->arena, int, a->n);
  a->number = PLAN_NEW(&job->arena, int, a->n);
  a->renamed = PLAN_NEW(&job->arena, int, n_stores);
  if (a->copy == NULL || a->number == NULL || a->renamed == NULL) return QUERN_STATUS_MEMORY;
  for (int t = 0; t < a->n; t++) a->copy[t] = -1;
  for (size_t s = 0; s < n_stores; s++) a->renamed[s] = -1;
  for (int t = 0; t < a->n; t++) {
    struct plan_task *task = &job->tasks.at[t];
    if (!task->there) {
      QUERN_TRY(repeat_sources(a, t));
      for (int i = 0; i < task->n_reads; i++)
        if (!a->held[task->stores[i]]) task->stores[i] = a->renamed[task->stores[i]];
    }
    QUERN_TRY(add_task(a, *task, &a->number[t]));
  }
  for (size_t s = 0; s < n_stores; s++) {
    struct plan_store *store = &job->stores.at[s];
    if (store->maker >= 0) store->maker = a->number[store->maker];
  }
  job->tasks.n = 0;
  if (!base_vec_reserve(job->heap, &job->tasks, a->tasks.n)) return QUERN_STATUS_MEMORY;
  memcpy(job->tasks.at, a->tasks.at, a->tasks.n * sizeof *a->tasks.at);
  job->tasks.n = a->tasks.n;
  return QUERN_STATUS_OK;
}

quern_status plan_remat_segments(struct plan_job *job, int target, const bool *pinned) {
  struct again a = {.job = job, .n = (int)job->tasks.n};
  quern_status status = mark_there(&a, target);
  if (status == QUERN_STATUS_OK && (job->options->recompute || job->segments > 0)) {
    if (job->segments > 0) status = choose_checkpoints(&a);
    if (status == QUERN_STATUS_OK) status = mark_before(&a);
    if (status == QUERN_STATUS_OK) status = find_held(&a, pinned);
    if (status == QUERN_STATUS_OK) status = build(&a);
  }
  base_vec_fini(job->heap, &a.tasks);
  base_vec_fini(job->heap, &a.stack);
  return status;
}
