/* train/build.c -- the programs of a run: the step, evaluation, initial values
** keeps: all of them work on the states of the step's instance; what a step changes is one program
** tests: tests/train/test_train.c
*/
#include <stdio.h>

#include "engine/engine.h"
#include "train/train.h"

/* ---- networks ------------------------------------------------------------------------------------------- */

static const quern_cross_entropy_options counted = {.size = sizeof counted, .ignore = true, .ignore_index = -1};

/* Numbers that a network computes with: bytes are pictures, from 0 to 1. */
static quern_tensor *as_numbers(quern_tensor *x, quern_dtype dtype) {
  bool bytes = quern_tensor_dtype(x) == QUERN_DTYPE_U8;
  x = quern_cast(x, dtype);
  return bytes ? quern_mul_scalar(x, 1.0 / 255) : x;
}

static quern_tensor *logits_of(const struct train_spec *spec, quern_model *model, quern_tensor *x) {
  quern_scope *scope = quern_model_scope(model);
  const quern_lm_options *o = &spec->lm;
  int64_t widths[TRAIN_MLP_LAYERS];
  switch (spec->family) {
  case TRAIN_LM: return quern_lm_logits(scope, quern_lm_hidden(scope, x, o, NULL), o);
  case TRAIN_LSTM: return quern_lstm_lm(scope, x, o->vocabulary, o->width, o->hidden, (int)o->layers, o->dropout, NULL);
  case TRAIN_RESNET: {
    bool small = quern_tensor_rank(x) == 4 && quern_tensor_dim(x, 2) <= 64;
    return quern_resnet(scope, as_numbers(x, spec->dtype), spec->depth, spec->classes, small);
  }
  case TRAIN_MLP: break;
  }
  for (int64_t i = 0; i < o->layers; i++) widths[i] = o->hidden;
  return quern_mlp(scope, as_numbers(x, spec->dtype), (int)o->layers, widths, spec->classes, o->activation);
}

static quern_tensor *plain_loss(const struct train_spec *spec, quern_model *model, quern_tensor *const *inputs) {
  if (spec->family == TRAIN_LM) return quern_lm_loss(quern_model_scope(model), inputs[0], inputs[1], &spec->lm);
  quern_tensor *logits = logits_of(spec, model, inputs[0]);
  return quern_cross_entropy(logits, quern_cast(inputs[1], QUERN_DTYPE_I32), &counted);
}

/* What is computed in 16 bits, where the configuration asks for it. */
static quern_status lower(const struct train_spec *spec, quern_model *model, size_t n, quern_tensor **outputs) {
  quern_autocast_options options = QUERN_AUTOCAST_OPTIONS;
  options.low = spec->half;
  return spec->half != spec->dtype ? quern_autocast(model, n, outputs, outputs, &options) : QUERN_STATUS_OK;
}

/* A quern_loss_of; user is the spec. */
static quern_tensor *loss_of(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  (void)n;
  quern_tensor *loss = plain_loss(user, model, inputs);
  return lower(user, model, 1, &loss) == QUERN_STATUS_OK ? loss : NULL;
}

/* How many samples have all of their labels, and have any: the most likely one is theirs. */
static quern_tensor *count_exact(quern_tensor *logits, quern_tensor *labels) {
  labels = quern_cast(labels, QUERN_DTYPE_I64);
  quern_tensor *counts = quern_ge(labels, quern_zeros_like(labels));
  quern_tensor *likely = quern_argmax(logits, quern_tensor_rank(logits) - 1, false);
  quern_tensor *wrong = quern_and(counts, quern_ne(likely, labels));
  int64_t axis = 1;
  if (quern_tensor_rank(labels) > 1) {
    wrong = quern_any(wrong, 1, &axis, false);
    counts = quern_any(counts, 1, &axis, false);
  }
  quern_tensor *exact = quern_and(counts, quern_not(wrong));
  return quern_sum(quern_cast(exact, QUERN_DTYPE_F32), QUERN_ALL, false);
}

/* ---- the step ------------------------------------------------------------------------------------------- */

