/* tests/base/test_thread.c -- threads, CPUs, the clock */
#define _GNU_SOURCE
#include "base/test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

static void add_one(void *arg) {
  int *number = arg;
  *number += 1;
}

static void test_start_join(void **state) {
  (void)state;
  struct base_thread threads[8];
  int numbers[8];
  for (int i = 0; i < 8; i++) {
    numbers[i] = 10 * i;
    assert_int_equal(base_thread_start(&threads[i], add_one, &numbers[i]), QUERN_STATUS_OK);
  }
  for (int i = 0; i < 8; i++) base_thread_join(&threads[i]);
  for (int i = 0; i < 8; i++) assert_int_equal(numbers[i], 10 * i + 1);
  base_thread_join(&threads[0]); /* a second time does nothing */
}

static void remember(void *arg) { *(pthread_t *)arg = pthread_self(); }

static void test_is_another_thread(void **state) {
  (void)state;
  struct base_thread thread;
  pthread_t self = pthread_self();
  assert_int_equal(base_thread_start(&thread, remember, &self), QUERN_STATUS_OK);
  base_thread_join(&thread);
  assert_false(pthread_equal(self, pthread_self()));
}

static void test_cannot_start(void **state) {
  (void)state;
  struct base_thread thread;
  pthread_attr_t normal, huge;
  int number = 0;
  assert_int_equal(pthread_getattr_default_np(&normal), 0);
  assert_int_equal(pthread_attr_init(&huge), 0);
  assert_int_equal(pthread_attr_setstacksize(&huge, (size_t)1 << 50), 0);
  assert_int_equal(pthread_setattr_default_np(&huge), 0);
  quern_status status = base_thread_start(&thread, add_one, &number);
  assert_int_equal(pthread_setattr_default_np(&normal), 0);
  assert_int_equal(status, QUERN_STATUS_MEMORY);
  assert_non_null(strstr(quern_last_error(), "thread"));
  base_thread_join(&thread);
  assert_int_equal(number, 0);
  pthread_attr_destroy(&normal);
  pthread_attr_destroy(&huge);
}

static void test_cpus(void **state) {
  (void)state;
  cpu_set_t all, one;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  assert_int_equal(base_thread_cpu_count(), CPU_COUNT(&all));
  CPU_ZERO(&one);
  for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  }
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  int n = base_thread_cpu_count();
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
  assert_int_equal(n, 1);
}

/* ---- where a thread may run ------------------------------------------------------------------------------ */

static cpu_set_t as_cpus(const struct base_cpu_set *set) {
  cpu_set_t cpus;
  memcpy(&cpus, set, sizeof cpus);
  return cpus;
}

static cpu_set_t affinity_of(const struct base_thread *thread) {
  pthread_t handle;
  cpu_set_t cpus;
  memcpy(&handle, thread->handle, sizeof handle);
  assert_int_equal(pthread_getaffinity_np(handle, sizeof cpus, &cpus), 0);
  return cpus;
}

struct runner {
  atomic_bool stop;
  atomic_int turns;
  atomic_int on; /* the CPU it was on in the last turn */
};

static void run_until_stopped(void *arg) {
  struct runner *runner = arg;
  while (!atomic_load(&runner->stop)) {
    atomic_store(&runner->on, base_thread_cpu());
    atomic_fetch_add(&runner->turns, 1);
    sched_yield();
  }
}

/* Where it is, once it has had a turn that began after this call. */
static int cpu_of(struct runner *runner) {
  int turns = atomic_load(&runner->turns);
  double stop = base_clock() + 20;
  while (atomic_load(&runner->turns) < turns + 2 && base_clock() < stop) sched_yield();
  return atomic_load(&runner->on);
}

static void test_allowed(void **state) {
  (void)state;
  struct base_cpu_set set;
  base_thread_allowed(&set);
  cpu_set_t cpus = as_cpus(&set), all;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  assert_true(CPU_EQUAL(&cpus, &all));
  assert_int_equal(CPU_COUNT(&cpus), base_thread_cpu_count());
  int here = base_thread_cpu();
  assert_true(here >= 0 && CPU_ISSET((size_t)here, &cpus));
}

