/* tests/engine/test_remote.c -- programs on a device with memory of its own: OpenCL, where there is some */
#include "engine/engine_test.h"

static quern_program_options remote_options(void) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "opencl";
  return options;
}

/* Skips a test where there is no device. */
static void need_device(void) {
  char text[256];
  struct rt_stream *stream;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  if (rt_opencl.remote->open(rt_device_at(&rt_opencl, 0), &stream, &heap) != QUERN_STATUS_OK) {
    print_message("%s\n", quern_last_error());
    skip();
  }
  rt_opencl.remote->close(stream);
  rt_opencl.describe(rt_device_at(&rt_opencl, 0), &heap, text, sizeof text);
  assert_true(strlen(text) > 3 && text[strlen(text) - 1] != ' ' && text[strlen(text) - 1] != ',');
}

/* ---- what it computes ------------------------------------------------------------------------------------ */

static float weights[64];

static quern_tensor *some_weights(void) {
  for (int i = 0; i < 64; i++) weights[i] = (float)(i % 7) / 4 - 0.5f;
  return quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(8, 8), weights);
}

static void results_and_constants(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *x = F32_INPUT("x", 5, 8), *s = F32_STATE("s", 8), *w = some_weights();
  quern_tensor *h = quern_gelu(quern_linear(quern_layer_norm(x, 1, s, NULL, 1e-5), w, NULL));
  quern_tensor *empty = F32_INPUT("empty", 0, 3);
  expect_same(TENSORS(quern_softmax(h, 1), x, quern_sum(h, QUERN_LIST(0, 1), false), quern_neg(empty)), &options);
  options.optimize = QUERN_OPTIMIZE_NONE;
  expect_same(TENSORS(quern_softmax(h, 1), quern_cast(x, QUERN_DTYPE_BF16)), &options);
}

static void body_add(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(quern_add(in[1], quern_mul(in[2], in[3])), quern_cast(in[0], QUERN_DTYPE_F32));
  out[1] = quern_sub(in[1], in[2]);
}
static void body_double(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(in[0], in[0]);
}
static void is_small(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_lt(in[0], quern_scalar(ctx, QUERN_DTYPE_F32, 100));
}
static void body_neg(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_neg(in[0]);
}

static void control(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *c = F32_INPUT("c", 3), *xs = F32_INPUT("x", 4, 3), *k = F32_INPUT("k", 3), *looped[2], *grown[1],
               *chosen[1];
  for (int64_t trip = 0; trip <= 4; trip += 4) {
    quern_loop_options loop = {sizeof loop, trip, trip > 0, 1, 1, 1, 1};
    quern_tensor *operands[] = {c, trip > 0 ? xs : F32_INPUT("none", 0, 3), k};
    EXPECT_OK(quern_loop(ctx, &loop, operands, body_add, NULL, looped));
    expect_same(TENSORS(looped[0], looped[1]), &options);
  }
  quern_tensor *one = quern_add(quern_mul(k, k), quern_scalar(ctx, QUERN_DTYPE_F32, 1));
  quern_tensor *start = quern_max(one, QUERN_LIST(0), false);
  EXPECT_OK(quern_while(ctx, 1, 0, (quern_tensor *[]){start}, is_small, body_double, NULL, grown));
  quern_tensor *positive = quern_lt(quern_scalar(ctx, QUERN_DTYPE_F32, 0), quern_sum(k, QUERN_LIST(0), false));
  EXPECT_OK(quern_if(positive, 1, (quern_tensor *[]){k}, 1, body_double, body_neg, NULL, chosen));
  expect_same(TENSORS(grown[0], chosen[0]), &options);
}

/* ---- states ----------------------------------------------------------------------------------------------- */

