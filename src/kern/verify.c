/* kern/verify.c -- is a kernel right: its types, its bounds, its races
** keeps: callers are scanned before what they call, which then knows the ranges of its scalars
** see:   verify_types.c, verify_bounds.c, verify_race.c     tests: tests/kern/test_verify.c
*/
#include "kern/verify_int.h"

static quern_status scan_fn(struct kern_scan *s, kern_visit *visit, void *user) {
  size_t bytes = s->fn->insts.n * sizeof *s->known;
  s->known = base_alloc(s->kern->heap, bytes);
  if (s->known == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = kern_scan_bounds(s);
  if (status == QUERN_STATUS_OK) status = visit(s, user);
  base_free(s->kern->heap, s->known, bytes);
  return status;
}

quern_status kern_scan_all(const struct kern *kern, bool lenient, kern_visit *visit, void *user) {
  size_t n = kern->fns.n, bytes = n * (sizeof(struct kern_calls) + KERN_MAX_MEMS * sizeof(bool));
  struct kern_calls *calls = base_alloc_zero(kern->heap, bytes);
  if (calls == NULL) return QUERN_STATUS_MEMORY;
  bool *writes = (bool *)(calls + n);
  quern_status status = kern_check_types(kern, writes);
  struct kern_scan scan = {.kern = kern, .writes = writes, .calls = calls, .lenient = lenient};
  kern_facts_init(&scan.facts, kern->heap);
  for (size_t i = n; i > 0 && status == QUERN_STATUS_OK; i--) {
    scan.fn = kern->fns.at[i - 1];
    scan.number = (int)i - 1;
    if (!kern_is_phase(kern, scan.number, &scan.phase)) scan.phase = -1;
    if (scan.phase >= 0 || calls[i - 1].called) status = scan_fn(&scan, visit, user);
  }
  kern_facts_fini(&scan.facts);
  base_vec_fini(kern->heap, &scan.stores);
  base_vec_fini(kern->heap, &scan.given);
  base_vec_fini(kern->heap, &scan.variables);
  base_free(kern->heap, calls, bytes);
  return status;
}

static quern_status count_races(struct kern_scan *s, void *unproven) {
  if (s->phase >= 0) *(int *)unproven += kern_scan_races(s);
  return QUERN_STATUS_OK;
}

quern_status kern_verify(const struct kern *kern, int *unproven) {
  int count = 0;
  quern_status status = kern_scan_all(kern, false, count_races, &count);
  if (unproven != NULL) *unproven = count;
  return status;
}
