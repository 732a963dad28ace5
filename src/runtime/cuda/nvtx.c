/* runtime/cuda/nvtx.c -- names of runs and kernels for profilers, where they are asked for: QUERN_NVTX=1
** tests: tests/runtime/test_cuda.c
*/
#include <dlfcn.h>
#include <pthread.h>

#include "runtime/cuda/cuda.h"

static struct {
  int (*push)(const char *name);
  int (*pop)(void);
} nvtx;

static void load(void) {
  static const char *const places[] = {"libnvToolsExt.so.1", "libnvToolsExt.so",
                                       "/usr/local/cuda/lib64/libnvToolsExt.so.1"};
  void *library = NULL;
  if (base_env_int(BASE_ENV_NVTX) != 1) return;
  for (size_t i = 0; i < BASE_COUNT(places) && library == NULL; i++) library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
  if (library != NULL) {
    *(void **)&nvtx.push = dlsym(library, "nvtxRangePushA");
    *(void **)&nvtx.pop = dlsym(library, "nvtxRangePop");
  }
  if (nvtx.push == NULL || nvtx.pop == NULL) base_log(0, "QUERN_NVTX=1: libnvToolsExt.so.1 is not installed");
}

void rt_nvtx_begin(const char *name) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, load);
  if (nvtx.push != NULL && nvtx.pop != NULL) (void)nvtx.push(name);
}

void rt_nvtx_end(void) {
  if (nvtx.push != NULL && nvtx.pop != NULL) (void)nvtx.pop();
}
