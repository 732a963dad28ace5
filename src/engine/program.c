/* engine/program.c -- the public functions of programs: requests are checked here, and what programs hold is reported here
** tests: tests/engine/test_program.c, tests/api/wrong_program.def
*/
#include "engine/engine.h"

/* ---- checks --------------------------------------------------------------------------------------------- */

static quern_status check_tensor(const quern_context *ctx, const quern_tensor *t, const char *what, size_t i) {
  QUERN_CHECK(t != NULL, INVALID, "program_compile: %s %zu is null", what, i);
  QUERN_CHECK(!ir_is_poison(t), INVALID, "program_compile: %s %zu is the result of a call that failed", what, i);
  QUERN_CHECK(t->node->ctx == ctx, INVALID, "program_compile: %s %zu belongs to another context", what, i);
  return QUERN_STATUS_OK;
}

static quern_status check_updates(const quern_context *ctx, size_t n, const quern_update *updates) {
  QUERN_CHECK(n == 0 || updates != NULL, INVALID, "program_compile: the list of %zu updates is null", n);
  for (size_t i = 0; i < n; i++) {
    char state[IR_TYPE_TEXT], value[IR_TYPE_TEXT];
    QUERN_TRY(check_tensor(ctx, updates[i].state, "the state of update", i));
    QUERN_TRY(check_tensor(ctx, updates[i].value, "the value of update", i));
    QUERN_CHECK(updates[i].state->node->op == IR_STATE, INVALID,
                "program_compile: update %zu is of the result of %s; only a state can be updated", i,
                ir_ops[updates[i].state->node->op].name);
    QUERN_CHECK(ir_same_type(updates[i].state, updates[i].value), SHAPE,
                "program_compile: update %zu: the state \"%s\" is %s, its value %s", i,
                updates[i].state->node->attrs->name, ir_type_text(state, updates[i].state),
                ir_type_text(value, updates[i].value));
    for (size_t k = 0; k < i; k++)
      QUERN_CHECK(updates[k].state != updates[i].state, INVALID,
                  "program_compile: updates %zu and %zu are of the same state \"%s\"", k, i,
                  updates[i].state->node->attrs->name);
  }
  return QUERN_STATUS_OK;
}

/* Inputs, whose first dimension is the same and which have elements. */
static quern_status check_dynamic_batch(const quern_context *ctx, size_t n, quern_tensor *const *leading) {
  QUERN_CHECK(n == 0 || leading != NULL, INVALID, "program_compile: the list of %zu dynamic-batch inputs is null", n);
  for (size_t i = 0; i < n; i++) {
    const quern_tensor *t = leading[i];
    char type[IR_TYPE_TEXT], first[IR_TYPE_TEXT];
    QUERN_TRY(check_tensor(ctx, t, "dynamic-batch input", i));
    QUERN_CHECK(t->node->op == IR_INPUT, INVALID,
                "program_compile: dynamic-batch tensor %zu is the result of %s, not an input", i,
                ir_ops[t->node->op].name);
    QUERN_CHECK(t->rank > 0 && ir_count(t) > 0, SHAPE,
                "program_compile: dynamic-batch input %zu is %s: it needs a first dimension and elements", i,
                ir_type_text(type, t));
    QUERN_CHECK(t->dims[0] == leading[0]->dims[0], SHAPE,
                "program_compile: dynamic-batch inputs 0 and %zu are %s and %s: their first dimensions differ", i,
                ir_type_text(first, leading[0]), ir_type_text(type, t));
  }
  return QUERN_STATUS_OK;
}

/* Kernels of the host run on CPUs only, those of a GPU on GPUs of its dialect; to interpret or to look at, all do. */
static quern_status check_target(const quern_device *device, const char *name) {
  if (name == NULL) return QUERN_STATUS_OK;
  struct cg_target target;
  QUERN_TRY(cg_target_parse(&target, name));
  const struct rt_backend *backend = device->backend;
  bool fits = backend == &rt_cpu      ? !target.base.gpu && cg_target_runs(&target)
              : backend == &rt_opencl ? target.isa == CG_ISA_OPENCL
              : backend == &rt_cuda   ? target.isa == CG_ISA_CUDA
                                      : true;
  QUERN_CHECK(fits, INVALID, "program_compile: device \"%s\" does not run what is made for target \"%s\"", device->name,
              name);
  return QUERN_STATUS_OK;
}

/* By its handle or its name; both must be of the same. */
static quern_status find_device(const quern_program_options *o, const quern_device **device) {
  QUERN_TRY(rt_device_find(device, "program_compile", o->device));
  if (o->device_handle == NULL) return QUERN_STATUS_OK;
  bool named = o->device != NULL && o->device[0] != 0;
  QUERN_CHECK(!named || *device == o->device_handle, INVALID,
              "program_compile: the device is \"%s\" by its name and \"%s\" by its handle", o->device,
              o->device_handle->name);
  *device = o->device_handle;
  return QUERN_STATUS_OK;
}

