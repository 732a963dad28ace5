/* tests/runtime/fake_cuda.h -- a CUDA driver that is none: memory of the host, and what is asked for is done when somebody waits
** A call can be made to fail, a launch to fault. Kernels do nothing. All that is opened is counted: fake_cuda_left() is 0 when all is closed.
*/
#ifndef TESTS_RUNTIME_FAKE_CUDA_H
#define TESTS_RUNTIME_FAKE_CUDA_H
#include <stdlib.h>

#include "runtime/cuda/cuda.h"
#include "unit.h"

enum { FAKE_OPS = 1 << 15, FAKE_NODES = 4096, FAKE_PINNED = 16, FAKE_FAULT = 700, FAKE_CAPTURE_WRONG = 900 };

enum fake_kind { FAKE_UPLOAD, FAKE_DOWNLOAD, FAKE_COPY, FAKE_FILL, FAKE_LAUNCH, FAKE_EVENT, FAKE_GRAPH };
struct fake_op {
  enum fake_kind kind;
  char *to;
  const char *from;
  size_t n;
  int byte;
  void *event;
  struct fake_graph *graph;
};
struct fake_graph {
  int n, n_nodes;
  struct fake_op ops[FAKE_NODES];
  bool destroyed, launched;
};
struct fake_event {
  int at;      /* the op of the queue that sets it; -1: none does */
  double time; /* when it was set */
};

static struct fake_cuda {
  struct rt_cuda_driver driver;
  int streams, events, allocations, pinned, modules, graphs, execs, contexts; /* that are open */
  size_t bytes, total;                                                        /* allocated of the device, and all */
  int calls, fail_at, fail_code;                                              /* which call fails, and how; 0: none */
  const char *failed;                                                         /* the one that did */
  int launches, fault_at;                                                     /* done; which one faults; 0: none */
  unsigned rows;            /* of the launch with the most: blocks of the second dimension */
  void *table[12];          /* the beginning of its table of memories */
  unsigned blocks, threads; /* of the last launch: of the first dimension */
  int64_t second;           /* its second parameter, all of which have 8 bytes */
  int sticky;               /* after a fault */
  int n_ops, done;
  struct fake_op ops[FAKE_OPS];
  struct {
    char *at;
    size_t n;
  } pins[FAKE_PINNED];
  struct fake_graph *capture; /* NULL: none */
  bool capture_broken;
  int node;                       /* the last of the capture */
  size_t n_depends, most_depends; /* nodes of the last set, and of the largest */
  void *nodes[FAKE_NODES];        /* what the next node depends on */
  double clock;
} fake;

/* Everything that was made, so that what a device that answers no more leaves behind goes with it. */
struct fake_block {
  struct fake_block *next, *last;
  _Alignas(16) char at[];
};
static struct fake_block *fake_blocks;
static inline void *fake_room(size_t bytes) {
  struct fake_block *made = calloc(1, sizeof *made + bytes);
  if (made == NULL) return NULL;
  made->next = fake_blocks;
  if (fake_blocks != NULL) fake_blocks->last = made;
  fake_blocks = made;
  return made->at;
}
static inline void fake_drop(void *at) {
  if (at == NULL) return;
  struct fake_block *block = (struct fake_block *)((char *)at - offsetof(struct fake_block, at));
  if (block->last != NULL) block->last->next = block->next;
  if (block->last == NULL) fake_blocks = block->next;
  if (block->next != NULL) block->next->last = block->last;
  free(block);
}

static inline int fake_call(const char *name) {
  if (fake.sticky != 0) return fake.sticky;
  if (++fake.calls != fake.fail_at) return 0;
  fake.failed = name;
  return fake.fail_code;
}
#define FAKE_CALL(NAME)                                                                                                \
  do {                                                                                                                 \
    int code_ = fake_call(NAME);                                                                                       \
    if (code_ != 0) return code_;                                                                                      \
  } while (0)
/* What is not allowed while a stream is captured. */
#define FAKE_FREE_CALL(NAME)                                                                                           \
  do {                                                                                                                 \
    FAKE_CALL(NAME);                                                                                                   \
    if (fake.capture != NULL) {                                                                                        \
      fake.capture_broken = true;                                                                                      \
      return FAKE_CAPTURE_WRONG;                                                                                       \
    }                                                                                                                  \
  } while (0)

/* ---- doing ------------------------------------------------------------------------------------------------- */

