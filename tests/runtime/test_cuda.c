/* tests/runtime/test_cuda.c -- the device "cuda" on a driver that is none: order, graphs, times, and everything that can fail */
#include <stdio.h>
#include <unistd.h>

#include "engine/engine_test.h"
#include "runtime/cuda/module.h"
#include "runtime/fake_cuda.h"

enum { ALL = 1 << 26 };

static struct rt_stream *stream;
static const struct rt_remote *const remote = &rt_cuda_remote;

static void open_all(void) {
  fake_cuda_open(ALL);
  EXPECT_OK(remote->open(rt_device_at(&rt_cuda, 0), &stream, &ctx->heap));
}

static void close_all(void) {
  remote->close(stream);
  stream = NULL;
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

/* What the caller has may be changed when an upload returns, though nothing has been read by the device yet. */
static void uploads_are_read_at_once(void **state) {
  (void)state;
  enum { TIMES = 7 };
  size_t n = ((size_t)3 << 20) + 100;
  char *from = malloc(n), *back = malloc(n);
  void *at[TIMES];
  open_all();
  for (int i = 0; i < TIMES; i++) {
    EXPECT_OK(remote->alloc(stream, n, &at[i]));
    memset(from, 'a' + i, n);
    EXPECT_OK(remote->upload(stream, at[i], from, n));
    memset(from, 'z', n);
  }
  assert_true(fake.done < fake.n_ops); /* and the host has not waited for all of it */
  for (int i = 0; i < TIMES; i++) {
    EXPECT_OK(remote->download(stream, back, at[i], n));
    assert_true(back[0] == 'a' + i && memcmp(back, back + 1, n - 1) == 0);
    remote->release(stream, at[i], n);
  }
  close_all();
  free(from);
  free(back);
}

static void without_pinned_memory(void **state) {
  (void)state;
  char from[100], back[100];
  void *at;
  open_all();
  EXPECT_OK(remote->alloc(stream, sizeof from, &at));
  memset(from, 'x', sizeof from);
  fake_cuda_fail(4, 2); /* the context, two events, the memory */
  EXPECT_OK(remote->upload(stream, at, from, sizeof from));
  assert_string_equal(fake.failed, "host_alloc");
  EXPECT_OK(remote->download(stream, back, at, sizeof from));
  assert_memory_equal(from, back, sizeof from);
  remote->release(stream, at, sizeof from);
  close_all();
}

/* What is fed is there for what comes after it, and the next is not there before the last was taken. */
static void inputs_are_fed(void **state) {
  (void)state;
  void *first, *second, *kept;
  char back[2];
  open_all();
  EXPECT_OK(remote->upload_fence(stream)); /* nothing yet */
  EXPECT_OK(remote->alloc(stream, 2, &first));
  EXPECT_OK(remote->alloc(stream, 2, &second));
  EXPECT_OK(remote->alloc(stream, 2, &kept));
  for (char i = 0; i < 2; i++) {
    EXPECT_OK(remote->upload_async(stream, second, (char[]){(char)('a' + i), 'z'}, 2));
    EXPECT_OK(remote->upload_fence(stream));
    EXPECT_OK(remote->copy(stream, first, second, 2));
    EXPECT_OK(remote->reuse_fence(stream));
    EXPECT_OK(remote->copy(stream, (char *)kept + i, first, 1));
  }
  EXPECT_OK(remote->download(stream, back, kept, 2));
  assert_memory_equal(back, "ab", 2);
  assert_int_equal(fake.streams, 2);
  remote->release(stream, first, 2);
  remote->release(stream, second, 2);
  remote->release(stream, kept, 2);
  close_all();
}

static void room_and_too_much(void **state) {
  (void)state;
  int64_t left, all;
  void *at, *more;
  open_all();
  EXPECT_OK(remote->alloc(stream, ALL / 2, &at));
  EXPECT_OK(remote->room(rt_device_at(&rt_cuda, 0), &left, &all));
  assert_true(left == ALL / 2 && all == ALL);
  EXPECT_OK(engine_device_room(rt_device_at(&rt_cuda, 0), &left, &all));
  assert_true(left == ALL / 2 && all == ALL);
  EXPECT_ERROR(remote->alloc(stream, ALL, &more), MEMORY, "67108864 bytes, of which 33554432 are free of 67108864");
  remote->release(stream, at, ALL / 2);
  close_all();
}

static void a_borrowed_queue(void **state) {
  (void)state;
  int queue;
  open_all();
  EXPECT_OK(remote->set_external_stream(stream, &queue));
  assert_ptr_equal(stream->stream, &queue);
  EXPECT_OK(remote->set_external_stream(stream, NULL));
  assert_ptr_equal(stream->stream, stream->own);
  fake_cuda_fail(3, 1);
  EXPECT_ERROR(remote->set_external_stream(stream, &queue), INTERNAL, "the caller's queue");
  assert_ptr_equal(stream->stream, stream->own);
  close_all();
}

/* ---- graphs and times --------------------------------------------------------------------------------------- */

static void graphs_are_replayed(void **state) {
  (void)state;
  void *a, *b;
  char back[8];
  struct rt_graph *graph;
  open_all();
  EXPECT_OK(remote->alloc(stream, 8, &a));
  EXPECT_OK(remote->alloc(stream, 8, &b));
  EXPECT_OK(remote->capture(stream));
  EXPECT_OK(remote->depend_on(stream, 0, NULL));
  EXPECT_OK(remote->copy(stream, b, a, 8)); /* step 0 */
  EXPECT_OK(remote->depend_on(stream, 0, NULL));
  EXPECT_OK(remote->fill(stream, a, 'f', 4)); /* step 1, beside it as far as is said */
  EXPECT_OK(remote->depend_on(stream, 2, (int[]){0, 1}));
  EXPECT_OK(remote->depend_on(stream, 2, (int[]){2, 1})); /* step 2 is nothing: what it comes after, the next does */
  EXPECT_OK(remote->fill(stream, a, 'g', 1));
  EXPECT_OK(remote->captured(stream, &graph));
  assert_true(graph->steps == 3 && graph->bytes == 4096 && fake.most_depends == 2);
  EXPECT_OK(remote->upload(stream, a, "12345678", 8));
  EXPECT_OK(remote->replay(stream, graph));
  EXPECT_OK(remote->download(stream, back, b, 8));
  assert_memory_equal(back, "12345678", 8);
  EXPECT_OK(remote->download(stream, back, a, 8));
  assert_memory_equal(back, "gfff5678", 8);
  EXPECT_OK(remote->replay(stream, graph));
  EXPECT_OK(remote->download(stream, back, b, 8));
  assert_memory_equal(back, "gfff5678", 8);
  remote->graph_free(stream, graph);
  /* waiting is not allowed in a capture: there is no graph then, and what follows works */
  EXPECT_OK(remote->capture(stream));
  EXPECT_ERROR(remote->wait(stream), INTERNAL, "waiting");
  EXPECT_ERROR(remote->captured(stream, &graph), INTERNAL, "a graph");
  assert_null(graph);
  EXPECT_OK(remote->wait(stream));
  remote->release(stream, a, 8);
  remote->release(stream, b, 8);
  close_all();
}

static void without_dependencies(void **state) {
  (void)state;
  struct rt_graph *graph;
  void *a;
  open_all();
  fake.driver.capture_depends = NULL; /* an old driver: one after another */
  EXPECT_OK(remote->alloc(stream, 8, &a));
  EXPECT_OK(remote->capture(stream));
  EXPECT_OK(remote->depend_on(stream, 0, NULL));
  EXPECT_OK(remote->fill(stream, a, 1, 8));
  EXPECT_OK(remote->captured(stream, &graph));
  assert_int_equal(graph->steps, 1);
  remote->graph_free(stream, graph);
  remote->release(stream, a, 8);
  close_all();
}

static void marks_have_times(void **state) {
  (void)state;
  double seconds[3];
  void *a;
  open_all();
  EXPECT_OK(remote->alloc(stream, 8, &a));
  EXPECT_OK(remote->mark(stream, 0));
  EXPECT_OK(remote->fill(stream, a, 1, 8));
  EXPECT_OK(remote->mark(stream, 1));
  EXPECT_OK(remote->fill(stream, a, 2, 8));
  EXPECT_OK(remote->fill(stream, a, 3, 8));
  EXPECT_OK(remote->mark(stream, 2));
  EXPECT_OK(remote->marks(stream, 3, seconds));
  assert_true(seconds[0] == 0 && fabs(seconds[1] - 2e-3) < 1e-6 && fabs(seconds[2] - 5e-3) < 1e-6);
  remote->release(stream, a, 8);
  close_all();
}

/* ---- what goes wrong ------------------------------------------------------------------------------------------ */

static quern_status do_all(void) {
  struct rt_graph *graph = NULL;
  void *a = NULL, *b = NULL;
  char back[8];
  double seconds[1];
  int queue;
  QUERN_TRY(remote->open(rt_device_at(&rt_cuda, 0), &stream, &ctx->heap));
  quern_status status = remote->alloc(stream, 8, &a);
  if (status == QUERN_STATUS_OK) status = remote->upload(stream, a, "12345678", 8);
  if (status == QUERN_STATUS_OK) status = remote->upload_async(stream, a, "12345678", 8);
  if (status == QUERN_STATUS_OK) status = remote->upload_fence(stream);
  if (status == QUERN_STATUS_OK) status = remote->reuse_fence(stream);
  if (status == QUERN_STATUS_OK) status = remote->alloc(stream, 8, &b);
  if (status == QUERN_STATUS_OK) status = remote->mark(stream, 0);
  if (status == QUERN_STATUS_OK) status = remote->capture(stream);
  if (status == QUERN_STATUS_OK) {
    status = remote->depend_on(stream, 0, NULL);
    if (status == QUERN_STATUS_OK) status = remote->fill(stream, a, '0', 2);
    if (status == QUERN_STATUS_OK) status = remote->depend_on(stream, 1, (int[]){0});
    if (status == QUERN_STATUS_OK) status = remote->copy(stream, (char *)a + 4, a, 4);
    quern_status end = remote->captured(stream, &graph);
    if (status == QUERN_STATUS_OK) status = end;
  }
  if (status == QUERN_STATUS_OK) status = remote->replay(stream, graph);
  if (status == QUERN_STATUS_OK) status = remote->marks(stream, 1, seconds);
  if (status == QUERN_STATUS_OK) status = remote->set_external_stream(stream, &queue);
  if (status == QUERN_STATUS_OK) status = remote->set_external_stream(stream, NULL);
  if (status == QUERN_STATUS_OK) status = remote->download(stream, back, a, 8);
  if (status == QUERN_STATUS_OK) assert_memory_equal(back, "00340034", 8);
  remote->graph_free(stream, graph);
  remote->release(stream, a, 8);
  remote->release(stream, b, 8);
  remote->close(stream);
  stream = NULL;
  return status;
}

/* Where the context is refused when something is to be freed, that cannot be. */
static void expect_closed(void) {
  bool refused = fake.failed != NULL && strcmp(fake.failed, "context_push") == 0;
  if (!refused && fake_cuda_left() != 0) print_error("%s failed\n", fake.failed != NULL ? fake.failed : "nothing");
  assert_true(refused || fake_cuda_left() == 0);
}

/* Fails the n-th call of all, for n = 1, 2, ...: with out of memory, and with an error that the device does not survive. */
static void every_call_fails(void **state) {
  (void)state;
  static const int codes[] = {2, 719, 1};
  static const quern_status statuses[] = {QUERN_STATUS_MEMORY, QUERN_STATUS_DEVICE, QUERN_STATUS_INTERNAL};
  for (size_t c = 0; c < BASE_COUNT(codes); c++) {
    int n = 1, met = 0;
    for (bool again = true; again; n++) {
      fake_cuda_open(ALL);
      fake_cuda_fail(n, codes[c]);
      quern_status status = do_all();
      again = fake.failed != NULL;
      if (status != QUERN_STATUS_OK) assert_int_equal(status, statuses[c]);
      met += status != QUERN_STATUS_OK;
      expect_closed();
      fake_cuda_close();
    }
    assert_true(met > 25 && met < n);
  }
}

static void allocations_fail(void **state) {
  (void)state;
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fake_cuda_open(ALL);
    fault_begin(&fault);
    quern_status status = do_all();
    fault_end(&fault);
    EXPECT_FAULT(&fault, status);
    assert_int_equal(fake_cuda_left(), 0);
    fake_cuda_close();
  }
  assert_true(fault.n > 5);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static quern_tensor *const *roots_of_program(size_t *n) {
  static quern_tensor *roots[1];
  quern_tensor *x = F32_INPUT("x", 8, 8), *s = F32_STATE("s", 8);
  roots[0] = quern_softmax(quern_add(quern_exp(x), s), 1);
  *n = 1;
  return roots;
}

/* Compiles for the fake device; false: there is no NVRTC. */
static bool compile_for_fake(void) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  size_t n;
  quern_tensor *const *roots = roots_of_program(&n);
  options.device = "cuda";
  options.target = "sm_90";
  quern_status status = quern_program_compile(&program, ctx, n, roots, &options);
  if (status == QUERN_STATUS_UNSUPPORTED) print_message("%s\n", quern_last_error());
  if (status == QUERN_STATUS_UNSUPPORTED) return false;
  EXPECT_OK(status);
  slots_fill(&inputs, program->n_inputs, program->inputs, 1);
  slots_fill(&outputs, program->n_outputs, program->outputs, 100);
  return true;
}

