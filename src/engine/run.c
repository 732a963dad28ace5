/* engine/run.c -- a run: step by step, bodies in frames of their own
** keeps: allocates nothing (replay.c does, when a run is captured); an iteration of a loop reads the carries of the last and
**        writes those of the next elsewhere, unless the plan of its body has a carry written in place
** tests: tests/engine/test_program.c, tests/engine/test_control.c
*/
#include "engine/engine.h"

static quern_status run_subprogram(quern_instance *instance, int subprogram, struct engine_frame *frame);

/* Gives a frame the operands and results of this time. */
static void bind(struct engine_frame *frame, void *const *params, void *const *results) {
  for (int i = 0; i < frame->subprogram->n_outside; i++) {
    int number = frame->subprogram->outside[i];
    const struct engine_buffer *b = &frame->subprogram->buffers[number];
    frame->at[number] = b->place == PLAN_PARAM ? params[b->at] : results[b->at];
  }
}

static quern_status run_body(quern_instance *instance, int subprogram, struct engine_frame *frame) {
  bind(frame, frame->params, frame->results);
  return run_subprogram(instance, subprogram, frame);
}

static quern_status copy(const quern_instance *instance, void *to, const void *from, int64_t bytes) {
  return engine_copy_bytes(instance, to, from, (size_t)bytes);
}

/* ---- control -------------------------------------------------------------------------------------------- */

/* A control step that runs: the memory of its operands, in the order of its buffers. */
struct iterations {
  const struct engine_step *step;
  const struct engine_control *control;
  struct engine_frame *frame, *body, *other;
};

static void *source(const struct iterations *t, int i) { return t->frame->at[t->step->buffers[i]]; }
static void *result(const struct iterations *t, int i) { return source(t, t->control->n_src + i); }
static void *work(const struct iterations *t, int i) { return source(t, t->control->n_src + t->control->n_out + i); }
static int64_t result_bytes(const struct iterations *t, int i) {
  return t->frame->subprogram->buffers[t->step->buffers[t->control->n_src + i]].bytes;
}

/* The places of carry c: its result, or the second one; of one in place the result always. */
static void *carry(const struct iterations *t, int c, bool second) {
  return second && !t->control->in_place[c] ? work(t, 2 + c) : result(t, c);
}

/* Before the first iteration: carries in place begin as what their sources are. */
static quern_status begin_carries(const quern_instance *instance, const struct iterations *t) {
  for (int i = 0; i < t->control->carries; i++)
    if (t->control->in_place[i]) QUERN_TRY(copy(instance, result(t, i), source(t, i), result_bytes(t, i)));
  return QUERN_STATUS_OK;
}

/* Where the first iteration reads a carry. */
static void *first_carry(const struct iterations *t, int i) {
  return t->control->in_place[i] ? result(t, i) : source(t, i);
}

static void *shift(void *at, int64_t bytes) { return (char *)at + bytes; }

/* Turn k of n writes its carries to the results when n - 1 - k is even, else to the second places: so the last writes
** the results, and none writes what it reads, but for carries in place. A carry that is stacked as well is read where
** the last iteration has stacked it. */
static quern_status run_loop(quern_instance *instance, const struct iterations *t) {
  const struct engine_control *c = t->control;
  const quern_program *program = instance->program;
  int64_t iteration;
  void **params = t->body->params, **results = t->body->results;
  QUERN_TRY(begin_carries(instance, t));
  for (int i = 0; i < c->n_src; i++) params[1 + i] = i < c->carries ? first_carry(t, i) : source(t, i);
  for (int64_t k = 0; k < c->trip; k++) {
    bool second = (c->trip - 1 - k) % 2 != 0;
    iteration = c->reverse ? c->trip - 1 - k : k;
    if (iteration < program->n_iterations)
      params[0] = program->iterations + iteration * (int64_t)sizeof iteration;
    else
      QUERN_TRY(engine_upload(instance, params[0] = work(t, 0), &iteration, sizeof iteration));
    for (int i = 0; i < c->carries; i++) {
      int slot = c->slot[i];
      if (k > 0) params[1 + i] = slot > 0 ? results[i] : carry(t, i, !second);
      results[i] = slot > 0 ? shift(result(t, slot), iteration * c->out_stride[slot]) : carry(t, i, second);
    }
    for (int i = c->carries; i < c->carries + c->scanned; i++)
      params[1 + i] = shift(source(t, i), iteration * c->src_stride[i]);
    for (int i = c->carries; i < c->n_out; i++) results[i] = shift(result(t, i), iteration * c->out_stride[i]);
    QUERN_TRY(run_body(instance, c->body, t->body));
  }
  for (int i = 0; i < c->carries; i++) {
    const void *last = c->trip == 0 ? source(t, i) : results[i];
    if (c->trip == 0 || c->slot[i] > 0) QUERN_TRY(copy(instance, result(t, i), last, result_bytes(t, i)));
  }
  return QUERN_STATUS_OK;
}

static quern_status run_while(quern_instance *instance, const struct iterations *t) {
  const struct engine_control *c = t->control;
  unsigned char go_on;
  bool second = true;
  QUERN_TRY(begin_carries(instance, t));
  for (int i = 0; i < c->n_src; i++)
    t->body->params[i] = t->other->params[i] = i < c->carries ? first_carry(t, i) : source(t, i);
  t->other->results[0] = work(t, 0);
  for (;;) {
    QUERN_TRY(run_body(instance, c->other, t->other));
    QUERN_TRY(engine_download(instance, &go_on, work(t, 0), 1));
    if (go_on == 0) break;
    second = !second;
    for (int i = 0; i < c->carries; i++) t->body->results[i] = carry(t, i, second);
    QUERN_TRY(run_body(instance, c->body, t->body));
    for (int i = 0; i < c->carries; i++) t->body->params[i] = t->other->params[i] = carry(t, i, second);
  }
  for (int i = 0; i < c->carries; i++) QUERN_TRY(copy(instance, result(t, i), t->body->params[i], result_bytes(t, i)));
  return QUERN_STATUS_OK;
}

