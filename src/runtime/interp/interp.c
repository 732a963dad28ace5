/* runtime/interp/interp.c -- the device that interprets: the kernels the cpu device would compile, without a compiler
** keeps: tasks run one after another, in the order of their numbers
** see:   kern/interp.c                             tests: tests/runtime/test_devices.c
*/
#include "runtime/runtime.h"

#include <stdio.h>

struct rt_module {
  struct base_heap *heap;
  size_t n;
  const struct kern *kernels[]; /* of the caller, who keeps them */
};

static quern_status find_target(const quern_device *device, struct cg_target *target) {
  (void)device;
  cg_target_detect(target);
  target->base.threads = rt_default_threads();
  return QUERN_STATUS_OK;
}

static quern_status build(const quern_device *device, struct rt_module **module, struct base_heap *heap, size_t n,
                          const struct kern *const *kernels, const struct cg_target *target, struct rt_stats *stats) {
  (void)device, (void)target;
  double start = base_clock();
  size_t bytes;
  *module = NULL;
  QUERN_CHECK(base_size(n, sizeof *kernels, sizeof **module, &bytes), MEMORY, "no memory for %zu kernels", n);
  struct rt_module *made = base_alloc(heap, bytes);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  made->heap = heap;
  made->n = n;
  for (size_t i = 0; i < n; i++) made->kernels[i] = kernels[i];
  *module = made;
  if (stats != NULL) *stats = (struct rt_stats){.seconds = base_clock() - start};
  return QUERN_STATUS_OK;
}

static void free_module(struct rt_module *module) {
  if (module != NULL) base_free(module->heap, module, sizeof *module + module->n * sizeof *module->kernels);
}

static quern_status launch(struct rt_module *module, size_t k, const struct kern_launch *launch, struct rt_pool *pool,
                           char *scratch, size_t scratch_stride) {
  (void)pool, (void)scratch, (void)scratch_stride; /* the interpreter poisons scratch of its own */
  QUERN_ASSERT(k < module->n);
  if (launch->runs != NULL) launch->runs->interpreted++;
  return kern_interp(module->kernels[k], launch, 0);
}

static void describe(const quern_device *device, struct base_heap *heap, char *text, size_t bytes) {
  (void)device;
  (void)heap;
  snprintf(text, bytes, "the kernel interpreter: slow, and checks what kernels do");
}

const struct rt_backend rt_interp = {.name = "interp",
                                     .alike = RT_MOST_DEVICES,
                                     .describe = describe,
                                     .target = find_target,
                                     .build = build,
                                     .free = free_module,
                                     .launch = launch};