static quern_status run_three_times(void) {
  QUERN_TRY(quern_instance_new(&instance, program));
  QUERN_TRY(quern_instance_zero_states(instance));
  for (int i = 0; i < 3; i++)
    QUERN_TRY(quern_instance_run(instance, (const void *const *)inputs.at, i < 2 ? outputs.at : (void *[]){NULL}));
  return quern_instance_wait(instance);
}

static void programs_are_replayed(void **state) {
  (void)state;
  quern_run_stats counts = QUERN_INIT(quern_run_stats);
  fake_cuda_open(ALL);
  if (!compile_for_fake()) {
    fake_cuda_close();
    skip();
  }
  int64_t before = (int64_t)fake.bytes;
  EXPECT_OK(run_three_times());
  EXPECT_OK(quern_instance_get_stats(instance, &counts));
  assert_true(counts.runs == 3 && counts.replayed == 2 && counts.graph_bytes == 4096 && counts.compiled == 3);
  assert_int_equal(fake.launches, 3 * program->kernels[0]->n_phases * program->n_kernels);
  /* what was planned is what is used */
  const quern_memory_plan *m = &program->memory;
  int64_t own = (int64_t)fake.bytes - before - 4096;
  assert_true(own >= m->arena + m->state + m->scratch + m->staging && own <= m->total && m->total % (2 << 20) == 0);
  close_program();
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
}

