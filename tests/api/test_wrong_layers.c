/* tests/api/test_wrong_layers.c -- wrong calls of models, scopes and layers */
#include "api/wrong.h"

static quern_model *model;
static quern_parameter parameter = QUERN_INIT(quern_parameter);
static quern_rnn_state state;

/* A scope of a model that lasts until the call of the row is done; it leaves the place of the row as it is. */
static quern_scope *scope(const char *path) {
  if (model == NULL) assert_int_equal((quern_model_new)(&model, ctx, NULL), QUERN_STATUS_OK);
  quern_scope *root = (quern_model_scope)(model);
  return path[0] == '\0' ? root : (quern_scope_in)(root, path);
}

static quern_model *the_model(void) { return quern_scope_model(scope("")); }

static void done_model(void) {
  (quern_model_free)(model);
  model = NULL;
}

static quern_tensor *done(quern_tensor *y) {
  done_model();
  return y;
}

static quern_status done_status(quern_status status) {
  done_model();
  return status;
}

static bool done_bool(bool holds) {
  done_model();
  return holds;
}

/* The poison with what a call without a result recorded. */
static quern_tensor *recorded(void) { return done(POISON); }

#define S scope("h.0")
#define X T(F32, 2, 3)
#define INPUT(...) quern_input(ctx, "x", QUERN_DTYPE_F32, QUERN_LIST(__VA_ARGS__))
static const quern_init zero_init = {QUERN_INIT_CONSTANT, 0, 0};

#define OPTIONS(type, ...) (&(type){.size = sizeof(type), __VA_ARGS__})
#define SHORT(type) (&(type){.size = 4})
#define LINEAR(...) OPTIONS(quern_nn_linear_options, __VA_ARGS__)
#define MLP(...) OPTIONS(quern_nn_mlp_options, __VA_ARGS__)
#define TABLE(...) OPTIONS(quern_nn_embedding_options, __VA_ARGS__)
#define CONV(...) OPTIONS(quern_nn_conv_options, __VA_ARGS__)
#define NORM(...) OPTIONS(quern_nn_norm_options, __VA_ARGS__)
#define RNN(...) OPTIONS(quern_nn_rnn_options, __VA_ARGS__)
#define ATTENTION(...) OPTIONS(quern_nn_attention_options, __VA_ARGS__)
#define BLOCK(...) OPTIONS(quern_nn_transformer_options, __VA_ARGS__)
#define STATE(...) (state = (quern_rnn_state){__VA_ARGS__}, &state)

/* 299 letters. */
static const char *long_name(void) {
  static char name[300];
  memset(name, 'a', sizeof name - 1);
  return name;
}

static quern_tensor *gives_nothing(quern_scope *in, quern_tensor *x, void *user) {
  (void)in;
  (void)x;
  (void)user;
  return NULL;
}

#define ROWS "api/wrong_layers.def"
#include "api/rows.h"
