/* tests/train/test_own.c -- networks of a program's own: the same bits as by hand, from arrays or a function, in any
** way that a built-in model is trained; what goes wrong is said clearly
*/
#include "quern/npy.h"
#include "train/own_test.h"

/* ---- the same bits -------------------------------------------------------------------------------------- */

/* The states of a run of the ring for so many steps, with some keys changed. */
static uint64_t digest_of_run(const quern_source *data, size_t n, const char *const (*settings)[2], double *loss) {
  quern_config *config = ring_config("");
  for (size_t i = 0; i < n; i++) set(config, settings[i][0], settings[i][1]);
  const quern_train_task task = ring_task(data);
  quern_trainer *trainer = own_trainer(&task, config);
  double last = run_to(trainer, 6);
  if (loss != NULL) *loss = last;
  uint64_t digest = digest_of(trainer);
  quern_trainer_free(trainer);
  quern_config_free(config);
  return digest;
}

/* A loop by hand over the public API, with the options that the configuration's defaults are. */
struct hand {
  quern_context *ctx;
  quern_model *model;
  quern_step *step;
  quern_program *program;
  quern_instance *instance;
  quern_loader *loader;
};

static void open_hand(struct hand *h, const quern_source *data) {
  quern_model_options model = QUERN_INIT(quern_model_options);
  model.seed = 7;
  EXPECT_OK(quern_context_new(&h->ctx, &(quern_context_options){.size = sizeof(quern_context_options)}));
  EXPECT_OK(quern_model_new(&h->model, h->ctx, &model));
  quern_tensor *x = quern_input(h->ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(8, 2));
  quern_tensor *labels = quern_input(h->ctx, "label", QUERN_DTYPE_I32, QUERN_LIST(8));
  quern_tensor *loss = ring_loss_of(ring_logits(quern_model_scope(h->model), x), labels);
  static const quern_optim_group biases = {.match = "*.bias", .lr = 1};
  quern_optim_options optim = QUERN_INIT(quern_optim_options);
  optim.beta2 = 0.95;
  optim.weight_decay = 0.1;
  optim.clip_norm = 1;
  optim.guard = true;
  optim.n_groups = 1;
  optim.groups = &biases;
  EXPECT_OK(quern_step_new(&h->step, h->model, loss, &optim));
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.device = "interp";
  options.n_updates = quern_step_updates(h->step, &options.updates);
  quern_tensor *outputs[] = {loss, quern_step_norm(h->step), quern_step_finite(h->step)};
  EXPECT_OK(quern_program_compile(&h->program, h->ctx, 3, outputs, &options));
  EXPECT_OK(quern_instance_new(&h->instance, h->program));
  EXPECT_OK(quern_instance_init_states(h->instance, h->model));
  quern_loader_options loader = QUERN_INIT(quern_loader_options);
  loader.batch = 8;
  loader.order = QUERN_ORDER_SHUFFLED;
  loader.seed = 7;
  loader.workers = loader.prefetch = 0;
  EXPECT_OK(quern_loader_new(&h->loader, data, &loader));
}

static void close_hand(struct hand *h) {
  quern_loader_free(h->loader);
  quern_instance_free(h->instance);
  quern_program_free(h->program);
  quern_step_free(h->step);
  quern_model_free(h->model);
  quern_context_free(h->ctx);
}

static void hand_step(struct hand *h, float lr, float *loss) {
  quern_batch batch = QUERN_INIT(quern_batch);
  float norm;
  bool finite;
  EXPECT_OK(quern_loader_next(h->loader, &batch));
  EXPECT_OK(quern_instance_bind(h->instance, "x", batch.fields[0], 8 * 2 * sizeof(float)));
  EXPECT_OK(quern_instance_bind(h->instance, "label", batch.fields[1], 8 * sizeof(int32_t)));
  EXPECT_OK(quern_instance_bind(h->instance, "lr", &lr, sizeof lr));
  EXPECT_OK(quern_instance_run_bound(h->instance, (void *[]){loss, &norm, &finite}));
  assert_true(finite);
}