/* Updates of equal states are one launch of a graph, with a table of their memories; step by step they are single ones. */
static void equal_steps_are_one_launch(void **state) {
  (void)state;
  enum { N = 6, MEMS = 3 };
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_update updates[N];
  quern_run_stats counts = QUERN_INIT(quern_run_stats);
  char name[16];
  quern_tensor *x = F32_INPUT("x", 8);
  fake_cuda_open(ALL);
  for (int i = 0; i < N; i++) {
    snprintf(name, sizeof name, "s%d", i);
    quern_tensor *s = quern_state(ctx, name, QUERN_DTYPE_F32, QUERN_LIST(8));
    updates[i] = (quern_update){s, quern_add(s, x)};
  }
  options.device = "cuda";
  options.target = "sm_90";
  options.optimize = QUERN_OPTIMIZE_NONE; /* a kernel of all would be better */
  options.n_updates = N;
  options.updates = updates;
  quern_status status = quern_program_compile(&program, ctx, 0, NULL, &options);
  if (status == QUERN_STATUS_UNSUPPORTED) {
    print_message("%s\n", quern_last_error());
    fake_cuda_close();
    skip();
  }
  EXPECT_OK(status);
  slots_fill(&inputs, program->n_inputs, program->inputs, 1);
  assert_true(program->n_kernels == 1 && program->kernels[0]->n_mems == MEMS && program->kernels[0]->n_phases == 1);
  assert_int_equal(program->kernels[0]->max_batched, N);
  EXPECT_OK(quern_instance_new(&instance, program));
  EXPECT_OK(quern_instance_zero_states(instance));
  EXPECT_OK(quern_instance_run(instance, (const void *const *)inputs.at, NULL));
  EXPECT_OK(quern_instance_wait(instance));
  assert_true(fake.launches == N && fake.rows == 1);
  EXPECT_OK(quern_instance_run(instance, (const void *const *)inputs.at, NULL));
  EXPECT_OK(quern_instance_wait(instance));
  assert_true(fake.launches == N + 1 && fake.rows == N);
  for (int i = 0; i < (int)BASE_COUNT(fake.table) / MEMS; i++)
    for (int m = 0; m < MEMS; m++)
      assert_ptr_equal(fake.table[i * MEMS + m], instance->frame->at[program->subprograms[0].steps[i].buffers[m]]);
  EXPECT_OK(quern_instance_get_stats(instance, &counts));
  assert_true(counts.compiled == 2 * N && counts.replayed == 1);
  close_program();
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
}

