/* engine/dynamic_batch.c -- a dynamic batch that is given at each run: what has its rows, and runs with fewer than the most
** Kernels and plan are those of the most rows; a run of fewer skips the tasks that write none of its rows. What lies behind them
** in memory is anything, and nobody's. So that a run reads and writes no more than its rows of the caller's memory, inputs and
** outputs that have rows lie in memory of the instance then; in a run of the most they are the caller's.
** keeps: a run allocates nothing
** see:   docs/design/003-dynamic-batch.md, pass/dynamic_batch.c, kern/batch_tasks.c      tests: tests/engine/test_dynamic_batch.c
*/
#include "engine/engine.h"

/* ---- compiling ------------------------------------------------------------------------------------------- */

/* Outputs have their rows one after another, or none; states have none. */
static quern_status check_roots(const struct engine_build *b) {
  const struct engine_request *request = b->request;
  const struct pass_graph *main = &b->subgraphs.at[0].roots;
  const struct pass_dynamic_batch *rows = &b->subgraphs.at[0].rows;
  for (size_t i = 0; i < main->n_roots; i++) {
    const quern_tensor *t = main->roots[i];
    char type[IR_TYPE_TEXT];
    if (pass_dynamic_batch_get(rows, t) == 0) continue;
    QUERN_CHECK(i < request->n_outputs, UNSUPPORTED,
                "dynamic batch: the new value of state \"%s\" depends on rows of the dynamic batch of %lld",
                request->options.updates[i - request->n_outputs].state->node->attrs->name, (long long)rows->most);
    QUERN_CHECK(
        pass_dynamic_batch_is_outermost(rows, t), UNSUPPORTED,
        "dynamic batch: output %zu is %s, in which the rows of the dynamic batch of %lld do not follow each other "
        "HINT: permute it so that they are its first axis",
        i, ir_type_text(type, t), (long long)rows->most);
  }
  return QUERN_STATUS_OK;
}

quern_status engine_find_dynamic_rows(struct engine_build *b) {
  const quern_program_options *options = &b->request->options;
  if (options->n_dynamic_batch == 0) return QUERN_STATUS_OK;
  int64_t most = options->dynamic_batch[0]->dims[0];
  struct pass_dynamic_batch *rows = &b->subgraphs.at[0].rows;
  pass_dynamic_batch_init(rows, &b->ctx->heap, most);
  for (size_t i = 0; i < options->n_dynamic_batch; i++) {
    quern_tensor *t = options->dynamic_batch[i];
    if (pass_dynamic_batch_get(rows, t) == 0) QUERN_TRY(pass_dynamic_batch_set(rows, t, ir_count(t) / most));
  }
  QUERN_TRY(pass_dynamic_batch_find(rows, &b->subgraphs.at[0].roots));
  return check_roots(b);
}

/* How many control nodes run a subgraph. */
static int count_users(const struct engine_build *b, int subgraph) {
  int n = 0;
  for (size_t u = 0; u < b->subgraphs.n; u++) {
    const struct pass_groups *groups = &b->subgraphs.at[u].groups;
    for (size_t i = 0; i < groups->groups.n; i++) {
      int body, other;
      if (groups->groups.at[i]->kind != PASS_KIND_CONTROL) continue;
      engine_find_bodies(b, groups->groups.at[i]->anchor, &body, &other);
      n += (body == subgraph) + (other == subgraph);
    }
  }
  return n;
}

quern_status engine_find_body_rows(struct engine_build *b) {
  struct pass_dynamic_batch *rows = &b->subgraphs.at[0].rows;
  const struct pass_groups *groups = &b->subgraphs.at[0].groups;
  for (size_t i = 0; i < groups->groups.n && rows->most > 0; i++) {
    const struct ir_node *node = groups->groups.at[i]->anchor;
    int body, other;
    if (groups->groups.at[i]->kind != PASS_KIND_CONTROL || node->op == IR_IF) continue;
    engine_find_bodies(b, node, &body, &other);
    if (count_users(b, body) > 1) continue;
    pass_dynamic_batch_init(&b->subgraphs.at[body].rows, &b->ctx->heap, rows->most);
    QUERN_TRY(pass_dynamic_batch_body(&b->subgraphs.at[body].rows, rows, node));
  }
  return QUERN_STATUS_OK;
}

