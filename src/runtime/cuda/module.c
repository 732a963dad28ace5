/* runtime/cuda/module.c -- binaries that are loaded, the kernels in them, and both as objects to be saved
** keeps: the binaries stay with the module, so that it can be saved when the cache has forgotten them
** tests: tests/runtime/test_cuda.c, make test-cuda
*/
#include "runtime/cuda/module.h"

#include <stdio.h>

/* The table of kernels: numbers of i64. First how many kernels and units there are, and threads that have scratch; then of each kernel
** these, and of each of its phases, of which there is room for the most, the others. */
enum { HEAD_N, HEAD_UNITS, HEAD_THREADS, HEAD };
enum { ROW_UNIT, ROW_MEMS, ROW_SCALARS, ROW_PHASES, ROW_SCRATCH, ROW_MAX_BATCHED, ROW_OF_PHASES };
enum { OF_PHASE_GROUP, OF_PHASE_TASKS, OF_PHASE_GIVEN, OF_PHASE };
enum { ROW = ROW_OF_PHASES + OF_PHASE * KERN_MAX_PHASES };

quern_status rt_cuda_module_new(struct rt_module **out, struct base_heap *heap, struct rt_cuda_driver *driver, size_t n,
                                size_t n_units, int threads) {
  size_t a_unit = sizeof(void *) + sizeof(struct rt_bytes) + sizeof(struct rt_object), bytes, more;
  *out = NULL;
  QUERN_CHECK(base_size(n_units + 1, a_unit, sizeof(struct rt_module), &more) &&
                  base_size(n, sizeof(struct rt_gpu_kernel) + sizeof(struct rt_cuda_call), more, &bytes),
              MEMORY, "cuda: no memory for %zu kernels", n);
  struct rt_module *module = base_alloc_zero(heap, bytes);
  if (module == NULL) return QUERN_STATUS_MEMORY;
  *module = (struct rt_module){
      .heap = heap, .driver = driver, .n = n, .n_units = n_units, .bytes = bytes, .threads = threads};
  module->calls = (struct rt_cuda_call *)(module->kernels + n);
  module->modules = (void **)(module->calls + n);
  module->binaries = (struct rt_bytes *)(module->modules + n_units);
  module->objects = (struct rt_object *)(module->binaries + n_units);
  for (size_t k = 0; k < n; k++) module->calls[k].work = KERN_NONE;
  *out = module;
  return QUERN_STATUS_OK;
}

void rt_cuda_module_free(struct rt_module *module) {
  void *popped;
  if (module == NULL) return;
  struct rt_cuda_driver *d = module->driver;
  if (d->context_push(d->context) == 0) {
    for (size_t i = 0; i < module->n_units; i++)
      if (module->modules[i] != NULL) (void)d->module_unload(module->modules[i]);
    for (size_t k = 0; k < module->n; k++) rt_cuda_call_free(&module->calls[k], d);
    (void)d->context_pop(&popped);
  }
  for (size_t i = 0; i < module->n_units; i++) rt_bytes_free(module->heap, &module->binaries[i]);
  rt_bytes_free(module->heap, &module->table);
  base_free(module->heap, module, module->bytes);
}

/* ---- loading ----------------------------------------------------------------------------------------------- */

enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 }; /* CU_FUNC_ATTRIBUTE_ */

static quern_status find_kernel(struct rt_module *module, struct rt_gpu_kernel *kernel) {
  const struct rt_cuda_driver *d = module->driver;
  void *unit = module->modules[kernel->unit];
  for (int p = 0; p < kernel->n_phases; p++) {
    char symbol[512];
    if (kernel->phases[p].phase.library_call) continue;
    snprintf(symbol, sizeof symbol, "%s_%d", kernel->name, p);
    QUERN_CHECK(unit != NULL, INTERNAL, "cuda: there is no binary of kernel %s", kernel->name);
    struct rt_gpu_phase *phase = &kernel->phases[p];
    QUERN_TRY(rt_cuda_check(d, d->module_function(&phase->function, unit, symbol), symbol));
    if (phase->given > 0)
      QUERN_TRY(
          rt_cuda_check(d, d->function_set(phase->function, MAX_DYNAMIC_SHARED_SIZE_BYTES, phase->given), symbol));
  }
  return QUERN_STATUS_OK;
}

