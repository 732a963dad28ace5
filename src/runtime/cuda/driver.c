/* runtime/cuda/driver.c -- libcuda and one device of it
** The device is the first that the driver shows: CUDA_VISIBLE_DEVICES chooses. Its primary context is used, which other libraries of
** the process share; calls push it and pop it, so that the caller's own stays current.
** keeps: nothing of CUDA is needed to build Quern, or to run anything else of it
** tests: tests/runtime/test_gpu.c, make test-cuda
*/
#include "runtime/cuda/libraries.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { ATTRIBUTE_SMS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76, NO_DEVICE = 100 };

/* ---- errors ------------------------------------------------------------------------------------------------ */

/* What errors are, where they are not bugs of Quern. After one of DEVICE the driver refuses everything else. */
static const struct {
  int code;
  quern_status status;
} meanings[] = {
    {2, QUERN_STATUS_MEMORY},        /* out of memory */
    {4, QUERN_STATUS_DEVICE},        /* the driver is being shut down */
    {46, QUERN_STATUS_DEVICE},       /* the device is not available */
    {209, QUERN_STATUS_UNSUPPORTED}, /* no binary for this GPU */
    {214, QUERN_STATUS_DEVICE},      /* memory that cannot be corrected */
    {220, QUERN_STATUS_DEVICE},      /* a link that failed */
    {222, QUERN_STATUS_UNSUPPORTED}, /* PTX that is too new */
    {700, QUERN_STATUS_DEVICE},      /* an illegal address */
    {702, QUERN_STATUS_DEVICE},      /* it took too long */
    {709, QUERN_STATUS_DEVICE},      /* the context is gone */
    {710, QUERN_STATUS_DEVICE},      /* an assertion */
    {714, QUERN_STATUS_DEVICE},      /* the stack of the hardware */
    {715, QUERN_STATUS_DEVICE},      /* an illegal instruction */
    {716, QUERN_STATUS_DEVICE},      /* an address that is not aligned */
    {717, QUERN_STATUS_DEVICE},      /* an address of another space */
    {718, QUERN_STATUS_DEVICE},      /* an illegal program counter */
    {719, QUERN_STATUS_DEVICE},      /* a launch that failed */
    {721, QUERN_STATUS_DEVICE},      /* a launch that was ended */
    {801, QUERN_STATUS_UNSUPPORTED}, /* not on this machine */
    {999, QUERN_STATUS_DEVICE},      /* unknown */
};

static quern_status meaning_of(int code) {
  for (size_t i = 0; i < BASE_COUNT(meanings); i++)
    if (meanings[i].code == code) return meanings[i].status;
  return QUERN_STATUS_INTERNAL;
}

/* Remembers the first failure of the device: all later ones are reported with it. */
static void remember(struct rt_cuda_driver *driver, int code) {
  int none = 0;
  if (!atomic_compare_exchange_strong(&driver->lost, &none, -1)) return;
  snprintf(driver->failure, sizeof driver->failure, "%s", quern_last_error());
  atomic_store(&driver->lost, code);
}

quern_status rt_cuda_check(const struct rt_cuda_driver *driver, int code, const char *what) {
  const char *name = NULL, *text = NULL;
  if (code == 0) return QUERN_STATUS_OK;
  if (driver->lost > 0)
    return base_error(QUERN_STATUS_DEVICE, "%s, and nothing works since: %s", driver->failure, what);
  (void)driver->error_name(code, &name);
  (void)driver->error_string(code, &text);
  quern_status status = meaning_of(code);
  status = base_error(status, "cuda: %s: %s (%s)", what, text != NULL ? text : "it failed",
                      name != NULL ? name : "unknown error");
  if (status == QUERN_STATUS_DEVICE) remember((struct rt_cuda_driver *)driver, code); /* it is the process's */
  return status;
}

int rt_cuda_enter(const struct rt_cuda_driver *driver) {
  int lost = driver->lost;
  return lost > 0 ? lost : driver->context_push(driver->context);
}

int rt_cuda_leave(const struct rt_cuda_driver *driver, int code) {
  void *popped;
  int other = driver->context_pop(&popped);
  return code != 0 ? code : other;
}

/* ---- opening ----------------------------------------------------------------------------------------------- */