const struct pass_dynamic_batch *engine_rows(const struct engine_subgraph *subgraph) {
  return subgraph->rows.most > 0 ? &subgraph->rows : NULL;
}

/* Whether a param or a result of the main subgraph has rows. */
static bool has_rows(const struct engine_build *b, const quern_tensor *t) {
  const struct pass_dynamic_batch *rows = engine_rows(&b->subgraphs.at[0]);
  return rows != NULL && pass_dynamic_batch_get(rows, t) > 0;
}

/* Whether the memory of a param or a result of the main subgraph is not the caller's, or not in all runs. */
static bool is_staged(const struct engine_build *b, const quern_tensor *t) {
  return b->program->device->remote != NULL || has_rows(b, t);
}

bool engine_uploads_async(const quern_device *device, int64_t bytes) {
  enum { LEAST = 1 << 20 }; /* less is uploaded as fast as it is copied */
  return device->remote != NULL && device->remote->upload_async != NULL && bytes >= LEAST;
}

int64_t engine_staging_bytes(const struct engine_build *b) {
  int64_t bytes = 0;
  for (size_t i = 0; i < b->inputs.n; i++)
    if (is_staged(b, b->inputs.at[i]))
      bytes += engine_room(&b->program->target.base, (int64_t)ir_bytes(b->inputs.at[i]));
  if (engine_uploads_async(b->program->device, bytes)) bytes *= 2;
  for (size_t i = 0; i < b->request->n_outputs; i++) {
    const quern_tensor *t = b->subgraphs.at[0].roots.roots[i];
    if (is_staged(b, t)) bytes += engine_room(&b->program->target.base, (int64_t)ir_bytes(t));
  }
  return bytes;
}

void engine_mark_rows(struct engine_build *b) {
  quern_program *program = b->program;
  program->dynamic_batch = b->subgraphs.at[0].rows.most;
  program->memory.staging = engine_staging_bytes(b);
  for (size_t i = 0; i < program->n_inputs; i++) program->inputs[i].dynamic_batch = has_rows(b, b->inputs.at[i]);
  for (size_t i = 0; i < program->n_outputs; i++)
    program->outputs[i].dynamic_batch = has_rows(b, b->subgraphs.at[0].roots.roots[i]);
}

/* ---- instances ------------------------------------------------------------------------------------------- */

quern_status engine_open_staging(quern_instance *instance) {
  const quern_program *program = instance->program;
  size_t n = program->n_inputs + program->n_outputs;
  instance->rows = program->dynamic_batch;
  if (instance->unstaged || (program->dynamic_batch == 0 && instance->stream == NULL)) return QUERN_STATUS_OK;
  instance->staged = base_arena_alloc(&instance->frames, (n + 1) * sizeof *instance->staged);
  if (instance->staged == NULL) return QUERN_STATUS_MEMORY;
  return engine_memory_new(instance, (size_t)program->memory.staging, &instance->staging);
}

size_t engine_slot_bytes(const quern_instance *instance, const quern_slot *slot) {
  if (!slot->dynamic_batch) return slot->bytes;
  return slot->bytes / (size_t)instance->program->dynamic_batch * (size_t)instance->rows;
}

quern_status quern_instance_set_dynamic_batch(quern_instance *instance, int64_t rows) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_set_dynamic_batch: the instance is null");
  const quern_program *program = instance->program;
  QUERN_CHECK(program->dynamic_batch > 0, INVALID,
              "instance_set_dynamic_batch: the program was compiled without a dynamic batch");
  QUERN_CHECK(rows >= 0 && rows <= program->dynamic_batch, INVALID,
              "instance_set_dynamic_batch: %lld rows; the program was compiled for 0 to %lld", (long long)rows,
              (long long)program->dynamic_batch);
  instance->rows = rows;
  return QUERN_STATUS_OK;
}

