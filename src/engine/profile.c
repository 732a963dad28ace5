/* engine/profile.c -- what a program does and how long its steps took, for prof/ to print (quern/profile.h)
** keeps: recording allocates when it is switched on, never in a run
** tests: tests/engine/test_profile.c
*/
#include "engine/engine.h"
#include "prof/prof.h"
#include "quern/profile.h"

enum { EVENTS = 65536 }; /* that are kept: the last ones */

/* Steps of all subprograms, one subprogram after another. */
struct engine_record {
  size_t n_steps;
  struct prof_step *steps;
  size_t *first; /* the number of each subprogram's first step */
  struct prof_event *events;
  uint64_t n_events; /* that there were; event i lies at i mod EVENTS */
  size_t bytes;      /* of all of it: one block */
  int n_open;
  struct open {
    int subprogram;
    double begin, seconds;
  } open[2 * IR_MAX_DEPTH + 2]; /* bodies, of control steps that have not ended */
};

/* ---- recording ------------------------------------------------------------------------------------------ */

static void describe_step(const quern_program *program, const struct engine_subprogram *subprogram,
                          const struct engine_step *step, struct prof_step *out) {
  const struct kern *kern = step->kernel >= 0 ? program->kernels[step->kernel] : NULL;
  bool product = kern != NULL && kern->library_call.kind == KERN_LIBRARY_GEMM; /* whose rate is that of what it reads */
  *out = (struct prof_step){.kernel = kern != NULL ? kern->name : step->kind_name,
                            .kind = step->kind_name,
                            .ops = step->ops,
                            .layer = step->layer,
                            .dtype = product ? kern->mems[kern->library_call.gemm.a.mem].dtype : step->dtype,
                            .tf32 = product && kern->library_call.gemm.tf32};
  for (int i = 0; i < step->n_buffers; i++) out->footprint += subprogram->buffers[step->buffers[i]].bytes;
  if (kern != NULL)
    out->cost = kern->cost;
  else if (step->kind == PLAN_COPY)
    out->cost.bytes = 2.0 * (double)subprogram->buffers[step->buffers[0]].bytes;
}

static quern_status record_new(struct engine_record **out, struct base_heap *heap, const quern_program *program,
                               bool events) {
  size_t n = 0, subprograms = (size_t)program->n_subprograms;
  for (size_t p = 0; p < subprograms; p++) n += (size_t)program->subprograms[p].n_steps;
  size_t steps_at = sizeof(struct engine_record), first_at = steps_at + n * sizeof(struct prof_step);
  size_t events_at = first_at + (subprograms + 1) * sizeof(size_t);
  size_t bytes = events_at + (events ? EVENTS : 0) * sizeof(struct prof_event);
  char *block = base_alloc_zero(heap, bytes);
  if (block == NULL) return QUERN_STATUS_MEMORY;
  struct engine_record *record = (struct engine_record *)(void *)block;
  *record = (struct engine_record){.n_steps = n,
                                   .steps = (struct prof_step *)(void *)(block + steps_at),
                                   .first = (size_t *)(void *)(block + first_at),
                                   .events = (struct prof_event *)(void *)(block + events_at),
                                   .bytes = bytes};
  n = 0;
  for (size_t p = 0; p < subprograms; p++) {
    record->first[p] = n;
    for (int i = 0; i < program->subprograms[p].n_steps; i++, n++)
      describe_step(program, &program->subprograms[p], &program->subprograms[p].steps[i], &record->steps[n]);
  }
  *out = record;
  return QUERN_STATUS_OK;
}

/* The seconds of a step without those of the bodies it ran, which were reported before. */
static double own_seconds(struct engine_record *record, int subprogram, double begin, double end) {
  double inner = 0;
  while (record->n_open > 0 && record->open[record->n_open - 1].begin >= begin)
    inner += record->open[--record->n_open].seconds;
  if (subprogram == 0) record->n_open = 0;
  int at = record->n_open - 1;
  while (at >= 0 && record->open[at].subprogram != subprogram) at--;
  if (at >= 0)
    record->open[at].seconds += end - begin;
  else if (subprogram != 0 && record->n_open < (int)BASE_COUNT(record->open))
    record->open[record->n_open++] = (struct open){subprogram, begin, end - begin};
  return end - begin - inner;
}

static void note(void *user, int subprogram, int step, double begin, double end) {
  struct engine_record *record = user;
  size_t number = record->first[subprogram] + (size_t)step;
  record->steps[number].count++;
  record->steps[number].seconds += own_seconds(record, subprogram, begin, end);
  record->events[record->n_events++ % EVENTS] = (struct prof_event){(int)number, begin, end};
}

void engine_record_free(quern_instance *instance) {
  if (instance->hook == note) {
    struct engine_record *record = instance->hook_user;
    base_free(&instance->heap, record, record->bytes);
  }
  instance->hook = NULL;
  instance->hook_waits = false;
}

