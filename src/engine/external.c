/* engine/external.c -- runs on memory that the caller has on the program's device, in a queue of the caller's
** keeps: nothing is staged; the instance's states and arena are its own
** tests: tests/engine/test_external.c
*/
#include "engine/engine.h"

static quern_status check_addresses(const quern_instance *instance, const char *kind, size_t n, const quern_slot *slots,
                                    const void *const *data) {
  int64_t align = engine_align(&instance->program->target.base);
  QUERN_CHECK(n == 0 || data != NULL, INVALID, "instance_run_on: the list of %zu %ss is null", n, kind);
  for (size_t i = 0; i < n; i++) {
    QUERN_CHECK(data[i] != NULL || slots[i].bytes == 0, INVALID, "instance_run_on: %s %zu is null", kind, i);
    QUERN_CHECK((intptr_t)data[i] % align == 0 || instance->stream == NULL, INVALID,
                "instance_run_on: %s %zu is at address %p, not a multiple of %lld", kind, i, data[i], (long long)align);
  }
  return QUERN_STATUS_OK;
}

quern_status quern_instance_run_on(quern_instance *instance, void *queue, const void *const *inputs,
                                   void *const *outputs) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_run_on: the instance is null");
  const quern_program *program = instance->program;
  const struct rt_remote *remote = program->device->remote;
  QUERN_TRY(check_addresses(instance, "input", program->n_inputs, program->inputs, inputs));
  QUERN_TRY(check_addresses(instance, "output", program->n_outputs, program->outputs, (const void *const *)outputs));
  QUERN_CHECK(instance->rows == program->dynamic_batch, INVALID,
              "instance_run_on: %lld rows of the dynamic batch are set; it runs all %lld only",
              (long long)instance->rows, (long long)program->dynamic_batch);
  QUERN_CHECK(queue == NULL || (remote != NULL && remote->set_external_stream != NULL), UNSUPPORTED,
              "instance_run_on: device %s has no queues of the caller's", program->device->name);
  QUERN_CHECK(remote == NULL || remote->set_external_stream != NULL, UNSUPPORTED,
              "instance_run_on: addresses of device %s are not the caller's to know", program->device->name);
  QUERN_TRY(engine_check_states("instance_run_on", instance));
  if (queue != NULL) QUERN_TRY(remote->set_external_stream(instance->stream, queue));
  quern_status status = engine_run(instance, inputs, outputs);
  if (status == QUERN_STATUS_OK) engine_mark_started(instance);
  quern_status back = queue != NULL ? remote->set_external_stream(instance->stream, NULL) : QUERN_STATUS_OK;
  return status != QUERN_STATUS_OK ? status : back;
}
