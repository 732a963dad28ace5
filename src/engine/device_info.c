/* engine/device_info.c -- the devices there are and what they can do (quern/device.h, quern/profile.h)
** tests: tests/engine/test_devices.c, tests/engine/test_profile.c
*/
#include <stdio.h>
#include <unistd.h>

#include "engine/engine.h"
#include "prof/prof.h"
#include "quern/profile.h"

static quern_status give_limits(const char *what, quern_limits *limits, const struct prof_limits *got) {
  quern_limits known = {.threads = got->threads,
                        .flops_f32 = got->flops_f32,
                        .flops_f64 = got->flops_f64,
                        .copy = got->copy,
                        .launch = got->launch,
                        .flops_tf32 = got->flops_tf32,
                        .flops_bf16 = got->flops_bf16,
                        .flops_f16 = got->flops_f16};
  for (int i = 0; i < PROF_LEVELS; i++) {
    known.bytes[i] = got->bytes[i];
    known.bandwidth[i] = got->bandwidth[i];
  }
  return base_give(quern_limits, limits, &known, what);
}

quern_status quern_device_limits_of(quern_limits *limits, const char *device, bool again) {
  QUERN_CHECK(limits != NULL, INVALID, "device_limits_of: the place for the limits is null");
  QUERN_CHECK(device != NULL, INVALID, "device_limits_of: the device is null");
  const quern_device *found;
  QUERN_TRY(rt_device_find(&found, "device_limits_of", device));
  if (found->backend == &rt_cpu) return quern_device_limits(limits, 0, again);
  QUERN_CHECK(found->backend->measure != NULL, UNSUPPORTED, "device_limits_of: nothing can be measured of device %s",
              found->name);
  QUERN_TRY(base_env_read());
  struct base_heap heap;
  struct prof_limits got;
  struct cg_target target;
  base_heap_init(&heap, NULL);
  QUERN_TRY(found->backend->target(found, &target));
  QUERN_TRY(prof_device_limits_get(&got, &heap, found, &target, again));
  return give_limits("device_limits_of", limits, &got);
}

quern_status quern_device_limits(quern_limits *limits, int threads, bool again) {
  QUERN_CHECK(limits != NULL, INVALID, "device_limits: the place for the limits is null");
  QUERN_CHECK(threads >= 0 && threads <= RT_MAX_THREADS, INVALID, "device_limits: %d threads; must be 0 to %d", threads,
              RT_MAX_THREADS);
  QUERN_TRY(base_env_read());
  struct base_heap heap;
  struct prof_limits got;
  base_heap_init(&heap, NULL);
  QUERN_TRY(prof_limits_get(&got, &heap, threads > 0 ? threads : rt_default_threads(), again));
  QUERN_CHECK(got.flops_f32 > 0, UNSUPPORTED,
              "device_limits: no C compiler works, so nothing can be measured HINT: QUERN_CC");
  return give_limits("device_limits", limits, &got);
}

double quern_limits_floor(const quern_limits *limits, quern_dtype dtype, double flops, double bytes, double footprint) {
  quern_limits taken = QUERN_INIT(quern_limits);
  if (limits == NULL || base_take(quern_limits, &taken, limits, "limits_floor") != QUERN_STATUS_OK) return 0;
  limits = &taken;
  struct prof_limits known = {.threads = limits->threads,
                              .flops_f32 = limits->flops_f32,
                              .flops_f64 = limits->flops_f64,
                              .flops_tf32 = limits->flops_tf32,
                              .flops_bf16 = limits->flops_bf16,
                              .flops_f16 = limits->flops_f16,
                              .launch = limits->launch};
  for (int i = 0; i < PROF_LEVELS; i++) {
    known.bytes[i] = limits->bytes[i];
    known.bandwidth[i] = limits->bandwidth[i];
  }
  enum prof_bound bound;
  return prof_floor(&known, &(struct kern_cost){flops, bytes}, dtype, footprint, &bound);
}

/* ---- devices ---------------------------------------------------------------------------------------------- */

const char *quern_device_kind(size_t i) {
  const struct rt_backend *backend = rt_backend_get(i);
  return backend != NULL ? backend->name : NULL;
}

