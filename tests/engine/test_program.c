/* tests/engine/test_program.c -- programs and instances: slots, states, outputs of all kinds, lifetimes, memory */
#include "engine/engine_test.h"

/* ---- slots and lifetimes ------------------------------------------------------------------------------- */

static void slots_are_told(void **state) {
  (void)state;
  float wrapped[2] = {1, 2};
  quern_slot slot = QUERN_INIT(quern_slot);
  quern_tensor *b = F32_INPUT("b", 2), *s = F32_STATE("s", 2), *a = F32_INPUT("a", 3, 2);
  quern_tensor *unread = F32_INPUT("unread", 9);
  quern_tensor *w = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(2), wrapped);
  quern_tensor *y = quern_add(quern_add(quern_add(a, b), s), w);
  assert_non_null(unread);
  open_program(TENSORS(y, quern_sum(y, QUERN_ALL, false)), NULL);
  assert_int_equal(quern_program_input_count(program), 2);
  assert_int_equal(quern_program_output_count(program), 2);
  assert_int_equal(quern_program_state_count(program), 1);
  EXPECT_OK(quern_program_input(program, 0, &slot));
  assert_string_equal(slot.name, "b");
  EXPECT_OK(quern_program_input(program, 1, &slot));
  assert_string_equal(slot.name, "a");
  assert_true(slot.dtype == QUERN_DTYPE_F32 && slot.rank == 2 && slot.dims[0] == 3 && slot.dims[1] == 2 &&
              slot.bytes == 24);
  EXPECT_OK(quern_program_state(program, 0, &slot));
  assert_string_equal(slot.name, "s");
  EXPECT_OK(quern_program_output(program, 1, &slot));
  assert_true(slot.name == NULL && slot.rank == 0 && slot.bytes == 4);
  close_program();
}

/* A program needs neither its context nor the memory that tensors were made of; an instance does not need its
** program. */
static void programs_stand_alone(void **state) {
  (void)state;
  float wrapped[3] = {1, 2, 3}, x[3] = {10, 20, 30}, y[3];
  const void *ins[] = {x};
  void *outs[] = {y};
  quern_tensor *w = quern_tensor_wrap(ctx, QUERN_DTYPE_F32, QUERN_LIST(3), wrapped);
  open_program(TENSORS(quern_add(F32_INPUT("x", 3), w)), NULL);
  quern_context_free(ctx);
  ctx = NULL;
  memset(wrapped, 0, sizeof wrapped);
  quern_program_free(program);
  program = NULL;
  EXPECT_OK(quern_instance_run(instance, ins, outs));
  assert_true(y[0] == 11 && y[1] == 22 && y[2] == 33);
  close_program();
}

static void instances_are_apart(void **state) {
  (void)state;
  quern_tensor *s = F32_STATE("s", 1);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.n_updates = 1;
  options.updates = &(quern_update){s, quern_add(s, quern_full(ctx, QUERN_DTYPE_F32, QUERN_LIST(1), 1))};
  open_program(0, NULL, &options);
  quern_instance *other;
  float a, b;
  EXPECT_OK(quern_instance_new(&other, program));
  EXPECT_OK(quern_instance_zero_states(other));
  EXPECT_OK(quern_instance_set_state(instance, 0, (float[]){10}));
  for (int i = 0; i < 3; i++) EXPECT_OK(quern_instance_run(instance, NULL, NULL));
  EXPECT_OK(quern_instance_run(other, NULL, NULL));
  EXPECT_OK(quern_instance_get_state(instance, 0, &a));
  EXPECT_OK(quern_instance_get_state(other, 0, &b));
  assert_true(a == 13 && b == 1);
  quern_instance_free(other);
  close_program();
}