static quern_status open_inputs(quern_trainer *t, int64_t batch, quern_tensor **inputs) {
  static const char *const names[TRAIN_FIELDS] = {"inputs", "labels"};
  const quern_field *fields;
  (void)quern_source_fields(t->data.train, &fields);
  for (int i = 0; i < TRAIN_FIELDS; i++) {
    int64_t dims[QUERN_MAX_RANK] = {batch};
    QUERN_CHECK(fields[i].rank + 1 < QUERN_MAX_RANK, SHAPE, "data: samples of rank %d", fields[i].rank);
    memcpy(dims + 1, fields[i].dims, (size_t)fields[i].rank * sizeof *dims);
    inputs[i] = quern_input(t->ctx, names[i], fields[i].dtype, fields[i].rank + 1, dims);
  }
  return quern_context_check(t->ctx);
}

static quern_optim_kind kind_of(const char *name) {
  static const char *const names[] = {[QUERN_OPTIM_SGD] = "sgd",
                                      [QUERN_OPTIM_ADAM] = "adam",
                                      [QUERN_OPTIM_ADAMW] = "adamw",
                                      [QUERN_OPTIM_LION] = "lion"};
  for (size_t i = 0; i < BASE_COUNT(names); i++)
    if (strcmp(name, names[i]) == 0) return (quern_optim_kind)i;
  return QUERN_OPTIM_ADAMW;
}

