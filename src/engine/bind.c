/* engine/bind.c -- inputs, outputs and states by name, and runs of what was bound
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

/* The slots of a role. */
static const quern_slot *slots_of(const quern_program *program, quern_slot_role role, size_t *n) {
  const size_t counts[] = {program->n_inputs, program->n_outputs, program->n_states};
  const quern_slot *const slots[] = {program->inputs, program->outputs, program->states};
  *n = counts[role];
  return slots[role];
}

static const char *const kinds[] = {"input", "output", "state"};

static quern_status find(const char *what, quern_slot_role role, const quern_program *program, const char *name,
                         size_t *i) {
  size_t n;
  QUERN_CHECK(program != NULL, INVALID, "%s: the program is null", what);
  QUERN_CHECK(i != NULL, INVALID, "%s: the place for the number is null", what);
  const quern_slot *slots = slots_of(program, role, &n);
  return find_slot(what, kinds[role], n, slots, name, i);
}

quern_status quern_program_find_input(const quern_program *program, const char *name, size_t *i) {
  return find("program_find_input", QUERN_SLOT_INPUT, program, name, i);
}

quern_status quern_program_find_output(const quern_program *program, const char *name, size_t *i) {
  return find("program_find_output", QUERN_SLOT_OUTPUT, program, name, i);
}

quern_status quern_program_find_state(const quern_program *program, const char *name, size_t *i) {
  return find("program_find_state", QUERN_SLOT_STATE, program, name, i);
}

/* ---- binding -------------------------------------------------------------------------------------------- */

/* The number of the slot of that name, when so many bytes at data can be bound to it. */
static quern_status check_bound(const char *what, quern_slot_role role, const quern_instance *instance,
                                const char *name, const void *data, size_t bytes, size_t *i) {
  size_t n;
  char shape[128];
  QUERN_CHECK(instance != NULL, INVALID, "%s: the instance is null", what);
  const quern_program *program = instance->program;
  const quern_slot *slots = slots_of(program, role, &n);
  QUERN_TRY(find_slot(what, kinds[role], n, slots, name, i));
  const quern_slot *slot = &slots[*i];
  base_shape_text(shape, sizeof shape, slot->rank, slot->dims);
  size_t rows = slot->dynamic_batch ? (size_t)program->dynamic_batch : 1;
  bool fits = slot->dynamic_batch ? bytes <= slot->bytes && bytes % (slot->bytes / rows) == 0 : bytes == slot->bytes;
  QUERN_CHECK(fits, SHAPE, "%s: %zu bytes for %s \"%s\", which is %s%s: %s%zu bytes", what, bytes, kinds[role], name,
              base_dtypes[slot->dtype].name, shape, slot->dynamic_batch ? "so many rows of at most " : "", slot->bytes);
  QUERN_CHECK(data != NULL || bytes == 0, INVALID, "%s: the data of %s \"%s\" is null", what, kinds[role], name);
  return QUERN_STATUS_OK;
}

quern_status quern_instance_bind(quern_instance *instance, const char *name, const void *data, size_t bytes) {
  size_t i;
  QUERN_TRY(check_bound("instance_bind", QUERN_SLOT_INPUT, instance, name, data, bytes, &i));
  instance->bound[i] = data != NULL ? data : "";
  instance->bound_bytes[i] = bytes;
  return QUERN_STATUS_OK;
}

quern_status quern_instance_bind_output(quern_instance *instance, const char *name, void *data, size_t bytes) {
  static char nothing; /* of no bytes */
  size_t i;
  QUERN_TRY(check_bound("instance_bind_output", QUERN_SLOT_OUTPUT, instance, name, data, bytes, &i));
  instance->bound_outputs[i] = data != NULL ? data : &nothing;
  instance->bound_output_bytes[i] = bytes;
  return QUERN_STATUS_OK;
}

/* Whether a slot is bound, to as many bytes as a run reads or writes. */
static quern_status check_slot(const quern_instance *instance, quern_slot_role role, size_t i, const void *data,
                               size_t bound) {
  size_t n;
  const quern_slot *slot = &slots_of(instance->program, role, &n)[i];
  const char *name = slot->name != NULL ? slot->name : "(without a name)";
  QUERN_CHECK(data != NULL, STATE, "instance_run_bound: %s %zu, \"%s\", is not bound", kinds[role], i, name);
  size_t bytes = engine_slot_bytes(instance, slot);
  QUERN_CHECK(bound == bytes, SHAPE, "instance_run_bound: %s \"%s\" is bound to %zu bytes; a run of %lld rows %s %zu",
              kinds[role], name, bound, (long long)instance->rows, role == QUERN_SLOT_INPUT ? "reads" : "writes",
              bytes);
  return QUERN_STATUS_OK;
}

quern_status quern_instance_run_bound(quern_instance *instance, void *const *outputs) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_run_bound: the instance is null");
  const quern_program *program = instance->program;
  for (size_t i = 0; i < program->n_inputs; i++)
    QUERN_TRY(check_slot(instance, QUERN_SLOT_INPUT, i, instance->bound[i], instance->bound_bytes[i]));
  bool wanted = program->device->remote == NULL; /* a device with memory of its own leaves out what is not bound */
  for (size_t i = 0; outputs == NULL && i < program->n_outputs; i++)
    if (wanted || instance->bound_outputs[i] != NULL)
      QUERN_TRY(
          check_slot(instance, QUERN_SLOT_OUTPUT, i, instance->bound_outputs[i], instance->bound_output_bytes[i]));
  return quern_instance_run(instance, instance->bound, outputs != NULL ? outputs : instance->bound_outputs);
}
