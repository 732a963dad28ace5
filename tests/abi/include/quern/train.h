/* quern/train.h -- training from a configuration: models, data, steps, evaluation, checkpoints, metrics
** A trainer is a run in a folder (`out`): it builds the step as one program, plans its memory, begins where the newest whole
** checkpoint in the folder ends, and goes on one step at a time. The same configuration gives the same bits, however often it was
** interrupted and with any number of threads, on one target (docs/runtime.md, "Bits"). docs/train.md has the table of
** keys.
*/
#ifndef QUERN_TRAIN_H
#define QUERN_TRAIN_H
#include "quern/config.h"
#include "quern/data.h"
#include "quern/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A configuration with the keys of training, each with its default. */
QUERN_API quern_status quern_train_config(quern_config **config, const quern_allocator *allocator) QUERN_NODISCARD;
/* Sets the keys of a task that comes with Quern: "adder" (three-digit addition on data that it makes), "chars" (a character-level
** transformer of a few million parameters; data must be given). The error lists them. */
QUERN_API quern_status quern_train_preset(quern_config *config, const char *name) QUERN_NODISCARD;
/* Sets the keys that a run was started with: those in the newest whole checkpoint of its folder, which becomes `out`. */
QUERN_API quern_status quern_train_config_of(quern_config *config, const char *dir) QUERN_NODISCARD;

typedef struct quern_trainer quern_trainer;

/* ---- what is told -------------------------------------------------------------------------------------------------- */

/* Of a run, once it is ready; valid as long as the trainer. */
typedef struct quern_train_info {
  size_t size; /* of the library's: members that come with a later version may be looked at where it is greater */
  const char *model, *data, *out; /* as people write them */
  int64_t parameters;             /* that are trained */
  int64_t steps, step;            /* in all; done already: where a checkpoint ended */
  int64_t batch, micro, accum;    /* samples of a step = micro-batch x accum */
  int64_t length;                 /* tokens of a sample; 0: they are no texts */
  int64_t train_samples, eval_samples;
  int threads;
  const char *device, *target; /* what code is made for: "avx512", "sm_90" */
  const char *precision, *checkpoint;
  double flops; /* of a step */
  double peak;  /* FLOP/s that this machine was calibrated to reach; 0: not calibrated (quern devices) */
  const quern_memory_plan *memory; /* of the step, as planned */
  int64_t limit;                   /* the memory limit; 0: none */
  int64_t planned;                 /* bytes of the whole process, or on a device with memory of its own, as planned */
  int64_t used;                    /* of such a device, as its driver tells, without libraries and code; 0: not known */
  double
      first_launch; /* seconds from the process's start to the first kernel, without initial values and reading of data */
  double context, libraries; /* seconds of that: a GPU's driver and context; loading its libraries */
  double build, passes, plan, compile, initial, reading; /* graph, passes, plan, compiler; initial values, data */
  /* Bytes that quern_device_limits would take in a process of its own, where this machine was not measured; 0: it was,
  ** or what is found could not be kept, or the limit has no room for it beside the run. */
  int64_t measuring;
  int compiled, cached; /* units that the C compiler ran for, and that the cache had: warm when none was compiled */
} quern_train_info;

/* Of a step. */
typedef struct quern_train_record {
  size_t size;
  int64_t step, steps; /* this one, from 1 on; all */
  double loss, norm, lr;
  double seconds;      /* of the step */
  double per_second;   /* tokens, or samples when there are none, over the last steps */
  double peak;         /* part of the machine's limit that the step reached, 0 to 1; 0: not known */
  double left;         /* seconds, estimated */
  bool skipped;        /* mixed precision: gradients overflowed, nothing but the scale has changed */
  double scale;        /* of the loss; 1 without scaling */
  double success_rate; /* of all steps so far, those that were made; 1 without scaling */
  /* False of a step that a GPU was asked for and that was not waited for: only step, steps and lr are told. Those of log_every, of
  ** evaluations and of checkpoints are; their seconds are the mean since the last that was. */
  bool known;
} quern_train_record;

