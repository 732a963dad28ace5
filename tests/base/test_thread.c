/* tests/base/test_thread.c -- threads, processors, the clock */
#define _GNU_SOURCE
#include "base/test.h"

#include <pthread.h>
#include <sched.h>
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

static void test_processors(void **state) {
  (void)state;
  cpu_set_t all, one;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  assert_int_equal(base_thread_processors(), CPU_COUNT(&all));
  CPU_ZERO(&one);
  for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  }
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  int n = base_thread_processors();
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
  assert_int_equal(n, 1);
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
      cmocka_unit_test(test_start_join),   cmocka_unit_test(test_is_another_thread),
      cmocka_unit_test(test_cannot_start), cmocka_unit_test(test_processors),
      cmocka_unit_test(test_clock),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
