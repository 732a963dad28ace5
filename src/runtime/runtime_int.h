/* runtime/runtime_int.h -- what the files of runtime/ share
 */
#ifndef RUNTIME_RUNTIME_INT_H
#define RUNTIME_RUNTIME_INT_H
#include "runtime/runtime.h"

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
