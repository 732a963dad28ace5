/* runtime/opencl/opencl.h -- what the files of runtime/opencl/ share: the library, the device, memory by number
*/
#ifndef RUNTIME_OPENCL_OPENCL_H
#define RUNTIME_OPENCL_OPENCL_H
#include <stdatomic.h>

#include <pthread.h>

#include "runtime/gpu/gpu.h"

/* ---- library.c ------------------------------------------------------------------------------------------------ */

enum { RT_CL_SLOTS = 1 << 14 };

/* A device, and the functions of OpenCL, by which it is used: opened once. */
struct rt_cl {
#define FUNCTION(RESULT, NAME, PARAMETERS) RESULT(*NAME) PARAMETERS;
#include "runtime/opencl/functions.def"
#undef FUNCTION
  int ordinal;
  void *device, *context;
  char name[128];                   /* of the device */
  uint64_t memory;                  /* bytes of it; 0: not known */
  char identity[512];               /* of everything that binaries depend on */
  pthread_mutex_t lock;             /* of slots, and of kernels' arguments until they are enqueued */
  void *_Atomic slots[RT_CL_SLOTS]; /* buffers; number 0 is none */
};

/* Opens a device; UNSUPPORTED with what is missing. */
quern_status rt_cl_open(const quern_device *device, struct rt_cl **cl) QUERN_NODISCARD;
/* The close of the backend (runtime.h). */
void rt_cl_close(void *cl);
/* The suits of the backend (runtime.h): a GPU does. A CPU by OpenCL is slower than the device cpu. */
quern_status rt_cl_suits(const quern_device *device) QUERN_NODISCARD;
/* Counts devices that compute in f64, 1 at least: GPUs have the first ordinals. */
quern_status rt_cl_count(int *n) QUERN_NODISCARD;
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

/* The buffer and the offset of an address; NULL of one that is in none of the device. */
void *rt_cl_find(struct rt_cl *cl, const void *address, size_t *offset);

extern const struct rt_remote rt_cl_remote;
quern_status rt_cl_launch(struct rt_stream *stream, struct rt_module *module, size_t k,
                          const struct kern_launch *launch, void *scratch,
                          size_t scratch_stride) QUERN_NODISCARD; /* opencl.c */

#endif
