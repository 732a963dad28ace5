/* train/generate_run.c -- a generator of a run's folder: the newest whole checkpoint shows which model and tokenizer it has
** tests: tests/train/test_generate_run.c
*/
#include <stdio.h>
#include <sys/stat.h>

#include "io/io.h"
#include "train/generate.h"
#include "train/train.h"

/* The keys that the checkpoint was written with. */
static quern_status read_config(quern_config *config, const quern_checkpoint *checkpoint) {
  quern_checkpoint_info info = QUERN_INIT(quern_checkpoint_info);
  QUERN_TRY(quern_checkpoint_get_info(checkpoint, &info));
  for (size_t i = 0; i < info.n_config; i++)
    QUERN_TRY(quern_config_set(config, info.config[i].key, info.config[i].value));
  return QUERN_STATUS_OK;
}

static quern_status read_model(quern_lm_options *model, const quern_config *config,
                               const struct train_weights *weights) {
  struct train_spec spec;
  QUERN_TRY(train_spec_read(&spec, config));
  QUERN_CHECK(spec.family == TRAIN_LM, UNSUPPORTED,
              "'%s' is a run of model '%.64s', which does not generate; transformers do: lm, gpt2:..., modern:...",
              weights->path, quern_config_get(config, "model"));
  *model = spec.lm;
  int64_t words = train_weights_vocabulary(weights);
  if (words > 0) model->vocabulary = words;
  return QUERN_STATUS_OK;
}

/* That of the folder, or the one that the configuration names. */
static quern_status read_tokenizer(quern_tokenizer **tokenizer, const quern_config *config, const char *dir,
                                   const quern_allocator *allocator) {
  char path[IO_PATH_MOST];
  struct stat s;
  int n = snprintf(path, sizeof path, "%s/tokenizer.json", dir);
  QUERN_CHECK(n > 0 && (size_t)n < sizeof path, IO, "the path of '%.64s...' is too long", dir);
  if (stat(path, &s) == 0) return quern_tokenizer_read(tokenizer, path, allocator);
  const char *named = quern_config_get(config, "tokenizer");
  return quern_tokenizer_read(tokenizer, named[0] != 0 ? named : "bytes", allocator);
}

static quern_status open_run(quern_generator **generator, struct train_weights *weights, struct base_heap *heap,
                             quern_config *config, const quern_generate_options *options, quern_tokenizer **tokenizer) {
  quern_lm_options model = QUERN_INIT(quern_lm_options);
  QUERN_TRY(read_config(config, weights->checkpoint));
  QUERN_TRY(read_model(&model, config, weights));
  QUERN_TRY(train_generator_new(generator, weights, heap, &model, options));
  return tokenizer != NULL ? read_tokenizer(tokenizer, config, weights->path, &heap->user) : QUERN_STATUS_OK;
}

quern_status quern_generator_open_run(quern_generator **generator, const char *dir,
                                      const quern_generate_options *options, quern_tokenizer **tokenizer) {
  if (tokenizer != NULL) *tokenizer = NULL;
  QUERN_CHECK(generator != NULL, INVALID, "generator_open_run: the place for the generator is null");
  *generator = NULL;
  QUERN_CHECK(dir != NULL, INVALID, "generator_open_run: the folder is null");
  quern_generate_options o;
  QUERN_TRY(base_take(quern_generate_options, &o, options, "generator_open_run"));
  struct base_heap heap;
  base_heap_init(&heap, &o.allocator);
  struct train_weights weights = {.path = dir};
  quern_config *config = NULL;
  quern_status status = quern_checkpoint_find(&weights.checkpoint, dir, &heap.user);
  if (status == QUERN_STATUS_OK && weights.checkpoint == NULL)
    status = base_error(QUERN_STATUS_IO, "'%s': there is no checkpoint in it", dir);
  weights.heap = &heap;
  if (status == QUERN_STATUS_OK) weights.file = quern_checkpoint_tensors(weights.checkpoint);
  if (status == QUERN_STATUS_OK) status = quern_train_config(&config, &heap.user);
  if (status == QUERN_STATUS_OK) status = open_run(generator, &weights, &heap, config, &o, tokenizer);
  if (status != QUERN_STATUS_OK) {
    quern_generator_free(*generator);
    *generator = NULL;
  }
  quern_config_free(config);
  train_weights_close(&weights);
  return status;
}