static void states_stay_there(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options(), plain = remote_options();
  quern_tensor *s = F32_STATE("s", 2), *x = F32_INPUT("x", 2);
  options.n_updates = 1;
  options.updates = (quern_update[]){{s, quern_add(s, x)}};
  open_program(0, NULL, &options);
  EXPECT_OK(quern_instance_set_state(instance, 0, (float[]){1, 2}));
  assert_null(quern_instance_state(instance, 0));
  quern_program *reading, *host;
  quern_instance *reader = NULL;
  EXPECT_OK(quern_program_compile(&reading, ctx, TENSORS(quern_mul(s, s)), &plain));
  EXPECT_OK(quern_instance_new_with(&reader, reading, instance));
  float a[2], b[2];
  for (int i = 1; i <= 3; i++) {
    EXPECT_OK(quern_instance_run(instance, (const void *[]){(float[]){1, 1}}, NULL));
    EXPECT_OK(quern_instance_run(reader, NULL, (void *[]){a}));
    EXPECT_OK(quern_instance_get_state(instance, 0, b));
    assert_true(b[0] == (float)(1 + i) && a[0] == b[0] * b[0] && a[1] == b[1] * b[1]);
  }
  plain.device = "interp";
  EXPECT_OK(quern_program_compile(&host, ctx, TENSORS(quern_neg(s)), &plain));
  quern_instance *wrong;
  EXPECT_ERROR(quern_instance_new_with(&wrong, host, instance), INVALID, "the program is for device interp");
  quern_program_free(host);
  close_program();
  quern_program_free(reading);
  EXPECT_OK(quern_instance_run(reader, NULL, (void *[]){a}));
  assert_true(a[0] == 16);
  quern_instance_free(reader);
}

static void rows_of_a_leading_dimension(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *x = F32_INPUT("x", 6, 8), *y = quern_softmax(quern_linear(x, some_weights(), NULL), 1);
  options.n_dynamic_batch = 1;
  options.dynamic_batch = (quern_tensor *[]){x};
  open_program(TENSORS(y), &options);
  assert_int_equal(program->memory.staging, 2 * 256); /* 192 bytes each, as they are aligned */
  float all[48];
  run_program();
  memcpy(all, outputs.at[0], sizeof all);
  for (int64_t rows = 0; rows <= 6; rows++) {
    float some[49];
    for (int i = 0; i < 49; i++) some[i] = -7;
    EXPECT_OK(quern_instance_set_dynamic_batch(instance, rows));
    EXPECT_OK(quern_instance_run(instance, (const void *const *)inputs.at, (void *[]){some}));
    assert_memory_equal(some, all, (size_t)rows * 8 * sizeof *some);
    assert_true(some[rows * 8] == -7); /* nothing behind the rows */
  }
  close_program();
}

/* ---- what goes wrong --------------------------------------------------------------------------------------- */

static void targets_that_do_not_fit(void **state) {
  (void)state;
  quern_program_options options = remote_options();
  quern_program *none;
  quern_tensor *y = quern_neg(F32_INPUT("x", 2));
  options.target = "sm_90";
  EXPECT_ERROR(quern_program_compile(&none, ctx, TENSORS(y), &options), INVALID,
               "device \"opencl\" does not run what is made for target \"sm_90\"");
  options.target = "sm_1";
  EXPECT_ERROR(quern_program_compile(&none, ctx, TENSORS(y), &options), INVALID, "there is no target \"sm_1\"");
  options.device = "cpu";
  options.target = "opencl";
  EXPECT_ERROR(quern_program_compile(&none, ctx, TENSORS(y), &options), INVALID, "device \"cpu\" does not run");
  options.device = "cuda";
  EXPECT_ERROR(quern_program_compile(&none, ctx, TENSORS(y), &options), INVALID, "device \"cuda\" does not run");
  options.device = "interp";
  EXPECT_OK(quern_program_compile(&none, ctx, TENSORS(y), &options));
  quern_program_free(none);
}

/* A device that fails at the n-th call of all that can fail. */
static int calls_left;
static bool fails(void) { return calls_left > 0 && --calls_left == 0; }
#define FAILING(NAME, PARAMETERS, ARGUMENTS)                                                                           \
  static quern_status failing_##NAME PARAMETERS {                                                                      \
    if (fails()) return base_error(QUERN_STATUS_INTERNAL, "planted: " #NAME);                                          \
    return rt_opencl.remote->NAME ARGUMENTS;                                                                           \
  }
FAILING(open, (const quern_device *device, struct rt_stream **stream, struct base_heap *heap), (device, stream, heap))
FAILING(alloc, (struct rt_stream * stream, size_t bytes, void **at), (stream, bytes, at))
FAILING(upload, (struct rt_stream * stream, void *to, const void *from, size_t bytes), (stream, to, from, bytes))
FAILING(download, (struct rt_stream * stream, void *to, const void *from, size_t bytes), (stream, to, from, bytes))
FAILING(copy, (struct rt_stream * stream, void *to, const void *from, size_t bytes), (stream, to, from, bytes))
FAILING(fill, (struct rt_stream * stream, void *at, int byte, size_t bytes), (stream, at, byte, bytes))
FAILING(wait, (struct rt_stream * stream), (stream))
FAILING(launch,
        (struct rt_stream * stream, struct rt_module *module, size_t k, const struct kern_launch *launch, void *scratch,
         size_t stride),
        (stream, module, k, launch, scratch, stride))