/* Every state of the hand's, by name, has the bytes of the trainer's. */
static void expect_same_states(struct hand *h, quern_trainer *trainer) {
  size_t n = quern_program_state_count(h->program);
  assert_int_equal(n, quern_program_state_count(quern_trainer_program(trainer)));
  for (size_t i = 0; i < n; i++) {
    quern_slot slot = QUERN_INIT(quern_slot);
    size_t k;
    EXPECT_OK(quern_program_state(h->program, i, &slot));
    EXPECT_OK(quern_program_find_state(quern_trainer_program(trainer), slot.name, &k));
    if (memcmp(quern_instance_state(h->instance, i), quern_instance_state(quern_trainer_instance(trainer), k),
               slot.bytes) != 0)
      fail_msg("state \"%s\" differs", slot.name);
  }
}

static void same_as_by_hand(void **state) {
  (void)state;
  quern_source *data = ring_source();
  const quern_train_task task = ring_task(data);
  quern_config *config = ring_config("");
  set(config, "eval_part", "0");
  set(config, "steps", "20");
  quern_trainer *trainer = own_trainer(&task, config);
  struct hand hand;
  open_hand(&hand, data);
  for (int i = 0; i < 20; i++) {
    quern_train_record record = QUERN_INIT(quern_train_record);
    float loss;
    EXPECT_OK(quern_trainer_step(trainer, &record));
    hand_step(&hand, (float)record.lr, &loss);
    assert_true((double)loss == record.loss);
  }
  expect_same_states(&hand, trainer);
  close_hand(&hand);
  quern_trainer_free(trainer);
  quern_config_free(config);
  quern_source_free(data);
}

/* Arrays and a function give the same bits, however many threads read them. */
static void same_however_it_is_read(void **state) {
  (void)state;
  static const char *const workers[][2] = {{"workers", "3"}, {"prefetch", "4"}, {"threads", "2"}};
  quern_source *data = ring_source(), *made;
  EXPECT_OK(quern_source_call(&made, RING_SAMPLES, 2, ring_fields, read_ring, NULL, &memory_allocator));
  uint64_t want = digest_of_run(data, 0, NULL, NULL);
  assert_true(digest_of_run(made, 0, NULL, NULL) == want);
  assert_true(digest_of_run(made, 3, workers, NULL) == want);
  assert_true(digest_of_run(data, 3, workers, NULL) == want);
  quern_source_free(made);
  quern_source_free(data);
}

/* A network that is built as the model mlp is, on the same files: the losses and evaluations of one are those of the
** other. */
static quern_tensor *mlp_loss(quern_train_graph *graph, void *user) {
  static const int64_t widths[] = {RING_HIDDEN};
  quern_tensor *labels = quern_train_graph_input(graph, user);
  quern_tensor *logits = quern_mlp(quern_train_graph_scope(graph), graph->inputs[0], 1, widths, 2, "relu");
  quern_tensor *right = quern_eq(quern_argmax(logits, 1, false), quern_cast(labels, QUERN_DTYPE_I64));
  quern_train_graph_report(graph, "accuracy", right);
  return ring_loss_of(logits, labels);
}

