/* base/thread.c -- threads, and how many of them make sense
** tests: tests/base/test_thread.c
*/
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/base.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(pthread_t) <= sizeof((struct base_thread *)0)->handle, "a handle holds a pthread_t");

static void *enter(void *arg) {
  struct base_thread *thread = arg;
  (void)base_floats_enter(); /* it has the state of who started it */
  thread->run(thread->arg);
  return NULL;
}

quern_status base_thread_start(struct base_thread *thread, void (*run)(void *), void *arg) {
  struct base_signals before;
  pthread_t handle;
  *thread = (struct base_thread){.run = run, .arg = arg};
  base_signals_block(&before);
  int error = pthread_create(&handle, NULL, enter, thread);
  base_signals_unblock(&before);
  if (error) thread->run = NULL;
  QUERN_CHECK(!error, MEMORY, "cannot start a thread: pthread_create gives error %d", error);
  memcpy(thread->handle, &handle, sizeof handle);
  return QUERN_STATUS_OK;
}

void base_thread_join(struct base_thread *thread) {
  if (!thread->run) return;
  pthread_t handle;
  memcpy(&handle, thread->handle, sizeof handle);
  pthread_join(handle, NULL);
  thread->run = NULL;
}

int base_thread_cpu_count(void) {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return BASE_MAX(CPU_COUNT(&set), 1);
#endif
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 1 ? (int)n : 1;
}

#if defined(__linux__)
_Static_assert(sizeof(struct base_cpu_set) == sizeof(cpu_set_t), "a set holds a cpu_set_t");
#endif

void base_thread_allowed(struct base_cpu_set *set) {
  *set = (struct base_cpu_set){{0}};
#if defined(__linux__)
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) memcpy(set, &cpus, sizeof cpus);
#endif
}

int base_thread_cpu(void) {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

#if defined(__linux__)
/* The set but one; all of it when that leaves none. */
static cpu_set_t set_but(const struct base_cpu_set *set, int cpu) {
  cpu_set_t all, rest;
  memcpy(&all, set, sizeof all);
  rest = all;
  if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR((size_t)cpu, &rest);
  return CPU_COUNT(&rest) > 0 ? rest : all;
}
#endif

bool base_thread_keep_off(const struct base_thread *thread, const struct base_cpu_set *set, int before, int cpu) {
#if defined(__linux__)
  pthread_t handle;
  cpu_set_t now, expected = set_but(set, before), next = set_but(set, cpu);
  memcpy(&handle, thread->handle, sizeof handle);
  if (pthread_getaffinity_np(handle, sizeof now, &now) != 0 || !CPU_EQUAL(&now, &expected)) return false;
  return pthread_setaffinity_np(handle, sizeof next, &next) == 0;
#else
  (void)thread, (void)set, (void)before, (void)cpu;
  return false;
#endif
}