static void every_call_may_fail(void **state) {
  (void)state;
  need_device();
  struct rt_remote failing = {.open = failing_open,
                              .close = rt_opencl.remote->close,
                              .alloc = failing_alloc,
                              .release = rt_opencl.remote->release,
                              .upload = failing_upload,
                              .download = failing_download,
                              .copy = failing_copy,
                              .fill = failing_fill,
                              .wait = failing_wait,
                              .launch = failing_launch};
  quern_device device = *rt_device_at(&rt_opencl, 0);
  device.remote = &failing;
  quern_program_options options = remote_options();
  quern_tensor *s = F32_STATE("s", 3), *x = F32_INPUT("x", 3), *looped[2];
  quern_loop_options loop = {sizeof loop, 2, false, 1, 1, 1, 1};
  EXPECT_OK(quern_loop(ctx, &loop, (quern_tensor *[]){s, F32_INPUT("xs", 2, 3), x}, body_add, NULL, looped));
  options.n_updates = 1;
  options.updates = (quern_update[]){{s, looped[0]}};
  open_program(TENSORS(looped[1], x), &options);
  quern_instance_free(instance);
  instance = NULL;
  program->device = &device;
  int n = 1, met = 0;
  for (bool again = true; again; n++) {
    calls_left = n;
    quern_status status = quern_instance_new(&instance, program);
    if (status == QUERN_STATUS_OK) status = quern_instance_set_state(instance, 0, states.at[0]);
    if (status == QUERN_STATUS_OK) instance->poison = true;
    if (status == QUERN_STATUS_OK) status = quern_instance_run(instance, (const void *const *)inputs.at, outputs.at);
    again = calls_left == 0;
    calls_left = 0;
    assert_int_equal(status != QUERN_STATUS_OK, again);
    if (again) met += strstr(quern_last_error(), "planted") != NULL;
    quern_instance_free(instance);
    instance = NULL;
  }
  assert_true(met == n - 2 && n > 15);
  program->device = rt_device_at(&rt_opencl, 0);
  close_program();
}

static void allocations_may_fail(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *s = F32_STATE("s", 8), *y = quern_softmax(quern_linear(F32_INPUT("x", 4, 8), some_weights(), NULL), 1);
  options.n_updates = 1;
  options.updates = (quern_update[]){{s, quern_add(s, quern_sum(y, QUERN_LIST(0), false))}};
  open_program(TENSORS(y), &options); /* what is compiled is in the cache */
  close_program();
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    quern_status status = quern_program_compile(&program, ctx, TENSORS(y), &options);
    if (status == QUERN_STATUS_OK) status = quern_instance_new(&instance, program);
    if (status == QUERN_STATUS_OK) status = quern_instance_zero_states(instance);
    if (status == QUERN_STATUS_OK) status = quern_instance_run(instance, (const void *const *)inputs.at, outputs.at);
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    close_program();
  }
  assert_true(fault.n > 50);
}

/* ---- graphs: a device that keeps what it is asked for and does it when it is replayed ------------------------ */

enum { MOST_ASKED = 256, MOST_ASKED_MEMS = 64 };
struct asked {
  enum { ASKED_LAUNCH, ASKED_COPY, ASKED_FILL } what;
  struct rt_module *module;
  size_t k, n, stride;
  void *mems[MOST_ASKED_MEMS], *scratch;
  int64_t rows;
  int byte;
};
static struct kept {
  struct rt_graph graph;
  int n;
  struct asked asked[MOST_ASKED];
} kept;
static bool keeping, refusing, side_by_side;
static int captures, replays, graphs, marks;

static struct asked *ask(void) {
  assert_true(kept.n < MOST_ASKED);
  return &kept.asked[kept.n++];
}

