/* engine/replay.c -- a run as one graph of its device: captured in the second run of the same kind, replayed from then on
** Inputs and outputs are staged, so that all addresses are the same in every run, and loops are turned as often every time. The first run
** is not captured: in it libraries and the driver do what they do once.
** keeps: a run that cannot be captured is run step by step, with the same results
** tests: tests/engine/test_remote.c, make test-cuda
*/
#include "engine/engine.h"

enum { MOST_STEPS = 1 << 16 };

/* ---- what can be ----------------------------------------------------------------------------------------- */

/* Steps of a run of a subprogram, or -1: the host has to decide on the way, or they are too many. Recursion is as deep as subgraphs lie in
** subgraphs. */
static int64_t count_steps(const quern_program *program, int subprogram) {
  int64_t n = 0;
  for (int i = 0; i < program->subprograms[subprogram].n_steps && n >= 0; i++) {
    const struct engine_step *step = &program->subprograms[subprogram].steps[i];
    const struct engine_control *control = step->control;
    int64_t one = 0;
    if (step->kind == PLAN_WHILE || step->kind == PLAN_IF) return -1;
    if (step->kind == PLAN_LOOP) one = control->trip > 0 ? count_steps(program, control->body) : 0;
    if (one < 0 || (one > 0 && control->trip > BASE_MIN(program->n_iterations, MOST_STEPS / one))) return -1;
    n += 1 + (one > 0 ? one * control->trip : 0);
    if (n > MOST_STEPS) return -1;
  }
  return n;
}

void engine_replay_open(quern_instance *instance) {
  const struct rt_remote *remote = instance->program->device->remote;
  struct engine_replay *r = &instance->replay;
  *r = (struct engine_replay){.last_rows = -1, .branched = remote != NULL && remote->depend_on != NULL};
  if (remote == NULL) return;
  r->steps = count_steps(instance->program, 0);
  r->possible = r->steps >= 0;
  r->refused = remote->capture == NULL || base_env_int(BASE_ENV_GRAPH) == 0 || base_env_int(BASE_ENV_SYNC) == 1 ||
               instance->program->ref_ctx != NULL;
}

void engine_replay_free(quern_instance *instance) {
  struct engine_replay *r = &instance->replay;
  if (r->graph != NULL) instance->program->device->remote->graph_free(instance->stream, r->graph);
  r->graph = NULL;
}

/* ---- counts: a replay counts what was captured -------------------------------------------------------------- */

static quern_run_stats subtract(const quern_run_stats *a, const quern_run_stats *b) {
  return (quern_run_stats){.runs = a->runs - b->runs,
                           .evaluated = a->evaluated - b->evaluated,
                           .copies = a->copies - b->copies,
                           .controls = a->controls - b->controls};
}

static void count_again(quern_instance *instance) {
  const struct engine_replay *r = &instance->replay;
  instance->counts.runs += r->counts.runs;
  instance->counts.copies += r->counts.copies;
  instance->counts.controls += r->counts.controls;
  instance->launches.compiled += r->launches.compiled;
  instance->launches.interpreted += r->launches.interpreted;
}

/* ---- capturing and replaying --------------------------------------------------------------------------------- */

/* Captures a run, which is not done by that. */
static quern_status capture(quern_instance *instance, const void *const *inputs, void *const *outputs) {
  const struct rt_remote *remote = instance->program->device->remote;
  struct engine_replay *r = &instance->replay;
  quern_run_stats counts = instance->counts;
  struct kern_runs launches = instance->launches;
  double start = base_clock();
  QUERN_TRY(remote->capture(instance->stream));
  if (r->branched && instance->timed == ENGINE_UNTIMED) r->order = engine_launch_order_of(instance);
  if (r->order != NULL) r->branches = engine_branches_new(instance, r->order);
  quern_status status = engine_run_steps(instance, inputs, outputs);
  engine_branches_free(instance, r->branches);
  engine_launch_order_free(&instance->heap, r->order);
  r->branches = NULL;
  r->order = NULL;
  quern_status end = remote->captured(instance->stream, &r->graph);
  r->counts = subtract(&instance->counts, &counts);
  r->launches.compiled = instance->launches.compiled - launches.compiled;
  r->launches.interpreted = instance->launches.interpreted - launches.interpreted;
  instance->counts = counts;
  instance->launches = launches;
  if (status != QUERN_STATUS_OK) engine_replay_free(instance);
  if (status == QUERN_STATUS_OK) status = end;
  if (status != QUERN_STATUS_OK) return status;
  r->rows = instance->rows;
  r->timed = instance->timed;
  instance->counts.graph_bytes = r->graph->bytes;
  base_log(1, "graph: %lld steps as %zu, %zu bytes, %.1f ms", (long long)r->steps, r->graph->steps, r->graph->bytes,
           1e3 * (base_clock() - start));
  return QUERN_STATUS_OK;
}

/* Whether there is a graph for this run now. What fails is not asked for again: first side by side, then at all. */
static bool have_graph(quern_instance *instance, const void *const *inputs, void *const *outputs) {
  struct engine_replay *r = &instance->replay;
  bool again = r->last_rows == instance->rows;
  r->last_rows = instance->rows;
  if (r->graph != NULL && r->rows == instance->rows && r->timed == instance->timed) return true;
  if (!again) return false;
  engine_replay_free(instance);
  if (capture(instance, inputs, outputs) == QUERN_STATUS_OK) return true;
  base_log(1, "graph: not captured: %s", quern_last_error());
  r->refused = !r->branched;
  r->branched = false;
  return false;
}

quern_status engine_run_repeated(quern_instance *instance, const void *const *inputs, void *const *outputs) {
  struct engine_replay *r = &instance->replay;
  instance->timed = engine_timed_now(instance);
  bool may = r->possible && !r->refused && !instance->poison && instance->timed != ENGINE_BY_CLOCK;
  if (!may || !have_graph(instance, inputs, outputs)) return engine_run(instance, inputs, outputs);
  QUERN_TRY(instance->program->device->remote->replay(instance->stream, r->graph));
  count_again(instance);
  instance->counts.replayed++;
  return engine_timing_report(instance);
}
