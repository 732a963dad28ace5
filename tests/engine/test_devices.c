/* tests/engine/test_devices.c -- devices by name and by handle, and two of them in one process */
#include <unistd.h>

#include "engine/engine_test.h"
#include "runtime/fake_cuda.h"

enum { ALL = 1 << 26, SIDE = 8, RUNS = 6 };

/* ---- names and figures --------------------------------------------------------------------------------------- */

static void names(void **state) {
  (void)state;
  static const struct {
    const char *name, *kind, *canonical;
    int ordinal;
  } rows[] = {{NULL, "cpu", "cpu", 0},
              {"", "cpu", "cpu", 0},
              {"cpu", "cpu", "cpu", 0},
              {"cpu:0", "cpu", "cpu", 0},
              {"interp", "interp", "interp", 0},
              {"interp:0", "interp", "interp", 0},
              {"interp:1", "interp", "interp:1", 1},
              {"null:15", "null", "null:15", 15}};
  for (size_t i = 0; i < BASE_COUNT(rows); i++) {
    quern_device *device;
    quern_device_info info = {.size = sizeof info};
    EXPECT_OK(quern_device_open(&device, rows[i].name));
    EXPECT_OK(quern_device_get_info(device, &info));
    assert_string_equal(info.kind, rows[i].kind);
    assert_string_equal(info.name, rows[i].canonical);
    assert_int_equal(info.ordinal, rows[i].ordinal);
    assert_true(info.target[0] != 0 && info.detail[0] != 0 && info.threads >= 1 && !info.gpu && !info.own_memory);
    assert_true(info.simulated == (i > 3) && info.total_bytes > info.free_bytes && info.free_bytes > 0);
    assert_true(info.caches[0] > 0 && info.caches[0] <= info.caches[1] && info.caches[1] <= info.caches[2]);
    assert_false(info.tensor_cores || info.bf16 || info.cublaslt || info.cudnn);
    assert_true(info.f64 && info.size == sizeof info);
    quern_device_free(device);
  }
}

static void kinds(void **state) {
  (void)state;
  static const char *const all[] = {"cpu", "interp", "null", "cuda", "opencl"};
  size_t n = 0, sum = 0;
  for (; quern_device_kind(n) != NULL; n++) {
    assert_string_equal(quern_device_kind(n), all[n]);
    sum += quern_device_count(all[n]);
  }
  assert_int_equal(n, BASE_COUNT(all));
  assert_int_equal(quern_device_count("cpu"), 1);
  assert_int_equal(quern_device_count(NULL), sum);
}

/* Of two cards: what they are, and what there is not. */
static void cards(void **state) {
  (void)state;
  quern_device *device, *second;
  quern_device_info info = {.size = sizeof info};
  fake_cuda_open_two(ALL);
  fake.other.target = cg_target_find("sm_75");
  assert_int_equal(quern_device_count("cuda"), 2);
  EXPECT_OK(quern_device_open(&device, "cuda"));
  EXPECT_OK(quern_device_open(&second, "cuda:1"));
  assert_ptr_not_equal(device, second);
  EXPECT_OK(quern_device_get_info(device, &info));
  assert_true(info.gpu && info.own_memory && info.bf16 && info.tensor_cores && !info.simulated);
  assert_true(info.total_bytes == ALL && info.free_bytes == ALL);
  assert_string_equal(info.model, "Fake");
  assert_string_equal(info.name, "cuda");
  EXPECT_OK(quern_device_get_info(second, &info));
  assert_string_equal(info.name, "cuda:1");
  assert_string_equal(info.target, "sm_75");
  assert_true(info.ordinal == 1 && !info.bf16);
  EXPECT_ERROR(quern_device_open(&device, "cuda:7"), INVALID,
               "device_open: there is no device \"cuda:7\": of kind cuda there are 2, \"cuda:0\" to \"cuda:1\"");
  EXPECT_ERROR(quern_device_open(&device, "cuda:2"), INVALID, "there are 2");
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
  fake_cuda_open(ALL);
  EXPECT_ERROR(quern_device_open(&device, "cuda:1"), INVALID, "of kind cuda there is 1, \"cuda\"");
  fake_cuda_close();
}

