/* tests/api/test_wrong_optim.c -- wrong calls of optim.h */
#include "api/wrong.h"

static quern_model *model;
static quern_step *step;

/* A model with one parameter, w (2,). */
static quern_model *net(void) {
  if (quern_model_new(&model, ctx, NULL) != QUERN_STATUS_OK) return NULL;
  quern_scope_parameter(quern_model_scope(model), "w", QUERN_LIST(2), (quern_init){QUERN_INIT_CONSTANT, 1, 0});
  return model;
}

static bool with_step(void) {
  quern_tensor *w = quern_model_find(net(), "w")->tensor;
  return quern_step_new(&step, model, quern_sum(w, QUERN_ALL, false), NULL) == QUERN_STATUS_OK;
}

/* sum(x) sum(w), or over an axis that x has not. */
static int64_t wrong_axis = 7;
static quern_tensor *loss_of(quern_model *of, size_t n, quern_tensor *const *inputs, void *user) {
  (void)n;
  quern_tensor *w = quern_sum(quern_model_find(of, "w")->tensor, QUERN_ALL, false);
  quern_tensor *x = user != NULL ? quern_sum(inputs[0], 1, user, false) : quern_sum(inputs[0], QUERN_ALL, false);
  return quern_mul(x, w);
}

static int64_t parts, bytes;
static quern_status parts_bytes(void *user, int64_t n, int64_t *need) {
  (void)user, (void)n, (void)need;
  return quern_dtype_from_name("no dtype", &(quern_dtype){0}); /* fails */
}

static void end(void) {
  quern_step_free(step);
  quern_model_free(model);
  step = NULL;
  model = NULL;
}
static quern_status ended(quern_status status) { return end(), status; }
static bool done(bool good) { return end(), good; }

#define ROWS "api/wrong_optim.def"
#include "api/rows.h"