static inline void fake_do(const struct fake_op *op) {
  fake.clock += 1e-3;
  if (fake.sticky != 0) return;
  switch (op->kind) {
  case FAKE_UPLOAD:
  case FAKE_DOWNLOAD:
  case FAKE_COPY: memmove(op->to, op->from, op->n); break;
  case FAKE_FILL: memset(op->to, op->byte, op->n); break;
  case FAKE_LAUNCH:
    if (++fake.launches == fake.fault_at) fake.sticky = FAKE_FAULT;
    break;
  case FAKE_EVENT: ((struct fake_event *)op->event)->time = fake.clock; break;
  case FAKE_GRAPH: break;
  }
}

static inline int fake_done(int n) {
  for (; fake.done < n; fake.done++) {
    const struct fake_op *op = &fake.ops[fake.done];
    if (op->kind != FAKE_GRAPH) fake_do(op);
    for (int i = 0; op->kind == FAKE_GRAPH && i < op->graph->n; i++) fake_do(&op->graph->ops[i]);
  }
  return fake.sticky;
}

static inline int fake_ask(struct fake_op op) {
  if (fake.capture == NULL) {
    if (fake.n_ops == FAKE_OPS) fake.n_ops = fake.done = (fake_done(fake.n_ops), 0);
    fake.ops[fake.n_ops++] = op;
    return 0;
  }
  assert_true(fake.capture->n < FAKE_NODES);
  fake.capture->ops[fake.capture->n++] = op;
  fake.node = ++fake.capture->n_nodes;
  fake.n_depends = 1;
  fake.nodes[0] = (void *)(uintptr_t)fake.node;
  return 0;
}

/* ---- the functions ------------------------------------------------------------------------------------------- */

