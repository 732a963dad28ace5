/* optim/step.c -- a step: gradients of a loss, scaled, clipped, and what every state becomes
** in:    a model and a loss, or gradients             out: updates of parameters, moments, averages, scaler, step, buffers
** keeps: expressions only; with a guard or a scaler, a step whose gradients are not finite changes the scaler's states alone
** tests: tests/optim/test_step.c
*/
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "optim/optim_int.h"
#include "quern/grad.h"

struct quern_step {
  struct base_heap *heap;
  quern_context *ctx;
  quern_model *model;
  quern_optim_options options;
  quern_scaler_options scaler;
  BASE_VEC(quern_parameter) trained;
  BASE_VEC(quern_tensor *) gradients; /* of them */
  quern_tensor *lr, *norm, *finite;
  struct optim_scalars scalars;
  BASE_VEC(quern_update) updates;
  uint64_t pin; /* in the context: its tensors stay */
};

/* An ir_pinned. */
static quern_status pinned(void *holder, struct ir_live *live) {
  const quern_step *step = holder;
  quern_tensor *const single[] = {step->lr,          step->norm,          step->finite,
                                  step->scalars.lr,  step->scalars.count, step->scalars.first,
                                  step->options.gate};
  for (size_t i = 0; i < BASE_COUNT(single); i++) QUERN_TRY(ir_live_add(live, single[i]));
  for (size_t i = 0; i < step->trained.n; i++) QUERN_TRY(ir_live_add(live, step->trained.at[i].tensor));
  for (size_t i = 0; i < step->gradients.n; i++) QUERN_TRY(ir_live_add(live, step->gradients.at[i]));
  for (size_t i = 0; i < step->updates.n; i++) {
    QUERN_TRY(ir_live_add(live, step->updates.at[i].state));
    QUERN_TRY(ir_live_add(live, step->updates.at[i].value));
  }
  return QUERN_STATUS_OK;
}

/* ---- checks --------------------------------------------------------------------------------------------- */

static quern_status check_share(const char *name, double value) {
  QUERN_CHECK(value >= 0 && value < 1, INVALID, "step: %s is %g; must be at least 0 and less than 1", name, value);
  return QUERN_STATUS_OK;
}

static quern_status check_size(const char *name, double value) {
  QUERN_CHECK(value >= 0 && value < 1e300, INVALID, "step: %s is %g; must be a number that is not negative", name,
              value);
  return QUERN_STATUS_OK;
}

static quern_status check_options(const quern_optim_options *o) {
  QUERN_CHECK((unsigned)o->kind < OPTIM_RULES, INVALID, "step: there is no optimizer number %d", (int)o->kind);
  QUERN_TRY(check_share("beta1", o->beta1));
  QUERN_TRY(check_share("beta2", o->beta2));
  QUERN_TRY(check_share("ema", o->ema));
  QUERN_TRY(check_size("eps", o->eps));
  bool divides = o->kind == QUERN_OPTIM_ADAM || o->kind == QUERN_OPTIM_ADAMW;
  QUERN_CHECK(!divides || o->eps >= FLT_MIN, INVALID,
              "step: eps is %g; must be %g at least: what has no gradient would become 0 / 0 HINT: 1e-8", o->eps,
              (double)FLT_MIN);
  QUERN_TRY(check_size("momentum", o->momentum));
  QUERN_TRY(check_size("dampening", o->dampening));
  QUERN_TRY(check_size("weight_decay", o->weight_decay));
  QUERN_TRY(check_size("clip_norm", o->clip_norm));
  QUERN_TRY(check_size("clip_value", o->clip_value));
  QUERN_CHECK(!o->nesterov || (o->momentum > 0 && o->dampening == 0), INVALID,
              "step: nesterov needs momentum above 0 and no dampening, which are %g and %g", o->momentum, o->dampening);
  QUERN_CHECK(o->n_groups == 0 || o->groups != NULL, INVALID, "step: the list of %zu groups is null", o->n_groups);
  for (size_t i = 0; i < o->n_groups; i++) {
    QUERN_CHECK(o->groups[i].match != NULL, INVALID, "step: the pattern of group %zu is null", i);
    QUERN_TRY(check_size("lr of a group", o->groups[i].lr));
    QUERN_TRY(check_size("weight_decay of a group", o->groups[i].weight_decay));
  }
  return QUERN_STATUS_OK;
}