static void same_as_a_model(void **state) {
  (void)state;
  char x[512], y[512], both[1100];
  quern_source *data = ring_source(), *files;
  snprintf(x, sizeof x, "%s", in_folder("x.npy"));
  snprintf(y, sizeof y, "%s", in_folder("y.npy"));
  snprintf(both, sizeof both, "%s,%s", x, y);
  EXPECT_OK(quern_npy_write(x, QUERN_DTYPE_F32, 2, (const int64_t[]){RING_SAMPLES, 2}, ring_x));
  EXPECT_OK(quern_npy_write(y, QUERN_DTYPE_I32, 1, (const int64_t[]){RING_SAMPLES}, ring_label));
  quern_config *config = ring_config(""), *mlp = ring_config("");
  static const char *const settings[][2] = {{"model", "mlp"}, {"layers", "1"}, {"hidden", "8"}};
  for (size_t i = 0; i < BASE_COUNT(settings); i++) set(mlp, settings[i][0], settings[i][1]);
  set(mlp, "data", both);
  EXPECT_OK(quern_source_arrays(&files, 2, (const char *[]){x, y}, &memory_allocator));
  quern_train_task task = ring_task(files);
  task.loss = mlp_loss;
  task.user = y;
  task.labels = y;
  quern_trainer *own = own_trainer(&task, config), *model = trainer_of(mlp);
  assert_true(run_to(own, 6) == run_to(model, 6));
  quern_eval_record a = QUERN_INIT(quern_eval_record), b = QUERN_INIT(quern_eval_record);
  EXPECT_OK(quern_trainer_eval(own, &a));
  EXPECT_OK(quern_trainer_eval(model, &b));
  assert_true(a.loss == b.loss && a.accuracy == b.accuracy && a.samples == b.samples && a.samples == 7);
  assert_true(a.accuracy >= 0 && a.accuracy <= 1);
  quern_trainer_free(own);
  quern_trainer_free(model);
  quern_config_free(config);
  quern_config_free(mlp);
  quern_source_free(files);
  quern_source_free(data);
}

/* Accumulation and every precision give about the same losses. */
static void variants(void **state) {
  (void)state;
  static const char *const others[][2] = {{"precision", "bf16"}, {"precision", "f16"},  {"accum", "4"},
                                          {"optimizer", "sgd"},  {"optimizer", "lion"}, {"ema", "0.9"},
                                          {"checkpoint", "auto"}};
  static const double bounds[] = {0.02, 0.005, 0.2, 1, 1, 0, 0}; /* of 4 parts each has masks of its own */
  quern_source *data = ring_source();
  double want, got;
  (void)digest_of_run(data, 0, NULL, &want);
  for (size_t i = 0; i < BASE_COUNT(others); i++) {
    (void)digest_of_run(data, 1, &others[i], &got);
    if (!(fabs(got - want) <= bounds[i])) fail_msg("%s=%s: loss %g, not %g", others[i][0], others[i][1], got, want);
  }
  quern_source_free(data);
}

/* ---- evaluation ----------------------------------------------------------------------------------------- */

/* 0 for every sample but the last, which is left out or filled up with. */
static quern_tensor *counting_loss(quern_train_graph *graph, void *user) {
  (void)user;
  quern_tensor *x = quern_train_graph_input(graph, "x");
  quern_tensor *w = quern_scope_parameter(quern_train_graph_scope(graph), "w", QUERN_LIST(2), (quern_init){0});
  quern_train_graph_report(graph, "first", quern_sum(quern_abs(x), QUERN_LIST(1), false));
  return quern_sum(quern_mul(quern_mean(x, QUERN_LIST(0), false), w), QUERN_ALL, false);
}

/* Without labels whole batches are evaluated, and when there is not one, all samples are one batch. */
static void whole_batches(void **state) {
  (void)state;
  static const int64_t samples[] = {20, 5}, counted[] = {16, 5};
  quern_source *data = ring_source();
  for (size_t i = 0; i < BASE_COUNT(samples); i++) {
    quern_source *eval;
    EXPECT_OK(quern_source_memory(&eval, samples[i], 2, ring_fields, ring_arrays, &memory_allocator));
    const quern_train_task task = {
        .size = sizeof task, .name = "count", .loss = counting_loss, .data = data, .eval_data = eval};
    quern_config *config = ring_config("");
    quern_trainer *trainer = own_trainer(&task, config);
    quern_eval_record record = QUERN_INIT(quern_eval_record);
    EXPECT_OK(quern_trainer_eval(trainer, &record));
    assert_int_equal(record.samples, counted[i]);
    assert_int_equal(record.n_reports, 1);
    assert_string_equal(record.reports[0].name, "first");
    assert_true(isnan(record.accuracy) && record.loss == 0);
    double sum = 0; /* of five samples, which are all that there are */
    for (int k = 0; k < 5; k++) sum += fabs((double)ring_x[k][0]) + fabs((double)ring_x[k][1]);
    if (i == 1) assert_true(fabs(record.reports[0].value - sum / 5) < 1e-6);
    quern_trainer_free(trainer);
    quern_config_free(config);
    quern_source_free(eval);
  }
  quern_source_free(data);
}

