/* tests/runtime/fake_memory.h -- a driver with memory and a stream only, which are the host's */
#ifndef TESTS_RUNTIME_FAKE_MEMORY_H
#define TESTS_RUNTIME_FAKE_MEMORY_H
#include <unistd.h>

#include "runtime/cuda/blas.h"

static struct rt_cuda_driver driver;
static int held, left; /* blocks of the device; calls of the driver until one fails, 0: none does */
static int step(void) { return left > 0 && --left == 0 ? 2 : 0; }
static int fake_alloc(uint64_t *at, size_t bytes) {
  int code = step();
  if (code != 0) return code;
  *at = (uint64_t)(uintptr_t)malloc(bytes);
  held++;
  return 0;
}
static int fake_release(uint64_t at) {
  free((void *)(uintptr_t)at);
  held--;
  return 0;
}
static int fake_upload(uint64_t to, const void *from, size_t bytes, void *stream) {
  (void)stream;
  memcpy((void *)(uintptr_t)to, from, bytes);
  return step();
}
static int fake_copy(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  return fake_upload(to, (const void *)(uintptr_t)from, bytes, stream);
}
static int fake_stream(void **stream, unsigned flags) {
  (void)flags;
  int code = step();
  if (code == 0) *stream = &held;
  return code;
}
static int fake_stream_end(void *stream) {
  (void)stream;
  return 0;
}
static int fake_wait(void *stream) {
  (void)stream;
  return step();
}

/* A GPU of that name, and of this process. */
static void fake_memory_open(const char *name) {
  driver = (struct rt_cuda_driver){.alloc = fake_alloc,
                                   .free = fake_release,
                                   .upload = fake_upload,
                                   .copy = fake_copy,
                                   .stream_create = fake_stream,
                                   .stream_destroy = fake_stream_end,
                                   .stream_wait = fake_wait};
  snprintf(driver.name, sizeof driver.name, "%s %ld", name, (long)getpid());
}

#endif
