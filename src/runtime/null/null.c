/* runtime/null/null.c -- the device that launches nothing: shows that every kernel has a C text
** tests: tests/runtime/test_devices.c
*/
#include "runtime/runtime.h"

#include <stdio.h>

struct rt_module {
  struct base_heap *heap;
};

static quern_status find_target(struct cg_target *target) {
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

static quern_status build(struct rt_module **module, struct base_heap *heap, size_t n,
                          const struct kern *const *kernels, const struct cg_target *target, struct rt_stats *stats) {
  double start = base_clock();
  struct cg_unit unit;
  struct base_str text;
  *module = NULL;
  base_str_init(&text, heap);
  cg_unit_init(&unit, heap, target);
  quern_status status = emit_all(&unit, &text, n, kernels);
  cg_unit_fini(&unit);
  base_str_fini(&text);
  QUERN_TRY(status);
  *module = base_alloc(heap, sizeof **module);
  if (*module == NULL) return QUERN_STATUS_MEMORY;
  (*module)->heap = heap;
  if (stats != NULL) *stats = (struct rt_stats){.seconds = base_clock() - start};
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

static void describe(struct base_heap *heap, char *text, size_t bytes) {
  (void)heap;
  snprintf(text, bytes, "compiles everything but the C, runs nothing");
}

const struct rt_device rt_null = {
    .name = "null", .describe = describe, .target = find_target, .build = build, .free = free_module, .launch = launch};
