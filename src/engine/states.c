/* engine/states.c -- all states of an instance at once: as a model begins, as a file has them, and into a file
** keeps: what a file lacks or has otherwise is found before the first state changes; states that lie on a device go through the host
**        one at a time
** tests: tests/engine/test_states.c
*/
#include <inttypes.h>

#include "engine/engine.h"
#include "io/checkpoint.h"
#include "quern/nn.h"

/* ---- as they begin -------------------------------------------------------------------------------------- */

/* Whether the program of an instance, NULL: any, has the parameter as a state. */
static bool is_wanted(const quern_program *program, const quern_parameter *p) {
  for (size_t i = 0; program != NULL && i < program->n_states; i++)
    if (strcmp(program->states[i].name, p->name) == 0) return true;
  return program == NULL;
}

quern_status engine_initial_program(quern_program **program, quern_model *model, const quern_program *wanted,
                                    const quern_program_options *options) {
  quern_context *ctx = quern_model_context(model);
  BASE_VEC(quern_update) updates = {0};
  quern_status status = QUERN_STATUS_OK;
  *program = NULL;
  for (size_t i = 0; i < quern_model_parameter_count(model) && status == QUERN_STATUS_OK; i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    status = quern_model_parameter(model, i, &p);
    if (status != QUERN_STATUS_OK || p.init.kind == QUERN_INIT_CONSTANT || !is_wanted(wanted, &p)) continue;
    quern_update update = {p.tensor, quern_model_initial(model, i)};
    if (!base_vec_push(&ctx->heap, &updates, update)) status = QUERN_STATUS_MEMORY;
  }
  if (status == QUERN_STATUS_OK) status = quern_context_check(ctx);
  quern_program_options o = *options;
  o.n_updates = updates.n;
  o.updates = updates.at;
  if (status == QUERN_STATUS_OK && updates.n > 0) status = quern_program_compile(program, ctx, 0, NULL, &o);
  base_vec_fini(&ctx->heap, &updates);
  return status;
}

/* Two states of a name that the model has, of two models for instance: which of them is its own is open. */
static quern_status check_names(const quern_program *program, const quern_model *model) {
  for (size_t i = 0; i < program->n_states; i++) {
    const char *name = program->states[i].name;
    for (size_t k = 0; k < i; k++)
      QUERN_CHECK(
          strcmp(program->states[k].name, name) != 0 || quern_model_find(model, name) == NULL, INVALID,
          "instance_init_states: states %zu and %zu are both named \"%s\" HINT: two models in one program need scopes "
          "of their own, such as \"target\"",
          k, i, name);
  }
  return QUERN_STATUS_OK;
}

/* Every element becomes the value. */
static quern_status fill_state(quern_instance *instance, size_t i, double value) {
  const quern_slot *slot = &instance->program->states[i];
  size_t n = slot->bytes / base_dtypes[slot->dtype].size;
  if (value == 0) { /* no page of a state that is zero already is touched */
    if (*instance->known[i]) QUERN_TRY(engine_fill(instance, instance->states[i], 0, slot->bytes));
    *instance->known[i] = true;
    return QUERN_STATUS_OK;
  }
  void *here = quern_instance_state(instance, i), *at = here != NULL ? here : base_alloc(&instance->heap, slot->bytes);
  if (at == NULL) return QUERN_STATUS_MEMORY;
  for (size_t k = 0; k < n; k++) base_convert(slot->dtype, at, k, QUERN_DTYPE_F64, &value, 0);
  if (here != NULL) return QUERN_STATUS_OK;
  quern_status status = quern_instance_set_state(instance, i, at);
  base_free(&instance->heap, at, slot->bytes);
  return status;
}

