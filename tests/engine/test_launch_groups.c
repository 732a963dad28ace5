/* tests/engine/test_launch_groups.c -- steps of one kernel as one launch: which, and that the order of what they touch is kept */
#include "engine/engine_test.h"

/* ---- steps by hand: kernels 0 and 1 read the first buffer and write the second; 2 too, and moves much memory ------- */

enum { KERNELS = 3, MOST_STEPS = 32, BYTES = 16 };
static struct kern made_kernels[KERNELS];
static struct kern *kernel_list[KERNELS] = {&made_kernels[0], &made_kernels[1], &made_kernels[2]};
static struct engine_step made_steps[MOST_STEPS];
static struct engine_buffer made_buffers[2 * MOST_STEPS];
static int numbers[2 * MOST_STEPS];
static void *places[2 * MOST_STEPS];
static struct engine_control control;
static struct engine_subprogram subprogram;
static struct quern_program made;
static struct engine_launch_order *order;

static void begin(void) {
  subprogram = (struct engine_subprogram){.steps = made_steps, .buffers = made_buffers};
  made = (struct quern_program){
      .n_subprograms = 1, .subprograms = &subprogram, .n_kernels = KERNELS, .kernels = kernel_list};
  for (int k = 0; k < KERNELS; k++) {
    made_kernels[k] = (struct kern){.n_mems = 2, .n_phases = 1, .cost = {.bytes = k == 2 ? 1e7 : 100}};
    made_kernels[k].mems[0].role = KERN_IN;
    made_kernels[k].mems[1].role = KERN_OUT;
  }
}

/* kernel < 0: a loop. Buffers are 16 bytes at these addresses. */
static void step(int kernel, int from, int to) {
  int i = subprogram.n_steps++, b = 2 * i;
  assert_true(i < MOST_STEPS);
  const int at[] = {from, to};
  for (int k = 0; k < 2; k++) {
    made_buffers[b + k] = (struct engine_buffer){.bytes = BYTES};
    places[b + k] = (void *)(uintptr_t)at[k];
    numbers[b + k] = b + k;
  }
  subprogram.n_buffers = b + 2;
  made_steps[i] = (struct engine_step){.kind = kernel >= 0 ? PLAN_KERNEL : PLAN_LOOP,
                                       .kernel = kernel,
                                       .n_buffers = 2,
                                       .buffers = numbers + b,
                                       .control = kernel >= 0 ? NULL : &control};
}

/* Sets as text: "0 2,1" is steps 0 and 2, then step 1. */
static void expect_sets(const char *expected) {
  static const unsigned char batchable[KERNELS] = {1, 0, 1};
  char text[256] = "";
  order = engine_launch_order_new(&ctx->heap, &made, places, batchable);
  assert_non_null(order);
  for (int i = 0; i < order->n; i++)
    for (int k = order->first[i]; k < order->first[i + 1]; k++) {
      size_t n = strlen(text);
      snprintf(text + n, sizeof text - n, "%s%d", k > order->first[i] ? " " : i > 0 ? "," : "", order->steps[k]);
    }
  engine_launch_order_free(&ctx->heap, order);
  assert_string_equal(text, expected);
}

static void like_steps_are_joined(void **state) {
  (void)state;
  begin();
  for (int i = 0; i < 4; i++) step(0, 1000, 100 * i);
  expect_sets("0 1 2 3");
  /* another kernel between them, of other memory; one that is not to be joined */
  begin();
  step(0, 1000, 100);
  step(1, 2000, 200);
  step(0, 1000, 300);
  step(1, 2000, 400);
  expect_sets("0 2,1,3");
}

static void readers_and_writers_between(void **state) {
  (void)state;
  begin(); /* one reads what the first writes, and the second reads what that writes: they stay apart */
  step(0, 1000, 100);
  step(1, 100, 200);
  step(0, 200, 300);
  expect_sets("0,1,2");
  begin(); /* one reads what the first writes: the second comes earlier */
  step(0, 1000, 100);
  step(1, 100, 200);
  step(0, 1000, 300);
  expect_sets("0 2,1");
  begin(); /* one writes what the second reads, by a byte: the first comes later */
  step(0, 1000, 100);
  step(1, 2000, 200);
  step(0, 200 + BYTES - 1, 300);
  expect_sets("1,0 2");
  begin(); /* memory that is used again: the second writes what is read of the first */
  step(0, 1000, 100);
  step(1, 100, 200);
  step(0, 1000, 100);
  expect_sets("0,1,2");
  begin(); /* one writes what the first reads and the second writes */
  step(0, 100, 200);
  step(1, 2000, 100);
  step(0, 3000, 100);
  expect_sets("0,1,2");
  begin(); /* two that only read the same */
  step(0, 100, 200);
  step(1, 100, 300);
  step(0, 100, 400);
  expect_sets("0 2,1");
  begin(); /* they write the same */
  step(0, 1000, 100);
  step(0, 2000, 100);
  expect_sets("0,1");
  begin(); /* next to each other, not in each other */
  step(0, 1000, 100);
  step(0, 1000, 100 + BYTES);
  expect_sets("0 1");
}

static void what_is_not_joined(void **state) {
  (void)state;
  begin(); /* beyond a loop */
  step(0, 1000, 100);
  step(-1, 2000, 3000);
  step(0, 1000, 200);
  expect_sets("0,1,2");
  begin(); /* with scratch */
  step(0, 1000, 100);
  step(0, 1000, 200);
  made_steps[0].scratch = made_steps[1].scratch = true;
  expect_sets("0,1");
  begin(); /* much memory, and a step of much memory between; small ones between do not matter */
  made_kernels[1].cost.bytes = 1e7;
  step(2, 1000, 100);
  step(1, 2000, 200);
  step(2, 1000, 300);
  expect_sets("0,1,2");
  made_kernels[1].cost.bytes = 100;
  expect_sets("0 2,1");
  begin();
  expect_sets("");
}