/* A second program over the states of the first: those of the same name and type are one, others are its own. */
static void instances_share_states(void **state) {
  (void)state;
  quern_tensor *s = F32_STATE("s", 2), *t = F32_STATE("t", 300), *x = F32_INPUT("x", 2);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.n_updates = 2;
  options.updates = (quern_update[]){{s, quern_add(s, x)}, {t, quern_neg(t)}};
  open_program(0, NULL, &options);
  EXPECT_OK(quern_instance_set_state(instance, 0, (float[]){0, 0}));
  quern_program_options plain = QUERN_INIT(quern_program_options);
  plain.device = "interp";
  quern_program *reading;
  quern_instance *reader, *third;
  quern_tensor *other_shape = F32_STATE("t", 3), *own = F32_STATE("own", 3);
  quern_tensor *y = quern_mul(s, s), *z = quern_add(other_shape, own);
  EXPECT_OK(quern_program_compile(&reading, ctx, TENSORS(y, z), &plain));
  EXPECT_OK(quern_instance_new_with(&reader, reading, instance));
  EXPECT_OK(quern_instance_zero_states(reader));
  EXPECT_OK(quern_instance_new_with(&third, reading, reader));
  quern_program_free(reading);
  float a[2], b[3];
  for (int i = 1; i <= 3; i++) {
    EXPECT_OK(quern_instance_run(instance, (const void *[]){(float[]){1, 2}}, NULL));
    EXPECT_OK(quern_instance_run(i == 2 ? third : reader, NULL, (void *[]){a, b}));
    assert_true(a[0] == (float)(i * i) && a[1] == (float)(4 * i * i) && b[0] == 0 && b[2] == 0);
  }
  assert_ptr_equal(quern_instance_state(instance, 0), quern_instance_state(third, 0));
  EXPECT_OK(quern_instance_set_state(third, 0, (float[]){7, 8}));
  assert_true(((float *)quern_instance_state(instance, 0))[1] == 8);
  close_program(); /* the first one goes first */
  EXPECT_OK(quern_instance_run(reader, NULL, (void *[]){a, b}));
  assert_true(a[0] == 49 && a[1] == 64);
  quern_instance_free(reader);
  EXPECT_OK(quern_instance_run(third, NULL, (void *[]){a, b}));
  assert_true(a[0] == 49 && a[1] == 64);
  quern_instance_free(third);
}

/* ---- outputs ------------------------------------------------------------------------------------------- */

static void outputs_of_all_kinds(void **state) {
  (void)state;
  quern_tensor *a = F32_INPUT("a", 4, 3), *b = F32_INPUT("b", 3), *s = F32_STATE("s", 3);
  quern_tensor *c = quern_constant(ctx, QUERN_DTYPE_F32, QUERN_LIST(2), (float[]){5, 6});
  quern_tensor *one = quern_full(ctx, QUERN_DTYPE_F32, QUERN_SCALAR, 8), *y = quern_exp(quern_add(a, b));
  quern_tensor *empty = quern_zeros(ctx, QUERN_DTYPE_F32, QUERN_LIST(0, 3));
  expect_all(TENSORS(y, y, quern_reshape(y, QUERN_LIST(12)), a, a, b, s, c, one, quern_reshape(a, QUERN_LIST(3, 4)),
                     quern_transpose(y, 0, 1), quern_softmax(y, 1), quern_iota(ctx, QUERN_DTYPE_I64, QUERN_LIST(5), 0),
                     empty));
}

static void no_outputs(void **state) {
  (void)state;
  expect_same(0, NULL, NULL);
}

/* ---- states -------------------------------------------------------------------------------------------- */