static quern_status fill_constants(quern_instance *instance, const quern_model *model) {
  const quern_program *program = instance->program;
  size_t found = 0;
  for (size_t i = 0; i < program->n_states; i++) {
    const quern_parameter *p = quern_model_find(model, program->states[i].name);
    if (p == NULL) continue;
    found++;
    const quern_slot *slot = &program->states[i];
    bool same = p->tensor->dtype == slot->dtype && p->tensor->rank == slot->rank &&
                memcmp(p->tensor->dims, slot->dims, (size_t)slot->rank * sizeof *slot->dims) == 0;
    QUERN_CHECK(same, SHAPE, "instance_init_states: the model's \"%s\" is not of the dtype and shape of the program's",
                p->name);
    if (p->init.kind == QUERN_INIT_CONSTANT) QUERN_TRY(fill_state(instance, i, p->init.a));
  }
  QUERN_CHECK(found > 0 || program->n_states == 0, INVALID,
              "instance_init_states: the model has none of the program's states, of which \"%s\" is the first "
              "HINT: another model's program?",
              program->states[0].name);
  return QUERN_STATUS_OK;
}

quern_status engine_initialize(quern_instance *instance, const quern_model *model, const quern_program *initial) {
  QUERN_TRY(fill_constants(instance, model));
  if (initial == NULL) return QUERN_STATUS_OK;
  quern_instance *once;
  QUERN_TRY(quern_instance_new_with(&once, initial, instance));
  quern_status status = quern_instance_run(once, NULL, NULL);
  quern_instance_free(once);
  return status;
}

quern_status quern_instance_init_states(quern_instance *instance, quern_model *model) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_init_states: the instance is null");
  QUERN_CHECK(model != NULL, INVALID, "instance_init_states: the model is null");
  QUERN_TRY(quern_context_check(quern_model_context(model)));
  QUERN_TRY(check_names(instance->program, model));
  quern_program *initial;
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device_handle = instance->program->device;
  options.threads = instance->program->target.base.gpu ? 0 : instance->program->target.base.threads;
  QUERN_TRY(engine_initial_program(&initial, model, instance->program, &options));
  quern_status status = engine_initialize(instance, model, initial);
  quern_program_free(initial);
  return status;
}

quern_status quern_instance_zero_states(quern_instance *instance) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_zero_states: the instance is null");
  for (size_t i = 0; i < instance->program->n_states; i++) *instance->known[i] = true; /* what was not set is zero */
  return QUERN_STATUS_OK;
}

/* ---- from a file ---------------------------------------------------------------------------------------- */

/* A file of tensors that states are read from. */
struct loading {
  quern_instance *instance;
  const quern_safetensors *file;
  const char *path;
  size_t *numbers; /* of each state: its tensor; SIZE_MAX: none */
};

/* Names, of which a message shows the first. */
struct names {
  struct base_str text;
  size_t n;
};
enum { NAMES_SHOWN = 5 };

static void names_add(struct names *names, const char *name) {
  if (names->n < NAMES_SHOWN) base_str_printf(&names->text, "%s\"%.128s\"", names->n > 0 ? ", " : "", name);
  names->n++;
}

/* The error that there are names; OK when there are none. */
static quern_status names_error(struct names *names, const char *path, const char *what, const char *hint) {
  if (names->n == 0) return QUERN_STATUS_OK;
  if (names->n > NAMES_SHOWN) base_str_printf(&names->text, " and %zu more", names->n - NAMES_SHOWN);
  QUERN_TRY(base_str_status(&names->text));
  return base_error(QUERN_STATUS_INVALID, "instance_load_states: '%s' %s %s HINT: %s", path, what, names->text.at,
                    hint);
}

/* The number of the file's tensor of a name; there are a few thousand at most, nearly in the order of the states. */
static size_t find_tensor(const quern_safetensors *file, const char *name, size_t *next, quern_safetensor *tensor) {
  size_t n = quern_safetensors_count(file);
  for (size_t k = 0; k < n; k++) {
    size_t i = (*next + k) % n;
    if (quern_safetensors_get(file, i, tensor) != QUERN_STATUS_OK || strcmp(tensor->name, name) != 0) continue;
    *next = i + 1;
    return i;
  }
  return SIZE_MAX;
}

