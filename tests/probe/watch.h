/* probe/watch.h -- a program under watch: its bytes as planned, nothing allocated after the first run, nothing interpreted
** begin before the instance is made; then two runs, the second between watch_second and watch_end.
*/
#ifndef PROBE_WATCH_H
#define PROBE_WATCH_H
#include "engine/engine.h"
#include "probe/probe.h"

/* What may be used beside the plan: threads' stacks, code, tables. */
#define WATCH_SLACK (INT64_C(32) << 20)

struct watch {
  bool measured; /* the peak can be counted anew */
  int64_t before, grown, planned;
  uint64_t allocations;
  int64_t mapped;
};

static inline void watch_begin(struct watch *w) {
  struct probe_bytes now = {0};
  *w = (struct watch){0};
  w->measured = probe_reset_peak() && probe_read(&now);
  w->before = now.resident;
}

static inline uint64_t watch_count(const quern_instance *of) {
  return probe_allocations() + of->heap.count + of->program->heap.count;
}

static inline void watch_second(struct watch *w, const quern_instance *of) {
  struct probe_bytes now = {0};
  (void)probe_read(&now);
  w->mapped = now.mapped;
  w->allocations = watch_count(of);
}

/* INTERNAL when the bound is exceeded, the second run allocated, or a kernel was interpreted. */
static inline quern_status watch_end(struct watch *w, const quern_instance *of) {
  uint64_t made = watch_count(of) - w->allocations;
  struct probe_bytes now = {0};
  quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
  quern_run_stats counts = QUERN_INIT(quern_run_stats);
  bool known = probe_read(&now);
  QUERN_TRY(quern_program_get_memory(of->program, &memory));
  QUERN_TRY(quern_instance_get_stats(of, &counts));
  w->planned = memory.arena + memory.state + memory.scratch + memory.staging;
  w->grown = now.peak - w->before;
  QUERN_CHECK(made == 0, INTERNAL, "the second run made %llu allocations", (unsigned long long)made);
  QUERN_CHECK(!known || now.mapped == w->mapped, INTERNAL, "the second run mapped %lld bytes",
              (long long)(now.mapped - w->mapped));
  QUERN_CHECK(!w->measured || w->grown <= w->planned + WATCH_SLACK, INTERNAL,
              "resident memory grew by %lld bytes, %lld were planned: %lld more than may be", (long long)w->grown,
              (long long)w->planned, (long long)(w->grown - w->planned - WATCH_SLACK));
  QUERN_CHECK(counts.interpreted == 0 && counts.evaluated == 0, INTERNAL,
              "%llu kernels were interpreted and %llu evaluated", (unsigned long long)counts.interpreted,
              (unsigned long long)counts.evaluated);
  return QUERN_STATUS_OK;
}

#endif
