/* train/train.h -- a training run from the inside
** keys.c     the table of keys, presets
** spec.c     from a configuration to a model's sizes
** network.c  the loss of a network: what a user's own gives, or a model of spec.c (builtin.c)
** data.c     texts, token files, arrays as sources of samples; adder.c makes its own
** build.c    the programs of a run: the step, evaluation, initial values
** run_device.c   the device: whether it is there, its precision, states in its memory
** memory_fit.c      programs within a memory limit; process_memory.c: bytes of the whole process
** folder.c   the run's folder: one process trains in it, and replaces nothing that is not the run's
** trainer.c  the run step by step; resume.c saves it and goes on from what was saved
** first_nonfinite.c    which operation gave the first value that is not finite
** loop.c     the whole run; metrics.c what is written of it
*/
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H
#include "base/base.h"
#include "io/io.h"
#include "quern/checkpoint.h"
#include "quern/data.h"
#include "quern/models.h"
#include "quern/optim.h"
#include "quern/tokenizer.h"
#include "quern/train.h"

/* ---- keys (keys.c) ----------------------------------------------------------------------------------------------- */

extern const quern_config_key train_keys[];
extern const size_t train_n_keys;
/* Whether a run that goes on must have the value that it began with. */
bool train_key_is_same(size_t key);
/* Whether two values of a key are the same, however a number is written. */
bool train_same_value(size_t key, const char *a, const char *b);

/* ---- what is trained (spec.c) ------------------------------------------------------------------------------------ */

enum train_task { TRAIN_TASK_TEXT, TRAIN_TASK_ADDER, TRAIN_TASK_CLASSES, TRAIN_TASK_OWN };
enum train_family { TRAIN_LM, TRAIN_LSTM, TRAIN_RESNET, TRAIN_MLP, TRAIN_OWN };
enum { TRAIN_MLP_LAYERS = 64 };
#define TRAIN_OWN_MODEL "own:" /* how `model` of a user's own network begins */

struct train_spec {
  enum train_family family;
  quern_lm_options lm;  /* LM; of LSTM vocabulary, layers, width, hidden, dropout; of MLP layers, hidden, activation */
  int depth;            /* RESNET */
  int64_t classes;      /* RESNET, MLP; 0: from the labels */
  bool open_vocabulary; /* the tokenizer or the data has the number of ids */
  enum train_task task;
  int64_t length;    /* tokens of a sample; 0 of classification */
  quern_dtype dtype; /* of parameters: f32 or f64 */
  quern_dtype half;  /* bf16 or f16, which is computed in; else dtype */
};
/* The model and task of a configuration, which must outlive the spec. What the data determines is left open: vocabulary, classes. */
quern_status train_spec_read(struct train_spec *spec, const quern_config *config) QUERN_NODISCARD;
/* Sets what is computed in; "auto": f32. */
void train_spec_precision(struct train_spec *spec, const char *precision);
/* The vocabulary is as large as whose ids need, if the model leaves it open; too small a one is an error. */
quern_status train_spec_vocabulary(struct train_spec *spec, int64_t ids, const char *whose) QUERN_NODISCARD;
/* The tokenizer that a configuration names. */
quern_status train_tokenizer(quern_tokenizer **tokenizer, const quern_config *config,
                             const quern_allocator *allocator) QUERN_NODISCARD;

/* ---- data (data.c, adder.c) -------------------------------------------------------------------------------------- */

enum { TRAIN_FIELDS = 2 }; /* of built-in models: inputs, labels */

/* Samples of a source: from `first` on all (every is 0), all but every so-manyth, or those alone (held). */
struct train_split {
  const quern_source *source;
  int64_t first, every;
  bool held;
};

struct train_adder {
  uint64_t seed;
  int64_t length;
  bool held; /* the pairs that are held out */
};
enum { TRAIN_ADDER_LENGTH = 12, TRAIN_ADDER_IDS = 64 };
quern_status train_adder_open(quern_source **source, struct train_adder *adder, uint64_t seed, int64_t length,
                              bool held, const quern_allocator *allocator) QUERN_NODISCARD;
/* Of pair a x 1000 + b: whether it is held out; "123+456=9750\n". */
bool train_adder_held(int64_t pair);
void train_adder_text(int64_t pair, char text[TRAIN_ADDER_LENGTH + 2]);

struct train_ids {
  void *at;
  size_t bytes;
};

