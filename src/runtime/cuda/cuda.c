/* runtime/cuda/cuda.c -- the device "cuda": kernels by NVRTC, launched on a stream
** A thread takes task after task, so that those of kernels with scratch are no more than there is scratch for.
** see: docs/design/007-gpu.md      tests: make test-cuda
*/
#include "runtime/cuda/module.h"

#include <stdio.h>

enum { THREADS_PER_SM = 2048, ROUNDS = 16, FEW_ROUNDS = 8 };
_Static_assert(KERN_MAX_MEMS + KERN_MAX_SCALARS + 3 <= RT_CUDA_TABLE, "parameters of a launch");

static quern_status find_target(const quern_device *device, struct cg_target *target) {
  struct rt_cuda_driver *driver;
  bool there = rt_cuda_open(device, &driver) == QUERN_STATUS_OK;
  *target = there ? *driver->target : *cg_target_find("sm_75");
  if (there) target->base.capabilities = rt_cuda_libraries(driver);
  if (there && cg_target_has_mma(target)) target->base.capabilities |= BASE_TENSOR_CORES;
  return QUERN_STATUS_OK;
}

static void describe(const quern_device *device, struct base_heap *heap, char *text, size_t bytes) {
  struct rt_cuda_driver *driver;
  struct rt_nvrtc *nvrtc;
  (void)heap;
  if (rt_cuda_open(device, &driver) != QUERN_STATUS_OK) {
    snprintf(text, bytes, "%s", quern_last_error());
    return;
  }
  int v = driver->driver_version;
  int n = snprintf(text, bytes, "%s, compute capability %d.%d, %d multiprocessors, driver for CUDA %d.%d, ",
                   driver->name, driver->major, driver->minor, driver->multiprocessors, v / 1000, v % 1000 / 10);
  if (n < 0 || (size_t)n >= bytes) return;
  n += snprintf(text + n, bytes - (size_t)n, "%s, ",
                rt_nvrtc_open(&nvrtc) == QUERN_STATUS_OK ? nvrtc->identity : quern_last_error());
  if (n > 0 && (size_t)n < bytes) rt_cuda_describe_libraries(driver, text + n, bytes - (size_t)n);
}

static void describe_more(const quern_device *device, char *text, size_t bytes) {
  struct rt_cuda_driver *driver;
  text[0] = 0;
  if (rt_cuda_open(device, &driver) == QUERN_STATUS_OK) rt_nccl_describe(text, bytes);
}

/* Everything that is named there may change what is compiled. */
static bool find_identity(const quern_device *device, struct base_heap *heap, const struct cg_target *target,
                          uint64_t key[2]) {
  char text[1024] = "";
  struct rt_cuda_driver *driver;
  (void)target;
  if (base_env_get(BASE_ENV_DUMP_DIR)[0] != 0 || base_env_int(BASE_ENV_TUNE) == 1) return false;
  if (rt_cuda_open(device, &driver) != QUERN_STATUS_OK) return false;
  describe(device, heap, text, sizeof text);
  struct rt_key made = rt_key_make(6, text, strlen(text));
  rt_cuda_tuned(heap, driver, text, sizeof text);
  rt_key_add(&made, text, strlen(text));
  memcpy(key, made.word, sizeof made.word);
  return true;
}

/* ---- building --------------------------------------------------------------------------------------------- */

/* Without text, of calls of libraries only, there is nothing to compile, and NVRTC is not needed. */
static quern_status find_compiler(struct rt_gpu_compiler *compiler, const struct rt_cuda_driver *driver, size_t n,
                                  const struct kern *const *kernels) {
  struct rt_nvrtc *nvrtc;
  bool text = false;
  for (size_t k = 0; k < n && !text; k++)
    for (int p = 0; p < kernels[k]->n_phases; p++) text = text || !kernels[k]->phases[p].library_call;
  *compiler = (struct rt_gpu_compiler){.name = "", .identity = "", .end = "", .most = 1};
  if (!text) return QUERN_STATUS_OK;
  QUERN_TRY(rt_nvrtc_open(&nvrtc));
  *compiler = rt_nvrtc_compiler(nvrtc, driver->ptx);
  return QUERN_STATUS_OK;
}

