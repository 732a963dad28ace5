/* runtime/opencl/library.c -- libOpenCL and one device of it
** keeps: nothing of OpenCL is needed to build Quern, or to run anything else of it
** tests: tests/engine/test_remote.c
*/
#include "runtime/opencl/opencl.h"

#include <dlfcn.h>
#include <stdio.h>

enum {
  DEVICE_TYPE_GPU = 1 << 2,
  DEVICE_TYPE_ALL = -1,
  PLATFORM_NAME = 0x0902,
  DEVICE_NAME = 0x102B,
  DRIVER_VERSION = 0x102D,
  DEVICE_VERSION = 0x102F,
  DEVICE_DOUBLE_FP_CONFIG = 0x1032,
  MOST_PLATFORMS = 8,
  MOST_DEVICES = 16
};

quern_status rt_cl_check(int32_t code, const char *what) {
  static const struct {
    int32_t code;
    const char *text;
  } names[] = {{-2, "the device is not available"},
               {-4, "no memory for the buffer"},
               {-5, "out of resources"},
               {-6, "no memory on the host"},
               {-11, "the program does not build"},
               {-14, "something before it failed"},
               {-42, "the binary is not one of this device"},
               {-44, "the program cannot be run"},
               {-52, "arguments are missing"},
               {-54, "groups of this size are not possible"},
               {-61, "the buffer is larger than the device allows"}};
  if (code == 0) return QUERN_STATUS_OK;
  const char *text = "it failed";
  for (size_t i = 0; i < BASE_COUNT(names); i++)
    if (names[i].code == code) text = names[i].text;
  bool memory = code == -4 || code == -6 || code == -61;
  return base_error(memory ? QUERN_STATUS_MEMORY : QUERN_STATUS_INTERNAL, "opencl: %s: %s (error %d)", what, text,
                    (int)code);
}

static quern_status load(struct rt_cl *cl) {
  void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  QUERN_CHECK(library != NULL, UNSUPPORTED,
              "opencl: libOpenCL.so.1 is not installed HINT: ocl-icd-libopencl1 and the driver of a device, such as "
              "pocl-opencl-icd");
#define FUNCTION(RESULT, NAME, PARAMETERS)                                                                             \
  *(void **)&cl->NAME = dlsym(library, #NAME);                                                                         \
  QUERN_CHECK(cl->NAME != NULL, UNSUPPORTED, "opencl: libOpenCL.so.1 has no function " #NAME);
#include "runtime/opencl/functions.def"
#undef FUNCTION
  return QUERN_STATUS_OK;
}

/* The first device of a type that computes in f64. */
static void *find_device(const struct rt_cl *cl, uint64_t type, uint32_t *n_devices) {
  void *platforms[MOST_PLATFORMS], *devices[MOST_DEVICES];
  uint32_t n_platforms = 0, n;
  if (cl->clGetPlatformIDs(MOST_PLATFORMS, platforms, &n_platforms) != 0) return NULL;
  for (uint32_t p = 0; p < BASE_MIN(n_platforms, MOST_PLATFORMS); p++) {
    if (cl->clGetDeviceIDs(platforms[p], type, MOST_DEVICES, devices, &n) != 0) continue;
    *n_devices += n;
    for (uint32_t d = 0; d < BASE_MIN(n, MOST_DEVICES); d++) {
      uint64_t doubles = 0;
      int32_t code = cl->clGetDeviceInfo(devices[d], DEVICE_DOUBLE_FP_CONFIG, sizeof doubles, &doubles, NULL);
      if (code == 0 && doubles != 0) return devices[d];
    }
  }
  return NULL;
}

/* Appends what is known, after a comma. */
static void add_info(const struct rt_cl *cl, uint32_t what, char *text, size_t bytes) {
  char more[512];
  size_t n = strlen(text);
  if (cl->clGetDeviceInfo(cl->device, what, sizeof more, more, NULL) == 0)
    snprintf(text + n, bytes - n, "%s%s", n > 0 ? ", " : "", more);
}

static quern_status open_device(struct rt_cl *cl) {
  uint32_t n = 0;
  int32_t code;
  QUERN_TRY(load(cl));
  cl->device = find_device(cl, DEVICE_TYPE_GPU, &n);
  if (cl->device == NULL) cl->device = find_device(cl, (uint64_t)(int64_t)DEVICE_TYPE_ALL, &n);
  QUERN_CHECK(cl->device != NULL, UNSUPPORTED,
              n == 0 ? "opencl: there is no device HINT: pocl-opencl-icd is one" : "opencl: no device computes in f64");
  QUERN_TRY(rt_cl_check(cl->clGetDeviceInfo(cl->device, DEVICE_NAME, sizeof cl->name, cl->name, NULL), "its name"));
  const uint32_t parts[] = {DEVICE_NAME, DEVICE_VERSION, DRIVER_VERSION};
  for (size_t i = 0; i < BASE_COUNT(parts); i++) add_info(cl, parts[i], cl->identity, sizeof cl->identity);
  cl->context = cl->clCreateContext(NULL, 1, &cl->device, NULL, NULL, &code);
  return rt_cl_check(code, "a context");
}

quern_status rt_cl_open(struct rt_cl **cl) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static struct rt_cl opened = {.lock = PTHREAD_MUTEX_INITIALIZER};
  static quern_status status = QUERN_STATUS_OK;
  static char error[512];
  static bool tried;
  pthread_mutex_lock(&lock);
  if (!tried) {
    struct base_signals signals;
    base_signals_hold(&signals); /* a compiler may be part of it */
    status = open_device(&opened);
    base_signals_release(&signals);
    if (status != QUERN_STATUS_OK) snprintf(error, sizeof error, "%s", quern_last_error());
    tried = true;
  }
  pthread_mutex_unlock(&lock);
  *cl = &opened;
  return status == QUERN_STATUS_OK ? status : base_error(status, "%s", error);
}
