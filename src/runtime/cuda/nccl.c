/* runtime/cuda/nccl.c -- libnccl, which connects GPUs: whether it is there, and can be used
** No program calls it: a run has one card. It is loaded by whoever lists devices only, since it is large.
** tests: tests/runtime/test_gpu.c
*/
#include "runtime/cuda/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { MAJOR = 2, OLDEST_MINOR = 10 };

/* A number is 1000 a major version and 100 a minor one up to 2.8, and 10000 and 100 from 2.9 on. */
quern_status rt_nccl_check(int version, char *identity, size_t bytes) {
  int unit = version < 10000 ? 1000 : 10000, major = version / unit, minor = version % unit / 100;
  QUERN_CHECK(major == MAJOR && minor >= OLDEST_MINOR, UNSUPPORTED, "NCCL %d.%d is too %s; %d.%d to %d.99 are known",
              major, minor, major > MAJOR ? "new" : "old", (int)MAJOR, (int)OLDEST_MINOR, (int)MAJOR);
  snprintf(identity, bytes, "NCCL %d.%d.%d", major, minor, version % 100);
  return QUERN_STATUS_OK;
}

static char identity[32];

static quern_status load(void *unused) {
  static const char *const places[] = {"libnccl.so.2", "libnccl.so", "/usr/local/cuda/lib64/libnccl.so.2"};
  void *library = NULL;
  int (*get_version)(int *version);
  int version = 0;
  (void)unused;
  for (size_t i = 0; i < BASE_COUNT(places) && library == NULL; i++)
    library = dlopen(places[i], RTLD_LAZY | RTLD_LOCAL);
  QUERN_CHECK(library != NULL, UNSUPPORTED, "libnccl.so.2 is not installed");
  *(void **)&get_version = dlsym(library, "ncclGetVersion");
  QUERN_CHECK(get_version != NULL && get_version(&version) == 0, UNSUPPORTED,
              "libnccl.so.2 does not report its version: it is too old");
  return rt_nccl_check(version, identity, sizeof identity);
}

void rt_nccl_describe(char *text, size_t bytes) {
  static struct rt_once once = {.lock = PTHREAD_MUTEX_INITIALIZER};
  bool there = rt_once(&once, load, NULL) == QUERN_STATUS_OK;
  snprintf(text, bytes, there ? "%s" : "no NCCL (%s)", there ? identity : quern_last_error());
}