static quern_status check_scaler(const quern_scaler_options *s) {
  QUERN_CHECK(s->least > 0 && s->least <= s->start && s->start <= s->most, INVALID,
              "step: the scale starts at %g; must be within %g and %g, above 0", s->start, s->least, s->most);
  QUERN_CHECK(s->growth > 1 && s->backoff > 0 && s->backoff < 1, INVALID,
              "step: a scale that grows by %g and falls by %g; must be above 1 and between 0 and 1", s->growth,
              s->backoff);
  QUERN_CHECK(s->interval > 0, INVALID, "step: the scale grows every %lld steps; must be 1 at least",
              (long long)s->interval);
  return QUERN_STATUS_OK;
}

/* Zero is the default, and what is below zero is none. */
static double or_default(double value, double fallback) { return value == 0 ? fallback : value < 0 ? 0 : value; }

static void set_defaults(quern_optim_options *o) {
  o->beta1 = or_default(o->beta1, 0.9);
  o->beta2 = or_default(o->beta2, 0.999);
  if (o->eps == 0) o->eps = 1e-8;
}

static void set_scaler_defaults(quern_scaler_options *s) {
  if (s->start == 0) s->start = 65536;
  if (s->growth == 0) s->growth = 2;
  if (s->backoff == 0) s->backoff = 0.5;
  if (s->interval == 0) s->interval = 2000;
  if (s->least == 0) s->least = 1024;
  if (s->most == 0) s->most = 1048576;
}

quern_status optim_take(struct optim_taken *taken, const quern_optim_options *options) {
  QUERN_TRY(base_take(quern_optim_options, &taken->options, options, "step"));
  set_defaults(&taken->options);
  QUERN_TRY(check_options(&taken->options));
  if (taken->options.scaler == NULL) return QUERN_STATUS_OK;
  QUERN_TRY(base_take(quern_scaler_options, &taken->scaler, taken->options.scaler, "step"));
  set_scaler_defaults(&taken->scaler);
  taken->options.scaler = &taken->scaler;
  return check_scaler(&taken->scaler);
}

/* ---- making --------------------------------------------------------------------------------------------- */

quern_dtype optim_wide(quern_dtype dtype) { return dtype == QUERN_DTYPE_F64 ? QUERN_DTYPE_F64 : QUERN_DTYPE_F32; }

quern_tensor *optim_scale(quern_model *model, const quern_optim_options *options) {
  if (options->scaler == NULL) return NULL;
  return quern_scope_buffer(quern_model_scope(model), "scaler.scale", QUERN_DTYPE_F32, 0, NULL, options->scaler->start);
}

/* True when a name matches the pattern, in which * is any characters. */
static bool matches(const char *pattern, const char *name) {
  const char *star = NULL, *from = NULL;
  while (*name != 0) {
    if (*pattern == '*') {
      star = ++pattern;
      from = name;
    } else if (*pattern == *name) {
      pattern++, name++;
    } else if (star != NULL) {
      pattern = star;
      name = ++from;
    } else {
      return false;
    }
  }
  while (*pattern == '*') pattern++;
  return *pattern == 0;
}

static const quern_optim_group *find_group(const quern_optim_options *o, const char *name) {
  for (size_t i = 0; i < o->n_groups; i++)
    if (matches(o->groups[i].match, name)) return &o->groups[i];
  return NULL;
}

/* The text behind the last *, and the dot there. */
static const char *tail_of(const char *pattern) {
  const char *star = strrchr(pattern, '*');
  if (star == NULL) return pattern;
  return star[1] == '.' ? star + 2 : star + 1;
}

