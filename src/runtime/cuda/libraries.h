/* runtime/cuda/libraries.h -- the libraries that do the calls of kernels: what the device "cuda" asks of one
** libraries.c has the list of them; blas.c is cuBLASLt, dnn.c is cuDNN.
** see: kern.h (calls), docs/design/008-libraries.md      tests: tests/runtime/test_libraries.c
*/
#ifndef RUNTIME_CUDA_CALLS_H
#define RUNTIME_CUDA_CALLS_H
#include "runtime/cuda/cuda.h"

/* A library that is loaded when it is first asked for, once per process, and never unloaded. All functions are called with the driver's
** context current, and from several threads at once. run is called while a stream is captured, too: it neither allocates nor waits. */
struct rt_cuda_library {
  const char *name; /* "cuBLASLt" */
  int bit;          /* BASE_LIBRARY_* */
  /* Loads the library itself, so that open finds it there. Called without a context, while one is made. */
  void (*load)(void);
  /* Loads it; identity is given its name and version, such as "cuBLASLt 13.0.1". UNSUPPORTED with what is missing. */
  quern_status (*open)(const struct rt_cuda_driver *driver, char *identity, size_t bytes);
  /* Asks it anything, because the first query takes a tenth of a second; the answer is dropped. After open. */
  void (*warm_up)(void);
  /* Asks how a call is done: fills call->algorithm (not all 0) and *bytes, the workspace it needs, which is aligned to 256.
  ** kern has the memories, all of which are aligned to 256 bytes; its own call is the one that is asked about.
  ** UNSUPPORTED: the library cannot do it. */
  quern_status (*query_algorithm)(const struct rt_cuda_driver *driver, struct base_heap *heap, const struct kern *kern,
                                  struct kern_library_call *call, size_t *bytes);
  /* Makes what running kern->call needs, with the algorithm that the call has. That may come from an earlier process and another version
  ** of the library: the workspace is still kern->mems[call.work].count bytes. */
  quern_status (*plan)(const struct rt_cuda_driver *driver, struct base_heap *heap, const struct kern *kern,
                       void **plan);
  /* mems: of the kernel, addresses of the device; work: the workspace, NULL when there is none. */
  quern_status (*run)(const struct rt_cuda_driver *driver, void *plan, void *stream, void *const *mems, void *work);
  void (*free)(const struct rt_cuda_driver *driver, void *plan);
};
extern const struct rt_cuda_library rt_cuda_blas, rt_cuda_dnn;

/* The library that does calls of that kind; NULL: none does. */
const struct rt_cuda_library *rt_cuda_library_of(enum kern_library_kind kind);
/* By number; NULL after the last. */
const struct rt_cuda_library *rt_cuda_library_get(size_t i);
/* The bits of those that load; and which they are, or why not, as a text. */
int rt_cuda_libraries(const struct rt_cuda_driver *driver);
void rt_cuda_describe_libraries(const struct rt_cuda_driver *driver, char *text, size_t bytes);

/* Loads those that there are, and NVRTC: a thread's function. */
void rt_cuda_load_libraries(void *unused);
/* preload of the device (runtime.h): warms up the libraries of a target, once per process, in a thread, or waits for that. */
void rt_cuda_preload(const struct cg_target *target);

/* query_algorithm of the device (runtime.h). */
quern_status rt_cuda_query_algorithm(struct kern *kern, const struct cg_target *target) QUERN_NODISCARD;
/* A query of that library: fills the call's algorithm and the count of its workspace. */
quern_status rt_cuda_call_query(const struct rt_cuda_library *library, struct rt_cuda_driver *driver,
                                struct kern *kern) QUERN_NODISCARD;

/* measure of the device (runtime.h): measure.c. */
quern_status rt_cuda_measure(struct base_heap *heap, struct rt_rates *rates) QUERN_NODISCARD;

/* A text that is another one after products were tuned for this GPU: programs from before may use slower algorithms. blas_tune.c. */
void rt_cuda_tuned(struct base_heap *heap, const struct rt_cuda_driver *driver, char *text, size_t bytes);

/* A call that is planned: of a module. Without a call, library is NULL and nothing is done. */
struct rt_cuda_call {
  const struct rt_cuda_library *library;
  void *plan;
  int work; /* the memory that is its workspace, or KERN_NONE */
};
/* With the driver's context current. */
quern_status rt_cuda_call_plan(struct rt_cuda_call *call, const struct rt_cuda_driver *driver, struct base_heap *heap,
                               const struct kern *kern) QUERN_NODISCARD;
quern_status rt_cuda_call_run(const struct rt_cuda_call *call, const struct rt_cuda_driver *driver, void *stream,
                              void *const *mems) QUERN_NODISCARD;
void rt_cuda_call_free(struct rt_cuda_call *call, const struct rt_cuda_driver *driver);

#endif