/* Runs updates several times beside the evaluator; states after each run are as it says. */
static void expect_updates(size_t n, const quern_update *updates, size_t n_roots, quern_tensor *const *roots) {
  static char expected[MOST_SLOTS][MOST_BYTES];
  quern_tensor *all[MOST_SLOTS];
  for (int way = 0; way < 3; way++) {
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.optimize = way == 1 ? QUERN_OPTIMIZE_NONE : QUERN_OPTIMIZE_DEFAULT;
    options.n_updates = n;
    options.updates = updates;
    open_program(n_roots, roots, &options);
    instance->poison = way == 2;
    for (size_t i = 0; i < n_roots; i++) all[i] = roots[i];
    for (size_t i = 0; i < n; i++) all[n_roots + i] = updates[i].value;
    for (int step = 0; step < 3; step++) {
      char now[MOST_BYTES];
      size_t number = 0;
      eval_roots(n_roots + n, all, expected);
      run_program();
      for (size_t i = 0; i < n_roots; i++) expect_near(roots[i], outputs.at[i], expected[i]);
      for (size_t i = 0; i < n; i++) {
        for (number = 0; number < program->n_states; number++)
          if (strcmp(program->states[number].name, quern_tensor_name(updates[i].state)) == 0) break;
        EXPECT_OK(quern_instance_get_state(instance, number, now));
        expect_near(updates[i].state, now, expected[n_roots + i]);
        memcpy(states.data[number], expected[n_roots + i], program->states[number].bytes);
        EXPECT_OK(quern_instance_set_state(instance, number, states.data[number]));
      }
    }
    close_program();
  }
}

/* Momentum: v' = v/2 + g, p' = p - v'; the loss reads the old p. */
static void an_optimizer(void **state) {
  (void)state;
  quern_tensor *p = F32_STATE("p", 4, 3), *v = F32_STATE("v", 4, 3), *x = F32_INPUT("x", 2, 4), *g;
  quern_tensor *loss = quern_sum(quern_tanh(quern_matmul(x, p)), QUERN_ALL, false);
  EXPECT_OK(quern_grad(loss, 1, &p, &g));
  quern_tensor *half = quern_full(ctx, QUERN_DTYPE_F32, QUERN_SCALAR, 0.5), *next = quern_add(quern_mul(v, half), g);
  expect_updates(2, (quern_update[]){{v, next}, {p, quern_sub(p, next)}},
                 TENSORS(loss, quern_sum(p, QUERN_ALL, false)));
}

static void states_in_place(void **state) {
  (void)state;
  quern_tensor *s = F32_STATE("s", 32);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.n_updates = 1;
  options.updates = &(quern_update){s, quern_add(s, F32_INPUT("x", 32))};
  open_program(0, NULL, &options);
  assert_int_equal(program->counts.steps, 1); /* no copy */
  assert_int_equal(program->memory.arena, 0);
  close_program();
}

/* A weight and its moment that what comes after a contraction updates, however long its sums: no copy, no memory. */
static void weights_in_a_contraction(void **state) {
  (void)state;
  for (int64_t k = 8; k <= 16; k *= 2) {
    quern_tensor *p = F32_STATE("p", 16, 24), *v = F32_STATE("v", 16, 24), *x = F32_INPUT("x", k, 16),
                 *g = F32_INPUT("g", k, 24);
    quern_tensor *next = quern_add(quern_mul_scalar(v, 0.5), quern_matmul(quern_transpose(x, 0, 1), g));
    quern_update updates[] = {{v, next}, {p, quern_sub(quern_mul_scalar(p, 0.75), next)}};
    quern_program_options options = QUERN_INIT(quern_program_options);
    options.n_updates = 2;
    options.updates = updates;
    open_program(0, NULL, &options);
    assert_int_equal(program->counts.steps, 1);
    assert_int_equal(program->memory.arena, 0);
    close_program();
    expect_updates(2, updates, 0, NULL);
  }
}

static void states_that_exchange(void **state) {
  (void)state;
  quern_tensor *a = F32_STATE("a", 3), *b = F32_STATE("b", 3), *c = F32_STATE("c", 3), *d = F32_STATE("d", 3);
  quern_tensor *x = F32_INPUT("x", 3), *y = quern_exp(x);
  expect_updates(4, (quern_update[]){{a, b}, {b, a}, {c, quern_mul(c, a)}, {d, y}}, TENSORS(y, a, quern_add(c, d)));
}