static quern_status keeping_launch(struct rt_stream *stream, struct rt_module *module, size_t k,
                                   const struct kern_launch *launch, void *scratch, size_t stride) {
  if (!keeping) return rt_opencl.remote->launch(stream, module, k, launch, scratch, stride);
  if (refusing) return base_error(QUERN_STATUS_INTERNAL, "planted");
  struct asked *a = ask();
  size_t n = (size_t)program->kernels[k]->n_mems;
  assert_true(n <= MOST_ASKED_MEMS);
  *a = (struct asked){.what = ASKED_LAUNCH, .module = module, .k = k, .stride = stride, .scratch = scratch};
  a->rows = launch->scalars != NULL ? launch->scalars[0] : 0;
  memcpy(a->mems, launch->mems, n * sizeof *a->mems);
  launch->runs->compiled++;
  return QUERN_STATUS_OK;
}
static int joined; /* launches that were made with others */
static bool keeping_joins(const struct rt_module *module, size_t k) {
  (void)module, (void)k;
  return true;
}
static quern_status keeping_launch_many(struct rt_stream *stream, struct rt_module *module, size_t k, size_t n,
                                        const struct kern_launch *launch) {
  assert_true(keeping && n > 1);
  joined += (int)n;
  for (size_t i = n; i-- > 0;) { /* in any order */
    struct kern_launch one = *launch;
    one.mems += i * (size_t)program->kernels[k]->n_mems;
    QUERN_TRY(keeping_launch(stream, module, k, &one, NULL, 0));
  }
  return QUERN_STATUS_OK;
}
static quern_status keeping_copy(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  if (!keeping) return rt_opencl.remote->copy(stream, to, from, bytes);
  *ask() = (struct asked){.what = ASKED_COPY, .mems = {to, (void *)from}, .n = bytes};
  return QUERN_STATUS_OK;
}
static quern_status keeping_fill(struct rt_stream *stream, void *at, int byte, size_t bytes) {
  if (!keeping) return rt_opencl.remote->fill(stream, at, byte, bytes);
  *ask() = (struct asked){.what = ASKED_FILL, .mems = {at}, .n = bytes, .byte = byte};
  return QUERN_STATUS_OK;
}
static quern_status keeping_upload(struct rt_stream *stream, void *to, const void *from, size_t bytes) {
  assert_false(keeping); /* the host's memory is not read again when a graph is replayed */
  return rt_opencl.remote->upload(stream, to, from, bytes);
}
static quern_status keeping_capture(struct rt_stream *stream) {
  (void)stream;
  keeping = true;
  captures++;
  kept.n = 0;
  return QUERN_STATUS_OK;
}
static quern_status keeping_captured(struct rt_stream *stream, struct rt_graph **graph) {
  (void)stream;
  keeping = false;
  *graph = &kept.graph;
  kept.graph.steps = (size_t)kept.n;
  kept.graph.bytes = 4096;
  graphs++;
  return QUERN_STATUS_OK;
}
static quern_status keeping_replay(struct rt_stream *stream, const struct rt_graph *graph) {
  assert_true(graph == &kept.graph);
  replays++;
  for (int i = 0; i < kept.n; i++) {
    const struct asked *a = &kept.asked[i];
    struct kern_launch launch = {.mems = a->mems, .scalars = &a->rows};
    if (a->what == ASKED_LAUNCH)
      QUERN_TRY(rt_opencl.remote->launch(stream, a->module, a->k, &launch, a->scratch, a->stride));
    else if (a->what == ASKED_COPY)
      QUERN_TRY(rt_opencl.remote->copy(stream, a->mems[0], a->mems[1], a->n));
    else
      QUERN_TRY(rt_opencl.remote->fill(stream, a->mems[0], a->byte, a->n));
  }
  return QUERN_STATUS_OK;
}
static void keeping_free(struct rt_stream *stream, struct rt_graph *graph) {
  (void)stream;
  assert_true(graph == &kept.graph);
  graphs--;
}
static quern_status keeping_after(struct rt_stream *stream, size_t n, const int *steps) {
  (void)stream;
  assert_true(keeping && n <= 8);
  for (size_t i = 0; i < n; i++) assert_true(steps[i] >= 0 && steps[i] < program->subprograms[0].n_steps);
  side_by_side = true;
  return QUERN_STATUS_OK;
}
static quern_status keeping_mark(struct rt_stream *stream, size_t i) {
  (void)stream;
  marks = BASE_MAX(marks, (int)i + 1);
  return QUERN_STATUS_OK;
}
static quern_status keeping_marks(struct rt_stream *stream, size_t n, double *seconds) {
  QUERN_TRY(rt_opencl.remote->wait(stream));
  assert_int_equal(n, marks);
  /* a mark takes 1 ms, and what is done between two of them another 1 ms */
  for (size_t i = 0; i < n; i++) seconds[i] = i == 0 ? 0 : 1e-3 * (double)(2 * i - 1);
  return QUERN_STATUS_OK;
}
static quern_status some_room(const quern_device *device, int64_t *left, int64_t *all) {
  (void)device;
  *left = 1 << 20;
  *all = 1 << 21;
  return QUERN_STATUS_OK;
}

