/* runtime/cuda/dnn_plan.c -- plans of calls: the graph, an algorithm to do it that the library advises, and running it
** tests: tests/runtime/test_dnn.c; make test-cuda
*/
#include "runtime/cuda/dnn.h"

enum { MOST_CONFIGS = 16, MOST_NOTES = 16, MODES = 2 };

/* ---- the algorithms that are advised ---------------------------------------------------------------------------- */

static void build_graph(struct rt_dnn_graph *g) {
  if (g->conv != NULL)
    rt_dnn_conv_build(g);
  else
    rt_dnn_graph_build(g);
}

static void *graph_of(struct rt_dnn_graph *g) {
  const struct rt_dnn *dnn = g->plan->dnn;
  build_graph(g);
  void *d = rt_dnn_make(g, RT_DNN_GRAPH);
  rt_dnn_set(g, d, RT_DNN_GRAPH_OPS, RT_DNN_TYPE_DESCRIPTOR, g->n_ops, g->ops);
  if (dnn->handle != NULL) rt_dnn_set(g, d, RT_DNN_GRAPH_HANDLE, RT_DNN_TYPE_HANDLE, 1, &dnn->handle);
  rt_dnn_finish(g, d);
  return d;
}

/* The algorithms, best first, in configs; how many. */
static int64_t ask(struct rt_dnn_graph *g, void *graph, int mode, void *configs[MOST_CONFIGS]) {
  const struct rt_dnn *dnn = g->plan->dnn;
  int64_t n = 0;
  void *d = rt_dnn_make(g, RT_DNN_ADVICE);
  rt_dnn_set(g, d, RT_DNN_ADVICE_GRAPH, RT_DNN_TYPE_DESCRIPTOR, 1, &graph);
  rt_dnn_set(g, d, RT_DNN_ADVICE_MODE, RT_DNN_TYPE_ADVICE, 1, &mode);
  if (dnn->device != NULL) rt_dnn_set(g, d, RT_DNN_ADVICE_DEVICE, RT_DNN_TYPE_DESCRIPTOR, 1, &dnn->device);
  rt_dnn_finish(g, d);
  for (int i = 0; i < MOST_CONFIGS; i++) configs[i] = rt_dnn_make(g, RT_DNN_CONFIG);
  if (g->failed != QUERN_STATUS_OK) return 0;
  int code = dnn->get(d, RT_DNN_ADVICE_RESULTS, RT_DNN_TYPE_DESCRIPTOR, MOST_CONFIGS, &n, configs);
  g->failed = rt_dnn_check(dnn, code, "how a call can be done");
  return g->failed == QUERN_STATUS_OK ? BASE_MIN(n, MOST_CONFIGS) : 0;
}

/* True when an engine has a note that is not wanted: that its bits vary, or of sums that are less exact than the call's. */
static bool is_refused(const struct rt_dnn_graph *g, void *config) {
  const struct rt_dnn *dnn = g->plan->dnn;
  int notes[MOST_NOTES];
  int64_t n = 0;
  void *engine = NULL;
  if (g->refused == 0) return false;
  if (dnn->make(RT_DNN_ENGINE, &engine) != 0) return true;
  bool told = dnn->get(config, RT_DNN_CONFIG_ENGINE, RT_DNN_TYPE_DESCRIPTOR, 1, &n, &engine) == 0 &&
              dnn->get(engine, RT_DNN_ENGINE_NOTES, RT_DNN_TYPE_NOTE, MOST_NOTES, &n, notes) == 0;
  bool found = !told;
  for (int64_t i = 0; told && i < n; i++)
    found = found || ((unsigned)notes[i] < 32 && (g->refused >> notes[i] & 1) != 0);
  (void)dnn->drop(engine);
  return found;
}