/* Only written: the state is there, though nothing reads it. */
static void states_that_are_only_written(void **state) {
  (void)state;
  quern_tensor *s = F32_STATE("s", 3), *x = F32_INPUT("x", 3);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.n_updates = 1;
  options.updates = &(quern_update){s, x};
  open_program(0, NULL, &options);
  float now[3];
  assert_int_equal(quern_program_state_count(program), 1);
  run_program();
  EXPECT_OK(quern_instance_get_state(instance, 0, now));
  assert_memory_equal(now, inputs.data[0], sizeof now);
  close_program();
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static quern_tensor *chain(quern_tensor *x, int n) {
  for (int i = 0; i < n; i++) x = quern_softmax(quern_matmul(x, x), 1);
  return x;
}

static void memory_is_shared(void **state) {
  (void)state;
  quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
  open_program(TENSORS(chain(F32_INPUT("x", 8, 8), 6)), NULL);
  EXPECT_OK(quern_program_get_memory(program, &memory));
  assert_true(memory.arena < memory.unshared && memory.bound <= memory.arena && memory.state == 0);
  assert_true((double)memory.arena <= 1.1 * (double)memory.bound);
  close_program();
}

/* With half the memory the same bits come out, and a byte less than the least is refused. */
static void a_memory_limit(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 16, 16), *y[8], *z;
  z = x;
  for (int i = 0; i < 8; i++) z = y[i] = quern_softmax(quern_matmul(z, z), 1);
  for (int i = 8; i-- > 0;) z = quern_matmul(z, y[i]);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.threads = 1;
  open_program(TENSORS(z), &options);
  run_program();
  float whole[256];
  int64_t needed = program->memory.arena + program->memory.scratch;
  memcpy(whole, outputs.at[0], sizeof whole);
  close_program();
  options.device = "interp";
  int64_t least = -1;
  char text[64];
  options.memory_limit = 1;
  options.least_limit = &least;
  assert_int_equal(quern_program_compile(&program, ctx, TENSORS(z), &options), QUERN_STATUS_MEMORY);
  snprintf(text, sizeof text, "the smallest that can is %lld", (long long)least);
  assert_non_null(strstr(quern_last_error(), text));
  assert_non_null(strstr(quern_last_error(), "the largest tensors: "));
  assert_true(least > 0 && least < needed);
  options.memory_limit = least;
  open_program(TENSORS(z), &options);
  assert_int_equal(least, 0); /* it was met */
  assert_true(program->memory.arena + program->memory.scratch <= options.memory_limit);
  for (int poison = 0; poison < 2; poison++) {
    instance->poison = poison != 0;
    run_program();
    assert_memory_equal(whole, outputs.at[0], sizeof whole);
  }
  close_program();
  options.memory_limit--;
  EXPECT_ERROR(quern_program_compile(&program, ctx, TENSORS(z), &options), MEMORY, "cannot be met");
}

static void donated_inputs(void **state) {
  (void)state;
  quern_tensor *x = F32_INPUT("x", 64), *y = quern_exp(x);
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.passes = "-fuse";
  open_program(TENSORS(quern_sum(y, QUERN_ALL, false)), &options);
  int64_t needed = program->memory.arena;
  close_program();
  options.n_donated = 1;
  options.donated = &x;
  open_program(TENSORS(quern_sum(y, QUERN_ALL, false)), &options);
  assert_true(program->memory.arena < needed);
  run_program();
  close_program();
}

/* Nothing is allocated while running. */
static void runs_allocate_nothing(void **state) {
  (void)state;
  open_program(TENSORS(chain(F32_INPUT("x", 8, 8), 3)), NULL);
  run_program();
  uint64_t before = atomic_load(&instance->heap.count);
  uint64_t contexts = atomic_load(&ctx->heap.count);
  for (int i = 0; i < 3; i++) run_program();
  assert_true(before == atomic_load(&instance->heap.count) && contexts == atomic_load(&ctx->heap.count));
  close_program();
}