/* Batches of an evaluation without a label that counts, whose loss is 0 / 0, leave the mean of the others as it is. */
static void few_labels(void **state) {
  (void)state;
  enum { SAMPLES = 24 };
  int32_t label[SAMPLES];
  quern_source *data = ring_source(), *eval;
  quern_train_task task = ring_task(data);
  quern_config *config = ring_config("");
  quern_eval_record record = QUERN_INIT(quern_eval_record);
  for (int i = 0; i < SAMPLES; i++) label[i] = i == 3 ? ring_label[i] : -1;
  EXPECT_OK(quern_source_memory(&eval, SAMPLES, 2, ring_fields, (const void *[]){ring_x, label}, &memory_allocator));
  task.eval_data = eval;
  quern_trainer *trainer = own_trainer(&task, config);
  EXPECT_OK(quern_trainer_eval(trainer, &record));
  assert_int_equal(record.samples, SAMPLES);
  assert_true(isfinite(record.loss) && record.loss > 0 && record.best);
  quern_trainer_free(trainer);
  quern_config_free(config);
  quern_source_free(eval);
  quern_source_free(data);
}

/* Each value that is reported has its place in the metrics. */
static void metrics_have_reports(void **state) {
  (void)state;
  quern_source *data = ring_source();
  const quern_train_task task = ring_task(data);
  quern_config *config = ring_config("reported");
  struct base_heap heap;
  void *text;
  size_t n;
  set(config, "report", "true");
  EXPECT_OK(quern_train_with(&task, config, NULL, NULL));
  base_heap_init(&heap, &memory_allocator);
  EXPECT_OK(io_file_read(in_folder("reported/metrics.jsonl"), &heap, 1 << 20, &text, &n));
  const char *line = strstr(text, "\"eval_loss\":");
  assert_non_null(line);
  assert_non_null(strstr(line, "\"accuracy\":0."));
  assert_non_null(strstr(line, "\"entropy\":0."));
  base_free(&heap, text, n);
  EXPECT_OK(io_file_read(in_folder("reported/report.html"), &heap, 1 << 24, &text, &n));
  assert_non_null(strstr(text, "own:ring"));
  base_free(&heap, text, n);
  quern_config_free(config);
  quern_source_free(data);
}

/* ---- going on ------------------------------------------------------------------------------------------- */

static quern_tensor *wide_loss(quern_train_graph *graph, void *user) {
  quern_scope *scope = quern_train_graph_scope(graph);
  quern_tensor *loss = ring_loss(graph, user);
  quern_tensor *more = quern_scope_parameter(scope, "more", QUERN_LIST(3), (quern_init){.a = 1});
  return quern_add(loss, quern_sum(quern_square(more), QUERN_ALL, false));
}

