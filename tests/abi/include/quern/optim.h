/* quern/optim.h -- optimizers: from a loss to the next values of parameters, as expressions; learning rates
** The whole step (forward, backward, clipping, update) becomes one program: compile what quern_step has as updates.
*/
#ifndef QUERN_OPTIM_H
#define QUERN_OPTIM_H
#include "quern/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- steps (step.c, rules.c) ------------------------------------------------------------------------------------------- */

typedef enum quern_optim_kind {
  QUERN_OPTIM_ADAMW, /* Loshchilov and Hutter 2019: decoupled weight decay */
  QUERN_OPTIM_ADAM,  /* Kingma and Ba 2015; weight decay is added to the gradient */
  QUERN_OPTIM_SGD,   /* momentum, dampening, nesterov; weight decay is added to the gradient */
  QUERN_OPTIM_LION   /* Chen et al. 2023; decoupled weight decay */
} quern_optim_kind;

/* Parameters of their own: the first group whose pattern a name matches. A pattern that matches no parameter, or only
** those of groups before it, is an error. */
typedef struct quern_optim_group {
  const char *match;   /* with * for any characters: "*.bias" */
  double lr;           /* times the learning rate; 0: never changed */
  double weight_decay; /* instead of the options' */
} quern_optim_group;

typedef struct quern_optim_options {
  size_t size;
  quern_optim_kind kind;
  double beta1, beta2, eps;   /* ADAM, ADAMW, LION (no eps); 0: 0.9, 0.999, 1e-8; a negative beta is none, 0 */
  double momentum, dampening; /* SGD */
  bool nesterov, amsgrad;
  double weight_decay; /* 0: none */
  double clip_norm;    /* gradients are scaled so that their norm is at most this; 0: no limit */
  double clip_value;   /* and each element lies within +-this; 0: no limit */
  double ema;          /* decay of an average of the parameters, kept as buffers "ema.NAME"; 0: none */
  size_t n_groups;
  const quern_optim_group *groups;
  const struct quern_scaler_options *scaler; /* dynamic loss scaling; NULL: none */
  bool guard; /* a step whose gradients are not finite changes nothing at all; with a scaler nothing but its states */
  quern_tensor *gate; /* with a guard, a bool: the step is made only when it holds; NULL: always */
} quern_optim_options;

/* The loss is multiplied by a scale before it is differentiated, and gradients are divided by it before clipping. A step whose
** gradients are not finite changes nothing but the scale. State: buffers "scaler.scale", "scaler.good", "scaler.skipped". */
typedef struct quern_scaler_options {
  size_t size;
  double start, growth, backoff; /* 0: 65536, 2, 0.5 */
  int64_t interval;              /* good steps in a row before the scale grows; 0: 2000 */
  double least, most;            /* 0: 1024, 1048576 */
  /* The interval follows the scale: an overflow doubles it, two growths without an overflow between them halve it,
  ** within a sixteenth and sixteen times what it is here. So a scale that is far from where it belongs gets there
  ** soon, and one that has arrived is not raised above it again and again. State: buffers "scaler.interval",
  ** "scaler.rising". */
  bool adaptive;
} quern_scaler_options;

/* What became of the steps of a scaler, read from the states of an instance of their program. */
typedef struct quern_scaler_stats {
  size_t size;
  double scale;        /* now */
  int64_t interval;    /* good steps after which it grows, where that is adaptive; else 0 */
  int64_t good;        /* steps in a row since the scale changed */
  int64_t made;        /* steps that were made, .. */
  int64_t skipped;     /* .. and that were not, since gradients overflowed */
  double success_rate; /* made / (made + skipped); 1 before the first step */
} quern_scaler_stats;
/* STATE when the program has no scaler, or nothing has set its states yet. */
QUERN_API quern_status quern_scaler_get_stats(const quern_instance *instance,
                                              quern_scaler_stats *stats) QUERN_NODISCARD;

/* A step: compile loss, norm and whatever else is wanted as outputs, with these updates. The learning rate is an input
** named "lr", an f32 scalar (f64 when the model's dtype is). The loss depends on one trained parameter at least; those
** that it does not reach have gradient 0, and weight decay still moves them. */
typedef struct quern_step quern_step;
QUERN_API quern_status quern_step_new(quern_step **step, quern_model *model, quern_tensor *loss,
                                      const quern_optim_options *options) QUERN_NODISCARD;
/* The same from gradients that the caller has: one for each trained parameter, in the model's order. With a scaler they are those of
** the loss times the scale. */
QUERN_API quern_status quern_step_from(quern_step **step, quern_model *model, quern_tensor *const *gradients,
                                       const quern_optim_options *options) QUERN_NODISCARD;
