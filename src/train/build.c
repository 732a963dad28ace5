/* train/build.c -- the programs of a run: the step, evaluation, initial values
** keeps: all of them work on the states of the step's instance; what a step changes is one program
** tests: tests/train/test_train.c
*/
#include <math.h>

#include "engine/engine.h"
#include "ir/ir.h"
#include "train/train.h"

/* ---- the loss -------------------------------------------------------------------------------------------- */

/* What is computed in 16 bits, where the configuration asks for it. */
static quern_status lower(const struct train_spec *spec, quern_model *model, size_t n, quern_tensor **outputs) {
  quern_autocast_options options = QUERN_INIT(quern_autocast_options);
  options.low = spec->half;
  return spec->half != spec->dtype ? quern_autocast(model, n, outputs, outputs, &options) : QUERN_STATUS_OK;
}

/* Whether a network marks what is kept under gradient checkpointing. */
static quern_status find_marks(quern_trainer *t, quern_tensor *loss) {
  struct ir_order order;
  t->marked = false;
  if (!t->block) return QUERN_STATUS_OK;
  QUERN_TRY(ir_topo(t->ctx, 1, &loss, &order));
  for (size_t i = 0; i < order.n; i++) t->marked = t->marked || order.at[i]->op == IR_CHECKPOINT;
  ir_order_fini(t->ctx, &order);
  return QUERN_STATUS_OK;
}

/* A quern_loss_of; user is the trainer. */
static quern_tensor *loss_of(quern_model *model, size_t n, quern_tensor *const *inputs, void *user) {
  quern_trainer *t = user;
  struct quern_train_graph graph = {.network = &t->network, .model = model, .inputs = inputs};
  quern_tensor *loss;
  (void)n;
  quern_status status = train_network_loss(&graph, &loss);
  if (status == QUERN_STATUS_OK) status = find_marks(t, loss);
  if (status == QUERN_STATUS_OK) status = lower(&t->spec, model, 1, &loss);
  return status == QUERN_STATUS_OK ? loss : ir_fail(t->ctx, status, "%s", quern_last_error());
}

/* ---- the step ------------------------------------------------------------------------------------------- */

