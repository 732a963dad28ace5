/* runtime/cuda/memory.c -- memory of a CUDA device, and a stream of what is done with it in order
** tests: make test-cuda
*/
#include "runtime/cuda/cuda.h"

#include <stdio.h>

/* Calls of the driver between the two use the device's context. */
static int enter(const struct rt_cuda_driver *d) { return d->context_push(d->context); }
static int leave(const struct rt_cuda_driver *d, int code) {
  void *popped;
  int other = d->context_pop(&popped);
  return code != 0 ? code : other;
}

quern_status rt_cuda_later(const struct rt_stream *stream, int code, const char *what) {
  char text[600];
  if (code == 0) return QUERN_STATUS_OK;
  snprintf(text, sizeof text, "%s%s%.400s%s", what, stream->last[0] != 0 ? ", after kernel " : "", stream->last,
           stream->last[0] != 0 && !stream->sync ? " or one before it (QUERN_SYNC=1 tells which)" : "");
  return rt_cuda_check(stream->driver, code, text);
}

/* ---- streams ---------------------------------------------------------------------------------------------- */

static void close_stream(struct rt_stream *stream) {
  if (stream == NULL) return;
  const struct rt_cuda_driver *d = stream->driver;
  if (stream->stream != NULL && enter(d) == 0) {
    (void)d->stream_wait(stream->stream);
    (void)leave(d, d->stream_destroy(stream->stream));
  }
  base_free(stream->heap, stream, sizeof *stream);
}

static quern_status open_stream(struct rt_stream **out, struct base_heap *heap) {
  enum { NON_BLOCKING = 1 }; /* it does not wait for what others do on the default stream */
  struct rt_cuda_driver *d;
  *out = NULL;
  QUERN_TRY(rt_cuda_open(&d));
  struct rt_stream *stream = base_alloc_zero(heap, sizeof *stream);
  if (stream == NULL) return QUERN_STATUS_MEMORY;
  *stream = (struct rt_stream){.heap = heap, .driver = d, .last = "", .sync = base_env_int(BASE_ENV_SYNC) == 1};
  int code = enter(d);
  if (code == 0) code = leave(d, d->stream_create(&stream->stream, NON_BLOCKING));
  quern_status status = rt_cuda_check(d, code, "a stream");
  if (status == QUERN_STATUS_OK)
    *out = stream;
  else
    close_stream(stream);
  return status;
}

static quern_status wait_for(struct rt_stream *stream) {
  const struct rt_cuda_driver *d = stream->driver;
  int code = enter(d);
  if (code == 0) code = leave(d, d->stream_wait(stream->stream));
  return rt_cuda_later(stream, code, "waiting");
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

static uint64_t address(const void *at) { return (uint64_t)(uintptr_t)at; }

/* Something is taken from the heap first, so that what fails its allocations fails these. */
static quern_status allocate(struct rt_stream *stream, size_t bytes, void **at) {
  const struct rt_cuda_driver *d = stream->driver;
  uint64_t made = 0;
  size_t room = BASE_MAX(bytes, 1), left = 0, all = 0;
  char what[128];
  *at = NULL;
  void *test = base_alloc(stream->heap, 1);
  if (test == NULL) return QUERN_STATUS_MEMORY;
  base_free(stream->heap, test, 1);
  int code = enter(d);
  if (code == 0) {
    (void)d->info(&left, &all);
    code = d->alloc(&made, room);
    if (code == 0) code = d->fill(made, 0, room, stream->stream);
    code = leave(d, code);
  }
  snprintf(what, sizeof what, "%zu bytes, of which %zu are free of %zu", bytes, left, all);
  if (code == 0) *at = (void *)(uintptr_t)made;
  return rt_cuda_check(d, code, what);
}

static void release(struct rt_stream *stream, void *at, size_t bytes) {
  const struct rt_cuda_driver *d = stream->driver;
  (void)bytes;
  if (at == NULL || enter(d) != 0) return;
  (void)d->stream_wait(stream->stream);
  (void)leave(d, d->free(address(at)));
}

/* What the caller has is read before it returns: it may be memory that the driver would read later. */
static quern_status upload(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  const struct rt_cuda_driver *d = stream->driver;
  if (bytes == 0) return QUERN_STATUS_OK;
  int code = enter(d);
  if (code == 0) {
    code = d->upload(address(to), from, bytes, stream->stream);
    code = leave(d, code != 0 ? code : d->stream_wait(stream->stream));
  }
  return rt_cuda_later(stream, code, "an upload");
}

static quern_status download(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  const struct rt_cuda_driver *d = stream->driver;
  if (bytes == 0) return QUERN_STATUS_OK;
  int code = enter(d);
  if (code == 0) {
    code = d->download(to, address(from), bytes, stream->stream);
    code = leave(d, code != 0 ? code : d->stream_wait(stream->stream));
  }
  return rt_cuda_later(stream, code, "a download");
}

static quern_status copy(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  const struct rt_cuda_driver *d = stream->driver;
  if (bytes == 0 || to == from) return QUERN_STATUS_OK;
  int code = enter(d);
  if (code == 0) code = leave(d, d->copy(address(to), address(from), bytes, stream->stream));
  return rt_cuda_later(stream, code, "a copy");
}

static quern_status fill(struct rt_stream *stream, void *at, int byte, size_t bytes) {
  const struct rt_cuda_driver *d = stream->driver;
  if (bytes == 0) return QUERN_STATUS_OK;
  int code = enter(d);
  if (code == 0) code = leave(d, d->fill(address(at), (unsigned char)byte, bytes, stream->stream));
  return rt_cuda_later(stream, code, "filling");
}

const struct rt_remote rt_cuda_remote = {.open = open_stream,
                                         .close = close_stream,
                                         .alloc = allocate,
                                         .release = release,
                                         .upload = upload,
                                         .download = download,
                                         .copy = copy,
                                         .fill = fill,
                                         .wait = wait_for,
                                         .launch = rt_cuda_launch};