static struct rt_remote keeping_remote;
static quern_device keeping_device;

/* Programs are compiled for OpenCL and then given the device that keeps. */
static void open_keeping(size_t n, quern_tensor *const *roots, const quern_program_options *options) {
  captures = replays = graphs = marks = joined = 0;
  keeping = refusing = side_by_side = false;
  keeping_remote = *rt_opencl.remote;
  keeping_remote.launch = keeping_launch;
  keeping_remote.batchable = keeping_joins;
  keeping_remote.launch_batch = keeping_launch_many;
  keeping_remote.copy = keeping_copy;
  keeping_remote.fill = keeping_fill;
  keeping_remote.upload = keeping_upload;
  keeping_remote.capture = keeping_capture;
  keeping_remote.captured = keeping_captured;
  keeping_remote.replay = keeping_replay;
  keeping_remote.graph_free = keeping_free;
  keeping_remote.depend_on = keeping_after;
  keeping_remote.mark = keeping_mark;
  keeping_remote.marks = keeping_marks;
  keeping_device = *rt_device_at(&rt_opencl, 0);
  keeping_device.remote = &keeping_remote;
  open_program(n, roots, options);
  quern_instance_free(instance);
  program->device = &keeping_device;
  EXPECT_OK(quern_instance_new(&instance, program));
  for (size_t i = 0; i < states.n; i++) EXPECT_OK(quern_instance_set_state(instance, i, states.at[i]));
}

static void close_keeping(void) {
  quern_instance_free(instance);
  instance = NULL;
  assert_int_equal(graphs, 0);
  program->device = rt_device_at(&rt_opencl, 0);
  close_program();
}

/* Runs on changing inputs, as a graph and step by step: outputs and states are the same. */
static void expect_replays(int runs, int expected_captures, int expected_replays) {
  quern_instance *plain;
  char a[4][MOST_BYTES], b[4][MOST_BYTES];
  quern_run_stats of_graph = QUERN_INIT(quern_run_stats), of_plain = QUERN_INIT(quern_run_stats);
  assert_true(program->n_outputs <= 4);
  EXPECT_OK(quern_instance_new(&plain, program));
  plain->replay.refused = true;
  for (size_t i = 0; i < states.n; i++) EXPECT_OK(quern_instance_set_state(plain, i, states.at[i]));
  for (int r = 0; r < runs; r++) {
    slots_fill(&inputs, program->n_inputs, program->inputs, 7 + (uint64_t)r);
    EXPECT_OK(quern_instance_run(instance, (const void *const *)inputs.at, (void *[]){a[0], a[1], a[2], a[3]}));
    EXPECT_OK(quern_instance_run(plain, (const void *const *)inputs.at, (void *[]){b[0], b[1], b[2], b[3]}));
    for (size_t i = 0; i < program->n_outputs; i++) assert_memory_equal(a[i], b[i], program->outputs[i].bytes);
    for (size_t i = 0; i < program->n_states; i++) {
      EXPECT_OK(quern_instance_get_state(instance, i, a[0]));
      EXPECT_OK(quern_instance_get_state(plain, i, b[0]));
      assert_memory_equal(a[0], b[0], program->states[i].bytes);
    }
  }
  assert_int_equal(captures, expected_captures);
  assert_int_equal(replays, expected_replays);
  EXPECT_OK(quern_instance_get_stats(instance, &of_graph));
  EXPECT_OK(quern_instance_get_stats(plain, &of_plain));
  assert_int_equal(of_graph.replayed, expected_replays);
  assert_int_equal(of_graph.graph_bytes, expected_replays > 0 ? 4096 : 0);
  of_graph.replayed = of_graph.graph_bytes = 0;
  assert_memory_equal(&of_graph, &of_plain, sizeof of_graph); /* a replay counts as what it does */
  quern_instance_free(plain);
}

