/* plan/remat.c -- rematerialization: computing again instead of keeping in memory, one store at a time, until the arena fits
** Where the most is alive, a store that is not in use there is let go, and what it was made by is repeated before its
** next reader, with as much of what precedes that as is gone; the one with the most bytes for the time is tried first.
** Steps that bring no gain are taken back. The steps do not depend on the limit: it only says where to stop, so a
** limit that is met by none of the states on the way is met by nothing here.
** in:    runs in order                     out: runs with repetitions
** keeps: a repetition reads what the first time read: old states only until they are overwritten
** tests: tests/plan/test_remat.c
*/
#include <math.h>

#include "plan/plan_int.h"

enum { MOST_CHAIN = 64, MOST_TRIES = 48, CANDIDATES = 512, MOST_TAKEN_BACK = 2000, TOGETHER = 16, MOST_FAILED = 12 };

struct candidate {
  int store, next; /* what to let go; the run that reads it next */
  double score;
};

struct remat {
  struct plan_job *job;
  struct base_arena arena; /* of one state */
  struct plan_liveness life;
  int *next; /* of each store: the first run after the peak that reads it, or the number of runs */
  int *gone; /* of each leaf: the run in which a new value is written over it, or the number of runs */
  int chain[MOST_CHAIN], n_chain; /* runs to be repeated, in order */
  int *mark;                      /* of each run: epoch when it is in the chain */
  int epoch;
};

/* ---- one state --------------------------------------------------------------------------------------------- */

static quern_status look(struct remat *r) {
  struct plan_job *job = r->job;
  int n = (int)job->runs.n;
  base_arena_fini(&r->arena);
  base_arena_init(&r->arena, job->heap);
  QUERN_TRY(plan_find_liveness(job, &r->life, &r->arena));
  r->next = PLAN_NEW(&r->arena, int, job->stores.n);
  r->gone = PLAN_NEW(&r->arena, int, job->stores.n);
  r->mark = PLAN_NEW(&r->arena, int, n);
  if (r->next == NULL || r->gone == NULL || r->mark == NULL) return QUERN_STATUS_MEMORY;
  for (size_t s = 0; s < job->stores.n; s++) r->next[s] = r->gone[s] = n;
  for (int at = n; at-- > 0;) {
    const struct plan_run *run = &job->runs.at[at];
    const struct plan_task *task = &job->tasks.at[run->task];
    for (int i = 0; i < task->n_reads && at > r->life.peak; i++) r->next[run->stores[i]] = at;
    for (int i = 0; i < task->n_writes; i++) {
      int over = job->stores.at[run->stores[task->n_reads + i]].over;
      if (over >= 0) r->gone[over] = at;
    }
  }
  r->epoch = 0;
  return QUERN_STATUS_OK;
}

/* How many runs have as much alive as the peak. */
static int count_peaks(const struct remat *r) {
  int n = 0;
  for (size_t at = 0; at < r->job->runs.n; at++) n += r->life.live[at] == r->life.bound;
  return n;
}

/* Alive at the peak, and not in use there. */
static bool is_idle(const struct remat *r, int s) {
  const struct plan_job *job = r->job;
  if (job->stores.at[s].memory != PLAN_ARENA || job->stores.at[s].tensor == NULL) return false;
  if (r->life.first[s] >= r->life.peak || r->life.last[s] <= r->life.peak) return false;
  const struct plan_run *run = &job->runs.at[r->life.peak];
  const struct plan_task *task = &job->tasks.at[run->task];
  for (int i = 0; i < task->n_reads; i++)
    if (run->stores[i] == s) return false;
  return true;
}

/* ---- what must be repeated --------------------------------------------------------------------------------- */

