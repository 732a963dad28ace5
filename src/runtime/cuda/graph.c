/* runtime/cuda/graph.c -- what a stream is asked for, captured as a CUDA graph and replayed; times by events
** A step of a capture depends on the steps it names, not on all before it: the nodes that the next one depends on are set in the
** capture (graph dependencies). Independent steps then run side by side.
** tests: tests/runtime/test_cuda.c, make test-cuda
*/
#include "runtime/cuda/cuda.h"

enum { RELAXED = 2, REPLACE = 1, EXTERNAL = 1 }; /* of captures, of dependencies, of events in graphs */

struct cuda_graph {
  struct rt_graph graph;
  void *made; /* ready to be launched */
};

/* ---- capturing --------------------------------------------------------------------------------------------- */

quern_status rt_cuda_capture_begin(struct rt_stream *stream) {
  const struct rt_cuda_driver *d = stream->driver;
  struct rt_cuda_capture *c = &stream->capture;
  int code = rt_cuda_enter(d);
  if (code == 0) code = rt_cuda_leave(d, d->capture_begin(stream->stream, RELAXED));
  c->on = code == 0;
  c->steps = c->nodes.n = c->ends.n = 0;
  return rt_cuda_later(stream, code, "a capture");
}

/* The nodes that the last step ends in: what the next would come after. */
static quern_status end_step(struct rt_stream *stream) {
  const struct rt_cuda_driver *d = stream->driver;
  struct rt_cuda_capture *c = &stream->capture;
  void *const *nodes = NULL;
  uint64_t id;
  size_t n = 0;
  int state;
  QUERN_TRY(rt_cuda_check(d, d->capture_info(stream->stream, &state, &id, NULL, &nodes, &n), "the nodes of a capture"));
  for (size_t i = 0; i < n; i++)
    if (!base_vec_push(stream->heap, &c->nodes, nodes[i])) return QUERN_STATUS_MEMORY;
  return base_vec_push(stream->heap, &c->ends, c->nodes.n) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* Adds the nodes that a step ends in, each once. */
static quern_status want_step(struct rt_stream *stream, size_t step) {
  struct rt_cuda_capture *c = &stream->capture;
  for (size_t i = step > 0 ? c->ends.at[step - 1] : 0; i < c->ends.at[step]; i++) {
    size_t k = 0;
    while (k < c->wanted.n && c->wanted.at[k] != c->nodes.at[i]) k++;
    if (k == c->wanted.n && !base_vec_push(stream->heap, &c->wanted, c->nodes.at[i])) return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

static quern_status begin_step(struct rt_stream *stream, size_t n, const int *steps) {
  const struct rt_cuda_driver *d = stream->driver;
  struct rt_cuda_capture *c = &stream->capture;
  if (c->steps > 0) QUERN_TRY(end_step(stream));
  c->wanted.n = 0;
  for (size_t i = 0; i < n; i++) QUERN_TRY(want_step(stream, (size_t)steps[i]));
  c->steps++;
  return rt_cuda_check(d, d->capture_depends(stream->stream, c->wanted.at, c->wanted.n, REPLACE),
                       "a step of a capture");
}

quern_status rt_cuda_capture_depend(struct rt_stream *stream, size_t n, const int *steps) {
  const struct rt_cuda_driver *d = stream->driver;
  if (d->capture_info == NULL || d->capture_depends == NULL) return QUERN_STATUS_OK; /* one after another, then */
  QUERN_TRY(rt_cuda_check(d, rt_cuda_enter(d), "its context"));
  quern_status status = begin_step(stream, n, steps);
  int code = rt_cuda_leave(d, 0);
  return status != QUERN_STATUS_OK ? status : rt_cuda_check(d, code, "its context");
}

/* ---- graphs ------------------------------------------------------------------------------------------------ */

/* Instantiates what was captured, and finds how much memory of the device that took. */
static int make_ready(struct rt_stream *stream, struct cuda_graph *made, void *captured) {
  const struct rt_cuda_driver *d = stream->driver;
  size_t before = 0, after = 0, all;
  (void)d->info(&before, &all);
  int code = d->graph_instantiate(&made->made, captured, 0);
  if (code == 0) code = d->graph_upload(made->made, stream->stream);
  (void)d->info(&after, &all);
  made->graph.bytes = before > after ? before - after : 0;
  (void)d->graph_nodes(captured, NULL, &made->graph.steps);
  return code;
}

quern_status rt_cuda_capture_end(struct rt_stream *stream, struct rt_graph **graph) {
  const struct rt_cuda_driver *d = stream->driver;
  struct cuda_graph *made = base_alloc_zero(stream->heap, sizeof *made);
  void *captured = NULL;
  *graph = NULL;
  stream->capture.on = false;
  int code = d->context_push(d->context); /* of a device that has failed, too */
  if (code == 0) {
    code = d->capture_end(stream->stream, &captured);
    if (code == 0 && made != NULL) code = make_ready(stream, made, captured);
    if (captured != NULL) (void)d->graph_destroy(captured);
    code = rt_cuda_leave(d, code);
  }
  if (made == NULL) return QUERN_STATUS_MEMORY;
  if (code == 0)
    *graph = &made->graph;
  else
    rt_cuda_graph_free(stream, &made->graph);
  return rt_cuda_check(d, code, "a graph");
}

quern_status rt_cuda_replay(struct rt_stream *stream, const struct rt_graph *graph) {
  const struct rt_cuda_driver *d = stream->driver;
  const struct cuda_graph *made = (const struct cuda_graph *)graph;
  int code = rt_cuda_enter(d);
  if (code == 0) {
    rt_nvtx_begin("a run");
    code = d->graph_launch(made->made, stream->stream);
    rt_nvtx_end();
    stream->replayed = graph->steps;
    code = rt_cuda_leave(d, code != 0 || !stream->sync ? code : d->stream_wait(stream->stream));
  }
  return rt_cuda_later(stream, code, "a graph");
}

void rt_cuda_graph_free(struct rt_stream *stream, struct rt_graph *graph) {
  const struct rt_cuda_driver *d = stream->driver;
  struct cuda_graph *made = (struct cuda_graph *)graph;
  if (graph == NULL) return;
  if (made->made != NULL && d->context_push(d->context) == 0) (void)rt_cuda_leave(d, d->graph_exec_destroy(made->made));
  base_free(stream->heap, made, sizeof *made);
}

/* ---- times ------------------------------------------------------------------------------------------------- */

static quern_status open_marks(struct rt_stream *stream, size_t n) {
  const struct rt_cuda_driver *d = stream->driver;
  while (stream->marks.n < n) {
    void *event;
    if (!base_vec_reserve(stream->heap, &stream->marks, 1)) return QUERN_STATUS_MEMORY;
    QUERN_TRY(rt_cuda_check(d, d->event_create(&event, 0), "an event"));
    stream->marks.at[stream->marks.n++] = event;
  }
  return QUERN_STATUS_OK;
}

/* In a graph an event has to be said to be one for others than the graph. */
static int record(const struct rt_stream *stream, void *event) {
  const struct rt_cuda_driver *d = stream->driver;
  if (!stream->capture.on) return d->event_record(event, stream->stream);
  return d->event_record_flags(event, stream->stream, EXTERNAL);
}

quern_status rt_cuda_mark(struct rt_stream *stream, size_t i) {
  const struct rt_cuda_driver *d = stream->driver;
  QUERN_TRY(rt_cuda_check(d, rt_cuda_enter(d), "its context"));
  quern_status status = open_marks(stream, i + 1);
  int code = status == QUERN_STATUS_OK ? record(stream, stream->marks.at[i]) : 0;
  code = rt_cuda_leave(d, code);
  return status != QUERN_STATUS_OK ? status : rt_cuda_later(stream, code, "an event");
}

quern_status rt_cuda_marks(struct rt_stream *stream, size_t n, double *seconds) {
  const struct rt_cuda_driver *d = stream->driver;
  QUERN_ASSERT(n <= stream->marks.n);
  int code = rt_cuda_enter(d);
  if (code == 0) {
    code = d->stream_wait(stream->stream);
    for (size_t i = 0; i < n && code == 0; i++) {
      float ms = 0;
      code = i > 0 ? d->event_elapsed(&ms, stream->marks.at[0], stream->marks.at[i]) : 0;
      seconds[i] = 1e-3 * (double)ms;
    }
    code = rt_cuda_leave(d, code);
  }
  return rt_cuda_later(stream, code, "times of events");
}