static quern_tensor *a_loop(const quern_program_options *options, int64_t trip, quern_tensor *s) {
  (void)options;
  quern_tensor *looped[2];
  quern_loop_options loop = {sizeof loop, trip, true, 1, 1, 1, 1};
  EXPECT_OK(quern_loop(ctx, &loop, (quern_tensor *[]){s, F32_INPUT("xs", trip, 3), F32_INPUT("x", 3)}, body_add, NULL,
                       looped));
  return looped[0];
}

/* A step of training in small: squares are summed, then all states are changed by what came out. */
static void equal_steps_are_joined(void **state) {
  (void)state;
  need_device();
  enum { N = 12 };
  quern_program_options options = remote_options();
  quern_update updates[N];
  quern_tensor *x = F32_INPUT("x", 8), *sum = quern_scalar(ctx, QUERN_DTYPE_F32, 0), *changes[N];
  char name[16];
  for (int i = 0; i < N; i++) {
    snprintf(name, sizeof name, "s%d", i);
    updates[i].state = quern_state(ctx, name, QUERN_DTYPE_F32, QUERN_LIST(i % 3 == 0 ? 4 : 8));
    changes[i] = quern_mul(updates[i].state, i % 3 == 0 ? quern_sum(x, QUERN_LIST(0), true) : x);
    sum = quern_add(sum, quern_sum(quern_mul(changes[i], changes[i]), QUERN_LIST(0), false));
  }
  for (int i = 0; i < N; i++) updates[i].value = quern_sub(updates[i].state, quern_div(changes[i], sum));
  options.n_updates = N;
  options.updates = updates;
  for (int optimize = 0; optimize < 2; optimize++) {
    options.optimize = optimize > 0 ? QUERN_OPTIMIZE_DEFAULT : QUERN_OPTIMIZE_NONE;
    open_keeping(TENSORS(sum), &options);
    expect_replays(4, 1, 3);
    assert_true(optimize > 0 || joined >= 2 * N); /* otherwise kernels may have been made one before */
    close_keeping();
  }
}

static void runs_are_replayed(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *s = F32_STATE("s", 3), *x = F32_INPUT("x", 3), *y = a_loop(&options, 5, s);
  options.n_updates = 1;
  options.updates = (quern_update[]){{s, y}};
  open_keeping(TENSORS(quern_softmax(quern_add(y, x), 0), x), &options);
  expect_replays(5, 1, 4);
  assert_true(side_by_side);
  /* what needs the host, or every step, is not replayed */
  instance->poison = true;
  run_program();
  instance->poison = false;
  assert_int_equal(replays, 4);
  run_program();
  assert_int_equal(replays, 5);
  close_keeping();

  open_keeping(TENSORS(y), &options);
  refusing = true; /* while it is captured: side by side first, then one after another, then never again */
  expect_replays(5, 2, 0);
  close_keeping();

  quern_tensor *grown[1];
  quern_tensor *start = quern_sum(quern_mul(x, x), QUERN_LIST(0), false);
  EXPECT_OK(quern_while(ctx, 1, 0, (quern_tensor *[]){quern_add(start, quern_scalar(ctx, QUERN_DTYPE_F32, 1))},
                        is_small, body_double, NULL, grown));
  options.n_updates = 0;
  open_keeping(TENSORS(grown[0]), &options); /* the host decides how often */
  expect_replays(3, 0, 0);
  close_keeping();
}

static void rows_of_graphs(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *x = F32_INPUT("x", 6, 8), *y = quern_softmax(quern_linear(x, some_weights(), NULL), 1);
  options.n_dynamic_batch = 1;
  options.dynamic_batch = (quern_tensor *[]){x};
  open_keeping(TENSORS(y), &options);
  float all[48];
  run_program();
  memcpy(all, outputs.at[0], sizeof all);
  static const int64_t rows[] = {6, 6, 4, 4, 4, 2, 3, 3, 6};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    float some[49];
    for (int k = 0; k < 49; k++) some[k] = -7;
    EXPECT_OK(quern_instance_set_dynamic_batch(instance, rows[i]));
    EXPECT_OK(quern_instance_run(instance, (const void *const *)inputs.at, (void *[]){some}));
    assert_memory_equal(some, all, (size_t)rows[i] * 8 * sizeof *some);
    assert_true(some[rows[i] * 8] == -7);
  }
  assert_int_equal(captures, 3); /* of 6, 4 and 3 rows, each when it comes a second time */
  assert_int_equal(replays, 5);
  close_keeping();
}

