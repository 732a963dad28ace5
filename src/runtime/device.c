/* runtime/device.c -- the devices by name
 */
#include "runtime/runtime.h"

const struct rt_device *rt_device_find(const char *name) {
  static const struct rt_device *const devices[] = {&rt_cpu, &rt_interp, &rt_null};
  for (size_t i = 0; i < BASE_COUNT(devices); i++) {
    if (strcmp(devices[i]->name, name) == 0) return devices[i];
  }
  return NULL;
}