static inline int fake_context_push(void *context) {
  (void)context;
  int code = fake.sticky != 0 ? 0 : fake_call("context_push"); /* it only shows where later calls go */
  fake.contexts += code == 0;
  return code;
}
static inline int fake_context_pop(void **context) {
  *context = NULL;
  fake.contexts--;
  return 0;
}
static inline int fake_stream_create(void **stream, unsigned flags) {
  (void)flags;
  FAKE_CALL("stream_create");
  fake.streams++;
  *stream = fake_room(1);
  return 0;
}
static inline int fake_stream_destroy(void *stream) {
  fake_drop(stream);
  fake.streams--;
  return 0;
}
static inline int fake_stream_wait(void *stream) {
  (void)stream;
  FAKE_FREE_CALL("stream_wait");
  return fake_done(fake.n_ops);
}
static inline int fake_stream_wait_event(void *stream, void *event, unsigned flags) {
  (void)stream, (void)event, (void)flags;
  FAKE_CALL("stream_wait_event");
  return 0;
}
static inline int fake_event_create(void **event, unsigned flags) {
  (void)flags;
  FAKE_CALL("event_create");
  fake.events++;
  struct fake_event *made = fake_room(sizeof *made);
  made->at = -1;
  *event = made;
  return 0;
}
static inline int fake_event_destroy(void *event) {
  (void)fake_done(fake.n_ops);
  fake_drop(event);
  fake.events--;
  return 0;
}
static inline int fake_event_record(void *event, void *stream) {
  (void)stream;
  FAKE_CALL("event_record");
  ((struct fake_event *)event)->at = fake.n_ops;
  return fake_ask((struct fake_op){.kind = FAKE_EVENT, .event = event});
}
static inline int fake_event_record_flags(void *event, void *stream, unsigned flags) {
  (void)flags;
  return fake_event_record(event, stream);
}
static inline int fake_event_wait(void *event) {
  FAKE_FREE_CALL("event_wait");
  return fake_done(BASE_MIN(((struct fake_event *)event)->at + 1, fake.n_ops));
}
static inline int fake_event_elapsed(float *ms, void *from, void *to) {
  FAKE_CALL("event_elapsed");
  *ms = (float)(1e3 * (((struct fake_event *)to)->time - ((struct fake_event *)from)->time));
  return 0;
}
static inline int fake_host_alloc(void **at, size_t bytes, unsigned flags) {
  (void)flags;
  FAKE_FREE_CALL("host_alloc");
  *at = fake_room(bytes);
  for (int i = 0; i < FAKE_PINNED; i++) {
    if (fake.pins[i].at != NULL) continue;
    fake.pins[i].at = *at;
    fake.pins[i].n = bytes;
    break;
  }
  fake.pinned++;
  return 0;
}
static inline int fake_host_free(void *at) {
  for (int i = 0; i < FAKE_PINNED; i++)
    if (fake.pins[i].at == at) fake.pins[i].at = NULL;
  fake_drop(at);
  fake.pinned--;
  return 0;
}
/* The size of an allocation is written before it. */
static inline int fake_alloc(uint64_t *at, size_t bytes) {
  FAKE_FREE_CALL("alloc");
  if (bytes > fake.total - fake.bytes) return 2;
  char *block = fake_room(bytes + 64);
  memcpy(block, &bytes, sizeof bytes);
  fake.bytes += bytes;
  fake.allocations++;
  *at = (uint64_t)(uintptr_t)(block + 64);
  return 0;
}
static inline int fake_free(uint64_t at) {
  char *block = (char *)(uintptr_t)at - 64;
  size_t bytes;
  memcpy(&bytes, block, sizeof bytes);
  (void)fake_done(fake.n_ops);
  fake.bytes -= bytes;
  fake.allocations--;
  fake_drop(block);
  return 0;
}
static inline int fake_info(size_t *left, size_t *all) {
  *left = fake.total - fake.bytes;
  *all = fake.total;
  return fake_call("info");
}
/* Memory that is not pinned is read at once. */
static inline int fake_upload(uint64_t to, const void *from, size_t bytes, void *stream) {
  (void)stream;
  FAKE_CALL("upload");
  bool pinned = false;
  for (int i = 0; i < FAKE_PINNED; i++)
    pinned = pinned || (fake.pins[i].at != NULL && (const char *)from >= fake.pins[i].at &&
                        (const char *)from < fake.pins[i].at + fake.pins[i].n);
  if (pinned)
    return fake_ask((struct fake_op){.kind = FAKE_UPLOAD, .to = (char *)(uintptr_t)to, .from = from, .n = bytes});
  if (fake_done(fake.n_ops) == 0) memcpy((char *)(uintptr_t)to, from, bytes);
  return fake.sticky;
}
static inline int fake_download(void *to, uint64_t from, size_t bytes, void *stream) {
  (void)stream;
  FAKE_CALL("download");
  return fake_ask((struct fake_op){.kind = FAKE_DOWNLOAD, .to = to, .from = (const char *)(uintptr_t)from, .n = bytes});
}
static inline int fake_copy(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  (void)stream;
  FAKE_CALL("copy");
  return fake_ask((struct fake_op){
      .kind = FAKE_COPY, .to = (char *)(uintptr_t)to, .from = (const char *)(uintptr_t)from, .n = bytes});
}
static inline int fake_fill(uint64_t at, unsigned char byte, size_t bytes, void *stream) {
  (void)stream;
  FAKE_CALL("fill");
  return fake_ask((struct fake_op){.kind = FAKE_FILL, .to = (char *)(uintptr_t)at, .byte = byte, .n = bytes});
}
static inline int fake_module_load(void **module, const void *binary) {
  (void)binary;
  FAKE_CALL("module_load");
  fake.modules++;
  *module = fake_room(1);
  return 0;
}
static inline int fake_module_unload(void *module) {
  fake_drop(module);
  fake.modules--;
  return 0;
}
static inline int fake_module_function(void **function, void *module, const char *name) {
  (void)name;
  FAKE_CALL("module_function");
  *function = module;
  return 0;
}
static inline int fake_function_set(void *function, int attribute, int value) {
  (void)function, (void)attribute, (void)value;
  FAKE_CALL("function_set");
  return 0;
}
static inline int fake_launch(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                              unsigned shared, void *stream, void **parameters, void **extra) {
  (void)function, (void)z, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
  FAKE_CALL("launch");
  fake.blocks = x;
  fake.threads = bx;
  memcpy(&fake.second, parameters[1], sizeof fake.second);
  if (y > fake.rows && y > 1) memcpy(fake.table, parameters[0], sizeof fake.table);
  fake.rows = BASE_MAX(fake.rows, y);
  return fake_ask((struct fake_op){.kind = FAKE_LAUNCH});
}

/* ---- captures and graphs --------------------------------------------------------------------------------------- */

