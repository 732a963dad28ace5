/* runtime/cuda/cuda.c -- the device "cuda": kernels by NVRTC, launched on a stream
** A thread takes task after task, so that those of kernels with scratch are no more than there is scratch for.
** see: docs/design/007-gpu.md      tests: make test-cuda
*/
#include "runtime/cuda/cuda.h"

#include <stdio.h>

enum { THREADS_A_PROCESSOR = 2048 };

struct rt_module {
  struct base_heap *heap;
  struct rt_cuda_driver *driver;
  size_t n, n_units, bytes;
  int threads;    /* that have scratch */
  void **modules; /* one a unit */
  struct rt_gpu_kernel kernels[];
};

static quern_status find_target(struct cg_target *target) {
  struct rt_cuda_driver *driver;
  bool there = rt_cuda_open(&driver) == QUERN_STATUS_OK;
  *target = there ? *driver->target : *cg_target_find("sm_75");
  return QUERN_STATUS_OK;
}

static void describe(struct base_heap *heap, char *text, size_t bytes) {
  struct rt_cuda_driver *driver;
  struct rt_nvrtc *nvrtc;
  (void)heap;
  if (rt_cuda_open(&driver) != QUERN_STATUS_OK) {
    snprintf(text, bytes, "%s", quern_last_error());
    return;
  }
  int v = driver->driver_version;
  int n = snprintf(text, bytes, "%s, compute capability %d.%d, %d multiprocessors, driver for CUDA %d.%d, ",
                   driver->name, driver->major, driver->minor, driver->processors, v / 1000, v % 1000 / 10);
  if (n < 0 || (size_t)n >= bytes) return;
  snprintf(text + n, bytes - (size_t)n, "%s",
           rt_nvrtc_open(&nvrtc) == QUERN_STATUS_OK ? nvrtc->identity : quern_last_error());
}

/* ---- building --------------------------------------------------------------------------------------------- */

static quern_status load_unit(struct rt_module *module, const struct rt_gpu_unit *unit, size_t i) {
  const struct rt_cuda_driver *d = module->driver;
  QUERN_TRY(rt_cuda_check(d, d->module_load(&module->modules[i], unit->binary.at), "loading compiled kernels"));
  for (size_t k = unit->first; k < unit->first + unit->n; k++) {
    struct rt_gpu_kernel *kernel = &module->kernels[k];
    for (int p = 0; p < kernel->n_phases; p++) {
      char symbol[512];
      snprintf(symbol, sizeof symbol, "%s_%d", kernel->name, p);
      QUERN_TRY(rt_cuda_check(d, d->module_function(&kernel->phases[p].function, module->modules[i], symbol), symbol));
    }
  }
  return QUERN_STATUS_OK;
}

static void free_module(struct rt_module *module) {
  void *popped;
  if (module == NULL) return;
  const struct rt_cuda_driver *d = module->driver;
  if (d->context_push(d->context) == 0) {
    for (size_t i = 0; i < module->n_units; i++)
      if (module->modules[i] != NULL) (void)d->module_unload(module->modules[i]);
    (void)d->context_pop(&popped);
  }
  base_free(module->heap, module, module->bytes);
}

static quern_status load_units(struct rt_module *module, const struct rt_gpu_units *units) {
  const struct rt_cuda_driver *d = module->driver;
  void *popped;
  quern_status status = rt_cuda_check(d, d->context_push(d->context), "its context");
  if (status != QUERN_STATUS_OK) return status;
  for (size_t i = 0; i < units->n && status == QUERN_STATUS_OK; i++) status = load_unit(module, &units->at[i], i);
  (void)d->context_pop(&popped);
  return status;
}