/* Plans all calls; what is refused is reported at the end, and counted. */
static quern_status plan_calls(struct rt_module *module, const struct kern *const *kernels, struct rt_stats *stats) {
  quern_status refused = QUERN_STATUS_OK;
  for (size_t k = 0; k < module->n; k++) {
    quern_status status = rt_cuda_call_plan(&module->calls[k], module->driver, module->heap, kernels[k]);
    if (status != QUERN_STATUS_OK && status != QUERN_STATUS_UNSUPPORTED) return status;
    if (status == QUERN_STATUS_OK || stats->n_refused == BASE_COUNT(stats->refused)) continue;
    stats->refused[stats->n_refused++] = kernels[k]->hash;
    refused = status;
  }
  return refused;
}

/* With the context current. */
static quern_status load_all(struct rt_module *module, const struct kern *const *kernels, struct rt_stats *stats) {
  struct rt_cuda_driver *d = module->driver;
  for (size_t i = 0; i < module->n_units; i++)
    if (module->binaries[i].n > 0)
      QUERN_TRY(rt_cuda_check(d, d->module_load(&module->modules[i], module->binaries[i].at), "compiled kernels"));
  for (size_t k = 0; k < module->n; k++) QUERN_TRY(find_kernel(module, &module->kernels[k]));
  return plan_calls(module, kernels, stats);
}

static void write_row(int64_t *row, const struct rt_gpu_kernel *k) {
  row[ROW_UNIT] = (int64_t)k->unit;
  row[ROW_MEMS] = k->n_mems;
  row[ROW_SCALARS] = k->n_scalars;
  row[ROW_PHASES] = k->n_phases;
  row[ROW_SCRATCH] = k->scratch;
  row[ROW_MAX_BATCHED] = k->max_batched;
  for (int p = 0; p < k->n_phases; p++) {
    int64_t *of = row + ROW_OF_PHASES + p * OF_PHASE;
    of[OF_PHASE_GROUP] = k->phases[p].group;
    of[OF_PHASE_TASKS] = k->phases[p].tasks;
    of[OF_PHASE_GIVEN] = k->phases[p].given;
  }
}

static quern_status write_table(struct rt_module *module) {
  size_t bytes = (HEAD + module->n * ROW) * sizeof(int64_t);
  int64_t *table = base_alloc_zero(module->heap, bytes);
  module->table = (struct rt_bytes){.at = table, .n = bytes, .room = bytes};
  if (table == NULL) return QUERN_STATUS_MEMORY;
  table[HEAD_N] = (int64_t)module->n;
  table[HEAD_UNITS] = (int64_t)module->n_units;
  table[HEAD_THREADS] = module->threads;
  for (size_t k = 0; k < module->n; k++) write_row(table + HEAD + k * ROW, &module->kernels[k]);
  return QUERN_STATUS_OK;
}

quern_status rt_cuda_module_load(struct rt_module *module, const struct kern *const *kernels, struct rt_stats *stats) {
  struct rt_cuda_driver *d = module->driver;
  void *popped;
  QUERN_TRY(write_table(module));
  QUERN_TRY(rt_cuda_check(d, rt_cuda_enter(d), "its context"));
  quern_status status = load_all(module, kernels, stats);
  (void)d->context_pop(&popped);
  module->objects[0] = (struct rt_object){module->table.at, module->table.n};
  for (size_t i = 0; i < module->n_units; i++)
    module->objects[1 + i] = (struct rt_object){module->binaries[i].at, module->binaries[i].n};
  return status;
}

/* ---- objects ------------------------------------------------------------------------------------------------- */

size_t rt_cuda_objects(const struct rt_module *module, const struct rt_object **objects) {
  *objects = module->objects;
  return 1 + module->n_units;
}

static bool in_range(int64_t x, int64_t low, int64_t high) { return x >= low && x <= high; }

