/* engine/memory.c -- the memory of programs and instances: the host's, or that of a device which has its own
** tests: tests/engine/test_remote.c
*/
#include "engine/engine.h"

static const struct rt_remote *remote_of(const quern_instance *instance) { return instance->program->device->remote; }

quern_status engine_memory_new(quern_instance *instance, size_t bytes, char **at) {
  const struct rt_remote *remote = remote_of(instance);
  void *made = NULL;
  if (remote != NULL) {
    quern_status status = remote->alloc(instance->stream, bytes, &made);
    *at = made;
    return status;
  }
  *at = base_alloc_zero(&instance->heap, bytes);
  return *at != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

void engine_memory_free(quern_instance *instance, char *at, size_t bytes) {
  const struct rt_remote *remote = remote_of(instance);
  if (remote == NULL)
    base_free(&instance->heap, at, bytes);
  else if (instance->stream != NULL)
    remote->release(instance->stream, at, bytes);
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

quern_status engine_place_constants(quern_program *program) {
  const struct rt_remote *remote = program->device->remote;
  size_t bytes = (size_t)program->memory.constants;
  void *at;
  program->placed = program->constants;
  if (remote == NULL) return QUERN_STATUS_OK;
  program->placed = NULL;
  QUERN_TRY(remote->open(&program->stream, &program->heap));
  QUERN_TRY(remote->alloc(program->stream, bytes, &at));
  program->placed = at;
  QUERN_TRY(remote->upload(program->stream, at, program->constants, bytes));
  return remote->wait(program->stream);
}

void engine_free_constants(quern_program *program) {
  const struct rt_remote *remote = program->device != NULL ? program->device->remote : NULL;
  if (remote != NULL && program->stream != NULL) {
    remote->release(program->stream, program->placed, (size_t)program->memory.constants);
    remote->close(program->stream);
  }
  base_free(&program->heap, program->constants, (size_t)program->memory.constants);
}
