/* runtime/cuda/cuda.h -- what the files of runtime/cuda/ share: the driver, NVRTC, the device
*/
#ifndef RUNTIME_CUDA_CUDA_H
#define RUNTIME_CUDA_CUDA_H
#include "runtime/gpu/gpu.h"

/* ---- nvrtc.c -------------------------------------------------------------------------------------------------- */

struct rt_nvrtc {
#define DRIVER(...)
#define NVRTC(NAME, SYMBOL, PARAMETERS) int(*NAME) PARAMETERS;
#include "runtime/cuda/functions.def"
#undef DRIVER
#undef NVRTC
  char identity[64];
};

/* Loads it, once a process; UNSUPPORTED with what is missing. */
quern_status rt_nvrtc_open(struct rt_nvrtc **nvrtc) QUERN_NODISCARD;
/* The compiler for units: cubins, or where a device is newer than all rows of targets.def, PTX. */
struct rt_gpu_compiler rt_nvrtc_compiler(struct rt_nvrtc *nvrtc, bool ptx);

/* ---- driver.c ------------------------------------------------------------------------------------------------- */

/* The driver and the device that is used: of the process, opened once and never closed. */
struct rt_cuda_driver {
#define DRIVER(NAME, SYMBOL, PARAMETERS) int(*NAME) PARAMETERS;
#define NVRTC(...)
#include "runtime/cuda/functions.def"
#undef DRIVER
#undef NVRTC
  int device, major, minor, processors, driver_version;
  void *context;
  char name[128];
  const struct cg_target *target; /* the row of the device */
  bool ptx;                       /* it needs PTX of that row */
};

quern_status rt_cuda_open(struct rt_cuda_driver **driver) QUERN_NODISCARD;
/* A status and a message for what a function returned: 0 is OK. */
quern_status rt_cuda_check(const struct rt_cuda_driver *driver, int code, const char *what) QUERN_NODISCARD;
/* The row for a device of that compute capability. */
const struct cg_target *rt_cuda_row(int major, int minor, bool *ptx);

/* ---- memory.c ------------------------------------------------------------------------------------------------- */

struct rt_stream {
  struct base_heap *heap;
  struct rt_cuda_driver *driver;
  void *stream;
  const char *last; /* the kernel that was launched last, for messages; "": none */
  bool sync;        /* QUERN_SYNC=1: every launch is waited for */
};

extern const struct rt_remote rt_cuda_remote;
/* cuda.c */
quern_status rt_cuda_launch(struct rt_stream *stream, struct rt_module *module, size_t k,
                            const struct kern_launch *launch, void *scratch, size_t scratch_stride) QUERN_NODISCARD;
/* A message for what was found out of what was asked for earlier. */
quern_status rt_cuda_later(const struct rt_stream *stream, int code, const char *what) QUERN_NODISCARD;

#endif