static quern_status check_options(const quern_context *ctx, const quern_program_options *o,
                                  const quern_device *device) {
  QUERN_TRY(check_target(device, o->target));
  QUERN_CHECK(o->threads >= 0 && o->threads <= RT_MAX_THREADS, INVALID,
              "program_compile: %d threads; expected 0 (as many as there are) to %d", o->threads, RT_MAX_THREADS);
  QUERN_CHECK(o->recompute_every >= QUERN_RECOMPUTE_SQRT, INVALID,
              "program_compile: recompute_every is %lld; expected a number of kernels, 0 or QUERN_RECOMPUTE_SQRT",
              (long long)o->recompute_every);
  QUERN_CHECK(o->optimize == QUERN_OPTIMIZE_DEFAULT || o->optimize == QUERN_OPTIMIZE_NONE, INVALID,
              "program_compile: optimize is %d; expected QUERN_OPTIMIZE_DEFAULT or QUERN_OPTIMIZE_NONE",
              (int)o->optimize);
  QUERN_CHECK(o->compiler_limit >= 0, INVALID, "program_compile: a limit of %lld bytes for compilers",
              (long long)o->compiler_limit);
  QUERN_CHECK(o->memory_limit >= 0, INVALID, "program_compile: a memory limit of %lld bytes",
              (long long)o->memory_limit);
  QUERN_CHECK(o->numerics == QUERN_NUMERICS_EXACT || o->numerics == QUERN_NUMERICS_FAST ||
                  o->numerics == QUERN_NUMERICS_TF32,
              INVALID, "program_compile: there are no numerics %d", (int)o->numerics);
  QUERN_CHECK(o->optimize_for == QUERN_OPTIMIZE_FOR_LATENCY || o->optimize_for == QUERN_OPTIMIZE_FOR_THROUGHPUT,
              INVALID, "program_compile: there is nothing %d to optimize for", (int)o->optimize_for);
  QUERN_TRY(check_updates(ctx, o->n_updates, o->updates));
  QUERN_CHECK(o->n_donated == 0 || o->donated != NULL, INVALID,
              "program_compile: the list of %zu donated inputs is null", o->n_donated);
  for (size_t i = 0; i < o->n_donated; i++) QUERN_TRY(check_tensor(ctx, o->donated[i], "donated input", i));
  return check_dynamic_batch(ctx, o->n_dynamic_batch, o->dynamic_batch);
}

/* ---- compiling ------------------------------------------------------------------------------------------ */

quern_status engine_request_make(struct engine_request *request, quern_context *ctx, size_t n,
                                 quern_tensor *const *outputs, const quern_program_options *options) {
  *request = (struct engine_request){.ctx = ctx, .n_outputs = n, .outputs = outputs};
  QUERN_CHECK(ctx != NULL, INVALID, "program_compile: the context is null");
  quern_program_options *o = &request->options;
  QUERN_TRY(base_take(quern_program_options, o, options, "program_compile"));
  if (o->least_limit != NULL) *o->least_limit = 0;
  if (o->least_compiler_limit != NULL) *o->least_compiler_limit = 0;
  QUERN_TRY(base_env_read());
  QUERN_TRY(quern_context_check(ctx));
  QUERN_CHECK(n == 0 || outputs != NULL, INVALID, "program_compile: the list of %zu outputs is null", n);
  for (size_t i = 0; i < n; i++) QUERN_TRY(check_tensor(ctx, outputs[i], "output", i));
  QUERN_TRY(find_device(o, &request->device));
  QUERN_TRY(check_options(ctx, o, request->device));
  QUERN_TRY(ir_fetch(ctx, n, outputs));
  for (size_t i = 0; i < o->n_updates; i++) QUERN_TRY(ir_fetch(ctx, 1, &o->updates[i].value));
  request->ref = base_env_int(BASE_ENV_REF) == 1;
  request->verify = base_env_has(BASE_ENV_VERBOSE, "check");
#if QUERN_ASSERTS
  request->verify = true;
#endif
  return QUERN_STATUS_OK;
}

quern_status quern_program_compile(quern_program **program, quern_context *ctx, size_t n, quern_tensor *const *outputs,
                                   const quern_program_options *options) {
  struct engine_request request;
  QUERN_CHECK(program != NULL, INVALID, "program_compile: the place for the program is null");
  *program = NULL;
  QUERN_TRY(engine_request_make(&request, ctx, n, outputs, options));
  return engine_compile(program, &request);
}