static quern_status check_type(const struct loading *l, const quern_slot *slot, const quern_safetensor *t) {
  char want[128], got[128];
  bool same = slot->dtype == t->dtype && slot->rank == t->rank &&
              memcmp(slot->dims, t->dims, (size_t)slot->rank * sizeof *slot->dims) == 0;
  QUERN_CHECK(same, SHAPE, "instance_load_states: '%s': tensor \"%s\" is %s%s, the state is %s%s", l->path, t->name,
              base_dtypes[t->dtype].name, base_shape_text(got, sizeof got, t->rank, t->dims),
              base_dtypes[slot->dtype].name, base_shape_text(want, sizeof want, slot->rank, slot->dims));
  return QUERN_STATUS_OK;
}

/* The tensor of every state, and what the file lacks. */
static quern_status match(struct loading *l, struct names *missing) {
  const quern_program *program = l->instance->program;
  size_t next = 0;
  for (size_t i = 0; i < program->n_states; i++) {
    quern_safetensor t;
    l->numbers[i] = find_tensor(l->file, program->states[i].name, &next, &t);
    if (l->numbers[i] == SIZE_MAX)
      names_add(missing, program->states[i].name);
    else
      QUERN_TRY(check_type(l, &program->states[i], &t));
  }
  return QUERN_STATUS_OK;
}

/* What the file has and the program has not. seen: a cleared byte for each tensor. */
static quern_status find_unexpected(const struct loading *l, unsigned char *seen, struct names *unexpected) {
  for (size_t i = 0; i < l->instance->program->n_states; i++)
    if (l->numbers[i] != SIZE_MAX) seen[l->numbers[i]] = 1;
  for (size_t i = 0; i < quern_safetensors_count(l->file); i++) {
    quern_safetensor t;
    QUERN_TRY(quern_safetensors_get(l->file, i, &t));
    if (!seen[i]) names_add(unexpected, t.name);
  }
  return QUERN_STATUS_OK;
}

static quern_status check_file(struct loading *l, unsigned allow) {
  struct base_heap *heap = &l->instance->heap;
  struct names missing = {.n = 0}, unexpected = {.n = 0};
  size_t n = quern_safetensors_count(l->file) + 1;
  unsigned char *seen = base_alloc_zero(heap, n);
  if (seen == NULL) return QUERN_STATUS_MEMORY;
  base_str_init(&missing.text, heap);
  base_str_init(&unexpected.text, heap);
  quern_status status = match(l, &missing);
  if (status == QUERN_STATUS_OK) status = find_unexpected(l, seen, &unexpected);
  if (status == QUERN_STATUS_OK && (allow & QUERN_LOAD_MISSING) == 0)
    status = names_error(&missing, l->path, "lacks the states", "QUERN_LOAD_MISSING leaves them as they are");
  if (status == QUERN_STATUS_OK && (allow & QUERN_LOAD_UNEXPECTED) == 0)
    status = names_error(&unexpected, l->path,
                         "has tensors that are no states of the program:", "QUERN_LOAD_UNEXPECTED passes over them");
  if (status == QUERN_STATUS_OK && missing.n > 0 && missing.n == l->instance->program->n_states)
    status = names_error(&missing, l->path, "has none of the states", "'quern info' lists its names");
  base_str_fini(&missing.text);
  base_str_fini(&unexpected.text);
  base_free(heap, seen, n);
  return status;
}