/* A number by its name. */
typedef struct quern_train_value {
  const char *name;
  double value;
} quern_train_value;

/* Of an evaluation. */
typedef struct quern_eval_record {
  size_t size;
  int64_t step;
  double loss;
  double accuracy; /* of tasks that have one (adder: exact answers; classes), else NAN */
  int64_t samples;
  double seconds;
  bool best; /* so far */
  /* What the network reported, by name, as means over the samples; valid until the next evaluation. */
  size_t n_reports;
  const quern_train_value *reports;
} quern_eval_record;

/* Any may be NULL. Callbacks that return false end the run: it is saved first. */
typedef struct quern_train_callbacks {
  size_t size;
  void *user;
  void (*note)(void *user, const char *text); /* a line for people, without its end */
  void (*begin)(void *user, const quern_train_info *info);
  bool (*step)(void *user, const quern_train_record *record);
  bool (*eval)(void *user, const quern_eval_record *record);
  void (*saved)(void *user, const char *path, int64_t step, double seconds);
} quern_train_callbacks;

/* ---- the whole run ---------------------------------------------------------------------------------------------------- */

typedef enum quern_train_end {
  QUERN_TRAIN_DONE,   /* all steps */
  QUERN_TRAIN_EARLY,  /* the evaluation has not improved for `patience` times */
  QUERN_TRAIN_STOPPED /* a callback said so */
} quern_train_end;

/* Trains to the end: steps, evaluations, checkpoints, metrics.jsonl and report.html in the folder `out`. A value that is not
** finite ends it with STATE and the operation that produced it first. end and callbacks may be NULL. */
QUERN_API quern_status quern_train(const quern_config *config, const quern_train_callbacks *callbacks,
                                   quern_train_end *end) QUERN_NODISCARD;
/* Writes report.html (curves of loss, learning rate and throughput, memory over a step, kernels) from metrics.jsonl and run.json of a
** run's folder; it opens from disk, without anything else. */
QUERN_API quern_status quern_train_report(const char *dir) QUERN_NODISCARD;
/* Tells a few lines for people, from the same files: losses, memory planned and used, the kernels that lost the most time. */
QUERN_API quern_status quern_train_summary(const char *dir, void (*note)(void *user, const char *text),
                                           void *user) QUERN_NODISCARD;

/* Plans the step of a configuration and runs nothing: no parameters, no C compiler, nothing is written. begin is told what the run
** would be, note of kernels and operations. points, at most `room` of them (0: none are wanted), become what less memory costs; points[0].size is the size of each. callbacks
** may be NULL. */
QUERN_API quern_status quern_train_plan(const quern_config *config, const quern_train_callbacks *callbacks, size_t room,
                                        quern_curve_point *points, size_t *n_points) QUERN_NODISCARD;

/* ---- step by step -------------------------------------------------------------------------------------------------- */

/* Builds and compiles the run of a configuration; in its folder it goes on where the newest whole checkpoint ends. callbacks
** (note and begin are used) may be NULL. */
QUERN_API quern_status quern_trainer_new(quern_trainer **trainer, const quern_config *config,
                                         const quern_train_callbacks *callbacks) QUERN_NODISCARD;
QUERN_API void quern_trainer_free(quern_trainer *trainer);
QUERN_API const quern_train_info *quern_trainer_info(const quern_trainer *trainer); /* NULL of NULL */
/* One step; no step is made, and record->step stays, when all are done. */
QUERN_API quern_status quern_trainer_step(quern_trainer *trainer, quern_train_record *record) QUERN_NODISCARD;
/* The loss over the data for evaluation, or over `batches` of them when that is not 0. */
QUERN_API quern_status quern_trainer_eval(quern_trainer *trainer, quern_eval_record *record) QUERN_NODISCARD;
/* Writes a checkpoint; path (may be NULL) is valid until the next. */
QUERN_API quern_status quern_trainer_save(quern_trainer *trainer, const char **path) QUERN_NODISCARD;
/* The program of a step and its instance: for profiles, explanations, states by name. */
QUERN_API const quern_program *quern_trainer_program(const quern_trainer *trainer);
QUERN_API quern_instance *quern_trainer_instance(quern_trainer *trainer);
/* The program of evaluations and its instance, which works on the states of the step's: the network without dropout and
** without gradients, on a batch (quern_trainer_eval runs it). The first call, or the first evaluation, makes them. Either
** place may be NULL. STATE when there are no samples for evaluation. */
QUERN_API quern_status quern_trainer_evaluation(quern_trainer *trainer, const quern_program **program,
                                                quern_instance **instance) QUERN_NODISCARD;