/* False: the kernel of the table is not the program's. */
static bool read_row(struct rt_gpu_kernel *k, const int64_t *row, const struct kern *kern, size_t n_units) {
  enum { MOST_THREADS = 1024, MOST_SHARED = 227 * 1024 }; /* of a block */
  if (!in_range(row[ROW_UNIT], 0, (int64_t)n_units - 1) || row[ROW_MEMS] != kern->n_mems ||
      row[ROW_SCALARS] != kern->n_scalars || row[ROW_PHASES] != kern->n_phases ||
      !in_range(row[ROW_MAX_BATCHED], 1, RT_CUDA_TABLE / BASE_MAX(kern->n_mems, 1)))
    return false;
  *k = (struct rt_gpu_kernel){.name = kern->name,
                              .unit = (size_t)row[ROW_UNIT],
                              .n_mems = kern->n_mems,
                              .n_scalars = kern->n_scalars,
                              .n_phases = kern->n_phases,
                              .scratch = row[ROW_SCRATCH] != 0,
                              .max_batched = (int)row[ROW_MAX_BATCHED]};
  for (int p = 0; p < kern->n_phases; p++) {
    const int64_t *of = row + ROW_OF_PHASES + p * OF_PHASE;
    if (!in_range(of[OF_PHASE_GROUP], 0, MOST_THREADS) || !in_range(of[OF_PHASE_TASKS], 0, MOST_THREADS) ||
        !in_range(of[OF_PHASE_GIVEN], 0, MOST_SHARED))
      return false;
    k->phases[p] = (struct rt_gpu_phase){.phase = kern->phases[p],
                                         .group = (int)of[OF_PHASE_GROUP],
                                         .tasks = (int)of[OF_PHASE_TASKS],
                                         .given = (int)of[OF_PHASE_GIVEN]};
  }
  return true;
}

static quern_status read_table(struct rt_module *module, const struct kern *const *kernels,
                               const struct rt_object *table) {
  for (size_t k = 0; k < module->n; k++) {
    int64_t row[ROW]; /* what is read may lie anywhere */
    memcpy(row, (const char *)table->bytes + (HEAD + k * ROW) * sizeof(int64_t), sizeof row);
    QUERN_CHECK(read_row(&module->kernels[k], row, kernels[k], module->n_units), PARSE,
                "cuda: kernel %s is another than its binary's", kernels[k]->name);
  }
  return QUERN_STATUS_OK;
}

static quern_status read_binaries(struct rt_module *module, const struct rt_object *objects) {
  for (size_t i = 0; i < module->n_units; i++) {
    size_t n = objects[i].n;
    if (n == 0) continue;
    module->binaries[i] = (struct rt_bytes){.at = base_alloc(module->heap, n), .n = n, .room = n};
    if (module->binaries[i].at == NULL) return QUERN_STATUS_MEMORY;
    memcpy(module->binaries[i].at, objects[i].bytes, n);
  }
  return QUERN_STATUS_OK;
}

quern_status rt_cuda_from_objects(struct rt_module **out, struct base_heap *heap, size_t n,
                                  const struct kern *const *kernels, size_t n_objects,
                                  const struct rt_object *objects) {
  struct rt_cuda_driver *driver;
  struct rt_module *module;
  struct rt_stats stats = {0};
  int64_t head[HEAD] = {0};
  *out = NULL;
  if (n_objects > 0 && objects[0].n >= sizeof head) memcpy(head, objects[0].bytes, sizeof head);
  QUERN_CHECK(n_objects > 0 && head[HEAD_N] == (int64_t)n && head[HEAD_UNITS] == (int64_t)n_objects - 1 &&
                  objects[0].n == (HEAD + n * ROW) * sizeof(int64_t) && in_range(head[HEAD_THREADS], 0, INT32_MAX),
              PARSE, "cuda: the table of %zu kernels is another's", n);
  QUERN_TRY(rt_cuda_open(&driver));
  QUERN_TRY(rt_cuda_module_new(&module, heap, driver, n, n_objects - 1, (int)head[HEAD_THREADS]));
  quern_status status = read_table(module, kernels, &objects[0]);
  if (status == QUERN_STATUS_OK) status = read_binaries(module, objects + 1);
  if (status == QUERN_STATUS_OK) status = rt_cuda_module_load(module, kernels, &stats);
  if (status == QUERN_STATUS_OK)
    *out = module;
  else
    rt_cuda_module_free(module);
  return status;
}
