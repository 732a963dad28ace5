/* runtime/cuda/stream.c -- memory of a CUDA device, and a stream of what is done with it in order
** tests: tests/runtime/test_cuda.c, make test-cuda
*/
#include <stdio.h>

#include "runtime/cuda/cuda.h"

enum { NON_BLOCKING = 1, UNTIMED = 2, PINNED_HALF = 4 << 20, PIECE = 2 << 20 };

quern_status rt_cuda_later(const struct rt_stream *stream, int code, const char *what) {
  char text[700], replayed[64] = "";
  if (code == 0) return QUERN_STATUS_OK;
  bool any = stream->last[0] != 0 || stream->replayed > 0;
  if (stream->driver->lost > 0)
    return rt_cuda_check(stream->driver, code, what); /* which kernel it was has been said */
  if (stream->replayed > 0) snprintf(replayed, sizeof replayed, " and a graph of %zu steps", stream->replayed);
  snprintf(text, sizeof text, "%s%s%.400s%s%s", what, any ? ", after kernel " : "",
           any && stream->last[0] == 0 ? "none" : stream->last, replayed,
           any && !stream->sync ? " or one before it (QUERN_SYNC=1 finds which)" : "");
  return rt_cuda_check(stream->driver, code, text);
}

/* ---- streams ---------------------------------------------------------------------------------------------- */

static void close_pinned(const struct rt_cuda_driver *d, struct rt_cuda_pinned *p) {
  for (int i = 0; i < 2; i++)
    if (p->done[i] != NULL) (void)d->event_destroy(p->done[i]);
  if (p->at != NULL) (void)d->host_free(p->at);
}

static void close_events(const struct rt_cuda_driver *d, struct rt_stream *stream) {
  for (size_t i = 0; i < stream->marks.n; i++) (void)d->event_destroy(stream->marks.at[i]);
  void *const events[] = {stream->switched, stream->async_uploads.uploaded, stream->async_uploads.reuse_fence};
  for (size_t i = 0; i < BASE_COUNT(events); i++)
    if (events[i] != NULL) (void)d->event_destroy(events[i]);
  close_pinned(d, &stream->pinned);
  close_pinned(d, &stream->async_uploads.pinned);
}

/* The driver frees what it has even when the device has failed; where it does not, it is the process's end that does. */
static void close_stream(struct rt_stream *stream) {
  void *popped;
  if (stream == NULL) return;
  const struct rt_cuda_driver *d = stream->driver;
  if (d->context_push(d->context) == 0) {
    void *const queues[] = {stream->async_uploads.queue, stream->own};
    for (size_t i = 0; i < BASE_COUNT(queues); i++)
      if (queues[i] != NULL) (void)d->stream_wait(queues[i]);
    close_events(d, stream);
    for (size_t i = 0; i < BASE_COUNT(queues); i++)
      if (queues[i] != NULL) (void)d->stream_destroy(queues[i]);
    (void)d->context_pop(&popped);
  }
  base_vec_fini(stream->heap, &stream->marks);
  base_vec_fini(stream->heap, &stream->capture.nodes);
  base_vec_fini(stream->heap, &stream->capture.ends);
  base_vec_fini(stream->heap, &stream->capture.wanted);
  base_free(stream->heap, stream, sizeof *stream);
}

static quern_status open_stream(struct rt_stream **out, struct base_heap *heap) {
  struct rt_cuda_driver *d;
  *out = NULL;
  QUERN_TRY(rt_cuda_open(&d));
  struct rt_stream *stream = base_alloc_zero(heap, sizeof *stream);
  if (stream == NULL) return QUERN_STATUS_MEMORY;
  *stream = (struct rt_stream){.heap = heap, .driver = d, .last = "", .sync = base_env_int(BASE_ENV_SYNC) == 1};
  int code = rt_cuda_enter(d);
  if (code == 0) {
    code = d->stream_create(&stream->own, NON_BLOCKING); /* it does not wait for what others do on the default stream */
    code = rt_cuda_leave(d, code != 0 ? code : d->event_create(&stream->switched, UNTIMED));
  }
  stream->stream = stream->own;
  quern_status status = rt_cuda_check(d, code, "a stream");
  if (status == QUERN_STATUS_OK)
    *out = stream;
  else
    close_stream(stream);
  return status;
}

static quern_status wait_for(struct rt_stream *stream) {
  const struct rt_cuda_driver *d = stream->driver;
  int code = rt_cuda_enter(d);
  if (code == 0) code = rt_cuda_leave(d, d->stream_wait(stream->stream));
  return rt_cuda_later(stream, code, "waiting");
}

