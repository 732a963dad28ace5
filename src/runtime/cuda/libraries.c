/* runtime/cuda/libraries.c -- the calls of kernels: which library does them, and when it is asked
** see: docs/design/008-libraries.md      tests: tests/runtime/test_libraries.c
*/
#include "runtime/cuda/libraries.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static const struct rt_cuda_library *const libraries[] = {&rt_cuda_blas, &rt_cuda_dnn};

static const struct {
  enum kern_library_kind kind;
  const struct rt_cuda_library *library;
} kinds[] = {{KERN_LIBRARY_GEMM, &rt_cuda_blas},
             {KERN_LIBRARY_ATTENTION, &rt_cuda_dnn},
             {KERN_LIBRARY_ATTENTION_BACK, &rt_cuda_dnn},
             {KERN_LIBRARY_CONV, &rt_cuda_dnn}};

const struct rt_cuda_library *rt_cuda_library_of(enum kern_library_kind kind) {
  for (size_t i = 0; i < BASE_COUNT(kinds); i++)
    if (kinds[i].kind == kind) return kinds[i].library;
  return NULL;
}

const struct rt_cuda_library *rt_cuda_library_get(size_t i) { return i < BASE_COUNT(libraries) ? libraries[i] : NULL; }

int rt_cuda_libraries(const struct rt_cuda_driver *driver) {
  char identity[64];
  void *popped;
  int bits = 0;
  if (driver->context_push(driver->context) != 0) return 0;
  for (size_t i = 0; i < BASE_COUNT(libraries); i++)
    if (libraries[i]->open(driver, identity, sizeof identity) == QUERN_STATUS_OK) bits |= libraries[i]->bit;
  (void)driver->context_pop(&popped);
  return bits;
}

void rt_cuda_describe_libraries(const struct rt_cuda_driver *driver, char *text, size_t bytes) {
  void *popped;
  size_t n = 0;
  text[0] = 0;
  if (driver->context_push(driver->context) != 0) return;
  for (size_t i = 0; i < BASE_COUNT(libraries) && n + 1 < bytes; i++) {
    char identity[64];
    bool there = libraries[i]->open(driver, identity, sizeof identity) == QUERN_STATUS_OK;
    int more = there ? snprintf(text + n, bytes - n, "%s%s", n > 0 ? ", " : "", identity)
                     : snprintf(text + n, bytes - n, "%sno %s (%s)", n > 0 ? ", " : "", libraries[i]->name,
                                quern_last_error());
    n += more > 0 ? (size_t)more : 0;
  }
  (void)driver->context_pop(&popped);
}

/* ---- preloading ------------------------------------------------------------------------------------------- */

void rt_cuda_load_libraries(void *unused) {
  struct rt_nvrtc *nvrtc;
  (void)unused;
  for (size_t i = 0; i < BASE_COUNT(libraries); i++) libraries[i]->load();
  (void)!rt_nvrtc_open(&nvrtc);
}

static void warm_up_all(void *arg) {
  const struct rt_cuda_driver *driver = arg;
  void *popped;
  if (driver->context_push(driver->context) != 0) return;
  for (size_t i = 0; i < BASE_COUNT(libraries); i++)
    if (driver->preloading.bits & libraries[i]->bit) libraries[i]->warm_up(driver);
  (void)driver->context_pop(&popped);
}

static void wait_for_all(struct rt_cuda_driver *driver) {
  struct rt_cuda_waking *w = &driver->preloading;
  pthread_mutex_lock(&w->lock);
  if (w->runs) base_thread_join(&w->thread);
  w->runs = false;
  pthread_mutex_unlock(&w->lock);
}

void rt_cuda_preload(const quern_device *device, const struct cg_target *target) {
  struct rt_cuda_driver *driver = rt_device_opened(device);
  if (target == NULL && driver != NULL) wait_for_all(driver);
  if (target == NULL || (target->base.capabilities & ~BASE_TENSOR_CORES) == 0 ||
      rt_cuda_open(device, &driver) != QUERN_STATUS_OK)
    return;
  struct rt_cuda_waking *w = &driver->preloading;
  pthread_mutex_lock(&w->lock);
  if (!w->tried) {
    w->tried = true;
    w->bits = target->base.capabilities;
    w->runs = base_thread_start(&w->thread, warm_up_all, driver) == QUERN_STATUS_OK;
  }
  pthread_mutex_unlock(&w->lock);
}

