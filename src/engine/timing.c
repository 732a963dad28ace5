/* engine/timing.c -- when the steps of a run begin and end, for hooks and for QUERN_DEBUG=2
** By the host's clock every step is waited for. A device that sets marks on its way is not waited for: its times are read, and reported, when
** the run has ended; so it must be known how many steps there are.
** keeps: a run allocates nothing
** tests: tests/engine/test_remote.c
*/
#include "engine/engine.h"

enum { MOST = 16384 }; /* steps of a run */

struct engine_timing {
  size_t n_marks, n;
  bool fresh; /* nothing was asked for since the last mark */
  struct reported {
    struct engine_frame *frame;
    int subprogram, step;
    size_t begin, end; /* marks */
  } steps[MOST];
  double seconds[2 * MOST + 2];
};

quern_status engine_timing_open(quern_instance *instance) {
  const struct rt_remote *remote = instance->program->device->remote;
  if (instance->timing != NULL || remote == NULL || remote->mark == NULL) return QUERN_STATUS_OK;
  instance->timing = base_alloc_zero(&instance->heap, sizeof *instance->timing);
  return instance->timing != NULL ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

void engine_timing_free(quern_instance *instance) {
  if (instance->timing != NULL) base_free(&instance->heap, instance->timing, sizeof *instance->timing);
  instance->timing = NULL;
}

enum engine_timed engine_timed_now(const quern_instance *instance) {
  bool timed = instance->hook != NULL || instance->debug >= 2;
  bool marks = instance->timing != NULL && (instance->hook == NULL || instance->hook_waits) &&
               instance->replay.possible && instance->replay.steps <= MOST;
  return !timed ? ENGINE_UNTIMED : marks ? ENGINE_BY_MARKS : ENGINE_BY_CLOCK;
}

void engine_timing_clear(quern_instance *instance) {
  if (instance->timing == NULL) return;
  instance->timing->n_marks = instance->timing->n = 0;
  instance->timing->fresh = false;
}

/* ---- telling ----------------------------------------------------------------------------------------------- */

static void report(quern_instance *instance, struct engine_frame *frame, int subprogram, int number, double begin,
                   double end) {
  const struct engine_step *step = &frame->subprogram->steps[number];
  instance->running = frame;
  if (instance->hook != NULL) instance->hook(instance->hook_user, subprogram, number, begin, end);
  if (instance->debug < 2) return;
  const struct kern *kern = step->kernel >= 0 ? instance->program->kernels[step->kernel] : NULL;
  double ms = 1e3 * BASE_MAX(end - begin, 1e-9);
  base_log(2, "run %d.%d %s %s: %.3f ms, %.1f GFLOP/s, %.1f GB/s", subprogram, number,
           kern != NULL ? kern->name : step->kind_name, step->ops, ms, kern != NULL ? kern->cost.flops / (1e6 * ms) : 0,
           kern != NULL ? kern->cost.bytes / (1e6 * ms) : 0);
}

/* A mark takes as long as the second took after the first, with nothing in between: times are those without any. */
static void leave_out_marks(size_t n, double *seconds) {
  double one = n > 1 ? seconds[1] : 0;
  for (size_t i = 1; i < n; i++) seconds[i] = BASE_MAX(seconds[i] - (double)i * one, seconds[i - 1]);
}

quern_status engine_timing_report(quern_instance *instance) {
  struct engine_timing *t = instance->timing;
  if (instance->timed != ENGINE_BY_MARKS || t->n == 0) return QUERN_STATUS_OK;
  QUERN_TRY(instance->program->device->remote->marks(instance->stream, t->n_marks, t->seconds));
  leave_out_marks(t->n_marks, t->seconds);
  double start = base_clock() - t->seconds[t->n_marks - 1];
  for (size_t i = 0; i < t->n; i++) {
    const struct reported *s = &t->steps[i];
    report(instance, s->frame, s->subprogram, s->step, start + t->seconds[s->begin], start + t->seconds[s->end]);
  }
  return QUERN_STATUS_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------- */

static quern_status mark(const quern_instance *instance) {
  return instance->program->device->remote->mark(instance->stream, instance->timing->n_marks++);
}

/* begin: a time, or a mark's number. */
quern_status engine_step_begin(quern_instance *instance, double *begin) {
  struct engine_timing *t = instance->timing;
  if (instance->timed == ENGINE_BY_CLOCK) {
    QUERN_TRY(engine_wait(instance));
    *begin = base_clock();
    return QUERN_STATUS_OK;
  }
  if (t->n_marks == 0) QUERN_TRY(mark(instance));
  if (!t->fresh) QUERN_TRY(mark(instance));
  t->fresh = false;
  *begin = (double)(t->n_marks - 1);
  return QUERN_STATUS_OK;
}

quern_status engine_step_end(quern_instance *instance, struct engine_frame *frame, int subprogram, int step,
                             double begin) {
  struct engine_timing *t = instance->timing;
  if (instance->timed == ENGINE_BY_CLOCK) {
    QUERN_TRY(engine_wait(instance));
    report(instance, frame, subprogram, step, begin, base_clock());
    return QUERN_STATUS_OK;
  }
  t->steps[t->n++] = (struct reported){frame, subprogram, step, (size_t)begin, t->n_marks};
  t->fresh = true;
  return mark(instance);
}