/* Interrupted after every step, it has the bits of a run that was not; another network or other data are refused. */
static void goes_on(void **state) {
  (void)state;
  quern_source *data = ring_source(), *fewer;
  quern_train_task task = ring_task(data);
  quern_config *config = ring_config("own");
  uint64_t want = digest_of_run(data, 0, NULL, NULL);
  quern_trainer *trainer;
  quern_train_record record = QUERN_INIT(quern_train_record);
  for (int i = 0; i < 6; i++) {
    trainer = own_trainer(&task, config);
    assert_int_equal(quern_trainer_info(trainer)->step, i);
    run_to(trainer, i + 1);
    EXPECT_OK(quern_trainer_save(trainer, NULL));
    assert_true(i < 5 || digest_of(trainer) == want);
    quern_trainer_free(trainer);
  }
  task.name = "ring-2";
  EXPECT_ERROR(quern_trainer_new_with(&trainer, &task, config, NULL), INVALID,
               "was made with model = 'own:ring', not 'own:ring-2'");
  EXPECT_ERROR(quern_train_with(&task, config, NULL, NULL), INVALID, "was made with model = 'own:ring'");
  task.name = "ring";
  task.loss = wide_loss;
  EXPECT_ERROR(quern_trainer_new_with(&trainer, &task, config, NULL), INVALID, "has no tensor 'more'");
  task.loss = mlp_loss;
  task.user = "label";
  EXPECT_ERROR(quern_trainer_new_with(&trainer, &task, config, NULL), INVALID,
               ", which the network has not: it was made with another network");
  task = ring_task(data);
  set(config, "steps", "9");
  EXPECT_OK(quern_source_memory(&fewer, RING_SAMPLES - 8, 2, ring_fields, ring_arrays, &memory_allocator));
  task.data = fewer;
  EXPECT_ERROR(quern_train_with(&task, config, NULL, NULL), INVALID, "the data has changed since");
  task.data = data;
  ring_x[RING_SAMPLES - 1][0] += 1;
  trainer = own_trainer(&task, config);
  EXPECT_ERROR(quern_trainer_step(trainer, &record), INVALID, "the data has changed since");
  quern_trainer_free(trainer);
  quern_config *again;
  EXPECT_OK(quern_train_config(&again, &memory_allocator));
  EXPECT_OK(quern_train_config_of(again, in_folder("own")));
  assert_string_equal(quern_config_get(again, "model"), "own:ring");
  EXPECT_ERROR(quern_train(again, NULL, NULL), INVALID, "model = 'own:ring': the network of a program");
  make_ring();
  EXPECT_OK(quern_train_with(&task, again, NULL, NULL)); /* the keys of the run, whose model is this task's */
  quern_config_free(again);
  quern_source_free(fewer);
  quern_config_free(config);
  quern_source_free(data);
}

/* ---- values that are not finite ------------------------------------------------------------------------- */

static quern_tensor *log_loss(quern_train_graph *graph, void *user) {
  (void)user;
  quern_tensor *x = quern_nn_linear(quern_scope_in(quern_train_graph_scope(graph), "gate"),
                                    quern_train_graph_input(graph, "x"), 4, NULL);
  return quern_mean(quern_log(x), QUERN_ALL, false);
}

static void names_the_operation(void **state) {
  (void)state;
  static const char *const parts[] = {"1", "2"};
  quern_source *data = ring_source();
  for (size_t i = 0; i < BASE_COUNT(parts); i++) {
    const quern_train_task task = {.size = sizeof task, .name = "log", .loss = log_loss, .data = data};
    quern_config *config = ring_config("");
    quern_train_record record = QUERN_INIT(quern_train_record);
    set(config, "accum", parts[i]);
    quern_trainer *trainer = own_trainer(&task, config);
    EXPECT_ERROR(quern_trainer_step(trainer, &record), STATE, "step 1: log of f32 (");
    assert_non_null(strstr(quern_last_error(), "is the first operation that gave a value that is not finite"));
    assert_non_null(strstr(quern_last_error(), "near gate."));
    quern_trainer_free(trainer);
    quern_config_free(config);
  }
  quern_source_free(data);
}

/* ---- plans ---------------------------------------------------------------------------------------------- */

struct begun {
  quern_train_info info;
  quern_memory_plan memory;
};

static void on_begin(void *user, const quern_train_info *info) {
  *(struct begun *)user = (struct begun){*info, *info->memory};
}

