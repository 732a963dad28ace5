/* engine/instance_memory.c -- the memory of programs and instances: the host's, or that of a device which has its own
** tests: tests/engine/test_remote.c
*/
#include "engine/engine.h"

static const struct rt_remote *remote_of(const quern_instance *instance) { return instance->program->device->remote; }

/* ---- of instances ------------------------------------------------------------------------------------------ */

/* What an instance needs and cannot have, in the terms of its plan. */
static quern_status refuse(const quern_instance *instance, size_t bytes, int64_t free, int64_t total) {
  const quern_memory_plan *m = &instance->program->memory;
  return base_error(
      QUERN_STATUS_MEMORY,
      "instance_new: %zu bytes are needed on device %s (arena %lld, state %lld, scratch %lld, staging %lld, "
      "without what is shared), and %lld of %lld are free HINT: a memory_limit when compiling, or a smaller "
      "batch",
      bytes, instance->program->device->name, (long long)m->arena, (long long)m->state, (long long)m->scratch,
      (long long)m->staging, (long long)free, (long long)total);
}

quern_status engine_block_new(quern_instance *instance, size_t bytes) {
  const struct rt_remote *remote = remote_of(instance);
  int64_t free, total;
  void *made;
  if (remote == NULL) return QUERN_STATUS_OK;
  QUERN_TRY(engine_device_room(instance->program->device, &free, &total));
  if (total > 0 && (int64_t)bytes > free) return refuse(instance, bytes, free, total);
  QUERN_TRY(remote->alloc(instance->stream, bytes, &made));
  instance->block = made;
  instance->block_bytes = bytes;
  return QUERN_STATUS_OK;
}

void engine_block_free(quern_instance *instance) {
  if (instance->block == NULL) return;
  remote_of(instance)->release(instance->stream, instance->block, instance->block_bytes);
  instance->block = NULL;
}