/* The trained parameter whose name, or for a pattern with * the last part of it, is nearest; NULL: none is near. */
static const char *nearest_name(const struct quern_step *step, const char *pattern) {
  const char *word = tail_of(pattern), *best = NULL, *best_text = NULL;
  for (size_t i = 0; i < step->trained.n; i++) {
    const char *name = step->trained.at[i].name, *dot = strrchr(name, '.');
    const char *text = word != pattern && dot != NULL ? dot + 1 : name;
    const char *const pair[] = {text, best_text};
    if (base_nearest(word, pair, best_text != NULL ? 2 : 1) != text || text == best_text) continue;
    best = name;
    best_text = text;
  }
  return best;
}

/* g when group g is the first to match a name, of trained parameter i or later; else a group that takes its first. */
static size_t taken_by(const struct quern_step *step, size_t g, size_t i) {
  const quern_optim_options *o = &step->options;
  size_t first = g;
  for (; i < step->trained.n; i++) {
    const char *name = step->trained.at[i].name;
    if (!matches(o->groups[g].match, name)) continue;
    size_t by = (size_t)(find_group(o, name) - o->groups);
    if (by == g) return g;
    if (first == g) first = by;
  }
  return first;
}

/* Every pattern matches a parameter that is trained, and that no group before it has. */
static quern_status check_groups(const struct quern_step *step) {
  const quern_optim_options *o = &step->options;
  for (size_t g = 0; g < o->n_groups; g++) {
    size_t i = 0;
    while (i < step->trained.n && !matches(o->groups[g].match, step->trained.at[i].name)) i++;
    const char *near = i == step->trained.n ? nearest_name(step, o->groups[g].match) : NULL;
    QUERN_CHECK(i < step->trained.n, INVALID, "step: group %zu: no parameter matches \"%s\" HINT: %s \"%s\"%s", g,
                o->groups[g].match, near != NULL ? "did you mean" : "the first parameter is",
                near != NULL ? near : step->trained.at[0].name, near != NULL ? "?" : "");
    size_t by = taken_by(step, g, i);
    QUERN_CHECK(by == g, INVALID,
                "step: group %zu: all that \"%s\" matches is in groups before it, such as %zu, \"%s\" "
                "HINT: the first that matches counts: put it before them",
                g, o->groups[g].match, by, o->groups[by].match);
  }
  return QUERN_STATUS_OK;
}

/* A buffer "first.NAME" or "first.NAME.last", shaped like the tensor. */
static quern_status buffer_of(const struct quern_step *step, const char *first, const char *name, const char *last,
                              const quern_tensor *like, quern_tensor **buffer) {
  struct base_str str;
  base_str_init(&str, step->heap);
  base_str_printf(&str, "%s.%s%s%s", first, name, last != NULL ? "." : "", last != NULL ? last : "");
  quern_status status = base_str_status(&str);
  if (status == QUERN_STATUS_OK)
    *buffer =
        quern_scope_buffer(quern_model_scope(step->model), str.at, optim_wide(like->dtype), like->rank, like->dims, 0);
  base_str_fini(&str);
  return status;
}

static quern_status push(struct quern_step *step, quern_tensor *state, quern_tensor *value) {
  quern_update update = {state, value};
  return base_vec_push(step->heap, &step->updates, update) ? QUERN_STATUS_OK : QUERN_STATUS_MEMORY;
}

/* After the step the state is the value, of the state's dtype, if the step is made. */
static quern_status update(struct quern_step *step, quern_tensor *state, quern_tensor *value) {
  value = quern_cast(value, state->dtype);
  if (step->finite != NULL) value = quern_where(step->finite, value, state);
  return push(step, state, value);
}

/* ---- gradients ------------------------------------------------------------------------------------------ */

static quern_status find_trained(struct quern_step *step) {
  for (size_t i = 0; i < quern_model_parameter_count(step->model); i++) {
    quern_parameter parameter = QUERN_INIT(quern_parameter);
    QUERN_TRY(quern_model_parameter(step->model, i, &parameter));
    if (!parameter.trained) continue;
    if (!base_vec_push(step->heap, &step->trained, parameter)) return QUERN_STATUS_MEMORY;
    if (!base_vec_push(step->heap, &step->gradients, NULL)) return QUERN_STATUS_MEMORY;
  }
  QUERN_CHECK(step->trained.n > 0, INVALID, "step: the model has no parameters that are trained");
  return QUERN_STATUS_OK;
}

