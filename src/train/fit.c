/* train/fit.c -- a run's programs, and their memory within that of the process
** planned bytes: what is resident when everything but states and step memory is there, plus those, plus the buffers of batches; of a device
**        with memory of its own, what programs have there
** in:    a configuration and its data           out: programs and instances with parameters in them
** keeps: a run that would need more than the limit is refused before it begins, with the smallest limit that would do
** tests: tests/train/test_memory.c
*/
#define _DEFAULT_SOURCE
#include <inttypes.h>
#include <math.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "engine/engine.h"
#include "prof/prof.h"
#include "train/report.h"
#include "train/train.h"

/* ---- what a program does -------------------------------------------------------------------------------- */

bool train_limits(quern_trainer *t, struct prof_limits *limits) {
  const quern_program *program = t->main.program;
  if (!t->remote) return prof_limits_find(limits, &t->heap, t->info.threads);
  return program->device->remote != NULL &&
         prof_device_limits_find(limits, &t->heap, program->device, &program->target);
}

void train_find_peak(quern_trainer *t) {
  struct prof_limits limits;
  bool measured = strcmp(t->info.device, "cpu") == 0 || t->remote;
  if (!measured || t->info.peak > 0 || !train_limits(t, &limits)) return;
  double half = t->spec.half == QUERN_DTYPE_BF16  ? limits.flops_bf16
                : t->spec.half == QUERN_DTYPE_F16 ? limits.flops_f16
                                                  : 0;
  t->info.peak = half > 0 ? half : t->spec.dtype == QUERN_DTYPE_F64 ? limits.flops_f64 : limits.flops_f32;
}

static void fill_program_info(quern_trainer *t) {
  const quern_program *program = t->main.program;
  t->info.threads = program->target.base.threads;
  t->info.target = program->target.base.name;
  t->info.memory = program->memory;
  t->info.flops = program->counts.flops;
  t->info.passes = program->counts.seconds_passes;
  t->info.plan = program->counts.seconds_plan;
  t->info.compile = program->counts.seconds_compile;
  t->info.compiled = program->counts.compiled;
  t->info.cached = program->counts.cached;
  train_find_peak(t);
}

/* ---- bytes ---------------------------------------------------------------------------------------------- */

static int64_t sample_bytes(const quern_source *source) {
  const quern_field *fields;
  size_t n = quern_source_fields(source, &fields);
  int64_t bytes = 0;
  for (size_t i = 0; i < n; i++) {
    int64_t each = (int64_t)quern_dtype_size(fields[i].dtype);
    for (int k = 0; k < fields[i].rank; k++) each *= fields[i].dims[k];
    bytes += each;
  }
  return bytes;
}

/* Bytes beside programs and step memory: batches read ahead and one of evaluation, stacks, records of a profile, texts of a
** checkpoint and of the tokenizer while they are written. */
static int64_t other_bytes(const quern_trainer *t) {
  enum { STACK = 64 << 10, RECORD = 2 << 20, SAVING = 1 << 20, TOKEN = 256 };
  int64_t tokens = t->data.tokenizer != NULL ? (int64_t)quern_tokenizer_vocab(t->data.tokenizer) : 0;
  int64_t ahead = quern_config_int(t->config, "prefetch") + quern_config_int(t->config, "workers") + 2;
  int64_t threads = quern_config_int(t->config, "threads");
  if (threads == 0) threads = rt_default_threads();
  return ahead * t->info.batch * sample_bytes(t->data.train) + threads * STACK + SAVING + tokens * TOKEN +
         (quern_config_int(t->config, "profile") > 0 ? RECORD : 0);
}

static int64_t state_bytes(const quern_trainer *t) {
  int64_t bytes = 0;
  for (size_t i = 0; i < quern_model_parameters(t->model); i++) {
    quern_parameter p;
    if (quern_model_parameter(t->model, i, &p) != QUERN_STATUS_OK) continue;
    bytes += (quern_tensor_count(p.tensor) * (int64_t)quern_dtype_size(quern_tensor_dtype(p.tensor)) + 63) / 64 * 64;
  }
  return bytes;
}

/* What another program needs for itself, since the step's memory is too small for it. */
static int64_t own_bytes(const quern_program *program, const quern_program *step) {
  if (program == NULL) return 0;
  const quern_memory *its = &program->memory, *m = &step->memory;
  return (its->arena > m->arena ? its->arena : 0) + (its->scratch > m->scratch ? its->scratch : 0);
}

