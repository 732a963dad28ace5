/* engine/tune.c -- a search for faster schedules: kernels that take most time, one number of the schedule after another
** A candidate is a line of wisdom; the program is compiled with it and run, and the steps of that kernel are timed. What is not
** faster by enough is forgotten. Candidates of all kinds of kernels are rows of a table.
** in:    a graph as for compiling             out: a file of wisdom
** keeps: bits: wisdom cannot change them; the file is whole at any time: a new one takes its place; candidates are in a
**        temporary file of this search's own beside it
** see:   sched/wisdom.c      tests: tests/engine/test_tune.c
*/
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine.h"
#include "io/io.h"
#include "quern/profile.h"

enum { MOST_KERNELS = 64, MOST_VALUES = 6, RUNS = 5, LINE_BYTES = 256 };
static const char head[] = "quern wisdom 1\n";

/* What may be tried: numbers of a schedule by kind of kernel. The order is that of the search. */
static const struct knob {
  const char *kind;
  bool gpu;
  size_t offset;
  bool wide;
  int64_t values[MOST_VALUES]; /* 0 ends them */
} knobs[] = {
#define NUMBER(field) offsetof(struct sched, field), sizeof((struct sched){0}.field) == sizeof(int64_t)
    {"map", false, NUMBER(grain), {1024, 4096, 16384, 65536, 262144}},
    {"map", false, NUMBER(unroll), {1, 2, 4, 8}},
    {"reduce", false, NUMBER(grain), {1, 4, 16, 64, 256}},
    {"reduce", false, NUMBER(unroll), {1, 2, 4, 8}},
    {"dot", false, NUMBER(nr), {16, 32, 48, 64}},
    {"dot", false, NUMBER(mr), {4, 6, 8, 12}},
    {"dot", false, NUMBER(mc), {48, 96, 192, 384}},
    {"dot", false, NUMBER(nc), {256, 1024, 4096}},
    {"map", true, NUMBER(lanes), {1, 2, 4, 8}},
    {"map", true, NUMBER(unroll), {1, 2, 4}},
#undef NUMBER
};

/* A kernel of the program: a group, whose steps are timed together. */
struct spent {
  uint64_t group;
  const char *kind;
  char name[96];
  double seconds;
  bool call;
};

struct tuning {
  const struct engine_request *request;
  const quern_tune_options *options;
  struct base_heap heap;
  struct base_str lines;    /* the file's, and those that were found */
  char trial[IO_PATH_MOST]; /* a temporary file with a candidate */
  int fd;                   /* of it, which is its lock; -1: there is none */
  bool stopped;
};

/* ---- times -------------------------------------------------------------------------------------------------- */

/* A program that is run with a hook: the least seconds of each step of each subprogram, of all its iterations in a run. */
struct timing {
  quern_program *program;
  quern_instance *instance;
  void **data; /* inputs, then outputs */
  double **run, **best;
};

static void on_step(void *user, int subprogram, int step, double begin, double end) {
  ((struct timing *)user)->run[subprogram][step] += end - begin;
}

/* Input i, or after those, an output. */
static const quern_slot *slot_of(const quern_program *p, size_t i) {
  return i < p->n_inputs ? &p->inputs[i] : &p->outputs[i - p->n_inputs];
}

static void timing_close(struct timing *t) {
  const quern_program *p = t->program;
  for (size_t i = 0; t->data != NULL && i < p->n_inputs + p->n_outputs; i++)
    base_free(&t->instance->heap, t->data[i], slot_of(p, i)->bytes + 1);
  quern_instance_free(t->instance);
  quern_program_free(t->program);
  *t = (struct timing){0};
}

