/* runtime/cuda/cuda.h -- what the files of runtime/cuda/ share: the driver, NVRTC, the device
*/
#ifndef RUNTIME_CUDA_CUDA_H
#define RUNTIME_CUDA_CUDA_H
#include <stdatomic.h>

#include <pthread.h>

#include "runtime/gpu/gpu.h"

/* ---- once (driver.c): what is opened once per process, by whoever comes first; all get the error of that time ----- */

struct rt_once {
  pthread_mutex_t lock;
  bool tried;
  quern_status status;
  char error[256];
};
quern_status rt_once(struct rt_once *once, quern_status (*open)(void *what), void *what) QUERN_NODISCARD;

/* ---- nvrtc.c -------------------------------------------------------------------------------------------------- */

struct rt_nvrtc {
#define DRIVER(...)
#define OPTIONAL(...)
#define NVRTC(NAME, SYMBOL, PARAMETERS) int(*NAME) PARAMETERS;
#include "runtime/cuda/functions.def"
#undef DRIVER
#undef OPTIONAL
#undef NVRTC
  char identity[64];
  bool minimal; /* it can leave out what no kernel needs */
};

/* Loads it, once per process; UNSUPPORTED with what is missing. */
quern_status rt_nvrtc_open(struct rt_nvrtc **nvrtc) QUERN_NODISCARD;
/* The compiler for translation units: cubins, or where a device is newer than all rows of targets.def, PTX. */
struct rt_gpu_compiler rt_nvrtc_compiler(struct rt_nvrtc *nvrtc, bool ptx);
/* One that only shows that cubins can be made: of many kernels at a time, little optimized. It takes a third of the time. */
struct rt_gpu_compiler rt_nvrtc_checker(struct rt_nvrtc *nvrtc);

/* ---- driver.c ------------------------------------------------------------------------------------------------- */

/* The driver and the device that is used: of the process, opened once and never closed. */
struct rt_cuda_driver {
#define DRIVER(NAME, SYMBOL, PARAMETERS) int(*NAME) PARAMETERS;
#define OPTIONAL(NAME, SYMBOL, PARAMETERS) int(*NAME) PARAMETERS;
#define NVRTC(...)
#include "runtime/cuda/functions.def"
#undef DRIVER
#undef OPTIONAL
#undef NVRTC
  int device, major, minor, multiprocessors, driver_version;
  void *context;
  char name[128];
  const struct cg_target *target;   /* the row of the device */
  bool ptx;                         /* it needs PTX of that row */
  atomic_int lost;                  /* the error after which nothing works any more; 0: none; -1: being written down */
  char failure[BASE_MESSAGE_BYTES]; /* its message */
};

quern_status rt_cuda_open(struct rt_cuda_driver **driver) QUERN_NODISCARD;
/* For tests: what open gives from now on; NULL: the real one. */
void rt_cuda_use(struct rt_cuda_driver *driver);
/* A status and a message for what a function returned: 0 is OK. */
quern_status rt_cuda_check(const struct rt_cuda_driver *driver, int code, const char *what) QUERN_NODISCARD;
/* Calls of the driver between the two use the device's context; enter gives 0 or the error, leave the first of the two. */
int rt_cuda_enter(const struct rt_cuda_driver *driver);
int rt_cuda_leave(const struct rt_cuda_driver *driver, int code);
/* The row for a device of that compute capability. */
const struct cg_target *rt_cuda_row(int major, int minor, bool *ptx);

/* ---- stream.c ------------------------------------------------------------------------------------------------- */

/* Page-locked (pinned) memory of the host, which the device reads by itself: a double buffer, whose halves are filled in turn, each once
** the device has read it. */
struct rt_cuda_pinned {
  char *at; /* NULL: none yet */
  bool refused;
  size_t half, used; /* the one that is filled, and bytes of it */
  void *done[2];     /* events */
};

/* What was captured, step by step, and in which nodes each ends. */
struct rt_cuda_capture {
  bool on;
  size_t steps;
  BASE_VEC(void *) nodes, wanted; /* of all steps; those that the next one comes after */
  BASE_VEC(size_t) ends;          /* of each step: where its nodes end */
};

struct rt_stream {
  struct base_heap *heap;
  struct rt_cuda_driver *driver;
  void *stream, *own; /* the queue that is used: its own, or an external stream */
  void *switched;     /* an event between the two */
  const char *last;   /* the kernel that was launched last, for messages; "": none */
  size_t replayed;    /* steps of the graph that was replayed after it; 0: none was */
  bool sync;          /* QUERN_SYNC=1: every launch is waited for */
  struct rt_cuda_pinned pinned;
  struct rt_cuda_async_uploads {
    void *queue; /* NULL: none yet */
    struct rt_cuda_pinned pinned;
    void *uploaded, *reuse_fence; /* events */
  } async_uploads;
  struct rt_cuda_capture capture;
  BASE_VEC(void *) marks; /* events */
};

extern const struct rt_remote rt_cuda_remote;
/* nccl.c: the version of NCCL, or why there is none that can be used. */
void rt_nccl_describe(char *text, size_t bytes);
/* Its name by the number that NCCL gives; an error when that is too old or too new. */
quern_status rt_nccl_check(int version, char *identity, size_t bytes) QUERN_NODISCARD;

/* nvtx.c: a range with a name, for profilers; nothing unless QUERN_NVTX=1. */
void rt_nvtx_begin(const char *name);
void rt_nvtx_end(void);
/* graph.c */
quern_status rt_cuda_capture_begin(struct rt_stream *stream) QUERN_NODISCARD;
quern_status rt_cuda_capture_end(struct rt_stream *stream, struct rt_graph **graph) QUERN_NODISCARD;
quern_status rt_cuda_capture_depend(struct rt_stream *stream, size_t n, const int *steps) QUERN_NODISCARD;
quern_status rt_cuda_replay(struct rt_stream *stream, const struct rt_graph *graph) QUERN_NODISCARD;
void rt_cuda_graph_free(struct rt_stream *stream, struct rt_graph *graph);
quern_status rt_cuda_mark(struct rt_stream *stream, size_t i) QUERN_NODISCARD;
quern_status rt_cuda_marks(struct rt_stream *stream, size_t n, double *seconds) QUERN_NODISCARD;
/* cuda.c */
quern_status rt_cuda_launch(struct rt_stream *stream, struct rt_module *module, size_t k,
                            const struct kern_launch *launch, void *scratch, size_t scratch_stride) QUERN_NODISCARD;
bool rt_cuda_batchable(const struct rt_module *module, size_t k);
quern_status rt_cuda_launch_batch(struct rt_stream *stream, struct rt_module *module, size_t k, size_t n,
                                  const struct kern_launch *launch) QUERN_NODISCARD;
/* A message for what was found out of what was asked for earlier. */
quern_status rt_cuda_later(const struct rt_stream *stream, int code, const char *what) QUERN_NODISCARD;

#endif