/* ---- runs with fewer rows, or on memory that is not the caller's -------------------------------------------- */

/* Places of inputs and outputs in this run; gives the bytes that inputs take of the staging memory. */
static int64_t place_slots(const quern_instance *instance, const void *const *inputs, void *const *outputs) {
  const quern_program *program = instance->program;
  bool all = instance->stream != NULL;
  void **ins = instance->staged, **outs = ins + program->n_inputs;
  char *at = instance->staging;
  for (size_t i = 0; i < program->n_inputs; i++) {
    const quern_slot *slot = &program->inputs[i];
    bool staged = slot->dynamic_batch || all;
    ins[i] = staged ? at : (void *)inputs[i]; /* inputs that are not donated are only read */
    if (staged) at += engine_room(&program->target.base, (int64_t)slot->bytes);
  }
  int64_t bytes = at - instance->staging;
  for (size_t i = 0; i < program->n_outputs; i++) {
    const quern_slot *slot = &program->outputs[i];
    bool staged = slot->dynamic_batch || all;
    outs[i] = staged ? at : outputs[i];
    if (staged) at += engine_room(&program->target.base, (int64_t)slot->bytes);
  }
  return bytes;
}

/* Inputs go to their second place while the run before may still be at work, and from there to the first when it has ended. */
static quern_status upload_inputs_async(const quern_instance *instance, const void *const *inputs, int64_t bytes) {
  const quern_program *program = instance->program;
  const struct rt_remote *remote = program->device->remote;
  char *second = instance->staging + program->memory.staging - bytes;
  for (size_t i = 0; i < program->n_inputs; i++) {
    char *to = second + ((char *)instance->staged[i] - instance->staging);
    QUERN_TRY(remote->upload_async(instance->stream, to, inputs[i], engine_slot_bytes(instance, &program->inputs[i])));
  }
  QUERN_TRY(remote->upload_fence(instance->stream));
  QUERN_TRY(remote->copy(instance->stream, instance->staging, second, (size_t)bytes));
  return remote->reuse_fence(instance->stream);
}

static quern_status upload_inputs(const quern_instance *instance, const void *const *inputs, int64_t bytes) {
  const quern_program *program = instance->program;
  if (engine_uploads_async(program->device, bytes)) return upload_inputs_async(instance, inputs, bytes);
  for (size_t i = 0; i < program->n_inputs; i++)
    if (instance->staged[i] != inputs[i])
      QUERN_TRY(
          engine_upload(instance, instance->staged[i], inputs[i], engine_slot_bytes(instance, &program->inputs[i])));
  return QUERN_STATUS_OK;
}

quern_status engine_run_staged(quern_instance *instance, const void *const *inputs, void *const *outputs) {
  const quern_program *program = instance->program;
  bool all = instance->stream != NULL;
  void **ins = instance->staged, **outs = ins + program->n_inputs;
  int64_t bytes = place_slots(instance, inputs, outputs);
  int64_t second = engine_uploads_async(program->device, bytes) ? bytes : 0; /* it may be written at the same time */
  if (instance->poison)
    QUERN_TRY(engine_fill(instance, instance->staging, 0xff, (size_t)(program->memory.staging - second)));
  QUERN_TRY(upload_inputs(instance, inputs, bytes));
  QUERN_TRY(all ? engine_run_repeated(instance, (const void *const *)ins, outs)
                : engine_run(instance, (const void *const *)ins, outs));
  for (size_t i = 0; i < program->n_outputs; i++)
    if (outs[i] != outputs[i] && outputs[i] != NULL) /* what is not wanted stays there, and is not waited for */
      QUERN_TRY(engine_download(instance, outputs[i], outs[i], engine_slot_bytes(instance, &program->outputs[i])));
  return QUERN_STATUS_OK;
}
