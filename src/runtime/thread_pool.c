/* runtime/thread_pool.c -- the thread pool: short spin, then sleep; ranges of tasks taken by whoever is free
** A run opens a job. Workers that are awake join it, take ranges, and leave; the caller does the same, closes the job
** when nothing is left to take, and waits for those who joined. A worker that wakes too late finds the job closed:
** nobody waits for it. Each thread starts in its own share of the tasks, the same in every run of as many, so that
** data stays in its core's cache; then it helps others.
** keeps: job fields are written only while the job is closed and nobody is in it
** tests: tests/runtime/test_thread_pool.c (also under tsan)
*/
#include "runtime/runtime_int.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#define SPIN_SECONDS 40e-6
#define ROOM_SECONDS 1e-3
enum { PAUSES = 16, SHARE_PARTS = 4 }; /* between looks at the clock; a range is that part of what is left of a share */

/* The state word: who is in the job, whether it is open, whether the pool ends, the number of the job. */
#define MEMBERS UINT64_C(0xffff)
#define OPEN (MEMBERS + 1)
#define QUIT (2 * OPEN)
#define JOB (4 * OPEN)

struct share {
  _Alignas(64) _Atomic int64_t next;
  int64_t end;
};

struct worker {
  struct base_thread thread;
  struct rt_pool *pool;
  int number; /* 1 .. threads - 1 */
};

struct rt_pool {
  struct base_heap *heap;
  size_t bytes;
  int threads;
  bool makes_room; /* see make_room */
  atomic_bool spins;
  unsigned forks; /* of the process when the pool was made */
  struct share *shares;
  struct worker *workers;
  struct base_cpu_set allowed; /* to the workers */
  int avoided;                 /* the CPU among them that workers keep off; -1: none */
  double avoided_at;           /* since then */
  pthread_mutex_t callers;     /* one run at a time */
  pthread_mutex_t lock;        /* of those who sleep */
  pthread_cond_t wake, done;
  /* the job */
  rt_task *task;
  void *arg;
  int n_shares;
  _Alignas(64) _Atomic uint64_t state;
  _Alignas(64) _Atomic int sleepers; /* workers that sleep, or are about to look at the state a last time */
  _Atomic bool caller_sleeps;
  _Atomic uint64_t disturb, disturbances;
};

/* What this thread is in: a task of which pool, as which of its threads. */
static _Thread_local struct {
  const struct rt_pool *pool;
  int thread;
} inside;

/* ---- fork: the child has no workers -------------------------------------------------------------------- */

static _Atomic unsigned forks;
static int fork_error;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void count_fork(void) { atomic_fetch_add(&forks, 1); }
static void watch_forks(void) { fork_error = pthread_atfork(NULL, NULL, count_fork); }

/* ---- waiting ------------------------------------------------------------------------------------------- */