static void a_fault_names_the_kernel(void **state) {
  (void)state;
  fake_cuda_open(ALL);
  if (!compile_for_fake()) {
    fake_cuda_close();
    skip();
  }
  fake.fault_at = 1;
  EXPECT_OK(quern_instance_new(&instance, program));
  EXPECT_OK(quern_instance_zero_states(instance));
  char text[256];
  snprintf(text, sizeof text, "after kernel %s or one before it", program->kernels[program->n_kernels - 1]->name);
  EXPECT_ERROR(quern_instance_run(instance, (const void *const *)inputs.at, outputs.at), DEVICE, text);
  /* nothing works any more; the error gives the reason */
  EXPECT_ERROR(quern_instance_run(instance, (const void *const *)inputs.at, outputs.at), DEVICE, "nothing works since");
  EXPECT_ERROR(quern_instance_wait(instance), DEVICE, "an illegal memory access was encountered");
  quern_instance *other = NULL;
  EXPECT_ERROR(quern_instance_new(&other, program), DEVICE, "nothing works since");
  assert_null(other);
  close_program();
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
}

/* Large inputs have two places, and the memory of both is planned. */
static void large_inputs_are_fed(void **state) {
  (void)state;
  enum { N = 1 << 19 };
  quern_program_options options = QUERN_INIT(quern_program_options);
  float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
  options.device = "cuda";
  options.target = "sm_90";
  fake_cuda_open(ALL);
  EXPECT_OK(quern_program_compile(&program, ctx, TENSORS(F32_INPUT("x", N)), &options));
  assert_int_equal(program->memory.staging, 3 * N * (int)sizeof *x);
  EXPECT_OK(quern_instance_new(&instance, program));
  EXPECT_OK(quern_instance_zero_states(instance));
  for (int r = 0; r < 4; r++) {
    instance->poison = r == 3;
    for (int i = 0; i < N; i++) x[i] = (float)(r * N + i);
    EXPECT_OK(quern_instance_run(instance, (const void *[]){x}, (void *[]){y}));
    assert_memory_equal(x, y, N * sizeof *x);
  }
  assert_int_equal(instance->counts.replayed, 2);
  close_program();
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
  free(x);
  free(y);
}

