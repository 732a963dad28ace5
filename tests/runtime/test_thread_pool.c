/* tests/runtime/test_thread_pool.c -- the thread pool: each task once, whoever calls, however disturbed (run it under tsan) */
#define _GNU_SOURCE /* sched_setaffinity */
#include "base/test.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "runtime/runtime_int.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define TSAN 1
#endif

enum { MOST = 8, TASKS = 5000 };

static struct base_heap heap;
static char text[1024];

static int setup(void **state) {
  (void)state;
  base_heap_init(&heap, &memory_allocator);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  return memory_live == 0 ? 0 : -1;
}

static struct rt_pool *pool_of(int threads) {
  struct rt_pool *pool = NULL;
  EXPECT_OK(rt_pool_new(&pool, &heap, threads));
  assert_int_equal(rt_pool_threads(pool), threads);
  return pool;
}

struct tally {
  int threads;
  _Atomic int seen[TASKS]; /* how often each task was run */
  _Atomic int on[MOST];    /* who is in a task as that thread */
  _Atomic int wrong, ranges;
  int sums[MOST]; /* without atomics: each thread has its own */
};

static void count_tasks(void *arg, int64_t begin, int64_t end, int thread) {
  struct tally *tally = arg;
  bool good = thread >= 0 && thread < tally->threads && begin >= 0 && begin < end && end <= TASKS;
  if (!good || atomic_fetch_add(&tally->on[thread], 1) != 0) {
    atomic_fetch_add(&tally->wrong, 1);
    return;
  }
  for (int64_t i = begin; i < end; i++) atomic_fetch_add(&tally->seen[i], 1);
  tally->sums[thread] += (int)(end - begin);
  atomic_fetch_add(&tally->ranges, 1);
  atomic_fetch_sub(&tally->on[thread], 1);
}

/* Runs n tasks; each is run once, by one thread at a time as each number. */
static void expect_once(struct rt_pool *pool, int n) {
  static struct tally tally;
  memset(&tally, 0, sizeof tally);
  tally.threads = rt_pool_threads(pool);
  rt_pool_run(pool, n, count_tasks, &tally);
  assert_int_equal(tally.wrong, 0);
  int sum = 0;
  for (int i = 0; i < TASKS; i++) assert_int_equal(tally.seen[i], i < n);
  for (int i = 0; i < MOST; i++) sum += tally.sums[i];
  assert_int_equal(sum, n);
}

static void each_task_once(void **state) {
  (void)state;
  static const int sizes[] = {0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 100, 1000, TASKS};
  for (int threads = 1; threads <= MOST; threads++) {
    struct rt_pool *pool = pool_of(threads);
    for (size_t i = 0; i < BASE_COUNT(sizes); i++) expect_once(pool, sizes[i]);
    rt_pool_run(pool, -1, count_tasks, NULL);
    rt_pool_free(pool);
  }
}

static void one_range(void *arg, int64_t begin, int64_t end, int thread) {
  int64_t *got = arg;
  got[0] = begin;
  got[1] = end;
  got[2] = thread;
  got[3]++;
}

static void one_thread_takes_all(void **state) {
  (void)state;
  struct rt_pool *pool = pool_of(1);
  int64_t got[4] = {0};
  rt_pool_run(pool, INT64_MAX, one_range, got);
  assert_true(got[0] == 0 && got[1] == INT64_MAX && got[2] == 0 && got[3] == 1);
  rt_pool_free(pool);
}

static void add_length(void *arg, int64_t begin, int64_t end, int thread) {
  (void)thread;
  atomic_fetch_add((_Atomic uint64_t *)arg, (uint64_t)(end - begin));
}

static void very_many_tasks(void **state) {
  (void)state;
  struct rt_pool *pool = pool_of(3);
  _Atomic uint64_t sum = 0;
  rt_pool_run(pool, INT64_MAX, add_length, &sum);
  assert_true(sum == INT64_MAX);
  rt_pool_free(pool);
}

static void disturbed(void **state) {
  (void)state;
  for (int threads = 2; threads <= MOST; threads += 3) {
    struct rt_pool *pool = pool_of(threads);
    for (uint64_t seed = 1; seed <= 10; seed++) {
      rt_pool_disturb(pool, seed);
      expect_once(pool, 1 + (int)seed * 37);
    }
    rt_pool_disturb(pool, 0);
    expect_once(pool, 100);
    rt_pool_free(pool);
  }
}