static void test_keep_off(void **state) {
  (void)state;
  struct base_cpu_set set;
  struct base_thread thread;
  struct runner runner = {.on = -1};
  base_thread_allowed(&set);
  cpu_set_t all = as_cpus(&set), now;
  if (CPU_COUNT(&all) < 2) skip();
  EXPECT_OK(base_thread_start(&thread, run_until_stopped, &runner));
  int before = -1, wrong = 0, mask_wrong = 0;
  for (int i = 0; i < CPU_SETSIZE; i++) {
    if (!CPU_ISSET((size_t)i, &all)) continue;
    mask_wrong += !base_thread_keep_off(&thread, &set, before, i);
    before = i;
    now = affinity_of(&thread);
    wrong += cpu_of(&runner) == i;
    mask_wrong += CPU_ISSET((size_t)i, &now) || CPU_COUNT(&now) != CPU_COUNT(&all) - 1;
  }
  mask_wrong += !base_thread_keep_off(&thread, &set, before, -1); /* off none */
  now = affinity_of(&thread);
  mask_wrong += !CPU_EQUAL(&now, &all);
  atomic_store(&runner.stop, true);
  base_thread_join(&thread);
  assert_int_equal(wrong, 0);
  assert_int_equal(mask_wrong, 0);
}

/* Of one CPU there is nothing to keep off; and where somebody else has put the thread, it stays. */
static void test_keep_off_leaves(void **state) {
  (void)state;
  struct base_cpu_set set, one = {{0}};
  struct base_thread thread;
  struct runner runner = {.on = -1};
  base_thread_allowed(&set);
  cpu_set_t all = as_cpus(&set), single, now;
  int first = 0;
  while (!CPU_ISSET((size_t)first, &all)) first++;
  CPU_ZERO(&single);
  CPU_SET((size_t)first, &single);
  memcpy(&one, &single, sizeof single);
  EXPECT_OK(base_thread_start(&thread, run_until_stopped, &runner));
  pthread_t handle;
  memcpy(&handle, thread.handle, sizeof handle);
  int moved = pthread_setaffinity_np(handle, sizeof single, &single);
  bool kept = base_thread_keep_off(&thread, &one, -1, first);
  now = affinity_of(&thread);
  kept = kept && CPU_EQUAL(&now, &single);
  kept = kept && base_thread_keep_off(&thread, &set, -1, first) == (CPU_COUNT(&all) == 1);
  now = affinity_of(&thread);
  kept = kept && CPU_EQUAL(&now, &single) && cpu_of(&runner) == first;
  /* a system that does not tell */
  kept = kept && !base_thread_keep_off(&thread, &(struct base_cpu_set){{0}}, -1, first);
  now = affinity_of(&thread);
  kept = kept && CPU_EQUAL(&now, &single);
  atomic_store(&runner.stop, true);
  base_thread_join(&thread);
  assert_int_equal(moved, 0);
  assert_true(kept);
}

static void test_clock(void **state) {
  (void)state;
  double before = base_clock();
  for (int i = 0; i < 1000; i++) {
    double now = base_clock();
    assert_true(now >= before);
    before = now;
  }
  struct timespec pause = {.tv_nsec = 30000000};
  double start = base_clock();
  nanosleep(&pause, NULL);
  double took = base_clock() - start;
  assert_true(took >= 0.0299);
  assert_true(took < 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_start_join),      cmocka_unit_test(test_is_another_thread),
      cmocka_unit_test(test_cannot_start),    cmocka_unit_test(test_cpus),
      cmocka_unit_test(test_allowed),         cmocka_unit_test(test_keep_off),
      cmocka_unit_test(test_keep_off_leaves), cmocka_unit_test(test_clock),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