void rt_cuda_close_libraries(struct rt_cuda_driver *driver) {
  wait_for_all(driver);
  for (size_t i = 0; i < BASE_COUNT(libraries); i++) libraries[i]->close(driver);
}

/* ---- querying algorithms---------------------------------------------------------------------------------- */

/* The workspace is a memory of the kernel and of the functions of its phases. */
static void set_work(struct kern *kern, int work, size_t bytes) {
  kern->mems[work].count = (int64_t)BASE_MAX(bytes, 1);
  for (int i = 0; i < kern->n_phases; i++)
    if (kern->phases[i].fn >= 0) kern->fns.at[kern->phases[i].fn]->mems[work].count = kern->mems[work].count;
}

quern_status rt_cuda_call_query(const struct rt_cuda_library *library, struct rt_cuda_driver *driver,
                                struct kern *kern) {
  struct kern_library_call call = kern->library_call;
  size_t bytes = 0;
  void *popped;
  QUERN_TRY(rt_cuda_check(driver, driver->context_push(driver->context), "its context"));
  quern_status status = library->query_algorithm(driver, kern->heap, kern, &call, &bytes);
  (void)driver->context_pop(&popped);
  QUERN_TRY(status);
  QUERN_CHECK(bytes == 0 || call.work != KERN_NONE, INTERNAL, "%s asks for %zu bytes of workspace where there is none",
              library->name, bytes);
  memcpy(kern->library_call.algorithm, call.algorithm, sizeof call.algorithm);
  if (call.work != KERN_NONE) set_work(kern, call.work, bytes);
  return QUERN_STATUS_OK;
}

quern_status rt_cuda_query_algorithm(const quern_device *device, struct kern *kern, const struct cg_target *target) {
  struct rt_cuda_driver *driver;
  (void)target;
  if (kern->library_call.kind == KERN_LIBRARY_NONE) return QUERN_STATUS_OK;
  const struct rt_cuda_library *library = rt_cuda_library_of(kern->library_call.kind);
  QUERN_CHECK(library != NULL, UNSUPPORTED, "cuda: no library does calls of kind %d", (int)kern->library_call.kind);
  QUERN_TRY(rt_cuda_open(device, &driver));
  return rt_cuda_call_query(library, driver, kern);
}

/* ---- of a module ------------------------------------------------------------------------------------------ */

quern_status rt_cuda_call_plan(struct rt_cuda_call *call, const struct rt_cuda_driver *driver, struct base_heap *heap,
                               const struct kern *kern) {
  *call = (struct rt_cuda_call){.work = kern->library_call.work};
  if (kern->library_call.kind == KERN_LIBRARY_NONE) return QUERN_STATUS_OK;
  const struct rt_cuda_library *library = rt_cuda_library_of(kern->library_call.kind);
  QUERN_CHECK(library != NULL, UNSUPPORTED, "cuda: no library does calls of kind %d", (int)kern->library_call.kind);
  QUERN_TRY(library->plan(driver, heap, kern, &call->plan));
  call->library = library;
  return QUERN_STATUS_OK;
}

quern_status rt_cuda_call_run(const struct rt_cuda_call *call, const struct rt_cuda_driver *driver, void *stream,
                              void *const *mems) {
  if (call->library == NULL) return QUERN_STATUS_OK;
  return call->library->run(driver, call->plan, stream, mems, call->work != KERN_NONE ? mems[call->work] : NULL);
}

void rt_cuda_call_free(struct rt_cuda_call *call, const struct rt_cuda_driver *driver) {
  if (call->library != NULL) call->library->free(driver, call->plan);
  *call = (struct rt_cuda_call){.work = KERN_NONE};
}
