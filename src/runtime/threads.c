/* runtime/threads.c -- how many threads a program gets: QUERN_THREADS, OMP_NUM_THREADS, affinity, cgroup quotas
** see:   cgroups(7); Linux Documentation/admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst
**        (cpu.cfs_quota_us)
** tests: tests/runtime/test_threads.c
*/
#include "runtime/runtime_int.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, FILE_BYTES = 16384 };

/* The head of a file as text; false when it cannot be read. */
static bool read_text(const char *path, char *text, size_t bytes) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t n = 0;
  ssize_t got;
  while (n + 1 < bytes && (got = read(fd, text + n, bytes - 1 - n)) > 0) n += (size_t)got;
  text[n] = 0;
  close(fd);
  return true;
}

/* A number at the start of a text, and where it ends; 0 when there is none or it is negative. */
static uint64_t number(const char *text, const char **end) {
  size_t digits = strspn(text, "0123456789");
  *end = text + digits;
  return digits == 0 || digits > 18 ? 0 : strtoull(text, NULL, 10);
}

/* ---- cgroups ------------------------------------------------------------------------------------------- */

/* CPUs that a quota in a period amounts to, rounded up; 0: no quota. */
static int cpus_of(uint64_t quota, uint64_t period) {
  if (quota == 0 || period == 0) return 0;
  uint64_t n = quota / period + (quota % period != 0);
  return n > RT_MAX_THREADS ? RT_MAX_THREADS : (int)n;
}

static bool read_in(const char *folder, const char *name, char *text, size_t bytes) {
  char path[PATH_BYTES];
  int n = snprintf(path, sizeof path, "%s/%s", folder, name);
  return n > 0 && n < (int)sizeof path && read_text(path, text, bytes);
}

/* The quota of one cgroup's folder, of either version; 0: none. */
static int folder_cpus(const char *folder) {
  char quota[64], period[64];
  const char *end;
  if (read_in(folder, "cpu.max", quota, sizeof quota)) { /* "<quota or max> <period>" */
    uint64_t q = number(quota, &end);
    return *end == ' ' ? cpus_of(q, number(end + 1, &end)) : 0;
  }
  if (!read_in(folder, "cpu.cfs_quota_us", quota, sizeof quota)) return 0; /* -1: no quota */
  if (!read_in(folder, "cpu.cfs_period_us", period, sizeof period)) return 0;
  return cpus_of(number(quota, &end), number(period, &end));
}

static int least(int a, int b) { return a == 0 || (b != 0 && b < a) ? b : a; }

/* The least quota of the cgroup at path below root/hierarchy, and of all above it. */
static int path_cpus(const char *root, const char *hierarchy, const char *path) {
  char folder[PATH_BYTES];
  int top = snprintf(folder, sizeof folder, "%s/%s", root, hierarchy);
  if (top < 0 || top >= (int)sizeof folder) return 0;
  int n = top + snprintf(folder + top, sizeof folder - (size_t)top, "%s", strstr(path, "..") ? "" : path);
  int found = 0;
  if (n >= (int)sizeof folder) n = top;
  for (;;) {
    folder[n] = 0;
    found = least(found, folder_cpus(folder));
    while (n > top && folder[n - 1] != '/') n--;
    if (n <= top) return found;
    n--; /* the slash */
  }
}

/* True when a comma-separated list has that word. */
static bool list_has(const char *list, const char *word) {
  for (size_t n = strlen(word);; list++) {
    size_t length = strcspn(list, ",");
    if (length == n && memcmp(list, word, n) == 0) return true;
    list += length;
    if (*list == 0) return false;
  }
}

int rt_cgroup_cpus(const char *self, const char *root) {
  char text[FILE_BYTES];
  int found = 0;
  if (!read_text(self, text, sizeof text)) return 0;
  for (char *line = text; *line;) { /* "<number>:<controllers>:<path>"; version 2: no controllers */
    char *next = line + strcspn(line, "\n");
    if (*next) *next++ = 0;
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (path) {
      *controllers++ = 0;
      *path++ = 0;
      if (*controllers == 0) found = least(found, path_cpus(root, "", path));
      if (list_has(controllers, "cpu")) {
        found = least(found, path_cpus(root, controllers, path));
        found = least(found, path_cpus(root, "cpu", path));
      }
    }
    line = next;
  }
  return found;
}

/* ---- threads ------------------------------------------------------------------------------------------- */

int rt_cpus(void) { return least(base_thread_cpu_count(), rt_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup")); }

int rt_parse_threads(const char *text) {
  const char *end;
  text += strspn(text, " \t");
  uint64_t n = number(text, &end);
  end += strspn(end, " \t");
  if (*end != 0 && *end != ',') return 0;
  return n > RT_MAX_THREADS ? RT_MAX_THREADS : (int)n;
}

int rt_default_threads(void) {
  int n = (int)base_env_int(BASE_ENV_THREADS);
  if (n == 0) {
    const char *omp = getenv("OMP_NUM_THREADS");
    n = omp ? rt_parse_threads(omp) : 0;
  }
  return n > 0 ? n : rt_cpus();
}