static const quern_device *device_of_auto(void) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_tensor *y = quern_neg(F32_INPUT("x", 4));
  options.device = "auto";
  options.plan_only = true;
  EXPECT_OK(quern_program_compile(&program, ctx, 1, &y, &options));
  const quern_device *device = quern_program_device(program);
  close_program();
  return device;
}

/* A GPU for which kernels can be compiled, else the CPU. */
static void the_best(void **state) {
  (void)state;
  struct rt_nvrtc *nvrtc;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  bool compiler = rt_nvrtc_open(&nvrtc) == QUERN_STATUS_OK;
  bool card = rt_device_probe(rt_device_at(&rt_cuda, 0), &heap) == QUERN_STATUS_OK;
  const quern_device *without = device_of_auto();
  if (!card) assert_true(without->backend == &rt_cpu || without->backend == &rt_opencl);
  fake_cuda_open_two(ALL);
  const quern_device *with = device_of_auto();
  assert_ptr_equal(with, compiler ? rt_device_at(&rt_cuda, 0) : without);
  fake_cuda_close();
  assert_ptr_equal(device_of_auto(), without);
  assert_null(quern_program_device(NULL));
}

/* ---- two programs -------------------------------------------------------------------------------------------- */

/* A program on a device, with weights and a state of its own: y = softmax(x w') + s, then s = s + y's first row. */
struct side {
  const quern_device *device;
  quern_tensor *root;
  quern_update update;
  float weights[SIDE * SIDE], x[SIDE * SIDE], begin[SIDE];
  float y[RUNS][SIDE * SIDE], expected[RUNS][SIDE * SIDE];
  quern_program *program;
  quern_instance *instance;
  quern_status status;
};

static void make_graph(struct side *s, int seed) {
  for (int i = 0; i < SIDE * SIDE; i++) {
    s->weights[i] = (float)((i * 7 + seed * 3) % 11) / 8 - 0.5f;
    s->x[i] = (float)((i * 5 + seed) % 13) / 8;
  }
  for (int i = 0; i < SIDE; i++) s->begin[i] = (float)(seed + i) / 4;
  quern_tensor *w = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(SIDE, SIDE), s->weights);
  quern_tensor *state = quern_state(ctx, seed == 0 ? "s0" : "s1", QUERN_DTYPE_F32, QUERN_LIST(SIDE));
  s->root = quern_add(quern_softmax(quern_linear(F32_INPUT("x", SIDE, SIDE), w, NULL), 1), state);
  quern_tensor *row = quern_reshape(quern_slice(s->root, 0, 0, 1, 1), QUERN_LIST(SIDE));
  s->update = (quern_update){state, quern_add(state, row)};
}

static void open_side(struct side *s, const quern_device *device) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device_handle = device;
  options.n_updates = 1;
  options.updates = &s->update;
  /* The fake driver's memory is not the card's: no library of a card that is there may be called with it. */
  if (device->backend == &rt_cuda) options.target = "sm_90";
  s->device = device;
  EXPECT_OK(quern_program_compile(&s->program, ctx, 1, &s->root, &options));
  assert_ptr_equal(quern_program_device(s->program), device);
  EXPECT_OK(quern_instance_new(&s->instance, s->program));
  EXPECT_OK(quern_instance_set_state(s->instance, 0, s->begin));
}

static void close_side(struct side *s) {
  quern_instance_free(s->instance);
  quern_program_free(s->program);
}

static quern_status run_side(struct side *s, int run) {
  return quern_instance_run(s->instance, (const void *[]){s->x}, (void *[]){s->y[run]});
}

