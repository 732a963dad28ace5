/* train/trainer.c -- a run step by step
** in:    a configuration                       out: steps, evaluations
** keeps: the same configuration gives the same bits, wherever it was interrupted and with any number of threads
** tests: tests/train/test_train.c
*/
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "train/train.h"

void train_note(const quern_trainer *t, const char *fmt, ...) {
  if (t->callbacks.note == NULL) return;
  char text[1024];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  t->callbacks.note(t->callbacks.user, text);
}

/* ---- making --------------------------------------------------------------------------------------------- */

/* A configuration of its own, with the same values. */
static quern_status copy_config(quern_trainer *t, const quern_config *config) {
  char *text;
  QUERN_TRY(quern_train_config(&t->config, &t->heap.user));
  QUERN_TRY(quern_config_print(config, true, &text));
  quern_status status = quern_config_text(t->config, "the configuration", text, strlen(text));
  quern_free_text(text);
  return status;
}

static quern_status set_int(quern_config *config, const char *key, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  return quern_config_set(config, key, text);
}

/* Writes down what the data has said, so that a checkpoint is understood without it. */
static quern_status settle(quern_trainer *t) {
  const struct train_spec *spec = &t->spec;
  if (spec->task == TRAIN_TASK_OWN) return QUERN_STATUS_OK;
  if (spec->task == TRAIN_TASK_CLASSES) return set_int(t->config, "classes", spec->classes);
  if (spec->family == TRAIN_LM) QUERN_TRY(set_int(t->config, "positions", spec->lm.positions));
  return set_int(t->config, "vocabulary", spec->lm.vocabulary);
}

static quern_status open_loader(quern_trainer *t) {
  const quern_config *c = t->config;
  quern_loader_options options = QUERN_INIT(quern_loader_options);
  options.batch = t->info.batch;
  options.order = QUERN_ORDER_SHUFFLED;
  options.seed = (uint64_t)quern_config_int(c, "seed");
  int workers = (int)quern_config_int(c, "workers");
  options.workers = workers > 0 ? workers : -1;
  options.prefetch = BASE_MAX((int)quern_config_int(c, "prefetch"), 1);
  options.allocator = t->heap.user;
  QUERN_CHECK(t->info.batch <= t->info.train_samples, INVALID,
              "batch = %lld: there are %lld samples to train on HINT: batch=%lld, or a smaller length",
              (long long)t->info.batch, (long long)t->info.train_samples, (long long)t->info.train_samples);
  return quern_loader_new(&t->loader, t->data.train, &options);
}

static quern_status open_schedule(quern_trainer *t) {
  static const struct {
    const char *name;
    quern_schedule_kind kind;
  } kinds[] = {{"constant", QUERN_SCHEDULE_CONSTANT}, {"cosine", QUERN_SCHEDULE_COSINE},
               {"linear", QUERN_SCHEDULE_LINEAR},     {"polynomial", QUERN_SCHEDULE_POLYNOMIAL},
               {"step", QUERN_SCHEDULE_STEP},         {"exponential", QUERN_SCHEDULE_EXPONENTIAL},
               {"plateau", QUERN_SCHEDULE_PLATEAU}};
  const quern_config *c = t->config;
  const char *name = quern_config_get(c, "schedule");
  int64_t warmup = BASE_MIN(quern_config_int(c, "warmup"), t->info.steps), left = t->info.steps - warmup;
  quern_schedule_piece *piece = t->pieces;
  if (warmup > 0)
    *piece++ =
        (quern_schedule_piece){.kind = QUERN_SCHEDULE_LINEAR, .steps = warmup, .start = 1 / (double)warmup, .end = 1};
  *piece = (quern_schedule_piece){.every = quern_config_int(c, "lr_every"),
                                  .patience = quern_config_int(c, "lr_patience"),
                                  .start = 1,
                                  .end = quern_config_real(c, "lr_end"),
                                  .gamma = quern_config_real(c, "lr_gamma"),
                                  .power = quern_config_real(c, "lr_power")};
  for (size_t i = 0; i < BASE_COUNT(kinds); i++)
    if (strcmp(name, kinds[i].name) == 0) piece->kind = kinds[i].kind;
  bool falls = piece->kind == QUERN_SCHEDULE_COSINE || piece->kind == QUERN_SCHEDULE_LINEAR ||
               piece->kind == QUERN_SCHEDULE_POLYNOMIAL;
  if (falls) piece->steps = BASE_MAX(left, 1);
  t->schedule = (quern_schedule){.lr = quern_config_real(c, "lr"), .n_pieces = warmup > 0 ? 2 : 1, .pieces = t->pieces};
  return QUERN_STATUS_OK;
}