static quern_status make_data(struct timing *t) {
  const quern_program *p = t->program;
  struct base_arena *arena = &t->instance->frames;
  size_t n = p->n_inputs + p->n_outputs;
  t->data = base_arena_alloc(arena, (n + 1) * sizeof *t->data);
  t->run = base_arena_alloc(arena, (size_t)p->n_subprograms * sizeof *t->run);
  t->best = base_arena_alloc(arena, (size_t)p->n_subprograms * sizeof *t->best);
  if (t->data == NULL || t->run == NULL || t->best == NULL) return QUERN_STATUS_MEMORY;
  memset(t->data, 0, n * sizeof *t->data);
  for (int i = 0; i < p->n_subprograms; i++) {
    size_t bytes = ((size_t)p->subprograms[i].n_steps + 1) * sizeof(double);
    t->run[i] = base_arena_alloc(arena, bytes);
    t->best[i] = base_arena_alloc(arena, bytes);
    if (t->run[i] == NULL || t->best[i] == NULL) return QUERN_STATUS_MEMORY;
  }
  for (size_t i = 0; i < n; i++) {
    const quern_slot *slot = slot_of(p, i);
    t->data[i] = base_alloc_zero(&t->instance->heap, slot->bytes + 1);
    if (t->data[i] == NULL) return QUERN_STATUS_MEMORY;
    if (i < p->n_inputs) engine_make_up(slot, t->data[i]);
  }
  return QUERN_STATUS_OK;
}

static quern_status run_once(struct timing *t, bool first) {
  const quern_program *p = t->program;
  for (int i = 0; i < p->n_subprograms; i++) memset(t->run[i], 0, (size_t)p->subprograms[i].n_steps * sizeof(double));
  QUERN_TRY(quern_instance_run(t->instance, (const void *const *)t->data, t->data + p->n_inputs));
  for (int i = 0; i < p->n_subprograms; i++)
    for (int k = 0; k < p->subprograms[i].n_steps; k++)
      if (first || t->run[i][k] < t->best[i][k]) t->best[i][k] = t->run[i][k];
  return QUERN_STATUS_OK;
}

/* Compiles with a file of wisdom, and runs. */
static quern_status timing_make(struct timing *t, const struct tuning *tuning, const char *wisdom) {
  struct engine_request request = *tuning->request;
  request.wisdom = wisdom;
  QUERN_TRY(engine_compile(&t->program, &request));
  QUERN_TRY(engine_instance_new(&t->instance, t->program, NULL));
  QUERN_TRY(make_data(t));
  QUERN_TRY(quern_instance_zero_states(t->instance));
  t->instance->hook = on_step;
  t->instance->hook_user = t;
  QUERN_TRY(run_once(t, true)); /* warms up */
  for (int i = 0; i < RUNS; i++) QUERN_TRY(run_once(t, i == 0));
  return QUERN_STATUS_OK;
}

static double seconds_of(const struct timing *t, uint64_t group) {
  double seconds = 0;
  for (int i = 0; i < t->program->n_subprograms; i++)
    for (int k = 0; k < t->program->subprograms[i].n_steps; k++)
      if (t->program->subprograms[i].steps[k].group == group) seconds += t->best[i][k];
  return seconds;
}

static quern_status measure(const struct tuning *tuning, const char *wisdom, uint64_t group, double *seconds) {
  struct timing t = {0};
  quern_status status = timing_make(&t, tuning, wisdom);
  if (status == QUERN_STATUS_OK) *seconds = seconds_of(&t, group);
  timing_close(&t);
  return status;
}

/* ---- kernels ------------------------------------------------------------------------------------------------ */

/* The kernels by what they take; how many, at most MOST_KERNELS. */
static size_t list_spent(const struct timing *t, struct spent *list) {
  size_t n = 0;
  const quern_program *p = t->program;
  for (int i = 0; i < p->n_subprograms; i++)
    for (int k = 0; k < p->subprograms[i].n_steps; k++) {
      const struct engine_step *step = &p->subprograms[i].steps[k];
      size_t at = 0;
      if (step->kernel < 0) continue;
      while (at < n && list[at].group != step->group) at++;
      if (at == MOST_KERNELS) continue;
      if (at == n) {
        const struct kern *kern = p->kernels[step->kernel];
        list[n] = (struct spent){.group = step->group, .kind = step->kind_name, .call = kern->library_call.kind != 0};
        snprintf(list[n++].name, sizeof list[0].name, "%s", kern->name);
      }
      list[at].seconds += t->best[i][k];
    }
  for (size_t i = 1; i < n; i++)
    for (size_t k = i; k > 0 && list[k].seconds > list[k - 1].seconds; k--) {
      struct spent other = list[k];
      list[k] = list[k - 1];
      list[k - 1] = other;
    }
  return n;
}

/* ---- files -------------------------------------------------------------------------------------------------- */