static void planned(void **state) {
  (void)state;
  quern_source *data = ring_source();
  const quern_train_task task = ring_task(data);
  quern_config *config = ring_config("");
  struct begun begun = {0};
  quern_train_callbacks callbacks = QUERN_INIT(quern_train_callbacks);
  quern_curve_point points[4] = {QUERN_INIT(quern_curve_point)};
  size_t n = 0;
  callbacks.user = &begun;
  callbacks.begin = on_begin;
  EXPECT_OK(quern_train_plan_with(&task, config, &callbacks, 4, points, &n));
  assert_true(n >= 1 && begun.memory.arena > 0 && begun.memory.state > 0 && begun.info.flops > 0);
  assert_int_equal(begun.info.parameters,
                   (2 + 1) * RING_HIDDEN + (RING_HIDDEN + 1) * RING_HIDDEN + (RING_HIDDEN + 1) * 2);
  assert_int_equal(begun.info.train_samples, 65);
  assert_int_equal(begun.info.size, sizeof begun.info);
  assert_int_equal(begun.memory.size, sizeof begun.memory);
  assert_int_equal(begun.info.eval_samples, 7);
  assert_int_equal(begun.info.length, 0);
  quern_config_free(config);
  quern_source_free(data);
}

/* ---- what is wrong -------------------------------------------------------------------------------------- */

static quern_tensor *broken_loss(quern_train_graph *graph, void *user) {
  const char *how = user;
  quern_scope *scope = quern_train_graph_scope(graph);
  quern_context *in = quern_model_context(quern_scope_model(scope));
  quern_tensor *x = quern_train_graph_input(graph, "x"), *loss = ring_loss(graph, NULL);
  if (strcmp(how, "null") == 0) return NULL;
  if (strcmp(how, "vector") == 0) return quern_mean(x, QUERN_LIST(1), false);
  if (strcmp(how, "integer") == 0) return quern_sum(quern_train_graph_input(graph, "label"), QUERN_ALL, false);
  if (strcmp(how, "no parameter") == 0) return quern_mean(x, QUERN_ALL, false);
  if (strcmp(how, "shapes") == 0)
    return quern_mean(quern_add(x, quern_train_graph_input(graph, "label")), QUERN_ALL, false);
  if (strcmp(how, "field") == 0) return quern_add(loss, quern_train_graph_input(graph, "lable"));
  if (strcmp(how, "null field") == 0) return quern_add(loss, quern_train_graph_input(graph, NULL));
  if (strcmp(how, "input") == 0) return quern_add(loss, quern_input(in, "noise", QUERN_DTYPE_F32, QUERN_SCALAR));
  if (strcmp(how, "head") == 0 && quern_scope_train(scope)) /* evaluation has not this parameter */
    return quern_add(loss, quern_scope_parameter(scope, "extra", QUERN_SCALAR, (quern_init){0}));
  if (strcmp(how, "twice") == 0) quern_train_graph_report(graph, "accuracy", x);
  if (strcmp(how, "name") == 0) quern_train_graph_report(graph, "a b", x);
  if (strcmp(how, "null name") == 0) quern_train_graph_report(graph, NULL, x);
  if (strcmp(how, "taken") == 0) quern_train_graph_report(graph, "eval_loss", x);
  if (strcmp(how, "null values") == 0) quern_train_graph_report(graph, "x", NULL);
  if (strcmp(how, "shape") == 0) quern_train_graph_report(graph, "x", x);
  for (int i = 0; i < 7 && strcmp(how, "many") == 0; i++)
    quern_train_graph_report(graph, (char[]){(char)('a' + i), 0}, quern_sum(x, QUERN_LIST(1), false));
  return loss;
}

