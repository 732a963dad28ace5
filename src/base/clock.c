/* base/clock.c -- the monotonic clock
** tests: tests/base/test_thread.c
*/
#define _POSIX_C_SOURCE 200809L
#include "base/base.h"

#include <time.h>

double base_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
