/* runtime/cuda/module.h -- kernels of a program, loaded: private to module.c and cuda.c
*/
#ifndef RUNTIME_CUDA_MODULE_H
#define RUNTIME_CUDA_MODULE_H
#include "runtime/cuda/libraries.h"

/* Addresses that a launch can be given: a device and driver of any kind takes 4096 bytes. */
enum { RT_CUDA_TABLE = 512 };

struct rt_module {
  struct base_heap *heap;
  struct rt_cuda_driver *driver;
  size_t n, n_units, bytes;
  int threads;                /* that have scratch */
  void **modules;             /* one per translation unit */
  struct rt_bytes *binaries;  /* one per translation unit, for saving; of one without text none */
  struct rt_object *objects;  /* the table, then the binaries */
  struct rt_bytes table;      /* what launching needs to know of the kernels, as bytes */
  struct rt_cuda_call *calls; /* one per kernel */
  struct rt_gpu_kernel kernels[];
};

quern_status rt_cuda_module_new(struct rt_module **module, struct base_heap *heap, struct rt_cuda_driver *driver,
                                size_t n, size_t n_units, int threads) QUERN_NODISCARD;
/* Loads all binaries, finds the kernels, plans the calls; those that are refused go into stats. On failure the module is the caller's
** to free. */
quern_status rt_cuda_module_load(struct rt_module *module, const struct kern *const *kernels,
                                 struct rt_stats *stats) QUERN_NODISCARD;
void rt_cuda_module_free(struct rt_module *module);

/* Of the device (runtime.h). */
size_t rt_cuda_objects(const struct rt_module *module, const struct rt_object **objects);
quern_status rt_cuda_from_objects(struct rt_module **module, struct base_heap *heap, size_t n,
                                  const struct kern *const *kernels, size_t n_objects,
                                  const struct rt_object *objects) QUERN_NODISCARD;

#endif
