/* engine/bind.c -- inputs and states by name, and runs of inputs that were bound
** tests: tests/engine/test_states.c
*/
#include "engine/engine.h"

/* ---- finding -------------------------------------------------------------------------------------------- */

/* The name of a list that is nearest, or NULL. */
static const char *nearest(size_t n, const quern_slot *slots, const char *name) {
  const char *best = NULL;
  for (size_t i = 0; i < n; i++) {
    if (slots[i].name == NULL) continue;
    const char *const pair[] = {slots[i].name, best};
    best = best == NULL ? base_nearest(name, pair, 1) : base_nearest(name, pair, 2);
  }
  return best;
}

static quern_status find_slot(const char *what, const char *kind, size_t n, const quern_slot *slots, const char *name,
                              size_t *i) {
  size_t found = n;
  QUERN_CHECK(name != NULL, INVALID, "%s: the name is null", what);
  for (size_t k = 0; k < n; k++) {
    if (slots[k].name == NULL || strcmp(slots[k].name, name) != 0) continue;
    QUERN_CHECK(found == n, INVALID, "%s: %ss %zu and %zu are both named \"%s\"", what, kind, found, k, name);
    found = k;
  }
  const char *near = found == n ? nearest(n, slots, name) : NULL;
  QUERN_CHECK(found < n, INVALID, "%s: the program has no %s \"%s\"%s%s%s", what, kind, name,
              near != NULL ? " HINT: did you mean \"" : "", near != NULL ? near : "", near != NULL ? "\"?" : "");
  *i = found;
  return QUERN_STATUS_OK;
}

quern_status quern_program_find_input(const quern_program *program, const char *name, size_t *i) {
  QUERN_CHECK(program != NULL, INVALID, "program_find_input: the program is null");
  QUERN_CHECK(i != NULL, INVALID, "program_find_input: the place for the number is null");
  return find_slot("program_find_input", "input", program->n_inputs, program->inputs, name, i);
}

quern_status quern_program_find_state(const quern_program *program, const char *name, size_t *i) {
  QUERN_CHECK(program != NULL, INVALID, "program_find_state: the program is null");
  QUERN_CHECK(i != NULL, INVALID, "program_find_state: the place for the number is null");
  return find_slot("program_find_state", "state", program->n_states, program->states, name, i);
}

/* ---- binding -------------------------------------------------------------------------------------------- */

quern_status quern_instance_bind(quern_instance *instance, const char *name, const void *data, size_t bytes) {
  size_t i;
  QUERN_CHECK(instance != NULL, INVALID, "instance_bind: the instance is null");
  const quern_program *program = instance->program;
  QUERN_TRY(find_slot("instance_bind", "input", program->n_inputs, program->inputs, name, &i));
  const quern_slot *slot = &program->inputs[i];
  char shape[128];
  base_shape_text(shape, sizeof shape, slot->rank, slot->dims);
  size_t rows = slot->dynamic_batch ? (size_t)program->dynamic_batch : 1;
  bool fits = slot->dynamic_batch ? bytes <= slot->bytes && bytes % (slot->bytes / rows) == 0 : bytes == slot->bytes;
  QUERN_CHECK(fits, SHAPE, "instance_bind: %zu bytes for input \"%s\", which is %s%s: %s%zu bytes", bytes, name,
              base_dtypes[slot->dtype].name, shape, slot->dynamic_batch ? "so many rows of at most " : "", slot->bytes);
  QUERN_CHECK(data != NULL || bytes == 0, INVALID, "instance_bind: the data of input \"%s\" is null", name);
  instance->bound[i] = data != NULL ? data : "";
  instance->bound_bytes[i] = bytes;
  return QUERN_STATUS_OK;
}

quern_status quern_instance_run_bound(quern_instance *instance, void *const *outputs) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_run_bound: the instance is null");
  const quern_program *program = instance->program;
  for (size_t i = 0; i < program->n_inputs; i++) {
    const quern_slot *slot = &program->inputs[i];
    const char *name = slot->name != NULL ? slot->name : "(without a name)";
    QUERN_CHECK(instance->bound[i] != NULL, STATE, "instance_run_bound: input %zu, \"%s\", is not bound", i, name);
    size_t bytes = engine_slot_bytes(instance, slot);
    QUERN_CHECK(instance->bound_bytes[i] == bytes, SHAPE,
                "instance_run_bound: input \"%s\" is bound to %zu bytes; a run of %lld rows reads %zu", name,
                instance->bound_bytes[i], (long long)instance->rows, bytes);
  }
  return quern_instance_run(instance, instance->bound, outputs);
}