/* What the evaluator says of all runs. */
static void expect_runs(struct side *s) {
  float state[2][SIDE];
  memcpy(state[0], s->begin, sizeof s->begin);
  for (int run = 0; run < RUNS; run++) {
    quern_tensor *roots[] = {s->root, s->update.value};
    struct ir_order order;
    quern_feed feeds[2];
    size_t n = 0;
    EXPECT_OK(ir_topo(ctx, 2, roots, &order));
    for (size_t i = 0; i < order.n; i++) {
      struct ir_node *node = order.at[i];
      if (node->op == IR_INPUT) feeds[n++] = (quern_feed){&node->out[0], s->x};
      if (node->op == IR_STATE) feeds[n++] = (quern_feed){&node->out[0], state[0]};
    }
    ir_order_fini(ctx, &order);
    EXPECT_OK(quern_eval(ctx, 2, roots, (void *[]){s->expected[run], state[1]}, n, feeds));
    expect_near(s->root, s->y[run], s->expected[run]);
    memcpy(state[0], state[1], sizeof state[0]);
  }
}

static void run_all(void *arg) {
  struct side *s = arg;
  for (int run = 0; run < RUNS && s->status == QUERN_STATUS_OK; run++) s->status = run_side(s, run);
}

/* Runs of both in turn, then from two threads. */
static void expect_side_by_side(const quern_device *first, const quern_device *second) {
  static struct side sides[2];
  for (int way = 0; way < 2; way++) {
    struct base_thread threads[2];
    memset(sides, 0, sizeof sides);
    for (int i = 0; i < 2; i++) {
      make_graph(&sides[i], i);
      open_side(&sides[i], i == 0 ? first : second);
    }
    for (int run = 0; run < RUNS && way == 0; run++)
      for (int i = 0; i < 2; i++) EXPECT_OK(run_side(&sides[i], run));
    for (int i = 0; i < 2 && way == 1; i++) EXPECT_OK(base_thread_start(&threads[i], run_all, &sides[i]));
    for (int i = 0; i < 2 && way == 1; i++) base_thread_join(&threads[i]);
    for (int i = 0; i < 2; i++) {
      EXPECT_OK(sides[i].status);
      expect_runs(&sides[i]);
      close_side(&sides[i]);
    }
  }
}

static void two_interpreters(void **state) {
  (void)state;
  expect_side_by_side(rt_device_at(&rt_interp, 0), rt_device_at(&rt_interp, 1));
  expect_side_by_side(rt_device_at(&rt_cpu, 0), rt_device_at(&rt_interp, 15));
}

/* The devices of OpenCL: main has asked PoCL for two. */
static const quern_device *two_of_opencl(void) {
  int n;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  if (rt_device_count(&rt_opencl, &n) != QUERN_STATUS_OK || n < 2 ||
      rt_device_probe(rt_device_at(&rt_opencl, 1), &heap) != QUERN_STATUS_OK) {
    print_message("there are no two devices: %s\n", quern_last_error());
    skip();
  }
  return rt_device_at(&rt_opencl, 1);
}

static void two_of_opencl_at_once(void **state) {
  (void)state;
  const quern_device *second = two_of_opencl(), *first = rt_device_at(&rt_opencl, 0);
  expect_side_by_side(first, second);
  expect_side_by_side(second, first); /* what was compiled for one is found by the other */
  expect_side_by_side(first, first);
  expect_side_by_side(second, rt_device_at(&rt_interp, 0));
}

/* A device is closed with the last of its handles and programs, and can be opened again; one that a name has asked for
** stays. */
static void open_as_long_as_used(void **state) {
  (void)state;
  const quern_device *second = two_of_opencl();
  static struct side s;
  quern_device *device, *again;
  struct base_heap heap;
  base_heap_init(&heap, NULL);
  for (int round = 0; round < 3; round++) {
    EXPECT_OK(quern_device_open(&device, "opencl:1"));
    EXPECT_OK(quern_device_open(&again, "opencl:1"));
    assert_true(device == second && device == again);
    quern_device_info info = {.size = sizeof info};
    EXPECT_OK(quern_device_get_info(again, &info));
    assert_true(info.gpu && info.own_memory && info.total_bytes > 0 && info.free_bytes == 0 && info.model[0] != 0);
    quern_device_free(again);
    assert_non_null(rt_device_opened(second));
    make_graph(&s, 0);
    open_side(&s, device);
    quern_device_free(device);
    assert_non_null(rt_device_opened(second));
    for (int run = 0; run < RUNS; run++) EXPECT_OK(run_side(&s, run));
    expect_runs(&s);
    close_side(&s);
    assert_true((rt_device_opened(second) != NULL) == (round == 2));
    if (round < 1) continue;
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.device = "opencl:1";
    open_program(TENSORS(quern_neg(F32_INPUT("x", 4))), &options);
    close_program();
    assert_non_null(rt_device_opened(second));
  }
}

