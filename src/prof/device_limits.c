/* prof/device_limits.c -- the limits of whatever a program runs on: of the CPU, or of a GPU as its device measures it
** What was measured of a GPU is kept in the cache under the device's own description.
** tests: tests/prof/test_calibrate.c
*/
#include <stdio.h>

#include "prof/prof.h"

/* ---- of a GPU ------------------------------------------------------------------------------------------- */

static bool parse(const char *text, struct rt_rates *r) {
  return sscanf(text, "rates 1 %lf %lf %lf %lf %lf %lf %lf %lf", &r->f32, &r->tf32, &r->bf16, &r->f16, &r->f64,
                &r->copy, &r->cached, &r->launch) == 8;
}

static void print(const struct rt_rates *r, char *text, size_t bytes) {
  snprintf(text, bytes, "rates 1 %.6g %.6g %.6g %.6g %.6g %.6g %.6g %.6g", r->f32, r->tf32, r->bf16, r->f16, r->f64,
           r->copy, r->cached, r->launch);
}

static void rates_key(const struct rt_device *device, struct base_heap *heap, char *key, size_t bytes) {
  int n = snprintf(key, bytes, "rates %s, ", device->name);
  device->describe(heap, key + n, bytes - (size_t)n);
}

/* All levels but memory are its cache. */
static struct prof_limits limits_of(const struct rt_rates *r, const struct cg_target *target) {
  struct prof_limits limits = {.threads = target->base.threads,
                               .flops_f32 = r->f32,
                               .flops_f64 = r->f64,
                               .flops_tf32 = r->tf32,
                               .flops_bf16 = r->bf16,
                               .flops_f16 = r->f16,
                               .copy = r->copy,
                               .launch = r->launch};
  for (int i = 0; i < PROF_LEVELS; i++) {
    limits.bytes[i] = target->base.l3_bytes;
    limits.bandwidth[i] = i == PROF_DRAM ? r->copy : r->cached;
  }
  return limits;
}

/* ---- of a device ---------------------------------------------------------------------------------------- */

bool prof_device_limits_find(struct prof_limits *limits, struct base_heap *heap, const struct rt_device *device,
                             const struct cg_target *target) {
  char key[1024], text[512] = "";
  struct rt_rates rates;
  *limits = (struct prof_limits){0};
  if (!target->base.gpu) return prof_limits_find(limits, heap, target->base.threads);
  if (device->measure == NULL) return false;
  rates_key(device, heap, key, sizeof key);
  rt_note_get(heap, key, text, sizeof text);
  if (!parse(text, &rates)) return false;
  *limits = limits_of(&rates, target);
  return true;
}

quern_status prof_device_limits_get(struct prof_limits *limits, struct base_heap *heap, const struct rt_device *device,
                                    const struct cg_target *target, bool again) {
  char key[1024], text[512];
  struct rt_rates rates;
  if (!target->base.gpu) return prof_limits_get(limits, heap, target->base.threads, again);
  if (!again && prof_device_limits_find(limits, heap, device, target)) return QUERN_STATUS_OK;
  *limits = (struct prof_limits){0};
  if (device->measure == NULL) return QUERN_STATUS_OK;
  QUERN_TRY(device->measure(heap, &rates));
  print(&rates, text, sizeof text);
  rates_key(device, heap, key, sizeof key);
  rt_note_set(heap, key, text);
  *limits = limits_of(&rates, target);
  return QUERN_STATUS_OK;
}