static inline int fake_capture_begin(void *stream, int mode) {
  (void)stream, (void)mode;
  FAKE_FREE_CALL("capture_begin");
  fake.capture = fake_room(sizeof *fake.capture);
  fake.graphs++;
  fake.capture_broken = false;
  fake.n_depends = fake.most_depends = 0;
  return 0;
}
static inline int fake_graph_destroy(void *graph) {
  struct fake_graph *g = graph;
  fake.graphs--;
  fake_drop(g);
  return 0;
}
static inline int fake_capture_end(void *stream, void **graph) {
  struct fake_graph *captured = fake.capture;
  int code = fake_call("capture_end");
  (void)stream;
  *graph = NULL;
  fake.capture = NULL;
  if (captured == NULL) return 901;
  if (code != 0 || fake.capture_broken) {
    (void)fake_graph_destroy(captured);
    return code != 0 ? code : 901;
  }
  *graph = captured;
  return 0;
}
static inline int fake_capture_info(void *stream, int *state, uint64_t *id, void **graph, void *const **nodes,
                                    size_t *n) {
  (void)stream, (void)graph;
  FAKE_CALL("capture_info");
  *state = 1;
  *id = 1;
  *nodes = fake.nodes;
  *n = fake.n_depends;
  return 0;
}
static inline int fake_capture_depends(void *stream, void **nodes, size_t n, unsigned flags) {
  (void)stream;
  FAKE_CALL("capture_depends");
  assert_int_equal(flags, 1);
  for (size_t i = 0; i < n; i++) {
    assert_true((int)(uintptr_t)nodes[i] >= 1 && (int)(uintptr_t)nodes[i] <= fake.capture->n_nodes);
    for (size_t k = 0; k < i; k++) assert_ptr_not_equal(nodes[i], nodes[k]);
    fake.nodes[i] = nodes[i];
  }
  fake.n_depends = n;
  fake.most_depends = BASE_MAX(fake.most_depends, n);
  return 0;
}
static inline int fake_graph_instantiate(void **made, void *graph, unsigned long long flags) {
  (void)flags;
  FAKE_CALL("graph_instantiate");
  struct fake_graph *copy = fake_room(sizeof *copy);
  *copy = *(const struct fake_graph *)graph;
  fake.execs++;
  fake.bytes += 4096; /* of the device */
  *made = copy;
  return 0;
}
static inline int fake_graph_upload(void *made, void *stream) {
  (void)made, (void)stream;
  FAKE_CALL("graph_upload");
  return 0;
}
static inline int fake_graph_launch(void *made, void *stream) {
  (void)stream;
  FAKE_CALL("graph_launch");
  return fake_ask((struct fake_op){.kind = FAKE_GRAPH, .graph = made});
}
static inline int fake_graph_exec_destroy(void *made) {
  (void)fake_done(fake.n_ops);
  fake.execs--;
  fake.bytes -= 4096;
  fake_drop(made);
  return 0;
}
static inline int fake_graph_nodes(void *graph, void **nodes, size_t *n) {
  (void)nodes;
  *n = (size_t)((const struct fake_graph *)graph)->n_nodes;
  return fake_call("graph_nodes");
}
static inline int fake_error_name(int code, const char **name) {
  *name = code == FAKE_FAULT ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return 0;
}
static inline int fake_error_string(int code, const char **text) {
  *text = code == FAKE_FAULT ? "an illegal memory access was encountered" : code == 2 ? "out of memory" : "planted";
  return 0;
}

/* ---- the door ------------------------------------------------------------------------------------------------- */

/* From now on rt_cuda_open gives the fake: a device of compute capability 9.0 with so many bytes. */
static inline void fake_cuda_open(size_t bytes) {
  memset(&fake, 0, sizeof fake);
  fake.total = bytes;
  fake.driver.major = 9;
  fake.driver.multiprocessors = 132;
  fake.driver.driver_version = 13000;
  snprintf(fake.driver.name, sizeof fake.driver.name, "Fake");
  fake.driver.target = rt_cuda_row(9, 0, &fake.driver.ptx);
#define FAKE(NAME) fake.driver.NAME = fake_##NAME
  FAKE(context_push), FAKE(context_pop), FAKE(stream_create), FAKE(stream_destroy), FAKE(stream_wait);
  FAKE(stream_wait_event), FAKE(event_create), FAKE(event_destroy), FAKE(event_record), FAKE(event_record_flags);
  FAKE(event_wait), FAKE(event_elapsed), FAKE(host_alloc), FAKE(host_free), FAKE(alloc), FAKE(free), FAKE(info);
  FAKE(upload), FAKE(download), FAKE(copy), FAKE(fill), FAKE(module_load), FAKE(module_unload), FAKE(module_function);
  FAKE(function_set), FAKE(launch), FAKE(capture_begin), FAKE(capture_end), FAKE(capture_info), FAKE(capture_depends);
  FAKE(graph_instantiate), FAKE(graph_upload), FAKE(graph_launch), FAKE(graph_exec_destroy), FAKE(graph_destroy);
  FAKE(graph_nodes), FAKE(error_name), FAKE(error_string);
#undef FAKE
  rt_cuda_use(&fake.driver);
}

/* What is still open, of all kinds. */
static inline int fake_cuda_left(void) {
  return fake.streams + fake.events + fake.allocations + fake.pinned + fake.modules + fake.graphs + fake.execs +
         fake.contexts;
}

/* The n-th call from now on fails. */
static inline void fake_cuda_fail(int n, int code) {
  fake.calls = 0;
  fake.fail_at = n;
  fake.fail_code = code;
  fake.failed = NULL;
}

/* The real driver again. */
static inline void fake_cuda_close(void) {
  rt_cuda_use(NULL);
  while (fake_blocks != NULL) fake_drop(fake_blocks->at);
}

#endif
