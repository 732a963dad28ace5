/* runtime/opencl/opencl.h -- what the files of runtime/opencl/ share: the library, the device, memory by number
*/
#ifndef RUNTIME_OPENCL_OPENCL_H
#define RUNTIME_OPENCL_OPENCL_H
#include <pthread.h>

#include "runtime/gpu/gpu.h"

/* ---- library.c ------------------------------------------------------------------------------------------------ */

/* OpenCL and the device that is used: of the process, opened once and never closed. */
struct rt_cl {
#define FUNCTION(RESULT, NAME, PARAMETERS) RESULT(*NAME) PARAMETERS;
#include "runtime/opencl/functions.def"
#undef FUNCTION
  void *device, *context;
  char name[128];       /* of the device */
  char identity[512];   /* of everything that binaries depend on */
  pthread_mutex_t lock; /* of slots, and of kernels' arguments until they are enqueued */
};

/* Opens it; UNSUPPORTED with what is missing. */
quern_status rt_cl_open(struct rt_cl **cl) QUERN_NODISCARD;
/* A status and a message for what a function returned: 0 is OK. */
quern_status rt_cl_check(int32_t code, const char *what) QUERN_NODISCARD;

/* ---- buffers.c: an allocation is a number, and addresses are numbers and offsets --------------------------------- */

struct rt_stream {
  struct base_heap *heap;
  struct rt_cl *cl;
  void *queue;
  void *args; /* a buffer of the numbers of a launch */
};
enum { RT_CL_ARGS = 2 * KERN_MAX_MEMS + KERN_MAX_SCALARS };

/* The buffer and the offset of an address; NULL of one that is in none. */
void *rt_cl_find(const void *address, size_t *offset);

extern const struct rt_remote rt_cl_remote;
quern_status rt_cl_launch(struct rt_stream *stream, struct rt_module *module, size_t k,
                          const struct kern_launch *launch, void *scratch,
                          size_t scratch_stride) QUERN_NODISCARD; /* opencl.c */

#endif
