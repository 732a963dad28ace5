/* kern/scratch.c -- where the LOCALs of a thread lie: one after another, those of closed blocks overlaid
** keeps: every LOCAL starts at a multiple of 64 bytes; a callee's come after those that are visible at the call
** tests: tests/kern/test_interp.c
*/
#include "kern/kern_int.h"

enum { ALIGNMENT = 64 };

static int64_t round_up(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

int64_t kern_scratch_place(const struct kern *kern, size_t number, const int64_t *callees, int64_t *at) {
  const struct kern_fn *fn = kern->fns.at[number];
  int64_t open[KERN_MAX_DEPTH], now = 0, most = 0;
  int depth = 0;
  for (size_t i = 0; i < fn->insts.n; i++) {
    const struct kern_inst *x = &fn->insts.at[i];
    QUERN_ASSERT(depth > 0 || (x->op != KERN_ELSE && x->op != KERN_END));
    if (x->op == KERN_LOCAL || x->op == KERN_CALL) {
      if (at != NULL) at[i] = now;
      int64_t bytes = x->op == KERN_CALL ? callees[x->imm] : x->imm * (int64_t)base_dtypes[x->dtype].size;
      most = BASE_MAX(most, now + round_up(bytes));
      if (x->op == KERN_LOCAL) now += round_up(bytes);
    } else if (x->op == KERN_FOR || x->op == KERN_IF) {
      QUERN_ASSERT(depth < KERN_MAX_DEPTH);
      open[depth++] = now;
    } else if (x->op == KERN_ELSE) {
      now = open[depth - 1];
    } else if (x->op == KERN_END) {
      now = open[--depth];
    }
  }
  return most;
}

int64_t kern_scratch_bytes(const struct kern *kern) {
  int64_t bytes[KERN_MAX_FNS], most = 0;
  QUERN_ASSERT(kern->fns.n <= KERN_MAX_FNS);
  for (size_t i = 0; i < kern->fns.n; i++) bytes[i] = kern_scratch_place(kern, i, bytes, NULL);
  for (int i = 0; i < kern->n_phases; i++)
    if (!kern->phases[i].library_call) most = BASE_MAX(most, bytes[kern->phases[i].fn]);
  return most;
}