size_t quern_device_count(const char *kind) {
  size_t all = 0;
  bool known = kind == NULL;
  if (base_env_read() != QUERN_STATUS_OK) return 0;
  for (size_t i = 0; rt_backend_get(i) != NULL; i++) {
    int n;
    const struct rt_backend *backend = rt_backend_get(i);
    if (kind != NULL && strcmp(kind, backend->name) != 0) continue;
    known = true;
    if (rt_device_count(backend, &n) == QUERN_STATUS_OK) all += (size_t)n;
  }
  if (!known) (void)base_error(QUERN_STATUS_INVALID, "device_count: there is no kind of device \"%.64s\"", kind);
  return all;
}

quern_status quern_device_open(quern_device **device, const char *name) {
  const quern_device *found;
  struct base_heap heap;
  QUERN_CHECK(device != NULL, INVALID, "device_open: the place for the device is null");
  *device = NULL;
  QUERN_TRY(base_env_read());
  if (name != NULL && strcmp(name, "auto") == 0) {
    found = rt_device_best(); /* who has a handle can ask what it is: nothing is logged */
  } else {
    QUERN_TRY(rt_device_named(&found, "device_open", name));
    rt_device_hold(found);
  }
  base_heap_init(&heap, NULL);
  quern_status status = rt_device_probe(found, &heap);
  if (status == QUERN_STATUS_OK)
    *device = (quern_device *)found; /* nothing of it is the caller's to change */
  else
    rt_device_drop(found);
  return status;
}

void quern_device_free(quern_device *device) {
  if (device != NULL) rt_device_drop(device);
}

/* Compilers and drivers say what they like of themselves. */
static void describe(const quern_device *device, char *shown, size_t bytes) {
  struct base_heap heap;
  char text[1024] = "", more[256] = "";
  base_heap_init(&heap, NULL);
  device->backend->describe(device, &heap, text, sizeof text);
  if (device->backend->describe_more != NULL) device->backend->describe_more(device, more, sizeof more);
  size_t n = strlen(text);
  if (more[0] != 0) snprintf(text + n, sizeof text - n, ", %s", more);
  base_text_shown(shown, bytes, text, false);
}

/* Of the machine, where the device has no memory of its own. */
static void find_memory(const quern_device *device, quern_device_info *info) {
  if (engine_device_room(device, &info->free_bytes, &info->total_bytes) != QUERN_STATUS_OK) return;
  if (device->backend->memory != NULL) info->total_bytes = device->backend->memory(device);
  if (info->own_memory) return;
  int64_t page = sysconf(_SC_PAGESIZE), all = sysconf(_SC_PHYS_PAGES), left = sysconf(_SC_AVPHYS_PAGES);
  if (page <= 0 || all <= 0 || left < 0) return;
  info->total_bytes = all * page;
  info->free_bytes = left * page;
}

quern_status quern_device_get_info(const quern_device *device, quern_device_info *info) {
  static _Thread_local char detail[1024];
  enum { SM_BF16 = 80 };
  struct cg_target target;
  int sm = 0;
  QUERN_CHECK(device != NULL, INVALID, "device_get_info: the device is null");
  QUERN_CHECK(info != NULL, INVALID, "device_get_info: the place for the figures is null");
  QUERN_TRY(base_env_read());
  const struct rt_backend *backend = device->backend;
  QUERN_TRY(backend->target(device, &target));
  describe(device, detail, sizeof detail);
  int libraries = target.base.capabilities;
  quern_device_info found = {.kind = backend->name,
                             .name = device->name,
                             .ordinal = device->ordinal,
                             .model = backend->model != NULL ? backend->model(device) : "",
                             .target = target.base.name,
                             .detail = detail,
                             .threads = target.base.gpu ? target.base.threads : rt_default_threads(),
                             .caches = {target.base.l1_bytes, target.base.l2_bytes, target.base.l3_bytes},
                             .gpu = target.base.gpu,
                             .own_memory = device->remote != NULL,
                             .simulated = backend == &rt_interp || backend == &rt_null,
                             .tensor_cores = (libraries & BASE_TENSOR_CORES) != 0,
                             .bf16 = sscanf(target.base.name, "sm_%d", &sm) == 1 && sm >= SM_BF16,
                             .f64 = true, /* OpenCL's without it are left out */
                             .cublaslt = (libraries & BASE_LIBRARY_BLAS) != 0,
                             .cudnn = (libraries & BASE_LIBRARY_DNN) != 0};
  find_memory(device, &found);
  return base_give(quern_device_info, info, &found, "device_get_info");
}
