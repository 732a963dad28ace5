/* train/spec.c -- from a configuration to the sizes of a model
** keeps: a key whose value is "model" leaves the model's value
** tests: tests/train/test_train.c (wrong_configurations)
*/
#include <stdio.h>
#include <stdlib.h>

#include "train/train.h"

static bool is_model(const quern_config *config, const char *key) {
  return strcmp(quern_config_get(config, key), "model") == 0;
}

static void take_int(const quern_config *config, const char *key, int64_t *value) {
  if (!is_model(config, key)) *value = quern_config_int(config, key);
}

/* Keys that models other than transformers do not have. */
static quern_status refuse(const quern_config *config, const char *model, size_t n, const char *const *keys) {
  for (size_t i = 0; i < n; i++)
    QUERN_CHECK(is_model(config, keys[i]), INVALID, "%s = '%.64s': a model '%s' has none", keys[i],
                quern_config_get(config, keys[i]), model);
  return QUERN_STATUS_OK;
}

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static quern_status read_lm(struct train_spec *spec, const quern_config *config, const char *model) {
  quern_lm_options *o = &spec->lm;
  bool own = strcmp(model, "lm") == 0, gpt2 = begins(model, "gpt2:");
  *o = QUERN_INIT(quern_lm_options, .names = QUERN_LM_GPT2, .vocabulary = 1, .layers = 4, .width = 128);
  if (!own) QUERN_TRY(quern_lm_named(o, model));
  take_int(config, "layers", &o->layers);
  bool wider = !is_model(config, "width") && quern_config_int(config, "width") != o->width;
  take_int(config, "width", &o->width);
  if (own || wider) o->heads = o->width % 64 == 0 ? o->width / 64 : o->width % 32 == 0 ? o->width / 32 : 1;
  if (wider && o->hidden > 0) o->hidden = (8 * o->width / 3 + 63) / 64 * 64;
  take_int(config, "heads", &o->heads);
  take_int(config, "kv_heads", &o->kv_heads);
  take_int(config, "hidden", &o->hidden);
  spec->open_vocabulary = !gpt2 && is_model(config, "vocabulary");
  if (spec->open_vocabulary) o->vocabulary = 1;
  take_int(config, "vocabulary", &o->vocabulary);
  if (is_model(config, "positions") && !gpt2) o->positions = spec->length;
  take_int(config, "positions", &o->positions);
  if (!is_model(config, "norm")) o->rms = strcmp(quern_config_get(config, "norm"), "rms") == 0;
  if (!is_model(config, "activation")) o->activation = quern_config_get(config, "activation");
  if (!is_model(config, "position")) o->position = quern_config_get(config, "position");
  if (!is_model(config, "tie")) o->untied = !quern_config_flag(config, "tie");
  if (!is_model(config, "bias")) o->no_bias = !quern_config_flag(config, "bias");
  o->dropout = quern_config_real(config, "dropout");
  QUERN_CHECK(o->width % o->heads == 0, INVALID, "heads = %lld: must divide the width, %lld", (long long)o->heads,
              (long long)o->width);
  QUERN_CHECK(o->kv_heads == 0 || o->heads % o->kv_heads == 0, INVALID,
              "kv_heads = %lld: must divide the number of heads, %lld", (long long)o->kv_heads, (long long)o->heads);
  QUERN_CHECK(spec->length <= o->positions, INVALID, "length = %lld: the model has %lld positions",
              (long long)spec->length, (long long)o->positions);
  return QUERN_STATUS_OK;
}

static quern_status read_lstm(struct train_spec *spec, const quern_config *config) {
  static const char *const others[] = {"heads",      "kv_heads", "positions", "norm",
                                       "activation", "position", "tie",       "bias"};
  QUERN_TRY(refuse(config, "lstm", BASE_COUNT(others), others));
  quern_lm_options *o = &spec->lm;
  *o = (quern_lm_options){.size = sizeof *o, .vocabulary = 1, .layers = 2, .width = 128, .hidden = 256};
  take_int(config, "layers", &o->layers);
  take_int(config, "width", &o->width);
  take_int(config, "hidden", &o->hidden);
  take_int(config, "vocabulary", &o->vocabulary);
  spec->open_vocabulary = is_model(config, "vocabulary");
  o->dropout = quern_config_real(config, "dropout");
  return QUERN_STATUS_OK;
}