/* What instances of the step will take; on a device its constants, too, which are not in the process. */
static int64_t instance_bytes(const quern_trainer *t, const quern_program *program) {
  const quern_memory *m = &program->memory;
  return t->remote ? m->total : m->state + m->arena + m->scratch + m->staging;
}

/* What the memory that is counted holds beside programs, now and later. */
static int64_t beside_bytes(const quern_trainer *t) { return t->remote ? 0 : train_resident() + other_bytes(t); }

/* Bytes that nothing uses go back to the system. */
static void trim(void) {
#if defined(__GLIBC__)
  (void)malloc_trim(0);
#endif
}

/* The step's memory could not be made small enough: says what the whole run would need. */
static quern_status refuse(const quern_trainer *t, int64_t least) {
  enum { MARGIN = 4 << 20, UNIT = 1 << 20 }; /* what is resident differs a little from run to run */
  char limit[TRAIN_TEXT], need[TRAIN_TEXT];
  least = (least + MARGIN + UNIT - 1) / UNIT * UNIT;
  return base_error(QUERN_STATUS_MEMORY,
                    "memory = %s: the run needs %s at least%s (%" PRId64
                    " bytes) HINT: a smaller batch, accum=auto, or "
                    "checkpoint=block",
                    train_text_bytes(limit, (double)t->info.limit), train_text_bytes(need, (double)least),
                    t->remote ? " on the device" : "", least);
}

/* ---- the step's program --------------------------------------------------------------------------------- */

/* Compiles the step with so many bytes for it, or with the fewest that are possible when that is too little; then what is planned. */
static quern_status compile_step(quern_trainer *t, int64_t room, const quern_program *initial, bool *least) {
  int64_t fewest = 0;
  quern_status status = train_step_program(t, room, &t->main, &fewest);
  *least = fewest > 0;
  if (*least) status = train_step_program(t, fewest, &t->main, NULL);
  QUERN_TRY(status);
  if (t->info.limit > 0) trim();
  int64_t others = BASE_MAX(own_bytes(t->eval.program, t->main.program), own_bytes(initial, t->main.program));
  t->info.planned = beside_bytes(t) + instance_bytes(t, t->main.program) + others;
  return QUERN_STATUS_OK;
}

/* Compiles the step within what the limit leaves; what is resident is known only afterwards, so that another try may be needed. */
static quern_status compile_within(quern_trainer *t, const quern_program *initial) {
  enum { TRIES = 4, SLACK = 4 << 20 };
  int64_t room = t->info.limit - beside_bytes(t) - state_bytes(t) - (t->remote ? 0 : SLACK);
  for (int i = 0;; i++) {
    bool least;
    QUERN_TRY(compile_step(t, t->info.limit > 0 ? BASE_MAX(room, 1) : 0, initial, &least));
    int64_t over = t->info.planned - t->info.limit;
    if (t->info.limit == 0 || over <= 0) return QUERN_STATUS_OK;
    if (least || i == TRIES - 1) return refuse(t, t->info.planned);
    train_program_free(&t->main);
    room -= over + (SLACK >> 2);
  }
}

/* ---- parts of a batch ----------------------------------------------------------------------------------- */

/* A quern_parts_bytes: bytes of the process, or on the device, with so many parts. */
static quern_status plan_parts(void *user, int64_t parts, int64_t *bytes) {
  quern_trainer *t = user;
  struct train_program p = {0};
  QUERN_TRY(train_build_step(t, parts));
  QUERN_TRY(train_step_plan(t, 0, &p, NULL));
  *bytes = beside_bytes(t) + instance_bytes(t, p.program);
  train_program_free(&p);
  return QUERN_STATUS_OK;
}

/* The limit, or without one what plans may have of the device; 0: any number of bytes. */
static int64_t most_bytes(const quern_trainer *t) {
  int64_t free, all;
  bool limited = t->info.limit > 0 || !train_device_room(t, &free, &all) || all == 0;
  return limited ? t->info.limit : BASE_MAX(engine_plan_room(free, all), 1);
}