quern_status optim_check_reach(const char *what, size_t n, quern_tensor *const *gradients, const char *first) {
  for (size_t i = 0; i < n; i++)
    if (!ir_is_const(gradients[i], 0)) return QUERN_STATUS_OK;
  return base_error(QUERN_STATUS_INVALID,
                    "%s: the loss depends on no trained parameter of the model, of which \"%s\" is the first "
                    "HINT: another model's loss, quern_stop_gradient, or integers on the way?",
                    what, first);
}

static quern_status differentiate(struct quern_step *step, quern_tensor *loss) {
  size_t n = step->trained.n;
  quern_tensor **p = base_alloc(step->heap, n * sizeof *p);
  if (p == NULL) return QUERN_STATUS_MEMORY;
  for (size_t i = 0; i < n; i++) p[i] = step->trained.at[i].tensor;
  quern_status status = quern_grad(loss, n, p, step->gradients.at);
  base_free(step->heap, p, n * sizeof *p);
  QUERN_TRY(status);
  return optim_check_reach("step_new", n, step->gradients.at, step->trained.at[0].name);
}

/* Gradients in the dtype that is computed in, divided by the scale. */
static void widen(struct quern_step *step, quern_tensor *scale) {
  for (size_t i = 0; i < step->gradients.n; i++) {
    quern_tensor **g = &step->gradients.at[i];
    *g = quern_cast(*g, optim_wide((*g)->dtype));
    if (scale != NULL) *g = quern_mul(*g, quern_cast(quern_reciprocal(scale), (*g)->dtype));
  }
}

/* The norm of all gradients together, before they are clipped. */
static void measure(struct quern_step *step) {
  quern_tensor *sum = NULL;
  for (size_t i = 0; i < step->gradients.n; i++) {
    quern_tensor *square = quern_sum(quern_square(step->gradients.at[i]), QUERN_ALL, false);
    if (sum != NULL && sum->dtype != square->dtype) {
      sum = quern_cast(sum, QUERN_DTYPE_F64);
      square = quern_cast(square, QUERN_DTYPE_F64);
    }
    sum = sum == NULL ? square : quern_add(sum, square);
  }
  step->norm = quern_sqrt(sum);
}

/* The norm, which is infinite where the gate is closed. */
static quern_tensor *gated_norm(const struct quern_step *step) {
  if (step->options.gate == NULL) return step->norm;
  return quern_where(step->options.gate, step->norm, quern_full_like(step->norm, INFINITY));
}

static void clip(struct quern_step *step) {
  const quern_optim_options *o = &step->options;
  quern_tensor *shrink = NULL;
  if (o->clip_norm > 0) {
    quern_tensor *most = quern_full_like(step->norm, o->clip_norm), *one = quern_full_like(step->norm, 1);
    shrink = quern_minimum(quern_div(most, quern_add_scalar(step->norm, 1e-6)), one);
  }
  for (size_t i = 0; i < step->gradients.n; i++) {
    quern_tensor **g = &step->gradients.at[i];
    if (shrink != NULL) *g = quern_mul(*g, quern_cast(shrink, (*g)->dtype));
    if (o->clip_value > 0) *g = quern_clip(*g, -o->clip_value, o->clip_value);
  }
}

/* ---- states --------------------------------------------------------------------------------------------- */