struct noted {
  int n;
  double seconds;
};
static void note_step(void *user, int part, int step, double begin, double end) {
  struct noted *noted = user;
  (void)part;
  (void)step;
  noted->n++;
  noted->seconds += end - begin;
}

static void times_by_marks(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *s = F32_STATE("s", 3), *y = a_loop(&options, 3, s);
  open_keeping(TENSORS(y), &options);
  char *text;
  EXPECT_OK(quern_instance_record(instance, true));
  for (int i = 0; i < 4; i++) run_program();
  assert_int_equal(replays, 3);
  assert_false(side_by_side); /* one after another, or their times would be of no use */
  EXPECT_OK(quern_program_profile(program, instance, QUERN_PROFILE_FOLDED, &text));
  assert_non_null(strstr(text, "program;"));
  quern_free_text(text);
  EXPECT_OK(quern_program_profile(program, instance, QUERN_PROFILE_ROWS, &text));
  double seconds = 0, one;
  for (const char *at = text; (at = strstr(at, "\"total_ms\":")) != NULL; at++)
    if (sscanf(at, "\"total_ms\":%lf", &one) == 1) seconds += one;
  assert_true(fabs(seconds - 4 * (marks - 2)) < 1e-3); /* of 4 runs, without the marks' own */
  quern_free_text(text);
  EXPECT_OK(quern_instance_record(instance, false));
  run_program();
  assert_int_equal(captures, 2);
  /* a hook that wants to see every step when it is done is called then */
  struct noted noted = {0};
  instance->hook = note_step;
  instance->hook_user = &noted;
  run_program();
  assert_int_equal(noted.n, instance->replay.steps);
  assert_int_equal(replays, 4);
  instance->hook = NULL;
  close_keeping();
}

static void outputs_that_are_not_wanted(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *s = F32_STATE("s", 2), *x = F32_INPUT("x", 2);
  options.n_updates = 1;
  options.updates = (quern_update[]){{s, quern_add(s, x)}};
  open_program(TENSORS(quern_mul(s, x), quern_neg(x)), &options);
  EXPECT_OK(quern_instance_set_state(instance, 0, (float[]){0, 0}));
  float out[2], now[2];
  for (int i = 1; i <= 4; i++) {
    void *second = i % 2 == 0 ? out : NULL;
    EXPECT_OK(quern_instance_run(instance, (const void *[]){(float[]){1, 2}}, (void *[]){NULL, second}));
    if (second != NULL) assert_true(out[0] == -1 && out[1] == -2);
  }
  EXPECT_OK(quern_instance_wait(instance));
  EXPECT_OK(quern_instance_get_state(instance, 0, now));
  assert_true(now[0] == 4 && now[1] == 8);
  close_program();
}

static void more_than_there_is(void **state) {
  (void)state;
  need_device();
  quern_program_options options = remote_options();
  quern_tensor *x = F32_INPUT("x", 8, 16), *y = quern_exp(x);
  open_program(TENSORS(y), &options);
  assert_true(program->memory.total >= program->memory.staging && program->memory.staging >= 2 * 8 * 16 * 4);
  struct rt_remote small = *rt_opencl.remote;
  quern_device device = *rt_device_at(&rt_opencl, 0);
  small.room = some_room;
  device.remote = &small;
  quern_instance_free(instance);
  program->device = &device;
  EXPECT_OK(quern_instance_new(&instance, program));
  quern_instance_free(instance);
  instance = NULL;
  int64_t staging = program->memory.staging;
  program->memory.staging = 1 << 21;
  EXPECT_ERROR(quern_instance_new(&instance, program), MEMORY, "1048576 of 2097152 are free");
  program->memory.staging = staging;
  program->device = rt_device_at(&rt_opencl, 0);
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(results_and_constants),   TEST(control),
                                     TEST(states_stay_there),       TEST(rows_of_a_leading_dimension),
                                     TEST(targets_that_do_not_fit), TEST(every_call_may_fail),
                                     TEST(allocations_may_fail),    TEST(equal_steps_are_joined),
                                     TEST(runs_are_replayed),       TEST(rows_of_graphs),
                                     TEST(times_by_marks),          TEST(outputs_that_are_not_wanted),
                                     TEST(more_than_there_is)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