static quern_status read_classes(struct train_spec *spec, const quern_config *config, const char *model) {
  static const char *const others[] = {"heads", "kv_heads", "positions", "vocabulary",
                                       "norm",  "position", "tie",       "bias"};
  static const char *const of_mlp[] = {"layers", "width", "hidden", "activation"};
  QUERN_TRY(refuse(config, model, BASE_COUNT(others), others));
  QUERN_CHECK(quern_config_real(config, "dropout") == 0, INVALID, "dropout = %s: a model '%s' has none",
              quern_config_get(config, "dropout"), model);
  spec->classes = quern_config_int(config, "classes");
  if (spec->family == TRAIN_RESNET) {
    QUERN_TRY(refuse(config, model, BASE_COUNT(of_mlp), of_mlp));
    spec->depth = atoi(model + strlen("resnet:"));
    char name[16];
    snprintf(name, sizeof name, "resnet:%d", spec->depth);
    QUERN_CHECK(strcmp(name, model) == 0 && (spec->depth == 18 || spec->depth == 34 || spec->depth == 50), INVALID,
                "model = '%.64s': there are resnet:18, resnet:34 and resnet:50", model);
    return QUERN_STATUS_OK;
  }
  QUERN_TRY(refuse(config, model, 1, &of_mlp[1]));
  spec->lm = (quern_lm_options){.size = sizeof spec->lm, .layers = 2, .hidden = 256, .activation = "relu"};
  take_int(config, "layers", &spec->lm.layers);
  take_int(config, "hidden", &spec->lm.hidden);
  if (!is_model(config, "activation")) spec->lm.activation = quern_config_get(config, "activation");
  QUERN_CHECK(spec->lm.layers <= TRAIN_MLP_LAYERS, INVALID, "layers = %lld: an mlp has at most %d",
              (long long)spec->lm.layers, TRAIN_MLP_LAYERS);
  return QUERN_STATUS_OK;
}

void train_spec_precision(struct train_spec *spec, const char *precision) {
  spec->dtype = strcmp(precision, "f64") == 0 ? QUERN_DTYPE_F64 : QUERN_DTYPE_F32;
  spec->half = strcmp(precision, "bf16") == 0  ? QUERN_DTYPE_BF16
               : strcmp(precision, "f16") == 0 ? QUERN_DTYPE_F16
                                               : spec->dtype;
}

quern_status train_spec_read(struct train_spec *spec, const quern_config *config) {
  const char *model = quern_config_get(config, "model"), *data = quern_config_get(config, "data");
  *spec = (struct train_spec){.family = begins(model, "resnet:")     ? TRAIN_RESNET
                                        : strcmp(model, "mlp") == 0  ? TRAIN_MLP
                                        : strcmp(model, "lstm") == 0 ? TRAIN_LSTM
                                                                     : TRAIN_LM};
  QUERN_CHECK(model[0] != 0, INVALID,
              "the configuration has no key 'model' HINT: quern_train_config makes one that has");
  train_spec_precision(spec, quern_config_get(config, "precision"));
  if (begins(model, TRAIN_OWN_MODEL)) {
    spec->family = TRAIN_OWN;
    spec->task = TRAIN_TASK_OWN;
    return QUERN_STATUS_OK;
  }
  spec->task = spec->family == TRAIN_RESNET || spec->family == TRAIN_MLP ? TRAIN_TASK_CLASSES
               : strcmp(data, "adder") == 0                              ? TRAIN_TASK_ADDER
                                                                         : TRAIN_TASK_TEXT;
  spec->length = spec->task == TRAIN_TASK_CLASSES ? 0 : quern_config_int(config, "length");
  if (spec->family == TRAIN_LM) return read_lm(spec, config, model);
  return spec->family == TRAIN_LSTM ? read_lstm(spec, config) : read_classes(spec, config, model);
}

quern_status train_spec_vocabulary(struct train_spec *spec, int64_t ids, const char *whose) {
  if (spec->open_vocabulary) spec->lm.vocabulary = BASE_MAX(spec->lm.vocabulary, ids);
  QUERN_CHECK(ids <= spec->lm.vocabulary, INVALID,
              "vocabulary: the model has %lld ids, %s has %lld HINT: vocabulary=%lld", (long long)spec->lm.vocabulary,
              whose, (long long)ids, (long long)ids);
  return QUERN_STATUS_OK;
}

quern_status train_tokenizer(quern_tokenizer **tokenizer, const quern_config *config,
                             const quern_allocator *allocator) {
  const char *path = quern_config_get(config, "tokenizer");
  QUERN_CHECK(path[0] != 0, INVALID, "tokenizer: nothing is given; must be bytes, a tokenizer.json or its folder");
  return quern_tokenizer_read(tokenizer, path, allocator);
}