static quern_status build(struct rt_module **out, struct base_heap *heap, size_t n, const struct kern *const *kernels,
                          const struct cg_target *target, struct rt_stats *stats) {
  struct rt_cuda_driver *driver;
  struct rt_nvrtc *nvrtc;
  struct rt_stats own = {0};
  struct rt_gpu_units units;
  double start = base_clock();
  size_t bytes;
  *out = NULL;
  QUERN_TRY(rt_cuda_open(&driver));
  QUERN_TRY(rt_nvrtc_open(&nvrtc));
  const struct rt_gpu_compiler compiler = rt_nvrtc_compiler(nvrtc, driver->ptx);
  QUERN_TRY(rt_gpu_units_make(&units, heap, n, kernels, target, &compiler, &own));
  bool fits = base_size(n, sizeof(struct rt_gpu_kernel), sizeof(struct rt_module) + units.n * sizeof(void *), &bytes);
  struct rt_module *module = fits ? base_alloc_zero(heap, bytes) : NULL;
  quern_status status = module != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
  if (module != NULL) {
    *module = (struct rt_module){
        .heap = heap, .driver = driver, .n = n, .n_units = units.n, .bytes = bytes, .threads = target->base.threads};
    module->modules = (void **)(module->kernels + n);
    rt_gpu_kernels(module->kernels, kernels, target, &units);
    status = load_units(module, &units);
  }
  rt_gpu_units_fini(&units);
  if (status != QUERN_STATUS_OK) {
    free_module(module);
    return status;
  }
  own.seconds = base_clock() - start;
  base_log(1, "cuda: %zu kernels, %d compiled, %d from the cache, %.1f ms", n, own.compiled, own.cached,
           own.seconds * 1e3);
  if (stats != NULL) *stats = own;
  *out = module;
  return QUERN_STATUS_OK;
}

/* ---- launching -------------------------------------------------------------------------------------------- */

static int launch_phase(const struct rt_stream *stream, const struct rt_module *module,
                        const struct rt_gpu_kernel *kernel, int p, const struct kern_launch *launch, char *scratch,
                        int64_t stride) {
  const struct rt_cuda_driver *d = module->driver;
  void *parameters[KERN_MAX_MEMS + KERN_MAX_SCALARS + 3];
  int n = 0;
  int64_t tasks = kern_task_count(&kernel->phases[p].phase, launch->scalars);
  int64_t most = kernel->scratch ? module->threads : (int64_t)d->processors * THREADS_A_PROCESSOR;
  if (tasks == 0) return 0;
  for (int i = 0; i < kernel->n_mems; i++) parameters[n++] = (void *)&launch->mems[i]; /* they are only read */
  for (int i = 0; i < kernel->n_scalars; i++) parameters[n++] = (void *)&launch->scalars[i];
  parameters[n++] = &tasks;
  parameters[n++] = &scratch;
  parameters[n++] = &stride;
  int group = kernel->phases[p].group, threads = group > 1 ? group : CG_GROUP;
  int64_t wanted = group > 1 ? tasks : (tasks + CG_GROUP - 1) / CG_GROUP;
  unsigned blocks = (unsigned)BASE_MAX(BASE_MIN(wanted, most / threads), 1);
  return d->launch(kernel->phases[p].function, blocks, 1, 1, (unsigned)threads, 1, 1, 0, stream->stream, parameters,
                   NULL);
}

quern_status rt_cuda_launch(struct rt_stream *stream, struct rt_module *module, size_t k,
                            const struct kern_launch *launch, void *scratch, size_t scratch_stride) {
  const struct rt_cuda_driver *d = module->driver;
  const struct rt_gpu_kernel *kernel = &module->kernels[k];
  void *popped;
  QUERN_ASSERT(k < module->n);
  if (launch->runs != NULL) launch->runs->compiled++;
  int64_t stride = kernel->scratch ? (int64_t)scratch_stride : 0;
  int code = d->context_push(d->context);
  if (code == 0) {
    for (int p = 0; p < kernel->n_phases && code == 0; p++)
      code = launch_phase(stream, module, kernel, p, launch, scratch, stride);
    stream->last = kernel->name;
    if (code == 0 && stream->sync) code = d->stream_wait(stream->stream);
    (void)d->context_pop(&popped);
  }
  return rt_cuda_later(stream, code, "a launch");
}

const struct rt_device rt_cuda = {.name = "cuda",
                                  .describe = describe,
                                  .target = find_target,
                                  .build = build,
                                  .free = free_module,
                                  .remote = &rt_cuda_remote};
