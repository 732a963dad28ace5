/* runtime/null/null_int.h -- what the files of runtime/null/ share
 */
#ifndef RUNTIME_NULL_NULL_INT_H
#define RUNTIME_NULL_NULL_INT_H
#include "runtime/cuda/cuda.h"
#include "runtime/null/null.h"

/* limits.c: INTERNAL when a kernel has more shared memory than a card of the target gives a block. */
quern_status rt_null_limits(const struct rt_gpu_units *units, const struct kern *const *kernels,
                            const struct cg_target *target) QUERN_NODISCARD;

#endif