/* What the configuration and the data say of sizes. */
static quern_status fill_info(quern_trainer *t) {
  const quern_config *c = t->config;
  quern_train_info *info = &t->info;
  info->size = sizeof *info;
  info->batch = quern_config_int(c, "batch");
  info->length = t->spec.length;
  info->train_samples = quern_source_sample_count(t->data.train);
  info->eval_samples = t->data.eval != NULL ? quern_source_sample_count(t->data.eval) : 0;
  info->limit = quern_config_int(c, "memory");
  info->reading += t->data.seconds;
  info->out = quern_config_get(c, "out");
  info->data = quern_config_get(c, "data");
  info->model = quern_config_get(c, "model");
  info->precision = quern_config_get(c, "precision");
  info->checkpoint = quern_config_get(c, "checkpoint");
  QUERN_TRY(open_loader(t));
  int64_t epochs = quern_config_int(c, "epochs"), batches = quern_loader_batch_count(t->loader);
  QUERN_CHECK(epochs <= TRAIN_STEPS_MOST / batches, INVALID, "epochs = %lld: of %lld batches are more than %lld steps",
              (long long)epochs, (long long)batches, (long long)TRAIN_STEPS_MOST);
  info->steps = epochs > 0 ? epochs * batches : quern_config_int(c, "steps");
  QUERN_CHECK(info->steps <= INT64_MAX / info->batch, INVALID,
              "steps = %lld, batch = %lld: more than 2^63 - 1 samples are read", (long long)info->steps,
              (long long)info->batch);
  return open_schedule(t);
}

quern_status train_open_run(quern_trainer *t, bool plan) {
  const quern_train_task *task = t->task.name != NULL ? &t->task : NULL;
  QUERN_TRY(train_device_open(t, plan));
  QUERN_TRY(train_spec_read(&t->spec, t->config));
  QUERN_CHECK(task != NULL || t->spec.family != TRAIN_OWN, INVALID,
              "model = '%.80s': the network of a program, which trains it and goes on with it HINT: run that program",
              quern_config_get(t->config, "model"));
  QUERN_TRY(train_data_open(&t->data, &t->heap, t->config, &t->spec, task));
  QUERN_TRY(train_network_open(&t->network, task, &t->spec, &t->data));
  QUERN_TRY(settle(t));
  return fill_info(t);
}

/* ---- ready ---------------------------------------------------------------------------------------------- */

static void begin(quern_trainer *t, double start) {
  static atomic_flag later = ATOMIC_FLAG_INIT; /* the process's start counts for its first run only */
  double seconds = atomic_flag_test_and_set(&later) ? base_clock() - start : train_process_seconds();
  t->info.first_launch = seconds - t->info.initial - t->info.reading;
  train_find_measuring(t);
  if (t->callbacks.begin != NULL) t->callbacks.begin(t->callbacks.user, &t->info);
  train_find_peak(t); /* the caller may have had the machine measured */
}

static quern_status start_run(quern_trainer *t, bool folder, double start) {
  if (folder) QUERN_TRY(train_folder_open(t, t->config));
  QUERN_TRY(train_open_run(t, false));
  double reading = base_clock();
  quern_checkpoint *checkpoint = NULL;
  if (t->info.out[0] != 0) QUERN_TRY(quern_checkpoint_find(&checkpoint, t->info.out, &t->heap.user));
  t->info.reading += base_clock() - reading;
  quern_status status = train_precision(t, checkpoint);
  if (status == QUERN_STATUS_OK) status = train_open_programs(t, checkpoint);
  quern_checkpoint_close(checkpoint);
  if (status == QUERN_STATUS_OK) begin(t, start);
  return status;
}

