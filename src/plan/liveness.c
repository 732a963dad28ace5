/* plan/liveness.c -- liveness: which stores are alive during which runs, and which take over the memory of another
** in:    the job's runs in order          out: lifetimes, takeovers, bytes of arena in use during each run
** keeps: a store is taken over by one other at most, in the run that reads it last, by one that needs it no more then
** tests: tests/plan/test_offsets.c
*/
#include "plan/plan_int.h"

/* True when no read of a run but number r needs what is there. */
static bool is_free(const struct plan_task *task, const struct plan_run *run, int r) {
  bool free = true;
  for (int i = 0; i < task->n_reads; i++) free &= run->stores[i] != run->stores[r] || plan_is_free(task, i, r);
  return free;
}

/* True when an earlier write of the run takes the store. */
static bool is_taken(const struct plan_job *job, const struct plan_liveness *life, int at, int w, int store) {
  const struct plan_run *run = &job->runs.at[at];
  const struct plan_task *task = &job->tasks.at[run->task];
  for (int i = 0; i < w; i++)
    if (life->takes[run->stores[task->n_reads + i]] == store) return true;
  return false;
}

/* The store whose memory write number w of a run can take over, or -1. */
static int taken_by(const struct plan_job *job, const struct plan_liveness *life, int at, int w) {
  const struct plan_run *run = &job->runs.at[at];
  const struct plan_task *task = &job->tasks.at[run->task];
  const struct plan_store *target = &job->stores.at[run->stores[task->n_reads + w]];
  if (target->memory != PLAN_ARENA) return -1;
  for (int r = 0; r < task->n_reads; r++) {
    int from = run->stores[r];
    const struct plan_store *source = &job->stores.at[from];
    bool free = source->memory == PLAN_ARENA || (source->memory == PLAN_PARAM && source->donated);
    if (!free || !plan_may_take(task, w, r) || life->last[from] != at || source->bytes != target->bytes) continue;
    if (is_free(task, run, r) && !is_taken(job, life, at, w, from)) return from;
  }
  return -1;
}

static quern_status life_new(struct plan_liveness *life, struct base_arena *arena, int n, int n_stores) {
  *life = (struct plan_liveness){.first = PLAN_NEW(arena, int, n_stores),
                                 .last = PLAN_NEW(arena, int, n_stores),
                                 .takes = PLAN_NEW(arena, int, n_stores),
                                 .home = PLAN_NEW(arena, int, n_stores),
                                 .until = PLAN_NEW(arena, int, n_stores),
                                 .live = PLAN_NEW(arena, int64_t, n + 1)};
  if (life->first == NULL || life->last == NULL || life->takes == NULL || life->home == NULL || life->until == NULL ||
      life->live == NULL)
    return QUERN_STATUS_MEMORY;
  for (int s = 0; s < n_stores; s++) {
    life->first[s] = n;
    life->last[s] = life->takes[s] = -1;
    life->home[s] = s;
  }
  return QUERN_STATUS_OK;
}

static void find_takeovers(const struct plan_job *job, struct plan_liveness *life) {
  for (int at = 0; at < (int)job->runs.n && job->options->share; at++) {
    const struct plan_run *run = &job->runs.at[at];
    const struct plan_task *task = &job->tasks.at[run->task];
    for (int w = 0; w < task->n_writes; w++) {
      int from = taken_by(job, life, at, w), to = run->stores[task->n_reads + w];
      if (from < 0) continue;
      life->takes[to] = from;
      life->home[to] = life->home[from];
    }
  }
}

quern_status plan_find_liveness(const struct plan_job *job, struct plan_liveness *life, struct base_arena *arena) {
  int n = (int)job->runs.n, n_stores = (int)job->stores.n;
  QUERN_TRY(life_new(life, arena, n, n_stores));
  for (int at = 0; at < n; at++) {
    const struct plan_run *run = &job->runs.at[at];
    const struct plan_task *task = &job->tasks.at[run->task];
    for (int i = 0; i < task->n_reads + task->n_writes + task->n_works; i++) {
      int s = run->stores[i];
      life->first[s] = BASE_MIN(life->first[s], at);
      life->last[s] = at;
    }
  }
  find_takeovers(job, life);
  for (int s = 0; s < n_stores; s++) {
    life->until[s] = BASE_MAX(life->until[s], life->last[s]);
    life->until[life->home[s]] = BASE_MAX(life->until[life->home[s]], life->last[s]);
  }
  for (int s = 0; s < n_stores; s++) {
    const struct plan_store *store = &job->stores.at[s];
    if (life->home[s] != s || store->memory != PLAN_ARENA || life->first[s] > life->last[s]) continue;
    life->live[life->first[s]] += store->room;
    life->live[life->until[s] + 1] -= store->room;
  }
  for (int at = 0; at < n; at++) {
    life->live[at + 1] += life->live[at];
    if (life->live[at] <= life->bound) continue;
    life->bound = life->live[at];
    life->peak = at;
  }
  return QUERN_STATUS_OK;
}