/* Whatever call fails: a clear error, or the same without graphs; all is closed. */
static void every_call_of_runs_fails(void **state) {
  (void)state;
  static const int codes[] = {2, 719, 901};
  int fell_back = 0;
  for (size_t c = 0; c < BASE_COUNT(codes); c++) {
    for (int n = 1, again = 1; again; n++) {
      fake_cuda_open(ALL);
      if (!compile_for_fake()) {
        fake_cuda_close();
        skip();
      }
      fake_cuda_fail(n, codes[c]);
      quern_status status = run_three_times();
      again = fake.failed != NULL;
      fell_back += again && status == QUERN_STATUS_OK && instance->counts.replayed < 2;
      assert_true(status == QUERN_STATUS_OK || status == QUERN_STATUS_MEMORY || status == QUERN_STATUS_DEVICE ||
                  status == QUERN_STATUS_INTERNAL);
      close_program();
      expect_closed();
      fake_cuda_close();
    }
  }
  assert_true(fell_back >=
              6); /* of each code: a capture that does not begin, that does not end, that is not made ready, ... */
}

/* A program in a file is one for the same kind of device, and needs no compiler. */
static void programs_in_files(void **state) {
  (void)state;
  const char *path = "test_cuda.qprg";
  quern_program *loaded;
  fake_cuda_open(ALL);
  if (!compile_for_fake()) {
    fake_cuda_close();
    skip();
  }
  EXPECT_OK(quern_program_save(program, path));
  EXPECT_OK(quern_program_load(&loaded, path));
  const struct rt_object *a, *b;
  size_t n = rt_cuda.objects(program->module, &a);
  assert_true(n > 1 && n == rt_cuda.objects(loaded->module, &b));
  for (size_t i = 0; i < n; i++) {
    assert_int_equal(a[i].n, b[i].n);
    assert_memory_equal(a[i].bytes, b[i].bytes, a[i].n);
  }
  assert_memory_equal(&loaded->memory, &program->memory, sizeof loaded->memory);
  close_program();
  program = loaded;
  EXPECT_OK(run_three_times());
  assert_int_equal(instance->counts.replayed, 2);
  /* what is not whole, or of another kind, is refused */
  struct rt_module *module;
  struct rt_object objects[2] = {b[0], b[1]};
  const struct kern *const *kernels = (const struct kern *const *)program->kernels;
  size_t kernels_n = (size_t)program->n_kernels;
  EXPECT_ERROR(rt_cuda.from_objects(rt_device_at(&rt_cuda, 0), &module, &ctx->heap, kernels_n, kernels, 0, objects),
               PARSE, "another's");
  objects[0].n--;
  EXPECT_ERROR(rt_cuda.from_objects(rt_device_at(&rt_cuda, 0), &module, &ctx->heap, kernels_n, kernels, n, objects),
               PARSE, "another's");
  fake.driver.target = cg_target_find("sm_80");
  EXPECT_ERROR(quern_program_load(&loaded, path), UNSUPPORTED, "target sm_90, which this device cannot run");
  fake.driver.target = cg_target_find("sm_90");
  /* whatever call fails while it is loaded */
  close_program();
  for (int k = 1, again = 1; again; k++) {
    fake_cuda_open(ALL);
    fake_cuda_fail(k, 2);
    quern_status status = quern_program_load(&program, path);
    again = fake.failed != NULL;
    assert_true(status == QUERN_STATUS_OK || (again && status == QUERN_STATUS_MEMORY));
    close_program();
    expect_closed();
  }
  assert_int_equal(remove(path), 0);
  fake_cuda_close();
}