static quern_trainer *alloc(const quern_config *config, const quern_train_callbacks *callbacks) {
  struct base_heap heap;
  base_heap_init(&heap, io_config_allocator(config));
  quern_trainer *t = base_alloc_zero(&heap, sizeof *t);
  if (t == NULL) return NULL;
  t->heap = heap;
  t->best = INFINITY;
  t->folder = t->lock = -1;
  if (callbacks != NULL) t->callbacks = *callbacks;
  return t;
}

/* The key `model` of a run names its task. */
static quern_status name_model(quern_trainer *t, const quern_train_task *task, const quern_config *config) {
  const char *model = quern_config_get(t->config, "model");
  char name[sizeof TRAIN_OWN_MODEL + TRAIN_NAME];
  snprintf(name, sizeof name, TRAIN_OWN_MODEL "%s", task->name);
  QUERN_CHECK(!quern_config_is_set(config, "model") || strcmp(model, name) == 0, INVALID,
              "model = '%.80s': the task is '%s' HINT: leave the key as it is", model, name);
  return quern_config_set(t->config, "model", name);
}

quern_status train_request_open(quern_trainer **trainer, const struct train_request *r) {
  QUERN_CHECK(r->task != NULL || !r->own, INVALID, "%s: the task is null", r->what);
  QUERN_CHECK(r->config != NULL, INVALID, "%s: the configuration is null", r->what);
  quern_train_callbacks callbacks;
  quern_train_task task = {0};
  QUERN_TRY(base_take(quern_train_callbacks, &callbacks, r->callbacks, r->what));
  if (r->task != NULL) QUERN_TRY(train_task_take(&task, r->task));
  QUERN_TRY(base_env_read());
  quern_trainer *made = alloc(r->config, &callbacks);
  if (made == NULL) return QUERN_STATUS_MEMORY;
  made->task = task;
  quern_status status = copy_config(made, r->config);
  if (status == QUERN_STATUS_OK && task.name != NULL) status = name_model(made, &task, r->config);
  if (status == QUERN_STATUS_OK)
    *trainer = made;
  else
    quern_trainer_free(made);
  return status;
}

quern_status train_new(quern_trainer **trainer, const struct train_request *request, bool folder) {
  double start = base_clock();
  QUERN_CHECK(trainer != NULL, INVALID, "%s: the place for the trainer is null", request->what);
  *trainer = NULL;
  quern_trainer *made;
  QUERN_TRY(train_request_open(&made, request));
  quern_status status = start_run(made, folder, start);
  if (status == QUERN_STATUS_OK)
    *trainer = made;
  else
    quern_trainer_free(made);
  return status;
}

quern_status quern_trainer_new(quern_trainer **trainer, const quern_config *config,
                               const quern_train_callbacks *callbacks) {
  const struct train_request request = {"trainer_new", NULL, false, config, callbacks};
  return train_new(trainer, &request, false);
}

quern_status quern_trainer_new_with(quern_trainer **trainer, const quern_train_task *task, const quern_config *config,
                                    const quern_train_callbacks *callbacks) {
  const struct train_request request = {"trainer_new_with", task, true, config, callbacks};
  return train_new(trainer, &request, false);
}

void quern_trainer_free(quern_trainer *t) {
  if (t == NULL) return;
  train_unlock(t);
  quern_loader_free(t->loader);
  train_program_free(&t->eval);
  train_program_free(&t->main);
  train_build_free(t);
  train_data_close(&t->data);
  quern_config_free(t->config);
  struct base_heap heap = t->heap;
  base_free(&heap, t, sizeof *t);
}