static void wrong_losses(void **state) {
  (void)state;
  static const struct {
    const char *how;
    quern_status status;
    const char *words;
  } cases[] = {{"null", QUERN_STATUS_INVALID, "task 'broken': the function that builds the loss gave none"},
               {"vector", QUERN_STATUS_SHAPE, "task 'broken': the loss is f32(8,); must be a scalar of floats"},
               {"integer", QUERN_STATUS_SHAPE, "task 'broken': the loss is i32(); must be a scalar of floats"},
               {"no parameter", QUERN_STATUS_INVALID, "the loss depends on no trained parameter"},
               {"shapes", QUERN_STATUS_DTYPE, "add: "},
               {"field", QUERN_STATUS_INVALID, "the samples have no field \"lable\""},
               {"field", QUERN_STATUS_INVALID, "test_own.c:"},
               {"null field", QUERN_STATUS_INVALID, "train_graph_input: the name is null"},
               {"input", QUERN_STATUS_INVALID, "depends on an input \"noise\" that is no field of the samples"},
               {"head", QUERN_STATUS_STATE, "the loss for training has the parameter \"extra\", which that for"},
               {"twice", QUERN_STATUS_INVALID, "\"accuracy\" is reported twice"},
               {"name", QUERN_STATUS_INVALID, "\"a b\" is no name"},
               {"null name", QUERN_STATUS_INVALID, "train_graph_report: the name is null"},
               {"taken", QUERN_STATUS_INVALID, "\"eval_loss\" is a name that lines of metrics have"},
               {"null values", QUERN_STATUS_INVALID, "\"x\" is reported as null"},
               {"shape", QUERN_STATUS_SHAPE, "\"x\" is f32(8, 2); must be (8,), a number per sample"},
               {"many", QUERN_STATUS_INVALID, "\"g\" is one more than can be reported"}};
  quern_source *data = ring_source();
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    quern_train_task task = ring_task(data);
    task.name = "broken";
    task.loss = broken_loss;
    task.user = (void *)(uintptr_t)cases[i].how;
    quern_config *config = ring_config("");
    quern_trainer *trainer;
    quern_status status = quern_trainer_new_with(&trainer, &task, config, NULL);
    if (status != cases[i].status || trainer != NULL || strstr(quern_last_error(), cases[i].words) == NULL)
      fail_msg("%s: expected \"%s\", got %s: %s", cases[i].how, cases[i].words, quern_status_name(status),
               quern_last_error());
    quern_config_free(config);
  }
  quern_source_free(data);
}

static quern_status fail_to_read(void *self, int64_t index, void *const *fields) {
  if (index == *(const int64_t *)self) return quern_source_fail(QUERN_STATUS_IO, "the disc is gone");
  return read_ring(NULL, index, fields);
}

/* A sample that cannot be read ends the run with the reason: before it begins, or in the step that needs it. */
static void failing_samples(void **state) {
  (void)state;
  static const int64_t which[] = {0, 1};
  quern_source *ring = ring_source();
  for (size_t i = 0; i < BASE_COUNT(which); i++) {
    quern_source *data;
    int64_t fails = which[i];
    EXPECT_OK(quern_source_call(&data, RING_SAMPLES, 2, ring_fields, fail_to_read, &fails, &memory_allocator));
    const quern_train_task task = ring_task(data);
    quern_config *config = ring_config("");
    set(config, "steps", "9");
    EXPECT_ERROR(quern_train_with(&task, config, NULL, NULL), IO, "the disc is gone");
    quern_config_free(config);
    quern_source_free(data);
  }
  quern_source_free(ring);
}

