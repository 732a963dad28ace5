/* cli/bench_limit.c -- the suite limit: GPT-2's training step in less memory, against the same step in all it wants
** The limit is a part of the default step's arena and scratch; state and constants are not counted. Both programs run in
** turn. A ratio is that of the step without a limit: its time / the time with one.
*/
#include "bench.h"

#include <string.h>

enum { FEW_ROUNDS = 5, PERCENT = 60 };

/* A program of a model. */
static quern_status begin(struct bench_side *side, const struct bench_model *model, int threads, int64_t limit) {
  quern_program_options options = QUERN_INIT(quern_program_options);
  options.threads = threads;
  options.memory_limit = limit;
  options.n_updates = model->n_updates;
  options.updates = model->updates;
  return bench_side_open(side, model->ctx, model->n_outputs, model->outputs, &options);
}

/* The loss after so many steps; it is the same with and without a limit. */
static bool same_results(const struct bench_side *a, const struct bench_side *b) {
  quern_slot slot = QUERN_INIT(quern_slot);
  for (size_t i = 0; i < a->n_outputs; i++) {
    if (quern_program_output(a->program, i, &slot) != QUERN_STATUS_OK) return false;
    if (memcmp(a->outputs[i], b->outputs[i], slot.bytes) != 0) return false;
  }
  return true;
}

static int race(struct bench_run *run, const struct bench_model_kind *kind, struct bench_side *whole,
                struct bench_side *less, int64_t limit) {
  struct bench_row row = {.threads = run->threads};
  struct bench_racer racers[] = {{"limited", bench_side_run, less, 1}, {"default", bench_side_run, whole, 1}};
  int rounds = run->rounds;
  snprintf(row.name, sizeof row.name, "%s", kind->name);
  snprintf(row.params, sizeof row.params, "%s memory=%d%%", kind->params, PERCENT);
  if (run->rounds > FEW_ROUNDS) run->rounds = FEW_ROUNDS; /* a step takes many seconds */
  int status = bench_race(run, &row, 2, racers);
  run->rounds = rounds;
  if (status != CLI_OK) return status;
  if (!same_results(less, whole)) return cli_fail("%s: other bits with a limit of %lld", kind->name, (long long)limit);
  row.planned = bench_side_planned(less);
  bench_row_add(&row, "limit", (double)limit);
  bench_row_add(&row, "arena", (double)less->memory.arena);
  bench_row_add(&row, "default_arena", (double)whole->memory.arena);
  bench_row_add(&row, "steps", (double)less->counts.steps);
  bench_row_add(&row, "default_steps", (double)whole->counts.steps);
  bench_row_add(&row, "slower", row.n_results > 0 ? 1 / row.results[0].ratio : 0);
  return bench_row_keep(run, &row);
}

static int run_kind(struct bench_run *run, const struct bench_model_kind *kind) {
  struct bench_model model = {0};
  struct bench_side whole = {0}, less = {0};
  int64_t limit = 0;
  quern_status status = quern_context_new(&model.ctx, NULL);
  if (status == QUERN_STATUS_OK) kind->build(&model, kind->params);
  if (status == QUERN_STATUS_OK) status = begin(&whole, &model, run->threads, 0);
  if (status == QUERN_STATUS_OK) {
    limit = (whole.memory.arena + whole.memory.scratch) * PERCENT / 100;
    status = begin(&less, &model, run->threads, limit);
  }
  if (status == QUERN_STATUS_OK) status = bench_net_fill(&model.net, &whole);
  if (status == QUERN_STATUS_OK) status = bench_net_fill(&model.net, &less);
  int result = status == QUERN_STATUS_OK ? race(run, kind, &whole, &less, limit) : cli_fail_last(kind->name);
  bench_side_end(&whole);
  bench_side_end(&less);
  bench_model_end(&model);
  return result;
}

int bench_run_limit(struct bench_run *run) {
  int status = CLI_OK;
  for (const struct bench_model_kind *kind = bench_models; kind->name != NULL && status == CLI_OK; kind++)
    if (strcmp(kind->name, "gpt2_step") == 0 && bench_wanted(run, kind->name, kind->params))
      status = run_kind(run, kind);
  return status;
}