static void pause_once(void) {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Spins until the state is as wanted or the time is over; whether it is. */
typedef bool is_ready(uint64_t state, uint64_t job);
static bool spin(const struct rt_pool *pool, is_ready *ready, uint64_t job) {
  if (ready(atomic_load(&pool->state), job)) return true;
  if (!pool->spins) return false;
  double stop = base_clock() + SPIN_SECONDS;
  do {
    for (int i = 0; i < PAUSES; i++) {
      pause_once();
      if (ready(atomic_load_explicit(&pool->state, memory_order_acquire), job)) return true;
    }
  } while (base_clock() < stop);
  return false;
}

static bool has_news(uint64_t state, uint64_t job) { return (state & QUIT) || ((state & OPEN) && state / JOB != job); }

static bool is_empty(uint64_t state, uint64_t job) {
  (void)job;
  return (state & MEMBERS) == 0;
}

/* Waits for a job other than that one, or the end of the pool. */
static void wait_for_news(struct rt_pool *pool, uint64_t job) {
  if (spin(pool, has_news, job)) return;
  pthread_mutex_lock(&pool->lock);
  atomic_fetch_add(&pool->sleepers, 1);
  while (!has_news(atomic_load(&pool->state), job)) pthread_cond_wait(&pool->wake, &pool->lock);
  atomic_fetch_sub(&pool->sleepers, 1);
  pthread_mutex_unlock(&pool->lock);
}

/* Wakes sleepers, after the state was changed: either they have seen that, or they wait already. */
static void wake_sleepers(struct rt_pool *pool, int most) {
  int sleepers = atomic_load(&pool->sleepers);
  if (sleepers == 0) return;
  pthread_mutex_lock(&pool->lock);
  pthread_mutex_unlock(&pool->lock);
  if (most >= sleepers) pthread_cond_broadcast(&pool->wake);
  for (int i = 0; most < sleepers && i < most; i++) pthread_cond_signal(&pool->wake);
}

/* Before sleepers are woken: keeps them off the caller's processor. Some systems start a woken thread on the CPU
** of the one that woke it, and take milliseconds to see that another one is idle. Not more often than pays off: callers may
** take turns, and each worker costs system calls. Never again once somebody else has said where a worker may run. */
static void make_room(struct rt_pool *pool) {
  if (!pool->makes_room || atomic_load(&pool->sleepers) == 0) return;
  int cpu = base_thread_cpu(), before = pool->avoided;
  if (cpu == before) return;
  double now = base_clock();
  if (before >= 0 && now - pool->avoided_at < ROOM_SECONDS) return;
  pool->avoided = cpu;
  pool->avoided_at = now;
  for (int i = 0; i < pool->threads - 1 && pool->makes_room; i++)
    pool->makes_room = base_thread_keep_off(&pool->workers[i].thread, &pool->allowed, before, cpu);
}

/* Waits until nobody is in the closed job. */
static void wait_for_members(struct rt_pool *pool) {
  if (spin(pool, is_empty, 0)) return;
  pthread_mutex_lock(&pool->lock);
  atomic_store(&pool->caller_sleeps, true);
  while (!is_empty(atomic_load(&pool->state), 0)) pthread_cond_wait(&pool->done, &pool->lock);
  atomic_store(&pool->caller_sleeps, false);
  pthread_mutex_unlock(&pool->lock);
}

/* ---- tasks --------------------------------------------------------------------------------------------- */

/* A number for the disturbance that a test asked for; 0: none was. */
static uint64_t disturb(struct rt_pool *pool) {
  uint64_t seed = atomic_load_explicit(&pool->disturb, memory_order_relaxed);
  if (seed == 0) return 0;
  uint64_t x = base_hash_u64(seed, atomic_fetch_add(&pool->disturbances, 1));
  if (x % 4 == 0) sched_yield();
  if (x % 16 == 1) nanosleep(&(struct timespec){.tv_nsec = (long)(x >> 32) % 100000}, NULL);
  return x | 1;
}

/* Runs ranges of tasks until none are left: those of the thread's own share first. */
static void take_ranges(struct rt_pool *pool, int thread) {
  inside.pool = pool;
  inside.thread = thread;
  for (int i = 0; i < pool->n_shares; i++) {
    struct share *share = &pool->shares[(thread + i) % pool->n_shares];
    for (;;) {
      uint64_t x = disturb(pool);
      int64_t at = atomic_load_explicit(&share->next, memory_order_relaxed), left = share->end - at;
      if (left <= 0) break;
      int64_t n = BASE_MAX(left / SHARE_PARTS, 1);
      if (x != 0) n = 1 + (int64_t)(x >> 16) % n;
      if (atomic_compare_exchange_weak_explicit(&share->next, &at, at + n, memory_order_relaxed, memory_order_relaxed))
        pool->task(pool->arg, at, at + n, thread);
    }
  }
  inside.pool = NULL;
}

static void run_worker(void *arg) {
  const struct worker *worker = arg;
  struct rt_pool *pool = worker->pool;
  uint64_t job = 0;
  fesetenv(FE_DFL_ENV);
  for (;;) {
    wait_for_news(pool, job);
    disturb(pool);
    uint64_t state = atomic_load(&pool->state);
    if (state & QUIT) return;
    if (!has_news(state, job) || !atomic_compare_exchange_strong(&pool->state, &state, state + 1)) continue;
    job = state / JOB;
    take_ranges(pool, worker->number);
    state = atomic_fetch_sub(&pool->state, 1);
    if ((state & (OPEN | MEMBERS)) == 1 && atomic_load(&pool->caller_sleeps)) {
      pthread_mutex_lock(&pool->lock);
      pthread_mutex_unlock(&pool->lock);
      pthread_cond_signal(&pool->done);
    }
  }
}

/* n tasks as shares of the same size, but for the first ones, which have one more. */
static void deal(struct rt_pool *pool, int64_t n) {
  int shares = n < pool->threads ? (int)n : pool->threads;
  int64_t begin = 0;
  for (int i = 0; i < shares; i++) {
    atomic_store_explicit(&pool->shares[i].next, begin, memory_order_relaxed);
    begin += n / shares + (i < n % shares);
    pool->shares[i].end = begin;
  }
  pool->n_shares = shares;
}

void rt_pool_run(struct rt_pool *pool, int64_t n, rt_task *task, void *arg) {
  if (n <= 0) return;
  if (inside.pool || pool->threads == 1 || pool->forks != atomic_load_explicit(&forks, memory_order_relaxed)) {
    task(arg, 0, n, inside.pool == pool ? inside.thread : 0);
    return;
  }
  pthread_mutex_lock(&pool->callers);
  pool->task = task;
  pool->arg = arg;
  deal(pool, n);
  if (n > 1) {
    make_room(pool);
    atomic_store(&pool->state, (atomic_load(&pool->state) / JOB + 1) * JOB + OPEN);
    wake_sleepers(pool, pool->n_shares - 1);
  }
  take_ranges(pool, 0);
  if (n > 1) {
    atomic_fetch_and(&pool->state, ~OPEN);
    wait_for_members(pool);
  }
  pthread_mutex_unlock(&pool->callers);
}

/* ---- making and ending --------------------------------------------------------------------------------- */

/* Starts the workers: how many run. */
static int start_workers(struct rt_pool *pool, quern_status *status) {
  int n = 0;
  *status = QUERN_STATUS_OK;
  while (n < pool->threads - 1 && *status == QUERN_STATUS_OK) {
    struct worker *worker = &pool->workers[n];
    *worker = (struct worker){.pool = pool, .number = n + 1};
    *status = base_thread_start(&worker->thread, run_worker, worker);
    n += *status == QUERN_STATUS_OK;
  }
  return n;
}

static void end_workers(struct rt_pool *pool, int n) {
  atomic_fetch_or(&pool->state, QUIT);
  wake_sleepers(pool, pool->threads);
  for (int i = 0; i < n; i++) base_thread_join(&pool->workers[i].thread);
  pthread_cond_destroy(&pool->done);
  pthread_cond_destroy(&pool->wake);
  pthread_mutex_destroy(&pool->lock);
  pthread_mutex_destroy(&pool->callers);
}

quern_status rt_pool_new(struct rt_pool **out, struct base_heap *heap, int threads) {
  *out = NULL;
  QUERN_CHECK(threads >= 1 && threads <= RT_MAX_THREADS, INVALID, "%d threads; 1 to %d can be had", threads,
              RT_MAX_THREADS);
  pthread_once(&fork_once, watch_forks);
  QUERN_CHECK(fork_error == 0, MEMORY, "no memory to watch for forks");
  size_t shares = (size_t)threads * sizeof(struct share), workers = (size_t)(threads - 1) * sizeof(struct worker);
  size_t bytes = sizeof(struct rt_pool) + shares + workers;
  struct rt_pool *pool = base_alloc_zero(heap, bytes);
  if (!pool) return QUERN_STATUS_MEMORY;
  pool->heap = heap;
  pool->bytes = bytes;
  pool->threads = threads;
  pool->forks = atomic_load(&forks);
  pool->shares = (struct share *)(pool + 1);
  pool->workers = (struct worker *)(pool->shares + threads);
  if (threads > 1) {
    pool->makes_room = threads <= rt_cpus();
    pool->spins = pool->makes_room;
    pool->avoided = -1;
    base_thread_allowed(&pool->allowed);
    pthread_mutex_init(&pool->callers, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    quern_status status;
    int started = start_workers(pool, &status);
    if (status != QUERN_STATUS_OK) {
      end_workers(pool, started);
      base_free(heap, pool, bytes);
      return status;
    }
  }
  *out = pool;
  return QUERN_STATUS_OK;
}

void rt_pool_free(struct rt_pool *pool) {
  if (!pool) return;
  if (pool->threads > 1 && pool->forks == atomic_load(&forks)) end_workers(pool, pool->threads - 1);
  base_free(pool->heap, pool, pool->bytes);
}

int rt_pool_threads(const struct rt_pool *pool) { return pool->threads; }

void rt_pool_sleep(struct rt_pool *pool) { pool->spins = false; }

void rt_pool_disturb(struct rt_pool *pool, uint64_t seed) { atomic_store(&pool->disturb, seed); }