quern_status quern_instance_record(quern_instance *instance, bool on) {
  QUERN_CHECK(instance != NULL, INVALID, "instance_record: the instance is null");
  engine_record_free(instance);
  if (!on) return QUERN_STATUS_OK;
  struct engine_record *record;
  QUERN_TRY(engine_timing_open(instance));
  QUERN_TRY(record_new(&record, &instance->heap, instance->program, true));
  instance->hook_user = record;
  instance->hook = note;
  instance->hook_waits = true;
  return QUERN_STATUS_OK;
}

/* ---- reports -------------------------------------------------------------------------------------------- */

static const struct engine_record *recorded(const quern_instance *instance) {
  return instance != NULL && instance->hook == note ? instance->hook_user : NULL;
}

/* How often the main subprogram was run, by the count of its first step. */
static uint64_t runs_of(const struct engine_record *record) { return record->n_steps > 0 ? record->steps[0].count : 0; }

/* Events in the order they happened: the ring may have turned. */
static quern_status order_events(const struct engine_record *record, struct base_heap *heap, struct prof *prof) {
  prof->n_events = (size_t)BASE_MIN(record->n_events, (uint64_t)EVENTS);
  struct prof_event *events = base_alloc(heap, EVENTS * sizeof *events);
  if (events == NULL) return QUERN_STATUS_MEMORY;
  uint64_t start = record->n_events - prof->n_events;
  for (size_t i = 0; i < prof->n_events; i++) events[i] = record->events[(start + i) % EVENTS];
  prof->events = events;
  return QUERN_STATUS_OK;
}

typedef quern_status report(struct base_str *str, const struct prof *prof);

/* What cannot be measured now, because a GPU's memory is taken, or is not to be, is not known. */
static quern_status find_limits(const quern_program *program, struct base_heap *heap, bool measure,
                                struct prof_limits *limits) {
  if (prof_device_limits_find(limits, heap, program->device, &program->target)) return QUERN_STATUS_OK;
  *limits = (struct prof_limits){0};
  if (!measure) return QUERN_STATUS_OK;
  quern_status status = prof_device_limits_get(limits, heap, program->device, &program->target, false);
  if (status == QUERN_STATUS_OK || !program->target.base.gpu) return status;
  *limits = (struct prof_limits){0};
  return QUERN_STATUS_OK;
}

static quern_status write_report(const quern_program *program, const struct engine_record *record, report *write,
                                 bool measure, char **text) {
  struct base_heap *heap = (struct base_heap *)&program->heap;
  struct prof prof = {
      .program = "program", .n_steps = record->n_steps, .steps = record->steps, .runs = runs_of(record)};
  struct base_str str;
  base_str_init(&str, heap);
  quern_status status = find_limits(program, heap, measure, &prof.limits);
  if (status == QUERN_STATUS_OK) status = order_events(record, heap, &prof);
  if (status == QUERN_STATUS_OK) {
    prof_steps_floor(&prof.limits, record->n_steps, record->steps);
    status = write(&str, &prof);
    base_free(heap, (void *)prof.events, EVENTS * sizeof *prof.events);
  }
  return base_str_give(status, &str, text);
}

quern_status engine_profile_rows(const quern_program *program, const quern_instance *instance, char **text) {
  QUERN_CHECK(recorded(instance) != NULL, STATE, "profile: nothing was recorded");
  return write_report(program, recorded(instance), prof_rows, false, text);
}

quern_status quern_program_profile(const quern_program *program, const quern_instance *instance,
                                   quern_profile_form form, char **text) {
  static report *const reports[] = {[QUERN_PROFILE_TABLE] = prof_table,
                                    [QUERN_PROFILE_TRACE] = prof_trace,
                                    [QUERN_PROFILE_FOLDED] = prof_folded,
                                    [QUERN_PROFILE_ROWS] = prof_rows};
  QUERN_CHECK(text != NULL, INVALID, "program_profile: the place for the text is null");
  *text = NULL;
  QUERN_CHECK(program != NULL, INVALID, "program_profile: the program is null");
  QUERN_CHECK(instance != NULL, INVALID, "program_profile: the instance is null");
  QUERN_CHECK(instance->program == program, INVALID, "program_profile: the instance is of another program");
  QUERN_CHECK(recorded(instance) != NULL, STATE,
              "program_profile: nothing was recorded HINT: quern_instance_record before the runs");
  QUERN_CHECK((unsigned)form < BASE_COUNT(reports), INVALID, "program_profile: there is no form %d", (int)form);
  return write_report(program, recorded(instance), reports[form], true, text);
}

/* ---- comparing ------------------------------------------------------------------------------------------ */

