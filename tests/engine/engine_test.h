/* tests/engine/engine_test.h -- programs against the evaluator
** expect_same compiles outputs on the interpreter of kernels, runs them on random inputs, and compares them with
** quern_eval_reference; what the sums of floats allow may differ.
*/
#ifndef TESTS_ENGINE_ENGINE_TEST_H
#define TESTS_ENGINE_ENGINE_TEST_H
#include <math.h>

#include "engine/engine.h"
#include "quern/quern.h"
#include "unit.h"

enum { MOST_SLOTS = 16, MOST_BYTES = 4096 };

#define TENSORS(...)                                                                                                   \
  (size_t)(sizeof((quern_tensor *[]){__VA_ARGS__}) / sizeof(quern_tensor *)), (quern_tensor *[]) { __VA_ARGS__ }
#define F32_INPUT(name, ...) quern_input(ctx, name, QUERN_DTYPE_F32, QUERN_LIST(__VA_ARGS__))
#define I64_INPUT(name, ...) quern_input(ctx, name, QUERN_DTYPE_I64, QUERN_LIST(__VA_ARGS__))
#define F32_STATE(name, ...) quern_state(ctx, name, QUERN_DTYPE_F32, QUERN_LIST(__VA_ARGS__))

static quern_program *program;
static quern_instance *instance;

/* The memory of a program's slots. */
struct slots {
  size_t n;
  _Alignas(64) char data[MOST_SLOTS][MOST_BYTES];
  void *at[MOST_SLOTS];
};
static struct slots inputs, outputs, states;

/* Room for the elements of slots, filled with numbers: of floats around 0, of integers small ones. */
static inline void slots_fill(struct slots *s, size_t n, const quern_slot *of, uint64_t seed) {
  assert_true(n <= MOST_SLOTS);
  s->n = n;
  for (size_t i = 0; i < n; i++) {
    double x[MOST_BYTES];
    size_t count = of[i].bytes / quern_dtype_size(of[i].dtype);
    assert_true(of[i].bytes <= MOST_BYTES);
    s->at[i] = s->data[i];
    test_fill(count, x, seed + i);
    for (size_t k = 0; k < count; k++) {
      if (base_dtype_is(of[i].dtype, BASE_FLOAT))
        base_store_float(of[i].dtype, s->data[i], k, 2 * x[k]);
      else
        base_store_int(of[i].dtype, s->data[i], k, (uint64_t)(int64_t)floor(5 * x[k]));
    }
  }
}

static inline void close_program(void) {
  quern_instance_free(instance);
  quern_program_free(program);
  instance = NULL;
  program = NULL;
}

/* Makes an instance of the program with inputs, room for outputs, and states. */
static inline void fill_program(void) {
  EXPECT_OK(quern_instance_new(&instance, program));
  slots_fill(&inputs, program->n_inputs, program->inputs, 1);
  slots_fill(&outputs, program->n_outputs, program->outputs, 100);
  slots_fill(&states, program->n_states, program->states, 200);
  for (size_t i = 0; i < states.n; i++) EXPECT_OK(quern_instance_set_state(instance, i, states.at[i]));
}

/* Compiles and makes an instance. */
static inline void open_program(size_t n, quern_tensor *const *roots, const quern_program_options *options) {
  quern_program_options o = QUERN_INIT(quern_program_options);
  if (options != NULL) o = *options;
  if (o.device == NULL) o.device = "interp";
  EXPECT_OK(quern_program_compile(&program, ctx, n, roots, &o));
  fill_program();
}

static inline void run_program(void) {
  EXPECT_OK(quern_instance_run(instance, (const void *const *)inputs.at, outputs.at));
}

static inline void expect_near(const quern_tensor *t, const void *got, const void *expected) {
  bool floats = base_dtype_is(t->dtype, BASE_FLOAT);
  for (size_t i = 0; i < (size_t)ir_count(t); i++) {
    double x = floats ? base_load_float(t->dtype, got, i) : (double)(int64_t)base_load_int(t->dtype, got, i);
    double y = floats ? base_load_float(t->dtype, expected, i) : (double)(int64_t)base_load_int(t->dtype, expected, i);
    if (x == y || (isnan(x) && isnan(y)) || (floats && fabs(x - y) <= 1e-5 * fmax(1, fabs(y)))) continue;
    print_error("element %zu is %.9g, expected %.9g\n", i, x, y);
    fail();
  }
}

/* The evaluator's values of roots with the inputs and states that the program was given. */
static inline void eval_roots(size_t n, quern_tensor *const *roots, char dst[][MOST_BYTES]) {
  quern_feed feeds[2 * MOST_SLOTS];
  void *at[MOST_SLOTS];
  struct ir_order order;
  size_t n_inputs = 0, n_states = 0;
  assert_true(n <= MOST_SLOTS);
  EXPECT_OK(ir_topo(ctx, n, roots, &order));
  for (size_t i = 0; i < order.n; i++) {
    struct ir_node *node = order.at[i];
    if (node->op == IR_INPUT) {
      feeds[n_inputs + n_states] = (quern_feed){&node->out[0], inputs.at[n_inputs]};
      n_inputs++;
    } else if (node->op == IR_STATE) {
      feeds[n_inputs + n_states] = (quern_feed){&node->out[0], states.at[n_states]};
      n_states++;
    }
  }
  ir_order_fini(ctx, &order);
  for (size_t i = 0; i < n; i++) at[i] = dst[i];
  EXPECT_OK(quern_eval_reference(ctx, n, roots, at, n_inputs + n_states, feeds));
}

/* What the program computes is what the evaluator says; twice, and with dead bytes overwritten. */
static inline void expect_same(size_t n, quern_tensor *const *roots, const quern_program_options *options) {
  static char expected[MOST_SLOTS][MOST_BYTES];
  open_program(n, roots, options);
  eval_roots(n, roots, expected);
  for (int time = 0; time < 3; time++) {
    instance->poison = time == 2;
    run_program();
    for (size_t i = 0; i < n; i++) expect_near(roots[i], outputs.at[i], expected[i]);
  }
  close_program();
}

/* The same, optimized and not. */
static inline void expect_all(size_t n, quern_tensor *const *roots) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  expect_same(n, roots, &options);
  options.optimize = QUERN_OPTIMIZE_NONE;
  expect_same(n, roots, &options);
}

#endif