/* What was compiled before is found again, for the same device alone. */
static void programs_in_the_cache(void **state) {
  (void)state;
  static const char *const devices[] = {"first", "first", "second"};
  quern_program_options options = QUERN_INIT(quern_program_options);
  struct engine_request request;
  size_t n;
  options.device = "cuda";
  options.target = "sm_90";
  fake_cuda_open(ALL);
  if (!compile_for_fake()) {
    fake_cuda_close();
    skip();
  }
  close_program();
  quern_tensor *const *roots = roots_of_program(&n);
  EXPECT_OK(engine_request_make(&request, ctx, n, roots, &options));
  request.verify = false;
  for (size_t i = 0; i < BASE_COUNT(devices); i++) {
    snprintf(fake.driver.name, sizeof fake.driver.name, "%s %lld", devices[i], (long long)getpid());
    EXPECT_OK(engine_compile(&program, &request));
    bool found = program->kernels[0]->fns.n == 0;
    assert_int_equal(found, i == 1);
    EXPECT_OK(run_three_times());
    close_program();
  }
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
}

/* Blocks take task after task: of any number of tasks, they are no more than a grid may have, and every task is counted. */
static void any_number_of_tasks(void **state) {
  (void)state;
  static const struct {
    int group, each;
    unsigned threads;
  } shapes[] = {{1, 0, CG_BLOCK_THREADS}, {32, 4, 128}, {1024, 1, 1024}};
  struct rt_module *module;
  float x[1];
  void *mems[] = {x};
  open_all();
  EXPECT_OK(rt_cuda_module_new(&module, &ctx->heap, &fake.driver, 1, 0, 1 << 14));
  for (size_t i = 0; i < BASE_COUNT(shapes); i++) {
    for (int64_t tasks = 1; tasks <= INT64_C(1) << 40; tasks <<= 13) {
      module->kernels[0] = (struct rt_gpu_kernel){.name = "k", .n_mems = 1, .n_phases = 1, .max_batched = 1};
      module->kernels[0].phases[0] = (struct rt_gpu_phase){
          .phase.tasks = KERN_FIXED_TASKS(tasks), .group = shapes[i].group, .tasks = shapes[i].each};
      EXPECT_OK(rt_cuda_launch(stream, module, 0, &(struct kern_launch){.mems = mems}, NULL, 0));
      assert_int_equal(fake.second, tasks);
      assert_int_equal(fake.threads, shapes[i].threads);
      assert_true(fake.blocks >= 1 &&
                  fake.blocks <= (shapes[i].group > 1 ? INT32_MAX : 16u * 132 * 2048 / fake.threads));
      assert_true(tasks > 1 || fake.blocks == 1);
    }
  }
  rt_cuda_module_free(module);
  close_all();
}

