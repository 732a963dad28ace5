/* engine/device_info.c -- the devices there are and what they can do (quern/profile.h)
** tests: tests/engine/test_profile.c
*/
#include <stdio.h>

#include "engine/engine.h"
#include "prof/prof.h"
#include "quern/profile.h"

static void fill_limits(quern_limits *limits, const struct prof_limits *got) {
  *limits = (quern_limits){.threads = got->threads,
                           .flops_f32 = got->flops_f32,
                           .flops_f64 = got->flops_f64,
                           .copy = got->copy,
                           .launch = got->launch,
                           .flops_tf32 = got->flops_tf32,
                           .flops_bf16 = got->flops_bf16,
                           .flops_f16 = got->flops_f16};
  for (int i = 0; i < PROF_LEVELS; i++) {
    limits->bytes[i] = got->bytes[i];
    limits->bandwidth[i] = got->bandwidth[i];
  }
}

quern_status quern_device_limits_of(quern_limits *limits, const char *device, bool again) {
  QUERN_CHECK(limits != NULL, INVALID, "device_limits_of: the place for the limits is null");
  QUERN_CHECK(device != NULL, INVALID, "device_limits_of: the device is null");
  const struct rt_device *found = rt_device_find(device);
  QUERN_CHECK(found != NULL, INVALID, "device_limits_of: there is no device '%s'", device);
  if (found == &rt_cpu) return quern_device_limits(limits, 0, again);
  QUERN_CHECK(found->measure != NULL, UNSUPPORTED, "device_limits_of: nothing can be measured of device %s", device);
  QUERN_TRY(base_env_read());
  struct base_heap heap;
  struct prof_limits got;
  struct cg_target target;
  base_heap_init(&heap, NULL);
  QUERN_TRY(found->target(&target));
  QUERN_TRY(prof_device_limits_get(&got, &heap, found, &target, again));
  fill_limits(limits, &got);
  return QUERN_STATUS_OK;
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
  fill_limits(limits, &got);
  return QUERN_STATUS_OK;
}

double quern_limits_floor(const quern_limits *limits, quern_dtype dtype, double flops, double bytes, double footprint) {
  if (limits == NULL) return 0;
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

size_t quern_devices(void) {
  size_t n = 0;
  while (rt_device_get(n) != NULL) n++;
  return n;
}

quern_status quern_device_get(size_t i, quern_device *device) {
  static _Thread_local char detail[1024];
  char text[1024], more[256] = "";
  QUERN_CHECK(device != NULL, INVALID, "device_get: the place for the device is null");
  const struct rt_device *found = rt_device_get(i);
  QUERN_CHECK(found != NULL, INVALID, "device_get: there are %zu devices, number %zu is asked for", quern_devices(), i);
  QUERN_TRY(base_env_read());
  struct cg_target target;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  QUERN_TRY(found->target(&target));
  found->describe(&heap, text, sizeof text);
  if (found->describe_more != NULL) found->describe_more(more, sizeof more);
  size_t n = strlen(text);
  if (more[0] != 0) snprintf(text + n, sizeof text - n, ", %s", more);
  base_text_shown(detail, sizeof detail, text,
                  false); /* compilers and drivers describe themselves with any characters */
  *device = (quern_device){.name = found->name,
                           .target = target.base.name,
                           .detail = detail,
                           .threads = target.base.gpu ? target.base.threads : rt_default_threads(),
                           .caches = {target.base.l1_bytes, target.base.l2_bytes, target.base.l3_bytes}};
  return QUERN_STATUS_OK;
}