static quern_status update_parameter(struct quern_step *step, size_t i) {
  const quern_parameter *parameter = &step->trained.at[i];
  const quern_optim_options *o = &step->options;
  const quern_optim_group *group = find_group(o, parameter->name);
  const struct optim_rule *rule = &optim_rules[o->kind];
  quern_tensor *p = parameter->tensor;
  quern_dtype dtype = optim_wide(p->dtype);
  if (group != NULL && group->lr == 0) return QUERN_STATUS_OK;
  struct optim_one one = {.options = o,
                          .scalars = &step->scalars,
                          .lr = group != NULL ? group->lr : 1,
                          .weight_decay = group != NULL ? group->weight_decay : o->weight_decay,
                          .p = quern_cast(p, dtype)};
  one.g = quern_cast(step->gradients.at[i], dtype);
  const char *names[OPTIM_MOST_MOMENTS];
  int n = rule->moments(o, names);
  for (int k = 0; k < n; k++) QUERN_TRY(buffer_of(step, "optim", parameter->name, names[k], p, &one.moments[k]));
  rule->update(&one);
  for (int k = 0; k < n; k++) QUERN_TRY(update(step, one.moments[k], one.next_moments[k]));
  QUERN_TRY(update(step, p, one.next));
  if (o->ema == 0) return QUERN_STATUS_OK;
  quern_tensor *average;
  QUERN_TRY(buffer_of(step, "ema", parameter->name, NULL, p, &average));
  quern_tensor *old = quern_mul_scalar(average, o->ema),
               *later = quern_add(old, quern_mul_scalar(one.next, 1 - o->ema));
  return update(step, average, quern_where(step->scalars.first, one.next, later));
}

/* The interval doubles with an overflow, and halves with a growth that follows another. *enough: whether there were
** as many good steps as it asks for. */
static quern_status update_interval(struct quern_step *step, quern_scope *scope, quern_tensor *more,
                                    quern_tensor **enough) {
  enum { RANGE = 16 };
  const int64_t usual = step->scaler.interval, most = usual > INT64_MAX / (2 * RANGE) ? usual : usual * RANGE;
  quern_context *ctx = step->ctx;
  quern_tensor *interval = quern_scope_buffer(scope, "interval", QUERN_DTYPE_I64, 0, NULL, (double)usual);
  quern_tensor *rising = quern_scope_buffer(scope, "rising", QUERN_DTYPE_BOOL, 0, NULL, 0);
  quern_tensor *two = quern_scalar_int(ctx, QUERN_DTYPE_I64, 2),
               *longest = quern_scalar_int(ctx, QUERN_DTYPE_I64, most);
  quern_tensor *shortest = quern_scalar_int(ctx, QUERN_DTYPE_I64, BASE_MAX(usual / RANGE, 1));
  quern_tensor *half = quern_div(interval, two), *twice = quern_mul(interval, two);
  half = quern_maximum(half, shortest);
  twice = quern_minimum(twice, longest);
  *enough = quern_ge(more, interval);
  quern_tensor *again = quern_and(*enough, rising), *risen = quern_or(*enough, rising);
  quern_tensor *next = quern_where(again, half, interval);
  QUERN_TRY(push(step, interval, quern_where(step->finite, next, twice)));
  return push(step, rising, quern_and(step->finite, risen));
}

/* A good step counts, and enough of them in a row let the scale grow; one that is not good makes it fall. */
static quern_status update_scaler(struct quern_step *step, quern_tensor *scale) {
  const quern_scaler_options *s = &step->scaler;
  quern_scope *scope = quern_scope_in(quern_model_scope(step->model), "scaler");
  quern_tensor *good = quern_scope_buffer(scope, "good", QUERN_DTYPE_I64, 0, NULL, 0);
  quern_tensor *skipped = quern_scope_buffer(scope, "skipped", QUERN_DTYPE_I64, 0, NULL, 0);
  quern_context *ctx = step->ctx;
  quern_tensor *one = quern_scalar_int(ctx, QUERN_DTYPE_I64, 1), *none = quern_scalar_int(ctx, QUERN_DTYPE_I64, 0);
  quern_tensor *more = quern_add(good, one);
  quern_tensor *enough = quern_ge(more, quern_scalar_int(ctx, QUERN_DTYPE_I64, s->interval));
  quern_tensor *grown = quern_clip(quern_mul_scalar(scale, s->growth), s->least, s->most);
  quern_tensor *fallen = quern_clip(quern_mul_scalar(scale, s->backoff), s->least, s->most);
  if (s->adaptive) QUERN_TRY(update_interval(step, scope, more, &enough));
  quern_tensor *kept = quern_where(enough, grown, scale), *counted = quern_where(enough, none, more);
  QUERN_TRY(push(step, scale, quern_where(step->finite, kept, fallen)));
  QUERN_TRY(push(step, good, quern_where(step->finite, counted, none)));
  return push(step, skipped, quern_where(step->finite, skipped, quern_add(skipped, one)));
}