/* One queue waits for the other on the device: the host does not. */
static quern_status set_external_stream(struct rt_stream *stream, void *foreign) {
  const struct rt_cuda_driver *d = stream->driver;
  void *next = foreign != NULL ? foreign : stream->own;
  int code = rt_cuda_enter(d);
  if (code == 0) {
    code = d->event_record(stream->switched, stream->stream);
    code = rt_cuda_leave(d, code != 0 ? code : d->stream_wait_event(next, stream->switched, 0));
  }
  stream->stream = code == 0 ? next : stream->own;
  return rt_cuda_later(stream, code, "the caller's queue");
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

static uint64_t address(const void *at) { return (uint64_t)(uintptr_t)at; }

/* With the context current: a reuse fence. Asynchronous uploads from now on come after everything asked for before. */
static int order_uploads(const struct rt_stream *stream) {
  const struct rt_cuda_driver *d = stream->driver;
  if (stream->async_uploads.queue == NULL) return 0; /* there was no asynchronous upload */
  int code = d->event_record(stream->async_uploads.reuse_fence, stream->stream);
  return code != 0 ? code : d->stream_wait_event(stream->async_uploads.queue, stream->async_uploads.reuse_fence, 0);
}

static quern_status find_room(int64_t *free, int64_t *total) {
  struct rt_cuda_driver *d;
  size_t left = 0, all = 0;
  QUERN_TRY(rt_cuda_open(&d));
  int code = rt_cuda_enter(d);
  if (code == 0) code = rt_cuda_leave(d, d->info(&left, &all));
  *free = (int64_t)left;
  *total = (int64_t)all;
  return rt_cuda_check(d, code, "how much memory is free");
}

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
  int code = rt_cuda_enter(d);
  if (code == 0) {
    (void)d->info(&left, &all);
    code = d->alloc(&made, room);
    if (code == 0) {
      code = d->fill(made, 0, room, stream->stream);
      if (code == 0) code = order_uploads(stream); /* asynchronous uploads come after the zeros */
      if (code != 0) (void)d->free(made);
    }
    code = rt_cuda_leave(d, code);
  }
  snprintf(what, sizeof what, "%zu bytes, of which %zu are free of %zu", bytes, left, all);
  if (code == 0) *at = (void *)(uintptr_t)made;
  return rt_cuda_check(d, code, what);
}

static void release(struct rt_stream *stream, void *at, size_t bytes) {
  const struct rt_cuda_driver *d = stream->driver;
  (void)bytes;
  if (at == NULL || d->context_push(d->context) != 0) return;
  (void)d->stream_wait(stream->stream);
  if (stream->async_uploads.queue != NULL) (void)d->stream_wait(stream->async_uploads.queue);
  stream->last = ""; /* all is done, and the program whose kernel it was may go */
  stream->replayed = 0;
  (void)rt_cuda_leave(d, d->free(address(at)));
}

/* ---- what goes up, and what comes down ----------------------------------------------------------------------- */

/* Memory that the device reads by itself; without it uploads wait for the device. */
static bool open_pinned(const struct rt_cuda_driver *d, struct rt_cuda_pinned *p) {
  void *at = NULL;
  if (p->at != NULL || p->refused) return p->at != NULL;
  for (int i = 0; i < 2 && !p->refused; i++) p->refused = d->event_create(&p->done[i], UNTIMED) != 0;
  p->refused = p->refused || d->host_alloc(&at, 2 * (size_t)PINNED_HALF, 0) != 0;
  p->at = p->refused ? NULL : at;
  return !p->refused;
}

/* The other half from now on, once what was read of it the last time is read. */
static int swap_pinned(const struct rt_cuda_driver *d, struct rt_cuda_pinned *p, void *queue) {
  int code = d->event_record(p->done[p->half], queue);
  p->half = 1 - p->half;
  p->used = 0;
  return code != 0 ? code : d->event_wait(p->done[p->half]);
}

static int upload_pinned(const struct rt_cuda_driver *d, struct rt_cuda_pinned *p, void *queue, uint64_t to,
                         const char *from, size_t bytes) {
  int code = 0;
  while (bytes > 0 && code == 0) {
    if (p->used == PINNED_HALF) code = swap_pinned(d, p, queue);
    if (code != 0) return code;
    size_t n = BASE_MIN(bytes, PINNED_HALF - p->used);
    char *half = p->at + p->half * PINNED_HALF + p->used;
    memcpy(half, from, n);
    code = d->upload(to, half, n, queue);
    p->used = BASE_MIN((p->used + n + 63) / 64 * 64, (size_t)PINNED_HALF);
    to += n;
    from += n;
    bytes -= n;
  }
  return code;
}

/* What the caller has is read before it returns: it may be memory that the driver would read later. */
static quern_status upload(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  const struct rt_cuda_driver *d = stream->driver;
  if (bytes == 0) return QUERN_STATUS_OK;
  int code = rt_cuda_enter(d);
  if (code == 0) {
    if (open_pinned(d, &stream->pinned)) {
      code = upload_pinned(d, &stream->pinned, stream->stream, address(to), from, bytes);
    } else {
      code = d->upload(address(to), from, bytes, stream->stream);
      if (code == 0) code = d->stream_wait(stream->stream);
    }
    code = rt_cuda_leave(d, code);
  }
  return rt_cuda_later(stream, code, "an upload");
}

