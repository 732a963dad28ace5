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
  thread->run(thread->arg);
  return NULL;
}

quern_status base_thread_start(struct base_thread *thread, void (*run)(void *), void *arg) {
  pthread_t handle;
  *thread = (struct base_thread){.run = run, .arg = arg};
  int error = pthread_create(&handle, NULL, enter, thread);
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

int base_thread_processors(void) {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return BASE_MAX(CPU_COUNT(&set), 1);
#endif
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 1 ? (int)n : 1;
}

#if defined(__linux__)
_Static_assert(sizeof(struct base_processors) == sizeof(cpu_set_t), "a set holds a cpu_set_t");
#endif

void base_thread_allowed(struct base_processors *set) {
  *set = (struct base_processors){{0}};
#if defined(__linux__)
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) memcpy(set, &cpus, sizeof cpus);
#endif
}

int base_thread_processor(void) {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

void base_thread_keep_off(const struct base_thread *thread, const struct base_processors *set, int processor) {
#if defined(__linux__)
  pthread_t handle;
  cpu_set_t cpus;
  memcpy(&handle, thread->handle, sizeof handle);
  memcpy(&cpus, set, sizeof cpus);
  if (processor >= 0 && processor < CPU_SETSIZE) CPU_CLR((size_t)processor, &cpus);
  if (CPU_COUNT(&cpus) > 0) (void)pthread_setaffinity_np(handle, sizeof cpus, &cpus);
#else
  (void)thread, (void)set, (void)processor;
#endif
}
