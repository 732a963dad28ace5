/* optim/rules.c -- one function per optimizer: the next value of a parameter and of its moments
** see:   SGD as PyTorch defines it; Kingma and Ba, "Adam" (2015); Reddi et al., "On the convergence of Adam and beyond"
**        (2018: amsgrad); Loshchilov and Hutter, "Decoupled weight decay regularization" (2019); Chen et al., "Symbolic
**        discovery of optimization algorithms" (2023: Lion)
** tests: tests/optim/test_step.c
*/
#include "optim/optim_int.h"

/* An f64 scalar as one of x's dtype. */
static quern_tensor *like(quern_tensor *scalar, const quern_tensor *x) { return quern_cast(scalar, x->dtype); }

static quern_tensor *rate(const struct optim_one *one) { return quern_mul_scalar(one->scalars->lr, one->lr); }

/* a x + b y */
static quern_tensor *mix(double a, quern_tensor *x, double b, quern_tensor *y) {
  quern_tensor *left = quern_mul_scalar(x, a);
  return quern_add(left, quern_mul_scalar(y, b));
}

/* The gradient with weight decay in it. */
static quern_tensor *decayed(const struct optim_one *one) {
  return one->weight_decay == 0 ? one->g : quern_add(one->g, quern_mul_scalar(one->p, one->weight_decay));
}

/* p (1 - rate decay): decay apart from the gradient. */
static quern_tensor *shrunk(const struct optim_one *one) {
  if (one->weight_decay == 0) return one->p;
  quern_tensor *keep = quern_add_scalar(quern_mul_scalar(rate(one), -one->weight_decay), 1);
  return quern_mul(one->p, like(keep, one->p));
}

/* ---- SGD ------------------------------------------------------------------------------------------------ */

static int sgd_moments(const quern_optim_options *options, const char *names[OPTIM_MOST_MOMENTS]) {
  names[0] = "momentum";
  return options->momentum != 0 ? 1 : 0;
}

/* The first step's momentum is the gradient itself. */
static void sgd_update(struct optim_one *one) {
  const quern_optim_options *o = one->options;
  quern_tensor *g = decayed(one);
  if (o->momentum != 0) {
    quern_tensor *later = mix(o->momentum, one->moments[0], 1 - o->dampening, g);
    one->next_moments[0] = quern_where(one->scalars->first, g, later);
    g = o->nesterov ? quern_add(g, quern_mul_scalar(one->next_moments[0], o->momentum)) : one->next_moments[0];
  }
  one->next = quern_sub(one->p, quern_mul(g, like(rate(one), g)));
}

/* ---- Adam, AdamW ---------------------------------------------------------------------------------------- */

static int adam_moments(const quern_optim_options *options, const char *names[OPTIM_MOST_MOMENTS]) {
  names[0] = "m";
  names[1] = "v";
  names[2] = "most";
  return options->amsgrad ? 3 : 2;
}

/* 1 - beta^count, in f64. */
static quern_tensor *correction(const struct optim_one *one, double beta) {
  quern_context *ctx = one->scalars->ctx;
  quern_tensor *power = quern_pow(quern_scalar(ctx, QUERN_DTYPE_F64, beta), one->scalars->count);
  return quern_sub(quern_scalar(ctx, QUERN_DTYPE_F64, 1), power);
}

/* p - rate m^ / (sqrt v^ + eps), of a gradient and a parameter that decay has been given to. */
static void adam_move(struct optim_one *one, quern_tensor *p, quern_tensor *g) {
  const quern_optim_options *o = one->options;
  quern_tensor **next = one->next_moments;
  next[0] = mix(o->beta1, one->moments[0], 1 - o->beta1, g);
  next[1] = mix(o->beta2, one->moments[1], 1 - o->beta2, quern_square(g));
  if (o->amsgrad) next[2] = quern_maximum(one->moments[2], next[1]);
  quern_tensor *second = like(quern_sqrt(correction(one, o->beta2)), p);
  quern_tensor *size = quern_div(quern_sqrt(o->amsgrad ? next[2] : next[1]), second);
  quern_tensor *first = correction(one, o->beta1), *far = quern_div(rate(one), first);
  quern_tensor *move = quern_div(next[0], quern_add_scalar(size, o->eps));
  one->next = quern_sub(p, quern_mul(move, like(far, p)));
}

static void adam_update(struct optim_one *one) { adam_move(one, one->p, decayed(one)); }
static void adamw_update(struct optim_one *one) { adam_move(one, shrunk(one), one->g); }

/* ---- Lion ----------------------------------------------------------------------------------------------- */

static int lion_moments(const quern_optim_options *options, const char *names[OPTIM_MOST_MOMENTS]) {
  (void)options;
  names[0] = "m";
  return 1;
}

static void lion_update(struct optim_one *one) {
  const quern_optim_options *o = one->options;
  quern_tensor *way = quern_sign(mix(o->beta1, one->moments[0], 1 - o->beta1, one->g));
  one->next_moments[0] = mix(o->beta2, one->moments[0], 1 - o->beta2, one->g);
  quern_tensor *p = shrunk(one);
  one->next = quern_sub(p, quern_mul(way, like(rate(one), p)));
}

const struct optim_rule optim_rules[OPTIM_RULES] = {
    [QUERN_OPTIM_SGD] = {"sgd", sgd_moments, sgd_update},
    [QUERN_OPTIM_ADAM] = {"adam", adam_moments, adam_update},
    [QUERN_OPTIM_ADAMW] = {"adamw", adam_moments, adamw_update},
    [QUERN_OPTIM_LION] = {"lion", lion_moments, lion_update},
};
