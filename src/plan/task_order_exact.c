/* plan/task_order_exact.c -- the best order of a few neighboring tasks, by dynamic programming over the sets that are done
** keeps: what is alive after a set of tasks depends on the set only, so the least peak of every set follows from
**        smaller ones
** tests: tests/plan/test_task_order.c
*/
#include "plan/plan_int.h"

enum { MOST_STORES = 32 }; /* that a task of a window touches; one with more is left where it is */

struct local {     /* a task of the window */
  uint32_t before; /* tasks of the window that must precede it */
  int64_t works;
  int n_reads, n_writes;
  struct {
    uint32_t users; /* tasks of the window that read it */
    bool dies;      /* nobody reads it after the window */
    int64_t bytes;
  } reads[MOST_STORES];
  struct {
    int takes; /* which read it may take over, or -1 */
    bool used; /* somebody reads it */
    int64_t bytes;
  } writes[MOST_STORES];
};

struct plan_exact {
  struct local tasks[PLAN_EXACT];
  int64_t *peak, *live; /* of each set of tasks that can be done: the least peak on the way there; what is alive then */
  uint8_t *last;        /* the last of them on that way */
};

quern_status plan_exact_new(struct plan_exact **tables, struct base_arena *arena, int most) {
  size_t sets = (size_t)1 << most;
  *tables = base_arena_new(arena, struct plan_exact);
  if (*tables == NULL) return QUERN_STATUS_MEMORY;
  (*tables)->peak = PLAN_NEW(arena, int64_t, sets);
  (*tables)->live = PLAN_NEW(arena, int64_t, sets);
  (*tables)->last = PLAN_NEW(arena, uint8_t, sets);
  bool ok = (*tables)->peak != NULL && (*tables)->live != NULL && (*tables)->last != NULL;
  return ok ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

struct window {
  const struct plan_task_graph *g;
  const int *at; /* the place of each task */
  int lo, hi;
};

/* The number of a task in the window, or -1. */
static int place_of(const struct window *w, int task) {
  return w->at[task] >= w->lo && w->at[task] < w->hi ? w->at[task] - w->lo : -1;
}

/* Tasks of the window that read a store, and whether no later one does. */
static uint32_t users_of(const struct window *w, int store, bool *dies) {
  const struct plan_list *list = &w->g->users[store];
  uint32_t users = 0;
  *dies = !w->g->live_out[store];
  for (int u = 0; u < list->n; u++) {
    int place = place_of(w, list->at[u]);
    if (place >= 0)
      users |= UINT32_C(1) << place;
    else if (w->at[list->at[u]] >= w->hi)
      *dies = false;
  }
  return users;
}

static bool describe(struct local *local, const struct window *w, int t) {
  const struct plan_task_graph *g = w->g;
  *local = (struct local){.works = g->works[t], .n_reads = g->reads[t].n, .n_writes = g->writes[t].n};
  if (local->n_reads > MOST_STORES || local->n_writes > MOST_STORES) return false;
  for (int i = 0; i < g->before[t].n; i++) {
    int place = place_of(w, g->before[t].at[i]);
    if (place >= 0) local->before |= UINT32_C(1) << place;
  }
  for (int i = 0; i < local->n_reads; i++) {
    int s = g->reads[t].at[i];
    local->reads[i].bytes = g->bytes[s];
    local->reads[i].users = users_of(w, s, &local->reads[i].dies);
  }
  for (int i = 0; i < local->n_writes; i++) {
    int s = g->writes[t].at[i];
    local->writes[i].bytes = g->bytes[s];
    local->writes[i].used = g->users[s].n > 0 || g->live_out[s];
    local->writes[i].takes = -1;
    for (int r = 0; r < local->n_reads; r++)
      if (g->reads[t].at[r] == g->takes[t][i]) local->writes[i].takes = r;
  }
  return true;
}

/* Runs a task after a set: the bytes while it runs, beside those alive, and the change of those after it. */
static void cost(const struct local *task, uint32_t set, int64_t *during, int64_t *change) {
  uint64_t dead = 0, taken = 0;
  *during = task->works;
  *change = 0;
  for (int i = 0; i < task->n_reads; i++) {
    if (!task->reads[i].dies || (task->reads[i].users & ~set) != 0) continue;
    dead |= UINT64_C(1) << i;
    *change -= task->reads[i].bytes;
  }
  for (int i = 0; i < task->n_writes; i++) {
    int from = task->writes[i].takes;
    uint64_t bit = from >= 0 ? UINT64_C(1) << from : 0;
    if ((dead & ~taken & bit) != 0)
      taken |= bit;
    else
      *during += task->writes[i].bytes;
    if (task->writes[i].used) *change += task->writes[i].bytes;
  }
}

/* Fills the tables; false when no order stays under the bound. */
static bool search(struct plan_exact *e, int n, int64_t below) {
  uint32_t all = (UINT32_C(1) << n) - 1;
  for (uint32_t set = 1; set <= all; set++) e->peak[set] = INT64_MAX;
  e->peak[0] = 0;
  e->live[0] = 0;
  for (uint32_t set = 0; set < all; set++) {
    if (e->peak[set] == INT64_MAX) continue;
    for (int t = 0; t < n; t++) {
      uint32_t next = set | UINT32_C(1) << t;
      if (next == set || (e->tasks[t].before & ~set) != 0) continue;
      int64_t during, change;
      cost(&e->tasks[t], next, &during, &change);
      int64_t peak = BASE_MAX(e->peak[set], e->live[set] + during);
      if (peak >= below || peak >= e->peak[next]) continue;
      e->peak[next] = peak;
      e->live[next] = e->live[set] + change;
      e->last[next] = (uint8_t)t;
    }
  }
  return e->peak[all] != INT64_MAX;
}

bool plan_exact_window(struct plan_exact *e, const struct plan_task_graph *g, int *order, int *at, int lo, int hi,
                       int64_t below) {
  const struct window w = {g, at, lo, hi};
  int old[PLAN_EXACT], n = hi - lo;
  QUERN_ASSERT(n <= PLAN_EXACT);
  for (int i = 0; i < n; i++) {
    old[i] = order[lo + i];
    if (!describe(&e->tasks[i], &w, old[i])) return false;
  }
  if (!search(e, n, below)) return false;
  uint32_t set = (UINT32_C(1) << n) - 1;
  for (int i = n; i-- > 0;) {
    int t = e->last[set];
    order[lo + i] = old[t];
    at[old[t]] = lo + i;
    set &= ~(UINT32_C(1) << t);
  }
  return true;
}