/* A phase that would copy a memory to itself, as the first of an update in place, is left out; of a batch when all would. */
static void idle_phases_are_not_launched(void **state) {
  (void)state;
  struct rt_module *module;
  float x[2], y[2];
  void *apart[] = {x, y, x, x}, *same[] = {x, x, y, y};
  struct rt_gpu_phase phase = {.phase = {.tasks = KERN_FIXED_TASKS(1), .from = 0, .to = 1}, .group = 1};
  open_all();
  EXPECT_OK(rt_cuda_module_new(&module, &ctx->heap, &fake.driver, 1, 0, 1 << 14));
  module->kernels[0] = (struct rt_gpu_kernel){.name = "k", .n_mems = 2, .n_phases = 2, .max_batched = 2};
  module->kernels[0].phases[0] = module->kernels[0].phases[1] = phase;
  module->kernels[0].phases[1].phase.from = 1;
  int before = fake.launched[0];
  EXPECT_OK(rt_cuda_launch(stream, module, 0, &(struct kern_launch){.mems = same}, NULL, 0));
  assert_int_equal(fake.launched[0] - before, 1);
  EXPECT_OK(rt_cuda_launch(stream, module, 0, &(struct kern_launch){.mems = apart}, NULL, 0));
  assert_int_equal(fake.launched[0] - before, 3);
  rt_cuda_module_free(module);
  close_all();
}

/* Where nothing is said of a limit a part of what is free is left for others. */
static void some_is_left(void **state) {
  (void)state;
  assert_int_equal(engine_plan_room(3200, 3200), 3100);
  assert_int_equal(engine_plan_room(1600, 3200), 1500);
  assert_int_equal(engine_plan_room(100, 3200), 0);
  assert_int_equal(engine_plan_room(INT64_C(140) << 30, INT64_C(141) << 30), (INT64_C(140) << 30) - (512 << 20));
}

static void more_than_the_device_has(void **state) {
  (void)state;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "cuda";
  options.target = "sm_90";
  quern_tensor *x = F32_INPUT("x", 4096, 4096), *s = F32_STATE("s", 4096);
  fake_cuda_open(ALL);
  EXPECT_ERROR(quern_program_compile(&program, ctx, TENSORS(quern_exp(quern_add(x, s))), &options), MEMORY,
               "program_compile: device cuda has 67108864 bytes, of which 67108864 are free, 65011712 of them for "
               "programs; states and constants need 16384, a step 201326592");
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(uploads_are_read_at_once),
                                     TEST(without_pinned_memory),
                                     TEST(inputs_are_fed),
                                     TEST(room_and_too_much),
                                     TEST(a_borrowed_queue),
                                     TEST(graphs_are_replayed),
                                     TEST(without_dependencies),
                                     TEST(marks_have_times),
                                     TEST(every_call_fails),
                                     TEST(allocations_fail),
                                     TEST(programs_are_replayed),
                                     TEST(equal_steps_are_one_launch),
                                     TEST(idle_phases_are_not_launched),
                                     TEST(a_fault_names_the_kernel),
                                     TEST(large_inputs_are_fed),
                                     TEST(every_call_of_runs_fails),
                                     TEST(programs_in_files),
                                     TEST(programs_in_the_cache),
                                     TEST(more_than_the_device_has),
                                     TEST(any_number_of_tasks),
                                     TEST(some_is_left)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
