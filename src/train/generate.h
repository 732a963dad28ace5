/* train/generate.h -- what the parts of generation share: generate.c, weights.c, sample.c */
#ifndef TRAIN_GENERATE_H
#define TRAIN_GENERATE_H
#include "base/base.h"
#include "quern/checkpoint.h"
#include "quern/generate.h"
#include "quern/program.h"

/* ---- choosing (sample.c) ----------------------------------------------------------------------------------------- */

quern_status train_sampling_take(quern_sampling *taken, const quern_sampling *sampling) QUERN_NODISCARD;
/* quern_sample of what is checked; work: so many bytes, as aligned as a double. */
size_t train_sample_bytes(size_t n);
quern_status train_sample(const quern_sampling *sampling, int64_t position, size_t n, const float *logits, void *work,
                          uint32_t *id) QUERN_NODISCARD;

/* ---- parameters from files (weights.c) --------------------------------------------------------------------------- */

struct train_weights {
  struct base_heap *heap;
  quern_checkpoint *checkpoint;  /* NULL: a safetensors file */
  quern_safetensors *opened;     /* NULL: a checkpoint's */
  const quern_safetensors *file; /* either */
  const char *path;
  bool bare, turned; /* names without "transformer."; weights of its Conv1D are (in, out): as HuggingFace saves GPT-2 */
};
/* Opens the newest whole checkpoint of a folder, a checkpoint's own folder, or what quern_safetensors_open takes. path must stay.
** train_weights_close whatever happened. */
quern_status train_weights_open(struct train_weights *weights, struct base_heap *heap,
                                const char *path) QUERN_NODISCARD;
void train_weights_close(struct train_weights *weights);
/* Settles how the file writes GPT-2. */
void train_weights_inspect(struct train_weights *weights, quern_lm_names names);
/* The rows of the embedding; 0: there is none. */
int64_t train_weights_vocabulary(const struct train_weights *weights);
/* Fills the states of an instance that are parameters of the model, by name. Everything that is missing, of another shape, or of the
** model's kind but not of the model is an error that names it. */
quern_status train_weights_load(const struct train_weights *weights, const quern_model *model,
                                const quern_program *program, quern_instance *instance) QUERN_NODISCARD;

/* ---- states in 16 bits (low_states.c) --------------------------------------------------------------------------- */

/* Makes *y and the changes of a model that was autocast compute with states of the low dtype, where nothing is lost by it;
** `to` has room for the n changes as they are then. */
quern_status train_low_states(quern_context *ctx, quern_dtype low, quern_tensor **y, size_t n,
                              const quern_update *changes, quern_update *to) QUERN_NODISCARD;
/* How many bytes of a state's name are that of the parameter that it has, rounded or not. */
size_t train_low_name(const quern_slot *slot);

/* ---- generators (generate.c) ------------------------------------------------------------------------------------- */

/* quern_generator_open of weights that are open; path, for messages, and options may be NULL. */
quern_status train_generator_new(quern_generator **generator, struct train_weights *weights, struct base_heap *heap,
                                 const quern_lm_options *model, const quern_generate_options *options) QUERN_NODISCARD;

#endif