const quern_train_info *quern_trainer_info(const quern_trainer *trainer) {
  return trainer != NULL ? &trainer->info : NULL;
}
const quern_program *quern_trainer_program(const quern_trainer *trainer) {
  return trainer != NULL ? trainer->main.program : NULL;
}
quern_instance *quern_trainer_instance(quern_trainer *trainer) {
  return trainer != NULL ? trainer->main.instance : NULL;
}

/* ---- steps ---------------------------------------------------------------------------------------------- */

/* The mean seconds of the last steps, without the first one of the process where there are others. */
static double recent_seconds(const quern_trainer *t) {
  int64_t n = BASE_MIN(t->n_recent, TRAIN_RECENT), from = t->n_recent > 1 && t->n_recent <= TRAIN_RECENT ? 1 : 0;
  struct train_window sum = {0};
  for (int64_t i = from; i < n; i++) {
    sum.seconds += t->recent[i].seconds;
    sum.steps += t->recent[i].steps;
  }
  return sum.steps > 0 ? sum.seconds / (double)sum.steps : 0;
}

/* Of a step that was read, and of those since the last that was. */
static quern_status fill_record(quern_trainer *t, quern_train_record *r) {
  double work = (double)t->info.batch * (double)BASE_MAX(t->info.length, 1);
  struct train_window window = {base_clock() - t->since, t->unread + 1};
  r->seconds = window.seconds / (double)window.steps;
  t->recent[t->n_recent++ % TRAIN_RECENT] = window;
  double mean = recent_seconds(t);
  r->known = true;
  if (t->n_recent <= 2) train_device_measure(t); /* the second run may be the first as a graph */
  r->loss = train_output(&t->main, TRAIN_LOSS);
  r->norm = train_output(&t->main, TRAIN_NORM);
  r->skipped = train_output(&t->main, TRAIN_FINITE) == 0;
  r->per_second = mean > 0 ? work / mean : 0;
  r->peak = t->info.peak > 0 && r->seconds > 0 ? t->info.flops / r->seconds / t->info.peak : 0;
  r->left = mean * (double)(t->info.steps - t->info.step);
  t->unread = 0;
  if (t->least_scale == 0) return QUERN_STATUS_OK;
  quern_scaler_stats stats = {.size = sizeof stats};
  QUERN_TRY(quern_scaler_get_stats(t->main.instance, &stats));
  r->scale = stats.scale;
  r->success_rate = stats.success_rate;
  return QUERN_STATUS_OK;
}

/* A step was not finite, and none was made since: states are what they were before it. Of the steps that were asked for since the
** loader stood at `from` it is found, and what went wrong in it. batch: that of the last; NULL: it is gone. */
static quern_status find_fault(quern_trainer *t, int64_t asked, quern_cursor from, const quern_batch *batch) {
  quern_batch again = QUERN_INIT(quern_batch);
  double made = (double)t->info.step;
  t->broken = true;
  if (t->main.in_made >= 0) QUERN_TRY(train_state_scalar(t, "step", &made));
  if ((int64_t)made + 1 < t->info.step || batch == NULL) {
    QUERN_CHECK((int64_t)made >= t->info.step - asked, INTERNAL, "train: %lld steps were made, and %lld before these",
                (long long)made, (long long)(t->info.step - asked));
    QUERN_TRY(quern_loader_seek(t->loader, from));
    for (int64_t i = t->info.step - asked; i <= (int64_t)made; i++) QUERN_TRY(quern_loader_next(t->loader, &again));
    t->info.step = (int64_t)made + 1;
    t->main.made = (uint64_t)made;
    batch = &again;
    QUERN_TRY(train_run(&t->main, batch->fields, true));
  }
  return train_find_nonfinite(t, batch->fields);
}

/* Whether a step has to be read in any case: with a scaler the next depends on what became of it. */
static bool must_read(const quern_trainer *t) { return !t->remote || t->least_scale > 0; }

