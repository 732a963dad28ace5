/* tests/api/test_wrong_device.c -- wrong calls of device.h */
#include "api/wrong.h"

/* Rows leave it open. */
static quern_device *a_device(const char *name) {
  quern_device *device;
  assert_int_equal(quern_device_open(&device, name), QUERN_STATUS_OK);
  return device;
}

/* What a failed call leaves in the place for the device is NULL, which may be freed. */
static quern_status open_and_free(const char *name) {
  quern_device *device = (quern_device *)&device;
  quern_status status = quern_device_open(&device, name);
  assert_null(device);
  quern_device_free(device);
  return status;
}

static bool opened_twice(void) {
  quern_device *first = a_device("interp:3"), *second = a_device("interp:3"), *third = a_device("interp:4");
  quern_device_info info = {.size = sizeof info};
  bool good = first == second && first != third;
  quern_device_free(first);
  good = good && quern_device_get_info(second, &info) == QUERN_STATUS_OK;
  quern_device_free(second);
  quern_device_free(third);
  return good;
}

#define ROWS "api/wrong_device.def"
#include "api/rows.h"
