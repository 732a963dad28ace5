/* runtime/cpu/cpu.c -- the device "cpu": kernels as C, compiled and run on all threads
** see:   runtime/README.md                        tests: tests/runtime/test_cpu.c
*/
#include "runtime/cpu/module.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static quern_status target(struct cg_target *target) {
  cg_target_detect(target);
  target->base.threads = rt_default_threads();
  return QUERN_STATUS_OK;
}

/* The first line of the compiler's own description. */
static void describe(struct base_heap *heap, char *text, size_t bytes) {
  char place[RT_PATH_BYTES];
  struct rt_cache cache;
  struct rt_cc cc;
  const char *folders = getenv("PATH");
  rt_cache_path(place, sizeof place);
  rt_cache_open(&cache, heap, place, RT_CACHE_LIMIT);
  quern_status status = rt_cc_find(&cc, heap, &cache, base_env_get(BASE_ENV_CC), folders ? folders : "", 0);
  if (status != QUERN_STATUS_OK)
    snprintf(text, bytes, "%s", quern_last_error());
  else if (cc.n_words == 0)
    snprintf(text, bytes, "no C compiler works: kernels are interpreted, which is slow");
  else
    snprintf(text, bytes, "C, compiled by %.*s", (int)strcspn(cc.version, "\n"), cc.version);
  rt_cache_close(&cache);
}

static void free_module(struct rt_module *module) {
  if (module && module->interpreted) rt_interp.free(module->interpreted);
  rt_module_free(module);
}

/* Said when something is interpreted, and not when it only could be: machines are measured without a compiler, in vain,
** while all that runs was saved compiled. */
static void warn_interpreted(void) {
  static _Atomic bool warned;
  if (!atomic_exchange(&warned, true))
    base_log(
        0, "there is no C compiler that works (cc, gcc, clang; see QUERN_CC): kernels are interpreted, which is slow");
}

static quern_status build(struct rt_module **out, struct base_heap *heap, size_t n, const struct kern *const *kernels,
                          const struct cg_target *target, struct rt_stats *stats) {
  struct rt_module *module;
  struct rt_stats own = {.room = stats ? stats->room : 0};
  bool compiler = true;
  double start = base_clock();
  *out = NULL;
  QUERN_TRY(rt_module_new(&module, heap, n));
  quern_status status = n == 0 ? QUERN_STATUS_OK : rt_module_build(module, kernels, target, &own, &compiler);
  if (status == QUERN_STATUS_OK && !compiler)
    status = rt_interp.build(&module->interpreted, heap, n, kernels, target, &own);
  if (status != QUERN_STATUS_OK) {
    if (stats) stats->least_room = own.least_room;
    free_module(module);
    return status;
  }
  own.seconds = base_clock() - start;
  base_log(1, "cpu: %zu kernels, %d units compiled, %d from the cache, %.1f ms", n, own.compiled, own.cached,
           own.seconds * 1e3);
  if (stats) *stats = own;
  *out = module;
  return QUERN_STATUS_OK;
}

/* ---- running ------------------------------------------------------------------------------------------- */

struct job {
  cg_entry *run;
  const struct kern_launch *launch;
  char *scratch;
  size_t stride;
};

static void run_range(void *arg, int64_t begin, int64_t end, int thread) {
  const struct job *job = arg;
  char *scratch = job->scratch ? job->scratch + (size_t)thread * job->stride : NULL;
  job->run(job->launch->mems, job->launch->scalars, begin, end, scratch);
}

static quern_status launch(struct rt_module *module, size_t k, const struct kern_launch *launch, struct rt_pool *pool,
                           char *scratch, size_t scratch_stride) {
  if (module->interpreted) warn_interpreted();
  if (module->interpreted) return rt_interp.launch(module->interpreted, k, launch, pool, scratch, scratch_stride);
  QUERN_ASSERT(k < module->n);
  if (launch->runs != NULL) launch->runs->compiled++;
  const struct rt_entry *entry = &module->entries[k];
  struct base_floats floats = base_floats_enter();
  for (int phase = 0; phase < entry->n_phases; phase++) {
    if (kern_phase_is_idle(&entry->phases[phase], launch->mems)) continue;
    struct job job = {.run = entry->run[phase], .launch = launch, .scratch = scratch, .stride = scratch_stride};
    rt_pool_run(pool, kern_task_count(&entry->phases[phase], launch->scalars), run_range, &job);
  }
  base_floats_leave(floats);
  return QUERN_STATUS_OK;
}

/* ---- objects ------------------------------------------------------------------------------------------- */

static size_t objects(const struct rt_module *module, const struct rt_object **list) {
  *list = module->objects.at;
  return module->objects.n;
}

static quern_status load_objects(struct rt_module *module, const struct kern *const *kernels, size_t n,
                                 const struct rt_object *list) {
  for (size_t i = 0; i < n; i++) {
    size_t number;
    struct rt_key key = rt_key_make(3, list[i].bytes, list[i].n);
    struct rt_bytes bytes = {.at = base_alloc(module->heap, list[i].n), .n = list[i].n, .room = list[i].n};
    if (!bytes.at) return QUERN_STATUS_MEMORY;
    memcpy(bytes.at, list[i].bytes, bytes.n);
    quern_status status = rt_module_load(module, &bytes, "", &key, &number);
    rt_bytes_free(module->heap, &bytes);
    QUERN_TRY(status);
  }
  for (size_t k = 0; k < module->n; k++) {
    bool found = false;
    for (size_t i = 0; i < n && !found; i++) found = rt_module_resolve(module, k, kernels[k], i);
    QUERN_CHECK(found, INVALID, "kernel %s is in none of the %zu objects", kernels[k]->name, n);
  }
  return QUERN_STATUS_OK;
}

static quern_status from_objects(struct rt_module **out, struct base_heap *heap, size_t n,
                                 const struct kern *const *kernels, size_t n_objects, const struct rt_object *list) {
  struct rt_module *module;
  *out = NULL;
  QUERN_TRY(rt_module_new(&module, heap, n));
  quern_status status = load_objects(module, kernels, n_objects, list);
  if (status == QUERN_STATUS_OK)
    *out = module;
  else
    rt_module_free(module);
  return status;
}

const struct rt_device rt_cpu = {
    .name = "cpu",
    .describe = describe,
    .target = target,
    .build = build,
    .free = free_module,
    .launch = launch,
    .objects = objects,
    .from_objects = from_objects,
    .identity = rt_compiler_key,
};
