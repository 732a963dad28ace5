/* sched/sched_int.h -- what the builders of kernels share
** One builder per kind of group, in the table of lower.c.
*/
#ifndef SCHED_SCHED_INT_H
#define SCHED_SCHED_INT_H
#include "sched/sched.h"

/* A kernel being built: lower.c has added the memories of ins and outs, numbers 0 .. n_ins + n_outs - 1. */
struct sched_job {
  struct kern *kern;
  quern_context *ctx;
  const struct pass_group *group;
  const struct base_target *target;
  const struct sched *sched;
};

typedef quern_status sched_build(struct sched_job *job);
/* MAP groups that are an UPDATE_AT and nothing else (update_at.c). */
bool sched_is_update_at(const struct sched_job *job);
sched_build sched_update_at;
sched_build sched_map, sched_reduce, sched_dot, sched_scan, sched_sort, sched_scatter, sched_composite;

static inline int64_t sched_ceil(int64_t x, int64_t by) { return (x + by - 1) / by; }

/* Contractions that a library does (gpu_dot_library.c). */
sched_build sched_gpu_dot_library;

/* The floating-point operations of a composite that sched_composite has a kernel for. */
double sched_composite_flops(const struct ir_node *composite);

/* The part of sched_choose that is of contractions (dot_choose.c). */
void sched_choose_dot(struct sched *sched, const struct base_target *target, int optimize);
/* The part of sched_choose that is of contractions on GPUs (gpu_dot.c). */
void sched_choose_gpu_dot(struct sched *sched, const struct pass_group *group);

/* Bytes of shared memory that a phase with several HREDUCEs in a row may take: eight of them cross lanes in 4 KiB, of which targets.def
** leaves one. */
static inline int64_t sched_shared(const struct base_target *target) { return target->shared_bytes - 3 * 1024; }

/* Instructions that one kernel may have: more take a C compiler minutes and a gigabyte. */
enum { SCHED_MOST_INSTS = 1 << 16 };
/* Refuses a finished kernel of more, with the group's node. */
quern_status sched_check_size(const struct kern *kern, const struct pass_group *group) QUERN_NODISCARD;

/* Values of the group's tensors for one function of the kernel: its ins bound to their memories. */
quern_status sched_values(struct sched_job *job, struct kern_builder *b, struct kern_values **values) QUERN_NODISCARD;

/* Gives a workspace rows of the dynamic batch where a tensor has them: it is made of equal units, in the order of the tensor's
** elements, each of which belongs to one row. */
void sched_work_rows(struct sched_job *job, int mem, const quern_tensor *like, int64_t units);

/* An out's memory: the instruction that sched_values made at the top of the function. */
kern_id sched_out_mem(struct sched_job *job, struct kern_builder *b, size_t out);

/* Marks large outs for streaming (non-temporal) stores, since what is stored will have left the caches before it is read: where a kernel's
** ins and outs are more than these hold, of outs for which `may` is true (NULL: all). Called before the first phase. */
void sched_mark_streaming(struct sched_job *job, const bool *may);

/* Stores tensor out's value at the current point, `active` lanes of it (KERN_NONE: all). */
void sched_store(struct sched_job *job, struct kern_builder *b, struct kern_values *values, size_t out, kern_id active);
/* Stores a value of tensor out that is known, at indices that are given. */
void sched_store_at(struct sched_job *job, struct kern_builder *b, struct kern_values *values, size_t out,
                    const struct pass_index *const *at, kern_id x, kern_id active);

#endif
