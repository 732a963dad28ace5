/* quern/generate.h -- language models that write: tokens one after another, with a cache of keys and values
** On one target (docs/runtime.md, "Bits") the logits of a position have the same bits with the cache and without it,
** whatever the size of the cache. The same seed gives the same text.
*/
#ifndef QUERN_GENERATE_H
#define QUERN_GENERATE_H
#include "quern/models.h"
#include "quern/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quern_generator quern_generator;

typedef struct quern_generate_options {
  size_t size;
  int64_t most; /* tokens, prompt included; 0: as many as the model has positions */
  int threads;  /* as in quern_program_options */
  const char *device;
  bool no_cache;             /* every token computes all positions again: slow, for comparison */
  quern_allocator allocator; /* all zero: the C library's */
  const char *
      precision; /* of computing: f32 (NULL); bf16 or f16: activations of 16 bits, as in training. Parameters stay f32 */
} quern_generate_options;

/* How the next token is chosen. */
typedef struct quern_sampling {
  size_t size;
  double temperature; /* 0: the most likely token, the lowest of equals; 0.8 is usual */
  int64_t top_k;      /* among the k most likely; 0: all */
  double top_p;       /* among the fewest that have this probability together; 0 or 1: all */
  uint64_t seed;
} quern_sampling;

/* Of the parameters in a checkpoint folder's newest whole checkpoint, in a checkpoint's own folder, or in safetensors, with the names of
** quern_lm_hidden at their outermost place; model says the sizes (its cache, start and dropout do not count). Floats of any dtype become
** f32. GPT-2 may be as HuggingFace saves it. Parameters that are missing, of another shape, or not of the model are an error that names
** one. options may be NULL. */
QUERN_API quern_status quern_generator_open(quern_generator **generator, const char *path,
                                            const quern_lm_options *model,
                                            const quern_generate_options *options) QUERN_NODISCARD;
/* Of a run's folder (quern/train.h): the checkpoint names the model. tokenizer (may be NULL) becomes the run's, to be freed. */
QUERN_API quern_status quern_generator_open_run(quern_generator **generator, const char *dir,
                                                const quern_generate_options *options,
                                                quern_tokenizer **tokenizer) QUERN_NODISCARD;
QUERN_API void quern_generator_free(quern_generator *generator);
QUERN_API int64_t quern_generator_most(const quern_generator *generator);
QUERN_API int64_t quern_generator_vocab(const quern_generator *generator);

/* Forgets all tokens. */
QUERN_API void quern_generator_reset(quern_generator *generator);
/* Adds tokens after those there are, in one call or many: it makes no difference. logits (may be NULL): of the last one, f32, as many
** as the vocabulary has ids. STATE when there is no room for all of them: none is added then. */
QUERN_API quern_status quern_generator_feed(quern_generator *generator, size_t n, const uint32_t *ids,
                                            float *logits) QUERN_NODISCARD;
/* The next token by the last logits, which is fed: quern_sample at the position that it gets. A token that ends a text
** (quern_tokenizer_end) is one like any other here. */
QUERN_API quern_status quern_generator_next(quern_generator *generator, const quern_sampling *sampling,
                                            uint32_t *id) QUERN_NODISCARD;
/* The choice alone: a function of the logits, the seed and the position. Of equal logits the lowest id counts as the most likely.
** Logits that are not finite are refused. */
QUERN_API quern_status quern_sample(const quern_sampling *sampling, int64_t position, size_t n, const float *logits,
                                    uint32_t *id) QUERN_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
