/* runtime/null/null.h -- what tests may wish of the device that launches nothing
*/
#ifndef RUNTIME_NULL_NULL_H
#define RUNTIME_NULL_NULL_H
#include <stdbool.h>

/* A test's wish: from now on kernels for CUDA are compiled many at a time and little optimised, which is a third of the work. Those that
** cannot be are compiled one by one, as the device cuda does it, for a message that names the kernel. */
void rt_null_quick(bool quick);

#endif
