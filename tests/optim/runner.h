/* tests/optim/runner.h -- a program of a step, and where its states are */
#ifndef TESTS_OPTIM_RUNNER_H
#define TESTS_OPTIM_RUNNER_H
#include "quern/optim.h"
#include "quern/quern.h"
#include "unit.h"

struct runner {
  quern_program *program;
  quern_instance *instance;
};

static inline void compile_on(struct runner *r, const quern_step *step, size_t n, quern_tensor *const *outputs,
                              const char *device, int threads, int64_t limit) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = device;
  options.threads = threads;
  options.memory_limit = limit;
  options.n_updates = quern_step_updates(step, &options.updates);
  EXPECT_OK(quern_program_compile(&r->program, ctx, n, outputs, &options));
  EXPECT_OK(quern_instance_new(&r->instance, r->program));
  EXPECT_OK(quern_instance_zero_states(r->instance)); /* what a test does not set */
}

static inline void compile(struct runner *r, const quern_step *step, size_t n, quern_tensor *const *outputs) {
  compile_on(r, step, n, outputs, "interp", 1, 0);
}

static inline void end(struct runner *r) {
  quern_instance_free(r->instance);
  quern_program_free(r->program);
}

static inline size_t state_of(const struct runner *r, const char *name) {
  for (size_t i = 0; i < quern_program_state_count(r->program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    EXPECT_OK(quern_program_state(r->program, i, &slot));
    if (strcmp(slot.name, name) == 0) return i;
  }
  fail_msg("no state %s", name);
  return 0;
}

static inline void get(const struct runner *r, const char *name, void *data) {
  EXPECT_OK(quern_instance_get_state(r->instance, state_of(r, name), data));
}
static inline void set(const struct runner *r, const char *name, const void *data) {
  EXPECT_OK(quern_instance_set_state(r->instance, state_of(r, name), data));
}

#endif
