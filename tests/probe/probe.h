/* probe/probe.h -- what the whole process allocates, and how much memory it has */
#ifndef PROBE_PROBE_H
#define PROBE_PROBE_H
#include <stdbool.h>
#include <stdint.h>

/* Whether allocations are counted: not where a sanitizer has an allocator of its own. */
bool probe_counts(void);
/* Calls of malloc and its kin since the process began, of all threads and libraries. */
uint64_t probe_allocations(void);

struct probe_bytes {
  int64_t resident, peak, mapped; /* as /proc reports them: VmRSS, VmHWM, VmSize */
};
/* False where /proc does not tell. Allocates nothing. */
bool probe_read(struct probe_bytes *bytes);
/* From now on the peak is counted anew; false where that is not possible. */
bool probe_reset_peak(void);

#endif
