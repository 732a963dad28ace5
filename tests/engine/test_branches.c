/* tests/engine/test_branches.c -- which steps of a run may be done side by side: never two that touch what one of them writes */
#include "engine/engine_test.h"

enum { MOST_STEPS = 256 };
static bool after[MOST_STEPS][MOST_STEPS]; /* [j][i]: step j comes after step i, at once or by others */

static bool writes(const struct engine_step *step, int k) {
  if (step->kernel >= 0) return program->kernels[step->kernel]->mems[k].role != KERN_IN;
  if (step->control != NULL) return k >= step->control->n_src;
  return k == 0;
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

/* Compiles, and checks all pairs of steps; gives how many pairs are in no order. */
static int expect_order(size_t n, quern_tensor *const *roots, const quern_program_options *options) {
  open_program(n, roots, options);
  int free_pairs = 0, steps = program->subprograms[0].n_steps;
  void *ins[MOST_SLOTS], *outs[MOST_SLOTS];
  assert_true(steps <= MOST_STEPS);
  /* addresses of inputs and outputs as a device with memory of its own would have them */
  for (size_t i = 0; i < MOST_SLOTS; i++) ins[i] = inputs.data[i], outs[i] = outputs.data[i];
  for (int i = 0; i < program->subprograms[0].n_outside; i++) {
    int number = program->subprograms[0].outside[i];
    const struct engine_buffer *b = &program->subprograms[0].buffers[number];
    instance->frame->at[number] = b->place == PLAN_PARAM ? ins[b->at] : outs[b->at];
  }
  unsigned char none[MOST_STEPS] = {0};
  assert_true(program->n_kernels <= MOST_STEPS);
  struct engine_launch_order *order = engine_launch_order_new(&instance->heap, program, instance->frame->at, none);
  assert_non_null(order);
  assert_int_equal(order->n, steps); /* as they are: nothing is joined */
  struct engine_branches *b = engine_branches_new(instance, order);
  assert_non_null(b);
  memset(after, 0, sizeof after);
  for (int j = 0; j < steps; j++) {
    for (int k = b->first[j]; k < b->first[j + 1]; k++) {
      int i = b->groups[k];
      assert_true(i >= 0 && i < j);
      after[j][i] = true;
      for (int h = 0; h < i; h++) after[j][h] = after[j][h] || after[i][h];
    }
    for (int i = 0; i < j; i++) {
      assert_true(after[j][i] || !ordered(&program->subprograms[0].steps[i], &program->subprograms[0].steps[j]));
      free_pairs += !after[j][i];
    }
  }
  engine_branches_free(instance, b);
  engine_launch_order_free(&instance->heap, order);
  close_program();
  return free_pairs;
}

static quern_tensor *state_of(int i, int64_t n) {
  char name[16];
  snprintf(name, sizeof name, "s%d", i);
  return quern_state(ctx, name, QUERN_DTYPE_F32, 1, &n);
}

static void updates_are_side_by_side(void **state) {
  (void)state;
  enum { N = 16 };
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_update updates[N];
  quern_tensor *x = F32_INPUT("x", 8);
  for (int i = 0; i < N; i++) {
    quern_tensor *s = state_of(i, 8);
    updates[i] = (quern_update){s, quern_add(quern_mul(s, quern_scalar(ctx, QUERN_DTYPE_F32, i)), x)};
  }
  options.optimize = QUERN_OPTIMIZE_NONE;
  options.n_updates = N;
  options.updates = updates;
  assert_true(expect_order(0, NULL, &options) > N);
}

static void a_chain_stays_one(void **state) {
  (void)state;
  quern_program_options options = QUERN_INIT(quern_program_options);
  quern_tensor *y = F32_INPUT("x", 8);
  for (int i = 0; i < 40; i++) y = quern_add(y, quern_scalar(ctx, QUERN_DTYPE_F32, i));
  options.optimize = QUERN_OPTIMIZE_NONE;
  assert_int_equal(expect_order(TENSORS(y), &options), 0);
}

static void body(void *user, quern_tensor *const *in, quern_tensor **out) {
  (void)user;
  out[0] = quern_add(in[1], quern_cast(in[0], QUERN_DTYPE_F32));
}

/* Memory is shared, loops and reductions lie between: whatever the plan, order is kept where it matters. */
static void mixed_graphs(void **state) {
  (void)state;
  for (unsigned seed = 1; seed <= 30; seed++) {
    quern_tensor *pool[64];
    int n = 0;
    unsigned random = seed;
    pool[n++] = F32_INPUT("a", 6, 5);
    pool[n++] = F32_INPUT("b", 6, 5);
    while (n < 40) {
      random = random * 1664525u + 1013904223u;
      quern_tensor *x = pool[(random >> 8) % (unsigned)n], *y = pool[(random >> 16) % (unsigned)n], *looped[1];
      quern_loop_options loop = {sizeof loop, 3, false, 1, 0, 0, 0};
      switch ((random >> 24) % 8) {
      case 0: pool[n++] = quern_softmax(x, 1); break;
      case 1: pool[n++] = quern_add(quern_sum(x, QUERN_LIST(1), true), y); break;
      case 2:
        EXPECT_OK(quern_loop(ctx, &loop, (quern_tensor *[]){x}, body, NULL, looped));
        pool[n++] = looped[0];
        break;
      case 3: pool[n++] = quern_mul(x, y); break;
      default: pool[n++] = quern_add(quern_tanh(x), y); break;
      }
    }
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.optimize = seed % 2 == 1 ? QUERN_OPTIMIZE_DEFAULT : QUERN_OPTIMIZE_NONE;
    (void)expect_order(TENSORS(pool[39], pool[38], pool[20], pool[30]), &options);
  }
}

static void no_memory(void **state) {
  (void)state;
  open_program(TENSORS(quern_neg(F32_INPUT("x", 8))), NULL);
  struct fault fault = {0};
  unsigned char none[1] = {0};
  assert_int_equal(program->n_kernels, 1);
  struct engine_launch_order *order = engine_launch_order_new(&instance->heap, program, instance->frame->at, none);
  assert_non_null(order);
  while (fault_next(&fault)) {
    fault_begin(&fault);
    struct engine_branches *b = engine_branches_new(instance, order);
    fault_end(&fault);
    EXPECT_FAULT(&fault, b != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY);
    engine_branches_free(instance, b);
  }
  engine_launch_order_free(&instance->heap, order);
  assert_int_equal(fault.n, 2);
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(updates_are_side_by_side), TEST(a_chain_stays_one), TEST(mixed_graphs),
                                     TEST(no_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
