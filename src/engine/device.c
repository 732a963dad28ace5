/* engine/device.c -- the devices there are and what they can do (quern/profile.h)
** tests: tests/engine/test_profile.c
*/
#include "engine/engine.h"
#include "prof/prof.h"
#include "quern/profile.h"

static const struct rt_device *const devices[] = {&rt_cpu, &rt_interp, &rt_null};

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
  *limits = (quern_limits){.threads = got.threads,
                           .flops_f32 = got.flops_f32,
                           .flops_f64 = got.flops_f64,
                           .copy = got.copy,
                           .launch = got.launch};
  for (int i = 0; i < PROF_LEVELS; i++) {
    limits->bytes[i] = got.bytes[i];
    limits->bandwidth[i] = got.bandwidth[i];
  }
  return QUERN_STATUS_OK;
}

double quern_limits_floor(const quern_limits *limits, quern_dtype dtype, double flops, double bytes, double footprint) {
  if (limits == NULL) return 0;
  struct prof_limits known = {.threads = limits->threads,
                              .flops_f32 = limits->flops_f32,
                              .flops_f64 = limits->flops_f64,
                              .launch = limits->launch};
  for (int i = 0; i < PROF_LEVELS; i++) {
    known.bytes[i] = limits->bytes[i];
    known.bandwidth[i] = limits->bandwidth[i];
  }
  enum prof_bound bound;
  return prof_floor(&known, &(struct kern_cost){flops, bytes}, dtype, footprint, &bound);
}

size_t quern_devices(void) { return BASE_COUNT(devices); }

quern_status quern_device_get(size_t i, quern_device *device) {
  static _Thread_local char detail[256];
  QUERN_CHECK(device != NULL, INVALID, "device_get: the place for the device is null");
  QUERN_CHECK(i < BASE_COUNT(devices), INVALID, "device_get: there are %zu devices, number %zu is asked for",
              BASE_COUNT(devices), i);
  QUERN_TRY(base_env_read());
  struct cg_target target;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  QUERN_TRY(devices[i]->target(&target));
  devices[i]->describe(&heap, detail, sizeof detail);
  *device = (quern_device){.name = devices[i]->name,
                           .target = target.base.name,
                           .detail = detail,
                           .threads = rt_default_threads(),
                           .caches = {target.base.l1_bytes, target.base.l2_bytes, target.base.l3_bytes}};
  return QUERN_STATUS_OK;
}