static void wrong_tasks(void **state) {
  (void)state;
  const quern_field twice[] = {ring_fields[0], ring_fields[0]}, lr[] = {ring_fields[0], {.name = "lr"}},
                    deep[] = {ring_fields[0], {.name = "deep", .rank = QUERN_MAX_RANK - 1}};
  quern_field deepest = deep[1];
  for (int i = 0; i < deepest.rank; i++) deepest.dims[i] = 1;
  const quern_field deep_fields[] = {ring_fields[0], deepest};
  const struct {
    const quern_field *fields;
    const char *words;
  } cases[] = {{twice, "field 1 is named \"x\"; must be a name of its own, not lr or made"},
               {lr, "field 1 is named \"lr\""},
               {deep_fields, "field \"deep\" has rank"}};
  quern_source *data = ring_source();
  quern_config *config = ring_config("");
  quern_trainer *trainer;
  for (size_t i = 0; i < BASE_COUNT(cases); i++) {
    quern_source *other;
    EXPECT_OK(quern_source_memory(&other, 8, 2, cases[i].fields, ring_arrays, &memory_allocator));
    quern_train_task task = ring_task(other);
    if (strstr(quern_trainer_new_with(&trainer, &task, config, NULL) != QUERN_STATUS_OK ? quern_last_error() : "",
               cases[i].words) == NULL)
      fail_msg("case %zu: %s", i, quern_last_error());
    task.data = data;
    task.eval_data = other;
    EXPECT_ERROR(quern_trainer_new_with(&trainer, &task, config, NULL), INVALID,
                 "the fields of eval_data are not those of data");
    quern_source_free(other);
  }
  quern_train_task task = ring_task(data);
  task.labels = "lable";
  EXPECT_ERROR(quern_trainer_new_with(&trainer, &task, config, NULL), INVALID,
               "labels = \"lable\": data has no such field");
  task.labels = "x";
  EXPECT_ERROR(quern_trainer_new_with(&trainer, &task, config, NULL), DTYPE,
               "its elements are f32; must be signed integers");
  set(config, "batch", "70");
  task = ring_task(data);
  EXPECT_ERROR(quern_trainer_new_with(&trainer, &task, config, NULL), INVALID,
               "batch = 70: there are 65 samples to train on");
  set(config, "model", "lstm");
  EXPECT_ERROR(quern_trainer_new_with(&trainer, &task, config, NULL), INVALID,
               "model = 'lstm': the task is 'own:ring'");
  quern_config_free(config);
  quern_source_free(data);
}

/* ---- memory --------------------------------------------------------------------------------------------- */

/* Whichever allocation fails, the run ends with an error, and nothing is held. */
static void allocations_fail(void **state) {
  (void)state;
  uint64_t failed = 0;
  quern_source *data = ring_source();
  for (uint64_t n = 1;; n += 1 + n / 12) {
    quern_config *config = ring_config("");
    const quern_train_task task = ring_task(data);
    quern_trainer *trainer = NULL;
    quern_train_record record = QUERN_INIT(quern_train_record);
    quern_eval_record eval = QUERN_INIT(quern_eval_record);
    size_t before = memory_live;
    memory_fault.left = n;
    memory_fault.alone = n % 2 == 0;
    memory_fault.met = false;
    quern_status status = quern_trainer_new_with(&trainer, &task, config, NULL);
    if (status == QUERN_STATUS_OK) status = quern_trainer_step(trainer, &record);
    if (status == QUERN_STATUS_OK) status = quern_trainer_eval(trainer, &eval);
    bool met = memory_fault.met;
    memory_fault.left = 0;
    quern_trainer_free(trainer);
    if (memory_live != before)
      fail_msg("allocation %llu: %zu bytes are held", (unsigned long long)n, memory_live - before);
    quern_config_free(config);
    if (met && status == QUERN_STATUS_OK && !memory_fault.alone)
      fail_msg("allocation %llu failed, the run did not", (unsigned long long)n);
    if (!met) assert_int_equal(status, QUERN_STATUS_OK);
    if (!met) break;
    assert_true(status == QUERN_STATUS_OK || status == QUERN_STATUS_MEMORY);
    failed++;
  }
  assert_true(failed > 40);
  quern_source_free(data);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(same_as_by_hand),      TEST(same_however_it_is_read),
                                     TEST(same_as_a_model),      TEST(variants),
                                     TEST(whole_batches),        TEST(few_labels),
                                     TEST(metrics_have_reports), TEST(goes_on),
                                     TEST(names_the_operation),  TEST(planned),
                                     TEST(wrong_losses),         TEST(failing_samples),
                                     TEST(wrong_tasks),          TEST(allocations_fail)};
  return cmocka_run_group_tests_name("train/own", tests, setup_folder, remove_folder);
}
