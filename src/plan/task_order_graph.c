/* plan/task_order_graph.c -- the tasks as a graph that takes and frees memory, and the peak of an order
** tests: tests/plan/test_task_order.c
*/
#include "plan/plan_int.h"

static bool list_has(const struct plan_list *list, int item) {
  for (int i = 0; i < list->n; i++)
    if (list->at[i] == item) return true;
  return false;
}

/* to[j] = all i, in increasing order, whose from[i] has j. */
static quern_status reverse(struct base_arena *arena, int n_from, const struct plan_list *from, int n_to,
                            struct plan_list *to) {
  size_t total = 0;
  for (int i = 0; i < n_from; i++) {
    for (int k = 0; k < from[i].n; k++) to[from[i].at[k]].n++;
    total += (size_t)from[i].n;
  }
  int *all = PLAN_NEW(arena, int, total);
  if (all == NULL) return QUERN_STATUS_MEMORY;
  for (int j = 0; j < n_to; j++) {
    to[j].at = all;
    all += to[j].n;
    to[j].n = 0;
  }
  for (int i = 0; i < n_from; i++) {
    for (int k = 0; k < from[i].n; k++) {
      struct plan_list *list = &to[from[i].at[k]];
      list->at[list->n++] = i;
    }
  }
  return QUERN_STATUS_OK;
}

/* The store that write w of a task may take over when the task is its last reader, or -1; no other of the n_taken in
** taken. */
static int takeable(const struct plan_job *job, const struct plan_task *task, int w, int n_taken, const int *taken) {
  for (int r = 0; r < task->n_reads; r++) {
    int from = task->stores[r], times = 0;
    const struct plan_store *source = &job->stores.at[from], *target = &job->stores.at[task->stores[task->n_reads + w]];
    if (!plan_may_take(task, w, r) || source->memory != PLAN_ARENA || source->bytes != target->bytes) continue;
    for (int i = 0; i < task->n_reads; i++) times += task->stores[i] == from && !plan_is_free(task, i, r);
    for (int i = 0; i < n_taken; i++) times += taken[i] == from;
    if (times == 0) return from;
  }
  return -1;
}

static quern_status add_task(const struct plan_job *job, struct plan_task_graph *g, int t, struct base_arena *arena) {
  const struct plan_task *task = &job->tasks.at[t];
  struct plan_list *before = &g->before[t], *reads = &g->reads[t], *writes = &g->writes[t];
  before->at = PLAN_NEW(arena, int, task->n_reads + before->n); /* n: of its edges */
  before->n = 0;
  reads->at = PLAN_NEW(arena, int, task->n_reads);
  writes->at = PLAN_NEW(arena, int, task->n_writes);
  g->takes[t] = PLAN_NEW(arena, int, task->n_writes);
  if (before->at == NULL || reads->at == NULL || writes->at == NULL || g->takes[t] == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < task->n_reads; i++) {
    int s = task->stores[i], maker = job->stores.at[s].maker;
    if (maker >= 0 && !list_has(before, maker)) before->at[before->n++] = maker;
    if (job->stores.at[s].memory == PLAN_ARENA && !list_has(reads, s)) reads->at[reads->n++] = s;
  }
  for (int w = 0; w < task->n_writes; w++) {
    int s = task->stores[task->n_reads + w];
    if (job->stores.at[s].memory != PLAN_ARENA) continue;
    g->takes[t][writes->n] = takeable(job, task, w, writes->n, g->takes[t]);
    writes->at[writes->n++] = s;
  }
  for (int i = 0; i < task->n_works; i++)
    g->works[t] += job->stores.at[task->stores[task->n_reads + task->n_writes + i]].room;
  return QUERN_STATUS_OK;
}

quern_status plan_task_graph_make(const struct plan_job *job, struct plan_task_graph *g, int n,
                                  struct base_arena *arena) {
  int n_stores = (int)job->stores.n;
  *g = (struct plan_task_graph){.n = n,
                                .n_stores = n_stores,
                                .before = PLAN_NEW(arena, struct plan_list, n),
                                .after = PLAN_NEW(arena, struct plan_list, n),
                                .reads = PLAN_NEW(arena, struct plan_list, n),
                                .writes = PLAN_NEW(arena, struct plan_list, n),
                                .takes = PLAN_NEW(arena, int *, n),
                                .works = PLAN_NEW(arena, int64_t, n),
                                .bytes = PLAN_NEW(arena, int64_t, n_stores),
                                .users = PLAN_NEW(arena, struct plan_list, n_stores),
                                .live_out = PLAN_NEW(arena, bool, n_stores)};
  if (g->before == NULL || g->after == NULL || g->reads == NULL || g->writes == NULL || g->takes == NULL ||
      g->works == NULL || g->bytes == NULL || g->users == NULL || g->live_out == NULL)
    return QUERN_STATUS_MEMORY;
  for (int s = 0; s < n_stores; s++) g->bytes[s] = job->stores.at[s].room;
  for (size_t e = 0; e < job->edges.n; e++) g->before[job->edges.at[e].after].n++;
  for (int t = 0; t < n; t++) QUERN_TRY(add_task(job, g, t, arena));
  for (size_t e = 0; e < job->edges.n; e++) {
    struct plan_list *before = &g->before[job->edges.at[e].after];
    if (!list_has(before, job->edges.at[e].before)) before->at[before->n++] = job->edges.at[e].before;
  }
  for (size_t t = (size_t)n; t < job->tasks.n; t++) g->live_out[job->tasks.at[t].stores[0]] = true;
  QUERN_TRY(reverse(arena, n, g->before, n, g->after));
  return reverse(arena, n, g->reads, n_stores, g->users);
}

/* Bytes of what a task writes, less what it takes over from stores that it is the last to read: left counts the
** readers to come. */
static int64_t taken(const struct plan_task_graph *g, int t, const int *left) {
  int64_t bytes = g->works[t];
  for (int w = 0; w < g->writes[t].n; w++) {
    int from = g->takes[t][w];
    bool takes = from >= 0 && left[from] == 1;
    for (int k = 0; k < w && takes; k++) takes = g->takes[t][k] != from;
    bytes += takes ? 0 : g->bytes[g->writes[t].at[w]];
  }
  return bytes;
}

int64_t plan_order_peak(const struct plan_task_graph *g, const int *order, int *left, int64_t *before, int *peak_at) {
  int64_t live = 0, peak = -1;
  for (int s = 0; s < g->n_stores; s++) left[s] = g->users[s].n + g->live_out[s];
  for (int i = 0; i < g->n; i++) {
    int t = order[i];
    int64_t now = live + taken(g, t, left);
    if (before != NULL) before[i] = live;
    if (now > peak) {
      peak = now;
      if (peak_at != NULL) *peak_at = i;
    }
    for (int w = 0; w < g->writes[t].n; w++) {
      int s = g->writes[t].at[w];
      live += left[s] > 0 ? g->bytes[s] : 0;
    }
    for (int r = 0; r < g->reads[t].n; r++) {
      int s = g->reads[t].at[r];
      if (--left[s] == 0) live -= g->bytes[s];
    }
  }
  return peak;
}

int64_t plan_order_least(const struct plan_task_graph *g) {
  int64_t least = 0;
  for (int t = 0; t < g->n; t++) {
    int64_t bytes = g->works[t];
    for (int r = 0; r < g->reads[t].n; r++) bytes += g->bytes[g->reads[t].at[r]];
    for (int w = 0; w < g->writes[t].n; w++) bytes += g->takes[t][w] < 0 ? g->bytes[g->writes[t].at[w]] : 0;
    least = BASE_MAX(least, bytes);
  }
  return least;
}
