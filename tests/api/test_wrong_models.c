/* tests/api/test_wrong_models.c -- wrong calls of models.h */
#include "api/wrong.h"

static quern_model *model;
static quern_lm_options options = QUERN_INIT(quern_lm_options);
static const quern_lm_options tiny = {
    .size = sizeof tiny, .vocabulary = 5, .positions = 4, .layers = 1, .width = 8, .heads = 2};

static quern_scope *net(void) {
  return quern_model_new(&model, ctx, NULL) == QUERN_STATUS_OK ? quern_model_scope(model) : NULL;
}

/* The error that a call left, when it gave the poison. */
static quern_status checked(quern_tensor *x) {
  bool poison = quern_tensor_is_poison(x);
  quern_model_free(model);
  model = NULL;
  return poison ? quern_context_check(ctx) : QUERN_STATUS_OK;
}

#define ROWS "api/wrong_models.def"
#include "api/rows.h"
