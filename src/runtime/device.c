/* runtime/device.c -- the devices by name
 */
#include "runtime/runtime.h"

static const struct rt_device *const devices[] = {&rt_cpu, &rt_interp, &rt_null, &rt_cuda, &rt_opencl};

const struct rt_device *rt_device_get(size_t i) { return i < BASE_COUNT(devices) ? devices[i] : NULL; }

const struct rt_device *rt_device_find(const char *name) {
  for (size_t i = 0; i < BASE_COUNT(devices); i++) {
    if (strcmp(devices[i]->name, name) == 0) return devices[i];
  }
  return NULL;
}