static quern_status choose_parts(quern_trainer *t, int64_t given, int64_t saved, int64_t *parts) {
  bool automatic = strcmp(quern_config_get(t->config, "accum"), "auto") == 0;
  *parts = automatic ? BASE_MAX(saved, 0) : given;
  int64_t bytes = 0;
  if (automatic && saved <= 0) QUERN_TRY(quern_step_parts(parts, &bytes, t->info.batch, most_bytes(t), plan_parts, t));
  if (automatic)
    train_note(t, "accum: %" PRId64 " parts of %" PRId64 " samples%s", *parts, t->info.batch / *parts,
               saved > 0 ? ", as the checkpoint has them" : "");
  QUERN_CHECK(t->info.batch % *parts == 0, INVALID, "accum = %" PRId64 ": must divide the batch, %" PRId64, *parts,
              t->info.batch);
  t->info.accum = *parts;
  t->info.micro = t->info.batch / *parts;
  return QUERN_STATUS_OK;
}

static quern_status choose_checkpoint(quern_trainer *t) {
  const char *word = t->info.checkpoint;
  bool none = strcmp(word, "none") == 0 || strcmp(word, "auto") == 0;
  QUERN_CHECK(none || t->spec.family == TRAIN_LM, INVALID,
              "checkpoint = '%.32s': a model '%s' has no blocks; must be none or auto", word, t->info.model);
  return t->spec.family == TRAIN_LM ? quern_lm_checkpoint(&t->spec.lm, word) : QUERN_STATUS_OK;
}

/* ---- the door ------------------------------------------------------------------------------------------- */

/* States, from a checkpoint or as they begin. */
static quern_status fill_states(quern_trainer *t, const quern_checkpoint *checkpoint, const quern_program *initial) {
  double start = base_clock();
  train_device_mark(t);
  QUERN_TRY(quern_instance_new(&t->main.instance, t->main.program)); /* states are cleared: the values of moments */
  quern_status status =
      checkpoint != NULL ? train_restore(t, checkpoint) : engine_initialise(t->main.instance, t->model, initial);
  *(checkpoint != NULL ? &t->info.reading : &t->info.initial) += base_clock() - start;
  return status;
}

static quern_status open_programs(quern_trainer *t, const quern_checkpoint *checkpoint, quern_program **initial) {
  int64_t saved = 0, parts;
  if (checkpoint != NULL) QUERN_TRY(train_compare(t, checkpoint, &saved));
  if (checkpoint != NULL) train_release(checkpoint);
  QUERN_TRY(choose_checkpoint(t));
  QUERN_TRY(choose_parts(t, quern_config_int(t->config, "accum"), saved, &parts));
  QUERN_TRY(train_build_step(t, parts));
  double start = base_clock();
  if (checkpoint == NULL) QUERN_TRY(train_initial_program(t, initial));
  t->info.initial += base_clock() - start;
  if (t->data.eval != NULL) QUERN_TRY(train_eval_program(t, false)); /* now, and not after hours */
  QUERN_TRY(compile_within(t, *initial));
  fill_program_info(t);
  if (!t->remote) t->info.planned = BASE_MAX(t->info.planned, train_peak());
  if (t->info.limit > 0 && t->info.planned > t->info.limit) return refuse(t, t->info.planned);
  return QUERN_STATUS_OK;
}

quern_status train_open_programs(quern_trainer *t, const quern_checkpoint *checkpoint) {
  quern_program *initial = NULL;
  quern_status status = open_programs(t, checkpoint, &initial);
  if (status == QUERN_STATUS_OK) status = fill_states(t, checkpoint, initial);
  quern_program_free(initial);
  return status;
}

quern_status train_plan_programs(quern_trainer *t) {
  int64_t parts, least = 0, room = 0;
  QUERN_TRY(choose_checkpoint(t));
  QUERN_TRY(choose_parts(t, quern_config_int(t->config, "accum"), 0, &parts));
  QUERN_TRY(train_build_step(t, parts));
  int64_t before = beside_bytes(t) + state_bytes(t);
  if (t->info.limit > 0) room = BASE_MAX(t->info.limit - before, 1);
  quern_status status = train_step_plan(t, room, &t->main, &least);
  if (least > 0) return refuse(t, least + before);
  QUERN_TRY(status);
  if (t->data.eval != NULL) QUERN_TRY(train_eval_program(t, true));
  fill_program_info(t);
  t->info.planned = beside_bytes(t) + instance_bytes(t, t->main.program) + own_bytes(t->eval.program, t->main.program);
  return QUERN_STATUS_OK;
}