/* ---- own networks -------------------------------------------------------------------------------------------------- */

/* The expression of a loss while a quern_train_loss builds it. */
typedef struct quern_train_graph quern_train_graph;
/* The outermost scope of the network. quern_scope_train is true of a loss for training, false of one for evaluation. */
QUERN_API quern_scope *quern_train_graph_scope(const quern_train_graph *graph);
/* The batch of a field of the samples: (B, ..). Under accumulation B is the micro-batch. */
QUERN_API quern_tensor *quern_train_graph_input(const quern_train_graph *graph, const char *name);
/* Evaluations report the mean of values (B,), one number per sample, under a name of letters, digits, _ . and - that
** is not taken. "accuracy" is the accuracy of records, lines and the report. */
QUERN_API void quern_train_graph_report(quern_train_graph *graph, const char *name, quern_tensor *values);
enum { QUERN_TRAIN_MAX_REPORTS = 8 };

/* Builds the loss of a batch: a scalar of floats, a mean over the batch. It is called once for each program of the run
** and makes the same expression each time, on one thread. After an error it returns NULL or the result of the call that
** failed. */
typedef quern_tensor *quern_train_loss(quern_train_graph *graph, void *user);

/* A network and its data. size, name, loss and data are set; zero in any other member means the default. The sources
** and user must outlive the trainer. */
typedef struct quern_train_task {
  size_t size;
  const char *name; /* letters, digits, _ . and -; another name is another network, which no checkpoint of this fits */
  quern_train_loss *loss;
  void *user; /* of loss */
  /* Samples by number. What a source gives for a number never changes: so a run goes on with the same bits. */
  const quern_source *data;
  const quern_source *eval_data; /* with the same fields; NULL: the key eval_part is the part held out of data */
  /* An integer field whose negative elements do not count: the loss is a mean over those that do (quern_cross_entropy
  ** with ignore, ignore_index -1). Evaluation fills its last batch up with samples whose labels are -1, whose reported
  ** values must be 0. NULL: all samples count the same, and samples at the end that do not fill a batch of an evaluation
  ** are left out. */
  const char *labels;
} quern_train_task;

/* quern_train, quern_train_plan and quern_trainer_new of a network of one's own. All keys of the configuration have
** their meaning but those of built-in models and of their data, which the run leaves to its program; `model` becomes
** own:NAME. docs/train.md, "Own networks". */
QUERN_API quern_status quern_train_with(const quern_train_task *task, const quern_config *config,
                                        const quern_train_callbacks *callbacks, quern_train_end *end) QUERN_NODISCARD;
QUERN_API quern_status quern_train_plan_with(const quern_train_task *task, const quern_config *config,
                                             const quern_train_callbacks *callbacks, size_t room,
                                             quern_curve_point *points, size_t *n_points) QUERN_NODISCARD;
QUERN_API quern_status quern_trainer_new_with(quern_trainer **trainer, const quern_train_task *task,
                                              const quern_config *config,
                                              const quern_train_callbacks *callbacks) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif

#ifndef QUERN_NO_PLACE /* their errors carry the caller's file and line, as those of builders do (place.h) */
#define quern_train_graph_input(...) (quern_place_set(__FILE__, __LINE__), quern_train_graph_input(__VA_ARGS__))
#define quern_train_graph_report(...) (quern_place_set(__FILE__, __LINE__), quern_train_graph_report(__VA_ARGS__))
#endif
#endif