static int64_t round_up(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/* The bytes that an algorithm needs, rounded up; more than there can be when it is not known. */
static int64_t bytes_of(const struct rt_dnn *dnn, void *descriptor, int name) {
  int64_t n = 0, bytes = 0;
  return dnn->get(descriptor, name, RT_DNN_TYPE_INT64, 1, &n, &bytes) == 0 ? round_up(bytes) : INT64_MAX;
}

static void report_device(struct rt_dnn_graph *g, void *plan) {
  const struct rt_dnn *dnn = g->plan->dnn;
  if (dnn->handle != NULL)
    rt_dnn_set(g, plan, RT_DNN_PLAN_HANDLE, RT_DNN_TYPE_HANDLE, 1, &dnn->handle);
  else
    rt_dnn_set(g, plan, RT_DNN_PLAN_DEVICE, RT_DNN_TYPE_DESCRIPTOR, 1, &dnn->device);
}

/* The library's part of the workspace comes first. */
static void place_work(struct rt_dnn_graph *g, int64_t bytes) {
  struct rt_dnn_plan *plan = g->plan;
  for (int t = 0; t < plan->n_tensors; t++)
    if (plan->mem[t] == -2) plan->at[t] += bytes;
  plan->own = bytes;
  plan->bytes = bytes + g->work;
}

/* All algorithms that are advised for attention, whose kernels only the best advice knows; of a convolution also those that do any. */
static int64_t ask_all(struct rt_dnn_graph *g, void *graph, void *configs[MODES * MOST_CONFIGS]) {
  static const int modes[MODES] = {RT_DNN_ADVICE_A, RT_DNN_ADVICE_FALLBACK};
  int64_t n = 0;
  for (int mode = 0; mode < (g->conv != NULL ? MODES : 1); mode++) {
    n += ask(g, graph, modes[mode], configs + n);
    if (g->failed != QUERN_STATUS_OK) return n;
  }
  return n;
}

static quern_status choose(struct rt_dnn_graph *g, int first, int64_t most) {
  struct rt_dnn_plan *plan = g->plan;
  void *configs[MODES * MOST_CONFIGS];
  void *graph = graph_of(g);
  int64_t n = ask_all(g, graph, configs);
  QUERN_TRY(g->failed);
  plan->n_configs = (int)n;
  for (int64_t i = 0; i < n; i++) {
    int64_t k = ((first >= 0 && first < n ? first : 0) + i) % n,
            bytes = bytes_of(plan->dnn, configs[k], RT_DNN_CONFIG_BYTES);
    if (bytes > most - g->work || is_refused(g, configs[k])) continue;
    plan->config = (int)k;
    plan->plan = rt_dnn_make(g, RT_DNN_PLAN);
    rt_dnn_set(g, plan->plan, RT_DNN_PLAN_CONFIG, RT_DNN_TYPE_DESCRIPTOR, 1, &configs[k]);
    report_device(g, plan->plan);
    place_work(g, bytes);
    return g->failed;
  }
  char text[300] = "";
  plan->dnn->last_error(text, sizeof text);
  return base_error(QUERN_STATUS_UNSUPPORTED, "%s has no kernel for this %s%s, of %lld algorithms that it names: %s",
                    plan->dnn->identity, g->conv != NULL ? "convolution" : "attention",
                    g->conv == NULL && g->back ? "'s gradient" : "", (long long)n, text);
}

static struct rt_dnn_graph new_conv_graph(struct rt_dnn_plan *plan, const struct kern *kern) {
  const struct kern_conv *c = &kern->library_call.conv;
  quern_dtype dtype = kern->mems[c->x].dtype;
  bool narrow = dtype != QUERN_DTYPE_F32;
  unsigned refused = 1u << RT_DNN_NOTE_NARROW_SUMS | 1u << RT_DNN_NOTE_FFT | 1u << RT_DNN_NOTE_WINOGRAD;
  if (c->exact) refused |= 1u << RT_DNN_NOTE_VARIES;
  if (!narrow && !c->tf32) refused |= 1u << RT_DNN_NOTE_TENSOR_CORES | 1u << RT_DNN_NOTE_NARROWS;
  return (struct rt_dnn_graph){.plan = plan,
                               .conv = c,
                               .refused = refused,
                               .dtype = dtype == QUERN_DTYPE_BF16 ? RT_DNN_BF16
                                        : narrow                  ? RT_DNN_F16
                                                                  : RT_DNN_F32};
}

static struct rt_dnn_graph new_graph(struct rt_dnn_plan *plan, const struct rt_dnn *dnn, const struct kern *kern) {
  const struct kern_attention *a = &kern->library_call.attention;
  *plan = (struct rt_dnn_plan){.dnn = dnn};
  if (kern->library_call.kind == KERN_LIBRARY_CONV) return new_conv_graph(plan, kern);
  bool back = kern->library_call.kind == KERN_LIBRARY_ATTENTION_BACK,
       brain = kern->mems[a->q.mem].dtype == QUERN_DTYPE_BF16;
  return (struct rt_dnn_graph){.plan = plan,
                               .call = a,
                               .refused = a->exact ? 1u << RT_DNN_NOTE_VARIES : 0,
                               .back = back,
                               .dtype = brain ? RT_DNN_BF16 : RT_DNN_F16};
}

/* ---- plans ------------------------------------------------------------------------------------------------ */

quern_status rt_dnn_plan_begin(struct rt_dnn_plan *plan, const struct rt_dnn *dnn, const struct kern *kern, int config,
                               int64_t most) {
  struct rt_dnn_graph g = new_graph(plan, dnn, kern);
  quern_status status = choose(&g, config, most);
  if (status != QUERN_STATUS_OK) rt_dnn_plan_free(plan);
  return status;
}

/* The library has an NVRTC of its own. */
static int compile(const struct rt_dnn *dnn, void *plan) {
  struct base_signals signals;
  base_signals_hold(&signals);
  int code = dnn->finish(plan);
  base_signals_release(&signals);
  return code;
}

quern_status rt_dnn_plan_finish(struct rt_dnn_plan *plan) {
  const struct rt_dnn *dnn = plan->dnn;
  QUERN_TRY(rt_dnn_check(dnn, compile(dnn, plan->plan), "compiling a call"));
  int64_t bytes = bytes_of(dnn, plan->plan, RT_DNN_PLAN_BYTES);
  QUERN_CHECK(bytes <= plan->own, UNSUPPORTED, "%s: a call needs %lld bytes of workspace, and was said to need %lld",
              dnn->identity, (long long)bytes, (long long)plan->own);
  return QUERN_STATUS_OK;
}

quern_status rt_dnn_plan_make(struct rt_dnn_plan *plan, const struct rt_dnn *dnn, const struct kern *kern, int config,
                              int64_t most) {
  quern_status status = QUERN_STATUS_OK;
  for (int tries = 0, n_configs = 1; tries < n_configs; tries++) {
    QUERN_TRY(rt_dnn_plan_begin(plan, dnn, kern, config, most));
    n_configs = plan->n_configs;
    config = plan->config + 1;
    status = rt_dnn_plan_finish(plan);
    if (status == QUERN_STATUS_OK) return status;
    rt_dnn_plan_free(plan);
  }
  return status;
}

quern_status rt_dnn_plan_restore(struct rt_dnn_plan *plan, const struct rt_dnn *dnn, const struct kern *kern,
                                 const char *text, size_t n) {
  struct rt_dnn_graph g = new_graph(plan, dnn, kern);
  build_graph(&g); /* for what is given to it */
  rt_dnn_plan_free(plan);
  plan->plan = rt_dnn_make(&g, RT_DNN_PLAN);
  rt_dnn_set(&g, plan->plan, RT_DNN_PLAN_TEXT, RT_DNN_TYPE_CHAR, (int64_t)n, text);
  report_device(&g, plan->plan);
  if (g.failed == QUERN_STATUS_OK) g.failed = rt_dnn_check(dnn, compile(dnn, plan->plan), "a plan from its text");
  if (g.failed == QUERN_STATUS_OK) {
    int64_t bytes = bytes_of(dnn, plan->plan, RT_DNN_PLAN_BYTES);
    if (bytes == INT64_MAX)
      g.failed = base_error(QUERN_STATUS_UNSUPPORTED, "%s does not report a plan's workspace", dnn->identity);
    if (bytes != INT64_MAX) place_work(&g, bytes);
  }
  if (g.failed != QUERN_STATUS_OK) rt_dnn_plan_free(plan);
  return g.failed;
}

quern_status rt_dnn_plan_text(const struct rt_dnn_plan *plan, struct base_heap *heap, char **text, size_t *n) {
  const struct rt_dnn *dnn = plan->dnn;
  int64_t count = 0, got = 0;
  *text = NULL;
  *n = 0;
  QUERN_TRY(rt_dnn_check(dnn, dnn->get(plan->plan, RT_DNN_PLAN_TEXT, RT_DNN_TYPE_CHAR, 0, &count, NULL), "a plan"));
  QUERN_CHECK(count > 0, UNSUPPORTED, "%s: a plan has no text", dnn->identity);
  char *made = base_alloc(heap, (size_t)count);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  int code = dnn->get(plan->plan, RT_DNN_PLAN_TEXT, RT_DNN_TYPE_CHAR, count, &got, made);
  if (code == 0 && got == count) {
    *text = made;
    *n = (size_t)count;
    return QUERN_STATUS_OK;
  }
  base_free(heap, made, (size_t)count);
  return code != 0 ? rt_dnn_check(dnn, code, "a plan")
                   : base_error(QUERN_STATUS_UNSUPPORTED, "%s: a plan's text is cut off", dnn->identity);
}

void rt_dnn_plan_free(struct rt_dnn_plan *plan) {
  while (plan->n_made > 0) (void)plan->dnn->drop(plan->made[--plan->n_made]);
}

/* ---- running ---------------------------------------------------------------------------------------------- */

static const void *number_of(const struct rt_dnn_plan *plan, int64_t id) {
  switch (id) {
  case RT_DNN_SCALE: return &plan->scale;
  case RT_DNN_LOW:
  case RT_DNN_NO_KEY: return &plan->low;
  case RT_DNN_ONE: return &plan->one;
  case RT_DNN_QUERIES: return &plan->queries;
  default: return &plan->keys;
  }
}

/* Writes what the workspace begins with: 0, or an error of the driver. */
static int fill(const struct rt_dnn_plan *plan, void *stream, const void *const *at) {
  int code = 0;
  for (int i = 0; i < plan->n_tensors && code == 0; i++) {
    bool queries = plan->id[i] == RT_DNN_ALL_QUERIES;
    if (!queries && plan->id[i] != RT_DNN_ALL_KEYS) continue;
    unsigned word = (unsigned)(queries ? plan->queries : plan->keys);
    code = plan->dnn->fill((uint64_t)(uintptr_t)at[i], word, (size_t)plan->batch, stream);
  }
  return code;
}

quern_status rt_dnn_plan_run(const struct rt_dnn_plan *plan, void *stream, void *const *mems, void *work) {
  const struct rt_dnn *dnn = plan->dnn;
  const void *at[RT_DNN_IDS];
  void *pack = NULL;
  for (int i = 0; i < plan->n_tensors; i++) {
    int mem = plan->mem[i];
    at[i] = mem == -1 ? number_of(plan, plan->id[i]) : (char *)(mem == -2 ? work : mems[mem]) + plan->at[i];
  }
  int code = fill(plan, stream, at);
  QUERN_CHECK(code == 0, DEVICE, "%s: the driver cannot write its workspace (error %d)", dnn->identity, code);
  code = dnn->make(RT_DNN_PACK, &pack);
  if (code != 0) return rt_dnn_check(dnn, code, "a descriptor");
  code = dnn->set(pack, RT_DNN_PACK_IDS, RT_DNN_TYPE_INT64, plan->n_tensors, plan->id);
  if (code == 0) code = dnn->set(pack, RT_DNN_PACK_POINTERS, RT_DNN_TYPE_POINTER, plan->n_tensors, at);
  if (code == 0) code = dnn->set(pack, RT_DNN_PACK_WORK, RT_DNN_TYPE_POINTER, 1, &work);
  if (code == 0) code = dnn->finish(pack);
  if (code == 0) code = dnn->set_stream(dnn->handle, stream);
  if (code == 0) code = dnn->execute(dnn->handle, plan->plan, pack);
  quern_status status = rt_dnn_check(dnn, code, "a call");
  (void)dnn->drop(pack);
  return status;
}