/* The version of a store that a repetition before run q can read without more being alive at the peak, or -1. */
static int version_at(const struct remat *r, int store, int q) {
  const struct plan_job *job = r->job;
  const struct plan_liveness *life = &r->life;
  const struct plan_store *first = &job->stores.at[job->stores.at[store].version_of];
  if (first->maker < 0) return r->gone[store] >= q ? store : -1;
  if (first->memory != PLAN_ARENA) return store;
  int found = -1;
  for (int v = job->stores.at[store].version_of; v >= 0; v = job->stores.at[v].next_version) {
    if (life->first[v] >= q || life->first[v] > life->last[v]) continue;
    if (life->last[v] >= q) return v;
    if (life->last[v] >= life->peak) found = v; /* it lives longer, but not at the peak */
  }
  return found;
}

static bool can_repeat(const struct plan_job *job, int at) {
  const struct plan_run *run = &job->runs.at[at];
  const struct plan_task *task = &job->tasks.at[run->task];
  for (int i = 0; i < task->n_writes; i++) {
    const struct plan_store *store = &job->stores.at[run->stores[task->n_reads + i]];
    if (store->memory == PLAN_STATE || store->over >= 0) return false;
  }
  return true;
}

/* The chain of runs that make a store again before run q; false when there is none. *held: bytes that it keeps alive at
** the peak: small ones are kept rather than made again. */
static bool find_chain(struct remat *r, int store, int q, int64_t *held, double *seconds) {
  const struct plan_job *job = r->job;
  int stack[MOST_CHAIN], depth = 0;
  int64_t small = job->stores.at[store].room / 8;
  r->n_chain = 0;
  r->epoch++;
  *held = 0;
  *seconds = 0;
  stack[depth++] = r->life.first[store];
  while (depth > 0) {
    int at = stack[depth - 1], missing = -1;
    const struct plan_run *run = &job->runs.at[at];
    const struct plan_task *task = &job->tasks.at[run->task];
    if (!can_repeat(job, at)) return false;
    for (int i = 0; i < task->n_reads && missing < 0; i++) {
      int s = run->stores[i];
      bool leaf = job->stores.at[s].maker < 0;
      if (version_at(r, s, q) >= 0) continue;
      if (leaf) return false; /* an old state that is overwritten by then */
      if (job->stores.at[s].room <= small) continue;
      if (r->mark[r->life.first[s]] != r->epoch) missing = r->life.first[s];
    }
    if (missing >= 0) {
      if (depth == MOST_CHAIN) return false;
      stack[depth++] = missing;
      continue;
    }
    depth--;
    if (r->mark[at] == r->epoch) continue;
    if (r->n_chain == MOST_CHAIN) return false;
    for (int i = 0; i < task->n_reads; i++) {
      int s = run->stores[i];
      if (version_at(r, s, q) < 0 && r->mark[r->life.first[s]] != r->epoch) *held += job->stores.at[s].room;
    }
    r->mark[at] = r->epoch;
    r->chain[r->n_chain++] = at;
    *seconds += task->seconds + 2e-6;
  }
  return true;
}

/* Bytes that are no longer alive at the peak when the run that makes a store is repeated before run q. */
static int64_t freed_by(const struct remat *r, int store, int q) {
  const struct plan_run *run = &r->job->runs.at[r->life.first[store]];
  const struct plan_task *task = &r->job->tasks.at[run->task];
  int64_t bytes = 0;
  for (int i = 0; i < task->n_writes; i++) {
    int s = run->stores[task->n_reads + i];
    if (is_idle(r, s) && r->next[s] >= q) bytes += r->job->stores.at[s].room;
  }
  return bytes;
}

/* ---- a step ------------------------------------------------------------------------------------------------- */

/* The store that a repetition writes in place of one of the first time. */
static quern_status add_version(struct plan_job *job, int of, int *number) {
  struct plan_store store = job->stores.at[of];
  int first = store.version_of;
  QUERN_TRY(plan_add_store(job, store, number));
  job->stores.at[*number].version_of = first;
  if (job->stores.at[of].tensor == NULL) return QUERN_STATUS_OK; /* a workspace */
  job->stores.at[*number].next_version = job->stores.at[first].next_version;
  job->stores.at[first].next_version = *number;
  return QUERN_STATUS_OK;
}