/* ---- many launches, and pauses between them ------------------------------------------------------------ */

static void many_launches(void **state) {
  (void)state;
  struct rt_pool *pool = pool_of(2);
  int64_t launches = 100000;
  _Atomic uint64_t sum = 0;
  double start = base_clock();
  for (int64_t i = 0; i < launches; i++) rt_pool_run(pool, 1 + i % 4, add_length, &sum);
  double took = base_clock() - start;
  assert_true(sum == (uint64_t)launches / 4 * 10);
  print_message("%.2f us a launch of 1 to 4 tasks on 2 threads\n", took / (double)launches * 1e6);
  rt_pool_free(pool);
}

static void nap(long microseconds) { nanosleep(&(struct timespec){.tv_nsec = microseconds * 1000}, NULL); }

static void sleep_between(void **state) {
  (void)state;
  struct rt_pool *pool = pool_of(4);
  for (int i = 0; i < 200; i++) {
    nap(i % 100); /* around the time that workers spin */
    expect_once(pool, 5 + i);
  }
  nap(20000);
  expect_once(pool, 50);
  rt_pool_free(pool);
}

/* ---- everybody helps ----------------------------------------------------------------------------------- */

struct meeting {
  _Atomic int arrived, missed;
  int of;
};

/* Each task waits until all threads are in one: no thread can run two. */
static void meet(void *arg, int64_t begin, int64_t end, int thread) {
  struct meeting *meeting = arg;
  (void)thread;
  atomic_fetch_add(&meeting->arrived, (int)(end - begin));
  double stop = base_clock() + 20;
  while (atomic_load(&meeting->arrived) < meeting->of && base_clock() < stop) nap(50);
  if (atomic_load(&meeting->arrived) < meeting->of) atomic_fetch_add(&meeting->missed, 1);
}

static void all_threads_work(void **state) {
  (void)state;
  for (int threads = 2; threads <= MOST; threads++) {
    struct rt_pool *pool = pool_of(threads);
    for (int i = 0; i < 20; i++) {
      struct meeting meeting = {.of = threads};
      if (i % 2) nap(300); /* so that they sleep */
      rt_pool_run(pool, threads, meet, &meeting);
      assert_int_equal(meeting.missed, 0);
      assert_int_equal(meeting.arrived, threads);
    }
    rt_pool_free(pool);
  }
}

enum { LONG_TASKS = 64, LONG_RANGE = 8 }; /* a share is half of them, its first range a quarter of that */

/* Task 0 lasts until the other thread has done all that is not in the same range. */
static void one_slow(void *arg, int64_t begin, int64_t end, int thread) {
  _Atomic int *done = arg;
  (void)thread;
  double stop = base_clock() + 20;
  while (begin == 0 && atomic_load(done) < LONG_TASKS - LONG_RANGE && base_clock() < stop) nap(50);
  atomic_fetch_add(done, begin == 0 && base_clock() >= stop ? -1000 : (int)(end - begin));
}

static void others_help(void **state) {
  (void)state;
  struct rt_pool *pool = pool_of(2);
  _Atomic int done = 0;
  rt_pool_run(pool, LONG_TASKS, one_slow, &done);
  assert_int_equal(done, LONG_TASKS);
  rt_pool_free(pool);
}

/* ---- calls from everywhere ----------------------------------------------------------------------------- */

struct nest {
  struct rt_pool *pool, *other;
  _Atomic int wrong, inner;
};

static void inner_tasks(void *arg, int64_t begin, int64_t end, int thread) {
  int *got = arg;
  got[0] = (int)(end - begin);
  got[1] = thread;
}

static void nested_tasks(void *arg, int64_t begin, int64_t end, int thread) {
  struct nest *nest = arg;
  for (int64_t i = begin; i < end; i++) {
    int got[2] = {0, -1};
    rt_pool_run(nest->pool, 11, inner_tasks, got);
    if (got[0] != 11 || got[1] != thread) atomic_fetch_add(&nest->wrong, 1);
    rt_pool_run(nest->other, 7, inner_tasks, got);
    if (got[0] != 7 || got[1] != 0) atomic_fetch_add(&nest->wrong, 1);
    atomic_fetch_add(&nest->inner, 1);
  }
}