/* What became of the last of the steps that were asked for. */
static quern_status check_step(quern_trainer *t, quern_train_record *record, double scale, const quern_batch *batch) {
  int64_t asked = t->unread + 1;
  quern_cursor from = t->read;
  bool made = train_output(&t->main, TRAIN_FINITE) != 0, finite = made && isfinite(train_output(&t->main, TRAIN_LOSS));
  QUERN_TRY(fill_record(t, record));
  if (finite || scale > t->least_scale) return QUERN_STATUS_OK; /* a scale that can fall explains an overflow */
  quern_status status = find_fault(t, asked, from, batch);
  record->step = t->info.step;
  return status;
}

quern_status train_step(quern_trainer *t, quern_train_record *record, bool read) {
  quern_batch batch = QUERN_INIT(quern_batch);
  double scale = 0;
  *record = (quern_train_record){
      .size = sizeof *record, .step = t->info.step, .steps = t->info.steps, .scale = 1, .success_rate = 1};
  QUERN_CHECK(!t->broken, STATE, "trainer_step: the last step was not finite: there is nothing to go on from");
  if (t->info.step >= t->info.steps) return QUERN_STATUS_OK;
  QUERN_TRY(train_check_data(t));
  if (t->unread == 0) {
    t->since = base_clock();
    t->read = quern_loader_tell(t->loader);
  }
  QUERN_TRY(quern_loader_next(t->loader, &batch));
  if (t->least_scale > 0) QUERN_TRY(train_state_scalar(t, "scaler.scale", &scale));
  record->lr = quern_schedule_at(&t->schedule, t->info.step);
  base_store_float(t->spec.dtype, t->main.lr, 0, record->lr);
  t->main.made = (uint64_t)t->info.step;
  read = read || must_read(t);
  QUERN_TRY(train_run(&t->main, batch.fields, read));
  record->step = ++t->info.step;
  if (read) return check_step(t, record, scale, &batch);
  t->unread++;
  return QUERN_STATUS_OK;
}

quern_status train_sync(quern_trainer *t) {
  double made;
  int64_t asked = t->unread;
  if (asked == 0) return QUERN_STATUS_OK;
  t->unread = 0;
  QUERN_TRY(train_state_scalar(t, "step", &made));
  return (int64_t)made >= t->info.step ? QUERN_STATUS_OK : find_fault(t, asked, t->read, NULL);
}

quern_status quern_trainer_step(quern_trainer *trainer, quern_train_record *record) {
  QUERN_CHECK(trainer != NULL, INVALID, "trainer_step: the trainer is null");
  QUERN_CHECK(record != NULL, INVALID, "trainer_step: the place for the record is null");
  quern_train_record made = QUERN_INIT(quern_train_record);
  QUERN_TRY(base_give(quern_train_record, record, &made, "trainer_step"));
  quern_status status = train_step(trainer, &made, true);
  base_struct_put(record, record->size, &made, sizeof made);
  return status;
}

/* ---- evaluation ----------------------------------------------------------------------------------------- */

/* What a batch weighs in a mean of losses: its labels that count, or its samples. */
static double weight_of(const quern_trainer *t, const quern_batch *batch) {
  const quern_field *fields;
  int64_t each = 1, n = 0;
  int labels = t->data.labels;
  if (labels < 0) return (double)batch->samples;
  (void)quern_source_fields(t->data.eval, &fields);
  for (int i = 0; i < fields[labels].rank; i++) each *= fields[labels].dims[i];
  for (int64_t i = 0; i < each * batch->samples; i++)
    n += (int64_t)base_load_int(fields[labels].dtype, batch->fields[labels], (size_t)i) >= 0;
  return (double)n;
}

/* What was reported, as means over the samples. */
static void fill_results(quern_trainer *t, const double *sums, quern_eval_record *r) {
  for (size_t i = 0; i < t->results.n; i++) {
    double value = r->samples > 0 ? sums[i] / (double)r->samples : NAN;
    t->results.values[i].value = value;
    if (strcmp(t->results.names[i], "accuracy") == 0) r->accuracy = value;
  }
  r->n_reports = t->results.n;
  r->reports = t->results.values;
}

