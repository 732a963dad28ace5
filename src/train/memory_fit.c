/* train/memory_fit.c -- a run's programs, and their memory within that of the process
** planned bytes: what is resident when everything but states and step memory is there, plus those, plus the buffers of batches; of a device
**        with memory of its own, what programs have there
** in:    a configuration and its data           out: programs and instances with parameters in them
** keeps: a run that would need more than the limit is refused before it begins, with the smallest limit that would do
** tests: tests/train/test_memory.c
*/
#include <inttypes.h>
#include <math.h>

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

void train_find_measuring(quern_trainer *t) {
  t->info.measuring = 0;
  if (t->info.peak > 0 || strcmp(t->info.device, "cpu") != 0) return;
  int64_t bytes = prof_limits_bytes(&t->heap);
  bool room = t->info.limit == 0 || BASE_MAX(t->info.planned, train_resident()) + bytes <= t->info.limit;
  t->info.measuring = room ? bytes : 0;
}

static void fill_program_info(quern_trainer *t) {
  const quern_program *program = t->main.program;
  t->info.threads = program->target.base.threads;
  t->info.target = program->target.base.name;
  t->info.memory = &program->memory;
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

/* Bytes beside programs and step memory: prefetched batches and one of evaluation, stacks, records of a profile, texts of a
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

/* What another program needs for itself, since the step's memory is too small for it. */
static int64_t own_bytes(const quern_program *program, const quern_program *step) {
  if (program == NULL) return 0;
  const quern_memory_plan *its = &program->memory, *m = &step->memory;
  return (its->arena > m->arena ? its->arena : 0) + (its->scratch > m->scratch ? its->scratch : 0);
}

/* What instances of the step will take; on a device its constants, too, which are not in the process. */
static int64_t instance_bytes(const quern_trainer *t, const quern_program *program) {
  const quern_memory_plan *m = &program->memory;
  return t->remote ? m->total : m->state + m->arena + m->scratch + m->staging;
}

/* What the memory that is counted holds beside programs, now and later. */
static int64_t beside_bytes(const quern_trainer *t) { return t->remote ? 0 : train_resident() + other_bytes(t); }

/* What the programs that share the step's memory need for themselves, one at a time. */
static int64_t others_bytes(const quern_trainer *t, const quern_program *initial, const quern_program *step) {
  return BASE_MAX(own_bytes(t->eval.program, step), own_bytes(initial, step));
}

/* ---- the least ------------------------------------------------------------------------------------------ */

/* What a run needs at least. It is found before anything is compiled and does not depend on the limit, so that the
** same limits are refused every time, and a limit that is reported can be met. */
struct need {
  int64_t step;      /* memory limit of the step's program: the smallest that can be met */
  int64_t process;   /* what the process takes while programs are made */
  int64_t run;       /* what it takes once it runs */
  int64_t compiling; /* the process and the C compiler, when it has to make some; else 0 */
};

/* With its kernels in the cache. */
static int64_t least_later(const struct need *need) { return BASE_MAX(need->run, need->process); }
static int64_t least_now(const struct need *need) { return BASE_MAX(least_later(need), need->compiling); }

/* The least is reported in tenths of a MiB, above what is resident by more than that differs from run to run. */
static quern_status refuse(const quern_trainer *t, const struct need *need) {
  enum { MARGIN = 1 << 18, MIB = 1 << 20 };
  char limit[TRAIN_TEXT], later[128] = "a smaller batch, accum=auto, or checkpoint=block";
  int64_t tenths = ((least_now(need) + MARGIN) * 10 + MIB - 1) / MIB;
  int64_t run = ((least_later(need) + MARGIN) * 10 + MIB - 1) / MIB;
  if (need->compiling > least_later(need))
    snprintf(later, sizeof later, "with these kernels in the cache it needs %" PRId64 ".%" PRId64 " MiB", run / 10,
             run % 10);
  return base_error(QUERN_STATUS_MEMORY,
                    "memory = %s: the run needs %" PRId64 ".%" PRId64 " MiB at least%s (%" PRId64 " bytes)%s HINT: %s",
                    train_text_bytes(limit, (double)t->info.limit), tenths / 10, tenths % 10,
                    t->remote ? " on the device" : "", (tenths * MIB + 9) / 10,
                    need->compiling > least_later(need) ? ", while the C compiler makes its kernels" : "", later);
}

/* Plans the programs: the step in the least memory, evaluation, and initial values unless they are there already.
** While they are alive, as much is resident as will be when they are compiled, but for their code. */
static quern_status plan_least(quern_trainer *t, bool fresh, struct need *need) {
  enum { CODE = 2 << 20 };
  struct train_program least = {0};
  quern_program *initial = NULL;
  quern_status status = train_step_plan(t, 1, &least, &need->step);
  if (need->step > 0) status = train_step_plan(t, need->step, &least, NULL);
  t->planning = true;
  if (status == QUERN_STATUS_OK && t->data.eval != NULL) status = train_eval_program(t, true);
  if (status == QUERN_STATUS_OK && fresh) status = train_initial_program(t, &initial);
  t->planning = false;
  train_trim();
  if (status == QUERN_STATUS_OK) {
    need->run = beside_bytes(t) + instance_bytes(t, least.program) + others_bytes(t, initial, least.program);
    need->run += t->remote ? 0 : CODE;
    need->process = t->remote ? 0 : train_peak() + CODE;
  }
  quern_program_free(initial);
  train_program_free(&t->eval);
  train_program_free(&least);
  return status;
}

static quern_status find_need(quern_trainer *t, bool fresh, struct need *need) {
  *need = (struct need){0};
  if (t->info.limit == 0) return QUERN_STATUS_OK;
  QUERN_TRY(plan_least(t, fresh, need));
  QUERN_TRY(train_build_step(t, t->info.accum)); /* the graph, and so the kernels, are those of a run without a limit */
  train_trim();
  return QUERN_STATUS_OK;
}

/* ---- the programs --------------------------------------------------------------------------------------- */

/* Whether a program was not made for want of room for the compiler only: then that is noted. */
static bool lacks_compiler(quern_trainer *t, quern_status status, struct need *need) {
  if (status != QUERN_STATUS_MEMORY || t->compiler_least == 0) return false;
  need->compiling = BASE_MAX(need->compiling, need->process + t->compiler_least);
  return true;
}

/* What is resident now and the memory of the programs are what is planned. If that is more than the limit, the step is
** compiled again in less. */
static quern_status open_step(quern_trainer *t, const struct need *need, int64_t room, const quern_program *initial) {
  for (;;) {
    if (t->info.limit > 0) train_trim();
    t->info.planned = beside_bytes(t) + instance_bytes(t, t->main.program) + others_bytes(t, initial, t->main.program);
    int64_t over = t->info.planned - t->info.limit;
    if (t->info.limit == 0 || over <= 0) return QUERN_STATUS_OK;
    if (room <= need->step || need->step == 0) return refuse(t, &(struct need){.run = t->info.planned});
    room = BASE_MAX(room - over, need->step);
    train_program_free(&t->main);
    QUERN_TRY(train_step_program(t, room, &t->main, NULL));
  }
}

/* All programs, within the limit if there is one, or what they need at least. A limit that is too small starts no
** compiler. */
static quern_status compile_programs(quern_trainer *t, bool fresh, quern_program **initial) {
  struct need need;
  QUERN_TRY(find_need(t, fresh, &need));
  bool limited = t->info.limit > 0, fits = t->info.limit >= least_later(&need);
  if (t->remote && limited && !fits) return refuse(t, &need); /* there is no compiler's room to report */
  int64_t room = limited ? BASE_MAX(need.step + BASE_MAX(t->info.limit - need.run, 0), 1) : 0;
  if (limited && !t->remote) t->compiler_room = fits ? BASE_MAX(t->info.limit - need.process, 1) : 1;
  double start = base_clock();
  quern_status status = fresh ? train_initial_program(t, initial) : QUERN_STATUS_OK;
  t->info.initial += base_clock() - start;
  if (status != QUERN_STATUS_OK && !lacks_compiler(t, status, &need)) return status;
  status = train_step_program(t, room, &t->main, NULL);
  if (status != QUERN_STATUS_OK && !lacks_compiler(t, status, &need)) return status;
  status = t->data.eval != NULL ? train_eval_program(t, false) : QUERN_STATUS_OK; /* not after hours */
  if (status != QUERN_STATUS_OK && !lacks_compiler(t, status, &need)) return status;
  return fits && need.compiling == 0 ? open_step(t, &need, room, *initial) : refuse(t, &need);
}

/* ---- micro-batches ----------------------------------------------------------------------------------- */

/* A quern_parts_bytes: bytes of the process, or on the device, with so many micro-batches. */
static quern_status plan_micro_batches(void *user, int64_t micro_batches, int64_t *bytes) {
  quern_trainer *t = user;
  struct train_program p = {0};
  QUERN_TRY(train_build_step(t, micro_batches));
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

static quern_status choose_micro_batches(quern_trainer *t, int64_t given, int64_t saved, int64_t *micro_batches) {
  bool automatic = strcmp(quern_config_get(t->config, "accum"), "auto") == 0;
  *micro_batches = automatic ? BASE_MAX(saved, 0) : given;
  int64_t bytes = 0;
  if (automatic && saved <= 0)
    QUERN_TRY(quern_step_parts(micro_batches, &bytes, t->info.batch, most_bytes(t), plan_micro_batches, t));
  if (automatic)
    train_note(t, "accum: %" PRId64 " micro-batches of %" PRId64 " samples%s", *micro_batches,
               t->info.batch / *micro_batches, saved > 0 ? ", as the checkpoint has them" : "");
  QUERN_CHECK(t->info.batch % *micro_batches == 0, INVALID, "accum = %" PRId64 ": must divide the batch, %" PRId64,
              *micro_batches, t->info.batch);
  t->info.accum = *micro_batches;
  t->info.micro = t->info.batch / *micro_batches;
  return QUERN_STATUS_OK;
}

/* Transformers keep what leaves layers; other networks what they mark, or their kernels are cut into segments. */
static quern_status choose_checkpoint(quern_trainer *t) {
  const char *word = t->info.checkpoint;
  if (t->spec.family == TRAIN_LM) return quern_lm_set_checkpointing(&t->spec.lm, word);
  quern_lm_options counted = {.size = sizeof counted, .layers = 1}; /* every:N has the same form */
  QUERN_TRY(quern_lm_set_checkpointing(&counted, word));
  t->block = strcmp(word, "block") == 0;
  t->recompute_every = strcmp(word, "sqrt") == 0 ? QUERN_RECOMPUTE_SQRT : t->block ? 0 : counted.checkpoint_every;
  return QUERN_STATUS_OK;
}

/* ---- the door ------------------------------------------------------------------------------------------- */

/* States, from a checkpoint or as they begin. */
static quern_status fill_states(quern_trainer *t, const quern_checkpoint *checkpoint, const quern_program *initial) {
  double start = base_clock();
  train_device_mark(t);
  QUERN_TRY(quern_instance_new(&t->main.instance, t->main.program)); /* states are cleared: the values of moments */
  quern_status status =
      checkpoint != NULL ? train_restore(t, checkpoint) : engine_initialize(t->main.instance, t->model, initial);
  *(checkpoint != NULL ? &t->info.reading : &t->info.initial) += base_clock() - start;
  return status;
}

static quern_status open_programs(quern_trainer *t, const quern_checkpoint *checkpoint, quern_program **initial) {
  int64_t saved = 0, micro_batches;
  if (checkpoint != NULL) QUERN_TRY(train_compare(t, checkpoint, &saved));
  if (checkpoint != NULL) train_release(checkpoint);
  QUERN_TRY(choose_checkpoint(t));
  QUERN_TRY(choose_micro_batches(t, quern_config_int(t->config, "accum"), saved, &micro_batches));
  QUERN_TRY(train_build_step(t, micro_batches));
  QUERN_TRY(compile_programs(t, checkpoint == NULL, initial));
  fill_program_info(t);
  if (!t->remote) t->info.planned = BASE_MAX(t->info.planned, train_peak());
  if (t->info.limit > 0 && t->info.planned > t->info.limit) return refuse(t, &(struct need){.run = t->info.planned});
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
  int64_t micro_batches, room = 0;
  struct need need;
  QUERN_TRY(choose_checkpoint(t));
  QUERN_TRY(choose_micro_batches(t, quern_config_int(t->config, "accum"), 0, &micro_batches));
  QUERN_TRY(train_build_step(t, micro_batches));
  QUERN_TRY(find_need(t, true, &need));
  if (t->info.limit < least_later(&need)) return refuse(t, &need);
  if (t->info.limit > 0) room = BASE_MAX(need.step + t->info.limit - need.run, 1);
  QUERN_TRY(train_step_plan(t, room, &t->main, NULL));
  if (t->data.eval != NULL) QUERN_TRY(train_eval_program(t, true));
  fill_program_info(t);
  train_trim();
  t->info.planned = beside_bytes(t) + instance_bytes(t, t->main.program) + others_bytes(t, NULL, t->main.program);
  return QUERN_STATUS_OK;
}