/* ---- asynchronous uploads: a queue of their own, and fences (events) ------------------------------------------ */

/* The first asynchronous upload comes after everything asked for before. */
static int open_uploads(const struct rt_stream *stream, struct rt_cuda_async_uploads *f) {
  const struct rt_cuda_driver *d = stream->driver;
  int code = 0;
  if (f->queue != NULL) return 0;
  if (f->uploaded == NULL) code = d->event_create(&f->uploaded, UNTIMED);
  if (code == 0 && f->reuse_fence == NULL) code = d->event_create(&f->reuse_fence, UNTIMED);
  if (code == 0) code = d->stream_create(&f->queue, NON_BLOCKING);
  return code != 0 ? code : order_uploads(stream);
}

static quern_status upload_async(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  const struct rt_cuda_driver *d = stream->driver;
  struct rt_cuda_async_uploads *f = &stream->async_uploads;
  if (bytes == 0) return QUERN_STATUS_OK;
  int code = rt_cuda_enter(d);
  if (code == 0) {
    code = open_uploads(stream, f);
    bool pinned = code == 0 && open_pinned(d, &f->pinned);
    if (pinned) code = upload_pinned(d, &f->pinned, f->queue, address(to), from, bytes);
    if (code == 0 && !pinned) {
      code = d->upload(address(to), from, bytes, f->queue);
      if (code == 0) code = d->stream_wait(f->queue);
    }
    code = rt_cuda_leave(d, code);
  }
  return rt_cuda_later(stream, code, "an upload");
}

static quern_status upload_fence(struct rt_stream *stream) {
  const struct rt_cuda_driver *d = stream->driver;
  if (stream->async_uploads.queue == NULL) return QUERN_STATUS_OK;
  int code = rt_cuda_enter(d);
  if (code == 0) {
    code = d->event_record(stream->async_uploads.uploaded, stream->async_uploads.queue);
    code = rt_cuda_leave(d, code != 0 ? code : d->stream_wait_event(stream->stream, stream->async_uploads.uploaded, 0));
  }
  return rt_cuda_later(stream, code, "an upload");
}

static quern_status reuse_fence(struct rt_stream *stream) {
  const struct rt_cuda_driver *d = stream->driver;
  int code = rt_cuda_enter(d);
  if (code == 0) code = rt_cuda_leave(d, order_uploads(stream));
  return rt_cuda_later(stream, code, "an upload");
}

static quern_status download(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  const struct rt_cuda_driver *d = stream->driver;
  if (bytes == 0) return QUERN_STATUS_OK;
  int code = rt_cuda_enter(d);
  if (code == 0) {
    code = d->download(to, address(from), bytes, stream->stream);
    code = rt_cuda_leave(d, code != 0 ? code : d->stream_wait(stream->stream));
  }
  return rt_cuda_later(stream, code, "a download");
}

/* In pieces: in a graph the driver leaves larger ones to an engine that is slower than the SMs. */
static quern_status copy(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  const size_t most = (size_t)128 << 20;
  const struct rt_cuda_driver *d = stream->driver;
  if (bytes == 0 || to == from) return QUERN_STATUS_OK;
  int code = rt_cuda_enter(d);
  if (code == 0) {
    for (size_t done = 0; done < bytes && code == 0; done += most)
      code = d->copy(address(to) + done, address(from) + done, BASE_MIN(most, bytes - done), stream->stream);
    code = rt_cuda_leave(d, code);
  }
  return rt_cuda_later(stream, code, "a copy");
}

static quern_status fill(struct rt_stream *stream, void *at, int byte, size_t bytes) {
  const struct rt_cuda_driver *d = stream->driver;
  if (bytes == 0) return QUERN_STATUS_OK;
  int code = rt_cuda_enter(d);
  if (code == 0) code = rt_cuda_leave(d, d->fill(address(at), (unsigned char)byte, bytes, stream->stream));
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
                                         .set_external_stream = set_external_stream,
                                         .launch = rt_cuda_launch,
                                         .batchable = rt_cuda_batchable,
                                         .launch_batch = rt_cuda_launch_batch,
                                         .piece = PIECE,
                                         .room = find_room,
                                         .capture = rt_cuda_capture_begin,
                                         .captured = rt_cuda_capture_end,
                                         .replay = rt_cuda_replay,
                                         .graph_free = rt_cuda_graph_free,
                                         .depend_on = rt_cuda_capture_depend,
                                         .upload_async = upload_async,
                                         .upload_fence = upload_fence,
                                         .reuse_fence = reuse_fence,
                                         .mark = rt_cuda_mark,
                                         .marks = rt_cuda_marks};