static quern_status open_trial(struct tuning *tuning) {
  const char *path = tuning->options->path;
  struct stat there; /* a pipe would be waited for */
  QUERN_CHECK(stat(path, &there) != 0 || S_ISREG(there.st_mode), IO, "program_tune: %s is no regular file", path);
  tuning->fd = base_temporary_open(AT_FDCWD, path, tuning->trial, sizeof tuning->trial);
  QUERN_CHECK(tuning->fd >= 0 || errno != ENAMETOOLONG, INVALID, "program_tune: the path is too long");
  QUERN_CHECK(tuning->fd >= 0, IO, "program_tune: %s cannot be written: %s", path, strerror(errno));
  return QUERN_STATUS_OK;
}

static void close_trial(struct tuning *tuning) {
  if (tuning->fd < 0) return;
  (void)unlink(tuning->trial);
  close(tuning->fd);
}

/* The lines of the file but for the first; none when there is no file. */
static quern_status read_lines(struct base_str *lines, struct base_heap *heap, const char *path) {
  struct sched_wisdom checked;
  char text[600];
  if (access(path, F_OK) != 0) return QUERN_STATUS_OK;
  QUERN_TRY(sched_wisdom_read(&checked, heap, path));
  sched_wisdom_fini(&checked);
  FILE *file = fopen(path, "r");
  QUERN_CHECK(file != NULL, IO, "program_tune: %s cannot be read", path);
  for (int line = 1; fgets(text, sizeof text, file) != NULL; line++)
    if (line > 1) base_str_add(lines, text);
  (void)fclose(file);
  if (lines->n > 0 && lines->at[lines->n - 1] != '\n') base_str_add(lines, "\n");
  return base_str_status(lines);
}

/* The lines, and one more, which replaces an earlier line for the same group. */
static quern_status write_trial(struct tuning *tuning, const char *line) {
  struct base_str all;
  base_str_init(&all, &tuning->heap);
  base_str_add(&all, tuning->lines.at != NULL ? tuning->lines.at : "");
  base_str_add(&all, line);
  quern_status status = base_str_status(&all);
  bool begun = ftruncate(tuning->fd, 0) == 0 && lseek(tuning->fd, 0, SEEK_SET) == 0;
  if (status == QUERN_STATUS_OK && !begun)
    status = base_error(QUERN_STATUS_IO, "%s: cannot be written: %s", tuning->trial, strerror(errno));
  struct io_out out = {tuning->trial, tuning->fd};
  if (status == QUERN_STATUS_OK) status = io_out_add(&out, head, sizeof head - 1);
  if (status == QUERN_STATUS_OK) status = io_out_add(&out, all.at, all.n);
  base_str_fini(&all);
  return status;
}

/* ---- the search --------------------------------------------------------------------------------------------- */

static void set_number(struct sched *sched, const struct knob *knob, int64_t value) {
  char *at = (char *)sched + knob->offset;
  if (knob->wide)
    *(int64_t *)(void *)at = value;
  else
    *(int *)(void *)at = (int)value;
}

static quern_status print_line(char line[LINE_BYTES], struct base_heap *heap, uint64_t group, const struct sched *sched,
                               const struct base_target *target) {
  struct base_str text;
  base_str_init(&text, heap);
  sched_wisdom_print(&text, group, target, sched);
  quern_status status = base_str_status(&text);
  if (status == QUERN_STATUS_OK) snprintf(line, LINE_BYTES, "%s", text.at);
  base_str_fini(&text);
  return status;
}

static bool is_stopped(struct tuning *tuning) {
  const quern_tune_options *o = tuning->options;
  tuning->stopped = tuning->stopped || (o->stop != NULL && o->stop(o->user));
  return tuning->stopped;
}

/* Tries the values of one number; sched and seconds become those of the best. */
static quern_status try_knob(struct tuning *tuning, const struct knob *knob, const struct base_target *target,
                             uint64_t group, struct sched *sched, double *seconds) {
  char line[LINE_BYTES];
  struct sched best = *sched;
  for (int i = 0; i < MOST_VALUES && knob->values[i] != 0 && !is_stopped(tuning); i++) {
    struct sched trial = *sched;
    double taken;
    set_number(&trial, knob, knob->values[i]);
    QUERN_TRY(print_line(line, &tuning->heap, group, &trial, target));
    QUERN_TRY(write_trial(tuning, line));
    quern_status status = measure(tuning, tuning->trial, group, &taken);
    if (status == QUERN_STATUS_UNSUPPORTED) continue; /* it is no better, then */
    QUERN_TRY(status);
    if (taken >= *seconds * 0.99) continue;
    *seconds = taken;
    best = trial;
  }
  *sched = best;
  return QUERN_STATUS_OK;
}