static quern_status build(const quern_device *device, struct rt_module **out, struct base_heap *heap, size_t n,
                          const struct kern *const *kernels, const struct cg_target *target, struct rt_stats *stats) {
  struct rt_cuda_driver *driver;
  struct rt_gpu_compiler compiler;
  struct rt_stats own = {0};
  struct rt_gpu_units units;
  double start = base_clock();
  *out = NULL;
  QUERN_TRY(rt_cuda_open(device, &driver));
  QUERN_TRY(find_compiler(&compiler, driver, n, kernels));
  QUERN_TRY(rt_gpu_units_make(&units, heap, n, kernels, target, &compiler, &own));
  struct rt_module *module;
  quern_status status = rt_cuda_module_new(&module, heap, driver, n, units.n, target->base.threads);
  if (status == QUERN_STATUS_OK) {
    rt_gpu_kernels(module->kernels, kernels, target, &units);
    for (size_t i = 0; i < units.n; i++) {
      module->binaries[i] = units.at[i].binary;
      units.at[i].binary = (struct rt_bytes){0};
    }
    status = rt_cuda_module_load(module, kernels, &own);
  }
  rt_gpu_units_fini(&units);
  if (status != QUERN_STATUS_OK) {
    rt_cuda_module_free(module);
    if (stats != NULL) *stats = own;
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

/* Launches that are made as one: `n` rows of memories, as many as the kernel has rows at most. */
struct rows {
  void *const *mems;
  size_t n;
};

/* A kernel with a table is given all of it, whatever the rows are that are used. */
static int add_memories(void **parameters, void **table, const struct rt_gpu_kernel *kernel, const struct rows *rows) {
  int n = 0;
  for (int i = 0; i < kernel->n_mems && kernel->max_batched == 1; i++)
    parameters[n++] = (void *)&rows->mems[i]; /* they are only read */
  if (kernel->max_batched == 1) return n;
  memset(table, 0, (size_t)(kernel->max_batched * kernel->n_mems) * sizeof *table);
  memcpy(table, rows->mems, rows->n * (size_t)kernel->n_mems * sizeof *table);
  parameters[n++] = table;
  return n;
}

/* Blocks of single threads, which take task after task: ROUNDS times as many as the device runs at a time, so that some begin while others
** end. Where few rounds would do and the phase has a minimum of blocks per SM (occupancy), there is one: such blocks begin with tables. */
static int64_t most_blocks(const struct rt_cuda_driver *d, const struct kern_phase *phase, int64_t wanted) {
  int64_t round = (int64_t)d->multiprocessors * phase->min_blocks_per_sm;
  if (wanted <= FEW_ROUNDS * round) return round;
  return (int64_t)d->multiprocessors * (THREADS_PER_SM / CG_BLOCK_THREADS) * ROUNDS;
}

/* A block of groups has a task: how many the device runs at a time depends on their registers, and blocks that were too many for that
** would run alone at the end. */
static int launch_phase(const struct rt_stream *stream, const struct rt_module *module,
                        const struct rt_gpu_kernel *kernel, int p, const struct rows *rows, const int64_t *scalars,
                        char *scratch, int64_t stride) {
  struct rt_cuda_driver *d = module->driver;
  void *parameters[KERN_MAX_MEMS + KERN_MAX_SCALARS + 3], *table[RT_CUDA_TABLE];
  int64_t tasks = kern_task_count(&kernel->phases[p].phase, scalars);
  const struct rt_gpu_phase *phase = &kernel->phases[p];
  if (tasks == 0) return 0;
  int n = add_memories(parameters, table, kernel, rows);
  for (int i = 0; i < kernel->n_scalars; i++) parameters[n++] = (void *)&scalars[i];
  parameters[n++] = &tasks;
  parameters[n++] = &scratch;
  parameters[n++] = &stride;
  int each = phase->group > 1 ? phase->tasks : CG_BLOCK_THREADS,
      threads = phase->group > 1 ? phase->group * each : CG_BLOCK_THREADS;
  int64_t wanted = (tasks + each - 1) / each;
  int64_t limit = kernel->scratch    ? module->threads / threads
                  : phase->group > 1 ? INT32_MAX
                                     : most_blocks(d, &phase->phase, wanted);
  unsigned blocks = (unsigned)BASE_MAX(BASE_MIN(wanted, limit), 1);
  return d->launch(phase->function, blocks, (unsigned)rows->n, 1, (unsigned)threads, 1, 1, (unsigned)phase->given,
                   stream->stream, parameters, NULL);
}

/* True when a phase would copy memories to themselves in all launches of a batch. */
static bool is_idle(const struct rt_gpu_kernel *kernel, int p, const struct rows *rows) {
  size_t i = 0;
  while (i < rows->n && kern_phase_is_idle(&kernel->phases[p].phase, rows->mems + i * (size_t)kernel->n_mems)) i++;
  return i == rows->n;
}

/* With the context current. */
static quern_status launch_all(const struct rt_stream *stream, const struct rt_module *module, size_t k,
                               const struct rows *rows, const int64_t *scalars, char *scratch, int64_t stride) {
  struct rt_cuda_driver *d = module->driver;
  const struct rt_gpu_kernel *kernel = &module->kernels[k];
  int code = 0;
  for (int p = 0; p < kernel->n_phases && code == 0; p++) {
    if (kernel->phases[p].phase.library_call)
      QUERN_TRY(rt_cuda_call_run(&module->calls[k], d, stream->stream, rows->mems));
    else if (!is_idle(kernel, p, rows))
      code = launch_phase(stream, module, kernel, p, rows, scalars, scratch, stride);
  }
  if (code == 0 && stream->sync) code = d->stream_wait(stream->stream);
  return rt_cuda_later(stream, code, "a launch");
}

/* n launches, as many at once as the kernel's table has rows. */
static quern_status launch_rows(struct rt_stream *stream, struct rt_module *module, size_t k, size_t n,
                                const struct kern_launch *launch, void *scratch, size_t scratch_stride) {
  struct rt_cuda_driver *d = module->driver;
  const struct rt_gpu_kernel *kernel = &module->kernels[k];
  void *popped;
  QUERN_ASSERT(k < module->n);
  if (launch->runs != NULL) launch->runs->compiled += n;
  stream->last = kernel->name;
  stream->replayed = 0;
  int code = d->context_push(d->context);
  if (code != 0) return rt_cuda_later(stream, code, "a launch");
  rt_nvtx_begin(kernel->name);
  quern_status status = QUERN_STATUS_OK;
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i += (size_t)kernel->max_batched) {
    struct rows rows = {launch->mems + i * (size_t)kernel->n_mems, BASE_MIN(n - i, (size_t)kernel->max_batched)};
    int64_t stride = kernel->scratch ? (int64_t)scratch_stride : 0;
    status = launch_all(stream, module, k, &rows, launch->scalars, scratch, stride);
  }
  rt_nvtx_end();
  (void)d->context_pop(&popped);
  return status;
}

quern_status rt_cuda_launch(struct rt_stream *stream, struct rt_module *module, size_t k,
                            const struct kern_launch *launch, void *scratch, size_t scratch_stride) {
  return launch_rows(stream, module, k, 1, launch, scratch, scratch_stride);
}

bool rt_cuda_batchable(const struct rt_module *module, size_t k) {
  return module->kernels[k].max_batched > 1 && !module->kernels[k].scratch;
}

quern_status rt_cuda_launch_batch(struct rt_stream *stream, struct rt_module *module, size_t k, size_t n,
                                  const struct kern_launch *launch) {
  QUERN_ASSERT(!module->kernels[k].scratch);
  return launch_rows(stream, module, k, n, launch, NULL, 0);
}

/* Kernels can be compiled for it, too. */
static quern_status suits(const quern_device *device) {
  struct rt_cuda_driver *driver;
  struct rt_nvrtc *nvrtc;
  int n;
  QUERN_TRY(rt_device_count(device->backend, &n));
  QUERN_TRY(rt_nvrtc_open(&nvrtc));
  return rt_cuda_open(device, &driver);
}

static const char *find_model(const quern_device *device) {
  struct rt_cuda_driver *driver;
  return rt_cuda_open(device, &driver) == QUERN_STATUS_OK ? driver->name : "";
}

const struct rt_backend rt_cuda = {.name = "cuda",
                                   .count = rt_cuda_count,
                                   .suits = suits,
                                   .close = rt_cuda_close,
                                   .model = find_model,
                                   .describe = describe,
                                   .describe_more = describe_more,
                                   .target = find_target,
                                   .usual_target = "sm_90+blas+dnn+mma",
                                   .preload = rt_cuda_preload,
                                   .query_algorithm = rt_cuda_query_algorithm,
                                   .measure = rt_cuda_measure,
                                   .build = build,
                                   .free = rt_cuda_module_free,
                                   .remote = &rt_cuda_remote,
                                   .objects = rt_cuda_objects,
                                   .from_objects = rt_cuda_from_objects,
                                   .identity = find_identity};