static quern_status update_all(struct quern_step *step, quern_tensor *scale) {
  quern_tensor *count = quern_model_step(step->model);
  quern_tensor *next = quern_add(count, quern_scalar_int(step->ctx, count->dtype, 1));
  step->scalars.ctx = step->ctx;
  step->scalars.lr = quern_cast(step->lr, QUERN_DTYPE_F64);
  step->scalars.count = quern_cast(next, QUERN_DTYPE_F64);
  step->scalars.first = quern_eq(count, quern_scalar_int(step->ctx, count->dtype, 0));
  for (size_t i = 0; i < step->trained.n; i++) QUERN_TRY(update_parameter(step, i));
  for (size_t i = 0; i < quern_model_change_count(step->model); i++) {
    quern_update change = quern_model_change(step->model, i);
    QUERN_TRY(update(step, change.state, change.value));
  }
  if (scale != NULL) QUERN_TRY(update_scaler(step, scale));
  return update(step, count, next);
}

/* ---- the public door ------------------------------------------------------------------------------------ */

/* gradients NULL: those of the loss. */
static quern_status make(struct quern_step *step, quern_tensor *loss, quern_tensor *const *gradients) {
  quern_tensor *scale = optim_scale(step->model, &step->options);
  QUERN_TRY(find_trained(step));
  QUERN_TRY(check_groups(step));
  step->lr = quern_input(step->ctx, "lr", optim_wide(step->trained.at[0].tensor->dtype), 0, NULL);
  if (scale != NULL && loss != NULL) loss = quern_mul(loss, quern_cast(scale, loss->dtype));
  if (gradients == NULL) QUERN_TRY(differentiate(step, loss));
  for (size_t i = 0; i < step->gradients.n && gradients != NULL; i++) step->gradients.at[i] = gradients[i];
  uint32_t outer = step->ctx->label;
  QUERN_TRY(ir_label_find(step->ctx, "optimizer", &step->ctx->label));
  widen(step, scale);
  measure(step);
  if (scale != NULL || step->options.guard) step->finite = quern_isfinite(gated_norm(step));
  clip(step);
  quern_status status = update_all(step, scale);
  step->ctx->label = outer;
  return status != QUERN_STATUS_OK ? status : quern_context_check(step->ctx);
}

static quern_status check_gate(const quern_optim_options *o, const quern_context *ctx) {
  if (o->gate == NULL) return QUERN_STATUS_OK;
  QUERN_CHECK(!ir_is_poison(o->gate), INVALID, "step: the gate is the result of a call that failed");
  QUERN_CHECK(o->guard && o->scaler == NULL, INVALID, "step: a gate needs a guard and no scaler");
  QUERN_CHECK(o->gate->rank == 0 && o->gate->dtype == QUERN_DTYPE_BOOL && o->gate->node->ctx == ctx, INVALID,
              "step: the gate is %s; must be a bool scalar of the model's context",
              ir_type_text((char[IR_TYPE_TEXT]){0}, o->gate));
  return QUERN_STATUS_OK;
}

static quern_status open_step(quern_step **out, quern_model *model, quern_tensor *loss, quern_tensor *const *gradients,
                              const quern_optim_options *options) {
  struct optim_taken taken;
  QUERN_TRY(optim_take(&taken, options));
  quern_context *ctx = quern_model_context(model);
  QUERN_TRY(check_gate(&taken.options, ctx));
  struct base_heap *heap = &ctx->heap;
  quern_step *step = base_alloc_zero(heap, sizeof *step);
  if (step == NULL) return QUERN_STATUS_MEMORY;
  step->heap = heap;
  step->ctx = ctx;
  step->model = model;
  step->options = taken.options;
  if (taken.options.scaler != NULL) {
    step->scaler = taken.scaler;
    step->options.scaler = &step->scaler;
  }
  step->pin = ir_pin_add(ctx, pinned, step);
  quern_status status = step->pin != 0 ? make(step, loss, gradients) : QUERN_STATUS_MEMORY;
  if (status == QUERN_STATUS_OK)
    *out = step;
  else
    quern_step_free(step);
  return status;
}

