/* runtime/opencl/opencl.c -- the device "opencl": the GPU's kernels on whatever OpenCL finds
** For correctness: kernels come in translation units with one entry each (codegen/dialect.c), and every launch waits for its
** arguments to be written.
** see: docs/design/007-gpu.md      tests: tests/engine/test_remote.c, querntest --device opencl
*/
#include "runtime/opencl/opencl.h"

#include <stdio.h>

enum { PROGRAM_BUILD_LOG = 0x1183, UNIT_KERNELS = 16 };

struct rt_module {
  struct base_heap *heap;
  struct rt_cl *cl;
  size_t n, n_units, bytes;
  int threads;                /* that have scratch */
  void **programs, **entries; /* one per translation unit */
  struct rt_gpu_kernel kernels[];
};

static quern_status find_target(const quern_device *device, struct cg_target *target) {
  (void)device;
  *target = *cg_target_find("opencl");
  return QUERN_STATUS_OK;
}

static void describe(const quern_device *device, struct base_heap *heap, char *text, size_t bytes) {
  struct rt_cl *cl;
  (void)heap;
  if (rt_cl_open(device, &cl) == QUERN_STATUS_OK)
    snprintf(text, bytes, "%s", cl->identity);
  else
    snprintf(text, bytes, "%s", quern_last_error());
}

/* ---- building --------------------------------------------------------------------------------------------- */

/* The head of the compiler's output. */
static quern_status build_error(struct rt_cl *cl, void *program, int32_t code) {
  char log[700] = "";
  size_t n = 0;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  if (cl->clGetProgramBuildInfo(program, cl->device, PROGRAM_BUILD_LOG, 0, NULL, &n) == 0 && n > 0) {
    char *all = base_alloc_zero(&heap, n + 1);
    if (all != NULL && cl->clGetProgramBuildInfo(program, cl->device, PROGRAM_BUILD_LOG, n, all, NULL) == 0)
      snprintf(log, sizeof log, "%s", all);
    base_free(&heap, all, n + 1);
  }
  return base_error(QUERN_STATUS_INTERNAL, "error %d: %s", (int)code, log);
}

/* Signals stay the host's here too: a text that was right before is not compiled by rt_gpu_units_make. */
static quern_status build_text(struct rt_cl *cl, const struct cg_target *target, const char *text, void **program) {
  struct base_signals signals;
  int32_t code;
  *program = cl->clCreateProgramWithSource(cl->context, 1, &text, NULL, &code);
  QUERN_TRY(rt_cl_check(code, "a program"));
  base_signals_hold(&signals);
  code = cl->clBuildProgram(*program, 1, &cl->device, target->march, NULL, NULL);
  base_signals_release(&signals);
  return code == 0 ? QUERN_STATUS_OK : build_error(cl, *program, code);
}