static quern_status load(struct rt_cuda_driver *driver) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  QUERN_CHECK(library != NULL, UNSUPPORTED, "cuda: there is no driver: libcuda.so.1 is not installed");
#define NVRTC(...)
#define DRIVER(NAME, SYMBOL, PARAMETERS)                                                                               \
  *(void **)&driver->NAME = dlsym(library, #SYMBOL);                                                                   \
  QUERN_CHECK(driver->NAME != NULL, UNSUPPORTED, "cuda: the driver has no function " #SYMBOL ": it is too old");
#define OPTIONAL(NAME, SYMBOL, PARAMETERS) *(void **)&driver->NAME = dlsym(library, #SYMBOL);
#include "runtime/cuda/functions.def"
#undef OPTIONAL
#undef DRIVER
#undef NVRTC
  return QUERN_STATUS_OK;
}

/* "sm_86" is 86. */
static int number_of(const struct cg_target *row) { return row->isa == CG_ISA_CUDA ? atoi(row->base.name + 3) : -1; }

const struct cg_target *rt_cuda_row(int major, int minor, bool *ptx) {
  const struct cg_target *best = NULL;
  for (size_t i = 0; i < cg_gpu_count; i++)
    if (number_of(&cg_gpus[i]) >= 0 && number_of(&cg_gpus[i]) <= 10 * major + minor) best = &cg_gpus[i];
  *ptx = best != NULL && number_of(best) / 10 != major;
  return best;
}

static quern_status find_device(struct rt_cuda_driver *d) {
  int n = 0;
  int code = d->init(0);
  QUERN_CHECK(code != NO_DEVICE, UNSUPPORTED, "cuda: the driver is there, but no GPU");
  QUERN_TRY(rt_cuda_check(d, code, "the driver does not start"));
  QUERN_TRY(rt_cuda_check(d, d->device_count(&n), "counting GPUs"));
  QUERN_CHECK(n > 0, UNSUPPORTED, "cuda: the driver is there, but no GPU HINT: CUDA_VISIBLE_DEVICES may hide it");
  QUERN_TRY(rt_cuda_check(d, d->device_get(&d->device, 0), "the first GPU"));
  (void)d->version(&d->driver_version);
  (void)d->device_name(d->name, sizeof d->name, d->device);
  QUERN_TRY(rt_cuda_check(d, d->device_attribute(&d->major, ATTRIBUTE_MAJOR, d->device), d->name));
  QUERN_TRY(rt_cuda_check(d, d->device_attribute(&d->minor, ATTRIBUTE_MINOR, d->device), d->name));
  QUERN_TRY(rt_cuda_check(d, d->device_attribute(&d->multiprocessors, ATTRIBUTE_SMS, d->device), d->name));
  d->target = rt_cuda_row(d->major, d->minor, &d->ptx);
  QUERN_CHECK(d->target != NULL, UNSUPPORTED, "cuda: %s is too old: its compute capability is %d.%d, 7.5 is needed",
              d->name, d->major, d->minor);
  return rt_cuda_check(d, d->context_retain(&d->context, d->device), "a context");
}

/* Libraries are loaded while the driver makes its context. */
static quern_status open_device(struct rt_cuda_driver *d) {
  struct base_thread thread;
  QUERN_TRY(load(d));
  bool preload = base_thread_start(&thread, rt_cuda_load_libraries, NULL) == QUERN_STATUS_OK;
  quern_status status = find_device(d);
  if (preload) base_thread_join(&thread);
  return status;
}

quern_status rt_once(struct rt_once *once, quern_status (*open)(void *what), void *what) {
  pthread_mutex_lock(&once->lock);
  if (!once->tried) {
    once->status = open(what);
    if (once->status != QUERN_STATUS_OK) snprintf(once->error, sizeof once->error, "%s", quern_last_error());
    once->tried = true;
  }
  pthread_mutex_unlock(&once->lock);
  return once->status == QUERN_STATUS_OK ? QUERN_STATUS_OK : base_error(once->status, "%s", once->error);
}

static struct rt_cuda_driver *_Atomic instead; /* of a test */

void rt_cuda_use(struct rt_cuda_driver *driver) { instead = driver; }

static quern_status open_device_any(void *what) { return open_device(what); }

quern_status rt_cuda_open(struct rt_cuda_driver **driver) {
  static struct rt_once once = {.lock = PTHREAD_MUTEX_INITIALIZER};
  static struct rt_cuda_driver opened;
  *driver = instead;
  if (*driver != NULL) return QUERN_STATUS_OK;
  *driver = &opened;
  return rt_once(&once, open_device_any, &opened);
}