/* before[i] += the time a run of the other program takes for what step i computes; what no step computes is returned. */
static double share_time(const struct engine_subprogram *subprogram, const struct engine_subprogram *other,
                         const struct engine_record *record, double runs, double *before) {
  double rest = 0;
  for (int s = 0; s < other->n_steps; s++) {
    const struct engine_step *step = &other->steps[s];
    double seconds = record->steps[s].seconds / runs;
    int found = 0;
    for (int pass = 0; pass < 2; pass++) {
      for (int n = 0; n < step->n_nodes; n++) {
        bool known = false;
        for (int i = 0; i < subprogram->n_steps && !known; i++)
          for (int k = 0; k < subprogram->steps[i].n_nodes && !known; k++) {
            known = subprogram->steps[i].nodes[k] == step->nodes[n];
            if (known && pass == 1) before[i] += seconds / found;
          }
        found += pass == 0 && known;
      }
    }
    if (found == 0) rest += seconds;
  }
  return rest;
}

static void print_comparison(struct base_str *str, const quern_program *program, const struct engine_record *record,
                             const double *before, double rest) {
  const struct engine_subprogram *subprogram = &program->subprograms[0];
  double runs = (double)runs_of(record), all_before = rest, all_after = 0;
  base_str_printf(str, "%6s %-8s %-16s %10s %10s %10s %12s %12s  %s\n", "step", "kind", "group", "estimate",
                  "threshold", "measured", "before us", "after us", "kernel");
  for (int i = 0; i < subprogram->n_steps; i++) {
    const struct engine_step *step = &subprogram->steps[i];
    double after = record->steps[i].seconds / runs;
    all_before += before[i];
    all_after += after;
    if (step->kernel < 0) continue;
    base_str_printf(str, "%6d %-8s %016llx %9.2fx %9.2fx %9.2fx %12.1f %12.1f  %s (%s)\n", i, step->kind_name,
                    (unsigned long long)step->group, step->speedup, step->threshold, after > 0 ? before[i] / after : 0,
                    before[i] * 1e6, after * 1e6, program->kernels[step->kernel]->name, step->ops);
  }
  base_str_printf(str, "all %.1f us, before %.1f us: %.2fx\n", all_after * 1e6, all_before * 1e6,
                  all_after > 0 ? all_before / all_after : 0);
}

quern_status quern_program_compare(const quern_program *program, const quern_instance *instance,
                                   const quern_program *other, const quern_instance *other_instance, char **text) {
  QUERN_CHECK(text != NULL, INVALID, "program_compare: the place for the text is null");
  *text = NULL;
  QUERN_CHECK(program != NULL && other != NULL, INVALID, "program_compare: a program is null");
  QUERN_CHECK(instance != NULL && other_instance != NULL, INVALID, "program_compare: an instance is null");
  QUERN_CHECK(instance->program == program && other_instance->program == other, INVALID,
              "program_compare: an instance is of another program");
  const struct engine_record *a = recorded(instance), *b = recorded(other_instance);
  QUERN_CHECK(a != NULL && b != NULL && runs_of(a) > 0 && runs_of(b) > 0, STATE,
              "program_compare: nothing was recorded HINT: quern_instance_record before the runs of both");
  struct base_heap *heap = (struct base_heap *)&program->heap;
  size_t bytes = (size_t)(program->subprograms[0].n_steps + 1) * sizeof(double);
  double *before = base_alloc_zero(heap, bytes);
  if (before == NULL) return QUERN_STATUS_MEMORY;
  struct base_str str;
  base_str_init(&str, heap);
  double rest = share_time(&program->subprograms[0], &other->subprograms[0], b, (double)runs_of(b), before);
  print_comparison(&str, program, a, before, rest);
  base_free(heap, before, bytes);
  return base_str_give(QUERN_STATUS_OK, &str, text);
}

static quern_status explain_roofline(const quern_program *program, const quern_instance *instance, char **text) {
  const struct engine_record *record = recorded(instance);
  if (record != NULL) return write_report(program, record, prof_explain, true, text);
  struct engine_record *made;
  struct base_heap *heap = (struct base_heap *)&program->heap;
  QUERN_TRY(record_new(&made, heap, program, false));
  quern_status status = write_report(program, made, prof_explain, true, text);
  base_free(heap, made, made->bytes);
  return status;
}

quern_status quern_program_explain(const quern_program *program, const quern_instance *instance,
                                   quern_explain_form form, char **text) {
  static engine_explain *const forms[] = {[QUERN_EXPLAIN_ROOFLINE] = explain_roofline,
                                          [QUERN_EXPLAIN_PLAN] = engine_explain_plan,
                                          [QUERN_EXPLAIN_FUSION] = engine_explain_fusion,
                                          [QUERN_EXPLAIN_GRAPHVIZ] = engine_explain_dot,
                                          [QUERN_EXPLAIN_SOURCE] = engine_explain_source};
  QUERN_CHECK(text != NULL, INVALID, "program_explain: the place for the text is null");
  *text = NULL;
  QUERN_CHECK(program != NULL, INVALID, "program_explain: the program is null");
  QUERN_CHECK(instance == NULL || instance->program == program, INVALID,
              "program_explain: the instance is of another program");
  QUERN_CHECK((unsigned)form < BASE_COUNT(forms), INVALID, "program_explain: there is no form %d", (int)form);
  return forms[form](program, instance, text);
}