static quern_status tune_kernel(struct tuning *tuning, const struct spent *spent, const struct base_target *target) {
  char line[LINE_BYTES];
  struct sched sched = {0};
  double before, seconds, least = tuning->options->least > 0 ? tuning->options->least : 0.03;
  QUERN_TRY(write_trial(tuning, ""));
  QUERN_TRY(measure(tuning, tuning->trial, spent->group, &before));
  seconds = before;
  for (size_t i = 0; i < BASE_COUNT(knobs); i++)
    if (strcmp(knobs[i].kind, spent->kind) == 0 && knobs[i].gpu == target->gpu)
      QUERN_TRY(try_knob(tuning, &knobs[i], target, spent->group, &sched, &seconds));
  bool found = seconds <= before * (1 - least);
  QUERN_TRY(print_line(line, &tuning->heap, spent->group, &sched, target));
  if (found) base_str_add(&tuning->lines, line);
  QUERN_TRY(base_str_status(&tuning->lines));
  if (tuning->options->progress != NULL)
    tuning->stopped |= !tuning->options->progress(tuning->options->user, spent->name, before, found ? seconds : before,
                                                  found ? line : "");
  return QUERN_STATUS_OK;
}

static quern_status search(struct tuning *tuning) {
  struct spent list[MOST_KERNELS];
  struct timing t = {0};
  struct cg_target target = {0};
  size_t n = 0, most = tuning->options->kernels > 0 ? (size_t)tuning->options->kernels : 8;
  QUERN_TRY(write_trial(tuning, ""));
  quern_status status = timing_make(&t, tuning, tuning->trial);
  if (status == QUERN_STATUS_OK) {
    n = list_spent(&t, list);
    target = t.program->target;
  }
  timing_close(&t);
  for (size_t i = 0; i < n && i < most && status == QUERN_STATUS_OK && !is_stopped(tuning); i++)
    if (!list[i].call) status = tune_kernel(tuning, &list[i], &target.base);
  return status;
}

static quern_status tune(struct tuning *tuning) {
  const char *path = tuning->options->path;
  const struct base_str *lines = &tuning->lines;
  QUERN_TRY(open_trial(tuning));
  quern_status status = read_lines(&tuning->lines, &tuning->heap, path);
  if (status == QUERN_STATUS_OK) status = search(tuning);
  const struct io_piece subprograms[] = {{head, sizeof head - 1}, {lines->at != NULL ? lines->at : "", lines->n}};
  if (status == QUERN_STATUS_OK) status = io_file_write("program_tune", path, BASE_COUNT(subprograms), subprograms);
  close_trial(tuning);
  return status;
}

quern_status quern_program_tune(quern_context *ctx, size_t n, quern_tensor *const *outputs,
                                const quern_program_options *options, const quern_tune_options *tune_options) {
  struct engine_request request;
  quern_tune_options taken;
  QUERN_TRY(base_take(quern_tune_options, &taken, tune_options, "program_tune"));
  tune_options = &taken;
  QUERN_CHECK(tune_options->path != NULL && tune_options->path[0] != 0, INVALID,
              "program_tune: there is no path of a file");
  QUERN_CHECK(tune_options->kernels >= 0 && tune_options->least >= 0 && tune_options->least < 1, INVALID,
              "program_tune: %d kernels and a gain of %g: must be 0 or more, the gain below 1", tune_options->kernels,
              tune_options->least);
  QUERN_TRY(engine_request_make(&request, ctx, n, outputs, options));
  struct tuning tuning = {.request = &request, .options = tune_options, .fd = -1};
  base_heap_init(&tuning.heap, &ctx->heap.user);
  base_str_init(&tuning.lines, &tuning.heap);
  quern_status status = tune(&tuning);
  base_str_fini(&tuning.lines);
  return status;
}
