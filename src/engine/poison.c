/* engine/poison.c -- for tests: before each step, bytes that it may not read are overwritten with 0xff
** Bytes that are dead by the plan must not matter: results stay as they are, or the plan is wrong.
** tests: tests/engine/test_program.c
*/
#include "engine/engine.h"

/* The first byte from `at` on that no live buffer holds, and the end of the gap that begins there. */
static int64_t next_gap(const struct engine_subprogram *subprogram, int step, int64_t at, int64_t *end) {
  for (bool moved = true; moved;) {
    moved = false;
    *end = subprogram->memory.arena;
    for (int i = 0; i < subprogram->n_buffers; i++) {
      const struct engine_buffer *b = &subprogram->buffers[i];
      /* alive before the step: written by an earlier one, and used by this one or later */
      if (b->place != PLAN_ARENA || b->bytes == 0 || b->first >= step || b->last < step) continue;
      if (b->at <= at && at < b->at + b->bytes) {
        at = b->at + b->bytes;
        moved = true;
      } else if (b->at > at && b->at < *end) {
        *end = b->at;
      }
    }
  }
  return at;
}

quern_status engine_poison(const quern_instance *instance, const struct engine_frame *frame, int step) {
  const quern_program *program = instance->program;
  int64_t end = 0;
  for (int64_t at = 0; at < frame->subprogram->memory.arena; at = end) {
    at = next_gap(frame->subprogram, step, at, &end);
    if (at < end) QUERN_TRY(engine_fill(instance, frame->arena + at, 0xff, (size_t)(end - at)));
  }
  return engine_fill(instance, instance->scratch, 0xff, engine_scratch_bytes(program));
}