quern_status engine_program_empty(quern_program **program, const quern_allocator *allocator) {
  struct base_heap heap;
  base_heap_init(&heap, allocator);
  quern_program *made = base_alloc_zero(&heap, sizeof *made);
  *program = made;
  if (made == NULL) return QUERN_STATUS_MEMORY;
  made->heap = heap;
  made->memory.size = sizeof made->memory;
  base_arena_init(&made->arena, &made->heap);
  atomic_init(&made->users, 1);
  return QUERN_STATUS_OK;
}

void engine_program_set_device(quern_program *program, const quern_device *device) {
  program->device = device;
  rt_device_hold(device);
}

quern_status engine_program_new(quern_program **program, const struct engine_request *request) {
  QUERN_TRY(engine_program_empty(program, &request->ctx->heap.user));
  engine_program_set_device(*program, request->device);
  return QUERN_STATUS_OK;
}

void engine_program_strip(quern_program *program) {
  const struct rt_object *objects;
  const struct rt_backend *backend = program->device->backend;
  bool planned = program->module == NULL;
  bool compiled = !planned && backend->objects != NULL && backend->objects(program->module, &objects) > 0;
  if (!planned && !compiled) return;
  for (int i = 0; i < program->n_kernels; i++) kern_strip(program->kernels[i]);
}

void quern_program_free(quern_program *program) {
  if (program == NULL || atomic_fetch_sub(&program->users, 1) > 1) return;
  if (program->module != NULL) program->device->backend->free(program->module);
  for (int i = 0; i < program->n_kernels; i++) kern_free(program->kernels[i]);
  engine_free_constants(program);
  base_arena_fini(&program->arena);
  quern_context_free(program->ref_ctx);
  if (program->device != NULL) rt_device_drop(program->device);
  struct base_heap heap = program->heap;
  base_free(&heap, program, sizeof *program);
}

/* ---- what there is -------------------------------------------------------------------------------------- */

size_t quern_program_input_count(const quern_program *program) { return program != NULL ? program->n_inputs : 0; }
size_t quern_program_output_count(const quern_program *program) { return program != NULL ? program->n_outputs : 0; }
size_t quern_program_state_count(const quern_program *program) { return program != NULL ? program->n_states : 0; }

const quern_device *quern_program_device(const quern_program *program) {
  return program != NULL ? program->device : NULL;
}

int64_t quern_program_dynamic_batch(const quern_program *program) {
  return program != NULL ? program->dynamic_batch : 0;
}

static quern_status get_slot(const char *what, quern_slot_role role, const quern_program *program, size_t n,
                             const quern_slot *slots, size_t i, quern_slot *slot) {
  static const char *const kinds[] = {"input", "output", "state"};
  QUERN_CHECK(program != NULL, INVALID, "%s: the program is null", what);
  QUERN_CHECK(slot != NULL, INVALID, "%s: the place for the slot is null", what);
  QUERN_CHECK(i < n, INVALID, "%s: there is no %s %zu: the program has %zu", what, kinds[role], i, n);
  quern_slot known = slots[i];
  known.role = role;
  return base_give(quern_slot, slot, &known, what);
}

quern_status quern_program_input(const quern_program *program, size_t i, quern_slot *slot) {
  return get_slot("program_input", QUERN_SLOT_INPUT, program, quern_program_input_count(program),
                  program != NULL ? program->inputs : NULL, i, slot);
}

quern_status quern_program_output(const quern_program *program, size_t i, quern_slot *slot) {
  return get_slot("program_output", QUERN_SLOT_OUTPUT, program, quern_program_output_count(program),
                  program != NULL ? program->outputs : NULL, i, slot);
}

quern_status quern_program_state(const quern_program *program, size_t i, quern_slot *slot) {
  return get_slot("program_state", QUERN_SLOT_STATE, program, quern_program_state_count(program),
                  program != NULL ? program->states : NULL, i, slot);
}

quern_status quern_program_get_memory(const quern_program *program, quern_memory_plan *memory) {
  QUERN_CHECK(program != NULL, INVALID, "program_get_memory: the program is null");
  QUERN_CHECK(memory != NULL, INVALID, "program_get_memory: the place for the figures is null");
  return base_give(quern_memory_plan, memory, &program->memory, "program_get_memory");
}

quern_status quern_program_get_stats(const quern_program *program, quern_program_stats *stats) {
  QUERN_CHECK(program != NULL, INVALID, "program_get_stats: the program is null");
  QUERN_CHECK(stats != NULL, INVALID, "program_get_stats: the place for the figures is null");
  return base_give(quern_program_stats, stats, &program->counts, "program_get_stats");
}