static quern_status run_if(quern_instance *instance, const struct iterations *t) {
  const struct engine_control *c = t->control;
  unsigned char yes;
  QUERN_TRY(engine_download(instance, &yes, source(t, 0), 1));
  struct engine_frame *body = yes != 0 ? t->body : t->other;
  for (int i = 1; i < c->n_src; i++) body->params[i - 1] = source(t, i);
  for (int i = 0; i < c->n_out; i++) body->results[i] = result(t, i);
  return run_body(instance, yes != 0 ? c->body : c->other, body);
}

/* ---- steps ---------------------------------------------------------------------------------------------- */

static quern_status launch(quern_instance *instance, const struct engine_step *step, struct engine_frame *frame) {
  const quern_program *program = instance->program;
  struct kern_launch what = {.mems = frame->mems, .scalars = &instance->rows, .runs = &instance->launches};
  void **kept = NULL;
  for (int i = 0; i < step->n_buffers; i++) frame->mems[i] = frame->at[step->buffers[i]];
  if (step->ref != NULL) QUERN_TRY(engine_ref_before(instance, step, frame->mems, &kept));
  const quern_device *device = program->device;
  size_t k = (size_t)step->kernel, stride = program->scratch_stride;
  quern_status status =
      instance->stream != NULL
          ? device->remote->launch(instance->stream, program->module, k, &what, instance->scratch, stride)
          : device->backend->launch(program->module, k, &what, instance->pool, instance->scratch, stride);
  if (step->ref == NULL) return status;
  instance->counts.evaluated++;
  return engine_ref_after(instance, step, frame->mems, kept, status);
}

static quern_status run_step(quern_instance *instance, struct engine_frame *frame, int number) {
  const struct engine_step *step = &frame->subprogram->steps[number];
  struct iterations iterations = {step, step->control, frame, frame->bodies[2 * number], frame->bodies[2 * number + 1]};
  if (step->kind == PLAN_KERNEL) return launch(instance, step, frame);
  ++*(step->kind == PLAN_COPY ? &instance->counts.copies : &instance->counts.controls);
  switch (step->kind) {
  case PLAN_LOOP: return run_loop(instance, &iterations);
  case PLAN_WHILE: return run_while(instance, &iterations);
  case PLAN_IF: return run_if(instance, &iterations);
  default: break;
  }
  const struct engine_buffer *to = &frame->subprogram->buffers[step->buffers[0]];
  int64_t bytes = to->rows ? to->bytes / instance->program->dynamic_batch * instance->rows : to->bytes;
  void *at = frame->at[step->buffers[0]];
  const void *from = frame->at[step->buffers[1]];
  return at == from ? QUERN_STATUS_OK : copy(instance, at, from, bytes); /* a carry lies where it is stacked */
}

/* While a run is captured: the launch groups of the main subprogram, each with its graph dependencies. */
static quern_status run_launch_groups(quern_instance *instance, struct engine_frame *frame) {
  const struct engine_launch_order *order = instance->replay.order;
  const struct engine_branches *b = instance->replay.branches;
  const struct rt_remote *remote = instance->program->device->remote;
  for (int i = 0; i < order->n; i++) {
    if (b != NULL)
      QUERN_TRY(remote->depend_on(instance->stream, (size_t)(b->first[i + 1] - b->first[i]), b->groups + b->first[i]));
    if (order->first[i + 1] - order->first[i] > 1)
      QUERN_TRY(engine_launch_group(instance, frame, i));
    else
      QUERN_TRY(run_step(instance, frame, order->steps[order->first[i]]));
  }
  return QUERN_STATUS_OK;
}

/* Recursion is as deep as subgraphs lie in subgraphs. */
static quern_status run_subprogram(quern_instance *instance, int subprogram, struct engine_frame *frame) {
  bool timed = instance->timed != ENGINE_UNTIMED;
  double begin = 0;
  if (subprogram == 0 && instance->replay.order != NULL) return run_launch_groups(instance, frame);
  for (int i = 0; i < frame->subprogram->n_steps; i++) {
    if (instance->poison) QUERN_TRY(engine_poison(instance, frame, i));
    if (timed) QUERN_TRY(engine_step_begin(instance, &begin));
    QUERN_TRY(run_step(instance, frame, i));
    if (timed) QUERN_TRY(engine_step_end(instance, frame, subprogram, i, begin));
  }
  return QUERN_STATUS_OK;
}

quern_status engine_run(quern_instance *instance, const void *const *inputs, void *const *outputs) {
  QUERN_TRY(engine_run_steps(instance, inputs, outputs));
  return engine_timing_report(instance);
}

quern_status engine_run_steps(quern_instance *instance, const void *const *inputs, void *const *outputs) {
  instance->counts.runs++;
  instance->timed = engine_timed_now(instance);
  engine_timing_clear(instance);
  /* inputs that are not donated are only read */
  bind(instance->frame, (void *const *)inputs, outputs);
  if (instance->poison && !instance->program->donates)
    for (size_t i = 0; i < instance->program->n_outputs; i++)
      QUERN_TRY(engine_fill(instance, outputs[i], 0xff, instance->program->outputs[i].bytes));
  return run_subprogram(instance, 0, instance->frame);
}