quern_status optim_check_order(const char *what, const quern_model *model, quern_tensor *x) {
  const char *name = nn_forgotten(model, x);
  QUERN_CHECK(name == NULL, STATE,
              "%s: what a step makes of \"%s\" was forgotten by the quern_model_begin that came after %s HINT: call it "
              "before the next quern_model_begin",
              what, name,
              strcmp(what, "step_new") == 0    ? "the loss"
              : strcmp(what, "step_from") == 0 ? "the gradients"
                                               : "the expression");
  return QUERN_STATUS_OK;
}

quern_status quern_step_new(quern_step **step, quern_model *model, quern_tensor *loss,
                            const quern_optim_options *options) {
  QUERN_CHECK(step != NULL, INVALID, "step_new: the place for the step is null");
  *step = NULL;
  QUERN_CHECK(model != NULL, INVALID, "step_new: the model is null");
  QUERN_TRY(quern_context_check(quern_model_context(model)));
  QUERN_CHECK(loss != NULL && !ir_is_poison(loss), INVALID, "step_new: the loss is the result of a call that failed");
  QUERN_CHECK(loss->node->ctx == quern_model_context(model), INVALID, "step_new: the loss belongs to another context");
  QUERN_TRY(optim_check_order("step_new", model, loss));
  return open_step(step, model, loss, NULL, options);
}

quern_status quern_step_from(quern_step **step, quern_model *model, quern_tensor *const *gradients,
                             const quern_optim_options *options) {
  QUERN_CHECK(step != NULL, INVALID, "step_from: the place for the step is null");
  *step = NULL;
  QUERN_CHECK(model != NULL, INVALID, "step_from: the model is null");
  QUERN_CHECK(gradients != NULL, INVALID, "step_from: the list of gradients is null");
  QUERN_TRY(quern_context_check(quern_model_context(model)));
  size_t k = 0;
  for (size_t i = 0; i < quern_model_parameter_count(model); i++) {
    quern_parameter parameter = QUERN_INIT(quern_parameter);
    QUERN_TRY(quern_model_parameter(model, i, &parameter));
    if (!parameter.trained) continue;
    quern_tensor *g = gradients[k], *p = parameter.tensor;
    QUERN_CHECK(g != NULL && !ir_is_poison(g), INVALID, "step_from: gradient %zu is the result of a call that failed",
                k);
    bool same = g->rank == p->rank && memcmp(g->dims, p->dims, (size_t)p->rank * sizeof *p->dims) == 0;
    QUERN_CHECK(same && g->node->ctx == p->node->ctx, SHAPE, "step_from: gradient %zu is not shaped like \"%s\"", k,
                parameter.name);
    QUERN_TRY(optim_check_order("step_from", model, g));
    k++;
  }
  return open_step(step, model, NULL, gradients, options);
}

void quern_step_free(quern_step *step) {
  if (step == NULL) return;
  struct base_heap *heap = step->heap;
  ir_pin_remove(step->ctx, step->pin);
  base_vec_fini(heap, &step->trained);
  base_vec_fini(heap, &step->gradients);
  base_vec_fini(heap, &step->updates);
  base_free(heap, step, sizeof *step);
}

size_t quern_step_updates(const quern_step *step, const quern_update **updates) {
  if (updates != NULL) *updates = step != NULL ? step->updates.at : NULL;
  return step != NULL ? step->updates.n : 0;
}

quern_tensor *quern_step_lr(const quern_step *step) { return step != NULL ? step->lr : NULL; }
quern_tensor *quern_step_norm(const quern_step *step) { return step != NULL ? step->norm : NULL; }
quern_tensor *quern_step_finite(const quern_step *step) { return step != NULL ? step->finite : NULL; }
quern_tensor *quern_step_gradient(const quern_step *step, size_t i) {
  return step != NULL && i < step->gradients.n ? step->gradients.at[i] : NULL;
}