static quern_status load_state(const struct loading *l, size_t i) {
  quern_instance *instance = l->instance;
  const quern_slot *slot = &instance->program->states[i];
  if (l->numbers[i] == SIZE_MAX) return QUERN_STATUS_OK;
  void *here = quern_instance_state(instance, i);
  if (here != NULL) return quern_safetensors_copy(l->file, l->numbers[i], here, slot->bytes);
  void *at = base_alloc(&instance->heap, slot->bytes);
  if (at == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = quern_safetensors_copy(l->file, l->numbers[i], at, slot->bytes);
  if (status == QUERN_STATUS_OK) status = quern_instance_set_state(instance, i, at);
  base_free(&instance->heap, at, slot->bytes);
  return status;
}

quern_status quern_instance_load_states(quern_instance *instance, const char *path, unsigned allow) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_load_states: the instance is null");
  QUERN_CHECK(path != NULL, INVALID, "instance_load_states: the path is null");
  QUERN_CHECK(allow <= (QUERN_LOAD_MISSING | QUERN_LOAD_UNEXPECTED), INVALID,
              "instance_load_states: there is no strictness %u HINT: QUERN_LOAD_STRICT", allow);
  size_t n = instance->program->n_states, bytes = (n + 1) * sizeof(size_t);
  struct loading l = {.instance = instance, .path = path, .numbers = base_alloc(&instance->heap, bytes)};
  quern_checkpoint *checkpoint = NULL;
  quern_safetensors *opened = NULL;
  quern_status status = l.numbers != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK) status = io_tensors_open(&checkpoint, &opened, path, &instance->heap.user);
  l.file = checkpoint != NULL ? quern_checkpoint_tensors(checkpoint) : opened;
  if (status == QUERN_STATUS_OK) status = check_file(&l, allow);
  for (size_t i = 0; i < n && status == QUERN_STATUS_OK; i++) status = load_state(&l, i);
  quern_checkpoint_close(checkpoint);
  quern_safetensors_close(opened);
  base_free(&instance->heap, l.numbers, bytes);
  return status;
}

/* ---- into a file ---------------------------------------------------------------------------------------- */

/* A file that is being written. */
struct saving {
  quern_instance *instance;
  struct io_layout layout;
};

static quern_status save_state(struct io_out *out, quern_instance *instance, size_t i) {
  size_t bytes = instance->program->states[i].bytes;
  if (instance->stream == NULL) return io_out_add(out, instance->states[i], bytes);
  void *at = base_alloc(&instance->heap, bytes);
  if (at == NULL) return QUERN_STATUS_MEMORY;
  quern_status status = quern_instance_get_state(instance, i, at);
  if (status == QUERN_STATUS_OK) status = io_out_add(out, at, bytes);
  base_free(&instance->heap, at, bytes);
  return status;
}

/* An io_fill. */
static quern_status save_all(struct io_out *out, void *user) {
  const struct saving *saving = user;
  QUERN_TRY(io_out_add(out, saving->layout.header.at, saving->layout.header.n));
  for (size_t i = 0; i < saving->layout.n; i++) QUERN_TRY(save_state(out, saving->instance, saving->layout.order[i]));
  return QUERN_STATUS_OK;
}

static quern_status save(quern_instance *instance, const char *path, const quern_safetensor *tensors) {
  size_t n = instance->program->n_states;
  struct saving saving = {.instance = instance};
  QUERN_TRY(io_safetensors_check("instance_save_states", &instance->heap, n, tensors, true, 0, NULL));
  quern_status status = io_layout_make(&saving.layout, &instance->heap, n, NULL, tensors, 0, NULL);
  if (status == QUERN_STATUS_OK) status = io_file_fill("instance_save_states", path, save_all, &saving);
  io_layout_fini(&saving.layout);
  return status;
}

quern_status quern_instance_save_states(quern_instance *instance, const char *path) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_save_states: the instance is null");
  QUERN_CHECK(path != NULL && path[0] != 0, INVALID, "instance_save_states: the path is %s",
              path == NULL ? "null" : "empty");
  const quern_program *program = instance->program;
  QUERN_TRY(io_safetensors_check_machine());
  for (size_t i = 0; i < program->n_states; i++)
    QUERN_CHECK(*instance->known[i], STATE, "instance_save_states: nothing has set state %zu, \"%s\"", i,
                program->states[i].name);
  size_t bytes = (program->n_states + 1) * sizeof(quern_safetensor);
  quern_safetensor *tensors = base_alloc_zero(&instance->heap, bytes);
  if (tensors == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < program->n_states; i++) {
    const quern_slot *slot = &program->states[i];
    tensors[i] = (quern_safetensor){.name = slot->name, .dtype = slot->dtype, .rank = slot->rank, .dims = slot->dims};
  }
  quern_status status = save(instance, path, tensors);
  base_free(&instance->heap, tensors, bytes);
  return status;
}
