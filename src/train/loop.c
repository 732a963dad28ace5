/* train/loop.c -- the whole run: steps, evaluations, checkpoints, and what is written of them
** keeps: an evaluation comes before the checkpoint of its step, which then knows of it; a run that ends has been saved
** tests: tests/train/test_loop.c
*/
#include <math.h>
#include <stdio.h>

#include "quern/profile.h"
#include "train/metrics.h"

/* A run that is under way. */
struct loop {
  quern_trainer *t;
  quern_train_callbacks callbacks;
  struct train_metrics metrics;
  int64_t saved, evaluated; /* the steps of the last; -1: none */
  int profile;              /* steps that are still to be recorded; -1: it has ended */
  bool stop, early;
};

static bool is_due(const struct loop *l, const char *key) {
  int64_t every = quern_config_int(l->t->config, key), step = l->t->info.step;
  return every > 0 && step % every == 0;
}

static quern_status evaluate(struct loop *l) {
  quern_eval_record record = QUERN_INIT(quern_eval_record);
  if (l->t->data.eval == NULL || l->evaluated == l->t->info.step) return QUERN_STATUS_OK;
  QUERN_TRY(quern_trainer_eval(l->t, &record));
  l->evaluated = l->t->info.step;
  QUERN_TRY(train_metrics_eval(&l->metrics, &record));
  if (l->callbacks.eval != NULL) l->stop = !l->callbacks.eval(l->callbacks.user, &record) || l->stop;
  int64_t patience = quern_config_int(l->t->config, "patience");
  l->early = patience > 0 && l->t->bad >= patience;
  return QUERN_STATUS_OK;
}

static quern_status save(struct loop *l) {
  const char *path;
  double start = base_clock();
  if (l->t->info.out[0] == 0 || l->saved == l->t->info.step) return QUERN_STATUS_OK;
  QUERN_TRY(quern_trainer_save(l->t, &path));
  l->saved = l->t->info.step;
  if (l->callbacks.saved != NULL) l->callbacks.saved(l->callbacks.user, path, l->saved, base_clock() - start);
  return QUERN_STATUS_OK;
}

/* Kernels are timed in a few steps, after the first two. */
static quern_status profile(struct loop *l) {
  enum { WARM = 2 };
  if (l->profile <= 0 || l->t->n_recent < WARM) return QUERN_STATUS_OK;
  if (l->t->recorded == 0) QUERN_TRY(quern_instance_record(l->t->main.instance, true));
  if (l->t->recorded++ < l->profile) return QUERN_STATUS_OK;
  l->profile = 0;
  QUERN_TRY(train_metrics_kernels(&l->metrics));
  return quern_instance_record(l->t->main.instance, false);
}

/* Whether the step after those done is waited for: the first, the last, those that are reported, timed, evaluated or saved. */
static bool is_read(const struct loop *l) {
  static const char *const keys[] = {"log_every", "eval_every", "save_every"};
  int64_t next = l->t->info.step + 1;
  for (size_t i = 0; i < BASE_COUNT(keys); i++) {
    int64_t every = quern_config_int(l->t->config, keys[i]);
    if (every > 0 && next % every == 0) return true;
  }
  return l->t->n_recent == 0 || next == l->t->info.steps || l->profile > 0;
}

static quern_status one_step(struct loop *l) {
  quern_train_record record = QUERN_INIT(quern_train_record);
  QUERN_TRY(profile(l));
  QUERN_TRY(train_step(l->t, &record, is_read(l)));
  if (record.known) QUERN_TRY(train_metrics_step(&l->metrics, &record));
  if (l->callbacks.step != NULL) l->stop = !l->callbacks.step(l->callbacks.user, &record) || l->stop;
  if (is_due(l, "eval_every") || record.step == record.steps) QUERN_TRY(evaluate(l));
  return is_due(l, "save_every") ? save(l) : QUERN_STATUS_OK;
}

static quern_status run(struct loop *l, quern_train_end *end) {
  const quern_train_info *info = &l->t->info;
  QUERN_TRY(train_check_data(l->t));
  QUERN_TRY(train_metrics_open(&l->metrics, l->t));
  while (info->step < info->steps && !l->stop && !l->early) QUERN_TRY(one_step(l));
  *end = info->step >= info->steps ? QUERN_TRAIN_DONE : l->early ? QUERN_TRAIN_EARLY : QUERN_TRAIN_STOPPED;
  if (l->t->n_recent > 0) QUERN_TRY(save(l));
  return train_metrics_end(&l->metrics);
}

static quern_status train(const struct train_request *request, quern_train_end *end) {
  quern_train_end how = QUERN_TRAIN_STOPPED;
  struct loop loop = {.saved = -1, .evaluated = -1};
  if (end != NULL) *end = how;
  QUERN_TRY(base_take(quern_train_callbacks, &loop.callbacks, request->callbacks, request->what));
  struct train_request taken = *request;
  taken.callbacks = &loop.callbacks;
  QUERN_TRY(train_new(&loop.t, &taken, true));
  loop.profile = loop.t->info.out[0] != 0 ? (int)quern_config_int(request->config, "profile") : 0;
  quern_status status = run(&loop, &how);
  train_metrics_close(&loop.metrics);
  quern_trainer_free(loop.t);
  if (status == QUERN_STATUS_OK && end != NULL) *end = how;
  return status;
}

quern_status quern_train(const quern_config *config, const quern_train_callbacks *callbacks, quern_train_end *end) {
  return train(&(struct train_request){"train", NULL, false, config, callbacks}, end);
}

quern_status quern_train_with(const quern_train_task *task, const quern_config *config,
                              const quern_train_callbacks *callbacks, quern_train_end *end) {
  return train(&(struct train_request){"train_with", task, true, config, callbacks}, end);
}