static void nested(void **state) {
  (void)state;
  struct nest nest = {.pool = pool_of(4), .other = pool_of(2)};
  for (int i = 0; i < 50; i++) rt_pool_run(nest.pool, 20, nested_tasks, &nest);
  assert_int_equal(nest.wrong, 0);
  assert_int_equal(nest.inner, 1000);
  expect_once(nest.pool, 100);
  expect_once(nest.other, 100);
  rt_pool_free(nest.other);
  rt_pool_free(nest.pool);
}

struct caller {
  struct base_thread thread;
  struct rt_pool *pool;
  _Atomic int *busy; /* one counter for all: runs do not overlap */
  uint64_t sum;
  int wrong;
};

static void shared_tasks(void *arg, int64_t begin, int64_t end, int thread) {
  struct caller *caller = arg;
  if (begin == 0) caller->wrong += atomic_fetch_add(caller->busy, 1) != 0;
  if (begin == 0) nap(20);
  if (begin == 0) atomic_fetch_sub(caller->busy, 1);
  if (thread == 0) caller->sum += (uint64_t)(end - begin); /* only ever on the caller's own thread */
}

static void call_often(void *arg) {
  struct caller *caller = arg;
  for (int i = 0; i < 200; i++) rt_pool_run(caller->pool, 1 + i % 10, shared_tasks, caller);
}

static void several_callers(void **state) {
  (void)state;
  struct rt_pool *pool = pool_of(3);
  struct caller callers[5];
  _Atomic int busy = 0;
  memset(callers, 0, sizeof callers);
  for (int i = 0; i < 5; i++) {
    callers[i].pool = pool;
    callers[i].busy = &busy;
    EXPECT_OK(base_thread_start(&callers[i].thread, call_often, &callers[i]));
  }
  for (int i = 0; i < 5; i++) base_thread_join(&callers[i].thread);
  for (int i = 0; i < 5; i++) assert_int_equal(callers[i].wrong, 0);
  rt_pool_free(pool);
}

/* ---- where workers run --------------------------------------------------------------------------------- */

struct place {
  struct meeting meeting;
  _Atomic int cpu;        /* of the worker */
  cpu_set_t put, allowed; /* where the worker puts itself, unless that is empty; where it may run then */
};

static void note_place(void *arg, int64_t begin, int64_t end, int thread) {
  struct place *place = arg;
  if (thread == 1) {
    if (CPU_COUNT(&place->put) > 0) sched_setaffinity(0, sizeof place->put, &place->put);
    sched_getaffinity(0, sizeof place->allowed, &place->allowed);
    atomic_store(&place->cpu, base_thread_cpu());
  }
  meet(&place->meeting, begin, end, thread);
}

/* Two tasks on two threads, the caller on that CPU, after the worker went to sleep. */
static void run_from(struct rt_pool *pool, int cpu, struct place *place) {
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET((size_t)cpu, &here);
  assert_int_equal(sched_setaffinity(0, sizeof here, &here), 0);
  nap(5000);
  place->meeting = (struct meeting){.of = 2};
  place->cpu = -1;
  rt_pool_run(pool, 2, note_place, place);
  assert_int_equal(place->meeting.missed, 0);
}

/* A worker that is woken does not run where the caller does; one that somebody else has put somewhere stays there. */
static void workers_keep_off(void **state) {
  (void)state;
  cpu_set_t all;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  struct rt_pool *pool = pool_of(2);
  struct place place = {.cpu = -1};
  int first = 0, second = 0;
  while (!CPU_ISSET((size_t)first, &all)) first++;
  if (rt_cpus() < 2) {
    rt_pool_free(pool);
    skip();
  }
  for (second = first + 1; !CPU_ISSET((size_t)second, &all);) second++;
  for (int i = 0; i < 6; i++) {
    int here = i % 2 == 0 ? first : second;
    run_from(pool, here, &place);
    assert_int_not_equal(place.cpu, here);
    assert_false(CPU_ISSET((size_t)here, &place.allowed));
    assert_int_equal(CPU_COUNT(&place.allowed), CPU_COUNT(&all) - 1);
  }
  CPU_SET((size_t)second, &place.put); /* where the pool would not put it */
  run_from(pool, second, &place);
  CPU_ZERO(&place.put);
  for (int i = 0; i < 2; i++) {
    run_from(pool, i == 0 ? first : second, &place);
    assert_int_equal(place.cpu, second);
    assert_int_equal(CPU_COUNT(&place.allowed), 1);
  }
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
  rt_pool_free(pool);
}

