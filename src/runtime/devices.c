/* runtime/devices.c -- the devices by name
 */
#include "runtime/runtime.h"

static const struct rt_device *const devices[] = {&rt_cpu, &rt_interp, &rt_null, &rt_cuda, &rt_opencl};

const struct rt_device *rt_device_get(size_t i) { return i < BASE_COUNT(devices) ? devices[i] : NULL; }

quern_status rt_device_probe(const struct rt_device *device, const struct base_heap *heap) {
  struct base_heap own;
  struct rt_stream *stream;
  if (device->remote == NULL) return QUERN_STATUS_OK;
  base_heap_init(&own, &heap->user);
  QUERN_TRY(device->remote->open(&stream, &own));
  device->remote->close(stream);
  return QUERN_STATUS_OK;
}

const struct rt_device *rt_device_find(const char *name) {
  for (size_t i = 0; i < BASE_COUNT(devices); i++) {
    if (strcmp(devices[i]->name, name) == 0) return devices[i];
  }
  return NULL;
}
