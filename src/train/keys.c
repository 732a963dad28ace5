/* train/keys.c -- the keys of training's configuration, and tasks that come with Quern
** see:   keys.def; docs/train.md
** tests: tests/train/test_data.c
*/
#include "train/train.h"

const quern_config_key train_keys[] = {
#define KEY(name, TYPE, value, allowed, least, most, WHEN, help)                                                       \
  {#name, QUERN_CONFIG_##TYPE, value, allowed, least, most, help},
#include "train/keys.def"
#undef KEY
};
const size_t train_n_keys = BASE_COUNT(train_keys);

enum when { SAME, FREE };
static const enum when whens[] = {
#define KEY(name, TYPE, value, allowed, least, most, WHEN, help) WHEN,
#include "train/keys.def"
#undef KEY
};

bool train_key_is_same(size_t key) { return key < BASE_COUNT(whens) && whens[key] == SAME; }

bool train_same_value(size_t key, const char *a, const char *b) {
  const char *a_end, *b_end, *a_stop = a + strlen(a), *b_stop = b + strlen(b);
  double x, y;
  if (strcmp(a, b) == 0) return true;
  return train_keys[key].type == QUERN_CONFIG_REAL && base_element_parse(a, a_stop, &a_end, QUERN_DTYPE_F64, &x, 0) &&
         a_end == a_stop && base_element_parse(b, b_stop, &b_end, QUERN_DTYPE_F64, &y, 0) && b_end == b_stop && x == y;
}

quern_status quern_train_config(quern_config **config, const quern_allocator *allocator) {
  QUERN_CHECK(config != NULL, INVALID, "train_config: the place for the configuration is null");
  return quern_config_new(config, train_n_keys, train_keys, allocator);
}

/* ---- presets -------------------------------------------------------------------------------------------- */

struct setting {
  const char *key, *value;
};
static const struct preset {
  const char *name;
  struct setting settings[32]; /* up to one without a key */
} presets[] = {{"adder",
                {{"model", "lm"},
                 {"data", "adder"},
                 {"layers", "2"},
                 {"width", "96"},
                 {"heads", "3"},
                 {"hidden", "256"},
                 {"activation", "gelu"},
                 {"length", "12"},
                 {"batch", "256"},
                 {"steps", "2000"},
                 {"lr", "2e-3"},
                 {"beta2", "0.98"},
                 {"weight_decay", "0.01"},
                 {"warmup", "100"},
                 {"lr_end", "0.02"},
                 {"eval_every", "250"},
                 {"eval_batches", "8"},
                 {"log_every", "50"},
                 {"out", "run-adder"}}},
               {"chars",
                {{"model", "modern:256x4"},
                 {"tokenizer", "bytes"},
                 {"length", "256"},
                 {"batch", "4"},
                 {"steps", "450"},
                 {"lr", "2e-3"},
                 {"warmup", "40"},
                 {"eval_every", "150"},
                 {"eval_batches", "10"},
                 {"out", "run-chars"}}}};

quern_status quern_train_preset(quern_config *config, const char *name) {
  QUERN_CHECK(config != NULL, INVALID, "train_preset: the configuration is null");
  QUERN_CHECK(name != NULL, INVALID, "train_preset: the name is null");
  const char *names[BASE_COUNT(presets)];
  for (size_t i = 0; i < BASE_COUNT(presets); i++) {
    names[i] = presets[i].name;
    if (strcmp(name, presets[i].name) != 0) continue;
    for (const struct setting *s = presets[i].settings; s->key != NULL; s++)
      QUERN_TRY(quern_config_set(config, s->key, s->value));
    return QUERN_STATUS_OK;
  }
  const char *nearest = base_nearest(name, names, BASE_COUNT(names));
  return base_error(QUERN_STATUS_INVALID, "there is no task '%.64s'; there are adder, chars%s%s%s", name,
                    nearest != NULL ? "; did you mean '" : "", nearest != NULL ? nearest : "",
                    nearest != NULL ? "'?" : "");
}

quern_status quern_train_config_of(quern_config *config, const char *dir) {
  QUERN_CHECK(config != NULL, INVALID, "train_config_of: the configuration is null");
  QUERN_CHECK(dir != NULL, INVALID, "train_config_of: the folder is null");
  quern_checkpoint *checkpoint;
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  QUERN_TRY(quern_checkpoint_find(&checkpoint, dir, io_config_allocator(config)));
  if (checkpoint == NULL && train_has_config(dir))
    return base_error(QUERN_STATUS_IO,
                      "%s: there is no checkpoint in it: the run ended before its first HINT: quern train %s/config "
                      "out=%s begins it anew",
                      dir, dir, dir);
  QUERN_CHECK(checkpoint != NULL, IO, "%s: there is no checkpoint in it", dir);
  quern_status status = quern_checkpoint_get_info(checkpoint, &info);
  if (status == QUERN_STATUS_OK && quern_checkpoint_config(checkpoint, "model") == NULL)
    status = base_error(QUERN_STATUS_INVALID, "%s: is no checkpoint of a training run", info.path);
  for (size_t i = 0; status == QUERN_STATUS_OK && i < info.n_config; i++)
    status = quern_config_set(config, info.config[i].key, info.config[i].value);
  quern_checkpoint_close(checkpoint);
  return status == QUERN_STATUS_OK ? quern_config_set(config, "out", dir) : status; /* it may have been moved */
}
