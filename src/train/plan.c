/* train/plan.c -- what a configuration would need, without training
** in:    a configuration                       out: sizes, memory, kernels; memory against time
** tests: tests/train/test_plan.c, tests/cli/test_train.c
*/
#include <inttypes.h>
#include <math.h>

#include "engine/engine.h"
#include "train/report.h"
#include "train/train.h"

static quern_status tell(quern_trainer *t) {
  quern_program_stats counts = QUERN_INIT(quern_program_stats);
  QUERN_TRY(quern_program_get_stats(t->main.program, &counts));
  if (t->callbacks.begin != NULL) t->callbacks.begin(t->callbacks.user, &t->info);
  train_note(t, "kernels  %zu in %zu steps of the program, %zu of them computing something again", counts.kernels,
             counts.steps, counts.recomputed);
  if (t->eval.program != NULL) {
    char text[TRAIN_TEXT];
    QUERN_TRY(quern_program_get_stats(t->eval.program, &counts));
    train_note(t, "eval     %s of step memory; %zu kernels in %zu steps of its program",
               train_text_bytes(text, (double)t->eval.program->memory.arena), counts.kernels, counts.steps);
  }
  train_note(t, "work     %.2f GFLOP a step%s", 1e-9 * t->info.flops,
             t->info.peak > 0 ? "" : " (quern devices measures what this machine can do)");
  return QUERN_STATUS_OK;
}

static quern_status plan(const struct train_request *request, size_t room, quern_curve_point *points,
                         size_t *n_points) {
  quern_trainer *t;
  QUERN_CHECK(room == 0 || (points != NULL && n_points != NULL), INVALID,
              "%s: there is room for %zu points, but no place", request->what, room);
  QUERN_TRY(train_request_open(&t, request));
  quern_status status = train_open_run(t, true);
  if (status == QUERN_STATUS_OK) status = train_precision(t, NULL);
  if (status == QUERN_STATUS_OK) status = train_plan_programs(t);
  if (status == QUERN_STATUS_OK) status = tell(t);
  if (status == QUERN_STATUS_OK && room > 0) status = train_step_curve(t, room, points, n_points);
  quern_trainer_free(t);
  return status;
}

quern_status quern_train_plan(const quern_config *config, const quern_train_callbacks *callbacks, size_t room,
                              quern_curve_point *points, size_t *n_points) {
  return plan(&(struct train_request){"train_plan", NULL, false, config, callbacks}, room, points, n_points);
}

quern_status quern_train_plan_with(const quern_train_task *task, const quern_config *config,
                                   const quern_train_callbacks *callbacks, size_t room, quern_curve_point *points,
                                   size_t *n_points) {
  return plan(&(struct train_request){"train_plan_with", task, true, config, callbacks}, room, points, n_points);
}
