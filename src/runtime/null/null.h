/* runtime/null/null.h -- texts that nothing compiles, and a switch for tests of the device that launches nothing
*/
#ifndef RUNTIME_NULL_NULL_H
#define RUNTIME_NULL_NULL_H
#include <stdbool.h>

#include "codegen/codegen.h"

/* Makes the texts of kernels, for any target, and forgets them: no compiler is needed. */
quern_status rt_null_texts(struct base_heap *heap, size_t n, const struct kern *const *kernels,
                           const struct cg_target *target) QUERN_NODISCARD;

/* For tests: from now on kernels for CUDA are compiled many at a time and little optimized, which is a third of the work. Those that
** cannot be are compiled one by one, as the device cuda does it, for a message that names the kernel. */
void rt_null_quick(bool quick);

/* For tests: from now on only those kernels for CUDA are compiled that are wanted. text is a hash of what the compiler would read of
** the kernel. NULL: all. Not for several threads. */
typedef bool rt_null_wants(const struct cg_target *target, uint64_t text);
void rt_null_choose(rt_null_wants *wants);

#endif
