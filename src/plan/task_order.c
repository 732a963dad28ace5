/* plan/task_order.c -- an order of the tasks for which few bytes are alive at a time
** Several orders are made from the one given and the best is taken (task_order_sweep.c): eager, late, greedy, depth first
** (Sethi and Ullman, 1970), and these after each other. Then windows around the peak are searched exhaustively
** (task_order_exact.c); with at most 16 tasks that is the whole, and the order is the best there is. In the end what frees
** memory is done early, as far as the peak allows.
** in:    tasks and edges                  out: a permutation of the tasks, final copies last
** keeps: the same input gives the same order; n log n, and a bounded number of windows
** tests: tests/plan/test_task_order.c
*/
#include "plan/plan_int.h"

enum { MANY_TASKS = 20000, MOST_WINDOWS = 300, ROUNDS = 4 };

struct search {
  const struct plan_task_graph *g;
  struct base_arena *arena;
  int *left;        /* scratch of plan_order_peak */
  int *best, *next; /* the best order so far, and one to be tried */
  int64_t peak, least;
};

/* Takes the order in next if it is better. */
static bool keep_better(struct search *s) {
  int64_t peak = plan_order_peak(s->g, s->next, s->left, NULL, NULL);
  if (peak >= s->peak) return false;
  int *better = s->next;
  s->next = s->best;
  s->best = better;
  s->peak = peak;
  return true;
}

/* Tries a sweep of the best order, or of another. */
static quern_status try_sweep(struct search *s, enum plan_sweep_kind kind, const int *from, bool *better) {
  *better = false;
  if (s->peak <= s->least) return QUERN_STATUS_OK;
  QUERN_TRY(plan_sweep(s->g, s->arena, kind, from != NULL ? from : s->best, s->next));
  *better = keep_better(s);
  return QUERN_STATUS_OK;
}

/* Eager and late in turns, until neither helps. */
static quern_status try_turns(struct search *s) {
  bool eager = true, late = true;
  for (int round = 0; round < ROUNDS && (eager || late); round++) {
    QUERN_TRY(try_sweep(s, PLAN_EAGER, NULL, &eager));
    QUERN_TRY(try_sweep(s, PLAN_LATE, NULL, &late));
  }
  return QUERN_STATUS_OK;
}

static quern_status try_all(struct search *s) {
  int n = s->g->n;
  bool better;
  int *given = base_arena_copy(s->arena, s->best, (size_t)n * sizeof(int));
  int *other = PLAN_NEW(s->arena, int, n);
  if (given == NULL || other == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(try_sweep(s, PLAN_LATE, NULL, &better));
  QUERN_TRY(try_turns(s));
  if (n > MANY_TASKS || s->peak <= s->least) return QUERN_STATUS_OK;
  QUERN_TRY(try_sweep(s, PLAN_EAGER, given, &better));
  QUERN_TRY(try_sweep(s, PLAN_GREEDY, given, &better));
  QUERN_TRY(plan_depth_first(s->g, s->arena, given, other));
  memcpy(s->next, other, (size_t)n * sizeof(int));
  better = keep_better(s);
  QUERN_TRY(try_sweep(s, PLAN_LATE, other, &better));
  QUERN_TRY(try_sweep(s, PLAN_EAGER, other, &better));
  return try_turns(s);
}

/* Searches windows of so many tasks around the peak until none of them lowers it. */
static quern_status try_windows(struct search *s, int size) {
  int n = s->g->n, peak_at = 0;
  struct plan_exact *tables;
  int64_t *before = PLAN_NEW(s->arena, int64_t, n);
  int *at = PLAN_NEW(s->arena, int, n);
  if (before == NULL || at == NULL) return QUERN_STATUS_MEMORY;
  size = BASE_MIN(size, n);
  QUERN_TRY(plan_exact_new(&tables, s->arena, size));
  for (int i = 0; i < n; i++) at[s->best[i]] = i;
  for (int tried = 0; tried < MOST_WINDOWS && s->peak > s->least;) {
    s->peak = plan_order_peak(s->g, s->best, s->left, before, &peak_at);
    bool better = false;
    for (int shift = 1; shift <= 3 && !better; shift++, tried++) {
      int lo = BASE_MAX(0, BASE_MIN(peak_at - size * shift / 4, n - size));
      better = plan_exact_window(tables, s->g, s->best, at, lo, lo + size, s->peak - before[lo]);
    }
    if (!better) break;
  }
  s->peak = plan_order_peak(s->g, s->best, s->left, NULL, NULL);
  return QUERN_STATUS_OK;
}

/* The sum over all places of the bytes alive before them. */
static double area_of(const struct search *s, const int *order, int64_t *before, int64_t *peak) {
  double area = 0;
  *peak = plan_order_peak(s->g, order, s->left, before, NULL);
  for (int i = 0; i < s->g->n; i++) area += (double)before[i];
  return area;
}

/* Of orders with one peak, that which has less alive elsewhere is better: what is computed again under a limit needs room. */
static quern_status try_eager(struct search *s) {
  int64_t *before = PLAN_NEW(s->arena, int64_t, s->g->n), peak;
  if (before == NULL) return QUERN_STATUS_MEMORY;
  QUERN_TRY(plan_sweep(s->g, s->arena, PLAN_EAGER, s->best, s->next));
  double area = area_of(s, s->next, before, &peak);
  if (peak > s->peak || area >= area_of(s, s->best, before, &s->peak)) return QUERN_STATUS_OK;
  int *better = s->next;
  s->next = s->best;
  s->best = better;
  s->peak = peak;
  return QUERN_STATUS_OK;
}

static quern_status improve(struct search *s, int limit) {
  QUERN_TRY(try_all(s));
  for (int size = 8; size <= limit && s->peak > s->least && s->g->n > size - 4 && s->g->n <= MANY_TASKS; size += 4)
    QUERN_TRY(try_windows(s, size));
  return try_eager(s);
}

quern_status plan_order(struct plan_job *job, int *order) {
  int n = 0, total = (int)job->tasks.n;
  while (n < total && !job->tasks.at[n].final) n++;
  struct plan_task_graph g;
  QUERN_TRY(plan_task_graph_make(job, &g, n, &job->arena));
  struct search s = {.g = &g, .arena = &job->arena};
  s.left = PLAN_NEW(&job->arena, int, g.n_stores);
  s.best = PLAN_NEW(&job->arena, int, n);
  s.next = PLAN_NEW(&job->arena, int, n);
  if (s.left == NULL || s.best == NULL || s.next == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < n; i++) s.next[i] = i;
  QUERN_TRY(plan_sweep(&g, &job->arena, PLAN_PLAIN, s.next, s.best));
  s.peak = plan_order_peak(&g, s.best, s.left, NULL, NULL);
  s.least = plan_order_least(&g);
  if (job->options->reorder) QUERN_TRY(improve(&s, n <= PLAN_EXACT ? PLAN_EXACT : 12));
  for (int i = 0; i < total; i++) order[i] = i < n ? s.best[i] : i;
  return QUERN_STATUS_OK;
}
