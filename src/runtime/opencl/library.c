/* runtime/opencl/library.c -- libOpenCL and its devices
** keeps: nothing of OpenCL is needed to build Quern, or to run anything else of it
** tests: tests/engine/test_remote.c, tests/engine/test_devices.c
*/
#include "runtime/opencl/opencl.h"

#include <dlfcn.h>
#include <stdio.h>

enum {
  DEVICE_TYPE_GPU = 1 << 2,
  DEVICE_TYPE_ALL = -1,
  PLATFORM_NAME = 0x0902,
  DEVICE_GLOBAL_MEMORY = 0x101F,
  DEVICE_NAME = 0x102B,
  DRIVER_VERSION = 0x102D,
  DEVICE_VERSION = 0x102F,
  DEVICE_DOUBLE_FP_CONFIG = 0x1032,
  MOST_PLATFORMS = 8,
  MOST_OF_PLATFORM = 16
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

/* What the process has loaded, which does not change any more: the functions of libOpenCL, and the devices that compute
** in f64. */
static struct {
  struct rt_once once;
  struct rt_cl cl; /* of no device */
  int n, n_gpus;
  uint32_t n_all; /* those that do not, too */
  void *devices[RT_MOST_DEVICES];
} loaded = {.once = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static quern_status find_functions(struct rt_cl *cl) {
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

/* A device goes to the end of the list, unless it is there or does not compute in f64. */
static void add_device(const struct rt_cl *cl, void *device) {
  uint64_t doubles = 0;
  int32_t code = cl->clGetDeviceInfo(device, DEVICE_DOUBLE_FP_CONFIG, sizeof doubles, &doubles, NULL);
  bool takes = code == 0 && doubles != 0 && loaded.n < RT_MOST_DEVICES;
  for (int i = 0; i < loaded.n; i++) takes = takes && loaded.devices[i] != device;
  if (takes) loaded.devices[loaded.n++] = device;
}

/* The devices of a type. */
static void add_devices(const struct rt_cl *cl, uint64_t type) {
  void *platforms[MOST_PLATFORMS], *devices[MOST_OF_PLATFORM];
  uint32_t n_platforms = 0, n;
  if (cl->clGetPlatformIDs(MOST_PLATFORMS, platforms, &n_platforms) != 0) return;
  for (uint32_t p = 0; p < BASE_MIN(n_platforms, MOST_PLATFORMS); p++) {
    if (cl->clGetDeviceIDs(platforms[p], type, MOST_OF_PLATFORM, devices, &n) != 0) continue;
    loaded.n_all += n;
    for (uint32_t d = 0; d < BASE_MIN(n, MOST_OF_PLATFORM); d++) add_device(cl, devices[d]);
  }
}

/* A compiler may be part of what starts here. */
static quern_status load(void *unused) {
  struct base_signals signals;
  const struct rt_cl *cl = &loaded.cl;
  (void)unused;
  QUERN_TRY(find_functions(&loaded.cl));
  base_signals_hold(&signals);
  add_devices(cl, DEVICE_TYPE_GPU);
  loaded.n_gpus = loaded.n;
  add_devices(cl, (uint64_t)(int64_t)DEVICE_TYPE_ALL);
  base_signals_release(&signals);
  QUERN_CHECK(loaded.n > 0, UNSUPPORTED,
              loaded.n_all == 0 ? "opencl: there is no device HINT: pocl-opencl-icd is one"
                                : "opencl: no device computes in f64");
  return QUERN_STATUS_OK;
}

quern_status rt_cl_suits(const quern_device *device) {
  int n;
  QUERN_TRY(rt_cl_count(&n));
  QUERN_CHECK(device->ordinal < loaded.n_gpus, UNSUPPORTED, "opencl: no GPU is among its %d device%s", n,
              n == 1 ? "" : "s");
  return QUERN_STATUS_OK;
}

quern_status rt_cl_count(int *n) {
  QUERN_TRY(rt_once(&loaded.once, load, NULL));
  *n = loaded.n;
  return QUERN_STATUS_OK;
}

/* Appends what is known, after a comma. */
static void add_info(const struct rt_cl *cl, uint32_t what, char *text, size_t bytes) {
  char more[512];
  size_t n = strlen(text);
  if (cl->clGetDeviceInfo(cl->device, what, sizeof more, more, NULL) == 0)
    snprintf(text + n, bytes - n, "%s%s", n > 0 ? ", " : "", more);
}

static quern_status open_ordinal(struct rt_cl *cl, int ordinal) {
  int32_t code;
  int n;
  QUERN_TRY(rt_cl_count(&n));
  QUERN_CHECK(ordinal < n, INVALID, "opencl:%d: there is no such device: OpenCL shows %d", ordinal, n);
  *cl = loaded.cl;
  cl->ordinal = ordinal;
  cl->device = loaded.devices[ordinal];
  pthread_mutex_init(&cl->lock, NULL);
  QUERN_TRY(rt_cl_check(cl->clGetDeviceInfo(cl->device, DEVICE_NAME, sizeof cl->name, cl->name, NULL), "its name"));
  if (cl->clGetDeviceInfo(cl->device, DEVICE_GLOBAL_MEMORY, sizeof cl->memory, &cl->memory, NULL) != 0) cl->memory = 0;
  const uint32_t parts[] = {DEVICE_NAME, DEVICE_VERSION, DRIVER_VERSION};
  for (size_t i = 0; i < BASE_COUNT(parts); i++) add_info(cl, parts[i], cl->identity, sizeof cl->identity);
  cl->context = cl->clCreateContext(NULL, 1, &cl->device, NULL, NULL, &code);
  return rt_cl_check(code, "a context");
}

static quern_status open_device(const quern_device *device, void **state) {
  struct base_signals signals;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  struct rt_cl *cl = base_alloc_zero(&heap, sizeof *cl);
  if (cl == NULL) return QUERN_STATUS_MEMORY;
  base_signals_hold(&signals); /* a compiler may be part of it */
  quern_status status = open_ordinal(cl, device->ordinal);
  base_signals_release(&signals);
  *state = cl;
  if (status != QUERN_STATUS_OK) base_free(&heap, cl, sizeof *cl);
  return status;
}

void rt_cl_close(void *state) {
  struct rt_cl *cl = state;
  struct base_heap heap;
  (void)cl->clReleaseContext(cl->context);
  pthread_mutex_destroy(&cl->lock);
  base_heap_init(&heap, NULL);
  base_free(&heap, cl, sizeof *cl);
}

quern_status rt_cl_open(const quern_device *device, struct rt_cl **cl) {
  void *state;
  QUERN_TRY(rt_device_open(device, open_device, &state));
  *cl = state;
  return QUERN_STATUS_OK;
}