/* The repetition of a run before run q. renamed[s]: what the chain has made for store s so far, or -1. */
static quern_status repeat(struct remat *r, int at, int q, int *renamed, struct plan_run *made) {
  struct plan_job *job = r->job;
  const struct plan_run run = job->runs.at[at];
  const struct plan_task *task = &job->tasks.at[run.task];
  int n = task->n_reads + task->n_writes + task->n_works;
  *made = (struct plan_run){run.task, true, PLAN_NEW(&job->arena, int, n)};
  if (made->stores == NULL) return QUERN_STATUS_MEMORY;
  for (int i = 0; i < n; i++) {
    int s = run.stores[i];
    if (i < task->n_reads) {
      int version = version_at(r, s, q);
      made->stores[i] = renamed[s] >= 0 ? renamed[s] : version >= 0 ? version : s;
    } else if (job->stores.at[s].memory == PLAN_ARENA) {
      QUERN_TRY(add_version(job, s, &made->stores[i]));
      if (i < task->n_reads + task->n_writes) renamed[s] = made->stores[i];
    } else {
      made->stores[i] = s; /* a result is written again, with the same bits */
    }
  }
  return QUERN_STATUS_OK;
}

/* Later repetitions of what the chain repeats are not needed when their readers read what the chain makes. */
static void merge(const struct remat *r, size_t k, const struct plan_run *made, int q, int *renamed) {
  struct plan_job *job = r->job;
  for (size_t at = (size_t)q; at < job->runs.n; at++) {
    struct plan_run *run = &job->runs.at[at];
    const struct plan_task *task = &job->tasks.at[run->task];
    for (size_t i = 0; i < k && run->repeated; i++) {
      if (made[i].task != run->task) continue;
      for (int w = task->n_reads; w < task->n_reads + task->n_writes; w++)
        if (run->stores[w] != made[i].stores[w]) renamed[run->stores[w]] = made[i].stores[w];
      run->task = -1; /* to be removed */
      break;
    }
  }
}

/* Repeats the chain before run q, and lets the runs from there on read what it makes. merges: later repetitions go. */
static quern_status apply(struct remat *r, int store, int q, bool merges) {
  struct plan_job *job = r->job;
  size_t n_stores = job->stores.n, k = (size_t)r->n_chain;
  int *renamed = PLAN_NEW(&r->arena, int, n_stores);
  struct plan_run made[MOST_CHAIN];
  if (renamed == NULL) return QUERN_STATUS_MEMORY;
  for (size_t s = 0; s < n_stores; s++) renamed[s] = -1;
  for (size_t i = 0; i < k; i++) QUERN_TRY(repeat(r, r->chain[i], q, renamed, &made[i]));
  /* only what was asked for, and what else is read from here on only, is read anew: the rest is alive anyway */
  int maker = r->life.first[store];
  for (size_t s = 0; s < n_stores; s++) {
    bool beside = r->life.first[s] == maker && is_idle(r, (int)s) && r->next[s] >= q;
    if ((int)s != store && !beside) renamed[s] = -1;
  }
  if (merges) merge(r, k, made, q, renamed);
  for (size_t at = (size_t)q; at < job->runs.n; at++) {
    struct plan_run *run = &job->runs.at[at];
    if (run->task < 0) continue;
    const struct plan_task *task = &job->tasks.at[run->task];
    bool changes = false;
    for (int i = 0; i < task->n_reads; i++) changes = changes || renamed[run->stores[i]] >= 0;
    if (!changes) continue;
    int all = task->n_reads + task->n_writes + task->n_works;
    int *stores = base_arena_copy(&job->arena, run->stores, (size_t)all * sizeof(int));
    if (stores == NULL) return QUERN_STATUS_MEMORY;
    for (int i = 0; i < task->n_reads; i++)
      if (renamed[stores[i]] >= 0) stores[i] = renamed[stores[i]];
    run->stores = stores;
  }
  if (!base_vec_reserve(job->heap, &job->runs, k)) return QUERN_STATUS_MEMORY;
  size_t n = (size_t)q;
  for (size_t at = (size_t)q; at < job->runs.n; at++)
    if (job->runs.at[at].task >= 0) job->runs.at[n++] = job->runs.at[at];
  job->runs.n = n;
  memmove(&job->runs.at[(size_t)q + k], &job->runs.at[q], (job->runs.n - (size_t)q) * sizeof *job->runs.at);
  memcpy(&job->runs.at[q], made, k * sizeof *made);
  job->runs.n += k;
  return QUERN_STATUS_OK;
}