/* A buffer that a plan calls dead too early is overwritten, and the results show it. */
static void poison_finds_a_wrong_plan(void **state) {
  (void)state;
  float before[64];
  open_program(TENSORS(chain(F32_INPUT("x", 8, 8), 3)), NULL);
  run_program();
  memcpy(before, outputs.at[0], sizeof before);
  struct engine_subprogram *part = &program->subprograms[0];
  bool planted = false;
  for (int i = 0; i < part->n_buffers && !planted; i++) {
    struct engine_buffer *b = &part->buffers[i];
    planted = b->place == PLAN_ARENA && b->last > b->first && b->first >= 0;
    if (planted) b->last = b->first;
  }
  assert_true(planted);
  run_program();
  assert_memory_equal(before, outputs.at[0], sizeof before);
  instance->poison = true;
  run_program();
  assert_memory_not_equal(before, outputs.at[0], sizeof before);
  close_program();
}

/* The null device compiles, and states that it does not run. */
static void the_null_device(void **state) {
  (void)state;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "null";
  open_program(TENSORS(quern_exp(F32_INPUT("x", 3))), &options);
  EXPECT_ERROR(quern_instance_run(instance, (const void *const *)inputs.at, outputs.at), UNSUPPORTED, "device null");
  close_program();
}

/* What is only planned needs neither a compiler nor a card: nothing is compiled, and nothing runs. */
static void plans_alone(void **state) {
  (void)state;
  static const char *const ways[][2] = {
      {"null", "sm_90"}, {"cuda", NULL}, {"cuda", "sm_80"}, {"opencl", NULL}, {"cpu", NULL}};
  quern_tensor *y = quern_matmul(F32_INPUT("x", 128, 64), F32_INPUT("w", 64, 128));
  y = quern_tanh(quern_reshape(y, QUERN_LIST(128, 2, 64)));
  for (size_t i = 0; i < BASE_COUNT(ways); i++) {
    quern_program_options options = QUERN_INIT(quern_program_options);
    quern_instance *none;
    options.device = ways[i][0];
    options.target = ways[i][1];
    options.plan_only = true;
    EXPECT_OK(quern_program_compile(&program, ctx, TENSORS(y), &options));
    assert_int_equal(program->counts.compiled + program->counts.cached, 0);
    assert_true(program->n_kernels >= 1 && program->counts.unfused == 0 &&
                program->memory.total >= program->memory.arena);
    EXPECT_ERROR(quern_instance_new(&none, program), INVALID, "only planned");
    EXPECT_ERROR(quern_program_save(program, "none"), UNSUPPORTED, "only planned");
    quern_program_free(program);
    program = NULL;
  }
}

/* ---- the hook ------------------------------------------------------------------------------------------ */

static void count_step(void *user, int part, int step, double begin, double end) {
  assert_true(part == 0 && step >= 0 && begin <= end);
  ++*(int *)user;
}

static void every_step_is_told(void **state) {
  (void)state;
  int steps = 0;
  open_program(TENSORS(chain(F32_INPUT("x", 8, 8), 3)), NULL);
  instance->hook = count_step;
  instance->hook_user = &steps;
  run_program();
  assert_int_equal(steps, program->counts.steps);
  close_program();
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(slots_are_told),
                                     TEST(programs_stand_alone),
                                     TEST(instances_are_apart),
                                     TEST(instances_share_states),
                                     TEST(outputs_of_all_kinds),
                                     TEST(no_outputs),
                                     TEST(an_optimizer),
                                     TEST(states_in_place),
                                     TEST(weights_in_a_contraction),
                                     TEST(states_that_exchange),
                                     TEST(states_that_are_only_written),
                                     TEST(memory_is_shared),
                                     TEST(a_memory_limit),
                                     TEST(donated_inputs),
                                     TEST(runs_allocate_nothing),
                                     TEST(poison_finds_a_wrong_plan),
                                     TEST(the_null_device),
                                     TEST(plans_alone),
                                     TEST(every_step_is_told)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
