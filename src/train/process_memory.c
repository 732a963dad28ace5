/* train/process_memory.c -- bytes and seconds of the whole process, as the system counts them
** tests: tests/train/test_memory.c
*/
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <errno.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "train/train.h"

/* A line of the process's status, in bytes; 0: the system does not report it. */
static int64_t status_line(const char *name) {
  char line[256];
  long long kib = 0;
  size_t n = strlen(name);
  FILE *file = fopen("/proc/self/status", "r");
  if (file == NULL) return 0;
  while (kib == 0 && fgets(line, sizeof line, file) != NULL)
    if (strncmp(line, name, n) == 0) (void)sscanf(line + n, "%lld", &kib);
  (void)fclose(file);
  return (int64_t)kib * 1024;
}

int64_t train_resident(void) { return status_line("VmRSS:"); }
int64_t train_peak(void) { return status_line("VmHWM:"); }

int64_t train_child_peak(void) {
  struct rusage usage;
  return getrusage(RUSAGE_CHILDREN, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

void train_trim(void) {
#if defined(__GLIBC__)
  (void)malloc_trim(0);
#endif
}

static double started; /* on base_clock's scale */

/* Before main: what the CPU has done until now for this process was loading it. */
__attribute__((constructor)) static void note_start(void) {
  struct timespec spent = {0};
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
  started = base_clock() - ((double)spent.tv_sec + 1e-9 * (double)spent.tv_nsec);
}

double train_process_seconds(void) { return base_clock() - started; }

quern_status train_make_folder(const char *path) {
  QUERN_CHECK(mkdir(path, 0777) == 0 || errno == EEXIST, IO, "%s: cannot be made: %s", path, strerror(errno));
  return QUERN_STATUS_OK;
}