static quern_status open_inputs(quern_trainer *t, int64_t batch, quern_tensor **inputs) {
  for (size_t i = 0; i < t->network.n_fields; i++) {
    const quern_field *field = &t->network.fields[i];
    int64_t dims[QUERN_MAX_RANK] = {batch};
    memcpy(dims + 1, field->dims, (size_t)field->rank * sizeof *dims);
    inputs[i] = quern_input(t->ctx, field->name, field->dtype, field->rank + 1, dims);
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
  for (size_t i = 0; i < quern_model_parameter_count(t->model); i++) {
    quern_parameter p = QUERN_INIT(quern_parameter);
    QUERN_TRY(quern_model_parameter(t->model, i, &p));
    quern_optim_group group = {.match = p.name, .lr = 1};
    if (p.trained && quern_tensor_rank(p.tensor) < 2 && !base_vec_push(&t->heap, &t->groups, group))
      return QUERN_STATUS_MEMORY;
  }
  return QUERN_STATUS_OK;
}

static quern_scaler_options scaler_of(const quern_config *c) {
  quern_scaler_options s = QUERN_INIT(quern_scaler_options);
  s.start = quern_config_real(c, "scale_init");
  s.growth = quern_config_real(c, "scale_growth");
  s.backoff = quern_config_real(c, "scale_backoff");
  s.interval = quern_config_int(c, "scale_interval");
  s.least = quern_config_real(c, "scale_min");
  s.most = quern_config_real(c, "scale_max");
  s.adaptive = quern_config_flag(c, "scale_adaptive");
  return s;
}

static quern_optim_options optim_of(const quern_trainer *t, const quern_scaler_options *scaler) {
  const quern_config *c = t->config;
  quern_optim_options o = QUERN_INIT(quern_optim_options);
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

/* Groups of parameters are found, and evaluation is compiled, by the loss for evaluation: it has them all. */
static quern_status check_parameters(const quern_trainer *t, size_t known) {
  quern_parameter parameter = QUERN_INIT(quern_parameter);
  if (quern_model_element_count(t->model) == t->info.parameters) return QUERN_STATUS_OK;
  do QUERN_TRY(quern_model_parameter(t->model, known++, &parameter)); /* states of the optimizer are among them */
  while (!parameter.trained);
  return base_error(QUERN_STATUS_STATE,
                    "task '%s': the loss for training has the parameter \"%s\", which that for evaluation has not "
                    "HINT: build it in both, and leave it out of the loss for evaluation",
                    t->network.name, parameter.name);
}

quern_status train_build_step(quern_trainer *t, int64_t parts) {
  const quern_config *c = t->config;
  double start = base_clock();
  train_build_free(t);
  quern_context_options context = {.size = sizeof context, .allocator = t->heap.user};
  quern_model_options model = QUERN_INIT(quern_model_options);
  model.dtype = t->spec.dtype;
  model.seed = (uint64_t)quern_config_int(c, "seed");
  QUERN_TRY(quern_context_new(&t->ctx, &context));
  QUERN_TRY(quern_model_new(&t->model, t->ctx, &model));
  QUERN_TRY(open_inputs(t, t->info.batch, t->inputs));
  quern_model_begin(t->model, false); /* the parameters and their ranks, before options that depend on them */
  struct quern_train_graph graph = {.network = &t->network, .model = t->model, .inputs = t->inputs};
  quern_tensor *loss;
  QUERN_TRY(train_network_loss(&graph, &loss));
  QUERN_TRY(find_groups(t));
  t->info.parameters = quern_model_element_count(t->model);
  size_t known = quern_model_parameter_count(t->model);
  quern_model_begin(t->model, true);
  quern_scaler_options scaler = scaler_of(c);
  quern_optim_options options = optim_of(t, &scaler);
  t->least_scale = options.scaler != NULL ? scaler.least : 0;
  if (t->remote && options.scaler == NULL) options.gate = gate_of(t);
  QUERN_TRY(
      quern_step_accumulate(&t->step, t->model, parts, t->network.n_fields, t->inputs, loss_of, t, &options, &t->loss));
  QUERN_TRY(check_parameters(t, known));
  t->info.build += base_clock() - start;
  return QUERN_STATUS_OK;
}

/* ---- programs ------------------------------------------------------------------------------------------- */

static quern_program_options options_of(quern_trainer *t, int64_t limit) {
  const quern_config *c = t->config;
  quern_program_options o = QUERN_INIT(quern_program_options);
  o.device_handle = t->device;
  if (quern_config_get(c, "target")[0] != 0) o.target = quern_config_get(c, "target");
  o.plan_only = t->planning;
  o.compiler_limit = t->compiler_room;
  o.least_compiler_limit = &t->compiler_least;
  o.threads = (int)quern_config_int(c, "threads");
  const char *numerics = quern_config_get(c, "numerics");
  o.numerics = strcmp(numerics, "fast") == 0   ? QUERN_NUMERICS_FAST
               : strcmp(numerics, "tf32") == 0 ? QUERN_NUMERICS_TF32
                                               : QUERN_NUMERICS_EXACT;
  o.memory_limit = limit;
  return o;
}

static int find_input(const quern_program *program, const char *name) {
  for (size_t i = 0; i < quern_program_input_count(program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    if (quern_program_input(program, i, &slot) == QUERN_STATUS_OK && slot.name != NULL && strcmp(slot.name, name) == 0)
      return (int)i;
  }
  return -1;
}

/* Frees what is not needed to run a program: nothing when kernels are to be interpreted. */
static void strip(const quern_trainer *t, quern_program *program) {
  if (t->device->backend != &rt_interp) engine_program_strip(program);
}

/* Every input is one that a run has values for. */
static quern_status check_places(const quern_trainer *t, const struct train_program *p) {
  for (size_t i = 0; i < quern_program_input_count(p->program); i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    QUERN_TRY(quern_program_input(p->program, i, &slot));
    bool known = (int)i == p->in_lr || (int)i == p->in_made;
    for (size_t k = 0; k < t->network.n_fields; k++) known = known || (int)i == p->in[k];
    QUERN_CHECK(known, INVALID,
                "task '%s': the loss depends on an input \"%s\" that is no field of the samples HINT: "
                "quern_train_graph_input",
                t->network.name, slot.name != NULL ? slot.name : "");
  }
  return QUERN_STATUS_OK;
}

/* Of a program that was made: where its inputs are. */
static quern_status find_places(const quern_trainer *t, struct train_program *p) {
  strip(t, p->program);
  p->n_fields = t->network.n_fields;
  for (size_t i = 0; i < t->network.n_fields; i++) p->in[i] = find_input(p->program, t->network.fields[i].name);
  p->in_lr = find_input(p->program, "lr");
  p->in_made = find_input(p->program, "made");
  return check_places(t, p);
}

static quern_program_options step_options(quern_trainer *t, int64_t limit) {
  quern_program_options options = options_of(t, limit);
  options.gradient_checkpointing = t->spec.lm.checkpoint_every > 0 || (t->block && t->marked);
  options.recompute_every = t->block && !t->marked ? QUERN_RECOMPUTE_SQRT : t->recompute_every;
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
  return find_places(t, p);
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
  options.optimize = QUERN_OPTIMIZE_NONE;
  QUERN_TRY(quern_program_compile(&p->program, t->ctx, TRAIN_FINITE, outputs, &options));
  return find_places(t, p);
}

/* What evaluations will report, by name. */
static void keep_names(quern_trainer *t, const struct quern_train_graph *graph) {
  t->results = (struct train_results){.n = graph->n_reports};
  memcpy(t->results.names, graph->names, sizeof graph->names);
  for (size_t i = 0; i < graph->n_reports; i++) t->results.values[i] = (quern_train_value){t->results.names[i], NAN};
}

quern_status train_eval_program(quern_trainer *t, bool plan_only) {
  if (t->eval.program != NULL) return QUERN_STATUS_OK;
  quern_tensor *inputs[QUERN_MAX_FIELDS], *outputs[TRAIN_MOST_OUTPUTS];
  quern_program_options options = options_of(t, 0);
  options.inference = true;
  options.plan_only = plan_only;
  /* without labels no batch is filled up: one that is larger than all there are would never be run */
  t->eval_batch = t->data.labels >= 0 ? t->info.micro : BASE_MIN(t->info.micro, t->info.eval_samples);
  QUERN_TRY(open_inputs(t, t->eval_batch, inputs));
  quern_model_begin(t->model, false);
  struct quern_train_graph graph = {.network = &t->network, .model = t->model, .inputs = inputs, .eval = true};
  QUERN_TRY(train_network_loss(&graph, &outputs[TRAIN_LOSS]));
  size_t n = TRAIN_REPORTED + graph.n_reports;
  for (size_t i = 0; i < graph.n_reports; i++) outputs[TRAIN_REPORTED + i] = graph.reports[i];
  QUERN_TRY(lower(&t->spec, t->model, n, outputs));
  QUERN_TRY(quern_program_compile(&t->eval.program, t->ctx, n, outputs, &options));
  keep_names(t, &graph);
  return find_places(t, &t->eval);
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
  const void *inputs[QUERN_MAX_FIELDS + 2] = {0};
  void *outputs[TRAIN_MOST_OUTPUTS];
  for (size_t i = 0; i < p->n_fields; i++)
    if (p->in[i] >= 0) inputs[p->in[i]] = fields[i];
  if (p->in_lr >= 0) inputs[p->in_lr] = p->lr;
  if (p->in_made >= 0) inputs[p->in_made] = &p->made;
  for (int i = 0; i < TRAIN_MOST_OUTPUTS; i++) outputs[i] = read ? p->out[i] : NULL;
  return quern_instance_run(p->instance, inputs, outputs);
}

double train_output(const struct train_program *p, size_t i) {
  quern_slot slot = QUERN_INIT(quern_slot);
  if (quern_program_output(p->program, i, &slot) != QUERN_STATUS_OK) return 0;
  return base_dtype_is(slot.dtype, BASE_FLOAT) ? base_load_float(slot.dtype, p->out[i], 0)
                                               : (double)base_load_int(slot.dtype, p->out[i], 0);
}