quern_status engine_memory_new(quern_instance *instance, size_t bytes, char **at) {
  if (instance->block != NULL) {
    *at = instance->block + instance->block_used;
    instance->block_used += engine_piece_bytes(bytes);
    QUERN_ASSERT(instance->block_used <= instance->block_bytes);
    return QUERN_STATUS_OK;
  }
  *at = base_alloc_zero(&instance->heap, bytes);
  return *at != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

void engine_memory_free(quern_instance *instance, char *at, size_t bytes) {
  if (remote_of(instance) == NULL) base_free(&instance->heap, at, bytes);
}

quern_status engine_device_room(const quern_device *device, int64_t *free, int64_t *total) {
  *free = *total = 0;
  if (device->remote == NULL || device->remote->room == NULL) return QUERN_STATUS_OK;
  return device->remote->room(device, free, total);
}

quern_status engine_upload(const quern_instance *instance, void *to, const void *from, size_t bytes) {
  const struct rt_remote *remote = remote_of(instance);
  if (remote != NULL) return remote->upload(instance->stream, to, from, bytes);
  if (bytes > 0) memcpy(to, from, bytes);
  return QUERN_STATUS_OK;
}

quern_status engine_download(const quern_instance *instance, void *to, const void *from, size_t bytes) {
  const struct rt_remote *remote = remote_of(instance);
  if (remote != NULL) return remote->download(instance->stream, to, from, bytes);
  if (bytes > 0) memcpy(to, from, bytes);
  return QUERN_STATUS_OK;
}

quern_status engine_copy_bytes(const quern_instance *instance, void *to, const void *from, size_t bytes) {
  const struct rt_remote *remote = remote_of(instance);
  if (remote != NULL) return remote->copy(instance->stream, to, from, bytes);
  if (bytes > 0 && to != from) memcpy(to, from, bytes);
  return QUERN_STATUS_OK;
}

quern_status engine_fill(const quern_instance *instance, void *at, int byte, size_t bytes) {
  const struct rt_remote *remote = remote_of(instance);
  if (remote != NULL) return remote->fill(instance->stream, at, byte, bytes);
  if (bytes > 0) memset(at, byte, bytes);
  return QUERN_STATUS_OK;
}

quern_status engine_wait(const quern_instance *instance) {
  const struct rt_remote *remote = remote_of(instance);
  return remote != NULL ? remote->wait(instance->stream) : QUERN_STATUS_OK;
}

/* ---- constants -------------------------------------------------------------------------------------------- */

/* The numbers of the iterations of loops, as many as the longest has; of longer ones a number is uploaded in each iteration. */
static int64_t count_iterations(const quern_program *program) {
  enum { MOST_ITERATIONS = 1 << 16 };
  int64_t most = 0;
  if (program->device->remote == NULL) return 0;
  for (int p = 0; p < program->n_subprograms; p++)
    for (int i = 0; i < program->subprograms[p].n_steps; i++) {
      const struct engine_step *step = &program->subprograms[p].steps[i];
      if (step->kind == PLAN_LOOP) most = BASE_MAX(most, step->control->trip);
    }
  return BASE_MIN(most, MOST_ITERATIONS);
}

static quern_status place_iterations(quern_program *program, char *at) {
  size_t bytes = (size_t)program->n_iterations * sizeof(int64_t);
  if (bytes == 0) return QUERN_STATUS_OK;
  int64_t *numbers = base_alloc(&program->heap, bytes);
  if (numbers == NULL) return QUERN_STATUS_MEMORY;
  for (int64_t i = 0; i < program->n_iterations; i++) numbers[i] = i;
  quern_status status = program->device->remote->upload(program->stream, at, numbers, bytes);
  base_free(&program->heap, numbers, bytes);
  program->iterations = at;
  return status;
}

/* Bytes of both on a device with memory of its own. */
static size_t placed_bytes(const quern_program *program) {
  return engine_piece_bytes((size_t)program->memory.constants) + (size_t)program->n_iterations * sizeof(int64_t);
}

quern_status engine_upload_constants(quern_program *program) {
  const struct rt_remote *remote = program->device->remote;
  size_t bytes = (size_t)program->memory.constants;
  void *at;
  program->placed = program->constants;
  program->n_iterations = count_iterations(program);
  if (remote == NULL) return QUERN_STATUS_OK;
  program->placed = NULL;
  QUERN_TRY(remote->open(program->device, &program->stream, &program->heap));
  QUERN_TRY(remote->alloc(program->stream, placed_bytes(program), &at));
  program->placed = at;
  QUERN_TRY(remote->upload(program->stream, at, program->constants, bytes));
  QUERN_TRY(place_iterations(program, program->placed + engine_piece_bytes(bytes)));
  return remote->wait(program->stream);
}

void engine_memory_sum(quern_program *program) {
  const struct rt_remote *remote = program->device->remote;
  quern_memory_plan *m = &program->memory;
  const int64_t own[] = {m->arena, m->state, m->scratch, m->staging};
  m->iterations = count_iterations(program) * (int64_t)sizeof(int64_t);
  m->total = 0;
  for (size_t i = 0; i < BASE_COUNT(own); i++) m->total += (int64_t)engine_piece_bytes((size_t)own[i]);
  int64_t piece = remote != NULL && remote->piece > 0 ? (int64_t)remote->piece : 1;
  int64_t placed = (int64_t)engine_piece_bytes((size_t)m->constants) + m->iterations;
  m->total = (m->total + piece - 1) / piece * piece + (placed + piece - 1) / piece * piece;
}

void engine_free_constants(quern_program *program) {
  const struct rt_remote *remote = program->device != NULL ? program->device->remote : NULL;
  if (remote != NULL && program->stream != NULL) {
    remote->release(program->stream, program->placed, placed_bytes(program));
    remote->close(program->stream);
  }
  base_free(&program->heap, program->constants, (size_t)program->memory.constants);
}
