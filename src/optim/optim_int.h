/* optim/optim_int.h -- the rules of optimizers, as step.c uses them */
#ifndef OPTIM_OPTIM_INT_H
#define OPTIM_OPTIM_INT_H
#include "ir/ir.h"
#include "nn/nn.h"
#include "quern/optim.h"

enum { OPTIM_MOST_MOMENTS = 3 };

/* What is the same for all parameters of a dtype: scalars of it. Corrections and rates are computed in f64 and rounded once. */
struct optim_scalars {
  quern_context *ctx;
  quern_tensor *lr, *count; /* f64: the rate, and the number of this step, 1 the first */
  quern_tensor *first;      /* bool: it is the first step */
};

/* One parameter's step: everything of the dtype that is computed in. */
struct optim_one {
  const quern_optim_options *options;
  const struct optim_scalars *scalars;
  double lr, weight_decay; /* of its group: times the rate; decay */
  quern_tensor *p, *g;
  quern_tensor *moments[OPTIM_MOST_MOMENTS];
  quern_tensor *next_moments[OPTIM_MOST_MOMENTS]; /* set by the rule, as is: */
  quern_tensor *next;
};

struct optim_rule {
  const char *name;
  int (*moments)(const quern_optim_options *options, const char *names[OPTIM_MOST_MOMENTS]); /* how many, their names */
  void (*update)(struct optim_one *one);
};
extern const struct optim_rule optim_rules[]; /* by quern_optim_kind */
enum { OPTIM_RULES = 4 };

/* ---- what makers of steps share (step.c) ------------------------------------------------------------------- */

struct optim_taken {
  quern_optim_options options;
  quern_scaler_options scaler; /* of options.scaler, where there is one */
};
quern_status optim_take(struct optim_taken *taken, const quern_optim_options *options) QUERN_NODISCARD;
/* STATE when x was built together with changes that a later quern_model_begin has forgotten. */
quern_status optim_check_order(const char *what, const quern_model *model, quern_tensor *x) QUERN_NODISCARD;
/* INVALID when all gradients are 0 by themselves: the loss depends on no parameter; the first is named `first`. */
quern_status optim_check_reach(const char *what, size_t n, quern_tensor *const *gradients,
                               const char *first) QUERN_NODISCARD;
/* The dtype that a parameter's step is computed in: f32 of narrow floats. */
quern_dtype optim_wide(quern_dtype dtype);
/* The state that losses are multiplied with before they are differentiated; NULL without a scaler. */
quern_tensor *optim_scale(quern_model *model, const quern_optim_options *options);

#endif