struct train_data {
  struct base_heap *heap;
  quern_tokenizer *tokenizer; /* of texts; else NULL */
  BASE_VEC(quern_tokens *) tokens;
  BASE_VEC(struct train_ids) ids;     /* memory of tokens */
  quern_source *opened[2];            /* of files */
  const quern_source *all, *all_eval; /* what the splits are of */
  int labels;                         /* the field whose negative elements do not count; -1: none */
  struct train_split splits[2];
  struct train_adder adders[2];
  quern_source *train, *eval; /* eval NULL: there is none */
  uint64_t digest;            /* of what was read, to know it again */
  int64_t bytes;              /* held in memory */
  double seconds;             /* of reading */
};
/* Opens the data of a task, or without one those of a configuration, and resolves what the spec left open.
** train_data_close in any case. */
quern_status train_data_open(struct train_data *data, struct base_heap *heap, const quern_config *config,
                             struct train_spec *spec, const quern_train_task *task) QUERN_NODISCARD;
void train_data_close(struct train_data *data);
/* Texts of more bytes than this become a token file in the run's folder; under a limit of memory 4 MiB are enough. */
extern size_t train_large_text;
/* Makes a folder if only its last name is missing. */
quern_status train_make_folder(const char *path) QUERN_NODISCARD;

/* ---- the network (network.c, builtin.c) ---------------------------------------------------------------------------- */

enum { TRAIN_REPORTS = QUERN_TRAIN_MAX_REPORTS, TRAIN_NAME = 64 };
/* What builds the loss, and the fields that it is built on. */
struct train_network {
  quern_train_loss *loss;
  void *user;
  char name[TRAIN_NAME]; /* of a user's own; "" of built-in models */
  size_t n_fields;
  quern_field fields[QUERN_MAX_FIELDS];
};
/* One expression of it. */
struct quern_train_graph {
  const struct train_network *network;
  quern_model *model;
  quern_tensor *const *inputs; /* by field */
  bool eval;                   /* of a program for evaluation: reports are wanted */
  size_t n_reports;
  char names[TRAIN_REPORTS][TRAIN_NAME];
  quern_tensor *reports[TRAIN_REPORTS]; /* sums over the batch */
};
/* A caller's task as this version knows it, and whether it is one, before anything of the run is there. */
quern_status train_task_take(quern_train_task *task, const quern_train_task *callers) QUERN_NODISCARD;
/* The network of a task, or NULL: of the spec, on the data's fields. */
quern_status train_network_open(struct train_network *network, const quern_train_task *task, struct train_spec *spec,
                                const struct train_data *data) QUERN_NODISCARD;
/* The loss of a batch: a scalar, or an error that names what it is. Of evaluation graph has the reports, too. */
quern_status train_network_loss(struct quern_train_graph *graph, quern_tensor **loss) QUERN_NODISCARD;
/* A quern_train_loss of a spec. */
quern_tensor *train_builtin_loss(quern_train_graph *graph, void *user);

/* ---- memory of the process (process_memory.c) ----------------------------------------------------------------------------- */

int64_t train_resident(void);   /* bytes in memory now; 0: not known */
int64_t train_peak(void);       /* the most there were */
int64_t train_child_peak(void); /* the most of one of its children that have ended, such as the C compiler's */
void train_trim(void);          /* bytes that nothing uses go back to the system */
/* Seconds from the process's start to now, as base_clock counts. */
double train_process_seconds(void);

/* ---- the run --------------------------------------------------------------------------------------------------------- */

/* A program with an instance of it, and places for what goes in and out. Outputs: loss, norm, finite of a step; loss
** and reports of an evaluation. */
enum { TRAIN_LOSS, TRAIN_NORM, TRAIN_FINITE, TRAIN_OUTPUTS, TRAIN_REPORTED = 1 };
enum { TRAIN_MOST_OUTPUTS = TRAIN_REPORTED + TRAIN_REPORTS };
struct train_program {
  quern_program *program;
  quern_instance *instance;
  size_t n_fields;
  int in[QUERN_MAX_FIELDS], in_lr, in_made; /* inputs by number; -1: it has none */
  _Alignas(8) unsigned char lr[8];
  uint64_t made; /* steps before this one */
  _Alignas(8) unsigned char out[TRAIN_MOST_OUTPUTS][8];
};

/* Steps that were waited for at once, and their seconds. */
struct train_window {
  double seconds;
  int64_t steps;
};

/* What evaluations report. */
struct train_results {
  size_t n;
  char names[TRAIN_REPORTS][TRAIN_NAME];
  quern_train_value values[TRAIN_REPORTS];
};

