/* runtime/runtime_int.h -- what the files of runtime/ share
 */
#ifndef RUNTIME_RUNTIME_INT_H
#define RUNTIME_RUNTIME_INT_H
#include <stdatomic.h>

#include <pthread.h>

#include "runtime/runtime.h"

/* ---- devices.c ---------------------------------------------------------------------------------------------------- */

/* What is opened once, by whoever comes first: what went wrong then is reported to all, but for missing memory, after which
** it is tried again. */
struct rt_once {
  pthread_mutex_t lock;
  bool tried;
  quern_status status;
  char error[512];
};
quern_status rt_once(struct rt_once *once, quern_status (*open)(void *what), void *what) QUERN_NODISCARD;

/* What was opened for a device. */
struct rt_state {
  struct rt_once once;
  void *_Atomic opened;  /* NULL: nothing yet */
  void *_Atomic instead; /* of a test */
  int users;             /* handles and programs; with the lock of once, as the next */
  bool kept;             /* it stays open when there are none */
};

/* ---- threads.c --------------------------------------------------------------------------------------------------- */

/* The CPUs that affinity and the cgroup's quota leave: at least 1. */
int rt_cpus(void);

/* The first number of a list such as OMP_NUM_THREADS holds, at most RT_MAX_THREADS; 0 when there is none. */
int rt_parse_threads(const char *text);

/* The CPUs that the quotas of a process's cgroups and of those around them allow, rounded up; 0: no quota. self
** is the text file that names them (/proc/self/cgroup), root where they are mounted (/sys/fs/cgroup); version 1 and 2.
*/
int rt_cgroup_cpus(const char *self, const char *root);

#endif