/* A kept entry only means that the text compiles. Drivers keep code themselves, and PoCL, asked for it, compiles every kernel once
** more, for groups of any size, which takes most of its time. */
static quern_status compile(void *self, struct base_heap *heap, const struct cg_target *target, const char *text,
                            struct rt_bytes *binary) {
  struct rt_cl *cl = self;
  void *program = NULL;
  quern_status status = build_text(cl, target, text, &program);
  if (program != NULL) (void)cl->clReleaseProgram(program);
  QUERN_TRY(status);
  *binary = (struct rt_bytes){.at = base_alloc_zero(heap, 1), .n = 1, .room = 1};
  return binary->at != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

static quern_status load_unit(struct rt_module *module, const struct rt_gpu_unit *unit, size_t i,
                              const struct cg_target *target) {
  struct rt_cl *cl = module->cl;
  int32_t code;
  QUERN_TRY(build_text(cl, target, unit->text.at, &module->programs[i]));
  for (size_t k = unit->first; k < unit->first + unit->n; k++) {
    struct rt_gpu_kernel *kernel = &module->kernels[k];
    for (int p = 0; p < kernel->n_phases; p++) {
      char symbol[512];
      bool single = kernel->phases[p].group == 1; /* in the unit's one kernel */
      snprintf(symbol, sizeof symbol, "%s_%d", kernel->name, p);
      if (single && module->entries[i] != NULL) continue;
      void *entry = cl->clCreateKernel(module->programs[i], single ? CG_ENTRY_OPENCL : symbol, &code);
      QUERN_TRY(rt_cl_check(code, symbol));
      *(single ? &module->entries[i] : &kernel->phases[p].function) = entry;
    }
  }
  return QUERN_STATUS_OK;
}

static void free_module(struct rt_module *module) {
  if (module == NULL) return;
  for (size_t i = 0; i < module->n_units; i++) {
    if (module->entries[i] != NULL) (void)module->cl->clReleaseKernel(module->entries[i]);
    if (module->programs[i] != NULL) (void)module->cl->clReleaseProgram(module->programs[i]);
  }
  for (size_t k = 0; k < module->n; k++)
    for (int p = 0; p < module->kernels[k].n_phases; p++)
      if (module->kernels[k].phases[p].function != NULL)
        (void)module->cl->clReleaseKernel(module->kernels[k].phases[p].function);
  base_free(module->heap, module, module->bytes);
}

static quern_status new_module(struct rt_module **out, struct rt_cl *cl, struct base_heap *heap, size_t n,
                               size_t n_units, int threads) {
  size_t bytes;
  QUERN_CHECK(
      base_size(n, sizeof(struct rt_gpu_kernel), sizeof(struct rt_module) + 2 * n_units * sizeof(void *), &bytes),
      MEMORY, "no memory for %zu kernels", n);
  struct rt_module *module = base_alloc_zero(heap, bytes);
  if (module == NULL) return QUERN_STATUS_MEMORY;
  *module = (struct rt_module){.heap = heap, .cl = cl, .n = n, .n_units = n_units, .bytes = bytes, .threads = threads};
  module->programs = (void **)(module->kernels + n);
  module->entries = module->programs + n_units;
  *out = module;
  return QUERN_STATUS_OK;
}

static quern_status build(const quern_device *device, struct rt_module **module, struct base_heap *heap, size_t n,
                          const struct kern *const *kernels, const struct cg_target *target, struct rt_stats *stats) {
  struct rt_cl *cl;
  struct rt_stats own = {0};
  struct rt_gpu_units units;
  double start = base_clock();
  *module = NULL;
  QUERN_TRY(rt_cl_open(device, &cl));
  const struct rt_gpu_compiler compiler = {
      .name = "opencl", .identity = cl->identity, .end = ".cl", .most = UNIT_KERNELS, .self = cl, .compile = compile};
  QUERN_TRY(rt_gpu_units_make(&units, heap, n, kernels, target, &compiler, &own));
  quern_status status = new_module(module, cl, heap, n, units.n, target->base.threads);
  if (status == QUERN_STATUS_OK) rt_gpu_kernels((*module)->kernels, kernels, target, &units);
  for (size_t i = 0; i < units.n && status == QUERN_STATUS_OK; i++)
    status = load_unit(*module, &units.at[i], i, target);
  rt_gpu_units_fini(&units);
  if (status != QUERN_STATUS_OK) {
    free_module(*module);
    *module = NULL;
    return status;
  }
  own.seconds = base_clock() - start;
  base_log(1, "opencl: %zu kernels, %d units compiled, %d from the cache, %.1f ms", n, own.compiled, own.cached,
           own.seconds * 1e3);
  if (stats != NULL) *stats = own;
  return QUERN_STATUS_OK;
}

/* ---- launching -------------------------------------------------------------------------------------------- */

/* The buffers of a launch, each once, and the kernel's arguments for its memories. */
struct table {
  int n;
  void *buffers[CG_BUFFERS];
  int64_t args[RT_CL_ARGS];
};

static quern_status make_table(struct table *table, struct rt_cl *cl, const struct rt_gpu_kernel *kernel,
                               const struct kern_launch *launch) {
  table->n = 0;
  for (int i = 0; i < kernel->n_mems; i++) {
    size_t offset;
    int number = 0;
    void *buffer = rt_cl_find(cl, launch->mems[i], &offset);
    while (buffer != NULL && number < table->n && table->buffers[number] != buffer) number++;
    QUERN_CHECK(number < CG_BUFFERS, UNSUPPORTED, "opencl: kernel %s uses memory of more than %d allocations",
                kernel->name, (int)CG_BUFFERS);
    if (buffer != NULL && number == table->n) table->buffers[table->n++] = buffer;
    table->args[2 * i] = number;
    table->args[2 * i + 1] = buffer != NULL ? (int64_t)offset : 0; /* memory without elements may have no buffer */
  }
  for (int i = 0; i < kernel->n_scalars; i++) table->args[2 * kernel->n_mems + i] = launch->scalars[i];
  return QUERN_STATUS_OK;
}

static int32_t set_args(const struct rt_cl *cl, void *entry, const struct rt_stream *stream,
                        const struct rt_gpu_phase *phase, const struct table *table, int64_t tasks, void *scratch,
                        int64_t stride) {
  uint32_t at = 0;
  int32_t number = phase->number, code = 0;
  if (phase->group == 1) code = cl->clSetKernelArg(entry, at++, sizeof number, &number);
  for (int i = 0; i < CG_BUFFERS && code == 0; i++) {
    const void *buffer = table->n == 0 ? stream->args : table->buffers[BASE_MIN(i, table->n - 1)];
    code = cl->clSetKernelArg(entry, at++, sizeof buffer, &buffer);
  }
  if (code == 0) code = cl->clSetKernelArg(entry, at++, sizeof stream->args, &stream->args);
  if (code == 0) code = cl->clSetKernelArg(entry, at++, sizeof tasks, &tasks);
  if (code == 0) code = cl->clSetKernelArg(entry, at++, sizeof scratch, &scratch);
  return code != 0 ? code : cl->clSetKernelArg(entry, at, sizeof stride, &stride);
}

quern_status rt_cl_launch(struct rt_stream *stream, struct rt_module *module, size_t k,
                          const struct kern_launch *launch, void *scratch, size_t scratch_stride) {
  const struct rt_gpu_kernel *kernel = &module->kernels[k];
  struct rt_cl *cl = module->cl;
  struct table table;
  size_t offset, bytes = (size_t)(2 * kernel->n_mems + kernel->n_scalars) * sizeof(int64_t);
  QUERN_ASSERT(k < module->n);
  if (launch->runs != NULL) launch->runs->compiled++;
  QUERN_TRY(make_table(&table, cl, kernel, launch));
  void *own = kernel->scratch ? rt_cl_find(cl, scratch, &offset) : stream->args;
  QUERN_ASSERT(own != NULL && (!kernel->scratch || offset == 0));
  if (bytes > 0)
    QUERN_TRY(rt_cl_check(cl->clEnqueueWriteBuffer(stream->queue, stream->args, 1, 0, bytes, table.args, 0, NULL, NULL),
                          kernel->name));
  for (int p = 0; p < kernel->n_phases; p++) {
    int64_t tasks = kern_task_count(&kernel->phases[p].phase, launch->scalars);
    const struct rt_gpu_phase *phase = &kernel->phases[p];
    void *entry = phase->group > 1 ? phase->function : module->entries[kernel->unit];
    size_t group = phase->group > 1 ? (size_t)phase->group : CG_BLOCK_THREADS_OPENCL;
    int64_t wanted = phase->group > 1 ? tasks : (tasks + CG_BLOCK_THREADS_OPENCL - 1) / CG_BLOCK_THREADS_OPENCL;
    size_t size = (size_t)BASE_MAX(BASE_MIN(wanted, module->threads / (int64_t)group), 1) * group;
    if (tasks == 0 || kern_phase_is_idle(&phase->phase, launch->mems)) continue;
    pthread_mutex_lock(&cl->lock);
    int32_t code =
        set_args(cl, entry, stream, phase, &table, tasks, own, kernel->scratch ? (int64_t)scratch_stride : 0);
    if (code == 0) code = cl->clEnqueueNDRangeKernel(stream->queue, entry, 1, NULL, &size, &group, 0, NULL, NULL);
    pthread_mutex_unlock(&cl->lock);
    QUERN_TRY(rt_cl_check(code, kernel->name));
  }
  return QUERN_STATUS_OK;
}

static const char *find_model(const quern_device *device) {
  struct rt_cl *cl;
  return rt_cl_open(device, &cl) == QUERN_STATUS_OK ? cl->name : "";
}

static int64_t find_memory(const quern_device *device) {
  struct rt_cl *cl;
  return rt_cl_open(device, &cl) == QUERN_STATUS_OK ? (int64_t)cl->memory : 0;
}

const struct rt_backend rt_opencl = {.name = "opencl",
                                     .count = rt_cl_count,
                                     .suits = rt_cl_suits,
                                     .close = rt_cl_close,
                                     .model = find_model,
                                     .memory = find_memory,
                                     .describe = describe,
                                     .target = find_target,
                                     .usual_target = "opencl",
                                     .build = build,
                                     .free = free_module,
                                     .remote = &rt_cl_remote};