enum { TRAIN_RECENT = 16 };
#define TRAIN_STEPS_MOST INT64_C(1000000000000000) /* steps of a run; keys.def */
struct quern_trainer {
  struct base_heap heap;
  quern_config *config; /* its own */
  struct train_spec spec;
  struct train_data data;
  struct train_network network;
  quern_context *ctx;
  quern_model *model;
  BASE_VEC(quern_optim_group) groups;
  quern_step *step;
  quern_tensor *inputs[QUERN_MAX_FIELDS], *loss;
  quern_train_task task;                 /* of a user's own network; the name is NULL of built-in ones */
  const quern_device *device;            /* of the configuration */
  bool remote;                           /* it has memory of its own */
  int64_t room;                          /* that was free in it before instances were made; 0: not known */
  double least_scale;                    /* of the scaler; 0: there is none */
  bool planning;                         /* programs that are made now are planned only */
  int64_t compiler_room, compiler_least; /* quern_program_options.compiler_limit, and where its least is stored */
  bool block,
      marked; /* checkpoint=block of a network that has no layers by number; the loss has quern_checkpoint_activation in it */
  int64_t recompute_every; /* quern_program_options */
  struct train_program main, eval;
  int64_t eval_batch;           /* samples of a run of eval */
  struct train_results results; /* of the last evaluation */
  quern_loader *loader;
  quern_schedule schedule;
  quern_schedule_piece pieces[2];
  quern_train_callbacks callbacks;
  quern_train_info info;
  double best; /* evaluation so far; INFINITY: none */
  int64_t bad; /* evaluations since */
  struct train_window recent[TRAIN_RECENT];
  int64_t n_recent;        /* of them */
  int64_t unread;          /* steps that the device was asked for since the last whose outputs were read */
  double since;            /* when the first of those, or of the step under way, began */
  quern_cursor read;       /* of the loader before that one */
  int recorded;            /* steps whose kernels were timed */
  bool changed;            /* the data is not that of the checkpoint */
  bool broken;             /* a step was not finite: no more can be made */
  char path[IO_PATH_MOST]; /* of the last checkpoint */
  int folder, lock;        /* descriptors of `out` and of its lock; -1: it is not locked */
  bool made, fresh; /* `out` was not there; and had no files of a run: what it has goes again, unless the run begins */
};

/* What a run is made of, as its caller gives it. */
struct train_request {
  const char *what;             /* the function, in messages */
  const quern_train_task *task; /* NULL: a built-in model */
  bool own;                     /* a task must be there */
  const quern_config *config;
  const quern_train_callbacks *callbacks;
};
/* Whether it is whole; then a trainer that has its own copy of the configuration. */
quern_status train_request_open(quern_trainer **trainer, const struct train_request *request) QUERN_NODISCARD;
/* quern_trainer_new and quern_trainer_new_with; folder: of a run that writes its folder, which is locked and looked
** through first (train_folder_open). */
quern_status train_new(quern_trainer **trainer, const struct train_request *request, bool folder) QUERN_NODISCARD;

/* ---- the folder (folder.c) --------------------------------------------------------------------------------------- */

/* Makes the folder `out` if only its last name is missing, and locks it until train_unlock: STATE while another
** process has it. */
quern_status train_lock(quern_trainer *trainer, const char *out) QUERN_NODISCARD;
void train_unlock(quern_trainer *trainer);
/* Locks the folder of a configuration; an error names the file in it, or the key, by which it is not this run's. */
quern_status train_folder_open(quern_trainer *trainer, const quern_config *config) QUERN_NODISCARD;
/* Whether a folder has a file config. */
bool train_has_config(const char *dir);
/* Writes config. */
quern_status train_config_write(const quern_config *config, const char *out) QUERN_NODISCARD;

/* ---- programs and steps ------------------------------------------------------------------------------------------ */

/* Everything but programs and states: data, sizes, the learning rate. plan: the device
** need not be there. */
quern_status train_open_run(quern_trainer *trainer, bool plan) QUERN_NODISCARD;
/* One step; read: wait for its outputs, else they stay on the device. Steps after one that was not finite are not made, so that it is found
** by the next that is read, or by train_sync. */
quern_status train_step(quern_trainer *trainer, quern_train_record *record, bool read) QUERN_NODISCARD;
/* Steps that were not read have been made, or an error names the one that was not finite. */
quern_status train_sync(quern_trainer *trainer) QUERN_NODISCARD;
/* What the machine was measured to reach; false: it was not (memory_fit.c). And as FLOP/s of the run. */
struct prof_limits;
bool train_limits(quern_trainer *t, struct prof_limits *limits);
void train_find_peak(quern_trainer *t);
/* Whether there is room to measure it in a process of its own: quern_train_info.measuring. */
void train_find_measuring(quern_trainer *t);

/* A line for people. */
void train_note(const quern_trainer *trainer, const char *fmt, ...) BASE_PRINTF(2, 3);

/* ---- the device (run_device.c) ---------------------------------------------------------------------------------------- */