/* Biases and norms have no weight decay: a group each. */
static quern_status find_groups(quern_trainer *t) {
  t->groups.n = 0;
  for (size_t i = 0; i < quern_model_parameters(t->model); i++) {
    quern_parameter p;
    QUERN_TRY(quern_model_parameter(t->model, i, &p));
    quern_optim_group group = {.match = p.name, .lr = 1};
    if (p.trained && quern_tensor_rank(p.tensor) < 2 && !base_vec_push(&t->heap, &t->groups, group))
      return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

static quern_optim_options optim_of(const quern_trainer *t, const quern_scaler_options *scaler) {
  const quern_config *c = t->config;
  quern_optim_options o = QUERN_OPTIM_OPTIONS;
  bool plain = quern_config_flag(c, "decay_all");
  o.kind = kind_of(quern_config_get(c, "optimizer"));
  o.beta1 = quern_config_real(c, "beta1");
  o.beta2 = quern_config_real(c, "beta2");
  o.eps = quern_config_real(c, "eps");
  o.momentum = quern_config_real(c, "momentum");
  o.nesterov = quern_config_flag(c, "nesterov");
  o.weight_decay = quern_config_real(c, "weight_decay");
  o.clip_norm = quern_config_real(c, "clip");
  o.ema = quern_config_real(c, "ema");
  o.guard = true;
  o.n_groups = plain ? 0 : t->groups.n;
  o.groups = plain ? NULL : t->groups.at;
  if (t->spec.half == QUERN_DTYPE_F16) o.scaler = scaler;
  return o;
}

/* Whether all steps before this one were made. On a device that runs ahead nothing changes after one that was not finite. */
static quern_tensor *gate_of(const quern_trainer *t) {
  quern_tensor *count = quern_model_step(t->model);
  return quern_eq(count, quern_input(t->ctx, "made", QUERN_DTYPE_U64, 0, NULL));
}

void train_build_free(quern_trainer *t) {
  quern_step_free(t->step);
  quern_model_free(t->model);
  quern_context_free(t->ctx);
  base_vec_fini(&t->heap, &t->groups);
  t->step = NULL, t->model = NULL, t->ctx = NULL;
}

quern_status train_build_step(quern_trainer *t, int64_t parts) {
  const quern_config *c = t->config;
  double start = base_clock();
  train_build_free(t);
  quern_context_options context = {.size = sizeof context, .allocator = t->heap.user};
  quern_model_options model = QUERN_MODEL_OPTIONS;
  model.dtype = t->spec.dtype;
  model.seed = (uint64_t)quern_config_int(c, "seed");
  QUERN_TRY(quern_context_new(&t->ctx, &context));
  QUERN_TRY(quern_model_new(&t->model, t->ctx, &model));
  QUERN_TRY(open_inputs(t, t->info.batch, t->inputs));
  quern_model_begin(t->model, false); /* the parameters and their ranks, before options that depend on them */
  (void)plain_loss(&t->spec, t->model, t->inputs);
  QUERN_TRY(quern_context_check(t->ctx));
  QUERN_TRY(find_groups(t));
  t->info.parameters = quern_model_count(t->model);
  quern_model_begin(t->model, true);
  quern_scaler_options scaler = QUERN_SCALER_OPTIONS;
  quern_optim_options options = optim_of(t, &scaler);
  t->least_scale = options.scaler != NULL ? scaler.least : 0;
  if (t->remote && options.scaler == NULL) options.gate = gate_of(t);
  QUERN_TRY(
      quern_step_accumulate(&t->step, t->model, parts, TRAIN_FIELDS, t->inputs, loss_of, &t->spec, &options, &t->loss));
  t->info.build += base_clock() - start;
  return QUERN_STATUS_OK;
}

/* ---- programs ------------------------------------------------------------------------------------------- */

static quern_program_options options_of(quern_trainer *t, int64_t limit) {
  const quern_config *c = t->config;
  quern_program_options o = QUERN_PROGRAM_OPTIONS;
  o.device = quern_config_get(c, "device");
  if (quern_config_get(c, "target")[0] != 0) o.target = quern_config_get(c, "target");
  o.plan_only = t->planning;
  o.compiler_limit = t->compiler_room;
  o.least_compiler_limit = &t->compiler_least;
  o.threads = (int)quern_config_int(c, "threads");
  o.numerics = strcmp(quern_config_get(c, "numerics"), "fast") == 0 ? QUERN_NUMERICS_FAST : QUERN_NUMERICS_EXACT;
  o.memory_limit = limit;
  return o;
}

static int find_input(const quern_program *program, const char *name) {
  for (size_t i = 0; i < quern_program_inputs(program); i++) {
    quern_slot slot;
    if (quern_program_input(program, i, &slot) == QUERN_STATUS_OK && slot.name != NULL && strcmp(slot.name, name) == 0)
      return (int)i;
  }
  return -1;
}

/* Frees what is not needed to run a program: nothing when kernels are to be interpreted. */
static void strip(const quern_trainer *t, quern_program *program) {
  if (strcmp(quern_config_get(t->config, "device"), "interp") != 0) engine_program_strip(program);
}

/* Of a program that was made: where its inputs are. */
static void find_places(const quern_trainer *t, struct train_program *p) {
  strip(t, p->program);
  p->in[0] = find_input(p->program, "inputs");
  p->in[1] = find_input(p->program, "labels");
  p->in_lr = find_input(p->program, "lr");
  p->in_made = find_input(p->program, "made");
}

static quern_program_options step_options(quern_trainer *t, int64_t limit) {
  quern_program_options options = options_of(t, limit);
  options.recompute = t->spec.lm.keep_every > 0;
  options.n_updates = quern_step_updates(t->step, &options.updates);
  return options;
}

static void step_outputs(const quern_trainer *t, quern_tensor *outputs[TRAIN_OUTPUTS]) {
  outputs[TRAIN_LOSS] = t->loss;
  outputs[TRAIN_NORM] = quern_step_norm(t->step);
  outputs[TRAIN_FINITE] = quern_step_finite(t->step);
}

static quern_status compile_step(quern_trainer *t, const quern_program_options *options, struct train_program *p) {
  quern_tensor *outputs[TRAIN_OUTPUTS];
  step_outputs(t, outputs);
  QUERN_TRY(quern_program_compile(&p->program, t->ctx, TRAIN_OUTPUTS, outputs, options));
  find_places(t, p);
  return QUERN_STATUS_OK;
}

quern_status train_step_program(quern_trainer *t, int64_t limit, struct train_program *p, int64_t *least) {
  quern_program_options options = step_options(t, limit);
  options.least_limit = least;
  return compile_step(t, &options, p);
}

quern_status train_step_plan(quern_trainer *t, int64_t limit, struct train_program *p, int64_t *least) {
  t->planning = true;
  quern_status status = train_step_program(t, limit, p, least);
  t->planning = false;
  return status;
}

quern_status train_step_curve(quern_trainer *t, size_t room, quern_curve_point *points, size_t *n) {
  quern_tensor *outputs[TRAIN_OUTPUTS];
  step_outputs(t, outputs);
  quern_program_options options = step_options(t, 0);
  return quern_program_curve(t->ctx, TRAIN_OUTPUTS, outputs, &options, room, points, n);
}

quern_status train_check_program(quern_trainer *t, struct train_program *p) {
  quern_tensor *outputs[TRAIN_OUTPUTS];
  step_outputs(t, outputs);
  quern_program_options options = options_of(t, INT64_MAX / 2); /* with a limit values share memory */
  options.optimise = 0;
  QUERN_TRY(quern_program_compile(&p->program, t->ctx, TRAIN_FINITE, outputs, &options));
  find_places(t, p);
  return QUERN_STATUS_OK;
}

quern_status train_eval_program(quern_trainer *t, bool plan_only) {
  if (t->eval.program != NULL) return QUERN_STATUS_OK;
  quern_tensor *inputs[TRAIN_FIELDS], *outputs[2];
  quern_program_options options = options_of(t, 0);
  options.inference = true;
  options.plan_only = plan_only;
  QUERN_TRY(open_inputs(t, t->info.micro, inputs));
  quern_model_begin(t->model, false);
  size_t n = 1;
  if (t->spec.task == TRAIN_TASK_TEXT) {
    outputs[0] = plain_loss(&t->spec, t->model, inputs);
  } else {
    quern_tensor *logits = logits_of(&t->spec, t->model, inputs[0]);
    quern_tensor *labels = quern_cast(inputs[1], QUERN_DTYPE_I32);
    outputs[0] = quern_cross_entropy(logits, labels, &counted);
    outputs[1] = count_exact(logits, labels);
    n = 2;
  }
  QUERN_TRY(quern_context_check(t->ctx));
  QUERN_TRY(lower(&t->spec, t->model, n, outputs));
  QUERN_TRY(quern_program_compile(&t->eval.program, t->ctx, n, outputs, &options));
  find_places(t, &t->eval);
  return QUERN_STATUS_OK;
}

quern_status train_initial_program(quern_trainer *t, quern_program **program) {
  quern_program_options options = options_of(t, 0);
  QUERN_TRY(engine_initial_program(program, t->model, NULL, &options));
  if (*program != NULL) strip(t, *program);
  return QUERN_STATUS_OK;
}

/* ---- running -------------------------------------------------------------------------------------------- */

void train_program_free(struct train_program *p) {
  quern_instance_free(p->instance);
  quern_program_free(p->program);
  p->instance = NULL, p->program = NULL;
}

quern_status train_run(struct train_program *p, void *const *fields, bool read) {
  const void *inputs[TRAIN_FIELDS + 2] = {0};
  void *outputs[TRAIN_OUTPUTS];
  for (int i = 0; i < TRAIN_FIELDS; i++)
    if (p->in[i] >= 0) inputs[p->in[i]] = fields[i];
  if (p->in_lr >= 0) inputs[p->in_lr] = p->lr;
  if (p->in_made >= 0) inputs[p->in_made] = &p->made;
  for (int i = 0; i < TRAIN_OUTPUTS; i++) outputs[i] = read ? p->out[i] : NULL;
  return quern_instance_run(p->instance, inputs, outputs);
}

double train_output(const struct train_program *p, size_t i) {
  quern_slot slot;
  if (quern_program_output(p->program, i, &slot) != QUERN_STATUS_OK) return 0;
  return base_dtype_is(slot.dtype, BASE_FLOAT) ? base_load_float(slot.dtype, p->out[i], 0)
                                               : (double)base_load_int(slot.dtype, p->out[i], 0);
}