/* ---- programs ------------------------------------------------------------------------------------------------ */

static bool writes(const struct engine_step *s, int k) {
  return s->kernel >= 0 ? program->kernels[s->kernel]->mems[k].role != KERN_IN : k == 0 || s->control != NULL;
}

/* Whether the order of two steps matters: byte ranges that meet, of which one is written. */
static bool ordered(const struct engine_step *a, const struct engine_step *b) {
  const struct engine_frame *frame = instance->frame;
  for (int i = 0; i < a->n_buffers; i++)
    for (int k = 0; k < b->n_buffers; k++) {
      const char *x = frame->at[a->buffers[i]], *y = frame->at[b->buffers[k]];
      const char *x_end = x + frame->subprogram->buffers[a->buffers[i]].bytes;
      const char *y_end = y + frame->subprogram->buffers[b->buffers[k]].bytes;
      if (x < y_end && y < x_end && x < x_end && y < y_end && (writes(a, i) || writes(b, k))) return true;
    }
  return a->scratch && b->scratch;
}

enum { MOST_OF_PROGRAM = 256 };

/* Checks the order of a program's steps; gives how many sets are fewer than steps. */
static int expect_order(size_t n, quern_tensor *const *roots, const quern_program_options *options) {
  unsigned char batchable[MOST_OF_PROGRAM];
  int set_of[MOST_OF_PROGRAM], steps, fewer;
  open_program(n, roots, options);
  const struct engine_subprogram *main_part = &program->subprograms[0];
  steps = main_part->n_steps;
  assert_true(steps <= MOST_OF_PROGRAM && program->n_kernels <= MOST_OF_PROGRAM);
  for (int i = 0; i < main_part->n_outside; i++) {
    int number = main_part->outside[i];
    const struct engine_buffer *b = &main_part->buffers[number];
    instance->frame->at[number] = b->place == PLAN_PARAM ? inputs.data[b->at] : outputs.data[b->at];
  }
  memset(batchable, 1, sizeof batchable);
  order = engine_launch_order_new(&instance->heap, program, instance->frame->at, batchable);
  assert_non_null(order);
  for (int i = 0; i < steps; i++) set_of[i] = -1;
  for (int i = 0; i < order->n; i++)
    for (int k = order->first[i]; k < order->first[i + 1]; k++) {
      assert_int_equal(set_of[order->steps[k]], -1);
      set_of[order->steps[k]] = i;
      assert_int_equal(main_part->steps[order->steps[k]].kernel,
                       main_part->steps[order->steps[order->first[i]]].kernel);
    }
  for (int b = 0; b < steps; b++)
    for (int a = 0; a < b; a++) {
      assert_true(set_of[a] >= 0 && set_of[b] >= 0);
      if (ordered(&main_part->steps[a], &main_part->steps[b])) assert_true(set_of[a] < set_of[b]);
    }
  fewer = steps - order->n;
  engine_launch_order_free(&instance->heap, order);
  close_program();
  return fewer;
}

static void body(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(in[1], quern_cast(in[0], QUERN_DTYPE_F32));
}

static void order_is_kept(void **state) {
  (void)state;
  int fewer = 0;
  for (unsigned seed = 1; seed <= 40; seed++) {
    quern_tensor *pool[64];
    int n = 0;
    unsigned random = seed;
    pool[n++] = F32_INPUT("a", 6, 5);
    pool[n++] = F32_INPUT("b", 6, 5);
    while (n < 40) {
      random = random * 1664525u + 1013904223u;
      quern_tensor *x = pool[(random >> 8) % (unsigned)n], *y = pool[(random >> 16) % (unsigned)n], *looped[1];
      quern_loop_options loop = {sizeof loop, 3, false, 1, 0, 0, 0};
      switch ((random >> 24) % 16) {
      case 0: pool[n++] = quern_softmax(x, 1); break;
      case 1: pool[n++] = quern_add(quern_sum(x, QUERN_LIST(1), true), y); break;
      case 2:
        EXPECT_OK(quern_loop(ctx, &loop, (quern_tensor *[]){x}, body, NULL, looped));
        pool[n++] = looped[0];
        break;
      default: pool[n++] = (random >> 20) % 2 == 0 ? quern_mul(x, y) : quern_tanh(x); break;
      }
    }
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.optimize = seed % 2 == 1 ? QUERN_OPTIMIZE_DEFAULT : QUERN_OPTIMIZE_NONE;
    fewer += expect_order(TENSORS(pool[39], pool[38], pool[20], pool[30]), &options);
  }
  assert_true(fewer > 40);
}

static void no_memory(void **state) {
  (void)state;
  static const unsigned char batchable[KERNELS] = {1, 1, 1};
  begin();
  step(0, 1000, 100);
  step(0, 1000, 200);
  struct fault fault = {0};
  while (fault_next(&fault)) {
    fault_begin(&fault);
    order = engine_launch_order_new(&ctx->heap, &made, places, batchable);
    fault_end(&fault);
    EXPECT_FAULT(&fault, order != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY);
    engine_launch_order_free(&ctx->heap, order);
  }
  assert_int_equal(fault.n, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(like_steps_are_joined), TEST(readers_and_writers_between),
                                     TEST(what_is_not_joined), TEST(order_is_kept), TEST(no_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
