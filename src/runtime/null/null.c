/* runtime/null/null.c -- the device that launches nothing: shows that every kernel has a text, and that NVRTC takes that for GPUs
** tests: tests/runtime/test_devices.c, test_null.c
*/
#include "runtime/null/null_int.h"

#include <stdatomic.h>
#include <stdio.h>

struct rt_module {
  struct base_heap *heap;
};

static quern_status find_target(const quern_device *device, struct cg_target *target) {
  (void)device;
  cg_target_detect(target);
  target->base.threads = rt_default_threads();
  return QUERN_STATUS_OK;
}

/* The text of all kernels in one unit. */
static quern_status emit_all(struct cg_unit *unit, struct base_str *text, size_t n, const struct kern *const *kernels) {
  for (size_t i = 0; i < n; i++) QUERN_TRY(cg_unit_add(unit, kernels[i]));
  QUERN_TRY(cg_unit_text(unit, text));
  return base_str_status(text);
}

static quern_status text_of(struct base_heap *heap, size_t n, const struct kern *const *kernels,
                            const struct cg_target *target, struct base_str *text) {
  struct cg_unit unit;
  cg_unit_init(&unit, heap, target);
  quern_status status = emit_all(&unit, text, n, kernels);
  cg_unit_fini(&unit);
  return status;
}

quern_status rt_null_texts(struct base_heap *heap, size_t n, const struct kern *const *kernels,
                           const struct cg_target *target) {
  struct base_str text;
  base_str_init(&text, heap);
  quern_status status = text_of(heap, n, kernels, target, &text);
  base_str_fini(&text);
  return status;
}

/* ---- CUDA C ------------------------------------------------------------------------------------------------ */

static atomic_bool wants_quick;
void rt_null_quick(bool quick) { atomic_store(&wants_quick, quick); }

static rt_null_wants *wanted;
void rt_null_choose(rt_null_wants *wants) { wanted = wants; }

/* Of n kernels those that a test wants to see compiled. */
static quern_status choose(struct base_heap *heap, size_t n, const struct kern *const *kernels,
                           const struct cg_target *target, size_t *n_chosen, const struct kern **chosen) {
  *n_chosen = 0;
  for (size_t i = 0; i < n; i++) {
    struct base_str text;
    base_str_init(&text, heap);
    quern_status status = text_of(heap, 1, &kernels[i], target, &text);
    bool wants = status == QUERN_STATUS_OK && wanted(target, base_hash_bytes(0, text.at, text.n));
    base_str_fini(&text);
    QUERN_TRY(status);
    if (wants) chosen[(*n_chosen)++] = kernels[i];
  }
  return QUERN_STATUS_OK;
}

static quern_status compile_by(const struct rt_gpu_compiler *compiler, struct base_heap *heap, size_t n,
                               const struct kern *const *kernels, const struct cg_target *target,
                               struct rt_stats *stats) {
  struct rt_gpu_units units;
  QUERN_TRY(rt_gpu_units_make(&units, heap, n, kernels, target, compiler, stats));
  quern_status status = rt_null_limits(&units, kernels, target);
  rt_gpu_units_fini(&units);
  return status;
}

static quern_status compile_kernels(struct base_heap *heap, size_t n, const struct kern *const *kernels,
                                    const struct cg_target *target, struct rt_stats *stats) {
  struct rt_nvrtc *nvrtc;
  char message[1024];
  QUERN_TRY(rt_nvrtc_open(&nvrtc));
  const struct rt_gpu_compiler compiler = rt_nvrtc_compiler(nvrtc, false), checker = rt_nvrtc_checker(nvrtc);
  if (!atomic_load(&wants_quick)) return compile_by(&compiler, heap, n, kernels, target, stats);
  quern_status status = compile_by(&checker, heap, n, kernels, target, stats);
  if (status != QUERN_STATUS_INTERNAL) return status;
  snprintf(message, sizeof message, "%s", quern_last_error());
  QUERN_TRY(compile_by(&compiler, heap, n, kernels, target, stats));
  return base_error(status, "kernels that can be compiled alone cannot be together: %s", message);
}

static quern_status compile_all(struct base_heap *heap, size_t n, const struct kern *const *kernels,
                                const struct cg_target *target, struct rt_stats *stats) {
  if (wanted == NULL) return compile_kernels(heap, n, kernels, target, stats);
  size_t n_chosen;
  const struct kern **chosen = base_alloc_zero(heap, (n + 1) * sizeof *chosen);
  if (chosen == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = choose(heap, n, kernels, target, &n_chosen, chosen);
  if (status == QUERN_STATUS_OK && n_chosen > 0) status = compile_kernels(heap, n_chosen, chosen, target, stats);
  base_free(heap, chosen, (n + 1) * sizeof *chosen);
  return status;
}

static quern_status build(const quern_device *device, struct rt_module **module, struct base_heap *heap, size_t n,
                          const struct kern *const *kernels, const struct cg_target *target, struct rt_stats *stats) {
  (void)device;
  double start = base_clock();
  struct rt_stats own = {0};
  *module = NULL;
  if (target->isa == CG_ISA_CUDA)
    QUERN_TRY(compile_all(heap, n, kernels, target, &own));
  else
    QUERN_TRY(rt_null_texts(heap, n, kernels, target));
  *module = base_alloc(heap, sizeof **module);
  if (*module == NULL) return QUERN_STATUS_MEMORY;
  (*module)->heap = heap;
  own.seconds = base_clock() - start;
  if (stats != NULL) *stats = own;
  return QUERN_STATUS_OK;
}

static void free_module(struct rt_module *module) {
  if (module != NULL) base_free(module->heap, module, sizeof *module);
}

static quern_status launch(struct rt_module *module, size_t k, const struct kern_launch *launch, struct rt_pool *pool,
                           char *scratch, size_t scratch_stride) {
  (void)module, (void)launch, (void)pool, (void)scratch, (void)scratch_stride;
  return base_error(QUERN_STATUS_UNSUPPORTED,
                    "device null: kernel %zu was not run: this device only checks that programs compile", k);
}

static void describe(const quern_device *device, struct base_heap *heap, char *text, size_t bytes) {
  (void)device;
  (void)heap;
  snprintf(text, bytes, "compiles everything but the C, CUDA C too, runs nothing");
}

const struct rt_backend rt_null = {.name = "null",
                                   .alike = RT_MOST_DEVICES,
                                   .describe = describe,
                                   .target = find_target,
                                   .build = build,
                                   .free = free_module,
                                   .launch = launch};