/* A state to go back to. */
struct saved {
  struct plan_run *runs;
  size_t n_runs, n_stores;
};

static quern_status save(const struct plan_job *job, struct base_arena *arena, struct saved *saved) {
  *saved = (struct saved){base_arena_copy(arena, job->runs.at, job->runs.n * sizeof *job->runs.at), job->runs.n,
                          job->stores.n};
  return saved->runs != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static void restore(struct plan_job *job, const struct saved *saved) {
  memcpy(job->runs.at, saved->runs, saved->n_runs * sizeof *saved->runs);
  job->runs.n = saved->n_runs;
  job->stores.n = saved->n_stores;
  for (size_t s = 0; s < job->stores.n; s++) { /* versions were put in after the first: the newest are at the front */
    struct plan_store *store = &job->stores.at[s];
    while (store->next_version >= (int)saved->n_stores)
      store->next_version = job->stores.at[store->next_version].next_version;
  }
}

/* The candidates of a state, best first. */
static int list_candidates(struct remat *r, struct candidate *list) {
  int n = 0;
  for (int s = 0; s < (int)r->job->stores.n; s++) {
    int64_t held;
    double seconds;
    if (!is_idle(r, s) || !find_chain(r, s, r->next[s], &held, &seconds)) continue;
    int64_t freed = freed_by(r, s, r->next[s]) - held;
    if (freed <= 0) continue;
    struct candidate c = {s, r->next[s], (double)freed / seconds};
    int k = BASE_MIN(n, CANDIDATES - 1);
    if (n == CANDIDATES && list[k].score >= c.score) continue;
    for (; k > 0 && list[k - 1].score < c.score; k--) list[k] = list[k - 1];
    list[k] = c;
    n = BASE_MIN(n + 1, CANDIDATES);
  }
  return n;
}

/* One step: the best candidate that lowers the peak, or how often it is reached. *moved: whether there was one. */
static quern_status step(struct remat *r, bool *moved) {
  struct plan_job *job = r->job;
  struct candidate list[CANDIDATES];
  struct saved saved;
  struct base_arena arena;
  int64_t bound = r->life.bound, held;
  int peaks = count_peaks(r), n = list_candidates(r, list);
  double seconds;
  *moved = false;
  base_arena_init(&arena, job->heap);
  quern_status status = save(job, &arena, &saved);
  for (int i = 0; i < 2 * BASE_MIN(n, MOST_TRIES) && status == QUERN_STATUS_OK && !*moved; i++) {
    const struct candidate *c = &list[i / 2]; /* with merging, then without */
    if (!find_chain(r, c->store, c->next, &held, &seconds)) continue;
    status = apply(r, c->store, c->next, i % 2 == 0);
    if (status == QUERN_STATUS_OK) status = look(r);
    if (status != QUERN_STATUS_OK) break;
    *moved = r->life.bound < bound || (r->life.bound == bound && count_peaks(r) < peaks);
    if (*moved) break;
    restore(job, &saved);
    status = look(r);
  }
  base_arena_fini(&arena);
  return status;
}

/* ---- taking back ------------------------------------------------------------------------------------------------ */

/* The version of a store that is there before run at, the newest of them; -1: none. */
static int version_before(const struct remat *r, int store, int at) {
  const struct plan_job *job = r->job;
  int found = -1;
  for (int v = job->stores.at[store].version_of; v >= 0; v = job->stores.at[v].next_version) {
    if (v == store || r->life.first[v] > r->life.last[v] || r->life.first[v] >= at) continue;
    if (found < 0 || r->life.first[v] > r->life.first[found]) found = v;
  }
  return found;
}

/* Removes repetitions of which nothing is read. */
static quern_status drop_unread(struct remat *r) {
  struct plan_job *job = r->job;
  bool *read = PLAN_NEW(&r->arena, bool, job->stores.n);
  if (read == NULL) return QUERN_STATUS_MEMORY;
  size_t n = job->runs.n, kept = n;
  for (size_t at = n; at-- > 0;) {
    struct plan_run run = job->runs.at[at];
    const struct plan_task *task = &job->tasks.at[run.task];
    bool needed = !run.repeated;
    for (int i = 0; i < task->n_writes && !needed; i++) needed = read[run.stores[task->n_reads + i]];
    if (!needed) continue;
    for (int i = 0; i < task->n_reads; i++) read[run.stores[i]] = true;
    job->runs.at[--kept] = run;
  }
  memmove(job->runs.at, job->runs.at + kept, (n - kept) * sizeof *job->runs.at);
  job->runs.n = n - kept;
  return QUERN_STATUS_OK;
}

/* Lets those that read what a repetition made read what was there before. *good: that is possible. */
static quern_status take_back(struct remat *r, int at, bool *good) {
  struct plan_job *job = r->job;
  const struct plan_run run = job->runs.at[at];
  const struct plan_task *task = &job->tasks.at[run.task];
  int *renamed = PLAN_NEW(&r->arena, int, job->stores.n);
  if (renamed == NULL) return QUERN_STATUS_MEMORY;
  *good = true;
  for (int i = 0; i < task->n_writes; i++) {
    int s = run.stores[task->n_reads + i];
    if (job->stores.at[s].memory != PLAN_ARENA) continue;
    int before = version_before(r, s, at);
    *good = *good && before >= 0;
    renamed[s] = before + 1;
  }
  for (size_t k = (size_t)at + 1; k < job->runs.n && *good; k++) {
    const struct plan_task *reader = &job->tasks.at[job->runs.at[k].task];
    int n = reader->n_reads + reader->n_writes + reader->n_works, *stores = NULL;
    for (int i = 0; i < reader->n_reads; i++) {
      int to = renamed[job->runs.at[k].stores[i]] - 1;
      if (to < 0) continue;
      if (stores == NULL) stores = base_arena_copy(&job->arena, job->runs.at[k].stores, (size_t)n * sizeof(int));
      if (stores == NULL) return QUERN_STATUS_MEMORY;
      stores[i] = to;
    }
    if (stores != NULL) job->runs.at[k].stores = stores;
  }
  return drop_unread(r);
}

/* The repetition that takes longest among those shorter than *seconds, or as long and later than *at; -1: none. */
static int next_repeated(const struct plan_job *job, double seconds, int at) {
  int found = -1;
  double most = -1;
  for (int k = 0; k < (int)job->runs.n; k++) {
    if (!job->runs.at[k].repeated) continue;
    double own = job->tasks.at[job->runs.at[k].task].seconds;
    bool after = own < seconds || (own == seconds && k > at);
    if (after && own > most) {
      most = own;
      found = k;
    }
  }
  return found;
}

/* *done: it could be taken back, and no more than the limit is alive at a time. */
static quern_status try_take_back(struct remat *r, int at, int64_t limit, bool *done) {
  struct base_arena arena;
  struct saved saved;
  *done = false;
  base_arena_init(&arena, r->job->heap);
  quern_status status = save(r->job, &arena, &saved);
  if (status == QUERN_STATUS_OK) status = take_back(r, at, done);
  if (status == QUERN_STATUS_OK) status = look(r);
  *done = *done && r->life.bound <= limit;
  if (status == QUERN_STATUS_OK && !*done) {
    restore(r->job, &saved);
    status = look(r);
  }
  base_arena_fini(&arena);
  return status;
}

/* How far taking back has come: all repetitions that take longer have been tried. */
struct taken {
  struct saved state;
  double seconds;
  int at;
};

/* Takes repetitions back that the limit does not need after all, the longest first: some, and then it is seen whether they
** fit; where they do not, one by one. */
static quern_status prune(struct remat *r, int64_t limit) {
  struct plan_job *job = r->job;
  struct taken now = {.seconds = INFINITY, .at = -1}, good;
  int tries = 0, failed = 0, together = TOGETHER, waiting = 0;
  QUERN_TRY(look(r));
  QUERN_TRY(save(job, &job->arena, &now.state));
  good = now;
  while (tries++ < MOST_TAKEN_BACK && failed < MOST_FAILED) {
    bool done = false;
    int next = next_repeated(job, now.seconds, now.at);
    if (next >= 0) {
      now.at = next;
      now.seconds = job->tasks.at[job->runs.at[next].task].seconds;
      QUERN_TRY(try_take_back(r, next, limit, &done));
      now.at -= done ? 1 : 0; /* what followed has moved there */
      waiting += done ? 1 : 0;
    }
    if (next >= 0 && waiting < together) continue;
    int64_t total = 0;
    if (waiting > 0) QUERN_TRY(plan_assign_stores(job, &r->life, &r->arena, limit, NULL, &total));
    waiting = 0;
    if (total <= limit) {
      if (next < 0) return QUERN_STATUS_OK;
      QUERN_TRY(save(job, &job->arena, &now.state));
      good = now;
      together = BASE_MIN(2 * together, TOGETHER);
      continue;
    }
    restore(job, &good.state);
    QUERN_TRY(look(r));
    if (together == 1) { /* that one is left as it was */
      good.at = now.at + 1;
      good.seconds = now.seconds;
    }
    failed += together == 1 ? 1 : 0;
    now = good;
    together = 1;
  }
  restore(job, &good.state);
  return look(r);
}

/* ---- the way ------------------------------------------------------------------------------------------------- */

/* Walks from the first state to where the arena is at most limit. States with a bound under `under` are placed as well,
** and *least is the smallest arena of them; *lowest the smallest bound of all. hasty: after one that does not fit, those
** with nearly the same bound are not placed. */
static quern_status walk(struct remat *r, int64_t limit, int64_t under, bool hasty, int64_t *lowest, int64_t *least,
                         bool *fits) {
  bool moved = true;
  int64_t next = limit;
  size_t most = 8 * r->job->runs.n + 64;
  *lowest = *least = INT64_MAX;
  *fits = false;
  QUERN_TRY(look(r));
  for (size_t steps = 0; moved && steps < most; steps++) {
    int64_t total;
    *lowest = BASE_MIN(*lowest, r->life.bound);
    if (r->life.bound <= next || r->life.bound < BASE_MIN(under, *least)) {
      QUERN_TRY(plan_assign_stores(r->job, &r->life, &r->arena, 0, NULL, &total));
      *least = BASE_MIN(*least, total);
      *fits = total <= limit;
      if (*fits) return QUERN_STATUS_OK;
      if (hasty) next = r->life.bound - (total - limit) / 2;
    }
    QUERN_TRY(step(r, &moved));
  }
  return QUERN_STATUS_OK;
}

quern_status plan_rematerialize(struct plan_job *job, int64_t limit, int64_t *least, bool *fits) {
  struct remat r = {.job = job};
  struct saved first;
  int64_t lowest, under;
  base_arena_init(&r.arena, job->heap);
  quern_status status = save(job, &job->arena, &first);
  if (status == QUERN_STATUS_OK) status = walk(&r, limit, 0, true, &lowest, least, fits);
  if (status == QUERN_STATUS_OK && !*fits) { /* twice more, for the smallest arena on the way */
    restore(job, &first);
    status = walk(&r, -1, lowest + 1, false, &lowest, &under, fits);
    restore(job, &first);
    if (status == QUERN_STATUS_OK) status = walk(&r, -1, under, false, &lowest, least, fits);
    *least = BASE_MIN(*least, under);
  }
  if (status == QUERN_STATUS_OK && !*fits && *least <= limit) { /* it was in too much haste */
    restore(job, &first);
    status = walk(&r, limit, 0, false, &lowest, &under, fits);
  }
  if (status == QUERN_STATUS_OK && *fits) status = prune(&r, limit);
  base_arena_fini(&r.arena);
  return status;
}
