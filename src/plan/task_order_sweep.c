/* plan/task_order_sweep.c -- orders by priority: forwards from what is ready, or backwards from what is needed last
** keeps: each sweep takes n log n, whatever the graph
** tests: tests/plan/test_task_order.c
*/
#include "plan/plan_int.h"

struct entry {
  int64_t key;
  int rank, task;
};

struct heap {
  BASE_VEC(struct entry) entries;
};

struct sweep {
  const struct plan_task_graph *g;
  struct base_heap *heap;
  bool back;      /* from the last task to the first */
  const int *at;  /* of each task: its place in the order to start from */
  int *waits;     /* of each task: how many must still be done before it */
  int64_t *delta; /* of each task: by how much it would change what is alive */
  int *left;      /* forwards, of each store: readers to come, and 1 when it is kept; backwards: 1 when it is alive */
  bool *done;
  struct heap gains, ready; /* tasks that are ready: by delta, when at most 0 (or all, if greedy); by rank */
  bool plain, greedy, failed;
};

/* ---- heaps ---------------------------------------------------------------------------------------------- */

static bool precedes(struct entry a, struct entry b) { return a.key != b.key ? a.key < b.key : a.rank < b.rank; }

static bool heap_push(struct base_heap *memory, struct heap *heap, struct entry entry) {
  if (!base_vec_push(memory, &heap->entries, entry)) return false;
  struct entry *at = heap->entries.at;
  size_t i = heap->entries.n - 1;
  for (; i > 0 && precedes(entry, at[(i - 1) / 2]); i = (i - 1) / 2) at[i] = at[(i - 1) / 2];
  at[i] = entry;
  return true;
}

static struct entry heap_pop(struct heap *heap) {
  struct entry *at = heap->entries.at, first = at[0], entry = at[--heap->entries.n];
  size_t i = 0, n = heap->entries.n;
  for (size_t k = 1; k < n; k = 2 * i + 1) {
    if (k + 1 < n && precedes(at[k + 1], at[k])) k++;
    if (!precedes(at[k], entry)) break;
    at[i] = at[k];
    i = k;
  }
  at[i] = entry;
  return first;
}

/* ---- sweeps --------------------------------------------------------------------------------------------- */

static int rank(const struct sweep *w, int t) { return w->back ? w->g->n - 1 - w->at[t] : w->at[t]; }

/* Queues a task that is ready and has a gain. */
static void consider(struct sweep *w, int t) {
  if (w->plain || w->waits[t] > 0 || w->done[t] || !(w->greedy || w->delta[t] <= 0)) return;
  if (!heap_push(w->heap, &w->gains, (struct entry){w->delta[t], rank(w, t), t})) w->failed = true;
}

static void make_ready(struct sweep *w, int t) {
  if (!heap_push(w->heap, &w->ready, (struct entry){0, rank(w, t), t})) w->failed = true;
  consider(w, t);
}

/* The reader that is left frees the store. */
static void last_reader(struct sweep *w, int store) {
  const struct plan_list *users = &w->g->users[store];
  for (int i = 0; i < users->n; i++) {
    if (w->done[users->at[i]]) continue;
    w->delta[users->at[i]] -= w->g->bytes[store];
    consider(w, users->at[i]);
  }
}

/* Backwards: the store is alive from now on, at no cost to its other readers. */
static void revive(struct sweep *w, int store) {
  const struct plan_list *users = &w->g->users[store];
  if (w->left[store] != 0) return;
  w->left[store] = 1;
  for (int i = 0; i < users->n; i++) {
    if (w->done[users->at[i]]) continue;
    w->delta[users->at[i]] -= w->g->bytes[store];
    consider(w, users->at[i]);
  }
}

static void start(struct sweep *w) {
  const struct plan_task_graph *g = w->g;
  for (int s = 0; s < g->n_stores; s++) w->left[s] = w->back ? g->live_out[s] : g->users[s].n + g->live_out[s];
  for (int t = 0; t < g->n; t++) {
    w->waits[t] = w->back ? g->after[t].n : g->before[t].n;
    int64_t written = 0, read = 0;
    for (int i = 0; i < g->writes[t].n; i++) {
      int s = g->writes[t].at[i];
      written += g->users[s].n > 0 || g->live_out[s] ? g->bytes[s] : 0;
    }
    for (int i = 0; i < g->reads[t].n; i++) {
      int s = g->reads[t].at[i];
      read += (w->back ? w->left[s] == 0 : w->left[s] == 1 && !g->live_out[s]) ? g->bytes[s] : 0;
    }
    w->delta[t] = w->back ? read - written : written - read;
  }
  for (int t = 0; t < g->n; t++)
    if (w->waits[t] == 0) make_ready(w, t);
}

static void finish(struct sweep *w, int t) {
  const struct plan_task_graph *g = w->g;
  w->done[t] = true;
  for (int i = 0; i < g->reads[t].n; i++) {
    int s = g->reads[t].at[i];
    if (w->back)
      revive(w, s);
    else if (--w->left[s] == 1 && !g->live_out[s])
      last_reader(w, s);
  }
  const struct plan_list *next = w->back ? &g->before[t] : &g->after[t];
  for (int i = 0; i < next->n; i++)
    if (--w->waits[next->at[i]] == 0) make_ready(w, next->at[i]);
}