QUERN_API void quern_step_free(quern_step *step);
QUERN_API size_t quern_step_updates(const quern_step *step, const quern_update **updates);
QUERN_API quern_tensor *quern_step_lr(const quern_step *step);   /* the input */
QUERN_API quern_tensor *quern_step_norm(const quern_step *step); /* of the gradients before clipping: a scalar */
/* bool: whether the step was made; NULL without a scaler or a guard */
QUERN_API quern_tensor *quern_step_finite(const quern_step *step);
QUERN_API quern_tensor *quern_step_gradient(const quern_step *step, size_t i); /* as used, of trained parameter i */

/* ---- batches in parts (accumulate.c) ----------------------------------------------------------------------------------- */

/* Builds the loss of a part of a batch: inputs are like the batch's, with fewer rows. Called once; must not call quern_model_begin. */
typedef quern_tensor *quern_loss_of(quern_model *model, size_t n, quern_tensor *const *inputs, void *user);
/* A step that takes its batch in parts, one after another in a loop of the program, and needs the memory of one part and of the sums
** of gradients. The first axis of every input is divided. Loss and gradients are the means of those of the parts; layers that change
** buffers change them in every part, and dropout has masks of its own in each. With one part it is quern_step_new of the loss.
** What the loss uses beside the inputs is the same for all parts. mean_loss may be NULL. */
QUERN_API quern_status quern_step_accumulate(quern_step **step, quern_model *model, int64_t parts, size_t n,
                                             quern_tensor *const *inputs, quern_loss_of *loss, void *user,
                                             const quern_optim_options *options,
                                             quern_tensor **mean_loss) QUERN_NODISCARD;
/* The bytes that a step of so many parts needs, as planned. */
typedef quern_status quern_parts_bytes(void *user, int64_t parts, int64_t *bytes);
/* The fewest parts of equal size whose step fits into limit bytes (0: no limit), and what it needs. If none fits: as many parts as
** the batch has rows, and *bytes is above the limit. */
QUERN_API quern_status quern_step_parts(int64_t *parts, int64_t *bytes, int64_t batch, int64_t limit,
                                        quern_parts_bytes *plan, void *user) QUERN_NODISCARD;

/* ---- mixed precision (autocast.c, policy.def) -------------------------------------------------------------------------- */

typedef struct quern_autocast_options {
  size_t size;
  quern_dtype low;  /* QUERN_DTYPE_BF16 (also 0) or QUERN_DTYPE_F16 */
  const char *rows; /* other rows of the policy, as in "softmax=f32,tanh=f32"; NULL: none */
} quern_autocast_options;

/* y[i] = x[i] of f32, computed with activations of a low dtype: contractions, convolutions and attention on low operands with f32
** sums, losses in f32, as the policy says. Parameters stay f32, and results keep their dtypes. Before differentiating: y goes to
** quern_step_new. The model's changes are rewritten likewise. Again is the same as once. options NULL: bf16. */
QUERN_API quern_status quern_autocast(quern_model *model, size_t n, quern_tensor *const *x, quern_tensor **y,
                                      const quern_autocast_options *options) QUERN_NODISCARD;
/* The policy as a table, "low operation dot" a line; free with quern_free_text. */
QUERN_API quern_status quern_autocast_print(quern_context *ctx, const quern_autocast_options *options,
                                            char **text) QUERN_NODISCARD;

/* ---- learning rates (schedule.c): numbers, on the host -------------------------------------------------------------- */

typedef enum quern_schedule_kind {
  QUERN_SCHEDULE_CONSTANT,
  QUERN_SCHEDULE_STEP,        /* times gamma every `every` steps */
  QUERN_SCHEDULE_EXPONENTIAL, /* times gamma every step */
  QUERN_SCHEDULE_COSINE,      /* from 1 to `end` over `steps` */
  QUERN_SCHEDULE_LINEAR,      /* from `start` to `end` over `steps` */
  QUERN_SCHEDULE_POLYNOMIAL,  /* (1 - t)^power from 1 to `end` over `steps` */
  QUERN_SCHEDULE_PLATEAU /* times gamma when the metric has not improved by `threshold` (relative) for `patience` reports */
} quern_schedule_kind;

/* One piece; pieces follow each other, each after its `steps` (0: it lasts), the last one stays where it ends. A factor of the
** learning rate. A warm-up over n steps is a LINEAR piece of n steps from 1 / n to 1. */
typedef struct quern_schedule_piece {
  quern_schedule_kind kind;
  int64_t steps, every, patience;
  double start, end, gamma, power, threshold;
} quern_schedule_piece;

typedef struct quern_schedule {
  double lr;
  size_t n_pieces;
  const quern_schedule_piece *pieces;
  struct { /* of PLATEAU, zero at the start; to be kept in checkpoints */
    double best;
    int64_t reports, bad, falls;
  } plateau;
} quern_schedule;
/* The learning rate of a step, 0 the first. */
QUERN_API double quern_schedule_at(const quern_schedule *schedule, int64_t step);
/* Tells a metric that should fall. Without a PLATEAU piece nothing happens. */
QUERN_API void quern_schedule_report(quern_schedule *schedule, double metric);

#ifdef __cplusplus
}
#endif
#endif
