/* tests/api/test_wrong_program.c -- wrong calls of programs and instances */
#include "api/wrong.h"

static char space[64]; /* for elements */
static quern_program *program;
static quern_instance *instance;
static quern_slot slot = QUERN_INIT(quern_slot);
static size_t number;
static quern_memory_plan memory = QUERN_INIT(quern_memory_plan);
static quern_program_stats counts = QUERN_INIT(quern_program_stats);
static quern_run_stats run_counts = QUERN_INIT(quern_run_stats);
static const quern_program_options interp = {sizeof interp, "interp", .threads = 1};

static quern_tensor *leaf(int rank, const int64_t *dims) { return quern_input(ctx, "z", QUERN_DTYPE_F32, rank, dims); }

static quern_tensor *state_leaf(void) { return quern_state(ctx, "s", QUERN_DTYPE_F32, QUERN_LIST(2)); }

/* ---- compiling: options that differ from good ones in a field ------------------------------------------ */

static quern_status compile_with(quern_program_options options) {
  return quern_program_compile(&program, ctx, 1, (quern_tensor *[]){quern_exp(T(F32, 2))}, &options);
}

/* Rows leave it open. */
static quern_device *a_device(const char *name) {
  quern_device *device;
  assert_int_equal(quern_device_open(&device, name), QUERN_STATUS_OK);
  return device;
}

#define compile_option(...) compile_with((quern_program_options){.size = sizeof(quern_program_options), __VA_ARGS__})

static quern_status compile_update(quern_tensor *state, quern_tensor *value) {
  return compile_option(.n_updates = 1, .updates = &(quern_update){state, value});
}

static quern_status update_twice(void) {
  quern_tensor *s = state_leaf();
  return compile_option(.n_updates = 2, .updates = (quern_update[]){{s, T(F32, 2)}, {s, quern_neg(s)}});
}

static quern_status compile_tight(void) {
  quern_program_options options = interp;
  quern_tensor *x = quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(8, 8));
  quern_tensor *y = quern_softmax(quern_matmul(quern_softmax(quern_matmul(x, x), 1), x), 0);
  options.memory_limit = 1;
  return quern_program_compile(&program, ctx, 1, &y, &options);
}

/* ---- a program x + s, and an instance of it: made before a condition or a call, freed after it --------- */

static quern_program *make_program(void) {
  quern_tensor *y = quern_add(quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(2)), state_leaf());
  assert_int_equal(quern_program_compile(&program, ctx, 1, &y, &interp), QUERN_STATUS_OK);
  return program;
}

static quern_instance *make_instance(void) {
  assert_int_equal(quern_instance_new(&instance, make_program()), QUERN_STATUS_OK);
  return instance;
}

static quern_status free_after(quern_status status) {
  quern_instance_free(instance);
  quern_program_free(program);
  instance = NULL;
  program = NULL;
  return status;
}

#define with_program(condition)                                                                                        \
  (make_program(), free_after((condition) ? QUERN_STATUS_OK : QUERN_STATUS_INTERNAL) == QUERN_STATUS_OK)
#define on_program(call) (make_program(), free_after(call))
#define on_instance(call) (make_instance(), free_after(call))

static bool program_is_null_after_failure(void) {
  quern_program *failed = make_program();
  bool refused = quern_program_compile(&failed, ctx, 1, (quern_tensor *[]){NULL}, &interp) == QUERN_STATUS_INVALID;
  quern_program_free(failed);
  return free_after(QUERN_STATUS_OK) == QUERN_STATUS_OK && refused && failed == NULL;
}

#define ROWS "api/wrong_program.def"
#include "api/rows.h"
