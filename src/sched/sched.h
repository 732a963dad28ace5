/* sched/sched.h -- from a group to a fast kernel: which loops, how wide, how unrolled, which tasks
** One function per kind of group builds the kernel; a schedule gives its numbers. A schedule never changes bits.
** see: docs/design/002-cpu-compiler.md
*/
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H
#include "kern/kern.h"

/* The numbers of a schedule: 0 where a kind of group does not use one. */
struct sched {
  int lanes;          /* of vectors of 4-byte elements; 1: scalar code (optimize=0) */
  int unroll;         /* vectors a step of the innermost loop */
  int64_t grain;      /* elements (MAP), rows (REDUCE) a task */
  int mr, nr;         /* DOT: the register tile, nr a multiple of lanes; GPUs: mr 0: no tiles; nr: rows and columns of a
                      ** thread, 8 or 4, 0: as their number asks for */
  int64_t mc, nc, kc; /* DOT: the cache tiles; kc is KERN_DOT_BLOCK */
  int packed;         /* DOT: 1 + the in whose memory holds what sched_pack's kernel wrote; 0: none */
  bool unaligned_base; /* memories may begin anywhere: kern.unaligned_base */
  bool fast;           /* numerics=fast: libraries may vary the last bits */
  bool tf32;           /* numerics=tf32 or fast: libraries may round the operands of f32 products to tf32 */
  bool no_library;     /* no library call, whatever the target's capabilities: the library has refused */
  /* Of a program with a dynamic batch, NULL of others: the kernel has the number of rows as scalar 0, and need not
  ** write what is behind them. */
  const struct pass_dynamic_batch *rows;
};

/* The heuristic: from the group's shape and the target. optimize 0: scalar code. */
void sched_choose(struct sched *sched, const struct pass_group *group, const struct base_target *target, int optimize);

/* The kernel of a group: its memories are the group's ins, outs, then workspaces. VIEW and CONTROL have none. The
** kernel lives in heap (kern_new), which may outlive the context. */
quern_status sched_lower(struct kern **kern, struct base_heap *heap, quern_context *ctx, const struct pass_group *group,
                         const struct base_target *target, const struct sched *sched) QUERN_NODISCARD;

/* The kernel that packs an in of a contraction which never changes, once: its memories are that in and *count elements
** of an out of the accumulators' dtype, the in's own unless that is a narrow float. With sched->packed = 1 + in, the
** kernel of sched_lower takes that out in the in's place. NULL when the in is not packed, or is read for something else
** too. */
quern_status sched_pack(struct kern **kern, int64_t *count, struct base_heap *heap, quern_context *ctx,
                        const struct pass_group *group, const struct base_target *target, const struct sched *sched,
                        int in) QUERN_NODISCARD;

/* Schedules from a file (wisdom.c), which override the heuristic; the file says for which groups. */
struct sched_wisdom {
  struct base_heap *heap;
  BASE_VEC(struct sched_wisdom_entry) entries;
  uint64_t hash; /* of all of it; 0: empty */
};
/* Reads a file; "" gives none. PARSE with the line when it is malformed. */
quern_status sched_wisdom_read(struct sched_wisdom *wisdom, struct base_heap *heap, const char *path) QUERN_NODISCARD;
void sched_wisdom_fini(struct sched_wisdom *wisdom);
/* Changes what the wisdom of this group and target says; false when there is none. */
bool sched_wisdom_apply(const struct sched_wisdom *wisdom, const struct pass_group *group,
                        const struct base_target *target, struct sched *sched);
/* The line of a file that says so of the group with that hash; numbers that are 0 are left out. */
void sched_wisdom_print(struct base_str *str, uint64_t group, const struct base_target *target,
                        const struct sched *sched);

/* True when sched_lower has a kernel for the composite. */
bool sched_supports(const struct base_target *target, const struct ir_node *composite);

#endif