/* Memory of one is not the other's, and instances do not share across devices. */
static void memory_is_apart(void **state) {
  (void)state;
  const quern_device *devices[] = {rt_device_at(&rt_opencl, 0), two_of_opencl()};
  struct rt_stream *streams[2];
  void *at[2];
  char back[2][4];
  static struct side sides[2];
  quern_instance *none;
  for (int i = 0; i < 2; i++) {
    EXPECT_OK(rt_opencl.remote->open(devices[i], &streams[i], &ctx->heap));
    EXPECT_OK(rt_opencl.remote->alloc(streams[i], 4, &at[i]));
    EXPECT_OK(rt_opencl.remote->upload(streams[i], at[i], i == 0 ? "one" : "two", 4));
  }
  assert_ptr_not_equal(at[0], at[1]);
  rt_opencl.remote->release(streams[0], at[1], 4); /* it is not this one's: it stays */
  for (int i = 0; i < 2; i++) EXPECT_OK(rt_opencl.remote->download(streams[i], back[i], at[i], 4));
  assert_string_equal(back[0], "one");
  assert_string_equal(back[1], "two");
  for (int i = 0; i < 2; i++) {
    rt_opencl.remote->release(streams[i], at[i], 4);
    rt_opencl.remote->close(streams[i]);
    make_graph(&sides[i], i);
    open_side(&sides[i], devices[i]);
  }
  EXPECT_ERROR(quern_instance_new_with(&none, sides[1].program, sides[0].instance), INVALID,
               "the program is for device opencl:1, the other instance's for opencl, whose memory is another");
  for (int i = 0; i < 2; i++) close_side(&sides[i]);
}

/* ---- two cards ----------------------------------------------------------------------------------------------- */

/* Programs of both in turn, on a driver that refuses what is the other card's. Kernels do nothing: only who did what is
** looked at. */
static void two_cards(void **state) {
  (void)state;
  static struct side sides[2];
  struct rt_nvrtc *nvrtc;
  quern_program_stats counts = QUERN_INIT(quern_program_stats);
  if (rt_nvrtc_open(&nvrtc) != QUERN_STATUS_OK) skip();
  fake_cuda_open_two(ALL);
  for (int i = 0; i < 2; i++) {
    make_graph(&sides[i], 0); /* the same program twice */
    open_side(&sides[i], rt_device_at(&rt_cuda, i));
    EXPECT_OK(quern_program_get_stats(sides[i].program, &counts));
    if (i == 1) assert_int_equal(counts.compiled, 0); /* cards of a kind share kernels */
  }
  for (int run = 0; run < RUNS; run++)
    for (int i = 0; i < 2; i++) {
      int before[] = {fake.launched[0], fake.launched[1]};
      EXPECT_OK(run_side(&sides[i], run));
      assert_int_equal(fake.launched[1 - i], before[1 - i]);
      assert_true(fake.launched[i] > before[i] || sides[i].instance->counts.replayed > 0);
    }
  for (int i = 0; i < 2; i++) {
    assert_true(sides[i].instance->counts.replayed > 0);
    assert_true(sides[i].instance->stream->driver == (i == 0 ? &fake.driver : &fake.other));
    close_side(&sides[i]);
  }
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
}