/* ---- the process around it ----------------------------------------------------------------------------- */

static struct rt_pool *parents;

static void first_range(void *arg, int64_t begin, int64_t end, int thread) {
  (void)thread;
  if (begin == 0) *(int *)arg = (int)end;
}

static void in_a_child(void) {
  int64_t got[4] = {0};
  rt_pool_run(parents, 9, one_range, got);
  CHILD_CHECK(got[0] == 0 && got[1] == 9 && got[2] == 0 && got[3] == 1);
  int n = 0;
  rt_pool_run(parents, 4, first_range, &n);
  CHILD_CHECK(n == 4);
  rt_pool_free(parents);
#ifndef TSAN /* which allows no thread in a child of a process that has several */
  struct rt_pool *own;
  CHILD_CHECK(rt_pool_new(&own, &heap, 3) == QUERN_STATUS_OK); /* pools of its own have threads */
  struct meeting meeting = {.of = 3};
  rt_pool_run(own, 3, meet, &meeting);
  CHILD_CHECK(meeting.missed == 0);
  rt_pool_free(own);
#endif
}

static void after_fork(void **state) {
  (void)state;
  parents = pool_of(4);
  expect_once(parents, 40);
  int status = in_child(in_a_child, text, sizeof text);
  if (status != 0) fail_msg("child ended with %d: %s", status, text);
  expect_once(parents, 40);
  rt_pool_free(parents);
}

struct host {
  _Atomic int signals_here, wrong_rounding;
  pthread_t main;
};
static struct host host;

static void take_signal(int number) {
  (void)number;
  if (pthread_equal(pthread_self(), host.main)) atomic_fetch_add(&host.signals_here, 1);
}

static void check_host(void *arg, int64_t begin, int64_t end, int thread) {
  (void)begin;
  (void)end;
  if (thread != 0 && fegetround() != FE_TONEAREST) atomic_fetch_add(&host.wrong_rounding, 1);
  meet(arg, begin, end, thread);
}

/* Workers leave the host's signals to the host, and do not take over its way of rounding. */
static void host_is_left_alone(void **state) {
  (void)state;
  host.main = pthread_self();
  struct sigaction old, mine = {.sa_handler = take_signal};
  assert_int_equal(sigaction(SIGUSR1, &mine, &old), 0);
  fesetround(FE_UPWARD);
  struct rt_pool *pool = pool_of(4);
  struct meeting meeting = {.of = 4};
  rt_pool_run(pool, 4, check_host, &meeting);
  assert_int_equal(fegetround(), FE_UPWARD);
  fesetround(FE_TONEAREST);
  for (int i = 0; i < 50; i++) assert_int_equal(kill(getpid(), SIGUSR1), 0);
  rt_pool_free(pool);
  assert_int_equal(sigaction(SIGUSR1, &old, NULL), 0);
  assert_int_equal(host.wrong_rounding, 0);
  assert_true(host.signals_here == 50);
}

static void wrong_sizes(void **state) {
  (void)state;
  struct rt_pool *pool = (struct rt_pool *)&heap;
  EXPECT_ERROR(rt_pool_new(&pool, &heap, 0), INVALID, "0 threads; 1 to 1024");
  assert_null(pool);
  EXPECT_ERROR(rt_pool_new(&pool, &heap, 1025), INVALID, "1025 threads");
  rt_pool_free(NULL);
}

static void faults(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    struct rt_pool *pool;
    fault_begin(&fault);
    quern_status status = rt_pool_new(&pool, &heap, 3);
    if (status == QUERN_STATUS_OK) expect_once(pool, 10); /* allocates nothing */
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    rt_pool_free(pool);
    assert_int_equal(memory_live, 0);
  }
  assert_int_equal(fault.n, 2);
}

#define POOL_TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      POOL_TEST(each_task_once),     POOL_TEST(one_thread_takes_all), POOL_TEST(very_many_tasks),
      POOL_TEST(disturbed),          POOL_TEST(many_launches),        POOL_TEST(sleep_between),
      POOL_TEST(all_threads_work),   POOL_TEST(others_help),          POOL_TEST(nested),
      POOL_TEST(several_callers),    POOL_TEST(workers_keep_off),     POOL_TEST(after_fork),
      POOL_TEST(host_is_left_alone), POOL_TEST(wrong_sizes),          POOL_TEST(faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