static quern_status eval_batches(quern_trainer *t, quern_loader *loader, quern_eval_record *r) {
  int64_t most = quern_config_int(t->config, "eval_batches") * t->info.accum;
  double loss = 0, weights = 0, sums[TRAIN_REPORTS] = {0};
  quern_batch batch = QUERN_INIT(quern_batch);
  for (int64_t i = 0; most == 0 || i < most; i++) {
    QUERN_TRY(quern_loader_next(loader, &batch));
    if (batch.fields == NULL) break;
    QUERN_TRY(train_run(&t->eval, batch.fields, true));
    double weight = weight_of(t, &batch);
    if (weight > 0) loss += weight * train_output(&t->eval, TRAIN_LOSS); /* a mean over no label is NaN */
    weights += weight;
    for (size_t k = 0; k < t->results.n; k++) sums[k] += train_output(&t->eval, TRAIN_REPORTED + k);
    r->samples += batch.samples;
  }
  r->loss = weights > 0 ? loss / weights : NAN;
  fill_results(t, sums, r);
  return QUERN_STATUS_OK;
}

/* A better one than all before, or one more that is not. */
static void check(quern_trainer *t, quern_eval_record *r) {
  r->best = r->loss < t->best;
  t->bad = r->best ? 0 : t->bad + 1;
  if (r->best) t->best = r->loss;
  quern_schedule_report(&t->schedule, r->loss);
}

/* Makes the program of evaluations and its instance where they are not there yet. */
static quern_status open_eval(quern_trainer *t, const char *what) {
  QUERN_CHECK(t->data.eval != NULL, STATE,
              "%s: there are no samples for evaluation HINT: eval_data=FILE, or eval_part above 0", what);
  QUERN_TRY(train_sync(t));
  QUERN_TRY(train_eval_program(t, false));
  if (t->eval.instance != NULL) return QUERN_STATUS_OK;
  return quern_instance_new_with(&t->eval.instance, t->eval.program, t->main.instance);
}

quern_status quern_trainer_evaluation(quern_trainer *trainer, const quern_program **program,
                                      quern_instance **instance) {
  if (program != NULL) *program = NULL;
  if (instance != NULL) *instance = NULL;
  QUERN_CHECK(trainer != NULL, INVALID, "trainer_evaluation: the trainer is null");
  QUERN_TRY(open_eval(trainer, "trainer_evaluation"));
  if (program != NULL) *program = trainer->eval.program;
  if (instance != NULL) *instance = trainer->eval.instance;
  return QUERN_STATUS_OK;
}

static quern_status evaluate(quern_trainer *t, quern_eval_record *record) {
  *record = (quern_eval_record){.size = sizeof *record, .step = t->info.step, .loss = NAN, .accuracy = NAN};
  double start = base_clock();
  QUERN_TRY(open_eval(t, "trainer_eval"));
  quern_loader_options options = QUERN_INIT(quern_loader_options);
  options.batch = t->eval_batch;
  options.order = QUERN_ORDER_SHUFFLED; /* always the same: not only the first ones of a long text */
  options.last = t->data.labels >= 0 ? QUERN_LAST_PAD : QUERN_LAST_DROP;
  options.epochs = 1;
  options.workers = -1;
  options.allocator = t->heap.user;
  quern_loader *loader;
  QUERN_TRY(quern_loader_new(&loader, t->data.eval, &options));
  quern_status status = eval_batches(t, loader, record);
  quern_loader_free(loader);
  record->seconds = base_clock() - start;
  if (status == QUERN_STATUS_OK) check(t, record);
  return status;
}

quern_status quern_trainer_eval(quern_trainer *trainer, quern_eval_record *record) {
  QUERN_CHECK(trainer != NULL, INVALID, "trainer_eval: the trainer is null");
  QUERN_CHECK(record != NULL, INVALID, "trainer_eval: the place for the record is null");
  quern_eval_record made = QUERN_INIT(quern_eval_record);
  QUERN_TRY(base_give(quern_eval_record, record, &made, "trainer_eval"));
  quern_status status = evaluate(trainer, &made);
  base_struct_put(record, record->size, &made, sizeof made);
  return status;
}