/* The next task: the one with the largest gain, else the first in the order to start from; -1: none is left. */
static int choose(struct sweep *w) {
  while (w->gains.entries.n > 0) {
    struct entry entry = heap_pop(&w->gains);
    if (!w->done[entry.task] && entry.key == w->delta[entry.task]) return entry.task;
  }
  while (w->ready.entries.n > 0) {
    struct entry entry = heap_pop(&w->ready);
    if (!w->done[entry.task]) return entry.task;
  }
  return -1;
}

quern_status plan_sweep(const struct plan_task_graph *g, struct base_arena *arena, enum plan_sweep_kind kind,
                        const int *from, int *to) {
  struct sweep w = {.g = g,
                    .heap = arena->heap,
                    .back = kind == PLAN_LATE,
                    .plain = kind == PLAN_PLAIN,
                    .greedy = kind == PLAN_GREEDY,
                    .waits = PLAN_NEW(arena, int, g->n),
                    .delta = PLAN_NEW(arena, int64_t, g->n),
                    .left = PLAN_NEW(arena, int, g->n_stores),
                    .done = PLAN_NEW(arena, bool, g->n)};
  int *at = PLAN_NEW(arena, int, g->n), n = 0;
  if (w.waits == NULL || w.delta == NULL || w.left == NULL || w.done == NULL || at == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < g->n; i++) at[from[i]] = i;
  w.at = at;
  start(&w);
  for (int t; !w.failed && (t = choose(&w)) >= 0; n++) {
    to[w.back ? g->n - 1 - n : n] = t;
    finish(&w, t);
  }
  base_vec_fini(w.heap, &w.gains.entries);
  base_vec_fini(w.heap, &w.ready.entries);
  if (w.failed) return QUERN_STATUS_MEMORY;
  QUERN_CHECK(n == g->n, INTERNAL, "plan: %d of %d tasks wait for each other", g->n - n, g->n);
  return QUERN_STATUS_OK;
}

/* ---- depth first ---------------------------------------------------------------------------------------- */

/* Bytes that a task leaves, and that computing it alone needs. */
static int64_t leaves(const struct plan_task_graph *g, int t) {
  int64_t bytes = 0;
  for (int i = 0; i < g->writes[t].n; i++)
    bytes += g->users[g->writes[t].at[i]].n > 0 ? g->bytes[g->writes[t].at[i]] : 0;
  return bytes;
}

/* Sorts a task's predecessors, those that need the most beyond what they leave first; gives what the task needs. */
static int64_t sort_before(const struct plan_task_graph *g, int t, const int64_t *need, const int64_t *leave,
                           struct plan_list *sorted) {
  for (int i = 0; i < g->before[t].n; i++) {
    int b = g->before[t].at[i], k = i;
    for (; k > 0 && i < 256 && need[sorted->at[k - 1]] - leave[sorted->at[k - 1]] < need[b] - leave[b]; k--)
      sorted->at[k] = sorted->at[k - 1];
    sorted->at[k] = b;
  }
  int64_t held = 0, most = 0;
  for (int i = 0; i < sorted->n; i++) {
    most = BASE_MAX(most, held + need[sorted->at[i]]);
    held += leave[sorted->at[i]];
  }
  return BASE_MAX(most, held + leave[t] + g->works[t]);
}

quern_status plan_depth_first(const struct plan_task_graph *g, struct base_arena *arena, const int *from, int *to) {
  int64_t *need = PLAN_NEW(arena, int64_t, g->n), *leave = PLAN_NEW(arena, int64_t, g->n);
  struct plan_list *sorted = PLAN_NEW(arena, struct plan_list, g->n);
  int *next = PLAN_NEW(arena, int, g->n), *stack = PLAN_NEW(arena, int, g->n), n = 0;
  if (need == NULL || leave == NULL || sorted == NULL || next == NULL || stack == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < g->n; i++) {
    int t = from[i];
    sorted[t] = (struct plan_list){g->before[t].n, PLAN_NEW(arena, int, g->before[t].n)};
    if (sorted[t].at == NULL) return QUERN_STATUS_MEMORY;
    leave[t] = leaves(g, t);
    need[t] = sort_before(g, t, need, leave, &sorted[t]);
  }
  for (int i = 0; i < g->n; i++) {
    if (g->after[from[i]].n > 0) continue;
    int depth = 0;
    stack[depth++] = from[i];
    while (depth > 0) {
      int t = stack[depth - 1];
      if (next[t] < sorted[t].n) {
        int b = sorted[t].at[next[t]++];
        if (next[b] == 0) stack[depth++] = b; /* not met yet: what is stacked or done has a larger count */
        continue;
      }
      if (next[t] == sorted[t].n) to[n++] = t;
      next[t] = sorted[t].n + 1;
      depth--;
    }
  }
  QUERN_CHECK(n == g->n, INTERNAL, "plan: %d of %d tasks wait for each other", g->n - n, g->n);
  return QUERN_STATUS_OK;
}
