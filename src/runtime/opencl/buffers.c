/* runtime/opencl/buffers.c -- memory of an OpenCL device, and what is done with it in order
** OpenCL has no addresses: an allocation has a number, which is the upper part of the addresses that the engine counts with.
** So an address that the host follows by mistake is one that nothing lies at.
** tests: tests/engine/test_remote.c
*/
#include "runtime/opencl/opencl.h"

#include <stdatomic.h>
#include <stdio.h>

enum { OFFSET_BITS = 40, MOST_SLOTS = 1 << 14, MEM_READ_WRITE = 1, BLOCKING = 1 };

static void *_Atomic slots[MOST_SLOTS]; /* buffers; number 0 is none */

void *rt_cl_find(const void *address, size_t *offset) {
  uintptr_t at = (uintptr_t)address;
  *offset = at & (((uintptr_t)1 << OFFSET_BITS) - 1);
  return at >> OFFSET_BITS < MOST_SLOTS ? slots[at >> OFFSET_BITS] : NULL;
}

/* ---- streams ---------------------------------------------------------------------------------------------- */

static void close_stream(struct rt_stream *stream) {
  if (stream == NULL) return;
  struct rt_cl *cl = stream->cl;
  if (stream->queue != NULL) (void)cl->clFinish(stream->queue);
  if (stream->args != NULL) (void)cl->clReleaseMemObject(stream->args);
  if (stream->queue != NULL) (void)cl->clReleaseCommandQueue(stream->queue);
  base_free(stream->heap, stream, sizeof *stream);
}

static quern_status open_stream(struct rt_stream **out, struct base_heap *heap) {
  struct rt_cl *cl;
  int32_t code, other = 0;
  *out = NULL;
  QUERN_TRY(rt_cl_open(&cl));
  struct rt_stream *stream = base_alloc_zero(heap, sizeof *stream);
  if (stream == NULL) return QUERN_STATUS_MEMORY;
  *stream = (struct rt_stream){.heap = heap, .cl = cl};
  stream->queue = cl->clCreateCommandQueue(cl->context, cl->device, 0, &code);
  if (code == 0)
    stream->args = cl->clCreateBuffer(cl->context, MEM_READ_WRITE, RT_CL_ARGS * sizeof(int64_t), NULL, &other);
  quern_status status = rt_cl_check(code != 0 ? code : other, "a queue");
  if (status == QUERN_STATUS_OK)
    *out = stream;
  else
    close_stream(stream);
  return status;
}

static quern_status wait_for(struct rt_stream *stream) {
  return rt_cl_check(stream->cl->clFinish(stream->queue), "waiting");
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

/* The record of an allocation is the heap's, so that what fails allocations fails these. */
static quern_status allocate(struct rt_stream *stream, size_t bytes, void **at) {
  struct rt_cl *cl = stream->cl;
  int32_t code;
  unsigned char zero = 0;
  size_t number = 1, room = BASE_MAX(bytes, 1);
  char what[64];
  *at = NULL;
  void *test = base_alloc(stream->heap, 1);
  if (test == NULL) return QUERN_STATUS_MEMORY;
  base_free(stream->heap, test, 1);
  snprintf(what, sizeof what, "%zu bytes", bytes);
  QUERN_CHECK(bytes < (size_t)1 << OFFSET_BITS, MEMORY, "opencl: %s are too many", what);
  void *buffer = cl->clCreateBuffer(cl->context, MEM_READ_WRITE, room, NULL, &code);
  QUERN_TRY(rt_cl_check(code, what));
  code = cl->clEnqueueFillBuffer(stream->queue, buffer, &zero, 1, 0, room, 0, NULL, NULL);
  pthread_mutex_lock(&cl->lock);
  while (number < MOST_SLOTS && slots[number] != NULL) number++;
  if (code == 0 && number < MOST_SLOTS) slots[number] = buffer;
  pthread_mutex_unlock(&cl->lock);
  if (code == 0 && number < MOST_SLOTS) {
    *at = (void *)((uintptr_t)number << OFFSET_BITS);
    return QUERN_STATUS_OK;
  }
  (void)cl->clReleaseMemObject(buffer);
  QUERN_TRY(rt_cl_check(code, what));
  return base_error(QUERN_STATUS_MEMORY, "opencl: more than %d allocations", MOST_SLOTS);
}

static void release(struct rt_stream *stream, void *at, size_t bytes) {
  struct rt_cl *cl = stream->cl;
  size_t number = (uintptr_t)at >> OFFSET_BITS;
  (void)bytes;
  if (number == 0 || number >= MOST_SLOTS) return;
  (void)cl->clFinish(stream->queue);
  void *buffer = atomic_exchange(&slots[number], NULL);
  if (buffer != NULL) (void)cl->clReleaseMemObject(buffer);
}

static quern_status upload(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  size_t at;
  void *buffer = rt_cl_find(to, &at);
  if (bytes == 0) return QUERN_STATUS_OK;
  QUERN_ASSERT(buffer != NULL);
  return rt_cl_check(stream->cl->clEnqueueWriteBuffer(stream->queue, buffer, BLOCKING, at, bytes, from, 0, NULL, NULL),
                     "an upload");
}

static quern_status download(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  size_t at;
  void *buffer = rt_cl_find(from, &at);
  if (bytes == 0) return QUERN_STATUS_OK;
  QUERN_ASSERT(buffer != NULL);
  return rt_cl_check(stream->cl->clEnqueueReadBuffer(stream->queue, buffer, BLOCKING, at, bytes, to, 0, NULL, NULL),
                     "a download");
}

static quern_status copy(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  size_t to_at, from_at;
  void *to_buffer = rt_cl_find(to, &to_at), *from_buffer = rt_cl_find(from, &from_at);
  if (bytes == 0 || to == from) return QUERN_STATUS_OK;
  QUERN_ASSERT(to_buffer != NULL && from_buffer != NULL);
  return rt_cl_check(
      stream->cl->clEnqueueCopyBuffer(stream->queue, from_buffer, to_buffer, from_at, to_at, bytes, 0, NULL, NULL),
      "a copy");
}

static quern_status fill(struct rt_stream *stream, void *at, int byte, size_t bytes) {
  size_t offset;
  unsigned char value = (unsigned char)byte;
  void *buffer = rt_cl_find(at, &offset);
  if (bytes == 0) return QUERN_STATUS_OK;
  QUERN_ASSERT(buffer != NULL);
  return rt_cl_check(stream->cl->clEnqueueFillBuffer(stream->queue, buffer, &value, 1, offset, bytes, 0, NULL, NULL),
                     "filling");
}

const struct rt_remote rt_cl_remote = {.open = open_stream,
                                       .close = close_stream,
                                       .alloc = allocate,
                                       .release = release,
                                       .upload = upload,
                                       .download = download,
                                       .copy = copy,
                                       .fill = fill,
                                       .wait = wait_for,
                                       .launch = rt_cl_launch};
