/* engine/scaler.c -- what became of the steps of a loss scaler, from the states that its steps keep
** see:   optim/step.c, which makes them                    tests: tests/optim/test_step.c, tests/train/test_own.c
*/
#include "engine/engine.h"
#include "quern/optim.h"

/* A scalar state by name; a program without one leaves the value. */
static quern_status read_scalar(const quern_instance *instance, const char *name, double *value) {
  const quern_program *program = instance->program;
  for (size_t i = 0; i < quern_program_state_count(program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    _Alignas(8) unsigned char bytes[8];
    QUERN_TRY(quern_program_state(program, i, &slot));
    if (strcmp(slot.name, name) != 0 || slot.rank != 0) continue;
    QUERN_TRY(quern_instance_get_state(instance, i, bytes));
    *value = base_dtype_is(slot.dtype, BASE_FLOAT) ? base_load_float(slot.dtype, bytes, 0)
                                                   : (double)base_load_int(slot.dtype, bytes, 0);
  }
  return QUERN_STATUS_OK;
}

quern_status quern_scaler_get_stats(const quern_instance *instance, quern_scaler_stats *stats) {
  enum { SCALE, INTERVAL, GOOD, SKIPPED, MADE, N };
  static const char *const names[N] = {"scaler.scale", "scaler.interval", "scaler.good", "scaler.skipped", "step"};
  double values[N] = {0};
  QUERN_CHECK(instance != NULL, INVALID, "scaler_get_stats: the instance is null");
  QUERN_CHECK(stats != NULL, INVALID, "scaler_get_stats: the place for the statistics is null");
  for (size_t i = 0; i < N; i++) QUERN_TRY(read_scalar(instance, names[i], &values[i]));
  QUERN_CHECK(values[SCALE] > 0, STATE, "scaler_get_stats: the program has no scaler that has begun");
  double steps = values[MADE] + values[SKIPPED];
  const quern_scaler_stats found = {.scale = values[SCALE],
                                    .interval = (int64_t)values[INTERVAL],
                                    .good = (int64_t)values[GOOD],
                                    .made = (int64_t)values[MADE],
                                    .skipped = (int64_t)values[SKIPPED],
                                    .success_rate = steps > 0 ? values[MADE] / steps : 1};
  return base_give(quern_scaler_stats, stats, &found, "scaler_get_stats");
}