/* A card that has failed fails alone. */
static void one_card_fails(void **state) {
  (void)state;
  struct rt_stream *streams[2];
  void *at;
  fake_cuda_open_two(ALL);
  for (int i = 0; i < 2; i++) EXPECT_OK(rt_cuda.remote->open(rt_device_at(&rt_cuda, i), &streams[i], &ctx->heap));
  fake_cuda_fail(2, 719);
  EXPECT_ERROR(rt_cuda.remote->fill(streams[1], &at, 0, 1), DEVICE, "cuda:1: ");
  EXPECT_ERROR(rt_cuda.remote->alloc(streams[1], 8, &at), DEVICE, "nothing works since");
  EXPECT_OK(rt_cuda.remote->alloc(streams[0], 8, &at));
  rt_cuda.remote->release(streams[0], at, 8);
  for (int i = 0; i < 2; i++) rt_cuda.remote->close(streams[i]);
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
}

/* A program in a file is loaded on the first card, or on the one that is asked for. */
static void loaded_on_another(void **state) {
  (void)state;
  const char *path = "test_devices.qprg";
  static struct side s;
  struct rt_nvrtc *nvrtc;
  quern_program *loaded;
  if (rt_nvrtc_open(&nvrtc) != QUERN_STATUS_OK) skip();
  fake_cuda_open_two(ALL);
  make_graph(&s, 0);
  open_side(&s, rt_device_at(&rt_cuda, 1));
  EXPECT_OK(quern_program_save(s.program, path));
  close_side(&s);
  for (int i = -1; i < 2; i++) {
    const quern_device *device = rt_device_at(&rt_cuda, BASE_MAX(i, 0));
    int before = fake.launched[device->ordinal];
    EXPECT_OK(i < 0 ? quern_program_load(&loaded, path) : quern_program_load_on(&loaded, path, device));
    assert_ptr_equal(quern_program_device(loaded), device);
    s.program = loaded;
    EXPECT_OK(quern_instance_new(&s.instance, loaded));
    EXPECT_OK(quern_instance_set_state(s.instance, 0, s.begin));
    EXPECT_OK(run_side(&s, 0));
    assert_true(fake.launched[device->ordinal] > before);
    close_side(&s);
  }
  EXPECT_ERROR(quern_program_load_on(&loaded, path, rt_device_at(&rt_cpu, 0)), UNSUPPORTED,
               "made for device cuda, and is to be loaded on device cpu");
  fake.other.target = cg_target_find("sm_80");
  EXPECT_ERROR(quern_program_load_on(&loaded, path, rt_device_at(&rt_cuda, 1)), UNSUPPORTED,
               "target sm_90, which this device cannot run");
  assert_int_equal(remove(path), 0);
  assert_int_equal(fake_cuda_left(), 0);
  fake_cuda_close();
}

/* ---- checkers ------------------------------------------------------------------------------------------------ */

/* The fake driver finds a queue of one card with the context of the other. */
static void the_fake_finds_strangers(void **state) {
  (void)state;
  void *popped, *queue = NULL;
  fake_cuda_open_two(ALL);
  assert_int_equal(fake_context_push(fake.other.context), 0);
  assert_int_equal(fake_stream_create(&queue, 0), 0);
  assert_int_equal(fake_context_pop(&popped), 0);
  assert_int_equal(fake_context_push(fake.driver.context), 0);
  assert_false(fake_is_owned(queue));
  assert_int_equal(fake_context_pop(&popped), 0);
  assert_int_equal(fake_context_push(fake.other.context), 0);
  assert_true(fake_is_owned(queue));
  assert_int_equal(fake_stream_destroy(queue), 0);
  assert_int_equal(fake_context_pop(&popped), 0);
  fake_cuda_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(names),
                                     TEST(kinds),
                                     TEST(cards),
                                     TEST(the_best),
                                     TEST(two_interpreters),
                                     TEST(two_of_opencl_at_once),
                                     TEST(memory_is_apart),
                                     TEST(open_as_long_as_used),
                                     TEST(two_cards),
                                     TEST(one_card_fails),
                                     TEST(loaded_on_another),
                                     TEST(the_fake_finds_strangers)};
  setenv("POCL_DEVICES", "pthread pthread", 1);
  return cmocka_run_group_tests_name("engine/devices", tests, NULL, NULL);
}