/* The device of the configuration is there: an error names what is missing. plan: it need not be. */
quern_status train_device_open(quern_trainer *trainer, bool plan) QUERN_NODISCARD;
/* Bytes that are free on a device with memory of its own, and all; false: it has none, or does not report it. */
bool train_device_room(const quern_trainer *trainer, int64_t *bytes, int64_t *all);
/* Notes what is free before instances are made; then how much they have taken, with the constants of their programs. */
void train_device_mark(quern_trainer *trainer);
void train_device_measure(quern_trainer *trainer);
/* Resolves precision = auto: as the checkpoint (NULL: there is none) was computed, else as the device does best. */
quern_status train_precision(quern_trainer *trainer, const quern_checkpoint *checkpoint) QUERN_NODISCARD;
/* Memory of the host to put a state's elements into: where they lie, or a copy's; which close brings to the device, if status is OK, and
** frees. Returns status, or what went wrong. */
quern_status train_state_open(struct base_heap *heap, quern_instance *instance, size_t i, const quern_slot *slot,
                              void **at) QUERN_NODISCARD;
quern_status train_state_close(struct base_heap *heap, quern_instance *instance, size_t i, const quern_slot *slot,
                               void *at, quern_status status) QUERN_NODISCARD;
/* The value of a state that is a scalar. */
quern_status train_state_scalar(const quern_trainer *trainer, const char *name, double *value) QUERN_NODISCARD;

/* ---- programs (build.c) -------------------------------------------------------------------------------------------- */

/* The expressions of a step that takes its batch in micro-batches; those there were are gone. */
quern_status train_build_step(quern_trainer *trainer, int64_t parts) QUERN_NODISCARD;
void train_build_free(quern_trainer *trainer);
/* Its program, and one that is planned only. limit: bytes beside state and constants, 0: any. least: as
** quern_program_options.least_limit. */
quern_status train_step_program(quern_trainer *trainer, int64_t limit, struct train_program *p,
                                int64_t *least) QUERN_NODISCARD;
quern_status train_step_plan(quern_trainer *trainer, int64_t limit, struct train_program *p,
                             int64_t *least) QUERN_NODISCARD;
/* What less memory costs it (quern_program_curve). */
quern_status train_step_curve(quern_trainer *trainer, size_t room, quern_curve_point *points,
                              size_t *n) QUERN_NODISCARD;
/* The loss and the norm of its gradients alone, with one kernel per operation. */
quern_status train_check_program(quern_trainer *trainer, struct train_program *p) QUERN_NODISCARD;
/* The program of evaluation, unless it is there; plan_only: as in quern_program_options. */
quern_status train_eval_program(quern_trainer *trainer, bool plan_only) QUERN_NODISCARD;
/* A program that gives parameters the values they begin with, or NULL when all are constants. */
quern_status train_initial_program(quern_trainer *trainer, quern_program **program) QUERN_NODISCARD;
void train_program_free(struct train_program *p);
/* One run on the fields of a batch; then its outputs by number. read: else the outputs stay where they are, and are not waited for. */
quern_status train_run(struct train_program *p, void *const *fields, bool read) QUERN_NODISCARD;
double train_output(const struct train_program *p, size_t i);

/* ---- memory (memory_fit.c) -------------------------------------------------------------------------------------------------- */

/* Programs within the memory limit, and the states: those of the checkpoint, or NULL: as they begin. */
quern_status train_open_programs(quern_trainer *trainer, const quern_checkpoint *checkpoint) QUERN_NODISCARD;
/* The step's program alone, planned within the limit and for no device: nothing is compiled. */
quern_status train_plan_programs(quern_trainer *trainer) QUERN_NODISCARD;

/* ---- checkpoints (resume.c) ---------------------------------------------------------------------------------------- */

/* A checkpoint must be of the same configuration: an error names the key that is not. *parts is how many micro-batches its batches had. */
quern_status train_compare(quern_trainer *trainer, const quern_checkpoint *checkpoint, int64_t *parts) QUERN_NODISCARD;
/* What is trained on must be what it was: otherwise a run can be evaluated, but not gone on with. */
quern_status train_check_data(const quern_trainer *trainer) QUERN_NODISCARD;
/* Lets go of the file's pages, which are read again when they are used. */
void train_release(const quern_checkpoint *checkpoint);
/* States, cursor and the rest as they were. */
quern_status train_restore(quern_trainer *trainer, const quern_checkpoint *checkpoint) QUERN_NODISCARD;

/* ---- values that are not finite (first_nonfinite.c) -------------------------------------------------------------------------- */

/* Runs the step on a batch again, one operation at a time, and returns STATE with the one whose result is the first that is not
** finite. The states must be what they were before the step. */
quern_status train_find_nonfinite(quern_trainer *trainer, void *const *fields) QUERN_NODISCARD;

#endif
